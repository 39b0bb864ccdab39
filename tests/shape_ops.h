/* shape_ops - a backend that computes nothing: its memory is addresses without memory behind them, and every operation
 * only checks that what it would read and write lies within one piece that was asked for, and that the rows are those
 * prepared for. With it a rank of any size takes all its steps on any machine, and what it asked for is counted.
 *
 * get and argmax give zeros. Chunked KDA is on, as on a GPU in act bf16. */
#ifndef PDFLASH_TESTS_SHAPE_OPS_H
#define PDFLASH_TESTS_SHAPE_OPS_H

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "ops/ops.h"
#include "suite.h"

enum { SHAPE_PIECES = 1 << 19 };

static struct {
    char *base; /* addresses that nothing may touch */
    size_t size, at;
    struct {
        uintptr_t p;
        size_t bytes;
    } piece[SHAPE_PIECES]; /* in the order of their addresses; none is forgotten */
    int n, max_rows;
    int64_t weights, held; /* bytes: of matrices; of everything else */
    int64_t calls;
} shape;

static inline void shape_reset(size_t bytes)
{
    if (shape.base) munmap(shape.base, shape.size);
    memset(&shape, 0, sizeof shape);
    shape.size = bytes;
    shape.base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(shape.base, MAP_FAILED);
}

/* the first fault ends the test: what, and where it would have been */
static inline void shape_within(const void *p, int64_t bytes, const char *what)
{
    int lo = 0, hi = shape.n - 1;
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        if (shape.piece[mid].p <= (uintptr_t)p) lo = mid;
        else hi = mid - 1;
    }
    uintptr_t from = (uintptr_t)p, begin = shape.piece[lo].p, size = shape.piece[lo].bytes;
    shape.calls++;
    if (bytes < 0 || from < begin || from - begin > size || (uint64_t)bytes > size - (from - begin))
        ck_abort_msg("%s: %lld bytes from %lld of a piece of %zu", what, (long long)bytes, (long long)(from - begin),
                     size);
}

/* t rows of n floats, ld apart */
static inline void shape_rows(const float *x, int64_t ld, int64_t t, int64_t n, const char *what)
{
    ck_assert_msg(t >= 1 && n >= 1 && ld >= n && t <= shape.max_rows, "%s: %lld rows (of %d) of %lld, %lld apart", what,
                  (long long)t, shape.max_rows, (long long)n, (long long)ld);
    shape_within(x, ((t - 1) * ld + n) * 4, what);
}

static inline enum status shape_piece(struct buf *b, size_t bytes)
{
    size_t room = (bytes + 255) / 256 * 256 + 256;
    *b = (struct buf){.place = PLACE_DEVICE};
    if (bytes == 0) return ST_OK;
    ck_assert(bytes < shape.size && room <= shape.size - shape.at && shape.n < SHAPE_PIECES);
    *b = (struct buf){shape.base + shape.at, bytes, PLACE_DEVICE, 1};
    shape.piece[shape.n].p = (uintptr_t)b->p;
    shape.piece[shape.n++].bytes = bytes;
    shape.at += room;
    return ST_OK;
}

static enum status shape_new(struct ops *o, struct buf *b, size_t bytes, const char *what)
{
    (void)o, (void)what;
    shape.held += (int64_t)bytes;
    return shape_piece(b, bytes);
}

static void shape_free(struct ops *o, struct buf *b)
{
    (void)o;
    if (b) memset(b, 0, sizeof *b);
}

static void shape_put(struct ops *o, void *dst, const void *src, size_t bytes)
{
    (void)o, (void)src;
    shape_within(dst, (int64_t)bytes, "put");
}

static void shape_get(struct ops *o, void *dst, const void *src, size_t bytes)
{
    (void)o;
    shape_within(src, (int64_t)bytes, "get");
    memset(dst, 0, bytes);
}

static void shape_zero(struct ops *o, void *dst, size_t bytes)
{
    (void)o;
    shape_within(dst, (int64_t)bytes, "zero");
}

static void shape_copy(struct ops *o, void *dst, const void *src, size_t bytes)
{
    (void)o;
    shape_within(dst, (int64_t)bytes, "copy to");
    shape_within(src, (int64_t)bytes, "copy from");
}

static enum status shape_prepare(struct ops *o, int max_rows)
{
    (void)o;
    shape.max_rows = max_rows;
    return ST_OK;
}

