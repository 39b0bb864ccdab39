/* y = x . W^T.
 *
 * Rows become BF16 first: one part (rounded), or three parts that add up to the FP32 value (act fp32 and exact
 * matrices: three products per weight, still on tensor cores). A row of k products is cut into CU_SPLITS ranges of
 * 64 inputs, one warp each; a range is summed in order, then the ranges in order. None of this depends on how many
 * rows or outputs a block takes, so neither do the bits.
 * A warp's operand A is a tile of 16 outputs: a lane reads 16 bytes of a row, 8 neighbouring inputs, and lets them
 * stand for the 4 + 4 inputs the instruction wants from it; x is read in the same permuted order. */
#include "cuda.h"

/* ---- rows to BF16 ------------------------------------------------------------------------------------ */

template <bool VEC>
static __global__ void rows_kernel(const float *x, int64_t ldx, int t, int k, int kp, int parts, int64_t plane, __nv_bfloat16 *out)
{
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4, row = blockIdx.y;
    if (i >= kp) return;
    float4 v = row < t ? cu_load4<VEC>(x + row * ldx, i, k) : make_float4(0, 0, 0, 0);
    for (int p = 0; p < parts; p++) {
        __nv_bfloat162 lo = __floats2bfloat162_rn(cu_part_bf16(v.x, p), cu_part_bf16(v.y, p));
        __nv_bfloat162 hi = __floats2bfloat162_rn(cu_part_bf16(v.z, p), cu_part_bf16(v.w, p));
        uint2 u = make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
        *(uint2 *)(out + p * plane + (int64_t)row * kp + i) = u;
    }
}

void cu_rows_bf16(struct ops *o, const float *x, int64_t ldx, int t, int k, int kp, int parts, __nv_bfloat16 *out)
{
    cudaStream_t st = cu_impl(o)->stream;
    int rows = (int)cu_up((size_t)t, 8);
    int64_t plane = (int64_t)rows * kp;
    bool vec = k % 4 == 0 && cu_aligned16(x, ldx);
    for (int r = 0; r < rows; r += 65528) {
        dim3 grid((unsigned)cu_parts(kp, 1024), (unsigned)(rows - r < 65528 ? rows - r : 65528));
        if (vec) rows_kernel<true><<<grid, 256, 0, st>>>(x + r * ldx, ldx, t - r, k, kp, parts, plane, out + (int64_t)r * kp);
        else rows_kernel<false><<<grid, 256, 0, st>>>(x + r * ldx, ldx, t - r, k, kp, parts, plane, out + (int64_t)r * kp);
        CU_LAUNCHED("rows to BF16");
    }
}

/* ---- few rows ---------------------------------------------------------------------------------------- */

struct lin {
    const __nv_bfloat16 *w, *x;
    int n, kp, t;
    int64_t plane; /* elements from part to part of x */
    float *y;
    int64_t ldy;
};

