#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "ckpt/mxfp4.h"
#include "ckpt/safetensors.h"
#include "data/h5.h"

const char *const suite_name = "mxfp4";

/* E2M1 by its definition (sign, 2 bits exponent with bias 1, 1 bit mantissa), not by the table under test */
static double e2m1(int code)
{
    int exponent = code >> 1 & 3, mantissa = code & 1;
    double v = exponent ? ldexp(1 + 0.5 * mantissa, exponent - 1) : 0.5 * mantissa;
    return code & 8 ? -v : v;
}

START_TEST(codes_and_scales)
{
    for (int c = 0; c < 16; c++) ck_assert(mxfp4_value[c] == (float)e2m1(c));
    ck_assert(signbit(mxfp4_value[8]) && !signbit(mxfp4_value[0]));
    for (int s = 0; s < 255; s++) ck_assert((double)mxfp4_scale((uint8_t)s) == ldexp(1, s - 127));
    ck_assert(isnan(mxfp4_scale(255)));
}
END_TEST

START_TEST(every_byte_under_every_scale)
{
    uint8_t packed[256], scale[16];
    float out[513];
    for (int i = 0; i < 256; i++) packed[i] = (uint8_t)i;
    for (int s = 0; s < 256; s++) {
        memset(scale, s, sizeof scale);
        out[512] = 77;
        mxfp4_row(packed, scale, 512, out);
        for (int i = 0; i < 512; i++) {
            double want = e2m1(i & 1 ? i / 2 >> 4 : i / 2 & 15) * ldexp(1, s - 127);
            ck_assert(s == 255 ? isnan(out[i]) : out[i] == (float)want);
        }
        ck_assert(out[512] == 77);
    }
}
END_TEST

START_TEST(blocks_use_their_own_scale)
{
    uint8_t packed[48], scale[3] = {127, 130, 120};
    float out[96];
    memset(packed, 0x92, sizeof packed); /* low nibble 1.0, high nibble -0.5 */
    mxfp4_row(packed, scale, 96, out);
    for (int i = 0; i < 96; i++) ck_assert(out[i] == (i & 1 ? -0.5f : 1.0f) * mxfp4_scale(scale[i / 32]));
}
END_TEST

START_TEST(golden_rows)
{
    static const char *const group[] = {"mxfp4", "mxfp4_all"};
    struct h5 *f;
    ck_assert_int_eq(h5_open(suite_path("tests/vectors/ops.h5"), 0, &f), ST_OK);
    for (int g = 0; g < 2; g++) {
        char name[3][64];
        int64_t dp[H5_MAX_RANK], ds[H5_MAX_RANK], dim[H5_MAX_RANK];
        int rank;
        int32_t *packed, *scale;
        float *want;
        snprintf(name[0], sizeof name[0], "/%s/packed", group[g]);
        snprintf(name[1], sizeof name[1], "/%s/scale", group[g]);
        snprintf(name[2], sizeof name[2], "/%s/out", group[g]);
        ck_assert_int_eq(h5_read_i32(f, name[0], dp, &rank, &packed), ST_OK);
        ck_assert_int_eq(h5_read_i32(f, name[1], ds, &rank, &scale), ST_OK);
        ck_assert_int_eq(h5_read_f32(f, name[2], dim, &rank, &want), ST_OK);
        ck_assert(dim[1] == 2 * dp[1] && dim[1] == 32 * ds[1] && dim[0] == dp[0] && dim[0] == ds[0]);
        for (int64_t r = 0; r < dim[0]; r++) {
            uint8_t p[1024], s[64];
            float out[2048];
            ck_assert(dp[1] <= 1024);
            for (int64_t i = 0; i < dp[1]; i++) p[i] = (uint8_t)packed[r * dp[1] + i];
            for (int64_t i = 0; i < ds[1]; i++) s[i] = (uint8_t)scale[r * ds[1] + i];
            mxfp4_row(p, s, (size_t)dim[1], out);
            ck_assert_mem_eq(out, want + r * dim[1], (size_t)dim[1] * sizeof out[0]);
        }
        mem_free(packed);
        mem_free(scale);
        mem_free(want);
    }
    h5_close(f);
}
END_TEST

/* the same rows straight from the checkpoint: layer 3 expert 5 w1 */
START_TEST(golden_rows_through_the_checkpoint)
{
    static const char *const name = "language_model.model.layers.3.block_sparse_moe.experts.5.w1.weight";
    struct safetensors *s;
    struct tensor packed, scale;
    struct h5 *f;
    int64_t dim[H5_MAX_RANK];
    int rank;
    float *want, out[128];
    char n[2][128];
    snprintf(n[0], sizeof n[0], "%s_packed", name);
    snprintf(n[1], sizeof n[1], "%s_scale", name);
    ck_assert_int_eq(safetensors_open(suite_path("inputs/k3-nano"), &s), ST_OK);
    ck_assert_int_eq(safetensors_get(s, n[0], ST_DT_U8, 2, (const int64_t[]){64, 64}, &packed), ST_OK);
    ck_assert_int_eq(safetensors_get(s, n[1], ST_DT_U8, 2, (const int64_t[]){64, 4}, &scale), ST_OK);
    ck_assert_int_eq(h5_open(suite_path("tests/vectors/ops.h5"), 0, &f), ST_OK);
    ck_assert_int_eq(h5_read_f32(f, "/mxfp4/out", dim, &rank, &want), ST_OK);
    ck_assert(dim[0] == 64 && dim[1] == 128);
    for (int r = 0; r < 64; r++) {
        mxfp4_row((const uint8_t *)packed.data + r * 64, (const uint8_t *)scale.data + r * 4, 128, out);
        ck_assert_mem_eq(out, want + r * 128, sizeof out);
    }
    mem_free(want);
    h5_close(f);
    safetensors_close(s);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "mxfp4", 30);
    SUITE_TEST(tc, codes_and_scales);
    SUITE_TEST(tc, every_byte_under_every_scale);
    SUITE_TEST(tc, blocks_use_their_own_scale);
    SUITE_TEST(tc, golden_rows);
    SUITE_TEST(tc, golden_rows_through_the_checkpoint);
}

int main(void)
{
    return suite_main_serial();
}
