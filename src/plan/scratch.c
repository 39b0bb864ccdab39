#include "plan/scratch.h"

#include "plan/sum.h"
#include "plan/work.h"

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

/* ---- operations ---------------------------------------------------------------------------------------------- */

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* the longest row of inputs and of outputs among the matrices of layers and draft */
static void widest(const struct config *c, const struct draft_config *d, int tp, int64_t *k_p, int64_t *n_p)
{
    int64_t kda = (int64_t)(c->kda_heads / tp) * c->kda_dim, mla = c->mla_heads / tp, h = c->hidden;
    int64_t inter = most(most(c->n_dense ? c->dense_inter : 0, c->shared_inter), d ? d->inter : 0) / tp;
    *k_p = most(most(h, inter), most(most(kda, mla * c->v_dim), most(c->q_rank, c->latent)));
    *n_p = most(most(h, c->n_experts), most(most(3 * kda, 2 * inter), mla * (c->qk_nope + c->qk_rope)));
}

/* rows as three BF16 parts, and eight partial sums of what does not go to the library: at most 1024 rows. The head sees
 * the rows of a verify batch only. */
static int64_t linear_bytes(const struct config *c, const struct draft_config *d, int tp, const struct work_rows *x)
{
    int64_t k, n;
    widest(c, d, tp, &k, &n);
    n = most(sum_times(least(x->most, 1024), n), sum_times(least(x->decode, 1024), c->vocab / tp));
    return sum_plus(sum_times(least(x->most, OPS_LINEAR_ROWS), k * 3 * 2), sum_times(n, 8 * FP32));
}

/* of each pair of a row and a local expert inputs of both products and results by block group; at least what the
 * backend prepares for, which knows matrices only and supposes 16 pairs a row */
static int64_t moe_bytes(const struct config *c, const struct group *g, int64_t rows)
{
    int64_t moe_tp = g->tp / g->ep, cols = c->expert_inter / moe_tp;
    int64_t groups = g->ep > 1 ? split_block_groups(c) / moe_tp : 1, pairs = most(c->top_k, 16);
    int64_t pair = (2 * cols + groups * c->latent) * FP32 + 64, row = most(c->latent, cols) * 3 * 2;
    return least(sum_times(rows, sum_plus(sum_times(pairs, pair), row)), OPS_MOE_BYTES);
}

/* a chunk of 64 rows of a head is 72.5 KiB, 256 chunks at a time */
static int64_t kda_bytes(const struct config *c, int tp, int64_t rows)
{
    return sum_times(least(rows / 64 + 1, 256), (int64_t)(c->kda_heads / tp) * 74240);
}

/* latent rows, keys and values of every position */
static int64_t expanded_bytes(const struct config *c, const struct plan_options *o, int tp)
{
    int64_t heads = c->mla_heads / tp, row = c->kv_rank + c->qk_rope + heads * (c->qk_nope + c->v_dim);
    return sum_times(o->max_prompt, row * (o->kv == KV_BF16 ? 2 : FP32));
}

int64_t scratch_ops_bytes(const struct config *c, const struct draft_config *d, const struct topology *t,
                          const struct plan_options *o, struct rank_role r)
{
    const struct group *g = r.role == ROLE_PREFILL ? &t->prefill : &t->decode;
    struct work_rows x = work_rows(t, o, r);
    int64_t n = linear_bytes(c, d, g->tp, &x);
    if (c->n_dense < c->n_layers) n = most(n, moe_bytes(c, g, x.most));
    if (x.chunk && c->n_kda) n = most(n, kda_bytes(c, g->tp, x.chunk));
    if (x.chunk && c->n_mla && o->expanded) n = sum_plus(n, expanded_bytes(c, o, g->tp)); /* a piece of its own */
    return sum_plus(sum_plus(n, n / 4), OPS_FIXED); /* what has to grow takes a quarter more than is needed */
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
