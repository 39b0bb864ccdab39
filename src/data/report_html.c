/* report_html - the page: head, comparison, then each file with its decision, figures, charts, rows and provenance. */
#include <math.h>
#include <string.h>

#include "data/report_page.h"

static const char css[] =
    ":root{--ink:#1c2430;--soft:#5b6675;--rule:#dfe4ea;--main:#2f6db5;--send:#d9822b;--decode:#2e9366;--start:#8b5fbf;"
    "--wait:#c3cad3;--bad:#b3261e;--good:#1d7a46}\n"
    "*{box-sizing:border-box}body{margin:0;background:#f4f6f8;color:var(--ink);font:15px/1.5 system-ui,-apple-system,"
    "'Segoe UI','DejaVu Sans',sans-serif}\n"
    "main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}h1{font-size:26px;margin:0 0 4px}"
    "h2{font-size:21px;margin:0 0 2px;overflow-wrap:anywhere}h3{font-size:17px;margin:34px 0 6px;padding-top:14px;"
    "border-top:1px solid var(--rule)}h4{margin:14px 0 0;font-size:14px;color:var(--soft)}p{margin:4px 0 "
    "10px;max-width:105ch}\n"
    "section{background:#fff;border:1px solid var(--rule);border-radius:10px;padding:22px 24px;margin:22px 0}"
    ".sub{color:var(--soft);overflow-wrap:anywhere}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(185px,1fr));gap:12px;margin:18px 0 4px}"
    ".tile{border:1px solid var(--rule);border-radius:8px;padding:10px 14px}.tile b{display:block;font-size:21px;"
    "font-variant-numeric:tabular-nums;white-space:nowrap}.tile span.l{color:var(--soft);font-size:13px}\n"
    "table{border-collapse:collapse;margin:10px 0;font-size:13.5px;font-variant-numeric:tabular-nums}"
    "th,td{padding:4px 12px;border-bottom:1px solid var(--rule);text-align:right;vertical-align:top}"
    "tbody th,thead th:first-child,td.t{text-align:left}thead th{color:var(--soft);font-weight:600}"
    "thead th[colspan]{text-align:center}"
    "td.t{overflow-wrap:anywhere;max-width:640px;white-space:pre-wrap}.scroll{overflow-x:auto}.wide{display:block;"
    "overflow-x:auto}\n"
    "svg{max-width:100%;height:auto;display:block;margin:6px 0}svg text{font-size:12px;fill:var(--ink)}svg .tick{"
    "fill:var(--soft);font-size:11px}svg .grid{stroke:#e9edf1}svg .axis{stroke:#8a95a3}\n"
    ".two{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:16px}figure{margin:0}"
    "figcaption{color:var(--soft);font-size:13px;text-align:center}\n"
    ".c-main{fill:var(--main);background:var(--main)}.c-send{fill:var(--send);background:var(--send)}"
    ".c-decode{fill:var(--decode);background:var(--decode)}.c-start{fill:var(--start);background:var(--start)}"
    ".c-wait{fill:var(--wait);background:var(--wait)}.c-band{fill:#cfdded;background:#cfdded}"
    ".l-main{fill:none;stroke:var(--main);stroke-width:2}\n"
    ".key i,th i{display:inline-block;width:11px;height:11px;border-radius:2px;margin:0 5px 0 12px}"
    ".key i:first-child{margin-left:0}.key{color:var(--soft);font-size:13.5px}\n"
    ".none{color:var(--soft);font-style:italic}.warn{border-left:4px solid var(--send);padding:4px "
    "12px;background:#fdf5ec}"
    ".bad{color:var(--bad)}.good{color:var(--good)}small{color:var(--soft)}\n"
    ".verdict{border-left:6px solid var(--soft);padding:10px 16px;background:#f4f6f8;margin:16px 0}"
    ".verdict.continue{border-color:var(--good)}.verdict.diagnose{border-color:var(--bad)}"
    ".verdict b.w{font-size:19px;text-transform:uppercase;letter-spacing:.04em}\n"
    "summary{cursor:pointer;color:var(--main);font-size:14px;margin:6px 0}nav a{margin-right:16px}a{color:var(--main)}"
    "code{font-size:12.5px;overflow-wrap:anywhere}\n"
    "@media print{body{background:#fff}section{border:0;padding:0}details{display:none}}\n";

