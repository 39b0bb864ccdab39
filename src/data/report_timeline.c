/* report_timeline - what happened when: throughput over time, requests, ranks. Attempts have clocks of their own, so
 * each gets its own picture. Only time stamps of the file are drawn. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "data/report_page.h"

static const double WIDTH = 1090;
enum { ATTEMPTS_DRAWN = 6, REQUESTS_DRAWN = 512, RANKS_DRAWN = 256, BINS_MAX = 60 };

/* last time stamp of an attempt, 0 when nothing was measured; *rows_p: rows with an end */
static double end_of(const struct results *r, int32_t attempt, int64_t *rows_p)
{
    double end = 0;
    *rows_p = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->row[i].attempt != attempt || !isfinite(r->row[i].timing.end)) continue;
        end = fmax(end, r->row[i].timing.end);
        *rows_p += 1;
    }
    return end;
}

/* the same over all stamps: rows that failed have some and no end */
static double last_of(const struct results *r, int32_t attempt)
{
    double last = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct result_timing *t = &r->row[i].timing;
        const double v[] = {t->first_chunk, t->prefill_done, t->transfer_start, t->transfer_done, t->start, t->end};
        for (size_t k = 0; k < sizeof v / sizeof v[0] && r->row[i].attempt == attempt; k++)
            if (isfinite(v[k]) && v[k] > last) last = v[k];
    }
    return last;
}

/* the k-th attempt with something to draw; 0: none */
static int32_t drawn(const struct results *r, int k)
{
    for (int32_t a = 1; a <= r->attempt && a <= REPORT_ATTEMPTS; a++) {
        int64_t rows;
        if (end_of(r, a, &rows) > 0 && k-- == 0) return a;
    }
    return 0;
}

static void attempt_title(const struct page *p, int32_t attempt)
{
    if (p->file[p->at].report->results->attempt > 1) fprintf(p->f, "<h4>attempt %d</h4>\n", attempt);
}

static void more_attempts(const struct page *p)
{
    if (drawn(p->file[p->at].report->results, ATTEMPTS_DRAWN))
        fprintf(p->f, "<p class=\"none\">Only the first %d attempts with time stamps are drawn.</p>\n", ATTEMPTS_DRAWN);
}

/* ---- throughput ---------------------------------------------------------------------------------------- */

static void throughput(const struct page *p, int32_t attempt)
{
    const struct results *r = p->file[p->at].report->results;
    int64_t rows, tokens[BINS_MAX] = {0}, ended[BINS_MAX] = {0};
    double end = end_of(r, attempt, &rows), most = 0;
    int bins = rows < 8 ? 8 : rows > BINS_MAX ? BINS_MAX : (int)rows;
    double width = end / bins;
    if (!isfinite(1 / width)) {
        fputs("<p class=\"none\">The time stamps of the file are too small to divide.</p>\n", p->f);
        return;
    }
    for (size_t i = 0; i < r->n; i++) {
        if (r->row[i].attempt != attempt || !isfinite(r->row[i].timing.end)) continue;
        double at = r->row[i].timing.end / width;
        int b = at < 0 ? 0 : at >= bins ? bins - 1 : (int)at;
        tokens[b] += r->row[i].output_tokens;
        ended[b]++;
    }
    for (int b = 0; b < bins; b++) most = fmax(most, (double)tokens[b] / width);
    struct axis x = {0, end, 62, WIDTH - 20}, y = {0, most, 178, 10};
    axis_nice(&y, 5);
    svg_open(p->f, WIDTH, 218, "output tokens per second over time");
    svg_axis_y(p->f, &y, x.a, x.b, 5, PAGE_COUNT);
    svg_axis_x(p->f, &x, y.a, y.a, 10, PAGE_COUNT, "seconds since the start of the attempt");
    for (int b = 0; b < bins; b++) {
        double top = axis_at(&y, (double)tokens[b] / width), left = axis_at(&x, b * width);
        if (!ended[b]) continue;
        svg_rect(p->f, left + 0.5, top, axis_at(&x, (b + 1) * width) - left - 1, y.a - top, "c-decode",
                 "%.3f to %.3f s: %lld requests ended with %lld tokens", b * width, (b + 1) * width,
                 (long long)ended[b], (long long)tokens[b]);
    }
    svg_close(p->f);
}

