/* decode_impl - what the parts of the decode role share; private to decode_*.c.
 *
 * decode_role.c opens, turns and closes; decode_orders.c applies orders; decode_fault.c ends requests that do not come
 * to their own end: failures agreed by all decode ranks, aborts, injected faults. */
#ifndef PDFLASH_PD_DECODE_IMPL_H
#define PDFLASH_PD_DECODE_IMPL_H

#include "pd/control.h"
#include "pd/engine.h"
#include "pd/scheduler.h"

enum { REASON_BYTES = 256 };

struct active { /* a request that decodes */
    struct spec_seq q;
    int used;             /* from START to FREE */
    int running;          /* in the batch */
    struct run_finished f;
    char why[REASON_BYTES]; /* it failed */
};

enum waiting { WAIT_NOTHING, WAIT_WORDS, WAIT_QUIET };
struct grant { /* a staging slot as this rank sees it */
    int request;
    enum waiting waiting;
    uint32_t generation;
    char why[REASON_BYTES]; /* leader: what the first report of a failure said */
};

struct decoder {
    struct world *w;
    const struct run_config *r;
    const struct run_sink *sink;
    struct engine e;
    struct control *control;
    struct transfer *transfer; /* NULL in single mode */
    struct scheduler *sched;   /* leader only */
    struct spec *spec;
    struct flow flow;          /* single mode's prefill */
    struct active *active;     /* [n_active] */
    struct spec_seq **batch;   /* [n_active] scratch */
    int n_active;
    struct grant *grant;       /* [staging_slots] */
    double *admit_s;           /* [prompts.n] leader */
    double ordered_s;          /* leader: when the orders of this turn were made */
    int64_t *abort_at;         /* [prompts.n] leader, --inject abort: tick; 0: none */
    struct order_log log;
    struct rank_stats *st;
    int leader, stop, logits_request;
    int n_todo;
    enum status progressed;    /* what progress_meanwhile met */
    uint64_t seen;             /* leader: fingerprint of the words at the last look */
    int64_t turns;             /* begun; the same number on all decode ranks in the same turn */
    int64_t tokens;            /* output of requests that ended */
    double prefill_work_s;     /* leader: of all stages together, as of the last prompt that arrived */
    double order_wait_s;       /* in collectives of share_orders: no part of any phase */
    int finished;
    /* buffers of collectives outlive a function that gives up on them */
    int32_t vote, worst;
    char text[REASON_BYTES];
};

/* ---- decode_orders.c ---- */
enum status decode_apply(struct decoder *p, const struct order *o);
/* decode_find - the request between START and FREE; NULL. */
struct active *decode_find(struct decoder *p, int request);

/* ---- decode_fault.c ---- */
/* decode_agree - mine is ST_OK or ST_E_FAULT; *failed_p: 1 when any decode rank has a fault, and why: its message.
 * Collective on tp. */
enum status decode_agree(struct decoder *p, enum status mine, int *failed_p, char why[REASON_BYTES]);
/* decode_lost - a failure of a slot as a report tells it: leader only. */
enum status decode_lost(struct decoder *p, const struct control_report *r);
/* decode_fail_slot - this rank found that the slot's request cannot start: tell the leader. */
enum status decode_fail_slot(struct decoder *p, int slot, int source);
/* decode_abort - apply an ABORT order. decode_drop - apply the FREE of an aborted slot. */
enum status decode_abort(struct decoder *p, const struct order *o);
enum status decode_drop(struct decoder *p, const struct order *o);
/* decode_inject_open, decode_inject_turn - --inject abort and fail: leader asks the scheduler; a failing request leaves
 * the batch on all ranks alike. */
enum status decode_inject_open(struct decoder *p);
void decode_inject_admitted(struct decoder *p, int request);
enum status decode_inject_turn(struct decoder *p);

#endif
