/* transfer_bench - a small model, its state by value, and a transfer under test: shared by the tests of transfer. */
#ifndef PDFLASH_TESTS_TRANSFER_BENCH_H
#define PDFLASH_TESTS_TRANSFER_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"
#include "pd/transfer_impl.h"
#include "pd/wait.h"
#include "plain_ops.h"
#include "suite.h"

enum { PAGE = 8, MAX_PROMPT = 40, REQUESTS = 6, LAYERS = 6, DRAFT_LAYERS = 3 };
static const double give_up = 40; /* seconds without progress: a test fails instead of hanging */

/* ---- a small model: 6 layers, 2 of them MLA, and a draft of 3 layers --------------------------------------- */

static inline struct config model_of(int kda_heads)
{
    struct config c;
    memset(&c, 0, sizeof c);
    c.n_layers = LAYERS, c.n_mla = 2, c.n_kda = 4, c.vocab = 512, c.hash = 77;
    for (int i = 0; i < LAYERS; i++) c.is_kda[i] = i != 2 && i != 5;
    c.kda_heads = kda_heads, c.kda_dim = 8, c.conv_kernel = 4, c.kv_rank = 24, c.qk_rope = 8;
    return c;
}

static inline struct draft_config draft_of(int kv_heads)
{
    struct draft_config d;
    memset(&d, 0, sizeof d);
    d.n_layers = DRAFT_LAYERS, d.kv_heads = kv_heads, d.q_heads = 16, d.head_dim = 16, d.block = 8, d.hash = 78;
    return d;
}

/* The value every side must agree on, as bits; a pure function of what the element is. Never a NaN. */
static inline uint32_t element(int request, const struct layout_entry *e, int head, int token, int dim)
{
    uint64_t what = (uint64_t)e->comp | (uint64_t)e->layer << 4 | (uint64_t)e->kv << 12 | (uint64_t)head << 16 |
                    (uint64_t)token << 32;
    return (uint32_t)(rng_u64((uint64_t)request + 1, what, (uint64_t)dim) >> 16);
}

struct walk { /* one item of an entry, filled or compared */
    const struct config *c;
    const struct draft_config *d;
    const struct layout *l;
    const struct layout_entry *e;
    int request, page; /* logical page */
    char *p;
    int compare;
    int64_t wrong;
};

static inline void visit(struct walk *w, int64_t index, int bytes, int head, int token, int dim)
{
    uint32_t v = element(w->request, w->e, head, token, dim), have = 0;
    char *p = w->p + index * bytes;
    if (bytes == 2) v &= 0xff7f; /* exponent never all ones */
    else v &= 0xff7fffff;
    if (!w->compare) {
        memcpy(p, &v, (size_t)bytes);
        return;
    }
    memcpy(&have, p, (size_t)bytes);
    w->wrong += have != (bytes == 2 ? v & 0xffff : v);
}

static inline void walk_item(struct walk *w)
{
    const struct layout_entry *e = w->e;
    const struct layout_spec *s = &w->l->spec;
    int64_t i = 0;
    int kb = kv_bytes(s->kv), db = kv_bytes(s->draft_kv), n = w->c->kda_dim;
    if (e->comp == COMP_MLA) {
        for (int t = 0; t < s->page; t++)
            for (int k = 0; k < w->c->kv_rank + w->c->qk_rope; k++) visit(w, i++, kb, 0, w->page * s->page + t, k);
    } else if (e->comp == COMP_KDA) {
        for (int h = 0; h < e->n_heads; h++)
            for (int k = 0; k < n * n; k++) visit(w, i++, 4, e->head0 + h, 0, k);
    } else if (e->comp == COMP_CONV) {
        for (int row = 0; row < w->c->conv_kernel - 1; row++)
            for (int seg = 0; seg < 3; seg++)
                for (int h = 0; h < e->n_heads; h++)
                    for (int k = 0; k < n; k++) visit(w, i++, kb, e->head0 + h, row, seg * 100 + k);
    } else if (e->comp == COMP_DRAFT) {
        int heads = e->n_heads, dim = w->d->head_dim;
        for (int h = 0; h < heads; h++)
            for (int t = 0; t < s->page; t++)
                for (int k = 0; k < dim; k++) {
                    int64_t at = s->order == PAGE_HEAD_MAJOR ? (h * s->page + t) * dim + k : (t * heads + h) * dim + k;
                    visit(w, at, db, e->head0 + h, w->page * s->page + t, k);
                }
    }
}

enum { LONG_REQUEST = 1000, LONG_PROMPT = 1700 };

static inline int tokens_of(int request)
{
    if (request == LONG_REQUEST) return LONG_PROMPT;
    return 1 + (int)(rng_u64(21, 0, (uint64_t)request) % MAX_PROMPT);
}

static inline int pages_of(int request)
{
    return (tokens_of(request) + PAGE - 1) / PAGE;
}

