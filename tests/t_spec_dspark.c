/* rounds with a DSpark draft: plain tokens and state at every width, also where confidence cuts the width of each sequence */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spec_kit.h"

const char *const suite_name = "spec_dspark";

enum { GAMMA = 7 };

static void open_spark(void)
{
    struct rig_spec p = base_rig;
    p.draft = suite_path("inputs/k3-nano-dspark");
    p.confidence = 1;
    set_rig(&p);
}

static const struct {
    int block;
    double confidence;
    int stagger; /* rounds between the arrivals of two sequences */
} ways[] = {{8, 0, 0}, {8, 0.6, 1}, {8, 1, 0}, {2, 0, 0}, {5, 0.3, 2}, {8, 0.9, 0}, {3, 0, 1}, {8, 1e-9, 0}};

/* sequences of one round verify different widths; what the round says must be what plain decoding says */
START_TEST(every_width_gives_plain_tokens_and_state)
{
    struct spec_options p = options(ways[_i].block, SPEC_DRAFT);
    int n = n_seqs(), cut = ways[_i].confidence > 0, rounds = 0, proposed = 0, accepted = 0;
    p.confidence = ways[_i].confidence;
    struct spec *s = open_spec(&p);
    struct spec_seq *q[SEQS];
    for (int i = 0; i < n; i++) {
        q[i] = new_seq(i, suite_some(48, 10));
        start_seq(q[i], EOS);
    }
    run_rounds(s, q, n, ways[_i].stagger);
    for (int i = 0; i < n; i++) {
        check_rounds(q[i], p.block, cut ? 0 : p.block - 1, "dspark");
        if (i < 3) check_state(q[i], "dspark");
        for (int k = 0; k < q[i]->n_rounds; k++) {
            rounds++;
            proposed += q[i]->round[k].proposed;
            accepted += q[i]->round[k].accepted;
        }
        drop_seq(q[i]);
    }
    printf("block %d, confidence %g: %d rounds, %d proposed, %d accepted\n", p.block, p.confidence, rounds, proposed, accepted);
    ck_assert_int_eq(proposed == rounds * (p.block - 1), p.confidence < 0.3);
    ck_assert_int_eq(proposed == 0, p.confidence == 1); /* nobody is that sure */
    if (suite_some(1, 0) && p.confidence < 0.9) ck_assert_int_gt(accepted, rounds / 4); /* the draft is alive */
    spec_close(s);
}
END_TEST

/* asked once more beside the round: the width is the drafts before the first one below the threshold */
START_TEST(the_width_is_what_the_confidence_says)
{
    struct spec_options p = options(GAMMA + 1, SPEC_DRAFT);
    p.confidence = 0.5;
    struct spec *s = open_spec(&p);
    int seen[GAMMA + 1] = {0}, kinds = 0;
    for (int i = 0; i < n_seqs(); i++) {
        struct spec_seq *q = new_seq(i, suite_some(40, 8));
        start_seq(q, EOS);
        while (q->stop == STOP_NONE) {
            struct draft_seq d = {q->slot, q->pos, q->out[q->n_out - 1]};
            int32_t id[GAMMA];
            int width = 0;
            OK(draft_block(rig.d, rig.t, &rig.s, &d, 1, GAMMA + 1, id, NULL));
            const float *c = draft_confidence(rig.d);
            while (width < GAMMA && c[width] >= 0.5f) width++;
            OK(spec_round(s, &q, 1, NULL, NULL, NULL));
            ck_assert_int_eq(q->round[q->n_rounds - 1].proposed, width);
            seen[width]++;
        }
        drop_seq(q);
    }
    for (int k = 0; k <= GAMMA; k++) kinds += seen[k] > 0;
    if (suite_some(1, 0)) ck_assert_int_ge(kinds, 4); /* really of many widths */
    spec_close(s);
}
END_TEST

struct word { int calls; int32_t width, decision[2]; size_t bytes[2]; };

static enum status obey(void *ctx, void *host, size_t bytes)
{
    struct word *w = ctx;
    ck_assert_int_lt(w->calls, 2);
    w->bytes[w->calls] = bytes;
    if (w->calls++ == 0) memcpy(host, &w->width, sizeof w->width);
    else memcpy(host, w->decision, sizeof w->decision);
    return ST_OK;
}

