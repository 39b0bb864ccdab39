#include "cmd/dump.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

struct line { int32_t request, pos; float *row; };

struct dump {
    const char *path;
    const int32_t *prompt_tokens;
    struct line *line;
    size_t n, cap;
    int vocab, lost;
};

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

static enum status write_part(const struct dump *d, const char *path, int prompt)
{
    FILE *f = NULL;
    for (size_t i = 0; i < d->n; i++) {
        const struct line *l = &d->line[i];
        if ((l->pos < d->prompt_tokens[l->request]) != prompt) continue;
        if (!f && !(f = fopen(path, "wb"))) return ERR(ST_E_IO, "%s: cannot write: %s", path, strerror(errno));
        int32_t head[2] = {l->request, l->pos};
        if (fwrite(head, sizeof head, 1, f) != 1 ||
            fwrite(l->row, sizeof *l->row, (size_t)d->vocab, f) != (size_t)d->vocab) {
            fclose(f);
            return ERR(ST_E_IO, "%s: cannot write: %s", path, strerror(errno));
        }
    }
    if (f && fclose(f) != 0) return ERR(ST_E_IO, "%s: cannot write: %s", path, strerror(errno));
    return ST_OK;
}

enum status dump_write(struct dump *d)
{
    char name[4096];
    if (d->lost) return ERR(ST_E_NOMEM, "--dump-logits: not enough memory to keep all rows; use --limit");
    if (d->n) qsort(d->line, d->n, sizeof *d->line, by_position);
    snprintf(name, sizeof name, "%s.prefill", d->path);
    TRY(write_part(d, d->path, 0));
    return write_part(d, name, 1);
}
