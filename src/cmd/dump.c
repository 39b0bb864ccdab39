#include "cmd/dump.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/outfile.h"

struct line { int32_t request, pos; float *row; };

struct dump {
    const char *path;
    const int32_t *prompt_tokens;
    struct line *line;
    size_t n, cap;
    int vocab, lost;
};

/* ---- before the run -------------------------------------------------------------------------------- */

static char *joined(const char *a, const char *b)
{
    size_t n = strlen(a) + strlen(b) + 1;
    char *p = mem_alloc(n, 1, "a path");
    if (p) snprintf(p, n, "%s%s", a, b);
    return p;
}

static enum status differ(const char *path, const char *what, const char *other)
{
    if (!outfile_same(path, other)) return ST_OK;
    return ERR(ST_E_FILE, "--dump-logits: %s would overwrite %s (%s); name another file", path, other, what);
}

/* the directory of a checkpoint, and what links in it lead to */
static enum status not_in(const char *path, const char *option, const char *dir)
{
    if (outfile_in(path, dir))
        return ERR(ST_E_FILE, "--dump-logits: %s lies in the directory of %s (%s); name another file", path, option,
                   dir);
    DIR *d = opendir(dir);
    if (!d) return ST_OK; /* refused when it is read */
    enum status st = ST_OK;
    for (const struct dirent *e; st == ST_OK && (e = readdir(d)) != NULL;) {
        char name[4096];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (snprintf(name, sizeof name, "%s/%s", dir, e->d_name) < (int)sizeof name) st = differ(path, option, name);
    }
    closedir(d);
    return st;
}

static enum status check_file(const char *path, const char *journal, const struct options *o)
{
    struct stat sb;
    TRY(differ(path, "--out", o->out));
    TRY(differ(path, "the journal of --out", journal));
    TRY(differ(path, "--prompts", o->prompts));
    TRY(not_in(path, "--model", o->model));
    if (o->draft) TRY(not_in(path, "--draft", o->draft));
    int there = stat(path, &sb) == 0;
    if (there && S_ISDIR(sb.st_mode)) return ERR(ST_E_FILE, "--dump-logits: %s is a directory; name a file", path);
    if (there && !S_ISREG(sb.st_mode)) return ST_OK; /* a device or a pipe is written as it is */
    if (there && !o->force_new)
        return ERR(ST_E_FILE, "--dump-logits: %s exists; replace it with --force-new, or name another file", path);
    return outfile_check_folder(path, "--dump-logits");
}

enum status dump_check(const struct options *o)
{
    char *prefill = joined(o->dump_logits, ".prefill"), *target = NULL, *journal = NULL;
    enum status st = prefill ? outfile_target(o->out, &target) : ST_E_NOMEM;
    if (st == ST_OK && !(journal = joined(target, ".jsonl"))) st = ST_E_NOMEM;
    if (st == ST_OK) st = check_file(o->dump_logits, journal, o);
    if (st == ST_OK) st = check_file(prefill, journal, o);
    if (st == ST_OK) st = differ(o->dump_logits, "its own second file", prefill);
    mem_free(prefill);
    mem_free(target);
    mem_free(journal);
    return st;
}

/* ---- the rows -------------------------------------------------------------------------------------- */

enum status dump_open(const char *path, const int32_t *prompt_tokens, struct dump **d_p)
{
    struct dump *d = mem_alloc(1, sizeof *d, "logits dump");
    if (!d) return ST_E_NOMEM;
    d->path = path;
    d->prompt_tokens = prompt_tokens;
    *d_p = d;
    return ST_OK;
}

void dump_close(struct dump *d)
{
    if (!d) return;
    for (size_t i = 0; i < d->n; i++) mem_free(d->line[i].row);
    mem_free(d->line);
    mem_free(d);
}

void dump_row(void *ctx, int request, int pos, const float *row, int vocab)
{
    struct dump *d = ctx;
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 1024;
        struct line *l = mem_grow(d->line, d->n, cap, sizeof *l, "logits dump");
        if (!l) {
            d->lost = 1;
            return;
        }
        d->line = l;
        d->cap = cap;
    }
    float *copy = mem_alloc((size_t)vocab, sizeof *copy, "a row of logits");
    if (!copy) {
        d->lost = 1;
        return;
    }
    memcpy(copy, row, (size_t)vocab * sizeof *copy);
    d->vocab = vocab;
    d->line[d->n++] = (struct line){request, pos, copy};
}

static int by_position(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    if (x->request != y->request) return x->request < y->request ? -1 : 1;
    return (x->pos > y->pos) - (x->pos < y->pos);
}

static int write_line(const struct dump *d, const struct line *l, FILE *f)
{
    int32_t head[2] = {l->request, l->pos};
    return fwrite(head, sizeof head, 1, f) == 1 &&
           fwrite(l->row, sizeof *l->row, (size_t)d->vocab, f) == (size_t)d->vocab;
}

/* whole or not at all: a full disk must not leave half a file under the name */
static enum status write_part(const struct dump *d, const char *path, int prompt)
{
    struct outfile f = {0};
    for (size_t i = 0; i < d->n; i++) {
        const struct line *l = &d->line[i];
        if ((l->pos < d->prompt_tokens[l->request]) != prompt) continue;
        if (!f.f) TRY(outfile_open(path, &f));
        if (!write_line(d, l, f.f)) break; /* commit finds it */
    }
    return f.f ? outfile_commit(&f) : ST_OK;
}

enum status dump_write(struct dump *d)
{
    if (d->lost) return ERR(ST_E_NOMEM, "--dump-logits: not enough memory to keep all rows; use --limit");
    if (d->n) qsort(d->line, d->n, sizeof *d->line, by_position);
    char *name = joined(d->path, ".prefill");
    enum status st = name ? write_part(d, d->path, 0) : ST_E_NOMEM;
    if (st == ST_OK) st = write_part(d, name, 1);
    mem_free(name);
    return st;
}
