#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_math.h"
#include "ops/cpu/cpu_ops.h"

CPU_CLONES static void route_scores(const float *restrict logit, int n, float *restrict s)
{
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) s[i + l] = cpu_sigmoid(logit[i + l]);
    for (; i < n; i++) s[i] = cpu_sigmoid(logit[i]);
}

/* the k largest of s + bias into idx, best first; an equal value stays behind the lower id. NaN counts as
 * -inf, so idx always holds k different ids. val[k] is scratch. */
static void top_k(const float *s, const float *bias, int n, int k, int32_t *idx, float *val)
{
    int have = 0;
    for (int j = 0; j < n; j++) {
        float v = bias ? s[j] + bias[j] : s[j];
        if (v != v) v = -INFINITY;
        if (have == k && !(v > val[k - 1])) continue;
        int at = have < k ? have++ : k - 1;
        for (; at > 0 && v > val[at - 1]; at--) {
            val[at] = val[at - 1];
            idx[at] = idx[at - 1];
        }
        val[at] = v;
        idx[at] = j;
    }
}

static void sort_ids(int32_t *idx, int k)
{
    for (int i = 1; i < k; i++) {
        int32_t v = idx[i];
        int j = i;
        for (; j > 0 && idx[j - 1] > v; j--) idx[j] = idx[j - 1];
        idx[j] = v;
    }
}

void cpu_route(struct ops *o, const float *logits, const float *bias, int n_experts, int k, float scale, int t,
               int32_t *idx, float *w)
{
    float *s = cpu_scratch(o, (size_t)n_experts * sizeof *s);
    if (!s) return;
    for (int i = 0; i < t; i++) {
        int32_t *id = idx + (int64_t)i * k;
        float *wt = w + (int64_t)i * k, sum = 0;
        route_scores(logits + (int64_t)i * n_experts, n_experts, s);
        top_k(s, bias, n_experts, k, id, wt);
        sort_ids(id, k);
        for (int j = 0; j < k; j++) sum += s[id[j]];
        for (int j = 0; j < k; j++) wt[j] = s[id[j]] / (sum + 1e-20f) * scale;
    }
}

/* index of the first maximum of a row, -1 when it holds a NaN; each lane keeps its own first maximum */
CPU_CLONES static int route_row_argmax(const float *x, int n)
{
    float m[CPU_LANES], top = -INFINITY;
    int at[CPU_LANES] = {0}, bad[CPU_LANES] = {0}, best = 0, any = 0, i = 0;
    for (int l = 0; l < CPU_LANES; l++) m[l] = -INFINITY;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) {
            float v = x[i + l];
            at[l] = v > m[l] ? i : at[l];
            m[l] = v > m[l] ? v : m[l];
            bad[l] |= v != v;
        }
    for (int l = 0; l < CPU_LANES; l++) {
        any |= bad[l];
        if (m[l] > top || (m[l] == top && at[l] + l < best)) {
            top = m[l];
            best = at[l] + l;
        }
    }
    for (; i < n; i++) {
        any |= x[i] != x[i];
        if (x[i] > top) {
            top = x[i];
            best = i;
        }
    }
    return any ? -1 : best;
}

void cpu_argmax(struct ops *o, const float *logits, int64_t ldx, int t, int n, float *val, int32_t *idx)
{
    (void)o;
    for (int i = 0; i < t; i++) {
        idx[i] = route_row_argmax(logits + i * ldx, n);
        val[i] = idx[i] < 0 ? NAN : logits[i * ldx + idx[i]];
    }
}
