#include "model/draft_weights.h"

#include <stdio.h>
#include <string.h>

#include "plan/split.h"

struct loader { /* what every read needs */
    struct draft *d;
    const struct safetensors *ckpt;
    const char *prefix; /* "" or "model." */
};

/* a BF16 tensor [rows][cols] (cols 0: a vector) by name below the prefix */
static enum status find(const struct loader *l, const char *name, int64_t rows, int64_t cols, struct tensor *t_p)
{
    char full[160];
    const int64_t dim[2] = {rows, cols};
    snprintf(full, sizeof full, "%s%s", l->prefix, name);
    return safetensors_get(l->ckpt, full, ST_DT_BF16, cols ? 2 : 1, dim, t_p);
}

static const char *layer_name(char name[128], int layer, const char *rest)
{
    snprintf(name, 128, "layers.%d.%s", layer, rest);
    return name;
}

/* n values, a vector (rows n, cols 0) or a table's only row (rows 1, cols n), expanded to f32; the source may be
 * unaligned */
static enum status load_values(const struct loader *l, const char *name, int rows, int cols, struct buf *b)
{
    struct ops *o = l->d->o;
    int n = cols ? cols : rows;
    struct tensor t;
    struct buf host;
    TRY(find(l, name, rows, cols, &t));
    TRY(buf_alloc(&host, (size_t)n * 4, name));
    for (int i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, (const char *)t.data + 2 * (size_t)i, 2);
        uint32_t wide = (uint32_t)bits << 16;
        memcpy((char *)host.p + 4 * (size_t)i, &wide, 4);
    }
    enum status st = o->mem_new(o, b, (size_t)n * 4, name);
    if (st == ST_OK) {
        o->put(o, b->p, host.p, (size_t)n * 4);
        l->d->weight_bytes += n * 4;
    }
    buf_free(&host);
    return st;
}

static enum status load_vector(const struct loader *l, const char *name, int n, struct buf *b)
{
    return load_values(l, name, n, 0, b);
}

static enum status new_mat(const struct loader *l, struct mat *m, int n, int k, int leaf)
{
    TRY(l->d->o->mat_new(l->d->o, m, MAT_BF16, n, k, leaf, 0));
    l->d->weight_bytes += (int64_t)n * k * 2;
    return ST_OK;
}

/* matrix rows [row0, row0 + n) := rows [from, from + n) of a [rows][cols] tensor */
static enum status put_rows(const struct loader *l, const char *name, int rows, int cols, int from, int n,
                            struct mat *m, int row0)
{
    struct tensor t;
    TRY(find(l, name, rows, cols, &t));
    l->d->o->mat_put_bf16(l->d->o, m, row0, n, (const char *)t.data + (int64_t)from * cols * 2, cols);
    return ST_OK;
}

/* the whole matrix := columns [from, from + m->k) of a [rows][cols] tensor */
static enum status put_cols(const struct loader *l, const char *name, int rows, int cols, int from, struct mat *m)
{
    struct tensor t;
    TRY(find(l, name, rows, cols, &t));
    l->d->o->mat_put_bf16(l->d->o, m, 0, rows, (const char *)t.data + (int64_t)from * 2, cols);
    return ST_OK;
}

static enum status load_fc(const struct loader *l)
{
    struct draft *d = l->d;
    int h = d->c.hidden;
    for (int i = 0; i < d->spec.n_taps; i++) {
        int k = d->spec.tap[i];
        if (k < 0 || k >= d->c.n_taps || d->fc[k].n)
            return ERR(ST_E_INTERNAL, "draft: tap index %d of %d is absent or listed twice", k, d->c.n_taps);
        TRY(new_mat(l, &d->fc[k], h, h, 0));
        TRY(put_cols(l, "fc.weight", h, d->c.n_taps * h, k * h, &d->fc[k]));
    }
    return ST_OK;
}

