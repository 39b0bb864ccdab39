/* Routed experts of the CPU backend: values, exactness over rows and ranks, and the golden layer. */
#include "suite.h"

#include <math.h>
#include <stdio.h>

#include "backends.h"
#include "base/buf.h"
#include "ckpt/safetensors.h"
#include "data/h5.h"

const char *const suite_name = "moe";

struct shape {
    int experts, latent, inter, groups, k, t;
    int unused_from; /* experts from here on are never chosen */
};

static const struct shape shapes[] = {
    {4, 32, 32, 1, 2, 3, 4},    {8, 64, 64, 2, 3, 21, 8},  {32, 128, 64, 2, 4, 37, 32}, {12, 96, 128, 4, 5, 9, 7},
    {24, 64, 256, 8, 6, 17, 24}, {5, 32, 64, 2, 5, 6, 5},  {28, 160, 96, 1, 16, 5, 28}, {16, 64, 64, 1, 1, 40, 3},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static const float b1 = 4, b2 = 25;

/* an unsharded layer in file form */
struct layer {
    const struct shape *s;
    struct weights *up, *down; /* [experts]: [2 inter][latent], [latent][inter] */
    float *z, *w;              /* [t][latent], [t][k] */
    int32_t *idx;              /* [t][k] ascending */
};

static struct layer layer_new(int which)
{
    const struct shape *s = &shapes[which];
    struct layer l = {.s = s};
    uint64_t seed = 50 + (uint64_t)which;
    l.up = calloc((size_t)s->experts, sizeof *l.up);
    l.down = calloc((size_t)s->experts, sizeof *l.down);
    for (int e = 0; e < s->experts; e++) {
        l.up[e] = weights_new(MAT_MXFP4, 2 * s->inter, s->latent, seed * 1000 + (uint64_t)e);
        l.down[e] = weights_new(MAT_MXFP4, s->latent, s->inter, seed * 2000 + (uint64_t)e);
    }
    l.z = weights_inputs(seed, (int64_t)s->t * s->latent);
    l.w = malloc((size_t)(s->t * s->k) * sizeof *l.w);
    l.idx = malloc((size_t)(s->t * s->k) * sizeof *l.idx);
    for (int r = 0; r < s->t; r++) {
        int left = s->k, n = s->unused_from;
        for (int e = 0; e < n; e++) /* each subset of k equally likely, ascending */
            if (rng_u64(seed, (uint64_t)r, (uint64_t)e) % (uint64_t)(n - e) < (uint64_t)left)
                l.idx[r * s->k + s->k - left--] = e;
        for (int j = 0; j < s->k; j++) l.w[r * s->k + j] = (float)rng_unit(seed, 9 + (uint64_t)r, (uint64_t)j);
    }
    return l;
}

static void layer_free(struct layer *l)
{
    for (int e = 0; e < l->s->experts; e++) {
        weights_free(&l->up[e]);
        weights_free(&l->down[e]);
    }
    free(l->up), free(l->down), free(l->z), free(l->w), free(l->idx);
}

/* one rank's matrices: experts [e0, e0 + n), columns [c0, c0 + cols) */
struct rank {
    int e0, n, c0, cols;
    struct mat *up, *down;
};

static struct rank rank_new(struct ops *o, const struct layer *l, int e0, int n, int c0, int cols)
{
    struct rank r = {e0, n, c0, cols, calloc((size_t)n, sizeof *r.up), calloc((size_t)n, sizeof *r.down)};
    int k = l->s->latent;
    for (int i = 0; i < n; i++) {
        const struct weights *u = &l->up[e0 + i];
        ck_assert_int_eq(o->mat_new(o, &r.up[i], MAT_MXFP4, 2 * cols, k, 0, 0), ST_OK);
        for (int h = 0; h < 2; h++) {
            int64_t row = h * l->s->inter + c0;
            o->mat_put_mxfp4(o, &r.up[i], h * cols, cols, u->packed + row * k / 2, k / 2, u->scale + row * k / 32,
                             k / 32);
        }
        ck_assert_int_eq(weights_mat(o, &r.down[i], &l->down[e0 + i], 0, k, c0, cols, 0, 0), ST_OK);
    }
    return r;
}

static void rank_free(struct ops *o, struct rank *r)
{
    for (int i = 0; i < r->n; i++) {
        o->mat_free(o, &r->up[i]);
        o->mat_free(o, &r->down[i]);
    }
    free(r->up), free(r->down);
}

static void rank_run(struct ops *o, const struct rank *r, const struct layer *l, int groups, int merge, int row0, int t,
                     float *y, int64_t y_stride)
{
    const struct shape *s = l->s;
    o->moe(o, r->up, r->down, r->e0, r->n, s->experts, l->z + (int64_t)row0 * s->latent, s->latent, r->cols, groups,
           merge, l->idx + row0 * s->k, l->w + row0 * s->k, s->k, b1, b2, t, y, y_stride);
}

static float rounded(const struct ops *o, float x)
{
    return o->act == ACT_BF16 ? weights_round_bf16(x) : x;
}

/* the layer in double for row r and experts [e0, e1); the hidden value is rounded where the backend rounds it.
 * size: the sum of magnitudes, the yardstick of rounding errors. */
static void plain(const struct ops *o, const struct layer *l, int r, int e0, int e1, double *y, double *size)
{
    const struct shape *s = l->s;
    for (int i = 0; i < s->latent; i++) y[i] = size[i] = 0;
    for (int j = 0; j < s->k; j++) {
        int e = l->idx[r * s->k + j];
        if (e < e0 || e >= e1) continue;
        for (int c = 0; c < s->inter; c++) {
            double g = 0, u = 0;
            for (int i = 0; i < s->latent; i++) {
                double x = (double)rounded(o, l->z[(int64_t)r * s->latent + i]);
                g += x * (double)l->up[e].value[(int64_t)c * s->latent + i];
                u += x * (double)l->up[e].value[(int64_t)(s->inter + c) * s->latent + i];
            }
            double h = (double)b1 * tanh(g / (double)b1) / (1 + exp(-g)) * (double)b2 * tanh(u / (double)b2);
            h = (double)rounded(o, (float)h);
            for (int i = 0; i < s->latent; i++) {
                double p = (double)l->w[r * s->k + j] * h * (double)l->down[e].value[(int64_t)i * s->inter + c];
                y[i] += p;
                size[i] += fabs(p);
            }
        }
    }
}

static void check_values(struct ops *o, const struct layer *l, int e0, int n, int which)
{
    const struct shape *s = l->s;
    struct rank k = rank_new(o, l, e0, n, 0, s->inter);
    int64_t part = (int64_t)s->t * s->latent;
    float *y = malloc((size_t)(part * (s->groups + 1)) * sizeof *y), *parts = y + part;
    double *want = malloc((size_t)s->latent * 2 * sizeof *want), *size = want + s->latent;
    for (int64_t i = 0; i < part * (s->groups + 1); i++) y[i] = NAN;
    rank_run(o, &k, l, s->groups, 1, 0, s->t, y, 0);
    rank_run(o, &k, l, s->groups, 0, 0, s->t, parts, part);
    for (int r = 0; r < s->t; r++) {
        plain(o, l, r, e0, e0 + n, want, size);
        for (int i = 0; i < s->latent; i++) {
            double is = (double)y[r * s->latent + i], sum = 0;
            /* bf16: the hidden value may round the other way (2^-8) in a few of many terms */
            double bound = size[i] * (o->act == ACT_BF16 ? 2e-3 : 1e-5);
            for (int g = 0; g < s->groups; g++) sum += (double)parts[g * part + r * s->latent + i];
            if (!(fabs(is - want[i]) <= bound) || !(fabs(sum - want[i]) <= bound))
                ck_abort_msg("%s act %d shape %d experts %d+%d row %d output %d: %.9g (parts %.9g), should be %.9g",
                             o->isa, (int)o->act, which, e0, n, r, i, is, sum, want[i]);
            uint32_t bits;
            memcpy(&bits, &y[r * s->latent + i], 4);
            if (size[i] == 0 && bits != 0) ck_abort_msg("a row without experts is %.9g (%08x), not +0", is, bits);
        }
    }
    free(y), free(want);
    rank_free(o, &k);
}

START_TEST(values_are_right)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            struct layer l = layer_new(i);
            int n = l.s->experts;
            check_values(&o, &l, 0, n, i);
            check_values(&o, &l, n / 4, n / 2, i);
            check_values(&o, &l, n - 1, 1, i);
            layer_free(&l);
        }
}
END_TEST

