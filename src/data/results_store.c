#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "data/results_priv.h"

/* ---- tables --------------------------------------------------------------------------------------- */

#define TABLE(name_, fields_, struct_) \
    const struct h5_table name_ = {fields_, (int)(sizeof fields_ / sizeof fields_[0]), sizeof(struct_)}
#define AT(struct_, member_) offsetof(struct struct_, member_)

static const struct h5_field request_fields[] = {
    {"index", H5_KIND_I64, AT(results_request, index), 0},
    {"prompt_tokens", H5_KIND_I32, AT(results_request, prompt_tokens), 0},
    {"output_tokens", H5_KIND_I32, AT(results_request, output_tokens), 0},
    {"stop_reason", H5_KIND_STR, AT(results_request, stop_reason), 8},
    {"attempt", H5_KIND_I32, AT(results_request, attempt), 0},
    {"committed", H5_KIND_I8, AT(results_request, committed), 0}};
TABLE(results_requests_table, request_fields, struct results_request);

static const struct h5_field times_fields[] = {
    {"index", H5_KIND_I64, AT(results_times, index), 0},
    {"admit_s", H5_KIND_F64, AT(results_times, t.admit), 0},
    {"first_chunk_s", H5_KIND_F64, AT(results_times, t.first_chunk), 0},
    {"prefill_done_s", H5_KIND_F64, AT(results_times, t.prefill_done), 0},
    {"transfer_start_s", H5_KIND_F64, AT(results_times, t.transfer_start), 0},
    {"transfer_done_s", H5_KIND_F64, AT(results_times, t.transfer_done), 0},
    {"decode_start_s", H5_KIND_F64, AT(results_times, t.start), 0},
    {"first_token_s", H5_KIND_F64, AT(results_times, t.first_token), 0},
    {"end_s", H5_KIND_F64, AT(results_times, t.end), 0}};
TABLE(results_times_table, times_fields, struct results_times);

static const struct h5_field moved_fields[] = {
    {"index", H5_KIND_I64, AT(results_moved, index), 0},
    {"component", H5_KIND_STR, AT(results_moved, component), 8},
    {"bytes", H5_KIND_I64, AT(results_moved, x.bytes), 0},
    {"puts", H5_KIND_I64, AT(results_moved, x.puts), 0},
    {"seconds", H5_KIND_F64, AT(results_moved, x.seconds), 0},
    {"checksum", H5_KIND_U64, AT(results_moved, x.checksum), 0}};
TABLE(results_moved_table, moved_fields, struct results_moved);

static const struct h5_field verdict_fields[] = {
    {"index", H5_KIND_I64, AT(results_verdict, index), 0},
    {"openai", H5_KIND_I8, AT(results_verdict, correct) + GSM8K_OPENAI, 0},
    {"lm_eval_strict", H5_KIND_I8, AT(results_verdict, correct) + GSM8K_LM_EVAL_STRICT, 0},
    {"lm_eval_flexible", H5_KIND_I8, AT(results_verdict, correct) + GSM8K_LM_EVAL_FLEXIBLE, 0},
    {"sglang", H5_KIND_I8, AT(results_verdict, correct) + GSM8K_SGLANG, 0}};
TABLE(results_verdict_table, verdict_fields, struct results_verdict);

static const struct h5_field memory_fields[] = {
    {"rank", H5_KIND_I32, AT(result_memory, rank), 0},
    {"role", H5_KIND_STR, AT(result_memory, role), 16},
    {"host", H5_KIND_STR, AT(result_memory, host), 64},
    {"host_peak_bytes", H5_KIND_I64, AT(result_memory, host_peak_bytes), 0},
    {"weights_bytes", H5_KIND_I64, AT(result_memory, weights_bytes), 0},
    {"state_bytes", H5_KIND_I64, AT(result_memory, state_bytes), 0},
    {"window_bytes", H5_KIND_I64, AT(result_memory, window_bytes), 0},
    {"device_bytes", H5_KIND_I64, AT(result_memory, device_bytes), 0}};
TABLE(results_memory_table, memory_fields, struct result_memory);

