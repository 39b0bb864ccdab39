/* Packing of weights on the device.
 *
 * BF16: row-major [n][kp], n padded to 16 rows and k to 64 columns with zeros, for own kernels and the library alike.
 * MXFP4: tiles of 16 outputs x 64 inputs of 512 bytes, [n/16][k/64]: 32 lanes x 16 bytes, in the order in which a
 * warp's lanes feed the tensor cores. Lane 4 g + q holds the words (8 weights of inputs 8 q .. 8 q + 7 of a block of
 * 32) of output g block 0, output g + 8 block 0, output g block 1, output g + 8 block 1. Scales: [n/16][k/64][8][4]
 * bytes in the same order. Order of the nibbles in a word: see fp4.h. */
#include "cuda.h"
#include "fp4.h"

#include <stdlib.h>
#include <string.h>

enum status cuda_mat_new(struct ops *o, struct mat *m, enum mat_kind kind, int n, int k, int leaf, int exact)
{
    struct cuda_impl *im = cu_impl(o);
    struct mat v = {};
    v.kind = kind;
    v.n = n;
    v.k = k;
    v.leaf = leaf;
    v.exact = exact;
    if (n < 1 || k < 1 || leaf < 0 || (leaf && k % leaf))
        return ERR(ST_E_RANGE, "matrix %d x %d, leaf %d: sizes must be positive and the leaf divide the inputs", n, k,
                   leaf);
    if (kind == MAT_MXFP4 && (k % 32 || leaf % 32))
        return ERR(ST_E_RANGE, "matrix %d x %d, leaf %d: MXFP4 needs inputs and leaf in whole blocks of 32", n, k,
                   leaf);
    size_t kp = cu_up((size_t)k, CU_TILE_K), np = cu_up((size_t)n, CU_TILE_N);
    if (kind == MAT_MXFP4) {
        TRY(cuda_mem_new(o, &v.scale, np * kp / 32, "MXFP4 scales"));
        enum status st = cuda_mem_new(o, &v.data, np * kp / 2, "MXFP4 weights");
        if (st != ST_OK) {
            cuda_mem_free(o, &v.scale);
            return st;
        }
        im->fp4_n = n > im->fp4_n ? n : im->fp4_n;
        im->fp4_k = (int64_t)kp > im->fp4_k ? (int64_t)kp : im->fp4_k;
    } else {
        TRY(cuda_mem_new(o, &v.data, np * kp * 2, "BF16 weights"));
    }
    im->max_k = (int64_t)kp > im->max_k ? (int64_t)kp : im->max_k;
    im->max_n = (int64_t)np > im->max_n ? (int64_t)np : im->max_n;
    *m = v;
    return ST_OK;
}

void cuda_mat_free(struct ops *o, struct mat *m)
{
    if (!m) return;
    cuda_mem_free(o, &m->data);
    cuda_mem_free(o, &m->scale);
    memset(m, 0, sizeof *m);
}

void cuda_mat_put_bf16(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld)
{
    cudaStream_t st = cu_impl(o)->stream;
    size_t kp = cu_up((size_t)m->k, CU_TILE_K);
    if (n < 1) return;
    CU(cudaMemcpy2DAsync((char *)m->data.p + row0 * kp * 2, kp * 2, src, (size_t)ld * 2, (size_t)m->k * 2, (size_t)n,
                         cudaMemcpyHostToDevice, st));
    CU(cudaStreamSynchronize(st));
}

void cuda_mat_put_bf16_t(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld)
{
    enum { ROWS = 64 };
    char *t = (char *)malloc((size_t)ROWS * m->k * 2);
    if (!t) {
        log_error("no memory to transpose %d rows of weights", (int)ROWS);
        abort();
    }
    for (int r0 = 0; r0 < n; r0 += ROWS) {
        int rows = n - r0 < ROWS ? n - r0 : (int)ROWS;
        for (int c = 0; c < m->k; c++)
            for (int r = 0; r < rows; r++)
                memcpy(t + 2 * ((size_t)r * m->k + c), (const char *)src + 2 * (c * ld + r0 + r), 2);
        cuda_mat_put_bf16(o, m, row0 + r0, rows, t, m->k);
    }
    free(t);
}

/* one thread per word: 8 weights of one row */
static __global__ void fp4_kernel(const uint8_t *packed, const uint8_t *scale, int row0, int n, int k, uint32_t *data,
                                  uint8_t *sc)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int words = k / 8, tiles = (k + CU_TILE_K - 1) / CU_TILE_K;
    if (i >= (int64_t)n * words) return;
    int r = (int)(i / words), w = (int)(i % words), row = row0 + r, block = w / 4, q = w % 4;
    const uint8_t *src = packed + (int64_t)r * (k / 2) + w * 4;
    int64_t tile = (int64_t)(row / 16) * tiles + block / 2;
    int at = block % 2 * 2 + row % 16 / 8;
    data[tile * 128 + (row % 8 * 4 + q) * 4 + at] = fp4_pack(src);
    if (q == 0) sc[tile * 32 + row % 8 * 4 + at] = scale[(int64_t)r * (k / 32) + block];
}

void cuda_mat_put_mxfp4(struct ops *o, struct mat *m, int row0, int n, const uint8_t *packed, int64_t ld_packed,
                        const uint8_t *scale, int64_t ld_scale)
{
    cudaStream_t st = cu_impl(o)->stream;
    size_t row = (size_t)m->k / 2, row_s = (size_t)m->k / 32, bytes = cu_up((size_t)n * row, 256);
    if (n < 1) return;
    for (int r = 0; r < n && !cu_impl(o)->fp4_wide; r++)
        for (size_t i = 0; i < row_s; i++) cu_impl(o)->fp4_wide |= scale[r * ld_scale + (int64_t)i] > 128;
    uint8_t *dev = (uint8_t *)cu_scratch(o, bytes + (size_t)n * row_s);
    CU(cudaMemcpy2DAsync(dev, row, packed, (size_t)ld_packed, row, (size_t)n, cudaMemcpyHostToDevice, st));
    CU(cudaMemcpy2DAsync(dev + bytes, row_s, scale, (size_t)ld_scale, row_s, (size_t)n, cudaMemcpyHostToDevice, st));
    fp4_kernel<<<cu_parts((int64_t)n * (m->k / 8), 256), 256, 0, st>>>(dev, dev + bytes, row0, n, m->k,
                                                                       (uint32_t *)m->data.p, (uint8_t *)m->scale.p);
    CU_LAUNCHED("pack MXFP4");
    CU(cudaStreamSynchronize(st));
}
