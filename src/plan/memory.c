#include "plan/memory.h"

#include <inttypes.h>

#include "plan/scratch.h"
#include "plan/sum.h"
#include "plan/work.h"

enum { BF16 = 2, FP32 = 4, WORD_LINE = 64 }; /* bytes; a word has a cache line for itself */

const char *const weight_name[WEIGHT_N] = {"experts",    "router_latent", "attention", "mlp",
                                           "embed_head", "norms",         "draft"};

/* ---- weights -------------------------------------------------------------------------------------------- */

static int64_t mul(int64_t a, int64_t b)
{
    return sum_times(a, b);
}

static void add(int64_t *sum, int64_t n, int64_t bytes)
{
    *sum = sum_plus(*sum, mul(n, bytes));
}

static int64_t kda_bytes(const struct config *c, int64_t tp)
{
    int64_t heads = c->kda_heads / tp, ch = mul(heads, c->kda_dim), n = 0;
    add(&n, 5 * mul(ch, c->hidden), BF16);                                      /* q, k, v, g and o_proj */
    add(&n, mul(c->kda_dim, c->hidden) + mul(ch, c->kda_dim), BF16);            /* f_a whole, f_b */
    add(&n, mul(heads, c->hidden), BF16);                                       /* b_proj */
    add(&n, 3 * mul(ch, c->conv_kernel) + heads + ch + c->kda_dim, FP32);       /* conv, A_log, dt_bias, o_norm */
    return n;
}

static int64_t mla_bytes(const struct config *c, int64_t tp)
{
    int64_t heads = c->mla_heads / tp, n = 0;
    add(&n, mul(c->q_rank, c->hidden) + c->q_rank, BF16);                       /* q_a and its norm, whole */
    add(&n, mul(c->kv_rank + c->qk_rope, c->hidden) + c->kv_rank, BF16);        /* kv_a and its norm, whole */
    add(&n, mul(heads * (c->qk_nope + c->qk_rope), c->q_rank), BF16);           /* q_b */
    add(&n, mul(heads * (c->qk_nope + c->v_dim), c->kv_rank), BF16);            /* kv_b */
    add(&n, 2 * mul(heads * c->v_dim, c->hidden), BF16);                        /* g and o_proj */
    return n;
}

static void moe_bytes(const struct config *c, const struct group *g, int64_t part[WEIGHT_N])
{
    int64_t experts = c->n_experts / g->ep, cols = c->expert_inter / (g->tp / g->ep);
    /* w1, w3: 4-bit codes and a scale per 32; w2 */
    int64_t packed = mul(2 * cols, c->latent / 2 + c->latent / 32) + mul(c->latent, cols / 2 + cols / 32);
    add(&part[WEIGHT_EXPERTS], experts, packed);
    add(&part[WEIGHT_ROUTER_LATENT], mul(c->n_experts, c->hidden) + 2 * mul(c->latent, c->hidden) + c->latent, BF16);
    add(&part[WEIGHT_ROUTER_LATENT], c->n_experts, FP32); /* correction bias */
    add(&part[WEIGHT_MLP], 3 * mul(c->shared_inter / g->tp, c->hidden), BF16);
}

static void layer_bytes(const struct config *c, const struct group *g, int layer, int64_t part[WEIGHT_N])
{
    add(&part[WEIGHT_NORMS], 6 * (int64_t)c->hidden,
        BF16); /* two norms, two residual norms, two residual projections */
    add(&part[WEIGHT_ATTENTION], c->is_kda[layer] ? kda_bytes(c, g->tp) : mla_bytes(c, g->tp), 1);
    if (layer < c->n_dense)
        add(&part[WEIGHT_MLP], 3 * mul(c->dense_inter / g->tp, c->hidden), BF16);
    else
        moe_bytes(c, g, part);
}

/* taps computed by the owner of these layers */
static int taps_of(const struct config *c, const struct draft_config *d, struct range layers)
{
    int n = 0;
    for (int i = 0; i < d->n_taps; i++) {
        int owner = d->tap[i] + 1 < c->n_layers ? d->tap[i] + 1 : c->n_layers - 1;
        n += owner >= layers.begin && owner < layers.end;
    }
    return n;
}

/* column blocks of the draft's fc, whole on every rank that computes a tap */
static int64_t fc_bytes(const struct draft_config *d, int n_taps)
{
    return mul(mul(n_taps, mul(d->hidden, d->hidden)), BF16);
}

