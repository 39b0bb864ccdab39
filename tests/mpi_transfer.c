#include "suite.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/rng.h"
#include "pd/transfer_impl.h"
#include "pd/wait.h"
#include "plain_ops.h"

/* np: 2 3 5 8 12 */
const char *const suite_name = "mpi_transfer";

enum { PAGE = 8, MAX_PROMPT = 40, REQUESTS = 6, LAYERS = 6, DRAFT_LAYERS = 3 };
static const double give_up = 40; /* seconds without progress: a test fails instead of hanging */

/* ---- a small model: 6 layers, 2 of them MLA, and a draft of 3 layers --------------------------------------- */

static struct config model_of(int kda_heads)
{
    struct config c;
    memset(&c, 0, sizeof c);
    c.n_layers = LAYERS, c.n_mla = 2, c.n_kda = 4, c.vocab = 512, c.hash = 77;
    for (int i = 0; i < LAYERS; i++) c.is_kda[i] = i != 2 && i != 5;
    c.kda_heads = kda_heads, c.kda_dim = 8, c.conv_kernel = 4, c.kv_rank = 24, c.qk_rope = 8;
    return c;
}

static struct draft_config draft_of(int kv_heads)
{
    struct draft_config d;
    memset(&d, 0, sizeof d);
    d.n_layers = DRAFT_LAYERS, d.kv_heads = kv_heads, d.q_heads = 16, d.head_dim = 16, d.block = 8, d.hash = 78;
    return d;
}

