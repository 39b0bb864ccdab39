/* wgmma - what Hopper alone has (sm_90a): matrix products of a warpgroup, the tensor copy engine, barriers that count
 * bytes, thread block clusters. Kernels made of these are compiled for every architecture but run on sm_90a only: the
 * wrappers trap elsewhere, and cu_hopper says on the host whether they may be launched.
 *
 * Operands in shared memory are blocks of rows of 128 bytes (64 BF16) in the 128-byte swizzle, aligned to 1024 bytes:
 * the 16-byte chunk c of row r lies at chunk c ^ (r % 8) of its row. The copy engine writes them so; wg_at is the
 * address for everybody else. Wider operands are several blocks, one behind the other.
 * Accumulators of m64nN: d[4 j + i] of lane 4 g + q of warp w: row 16 w + g + 8 (i / 2), column 8 j + 2 q + i % 2. */
#ifndef PDFLASH_CUDA_WGMMA_H
#define PDFLASH_CUDA_WGMMA_H

#include "cuda.h"

/* A tensor in device memory as the copy engine sees it: up to four dimensions, the innermost contiguous BF16. Kernels
 * take it by value as a __grid_constant__ parameter. */
struct alignas(64) cu_map {
    uint64_t opaque[16];
};

/* cu_hopper - whether this build has sm_90a code and the device can run it */
int cu_hopper(const struct cuda_impl *im);
/* cu_map_new - n_dims dimensions, innermost first: dim[] elements, stride[i] bytes of dimension i + 1 (multiples of
 * 16), box[] elements of one copy (box[0] = 64: rows of 128 bytes, swizzled). base: 16-byte aligned. Copies give zeros
 * outside of the tensor. */
struct cu_map cu_map_new(const void *base, int n_dims, const int64_t *dim, const int64_t *stride, const int *box);

#ifdef __CUDACC__

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WG_ASM(...) asm volatile(__VA_ARGS__)
#else
#define WG_ASM(...) __trap()
#endif

/* ---- shared memory ------------------------------------------------------------------------------------------- */

/* byte offset of the 16-byte chunk c (0..7) of row r in a block */
static __device__ __forceinline__ uint32_t wg_at(int r, int c)
{
    return (uint32_t)(r * 128 + ((c ^ (r & 7)) << 4));
}

/* ordinary stores of this thread before, the engine's and the tensor cores' accesses after the next barrier */
static __device__ __forceinline__ void wg_publish()
{
    WG_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

/* barrier id among n threads */
static __device__ __forceinline__ void wg_sync(int id, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}

static __device__ __forceinline__ void wg_arrive(int id, int n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}

/* ---- barriers that count arrivals and bytes -------------------------------------------------------------------- */

static __device__ __forceinline__ void bar_init(uint64_t *b, int arrivals)
{
    WG_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cu_shared(b)), "r"(arrivals) : "memory");
}

/* after bar_init, by the thread that called it */
static __device__ __forceinline__ void bar_init_done()
{
    WG_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* The barriers of N stages, set up by a whole block before it uses them. Stage by stage, the sets in their order: what
 * is filled by the copy engine counts the one arrival of bar_expect, what is emptied one of every warp that reads. */
struct bar_set {
    uint64_t *bar; /* [N] */
    int arrivals;
};

template <int N, int SETS> static __device__ __forceinline__ void bar_start(const struct bar_set (&set)[SETS])
{
    if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int s = 0; s < SETS; s++) bar_init(&set[s].bar[i], set[s].arrivals);
        bar_init_done();
    }
    __syncthreads();
}

static __device__ __forceinline__ void bar_arrive(uint64_t *b)
{
    WG_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cu_shared(b)) : "memory");
}

/* arrive, and wait for that many bytes more */
static __device__ __forceinline__ void bar_expect(uint64_t *b, int bytes)
{
    WG_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cu_shared(b)), "r"(bytes) : "memory");
}

/* until phase (0, 1, 0, ..) of the barrier is over */
static __device__ __forceinline__ void bar_wait(uint64_t *b, int phase)
{
    WG_ASM("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\n"
           "DONE:\n}"
           ::"r"(cu_shared(b)), "r"(phase) : "memory");
}

/* ---- the copy engine: one thread calls ------------------------------------------------------------------------ */

static __device__ __forceinline__ void tma_load(void *to, const struct cu_map *m, uint64_t *b, int x, int y)
{
    WG_ASM("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
           ::"r"(cu_shared(to)), "l"(m), "r"(cu_shared(b)), "r"(x), "r"(y) : "memory");
}

static __device__ __forceinline__ void tma_load(void *to, const struct cu_map *m, uint64_t *b, int x, int y, int z)
{
    WG_ASM("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
           ::"r"(cu_shared(to)), "l"(m), "r"(cu_shared(b)), "r"(x), "r"(y), "r"(z) : "memory");
}

