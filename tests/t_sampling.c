/* sampling: the distribution of a row against a brute-force one, its order of ties, extreme and damaged rows, and the
 * decision about drafts where one can say what must come out. The law of many draws is t_sampling_law's. */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "model/sampling.h"
#include "model/spec.h"

const char *const suite_name = "sampling";

#define OK(expr) ck_assert_int_eq((expr), ST_OK)
enum { MOST = 1000 };

static struct sampler *open_sampler(int vocab)
{
    struct sampler *s = NULL;
    OK(sampler_open(vocab, &s));
    return s;
}

/* ---- the filters ---------------------------------------------------------------------------------- */

static const float *sorted_by; /* of the comparison below */

static int by_order(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    float l = sorted_by[x], m = sorted_by[y];
    return l > m ? -1 : l < m ? 1 : x < y ? -1 : 1;
}

/* everything sorted, then cut: by the words of the header */
static double brute(const float *l, int n, double t, int k, double p, double *w)
{
    int32_t id[MOST];
    double most = -INFINITY, mass = 0, before = 0, total = 0;
    for (int i = 0; i < n; i++) {
        id[i] = i;
        most = l[i] > most ? l[i] : most;
    }
    sorted_by = l;
    qsort(id, (size_t)n, sizeof *id, by_order);
    for (int i = 0; i < n; i++) w[i] = exp((l[i] - most) / t);
    for (int r = k > 0 ? k : n; r < n; r++) w[id[r]] = 0;
    for (int i = 0; i < n; i++) mass += w[i];
    for (int r = 0; r < n && p > 0 && p < 1; r++) {
        double mine = w[id[r]];
        if (r > 0 && !(before < p * mass)) w[id[r]] = 0;
        before += mine;
    }
    for (int i = 0; i < n; i++) total += w[i];
    return total;
}

/* rows with few distinct values, so that ties lie across every cut */
START_TEST(filters_are_those_of_brute_force)
{
    static const int size[] = {1, 2, 3, 7, 64, 257, MOST};
    static const double heat[] = {1, 0.7, 3, 0.05, 1e-300, 1e300}, part[] = {1, 0, 0.9, 0.5, 0.1, 1e-6, 0.999999};
    int n = size[_i], kept = 0;
    float l[MOST];
    double got[MOST], want[MOST];
    struct sampler *s = open_sampler(n);
    const int cut[] = {0, 1, 2, n / 2, n - 1, n, n + 5};
    for (int trial = 0; trial < suite_some(60, 2); trial++) {
        int values = 1 + trial % 12;
        for (int i = 0; i < n; i++)
            l[i] = (float)(rng_u64(5, (uint64_t)trial, (uint64_t)i) % (uint64_t)values) * 0.75f - 4;
        if (trial % 5 == 4) l[n / 3] = -INFINITY;
        if (trial % 5 == 4 && n == 1) continue; /* no distribution */
        for (int h = 0; h < 6; h++)
            for (int k = 0; k < 7; k++)
                for (int p = 0; p < 7; p++) {
                    struct sampling how = {.temperature = heat[h], .top_k = cut[k] > 0 ? cut[k] : 0, .top_p = part[p]};
                    double sum, total = brute(l, n, heat[h], how.top_k, part[p], want);
                    ck_assert_int_eq(sampling_weights(s, &how, heat[h], l, got, &sum), 1);
                    ck_assert_msg(memcmp(got, want, (size_t)n * sizeof *got) == 0, "trial %d, temperature %g, top-k %d, top-p %g",
                                  trial, heat[h], how.top_k, part[p]);
                    ck_assert(sum == total && sum > 0);
                    for (int i = 0; i < n; i++) kept += got[i] > 0;
                }
    }
    ck_assert_int_gt(kept, 0);
    sampler_close(s);
}
END_TEST

