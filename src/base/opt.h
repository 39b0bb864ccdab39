/* opt - one option table: parsing, --help, the echoed run header and the result file's attributes.
 *
 * A table is an array of rows ended by a row without name. Values are stored in a caller's struct at the
 * row's offset; defaults are text in the table and go through the same parser. Long options only, as
 * "--name value" or "--name=value". Local. */
#ifndef PDFLASH_BASE_OPT_H
#define PDFLASH_BASE_OPT_H

#include <stddef.h>
#include <stdio.h>

#include "base/err.h"

enum opt_kind {
    OPT_FLAG,   /* int, set to 1; takes no value */
    OPT_INT,    /* int within [min, max] */
    OPT_DOUBLE, /* double within [min, max] */
    OPT_STR,    /* const char *, points into argv or the table */
    OPT_CHOICE, /* int, index into choices */
    OPT_LIST,   /* struct opt_list: may be given more than once */
};

enum { OPT_LIST_MAX = 16 };
struct opt_list { int n; const char *text[OPT_LIST_MAX]; };

struct opt_row {
    const char *name;    /* without dashes */
    enum opt_kind kind;
    size_t offset;
    const char *def;     /* default as text; NULL: required if `required`, else NULL / 0 / empty */
    const char *arg;     /* name of the value in help */
    const char *choices; /* OPT_CHOICE: comma-separated */
    double min, max;     /* OPT_INT, OPT_DOUBLE */
    unsigned commands;   /* bit mask of subcommands that take it; a name has one row for each of them at most */
    int required;
    const char *help;
};

/* opt_parse - defaults, then argv[0 .. argc). Words that are no options go to pos[0 .. *n_pos_p), at most max_pos.
 * Refuses (ST_E_USAGE, naming option and value): unknown option (with the closest known name), missing, empty
 * (OPT_STR) or unwanted value, number out of range, unknown choice, a required option left out, too many words, an option
 * other than OPT_LIST given twice (with both values). ST_E_INTERNAL: more than 256 rows. */
enum status opt_parse(const struct opt_row *row, unsigned command, int argc, char **argv, void *base,
                      const char **pos, int max_pos, int *n_pos_p);
/* opt_help - one aligned line (or more) per option of the command. */
void opt_help(const struct opt_row *row, unsigned command, FILE *f);
/* opt_text - the value of a row as text, as it could be typed; returns buf. */
const char *opt_text(const struct opt_row *row, const void *base, char *buf, size_t n);

#endif
