/* Linears of the CPU backend on every instruction set of the machine: values, exactness, trees, packing. */
#include "suite.h"

#include <math.h>
#include <stdio.h>

#include "backends.h"
#include "base/buf.h"
#include "base/log.h"
#include "data/h5.h"

const char *const suite_name = "linear";

struct shape {
    enum mat_kind kind;
    int n, k, leaf, exact;
};

static const struct shape shapes[] = {
    {MAT_BF16, 1, 1, 0, 0},      {MAT_BF16, 7, 3, 0, 0},      {MAT_BF16, 16, 32, 16, 0},  {MAT_BF16, 33, 30, 5, 0},
    {MAT_BF16, 40, 96, 48, 0},   {MAT_BF16, 65, 257, 0, 0},   {MAT_BF16, 17, 256, 16, 0}, {MAT_BF16, 48, 240, 16, 0},
    {MAT_BF16, 80, 768, 256, 0}, {MAT_BF16, 31, 600, 300, 0}, {MAT_BF16, 20, 12, 1, 0},   {MAT_BF16, 100, 514, 257, 0},
    {MAT_BF16, 96, 320, 64, 1},  {MAT_BF16, 32, 256, 0, 1},   {MAT_BF16, 18, 672, 24, 0}, {MAT_BF16, 64, 1024, 32, 0},
    {MAT_MXFP4, 1, 32, 0, 0},    {MAT_MXFP4, 50, 64, 32, 0},  {MAT_MXFP4, 16, 96, 0, 0},  {MAT_MXFP4, 70, 544, 0, 0},
    {MAT_MXFP4, 33, 768, 96, 0}, {MAT_MXFP4, 128, 256, 64, 0}, {MAT_MXFP4, 17, 896, 32, 0},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static float *run(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t)
{
    float *y = calloc((size_t)t * (size_t)m->n, sizeof *y);
    o->linear(o, m, x, ldx, t, y, m->n);
    return y;
}

START_TEST(values_are_right)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            const struct shape *s = &shapes[i];
            struct weights w = weights_new(s->kind, s->n, s->k, (uint64_t)i);
            struct mat m = {0};
            int t = 1 + i % 11, ldx = s->k + i % 3;
            float *x = weights_inputs(100 + (uint64_t)i, (int64_t)t * ldx);
            ck_assert_int_eq(weights_mat(&o, &m, &w, 0, s->n, 0, s->k, s->leaf, s->exact), ST_OK);
            float *y = run(&o, &m, x, ldx, t);
            int rounded = o.act == ACT_BF16 && !s->exact;
            for (int r = 0; r < t; r++)
                for (int j = 0; j < s->n; j++) {
                    double sum = 0, size = 0;
                    for (int k = 0; k < s->k; k++) {
                        float in = x[r * ldx + k];
                        double p =
                            (double)(rounded ? weights_round_bf16(in) : in) * (double)w.value[(int64_t)j * s->k + k];
                        sum += p;
                        size += fabs(p);
                    }
                    /* every product and sum rounds once: at most (k + 2) half units of the sum of magnitudes */
                    double bound = (s->k + 2) * 6e-8 * size + 1e-37, is = (double)y[(int64_t)r * s->n + j];
                    if (!(fabs(is - sum) <= bound))
                        ck_abort_msg("%s act %d shape %d (%d x %d) row %d output %d: %.9g, should be %.9g", o.isa,
                                     (int)o.act, i, s->n, s->k, r, j, is, sum);
                }
            free(y);
            free(x);
            o.mat_free(&o, &m);
            weights_free(&w);
        }
}
END_TEST

START_TEST(rows_do_not_depend_on_their_company)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            const struct shape *s = &shapes[i];
            struct weights w = weights_new(s->kind, s->n, s->k, (uint64_t)i);
            struct mat m = {0};
            enum { MOST = 130 };
            int ldx = s->k + 1;
            float *x = weights_inputs(200 + (uint64_t)i, (int64_t)MOST * ldx);
            ck_assert_int_eq(weights_mat(&o, &m, &w, 0, s->n, 0, s->k, s->leaf, s->exact), ST_OK);
            float *one = malloc((size_t)MOST * (size_t)s->n * sizeof *one);
            for (int r = 0; r < MOST; r++) o.linear(&o, &m, x + r * ldx, ldx, 1, one + r * s->n, s->n);
            for (int t = 1; t <= 41; t++) {
                int many = t == 41 ? MOST : t, r0;
                r0 = (int)(rng_u64(5, (uint64_t)i, (uint64_t)t) % (uint64_t)(MOST + 1 - many));
                float *y = run(&o, &m, x + r0 * ldx, ldx, many);
                expect_same(y, one + r0 * s->n, (int64_t)many * s->n, &o, "rows of one call", i * 1000 + t);
                free(y);
            }
            free(one);
            free(x);
            o.mat_free(&o, &m);
            weights_free(&w);
        }
}
END_TEST

