/* mla - one gated multi-head latent attention layer on one rank.
 *
 * H = heads of this rank. Cache row of a token: [normed latent (kv_rank) | k_r (qk_rope)], kv type, shared by all
 * heads and replicated over the group; nothing is rotated. Rows are written first and always read back through the
 * cache, so a row sees the same rounded values whether it came in this batch or an earlier one.
 *   absorbed: q^ = q_n W_k (per head), scores against the rows, z = sum p * latent, o = z W_v^T
 *   expanded: keys and values of the cached rows are formed per tile (PREFILL unless absorbed_prefill)
 * The form is chosen by the batch's kind, never by its number of rows.
 * Source: kimi-k3 notes 3.4. */
#ifndef PDFLASH_MODEL_MLA_H
#define PDFLASH_MODEL_MLA_H

#include "model/run.h"

struct mla {
    int layer;            /* global */
    int heads;            /* of this rank */
    struct mat in;        /* [q_rank + kv_rank + qk_rope + H * v_dim][hidden]: q_a, kv_a, g_proj */
    struct mat q_b;       /* [H * (qk_nope + qk_rope)][q_rank] */
    struct mat *wk;       /* [H] of [kv_rank][qk_nope]: W_k of a head, transposed */
    struct mat *wv;       /* [H] of [v_dim][kv_rank] */
    struct mat pick;      /* [qk_rope][qk_rope] identity, exact: moves q_r behind each absorbed head query */
    struct mat wkv;       /* [H * (qk_nope + v_dim)][kv_rank]; empty unless the expanded form is used */
    struct mat out;       /* [hidden][H * v_dim], a leaf per head */
    struct buf q_norm;    /* f32 [q_rank] */
    struct buf kv_norm;   /* f32 [kv_rank] */
};

/* mla_open - bind layer b->layer; expanded: the prefill form needs wkv. mla_close takes a cleared struct too. */
enum status mla_open(struct binder *b, int expanded, struct mla *m);
void mla_close(struct ops *o, struct mla *m);
/* mla_scratch - floats of scratch for t rows. */
int64_t mla_scratch(const struct mla *m, const struct config *c, int t);
/* mla_forward - y[t][hidden] := the layer's attention output. y may not alias u. Collective on the TP group. */
enum status mla_forward(struct mla *m, const struct run *r, const float *u, float *y);

#endif
