/* spans - when this rank was at work, and on what: a bounded record, for the Gantt chart of a run.
 *
 * One span is one stretch of work as the role loop measures it for rank_stats (the same two clock readings): nothing is
 * derived. The record holds SPANS_MAX spans however long the run is: when it is full, neighbours of one kind that lie
 * within width_s together become one span, which knows how many it stands for and how long they were busy, and width_s
 * doubles until half of the room is free. So no work is lost, only resolution: at worst it is some hundredth of the run
 * at its end. The token loop allocates nothing.
 * Times are world_now of the rank. Gaps between spans are idle or unmeasured time. */
#ifndef PDFLASH_PD_SPANS_H
#define PDFLASH_PD_SPANS_H

#include <stddef.h>

#include "pd/world.h"

enum span_kind {
    SPAN_PREFILL, /* a chunk through this stage's layers, its TP sums included */
    SPAN_RECEIVE, /* waiting for the hand-off of the stage before, for a chunk that was ordered */
    SPAN_SEND,    /* packing and putting state right after a chunk */
    SPAN_START,   /* decode: taking the state of a request out of its slot */
    SPAN_DECODE,  /* a round of speculation for all running requests */
    SPAN_KIND_N
};
enum { SPANS_MAX = 1024 };

struct span { /* plain numbers: goes over MPI as bytes */
    int32_t rank; /* in the world; set by spans_gather */
    int32_t kind;
    int32_t request; /* -1: several */
    int32_t count;   /* stretches of work in it */
    double begin_s, end_s;
    double busy_s;   /* <= end_s - begin_s */
};
struct spans {
    struct span *span; /* [n] of one kind in order of time */
    int n;
    double width_s;
};

/* spans_open - room for SPANS_MAX. ST_E_NOMEM. Local. */
enum status spans_open(struct spans *s);
void spans_close(struct spans *s); /* a cleared struct is legal */
/* spans_add - one stretch of work; s NULL: nothing. begin_s of a kind never decreases. Local. */
void spans_add(struct spans *s, enum span_kind kind, int request, double begin_s, double end_s);
/* spans_gather - the spans of all ranks, by rank, on rank root of w->all; elsewhere *all_p is NULL and *n_p 0. The
 * caller releases *all_p (mem_free). ST_E_NOMEM, ST_E_MPI. Collective on all. */
enum status spans_gather(struct world *w, const struct spans *s, int root, struct span **all_p, size_t *n_p);

#endif
