#include "ops_kit.h"

const char *const suite_name = "norm";

START_TEST(rmsnorm_meets_the_goldens)
{
    struct h5 *f = kit_golden();
    float *x = kit_f32(f, "rmsnorm", "in", 7 * 256), *w = kit_f32(f, "rmsnorm", "weight", 256);
    static const struct {
        const char *name;
        float eps;
    } set[] = {{"out_eps1e-05", 1e-5f}, {"out_eps1e-06", 1e-6f}};
    for (int i = 0; i < 2; i++) {
        float *want = kit_f32(f, "rmsnorm", set[i].name, 7 * 256), *y = kit_nan(7 * 256);
        cpu_rmsnorm(kit_ops(), x, 256, w, set[i].eps, 7, 256, y, 256);
        KIT_WITHIN(set[i].name, kit_err(y, want, 7 * 256), 1e-5);
        cpu_head_norm(kit_ops(), memcpy(y, x, 7 * 256 * sizeof *x), 256, w, set[i].eps, 7, 1, 256);
        KIT_WITHIN("the same as head_norm in place", kit_err(y, want, 7 * 256), 1e-5);
        mem_free(want), mem_free(y);
    }
    mem_free(x), mem_free(w);
    h5_close(f);
}
END_TEST

START_TEST(attnres_meets_the_goldens)
{
    static const struct {
        const char *group;
        int n;
    } set[] = {{"attnres1", 1}, {"attnres2", 2}, {"attnres6", 6}};
    struct h5 *f = kit_golden();
    for (int i = 0; i < 3; i++) {
        int n = set[i].n;
        float *in = kit_f32(f, set[i].group, "bank", 6 * n * 256), *q = kit_f32(f, set[i].group, "q", 256);
        float *p = kit_f32(f, set[i].group, "prefix", 6 * 256), *want = kit_f32(f, set[i].group, "out", 6 * 256);
        float *bank = kit_nan((size_t)n * 7 * 256), *y = kit_nan(6 * 256); /* file: [t][row][h] */
        for (int t = 0; t < 6; t++)
            for (int r = 0; r < n; r++)
                memcpy(bank + (r * 7 + t) * 256, in + (t * n + r) * 256, 256 * sizeof *in);
        cpu_attnres(kit_ops(), bank, 7 * 256, n, p, q, 1e-5f, 6, 256, y, NULL, 0, NULL);
        KIT_WITHIN(set[i].group, kit_err(y, want, 6 * 256), 1e-5);
        mem_free(in), mem_free(q), mem_free(p), mem_free(want), mem_free(bank), mem_free(y);
    }
    h5_close(f);
}
END_TEST

/* attnres and its norm in double precision */
static void naive_attnres(const float *bank, int64_t bs, int nb, const float *p, const float *q, double eps, int t,
                          int h, const float *w, double neps, double *mix, double *normed)
{
    for (int i = 0; i < t; i++) {
        double s[64], top = -INFINITY, sum = 0, ss = 0;
        for (int j = 0; j <= nb; j++) {
            const float *v = j < nb ? bank + j * bs + (int64_t)i * h : p + (int64_t)i * h;
            double vq = 0, vv = 0;
            for (int c = 0; c < h; c++) vq += (double)v[c] * q[c], vv += (double)v[c] * v[c];
            s[j] = vq / sqrt(vv / h + eps);
            top = fmax(top, s[j]);
        }
        for (int j = 0; j <= nb; j++) sum += s[j] = exp(s[j] - top);
        for (int c = 0; c < h; c++) {
            double m = 0;
            for (int j = 0; j <= nb; j++)
                m += s[j] / sum * (j < nb ? bank[j * bs + (int64_t)i * h + c] : p[(int64_t)i * h + c]);
            mix[(int64_t)i * h + c] = m;
            ss += m * m;
        }
        for (int c = 0; c < h; c++)
            normed[(int64_t)i * h + c] = mix[(int64_t)i * h + c] / sqrt(ss / h + neps) * w[c];
    }
}