START_TEST(rows_do_not_depend_on_their_company)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            struct layer l = layer_new(i);
            const struct shape *s = l.s;
            int64_t part = (int64_t)s->t * s->latent;
            struct rank k = rank_new(&o, &l, 0, s->experts, 0, s->inter);
            float *one = malloc((size_t)part * sizeof *one), *y = malloc((size_t)part * sizeof *y);
            for (int r = 0; r < s->t; r++) rank_run(&o, &k, &l, s->groups, 1, r, 1, one + r * s->latent, 0);
            /* scratch grown by single rows: the whole runs in small blocks; then with scratch for all */
            for (int prepared = 0; prepared < 2; prepared++) {
                if (prepared) ck_assert_int_eq(o.prepare(&o, s->t), ST_OK);
                for (int t = 1; t <= s->t; t++) {
                    int r0 = (int)(rng_u64(6, (uint64_t)i, (uint64_t)t) % (uint64_t)(s->t - t + 1));
                    rank_run(&o, &k, &l, s->groups, 1, r0, t, y, 0);
                    expect_same(y, one + r0 * s->latent, (int64_t)t * s->latent, &o, "rows of one call", i * 1000 + t);
                }
            }
            free(one), free(y);
            rank_free(&o, &k);
            layer_free(&l);
        }
}
END_TEST

