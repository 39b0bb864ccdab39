#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_math.h"
#include "ops/cpu/cpu_ops.h"

/* Squares of values near the FP32 maximum overflow. A row whose sums are not finite is summed again scaled
 * by the power of two that brings its largest magnitude to [1, 2): such a scale is exact, so it changes
 * nothing where the plain sums were finite, and rows need no second pass in the usual case. */
static float row_scale(const float *x, int n)
{
    uint32_t top = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u = cpu_float_bits(x[i]) & 0x7fffffffu;
        if (u > top) top = u;
    }
    uint32_t e = top >> 23; /* biased exponent; 255: inf or NaN, which stay what they are */
    if (e > 253) e = 253;
    return e < 127 ? 1.0f : cpu_bits_float((254 - e) << 23);
}

/* 1 / sqrt(mean(x^2) + eps) = r * s with r of the scaled row; returns s, 1 in the usual case */
CPU_INLINE float row_rms(const float *x, int n, float eps, float *r_p)
{
    float ss = cpu_dot(x, x, n), s = 1.0f;
    if (!(ss <= 0x1.fffffep127f)) {
        float acc = 0;
        s = row_scale(x, n);
        for (int i = 0; i < n; i++) acc += (x[i] * s) * (x[i] * s);
        ss = acc;
    }
    *r_p = 1.0f / sqrtf(ss / (float)n + eps * s * s);
    return s;
}

CPU_CLONES static void norm_row(const float *x, const float *w, float eps, int n, float *y)
{
    float r, s = row_rms(x, n, eps, &r);
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES) {
        float v[CPU_LANES]; /* y may be x: read the lanes before writing them */
        for (int l = 0; l < CPU_LANES; l++) v[l] = x[i + l] * s * r * w[i + l];
        memcpy(y + i, v, sizeof v);
    }
    for (; i < n; i++) y[i] = x[i] * s * r * w[i];
}

void cpu_rmsnorm(struct ops *o, const float *x, int64_t ldx, const float *w, float eps, int t, int n, float *y,
                 int64_t ldy)
{
    (void)o;
    for (int i = 0; i < t; i++) norm_row(x + i * ldx, w, eps, n, y + i * ldy);
}

void cpu_head_norm(struct ops *o, float *x, int64_t ldx, const float *w, float eps, int t, int heads, int d)
{
    (void)o;
    for (int i = 0; i < t; i++)
        for (int j = 0; j < heads; j++) {
            float *row = x + i * ldx + (int64_t)j * d;
            norm_row(row, w, eps, d, row);
        }
}

/* 16 elements: a, b += squares of s v; c, d += s v * q. scaled 0: s is 1 */
CPU_INLINE void two_sums_16(float *a, float *b, float *c, float *d, const float *v, const float *q, const int scaled,
                            float s)
{
    for (int l = 0; l < CPU_VEC; l++) {
        float x = scaled ? v[l] * s : v[l], y = scaled ? v[CPU_VEC + l] * s : v[CPU_VEC + l];
        a[l] += x * x;
        b[l] += y * y;
        c[l] += x * q[l];
        d[l] += y * q[CPU_VEC + l];
    }
}

/* sums of (s v)^2 and of s v * q, the lanes of cpu_dot */
CPU_INLINE void two_sums(const float *v, const float *q, int n, const int scaled, float s, float *ss_p, float *vq_p)
{
    float a[CPU_VEC] = {0}, b[CPU_VEC] = {0}, c[CPU_VEC] = {0}, d[CPU_VEC] = {0};
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES) two_sums_16(a, b, c, d, v + i, q + i, scaled, s);
    if (i < n) {
        float x[CPU_LANES] = {0}, y[CPU_LANES] = {0};
        memcpy(x, v + i, (size_t)(n - i) * sizeof *x);
        memcpy(y, q + i, (size_t)(n - i) * sizeof *y);
        two_sums_16(a, b, c, d, x, y, scaled, s);
    }
    *ss_p = cpu_fold(a, b);
    *vq_p = cpu_fold(c, d);
}

/* (v . q) / sqrt(mean(v^2) + eps) */
CPU_CLONES static float norm_res_score(const float *v, const float *q, float eps, int n)
{
    float ss, vq, s = 1.0f;
    two_sums(v, q, n, 0, s, &ss, &vq);
    if (!(ss <= 0x1.fffffep127f && fabsf(vq) <= 0x1.fffffep127f)) {
        s = row_scale(v, n);
        two_sums(v, q, n, 1, s, &ss, &vq);
    }
    return vq / sqrtf(ss / (float)n + eps * s * s);
}

/* mix[n] := sum over sources in order of a[j] * v_j; sources are bank rows, then the prefix */
CPU_CLONES static void norm_res_mix(float *restrict mix, const float *bank, int64_t stride, int n_bank,
                                    const float *prefix, const float *a, int n)
{
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES) {
        float lo[CPU_VEC] = {0}, hi[CPU_VEC] = {0};
        for (int j = 0; j <= n_bank; j++) {
            const float *v = (j < n_bank ? bank + j * stride : prefix) + i;
            for (int l = 0; l < CPU_VEC; l++) {
                lo[l] += a[j] * v[l];
                hi[l] += a[j] * v[CPU_VEC + l];
            }
        }
        memcpy(mix + i, lo, sizeof lo);
        memcpy(mix + i + CPU_VEC, hi, sizeof hi);
    }
    for (; i < n; i++) {
        float m = 0;
        for (int j = 0; j <= n_bank; j++) m += a[j] * (j < n_bank ? bank + j * stride : prefix)[i];
        mix[i] = m;
    }
}

/* softmax of the scores in place: fixed order */
static void norm_res_softmax(float *s, int n)
{
    float top = s[0], sum = 0;
    for (int j = 1; j < n; j++) top = s[j] > top ? s[j] : top;
    for (int j = 0; j < n; j++) sum += s[j] = cpu_exp_neg(s[j] - top);
    for (int j = 0; j < n; j++) s[j] /= sum;
}

void cpu_attnres(struct ops *o, const float *bank, int64_t bank_stride, int n_bank, const float *prefix,
                 const float *q, float eps, int t, int h, float *mix, const float *w, float norm_eps,
                 float *normed)
{
    size_t n_score = ((size_t)n_bank + CPU_LANES) / CPU_LANES * CPU_LANES;
    float *score = cpu_scratch(o, (n_score + (size_t)h) * sizeof *score);
    if (!score) return;
    float *spare = score + n_score;
    for (int i = 0; i < t; i++) {
        int64_t at = (int64_t)i * h;
        float *row = mix ? mix + at : spare;
        for (int j = 0; j < n_bank; j++) score[j] = norm_res_score(bank + j * bank_stride + at, q, eps, h);
        score[n_bank] = n_bank ? norm_res_score(prefix + at, q, eps, h) : 0.0f;
        if (n_bank) {
            norm_res_softmax(score, n_bank + 1);
            norm_res_mix(row, bank + at, bank_stride, n_bank, prefix + at, score, h);
        } else memcpy(row, prefix + at, (size_t)h * sizeof *row);
        if (normed) norm_row(row, w, norm_eps, h, normed + at);
    }
}