const struct results_round_column results_round_column[RESULTS_ROUND_COLUMNS] = {
    {"/accept/round", AT(result_round, round)},
    {"/accept/proposed", AT(result_round, proposed)},
    {"/accept/accepted", AT(result_round, accepted)},
    {"/accept/emitted", AT(result_round, emitted)},
    {"/accept/bonus", AT(result_round, bonus)}};

/* what each dataset is, stored beside it */
static const struct {
    const char *object, *text;
} description[] = {
    {"/requests", "one row a finished request in order of finishing; index = question; only committed = 1 counts"},
    {"/text", "row r belongs to row r of /requests"},
    {"/tokens", "output ids of row r: flat[offsets[r]:offsets[r+1]]"},
    {"/accept",
     "verify rounds of row r: [offsets[r]:offsets[r+1]]; accepted is before clipping, emitted after; bonus -1 = "
     "none; histogram[k] = rounds with k accepted drafts, over requests that ended by eos or length"},
    {"/timing", "seconds since the start of the row's attempt; NaN = not measured"},
    {"/transfer", "per request and component; seconds NaN = not measured; checksum 0 = not computed"},
    {"/memory", "bytes per rank; -1 = none or not measured"},
    {"/grading", "what each rule extracted, and 1 = equals the gold answer under that rule"}};

/* ---- a new file ----------------------------------------------------------------------------------- */

static enum status make_sets(struct h5 *f, int32_t block, const int64_t *histogram)
{
    static const char *const text[] = {"/text/question", "/text/response", "/text/gold", "/text/error"};
    TRY(h5_make_rows(f, "/requests", &results_requests_table, 64));
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) TRY(h5_make_str(f, text[i], 64));
    TRY(h5_make(f, "/tokens/flat", H5_KIND_I32, 0, 4096));
    TRY(h5_make(f, "/tokens/offsets", H5_KIND_I64, 0, 256));
    TRY(h5_append(f, "/tokens/offsets", H5_KIND_I64, 1, &(int64_t){0}));
    TRY(h5_make(f, "/accept/request", H5_KIND_I64, 0, 1024));
    for (int i = 0; i < RESULTS_ROUND_COLUMNS; i++) TRY(h5_make(f, results_round_column[i].name, H5_KIND_I32, 0, 1024));
    TRY(h5_make(f, "/accept/offsets", H5_KIND_I64, 0, 256));
    TRY(h5_append(f, "/accept/offsets", H5_KIND_I64, 1, &(int64_t){0}));
    TRY(h5_write(f, "/accept/histogram", H5_KIND_I64, 1, &(int64_t){block}, histogram));
    TRY(h5_make_rows(f, "/timing", &results_times_table, 64));
    TRY(h5_make_rows(f, "/transfer", &results_moved_table, 64 * RESULT_COMP_N));
    TRY(h5_make_rows(f, "/memory", &results_memory_table, 32));
    TRY(h5_make_rows(f, "/grading/verdict", &results_verdict_table, 64));
    for (int r = 0; r < GSM8K_N; r++) {
        char name[64];
        snprintf(name, sizeof name, "/grading/%s_extracted", gsm8k_rule_name((enum gsm8k_rule)r));
        TRY(h5_make_str(f, name, 64));
    }
    TRY(h5_make_str(f, "/plan", 1));
    for (size_t i = 0; i < sizeof description / sizeof description[0]; i++)
        TRY(h5_set_str(f, description[i].object, "description", description[i].text));
    return ST_OK;
}

static enum status make_root(struct h5 *f, const struct results_setup *setup, int32_t attempt)
{
    TRY(h5_set_str(f, "/", "schema", RESULTS_SCHEMA_NAME));
    TRY(h5_set_int(f, "/", "schema_version", RESULTS_SCHEMA));
    TRY(h5_set_str(f, "/", "config_hash", setup->config_hash));
    TRY(h5_set_int(f, "/", "questions", setup->questions));
    TRY(h5_set_int(f, "/", "block", setup->block));
    TRY(h5_set_int(f, "/", "attempt", attempt));
    return h5_set_int(f, "/", "complete", 0);
}

