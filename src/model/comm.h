/* comm - what the model needs from the ranks of its tensor-parallel group, as a table.
 *
 * The model never sees MPI: pd/coll fills this table. All functions are Collective on the group; calls come
 * in the same order with the same shapes on every rank. Sums use the fixed tree of ops->tree_add over the
 * gathered partials, so the result is the same bits on every rank and at every power-of-two group size. */
#ifndef PDFLASH_MODEL_COMM_H
#define PDFLASH_MODEL_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ops/ops.h"

struct tp_comm {
    int rank, size;
    void *ctx;
    /* sum: x is bmem and holds n_parts partials of rows * cols values (part p at x + p * part_stride). On return
     * x[0 .. rows*cols) is the tree sum of all size * n_parts partials; leaf i of the tree is partial order[i]
     * (rank * n_parts + part); order NULL: identity. */
    enum status (*sum)(void *ctx, struct ops *o, float *x, int64_t part_stride, int n_parts, const int *order,
                       int64_t rows, int64_t cols);
    /* gather_cols: y[rows][size * cols] := the ranks' x[rows][cols] side by side; x bmem, y HOST, valid on rank 0
     * only when root_only. */
    enum status (*gather_cols)(void *ctx, struct ops *o, const float *x, int64_t rows, int64_t cols, float *y,
                               int root_only);
    /* argmax: host arrays; each rank gives its local first maximum with global ids; on return the global first
     * maximum (largest value, then lowest id; NaN on any rank: val NaN, id -1). */
    enum status (*argmax)(void *ctx, float *val, int32_t *id, int rows);
    /* bcast: bytes of host memory from rank 0. Decisions (accepted length, bonus) go through it. */
    enum status (*bcast)(void *ctx, void *host, size_t bytes);
};

/* comm_self - a group of one rank: every function is the identity. */
struct tp_comm comm_self(void);

#endif
