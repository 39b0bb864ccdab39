#include "plan/scratch.h"

#include "plan/sum.h"

enum {
    FP32 = 4,
    SLOT_LEAST = 4096,       /* bytes */
    MORE_PARTS = 32,         /* room for the rounding of slices of so many parts a rank; more go in smaller pieces */
    RING_LEAST = 64 << 10,   /* bytes */
    SYSTEM_PAGE = 4096       /* bytes: what is page-locked is whole pages */
};

/* ---- sums ---------------------------------------------------------------------------------------------------- */

/* without EP the routed latent and the shared expert travel together, with EP a rank sends one routed partial per block
 * group */
int64_t scratch_sum_values(const struct config *c, const struct group *g, int64_t rows)
{
    int64_t routed = g->ep > 1 ? sum_times(split_block_groups(c) / (g->tp / g->ep), c->latent)
                               : sum_plus(c->latent, c->hidden);
    return sum_times(rows, c->hidden > routed ? c->hidden : routed);
}

int64_t scratch_slot_bytes(int64_t max_values)
{
    int64_t bytes = sum_times(max_values, FP32);
    return bytes < SLOT_LEAST ? SLOT_LEAST : bytes > SLOT_MOST ? SLOT_MOST : bytes;
}

/* through the host the partials of all ranks are gathered whole; NCCL brings each rank its slice of them */
int64_t scratch_sum_bytes(enum sums_via via, int64_t max_values, int size)
{
    if (via == SUMS_HOST || size < 2) return 0;
    if (via == SUMS_STAGED) return sum_times(size, scratch_slot_bytes(max_values));
    int64_t values = (max_values < SUM_MOST ? max_values : SUM_MOST) + (int64_t)SUM_SLICE * size * MORE_PARTS;
    return (values < SUM_FEW ? SUM_FEW : values) * FP32;
}

/* ---- packing -------------------------------------------------------------------------------------------------- */

/* bytes of the longest request from this source to decode rank q */
static enum status sent_to(const struct config *c, const struct draft_config *d, const struct topology *t,
                           const struct plan_options *o, const struct layout *src, int stage, int q, int64_t *bytes_p)
{
    struct layout dst;
    struct pair_plan p;
    TRY(memory_slot_layout(c, d, t, o, q, &dst));
    enum status st = transfer_plan_pair(c, d, src, stage, stage == t->prefill.pp - 1, &dst, o->stripe, &p);
    for (int k = 0; k < COMP_N && st == ST_OK; k++)
        *bytes_p = sum_plus(*bytes_p, transfer_plan_bytes(&p, (enum comp)k, dst.spec.n_pages, NULL));
    if (st == ST_OK) transfer_plan_free(&p);
    layout_free(&dst);
    return st;
}

enum status scratch_pack_bytes(const struct config *c, const struct draft_config *d, const struct topology *t,
                               const struct plan_options *o, int stage, int tp_rank, int64_t *bytes_p)
{
    const int64_t most = (int64_t)PACK_MOVES * PACK_BYTES;
    struct layout src;
    int64_t all = 0;
    TRY(memory_source_layout(c, d, t, o, stage, tp_rank, &src));
    enum status st = ST_OK;
    for (int q = 0; q < t->n_decode && all < most && st == ST_OK; q++) st = sent_to(c, d, t, o, &src, stage, q, &all);
    layout_free(&src);
    if (st != ST_OK) return st;
    all = all < most / o->staging_slots ? all * o->staging_slots : most;
    *bytes_p = all < RING_LEAST ? RING_LEAST : (all + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE;
    return ST_OK;
}