static enum status make_tables(struct results_store *s)
{
    size_t n = (size_t)s->questions;
    s->histogram = mem_alloc((size_t)s->block, sizeof *s->histogram, "the histogram");
    s->slot = mem_alloc(n, sizeof *s->slot, "row slots");
    s->stop = mem_alloc(n, sizeof *s->stop, "row states");
    s->tried = mem_alloc(n, sizeof *s->tried, "row attempts");
    if (!s->histogram || !s->slot || !s->stop || !s->tried) return ST_E_NOMEM;
    for (size_t i = 0; i < n; i++) s->slot[i] = -1;
    return ST_OK;
}

enum status results_store_new(const char *path, const struct results_setup *setup, int32_t attempt,
                              struct results_store *s_p)
{
    struct results_store s = {.questions = setup->questions, .block = setup->block, .attempt = attempt};
    TRY(results_check_setup(ST_E_RANGE, path, setup));
    enum status st = ST_OK;
    if (!(s.config_hash = mem_strdup(setup->config_hash))) st = ST_E_NOMEM;
    if (st == ST_OK) st = make_tables(&s);
    if (st == ST_OK) st = h5_create(path, 1, &s.f);
    if (st == ST_OK) st = make_root(s.f, setup, attempt);
    if (st == ST_OK) st = make_sets(s.f, s.block, s.histogram);
    if (st == ST_OK)
        *s_p = s;
    else
        results_store_close(&s);
    return st;
}

void results_store_close(struct results_store *s)
{
    h5_close(s->f);
    mem_free(s->config_hash);
    mem_free(s->histogram);
    mem_free(s->slot);
    mem_free(s->stop);
    mem_free(s->tried);
    memset(s, 0, sizeof *s);
}

/* ---- an existing file ----------------------------------------------------------------------------- */

static enum status read_root(struct results_store *s)
{
    char *schema = NULL;
    int64_t version = 0, block = 0, attempt = 0;
    TRY(h5_get_str(s->f, "/", "schema", &schema));
    int ours = strcmp(schema, RESULTS_SCHEMA_NAME) == 0;
    enum status st = ST_OK;
    if (!ours) st = ERR(ST_E_FORMAT, "%s: schema is '%s', wanted '%s'", h5_path(s->f), schema, RESULTS_SCHEMA_NAME);
    mem_free(schema);
    TRY(st);
    TRY(h5_get_int(s->f, "/", "schema_version", &version));
    if (version != RESULTS_SCHEMA)
        return ERR(ST_E_FORMAT, "%s: schema_version is %lld, this program reads %d", h5_path(s->f), (long long)version,
                   RESULTS_SCHEMA);
    TRY(h5_get_str(s->f, "/", "config_hash", &s->config_hash));
    TRY(h5_get_int(s->f, "/", "questions", &s->questions));
    TRY(h5_get_int(s->f, "/", "block", &block));
    TRY(h5_get_int(s->f, "/", "attempt", &attempt));
    if (s->questions < 1 || block < 1 || block > RESULTS_MAX_BLOCK || attempt < 1 || attempt > INT32_MAX)
        return ERR(ST_E_FORMAT, "%s: questions %lld, block %lld, attempt %lld: out of range", h5_path(s->f),
                   (long long)s->questions, (long long)block, (long long)attempt);
    s->block = (int32_t)block;
    s->attempt = (int32_t)attempt;
    return ST_OK;
}

static enum status take_request(struct results_store *s, const struct results_request *r, int64_t at)
{
    int stop = results_stop_parse(r->stop_reason, sizeof r->stop_reason);
    if (r->index < 0 || r->index >= s->questions || stop < 0)
        return ERR(ST_E_FORMAT, "%s: /requests row %lld: index %lld of %lld, stop_reason '%.8s'", h5_path(s->f),
                   (long long)at, (long long)r->index, (long long)s->questions, r->stop_reason);
    s->tried[r->index] = r->attempt;
    if (r->committed != 1) return ST_OK;
    if (s->slot[r->index] >= 0)
        return ERR(ST_E_FORMAT, "%s: /requests: rows %lld and %lld are both committed for index %lld", h5_path(s->f),
                   (long long)s->slot[r->index], (long long)at, (long long)r->index);
    s->slot[r->index] = at;
    s->stop[r->index] = (int8_t)stop;
    s->done += results_is_done((enum result_stop)stop);
    return ST_OK;
}

