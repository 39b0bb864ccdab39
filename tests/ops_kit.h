/* ops_kit - what the tests of CPU operations share: a backend, random rows, goldens, error measures.
 * Functions assert through Check. */
#ifndef PDFLASH_TESTS_OPS_KIT_H
#define PDFLASH_TESTS_OPS_KIT_H

#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "data/h5.h"
#include "ops/cpu/cpu_ops.h"

#define KIT_UNUSED __attribute__((unused))

/* one backend per test program, opened in each forked test */
KIT_UNUSED static struct ops *kit_ops(void)
{
    static struct ops o;
    if (!o.name) ck_assert_int_eq(ops_cpu_open(ACT_FP32, NULL, &o), ST_OK);
    return &o;
}

/* n floats of which every byte is poison: a quiet NaN that must be gone where an operation writes */
KIT_UNUSED static float *kit_nan(size_t n)
{
    float *p = mem_alloc(n + 1, sizeof *p, "test array");
    ck_assert_ptr_nonnull(p);
    memset(p, 0xff, (n + 1) * sizeof *p);
    return p;
}

/* n uniform floats in [lo, hi), a function of the seed */
KIT_UNUSED static float *kit_rand(uint64_t seed, size_t n, double lo, double hi)
{
    float *p = kit_nan(n);
    for (size_t i = 0; i < n; i++) p[i] = (float)(lo + (hi - lo) * rng_unit(seed, 77, i));
    return p;
}

KIT_UNUSED static float *kit_copy(const float *x, size_t n)
{
    return memcpy(kit_nan(n), x, n * sizeof *x);
}

/* worst |a - b| / max(|b|, rms(b)); NaN anywhere in a gives inf */
KIT_UNUSED static double kit_err(const float *a, const float *b, size_t n)
{
    double ss = 0, worst = 0;
    for (size_t i = 0; i < n; i++) ss += (double)b[i] * b[i];
    double rms = sqrt(ss / (double)(n ? n : 1)) + 1e-300;
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - b[i]) / fmax(fabs((double)b[i]), rms);
        if (!(e <= worst)) worst = e == e ? e : INFINITY;
    }
    return worst;
}

/* the same against double-precision references */
KIT_UNUSED static double kit_errd(const float *a, const double *b, size_t n)
{
    double ss = 0, worst = 0;
    for (size_t i = 0; i < n; i++) ss += b[i] * b[i];
    double rms = sqrt(ss / (double)(n ? n : 1)) + 1e-300;
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - b[i]) / fmax(fabs(b[i]), rms);
        if (!(e <= worst)) worst = e == e ? e : INFINITY;
    }
    return worst;
}

#define KIT_WITHIN(what, err, limit)                                                    \
    do {                                                                                \
        double err_ = (err);                                                            \
        printf("  %-44s %.2e (limit %.0e)\n", what, err_, (double)(limit));             \
        ck_assert_msg(err_ <= (limit), "%s: error %g above %g", what, err_, (double)(limit)); \
    } while (0)

#define KIT_SAME(a, b, n) ck_assert_mem_eq(a, b, (size_t)(n) * sizeof *(a))

/* ---- goldens: tests/vectors/ops.h5 --------------------------------------------------------------- */
KIT_UNUSED static struct h5 *kit_golden(void)
{
    struct h5 *f;
    ck_assert_int_eq(h5_open(suite_path("tests/vectors/ops.h5"), 0, &f), ST_OK);
    return f;
}

/* a dataset of exactly this many elements */
KIT_UNUSED static float *kit_f32(struct h5 *f, const char *group, const char *name, int64_t n)
{
    char path[128];
    int64_t dim[H5_MAX_RANK], have = 1;
    int rank;
    float *p;
    snprintf(path, sizeof path, "/%s/%s", group, name);
    ck_assert_int_eq(h5_read_f32(f, path, dim, &rank, &p), ST_OK);
    for (int i = 0; i < rank; i++) have *= dim[i];
    ck_assert_int_eq(have, n);
    return p;
}

KIT_UNUSED static int32_t *kit_i32(struct h5 *f, const char *group, const char *name, int64_t n)
{
    char path[128];
    int64_t dim[H5_MAX_RANK], have = 1;
    int rank;
    int32_t *p;
    snprintf(path, sizeof path, "/%s/%s", group, name);
    ck_assert_int_eq(h5_read_i32(f, path, dim, &rank, &p), ST_OK);
    for (int i = 0; i < rank; i++) have *= dim[i];
    ck_assert_int_eq(have, n);
    return p;
}

/* ---- pages ------------------------------------------------------------------------------------- */
/* A page pool of n_pages pages of page tokens, items floats or halves per token, every byte poisoned; the
 * physical order of the logical pages is scrambled by the seed. */
struct kit_pool {
    struct paged c;
    int32_t *id;
    int n_pages;
};

KIT_UNUSED static struct kit_pool kit_pool(uint64_t seed, int n_pages, int page, int items, enum ops_kv kv)
{
    struct kit_pool p = {.n_pages = n_pages};
    int64_t bytes = (int64_t)page * items * (kv == OPS_KV_BF16 ? 2 : 4);
    p.c = (struct paged){.stride = (bytes + 63) / 64 * 64 + 128, .page = page, .kv = kv};
    p.c.base = mem_alloc((size_t)(n_pages + 1), (size_t)p.c.stride, "pool");
    p.id = mem_alloc((size_t)n_pages + 1, sizeof *p.id, "page ids");
    ck_assert(p.c.base && p.id);
    memset(p.c.base, 0xff, (size_t)(n_pages + 1) * (size_t)p.c.stride);
    for (int i = 0; i < n_pages; i++) p.id[i] = i;
    for (int i = n_pages - 1; i > 0; i--) {
        int j = (int)(rng_unit(seed, 5, (uint64_t)i) * (i + 1));
        int32_t t = p.id[i];
        p.id[i] = p.id[j];
        p.id[j] = t;
    }
    return p;
}

KIT_UNUSED static void kit_pool_free(struct kit_pool *p)
{
    mem_free(p->c.base);
    mem_free(p->id);
}

/* value of x after storage in the kv type */
KIT_UNUSED static float kit_kv(float x, enum ops_kv kv)
{
    cpu_round_kv(NULL, &x, 1, kv);
    return x;
}

#endif
