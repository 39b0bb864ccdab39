#include "base/buf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t n_allocs;

static void *aligned_zero(size_t bytes)
{
    void *p = NULL;
    size_t rounded = (bytes + 63) / 64 * 64;
    if (rounded < bytes || posix_memalign(&p, 64, rounded) != 0) return NULL;
    memset(p, 0, rounded);
    n_allocs++;
    return p;
}

enum status buf_alloc(struct buf *b, size_t bytes, const char *what)
{
    struct buf out = {NULL, bytes, PLACE_HOST, 0};
    if (bytes > 0) {
        out.p = aligned_zero(bytes);
        if (!out.p) return ERR(ST_E_NOMEM, "%zu bytes for %s: not enough memory", bytes, what);
        out.own = 1;
    }
    *b = out;
    return ST_OK;
}

struct buf buf_view(void *p, size_t bytes, enum place place)
{
    return (struct buf){p, bytes, place, 0};
}

void buf_free(struct buf *b)
{
    if (!b) return;
    int saved = errno;
    if (b->own) free(b->p);
    memset(b, 0, sizeof *b);
    errno = saved;
}

void *mem_alloc(size_t n, size_t size, const char *what)
{
    if (size && n > SIZE_MAX / size) {
        ERR(ST_E_NOMEM, "%zu x %zu bytes for %s: size overflows", n, size, what);
        return NULL;
    }
    size_t bytes = n * size;
    void *p = aligned_zero(bytes ? bytes : 1);
    if (!p) ERR(ST_E_NOMEM, "%zu bytes for %s: not enough memory", bytes, what);
    return p;
}

void *mem_grow(void *p, size_t old_n, size_t new_n, size_t size, const char *what)
{
    void *q = mem_alloc(new_n, size, what);
    if (q && p) memcpy(q, p, old_n * size);
    if (q) mem_free(p);
    return q;
}

void mem_free(void *p)
{
    int saved = errno;
    free(p);
    errno = saved;
}

char *mem_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *d = mem_alloc(n, 1, "a string");
    if (d) memcpy(d, s, n);
    return d;
}

uint64_t buf_allocs(void)
{
    return n_allocs;
}