static enum status last_offset(const struct h5 *f, const char *name, int64_t rows, int64_t *last_p)
{
    void *v;
    size_t n;
    TRY(h5_read_vec(f, name, H5_KIND_I64, &v, &n));
    enum status st = n == (size_t)rows + 1 ? ST_OK
                                           : ERR(ST_E_FORMAT, "%s: %s has %zu elements for %lld rows", h5_path(f), name,
                                                 n, (long long)rows);
    if (st == ST_OK) *last_p = ((int64_t *)v)[rows];
    mem_free(v);
    return st;
}

static enum status read_state(struct results_store *s)
{
    void *v;
    size_t n;
    TRY(read_root(s));
    TRY(make_tables(s));
    TRY(h5_read_rows(s->f, "/requests", &results_requests_table, &v, &n));
    enum status st = ST_OK;
    s->rows = (int64_t)n;
    for (size_t i = 0; i < n && st == ST_OK; i++) st = take_request(s, (struct results_request *)v + i, (int64_t)i);
    mem_free(v);
    TRY(st);
    TRY(last_offset(s->f, "/tokens/offsets", s->rows, &s->n_tokens));
    TRY(last_offset(s->f, "/accept/offsets", s->rows, &s->n_rounds));
    TRY(h5_read_vec(s->f, "/accept/histogram", H5_KIND_I64, &v, &n));
    if (n == (size_t)s->block)
        memcpy(s->histogram, v, n * sizeof(int64_t));
    else
        st = ERR(ST_E_FORMAT, "%s: /accept/histogram has %zu bins, block is %d", h5_path(s->f), n, s->block);
    mem_free(v);
    return st;
}

enum status results_store_open(const char *path, struct results_store *s_p)
{
    struct results_store s = {.f = NULL};
    TRY(h5_open(path, 1, &s.f));
    enum status st = read_state(&s);
    if (st == ST_OK)
        *s_p = s;
    else
        results_store_close(&s);
    return st;
}

/* ---- adding --------------------------------------------------------------------------------------- */

static enum status add_text(struct h5 *f, const struct result_row *row)
{
    TRY(h5_append_str(f, "/text/question", 1, &row->question));
    TRY(h5_append_str(f, "/text/response", 1, &row->response));
    TRY(h5_append_str(f, "/text/gold", 1, &row->gold));
    return h5_append_str(f, "/text/error", 1, &row->error);
}

static enum status add_rounds(struct results_store *s, const struct result_row *row)
{
    size_t n = (size_t)row->n_rounds;
    int32_t *column = mem_alloc(n, sizeof *column, "rounds");
    int64_t *request = mem_alloc(n, sizeof *request, "rounds");
    enum status st = column && request ? ST_OK : ST_E_NOMEM;
    for (int c = 0; c < RESULTS_ROUND_COLUMNS && st == ST_OK; c++) {
        for (size_t i = 0; i < n; i++)
            memcpy(&column[i], (const char *)&row->round[i] + results_round_column[c].offset, sizeof *column);
        st = h5_append(s->f, results_round_column[c].name, H5_KIND_I32, (int64_t)n, column);
    }
    for (size_t i = 0; i < n && st == ST_OK; i++) request[i] = row->index;
    if (st == ST_OK) st = h5_append(s->f, "/accept/request", H5_KIND_I64, (int64_t)n, request);
    mem_free(column);
    mem_free(request);
    TRY(st);
    s->n_rounds += row->n_rounds;
    TRY(h5_append(s->f, "/accept/offsets", H5_KIND_I64, 1, &s->n_rounds));
    if (!results_is_done(row->stop)) return ST_OK; /* its rounds may be redone */
    for (size_t i = 0; i < n; i++) s->histogram[row->round[i].accepted]++;
    return h5_put(s->f, "/accept/histogram", H5_KIND_I64, 0, s->block, s->histogram);
}

static enum status add_grades(struct h5 *f, const struct result_row *row)
{
    struct results_verdict v = {.index = row->index};
    memcpy(v.correct, row->grade.correct, sizeof v.correct);
    TRY(h5_append_rows(f, "/grading/verdict", &results_verdict_table, 1, &v));
    for (int r = 0; r < GSM8K_N; r++) {
        char name[64];
        const char *s = row->grade.extracted[r];
        snprintf(name, sizeof name, "/grading/%s_extracted", gsm8k_rule_name((enum gsm8k_rule)r));
        TRY(h5_append_str(f, name, 1, &s));
    }
    return ST_OK;
}

