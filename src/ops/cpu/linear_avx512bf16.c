/* AVX-512-BF16: BF16 rows by the pair dot product, two inputs of 16 outputs per instruction; FP32 rows as
 * AVX-512. The sum of an element goes over pairs of inputs in order. */
#include <immintrin.h>
#include <string.h>

#include "ops/cpu/cpu.h"
#include "ops/cpu/kernel.h"

KERNEL_TARGET("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include "ops/cpu/kernel512.h" /* compiled for the target above */

enum { ROWS = 8 };

KERNEL_INLINE __m512bh pair_of(const uint16_t *x)
{
    int v;
    memcpy(&v, x, sizeof v);
    return (__m512bh)_mm512_set1_epi32(v);
}

/* one pair of inputs, one panel */
KERNEL_INLINE void pair(__m512 *s, const uint16_t *x, int64_t ldx, const uint16_t *w, const int mr)
{
    __m512bh v = (__m512bh)_mm512_load_si512(w);
#define ROW(r) s[r] = _mm512_dpbf16_ps(s[r], pair_of(x + (r) * ldx), v)
    KERNEL_EACH8(mr, ROW)
#undef ROW
}

KERNEL_INLINE void body(const struct cpu_mac *c, const int mr, const int np)
{
    const uint16_t *x = c->x, *w = c->w;
    __m512 a[4][8];
#define PANEL(p) kernel512_load(a[p], c->acc + (p) * c->acc_ps, c->mode != CPU_MAC_GO_ON, mr)
    KERNEL_EACH4(np, PANEL)
#undef PANEL
    for (int n = c->k / 2; n > 0; n--, x += 2, w += 32) {
#define PANEL(p) pair(a[p], x, c->ldx, w + (p) * c->w_ps, mr)
        KERNEL_EACH4(np, PANEL)
#undef PANEL
    }
#define PANEL(p) kernel512_store(c->acc + (p) * c->acc_ps, a[p], c->mode == CPU_MAC_ADD, mr)
    KERNEL_EACH4(np, PANEL)
#undef PANEL
}

static void mac16(const struct cpu_mac *c)
{
    switch (c->mr * 8 + c->np) {
    case 8 * 1 + 1: body(c, 1, 1); return;
    case 8 * 1 + 2: body(c, 1, 2); return;
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

KERNEL_TARGET_END

const struct cpu_kernels cpu_kernels_avx512bf16 = {
    .mr = ROWS, .mr16 = ROWS, .unit16 = 1, .np = cpu_avx512_np, .np16 = cpu_avx512_np, .mac = cpu_avx512_mac,
    .mac16 = mac16, .fp4 = cpu_avx512_fp4, .fold = cpu_avx512_fold, .round = cpu_avx512_round, .pack = cpu_avx512_pack,
};