START_TEST(leaves_are_added_in_the_tree)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            struct layer l = layer_new(i);
            const struct shape *s = l.s;
            int64_t part = (int64_t)s->t * s->latent;
            float *leaf = malloc((size_t)(part * s->experts * s->groups) * sizeof *leaf);
            float *y = malloc((size_t)part * sizeof *y);
            int cols = s->inter / s->groups;
            for (int e = 0; e < s->experts; e++) /* a rank of one expert and one group gives one leaf */
                for (int g = 0; g < s->groups; g++) {
                    struct rank k = rank_new(&o, &l, e, 1, g * cols, cols);
                    rank_run(&o, &k, &l, 1, 1, 0, s->t, leaf + ((int64_t)g * s->experts + e) * part, 0);
                    rank_free(&o, &k);
                }
            for (int64_t j = 0; j < part; j++) {
                for (int g = 0; g < s->groups; g++)
                    leaf[(int64_t)g * s->experts * part + j] =
                        tree_of(leaf + (int64_t)g * s->experts * part + j, part, s->experts);
                leaf[j] = tree_of(leaf + j, s->experts * part, s->groups);
            }
            struct rank k = rank_new(&o, &l, 0, s->experts, 0, s->inter);
            rank_run(&o, &k, &l, s->groups, 1, 0, s->t, y, 0);
            expect_same(y, leaf, part, &o, "tree of leaves", i);
            rank_free(&o, &k);
            free(leaf), free(y);
            layer_free(&l);
        }
}
END_TEST

/* tp ranks over columns x ep ranks over experts; every rank hands in its groups apart (or merged, if it holds
 * all experts), the parts lie in memory rank by rank and are added in the order [block group][ep rank] */
static void check_ranks(struct ops *o, const struct layer *l, int tp, int ep, int merge, const float *whole, int which)
{
    const struct shape *s = l->s;
    int own = s->groups / tp, per = merge ? 1 : own, n = s->experts / ep, cols = s->inter / tp, parts = tp * ep * per;
    int64_t part = (int64_t)s->t * s->latent;
    float *all = malloc((size_t)(parts * part) * sizeof *all);
    int *order = malloc((size_t)parts * sizeof *order);
    for (int m = 0; m < tp; m++)
        for (int p = 0; p < ep; p++) {
            int at = (m * ep + p) * per;
            struct rank k = rank_new(o, l, p * n, n, m * cols, cols);
            for (int64_t i = 0; i < per * part; i++) all[at * part + i] = NAN;
            rank_run(o, &k, l, own, merge, 0, s->t, all + at * part, part);
            rank_free(o, &k);
            for (int g = 0; g < per; g++) order[(m * per + g) * ep + p] = at + g;
        }
    o->tree_add(o, all + order[0] * part, all, part, order, parts, part);
    expect_same(all + order[0] * part, whole, part, o, merge ? "ranks, merged" : "ranks",
                which * 10000 + tp * 100 + ep);
    free(all), free(order);
}

