#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_math.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/pages.h"

enum { V = CPU_VEC };

/* ---- short convolution ------------------------------------------------------------------------ */

/* 16 channels of n rows of a sequence: the tail's kernel - 1 rows come before x; wt[kernel][16] */
CPU_CLONES static void kda_conv_lanes(const float *tail, int64_t ldt, const float *x, int64_t ldx, const float *wt,
                                      int kernel, int n, float *y, int64_t ldy)
{
    for (int t = 0; t < n; t++) {
        float lo[V] = {0}, hi[V] = {0};
        for (int j = 0; j < kernel; j++) {
            int r = t + j - (kernel - 1);
            const float *row = r < 0 ? tail + (r + kernel - 1) * ldt : x + r * ldx, *wj = wt + j * CPU_LANES;
            for (int l = 0; l < V; l++) {
                lo[l] += wj[l] * row[l];
                hi[l] += wj[V + l] * row[V + l];
            }
        }
        for (int l = 0; l < V; l++) {
            lo[l] = cpu_silu(lo[l]);
            hi[l] = cpu_silu(hi[l]);
        }
        memcpy(y + t * ldy, lo, sizeof lo);
        memcpy(y + t * ldy + V, hi, sizeof hi);
    }
}

/* wt[kernel][16] := w[0..m)[kernel] transposed, zeros beyond m */
static void conv_weights(const float *w, int kernel, int m, float *wt)
{
    memset(wt, 0, (size_t)kernel * CPU_LANES * sizeof *wt);
    if (kernel == 4)
        for (int l = 0; l < m; l++, w += 4, wt++) {
            wt[0] = w[0];
            wt[CPU_LANES] = w[1];
            wt[2 * CPU_LANES] = w[2];
            wt[3 * CPU_LANES] = w[3];
        }
    else
        for (int l = 0; l < m; l++)
            for (int j = 0; j < kernel; j++) wt[j * CPU_LANES + l] = w[l * kernel + j];
}

/* the last channels of a width that is no multiple of 16, through padded copies, one row at a time */
static void conv_rest(const float *tail, int64_t ldt, const float *x, int64_t ldx, const float *wt, int kernel,
                      int m, int n, float *y, int64_t ldy, float *pad)
{
    for (int t = 0; t < n; t++) {
        float row[CPU_LANES];
        for (int j = 0; j < kernel; j++) {
            int r = t + j - (kernel - 1);
            const float *src = r < 0 ? tail + (r + kernel - 1) * ldt : x + r * ldx;
            memset(pad + j * CPU_LANES, 0, sizeof row);
            memcpy(pad + j * CPU_LANES, src, (size_t)m * sizeof *src);
        }
        kda_conv_lanes(pad, CPU_LANES, pad + (kernel - 1) * CPU_LANES, CPU_LANES, wt, kernel, 1, row, CPU_LANES);
        memcpy(y + t * ldy, row, (size_t)m * sizeof *row);
    }
}

void cpu_conv(struct ops *o, const float *x, int64_t ldx, const float *w, int kernel, int ch, enum ops_kv kv,
              const struct seq_rows *seq, int n_seq, float *y)
{
    size_t n_tail = (size_t)(kernel - 1) * (size_t)ch, n_w = (size_t)kernel * CPU_LANES;
    float *wt = cpu_scratch(o, (n_tail + 2 * n_w) * sizeof *wt);
    if (!wt) return;
    float *pad = wt + n_w, *tail = pad + n_w;
    for (int s = 0; s < n_seq; s++) {
        if (seq[s].n_rows == 0) continue;
        const float *rows = x + seq[s].row0 * ldx;
        float *out = y + (int64_t)seq[s].row0 * ch;
        pages_load(tail, seq[s].state, (int64_t)n_tail, kv);
        for (int c = 0; c < ch; c += CPU_LANES) {
            int m = ch - c < CPU_LANES ? ch - c : CPU_LANES;
            conv_weights(w + (int64_t)c * kernel, kernel, m, wt);
            if (m == CPU_LANES)
                kda_conv_lanes(tail + c, ch, rows + c, ldx, wt, kernel, seq[s].n_rows, out + c, ch);
            else
                conv_rest(tail + c, ch, rows + c, ldx, wt, kernel, m, seq[s].n_rows, out + c, ch, pad);
        }
    }
}

