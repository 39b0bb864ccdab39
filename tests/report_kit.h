/* report_kit - result files for the report's tests: a plain run, and one whose every text attacks the page; shared by
 * t_report_*.c. */
#ifndef PDFLASH_TESTS_REPORT_KIT_H
#define PDFLASH_TESTS_REPORT_KIT_H

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

#define HOSTILE                                                                                                   \
    "</title><script>alert(\"x\")</script><img src='//evil/x' onerror=\"y\">"                                     \
    "]]>&amp;&#x3c;&bogus;--><!--\x01\x1b[0m\xe2\x80\xa8"
static const double NONE[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};

struct opened {
    struct results *r;
    struct report p;
    char path[512];
};

struct kit_row { /* what differs between rows; text NULL: a plain question */
    int64_t index;
    enum result_stop stop;
    const char *reply, *text, *error;
    int32_t tokens, token0; /* token k is token0 + k */
    int32_t n_rounds;       /* the first of a fixed list */
    double t[8];
};

static void kit_append(struct results_writer *w, const struct kit_row *k)
{
    static const struct result_round round[] = {{0, 3, 3, 4, 5}, {1, 3, 0, 1, 6}, {2, 3, 1, 1, 7}};
    int32_t token[64];
    struct result_row row = {.index = k->index, .prompt_tokens = 10, .output_tokens = k->tokens, .stop = k->stop,
                             .question = k->text ? k->text : "plain question", .gold = "x\n#### 18",
                             .response = k->reply, .response_n = strlen(k->reply), .error = k->error, .token = token,
                             .round = round, .n_rounds = k->n_rounds};
    for (int i = 0; i < k->tokens; i++) token[i] = k->token0 + i;
    memcpy(&row.timing, k->t, sizeof row.timing);
    for (int c = 0; c < RESULT_COMP_N; c++)
        row.transfer[c] = (struct result_transfer){100000 * c, 3 * c, c == RESULT_KDA ? 0.5 : NAN, 0};
    ck_assert_int_eq(results_append(w, &row), ST_OK);
}

static void kit_attrs(struct results_writer *w, const char *const *pair, int n)
{
    for (int i = 0; i < n; i++) {
        struct result_attr a = {pair[2 * i], H5_KIND_STR, pair[2 * i + 1], 0, 0};
        ck_assert_int_eq(results_attrs(w, &a, 1), ST_OK);
    }
}

#define KIT_SPAN(rank_, role_, stage_, kind_, request_, count_, begin_, end_, busy_)                              \
    {.rank = rank_, .role = role_, .stage = stage_, .kind = kind_, .request = request_, .count = count_,          \
     .begin = begin_, .end = end_, .busy = busy_}
static void kit_spans(struct results_writer *w)
{
    static const struct result_span span[] = {KIT_SPAN(0, "prefill", 0, "prefill", 0, 1, 1, 1.5, 0.5),
                                              KIT_SPAN(0, "prefill", 0, "send", 0, 1, 1.5, 1.625, 0.125),
                                              KIT_SPAN(0, "prefill", 0, "prefill", -1, 3, 2, 4, 1.5),
                                              KIT_SPAN(1, "prefill", 1, "receive", 0, 1, 1, 1.5, 0.5),
                                              KIT_SPAN(1, "prefill", 1, "prefill", 0, 1, 1.5, 2, 0.5),
                                              KIT_SPAN(2, "decode", 0, "start", 0, 1, 3, 3.25, 0.25),
                                              KIT_SPAN(2, "decode", 0, "decode", -1, 5, 3.25, 9, 5)};
    ck_assert_int_eq(results_spans(w, span, sizeof span / sizeof span[0]), ST_OK);
}

