/* wait - waiting that leaves the processor to others: many ranks share few cores on test machines.
 *
 * A waiter polls briefly, then yields, then sleeps a sixteenth of the time waited so far (20 us .. 1 ms), always
 * driving MPI progress, and feeds the watchdog: no progress for the watchdog's time ends the job with a report
 * (see watchdog.h). */
#ifndef PDFLASH_PD_WAIT_H
#define PDFLASH_PD_WAIT_H

#include <mpi.h>

#include "base/err.h"

struct waiter {
    unsigned n;      /* polls since the last progress */
    double since;    /* MPI_Wtime of the last progress, 0: not yet waiting */
};
/* wait_reset - progress was made. wait_pause - nothing to do: spin, yield or sleep; returns ST_E_WATCHDOG when the
 * limit passed (the report has been printed), else ST_OK. */
void wait_reset(struct waiter *w);
enum status wait_pause(struct waiter *w);
/* wait_feed - only the watchdog's part of wait_pause, for loops that sleep by other means: since is the MPI_Wtime of
 * the last progress. */
enum status wait_feed(double since);
/* wait_all - complete n requests politely; ST_E_MPI, ST_E_WATCHDOG. idle, if not NULL, is called between polls. */
enum status wait_all(MPI_Request *req, int n, enum status (*idle)(void *), void *ctx);
/* wait_progress - let MPI work once: messages, windows, everything. wait_stop - before MPI ends (world_stop). */
enum status wait_progress(void);
void wait_stop(void);
/* wait_limit - watchdog time in seconds (0: off) and the function that prints the state table. Per process. */
void wait_limit(double seconds, void (*report)(void *), void *ctx);

#endif
