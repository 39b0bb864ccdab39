/* The KDA recurrence, row after row, in FP32.
 *
 * A block of 4 warps has COLS = 32 C value columns of one head's state in registers: a thread C columns of every fourth
 * group of 4 keys, so that the sums over keys take two exchanges. It goes through its share of (sequence, head, columns):
 * the state of the next one and the vectors of the next rows are copied to shared memory meanwhile. More columns per
 * thread need fewer loads of exp(g), k, q, fewer columns make more blocks; the bits are the same.
 * Per element and row: decay, two products, update; e = S^T k and o = S^T q are taken before the update: o + (k . q) u. */
#include "cuda.h"

#include <stdlib.h>

struct recur {
    const float *qkv, *g, *beta;
    int64_t ldg, ldb, ldo;
    float *state;              /* of the one sequence; with seqs: theirs */
    float *out;
    int write, t, heads, d;
    const struct cu_seq *seqs; /* NULL: rows [0, t) */
    int n_seq, units, vec;     /* units: of work; vec: everything lies at multiples of 16 bytes */
};

enum { THREADS = 128, STEPS = 8, RING = 3, KG = 4 }; /* rows staged at a time, stages, lanes that share a column */

/* the sequence z: moves the pointers to its rows */
static __device__ __forceinline__ void pick_seq(struct recur &a, int z)
{
    if (!a.seqs) return;
    struct cu_seq s = cu_seq_at(a.seqs, z);
    a.qkv += (int64_t)s.row0 * 3 * a.heads * a.d;
    a.g += s.row0 * a.ldg;
    a.beta += s.row0 * a.ldb;
    if (a.out) a.out += s.row0 * a.ldo;
    a.state = (float *)s.state;
    a.t = s.n_rows;
}

template <int D, int C> struct recur_mem {
    enum { COLS = 32 * C, ROW = 3 * D + COLS };
    float state[D][COLS];           /* of the next unit */
    float vec[RING][STEPS][ROW];    /* g then exp(g), k, q, v */
    float beta[RING][STEPS], kq[STEPS];
};

/* what a block works on: rows from t0 of a unit */
struct work {
    struct recur a;
    int unit, h, col0, t0;
};

/* to the first rows of the unit, or of the next one that has any */
template <int D, int C> static __device__ __forceinline__ void enter(struct work &p, const struct recur &all, int unit)
{
    for (p.unit = unit; p.unit < all.units; p.unit += gridDim.x) {
        constexpr int PARTS = D / (32 * C);
        p.a = all;
        p.h = p.unit / PARTS % all.heads;
        p.col0 = p.unit % PARTS * 32 * C;
        p.t0 = 0;
        pick_seq(p.a, p.unit / PARTS / all.heads);
        if (p.a.t > 0) break;
    }
}

template <int D, int C> static __device__ __forceinline__ void step(struct work &p, const struct recur &all)
{
    p.t0 += STEPS;
    if (p.t0 >= p.a.t) enter<D, C>(p, all, p.unit + gridDim.x);
}

static __device__ __forceinline__ void copy4(float *to, const float *from, int vec)
{
    if (vec) cu_copy16(to, from);
    else
        for (int i = 0; i < 4; i++) cu_copy4(to + i, from + i);
}

template <int D, int C> static __device__ __forceinline__ void fetch_state(recur_mem<D, C> &m, const struct work &p)
{
    constexpr int COLS = 32 * C;
    const float *from = p.a.state + (int64_t)p.h * D * D + p.col0;
#pragma unroll 8
    for (int e = threadIdx.x; e < D * COLS / 4; e += THREADS) {
        int i = e / (COLS / 4), c = e % (COLS / 4) * 4;
        copy4(&m.state[i][c], from + (int64_t)i * D + c, p.a.vec);
    }
}

template <int D, int C> static __device__ __forceinline__ void fetch_rows(recur_mem<D, C> &m, const struct work &p, int slot)
{
    constexpr int ROW = 3 * D + 32 * C;
    const int n = p.a.t - p.t0 < STEPS ? p.a.t - p.t0 : (int)STEPS;
    const int64_t w = (int64_t)p.a.heads * D;
    const float *g = p.a.g + p.t0 * p.a.ldg + (int64_t)p.h * D, *q = p.a.qkv + p.t0 * 3 * w + (int64_t)p.h * D;
    for (int e = threadIdx.x; e < n * ROW / 4; e += THREADS) {
        int r = e / (ROW / 4), x = e % (ROW / 4) * 4;
        const float *from = x < D       ? g + r * p.a.ldg + x
                            : x < 2 * D ? q + r * 3 * w + w + (x - D)
                            : x < 3 * D ? q + r * 3 * w + (x - 2 * D)
                                        : q + r * 3 * w + 2 * w + p.col0 + (x - 3 * D);
        copy4(&m.vec[slot][r][x], from, p.a.vec);
    }
    if ((int)threadIdx.x < n) cu_copy4(&m.beta[slot][threadIdx.x], p.a.beta + (p.t0 + threadIdx.x) * p.a.ldb + p.h);
}

