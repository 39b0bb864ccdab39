#include "suite.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transfer_bench.h"

/* State on a device, whose moves end late (plain_ops.h): what waits for a move, what does not, and what may not happen
 * while one is on its way. Each for both transports. */
/* np: 2 3 5 8 */
const char *const suite_name = "mpi_transfer_late";

enum { FIRST = 4, NEXT = 1 };

static enum status wait_ready(struct bench *b)
{
    struct waiter w = {0, 0};
    for (int ready = 0;;) {
        TRY(transfer_ready(b->t, 0, &ready));
        if (ready == 1) return ST_OK;
        if (ready) return ERR(ST_E_FAULT, "ready is %d", ready);
        TRY(wait_pause(&w));
    }
}

/* a whole request through slot 0 */
static void pass(struct bench *b, uint32_t generation, int request)
{
    int s = -1;
    if (b->prefill) {
        EXPECT(queue_all(b, generation, request, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
        return;
    }
    EXPECT(transfer_grant(b->t, 0, generation, request, pages_of(request)) == ST_OK);
    EXPECT(wait_ready(b) == ST_OK && dest_take(b, 0, request) == ST_OK);
}

static void each_transport(void (*fn)(struct bench *b), int polls)
{
    struct topology topo = any_topology();
    if (suite_size() < 2) return;
    for (int k = TRANSPORT_RMA; k <= TRANSPORT_SENDRECV; k++) {
        struct bench b;
        struct transfer_options opt = options();
        failures = 0;
        plain_late.polls = polls;
        opt.transport = (enum transport_kind)k;
        enum status st = bench_open(&b, &topo, &opt, PLACE_DEVICE);
        EXPECT(st == ST_OK);
        if (st == ST_OK) fn(&b);
        plain_late.polls = 0;
        int all = suite_all(failures == 0);
        if (all) bench_close(&b);
        EXPECT(!all || plain_late.pinned == 0);
        ck_assert_msg(suite_all(failures == 0), "transport %d", k);
    }
}

static uint64_t bytes_put(const struct bench *b)
{
    uint64_t n = 0;
    for (int c = 0; c < COMP_N; c++) n += transfer_counts(b->t, (enum comp)c).bytes;
    return n;
}

static int sends(const struct bench *b)
{
    int n = 0;
    for (int d = 0; d < b->t->n_peers; d++) n |= b->t->peer[d].expected;
    return n != 0;
}

static void push(struct bench *b, int times)
{
    for (int i = 0; i < times; i++) EXPECT(transfer_push(b->t, 1, NULL) == ST_OK);
}

/* nothing is put, and no last word said, before its pack has ended; pushing does not wait for it */
static void packs_first(struct bench *b)
{
    int s = -1, idle = 1, ready = 0;
    uint64_t begun = plain_late.begun;
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK);
    meet(b);
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        push(b, 10);
        EXPECT(transfer_push(b->t, 1, &idle) == ST_OK && idle == !sends(b));
        EXPECT(bytes_put(b) == 0 && (plain_late.begun > begun) == sends(b) && transfer_sending(b->t, 0) == sends(b));
    }
    meet(b);
    for (int i = 0; i < 20 && !b->prefill; i++) EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
    meet(b);
    plain_late.polls = 2;
    if (b->prefill) EXPECT(push_to_end(b, s) == ST_OK);
    else EXPECT(wait_ready(b) == ST_OK && dest_take(b, 0, FIRST) == ST_OK);
    meet(b);
    pass(b, 2, NEXT);
}

START_TEST(nothing_is_put_before_it_is_packed)
{
    each_transport(packs_first, -1);
}
END_TEST

/* The request is given up while its pack is on its way: by an order, by a destination's credit, by the source. The pack
 * still reads the state, so the last word waits for it; what it brings is not put. */
static void given_up(struct bench *b, int how)
{
    int s = -1, quiet = 1, ready = 0;
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK);
    meet(b);
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        push(b, 3);
    }
    meet(b);
    if (!b->prefill && how != 2) EXPECT(transfer_stop(b->t, 0) == ST_OK);
    if (b->prefill && how == 0) EXPECT(transfer_abort(b->t, 0) == ST_OK);
    if (b->prefill && how == 2) EXPECT(transfer_fail(b->t, 0) == ST_OK);
    meet(b);
    if (b->prefill) {
        push(b, 10);
        EXPECT(transfer_sending(b->t, 0) == sends(b));
    }
    meet(b);
    if (!b->prefill) {
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == 0);
        EXPECT(transfer_drop(b->t, 0) == ST_E_PROTOCOL);
        canary(b, 0, 0);
    }
    meet(b);
    plain_late.polls = 0;
    if (b->prefill) {
        push(b, 3);
        if (how == 1) EXPECT(transfer_abort(b->t, 0) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
        EXPECT(bytes_put(b) == 0 && transfer_free_slots(b->t) == 2);
    } else {
        EXPECT(wait_quiet(b) == ST_OK);
        if (how == 2) EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == -1);
        canary(b, 0, 1);
        EXPECT(transfer_drop(b->t, 0) == ST_OK);
    }
    meet(b);
    pass(b, 2, NEXT);
}

