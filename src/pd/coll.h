/* coll - the TP group's collectives over MPI, filling model/comm.h's table.
 *
 * sum: partials are exchanged so that each rank adds a slice of the rows in the fixed tree and the slices are
 * gathered again (few rows: everybody gathers everything); both ways give the same bits. On one host the
 * exchange goes through a shared-memory segment (MPI_Win_allocate_shared), else through MPI collectives;
 * chosen at open, announced once.
 * A group whose ranks have a GPU each sums over NCCL instead (coll_open_nccl), with the same bits: see coll_nccl.c. */
#ifndef PDFLASH_PD_COLL_H
#define PDFLASH_PD_COLL_H

#include <mpi.h>

#include "model/comm.h"
#include "pd/nccl.h"

struct coll; /* opaque */

enum coll_kind { COLL_AUTO, COLL_MPI, COLL_SHM };
/* coll_open - max_values: floats of the largest partial set of one rank (n_parts * rows * cols). size 1 gives the
 * identity. Collective on comm. */
enum status coll_open(MPI_Comm comm, enum coll_kind kind, int64_t max_values, struct coll **c_p, struct tp_comm *t_p);
/* coll_open_nccl - the same with sums over NCCL, in o's memory; every rank of comm has a device of its own.
 * ST_E_DEVICE on all ranks, and why (not logged), when a communicator of NCCL cannot be made. Collective on comm. */
enum status coll_open_nccl(MPI_Comm comm, struct nccl *n, struct ops *o, int64_t max_values, struct coll **c_p,
                           struct tp_comm *t_p, char why[NCCL_WHY]);
void coll_close(struct coll *c); /* Collective */
const char *coll_name(const struct coll *c);
/* coll_seconds - time the host spent waiting for others in collectives, seconds (over NCCL the device waits, and that
 * counts as work); coll_calls - collectives so far. */
double coll_seconds(const struct coll *c);
int64_t coll_calls(const struct coll *c);

#endif
