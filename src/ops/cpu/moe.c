/* Routed experts: rows are grouped by expert; each group runs up, SiTU, down; then every row adds its
 * experts' shares up the tree.
 *
 * A block of rows at a time, as many as the scratch holds (their number changes no bit). A "pair" is a row
 * and one of its local experts; pairs are numbered expert by expert, rows ascending. Hidden values h of all
 * pairs are kept, then for a strip of outputs at a time the leaves of all pairs are formed (one per block
 * group, unweighted) and each row adds w * leaf in the order of the tree. Experts that a row does not use are
 * skipped: since results end with + 0 and no sum can tell -0 from +0, that equals adding zeros. */
#include <string.h>

#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_ops.h"

enum {
    MAX_DEPTH = 40,            /* partial sums of a row: levels over groups and over experts */
    SCRATCH_MOST = 64 << 20,   /* prepare: bytes for experts, unless few rows need more */
    SCRATCH_ROWS = 16,
    SCRATCH_K = 16             /* prepare: experts per row assumed */
};

/* one call */
struct call {
    struct ops *o;
    const struct mat *up, *down;
    int e0, n_local, n_experts, latent, cols, groups, merge, k;
    const float *z, *w;
    const int32_t *idx;
    float b1, b2;
};

/* scratch of a block of rows */
struct work {
    float *in;      /* [rows][latent] rows of one expert */
    float *mid;     /* [rows][2 cols] */
    float *h;       /* [pairs][cols] */
    float *leaf;    /* [pairs][groups][strip] */
    float *sum;     /* [MAX_DEPTH][strip] */
    int *start;     /* [n_local + 1] first pair of each expert */
    int *row;       /* [pairs] row of the pair */
    int *pair;      /* [rows][k] pair of the row's j-th expert in ascending order, -1 past the last */
    float *weight;  /* [rows][k] the same */
    int *expert;    /* [rows][k] the same: global id */
};

static size_t up64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* bytes of the scratch; pointers are set when base is not NULL */
static size_t carve(struct work *s, char *base, size_t rows, size_t k, size_t n_local, size_t latent, size_t cols,
                    size_t groups, size_t strip)
{
    size_t pairs = rows * (k < n_local ? k : n_local), at = 0;
    const size_t size[10] = {rows * latent * 4, rows * 2 * cols * 4, pairs * cols * 4, pairs * groups * strip * 4,
                             MAX_DEPTH * strip * 4, (n_local + 1) * 4, pairs * 4, rows * k * 4, rows * k * 4,
                             rows * k * 4};
    size_t place[10];
    for (int i = 0; i < 10; i++) {
        place[i] = at;
        at += up64(size[i]);
    }
    if (base)
        *s = (struct work){(float *)(base + place[0]), (float *)(base + place[1]), (float *)(base + place[2]),
                           (float *)(base + place[3]), (float *)(base + place[4]), (int *)(base + place[5]),
                           (int *)(base + place[6]),   (int *)(base + place[7]),   (float *)(base + place[8]),
                           (int *)(base + place[9])};
    return at;
}

size_t cpu_moe_scratch(const struct cpu_impl *im, int rows)
{
    struct work none;
    size_t wide = (size_t)(im->fp4_n > im->fp4_k ? im->fp4_n : im->fp4_k); /* latent or cols: either may be larger */
    size_t cols = ((size_t)im->fp4_n + 1) / 2 < (size_t)im->fp4_k ? ((size_t)im->fp4_n + 1) / 2 : (size_t)im->fp4_k;
    if (!wide) return 0;
    size_t strip = (wide + 15) / 16 * 16, groups = cols / 32 ? cols / 32 : 1;
    size_t few = carve(&none, NULL, SCRATCH_ROWS, SCRATCH_K, 4096, wide, cols, groups, 16);
    size_t all = carve(&none, NULL, (size_t)rows, SCRATCH_K, 4096, wide, cols, groups, strip);
    size_t most = few > SCRATCH_MOST ? few : SCRATCH_MOST;
    return all < most ? all : most;
}

/* ---- grouping -------------------------------------------------------------------------------- */

