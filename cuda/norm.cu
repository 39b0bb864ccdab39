/* Norms and AttnRes. A row is held in registers by one block (or one warp, for short rows), so it is read once; the
 * threads of a row depend on its length alone, so a row's bits do not depend on the call.
 * Squares that overflow: a row whose sums are not finite is summed again scaled by a power of two (exact). */
#include "cuda.h"

enum { BLOCK = 256, MOST = 8 /* float4 per thread */ };

/* power of two that brings the largest magnitude top (as bits) to [1, 2); 1 for smaller rows */
static __device__ __forceinline__ float scale_of(float top)
{
    int e = (int)(__float_as_uint(top) >> 23);
    if (e > 253) e = 253;
    return e < 127 ? 1.0f : __uint_as_float((uint32_t)(254 - e) << 23);
}

/* sums over the block, in every thread; red: 2 * 32 floats */
static __device__ __forceinline__ float2 block_sum2(float a, float b, float *red)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = blockDim.x >> 5;
    a = cu_warp_sum(a);
    b = cu_warp_sum(b);
    __syncthreads(); /* red may still be read from the call before */
    if (lane == 0) {
        red[warp] = a;
        red[32 + warp] = b;
    }
    __syncthreads();
    a = lane < n ? red[lane] : 0;
    b = lane < n ? red[32 + lane] : 0;
    return make_float2(cu_warp_sum(a), cu_warp_sum(b));
}

static __device__ __forceinline__ float block_max(float a, float *red)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = blockDim.x >> 5;
    a = cu_warp_max(a);
    __syncthreads();
    if (lane == 0) red[warp] = a;
    __syncthreads();
    return cu_warp_max(lane < n ? red[lane] : 0);
}

static __device__ __forceinline__ bool finite(float x)
{
    return fabsf(x) <= 3.402823466e38f;
}

static __device__ __forceinline__ float top4(float m, float4 v)
{
    return fmaxf(fmaxf(m, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
}

static __device__ __forceinline__ float square4(float4 v, float s)
{
    float a = v.x * s, b = v.y * s, c = v.z * s, d = v.w * s;
    return a * a + b * b + (c * c + d * d);
}

static __device__ __forceinline__ float dot4(float4 v, float4 q, float s)
{
    return v.x * s * q.x + v.y * s * q.y + (v.z * s * q.z + v.w * s * q.w);
}

/* the row in v: s * r = 1 / sqrt(mean + eps) as two factors */
template <int V> static __device__ __forceinline__ float2 row_rms(const float4 *v, int n, float eps, float *red)
{
    float ss = 0, s = 1.0f;
#pragma unroll
    for (int i = 0; i < V; i++) ss += square4(v[i], 1.0f);
    ss = block_sum2(ss, 0, red).x;
    if (!finite(ss)) {
        float top = 0;
#pragma unroll
        for (int i = 0; i < V; i++) top = top4(top, v[i]);
        s = scale_of(block_max(top, red));
        ss = 0;
#pragma unroll
        for (int i = 0; i < V; i++) ss += square4(v[i], s);
        ss = block_sum2(ss, 0, red).x;
    }
    return make_float2(s, 1.0f / sqrtf(ss / (float)n + eps * s * s));
}

template <bool VEC, int V>
static __device__ __forceinline__ void write_normed(const float4 *v, float2 r, const float *w, float *y, int n)
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        int at = (i * blockDim.x + threadIdx.x) * 4;
        float4 u = cu_load4<VEC>(w, at, n);
        cu_store4<VEC>(y, at, n,
                       make_float4(v[i].x * r.x * r.y * u.x, v[i].y * r.x * r.y * u.y, v[i].z * r.x * r.y * u.z,
                                   v[i].w * r.x * r.y * u.w));
    }
}

template <bool VEC, int V>
static __global__ void __launch_bounds__(1024) rms_kernel(const float *x, int64_t ldx, const float *w, float eps, int n,
                                                          float *y, int64_t ldy)
{
    __shared__ float red[64];
    float4 v[V];
    const float *row = x + blockIdx.x * ldx;
#pragma unroll
    for (int i = 0; i < V; i++) v[i] = cu_load4<VEC>(row, (i * blockDim.x + threadIdx.x) * 4, n);
    float2 r = row_rms<V>(v, n, eps, red);
    write_normed<VEC, V>(v, r, w, y + blockIdx.x * ldy, n);
}