static const char *const series[] = {"#2f6db5", "#d9822b", "#2e9366", "#8b5fbf",
                                     "#b3261e", "#1f9bb0", "#8a6d1f", "#5b6675"};

static void head(const struct page *p)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head><meta charset=\"utf-8\"/>"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>pdflash: ", p->f);
    page_text(p->f, p->file[0].path);
    if (p->n > 1) fprintf(p->f, " and %zu more", p->n - 1);
    fprintf(p->f, "</title>\n<style>%s", css);
    static const char *const dash[] = {"none", "6 6", "2 4"}; /* curves that coincide stay visible */
    for (size_t i = 0; i < sizeof series / sizeof series[0]; i++)
        fprintf(p->f, ".s%zu{fill:%s;background:%s}.t%zu{fill:none;stroke:%s;stroke-width:2;stroke-dasharray:%s}", i,
                series[i], series[i], i, series[i], dash[i % 3]);
    fputs("</style></head>\n<body><main>\n<h1>pdflash report</h1>\n", p->f);
    fprintf(p->f,
            "<p class=\"sub\">%zu result file%s. All figures come from the file%s; what is not there is said to be not "
            "measured or not recorded.</p>\n",
            p->n, p->n > 1 ? "s" : "", p->n > 1 ? "s" : "");
    if (p->n < 2) return;
    fputs("<nav><a href=\"#comparison\">comparison</a>", p->f);
    for (size_t i = 0; i < p->n; i++) {
        fprintf(p->f, "<a href=\"#f%zu\">", i);
        page_text(p->f, p->file[i].path);
        fputs("</a>", p->f);
    }
    fputs("</nav>\n", p->f);
}

/* ---- decision ------------------------------------------------------------------------------------------ */

static void check_row(const struct page *p, const char *name, enum report_check c)
{
    fprintf(p->f, "<tr><th>%s</th><td class=\"t\"><span class=\"%s\">%s</span>", name,
            c == REPORT_HOLDS ? "good" : c == REPORT_FAILS ? "bad" : "none", report_check_name(c));
}

static void figure_row(const struct page *p, const char *name, double v, enum page_unit u, const char *key)
{
    fprintf(p->f, "<tr><th>%s</th><td class=\"t\">", name);
    page_number(p, v, u, "decision.%s", key);
    fputs("</td></tr>\n", p->f);
}

