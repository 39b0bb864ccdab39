#include "ops/cpu/attend.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_math.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pages.h"

/* (a, b) := (a c - b s, b c + a s), n pairs */
CPU_CLONES static void draft_rotate(float *restrict a, float *restrict b, const float *restrict c, const float *restrict s,
                              int n)
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

void cpu_rope(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, double theta)
{
    int half = d / 2;
    double *inv = cpu_scratch(o, (size_t)half * (sizeof *inv + 2 * sizeof(float)));
    float *c = (float *)(inv + half), *s = c + half;
    for (int j = 0; j < half; j++) inv[j] = pow(theta, -2.0 * j / d);
    for (int i = 0; i < t; i++) {
        for (int j = 0; j < half; j++) {
            c[j] = (float)cos(pos[i] * inv[j]);
            s[j] = (float)sin(pos[i] * inv[j]);
        }
        for (int h = 0; h < heads; h++) {
            float *row = x + i * ldx + (int64_t)h * d;
            draft_rotate(row, row + half, c, s, half);
        }
    }
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

/* What is common to all lanes of one sequence and kv head. */
struct block {
    const struct paged *kc, *vc;
    const struct seq_rows *seq;
    int d, head;              /* kv head */
    const float *kb, *vb;     /* block keys and values of this head, row 0 */
    int64_t ldk, ldv;
    float *k, *v;             /* [64][d] tiles, scratch */
};

/* context tiles from the first visible position, then the block's rows as tiles of their own */
static void walk(struct attend *a, const struct block *b)
{
    int p0 = b->seq->pos0, first = p0;
    for (int l = 0; l < a->n; l++)
        if (a->lo[l] < first) first = a->lo[l];
    for (int p = attend_first(first); p < p0; p += ATTEND_TILE) {
        int nk = p0 - p < ATTEND_TILE ? p0 - p : ATTEND_TILE;
        int skip = p < first ? first - p : 0; /* rows before the window may be gone */
        pages_read(b->kc, b->seq->page_id, (int64_t)b->head * b->kc->page * b->d, b->d, p + skip, nk - skip, b->k);
        pages_read(b->vc, b->seq->page_id, (int64_t)b->head * b->vc->page * b->d, b->d, p + skip, nk - skip, b->v);
        attend_tile(a, b->k, b->d, b->v, b->d, p + skip, nk - skip);
    }
    for (int i = 0; i < b->seq->n_rows; i += ATTEND_TILE) {
        int nk = b->seq->n_rows - i < ATTEND_TILE ? b->seq->n_rows - i : ATTEND_TILE;
        attend_tile(a, b->kb + i * b->ldk, b->ldk, b->vb + i * b->ldv, b->ldv, p0 + i, nk);
    }
}

void cpu_draft_attend(struct ops *o, const float *q, int64_t ldq, const float *kb, int64_t ldk, const float *vb,
                      int64_t ldv, const struct paged *kc, const struct paged *vc, int q_heads, int kv_heads, int d,
                      int window, const struct seq_rows *seq, int n_seq, float *out, int64_t ldo)
{
    float scale = (float)(1.0 / sqrt((double)d));
    int group = q_heads / kv_heads;
    struct block b = {.kc = kc, .vc = vc, .d = d, .ldk = ldk, .ldv = ldv};
    b.k = cpu_scratch(o, (size_t)d * (2 * ATTEND_TILE + ATTEND_LANES) * sizeof *b.k);
    b.v = b.k + (size_t)d * ATTEND_TILE;
    float *lanes = b.v + (size_t)d * ATTEND_TILE;
    struct attend a;
    for (int s = 0; s < n_seq; s++) {
        int n = seq[s].n_rows * group, p0 = seq[s].pos0;
        b.seq = &seq[s];
        for (b.head = 0; b.head < kv_heads; b.head++) {
            b.kb = kb + seq[s].row0 * ldk + (int64_t)b.head * d;
            b.vb = vb + seq[s].row0 * ldv + (int64_t)b.head * d;
            for (int i0 = 0; i0 < n; i0 += ATTEND_LANES) {
                attend_open(&a, lanes, d, d, scale);
                for (int i = i0; i < n && i < i0 + ATTEND_LANES; i++) {
                    int64_t r = i / group, at = ((int64_t)b.head * group + i % group) * d;
                    int pos = p0 + (int)r, lo = pos - (window - 1);
                    attend_query(&a, q + (seq[s].row0 + r) * ldq + at, window && lo > 0 ? lo : 0,
                                 window ? pos + 1 : p0 + seq[s].n_rows, out + (seq[s].row0 + r) * ldo + at);
                }
                walk(&a, &b);
                attend_close(&a);
            }
        }
    }
}
