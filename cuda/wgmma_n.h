/* wgmma_n - products of wgmma.h for few columns, and plain copies by the copy engine. */
#ifndef PDFLASH_CUDA_WGMMA_N_H
#define PDFLASH_CUDA_WGMMA_N_H

#include "wgmma.h"

#ifdef __CUDACC__

#define WG_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_LIST8 "%0, %1, %2, %3"
#define WG_D8 WG_F4(d, 0)
#define WG_LIST16 WG_LIST8 ", %4, %5, %6, %7"
#define WG_D16 WG_F8(d, 0)
#define WG_LIST32 WG_LIST16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WG_D32 WG_D16, WG_F8(d, 8)
#define WG_LIST48 WG_LIST32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WG_D48 WG_D32, WG_F8(d, 16)
#define WG_LIST80 WG_LIST64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WG_D80 WG_F32(d, 0), WG_F8(d, 32)
#define WG_LIST96 WG_LIST80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WG_D96 WG_D80, WG_F8(d, 40)
#define WG_LIST112 WG_LIST96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WG_D112 WG_D96, WG_F8(d, 48)

WG_PRODUCTS(8, "4", "5", "6", "7", "8", "9", "10")
WG_PRODUCTS(16, "8", "9", "10", "11", "12", "13", "14")
WG_PRODUCTS(32, "16", "17", "18", "19", "20", "21", "22")
WG_PRODUCTS(48, "24", "25", "26", "27", "28", "29", "30")
WG_PRODUCTS(80, "40", "41", "42", "43", "44", "45", "46")
WG_PRODUCTS(96, "48", "49", "50", "51", "52", "53", "54")
WG_PRODUCTS(112, "56", "57", "58", "59", "60", "61", "62")

/* bytes (a multiple of 16) from global memory to shared memory, counted by b; both 16-byte aligned */
static __device__ __forceinline__ void bulk_load(void *to, const void *from, int bytes, uint64_t *b)
{
    WG_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
           ::"r"(cu_shared(to)), "l"(from), "r"(bytes), "r"(cu_shared(b)) : "memory");
}
#endif
#endif
