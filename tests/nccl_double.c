/* nccl_double - a stand-in for libnccl.so.2, loaded in its place (PDFLASH_NCCL): the same calls over shared memory, so
 * that what pdflash does with NCCL runs without GPUs, in many processes of one host.
 *
 * It is as strict as NCCL is lenient: calls stand in groups; a message must be received with the length it was sent
 * with; nothing is taken before the communicator is complete; a rank that gives up makes the others fail. A group is
 * begun by ncclGroupEnd and goes on whenever ncclCommGetAsyncError asks, as with communicators that do not block: until
 * then it says ncclInProgress. Each pair of ranks has a ring of RING bytes in each direction, less than most messages.
 * Memory: the host's; pointers of tests/plain_ops.h; with a CUDA driver also the device's, copied through the host when
 * the stream has come so far (one GPU may serve many ranks: it names a device of its own for each).
 * Environment: NCCL_DOUBLE_GPUS=N: N devices, rank r of the world has r mod N. NCCL_DOUBLE_FAIL=init:R: rank R of every
 * communicator cannot join; group:R:K: its K-th group breaks. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM = 2, ARGUMENT = 4, USAGE = 5, REMOTE = 6, IN_PROGRESS = 7, FLOAT32 = 7, BFLOAT16 = 9 };
enum { RING = 48 << 10, MAX_OPS = 4096, MAX_COMMS = 16 };

struct id {
    char name[128];
};
struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

struct ring {                    /* from one rank to another */
    _Atomic uint64_t head, tail; /* bytes written, bytes read */
    char data[RING];
};
struct segment {
    _Atomic uint32_t ready, joined, gone, left;
    struct ring ring[]; /* [from * size + to] */
};

enum kind { SEND, RECV };
struct op {
    enum kind kind;
    int peer;
    char *p;            /* what the caller gave */
    uint64_t at, bytes; /* moved so far, with the length in front; all */
    uint64_t length;    /* RECV: as the sender says */
    char *bounce;       /* device memory: its copy on the host */
    void *stream;
};

struct ncclComm {
    struct id id;
    int rank, size, complete, error, groups, open;
    struct segment *s;
    size_t bytes;
    int n;
    struct op op[MAX_OPS];
    struct {
        const void *p;
        void *out;
        char *all;
        size_t n;
        int type;
    } sum; /* of ncclAllReduce */
};
typedef struct ncclComm *comm;

static int depth;
static comm touched[MAX_COMMS];
static int n_touched;
static char last[256];

/* ---- device memory, where there is a driver --------------------------------------------------------------------- */

static struct {
    int looked;
    int (*kind)(unsigned *v, int what, uint64_t p);
    int (*sync)(void *stream);
    int (*query)(void *stream);
    int (*get)(void *host, uint64_t p, size_t n);
    int (*put)(uint64_t p, const void *host, size_t n);
} cuda;

static void look_for_driver(void)
{
    if (cuda.looked++) return;
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) return;
    void *sym[] = {dlsym(lib, "cuPointerGetAttribute"), dlsym(lib, "cuStreamSynchronize"), dlsym(lib, "cuStreamQuery"),
                   dlsym(lib, "cuMemcpyDtoH_v2"), dlsym(lib, "cuMemcpyHtoD_v2")};
    memcpy(&cuda.kind, sym, sizeof sym);
}

static void put_device(const void *p, const void *host, size_t n)
{
    cuda.put((uint64_t)(uintptr_t)p, host, n);
    cuda.sync(NULL); /* of host memory that is not pinned the call may return before */
}

static int on_device(const void *p)
{
    unsigned kind = 0;
    look_for_driver();
    return cuda.kind && cuda.kind(&kind, 2 /* memory type */, (uint64_t)(uintptr_t)p) == 0 && kind == 2;
}

static char *host_of(const void *p)
{
    uintptr_t flip = (uintptr_t)1 << 61; /* tests/plain_ops.h */
    return (char *)((uintptr_t)p & flip ? (uintptr_t)p ^ flip : (uintptr_t)p);
}

/* 0: the stream has not come to the op yet */
static int stage_in(struct op *o)
{
    if (o->bounce || !on_device(o->p)) return 1;
    if (o->stream && cuda.query(o->stream) != 0) return 0;
    o->bounce = malloc(o->bytes + 1);
    if (o->kind == SEND) cuda.get(o->bounce, (uint64_t)(uintptr_t)o->p, o->bytes - sizeof o->length);
    return 1;
}

static void stage_out(struct op *o)
{
    if (!o->bounce) return;
    if (o->kind == RECV) put_device(o->p, o->bounce, o->bytes - sizeof o->length);
    free(o->bounce);
    o->bounce = NULL;
}

