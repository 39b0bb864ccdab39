/* Operations of the draft: rotation, keys and values in head-major pages, attention of a block. */
#include "attend.h"
#include "cuda.h"
#include "draft.h"

#include <math.h>

static __global__ void rope_kernel(float *x, int64_t ldx, const int32_t *pos, int heads, int d, double theta)
{
    int half = d / 2, row = blockIdx.x;
    for (int j = threadIdx.x; j < half; j += blockDim.x) {
        double a = pos[row] * pow(theta, -2.0 * j / d);
        float c = (float)cos(a), s = (float)sin(a);
        for (int h = 0; h < heads; h++) {
            float *p = x + row * ldx + (int64_t)h * d, u = p[j], v = p[j + half];
            p[j] = u * c - v * s;
            p[j + half] = v * c + u * s;
        }
    }
}

void cuda_rope(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, double theta)
{
    if (t < 1) return;
    const int32_t *dev = (const int32_t *)cu_stage(o, pos, (size_t)t * sizeof *pos);
    rope_kernel<<<t, 64, 0, cu_impl(o)->stream>>>(x, ldx, dev, heads, d, theta);
    CU_LAUNCHED("rope");
}

struct rope_angles { double inv[OPS_ROPE_DIM / 2], amplitude; };

static __global__ void rope_scaled_kernel(float *x, int64_t ldx, const int32_t *pos, int heads, int d,
                                          struct rope_angles r)
{
    int half = d / 2, row = blockIdx.x;
    for (int j = threadIdx.x; j < half; j += blockDim.x) {
        double a = pos[row] * r.inv[j];
        float c = (float)(r.amplitude * cos(a)), s = (float)(r.amplitude * sin(a));
        for (int h = 0; h < heads; h++) {
            float *p = x + row * ldx + (int64_t)h * d, u = p[j], v = p[j + half];
            p[j] = u * c - v * s;
            p[j + half] = v * c + u * s;
        }
    }
}

void cuda_rope_scaled(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d,
                      const double *inv, double amplitude)
{
    if (t < 1) return;
    struct rope_angles r;
    for (int j = 0; j < OPS_ROPE_DIM / 2; j++) r.inv[j] = j < d / 2 ? inv[j] : 0;
    r.amplitude = amplitude;
    const int32_t *dev = (const int32_t *)cu_stage(o, pos, (size_t)t * sizeof *pos);
    rope_scaled_kernel<<<t, 64, 0, cu_impl(o)->stream>>>(x, ldx, dev, heads, d, r);
    CU_LAUNCHED("rope_scaled");
}

static __global__ void kv_write_kernel(const float *x, int64_t ldx, int heads, int d, struct at_pages c,
                                       const struct cu_seq *seqs)
{
    struct cu_seq s = cu_seq_at(seqs, blockIdx.y);
    int r = blockIdx.x;
    if (r >= s.n_rows) return;
    for (int i = threadIdx.x; i < heads * d; i += blockDim.x) {
        int h = i / d;
        char *to = (char *)cu_row(c.base, c.stride, c.page, &s, s.pos0 + r, (int64_t)h * c.page * d, d,
                                  c.kv == OPS_KV_BF16 ? 2 : 4);
        cu_store_kv(to, i % d, x[(s.row0 + r) * ldx + i], c.kv);
    }
}

void cuda_kv_write(struct ops *o, const float *x, int64_t ldx, int heads, int d, const struct paged *cache,
                   const struct seq_rows *seq, int n_seq)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, cache->page, 1, &rows);
    if (rows < 1) return;
    kv_write_kernel<<<dim3((unsigned)rows, (unsigned)n_seq), 128, 0, cu_impl(o)->stream>>>(
        x, ldx, heads, d, at_pages_of(cache, d), s);
    CU_LAUNCHED("kv_write");
}

/* ---- attention of a block ----------------------------------------------------------------------------------- */

struct context_src {
    struct at_pages kc, vc;
    __device__ float4 k(int pos, int i) const { return kc.at(pos, i); }
    __device__ float4 v(int pos, int i) const { return vc.at(pos, i); }
};

