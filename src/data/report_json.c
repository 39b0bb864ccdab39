/* report_json - the summary as one JSON object. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "data/report.h"
#include "data/utf8.h"

static json_t *real(double d)
{
    return isfinite(d) ? json_real(d) : json_null();
}

/* text of files and paths, which may hold what is no UTF-8; NULL when out of memory */
static json_t *text_of(const char *s)
{
    char *clean = utf8_clean(s, strlen(s));
    json_t *v = clean ? json_string(clean) : NULL;
    mem_free(clean);
    return v;
}

/* all of these make *bad when something is NULL */
static void put(json_t *o, const char *key, json_t *v, int *bad)
{
    if (json_object_set_new(o, key, v) != 0) *bad = 1;
}

static void push(json_t *a, json_t *v, int *bad)
{
    if (json_array_append_new(a, v) != 0) *bad = 1;
}

static json_t *correct(const struct report *p, int *bad)
{
    json_t *o = json_object();
    for (int g = 0; g < GSM8K_N; g++) put(o, gsm8k_rule_name((enum gsm8k_rule)g), json_integer(p->correct[g]), bad);
    return o;
}

static json_t *share(int64_t k, int64_t n, int *bad)
{
    double low, high;
    json_t *o = json_object();
    gsm8k_wilson(k, n, &low, &high);
    put(o, "correct", json_integer(k), bad);
    put(o, "of", json_integer(n), bad);
    put(o, "rate", real(n > 0 ? (double)k / (double)n : NAN), bad);
    put(o, "wilson95_low", real(low), bad);
    put(o, "wilson95_high", real(high), bad);
    return o;
}

static json_t *accuracy(const struct report *p, int *bad)
{
    json_t *o = json_object();
    for (int g = 0; g < GSM8K_N; g++) {
        json_t *r = json_object();
        put(r, "all", share(p->correct[g], p->questions, bad), bad);
        put(r, "completed", share(p->correct_completed[g], p->completed, bad), bad);
        put(o, gsm8k_rule_name((enum gsm8k_rule)g), r, bad);
    }
    return o;
}

static json_t *histogram(const struct report *p, int *bad)
{
    json_t *a = json_array();
    for (int32_t b = 0; b < p->n_bins; b++) push(a, json_integer(p->histogram[b]), bad);
    return a;
}

static json_t *by_position(const struct report *p, int *bad)
{
    json_t *a = json_array();
    for (int32_t i = 0; i + 1 < p->n_bins; i++) push(a, real(report_accept_at(p, i)), bad);
    return a;
}

static json_t *transfer(const struct report *p, int *bad)
{
    json_t *o = json_object();
    for (int c = 0; c < RESULT_COMP_N; c++) {
        json_t *t = json_object();
        put(t, "bytes", json_integer(p->bytes[c]), bad);
        put(t, "puts", json_integer(p->puts[c]), bad);
        put(t, "seconds", real(p->transfer_s[c]), bad);
        put(o, result_component_name((enum result_component)c), t, bad);
    }
    return o;
}

static json_t *bytes(int64_t n)
{
    return n >= 0 ? json_integer(n) : json_null();
}

static json_t *memory(const struct report *p, int *bad)
{
    json_t *a = json_array();
    for (size_t i = 0; i < p->results->n_memory; i++) {
        const struct result_memory *m = &p->results->memory[i];
        json_t *o = json_object();
        put(o, "rank", json_integer(m->rank), bad);
        put(o, "role", text_of(m->role), bad);
        put(o, "host", text_of(m->host), bad);
        put(o, "host_peak_bytes", bytes(m->host_peak_bytes), bad);
        put(o, "weights_bytes", bytes(m->weights_bytes), bad);
        put(o, "state_bytes", bytes(m->state_bytes), bad);
        put(o, "window_bytes", bytes(m->window_bytes), bad);
        put(o, "device_bytes", bytes(m->device_bytes), bad);
        push(a, o, bad);
    }
    return a;
}

static json_t *phases(const struct report *p, int *bad)
{
    json_t *o = json_object();
    for (int i = 0; i < REPORT_PHASES; i++) {
        const struct report_phase *f = &p->phase[i];
        json_t *v = json_object();
        put(v, "requests", json_integer(f->n), bad);
        put(v, "mean_s", real(f->mean), bad);
        put(v, "p50_s", real(f->p50), bad);
        put(v, "max_s", real(f->max), bad);
        put(o, f->name, v, bad);
    }
    return o;
}

static json_t *attempts(const struct report *p, int *bad)
{
    json_t *list = json_array();
    struct report_attempt a;
    for (int32_t i = 1; report_attempt(p, i, &a); i++) {
        json_t *o = json_object();
        put(o, "attempt", json_integer(i), bad);
        put(o, "rows", json_integer(a.rows), bad);
        put(o, "topology", text_of(a.topology), bad);
        put(o, "run_id", text_of(a.run_id), bad);
        push(list, o, bad);
    }
    return list;
}

static json_t *overlap(const struct report *p, int *bad)
{
    const struct report_overlap *v = &p->overlap;
    json_t *o = json_object();
    put(o, "transfers", json_integer(v->transfers), bad);
    put(o, "window_s", real(v->window_s), bad);
    put(o, "transfer_s", real(v->transfer_s), bad);
    put(o, "share_any", real(v->transfer_s > 0 ? v->any_s / v->transfer_s : NAN), bad);
    put(o, "share_others", real(v->transfer_s > 0 ? v->others_s / v->transfer_s : NAN), bad);
    return o;
}

