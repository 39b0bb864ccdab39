#include "suite.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "data/report.h"

const char *const suite_name = "report";

static void close_to(double a, double b, double tolerance)
{
    ck_assert_msg(fabs(a - b) <= tolerance, "%.15g, wanted %.15g", a, b);
}

static double num(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    ck_assert_msg(json_is_number(v), "%s", key);
    return json_number_value(v);
}

static json_t *json_of(const struct report *p)
{
    char *text;
    ck_assert_int_eq(report_json(p, &text), ST_OK);
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(o);
    mem_free(text);
    return o;
}

static char *text_of(void (*print)(const struct report *, FILE *), const struct report *p)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    print(p, f);
    fclose(f);
    return text;
}

static void has(const char *text, const char *piece)
{
    ck_assert_msg(strstr(text, piece) != NULL, "'%s' is not in:\n%s", piece, text);
}

static void has_not(const char *text, const char *piece)
{
    ck_assert_msg(strstr(text, piece) == NULL, "'%s' is in:\n%s", piece, text);
}

/* ---- acceptance figures against the reference's own statistics -------------------------------------- */

static void add_trace(struct results_writer *w, const struct h5 *f, const char *set, int i)
{
    char name[64];
    int64_t dim[H5_MAX_RANK];
    int rank;
    int32_t *accept, *emitted, *out;
    snprintf(name, sizeof name, "/%s%02d/dflash/accept", set, i);
    ck_assert_int_eq(h5_read_i32(f, name, dim, &rank, &accept), ST_OK);
    snprintf(name, sizeof name, "/%s%02d/dflash/emitted", set, i);
    ck_assert_int_eq(h5_read_i32(f, name, dim, &rank, &emitted), ST_OK);
    int32_t n = (int32_t)dim[0];
    snprintf(name, sizeof name, "/%s%02d/dflash/out", set, i);
    ck_assert_int_eq(h5_read_i32(f, name, dim, &rank, &out), ST_OK);
    struct result_round *round = mem_alloc((size_t)n, sizeof *round, "rounds");
    for (int32_t k = 0; k < n; k++) round[k] = (struct result_round){k, 15, accept[k], emitted[k], -1};
    struct result_row row = {.index = i, .output_tokens = (int32_t)dim[0], .stop = RESULT_EOS, .question = "q",
                             .gold = "#### 1",
                             .response = "", .token = out, .round = round, .n_rounds = n};
    result_timing_clear(&row.timing);
    ck_assert_int_eq(results_append(w, &row), ST_OK);
    mem_free(round);
    mem_free(accept);
    mem_free(emitted);
    mem_free(out);
}

START_TEST(acceptance_figures_are_those_of_the_reference)
{
    static const char *const set[] = {"train", "test"};
    struct h5 *f;
    char *stats;
    log_mute(1);
    ck_assert_int_eq(h5_open(suite_path("tests/vectors/decode_traces.h5"), 0, &f), ST_OK);
    ck_assert_int_eq(h5_get_str(f, "/", "stats", &stats), ST_OK);
    json_t *all = json_loads(stats, 0, NULL);
    mem_free(stats);
    for (int s = 0; s < 2; s++) {
        const char *path = suite_fresh("trace.h5");
        struct results_writer *w;
        struct results *r;
        struct report p;
        ck_assert_int_eq(results_open(path, RESULTS_NEW, &(struct results_setup){"h", 16, 16, NULL, 0, 0, 0}, &w), ST_OK);
        for (int i = 0; i < 16; i++) add_trace(w, f, set[s], i);
        results_close(w);
        ck_assert_int_eq(results_load(path, &r), ST_OK);
        ck_assert_int_eq(report_make(r, &p), ST_OK);
        const json_t *want = json_object_get(json_object_get(all, "dflash"), set[s]);
        json_t *got = json_of(&p);
        ck_assert_int_eq(p.steps, (int64_t)num(want, "steps"));
        close_to(num(got, "accept_length"), num(want, "tau_step_weighted"), 1e-12);
        close_to(num(got, "emitted_per_step"), num(want, "tau_emitted"), 1e-12);
        close_to(num(got, "accept_length_request_mean"), num(want, "tau_request_mean"), 1e-12);
        for (size_t b = 0; b < 16; b++)
            ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(got, "accept_histogram"), b)),
                             json_integer_value(json_array_get(json_object_get(want, "histogram_accepted"), b)));
        ck_assert_uint_eq(json_array_size(json_object_get(got, "accept_by_position")), 15);
        for (size_t b = 0; b < 15; b++)
            close_to(json_number_value(json_array_get(json_object_get(got, "accept_by_position"), b)),
                     json_number_value(json_array_get(json_object_get(want, "survival"), b)), 1e-12);
        ck_assert(json_is_null(json_object_get(got, "decode_s"))); /* no time was given */
        json_decref(got);
        results_free(r);
    }
    json_decref(all);
    h5_close(f);
}
END_TEST

