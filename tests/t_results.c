#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "data/results.h"
#include "results_rows.h"

const char *const suite_name = "results";

/* ---- tests ---------------------------------------------------------------------------------------- */

START_TEST(a_run_comes_back_and_is_rebuilt_from_its_journal)
{
    const char *path = suite_fresh("run.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(results_attempt(w), 1);
    struct results *r = load_ok(path); /* readable before the first row */
    ck_assert(r->n == 0 && !r->complete && r->questions == QUESTIONS);
    results_free(r);
    write_extras(w);
    for (int64_t i = 0; i < QUESTIONS; i++) { /* rows finish in another order than they started */
        int64_t index = i * 7 % QUESTIONS;
        ck_assert_int_eq(append(w, index, 0, stop_of(index)), ST_OK);
        ck_assert_int_eq(results_done(w, index), 1);
        r = load_ok(path); /* durable on return, beside the living writer */
        ck_assert_uint_eq(r->n, (size_t)i + 1);
        results_free(r);
    }
    int complete = -1;
    ck_assert_int_eq(results_finish(w, 1, &complete), ST_OK);
    ck_assert_int_eq(complete, 1);
    results_close(w);
    results_close(NULL);
    r = load_ok(path);
    ck_assert(r->complete == 1 && r->n == QUESTIONS && r->rows_stored == QUESTIONS && r->attempt == 1);
    for (size_t i = 0; i < r->n; i++) {
        ck_assert_int_eq(r->row[i].index, (int64_t)i);
        ck_assert_int_eq(r->row[i].attempt, 1);
        check_row(&r->row[i]);
    }
    ck_assert_str_eq(results_attr_str(r, "spec"), "dflash");
    ck_assert_str_eq(results_attr_str(r, "command_line"), "pdflash run --out a\xef\xbf\xbd" "b");
    ck_assert_str_eq(results_attr_str(r, "slurm_job_id"), "");
    ck_assert_ptr_null(results_attr_str(r, "opt.concurrency")); /* no text */
    ck_assert_ptr_null(results_attr_str(r, "absent"));
    ck_assert(r->n_memory == 3 && r->memory[1].host_peak_bytes == -1 && r->memory[1].device_bytes == 123);
    ck_assert_str_eq(r->plan, "{\"stages\": [1, 2], \"note\": \"\xe2\x88\x92\"}");
    /* the same file again from the journal alone */
    int64_t rows = 0;
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    ck_assert_int_eq(rows, QUESTIONS);
    struct results *again = load_ok(path);
    check_same(r, again);
    results_free(again);
    results_free(r);
}
END_TEST

START_TEST(names_and_units_are_in_the_file)
{
    static const char *const set[] = {"/requests", "/text/question", "/text/response", "/text/gold", "/text/error",
                                      "/tokens/flat",
        "/tokens/offsets", "/accept/request", "/accept/round", "/accept/proposed", "/accept/accepted",
        "/accept/emitted", "/accept/bonus",
        "/accept/offsets", "/accept/histogram", "/timing", "/transfer", "/memory", "/grading/verdict",
        "/grading/openai_extracted",
        "/grading/lm_eval_strict_extracted", "/grading/lm_eval_flexible_extracted", "/grading/sglang_extracted",
        "/plan"};
    const char *path = suite_fresh("names.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    write_extras(w);
    ck_assert_int_eq(append(w, 3, 0, RESULT_EOS), ST_OK);
    results_close(w);
    struct h5 *f;
    ck_assert_int_eq(h5_open(path, 0, &f), ST_OK);
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) ck_assert_msg(h5_exists(f, set[i]), "%s", set[i]);
    static const struct h5_field end[] = {{"end_s", H5_KIND_F64, 0, 0}},
                                         committed[] = {{"committed", H5_KIND_I8, 0, 0}};
    void *p;
    size_t n;
    char *s;
    struct sample *want = sample(3, 1, RESULT_EOS);
    ck_assert_int_eq(h5_read_rows(f, "/timing", &(struct h5_table){end, 1, sizeof(double)}, &p, &n), ST_OK);
    ck_assert(n == 1 && *(double *)p == want->row.timing.end);
    mem_free(p);
    mem_free(want);
    ck_assert_int_eq(h5_read_rows(f, "/requests", &(struct h5_table){committed, 1, 1}, &p, &n), ST_OK);
    ck_assert_int_eq(*(int8_t *)p, 1);
    mem_free(p);
    ck_assert_int_eq(h5_get_str(f, "/timing", "description", &s), ST_OK);
    ck_assert_ptr_nonnull(strstr(s, "seconds"));
    mem_free(s);
    ck_assert_int_eq(h5_get_str(f, "/plan", "plan_hash", &s), ST_OK);
    ck_assert_str_eq(s, "77");
    mem_free(s);
    h5_close(f);
}
END_TEST

START_TEST(existing_files_and_other_writers_are_refused)
{
    const char *path = suite_fresh("refuse.h5");
    struct results_writer *w = open_ok(path, RESULTS_RESUME), *v; /* nothing to resume: a new run */
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &setup, &v), ST_E_FILE); /* locked */
    ck_assert_ptr_nonnull(strstr(err_last(), "another process"));
    int64_t rows;
    ck_assert_int_eq(results_rebuild(path, &rows), ST_E_FILE);
    ck_assert_int_eq(append(w, 1, 0, RESULT_EOS), ST_OK);
    results_close(w);
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &setup, &v), ST_E_FILE);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &setup, &v), ST_E_FILE); /* the journal counts too */
    w = open_ok(path, RESULTS_RESUME);                                        /* rebuilt */
    ck_assert_int_eq(results_done(w, 1), 1);
    ck_assert_int_eq(results_attempt(w), 2);
    results_close(w);
    w = open_ok(path, RESULTS_FORCE);
    ck_assert(results_done_count(w) == 0 && results_attempt(w) == 1);
    results_close(w);
    struct results *r = load_ok(path);
    ck_assert_uint_eq(r->n, 0);
    results_free(r);
    /* --force-new does not replace an HDF5 file of another kind */
    struct h5 *f;
    ck_assert_int_eq(h5_create(path, 1, &f), ST_OK);
    ck_assert_int_eq(h5_set_str(f, "/", "schema", "pdflash-prompts"), ST_OK);
    ck_assert_int_eq(h5_flush(f), ST_OK);
    h5_close(f);
    ck_assert_int_eq(results_open(path, RESULTS_FORCE, &setup, &v), ST_E_FILE);
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &setup, &v), ST_E_FORMAT);
    ck_assert_int_eq(results_load(path, &r), ST_E_FORMAT);
    static const struct results_setup bad[] = {
        {"", QUESTIONS, BLOCK, NULL, 0, 0, 0}, {NULL, QUESTIONS, BLOCK, NULL, 0, 0, 0}, {"x", 0, BLOCK, NULL, 0, 0, 0},
        {"x", QUESTIONS, 0, NULL, 0, 0, 0}, {"x", 4, 5000, NULL, 0, 0, 0}};
    path = suite_fresh("refuse2.h5");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_int_eq(results_open(path, RESULTS_NEW, &bad[i], &v), ST_E_RANGE);
    ck_assert_int_ne(access(journal_of(path), F_OK), 0); /* a refused start leaves nothing behind */
}
END_TEST

