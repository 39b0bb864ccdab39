/* KDA verification of up to 16 rows as one tile, heads of 128: with G the sum of g from the first row to t,
 *   N[t,s] = beta_t <k_t, k_s> exp(G_t - G_s), A[t,s] = <q_t, k_s> exp(G_t - G_s) for s < t, s <= t,
 *   D = (I + N)^-1 beta (v - (k exp(G)) S),  O = (q exp(G)) S + A D.
 * The state is read once and not written: memory is the limit. Products are three TF32 products of value and rest,
 * which is as near to the recurrence as two orders of FP32 sums are; a row depends on the rows before it and not on
 * their number.
 *
 * A block of 8 warps per (head, sequence). Everything is transposed, columns are rows of the tensor core's tiles, so
 * that what a warp loads of S, then D, are operands as they lie in registers. A warp takes 64 keys of 32 columns of S,
 * then, with the sums of the other 64 keys from its partner, 16 of these columns to the end. */
#include "kda_recur.h"

enum { D = 128, T = KDA_TILE, THREADS = 256, STEPS = D / 8, HALF = STEPS / 2, MID = 7, LD = D + 4, SMALL = 20 };

struct tile {
    union {
        struct {
            float g[T][LD], x[2][T][LD], kr[T][LD]; /* x: k, q; then these times exp(G - mid); kr: k exp(mid - G) */
        };
        float4 sums[8][4][32]; /* of each warp's 64 keys, for its partner: [8 rows of k, k, q, q][lane] */
    };
    /* k exp(G), q exp(G) as operands, value and rest: [8 keys][8 rows of k, k, q, q; lane] */
    float2 left[2][STEPS][4 * 32 + 4];
    /* sums over 64 keys each: N's two blocks of 8 x 8 on the diagonal, transposed, the one below them, negative; A */
    float nt[2][2][8][SMALL], low[2][8][SMALL], a[2][T][SMALL];
    float inv[2][8][SMALL], beta[T]; /* inv: of I and the blocks on the diagonal */
};

/* x = hi + lo, both of TF32 (the tensor cores drop the last bits of lo) */
static __device__ __forceinline__ void two_parts(uint32_t &hi, uint32_t &lo, float x)
{
    hi = (__float_as_uint(x) + 0x1000) & 0xffffe000u;
    lo = __float_as_uint(x - __uint_as_float(hi));
}

static __device__ __forceinline__ void mma_tf32(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* c[n] += a b[n], each as value and rest */
template <int N>
static __device__ __forceinline__ void mma_parts(float (*c)[4], const uint32_t *ah, const uint32_t *al,
                                                 const uint32_t (*bh)[2], const uint32_t (*bl)[2])
{
#pragma unroll
    for (int n = 0; n < N; n++) mma_tf32(c[n], al, bh[n][0], bh[n][1]);
#pragma unroll
    for (int n = 0; n < N; n++) mma_tf32(c[n], ah, bl[n][0], bl[n][1]);
#pragma unroll
    for (int n = 0; n < N; n++) mma_tf32(c[n], ah, bh[n][0], bh[n][1]);
}

/* 2^x: the sums of g are kept in units of log 2 */
static __device__ __forceinline__ float exp_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* a column of the rows' vectors with their decays: of the keys (which 0) or of the queries (1) */
static __device__ __forceinline__ void scale_column(struct tile &m, int which, int c)
{
    float pre[T];
#pragma unroll
    for (int t = 0; t < T; t++) pre[t] = fmaf(m.g[t][c], 1.4426950408889634f, t ? pre[t - 1] : 0.0f);
    const float start = exp_2(pre[MID]);
#pragma unroll
    for (int t = 0; t < T; t++) {
        const float x = m.x[which][t][c], y = x * exp_2(pre[t] - pre[MID]);
        uint32_t hi, lo;
        two_parts(hi, lo, y * start);
        const int at = (2 * which + (t >> 3)) * 32 + (t & 7) * 4 + (c & 3);
        (&m.left[0][c >> 3][at].x)[c >> 2 & 1] = __uint_as_float(hi);
        (&m.left[1][c >> 3][at].x)[c >> 2 & 1] = __uint_as_float(lo);
        m.x[which][t][c] = y;
        if (which == 0) m.kr[t][c] = x * exp_2(pre[MID] - pre[t]);
    }
}

/* 8 columns of N (which 0) or A (1), the part of 64 keys */
static __device__ __forceinline__ void pair_product(struct tile &m, int which, int half, int keys)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3;
    float acc[1][4] = {};
#pragma unroll 4
    for (int k = keys * HALF; k < (keys + 1) * HALF; k++) {
        uint32_t ah[4], al[4], bh[1][2], bl[1][2];
#pragma unroll
        for (int i = 0; i < 4; i++) two_parts(ah[i], al[i], m.x[which][g + (i & 1) * 8][k * 8 + q4 + (i >> 1) * 4]);
#pragma unroll
        for (int i = 0; i < 2; i++) two_parts(bh[0][i], bl[0][i], m.kr[half * 8 + g][k * 8 + q4 + i * 4]);
        mma_parts<1>(acc, ah, al, bh, bl);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int block = i >> 1, t = g + block * 8, s = half * 8 + q4 * 2 + (i & 1);
        if (which) m.a[keys][t][s] = s <= t ? acc[0][i] : 0.0f;
        else if (block == half) m.nt[keys][half][s & 7][g] = s < t ? m.beta[t] * acc[0][i] : 0.0f;
        else if (block == 1) m.low[keys][g][s] = -m.beta[t] * acc[0][i];
    }
}