static void by_order(struct bench *b)
{
    given_up(b, 0);
}

static void by_credit(struct bench *b)
{
    given_up(b, 1);
}

static void by_source(struct bench *b)
{
    given_up(b, 2);
}

START_TEST(an_abort_waits_for_the_pack_on_its_way)
{
    each_transport(by_order, -1);
    each_transport(by_credit, -1);
    each_transport(by_source, -1);
}
END_TEST

/* the next request may have the slot at once, but nobody writes there while it is being read */
static void unpacks(struct bench *b)
{
    struct layout_aux aux;
    int s = -1, to = -1, ready = 0;
    plain_late.polls = b->prefill ? 1 : -1;
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
        EXPECT(queue_all(b, 2, NEXT, &s) == ST_OK);
    } else {
        EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK && wait_ready(b) == ST_OK);
        EXPECT(state_admit(&b->st, tokens_of(FIRST), &to) == ST_OK);
        EXPECT(transfer_unpack(b->t, 0, &b->st, to, &aux) == ST_OK);
        EXPECT(transfer_free_slots(b->t) == 1);
        EXPECT(transfer_grant(b->t, 0, 2, NEXT, pages_of(NEXT)) == ST_OK);
        EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
    }
    meet(b);
    uint64_t put = bytes_put(b);
    if (b->prefill) push(b, 10);
    if (b->prefill) EXPECT(bytes_put(b) == put && transfer_sending(b->t, 0) == sends(b));
    meet(b);
    plain_late.polls = 1;
    if (b->prefill) EXPECT(push_to_end(b, s) == ST_OK);
    if (!b->prefill) { /* both values: what lay in the slot before it was granted anew, and what came after */
        EXPECT(wait_ready(b) == ST_OK);
        EXPECT(walk_state(b, to, FIRST, 1) == 0 && state_release(&b->st, to) == ST_OK);
        EXPECT(dest_take(b, 0, NEXT) == ST_OK);
    }
}

START_TEST(a_slot_is_not_given_away_while_it_is_read)
{
    each_transport(unpacks, 0);
}
END_TEST

/* the new life of a slot that is still being read is aborted before its sources hear of it */
static void aborted_unpack(struct bench *b)
{
    struct layout_aux aux;
    int s = -1, to = -1;
    plain_late.polls = b->prefill ? 1 : -1;
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
        EXPECT(queue_all(b, 2, NEXT, &s) == ST_OK && transfer_abort(b->t, 0) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
    } else {
        EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK && wait_ready(b) == ST_OK);
        EXPECT(state_admit(&b->st, tokens_of(FIRST), &to) == ST_OK);
        EXPECT(transfer_unpack(b->t, 0, &b->st, to, &aux) == ST_OK);
        EXPECT(transfer_grant(b->t, 0, 2, NEXT, pages_of(NEXT)) == ST_OK);
        EXPECT(transfer_stop(b->t, 0) == ST_OK && wait_quiet(b) == ST_OK && transfer_drop(b->t, 0) == ST_OK);
        EXPECT(transfer_grant(b->t, 0, 3, FIRST, pages_of(FIRST)) == ST_OK);
        plain_late.polls = 1;
        EXPECT(walk_state(b, to, FIRST, 1) == 0 && state_release(&b->st, to) == ST_OK);
    }
    meet(b);
    if (b->prefill) {
        EXPECT(queue_all(b, 3, FIRST, &s) == ST_OK && push_to_end(b, s) == ST_OK);
    } else {
        EXPECT(wait_ready(b) == ST_OK && dest_take(b, 0, FIRST) == ST_OK);
    }
}

START_TEST(an_aborted_life_begins_while_the_last_is_read)
{
    each_transport(aborted_unpack, 0);
}
END_TEST