/* 8 questions: 0, 1, 4 complete, 2 cut, 3 failed, 5 in a second attempt, 6 and 7 missing; text: NULL or what attacks */
static inline const char *kit_run(const char *name, const char *text)
{
    const char *path = suite_fresh(name);
    const struct results_setup setup = {text ? text : "hash-1", 8, 4, NULL, 0, 0, 0};
    const char *const attr[] = {"spec",         "dflash",
                                "topology",     text ? text : "pp2tp1/tp1",
                                "run_id",       text ? text : "run-1",
                                "source",       text ? text : "some.jsonl",
                                "command_line", text ? text : "pdflash run"};
    struct result_memory m[] = {{0, "prefill", "node-1", 4096000, 2048, 100, 50, -1},
                                {2, "decode", "node-2", -1, 1024, 0, -1, -1}};
    const struct kit_row row[] = {
        {0, RESULT_EOS, "#### 18", text, NULL, 7, 10, 3, {0, 1, 2, 2, 2.5, 3, 2.25, 9}},
        {1, RESULT_EOS, "it is 18", text, NULL, 4, 20, 1, {0, 2, 4, 4, 4.5, 5, 4.25, 7}},
        {2, RESULT_LENGTH, text ? text : "let me", text, NULL, 20, 30, 0, {0, 1, 2, 2, 2.5, 4, 2.25, 11}},
        {3, RESULT_FAILED, "", text, text ? text : "stage 2 is gone", 0, 0, 1, {0, 1, NAN, NAN, NAN, NAN, NAN, NAN}},
        {4, RESULT_EOS, "#### 19", text, NULL, 3, 40, 0, {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}}};
    struct results_writer *w;
    if (text) {
        snprintf(m[0].role, sizeof m[0].role, "%s", "\"><b>'&");
        snprintf(m[0].host, sizeof m[0].host, "%s", "<script>host</script>");
    }
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &setup, &w), ST_OK);
    kit_attrs(w, attr, sizeof attr / sizeof attr[0] / 2);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) kit_append(w, &row[i]);
    kit_spans(w);
    ck_assert_int_eq(results_sync(w), ST_OK);
    results_close(w);
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &setup, &w), ST_OK);
    kit_append(w, &(struct kit_row){5, RESULT_EOS, "#### 18", text, NULL, 9, 50, 0, {0, 0.5, 1, 1, 1.5, 2, 1.25, 6}});
    kit_spans(w);
    ck_assert_int_eq(results_memory(w, m, 2), ST_OK);
    ck_assert_int_eq(results_finish(w, 1, NULL), ST_OK);
    results_close(w);
    return path;
}

/* kind 0: no row; 1: only failed rows, one without a time; 2: one row, nothing measured, plain decoding; 3, 4: times
 * that no clock gives, huge and tiny */
static inline const char *kit_odd(const char *name, int kind)
{
    const char *path = suite_fresh(name);
    const struct results_setup setup = {"hash-odd", 3, kind == 2 ? 1 : 4, NULL, 0, 0, 0};
    struct results_writer *w;
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &setup, &w), ST_OK);
    struct kit_row row = {.stop = kind == 2 ? RESULT_EOS : RESULT_FAILED,
                          .reply = "",
                          .error = kind == 2 ? NULL : "gone"};
    memcpy(row.t, NONE, sizeof row.t);
    if (kind > 2) {
        const double x = kind == 3 ? 1e308 : 5e-324;
        kit_append(w, &(struct kit_row){.reply = "", .t = {-x, x, -x, x, 0, -x, x, x}});
        kit_append(w, &(struct kit_row){.index = 1, .reply = "", .t = {0, 0, 0, 0, 0, 0, 0, -x}});
    }
    for (int i = 0; kind && kind < 3 && i < (kind == 2 ? 1 : 3); i++) {
        row.index = i;
        row.t[0] = i == 1 ? 0.5 : NAN;
        kit_append(w, &row);
    }
    results_close(w);
    return path;
}

static struct opened *kit_load(const char *path)
{
    struct opened *o = mem_alloc(1, sizeof *o, "an opened file");
    snprintf(o->path, sizeof o->path, "%s", path);
    ck_assert_int_eq(results_load(path, &o->r), ST_OK);
    ck_assert_int_eq(report_make(o->r, &o->p), ST_OK);
    return o;
}

static void kit_close(struct opened *o)
{
    results_free(o->r);
    mem_free(o);
}

static inline json_t *kit_json(const struct report *p)
{
    char *text;
    ck_assert_int_eq(report_json(p, &text), ST_OK);
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_ptr_nonnull(o);
    mem_free(text);
    return o;
}

#endif
