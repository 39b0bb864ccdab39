/* ops - the table of numeric operations: the contract every backend fulfils (CPU here, CUDA in cuda/).
 *
 * Conventions
 *  - Activations are FP32 arrays, row-major, in the backend's memory ("bmem": host for CPU, device for
 *    CUDA). `ld*` are row strides in elements. Token ids, positions, page tables and other control arrays
 *    are host arrays. Callers never dereference bmem; they use put/get/zero/copy.
 *  - Exactness (CPU): for a given act mode and ISA, every output element is computed by a sequence of
 *    operations that does not depend on the number of rows or sequences in the call. A sum over k runs in
 *    a fixed order. So n rows in one call equal n calls with one row, bit for bit.
 *  - Linears: act fp32 multiplies FP32 inputs with the exact weights (BF16 or MXFP4 expanded on the fly);
 *    act bf16 rounds the inputs of every linear that is not `exact` to BF16 (round to nearest even) and
 *    accumulates in FP32. Outputs stay FP32 in both.
 *  - Trees: a sum over n leaves is split in halves while n is even; an odd run is summed in index order
 *    (see plan/split.h). Added contributions start from +0.
 *  - State, conv tails, MLA rows and draft K/V use KDA f32 and the kv type (BF16 or FP32) of the pools.
 *    Values are rounded to the kv type when written; readers expand.
 *  - No operation allocates except mat_* and mem_*. Scratch is sized by prepare().
 * All functions are Local. Shapes are stated per operation. Functions that cannot fail return void.
 * Source of the formulas: kimi-k3 modeling code (section 3 of the project's model notes). */
#ifndef PDFLASH_OPS_OPS_H
#define PDFLASH_OPS_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum ops_act { ACT_FP32, ACT_BF16 };
enum ops_kv { OPS_KV_BF16, OPS_KV_FP32 }; /* same values as plan's enum kv_dtype */

enum mat_kind { MAT_BF16, MAT_MXFP4 };
enum { OPS_ROPE_DIM = 256 }; /* widest head of rope_scaled */

/* A weight matrix [n][k] prepared (packed) by the backend. Zeroed struct = empty. */
struct mat {
    enum mat_kind kind;
    int n, k;          /* outputs, inputs */
    int leaf;          /* inputs per tree leaf; 0: one sequential sum over k. Divides k. */
    int exact;         /* always FP32 inputs, whatever the act mode (router) */
    struct buf data;   /* backend's packing */
    struct buf scale;  /* MXFP4 scales, backend's packing */
};

/* Paged rows of one layer: page table -> bytes. All sequences of a call share base/stride/kv. */
struct paged {
    void *base;        /* bmem: item 0 of the entry */
    int64_t stride;    /* bytes from page to page */
    int page;          /* tokens per page */
    enum ops_kv kv;
};

/* One sequence's part of a batch of rows. */
struct seq_rows {
    int row0, n_rows;        /* rows [row0, row0 + n_rows) of the batch */
    int pos0;                /* absolute position of its first row */
    const int32_t *page_id;  /* host: logical page -> physical page */
    void *state;             /* bmem: KDA state or conv tail item of this sequence, where the op needs one */
};

struct ops {
    const char *name;        /* "cpu", "cuda" */
    const char *isa;         /* "scalar", "avx2", "avx512", "avx512bf16", "amx", or the GPU architecture */
    enum ops_act act;
    void *impl;              /* backend data */

    /* ---- memory ------------------------------------------------------------------------------- */
    enum status (*mem_new)(struct ops *o, struct buf *b, size_t bytes, const char *what); /* zeroed bmem */
    void (*mem_free)(struct ops *o, struct buf *b);
    void (*put)(struct ops *o, void *dst_bmem, const void *src_host, size_t bytes);
    void (*get)(struct ops *o, void *dst_host, const void *src_bmem, size_t bytes); /* waits for the value */
    void (*zero)(struct ops *o, void *dst_bmem, size_t bytes);
    void (*copy)(struct ops *o, void *dst_bmem, const void *src_bmem, size_t bytes); /* no overlap */
    /* prepare - size scratch for calls with at most max_rows rows; call once after all mats exist. */
    enum status (*prepare)(struct ops *o, int max_rows);
    /* check - ST_OK, or what went wrong in an operation since the backend was opened: operations return nothing, and
     * one that finds no memory for scratch beyond what prepare() made leaves its outputs as they are (ST_E_NOMEM,
     * logged). Call ops_check before results are used; NULL: such a backend ends the process itself. */
    enum status (*check)(const struct ops *o);
    void (*close)(struct ops *o);

