/* attend_wg - what the attention kernels on Hopper share: powers of 2, and sums of a cluster whose blocks saw different
 * keys. */
#ifndef PDFLASH_CUDA_ATTEND_WG_H
#define PDFLASH_CUDA_ATTEND_WG_H

#include "mma.h"
#include "wgmma.h"

#ifdef __CUDACC__
static constexpr float AT_LOG2E = 1.44269504f; /* scores times this are exponents of 2 */

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* what to subtract from a lane's scores: its maximum, unless it saw nothing */
static __device__ __forceinline__ float at_base(float top)
{
    return top == -INFINITY ? 0.0f : top;
}

/* 64 rows of COLS FP32 values as BF16 in blocks of 64 columns; row(r): row r, NULL for zeros. VEC: readable 16 bytes at
 * a time. Called by THREADS threads, number t. The loads of U chunks of 8 values are on their way together. */
template <bool VEC, int COLS, int THREADS, int U, class F>
static __device__ __forceinline__ void at_put_rows(char (*to)[64 * 128], int t, F row)
{
    static_assert(64 * COLS / 8 % (THREADS * U) == 0, "chunks are dealt out evenly");
    for (int e0 = t; e0 < 64 * COLS / 8; e0 += THREADS * U) {
        float4 lo[U], hi[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int e = e0 + u * THREADS, c = e % (COLS / 8);
            const float *x = row(e / (COLS / 8));
            lo[u] = x ? cu_load4<VEC>(x, c * 8, COLS) : make_float4(0, 0, 0, 0);
            hi[u] = x ? cu_load4<VEC>(x, c * 8 + 4, COLS) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int e = e0 + u * THREADS, c = e % (COLS / 8);
            *(uint4 *)(to[c / 8] + wg_at(e / (COLS / 8), c % 8)) =
                make_uint4(cu_pack(lo[u].x, lo[u].y), cu_pack(lo[u].z, lo[u].w), cu_pack(hi[u].x, hi[u].y),
                           cu_pack(hi[u].z, hi[u].w));
        }
    }
}

/* the parts of one lane in a cluster of RANKS blocks, in order */
template <int RANKS> struct at_parts {
    float weight[RANKS], top, sum;
};

/* top, sum: the lane's maximum and its sums of weights (two, or the second NULL) in this block's shared memory; scale:
 * of scores to exponents of 2 */
template <int RANKS> static __device__ __forceinline__ struct at_parts<RANKS> at_meet(const float *top,
                                                                                      const float *sum,
                                                                                      const float *sum2, float scale) {
    struct at_parts<RANKS> p;
    float part[RANKS], part2[RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; r++) { /* all on their way before the first is looked at */
        p.weight[r] = cluster_load(cluster_at(top, r));
        part[r] = cluster_load(cluster_at(sum, r));
        part2[r] = sum2 ? cluster_load(cluster_at(sum2, r)) : 0.0f;
    }
    p.top = -INFINITY;
    p.sum = 0;
#pragma unroll
    for (int r = 0; r < RANKS; r++) p.top = fmaxf(p.top, p.weight[r]);
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
        p.weight[r] = exp2_fast((p.weight[r] - at_base(p.top)) * scale);
        p.sum += p.weight[r] * (part[r] + part2[r]);
    }
    return p;
}

/* weighted sums v[] of N times 4 columns, 128 columns apart; acc: this block's */
template <int RANKS, int N>
static __device__ __forceinline__ void at_add_up(const struct at_parts<RANKS> &p, const float *acc, float4 (&v)[N])
{
    float4 x[N][RANKS];
#pragma unroll
    for (int r = 0; r < RANKS; r++)
#pragma unroll
        for (int n = 0; n < N; n++) x[n][r] = cluster_load4(cluster_at(acc, r) + n * 512);
#pragma unroll
    for (int n = 0; n < N; n++) {
        v[n] = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < RANKS; r++) {
            v[n].x += p.weight[r] * x[n][r].x;
            v[n].y += p.weight[r] * x[n][r].y;
            v[n].z += p.weight[r] * x[n][r].z;
            v[n].w += p.weight[r] * x[n][r].w;
        }
    }
}
#endif
#endif
