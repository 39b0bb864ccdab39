/* report_text - the summary and the grading list for a person. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "data/report.h"

static void seconds(FILE *out, const char *name, double s)
{
    if (isnan(s))
        fprintf(out, "  %-28s not measured\n", name);
    else
        fprintf(out, "  %-28s %.6g s\n", name, s);
}

static void plain(FILE *out, const char *name, double v, const char *unit)
{
    if (isnan(v))
        fprintf(out, "  %-28s not measured\n", name);
    else
        fprintf(out, "  %-28s %.6g%s%s\n", name, v, unit[0] ? " " : "", unit);
}

static void rates(const struct report *p, FILE *out)
{
    for (int g = 0; g < GSM8K_N; g++) {
        double low, high;
        gsm8k_wilson(p->correct[g], p->questions, &low, &high);
        fprintf(out, "  %-18s %lld of %lld all questions = %.2f %% (95 %% Wilson %.2f to %.2f %%)",
                gsm8k_rule_name((enum gsm8k_rule)g), (long long)p->correct[g], (long long)p->questions,
                100 * (double)p->correct[g] / (double)p->questions, 100 * low, 100 * high);
        gsm8k_wilson(p->correct_completed[g], p->completed, &low, &high);
        if (p->completed > 0)
            fprintf(out, "; %lld of %lld completed = %.2f %% (%.2f to %.2f %%)\n", (long long)p->correct_completed[g],
                    (long long)p->completed, 100 * (double)p->correct_completed[g] / (double)p->completed, 100 * low,
                    100 * high);
        else
            fprintf(out, "; none completed\n");
    }
}

static void acceptance(const struct report *p, FILE *out)
{
    fprintf(out, "acceptance (%s): %lld verify steps, %lld drafts proposed, %lld accepted, %lld tokens emitted\n",
            p->spec[0] ? p->spec : "spec not recorded", (long long)p->steps, (long long)p->proposed,
            (long long)p->accepted, (long long)p->emitted);
    plain(out, "tau", p->accept_length,
          "tokens a step: sum(accepted + 1) / steps before clipping, first token excluded");
    plain(out, "tau, mean over requests", p->accept_length_request_mean, "");
    plain(out, "emitted per step", p->emitted_per_step, "tokens, after clipping at EOS and budget");
    if (p->steps == 0) return;
    fprintf(out, "  accepted: steps, share; share of steps that accept at least as many\n");
    for (int32_t b = 0; b < p->n_bins; b++)
        fprintf(out, "  %8d: %8lld %7.4f %7.4f\n", b, (long long)p->histogram[b],
                (double)p->histogram[b] / (double)p->steps, b == 0 ? 1.0 : report_accept_at(p, b - 1));
}

static void transfers(const struct report *p, FILE *out)
{
    fprintf(out, "transfer, all requests: component, bytes, puts, seconds summed over requests\n");
    for (int c = 0; c < RESULT_COMP_N; c++) {
        fprintf(out, "  %-8s %14lld %10lld ", result_component_name((enum result_component)c), (long long)p->bytes[c],
                (long long)p->puts[c]);
        if (isnan(p->transfer_s[c]))
            fprintf(out, "not measured\n");
        else
            fprintf(out, "%.6g s\n", p->transfer_s[c]);
    }
}

static void one_size(FILE *out, int64_t n)
{
    if (n < 0)
        fprintf(out, " %14s", "-");
    else
        fprintf(out, " %14lld", (long long)n);
}

static void memory(const struct report *p, FILE *out)
{
    const struct results *r = p->results;
    if (r->n_memory == 0) {
        fprintf(out, "memory: not measured\n");
        return;
    }
    fprintf(out, "memory, bytes (- = none or not measured)\n  %5s %-8s %-16s %14s %14s %14s %14s %14s\n", "rank",
            "role", "host", "host peak", "weights", "state", "windows", "device");
    for (size_t i = 0; i < r->n_memory; i++) {
        const struct result_memory *m = &r->memory[i];
        fprintf(out, "  %5d %-8s %-16s", m->rank, m->role, m->host);
        one_size(out, m->host_peak_bytes);
        one_size(out, m->weights_bytes);
        one_size(out, m->state_bytes);
        one_size(out, m->window_bytes);
        one_size(out, m->device_bytes);
        fputc('\n', out);
    }
}

static void times(const struct report *p, FILE *out)
{
    fprintf(out, "time\n");
    seconds(out, "decode, wall", p->decode_s);
    seconds(out, "total, wall", p->total_s);
    plain(out, "output over decode wall", p->output_tps_decode, "tokens/s, first tokens included");
    plain(out, "output over total wall", p->output_tps_total, "tokens/s");
    fprintf(out, "phases of a request: requests measured, mean, median, longest\n");
    for (int i = 0; i < REPORT_PHASES; i++) {
        const struct report_phase *f = &p->phase[i];
        if (f->n == 0)
            fprintf(out, "  %-12s not measured\n", f->name);
        else
            fprintf(out, "  %-12s %6lld  %10.6f s %10.6f s %10.6f s\n", f->name, (long long)f->n, f->mean, f->p50,
                    f->max);
    }
}

static void overlap(const struct report *p, FILE *out)
{
    const struct report_overlap *o = &p->overlap;
    if (!(o->transfer_s > 0)) {
        fprintf(out, "overlap of transfers with compute: no transfer was measured in steady state\n");
        return;
    }
    fprintf(out,
            "overlap in steady state (first decode start to last prefill end, %.6g s): %lld transfers, %.6g s summed;\n"
            "  %.2f %% of it while a request computes, %.2f %% while another one does\n",
            o->window_s, (long long)o->transfers, o->transfer_s, 100 * o->any_s / o->transfer_s,
            100 * o->others_s / o->transfer_s);
}

static void occupancy(const struct report *p, FILE *out)
{
    struct report_rank *r = NULL;
    size_t n = 0;
    if (report_ranks(p, &r, &n) != ST_OK) return; /* said by the allocator */
    fprintf(out, "ranks at work: %s\n",
            n ? "seconds in each kind of work; receive is waiting for the stage before" : "not recorded");
    if (n) {
        fprintf(out, "  %7s %5s %-8s %5s", "attempt", "rank", "role", "stage");
        for (int k = 0; k < RESULT_SPAN_N; k++) fprintf(out, " %11s", result_span_name((enum result_span_kind)k));
        fputc('\n', out);
    }
    for (size_t i = 0; i < n; i++) {
        fprintf(out, "  %7d %5d %-8s %5d", r[i].attempt, r[i].rank, r[i].role, r[i].stage);
        for (int k = 0; k < RESULT_SPAN_N; k++) fprintf(out, " %11.6f", r[i].busy[k]);
        fputc('\n', out);
    }
    mem_free(r);
}