START_TEST(ranks_add_up_to_the_whole)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            struct layer l = layer_new(i);
            const struct shape *s = l.s;
            struct rank k = rank_new(&o, &l, 0, s->experts, 0, s->inter);
            float *whole = malloc((size_t)s->t * (size_t)s->latent * sizeof *whole);
            rank_run(&o, &k, &l, s->groups, 1, 0, s->t, whole, 0);
            for (int tp = 1; tp <= s->groups; tp *= 2) {
                check_ranks(&o, &l, tp, 1, 1, whole, i);
                for (int ep = 1; s->experts % ep == 0 && ep <= 8; ep *= 2) check_ranks(&o, &l, tp, ep, 0, whole, i);
            }
            free(whole);
            rank_free(&o, &k);
            layer_free(&l);
        }
}
END_TEST

START_TEST(order_of_the_choice_does_not_matter)
{
    struct ops o;
    EACH_BACKEND(&o) {
        struct layer l = layer_new(2);
        const struct shape *s = l.s;
        int64_t part = (int64_t)s->t * s->latent;
        struct rank k = rank_new(&o, &l, 0, s->experts, 0, s->inter);
        float *a = malloc((size_t)part * sizeof *a), *b = malloc((size_t)part * sizeof *b);
        rank_run(&o, &k, &l, s->groups, 1, 0, s->t, a, 0);
        for (int r = 0; r < s->t; r++)
            for (int x = r * s->k, z = x + s->k - 1; x < z; x++, z--) {
                int32_t e = l.idx[x];
                float v = l.w[x];
                l.idx[x] = l.idx[z], l.w[x] = l.w[z];
                l.idx[z] = e, l.w[z] = v;
            }
        rank_run(&o, &k, &l, s->groups, 1, 0, s->t, b, 0);
        expect_same(b, a, part, &o, "reversed choice", 0);
        free(a), free(b);
        rank_free(&o, &k);
        layer_free(&l);
    }
}
END_TEST

START_TEST(no_result_is_minus_zero)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int sign = 0; sign < 2; sign++) { /* weights of +-0 make leaves of +-0 of either sign */
            struct layer l = layer_new(1);
            const struct shape *s = l.s;
            int n = s->t * s->latent;
            struct rank k = rank_new(&o, &l, 0, s->experts, 0, s->inter);
            float *y = malloc((size_t)(n * s->groups) * sizeof *y);
            for (int i = 0; i < s->t * s->k; i++) l.w[i] = sign ? -0.0f : 0.0f;
            for (int merge = 0; merge < 2; merge++) {
                rank_run(&o, &k, &l, s->groups, merge, 0, s->t, y, n);
                for (int i = 0; i < n; i++) ck_assert(y[i] == 0 && !signbit(y[i]));
            }
            free(y);
            rank_free(&o, &k);
            layer_free(&l);
        }
}
END_TEST

START_TEST(after_prepare_nothing_is_allocated)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            struct layer l = layer_new(i);
            const struct shape *s = l.s;
            struct rank k = rank_new(&o, &l, 0, s->experts, 0, s->inter);
            float *y = malloc((size_t)s->t * (size_t)s->latent * sizeof *y);
            ck_assert_int_eq(o.prepare(&o, s->t), ST_OK);
            uint64_t before = buf_allocs();
            for (int t = 1; t <= s->t; t++) rank_run(&o, &k, &l, s->groups, 1, 0, t, y, 0);
            ck_assert_uint_eq(buf_allocs(), before);
            free(y);
            rank_free(&o, &k);
            layer_free(&l);
        }
}
END_TEST

