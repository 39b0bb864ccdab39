/* results_rows - result rows that are a pure function of (index, attempt), and the check that a row read back is
 * that one; shared by t_results.c and t_results_kill.c. */
#ifndef PDFLASH_TESTS_RESULTS_ROWS_H
#define PDFLASH_TESTS_RESULTS_ROWS_H

#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/rng.h"
#include "data/results.h"

enum { QUESTIONS = 24, BLOCK = 8, TOKENS_MAX = 600, ROUNDS_MAX = 80 };
static const struct results_setup setup = {"cafe0123", QUESTIONS, BLOCK, NULL, 0, 0, 0};

struct sample {
    struct result_row row;
    char question[64], response[256], gold[64], error[32];
    int32_t token[TOKENS_MAX];
    struct result_round round[ROUNDS_MAX];
};

static int32_t pick(int64_t index, uint64_t what, int32_t below)
{
    return (int32_t)(rng_u64(11, (uint64_t)index, what) % (uint64_t)below);
}

static void fill_rounds(struct sample *s, int64_t index)
{
    s->row.round = s->round;
    s->row.n_rounds = pick(index, 3, ROUNDS_MAX);
    for (int32_t i = 0; i < s->row.n_rounds; i++) {
        struct result_round *r = &s->round[i];
        uint64_t at = 1000 + 4 * (uint64_t)i;
        r->round = i;
        r->proposed = pick(index, at, BLOCK);
        r->accepted = pick(index, at + 1, r->proposed + 1);
        r->emitted = pick(index, at + 2, r->accepted + 2);
        r->bonus = pick(index, at + 3, 4000) - 1;
    }
}

static void fill(struct sample *s, int64_t index, int32_t attempt, enum result_stop stop)
{
    memset(s, 0, sizeof *s);
    struct result_row *r = &s->row;
    *r = (struct result_row){.index = index, .prompt_tokens = 100 + (int32_t)index, .attempt = attempt, .stop = stop};
    snprintf(s->question, sizeof s->question, "Janet\xe2\x80\x99s question %lld?", (long long)index);
    snprintf(s->gold, sizeof s->gold, "so\n#### %lld", (long long)index * 1000);
    /* byte 0xff is no UTF-8; the answer is right for even questions */
    int n = snprintf(s->response, sizeof s->response, "I\xff think\t\xe2\x88\x92\n#### %lld",
                     (long long)(index * 1000 + index % 2));
    r->question = s->question;
    r->gold = s->gold;
    r->response = s->response;
    r->response_n = (size_t)n;
    r->error = stop == RESULT_FAILED ? "rank 3 lost" : NULL;
    r->output_tokens = pick(index, 2, TOKENS_MAX);
    r->token = s->token;
    for (int32_t i = 0; i < r->output_tokens; i++) s->token[i] = pick(index, 5000 + (uint64_t)i, 160000);
    fill_rounds(s, index);
    result_timing_clear(&r->timing);
    r->timing.admit = 0.25 * (double)index;
    r->timing.start = 1.0 + rng_unit(1, (uint64_t)index, 1);
    r->timing.end = 3.0 + rng_unit(1, (uint64_t)index, 2);
    for (int c = 0; c < RESULT_COMP_N; c++)
        r->transfer[c] = (struct result_transfer){(int64_t)c << 40 | index, c, c % 2 ? NAN : 0.5 * c,
                                                  rng_u64(9, (uint64_t)index, (uint64_t)c)};
}

static struct sample *sample(int64_t index, int32_t attempt, enum result_stop stop)
{
    struct sample *s = mem_alloc(1, sizeof *s, "a sample");
    fill(s, index, attempt, stop);
    return s;
}

static enum result_stop stop_of(int64_t index)
{
    return index % 5 == 4 ? RESULT_LENGTH : RESULT_EOS;
}

static enum status append(struct results_writer *w, int64_t index, int32_t attempt, enum result_stop stop)
{
    struct sample *s = sample(index, attempt, stop);
    enum status st = results_append(w, &s->row);
    mem_free(s);
    return st;
}

/* doubles are equal, or both not measured */
static int same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void check_row(const struct result_row *got)
{
    struct sample *s = sample(got->index, got->attempt, got->stop);
    const struct result_row *want = &s->row;
    char text[256], number[32];
    snprintf(text, sizeof text, "I\xef\xbf\xbd think\t\xe2\x88\x92\n#### %lld",
             (long long)(got->index * 1000 + got->index % 2));
    ck_assert_int_eq(got->prompt_tokens, want->prompt_tokens);
    ck_assert_int_eq(got->output_tokens, want->output_tokens);
    ck_assert_str_eq(got->question, want->question);
    ck_assert_str_eq(got->response, text);
    ck_assert_uint_eq(got->response_n, strlen(text));
    ck_assert_str_eq(got->gold, want->gold);
    ck_assert_str_eq(got->error, want->error ? want->error : "");
    ck_assert_mem_eq(got->token, want->token, (size_t)got->output_tokens * sizeof *got->token);
    ck_assert_int_eq(got->n_rounds, want->n_rounds);
    ck_assert_mem_eq(got->round, want->round, (size_t)got->n_rounds * sizeof *got->round);
    const double *a = (const double *)&got->timing, *b = (const double *)&want->timing;
    for (size_t i = 0; i < sizeof got->timing / sizeof *a; i++) ck_assert(same(a[i], b[i]));
    for (int c = 0; c < RESULT_COMP_N; c++) {
        ck_assert_int_eq(got->transfer[c].bytes, want->transfer[c].bytes);
        ck_assert_int_eq(got->transfer[c].puts, want->transfer[c].puts);
        ck_assert(same(got->transfer[c].seconds, want->transfer[c].seconds));
        ck_assert(got->transfer[c].checksum == want->transfer[c].checksum);
    }
    snprintf(number, sizeof number, "%lld", (long long)(got->index * 1000 + got->index % 2));
    for (int r = 0; r < GSM8K_N; r++) {
        ck_assert_str_eq(got->grade.extracted[r], number);
        ck_assert_int_eq(got->grade.correct[r], got->index % 2 == 0);
    }
    mem_free(s);
}

/* ---- places -------------------------------------------------------------------------------------- */

static inline const char *journal_of(const char *path)
{
    static char name[700];
    snprintf(name, sizeof name, "%s.jsonl", path);
    return name;
}

static struct results *load_ok(const char *path)
{
    struct results *r;
    ck_assert_int_eq(results_load(path, &r), ST_OK);
    return r;
}

/* ---- whole files -------------------------------------------------------------------------------------- */

static inline struct results_writer *open_ok(const char *path, enum results_mode mode)
{
    struct results_writer *w;
    ck_assert_int_eq(results_open(path, mode, &setup, &w), ST_OK);
    return w;
}

/* everything except the order of rows in the file */
static inline void check_same(const struct results *a, const struct results *b)
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

static inline void write_extras(struct results_writer *w)
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

#endif