static void head(const struct report *p, FILE *out)
{
    if (p->is_failed_run) fprintf(out, "FAILED RUN: no request was completed\n");
    fprintf(out, "questions %lld: %lld completed, %lld truncated, %lld failed, %lld missing (run %s, attempt %d)\n",
            (long long)p->questions, (long long)p->completed, (long long)p->truncated, (long long)p->failed,
            (long long)p->missing, p->results->complete ? "complete" : "not complete", p->results->attempt);
}

/* worth a line each when there were several: their topologies may differ */
static void attempts(const struct report *p, FILE *out)
{
    struct report_attempt a;
    for (int32_t i = 1; p->results->attempt > 1 && report_attempt(p, i, &a); i++)
        fprintf(out, "  attempt %d: %lld rows, topology %s, run %s\n", i, (long long)a.rows, a.topology, a.run_id);
}

/* how tokens were taken; older files do not say: they are greedy */
static void sampling(const struct report *p, FILE *out)
{
    char t[32], k[32], q[32], s[32], d[32];
    const char *temperature = report_attr(p, "option_temperature", t, sizeof t);
    if (!temperature[0] || strtod(temperature, NULL) == 0) {
        fprintf(out, "sampling: none, the likeliest token is taken\n");
        return;
    }
    fprintf(out, "sampling: temperature %s, top-k %s, top-p %s, seed %s; drafts: %s\n", temperature,
            report_attr(p, "option_top-k", k, sizeof k), report_attr(p, "option_top-p", q, sizeof q),
            report_attr(p, "option_seed", s, sizeof s), report_attr(p, "drafts", d, sizeof d));
}

