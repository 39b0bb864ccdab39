/* AVX2 + FMA kernels: FP32 rows times BF16 panels. A register tile is mr rows x 16 np outputs. The BF16
 * pair form gives both inputs of a pair with one operation each: shift left 16, mask the upper half. */
#include <immintrin.h>

#include "ops/cpu/cpu.h"
#include "ops/cpu/kernel.h"

KERNEL_TARGET("avx2,fma")

enum {
    ROWS = 6,
    FP4_AHEAD = 1024, /* bytes; measured: streams from memory gain a tenth, caches lose nothing */
    W_AHEAD = 2048    /* elements; measured: a third at four rows, a fifth at sixteen */
};

struct sum { __m256 lo, hi; }; /* 16 outputs of a row */

/* 8 outputs' weights of the pair's first (odd 0) or second input */
KERNEL_INLINE __m256 half(const uint16_t *w, const int odd)
{
    __m256i v = _mm256_load_si256((const __m256i *)w);
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u))
                                   : _mm256_slli_epi32(v, 16));
}

/* s += x * w. One piece of assembly: left the choice, compilers load broadcasts early and spill sums. */
KERNEL_INLINE void fma16(struct sum *s, const float *x, __m256 lo, __m256 hi)
{
    __m256 b;
    __asm__("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
            : "+x"(s->lo), "+x"(s->hi), "=&x"(b)
            : "m"(*x), "x"(lo), "x"(hi));
}

/* one input, one panel */
KERNEL_INLINE void step1(struct sum *s, const float *x, int64_t ldx, const uint16_t *w, const int odd, const int mr)
{
    __m256 lo = half(w, odd), hi = half(w + 16, odd);
#define ROW(r) fma16(&s[r], x + (r) * ldx + odd, lo, hi)
    KERNEL_EACH8(mr, ROW)
#undef ROW
}

KERNEL_INLINE void step(struct sum a[4][8], const struct cpu_mac *c, const float *x, const uint16_t *w,
                        const int odd, const int mr, const int np)
{
#define PANEL(p) step1(a[p], x, c->ldx, w + (p) * c->w_ps, odd, mr)
    KERNEL_EACH4(np, PANEL)
#undef PANEL
}

KERNEL_INLINE void fma8(__m256 *s, __m256 b, __m256 w)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*s) : "x"(b), "x"(w));
}

/* a pair of inputs, one panel, from broadcast inputs b and d: for one row, where registers are plenty and
 * loads are what counts */
KERNEL_INLINE void pair1(struct sum *s, const __m256 *b, const __m256 *d, const uint16_t *w, const int mr)
{
    __m256 b_lo = half(w, 0), b_hi = half(w + 16, 0), d_lo = half(w, 1), d_hi = half(w + 16, 1);
#define ROW(r) fma8(&s[r].lo, b[r], b_lo); fma8(&s[r].hi, b[r], b_hi); \
               fma8(&s[r].lo, d[r], d_lo); fma8(&s[r].hi, d[r], d_hi)
    KERNEL_EACH4(mr, ROW)
#undef ROW
}

KERNEL_INLINE void pair(struct sum a[4][8], const struct cpu_mac *c, const float *x, const uint16_t *w, const int mr,
                        const int np)
{
    __m256 b[4], d[4];
#define ROW(r) b[r] = _mm256_broadcast_ss(x + (r) * c->ldx); d[r] = _mm256_broadcast_ss(x + (r) * c->ldx + 1)
    KERNEL_EACH4(mr, ROW)
#undef ROW
#define PANEL(p) pair1(a[p], b, d, w + (p) * c->w_ps, mr)
    KERNEL_EACH4(np, PANEL)
#undef PANEL
}

KERNEL_INLINE void load(struct sum *s, const float *from, int fresh, const int mr)
{
    const __m256 z = _mm256_setzero_ps();
#define ROW(r) s[r].lo = fresh ? z : _mm256_load_ps(from + (r) * 16); \
               s[r].hi = fresh ? z : _mm256_load_ps(from + (r) * 16 + 8)
    KERNEL_EACH8(mr, ROW)
#undef ROW
}

KERNEL_INLINE void store(float *to, struct sum *s, int add, const int mr)
{
    if (add) {
#define ROW(r) s[r].lo = _mm256_add_ps(_mm256_load_ps(to + (r) * 16), s[r].lo); \
               s[r].hi = _mm256_add_ps(_mm256_load_ps(to + (r) * 16 + 8), s[r].hi)
        KERNEL_EACH8(mr, ROW)
#undef ROW
    }
#define ROW(r) _mm256_store_ps(to + (r) * 16, s[r].lo); _mm256_store_ps(to + (r) * 16 + 8, s[r].hi)
    KERNEL_EACH8(mr, ROW)
#undef ROW
}