/* what the words mean, by hand. kept: bits of ids */
START_TEST(cuts_through_ties_keep_the_lower_ids)
{
    static const struct { float l[6]; int k; double p; unsigned kept; } row[] = {
        {{1, 3, 3, 2, 3, 0}, 2, 1, 1 << 1 | 1 << 2},            /* three are equal, two stay */
        {{1, 3, 3, 2, 3, 0}, 4, 1, 1 << 1 | 1 << 2 | 1 << 4 | 1 << 3},
        {{2, 2, 2, 2, 2, 2}, 1, 1, 1},
        {{2, 2, 2, 2, 2, 2}, 0, 0.5, 7},                        /* 0, 1/6, 2/6 lie before; 3/6 is not below 1/2 */
        {{2, 2, 2, 2, 2, 2}, 0, 0.51, 15},                      /* the one that crosses stays */
        {{2, 2, 2, 2, 2, 2}, 0, 1e-6, 1},                       /* one always stays */
        {{2, 2, 2, 2, 2, 2}, 4, 0.5, 3},                        /* P of what top-k left: 2 of 4 */
        {{2, 2, 2, 2, 2, 2}, 6, 1, 63},
        {{0.0f, -0.0f, -9, -9, -9, -9}, 1, 1, 1},               /* zeros are equal, whatever their sign */
        {{-0.0f, 0.0f, -9, -9, -9, -9}, 1, 1, 1},
        {{-INFINITY, 1, -INFINITY, -INFINITY, 1, 1}, 0, 1, 1 << 1 | 1 << 4 | 1 << 5},
        {{-INFINITY, 1, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, 3, 0.9, 1 << 1}, /* top-k finds no third */
    };
    struct sampler *s = open_sampler(6);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct sampling how = {.temperature = 1, .top_k = row[i].k, .top_p = row[i].p};
        double w[6], total;
        unsigned kept = 0;
        ck_assert_int_eq(sampling_weights(s, &how, 1, row[i].l, w, &total), 1);
        for (int t = 0; t < 6; t++) kept |= (unsigned)(w[t] > 0) << t;
        ck_assert_msg(kept == row[i].kept, "row %zu: kept %x, must be %x", i, kept, row[i].kept);
        for (int n = 0; n < 200; n++) /* and nothing else is ever drawn */
            ck_assert(kept >> sampling_token(s, &how, row[i].l, n, 7) & 1);
    }
    sampler_close(s);
}
END_TEST

/* ---- rows at the edge of numbers ------------------------------------------------------------------- */

START_TEST(extreme_temperatures_and_logits)
{
    struct sampler *s = open_sampler(4);
    static const float wide[] = {-3e38f, 3e38f, 0, 2e38f}, near[] = {1, 1.0000001f, 1, 0.9999999f}, pair[] = {5, 7, 7, 6};
    int seen[4] = {0};
    double w[4], total;
    for (int n = 0; n < 2000; n++) {
        struct sampling cold = {.temperature = 1e-300}, hot = {.temperature = 1e300}, warm = {.temperature = 1};
        ck_assert_int_eq(sampling_token(s, &cold, wide, n, 1), 1);
        ck_assert_int_eq(sampling_token(s, &warm, wide, n, 1), 1);
        ck_assert_int_eq(sampling_token(s, &cold, near, n, 1), 1);
        int32_t tie = sampling_token(s, &cold, pair, n, 1);
        ck_assert(tie == 1 || tie == 2);
        seen[sampling_token(s, &hot, wide, n, 1)]++;
    }
    for (int i = 0; i < 4; i++) ck_assert(seen[i] > 400 && seen[i] < 600); /* uniform: 500, five sigmas are 97 */
    struct sampling hot = {.temperature = 1e300};
    ck_assert_int_eq(sampling_weights(s, &hot, 1e300, wide, w, &total), 1);
    ck_assert(total == 4);
    sampler_close(s);
}
END_TEST

