#include "model/draft.h"

#include <string.h>

#include "model/draft_weights.h"
#include "plan/split.h"

/* ---- opening -------------------------------------------------------------------------------------- */

static enum status check_spec(const struct draft_config *c, const struct draft_spec *s, const struct tp_comm *comm)
{
    if (s->tp < 1 || s->tp_rank < 0 || s->tp_rank >= s->tp)
        return ERR(ST_E_CONFIG, "draft: tp rank %d of tp %d does not exist", s->tp_rank, s->tp);
    if (s->parts & DRAFT_BLOCK && (comm->size != s->tp || comm->rank != s->tp_rank))
        return ERR(ST_E_INTERNAL, "draft: tp rank %d of %d opened with rank %d of a group of %d", s->tp_rank, s->tp,
                   comm->rank, comm->size);
    if (c->q_heads % s->tp)
        return ERR(ST_E_CONFIG, "draft: tp %d does not divide num_attention_heads %d; choose another tp", s->tp,
                   c->q_heads);
    if (c->kv_heads % s->tp && s->tp % c->kv_heads)
        return ERR(ST_E_CONFIG, "draft: tp %d and num_key_value_heads %d do not divide one another; choose another tp",
                   s->tp, c->kv_heads);
    if (c->inter % s->tp || c->inter / s->tp % split_leaf_cols(c->inter))
        return ERR(ST_E_CONFIG,
                   "draft: tp %d does not divide intermediate_size %d into leaves of %d; choose another tp", s->tp,
                   c->inter, split_leaf_cols(c->inter));
    if (s->max_rows < 1) return ERR(ST_E_RANGE, "draft: max_rows is %d, at least 1 is needed", s->max_rows);
    if (c->kind == DRAFT_DSPARK && c->vocab % s->tp)
        return ERR(ST_E_CONFIG, "draft: tp %d does not divide vocab_size %d; choose another tp", s->tp, c->vocab);
    if (s->confidence && (c->kind != DRAFT_DSPARK || !c->confidence))
        return ERR(ST_E_CONFIG, "draft: enable_confidence_head: this checkpoint has no confidence head");
    if (c->rope.yarn && c->head_dim > OPS_ROPE_DIM)
        return ERR(ST_E_CONFIG, "draft: head_dim %d: YaRN is implemented up to %d", c->head_dim, OPS_ROPE_DIM);
    return ST_OK;
}

static enum status new_scratch(struct draft *d)
{
    struct ops *o = d->o;
    size_t rows = (size_t)d->spec.max_rows, h = (size_t)d->c.hidden, dim = (size_t)d->c.head_dim;
    size_t q = (size_t)d->q_heads * dim, kv = (size_t)d->kv_heads * dim, cols = (size_t)d->cols;
    TRY(o->mem_new(o, &d->part, rows * h * 4, "draft rows"));
    if (d->spec.parts & (DRAFT_CONTEXT | DRAFT_BLOCK)) {
        TRY(o->mem_new(o, &d->kvb, rows * 2 * kv * 4, "draft keys and values"));
        d->pos = mem_alloc(rows, sizeof *d->pos, "draft positions");
        d->seq = mem_alloc(rows, sizeof *d->seq, "draft sequences");
        if (!d->pos || !d->seq) return ST_E_NOMEM;
    }
    if (!(d->spec.parts & DRAFT_BLOCK)) return ST_OK;
    d->id = mem_alloc(rows, sizeof *d->id, "draft block ids");
    if (!d->id) return ST_E_NOMEM;
    TRY(o->mem_new(o, &d->x, rows * h * 4, "draft stream"));
    TRY(o->mem_new(o, &d->sum, rows * h * 4, "draft partial sums"));
    TRY(o->mem_new(o, &d->qb, rows * q * 4, "draft queries"));
    TRY(o->mem_new(o, &d->att, rows * q * 4, "draft attention"));
    TRY(o->mem_new(o, &d->up, rows * 2 * cols * 4, "draft gate and up"));
    TRY(o->mem_new(o, &d->act, rows * cols * 4, "draft activations"));
    TRY(draft_drawn_open(d));
    return d->c.kind == DRAFT_DSPARK ? draft_markov_open(d) : ST_OK;
}

enum status draft_open(struct ops *o, const struct draft_config *c, const struct safetensors *ckpt,
                       const struct draft_spec *spec, const struct tp_comm *comm, struct draft **d_p)
{
    TRY(check_spec(c, spec, comm));
    struct draft *d = mem_alloc(1, sizeof *d, "draft");
    if (!d) return ST_E_NOMEM;
    struct range heads = split_kv_heads(c->kv_heads, spec->tp, spec->tp_rank);
    d->o = o;
    d->c = *c;
    d->spec = *spec;
    if (d->spec.max_seqs == 0) d->spec.max_seqs = spec->max_rows;
    d->comm = *comm;
    d->q_heads = c->q_heads / spec->tp;
    d->kv_heads = heads.end - heads.begin;
    d->cols = c->inter / spec->tp;
    if (c->rope.yarn) rope_frequencies(&c->rope, c->head_dim, d->inv);
    enum status st = draft_load(d, ckpt);
    if (st == ST_OK) st = new_scratch(d);
    if (st != ST_OK) {
        draft_close(d);
        return st;
    }
    *d_p = d;
    return ST_OK;
}

