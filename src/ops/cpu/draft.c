#include "ops/cpu/attend.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_math.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pages.h"

/* (a, b) := (a c - b s, b c + a s), n pairs */
CPU_CLONES static void draft_rotate(float *restrict a, float *restrict b, const float *restrict c,
                                    const float *restrict s, int n)
{
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = i; l < i + CPU_LANES; l++) {
            float u = a[l], v = b[l];
            a[l] = u * c[l] - v * s[l];
            b[l] = v * c[l] + u * s[l];
        }
    for (; i < n; i++) {
        float u = a[i], v = b[i];
        a[i] = u * c[i] - v * s[i];
        b[i] = v * c[i] + u * s[i];
    }
}

/* cs: room for d floats; amplitude 1 multiplies nothing away */
static void rotate_rows(float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, const double *inv,
                        double amplitude, float *cs)
{
    int half = d / 2;
    float *c = cs, *s = c + half;
    for (int i = 0; i < t; i++) {
        for (int j = 0; j < half; j++) {
            c[j] = (float)(amplitude * cos(pos[i] * inv[j]));
            s[j] = (float)(amplitude * sin(pos[i] * inv[j]));
        }
        for (int h = 0; h < heads; h++) {
            float *row = x + i * ldx + (int64_t)h * d;
            draft_rotate(row, row + half, c, s, half);
        }
    }
}

void cpu_rope(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, double theta)
{
    int half = d / 2;
    double *inv = cpu_scratch(o, (size_t)half * (sizeof *inv + 2 * sizeof(float)));
    if (!inv) return;
    for (int j = 0; j < half; j++) inv[j] = pow(theta, -2.0 * j / d);
    rotate_rows(x, ldx, pos, t, heads, d, inv, 1, (float *)(inv + half));
}

void cpu_rope_scaled(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, const double *inv,
                     double amplitude)
{
    float *cs = cpu_scratch(o, (size_t)d * sizeof *cs);
    if (cs) rotate_rows(x, ldx, pos, t, heads, d, inv, amplitude, cs);
}

void cpu_kv_write(struct ops *o, const float *x, int64_t ldx, int heads, int d, const struct paged *cache,
                  const struct seq_rows *seq, int n_seq)
{
    (void)o;
    for (int s = 0; s < n_seq; s++)
        for (int h = 0; h < heads; h++)
            pages_write(cache, seq[s].page_id, (int64_t)h * cache->page * d, d, seq[s].pos0, seq[s].n_rows,
                        x + seq[s].row0 * ldx + (int64_t)h * d, ldx);
}

enum { GROUPS = 4 }; /* groups of 16 lanes that share the tiles of the cache */

/* What is common to all lanes of one sequence and kv head. */
struct block {
    const struct paged *kc, *vc;
    const struct seq_rows *seq;
    int d, head, group, window; /* kv head, query heads per kv head */
    const float *q, *kb, *vb;   /* rows of the batch, this head's first element */
    float *out;
    int64_t ldq, ldk, ldv, ldo;
    float *k, *v;               /* [64][d] tiles, scratch */
    float *lanes;               /* [GROUPS][d][16], scratch */
    struct attend a[GROUPS];
    int groups;
};

/* lanes [i0, n) of the sequence, at most GROUPS * 16: (row, query head) in that order; returns the first
 * position that one of them sees */
static int open_lanes(struct block *b, int i0, int n)
{
    int p0 = b->seq->pos0, first = p0;
    float scale = (float)(1.0 / sqrt((double)b->d));
    b->groups = 0;
    for (int i = i0; i < n && i < i0 + GROUPS * ATTEND_LANES; i++) {
        int r = i / b->group, pos = p0 + r, lo = pos - (b->window - 1);
        int64_t row = b->seq->row0 + r, at = (int64_t)(i % b->group) * b->d;
        if ((i - i0) % ATTEND_LANES == 0) {
            attend_open(&b->a[b->groups], b->lanes + (int64_t)b->groups * b->d * ATTEND_LANES, b->d, b->d, scale);
            b->groups++;
        }
        if (!b->window || lo < 0) lo = 0;
        if (lo < first) first = lo;
        attend_query(&b->a[b->groups - 1], b->q + row * b->ldq + at, lo, b->window ? pos + 1 : p0 + b->seq->n_rows,
                     b->out + row * b->ldo + at);
    }
    return first;
}

/* context tiles from the first visible position, then the block's rows as tiles of their own */
static void walk(struct block *b, int first)
{
    int p0 = b->seq->pos0;
    for (int p = attend_first(first); p < p0; p += ATTEND_TILE) {
        int from = p < first ? first : p; /* rows before the window may be gone */
        int nk = (p0 - p < ATTEND_TILE ? p0 : p + ATTEND_TILE) - from;
        pages_read(b->kc, b->seq->page_id, (int64_t)b->head * b->kc->page * b->d, b->d, from, nk, b->k);
        pages_read(b->vc, b->seq->page_id, (int64_t)b->head * b->vc->page * b->d, b->d, from, nk, b->v);
        for (int g = 0; g < b->groups; g++) attend_tile(&b->a[g], b->k, b->d, b->v, b->d, from, nk);
    }
    for (int i = 0; i < b->seq->n_rows; i += ATTEND_TILE) {
        int nk = b->seq->n_rows - i < ATTEND_TILE ? b->seq->n_rows - i : ATTEND_TILE;
        int64_t row = b->seq->row0 + i;
        for (int g = 0; g < b->groups; g++)
            attend_tile(&b->a[g], b->kb + row * b->ldk, b->ldk, b->vb + row * b->ldv, b->ldv, p0 + i, nk);
    }
    for (int g = 0; g < b->groups; g++) attend_close(&b->a[g]);
}

void cpu_draft_attend(struct ops *o, const float *q, int64_t ldq, const float *kb, int64_t ldk, const float *vb,
                      int64_t ldv, const struct paged *kc, const struct paged *vc, int q_heads, int kv_heads, int d,
                      int window, const struct seq_rows *seq, int n_seq, float *out, int64_t ldo)
{
    struct block b = {.kc = kc, .vc = vc, .d = d, .group = q_heads / kv_heads, .window = window,
                      .ldq = ldq, .ldk = ldk, .ldv = ldv, .ldo = ldo};
    b.k = cpu_scratch(o, (size_t)d * (2 * ATTEND_TILE + GROUPS * ATTEND_LANES) * sizeof *b.k);
    if (!b.k) return;
    b.v = b.k + (size_t)d * ATTEND_TILE;
    b.lanes = b.v + (size_t)d * ATTEND_TILE;
    for (int s = 0; s < n_seq; s++) {
        b.seq = &seq[s];
        for (b.head = 0; b.head < kv_heads; b.head++) {
            int64_t at = (int64_t)b.head * d;
            b.q = q + at * b.group;
            b.out = out + at * b.group;
            b.kb = kb + at;
            b.vb = vb + at;
            int n = seq[s].n_rows * b.group;
            for (int i = 0; i < n; i += GROUPS * ATTEND_LANES) walk(&b, open_lanes(&b, i, n));
        }
    }
}
