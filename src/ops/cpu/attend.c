#include "ops/cpu/attend.h"

#include "ops/cpu/cpu_math.h"

enum { LANES = ATTEND_LANES, TILE = ATTEND_TILE, V = CPU_VEC };

void attend_open(struct attend *a, float *q, int dk, int dv, float scale)
{
    *a = (struct attend){.q = q, .dk = dk, .dv = dv, .scale = scale};
    memset(q, 0, (size_t)dk * LANES * sizeof *q);
}

void attend_query(struct attend *a, const float *query, int lo, int hi, float *out)
{
    int l = a->n++;
    for (int i = 0; i < a->dk; i++) a->q[i * LANES + l] = query[i];
    a->lo[l] = lo;
    a->hi[l] = hi;
    a->max[l] = -INFINITY;
    a->sum[l] = 0;
    a->out[l] = out;
    memset(out, 0, (size_t)a->dv * sizeof *out);
}

/* s[j][l] := q[.][l] . k[j][.] for one key and 16 lanes: one running sum per (key, lane) */
CPU_INLINE void score_1(const float *restrict q, const float *restrict k, int dk, float (*restrict s)[LANES])
{
    float a[V] = {0}, b[V] = {0};
    for (int i = 0; i < dk; i++, q += LANES)
        for (int l = 0; l < V; l++) {
            a[l] += k[i] * q[l];
            b[l] += k[i] * q[V + l];
        }
    memcpy(s[0], a, sizeof a);
    memcpy(s[0] + V, b, sizeof b);
}

/* the same for 4 keys */
CPU_INLINE void score_4(const float *restrict q, const float *restrict k, int64_t ldk, int dk,
                        float (*restrict s)[LANES])
{
    const float *k1 = k + ldk, *k2 = k1 + ldk, *k3 = k2 + ldk;
    float a0[V] = {0}, a1[V] = {0}, a2[V] = {0}, a3[V] = {0}, b0[V] = {0}, b1[V] = {0}, b2[V] = {0}, b3[V] = {0};
    for (int i = 0; i < dk; i++, q += LANES)
        for (int l = 0; l < V; l++) {
            float x = q[l], y = q[V + l];
            a0[l] += k[i] * x;
            b0[l] += k[i] * y;
            a1[l] += k1[i] * x;
            b1[l] += k1[i] * y;
            a2[l] += k2[i] * x;
            b2[l] += k2[i] * y;
            a3[l] += k3[i] * x;
            b3[l] += k3[i] * y;
        }
    const float *sum[LANES / 2] = {a0, b0, a1, b1, a2, b2, a3, b3};
    for (int j = 0; j < 8; j++) memcpy(s[j / 2] + j % 2 * V, sum[j], sizeof a0);
}

/* 8 keys and the first n <= 8 lanes */
CPU_INLINE void score_8(const float *restrict q, const float *restrict k, int64_t ldk, int dk, const int n,
                        float (*restrict s)[LANES])
{
    const float *k1 = k + ldk, *k2 = k1 + ldk, *k3 = k2 + ldk, *k4 = k3 + ldk, *k5 = k4 + ldk, *k6 = k5 + ldk,
                *k7 = k6 + ldk;
    float a0[V] = {0}, a1[V] = {0}, a2[V] = {0}, a3[V] = {0}, a4[V] = {0}, a5[V] = {0}, a6[V] = {0}, a7[V] = {0};
    for (int i = 0; i < dk; i++, q += LANES)
        for (int l = 0; l < n; l++) {
            float x = q[l];
            a0[l] += k[i] * x;
            a1[l] += k1[i] * x;
            a2[l] += k2[i] * x;
            a3[l] += k3[i] * x;
            a4[l] += k4[i] * x;
            a5[l] += k5[i] * x;
            a6[l] += k6[i] * x;
            a7[l] += k7[i] * x;
        }
    const float *sum[8] = {a0, a1, a2, a3, a4, a5, a6, a7};
    for (int j = 0; j < 8; j++) memcpy(s[j], sum[j], sizeof a0);
}