/* The value every side must agree on, as bits; a pure function of what the element is. Never a NaN. */
static uint32_t element(int request, const struct layout_entry *e, int head, int token, int dim)
{
    uint64_t what = (uint64_t)e->comp | (uint64_t)e->layer << 4 | (uint64_t)e->kv << 12 | (uint64_t)head << 16 | (uint64_t)token << 32;
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

static void visit(struct walk *w, int64_t index, int bytes, int head, int token, int dim)
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

static void walk_item(struct walk *w)
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

static int tokens_of(int request)
{
    if (request == LONG_REQUEST) return LONG_PROMPT;
    return 1 + (int)(rng_u64(21, 0, (uint64_t)request) % MAX_PROMPT);
}

static int pages_of(int request)
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

static void expect(int ok, const char *what, int line)
{
    if (ok) return;
    failures++;
    fprintf(stderr, "%s: rank %d: line %d: %s (last message: %s)\n", suite_name, suite_rank(), line, what, err_last());
}
#define EXPECT(x) expect((x) != 0, #x, __LINE__)

static void report(void *ctx)
{
    struct bench *b = ctx;
    transfer_table(b->t);
}

static enum status open_state(struct bench *b)
{
    struct layout l;
    const struct rank_role *r = &b->w.role;
    TRY(b->prefill ? memory_source_layout(&b->c, &b->d, &b->w.topo, &b->opt.plan, r->stage, r->tp_rank, &l)
                   : memory_decode_layout(&b->c, &b->d, &b->w.topo, &b->opt.plan, r->tp_rank, &l));
    enum status st = state_open(&b->o, &l, b->opt.plan.max_tokens / PAGE + 1, &b->st);
    if (st != ST_OK) layout_free(&l);
    return st;
}

static struct transfer_options options(void)
{
    return (struct transfer_options){
        .verify = 1, .drop_component = -1, .drop_rank = -1,
        .plan = {.page = PAGE, .max_tokens = MAX_PROMPT + 16, .max_prompt = MAX_PROMPT, .concurrency = 3, .prefill_slots = 2,
                 .staging_slots = 2, .chunk = 16, .order = PAGE_HEAD_MAJOR, .kv = KV_BF16, .draft_kv = KV_BF16, .stripe = 1}};
}

static enum status bench_open(struct bench *b, const struct topology *topo, const struct transfer_options *opt, enum place place)
{
    memset(b, 0, sizeof *b);
    int wide = topo->prefill.tp == 8 || topo->decode.tp == 8;
    b->c = model_of(wide ? 24 : 12);
    b->d = draft_of(topo->n_ranks % 2 ? 8 : 2); /* 2 heads: both sides replicate */
    b->opt = *opt;
    b->o = plain_ops(place);
    TRY(world_start(NULL, NULL, &b->w));
    TRY(world_split(&b->w, topo));
    b->prefill = b->w.role.role == ROLE_PREFILL;
    b->rank = b->w.rank;
    TRY(open_state(b));
    wait_limit(give_up, report, b);
    return transfer_open(&b->w, &b->c, &b->d, &b->opt, b->prefill ? &b->st : NULL, &b->t);
}

static void bench_close(struct bench *b)
{
    transfer_close(b->t);
    wait_limit(0, NULL, NULL);
    state_close(&b->st);
    world_stop(&b->w);
}

/* fill or compare what the state slot holds for a request; returns wrong elements */
static int64_t walk_state(struct bench *b, int state_slot, int request, int compare)
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

static struct layout_aux aux_for(int request, uint32_t generation)
{
    int n = tokens_of(request);
    return (struct layout_aux){.request = (uint64_t)request, .generation = generation, .first_token = request + 100,
                               .prompt_tokens = n, .state_position = n, .draft_rows = n};
}

static int last_stage(const struct bench *b)
{
    return b->prefill && b->w.role.last_stage;
}

/* ---- random runs: every rank at its own pace --------------------------------------------------------------------- */

static uint64_t dice(struct bench *b, uint64_t *i, uint64_t sides)
{
    return rng_u64(31, (uint64_t)b->rank, (*i)++) % sides;
}

struct job { int request, slot, state_slot, queued, final; };

static enum status source_admit(struct bench *b, int *next, struct job *j)
{
    int s = *next % b->opt.plan.staging_slots, state_slot;
    if (*next == REQUESTS || b->t->from[s].active) return ST_OK;
    TRY(state_admit(&b->st, tokens_of(*next), &state_slot));
    if (state_slot < 0) return ST_OK;
    walk_state(b, state_slot, *next, 0);
    *j = (struct job){*next, s, state_slot, 0, 0};
    TRY(transfer_begin(b->t, s, (uint32_t)(*next / b->opt.plan.staging_slots + 1), *next, state_slot, pages_of(*next)));
    ++*next;
    return ST_OK;
}

static enum status source_step(struct bench *b, struct job *j, uint64_t *luck)
{
    uint32_t generation = (uint32_t)(j->request / b->opt.plan.staging_slots + 1);
    struct layout_aux aux = aux_for(j->request, generation);
    int n = pages_of(j->request);
    if (j->queued < n) {
        int more = 1 + (int)dice(b, luck, 3), p1 = j->queued + more < n ? j->queued + more : n;
        TRY(transfer_pages(b->t, j->slot, j->queued, p1));
        j->queued = p1;
    } else if (!j->final) {
        TRY(transfer_final(b->t, j->slot, last_stage(b) ? &aux : NULL));
        j->final = 1;
    } else if (!b->t->from[j->slot].active) {
        TRY(state_release(&b->st, j->state_slot));
        j->request = -1;
    }
    return ST_OK;
}

static enum status source_run(struct bench *b)
{
    struct job job[2] = {{.request = -1}, {.request = -1}};
    struct waiter w = {0, 0};
    uint64_t luck = 0;
    int next = 0, idle = 0;
    while (next < REQUESTS || job[0].request >= 0 || job[1].request >= 0) {
        for (int i = 0; i < 2; i++) {
            if (job[i].request < 0) TRY(source_admit(b, &next, &job[i]));
            if (job[i].request >= 0 && dice(b, &luck, 3)) TRY(source_step(b, &job[i], &luck));
        }
        if (dice(b, &luck, 20) == 0) usleep((useconds_t)dice(b, &luck, 3000)); /* a delayed source */
        TRY(transfer_push(b->t, (int)dice(b, &luck, 2), &idle));
        if (idle) wait_reset(&w);
        TRY(wait_pause(&w));
    }
    return ST_OK;
}

static void canary(struct bench *b, int slot, int check)
{
    char *p = b->t->data + slot * b->t->slot_bytes;
    int64_t bad = 0;
    for (int64_t i = 0; i < b->t->slot_bytes; i++) {
        char v = (char)(i * 7 + slot);
        if (check) bad += p[i] != v;
        else p[i] = v;
    }
    if (!check) return;
    EXPECT(bad == 0); /* nobody wrote to a slot that is not granted */
}

/* bytes and puts that arrived are those of the plan */
static void check_stats(struct bench *b, int slot, int request)
{
    struct transfer_request r;
    transfer_request_stats(b->t, slot, &r);
    for (int c = 0; c < COMP_N; c++) {
        int64_t want = 0;
        for (int s = 0; s < b->t->n_peers; s++)
            want += transfer_plan_bytes(&b->t->peer[s].plan, (enum comp)c, pages_of(request), NULL);
        EXPECT(r.bytes[c] == (uint64_t)want && want > 0 && r.puts[c] > 0 && r.seconds[c] >= 0);
        EXPECT(!b->opt.verify || r.checksum[c] != 0);
    }
    EXPECT(r.first_s > -0.1 && r.done_s >= r.first_s - 0.1 && r.done_s <= world_now(&b->w)); /* clocks agree within a round trip */
}

static enum status dest_take(struct bench *b, int slot, int request)
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

static enum status dest_run(struct bench *b)
{
    int n_slots = b->opt.plan.staging_slots, taken = 0, on[8];
    double grant_at[8];
    struct waiter w = {0, 0};
    uint64_t luck = 0;
    for (int s = 0; s < n_slots; s++) {
        on[s] = s; /* request of the slot, granted or waiting for it */
        grant_at[s] = world_now(&b->w) + (double)dice(b, &luck, 10) * 1e-3;
        canary(b, s, 0);
    }
    while (taken < REQUESTS) {
        TRY(transfer_progress(b->t));
        for (int s = 0; s < n_slots; s++) {
            int ready = 0, granted = b->t->to[s].granted;
            if (on[s] >= REQUESTS || (!granted && world_now(&b->w) < grant_at[s])) continue;
            if (!granted) {
                canary(b, s, 1);
                TRY(transfer_grant(b->t, s, (uint32_t)(on[s] / n_slots + 1), on[s], pages_of(on[s])));
                continue;
            }
            TRY(transfer_ready(b->t, s, &ready));
            if (!ready) continue;
            EXPECT(ready == 1);
            TRY(dest_take(b, s, on[s]));
            canary(b, s, 0);
            on[s] += n_slots;
            grant_at[s] = world_now(&b->w) + (double)dice(b, &luck, 4) * 1e-3;
            taken++;
            wait_reset(&w);
        }
        TRY(wait_pause(&w));
    }
    return ST_OK;
}

/* what the sources counted is what the plans say for all requests */
static void check_counts(struct bench *b)
{
    for (int c = 0; c < COMP_N && b->prefill; c++) {
        int64_t want = 0, runs_all = 0;
        for (int d = 0; d < b->t->n_peers; d++)
            for (int r = 0; r < REQUESTS; r++) {
                int64_t runs;
                want += transfer_plan_bytes(&b->t->peer[d].plan, (enum comp)c, pages_of(r), &runs);
                runs_all += runs;
            }
        struct transfer_count n = transfer_counts(b->t, (enum comp)c);
        EXPECT(n.bytes == (uint64_t)want);
        int whole = b->opt.transport == TRANSPORT_RMA && b->t->piece_bytes == PIECE_BYTES;
        EXPECT(!whole || n.puts <= (uint64_t)runs_all);
        EXPECT(want == 0 || (n.puts > 0 && n.flushes > 0 && n.words > 0));
    }
    EXPECT(b->st.n_free_pages == b->st.layout.spec.n_pages && b->st.n_free_slots == b->st.layout.spec.n_slots);
}

static void run_one(const struct topology *topo, const struct transfer_options *opt, enum place place, int piece)
{
    struct bench b;
    char text[64];
    failures = 0;
    enum status st = bench_open(&b, topo, opt, place);
    if (st == ST_OK && piece) { /* limits that a small model would never meet */
        b.t->piece_bytes = piece;
        b.t->bounce_bytes = 2 * piece + 1;
        b.t->most_puts = 3;
    }
    if (st == ST_OK) st = b.prefill ? source_run(&b) : dest_run(&b);
    EXPECT(st == ST_OK);
    if (st == ST_OK) check_counts(&b);
    topology_text(topo, text, sizeof text);
    int all = suite_all(failures == 0);
    if (all) bench_close(&b); /* after a failure peers may be stuck; the process ends anyway */
    ck_assert_msg(all, "%s, transport %d, window %d, verify %d, %d slots, order %d, place %d", text, (int)opt->transport, (int)opt->window,
                  opt->verify, opt->plan.staging_slots, (int)opt->plan.order, (int)place);
}

static struct topology topology_make_small(int pp, int tp, int decode)
{
    return (struct topology){.prefill = {pp, tp, 1}, .decode = {1, decode, 1}, .n_prefill = pp * tp, .n_decode = decode,
                             .n_ranks = pp * tp + decode};
}

static const char *forced_osc(void)
{
    const char *v = getenv("OMPI_MCA_osc");
    return v ? v : "";
}

/* every pp, tp and decode tp that together are this many ranks */
START_TEST(every_topology_delivers_every_value)
{
    static const int tps[] = {1, 2, 4, 8};
    int turn = 0;
    for (int pp = 1; pp <= LAYERS; pp++)
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 4; k++) {
                struct topology topo = topology_make_small(pp, tps[i], tps[k]);
                if (topo.n_ranks != suite_size() || (topo.n_ranks % 2 == 0 && topo.n_ranks == 10)) continue;
                struct transfer_options opt = options();
                run_one(&topo, &opt, PLACE_HOST, 0);
                opt.transport = TRANSPORT_SENDRECV;
                opt.plan.staging_slots = 3;
                opt.plan.order = turn % 2 ? PAGE_HEAD_MAJOR : PAGE_TOKEN_MAJOR;
                run_one(&topo, &opt, turn % 3 ? PLACE_HOST : PLACE_DEVICE, 0);
                opt = options();
                opt.verify = 0;
                opt.window = strcmp(forced_osc(), "sm") == 0 ? WINDOW_ALLOCATE : WINDOW_CREATE;
                opt.plan.staging_slots = 1;
                opt.plan.stripe = 0;
                opt.plan.order = turn % 2 ? PAGE_TOKEN_MAJOR : PAGE_HEAD_MAJOR;
                opt.plan.kv = KV_FP32;
                run_one(&topo, &opt, turn % 3 ? PLACE_HOST : PLACE_DEVICE, turn % 2 ? 0 : 301);
                turn++;
            }
    ck_assert(turn > 0 || suite_size() < 2);
}
END_TEST

