/* order - entries of the one ordered log that the scheduler writes and every rank applies, and the receiving end.
 *
 * Orders are numbered from 1; a rank applies each exactly once, strictly by number. The log is the only way a rank
 * learns what to do, so all ranks build the same batches in the same sequence whatever their speed, and whatever
 * goes wrong with one request: a request that fails never changes who takes part in what.
 *
 * Life of a request:  ADMIT CHUNK.. START FREE          it decoded to its end
 *                     ADMIT CHUNK.. START ABORT FREE    given up while it decoded
 *                     ADMIT CHUNK.. ABORT FREE          given up before it started; FREE when all sources are quiet
 *                     ABORT (final)                     refused or given up in the queue: nothing was ever held
 *                     START FREE, START ABORT FREE      single mode
 * order_apply checks exactly this, on every rank, before the rank does anything. Source: pd-systems 3.4. Local. */
#ifndef PDFLASH_PD_ORDER_H
#define PDFLASH_PD_ORDER_H

#include <stdint.h>

#include "base/err.h"

enum order_kind {
    ORDER_ADMIT, /* prefill: state for the request; decode: grant the staging slot to all sources */
    ORDER_CHUNK, /* prefill: run positions [pos0, pos0 + n), then send what became final; final: last chunk */
    ORDER_START, /* decode: unpack the slot and join the batch; prefill: the state has arrived, release it */
    ORDER_ABORT, /* the request ends now, unfinished. slot >= 0: sources start no put any more and say QUIET.
                  * slot -1: it leaves the batch, or (final) held nothing and no FREE follows */
    ORDER_FREE,  /* decode: release pages and state slot of a finished request (slot -1). slot >= 0: nobody writes to
                  * the staging slot of an aborted request any more: prefill releases its state, decode the slot */
    ORDER_STOP,  /* no order follows; leave the loop */
    ORDER_N
};
extern const char *const order_name[ORDER_N];

enum abort_reason { ABORT_NONE, ABORT_ASKED, ABORT_FAILED, ABORT_REFUSED, ABORT_REASON_N };
extern const char *const abort_reason_name[ABORT_REASON_N];

struct order {
    int64_t seq;
    int32_t kind;
    int32_t request;     /* index into the run's prompts */
    int32_t slot;        /* staging slot; -1: none is concerned */
    uint32_t generation; /* of the slot */
    int32_t pos0, n;     /* CHUNK: positions */
    int32_t final;       /* CHUNK: last of the prompt; ABORT: nothing was held */
    int32_t reason;      /* ABORT: enum abort_reason */
};

struct order_log { /* the receiving end; counters are for reading */
    int rank;        /* of this process in the world, for messages */
    int64_t applied; /* number of the last order applied */
    uint64_t hash;   /* chained over everything applied: equal on every rank at the end */
    int ended;       /* requests that came to their end */
    int stopped, single;
    int n_requests, n_slots;
    const int32_t *tokens;     /* [n_requests], the caller's */
    uint8_t *phase;            /* [n_requests] */
    int32_t *covered;          /* [n_requests] tokens ordered as chunks */
    int32_t *slot_request;     /* [n_slots] -1: free */
    uint32_t *slot_generation; /* [n_slots] */
};
enum status order_log_open(struct order_log *l, int rank, const int32_t *tokens, int n_requests, int n_slots,
                           int single);
void order_log_close(struct order_log *l);
/* order_apply - accept o as the next order. ST_E_PROTOCOL names rank and numbers when it is not number applied + 1, or
 * does not fit the life of its request and slot; nothing is changed then. */
enum status order_apply(struct order_log *l, const struct order *o);

#endif