/* exp(g) in place and k . q of n rows */
template <int D, int C> static __device__ __forceinline__ void make_rows(recur_mem<D, C> &m, int slot, int n)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int e = threadIdx.x; e < n * D / 4; e += THREADS) {
        float4 *x = (float4 *)&m.vec[slot][e / (D / 4)][e % (D / 4) * 4];
        *x = make_float4(expf(x->x), expf(x->y), expf(x->z), expf(x->w));
    }
    for (int r = warp; r < n; r += THREADS / 32) {
        float sum = 0;
        for (int c = lane; c < D; c += 32) sum = __fmaf_rn(m.vec[slot][r][D + c], m.vec[slot][r][2 * D + c], sum);
        sum = cu_warp_sum(sum);
        if (lane == 0) m.kq[r] = sum;
    }
}

/* column of register c relative to the thread's first: lane kg's own, whose sum it ends up with, is register 0 */
template <int C> static __device__ __forceinline__ int column(int c, int kg)
{
    return 8 * (c ^ (C == 4 ? kg : C == 2 ? kg >> 1 : 0));
}

/* sums over the lanes of a column: each exchange adds the partner's part, the same tree for every C */
template <int C> static __device__ __forceinline__ float fold(float *x)
{
    if (C == 4) {
        x[0] += __shfl_xor_sync(0xffffffffu, x[2], 2);
        x[1] += __shfl_xor_sync(0xffffffffu, x[3], 2);
        return x[0] + __shfl_xor_sync(0xffffffffu, x[1], 1);
    }
    x[0] += __shfl_xor_sync(0xffffffffu, x[C - 1], 2);
    return x[0] + __shfl_xor_sync(0xffffffffu, x[0], 1);
}

template <int D, int C> static __global__ void __launch_bounds__(THREADS, 2) recur_kernel(struct recur all)
{
    constexpr int R = D / KG / 4;
    extern __shared__ __align__(16) char mem[];
    recur_mem<D, C> &m = *(recur_mem<D, C> *)mem;
    const int lane = threadIdx.x & 31, kg = lane & 3, col = (threadIdx.x >> 5) * 8 * C + (lane >> 2);
    float s[R][4][C];
    struct work now, next;
    enter<D, C>(now, all, blockIdx.x);
    if (now.unit >= all.units) return;
    next = now;
    fetch_state(m, next);
    for (int i = 0; i < RING - 1; i++) {
        if (next.unit < all.units) {
            fetch_rows(m, next, i);
            step<D, C>(next, all);
        }
        cu_copy_end();
    }
    for (int slot = 0; now.unit < all.units; slot = slot + 1 == RING ? 0 : slot + 1) {
        const int n = now.a.t - now.t0 < STEPS ? now.a.t - now.t0 : (int)STEPS;
        const int last = now.t0 + STEPS >= now.a.t;
        if (now.t0 == 0) cu_copy_wait<0>();
        else cu_copy_wait<RING - 2>();
        __syncthreads();
        make_rows(m, slot, n);
        if (now.t0 == 0)
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++) s[i][j][c] = m.state[(i * KG + kg) * 4 + j][col + column<C>(c, kg)];
        __syncthreads();
        if (now.t0 == 0) {
            struct work after;
            enter<D, C>(after, all, now.unit + gridDim.x);
            if (after.unit < all.units) fetch_state(m, after);
        }
        if (next.unit < all.units) {
            fetch_rows(m, next, slot == 0 ? RING - 1 : slot - 1);
            step<D, C>(next, all);
        }
        cu_copy_end();
        float *out = now.a.out ? now.a.out + now.t0 * now.a.ldo + (int64_t)now.h * D + now.col0 + col + column<C>(0, kg) : NULL;
        for (int r = 0; r < n; r++) {
            const float *row = m.vec[slot][r];
            float e[C] = {}, o[C] = {};
            float4 k[R];
#pragma unroll
            for (int i = 0; i < R; i++) {
                const float4 eg4 = *(const float4 *)&row[(i * KG + kg) * 4], q4 = *(const float4 *)&row[2 * D + (i * KG + kg) * 4];
                k[i] = *(const float4 *)&row[D + (i * KG + kg) * 4];
                const float eg[4] = {eg4.x, eg4.y, eg4.z, eg4.w}, qq[4] = {q4.x, q4.y, q4.z, q4.w}, kk[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++) {
                        s[i][j][c] = __fmul_rn(s[i][j][c], eg[j]);
                        e[c] = __fmaf_rn(s[i][j][c], kk[j], e[c]);
                        o[c] = __fmaf_rn(s[i][j][c], qq[j], o[c]);
                    }
            }
            float u[C];
            u[0] = m.beta[slot][r] * (row[3 * D + col + column<C>(0, kg)] - fold<C>(e));
            if (out) {
                const float y = __fmaf_rn(m.kq[r], u[0], fold<C>(o));
                if (C == 4 || (C == 2 ? (kg & 1) == 0 : kg == 0)) out[r * now.a.ldo] = y;
            }
#pragma unroll
            for (int c = 1; c < C; c++) u[c] = __shfl_xor_sync(0xffffffffu, u[0], C == 4 ? c : 2);
#pragma unroll
            for (int i = 0; i < R; i++) {
                const float kk[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++) s[i][j][c] = __fmaf_rn(kk[j], u[c], s[i][j][c]);
            }
        }
        if (last && now.a.write) {
            float *to = now.a.state + (int64_t)now.h * D * D + now.col0 + col;
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++) to[((i * KG + kg) * 4 + j) * D + column<C>(c, kg)] = s[i][j][c];
        }
        step<D, C>(now, all);
    }
}

