/* Everything a shown plan says, computed once: layouts, pair plans, memory of every rank, bubbles, figures. */
#include "plan/print_priv.h"

#include <string.h>

#include "base/buf.h"
#include "base/hash.h"

const int print_wave[BUBBLE_WAVES] = {1, 8, 64};

int print_sources(const struct survey *s)
{
    return s->pp * s->P;
}

const struct pair_plan *print_pair(const struct survey *s, int stage, int p, int q)
{
    return &s->pair[(q * s->pp + stage) * s->P + p];
}

void survey_free(struct survey *s)
{
    for (int i = 0; s->pair && i < print_sources(s) * s->D; i++) transfer_plan_free(&s->pair[i]);
    for (int i = 0; s->src && i < print_sources(s); i++) layout_free(&s->src[i]);
    for (int i = 0; s->dst && i < s->D; i++) layout_free(&s->dst[i]);
    mem_free(s->pair);
    mem_free(s->src);
    mem_free(s->dst);
    mem_free(s->mem);
}

static enum status survey_layouts(struct survey *s)
{
    s->dst = mem_alloc((size_t)s->D, sizeof *s->dst, "destination layouts");
    s->src = mem_alloc((size_t)print_sources(s), sizeof *s->src, "source layouts");
    s->pair = mem_alloc((size_t)print_sources(s) * (size_t)s->D, sizeof *s->pair, "pair plans");
    if (!s->dst || !s->src || !s->pair) return ST_E_NOMEM;
    for (int q = 0; q < s->D; q++)
        TRY(s->t->single ? memory_decode_layout(s->c, s->d, s->t, s->o, q, &s->dst[q])
                         : memory_slot_layout(s->c, s->d, s->t, s->o, q, &s->dst[q]));
    for (int i = 0; i < print_sources(s); i++)
        TRY(memory_source_layout(s->c, s->d, s->t, s->o, i / s->P, i % s->P, &s->src[i]));
    return ST_OK;
}

static enum status survey_pairs(struct survey *s)
{
    int n = print_sources(s);
    if (n == 0) return ST_OK;
    const struct pair_plan **p = mem_alloc((size_t)n, sizeof *p, "plans of a destination");
    const struct layout **l = mem_alloc((size_t)n, sizeof *l, "sources of a destination");
    enum status st = p && l ? ST_OK : ST_E_NOMEM;
    for (int q = 0; q < s->D && st == ST_OK; q++) {
        for (int i = 0; i < n && st == ST_OK; i++) {
            struct pair_plan *at = &s->pair[q * n + i];
            st = transfer_plan_pair(s->c, s->d, &s->src[i], i / s->P, i / s->P == s->pp - 1, &s->dst[q], s->o->stripe,
                                    at);
            p[i] = at;
            l[i] = &s->src[i];
        }
        if (st == ST_OK) st = transfer_plan_check(s->c, s->d, p, l, n, &s->dst[q], s->n_pages);
    }
    mem_free(l);
    mem_free(p);
    return st;
}

static uint64_t survey_hash(const struct survey *s)
{
    const struct topology *t = s->t;
    const struct plan_options *o = s->o;
    const int64_t head[] = {(int64_t)s->c->hash,
                            s->d ? (int64_t)s->d->hash : 0,
                            t->single,
                            t->prefill.pp,
                            t->prefill.tp,
                            t->prefill.ep,
                            t->decode.pp,
                            t->decode.tp,
                            t->decode.ep,
                            o->page,
                            o->max_tokens,
                            o->max_prompt,
                            o->concurrency,
                            o->prefill_slots,
                            o->staging_slots,
                            o->chunk,
                            o->order,
                            o->kv,
                            o->draft_kv,
                            o->stripe != 0,
                            o->share.n};
    uint64_t h = hash64(head, sizeof head, 0);
    if (o->share.n) h = hash64(o->share.node, (size_t)o->share.n * sizeof *o->share.node, h);
    for (int i = 0; i < s->D; i++) {
        uint64_t v = layout_hash(&s->dst[i]);
        h = hash64(&v, sizeof v, h);
    }
    for (int i = 0; i < print_sources(s) * s->D; i++) h = hash64(&s->pair[i].hash, sizeof s->pair[i].hash, h);
    return h;
}

