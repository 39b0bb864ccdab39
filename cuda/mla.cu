/* MLA: writing latent rows, and attention in the absorbed and the expanded form. */
#include "attend.h"
#include "cuda.h"
#include "mla.h"

enum {
    PART_BYTES = 256 << 20,    /* most scratch for parts of one launch */
    JOBS = 64,                 /* most sequences of one launch */
    EXPAND = 512               /* positions expanded by one product; its rows are independent of their number */
};

static __global__ void write_kernel(const float *x, int64_t ldx, int width, struct at_pages c,
                                    const struct cu_seq *seqs)
{
    struct cu_seq s = cu_seq_at(seqs, blockIdx.y);
    int r = blockIdx.x, elem = c.kv == OPS_KV_BF16 ? 2 : 4;
    if (r >= s.n_rows) return;
    char *to = (char *)cu_row(c.base, c.stride, c.page, &s, s.pos0 + r, 0, width, elem);
    for (int i = threadIdx.x; i < width; i += blockDim.x) cu_store_kv(to, i, x[(s.row0 + r) * ldx + i], c.kv);
}

void cuda_mla_write(struct ops *o, const float *x, int64_t ldx, int width, const struct paged *cache,
                    const struct seq_rows *seq, int n_seq)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, cache->page, 1, &rows);
    if (rows < 1) return;
    write_kernel<<<dim3((unsigned)rows, (unsigned)n_seq), 128, 0, cu_impl(o)->stream>>>(
        x, ldx, width, at_pages_of(cache, width), s);
    CU_LAUNCHED("mla_write");
}

/* ---- absorbed -------------------------------------------------------------------------------------------- */

/* block: 16 lanes (row, head) of a sequence x one split */
static __global__ void __launch_bounds__(AT_BLOCK) absorbed_kernel(struct mla_absorbed a, struct at_pages c)
{
    extern __shared__ float4 mem[];
    struct at_tile t = at_carve((float *)mem, a.width, a.rank, true, a.scale);
    struct at_state st;
    const struct cu_seq s = cu_seq_at(a.seqs, blockIdx.z);
    const int lanes = s.n_rows * a.heads, i0 = blockIdx.x * AT_LANES, from = blockIdx.y * a.split;
    if (i0 >= lanes) return;
    int last = (i0 + AT_LANES < lanes ? i0 + AT_LANES : lanes) - 1, end = s.pos0 + last / a.heads + 1;
    if (from >= end) return;
    if (end > from + a.split) end = from + a.split;
    for (int l = 0; l < AT_LANES; l++) {
        int i = i0 + l, row = i / a.heads;
        at_query(t, l, i < lanes ? a.q + (s.row0 + row) * a.ldq + (int64_t)(i % a.heads) * a.width : NULL, 0,
                 s.pos0 + row + 1);
    }
    at_open(st);
    c.s = s;
    at_run<true>(t, st, c, 0, from, end);
    at_publish(t, st);
    for (int l = 0; l < AT_LANES && i0 + l < lanes; l++) {
        float *p = mla_part(a, blockIdx.z, i0 + l, blockIdx.y);
        int col = threadIdx.x * 4;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (col + j < a.rank) p[col + j] = st.acc[0][j];
#pragma unroll
        for (int m = 0; m + 1 < AT_LANES; m++) /* constant indices only: shift the lanes down */
#pragma unroll
            for (int j = 0; j < 4; j++) st.acc[m][j] = st.acc[m + 1][j];
        if (threadIdx.x == 0) {
            p[a.rank] = t.p[l];
            p[a.rank + 1] = t.corr[l];
        }
    }
}