/* ---- single steps, with barriers between them -------------------------------------------------------------------------- */

static struct topology any_topology(void)
{
    int n = suite_size();
    return n == 2 ? topology_make_small(1, 1, 1) : n == 3 ? topology_make_small(1, 1, 2) : n == 5 ? topology_make_small(3, 1, 2)
         : n == 8 ? topology_make_small(2, 2, 4) : n == 12 ? topology_make_small(2, 4, 4) : topology_make_small(n - 1, 1, 1);
}

static void barrier(struct bench *b)
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

/* begin a request and queue all of it */
static enum status source_queue(struct bench *b, int slot, uint32_t generation, int request, int *state_slot)
{
    struct layout_aux aux = aux_for(request, generation);
    TRY(state_admit(&b->st, tokens_of(request), state_slot));
    walk_state(b, *state_slot, request, 0);
    TRY(transfer_begin(b->t, slot, generation, request, *state_slot, pages_of(request)));
    TRY(transfer_pages(b->t, slot, 0, pages_of(request)));
    return transfer_final(b->t, slot, last_stage(b) ? &aux : NULL);
}

static enum status source_finish(struct bench *b, int state_slot)
{
    struct waiter w = {0, 0};
    for (int idle = 0;;) {
        TRY(transfer_push(b->t, 1, &idle));
        if (idle) break;
        TRY(wait_pause(&w));
    }
    return state_release(&b->st, state_slot);
}

