/* show, grade - print what a results.h5 holds, and write it as page, trace or table. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/outfile.h"
#include "cmd/options.h"
#include "data/report.h"

enum { FILES_MAX = 16 };

struct shown { /* the files of a command line */
    struct options o;
    const char *path[FILES_MAX];
    struct results *results[FILES_MAX], *ref_results;
    struct report report[FILES_MAX], ref_report;
    struct report_reference ref;
    struct report_decision decision[FILES_MAX];
    struct report_file file[FILES_MAX];
    int n;
};

static void shown_close(struct shown *s)
{
    for (int i = 0; i < s->n; i++) results_free(s->results[i]);
    results_free(s->ref_results);
    mem_free(s);
}

static enum status load(const char *path, struct results **r_p, struct report *p_p)
{
    TRY(results_load(path, r_p));
    return report_make(*r_p, p_p);
}

static enum status load_reference(struct shown *s)
{
    const char *path = s->o.reference;
    if (!h5_is_hdf5(path)) return report_external(path, &s->ref);
    TRY(load(path, &s->ref_results, &s->ref_report));
    s->ref = (struct report_reference){path, &s->ref_report, s->ref_report.output_tps_decode,
                                       s->ref_report.accept_length};
    return ST_OK;
}

static enum status shown_load(struct shown *s)
{
    for (int i = 0; i < s->n; i++) {
        TRY(load(s->path[i], &s->results[i], &s->report[i]));
        s->file[i] = (struct report_file){s->path[i], &s->report[i]};
    }
    if (!s->o.reference) return ST_OK;
    TRY(load_reference(s));
    for (int i = 0; i < s->n; i++) {
        report_decide(&s->report[i], &s->ref, &s->decision[i]);
        s->report[i].decision = &s->decision[i];
    }
    return ST_OK;
}

/* ---- files to write ------------------------------------------------------------------------------------ */

enum output { OUT_HTML, OUT_TRACE, OUT_CSV, OUT_N };
static const char *const output_name[OUT_N] = {"html", "trace", "csv"};
/* what each of them has near its beginning, and nobody else's file */
static const char *const output_mark[OUT_N] = {"<title>pdflash: ", "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"file\":",
                                               "file,index,stop_reason,attempt,"};

static const char *output_path(const struct shown *s, enum output k)
{
    const char *const path[OUT_N] = {s->o.html, s->o.trace, s->o.csv};
    return path[k];
}

/* A page, trace or table is written anew over an older one; what else is at path (a journal, questions) is kept. */
static enum status check_replaced(enum output k, const char *path)
{
    char head[512];
    struct stat sb;
    if (stat(path, &sb) != 0 || !S_ISREG(sb.st_mode) || sb.st_size == 0) return ST_OK;
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f) fclose(f);
    head[n] = 0;
    return strstr(head, output_mark[k]) ? ST_OK
                                        : ERR(ST_E_FILE, "--%s %s: exists, and was not written by --%s; name another "
                                              "file or move it away", output_name[k], path, output_name[k]);
}

/* nothing is written before all is known to be well */
static enum status check_outputs(const struct shown *s)
{
    if (s->n > 1 && (s->o.json || s->o.trace))
        return ERR(ST_E_USAGE, "--%s takes one results file, %d are named", s->o.json ? "json" : "trace", s->n);
    for (int k = 0; k < OUT_N; k++) {
        const char *path = output_path(s, (enum output)k);
        if (!path) continue;
        if (strcmp(path, "-") == 0)
            return ERR(ST_E_USAGE, "--%s -: name a file; for standard output /dev/stdout", output_name[k]);
        for (int i = 0; i < k; i++)
            if (output_path(s, (enum output)i) && strcmp(path, output_path(s, (enum output)i)) == 0)
                return ERR(ST_E_USAGE, "--%s and --%s both name %s", output_name[i], output_name[k], path);
        if (s->o.reference && (strcmp(path, s->o.reference) == 0 || outfile_is(path, s->o.reference)))
            return ERR(ST_E_FILE, "--%s %s: is the reference; name another file", output_name[k], path);
        if (h5_is_hdf5(path))
            return ERR(ST_E_FILE, "--%s %s: holds HDF5 data, perhaps results; name another file", output_name[k], path);
        TRY(check_replaced((enum output)k, path));
    }
    return ST_OK;
}

static enum status write_one(const struct shown *s, enum output k, FILE *f)
{
    switch (k) {
    case OUT_HTML: return report_html(s->file, (size_t)s->n, f);
    case OUT_TRACE: return report_trace(s->file, f);
    case OUT_CSV: report_csv(s->file, (size_t)s->n, f); return ST_OK;
    default: return ST_E_INTERNAL;
    }
}

static enum status write_outputs(const struct shown *s)
{
    for (int k = 0; k < OUT_N; k++) {
        struct outfile out;
        const char *path = output_path(s, (enum output)k);
        if (!path) continue;
        TRY(outfile_open(path, &out));
        enum status st = write_one(s, (enum output)k, out.f);
        if (st != ST_OK) {
            outfile_cancel(&out);
            return st;
        }
        TRY(outfile_commit(&out));
        log_info("%s: written", path);
    }
    return ST_OK;
}

/* ---- standard output ----------------------------------------------------------------------------------- */

static enum status print(const struct shown *s)
{
    if (s->o.json) {
        char *text = NULL;
        TRY(report_json(&s->report[0], &text));
        puts(text);
        mem_free(text);
        return ST_OK;
    }
    int files = s->o.html || s->o.trace || s->o.csv;
    for (int i = 0; i < s->n; i++) {
        if (s->n > 1 && (!files || s->o.reference)) printf("%s%s\n", i && !files ? "\n" : "", s->path[i]);
        if (!files) report_text(&s->report[i], stdout);
        if (s->o.reference) report_decision_text(&s->decision[i], stdout);
    }
    return ST_OK;
}

static enum status verdict(const struct report *p)
{
    if (!p->is_failed_run) return ST_OK;
    return ERR(ST_E_INCOMPLETE, "no request was completed: this is a failed run; run --resume tries %s",
               p->failed ? "them again" : "again");
}

static enum status show(struct shown *s)
{
    TRY(check_outputs(s));
    TRY(shown_load(s));
    TRY(write_outputs(s));
    TRY(print(s));
    for (int i = 0; i < s->n; i++) TRY(verdict(&s->report[i]));
    return ST_OK;
}

enum status cmd_show(int argc, char **argv)
{
    int help = 0;
    struct shown *s = mem_alloc(1, sizeof *s, "files to show");
    if (!s) return ST_E_NOMEM;
    enum status st = options_parse(CMD_SHOW, argc, argv, &s->o, s->path, FILES_MAX, &s->n, &help);
    if (st == ST_OK && !help)
        st = s->n > 0 ? show(s) : ERR(ST_E_USAGE, "name the results file: pdflash show results.h5");
    shown_close(s);
    return st;
}

enum status cmd_grade(int argc, char **argv)
{
    struct options o;
    struct results *r = NULL;
    struct report p;
    const char *pos[1];
    int n = 0, help;
    TRY(options_parse(CMD_GRADE, argc, argv, &o, pos, 1, &n, &help));
    if (help) return ST_OK;
    if (n != 1) return ERR(ST_E_USAGE, "name the results file: pdflash grade results.h5");
    enum status st = load(pos[0], &r, &p);
    if (st == ST_OK) {
        report_grade(&p, stdout);
        st = verdict(&p);
    }
    results_free(r);
    return st;
}