/* parts of a lane in order: their weights first, then every column */
static __global__ void __launch_bounds__(128) merge_kernel(struct mla_absorbed a)
{
    extern __shared__ float4 mem4[]; /* weights [splits], then sums [splits]; in whole float4s, as they are read */
    float *weight = (float *)mem4;
    const struct cu_seq s = cu_seq_at(a.seqs, blockIdx.z);
    int row = blockIdx.y, h = blockIdx.x;
    if (row >= s.n_rows) return;
    int n = (s.pos0 + row) / a.split + 1;
    const float *__restrict__ p = mla_part(a, blockIdx.z, (int64_t)row * a.heads + h, 0);
    const int64_t ld = a.rank + 2;
    float *part = weight + (a.splits + 3) / 4 * 4, top = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        weight[i] = p[i * ld + a.rank];
        part[i] = p[i * ld + a.rank + 1];
    }
    __syncthreads();
    for (int i = 0; i < n; i++) top = fmaxf(top, weight[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) weight[i] = expf(weight[i] - top);
    __syncthreads();
    for (int i = 0; i < n; i++) sum += weight[i] * part[i];
    for (int c = threadIdx.x; c < a.rank; c += blockDim.x) {
        float z = 0;
#pragma unroll 8
        for (int i = 0; i < n; i++) z += weight[i] * p[i * ld + c];
        a.z[(s.row0 + row) * a.ldz + (int64_t)h * a.rank + c] = z / sum;
    }
}

