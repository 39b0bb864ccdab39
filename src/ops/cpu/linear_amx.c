/* AMX: BF16 rows by tiles of 16 rows x 16 outputs, 32 (or 16) inputs per instruction; FP32 rows as AVX-512.
 * A panel is a stack of B tiles as it lies, the sums are C tiles as they lie, a block of converted rows is
 * an A tile with the row stride. Tiles always compute 16 rows, so an element's sum never depends on the
 * number of rows; rows past the end are zero or stale and are not read back.
 * Tiles: 0-3 sums [row tile][panel], 4-5 rows, 6-7 panels. */
#include <immintrin.h>

#include "ops/cpu/cpu.h"
#include "ops/cpu/kernel.h"

KERNEL_TARGET("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16")

enum { ROWS = 32, TILE_ROWS = 16, TILE_FLOATS = 256 };

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void begin16(int step)
{
    struct tile_config cfg = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        cfg.row_bytes[i] = i == 4 || i == 5 ? (uint16_t)(step * 2) : 64;
        cfg.rows[i] = i >= 6 ? (uint8_t)(step / 2) : TILE_ROWS;
    }
    /* gcc 12's intrinsic tells the compiler that 8 bytes are read; this keeps the stores to all 64 */
    __asm__ volatile("" : : "r"(&cfg) : "memory");
    _tile_loadconfig(&cfg);
}

static void end16(void)
{
    _tile_release();
}

KERNEL_INLINE void body(const struct cpu_mac *c, const int two_rows, const int two_panels)
{
    const uint16_t *x = c->x, *w = c->w;
    float *a0 = c->acc, *a1 = c->acc + c->acc_ps;
    const size_t ldx = (size_t)c->ldx * sizeof *x;
    if (c->mode == CPU_MAC_SET) {
        _tile_zero(0);
        if (two_panels) _tile_zero(1);
        if (two_rows) _tile_zero(2);
        if (two_rows && two_panels) _tile_zero(3);
    } else {
        _tile_loadd(0, a0, 64);
        if (two_panels) _tile_loadd(1, a1, 64);
        if (two_rows) _tile_loadd(2, a0 + TILE_FLOATS, 64);
        if (two_rows && two_panels) _tile_loadd(3, a1 + TILE_FLOATS, 64);
    }
    for (int i = 0; i < c->k; i += c->step) {
        _tile_loadd(4, x + i, ldx);
        _tile_loadd(6, w + (int64_t)i * 16, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_panels) {
            _tile_loadd(7, w + c->w_ps + (int64_t)i * 16, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_rows) {
            _tile_loadd(5, x + TILE_ROWS * c->ldx + i, ldx);
            _tile_dpbf16ps(2, 5, 6);
            if (two_panels) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, a0, 64);
    if (two_panels) _tile_stored(1, a1, 64);
    if (two_rows) _tile_stored(2, a0 + TILE_FLOATS, 64);
    if (two_rows && two_panels) _tile_stored(3, a1 + TILE_FLOATS, 64);
}

static void mac16(const struct cpu_mac *c)
{
    if (c->mr > TILE_ROWS && c->np > 1) body(c, 1, 1);
    else if (c->mr > TILE_ROWS) body(c, 1, 0);
    else if (c->np > 1) body(c, 0, 1);
    else body(c, 0, 0);
}

static int np16(int mr)
{
    (void)mr;
    return 2;
}

KERNEL_TARGET_END

const struct cpu_kernels cpu_kernels_amx = {
    .mr = 8, .mr16 = ROWS, .unit16 = TILE_ROWS, .np = cpu_avx512_np, .np16 = np16, .mac = cpu_avx512_mac,
    .mac16 = mac16, .begin16 = begin16, .end16 = end16, .fp4 = cpu_avx512_fp4, .fold = cpu_avx512_fold,
    .round = cpu_avx512_round, .pack = cpu_avx512_pack,
};
