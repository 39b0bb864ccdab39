/* bench - measurements a user can repeat: one sub-command a file, dispatched by the table in bench.c; and how those
 * under mpirun begin and end. */
#ifndef PDFLASH_CMD_BENCH_H
#define PDFLASH_CMD_BENCH_H

#include "cmd/options.h"
#include "ops/ops.h"
#include "pd/world.h"

/* bench_sort - n figures by rising value. */
void bench_sort(double *v, int n);

/* bench_transfer - the put leg of the transfer over a memcpy loop of the same runs by the same processes; queueing,
 * packing and unpacking timed apart, with CUDA against plain copies of as many bytes. Starts MPI; under mpirun. argv:
 * words after `bench transfer`. */
enum status bench_transfer(int argc, char **argv);
/* bench_collectives - sums of a TP group and the hand-off between stages, by every path. Starts MPI; under mpirun. */
enum status bench_collectives(int argc, char **argv);

/* bench_under_mpi - read argv, or print the help, start MPI and call body(ctx). A failure that other ranks may not know
 * of ends them all. The caller frees what is its own, then calls bench_end; w and what body did not make stay zero. */
enum status bench_under_mpi(enum command cmd, int argc, char **argv, struct options *o, struct world *w,
                            enum status (*body)(void *), void *ctx);
/* bench_backend - from body, after world_split: the backend of --device on all ranks, or on none. From here on a rank
 * gives up when it waits for long. */
enum status bench_backend(const struct options *o, struct world *w, struct ops *ops_p);
/* bench_meet - all ranks, asleep rather than spinning: what others do may be being timed. */
enum status bench_meet(const struct world *w);
void bench_end(struct world *w, struct ops *ops);

#endif