/* A damaged row is -1, never a token, wherever it lies and whoever reads it. */
START_TEST(rows_that_are_no_numbers_give_no_token)
{
    enum { V = 5 };
    static const float bad[][V] = {{NAN, 1, 2, 3, 4}, {1, 2, 3, 4, NAN}, {1, -NAN, 3, 4, 5}, {1, 2, INFINITY, 4, 5},
                                   {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, {NAN, NAN, NAN, NAN, NAN}};
    static const float good[V] = {-INFINITY, -INFINITY, 3, -INFINITY, -INFINITY};
    struct sampler *s = open_sampler(V);
    const struct sampling way[] = {{.temperature = 1}, {.temperature = 0.1, .top_k = 1}, {.temperature = 1, .top_p = 0.9},
                                   {.temperature = 1, .draws_drafts = 1}};
    double w[V], total = -7;
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++)
        for (size_t k = 0; k < sizeof way / sizeof way[0]; k++) {
            const struct sampling *how = &way[k];
            float p[3 * V], q[2 * V];
            static const int32_t draft[2] = {2, 2};
            ck_assert_int_eq(sampling_weights(s, how, 1, bad[b], w, &total), 0);
            ck_assert(total == -7); /* set on success only */
            ck_assert_int_eq(sampling_token(s, how, bad[b], 1, 2), -1);
            ck_assert_int_eq(sampling_draft(s, how, bad[b], 1, 2), -1);
            for (int at = 0; at < 3; at++) { /* the damaged row is the at-th of three */
                for (int i = 0; i < 3; i++) memcpy(p + i * V, i == at ? bad[b] : good, sizeof good);
                for (int i = 0; i < 2; i++) memcpy(q + i * V, good, sizeof good);
                struct sampling_verdict v = sampling_accept(s, how, p, how->draws_drafts ? q : NULL, draft, 2, 1, 2);
                ck_assert(v.bonus == -1 && v.accepted == 0);
                static const int32_t wrong[2] = {4, 2}; /* rejected at once: the rows behind are not looked at */
                v = sampling_accept(s, how, p, NULL, wrong, 2, 1, 2);
                ck_assert_int_eq(v.bonus, at == 0 ? -1 : 2);
                ck_assert_int_eq(v.accepted, 0);
            }
            if (!how->draws_drafts) continue;
            for (int i = 0; i < 3; i++) memcpy(p + i * V, good, sizeof good);
            memcpy(q + V, bad[b], sizeof good);
            ck_assert_int_eq(sampling_accept(s, how, p, q, draft, 2, 1, 2).bonus, -1);
        }
    sampler_close(s);
    ck_assert_int_eq(sampler_open(0, &s), ST_E_RANGE);
}
END_TEST

/* ---- the numbers ----------------------------------------------------------------------------------- */

START_TEST(a_number_belongs_to_seed_question_position_and_purpose)
{
    enum { N = 6 };
    double u[N * N * N * 3];
    int n = 0;
    static const int some[N] = {0, 1, 2, 255, 65536, 2147483647};
    static const uint64_t seed[N] = {0, 1, 2, 0x100000000u, 0xffffffffu, UINT64_MAX};
    for (int a = 0; a < N; a++)
        for (int b = 0; b < N; b++)
            for (int c = 0; c < N; c++)
                for (int d = SAMPLING_TOKEN; d <= SAMPLING_DRAFT; d++) {
                    struct sampling how = {.temperature = 1, .seed = seed[a]};
                    u[n] = sampling_unit(&how, some[b], some[c], (enum sampling_purpose)d);
                    ck_assert(u[n] >= 0 && u[n] < 1);
                    how.temperature = 2, how.top_p = 0.5, how.top_k = 3; /* nothing else counts */
                    ck_assert(u[n] == sampling_unit(&how, some[b], some[c], (enum sampling_purpose)d));
                    n++;
                }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) ck_assert(u[i] != u[j]);
}
END_TEST

/* ---- decisions ------------------------------------------------------------------------------------- */

static void random_rows(float *l, int n, uint64_t seed, double spread)
{
    for (int i = 0; i < n; i++) l[i] = (float)(spread * rng_unit(seed, 1, (uint64_t)i));
}

/* One-hot p, by -inf or by top-k 1: sampling is greedy, ties included, whatever the drafts. */
START_TEST(a_one_hot_target_decides_as_greedy_does)
{
    enum { V = 9, N = 4 };
    struct sampler *s = open_sampler(V);
    float p[(N + 1) * V], q[N * V];
    for (int trial = 0; trial < 3000; trial++) {
        int32_t draft[N], top[N + 1];
        struct sampling how = {.temperature = 0.8, .top_k = 1, .seed = 11};
        for (int i = 0; i < (N + 1) * V; i++) p[i] = (float)(rng_u64(6, (uint64_t)trial, (uint64_t)i) % 4);
        random_rows(q, N * V, (uint64_t)trial, 3);
        for (int i = 0; i <= N; i++) {
            top[i] = 0;
            for (int t = 1; t < V; t++)
                if (p[i * V + t] > p[i * V + top[i]]) top[i] = t;
        }
        for (int i = 0; i < N; i++) {
            draft[i] = rng_u64(8, (uint64_t)trial, (uint64_t)i) % 3 ? top[i] : (top[i] + 1) % V;
            for (int t = 0; trial % 2 && t < V; t++)
                if (t != top[i]) p[i * V + t] = -INFINITY;
        }
        if (trial % 2 && top[N] >= 0) how.top_k = 0, p[N * V + top[N]] = 1e30f;
        how.draws_drafts = trial % 3 == 0; /* q draws what it likes; only the target's token holds */
        for (int i = 0; i < N && how.draws_drafts; i++) q[i * V + draft[i]] += 1;
        int a = accept_greedy(draft, top, N);
        struct sampling_verdict v = sampling_accept(s, &how, p, how.draws_drafts ? q : NULL, draft, N, trial, 50);
        ck_assert_int_eq(v.accepted, a);
        ck_assert_int_eq(v.bonus, top[a]);
    }
    sampler_close(s);
}
END_TEST