/* ---- progress ------------------------------------------------------------------------------------------------------
 */

static int fail(comm c, int rc, const char *text)
{
    snprintf(last, sizeof last, "%s", text);
    if (c) c->error = rc;
    return rc;
}

/* bytes of an op: the length, then the values */
static char *byte_of(struct op *o, uint64_t at, uint64_t *n)
{
    if (at < sizeof o->length) {
        *n = sizeof o->length - at;
        return (char *)&o->length + at;
    }
    *n = o->bytes - at;
    return (o->bounce ? o->bounce : host_of(o->p)) + (at - sizeof o->length);
}

static int move(comm c, struct op *o)
{
    int from = o->kind == SEND ? c->rank : o->peer, to = o->kind == SEND ? o->peer : c->rank, moved = 0;
    struct ring *r = &c->s->ring[from * c->size + to];
    while (o->at < o->bytes) {
        uint64_t head = atomic_load(&r->head), tail = atomic_load(&r->tail), n,
                 ring_at = (o->kind == SEND ? head : tail) % RING;
        uint64_t room = o->kind == SEND ? RING - (head - tail) : head - tail;
        char *p = byte_of(o, o->at, &n);
        if (n > room) n = room;
        if (n > RING - ring_at) n = RING - ring_at;
        if (n == 0) break;
        if (o->kind == SEND) {
            memcpy(r->data + ring_at, p, n);
            atomic_store(&r->head, head + n);
        } else {
            memcpy(p, r->data + ring_at, n);
            atomic_store(&r->tail, tail + n);
        }
        o->at += n;
        moved = 1;
        if (o->kind == RECV && o->at == sizeof o->length && o->length != o->bytes - sizeof o->length) {
            fail(c, USAGE, "a message is received with another length than it was sent with");
            return 0;
        }
    }
    if (o->at == o->bytes) stage_out(o);
    return moved;
}

static int first_of_its_kind(const comm c, int i)
{
    for (int k = 0; k < i; k++)
        if (c->op[k].at < c->op[k].bytes && c->op[k].kind == c->op[i].kind && c->op[k].peer == c->op[i].peer) return 0;
    return 1;
}

static float value(const char *p, int type, size_t i)
{
    uint32_t bits = 0;
    float v;
    if (type == BFLOAT16) memcpy((char *)&bits + 2, p + 2 * i, 2);
    else memcpy(&bits, p + 4 * i, 4);
    memcpy(&v, &bits, 4);
    return v;
}

static void finish_sum(comm c)
{
    size_t width = c->sum.type == BFLOAT16 ? 2 : 4, bytes = c->sum.n * width;
    for (size_t i = 0; i < c->sum.n; i++) {
        float v = 0;
        uint32_t bits;
        for (int r = 0; r < c->size; r++) v += value(c->sum.all + (size_t)r * bytes, c->sum.type, i);
        memcpy(&bits, &v, 4);
        memcpy(c->sum.all + i * width, width == 2 ? (char *)&bits + 2 : (char *)&bits, width);
    }
    if (on_device(c->sum.out)) put_device(c->sum.out, c->sum.all, bytes);
    else memcpy(host_of(c->sum.out), c->sum.all, bytes);
    free(c->sum.all);
    c->sum.all = NULL;
}

static int progress(comm c)
{
    if (c->error) return c->error;
    if (atomic_load(&c->s->gone)) return fail(c, REMOTE, "a rank of the communicator gave it up");
    int left = 0;
    for (int i = 0; i < c->n; i++) {
        struct op *o = &c->op[i];
        if (o->at < o->bytes && first_of_its_kind(c, i) && stage_in(o)) move(c, o);
        if (c->error) return c->error;
        left += o->at < o->bytes;
    }
    if (left) return IN_PROGRESS;
    c->n = 0;
    if (c->sum.all) finish_sum(c);
    return OK;
}

/* ---- communicators
 * --------------------------------------------------------------------------------------------------- */

static int told_to_fail(const char *what, int rank, int count)
{
    const char *e = getenv("NCCL_DOUBLE_FAIL");
    char want[64];
    snprintf(want, sizeof want, count ? "%s:%d:%d" : "%s:%d", what, rank, count);
    return e && strcmp(e, want) == 0;
}

