#include "plan/work.h"

#include "plan/sum.h"

/* floats of one piece of scratch, which begins on a multiple of 16 */
static void take(int64_t *at, int64_t rows, int64_t width)
{
    int64_t n = sum_times(rows, width);
    *at = sum_plus(*at, n > SUM_MAX - 15 ? SUM_MAX : (n + 15) / 16 * 16);
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* rows that the recurrence needs, and keeps of a verify batch */
static int64_t kda_rows(const struct config *c, int tp, int64_t rows)
{
    int64_t at = 0, heads = c->kda_heads / tp, w = heads * c->kda_dim;
    take(&at, rows, 3 * w);
    take(&at, rows, 3 * w);
    take(&at, rows, w);
    take(&at, rows, w + c->kda_dim + heads);
    return at;
}

static int64_t attention(const struct config *c, int tp, int is_kda, int64_t rows)
{
    int64_t at = 0, h = c->mla_heads / tp;
    if (is_kda) {
        at = kda_rows(c, tp, rows);
        take(&at, rows, (int64_t)(c->kda_heads / tp) * c->kda_dim);
        return at;
    }
    take(&at, rows, c->q_rank + c->kv_rank + c->qk_rope + h * c->v_dim);
    take(&at, rows, h * (c->qk_nope + c->qk_rope));
    take(&at, rows, h * (c->kv_rank + c->qk_rope));
    take(&at, rows, h * c->kv_rank);
    take(&at, rows, h * c->v_dim);
    return at;
}

static int64_t mlp(int64_t cols, int64_t rows)
{
    int64_t at = 0;
    take(&at, rows, 2 * cols);
    take(&at, rows, cols);
    return at;
}

static int64_t moe(const struct config *c, const struct group *g, int64_t rows)
{
    int64_t at = 0, parts = g->ep == 1 ? 1 : split_block_groups(c) / (g->tp / g->ep);
    take(&at, rows, c->n_experts);
    take(&at, rows, c->top_k);
    take(&at, rows, c->top_k);
    take(&at, rows, c->latent);
    take(&at, rows, parts * c->latent + c->hidden);
    take(&at, mlp(c->shared_inter / g->tp, rows), 1);
    return at;
}

/* floats of the target: planes, the largest layer, logits, records of a verify batch */
static int64_t target(const struct config *c, const struct group *g, struct range layers, int last, int64_t rows,
                      int64_t logits, int64_t verify)
{
    int64_t at = 0, largest = 0, records = 0;
    for (int i = layers.begin; i < layers.end; i++) {
        largest = most(largest, attention(c, g->tp, c->is_kda[i], rows));
        largest = most(largest, i < c->n_dense ? mlp(c->dense_inter / g->tp, rows) : moe(c, g, rows));
        if (c->is_kda[i]) records = sum_plus(records, kda_rows(c, g->tp, verify));
    }
    for (int i = 0; i < 3; i++) take(&at, rows, c->hidden);
    take(&at, largest, 1);
    if (last) take(&at, logits, c->vocab / g->tp);
    return sum_plus(at, records);
}

static int64_t draft(const struct draft_config *d, int tp, int context, int block, int64_t rows, int64_t seqs)
{
    struct range kv = split_kv_heads(d->kv_heads, tp, 0);
    int64_t width = d->hidden;
    if (context) width += 2 * (int64_t)(kv.end - kv.begin) * d->head_dim;
    if (block)
        width += 2 * (int64_t)d->hidden + 2 * (int64_t)(d->q_heads / tp) * d->head_dim + 3 * (int64_t)(d->inter / tp);
    int64_t n = sum_times(rows, width);
    if (block && d->kind == DRAFT_DSPARK) n = sum_plus(n, sum_times(seqs, (int64_t)d->markov_rank + d->vocab / tp));
    return n;
}

struct work_rows work_rows(const struct topology *t, const struct plan_options *o, struct rank_role r)
{
    struct work_rows x = {0};
    if (t->single || r.role == ROLE_PREFILL)
        x.chunk = o->chunk < o->max_prompt && o->chunk > 0 ? o->chunk : o->max_prompt;
    if (r.role == ROLE_DECODE) x.decode = (int64_t)o->concurrency * (o->block > 1 ? o->block : 1);
    x.most = x.chunk > x.decode ? x.chunk : x.decode;
    return x;
}

int64_t work_bytes(const struct config *c, const struct draft_config *d, const struct topology *t,
                   const struct plan_options *o, struct rank_role r)
{
    int prefills = t->single || r.role == ROLE_PREFILL, decodes = r.role == ROLE_DECODE;
    const struct group *g = decodes ? &t->decode : &t->prefill;
    struct work_rows x = work_rows(t, o, r);
    int64_t chunk = x.chunk, decode = x.decode, rows = x.most;
    int last = decodes || r.last_stage;
    struct range layers = split_stage(c->n_layers, decodes ? 1 : g->pp, r.stage);
    int64_t n = target(c, g, layers, last, rows, decode ? decode : 1, d ? decode : 0);
    int64_t plane = 2 + split_bank_rows(c->res_block, c->n_layers); /* of a flow: prefix, accumulator, bank */
    int flows = prefills && !t->single ? 2 : prefills;
    n = sum_plus(n, sum_times(sum_times(flows * chunk + decode, c->hidden), plane));
    if (!d) return sum_times(n, 4);
    n = sum_plus(n, draft(d, g->tp, last, decodes, rows, o->concurrency));
    n = sum_plus(n, sum_times(sum_times(decode, c->hidden), decodes ? d->n_taps + 1 : 0));
    return sum_times(n, 4);
}
