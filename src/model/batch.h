/* batch - a typed set of rows that goes through the model in one call.
 *
 * Only VERIFY carries verify fields; batch_check refuses anything else, because an ordinary warm-up batch
 * that carried verify metadata once broke a service start. Local. */
#ifndef PDFLASH_MODEL_BATCH_H
#define PDFLASH_MODEL_BATCH_H

#include <stdint.h>

#include "base/err.h"

enum batch_kind { BATCH_PREFILL, BATCH_DECODE, BATCH_VERIFY, BATCH_IDLE, BATCH_WARMUP };
extern const char *const batch_kind_name[];

struct batch_seq {
    int slot;            /* state slot */
    int row0, n_rows;    /* rows of this sequence in the batch */
    int pos0;            /* absolute position of its first row */
    int n_draft;         /* VERIFY: drafted tokens among the rows (n_rows - 1); else 0 */
    int want_logits;     /* last want_logits rows need logits (PREFILL: 0 or 1; DECODE, VERIFY: n_rows) */
};

struct batch {
    enum batch_kind kind;
    int n_rows, n_seq;
    struct batch_seq *seq;   /* [n_seq] */
    int32_t *id;             /* [n_rows] token ids, host; NULL on stages that do not embed */
};

/* batch_check - kind and fields agree: rows contiguous and complete, verify fields only in VERIFY, IDLE empty.
 * ST_E_INTERNAL names kind and field. */
enum status batch_check(const struct batch *b);

#endif
