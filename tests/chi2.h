/* chi2 - Pearson's test for tests: statistic to probability. */
#ifndef PDFLASH_TESTS_CHI2_H
#define PDFLASH_TESTS_CHI2_H

#include <math.h>

/* chi2_p - chance of a statistic at least as large with df degrees of freedom: Q(df / 2, x / 2), the upper incomplete
 * gamma function, by its series below the hump and by its continued fraction above. */
static inline double chi2_p(double x, int df)
{
    double a = df / 2.0, h = x / 2, scale = exp(a * log(h) - h - lgamma(a));
    if (!(x > 0)) return 1;
    if (h < a + 1) {
        double term = 1 / a, sum = term;
        for (int n = 1; n < 100000 && term > 1e-16 * sum; n++) sum += term *= h / (a + n);
        return 1 - scale * sum;
    }
    double b = h + 1 - a, c = 1e300, d = 1 / b, f = d;
    for (int n = 1; n < 100000; n++) {
        double an = -n * (n - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        f *= d * c;
        if (fabs(d * c - 1) < 1e-15) break;
    }
    return scale * f;
}

/* chi2_exact - counts[n] against expected[n] (same sum). Cells that expect fewer than 5 are pooled, the pool counts when
 * it expects 5. A count where 0 is expected is impossible: p 0. *df_p: degrees of freedom. */
static inline double chi2_exact(const int *count, const double *expected, int n, int *df_p)
{
    double x = 0, pool = 0, pooled = 0;
    int df = -1;
    for (int i = 0; i < n; i++) {
        if (count[i] > 0 && !(expected[i] > 0)) {
            *df_p = n - 1;
            return 0;
        }
        if (expected[i] < 5) {
            pool += expected[i];
            pooled += count[i];
            continue;
        }
        x += (count[i] - expected[i]) * (count[i] - expected[i]) / expected[i];
        df++;
    }
    if (pool >= 5) {
        x += (pooled - pool) * (pooled - pool) / pool;
        df++;
    }
    *df_p = df;
    return chi2_p(x, df);
}

/* chi2_pair - two samples of the same size: are they of one law? */
static inline double chi2_pair(const int *a, const int *b, int n, int *df_p)
{
    double x = 0, pool_a = 0, pool_b = 0;
    int df = -1;
    for (int i = 0; i <= n; i++) {
        double u = i < n ? a[i] : pool_a, v = i < n ? b[i] : pool_b;
        if (u + v < 10 && i < n) {
            pool_a += u;
            pool_b += v;
            continue;
        }
        if (u + v < 10) continue;
        x += (u - v) * (u - v) / (u + v);
        df++;
    }
    *df_p = df;
    return chi2_p(x, df);
}

#endif