START_TEST(attnres_matches_double_precision_at_all_scales)
{
    static const struct {
        int t, h, n_bank;
        double mag;
    } set[] = {{3, 256, 6, 1},     {2, 100, 3, 1e38},  {1, 256, 8, 3e38}, {2, 17, 2, 1e20}, {2, 31, 1, 1e-20},
               {1, 1, 2, 3},       {4, 7, 0, 5},       {2, 33, 40, 1e-3}, {2, 48, 2, 0},    {3, 7168, 8, 1e30}};
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) {
        int t = set[i].t, h = set[i].h, nb = set[i].n_bank;
        size_t n = (size_t)t * (size_t)h;
        int64_t bs = (int64_t)n + 5;
        float *bank = kit_rand(i, (size_t)(nb + 1) * (size_t)bs, -set[i].mag, set[i].mag);
        float *p = kit_rand(i + 100, n, -set[i].mag, set[i].mag), *q = kit_rand(i + 200, (size_t)h, -0.3, 0.3);
        float *w = kit_rand(i + 300, (size_t)h, 0.5, 2), *mix = kit_nan(n), *normed = kit_nan(n), *only = kit_nan(n);
        double *dm = mem_alloc(2 * n + 2, sizeof *dm, "ref");
        naive_attnres(bank, bs, nb, p, q, 1e-5, t, h, w, 1e-6, dm, dm + n);
        cpu_attnres(kit_ops(), bank, bs, nb, p, q, 1e-5f, t, h, mix, w, 1e-6f, normed);
        char what[64];
        snprintf(what, sizeof what, "mix h %d bank %d magnitude %g", h, nb, set[i].mag);
        KIT_WITHIN(what, kit_errd(mix, dm, n), 1e-5);
        KIT_WITHIN("  normed", kit_errd(normed, dm + n, n), 1e-5);
        cpu_attnres(kit_ops(), bank, bs, nb, p, q, 1e-5f, t, h, NULL, w, 1e-6f, only);
        KIT_SAME(only, normed, n);
        for (int r = 0; r < t; r++) { /* a row alone gives the same bits */
            float *one = kit_nan((size_t)h), *norm1 = kit_nan((size_t)h);
            cpu_attnres(kit_ops(), bank + (int64_t)r * h, bs, nb, p + (int64_t)r * h, q, 1e-5f, 1, h, one, w, 1e-6f,
                        norm1);
            KIT_SAME(one, mix + (int64_t)r * h, h);
            KIT_SAME(norm1, normed + (int64_t)r * h, h);
            mem_free(one), mem_free(norm1);
        }
        mem_free(bank), mem_free(p), mem_free(q), mem_free(w), mem_free(mix), mem_free(normed), mem_free(only);
        mem_free(dm);
    }
}
END_TEST

START_TEST(norms_match_double_precision_on_odd_shapes)
{
    static const struct {
        int t, heads, d, gap;
        double mag;
    } set[] = {{5, 1, 256, 3, 1},  {3, 8, 32, 0, 1},    {2, 3, 5, 2, 10},  {1, 1, 1, 0, 1},
               {2, 2, 17, 1, 1e38}, {2, 2, 64, 0, 3e38}, {2, 1, 40, 0, 1e-25}, {1, 4, 128, 7, 1e19}};
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) {
        int t = set[i].t, heads = set[i].heads, d = set[i].d, w_all = heads * d, ld = w_all + set[i].gap;
        size_t n = (size_t)t * (size_t)ld, nd = (size_t)t * (size_t)w_all;
        float *x = kit_rand(i, n, -set[i].mag, set[i].mag), *w = kit_rand(i + 9, (size_t)d, -2, 2);
        float *y = kit_copy(x, n), *flat = kit_nan(nd), *rows = kit_nan(nd);
        double *want = mem_alloc(nd, sizeof *want, "ref");
        for (int r = 0; r < t * heads; r++) {
            const float *v = x + r / heads * ld + r % heads * d;
            double ss = 0;
            for (int c = 0; c < d; c++) ss += (double)v[c] * v[c];
            for (int c = 0; c < d; c++) want[r * d + c] = v[c] / sqrt(ss / d + 1e-5) * w[c];
            cpu_rmsnorm(kit_ops(), v, d, w, 1e-5f, 1, d, rows + r * d, d);
        }
        cpu_head_norm(kit_ops(), y, ld, w, 1e-5f, t, heads, d);
        for (int r = 0; r < t; r++) {
            memcpy(flat + r * w_all, y + r * ld, (size_t)w_all * sizeof *y);
            KIT_SAME(y + r * ld + w_all, x + r * ld + w_all, set[i].gap); /* the gap is not touched */
        }
        char what[64];
        snprintf(what, sizeof what, "norm %d x %d magnitude %g", heads, d, set[i].mag);
        KIT_WITHIN(what, kit_errd(flat, want, nd), 1e-6);
        KIT_SAME(flat, rows, nd);
        mem_free(x), mem_free(w), mem_free(y), mem_free(flat), mem_free(rows), mem_free(want);
    }
}
END_TEST

START_TEST(bad_values_stay_visible)
{
    float x[20], w[20], y[20];
    for (int i = 0; i < 20; i++) x[i] = 1, w[i] = 1;
    x[18] = NAN;
    cpu_rmsnorm(kit_ops(), x, 20, w, 1e-5f, 1, 20, y, 20);
    for (int i = 0; i < 20; i++) ck_assert(y[i] != y[i]);
    cpu_attnres(kit_ops(), x, 20, 1, w, w, 1e-5f, 1, 20, y, NULL, 0, NULL);
    for (int i = 0; i < 20; i++) ck_assert(y[i] != y[i]);
    x[18] = INFINITY;
    cpu_rmsnorm(kit_ops(), x, 20, w, 1e-5f, 1, 20, y, 20);
    ck_assert(y[18] != y[18]);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "norm", 60);
    SUITE_TEST(tc, rmsnorm_meets_the_goldens);
    SUITE_TEST(tc, attnres_meets_the_goldens);
    SUITE_TEST(tc, attnres_matches_double_precision_at_all_scales);
    SUITE_TEST(tc, norms_match_double_precision_on_odd_shapes);
    SUITE_TEST(tc, bad_values_stay_visible);
}

int main(void)
{
    return suite_main_serial();
}