START_TEST(another_configuration_is_refused_naming_both)
{
    const char *path = suite_fresh("config.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(append(w, 0, 0, RESULT_EOS), ST_OK);
    results_close(w);
    static const struct {
        struct results_setup s;
        const char *a, *b;
    } cases[] = {{{"beef4567", QUESTIONS, BLOCK, NULL, 0, 0, 0}, "cafe0123", "beef4567"},
                 {{"cafe0123", QUESTIONS + 1, BLOCK, NULL, 0, 0, 0}, "24 questions", "25"},
                 {{"cafe0123", QUESTIONS, BLOCK + 1, NULL, 0, 0, 0}, "block 8", "9"}};
    for (int lost = 0; lost < 2; lost++) { /* with the file, and from the journal alone */
        if (lost) unlink(path);
        for (size_t i = 0; i < 3; i++) {
            ck_assert_int_eq(results_open(path, RESULTS_RESUME, &cases[i].s, &w), ST_E_CONFIG);
            ck_assert_msg(strstr(err_last(), cases[i].a) && strstr(err_last(), cases[i].b), "%s", err_last());
        }
    }
    w = open_ok(path, RESULTS_RESUME); /* nothing was harmed */
    ck_assert_int_eq(results_done_count(w), 1);
    results_close(w);
}
END_TEST

/* nothing left of the rows that are told: the file stays, a kill after the last row is made good, others go on */
START_TEST(a_resume_with_nothing_left_begins_no_attempt)
{
    const char *path = suite_fresh("idle.h5");
    const struct result_attr who = {"topology", H5_KIND_STR, "the first", 0, 0};
    struct results_setup part = setup;
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(results_attrs(w, &who, 1), ST_OK);
    for (int i = 0; i < QUESTIONS - 1; i++) ck_assert_int_eq(append(w, i, 0, i ? RESULT_EOS : RESULT_FAILED), ST_OK);
    results_close(w); /* killed */
    static const struct { int64_t first, end; int idle; } range[] = {
        {1, QUESTIONS - 1, 1}, {3, 4, 1}, {0, 2, 0}, {QUESTIONS - 2, QUESTIONS, 0}, {0, 0, 0}, {2, 2, 0}};
    int attempt = 1;
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++) {
        part.first = range[i].first, part.end = range[i].end;
        if (i % 2) unlink(path); /* from the journal as well */
        ck_assert_int_eq(results_open(path, RESULTS_RESUME, &part, &w), ST_OK);
        ck_assert_int_eq(results_idle(w), range[i].idle);
        attempt += !range[i].idle;
        ck_assert_int_eq(results_attempt(w), attempt);
        ck_assert_int_eq(results_attrs(w, &who, 1), range[i].idle ? ST_E_RANGE : ST_OK);
        results_close(w);
    }
    part.first = 0, part.end = QUESTIONS;
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &part, &w), ST_OK);
    ck_assert_int_eq(append(w, 0, 0, RESULT_EOS), ST_OK);
    ck_assert_int_eq(append(w, QUESTIONS - 1, 0, RESULT_LENGTH), ST_OK);
    results_close(w); /* killed before it was complete */
    for (int i = 0; i < 2; i++) {
        struct results *r = load_ok(path);
        ck_assert_int_eq(r->complete, i);
        ck_assert_int_eq(r->attempt, attempt + 1);
        results_free(r);
        ck_assert_int_eq(results_open(path, RESULTS_RESUME, &part, &w), ST_OK);
        ck_assert_int_eq(results_idle(w), 1);
        results_close(w);
    }
    int64_t rows;
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK); /* the journal says the same */
    struct results *r = load_ok(path);
    ck_assert(r->complete == 1 && r->attempt == attempt + 1 && rows == QUESTIONS);
    results_free(r);
}
END_TEST