/* column c of the inverse of I and a block of N on the diagonal */
static __device__ __forceinline__ void invert(struct tile &m, int block, int c)
{
    float x[8];
#pragma unroll
    for (int t = 0; t < 8; t++) x[t] = t == c ? 1.0f : 0.0f;
#pragma unroll
    for (int s = 0; s < 8; s++) {
        m.inv[block][s][c] = x[s];
#pragma unroll
        for (int t = (s + 1) & ~3; t < 8; t += 4) {
            const float4 y = *(const float4 *)&m.nt[0][block][s][t], z = *(const float4 *)&m.nt[1][block][s][t];
            const float n[4] = {y.x + z.x, y.y + z.y, y.z + z.z, y.w + z.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (t + i > s) x[t + i] -= n[i] * x[s];
        }
    }
}

/* 8 rows of a transposed result as an operand */
static __device__ __forceinline__ void as_operand(uint32_t *ah, uint32_t *al, const float *x)
{
#pragma unroll
    for (int i = 0; i < 4; i++) two_parts(ah[i], al[i], x[(i & 1) * 2 + (i >> 1)]);
}

/* c += a . b transposed, b an 8 x 8 block, the sum of two if there are two */
static __device__ __forceinline__ void times_block(float *c, const uint32_t *ah, const uint32_t *al,
                                                   const float (*b)[SMALL], const float (*more)[SMALL])
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3;
    uint32_t bh[1][2], bl[1][2];
    float2 y = *(const float2 *)&b[g][q4 * 2];
    if (more) {
        const float2 z = *(const float2 *)&more[g][q4 * 2];
        y = make_float2(y.x + z.x, y.y + z.y);
    }
    two_parts(bh[0][0], bl[0][0], y.x);
    two_parts(bh[0][1], bl[0][1], y.y);
    mma_parts<1>((float (*)[4])c, ah, al, bh, bl);
}

