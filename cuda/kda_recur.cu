/* The KDA recurrence, row after row, in FP32.
 *
 * A block has value columns of one head's state in registers: a thread C columns of every KG-th group of 4 keys. It
 * goes through its share of (sequence, head, columns): the state of the next one and the vectors of the next rows are
 * copied to shared memory meanwhile. More columns per thread need fewer loads of exp(g), k, q, fewer columns make more
 * blocks; the bits are the same. Two passes over the elements per row: decay and e = S^T k; update and o = S^T q. The
 * sum over lanes of a row's o is taken together with that of the next row's e. */
#include "kda_recur.h"

enum { THREADS = 128, STEPS = 8, RING = 3, KG = 8 }; /* rows staged at a time, stages, lanes that share a column */

template <int D, int C> struct recur_mem {
    enum { COLS = THREADS / KG * C, ROW = 3 * D + COLS + 4 };
    float state[D][COLS];           /* of the next unit */
    float vec[RING][STEPS][ROW];    /* g then exp(g), k, q, v, beta */
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
        constexpr int COLS = recur_mem<D, C>::COLS, PARTS = D / COLS;
        p.a = all;
        p.h = p.unit / PARTS % all.heads;
        p.col0 = p.unit % PARTS * COLS;
        p.t0 = 0;
        kda_pick(p.a, p.unit / PARTS / all.heads);
        if (p.a.t > 0) break;
    }
}

template <int D, int C> static __device__ __forceinline__ void step(struct work &p, const struct recur &all)
{
    p.t0 += STEPS;
    if (p.t0 >= p.a.t) enter<D, C>(p, all, p.unit + gridDim.x);
}

template <int D, int C> static __device__ __forceinline__ void fetch_state(recur_mem<D, C> &m, const struct work &p)
{
    constexpr int PIECES = recur_mem<D, C>::COLS / 4, ROWS = THREADS / PIECES; /* of 4 columns */
    const int i0 = threadIdx.x / PIECES, c = threadIdx.x % PIECES * 4;
    const float *from = p.a.state + (int64_t)p.h * D * D + i0 * D + p.col0 + c;
#pragma unroll 8
    for (int i = 0; i < D; i += ROWS) kda_copy4(&m.state[i0 + i][c], from + i * D, p.a.vec & 1);
}

template <int D, int C>
static __device__ __forceinline__ void fetch_rows(recur_mem<D, C> &m, const struct work &p, int slot)
{
    constexpr int PIECES = recur_mem<D, C>::ROW / 4 - 1, LANES = PIECES <= 32 ? 32 : PIECES <= 64 ? 64 : 128;
    constexpr int ROWS = THREADS / LANES;
    static_assert(PIECES <= LANES && ROWS > 0, "a thread has one piece of a row");
    const int n = p.a.t - p.t0 < STEPS ? p.a.t - p.t0 : (int)STEPS;
    const int x = threadIdx.x % LANES * 4, r0 = threadIdx.x / LANES;
    const int64_t w = (int64_t)p.a.heads * D, ld = x < D ? p.a.ldg : 3 * w;
    const float *from = (x < D ? p.a.g : p.a.qkv) + (p.t0 + r0) * ld + (int64_t)p.h * D;
    from += x < D ? x : x < 2 * D ? w + (x - D) : x < 3 * D ? x - 2 * D : 2 * w + p.col0 + (x - 3 * D);
    if (x < PIECES * 4)
#pragma unroll
        for (int r = 0; r < STEPS; r += ROWS, from += ROWS * ld)
            if (r0 + r < n) kda_copy4(&m.vec[slot][r0 + r][x], from, p.a.vec & 1);
    if ((int)threadIdx.x < n)
        cu_copy4(&m.vec[slot][threadIdx.x][PIECES * 4], p.a.beta + (p.t0 + threadIdx.x) * p.a.ldb + p.h);
}

