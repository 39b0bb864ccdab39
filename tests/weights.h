/* weights - random weights and inputs for tests and benches of the CPU's linears and experts, and their plain
 * values. */
#ifndef PDFLASH_TESTS_WEIGHTS_H
#define PDFLASH_TESTS_WEIGHTS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "ops/ops.h"

/* a weight matrix [n][k] in file form and in full */
struct weights {
    enum mat_kind kind;
    int n, k;
    uint16_t *bf16;          /* [n][k], BF16 kind */
    uint8_t *packed, *scale; /* [n][k/2], [n][k/32], MXFP4 kind */
    float *value;            /* [n][k] */
};

static inline float weights_bf16_value(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* nearest BF16, ties to even, by comparing the two neighbours in double */
static inline float weights_round_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint16_t lo = (uint16_t)(u >> 16), hi = (uint16_t)(lo + 1);
    double a = weights_bf16_value(lo), b = weights_bf16_value(hi), mid = (a + b) / 2;
    if (fabs((double)f) < fabs(mid)) return (float)a;
    if (fabs((double)f) > fabs(mid)) return (float)b;
    return (lo & 1) ? (float)b : (float)a;
}

/* uniform in [-1, 1) */
static inline float weights_unit(uint64_t stream, uint64_t i)
{
    return (float)(2 * rng_unit(2026, stream, i) - 1);
}

static inline float *weights_inputs(uint64_t stream, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = weights_unit(stream, (uint64_t)i) * (i % 7 == 3 ? 8.0f : 1.0f);
    return x;
}

static inline float weights_fp4_value(int code, int scale)
{
    static const float v[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    double d = ldexp(v[code & 7], scale - 127);
    return (float)(code & 8 ? -d : d);
}

static inline struct weights weights_new(enum mat_kind kind, int n, int k, uint64_t stream)
{
    struct weights w = {.kind = kind, .n = n, .k = k};
    int64_t all = (int64_t)n * k;
    w.value = malloc((size_t)all * sizeof *w.value);
    if (kind == MAT_BF16) {
        w.bf16 = malloc((size_t)all * sizeof *w.bf16);
        for (int64_t i = 0; i < all; i++) {
            uint32_t u;
            float f = weights_unit(stream, (uint64_t)i) * 0.1f;
            memcpy(&u, &f, sizeof u);
            w.bf16[i] = (uint16_t)(u >> 16);
            w.value[i] = weights_bf16_value(w.bf16[i]);
        }
        return w;
    }
    w.packed = malloc((size_t)all / 2);
    w.scale = malloc((size_t)all / 32);
    for (int64_t i = 0; i < all / 2; i++) w.packed[i] = (uint8_t)rng_u64(7, stream, (uint64_t)i);
    for (int64_t i = 0; i < all / 32; i++) w.scale[i] = (uint8_t)(120 + rng_u64(8, stream, (uint64_t)i) % 6);
    for (int64_t i = 0; i < all; i++)
        w.value[i] = weights_fp4_value(w.packed[i / 2] >> (i % 2 * 4) & 15, w.scale[i / 32]);
    return w;
}

static inline void weights_free(struct weights *w)
{
    free(w->bf16);
    free(w->packed);
    free(w->scale);
    free(w->value);
}

/* m := rows [n0, n0 + n) and inputs [k0, k0 + k) of w (MXFP4: k0 a multiple of 32) */
static inline enum status weights_mat(struct ops *o, struct mat *m, const struct weights *w, int n0, int n, int k0,
                                      int k, int leaf, int exact)
{
    TRY(o->mat_new(o, m, w->kind, n, k, leaf, exact));
    if (w->kind == MAT_BF16) o->mat_put_bf16(o, m, 0, n, w->bf16 + (int64_t)n0 * w->k + k0, w->k);
    else
        o->mat_put_mxfp4(o, m, 0, n, w->packed + ((int64_t)n0 * w->k + k0) / 2, w->k / 2,
                         w->scale + ((int64_t)n0 * w->k + k0) / 32, w->k / 32);
    return ST_OK;
}

#endif