static void decision(const struct page *p)
{
    const struct report_decision *d = p->file[p->at].report->decision;
    if (!d) {
        fputs("<p class=\"none\">No decision: it takes a run to compare with, --reference FILE.</p>\n", p->f);
        return;
    }
    fprintf(p->f, "<div class=\"verdict %s\"><b class=\"w\">%s</b> &#8211; ", report_verdict_name(d->verdict),
            report_verdict_name(d->verdict));
    page_text(p->f, d->why);
    fputs(". Reference: ", p->f);
    page_text(p->f, d->reference);
    fputs("<table><tbody>\n", p->f);
    check_row(p, "whole run", d->whole);
    fputs("</td></tr>\n", p->f);
    check_row(p, "token identity", d->identity);
    if (d->identity != REPORT_NOT_MADE) {
        fputs(": ", p->f);
        page_number(p, (double)d->identical, PAGE_COUNT, "decision.identical");
        fputs(" of ", p->f);
        page_number(p, (double)d->compared, PAGE_COUNT, "decision.compared");
        fputs(" rows", p->f);
        if (d->first_different >= 0) fprintf(p->f, ", first different: question %lld", (long long)d->first_different);
    } else {
        fputs(": ", p->f);
        page_text(p->f, d->note);
    }
    fputs("</td></tr>\n", p->f);
    check_row(p, "train-64", d->train64);
    if (d->train64 != REPORT_NOT_MADE) {
        fputs(": ", p->f);
        page_number(p, (double)d->train_right, PAGE_COUNT, "decision.train_right");
        fputs(" of ", p->f);
        page_number(p, (double)d->train_rows, PAGE_COUNT, "decision.train_rows");
        fputs(" right", p->f);
        if (d->train_cut > 0) fprintf(p->f, "; %lld of the wrong ones were cut off", (long long)d->train_cut);
    } else {
        fputs(": ", p->f);
        page_text(p->f, d->train_note);
    }
    fputs("</td></tr>\n", p->f);
    figure_row(p, "decode gain", d->gain, PAGE_TIMES, "gain");
    figure_row(p, "decode output", d->tps, PAGE_RATE, "output_tps_decode");
    figure_row(p, "of the reference", d->reference_tps, PAGE_RATE, "reference_output_tps_decode");
    figure_row(p, "&#964;", d->accept_length, PAGE_PLAIN, "accept_length");
    figure_row(p, "of the reference", d->reference_accept_length, PAGE_PLAIN, "reference_accept_length");
    fputs("</tbody></table>\n", p->f);
    if (d->caveat[0]) {
        fputs("<p class=\"warn\">The two runs also differ: ", p->f);
        page_text(p->f, d->caveat);
        fputs(".</p>\n", p->f);
    }
    fputs("<p class=\"none\">The rule: correct (whole, no check of the tokens fails, at least one made) and decoding "
          "faster "
          "than the reference: continue with PD tuning. Incorrect or not faster: diagnose the decode side "
          "alone.</p></div>\n",
          p->f);
}

/* ---- figures, phases, rows ----------------------------------------------------------------------------- */

static void tile(const struct page *p, const char *name, double v, enum page_unit u, const char *key)
{
    fputs("<div class=\"tile\"><b>", p->f);
    page_number(p, v, u, "%s", key);
    fprintf(p->f, "</b><span class=\"l\">%s</span></div>\n", name);
}

static void tiles(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    fputs("<div class=\"tiles\">\n", p->f);
    tile(p, "questions", (double)r->questions, PAGE_COUNT, "questions");
    tile(p, "completed (ended by EOS)", (double)r->completed, PAGE_COUNT, "completed");
    tile(p, "truncated by the limit", (double)r->truncated, PAGE_COUNT, "truncated");
    tile(p, "failed or aborted", (double)r->failed, PAGE_COUNT, "failed");
    tile(p, "missing", (double)r->missing, PAGE_COUNT, "missing");
    tile(p, "right under openai's rule", (double)r->correct[GSM8K_OPENAI], PAGE_COUNT, "correct.openai");
    tile(p, "&#964;, tokens a verify step", r->accept_length, PAGE_PLAIN, "accept_length");
    tile(p, "output over decode wall", r->output_tps_decode, PAGE_RATE, "output_tps_decode");
    tile(p, "output tokens", (double)r->output_tokens, PAGE_COUNT, "output_tokens");
    tile(p, "total wall", r->total_s, PAGE_SECONDS, "total_s");
    fputs("</div>\n", p->f);
}