START_TEST(leaves_are_added_in_the_tree)
{
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            const struct shape *s = &shapes[i];
            if (!s->leaf) continue;
            struct weights w = weights_new(s->kind, s->n, s->k, (uint64_t)i);
            int t = 9, leaves = s->k / s->leaf;
            int64_t part = (int64_t)t * s->n;
            float *x = weights_inputs(300 + (uint64_t)i, (int64_t)t * s->k),
                  *leaf = malloc((size_t)(leaves * part) * 4);
            struct mat m = {0};
            for (int l = 0; l < leaves; l++) {
                ck_assert_int_eq(weights_mat(&o, &m, &w, 0, s->n, l * s->leaf, s->leaf, 0, s->exact), ST_OK);
                o.linear(&o, &m, x + l * s->leaf, s->k, t, leaf + l * part, s->n);
                o.mat_free(&o, &m);
            }
            for (int64_t j = 0; j < part; j++) leaf[j] = tree_of(leaf + j, part, leaves);
            ck_assert_int_eq(weights_mat(&o, &m, &w, 0, s->n, 0, s->k, s->leaf, s->exact), ST_OK);
            float *y = run(&o, &m, x, s->k, t);
            expect_same(y, leaf, part, &o, "tree of leaves", i);
            free(y);
            free(leaf);
            free(x);
            o.mat_free(&o, &m);
            weights_free(&w);
        }
}
END_TEST

/* ranks hold k ranges of whole subtrees; tree_add joins them; each range also in two pieces of outputs */
static void shard(struct ops *o, const struct shape *s, const struct weights *w, const float *x, int t, int ranks,
                  int cut, float *parts, const int *order)
{
    int64_t part = (int64_t)t * s->n;
    int k = s->k / ranks;
    for (int r = 0; r < ranks; r++)
        for (int h = 0; h < 2; h++) {
            struct mat m = {0};
            int n0 = h ? cut : 0, n = h ? s->n - cut : cut;
            if (n == 0) continue;
            ck_assert_int_eq(weights_mat(o, &m, w, n0, n, r * k, k, s->leaf, s->exact), ST_OK);
            o->linear(o, &m, x + r * k, s->k, t, parts + order[r] * part + n0, s->n);
            o->mat_free(o, &m);
        }
    o->tree_add(o, parts + order[0] * part, parts, part, order, ranks, part);
}

START_TEST(shards_add_up_to_the_whole)
{
    static const int orders[4][8] = {{0}, {1, 0}, {2, 0, 3, 1}, {7, 6, 0, 1, 4, 5, 3, 2}};
    struct ops o;
    EACH_BACKEND(&o)
        for (int i = 0; i < N_SHAPES; i++) {
            const struct shape *s = &shapes[i];
            struct weights w = weights_new(s->kind, s->n, s->k, (uint64_t)i);
            struct mat m = {0};
            int t = 13;
            float *x = weights_inputs(400 + (uint64_t)i, (int64_t)t * s->k);
            ck_assert_int_eq(weights_mat(&o, &m, &w, 0, s->n, 0, s->k, s->leaf, s->exact), ST_OK);
            float *whole = run(&o, &m, x, s->k, t),
                  *parts = malloc((size_t)8 * (size_t)t * (size_t)s->n * sizeof *parts);
            for (int p = 0; p < 4; p++) {
                int ranks = 1 << p, leaves = s->leaf ? s->k / s->leaf : 1;
                if (leaves % ranks) continue;
                for (int cut = 0; cut <= s->n; cut += s->n < 4 ? 1 : s->n / 3) {
                    shard(&o, s, &w, x, t, ranks, cut, parts, orders[p]);
                    expect_same(parts + orders[p][0] * (int64_t)t * s->n, whole, (int64_t)t * s->n, &o, "shards",
                                i * 100 + ranks);
                }
            }
            free(parts);
            free(whole);
            free(x);
            o.mat_free(&o, &m);
            weights_free(&w);
        }
}
END_TEST

