#include "data/gzip.h"

#include <string.h>
#include <zlib.h>

#include "base/buf.h"

struct text { /* grows */
    char *p;
    size_t n, room;
};

int gzip_is(const char *p, size_t n)
{
    return n >= 2 && memcmp(p, "\x1f\x8b", 2) == 0;
}

static enum status make_room(struct text *t, size_t most, const char *path)
{
    if (t->n < t->room) return ST_OK;
    if (t->n >= most)
        return ERR(ST_E_FORMAT, "%s: gzip: expands to more than %zu bytes; is it a question file? decompress it first",
                   path, most);
    size_t more = t->room ? t->room * 2 : 1 << 16;
    if (more > most) more = most;
    char *p = mem_grow(t->p, t->n + 1, more + 1, 1, path);
    if (!p) return ST_E_NOMEM;
    t->p = p;
    t->room = more;
    return ST_OK;
}

/* zlib counts in unsigned int */
static uInt piece(size_t n)
{
    return n > 1u << 30 ? 1u << 30 : (uInt)n;
}

static enum status step(z_stream *z, const char *path, const char *end, size_t most, struct text *t, int *over_p)
{
    TRY(make_room(t, most, path));
    z->avail_in = piece((size_t)(end - (const char *)z->next_in));
    z->next_out = (Bytef *)t->p + t->n;
    z->avail_out = piece(t->room - t->n);
    int rc = inflate(z, Z_NO_FLUSH);
    t->n = (size_t)((char *)z->next_out - t->p);
    *over_p = rc == Z_STREAM_END;
    if (rc == Z_OK || rc == Z_STREAM_END) return ST_OK;
    if (rc == Z_MEM_ERROR) return ERR(ST_E_NOMEM, "%s: gzip: out of memory", path);
    if (rc == Z_BUF_ERROR && (const char *)z->next_in == end)
        return ERR(ST_E_FORMAT, "%s: gzip: the file is cut short after %zu bytes of text; get it again", path, t->n);
    return ERR(ST_E_FORMAT, "%s: gzip: damaged after %zu bytes of text: %s; get it again", path, t->n,
               z->msg ? z->msg : zError(rc));
}

/* what follows a member: another one, padding, or what does not belong there */
static enum status next_member(z_stream *z, const char *path, const char *end, int *more_p)
{
    const char *at = (const char *)z->next_in;
    *more_p = gzip_is(at, (size_t)(end - at));
    if (*more_p) return inflateReset(z) == Z_OK ? ST_OK : ERR(ST_E_INTERNAL, "%s: gzip: cannot start anew", path);
    for (const char *p = at; p < end; p++)
        if (*p)
            return ERR(ST_E_FORMAT, "%s: gzip: %zu bytes follow the compressed text; get the file again", path,
                       (size_t)(end - at));
    return ST_OK;
}

enum status gzip_expand(const char *path, const char *p, size_t n, size_t most, char **out_p, size_t *out_n_p)
{
    z_stream z;
    struct text t = {NULL, 0, 0};
    int over = 0, more = 1;
    memset(&z, 0, sizeof z);
    z.next_in = (Bytef *)(uintptr_t)p;
    if (inflateInit2(&z, 15 + 16) != Z_OK) return ERR(ST_E_NOMEM, "%s: gzip: cannot start: out of memory", path);
    enum status st = ST_OK;
    while (st == ST_OK && more) {
        st = step(&z, path, p + n, most, &t, &over);
        if (st == ST_OK && over) st = next_member(&z, path, p + n, &more);
    }
    inflateEnd(&z);
    if (st != ST_OK) {
        mem_free(t.p);
        return st;
    }
    t.p[t.n] = 0;
    *out_p = t.p;
    *out_n_p = t.n;
    return ST_OK;
}