static __device__ __forceinline__ uint4 load_once(const void *p) /* weights: read once, keep out of L1 */
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* A block: 16 MT outputs x 8 NT rows, one warp per range of inputs; U blocks of 64 inputs are loaded together. */
template <int MT, int NT, int PARTS, int U> static __global__ void __launch_bounds__(CU_SPLITS * 32) lin_kernel(struct lin a)
{
    extern __shared__ float part[]; /* [CU_SPLITS][16 MT][8 NT] */
    const int lane = threadIdx.x & 31, s = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    const int tiles = (a.n + 15) / 16, tile0 = blockIdx.x * MT, row0 = blockIdx.y * 8 * NT, nb = a.kp / CU_TILE_K;
    const int b0 = s * nb / CU_SPLITS, b1 = (s + 1) * nb / CU_SPLITS, rows = (a.t + 7) / 8 * 8;
    const __nv_bfloat16 *w[MT], *x[NT];
    float acc[MT][NT][4] = {}, sum[PARTS > 1 ? MT : 1][PARTS > 1 ? NT : 1][4] = {};
#pragma unroll
    for (int m = 0; m < MT; m++) {
        int tile = tile0 + m < tiles ? tile0 + m : tiles - 1;
        w[m] = a.w + (int64_t)(tile * 16 + g) * a.kp + q * 8;
    }
#pragma unroll
    for (int j = 0; j < NT; j++) {
        int r = row0 + j * 8 + g;
        x[j] = a.x + (int64_t)(r < rows ? r : g) * a.kp + q * 8;
    }
    for (int b = b0; b < b1; b += U) {
        uint4 wa[U][MT][4];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int m = 0; m < MT; m++)
                if (b + u < b1) {
                    const __nv_bfloat16 *p = w[m] + (b + u) * CU_TILE_K;
                    wa[u][m][0] = load_once(p);
                    wa[u][m][1] = load_once(p + (int64_t)8 * a.kp);
                    wa[u][m][2] = load_once(p + 32);
                    wa[u][m][3] = load_once(p + (int64_t)8 * a.kp + 32);
                }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (b + u >= b1) break;
#pragma unroll
            for (int part_i = 0; part_i < PARTS; part_i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int j = 0; j < NT; j++) {
                        uint4 v = *(const uint4 *)(x[j] + part_i * a.plane + (b + u) * CU_TILE_K + h * 32);
#pragma unroll
                        for (int m = 0; m < MT; m++) {
                            uint4 lo = wa[u][m][2 * h], hi = wa[u][m][2 * h + 1];
                            cu_mma(acc[m][j], lo.x, hi.x, lo.y, hi.y, v.x, v.y);
                            cu_mma(acc[m][j], lo.z, hi.z, lo.w, hi.w, v.z, v.w);
                        }
                    }
            if (PARTS > 1) /* tensor cores cut sums short: keep their runs short and add in FP32 */
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int j = 0; j < NT; j++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            sum[m][j][i] += acc[m][j][i];
                            acc[m][j][i] = 0;
                        }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int out = m * 16 + g + i / 2 * 8, row = j * 8 + q * 2 + i % 2;
                part[(s * 8 * NT + row) * (16 * MT) + out] = PARTS > 1 ? sum[m][j][i] : acc[m][j][i];
            }
    __syncthreads();
    for (int i = threadIdx.x; i < 128 * MT * NT; i += blockDim.x) {
        int out = tile0 * 16 + i % (16 * MT), row = row0 + i / (16 * MT);
        float v = 0;
#pragma unroll
        for (int p = 0; p < CU_SPLITS; p++) v += part[p * 128 * MT * NT + i];
        if (out < a.n && row < a.t) a.y[row * a.ldy + out] = v;
    }
}

template <int MT, int NT, int PARTS, int U> static void launch(cudaStream_t st, const struct lin &a)
{
    dim3 grid((unsigned)cu_parts(a.n, 16 * MT), (unsigned)cu_parts(a.t, 8 * NT));
    lin_kernel<MT, NT, PARTS, U><<<grid, CU_SPLITS * 32, sizeof(float) * CU_SPLITS * 128 * MT * NT, st>>>(a);
    CU_LAUNCHED("linear");
}

template <int PARTS> static void few_rows(cudaStream_t st, const struct lin &a)
{
    if (a.t <= 8) launch<1, 1, PARTS, 4>(st, a);
    else if (a.t <= 16) launch<1, 2, PARTS, 3>(st, a);
    else launch<2, 4, PARTS, 1>(st, a);
}

void cuda_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy)
{
    struct cuda_impl *im = cu_impl(o);
    if (t < 1) return;
    if (m->kind != MAT_BF16) {
        cu_fp4_linear(o, m, x, ldx, t, y, ldy);
        return;
    }
    int parts = im->act == ACT_FP32 || m->exact ? 3 : 1, kp = (int)cu_up((size_t)m->k, CU_TILE_K), block = 8192;
    for (int r = 0; r < t; r += block) {
        int n = t - r < block ? t - r : block, rows = (int)cu_up((size_t)n, 8);
        struct lin a = {(const __nv_bfloat16 *)m->data.p, NULL, m->n, kp, n, (int64_t)rows * kp, y + r * ldy, ldy};
        __nv_bfloat16 *xb = (__nv_bfloat16 *)cu_scratch(o, (size_t)parts * rows * kp * 2);
        a.x = xb;
        cu_rows_bf16(o, x + r * ldx, ldx, n, m->k, kp, parts, xb);
        if (parts == 1 && t > CU_EXACT_ROWS && cu_blas_linear(o, m, xb, kp, n, a.y, ldy)) continue;
        if (parts == 1) few_rows<1>(im->stream, a);
        else few_rows<3>(im->stream, a);
    }
}
