/* results_replay - lines of a journal back to rows, attributes, plan and memory. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "data/results_priv.h"

enum { PLACE = 4200 };

struct where { /* where a line stands, for messages, and what the lines before say of the run */
    const char *path;
    int64_t line, questions;
    int32_t block, attempt;
};

static const char *place(const struct where *at, char text[PLACE])
{
    snprintf(text, PLACE, "%s:%lld", at->path, (long long)at->line);
    return text;
}

static enum status bad_line(const struct where *at, const char *key, const char *what)
{
    return ERR(ST_E_FORMAT, "%s:%lld: \"%s\" %s", at->path, (long long)at->line, key, what);
}

static enum status get_int(const struct where *at, const json_t *o, const char *key, int64_t low, int64_t high,
                           int64_t *v_p)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v)) return bad_line(at, key, "is missing or no integer");
    if (json_integer_value(v) < low || json_integer_value(v) > high) return bad_line(at, key, "is out of range");
    *v_p = json_integer_value(v);
    return ST_OK;
}

static enum status get_i32(const struct where *at, const json_t *o, const char *key, int32_t *v_p)
{
    int64_t v;
    TRY(get_int(at, o, key, INT32_MIN, INT32_MAX, &v));
    *v_p = (int32_t)v;
    return ST_OK;
}

static enum status get_str(const struct where *at, const json_t *o, const char *key, const char **s_p)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_string(v)) return bad_line(at, key, "is missing or no text");
    *s_p = json_string_value(v);
    return ST_OK;
}

/* a number, or null for not measured */
static enum status get_real(const struct where *at, const json_t *o, const char *key, double *v_p)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v) && !json_is_null(v)) return bad_line(at, key, "is missing or no number");
    *v_p = json_is_null(v) ? NAN : json_number_value(v);
    return ST_OK;
}

static enum status get_tokens(const struct where *at, const json_t *o, struct result_row *row)
{
    const json_t *a = json_object_get(o, "tokens");
    if (!json_is_array(a) || json_array_size(a) != (size_t)row->output_tokens)
        return bad_line(at, "tokens", "is no list of output_tokens ids");
    int32_t *id = mem_alloc((size_t)row->output_tokens, sizeof *id, "output ids");
    if (!id) return ST_E_NOMEM;
    row->token = id;
    for (int32_t i = 0; i < row->output_tokens; i++) {
        const json_t *v = json_array_get(a, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return bad_line(at, "tokens", "holds what is no token id");
        id[i] = (int32_t)json_integer_value(v);
    }
    return ST_OK;
}

static enum status get_rounds(const struct where *at, const json_t *o, struct result_row *row)
{
    const json_t *a = json_object_get(o, "rounds");
    if (!json_is_array(a) || json_array_size(a) > INT32_MAX) return bad_line(at, "rounds", "is no list");
    size_t n = json_array_size(a);
    struct result_round *round = mem_alloc(n, sizeof *round, "rounds");
    if (!round) return ST_E_NOMEM;
    row->round = round;
    row->n_rounds = (int32_t)n;
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < RESULTS_ROUND_COLUMNS; c++) {
            const json_t *v = json_array_get(json_array_get(a, i), (size_t)c);
            if (!json_is_integer(v) || json_integer_value(v) < INT32_MIN || json_integer_value(v) > INT32_MAX)
                return bad_line(at, "rounds", "holds a row that is not five integers");
            int32_t x = (int32_t)json_integer_value(v);
            memcpy((char *)&round[i] + results_round_column[c].offset, &x, sizeof x);
        }
    return ST_OK;
}

static enum status get_transfer(const struct where *at, const json_t *o, struct result_row *row)
{
    const json_t *all = json_object_get(o, "transfer");
    for (int c = 0; c < RESULT_COMP_N; c++) {
        struct result_transfer *x = &row->transfer[c];
        const json_t *t = json_object_get(all, result_component_name((enum result_component)c));
        const char *sum;
        char *end;
        if (!json_is_object(t)) return bad_line(at, "transfer", "lacks a component");
        TRY(get_int(at, t, "bytes", INT64_MIN, INT64_MAX, &x->bytes));
        TRY(get_int(at, t, "puts", INT64_MIN, INT64_MAX, &x->puts));
        TRY(get_real(at, t, "seconds", &x->seconds));
        TRY(get_str(at, t, "checksum", &sum));
        x->checksum = strtoull(sum, &end, 16);
        if (*end || end == sum) return bad_line(at, "checksum", "is no hex number");
    }
    return ST_OK;
}