/* any head size: 32 columns of the state in shared memory, one thread each */
static __global__ void __launch_bounds__(32) recur_any_kernel(struct recur a)
{
    extern __shared__ __align__(16) char mem[];
    pick_seq(a, blockIdx.z);
    const int d = a.d, h = blockIdx.x, c = blockIdx.y * 32 + threadIdx.x;
    const int64_t w = (int64_t)a.heads * d;
    float *state = a.state + (int64_t)h * d * d + c, *s = (float *)mem + threadIdx.x; /* [d][32] */
    if (c >= d) return;
    for (int i = 0; i < d; i++) s[i * 32] = state[(int64_t)i * d];
    for (int t = 0; t < a.t; t++) {
        const float *q = a.qkv + t * 3 * w + (int64_t)h * d, *k = q + w, *g = a.g + t * a.ldg + (int64_t)h * d;
        float e = 0, o = 0;
        for (int i = 0; i < d; i++) {
            float x = s[i * 32] * expf(g[i]);
            e += x * k[i];
            s[i * 32] = x;
        }
        float u = a.beta[t * a.ldb + h] * (q[2 * w + c] - e);
        for (int i = 0; i < d; i++) {
            float x = s[i * 32] + k[i] * u;
            o += x * q[i];
            s[i * 32] = x;
        }
        if (a.out) a.out[t * a.ldo + (int64_t)h * d + c] = o;
    }
    for (int i = 0; a.write && i < d; i++) state[(int64_t)i * d] = s[i * 32];
}

template <int D, int C> static void launch(struct ops *o, struct recur a)
{
    const size_t bytes = sizeof(recur_mem<D, C>);
    static int blocks; /* of an SM */
    if (!blocks) {
        CU(cudaFuncSetAttribute(recur_kernel<D, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        CU(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, recur_kernel<D, C>, THREADS, bytes));
    }
    const int room = blocks * cu_impl(o)->sm_count;
    a.units = a.heads * a.n_seq * (D / (32 * C));
    recur_kernel<D, C><<<a.units < room ? a.units : room, THREADS, bytes, cu_impl(o)->stream>>>(a);
}

static void recur_launch(struct ops *o, struct recur a)
{
    cudaStream_t st = cu_impl(o)->stream;
    const int heads = a.heads * a.n_seq, sms = cu_impl(o)->sm_count, small = cu_impl(o)->cc == 86 || cu_impl(o)->cc >= 120;
    const char *env = getenv("KDA_C");
    int c = env ? atoi(env) : 0;
    if (a.d == 128 && !small && (c ? c == 4 : heads > 2 * sms)) launch<128, 4>(o, a);
    else if (a.d == 128 && (c ? c == 2 : heads > sms)) launch<128, 2>(o, a);
    else if (a.d == 128) launch<128, 1>(o, a);
    else if (a.d == 64) launch<64, 1>(o, a);
    else if (a.d == 32) launch<32, 1>(o, a);
    else {
        size_t bytes = (size_t)a.d * 32 * sizeof(float);
        if (bytes > 48 * 1024)
            CU(cudaFuncSetAttribute(recur_any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        recur_any_kernel<<<dim3((unsigned)a.heads, (unsigned)cu_parts(a.d, 32), (unsigned)a.n_seq), 32, bytes, st>>>(a);
    }
    CU_LAUNCHED("kda_recur");
}

void cuda_kda_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int write, int t, int heads, int d, float *out, int64_t ldo)
{
    if (t < 1) return;
    int vec = cu_aligned16(qkv, 0) && cu_aligned16(g, ldg) && cu_aligned16(state, 0);
    recur_launch(o, recur{qkv, g, beta, ldg, ldb, ldo, state, out, write, t, heads, d, NULL, 1, 0, vec});
}

void cuda_kda_recur_seqs(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb, int write,
                         const struct seq_rows *seq, int n_seq, int heads, int d, float *out, int64_t ldo)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, 0, 0, &rows);
    if (rows < 1) return;
    int vec = cu_aligned16(qkv, 0) && cu_aligned16(g, ldg);
    for (int i = 0; i < n_seq; i++) vec &= cu_aligned16(seq[i].state, 0);
    recur_launch(o, recur{qkv, g, beta, ldg, ldb, ldo, NULL, out, write, 0, heads, d, s, n_seq, 0, vec});
}