START_TEST(packing_takes_any_order_of_rows_and_the_transpose)
{
    struct ops o;
    EACH_BACKEND(&o) {
        int n = 45, k = 72, leaf = 24, t = 3;
        struct weights w = weights_new(MAT_BF16, n, k, 77), f = weights_new(MAT_MXFP4, n, 96, 78);
        float *x = weights_inputs(500, t * 96);
        uint16_t *turned = malloc((size_t)(n * k + 1) * sizeof *turned);
        char *odd = (char *)turned + 1; /* not aligned */
        for (int r = 0; r < n; r++)
            for (int c = 0; c < k; c++) memcpy(odd + 2 * (c * n + r), w.bf16 + r * k + c, 2);
        struct mat m[4] = {{0}};
        ck_assert_int_eq(weights_mat(&o, &m[0], &w, 0, n, 0, k, leaf, 0), ST_OK);
        ck_assert_int_eq(o.mat_new(&o, &m[1], MAT_BF16, n, k, leaf, 0), ST_OK);
        o.mat_put_bf16_t(&o, &m[1], 20, n - 20, odd + 2 * 20, n);
        o.mat_put_bf16_t(&o, &m[1], 0, 20, odd, n);
        float *a = run(&o, &m[0], x, k, t), *b = run(&o, &m[1], x, k, t);
        expect_same(b, a, t * n, &o, "transposed", 0);
        ck_assert_int_eq(weights_mat(&o, &m[2], &f, 0, n, 0, 96, 0, 0), ST_OK);
        ck_assert_int_eq(o.mat_new(&o, &m[3], MAT_MXFP4, n, 96, 0, 0), ST_OK);
        for (int r = n - 1; r >= 0; r--) o.mat_put_mxfp4(&o, &m[3], r, 1, f.packed + r * 48, 48, f.scale + r * 3, 3);
        float *c = run(&o, &m[2], x, 96, t), *d = run(&o, &m[3], x, 96, t);
        expect_same(d, c, t * n, &o, "row by row", 0);
        for (int i = 0; i < 4; i++) o.mat_free(&o, &m[i]);
        ck_assert_ptr_null(m[0].data.p);
        free(a), free(b), free(c), free(d), free(x), free(turned);
        weights_free(&w), weights_free(&f);
    }
}
END_TEST

/* weights read back through the unit matrix: y[i][r] = w[r][i] */
static float *read_back(struct ops *o, const struct mat *m)
{
    float *x = calloc((size_t)m->k * (size_t)m->k, sizeof *x);
    for (int i = 0; i < m->k; i++) x[(int64_t)i * m->k + i] = 1.0f;
    float *y = run(o, m, x, m->k, m->k);
    free(x);
    return y;
}

START_TEST(every_code_times_every_scale_is_exact)
{
    struct ops o;
    EACH_BACKEND(&o) {
        uint8_t packed[16 * 16], scale[16];
        for (int base = 0; base < 256; base++) /* kernels decide by the 16 scales of a block: alike, and neighbours */
            for (int mixed = 0; mixed < 2 && base + mixed * 15 < 256; mixed++) {
                for (int r = 0; r < 16; r++) {
                    scale[r] = (uint8_t)(mixed ? base + r : base);
                    memset(packed + r * 16, 0, 16);
                    for (int i = 0; i < 8; i++) packed[r * 16 + (r + i) % 16] = (uint8_t)(2 * i | (2 * i + 1) << 4);
                }
                struct mat m = {0};
                ck_assert_int_eq(o.mat_new(&o, &m, MAT_MXFP4, 16, 32, 0, 0), ST_OK);
                o.mat_put_mxfp4(&o, &m, 0, 16, packed, 16, scale, 1);
                float *y = read_back(&o, &m);
                for (int r = 0; r < 16; r++)
                    for (int i = 0; i < 32; i++) {
                        int code = packed[r * 16 + i / 2] >> i % 2 * 4 & 15;
                        float want = weights_fp4_value(code, scale[r]), is = y[i * 16 + r];
                        /* dot product instructions read and write values below the normal range as 0; values
                         * beyond the range are infinite and meet the zeros of the other inputs */
                        int tiny = fabsf(want) < 1.1754944e-38f, huge = scale[r] >= 253;
                        if (huge && code % 8 == 0) continue;
                        if (scale[r] == 255) ck_assert(isnan(is));
                        else if (scale[r] == 254 || (scale[r] == 253 && isinf(want)))
                            ck_assert(!isfinite(is) || is == want);
                        else if (tiny && o.act == ACT_BF16) ck_assert(is == want || is == 0);
                        else if (!huge && is != want)
                            ck_abort_msg("%s act %d: code %d scale %d is %.9g, should be %.9g", o.isa, (int)o.act, code,
                                         scale[r], (double)is, (double)want);
                    }
                free(y);
                o.mat_free(&o, &m);
            }
    }
}
END_TEST

