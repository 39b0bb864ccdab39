/* y = x . W^T on packed weights: panels of 16 outputs x blocks of rows, the tree of the matrix's leaves.
 *
 * Loops, outermost first: block of at most CPU_ROWS rows; group of panels; leaf; piece of at most CPU_KC
 * inputs (an MXFP4 piece is expanded here, once for all rows of the block); pass of the kernel's rows. Sums
 * travel through memory between pieces, which changes no bit. A finished leaf is folded into a stack of
 * partial sums, one entry per level of the tree. Every element takes the same steps whatever block, group
 * or pass it is in; the last step adds +0, so that no result is -0 and an absent part equals zeros. */
#include <stdlib.h>
#include <string.h>

#include "ops/cpu/cpu.h"

enum {
    LEVELS = 18,                                   /* leaves <= 2^17 */
    SLOT = CPU_NP * CPU_ROWS * CPU_PANEL,          /* floats of one entry of the stack */
    W_PANEL = CPU_KC * CPU_PANEL                   /* elements of one expanded panel piece */
};

/* what one call computes */
struct job {
    const struct cpu_kernels *kr;
    const struct mat *m;
    int bf16;               /* rows are rounded to BF16 */
    int packed;             /* ... and packed for mac16 */
    int adds;               /* whole leaves fit a pass that can add */
    int step;
    int n0, n1, k0;         /* outputs, first input */
    int leaf_k, n_leaves;
    int64_t leaf_kp, panel_kp;
    float *leaf, *stack;    /* [np][CPU_ROWS][16]; LEVELS of the same */
    uint16_t *w;            /* expanded panels */
    void *xc;               /* converted rows of a block [CPU_ROWS][row_kp] */
    int64_t row_kp;
};

/* rows of one block as the kernels take them */
struct rows {
    const void *x;
    int64_t ldx, leaf_x;    /* elements from leaf to leaf */
    int n, passes;
    int begin[CPU_ROWS + 1]; /* first row of each pass */
};

static int tree_odd(int n)
{
    while (n % 2 == 0) n /= 2;
    return n;
}

/* first row of part i when n rows are split into parts that differ by at most one unit */
static int part_begin(int n, int parts, int unit, int i)
{
    int units = (n + unit - 1) / unit, at = (int)((int64_t)units * i / parts) * unit;
    return at < n ? at : n;
}

static int parts_of(int n, int most)
{
    return (n + most - 1) / most;
}

static void fold(const struct job *b, float *to, const float *from, int np, int rows)
{
    for (int p = 0; p < np; p++)
        b->kr->fold(to + p * CPU_ROWS * CPU_PANEL, from + p * CPU_ROWS * CPU_PANEL, (int64_t)rows * CPU_PANEL);
}

/* w := inputs [at, at + n) of panels [panel, panel + np) of an MXFP4 matrix */
static void expand(const struct job *b, int panel, int np, int64_t at, int n)
{
    const struct mat *m = b->m;
    for (int p = 0; p < np; p++) {
        int64_t block = (int64_t)(panel + p) * (m->k / 32) + at / 32;
        b->kr->fp4((const uint8_t *)m->data.p + block * 256, (const uint8_t *)m->scale.p + block * CPU_PANEL, n / 32,
                   b->w + p * W_PANEL);
    }
}

