/* fp4 - MXFP4 words in registers: 8 weights (4-bit E2M1) to four BF16 pairs in a handful of instructions.
 *
 * A BF16 number has its sign in bit 15 and the three bits of an E2M1 magnitude fit bits 8..6 (two exponent bits, one
 * mantissa bit): such a number is the weight times 2^-126, also for 0.5 (a subnormal), so one multiplication by
 * 2^126 * scale gives the weight. Pair p (inputs 2p, 2p + 1) keeps its even member in the low half of the word and
 * the odd one in the high half, at bits: p = 0: 15, 8 7 6; p = 1: 12, 5 4 3; p = 2: 9, 2 1 0; p = 3: 14, 13 11 10.
 * Scales are bytes s, weight = code * 2^(s - 127); with s <= 128 the combined factor 2^(s-1) is a BF16 number. */
#ifndef PDFLASH_CUDA_FP4_H
#define PDFLASH_CUDA_FP4_H

#include <cuda_bf16.h>
#include <stdint.h>

#ifdef __CUDACC__

/* half word of four codes of one parity, pair order */
static __device__ __forceinline__ uint32_t fp4_half(int c0, int c1, int c2, int c3)
{
    uint32_t h = 0;
    h |= (uint32_t)(c0 >> 3) << 15 | (uint32_t)(c0 & 7) << 6;
    h |= (uint32_t)(c1 >> 3) << 12 | (uint32_t)(c1 & 7) << 3;
    h |= (uint32_t)(c2 >> 3) << 9 | (uint32_t)(c2 & 7);
    h |= (uint32_t)(c3 >> 3) << 14 | (uint32_t)(c3 & 4) << 11 | (uint32_t)(c3 & 3) << 10;
    return h;
}

/* 4 bytes in file order (low nibble first) to a word */
static __device__ __forceinline__ uint32_t fp4_pack(const uint8_t *b)
{
    uint32_t even = fp4_half(b[0] & 15, b[1] & 15, b[2] & 15, b[3] & 15);
    return even | fp4_half(b[0] >> 4, b[1] >> 4, b[2] >> 4, b[3] >> 4) << 16;
}

static __device__ __forceinline__ uint32_t fp4_times(uint32_t pair, uint32_t by)
{
    uint32_t r; /* a product plus -0: sm_80 has no plain one */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(by), "r"(0x80008000u));
    return r;
}

/* the four pairs times 2^-126 */
static __device__ __forceinline__ void fp4_bits(uint32_t w, uint32_t *p)
{
    p[0] = w & 0x81C081C0u;
    p[1] = (w << 3) & 0x81C081C0u;
    p[2] = (w << 6) & 0x81C081C0u;
    p[3] = ((w << 1) & 0x80008000u) | ((w >> 5) & 0x01000100u) | ((w >> 4) & 0x00C000C0u);
}

/* factor pair of scale byte i of four, s <= 128: 2^(s - 1) twice, a BF16 with exponent s + 126 */
static __device__ __forceinline__ uint32_t fp4_scale_of(uint32_t scales, int i)
{
    return __byte_perm(scales, 0, 0x4040 | i << 8 | i) * 128 + 0x3f003f00u;
}

/* the four BF16 pairs of a word, scale byte s <= 128 given as its factor pair */
static __device__ __forceinline__ void fp4_expand(uint32_t w, uint32_t factor, uint32_t *p)
{
    fp4_bits(w, p);
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = fp4_times(p[i], factor);
}

/* any scale byte: weight first, then 2^(s - 127), which rounds once where it must; 255: NaN */
static __device__ __forceinline__ void fp4_expand_any(uint32_t w, uint32_t s, uint32_t *p)
{
    uint32_t half = s == 255 ? 0x7fc0u : s == 0 ? 0x0040u : s << 7;
    fp4_bits(w, p);
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = fp4_times(fp4_times(p[i], 0x7e807e80u), half * 0x10001u); /* 0x7e80: 2^126 */
}
#endif
#endif
