#include "pd/nccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "pd/guard.h"
#include "pd/wait.h"
#include "pd/world.h"

/* ---- NCCL's binary interface, as far as it is used; unchanged since 2.14 -------------------------------------- */

enum { RESULT_OK = 0, RESULT_IN_PROGRESS = 7, TYPE_FLOAT32 = 7, TYPE_BFLOAT16 = 9, OP_SUM = 0, OLDEST = 21400 };

struct unique_id {
    char bytes[128];
};
struct init_config { /* the form of 2.14, which later versions fill up with their defaults */
    size_t size;
    unsigned magic, version;
    int blocking;
};
typedef void *handle;

struct calls {
    int (*version)(int *v);
    int (*id)(struct unique_id *id);
    int (*init)(handle *h, int n, struct unique_id id, int rank, struct init_config *c);
    int (*finalize)(handle h);
    int (*destroy)(handle h);
    int (*abort)(handle h);
    int (*state)(handle h, int *state);
    const char *(*text)(int result);
    const char *(*last)(handle h);
    int (*begin)(void);
    int (*end)(void);
    int (*send)(const void *p, size_t n, int type, int peer, handle h, void *queue);
    int (*recv)(void *p, size_t n, int type, int peer, handle h, void *queue);
    int (*all_gather)(const void *p, void *out, size_t n, int type, handle h, void *queue);
    int (*bcast)(const void *p, void *out, size_t n, int type, int root, handle h, void *queue);
    int (*all_reduce)(const void *p, void *out, size_t n, int type, int op, handle h, void *queue);
};

static const struct {
    const char *symbol;
    size_t at;
} symbols[] = {
    {"ncclGetVersion", offsetof(struct calls, version)},
    {"ncclGetUniqueId", offsetof(struct calls, id)},
    {"ncclCommInitRankConfig", offsetof(struct calls, init)},
    {"ncclCommFinalize", offsetof(struct calls, finalize)},
    {"ncclCommDestroy", offsetof(struct calls, destroy)},
    {"ncclCommAbort", offsetof(struct calls, abort)},
    {"ncclCommGetAsyncError", offsetof(struct calls, state)},
    {"ncclGetErrorString", offsetof(struct calls, text)},
    {"ncclGetLastError", offsetof(struct calls, last)},
    {"ncclGroupStart", offsetof(struct calls, begin)},
    {"ncclGroupEnd", offsetof(struct calls, end)},
    {"ncclSend", offsetof(struct calls, send)},
    {"ncclRecv", offsetof(struct calls, recv)},
    {"ncclAllGather", offsetof(struct calls, all_gather)},
    {"ncclBroadcast", offsetof(struct calls, bcast)},
    {"ncclAllReduce", offsetof(struct calls, all_reduce)},
};
enum { N_SYMBOLS = sizeof symbols / sizeof symbols[0] };

struct outcome {      /* of a rank's part of nccl_join; buffers of messages outlive a wait that is given up */
    int mine;         /* 0: not known, 1: joined, -1: failed */
    int *of;          /* [size] the others' */
    MPI_Request *req; /* [2 * size] */
};

struct nccl_comm {
    struct nccl *n;
    handle h; /* NULL: aborted */
    int rank, size;
    int rc; /* first result of the running group that is neither success nor in progress */
    struct outcome out;
    struct nccl_comm *next;
};

struct nccl {
    void *library;
    const char *file;
    int version;
    struct calls call;
    int (*stand_in)(unsigned char uuid[16]);
    struct nccl_comm *first;
    enum status failed; /* why communicators were given up */
    double since;       /* of a wait of the backend */
};

/* ---- the library ------------------------------------------------------------------------------------------ */

