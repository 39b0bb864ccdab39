#include "pd/wait.h"

#include <sched.h>
#include <time.h>

#include "pd/world.h"

enum { POLLS = 32, YIELDS = 96 }; /* polls before the first yield, yields before the first sleep */
static const double sleep_min = 20e-6, sleep_max = 1e-3; /* seconds */

/* the one watchdog of the process */
static struct {
    double seconds;
    void (*report)(void *);
    void *ctx;
} limit;

void wait_limit(double seconds, void (*report)(void *), void *ctx)
{
    limit.seconds = seconds;
    limit.report = report;
    limit.ctx = ctx;
}

void wait_reset(struct waiter *w)
{
    w->n = 0;
    w->since = 0;
}

enum status wait_feed(double since)
{
    double waited = MPI_Wtime() - since;
    if (limit.seconds <= 0 || waited <= limit.seconds) return ST_OK;
    if (limit.report) limit.report(limit.ctx);
    return ERR(ST_E_WATCHDOG,
               "no progress for %.1f s; the limit is %.1f s (--watchdog); see the table above for what is missing", waited,
               limit.seconds);
}

/* A receive that never matches. Testing it runs MPI's whole progress engine, where a probe may look at messages only:
 * with pml/ucx 99 probes of 100 do, and windows of osc/ucx starve. */
static MPI_Request never = MPI_REQUEST_NULL;
enum { TAG_NEVER = 31415 };

enum status wait_progress(void)
{
    int flag;
    if (never == MPI_REQUEST_NULL)
        TRY(mpi_check(MPI_Irecv(NULL, 0, MPI_BYTE, 0, TAG_NEVER, MPI_COMM_SELF, &never), "MPI_Irecv"));
    return mpi_check(MPI_Test(&never, &flag, MPI_STATUS_IGNORE), "MPI_Test");
}

void wait_stop(void)
{
    if (never == MPI_REQUEST_NULL) return;
    MPI_Cancel(&never);
    MPI_Wait(&never, MPI_STATUS_IGNORE);
}

/* A sleep in proportion to the wait costs little delay where answers are quick and little processor where they are not. */
static enum status leave_processor(struct waiter *w)
{
    if (w->since == 0) w->since = MPI_Wtime();
    if (w->n++ < POLLS) return ST_OK;
    if (w->n <= POLLS + YIELDS) {
        sched_yield();
        return ST_OK;
    }
    double nap = (MPI_Wtime() - w->since) / 16;
    nap = nap < sleep_min ? sleep_min : nap > sleep_max ? sleep_max : nap;
    struct timespec t = {0, (long)(nap * 1e9)};
    nanosleep(&t, NULL);
    return wait_feed(w->since);
}

enum status wait_pause(struct waiter *w)
{
    TRY(wait_progress());
    return leave_processor(w);
}

enum status wait_all(MPI_Request *req, int n, enum status (*idle)(void *), void *ctx)
{
    struct waiter w = {0, 0};
    for (;;) {
        int done = 0;
        TRY(mpi_check(MPI_Testall(n, req, &done, MPI_STATUSES_IGNORE), "MPI_Testall"));
        if (done) return ST_OK;
        if (idle) TRY(idle(ctx));
        TRY(leave_processor(&w));
    }
}
