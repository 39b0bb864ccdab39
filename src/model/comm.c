#include "model/comm.h"

/* Parts of one rank in tree order. The sum is written over part 0, so the tree may permute the parts only as long as
 * its first leaf is part 0; every split of the plan keeps a lone rank's parts in index order anyway. */
static enum status self_sum(void *ctx, struct ops *o, float *x, int64_t part_stride, int n_parts, const int *order,
                            int64_t rows, int64_t cols)
{
    (void)ctx;
    if (n_parts < 1) return ERR(ST_E_INTERNAL, "sum over %d parts: at least 1 is needed", n_parts);
    if (order && order[0] != 0)
        return ERR(ST_E_INTERNAL, "sum in a group of one rank: first leaf is part %d, 0 is needed", order[0]);
    if (n_parts > 1) o->tree_add(o, x, x, part_stride, order, n_parts, rows * cols);
    return ST_OK;
}

static enum status self_gather_cols(void *ctx, struct ops *o, const float *x, int64_t rows, int64_t cols, float *y,
                                    int root_only)
{
    (void)ctx;
    (void)root_only;
    o->get(o, y, x, (size_t)(rows * cols) * sizeof *y);
    return ST_OK;
}

static enum status self_argmax(void *ctx, float *val, int32_t *id, int rows)
{
    (void)ctx;
    (void)val;
    (void)id;
    (void)rows;
    return ST_OK;
}

static enum status self_bcast(void *ctx, void *host, size_t bytes)
{
    (void)ctx;
    (void)host;
    (void)bytes;
    return ST_OK;
}

struct tp_comm comm_self(void)
{
    return (struct tp_comm){.rank = 0,
                            .size = 1,
                            .sum = self_sum,
                            .gather_cols = self_gather_cols,
                            .argmax = self_argmax,
                            .bcast = self_bcast};
}