static void add_rank(struct totals *t, int rank, const struct rank_memory *m)
{
    const int64_t v[] = {m->weight_bytes, m->pool_bytes, m->work_bytes,   m->coll_bytes, m->ops_bytes,
                         m->window_bytes, m->pack_bytes, m->device_bytes, m->bytes};
    struct rank_memory *s = &t->sum, *x = &t->most;
    int64_t *sum[] = {&s->weight_bytes, &s->pool_bytes, &s->work_bytes,   &s->coll_bytes, &s->ops_bytes,
                      &s->window_bytes, &s->pack_bytes, &s->device_bytes, &s->bytes};
    int64_t *most[] = {&x->weight_bytes, &x->pool_bytes, &x->work_bytes,   &x->coll_bytes, &x->ops_bytes,
                       &x->window_bytes, &x->pack_bytes, &x->device_bytes, &x->bytes};
    if (m->device_bytes > x->device_bytes) t->fullest = rank;
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        *sum[i] += v[i]; /* memory_rank refused what could leave int64 over all ranks */
        if (v[i] > *most[i]) *most[i] = v[i];
    }
}

static enum status survey_memory(struct survey *s)
{
    s->mem = mem_alloc((size_t)s->t->n_ranks, sizeof *s->mem, "memory of the ranks");
    if (!s->mem) return ST_E_NOMEM;
    for (int r = 0; r < s->t->n_ranks; r++) {
        TRY(memory_rank(s->c, s->d, s->t, s->o, r, &s->mem[r]));
        add_rank(&s->totals, r, &s->mem[r]);
    }
    return ST_OK;
}

static enum status survey_bubbles(struct survey *s)
{
    int by_default = s->o->concurrency < 8 ? s->o->concurrency : 8, slots = s->o->prefill_slots;
    if (slots == by_default) slots = 0; /* then each wave has what a run of that concurrency would have */
    for (int i = 0; i < BUBBLE_WAVES && !s->t->single; i++)
        for (int b = 0; b < BALANCE_N; b++)
            TRY(bubble_wave(s->c, s->d, s->t, s->o, s->n_tokens, print_wave[i], slots, (enum balance)b,
                            &s->bubble[i][b]));
    return ST_OK;
}

enum status survey_make(const struct config *c, const struct draft_config *d, const struct topology *t,
                               const struct plan_options *o, int n_tokens, struct survey *s_p)
{
    struct survey s = {.c = c, .d = d, .t = t, .o = o, .n_tokens = n_tokens, .D = t->decode.tp};
    if (n_tokens < 1 || n_tokens > o->max_prompt)
        return ERR(ST_E_CONFIG, "plan: a prompt of %d tokens; 1 to max_prompt %d can be shown", n_tokens,
                   o->max_prompt);
    if (o->page < 1) return ERR(ST_E_CONFIG, "plan: page %d: at least 1 is needed", o->page);
    s.n_pages = (n_tokens - 1) / o->page + 1;
    if (!t->single) {
        s.P = t->prefill.tp;
        s.pp = t->prefill.pp;
    }
    enum status st = survey_memory(&s); /* first: what passes it does not leave int64 in the sums of the rest */
    if (st == ST_OK) st = survey_layouts(&s);
    if (st == ST_OK) st = survey_pairs(&s);
    if (st == ST_OK) st = survey_bubbles(&s);
    if (st != ST_OK) {
        survey_free(&s);
        return st;
    }
    s.hash = survey_hash(&s);
    *s_p = s;
    return ST_OK;
}

/* ---- figures ------------------------------------------------------------------------------------------------- */

