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

static struct results_writer *open_ok(const char *path, enum results_mode mode)
{
    struct results_writer *w;
    ck_assert_int_eq(results_open(path, mode, &setup, &w), ST_OK);
    return w;
}

/* everything except the order of rows in the file */
static void check_same(const struct results *a, const struct results *b)
{
    ck_assert_uint_eq(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        ck_assert_int_eq(a->row[i].index, b->row[i].index);
        ck_assert_int_eq(a->row[i].attempt, b->row[i].attempt);
        ck_assert_int_eq(a->row[i].stop, b->row[i].stop);
        check_row(&a->row[i]);
        check_row(&b->row[i]);
    }
    ck_assert_int_eq(a->questions, b->questions);
    ck_assert_int_eq(a->block, b->block);
    ck_assert_int_eq(a->attempt, b->attempt);
    ck_assert_int_eq(a->complete, b->complete);
    ck_assert_str_eq(a->config_hash, b->config_hash);
    ck_assert_mem_eq(a->histogram, b->histogram, (size_t)a->block * sizeof *a->histogram);
    ck_assert_uint_eq(a->n_memory, b->n_memory);
    if (a->n_memory) ck_assert_mem_eq(a->memory, b->memory, a->n_memory * sizeof *a->memory);
    ck_assert(!a->plan == !b->plan);
    if (a->plan) ck_assert_str_eq(a->plan, b->plan);
    ck_assert_uint_eq(a->n_attrs, b->n_attrs);
    for (size_t i = 0; i < a->n_attrs; i++) {
        ck_assert_str_eq(a->attr[i].name, b->attr[i].name);
        ck_assert_int_eq(a->attr[i].kind, b->attr[i].kind);
        ck_assert(a->attr[i].i == b->attr[i].i && same(a->attr[i].d, b->attr[i].d));
        if (a->attr[i].s) ck_assert_str_eq(a->attr[i].s, b->attr[i].s);
    }
}

static const struct result_attr attrs[] = {
    {"spec", H5_KIND_STR, "dflash", 0, 0},          {"topology", H5_KIND_STR, "prefill pp=8,tp=1 decode tp=8", 0, 0},
    {"opt.concurrency", H5_KIND_I64, NULL, 8, 0},   {"opt.temperature", H5_KIND_F64, NULL, 0, 0.1},
    {"opt.top_p", H5_KIND_F64, NULL, 0, 1},         {"unknown_s", H5_KIND_F64, NULL, 0, NAN},
    {"command_line", H5_KIND_STR, "pdflash run --out a\xff" "b", 0, 0}, {"slurm_job_id", H5_KIND_STR, NULL, 0, 0}};
enum { N_ATTRS = sizeof attrs / sizeof attrs[0] };

static void write_extras(struct results_writer *w)
{
    struct result_memory m[3] = {{0, "prefill", "node-a", 1 << 30, 5, 6, 7, -1},
                                 {1, "decode", "node-b", -1, 0, 0, 0, 123}, {2, "single", "h", 1, 2, 3, 4, 5}};
    ck_assert_int_eq(results_attrs(w, attrs, N_ATTRS), ST_OK);
    ck_assert_int_eq(results_plan(w, "{\"old\": 1}", NULL, 0), ST_OK);
    ck_assert_int_eq(results_plan(w, "{\"stages\": [1, 2], \"note\": \"\xe2\x88\x92\"}",
                                  &(struct result_attr){"plan_hash", H5_KIND_STR, "77", 0, 0}, 1),
                     ST_OK);
    ck_assert_int_eq(results_memory(w, m, 1), ST_OK);
    ck_assert_int_eq(results_memory(w, m, 3), ST_OK);
}

/* ---- tests ---------------------------------------------------------------------------------------- */

START_TEST(a_run_comes_back_and_is_rebuilt_from_its_journal)
{
    const char *path = clean_path("run.h5");
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
    const char *path = clean_path("names.h5");
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
    const char *path = clean_path("refuse.h5");
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
        {"", QUESTIONS, BLOCK, NULL, 0}, {NULL, QUESTIONS, BLOCK, NULL, 0}, {"x", 0, BLOCK, NULL, 0},
        {"x", QUESTIONS, 0, NULL, 0}, {"x", 4, 5000, NULL, 0}};
    path = clean_path("refuse2.h5");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_int_eq(results_open(path, RESULTS_NEW, &bad[i], &v), ST_E_RANGE);
    ck_assert_int_ne(access(journal_of(path), F_OK), 0); /* a refused start leaves nothing behind */
}
END_TEST

