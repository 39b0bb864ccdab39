/* cpu_ops - the CPU backend's operations other than memory, weights and matrix products.
 *
 * Each function is the member of struct ops of the same name; ops.h is its manual page (shapes, types,
 * aliasing). bmem is host memory here. All sums run over fixed lanes or in index order, so a row's bits do
 * not depend on the other rows of the call, the instruction set or the compiler. Functions that need scratch
 * take it from cpu_scratch(o, ...); attention never needs scratch in proportion to the context. Local. */
#ifndef PDFLASH_OPS_CPU_OPS_H
#define PDFLASH_OPS_CPU_OPS_H

#include "ops/ops.h"

/* ---- glu.c: elementwise ------------------------------------------------------------------------ */
void cpu_embed(struct ops *o, const void *table, int first, int n_ids, int h, const int32_t *id, int t, float *y);
void cpu_gather_rows(struct ops *o, float *y, const float *x, const int32_t *from, int t, int n);
void cpu_add(struct ops *o, float *y, const float *x, int64_t n);
void cpu_tree_add(struct ops *o, float *dst, const float *src, int64_t stride, const int *order, int n_leaves,
                  int64_t n);
void cpu_round_kv(struct ops *o, float *x, int64_t n, enum ops_kv kv);
void cpu_gate(struct ops *o, float *x, int64_t ldx, const float *g, int64_t ldg, int t, int n);
void cpu_situ(struct ops *o, const float *x, int64_t ldx, float b1, float b2, int t, int n, float *y, int64_t ldy);
void cpu_swiglu(struct ops *o, const float *x, int64_t ldx, int t, int n, float *y, int64_t ldy);

/* ---- norm.c ------------------------------------------------------------------------------------ */
void cpu_rmsnorm(struct ops *o, const float *x, int64_t ldx, const float *w, float eps, int t, int n, float *y,
                 int64_t ldy);
void cpu_head_norm(struct ops *o, float *x, int64_t ldx, const float *w, float eps, int t, int heads, int d);
void cpu_attnres(struct ops *o, const float *bank, int64_t bank_stride, int n_bank, const float *prefix,
                 const float *q, float eps, int t, int h, float *mix, const float *w, float norm_eps,
                 float *normed);

/* ---- kda.c, kda_chunk.c ------------------------------------------------------------------------ */
void cpu_conv(struct ops *o, const float *x, int64_t ldx, const float *w, int kernel, int ch, enum ops_kv kv,
              const struct seq_rows *seq, int n_seq, float *y);
void cpu_conv_commit(struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv,
                     int n);
void cpu_kda_prepare(struct ops *o, float *qkv, float *z, int64_t ldz, float *b, int64_t ldb, const float *a_exp,
                     const float *dt_bias, float lower_bound, int t, int heads, int d);
void cpu_kda_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                   float *state, int write, int t, int heads, int d, float *out, int64_t ldo);
void cpu_kda_chunk(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                   float *state, int t, int heads, int d, int chunk, float *out, int64_t ldo);
void cpu_kda_out(struct ops *o, float *x, const float *gate, int64_t ldg, const float *w, float eps, int t,
                 int heads, int d);

/* ---- mla.c ------------------------------------------------------------------------------------- */
void cpu_mla_write(struct ops *o, const float *x, int64_t ldx, int width, const struct paged *cache,
                   const struct seq_rows *seq, int n_seq);
void cpu_mla_attend(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank, int rope,
                    float scale, int heads, const struct seq_rows *seq, int n_seq, float *z, int64_t ldz);
void cpu_mla_attend_expanded(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank,
                             int rope, int nope, int v_dim, const struct mat *wkv, float scale, int heads,
                             const struct seq_rows *seq, int n_seq, float *out, int64_t ldo);

/* ---- route.c ----------------------------------------------------------------------------------- */
void cpu_route(struct ops *o, const float *logits, const float *bias, int n_experts, int k, float scale, int t,
               int32_t *idx, float *w);
void cpu_argmax(struct ops *o, const float *logits, int64_t ldx, int t, int n, float *val, int32_t *idx);

/* ---- draft.c ----------------------------------------------------------------------------------- */
void cpu_rope(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, double theta);
void cpu_rope_scaled(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, const double *inv,
                     double amplitude);
void cpu_kv_write(struct ops *o, const float *x, int64_t ldx, int heads, int d, const struct paged *cache,
                  const struct seq_rows *seq, int n_seq);
void cpu_draft_attend(struct ops *o, const float *q, int64_t ldq, const float *kb, int64_t ldk, const float *vb,
                      int64_t ldv, const struct paged *kc, const struct paged *vc, int q_heads, int kv_heads, int d,
                      int window, const struct seq_rows *seq, int n_seq, float *out, int64_t ldo);

#endif