/* whatever the hash covers and the file records is named with both values; the rest is not mentioned */
START_TEST(a_refused_resume_says_what_differs)
{
    const char *path = suite_fresh("differs.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    static const struct result_attr kept[] = {{"model_hash", H5_KIND_STR, "aa11", 0, 0},
                                              {"option_max-new", H5_KIND_STR, "40", 0, 0},
                                              {"spec", H5_KIND_STR, "dflash", 0, 0}};
    ck_assert_int_eq(results_attrs(w, kept, 3), ST_OK);
    ck_assert_int_eq(append(w, 0, 0, RESULT_EOS), ST_OK);
    results_close(w);
    static const struct {
        const char *value[4];
        int64_t questions;
        int32_t block;
        const char *says, *not;
    } cases[] = {
        {{"bb22", "40", "dflash", "x"}, QUESTIONS, BLOCK, ": --model is aa11 in the file and bb22 now; use",
         "--max-new"},
        {{"aa11", "41", "none", "x"}, QUESTIONS, BLOCK,
         "--max-new is 40 in the file and 41 now; --spec is dflash in the file and none now;", "--model"},
        {{"aa11", "40", "dflash", "x"}, QUESTIONS - 4, BLOCK, "questions (--limit) is 24 in the file and 20 now",
         "--max-new"},
        {{"aa11", "40", "dflash", "x"}, QUESTIONS, BLOCK / 2, "--block is 8 in the file and 4 now", "--limit"},
        {{"aa11", "40", "dflash", "x"}, QUESTIONS, BLOCK, "config hash cafe0123, this run has other", "--block"},
    };
    for (int lost = 0; lost < 2; lost++) {
        if (lost) unlink(path);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const char *const *v = cases[i].value;
            const struct results_identity d[] = {{"model_hash", "--model", v[0]}, {"option_max-new", "--max-new", v[1]},
                                                 {"spec", "--spec", v[2]}, {"never_recorded", "--never", v[3]}};
            const struct results_setup s = {"other", cases[i].questions, cases[i].block, d, 4, 0, 0};
            ck_assert_int_eq(results_open(path, RESULTS_RESUME, &s, &w), ST_E_CONFIG);
            ck_assert_msg(strstr(err_last(), cases[i].says) && strstr(err_last(), "--force-new"), "%s", err_last());
            ck_assert_msg(!strstr(err_last(), cases[i].not) && !strstr(err_last(), "--never"), "%s", err_last());
        }
    }
}
END_TEST

