#include "ops/cpu/attend.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_math.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pages.h"

void cpu_mla_write(struct ops *o, const float *x, int64_t ldx, int width, const struct paged *cache,
                   const struct seq_rows *seq, int n_seq)
{
    (void)o;
    for (int s = 0; s < n_seq; s++)
        pages_write(cache, seq[s].page_id, 0, width, seq[s].pos0, seq[s].n_rows, x + seq[s].row0 * ldx, ldx);
}

/* Lanes run over (row, head) in that order; GROUPS * 16 of them at a time share the tiles of the cache. */
enum { GROUPS = 4 };

/* lanes [i0, n) of a sequence, at most GROUPS * 16 */
static void absorbed_lanes(struct attend *a, const struct seq_rows *seq, int64_t i0, int64_t n, const float *q,
                           int64_t ldq, const struct paged *cache, int rank, int width, float scale, int heads,
                           float *z, int64_t ldz, float *tile, float *lanes)
{
    int groups = 0, end = 0;
    for (int64_t i = i0; i < n && i < i0 + GROUPS * ATTEND_LANES; i++) {
        int64_t h = i % heads, row = seq->row0 + i / heads;
        if ((i - i0) % ATTEND_LANES == 0) {
            attend_open(&a[groups], lanes + (int64_t)groups * width * ATTEND_LANES, width, rank, scale);
            groups++;
        }
        end = seq->pos0 + (int)(i / heads) + 1;
        attend_query(&a[groups - 1], q + row * ldq + h * width, 0, end, z + row * ldz + h * rank);
    }
    for (int p = 0; p < end; p += ATTEND_TILE) {
        int nk = end - p < ATTEND_TILE ? end - p : ATTEND_TILE;
        pages_read(cache, seq->page_id, 0, width, p, nk, tile);
        for (int g = 0; g < groups; g++) attend_tile(&a[g], tile, width, tile, width, p, nk);
    }
    for (int g = 0; g < groups; g++) attend_close(&a[g]);
}

void cpu_mla_attend(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank, int rope,
                    float scale, int heads, const struct seq_rows *seq, int n_seq, float *z, int64_t ldz)
{
    int width = rank + rope;
    float *tile = cpu_scratch(o, (size_t)width * (ATTEND_TILE + GROUPS * ATTEND_LANES) * sizeof *tile);
    struct attend a[GROUPS];
    if (!tile) return;
    for (int s = 0; s < n_seq; s++) {
        int64_t n = (int64_t)seq[s].n_rows * heads;
        for (int64_t i = 0; i < n; i += GROUPS * ATTEND_LANES)
            absorbed_lanes(a, &seq[s], i, n, q, ldq, cache, rank, width, scale, heads, z, ldz, tile,
                           tile + (size_t)width * ATTEND_TILE);
    }
}

/* Expanded form. A head's keys and values of one tile are made from the latent rows by its part of wkv; a
 * block of EXP_ROWS query rows shares them. */
enum { EXP_ROWS = 128, EXP_GROUPS = EXP_ROWS / ATTEND_LANES };

struct expand {
    struct ops *o;
    const struct mat *wkv;
    int rank, rope, nope, v_dim;
    float *latent; /* [64][rank + rope] */
    float *kv;     /* [64][nope + v_dim] of a head, or of all heads where a head's part is no whole panel */
    float *key;    /* [64][nope + rope] */
    float *lanes;  /* [EXP_GROUPS][nope + rope][16] */
};

/* keys of head h to e->key; returns its values, row stride *ldv_p */
static const float *expand_tile(const struct expand *e, int h, int nk, int64_t *ldv_p)
{
    int n = e->nope + e->v_dim, width = e->rank + e->rope, dk = e->nope + e->rope;
    float *kv = e->kv;
    int64_t ld = n;
    if (n % CPU_PANEL == 0 && e->wkv->leaf == 0) {
        cpu_linear_part(e->o, e->wkv, h * n, (h + 1) * n, 0, e->rank, e->latent, width, nk, kv, ld);
    } else {
        ld = e->wkv->n;
        e->o->linear(e->o, e->wkv, e->latent, width, nk, kv, ld);
        kv += h * n;
    }
    for (int j = 0; j < nk; j++) {
        memcpy(e->key + (int64_t)j * dk, kv + j * ld, (size_t)e->nope * sizeof *kv);
        memcpy(e->key + (int64_t)j * dk + e->nope, e->latent + (int64_t)j * width + e->rank,
               (size_t)e->rope * sizeof *kv);
    }
    *ldv_p = ld;
    return kv + e->nope;
}

/* rows [r0, r0 + n) of a sequence, head h; n <= EXP_ROWS */
static void expand_rows(const struct expand *e, const struct paged *cache, const struct seq_rows *seq, int r0, int n,
                        int h, const float *q, int64_t ldq, float scale, float *out, int64_t ldo)
{
    struct attend a[EXP_GROUPS];
    int dk = e->nope + e->rope, width = e->rank + e->rope, groups = (n + ATTEND_LANES - 1) / ATTEND_LANES;
    for (int g = 0; g < groups; g++) {
        attend_open(&a[g], e->lanes + (int64_t)g * dk * ATTEND_LANES, dk, e->v_dim, scale);
        for (int i = g * ATTEND_LANES; i < n && i < (g + 1) * ATTEND_LANES; i++) {
            int64_t row = seq->row0 + r0 + i;
            attend_query(&a[g], q + row * ldq + (int64_t)h * dk, 0, seq->pos0 + r0 + i + 1,
                         out + row * ldo + (int64_t)h * e->v_dim);
        }
    }
    int end = seq->pos0 + r0 + n;
    for (int p = 0; p < end; p += ATTEND_TILE) {
        int nk = end - p < ATTEND_TILE ? end - p : ATTEND_TILE;
        int64_t ldv;
        pages_read(cache, seq->page_id, 0, width, p, nk, e->latent);
        const float *v = expand_tile(e, h, nk, &ldv);
        for (int g = 0; g < groups; g++) attend_tile(&a[g], e->key, dk, v, ldv, p, nk);
    }
    for (int g = 0; g < groups; g++) attend_close(&a[g]);
}

void cpu_mla_attend_expanded(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank,
                             int rope, int nope, int v_dim, const struct mat *wkv, float scale, int heads,
                             const struct seq_rows *seq, int n_seq, float *out, int64_t ldo)
{
    size_t dk = (size_t)(nope + rope), n = (size_t)(nope + v_dim);
    size_t n_latent = (size_t)(rank + rope) * ATTEND_TILE, n_key = dk * ATTEND_TILE;
    size_t n_kv = (n % CPU_PANEL == 0 && wkv->leaf == 0 ? n : (size_t)wkv->n) * ATTEND_TILE;
    struct expand e = {.o = o, .wkv = wkv, .rank = rank, .rope = rope, .nope = nope, .v_dim = v_dim};
    e.latent = cpu_scratch(o, (n_latent + n_key + n_kv + dk * EXP_ROWS) * sizeof *e.latent);
    if (!e.latent) return;
    e.key = e.latent + n_latent;
    e.kv = e.key + n_key;
    e.lanes = e.kv + n_kv;
    for (int s = 0; s < n_seq; s++)
        for (int r = 0; r < seq[s].n_rows; r += EXP_ROWS)
            for (int h = 0; h < heads; h++) {
                int m = seq[s].n_rows - r < EXP_ROWS ? seq[s].n_rows - r : EXP_ROWS;
                expand_rows(&e, cache, &seq[s], r, m, h, q, ldq, scale, out, ldo);
            }
}