static void absorbed_launch(struct ops *o, struct mla_absorbed *a, const struct paged *cache,
                            const struct seq_rows *job, int n, int splits, int hopper)
{
    cudaStream_t st = cu_impl(o)->stream;
    size_t bytes = at_bytes(a->width, a->rank, 1);
    a->seqs = cu_seqs(o, job, n, a->page, 0, &a->rows);
    a->splits = splits;
    a->part = (float *)cu_scratch(o, (size_t)n * a->rows * a->heads * splits * (a->rank + 2) * sizeof(float));
    if (hopper) mla_decode_wg(o, *a, n);
    else if (!mla_fast(o, *a, n)) {
        dim3 grid((unsigned)cu_parts((int64_t)a->rows * a->heads, AT_LANES), (unsigned)splits, (unsigned)n);
        CU(cudaFuncSetAttribute(absorbed_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        absorbed_kernel<<<grid, AT_BLOCK, bytes, st>>>(*a, at_pages_of(cache, a->width));
        CU_LAUNCHED("mla_attend");
    }
    if (hopper && splits == 1) return;
    merge_kernel<<<dim3((unsigned)a->heads, (unsigned)a->rows, (unsigned)n), 128,
                   2 * cu_up((size_t)splits, 4) * sizeof(float), st>>>(*a);
    CU_LAUNCHED("mla_attend merge");
}

/* Launches of sequences, or of parts of their rows, as many as the scratch for parts allows. */
void cuda_mla_attend(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank, int rope,
                     float scale, int heads, const struct seq_rows *seq, int n_seq, float *z, int64_t ldz)
{
    struct mla_absorbed a = {q, ldq, ldz, (const char *)cache->base, cache->stride, cache->page, cache->kv, rank,
                             rank + rope, heads, 0, 0, 0, scale, NULL, NULL, z};
    struct seq_rows job[JOBS];
    int n = 0, rows = 0, splits = 0;
    const int hopper = mla_decode_wg_fits(o, cache, rank, rope);
    if (rank > AT_DV) {
        log_error("mla_attend: latent rank %d is above %d", rank, (int)AT_DV);
        abort();
    }
    a.split = hopper ? MLA_SEGMENT : MLA_SPLIT;
    for (int i = 0; i < n_seq; i++)
        for (int r = 0; r < seq[i].n_rows;) {
            int most_splits = (seq[i].pos0 + seq[i].n_rows - 1) / a.split + 1;
            int64_t lane = (int64_t)heads * most_splits * (rank + 2) * 4;
            int64_t fit = PART_BYTES / lane > 1 ? PART_BYTES / lane : 1;
            int take = seq[i].n_rows - r < fit ? seq[i].n_rows - r : (int)fit;
            int rows_now = take > rows ? take : rows, splits_now = most_splits > splits ? most_splits : splits;
            if (n && (n == JOBS || (int64_t)(n + 1) * rows_now * heads * splits_now * (rank + 2) * 4 > PART_BYTES)) {
                absorbed_launch(o, &a, cache, job, n, splits, hopper);
                n = rows = splits = 0;
                continue;
            }
            job[n++] = seq_rows{seq[i].row0 + r, take, seq[i].pos0 + r, seq[i].page_id, seq[i].state};
            rows = rows_now;
            splits = splits_now;
            r += take;
        }
    if (n) absorbed_launch(o, &a, cache, job, n, splits, hopper);
}

/* ---- expanded --------------------------------------------------------------------------------------------- */

/* latent rows [p0, p0 + n) of a sequence as FP32 rows */
static __global__ void gather_kernel(struct at_pages c, const struct cu_seq *seqs, int p0, int rank, float *out)
{
    struct cu_seq s = cu_seq_at(seqs, 0);
    const char *r = cu_row(c.base, c.stride, c.page, &s, p0 + blockIdx.x, 0, c.width, c.kv == OPS_KV_BF16 ? 2 : 4);
    for (int i = threadIdx.x; i < rank; i += blockDim.x) out[(int64_t)blockIdx.x * rank + i] = cu_load_kv(r, i, c.kv);
}

struct expanded_src {
    struct at_pages c;
    const float *kv;           /* [pos][n] */
    int64_t n, at;             /* at: this head's first element */
    int nope, v_dim, rank, rope;

    __device__ float4 k(int pos, int i) const
    {
        const float *p = kv + pos * n + at;
        int e = i * 4;
        if (e + 4 <= nope) return at_four(p, e, nope);
        const char *r = cu_row(c.base, c.stride, c.page, &c.s, pos, 0, c.width, c.kv == OPS_KV_BF16 ? 2 : 4);
        float x[4];
        for (int j = 0; j < 4; j++, e++)
            x[j] = e < nope ? p[e] : e < nope + rope ? cu_load_kv(r, rank + e - nope, c.kv) : 0.0f;
        return make_float4(x[0], x[1], x[2], x[3]);
    }
    __device__ float4 v(int pos, int i) const { return at_four(kv + pos * n + at + nope, i * 4, v_dim); }
};

struct expanded {
    const float *q;
    int64_t ldq, ldo;
    struct expanded_src src;
    float scale;
    const struct cu_seq *seqs;
    float *out;
};

/* block: 16 rows x one head */
static __global__ void __launch_bounds__(AT_BLOCK) expanded_kernel(struct expanded a)
{
    extern __shared__ float4 mem[];
    struct expanded_src &e = a.src;
    const int dk = e.nope + e.rope, h = blockIdx.y, r0 = blockIdx.x * AT_LANES;
    struct at_tile t = at_carve((float *)mem, dk, e.v_dim, false, a.scale);
    struct at_state st;
    const struct cu_seq s = cu_seq_at(a.seqs, 0);
    int n = s.n_rows - r0 < AT_LANES ? s.n_rows - r0 : AT_LANES;
    for (int l = 0; l < AT_LANES; l++)
        at_query(t, l, l < n ? a.q + (s.row0 + r0 + l) * a.ldq + (int64_t)h * dk : NULL, 0, s.pos0 + r0 + l + 1);
    at_open(st);
    e.c.s = s;
    e.at = (int64_t)h * (e.nope + e.v_dim);
    at_run<false>(t, st, e, 0, 0, s.pos0 + r0 + n);
    at_publish(t, st);
#pragma unroll
    for (int l = 0; l < AT_LANES; l++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int c = threadIdx.x * 4 + j;
            if (l < n && c < e.v_dim)
                a.out[(s.row0 + r0 + l) * a.ldo + (int64_t)h * e.v_dim + c] = st.acc[l][j] / t.corr[l];
        }
}

/* FP32 rows of n to BF16 */
static __global__ void narrow_kernel(const float4 *x, uint2 *y, int64_t n4)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n4) return;
    float4 v = x[i];
    __nv_bfloat162 lo = __floats2bfloat162_rn(v.x, v.y), hi = __floats2bfloat162_rn(v.z, v.w);
    y[i] = make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
}

