#include "suite.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transfer_bench.h"

/* Every rank at its own pace, over all topologies of the number of ranks. */
/* np: 2 3 5 8 12 */
const char *const suite_name = "mpi_transfer";

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
        int whole = b->opt.transport == TRANSPORT_RMA && b->t->piece_bytes == PIECE_BYTES && !b->t->packing;
        EXPECT(!whole || n.puts <= (uint64_t)runs_all);
        EXPECT(want == 0 || (n.puts > 0 && n.flushes > 0 && n.words > 0));
    }
    EXPECT(b->st.n_free_pages == b->st.layout.spec.n_pages && b->st.n_free_slots == b->st.layout.spec.n_slots);
}

/* what ranks of a node read from one another is what a plan without sharing would have brought them, and nothing else */
static void check_shared(struct bench *b)
{
    for (int c = 0; c < COMP_N && !b->prefill; c++) {
        struct layout whole;
        struct plan_options alone = b->opt.plan;
        int64_t want = 0;
        alone.share.n = 0;
        EXPECT(memory_slot_layout(&b->c, &b->d, &b->w.topo, &alone, b->w.role.tp_rank, &whole) == ST_OK);
        for (int i = 0; i < whole.n; i++)
            for (int r = 0; r < REQUESTS; r++)
                if ((int)whole.entry[i].comp == c) want += whole.entry[i].item_bytes * pages_of(r);
        if (!(b->t->slot.spec.absent >> c & 1)) want = 0;
        EXPECT(transfer_shared(b->t, (enum comp)c) == (uint64_t)want);
        layout_free(&whole);
    }
}

static int late; /* turns of device arenas so far */

static void run_one(const struct topology *topo, const struct transfer_options *opt, enum place place, int piece)
{
    struct bench b;
    char text[64];
    failures = 0;
    plain_late.polls = place == PLACE_DEVICE ? ++late % 7 : 0; /* moves that end at once, too */
    enum status st = bench_open(&b, topo, opt, place);
    if (st == ST_OK && piece) { /* limits that a small model would never meet */
        b.t->piece_bytes = piece;
        b.t->pack_bytes = 2 * piece + 1;
        b.t->most_puts = 3;
    }
    if (st == ST_OK) st = b.prefill ? source_run(&b) : dest_run(&b);
    EXPECT(st == ST_OK);
    if (st == ST_OK) check_counts(&b);
    if (st == ST_OK) check_shared(&b);
    topology_text(topo, text, sizeof text);
    int all = suite_all(failures == 0);
    if (all) bench_close(&b); /* after a failure peers may be stuck; the process ends anyway */
    ck_assert_msg(all, "%s, nodes of %d, transport %d, window %d, verify %d, %d slots, order %d, place %d", text,
                  bench_node_size, (int)opt->transport, (int)opt->window, opt->verify, opt->plan.staging_slots, (int)opt->plan.order, (int)place);
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
                run_one(&topo, &opt, turn % 2 ? PLACE_DEVICE : PLACE_HOST, 0);
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

/* one copy a node: pretended nodes of two, of three and of eight ranks, and the host; one slot that is always reused */
START_TEST(nodes_share_what_their_ranks_hold_alike)
{
    static const int tps[] = {1, 2, 4, 8}, nodes[] = {-1, 2, 3, 8};
    const char *osc = forced_osc();
    int turn = 0, can_share = !*osc || strstr(osc, "sm"), can_expose = can_share && strcmp(osc, "sm") != 0;
    if (!can_share) return; /* mpirun was told to leave no component for memory that a node shares */
    for (int pp = 1; pp <= 3; pp++)
        for (int i = 0; i < 4; i++)
            for (int k = 1; k < 4; k++) {
                struct topology topo = topology_make_small(pp, tps[i], tps[k]);
                if (topo.n_ranks != suite_size()) continue;
                struct transfer_options opt = options();
                bench_node_size = nodes[turn % 4];
                opt.plan.staging_slots = 1 + turn % 2;
                opt.plan.order = turn % 2 ? PAGE_TOKEN_MAJOR : PAGE_HEAD_MAJOR;
                if (can_expose) run_one(&topo, &opt, turn % 3 ? PLACE_HOST : PLACE_DEVICE, turn % 2 ? 301 : 0);
                bench_node_size = nodes[(turn + 1) % 4];
                opt.transport = TRANSPORT_SENDRECV;
                opt.plan.staging_slots = 2 - turn % 2;
                run_one(&topo, &opt, turn % 2 ? PLACE_HOST : PLACE_DEVICE, 0);
                bench_node_size = 0;
                turn++;
            }
    ck_assert(turn > 0 || suite_size() < 3);
}
END_TEST

START_TEST(plan_hash_sees_every_option)
{
    struct topology topo = topology_make_small(2, 2, 4);
    struct config c = model_of(12);
    struct draft_config d = draft_of(8);
    struct plan_options o = options().plan;
    uint64_t base = 0, h = 0;
    int ok = transfer_plan_all_hash(&c, &d, &topo, &o, &base) == ST_OK &&
             transfer_plan_all_hash(&c, &d, &topo, &o, &h) == ST_OK && h == base;
    for (int k = 0; k < 7 && ok; k++) {
        int node[4] = {0, 0, 2, 2};
        struct plan_options x = o;
        struct topology y = topo;
        if (k == 0) x.page = 16;
        if (k == 1) x.order = PAGE_TOKEN_MAJOR;
        if (k == 2) x.kv = KV_FP32;
        if (k == 3) x.stripe = 0;
        if (k == 4) x.max_prompt = 48;
        if (k == 5) y = topology_make_small(2, 2, 2);
        if (k == 6) x.share = (struct share){4, node};
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
    SUITE_TEST(tc, nodes_share_what_their_ranks_hold_alike);
    SUITE_TEST(tc, plan_hash_sees_every_option);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