/* scores of keys [j0, j1); lanes beyond a->n have zero queries or are left alone */
CPU_CLONES static void attend_scores(const struct attend *a, const float *k, int64_t ldk, int j0, int j1,
                              float (*s)[LANES])
{
    int j = j0;
    if (a->n <= 4)
        for (; j + 8 <= j1; j += 8) score_8(a->q, k + j * ldk, ldk, a->dk, 4, s + j);
    else if (a->n <= V)
        for (; j + 8 <= j1; j += 8) score_8(a->q, k + j * ldk, ldk, a->dk, V, s + j);
    for (; j + 4 <= j1; j += 4) score_4(a->q, k + j * ldk, ldk, a->dk, s + j);
    for (; j < j1; j++) score_1(a->q, k + j * ldk, a->dk, s + j);
}

/* s[j][l] := score of key j, -inf where lane l does not see it; top := running maximum. all 1: every lane
 * sees every key. */
CPU_INLINE void mask_scores(float scale, const int *restrict lo, const int *restrict hi, int j0, int j1, const int all,
                            float (*restrict s)[LANES], float *restrict top)
{
    for (int j = j0; j < j1; j++)
        for (int l = 0; l < LANES; l++) {
            float x = s[j][l] * scale;
            if (!all) x = ((j >= lo[l]) & (j < hi[l])) ? x : -INFINITY;
            s[j][l] = x;
            top[l] = x > top[l] ? x : top[l];
        }
}

/* s[j] := weights of keys [j0, j1), 0 where a lane does not see the key; corr := factor of what was summed
 * before. lo, hi are relative to the tile. */
CPU_CLONES static void attend_weights(struct attend *a, const int *restrict lo, const int *restrict hi, int j0, int j1,
                                      int all, float (*restrict s)[LANES], float *restrict corr)
{
    float top[LANES], base[LANES], sum[LANES] = {0};
    for (int l = 0; l < LANES; l++) top[l] = a->max[l];
    if (all) mask_scores(a->scale, lo, hi, j0, j1, 1, s, top);
    else mask_scores(a->scale, lo, hi, j0, j1, 0, s, top);
    for (int l = 0; l < LANES; l++) {
        base[l] = top[l] == -INFINITY ? 0.0f : top[l]; /* nothing seen yet: all weights become 0 */
        corr[l] = cpu_exp_neg(a->max[l] - base[l]);
    }
    for (int j = j0; j < j1; j++)
        for (int l = 0; l < LANES; l++) {
            float p = cpu_exp_neg(s[j][l] - base[l]);
            s[j][l] = p;
            sum[l] += p;
        }
    for (int l = 0; l < LANES; l++) {
        a->max[l] = top[l];
        a->sum[l] = a->sum[l] * corr[l] + sum[l];
    }
}

/* columns of one lane: out := out * corr + sum over keys [j0, j1) of p[j][lane] v[j] */
CPU_INLINE void value_64(float *restrict out, float corr, const float *restrict p, const float *restrict v,
                         int64_t ldv, int j0, int j1)
{
    float a0[V], a1[V], a2[V], a3[V], a4[V], a5[V], a6[V], a7[V], *sum[8] = {a0, a1, a2, a3, a4, a5, a6, a7};
    for (int i = 0; i < 8; i++)
        for (int c = 0; c < V; c++) sum[i][c] = out[i * V + c] * corr;
    v += j0 * ldv;
    for (int j = j0; j < j1; j++, v += ldv)
        for (int c = 0; c < V; c++) {
            float w = p[j * LANES];
            a0[c] += w * v[c];
            a1[c] += w * v[V + c];
            a2[c] += w * v[2 * V + c];
            a3[c] += w * v[3 * V + c];
            a4[c] += w * v[4 * V + c];
            a5[c] += w * v[5 * V + c];
            a6[c] += w * v[6 * V + c];
            a7[c] += w * v[7 * V + c];
        }
    for (int i = 0; i < 8; i++) memcpy(out + i * V, sum[i], sizeof a0);
}

CPU_INLINE void value_16(float *restrict out, float corr, const float *restrict p, const float *restrict v,
                         int64_t ldv, int j0, int j1)
{
    float a0[V], a1[V];
    for (int c = 0; c < V; c++) {
        a0[c] = out[c] * corr;
        a1[c] = out[V + c] * corr;
    }
    v += j0 * ldv;
    for (int j = j0; j < j1; j++, v += ldv)
        for (int c = 0; c < V; c++) {
            a0[c] += p[j * LANES] * v[c];
            a1[c] += p[j * LANES] * v[V + c];
        }
    memcpy(out, a0, sizeof a0);
    memcpy(out + V, a1, sizeof a1);
}

