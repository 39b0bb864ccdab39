/* attend - FP32 softmax attention of up to 16 query lanes by one block of 128 threads.
 *
 * A lane is one (row, head) pair with its own range of visible positions [lo, hi). Keys come in tiles of 32 aligned to
 * multiples of 32 positions; the softmax runs online over tiles. Lanes never mix and tiles never depend on the call, so
 * a lane's bits depend on its query and the keys it sees only. Keys no lane of the block sees are not read; a key that
 * some lanes see and others do not has no influence on the latter, whatever it holds.
 * A source S gives float4 k(pos, i) and v(pos, i): elements 4i .. 4i + 3 of a key and value; V_IN_K: values are the
 * first dv elements of the key. Exact for every size; the models' common shapes have faster kernels. */
#ifndef PDFLASH_CUDA_ATTEND_H
#define PDFLASH_CUDA_ATTEND_H

#include "cuda.h"

enum { AT_LANES = 16, AT_KEYS = 32, AT_BLOCK = 128, AT_DV = 4 * AT_BLOCK /* most value elements */ };

#ifdef __CUDACC__

struct at_tile {
    int dk, dv, dkp, dvp;      /* sizes and row strides in shared memory */
    float scale;
    float *q, *k, *v, *p;      /* [16][dkp], [32][dkp], [32][dvp], [32][16] */
    float *corr;               /* [16] */
    int *lo, *hi;              /* [16] */
};

struct at_state {
    float acc[AT_LANES][4];    /* this thread's 4 columns of every lane's weighted sum */
    float max[4], sum[4];      /* of this warp's 4 lanes */
};

static inline int at_stride(int d) /* whole float4s, an odd number of them: no bank conflicts */
{
    return ((d + 3) / 4 | 1) * 4;
}

static inline size_t at_bytes(int dk, int dv, int v_in_k)
{
    return sizeof(float) * ((size_t)(AT_LANES + AT_KEYS) * at_stride(dk) +
                            (v_in_k ? 0 : (size_t)AT_KEYS * at_stride(dv)) + AT_KEYS * AT_LANES + AT_LANES * 3);
}

static __device__ __forceinline__ struct at_tile at_carve(float *mem, int dk, int dv, bool v_in_k, float scale)
{
    struct at_tile t;
    t.dk = dk;
    t.dv = dv;
    t.dkp = ((dk + 3) / 4 | 1) * 4;
    t.dvp = v_in_k ? t.dkp : ((dv + 3) / 4 | 1) * 4;
    t.scale = scale;
    t.q = mem;
    t.k = t.q + AT_LANES * t.dkp;
    t.v = v_in_k ? t.k : t.k + AT_KEYS * t.dkp;
    t.p = v_in_k ? t.k + AT_KEYS * t.dkp : t.v + AT_KEYS * t.dvp;
    t.corr = t.p + AT_KEYS * AT_LANES;
    t.lo = (int *)(t.corr + AT_LANES);
    t.hi = t.lo + AT_LANES;
    return t;
}

static __device__ __forceinline__ void at_open(struct at_state &s)
{
#pragma unroll
    for (int l = 0; l < AT_LANES; l++)
#pragma unroll
        for (int c = 0; c < 4; c++) s.acc[l][c] = 0;
#pragma unroll
    for (int l = 0; l < 4; l++) {
        s.max[l] = -INFINITY;
        s.sum[l] = 0;
    }
}

/* queries of a lane (NULL: no lane) to shared memory; all threads call it once per lane */
static __device__ __forceinline__ void at_query(const struct at_tile &t, int lane, const float *q, int lo, int hi)
{
    for (int i = threadIdx.x; i < t.dkp; i += AT_BLOCK) t.q[lane * t.dkp + i] = q && i < t.dk ? q[i] : 0.0f;
    if (threadIdx.x == 0) {
        t.lo[lane] = lo;
        t.hi[lane] = q ? hi : lo;
    }
}

/* scores and weights of this thread's key for its warp's 4 lanes */
static __device__ __forceinline__ void at_scores(const struct at_tile &t, struct at_state &s, int pos, int first,
                                                 int nk)
{
    const int key = threadIdx.x & 31, l0 = (threadIdx.x >> 5) * 4;
    float d[4] = {};
    const float4 *k = (const float4 *)(t.k + key * t.dkp), *q = (const float4 *)(t.q + l0 * t.dkp);
    for (int i = 0; i < (t.dk + 3) / 4; i++) {
        float4 x = k[i];
#pragma unroll
        for (int l = 0; l < 4; l++) {
            float4 y = q[l * (t.dkp / 4) + i];
            d[l] += x.x * y.x + x.y * y.y + (x.z * y.z + x.w * y.w);
        }
    }
#pragma unroll
    for (int l = 0; l < 4; l++) {
        bool seen = key < nk && pos + key >= first && pos + key >= t.lo[l0 + l] && pos + key < t.hi[l0 + l];
        float x = seen ? d[l] * t.scale : -INFINITY, top = fmaxf(s.max[l], cu_warp_max(x));
        float base = top == -INFINITY ? 0.0f : top, p = seen ? expf(x - base) : 0.0f, corr = expf(s.max[l] - base);
        s.sum[l] = s.sum[l] * corr + cu_warp_sum(p);
        s.max[l] = top;
        t.p[key * AT_LANES + l0 + l] = p;
        if (key == 0) t.corr[l0 + l] = corr;
    }
}