static uint64_t shape_fence(struct ops *o)
{
    (void)o;
    return 0;
}

static void shape_graph(struct ops *o, uint64_t key)
{
    (void)o, (void)key;
}

static void shape_graph_end(struct ops *o)
{
    (void)o;
}

static void shape_range(const struct ops *o, const char *name)
{
    (void)o, (void)name;
}

static void shape_range_end(const struct ops *o)
{
    (void)o;
}

/* ---- weights: rows and columns must be those of the matrix; the source is a mapped file and is not read --------- */

static enum status shape_mat_new(struct ops *o, struct mat *m, enum mat_kind kind, int n, int k, int leaf, int exact)
{
    (void)o;
    ck_assert(n >= 1 && k >= 1 && leaf >= 0 && (leaf == 0 || k % leaf == 0) && (kind == MAT_BF16 || k % 32 == 0));
    *m = (struct mat){.kind = kind, .n = n, .k = k, .leaf = leaf, .exact = exact};
    size_t values = (size_t)n * (size_t)k;
    shape_piece(&m->data, kind == MAT_BF16 ? values * 2 : values / 2);
    if (kind == MAT_MXFP4) shape_piece(&m->scale, values / 32);
    shape.weights += (int64_t)(m->data.bytes + m->scale.bytes);
    return ST_OK;
}

static void shape_rows_of(const struct mat *m, int row0, int n, int64_t ld)
{
    ck_assert(row0 >= 0 && n >= 1 && n <= m->n - row0 && ld >= 1);
}

static void shape_mat_put(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld)
{
    (void)o, (void)src;
    shape_rows_of(m, row0, n, ld);
}

static void shape_mat_put_fp4(struct ops *o, struct mat *m, int row0, int n, const uint8_t *packed, int64_t ld_packed,
                              const uint8_t *scale, int64_t ld_scale)
{
    (void)o, (void)packed, (void)scale;
    shape_rows_of(m, row0, n, ld_packed);
    ck_assert_int_eq(ld_packed, 16 * ld_scale);
}

static void shape_mat_free(struct ops *o, struct mat *m)
{
    (void)o;
    memset(m, 0, sizeof *m);
}

/* ---- dense ------------------------------------------------------------------------------------------------------ */

static void shape_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy)
{
    (void)o;
    shape_rows(x, ldx, t, m->k, "linear x");
    shape_rows(y, ldy, t, m->n, "linear y");
}

static void shape_embed(struct ops *o, const void *table, int first, int n_ids, int h, const int32_t *id, int t,
                        float *y)
{
    (void)o, (void)first, (void)id;
    shape_within(table, (int64_t)n_ids * h * 2, "table");
    shape_rows(y, h, t, h, "embed");
}

static void shape_gather(struct ops *o, float *y, const float *x, const int32_t *from, int t, int n)
{
    (void)o;
    shape_rows(y, n, t, n, "gather y");
    for (int i = 0; i < t; i++) shape_rows(x + (int64_t)from[i] * n, n, 1, n, "gather x");
}

static void shape_add(struct ops *o, float *y, const float *x, int64_t n)
{
    (void)o;
    shape_within(y, n * 4, "add y");
    shape_within(x, n * 4, "add x");
}

static void shape_tree(struct ops *o, float *dst, const float *src, int64_t stride, const int *order, int n_leaves,
                       int64_t n)
{
    (void)o;
    shape_within(dst, n * 4, "tree dst");
    for (int i = 0; i < n_leaves; i++) shape_within(src + (order ? order[i] : i) * stride, n * 4, "tree leaf");
}

static void shape_round(struct ops *o, float *x, int64_t n, enum ops_kv kv)
{
    (void)o, (void)kv;
    shape_within(x, n * 4, "round");
}

static void shape_rmsnorm(struct ops *o, const float *x, int64_t ldx, const float *w, float eps, int t, int n, float *y,
                          int64_t ldy)
{
    (void)o, (void)eps;
    shape_rows(x, ldx, t, n, "norm x");
    shape_rows(y, ldy, t, n, "norm y");
    shape_within(w, (int64_t)n * 4, "norm w");
}

static void shape_head_norm(struct ops *o, float *x, int64_t ldx, const float *w, float eps, int t, int heads, int d)
{
    (void)o, (void)eps;
    shape_rows(x, ldx, t, (int64_t)heads * d, "head norm");
    shape_within(w, (int64_t)d * 4, "head norm w");
}