/* ---- a run worked out by hand ------------------------------------------------------------------------ */

/* 8 questions: 0 complete and right; 1 complete, only flexible and sglang right; 2 cut; 3 failed; 4 complete,
 * all wrong; 5 second attempt, complete and right; 6, 7 missing */
static void hand_row(struct results_writer *w, int64_t index, enum result_stop stop, const char *reply, int32_t tokens,
                     const struct result_round *round, int32_t n_rounds, const double t[8])
{
    static const int32_t id[100];
    struct result_row row = {.index = index, .prompt_tokens = 10, .output_tokens = tokens, .stop = stop,
                             .question = "q", .gold = "x\n#### 18",
                             .response = reply, .response_n = strlen(reply), .token = id, .round = round,
                             .n_rounds = n_rounds,
                             .error = stop == RESULT_FAILED ? "stage 2 is gone" : NULL};
    memcpy(&row.timing, t, sizeof row.timing);
    for (int c = 0; c < RESULT_COMP_N; c++)
        row.transfer[c] = (struct result_transfer){100 * c, c, c == RESULT_KDA ? 0.5 : NAN, 0};
    ck_assert_int_eq(results_append(w, &row), ST_OK);
}

static const char *hand_made(void)
{
    const char *path = suite_fresh("hand.h5");
    const struct results_setup setup = {"hash-1", 8, 4, NULL, 0, 0, 0};
    struct results_writer *w;
    static const struct result_round a[] = {{0, 3, 3, 4, 5}, {1, 3, 0, 1, 6}, {2, 3, 1, 1, 7}}, b[] = {{0, 3, 2, 3, 1}},
                                           lost[] = {{0, 3, 3, 4, 1}};
    const double none[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    const struct result_attr attr[] = {{"spec", H5_KIND_STR, "dflash", 0, 0},
                                       {"topology", H5_KIND_STR, "prefill pp=2 decode tp=2", 0, 0},
                                       {"attempt_1_topology", H5_KIND_STR, "prefill pp=2 decode tp=2", 0, 0}};
    const struct result_attr again[] = {{"attempt_2_topology", H5_KIND_STR, "single tp=1", 0, 0},
                                        {"attempt_2_run_id", H5_KIND_STR, "two", 0, 0}};
    const struct result_memory m = {3, "decode", "node-1", 4096, 2048, 100, 50, -1};
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &setup, &w), ST_OK);
    ck_assert_int_eq(results_attrs(w, attr, 3), ST_OK);
    hand_row(w, 0, RESULT_EOS, "#### 18", 7, a, 3, (double[]){0, 1, 2, 2, 2.5, 3, 2.25, 9});
    hand_row(w, 1, RESULT_EOS, "it is 18", 4, b, 1, (double[]){0, 2, 4, 4, 4.5, 5, 4.25, 7});
    hand_row(w, 2, RESULT_LENGTH, "let me", 20, NULL, 0, (double[]){0, 1, 2, 2, 2.5, 4, 2.25, 11});
    hand_row(w, 3, RESULT_FAILED, "", 0, lost, 1, none);
    hand_row(w, 4, RESULT_EOS, "#### 19", 3, NULL, 0, none); /* done, but its times were not measured */
    results_close(w);
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &setup, &w), ST_OK);
    ck_assert_int_eq(results_attrs(w, again, 2), ST_OK);
    hand_row(w, 5, RESULT_EOS, "#### 18", 9, NULL, 0, (double[]){0, 0.5, 1, 1, 1.5, 2, 1.25, 6});
    ck_assert_int_eq(results_memory(w, &m, 1), ST_OK);
    ck_assert_int_eq(results_finish(w, 1, NULL), ST_OK);
    results_close(w);
    return path;
}