/* the row's local experts in ascending order into s->expert, s->weight; returns their number */
static int sort_row(const struct call *c, struct work *s, int row0, int r)
{
    const int32_t *idx = c->idx + (int64_t)(row0 + r) * c->k;
    const float *w = c->w + (int64_t)(row0 + r) * c->k;
    int *e = s->expert + (int64_t)r * c->k, n = 0;
    float *v = s->weight + (int64_t)r * c->k;
    for (int j = 0; j < c->k; j++) {
        if (idx[j] < c->e0 || idx[j] >= c->e0 + c->n_local) continue;
        int i = n++;
        for (; i > 0 && e[i - 1] > idx[j]; i--) {
            e[i] = e[i - 1];
            v[i] = v[i - 1];
        }
        e[i] = idx[j];
        v[i] = w[j];
    }
    return n;
}

static void group_rows(const struct call *c, struct work *s, int row0, int rows)
{
    memset(s->start, 0, ((size_t)c->n_local + 1) * sizeof *s->start);
    for (int r = 0; r < rows; r++) {
        int n = sort_row(c, s, row0, r), *p = s->pair + (int64_t)r * c->k;
        for (int j = 0; j < c->k; j++) p[j] = j < n ? 0 : -1;
        for (int j = 0; j < n; j++) s->start[s->expert[(int64_t)r * c->k + j] - c->e0 + 1]++;
    }
    for (int e = 0; e < c->n_local; e++) s->start[e + 1] += s->start[e];
    int n_pairs = s->start[c->n_local];
    for (int r = rows - 1; r >= 0; r--) /* from the back: start[e + 1] runs down to start[e] */
        for (int j = 0; j < c->k; j++) {
            int64_t at = (int64_t)r * c->k + j;
            if (s->pair[at] < 0) break;
            int pair = --s->start[s->expert[at] - c->e0 + 1];
            s->pair[at] = pair;
            s->row[pair] = r;
        }
    for (int e = 0; e < c->n_local; e++) s->start[e] = s->start[e + 1]; /* every entry moved one down */
    s->start[c->n_local] = n_pairs;
}

/* h of all pairs */
static void hidden(const struct call *c, struct work *s, int row0)
{
    for (int e = 0; e < c->n_local; e++) {
        int first = s->start[e], n = s->start[e + 1] - first;
        for (int i = 0; i < n; i++)
            memcpy(s->in + (int64_t)i * c->latent, c->z + (int64_t)(row0 + s->row[first + i]) * c->latent,
                   (size_t)c->latent * sizeof *s->in);
        cpu_linear(c->o, &c->up[e], s->in, c->latent, n, s->mid, 2 * (int64_t)c->cols);
        cpu_situ(c->o, s->mid, 2 * (int64_t)c->cols, c->b1, c->b2, n, c->cols, s->h + (int64_t)first * c->cols,
                 c->cols);
    }
}

/* leaves of all pairs for outputs [c0, c1) */
static void leaves(const struct call *c, struct work *s, int c0, int c1, int strip)
{
    int width = c->cols / c->groups;
    int64_t ld = (int64_t)c->groups * strip;
    for (int e = 0; e < c->n_local; e++) {
        int first = s->start[e], n = s->start[e + 1] - first;
        for (int g = 0; g < c->groups && n > 0; g++)
            cpu_linear_part(c->o, &c->down[e], c0, c1, g * width, (g + 1) * width,
                            s->h + (int64_t)first * c->cols + g * width, c->cols, n, s->leaf + first * ld + g * strip,
                            ld);
    }
}

/* ---- the tree -------------------------------------------------------------------------------- */

static void add_to(float *restrict a, const float *restrict b, int n)
{
    for (int i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++) a[i + j] += b[i + j];
}

static void scale_to(float *restrict a, float w, const float *restrict b, int n)
{
    for (int i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++) a[i + j] = w * b[i + j];
}

static void scale_add(float *restrict a, float w, const float *restrict b, int n)
{
    for (int i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++) a[i + j] += w * b[i + j];
}

static int odd_part(int n)
{
    while (n % 2 == 0) n /= 2;
    return n;
}

/* height of the node where two runs meet */
static int meet(int a, int b)
{
    int h = 0;
    for (unsigned d = (unsigned)(a ^ b); d; d >>= 1) h++;
    return h;
}

/* sum[0] := the row's experts of group g. sum[i] holds the part that ends at run q[i]; a part and the one below
 * it are joined as soon as the next run lies beyond the node where they meet. */
