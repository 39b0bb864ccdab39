/* scheduler - decides everything: who is admitted, which chunk runs, who starts, who is given up, who is freed.
 *
 * A pure state machine without MPI: events come in (a decode rank saw all words of a slot, or a FAIL; a request
 * finished), orders go out. It runs on the decode leader. Request life: QUEUED -> ADMITTED (staging slot granted,
 * chunks ordered) -> STARTED -> FINISHED -> FREED; see order.h for the ends that differ. Backpressure: nothing is ever
 * allocated in part; a request waits in the queue until a staging slot is free, and in its slot until a decode slot is
 * free. At most n_staging requests are between ADMIT and START, so the pipeline holds that many at once.
 * A request that fails or is given up in its slot is ABORTed; the slot is granted again only when every decode rank has
 * said that all sources are quiet. Nothing is tried twice within a run: the row says failed or aborted, and --resume
 * takes it up. A prompt longer than max_prompt is refused by itself.
 * In single mode there is no prefill group: a request goes from QUEUED to STARTED (the group prefills it on START).
 * A tick is one call of scheduler_tick; the start delay is counted in ticks from the one in which the last decode rank
 * saw its last DONE, to START. Local. */
#ifndef PDFLASH_PD_SCHEDULER_H
#define PDFLASH_PD_SCHEDULER_H

#include "pd/order.h"

struct scheduler_options {
    int n_requests;
    const int32_t *prompt_tokens; /* [n_requests], the caller's */
    const uint8_t *skip;          /* [n_requests]: 1 already committed (resume); NULL: none */
    int n_staging;                /* staging slots */
    int concurrency;              /* requests decoding at once */
    int chunk;                    /* tokens per chunk */
    int page;                     /* tokens per page: chunks end on page boundaries when chunk >= page */
    int decode_ranks;             /* READY reports that complete a slot */
    int max_prompt;               /* longest prompt the pools hold; longer ones are refused; 0: no limit */
    int hold;                     /* from this request on none is taken; 0: all are */
    int single;
};

struct scheduler; /* opaque */

struct scheduler_stats {
    int64_t ticks, orders;
    int64_t starts;
    int64_t start_delay_sum, start_delay_max; /* ticks from last DONE to START, waiting for a decode slot excluded */
    int64_t aborts, stale;                    /* ABORT orders; late or repeated reports, which change nothing */
    int finished, in_flight, queued;
    int free_slots;
};

enum status scheduler_open(const struct scheduler_options *o, struct scheduler **s_p);
void scheduler_close(struct scheduler *s);

/* What decode rank `rank` says about the life `generation` of a slot. A report of an earlier life, a second one and one
 * that an ABORT has overtaken change nothing; one that cannot be is ST_E_PROTOCOL.
 * scheduler_ready - it has all words, seen in tick `tick`. scheduler_failed - a source, or the rank itself, gives the
 * request up. scheduler_quiet - after ABORT: no source writes to its slot any more. */
enum status scheduler_ready(struct scheduler *s, int slot, uint32_t generation, int rank, int64_t tick);
enum status scheduler_failed(struct scheduler *s, int slot, uint32_t generation, int rank);
enum status scheduler_quiet(struct scheduler *s, int slot, uint32_t generation, int rank);
/* scheduler_abort - give a request up, whatever it does; nothing happens when it has ended already. */
enum status scheduler_abort(struct scheduler *s, int request, enum abort_reason reason);
/* scheduler_finished - a started request ended (any reason). */
enum status scheduler_finished(struct scheduler *s, int request);
/* scheduler_drain - stop admitting; requests in flight end normally (time limit near). */
void scheduler_drain(struct scheduler *s);

/* scheduler_tick - orders that became possible, at most max; *n_p of them. Call again in the same tick while
 * *n_p == max. STOP is the last order, given once when nothing is left. */
enum status scheduler_tick(struct scheduler *s, struct order *o, int max, int *n_p);
int scheduler_done(const struct scheduler *s);
struct scheduler_stats scheduler_stats(const struct scheduler *s);
/* scheduler_table - the state of every unfinished request to stderr (watchdog). */
void scheduler_table(const struct scheduler *s);

#endif