START_TEST(mxfp4_goldens)
{
    static const char *const group[] = {"mxfp4", "mxfp4_all"};
    struct h5 *f;
    ck_assert_int_eq(h5_open(suite_path("tests/vectors/ops.h5"), 0, &f), ST_OK);
    for (int g = 0; g < 2; g++) {
        int32_t *packed, *scale;
        int64_t dim[H5_MAX_RANK];
        int rank;
        float *out;
        char name[64];
        snprintf(name, sizeof name, "/%s/packed", group[g]);
        ck_assert_int_eq(h5_read_i32(f, name, dim, &rank, &packed), ST_OK);
        int n = (int)dim[0], k = (int)dim[1] * 2;
        snprintf(name, sizeof name, "/%s/scale", group[g]);
        ck_assert_int_eq(h5_read_i32(f, name, dim, &rank, &scale), ST_OK);
        snprintf(name, sizeof name, "/%s/out", group[g]);
        ck_assert_int_eq(h5_read_f32(f, name, dim, &rank, &out), ST_OK);
        ck_assert(dim[0] == n && dim[1] == k);
        uint8_t *p8 = malloc((size_t)(n * k / 2)), *s8 = malloc((size_t)(n * k / 32));
        for (int i = 0; i < n * k / 2; i++) p8[i] = (uint8_t)packed[i];
        for (int i = 0; i < n * k / 32; i++) s8[i] = (uint8_t)scale[i];
        struct ops o;
        EACH_BACKEND(&o) {
            struct mat m = {0};
            ck_assert_int_eq(o.mat_new(&o, &m, MAT_MXFP4, n, k, 0, 0), ST_OK);
            o.mat_put_mxfp4(&o, &m, 0, n, p8, k / 2, s8, k / 32);
            float *y = read_back(&o, &m);
            for (int r = 0; r < n; r++)
                for (int i = 0; i < k; i++)
                    if (y[(int64_t)i * n + r] != out[(int64_t)r * k + i])
                        ck_abort_msg("%s act %d %s: row %d input %d is %.9g, should be %.9g", o.isa, (int)o.act,
                                     group[g], r, i, (double)y[(int64_t)i * n + r], (double)out[(int64_t)r * k + i]);
            free(y);
            o.mat_free(&o, &m);
        }
        free(p8), free(s8);
        mem_free(packed), mem_free(scale), mem_free(out);
    }
    h5_close(f);
}
END_TEST

START_TEST(a_bad_row_spoils_only_itself)
{
    struct ops o;
    EACH_BACKEND(&o) {
        struct weights w = weights_new(MAT_BF16, 20, 64, 9);
        struct mat m = {0};
        int t = 19;
        float *x = weights_inputs(600, t * 64);
        ck_assert_int_eq(weights_mat(&o, &m, &w, 0, 20, 0, 64, 16, 0), ST_OK);
        float *good = run(&o, &m, x, 64, t);
        x[7 * 64 + 5] = NAN;
        x[11 * 64 + 6] = INFINITY;
        float *y = run(&o, &m, x, 64, t);
        for (int r = 0; r < t; r++)
            for (int j = 0; j < 20; j++) {
                if (r == 7) ck_assert(isnan(y[r * 20 + j]));
                else if (r == 11) ck_assert(!isfinite(y[r * 20 + j]));
                else ck_assert(!memcmp(y + r * 20 + j, good + r * 20 + j, 4));
            }
        free(y), free(good), free(x);
        o.mat_free(&o, &m);
        weights_free(&w);
    }
}
END_TEST