static void phases(const struct page *p)
{
    static const char *const what[REPORT_PHASES] = {
        "admitted to first chunk", "first chunk to last stage done", "first byte to last word", "last word to START",
        "START to last token",     "admitted to first token known",  "admitted to last token"};
    const struct report *r = p->file[p->at].report;
    const struct report_overlap *o = &r->overlap;
    fputs("<h3>Phases of a request</h3>\n<table><thead><tr><th>phase</th><th>requests</th><th>mean</th><th>median</th>"
          "<th>longest</th><th></th></tr></thead><tbody>\n", p->f);
    for (int i = 0; i < REPORT_PHASES; i++) {
        const struct report_phase *f = &r->phase[i];
        fprintf(p->f, "<tr><th>%s</th><td>", f->name);
        page_number(p, (double)f->n, PAGE_COUNT, "phases.%s.requests", f->name);
        fputs("</td><td>", p->f);
        page_number(p, f->mean, PAGE_SECONDS, "phases.%s.mean_s", f->name);
        fputs("</td><td>", p->f);
        page_number(p, f->p50, PAGE_SECONDS, "phases.%s.p50_s", f->name);
        fputs("</td><td>", p->f);
        page_number(p, f->max, PAGE_SECONDS, "phases.%s.max_s", f->name);
        fprintf(p->f, "</td><td class=\"t\"><small>%s</small></td></tr>\n", what[i]);
    }
    fputs("</tbody></table>\n", p->f);
    if (!(o->transfer_s > 0)) {
        fputs("<p class=\"none\">Overlap of transfers with compute: no transfer was measured in steady state.</p>\n",
              p->f);
        return;
    }
    fputs("<p>Overlap in steady state (first decode start to last prefill end, ", p->f);
    page_number(p, o->window_s, PAGE_SECONDS, "overlap.window_s");
    fputs("): ", p->f);
    page_number(p, (double)o->transfers, PAGE_COUNT, "overlap.transfers");
    fputs(" transfers; ", p->f);
    page_number(p, o->any_s / o->transfer_s, PAGE_PERCENT, "overlap.share_any");
    fputs(" of their time while a request computes, ", p->f);
    page_number(p, o->others_s / o->transfer_s, PAGE_PERCENT, "overlap.share_others");
    fputs(" while another one does.</p>\n", p->f);
}

static void unfinished(const struct page *p)
{
    const struct results *r = p->file[p->at].report->results;
    int64_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct result_row *row = &r->row[i];
        if (row->stop == RESULT_EOS) continue;
        if (n++ == 0)
            fputs("<h4>Rows that did not complete</h4><table><thead><tr><th>question</th><th>stop</th><th>tokens</th>"
                  "<th>why</th><th>text</th></tr></thead><tbody>\n", p->f);
        fprintf(p->f, "<tr><th>%lld</th><td>%s</td><td>%d</td><td class=\"t\">", (long long)row->index,
                result_stop_name(row->stop), row->output_tokens);
        page_clip(p->f, row->error ? row->error : "", 400);
        fputs("</td><td class=\"t\">", p->f);
        page_clip(p->f, row->question, 160);
        fputs("</td></tr>\n", p->f);
    }
    if (n) fputs("</tbody></table>\n", p->f);
}

static void one_row(const struct page *p, const struct result_row *row)
{
    int64_t accepted = 0;
    for (int32_t k = 0; k < row->n_rounds; k++) accepted += row->round[k].accepted;
    fprintf(p->f, "<tr><th>%lld</th><td>%s</td><td>%d</td><td>%d</td><td>%d</td><td>", (long long)row->index,
            result_stop_name(row->stop), row->attempt, row->prompt_tokens, row->output_tokens);
    if (row->n_rounds) fprintf(p->f, "%.2f", (double)(accepted + row->n_rounds) / row->n_rounds);
    fputs("</td><td>", p->f);
    if (isfinite(row->timing.end - row->timing.start)) fprintf(p->f, "%.4f", row->timing.end - row->timing.start);
    fputs("</td>", p->f);
    for (int g = 0; g < GSM8K_N; g++) {
        fprintf(p->f, "<td class=\"%s\">", row->grade.correct[g] == 1 ? "good" : "bad");
        page_clip(p->f, row->grade.extracted[g] ? row->grade.extracted[g] : "", 24);
        fputs("</td>", p->f);
    }
    fputs("<td class=\"t\">", p->f);
    page_clip(p->f, row->question, 100);
    fputs("</td></tr>\n", p->f);
}

