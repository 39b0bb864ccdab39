/* bench - measurements a user can repeat: one sub-command a file, dispatched by the table in bench.c. */
#ifndef PDFLASH_CMD_BENCH_H
#define PDFLASH_CMD_BENCH_H

#include "base/err.h"

/* bench_transfer - the put leg of the transfer over a memcpy loop of the same runs by the same processes; queueing, packing
 * and unpacking timed apart, with CUDA against plain copies of as many bytes. Starts MPI; under mpirun. argv: words after `bench transfer`. */
enum status bench_transfer(int argc, char **argv);
/* bench_collectives - sums of a TP group and the hand-off between stages, by every path. Starts MPI; under mpirun. */
enum status bench_collectives(int argc, char **argv);

#endif