static enum status bind(struct nccl *n, char *why)
{
    for (int i = 0; i < N_SYMBOLS; i++) {
        void *p = dlsym(n->library, symbols[i].symbol);
        if (!p) {
            snprintf(why, NCCL_WHY, "%s has no %s; NCCL 2.14 or newer is needed", n->file, symbols[i].symbol);
            return ST_E_CONFIG;
        }
        memcpy((char *)&n->call + symbols[i].at, &p, sizeof p);
    }
    void *own = dlsym(n->library, NCCL_STAND_IN);
    memcpy(&n->stand_in, &own, sizeof own);
    if (n->call.version(&n->version) == RESULT_OK && n->version >= OLDEST) return ST_OK;
    snprintf(why, NCCL_WHY, "%s is NCCL version %d; %d (2.14) or newer is needed", n->file, n->version, OLDEST);
    return ST_E_CONFIG;
}

enum status nccl_load(struct nccl **n_p, char why[NCCL_WHY])
{
    struct nccl *n = mem_alloc(1, sizeof *n, "NCCL");
    snprintf(why, NCCL_WHY, "out of memory");
    if (!n) return ST_E_NOMEM;
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0); /* before the library looks */
    n->file = getenv("PDFLASH_NCCL");
    if (!n->file || !*n->file) n->file = "libnccl.so.2";
    n->library = dlopen(n->file, RTLD_NOW | RTLD_LOCAL);
    if (!n->library) snprintf(why, NCCL_WHY, "%s", dlerror());
    enum status st = n->library ? bind(n, why) : ST_E_CONFIG;
    if (st == ST_OK) *n_p = n;
    else mem_free(n);
    return st;
}

void nccl_unload(struct nccl *n)
{
    if (!n) return;
    nccl_abort_all(n);
    mem_free(n); /* the library stays: its threads may not be gone */
}

int nccl_version(const struct nccl *n)
{
    return n->version;
}

const char *nccl_file(const struct nccl *n)
{
    return n->file;
}

int nccl_stand_in(const struct nccl *n, unsigned char uuid[16])
{
    return n->stand_in ? n->stand_in(uuid) : 0;
}

static const double abort_s = 15; /* seconds that giving up may take */

/* ---- failure ------------------------------------------------------------------------------------------------ */

void nccl_abort_all(struct nccl *n)
{
    for (struct nccl_comm *c = n ? n->first : NULL; c; c = c->next) {
        if (c->h) (void)n->call.abort(c->h);
        c->h = NULL;
    }
}

static enum status give_up(struct nccl *n, enum status st)
{
    if (n->failed == ST_OK) n->failed = st;
    guard_start("giving up NCCL's communicators", abort_s); /* freeing memory waits for a device that may hang */
    nccl_abort_all(n);
    guard_end();
    return st;
}

static void say_why(const struct nccl_comm *c, int rc, char why[NCCL_WHY])
{
    const char *last = c->n->call.last(c->h);
    snprintf(why, NCCL_WHY, "NCCL: %s%s%s", c->n->call.text(rc), last && *last ? ": " : "", last ? last : "");
}

static enum status broken(struct nccl_comm *c, int rc)
{
    char why[NCCL_WHY];
    say_why(c, rc, why);
    return give_up(c->n, ERR(ST_E_DEVICE, "rank %d of %d of a group: %s", c->rank, c->size, why));
}

/* ST_OK when NCCL has taken all calls so far */
static enum status settle(struct nccl_comm *c, enum status (*idle)(void *), void *ctx)
{
    struct waiter w = {0};
    for (;;) {
        int state = RESULT_OK, rc = c->h ? c->n->call.state(c->h, &state) : RESULT_OK;
        if (!c->h) return c->n->failed ? c->n->failed : ERR(ST_E_DEVICE, "this communicator of NCCL was given up");
        if (rc != RESULT_OK) return broken(c, rc);
        if (state == RESULT_OK) return ST_OK;
        if (state != RESULT_IN_PROGRESS) return broken(c, state);
        if (idle) TRY(idle(ctx));
        enum status st = wait_pause(&w);
        if (st != ST_OK) return give_up(c->n, st);
    }
}

/* ---- join ----------------------------------------------------------------------------------------------------- */

enum { TAG_OUTCOME = 271 };