    /* ---- weights ------------------------------------------------------------------------------ */
    /* mat_new - empty matrix of a kind; then mat_put_* row blocks; every row must be put once. */
    enum status (*mat_new)(struct ops *o, struct mat *m, enum mat_kind kind, int n, int k, int leaf, int exact);
    /* rows [row0, row0+n) := src[n][k] BF16 with row stride ld elements (host, may be unaligned) */
    void (*mat_put_bf16)(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld);
    /* the same from the transpose: row r, column c := src[c * ld + r] (absorbed W_k) */
    void (*mat_put_bf16_t)(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld);
    /* rows := packed[n][k/2] with stride ld_packed bytes, scale[n][k/32] with stride ld_scale bytes */
    void (*mat_put_mxfp4)(struct ops *o, struct mat *m, int row0, int n, const uint8_t *packed, int64_t ld_packed,
                          const uint8_t *scale, int64_t ld_scale);
    void (*mat_free)(struct ops *o, struct mat *m);

    /* ---- dense -------------------------------------------------------------------------------- */
    /* linear: y[t][n] = x[t][k] . W^T, summed over k in the tree of m->leaf. y may not alias x. */
    void (*linear)(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy);
    /* embed: y[i][h] = table[id[i] - first] if first <= id[i] < first + n_ids else 0. table BF16 [n_ids][h] bmem */
    void (*embed)(struct ops *o, const void *table, int first, int n_ids, int h, const int32_t *id, int t, float *y);
    /* add: y[i] += x[i], n elements */
    void (*add)(struct ops *o, float *y, const float *x, int64_t n);
    /* tree_add: dst[n] = tree sum of n_leaves arrays, leaf i at src + order[i] * stride (elements); order may
     * be NULL (identity); dst may be the array of leaf order[0]; n elements each. order is a host array. */
    void (*tree_add)(struct ops *o, float *dst, const float *src, int64_t stride, const int *order, int n_leaves,
                     int64_t n);
    /* round_kv: round n values to the kv type in place (no-op for FP32) */
    void (*round_kv)(struct ops *o, float *x, int64_t n, enum ops_kv kv);

    /* ---- norms and mixtures ------------------------------------------------------------------- */
    /* rmsnorm: y[t][n] = x[t][n] * rsqrt(mean(x^2) + eps) * w[n]; y may be x */
    void (*rmsnorm)(struct ops *o, const float *x, int64_t ldx, const float *w, float eps, int t, int n, float *y,
                    int64_t ldy);
    /* head_norm: the same over groups of d: x[t][heads][d] with row stride ldx, w[d] shared by heads; in place */
    void (*head_norm)(struct ops *o, float *x, int64_t ldx, const float *w, float eps, int t, int heads, int d);
    /* attnres: sources bank[0..n_bank-1][t][h] (row r at bank + r * bank_stride) and prefix[t][h] last;
     * score_j = (v_j . q) rsqrt(mean(v_j^2) + eps), a = softmax_j, mix[t][h] = sum_j a_j v_j (raw rows).
     * Rows are scaled by their max magnitude before squaring. n_bank = 0: mix = prefix.
     * mix and/or normed may be NULL; normed = rmsnorm(mix; w, norm_eps). mix, normed must not alias sources. */
    void (*attnres)(struct ops *o, const float *bank, int64_t bank_stride, int n_bank, const float *prefix,
                    const float *q, float eps, int t, int h, float *mix, const float *w, float norm_eps,
                    float *normed);