/* ---- layer 4 of the fixture ------------------------------------------------------------------- */

enum { HIDDEN = 256, LATENT = 128, INTER = 64, EXPERTS = 32, CHOSEN = 4, SHARED = 128, ROWS = 9 };

static struct tensor get(const struct safetensors *s, const char *name, enum st_dtype dt, int64_t a, int64_t b)
{
    char full[160];
    const int64_t dim[2] = {a, b};
    struct tensor t;
    snprintf(full, sizeof full, "language_model.model.layers.4.block_sparse_moe.%s", name);
    ck_assert_int_eq(safetensors_get(s, full, dt, b ? 2 : 1, dim, &t), ST_OK);
    return t;
}

static struct mat dense(struct ops *o, const struct safetensors *s, const char *name, int n, int k, int exact)
{
    struct mat m = {0};
    struct tensor t = get(s, name, ST_DT_BF16, n, k);
    ck_assert_int_eq(o->mat_new(o, &m, MAT_BF16, n, k, 0, exact), ST_OK);
    o->mat_put_bf16(o, &m, 0, n, t.data, k);
    return m;
}

static void expert(struct ops *o, const struct safetensors *s, int e, const char *name, struct mat *m, int row0, int n,
                   int k)
{
    char packed[96], scale[96];
    snprintf(packed, sizeof packed, "experts.%d.%s.weight_packed", e, name);
    snprintf(scale, sizeof scale, "experts.%d.%s.weight_scale", e, name);
    struct tensor p = get(s, packed, ST_DT_U8, n, k / 2), c = get(s, scale, ST_DT_U8, n, k / 32);
    o->mat_put_mxfp4(o, m, row0, n, p.data, k / 2, c.data, k / 32);
}

