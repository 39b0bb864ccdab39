/* KDA verification of up to 16 rows as one tile, heads of 128: with G the sum of g from the first row to t,
 *   N[t,s] = beta_t <k_t, k_s> exp(G_t - G_s), A[t,s] = <q_t, k_s> exp(G_t - G_s) for s < t, s <= t,
 *   D = (I + N)^-1 beta (v - (k exp(G)) S),  O = (q exp(G)) S + A D.
 * The state is read once and not written: memory is the limit. Products are three TF32 products of value and rest, which is
 * as near to the recurrence as two orders of FP32 sums are; a row depends on the rows before it and not on their number.
 *
 * A block of 8 warps per (head, sequence). Everything is transposed, columns are rows of the tensor core's tiles: a warp has
 * 16 value columns, and what it loads of S, then D, are operands as they lie in registers. */
#include "kda_recur.h"

enum { D = 128, T = KDA_TILE, THREADS = 256, STEPS = D / 8, MID = 7, LD = D + 4, SMALL = T + 4 };

struct tile {
    float x[3][T][LD];           /* g, k, q; then k exp(mid - G), k exp(G - mid), q exp(G - mid) */
    float4 left[STEPS][4 * 32 + 4]; /* k exp(G), q exp(G) as operands: [8 keys][k rows 0, 8, q rows 0, 8][lane]: value, rest */
    float n[T][SMALL], inv[T][SMALL], a[T][SMALL], beta[T];
};

/* x = hi + lo, both of TF32 (the tensor cores drop the last bits of lo) */
static __device__ __forceinline__ void two_parts(uint32_t &hi, uint32_t &lo, float x)
{
    hi = (__float_as_uint(x) + 0x1000) & 0xffffe000u;
    lo = __float_as_uint(x - __uint_as_float(hi));
}

static __device__ __forceinline__ void mma_tf32(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* c += a b, each as value and rest */
static __device__ __forceinline__ void mma_parts(float *c, const uint32_t *ah, const uint32_t *al, const uint32_t *bh, const uint32_t *bl)
{
    mma_tf32(c, al, bh[0], bh[1]);
    mma_tf32(c, ah, bl[0], bl[1]);
    mma_tf32(c, ah, bh[0], bh[1]);
}

/* a column of the rows' vectors with their decays: of the keys (which 0) or of the queries (1) */
static __device__ __forceinline__ void scale_column(struct tile &m, int which, int c)
{
    float pre[T];
#pragma unroll
    for (int t = 0; t < T; t++) pre[t] = m.x[0][t][c] + (t ? pre[t - 1] : 0.0f);
    __syncthreads();
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float x = m.x[1 + which][t][c];
        uint32_t hi, lo;
        two_parts(hi, lo, x * expf(pre[t]));
        float *at = (float *)&m.left[c >> 3][(2 * which + (t >> 3)) * 32 + (t & 7) * 4 + (c & 3)] + (c >> 2 & 1);
        at[0] = __uint_as_float(hi);
        at[2] = __uint_as_float(lo);
        m.x[1 + which][t][c] = x * expf(pre[t] - pre[MID]);
        if (which == 0) m.x[0][t][c] = x * expf(pre[MID] - pre[t]);
    }
}

/* 8 columns of N (which 0) or A (1) */
static __device__ __forceinline__ void pair_product(struct tile &m, int which, int half)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3;
    float acc[4] = {};
#pragma unroll 4
    for (int k = 0; k < STEPS; k++) {
        uint32_t ah[4], al[4], bh[2], bl[2];
#pragma unroll
        for (int i = 0; i < 4; i++) two_parts(ah[i], al[i], m.x[1 + which][g + (i & 1) * 8][k * 8 + q4 + (i >> 1) * 4]);
#pragma unroll
        for (int i = 0; i < 2; i++) two_parts(bh[i], bl[i], m.x[0][half * 8 + g][k * 8 + q4 + i * 4]);
        mma_parts(acc, ah, al, bh, bl);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int t = g + (i >> 1) * 8, s = half * 8 + q4 * 2 + (i & 1);
        if (which) m.a[t][s] = s <= t ? acc[i] : 0.0f;
        else m.n[t][s] = s < t ? m.beta[t] * acc[i] : 0.0f;
    }
}

/* column c of (I + N)^-1 */
static __device__ __forceinline__ void invert(struct tile &m, int c)
{
    float x[T];
#pragma unroll
    for (int t = 0; t < T; t++) {
        float part[2] = {t == c ? 1.0f : 0.0f, 0.0f};
#pragma unroll
        for (int s = 0; s < t; s++) part[s & 1] -= m.n[t][s] * x[s];
        m.inv[t][c] = x[t] = part[0] + part[1];
    }
}

