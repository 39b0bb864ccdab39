/* report_compare - several files side by side: settings, figures, and three pictures. */
#include <math.h>
#include <string.h>

#include "data/report_page.h"

static const double WIDTH = 1090;
enum { SERIES = 8 }; /* colours; more files share them */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static void heading(const struct page *p)
{
    fputs("<table class=\"wide\"><thead><tr><th></th>", p->f);
    for (size_t i = 0; i < p->n; i++) {
        fprintf(p->f, "<th><i class=\"s%zu\"></i><a href=\"#f%zu\">", i % SERIES, i);
        page_text(p->f, base_name(p->file[i].path));
        fputs("</a></th>", p->f);
    }
    fputs("</tr></thead><tbody>\n", p->f);
}

static void settings(const struct page *p)
{
    static const char *const key[][2] = {{"spec", "speculation"}, {"option_concurrency", "concurrency"},
                                         {"topology", "topology"}, {"option_block", "--block"},
                                         {"option_act", "--act"}, {"option_kv-dtype", "--kv-dtype"},
                                         {"prompts_hash", "prompts"}, {"model_hash", "model"},
                                         {"config_hash", "config hash"}};
    for (size_t k = 0; k < sizeof key / sizeof key[0]; k++) {
        char buf[32];
        fprintf(p->f, "<tr><th>%s</th>", key[k][1]);
        for (size_t i = 0; i < p->n; i++) {
            const char *v = report_attr(p->file[i].report, key[k][0], buf, sizeof buf);
            fputs("<td>", p->f);
            page_clip(p->f, v[0] ? v : "not recorded", 60);
            fputs("</td>", p->f);
        }
        fputs("</tr>\n", p->f);
    }
}

/* a figure of a report: where it lies in the JSON summary, and how to get it */
enum figure {
    F_QUESTIONS, F_COMPLETED, F_TRUNCATED, F_FAILED, F_MISSING, F_RIGHT, F_LOW, F_HIGH, F_TAU, F_EMITTED, F_TOKENS,
    F_DECODE_S, F_TOTAL_S, F_TPS_DECODE, F_TPS_TOTAL, F_N
};
static const struct {
    const char *key, *name;
    enum page_unit unit;
} figure[F_N] = {{"questions", "questions", PAGE_COUNT},
                 {"completed", "completed", PAGE_COUNT},
                 {"truncated", "truncated", PAGE_COUNT},
                 {"failed", "failed", PAGE_COUNT},
                 {"missing", "missing", PAGE_COUNT},
                 {"accuracy.openai.all.rate", "accuracy (openai)", PAGE_PERCENT},
                 {"accuracy.openai.all.wilson95_low", "95 % Wilson, low", PAGE_PERCENT},
                 {"accuracy.openai.all.wilson95_high", "95 % Wilson, high", PAGE_PERCENT},
                 {"accept_length", "\xcf\x84", PAGE_PLAIN},
                 {"emitted_per_step", "emitted a step", PAGE_PLAIN},
                 {"output_tokens", "output tokens", PAGE_COUNT},
                 {"decode_s", "decode wall", PAGE_SECONDS},
                 {"total_s", "total wall", PAGE_SECONDS},
                 {"output_tps_decode", "output / decode wall", PAGE_RATE},
                 {"output_tps_total", "output / total wall", PAGE_RATE}};

static double value(const struct report *r, enum figure f)
{
    double low, high;
    gsm8k_wilson(r->correct[GSM8K_OPENAI], r->questions, &low, &high);
    const double v[F_N] = {(double)r->questions, (double)r->completed, (double)r->truncated, (double)r->failed,
                           (double)r->missing,
                           r->questions > 0 ? (double)r->correct[GSM8K_OPENAI] / (double)r->questions : NAN, low, high,
                           r->accept_length, r->emitted_per_step, (double)r->output_tokens, r->decode_s, r->total_s,
                           r->output_tps_decode, r->output_tps_total};
    return v[f];
}

static void figures(const struct page *p)
{
    for (int k = 0; k < F_N; k++) {
        int rate = figure[k].unit == PAGE_RATE;
        double first = value(p->file[0].report, (enum figure)k);
        fprintf(p->f, "<tr><th>%s</th>", figure[k].name);
        for (size_t i = 0; i < p->n; i++) {
            struct page one = *p;
            double v = value(p->file[i].report, (enum figure)k);
            one.at = i;
            fputs("<td>", p->f);
            page_number(&one, v, figure[k].unit, "%s", figure[k].key);
            if (rate && i > 0 && first > 0 && isfinite(v))
                fprintf(p->f, " <small>%.2f &#215; the first</small>", v / first);
            fputs("</td>", p->f);
        }
        fputs("</tr>\n", p->f);
    }
}

static void identity(const struct page *p)
{
    fputs("<tr><th>same output ids as the first</th><td></td>", p->f);
    for (size_t i = 1; i < p->n; i++) {
        int64_t n, same, first;
        char a[32], b[32];
        const char *x = report_attr(p->file[0].report, "prompts_hash", a, sizeof a),
                   *y = report_attr(p->file[i].report, "prompts_hash", b, sizeof b);
        report_same_tokens(p->file[0].report, p->file[i].report, &n, &same, &first);
        if (!x[0] || strcmp(x, y) != 0)
            fputs("<td class=\"none\">other prompts</td>", p->f);
        else if (first >= 0)
            fprintf(p->f, "<td class=\"bad\">%lld of %lld; first other: %lld</td>", (long long)same, (long long)n,
                    (long long)first);
        else
            fprintf(p->f, "<td>%lld of %lld</td>", (long long)same, (long long)n);
    }
    fputs("</tr>\n", p->f);
}

