#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "data/results_priv.h"

/* a file as its datasets, before it is turned into rows */
struct raw {
    const struct h5 *f;
    struct results_request *request;
    struct results_times *times;
    struct results_moved *moved;
    struct results_verdict *verdict;
    char **question, **response, **gold, **error, **extracted[GSM8K_N];
    int64_t *token_end, *round_end, *round_of; /* round_of: not needed to read rows, but the writer adds to it */
    int32_t *token, *column[RESULTS_ROUND_COLUMNS];
    size_t n, n_times, n_moved, n_verdict, n_question, n_response, n_gold, n_error, n_extracted[GSM8K_N];
    size_t n_token_end, n_round_end, n_token, n_round_of, n_column[RESULTS_ROUND_COLUMNS];
};

static void raw_free(struct raw *w)
{
    void *flat[] = {w->request, w->times, w->moved, w->verdict, w->token_end, w->round_end, w->token, w->round_of};
    for (size_t i = 0; i < sizeof flat / sizeof flat[0]; i++) mem_free(flat[i]);
    for (int c = 0; c < RESULTS_ROUND_COLUMNS; c++) mem_free(w->column[c]);
    h5_free_str(w->question, w->n_question);
    h5_free_str(w->response, w->n_response);
    h5_free_str(w->gold, w->n_gold);
    h5_free_str(w->error, w->n_error);
    for (int r = 0; r < GSM8K_N; r++) h5_free_str(w->extracted[r], w->n_extracted[r]);
}

static enum status rows(const struct h5 *f, const char *name, const struct h5_table *t, void *to, size_t *n_p)
{
    void *p;
    TRY(h5_read_rows(f, name, t, &p, n_p));
    memcpy(to, &p, sizeof p);
    return ST_OK;
}

static enum status vec(const struct h5 *f, const char *name, enum h5_kind kind, void *to, size_t *n_p)
{
    void *p;
    TRY(h5_read_vec(f, name, kind, &p, n_p));
    memcpy(to, &p, sizeof p);
    return ST_OK;
}

static enum status raw_read(const struct h5 *f, struct raw *w)
{
    w->f = f;
    TRY(rows(f, "/requests", &results_requests_table, &w->request, &w->n));
    TRY(rows(f, "/timing", &results_times_table, &w->times, &w->n_times));
    TRY(rows(f, "/transfer", &results_moved_table, &w->moved, &w->n_moved));
    TRY(rows(f, "/grading/verdict", &results_verdict_table, &w->verdict, &w->n_verdict));
    TRY(h5_read_str(f, "/text/question", &w->question, &w->n_question));
    TRY(h5_read_str(f, "/text/response", &w->response, &w->n_response));
    TRY(h5_read_str(f, "/text/gold", &w->gold, &w->n_gold));
    TRY(h5_read_str(f, "/text/error", &w->error, &w->n_error));
    for (int r = 0; r < GSM8K_N; r++) {
        char name[64];
        snprintf(name, sizeof name, "/grading/%s_extracted", gsm8k_rule_name((enum gsm8k_rule)r));
        TRY(h5_read_str(f, name, &w->extracted[r], &w->n_extracted[r]));
    }
    TRY(vec(f, "/tokens/offsets", H5_KIND_I64, &w->token_end, &w->n_token_end));
    TRY(vec(f, "/tokens/flat", H5_KIND_I32, &w->token, &w->n_token));
    TRY(vec(f, "/accept/offsets", H5_KIND_I64, &w->round_end, &w->n_round_end));
    TRY(vec(f, "/accept/request", H5_KIND_I64, &w->round_of, &w->n_round_of));
    for (int c = 0; c < RESULTS_ROUND_COLUMNS; c++)
        TRY(vec(f, results_round_column[c].name, H5_KIND_I32, &w->column[c], &w->n_column[c]));
    return ST_OK;
}

static enum status size_is(const struct raw *w, const char *name, size_t n, size_t want)
{
    if (n == want) return ST_OK;
    return ERR(ST_E_FORMAT, "%s: %s has %zu elements, wanted %zu (/requests has %zu rows)", h5_path(w->f), name, n,
               want, w->n);
}

static enum status offsets_ok(const struct raw *w, const char *name, const int64_t *at, size_t n_flat)
{
    for (size_t i = 0; i < w->n; i++)
        if (at[i] > at[i + 1]) return ERR(ST_E_FORMAT, "%s: %s falls at row %zu", h5_path(w->f), name, i);
    if (at[0] != 0 || at[w->n] != (int64_t)n_flat)
        return ERR(ST_E_FORMAT, "%s: %s runs from %lld to %lld, there are %zu elements", h5_path(w->f), name,
                   (long long)at[0], (long long)at[w->n], n_flat);
    return ST_OK;
}