static enum status add_transfer(struct h5 *f, const struct result_row *row)
{
    struct results_moved m[RESULT_COMP_N] = {{0}};
    for (int c = 0; c < RESULT_COMP_N; c++) {
        m[c].index = row->index;
        m[c].x = row->transfer[c];
        snprintf(m[c].component, sizeof m[c].component, "%s", result_component_name((enum result_component)c));
    }
    return h5_append_rows(f, "/transfer", &results_moved_table, RESULT_COMP_N, m);
}

/* the mark that makes a row count, and the one that ends the row it replaces */
static enum status commit(struct results_store *s, struct results_request *r, const struct result_row *row)
{
    int64_t old = s->slot[row->index], at = s->rows;
    r->committed = 1;
    TRY(h5_put_rows(s->f, "/requests", &results_requests_table, at, 1, r));
    if (old >= 0) {
        void *v;
        size_t n;
        TRY(h5_read_rows(s->f, "/requests", &results_requests_table, &v, &n));
        struct results_request *o = (struct results_request *)v + old;
        o->committed = 0;
        enum status st = h5_put_rows(s->f, "/requests", &results_requests_table, old, 1, o);
        mem_free(v);
        TRY(st);
    }
    s->slot[row->index] = at;
    s->stop[row->index] = (int8_t)row->stop;
    s->tried[row->index] = row->attempt;
    s->done += results_is_done(row->stop);
    s->rows++;
    return ST_OK;
}

enum status results_store_append(struct results_store *s, const struct result_row *row)
{
    struct results_times t = {row->index, row->timing};
    struct results_request r = {.index = row->index, .prompt_tokens = row->prompt_tokens,
                                .output_tokens = row->output_tokens, .attempt = row->attempt};
    snprintf(r.stop_reason, sizeof r.stop_reason, "%s", result_stop_name(row->stop));
    TRY(add_text(s->f, row));
    TRY(h5_append(s->f, "/tokens/flat", H5_KIND_I32, row->output_tokens, row->token));
    s->n_tokens += row->output_tokens;
    TRY(h5_append(s->f, "/tokens/offsets", H5_KIND_I64, 1, &s->n_tokens));
    TRY(add_rounds(s, row));
    TRY(h5_append_rows(s->f, "/timing", &results_times_table, 1, &t));
    TRY(add_transfer(s->f, row));
    TRY(add_grades(s->f, row));
    TRY(h5_append_rows(s->f, "/requests", &results_requests_table, 1, &r));
    return commit(s, &r, row);
}

enum status results_store_attrs(struct results_store *s, const char *object, const struct result_attr *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (a[i].kind == H5_KIND_STR)
            TRY(h5_set_str(s->f, object, a[i].key, a[i].s ? a[i].s : ""));
        else if (a[i].kind == H5_KIND_I64)
            TRY(h5_set_int(s->f, object, a[i].key, a[i].i));
        else
            TRY(h5_set_real(s->f, object, a[i].key, a[i].d));
    }
    return ST_OK;
}

enum status results_store_plan(struct results_store *s, const char *json, const struct result_attr *a, size_t n)
{
    TRY(h5_delete(s->f, "/plan"));
    TRY(h5_make_str(s->f, "/plan", 1));
    TRY(h5_append_str(s->f, "/plan", 1, &json));
    return results_store_attrs(s, "/plan", a, n);
}

enum status results_store_memory(struct results_store *s, const struct result_memory *m, size_t n)
{
    TRY(h5_delete(s->f, "/memory"));
    TRY(h5_make_rows(s->f, "/memory", &results_memory_table, 32));
    TRY(h5_set_str(s->f, "/memory", "description", "bytes per rank; -1 = none or not measured"));
    return h5_append_rows(s->f, "/memory", &results_memory_table, (int64_t)n, m);
}

enum status results_store_attempt(struct results_store *s, int32_t attempt)
{
    s->attempt = attempt;
    return h5_set_int(s->f, "/", "attempt", attempt);
}

enum status results_store_complete(struct results_store *s, int complete)
{
    return h5_set_int(s->f, "/", "complete", complete);
}
