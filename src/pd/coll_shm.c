/* Collectives through a segment that all ranks of the group map.
 *
 *   control | piece buffer 0 | piece buffer 1 | result 0 | result 1
 *
 * An exchange e uses the buffers e mod 2: each rank writes its piece, all meet, each reads what it needs. The next write
 * to the same buffer is two exchanges on, behind another meeting, so one meeting per exchange is enough; a sum in slices
 * has a second one between adding and reading.
 *
 * Meetings count: the n-th is over when size * n arrivals were counted (modulo 2^32); the last to arrive says so in one
 * word and wakes the sleepers, if any. Waiting: a few polls, some yields, then a futex with a time-out, after which MPI
 * gets its turn, because other ranks' puts and messages may need this one. */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pd/coll_impl.h"
#include "pd/wait.h"
#include "pd/world.h"

enum { POLLS_ALONE = 4000, POLLS_CROWDED = 8, YIELDS = 64, YIELDS_IDLE = 2, PROGRESS_EVERY = 64, NAP_NS = 1000000 };
static const double long_wait = 200e-6; /* seconds: after one, the next is expected to be long too, and yielding a waste */

struct control { /* shared; a cache line each */
    _Alignas(64) _Atomic uint32_t arrived;  /* arrivals so far */
    _Alignas(64) _Atomic uint32_t over;     /* meetings that are over */
    _Alignas(64) _Atomic uint32_t sleepers; /* ranks inside the futex call */
};
_Static_assert(sizeof(_Atomic uint32_t) == sizeof(uint32_t), "the futex word is a plain 32-bit word");

struct coll_shm {
    MPI_Win win;
    struct control *control;
    char *piece[2], *result[2];
    uint32_t meetings;
    int turn;  /* buffer of the running exchange */
    int polls;  /* before the first yield */
    int yields; /* before the first sleep */
};

static int is_over(struct control *k, uint32_t n)
{
    return (int32_t)(atomic_load_explicit(&k->over, memory_order_acquire) - n) >= 0;
}

static enum status sleep_until_over(struct control *k, uint32_t n)
{
    const struct timespec nap = {0, NAP_NS};
    double since = MPI_Wtime();
    while (!is_over(k, n)) {
        uint32_t seen = n - 1; /* the word's value until the meeting is over */
        atomic_fetch_add(&k->sleepers, 1);
        long rc = syscall(SYS_futex, (uint32_t *)&k->over, FUTEX_WAIT, seen, &nap, NULL, 0);
        int cause = errno;
        atomic_fetch_sub(&k->sleepers, 1);
        if (rc == 0 || cause != ETIMEDOUT) continue;
        TRY(wait_progress());
        TRY(wait_feed(since));
    }
    return ST_OK;
}

static enum status meet(struct coll *c)
{
    struct coll_shm *m = c->shm;
    struct control *k = m->control;
    uint32_t n = ++m->meetings;
    if (n % PROGRESS_EVERY == 0) TRY(wait_progress());
    if (atomic_fetch_add(&k->arrived, 1) + 1 == n * (uint32_t)c->size) {
        atomic_store(&k->over, n);
        if (atomic_load(&k->sleepers) > 0) syscall(SYS_futex, (uint32_t *)&k->over, FUTEX_WAKE, c->size, NULL, NULL, 0);
        return ST_OK;
    }
    for (int i = 0; i < m->polls; i++) {
        if (is_over(k, n)) return ST_OK;
        __builtin_ia32_pause();
    }
    double t = MPI_Wtime();
    enum status st = ST_OK;
    for (int i = 0; i < m->yields && !is_over(k, n); i++) sched_yield();
    if (!is_over(k, n)) st = sleep_until_over(k, n);
    t = MPI_Wtime() - t;
    m->yields = t > long_wait ? YIELDS_IDLE : YIELDS;
    c->waited += t;
    return st;
}

static void *shm_slot(struct coll *c, size_t bytes)
{
    struct coll_shm *m = c->shm;
    m->turn ^= 1;
    return m->piece[m->turn] + (size_t)c->rank * bytes;
}

static enum status shm_gather(struct coll *c, size_t bytes, int root_only, const void **all_p)
{
    (void)bytes;
    (void)root_only;
    TRY(meet(c));
    *all_p = c->shm->piece[c->shm->turn];
    return ST_OK;
}