void report_text(const struct report *p, FILE *out)
{
    head(p, out);
    fprintf(out, "config %s, topology %s\n", p->config_hash, p->topology[0] ? p->topology : "not recorded");
    attempts(p, out);
    sampling(p, out);
    fprintf(out, "tokens: %lld prompt, %lld output\n", (long long)p->prompt_tokens, (long long)p->output_tokens);
    fprintf(out, "correct\n");
    rates(p, out);
    acceptance(p, out);
    transfers(p, out);
    memory(p, out);
    times(p, out);
    overlap(p, out);
    occupancy(p, out);
}

static void list_rows(const struct report *p, FILE *out, enum result_stop stop, const char *title)
{
    const struct results *r = p->results;
    int64_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct result_row *row = &r->row[i];
        if (row->stop != stop) continue;
        if (n++ == 0) fprintf(out, "%s\n", title);
        fprintf(out, "  %6lld  %d output tokens, attempt %d%s%s\n", (long long)row->index, row->output_tokens,
                row->attempt, row->error && row->error[0] ? ": " : "", row->error ? row->error : "");
    }
}

/* rows are sorted by index, so the gaps between them are what is missing */
static void list_missing(const struct report *p, FILE *out)
{
    const struct results *r = p->results;
    if (p->missing == 0) return;
    fprintf(out, "missing: no committed row\n ");
    int64_t next = 0;
    for (size_t i = 0; i <= r->n; i++) {
        int64_t at = i < r->n ? r->row[i].index : p->questions;
        if (at - next == 1) fprintf(out, " %lld", (long long)next);
        if (at - next > 1) fprintf(out, " %lld-%lld", (long long)next, (long long)(at - 1));
        next = at + 1;
    }
    fputc('\n', out);
}

static void list_disagreements(const struct report *p, FILE *out)
{
    const struct results *r = p->results;
    int64_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct gsm8k_grade *g = &r->row[i].grade;
        int right = 0;
        for (int k = 0; k < GSM8K_N; k++) right += g->correct[k] == 1;
        if (right == 0 || right == GSM8K_N) continue;
        if (n++ == 0) fprintf(out, "rules disagree (+ right, - wrong): question, what each rule read\n");
        fprintf(out, "  %6lld", (long long)r->row[i].index);
        for (int k = 0; k < GSM8K_N; k++)
            fprintf(out, "  %s %c%.24s", gsm8k_rule_name((enum gsm8k_rule)k), g->correct[k] == 1 ? '+' : '-',
                    g->extracted[k]);
        fputc('\n', out);
    }
}

/* as the prompts file says: its questions that are examples in every prompt */
static void leak(const struct report *p, FILE *out)
{
    char a[32], b[32];
    const char *leaked = report_attr(p, "shots_leaked", a, sizeof a), *shots = report_attr(p, "shots", b, sizeof b);
    if (!leaked[0] || strcmp(leaked, "0") == 0) return;
    fprintf(out, "caveat: %s of the questions are among the %s worked examples of every prompt, graded with their "
                 "answers in sight\n", leaked, shots);
}

void report_grade(const struct report *p, FILE *out)
{
    head(p, out);
    rates(p, out);
    leak(p, out);
    list_rows(p, out, RESULT_LENGTH, "truncated: cut by the output limit");
    list_rows(p, out, RESULT_FAILED, "failed");
    list_rows(p, out, RESULT_ABORTED, "aborted");
    list_missing(p, out);
    list_disagreements(p, out);
}
