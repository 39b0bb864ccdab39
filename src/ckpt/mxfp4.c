#include "ckpt/mxfp4.h"

#include <math.h>

const float mxfp4_value[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float mxfp4_scale(uint8_t s)
{
    return s == 255 ? NAN : ldexpf(1.0f, (int)s - 127);
}

void mxfp4_row(const uint8_t *packed, const uint8_t *scale, size_t n, float *out)
{
    for (size_t b = 0; b < n / MXFP4_BLOCK; b++) {
        const uint8_t *p = packed + b * (MXFP4_BLOCK / 2);
        float m = mxfp4_scale(scale[b]);
        float *o = out + b * MXFP4_BLOCK;
        for (int j = 0; j < MXFP4_BLOCK / 2; j++) {
            o[2 * j] = mxfp4_value[p[j] & 15] * m;
            o[2 * j + 1] = mxfp4_value[p[j] >> 4] * m;
        }
    }
}