/* Each rank tells each other whether it joined, so that one that cannot is not waited for inside NCCL. */
static enum status tell_outcome(struct nccl_comm *c, MPI_Comm comm, int mine, int *n_req)
{
    c->out.mine = mine;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank)
            TRY(mpi_check(MPI_Isend(&c->out.mine, 1, MPI_INT, r, TAG_OUTCOME, comm, &c->out.req[(*n_req)++]),
                          "MPI_Isend"));
    return ST_OK;
}

static int somebody_failed(const struct nccl_comm *c)
{
    int failed = 0;
    for (int r = 0; r < c->size; r++) failed |= c->out.of[r] < 0;
    return failed;
}

static int own_outcome(struct nccl_comm *c, int rc, char *why)
{
    int state = rc;
    if (rc == RESULT_OK || rc == RESULT_IN_PROGRESS) rc = c->n->call.state(c->h, &state);
    if (rc == RESULT_OK && state == RESULT_OK) return 1;
    if (rc == RESULT_OK && state == RESULT_IN_PROGRESS) return 0;
    say_why(c, rc == RESULT_OK || rc == RESULT_IN_PROGRESS ? state : rc, why);
    return -1;
}

/* until the outcome of all ranks is known; the init call has begun with result rc */
static enum status await_all(struct nccl_comm *c, MPI_Comm comm, int rc, char *why)
{
    struct waiter w = {0};
    int n = 0;
    for (int r = 0; r < c->size; r++)
        if (r != c->rank)
            TRY(mpi_check(MPI_Irecv(&c->out.of[r], 1, MPI_INT, r, TAG_OUTCOME, comm, &c->out.req[n++]), "MPI_Irecv"));
    for (int done = 0;;) {
        if (!c->out.mine) {
            int mine = somebody_failed(c) ? -1 : own_outcome(c, rc, why);
            if (mine) TRY(tell_outcome(c, comm, mine, &n));
        }
        TRY(mpi_check(MPI_Testall(n, c->out.req, &done, MPI_STATUSES_IGNORE), "MPI_Testall"));
        if (done && c->out.mine) return ST_OK;
        TRY(wait_pause(&w));
    }
}

static enum status begin_join(struct nccl_comm *c, MPI_Comm comm, int *rc_p)
{
    struct {
        int rc;
        struct unique_id id;
    } first = {0};
    struct init_config how = {.size = sizeof how, .magic = 0xcafebeefu, .version = OLDEST, .blocking = 0};
    if (c->rank == 0) first.rc = c->n->call.id(&first.id);
    TRY(mpi_check(MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm), "MPI_Bcast"));
    *rc_p = first.rc ? first.rc : c->n->call.init(&c->h, c->size, first.id, c->rank, &how);
    return ST_OK;
}

static void forget(struct nccl_comm *c)
{
    struct nccl_comm **at = &c->n->first;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    mem_free(c->out.of);
    mem_free(c->out.req);
    mem_free(c);
}

