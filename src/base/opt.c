#include "base/opt.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *at(const struct opt_row *r, void *base)
{
    return (char *)base + r->offset;
}

static int choice_index(const char *choices, const char *text)
{
    size_t n = strlen(text);
    int i = 0;
    for (const char *c = choices; *c; i++) {
        size_t len = strcspn(c, ",");
        if (len == n && memcmp(c, text, n) == 0) return i;
        c += len + (c[len] == ',');
    }
    return -1;
}

static enum status store_number(const struct opt_row *r, const char *text, void *base)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || errno || isnan(v))
        return ERR(ST_E_USAGE, "--%s: '%s' is not a number", r->name, text);
    if (r->kind == OPT_INT && v != floor(v))
        return ERR(ST_E_USAGE, "--%s: '%s' is not a whole number", r->name, text);
    if (v < r->min || v > r->max)
        return ERR(ST_E_USAGE, "--%s: %s is out of range; allowed %.10g to %.10g", r->name, text, r->min, r->max);
    if (r->kind == OPT_INT)
        *(int *)at(r, base) = (int)v;
    else
        *(double *)at(r, base) = v;
    return ST_OK;
}

/* "$NOTSET" in a script is an empty word, never a name */
static enum status refuse_empty(const struct opt_row *r)
{
    const char *arg = r->arg ? r->arg : "VALUE";
    if (strcmp(arg, "FILE") == 0 || strcmp(arg, "DIR") == 0)
        return ERR(ST_E_USAGE, "--%s is empty; name a %s; an unset shell variable?", r->name,
                   arg[0] == 'F' ? "file" : "directory");
    return ERR(ST_E_USAGE, "--%s is empty; it takes %s; an unset shell variable?", r->name, arg);
}

static enum status store(const struct opt_row *r, const char *text, void *base)
{
    switch (r->kind) {
    case OPT_FLAG:
        *(int *)at(r, base) = text != NULL;
        return ST_OK;
    case OPT_INT:
    case OPT_DOUBLE:
        return store_number(r, text, base);
    case OPT_STR:
        if (!*text) return refuse_empty(r);
        *(const char **)at(r, base) = text;
        return ST_OK;
    case OPT_CHOICE: {
        int i = choice_index(r->choices, text);
        if (i < 0) return ERR(ST_E_USAGE, "--%s: '%s' is unknown; choose one of %s", r->name, text, r->choices);
        *(int *)at(r, base) = i;
        return ST_OK;
    }
    case OPT_LIST: {
        struct opt_list *l = at(r, base);
        if (l->n == OPT_LIST_MAX) return ERR(ST_E_USAGE, "--%s: given more than %d times", r->name, OPT_LIST_MAX);
        l->text[l->n++] = text;
        return ST_OK;
    }
    }
    return ERR(ST_E_INTERNAL, "--%s: unknown kind %d", r->name, (int)r->kind);
}

static enum status set_defaults(const struct opt_row *row, unsigned commands, void *base)
{
    for (; row->name; row++) {
        if (!(row->commands & commands)) continue;
        if (row->def) {
            TRY(store(row, row->def, base));
            continue;
        }
        switch (row->kind) {
        case OPT_FLAG:
        case OPT_INT:
        case OPT_CHOICE: *(int *)at(row, base) = 0; break;
        case OPT_DOUBLE: *(double *)at(row, base) = 0; break;
        case OPT_STR: *(const char **)at(row, base) = NULL; break;
        case OPT_LIST: ((struct opt_list *)at(row, base))->n = 0; break;
        }
    }
    return ST_OK;
}

/* number of single-character edits between two names, for "did you mean" */
static int distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    int d[MAX + 1], n = (int)strlen(a), m = (int)strlen(b);
    if (n > MAX || m > MAX) return MAX;
    for (int j = 0; j <= m; j++) d[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = d[0];
        d[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (d[j] + 1 < best) best = d[j] + 1;
            if (d[j - 1] + 1 < best) best = d[j - 1] + 1;
            diagonal = d[j];
            d[j] = best;
        }
    }
    return d[m];
}

static enum status unknown(const struct opt_row *row, unsigned command, const char *name)
{
    const char *closest = NULL;
    int best = 4;
    for (; row->name; row++) {
        int d = distance(name, row->name);
        if ((row->commands & command) && d < best) {
            best = d;
            closest = row->name;
        }
    }
    if (closest) return ERR(ST_E_USAGE, "--%s: unknown option; did you mean --%s?", name, closest);
    return ERR(ST_E_USAGE, "--%s: unknown option; --help lists what this command takes", name);
}

static const struct opt_row *find(const struct opt_row *row, unsigned command, const char *name)
{
    for (; row->name; row++)
        if ((row->commands & command) && strcmp(row->name, name) == 0) return row;
    return NULL;
}

