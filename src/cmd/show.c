/* show, grade - print what a results.h5 holds. */
#include <stdio.h>

#include "base/buf.h"
#include "cmd/options.h"
#include "data/report.h"

static enum status open_report(enum command cmd, int argc, char **argv, struct options *o, struct results **r_p,
                               struct report *p_p, int *help_p)
{
    const char *pos[1];
    int n = 0;
    TRY(options_parse(cmd, argc, argv, o, pos, 1, &n, help_p));
    if (*help_p) return ST_OK;
    if (n != 1)
        return ERR(ST_E_USAGE, "name the results file: pdflash %s results.h5", cmd == CMD_SHOW ? "show" : "grade");
    TRY(results_load(pos[0], r_p));
    enum status st = report_make(*r_p, p_p);
    if (st != ST_OK) results_free(*r_p);
    return st;
}

static enum status verdict(const struct report *p)
{
    return p->is_failed_run ? ERR(ST_E_INCOMPLETE, "no request was completed: this is a failed run") : ST_OK;
}

enum status cmd_show(int argc, char **argv)
{
    struct options o;
    struct results *r = NULL;
    struct report p;
    int help;
    TRY(open_report(CMD_SHOW, argc, argv, &o, &r, &p, &help));
    if (help) return ST_OK;
    enum status st = ST_OK;
    if (o.json) {
        char *text = NULL;
        st = report_json(&p, &text);
        if (st == ST_OK) puts(text);
        mem_free(text);
    } else {
        report_text(&p, stdout);
    }
    if (st == ST_OK) st = verdict(&p);
    results_free(r);
    return st;
}

enum status cmd_grade(int argc, char **argv)
{
    struct options o;
    struct results *r = NULL;
    struct report p;
    int help;
    TRY(open_report(CMD_GRADE, argc, argv, &o, &r, &p, &help));
    if (help) return ST_OK;
    report_grade(&p, stdout);
    enum status st = verdict(&p);
    results_free(r);
    return st;
}
