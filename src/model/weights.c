#include "model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static enum status divides(int tp, const char *field, int n)
{
    if (n % tp == 0) return ST_OK;
    return ERR(ST_E_CONFIG, "tp %d does not divide %s %d; choose a tp that does", tp, field, n);
}

static enum status check_shard(const struct config *c, int tp, int tp_rank, int ep)
{
    if (tp < 1 || tp_rank < 0 || tp_rank >= tp)
        return ERR(ST_E_CONFIG, "tp rank %d of tp %d does not exist", tp_rank, tp);
    if (ep < 1 || tp % ep) return ERR(ST_E_CONFIG, "ep %d does not divide tp %d; choose a divisor", ep, tp);
    TRY(divides(tp, "linear_attn_config.num_heads", c->kda_heads));
    TRY(divides(tp, "num_attention_heads", c->mla_heads));
    TRY(divides(tp, "vocab_size", c->vocab));
    TRY(divides(tp, "the leaves of intermediate_size", c->dense_inter / split_leaf_cols(c->dense_inter)));
    TRY(divides(tp, "the leaves of the shared experts' width", c->shared_inter / split_leaf_cols(c->shared_inter)));
    if (c->n_experts % ep)
        return ERR(ST_E_CONFIG, "ep %d does not divide num_experts %d; choose a divisor", ep, c->n_experts);
    if (split_block_groups(c) % (tp / ep))
        return ERR(ST_E_CONFIG, "tp/ep = %d does not divide the %d block groups of moe_intermediate_size %d; raise ep",
                   tp / ep, split_block_groups(c), c->expert_inter);
    return ST_OK;
}

enum status shard_make(const struct config *c, int tp, int tp_rank, int ep, struct shard *s_p)
{
    TRY(check_shard(c, tp, tp_rank, ep));
    struct shard s = {.tp = tp, .tp_rank = tp_rank, .ep = ep, .moe_tp = tp / ep};
    s.ep_rank = tp_rank / s.moe_tp;
    s.moe_rank = tp_rank % s.moe_tp;
    s.kda_heads = split_even(c->kda_heads, tp, tp_rank);
    s.mla_heads = split_even(c->mla_heads, tp, tp_rank);
    s.vocab = split_even(c->vocab, tp, tp_rank);
    s.dense_cols = split_even(c->dense_inter, tp, tp_rank);
    s.shared_cols = split_even(c->shared_inter, tp, tp_rank);
    s.experts = split_experts(c->n_experts, ep, s.ep_rank);
    s.expert_cols = split_expert_cols(c, s.moe_tp, s.moe_rank);
    s.groups = split_block_groups(c) / s.moe_tp;
    *s_p = s;
    return ST_OK;
}

const char *bind_name(const struct binder *b, char *out, const char *fmt, ...)
{
    va_list ap;
    int n = b->layer < 0 ? snprintf(out, WEIGHT_NAME, "language_model.")
                         : snprintf(out, WEIGHT_NAME, "language_model.model.layers.%d.", b->layer);
    va_start(ap, fmt);
    vsnprintf(out + n, (size_t)(WEIGHT_NAME - n), fmt, ap);
    va_end(ap);
    return out;
}

enum status bind_mat(struct binder *b, struct mat *m, enum mat_kind kind, int n, int k, int leaf, int exact)
{
    TRY(b->o->mat_new(b->o, m, kind, n, k, leaf, exact));
    b->bytes += (int64_t)(m->data.bytes + m->scale.bytes);
    return ST_OK;
}

/* address of element (row, col) of a BF16 tensor; mapped files are not aligned */
static const void *bf16_at(const struct tensor *t, const struct block *k)
{
    return (const char *)t->data + 2 * ((int64_t)k->rows.begin * k->k + k->cols.begin);
}

enum status bind_rows(struct binder *b, struct mat *m, int row0, const struct block *k)
{
    struct tensor t;
    TRY(safetensors_get(b->ckpt, k->name, ST_DT_BF16, 2, (int64_t[]){k->n, k->k}, &t));
    b->o->mat_put_bf16(b->o, m, row0, range_len(k->rows), bf16_at(&t, k), k->k);
    return ST_OK;
}