    /* ---- KDA ---------------------------------------------------------------------------------- */
    /* conv: y[t][ch] = silu(sum_j w[ch][kernel-1 ... ]) causal per sequence; x [t][ch] pre-convolution rows
     * (already rounded to kv), w [ch][kernel] with w[..][kernel-1] on the current row; tail of a sequence:
     * seq.state [kernel-1][ch] kv type, oldest first, read only. y row stride ldy = ch. */
    void (*conv)(struct ops *o, const float *x, int64_t ldx, const float *w, int kernel, int ch, enum ops_kv kv,
                 const struct seq_rows *seq, int n_seq, float *y);
    /* conv_commit: tail := rows [n, n + kernel - 1) of (old tail ++ x rows) for one sequence, n rows absorbed */
    void (*conv_commit)(struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv,
                        int n);
    /* kda_prepare: in place on qkv [t][3][heads][d]: q := q / sqrt(sum q^2 + 1e-6) * d^-0.5, k likewise without
     * the factor, v untouched. z [t][heads][d] (stride ldz) := g = lower_bound * sigmoid(a_exp[head] * (z + dt_bias)).
     * b [t][heads] (stride ldb) := sigmoid(b). a_exp = exp(A_log) [heads], dt_bias [heads][d]. */
    void (*kda_prepare)(struct ops *o, float *qkv, float *z, int64_t ldz, float *b, int64_t ldb, const float *a_exp,
                        const float *dt_bias, float lower_bound, int t, int heads, int d);
    /* kda_recur: the recurrence over the rows of one sequence. qkv [t][3][heads][d], g [t][heads][d] (ldg),
     * beta [t][heads] (ldb). state [heads][d][d] (k, v) f32. out [t][heads][d] (ldo) or NULL (state only).
     * write: 1 updates state, 0 leaves it (verification runs on scratch). Same arithmetic in all cases, but for CUDA in
     * act bf16: verification of 2 to 16 rows is within 1e-5 of it. */
    void (*kda_recur)(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                      float *state, int write, int t, int heads, int d, float *out, int64_t ldo);
    /* kda_recur_seqs: kda_recur for several sequences at once, the state of each in seq.state. Optional: where it is
     * NULL, call kda_recur per sequence; the bits are the same. */
    void (*kda_recur_seqs)(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                           int write, const struct seq_rows *seq, int n_seq, int heads, int d, float *out, int64_t ldo);
    /* kda_chunk: the chunked form (chunk: multiple of 16, tiles of 16 with midpoint offsets, substitution),
     * within 1e-5 of kda_recur; arguments as there, state always written. */
    void (*kda_chunk)(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                      float *state, int t, int heads, int d, int chunk, float *out, int64_t ldo);
    /* kda_out: x[t][heads][d] := rmsnorm_d(x; w[d], eps) * sigmoid(gate[t][heads][d] (ldg)) */
    void (*kda_out)(struct ops *o, float *x, const float *gate, int64_t ldg, const float *w, float eps, int t,
                    int heads, int d);

    /* ---- MLA ---------------------------------------------------------------------------------- */
    /* mla_write: rows x[t][width] (ldx) into the sequence's pages at positions pos0..; rounds to kv */
    void (*mla_write)(struct ops *o, const float *x, int64_t ldx, int width, const struct paged *cache,
                      const struct seq_rows *seq, int n_seq);
    /* mla_attend (absorbed): q[t][heads][rank + rope] (ldq), row at position p attends cache rows 0..p;
     * score = scale * q . row; causal softmax FP32; z[t][heads][rank] (ldz) = sum p * row[0..rank) */
    void (*mla_attend)(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank, int rope,
                       float scale, int heads, const struct seq_rows *seq, int n_seq, float *z, int64_t ldz);
    /* mla_attend_expanded: the same function from expanded keys and values; wkv: one mat, rows per head
     * [nope keys, v values], n = heads * (nope + v_dim), k = rank. q[t][heads][nope + rope] (ldq);
     * o[t][heads][v_dim] (ldo). Expands the cache in tiles; result independent of the number of rows. */
    void (*mla_attend_expanded)(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank,
                                int rope, int nope, int v_dim, const struct mat *wkv, float scale, int heads,
                                const struct seq_rows *seq, int n_seq, float *out, int64_t ldo);
    /* gate: x[t][n] (ldx) *= sigmoid(g[t][n] (ldg)) */
    void (*gate)(struct ops *o, float *x, int64_t ldx, const float *g, int64_t ldg, int t, int n);

