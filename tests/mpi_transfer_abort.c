#include "suite.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transfer_bench.h"

/* Requests given up on their way: no put lands after QUIET, QUIET comes before a slot is given away, the next request
 * in the slot is unhurt, and no word of the old one counts for it. */
/* np: 2 3 5 8 */
const char *const suite_name = "mpi_transfer_abort";

enum { FIRST = 4, NEXT = 1 };
static const double for_ever = 1e6; /* seconds a run of a slow source takes, until the test lets it through */

/* a whole request through slot 0 */
static void pass(struct bench *b, uint32_t generation, int request)
{
    int s = -1, ready = 0;
    struct waiter w = {0, 0};
    if (b->prefill) {
        EXPECT(queue_all(b, generation, request, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
        return;
    }
    EXPECT(transfer_grant(b->t, 0, generation, request, pages_of(request)) == ST_OK);
    while (!ready && transfer_ready(b->t, 0, &ready) == ST_OK && wait_pause(&w) == ST_OK) {}
    EXPECT(ready == 1);
    if (ready == 1) EXPECT(dest_take(b, 0, request) == ST_OK);
}

static void each_transport(void (*fn)(struct bench *b), double delay_s)
{
    struct topology topo = any_topology();
    if (suite_size() < 2) return;
    for (int k = TRANSPORT_RMA; k <= TRANSPORT_SENDRECV; k++) {
        struct bench b;
        struct transfer_options opt = options();
        failures = 0;
        opt.transport = (enum transport_kind)k;
        opt.delay_s = delay_s;
        enum status st = bench_open(&b, &topo, &opt, PLACE_HOST);
        EXPECT(st == ST_OK);
        if (st == ST_OK) fn(&b);
        int all = suite_all(failures == 0);
        if (all) bench_close(&b);
        ck_assert_msg(all, "transport %d", k);
    }
}

static uint64_t bytes_put(const struct bench *b)
{
    uint64_t n = 0;
    for (int c = 0; c < COMP_N; c++) n += transfer_counts(b->t, (enum comp)c).bytes;
    return n;
}

/* Sources have put one run each and take their time over it. The ABORT comes as a credit first, as an order later. */
static void in_the_middle(struct bench *b)
{
    int s = -1, quiet = 1, sends = 0;
    uint64_t put = 0;
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK);
    meet(b);
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(transfer_push(b->t, 1, NULL) == ST_OK);
        put = bytes_put(b);
        for (int d = 0; d < b->t->n_peers; d++) sends |= b->t->peer[d].expected;
        EXPECT(!sends || put > 0);
    }
    meet(b);
    if (!b->prefill) EXPECT(transfer_stop(b->t, 0) == ST_OK);
    meet(b);
    if (b->prefill) EXPECT(transfer_push(b->t, 1, NULL) == ST_OK); /* hears it; its run is not through */
    meet(b);
    if (!b->prefill) {
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == 0);
        EXPECT(transfer_drop(b->t, 0) == ST_E_PROTOCOL);
        EXPECT(transfer_grant(b->t, 0, 2, NEXT, pages_of(NEXT)) == ST_E_INTERNAL);
        EXPECT(transfer_free_slots(b->t) == 1);
    }
    meet(b);
    b->t->opt.delay_s = 0;
    if (b->prefill) {
        EXPECT(transfer_abort(b->t, 0) == ST_OK);
        EXPECT(transfer_pages(b->t, 0, 0, 1) == ST_E_INTERNAL); /* nothing of it is queued any more */
        EXPECT(push_to_end(b, s) == ST_OK);
        EXPECT(bytes_put(b) == put && transfer_free_slots(b->t) == 2);
    } else {
        EXPECT(wait_quiet(b) == ST_OK);
        EXPECT(transfer_unpack(b->t, 0, &b->st, 0, NULL) == ST_E_INTERNAL);
        EXPECT(transfer_drop(b->t, 0) == ST_OK && transfer_free_slots(b->t) == 2);
        EXPECT(transfer_stop(b->t, 0) == ST_E_PROTOCOL); /* it holds nothing */
        canary(b, 0, 0);
    }
    meet(b);
    for (int i = 0; i < 20 && b->prefill; i++) EXPECT(transfer_push(b->t, i % 2, NULL) == ST_OK);
    meet(b);
    if (!b->prefill) canary(b, 0, 1); /* nothing lands after QUIET */
    pass(b, 2, NEXT);
}