struct volume print_volume(const struct survey *s, enum comp comp, int n_pages)
{
    const struct config *c = s->c;
    int64_t e = kv_bytes(s->o->kv), ch = (int64_t)c->kda_heads * c->kda_dim;
    struct volume v = {.unique = 0};
    if (comp == COMP_MLA) v.unique = e * c->n_mla * n_pages * s->o->page * (c->kv_rank + c->qk_rope);
    if (comp == COMP_KDA) v.unique = ch * c->kda_dim * 4 * c->n_kda;
    if (comp == COMP_CONV) v.unique = e * ch * 3 * (c->conv_kernel - 1) * c->n_kda;
    if (comp == COMP_AUX) v.unique = sizeof(struct layout_aux);
    if (comp == COMP_DRAFT && s->d)
        v.unique = (int64_t)2 * s->d->n_layers * s->d->kv_heads * s->d->head_dim * kv_bytes(s->o->draft_kv) * n_pages *
                   s->o->page;
    v.held = comp == COMP_MLA || comp == COMP_AUX ? s->D * v.unique : v.unique;
    if (comp == COMP_DRAFT && s->d && s->D > s->d->kv_heads) v.held = s->D / s->d->kv_heads * v.unique;
    for (int i = 0; i < print_sources(s) * s->D; i++) {
        int64_t runs;
        v.wire += transfer_plan_bytes(&s->pair[i], comp, n_pages, &runs);
        v.runs += runs;
    }
    for (int i = 0; i < print_sources(s); i++) v.received += transfer_plan_bytes(&s->pair[i], comp, n_pages, NULL);
    for (int i = 0; i < s->dst[0].n; i++) v.copies += s->dst[0].entry[i].comp == comp;
    return v;
}

int64_t print_sent(const struct survey *s, int stage, int p, int *peers_p)
{
    int64_t sum = 0;
    *peers_p = 0;
    for (int q = 0; q < s->D; q++) {
        const struct pair_plan *x = print_pair(s, stage, p, q);
        int64_t before = sum;
        for (int k = 0; k < COMP_N; k++) sum += transfer_plan_bytes(x, (enum comp)k, s->n_pages, NULL);
        *peers_p += sum > before;
    }
    return sum;
}

struct stage_view print_stage(const struct survey *s, int stage)
{
    int pp = s->t->single ? 1 : s->pp, index[CONFIG_MAX_TAPS];
    struct stage_view v = {.layers = split_stage(s->c->n_layers, pp, stage)};
    for (int i = v.layers.begin; i < v.layers.end; i++) {
        v.kda += s->c->is_kda[i] != 0;
        v.mla += !s->c->is_kda[i];
    }
    if (s->d) v.n_taps = split_taps(s->d, s->c->n_layers, pp, stage, index);
    for (int i = 0; i < v.n_taps; i++) v.tap[i] = s->d->tap[index[i]];
    return v;
}

const char *print_role(const struct survey *s, struct rank_role r)
{
    return s->t->single ? "single" : r.role == ROLE_PREFILL ? "prefill" : "decode";
}

const struct plan_copy *print_copy(const struct survey *s, enum comp comp, int p, int q, int *n_p)
{
    const struct plan_copy *first = NULL;
    *n_p = 0;
    for (int stage = 0; stage < s->pp; stage++) {
        const struct pair_plan *x = print_pair(s, stage, p, q);
        for (int i = 0; i < x->n; i++)
            if (x->copy[i].comp == comp) {
                if (!first) first = &x->copy[i];
                ++*n_p;
            }
    }
    return first;
}

int print_words(const struct survey *s, int q, int *sources_p)
{
    int words = 0;
    *sources_p = 0;
    for (int i = 0; i < print_sources(s); i++) {
        const struct pair_plan *x = &s->pair[q * print_sources(s) + i];
        int before = words;
        for (int k = 0; k < COMP_N; k++) words += x->has[k] != 0;
        *sources_p += words > before;
    }
    return words;
}

int64_t print_window_bytes(const struct survey *s, int pages)
{
    const struct draft_config *d = s->d;
    int64_t row = (int64_t)2 * d->n_layers * d->kv_heads * d->head_dim * kv_bytes(s->o->draft_kv);
    return row * s->o->page * pages;
}

int print_window_pages(const struct survey *s)
{
    if (!s->d || !s->d->window || s->n_tokens <= s->d->window) return 0;
    for (int i = 0; i < s->d->n_layers; i++)
        if (s->d->type[i] != DRAFT_SLIDING) return 0;
    return split_pages(s->d->window, s->o->page);
}