static enum status raw_check(const struct raw *w)
{
    TRY(size_is(w, "/timing", w->n_times, w->n));
    TRY(size_is(w, "/transfer", w->n_moved, w->n * RESULT_COMP_N));
    TRY(size_is(w, "/grading/verdict", w->n_verdict, w->n));
    TRY(size_is(w, "/text/question", w->n_question, w->n));
    TRY(size_is(w, "/text/response", w->n_response, w->n));
    TRY(size_is(w, "/text/gold", w->n_gold, w->n));
    TRY(size_is(w, "/text/error", w->n_error, w->n));
    for (int r = 0; r < GSM8K_N; r++) TRY(size_is(w, "/grading/*_extracted", w->n_extracted[r], w->n));
    TRY(size_is(w, "/tokens/offsets", w->n_token_end, w->n + 1));
    TRY(size_is(w, "/accept/offsets", w->n_round_end, w->n + 1));
    TRY(size_is(w, "/accept/request", w->n_round_of, w->n_column[0]));
    for (int c = 1; c < RESULTS_ROUND_COLUMNS; c++)
        TRY(size_is(w, results_round_column[c].name, w->n_column[c], w->n_column[0]));
    TRY(offsets_ok(w, "/tokens/offsets", w->token_end, w->n_token));
    return offsets_ok(w, "/accept/offsets", w->round_end, w->n_column[0]);
}

/* text moves from the raw file to the row */
static char *take(char **list, size_t i)
{
    char *s = list[i];
    list[i] = NULL;
    return s;
}

static enum status make_row(struct raw *w, size_t i, struct result_row *row)
{
    const struct results_request *q = &w->request[i];
    int stop = results_stop_parse(q->stop_reason, sizeof q->stop_reason);
    int64_t t0 = w->token_end[i], n = w->token_end[i + 1] - t0, r0 = w->round_end[i],
            n_rounds = w->round_end[i + 1] - r0;
    if (stop < 0 || n != q->output_tokens || n_rounds > INT32_MAX || w->times[i].index != q->index ||
        w->verdict[i].index != q->index)
        return ERR(ST_E_FORMAT,
                   "%s: row %zu (index %lld): stop_reason '%.8s', output_tokens %d with %lld ids, /timing is of %lld, "
                   "/grading of %lld",
                   h5_path(w->f), i, (long long)q->index, q->stop_reason, q->output_tokens, (long long)n,
                   (long long)w->times[i].index, (long long)w->verdict[i].index);
    *row = (struct result_row){.index = q->index, .prompt_tokens = q->prompt_tokens, .output_tokens = q->output_tokens,
                               .stop = (enum result_stop)stop, .attempt = q->attempt, .timing = w->times[i].t};
    row->question = take(w->question, i);
    row->response = take(w->response, i);
    row->gold = take(w->gold, i);
    row->error = take(w->error, i);
    row->response_n = strlen(row->response);
    for (int r = 0; r < GSM8K_N; r++) {
        row->grade.extracted[r] = take(w->extracted[r], i);
        row->grade.correct[r] = w->verdict[i].correct[r];
    }
    for (int c = 0; c < RESULT_COMP_N; c++) row->transfer[c] = w->moved[i * RESULT_COMP_N + (size_t)c].x;
    int32_t *token = mem_alloc((size_t)n, sizeof *token, "output ids");
    row->token = token;
    struct result_round *round = mem_alloc((size_t)n_rounds, sizeof *round, "rounds");
    row->round = round;
    row->n_rounds = (int32_t)n_rounds;
    if (!token || !round) return ST_E_NOMEM;
    memcpy(token, w->token + t0, (size_t)n * sizeof *token);
    for (int64_t k = 0; k < n_rounds; k++)
        for (int c = 0; c < RESULTS_ROUND_COLUMNS; c++)
            memcpy((char *)&round[k] + results_round_column[c].offset, &w->column[c][r0 + k], sizeof(int32_t));
    return ST_OK;
}

