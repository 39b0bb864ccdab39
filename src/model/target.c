#include "model/target.h"

#include <math.h>
#include <string.h>

#include "model/layer.h"

struct target {
    struct ops *o;
    struct config c;
    struct target_spec spec;
    struct shard shard;
    struct tp_comm comm;
    int64_t weight_bytes;
    int n_layers;
    struct layer *layer;       /* [n_layers] */
    struct buf table;          /* first range: bf16 [vocab / tp][hidden] */
    struct resid_site out;     /* last range: output mixture, final norm */
    struct mat head;           /* last range: [vocab / tp][hidden] */
    struct buf mem;            /* all scratch */
    struct layer_bufs bufs;
    float *scratch;
    float *logits;             /* [max_logits][vocab / tp] */
    int max_logits;
    struct seq_rows *seq;      /* [max_rows] */
    int *moe_order;
    float *arg_val;            /* host [max_logits] */
    int n_logits;              /* rows of logits now valid */
    int verify_rows, verify_seqs; /* shape of the last VERIFY batch, 0: none to commit */
};

static int is_first(const struct target *t)
{
    return t->spec.layers.begin == 0;
}

static int is_last(const struct target *t)
{
    return t->spec.layers.end == t->c.n_layers;
}

static int vocab_local(const struct target *t)
{
    return range_len(t->shard.vocab);
}

/* ---- open and close ------------------------------------------------------------------------------- */

static enum status check_spec(const struct config *c, const struct target_spec *s, const struct tp_comm *comm)
{
    if (s->layers.begin < 0 || s->layers.begin >= s->layers.end || s->layers.end > c->n_layers)
        return ERR(ST_E_INTERNAL, "target: layers [%d, %d) of %d do not exist", s->layers.begin, s->layers.end,
                   c->n_layers);
    if (s->max_rows < 1 || s->max_verify_rows < 0 || s->max_verify_rows > s->max_rows)
        return ERR(ST_E_INTERNAL, "target: max_rows %d and max_verify_rows %d: verify batches must fit into batches",
                   s->max_rows, s->max_verify_rows);
    if (comm->size != s->tp || comm->rank != s->tp_rank)
        return ERR(ST_E_INTERNAL, "target: rank %d of tp %d was given a group with rank %d of %d", s->tp_rank, s->tp,
                   comm->rank, comm->size);
    return ST_OK;
}

static enum status bind_layers(struct target *t, struct binder *b)
{
    t->layer = mem_alloc((size_t)range_len(t->spec.layers), sizeof *t->layer, "layers");
    if (!t->layer) return ST_E_NOMEM;
    for (int i = t->spec.layers.begin; i < t->spec.layers.end; i++) {
        b->layer = i;
        TRY(layer_open(b, t->spec.max_verify_rows, !t->spec.absorbed_prefill, &t->layer[t->n_layers++]));
    }
    return ST_OK;
}

static enum status bind_ends(struct target *t, struct binder *b)
{
    int h = t->c.hidden;
    char name[WEIGHT_NAME];
    struct block rows = {name, t->c.vocab, h, t->shard.vocab, {0, h}};
    b->layer = -1;
    if (is_first(t)) {
        bind_name(b, name, "model.embed_tokens.weight");
        TRY(bind_table(b, &t->table, &rows));
    }
    if (!is_last(t)) return ST_OK;
    TRY(resid_bind(b, "model.output_attn_res", "model.norm", &t->out));
    TRY(bind_mat(b, &t->head, MAT_BF16, vocab_local(t), h, 0, 0));
    bind_name(b, name, "lm_head.weight");
    return bind_rows(b, &t->head, 0, &rows);
}

static int64_t carve(struct target *t, float *base)
{
    int64_t at = 0, plane = (int64_t)t->spec.max_rows * t->c.hidden, scratch = 0;
    for (int i = 0; i < t->n_layers; i++) {
        int64_t n = layer_scratch(&t->layer[i], &t->c, &t->shard, t->spec.max_rows);
        scratch = n > scratch ? n : scratch;
    }
    t->bufs.u = run_take(base, &at, plane);
    t->bufs.y = run_take(base, &at, plane);
    t->bufs.mix = run_take(base, &at, plane);
    t->scratch = run_take(base, &at, scratch);
    t->logits = run_take(base, &at, is_last(t) ? (int64_t)t->max_logits * vocab_local(t) : 0);
    return at;
}