static void accuracy(const struct page *p)
{
    struct axis x = {0, 1, 190, WIDTH - 90};
    double h = 26 * (double)p->n + 46;
    fputs("<p>Accuracy under openai's rule with 95 % Wilson intervals:</p>\n", p->f);
    svg_open(p->f, WIDTH, h, "accuracy of each file with Wilson intervals");
    svg_axis_x(p->f, &x, h - 38, 4, 10, PAGE_PERCENT, "");
    for (size_t i = 0; i < p->n; i++) {
        const struct report *r = p->file[i].report;
        double y = 18 + 26 * (double)i, low = value(r, F_LOW), high = value(r, F_HIGH), rate = value(r, F_RIGHT);
        char dot[8];
        snprintf(dot, sizeof dot, "s%zu", i % SERIES);
        svg_text(p->f, x.a - 14, y + 4, "end", "lab", "%.26s", base_name(p->file[i].path));
        if (isnan(rate)) continue;
        svg_rect(p->f, axis_at(&x, low), y - 5, axis_at(&x, high) - axis_at(&x, low), 10, "c-band",
                 "95 %% Wilson %.2f to %.2f %%", 100 * low, 100 * high);
        svg_dot(p->f, axis_at(&x, rate), y, 4.5, dot, "%.2f %%", 100 * rate);
        svg_text(p->f, x.b + 12, y + 4, "start", "lab", "%lld of %lld", (long long)r->correct[GSM8K_OPENAI],
                 (long long)r->questions);
    }
    svg_close(p->f);
}

static void rates(const struct page *p)
{
    double most = 0;
    char cls[8], buf[48];
    for (size_t i = 0; i < p->n; i++) most = fmax(most, value(p->file[i].report, F_TPS_DECODE)); /* fmax skips NaN */
    struct axis x = {0, most > 0 ? most : 1, 140, 530 - 120};
    svg_open(p->f, 530, 26 * (double)p->n + 8, "decode output of each file");
    for (size_t i = 0; i < p->n; i++) {
        double v = value(p->file[i].report, F_TPS_DECODE), y = 6 + 26 * (double)i;
        snprintf(cls, sizeof cls, "s%zu", i % SERIES);
        svg_text(p->f, x.a - 10, y + 14, "end", "lab", "%.18s", base_name(p->file[i].path));
        if (isfinite(v)) svg_rect(p->f, x.a, y, axis_at(&x, v) - x.a, 18, cls, "%.6g tokens/s", v);
        svg_text(p->f, (isfinite(v) ? axis_at(&x, v) : x.a) + 8, y + 14, "start", "lab", "%s",
                 page_format(v, PAGE_RATE, buf));
    }
    svg_close(p->f);
}

static void survival(const struct page *p)
{
    int32_t bins = 2;
    int any = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct report *r = p->file[i].report;
        if (r->n_bins > bins) bins = r->n_bins;
        any |= r->n_bins > 1 && r->steps > 0;
    }
    if (!any) return;
    struct axis x = {1, bins > 2 ? bins - 1 : 2, 52, 514}, y = {0, 1, 190, 12};
    int every = bins > 20 ? bins / 16 : 1;
    char cls[16];
    fputs("<figure>", p->f);
    svg_open(p->f, 530, 230, "share of verify steps that accept each position, all files");
    svg_axis_y(p->f, &y, x.a, x.b, 5, PAGE_PERCENT);
    for (int32_t b = 1; b < bins; b += every) svg_text(p->f, axis_at(&x, b), y.a + 15, "middle", "tick", "%d", b);
    for (size_t i = 0; i < p->n; i++) {
        const struct report *r = p->file[i].report;
        snprintf(cls, sizeof cls, "t%zu", i % SERIES);
        if (r->steps == 0 || r->n_bins < 2) continue;
        svg_path_open(p->f, cls);
        for (int32_t b = 0; b + 1 < r->n_bins; b++)
            svg_path_point(p->f, axis_at(&x, b + 1), axis_at(&y, report_accept_at(r, b)));
        svg_path_close(p->f);
    }
    svg_line(p->f, x.a, y.a, x.b, y.a, "axis");
    svg_text(p->f, x.b, 224, "end", "tick", "draft position");
    svg_close(p->f);
    fputs("<figcaption>Acceptance by position</figcaption></figure>", p->f);
}

/* E14 of the acceptance runs: C1 and C8 are one configuration */
static void hashes(const struct page *p)
{
    size_t same = 1;
    while (same < p->n && strcmp(p->file[same].report->config_hash, p->file[0].report->config_hash) == 0) same++;
    if (same == p->n)
        fputs("<p>All files have the same config hash: same model, draft, tokenizer, prompts, and options that change "
              "tokens.</p>\n", p->f);
    else
        fputs("<p class=\"warn\">Config hashes differ: the files are of different configurations, see the settings "
              "below.</p>\n", p->f);
}

void page_comparison(const struct page *p)
{
    fputs("<section id=\"comparison\"><h2>Comparison</h2>\n", p->f);
    hashes(p);
    accuracy(p);
    fputs("<div class=\"two\"><figure>", p->f);
    rates(p);
    fputs("<figcaption>Output tokens over decode wall</figcaption></figure>", p->f);
    survival(p);
    fputs("</div>\n", p->f);
    heading(p);
    figures(p);
    identity(p);
    settings(p);
    fputs(
        "</tbody></table>\n<p>Intervals that overlap mean that a difference in accuracy says nothing; different output "
        "ids under the same configuration say a lot.</p></section>\n",
        p->f);
}
