/* plan_kit - a small model's layouts and a player of transfer plans, with planners that are wrong in known ways: shared by
 * the tests of src/plan. */
#ifndef PDFLASH_TESTS_PLAN_KIT_H
#define PDFLASH_TESTS_PLAN_KIT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"
#include "plan/share.h"
#include "plan/transfer_plan.h"
#include "suite.h"

enum { POOL = 19, PAGES = 13, SLOTS = 3, POISON = 0xA5 };

struct world { /* pp stages of P sources, D destinations, of one small model */
    struct config c;
    struct draft_config d;
    int pp, P, D, page, stripe, cold; /* cold: no draft on either side */
    int node_size;                    /* decode ranks of a node that share; 0: none do */
    enum page_order order;
    enum kv_dtype kv, draft_kv;
};

static inline struct world small(int kda_heads, int draft_heads, int P, int D)
{
    static const uint8_t kind[6] = {1, 1, 0, 1, 0, 1}; /* stage 0: layers 0-2, stage 1: layers 3-5 */
    struct world w = {.pp = 2, .P = P, .D = D, .page = 4};
    w.c = (struct config){.n_layers = 6, .n_kda = 4, .n_mla = 2, .kda_heads = kda_heads, .kda_dim = 3, .conv_kernel = 4,
                          .kv_rank = 5, .qk_rope = 2, .vocab = 99, .hash = 11};
    memcpy(w.c.is_kda, kind, sizeof kind);
    w.d = (struct draft_config){.n_layers = 3, .kv_heads = draft_heads, .head_dim = 5, .block = 8, .mask_id = 7,
                                .n_taps = 2, .tap = {1, 3}, .rope_theta = 1e4, .hash = 22};
    return w;
}

static inline const struct draft_config *draft_of(const struct world *w)
{
    return w->cold ? NULL : &w->d;
}

static inline struct layout_spec spec_of(const struct world *w, int tp, int rank)
{
    return (struct layout_spec){.page = w->page, .order = w->order, .kv = w->kv, .draft_kv = w->draft_kv, .tp = tp,
                                .tp_rank = rank};
}

static inline struct layout source(const struct world *w, int stage, int p)
{
    struct layout l;
    struct layout_spec s = spec_of(w, w->P, p);
    s.layers = split_stage(w->c.n_layers, w->pp, stage);
    s.has_aux = stage == w->pp - 1;
    s.has_draft = s.has_aux && !w->cold;
    s.n_pages = POOL;
    s.n_slots = SLOTS;
    ck_assert_int_eq(layout_make(&w->c, draft_of(w), &s, &l), ST_OK);
    return l;
}

static inline struct layout slot(const struct world *w, int q)
{
    struct layout l;
    struct layout_spec s = spec_of(w, w->D, q);
    s.layers = (struct range){0, w->c.n_layers};
    s.has_aux = 1;
    s.has_draft = !w->cold;
    int node[32];
    share_nodes(w->D, w->node_size ? w->node_size : 1, node);
    if (w->node_size) share_spec(&(struct share){w->D, node}, draft_of(w), &s);
    s.n_pages = PAGES;
    s.n_slots = 1;
    ck_assert_int_eq(layout_make(&w->c, draft_of(w), &s, &l), ST_OK);
    return l;
}

static inline enum status pair(const struct world *w, const struct layout *src, int stage, const struct layout *dst,
                        struct pair_plan *p)
{
    return transfer_plan_pair(&w->c, draft_of(w), src, stage, stage == w->pp - 1, dst, w->stripe, p);
}

/* ---- values: element i of an item says which (component, layer, head, token, dim) it is -------------------- */

static inline uint32_t element(const struct world *w, const struct layout_entry *e, int i, int logical_page)
{
    int a = 0, b = 0, c = 0, n = e->n_heads, d = w->c.kda_dim, hd = w->d.head_dim, row = w->c.kv_rank + w->c.qk_rope;
    switch (e->comp) {
    case COMP_MLA: a = logical_page * w->page + i / row, b = i % row; break;
    case COMP_KDA: a = e->head0 + i / (d * d), b = i / d % d, c = i % d; break;
    case COMP_CONV: a = e->head0 + i % (n * d) / d, b = i / (n * d), c = i % d; break; /* b = row * 3 + q|k|v */
    case COMP_DRAFT:
        if (w->order == PAGE_HEAD_MAJOR)
            a = i / (w->page * hd), b = i / hd % w->page;
        else
            b = i / (n * hd), a = i / hd % n;
        a += e->head0, b += logical_page * w->page, c = i % hd;
        break;
    default: a = i;
    }
    return (uint32_t)e->comp << 29 | (uint32_t)e->kv << 28 | (uint32_t)e->layer << 24 | (uint32_t)a << 12 | (uint32_t)b << 4 |
           (uint32_t)c;
}

