/* report_charts - accuracy, acceptance, transfer and memory of one file: a picture and the table behind it. */
#include <math.h>
#include <string.h>

#include "data/report_page.h"

static const double WIDTH = 1090;

/* ---- accuracy ------------------------------------------------------------------------------------------ */

static void interval_row(const struct page *p, const struct axis *x, int g, double y)
{
    const struct report *r = p->file[p->at].report;
    const char *name = gsm8k_rule_name((enum gsm8k_rule)g);
    double low, high;
    svg_text(p->f, x->a - 14, y + 4, "end", "lab", "%s", name);
    gsm8k_wilson(r->correct[g], r->questions, &low, &high);
    if (isnan(low)) return;
    double rate = (double)r->correct[g] / (double)r->questions;
    svg_rect(p->f, axis_at(x, low), y - 5, axis_at(x, high) - axis_at(x, low), 10, "c-band",
             "%s: %lld of %lld, 95 %% Wilson %.2f to %.2f %%", name, (long long)r->correct[g], (long long)r->questions,
             100 * low, 100 * high);
    svg_dot(p->f, axis_at(x, rate), y, 4.5, "c-main", "%s: %.2f %%", name, 100 * rate);
    svg_text(p->f, x->b + 14, y + 4, "start", "lab", "%lld of %lld", (long long)r->correct[g], (long long)r->questions);
}

static void share(const struct page *p, const char *rule, const char *of, int64_t k, int64_t n)
{
    double low, high;
    gsm8k_wilson(k, n, &low, &high);
    fputs("<td>", p->f);
    page_number(p, (double)k, PAGE_COUNT, "accuracy.%s.%s.correct", rule, of);
    fputs("</td><td>", p->f);
    page_number(p, n > 0 ? (double)k / (double)n : NAN, PAGE_PERCENT, "accuracy.%s.%s.rate", rule, of);
    fputs("</td><td>", p->f);
    page_number(p, low, PAGE_PERCENT, "accuracy.%s.%s.wilson95_low", rule, of);
    fputs("</td><td>", p->f);
    page_number(p, high, PAGE_PERCENT, "accuracy.%s.%s.wilson95_high", rule, of);
    fputs("</td>", p->f);
}

/* examples taken from the graded questions are answers given away */
static void leak(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    char a[32], b[512], c[512], d[32];
    const char *leaked = report_attr(r, "shots_leaked", d, sizeof d); /* "" in results of older prompts */
    const char *shots = report_attr(r, "shots", a, sizeof a), *from = report_attr(r, "shots_source", b, sizeof b),
               *source = report_attr(r, "source", c, sizeof c);
    if (!shots[0] || strcmp(shots, "0") == 0) return;
    fputs("<p class=\"warn\">", p->f);
    page_printf(p->f, "Prompts carry %s worked examples from %s", shots,
                from[0] ? from : "a file that is not recorded");
    if (leaked[0] && strcmp(leaked, "0") != 0)
        page_printf(p->f, "; %s of the questions are among them, graded with their answers in sight. Good for "
                    "comparing deployments, not a leak-free accuracy", leaked);
    else if (!leaked[0] && strcmp(from, source) == 0)
        fputs(", the graded file itself: those questions are graded with their answers in sight. Good for comparing "
              "deployments, not a leak-free accuracy", p->f);
    fputs(".</p>\n", p->f);
}

void page_accuracy(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    struct axis x = {0, 1, 150, WIDTH - 110};
    double h = 28 * GSM8K_N + 52;
    fputs("<h3>Accuracy</h3>\n<p>Dot: share of all questions, truncated, failed and missing ones counted as wrong. "
          "Band: 95 % Wilson interval.</p>\n", p->f);
    svg_open(p->f, WIDTH, h, "accuracy under four rules with Wilson intervals");
    svg_axis_x(p->f, &x, h - 42, 4, 10, PAGE_PERCENT, "");
    for (int g = 0; g < GSM8K_N; g++) interval_row(p, &x, g, 18 + 28 * g);
    svg_close(p->f);
    fputs("<table><thead><tr><th></th><th colspan=\"4\">of all questions</th><th colspan=\"4\">of completed "
          "ones</th></tr>"
          "<tr><th>rule</th><th>right</th><th>rate</th><th>low</th><th>high</th><th>right</th><th>rate</th><th>low</th>"
          "<th>high</th></tr></thead><tbody>\n",
          p->f);
    for (int g = 0; g < GSM8K_N; g++) {
        const char *rule = gsm8k_rule_name((enum gsm8k_rule)g);
        fprintf(p->f, "<tr><th>%s</th>", rule);
        share(p, rule, "all", r->correct[g], r->questions);
        share(p, rule, "completed", r->correct_completed[g], r->completed);
        fputs("</tr>\n", p->f);
    }
    fputs("</tbody></table>\n", p->f);
    leak(p);
}