static int by_index(const void *a, const void *b)
{
    const struct result_row *x = a, *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

static enum status make_rows(struct raw *w, struct results *r)
{
    r->row = mem_alloc(w->n, sizeof *r->row, "result rows");
    if (!r->row) return ST_E_NOMEM;
    r->rows_stored = (int64_t)w->n;
    for (size_t i = 0; i < w->n; i++) {
        if (w->request[i].committed != 1) continue;
        r->n++; /* before filling, so that a failure releases what was taken */
        TRY(make_row(w, i, &r->row[r->n - 1]));
        TRY(results_check_row(ST_E_FORMAT, h5_path(w->f), &r->row[r->n - 1], r->questions, r->block));
    }
    qsort(r->row, r->n, sizeof *r->row, by_index);
    for (size_t i = 1; i < r->n; i++)
        if (r->row[i].index == r->row[i - 1].index)
            return ERR(ST_E_FORMAT, "%s: index %lld is committed twice", h5_path(w->f), (long long)r->row[i].index);
    return ST_OK;
}

static enum status read_root(const struct h5 *f, struct results *r)
{
    char *schema = NULL;
    int64_t version = 0, block = 0, attempt = 0, complete = 0;
    TRY(h5_get_str(f, "/", "schema", &schema));
    int ours = strcmp(schema, RESULTS_SCHEMA_NAME) == 0;
    enum status st = ST_OK;
    if (!ours) st = ERR(ST_E_FORMAT, "%s: schema is '%s', wanted '%s'", h5_path(f), schema, RESULTS_SCHEMA_NAME);
    mem_free(schema);
    TRY(st);
    TRY(h5_get_int(f, "/", "schema_version", &version));
    if (version != RESULTS_SCHEMA)
        return ERR(ST_E_FORMAT, "%s: schema_version is %lld, this program reads %d", h5_path(f), (long long)version,
                   RESULTS_SCHEMA);
    TRY(h5_get_int(f, "/", "questions", &r->questions));
    TRY(h5_get_int(f, "/", "block", &block));
    TRY(h5_get_int(f, "/", "attempt", &attempt));
    TRY(h5_get_int(f, "/", "complete", &complete));
    TRY(h5_get_str(f, "/", "config_hash", &r->config_hash));
    if (r->questions < 1 || r->questions > RESULTS_MAX_QUESTIONS || block < 1 || block > RESULTS_MAX_BLOCK || attempt < 1 || attempt > INT32_MAX)
        return ERR(ST_E_FORMAT, "%s: questions %lld, block %lld, attempt %lld: out of range", h5_path(f),
                   (long long)r->questions, (long long)block, (long long)attempt);
    r->block = (int32_t)block;
    r->attempt = (int32_t)attempt;
    r->complete = complete == 1;
    return h5_list_attrs(f, "/", &r->attr, &r->n_attrs);
}

static enum status read_rest(const struct h5 *f, struct results *r)
{
    size_t n, n_plan;
    char **plan;
    TRY(vec(f, "/accept/histogram", H5_KIND_I64, &r->histogram, &n));
    if (n != (size_t)r->block)
        return ERR(ST_E_FORMAT, "%s: /accept/histogram has %zu bins, block is %d", h5_path(f), n, r->block);
    TRY(rows(f, "/memory", &results_memory_table, &r->memory, &r->n_memory));
    TRY(h5_read_str(f, "/plan", &plan, &n_plan));
    if (n_plan > 0) r->plan = take(plan, 0);
    h5_free_str(plan, n_plan);
    return results_load_spans(f, r);
}

/* the stored histogram must be that of the rows */
static enum status check_histogram(const struct h5 *f, const struct results *r)
{
    int64_t *sum = mem_alloc((size_t)r->block, sizeof *sum, "a histogram");
    if (!sum) return ST_E_NOMEM;
    for (size_t i = 0; i < r->n; i++)
        for (int32_t k = 0; k < r->row[i].n_rounds && results_is_done(r->row[i].stop); k++)
            sum[r->row[i].round[k].accepted]++;
    enum status st = ST_OK;
    for (int32_t b = 0; b < r->block && st == ST_OK; b++)
        if (sum[b] != r->histogram[b])
            st = ERR(ST_E_FORMAT, "%s: /accept/histogram[%d] is %lld, the rounds give %lld", h5_path(f), b,
                     (long long)r->histogram[b], (long long)sum[b]);
    mem_free(sum);
    return st;
}

enum status results_load(const char *path, struct results **r_p)
{
    struct h5 *f;
    struct raw w = {.f = NULL};
    if (results_is_journal(path))
        return ERR(ST_E_FORMAT,
                   "%s: the journal of results, JSON lines; merge, show and grade take the .h5 file beside it, and if "
                   "that is lost pdflash rebuild makes it anew",
                   path);
    TRY(h5_open(path, 0, &f));
    struct results *r = mem_alloc(1, sizeof *r, "results");
    enum status st = r ? read_root(f, r) : ST_E_NOMEM;
    if (st == ST_OK) st = raw_read(f, &w);
    if (st == ST_OK) st = raw_check(&w);
    if (st == ST_OK) st = make_rows(&w, r);
    if (st == ST_OK) st = read_rest(f, r);
    if (st == ST_OK) st = check_histogram(f, r);
    raw_free(&w);
    h5_close(f);
    if (st == ST_OK)
        *r_p = r;
    else
        results_free(r);
    return st;
}

void results_free(struct results *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n; i++) results_drop_row(&r->row[i]);
    mem_free(r->row);
    mem_free(r->config_hash);
    mem_free(r->histogram);
    mem_free(r->memory);
    mem_free(r->span);
    mem_free(r->plan);
    h5_free_attrs(r->attr, r->n_attrs);
    mem_free(r);
}

const char *results_attr_str(const struct results *r, const char *key)
{
    for (size_t i = 0; i < r->n_attrs; i++)
        if (r->attr[i].kind == H5_KIND_STR && strcmp(r->attr[i].name, key) == 0) return r->attr[i].s;
    return NULL;
}
