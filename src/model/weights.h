/* weights - bind the tensors of a Kimi-K3 checkpoint and pack the part that belongs to one rank.
 *
 * A rank of a TP group holds its heads (KDA, MLA), its columns of the MLPs, its experts and columns of the routed
 * experts, and its vocabulary rows. Norms, the router, latent projections and low-rank inputs (q_a, kv_a, f_a) are
 * replicated. Every tensor is fetched with the dtype and shape config.json implies, so a wrong file is refused at
 * binding. Large matrices go to the backend's packing straight from the mapped file; vectors become FP32.
 * Names are those below "language_model."; layer numbers are global. Local.
 * Source: kimi-k3 notes 2.1 (names, dtypes), 4.1 (which dimension is split). */
#ifndef PDFLASH_MODEL_WEIGHTS_H
#define PDFLASH_MODEL_WEIGHTS_H

#include "ckpt/config.h"
#include "ckpt/safetensors.h"
#include "ops/ops.h"
#include "plan/split.h"

struct shard { /* what one rank of the group owns */
    int tp, tp_rank;
    int ep, ep_rank, moe_tp, moe_rank; /* tp_rank = ep_rank * moe_tp + moe_rank */
    struct range kda_heads, mla_heads;
    struct range vocab;        /* token ids */
    struct range dense_cols;   /* columns of the dense MLP's intermediate width */
    struct range shared_cols;  /* of the shared experts' */
    struct range experts;
    struct range expert_cols;  /* of a routed expert's intermediate width, whole block groups */
    int groups;                /* block groups among expert_cols */
};

static inline int range_len(struct range r) { return r.end - r.begin; }

/* shard_make - the parts of rank tp_rank; ST_E_CONFIG when tp or ep does not divide a dimension. */
enum status shard_make(const struct config *c, int tp, int tp_rank, int ep, struct shard *s_p);

struct binder { /* an open checkpoint being packed */
    struct ops *o;
    const struct config *c;
    const struct safetensors *ckpt;
    struct shard shard;
    int layer;      /* bind_name prefixes "model.layers.<layer>."; -1: top-level names */
    int64_t bytes;  /* backend memory taken by matrices and vectors so far */
};

enum { WEIGHT_NAME = 160 };
/* bind_name - full tensor name of suffix (formatted) into out[WEIGHT_NAME]. */
const char *bind_name(const struct binder *b, char *out, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* bind_mat - ops->mat_new, counted. */
enum status bind_mat(struct binder *b, struct mat *m, enum mat_kind kind, int n, int k, int leaf, int exact);

struct block { /* part of a two-dimensional tensor [n][k] that becomes rows of a matrix */
    const char *name;   /* full name */
    int n, k;           /* shape in the file */
    struct range rows;  /* rows taken */
    struct range cols;  /* columns taken */
};
/* bind_rows - rows [row0, row0 + len(rows)) of m := the block of a BF16 tensor. ST_E_FORMAT. */
enum status bind_rows(struct binder *b, struct mat *m, int row0, const struct block *k);
/* bind_rows_t - the same with the block transposed: m gets len(cols) rows of len(rows) inputs. */
enum status bind_rows_t(struct binder *b, struct mat *m, int row0, const struct block *k);
/* bind_rows_mxfp4 - rows of m := the block of stem.weight_packed / stem.weight_scale (k->name is the stem);
 * cols in whole 32-blocks. */
enum status bind_rows_mxfp4(struct binder *b, struct mat *m, int row0, const struct block *k);

/* bind_vector - v := elements [part) of the tensor [n] (BF16 or F32 as dtype says), FP32 backend memory. */
enum status bind_vector(struct binder *b, struct buf *v, const char *name, enum st_dtype dtype, int n,
                        struct range part);
/* bind_query - v[hidden] := norm weight * projection row, folded in FP32; norm "<stem>_norm.weight" [hidden], row
 * "<stem>_proj.weight" [1][hidden], both BF16. */
enum status bind_query(struct binder *b, struct buf *v, const char *stem);
/* bind_floats - v := n host floats, counted. */
enum status bind_floats(struct binder *b, struct buf *v, const float *x, int64_t n, const char *what);
/* bind_f32 - view of an F32 tensor of this shape, host, possibly unaligned. */
enum status bind_f32(struct binder *b, const char *name, int n_dims, const int64_t *dim, const void **data_p);
/* bind_table - v := BF16 rows [rows) of the tensor [n][k], unpacked (embedding table). */
enum status bind_table(struct binder *b, struct buf *v, const struct block *k);

#endif
