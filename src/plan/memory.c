#include "plan/memory.h"

enum { BF16 = 2, FP32 = 4, WORD_LINE = 64 }; /* bytes; a word has a cache line for itself */

/* ---- weights -------------------------------------------------------------------------------------------- */

static int64_t mul(int64_t a, int64_t b)
{
    return a * b;
}

static int64_t kda_bytes(const struct config *c, int64_t tp)
{
    int64_t heads = c->kda_heads / tp, ch = heads * c->kda_dim;
    int64_t n = 5 * mul(ch, c->hidden);                      /* q, k, v, g and o_proj */
    n += mul(c->kda_dim, c->hidden) + mul(ch, c->kda_dim);   /* f_a whole, f_b */
    n += mul(heads, c->hidden);                              /* b_proj */
    int64_t f = 3 * mul(ch, c->conv_kernel) + heads + ch + c->kda_dim; /* conv, A_log, dt_bias, o_norm */
    return n * BF16 + f * FP32;
}

static int64_t mla_bytes(const struct config *c, int64_t tp)
{
    int64_t heads = c->mla_heads / tp;
    int64_t n = mul(c->q_rank, c->hidden) + c->q_rank;             /* q_a and its norm, whole */
    n += mul(c->kv_rank + c->qk_rope, c->hidden) + c->kv_rank;     /* kv_a and its norm, whole */
    n += mul(heads * (c->qk_nope + c->qk_rope), c->q_rank);        /* q_b */
    n += mul(heads * (c->qk_nope + c->v_dim), c->kv_rank);         /* kv_b */
    n += 2 * mul(heads * c->v_dim, c->hidden);                     /* g and o_proj */
    return n * BF16;
}

static int64_t moe_bytes(const struct config *c, const struct group *g)
{
    int64_t experts = c->n_experts / g->ep, cols = c->expert_inter / (g->tp / g->ep);
    int64_t n = mul(c->n_experts, c->hidden) + 2 * mul(c->latent, c->hidden) + c->latent; /* gate, down, up, norm */
    n += 3 * mul(c->shared_inter / g->tp, c->hidden);
    int64_t packed = 2 * cols * (c->latent / 2 + c->latent / 32);  /* w1, w3: 4-bit codes and a scale per 32 */
    packed += c->latent * (cols / 2 + cols / 32);                  /* w2 */
    return n * BF16 + mul(c->n_experts, FP32) + experts * packed;
}

static int64_t layer_bytes(const struct config *c, const struct group *g, int layer)
{
    int64_t n = 6 * mul(c->hidden, BF16); /* two norms, two residual norms, two residual projections */
    n += c->is_kda[layer] ? kda_bytes(c, g->tp) : mla_bytes(c, g->tp);
    return n + (layer < c->n_dense ? 3 * mul(c->dense_inter / g->tp, c->hidden) * BF16 : moe_bytes(c, g));
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
    return mul(n_taps, mul(d->hidden, d->hidden)) * BF16;
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
    return (n + d->n_layers * layer) * BF16;
}

int64_t memory_weight_bytes(const struct config *c, const struct draft_config *d, struct range layers,
                            const struct group *g, int with_embed, int with_head, int draft_part)
{
    int64_t n = 0, vocab = mul(c->vocab / g->tp, c->hidden) * BF16;
    for (int i = layers.begin; i < layers.end; i++) n += layer_bytes(c, g, i);
    if (with_embed) n += vocab;
    if (with_head) n += vocab + 3 * mul(c->hidden, BF16); /* final norm, output residual norm and projection */
    if (d && draft_part) n += fc_bytes(d, taps_of(c, d, layers)) + draft_bytes(d, g->tp, draft_part == 2);
    return n;
}

/* ---- layouts of the two sides ---------------------------------------------------------------------------- */

static enum status check_options(const struct plan_options *o)
{
    const int v[] = {o->page, o->max_tokens, o->max_prompt, o->concurrency, o->prefill_slots, o->staging_slots};
    static const char *const name[] = {"page", "max_tokens", "max_prompt", "concurrency", "prefill_slots", "staging_slots"};
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

static enum status prefill_memory(const struct config *c, const struct draft_config *d, const struct topology *t,
                                  const struct plan_options *o, struct rank_role r, struct rank_memory *m)
{
    struct layout l;
    struct range layers = split_stage(c->n_layers, t->prefill.pp, r.stage);
    TRY(memory_source_layout(c, d, t, o, r.stage, r.tp_rank, &l));
    m->pool_bytes = l.bytes;
    layout_free(&l);
    m->weight_bytes = memory_weight_bytes(c, d, layers, &t->prefill, r.first_stage, r.last_stage, r.last_stage);
    if (d && !r.last_stage) m->weight_bytes += fc_bytes(d, taps_of(c, d, layers));
    m->window_bytes = mul(t->n_decode, o->staging_slots * WORD_LINE); /* credits: a word per decode rank and slot */
    return ST_OK;
}

enum status memory_rank(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o, int world_rank, struct rank_memory *m_p)
{
    if (world_rank < 0 || world_rank >= t->n_ranks)
        return ERR(ST_E_RANGE, "rank %d of %d ranks does not exist", world_rank, t->n_ranks);
    struct rank_role r = topology_role(t, world_rank);
    struct rank_memory m = {0, 0, 0};
    struct layout l;
    if (r.role == ROLE_PREFILL) {
        TRY(prefill_memory(c, d, t, o, r, &m));
        *m_p = m;
        return ST_OK;
    }
    TRY(memory_decode_layout(c, d, t, o, r.tp_rank, &l));
    m.pool_bytes = l.bytes;
    layout_free(&l);
    m.weight_bytes = memory_weight_bytes(c, d, (struct range){0, c->n_layers}, &t->decode, 1, 1, 2);
    if (!t->single) {
        TRY(memory_slot_layout(c, d, t, o, r.tp_rank, &l));
        m.window_bytes = o->staging_slots * (l.bytes + mul(t->n_prefill, COMP_N * WORD_LINE)); /* data; a word per source and component */
        layout_free(&l);
    }
    *m_p = m;
    return ST_OK;
}