/* keys and values of a sequence, EXPAND positions at a time: to kv (FP32), or to narrow where that is not NULL */
static void expand(struct ops *o, const struct at_pages &c, const struct cu_seq *s, int end, const struct mat *wkv,
                   int rank, float *latent, float *kv, __nv_bfloat16 *narrow)
{
    cudaStream_t st = cu_impl(o)->stream;
    for (int p = 0; p < end; p += EXPAND) {
        int n = end - p < EXPAND ? end - p : (int)EXPAND;
        float *to = narrow ? kv : kv + (int64_t)p * wkv->n;
        gather_kernel<<<n, 128, 0, st>>>(c, s, p, rank, latent);
        CU_LAUNCHED("gather latent rows");
        cuda_linear(o, wkv, latent, rank, n, to, wkv->n);
        if (!narrow) continue;
        int64_t n4 = (int64_t)n * wkv->n / 4;
        narrow_kernel<<<cu_parts(n4, 256), 256, 0, st>>>((const float4 *)to,
                                                         (uint2 *)(narrow + (int64_t)p * wkv->n), n4);
        CU_LAUNCHED("narrow keys and values");
    }
}

void cuda_mla_attend_expanded(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank, int rope,
                              int nope, int v_dim, const struct mat *wkv, float scale, int heads,
                              const struct seq_rows *seq, int n_seq, float *out, int64_t ldo)
{
    size_t bytes = at_bytes(nope + rope, v_dim, 0);
    const int fast = mla_prefill_fits(o, cache, rope, nope, v_dim);
    const int hopper = mla_prefill_wg_fits(o, cache, rank, rope, nope, v_dim);
    if (v_dim > AT_DV) {
        log_error("mla_attend_expanded: value size %d is above %d", v_dim, (int)AT_DV);
        abort();
    }
    for (int i = 0; i < n_seq; i++) {
        if (seq[i].n_rows < 1) continue;
        int rows, end = seq[i].pos0 + seq[i].n_rows;
        struct at_pages c = at_pages_of(cache, rank + rope);
        const struct cu_seq *s = cu_seqs(o, &seq[i], 1, cache->page, 0, &rows);
        struct mla_expanded e = {q, ldq, ldo, wkv->n, (const char *)cache->base, cache->stride, cache->page, rank,
                                 rank + rope, heads, nope, v_dim, rows, scale, s, NULL, out};
        if (hopper) {
            size_t latent_bytes = cu_up((size_t)end * (rank + rope) * 2, 256);
            char *mem = (char *)cu_scratch_more(o, latent_bytes + (size_t)end * wkv->n * 2);
            e.kv = (__nv_bfloat16 *)(mem + latent_bytes);
            mla_expand(o, cache, s, end, rank, rope, wkv, (__nv_bfloat16 *)mem, (__nv_bfloat16 *)(mem + latent_bytes));
            mla_prefill_wg(o, e, (__nv_bfloat16 *)mem, end);
            continue;
        }
        size_t head = cu_up((size_t)EXPAND * rank * 4, 256), tile = cu_up((size_t)EXPAND * wkv->n * 4, 256);
        size_t rest = fast ? tile + (size_t)end * wkv->n * 2 : (size_t)end * wkv->n * 4;
        char *mem = (char *)cu_scratch_more(o, head + rest);
        __nv_bfloat16 *narrow = fast ? (__nv_bfloat16 *)(mem + head + tile) : NULL;
        expand(o, c, s, end, wkv, rank, (float *)mem, (float *)(mem + head), narrow);
        if (fast) {
            e.kv = narrow;
            mla_prefill(o, e);
            continue;
        }
        struct expanded a = {q, ldq, ldo, {c, (float *)(mem + head), wkv->n, 0, nope, v_dim, rank, rope}, scale, s,
                             out};
        dim3 grid((unsigned)cu_parts(rows, AT_LANES), (unsigned)heads);
        CU(cudaFuncSetAttribute(expanded_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        expanded_kernel<<<grid, AT_BLOCK, bytes, cu_impl(o)->stream>>>(a);
        CU_LAUNCHED("mla_attend_expanded");
    }
}