/* ---- acceptance ---------------------------------------------------------------------------------------- */

static void histogram(const struct page *p, double w, double h)
{
    const struct report *r = p->file[p->at].report;
    int64_t most = 1;
    for (int32_t b = 0; b < r->n_bins; b++) most = r->histogram[b] > most ? r->histogram[b] : most;
    struct axis x = {0, r->n_bins, 52, w - 8}, y = {0, (double)most, h - 40, 12};
    axis_nice(&y, 5);
    double step = (x.b - x.a) / r->n_bins;
    int every = r->n_bins > 20 ? r->n_bins / 16 : 1;
    svg_open(p->f, w, h, "verify steps by number of accepted drafts");
    svg_axis_y(p->f, &y, x.a, x.b, 5, PAGE_COUNT);
    for (int32_t b = 0; b < r->n_bins; b++) {
        double top = axis_at(&y, (double)r->histogram[b]), left = axis_at(&x, b);
        if (r->histogram[b])
            svg_rect(p->f, left + 0.1 * step, top, 0.8 * step, y.a - top, "c-main", "%d accepted: %lld steps, %.2f %%",
                     b, (long long)r->histogram[b], 100 * (double)r->histogram[b] / (double)r->steps);
        if (b % every == 0) svg_text(p->f, left + step / 2, y.a + 15, "middle", "tick", "%d", b);
    }
    svg_line(p->f, x.a, y.a, x.b, y.a, "axis");
    svg_text(p->f, x.b, h - 6, "end", "tick", "drafts accepted in a verify step");
    svg_close(p->f);
}

static void survival(const struct page *p, double w, double h)
{
    const struct report *r = p->file[p->at].report;
    struct axis x = {1, r->n_bins > 2 ? r->n_bins - 1 : 2, 52, w - 16}, y = {0, 1, h - 40, 12};
    int every = r->n_bins > 20 ? r->n_bins / 16 : 1;
    svg_open(p->f, w, h, "share of verify steps that accept each position");
    svg_axis_y(p->f, &y, x.a, x.b, 5, PAGE_PERCENT);
    svg_path_open(p->f, "l-main");
    for (int32_t i = 0; i + 1 < r->n_bins; i++)
        svg_path_point(p->f, axis_at(&x, i + 1), axis_at(&y, report_accept_at(r, i)));
    svg_path_close(p->f);
    for (int32_t i = 0; i + 1 < r->n_bins; i += every)
        svg_text(p->f, axis_at(&x, i + 1), y.a + 15, "middle", "tick", "%d", i + 1);
    for (int32_t i = 0; i + 1 < r->n_bins && r->n_bins <= 40; i++)
        svg_dot(p->f, axis_at(&x, i + 1), axis_at(&y, report_accept_at(r, i)), 3, "c-main", "position %d: %.2f %%",
                i + 1, 100 * report_accept_at(r, i));
    svg_line(p->f, x.a, y.a, x.b, y.a, "axis");
    svg_text(p->f, x.b, h - 6, "end", "tick", "draft position");
    svg_close(p->f);
}

static void acceptance_table(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    fputs("<details><summary>as a table</summary><table><thead><tr><th>accepted</th><th>steps</th>"
          "<th>accept at least as many</th></tr></thead><tbody>\n", p->f);
    for (int32_t b = 0; b < r->n_bins; b++) {
        fprintf(p->f, "<tr><th>%d</th><td>", b);
        page_number(p, (double)r->histogram[b], PAGE_COUNT, "accept_histogram.%d", b);
        fputs("</td><td>", p->f);
        if (b > 0) page_number(p, report_accept_at(r, b - 1), PAGE_PERCENT, "accept_by_position.%d", b - 1);
        fputs("</td></tr>\n", p->f);
    }
    fputs("</tbody></table></details>\n", p->f);
}