START_TEST(an_abort_waits_for_puts_on_their_way)
{
    each_transport(in_the_middle, for_ever);
}
END_TEST

/* The order may reach a source before the slot was granted, and a slot may be complete when it is aborted. */
static void early_and_late(struct bench *b)
{
    int s = -1, quiet = 0, expects = 0;
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(transfer_abort(b->t, 0) == ST_OK);
        for (int i = 0; i < 10; i++) EXPECT(transfer_push(b->t, 1, NULL) == ST_OK);
        for (int d = 0; d < b->t->n_peers; d++) expects |= b->t->peer[d].expected;
        EXPECT(transfer_sending(b->t, 0) ==
               (expects != 0)); /* QUIET into a slot that is not zeroed yet would be lost */
        EXPECT(bytes_put(b) == 0);
    }
    meet(b);
    if (!b->prefill) {
        EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK);
        EXPECT(transfer_stop(b->t, 0) == ST_OK);
        EXPECT(wait_quiet(b) == ST_OK);
        EXPECT(transfer_drop(b->t, 0) == ST_OK);
    } else {
        EXPECT(push_to_end(b, s) == ST_OK);
        EXPECT(bytes_put(b) == 0);
    }
    meet(b);
    if (b->prefill) {
        EXPECT(queue_all(b, 2, NEXT, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
        EXPECT(transfer_abort(b->t, 0) == ST_OK); /* nothing left to give up */
        EXPECT(transfer_sending(b->t, 0) == 0);
    } else {
        EXPECT(transfer_grant(b->t, 0, 2, NEXT, pages_of(NEXT)) == ST_OK);
        EXPECT(wait_quiet(b) == ST_OK); /* all DONE */
        EXPECT(transfer_stop(b->t, 0) == ST_OK);
        EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == 1);
        EXPECT(transfer_drop(b->t, 0) == ST_OK);
    }
    meet(b);
    pass(b, 3, FIRST);
}

START_TEST(an_abort_before_the_grant_and_after_the_end)
{
    each_transport(early_and_late, 0);
}
END_TEST

/* every last word of the aborted life is written again while the next request is awaited */
static void old_words(struct bench *b)
{
    static const enum word_state states[] = {WORD_DONE, WORD_FAIL, WORD_QUIET, WORD_PART};
    int s = -1, ready = -9, quiet = -9;
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK);
    meet(b);
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(transfer_fail(b->t, 0) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
        EXPECT(transfer_abort(b->t, 0) == ST_OK);
    }
    meet(b);
    if (!b->prefill) {
        EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == -1);
        EXPECT(transfer_blame(b->t, 0) >= 0 && transfer_blame(b->t, 0) < b->w.topo.n_prefill);
        EXPECT(transfer_stop(b->t, 0) == ST_OK && wait_quiet(b) == ST_OK && transfer_drop(b->t, 0) == ST_OK);
        EXPECT(transfer_grant(b->t, 0, 2, NEXT, pages_of(NEXT)) == ST_OK);
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < b->t->n_expected; i++) {
                const struct expected *e = &b->t->expected[i];
                struct word_line *l = (void *)(b->t->words + words_at(b->t, 0, b->t->peer[e->peer].rank, e->comp));
                l->bytes = (uint64_t)b->t->to[0].want[i];
                l->word = word_pack((struct word_value){1, states[k], e->comp, 1});
            }
            EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
            EXPECT(transfer_quiet(b->t, 0, &quiet) == ST_OK && quiet == 0);
            EXPECT(transfer_blame(b->t, 0) == -1);
        }
    }
    meet(b);
    if (b->prefill) {
        EXPECT(queue_all(b, 2, NEXT, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
    } else {
        struct waiter w = {0, 0};
        for (ready = 0; !ready && transfer_ready(b->t, 0, &ready) == ST_OK && wait_pause(&w) == ST_OK;) {}
        EXPECT(ready == 1 && dest_take(b, 0, NEXT) == ST_OK);
    }
}

START_TEST(late_words_of_an_aborted_life_say_nothing)
{
    each_transport(old_words, 0);
}
END_TEST

/* one destination stops, the others take the whole request */
static void one_stops(struct bench *b)
{
    int s = -1, ready = 0, stops = !b->prefill && b->w.role.tp_rank == b->w.topo.n_decode - 1;
    struct waiter w = {0, 0};
    if (!b->prefill) EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK);
    if (stops) EXPECT(transfer_stop(b->t, 0) == ST_OK);
    meet(b);
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
    } else if (stops) {
        EXPECT(wait_quiet(b) == ST_OK);
        EXPECT(transfer_ready(b->t, 0, &ready) == ST_OK && ready == 0);
        EXPECT(transfer_drop(b->t, 0) == ST_OK);
    } else {
        while (!ready && transfer_ready(b->t, 0, &ready) == ST_OK && wait_pause(&w) == ST_OK) {}
        EXPECT(ready == 1 && dest_take(b, 0, FIRST) == ST_OK);
    }
    meet(b);
    pass(b, 2, NEXT);
}