void page_throughput(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    fputs("<h3>Throughput over time</h3>\n<p>Output tokens of the requests that ended in an interval, over its length. "
          "All "
          "of the run: ",
          p->f);
    page_number(p, r->output_tps_decode, PAGE_RATE, "output_tps_decode");
    fputs(" over the decode wall of ", p->f);
    page_number(p, r->decode_s, PAGE_SECONDS, "decode_s");
    fputs(", ", p->f);
    page_number(p, r->output_tps_total, PAGE_RATE, "output_tps_total");
    fputs(" over the total wall of ", p->f);
    page_number(p, r->total_s, PAGE_SECONDS, "total_s");
    fputs(".</p>\n", p->f);
    for (int k = 0; k < ATTEMPTS_DRAWN; k++) {
        int32_t a = drawn(r->results, k);
        if (!a) break;
        attempt_title(p, a);
        throughput(p, a);
    }
    more_attempts(p);
}

/* ---- requests ------------------------------------------------------------------------------------------ */

static double begin_of(const struct result_row *row)
{
    const struct result_timing *t = &row->timing;
    const double v[] = {t->admit, t->first_chunk, t->prefill_done, t->transfer_start, t->start, t->end};
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
        if (isfinite(v[i])) return v[i];
    return INFINITY;
}

static int by_begin(const void *x, const void *y)
{
    const struct result_row *a = *(const struct result_row *const *)x, *b = *(const struct result_row *const *)y;
    double s = begin_of(a), t = begin_of(b);
    if (s != t) return s < t ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

static void phase(const struct page *p, const struct axis *x, const struct result_row *row, const char *name,
                  const char *cls, double from, double to, double y, double h)
{
    if (!isfinite(from) || !isfinite(to) || !isfinite(to - from) || to < from) return;
    svg_rect(p->f, axis_at(x, from), y, axis_at(x, to) - axis_at(x, from), h, cls,
             "question %lld: %s %.6f to %.6f s (%.6f s)", (long long)row->index, name, from, to, to - from);
}

static void one_request(const struct page *p, const struct axis *x, const struct result_row *row, double y, double h)
{
    const struct result_timing *t = &row->timing;
    phase(p, x, row, "queue", "c-wait", t->admit, t->first_chunk, y, h);
    phase(p, x, row, "prefill", "c-main", t->first_chunk, t->prefill_done, y, h);
    phase(p, x, row, "waiting for START", "c-wait", t->transfer_done, t->start, y, h);
    phase(p, x, row, "decode", "c-decode", t->start, t->end, y, h);
    phase(p, x, row, "transfer", "c-send", t->transfer_start, t->transfer_done, y + 0.3 * h, 0.4 * h);
}

static enum status requests(const struct page *p, int32_t attempt)
{
    const struct results *r = p->file[p->at].report->results;
    const struct result_row **row = mem_alloc(r->n, sizeof *row, "requests to draw");
    if (!row) return ST_E_NOMEM;
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->row[i].attempt == attempt && isfinite(begin_of(&r->row[i]))) row[n++] = &r->row[i];
    qsort(row, n, sizeof *row, by_begin);
    size_t show = n > REQUESTS_DRAWN ? REQUESTS_DRAWN : n;
    double step = show > 128 ? 4 : show > 40 ? 7 : 14, h = (double)show * step, y0 = h + 8;
    struct axis x = {0, last_of(r, attempt), 62, WIDTH - 20};
    svg_open(p->f, WIDTH, y0 + 40, "phases of each request over time");
    svg_axis_x(p->f, &x, y0, 4, 10, PAGE_COUNT, "seconds since the start of the attempt");
    size_t every = (size_t)ceil(12 / step);
    for (size_t i = 0; i < show; i++) {
        double y = 6 + (double)i * step;
        one_request(p, &x, row[i], y, step - (step > 5 ? 1.5 : 0.5));
        if (i % every == 0)
            svg_text(p->f, x.a - 6, y + step / 2 + 3.5, "end", "tick", "%lld", (long long)row[i]->index);
    }
    svg_close(p->f);
    if (n > show) fprintf(p->f, "<p class=\"none\">The first %zu of %zu requests are drawn.</p>\n", show, n);
    mem_free(row);
    return ST_OK;
}

