/* Spans of ranks: the bounded recorder of the role loops, and the table and journal that keep them. */
#include "report_kit.h"

#include "base/rng.h"
#include "pd/spans.h"

const char *const suite_name = "spans";

/* ---- the recorder -------------------------------------------------------------------------------------- */

START_TEST(few_spans_stay_as_they_are)
{
    struct spans s;
    ck_assert_int_eq(spans_open(&s), ST_OK);
    for (int i = 0; i < SPANS_MAX; i++) spans_add(&s, (enum span_kind)(i % SPAN_KIND_N), i, i, i + 0.25);
    ck_assert_int_eq(s.n, SPANS_MAX);
    for (int i = 0; i < SPANS_MAX; i++)
        ck_assert(s.span[i].request == i && s.span[i].count == 1 && s.span[i].kind == i % SPAN_KIND_N &&
                  s.span[i].begin_s == i && s.span[i].end_s == i + 0.25 && s.span[i].busy_s == 0.25);
    spans_add(NULL, SPAN_SEND, 0, 0, 1); /* nobody records */
    spans_close(&s);
    spans_close(&s);
    spans_close(NULL);
    spans_add(&s, SPAN_SEND, 0, 0, 1);
    ck_assert_int_eq(s.n, 0);
}
END_TEST

/* the room is kept, no work is lost, and spans of a kind neither cross nor claim more than their length */
static void check_long(uint64_t seed, int n, double scale)
{
    struct spans s;
    double at = 0, busy[SPAN_KIND_N] = {0}, got[SPAN_KIND_N] = {0}, end[SPAN_KIND_N];
    int64_t count[SPAN_KIND_N] = {0}, sum[SPAN_KIND_N] = {0};
    ck_assert_int_eq(spans_open(&s), ST_OK);
    for (int i = 0; i < n; i++) {
        int kind = (int)(rng_u64(seed, (uint64_t)i, 1) % SPAN_KIND_N);
        double gap = scale * rng_unit(seed, (uint64_t)i, 2), work = scale * rng_unit(seed, (uint64_t)i, 3);
        spans_add(&s, (enum span_kind)kind, i / 3, at + gap, at + gap + work);
        at += gap + work;
        busy[kind] += work;
        count[kind]++;
        ck_assert_int_le(s.n, SPANS_MAX);
    }
    for (int k = 0; k < SPAN_KIND_N; k++) end[k] = -1;
    for (int i = 0; i < s.n; i++) {
        const struct span *x = &s.span[i];
        ck_assert(x->begin_s >= end[x->kind] && x->end_s >= x->begin_s &&
                  x->busy_s <= (x->end_s - x->begin_s) * (1 + 1e-9) + 1e-12);
        end[x->kind] = x->end_s;
        got[x->kind] += x->busy_s;
        sum[x->kind] += x->count;
        ck_assert(x->count > 1 || x->request >= 0);
    }
    for (int k = 0; k < SPAN_KIND_N; k++) {
        ck_assert_int_eq(sum[k], count[k]);
        ck_assert_msg(fabs(got[k] - busy[k]) <= 1e-9 * (1 + at), "kind %d: %g of %g s", k, got[k], busy[k]);
    }
    if (n > 2 * SPANS_MAX) ck_assert_int_ge(s.n, SPANS_MAX / 8);
    for (int i = 0; i < s.n && n > 2 * SPANS_MAX; i++) /* resolution is given up evenly */
        ck_assert_msg(s.span[i].end_s - s.span[i].begin_s <= fmax(at / 40, 2 * scale), "span of %g in %g s",
                      s.span[i].end_s - s.span[i].begin_s, at);
    spans_close(&s);
}

START_TEST(long_runs_lose_resolution_but_no_work)
{
    static const double scale[] = {1e-7, 1e-3, 10};
    for (int i = 0; i < 3; i++) {
        check_long(1 + (uint64_t)i, 1500, scale[i]);
        check_long(5 + (uint64_t)i, suite_some(60000, 3000), scale[i]);
    }
}
END_TEST

/* ---- the table ----------------------------------------------------------------------------------------- */

static const struct result_span good = {.rank = 3,
                                        .role = "decode",
                                        .stage = 1,
                                        .tp_rank = 2,
                                        .kind = "decode",
                                        .request = 2,
                                        .count = 4,
                                        .begin = 1,
                                        .end = 2,
                                        .busy = 0.75};

static struct results_writer *open_new(const char *path)
{
    struct results_writer *w;
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &(struct results_setup){"h", 3, 4, NULL, 0, 0, 0}, &w), ST_OK);
    return w;
}

static void same_spans(const struct results *a, const struct results *b)
{
    ck_assert_uint_eq(a->n_spans, b->n_spans);
    for (size_t i = 0; i < a->n_spans; i++) {
        const struct result_span *x = &a->span[i], *y = &b->span[i];
        ck_assert(x->attempt == y->attempt && x->rank == y->rank && x->stage == y->stage && x->tp_rank == y->tp_rank &&
                  x->request == y->request && x->count == y->count && x->begin == y->begin && x->end == y->end &&
                  x->busy == y->busy);
        ck_assert_str_eq(x->kind, y->kind);
        ck_assert_str_eq(x->role, y->role);
    }
}

