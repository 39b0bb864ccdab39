/* order - entries of the one ordered log that the scheduler writes and every rank applies.
 *
 * Orders are numbered from 1; a rank applies each exactly once, strictly by number (order_next). The log is the only
 * way a rank learns what to do, so all ranks build the same batches in the same sequence whatever their speed.
 * Source: pd-systems 3.4. Local. */
#ifndef PDFLASH_PD_ORDER_H
#define PDFLASH_PD_ORDER_H

#include <stdint.h>

#include "base/err.h"

enum order_kind {
    ORDER_ADMIT, /* prefill: state for the request; decode: grant the staging slot to all sources */
    ORDER_CHUNK, /* prefill: run positions [pos0, pos0 + n), then send what became final; final: last chunk */
    ORDER_START, /* decode: unpack the slot and join the batch; prefill: the state has arrived, release it */
    ORDER_FREE,  /* decode: release pages and state slot of a finished request */
    ORDER_STOP,  /* no order follows; leave the loop */
    ORDER_N
};
extern const char *const order_name[ORDER_N];

struct order {
    int64_t seq;
    int32_t kind;
    int32_t request;     /* index into the run's prompts */
    int32_t slot;        /* staging slot */
    uint32_t generation; /* of the slot */
    int32_t pos0, n;     /* CHUNK: positions */
    int32_t final;       /* CHUNK: last of the prompt */
    int32_t reserved;
};

struct order_log { /* the receiving end */
    int64_t applied; /* number of the last order applied */
    uint64_t hash;   /* chained over everything applied: equal on every rank at the end */
};
/* order_next - accept o as the next order: ST_E_INTERNAL when its number is not applied + 1. */
enum status order_next(struct order_log *l, const struct order *o);

#endif
