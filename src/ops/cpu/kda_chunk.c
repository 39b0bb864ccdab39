#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_math.h"
#include "ops/cpu/cpu_ops.h"

/* The chunked form. A chunk of C rows is cut into tiles of 16. Within tile I, with G the running sum of g:
 *   pre_t = sum of g from the tile's start to t (inclusive), suf_s = sum after s to the tile's end.
 * A product <a_t, b_s> with decay exp(G_t - G_s) uses
 *   same tile:       exp(G_t - G_mid) * exp(G_mid - G_s), at most 8 terms of g each (|.| <= 40 for g >= -5);
 *   earlier tile J:  exp(pre_t) * exp(sum of whole tiles between) * exp(suf_s), all <= 1.
 * All sums are formed outward from their own reference, never as differences of long running sums, so
 * their relative error is that of at most C additions of one sign.
 *   (I + N) D = R solved by substitution, row by row; N and A as in the model notes. */

enum { TILE = 16, MID = 7 };

struct chunk {
    int c, d;                 /* rows of this chunk, head size */
    const float *q, *k, *v;   /* row 0 of the head; row stride ldx */
    int64_t ldx;
    const float *g, *beta;
    int64_t ldg, ldb;
    float *s;                 /* state [d][d] */
    float *out;               /* row 0 of the head, or NULL */
    int64_t ldo;
    /* scratch, all [c][d] unless said */
    float *kp, *km, *qp;      /* k exp(G - mid), k exp(mid - G), q exp(G - mid) */
    float *ki, *qi;           /* k exp(pre), q exp(pre); scaled on to the chunk's start for the state */
    float *ks;                /* k exp(suf); scaled on to the chunk's end for the state */
    float *dv;                /* D */
    float *tot;               /* [tiles][d] sum of g over a tile */
    float *far;               /* [d] decay between two tiles */
    float *tmp;               /* [2][d] */
};

/* row[i] := x[i] * exp(e[i]) */
CPU_CLONES static void chunk_scaled(float *restrict row, const float *restrict x, const float *restrict e, int d)
{
    int i = 0;
    for (; i + CPU_LANES <= d; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) row[i + l] = x[i + l] * cpu_exp(e[i + l]);
    for (; i < d; i++) row[i] = x[i] * cpu_exp(e[i]);
}

CPU_CLONES static float chunk_dot(const float *x, const float *y, int d)
{
    return cpu_dot(x, y, d);
}

CPU_CLONES static void chunk_axpy(float *y, float a, const float *x, int d)
{
    cpu_axpy(y, a, x, d);
}

/* y := sum_i x[i] * s[i][.] */
CPU_CLONES static void chunk_state_read(float *y, const float *x, const float *s, int d)
{
    memset(y, 0, (size_t)d * sizeof *y);
    for (int i = 0; i < d; i++) cpu_axpy(y, x[i], s + (int64_t)i * d, d);
}

/* factors of one tile: rows [t0, t1) of the chunk */
static void tile_factors(const struct chunk *c, int t0, int t1)
{
    int d = c->d, mid = t0 + MID < t1 ? t0 + MID : t1 - 1;
    float *e = c->tmp, *neg = c->tmp + d, *tot = c->tot + (int64_t)(t0 / TILE) * d;
    memset(tot, 0, (size_t)d * sizeof *tot);
    for (int t = t0; t < t1; t++) { /* pre: forward */
        chunk_axpy(tot, 1.0f, c->g + t * c->ldg, d);
        chunk_scaled(c->ki + (int64_t)t * d, c->k + t * c->ldx, tot, d);
        chunk_scaled(c->qi + (int64_t)t * d, c->q + t * c->ldx, tot, d);
    }
    memset(e, 0, (size_t)d * sizeof *e);
    for (int t = t1 - 1; t >= t0; t--) { /* suf: backward */
        chunk_scaled(c->ks + (int64_t)t * d, c->k + t * c->ldx, e, d);
        chunk_axpy(e, 1.0f, c->g + t * c->ldg, d);
    }
    for (int side = 0; side < 2; side++) { /* from the midpoint outward */
        memset(e, 0, (size_t)d * sizeof *e);
        for (int t = side ? mid + 1 : mid; side ? t < t1 : t >= t0; t += side ? 1 : -1) {
            if (side) chunk_axpy(e, 1.0f, c->g + t * c->ldg, d);
            for (int i = 0; i < d; i++) neg[i] = -e[i];
            chunk_scaled(c->kp + (int64_t)t * d, c->k + t * c->ldx, e, d);
            chunk_scaled(c->qp + (int64_t)t * d, c->q + t * c->ldx, e, d);
            chunk_scaled(c->km + (int64_t)t * d, c->k + t * c->ldx, neg, d);
            if (!side) chunk_axpy(e, -1.0f, c->g + t * c->ldg, d);
        }
    }
}

/* far[i] := exp(sum of tot over tiles [j0, j1)) */
static void far_decay(const struct chunk *c, int j0, int j1, float *one)
{
    memset(c->tmp, 0, (size_t)c->d * sizeof *c->tmp);
    for (int j = j0; j < j1; j++) chunk_axpy(c->tmp, 1.0f, c->tot + (int64_t)j * c->d, c->d);
    for (int i = 0; i < c->d; i++) one[i] = 1.0f;
    chunk_scaled(c->far, one, c->tmp, c->d);
}

