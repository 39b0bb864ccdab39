#include "pd/coll.h"

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "pd/coll_impl.h"

/* Up to this many gathered bytes everybody adds everything: one meeting instead of two, at the price of each rank
 * repeating the additions. Measured with 8 ranks on 2 cores, where a meeting costs eight context switches. */
enum { GATHER_BYTES = 16 << 10, HOST_SLOT = 1 << 20 };

static const char *const path_none = "self";

void coll_slice(int64_t n_all, int size, int r, int64_t *begin_p, int64_t *n_p)
{
    int64_t blocks = (n_all + COLL_SLICE - 1) / COLL_SLICE;
    int64_t lo = blocks * r / size * COLL_SLICE, hi = blocks * (r + 1) / size * COLL_SLICE;
    if (lo > n_all) lo = n_all;
    if (hi > n_all) hi = n_all;
    *begin_p = lo;
    *n_p = hi - lo;
}

/* ---- sum ------------------------------------------------------------------------------------------------- */

/* A backend whose memory is not the host's adds in its own memory, from a copy of all partials. Looked at once. */
static enum status look_at(struct coll *c, struct ops *o)
{
    if (c->seen == o) return ST_OK;
    if (c->scratch.p) c->seen->mem_free(c->seen, &c->scratch);
    memset(&c->scratch, 0, sizeof c->scratch);
    struct buf b;
    TRY(o->mem_new(o, &b, 64, "collectives"));
    int device = b.place == PLACE_DEVICE;
    o->mem_free(o, &b);
    if (device) TRY(o->mem_new(o, &c->scratch, (size_t)c->size * c->slot_bytes, "gathered partials"));
    c->seen = o;
    return ST_OK;
}

static enum status sum_piece(struct coll *c, struct ops *o, float *x, int64_t part_stride, int n_parts, const int *order,
                             int64_t n)
{
    size_t bytes = (size_t)(n_parts * n) * sizeof *x;
    float *mine = c->path->slot(c, bytes);
    for (int p = 0; p < n_parts; p++) o->get(o, mine + p * n, x + p * part_stride, (size_t)n * sizeof *x);
    if (!c->scratch.p && (size_t)c->size * bytes > GATHER_BYTES) {
        const float *sum;
        TRY(c->path->sum(c, o, n_parts, order, n, &sum));
        o->put(o, x, sum, (size_t)n * sizeof *x);
        return ST_OK;
    }
    const void *all;
    TRY(c->path->gather(c, bytes, 0, &all));
    if (c->scratch.p) {
        o->put(o, c->scratch.p, all, (size_t)c->size * bytes);
        all = c->scratch.p;
    }
    o->tree_add(o, x, all, n, order, c->size * n_parts, n);
    return ST_OK;
}

static enum status coll_sum(void *ctx, struct ops *o, float *x, int64_t part_stride, int n_parts, const int *order,
                            int64_t rows, int64_t cols)
{
    struct coll *c = ctx;
    int64_t n = rows * cols;
    int64_t most = (int64_t)(c->slot_bytes / sizeof *x) / (n_parts > 0 ? n_parts : 1) / COLL_SLICE * COLL_SLICE;
    if (n_parts < 1 || n < 0 || most < 1 || (n_parts > 1 && part_stride < n))
        return ERR(ST_E_INTERNAL, "sum of %d parts of %lld x %lld values, %lld from part to part: does not fit %zu bytes",
                   n_parts, (long long)rows, (long long)cols, (long long)part_stride, c->slot_bytes);
    c->calls++;
    if (c->nccl) return coll_nccl_sum(c, o, x, part_stride, n_parts, order, n);
    TRY(look_at(c, o));
    for (int64_t at = 0; at < n; at += most)
        TRY(sum_piece(c, o, x + at, part_stride, n_parts, order, n - at < most ? n - at : most));
    return ST_OK;
}

/* ---- the others ------------------------------------------------------------------------------------------ */

/* elements [at, at + n) of x[rows][cols], gathered, into their rows of y[rows][size * cols] */
static void place_cols(const struct coll *c, const float *all, int64_t at, int64_t n, int64_t cols, float *y)
{
    for (int r = 0; r < c->size; r++)
        for (int64_t i = 0; i < n;) {
            int64_t row = (at + i) / cols, col = (at + i) % cols, len = cols - col < n - i ? cols - col : n - i;
            memcpy(y + row * c->size * cols + r * cols + col, all + r * n + i, (size_t)len * sizeof *y);
            i += len;
        }
}

static enum status coll_gather_cols(void *ctx, struct ops *o, const float *x, int64_t rows, int64_t cols, float *y,
                                    int root_only)
{
    struct coll *c = ctx;
    int64_t n_all = rows * cols, most = (int64_t)(c->slot_bytes / sizeof *x);
    c->calls++;
    for (int64_t at = 0; at < n_all; at += most) {
        int64_t n = n_all - at < most ? n_all - at : most;
        const void *all;
        o->get(o, c->path->slot(c, (size_t)n * sizeof *x), x + at, (size_t)n * sizeof *x);
        TRY(c->path->gather(c, (size_t)n * sizeof *x, root_only, &all));
        if (c->rank == 0 || !root_only) place_cols(c, all, at, n, cols, y);
    }
    return ST_OK;
}

struct best { /* one rank's first maximum of one row */
    float val;
    int32_t id;
};