START_TEST(inputs_round_to_nearest_even)
{
    /* as bits: ties, just above, just below, overflow to infinity, smallest, negative */
    static const uint32_t in[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0xbf818000,
                                  0x7f7fffff, 0x00800000, 0x40490fdb};
    static const uint32_t want[] = {0x3f800000, 0x3f820000, 0x3f810000, 0x3f800000, 0xbf820000,
                                    0x7f800000, 0x00800000, 0x40490000};
    struct ops o;
    EACH_BACKEND(&o) {
        if (o.act != ACT_BF16) continue;
        struct mat m = {0}, exact = {0};
        const uint16_t one = 0x3f80;
        ck_assert_int_eq(o.mat_new(&o, &m, MAT_BF16, 1, 1, 0, 0), ST_OK);
        ck_assert_int_eq(o.mat_new(&o, &exact, MAT_BF16, 1, 1, 0, 1), ST_OK);
        o.mat_put_bf16(&o, &m, 0, 1, &one, 1);
        o.mat_put_bf16(&o, &exact, 0, 1, &one, 1);
        for (int i = 0; i < 8; i++) {
            float x, y, z;
            uint32_t u;
            memcpy(&x, &in[i], 4);
            o.linear(&o, &m, &x, 1, 1, &y, 1);
            memcpy(&u, &y, 4);
            if (u != want[i]) ck_abort_msg("%s: %08x rounds to %08x, should be %08x", o.isa, in[i], u, want[i]);
            o.linear(&o, &exact, &x, 1, 1, &z, 1);
            ck_assert(z == x);
        }
        o.mat_free(&o, &m);
        o.mat_free(&o, &exact);
    }
}
END_TEST

START_TEST(no_result_is_minus_zero)
{
    /* every product is negative and too small for any number: fused sums end at -0 unless something is done */
    struct ops o;
    EACH_BACKEND(&o)
        for (int leaf = 0; leaf <= 8; leaf += 4) {
            uint16_t w[3 * 16];
            float x[16], y[3];
            struct mat m = {0};
            for (int i = 0; i < 48; i++) w[i] = 0x0d00; /* 4e-31 */
            for (int i = 0; i < 16; i++) x[i] = -0x1p-100f;
            ck_assert_int_eq(o.mat_new(&o, &m, MAT_BF16, 3, 16, leaf, 0), ST_OK);
            o.mat_put_bf16(&o, &m, 0, 3, w, 16);
            o.linear(&o, &m, x, 16, 1, y, 3);
            for (int i = 0; i < 3; i++) ck_assert(y[i] == 0 && !signbit(y[i]));
            o.mat_free(&o, &m);
        }
}
END_TEST

START_TEST(after_prepare_nothing_is_allocated)
{
    struct ops o;
    EACH_BACKEND(&o) {
        struct weights w = weights_new(MAT_BF16, 70, 512, 3), f = weights_new(MAT_MXFP4, 70, 512, 4);
        struct mat m[2] = {{0}};
        float *x = weights_inputs(700, 64 * 512), *y = malloc(64 * 70 * sizeof *y);
        ck_assert_int_eq(weights_mat(&o, &m[0], &w, 0, 70, 0, 512, 16, 0), ST_OK);
        ck_assert_int_eq(weights_mat(&o, &m[1], &f, 0, 70, 0, 512, 0, 0), ST_OK);
        ck_assert_int_eq(o.prepare(&o, 64), ST_OK);
        uint64_t before = buf_allocs();
        for (int t = 1; t <= 64; t++)
            for (int i = 0; i < 2; i++) o.linear(&o, &m[i], x, 512, t, y, 70);
        ck_assert_uint_eq(buf_allocs(), before);
        free(x), free(y);
        o.mat_free(&o, &m[0]);
        o.mat_free(&o, &m[1]);
        weights_free(&w), weights_free(&f);
    }
}
END_TEST

/* scratch that no machine has: the operation writes nothing, check() says why, and goes on saying so */
START_TEST(an_operation_without_memory_is_reported)
{
    enum { FAR = 1 << 24 }; /* FAR x FAR floats are more than an address space */
    const struct seq_rows seq = {.n_rows = 1};
    const struct mat none = {.kind = MAT_MXFP4};
    log_mute(1);
    for (int which = 0; which < 4; which++) {
        struct ops o;
        float x[16] = {1}, y[16] = {7}, state[16] = {0};
        int32_t idx[1] = {0};
        ck_assert_int_eq(ops_cpu_open(ACT_FP32, NULL, &o), ST_OK);
        ck_assert_int_eq(o.check(&o), ST_OK);
        switch (which) {
        case 0: o.kda_recur(&o, x, x, 1, x, 1, state, 1, 1, 1, FAR, y, 16); break;
        case 1: o.kda_chunk(&o, x, x, 1, x, 1, state, 1, 1, FAR, FAR, y, 16); break;
        case 2: o.conv(&o, x, 16, x, FAR, FAR, OPS_KV_FP32, &seq, 1, y); break;
        default: o.moe(&o, &none, &none, 0, FAR, FAR, x, 16, 16, FAR, 0, idx, x, FAR, 1, 1, 1, y, 0);
        }
        ck_assert_msg(o.check(&o) == ST_E_NOMEM, "operation %d: %s", which, err_name(o.check(&o)));
        ck_assert(y[0] == 7);
        o.rope(&o, x, 2, (int32_t[]){1}, 1, 1, 2, 10000); /* others go on; the backend stays failed */
        ck_assert(x[0] != 1);
        ck_assert_int_eq(o.check(&o), ST_E_NOMEM);
        o.close(&o);
    }
}
END_TEST