static enum status source_all(struct bench *b, int slot, uint32_t generation, int request)
{
    int s;
    TRY(source_queue(b, slot, generation, request, &s));
    return source_finish(b, s);
}

static enum status dest_wait(struct bench *b, int slot, int want)
{
    struct waiter w = {0, 0};
    for (int ready = 0;;) {
        TRY(transfer_ready(b->t, slot, &ready));
        if (ready == want) return ST_OK;
        if (ready) return ERR(ST_E_FAULT, "ready is %d, %d is wanted", ready, want);
        TRY(wait_pause(&w));
    }
}

static enum status dest_all(struct bench *b, int slot, uint32_t generation, int request)
{
    TRY(transfer_grant(b->t, slot, generation, request, pages_of(request)));
    TRY(dest_wait(b, slot, 1));
    return dest_take(b, slot, request);
}

/* run fn on one transfer per transport */
static void each_transport(void (*fn)(struct bench *b), struct transfer_options opt)
{
    struct topology topo = any_topology();
    if (suite_size() < 2) return;
    for (int k = TRANSPORT_RMA; k <= TRANSPORT_SENDRECV; k++) {
        struct bench b;
        failures = 0;
        opt.transport = (enum transport_kind)k;
        enum status st = bench_open(&b, &topo, &opt, PLACE_HOST);
        EXPECT(st == ST_OK);
        if (st == ST_OK) fn(&b);
        int all = suite_all(failures == 0);
        if (all) bench_close(&b);
        ck_assert_msg(all, "transport %d", k);
    }
}

/* the line of the first expected word of a component; NULL: this rank does not expect it */
static struct word_line *line_for(struct bench *b, int slot, enum comp comp)
{
    for (int i = 0; i < b->t->n_expected; i++) {
        const struct expected *e = &b->t->expected[i];
        if (e->comp == comp) return (void *)(b->t->words + words_at(b->t, slot, b->t->peer[e->peer].rank, comp));
    }
    return NULL;
}

static void old_words(struct bench *b)
{
    int ready = -9;
    EXPECT((b->prefill ? source_all(b, 0, 1, 0) : dest_all(b, 0, 1, 0)) == ST_OK);
    barrier(b);
    if (!b->prefill) { /* all sources late; by hand: DONE of generation 1, with the bytes of the new request */
        EXPECT(transfer_grant(b->t, 0, 2, 1, pages_of(1)) == ST_OK);
        for (int i = 0; i < b->t->n_expected; i++) {
            const struct expected *e = &b->t->expected[i];
            struct word_line *l = (void *)(b->t->words + words_at(b->t, 0, b->t->peer[e->peer].rank, e->comp));
            l->bytes = (uint64_t)b->t->to[0].want[i];
            l->word = word_pack((struct word_value){1, WORD_DONE, e->comp, 1});
        }
        EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
        for (int i = 0; i < b->t->n_expected; i++) { /* nor do words of a generation to come */
            const struct expected *e = &b->t->expected[i];
            struct word_line *l = (void *)(b->t->words + words_at(b->t, 0, b->t->peer[e->peer].rank, e->comp));
            l->word = word_pack((struct word_value){3, WORD_DONE, e->comp, 1});
        }
        EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
        EXPECT(transfer_unpack(b->t, 0, &b->st, 0, NULL) == ST_E_INTERNAL);
        EXPECT(transfer_grant(b->t, 0, 3, 2, 1) == ST_E_INTERNAL); /* sources of generation 2 are not quiet */
    }
    barrier(b);
    EXPECT((b->prefill ? source_all(b, 0, 2, 1) : dest_wait(b, 0, 1)) == ST_OK);
    if (!b->prefill) EXPECT(dest_take(b, 0, 1) == ST_OK);
}

START_TEST(words_of_other_generations_say_nothing)
{
    each_transport(old_words, options());
}
END_TEST

