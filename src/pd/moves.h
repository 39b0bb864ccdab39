/* moves - when this rank's device computed chunks and packed their state, and when the host put it on its way, by the
 * device's own events: what shows that the three overlap.
 *
 * Bounded: the first MOVES_MAX are kept. Nothing is recorded where the backend's moves have no times (the CPU).
 * Times are seconds of CLOCK_MONOTONIC. Local. */
#ifndef PDFLASH_PD_MOVES_H
#define PDFLASH_PD_MOVES_H

#include "ops/ops.h"

enum { MOVES_MAX = 1 << 14 };
enum move_kind { MOVE_COMPUTE, MOVE_PACK, MOVE_PUT, MOVE_KIND_N };

struct move {
    enum move_kind kind;
    int request, pos;        /* pos: first row of a chunk */
    int64_t bytes;           /* of a pack or put */
    uint64_t fence[2];       /* of a chunk whose times are not known yet */
    double begin_s, end_s;   /* NaN: not known */
};

struct moves {
    struct ops *o;
    struct move *move;       /* [MOVES_MAX] */
    int n, first_open;       /* chunks from first_open on may have no times yet */
};

struct moves_sum { /* seconds; inside: of that, while a chunk computed */
    int n[MOVE_KIND_N];
    int64_t bytes[MOVE_KIND_N];
    double s[MOVE_KIND_N], inside_s[MOVE_KIND_N];
};

/* moves_open - ST_E_NOMEM. */
enum status moves_open(struct ops *o, struct moves *m_p);
void moves_close(struct moves *m);
double moves_now(void);
/* moves_chunk - a chunk was given to the backend between two of its fences. */
void moves_chunk(struct moves *m, int request, int pos, const uint64_t fence[2]);
/* moves_add - a pack or put from s[0] to s[1]; NaN: nothing is recorded. m NULL: nothing. */
void moves_add(struct moves *m, enum move_kind kind, int request, int64_t bytes, const double s[2]);
/* moves_sum - a chunk that never ended counts for nothing. moves_report - one line of it at level info, and every interval
 * in the order of their beginnings at level debug; nothing when nothing was recorded. */
struct moves_sum moves_sum(struct moves *m);
void moves_report(struct moves *m);

#endif