/* what other ranks of the node still read of the first decode rank's slot is not overwritten either */
static void lent(struct bench *b)
{
    struct layout_aux aux;
    int s = -1, to = -1, ready = 0, owner = !b->prefill && b->w.role.tp_rank == 0;
    plain_late.polls = b->prefill || owner ? 1 : -1;
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
        EXPECT(queue_all(b, 2, NEXT, &s) == ST_OK);
    } else {
        EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK && wait_ready(b) == ST_OK);
        EXPECT(state_admit(&b->st, tokens_of(FIRST), &to) == ST_OK);
        EXPECT(transfer_unpack(b->t, 0, &b->st, to, &aux) == ST_OK);
        EXPECT(transfer_grant(b->t, 0, 2, NEXT, pages_of(NEXT)) == ST_OK);
    }
    meet(b);
    for (int i = 0; i < 10 && !b->prefill; i++) EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
    if (owner) EXPECT(!b->t->to[0].unpack && b->t->to[0].owed); /* its own reading is over */
    meet(b);
    uint64_t put = bytes_put(b);
    if (b->prefill) push(b, 10);
    if (b->prefill) EXPECT(bytes_put(b) == put);
    meet(b);
    plain_late.polls = 1;
    if (b->prefill) {
        EXPECT(push_to_end(b, s) == ST_OK);
        return;
    }
    EXPECT(wait_ready(b) == ST_OK);
    EXPECT(walk_state(b, to, FIRST, 1) == 0 && state_release(&b->st, to) == ST_OK);
    EXPECT(dest_take(b, 0, NEXT) == ST_OK);
}

START_TEST(a_lent_slot_is_not_given_away_while_others_read_it)
{
    const char *osc = forced_osc();
    if (suite_size() < 3 || (*osc && (!strstr(osc, "sm") || strcmp(osc, "sm") == 0))) return;
    bench_node_size = -1;
    each_transport(lent, 0);
    bench_node_size = 0;
}
END_TEST

/* memory that cannot be pinned is said once, and all arrives as ever */
static void unpinned(struct bench *b)
{
    EXPECT(plain_late.pinned == 0 && b->t->pinned == NULL);
    pass(b, 1, FIRST);
    pass(b, 2, NEXT);
}

START_TEST(memory_that_cannot_be_pinned_will_do)
{
    plain_late.refuses_pin = 1;
    each_transport(unpinned, 3);
    plain_late.refuses_pin = 0;
}
END_TEST

/* The ring is as large as the plan says, and there is none where state lies in host memory. It has what two slots
 * could send, long prompts more than the least. */
static void ring(struct bench *b)
{
    const struct plan_options *o = &b->opt.plan;
    enum sums_via via[16];
    struct rank_memory m;
    int64_t sent = 0, have = transfer_pack_bytes(b->t);
    for (int r = 0; r < 16; r++) via[r] = b->o.impl ? SUMS_STAGED : SUMS_HOST;
    struct plan_options own = *o;
    struct config c = b->c;
    own.sums = via;
    c.res_block = 1; /* what moves does not need it, activations do */
    EXPECT(memory_rank(&c, &b->d, &b->w.topo, &own, b->rank, &m) == ST_OK && m.pack_bytes == have);
    if (!b->prefill || !b->o.impl) {
        EXPECT(have == 0);
        return;
    }
    for (int d = 0; d < b->t->n_peers; d++)
        for (int k = 0; k < COMP_N; k++)
            sent += o->staging_slots * transfer_plan_bytes(&b->t->peer[d].plan, (enum comp)k, b->t->max_pages, NULL);
    EXPECT(have >= sent && have % 4096 == 0 && (have - sent < 4096 || have == 64 << 10));
}

START_TEST(the_ring_is_as_large_as_planned)
{
    struct topology topo = any_topology();
    for (int k = 0; k < 3; k++) {
        struct bench b;
        struct transfer_options opt = options();
        failures = 0;
        if (k) opt.plan.max_prompt = opt.plan.max_tokens = LONG_PROMPT;
        enum status st = bench_open(&b, &topo, &opt, k < 2 ? PLACE_DEVICE : PLACE_HOST);
        EXPECT(st == ST_OK);
        if (st == ST_OK) ring(&b);
        int all = suite_all(failures == 0), least = suite_all(st != ST_OK || transfer_pack_bytes(b.t) <= 64 << 10);
        if (all) bench_close(&b);
        ck_assert_msg(all, "case %d", k);
        ck_assert_msg(k != 1 || !least, "no rank has more to send than the least ring holds");
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "transfer late", 100);
    SUITE_TEST(tc, nothing_is_put_before_it_is_packed);
    SUITE_TEST(tc, an_abort_waits_for_the_pack_on_its_way);
    SUITE_TEST(tc, a_slot_is_not_given_away_while_it_is_read);
    SUITE_TEST(tc, an_aborted_life_begins_while_the_last_is_read);
    SUITE_TEST(tc, a_lent_slot_is_not_given_away_while_others_read_it);
    SUITE_TEST(tc, memory_that_cannot_be_pinned_will_do);
    SUITE_TEST(tc, the_ring_is_as_large_as_planned);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
