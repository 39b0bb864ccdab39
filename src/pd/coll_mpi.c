/* Collectives as messages between all pairs, each step with one round of latency; waiting is polite (wait_all). */
#include <string.h>

#include "pd/coll_impl.h"
#include "pd/wait.h"
#include "pd/world.h"

enum { TAG_GATHER = 1, TAG_SLICE, TAG_RESULT, TAG_BCAST };

struct coll_mpi {
    struct buf all;    /* [size] pieces; this rank's own in its place */
    struct buf sliced; /* partials of this rank, cut by destination */
    struct buf result; /* summed piece */
    MPI_Request *req;  /* [2 * size] */
    int n;             /* requests of the running exchange */
};

static enum status post_send(struct coll *c, const void *p, size_t bytes, int to, int tag)
{
    struct coll_mpi *m = c->mpi;
    return mpi_check(MPI_Isend(p, (int)bytes, MPI_BYTE, to, tag, c->comm, &m->req[m->n++]), "MPI_Isend");
}

static enum status post_recv(struct coll *c, void *p, size_t bytes, int from, int tag)
{
    struct coll_mpi *m = c->mpi;
    return mpi_check(MPI_Irecv(p, (int)bytes, MPI_BYTE, from, tag, c->comm, &m->req[m->n++]), "MPI_Irecv");
}

static enum status finish(struct coll *c)
{
    double t = MPI_Wtime();
    enum status st = wait_all(c->mpi->req, c->mpi->n, NULL, NULL);
    c->waited += MPI_Wtime() - t;
    c->mpi->n = 0;
    return st;
}

static void *mpi_slot(struct coll *c, size_t bytes)
{
    return (char *)c->mpi->all.p + (size_t)c->rank * bytes;
}

static enum status mpi_gather(struct coll *c, size_t bytes, int root_only, const void **all_p)
{
    char *all = c->mpi->all.p;
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        if (!root_only || c->rank == 0) TRY(post_recv(c, all + (size_t)r * bytes, bytes, r, TAG_GATHER));
        if (!root_only || r == 0) TRY(post_send(c, all + (size_t)c->rank * bytes, bytes, r, TAG_GATHER));
    }
    TRY(finish(c));
    *all_p = all;
    return ST_OK;
}

/* cut this rank's parts by destination: [rank][part][slice] */
static void cut(struct coll *c, const float *mine, int n_parts, int64_t n, float *out)
{
    for (int r = 0; r < c->size; r++) {
        int64_t at, len;
        coll_slice(n, c->size, r, &at, &len);
        for (int p = 0; p < n_parts; p++) {
            memcpy(out + n_parts * at + p * len, mine + p * n + at, (size_t)len * sizeof *out);
        }
    }
}

static enum status mpi_sum(struct coll *c, struct ops *o, int n_parts, const int *order, int64_t n, const float **sum_p)
{
    struct coll_mpi *m = c->mpi;
    float *all = m->all.p, *sliced = m->sliced.p, *result = m->result.p;
    int64_t at, len, r_at, r_len;
    cut(c, all + c->rank * n_parts * n, n_parts, n, sliced);
    coll_slice(n, c->size, c->rank, &at, &len);
    size_t slice_bytes = (size_t)(n_parts * len) * sizeof(float);
    for (int r = 0; r < c->size; r++) {
        coll_slice(n, c->size, r, &r_at, &r_len);
        if (r == c->rank) {
            memcpy(all + r * n_parts * len, sliced + n_parts * at, slice_bytes);
            continue;
        }
        TRY(post_recv(c, all + r * n_parts * len, slice_bytes, r, TAG_SLICE));
        TRY(post_send(c, sliced + n_parts * r_at, (size_t)(n_parts * r_len) * sizeof(float), r, TAG_SLICE));
    }
    TRY(finish(c));
    if (len > 0) o->tree_add(o, result + at, all, len, order, c->size * n_parts, len);
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        coll_slice(n, c->size, r, &r_at, &r_len);
        TRY(post_recv(c, result + r_at, (size_t)r_len * sizeof(float), r, TAG_RESULT));
        TRY(post_send(c, result + at, (size_t)len * sizeof(float), r, TAG_RESULT));
    }
    TRY(finish(c));
    *sum_p = result;
    return ST_OK;
}

static enum status mpi_bcast(struct coll *c, void *host, size_t bytes)
{
    if (c->rank != 0) {
        TRY(post_recv(c, host, bytes, 0, TAG_BCAST));
        return finish(c);
    }
    for (int r = 1; r < c->size; r++) TRY(post_send(c, host, bytes, r, TAG_BCAST));
    return finish(c);
}

static void mpi_close(struct coll *c)
{
    struct coll_mpi *m = c->mpi;
    if (!m) return;
    buf_free(&m->all);
    buf_free(&m->sliced);
    buf_free(&m->result);
    mem_free(m->req);
    mem_free(m);
    c->mpi = NULL;
}

static const struct coll_path mpi_path = {.name = "mpi", .close = mpi_close, .slot = mpi_slot, .gather = mpi_gather,
                                          .sum = mpi_sum, .bcast = mpi_bcast};

enum status coll_mpi_open(struct coll *c)
{
    struct coll_mpi *m = c->mpi = mem_alloc(1, sizeof *m, "collectives by messages");
    if (!m) return ST_E_NOMEM;
    c->path = &mpi_path;
    TRY(buf_alloc(&m->all, (size_t)c->size * c->slot_bytes, "gathered pieces"));
    TRY(buf_alloc(&m->sliced, c->slot_bytes, "cut partials"));
    TRY(buf_alloc(&m->result, c->slot_bytes, "summed piece"));
    m->req = mem_alloc(2 * (size_t)c->size, sizeof *m->req, "requests");
    return m->req ? ST_OK : ST_E_NOMEM;
}
