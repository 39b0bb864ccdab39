/* bench_kernels - `pdflash bench kernels`: time of every operation at the shapes of the real Kimi-K3 per rank. Local, no MPI. */
#ifndef PDFLASH_CMD_BENCH_KERNELS_H
#define PDFLASH_CMD_BENCH_KERNELS_H

#include <stdint.h>

#include "ops/ops.h"

/* bench_kernels - argv: words after `bench kernels`. */
enum status bench_kernels(int argc, char **argv);

/* ---- what bench_kernels.c and its table of shapes (bench_shapes.c) share ---- */

enum { BENCH_SETS = 8, BENCH_MEMS = 64, BENCH_SEQS = 64 };

/* One measurement: memory of the operation, several sets of inputs that are used in turn so that caches do not help
 * where the real program would not have them, and what one call moves or computes. */
struct kernel_bench {
    struct ops *o;
    const int *p;                  /* the row's parameters */
    int turn, sets;
    struct buf mem[BENCH_MEMS];
    int n_mem;
    struct mat *mat[BENCH_SETS];
    int n_mat;                     /* matrices in each mat[i] */
    float *in[BENCH_SETS], *in2[BENCH_SETS], *in3[BENCH_SETS], *out, *out2, *small, *w;
    int32_t *idx;
    struct paged cache[BENCH_SETS];
    struct seq_rows seq[BENCH_SETS][BENCH_SEQS];
    int32_t *page_id;
    double bytes, flops;           /* of one call; 0: not what limits it */
    enum status st;                /* first failure of a set-up */
};

struct bench_row {
    const char *name, *shape;
    void (*setup)(struct kernel_bench *b);
    void (*run)(void *bench);
    int p[8];
    int reps;
};

/* bench_rows - the table, ended by a row without name. */
extern const struct bench_row bench_rows[];

/* bench_mem / bench_fill - backend memory; with the second, n random floats in [-1, 1) times scale */
void *bench_mem(struct kernel_bench *b, size_t bytes);
float *bench_fill(struct kernel_bench *b, int64_t n, float scale);

#endif