static int64_t draft_bytes(const struct draft_config *d, int tp, int whole)
{
    struct range kv = split_kv_heads(d->kv_heads, tp, 0);
    int64_t kv_ch = mul(kv.end - kv.begin, d->head_dim), q_ch = mul(d->q_heads / tp, d->head_dim);
    int64_t layer = 2 * mul(kv_ch, d->hidden) + d->head_dim; /* k, v, k_norm */
    int64_t n = d->hidden;                                   /* hidden_norm */
    if (whole) {
        layer += 2 * mul(q_ch, d->hidden) + d->head_dim + 2 * (int64_t)d->hidden; /* q, o, q_norm, two norms */
        layer += 3 * mul(d->inter / tp, d->hidden);
        n += d->hidden; /* final norm */
        /* Markov head: W1 whole, W2 by vocabulary; the confidence head (one row) is loaded on demand only */
        if (d->kind == DRAFT_DSPARK) n += mul(d->markov_rank, (int64_t)d->vocab + d->vocab / tp);
    }
    return mul(sum_plus(n, mul(d->n_layers, layer)), BF16);
}

void memory_weight_parts(const struct config *c, const struct draft_config *d, struct range layers,
                         const struct group *g, int with_embed, int with_head, int draft_part, int64_t part[WEIGHT_N])
{
    int64_t vocab = mul(c->vocab / g->tp, c->hidden);
    for (int k = 0; k < WEIGHT_N; k++) part[k] = 0;
    for (int i = layers.begin; i < layers.end; i++) layer_bytes(c, g, i, part);
    if (with_embed) add(&part[WEIGHT_EMBED_HEAD], vocab, BF16);
    if (with_head) add(&part[WEIGHT_EMBED_HEAD], vocab, BF16);
    if (with_head)
        add(&part[WEIGHT_NORMS], 3 * (int64_t)c->hidden, BF16); /* final norm, output residual norm and projection */
    if (!d || draft_part == DRAFT_NOTHING) return;
    add(&part[WEIGHT_DRAFT], fc_bytes(d, taps_of(c, d, layers)), 1);
    if (draft_part != DRAFT_FC_ONLY) add(&part[WEIGHT_DRAFT], draft_bytes(d, g->tp, draft_part == DRAFT_WHOLE), 1);
}

static int64_t all(const int64_t *part, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum = sum_plus(sum, part[i]);
    return sum;
}

int64_t memory_weight_bytes(const struct config *c, const struct draft_config *d, struct range layers,
                            const struct group *g, int with_embed, int with_head, int draft_part)
{
    int64_t part[WEIGHT_N];
    memory_weight_parts(c, d, layers, g, with_embed, with_head, draft_part, part);
    return all(part, WEIGHT_N);
}

/* ---- layouts of the two sides ---------------------------------------------------------------------------- */

static enum status check_options(const struct plan_options *o)
{
    const int v[] = {o->page, o->max_tokens, o->max_prompt, o->concurrency, o->prefill_slots, o->staging_slots};
    static const char *const name[] = {"page",        "max_tokens",    "max_prompt",
                                       "concurrency", "prefill_slots", "staging_slots"};
    for (int i = 0; i < 6; i++)
        if (v[i] < 1) return ERR(ST_E_CONFIG, "plan: %s %d: at least 1 is needed", name[i], v[i]);
    if (o->max_tokens < o->max_prompt)
        return ERR(ST_E_CONFIG, "plan: max_tokens %d is less than max_prompt %d; a prompt must fit", o->max_tokens,
                   o->max_prompt);
    return ST_OK;
}

static enum status times(const char *what, int a, int b, int *n_p)
{
    if (__builtin_mul_overflow(a, b, n_p))
        return ERR(ST_E_CONFIG, "plan: %d %s of %d pages are too many; ask for fewer", a, what, b);
    return ST_OK;
}

static struct layout_spec base_spec(const struct plan_options *o)
{
    return (struct layout_spec){.page = o->page, .order = o->order, .kv = o->kv, .draft_kv = o->draft_kv};
}