int pdflash_nccl_device(unsigned char uuid[16]);
int pdflash_nccl_device(unsigned char uuid[16])
{
    const char *gpus = getenv("NCCL_DOUBLE_GPUS"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    int r = rank ? atoi(rank) : 0, own = gpus ? r % atoi(gpus) : r;
    memset(uuid, 0xd0, 16);
    memcpy(uuid, &own, sizeof own);
    return 1;
}

int ncclGetVersion(int *v);
int ncclGetVersion(int *v)
{
    *v = 29900;
    return OK;
}

int ncclGetUniqueId(struct id *id);
int ncclGetUniqueId(struct id *id)
{
    static int count;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    memset(id, 0, sizeof *id);
    snprintf(id->name, sizeof id->name, "/pdflash-nccl-double.%d.%d.%ld", (int)getpid(), count++, t.tv_nsec);
    return OK;
}

static int attach(comm c)
{
    int fd = shm_open(c->id.name, c->rank == 0 ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    if (fd < 0) return c->rank > 0 && errno == ENOENT ? IN_PROGRESS : fail(c, SYSTEM, "shm_open");
    if (c->rank == 0 && ftruncate(fd, (off_t)c->bytes)) return fail(c, SYSTEM, "ftruncate");
    off_t size = lseek(fd, 0, SEEK_END);
    if (size < (off_t)c->bytes) {
        close(fd);
        return IN_PROGRESS;
    }
    void *p = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return fail(c, SYSTEM, "mmap");
    c->s = p;
    atomic_fetch_add(&c->s->joined, 1);
    return OK;
}

static int join_step(comm c)
{
    if (c->error) return c->error;
    if (!c->s) {
        int rc = attach(c);
        if (rc != OK) return rc;
    }
    if (atomic_load(&c->s->gone)) return fail(c, REMOTE, "a rank of the communicator gave it up");
    if ((int)atomic_load(&c->s->joined) < c->size) return IN_PROGRESS;
    if (c->rank == 0) shm_unlink(c->id.name);
    c->complete = 1;
    return OK;
}

int ncclCommInitRankConfig(comm *c_p, int n, struct id id, int rank, struct config *config);
int ncclCommInitRankConfig(comm *c_p, int n, struct id id, int rank, struct config *config)
{
    if (config->magic != 0xcafebeefu || config->size < 20 || config->blocking != 0)
        return fail(NULL, ARGUMENT, "configuration");
    if (rank < 0 || rank >= n) return fail(NULL, ARGUMENT, "rank");
    if (told_to_fail("init", rank, 0)) return fail(NULL, SYSTEM, "told to fail");
    comm c = calloc(1, sizeof *c);
    if (!c) return fail(NULL, SYSTEM, "memory");
    c->id = id;
    c->rank = rank;
    c->size = n;
    c->bytes = sizeof *c->s + (size_t)n * (size_t)n * sizeof(struct ring);
    *c_p = c;
    return join_step(c) == OK ? OK : IN_PROGRESS;
}

int ncclCommGetAsyncError(comm c, int *state);
int ncclCommGetAsyncError(comm c, int *state)
{
    *state = c->complete ? progress(c) : join_step(c);
    return OK;
}

int ncclCommAbort(comm c);
int ncclCommAbort(comm c)
{
    if (c->s) {
        atomic_store(&c->s->gone, 1);
        munmap(c->s, c->bytes);
    }
    if (!c->complete) shm_unlink(c->id.name); /* the others see its absence, or `gone` */
    for (int i = 0; i < c->n; i++) free(c->op[i].bounce);
    free(c->sum.all);
    free(c);
    return OK;
}

int ncclCommFinalize(comm c);
int ncclCommFinalize(comm c)
{
    return c->n ? IN_PROGRESS : OK;
}

int ncclCommDestroy(comm c);
int ncclCommDestroy(comm c)
{
    if (c->n) return fail(c, USAGE, "destroyed with calls in progress");
    munmap(c->s, c->bytes);
    free(c);
    return OK;
}

const char *ncclGetErrorString(int rc);
const char *ncclGetErrorString(int rc)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
    return rc >= 0 && rc < 8 ? text[rc] : "unknown result code";
}

const char *ncclGetLastError(comm c);
const char *ncclGetLastError(comm c)
{
    (void)c;
    return last;
}

/* ---- calls
 * ------------------------------------------------------------------------------------------------------------- */

int ncclGroupStart(void);
int ncclGroupStart(void)
{
    if (depth++ == 0) n_touched = 0;
    return OK;
}

static int close_group(comm c)
{
    c->open = 0;
    c->groups++;
    if (told_to_fail("group", c->rank, c->groups)) return fail(c, SYSTEM, "told to fail");
    return progress(c) == IN_PROGRESS ? IN_PROGRESS : c->error;
}

int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    int rc = OK;
    if (depth <= 0) return fail(NULL, USAGE, "group end without a start");
    if (--depth > 0) return OK;
    for (int i = 0; i < n_touched; i++) {
        int one = close_group(touched[i]);
        if (rc == OK || (rc == IN_PROGRESS && one != OK)) rc = one;
    }
    return rc;
}

