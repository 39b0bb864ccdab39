/* KDA: short convolution, inputs and output of the recurrence, and the recurrence. */
#include "cuda.h"

/* ---- short convolution ---------------------------------------------------------------------------------- */

enum { CONV_ROWS = 32, CONV_MAX = 8 };

/* within 1e-6, and a quarter of the instructions of cu_silu */
static __device__ __forceinline__ float quick_silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

/* 4 channels of up to CONV_ROWS rows; the window slides through registers. K: kernel width */
template <bool VEC, int K>
static __global__ void __launch_bounds__(128)
    conv_kernel(const float *__restrict__ x, int64_t ldx, const float *__restrict__ w, int ch, enum ops_kv kv,
                const struct cu_seq *__restrict__ seqs, float *__restrict__ y)
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
                                 c + 2 < ch ? cu_load_kv(s.state, at + 2, kv) : 0,
                                 c + 3 < ch ? cu_load_kv(s.state, at + 3, kv) : 0);
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
        cu_store4<VEC>(y + (int64_t)(s.row0 + r0 + r) * ch, c, ch,
                       make_float4(quick_silu(a.x), quick_silu(a.y), quick_silu(a.z), quick_silu(a.w)));
    }
}

template <bool VEC>
static void conv_launch(dim3 grid, cudaStream_t st, const float *x, int64_t ldx, const float *w, int kernel, int ch,
                        enum ops_kv kv, const struct cu_seq *s, float *y)
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

/* seqs NULL: one sequence, its tail, rows and their number as given */
static __global__ void commit_kernel(void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv, int n,
                                     const struct cu_seq *seqs)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (seqs) {
        tail = seqs[blockIdx.y].state;
        x += (int64_t)seqs[blockIdx.y].row0 * ldx;
        n = seqs[blockIdx.y].n_rows;
    }
    if (c >= ch || n < 1) return;
    for (int j = 0; j < kernel - 1; j++) { /* ascending: an old row is read before it is written */
        int r = n + j; /* row of old tail ++ x */
        float v = r < kernel - 1 ? cu_load_kv(tail, (int64_t)r * ch + c, kv) : x[(r - (kernel - 1)) * ldx + c];
        cu_store_kv(tail, (int64_t)j * ch + c, v, kv);
    }
}

void cuda_conv_commit(struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv, int n)
{
    if (n < 1) return;
    commit_kernel<<<cu_parts(ch, 256), 256, 0, cu_impl(o)->stream>>>(tail, x, ldx, kernel, ch, kv, n, NULL);
    CU_LAUNCHED("conv_commit");
}

void cuda_conv_commit_seqs(struct ops *o, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv,
                           const struct seq_rows *seq, int n_seq)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, 0, 0, &rows);
    if (rows < 1) return;
    dim3 grid((unsigned)cu_parts(ch, 256), (unsigned)n_seq);
    commit_kernel<<<grid, 256, 0, cu_impl(o)->stream>>>(NULL, x, ldx, kernel, ch, kv, 0, s);
    CU_LAUNCHED("conv_commit");
}

/* ---- inputs and output of the recurrence ------------------------------------------------------------------ */

struct prep {
    float *qkv, *z, *b;
    int64_t ldz, ldb;
    const float *a_exp, *dt_bias;
    float lower, scale;
    int heads, d;
    int64_t n;
};

static __device__ __forceinline__ float square(float4 v)
{
    return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
}

static __device__ __forceinline__ float4 times(float4 v, float r)
{
    return make_float4(v.x * r, v.y * r, v.z * r, v.w * r);
}

/* sigmoid within 1e-6 of the value */
static __device__ __forceinline__ float quick_sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* a warp per row and head; ONE: a lane has at most 4 elements of it, and asks for all before it waits for the first */
template <bool VEC, bool ONE> static __global__ void __launch_bounds__(256) prepare_kernel(struct prep a)
{
    int64_t i = (int64_t)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, d = a.d, j = lane * 4;
    if (i >= a.n) return;
    int64_t row = i / a.heads, w = (int64_t)a.heads * d;
    int h = (int)(i % a.heads);
    float *q = a.qkv + row * 3 * w + (int64_t)h * d, *k = q + w, *z = a.z + row * a.ldz + (int64_t)h * d;
    float e = a.a_exp[h];
    const float *dt = a.dt_bias + (int64_t)h * d;
    float4 qv = cu_load4<VEC>(q, j, d), kv = cu_load4<VEC>(k, j, d), zv = cu_load4<VEC>(z, j, d);
    float4 tv = cu_load4<VEC>(dt, j, d);
    float sq = square(qv), sk = square(kv);
    for (int c = j + 128; !ONE && c < d; c += 128) {
        sq += square(cu_load4<VEC>(q, c, d));
        sk += square(cu_load4<VEC>(k, c, d));
    }
    float rq = a.scale / sqrtf(cu_warp_sum(sq) + 1e-6f), rk = 1.0f / sqrtf(cu_warp_sum(sk) + 1e-6f);
    for (int c = j; c < d; c += 128) {
        if (c > j) {
            qv = cu_load4<VEC>(q, c, d);
            kv = cu_load4<VEC>(k, c, d);
            zv = cu_load4<VEC>(z, c, d);
            tv = cu_load4<VEC>(dt, c, d);
        }
        cu_store4<VEC>(q, c, d, times(qv, rq));
        cu_store4<VEC>(k, c, d, times(kv, rk));
        cu_store4<VEC>(z, c, d,
                       make_float4(a.lower * quick_sigmoid(e * (zv.x + tv.x)),
                                   a.lower * quick_sigmoid(e * (zv.y + tv.y)),
                                   a.lower * quick_sigmoid(e * (zv.z + tv.z)),
                                   a.lower * quick_sigmoid(e * (zv.w + tv.w))));
        if (ONE) break;
    }
    if (lane == 0) a.b[row * a.ldb + h] = cu_sigmoid(a.b[row * a.ldb + h]);
}

void cuda_kda_prepare(struct ops *o, float *qkv, float *z, int64_t ldz, float *b, int64_t ldb, const float *a_exp,
                      const float *dt_bias, float lower_bound, int t, int heads, int d)
{
    struct prep a = {qkv, z, b, ldz, ldb, a_exp, dt_bias, lower_bound, (float)(1.0 / sqrt((double)d)), heads, d,
                     (int64_t)t * heads};
    cudaStream_t st = cu_impl(o)->stream;
    if (a.n < 1) return;
    if (d % 4 == 0 && cu_aligned16(qkv, d) && cu_aligned16(z, ldz) && cu_aligned16(dt_bias, d))
        (d <= 128 ? prepare_kernel<true, true> : prepare_kernel<true, false>)<<<cu_parts(a.n, 8), 256, 0, st>>>(a);
    else
        prepare_kernel<false, false><<<cu_parts(a.n, 8), 256, 0, st>>>(a);
    CU_LAUNCHED("kda_prepare");
}

template <bool VEC>
static __global__ void out_kernel(float *x, const float *gate, int64_t ldg, const float *w, float eps, int64_t n,
                                  int heads, int d)
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

void cuda_kda_out(struct ops *o, float *x, const float *gate, int64_t ldg, const float *w, float eps, int t, int heads,
                  int d)
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