static __device__ __forceinline__ void tma_load(void *to, const struct cu_map *m, uint64_t *b, int x, int y, int z,
                                                int w)
{
    WG_ASM("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
           "[%0], [%1, {%3, %4, %5, %6}], [%2];"
           ::"r"(cu_shared(to)), "l"(m), "r"(cu_shared(b)), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

static __device__ __forceinline__ void tma_store(const struct cu_map *m, const void *from, int x, int y)
{
    WG_ASM("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%1, {%2, %3}], [%0];"
           ::"r"(cu_shared(from)), "l"(m), "r"(x), "r"(y) : "memory");
}

static __device__ __forceinline__ void tma_store_end()
{
    WG_ASM("cp.async.bulk.commit_group;" ::: "memory");
}

/* until the sources of this thread's stores may be overwritten */
static __device__ __forceinline__ void tma_store_read()
{
    WG_ASM("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* ---- registers ------------------------------------------------------------------------------------------------- */

template <int N> static __device__ __forceinline__ void wg_more_registers()
{
    WG_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void wg_less_registers()
{
    WG_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* a launch in clusters of `cluster` neighbours along x */
template <class J>
static void wg_launch(void (*kernel)(J), int cluster, dim3 grid, int threads, size_t bytes, cudaStream_t st,
                      const J &job)
{
    cudaLaunchAttribute a = {};
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = (unsigned)cluster;
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
    CU(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    cu_launch_with(&a, kernel, grid, (unsigned)threads, bytes, st, job);
}

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void cluster_sync()
{
    WG_ASM("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* address, in the cluster's window, of what p is in block `rank` of the cluster */
static __device__ __forceinline__ uint32_t cluster_at(const void *p, int rank)
{
    uint32_t at = 0;
    WG_ASM("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(cu_shared(p)), "r"(rank));
    return at;
}

static __device__ __forceinline__ float4 cluster_load4(uint32_t at)
{
    float4 v = make_float4(0, 0, 0, 0);
    WG_ASM("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
           : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}

static __device__ __forceinline__ float cluster_load(uint32_t at)
{
    float v = 0;
    WG_ASM("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}

/* ---- products of a warpgroup --------------------------------------------------------------------------------- */

/* an operand in swizzled blocks of `rows` rows; p: its first element of this product (a multiple of 16 columns where
 * rows hold the inner dimension, of 16 rows where they are it) */
static __device__ __forceinline__ uint64_t wg_operand(const void *p, int rows)
{
    uint64_t at = (cu_shared(p) & 0x3ffff) >> 4, block = (uint64_t)rows * 128 >> 4;
    return at | block << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* registers and shared memory of products that follow are ready */
static __device__ __forceinline__ void wg_begin()
{
    WG_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wg_end()
{
    WG_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* until at most PENDING groups (begin .. end) are at work */
template <int PENDING> static __device__ __forceinline__ void wg_wait()
{
    WG_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* keeps the compiler from moving accesses of registers that a product is at work on */
template <int N> static __device__ __forceinline__ void wg_hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int N> static __device__ __forceinline__ void wg_hold(uint32_t (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* wg_ss, wg_rs - d (+)= a . b for 64 rows, N columns (N / 2 values of d a thread), 16 inner elements; a from shared
 * memory or from registers; add 0: d = a . b. B_INNER 1: rows of b hold the inner dimension (keys of Q K^T), 0: they
 * are it (values). */
#define WG_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_F8(d, i) WG_F4(d, i), WG_F4(d, i + 4)
#define WG_F32(d, i) WG_F8(d, i), WG_F8(d, i + 8), WG_F8(d, i + 16), WG_F8(d, i + 24)
#define WG_LIST64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WG_D64 WG_F32(d, 0)
#define WG_LIST128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WG_D128 WG_F32(d, 0), WG_F32(d, 32)
#define WG_LIST256 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WG_D256 WG_F32(d, 0), WG_F32(d, 32), WG_F32(d, 64), WG_F32(d, 96)

/* A0 .. A6: numbers of the operands behind the N / 2 of d */
#define WG_PRODUCTS(N, A0, A1, A2, A3, A4, A5, A6) \
    template <int B_INNER> \
    static __device__ __forceinline__ void wg_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add) \
    { \
        WG_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %" A2 ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_LIST##N "}, %" A0 ", %" A1 \
               ", p, 1, 1, 0, %" A3 ";\n}" \
               : WG_D##N : "l"(a), "l"(b), "r"(add), "n"(!B_INNER)); \
    } \
    template <int B_INNER> \
    static __device__ __forceinline__ void wg_rs(float (&d)[N / 2], const uint32_t *a, uint64_t b, int add) \
    { \
        WG_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %" A5 ", 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WG_LIST##N "}, {%" A0 ", %" A1 ", %" A2 \
               ", %" A3 "}, %" A4 ", p, 1, 1, %" A6 ";\n}" \
               : WG_D##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(!B_INNER)); \
    }
WG_PRODUCTS(64, "32", "33", "34", "35", "36", "37", "38")
WG_PRODUCTS(128, "64", "65", "66", "67", "68", "69", "70")
WG_PRODUCTS(256, "128", "129", "130", "131", "132", "133", "134")
#endif
#endif