static enum status occupancy(const struct report *p, json_t *o, int *bad)
{
    struct report_rank *r = NULL;
    size_t n = 0;
    json_t *list = json_array();
    enum status st = report_ranks(p, &r, &n);
    for (size_t i = 0; i < n; i++) {
        json_t *x = json_object(), *busy = json_object();
        put(x, "attempt", json_integer(r[i].attempt), bad);
        put(x, "rank", json_integer(r[i].rank), bad);
        put(x, "role", text_of(r[i].role), bad);
        put(x, "stage", json_integer(r[i].stage), bad);
        put(x, "tp_rank", json_integer(r[i].tp_rank), bad);
        put(x, "spans", json_integer(r[i].spans), bad);
        put(x, "begin_s", real(r[i].begin), bad);
        put(x, "end_s", real(r[i].end), bad);
        for (int k = 0; k < RESULT_SPAN_N; k++)
            put(busy, result_span_name((enum result_span_kind)k), real(r[i].busy[k]), bad);
        put(x, "busy_s", busy, bad);
        push(list, x, bad);
    }
    mem_free(r);
    put(o, "occupancy", list, bad);
    return st;
}

static json_t *check(enum report_check c)
{
    return c == REPORT_NOT_MADE ? json_null() : json_boolean(c == REPORT_HOLDS);
}

static json_t *decision(const struct report_decision *d, int *bad)
{
    json_t *o = json_object();
    put(o, "verdict", json_string(report_verdict_name(d->verdict)), bad);
    put(o, "why", text_of(d->why), bad);
    put(o, "reference", text_of(d->reference), bad);
    put(o, "whole", check(d->whole), bad);
    put(o, "token_identity", check(d->identity), bad);
    put(o, "compared", json_integer(d->compared), bad);
    put(o, "identical", json_integer(d->identical), bad);
    put(o, "first_different", d->first_different < 0 ? json_null() : json_integer(d->first_different), bad);
    put(o, "train64", check(d->train64), bad);
    put(o, "train_right", json_integer(d->train_right), bad);
    put(o, "train_rows", json_integer(d->train_rows), bad);
    put(o, "correct", check(d->correct), bad);
    put(o, "gain", real(d->gain), bad);
    put(o, "output_tps_decode", real(d->tps), bad);
    put(o, "reference_output_tps_decode", real(d->reference_tps), bad);
    put(o, "accept_length", real(d->accept_length), bad);
    put(o, "reference_accept_length", real(d->reference_accept_length), bad);
    put(o, "train_cut", json_integer(d->train_cut), bad);
    put(o, "is_itself", json_boolean(d->is_itself), bad);
    put(o, "note", text_of(d->note), bad);
    put(o, "train_note", text_of(d->train_note), bad);
    put(o, "caveat", text_of(d->caveat), bad);
    return o;
}

/* the documented keys, in the documented order */
static void put_documented(json_t *o, const struct report *p, int *bad)
{
    put(o, "questions", json_integer(p->questions), bad);
    put(o, "completed", json_integer(p->completed), bad);
    put(o, "truncated", json_integer(p->truncated), bad);
    put(o, "failed", json_integer(p->failed), bad);
    put(o, "correct", correct(p, bad), bad);
    put(o, "accept_length", real(p->accept_length), bad);
    put(o, "accept_histogram", histogram(p, bad), bad);
    put(o, "accept_by_position", by_position(p, bad), bad);
    put(o, "output_tokens", json_integer(p->output_tokens), bad);
    put(o, "decode_s", real(p->decode_s), bad);
    put(o, "total_s", real(p->total_s), bad);
    put(o, "output_tps_decode", real(p->output_tps_decode), bad);
    put(o, "output_tps_total", real(p->output_tps_total), bad);
    put(o, "spec", text_of(p->spec), bad);
    put(o, "topology", text_of(p->topology), bad);
    put(o, "config_hash", text_of(p->config_hash), bad);
}

enum status report_json(const struct report *p, char **text_p)
{
    int bad = 0;
    json_t *o = json_object();
    put_documented(o, p, &bad);
    put(o, "committed", json_integer(p->committed), &bad);
    put(o, "missing", json_integer(p->missing), &bad);
    put(o, "complete", json_boolean(p->results->complete), &bad);
    put(o, "failed_run", json_boolean(p->is_failed_run), &bad);
    put(o, "attempt", json_integer(p->results->attempt), &bad);
    put(o, "attempts", attempts(p, &bad), &bad);
    put(o, "accuracy", accuracy(p, &bad), &bad);
    put(o, "prompt_tokens", json_integer(p->prompt_tokens), &bad);
    put(o, "steps", json_integer(p->steps), &bad);
    put(o, "proposed", json_integer(p->proposed), &bad);
    put(o, "accepted", json_integer(p->accepted), &bad);
    put(o, "emitted", json_integer(p->emitted), &bad);
    put(o, "emitted_per_step", real(p->emitted_per_step), &bad);
    put(o, "accept_length_request_mean", real(p->accept_length_request_mean), &bad);
    put(o, "transfer", transfer(p, &bad), &bad);
    put(o, "memory", memory(p, &bad), &bad);
    put(o, "phases", phases(p, &bad), &bad);
    put(o, "overlap", overlap(p, &bad), &bad);
    if (occupancy(p, o, &bad) != ST_OK) bad = 1;
    if (p->decision) put(o, "decision", decision(p->decision, &bad), &bad);
    char *text = bad ? NULL : json_dumps(o, JSON_REAL_PRECISION(15)); /* memory from malloc */
    json_decref(o);
    if (!text) return ERR(ST_E_NOMEM, "no memory for the JSON summary");
    *text_p = text;
    return ST_OK;
}
