/* coll - the TP group's collectives over MPI, filling model/comm.h's table.
 *
 * sum: partials are exchanged so that each rank adds a slice of the rows in the fixed tree and the slices are
 * gathered again (few rows: everybody gathers everything); both ways give the same bits. On one host the
 * exchange goes through a shared-memory segment (MPI_Win_allocate_shared), else through MPI collectives;
 * chosen at open, announced once. */
#ifndef PDFLASH_PD_COLL_H
#define PDFLASH_PD_COLL_H

#include <mpi.h>

#include "model/comm.h"

struct coll; /* opaque */

enum coll_kind { COLL_AUTO, COLL_MPI, COLL_SHM };
/* coll_open - max_values: floats of the largest partial set of one rank (n_parts * rows * cols). size 1 gives the
 * identity. Collective on comm. */
enum status coll_open(MPI_Comm comm, enum coll_kind kind, int64_t max_values, struct coll **c_p, struct tp_comm *t_p);
void coll_close(struct coll *c); /* Collective */
const char *coll_name(const struct coll *c);
/* coll_seconds - time spent waiting for others in collectives, seconds; coll_calls - collectives so far. */
double coll_seconds(const struct coll *c);
int64_t coll_calls(const struct coll *c);

#endif