static enum status open_scratch(struct target *t)
{
    size_t rows = (size_t)t->spec.max_rows;
    TRY(t->o->mem_new(t->o, &t->mem, (size_t)carve(t, NULL) * sizeof(float), "target scratch"));
    carve(t, t->mem.p);
    t->seq = mem_alloc(rows, sizeof *t->seq, "sequence table");
    t->moe_order = mem_alloc((size_t)moe_order_len(&t->shard), sizeof *t->moe_order, "expert sum order");
    t->arg_val = mem_alloc((size_t)t->max_logits, sizeof *t->arg_val, "argmax values");
    if (!t->seq || !t->moe_order || !t->arg_val) return ST_E_NOMEM;
    moe_order(&t->shard, t->moe_order);
    return ST_OK;
}

enum status target_open(struct ops *o, const struct config *c, const struct safetensors *ckpt,
                        const struct target_spec *spec, const struct tp_comm *comm, struct target **t_p)
{
    TRY(check_spec(c, spec, comm));
    struct target *t = mem_alloc(1, sizeof *t, "target");
    if (!t) return ST_E_NOMEM;
    t->o = o;
    t->c = *c;
    t->spec = *spec;
    t->comm = *comm;
    t->max_logits = spec->max_logits > 0 ? spec->max_logits : spec->max_rows;
    struct binder b = {.o = o, .c = &t->c, .ckpt = ckpt};
    enum status st;
    TRY_GO(st, shard_make(c, spec->tp, spec->tp_rank, spec->ep, &t->shard), fail);
    b.shard = t->shard;
    TRY_GO(st, bind_layers(t, &b), fail);
    TRY_GO(st, bind_ends(t, &b), fail);
    t->weight_bytes = b.bytes;
    TRY_GO(st, open_scratch(t), fail);
    *t_p = t;
    return ST_OK;
fail:
    target_close(t);
    return st;
}

void target_close(struct target *t)
{
    if (!t) return;
    struct ops *o = t->o;
    for (int i = 0; i < t->n_layers; i++) layer_close(o, &t->layer[i]);
    resid_unbind(o, &t->out);
    o->mat_free(o, &t->head);
    o->mem_free(o, &t->table);
    o->mem_free(o, &t->mem);
    mem_free(t->layer);
    mem_free(t->seq);
    mem_free(t->moe_order);
    mem_free(t->arg_val);
    mem_free(t);
}

int64_t target_weight_bytes(const struct target *t)
{
    return t->weight_bytes;
}

/* ---- forward -------------------------------------------------------------------------------------- */

static enum status check_batch(const struct target *t, const struct state *s, const struct batch *b,
                               const struct flow *f)
{
    int most = b->kind == BATCH_VERIFY ? t->spec.max_verify_rows : t->spec.max_rows;
    if (b->n_rows > most || b->n_rows > f->cap_rows)
        return ERR(ST_E_INTERNAL, "%s batch of %d rows: target takes %d, activations hold %d", batch_kind_name[b->kind],
                   b->n_rows, most, f->cap_rows);
    int bank = split_bank_rows(t->c.res_block, t->spec.layers.begin);
    if (!is_first(t) && f->n_bank != bank)
        return ERR(ST_E_INTERNAL, "hand-off into layer %d brings %d bank rows, must be %d", t->spec.layers.begin,
                   f->n_bank, bank);
    if (is_first(t) && !b->id) return ERR(ST_E_INTERNAL, "batch without token ids at the first layer");
    for (int i = 0; i < b->n_seq; i++) {
        const struct batch_seq *q = &b->seq[i];
        int64_t room = q->slot < s->layout.spec.n_slots ? (int64_t)s->n_pages[q->slot] * s->layout.spec.page : 0;
        if (q->pos0 + (int64_t)q->n_rows > room)
            return ERR(ST_E_INTERNAL, "sequence %d in slot %d: position %d is past its %lld tokens of pages", i,
                       q->slot, q->pos0 + q->n_rows - 1, (long long)room);
    }
    return ST_OK;
}

static struct run make_run(struct target *t, const struct state *s, const struct batch *b, const struct probe *probe)
{
    struct run r = {.o = t->o, .c = &t->c, .shard = &t->shard, .comm = &t->comm, .probe = probe, .state = s};
    r.kind = b->kind;
    r.t = b->n_rows;
    r.n_seq = b->n_seq;
    r.part = b->seq;
    r.seq = t->seq;
    r.kv = (enum ops_kv)s->layout.spec.kv;
    r.expanded = !t->spec.absorbed_prefill && (b->kind == BATCH_PREFILL || b->kind == BATCH_WARMUP);
    r.max_rows = t->spec.max_rows;
    r.moe_order = t->moe_order;
    r.scratch = t->scratch;
    for (int i = 0; i < b->n_seq; i++) {
        const struct batch_seq *q = &b->seq[i];
        t->seq[i] = (struct seq_rows){q->row0, q->n_rows, q->pos0, state_pages(s, q->slot), NULL};
    }
    return r;
}

