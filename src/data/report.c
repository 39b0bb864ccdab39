#include "data/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

static const struct {
    const char *name;
    size_t from, to; /* in struct result_timing */
} phase_def[REPORT_PHASES] = {
    {"queue", offsetof(struct result_timing, admit), offsetof(struct result_timing, first_chunk)},
    {"prefill", offsetof(struct result_timing, first_chunk), offsetof(struct result_timing, prefill_done)},
    {"transfer", offsetof(struct result_timing, transfer_start), offsetof(struct result_timing, transfer_done)},
    {"start_wait", offsetof(struct result_timing, transfer_done), offsetof(struct result_timing, start)},
    {"decode", offsetof(struct result_timing, start), offsetof(struct result_timing, end)},
    {"first_token", offsetof(struct result_timing, admit), offsetof(struct result_timing, first_token)},
    {"request", offsetof(struct result_timing, admit), offsetof(struct result_timing, end)}};

static double stamp(const struct result_timing *t, size_t at)
{
    double v;
    memcpy(&v, (const char *)t + at, sizeof v);
    return v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* v: room for one number a row */
static void make_phase(const struct results *r, int i, double *v, struct report_phase *p)
{
    *p = (struct report_phase){phase_def[i].name, 0, NAN, NAN, NAN};
    double sum = 0;
    for (size_t k = 0; k < r->n; k++) {
        double d = stamp(&r->row[k].timing, phase_def[i].to) - stamp(&r->row[k].timing, phase_def[i].from);
        if (!isfinite(d)) continue;
        sum += d;
        v[p->n++] = d;
    }
    if (p->n == 0) return;
    qsort(v, (size_t)p->n, sizeof *v, by_value);
    p->mean = sum / (double)p->n;
    p->p50 = p->n % 2 ? v[p->n / 2] : (v[p->n / 2 - 1] + v[p->n / 2]) / 2;
    p->max = v[p->n - 1];
}

static void count_row(const struct result_row *row, struct report *p)
{
    p->committed++;
    p->completed += row->stop == RESULT_EOS;
    p->truncated += row->stop == RESULT_LENGTH;
    p->failed += row->stop == RESULT_FAILED || row->stop == RESULT_ABORTED;
    p->prompt_tokens += row->prompt_tokens;
    p->output_tokens += row->output_tokens;
    for (int g = 0; g < GSM8K_N; g++) {
        p->correct[g] += row->grade.correct[g] == 1;
        p->correct_completed[g] += row->stop == RESULT_EOS && row->grade.correct[g] == 1;
    }
    for (int c = 0; c < RESULT_COMP_N; c++) {
        p->bytes[c] += row->transfer[c].bytes;
        p->puts[c] += row->transfer[c].puts;
        if (isnan(row->transfer[c].seconds)) continue;
        p->transfer_s[c] = (isnan(p->transfer_s[c]) ? 0 : p->transfer_s[c]) + row->transfer[c].seconds;
    }
}

/* verify steps; *tau_sum and *tau_n collect the requests' own means */
static void count_steps(const struct result_row *row, struct report *p, double *tau_sum, int64_t *tau_n)
{
    if ((row->stop != RESULT_EOS && row->stop != RESULT_LENGTH) || row->n_rounds == 0) return;
    int64_t accepted = 0;
    for (int32_t k = 0; k < row->n_rounds; k++) {
        p->proposed += row->round[k].proposed;
        p->emitted += row->round[k].emitted;
        accepted += row->round[k].accepted;
    }
    p->steps += row->n_rounds;
    p->accepted += accepted;
    *tau_sum += (double)(accepted + row->n_rounds) / row->n_rounds;
    *tau_n += 1;
}

struct attempt { /* the walls of one attempt */
    int32_t number;
    double first_start, last_end;
};

static void make_walls(const struct results *r, struct attempt *a, struct report *p)
{
    size_t n = 0;
    int64_t tokens = 0;
    double decode = 0, total = 0;
    for (size_t k = 0; k < r->n; k++) {
        const struct result_timing *t = &r->row[k].timing;
        if (!isfinite(t->start) || !isfinite(t->end)) continue;
        size_t i = 0;
        while (i < n && a[i].number != r->row[k].attempt) i++;
        if (i == n) a[n++] = (struct attempt){r->row[k].attempt, t->start, t->end};
        if (t->start < a[i].first_start) a[i].first_start = t->start;
        if (t->end > a[i].last_end) a[i].last_end = t->end;
        tokens += r->row[k].output_tokens;
    }
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) {
        decode += a[i].last_end - a[i].first_start;
        total += a[i].last_end;
    }
    p->decode_s = decode;
    p->total_s = total;
    if (decode > 0) p->output_tps_decode = (double)tokens / decode;
    if (total > 0) p->output_tps_total = (double)tokens / total;
}