START_TEST(another_configuration_is_refused_naming_both)
{
    const char *path = clean_path("config.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(append(w, 0, 0, RESULT_EOS), ST_OK);
    results_close(w);
    static const struct {
        struct results_setup s;
        const char *a, *b;
    } cases[] = {{{"beef4567", QUESTIONS, BLOCK, NULL, 0}, "cafe0123", "beef4567"},
                 {{"cafe0123", QUESTIONS + 1, BLOCK, NULL, 0}, "24 questions", "25"},
                 {{"cafe0123", QUESTIONS, BLOCK + 1, NULL, 0}, "block 8", "9"}};
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

/* whatever the hash covers and the file records is named with both values; the rest is not mentioned */
START_TEST(a_refused_resume_says_what_differs)
{
    const char *path = clean_path("differs.h5");
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
            const struct results_setup s = {"other", cases[i].questions, cases[i].block, d, 4};
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
    const char *path = clean_path("norows.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(results_attrs(w, &(struct result_attr){"spec", H5_KIND_STR, "dflash", 0, 0}, 1), ST_OK);
    ck_assert_int_eq(results_attrs(w, &(struct result_attr){"attempt_1_topology", H5_KIND_STR, "pp2", 0, 0}, 1), ST_OK);
    results_close(w);
    struct results *r = load_ok(path);
    ck_assert_ptr_null(results_attr_str(r, "spec"));
    results_free(r);
    static const struct results_identity d[] = {{"spec", "--spec", "none"}};
    const struct results_setup other = {"other", QUESTIONS, BLOCK, d, 1};
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
    const char *path = clean_path("rows.h5");
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
    const char *path = clean_path("redo.h5");
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

/* ---- damage ---- */

static void cut(const char *path, long drop)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    fclose(f);
    ck_assert_int_eq(truncate(path, n - drop), 0);
}

static void append_raw(const char *path, const char *text)
{
    FILE *f = fopen(path, "ab");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

START_TEST(a_damaged_file_or_journal_loses_nothing_committed)
{
    const char *path = clean_path("damage.h5");
    int64_t rows = 0;
    struct results *r;
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    write_extras(w);
    for (int64_t i = 0; i < 6; i++) ck_assert_int_eq(append(w, i, 0, stop_of(i)), ST_OK);
    results_close(w);
    /* the file is cut short: it cannot be opened, resume rebuilds it */
    cut(path, 1000);
    ck_assert_int_eq(results_load(path, &r), ST_E_FORMAT);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_done_count(w), 6);
    ck_assert_int_eq(append(w, 6, 0, RESULT_EOS), ST_OK);
    results_close(w);
    /* the last line of the journal is torn: dropped by rebuild and cut off by resume */
    append_raw(journal_of(path), "{\"kind\":\"row\",\"index\":7,\"att");
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    ck_assert_int_eq(rows, 7);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(append(w, 7, 0, RESULT_EOS), ST_OK);
    results_close(w);
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    ck_assert_int_eq(rows, 8);
    /* the journal is gone: written anew from the file */
    struct results *before = load_ok(path);
    ck_assert_int_eq(unlink(journal_of(path)), 0);
    w = open_ok(path, RESULTS_RESUME);
    results_close(w);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    ck_assert_int_eq(rows, 8);
    r = load_ok(path);
    before->attempt = r->attempt; /* the resume in between */
    before->attr[0].i = r->attr[0].i;
    ck_assert_str_eq(before->attr[0].name, "attempt");
    check_same(before, r);
    results_free(before);
    results_free(r);
}
END_TEST

static void copy(const char *from, const char *to)
{
    char command[1400];
    snprintf(command, sizeof command, "cp -- '%s' '%s'", from, to);
    ck_assert_int_eq(system(command), 0);
}

static int differ(const char *a, const char *b)
{
    char command[1400];
    snprintf(command, sizeof command, "cmp -s -- '%s' '%s'", a, b);
    return system(command) != 0;
}

/* a file that opens, with a part of it gone or wrong; 0: a part that no reader needs */
static int harm(const char *path, const char *object)
{
    struct h5 *f;
    ck_assert_int_eq(h5_open(path, 1, &f), ST_OK);
    if (strcmp(object, "count") == 0) { /* a row too many in one list */
        ck_assert_int_eq(h5_append_str(f, "/text/gold", 1, &(const char *){"x"}), ST_OK);
    } else if (strcmp(object, "attempt") == 0) {
        ck_assert_int_eq(h5_set_int(f, "/", "attempt", 0), ST_OK);
    } else if (strcmp(object, "value") == 0) {
        ck_assert_int_eq(h5_put(f, "/accept/accepted", H5_KIND_I32, 0, 1, &(int32_t){BLOCK + 7}), ST_OK);
    } else {
        ck_assert_int_eq(h5_delete(f, object), ST_OK);
    }
    ck_assert_int_eq(h5_flush(f), ST_OK);
    h5_close(f);
    return strcmp(object, "/occupancy") != 0;
}

/* each object of the file deleted in turn, and values that cannot be: as good as a file cut short */
START_TEST(a_file_that_opens_but_is_damaged_is_rebuilt_or_refused)
{
    static const char *const more[] = {"count", "attempt", "value"};
    char path[512], whole[520], lines[540], harmed[520];
    struct results_writer *w;
    struct results *r;
    struct h5 *f;
    struct h5_object *o;
    size_t n;
    snprintf(path, sizeof path, "%s", clean_path("inside.h5"));
    snprintf(whole, sizeof whole, "%s.whole", path);
    snprintf(lines, sizeof lines, "%s.lines", path);
    snprintf(harmed, sizeof harmed, "%s.harmed", path);
    w = open_ok(path, RESULTS_NEW);
    write_extras(w);
    for (int64_t i = 0; i < 6; i++) ck_assert_int_eq(append(w, i, 0, stop_of(i)), ST_OK);
    results_close(w);
    copy(path, whole);
    copy(journal_of(path), lines);
    ck_assert_int_eq(h5_open(path, 0, &f), ST_OK);
    ck_assert_int_eq(h5_list(f, &o, &n), ST_OK);
    h5_close(f);
    size_t tried = 0;
    for (size_t i = 0; i < n + 3; i++) {
        const char *name = i < n ? o[i].name : more[i - n];
        if (i < n && (name[0] != '/' || strchr(name, '.'))) continue; /* a field of a table */
        tried++;
        copy(whole, path);
        int bad = harm(path, name);
        copy(path, harmed);
        ck_assert_msg((results_load(path, &r) != ST_OK) == bad, "%s", name);
        /* without a journal: refused, nothing is touched or made */
        unlink(journal_of(path));
        ck_assert_msg(results_open(path, RESULTS_RESUME, &setup, &w) == ST_E_FORMAT, "%s", name);
        ck_assert_msg(!differ(path, harmed) && access(journal_of(path), F_OK) != 0, "%s", name);
        /* beside a journal that is damaged too, and torn at its end: the same */
        copy(lines, journal_of(path));
        append_raw(journal_of(path), "{\"kind\":\"song\"}\n{\"ki");
        char torn[540];
        snprintf(torn, sizeof torn, "%s.torn", path);
        copy(journal_of(path), torn);
        ck_assert_msg(results_open(path, RESULTS_RESUME, &setup, &w) == ST_E_FORMAT, "%s", name);
        ck_assert_msg(!differ(path, harmed) && !differ(journal_of(path), torn), "%s", name);
        /* beside its journal: rebuilt, and goes on */
        copy(lines, journal_of(path));
        w = open_ok(path, RESULTS_RESUME);
        ck_assert_int_eq(append(w, 6, 0, RESULT_EOS), ST_OK);
        results_close(w);
        r = load_ok(path);
        ck_assert_msg(r->n == 7 && r->attempt == 2 && r->n_memory == 3 && r->plan, "%s", name);
        for (size_t k = 0; k < r->n; k++) check_row(&r->row[k]);
        results_free(r);
    }
    ck_assert_uint_ge(tried, 25);
    mem_free(o);
}
END_TEST

START_TEST(a_link_is_its_target)
{
    char path[512], link[520], lines[540];
    struct results_writer *w, *v;
    int64_t rows = 0;
    snprintf(path, sizeof path, "%s", clean_path("target.h5"));
    snprintf(link, sizeof link, "%s.link", path);
    snprintf(lines, sizeof lines, "%s.jsonl", link);
    unlink(link);
    unlink(lines);
    ck_assert_int_eq(symlink(strrchr(path, '/') ? strrchr(path, '/') + 1 : path, link), 0);
    w = open_ok(link, RESULTS_NEW); /* to nothing, so far */
    ck_assert_int_eq(append(w, 1, 0, RESULT_EOS), ST_OK);
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &setup, &v), ST_E_FILE); /* one lock */
    results_close(w);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_open(link, RESULTS_RESUME, &setup, &v), ST_E_FILE);
    results_close(w);
    ck_assert_int_eq(results_open(link, RESULTS_NEW, &setup, &v), ST_E_FILE);
    w = open_ok(link, RESULTS_RESUME);
    ck_assert_int_eq(results_done(w, 1), 1);
    results_close(w);
    ck_assert_int_eq(results_rebuild(link, &rows), ST_OK);
    char to[8];
    ck_assert_int_gt(readlink(link, to, sizeof to), 0);
    ck_assert_int_ne(access(lines, F_OK), 0);
    struct results *r = load_ok(path);
    ck_assert(r->n == 1 && r->attempt == 3 && rows == 1);
    results_free(r);
}
END_TEST

