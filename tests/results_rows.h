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
static const struct results_setup setup = {"cafe0123", QUESTIONS, BLOCK, NULL, 0};

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

static const char *journal_of(const char *path)
{
    static char name[700];
    snprintf(name, sizeof name, "%s.jsonl", path);
    return name;
}

static const char *clean_path(const char *name)
{
    const char *path = suite_tmp(name);
    unlink(path);
    unlink(journal_of(path));
    return path;
}

static struct results *load_ok(const char *path)
{
    struct results *r;
    ck_assert_int_eq(results_load(path, &r), ST_OK);
    return r;
}

#endif