static enum status load_context_layer(const struct loader *l, int i)
{
    struct draft *d = l->d;
    struct draft_layer *y = &d->layer[i];
    struct range heads = split_kv_heads(d->c.kv_heads, d->spec.tp, d->spec.tp_rank);
    int h = d->c.hidden, dim = d->c.head_dim, all = d->c.kv_heads * dim, mine = d->kv_heads * dim;
    char name[128];
    TRY(new_mat(l, &y->kv, 2 * mine, h, 0));
    TRY(put_rows(l, layer_name(name, i, "self_attn.k_proj.weight"), all, h, heads.begin * dim, mine, &y->kv, 0));
    TRY(put_rows(l, layer_name(name, i, "self_attn.v_proj.weight"), all, h, heads.begin * dim, mine, &y->kv, mine));
    return load_vector(l, layer_name(name, i, "self_attn.k_norm.weight"), dim, &y->k_norm);
}

static enum status load_block_layer(const struct loader *l, int i)
{
    struct draft *d = l->d;
    struct draft_layer *y = &d->layer[i];
    int h = d->c.hidden, dim = d->c.head_dim, inter = d->c.inter, r = d->spec.tp_rank;
    int all = d->c.q_heads * dim, mine = d->q_heads * dim;
    char name[128];
    TRY(new_mat(l, &y->q, mine, h, 0));
    TRY(put_rows(l, layer_name(name, i, "self_attn.q_proj.weight"), all, h, r * mine, mine, &y->q, 0));
    TRY(new_mat(l, &y->o, h, mine, dim));
    TRY(put_cols(l, layer_name(name, i, "self_attn.o_proj.weight"), h, all, r * mine, &y->o));
    TRY(new_mat(l, &y->gate_up, 2 * d->cols, h, 0));
    TRY(put_rows(l, layer_name(name, i, "mlp.gate_proj.weight"), inter, h, r * d->cols, d->cols, &y->gate_up, 0));
    TRY(put_rows(l, layer_name(name, i, "mlp.up_proj.weight"), inter, h, r * d->cols, d->cols, &y->gate_up, d->cols));
    TRY(new_mat(l, &y->down, h, d->cols, split_leaf_cols(inter)));
    TRY(put_cols(l, layer_name(name, i, "mlp.down_proj.weight"), h, inter, r * d->cols, &y->down));
    TRY(load_vector(l, layer_name(name, i, "self_attn.q_norm.weight"), dim, &y->q_norm));
    TRY(load_vector(l, layer_name(name, i, "input_layernorm.weight"), h, &y->norm_in));
    return load_vector(l, layer_name(name, i, "post_attention_layernorm.weight"), h, &y->norm_post);
}

/* a mask row of the draft's own, where the checkpoint has one: a vector, or the table of an embedding with one entry */
static enum status load_mask_row(const struct loader *l)
{
    char vector[160], table[160];
    int h = l->d->c.hidden;
    snprintf(vector, sizeof vector, "%smask_embedding", l->prefix);
    snprintf(table, sizeof table, "%smask_embedding.weight", l->prefix);
    if (safetensors_has(l->ckpt, vector)) return load_vector(l, "mask_embedding", h, &l->d->mask_row);
    return safetensors_has(l->ckpt, table) ? load_values(l, "mask_embedding.weight", 1, h, &l->d->mask_row) : ST_OK;
}

/* the confidence head apart: what it takes from y and what from the token before */
static enum status load_confidence(const struct loader *l)
{
    static const char name[] = "confidence_head.proj.weight";
    struct draft *d = l->d;
    struct markov *m = &d->markov;
    int h = d->c.hidden, rank = d->c.confidence_markov ? d->c.markov_rank : 0;
    struct tensor t;
    uint16_t half;
    TRY(d->o->mat_new(d->o, &m->conf_y, MAT_BF16, 1, h, 0, 1));
    TRY(put_cols(l, name, 1, h + rank, 0, &m->conf_y));
    if (rank) {
        TRY(d->o->mat_new(d->o, &m->conf_w, MAT_BF16, 1, rank, 0, 1));
        TRY(put_cols(l, name, 1, h + rank, h, &m->conf_w));
    }
    TRY(find(l, "confidence_head.proj.bias", 1, 0, &t));
    memcpy(&half, t.data, sizeof half);
    uint32_t wide = (uint32_t)half << 16;
    memcpy(&m->conf_bias, &wide, sizeof wide);
    d->weight_bytes += 2 * (h + rank + 1);
    return ST_OK;
}

