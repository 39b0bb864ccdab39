/* ops_conformance - one table of cases for every operation of ops.h, to compare a backend with the CPU and with itself.
 *
 * A case builds inputs from random numbers that are a function of its parameters, runs the operation on a backend and
 * appends every output to a list of named arrays. It runs three times: on the judge (CPU), on the backend, and on the
 * backend row by row ("split"), where that is the same function; the first two must agree within a relative L2 error,
 * the last two bit for bit. Outputs are NaN before the call. Used by t_cuda_ops (Check) and x_conformance (no library). */
#ifndef PDFLASH_TESTS_OPS_CONFORMANCE_H
#define PDFLASH_TESTS_OPS_CONFORMANCE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "ops/ops.h"
#include "weights.h"

enum { CONF_OUTS = 12, CONF_MEMS = 64, CONF_P = 8 };

struct conf_out {
    const char *name;
    int64_t n;
    float *v;
};

/* one run of a case on one backend */
struct conf {
    struct ops *o;
    const int *p;             /* the case's parameters */
    int split;                /* row by row */
    uint64_t seed;
    struct buf mem[CONF_MEMS];
    int n_mem;
    struct conf_out out[CONF_OUTS];
    int n_out;
};

static inline void conf_ok(enum status st)
{
    if (st == ST_OK) return;
    fprintf(stderr, "conformance: %s\n", err_last());
    abort();
}

/* backend memory, every byte 0xff (a NaN that must be gone) */
static inline void *conf_new(struct conf *c, size_t bytes)
{
    struct buf *b = &c->mem[c->n_mem++];
    void *poison = malloc(bytes + 64);
    conf_ok(c->o->mem_new(c->o, b, bytes + 64, "conformance array"));
    memset(poison, 0xff, bytes + 64);
    c->o->put(c->o, b->p, poison, bytes + 64);
    free(poison);
    return b->p;
}

/* n floats in [lo, hi) on the host: a function of the case and of the order of calls */
static inline float *conf_host(struct conf *c, int64_t n, double lo, double hi)
{
    float *x = malloc((size_t)n * sizeof *x + 64);
    c->seed++;
    for (int64_t i = 0; i < n; i++) x[i] = (float)(lo + (hi - lo) * rng_unit(c->seed, 3, (uint64_t)i));
    return x;
}

static inline float *conf_put(struct conf *c, const float *x, int64_t n)
{
    float *d = conf_new(c, (size_t)n * sizeof *d);
    c->o->put(c->o, d, x, (size_t)n * sizeof *d);
    return d;
}

static inline float *conf_rand(struct conf *c, int64_t n, double lo, double hi)
{
    float *x = conf_host(c, n, lo, hi), *d = conf_put(c, x, n);
    free(x);
    return d;
}

static inline float *conf_nan(struct conf *c, int64_t n)
{
    return conf_new(c, (size_t)n * sizeof(float));
}

/* append n floats of backend memory, or of the host (bytes are compared as floats) */
static inline void conf_out(struct conf *c, const char *name, const void *dev, int64_t n)
{
    struct conf_out *r = &c->out[c->n_out++];
    *r = (struct conf_out){name, n, malloc((size_t)n * sizeof(float))};
    c->o->get(c->o, r->v, dev, (size_t)n * sizeof(float));
}

static inline void conf_out_host(struct conf *c, const char *name, const float *v, int64_t n)
{
    struct conf_out *r = &c->out[c->n_out++];
    *r = (struct conf_out){name, n, malloc((size_t)n * sizeof(float))};
    memcpy(r->v, v, (size_t)n * sizeof(float));
}

static inline void conf_free(struct conf *c)
{
    for (int i = 0; i < c->n_mem; i++) c->o->mem_free(c->o, &c->mem[i]);
    for (int i = 0; i < c->n_out; i++) free(c->out[i].v);
    c->n_mem = c->n_out = 0;
}

/* rows of one call */
static inline int conf_step(const struct conf *c, int t)
{
    return c->split ? 1 : t > 0 ? t : 1;
}

/* ---- sequences ------------------------------------------------------------------------------------------- */

enum { CONF_SEQS = 3 };

struct conf_seqs {
    struct seq_rows s[CONF_SEQS];
    int n, rows;              /* rows: of the batch, one unused row between sequences */
    int32_t *page_id;
    int n_pages;              /* of each sequence */
};

/* n sequences of about `rows` rows at about position pos; scattered pages */
static inline struct conf_seqs conf_seqs(int n, int rows, int pos, int page)
{
    struct conf_seqs q = {.n = n, .n_pages = (pos + 7 * n + rows + n) / page + 2};
    q.page_id = malloc((size_t)(n * q.n_pages) * sizeof *q.page_id);
    for (int i = 0; i < n * q.n_pages; i++) q.page_id[i] = (int32_t)(((int64_t)i * 7 + 3) % (n * q.n_pages));
    for (int i = 0, all = n * q.n_pages; i < all && all % 7 == 0; i++) q.page_id[i] = all - 1 - i;
    for (int i = 0; i < n; i++) {
        q.s[i] = (struct seq_rows){q.rows, rows > i ? rows - i : 1, pos ? pos + 7 * i : 0, q.page_id + i * q.n_pages, NULL};
        q.rows += q.s[i].n_rows + 1;
    }
    return q;
}

