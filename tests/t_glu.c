#include "ops_kit.h"

#include "ops/cpu/cpu_math.h"

const char *const suite_name = "glu";

static double d_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

/* error of f against a double-precision value, in units of 2e-7 relative or of floor_ */
static double math_err(float f, double want, double floor_)
{
    if (want != want) return f != f ? 0 : INFINITY;
    float w = (float)want;
    if (isinf(w)) return f == w ? 0 : INFINITY;
    return fabs((double)f - want) / fmax(2e-7 * fabs(want), floor_);
}

START_TEST(functions_are_accurate_everywhere)
{
    static const float edge[] = {0.0f, -0.0f, 1e-45f, -1e-45f, 1e-38f, 0.625f, 0.62499997f, 88.72283f, 88.72284f, 89.0f,
                                 -87.33654f, -87.33655f, -103.97f, -103.98f, -103.99f, -104.1f, 1e9f, -1e9f, 3.4e38f,
                                 -3.4e38f, 9.01f, -9.01f, 44.36f, INFINITY, -INFINITY, NAN};
    double e_exp = 0, e_neg = 0, e_sig = 0, e_tanh = 0;
    size_t n_edge = sizeof edge / sizeof edge[0];
    for (size_t i = 0; i < 400000 + n_edge; i++) {
        float x;
        if (i < n_edge) x = edge[i];
        else if (i % 2) x = (float)((rng_unit(1, 2, i) - 0.5) * 240);
        else x = cpu_bits_float((uint32_t)rng_u64(3, 4, i)); /* every exponent, NaNs too */
        e_exp = fmax(e_exp, math_err(cpu_exp(x), exp(x), 0x1p-149));
        if (!(x > 0)) e_neg = fmax(e_neg, math_err(cpu_exp_neg(x), exp(x), 0x1p-126));
        e_sig = fmax(e_sig, math_err(cpu_sigmoid(x), d_sigmoid(x), 0x1p-126));
        e_tanh = fmax(e_tanh, math_err(cpu_tanh(x), tanh(x), 0x1p-149));
    }
    printf("  worst error / 2e-7: exp %.2f exp_neg %.2f sigmoid %.2f tanh %.2f\n", e_exp, e_neg, e_sig, e_tanh);
    fflush(stdout);
    ck_assert(e_exp <= 1 && e_neg <= 1 && e_sig <= 1 && e_tanh <= 1);
    ck_assert(cpu_exp(0.0f) == 1.0f && cpu_sigmoid(0.0f) == 0.5f && signbit(cpu_tanh(-0.0f)));
    ck_assert(cpu_exp(-INFINITY) == 0.0f && cpu_exp(INFINITY) == INFINITY);
    ck_assert(cpu_tanh(-INFINITY) == -1.0f && cpu_sigmoid(-INFINITY) == 0.0f && cpu_sigmoid(INFINITY) == 1.0f);
}
END_TEST

START_TEST(situ_meets_the_golden)
{
    struct h5 *f = kit_golden();
    float *g = kit_f32(f, "situ", "gate", 64), *u = kit_f32(f, "situ", "up", 64), *want = kit_f32(f, "situ", "out", 64);
    float x[128], y[64];
    memcpy(x, g, sizeof y), memcpy(x + 64, u, sizeof y);
    memset(y, 0xff, sizeof y);
    cpu_situ(kit_ops(), x, 128, 4, 25, 1, 64, y, 64);
    KIT_WITHIN("situ", kit_err(y, want, 64), 1e-5);
    double worst = 0;
    for (int i = 0; i < 64; i++) {
        double d = 4 * tanh(g[i] / 4.0) * d_sigmoid(g[i]) * 25 * tanh(u[i] / 25.0);
        worst = fmax(worst, fabs(y[i] - d) / fmax(fabs(d), 1e-30));
    }
    KIT_WITHIN("situ, relative per element", worst, 1e-6);
    mem_free(g), mem_free(u), mem_free(want);
    h5_close(f);
}
END_TEST