static int begin_call(comm c)
{
    if (depth < 1) return fail(c, USAGE, "a call outside a group");
    if (!c->complete) return fail(c, USAGE, "a call before the communicator is complete");
    if (c->n && !c->open) return fail(c, USAGE, "a call while the last group is in progress");
    if (!c->open) touched[n_touched++] = c;
    c->open = 1;
    return OK;
}

static int add(comm c, enum kind kind, const void *p, uint64_t bytes, int peer, void *stream)
{
    if (peer < 0 || peer >= c->size || peer == c->rank) return fail(c, ARGUMENT, "peer");
    if (c->n == MAX_OPS || n_touched == MAX_COMMS) return fail(c, ARGUMENT, "too many calls in a group");
    c->op[c->n++] = (struct op){.kind = kind,
                                .peer = peer,
                                .p = (char *)(uintptr_t)p,
                                .bytes = bytes + sizeof(uint64_t),
                                .length = bytes,
                                .stream = stream};
    return OK;
}

static size_t width_of(int type)
{
    return type == FLOAT32 ? 4 : type == BFLOAT16 ? 2 : 0;
}

int ncclSend(const void *p, size_t n, int type, int peer, comm c, void *stream);
int ncclSend(const void *p, size_t n, int type, int peer, comm c, void *stream)
{
    int rc = begin_call(c);
    return rc ? rc : add(c, SEND, p, n * width_of(type), peer, stream);
}

int ncclRecv(void *p, size_t n, int type, int peer, comm c, void *stream);
int ncclRecv(void *p, size_t n, int type, int peer, comm c, void *stream)
{
    int rc = begin_call(c);
    return rc ? rc : add(c, RECV, p, n * width_of(type), peer, stream);
}

/* from host or device to the same */
static void copy(const void *from, void *to, size_t bytes, void *stream)
{
    if (from == to) return;
    if (!on_device(from)) {
        memcpy(host_of(to), host_of(from), bytes);
        return;
    }
    char *x = malloc(bytes + 1);
    cuda.sync(stream);
    cuda.get(x, (uint64_t)(uintptr_t)from, bytes);
    put_device(to, x, bytes);
    free(x);
}

int ncclAllGather(const void *p, void *out, size_t n, int type, comm c, void *stream);
int ncclAllGather(const void *p, void *out, size_t n, int type, comm c, void *stream)
{
    size_t bytes = n * width_of(type);
    int rc = begin_call(c);
    for (int r = 0; r < c->size && rc == OK; r++) {
        if (r == c->rank) {
            copy(p, (char *)out + (size_t)r * bytes, bytes, stream);
            continue;
        }
        rc = add(c, SEND, p, bytes, r, stream);
        if (rc == OK) rc = add(c, RECV, (char *)out + (size_t)r * bytes, bytes, r, stream);
    }
    return rc;
}

int ncclBroadcast(const void *p, void *out, size_t n, int type, int root, comm c, void *stream);
int ncclBroadcast(const void *p, void *out, size_t n, int type, int root, comm c, void *stream)
{
    size_t bytes = n * width_of(type);
    int rc = begin_call(c);
    if (rc || c->rank != root) return rc ? rc : add(c, RECV, out, bytes, root, stream);
    copy(p, out, bytes, stream);
    for (int r = 0; r < c->size && rc == OK; r++)
        if (r != c->rank) rc = add(c, SEND, p, bytes, r, stream);
    return rc;
}

/* gathered on the host, then added in rank order; FP32 between */
int ncclAllReduce(const void *p, void *out, size_t n, int type, int op, comm c, void *stream);
int ncclAllReduce(const void *p, void *out, size_t n, int type, int op, comm c, void *stream)
{
    size_t bytes = n * width_of(type);
    int rc = begin_call(c);
    if (rc) return rc;
    if (op != 0 || c->sum.all) return fail(c, ARGUMENT, "one sum in a group");
    c->sum.all = malloc((size_t)c->size * bytes + 1);
    c->sum.p = p, c->sum.out = out, c->sum.n = n, c->sum.type = type;
    if (on_device(p)) {
        cuda.sync(stream);
        cuda.get(c->sum.all + (size_t)c->rank * bytes, (uint64_t)(uintptr_t)p, bytes);
    } else {
        memcpy(c->sum.all + (size_t)c->rank * bytes, host_of(p), bytes);
    }
    for (int r = 0; r < c->size && rc == OK; r++) {
        if (r == c->rank) continue;
        rc = add(c, SEND, c->sum.all + (size_t)c->rank * bytes, bytes, r, NULL);
        if (rc == OK) rc = add(c, RECV, c->sum.all + (size_t)r * bytes, bytes, r, NULL);
    }
    return rc;
}