static enum status shm_sum(struct coll *c, struct ops *o, int n_parts, const int *order, int64_t n, const float **sum_p)
{
    struct coll_shm *m = c->shm;
    float *result = (float *)m->result[m->turn];
    const float *all = (const float *)m->piece[m->turn];
    int64_t at, len;
    TRY(meet(c));
    coll_slice(n, c->size, c->rank, &at, &len);
    if (len > 0) o->tree_add(o, result + at, all + at, n, order, c->size * n_parts, len);
    TRY(meet(c));
    *sum_p = result;
    return ST_OK;
}

static enum status shm_bcast(struct coll *c, void *host, size_t bytes)
{
    struct coll_shm *m = c->shm;
    m->turn ^= 1;
    if (c->rank == 0) memcpy(m->piece[m->turn], host, bytes);
    TRY(meet(c));
    if (c->rank != 0) memcpy(host, m->piece[m->turn], bytes);
    return ST_OK;
}

static void shm_close(struct coll *c)
{
    if (!c->shm) return;
    if (c->shm->win != MPI_WIN_NULL) MPI_Win_free(&c->shm->win);
    mem_free(c->shm);
    c->shm = NULL;
}

static const struct coll_path shm_path = {.name = "shm", .close = shm_close, .slot = shm_slot, .gather = shm_gather,
                                          .sum = shm_sum, .bcast = shm_bcast};

/* ---- open ------------------------------------------------------------------------------------------------- */

static enum status everywhere(struct coll *c, int ok, int *all_p)
{
    return mpi_check(MPI_Allreduce(&ok, all_p, 1, MPI_INT, MPI_LAND, c->comm), "MPI_Allreduce");
}

static enum status one_host(struct coll *c, int *yes_p)
{
    MPI_Comm host;
    int n = 0;
    TRY(mpi_check(MPI_Comm_split_type(c->comm, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &host), "MPI_Comm_split_type"));
    MPI_Comm_size(host, &n);
    MPI_Comm_free(&host);
    return everywhere(c, n == c->size, yes_p);
}

static size_t lines(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static int polls(int ranks)
{
    cpu_set_t set;
    int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return cpus >= 2 * ranks ? POLLS_ALONE : POLLS_CROWDED;
}

/* Rank 0 owns the segment; every rank clears its own pieces, so that pages lie near their writer. */
static enum status map(struct coll *c, size_t piece, size_t result)
{
    struct coll_shm *m = c->shm;
    MPI_Aint bytes;
    int unit;
    char *p = NULL;
    TRY(mpi_check(MPI_Win_shared_query(m->win, 0, &bytes, &unit, &p), "MPI_Win_shared_query"));
    p += lines((uintptr_t)p % 4096) - (uintptr_t)p % 4096; /* MPI aligns to 8 bytes; mappings differ by whole pages only */
    m->control = (struct control *)p;
    m->piece[0] = p + lines(sizeof *m->control);
    m->piece[1] = m->piece[0] + piece;
    m->result[0] = m->piece[1] + piece;
    m->result[1] = m->result[0] + result;
    if (c->rank == 0) memset(p, 0, sizeof *m->control);
    for (int i = 0; i < 2; i++) memset(m->piece[i] + (size_t)c->rank * c->slot_bytes, 0, c->slot_bytes);
    m->polls = polls(c->size);
    m->yields = YIELDS;
    return mpi_check(MPI_Barrier(c->comm), "MPI_Barrier");
}

enum status coll_shm_open(struct coll *c, const char **why_p)
{
    int yes = 0;
    TRY(one_host(c, &yes));
    *why_p = "the group's ranks are on several hosts";
    if (!yes) return ST_OK;
    struct coll_shm *m = c->shm = mem_alloc(1, sizeof *m, "collectives by shared memory");
    if (!m) return ST_E_NOMEM;
    m->win = MPI_WIN_NULL;
    size_t piece = lines((size_t)c->size * c->slot_bytes), result = lines(c->slot_bytes);
    MPI_Aint bytes = c->rank == 0 ? (MPI_Aint)(4096 + lines(sizeof *m->control) + 2 * piece + 2 * result) : 0;
    void *own;
    int rc = MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, c->comm, &own, &m->win);
    if (rc != MPI_SUCCESS) m->win = MPI_WIN_NULL;
    TRY(everywhere(c, rc == MPI_SUCCESS, &yes));
    *why_p = "MPI_Win_allocate_shared is refused (osc component forced, or /dev/shm full)";
    if (!yes) {
        shm_close(c);
        return ST_OK;
    }
    c->path = &shm_path;
    TRY(mpi_check(MPI_Win_set_errhandler(m->win, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler"));
    return map(c, piece, result);
}