/* text members point into o; lists are allocated */
static enum status parse_row(const struct where *at, const json_t *o, struct result_row *row)
{
    const char *stop, *name;
    double *v;
    TRY(get_int(at, o, "index", 0, INT64_MAX, &row->index));
    TRY(get_i32(at, o, "attempt", &row->attempt));
    TRY(get_i32(at, o, "prompt_tokens", &row->prompt_tokens));
    TRY(get_i32(at, o, "output_tokens", &row->output_tokens));
    if (row->output_tokens < 0) return bad_line(at, "output_tokens", "is negative");
    TRY(get_str(at, o, "stop_reason", &stop));
    int s = results_stop_parse(stop, strlen(stop) + 1);
    if (s < 0) return bad_line(at, "stop_reason", "is unknown");
    row->stop = (enum result_stop)s;
    TRY(get_str(at, o, "question", &row->question));
    TRY(get_str(at, o, "gold", &row->gold));
    TRY(get_str(at, o, "response", &row->response));
    TRY(get_str(at, o, "error", &row->error));
    row->response_n = strlen(row->response);
    TRY(get_tokens(at, o, row));
    TRY(get_rounds(at, o, row));
    for (int i = 0; (name = results_timing_at(&row->timing, i, &v)) != NULL; i++)
        TRY(get_real(at, json_object_get(o, "timing"), name, v));
    return get_transfer(at, o, row);
}

static enum status take_row(const struct where *at, const json_t *o, const struct results_replay *r)
{
    struct result_row row = {.index = 0}, own;
    char here[PLACE];
    enum status st = parse_row(at, o, &row);
    if (st == ST_OK) st = results_check_row(ST_E_FORMAT, place(at, here), &row, at->questions, at->block);
    if (st == ST_OK && r->row) {
        st = results_own_row(&row, &own);
        if (st == ST_OK) {
            st = r->row(r->ctx, &own);
            results_drop_row(&own);
        }
    }
    mem_free((void *)(uintptr_t)row.token);
    mem_free((void *)(uintptr_t)row.round);
    return st;
}

static enum status take_run(struct where *at, const json_t *o, const struct results_replay *r)
{
    struct results_setup u = {.config_hash = NULL};
    char here[PLACE];
    const char *schema;
    int64_t version;
    int32_t attempt;
    TRY(get_str(at, o, "schema", &schema));
    TRY(get_int(at, o, "schema_version", INT64_MIN, INT64_MAX, &version));
    if (strcmp(schema, RESULTS_SCHEMA_NAME) != 0 || version != RESULTS_SCHEMA)
        return ERR(ST_E_FORMAT, "%s:%lld: schema '%s' version %lld, wanted '%s' version %d", at->path,
                   (long long)at->line, schema, (long long)version, RESULTS_SCHEMA_NAME, RESULTS_SCHEMA);
    TRY(get_i32(at, o, "attempt", &attempt));
    TRY(get_str(at, o, "config_hash", &u.config_hash));
    TRY(get_int(at, o, "questions", 1, INT64_MAX, &u.questions));
    TRY(get_i32(at, o, "block", &u.block));
    TRY(results_check_setup(ST_E_FORMAT, place(at, here), &u));
    at->questions = u.questions, at->block = u.block, at->attempt = attempt;
    return r->run ? r->run(r->ctx, &u, attempt) : ST_OK;
}

/* *a_p: allocated, its text points into o */
static enum status get_attrs(const struct where *at, const json_t *o, struct result_attr **a_p, size_t *n_p)
{
    const json_t *all = json_object_get(o, "values");
    size_t n = json_array_size(all);
    struct result_attr *a = mem_alloc(n, sizeof *a, "attributes");
    if (!a) return ST_E_NOMEM;
    int ok = json_is_array(all);
    for (size_t i = 0; i < n && ok; i++) {
        const json_t *k = json_array_get(json_array_get(all, i), 0), *v = json_array_get(json_array_get(all, i), 1);
        ok = json_is_string(k) && (json_is_string(v) || json_is_number(v) || json_is_null(v));
        if (!ok) break;
        a[i].key = json_string_value(k);
        a[i].kind = json_is_string(v) ? H5_KIND_STR : json_is_integer(v) ? H5_KIND_I64 : H5_KIND_F64;
        a[i].s = json_string_value(v);
        a[i].i = json_integer_value(v);
        a[i].d = json_is_null(v) ? NAN : json_real_value(v);
    }
    if (!ok) {
        mem_free(a);
        return bad_line(at, "values", "is no list of [key, value]");
    }
    *a_p = a;
    *n_p = n;
    return ST_OK;
}