static struct best better(struct best a, struct best b)
{
    if (isnan(a.val) || isnan(b.val)) return (struct best){NAN, -1};
    if (a.val != b.val) return a.val > b.val ? a : b;
    return a.id <= b.id ? a : b;
}

static enum status coll_argmax(void *ctx, float *val, int32_t *id, int rows)
{
    struct coll *c = ctx;
    int most = (int)(c->slot_bytes / sizeof(struct best) < 65536 ? c->slot_bytes / sizeof(struct best) : 65536);
    c->calls++;
    for (int at = 0; at < rows; at += most) {
        int n = rows - at < most ? rows - at : most;
        struct best *mine = c->path->slot(c, (size_t)n * sizeof *mine);
        for (int i = 0; i < n; i++) mine[i] = (struct best){val[at + i], id[at + i]};
        const void *all;
        TRY(c->path->gather(c, (size_t)n * sizeof *mine, 0, &all));
        for (int i = 0; i < n; i++) {
            struct best b = ((const struct best *)all)[i];
            for (int r = 1; r < c->size; r++) b = better(b, ((const struct best *)all)[r * n + i]);
            val[at + i] = b.val;
            id[at + i] = isnan(b.val) ? -1 : b.id;
        }
    }
    return ST_OK;
}

static enum status coll_bcast(void *ctx, void *host, size_t bytes)
{
    struct coll *c = ctx;
    c->calls++;
    for (size_t at = 0; at < bytes; at += c->slot_bytes)
        TRY(c->path->bcast(c, (char *)host + at, bytes - at < c->slot_bytes ? bytes - at : c->slot_bytes));
    return ST_OK;
}

/* ---- open ------------------------------------------------------------------------------------------------- */

static enum status open_path(struct coll *c, enum coll_kind kind)
{
    const char *why = NULL;
    if (kind != COLL_MPI) TRY(coll_shm_open(c, &why));
    if (c->path) return ST_OK;
    if (kind == COLL_SHM)
        return ERR(ST_E_CONFIG, "collectives through shared memory: %s; use --comm mpi or let it be chosen", why);
    if (why && c->rank == 0) log_info("collectives go through MPI messages: %s", why);
    return coll_mpi_open(c);
}

static enum status open_all(MPI_Comm comm, enum coll_kind kind, size_t most_slot, int64_t max_values, struct coll *c)
{
    TRY(mpi_check(MPI_Comm_dup(comm, &c->comm), "MPI_Comm_dup"));
    TRY(mpi_check(MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    TRY(mpi_check(MPI_Comm_set_name(c->comm, "pdflash coll"), "MPI_Comm_set_name"));
    MPI_Comm_rank(c->comm, &c->rank);
    MPI_Comm_size(c->comm, &c->size);
    if (max_values < 0) return ERR(ST_E_INTERNAL, "collectives: %lld values per rank", (long long)max_values);
    c->slot_bytes = (size_t)scratch_slot_bytes(max_values);
    if (c->slot_bytes > most_slot) c->slot_bytes = most_slot;
    return c->size > 1 ? open_path(c, kind) : ST_OK;
}

static struct tp_comm table_of(struct coll *c)
{
    if (c->size == 1) return comm_self();
    return (struct tp_comm){.rank = c->rank, .size = c->size, .ctx = c, .sum = coll_sum,
                            .gather_cols = coll_gather_cols, .argmax = coll_argmax, .bcast = coll_bcast};
}

enum status coll_open(MPI_Comm comm, enum coll_kind kind, int64_t max_values, struct coll **c_p, struct tp_comm *t_p)
{
    struct coll *c = mem_alloc(1, sizeof *c, "collectives");
    if (!c) return ST_E_NOMEM;
    c->comm = MPI_COMM_NULL;
    enum status st = open_all(comm, kind, SIZE_MAX, max_values, c);
    if (st != ST_OK) {
        coll_close(c);
        return st;
    }
    *t_p = table_of(c);
    *c_p = c;
    return ST_OK;
}

enum status coll_open_nccl(MPI_Comm comm, struct nccl *n, struct ops *o, int64_t max_values, struct coll **c_p,
                           struct tp_comm *t_p, char why[NCCL_WHY])
{
    struct coll *c = mem_alloc(1, sizeof *c, "collectives");
    if (!c) return ST_E_NOMEM;
    c->comm = MPI_COMM_NULL;
    *why = 0;
    enum status st = open_all(comm, COLL_AUTO, HOST_SLOT, max_values, c); /* what is left to the host is small */
    if (st == ST_OK && c->size > 1) st = coll_nccl_open(c, n, o, max_values, why);
    if (st != ST_OK) {
        coll_close(c);
        return st;
    }
    *t_p = table_of(c);
    *c_p = c;
    return ST_OK;
}

void coll_close(struct coll *c)
{
    if (!c) return;
    coll_nccl_close(c);
    if (c->path) c->path->close(c);
    if (c->scratch.p) c->seen->mem_free(c->seen, &c->scratch);
    if (c->comm != MPI_COMM_NULL) MPI_Comm_free(&c->comm);
    mem_free(c);
}

const char *coll_name(const struct coll *c)
{
    return c->nccl ? "nccl" : c->path ? c->path->name : path_none;
}

double coll_seconds(const struct coll *c)
{
    return c->waited;
}

int64_t coll_calls(const struct coll *c)
{
    return c->calls;
}