static enum status load_markov(const struct loader *l)
{
    struct draft *d = l->d;
    struct markov *m = &d->markov;
    int vocab = d->c.vocab, rank = d->c.markov_rank;
    size_t bytes = (size_t)vocab * (size_t)rank * 2;
    struct range mine = split_even(vocab, d->spec.tp, d->spec.tp_rank);
    struct tensor t;
    m->vocab = mine.end - mine.begin;
    TRY(find(l, "markov_head.markov_w1.weight", vocab, rank, &t));
    TRY(d->o->mem_new(d->o, &m->w1, bytes, "Markov table"));
    d->o->put(d->o, m->w1.p, t.data, bytes);
    d->weight_bytes += (int64_t)bytes;
    TRY(new_mat(l, &m->w2, m->vocab, rank, 0));
    TRY(put_rows(l, "markov_head.markov_w2.weight", vocab, rank, mine.begin, m->vocab, &m->w2, 0));
    return d->spec.confidence ? load_confidence(l) : ST_OK;
}

enum status draft_load(struct draft *d, const struct safetensors *ckpt)
{
    struct loader l = {.d = d, .ckpt = ckpt};
    l.prefix = safetensors_has(ckpt, "model.fc.weight") ? "model." : "";
    int block = d->spec.parts & DRAFT_BLOCK, context = d->spec.parts & (DRAFT_CONTEXT | DRAFT_BLOCK);
    if (d->spec.parts & DRAFT_FC) TRY(load_fc(&l));
    if (d->spec.parts & DRAFT_CONTEXT) TRY(load_vector(&l, "hidden_norm.weight", d->c.hidden, &d->hidden_norm));
    if (block) TRY(load_vector(&l, "norm.weight", d->c.hidden, &d->final_norm));
    if (block) TRY(load_mask_row(&l));
    if (block && d->c.kind == DRAFT_DSPARK) TRY(load_markov(&l));
    for (int i = 0; i < d->c.n_layers; i++) {
        if (context) TRY(load_context_layer(&l, i));
        if (block) TRY(load_block_layer(&l, i));
    }
    return ST_OK;
}

void draft_unload(struct draft *d)
{
    struct ops *o = d->o;
    for (int i = 0; i < CONFIG_MAX_TAPS; i++) o->mat_free(o, &d->fc[i]);
    o->mem_free(o, &d->hidden_norm);
    o->mem_free(o, &d->final_norm);
    o->mem_free(o, &d->mask_row);
    o->mem_free(o, &d->markov.w1);
    struct mat *head[] = {&d->markov.w2, &d->markov.conf_y, &d->markov.conf_w};
    for (size_t k = 0; k < sizeof head / sizeof head[0]; k++) o->mat_free(o, head[k]);
    for (int i = 0; i < CONFIG_MAX_DRAFT_LAYERS; i++) {
        struct draft_layer *y = &d->layer[i];
        struct mat *mat[] = {&y->kv, &y->q, &y->o, &y->gate_up, &y->down};
        struct buf *vec[] = {&y->k_norm, &y->q_norm, &y->norm_in, &y->norm_post};
        for (size_t k = 0; k < sizeof mat / sizeof mat[0]; k++) o->mat_free(o, mat[k]);
        for (size_t k = 0; k < sizeof vec / sizeof vec[0]; k++) o->mem_free(o, vec[k]);
    }
}
