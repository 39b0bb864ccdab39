/* coll_impl - what the ways of exchanging share; private to coll*.c. */
#ifndef PDFLASH_PD_COLL_IMPL_H
#define PDFLASH_PD_COLL_IMPL_H

#include "base/buf.h"
#include "pd/coll.h"
#include "pd/world.h"
#include "plan/scratch.h"

enum { COLL_SLICE = SUM_SLICE };

struct coll_shm;
struct coll_mpi;
struct coll_nccl;

/* One way to exchange what the host has. A collective is: write this rank's bytes at slot(), call one of the others. Pieces are at most
 * slot_bytes long and equally long on all ranks. */
struct coll_path {
    const char *name;
    void (*close)(struct coll *c);
    /* slot - where this rank writes its piece of `bytes` bytes of the next exchange (host). */
    void *(*slot)(struct coll *c, size_t bytes);
    /* gather - *all_p: the ranks' pieces one behind the other, on rank 0 only when root_only. Valid until the next slot(). */
    enum status (*gather)(struct coll *c, size_t bytes, int root_only, const void **all_p);
    /* sum - the piece is n_parts partials of n floats; *sum_p: their tree sum over all ranks (host), each rank having
     * added a slice. Needs host bmem. */
    enum status (*sum)(struct coll *c, struct ops *o, int n_parts, const int *order, int64_t n, const float **sum_p);
    /* bcast - at most slot_bytes of rank 0 to all. */
    enum status (*bcast)(struct coll *c, void *host, size_t bytes);
};

struct coll {
    MPI_Comm comm; /* a duplicate */
    int rank, size;
    size_t slot_bytes;
    const struct coll_path *path;
    struct coll_shm *shm;
    struct coll_mpi *mpi;
    struct coll_nccl *nccl; /* NULL: sums take `path` too */
    struct ops *seen;    /* backend whose memory was looked at */
    struct buf scratch;  /* device backends: the gathered partials in bmem; else empty */
    double waited;       /* seconds */
    int64_t calls;
};

/* coll_slice - elements [begin, begin + n) of n_all that rank r adds up; multiples of COLL_SLICE elements. */
void coll_slice(int64_t n_all, int size, int r, int64_t *begin_p, int64_t *n_p);

/* coll_shm_open, coll_mpi_open - set c->path. The first returns ST_OK with c->path NULL on all ranks, and the reason,
 * when the ranks cannot share memory. Collective on c->comm. */
enum status coll_shm_open(struct coll *c, const char **why_p);
enum status coll_mpi_open(struct coll *c);

/* coll_nccl_open - beside the path of the host; max_values as for coll_open. ST_E_DEVICE on all ranks when one cannot
 * join, and why. Collective on c->comm. coll_nccl_sum - as sum in model/comm.h, of n_all values. */
enum status coll_nccl_open(struct coll *c, struct nccl *n, struct ops *o, int64_t max_values, char why[NCCL_WHY]);
enum status coll_nccl_sum(struct coll *c, struct ops *o, float *x, int64_t part_stride, int n_parts, const int *order,
                          int64_t n_all);
void coll_nccl_close(struct coll *c); /* Collective */

#endif