START_TEST(refusals)
{
    static const struct {
        int kind, n, k, leaf;
        enum status st;
    } want[] = {{MAT_BF16, 0, 8, 0, ST_E_RANGE},    {MAT_BF16, 8, 0, 0, ST_E_RANGE},    {MAT_BF16, 8, 8, 3, ST_E_RANGE},
                {MAT_BF16, 8, 8, -1, ST_E_RANGE},   {MAT_MXFP4, 8, 48, 0, ST_E_RANGE},
                {MAT_MXFP4, 8, 64, 16, ST_E_RANGE},
                {MAT_MXFP4, 8, 64, 32, ST_OK},      {MAT_BF16, 8, 9, 9, ST_OK}};
    struct ops o, other = {0};
    ck_assert_int_eq(ops_cpu_open(ACT_FP32, "scalar", &o), ST_OK);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct mat m = {0};
        ck_assert_int_eq(o.mat_new(&o, &m, (enum mat_kind)want[i].kind, want[i].n, want[i].k, want[i].leaf, 0),
                         want[i].st);
        ck_assert((m.data.p != NULL) == (want[i].st == ST_OK));
        o.mat_free(&o, &m);
    }
    ck_assert_int_eq(o.prepare(&o, 0), ST_E_RANGE);
    o.close(&o);
    ck_assert_int_eq(ops_cpu_open(ACT_FP32, "sse9", &other), ST_E_CONFIG);
    ck_assert_ptr_null(other.impl);
    const char *const *isa = ops_cpu_isa_list();
    int scalar = 0, amx = 0;
    for (int i = 0; isa[i]; i++) {
        scalar |= !strcmp(isa[i], "scalar");
        amx |= !strcmp(isa[i], "amx");
    }
    ck_assert_int_eq(scalar, 1);
    if (!amx) ck_assert_int_eq(ops_cpu_open(ACT_FP32, "amx", &other), ST_E_CONFIG);
    const char *set = getenv("PDFLASH_ISA");
    char *was = set ? strdup(set) : NULL;
    setenv("PDFLASH_ISA", "scalar", 1);
    ck_assert_int_eq(ops_cpu_open(ACT_BF16, NULL, &o), ST_OK);
    ck_assert_str_eq(o.isa, "scalar");
    o.close(&o);
    setenv("PDFLASH_ISA", "mmx", 1);
    ck_assert_int_eq(ops_cpu_open(ACT_BF16, NULL, &other), ST_E_CONFIG);
    unsetenv("PDFLASH_ISA");
    ck_assert_int_eq(ops_cpu_open(ACT_BF16, NULL, &o), ST_OK);
    ck_assert_str_eq(o.isa, isa[0]);
    o.close(&o);
    o.close(&o);
    if (was) setenv("PDFLASH_ISA", was, 1);
    free(was);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "linear", 300);
    SUITE_TEST(tc, values_are_right);
    SUITE_TEST(tc, rows_do_not_depend_on_their_company);
    SUITE_TEST(tc, leaves_are_added_in_the_tree);
    SUITE_TEST(tc, shards_add_up_to_the_whole);
    SUITE_TEST(tc, packing_takes_any_order_of_rows_and_the_transpose);
    SUITE_TEST(tc, every_code_times_every_scale_is_exact);
    SUITE_TEST(tc, mxfp4_goldens);
    SUITE_TEST(tc, a_bad_row_spoils_only_itself);
    SUITE_TEST(tc, inputs_round_to_nearest_even);
    SUITE_TEST(tc, no_result_is_minus_zero);
    SUITE_TEST(tc, after_prepare_nothing_is_allocated);
    SUITE_TEST(tc, an_operation_without_memory_is_reported);
    SUITE_TEST(tc, refusals);
}

int main(void)
{
    return suite_main_serial();
}
