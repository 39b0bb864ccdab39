/* report_occupancy - ranks by what they did, and root attributes as text. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "data/report.h"

static int by_rank(const void *x, const void *y)
{
    const struct report_rank *a = x, *b = y;
    if (a->attempt != b->attempt) return a->attempt < b->attempt ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* spans of a rank lie together, so the search rarely looks further than the last one found */
static struct report_rank *find(struct report_rank *r, size_t n, const struct result_span *s)
{
    for (size_t i = n; i-- > 0;)
        if (r[i].attempt == s->attempt && r[i].rank == s->rank) return &r[i];
    return NULL;
}

enum status report_ranks(const struct report *p, struct report_rank **r_p, size_t *n_p)
{
    const struct results *f = p->results;
    size_t n = 0, room = 0;
    struct report_rank *r = NULL;
    for (size_t i = 0; i < f->n_spans; i++) {
        const struct result_span *s = &f->span[i];
        struct report_rank *x = find(r, n, s);
        if (!x) {
            if (n == room) {
                struct report_rank *more = mem_grow(r, n, 2 * n + 16, sizeof *r, "ranks");
                if (!more) {
                    mem_free(r);
                    return ST_E_NOMEM;
                }
                r = more;
                room = 2 * n + 16;
            }
            x = &r[n++];
            *x = (struct report_rank){.attempt = s->attempt, .rank = s->rank, .stage = s->stage, .tp_rank = s->tp_rank,
                                      .role = s->role, .begin = s->begin, .end = s->end};
        }
        x->spans++;
        x->busy[result_span_kind(s)] += s->busy;
        if (s->begin < x->begin) x->begin = s->begin;
        if (s->end > x->end) x->end = s->end;
    }
    if (n > 1) qsort(r, n, sizeof *r, by_rank);
    *r_p = r;
    *n_p = n;
    return ST_OK;
}

const char *report_attr(const struct report *p, const char *key, char *buf, size_t n)
{
    const struct results *r = p->results;
    for (size_t i = 0; i < r->n_attrs; i++) {
        const struct h5_attr *a = &r->attr[i];
        if (strcmp(a->name, key) != 0) continue;
        if (a->kind == H5_KIND_STR) return a->s;
        if (a->kind == H5_KIND_I64)
            snprintf(buf, n, "%lld", (long long)a->i);
        else
            snprintf(buf, n, "%.10g", a->d);
        return buf;
    }
    return "";
}