enum status memory_source_layout(const struct config *c, const struct draft_config *d, const struct topology *t,
                                 const struct plan_options *o, int stage, int tp_rank, struct layout *l_p)
{
    TRY(check_options(o));
    if (stage < 0 || stage >= t->prefill.pp)
        return ERR(ST_E_CONFIG, "plan: stage %d of %d prefill stages does not exist", stage, t->prefill.pp);
    struct layout_spec s = base_spec(o);
    int last = stage == t->prefill.pp - 1;
    s.layers = split_stage(c->n_layers, t->prefill.pp, stage);
    s.has_draft = last && d != NULL;
    s.has_aux = last;
    s.tp = t->prefill.tp;
    s.tp_rank = tp_rank;
    s.n_slots = o->prefill_slots;
    TRY(times("prefill slots", o->prefill_slots, split_pages(o->max_prompt, o->page), &s.n_pages));
    return layout_make(c, d, &s, l_p);
}

enum status memory_decode_layout(const struct config *c, const struct draft_config *d, const struct topology *t,
                                 const struct plan_options *o, int tp_rank, struct layout *l_p)
{
    TRY(check_options(o));
    struct layout_spec s = base_spec(o);
    s.layers = (struct range){0, c->n_layers};
    s.has_draft = d != NULL;
    s.tp = t->decode.tp;
    s.tp_rank = tp_rank;
    s.n_slots = o->concurrency;
    TRY(times("requests", o->concurrency, split_pages(o->max_tokens, o->page), &s.n_pages));
    return layout_make(c, d, &s, l_p);
}

enum status memory_slot_layout(const struct config *c, const struct draft_config *d, const struct topology *t,
                               const struct plan_options *o, int tp_rank, struct layout *l_p)
{
    TRY(check_options(o));
    struct layout_spec s = base_spec(o);
    s.layers = (struct range){0, c->n_layers};
    s.has_draft = d != NULL;
    s.has_aux = 1;
    s.tp = t->decode.tp;
    s.tp_rank = tp_rank;
    s.n_slots = 1;
    s.n_pages = split_pages(o->max_prompt, o->page);
    if (o->share.n && o->share.n != t->decode.tp)
        return ERR(ST_E_CONFIG, "plan: nodes of %d decode ranks are given, there are %d", o->share.n, t->decode.tp);
    share_spec(&o->share, d, &s);
    return layout_make(c, d, &s, l_p);
}

/* ---- per rank ------------------------------------------------------------------------------------------------ */

static void state_parts(struct layout *l, struct rank_memory *m)
{
    for (int i = 0; i < l->n; i++)
        m->state[l->entry[i].comp] +=
            mul(l->entry[i].stride, l->entry[i].n_items); /* layout_make refused what overflows */
    m->pool_bytes = l->bytes;
    layout_free(l);
}

static enum status windows(const struct config *c, const struct draft_config *d, const struct topology *t,
                           const struct plan_options *o, struct rank_role r, struct rank_memory *m)
{
    struct layout l;
    if (t->single) return ST_OK;
    if (r.role == ROLE_PREFILL) { /* credits: a word per decode rank and slot */
        m->word_bytes = mul(t->n_decode, mul(o->staging_slots, WORD_LINE));
    } else {
        TRY(memory_slot_layout(c, d, t, o, r.tp_rank, &l));
        m->data_bytes = mul(o->staging_slots, l.bytes);
        m->word_bytes =
            mul(o->staging_slots, mul(t->n_prefill, COMP_N * WORD_LINE)); /* a word per source and component */
        layout_free(&l);
    }
    m->window_bytes = sum_plus(m->data_bytes, m->word_bytes);
    return ST_OK;
}

/* what only a rank with a device takes */
static enum status scratch(const struct config *c, const struct draft_config *d, const struct topology *t,
                           const struct plan_options *o, int world_rank, struct rank_role r, struct rank_memory *m)
{
    const struct group *g = r.role == ROLE_PREFILL ? &t->prefill : &t->decode;
    enum sums_via via = o->sums ? o->sums[world_rank] : SUMS_NCCL;
    m->coll_bytes = scratch_sum_bytes(via, scratch_sum_values(c, g, work_rows(t, o, r).most), g->tp);
    m->ops_bytes = via == SUMS_HOST ? 0 : scratch_ops_bytes(c, d, t, o, r);
    if (r.role != ROLE_PREFILL || via == SUMS_HOST) return ST_OK;
    return scratch_pack_bytes(c, d, t, o, r.stage, r.tp_rank, &m->pack_bytes);
}