START_TEST(summary_of_a_run_worked_out_by_hand)
{
    struct results *r;
    struct report p;
    log_mute(1);
    ck_assert_int_eq(results_load(hand_made(), &r), ST_OK);
    ck_assert_int_eq(report_make(r, &p), ST_OK);
    json_t *o = json_of(&p);
    static const struct {
        const char *key;
        double want;
    } numbers[] = {
        {"questions", 8}, {"completed", 4}, {"truncated", 1}, {"failed", 1}, {"committed", 6}, {"missing", 2},
        {"output_tokens", 43},
        {"prompt_tokens", 60}, {"steps", 4}, {"proposed", 12}, {"accepted", 6}, {"emitted", 9}, {"accept_length", 2.5},
        {"emitted_per_step", 2.25}, {"accept_length_request_mean", (7.0 / 3 + 3) / 2},
        {"decode_s", (11 - 3) + (6 - 2)}, {"total_s", 11 + 6}, {"output_tps_decode", 40.0 / 12},
        {"output_tps_total", 40.0 / 17},
        {"attempt", 2}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double v = num(o, numbers[i].key);
        ck_assert_msg(fabs(v - numbers[i].want) < 1e-12, "%s is %.15g, wanted %.15g", numbers[i].key, v,
                      numbers[i].want);
    }
    static const int64_t right[GSM8K_N] = {2, 2, 3, 3}, bins[4] = {1, 1, 1, 1};
    static const double at[3] = {0.75, 0.5, 0.25};
    for (int g = 0; g < GSM8K_N; g++) {
        const char *rule = gsm8k_rule_name((enum gsm8k_rule)g);
        const json_t *acc = json_object_get(json_object_get(o, "accuracy"), rule);
        ck_assert_int_eq((int64_t)num(json_object_get(o, "correct"), rule), right[g]);
        close_to(num(json_object_get(acc, "all"), "rate"), (double)right[g] / 8, 1e-12);
        close_to(num(json_object_get(acc, "completed"), "rate"), (double)right[g] / 4, 1e-12);
        ck_assert(num(json_object_get(acc, "all"), "wilson95_low") < num(json_object_get(acc, "all"), "rate"));
    }
    for (size_t b = 0; b < 4; b++)
        ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(o, "accept_histogram"), b)), bins[b]);
    for (size_t b = 0; b < 3; b++)
        close_to(json_number_value(json_array_get(json_object_get(o, "accept_by_position"), b)), at[b], 1e-12);
    ck_assert_str_eq(json_string_value(json_object_get(o, "spec")), "dflash");
    ck_assert_str_eq(json_string_value(json_object_get(o, "topology")), "prefill pp=2 decode tp=2");
    ck_assert_str_eq(json_string_value(json_object_get(o, "config_hash")), "hash-1");
    ck_assert(json_is_false(json_object_get(o, "complete")) && json_is_false(json_object_get(o, "failed_run")));
    const json_t *tries = json_object_get(o, "attempts"), *second = json_array_get(tries, 1);
    ck_assert(json_array_size(tries) == 2 && num(second, "attempt") == 2 && num(second, "rows") == 1);
    ck_assert_str_eq(json_string_value(json_object_get(second, "topology")), "single tp=1");
    const json_t *kda = json_object_get(json_object_get(o, "transfer"), "kda"),
                 *mla = json_object_get(json_object_get(o, "transfer"), "mla");
    ck_assert(num(kda, "bytes") == 600 && num(kda, "puts") == 6 && num(kda, "seconds") == 3);
    ck_assert(num(mla, "bytes") == 0 && json_is_null(json_object_get(mla, "seconds")));
    const json_t *prefill = json_object_get(json_object_get(o, "phases"), "prefill");
    ck_assert(num(prefill, "requests") == 4 && num(prefill, "mean_s") == 1.125 && num(prefill, "p50_s") == 1 &&
              num(prefill, "max_s") == 2);
    const json_t *mem = json_array_get(json_object_get(o, "memory"), 0);
    ck_assert(num(mem, "rank") == 3 && num(mem, "host_peak_bytes") == 4096 &&
              json_is_null(json_object_get(mem, "device_bytes")));
    json_decref(o);
    results_free(r);
}
END_TEST

/* ---- transfers under compute -------------------------------------------------------------------------- */

static json_t *overlap_of(const char *path, char **text_p)
{
    struct results *r;
    struct report p;
    ck_assert_int_eq(results_load(path, &r), ST_OK);
    ck_assert_int_eq(report_make(r, &p), ST_OK);
    json_t *all = json_of(&p), *o = json_incref(json_object_get(all, "overlap"));
    *text_p = text_of(report_text, &p);
    json_decref(all);
    results_free(r);
    return o;
}