static int table_says(struct bench *b, const char *a, const char *c)
{
    char text[8192] = "", name[64];
    snprintf(name, sizeof name, "table-%d", b->rank);
    const char *path = suite_tmp(name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) return 0;
    log_to(fd);
    transfer_table(b->t);
    log_to(-1);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    unlink(path);
    return n > 0 && strstr(text, a) && strstr(text, c);
}

/* rank 0 never writes its KDA words (--inject drop:kda@0) */
static void dropped(struct bench *b)
{
    int ready = 0, quiet = 0;
    if (b->prefill) {
        EXPECT(source_all(b, 0, 1, 3) == ST_OK);
    } else {
        EXPECT(transfer_grant(b->t, 0, 1, 3, pages_of(3)) == ST_OK);
    }
    barrier(b);
    int expects = !b->prefill && b->t->peer[0].plan.has[COMP_KDA];
    for (int i = 0; i < 50 && !b->prefill; i++) EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK);
    if (expects) {
        EXPECT(ready == 0);
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == 0);
        EXPECT(table_says(b, "from rank 0 stage 0: kda", "request 3 slot 0"));
    } else if (!b->prefill) {
        EXPECT(ready == 1);
    }
}

START_TEST(a_dropped_word_is_missed_and_named)
{
    struct transfer_options opt = options();
    opt.drop_component = COMP_KDA;
    opt.drop_rank = 0;
    each_transport(dropped, opt);
}
END_TEST

static void wrong_count(struct bench *b)
{
    int ready = -9;
    EXPECT((b->prefill ? source_all(b, 1, 1, 2) : transfer_grant(b->t, 1, 1, 2, pages_of(2))) == ST_OK);
    barrier(b);
    if (!b->prefill) {
        EXPECT(dest_wait(b, 1, 1) == ST_OK);
        for (int c = 0; c < COMP_N; c++) {
            struct word_line *l = line_for(b, 1, (enum comp)c);
            if (!l) continue;
            l->bytes -= 2;
            EXPECT(transfer_ready(b->t, 1, &ready) == ST_E_FAULT && strstr(err_last(), comp_name[c]));
            l->bytes += 2;
        }
        EXPECT(transfer_ready(b->t, 1, &ready) == ST_OK && ready == 1);
        EXPECT(dest_take(b, 1, 2) == ST_OK);
    }
}

START_TEST(a_wrong_byte_count_is_a_fault)
{
    each_transport(wrong_count, options());
}
END_TEST

/* one byte of each component turned in the slot; checksums must name it */
static void flipped(struct bench *b)
{
    struct layout_aux aux;
    int s;
    EXPECT((b->prefill ? source_all(b, 0, 1, 4) : transfer_grant(b->t, 0, 1, 4, pages_of(4))) == ST_OK);
    barrier(b);
    if (b->prefill) return;
    EXPECT(dest_wait(b, 0, 1) == ST_OK);
    EXPECT(state_admit(&b->st, tokens_of(4), &s) == ST_OK);
    for (int i = 0; i < b->t->slot.n; i++) {
        const struct layout_entry *e = &b->t->slot.entry[i];
        int64_t items = comp_paged(e->comp) ? pages_of(4) : 1, in = e->comp == COMP_AUX ? 60 : e->item_bytes - 1;
        char *p = b->t->data + e->base + (items - 1) * e->stride + in;
        *p ^= 1;
        EXPECT(transfer_unpack(b->t, 0, &b->st, s, &aux) == ST_E_FAULT && strstr(err_last(), comp_name[e->comp]) &&
               strstr(err_last(), "checksum"));
        *p ^= 1;
    }
    EXPECT(state_release(&b->st, s) == ST_OK);
    EXPECT(dest_take(b, 0, 4) == ST_OK);
}

START_TEST(a_flipped_byte_is_a_fault)
{
    each_transport(flipped, options());
}
END_TEST