static enum status take_attrs(const struct where *at, const json_t *o, const struct results_replay *r, const char *plan)
{
    struct result_attr *a = NULL;
    size_t n = 0;
    TRY(get_attrs(at, o, &a, &n));
    enum status st = ST_OK;
    if (plan && r->plan)
        st = r->plan(r->ctx, plan, a, n);
    else if (!plan && r->attrs)
        st = r->attrs(r->ctx, a, n);
    mem_free(a);
    return st;
}

static enum status get_rank(const struct where *at, const json_t *o, struct result_memory *m)
{
    const char *role, *host;
    TRY(get_i32(at, o, "rank", &m->rank));
    TRY(get_str(at, o, "role", &role));
    TRY(get_str(at, o, "host", &host));
    snprintf(m->role, sizeof m->role, "%s", role);
    snprintf(m->host, sizeof m->host, "%s", host);
    TRY(get_int(at, o, "host_peak_bytes", -1, INT64_MAX, &m->host_peak_bytes));
    TRY(get_int(at, o, "weights_bytes", -1, INT64_MAX, &m->weights_bytes));
    TRY(get_int(at, o, "state_bytes", -1, INT64_MAX, &m->state_bytes));
    TRY(get_int(at, o, "window_bytes", -1, INT64_MAX, &m->window_bytes));
    return get_int(at, o, "device_bytes", -1, INT64_MAX, &m->device_bytes);
}

static enum status take_memory(const struct where *at, const json_t *o, const struct results_replay *r)
{
    const json_t *all = json_object_get(o, "ranks");
    if (!json_is_array(all)) return bad_line(at, "ranks", "is no list");
    size_t n = json_array_size(all);
    struct result_memory *m = mem_alloc(n, sizeof *m, "memory of ranks");
    if (!m) return ST_E_NOMEM;
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) st = get_rank(at, json_array_get(all, i), &m[i]);
    if (st == ST_OK && r->memory) st = r->memory(r->ctx, m, n);
    mem_free(m);
    return st;
}

static enum status take_spans(const struct where *at, const json_t *o, const struct results_replay *r)
{
    struct result_span *s = NULL;
    size_t n = 0;
    char here[PLACE];
    TRY(results_parse_spans(at->path, at->line, o, &s, &n));
    enum status st = ST_OK;
    place(at, here);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = results_check_span(ST_E_FORMAT, here, i, &s[i], at->attempt, at->questions);
    if (st == ST_OK && r->spans) st = r->spans(r->ctx, s, n);
    mem_free(s);
    return st;
}

static enum status take_line(struct where *at, const json_t *o, const struct results_replay *r)
{
    const char *kind, *plan;
    int64_t complete;
    TRY(get_str(at, o, "kind", &kind));
    if (strcmp(kind, "run") == 0) return take_run(at, o, r);
    if (at->line == 1) return bad_line(at, "kind", "of the first line is not 'run'");
    if (strcmp(kind, "row") == 0) return take_row(at, o, r);
    if (strcmp(kind, "attributes") == 0) return take_attrs(at, o, r, NULL);
    if (strcmp(kind, "memory") == 0) return take_memory(at, o, r);
    if (strcmp(kind, "spans") == 0) return take_spans(at, o, r);
    if (strcmp(kind, "plan") == 0) {
        TRY(get_str(at, o, "plan", &plan));
        return take_attrs(at, o, r, plan);
    }
    if (strcmp(kind, "finish") == 0)
        return get_int(at, o, "complete", 0, 1, &complete); /* the rows say so as well */
    return bad_line(at, "kind", "is unknown");
}

enum status results_journal_replay(const char *path, const struct results_replay *r)
{
    FILE *f = fopen(path, "rb");
    if (!f) return ERR(ST_E_FILE, "%s: cannot open: %s", path, strerror(errno));
    char *text = NULL; /* getline's memory comes from malloc */
    size_t room = 0;
    struct where at = {.path = path};
    enum status st = ST_OK;
    for (ssize_t n; st == ST_OK && (n = getline(&text, &room, f)) > 0;) {
        at.line++;
        if (text[n - 1] != '\n') {
            if (!r->trims) log_warn("%s:%lld: the last line is cut short; left out", path, (long long)at.line);
            break;
        }
        json_error_t e;
        json_t *o = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &e);
        st = o ? take_line(&at, o, r) : ERR(ST_E_FORMAT, "%s:%lld: not JSON: %s", path, (long long)at.line, e.text);
        json_decref(o);
    }
    if (st == ST_OK && ferror(f)) st = ERR(ST_E_FILE, "%s: cannot read", path);
    free(text);
    fclose(f);
    return st;
}