static __global__ void __launch_bounds__(THREADS, 2) tile_kernel(struct recur a)
{
    extern __shared__ __align__(16) char mem[];
    struct tile &m = *(struct tile *)mem;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q4 = lane & 3;
    const int h = blockIdx.x, keys = warp >> 2;
    const int col = (warp & 3) * 32 + g * 4, mine = col + keys * 2; /* of 4 columns, of 2 of them */
    kda_pick(a, blockIdx.y);
    const int64_t w = (int64_t)a.heads * D;
    const float *q = a.qkv + (int64_t)h * D, *from = a.state + (int64_t)h * D * D + (keys * 64 + q4) * D + col;
#pragma unroll
    for (int i = 0; i < 2; i++) { /* two rows of a warp */
        const int t = warp * 2 + i, c = lane * 4;
        if (t < a.t) {
            kda_copy4(&m.g[t][c], a.g + t * a.ldg + (int64_t)h * D + c, a.vec & 1);
            kda_copy4(&m.x[0][t][c], q + t * 3 * w + w + c, 1);
            kda_copy4(&m.x[1][t][c], q + t * 3 * w + c, 1);
        } else *(float4 *)&m.g[t][c] = *(float4 *)&m.x[0][t][c] = *(float4 *)&m.x[1][t][c] = make_float4(0, 0, 0, 0);
    }
    cu_copy_end();
    if (tid < T) m.beta[tid] = tid < a.t ? a.beta[tid * a.ldb + h] : 0.0f;
    float4 s[HALF][2]; /* keys 8 k + q4 and + 4 */
    float2 v[4];       /* rows 2 q4, 2 q4 + 1, and + 8 */
#pragma unroll
    for (int k = 0; k < HALF; k++)
#pragma unroll
        for (int i = 0; i < 2; i++) s[k][i] = *(const float4 *)(from + (k * 8 + i * 4) * D);
    cu_copy_wait<0>();
    __syncthreads();
    scale_column(m, tid / D, tid % D);
    __syncthreads();
    pair_product(m, warp >> 1 & 1, warp & 1, keys);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int t = (i >> 1) * 8 + q4 * 2 + (i & 1);
        v[i] = t < a.t ? *(const float2 *)(q + t * 3 * w + 2 * w + mine) : make_float2(0, 0);
    }
    __syncthreads();
    if (tid < T) invert(m, tid >> 3, tid & 7);
    float acc[2][4][4] = {}; /* columns 0, 1 and 2, 3: (k exp(G)) S, (q exp(G)) S transposed, 8 rows each */
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        uint32_t bh[4][2], bl[4][2];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float2 x = m.left[0][keys * HALF + k][n * 32 + lane], y = m.left[1][keys * HALF + k][n * 32 + lane];
            bh[n][0] = __float_as_uint(x.x), bh[n][1] = __float_as_uint(x.y);
            bl[n][0] = __float_as_uint(y.x), bl[n][1] = __float_as_uint(y.y);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t ah[4], al[4];
            two_parts(ah[0], al[0], i ? s[k][0].z : s[k][0].x);
            two_parts(ah[1], al[1], i ? s[k][0].w : s[k][0].y);
            two_parts(ah[2], al[2], i ? s[k][1].z : s[k][1].x);
            two_parts(ah[3], al[3], i ? s[k][1].w : s[k][1].y);
            mma_parts<4>(acc[i], ah, al, bh, bl);
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float keep = keys ? acc[1][n][e] : acc[0][n][e];
            (&m.sums[warp][n][lane].x)[e] = keys ? acc[0][n][e] : acc[1][n][e];
            acc[0][n][e] = keep;
        }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) acc[0][n][e] += (&m.sums[warp ^ 4][n][lane].x)[e];
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 y = v[j * 2 + (e & 1)];
            acc[0][j][e] = m.beta[j * 8 + q4 * 2 + (e & 1)] * ((e >> 1 ? y.y : y.x) - acc[0][j][e]);
        }
    float d[2][4] = {};
    uint32_t dh[4], dl[4];
    as_operand(dh, dl, acc[0][0]);
    times_block(d[0], dh, dl, m.inv[0], NULL);
    as_operand(dh, dl, d[0]);
    times_block(acc[0][1], dh, dl, m.low[0], m.low[1]);
    times_block(acc[0][2], dh, dl, m.a[0], m.a[1]);
    times_block(acc[0][3], dh, dl, m.a[0] + 8, m.a[1] + 8);
    as_operand(dh, dl, acc[0][1]);
    times_block(d[1], dh, dl, m.inv[1], NULL);
    as_operand(dh, dl, d[1]);
    times_block(acc[0][3], dh, dl, (const float (*)[SMALL])&m.a[0][8][8], (const float (*)[SMALL])&m.a[1][8][8]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int t = (i >> 1) * 8 + q4 * 2 + (i & 1);
        float *to = a.out + t * a.ldo + (int64_t)h * D + mine;
        const float *y = acc[0][2 + (i >> 1)] + (i & 1);
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
