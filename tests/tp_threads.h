/* tp_threads - a TP group inside one process: a thread per rank, barriers, and the fixed tree on gathered partials.
 * Host memory only. A rank that calls another collective, or other shapes, than its peers gets ST_E_INTERNAL. */
#ifndef PDFLASH_TESTS_TP_THREADS_H
#define PDFLASH_TESTS_TP_THREADS_H

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/comm.h"

enum { TEAM_MAX = 16 };

struct team;
struct team_member {
    struct team *team;
    int rank;
    float *tmp;
    size_t cap;
};
struct team_post { /* what a rank shows the others during a collective */
    const void *x, *y;
    int64_t stride, shape[3];
};
struct team {
    int size;
    pthread_barrier_t bar;
    struct team_post post[TEAM_MAX];
    struct team_member member[TEAM_MAX];
};

static inline enum status team_enter(struct team_member *m, struct team_post p)
{
    struct team *t = m->team;
    t->post[m->rank] = p;
    pthread_barrier_wait(&t->bar);
    int same = 1;
    for (int r = 0; r < t->size; r++) same &= memcmp(t->post[r].shape, p.shape, sizeof p.shape) == 0;
    return same ? ST_OK : ERR(ST_E_INTERNAL, "rank %d: the group's collectives differ", m->rank);
}

static inline void team_leave(struct team_member *m) /* all have read; posts and buffers may change */
{
    pthread_barrier_wait(&m->team->bar);
}

static inline float *team_tmp(struct team_member *m, size_t n)
{
    if (n > m->cap) {
        free(m->tmp);
        m->tmp = malloc(n * sizeof *m->tmp);
        m->cap = n;
    }
    return m->tmp;
}

static inline enum status team_sum(void *ctx, struct ops *o, float *x, int64_t part_stride, int n_parts,
                                   const int *order, int64_t rows, int64_t cols)
{
    struct team_member *m = ctx;
    int64_t n = rows * cols;
    TRY(team_enter(m, (struct team_post){.x = x, .stride = part_stride, .shape = {1, n_parts, n}}));
    float *tmp = team_tmp(m, (size_t)(n * n_parts * m->team->size));
    for (int r = 0; r < m->team->size; r++)
        for (int p = 0; p < n_parts; p++)
            memcpy(tmp + (r * n_parts + p) * n, (const float *)m->team->post[r].x + p * m->team->post[r].stride,
                   (size_t)n * sizeof *tmp);
    team_leave(m);
    o->tree_add(o, x, tmp, n, order, m->team->size * n_parts, n);
    return ST_OK;
}

static inline enum status team_gather_cols(void *ctx, struct ops *o, const float *x, int64_t rows, int64_t cols,
                                           float *y, int root_only)
{
    struct team_member *m = ctx;
    (void)o;
    TRY(team_enter(m, (struct team_post){.x = x, .shape = {2, rows, cols}}));
    for (int64_t i = 0; i < rows && (m->rank == 0 || !root_only); i++)
        for (int r = 0; r < m->team->size; r++)
            memcpy(y + (i * m->team->size + r) * cols, (const float *)m->team->post[r].x + i * cols,
                   (size_t)cols * sizeof *y);
    team_leave(m);
    return ST_OK;
}

static inline enum status team_argmax(void *ctx, float *val, int32_t *id, int rows)
{
    struct team_member *m = ctx;
    TRY(team_enter(m, (struct team_post){.x = val, .y = id, .shape = {3, rows, 0}}));
    float *best = team_tmp(m, 2 * (size_t)rows);
    int32_t *at = (int32_t *)(best + rows);
    for (int i = 0; i < rows; i++) {
        best[i] = -INFINITY;
        at[i] = -1;
        for (int r = 0; r < m->team->size && !isnan(best[i]); r++) {
            float v = ((const float *)m->team->post[r].x)[i];
            if (!isnan(v) && at[i] >= 0 && v <= best[i]) continue; /* ranks hold ascending ids */
            best[i] = v;
            at[i] = isnan(v) ? -1 : ((const int32_t *)m->team->post[r].y)[i];
        }
    }
    team_leave(m);
    memcpy(val, best, (size_t)rows * sizeof *val);
    memcpy(id, at, (size_t)rows * sizeof *id);
    return ST_OK;
}

static inline enum status team_bcast(void *ctx, void *host, size_t bytes)
{
    struct team_member *m = ctx;
    TRY(team_enter(m, (struct team_post){.x = host, .shape = {4, (int64_t)bytes, 0}}));
    if (m->rank > 0) memcpy(host, m->team->post[0].x, bytes);
    team_leave(m);
    return ST_OK;
}

static inline void team_open(struct team *t, int size)
{
    memset(t, 0, sizeof *t);
    t->size = size;
    pthread_barrier_init(&t->bar, NULL, (unsigned)size);
    for (int r = 0; r < size; r++) t->member[r] = (struct team_member){.team = t, .rank = r};
}

static inline void team_close(struct team *t)
{
    for (int r = 0; r < t->size; r++) free(t->member[r].tmp);
    pthread_barrier_destroy(&t->bar);
}

static inline struct tp_comm team_comm(struct team *t, int rank)
{
    return (struct tp_comm){rank, t->size, &t->member[rank], team_sum, team_gather_cols, team_argmax, team_bcast};
}

/* team_run - fn(arg[r]) on a thread per rank */
static inline void team_run(struct team *t, void *(*fn)(void *), void *const *arg)
{
    pthread_t th[TEAM_MAX];
    for (int r = 0; r < t->size; r++) pthread_create(&th[r], NULL, fn, arg[r]);
    for (int r = 0; r < t->size; r++) pthread_join(th[r], NULL);
}

#endif
