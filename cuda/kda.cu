/* KDA: short convolution, inputs and output of the recurrence, and the recurrence. */
#include "cuda.h"

/* ---- short convolution ---------------------------------------------------------------------------------- */

enum { CONV_ROWS = 32, CONV_MAX = 8 };

/* 4 channels of up to CONV_ROWS rows; the window slides through registers. K: kernel width */
template <bool VEC, int K>
static __global__ void conv_kernel(const float *x, int64_t ldx, const float *w, int ch, enum ops_kv kv, const struct cu_seq *seqs, float *y)
{
    struct cu_seq s = cu_seq_at(seqs, blockIdx.z);
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * 4, r0 = blockIdx.y * CONV_ROWS;
    if (c >= ch || r0 >= s.n_rows) return;
    float wt[K][4];
    float4 win[K];
#pragma unroll
    for (int j = 0; j < K; j++)
#pragma unroll
        for (int l = 0; l < 4; l++) wt[j][l] = c + l < ch ? w[(int64_t)(c + l) * K + j] : 0.0f;
#pragma unroll
    for (int j = 0; j < K - 1; j++) { /* the rows before r0 */
        int r = r0 + j - (K - 1);
        if (r >= 0) win[j] = cu_load4<VEC>(x + (s.row0 + r) * ldx, c, ch);
        else {
            int64_t at = (int64_t)(r + K - 1) * ch + c;
            win[j] = make_float4(cu_load_kv(s.state, at, kv), c + 1 < ch ? cu_load_kv(s.state, at + 1, kv) : 0,
                                 c + 2 < ch ? cu_load_kv(s.state, at + 2, kv) : 0, c + 3 < ch ? cu_load_kv(s.state, at + 3, kv) : 0);
        }
    }
    int n = s.n_rows - r0 < CONV_ROWS ? s.n_rows - r0 : CONV_ROWS;
#pragma unroll 8
    for (int r = 0; r < n; r++) {
        float4 a = make_float4(0, 0, 0, 0);
        win[K - 1] = cu_load4<VEC>(x + (int64_t)(s.row0 + r0 + r) * ldx, c, ch);
#pragma unroll
        for (int j = 0; j < K; j++) {
            a.x += wt[j][0] * win[j].x;
            a.y += wt[j][1] * win[j].y;
            a.z += wt[j][2] * win[j].z;
            a.w += wt[j][3] * win[j].w;
        }
#pragma unroll
        for (int j = 0; j < K - 1; j++) win[j] = win[j + 1];
        cu_store4<VEC>(y + (int64_t)(s.row0 + r0 + r) * ch, c, ch, make_float4(cu_silu(a.x), cu_silu(a.y), cu_silu(a.z), cu_silu(a.w)));
    }
}

template <bool VEC>
static void conv_launch(dim3 grid, cudaStream_t st, const float *x, int64_t ldx, const float *w, int kernel, int ch, enum ops_kv kv,
                        const struct cu_seq *s, float *y)
{
    switch (kernel) {
#define WIDTH(K) case K: conv_kernel<VEC, K><<<grid, 128, 0, st>>>(x, ldx, w, ch, kv, s, y); break;
        WIDTH(1) WIDTH(2) WIDTH(3) WIDTH(4) WIDTH(5) WIDTH(6) WIDTH(7) WIDTH(8)
#undef WIDTH
    default:
        log_error("convolution of width %d: at most %d on this backend", kernel, (int)CONV_MAX);
        abort();
    }
    CU_LAUNCHED("conv");
}

void cuda_conv(struct ops *o, const float *x, int64_t ldx, const float *w, int kernel, int ch, enum ops_kv kv,
               const struct seq_rows *seq, int n_seq, float *y)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, 0, 0, &rows);
    if (rows < 1) return;
    dim3 grid((unsigned)cu_parts(ch, 512), (unsigned)cu_parts(rows, CONV_ROWS), (unsigned)n_seq);
    if (ch % 4 == 0 && cu_aligned16(x, ldx) && cu_aligned16(y, ch))
        conv_launch<true>(grid, cu_impl(o)->stream, x, ldx, w, kernel, ch, kv, s, y);
    else
        conv_launch<false>(grid, cu_impl(o)->stream, x, ldx, w, kernel, ch, kv, s, y);
}

static __global__ void commit_kernel(void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv, int n)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= ch) return;
    for (int j = 0; j < kernel - 1; j++) { /* ascending: an old row is read before it is written */
        int r = n + j; /* row of old tail ++ x */
        float v = r < kernel - 1 ? cu_load_kv(tail, (int64_t)r * ch + c, kv) : x[(r - (kernel - 1)) * ldx + c];
        cu_store_kv(tail, (int64_t)j * ch + c, v, kv);
    }
}

