/* The law of the first three tokens: 200,000 requests of a small model whose joint distribution is known, decoded in
 * speculative rounds by sampling_accept, which the program's rounds call; compared with that distribution and with plain
 * sampling. The test must be able to fail: rules that are wrong in the ways such rules get wrong fail it. */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "chi2.h"
#include "model/sampling.h"

const char *const suite_name = "sampling_law";

enum { V = 6, TOKENS = 3, CELLS = V * V * V, BLOCK = 3, PREFIXES = 1 + V + V * V, DRAWS = 200000 };

struct model { /* logits after each prefix of fewer than three tokens, and of the draft after it */
    float p[PREFIXES][V], q[PREFIXES][V];
};

static int prefix_of(const int32_t *token, int n)
{
    int at = 0;
    for (int i = 0; i < n; i++) at = at * V + token[i] + 1;
    return at % PREFIXES; /* of longer ones any row will do: their tokens are not counted */
}

static void make_model(struct model *m)
{
    for (int i = 0; i < PREFIXES; i++)
        for (int t = 0; t < V; t++) {
            m->p[i][t] = (float)(3 * rng_unit(77, (uint64_t)i, (uint64_t)t));
            m->q[i][t] = m->p[i][t] + (float)(2.5 * rng_unit(78, (uint64_t)i, (uint64_t)t) - 1.25); /* a fair draft */
        }
    m->p[2][1] = m->p[2][3] = m->p[2][4] = 2; /* ties */
    m->p[3][2] = -INFINITY;
}

/* the joint distribution, straight from the definition */
static void exact_joint(const struct model *m, double t, double top_p, double *joint)
{
    double p[PREFIXES][V];
    for (int i = 0; i < PREFIXES; i++) {
        double sum = 0, kept = 0;
        int used[V] = {0};
        for (int k = 0; k < V; k++) sum += p[i][k] = exp(m->p[i][k] / t);
        for (double mass = 0; mass < top_p * sum;) { /* the likeliest that is left, the lower id of two */
            int best = -1;
            for (int k = 0; k < V; k++)
                if (!used[k] && (best < 0 || m->p[i][k] > m->p[i][best])) best = k;
            if (best < 0) break;
            used[best] = 1;
            mass += p[i][best];
        }
        for (int k = 0; k < V; k++) kept += p[i][k] *= used[k];
        for (int k = 0; k < V; k++) p[i][k] /= kept;
    }
    for (int32_t a = 0; a < V; a++)
        for (int32_t b = 0; b < V; b++)
            for (int32_t c = 0; c < V; c++)
                joint[(a * V + b) * V + c] = p[0][a] * p[prefix_of((int32_t[]){a}, 1)][b] *
                                             p[prefix_of((int32_t[]){a, b}, 2)][c];
}

/* ---- rounds ---------------------------------------------------------------------------------------- */

enum drafts { PLAIN, ARGMAX, PARALLEL, MARKOV }; /* argmax; slots drawn side by side (DFlash), one after the other (DSpark) */

typedef struct sampling_verdict rule(struct sampler *s, const struct sampling *how, const float *p, const float *q,
                                     const int32_t *draft, int n, int question, int position);

struct round_rows { float p[BLOCK + 1][V], q[BLOCK][V]; };

static int32_t argmax_of(const float *l)
{
    int best = 0;
    for (int i = 1; i < V; i++)
        if (l[i] > l[best]) best = i;
    return best;
}

/* drafts behind out[n], and both sides' rows */
static void make_drafts(struct sampler *s, const struct model *m, const struct sampling *how, enum drafts kind,
                        int question, int32_t *out, int n, int n_draft, struct round_rows *r)
{
    for (int i = 0; i < n_draft; i++) {
        /* side by side: slot i does not know the drafts before it, so it guesses from what is there */
        const float *q = m->q[kind == MARKOV ? prefix_of(out, n + i) : (prefix_of(out, n) + i) % PREFIXES];
        memcpy(r->q[i], q, sizeof r->q[i]);
        out[n + i] = kind == ARGMAX ? argmax_of(q) : sampling_draft(s, how, q, question, n + i);
    }
    for (int i = 0; i <= n_draft; i++) memcpy(r->p[i], m->p[prefix_of(out, n + i)], sizeof r->p[i]);
}

/* one request up to three tokens; what stands in out behind them does not count */
static int decode(struct sampler *s, const struct model *m, const struct sampling *how, enum drafts kind, rule *accept,
                  int question, int *accepted)
{
    int32_t out[TOKENS + 2 * BLOCK + 2];
    for (int n = 0; n < TOKENS;) {
        struct round_rows r;
        int n_draft = kind == PLAIN ? 0 : 1 + (question + n) % BLOCK;
        make_drafts(s, m, how, kind, question, out, n, n_draft, &r);
        struct sampling_verdict v = accept(s, how, r.p[0], how->draws_drafts ? r.q[0] : NULL, out + n, n_draft, question, n);
        ck_assert(v.accepted >= 0 && v.accepted <= n_draft && v.bonus >= 0 && v.bonus < V);
        n += v.accepted;
        *accepted += v.accepted;
        out[n++] = v.bonus;
    }
    return (out[0] * V + out[1]) * V + out[2];
}

