/* report_overlap - how much of the transfers' time passes while something is computed: a sweep over the time stamps. */
#include <math.h>
#include <stdlib.h>

#include "base/buf.h"
#include "data/report.h"

/* One end of a span of one request. */
struct edge {
    double at;
    int32_t attempt; /* attempts have clocks of their own */
    size_t row;
    int compute;  /* +1 a compute span begins, -1 it ends, 0: a transfer */
    int transfer; /* likewise */
};

struct sweep {
    const struct results *r;
    struct edge *edge;
    size_t n_edges;
    int *busy;      /* [rows] compute spans of the row that are open */
    size_t *moving; /* rows whose transfer is open */
    size_t n_moving;
    int64_t computing; /* compute spans open, of all rows */
    uint8_t *counted;  /* [rows] its transfer has a part inside the window */
};

static void add_span(struct sweep *s, size_t row, double from, double to, int transfer)
{
    if (!isfinite(from) || !isfinite(to) || from >= to) return;
    int32_t attempt = s->r->row[row].attempt;
    for (int end = 0; end < 2; end++)
        s->edge[s->n_edges++] = (struct edge){end ? to : from, attempt, row,
                                              transfer ? 0
                                              : end    ? -1
                                                       : 1,
                                              transfer ? (end ? -1 : 1) : 0};
}

static int by_time(const void *x, const void *y)
{
    const struct edge *a = x, *b = y;
    if (a->attempt != b->attempt) return a->attempt < b->attempt ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

static void step(struct sweep *s, const struct edge *e)
{
    s->busy[e->row] += e->compute;
    s->computing += e->compute;
    if (e->transfer > 0) s->moving[s->n_moving++] = e->row;
    for (size_t i = 0; e->transfer < 0 && i < s->n_moving; i++)
        if (s->moving[i] == e->row) {
            s->moving[i] = s->moving[--s->n_moving];
            break;
        }
}

/* the stretch [from, to) in which nothing begins or ends */
static void measure(struct sweep *s, double from, double to, struct report_overlap *o)
{
    if (from >= to) return;
    for (size_t i = 0; i < s->n_moving; i++) {
        size_t row = s->moving[i];
        o->transfers += !s->counted[row];
        s->counted[row] = 1;
        o->transfer_s += to - from;
        if (s->computing > 0) o->any_s += to - from;
        if (s->computing > s->busy[row]) o->others_s += to - from;
    }
}

/* steady state of an attempt: both groups have work. Empty when the first decode begins after the last prefill. */
static void window(const struct results *r, int32_t attempt, double *from_p, double *to_p)
{
    *from_p = INFINITY;
    *to_p = -INFINITY;
    for (size_t i = 0; i < r->n; i++) {
        const struct result_timing *t = &r->row[i].timing;
        if (r->row[i].attempt != attempt) continue;
        if (isfinite(t->start) && t->start < *from_p) *from_p = t->start;
        if (isfinite(t->prefill_done) && t->prefill_done > *to_p) *to_p = t->prefill_done;
    }
}

static void run_sweep(struct sweep *s, struct report_overlap *o)
{
    double from = 0, to = 0;
    for (size_t i = 0; i < s->n_edges; i++) {
        const struct edge *e = &s->edge[i], *last = i ? e - 1 : NULL;
        if (!last || last->attempt != e->attempt) {
            window(s->r, e->attempt, &from, &to);
            if (from < to) o->window_s += to - from;
        } else {
            measure(s, fmax(last->at, from), fmin(e->at, to), o);
        }
        step(s, e);
    }
}

enum status report_overlap(const struct results *r, struct report_overlap *o_p)
{
    struct report_overlap o = {0};
    struct sweep s = {.r = r};
    size_t n = r->n;
    s.edge = mem_alloc(6 * n, sizeof *s.edge, "time stamps");
    s.busy = mem_alloc(n, sizeof *s.busy, "busy requests");
    s.moving = mem_alloc(n, sizeof *s.moving, "transfers");
    s.counted = mem_alloc(n, 1, "transfers");
    enum status st = s.edge && s.busy && s.moving && s.counted ? ST_OK : ST_E_NOMEM;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        const struct result_timing *t = &r->row[i].timing;
        add_span(&s, i, t->first_chunk, t->prefill_done, 0);
        add_span(&s, i, t->start, t->end, 0);
        add_span(&s, i, t->transfer_start, t->transfer_done, 1);
    }
    if (st == ST_OK) {
        if (s.n_edges) qsort(s.edge, s.n_edges, sizeof *s.edge, by_time);
        run_sweep(&s, &o);
        *o_p = o;
    }
    mem_free(s.edge);
    mem_free(s.busy);
    mem_free(s.moving);
    mem_free(s.counted);
    return st;
}