static void shape_attnres(struct ops *o, const float *bank, int64_t stride, int n_bank, const float *prefix,
                          const float *q, float eps, int t, int h, float *mix, const float *w, float norm_eps,
                          float *normed)
{
    (void)o, (void)eps, (void)norm_eps;
    for (int j = 0; j < n_bank; j++) shape_rows(bank + j * stride, h, t, h, "bank");
    shape_rows(prefix, h, t, h, "prefix");
    shape_within(q, (int64_t)h * 4, "query");
    if (mix) shape_rows(mix, h, t, h, "mixture");
    if (normed) shape_rows(normed, h, t, h, "normed");
    if (normed) shape_within(w, (int64_t)h * 4, "norm of a mixture");
}

/* ---- KDA -------------------------------------------------------------------------------------------------------- */

static int64_t shape_elem(enum ops_kv kv)
{
    return kv == OPS_KV_BF16 ? 2 : 4;
}

static void shape_conv_commit(struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch,
                              enum ops_kv kv, int n)
{
    (void)o;
    shape_rows(x, ldx, n, ch, "rows of a tail");
    shape_within(tail, (int64_t)(kernel - 1) * ch * shape_elem(kv), "tail");
}

static void shape_conv(struct ops *o, const float *x, int64_t ldx, const float *w, int kernel, int ch, enum ops_kv kv,
                       const struct seq_rows *seq, int n_seq, float *y)
{
    shape_within(w, (int64_t)kernel * ch * 4, "convolution");
    for (int i = 0; i < n_seq; i++) {
        shape_conv_commit(o, seq[i].state, x + seq[i].row0 * ldx, ldx, kernel, ch, kv, seq[i].n_rows);
        shape_rows(y + (int64_t)seq[i].row0 * ch, ch, seq[i].n_rows, ch, "convolved");
    }
}

static void shape_kda_prepare(struct ops *o, float *qkv, float *z, int64_t ldz, float *b, int64_t ldb,
                              const float *a_exp, const float *dt_bias, float lower, int t, int heads, int d)
{
    int64_t w = (int64_t)heads * d;
    (void)o, (void)lower;
    shape_rows(qkv, 3 * w, t, 3 * w, "q, k, v");
    shape_rows(z, ldz, t, w, "decay");
    shape_rows(b, ldb, t, heads, "beta");
    shape_within(a_exp, (int64_t)heads * 4, "A");
    shape_within(dt_bias, w * 4, "dt_bias");
}

static void shape_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                        float *state, int write, int t, int heads, int d, float *out, int64_t ldo)
{
    int64_t w = (int64_t)heads * d;
    (void)o, (void)write;
    shape_rows(qkv, 3 * w, t, 3 * w, "q, k, v of the recurrence");
    shape_rows(g, ldg, t, w, "g");
    shape_rows(beta, ldb, t, heads, "beta of the recurrence");
    shape_within(state, w * d * 4, "state");
    if (out) shape_rows(out, ldo, t, w, "out of the recurrence");
}

static void shape_chunk(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                        float *state, int t, int heads, int d, int chunk, float *out, int64_t ldo)
{
    ck_assert(chunk > 0 && chunk % 16 == 0);
    shape_recur(o, qkv, g, ldg, beta, ldb, state, 1, t, heads, d, out, ldo);
}

