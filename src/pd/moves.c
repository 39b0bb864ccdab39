#include "pd/moves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"

static const char *const kind_name[MOVE_KIND_N] = {"compute", "pack", "put"};

enum status moves_open(struct ops *o, struct moves *m_p)
{
    *m_p = (struct moves){.o = o};
    m_p->move = mem_alloc(MOVES_MAX, sizeof *m_p->move, "intervals of work");
    return m_p->move ? ST_OK : ST_E_NOMEM;
}

void moves_close(struct moves *m)
{
    if (!m) return;
    mem_free(m->move);
    memset(m, 0, sizeof *m);
}

double moves_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* the device comes to chunks in their order */
static void look(struct moves *m)
{
    for (; m->first_open < m->n; m->first_open++) {
        struct move *x = &m->move[m->first_open];
        if (x->kind != MOVE_COMPUTE) continue;
        x->end_s = m->o->fence_s(m->o, x->fence[1]);
        if (isnan(x->end_s) && m->n - m->first_open < MOVES_MAX / 64) return;
        x->begin_s = m->o->fence_s(m->o, x->fence[0]);
    }
}

void moves_chunk(struct moves *m, int request, int pos, const uint64_t fence[2])
{
    if (!fence[1] || m->n == MOVES_MAX) return;
    m->move[m->n++] = (struct move){MOVE_COMPUTE, request, pos, 0, {fence[0], fence[1]}, NAN, NAN};
    look(m);
}

void moves_add(struct moves *m, enum move_kind kind, int request, int64_t bytes, const double s[2])
{
    if (!m || m->n == MOVES_MAX || isnan(s[0]) || isnan(s[1])) return;
    m->move[m->n++] = (struct move){kind, request, 0, bytes, {0, 0}, s[0], s[1]};
}

static int by_begin(const void *a, const void *b)
{
    const struct move *x = a, *y = b;
    return (x->begin_s > y->begin_s) - (x->begin_s < y->begin_s);
}

/* drop what has no times and sort the rest */
static void settle(struct moves *m)
{
    int n = 0;
    look(m);
    for (int i = 0; i < m->n; i++)
        if (!isnan(m->move[i].begin_s) && !isnan(m->move[i].end_s)) m->move[n++] = m->move[i];
    m->n = m->first_open = n;
    qsort(m->move, (size_t)n, sizeof *m->move, by_begin);
}

/* seconds of x in which a chunk computed; chunks do not overlap one another. *from_p: none before it ends after x begins */
static double inside(const struct moves *m, const struct move *x, int *from_p)
{
    double s = 0;
    for (int i = *from_p; i < m->n && m->move[i].begin_s < x->end_s; i++) {
        const struct move *c = &m->move[i];
        if (c->kind != MOVE_COMPUTE) continue;
        if (c->end_s <= x->begin_s) {
            *from_p = i;
            continue;
        }
        s += fmin(c->end_s, x->end_s) - fmax(c->begin_s, x->begin_s);
    }
    return s;
}

struct moves_sum moves_sum(struct moves *m)
{
    struct moves_sum sum = {0};
    int from = 0;
    settle(m);
    for (int i = 0; i < m->n; i++) {
        const struct move *x = &m->move[i];
        sum.n[x->kind]++;
        sum.bytes[x->kind] += x->bytes;
        sum.s[x->kind] += x->end_s - x->begin_s;
        sum.inside_s[x->kind] += x->kind == MOVE_COMPUTE ? 0 : inside(m, x, &from);
    }
    return sum;
}

void moves_report(struct moves *m)
{
    struct moves_sum s = moves_sum(m);
    if (!m->n) return;
    double pack = s.s[MOVE_PACK], put = s.s[MOVE_PUT];
    log_info("device: %d chunks computed for %.4f s; %d packs of %.2f MiB took %.4f s, %.1f %% of it while a later chunk computed; "
             "%d puts took %.4f s, %.1f %%",
             s.n[MOVE_COMPUTE], s.s[MOVE_COMPUTE], s.n[MOVE_PACK], (double)s.bytes[MOVE_PACK] / 1048576, pack,
             pack > 0 ? 100 * s.inside_s[MOVE_PACK] / pack : 0, s.n[MOVE_PUT], put, put > 0 ? 100 * s.inside_s[MOVE_PUT] / put : 0);
    for (int i = 0; i < m->n; i++) {
        const struct move *x = &m->move[i];
        log_debug("%-7s request %d, %s %lld: %.6f to %.6f s", kind_name[x->kind], x->request,
                  x->kind == MOVE_COMPUTE ? "from row" : "bytes", x->kind == MOVE_COMPUTE ? (long long)x->pos : (long long)x->bytes,
                  x->begin_s - m->move[0].begin_s, x->end_s - m->move[0].begin_s);
    }
}