void page_acceptance(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    fputs("<h3>Acceptance</h3>\n", p->f);
    if (r->steps == 0) {
        fputs("<p class=\"none\">No verify step was recorded.</p>\n", p->f);
        return;
    }
    if (r->n_bins < 2) {
        fputs("<p class=\"none\">Plain decoding: nothing is drafted, each step gives one token.</p>\n", p->f);
        return;
    }
    fputs("<p><b>&#964; = ", p->f);
    page_number(p, r->accept_length, PAGE_PLAIN, "accept_length");
    fputs(
        "</b> tokens a step: sum(accepted + 1) / steps before clipping, the first token excluded. Mean over requests ",
        p->f);
    page_number(p, r->accept_length_request_mean, PAGE_PLAIN, "accept_length_request_mean");
    fputs("; emitted a step after clipping ", p->f);
    page_number(p, r->emitted_per_step, PAGE_PLAIN, "emitted_per_step");
    fputs(". ", p->f);
    page_number(p, (double)r->steps, PAGE_COUNT, "steps");
    fputs(" steps, ", p->f);
    page_number(p, (double)r->proposed, PAGE_COUNT, "proposed");
    fputs(" drafts proposed, ", p->f);
    page_number(p, (double)r->accepted, PAGE_COUNT, "accepted");
    fputs(" accepted.</p>\n<div class=\"two\"><figure>", p->f);
    histogram(p, 530, 250);
    fputs("<figcaption>Histogram: verify steps by drafts accepted</figcaption></figure><figure>", p->f);
    survival(p, 530, 250);
    fputs("<figcaption>By position: share of steps that accept at least this many</figcaption></figure></div>\n", p->f);
    acceptance_table(p);
}

/* ---- transfer ------------------------------------------------------------------------------------------ */

