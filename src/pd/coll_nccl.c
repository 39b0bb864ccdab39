/* Sums of partials in device memory: NCCL moves the bytes, the backend adds along the fixed tree, so the bits are those
 * of the other paths. Everything goes to the backend's queue and nothing waits for it.
 *
 *   few values   all-gather of the partials, everybody adds all of them: one exchange
 *   many         each rank receives its slice of all partials, adds it, and the sums are gathered: two exchanges
 *
 * Host data (argmax pairs, decisions, logits rows) stays on the path of the host: the pairs are there already, made by
 * an operation that waits for them, and each rank brings its columns of logits over its own bus. */
#include "pd/coll_impl.h"

struct coll_nccl {
    struct nccl_comm *comm;
    struct ops *o;
    struct buf all; /* bmem: partials of all ranks, of a slice or of few values */
    int64_t room;   /* values of it */
};

static void *queue_of(struct ops *o)
{
    return o->queues ? o->queues->main(o) : NULL;
}

static enum status end(struct coll *c)
{
    double t = MPI_Wtime();
    enum status st = nccl_end(c->nccl->comm, NULL, NULL);
    c->waited += MPI_Wtime() - t;
    return st;
}

static enum status sum_few(struct coll *c, struct ops *o, float *x, int64_t stride, int n_parts, const int *order,
                           int64_t n)
{
    float *all = c->nccl->all.p, *mine = x;
    if (n_parts > 1 && stride != n) {
        mine = all + c->rank * n_parts * n;
        for (int p = 0; p < n_parts; p++) o->copy(o, mine + p * n, x + p * stride, (size_t)n * sizeof *x);
    }
    nccl_begin(c->nccl->comm);
    nccl_all_gather(c->nccl->comm, mine, all, n_parts * n, queue_of(o));
    TRY(end(c));
    o->tree_add(o, x, all, n, order, c->size * n_parts, n);
    return ST_OK;
}

/* all[rank][part][len] := the slice [at, at + len) of every partial */
static enum status trade_slices(struct coll *c, struct ops *o, const float *x, int64_t stride, int n_parts, int64_t n,
                                int64_t at, int64_t len)
{
    struct nccl_comm *comm = c->nccl->comm;
    float *all = c->nccl->all.p;
    nccl_begin(comm);
    for (int i = 1; i < c->size; i++) { /* each rank begins with its neighbour, not all with rank 0 */
        int to = (c->rank + i) % c->size, from = (c->rank - i + c->size) % c->size;
        int64_t to_at, to_len;
        coll_slice(n, c->size, to, &to_at, &to_len);
        for (int p = 0; p < n_parts; p++) {
            if (to_len) nccl_send(comm, x + p * stride + to_at, to_len, to, queue_of(o));
            if (len) nccl_recv(comm, all + (from * n_parts + p) * len, len, from, queue_of(o));
        }
    }
    TRY(end(c));
    for (int p = 0; p < n_parts; p++)
        o->copy(o, all + (c->rank * n_parts + p) * len, x + p * stride + at, (size_t)len * sizeof *x);
    return ST_OK;
}

static enum status sum_many(struct coll *c, struct ops *o, float *x, int64_t stride, int n_parts, const int *order,
                            int64_t n)
{
    struct nccl_comm *comm = c->nccl->comm;
    int64_t at, len, r_at, r_len;
    coll_slice(n, c->size, c->rank, &at, &len);
    TRY(trade_slices(c, o, x, stride, n_parts, n, at, len));
    if (len) o->tree_add(o, x + at, c->nccl->all.p, len, order, c->size * n_parts, len);
    nccl_begin(comm);
    if (n % ((int64_t)COLL_SLICE * c->size) == 0) {
        nccl_all_gather(comm, x + at, x, len, queue_of(o));
    } else {
        for (int r = 0; r < c->size; r++) {
            coll_slice(n, c->size, r, &r_at, &r_len);
            if (r_len) nccl_bcast(comm, x + r_at, r_len, r, queue_of(o));
        }
    }
    return end(c);
}

enum status coll_nccl_sum(struct coll *c, struct ops *o, float *x, int64_t part_stride, int n_parts, const int *order,
                          int64_t n_all)
{
    int64_t rounding = (int64_t)COLL_SLICE * c->size, most = c->nccl->room / n_parts - rounding;
    if (o != c->nccl->o) return ERR(ST_E_INTERNAL, "a sum over NCCL of another backend's memory");
    if (most < COLL_SLICE)
        return ERR(ST_E_INTERNAL, "sum of %d parts over NCCL: no room for them in %lld values", n_parts,
                   (long long)c->nccl->room);
    most = most / rounding > 0 ? most / rounding * rounding : most / COLL_SLICE * COLL_SLICE;
    for (int64_t i = 0; i < n_all; i += most) {
        int64_t n = n_all - i < most ? n_all - i : most;
        int few = c->size * n_parts * n <= (c->nccl->room < SUM_FEW ? c->nccl->room : SUM_FEW);
        TRY((few ? sum_few : sum_many)(c, o, x + i, part_stride, n_parts, order, n));
    }
    return ST_OK;
}

/* Connections are made, and memory of the library is taken, at the first call of each kind and size. What is summed
 * here is given back before weights and state come, which is why the plan does not count it. */
static enum status warm_up(struct coll *c, struct ops *o, int64_t max_values)
{
    struct buf x;
    if (max_values > SUM_MOST) max_values = SUM_MOST; /* more are pieces of this size */
    int64_t even = max_values / COLL_SLICE / c->size * COLL_SLICE * c->size;
    int64_t size[] = {COLL_SLICE, SUM_FEW / c->size, even, max_values};
    TRY(o->mem_new(o, &x, (size_t)(max_values > SUM_FEW ? max_values : SUM_FEW) * sizeof(float), "warming up"));
    enum status st = ST_OK;
    for (size_t i = 0; i < sizeof size / sizeof size[0] && st == ST_OK; i++)
        if (size[i] > 0) st = coll_nccl_sum(c, o, x.p, size[i], 1, NULL, size[i]);
    float value;
    if (st == ST_OK) o->get(o, &value, x.p, sizeof value); /* all of it is over */
    if (st == ST_OK) st = ops_check(o);
    o->mem_free(o, &x);
    return st;
}

enum status coll_nccl_open(struct coll *c, struct nccl *n, struct ops *o, int64_t max_values, char why[NCCL_WHY])
{
    struct coll_nccl *m = c->nccl = mem_alloc(1, sizeof *m, "collectives over NCCL");
    if (!m) return ST_E_NOMEM;
    m->o = o;
    TRY(nccl_join(n, c->comm, &m->comm, why));
    int64_t bytes = scratch_sum_bytes(SUMS_NCCL, max_values, c->size);
    m->room = bytes / (int64_t)sizeof(float);
    int ok = o->mem_new(o, &m->all, (size_t)bytes, "partials over NCCL") == ST_OK, all = 0;
    TRY(mpi_check(MPI_Allreduce(&ok, &all, 1, MPI_INT, MPI_LAND, c->comm), "MPI_Allreduce"));
    return all ? warm_up(c, o, max_values) : ST_E_NOMEM;
}

void coll_nccl_close(struct coll *c)
{
    struct coll_nccl *m = c->nccl;
    if (!m) return;
    if (m->all.p) m->o->mem_free(m->o, &m->all);
    nccl_leave(m->comm);
    mem_free(m);
    c->nccl = NULL;
}