static const char *attr_or_empty(const struct results *r, const char *key)
{
    const char *s = results_attr_str(r, key);
    return s ? s : "";
}

enum status report_make(const struct results *r, struct report *p_p)
{
    struct report p = {.results = r, .questions = r->questions, .n_bins = r->block, .histogram = r->histogram};
    double *v = mem_alloc(r->n, sizeof *v, "spans of requests");
    struct attempt *a = mem_alloc(r->n, sizeof *a, "attempts");
    if (!v || !a) {
        mem_free(v);
        mem_free(a);
        return ST_E_NOMEM;
    }
    enum status st = report_overlap(r, &p.overlap);
    if (st != ST_OK) {
        mem_free(v);
        mem_free(a);
        return st;
    }
    p.decode_s = p.total_s = p.output_tps_decode = p.output_tps_total = NAN;
    p.accept_length = p.accept_length_request_mean = p.emitted_per_step = NAN;
    for (int c = 0; c < RESULT_COMP_N; c++) p.transfer_s[c] = NAN;
    double tau_sum = 0;
    int64_t tau_n = 0;
    for (size_t k = 0; k < r->n; k++) {
        count_row(&r->row[k], &p);
        count_steps(&r->row[k], &p, &tau_sum, &tau_n);
    }
    if (p.steps > 0) {
        p.accept_length = (double)(p.accepted + p.steps) / (double)p.steps;
        p.emitted_per_step = (double)p.emitted / (double)p.steps;
        p.accept_length_request_mean = tau_sum / (double)tau_n;
    }
    for (int i = 0; i < REPORT_PHASES; i++) make_phase(r, i, v, &p.phase[i]);
    make_walls(r, a, &p);
    mem_free(v);
    mem_free(a);
    p.missing = p.questions - p.committed;
    p.is_failed_run = p.completed + p.truncated == 0;
    p.spec = attr_or_empty(r, "spec");
    p.topology = attr_or_empty(r, "topology");
    p.config_hash = r->config_hash;
    *p_p = p;
    return ST_OK;
}

double report_accept_at(const struct report *p, int i)
{
    int64_t n = 0;
    for (int32_t b = i + 1; b < p->n_bins; b++) n += p->histogram[b];
    return p->steps > 0 ? (double)n / (double)p->steps : NAN;
}

static const char *attempt_attr(const struct report *p, int32_t i, const char *name)
{
    char key[64];
    const char *s = results_attr_str(p->results, results_attempt_key(i, name, key, sizeof key));
    return s && s[0] ? s : "not recorded";
}

int report_attempt(const struct report *p, int32_t i, struct report_attempt *a_p)
{
    if (i < 1 || i > p->results->attempt || i > REPORT_ATTEMPTS) return 0;
    *a_p = (struct report_attempt){0, attempt_attr(p, i, "topology"), attempt_attr(p, i, "run_id")};
    for (size_t k = 0; k < p->results->n; k++) a_p->rows += p->results->row[k].attempt == i;
    return 1;
}