void cuda_conv_commit(struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv, int n)
{
    if (n < 1) return;
    commit_kernel<<<cu_parts(ch, 256), 256, 0, cu_impl(o)->stream>>>(tail, x, ldx, kernel, ch, kv, n);
    CU_LAUNCHED("conv_commit");
}

/* ---- inputs and output of the recurrence ------------------------------------------------------------------ */

template <bool VEC> static __device__ __forceinline__ void l2_norm(float *x, int d, int lane, float scale)
{
    float ss = 0;
    for (int i = lane * 4; i < d; i += 128) {
        float4 v = cu_load4<VEC>(x, i, d);
        ss += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    float r = scale / sqrtf(cu_warp_sum(ss) + 1e-6f);
    for (int i = lane * 4; i < d; i += 128) {
        float4 v = cu_load4<VEC>(x, i, d);
        cu_store4<VEC>(x, i, d, make_float4(v.x * r, v.y * r, v.z * r, v.w * r));
    }
}

struct prep {
    float *qkv, *z, *b;
    int64_t ldz, ldb;
    const float *a_exp, *dt_bias;
    float lower, scale;
    int heads, d;
    int64_t n;
};

/* one warp per row and head */
template <bool VEC> static __global__ void prepare_kernel(struct prep a)
{
    int64_t i = (int64_t)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, d = a.d;
    if (i >= a.n) return;
    int64_t row = i / a.heads, w = (int64_t)a.heads * d;
    int h = (int)(i % a.heads);
    float *q = a.qkv + row * 3 * w + (int64_t)h * d, *z = a.z + row * a.ldz + (int64_t)h * d, e = a.a_exp[h];
    l2_norm<VEC>(q, d, lane, a.scale);
    l2_norm<VEC>(q + w, d, lane, 1.0f);
    for (int j = lane * 4; j < d; j += 128) {
        float4 v = cu_load4<VEC>(z, j, d), t = cu_load4<VEC>(a.dt_bias + (int64_t)h * d, j, d);
        cu_store4<VEC>(z, j, d, make_float4(a.lower * cu_sigmoid(e * (v.x + t.x)), a.lower * cu_sigmoid(e * (v.y + t.y)),
                                            a.lower * cu_sigmoid(e * (v.z + t.z)), a.lower * cu_sigmoid(e * (v.w + t.w))));
    }
    if (lane == 0) a.b[row * a.ldb + h] = cu_sigmoid(a.b[row * a.ldb + h]);
}

void cuda_kda_prepare(struct ops *o, float *qkv, float *z, int64_t ldz, float *b, int64_t ldb, const float *a_exp,
                      const float *dt_bias, float lower_bound, int t, int heads, int d)
{
    struct prep a = {qkv, z, b, ldz, ldb, a_exp, dt_bias, lower_bound, (float)(1.0 / sqrt((double)d)), heads, d, (int64_t)t * heads};
    cudaStream_t st = cu_impl(o)->stream;
    if (a.n < 1) return;
    if (d % 4 == 0 && cu_aligned16(qkv, d) && cu_aligned16(z, ldz) && cu_aligned16(dt_bias, d))
        prepare_kernel<true><<<cu_parts(a.n, 8), 256, 0, st>>>(a);
    else
        prepare_kernel<false><<<cu_parts(a.n, 8), 256, 0, st>>>(a);
    CU_LAUNCHED("kda_prepare");
}

template <bool VEC>
static __global__ void out_kernel(float *x, const float *gate, int64_t ldg, const float *w, float eps, int64_t n, int heads, int d)
{
    int64_t i = (int64_t)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    if (i >= n) return;
    float *row = x + i * d, ss = 0;
    const float *gr = gate + i / heads * ldg + i % heads * d;
    for (int j = lane * 4; j < d; j += 128) {
        float4 v = cu_load4<VEC>(row, j, d);
        ss += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    float r = 1.0f / sqrtf(cu_warp_sum(ss) / (float)d + eps);
    for (int j = lane * 4; j < d; j += 128) {
        float4 v = cu_load4<VEC>(row, j, d), u = cu_load4<VEC>(w, j, d), s = cu_load4<VEC>(gr, j, d);
        cu_store4<VEC>(row, j, d, make_float4(v.x * r * u.x * cu_sigmoid(s.x), v.y * r * u.y * cu_sigmoid(s.y),
                                              v.z * r * u.z * cu_sigmoid(s.z), v.w * r * u.w * cu_sigmoid(s.w)));
    }
}

void cuda_kda_out(struct ops *o, float *x, const float *gate, int64_t ldg, const float *w, float eps, int t, int heads, int d)
{
    cudaStream_t st = cu_impl(o)->stream;
    int64_t n = (int64_t)t * heads;
    if (n < 1) return;
    if (d % 4 == 0 && cu_aligned16(x, d) && cu_aligned16(gate, ldg) && cu_aligned16(w, d))
        out_kernel<true><<<cu_parts(n, 8), 256, 0, st>>>(x, gate, ldg, w, eps, n, heads, d);
    else
        out_kernel<false><<<cu_parts(n, 8), 256, 0, st>>>(x, gate, ldg, w, eps, n, heads, d);
    CU_LAUNCHED("kda_out");
}

/* ---- recurrence --------------------------------------------------------------------------------------------- */

struct recur {
    const float *qkv, *g, *beta;
    int64_t ldg, ldb, ldo;
    float *state;              /* of the one sequence; with seqs: theirs */
    float *out;
    int write, t, heads, d;
    const struct cu_seq *seqs; /* NULL: rows [0, t) */
};

/* the sequence of this block: moves the pointers to its rows */
static __device__ __forceinline__ void pick_seq(struct recur &a)
{
    if (!a.seqs) return;
    struct cu_seq s = cu_seq_at(a.seqs, blockIdx.z);
    a.qkv += (int64_t)s.row0 * 3 * a.heads * a.d;
    a.g += s.row0 * a.ldg;
    a.beta += s.row0 * a.ldb;
    if (a.out) a.out += s.row0 * a.ldo;
    a.state = (float *)s.state;
    a.t = s.n_rows;
}

enum { STEPS = 8 }; /* rows staged at a time, twice */

/* A block has COLS value columns of one head's state in registers for all its rows. A column is shared by KG lanes, each
 * with D / KG keys (every KG-th group of four); two sums per row are folded over those lanes. exp(g), k and q of STEPS
 * rows at a time wait in shared memory while the next rows are on their way. */
template <int D, int KG, int WARPS> static __global__ void __launch_bounds__(WARPS * 32) recur_kernel(struct recur a)
{
    constexpr int COLS = WARPS * 32 / KG, R = D / KG / 4, THREADS = WARPS * 32, LOADS = STEPS * D * 3 / 4 / THREADS;
    static_assert(STEPS * D * 3 / 4 % THREADS == 0, "staging does not divide");
    __shared__ float4 vec[2][STEPS][3][D / 4];  /* exp(g), k, q */
    __shared__ float val[2][STEPS][COLS + 1];   /* v, then beta */
    pick_seq(a);
    const int lane = threadIdx.x & 31, kg = lane % KG, col = (threadIdx.x / 32) * (32 / KG) + lane / KG, h = blockIdx.x;
    const int64_t w = (int64_t)a.heads * D;
    const float *q = a.qkv + (int64_t)h * D;
    float *state = a.state + (int64_t)h * D * D + blockIdx.y * COLS + col;
    float4 s[R], fetch[LOADS];
    float fetch_v = 0;
#pragma unroll
    for (int i = 0; i < R; i++) {
        const float *p = state + (int64_t)(i * KG + kg) * 4 * D;
        s[i] = make_float4(p[0], p[D], p[2 * D], p[3 * D]);
    }
    auto load = [&](int t0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int e = i * THREADS + threadIdx.x, r = e / (3 * D / 4), which = e / (D / 4) % 3, c = e % (D / 4) * 4;
            if (t0 + r >= a.t) continue;
            const float *p = which == 0 ? a.g + (t0 + r) * a.ldg + (int64_t)h * D : q + (t0 + r) * 3 * w + (which == 1 ? w : 0);
            fetch[i] = make_float4(p[c], p[c + 1], p[c + 2], p[c + 3]);
        }
        for (int e = threadIdx.x; e < STEPS * (COLS + 1); e += THREADS) {
            int r = e / (COLS + 1), c = e % (COLS + 1);
            if (t0 + r >= a.t) continue;
            fetch_v = c < COLS ? q[(t0 + r) * 3 * w + 2 * w + blockIdx.y * COLS + c] : a.beta[(t0 + r) * a.ldb + h];
            val[t0 / STEPS & 1][r][c] = fetch_v;
        }
    };
    auto keep = [&](int t0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int e = i * THREADS + threadIdx.x, which = e / (D / 4) % 3;
            float4 v = fetch[i];
            if (which == 0) v = make_float4(expf(v.x), expf(v.y), expf(v.z), expf(v.w));
            vec[t0 / STEPS & 1][e / (3 * D / 4)][which][e % (D / 4)] = v;
        }
    };
    load(0);
    keep(0);
    for (int t0 = 0; t0 < a.t; t0 += STEPS) {
        int b = t0 / STEPS & 1, n = a.t - t0 < STEPS ? a.t - t0 : STEPS;
        __syncthreads();
        if (t0 + STEPS < a.t) load(t0 + STEPS);
        for (int r = 0; r < n; r++) {
            float e0 = 0, e1 = 0, o0 = 0, o1 = 0, kq = 0;
            float4 k[R];
#pragma unroll
            for (int i = 0; i < R; i++) {
                float4 eg = vec[b][r][0][i * KG + kg], qv = vec[b][r][2][i * KG + kg];
                k[i] = vec[b][r][1][i * KG + kg];
                s[i] = make_float4(s[i].x * eg.x, s[i].y * eg.y, s[i].z * eg.z, s[i].w * eg.w);
                e0 += s[i].x * k[i].x;
                o0 += s[i].x * qv.x;
                e1 += s[i].y * k[i].y;
                o1 += s[i].y * qv.y;
                e0 += s[i].z * k[i].z;
                o0 += s[i].z * qv.z;
                e1 += s[i].w * k[i].w;
                o1 += s[i].w * qv.w;
                kq += k[i].x * qv.x + k[i].y * qv.y + (k[i].z * qv.z + k[i].w * qv.w);
            }
            e0 += e1;
            o0 += o1;
#pragma unroll
            for (int m = KG / 2; m; m >>= 1) {
                e0 += __shfl_xor_sync(0xffffffffu, e0, m);
                o0 += __shfl_xor_sync(0xffffffffu, o0, m);
                kq += __shfl_xor_sync(0xffffffffu, kq, m);
            }
            float u = val[b][r][COLS] * (val[b][r][col] - e0);
#pragma unroll
            for (int i = 0; i < R; i++) {
                s[i].x += k[i].x * u;
                s[i].y += k[i].y * u;
                s[i].z += k[i].z * u;
                s[i].w += k[i].w * u;
            }
            if (a.out && kg == 0) a.out[(int64_t)(t0 + r) * a.ldo + (int64_t)h * D + blockIdx.y * COLS + col] = o0 + kq * u;
        }
        if (t0 + STEPS < a.t) keep(t0 + STEPS);
    }
    if (!a.write) return;
#pragma unroll
    for (int i = 0; i < R; i++) {
        float *p = state + (int64_t)(i * KG + kg) * 4 * D;
        p[0] = s[i].x;
        p[D] = s[i].y;
        p[2 * D] = s[i].z;
        p[3 * D] = s[i].w;
    }
}