START_TEST(ranks_take_the_width_of_rank_0)
{
    struct word w = {.width = 3, .decision = {1, requests[0].truth[2]}};
    struct spec_options p = options(GAMMA + 1, SPEC_DRAFT);
    p.confidence = 1; /* by its own numbers it would verify one row */
    struct tp_comm comm = comm_self();
    comm.rank = 1;
    comm.ctx = &w;
    comm.bcast = obey;
    struct spec *s;
    OK(spec_open(&rig.o, &rig.c, rig.t, rig.d, &rig.s, &comm, &p, &s));
    struct spec_seq *q = new_seq(0, 40);
    start_seq(q, EOS);
    OK(spec_round(s, &q, 1, NULL, NULL, NULL));
    ck_assert(w.calls == 2 && w.bytes[0] == sizeof w.width && w.bytes[1] == sizeof w.decision);
    ck_assert(q->round[0].proposed == 2 && q->round[0].accepted == 1 && q->n_out == 3);
    static const int32_t no_width[] = {0, GAMMA + 2, -1};
    for (int i = 0; i < 3; i++) {
        w = (struct word){.width = no_width[i]};
        ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    }
    w = (struct word){.width = 3, .decision = {3, 1}}; /* more accepted than verified */
    ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    drop_seq(q);
    spec_close(s);
}
END_TEST

/* the clock of this machine says how many rows; whatever it says, tokens and state are those of plain decoding, and a request
 * has no drafts before its context is long enough */
START_TEST(adaptive_widths_and_short_contexts_change_no_token)
{
    struct spec_options p = options(GAMMA + 1, SPEC_DRAFT);
    int n = n_seqs(), most = suite_some(48, 10), late = most / 4, narrow = 0, wide = 0;
    p.adaptive = _i != 0;
    p.min_context = _i != 1 ? requests[0].n + late : 0;
    struct spec *s = open_spec(&p);
    struct spec_seq *q[SEQS];
    for (int i = 0; i < n; i++) {
        q[i] = new_seq(i, most);
        start_seq(q[i], EOS);
    }
    run_rounds(s, q, n, 1);
    for (int i = 0; i < n; i++) {
        check_rounds(q[i], p.block, 0, "adaptive");
        if (i < 2) check_state(q[i], "adaptive");
        int pos = requests[i].n;
        for (int k = 0; k < q[i]->n_rounds; k++) {
            int none = q[i]->round[k].proposed == 0;
            ck_assert_msg(pos >= p.min_context || none, "request %d round %d: drafts at position %d of %d", i, k, pos, p.min_context);
            narrow += none;
            wide += q[i]->round[k].proposed == GAMMA;
            pos += q[i]->round[k].accepted + 1;
        }
        drop_seq(q[i]);
    }
    ck_assert(narrow > 0 || p.min_context == 0);
    ck_assert(wide > 0); /* the first step of adaptive, every step past the context without it */
    const struct width *learnt = spec_width(s);
    ck_assert_int_eq(learnt != NULL, p.adaptive);
    if (learnt) ck_assert(learnt->steps > 0 && learnt->drafted && width_mean(learnt) >= 1);
    spec_close(s);
}
END_TEST

struct turns { int32_t width, decision[2]; int calls; };

static enum status obey_in_turn(void *ctx, void *data, size_t bytes)
{
    struct turns *t = ctx;
    if (t->calls++ % 2 == 0) memcpy(data, &t->width, sizeof t->width);
    else memcpy(data, t->decision, sizeof t->decision);
    return bytes == (t->calls % 2 ? sizeof t->width : sizeof t->decision) ? ST_OK : ST_E_INTERNAL;
}

