/* Drafts that are drawn from the draft's distribution instead of being its argmax. Rank 0 of the group draws from whole
 * rows and keeps them, because acceptance needs the very distribution that a draft came from; the others are told. */
#include <string.h>

#include "model/draft_weights.h"

enum status draft_drawn_open(struct draft *d)
{
    struct drawn *w = &d->drawn;
    size_t seqs = (size_t)d->spec.max_seqs, rows = seqs * (size_t)(draft_verify_rows(&d->c) - 1);
    if (!d->spec.draws) return ST_OK;
    if (rows > (size_t)d->spec.max_rows) rows = (size_t)d->spec.max_rows; /* no call has more */
    if (seqs > (size_t)d->spec.max_rows) seqs = (size_t)d->spec.max_rows;
    w->id = mem_alloc(rows, sizeof *w->id, "drawn drafts");
    if (!w->id) return ST_E_NOMEM;
    if (d->comm.rank > 0) return ST_OK;
    w->row = mem_alloc(rows * (size_t)d->c.vocab, sizeof *w->row, "logits of drafts");
    w->slot = mem_alloc(seqs * (size_t)d->c.vocab, sizeof *w->slot, "logits of a slot");
    return w->row && w->slot ? sampler_open(d->c.vocab, &w->sampler) : ST_E_NOMEM;
}

void draft_drawn_close(struct draft *d)
{
    sampler_close(d->drawn.sampler);
    mem_free(d->drawn.row);
    mem_free(d->drawn.slot);
    mem_free(d->drawn.id);
}

static float *row_of(const struct draft *d, int i, int slot)
{
    const struct drawn *w = &d->drawn;
    return w->row ? w->row + ((int64_t)i * w->n + slot) * d->c.vocab : NULL;
}

const float *draft_drawn_from(const struct draft *d, int i)
{
    return row_of(d, i, 0);
}

static int draws(const struct draft_draw *draw, int i)
{
    return draw && draw[i].how && sampling_draws(draw[i].how);
}

/* rank 0: rows are there; -1 where one is not made of numbers */
static void draw_ids(struct draft *d, const struct draft_seq *seq, const struct draft_draw *draw, int n_seq, int slot0,
                     int n, const int32_t *id)
{
    struct drawn *w = &d->drawn;
    for (int i = 0; i < n_seq * n; i++) {
        int q = i / n, slot = slot0 + i % n;
        w->id[i] = id[i];
        if (!draws(draw, q) || id[i] < 0) continue;
        w->id[i] = sampling_draft(w->sampler, draw[q].how, row_of(d, q, slot), draw[q].question, seq[q].pos + 1 + slot);
    }
}

/* The rows of all sequences, in one meeting: those of greedy ones come along. They are kept side by side by sequence. */
static enum status gather(struct draft *d, struct target *t, int n_seq, int slot0, int n, int row0)
{
    struct drawn *w = &d->drawn;
    if (n == w->n) return target_gather_rows(t, row0, n_seq * n, w->row);
    if (n != 1) return ERR(ST_E_INTERNAL, "draft: %d of %d slots are drawn; one or all of them can be", n, w->n);
    TRY(target_gather_rows(t, row0, n_seq, w->slot));
    for (int i = 0; i < n_seq && w->row; i++)
        memcpy(row_of(d, i, slot0), w->slot + (int64_t)i * d->c.vocab, (size_t)d->c.vocab * sizeof *w->row);
    return ST_OK;
}

enum status draft_drawn(struct draft *d, struct target *t, const struct draft_seq *seq, const struct draft_draw *draw,
                        int n_seq, int slot0, int n, int row0, int32_t *id)
{
    struct drawn *w = &d->drawn;
    int any = 0;
    for (int i = 0; i < n_seq; i++) any += draws(draw, i);
    if (!any) return ST_OK;
    if (!d->spec.draws) return ERR(ST_E_INTERNAL, "draft: drafts are to be drawn, and it was opened without room for that");
    TRY(gather(d, t, n_seq, slot0, n, row0));
    if (d->comm.rank == 0) draw_ids(d, seq, draw, n_seq, slot0, n, id);
    TRY(d->comm.bcast(d->comm.ctx, w->id, (size_t)(n_seq * n) * sizeof *w->id));
    for (int i = 0; i < n_seq * n; i++) id[i] = w->id[i];
    return ST_OK;
}