void page_transfer(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    char buf[48];
    int64_t most = 1, all = 0;
    for (int c = 0; c < RESULT_COMP_N; c++) {
        most = r->bytes[c] > most ? r->bytes[c] : most;
        all += r->bytes[c];
    }
    fputs("<h3>Transfer by component</h3>\n", p->f);
    if (all == 0) {
        fputs("<p class=\"none\">No byte moved between groups.</p>\n", p->f);
        return;
    }
    struct axis x = {0, (double)most, 90, WIDTH - 200};
    svg_open(p->f, WIDTH, 26 * RESULT_COMP_N + 8, "bytes moved by component");
    for (int c = 0; c < RESULT_COMP_N; c++) {
        const char *name = result_component_name((enum result_component)c);
        double y = 6 + 26 * c, end = axis_at(&x, (double)r->bytes[c]);
        svg_text(p->f, x.a - 10, y + 14, "end", "lab", "%s", name);
        svg_rect(p->f, x.a, y, end - x.a, 18, "c-send", "%s: %lld bytes", name, (long long)r->bytes[c]);
        svg_text(p->f, end + 8, y + 14, "start", "lab", "%s, %.1f %%",
                 page_format((double)r->bytes[c], PAGE_BYTES, buf), 100 * (double)r->bytes[c] / (double)all);
    }
    svg_close(p->f);
    fputs("<table><thead><tr><th>component</th><th>volume</th><th>puts</th><th>seconds, summed over requests</th></tr>"
          "</thead><tbody>\n", p->f);
    for (int c = 0; c < RESULT_COMP_N; c++) {
        const char *name = result_component_name((enum result_component)c);
        fprintf(p->f, "<tr><th>%s</th><td>", name);
        page_number(p, (double)r->bytes[c], PAGE_BYTES, "transfer.%s.bytes", name);
        fputs("</td><td>", p->f);
        page_number(p, (double)r->puts[c], PAGE_COUNT, "transfer.%s.puts", name);
        fputs("</td><td>", p->f);
        page_number(p, r->transfer_s[c], PAGE_SECONDS, "transfer.%s.seconds", name);
        fputs("</td></tr>\n", p->f);
    }
    fputs("</tbody></table>\n", p->f);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static double size(int64_t n)
{
    return n >= 0 ? (double)n : NAN;
}

static void memory_bar(const struct page *p, const struct axis *x, const struct result_memory *m, double y, double h)
{
    const struct {
        const char *name, *cls;
        int64_t n;
    } part[] = {{"weights", "c-main", m->weights_bytes}, {"state", "c-decode", m->state_bytes},
                {"windows", "c-send", m->window_bytes}};
    double at = 0;
    char buf[48];
    if (m->host_peak_bytes > 0)
        svg_rect(p->f, x->a, y, axis_at(x, (double)m->host_peak_bytes) - x->a, h, "c-band", "rank %d: host peak %s",
                 m->rank, page_format((double)m->host_peak_bytes, PAGE_BYTES, buf));
    for (int i = 0; i < 3; i++) {
        if (part[i].n <= 0) continue;
        double from = axis_at(x, at), to = axis_at(x, at + (double)part[i].n);
        svg_rect(p->f, from, y + 0.2 * h, to - from, 0.6 * h, part[i].cls, "rank %d: %s %s", m->rank, part[i].name,
                 page_format((double)part[i].n, PAGE_BYTES, buf));
        at += (double)part[i].n;
    }
    svg_text(p->f, x->a - 10, y + h / 2 + 4, "end", "tick", "%d %s", m->rank, m->role);
    if (m->host_peak_bytes > 0)
        svg_text(p->f, axis_at(x, (double)m->host_peak_bytes) + 8, y + h / 2 + 4, "start", "tick", "%s",
                 page_format((double)m->host_peak_bytes, PAGE_BYTES, buf));
}

static void memory_table(const struct page *p)
{
    const struct results *r = p->file[p->at].report->results;
    fputs("<details><summary>as a table</summary><table><thead><tr><th>rank</th><th>role</th><th>host</th><th>host "
          "peak</th>"
          "<th>weights</th><th>state</th><th>windows</th><th>device</th></tr></thead><tbody>\n",
          p->f);
    for (size_t i = 0; i < r->n_memory; i++) {
        const struct result_memory *m = &r->memory[i];
        const struct {
            const char *key;
            int64_t n;
        } col[] = {{"host_peak_bytes", m->host_peak_bytes},
                   {"weights_bytes", m->weights_bytes},
                   {"state_bytes", m->state_bytes},
                   {"window_bytes", m->window_bytes},
                   {"device_bytes", m->device_bytes}};
        fprintf(p->f, "<tr><th>%d</th><td>", m->rank);
        page_text(p->f, m->role);
        fputs("</td><td>", p->f);
        page_text(p->f, m->host);
        for (size_t k = 0; k < sizeof col / sizeof col[0]; k++) {
            fputs("</td><td>", p->f);
            page_number(p, size(col[k].n), PAGE_BYTES, "memory.%zu.%s", i, col[k].key);
        }
        fputs("</td></tr>\n", p->f);
    }
    fputs("</tbody></table></details>\n", p->f);
}

void page_memory(const struct page *p)
{
    const struct results *r = p->file[p->at].report->results;
    fputs("<h3>Memory per rank</h3>\n", p->f);
    if (r->n_memory == 0) {
        fputs("<p class=\"none\">Not measured: the run did not come to its end.</p>\n", p->f);
        return;
    }
    double most = 1, row = r->n_memory > 32 ? 14 : 22;
    for (size_t i = 0; i < r->n_memory; i++) {
        const struct result_memory *m = &r->memory[i];
        double parts = fmax(0, (double)m->weights_bytes) + fmax(0, (double)m->state_bytes) +
                       fmax(0, (double)m->window_bytes);
        most = fmax(most, fmax(parts, (double)m->host_peak_bytes));
    }
    struct axis x = {0, most, 90, WIDTH - 110};
    fputs("<p class=\"key\"><i class=\"c-band\"></i>host peak <i class=\"c-main\"></i>weights <i "
          "class=\"c-decode\"></i>state "
          "<i class=\"c-send\"></i>windows</p>\n",
          p->f);
    svg_open(p->f, WIDTH, (double)r->n_memory * row + 6, "memory of each rank");
    for (size_t i = 0; i < r->n_memory; i++) memory_bar(p, &x, &r->memory[i], 3 + (double)i * row, row - 4);
    svg_close(p->f);
    memory_table(p);
}
