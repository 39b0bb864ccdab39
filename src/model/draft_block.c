#include "model/draft_weights.h"

/* The block path: [anchor, MASK ...] of every sequence through the draft's layers in one call. Rows are
 * [sequence][block]; a row's values depend on its own sequence only. */

static void show(const struct probe *probe, const char *name, int layer, const float *x, int rows, int cols)
{
    if (probe && probe->value) probe->value(probe->ctx, name, layer, x, rows, cols, cols);
}

static enum status set_block(struct draft *d, const struct state *s, const struct draft_seq *seq, int n_seq, int block)
{
    for (int i = 0; i < n_seq; i++) {
        if (seq[i].pos < 0 || seq[i].slot < 0 || seq[i].slot >= s->layout.spec.n_slots)
            return ERR(ST_E_INTERNAL, "draft: sequence %d: slot %d, position %d", i, seq[i].slot, seq[i].pos);
        d->seq[i] = (struct seq_rows){i * block, block, seq[i].pos, state_pages(s, seq[i].slot), NULL};
        for (int j = 0; j < block; j++) {
            d->id[i * block + j] = j == 0 ? seq[i].anchor : d->c.mask_id;
            d->pos[i * block + j] = seq[i].pos + j;
        }
    }
    return ST_OK;
}

static enum status attention(struct draft *d, const struct state *s, int l, int n_seq, int rows)
{
    struct ops *o = d->o;
    struct draft_layer *y = &d->layer[l];
    int h = d->c.hidden, dim = d->c.head_dim, kv = d->kv_heads * dim, nq = d->q_heads * dim;
    float eps = d->c.norm_eps;
    float *x = draft_f32(&d->x), *u = draft_f32(&d->part), *q = draft_f32(&d->qb), *k = draft_f32(&d->kvb);
    float *att = draft_f32(&d->att), *sum = draft_f32(&d->sum);
    struct paged kc = state_paged(s, COMP_DRAFT, l, 0), vc = state_paged(s, COMP_DRAFT, l, 1);
    if (!kc.base || !vc.base) return ERR(ST_E_INTERNAL, "draft: layer %d has no K/V pages in this pool", l);
    o->rmsnorm(o, x, h, draft_f32(&y->norm_in), eps, rows, h, u, h);
    o->linear(o, &y->q, u, h, rows, q, nq);
    o->linear(o, &y->kv, u, h, rows, k, 2 * kv);
    o->head_norm(o, q, nq, draft_f32(&y->q_norm), eps, rows, d->q_heads, dim);
    o->head_norm(o, k, 2 * kv, draft_f32(&y->k_norm), eps, rows, d->kv_heads, dim);
    draft_rope(d, q, nq, rows, d->q_heads);
    draft_rope(d, k, 2 * kv, rows, d->kv_heads);
    int window = d->c.type[l] == DRAFT_SLIDING ? d->c.window : 0;
    o->draft_attend(o, q, nq, k, 2 * kv, k + kv, 2 * kv, &kc, &vc, d->q_heads, d->kv_heads, dim, window, d->seq, n_seq,
                    att, nq);
    o->linear(o, &y->o, att, nq, rows, sum, h);
    TRY(d->comm.sum(d->comm.ctx, o, sum, (int64_t)rows * h, 1, NULL, rows, h));
    o->add(o, x, sum, (int64_t)rows * h);
    return ST_OK;
}

static enum status mlp(struct draft *d, int l, int rows)
{
    struct ops *o = d->o;
    struct draft_layer *y = &d->layer[l];
    int h = d->c.hidden, cols = d->cols;
    float *x = draft_f32(&d->x), *z = draft_f32(&d->part), *sum = draft_f32(&d->sum);
    float *up = draft_f32(&d->up), *act = draft_f32(&d->act);
    o->rmsnorm(o, x, h, draft_f32(&y->norm_post), d->c.norm_eps, rows, h, z, h);
    o->linear(o, &y->gate_up, z, h, rows, up, 2 * cols);
    o->swiglu(o, up, 2 * cols, rows, cols, act, cols);
    o->linear(o, &y->down, act, cols, rows, sum, h);
    TRY(d->comm.sum(d->comm.ctx, o, sum, (int64_t)rows * h, 1, NULL, rows, h));
    o->add(o, x, sum, (int64_t)rows * h);
    return ST_OK;
}