template <bool MASKED>
static __device__ __forceinline__ void at_values(const struct at_tile &t, struct at_state &s, int nk)
{
    int c = threadIdx.x * 4;
    if (c >= t.dv) return;
#pragma unroll
    for (int l = 0; l < AT_LANES; l++)
#pragma unroll
        for (int i = 0; i < 4; i++) s.acc[l][i] *= t.corr[l];
    for (int j = 0; j < nk; j++) {
        float4 v = *(const float4 *)(t.v + j * t.dvp + c);
#pragma unroll
        for (int l4 = 0; l4 < AT_LANES / 4; l4++) {
            float4 p4 = *(const float4 *)(t.p + j * AT_LANES + l4 * 4);
            float p[4] = {p4.x, p4.y, p4.z, p4.w};
#pragma unroll
            for (int l = 0; l < 4; l++) {
                if (MASKED && p[l] == 0.0f) continue;
                s.acc[l4 * 4 + l][0] += p[l] * v.x;
                s.acc[l4 * 4 + l][1] += p[l] * v.y;
                s.acc[l4 * 4 + l][2] += p[l] * v.z;
                s.acc[l4 * 4 + l][3] += p[l] * v.w;
            }
        }
    }
}

/* positions [first, end), tiles at multiples of 32 from base (positions minus base are what is aligned) */
template <bool V_IN_K, class S>
static __device__ void at_run(const struct at_tile &t, struct at_state &s, const S &src, int base, int first, int end)
{
    for (int p = base + (first - base) / AT_KEYS * AT_KEYS; p < end; p += AT_KEYS) {
        int nk = end - p < AT_KEYS ? end - p : AT_KEYS, k4 = (t.dk + 3) / 4, v4 = (t.dv + 3) / 4;
        __syncthreads();
        for (int e = threadIdx.x; e < AT_KEYS * k4; e += AT_BLOCK) {
            int key = e / k4, i = e % k4;
            bool in = key < nk && p + key >= first;
            *(float4 *)(t.k + key * t.dkp + i * 4) = in ? src.k(p + key, i) : make_float4(0, 0, 0, 0);
        }
        if (!V_IN_K)
            for (int e = threadIdx.x; e < AT_KEYS * v4; e += AT_BLOCK) {
                int key = e / v4, i = e % v4;
                bool in = key < nk && p + key >= first;
                *(float4 *)(t.v + key * t.dvp + i * 4) = in ? src.v(p + key, i) : make_float4(0, 0, 0, 0);
            }
        __syncthreads();
        at_scores(t, s, p, first, nk);
        bool all = true;
        for (int l = 0; l < AT_LANES; l++) all = all && t.lo[l] <= p && t.hi[l] >= p + nk;
        __syncthreads();
        if (all) at_values<false>(t, s, nk);
        else at_values<true>(t, s, nk);
    }
}

/* a lane's running maximum and softmax sum, for every thread */
static __device__ __forceinline__ void at_publish(const struct at_tile &t, const struct at_state &s)
{
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
#pragma unroll
        for (int l = 0; l < 4; l++) {
            t.p[(threadIdx.x >> 5) * 4 + l] = s.max[l];
            t.corr[(threadIdx.x >> 5) * 4 + l] = s.sum[l];
        }
    __syncthreads();
}

/* ---- sources ------------------------------------------------------------------------------------------ */

/* rows of a paged pool */
struct at_pages {
    const char *base;
    int64_t stride, off;       /* off: elements into the page */
    int page, width, vec;
    enum ops_kv kv;
    struct cu_seq s;

    __device__ float4 at(int pos, int i) const
    {
        const char *r = cu_row(base, stride, page, &s, pos, off, width, kv == OPS_KV_BF16 ? 2 : 4);
        if (!vec) {
            float e[4];
            for (int j = 0; j < 4; j++) e[j] = i * 4 + j < width ? cu_load_kv(r, i * 4 + j, kv) : 0.0f;
            return make_float4(e[0], e[1], e[2], e[3]);
        }
        if (kv == OPS_KV_FP32) return ((const float4 *)r)[i];
        uint2 u = ((const uint2 *)r)[i];
        return make_float4(__uint_as_float(u.x << 16), __uint_as_float(u.x & 0xffff0000u), __uint_as_float(u.y << 16),
                           __uint_as_float(u.y & 0xffff0000u));
    }
    __device__ float4 k(int pos, int i) const { return at(pos, i); }
    __device__ float4 v(int pos, int i) const { return at(pos, i); }
};

static inline struct at_pages at_pages_of(const struct paged *c, int width)
{
    struct at_pages p = {};
    int elem = c->kv == OPS_KV_BF16 ? 2 : 4;
    p.base = (const char *)c->base;
    p.stride = c->stride;
    p.page = c->page;
    p.width = width;
    p.kv = c->kv;
    p.vec = width % 4 == 0 && (uintptr_t)c->base % (4 * elem) == 0 && c->stride % (4 * elem) == 0;
    return p;
}

/* element i .. i + 3 of n at p */
static __device__ __forceinline__ float4 at_four(const float *p, int i, int n)
{
    return make_float4(i < n ? p[i] : 0, i + 1 < n ? p[i + 1] : 0, i + 2 < n ? p[i + 2] : 0, i + 3 < n ? p[i + 3] : 0);
}
#endif
#endif