enum status bind_rows_t(struct binder *b, struct mat *m, int row0, const struct block *k)
{
    struct tensor t;
    TRY(safetensors_get(b->ckpt, k->name, ST_DT_BF16, 2, (int64_t[]){k->n, k->k}, &t));
    b->o->mat_put_bf16_t(b->o, m, row0, range_len(k->cols), bf16_at(&t, k), k->k);
    return ST_OK;
}

enum status bind_rows_mxfp4(struct binder *b, struct mat *m, int row0, const struct block *k)
{
    char name[WEIGHT_NAME + 16];
    struct tensor packed, scale;
    int64_t ld_packed = k->k / 2, ld_scale = k->k / 32;
    snprintf(name, sizeof name, "%s.weight_packed", k->name);
    TRY(safetensors_get(b->ckpt, name, ST_DT_U8, 2, (int64_t[]){k->n, ld_packed}, &packed));
    snprintf(name, sizeof name, "%s.weight_scale", k->name);
    TRY(safetensors_get(b->ckpt, name, ST_DT_U8, 2, (int64_t[]){k->n, ld_scale}, &scale));
    b->o->mat_put_mxfp4(b->o, m, row0, range_len(k->rows),
                        (const uint8_t *)packed.data + k->rows.begin * ld_packed + k->cols.begin / 2, ld_packed,
                        (const uint8_t *)scale.data + k->rows.begin * ld_scale + k->cols.begin / 32, ld_scale);
    return ST_OK;
}

enum status bind_floats(struct binder *b, struct buf *v, const float *x, int64_t n, const char *what)
{
    TRY(b->o->mem_new(b->o, v, (size_t)n * sizeof *x, what));
    b->o->put(b->o, v->p, x, (size_t)n * sizeof *x);
    b->bytes += n * (int64_t)sizeof *x;
    return ST_OK;
}

static float bf16_value(const void *p, int64_t i)
{
    uint16_t h;
    memcpy(&h, (const char *)p + 2 * i, sizeof h);
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

enum status bind_vector(struct binder *b, struct buf *v, const char *name, enum st_dtype dtype, int n,
                        struct range part)
{
    struct tensor t;
    int len = range_len(part);
    TRY(safetensors_get(b->ckpt, name, dtype, 1, (int64_t[]){n}, &t));
    float *x = mem_alloc((size_t)len, sizeof *x, name);
    if (!x) return ST_E_NOMEM;
    if (dtype == ST_DT_F32)
        memcpy(x, (const char *)t.data + 4 * (int64_t)part.begin, (size_t)len * sizeof *x);
    else
        for (int i = 0; i < len; i++) x[i] = bf16_value(t.data, part.begin + i);
    enum status st = bind_floats(b, v, x, len, name);
    mem_free(x);
    return st;
}

enum status bind_query(struct binder *b, struct buf *v, const char *stem)
{
    char name[WEIGHT_NAME];
    struct tensor norm, proj;
    int h = b->c->hidden;
    TRY(safetensors_get(b->ckpt, bind_name(b, name, "%s_norm.weight", stem), ST_DT_BF16, 1, (int64_t[]){h}, &norm));
    TRY(safetensors_get(b->ckpt, bind_name(b, name, "%s_proj.weight", stem), ST_DT_BF16, 2, (int64_t[]){1, h}, &proj));
    float *x = mem_alloc((size_t)h, sizeof *x, name);
    if (!x) return ST_E_NOMEM;
    for (int i = 0; i < h; i++) x[i] = bf16_value(norm.data, i) * bf16_value(proj.data, i);
    enum status st = bind_floats(b, v, x, h, name);
    mem_free(x);
    return st;
}

enum status bind_f32(struct binder *b, const char *name, int n_dims, const int64_t *dim, const void **data_p)
{
    struct tensor t;
    TRY(safetensors_get(b->ckpt, name, ST_DT_F32, n_dims, dim, &t));
    *data_p = t.data;
    return ST_OK;
}

enum status bind_table(struct binder *b, struct buf *v, const struct block *k)
{
    struct tensor t;
    TRY(safetensors_get(b->ckpt, k->name, ST_DT_BF16, 2, (int64_t[]){k->n, k->k}, &t));
    size_t bytes = 2 * (size_t)range_len(k->rows) * (size_t)k->k;
    TRY(b->o->mem_new(b->o, v, bytes, k->name));
    b->o->put(b->o, v->p, bf16_at(&t, k), bytes);
    b->bytes += (int64_t)bytes;
    return ST_OK;
}