/* block stream: the anchor and the masks */
static enum status embed(struct draft *d, struct target *t, int n_seq, int width)
{
    int h = d->c.hidden;
    float *x = draft_f32(&d->x);
    TRY(target_embed(t, d->id, n_seq * width, x));
    if (!d->mask_row.p) return ST_OK;
    for (int r = 0; r < n_seq * width; r++)
        if (r % width) d->o->copy(d->o, x + (int64_t)r * h, d->mask_row.p, (size_t)h * 4);
    return ST_OK;
}

/* final norm, head, tokens. y: rows [sequence][slot] of the slots that predict */
static enum status pick_at_once(struct draft *d, struct target *t, const struct draft_seq *seq,
                                const struct draft_draw *draw, int n_seq, int n, int32_t *id, const struct probe *probe)
{
    struct ops *o = d->o;
    int h = d->c.hidden;
    float *x = draft_f32(&d->x), *y = draft_f32(&d->part);
    for (int i = 0; i < n_seq; i++) /* slot 0 predicts nothing */
        o->rmsnorm(o, x + ((int64_t)i * (n + 1) + 1) * h, h, draft_f32(&d->final_norm), d->c.norm_eps, n, h,
                   y + (int64_t)i * n * h, h);
    show(probe, "draft_y", d->c.n_layers, y, n_seq * n, h);
    TRY(target_head(t, y, n_seq * n));
    TRY(target_argmax_rows(t, id));
    return draft_drawn(d, t, seq, draw, n_seq, 0, n, 0, id);
}

/* the same for a draft whose slots follow one another; y: rows [slot][sequence] */
static enum status pick_in_turn(struct draft *d, struct target *t, const struct draft_seq *seq,
                                const struct draft_draw *draw, int n_seq, int n, int32_t *id, const struct probe *probe)
{
    struct ops *o = d->o;
    int h = d->c.hidden;
    float *x = draft_f32(&d->x), *y = draft_f32(&d->part);
    for (int i = 0; i < n_seq; i++)
        o->rmsnorm(o, x + (int64_t)i * n * h, h, draft_f32(&d->final_norm), d->c.norm_eps, n, h, y + (int64_t)i * h,
                   (int64_t)n_seq * h);
    show(probe, "draft_y", d->c.n_layers, y, n_seq * n, h);
    TRY(target_head(t, y, n_seq * n));
    return draft_markov(d, t, seq, draw, n_seq, n, y, id);
}

enum status draft_block(struct draft *d, struct target *t, struct state *s, const struct draft_seq *seq, int n_seq,
                        int block, int32_t *id, const struct probe *probe)
{
    return draft_block_drawn(d, t, s, seq, NULL, n_seq, block, id, probe);
}

enum status draft_block_drawn(struct draft *d, struct target *t, struct state *s, const struct draft_seq *seq,
                              const struct draft_draw *draw, int n_seq, int block, int32_t *id,
                              const struct probe *probe)
{
    int n = block - 1, first = draft_first_slot(&d->c), width = n + first, rows = n_seq * width;
    if (!(d->spec.parts & DRAFT_BLOCK)) return ERR(ST_E_INTERNAL, "draft: the block path is not loaded here");
    if (block < 2 || block > draft_verify_rows(&d->c))
        return ERR(ST_E_RANGE, "draft: block of %d rows; the checkpoint was trained for 2 to %d", block,
                   draft_verify_rows(&d->c));
    if (n_seq < 0 || n_seq > d->spec.max_rows / block || n_seq > d->spec.max_seqs)
        return ERR(ST_E_RANGE, "draft: %d sequences of %d rows, opened for %d rows of %d sequences", n_seq, block,
                   d->spec.max_rows, d->spec.max_seqs);
    if (n_seq == 0) return ST_OK;
    d->drawn.n = n;
    TRY(set_block(d, s, seq, n_seq, width));
    TRY(embed(d, t, n_seq, width));
    for (int l = 0; l < d->c.n_layers; l++) {
        TRY(attention(d, s, l, n_seq, rows));
        TRY(mlp(d, l, rows));
        show(probe, "draft_layer_out", l, draft_f32(&d->x), rows, d->c.hidden);
    }
    return first ? pick_at_once(d, t, seq, draw, n_seq, n, id, probe)
                 : pick_in_turn(d, t, seq, draw, n_seq, n, id, probe);
}