/* the same reason on all ranks: that of the lowest that failed by itself */
static enum status share_why(struct nccl_comm *c, MPI_Comm comm, char *why)
{
    int mine = *why ? c->rank : INT_MAX, first;
    TRY(mpi_check(MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce"));
    if (first == INT_MAX) return ST_OK;
    return mpi_check(MPI_Bcast(why, NCCL_WHY, MPI_CHAR, first, comm), "MPI_Bcast");
}

enum status nccl_join(struct nccl *n, MPI_Comm comm, struct nccl_comm **c_p, char why[NCCL_WHY])
{
    int rank, size, rc = RESULT_OK;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    memset(why, 0, NCCL_WHY);
    struct nccl_comm *c = mem_alloc(1, sizeof *c, "NCCL communicator");
    if (!c) return ST_E_NOMEM;
    *c = (struct nccl_comm){.n = n, .rank = rank, .size = size, .next = n->first};
    n->first = c;
    c->out.of = mem_alloc((size_t)size, sizeof *c->out.of, "outcomes");
    c->out.req = mem_alloc(2 * (size_t)size, sizeof *c->out.req, "requests");
    enum status st = c->out.of && c->out.req ? begin_join(c, comm, &rc) : ST_E_NOMEM;
    if (st == ST_OK) st = await_all(c, comm, rc, why);
    if (st != ST_OK) { /* messages may still be on their way into c, which stays */
        return give_up(n, st);
    }
    if (c->out.mine > 0 && !somebody_failed(c)) {
        *c_p = c;
        return ST_OK;
    }
    if (c->h) (void)n->call.abort(c->h);
    st = share_why(c, comm, why);
    forget(c);
    return st == ST_OK ? ST_E_DEVICE : st;
}

void nccl_leave(struct nccl_comm *c)
{
    if (!c) return;
    int rc = c->h ? c->n->call.finalize(c->h) : RESULT_OK;
    if (c->h && (rc == RESULT_OK || rc == RESULT_IN_PROGRESS) && settle(c, NULL, NULL) == ST_OK && c->h)
        (void)c->n->call.destroy(c->h);
    else if (c->h) (void)c->n->call.abort(c->h);
    forget(c);
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

static void note(struct nccl_comm *c, int rc)
{
    if (c->rc == RESULT_OK && rc != RESULT_IN_PROGRESS) c->rc = rc;
}

void nccl_begin(struct nccl_comm *c)
{
    note(c, c->n->call.begin());
}

enum status nccl_end(struct nccl_comm *c, enum status (*idle)(void *), void *ctx)
{
    note(c, c->n->call.end());
    if (c->rc != RESULT_OK && c->h) return broken(c, c->rc);
    return settle(c, idle, ctx);
}

void nccl_send(struct nccl_comm *c, const float *p, int64_t n, int peer, void *queue)
{
    if (c->h) note(c, c->n->call.send(p, (size_t)n, TYPE_FLOAT32, peer, c->h, queue));
}

void nccl_recv(struct nccl_comm *c, float *p, int64_t n, int peer, void *queue)
{
    if (c->h) note(c, c->n->call.recv(p, (size_t)n, TYPE_FLOAT32, peer, c->h, queue));
}

void nccl_all_gather(struct nccl_comm *c, const float *p, float *out, int64_t n, void *queue)
{
    if (c->h) note(c, c->n->call.all_gather(p, out, (size_t)n, TYPE_FLOAT32, c->h, queue));
}

void nccl_bcast(struct nccl_comm *c, float *p, int64_t n, int root, void *queue)
{
    if (c->h) note(c, c->n->call.bcast(p, p, (size_t)n, TYPE_FLOAT32, root, c->h, queue));
}

void nccl_all_reduce(struct nccl_comm *c, void *p, int64_t n, int bf16, void *queue)
{
    if (c->h) note(c, c->n->call.all_reduce(p, p, (size_t)n, bf16 ? TYPE_BFLOAT16 : TYPE_FLOAT32, OP_SUM, c->h, queue));
}

/* ---- while the backend's queue runs ---------------------------------------------------------------------------- */

static enum status look(void *ctx, unsigned i)
{
    enum { EVERY = 64 };
    struct nccl *n = ctx;
    if (i == 0) n->since = MPI_Wtime();
    sched_yield();
    if (i % EVERY) return ST_OK;
    enum status st = wait_progress();
    for (struct nccl_comm *c = n->first; c && st == ST_OK; c = c->next) {
        int state = RESULT_OK, rc = c->h ? n->call.state(c->h, &state) : RESULT_OK;
        if (rc != RESULT_OK || (state != RESULT_OK && state != RESULT_IN_PROGRESS)) st = broken(c, rc ? rc : state);
    }
    if (st == ST_OK) st = wait_feed(n->since);
    return st == ST_OK ? ST_OK : give_up(n, st);
}

void nccl_watch(struct nccl *n, struct ops *o)
{
    o->guard = look;
    o->guard_ctx = n;
}