static void expect_near(const struct ops *o, const char *what, const float *is, const float *want, int n)
{
    double err = 0, size = 0;
    for (int i = 0; i < n; i++) {
        err += pow((double)is[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    double rel = sqrt(err / size), bound = o->act == ACT_BF16 ? 2e-2 : 2e-6;
    if (!(rel <= bound))
        ck_abort_msg("%s act %d: %s is off by %.3g rms, allowed %.3g", o->isa, (int)o->act, what, rel, bound);
}

static void golden(struct ops *o, const struct safetensors *s, const float *x, const float *want_sum,
                   const float *want_out)
{
    struct mat gate = dense(o, s, "gate.weight", EXPERTS, HIDDEN, 1);
    struct mat down = dense(o, s, "routed_expert_down_proj.weight", LATENT, HIDDEN, 0);
    struct mat up = dense(o, s, "routed_expert_up_proj.weight", HIDDEN, LATENT, 0);
    struct mat sg = dense(o, s, "shared_experts.gate_proj.weight", SHARED, HIDDEN, 0);
    struct mat su = dense(o, s, "shared_experts.up_proj.weight", SHARED, HIDDEN, 0);
    struct mat sd = dense(o, s, "shared_experts.down_proj.weight", HIDDEN, SHARED, 0);
    struct mat e_up[EXPERTS] = {{0}}, e_down[EXPERTS] = {{0}};
    float logits[ROWS * EXPERTS], z[ROWS * LATENT], sum[ROWS * LATENT], w[ROWS * CHOSEN], norm[LATENT];
    float out[ROWS * HIDDEN], mid[ROWS * 2 * SHARED], h[ROWS * SHARED], shared[ROWS * HIDDEN];
    int32_t idx[ROWS * CHOSEN];
    for (int e = 0; e < EXPERTS; e++) {
        ck_assert_int_eq(o->mat_new(o, &e_up[e], MAT_MXFP4, 2 * INTER, LATENT, 0, 0), ST_OK);
        ck_assert_int_eq(o->mat_new(o, &e_down[e], MAT_MXFP4, LATENT, INTER, 0, 0), ST_OK);
        expert(o, s, e, "w1", &e_up[e], 0, INTER, LATENT);
        expert(o, s, e, "w3", &e_up[e], INTER, INTER, LATENT);
        expert(o, s, e, "w2", &e_down[e], 0, LATENT, INTER);
    }
    struct tensor bias = get(s, "gate.e_score_correction_bias", ST_DT_F32, EXPERTS, 0);
    struct tensor nw = get(s, "routed_expert_norm.weight", ST_DT_BF16, LATENT, 0);
    float bias_f[EXPERTS];
    memcpy(bias_f, bias.data, sizeof bias_f);
    for (int i = 0; i < LATENT; i++) {
        uint16_t v;
        memcpy(&v, (const char *)nw.data + 2 * i, 2);
        norm[i] = weights_bf16_value(v);
    }
    o->linear(o, &gate, x, HIDDEN, ROWS, logits, EXPERTS);
    o->route(o, logits, bias_f, EXPERTS, CHOSEN, 1.0f, ROWS, idx, w);
    o->linear(o, &down, x, HIDDEN, ROWS, z, LATENT);
    o->moe(o, e_up, e_down, 0, EXPERTS, EXPERTS, z, LATENT, INTER, 2, 1, idx, w, CHOSEN, b1, b2, ROWS, sum, 0);
    expect_near(o, "sum of the routed experts", sum, want_sum, ROWS * LATENT);
    o->rmsnorm(o, sum, LATENT, norm, 1e-5f, ROWS, LATENT, sum, LATENT);
    o->linear(o, &up, sum, LATENT, ROWS, out, HIDDEN);
    o->linear(o, &sg, x, HIDDEN, ROWS, mid, 2 * SHARED);
    o->linear(o, &su, x, HIDDEN, ROWS, mid + SHARED, 2 * SHARED);
    o->situ(o, mid, 2 * SHARED, b1, b2, ROWS, SHARED, h, SHARED);
    o->linear(o, &sd, h, SHARED, ROWS, shared, HIDDEN);
    o->add(o, out, shared, ROWS * HIDDEN);
    expect_near(o, "layer output", out, want_out, ROWS * HIDDEN);
    struct mat *all[] = {&gate, &down, &up, &sg, &su, &sd};
    for (int i = 0; i < 6; i++) o->mat_free(o, all[i]);
    for (int e = 0; e < EXPERTS; e++) {
        o->mat_free(o, &e_up[e]);
        o->mat_free(o, &e_down[e]);
    }
}

START_TEST(golden_layer)
{
    struct h5 *f;
    struct safetensors *s;
    float *x, *sum, *out;
    int64_t dim[H5_MAX_RANK];
    int rank;
    ck_assert_int_eq(h5_open(suite_path("tests/vectors/ops.h5"), 0, &f), ST_OK);
    ck_assert_int_eq(h5_read_f32(f, "/moe/in", dim, &rank, &x), ST_OK);
    ck_assert(dim[0] == ROWS && dim[1] == HIDDEN);
    ck_assert_int_eq(h5_read_f32(f, "/moe/latent_sum", dim, &rank, &sum), ST_OK);
    ck_assert(dim[0] == ROWS && dim[1] == LATENT);
    ck_assert_int_eq(h5_read_f32(f, "/moe/out", dim, &rank, &out), ST_OK);
    ck_assert(dim[0] == ROWS && dim[1] == HIDDEN);
    ck_assert_int_eq(safetensors_open(suite_path("inputs/k3-nano"), &s), ST_OK);
    struct ops o;
    EACH_BACKEND(&o) golden(&o, s, x, sum, out);
    safetensors_close(s);
    mem_free(x), mem_free(sum), mem_free(out);
    h5_close(f);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "moe", 300);
    SUITE_TEST(tc, values_are_right);
    SUITE_TEST(tc, rows_do_not_depend_on_their_company);
    SUITE_TEST(tc, leaves_are_added_in_the_tree);
    SUITE_TEST(tc, ranks_add_up_to_the_whole);
    SUITE_TEST(tc, order_of_the_choice_does_not_matter);
    SUITE_TEST(tc, no_result_is_minus_zero);
    SUITE_TEST(tc, after_prepare_nothing_is_allocated);
    SUITE_TEST(tc, golden_layer);
}

int main(void)
{
    return suite_main_serial();
}