static inline void fill(const struct world *w, const struct layout_entry *e, unsigned char *at, int logical_page)
{
    int size = e->comp == COMP_KDA ? 4 : e->comp == COMP_AUX ? 1 : kv_bytes(e->comp == COMP_DRAFT ? w->draft_kv : w->kv);
    for (int i = 0; i < e->item_bytes / size; i++) {
        uint32_t v = element(w, e, i, logical_page);
        if (size < 4) v = (uint32_t)(rng_u64(5, 6, v) >> 40);
        memcpy(at + i * size, &v, (size_t)size);
    }
}

/* the arena of one side; page[k] = physical page of logical page k (0: absent), slot_ = its state slot */
static inline unsigned char *image(const struct world *w, const struct layout *l, const int page[PAGES], int slot_)
{
    unsigned char *m = mem_alloc((size_t)l->bytes, 1, "an arena");
    ck_assert_ptr_nonnull(m);
    memset(m, POISON, (size_t)l->bytes);
    for (int i = 0; i < l->n; i++) {
        const struct layout_entry *e = &l->entry[i];
        if (e->comp != COMP_MLA && e->comp != COMP_DRAFT) {
            fill(w, e, m + e->base + slot_ * e->stride, 0);
            continue;
        }
        for (int k = 0; k < PAGES; k++)
            if (page[k]) fill(w, e, m + e->base + page[k] * e->stride, k);
    }
    return m;
}

static inline void shuffled_pages(uint64_t seed, int page[PAGES]) /* distinct, never 0, not monotone; logical page 0 unused */
{
    int id[POOL - 1];
    for (int i = 0; i < POOL - 1; i++) id[i] = i + 1;
    for (int i = POOL - 2; i > 0; i--) {
        int j = (int)(rng_u64(seed, 1, (uint64_t)i) % (uint64_t)(i + 1)), t = id[i];
        id[i] = id[j], id[j] = t;
    }
    page[0] = 0;
    for (int k = 1; k < PAGES; k++) page[k] = id[k];
}

struct wire {
    const unsigned char *src;
    unsigned char *dst;
};
static inline enum status put(void *ctx, const struct plan_run *r)
{
    struct wire *x = ctx;
    memcpy(x->dst + r->dst, x->src + r->src, (size_t)r->bytes);
    return ST_OK;
}

/* ---- mutants: wrong planners, each of which was shipped by somebody ------------------------------------------ */

enum mutant { NONE, FLAT, MODULO, QKV, KKV, SWAP_KV, POSITION, DROP, SKIP_KDA, ROW, ALL_SEND, SAME_REM, STRIDE };

/* conv rows as [k|k|v]: the third of a row that is q is taken from k */
static inline void three_ways(struct pair_plan *p)
{
    struct plan_copy *copy = mem_alloc(3 * (size_t)p->n, sizeof *copy, "copies");
    int n = 0;
    for (int i = 0; i < p->n; i++) {
        int parts = p->copy[i].comp == COMP_CONV && p->copy[i].n_runs[0] == 3 ? 3 : 1;
        for (int part = 0; part < parts; part++) {
            struct plan_copy *k = &copy[n++];
            *k = p->copy[i];
            if (parts == 1) continue;
            k->n_runs[0] = 1;
            k->src_off += (part ? part : 1) * k->src_step[0];
            k->dst_off += part * k->dst_step[0];
        }
    }
    mem_free(p->copy);
    p->copy = copy;
    p->n = n;
}

