/* report_csv - one line a committed row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/report.h"

/* a number in the whole of s: "-5" is data, "-5+cmd" is a formula to a spreadsheet */
static int is_number(const char *s)
{
    char *end;
    if (!s[strspn(s, "+-0123456789.,eE")]) {
        strtod(s, &end);
        if (end != s && *end == 0) return 1;
    }
    return s[strspn(s, "-0123456789.,")] == 0 && strspn(s, "-") <= 1;
}

static void text(FILE *out, const char *s)
{
    int formula = s[0] && strchr("=+-@\t\r", s[0]) && !is_number(s);
    if (!formula && !s[strcspn(s, ",\"\n\r")]) {
        fputs(s, out);
        return;
    }
    fputc('"', out);
    if (formula) fputc('\'', out);
    for (; *s; s++) {
        if (*s == '"') fputc('"', out);
        fputc(*s, out);
    }
    fputc('"', out);
}

static void cell(FILE *out, const char *s)
{
    fputc(',', out);
    text(out, s ? s : "");
}

static void integer(FILE *out, int64_t v)
{
    fprintf(out, ",%lld", (long long)v);
}

static void real(FILE *out, double v)
{
    if (isfinite(v))
        fprintf(out, ",%.15g", v);
    else
        fputc(',', out);
}

static void heading(FILE *out)
{
    fputs("file,index,stop_reason,attempt,prompt_tokens,output_tokens,steps,proposed,accepted,emitted,accept_length,"
          "admit_s,first_chunk_s,prefill_done_s,transfer_start_s,transfer_done_s,decode_start_s,first_token_s,end_s",
          out);
    for (int c = 0; c < RESULT_COMP_N; c++) {
        const char *n = result_component_name((enum result_component)c);
        fprintf(out, ",%s_bytes,%s_puts,%s_seconds", n, n, n);
    }
    for (int g = 0; g < GSM8K_N; g++) {
        const char *n = gsm8k_rule_name((enum gsm8k_rule)g);
        fprintf(out, ",%s_correct,%s_extracted", n, n);
    }
    fputs(",error,question,gold,response\n", out);
}

static void acceptance(FILE *out, const struct result_row *row)
{
    int64_t proposed = 0, accepted = 0, emitted = 0;
    for (int32_t i = 0; i < row->n_rounds; i++) {
        proposed += row->round[i].proposed;
        accepted += row->round[i].accepted;
        emitted += row->round[i].emitted;
    }
    integer(out, row->n_rounds);
    integer(out, proposed);
    integer(out, accepted);
    integer(out, emitted);
    real(out, row->n_rounds ? (double)(accepted + row->n_rounds) / row->n_rounds : NAN);
}

static void one_row(FILE *out, const char *path, const struct result_row *row)
{
    const struct result_timing *t = &row->timing;
    const double stamp[] = {t->admit, t->first_chunk, t->prefill_done, t->transfer_start, t->transfer_done, t->start,
                            t->first_token, t->end};
    text(out, path);
    integer(out, row->index);
    cell(out, result_stop_name(row->stop));
    integer(out, row->attempt);
    integer(out, row->prompt_tokens);
    integer(out, row->output_tokens);
    acceptance(out, row);
    for (size_t i = 0; i < sizeof stamp / sizeof stamp[0]; i++) real(out, stamp[i]);
    for (int c = 0; c < RESULT_COMP_N; c++) {
        integer(out, row->transfer[c].bytes);
        integer(out, row->transfer[c].puts);
        real(out, row->transfer[c].seconds);
    }
    for (int g = 0; g < GSM8K_N; g++) {
        integer(out, row->grade.correct[g] == 1);
        cell(out, row->grade.extracted[g]);
    }
    cell(out, row->error);
    cell(out, row->question);
    cell(out, row->gold);
    cell(out, row->response);
    fputc('\n', out);
}

void report_csv(const struct report_file *f, size_t n, FILE *out)
{
    heading(out);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < f[i].report->results->n; k++) one_row(out, f[i].path, &f[i].report->results->row[k]);
}