/* every width from 1 to 40: vector body and remainder, strides, and rows alone */
START_TEST(rows_match_double_precision_at_every_width)
{
    for (int n = 1; n <= 40; n++) {
        int t = 3, ldx = 2 * n + 3, ldy = n + 1;
        float *x = kit_rand((uint64_t)n, (size_t)(t * ldx), -12, 12);
        for (int kind = 0; kind < 3; kind++) {
            float *y = kind == 2 ? kit_copy(x, (size_t)(t * ldx)) : kit_nan((size_t)(t * ldy));
            int ld = kind == 2 ? ldx : ldy;
            if (kind == 0) cpu_situ(kit_ops(), x, ldx, 4, 25, t, n, y, ldy);
            if (kind == 1) cpu_swiglu(kit_ops(), x, ldx, t, n, y, ldy);
            if (kind == 2) cpu_gate(kit_ops(), y, ldx, x + n, ldx, t, n);
            for (int i = 0; i < t * n; i++) {
                float g = x[i / n * ldx + i % n], u = x[i / n * ldx + n + i % n];
                double want = kind == 0   ? 4 * tanh(g / 4.0) * d_sigmoid(g) * 25 * tanh(u / 25.0)
                              : kind == 1 ? g * d_sigmoid(g) * u
                                          : g * d_sigmoid(u);
                ck_assert_double_le(fabs(y[i / n * ld + i % n] - want), 1e-6 * fabs(want) + 1e-30);
            }
            if (kind < 2)
                for (int r = 0; r < t; r++) { /* beyond the row nothing is written */
                    float one[40];
                    ck_assert(y[r * ldy + n] != y[r * ldy + n]);
                    if (kind == 0) cpu_situ(kit_ops(), x + r * ldx, ldx, 4, 25, 1, n, one, n);
                    else cpu_swiglu(kit_ops(), x + r * ldx, ldx, 1, n, one, n);
                    KIT_SAME(one, y + r * ldy, n);
                }
            mem_free(y);
        }
        mem_free(x);
    }
}
END_TEST

/* the tree of plan/split.h, written independently: explicit recursion on single elements */
static float tree_one(const float *src, int64_t stride, const int *order, int first, int n)
{
    if (n % 2 == 0)
        return tree_one(src, stride, order, first, n / 2) + tree_one(src, stride, order, first + n / 2, n / 2);
    float s = 0;
    for (int i = 0; i < n; i++) s += src[(order ? order[first + i] : first + i) * stride];
    return s;
}

START_TEST(tree_add_follows_the_tree)
{
    static const int leaves[] = {1, 2, 3, 4, 6, 7, 8, 12, 32, 96, 896};
    for (size_t k = 0; k < sizeof leaves / sizeof leaves[0]; k++) {
        int n = leaves[k], width = 300, order[896];
        int64_t stride = width + 11;
        float *src = kit_rand(k, (size_t)n * (size_t)stride, -1, 1), *dst = kit_nan((size_t)width);
        for (int i = 0; i < n; i++) order[i] = i;
        for (int i = n - 1; i > 0; i--) {
            int j = (int)(rng_unit(8, k, (uint64_t)i) * (i + 1)), s = order[i];
            order[i] = order[j], order[j] = s;
        }
        for (int i = 0; i < n; i++) src[i * stride] = -0.0f; /* sums start from +0 */
        for (int pass = 0; pass < 3; pass++) {
            const int *ord = pass ? order : NULL;
            float *to = pass == 2 ? src + order[0] * stride : dst, want[300];
            for (int c = 0; c < width; c++) want[c] = tree_one(src + c, stride, ord, 0, n);
            cpu_tree_add(kit_ops(), to, src, stride, ord, n, width);
            KIT_SAME(to, want, width);
        }
        mem_free(src), mem_free(dst);
    }
}
END_TEST