enum status page_requests(const struct page *p)
{
    const struct results *r = p->file[p->at].report->results;
    fputs("<h3>Requests over time</h3>\n", p->f);
    if (!drawn(r, 0)) {
        fputs("<p class=\"none\">No time stamp was measured.</p>\n", p->f);
        return ST_OK;
    }
    fputs("<p class=\"key\"><i class=\"c-wait\"></i>waiting <i class=\"c-main\"></i>prefill <i "
          "class=\"c-send\"></i>transfer "
          "<i class=\"c-decode\"></i>decode; left: question</p>\n",
          p->f);
    for (int k = 0; k < ATTEMPTS_DRAWN; k++) {
        int32_t a = drawn(r, k);
        if (!a) break;
        attempt_title(p, a);
        TRY(requests(p, a));
    }
    more_attempts(p);
    return ST_OK;
}

/* ---- ranks --------------------------------------------------------------------------------------------- */

static const char *const span_class[RESULT_SPAN_N] = {"c-main", "c-wait", "c-send", "c-start", "c-decode"};
static const char *const span_label[RESULT_SPAN_N] = {"prefill chunk", "waiting for the stage before", "sending state",
                                                      "taking state", "decode round"};

static double work(const struct report_rank *r)
{
    double s = 0;
    for (int k = 0; k < RESULT_SPAN_N; k++)
        if (k != RESULT_SPAN_RECEIVE) s += r->busy[k];
    return s;
}

static void draw_span(const struct page *p, const struct axis *x, const struct result_span *s, double y, double h)
{
    int kind = result_span_kind(s);
    char who[64] = "";
    if (s->count == 0) return;
    if (s->request >= 0) snprintf(who, sizeof who, " of question %d", s->request);
    if (s->count > 1) snprintf(who + strlen(who), sizeof who - strlen(who), ", %d stretches", s->count);
    double share = s->end > s->begin ? s->busy / (s->end - s->begin) : 1;
    int faint = s->count > 1 && share < 0.995; /* several stretches and what lies between them */
    if (faint) svg_faint(p->f, fmax(share, 0.1));
    svg_rect(p->f, axis_at(x, s->begin), y, axis_at(x, s->end) - axis_at(x, s->begin), h, span_class[kind],
             "rank %d: %s%s, %.6f to %.6f s, busy %.6f s", s->rank, span_label[kind], who, s->begin, s->end, s->busy);
    if (faint) svg_faint(p->f, 1);
}

/* Spans that no eye can part are drawn as one, as the recorder joins them: a page of many ranks stays small. */
static void spans_of(const struct page *p, const struct axis *x, const struct report_rank *r, double y, double h)
{
    const struct results *f = p->file[p->at].report->results;
    const double unit = (x->hi - x->lo) / (x->b - x->a), near = 0.4 * unit, wide = 3 * unit;
    struct result_span open[RESULT_SPAN_N];
    memset(open, 0, sizeof open);
    for (size_t i = 0; i < f->n_spans; i++) {
        const struct result_span *s = &f->span[i];
        if (s->attempt != r->attempt || s->rank != r->rank) continue;
        struct result_span *o = &open[result_span_kind(s)];
        int join = o->count && o->count <= INT32_MAX - s->count && s->begin >= o->begin;
        if (join && s->begin - o->end <= near && s->end - o->begin <= wide) {
            if (o->request != s->request) o->request = -1;
            o->count += s->count;
            o->busy += s->busy;
            o->end = fmax(o->end, s->end);
            continue;
        }
        draw_span(p, x, o, y, h);
        *o = *s;
    }
    for (int k = 0; k < RESULT_SPAN_N; k++) draw_span(p, x, &open[k], y, h);
}

