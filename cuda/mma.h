/* mma - loading tensor core operands from shared memory. */
#ifndef PDFLASH_CUDA_MMA_H
#define PDFLASH_CUDA_MMA_H

#include "cuda.h"

#ifdef __CUDACC__
/* four 8 x 8 matrices, the row addresses of matrix i from lanes 8 i .. 8 i + 7 */
static __device__ __forceinline__ void ldmatrix4(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(cu_shared(p)));
}

static __device__ __forceinline__ void ldmatrix2(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(cu_shared(p)));
}

/* the same, transposed */
static __device__ __forceinline__ void ldmatrix2_trans(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(cu_shared(p)));
}

static __device__ __forceinline__ void ldmatrix4_trans(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(cu_shared(p)));
}

/* Sums that several warps share: each leaves its own as part[row][out] with stride ld (acc as cu_mma leaves it: 16 m
 * outputs, 8 j rows); after a barrier cu_parts_sum adds one element of N parts, stride elements apart, in order. */
template <int MT, int NT>
static __device__ __forceinline__ void cu_parts_put(float *part, int ld, const float (&acc)[MT][NT][4])
{
    const int g = (threadIdx.x & 31) >> 2, q = threadIdx.x & 3;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) part[(j * 8 + q * 2 + i % 2) * ld + m * 16 + g + i / 2 * 8] = acc[m][j][i];
}

template <int N> static __device__ __forceinline__ float cu_parts_sum(const float *part, int64_t stride)
{
    float v = 0;
#pragma unroll
    for (int p = 0; p < N; p++) v += part[p * stride];
    return v;
}

static __device__ __forceinline__ uint32_t cu_pack(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&v;
}
#endif
#endif
