#include "ops_kit.h"

const char *const suite_name = "route";

/* Router logits of the golden inputs need the layer's weight; the file has the scores, and logit(s) in double
 * precision returns them to the sigmoid within the FP32 step of s. */
START_TEST(router_meets_the_golden)
{
    enum { T = 40, E = 32, K = 4 };
    struct h5 *f = kit_golden();
    float *s = kit_f32(f, "router", "scores", T * E), *bias = kit_f32(f, "router", "bias", E);
    float *want = kit_f32(f, "router", "weight", T * K), *w = kit_nan(T * K), *logit = kit_nan(T * E);
    int32_t *idx = kit_i32(f, "router", "idx", T * K), *plain = kit_i32(f, "router", "idx_without_bias", T * K);
    int32_t got[T * K];
    int differ = 0;
    for (int i = 0; i < T * E; i++) logit[i] = (float)log((double)s[i] / (1 - (double)s[i]));
    cpu_route(kit_ops(), logit, bias, E, K, 1, T, got, w);
    ck_assert_mem_eq(got, idx, sizeof got);
    KIT_WITHIN("router weights", kit_err(w, want, T * K), 1e-5);
    cpu_route(kit_ops(), logit, NULL, E, K, 1, T, got, w);
    ck_assert_mem_eq(got, plain, sizeof got);
    for (int i = 0; i < T * K; i++) differ += idx[i] != plain[i];
    ck_assert_int_gt(differ, 0); /* the bias matters in this file */
    mem_free(s), mem_free(bias), mem_free(want), mem_free(w), mem_free(logit), mem_free(idx), mem_free(plain);
    h5_close(f);
}
END_TEST

/* top k by brute force: rank of j = number of experts that beat it */
static void naive_route(const float *logit, const float *bias, int n, int k, double scale, int32_t *idx, double *w)
{
    int have = 0;
    double sum = 0;
    for (int j = 0; j < n; j++) {
        int rank = 0;
        float vj = 1.0f / (1.0f + expf(-logit[j])) + (bias ? bias[j] : 0);
        for (int i = 0; i < n; i++) {
            float vi = 1.0f / (1.0f + expf(-logit[i])) + (bias ? bias[i] : 0);
            rank += vi > vj || (vi == vj && i < j);
        }
        if (rank < k) idx[have++] = j;
    }
    ck_assert_int_eq(have, k);
    for (int j = 0; j < k; j++) sum += w[j] = 1 / (1 + exp(-logit[idx[j]]));
    for (int j = 0; j < k; j++) w[j] = w[j] / (sum + 1e-20) * scale;
}

START_TEST(route_matches_brute_force_with_ties)
{
    static const struct {
        int n, k, levels, bias;
    } set[] = {{32, 4, 1000, 1}, {32, 4, 3, 0}, {896, 16, 8, 1}, {7, 7, 2, 0}, {1, 1, 1, 1}, {33, 1, 2, 0},
               {256, 8, 1, 0}};
    for (size_t c = 0; c < sizeof set / sizeof set[0]; c++) {
        int n = set[c].n, k = set[c].k, t = 9;
        float *x = kit_rand(c, (size_t)(t * n), 0, 1), *bias = kit_rand(c + 50, (size_t)n, -0.2, 0.2),
              *w = kit_nan((size_t)(t * k));
        for (int i = 0; i < t * n; i++) x[i] = (floorf(x[i] * (float)set[c].levels) - 1) * 0.5f; /* few levels: ties */
        for (int i = 0; i < n; i++) bias[i] = floorf(bias[i] * 10) / 8; /* exact sums keep ties ties */
        int32_t idx[9 * 16], want[16];
        double dw[16];
        memset(idx, 0xff, sizeof idx);
        cpu_route(kit_ops(), x, set[c].bias ? bias : NULL, n, k, 2.446f, t, idx, w);
        for (int i = 0; i < t; i++) {
            naive_route(x + i * n, set[c].bias ? bias : NULL, n, k, 2.446, want, dw);
            if (set[c].levels < 1000) ck_assert_mem_eq(idx + i * k, want, (size_t)k * sizeof *idx);
            KIT_WITHIN("weights", kit_errd(w + i * k, dw, (size_t)k), 1e-6);
        }
        mem_free(x), mem_free(bias), mem_free(w);
    }
}
END_TEST

START_TEST(route_survives_bad_logits)
{
    float x[3 * 8], w[3 * 2];
    int32_t idx[3 * 2];
    for (int i = 0; i < 24; i++) x[i] = NAN;
    x[8 + 5] = 1, x[8 + 6] = INFINITY; /* row 1: two numbers among NaNs */
    for (int i = 16; i < 24; i++) x[i] = -INFINITY;
    cpu_route(kit_ops(), x, NULL, 8, 2, 1, 3, idx, w);
    int32_t want[] = {0, 1, 5, 6, 0, 1};
    ck_assert_mem_eq(idx, want, sizeof want);
    ck_assert(w[4] == 0 && w[5] == 0); /* scores 0: 0 / 1e-20 */
}
END_TEST

START_TEST(argmax_is_the_first_maximum)
{
    enum { N = 4099 };
    float *x = kit_nan(8 * N), val[8];
    int32_t idx[8];
    for (int i = 0; i < 8 * N; i++) x[i] = (float)(i % 97) * -0.25f;
    x[0 * N + 4098] = 3;                         /* in the remainder */
    x[1 * N + 70] = 2, x[1 * N + 71] = 2, x[1 * N + 4098] = 2; /* tie */
    x[2 * N + 4097] = NAN, x[2 * N + 5] = 9;
    x[3 * N + 5] = NAN;
    for (int i = 0; i < N; i++) x[4 * N + i] = -INFINITY;
    x[5 * N + 33] = INFINITY, x[5 * N + 40] = INFINITY;
    for (int i = 0; i < N; i++) x[6 * N + i] = -3.4e38f;
    for (int i = 0; i < N; i++) x[7 * N + i] = i % 2 ? 0.0f : -0.0f;
    memset(val, 0xff, sizeof val), memset(idx, 0x55, sizeof idx);
    cpu_argmax(kit_ops(), x, N, 8, N, val, idx);
    static const int32_t want[] = {4098, 70, -1, -1, 0, 33, 0, 0};
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(idx[i], want[i]);
        if (want[i] >= 0) ck_assert(val[i] == x[i * N + want[i]]);
        else ck_assert(val[i] != val[i]);
    }
    for (int n = 1; n < 70; n++) { /* every width */
        float *y = kit_rand((uint64_t)n, (size_t)n, -1, 1);
        int best = 0;
        for (int i = 1; i < n; i++)
            if (y[i] > y[best]) best = i;
        cpu_argmax(kit_ops(), y, n, 1, n, val, idx);
        ck_assert_int_eq(idx[0], best);
        mem_free(y);
    }
    mem_free(x);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "route", 60);
    SUITE_TEST(tc, router_meets_the_golden);
    SUITE_TEST(tc, route_matches_brute_force_with_ties);
    SUITE_TEST(tc, route_survives_bad_logits);
    SUITE_TEST(tc, argmax_is_the_first_maximum);
}

int main(void)
{
    return suite_main_serial();
}