/* admit, first_chunk, prefill_done, transfer_start, transfer_done, start, first_token, end */
START_TEST(overlap_of_transfers_worked_out_by_hand)
{
    static const struct {
        int attempt;
        double t[8];
    } row[] = {
        {1, {0, 0, 2, 1, 3, 3, 2, 7}},       /* its transfer ends where the window [3, 13] begins */
        {1, {0, 2, 6, 5, 8, 9, 6, 12}},      /* [5, 8]: own prefill to 6, the first row's decode to 7, then nobody */
        {1, {0, 11, 13, 12, 14, 15, 13, 16}}, /* [12, 13] is inside: own prefill, nobody else; the rest is cut */
        {1, {0, NAN, NAN, 5, 6, NAN, NAN, NAN}}, /* [5, 6]: it computes nothing itself */
        {1, {0, 4, 5, 7, 7, NAN, NAN, NAN}}, /* an empty transfer */
        {2, {0, 0, 4, 1, 3, 1, 1, 9}},       /* another clock: window [1, 4], only its own compute, twice at once */
        {3, {0, 0, 1, 0.5, 1.5, 2, 1, 3}},   /* decode begins after the last prefill: no steady state */
    };
    const struct results_setup setup = {.config_hash = "hash-2", .questions = 7, .block = 4};
    const char *path = suite_fresh("overlap.h5");
    struct results_writer *w = NULL;
    char *text;
    log_mute(1);
    for (int i = 0, attempt = 0; i < 7; i++) {
        if (row[i].attempt != attempt) {
            results_close(w);
            ck_assert_int_eq(results_open(path, attempt ? RESULTS_RESUME : RESULTS_NEW, &setup, &w), ST_OK);
            attempt = row[i].attempt;
        }
        hand_row(w, i, RESULT_EOS, "#### 18", 1, NULL, 0, row[i].t);
    }
    results_close(w);
    json_t *o = overlap_of(path, &text);
    ck_assert(num(o, "transfers") == 4);
    close_to(num(o, "window_s"), 10 + 3, 1e-12);
    close_to(num(o, "transfer_s"), 3 + 1 + 1 + 2, 1e-12);
    close_to(num(o, "share_any"), (2 + 1 + 1 + 2) / 7.0, 1e-12);
    close_to(num(o, "share_others"), (2 + 0 + 1 + 0) / 7.0, 1e-12);
    has(text, "4 transfers, 7 s summed;\n  85.71 % of it while a request computes, 42.86 % while another one does");
    json_decref(o);
    free(text);
    o = overlap_of(hand_made(), &text); /* nothing moves between the first start and the last prefill end */
    ck_assert(num(o, "transfers") == 0 && json_is_null(json_object_get(o, "share_any")));
    has(text, "no transfer was measured in steady state");
    json_decref(o);
    free(text);
}
END_TEST

START_TEST(documented_keys_come_first_and_in_order)
{
    static const char *const key[] = {"questions", "completed", "truncated", "failed", "correct", "accept_length",
                                      "accept_histogram",
        "accept_by_position", "output_tokens", "decode_s", "total_s", "output_tps_decode", "output_tps_total", "spec",
        "topology", "config_hash"};
    struct results *r;
    struct report p;
    log_mute(1);
    ck_assert_int_eq(results_load(hand_made(), &r), ST_OK);
    ck_assert_int_eq(report_make(r, &p), ST_OK);
    json_t *o = json_of(&p);
    void *it = json_object_iter(o);
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++, it = json_object_iter_next(o, it))
        ck_assert_str_eq(json_object_iter_key(it), key[i]);
    ck_assert_uint_eq(json_object_size(json_object_get(o, "correct")), 4);
    json_decref(o);
    results_free(r);
}
END_TEST