START_TEST(a_destination_stops_on_its_own)
{
    each_transport(one_stops, 0);
}
END_TEST

/* --inject flip: found by the checksum, named, and gone with the next request */
static void flipped_once(struct bench *b)
{
    int s = -1, ready = 0, victim = b->w.topo.n_prefill;
    struct waiter w = {0, 0};
    b->t->opt.flip_rank = victim;
    b->t->opt.flip_component = COMP_KDA;
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
    } else {
        EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK);
        while (!ready && transfer_ready(b->t, 0, &ready) == ST_OK && wait_pause(&w) == ST_OK) {}
        EXPECT(state_admit(&b->st, tokens_of(FIRST), &s) == ST_OK);
        enum status st = transfer_unpack(b->t, 0, &b->st, s, NULL);
        EXPECT(st == (b->rank == victim ? ST_E_FAULT : ST_OK));
        if (st != ST_OK) EXPECT(strstr(err_last(), "kda") && transfer_drop(b->t, 0) == ST_OK);
        EXPECT(state_release(&b->st, s) == ST_OK);
    }
    meet(b);
    pass(b, 2, NEXT);
}

START_TEST(a_flipped_bit_costs_one_request)
{
    each_transport(flipped_once, 0);
}
END_TEST

/* The aux record of another request, another life or another position is a fault, found without checksums. */
static void wrong_aux(struct bench *b)
{
    int s = -1, ready = 0;
    struct waiter w = {0, 0};
    b->t->opt.verify = 0;
    if (b->prefill) {
        EXPECT(queue_all(b, 1, FIRST, &s) == ST_OK);
        EXPECT(push_to_end(b, s) == ST_OK);
    } else {
        EXPECT(transfer_grant(b->t, 0, 1, FIRST, pages_of(FIRST)) == ST_OK);
        while (!ready && transfer_ready(b->t, 0, &ready) == ST_OK && wait_pause(&w) == ST_OK) {}
        EXPECT(state_admit(&b->st, tokens_of(FIRST), &s) == ST_OK);
        struct layout_aux *a = (void *)(b->t->data + b->t->slot.entry[layout_find(&b->t->slot, COMP_AUX, 0, 0)].base),
                          kept = *a;
        for (int k = 0; k < 5; k++) {
            if (k == 0) a->request++;
            if (k == 1) a->generation++;
            if (k == 2) a->state_position--; /* a token too few was absorbed */
            if (k == 3) a->prompt_tokens += PAGE;
            if (k == 4) memset(a, 0, sizeof *a); /* never written */
            EXPECT(transfer_unpack(b->t, 0, &b->st, s, NULL) == ST_E_FAULT && strstr(err_last(), "aux"));
            *a = kept;
        }
        EXPECT(state_release(&b->st, s) == ST_OK && dest_take(b, 0, FIRST) == ST_OK);
    }
}

START_TEST(the_aux_of_another_request_is_a_fault)
{
    each_transport(wrong_aux, 0);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "transfer abort", 100);
    SUITE_TEST(tc, an_abort_waits_for_puts_on_their_way);
    SUITE_TEST(tc, an_abort_before_the_grant_and_after_the_end);
    SUITE_TEST(tc, late_words_of_an_aborted_life_say_nothing);
    SUITE_TEST(tc, a_destination_stops_on_its_own);
    SUITE_TEST(tc, the_aux_of_another_request_is_a_fault);
    SUITE_TEST(tc, a_flipped_bit_costs_one_request);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