static void shape_kda_out(struct ops *o, float *x, const float *gate, int64_t ldg, const float *w, float eps, int t,
                          int heads, int d)
{
    (void)o, (void)eps;
    shape_rows(x, (int64_t)heads * d, t, (int64_t)heads * d, "KDA out");
    shape_rows(gate, ldg, t, (int64_t)heads * d, "KDA gate");
    shape_within(w, (int64_t)d * 4, "KDA norm");
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

/* the pages that hold positions [from, to) of a sequence; bytes of a page */
static void shape_pages(const struct paged *c, const struct seq_rows *s, int from, int to, int64_t bytes)
{
    for (int p = from / c->page; p < (to + c->page - 1) / c->page; p++) {
        ck_assert_int_ge(s->page_id[p], 0);
        shape_within((char *)c->base + s->page_id[p] * c->stride, bytes, "page");
    }
}

static void shape_mla_write(struct ops *o, const float *x, int64_t ldx, int width, const struct paged *cache,
                            const struct seq_rows *seq, int n_seq)
{
    (void)o;
    for (int i = 0; i < n_seq; i++) {
        shape_rows(x + seq[i].row0 * ldx, ldx, seq[i].n_rows, width, "latent rows");
        shape_pages(cache, &seq[i], seq[i].pos0, seq[i].pos0 + seq[i].n_rows,
                    (int64_t)cache->page * width * shape_elem(cache->kv));
    }
}

static void shape_attend(const struct paged *cache, int width, const struct seq_rows *seq, int n_seq, const float *q,
                         int64_t ldq, int64_t nq, float *z, int64_t ldz, int64_t nz)
{
    for (int i = 0; i < n_seq; i++) {
        shape_rows(q + seq[i].row0 * ldq, ldq, seq[i].n_rows, nq, "queries");
        shape_rows(z + seq[i].row0 * ldz, ldz, seq[i].n_rows, nz, "attended");
        shape_pages(cache, &seq[i], 0, seq[i].pos0 + seq[i].n_rows,
                    (int64_t)cache->page * width * shape_elem(cache->kv));
    }
}

static void shape_mla_attend(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank, int rope,
                             float scale, int heads, const struct seq_rows *seq, int n_seq, float *z, int64_t ldz)
{
    (void)o, (void)scale;
    shape_attend(cache, rank + rope, seq, n_seq, q, ldq, (int64_t)heads * (rank + rope), z, ldz, (int64_t)heads * rank);
}

static void shape_mla_expanded(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank,
                               int rope, int nope, int v_dim, const struct mat *wkv, float scale, int heads,
                               const struct seq_rows *seq, int n_seq, float *out, int64_t ldo)
{
    (void)o, (void)scale;
    ck_assert(wkv->n == heads * (nope + v_dim) && wkv->k == rank);
    shape_attend(cache, rank + rope, seq, n_seq, q, ldq, (int64_t)heads * (nope + rope), out, ldo,
                 (int64_t)heads * v_dim);
}

static void shape_gate(struct ops *o, float *x, int64_t ldx, const float *g, int64_t ldg, int t, int n)
{
    (void)o;
    shape_rows(x, ldx, t, n, "gated");
    shape_rows(g, ldg, t, n, "gate");
}

/* ---- feed-forward, head, draft ---------------------------------------------------------------------------------- */

static void shape_situ(struct ops *o, const float *x, int64_t ldx, float b1, float b2, int t, int n, float *y,
                       int64_t ldy)
{
    (void)o, (void)b1, (void)b2;
    shape_rows(x, ldx, t, 2 * (int64_t)n, "gate and up");
    shape_rows(y, ldy, t, n, "activation");
}

static void shape_swiglu(struct ops *o, const float *x, int64_t ldx, int t, int n, float *y, int64_t ldy)
{
    shape_situ(o, x, ldx, 0, 0, t, n, y, ldy);
}

static void shape_route(struct ops *o, const float *logits, const float *bias, int n_experts, int k, float scale, int t,
                        int32_t *idx, float *w)
{
    (void)o, (void)scale;
    shape_rows(logits, n_experts, t, n_experts, "router");
    shape_rows((const float *)idx, k, t, k, "chosen");
    shape_rows(w, k, t, k, "weights of the chosen");
    if (bias) shape_within(bias, (int64_t)n_experts * 4, "bias");
}

static void shape_moe(struct ops *o, const struct mat *up, const struct mat *down, int e0, int n_local, int n_experts,
                      const float *z, int latent, int cols, int groups, int merge, const int32_t *idx, const float *w,
                      int k, float b1, float b2, int t, float *y, int64_t y_stride)
{
    (void)o, (void)b1, (void)b2;
    ck_assert(e0 >= 0 && e0 + n_local <= n_experts);
    for (int i = 0; i < n_local; i++)
        ck_assert(up[i].n == 2 * cols && up[i].k == latent && down[i].n == latent && down[i].k == cols);
    shape_rows(z, latent, t, latent, "latent");
    shape_rows((const float *)idx, k, t, k, "experts");
    shape_rows(w, k, t, k, "shares");
    for (int g = 0; g < (merge ? 1 : groups); g++) shape_rows(y + g * y_stride, latent, t, latent, "routed");
}

static void shape_argmax(struct ops *o, const float *logits, int64_t ldx, int t, int n, float *val, int32_t *idx)
{
    (void)o;
    shape_rows(logits, ldx, t, n, "logits");
    memset(val, 0, (size_t)t * sizeof *val);
    memset(idx, 0, (size_t)t * sizeof *idx);
}

static void shape_rope(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, double theta)
{
    (void)o, (void)pos, (void)theta;
    shape_rows(x, ldx, t, (int64_t)heads * d, "rotated");
}

static void shape_rope_scaled(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d,
                              const double *inv, double amplitude)
{
    (void)inv, (void)amplitude;
    shape_rope(o, x, ldx, pos, t, heads, d, 0);
}

static void shape_kv_write(struct ops *o, const float *x, int64_t ldx, int heads, int d, const struct paged *cache,
                           const struct seq_rows *seq, int n_seq)
{
    shape_mla_write(o, x, ldx, heads * d, cache, seq, n_seq);
}

static void shape_draft_attend(struct ops *o, const float *q, int64_t ldq, const float *kb, int64_t ldk,
                               const float *vb, int64_t ldv, const struct paged *kc, const struct paged *vc,
                               int q_heads, int kv_heads, int d, int window, const struct seq_rows *seq, int n_seq,
                               float *out, int64_t ldo)
{
    int64_t nq = (int64_t)q_heads * d, kv = (int64_t)kv_heads * d;
    (void)o;
    for (int i = 0; i < n_seq; i++) {
        int end = seq[i].pos0, from = window && end > window ? end - window : 0;
        shape_rows(q + seq[i].row0 * ldq, ldq, seq[i].n_rows, nq, "draft queries");
        shape_rows(out + seq[i].row0 * ldo, ldo, seq[i].n_rows, nq, "draft attended");
        shape_rows(kb + seq[i].row0 * ldk, ldk, seq[i].n_rows, kv, "keys of the block");
        shape_rows(vb + seq[i].row0 * ldv, ldv, seq[i].n_rows, kv, "values of the block");
        shape_pages(kc, &seq[i], from, end, kc->page * kv * shape_elem(kc->kv));
        shape_pages(vc, &seq[i], from, end, vc->page * kv * shape_elem(vc->kv));
    }
}

static const struct ops shape_table = {.name = "shape",
                                       .isa = "none",
                                       .act = ACT_BF16,
                                       .kda_chunk_rows = 64,
                                       .mem_new = shape_new,
                                       .mem_free = shape_free,
                                       .put = shape_put,
                                       .get = shape_get,
                                       .zero = shape_zero,
                                       .copy = shape_copy,
                                       .prepare = shape_prepare,
                                       .fence = shape_fence,
                                       .graph_begin = shape_graph,
                                       .graph_end = shape_graph_end,
                                       .range_begin = shape_range,
                                       .range_end = shape_range_end,
                                       .mat_new = shape_mat_new,
                                       .mat_put_bf16 = shape_mat_put,
                                       .mat_put_bf16_t = shape_mat_put,
                                       .mat_put_mxfp4 = shape_mat_put_fp4,
                                       .mat_free = shape_mat_free,
                                       .linear = shape_linear,
                                       .embed = shape_embed,
                                       .gather_rows = shape_gather,
                                       .add = shape_add,
                                       .tree_add = shape_tree,
                                       .round_kv = shape_round,
                                       .rmsnorm = shape_rmsnorm,
                                       .head_norm = shape_head_norm,
                                       .attnres = shape_attnres,
                                       .conv = shape_conv,
                                       .conv_commit = shape_conv_commit,
                                       .kda_prepare = shape_kda_prepare,
                                       .kda_recur = shape_recur,
                                       .kda_chunk = shape_chunk,
                                       .kda_out = shape_kda_out,
                                       .mla_write = shape_mla_write,
                                       .mla_attend = shape_mla_attend,
                                       .mla_attend_expanded = shape_mla_expanded,
                                       .gate = shape_gate,
                                       .situ = shape_situ,
                                       .swiglu = shape_swiglu,
                                       .route = shape_route,
                                       .moe = shape_moe,
                                       .argmax = shape_argmax,
                                       .rope = shape_rope,
                                       .rope_scaled = shape_rope_scaled,
                                       .kv_write = shape_kv_write,
                                       .draft_attend = shape_draft_attend};

#endif