/* the source's own state holds a NaN: sums agree, the scan must find it; and the pre-fill is a NaN everywhere */
static void nan_left(struct bench *b)
{
    enum { REQUEST = 4 };
    int s, comps[] = {COMP_MLA, COMP_KDA, COMP_CONV, COMP_DRAFT};
    for (int k = 0; k < 4; k++) {
        uint32_t generation = (uint32_t)k + 1;
        if (b->prefill) {
            struct layout_aux aux = aux_for(REQUEST, generation);
            EXPECT(state_admit(&b->st, tokens_of(REQUEST), &s) == ST_OK);
            walk_state(b, s, REQUEST, 0);
            for (int i = 0; i < b->st.layout.n; i++) {
                const struct layout_entry *e = &b->st.layout.entry[i];
                int64_t id = comp_paged(e->comp) ? state_pages(&b->st, s)[pages_of(REQUEST) - 1] : s;
                uint16_t *bad = state_item(&b->st, e->comp, e->layer, e->kv, id); /* whole: every destination gets a share */
                for (int64_t v = 0; v < e->item_bytes / 2 && (int)e->comp == comps[k]; v++) bad[v] = NAN_FILL;
            }
            EXPECT(transfer_begin(b->t, 0, generation, REQUEST, s, pages_of(REQUEST)) == ST_OK);
            EXPECT(transfer_pages(b->t, 0, 0, pages_of(REQUEST)) == ST_OK);
            EXPECT(transfer_final(b->t, 0, last_stage(b) ? &aux : NULL) == ST_OK);
        } else {
            EXPECT(transfer_grant(b->t, 0, generation, REQUEST, pages_of(REQUEST)) == ST_OK);
            const uint16_t *p = (const void *)b->t->data;
            const struct layout_entry *last = &b->t->slot.entry[b->t->slot.n - 1];
            for (int64_t i = 0; i < last->base / 2; i += 1)
                if (p[i] != NAN_FILL) EXPECT(!"pre-filled");
        }
        barrier(b); /* nothing moves before the pre-fill was looked at: sources push below */
        if (b->prefill) EXPECT(source_finish(b, s) == ST_OK);
        barrier(b);
        if (b->prefill) continue;
        EXPECT(dest_wait(b, 0, 1) == ST_OK);
        EXPECT(state_admit(&b->st, tokens_of(REQUEST), &s) == ST_OK);
        EXPECT(transfer_unpack(b->t, 0, &b->st, s, NULL) == ST_E_FAULT && strstr(err_last(), comp_name[comps[k]]) && strstr(err_last(), "NaN"));
        EXPECT(state_release(&b->st, s) == ST_OK);
    }
}

START_TEST(a_nan_is_a_fault)
{
    each_transport(nan_left, options());
}
END_TEST

static uint64_t all_puts(struct bench *b)
{
    uint64_t n = 0;
    for (int c = 0; c < COMP_N; c++) n += transfer_counts(b->t, (enum comp)c).puts;
    return n;
}

/* a page id outside the pool: refused when it is queued, and nothing of that call is ever put */
static void bad_page(struct bench *b)
{
    enum { REQUEST = 4 };
    int s, idle;
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, REQUEST, pages_of(REQUEST)) == ST_OK);
    barrier(b);
    if (b->prefill) {
        int n = pages_of(REQUEST), has_pages = 0;
        for (int d = 0; d < b->t->n_peers; d++) has_pages |= b->t->peer[d].plan.has[COMP_MLA] || b->t->peer[d].plan.has[COMP_DRAFT];
        EXPECT(state_admit(&b->st, tokens_of(REQUEST), &s) == ST_OK);
        walk_state(b, s, REQUEST, 0);
        int32_t *page = b->st.page_table + s * b->st.max_pages, kept = page[n - 1];
        EXPECT(transfer_begin(b->t, 0, 1, REQUEST, s, n) == ST_OK);
        const int32_t bad[] = {-1, 1 << 30, b->st.layout.spec.n_pages};
        for (int i = 0; i < 3; i++) {
            page[n - 1] = bad[i];
            if (!has_pages) break; /* a stage without MLA and draft sends none */
            EXPECT(transfer_pages(b->t, 0, 0, n) == ST_E_RANGE);
            EXPECT(transfer_push(b->t, 1, &idle) == ST_OK);
            EXPECT(all_puts(b) == 0 && idle);
        }
        page[n - 1] = kept;
        EXPECT(transfer_pages(b->t, 0, 0, n) == ST_OK);
        struct layout_aux aux = aux_for(REQUEST, 1);
        EXPECT(transfer_final(b->t, 0, last_stage(b) ? &aux : NULL) == ST_OK);
        EXPECT(source_finish(b, s) == ST_OK);
    } else {
        EXPECT(dest_wait(b, 0, 1) == ST_OK);
        EXPECT(dest_take(b, 0, REQUEST) == ST_OK);
    }
}

START_TEST(a_page_outside_the_pool_is_never_put)
{
    struct transfer_options opt = options();
    opt.plan.stripe = 0; /* the last page is everybody's who sends pages */
    each_transport(bad_page, opt);
}
END_TEST

/* one source gives up half-way; the slot is given away again only when all are quiet; then the next request passes */
static void failing(struct bench *b)
{
    int s, idle, quiet = 0, before = 0;
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, 0, pages_of(0)) == ST_OK);
    barrier(b);
    if (b->prefill) {
        EXPECT(state_admit(&b->st, tokens_of(0), &s) == ST_OK);
        EXPECT(transfer_begin(b->t, 0, 1, 0, s, pages_of(0)) == ST_OK);
        EXPECT(transfer_pages(b->t, 0, 0, 1) == ST_OK);
        EXPECT(transfer_push(b->t, 0, &idle) == ST_OK);
        if (b->rank == 0) {
            EXPECT(transfer_fail(b->t, 0) == ST_OK);
            EXPECT(source_finish(b, s) == ST_OK);
        }
    }
    barrier(b);
    int hears = !b->prefill && b->t->peer[0].expected;
    if (hears) EXPECT(dest_wait(b, 0, -1) == ST_OK);
    if (hears && b->w.topo.n_prefill > 1) {
        for (int p = 1; p < b->t->n_peers; p++) before |= b->t->peer[p].expected;
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == !before);
        if (before) EXPECT(transfer_grant(b->t, 0, 2, 1, 1) == ST_E_INTERNAL);
    }
    barrier(b);
    if (b->prefill && b->rank > 0) {
        EXPECT(transfer_fail(b->t, 0) == ST_OK);
        EXPECT(source_finish(b, s) == ST_OK);
    }
    barrier(b);
    if (!b->prefill) {
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == 1);
        EXPECT(dest_all(b, 0, 2, 1) == ST_OK);
    } else {
        EXPECT(source_all(b, 0, 2, 1) == ST_OK);
    }
}