void cpu_conv_commit(struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv,
                     int n)
{
    (void)o;
    unsigned char *p = tail;
    size_t row = (size_t)ch * pages_elem(kv);
    int keep = kernel - 1 - n; /* old rows that stay */
    if (keep < 0) keep = 0;
    memmove(p, p + (size_t)(kernel - 1 - keep) * row, (size_t)keep * row);
    for (int j = keep; j < kernel - 1; j++) pages_store(p + (size_t)j * row, x + (n - (kernel - 1) + j) * ldx, ch, kv);
}

/* ---- inputs and output of the recurrence ------------------------------------------------------ */

/* x[d] *= scale / sqrt(sum x^2 + 1e-6) */
CPU_CLONES static void kda_l2(float *x, int heads, int d, float scale)
{
    for (int h = 0; h < heads; h++, x += d) {
        float r = scale / sqrtf(cpu_dot(x, x, d) + 1e-6f);
        for (int i = 0; i + CPU_LANES <= d; i += CPU_LANES)
            for (int l = 0; l < CPU_LANES; l++) x[i + l] *= r;
        for (int i = d / CPU_LANES * CPU_LANES; i < d; i++) x[i] *= r;
    }
}

/* z[heads][d] := lower * sigmoid(a[head] * (z + dt)) */
CPU_CLONES static void kda_decay(float *restrict z, const float *restrict a, const float *restrict dt, float lower,
                                   int heads, int d)
{
    for (int h = 0; h < heads; h++, z += d, dt += d) {
        int i = 0;
        for (; i + CPU_LANES <= d; i += CPU_LANES)
            for (int l = 0; l < CPU_LANES; l++) z[i + l] = lower * cpu_sigmoid(a[h] * (z[i + l] + dt[i + l]));
        for (; i < d; i++) z[i] = lower * cpu_sigmoid(a[h] * (z[i] + dt[i]));
    }
}

void cpu_kda_prepare(struct ops *o, float *qkv, float *z, int64_t ldz, float *b, int64_t ldb, const float *a_exp,
                     const float *dt_bias, float lower_bound, int t, int heads, int d)
{
    (void)o;
    int64_t w = (int64_t)heads * d;
    float scale = (float)(1.0 / sqrt((double)d));
    for (int i = 0; i < t; i++) {
        kda_l2(qkv + i * 3 * w, heads, d, scale);
        kda_l2(qkv + i * 3 * w + w, heads, d, 1.0f);
        kda_decay(z + i * ldz, a_exp, dt_bias, lower_bound, heads, d);
        for (int h = 0; h < heads; h++) b[i * ldb + h] = cpu_sigmoid(b[i * ldb + h]);
    }
}

CPU_CLONES static void kda_norm_gate(float *restrict x, const float *restrict gate, const float *restrict w, float eps,
                                 int heads, int d)
{
    for (int h = 0; h < heads; h++, x += d, gate += d) {
        float r = 1.0f / sqrtf(cpu_dot(x, x, d) / (float)d + eps);
        int i = 0;
        for (; i + CPU_LANES <= d; i += CPU_LANES)
            for (int l = 0; l < CPU_LANES; l++) x[i + l] = x[i + l] * r * w[i + l] * cpu_sigmoid(gate[i + l]);
        for (; i < d; i++) x[i] = x[i] * r * w[i] * cpu_sigmoid(gate[i]);
    }
}

void cpu_kda_out(struct ops *o, float *x, const float *gate, int64_t ldg, const float *w, float eps, int t,
                 int heads, int d)
{
    (void)o;
    for (int i = 0; i < t; i++) kda_norm_gate(x + (int64_t)i * heads * d, gate + i * ldg, w, eps, heads, d);
}

/* ---- recurrence ------------------------------------------------------------------------------- */

/* One row on 32, 8 or 1 value lanes of the state (row stride d): decay, read, update, read. Lanes are
 * independent and sums over the d keys run in order, so any split of the lanes gives the same bits. */

struct step {
    const float *eg, *k, *q; /* [d]: exp(g), key, query */
    float beta;
    int d;
};

