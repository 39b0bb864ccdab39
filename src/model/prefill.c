#include "model/prefill.h"

#include "base/buf.h"

void prefill_stage_taps(struct prefill_stage *p, const struct config *c, const struct draft_config *d, int pp,
                        int stage)
{
    p->n_taps = d ? split_taps(d, c->n_layers, pp, stage, p->tap_index) : 0;
    for (int i = 0; i < p->n_taps; i++) p->tap_layer[i] = d->tap[p->tap_index[i]];
}

struct projection { /* what the sink needs: the taps of one chunk go straight into the accumulator */
    struct draft *d;
    struct flow *f;
};

static enum status project(void *ctx, int index, const float *h, int rows)
{
    struct projection *p = ctx;
    uint32_t bit = 1u << index;
    if (p->f->taps & bit) return ERR(ST_E_FAULT, "prefill: capture %d is in the projection of this chunk already", index);
    TRY(draft_project(p->d, index, h, rows, p->f->acc, p->f->taps != 0));
    p->f->taps |= bit;
    return ST_OK;
}

/* A draft that sees fewer captures than it was trained on still drafts, only badly: so nothing else would tell. */
static enum status check_taps(const struct draft *d, uint32_t taps)
{
    const struct draft_config *c = draft_config_of(d);
    for (int i = 0; i < c->n_taps; i++)
        if (!(taps >> i & 1))
            return ERR(ST_E_FAULT, "prefill: the projection at the last stage lacks capture %d, of layer %d: the stage that "
                       "holds it, or one behind it, dropped it", i, c->tap[i]);
    return ST_OK;
}

/* The full logits row of the last position. Only taken when somebody asks for it, so its memory is not kept. */
static enum status show_logits(struct prefill_stage *p, const struct batch_seq *q,
                               void (*logits)(void *ctx, int pos, const float *row, int vocab), void *ctx)
{
    struct buf row;
    TRY(buf_alloc(&row, (size_t)p->vocab * sizeof(float), "logits row"));
    enum status st = target_gather_logits(p->t, row.p);
    if (st == ST_OK && p->tp_rank == 0) logits(ctx, q->pos0 + q->n_rows - 1, row.p, p->vocab);
    buf_free(&row);
    return st;
}

enum status prefill_chunk(struct prefill_stage *p, int slot, int pos0, int n, const int32_t *ids, int final,
                          struct flow *f, int32_t *first_token_p, const struct probe *probe,
                          void (*logits)(void *ctx, int pos, const float *row, int vocab), void *logits_ctx)
{
    if (n < 1 || n > f->cap_rows)
        return ERR(ST_E_RANGE, "prefill: chunk of %d tokens; the flow holds %d rows", n, f->cap_rows);
    if (p->first && !ids) return ERR(ST_E_INTERNAL, "prefill: the first stage was given no token ids");
    int ends = final && p->last;
    struct batch_seq seq = {.slot = slot, .n_rows = n, .pos0 = pos0, .want_logits = ends};
    struct batch b = {.kind = BATCH_PREFILL, .n_rows = n, .n_seq = 1, .seq = &seq};
    if (p->first) b.id = (int32_t *)(uintptr_t)ids; /* a batch is only read here; the field is writable for decode */
    struct projection to = {p->d, f};
    struct tap_sink sink = {.ctx = &to, .tap = project, .n = p->d ? p->n_taps : 0};
    for (int i = 0; i < sink.n; i++) {
        sink.layer[i] = p->tap_layer[i];
        sink.index[i] = p->tap_index[i];
    }
    if (p->first) { /* nothing arrived: the range fills prefix and bank, and no tap was added yet */
        f->n_bank = 0;
        f->taps = 0;
    }
    TRY(target_forward(p->t, p->s, &b, f, &sink, probe));
    if (p->last && p->d) {
        TRY(check_taps(p->d, f->taps));
        TRY(draft_context(p->d, p->s, f->acc, &seq, 1));
    }
    TRY(ops_check(p->s->o));
    if (!ends) return ST_OK;
    if (logits) TRY(show_logits(p, &seq, logits, logits_ctx));
    int32_t token;
    TRY(target_argmax(p->t, &token));
    *first_token_p = token;
    return ST_OK;
}

enum status prefill_draw(struct prefill_stage *p, const struct sampling *how, int question, int n, int32_t *token_p)
{
    int32_t token = -1;
    if (!sampling_on(how)) return ST_OK;
    if (!p->last || !p->comm) return ERR(ST_E_INTERNAL, "prefill: first tokens are not drawn on this stage");
    TRY(target_gather_logits(p->t, p->row));
    if (p->tp_rank == 0) token = sampling_token(p->sampler, how, p->row, question, n);
    TRY(p->comm->bcast(p->comm->ctx, &token, sizeof token));
    if (token < 0)
        return ERR(ST_E_FAULT, "request %d: logits of the prompt's end are no distribution; the state or the weights are damaged",
                   question);
    *token_p = token;
    return ST_OK;
}