enum status memory_rank(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o, int world_rank, struct rank_memory *m_p)
{
    if (world_rank < 0 || world_rank >= t->n_ranks)
        return ERR(ST_E_RANGE, "rank %d of %d ranks does not exist", world_rank, t->n_ranks);
    struct rank_role r = topology_role(t, world_rank);
    struct rank_memory m = {.weight_bytes = 0};
    struct layout l;
    if (r.role == ROLE_PREFILL) {
        struct range layers = split_stage(c->n_layers, t->prefill.pp, r.stage);
        TRY(memory_source_layout(c, d, t, o, r.stage, r.tp_rank, &l));
        memory_weight_parts(c, d, layers, &t->prefill, r.first_stage, r.last_stage,
                            r.last_stage ? DRAFT_CONTEXT_PATH : DRAFT_FC_ONLY, m.weight);
    } else {
        TRY(memory_decode_layout(c, d, t, o, r.tp_rank, &l));
        memory_weight_parts(c, d, (struct range){0, c->n_layers}, &t->decode, 1, 1, DRAFT_WHOLE, m.weight);
    }
    state_parts(&l, &m);
    TRY(windows(c, d, t, o, r, &m));
    m.weight_bytes = all(m.weight, WEIGHT_N);
    m.work_bytes = work_bytes(c, d, t, o, r);
    TRY(scratch(c, d, t, o, world_rank, r, &m));
    m.device_bytes = sum_plus(sum_plus(m.weight_bytes, m.pool_bytes), sum_plus(m.work_bytes, m.coll_bytes));
    m.device_bytes = sum_plus(m.device_bytes, m.ops_bytes);
    m.bytes = sum_plus(m.device_bytes, sum_plus(m.window_bytes, m.pack_bytes));
    if (m.bytes == SUM_MAX || sum_times(m.bytes, t->n_ranks) == SUM_MAX)
        return ERR(ST_E_CONFIG,
                   "rank %d: weights %" PRId64 ", state %" PRId64 ", activations %" PRId64 ", collectives %" PRId64
                   ", operations %" PRId64 " and windows %" PRId64 " bytes, or those of %d ranks together, "
                   "are too large to add up; ask for fewer or shorter requests",
                   world_rank, m.weight_bytes, m.pool_bytes, m.work_bytes, m.coll_bytes, m.ops_bytes, m.window_bytes,
                   t->n_ranks);
    *m_p = m;
    return ST_OK;
}

/* ---- does it fit --------------------------------------------------------------------------------------------- */

static enum status too_large(const struct topology *t, const struct plan_options *o, int rank, int n_over,
                             const struct rank_memory *m)
{
    struct rank_role r = topology_role(t, rank);
    const char *group = t->single ? "single" : r.role == ROLE_PREFILL ? "prefill" : "decode";
    const char *remedy =
        m->weight_bytes > o->device_bytes
            ? (r.role == ROLE_PREFILL ? "the weights alone do not fit: more ranks are needed (--prefill pp=, tp=)"
                                      : "the weights alone do not fit: more ranks are needed (--decode tp=)")
        : sum_plus(sum_plus(m->work_bytes, m->coll_bytes), m->ops_bytes) > m->pool_bytes
            ? "take a shorter --chunk or --max-prompt, less --concurrency, or more ranks"
            : "take a shorter --max-prompt, less --concurrency or --slots, or more ranks";
    return ERR(ST_E_CONFIG,
               "rank %d (%s, stage %d, tp rank %d) does not fit: weights %" PRId64 " + state %" PRId64
               " + activations %" PRId64 " + collectives %" PRId64 " + operations %" PRId64 " = %" PRId64
               " bytes are needed on its device, --gpu-memory gives %" PRId64 "; %d of %d ranks do not fit; %s",
               rank, group, r.stage, r.tp_rank, m->weight_bytes, m->pool_bytes, m->work_bytes, m->coll_bytes,
               m->ops_bytes, m->device_bytes, o->device_bytes, n_over, t->n_ranks, remedy);
}

enum status memory_fits(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o)
{
    struct rank_memory worst = {.device_bytes = -1};
    int worst_rank = 0, n_over = 0;
    if (o->device_bytes == 0) return ST_OK;
    for (int i = 0; i < t->n_ranks; i++) {
        struct rank_memory m;
        TRY(memory_rank(c, d, t, o, i, &m));
        n_over += m.device_bytes > o->device_bytes;
        if (m.device_bytes > worst.device_bytes) {
            worst = m;
            worst_rank = i;
        }
    }
    return n_over ? too_large(t, o, worst_rank, n_over, &worst) : ST_OK;
}