KERNEL_INLINE void body(const struct cpu_mac *c, const int mr, const int np)
{
    const float *x = c->x;
    const uint16_t *w = c->w;
    struct sum a[4][8];
#define PANEL(p) load(a[p], c->acc + (p) * c->acc_ps, c->mode != CPU_MAC_GO_ON, mr)
    KERNEL_EACH4(np, PANEL)
#undef PANEL
    for (int n = c->k / 2; n > 0; n--, x += 2, w += 32) {
        if (mr == 1) {
            pair(a, c, x, w, mr, np);
            continue;
        }
        _mm_prefetch((const char *)(w + W_AHEAD), _MM_HINT_T0);
        step(a, c, x, w, 0, mr, np);
        __asm__("" : "+r"(x), "+r"(w)); /* load the pair again rather than keep it: 12 sums leave 4 registers */
        step(a, c, x, w, 1, mr, np);
    }
    if (c->k & 1) step(a, c, x, w, 0, mr, np);
#define PANEL(p) store(c->acc + (p) * c->acc_ps, a[p], c->mode == CPU_MAC_ADD, mr)
    KERNEL_EACH4(np, PANEL)
#undef PANEL
}

/* enough sums to hide the latency of the multiply-add (8), as few as 12 to stay in registers */
static int shape(int mr)
{
    return mr == 1 ? 4 : mr == 2 ? 2 : 1;
}

static void mac(const struct cpu_mac *c)
{
    switch (c->mr * 8 + c->np) {
    case 8 * 1 + 1: body(c, 1, 1); return;
    case 8 * 1 + 4: body(c, 1, 4); return;
    case 8 * 2 + 1: body(c, 2, 1); return;
    case 8 * 2 + 2: body(c, 2, 2); return;
    case 8 * 3 + 1: body(c, 3, 1); return;
    case 8 * 4 + 1: body(c, 4, 1); return;
    case 8 * 5 + 1: body(c, 5, 1); return;
    case 8 * 6 + 1: body(c, 6, 1); return;
    }
}
/* One input pair x 16 outputs from a code in each byte. Two table look-ups give the upper and lower byte of the
 * BF16 value; interleaved they are the pair form. The scale is 2^-d, 0 <= d <= 125: d is taken from the
 * exponents; the smallest value has exponent 126, so only 0 saturates, and stays 0. */
KERNEL_INLINE void fp4_pair(__m256i code, __m256i up, __m256i low, __m256i down_lo, __m256i down_hi, uint16_t *w)
{
    __m256i h = _mm256_shuffle_epi8(up, code), l = _mm256_shuffle_epi8(low, code);
    _mm256_store_si256((__m256i *)w, _mm256_subs_epu16(_mm256_unpacklo_epi8(l, h), down_lo));
    _mm256_store_si256((__m256i *)(w + 16), _mm256_subs_epu16(_mm256_unpackhi_epi8(l, h), down_hi));
}

/* 32 inputs x 16 outputs */
KERNEL_INLINE void fp4_block(const uint8_t *packed, __m256i down_lo, __m256i down_hi, uint16_t *w)
{
    const __m256i up = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0, (char)0xbf, (char)0xbf, (char)0xbf, (char)0xc0, (char)0xc0,
        (char)0xc0, (char)0xc0));
    const __m256i low = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0, 0, 0, (char)0x80, (char)0xc0, 0, 0x40,
        (char)0x80, (char)0xc0));
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int q = 0; q < 8; q++, packed += 32, w += 64) {
        __m256i v = _mm256_load_si256((const __m256i *)packed);
        fp4_pair(_mm256_and_si256(v, nibble), up, low, down_lo, down_hi, w);
        fp4_pair(_mm256_and_si256(_mm256_srli_epi16(v, 4), nibble), up, low, down_lo, down_hi, w + 32);
    }
}

static void fp4(const uint8_t *packed, const uint8_t *scale, int n_blocks, uint16_t *w)
{
    for (int i = 0; i < n_blocks; i++, packed += 256, scale += 16, w += 512) {
        __m128i s = _mm_load_si128((const __m128i *)scale);
        for (int j = 0; j < 256; j += 64) _mm_prefetch((const char *)packed + FP4_AHEAD + j, _MM_HINT_T0);
        __m128i from2 = _mm_sub_epi8(s, _mm_set1_epi8(2)), top = _mm_set1_epi8(125);
        if (_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(from2, top), top)) != 0xffff) { /* not all in 2..127 */
            cpu_fp4_block(packed, scale, w);
            continue;
        }
        __m256i e = _mm256_slli_epi16(_mm256_sub_epi16(_mm256_set1_epi16(127), _mm256_cvtepu8_epi16(s)), 7);
        __m256i even = _mm256_unpacklo_epi16(e, e), odd = _mm256_unpackhi_epi16(e, e);
        fp4_block(packed, _mm256_permute2x128_si256(even, odd, 0x20), _mm256_permute2x128_si256(even, odd, 0x31), w);
    }
}

static void fold(float *to, const float *from, int64_t n)
{
    kernel_fold(to, from, n);
}

static void round_rows(const float *x, float *y, int64_t n)
{
    kernel_round(x, y, n);
}

static void pack_rows(const float *x, uint16_t *y, int64_t n)
{
    kernel_pack(x, y, n);
}

KERNEL_TARGET_END

const struct cpu_kernels cpu_kernels_avx2 = {
    .mr = ROWS, .np = shape, .mac = mac, .fp4 = fp4, .fold = fold, .round = round_rows, .pack = pack_rows,
};