    /* ---- feed-forward ------------------------------------------------------------------------- */
    /* situ: y[t][n] = b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2); g = x[..][0,n), u = x[..][n,2n), row stride ldx */
    void (*situ)(struct ops *o, const float *x, int64_t ldx, float b1, float b2, int t, int n, float *y, int64_t ldy);
    /* swiglu: y = silu(g) * u, same layout */
    void (*swiglu)(struct ops *o, const float *x, int64_t ldx, int t, int n, float *y, int64_t ldy);
    /* route: logits [t][n_experts] -> s = sigmoid; idx = top k of s + bias (ties: lowest id), sorted by id
     * ascending; w = s[idx] / (sum + 1e-20) * scale, sum in that order. bias may be NULL. idx, w: bmem [t][k] */
    void (*route)(struct ops *o, const float *logits, const float *bias, int n_experts, int k, float scale, int t,
                  int32_t *idx, float *w);
    /* moe: routed experts [e0, e0 + n_local) of this rank. up[i]: mat [2 * cols][latent] (w1 rows then w3 rows of
     * the rank's intermediate columns), down[i]: mat [latent][cols] MXFP4. groups: the rank's columns are `groups`
     * block groups of cols/groups columns each (a leaf = one expert x one block group, summed over its columns in
     * order, weighted by w, then tree over experts [0, n_experts) restricted to this rank's, absent = nothing).
     * merge 1: the groups are added by their tree, y has one part; 0: y[group][t][latent], part stride
     * y_stride elements. z [t][latent]. b1, b2: SiTU. Rows without a local expert give zeros. */
    void (*moe)(struct ops *o, const struct mat *up, const struct mat *down, int e0, int n_local, int n_experts,
                const float *z, int latent, int cols, int groups, int merge, const int32_t *idx, const float *w, int k,
                float b1, float b2, int t, float *y, int64_t y_stride);

    /* ---- head --------------------------------------------------------------------------------- */
    /* argmax: per row of logits[t][n] (ldx): first maximum -> val[t], idx[t] (host arrays); NaN anywhere in
     * a row: val NaN, idx -1 */
    void (*argmax)(struct ops *o, const float *logits, int64_t ldx, int t, int n, float *val, int32_t *idx);

    /* ---- draft -------------------------------------------------------------------------------- */
    /* rope: half-split rotation of x[t][heads][d] (ldx) in place; row i at position pos[i] (host array);
     * angle = pos * theta^(-2j/d) in double, cos and sin rounded to FP32 */
    void (*rope)(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, double theta);
    /* rope_scaled: the same rotation by other angles: angle = pos * inv[j] in double, inv [d/2] host,
     * d <= OPS_ROPE_DIM; cos and sin are multiplied by amplitude and then rounded to FP32 */
    void (*rope_scaled)(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d,
                        const double *inv, double amplitude);
    /* kv_write: rows x[t][heads][d] (ldx) into head-major pages [heads][page][d]; a sequence writes n_rows
     * rows at pos0; rounds to kv */
    void (*kv_write)(struct ops *o, const float *x, int64_t ldx, int heads, int d, const struct paged *cache,
                     const struct seq_rows *seq, int n_seq);
    /* draft_attend: block rows of each sequence (n_rows = B at positions pos0 = P ..) against its context pages
     * [0, P) (K and V caches, head-major) and the block's own kb, vb [t][kv_heads][d]. GQA: q_heads / kv_heads
     * query heads per kv head, in order. window 0: all context and the whole block visible (bidirectional);
     * window W: key p visible iff p >= P + j - (W - 1), block key i iff i <= j and in the window.
     * o[t][q_heads][d] (ldo) */
    void (*draft_attend)(struct ops *o, const float *q, int64_t ldq, const float *kb, int64_t ldk, const float *vb,
                         int64_t ldv, const struct paged *kc, const struct paged *vc, int q_heads, int kv_heads, int d,
                         int window, const struct seq_rows *seq, int n_seq, float *out, int64_t ldo);
};

static inline enum status ops_check(const struct ops *o)
{
    return o->check ? o->check(o) : ST_OK;
}

/* ops_cpu_open - the CPU backend. isa NULL: the best the machine has; else one of "scalar", "avx2", "avx512",
 * "avx512bf16", "amx"; ST_E_CONFIG when the machine lacks it. */
enum status ops_cpu_open(enum ops_act act, const char *isa, struct ops *o_p);
/* ops_cpu_isa_list - names this machine can run, best first, NULL-terminated. */
const char *const *ops_cpu_isa_list(void);
/* ops_cuda_open - the CUDA backend on a device ordinal; ST_E_CONFIG "not in this build" without CUDA. */
enum status ops_cuda_open(enum ops_act act, int device, struct ops *o_p);
/* ops_cuda_devices - CUDA devices this process sees; 0 in a build without CUDA. */
int ops_cuda_devices(void);
/* ops_cuda_time - device time of run(arg) in microseconds: several calls are captured into a graph (no host time, no
 * synchronisation inside), which is replayed reps times after a warm-up; the median, per call. */
enum status ops_cuda_time(struct ops *o, void (*run)(void *arg), void *arg, int reps, double *us_p);

#endif
