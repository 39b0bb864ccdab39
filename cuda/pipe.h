/* pipe - stages in shared memory between one warp that fetches and the warps that use them: barriers that count
 * arrivals and, on Hopper and later, bytes; one bulk copy there, 16-byte copies elsewhere. */
#ifndef PDFLASH_CUDA_PIPE_H
#define PDFLASH_CUDA_PIPE_H

#include "cuda.h"

#ifdef __CUDACC__
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PIPE_BULK 1
#else
#define PIPE_BULK 0
#endif

/* arrivals that complete a phase of a barrier that pipe_fetch_end serves */
enum { PIPE_FETCHERS = PIPE_BULK ? 1 : 32 };

static __device__ __forceinline__ void pipe_init(uint64_t *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(cu_shared(bar)), "r"(arrivals) : "memory");
}

/* after all pipe_init, before the __syncthreads that publishes them */
static __device__ __forceinline__ void pipe_init_end()
{
#if PIPE_BULK
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

static __device__ __forceinline__ void pipe_arrive(uint64_t *bar)
{
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared.b64 t, [%0];\n}" ::"r"(cu_shared(bar)) : "memory");
}

/* until the phase of this parity is complete */
static __device__ __forceinline__ void pipe_wait(uint64_t *bar, int parity)
{
    uint32_t done;
    do {
#if PIPE_BULK
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(cu_shared(bar)), "r"(parity) : "memory");
#else
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(cu_shared(bar)), "r"(parity) : "memory");
#endif
    } while (!done);
}

/* One phase of a barrier of PIPE_FETCHERS arrivals, by a whole warp: pipe_fetch_begin with the bytes of all its
 * pipe_fetch, then those (multiples of 16 bytes at multiples of 16), then pipe_fetch_end. */
static __device__ __forceinline__ void pipe_fetch_begin(uint64_t *bar, int bytes)
{
#if PIPE_BULK
    if ((threadIdx.x & 31) == 0)
        asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.expect_tx.shared.b64 t, [%0], %1;\n}"
                     ::"r"(cu_shared(bar)), "r"(bytes) : "memory");
#else
    (void)bar, (void)bytes;
#endif
}

static __device__ __forceinline__ void pipe_fetch(void *to, const void *from, int bytes, uint64_t *bar)
{
#if PIPE_BULK
    if ((threadIdx.x & 31) == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(cu_shared(to)), "l"(from), "r"(bytes), "r"(cu_shared(bar)) : "memory");
#else
    (void)bar;
    for (int at = (threadIdx.x & 31) * 16; at < bytes; at += 512) cu_copy16((char *)to + at, (const char *)from + at);
#endif
}

static __device__ __forceinline__ void pipe_fetch_end(uint64_t *bar)
{
#if !PIPE_BULK
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(cu_shared(bar)) : "memory");
#else
    (void)bar;
#endif
}
#endif
#endif