/* acc := (ADD: acc +) leaf l of panels [panel, panel + np) for the rows of a block */
static void sum_leaf(const struct job *b, const struct rows *v, int panel, int np, int l, enum cpu_mac_mode mode,
                     float *acc)
{
    struct cpu_mac c = {.acc_ps = CPU_ROWS * CPU_PANEL, .ldx = v->ldx, .np = np, .step = b->step, .mode = mode};
    const struct mat *m = b->m;
    const size_t size = b->packed ? sizeof(uint16_t) : sizeof(float);
    void (*mac)(const struct cpu_mac *) = b->packed ? b->kr->mac16 : b->kr->mac;
    int len = b->packed ? (int)b->leaf_kp : b->leaf_k, piece = m->kind == MAT_MXFP4 ? CPU_KC / np : CPU_KC;
    for (int i = 0; i < len; i += piece) {
        c.k = len - i < piece ? len - i : piece;
        if (i > 0) c.mode = CPU_MAC_GO_ON;
        if (m->kind == MAT_MXFP4) {
            expand(b, panel, np, b->k0 + (int64_t)l * b->leaf_k + i, c.k);
            c.w = b->w;
            c.w_ps = W_PANEL;
        } else {
            c.w_ps = b->panel_kp * CPU_PANEL;
            c.w = (const uint16_t *)m->data.p + panel * c.w_ps + (b->k0 + l * b->leaf_kp + i) * CPU_PANEL;
        }
        for (int j = 0; j < v->passes; j++) {
            c.mr = v->begin[j + 1] - v->begin[j];
            c.acc = acc + v->begin[j] * CPU_PANEL;
            c.x = (const char *)v->x + (size_t)(v->begin[j] * v->ldx + l * v->leaf_x + i) * size;
            mac(&c);
        }
    }
}

static void group(const struct job *b, const struct rows *v, int panel, int np, float *y, int64_t ldy)
{
    int odd = tree_odd(b->n_leaves), top = -1, i = 0;
    for (int l = 0, run = 0; l < b->n_leaves; l++) {
        /* a leaf that is the next of its run, or the right half of a pair of leaves, is added where it ends */
        if (b->adds && (i > 0 || (odd == 1 && (run & 1)))) {
            sum_leaf(b, v, panel, np, l, CPU_MAC_ADD, b->stack + top * SLOT);
        } else if (i > 0) {
            sum_leaf(b, v, panel, np, l, CPU_MAC_SET, b->leaf);
            fold(b, b->stack + top * SLOT, b->leaf, np, v->n);
        } else {
            sum_leaf(b, v, panel, np, l, CPU_MAC_SET, b->stack + ++top * SLOT);
        }
        if (++i < odd) continue;
        int done = run++;
        for (done = odd == 1 && b->adds && (done & 1) ? done >> 1 : done; done & 1; done >>= 1, top--)
            fold(b, b->stack + (top - 1) * SLOT, b->stack + top * SLOT, np, v->n);
        i = 0;
    }
    for (int p = 0; p < np; p++) {
        int at = (panel + p) * CPU_PANEL, n = b->n1 - at < CPU_PANEL ? b->n1 - at : CPU_PANEL;
        for (int r = 0; r < v->n; r++) {
            const float *s = b->stack + (p * CPU_ROWS + r) * CPU_PANEL;
            float *d = y + r * ldy + (at - b->n0);
            if (n == CPU_PANEL)
                for (int j = 0; j < CPU_PANEL; j++) d[j] = s[j] + 0.0f;
            else
                for (int j = 0; j < n; j++) d[j] = s[j] + 0.0f;
        }
    }
}

/* rows of a block in the form of the kernels: as they are, rounded, or packed with padded leaves */
static void convert(const struct job *b, struct rows *v, const float *x, int64_t ldx)
{
    v->x = x;
    v->ldx = ldx;
    v->leaf_x = b->leaf_k;
    if (!b->bf16) return;
    v->x = b->xc;
    v->ldx = b->row_kp;
    if (!b->packed) {
        for (int r = 0; r < v->n; r++)
            b->kr->round(x + r * ldx, (float *)b->xc + r * b->row_kp, (int64_t)b->n_leaves * b->leaf_k);
        return;
    }
    v->leaf_x = b->leaf_kp;
    for (int r = 0; r < v->n; r++)
        for (int l = 0; l < b->n_leaves; l++) {
            uint16_t *d = (uint16_t *)b->xc + r * b->row_kp + l * b->leaf_kp;
            b->kr->pack(x + r * ldx + (int64_t)l * b->leaf_k, d, b->leaf_k);
            for (int64_t i = b->leaf_k; i < b->leaf_kp; i++) d[i] = 0;
        }
}

