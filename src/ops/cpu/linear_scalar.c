/* Plain C kernels: the reference, and what runs under valgrind. Products and sums round separately. */
#include "ops/cpu/cpu.h"
#include "ops/cpu/kernel.h"

enum { ROWS = 4 };

/* weights of one input for 16 outputs */
KERNEL_INLINE void input(const uint16_t *w, int odd, float *v)
{
    for (int j = 0; j < 16; j++) v[j] = cpu_bf16_to_f32(w[2 * j + odd]);
}

static void mac(const struct cpu_mac *c)
{
    const float *x = c->x;
    float a[ROWS][16], v[16];
    for (int r = 0; r < c->mr; r++)
        for (int j = 0; j < 16; j++) a[r][j] = c->mode == CPU_MAC_GO_ON ? c->acc[r * 16 + j] : 0.0f;
    for (int i = 0; i < c->k; i++) {
        input(c->w + (int64_t)(i / 2) * 32, i & 1, v);
        for (int r = 0; r < c->mr; r++) {
            float b = x[r * c->ldx + i];
            for (int j = 0; j < 16; j++) a[r][j] += b * v[j];
        }
    }
    for (int r = 0; r < c->mr; r++)
        for (int j = 0; j < 16; j++)
            c->acc[r * 16 + j] = c->mode == CPU_MAC_ADD ? c->acc[r * 16 + j] + a[r][j] : a[r][j];
}

static int shape(int mr)
{
    (void)mr;
    return 1;
}

void cpu_fp4_block(const uint8_t *packed, const uint8_t *scale, uint16_t *w)
{
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int c = 0; c < 16; c++) {
        /* 2^(s-127): s is the exponent field itself; 0 is the one value below the normal range; 255 NaN */
        union { uint32_t u; float f; } m = {.u = scale[c] == 0 ? 0x00400000u : (uint32_t)scale[c] << 23};
        if (scale[c] == 255) m.u = 0x7fc00000u;
        for (int i = 0; i < 32; i++) {
            int shift, at = cpu_fp4_at(c, i, &shift), code = packed[at] >> shift & 15;
            float v = value[code & 7] * m.f;
            w[i / 2 * 32 + c * 2 + (i & 1)] = cpu_f32_to_bf16(code > 8 ? -v : v);
        }
    }
}

static void fp4(const uint8_t *packed, const uint8_t *scale, int n_blocks, uint16_t *w)
{
    for (int i = 0; i < n_blocks; i++)
        cpu_fp4_block(packed + (int64_t)i * 256, scale + (int64_t)i * 16, w + (int64_t)i * 512);
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

const struct cpu_kernels cpu_kernels_scalar = {
    .mr = ROWS, .np = shape, .mac = mac, .fp4 = fp4, .fold = fold, .round = round_rows, .pack = pack_rows,
};
