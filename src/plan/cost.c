#include "plan/cost.h"

#include <math.h>

#include "plan/memory.h"
#include "plan/split.h"
#include "plan/sum.h"

const char *const cost_name[COST_N] = {"kda projections", "kda convolution", "kda recurrence", "mla projections",
                                       "dense mlp",       "shared experts",  "router",         "latent pair",
                                       "routed expert",   "vectors",         "embedding",      "head"};

enum { BF16 = 2, FP32 = 4 };

static int64_t mul(int64_t a, int64_t b)
{
    return sum_times(a, b);
}

static struct cost_row matrix(int layers, int64_t params)
{
    return (struct cost_row){layers, params, mul(params, BF16), mul(params, 2)};
}

static int64_t kda_params(const struct config *c)
{
    int64_t ch = mul(c->kda_heads, c->kda_dim);
    return sum_plus(5 * mul(ch, c->hidden),
                    mul(c->kda_dim, c->hidden) + mul(ch, c->kda_dim) + mul(c->kda_heads, c->hidden));
}

static int64_t mla_params(const struct config *c)
{
    int64_t h = c->mla_heads;
    return mul(c->q_rank, c->hidden) + mul(c->kv_rank + c->qk_rope, c->hidden) +
           mul(h * (c->qk_nope + c->qk_rope), c->q_rank) + mul(h * (c->qk_nope + c->v_dim), c->kv_rank) +
           2 * mul(h * c->v_dim, c->hidden);
}

/* parameters and bytes of everything that is no matrix: BF16 norms and residual projections, FP32 vectors */
static struct cost_row vectors(const struct config *c)
{
    int moe = c->n_layers - c->n_dense;
    int64_t ch = mul(c->kda_heads, c->kda_dim);
    int64_t bf16 = mul(c->n_layers, 6 * (int64_t)c->hidden) + 3 * (int64_t)c->hidden +
                   mul(c->n_mla, c->q_rank + c->kv_rank) + mul(moe, c->latent);
    int64_t fp32 = mul(c->n_kda, c->kda_heads + ch + c->kda_dim) + mul(moe, c->n_experts);
    return (struct cost_row){1, sum_plus(bf16, fp32), sum_plus(mul(bf16, BF16), mul(fp32, FP32)), 0};
}

void cost_rows(const struct config *c, struct cost_row row[COST_N])
{
    int moe = c->n_layers - c->n_dense;
    int64_t ch = mul(c->kda_heads, c->kda_dim), conv = mul(3 * ch, c->conv_kernel),
            expert = mul(3 * (int64_t)c->expert_inter, c->latent);
    row[COST_KDA] = matrix(c->n_kda, kda_params(c));
    row[COST_CONV] = (struct cost_row){c->n_kda, conv, mul(conv, FP32), mul(conv, 2)};
    row[COST_RECURRENCE] = (struct cost_row){c->n_kda, 0, 0, mul(7 * ch, c->kda_dim)};
    row[COST_MLA] = matrix(c->n_mla, mla_params(c));
    row[COST_DENSE] = matrix(c->n_dense, mul(3 * (int64_t)c->dense_inter, c->hidden));
    row[COST_SHARED] = matrix(moe, mul(3 * (int64_t)c->shared_inter, c->hidden));
    row[COST_ROUTER] = matrix(moe, mul(c->n_experts, c->hidden));
    row[COST_LATENT] = matrix(moe, mul(2 * (int64_t)c->latent, c->hidden));
    row[COST_EXPERT] = (struct cost_row){moe, expert, expert / 2 + expert / 32, mul(expert, 2 * (int64_t)c->top_k)};
    row[COST_VECTORS] = vectors(c);
    row[COST_EMBED] = matrix(1, mul(c->vocab, c->hidden));
    row[COST_EMBED].flops = 0; /* a row is copied */
    row[COST_HEAD] = matrix(1, mul(c->vocab, c->hidden));
}

int64_t cost_context_flops(const struct config *c, int expanded)
{
    int64_t width = expanded ? c->qk_nope + c->qk_rope + c->v_dim : 2 * (int64_t)c->kv_rank + c->qk_rope;
    return mul(2 * (int64_t)c->mla_heads, width);
}