struct block_src {
    const float *kb, *vb;      /* this head's element 0 of the row at position p0 */
    int64_t ldk, ldv;
    int p0, d;
    __device__ float4 k(int pos, int i) const { return at_four(kb + (pos - p0) * ldk, i * 4, d); }
    __device__ float4 v(int pos, int i) const { return at_four(vb + (pos - p0) * ldv, i * 4, d); }
};

struct draft {
    const float *q, *kb, *vb;
    int64_t ldq, ldk, ldv, ldo;
    struct context_src c;
    int group, d, window;      /* group: query heads per kv head */
    float scale;
    const struct cu_seq *seqs;
    float *out;
};

/* block: 16 lanes (row, query head of the group) of one kv head */
static __global__ void __launch_bounds__(AT_BLOCK) draft_kernel(struct draft a)
{
    extern __shared__ float4 mem[];
    struct at_tile t = at_carve((float *)mem, a.d, a.d, false, a.scale);
    struct at_state st;
    const struct cu_seq s = cu_seq_at(a.seqs, blockIdx.z);
    const int head = blockIdx.y, lanes = s.n_rows * a.group, i0 = blockIdx.x * AT_LANES, p0 = s.pos0;
    if (i0 >= lanes) return;
    int first = p0;
    for (int l = 0; l < AT_LANES; l++) {
        int i = i0 + l, r = i / a.group;
        int lo = a.window ? p0 + r - (a.window - 1) : 0, hi = a.window ? p0 + r + 1 : p0 + s.n_rows;
        if (lo < 0) lo = 0;
        if (i < lanes && lo < first) first = lo;
        at_query(t, l, i < lanes ? a.q + (s.row0 + r) * a.ldq + ((int64_t)head * a.group + i % a.group) * a.d : NULL,
                 lo, hi);
    }
    at_open(st);
    a.c.kc.s = a.c.vc.s = s;
    a.c.kc.off = (int64_t)head * a.c.kc.page * a.d;
    a.c.vc.off = (int64_t)head * a.c.vc.page * a.d;
    at_run<false>(t, st, a.c, 0, first, p0);
    struct block_src b = {a.kb + s.row0 * a.ldk + (int64_t)head * a.d, a.vb + s.row0 * a.ldv + (int64_t)head * a.d,
                          a.ldk, a.ldv, p0, a.d};
    at_run<false>(t, st, b, p0, p0, p0 + s.n_rows);
    at_publish(t, st);
#pragma unroll
    for (int l = 0; l < AT_LANES; l++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int c = threadIdx.x * 4 + j, i = i0 + l;
            if (i < lanes && c < a.d)
                a.out[(s.row0 + i / a.group) * a.ldo + ((int64_t)head * a.group + i % a.group) * a.d + c] =
                    st.acc[l][j] / t.corr[l];
        }
}

void cuda_draft_attend(struct ops *o, const float *q, int64_t ldq, const float *kb, int64_t ldk, const float *vb,
                       int64_t ldv, const struct paged *kc, const struct paged *vc, int q_heads, int kv_heads, int d,
                       int window, const struct seq_rows *seq, int n_seq, float *out, int64_t ldo)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, kc->page, 0, &rows);
    struct draft a = {q, kb, vb, ldq, ldk, ldv, ldo, {at_pages_of(kc, d), at_pages_of(vc, d)}, q_heads / kv_heads, d,
                      window, (float)(1.0 / sqrt((double)d)), s, out};
    size_t bytes = at_bytes(d, d, 0);
    if (rows < 1) return;
    if (draft_wg(o, {q, kb, vb, ldq, ldk, ldv, ldo, kc, vc, q_heads, kv_heads, d, window, a.scale, rows, n_seq, s,
                     out}))
        return;
    if (d > AT_DV) {
        log_error("draft_attend: head size %d is above %d", d, (int)AT_DV);
        abort();
    }
    CU(cudaFuncSetAttribute(draft_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    dim3 grid((unsigned)cu_parts((int64_t)rows * a.group, AT_LANES), (unsigned)kv_heads, (unsigned)n_seq);
    draft_kernel<<<grid, AT_BLOCK, bytes, cu_impl(o)->stream>>>(a);
    CU_LAUNCHED("draft_attend");
}