/* out[2 tiles of 8 rows] += x . b transposed, lower triangle */
static __device__ __forceinline__ void times_small(float (*out)[4], const float (*x)[4], const float (*b)[SMALL])
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t ah[4], al[4], bh[2], bl[2];
#pragma unroll
        for (int i = 0; i < 4; i++) two_parts(ah[i], al[i], x[j][(i & 1) * 2 + (i >> 1)]);
#pragma unroll
        for (int i = j; i < 2; i++) {
            const float2 y = *(const float2 *)&b[i * 8 + g][j * 8 + q4 * 2];
            two_parts(bh[0], bl[0], y.x);
            two_parts(bh[1], bl[1], y.y);
            mma_parts(out[i], ah, al, bh, bl);
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 2) tile_kernel(struct recur a)
{
    extern __shared__ __align__(16) char mem[];
    struct tile &m = *(struct tile *)mem;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q4 = lane & 3, h = blockIdx.x, col = warp * 16 + g * 2;
    kda_pick(a, blockIdx.y);
    if (!kda_tiles(a.t)) return;
    const int64_t w = (int64_t)a.heads * D;
    const float *q = a.qkv + (int64_t)h * D, *from = a.state + (int64_t)h * D * D + q4 * D + col;
    for (int e = tid; e < T * 3 * D / 4; e += THREADS) {
        const int t = e / (3 * D / 4), which = e / (D / 4) % 3, c = e % (D / 4) * 4;
        float *to = &m.x[which][t][c];
        if (t < a.t) kda_copy4(to, which == 0 ? a.g + t * a.ldg + (int64_t)h * D + c : q + t * 3 * w + (which == 1 ? w : 0) + c, a.vec & 1);
        else *(float4 *)to = make_float4(0, 0, 0, 0);
    }
    cu_copy_end();
    if (tid < T) m.beta[tid] = tid < a.t ? a.beta[tid * a.ldb + h] : 0.0f;
    float2 s[STEPS][2], v[4]; /* keys 8 k + q4 and + 4; rows 2 q4, 2 q4 + 1, and + 8: columns col, col + 1 */
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int i = 0; i < 2; i++) s[k][i] = *(const float2 *)(from + (k * 8 + i * 4) * D);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int t = (i >> 1) * 8 + q4 * 2 + (i & 1);
        v[i] = t < a.t ? *(const float2 *)(q + t * 3 * w + 2 * w + col) : make_float2(0, 0);
    }
    cu_copy_wait<0>();
    __syncthreads();
    scale_column(m, tid / D, tid % D);
    __syncthreads();
    if (warp < 4) pair_product(m, warp >> 1, warp & 1);
    float acc[4][4] = {}; /* (k exp(G)) S, (q exp(G)) S transposed */
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint32_t ah[4], al[4];
        two_parts(ah[0], al[0], s[k][0].x);
        two_parts(ah[1], al[1], s[k][0].y);
        two_parts(ah[2], al[2], s[k][1].x);
        two_parts(ah[3], al[3], s[k][1].y);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float4 x = m.left[k][n * 32 + lane];
            const uint32_t bh[2] = {__float_as_uint(x.x), __float_as_uint(x.y)}, bl[2] = {__float_as_uint(x.z), __float_as_uint(x.w)};
            mma_parts(acc[n], ah, al, bh, bl);
        }
    }
    __syncthreads();
    if (tid < T) invert(m, tid);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 y = v[j * 2 + (e & 1)];
            acc[j][e] = m.beta[j * 8 + q4 * 2 + (e & 1)] * ((e >> 1 ? y.y : y.x) - acc[j][e]);
        }
    __syncthreads();
    float d[2][4] = {};
    times_small(d, acc, m.inv);
    times_small(acc + 2, d, m.a);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int t = (i >> 1) * 8 + q4 * 2 + (i & 1);
        float *to = a.out + t * a.ldo + (int64_t)h * D + col;
        const float *y = acc[2 + (i >> 1)] + (i & 1);
        if (t >= a.t) continue;
        if (a.vec & 2) *(float2 *)to = make_float2(y[0], y[2]);
        else to[0] = y[0], to[1] = y[2];
    }
}

void kda_tile(cudaStream_t st, const struct recur &a)
{
    CU(cudaFuncSetAttribute(tile_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct tile)));
    tile_kernel<<<dim3((unsigned)a.heads, (unsigned)a.n_seq), THREADS, sizeof(struct tile), st>>>(a);
    CU_LAUNCHED("kda_recur in a tile");
}