/* rows of at most 128 by one warp each; groups per row: heads */
template <bool VEC> static __global__ void short_kernel(const float *x, int64_t ldx, const float *w, float eps,
                                                        int64_t rows, int heads, int n, float *y, int64_t ldy)
{
    int64_t i = (int64_t)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int at = (threadIdx.x & 31) * 4;
    if (i >= rows * heads) return;
    const float *row = x + i / heads * ldx + i % heads * n;
    float4 v = cu_load4<VEC>(row, at, n), u = cu_load4<VEC>(w, at, n);
    float ss = cu_warp_sum(square4(v, 1.0f)), s = 1.0f;
    if (!finite(ss)) {
        s = scale_of(cu_warp_max(top4(0, v)));
        ss = cu_warp_sum(square4(v, s));
    }
    float r = 1.0f / sqrtf(ss / (float)n + eps * s * s);
    cu_store4<VEC>(y + i / heads * ldy + i % heads * n, at, n,
                   make_float4(v.x * s * r * u.x, v.y * s * r * u.y, v.z * s * r * u.z, v.w * s * r * u.w));
}

/* any length: threads walk the row three times */
static __global__ void __launch_bounds__(1024)
    long_kernel(const float *x, int64_t ldx, const float *w, float eps, int n, float *y, int64_t ldy)
{
    __shared__ float red[64];
    const float *row = x + blockIdx.x * ldx;
    float ss = 0, s = 1.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) ss += row[i] * row[i];
    ss = block_sum2(ss, 0, red).x;
    if (!finite(ss)) {
        float top = 0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, fabsf(row[i]));
        s = scale_of(block_max(top, red));
        ss = 0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) ss += row[i] * s * (row[i] * s);
        ss = block_sum2(ss, 0, red).x;
    }
    float r = 1.0f / sqrtf(ss / (float)n + eps * s * s);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * ldy + i] = row[i] * s * r * w[i];
}

template <bool VEC>
static void rms_launch(cudaStream_t st, const float *x, int64_t ldx, const float *w, float eps, int t, int n, float *y,
                       int64_t ldy)
{
    int v = cu_parts(n, BLOCK * 4);
    if (n <= 128)
        short_kernel<VEC><<<cu_parts(t, 8), 256, 0, st>>>(x, ldx, w, eps, t, 1, n, y, ldy);
    else if (v > MOST)
        long_kernel<<<t, 1024, 0, st>>>(x, ldx, w, eps, n, y, ldy);
    else
        switch (v) {
#define ROW(V) case V: rms_kernel<VEC, V><<<t, BLOCK, 0, st>>>(x, ldx, w, eps, n, y, ldy); break;
            ROW(1) ROW(2) ROW(3) ROW(4) ROW(5) ROW(6) ROW(7) ROW(8)
#undef ROW
        }
    CU_LAUNCHED("rmsnorm");
}

void cuda_rmsnorm(struct ops *o, const float *x, int64_t ldx, const float *w, float eps, int t, int n, float *y,
                  int64_t ldy)
{
    cudaStream_t st = cu_impl(o)->stream;
    if (t < 1) return;
    if (n % 4 == 0 && cu_aligned16(x, ldx) && cu_aligned16(y, ldy) && cu_aligned16(w, 4))
        rms_launch<true>(st, x, ldx, w, eps, t, n, y, ldy);
    else
        rms_launch<false>(st, x, ldx, w, eps, t, n, y, ldy);
}

void cuda_head_norm(struct ops *o, float *x, int64_t ldx, const float *w, float eps, int t, int heads, int d)
{
    cudaStream_t st = cu_impl(o)->stream;
    if (t < 1) return;
    if (d > 128) { /* not a shape of the models: head by head */
        for (int h = 0; h < heads; h++) cuda_rmsnorm(o, x + (int64_t)h * d, ldx, w, eps, t, d, x + (int64_t)h * d, ldx);
        return;
    }
    int blocks = cu_parts((int64_t)t * heads, 8);
    if (d % 4 == 0 && cu_aligned16(x, ldx) && cu_aligned16(w, 4))
        short_kernel<true><<<blocks, 256, 0, st>>>(x, ldx, w, eps, t, heads, d, x, ldx);
    else
        short_kernel<false><<<blocks, 256, 0, st>>>(x, ldx, w, eps, t, heads, d, x, ldx);
    CU_LAUNCHED("head_norm");
}

/* ---- AttnRes ----------------------------------------------------------------------------------- */

struct res {
    const float *bank;
    int64_t stride;
    int n_bank, h;
    const float *prefix, *q;
    float eps;
    float *mix;
    const float *w;
    float norm_eps;
    float *normed;
};

template <bool VEC, int V>
static __device__ __forceinline__ void load_source(float4 *v, const struct res &a, int j, int64_t at)
{
    const float *row = (j < a.n_bank ? a.bank + j * a.stride : a.prefix) + at;
#pragma unroll
    for (int i = 0; i < V; i++) v[i] = cu_load4<VEC>(row, (i * blockDim.x + threadIdx.x) * 4, a.h);
}