START_TEST(ranks_take_the_adaptive_width_of_rank_0)
{
    struct turns t = {.width = 3, .decision = {1, requests[0].truth[2]}};
    struct spec_options p = options(GAMMA + 1, SPEC_DRAFT);
    p.adaptive = 1;
    struct tp_comm comm = comm_self();
    comm.rank = 1;
    comm.ctx = &t;
    comm.bcast = obey_in_turn;
    struct spec *s;
    OK(spec_open(&rig.o, &rig.c, rig.t, rig.d, &rig.s, &comm, &p, &s));
    ck_assert_ptr_null(spec_width(s));
    struct spec_seq *q = new_seq(0, 40);
    start_seq(q, EOS);
    OK(spec_round(s, &q, 1, NULL, NULL, NULL));
    ck_assert(t.calls == 2 && q->round[0].proposed == 2 && q->round[0].accepted == 1 && q->n_out == 3);
    t = (struct turns){.width = 1, .decision = {0, requests[0].truth[3]}}; /* no draft is made */
    OK(spec_round(s, &q, 1, NULL, NULL, NULL));
    ck_assert(q->round[1].proposed == 0 && q->n_out == 4);
    static const int32_t no_width[] = {0, GAMMA + 2, -1};
    for (int i = 0; i < 3; i++) {
        t = (struct turns){.width = no_width[i]};
        ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    }
    drop_seq(q);
    spec_close(s);
}
END_TEST

START_TEST(rounds_of_any_width_allocate_nothing)
{
    struct spec_options p = options(GAMMA + 1, SPEC_DRAFT);
    p.confidence = 0.5;
    p.adaptive = 1;
    struct spec *s = open_spec(&p);
    struct spec_seq *q[3];
    for (int i = 0; i < 3; i++) {
        q[i] = new_seq(i, suite_some(20, 6));
        start_seq(q[i], -1);
    }
    uint64_t before = buf_allocs();
    run_rounds(s, q, 3, 1);
    ck_assert_uint_eq(buf_allocs(), before);
    for (int i = 0; i < 3; i++) drop_seq(q[i]);
    spec_close(s);
}
END_TEST

START_TEST(options_that_do_not_fit_the_draft_are_refused)
{
    struct spec *s;
    struct spec_options p = options(GAMMA + 2, SPEC_DRAFT);
    ck_assert_int_eq(spec_open(&rig.o, &rig.c, rig.t, rig.d, &rig.s, &rig.comm, &p, &s), ST_E_RANGE);
    ck_assert_ptr_nonnull(strstr(err_last(), "block is 9, the draft is verified with 8 rows"));
}
END_TEST

/* the draft's K/V of one sequence turned to NaN: that request ends as failed, its neighbour goes on undisturbed */
START_TEST(a_damaged_draft_fails_its_request_only)
{
    struct spec_options p = options(GAMMA + 1, SPEC_DRAFT);
    struct spec *s = open_spec(&p);
    struct spec_seq *q[2] = {new_seq(0, 24), new_seq(1, 24)};
    for (int i = 0; i < 2; i++) start_seq(q[i], EOS);
    struct paged k = state_paged(&rig.s, COMP_DRAFT, 0, 1);
    float nan = NAN;
    memcpy((char *)k.base + state_pages(&rig.s, q[0]->slot)[0] * k.stride, &nan, sizeof nan);
    run_rounds(s, q, 2, 0);
    ck_assert_int_eq(q[0]->stop, STOP_FAILED);
    ck_assert_int_eq(q[0]->n_out, 1);
    check_output(q[1], p.block, "beside a damaged one");
    for (int i = 0; i < 2; i++) drop_seq(q[i]);
    spec_close(s);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "rounds with dspark", 900);
    tcase_add_checked_fixture(tc, open_spark, close_rig);
    tcase_add_loop_test(tc, every_width_gives_plain_tokens_and_state, 0, suite_some(8, 2));
    tcase_add_test(tc, the_width_is_what_the_confidence_says);
    tcase_add_test(tc, ranks_take_the_width_of_rank_0);
    tcase_add_loop_test(tc, adaptive_widths_and_short_contexts_change_no_token, 0, suite_some(3, 3));
    tcase_add_test(tc, ranks_take_the_adaptive_width_of_rank_0);
    tcase_add_test(tc, rounds_of_any_width_allocate_nothing);
    tcase_add_test(tc, options_that_do_not_fit_the_draft_are_refused);
    tcase_add_test(tc, a_damaged_draft_fails_its_request_only);
}

int main(void)
{
    return suite_main_serial();
}