/* killed before the first row: only the journal has what the run was */
START_TEST(attributes_outlive_a_run_without_rows)
{
    const char *path = suite_fresh("norows.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(results_attrs(w, &(struct result_attr){"spec", H5_KIND_STR, "dflash", 0, 0}, 1), ST_OK);
    ck_assert_int_eq(results_attrs(w, &(struct result_attr){"attempt_1_topology", H5_KIND_STR, "pp2", 0, 0}, 1), ST_OK);
    results_close(w);
    struct results *r = load_ok(path);
    ck_assert_ptr_null(results_attr_str(r, "spec"));
    results_free(r);
    static const struct results_identity d[] = {{"spec", "--spec", "none"}};
    const struct results_setup other = {"other", QUESTIONS, BLOCK, d, 1, 0, 0};
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &other, &w), ST_E_CONFIG);
    ck_assert_msg(strstr(err_last(), "--spec is dflash in the file and none now") != NULL, "%s", err_last());
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_attempt(w), 2);
    results_close(w);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_attrs(w, &(struct result_attr){"attempt_3_topology", H5_KIND_STR, "pp3", 0, 0}, 1), ST_OK);
    ck_assert_int_eq(results_sync(w), ST_OK);
    results_close(w);
    r = load_ok(path);
    ck_assert_str_eq(results_attr_str(r, "spec"), "dflash");
    ck_assert_str_eq(results_attr_str(r, "attempt_1_topology"), "pp2");
    ck_assert_str_eq(results_attr_str(r, "attempt_3_topology"), "pp3");
    results_free(r);
}
END_TEST