template <bool VEC, int V>
static __device__ __forceinline__ float score_of(const float4 *v, const struct res &a, float s, float *red)
{
    float ss = 0, vq = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        float4 q = cu_load4<VEC>(a.q, (i * blockDim.x + threadIdx.x) * 4, a.h);
        ss += square4(v[i], s);
        vq += dot4(v[i], q, s);
    }
    float2 sum = block_sum2(ss, vq, red);
    if (s == 1.0f && !(finite(sum.x) && finite(sum.y))) return __uint_as_float(0x7fffffff); /* the caller scales */
    return sum.y / sqrtf(sum.x / (float)a.h + a.eps * s * s);
}

/* One row: sources pass through registers once, in order; the mixture is kept with a running maximum of the scores
 * (online softmax). The next source is on its way while one is scored. */
template <bool VEC, int V> static __global__ void __launch_bounds__(BLOCK, V <= 4 ? 4 : 2) res_kernel(struct res a)
{
    __shared__ float red[64];
    int64_t at = (int64_t)blockIdx.x * a.h;
    float4 v[V], next[V], acc[V];
    float top = 0, sum = 1;
    load_source<VEC, V>(v, a, 0, at);
    for (int j = 0; j <= a.n_bank; j++) {
        if (j < a.n_bank) load_source<VEC, V>(next, a, j + 1, at);
        if (a.n_bank == 0) {
#pragma unroll
            for (int i = 0; i < V; i++) acc[i] = v[i];
            break;
        }
        float s = score_of<VEC, V>(v, a, 1.0f, red);
        if (__float_as_uint(s) == 0x7fffffff) {
            float big = 0;
#pragma unroll
            for (int i = 0; i < V; i++) big = top4(big, v[i]);
            s = score_of<VEC, V>(v, a, scale_of(block_max(big, red)), red);
        }
        float m = j == 0 ? s : fmaxf(top, s), old = j == 0 ? 0.0f : expf(top - m), p = expf(s - m);
        sum = j == 0 ? p : sum * old + p;
        top = m;
#pragma unroll
        for (int i = 0; i < V; i++) {
            if (j == 0) acc[i] = make_float4(p * v[i].x, p * v[i].y, p * v[i].z, p * v[i].w);
            else acc[i] = make_float4(acc[i].x * old + p * v[i].x, acc[i].y * old + p * v[i].y,
                                      acc[i].z * old + p * v[i].z, acc[i].w * old + p * v[i].w);
            v[i] = next[i];
        }
    }
    float inv = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < V; i++) {
        if (a.n_bank) acc[i] = make_float4(acc[i].x * inv, acc[i].y * inv, acc[i].z * inv, acc[i].w * inv);
        if (a.mix) cu_store4<VEC>(a.mix + at, (i * blockDim.x + threadIdx.x) * 4, a.h, acc[i]);
    }
    if (!a.normed) return;
    float2 r = row_rms<V>(acc, a.h, a.norm_eps, red);
    write_normed<VEC, V>(acc, r, a.w, a.normed + at, a.h);
}

template <bool VEC> static void res_launch(cudaStream_t st, const struct res &a, int t)
{
    switch (cu_parts(a.h, BLOCK * 4)) {
#define ROW(V) case V: res_kernel<VEC, V><<<t, BLOCK, 0, st>>>(a); break;
        ROW(1) ROW(2) ROW(3) ROW(4) ROW(5) ROW(6) ROW(7) ROW(8)
#undef ROW
    default:
        log_error("attnres: hidden size %d is above the %d this backend holds in registers", a.h, BLOCK * 4 * MOST);
        abort();
    }
    CU_LAUNCHED("attnres");
}

void cuda_attnres(struct ops *o, const float *bank, int64_t bank_stride, int n_bank, const float *prefix,
                  const float *q, float eps, int t, int h, float *mix, const float *w, float norm_eps, float *normed)
{
    struct res a = {bank, bank_stride, n_bank, h, prefix, q, eps, mix, w, norm_eps, normed};
    if (t < 1) return;
    bool vec = h % 4 == 0 && cu_aligned16(bank, bank_stride) && cu_aligned16(prefix, h) && cu_aligned16(q, 4) &&
               cu_aligned16(mix, 4) && cu_aligned16(w, 4) && cu_aligned16(normed, 4);
    if (vec) res_launch<true>(cu_impl(o)->stream, a, t);
    else res_launch<false>(cu_impl(o)->stream, a, t);
}