void cost_total(const struct config *c, struct cost_total *t_p)
{
    struct cost_row row[COST_N];
    struct cost_total t = {.params = 0};
    cost_rows(c, row);
    for (int k = 0; k < COST_N; k++) {
        int expert = k == COST_EXPERT;
        int64_t held = expert ? mul(row[k].layers, c->n_experts) : row[k].layers;
        t.params = sum_plus(t.params, mul(held, row[k].params));
        t.bytes = sum_plus(t.bytes, mul(held, row[k].bytes));
        if (k != COST_CONV && k != COST_VECTORS)
            t.active = sum_plus(t.active, mul(expert ? mul(row[k].layers, c->top_k) : row[k].layers, row[k].params));
        if (k != COST_EMBED && !expert)
            t.non_expert_bytes = sum_plus(t.non_expert_bytes, mul(row[k].layers, row[k].bytes));
        if (k != COST_HEAD) t.layer_flops = sum_plus(t.layer_flops, mul(row[k].layers, row[k].flops));
    }
    t.active_no_embed = t.active - row[COST_EMBED].params;
    for (int i = 0; i < c->n_layers;
         i++) /* before the attention and before the MLP of a layer: the bank and the prefix */
        t.residual_rows += split_bank_rows(c->res_block, i) + split_bank_rows(c->res_block, i + 1) + 2;
    t.residual_rows += split_bank_rows(c->res_block, c->n_layers) + 1;
    for (int e = 0; e < 2; e++) t.context_flops[e] = mul(c->n_mla, cost_context_flops(c, e));
    *t_p = t;
}

double cost_experts_touched(const struct config *c, double rows)
{
    double e = c->n_experts;
    return e * (1 - pow(1 - c->top_k / e, rows));
}

double cost_step_bytes(const struct config *c, double rows)
{
    struct cost_row row[COST_N];
    struct cost_total t;
    cost_rows(c, row);
    cost_total(c, &t);
    double touched = row[COST_EXPERT].layers ? cost_experts_touched(c, rows) : 0;
    return (double)t.non_expert_bytes + touched * row[COST_EXPERT].layers * (double)row[COST_EXPERT].bytes;
}

/* ---- a chunk on a stage ---------------------------------------------------------------------------------------- */

static double layer_flops(const struct config *c, const struct cost_row *row, int layer, double context)
{
    double f = c->is_kda[layer] ? (double)(row[COST_KDA].flops + row[COST_CONV].flops + row[COST_RECURRENCE].flops)
                                : (double)row[COST_MLA].flops + context * (double)cost_context_flops(c, 0);
    if (layer < c->n_dense) return f + (double)row[COST_DENSE].flops;
    return f +
           (double)(row[COST_SHARED].flops + row[COST_ROUTER].flops + row[COST_LATENT].flops + row[COST_EXPERT].flops);
}

double cost_chunk_flops(const struct config *c, const struct draft_config *d, const struct group *g, int stage,
                        int pos0, int n, int final)
{
    struct cost_row row[COST_N];
    struct range layers = split_stage(c->n_layers, g->pp, stage);
    int tap[CONFIG_MAX_TAPS], last = stage == g->pp - 1;
    double context = pos0 + (n + 1) / 2.0, a_token = 0; /* a position sees itself and all before it */
    cost_rows(c, row);
    for (int i = layers.begin; i < layers.end; i++) a_token += layer_flops(c, row, i, context);
    if (d) {
        double h = d->hidden;
        a_token += split_taps(d, c->n_layers, g->pp, stage, tap) * 2 * h * h;
        if (last) a_token += 4 * h * d->n_layers * d->kv_heads * d->head_dim;
    }
    return a_token * n + (last && final ? (double)row[COST_HEAD].flops : 0);
}

double cost_chunk_bytes(const struct config *c, const struct draft_config *d, const struct group *g, int stage,
                        int pos0, int n)
{
    struct range layers = split_stage(c->n_layers, g->pp, stage);
    int64_t part[WEIGHT_N], kda = 0, mla = 0;
    int last = stage == g->pp - 1;
    memory_weight_parts(c, d, layers, g, 0, last, last ? DRAFT_CONTEXT_PATH : DRAFT_FC_ONLY, part);
    double bytes =
        (double)part[WEIGHT_EXPERTS] * (c->n_dense < c->n_layers ? cost_experts_touched(c, n) / c->n_experts : 0);
    for (int k = 0; k < WEIGHT_N; k++)
        if (k != WEIGHT_EXPERTS) bytes += (double)part[k];
    for (int i = layers.begin; i < layers.end; i++) {
        kda += c->is_kda[i] != 0;
        mla += !c->is_kda[i];
    }
    bytes += 2.0 * (double)kda * (c->kda_heads / g->tp) * c->kda_dim * c->kda_dim * FP32;
    return bytes + (double)mla * ((double)pos0 + n) * (c->kv_rank + c->qk_rope) * BF16;
}