/* one word of argv that starts with "--"; *used_p: words consumed */
static enum status parse_option(const struct opt_row *row, unsigned command, int argc, char **argv, void *base,
                                const struct opt_row **row_p, const char **value_p, int *used_p)
{
    char name[64];
    const char *word = argv[0] + 2, *value = strchr(word, '=');
    size_t len = value ? (size_t)(value - word) : strlen(word);
    if (len >= sizeof name) return ERR(ST_E_USAGE, "%s: unknown option", argv[0]);
    memcpy(name, word, len);
    name[len] = 0;
    const struct opt_row *r = find(row, command, name);
    if (!r) return unknown(row, command, name);
    *used_p = 1;
    if (value) value++;
    if (r->kind == OPT_FLAG) {
        if (value) return ERR(ST_E_USAGE, "--%s takes no value, got '%s'", name, value);
        value = "1";
    } else if (!value) {
        if (argc < 2) return ERR(ST_E_USAGE, "--%s needs a value (%s)", name, r->arg ? r->arg : "VALUE");
        value = argv[1];
        *used_p = 2;
    }
    *row_p = r;
    *value_p = value;
    return store(r, value, base);
}

/* The later one would win in silence, and which one was meant is not known. given: the value of each row so far. */
static enum status refuse_again(const struct opt_row *r, const char *const *given, const char *value)
{
    if (r->kind == OPT_LIST || !*given) return ST_OK;
    if (r->kind == OPT_FLAG) return ERR(ST_E_USAGE, "--%s is given twice; once is enough", r->name);
    return ERR(ST_E_USAGE, "--%s is given twice, as '%s' and as '%s'; give it once", r->name, *given, value);
}

enum status opt_parse(const struct opt_row *row, unsigned command, int argc, char **argv, void *base,
                      const char **pos, int max_pos, int *n_pos_p)
{
    enum { ROWS_MAX = 256 };
    const char *given[ROWS_MAX] = {NULL};
    int n_pos = 0, n_rows = 0;
    while (row[n_rows].name) n_rows++;
    if (n_rows > ROWS_MAX) return ERR(ST_E_INTERNAL, "%d options; the parser knows %d", n_rows, ROWS_MAX);
    TRY(set_defaults(row, ~command, base)); /* of rows for other commands first: a name may have its own row here */
    TRY(set_defaults(row, command, base));
    for (int i = 0; i < argc;) {
        if (strncmp(argv[i], "--", 2) != 0) {
            if (n_pos == max_pos) return ERR(ST_E_USAGE, "'%s': unexpected word", argv[i]);
            pos[n_pos++] = argv[i++];
            continue;
        }
        const struct opt_row *r = NULL;
        const char *value = NULL;
        int used = 1;
        TRY(parse_option(row, command, argc - i, argv + i, base, &r, &value, &used));
        TRY(refuse_again(r, &given[r - row], value));
        given[r - row] = value;
        i += used;
    }
    for (const struct opt_row *r = row; r->name; r++)
        if ((r->commands & command) && r->required && !given[r - row])
            return ERR(ST_E_USAGE, "--%s %s is required: %s", r->name, r->arg ? r->arg : "", r->help);
    *n_pos_p = n_pos;
    return ST_OK;
}

void opt_help(const struct opt_row *row, unsigned command, FILE *f)
{
    for (; row->name; row++) {
        if (!(row->commands & command)) continue;
        char left[96];
        int n = snprintf(left, sizeof left, "  --%s%s%s", row->name, row->kind == OPT_FLAG ? "" : " ",
                         row->kind == OPT_FLAG     ? ""
                         : row->kind == OPT_CHOICE ? row->choices
                         : row->arg                ? row->arg
                                                   : "VALUE");
        fprintf(f, "%s%*s%s", left, n < 34 ? 34 - n : 2, "", row->help);
        if (row->required)
            fprintf(f, " (required)");
        else if (row->def && row->kind != OPT_FLAG)
            fprintf(f, " (%s)", row->def);
        fputc('\n', f);
    }
}

static const char *choice_text(const struct opt_row *r, int i, char *buf, size_t n)
{
    const char *c = r->choices;
    for (; i > 0 && *c; i--) {
        c += strcspn(c, ",");
        if (*c) c++;
    }
    snprintf(buf, n, "%.*s", (int)strcspn(c, ","), c);
    return buf;
}

const char *opt_text(const struct opt_row *r, const void *base, char *buf, size_t n)
{
    const void *p = (const char *)base + r->offset;
    buf[0] = 0;
    switch (r->kind) {
    case OPT_FLAG:
    case OPT_INT: snprintf(buf, n, "%d", *(const int *)p); break;
    case OPT_DOUBLE: snprintf(buf, n, "%.10g", *(const double *)p); break;
    case OPT_STR: snprintf(buf, n, "%s", *(const char *const *)p ? *(const char *const *)p : ""); break;
    case OPT_CHOICE: choice_text(r, *(const int *)p, buf, n); break;
    case OPT_LIST: {
        const struct opt_list *l = p;
        size_t len = 0;
        for (int i = 0; i < l->n && len < n; i++) {
            int w = snprintf(buf + len, n - len, "%s%s", i ? ";" : "", l->text[i]);
            if (w < 0) break;
            len += (size_t)w;
        }
        break;
    }
    }
    return buf;
}