/* ranks first .. first+n-1 of one attempt */
static void gantt(const struct page *p, const struct report_rank *r, size_t n)
{
    double end = 0, step = n > 64 ? 9 : n > 24 ? 14 : 20;
    size_t show = n > RANKS_DRAWN ? RANKS_DRAWN : n, every = (size_t)ceil(13 / step);
    for (size_t i = 0; i < n; i++) end = fmax(end, r[i].end);
    struct axis x = {0, end > 0 ? end : 1, 118, WIDTH - 64};
    double y0 = (double)show * step + 8;
    svg_open(p->f, WIDTH, y0 + 40, "what each rank did over time");
    svg_axis_x(p->f, &x, y0, 4, 10, PAGE_COUNT, "seconds since the start of the attempt");
    for (size_t i = 0; i < show; i++) {
        double y = 6 + (double)i * step;
        spans_of(p, &x, &r[i], y, step - 3);
        if (i % every) continue;
        if (strcmp(r[i].role, "prefill") == 0)
            svg_text(p->f, x.a - 8, y + step / 2 + 3, "end", "tick", "%d stage %d tp %d", r[i].rank, r[i].stage,
                     r[i].tp_rank);
        else
            svg_text(p->f, x.a - 8, y + step / 2 + 3, "end", "tick", "%d %s tp %d", r[i].rank, r[i].role, r[i].tp_rank);
        svg_text(p->f, x.b + 8, y + step / 2 + 3, "start", "tick", "%.1f %%", 100 * work(&r[i]) / x.hi);
    }
    svg_close(p->f);
    if (n > show) fprintf(p->f, "<p class=\"none\">The first %zu of %zu ranks are drawn.</p>\n", show, n);
}

static void ranks_table(const struct page *p, const struct report_rank *r, size_t n)
{
    fputs("<details><summary>as a "
          "table</summary><table><thead><tr><th>attempt</th><th>rank</th><th>role</th><th>stage</th>"
          "<th>tp</th>",
          p->f);
    for (int k = 0; k < RESULT_SPAN_N; k++) fprintf(p->f, "<th>%s</th>", span_label[k]);
    fputs("<th>first</th><th>last</th></tr></thead><tbody>\n", p->f);
    for (size_t i = 0; i < n; i++) {
        fprintf(p->f, "<tr><td>%d</td><th>%d</th><td>", r[i].attempt, r[i].rank);
        page_text(p->f, r[i].role);
        fprintf(p->f, "</td><td>%d</td><td>%d</td>", r[i].stage, r[i].tp_rank);
        for (int k = 0; k < RESULT_SPAN_N; k++) {
            fputs("<td>", p->f);
            page_number(p, r[i].busy[k], PAGE_SECONDS, "occupancy.%zu.busy_s.%s", i,
                        result_span_name((enum result_span_kind)k));
            fputs("</td>", p->f);
        }
        fputs("<td>", p->f);
        page_number(p, r[i].begin, PAGE_SECONDS, "occupancy.%zu.begin_s", i);
        fputs("</td><td>", p->f);
        page_number(p, r[i].end, PAGE_SECONDS, "occupancy.%zu.end_s", i);
        fputs("</td></tr>\n", p->f);
    }
    fputs("</tbody></table></details>\n", p->f);
}

enum status page_ranks(const struct page *p)
{
    struct report_rank *r = NULL;
    size_t n = 0;
    TRY(report_ranks(p->file[p->at].report, &r, &n));
    fputs("<h3>Pipeline occupancy</h3>\n", p->f);
    if (n == 0)
        fputs("<p class=\"none\">Not recorded: the file has no spans of ranks. A run writes them when it comes to its "
              "end.</p>\n",
              p->f);
    else
        fputs("<p class=\"key\"><i class=\"c-main\"></i>prefill chunk <i class=\"c-wait\"></i>waiting for the stage "
              "before "
              "<i class=\"c-send\"></i>sending state <i class=\"c-start\"></i>taking state <i "
              "class=\"c-decode\"></i>decode "
              "round; right: share of the time at work, waiting left out. Pale: several "
              "stretches with pauses between them</p>\n",
              p->f);
    int drawn_attempts = 0;
    for (size_t i = 0, m; i < n; i += m) {
        for (m = 1; i + m < n && r[i + m].attempt == r[i].attempt;) m++;
        if (++drawn_attempts > ATTEMPTS_DRAWN) {
            fprintf(p->f, "<p class=\"none\">Only %d attempts are drawn.</p>\n", ATTEMPTS_DRAWN);
            break;
        }
        attempt_title(p, r[i].attempt);
        gantt(p, r + i, m);
    }
    if (n) ranks_table(p, r, n);
    mem_free(r);
    return ST_OK;
}
