/* mxfp4 - the packing of K3's routed experts: E2M1 elements in blocks of 32 with an E8M0 scale.
 *
 * Byte j of a row holds elements 2j (low nibble) and 2j+1 (high). Codes 0..7 = 0 .5 1 1.5 2 3 4 6, 8..15
 * the negatives. Scale byte s multiplies by 2^(s-127); 255 is NaN. Weights stay packed in memory; these
 * functions are the reference for kernels and tests. Local. */
#ifndef PDFLASH_CKPT_MXFP4_H
#define PDFLASH_CKPT_MXFP4_H

#include <stddef.h>
#include <stdint.h>

enum { MXFP4_BLOCK = 32 };

extern const float mxfp4_value[16]; /* E2M1 code -> value */
/* mxfp4_scale - 2^(s-127) as float (NaN for 255). */
float mxfp4_scale(uint8_t s);
/* mxfp4_row - n (multiple of 32) values of one row: packed [n/2], scale [n/32] -> out [n] f32, host. */
void mxfp4_row(const uint8_t *packed, const uint8_t *scale, size_t n, float *out);

#endif