/* ---- a transfer under test --------------------------------------------------------------------------------------- */

struct bench {
    struct world w;
    struct config c;
    struct draft_config d;
    struct transfer_options opt;
    struct ops o;
    struct state st; /* source pool or decode pool */
    struct transfer *t;
    int prefill, rank; /* rank within the world */
};

static int failures; /* of this process in the running test */

static inline void expect(int ok, const char *what, int line)
{
    if (ok) return;
    failures++;
    fprintf(stderr, "%s: rank %d: line %d: %s (last message: %s)\n", suite_name, suite_rank(), line, what, err_last());
}
#define EXPECT(x) expect((x) != 0, #x, __LINE__)

static inline void report(void *ctx)
{
    struct bench *b = ctx;
    transfer_table(b->t);
}

static inline enum status open_state(struct bench *b)
{
    struct layout l;
    const struct rank_role *r = &b->w.role;
    TRY(b->prefill ? memory_source_layout(&b->c, &b->d, &b->w.topo, &b->opt.plan, r->stage, r->tp_rank, &l)
                   : memory_decode_layout(&b->c, &b->d, &b->w.topo, &b->opt.plan, r->tp_rank, &l));
    enum status st = state_open(&b->o, &l, b->opt.plan.max_tokens / PAGE + 1, &b->st);
    if (st != ST_OK) layout_free(&l);
    return st;
}

static inline struct transfer_options options(void)
{
    return (struct transfer_options){.verify = 1,
                                     .drop_component = -1,
                                     .drop_rank = -1,
                                     .flip_component = -1,
                                     .flip_rank = -1,
                                     .plan = {.page = PAGE,
                                              .max_tokens = MAX_PROMPT + 16,
                                              .max_prompt = MAX_PROMPT,
                                              .concurrency = 3,
                                              .prefill_slots = 2,
                                              .staging_slots = 2,
                                              .chunk = 16,
                                              .order = PAGE_HEAD_MAJOR,
                                              .kv = KV_BF16,
                                              .draft_kv = KV_BF16,
                                              .stripe = 1}};
}

static int bench_node_size; /* decode ranks that share as one node; -1: those of the host; 0: no sharing */

static inline enum status bench_open(struct bench *b, const struct topology *topo, const struct transfer_options *opt,
                                     enum place place)
{
    memset(b, 0, sizeof *b);
    int wide = topo->prefill.tp == 8 || topo->decode.tp == 8;
    b->c = model_of(wide ? 24 : 12);
    b->d = draft_of(topo->n_ranks % 2 ? 8 : 2); /* 2 heads: both sides replicate */
    b->opt = *opt;
    b->o = plain_ops(place);
    TRY(world_start(NULL, NULL, &b->w));
    TRY(world_split(&b->w, topo));
    if (bench_node_size) {
        TRY(world_nodes(&b->w, bench_node_size > 0 ? bench_node_size : 0));
        b->opt.plan.share = (struct share){topo->n_decode, b->w.node_of};
    }
    b->prefill = b->w.role.role == ROLE_PREFILL;
    b->rank = b->w.rank;
    TRY(open_state(b));
    wait_limit(give_up, report, b);
    return transfer_open(&b->w, &b->c, &b->d, &b->opt, &b->st, &b->t);
}

static inline void bench_close(struct bench *b)
{
    transfer_close(b->t);
    wait_limit(0, NULL, NULL);
    state_close(&b->st);
    world_stop(&b->w);
}

/* fill or compare what the state slot holds for a request; returns wrong elements */
static inline int64_t walk_state(struct bench *b, int state_slot, int request, int compare)
{
    static char item[1 << 16];
    int64_t wrong = 0;
    for (int i = 0; i < b->st.layout.n; i++) {
        const struct layout_entry *e = &b->st.layout.entry[i];
        int n = comp_paged(e->comp) ? pages_of(request) : 1;
        for (int k = 0; k < n && e->comp != COMP_AUX; k++) {
            int64_t id = comp_paged(e->comp) ? state_pages(&b->st, state_slot)[k] : state_slot;
            void *at = state_item(&b->st, e->comp, e->layer, e->kv, id);
            struct walk w = {&b->c, &b->d, &b->st.layout, e, request, k, item, compare, 0};
            if (compare) b->o.get(&b->o, item, at, (size_t)e->item_bytes);
            walk_item(&w);
            if (!compare) b->o.put(&b->o, at, item, (size_t)e->item_bytes);
            wrong += w.wrong;
        }
    }
    return wrong;
}

static inline struct layout_aux aux_for(int request, uint32_t generation)
{
    int n = tokens_of(request);
    return (struct layout_aux){.request = (uint64_t)request, .generation = generation, .first_token = request + 100,
                               .prompt_tokens = n, .state_position = n, .draft_rows = n};
}

static inline int last_stage(const struct bench *b)
{
    return b->prefill && b->w.role.last_stage;
}