static void run(const struct job *b, const float *x, int64_t ldx, int t, float *y, int64_t ldy)
{
    const struct cpu_kernels *kr = b->kr;
    int unit = b->packed ? kr->unit16 : 1, blocks = parts_of(t, CPU_ROWS);
    int first = b->n0 / CPU_PANEL, last = (b->n1 + CPU_PANEL - 1) / CPU_PANEL;
    if (b->packed && kr->begin16) kr->begin16(b->step);
    for (int i = 0; i < blocks; i++) {
        int r = part_begin(t, blocks, unit, i);
        struct rows v = {.n = part_begin(t, blocks, unit, i + 1) - r};
        v.passes = parts_of(v.n, b->packed ? kr->mr16 : kr->mr);
        for (int j = 0; j <= v.passes; j++) v.begin[j] = part_begin(v.n, v.passes, unit, j);
        int mr = parts_of(v.n, v.passes), np = b->packed ? kr->np16(mr) : kr->np(mr);
        convert(b, &v, x + r * ldx, ldx);
        for (int p = first; p < last;) {
            int now = last - p < np ? 1 : np;
            group(b, &v, p, now, y + r * ldy, ldy);
            p += now;
        }
    }
    if (b->packed && kr->end16) kr->end16();
}

/* floats before the converted rows */
static size_t fixed_bytes(void)
{
    return (size_t)(LEVELS + 1) * SLOT * sizeof(float) + (size_t)CPU_NP * W_PANEL * sizeof(uint16_t);
}

size_t cpu_linear_scratch(const struct cpu_impl *im)
{
    return fixed_bytes() + (im->act == ACT_BF16 ? (size_t)im->max_kp * CPU_ROWS * sizeof(float) : 0);
}

/* 0: no memory */
static int job_open(struct job *b, struct ops *o, const struct mat *m, int leaf_k, int n_leaves, int64_t leaf_kp)
{
    struct cpu_impl *im = cpu_impl_of(o);
    float *p = cpu_reserve(im, &im->lin, cpu_linear_scratch(im), "scratch of linear");
    if (!p) return 0;
    *b = (struct job){.kr = im->kr, .m = m, .n1 = m->n, .leaf_k = leaf_k, .n_leaves = n_leaves, .leaf_kp = leaf_kp};
    b->bf16 = im->act == ACT_BF16 && !m->exact;
    b->packed = b->bf16 && im->kr->mac16;
    b->adds = leaf_kp <= (m->kind == MAT_MXFP4 ? CPU_KC / CPU_NP : CPU_KC) && !(b->packed && im->kr->unit16 > 1);
    b->step = cpu_mat_step(o, m);
    b->panel_kp = n_leaves * leaf_kp;
    b->row_kp = b->panel_kp;
    b->leaf = p;
    b->stack = p + SLOT;
    b->w = (uint16_t *)(p + (LEVELS + 1) * SLOT);
    b->xc = b->w + CPU_NP * W_PANEL;
    return 1;
}

void cpu_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy)
{
    struct job b;
    int leaf = m->leaf ? m->leaf : m->k;
    if (t < 1) return;
    if (!job_open(&b, o, m, leaf, m->k / leaf, cpu_mat_leaf_kp(o, m))) return;
    run(&b, x, ldx, t, y, ldy);
}

void cpu_linear_part(struct ops *o, const struct mat *m, int n0, int n1, int k0, int k1, const float *x, int64_t ldx,
                     int t, float *y, int64_t ldy)
{
    struct job b;
    if (t < 1) return;
    int64_t kp = cpu_mat_leaf_kp(o, m), len = k1 == m->k ? kp - k0 : k1 - k0;
    if (!job_open(&b, o, m, k1 - k0, 1, len)) return;
    b.panel_kp = kp;
    b.n0 = n0;
    b.n1 = n1;
    b.k0 = k0;
    run(&b, x, ldx, t, y, ldy);
}
