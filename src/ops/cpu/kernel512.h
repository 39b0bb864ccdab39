/* kernel512 - sums of rows x 16 outputs in and out of 512-bit registers. Include it behind KERNEL_TARGET, so that the
 * functions are compiled for the instruction set of the file and can be inlined there. */
#ifndef PDFLASH_OPS_CPU_KERNEL512_H
#define PDFLASH_OPS_CPU_KERNEL512_H

#include <immintrin.h>

#include "ops/cpu/kernel.h"

KERNEL_INLINE void kernel512_load(__m512 *s, const float *from, int fresh, const int mr)
{
#define ROW(r) s[r] = fresh ? _mm512_setzero_ps() : _mm512_load_ps(from + (r) * 16)
    KERNEL_EACH8(mr, ROW)
#undef ROW
}

KERNEL_INLINE void kernel512_store(float *to, __m512 *s, int add, const int mr)
{
    if (add) {
#define ROW(r) s[r] = _mm512_add_ps(_mm512_load_ps(to + (r) * 16), s[r])
        KERNEL_EACH8(mr, ROW)
#undef ROW
    }
#define ROW(r) _mm512_store_ps(to + (r) * 16, s[r])
    KERNEL_EACH8(mr, ROW)
#undef ROW
}

#endif