START_TEST(a_row_only_the_journal_has_is_taken_over)
{
    const char *path = clean_path("ahead.h5"), *old = suite_tmp("ahead-old.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(append(w, 0, 0, RESULT_EOS), ST_OK);
    unlink(old);
    ck_assert_int_eq(link(path, old), 0); /* the file as of now; the writer replaces, it does not overwrite */
    ck_assert_int_eq(append(w, 1, 0, RESULT_LENGTH), ST_OK);
    results_close(w);
    ck_assert_int_eq(rename(old, path), 0); /* as after a kill between journal and file */
    struct results *r = load_ok(path);
    ck_assert_uint_eq(r->n, 1);
    results_free(r);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_done(w, 1), 1);
    results_close(w);
    r = load_ok(path);
    ck_assert(r->n == 2 && r->row[1].attempt == 1);
    check_row(&r->row[1]);
    results_free(r);
}
END_TEST

START_TEST(journals_that_are_wrong_are_refused_by_line)
{
#define RUN                                                                                                            \
    "{\"kind\":\"run\",\"schema\":\"pdflash-results\",\"schema_version\":1,\"attempt\":1,\"config_hash\":\"a\","       \
    "\"questions\":3,\"block\":2}\n"
    static const struct {
        const char *text, *where, *what;
    } cases[] = {
        {"", "jsonl", "nothing to rebuild"},
        {"{\"kind\":\"run\"", "jsonl", "nothing to rebuild"},
        {"{\"kind\":\"finish\",\"complete\":1}\n", ":1:", "first line"},
        {RUN "not json\n", ":2:", "not JSON"},
        {RUN "{\"kind\":\"song\"}\n", ":2:", "unknown"},
        {RUN "{}\n", ":2:", "kind"},
        {RUN "{\"kind\":\"row\",\"index\":\"0\"}\n", ":2:", "index"},
        {RUN "{\"kind\":\"finish\",\"complete\":2}\n", ":2:", "complete"},
        {RUN "{\"kind\":\"attributes\",\"values\":[[\"a\"]]}\n", ":2:", "values"},
        {RUN "{\"kind\":\"memory\",\"ranks\":[{\"rank\":0}]}\n", ":2:", "role"},
        {RUN "{\"kind\":\"run\",\"schema\":\"pdflash-results\",\"schema_version\":1,\"attempt\":2,\"config_hash\":"
             "\"b\",\"questions\":3,\"block\":2}\n",
         "hash a", "b"},
        {"{\"kind\":\"run\",\"schema\":\"pdflash-results\",\"schema_version\":9,\"attempt\":1,\"config_hash\":\"a\","
         "\"questions\":3,\"block\":2}\n",
         ":1:", "version 9"},
    };
    const char *path = clean_path("wrong.h5");
    int64_t rows = -1;
    ck_assert_int_eq(results_rebuild(path, &rows), ST_E_FILE); /* no journal, and none is made */
    ck_assert_int_ne(access(journal_of(path), F_OK), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unlink(journal_of(path));
        append_raw(journal_of(path), cases[i].text);
        enum status st = results_rebuild(path, &rows);
        ck_assert_msg(st == ST_E_FORMAT || st == ST_E_CONFIG, "case %zu: %s", i, err_name(st));
        ck_assert_msg(strstr(err_last(), cases[i].where) && strstr(err_last(), cases[i].what), "case %zu: %s", i,
                      err_last());
    }
    ck_assert_int_eq(rows, -1);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "results", 60);
    SUITE_TEST(tc, a_run_comes_back_and_is_rebuilt_from_its_journal);
    SUITE_TEST(tc, names_and_units_are_in_the_file);
    SUITE_TEST(tc, existing_files_and_other_writers_are_refused);
    SUITE_TEST(tc, another_configuration_is_refused_naming_both);
    SUITE_TEST(tc, a_refused_resume_says_what_differs);
    SUITE_TEST(tc, attributes_outlive_a_run_without_rows);
    SUITE_TEST(tc, rows_that_cannot_be_are_refused);
    SUITE_TEST(tc, failed_rows_are_redone_by_a_later_attempt);
    SUITE_TEST(tc, a_damaged_file_or_journal_loses_nothing_committed);
    SUITE_TEST(tc, a_file_that_opens_but_is_damaged_is_rebuilt_or_refused);
    SUITE_TEST(tc, a_link_is_its_target);
    SUITE_TEST(tc, a_row_only_the_journal_has_is_taken_over);
    SUITE_TEST(tc, journals_that_are_wrong_are_refused_by_line);
}

int main(void)
{
    return suite_main_serial();
}
