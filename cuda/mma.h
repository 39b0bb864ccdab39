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

static __device__ __forceinline__ uint32_t cu_pack(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(uint32_t *)&v;
}
#endif
#endif
