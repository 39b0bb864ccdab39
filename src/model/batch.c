#include "model/batch.h"

#include <stddef.h>

const char *const batch_kind_name[] = {"prefill", "decode", "verify", "idle", "warmup"};

static enum status refuse(const struct batch *b, int i, const char *field, int found, int want)
{
    return ERR(ST_E_INTERNAL, "%s batch, sequence %d: %s is %d, must be %d", batch_kind_name[b->kind], i, field, found,
               want);
}

/* The rows of sequence i follow those of sequence i-1, at positions that exist. */
static enum status check_rows(const struct batch *b, int i, int row0)
{
    const struct batch_seq *q = &b->seq[i];
    const char *kind = batch_kind_name[b->kind];
    if (q->row0 != row0) return refuse(b, i, "row0", q->row0, row0);
    if (q->n_rows < 1 || q->n_rows > b->n_rows - row0)
        return ERR(ST_E_INTERNAL, "%s batch, sequence %d: n_rows is %d, must be 1 to %d", kind, i, q->n_rows,
                   b->n_rows - row0);
    if (q->slot < 0)
        return ERR(ST_E_INTERNAL, "%s batch, sequence %d: slot is %d, must be a state slot", kind, i, q->slot);
    if (q->pos0 < 0 || q->pos0 > INT32_MAX - q->n_rows)
        return ERR(ST_E_INTERNAL, "%s batch, sequence %d: pos0 is %d, rows %d would leave the positions", kind, i,
                   q->pos0, q->n_rows);
    for (int k = 0; k < i; k++)
        if (b->seq[k].slot == q->slot)
            return ERR(ST_E_INTERNAL, "%s batch: sequences %d and %d share slot %d", kind, k, i, q->slot);
    return ST_OK;
}

/* Verify fields in VERIFY, logits where the kind has them, nothing else. */
static enum status check_fields(const struct batch *b, int i)
{
    const struct batch_seq *q = &b->seq[i];
    int drafts = b->kind == BATCH_VERIFY ? q->n_rows - 1 : 0;
    if (q->n_draft != drafts) return refuse(b, i, "n_draft", q->n_draft, drafts);
    if (b->kind == BATCH_DECODE || b->kind == BATCH_VERIFY) {
        if (q->want_logits != q->n_rows) return refuse(b, i, "want_logits", q->want_logits, q->n_rows);
    } else if (q->want_logits != 0 && q->want_logits != 1) {
        return ERR(ST_E_INTERNAL, "%s batch, sequence %d: want_logits is %d, must be 0 or 1", batch_kind_name[b->kind],
                   i, q->want_logits);
    }
    return ST_OK;
}

enum status batch_check(const struct batch *b)
{
    if ((int)b->kind < 0 || b->kind > BATCH_WARMUP)
        return ERR(ST_E_INTERNAL, "batch: kind %d is unknown", (int)b->kind);
    if (b->kind == BATCH_IDLE) {
        if (b->n_seq != 0 || b->n_rows != 0)
            return ERR(ST_E_INTERNAL, "idle batch: n_seq %d and n_rows %d, both must be 0", b->n_seq, b->n_rows);
        return ST_OK;
    }
    const char *kind = batch_kind_name[b->kind];
    if (b->n_seq < 1 || b->n_rows < 1 || !b->seq)
        return ERR(ST_E_INTERNAL, "%s batch: n_seq %d and n_rows %d, both must be at least 1; nothing to do is idle",
                   kind, b->n_seq, b->n_rows);
    int row0 = 0;
    for (int i = 0; i < b->n_seq; i++) {
        TRY(check_rows(b, i, row0));
        TRY(check_fields(b, i));
        row0 += b->seq[i].n_rows;
    }
    if (row0 != b->n_rows)
        return ERR(ST_E_INTERNAL, "%s batch: the sequences cover %d rows, n_rows is %d", kind, row0, b->n_rows);
    return ST_OK;
}