/* exp(g) in place of n rows */
template <int D, int C> static __device__ __forceinline__ void make_rows(recur_mem<D, C> &m, int slot, int n)
{
    for (int e = threadIdx.x; e < n * D / 4; e += THREADS) {
        float4 *x = (float4 *)&m.vec[slot][e / (D / 4)][e % (D / 4) * 4];
        *x = make_float4(expf(x->x), expf(x->y), expf(x->z), expf(x->w));
    }
}

/* which of C columns register 0 of a lane holds, the one whose sum it ends up with; register c holds c ^ that */
template <int C> static __device__ __forceinline__ int own(int kg)
{
    return kg / (KG / C);
}

/* sums over the KG lanes of a column: each exchange adds the partner's part, the same tree for every C */
template <int C> static __device__ __forceinline__ float fold(float *x)
{
#pragma unroll
    for (int m = KG / 2, n = C; m; m >>= 1) {
        if (n > 1) n /= 2;
#pragma unroll
        for (int c = 0; c < n; c++) x[c] += __shfl_xor_sync(0xffffffffu, x[C * m / KG ? c + n : c], m);
    }
    return x[0];
}

template <int D, int C>
static __global__ void __launch_bounds__(THREADS, C == 8 ? 2 : C == 4 ? 3 : 4) recur_kernel(struct recur all)
{
    constexpr int R = D / KG / 4, ROW = recur_mem<D, C>::ROW, GROUPS = 32 / KG;
    extern __shared__ __align__(16) char mem[];
    recur_mem<D, C> &m = *(recur_mem<D, C> *)mem;
    const int lane = threadIdx.x & 31, kg = lane % KG, col = (threadIdx.x >> 5) * GROUPS * C + lane / KG;
    const int mine = col + GROUPS * own<C>(kg);
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
                    for (int c = 0; c < C; c++)
                        s[i][j][c] = m.state[(i * KG + kg) * 4 + j][col + GROUPS * (c ^ own<C>(kg))];
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
        float *out = now.a.out + now.t0 * now.a.ldo + (int64_t)now.h * D + now.col0 + mine; /* used if all.out */
        const float *row = m.vec[slot][0] + kg * 4, *value = m.vec[slot][0] + 3 * D + mine;
        const float *beta = m.vec[slot][0] + ROW - 4;
        float o[C] = {};
        auto put = [&]() { /* the row before */
            const float y = fold<C>(o);
            if (kg % (KG / C) == 0) *out = y;
            out += now.a.ldo;
        };
#pragma unroll 1
        for (int r = 0; r < n; r++, row += ROW, value += ROW, beta += ROW) {
            float e[C] = {}, u[C];
            float4 k[R];
#pragma unroll
            for (int i = 0; i < R; i++) {
                const float4 eg4 = *(const float4 *)&row[i * KG * 4];
                k[i] = *(const float4 *)&row[D + i * KG * 4];
                const float eg[4] = {eg4.x, eg4.y, eg4.z, eg4.w}, kk[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++) {
                        s[i][j][c] = __fmul_rn(s[i][j][c], eg[j]);
                        e[c] = __fmaf_rn(s[i][j][c], kk[j], e[c]);
                    }
            }
            u[0] = *beta * (*value - fold<C>(e));
            if (all.out && r > 0) put();
#pragma unroll
            for (int c = 1; c < C; c++) u[c] = __shfl_xor_sync(0xffffffffu, u[0], c * (KG / C));
#pragma unroll
            for (int c = 0; c < C; c++) o[c] = 0;
#pragma unroll
            for (int i = 0; i < R; i++) {
                const float4 q4 = *(const float4 *)&row[2 * D + i * KG * 4];
                const float kk[4] = {k[i].x, k[i].y, k[i].z, k[i].w}, qq[4] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++) {
                        s[i][j][c] = __fmaf_rn(kk[j], u[c], s[i][j][c]);
                        o[c] = __fmaf_rn(s[i][j][c], qq[j], o[c]);
                    }
            }
        }
        if (all.out) put();
        if (last && all.write) {
            float *to = now.a.state + (int64_t)now.h * D * D + now.col0 + col;
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++)
                        to[((i * KG + kg) * 4 + j) * D + GROUPS * (c ^ own<C>(kg))] = s[i][j][c];
        }
        step<D, C>(now, all);
    }
}