START_TEST(spans_survive_file_journal_and_resume)
{
    log_mute(1);
    const char *path = kit_run("spans.h5", NULL);
    struct opened *a = kit_load(path);
    ck_assert_uint_eq(a->r->n_spans, 14);
    ck_assert(a->r->span[0].attempt == 1 && a->r->span[7].attempt == 2 && a->r->span[13].attempt == 2);
    ck_assert(a->r->span[13].begin == 3.25 && a->r->span[13].busy == 5 && a->r->span[13].count == 5);
    ck_assert_int_eq(result_span_kind(&a->r->span[13]), RESULT_SPAN_DECODE);
    unlink(path);
    int64_t rows;
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK); /* from the journal alone */
    struct opened *b = kit_load(path);
    same_spans(a->r, b->r);
    char journal[600];
    snprintf(journal, sizeof journal, "%s.jsonl", path);
    unlink(journal);
    struct results_writer *w; /* the journal is written anew from the file */
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &(struct results_setup){"hash-1", 8, 4, NULL, 0, 0, 0}, &w), ST_OK);
    results_close(w);
    unlink(path);
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    struct opened *c = kit_load(path);
    same_spans(a->r, c->r);
    kit_close(a);
    kit_close(b);
    kit_close(c);
}
END_TEST

START_TEST(spans_that_cannot_be_are_refused)
{
    static const struct {
        const char *what;
        size_t at, size;
        double value; /* for the times */
        int number;
    } table[] = {
#define NUMBER(field, v) {#field, offsetof(struct result_span, field), sizeof(int32_t), 0, v}
#define TIME(field, v) {#field, offsetof(struct result_span, field), sizeof(double), v, 0}
        NUMBER(rank, -1),    NUMBER(stage, -1),   NUMBER(tp_rank, -1), NUMBER(count, 0),
        NUMBER(request, 3),  NUMBER(request, -2), TIME(begin, 2.5),    TIME(begin, NAN),
        TIME(end, INFINITY), TIME(busy, 1.5),     TIME(busy, -0.1),    TIME(busy, NAN)};
    struct results_writer *w = open_new(suite_fresh("refused.h5"));
    struct result_span s;
    log_mute(1);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        s = good;
        memcpy((char *)&s + table[i].at,
               table[i].size == sizeof(double) ? (const void *)&table[i].value : &table[i].number, table[i].size);
        ck_assert_msg(results_spans(w, &s, 1) == ST_E_RANGE, "%s", table[i].what);
    }
    s = good;
    memcpy(s.kind, "decoding", 8); /* no zero byte */
    ck_assert_int_eq(results_spans(w, &s, 1), ST_E_RANGE);
    s = good;
    memset(s.role, 'x', sizeof s.role);
    ck_assert_int_eq(results_spans(w, &s, 1), ST_E_RANGE);
    s.role[0] = (char)0xff;
    s.role[1] = 0;
    ck_assert_int_eq(results_spans(w, &s, 1), ST_E_RANGE);
    ck_assert_int_eq(results_spans(w, &good, 1), ST_OK); /* nothing was broken by it */
    ck_assert_int_eq(results_spans(w, NULL, 0), ST_OK);
    results_close(w);
}
END_TEST

START_TEST(damaged_journal_spans_are_named)
{
    static const char *const line[] = {"{\"kind\":\"spans\"}", "{\"kind\":\"spans\",\"spans\":[[1,2]]}",
                                       "{\"kind\":\"spans\",\"spans\":[[1,0,\"muchtoolong\",0,0,\"send\",0,1,1,2,1]]}",
                                       "{\"kind\":\"spans\",\"spans\":[[1,0,\"decode\",0,0,\"sleep\",0,1,1,2,1]]}",
                                       "{\"kind\":\"spans\",\"spans\":[[9,0,\"decode\",0,0,\"send\",0,1,1,2,1]]}",
                                       "{\"kind\":\"spans\",\"spans\":[[1,0,\"decode\",0,0,\"send\",0,1,1,2,1,5]]}"};
    log_mute(1);
    for (size_t i = 0; i < sizeof line / sizeof line[0]; i++) {
        const char *path = suite_fresh("damaged.h5");
        char journal[600];
        int64_t rows;
        snprintf(journal, sizeof journal, "%s.jsonl", path);
        results_close(open_new(path));
        FILE *f = fopen(journal, "ab");
        fprintf(f, "%s\n", line[i]);
        fclose(f);
        enum status st = results_rebuild(path, &rows);
        ck_assert_msg(st == ST_E_FORMAT || st == ST_E_RANGE, "%s", line[i]);
        ck_assert_ptr_nonnull(strstr(err_last(), "damaged.h5"));
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "spans", 60);
    SUITE_TEST(tc, few_spans_stay_as_they_are);
    SUITE_TEST(tc, long_runs_lose_resolution_but_no_work);
    SUITE_TEST(tc, spans_survive_file_journal_and_resume);
    SUITE_TEST(tc, spans_that_cannot_be_are_refused);
    SUITE_TEST(tc, damaged_journal_spans_are_named);
}

int main(void)
{
    return suite_main_serial();
}