/* Final norm of the wanted rows, one after the other; returns where they are and how many. With the tap of the last
 * layer all rows are mixed, else only the wanted ones; each row's bits are the same either way. */
static enum status output_rows(struct target *t, const struct run *r, const struct flow *f, const struct tap_sink *taps,
                               int tap_index, const float **y_p, int *n_p)
{
    struct ops *o = t->o;
    int h = t->c.hidden, n = 0, whole = tap_index >= 0 || r->probe;
    if (whole) {
        resid_read(r, f, &t->out, 0, r->t, t->bufs.mix, t->bufs.u);
        run_probe(r, "out_site", t->c.n_layers, t->bufs.mix, h, h);
        run_probe(r, "final_norm", t->c.n_layers, t->bufs.u, h, h);
        if (tap_index >= 0) TRY(taps->tap(taps->ctx, tap_index, t->bufs.mix, r->t));
    }
    for (int i = 0; i < r->n_seq;) {
        int want = r->part[i].want_logits, row0 = r->part[i].row0 + r->part[i].n_rows - want, end = row0 + want;
        for (i++; i < r->n_seq && r->part[i].want_logits == r->part[i].n_rows; i++)
            end += r->part[i].n_rows; /* rows that follow without a gap go along */
        if (end == row0) continue;
        float *dst = t->bufs.y + (int64_t)n * h;
        if (whole)
            o->copy(o, dst, t->bufs.u + (int64_t)row0 * h, (size_t)((int64_t)(end - row0) * h) * sizeof(float));
        else
            resid_read(r, f, &t->out, row0, end - row0, NULL, dst);
        n += end - row0;
    }
    *y_p = t->bufs.y;
    *n_p = n;
    return ST_OK;
}

/* index of the sink that wants the mixture at the entry of a layer, or -1; *next_p counts those passed */
static int tap_at(const struct tap_sink *taps, int layer, int *next_p)
{
    if (!taps || *next_p >= taps->n || taps->layer[*next_p] + 1 != layer) return -1;
    return taps->index[(*next_p)++];
}

static enum status run_layers(struct target *t, const struct run *r, struct flow *f, const struct tap_sink *taps)
{
    int next = 0, n = 0;
    for (int i = 0; i < t->n_layers; i++) {
        int tap = tap_at(taps, t->layer[i].index, &next);
        TRY(layer_forward(&t->layer[i], r, f, &t->bufs, taps, tap));
    }
    if (is_last(t)) {
        const float *y;
        int tap = tap_at(taps, t->c.n_layers, &next);
        TRY(output_rows(t, r, f, taps, tap, &y, &n));
        if (n > 0) TRY(target_head(t, y, n));
    }
    if (taps && next != taps->n)
        return ERR(ST_E_INTERNAL, "tap of layer %d does not belong to layers [%d, %d) or is out of order",
                   taps->layer[next], t->spec.layers.begin, t->spec.layers.end);
    return ST_OK;
}

enum status target_forward(struct target *t, struct state *s, const struct batch *b, struct flow *f,
                           const struct tap_sink *taps, const struct probe *probe)
{
    TRY(batch_check(b));
    t->n_logits = 0;
    if (b->kind == BATCH_IDLE) return ST_OK;
    TRY(check_batch(t, s, b, f));
    t->verify_rows = t->verify_seqs = 0;
    struct run r = make_run(t, s, b, probe);
    if (is_first(t)) {
        TRY(target_embed(t, b->id, b->n_rows, f->prefix));
        f->n_bank = 0;
        run_probe(&r, "embed", 0, f->prefix, t->c.hidden, t->c.hidden);
    }
    TRY(run_layers(t, &r, f, taps));
    if (b->kind == BATCH_VERIFY) {
        t->verify_rows = b->n_rows;
        t->verify_seqs = b->n_seq;
    }
    return ST_OK;
}