static inline void bend(enum mutant m, const struct world *w, struct pair_plan *p, const struct layout *src,
                 const struct layout *dst)
{
    int n = 0;
    if (m == KKV) three_ways(p);
    for (int i = 0; i < p->n; i++) {
        struct plan_copy *k = &p->copy[i];
        const struct layout_entry *e = &src->entry[k->src_entry];
        int draft = k->comp == COMP_DRAFT, conv = k->comp == COMP_CONV, kda = k->comp == COMP_KDA;
        if (m == FLAT && draft) /* the source's item for everything */
            k->src_off = k->dst_off = 0, k->run = e->item_bytes, k->n_runs[0] = k->n_runs[1] = 1;
        if (m == MODULO && draft) k->src_off = p->dst_tp_rank % w->d.kv_heads * k->run;
        if (m == QKV && conv && k->n_runs[0] == 3) k->n_runs[0] = 1, k->run *= 3, k->src_off *= 3, k->dst_off *= 3;
        if (m == SWAP_KV && draft) k->src_entry = layout_find(src, COMP_DRAFT, e->layer, !e->kv);
        if (m == POSITION && kda && e->layer >= 3) k->dst_entry = layout_find(dst, COMP_KDA, e->layer == 3 ? 0 : 1, 0);
        if (m == ROW && conv) k->n_runs[1] = 2;
        if (m == ALL_SEND) k->page_mod = 1, k->page_rem = 0;
        if (m == SAME_REM) k->page_rem = 0;
        if (m == STRIDE && draft) k->dst_step[0] = k->src_step[0];
        int gone = (m == SKIP_KDA && !p->has[COMP_MLA] && (kda || conv)) ||
                   (m == DROP && p->src_stage == 1 && p->src_tp_rank == 1 && i == p->n - 1);
        if (!gone) p->copy[n++] = *k;
    }
    p->n = n;
}

static inline enum status deliver(const struct world *w, int stage, int s, const struct layout *dst, unsigned char *window,
                           enum mutant m, int page_shift, struct layout *l, struct pair_plan *p)
{
    int page[PAGES], slot_ = 1 + s % (SLOTS - 1);
    *l = source(w, stage, s);
    ck_assert_int_eq(pair(w, l, stage, dst, p), ST_OK);
    bend(m, w, p, l, dst);
    shuffled_pages((uint64_t)(stage * 100 + s), page);
    unsigned char *pool = image(w, l, page, slot_);
    struct wire x = {pool, window};
    enum status st = ST_OK;
    for (int j = 0; j < p->n && st == ST_OK; j++) {
        const struct plan_copy *k = &p->copy[j];
        int paged = k->comp == COMP_MLA || k->comp == COMP_DRAFT;
        if (!paged) st = transfer_plan_runs(p, k, l, dst, slot_, 0, put, &x);
        for (int n = PAGES - 1; paged && n > 0 && st == ST_OK; n--) /* backwards: no order is promised */
            st = transfer_plan_runs(p, k, l, dst, page[n] + page_shift, n, put, &x);
    }
    mem_free(pool);
    return st;
}

/* bytes that are wrong over all destinations; -1 when a run was refused; *check_p: verdict on coverage */
static inline int64_t play(const struct world *w, enum mutant m, int page_shift, enum status *check_p)
{
    int n = w->pp * w->P, identity[PAGES] = {0};
    int64_t wrong = 0;
    struct layout *l = mem_alloc((size_t)n, sizeof *l, "sources");
    struct pair_plan *p = mem_alloc((size_t)n, sizeof *p, "plans");
    const struct layout **lp = mem_alloc((size_t)n, sizeof *lp, "sources");
    const struct pair_plan **pp = mem_alloc((size_t)n, sizeof *pp, "plans");
    for (int k = 1; k < PAGES; k++) identity[k] = k;
    *check_p = ST_OK;
    for (int q = 0; q < w->D; q++) {
        struct layout dst = slot(w, q);
        size_t bytes = (size_t)dst.bytes;
        unsigned char *window = mem_alloc(2 * bytes, 1, "two staging slots"), *want = image(w, &dst, identity, 0);
        memset(window, POISON, 2 * bytes); /* the second slot is used, the first must stay */
        for (int i = 0; i < n; i++) {
            if (deliver(w, i / w->P, i % w->P, &dst, window + bytes, m, page_shift, &l[i], &p[i]) != ST_OK) wrong = -1;
            lp[i] = &l[i], pp[i] = &p[i];
        }
        for (size_t i = 0; wrong >= 0 && i < bytes; i++) wrong += (window[i] != POISON) + (window[bytes + i] != want[i]);
        enum status st = transfer_plan_check(&w->c, &w->d, pp, lp, n, &dst, PAGES);
        if (st != ST_OK) *check_p = st;
        for (int i = 0; i < n; i++) layout_free(&l[i]), transfer_plan_free(&p[i]);
        layout_free(&dst);
        mem_free(window), mem_free(want);
    }
    mem_free(l), mem_free(p), mem_free(lp), mem_free(pp);
    return wrong;
}

static inline void must_arrive(const struct world *w)
{
    enum status covered;
    int64_t wrong = play(w, NONE, 0, &covered);
    ck_assert_msg(wrong == 0 && covered == ST_OK, "%d->%d heads %d order %d kv %d stripe %d: %ld bytes wrong, %s", w->P, w->D,
                  w->d.kv_heads, w->order, w->kv, w->stripe, (long)wrong, err_name(covered));
}

#endif