START_TEST(after_a_failure_the_next_request_passes)
{
    each_transport(failing, options());
}
END_TEST

/* A destination without GRANT only holds back its own runs. Push without settling writes no word in the same call. */
static void one_withholds(struct bench *b)
{
    enum { REQUEST = 4 };
    int s = -1, idle = 1, late = b->w.topo.n_decode - 1, is_late = !b->prefill && b->w.role.tp_rank == late;
    if (!b->prefill && !is_late) EXPECT(transfer_grant(b->t, 0, 1, REQUEST, pages_of(REQUEST)) == ST_OK);
    if (is_late) canary(b, 0, 0);
    barrier(b);
    if (b->prefill) {
        uint64_t words = 0;
        EXPECT(source_queue(b, 0, 1, REQUEST, &s) == ST_OK);
        EXPECT(transfer_push(b->t, 0, &idle) == ST_OK);
        for (int c = 0; c < COMP_N; c++) words += transfer_counts(b->t, (enum comp)c).words;
        EXPECT(words == 0); /* issued only */
        EXPECT(!idle || b->t->peer[late].expected == 0);
        for (int i = 0; i < 20; i++) EXPECT(transfer_push(b->t, i % 2, &idle) == ST_OK);
        EXPECT(idle == (b->t->peer[late].expected == 0));
        for (int d = 0; d < late; d++) EXPECT(b->t->from[0].out[d].done);
    } else if (!is_late) {
        EXPECT(dest_wait(b, 0, 1) == ST_OK);
        EXPECT(dest_take(b, 0, REQUEST) == ST_OK);
    }
    barrier(b);
    if (is_late) {
        canary(b, 0, 1);
        EXPECT(dest_all(b, 0, 1, REQUEST) == ST_OK);
    }
    if (b->prefill) EXPECT(source_finish(b, s) == ST_OK);
}

START_TEST(credits_gate_every_destination_on_its_own)
{
    each_transport(one_withholds, options());
}
END_TEST

/* tens of thousands of runs in one request, queued at once */
static void many(struct bench *b)
{
    EXPECT((b->prefill ? source_all(b, 0, 1, LONG_REQUEST) : dest_all(b, 0, 1, LONG_REQUEST)) == ST_OK);
    if (last_stage(b)) EXPECT(transfer_counts(b->t, COMP_DRAFT).bytes > 0);
    if (last_stage(b) && b->opt.transport == TRANSPORT_RMA && b->w.topo.n_prefill < 3 && b->w.topo.n_decode > 1)
        EXPECT(transfer_counts(b->t, COMP_DRAFT).puts > 10000);
}

START_TEST(ten_thousand_pieces_pass)
{
    struct transfer_options opt = options();
    opt.plan.order = PAGE_TOKEN_MAJOR;
    opt.plan.max_prompt = LONG_PROMPT;
    opt.plan.max_tokens = LONG_PROMPT + 16;
    opt.plan.prefill_slots = opt.plan.concurrency = opt.plan.staging_slots = 1;
    each_transport(many, opt);
}
END_TEST

