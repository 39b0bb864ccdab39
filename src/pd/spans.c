#include "pd/spans.h"

#include <string.h>

#include "base/buf.h"

enum status spans_open(struct spans *s)
{
    memset(s, 0, sizeof *s);
    s->span = mem_alloc(SPANS_MAX, sizeof *s->span, "spans of work");
    return s->span ? ST_OK : ST_E_NOMEM;
}

void spans_close(struct spans *s)
{
    if (!s) return;
    mem_free(s->span);
    memset(s, 0, sizeof *s);
}

/* neighbours of one kind within width_s become one; the order within a kind stays */
static void compact(struct spans *s)
{
    int last[SPAN_KIND_N], n = 0;
    for (int k = 0; k < SPAN_KIND_N; k++) last[k] = -1;
    for (int i = 0; i < s->n; i++) {
        const struct span x = s->span[i];
        struct span *l = last[x.kind] >= 0 ? &s->span[last[x.kind]] : NULL;
        if (l && x.end_s - l->begin_s <= s->width_s) {
            if (x.end_s > l->end_s) l->end_s = x.end_s;
            l->busy_s += x.busy_s;
            l->count += x.count;
            if (l->request != x.request) l->request = -1;
        } else {
            last[x.kind] = n;
            s->span[n++] = x;
        }
    }
    s->n = n;
}

static void make_room(struct spans *s)
{
    for (compact(s); s->n > SPANS_MAX / 2; compact(s)) s->width_s = s->width_s > 0 ? 2 * s->width_s : 1e-6;
}

void spans_add(struct spans *s, enum span_kind kind, int request, double begin_s, double end_s)
{
    if (!s || !s->span || end_s < begin_s) return;
    if (s->n == SPANS_MAX) make_room(s);
    s->span[s->n++] = (struct span){0, (int32_t)kind, request, 1, begin_s, end_s, end_s - begin_s};
}

/* root: counts become bytes and places; an int holds those of 43,000 ranks. Returns the spans of all ranks. */
static size_t layout(int n_ranks, int *bytes, int *at)
{
    size_t total = 0;
    for (int i = 0; i < n_ranks; i++) {
        at[i] = (int)(total * sizeof(struct span));
        total += (size_t)bytes[i];
        bytes[i] *= (int)sizeof(struct span);
    }
    return total;
}

enum status spans_gather(struct world *w, const struct spans *s, int root, struct span **all_p, size_t *n_p)
{
    int n = s && s->span ? s->n : 0, lead = w->rank == root;
    size_t total = 0;
    struct span *all = NULL;
    for (int i = 0; i < n; i++) s->span[i].rank = w->rank;
    int *bytes = mem_alloc((size_t)w->size, sizeof *bytes, "sizes of spans"),
        *at = mem_alloc((size_t)w->size, sizeof *at, "places of spans");
    enum status st = world_agree(w, bytes && at ? ST_OK : ST_E_NOMEM);
    if (st == ST_OK)
        st = mpi_check(MPI_Gather(&n, 1, MPI_INT, bytes, 1, MPI_INT, root, w->all), "MPI_Gather");
    if (st == ST_OK && lead) total = layout(w->size, bytes, at);
    if (st == ST_OK && lead) all = mem_alloc(total + 1, sizeof *all, "spans of all ranks");
    if (st == ST_OK) st = world_agree(w, lead && !all ? ST_E_NOMEM : ST_OK);
    if (st == ST_OK)
        st = mpi_check(MPI_Gatherv(n ? s->span : NULL, n * (int)sizeof(struct span), MPI_BYTE, all, bytes, at,
                                   MPI_BYTE, root, w->all), "MPI_Gatherv");
    mem_free(bytes);
    mem_free(at);
    if (st != ST_OK) {
        mem_free(all);
        return st;
    }
    *all_p = all;
    *n_p = total;
    return ST_OK;
}
