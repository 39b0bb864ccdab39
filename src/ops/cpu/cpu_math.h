/* cpu_math - branch-free FP32 functions, fixed-lane sums and BF16 rounding for the CPU kernels.
 *
 * Every function here is plain C on scalars: a loop over 16 elements that calls them is turned into vector
 * code by the compiler, and gives the same bits in every instruction set and on every compiler, because
 * only +, -, *, /, sqrt, compares and selects are used and nothing is fused (-ffp-contract=off). So a row's
 * remainder (scalar) and its body (vector) agree too.
 * Accuracy (tests/t_glu.c): relative error <= 2e-7 over the whole range. cpu_exp rounds results below the
 * normal range and overflows to inf; the others give 0 below 2^-126. NaN in gives NaN out.
 * Polynomials: weighted minimax fits, own coefficients. Local. */
#ifndef PDFLASH_OPS_CPU_MATH_H
#define PDFLASH_OPS_CPU_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Nobody reads the floating-point exception flags; without this, GCC keeps selects as branches. It changes no
 * value. Holds for the rest of the including file. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math")
#endif

/* CPU_CLONES - a static kernel compiled for several instruction sets; the loader picks one by cpuid. The name
 * must be unique in the program: clang 14 gives the picker external linkage. */
#if defined(__x86_64__) && defined(__linux__)
#define CPU_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CPU_CLONES
#endif
/* CPU_INLINE - part of a kernel: must be inlined to be compiled for the kernel's instruction set. */
#define CPU_INLINE static inline __attribute__((always_inline))

enum { CPU_LANES = 16 }; /* partial sums of a row, whatever the vector width */

CPU_INLINE float cpu_bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

CPU_INLINE uint32_t cpu_float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* round to nearest even; NaN stays NaN (made quiet), overflow goes to inf */
CPU_INLINE uint16_t cpu_bf16(float f)
{
    uint32_t u = cpu_float_bits(f), r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : r);
}

CPU_INLINE float cpu_from_bf16(uint16_t h)
{
    return cpu_bits_float((uint32_t)h << 16);
}

/* e^x = 2^n e^r, |r| <= ln 2 / 2; 2^n is applied in two factors so that results below the normal range
 * round once. Below -103.98 the factor is 0: masked scores (-inf) must not run into slow underflow. */
CPU_INLINE float cpu_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    float c = x > 89.0f ? 89.0f : x;
    c = c < -104.0f ? -104.0f : c;
    float t = c * 0x1.715476p+0f + magic, n = t - magic;
    float r = (c - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
    float p = 0x1.6a2434p-10f;
    p = p * r + 0x1.1239e2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = (p * (r * r) + r) + 1.0f;
    int32_t i = (int32_t)(cpu_float_bits(t) - 0x4b400000u), h = i >> 1;
    float a = cpu_bits_float((uint32_t)(h + 127) << 23);
    float b = cpu_bits_float((uint32_t)(i - h + 127) << 23);
    b = x < -103.98f ? 0.0f : b;
    return p * a * b;
}

/* e^x for x <= 0 at two thirds of the price: results below 2^-126 are 0 */
CPU_INLINE float cpu_exp_neg(float x)
{
    const float magic = 12582912.0f, low = -87.33654f;
    float c = x < low ? low : x;
    float t = c * 0x1.715476p+0f + magic, n = t - magic;
    float r = (c - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
    float p = 0x1.6a2434p-10f;
    p = p * r + 0x1.1239e2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = (p * (r * r) + r) + 1.0f;
    float a = cpu_bits_float((cpu_float_bits(t) - 0x4b400000u + 127u) << 23);
    return x < low ? 0.0f : p * a;
}

/* 1 / (1 + e^-x), from e^-|x| so that neither side overflows */
CPU_INLINE float cpu_sigmoid(float x)
{
    float e = cpu_exp_neg(-fabsf(x)), one = 1.0f;
    return (x < 0.0f ? e : one) / (one + e);
}

/* tanh x = n / d: the odd polynomial over 1 near 0, else (1 - e) / (1 + e) with e = e^-2|x| */
CPU_INLINE float cpu_tanh_parts(float x, float *d_p)
{
    float a = fabsf(x), s = x * x, e = cpu_exp_neg(-2.0f * a);
    float p = -0x1.75623ep-8f;
    p = p * s + 0x1.520b2cp-6f;
    p = p * s + -0x1.b83854p-5f;
    p = p * s + 0x1.11070ap-3f;
    p = p * s + -0x1.555532p-2f;
    float near = x * (1.0f + s * p), far = copysignf(1.0f - e, x);
    *d_p = a < 0.625f ? 1.0f : 1.0f + e;
    return a < 0.625f ? near : far;
}

CPU_INLINE float cpu_tanh(float x)
{
    float d, n = cpu_tanh_parts(x, &d);
    return n / d;
}

CPU_INLINE float cpu_silu(float x)
{
    return x * cpu_sigmoid(x);
}

/* SiTU: b1 tanh(g/b1) sigmoid(g) * b2 tanh(u/b2) with one division; i1 = 1/b1, i2 = 1/b2, b = b1 b2 */
CPU_INLINE float cpu_situ1(float g, float u, float i1, float i2, float b)
{
    float d1, d2, n1 = cpu_tanh_parts(g * i1, &d1), n2 = cpu_tanh_parts(u * i2, &d2);
    float e = cpu_exp_neg(-fabsf(g)), one = 1.0f, n3 = g < 0.0f ? e : one;
    return b * (n1 * n2 * n3) / (d1 * d2 * (one + e));
}

/* Kernels loop over 8 lanes, one AVX2 vector, with one array per sum: in this form both compilers keep every
 * sum in a register. */
enum { CPU_VEC = 8 };

/* the tree that ends every sum over a row, of lanes 0..7 and 8..15: halves are folded onto each other */
CPU_INLINE float cpu_fold(const float a[CPU_VEC], const float b[CPU_VEC])
{
    float c[4];
    for (int l = 0; l < 4; l++) c[l] = (a[l] + b[l]) + (a[l + 4] + b[l + 4]);
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* sum of x[i] * y[i], lane i mod 16; the remainder of a row meets zeros */
CPU_INLINE float cpu_dot(const float *x, const float *y, int n)
{
    float a[CPU_VEC] = {0}, b[CPU_VEC] = {0};
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_VEC; l++) {
            a[l] += x[i + l] * y[i + l];
            b[l] += x[i + CPU_VEC + l] * y[i + CPU_VEC + l];
        }
    if (i < n) {
        float u[CPU_LANES] = {0}, v[CPU_LANES] = {0};
        memcpy(u, x + i, (size_t)(n - i) * sizeof *u);
        memcpy(v, y + i, (size_t)(n - i) * sizeof *v);
        for (int l = 0; l < CPU_VEC; l++) {
            a[l] += u[l] * v[l];
            b[l] += u[CPU_VEC + l] * v[CPU_VEC + l];
        }
    }
    return cpu_fold(a, b);
}

/* y[i] += a * x[i] */
CPU_INLINE void cpu_axpy(float *restrict y, float a, const float *restrict x, int n)
{
    int i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) y[i + l] += a * x[i + l];
    for (; i < n; i++) y[i] += a * x[i];
}

#endif