CPU_INLINE void recur_32(const struct step *c, float *restrict s, const float *restrict v, float *restrict out)
{
    const float *restrict eg = c->eg, *restrict k = c->k, *restrict q = c->q;
    float e0[V] = {0}, e1[V] = {0}, e2[V] = {0}, e3[V] = {0}, beta = c->beta;
    float a0[V] = {0}, a1[V] = {0}, a2[V] = {0}, a3[V] = {0};
    float *r = s;
    for (int i = 0, d = c->d; i < d; i++, r += d)
        for (int l = 0; l < V; l++) {
            float x0 = r[l] * eg[i], x1 = r[V + l] * eg[i], x2 = r[2 * V + l] * eg[i], x3 = r[3 * V + l] * eg[i];
            e0[l] += x0 * k[i];
            e1[l] += x1 * k[i];
            e2[l] += x2 * k[i];
            e3[l] += x3 * k[i];
            r[l] = x0;
            r[V + l] = x1;
            r[2 * V + l] = x2;
            r[3 * V + l] = x3;
        }
    for (int l = 0; l < V; l++) {
        e0[l] = beta * (v[l] - e0[l]);
        e1[l] = beta * (v[V + l] - e1[l]);
        e2[l] = beta * (v[2 * V + l] - e2[l]);
        e3[l] = beta * (v[3 * V + l] - e3[l]);
    }
    r = s;
    for (int i = 0, d = c->d; i < d; i++, r += d)
        for (int l = 0; l < V; l++) {
            float x0 = r[l] + k[i] * e0[l], x1 = r[V + l] + k[i] * e1[l];
            float x2 = r[2 * V + l] + k[i] * e2[l], x3 = r[3 * V + l] + k[i] * e3[l];
            a0[l] += x0 * q[i];
            a1[l] += x1 * q[i];
            a2[l] += x2 * q[i];
            a3[l] += x3 * q[i];
            r[l] = x0;
            r[V + l] = x1;
            r[2 * V + l] = x2;
            r[3 * V + l] = x3;
        }
    if (!out) return;
    memcpy(out, a0, sizeof a0);
    memcpy(out + V, a1, sizeof a1);
    memcpy(out + 2 * V, a2, sizeof a2);
    memcpy(out + 3 * V, a3, sizeof a3);
}

/* the same for n lanes, n <= 8 a constant: widths that are no multiple of 32 */
CPU_INLINE void recur_n(const struct step *c, const int n, float *restrict s, const float *restrict v,
                        float *restrict out)
{
    const float *restrict eg = c->eg, *restrict k = c->k, *restrict q = c->q;
    float e[V] = {0}, a[V] = {0}, *r = s;
    for (int i = 0, d = c->d; i < d; i++, r += d)
        for (int l = 0; l < n; l++) {
            float x = r[l] * eg[i];
            e[l] += x * k[i];
            r[l] = x;
        }
    for (int l = 0; l < n; l++) e[l] = c->beta * (v[l] - e[l]);
    r = s;
    for (int i = 0, d = c->d; i < d; i++, r += d)
        for (int l = 0; l < n; l++) {
            float x = r[l] + k[i] * e[l];
            a[l] += x * q[i];
            r[l] = x;
        }
    for (int l = 0; out && l < n; l++) out[l] = a[l];
}

/* One row of one head: g[d] log decay, v[d]; eg[d] receives exp(g). */
CPU_CLONES static void kda_recur_row(struct step *c, const float *restrict g, float *restrict eg, float *s,
                                 const float *v, float *out)
{
    int i = 0, d = c->d;
    for (; i + CPU_LANES <= d; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) eg[i + l] = cpu_exp_neg(g[i + l]);
    for (; i < d; i++) eg[i] = cpu_exp_neg(g[i]);
    c->eg = eg;
    for (i = 0; i + 4 * V <= d; i += 4 * V) recur_32(c, s + i, v + i, out ? out + i : NULL);
    for (; i + V <= d; i += V) recur_n(c, V, s + i, v + i, out ? out + i : NULL);
    for (; i < d; i++) recur_n(c, 1, s + i, v + i, out ? out + i : NULL);
}

void cpu_kda_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                   float *state, int write, int t, int heads, int d, float *out, int64_t ldo)
{
    size_t n_state = (size_t)d * (size_t)d;
    int64_t w = (int64_t)heads * d;
    float *copy = cpu_scratch(o, (n_state + (size_t)d) * sizeof *copy);
    if (!copy) return;
    float *eg = copy + n_state;
    for (int h = 0; h < heads; h++) {
        float *s = state + (int64_t)h * d * d;
        if (!write) s = memcpy(copy, s, n_state * sizeof *s);
        for (int i = 0; i < t; i++) {
            const float *q = qkv + i * 3 * w + (int64_t)h * d;
            struct step c = {.k = q + w, .q = q, .beta = beta[i * ldb + h], .d = d};
            kda_recur_row(&c, g + i * ldg + (int64_t)h * d, eg, s, q + 2 * w,
                      out ? out + i * ldo + (int64_t)h * d : NULL);
        }
    }
}