enum status target_commit(struct target *t, struct state *s, const struct batch *b, const int *n_commit)
{
    if (b->kind != BATCH_VERIFY || b->n_rows != t->verify_rows || b->n_seq != t->verify_seqs)
        return ERR(ST_E_INTERNAL,
                   "commit of a %s batch (%d rows, %d sequences): the records hold %d rows, %d sequences",
                   batch_kind_name[b->kind], b->n_rows, b->n_seq, t->verify_rows, t->verify_seqs);
    for (int i = 0; i < b->n_seq; i++)
        if (n_commit[i] < 1 || n_commit[i] > b->seq[i].n_rows)
            return ERR(ST_E_INTERNAL, "commit of sequence %d: %d rows, must be 1 to %d", i, n_commit[i],
                       b->seq[i].n_rows);
    for (int i = 0; i < b->n_seq; i++) t->seq[i] = (struct seq_rows){.row0 = b->seq[i].row0, .n_rows = n_commit[i]};
    for (int k = 0; k < t->n_layers; k++)
        if (t->layer[k].is_kda) kda_commit(&t->layer[k].kda, t->o, &t->c, s, b->seq, b->n_seq, t->seq);
    t->verify_rows = t->verify_seqs = 0; /* a second commit would replay the rows twice */
    return ST_OK;
}

/* ---- ends ----------------------------------------------------------------------------------------- */

enum status target_embed(struct target *t, const int32_t *id, int n, float *x)
{
    if (!is_first(t)) return ERR(ST_E_INTERNAL, "layers from %d on do not hold the embedding", t->spec.layers.begin);
    for (int i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= t->c.vocab)
            return ERR(ST_E_RANGE, "row %d: token id %d is outside the vocabulary of %d", i, id[i], t->c.vocab);
    t->o->embed(t->o, t->table.p, t->shard.vocab.begin, vocab_local(t), t->c.hidden, id, n, x);
    return t->comm.sum(t->comm.ctx, t->o, x, 0, 1, NULL, n, t->c.hidden);
}

enum status target_head(struct target *t, const float *y, int n)
{
    if (!is_last(t)) return ERR(ST_E_INTERNAL, "layers up to %d do not hold the head", t->spec.layers.end);
    if (n < 0 || n > t->max_logits)
        return ERR(ST_E_INTERNAL, "logits of %d rows: room for %d; raise max_logits", n, t->max_logits);
    t->o->linear(t->o, &t->head, y, t->c.hidden, n, t->logits, vocab_local(t));
    t->n_logits = n;
    return ST_OK;
}

const float *target_logits(const struct target *t, int *n_p)
{
    *n_p = t->n_logits;
    return t->logits;
}

static enum status argmax_of(struct target *t, const float *row, int n, int32_t *id)
{
    int v = vocab_local(t);
    t->o->argmax(t->o, row, v, n, v, t->arg_val, id);
    for (int i = 0; i < n; i++)
        if (id[i] >= 0) id[i] += t->shard.vocab.begin;
    TRY(t->comm.argmax(t->comm.ctx, t->arg_val, id, n));
    for (int i = 0; i < n; i++)
        if (isnan(t->arg_val[i])) id[i] = -1;
    return ST_OK;
}

enum status target_argmax_rows(struct target *t, int32_t *id)
{
    return t->n_logits ? argmax_of(t, t->logits, t->n_logits, id) : ST_OK;
}

enum status target_argmax_biased(struct target *t, int first, int n, const float *bias, int cols, int32_t *id)
{
    int v = vocab_local(t);
    if (cols != v) return ERR(ST_E_INTERNAL, "a bias of %d columns for logits of %d", cols, v);
    if (first < 0 || n < 1 || n > t->n_logits - first)
        return ERR(ST_E_INTERNAL, "rows [%d, %d) of %d rows of logits", first, first + n, t->n_logits);
    float *row = t->logits + (int64_t)first * v;
    t->o->add(t->o, row, bias, (int64_t)n * v);
    return argmax_of(t, row, n, id);
}

enum status target_argmax(struct target *t, int32_t *id)
{
    int n = t->n_logits;
    TRY(target_argmax_rows(t, id));
    for (int i = 0; i < n; i++)
        if (id[i] < 0)
            return ERR(ST_E_FAULT, "logits of row %d of %d are not numbers; the state or the weights are damaged", i, n);
    return ST_OK;
}

enum status target_gather_logits(struct target *t, float *y)
{
    return target_gather_rows(t, 0, t->n_logits, y);
}

enum status target_gather_rows(struct target *t, int first, int n, float *y)
{
    int v = vocab_local(t);
    if (first < 0 || n < 0 || n > t->n_logits - first)
        return ERR(ST_E_INTERNAL, "rows [%d, %d) of %d rows of logits", first, first + n, t->n_logits);
    return t->comm.gather_cols(t->comm.ctx, t->o, t->logits + (int64_t)first * v, n, v, y, 1);
}