START_TEST(rows_that_cannot_be_are_refused)
{
    const char *path = suite_fresh("rows.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    for (int which = 0; which < 13; which++) {
        struct sample *s = sample(5, 0, RESULT_EOS);
        struct result_row *r = &s->row;
        ck_assert_int_gt(r->n_rounds, 3);
        ck_assert_int_gt(r->output_tokens, 3);
        switch (which) {
        case 0: r->index = -1; break;
        case 1: r->index = QUESTIONS; break;
        case 2: s->round[2].proposed = BLOCK; break;
        case 3: s->round[2].accepted = s->round[2].proposed + 1; break;
        case 4: s->round[2].accepted = -1; break;
        case 5: s->round[2].emitted = s->round[2].accepted + 2; break;
        case 6: s->round[2].bonus = -2; break;
        case 7: s->token[3] = -1; break;
        case 8: r->output_tokens = -1; break;
        case 9: r->question = NULL; break;
        case 10: r->stop = RESULT_STOP_N; break;
        case 11: r->token = NULL; break;
        default: r->attempt = -1;
        }
        ck_assert_msg(results_append(w, r) == ST_E_RANGE, "case %d", which);
        mem_free(s);
    }
    static const char *const key[] = {"schema", "complete", "config_hash", "attempt", "", NULL, "\xff"};
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
        ck_assert_int_eq(results_attrs(w, &(struct result_attr){key[i], H5_KIND_I64, NULL, 1, 0}, 1), ST_E_RANGE);
    ck_assert_int_eq(results_attrs(w, &(struct result_attr){"k", H5_KIND_F32, NULL, 1, 0}, 1), ST_E_RANGE);
    ck_assert_int_eq(append(w, 5, 0, RESULT_EOS), ST_OK); /* refusals do no harm */
    ck_assert_int_eq(append(w, 5, 0, RESULT_EOS), ST_E_RANGE);
    ck_assert_ptr_nonnull(strstr(err_last(), "done already"));
    int complete = -1;
    ck_assert_int_eq(results_finish(w, 1, &complete), ST_OK);
    ck_assert_int_eq(complete, 0); /* one row of 24 */
    results_close(w);
    struct results *r = load_ok(path);
    ck_assert(r->n == 1 && r->complete == 0);
    check_row(&r->row[0]);
    results_free(r);
}
END_TEST

START_TEST(failed_rows_are_redone_by_a_later_attempt)
{
    const char *path = suite_fresh("redo.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(append(w, 4, 0, RESULT_FAILED), ST_OK);
    ck_assert_int_eq(append(w, 9, 0, RESULT_ABORTED), ST_OK);
    ck_assert_int_eq(append(w, 2, 0, RESULT_EOS), ST_OK);
    ck_assert_int_eq(append(w, 4, 0, RESULT_EOS), ST_E_RANGE); /* once an attempt */
    ck_assert(!results_done(w, 4) && !results_done(w, 9) && results_done(w, 2) && results_done_count(w) == 1);
    ck_assert(!results_done(w, -1) && !results_done(w, QUESTIONS));
    results_close(w);
    struct results *r = load_ok(path);
    struct sample *two = sample(2, 1, RESULT_EOS);
    int64_t steps = 0;
    for (int b = 0; b < BLOCK; b++) steps += r->histogram[b];
    ck_assert_int_eq(steps, two->row.n_rounds); /* rounds of failed rows are not counted */
    mem_free(two);
    ck_assert_uint_eq(r->n, 3);
    results_free(r);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_attempt(w), 2);
    ck_assert_int_eq(append(w, 4, 0, RESULT_EOS), ST_OK);
    ck_assert_int_eq(append(w, 2, 0, RESULT_EOS), ST_E_RANGE);
    ck_assert_int_eq(results_done_count(w), 2);
    results_close(w);
    r = load_ok(path);
    ck_assert(r->n == 3 && r->rows_stored == 4 && r->attempt == 2);
    ck_assert(r->row[1].index == 4 && r->row[1].attempt == 2 && r->row[1].stop == RESULT_EOS);
    for (size_t i = 0; i < 3; i++) check_row(&r->row[i]);
    int64_t rows = 0;
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    ck_assert_int_eq(rows, 3);
    struct results *again = load_ok(path);
    check_same(r, again);
    ck_assert_int_eq(again->rows_stored, 4);
    results_free(again);
    results_free(r);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "results", 60);
    SUITE_TEST(tc, a_run_comes_back_and_is_rebuilt_from_its_journal);
    SUITE_TEST(tc, names_and_units_are_in_the_file);
    SUITE_TEST(tc, existing_files_and_other_writers_are_refused);
    SUITE_TEST(tc, another_configuration_is_refused_naming_both);
    SUITE_TEST(tc, a_resume_with_nothing_left_begins_no_attempt);
    SUITE_TEST(tc, a_refused_resume_says_what_differs);
    SUITE_TEST(tc, attributes_outlive_a_run_without_rows);
    SUITE_TEST(tc, rows_that_cannot_be_are_refused);
    SUITE_TEST(tc, failed_rows_are_redone_by_a_later_attempt);
}

int main(void)
{
    return suite_main_serial();
}