/* 32 columns of two neighbouring lanes that see the same keys */
CPU_INLINE void value_pair_32(float *restrict x, float *restrict y, const float *corr, const float *restrict p,
                              const float *restrict v, int64_t ldv, int j0, int j1)
{
    float a0[V], a1[V], a2[V], a3[V], b0[V], b1[V], b2[V], b3[V], *a[4] = {a0, a1, a2, a3}, *b[4] = {b0, b1, b2, b3};
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < V; c++) {
            a[i][c] = x[i * V + c] * corr[0];
            b[i][c] = y[i * V + c] * corr[1];
        }
    v += j0 * ldv;
    for (int j = j0; j < j1; j++, v += ldv)
        for (int c = 0; c < V; c++) {
            float s = p[j * LANES], t = p[j * LANES + 1];
            float v0 = v[c], v1 = v[V + c], v2 = v[2 * V + c], v3 = v[3 * V + c];
            a0[c] += s * v0;
            b0[c] += t * v0;
            a1[c] += s * v1;
            b1[c] += t * v1;
            a2[c] += s * v2;
            b2[c] += t * v2;
            a3[c] += s * v3;
            b3[c] += t * v3;
        }
    for (int i = 0; i < 4; i++) {
        memcpy(x + i * V, a[i], sizeof a0);
        memcpy(y + i * V, b[i], sizeof b0);
    }
}

/* columns [c, dv) of one lane */
CPU_CLONES static void attend_values(float *out, float corr, const float *p, const float *v, int64_t ldv, int j0,
                                     int j1, int c, int dv)
{
    for (; c + 64 <= dv; c += 64) value_64(out + c, corr, p, v + c, ldv, j0, j1);
    for (; c + 16 <= dv; c += 16) value_16(out + c, corr, p, v + c, ldv, j0, j1);
    for (; c < dv; c++) {
        float a = out[c] * corr;
        for (int j = j0; j < j1; j++) a += p[j * LANES] * v[j * ldv + c];
        out[c] = a;
    }
}

/* columns [0, dv) of two lanes with the same range */
CPU_CLONES static void attend_value_pair(float *x, float *y, const float *corr, const float *p, const float *v,
                                         int64_t ldv, int j0, int j1, int dv)
{
    for (int c = 0; c + 32 <= dv; c += 32) value_pair_32(x + c, y + c, corr, p, v + c, ldv, j0, j1);
}

void attend_tile(struct attend *a, const float *k, int64_t ldk, const float *v, int64_t ldv, int pos, int nk)
{
    float s[TILE][LANES], corr[LANES];
    int lo[LANES] = {0}, hi[LANES] = {0}, j0 = nk, j1 = 0;
    for (int l = 0; l < a->n; l++) {
        lo[l] = a->lo[l] > pos ? a->lo[l] - pos : 0;
        hi[l] = a->hi[l] - pos < nk ? a->hi[l] - pos : nk;
        if (lo[l] >= hi[l]) continue;
        if (lo[l] < j0) j0 = lo[l];
        if (hi[l] > j1) j1 = hi[l];
    }
    if (j0 >= j1) return;
    if (a->n <= 8) memset(s, 0, sizeof s); /* narrow scores leave the other lanes alone */
    attend_scores(a, k, ldk, j0, j1, s);
    int all = 1;
    for (int l = 0; l < a->n; l++) all &= lo[l] == j0 && hi[l] == j1;
    attend_weights(a, lo, hi, j0, j1, all, s, corr);
    for (int l = 0, pair; l < a->n; l += 1 + pair) {
        int c = 0;
        pair = l + 1 < a->n && lo[l] == lo[l + 1] && hi[l] == hi[l + 1];
        if (lo[l] >= hi[l]) continue;
        if (pair) {
            c = a->dv / 32 * 32;
            attend_value_pair(a->out[l], a->out[l + 1], corr + l, &s[0][l], v, ldv, lo[l], hi[l], a->dv);
        }
        for (int i = 0; i <= pair && c < a->dv; i++)
            attend_values(a->out[l + i], corr[l + i], &s[0][l + i], v, ldv, lo[l], hi[l], c, a->dv);
    }
}

CPU_CLONES static void attend_divide(float *x, float by, int n)
{
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) x[i + l] /= by;
    for (; i < n; i++) x[i] /= by;
}

void attend_close(struct attend *a)
{
    for (int l = 0; l < a->n; l++) attend_divide(a->out[l], a->sum[l], a->dv);
}