void draft_close(struct draft *d)
{
    if (!d) return;
    draft_unload(d);
    draft_markov_close(d);
    draft_drawn_close(d);
    struct buf *scratch[] = {&d->part, &d->x, &d->sum, &d->kvb, &d->qb, &d->att, &d->up, &d->act};
    for (size_t i = 0; i < sizeof scratch / sizeof scratch[0]; i++) d->o->mem_free(d->o, scratch[i]);
    mem_free(d->pos);
    mem_free(d->id);
    mem_free(d->seq);
    mem_free(d);
}

int64_t draft_weight_bytes(const struct draft *d)
{
    return d->weight_bytes;
}

const struct draft_config *draft_config_of(const struct draft *d)
{
    return &d->c;
}

void draft_rope(struct draft *d, float *x, int64_t ldx, int rows, int heads)
{
    if (d->c.rope.yarn)
        d->o->rope_scaled(d->o, x, ldx, d->pos, rows, heads, d->c.head_dim, d->inv, d->c.rope.amplitude);
    else
        d->o->rope(d->o, x, ldx, d->pos, rows, heads, d->c.head_dim, d->c.rope_theta);
}

/* ---- context path --------------------------------------------------------------------------------- */

static enum status check_rows(const struct draft *d, int rows, const char *what)
{
    if (rows < 0 || rows > d->spec.max_rows)
        return ERR(ST_E_RANGE, "draft: %d %s rows, opened for at most %d", rows, what, d->spec.max_rows);
    return ST_OK;
}

enum status draft_project(struct draft *d, int tap_index, const float *h, int rows, float *acc, int has_acc)
{
    struct ops *o = d->o;
    int n = d->c.hidden;
    TRY(check_rows(d, rows, "tap"));
    if (tap_index < 0 || tap_index >= d->c.n_taps || d->fc[tap_index].n == 0)
        return ERR(ST_E_INTERNAL, "draft: the fc columns of tap %d are not loaded here", tap_index);
    if (rows == 0) return ST_OK;
    float *part = has_acc ? draft_f32(&d->part) : acc; /* formed whole before it is added */
    o->linear(o, &d->fc[tap_index], h, n, rows, part, n);
    if (has_acc) o->add(o, acc, part, (int64_t)rows * n);
    return ST_OK;
}

/* control arrays of the sequences' rows; *rows_p: one past the last row used */
static enum status set_rows(struct draft *d, const struct state *s, const struct batch_seq *seq, int n_seq, int *rows_p)
{
    int rows = 0;
    TRY(check_rows(d, n_seq, "sequence"));
    for (int i = 0; i < n_seq; i++)
        if (seq[i].row0 + seq[i].n_rows > rows) rows = seq[i].row0 + seq[i].n_rows;
    TRY(check_rows(d, rows, "context"));
    for (int r = 0; r < rows; r++) d->pos[r] = 0; /* rows of nobody: computed, never written */
    for (int i = 0; i < n_seq; i++) {
        const struct batch_seq *q = &seq[i];
        d->seq[i] = (struct seq_rows){q->row0, q->n_rows, q->pos0, state_pages(s, q->slot), NULL};
        for (int r = 0; r < q->n_rows; r++) d->pos[q->row0 + r] = q->pos0 + r;
    }
    *rows_p = rows;
    return ST_OK;
}

enum status draft_context(struct draft *d, struct state *s, const float *acc, const struct batch_seq *seq, int n_seq)
{
    struct ops *o = d->o;
    int h = d->c.hidden, dim = d->c.head_dim, kv = d->kv_heads * dim, rows;
    if (!(d->spec.parts & DRAFT_CONTEXT)) return ERR(ST_E_INTERNAL, "draft: the context path is not loaded here");
    TRY(set_rows(d, s, seq, n_seq, &rows));
    if (rows == 0) return ST_OK;
    float *ctx = draft_f32(&d->part), *k = draft_f32(&d->kvb), *v = k + kv;
    o->rmsnorm(o, acc, h, draft_f32(&d->hidden_norm), d->c.norm_eps, rows, h, ctx, h);
    for (int l = 0; l < d->c.n_layers; l++) {
        struct draft_layer *y = &d->layer[l];
        struct paged kc = state_paged(s, COMP_DRAFT, l, 0), vc = state_paged(s, COMP_DRAFT, l, 1);
        if (!kc.base || !vc.base) return ERR(ST_E_INTERNAL, "draft: layer %d has no K/V pages in this pool", l);
        o->linear(o, &y->kv, ctx, h, rows, k, 2 * kv);
        o->head_norm(o, k, 2 * kv, draft_f32(&y->k_norm), d->c.norm_eps, rows, d->kv_heads, dim);
        draft_rope(d, k, 2 * kv, rows, d->kv_heads);
        o->kv_write(o, k, 2 * kv, d->kv_heads, dim, &kc, d->seq, n_seq);
        o->kv_write(o, v, 2 * kv, d->kv_heads, dim, &vc, d->seq, n_seq);
    }
    return ST_OK;
}