static const struct way {
    double temperature, top_p, draft_temperature;
    enum drafts kind;
    const char *name;
} ways[] = {
    {0.7, 1, 0, PLAIN, "plain"},
    {0.7, 1, 0, ARGMAX, "argmax"},
    {0.7, 1, 0, PARALLEL, "drawn side by side"},
    {0.7, 1, 0, MARKOV, "drawn in turn"},
    {1.0, 1, 0, PLAIN, "plain"},
    {1.0, 1, 0, ARGMAX, "argmax"},
    {1.0, 1, 0, PARALLEL, "drawn side by side"},
    {1.0, 1, 0, MARKOV, "drawn in turn"},
    {1.0, 0.9, 0, PLAIN, "plain"},
    {1.0, 0.9, 0, ARGMAX, "argmax"},
    {1.0, 0.9, 0, PARALLEL, "drawn side by side"},
    {1.0, 0.9, 0, MARKOV, "drawn in turn"},
    {1.0, 1, 2.0, MARKOV, "drawn in turn, hotter"}, /* any q will do, as long as it is the one drawn from */
    {1.0, 0.9, 0.3, PARALLEL, "drawn side by side, colder"},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

/* counts of DRAWS requests; seed apart from the rule, so that samples are independent */
static void sample(const struct way *w, rule *accept, uint64_t seed, int draws, int *count, int *accepted)
{
    struct sampling how = {.temperature = w->temperature, .top_p = w->top_p, .seed = seed,
                           .draws_drafts = w->kind == PARALLEL || w->kind == MARKOV,
                           .draft_temperature = w->draft_temperature};
    struct model m;
    struct sampler *s;
    make_model(&m);
    ck_assert_int_eq(sampler_open(V, &s), ST_OK);
    memset(count, 0, CELLS * sizeof *count);
    *accepted = 0;
    for (int i = 0; i < draws; i++) count[decode(s, &m, &how, w->kind, accept, i, accepted)]++;
    sampler_close(s);
}

/* p of the rule's draws against the exact law and against plain draws of another seed: the smaller, and which */
static double test_of(const struct way *w, rule *accept, int draws, int *accepted)
{
    struct way plain = {w->temperature, w->top_p, 0, PLAIN, ""};
    struct model m;
    double joint[CELLS];
    int count[CELLS], other[CELLS], none, df[2];
    make_model(&m);
    exact_joint(&m, w->temperature, w->top_p, joint);
    for (int i = 0; i < CELLS; i++) joint[i] *= draws;
    sample(w, accept, 1, draws, count, accepted);
    sample(&plain, sampling_accept, 2, draws, other, &none);
    double p[2] = {chi2_exact(count, joint, CELLS, &df[0]), chi2_pair(count, other, CELLS, &df[1])};
    printf("temperature %g, top-p %g, %s: p %.3g (%d degrees of freedom) against the law, %.3g (%d) against plain sampling; "
           "%.3f drafts hold a request\n", w->temperature, w->top_p, w->name, p[0], df[0], p[1], df[1],
           (double)*accepted / draws);
    ck_assert(df[0] > 20 && df[1] > 20);
    return p[0] < p[1] ? p[0] : p[1];
}

START_TEST(rounds_have_the_law_of_plain_sampling)
{
    int accepted, draws = suite_some(DRAWS, 2000);
    ck_assert(test_of(&ways[_i], sampling_accept, draws, &accepted) > 0.01);
    ck_assert(ways[_i].kind == PLAIN ? accepted == 0 : accepted > draws / 4); /* the rule had something to decide */
}
END_TEST

/* ---- rules that are wrong ----------------------------------------------------------------------------- */

static double chance(struct sampler *s, const struct sampling *how, double t, const float *l, double p[V])
{
    double total;
    ck_assert_int_eq(sampling_weights(s, how, t, l, p, &total), 1);
    for (int i = 0; i < V; i++) p[i] /= total;
    return total;
}

static int32_t pick_of(const double *w, double u)
{
    double sum = 0, total = 0;
    int last = 0;
    for (int i = 0; i < V; i++) total += w[i];
    for (int i = 0; i < V; i++) {
        if (w[i] <= 0) continue;
        sum += w[i];
        last = i;
        if (sum > u * total) break;
    }
    return last;
}

enum fault { NO_FAULT, GENEROUS, KEEPS_D, FULL_P, ONE_NUMBER, UNFILTERED, OTHER_Q, LAST_FROM_Q, N_FAULTS };

/* The two rules written out as in the papers, with a fault. */
static struct sampling_verdict written_out(enum fault f, struct sampler *s, const struct sampling *how, const float *p,
                                           const float *q, const int32_t *draft, int n, int question, int position)
{
    double a[V], b[V] = {0}, heat = how->draft_temperature > 0 ? how->draft_temperature : how->temperature;
    struct sampling open = *how;
    open.top_p = 1;
    for (int i = 0;; i++) {
        double u = sampling_unit(how, question, position + i, SAMPLING_ACCEPT);
        double v = f == ONE_NUMBER ? u : sampling_unit(how, question, position + i, SAMPLING_TOKEN);
        chance(s, how, how->temperature, p + i * V, a);
        if (i == n) {
            if (f == LAST_FROM_Q && n > 0) chance(s, how, heat, q + (n - 1) * V, a);
            return (struct sampling_verdict){i, pick_of(a, v)};
        }
        int32_t d = draft[i];
        memset(b, 0, sizeof b);
        b[d] = 1;
        if (q) chance(s, how, f == OTHER_Q ? 1.7 * heat : heat, q + i * V, b);
        double hold = a[d];
        if (f == UNFILTERED) {
            double all[V];
            chance(s, &open, how->temperature, p + i * V, all);
            hold = all[d];
        }
        if (u * b[d] < hold * (f == GENEROUS ? 1.1 : 1)) continue;
        for (int k = 0; k < V; k++) { /* p without what q could have given */
            double rest = f == KEEPS_D || f == FULL_P ? a[k] : a[k] - b[k];
            b[k] = rest > 0 ? rest : 0;
        }
        return (struct sampling_verdict){i, pick_of(b, v)};
    }
}

#define RULE(name, fault)                                                                                              \
    static struct sampling_verdict name(struct sampler *s, const struct sampling *how, const float *p, const float *q, \
                                        const int32_t *draft, int n, int question, int position)                       \
    {                                                                                                                  \
        return written_out(fault, s, how, p, q, draft, n, question, position);                                         \
    }
RULE(as_written, NO_FAULT)
RULE(generous, GENEROUS)
RULE(keeps_d, KEEPS_D)
RULE(full_p, FULL_P)
RULE(one_number, ONE_NUMBER)
RULE(unfiltered, UNFILTERED)
RULE(other_q, OTHER_Q)
RULE(last_from_q, LAST_FROM_Q)

static struct sampling_verdict greedy(struct sampler *s, const struct sampling *how, const float *p, const float *q,
                                      const int32_t *draft, int n, int question, int position)
{
    (void)q;
    for (int i = 0;; i++)
        if (i == n || draft[i] != argmax_of(p + i * V))
            return (struct sampling_verdict){i, sampling_token(s, how, p + i * V, question, position + i)};
}

static const struct {
    int way; /* index in ways */
    rule *accept;
    int holds;
    const char *what;
} rules[] = {
    {5, as_written, 1, "p(d), else p without d"},
    {7, as_written, 1, "p/q, else max(p - q, 0)"},
    {10, as_written, 1, "p/q in the nucleus"},
    {5, generous, 0, "accepts 1.1 p(d)"},
    {7, generous, 0, "accepts 1.1 p/q"},
    {5, keeps_d, 0, "draws again with d"},
    {7, full_p, 0, "draws again from p, not max(p - q, 0)"},
    {5, one_number, 0, "the same number accepts and draws again"},
    {7, one_number, 0, "the same number accepts and draws again"},
    {9, unfiltered, 0, "accepts by p before top-p"},
    {7, other_q, 0, "q of another temperature than it was drawn at"},
    {7, last_from_q, 0, "bonus from the draft's row"},
    {5, greedy, 0, "accepts what is the argmax"},
};

START_TEST(wrong_rules_fail_the_same_test)
{
    int accepted;
    printf("%s: ", rules[_i].what);
    double p = test_of(&ways[rules[_i].way], rules[_i].accept, DRAWS, &accepted);
    ck_assert(rules[_i].holds ? p > 0.01 : p < 1e-9);
}
END_TEST

/* the measure itself: quantiles as tables print them */
START_TEST(the_probability_of_a_statistic_is_that_of_the_tables)
{
    static const struct { double x; int df; double p; } row[] = {
        {3.841459, 1, 0.05}, {6.634897, 1, 0.01}, {18.307038, 10, 0.05}, {124.342113, 100, 0.05}, {135.806723, 100, 0.01},
        {77.929465, 100, 0.95}, {9.341818, 10, 0.5}, {29.588298, 10, 0.001}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        ck_assert_msg(fabs(chi2_p(row[i].x, row[i].df) / row[i].p - 1) < 1e-5, "%g with %d: %.9g", row[i].x, row[i].df,
                      chi2_p(row[i].x, row[i].df));
    ck_assert(chi2_p(0, 5) == 1 && chi2_p(1e6, 5) < 1e-300);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "law", 600);
    SUITE_TEST(tc, the_probability_of_a_statistic_is_that_of_the_tables);
    tcase_add_loop_test(tc, rounds_have_the_law_of_plain_sampling, 0, N_WAYS);
    tcase_add_loop_test(tc, wrong_rules_fail_the_same_test, 0, suite_some((int)(sizeof rules / sizeof rules[0]), 0));
}

int main(void)
{
    return suite_main_serial();
}
