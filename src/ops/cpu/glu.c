#include "ops/cpu/cpu_math.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pages.h"

void cpu_embed(struct ops *o, const void *table, int first, int n_ids, int h, const int32_t *id, int t, float *y)
{
    (void)o;
    const uint16_t *e = table;
    for (int i = 0; i < t; i++) {
        int64_t r = (int64_t)id[i] - first;
        float *row = y + (int64_t)i * h;
        if (r >= 0 && r < n_ids) pages_load(row, e + r * h, h, OPS_KV_BF16);
        else memset(row, 0, (size_t)h * sizeof *row);
    }
}

void cpu_gather_rows(struct ops *o, float *y, const float *x, const int32_t *from, int t, int n)
{
    (void)o;
    for (int i = 0; i < t; i++) memcpy(y + (int64_t)i * n, x + (int64_t)from[i] * n, (size_t)n * sizeof *y);
}

CPU_CLONES static void glu_add(float *restrict y, const float *restrict x, int64_t n)
{
    int64_t i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) y[i + l] += x[i + l];
    for (; i < n; i++) y[i] += x[i];
}

void cpu_add(struct ops *o, float *y, const float *x, int64_t n)
{
    (void)o;
    glu_add(y, x, n);
}

/* tree_add works on blocks of elements with one partial sum per level of the tree. Partial sums start from
 * +0, so none is ever -0 and a rank's own subtree can be formed before or after it is sent. */
enum { TREE_BLOCK = 256, TREE_DEPTH = 32 };

/* acc[0][0..m) := sum of leaves [first, first + n): halves while n is even, then index order */
static void tree_block(float (*acc)[TREE_BLOCK], const float *src, int64_t stride, const int *order, int first,
                       int n, int m)
{
    if (n % 2 == 0 && n > 0) {
        tree_block(acc, src, stride, order, first, n / 2, m);
        tree_block(acc + 1, src, stride, order, first + n / 2, n / 2, m);
        glu_add(acc[0], acc[1], m);
        return;
    }
    memset(acc[0], 0, sizeof acc[0]);
    for (int i = first; i < first + n; i++) glu_add(acc[0], src + (order ? order[i] : i) * stride, m);
}

void cpu_tree_add(struct ops *o, float *dst, const float *src, int64_t stride, const int *order, int n_leaves,
                  int64_t n)
{
    (void)o;
    float acc[TREE_DEPTH][TREE_BLOCK];
    for (int64_t i = 0; i < n; i += TREE_BLOCK) {
        int m = n - i < TREE_BLOCK ? (int)(n - i) : TREE_BLOCK;
        tree_block(acc, src + i, stride, order, 0, n_leaves, m);
        memcpy(dst + i, acc[0], (size_t)m * sizeof *dst);
    }
}

void cpu_round_kv(struct ops *o, float *x, int64_t n, enum ops_kv kv)
{
    (void)o;
    pages_round(x, x, n, kv);
}

CPU_CLONES static void glu_gate(float *restrict x, const float *restrict g, int n)
{
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) x[i + l] *= cpu_sigmoid(g[i + l]);
    for (; i < n; i++) x[i] *= cpu_sigmoid(g[i]);
}

void cpu_gate(struct ops *o, float *x, int64_t ldx, const float *g, int64_t ldg, int t, int n)
{
    (void)o;
    for (int i = 0; i < t; i++) glu_gate(x + i * ldx, g + i * ldg, n);
}

CPU_CLONES static void glu_situ(const float *restrict g, const float *restrict u, float b1, float b2, int n,
                                float *restrict y)
{
    float i1 = 1.0f / b1, i2 = 1.0f / b2, b = b1 * b2;
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) y[i + l] = cpu_situ1(g[i + l], u[i + l], i1, i2, b);
    for (; i < n; i++) y[i] = cpu_situ1(g[i], u[i], i1, i2, b);
}

void cpu_situ(struct ops *o, const float *x, int64_t ldx, float b1, float b2, int t, int n, float *y, int64_t ldy)
{
    (void)o;
    for (int i = 0; i < t; i++) glu_situ(x + i * ldx, x + i * ldx + n, b1, b2, n, y + i * ldy);
}

CPU_CLONES static void glu_swiglu(const float *restrict g, const float *restrict u, int n, float *restrict y)
{
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) y[i + l] = cpu_silu(g[i + l]) * u[i + l];
    for (; i < n; i++) y[i] = cpu_silu(g[i]) * u[i];
}

void cpu_swiglu(struct ops *o, const float *x, int64_t ldx, int t, int n, float *y, int64_t ldy)
{
    (void)o;
    for (int i = 0; i < t; i++) glu_swiglu(x + i * ldx, x + i * ldx + n, n, y + i * ldy);
}