static inline void canary(struct bench *b, int slot, int check)
{
    char *p = b->t->data + slot * b->t->slot_bytes;
    int64_t bad = 0;
    if (bench_node_size) return; /* others may still read the slot */
    for (int64_t i = 0; i < b->t->slot_bytes; i++) {
        char v = (char)(i * 7 + slot);
        if (check) bad += p[i] != v;
        else p[i] = v;
    }
    if (!check) return;
    EXPECT(bad == 0); /* nobody wrote to a slot that is not granted */
}

/* bytes and puts that arrived are those of the plan */
static inline void check_stats(struct bench *b, int slot, int request)
{
    struct transfer_request r;
    transfer_request_stats(b->t, slot, &r);
    for (int c = 0; c < COMP_N; c++) {
        int64_t want = 0;
        for (int s = 0; s < b->t->n_peers; s++)
            want += transfer_plan_bytes(&b->t->peer[s].plan, (enum comp)c, pages_of(request), NULL);
        int here = !(b->t->slot.spec.absent >> c & 1); /* else it lies in the slot of another rank of the node */
        EXPECT(r.bytes[c] == (uint64_t)want && (want > 0) == here && (r.puts[c] > 0) == here && r.seconds[c] >= 0);
        EXPECT(!b->opt.verify || (r.checksum[c] != 0) == here);
    }
    EXPECT(r.first_s > -0.1 && r.done_s >= r.first_s - 0.1 &&
           r.done_s <= world_now(&b->w)); /* clocks agree within a round trip */
}

static inline enum status dest_take(struct bench *b, int slot, int request)
{
    struct layout_aux aux, want = aux_for(request, b->t->to[slot].generation);
    int state_slot;
    check_stats(b, slot, request);
    TRY(state_admit(&b->st, tokens_of(request), &state_slot));
    EXPECT(state_slot >= 0);
    TRY(transfer_unpack(b->t, slot, &b->st, state_slot, &aux));
    EXPECT(memcmp(&aux, &want, sizeof aux) == 0);
    EXPECT(walk_state(b, state_slot, request, 1) == 0);
    return state_release(&b->st, state_slot);
}

static inline struct topology topology_make_small(int pp, int tp, int decode)
{
    return (struct topology){.prefill = {pp, tp, 1}, .decode = {1, decode, 1}, .n_prefill = pp * tp, .n_decode = decode,
                             .n_ranks = pp * tp + decode};
}

static inline const char *forced_osc(void)
{
    const char *v = getenv("OMPI_MCA_osc");
    return v ? v : "";
}

/* the topology that the single-step tests use at this number of ranks */
static inline struct topology any_topology(void)
{
    int n = suite_size();
    return n == 2    ? topology_make_small(1, 1, 1)
           : n == 3  ? topology_make_small(1, 1, 2)
           : n == 5  ? topology_make_small(3, 1, 2)
           : n == 8  ? topology_make_small(2, 2, 4)
           : n == 12 ? topology_make_small(2, 4, 4)
                     : topology_make_small(n - 1, 1, 1);
}

/* All ranks are here; none stops serving its messages meanwhile. b->t may not be open yet. */
static inline void meet(struct bench *b)
{
    MPI_Request r;
    MPI_Ibarrier(b->w.all, &r);
    struct waiter w = {0, 0};
    for (int done = 0; !done;) { /* a side that has nothing to do keeps taking messages */
        MPI_Test(&r, &done, MPI_STATUS_IGNORE);
        if (b->t && transfer_progress(b->t) != ST_OK) break;
        if (!done && wait_pause(&w) != ST_OK) break;
    }
}

/* a request whole into slot 0; the source until it has sent all; the source until QUIET */
static inline enum status queue_all(struct bench *b, uint32_t generation, int request, int *state_slot)
{
    struct layout_aux aux = aux_for(request, generation);
    TRY(state_admit(&b->st, tokens_of(request), state_slot));
    walk_state(b, *state_slot, request, 0);
    TRY(transfer_begin(b->t, 0, generation, request, *state_slot, pages_of(request)));
    TRY(transfer_pages(b->t, 0, 0, pages_of(request)));
    return transfer_final(b->t, 0, last_stage(b) ? &aux : NULL);
}

static inline enum status push_to_end(struct bench *b, int state_slot)
{
    struct waiter w = {0, 0};
    while (transfer_sending(b->t, 0)) {
        TRY(transfer_push(b->t, 1, NULL));
        TRY(wait_pause(&w));
    }
    return state_release(&b->st, state_slot);
}

static inline enum status wait_quiet(struct bench *b)
{
    struct waiter w = {0, 0};
    for (int quiet = 0;;) {
        TRY(transfer_quiet(b->t, 0, &quiet));
        if (quiet) return ST_OK;
        TRY(wait_pause(&w));
    }
}

#endif