START_TEST(texts_say_what_is_there_and_what_is_not)
{
    struct results *r;
    struct report p;
    log_mute(1);
    ck_assert_int_eq(results_load(hand_made(), &r), ST_OK);
    ck_assert_int_eq(report_make(r, &p), ST_OK);
    char *text = text_of(report_text, &p);
    has(text, "questions 8: 4 completed, 1 truncated, 1 failed, 2 missing (run not complete, attempt 2)");
    has(text, "  attempt 1: 5 rows, topology prefill pp=2 decode tp=2, run not recorded\n");
    has(text, "  attempt 2: 1 rows, topology single tp=1, run two\n");
    has(text, "lm_eval_flexible   3 of 8 all questions = 37.50 %");
    has(text, "3 of 4 completed = 75.00 %");
    has(text, "4 verify steps, 12 drafts proposed, 6 accepted, 9 tokens emitted");
    has(text, "2.5 tokens a step");
    has(text, "0:        1  0.2500  1.0000");
    has(text, "3:        1  0.2500  0.2500");
    has(text, "mla                   0          0 not measured");
    has(text, "decode, wall                 12 s");
    has(text, "node-1");
    const char *counts = strstr(text, "tokens: ");
    has(counts ? counts : "", "decode, wall"); /* counts, then seconds */
    has_not(text, "nan");
    has_not(text, "FAILED RUN");
    free(text);
    text = text_of(report_grade, &p);
    has(text, "sglang             3 of 8");
    has(text, "truncated: cut by the output limit\n       2  20 output tokens, attempt 1\n");
    has(text, "failed\n       3  0 output tokens, attempt 1: stage 2 is gone\n");
    has(text, "missing: no committed row\n  6-7\n");
    has(text, "       1  openai -[invalid]  lm_eval_strict -[invalid]  lm_eval_flexible +18  sglang +18\n");
    has_not(text, "       4  openai");
    has_not(text, "aborted");
    free(text);
    results_free(r);
}
END_TEST

/* one whose rows all failed is as well; a cut answer is an answer */
START_TEST(a_run_of_failed_rows_is_a_failed_run)
{
    const char *path = suite_fresh("failed.h5");
    log_mute(1);
    for (enum result_stop stop = RESULT_EOS; stop < RESULT_STOP_N; stop++) {
        const struct results_setup u = {"h", 5, 1, NULL, 0, 0, 0};
        const struct result_row row = {.stop = stop, .question = "", .gold = "#### 1", .response = ""};
        struct results_writer *w;
        struct results *r;
        struct report p;
        ck_assert_int_eq(results_open(path, RESULTS_FORCE, &u, &w), ST_OK);
        ck_assert_int_eq(results_append(w, &row), ST_OK);
        results_close(w);
        ck_assert_int_eq(results_load(path, &r), ST_OK);
        ck_assert_int_eq(report_make(r, &p), ST_OK);
        ck_assert_int_eq(p.is_failed_run, stop == RESULT_FAILED || stop == RESULT_ABORTED);
        results_free(r);
    }
    log_mute(0);
}
END_TEST

START_TEST(a_run_without_rows_is_a_failed_run)
{
    const char *path = suite_fresh("empty.h5");
    struct results_writer *w;
    struct results *r;
    struct report p;
    log_mute(1);
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &(struct results_setup){"h", 5, 1, NULL, 0, 0, 0}, &w), ST_OK);
    results_close(w);
    ck_assert_int_eq(results_load(path, &r), ST_OK);
    ck_assert_int_eq(report_make(r, &p), ST_OK);
    ck_assert_int_eq(p.is_failed_run, 1);
    json_t *o = json_of(&p);
    static const char *const unknown[] = {"accept_length", "decode_s", "total_s", "output_tps_decode",
                                          "output_tps_total", "emitted_per_step",
                                          "accept_length_request_mean"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        ck_assert_msg(json_is_null(json_object_get(o, unknown[i])), "%s", unknown[i]);
    ck_assert(json_is_true(json_object_get(o, "failed_run")));
    ck_assert(num(o, "missing") == 5 && num(o, "questions") == 5);
    ck_assert_uint_eq(json_array_size(json_object_get(o, "accept_by_position")), 0);
    ck_assert_uint_eq(json_array_size(json_object_get(o, "memory")), 0);
    json_decref(o);
    char *text = text_of(report_text, &p);
    has(text, "FAILED RUN: no request was completed");
    has(text, "memory: not measured");
    has(text, "ranks at work: not recorded");
    has(text, "decode, wall                 not measured");
    has(text, "none completed");
    has_not(text, "nan");
    free(text);
    text = text_of(report_grade, &p);
    has(text, "missing: no committed row\n  0-4\n");
    free(text);
    results_free(r);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "report", 60);
    SUITE_TEST(tc, acceptance_figures_are_those_of_the_reference);
    SUITE_TEST(tc, summary_of_a_run_worked_out_by_hand);
    SUITE_TEST(tc, overlap_of_transfers_worked_out_by_hand);
    SUITE_TEST(tc, documented_keys_come_first_and_in_order);
    SUITE_TEST(tc, texts_say_what_is_there_and_what_is_not);
    SUITE_TEST(tc, a_run_without_rows_is_a_failed_run);
    SUITE_TEST(tc, a_run_of_failed_rows_is_a_failed_run);
}

int main(void)
{
    return suite_main_serial();
}