/* any head size: 32 columns of the state in shared memory, one thread each */
static __global__ void __launch_bounds__(32) recur_any_kernel(struct recur a)
{
    extern __shared__ __align__(16) char mem[];
    kda_pick(a, blockIdx.z);
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
    a.units = a.heads * a.n_seq * (D / recur_mem<D, C>::COLS);
    recur_kernel<D, C><<<a.units < room ? a.units : room, THREADS, bytes, cu_impl(o)->stream>>>(a);
}

static void recur_launch(struct ops *o, struct recur a)
{
    cudaStream_t st = cu_impl(o)->stream;
    const int heads = a.heads * a.n_seq, sms = cu_impl(o)->sm_count;
    const int small = cu_impl(o)->cc == 86 || cu_impl(o)->cc >= 120;
    if (a.d == 128 && !small && heads > 4 * sms) launch<128, 8>(o, a);
    else if (a.d == 128 && heads > sms / 2) launch<128, 4>(o, a);
    else if (a.d == 128 && heads > sms / 8) launch<128, 2>(o, a);
    else if (a.d == 128) launch<128, 1>(o, a);
    else if (a.d == 64) launch<64, 2>(o, a);
    else if (a.d == 32) launch<32, 2>(o, a);
    else {
        size_t bytes = (size_t)a.d * 32 * sizeof(float);
        if (bytes > 48 * 1024)
            CU(cudaFuncSetAttribute(recur_any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        recur_any_kernel<<<dim3((unsigned)a.heads, (unsigned)cu_parts(a.d, 32), (unsigned)a.n_seq), 32, bytes, st>>>(a);
    }
    CU_LAUNCHED("kda_recur");
}

/* Verification of a few rows in act bf16 goes as a tile; that a row then depends on where its tile begins is why
 * nothing else does. Which way a sequence goes does not depend on the others. */
static int as_tile(const struct ops *o, const struct recur &a, int rows, const void *state)
{
    return cu_impl(o)->act == ACT_BF16 && !a.write && a.out && a.d == 128 && rows >= KDA_TILE_MIN && rows <= KDA_TILE &&
           cu_aligned16(a.qkv, 0) && cu_aligned16(state, 0);
}

static void start(struct ops *o, struct recur a, int tile, int aligned)
{
    a.vec = (aligned && cu_aligned16(a.qkv, 0) && cu_aligned16(a.g, a.ldg) ? 1 : 0) |
            (a.ldo % 2 == 0 && (uintptr_t)a.out % 8 == 0 ? 2 : 0);
    if (tile) kda_tile(cu_impl(o)->stream, a);
    else recur_launch(o, a);
}

void cuda_kda_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int write, int t, int heads, int d, float *out, int64_t ldo)
{
    if (t < 1) return;
    struct recur a = {qkv, g, beta, ldg, ldb, ldo, state, out, write, t, heads, d, NULL, 1, 0, 0};
    start(o, a, as_tile(o, a, t, state), cu_aligned16(state, 0));
}

void cuda_kda_recur_seqs(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                         int write, const struct seq_rows *seq, int n_seq, int heads, int d, float *out, int64_t ldo)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, 0, 0, &rows);
    for (int i = 0, end; rows > 0 && i < n_seq; i = end) { /* neighbours that go the same way at once */
        struct recur a = {qkv, g, beta, ldg, ldb, ldo, NULL, out, write, 0, heads, d, s + i, 0, 0, 0};
        int tile = as_tile(o, a, seq[i].n_rows, seq[i].state), aligned = 1;
        for (end = i; end < n_seq && as_tile(o, a, seq[end].n_rows, seq[end].state) == tile; end++)
            aligned &= cu_aligned16(seq[end].state, 0);
        a.n_seq = end - i;
        start(o, a, tile, aligned);
    }
}
