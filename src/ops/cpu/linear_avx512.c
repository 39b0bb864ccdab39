/* AVX-512 kernels (F, BW, VL, DQ): FP32 rows times BF16 panels, a panel's 16 outputs per register. */
#include <immintrin.h>

#include "ops/cpu/cpu.h"
#include "ops/cpu/kernel.h"

KERNEL_TARGET("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")
#include "ops/cpu/kernel512.h" /* compiled for the target above */

enum { ROWS = 8 };

/* s += x * w. The broadcast is part of the instruction; compilers left to choose load it early and spill. */
KERNEL_INLINE void fma16(__m512 *s, const float *x, __m512 w)
{
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(*s) : "v"(w), "m"(*x));
}

/* one pair of inputs, one panel */
KERNEL_INLINE void pair(__m512 *s, const float *x, int64_t ldx, const uint16_t *w, const int mr)
{
    __m512i v = _mm512_load_si512(w);
    __m512 w0 = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
    __m512 w1 = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
#define ROW(r) fma16(&s[r], x + (r) * ldx, w0)
    KERNEL_EACH8(mr, ROW)
#undef ROW
#define ROW(r) fma16(&s[r], x + (r) * ldx + 1, w1)
    KERNEL_EACH8(mr, ROW)
#undef ROW
}

/* the last input of an odd number */
KERNEL_INLINE void single(__m512 *s, const float *x, int64_t ldx, const uint16_t *w, const int mr)
{
    __m512 w0 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(w), 16));
#define ROW(r) fma16(&s[r], x + (r) * ldx, w0)
    KERNEL_EACH8(mr, ROW)
#undef ROW
}

KERNEL_INLINE void body(const struct cpu_mac *c, const int mr, const int np)
{
    const float *x = c->x;
    const uint16_t *w = c->w;
    __m512 a[4][8];
#define PANEL(p) kernel512_load(a[p], c->acc + (p) * c->acc_ps, c->mode != CPU_MAC_GO_ON, mr)
    KERNEL_EACH4(np, PANEL)
#undef PANEL
    for (int n = c->k / 2; n > 0; n--, x += 2, w += 32) {
#define PANEL(p) pair(a[p], x, c->ldx, w + (p) * c->w_ps, mr)
        KERNEL_EACH4(np, PANEL)
#undef PANEL
    }
    if (c->k & 1) {
#define PANEL(p) single(a[p], x, c->ldx, w + (p) * c->w_ps, mr)
        KERNEL_EACH4(np, PANEL)
#undef PANEL
    }
#define PANEL(p) kernel512_store(c->acc + (p) * c->acc_ps, a[p], c->mode == CPU_MAC_ADD, mr)
    KERNEL_EACH4(np, PANEL)
#undef PANEL
}

int cpu_avx512_np(int mr)
{
    return mr == 1 ? 4 : 2;
}

void cpu_avx512_mac(const struct cpu_mac *c)
{
    switch (c->mr * 8 + c->np) {
    case 8 * 1 + 1: body(c, 1, 1); return;
    case 8 * 1 + 2: body(c, 1, 2); return; /* the smaller pass beside one of two rows */
    case 8 * 1 + 4: body(c, 1, 4); return;
    case 8 * 2 + 1: body(c, 2, 1); return;
    case 8 * 2 + 2: body(c, 2, 2); return;
    case 8 * 3 + 1: body(c, 3, 1); return;
    case 8 * 3 + 2: body(c, 3, 2); return;
    case 8 * 4 + 1: body(c, 4, 1); return;
    case 8 * 4 + 2: body(c, 4, 2); return;
    case 8 * 5 + 1: body(c, 5, 1); return;
    case 8 * 5 + 2: body(c, 5, 2); return;
    case 8 * 6 + 1: body(c, 6, 1); return;
    case 8 * 6 + 2: body(c, 6, 2); return;
    case 8 * 7 + 1: body(c, 7, 1); return;
    case 8 * 7 + 2: body(c, 7, 2); return;
    case 8 * 8 + 1: body(c, 8, 1); return;
    case 8 * 8 + 2: body(c, 8, 2); return;
    }
}

/* Values of the codes as BF16; the table is doubled because an index is the low five bits of a lane, and the
 * fifth belongs to the next code. */
KERNEL_INLINE __m512i fp4_table(void)
{
    const __m256i t = _mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0, (short)0xbf00,
                                        (short)0xbf80, (short)0xbfc0, (short)0xc000, (short)0xc040, (short)0xc080,
                                        (short)0xc0c0);
    return _mm512_broadcast_i64x4(t);
}

/* The scale is 2^-d, 0 <= d <= 125: d is taken from the exponents; the smallest value has exponent 126, so only
 * 0 saturates, and stays 0. */
KERNEL_INLINE __m512i fp4_scaled(__m512i index, __m512i table, __m512i down)
{
    return _mm512_subs_epu16(_mm512_permutexvar_epi16(index, table), down);
}

void cpu_avx512_fp4(const uint8_t *packed, const uint8_t *scale, int n_blocks, uint16_t *w)
{
    const __m512i table = fp4_table();
    /* lane i takes the scale of output i / 2 */
    const __m512i twice = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5,
                                           5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    for (int i = 0; i < n_blocks; i++, packed += 256, scale += 16, w += 512) {
        __m128i s = _mm_load_si128((const __m128i *)scale);
        __m128i from2 = _mm_sub_epi8(s, _mm_set1_epi8(2));
        if (_mm_cmpgt_epu8_mask(from2, _mm_set1_epi8(125))) { /* not all in 2..127 */
            cpu_fp4_block(packed, scale, w);
            continue;
        }
        __m256i e = _mm256_slli_epi16(_mm256_sub_epi16(_mm256_set1_epi16(127), _mm256_cvtepu8_epi16(s)), 7);
        __m512i down = _mm512_permutexvar_epi16(twice, _mm512_castsi256_si512(e));
        for (int q = 0; q < 8; q++) {
            /* bytes of outputs 0-3, 8-11, 4-7, 12-15 -> in order, one per 16-bit lane */
            __m256i b = _mm256_permute4x64_epi64(_mm256_load_si256((const __m256i *)(packed + q * 32)), 0xd8);
            __m512i v = _mm512_cvtepu8_epi16(b);
            _mm512_store_si512(w + q * 64, fp4_scaled(v, table, down));
            _mm512_store_si512(w + q * 64 + 32, fp4_scaled(_mm512_srli_epi16(v, 4), table, down));
        }
    }
}

void cpu_avx512_fold(float *to, const float *from, int64_t n)
{
    kernel_fold(to, from, n);
}

void cpu_avx512_round(const float *x, float *y, int64_t n)
{
    kernel_round(x, y, n);
}

void cpu_avx512_pack(const float *x, uint16_t *y, int64_t n)
{
    kernel_pack(x, y, n);
}

KERNEL_TARGET_END

const struct cpu_kernels cpu_kernels_avx512 = {
    .mr = ROWS, .np = cpu_avx512_np, .mac = cpu_avx512_mac, .fp4 = cpu_avx512_fp4, .fold = cpu_avx512_fold,
    .round = cpu_avx512_round, .pack = cpu_avx512_pack,
};