/* any head size: 32 columns of the state in shared memory, one thread each */
static __global__ void __launch_bounds__(32) recur_any_kernel(struct recur a)
{
    extern __shared__ float mem[]; /* [d][32] */
    pick_seq(a);
    const int d = a.d, h = blockIdx.x, c = blockIdx.y * 32 + threadIdx.x;
    const int64_t w = (int64_t)a.heads * d;
    float *state = a.state + (int64_t)h * d * d + c, *s = mem + threadIdx.x;
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

static void recur_launch(struct ops *o, const struct recur &a, int n_seq)
{
    cudaStream_t st = cu_impl(o)->stream;
    unsigned h = (unsigned)a.heads, z = (unsigned)n_seq;
    if (a.d == 128) recur_kernel<128, 8, 8><<<dim3(h, 4, z), 256, 0, st>>>(a);
    else if (a.d == 64) recur_kernel<64, 8, 4><<<dim3(h, 4, z), 128, 0, st>>>(a);
    else if (a.d == 32) recur_kernel<32, 4, 2><<<dim3(h, 2, z), 64, 0, st>>>(a);
    else {
        size_t bytes = (size_t)a.d * 32 * sizeof(float);
        if (bytes > 48 * 1024)
            CU(cudaFuncSetAttribute(recur_any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        recur_any_kernel<<<dim3(h, (unsigned)cu_parts(a.d, 32), z), 32, bytes, st>>>(a);
    }
    CU_LAUNCHED("kda_recur");
}

void cuda_kda_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int write, int t, int heads, int d, float *out, int64_t ldo)
{
    if (t < 1) return;
    recur_launch(o, recur{qkv, g, beta, ldg, ldb, ldo, state, out, write, t, heads, d, NULL}, 1);
}

void cuda_kda_recur_seqs(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb, int write,
                         const struct seq_rows *seq, int n_seq, int heads, int d, float *out, int64_t ldo)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, 0, 0, &rows);
    if (rows < 1) return;
    recur_launch(o, recur{qkv, g, beta, ldg, ldb, ldo, NULL, out, write, 0, heads, d, s}, n_seq);
}

/* The recurrence itself: exact within rounding, so it meets the contract of the chunked form. */
void cuda_kda_chunk(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int t, int heads, int d, int chunk, float *out, int64_t ldo)
{
    (void)chunk;
    cuda_kda_recur(o, qkv, g, ldg, beta, ldb, state, 1, t, heads, d, out, ldo);
}