/* With drafts that were not drawn a round says what plain sampling says, token for token, whatever the drafts are. */
START_TEST(argmax_drafts_change_no_token)
{
    enum { V = 6, LONG = 12, N = 3 };
    struct sampler *s = open_sampler(V);
    int accepted = 0, rounds = 0;
    for (int question = 0; question < suite_some(2000, 50); question++) {
        float row[LONG + N + 1][V]; /* of a position; a row that depends on the token before would change nothing here */
        random_rows(row[0], (LONG + N + 1) * V, (uint64_t)question, 2);
        struct sampling how = {.temperature = 0.7, .top_p = question % 2 ? 0.9 : 1, .seed = 3};
        for (int pos = 0; pos < LONG;) {
            int n = (int)(rng_u64(1, (uint64_t)question, (uint64_t)pos) % (N + 1));
            int32_t draft[N];
            for (int i = 0; i < n; i++) draft[i] = (int32_t)(rng_u64(2, (uint64_t)question, (uint64_t)(pos + i)) % V);
            struct sampling_verdict v = sampling_accept(s, &how, row[pos], NULL, draft, n, question, pos);
            for (int i = 0; i < v.accepted; i++)
                ck_assert_int_eq(draft[i], sampling_token(s, &how, row[pos + i], question, pos + i));
            ck_assert_int_eq(v.bonus, sampling_token(s, &how, row[pos + v.accepted], question, pos + v.accepted));
            if (v.accepted < n) ck_assert_int_ne(v.bonus, draft[v.accepted]);
            accepted += v.accepted;
            rounds++;
            pos += v.accepted + 1;
        }
    }
    ck_assert_int_gt(accepted, rounds / 10);
    sampler_close(s);
}
END_TEST

START_TEST(equal_distributions_accept_and_disjoint_ones_reject)
{
    enum { V = 8 };
    struct sampler *s = open_sampler(V);
    float p[2 * V], q[V];
    for (int n = 0; n < 20000; n++) {
        struct sampling how = {.temperature = 0.6, .draws_drafts = 1, .top_p = n % 2 ? 0.8 : 1, .top_k = n % 3 ? 5 : 0};
        random_rows(p, 2 * V, (uint64_t)n, 3);
        memcpy(q, p, sizeof q);
        int32_t d = sampling_draft(s, &how, q, n, 9);
        ck_assert_int_eq(sampling_accept(s, &how, p, q, &d, 1, n, 9).accepted, 1);
        for (int i = 0; i < V; i++) *(i % 2 ? &p[i] : &q[i]) = -INFINITY;
        d = sampling_draft(s, &how, q, n, 9);
        struct sampling_verdict v = sampling_accept(s, &how, p, q, &d, 1, n, 9);
        ck_assert_int_eq(v.accepted, 0);
        ck_assert_int_eq(v.bonus % 2, 0);
        how.draft_temperature = 5; /* of q alone: what p rules out stays out */
        d = sampling_draft(s, &how, q, n, 9);
        ck_assert_int_eq(sampling_accept(s, &how, p, q, &d, 1, n, 9).accepted, 0);
    }
    sampler_close(s);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "sampling", 300);
    tcase_add_loop_test(tc, filters_are_those_of_brute_force, 0, 7);
    SUITE_TEST(tc, cuts_through_ties_keep_the_lower_ids);
    SUITE_TEST(tc, extreme_temperatures_and_logits);
    SUITE_TEST(tc, rows_that_are_no_numbers_give_no_token);
    SUITE_TEST(tc, a_number_belongs_to_seed_question_position_and_purpose);
    SUITE_TEST(tc, a_one_hot_target_decides_as_greedy_does);
    SUITE_TEST(tc, argmax_drafts_change_no_token);
    SUITE_TEST(tc, equal_distributions_accept_and_disjoint_ones_reject);
}

int main(void)
{
    return suite_main_serial();
}