static void misuse(struct bench *b)
{
    struct layout_aux aux = aux_for(0, 1), *a = last_stage(b) ? &aux : NULL;
    int s, idle, most = (MAX_PROMPT + PAGE - 1) / PAGE;
    if (!b->prefill) {
        EXPECT(transfer_push(b->t, 1, &idle) == ST_E_INTERNAL);
        EXPECT(transfer_begin(b->t, 0, 1, 0, 0, 1) == ST_E_INTERNAL);
        EXPECT(transfer_ready(b->t, 0, &idle) == ST_E_INTERNAL);
        EXPECT(transfer_grant(b->t, 2, 1, 0, 1) == ST_E_RANGE);
        EXPECT(transfer_grant(b->t, 0, 0, 0, 1) == ST_E_RANGE);
        EXPECT(transfer_grant(b->t, 0, 1u << 24, 0, 1) == ST_E_RANGE);
        EXPECT(transfer_grant(b->t, 0, 1, 0, most + 1) == ST_E_RANGE); /* a prompt too long for a slot */
        EXPECT(transfer_grant(b->t, 0, 1, 0, 0) == ST_E_RANGE);
        return;
    }
    EXPECT(transfer_grant(b->t, 0, 1, 0, 1) == ST_E_INTERNAL);
    EXPECT(transfer_pages(b->t, 0, 0, 1) == ST_E_INTERNAL); /* not begun */
    EXPECT(transfer_fail(b->t, 0) == ST_E_INTERNAL);
    EXPECT(state_admit(&b->st, tokens_of(0), &s) == ST_OK);
    EXPECT(transfer_begin(b->t, -1, 1, 0, s, 1) == ST_E_RANGE);
    EXPECT(transfer_begin(b->t, 0, 0, 0, s, 1) == ST_E_RANGE);
    EXPECT(transfer_begin(b->t, 0, 1, 0, -1, 1) == ST_E_RANGE); /* a negative slot is not a success */
    EXPECT(transfer_begin(b->t, 0, 1, 0, s, most + 1) == ST_E_RANGE);
    EXPECT(transfer_begin(b->t, 0, 1, 0, s, pages_of(0)) == ST_OK);
    EXPECT(transfer_final(b->t, 0, a) == ST_E_INTERNAL); /* pages missing */
    EXPECT(transfer_pages(b->t, 0, 1, pages_of(0)) == ST_E_RANGE);
    EXPECT(transfer_pages(b->t, 0, 0, pages_of(0) + 1) == ST_E_RANGE);
    EXPECT(transfer_pages(b->t, 0, 0, pages_of(0)) == ST_OK);
    EXPECT(transfer_pages(b->t, 0, 0, pages_of(0)) == ST_E_RANGE); /* twice */
    if (a) {
        EXPECT(transfer_final(b->t, 0, NULL) == ST_E_INTERNAL);
        aux.generation = 9;
        EXPECT(transfer_final(b->t, 0, a) == ST_E_INTERNAL);
    } else {
        EXPECT(transfer_final(b->t, 0, &aux) == ST_E_INTERNAL);
    }
    EXPECT(all_puts(b) == 0);
}

START_TEST(misuse_is_refused)
{
    each_transport(misuse, options());
}
END_TEST

/* refused before a window exists, on all ranks alike, with the numbers or the remedy in the message */
START_TEST(windows_that_cannot_be_are_refused)
{
    struct topology topo = any_topology();
    if (suite_size() < 2) return;
    struct bench b;
    struct transfer_options opt = options();
    opt.plan.staging_slots = 4000000;
    failures = 0;
    EXPECT(bench_open(&b, &topo, &opt, PLACE_HOST) == ST_E_CONFIG && strstr(err_last(), "/dev/shm") && strstr(err_last(), "available"));
    bench_close(&b);
    char kept[64];
    snprintf(kept, sizeof kept, "%s", forced_osc());
    setenv("OMPI_MCA_osc", "sm", 1);
    opt = options();
    opt.window = WINDOW_CREATE;
    EXPECT(bench_open(&b, &topo, &opt, PLACE_HOST) == ST_E_CONFIG && strstr(err_last(), "--window allocate"));
    bench_close(&b);
    if (*kept) setenv("OMPI_MCA_osc", kept, 1);
    else unsetenv("OMPI_MCA_osc");
    ck_assert(suite_all(failures == 0));
}
END_TEST

START_TEST(plan_hash_sees_every_option)
{
    struct topology topo = topology_make_small(2, 2, 4);
    struct config c = model_of(12);
    struct draft_config d = draft_of(8);
    struct plan_options o = options().plan;
    uint64_t base = 0, h = 0;
    int ok = transfer_plan_all_hash(&c, &d, &topo, &o, &base) == ST_OK && transfer_plan_all_hash(&c, &d, &topo, &o, &h) == ST_OK && h == base;
    for (int k = 0; k < 6 && ok; k++) {
        struct plan_options x = o;
        struct topology y = topo;
        if (k == 0) x.page = 16;
        if (k == 1) x.order = PAGE_TOKEN_MAJOR;
        if (k == 2) x.kv = KV_FP32;
        if (k == 3) x.stripe = 0;
        if (k == 4) x.max_prompt = 48;
        if (k == 5) y = topology_make_small(2, 2, 2);
        if (k == 3) y = topology_make_small(1, 4, 1); /* striping needs more sources than destinations */
        ok = transfer_plan_all_hash(&c, &d, &y, &x, &h) == ST_OK && h != base;
    }
    ck_assert(suite_all(ok));
    ck_assert(suite_all(transfer_plan_all_hash(&c, NULL, &topo, &o, &h) == ST_OK && h != base));
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "transfer", 100);
    SUITE_TEST(tc, every_topology_delivers_every_value);
    SUITE_TEST(tc, words_of_other_generations_say_nothing);
    SUITE_TEST(tc, a_dropped_word_is_missed_and_named);
    SUITE_TEST(tc, a_wrong_byte_count_is_a_fault);
    SUITE_TEST(tc, a_flipped_byte_is_a_fault);
    SUITE_TEST(tc, a_nan_is_a_fault);
    SUITE_TEST(tc, a_page_outside_the_pool_is_never_put);
    SUITE_TEST(tc, after_a_failure_the_next_request_passes);
    SUITE_TEST(tc, credits_gate_every_destination_on_its_own);
    SUITE_TEST(tc, ten_thousand_pieces_pass);
    SUITE_TEST(tc, misuse_is_refused);
    SUITE_TEST(tc, windows_that_cannot_be_are_refused);
    SUITE_TEST(tc, plan_hash_sees_every_option);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