/* a rank's subtree formed first gives the same bits: 8 leaves as 2 x 4 and 4 x 2 */
START_TEST(tree_add_may_be_cut_into_subtrees)
{
    enum { N = 8, W = 37 };
    float *src = kit_rand(1, N * W, -1, 1), all[W], part[4 * W], two[W];
    cpu_tree_add(kit_ops(), all, src, W, NULL, N, W);
    for (int parts = 2; parts <= 4; parts *= 2) {
        for (int p = 0; p < parts; p++)
            cpu_tree_add(kit_ops(), part + p * W, src + p * (N / parts) * W, W, NULL, N / parts, W);
        cpu_tree_add(kit_ops(), two, part, W, NULL, parts, W);
        KIT_SAME(two, all, W);
    }
    mem_free(src);
}
END_TEST

START_TEST(bf16_rounds_to_nearest_even)
{
    static const struct {
        uint32_t in, out;
    } set[] = {{0x3f800000, 0x3f800000}, {0x3f808000, 0x3f800000}, {0x3f818000, 0x3f820000}, {0x3f808001, 0x3f810000},
               {0x80000000, 0x80000000}, {0x7f7fffff, 0x7f800000}, {0xff7f8000, 0xff800000}, {0x7f800000, 0x7f800000},
               {0xff800000, 0xff800000}, {0x7f800001, 0x7fc00000}, {0xffffffff, 0xffff0000}, {0x7fc12345, 0x7fc10000},
               {0x00000001, 0x00000000}, {0x00008000, 0x00000000}, {0x00018000, 0x00020000}, {0x0000ffff, 0x00010000}};
    enum { N = sizeof set / sizeof set[0] };
    float x[N + 16], keep[N + 16];
    for (int i = 0; i < N + 16; i++) x[i] = cpu_bits_float(set[i % N].in); /* vector body and remainder */
    memcpy(keep, x, sizeof x);
    cpu_round_kv(kit_ops(), x, N + 11, OPS_KV_BF16);
    for (int i = 0; i < N + 11; i++) ck_assert_uint_eq(cpu_float_bits(x[i]), set[i % N].out);
    KIT_SAME(x + N + 11, keep + N + 11, 5);
    memcpy(x, keep, sizeof x);
    cpu_round_kv(kit_ops(), x, N + 16, OPS_KV_FP32);
    KIT_SAME(x, keep, N + 16);
}
END_TEST

START_TEST(embed_and_add)
{
    enum { H = 21, IDS = 5, FIRST = 100 };
    uint16_t table[IDS * H];
    for (int i = 0; i < IDS * H; i++) table[i] = (uint16_t)(0x3f80 + i);
    int32_t id[] = {104, 99, 100, 105, -1, 102, 2147483647};
    float y[7 * H], z[7 * H];
    memset(y, 0xff, sizeof y);
    cpu_embed(kit_ops(), table, FIRST, IDS, H, id, 7, y);
    for (int i = 0; i < 7 * H; i++) {
        int r = id[i / H] - FIRST;
        ck_assert_uint_eq(cpu_float_bits(y[i]),
                          id[i / H] >= FIRST && id[i / H] < FIRST + IDS ? (uint32_t)table[r * H + i % H] << 16 : 0);
    }
    memcpy(z, y, sizeof y);
    cpu_add(kit_ops(), z, y, 7 * H - 1);
    for (int i = 0; i < 7 * H - 1; i++) ck_assert(z[i] == 2 * y[i]);
    ck_assert(z[7 * H - 1] == y[7 * H - 1]);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "glu", 60);
    SUITE_TEST(tc, functions_are_accurate_everywhere);
    SUITE_TEST(tc, situ_meets_the_golden);
    SUITE_TEST(tc, rows_match_double_precision_at_every_width);
    SUITE_TEST(tc, tree_add_follows_the_tree);
    SUITE_TEST(tc, tree_add_may_be_cut_into_subtrees);
    SUITE_TEST(tc, bf16_rounds_to_nearest_even);
    SUITE_TEST(tc, embed_and_add);
}

int main(void)
{
    return suite_main_serial();
}