static void add_experts(const struct call *c, const struct work *s, int r, int g, float *sum, int strip)
{
    int odd = odd_part(c->n_experts), top = -1, q[MAX_DEPTH];
    for (int j = 0; j < c->k; j++) {
        int64_t at = (int64_t)r * c->k + j;
        if (s->pair[at] < 0) break;
        const float *leaf = s->leaf + ((int64_t)s->pair[at] * c->groups + g) * strip;
        int run = s->expert[at] / odd;
        if (top >= 0 && q[top] == run) {
            scale_add(sum + top * strip, s->weight[at], leaf, strip);
            continue;
        }
        for (; top > 0 && meet(q[top - 1], q[top]) < meet(q[top], run); top--)
            add_to(sum + (top - 1) * strip, sum + top * strip, strip);
        scale_to(sum + ++top * strip, s->weight[at], leaf, strip);
        q[top] = run;
    }
    if (top < 0) memset(sum, 0, (size_t)strip * sizeof *sum);
    for (; top > 0; top--) add_to(sum + (top - 1) * strip, sum + top * strip, strip);
}

/* sum[0] := groups [g0, g0 + n) */
static void add_groups(const struct call *c, const struct work *s, int r, int g0, int n, float *sum, int strip)
{
    int part = n % 2 == 0 ? n / 2 : 1;
    if (n == 1) {
        add_experts(c, s, r, g0, sum, strip);
        return;
    }
    add_groups(c, s, r, g0, part, sum, strip);
    for (int g = part; g < n; g += part) {
        add_groups(c, s, r, g0 + g, part, sum + strip, strip);
        add_to(sum, sum + strip, strip);
    }
}

static void finish(float *y, const float *sum, int n)
{
    for (int i = 0; i < n; i++) y[i] = sum[i] + 0.0f;
}

static void block(const struct call *c, struct work *s, int row0, int rows, int strip, float *y, int64_t y_stride)
{
    group_rows(c, s, row0, rows);
    hidden(c, s, row0);
    for (int c0 = 0; c0 < c->latent; c0 += strip) {
        int n = c->latent - c0 < strip ? c->latent - c0 : strip;
        leaves(c, s, c0, c0 + n, strip);
        for (int r = 0; r < rows; r++) {
            float *to = y + (int64_t)(row0 + r) * c->latent + c0;
            for (int g = 0; g < (c->merge ? 1 : c->groups); g++) {
                if (c->merge) add_groups(c, s, r, 0, c->groups, s->sum, strip);
                else add_experts(c, s, r, g, s->sum, strip);
                finish(to + g * y_stride, s->sum, n);
            }
        }
    }
}

void cpu_moe(struct ops *o, const struct mat *up, const struct mat *down, int e0, int n_local, int n_experts,
             const float *z, int latent, int cols, int groups, int merge, const int32_t *idx, const float *w, int k,
             float b1, float b2, int t, float *y, int64_t y_stride)
{
    struct cpu_impl *im = cpu_impl_of(o);
    struct buf *b = &im->moe;
    const struct call c = {.o = o, .up = up, .down = down, .e0 = e0, .n_local = n_local, .n_experts = n_experts,
                           .latent = latent, .cols = cols, .groups = groups, .merge = merge, .k = k, .z = z, .w = w,
                           .idx = idx, .b1 = b1, .b2 = b2};
    struct work s;
    int rows = t, strip = 16;
#define NEED(rows_, strip_)                                                                                       \
    carve(&s, NULL, (size_t)(rows_), (size_t)k, (size_t)n_local, (size_t)latent, (size_t)cols, (size_t)groups, \
          (size_t)(strip_))
    while (rows > 1 && NEED(rows, strip) > b->bytes) rows = (rows + 1) / 2;
    if (!cpu_reserve(im, b, NEED(rows, strip), "scratch of experts")) return;
    while (strip < latent && NEED(rows, strip + 16) <= b->bytes) strip += 16;
#undef NEED
    carve(&s, b->p, (size_t)rows, (size_t)k, (size_t)n_local, (size_t)latent, (size_t)cols, (size_t)groups,
          (size_t)strip);
    for (int r = 0; r < t; r += rows) block(&c, &s, r, t - r < rows ? t - r : rows, strip, y, y_stride);
}
