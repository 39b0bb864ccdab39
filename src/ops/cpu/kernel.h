/* kernel - what the kernel files share: instruction sets for a stretch of a file, and repetition.
 *
 * Kernels take their tile shape as constant arguments of inlined bodies. The sums live in registers only if
 * every index is a constant when the optimiser first sees the array, so rows and panels are repeated by
 * the preprocessor with a guard, not by loops that might be unrolled later. */
#ifndef PDFLASH_OPS_CPU_KERNEL_H
#define PDFLASH_OPS_CPU_KERNEL_H

#include "ops/cpu/cpu.h"

#define KERNEL_PRAGMA_(x) _Pragma(#x)
#if defined(__clang__)
#define KERNEL_TARGET(isa) KERNEL_PRAGMA_(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define KERNEL_TARGET_END  KERNEL_PRAGMA_(clang attribute pop)
#else
#define KERNEL_TARGET(isa) KERNEL_PRAGMA_(GCC push_options) KERNEL_PRAGMA_(GCC target(isa))
#define KERNEL_TARGET_END  KERNEL_PRAGMA_(GCC pop_options)
#endif

#define KERNEL_INLINE static inline __attribute__((always_inline))

/* kernel_fold, kernel_round, kernel_pack - bodies of simple kernels: inlined into each file, so that the loops
 * over 16 become that file's vectors. */
KERNEL_INLINE void kernel_fold(float *restrict to, const float *restrict from, int64_t n)
{
    to = __builtin_assume_aligned(to, 64);
    from = __builtin_assume_aligned(from, 64);
    for (int64_t i = 0; i < n; i += 16)
        for (int j = 0; j < 16; j++) to[i + j] += from[i + j];
}

/* cpu_f32_to_bf16 without a branch, in the upper half of the result */
KERNEL_INLINE uint32_t kernel_bf16_bits(float x)
{
    union { float f; uint32_t u; } v = {.f = x};
    uint32_t nearest = v.u + 0x7fffu + ((v.u >> 16) & 1u), quiet = v.u | 0x400000u;
    return ((v.u & 0x7fffffffu) > 0x7f800000u ? quiet : nearest) & 0xffff0000u;
}

KERNEL_INLINE float kernel_bf16_value(float x)
{
    union { uint32_t u; float f; } v = {.u = kernel_bf16_bits(x)};
    return v.f;
}

KERNEL_INLINE void kernel_round(const float *restrict x, float *restrict y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) y[i + j] = kernel_bf16_value(x[i + j]);
    for (; i < n; i++) y[i] = kernel_bf16_value(x[i]);
}

KERNEL_INLINE void kernel_pack(const float *restrict x, uint16_t *restrict y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) y[i + j] = (uint16_t)(kernel_bf16_bits(x[i + j]) >> 16);
    for (; i < n; i++) y[i] = (uint16_t)(kernel_bf16_bits(x[i]) >> 16);
}

/* DO(i) for i < n; n a constant, at most 4 or 8 */
#define KERNEL_EACH4(n, DO)                         \
    if ((n) > 0) { DO(0); } if ((n) > 1) { DO(1); } \
    if ((n) > 2) { DO(2); } if ((n) > 3) { DO(3); }
#define KERNEL_EACH8(n, DO)                         \
    KERNEL_EACH4(n, DO)                             \
    if ((n) > 4) { DO(4); } if ((n) > 5) { DO(5); } \
    if ((n) > 6) { DO(6); } if ((n) > 7) { DO(7); }

#endif
