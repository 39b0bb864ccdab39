/* speculation changes nothing but the number of steps: tokens, state, ends */
#include "suite.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spec_kit.h"

const char *const suite_name = "spec";

/* ---- accept --------------------------------------------------------------------------------------- */

START_TEST(greedy_acceptance_counts_the_common_head)
{
    static const struct {
        int n;
        int32_t draft[4], top[5];
        int want;
    } rows[] = {
        {4, {1, 2, 3, 4}, {1, 2, 3, 4, 5}, 4}, {4, {1, 2, 3, 4}, {1, 2, 3, 9, 4}, 3}, {4, {1, 2, 3, 4}, {9, 2, 3, 4, 5}, 0},
        {4, {1, 2, 3, 4}, {1, 9, 3, 4, 5}, 1}, {0, {0}, {7}, 0},                      {1, {7}, {7, 1}, 1},
        {4, {2, 3, 4, 5}, {1, 2, 3, 4, 5}, 0}, {4, {0, 0, 0, 0}, {0, 0, -1, 0, 0}, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_int_eq(accept_greedy(rows[i].draft, rows[i].top, rows[i].n), rows[i].want);
}
END_TEST

/* ---- output does not depend on the proposals ------------------------------------------------------- */

static const struct {
    const char *what;
    int block;
    enum spec_source source;
} ways[] = {
    {"plain", 1, SPEC_DRAFT},          {"draft, block 8", 8, SPEC_DRAFT},     {"oracle, block 5", 5, SPEC_ORACLE},
    {"wrong, block 2", 2, SPEC_WRONG}, {"random, block 16", 16, SPEC_RANDOM}, {"wrong, block 16", 16, SPEC_WRONG},
    {"draft, block 3", 3, SPEC_DRAFT}, {"draft, block 16", 16, SPEC_DRAFT},   {"oracle, block 16", 16, SPEC_ORACLE},
};

START_TEST(every_source_gives_plain_tokens_and_state)
{
    struct spec_options p = options(ways[_i].block, ways[_i].source);
    int rounds = 0, accepted = 0;
    for (int k = 0; k < suite_some(4, 1); k++) {
        struct spec_seq *q = decode(&p, k, suite_some(48, 10));
        check_output(q, p.block, ways[_i].what);
        for (int i = 0; i < q->n_rounds; i++) {
            if (p.source == SPEC_ORACLE) ck_assert_int_eq(q->round[i].accepted, p.block - 1);
            if (p.source == SPEC_WRONG) ck_assert_int_eq(q->round[i].accepted, 0);
            accepted += q->round[i].accepted;
        }
        rounds += q->n_rounds;
        if (p.block > 1) check_state(q, ways[_i].what);
        drop_seq(q);
    }
    if (p.source == SPEC_DRAFT && p.block > 1 && suite_some(1, 0)) ck_assert_int_gt(accepted, rounds / 2); /* the draft is alive */
    printf("%s: %d rounds, %d accepted\n", ways[_i].what, rounds, accepted);
}
END_TEST

START_TEST(every_mode_is_lossless)
{
    static const struct {
        enum ops_act act;
        enum kv_dtype kv;
    } modes[] = {{ACT_FP32, KV_BF16}, {ACT_BF16, KV_BF16}, {ACT_BF16, KV_FP32}};
    struct rig_spec p = base_rig;
    p.act = modes[_i].act;
    p.kv = modes[_i].kv;
    p.page = 5;
    set_rig(&p);
    for (int k = 0; k < suite_some(4, 1); k++)
        for (int w = 0; w < 2; w++) {
            struct spec_options o = options(BLOCK, w ? SPEC_ORACLE : SPEC_DRAFT);
            struct spec_seq *q = decode(&o, k, suite_some(40, 12));
            check_output(q, BLOCK, w ? "oracle" : "draft");
            check_state(q, w ? "oracle" : "draft");
            drop_seq(q);
        }
    close_rig();
}
END_TEST

/* ---- company -------------------------------------------------------------------------------------- */

START_TEST(many_sequences_equal_single_ones)
{
    static const int max_new[SEQS] = {48, 17, 33, 2, 40, 29, 5, 48};
    static const struct {
        int block, stagger;
        enum spec_source source;
    } runs[] = {{16, 0, SPEC_DRAFT}, {16, 1, SPEC_DRAFT}, {16, 1, SPEC_ORACLE}, {7, 2, SPEC_RANDOM}, {1, 1, SPEC_DRAFT}};
    struct spec_options p = options(runs[_i].block, runs[_i].source);
    struct spec *s = open_spec(&p);
    struct spec_seq *q[SEQS];
    int n = n_seqs();
    for (int i = 0; i < n; i++) {
        q[i] = new_seq(i, suite_some(max_new[i], 8 + i));
        start_seq(q[i], EOS);
    }
    run_rounds(s, q, n, runs[_i].stagger);
    for (int i = 0; i < n; i++) {
        struct spec_seq *alone = new_seq(i, q[i]->max_new);
        start_seq(alone, EOS);
        run_rounds(s, &alone, 1, 0);
        check_output(q[i], p.block, "together");
        ck_assert_int_eq(q[i]->n_out, alone->n_out);
        ck_assert_mem_eq(q[i]->out, alone->out, (size_t)alone->n_out * sizeof *alone->out);
        ck_assert_int_eq(q[i]->n_rounds, alone->n_rounds);
        ck_assert_mem_eq(q[i]->round, alone->round, (size_t)alone->n_rounds * sizeof *alone->round);
        ck_assert_int_eq(q[i]->pos, alone->pos);
        ck_assert(rig_same_state(&rig, q[i]->slot, &rig, alone->slot, alone->pos, p.block > 1));
        drop_seq(alone);
    }
    for (int i = 0; i < n; i++) drop_seq(q[i]);
    spec_close(s);
}
END_TEST

/* ---- ends ----------------------------------------------------------------------------------------- */

/* first request whose truth has its token at index k for the first time there, or -1 */
static int first_at(int k)
{
    for (int r = 0; r < n_seqs(); r++) {
        int seen = 0;
        for (int i = 0; i < k; i++) seen |= requests[r].truth[i] == requests[r].truth[k];
        if (!seen) return r;
    }
    return -1;
}

START_TEST(eos_ends_where_it_stands)
{
    /* output index of EOS; with the oracle round 1 emits indices 1..16 (15 drafts, bonus at 16), round 2 17..32 */
    static const struct {
        int at, rounds, emitted;
    } ends[] = {{0, 0, 0}, {7, 1, 7}, {17, 2, 1}, {1, 1, 1}, {15, 1, 15}, {16, 1, 16}, {22, 2, 6}};
    int k = ends[_i].at, r = first_at(k);
    ck_assert_int_ge(r, 0);
    struct spec_options p = options(BLOCK, SPEC_ORACLE);
    p.eos = requests[r].truth[k];
    struct spec_seq *q = decode(&p, r, 60);
    ck_assert_int_eq(q->stop, STOP_EOS);
    ck_assert_int_eq(q->n_out, k + 1); /* EOS included, nothing behind it */
    ck_assert_mem_eq(q->out, requests[r].truth, (size_t)(k + 1) * sizeof *q->out);
    ck_assert_int_eq(q->n_rounds, ends[_i].rounds);
    if (ends[_i].rounds > 0) {
        const struct spec_round *last = &q->round[q->n_rounds - 1];
        ck_assert_int_eq(last->emitted, ends[_i].emitted);
        ck_assert_int_eq(last->accepted, BLOCK - 1); /* counted before clipping */
        ck_assert_int_eq(last->bonus, requests[r].truth[16 * q->n_rounds]);
    }
    ck_assert_int_eq(q->pos, q->prompt_tokens + 16 * q->n_rounds);
    drop_seq(q);
    p = options(1, SPEC_DRAFT); /* and so in plain decoding */
    p.eos = requests[r].truth[k];
    q = decode(&p, r, 60);
    ck_assert_int_eq(q->stop, STOP_EOS);
    ck_assert_int_eq(q->n_out, k + 1);
    drop_seq(q);
}
END_TEST

START_TEST(budgets_clip_the_output)
{
    static const int budget[] = {1, 5, 2, 16, 17, 18};
    static const struct {
        int block;
        enum spec_source source;
    } how[] = {{1, SPEC_DRAFT}, {16, SPEC_DRAFT}, {16, SPEC_ORACLE}, {16, SPEC_WRONG}, {4, SPEC_ORACLE}};
    int b = budget[_i];
    for (size_t k = 0; k < sizeof how / sizeof how[0]; k++) {
        struct spec_options p = options(how[k].block, how[k].source);
        struct spec_seq *q = decode(&p, 1, b);
        ck_assert_int_eq(q->stop, STOP_LENGTH);
        ck_assert_int_eq(q->n_out, b);
        check_output(q, p.block, "budget");
        if (b == 1) ck_assert_int_eq(q->n_rounds, 0);
        if (p.source == SPEC_ORACLE) ck_assert_int_eq(q->n_rounds, (b - 1 + p.block - 1) / p.block);
        if (p.source == SPEC_WRONG) ck_assert_int_eq(q->n_rounds, b - 1);
        drop_seq(q);
    }
}
END_TEST

START_TEST(eos_beats_the_budget)
{
    int r = first_at(4);
    struct spec_options p = options(BLOCK, SPEC_ORACLE);
    p.eos = requests[r].truth[4];
    struct spec_seq *q = decode(&p, r, 5); /* EOS is the last token that fits */
    ck_assert_int_eq(q->n_out, 5);
    ck_assert_int_eq(q->stop, STOP_EOS);
    drop_seq(q);
    q = decode(&p, r, 4); /* one too short */
    ck_assert_int_eq(q->n_out, 4);
    ck_assert_int_eq(q->stop, STOP_LENGTH);
    drop_seq(q);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "accept", 10);
    tcase_add_test(tc, greedy_acceptance_counts_the_common_head);
    tc = SUITE_CASE(s, "modes", 900);
    tcase_add_loop_test(tc, every_mode_is_lossless, 0, suite_some(3, 1));
    tc = SUITE_CASE(s, "rounds", 900);
    tcase_add_unchecked_fixture(tc, open_rig, close_rig); /* each test runs in a copy of the process */
    tcase_add_loop_test(tc, every_source_gives_plain_tokens_and_state, 0, suite_some(sizeof ways / sizeof ways[0], 4));
    tcase_add_loop_test(tc, many_sequences_equal_single_ones, 0, suite_some(5, 1));
    tcase_add_loop_test(tc, eos_ends_where_it_stands, 0, suite_some(7, 3));
    tcase_add_loop_test(tc, budgets_clip_the_output, 0, suite_some(6, 2));
    tcase_add_test(tc, eos_beats_the_budget);
}

int main(void)
{
    return suite_main_serial();
}