static void rows(const struct page *p)
{
    const struct results *r = p->file[p->at].report->results;
    fputs("<h3>Rows</h3>\n", p->f);
    if (r->n == 0) fputs("<p class=\"none\">No row was committed.</p>\n", p->f);
    unfinished(p);
    if (r->n == 0) return;
    fprintf(p->f, "<details><summary>all %zu rows</summary><div class=\"scroll\"><table><thead><tr><th>question</th>"
                  "<th>stop</th><th>attempt</th><th>prompt</th><th>output</th><th>&#964;</th><th>decode s</th>", r->n);
    for (int g = 0; g < GSM8K_N; g++) fprintf(p->f, "<th>%s</th>", gsm8k_rule_name((enum gsm8k_rule)g));
    fputs("<th>text</th></tr></thead><tbody>\n", p->f);
    for (size_t i = 0; i < r->n; i++) one_row(p, &r->row[i]);
    fputs("</tbody></table></div></details>\n", p->f);
}

static void provenance(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    struct report_attempt a;
    fputs(
        "<h3>Provenance</h3>\n<table><thead><tr><th>attempt</th><th>rows</th><th>topology</th><th>run</th></tr></thead>"
        "<tbody>\n",
        p->f);
    for (int32_t i = 1; report_attempt(r, i, &a); i++) {
        fprintf(p->f, "<tr><th>%d</th><td>%lld</td><td class=\"t\">", i, (long long)a.rows);
        page_text(p->f, a.topology);
        fputs("</td><td class=\"t\">", p->f);
        page_text(p->f, a.run_id);
        fputs("</td></tr>\n", p->f);
    }
    fputs("</tbody></table>\n<details><summary>all attributes of the file</summary><table><tbody>\n", p->f);
    for (size_t i = 0; i < r->results->n_attrs; i++) {
        char buf[32];
        const char *key = r->results->attr[i].name;
        fputs("<tr><th>", p->f);
        page_text(p->f, key);
        fputs("</th><td class=\"t\"><code>", p->f);
        page_text(p->f, report_attr(r, key, buf, sizeof buf));
        fputs("</code></td></tr>\n", p->f);
    }
    fputs("</tbody></table></details>\n", p->f);
}

static enum status one_file(const struct page *p)
{
    const struct report *r = p->file[p->at].report;
    char buf[32];
    const char *run = report_attr(r, "run_id", buf, sizeof buf);
    fprintf(p->f, "<section id=\"f%zu\"><h2>", p->at);
    page_text(p->f, p->file[p->at].path);
    fputs("</h2>\n<p class=\"sub\">", p->f);
    page_printf(p->f, "run %s, %s, %s, config ", run[0] ? run : "not recorded",
                r->topology[0] ? r->topology : "topology not recorded",
                r->spec[0] ? r->spec : "speculation not recorded");
    page_text(p->f, r->config_hash);
    fprintf(p->f, ", attempt %d, run %s</p>\n", r->results->attempt,
            r->results->complete ? "complete" : "not complete");
    if (r->is_failed_run)
        fputs("<p class=\"warn\"><b class=\"bad\">Failed run: no request was completed.</b></p>\n", p->f);
    else if (!r->results->complete)
        fputs("<p class=\"warn\">The run is not complete: figures are of the rows that are there.</p>\n", p->f);
    decision(p);
    tiles(p);
    page_accuracy(p);
    page_acceptance(p);
    page_throughput(p);
    TRY(page_ranks(p));
    TRY(page_requests(p));
    phases(p);
    page_transfer(p);
    page_memory(p);
    rows(p);
    provenance(p);
    fputs("</section>\n", p->f);
    return ST_OK;
}

enum status report_html(const struct report_file *f, size_t n, FILE *out)
{
    struct page p = {.f = out, .file = f, .n = n};
    head(&p);
    if (n > 1) page_comparison(&p);
    for (p.at = 0; p.at < n; p.at++) TRY(one_file(&p));
    fputs("</main></body>\n</html>\n", out);
    return ST_OK;
}