/* a pool whose rows [0, end) of every sequence hold random values of the kv type; the rest is poison */
static inline struct paged conf_pool(struct conf *c, const struct conf_seqs *q, int page, int heads, int d, enum ops_kv kv, int end_is_pos0)
{
    size_t elem = kv == OPS_KV_BF16 ? 2 : 4, bytes = (size_t)page * (size_t)(heads * d) * elem;
    struct paged g = {NULL, (int64_t)((bytes + 63) / 64 * 64 + 64), page, kv};
    size_t all = (size_t)g.stride * (size_t)(q->n * q->n_pages);
    char *host = malloc(all);
    memset(host, 0xff, all);
    c->seed++;
    for (int s = 0; s < q->n; s++)
        for (int p = 0; p < q->s[s].pos0 + (end_is_pos0 ? 0 : q->s[s].n_rows); p++)
            for (int e = 0; e < heads * d; e++) {
                size_t at = (size_t)(q->s[s].page_id[p / page]) * (size_t)g.stride +
                            ((size_t)(e / d) * (size_t)(page * d) + (size_t)(p % page * d + e % d)) * elem;
                float v = weights_round_bf16((float)(2 * rng_unit(c->seed, (uint64_t)s, (uint64_t)p * 4096 + (uint64_t)e) - 1));
                if (elem == 4) memcpy(host + at, &v, 4);
                else memcpy(host + at, (char *)&v + 2, 2);
            }
    g.base = conf_new(c, all);
    c->o->put(c->o, g.base, host, all);
    free(host);
    return g;
}

/* ---- comparison -------------------------------------------------------------------------------------------- */

/* ||a - b|| / ||b||; where b is NaN a must be; infinity when one of them has a NaN of its own */
static inline double conf_error(const struct conf_out *a, const struct conf_out *b)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < b->n; i++) {
        if (isnan(b->v[i]) && isnan(a->v[i])) continue;
        if (a->v[i] == b->v[i]) {
            s += isfinite(b->v[i]) ? (double)b->v[i] * b->v[i] : 0;
            continue;
        }
        d += ((double)a->v[i] - b->v[i]) * ((double)a->v[i] - b->v[i]);
        s += (double)b->v[i] * b->v[i];
        if (!(d < 1e300)) return INFINITY;
    }
    return d == 0 ? 0 : sqrt(d / (s > 0 ? s : 1e-300));
}

static inline int64_t conf_bits(const struct conf_out *a, const struct conf_out *b)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < b->n; i++) bad += memcmp(a->v + i, b->v + i, 4) != 0;
    return bad;
}

#include "ops_conformance_cases.h"

struct conf_result {
    double error;             /* worst of its outputs */
    const char *where;
    int64_t bits;             /* elements that differ between the whole and the split run; -1: not split */
};

static inline struct conf_result conf_run(const struct conf_case *k, struct ops *judge, struct ops *o)
{
    struct conf a = {.o = judge, .p = k->p, .seed = 1000}, b = {.o = o, .p = k->p, .seed = 1000}, s = {.o = o, .p = k->p, .seed = 1000, .split = 1};
    struct conf_result r = {0, "", k->split ? 0 : -1};
    k->run(&a);
    k->run(&b);
    if (k->split) k->run(&s);
    for (int i = 0; i < a.n_out; i++) {
        double e = conf_error(&b.out[i], &a.out[i]);
        if (!(e <= r.error)) {
            r.error = e;
            r.where = a.out[i].name;
        }
        if (k->split) r.bits += conf_bits(&s.out[i], &b.out[i]);
    }
    conf_free(&a);
    conf_free(&b);
    conf_free(&s);
    return r;
}

/* what a case may differ by in an act mode */
static inline double conf_limit(const struct conf_case *k, enum ops_act act)
{
    return k->exact ? 0 : k->product && act == ACT_BF16 ? 1e-2 : 1e-5;
}

/* runs every case whose name contains `only` (NULL: all); prints a line each; returns the number of failures */
static inline int conf_all(struct ops *judge, struct ops *o, const char *only)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof conf_cases / sizeof *conf_cases; i++) {
        const struct conf_case *k = &conf_cases[i];
        char text[96];
        int at = 0;
        if (only && !strstr(k->name, only)) continue;
        for (int j = 0; j < CONF_P; j++) at += snprintf(text + at, sizeof text - (size_t)at, " %d", k->p[j]);
        struct conf_result r = conf_run(k, judge, o);
        double limit = conf_limit(k, o->act);
        int bad = !(r.error <= limit) || r.bits > 0;
        printf("%s %-12s act %s %-32s error %.2e (limit %.0e) %s rows %s%lld\n", bad ? "FAIL" : "ok  ", k->name,
               o->act == ACT_BF16 ? "bf16" : "fp32", text, r.error, limit, r.where, r.bits < 0 ? "not split " : "differ ",
               (long long)r.bits);
        fflush(stdout);
        failed += bad;
    }
    return failed;
}

/* Every case inside a region, twice with one key: the same bits as outside. Returns the number of failures. */
static inline int conf_regions(struct ops *o)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof conf_cases / sizeof *conf_cases; i++) {
        const struct conf_case *k = &conf_cases[i];
        struct conf a = {.o = o, .p = k->p, .seed = 1000};
        k->run(&a);
        for (int again = 0; again < 2; again++) {
            struct conf b = {.o = o, .p = k->p, .seed = 1000};
            int64_t bad = 0;
            o->graph_begin(o, i);
            k->run(&b);
            o->graph_end(o);
            for (int j = 0; j < a.n_out; j++) bad += conf_bits(&b.out[j], &a.out[j]);
            if (bad) printf("FAIL %s in region %zu, time %d: %lld elements differ\n", k->name, i, again + 1, (long long)bad);
            failed += bad > 0;
            conf_free(&b);
        }
        conf_free(&a);
    }
    return failed;
}

#endif
