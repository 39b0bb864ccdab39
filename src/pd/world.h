/* world - this process among the others: MPI start and stop, communicators, agreement on failure.
 *
 * The only place that names MPI_COMM_WORLD. Every communicator is a duplicate with a name and
 * MPI_ERRORS_RETURN; they are freed in reverse. */
#ifndef PDFLASH_PD_WORLD_H
#define PDFLASH_PD_WORLD_H

#include <mpi.h>

#include "base/err.h"
#include "plan/topology.h"

struct world {
    int rank, size;
    MPI_Comm all;      /* dup of world: start-up, agreement, final gathers */
    MPI_Comm ctrl;     /* dup: orders and reports, point to point only */
    MPI_Comm xfer;     /* dup: windows and the sendrecv transport */
    MPI_Comm node;     /* ranks of this host */
    int node_rank, node_size;
    /* after world_split */
    struct topology topo;
    struct rank_role role;
    MPI_Comm tp;       /* this stage's TP group, or the decode group */
    MPI_Comm pp;       /* prefill: same tp_rank along the stages (rank = stage); MPI_COMM_NULL on decode */
    MPI_Comm share;    /* after world_nodes: decode ranks of this rank's node, by tp rank; MPI_COMM_NULL on prefill */
    int *node_of;      /* [n_decode] after world_nodes: node number of every decode rank */
    double t0;         /* run start on this rank's MPI_Wtime; the same moment on all ranks within a round trip */
    int started;       /* MPI was started by world_start */
};

/* world_start - MPI_Init, duplicates, node communicator. Refuses (ST_E_LAUNCH) a world of one process while the
 * launcher announced more tasks (SLURM_NTASKS, PMI_SIZE, OMPI_COMM_WORLD_SIZE...), with the right command. */
enum status world_start(int *argc, char ***argv, struct world *w);
/* world_split - check size == t->n_ranks (ST_E_LAUNCH naming both and the mpirun command), make tp and pp. Collective. */
enum status world_split(struct world *w, const struct topology *t);
/* world_nodes - find the nodes whose decode ranks share what they receive (--dedupe): the hosts, or with node_size > 0 runs
 * of that many decode ranks of one host, as if it were several. Only the transfer looks at them. After world_split.
 * Collective on all. */
enum status world_nodes(struct world *w, int node_size);
/* world_agree - the worst status over all ranks (largest exit code, then largest status). Collective on all. */
enum status world_agree(struct world *w, enum status st);
/* world_check_equal - hash equal on every rank, else st_if_not naming `what`, the first rank that differs and both
 * values, on all ranks. Collective on all. */
enum status world_check_equal(struct world *w, uint64_t hash, const char *what, enum status st_if_not);
/* world_now - seconds since w->t0. Local. */
double world_now(const struct world *w);
/* world_stop - free communicators, MPI_Finalize. world_abort - MPI_Abort with an exit code; does not return. */
void world_stop(struct world *w);
void world_abort(struct world *w, int code);
/* mpi_check - ST_OK or ST_E_MPI with MPI's text; use as TRY(mpi_check(MPI_X(...), "MPI_X")). Local. */
enum status mpi_check(int rc, const char *call);

#endif