/* y[i] := a[i] * b[i] */
static void times(float *y, const float *a, const float *b, int d)
{
    for (int i = 0; i < d; i++) y[i] = a[i] * b[i];
}

/* acc[d] += sum over rows s of earlier tiles of <x_t, k_s> D_s, where xi is x_t exp(pre_t) */
static void earlier_tiles(const struct chunk *c, int tile, const float *xi, float *acc)
{
    int d = c->d;
    float *x = c->tmp + d;
    for (int j = 0; j < tile; j++) {
        far_decay(c, j + 1, tile, x);
        times(x, xi, c->far, d);
        for (int s = j * TILE; s < (j + 1) * TILE; s++)
            chunk_axpy(acc, chunk_dot(x, c->ks + (int64_t)s * d, d), c->dv + (int64_t)s * d, d);
    }
}

/* D of row t: R_t minus what the rows before it contribute */
static void solve_row(const struct chunk *c, int tile, int t)
{
    int d = c->d;
    float *dv = c->dv + (int64_t)t * d, *x = c->tmp + d, beta = c->beta[t * c->ldb];
    const float *v = c->v + t * c->ldx;
    far_decay(c, 0, tile, x);
    times(x, c->ki + (int64_t)t * d, c->far, d);
    chunk_state_read(dv, x, c->s, d);
    earlier_tiles(c, tile, c->ki + (int64_t)t * d, dv);
    for (int s = tile * TILE; s < t; s++)
        chunk_axpy(dv, chunk_dot(c->kp + (int64_t)t * d, c->km + (int64_t)s * d, d), c->dv + (int64_t)s * d, d);
    for (int i = 0; i < d; i++) dv[i] = beta * (v[i] - dv[i]);
}

static void out_row(const struct chunk *c, int tile, int t)
{
    int d = c->d;
    float *out = c->out + t * c->ldo, *x = c->tmp + d;
    far_decay(c, 0, tile, x);
    times(x, c->qi + (int64_t)t * d, c->far, d);
    chunk_state_read(out, x, c->s, d);
    earlier_tiles(c, tile, c->qi + (int64_t)t * d, out);
    for (int s = tile * TILE; s <= t; s++)
        chunk_axpy(out, chunk_dot(c->qp + (int64_t)t * d, c->km + (int64_t)s * d, d), c->dv + (int64_t)s * d, d);
}

/* S := diag(exp G_C) S + sum_s (k_s exp(G_C - G_s)) D_s */
static void next_state(const struct chunk *c)
{
    int d = c->d, tiles = (c->c + TILE - 1) / TILE;
    far_decay(c, 0, tiles, c->tmp + d);
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++) c->s[(int64_t)i * d + j] *= c->far[i];
    for (int tile = 0; tile < tiles; tile++) {
        float *x = c->tmp + d;
        far_decay(c, tile + 1, tiles, x);
        for (int s = tile * TILE; s < (tile + 1) * TILE && s < c->c; s++) {
            times(x, c->ks + (int64_t)s * d, c->far, d);
            for (int i = 0; i < d; i++) chunk_axpy(c->s + (int64_t)i * d, x[i], c->dv + (int64_t)s * d, d);
        }
    }
}

static void one_chunk(const struct chunk *c)
{
    for (int t0 = 0; t0 < c->c; t0 += TILE) {
        int t1 = t0 + TILE < c->c ? t0 + TILE : c->c;
        tile_factors(c, t0, t1);
        for (int t = t0; t < t1; t++) solve_row(c, t0 / TILE, t);
        for (int t = t0; c->out && t < t1; t++) out_row(c, t0 / TILE, t);
    }
    next_state(c);
}

/* carve the scratch of a chunk of rows c; 0: no memory */
static int carve(struct ops *o, struct chunk *c, int rows)
{
    size_t n = (size_t)rows * (size_t)c->d, tiles = (size_t)rows / TILE, d = (size_t)c->d;
    float *p = cpu_scratch(o, (7 * n + (tiles + 3) * d) * sizeof *p);
    if (!p) return 0;
    float **part[] = {&c->kp, &c->km, &c->qp, &c->ki, &c->qi, &c->ks, &c->dv};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++, p += n) *part[i] = p;
    c->tot = p;
    c->far = c->tot + tiles * d;
    c->tmp = c->far + d;
    return 1;
}

void cpu_kda_chunk(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                   float *state, int t, int heads, int d, int chunk, float *out, int64_t ldo)
{
    int64_t w = (int64_t)heads * d;
    struct chunk c = {.d = d, .ldx = 3 * w, .ldg = ldg, .ldb = ldb, .ldo = ldo};
    if (!carve(o, &c, chunk)) return;
    for (int h = 0; h < heads; h++) {
        c.s = state + (int64_t)h * d * d;
        for (int t0 = 0; t0 < t; t0 += chunk) {
            c.c = t - t0 < chunk ? t - t0 : chunk;
            c.q = qkv + t0 * c.ldx + (int64_t)h * d;
            c.k = c.q + w;
            c.v = c.k + w;
            c.g = g + t0 * ldg + (int64_t)h * d;
            c.beta = beta + t0 * ldb + h;
            c.out = out ? out + t0 * ldo + (int64_t)h * d : NULL;
            one_chunk(&c);
        }
    }
}
