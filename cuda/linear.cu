/* y = x . W^T.
 *
 * Rows become BF16 first: one part (rounded), or three parts that add up to the FP32 value (act fp32 and exact
 * matrices: three products per weight, still on tensor cores). A row of k products is cut into CU_SPLITS ranges of
 * 64 inputs, one warp each; a range is summed in order, then the ranges in order. None of this depends on how many
 * rows or outputs a block takes, so neither do the bits.
 * A warp's operand A is a tile of 16 outputs: a lane reads 16 bytes of a row, 8 neighbouring inputs, and lets them
 * stand for the 4 + 4 inputs the instruction wants from it; x is read in the same permuted order. */
#include "mma.h"

/* ---- rows to BF16 ------------------------------------------------------------------------------------ */

template <bool VEC> static __global__ void rows_kernel(struct cu_rows a)
{
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    cu_launch_next(); /* the product may start on its weights */
    cu_wait_last();
    if (i < a.kp) cu_rows_store<VEC>(a, blockIdx.y, i);
}

void cu_rows_bf16(struct ops *o, const float *x, int64_t ldx, int t, int k, int kp, int parts, __nv_bfloat16 *out)
{
    const struct cu_rows all = cu_rows_of(x, ldx, t, k, kp, parts, out);
    for (int r = 0; r < all.rows8; r += 65528) {
        dim3 grid((unsigned)cu_parts(kp, 1024), (unsigned)(all.rows8 - r < 65528 ? all.rows8 - r : 65528));
        struct cu_rows a = all;
        a.x += r * ldx;
        a.t -= r;
        a.out += (int64_t)r * kp;
        cu_launch_early(all.vec ? rows_kernel<true> : rows_kernel<false>, grid, 256, 0, cu_impl(o)->stream, a);
    }
}

/* ---- few rows ---------------------------------------------------------------------------------------- */

struct lin {
    const __nv_bfloat16 *w, *x;
    int n, kp, t;
    int64_t plane; /* elements from part to part of x */
    float *y;
    int64_t ldy;
    float *part;   /* many_kernel: [CU_SPLITS][t][n] */
};

/* inputs [b0, b1) of a range, in blocks of 64 */
static __device__ __forceinline__ int2 range_of(const struct lin &a, int s)
{
    int nb = a.kp / CU_TILE_K;
    return make_int2(s * nb / CU_SPLITS, (s + 1) * nb / CU_SPLITS);
}

/* sum += acc, acc := 0: tensor cores cut sums short, so runs of exact products are kept short */
template <int N> static __device__ __forceinline__ void promote(float (*sum)[4], float (*acc)[4])
{
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum[j][i] += acc[j][i];
            acc[j][i] = 0;
        }
}

/* A block: 16 MT outputs x 8 NT rows, one warp per range of inputs. Every lane keeps ST blocks of its own operands on
 * their way to its own slots of shared memory: no thread waits for another. */
template <int MT, int NT, int PARTS, int ST> static __global__ void __launch_bounds__(CU_SPLITS * 32)
    few_kernel(struct lin a)
{
    constexpr int SLOTS = 4 * MT + 2 * NT * PARTS;
    extern __shared__ uint4 mem[]; /* [splits][ST][SLOTS][32]; then float [splits][8 NT][16 MT] */
    const int lane = threadIdx.x & 31, s = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    const int tiles = (a.n + 15) / 16, tile0 = blockIdx.x * MT, row0 = blockIdx.y * 8 * NT, rows = (a.t + 7) / 8 * 8;
    const int2 range = range_of(a, s);
    uint4 *ring = mem + (size_t)s * ST * SLOTS * 32 + lane;
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
    auto fetch_w = [&](int b, int st) {
        uint4 *to = ring + st * SLOTS * 32;
        if (b < range.y)
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) /* rows g and g + 8, first and last 32 inputs */
                    cu_copy16(to + (m * 4 + i) * 32,
                              w[m] + (i & 1 ? (int64_t)8 * a.kp : 0) + b * CU_TILE_K + (i >> 1) * 32);
    };
    auto fetch_x = [&](int b, int st) {
        uint4 *to = ring + st * SLOTS * 32;
        if (b < range.y)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int p = 0; p < PARTS; p++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        cu_copy16(to + (4 * MT + (j * PARTS + p) * 2 + h) * 32,
                                  x[j] + p * a.plane + b * CU_TILE_K + h * 32);
        cu_copy_end();
    };
#pragma unroll
    for (int i = 0; i < ST - 1; i++) fetch_w(range.x + i, i);
    cu_wait_last(); /* the rows */
#pragma unroll
    for (int i = 0; i < ST - 1; i++) fetch_x(range.x + i, i);
    for (int b = range.x, st = 0; b < range.y; b++, st = st + 1 == ST ? 0 : st + 1) {
        fetch_w(b + ST - 1, st == 0 ? ST - 1 : st - 1);
        fetch_x(b + ST - 1, st == 0 ? ST - 1 : st - 1);
        cu_copy_wait<ST - 1>();
        const uint4 *from = ring + st * SLOTS * 32;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 v[NT];
#pragma unroll
                for (int j = 0; j < NT; j++) v[j] = from[(4 * MT + (j * PARTS + p) * 2 + h) * 32];
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    uint4 lo = from[(m * 4 + 2 * h) * 32], hi = from[(m * 4 + 2 * h + 1) * 32];
#pragma unroll
                    for (int j = 0; j < NT; j++) {
                        cu_mma(acc[m][j], lo.x, hi.x, lo.y, hi.y, v[j].x, v[j].y);
                        cu_mma(acc[m][j], lo.z, hi.z, lo.w, hi.w, v[j].z, v[j].w);
                    }
                }
            }
        if (PARTS > 1)
#pragma unroll
            for (int m = 0; m < MT; m++) promote<NT>(sum[PARTS > 1 ? m : 0], acc[m]);
    }
    cu_copy_wait<0>();
    __syncthreads();
    float *part = (float *)mem;
    if constexpr (PARTS > 1) cu_parts_put(part + s * 128 * MT * NT, 16 * MT, sum);
    else cu_parts_put(part + s * 128 * MT * NT, 16 * MT, acc);
    __syncthreads();
    for (int i = threadIdx.x; i < 128 * MT * NT; i += blockDim.x) {
        int out = tile0 * 16 + i % (16 * MT), row = row0 + i / (16 * MT);
        if (out < a.n && row < a.t) a.y[row * a.ldy + out] = cu_parts_sum<CU_SPLITS>(part + i, 128 * MT * NT);
    }
}

template <int MT, int NT, int PARTS, int ST> static void few(cudaStream_t st, const struct lin &a)
{
    constexpr int ring = CU_SPLITS * ST * (4 * MT + 2 * NT * PARTS) * 512, sums = CU_SPLITS * 128 * MT * NT * 4;
    constexpr int bytes = ring > sums ? ring : sums;
    dim3 grid((unsigned)cu_parts(a.n, 16 * MT), (unsigned)cu_parts(a.t, 8 * NT));
    CU(cudaFuncSetAttribute(few_kernel<MT, NT, PARTS, ST>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    cu_launch_early(few_kernel<MT, NT, PARTS, ST>, grid, CU_SPLITS * 32, bytes, st, a);
}

/* ---- more rows ----------------------------------------------------------------------------------------- */

/* A block: 128 outputs (a tile of 16 per warp) x 8 NT rows x one range of inputs. Rows are shared through shared memory
 * (row stride 64 + 32 elements: no bank conflicts), weights are the lanes' own. sum_kernel adds the partial sums. */
template <int NT, int PARTS, int ST> static __global__ void __launch_bounds__(256) many_kernel(struct lin a)
{
    constexpr int LD = CU_TILE_K + 32, ROWS = 8 * NT, XS = PARTS * ROWS * LD * 2 / 16; /* uint4 of rows per stage */
    extern __shared__ uint4 mem[]; /* [ST] stages of rows, then [8 warps][ST][4][32] of weights */
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3;
    const int tiles = (a.n + 15) / 16, tile = blockIdx.x * 8 + warp, row0 = blockIdx.y * ROWS, rows = (a.t + 7) / 8 * 8;
    const int2 range = range_of(a, blockIdx.z);
    uint4 *ring = mem + ST * XS + warp * ST * 128 + lane;
    const __nv_bfloat16 *w = a.w + (int64_t)((tile < tiles ? tile : tiles - 1) * 16 + g) * a.kp + q * 8;
    float acc[NT][4] = {}, sum[PARTS > 1 ? NT : 1][4] = {};
    auto fetch = [&](int b, int st) {
        if (b < range.y) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                cu_copy16(ring + (st * 4 + i) * 32,
                          w + (i & 1 ? (int64_t)8 * a.kp : 0) + b * CU_TILE_K + (i >> 1) * 32);
            for (int e = threadIdx.x; e < PARTS * ROWS * 8; e += 256) {
                int c = e % 8, r = e / 8 % ROWS, p = e / (8 * ROWS);
                bool in = row0 + r < rows;
                cu_copy16_if((__nv_bfloat16 *)(mem + st * XS) + (p * ROWS + r) * LD + c * 8,
                             a.x + p * a.plane + (int64_t)(in ? row0 + r : 0) * a.kp + b * CU_TILE_K + c * 8, in);
            }
        }
        cu_copy_end();
    };
    cu_wait_last();
#pragma unroll
    for (int i = 0; i < ST - 1; i++) fetch(range.x + i, i);
    for (int b = range.x, st = 0; b < range.y; b++, st = st + 1 == ST ? 0 : st + 1) {
        cu_copy_wait<ST - 2>();
        __syncthreads();
        fetch(b + ST - 1, st == 0 ? ST - 1 : st - 1);
        const __nv_bfloat16 *xs = (const __nv_bfloat16 *)(mem + st * XS) + g * LD + q * 8;
#pragma unroll
        for (int p = 0; p < PARTS; p++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 lo = ring[(st * 4 + 2 * h) * 32], hi = ring[(st * 4 + 2 * h + 1) * 32];
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    uint4 v = *(const uint4 *)(xs + (p * ROWS + j * 8) * LD + h * 32);
                    cu_mma(acc[j], lo.x, hi.x, lo.y, hi.y, v.x, v.y);
                    cu_mma(acc[j], lo.z, hi.z, lo.w, hi.w, v.z, v.w);
                }
            }
        if (PARTS > 1) promote<NT>(sum, acc);
    }
    if (tile >= tiles) return;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int out = tile * 16 + g + i / 2 * 8, row = row0 + j * 8 + q * 2 + i % 2;
            if (out < a.n && row < a.t)
                a.part[((int64_t)blockIdx.z * a.t + row) * a.n + out] =
                    PARTS > 1 ? sum[PARTS > 1 ? j : 0][i] : acc[j][i];
        }
}

static __global__ void sum_kernel(struct lin a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, all = (int64_t)a.t * a.n;
    if (i >= all) return;
    a.y[i / a.n * a.ldy + i % a.n] = cu_parts_sum<CU_SPLITS>(a.part + i, all);
}

template <int NT, int PARTS, int ST> static void many(cudaStream_t st, const struct lin &a)
{
    constexpr int bytes = ST * PARTS * 8 * NT * (CU_TILE_K + 32) * 2 + ST * 8 * 4 * 512;
    dim3 grid((unsigned)cu_parts(a.n, 128), (unsigned)cu_parts(a.t, 8 * NT), CU_SPLITS);
    CU(cudaFuncSetAttribute(many_kernel<NT, PARTS, ST>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    cu_launch_early(many_kernel<NT, PARTS, ST>, grid, 256, bytes, st, a);
    sum_kernel<<<cu_parts((int64_t)a.t * a.n, 256), 256, 0, st>>>(a);
    CU_LAUNCHED("linear sum");
}

enum { FEW = 16 }; /* rows that never need many_kernel */

template <int PARTS> static void own(cudaStream_t st, const struct lin &a)
{
    if (a.t <= 8) few<1, 1, PARTS, PARTS == 1 ? 4 : 3>(st, a);
    else if (a.t <= 16) few<1, 2, PARTS, PARTS == 1 ? 3 : 2>(st, a);
    else if (PARTS == 1 && a.t <= 32) few<2, 4, 1, 3>(st, a);
    else if (a.t <= 32) many<4, PARTS, 3>(st, a);
    else if (a.t <= 64 || PARTS > 1) many<8, PARTS, 3>(st, a);
    else many<16, 1, 3>(st, a);
}

void cuda_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy)
{
    struct cuda_impl *im = cu_impl(o);
    if (t < 1) return;
    if (m->kind != MAT_BF16) {
        cu_fp4_linear(o, m, x, ldx, t, y, ldy);
        return;
    }
    int parts = im->act == ACT_FP32 || m->exact ? 3 : 1, kp = (int)cu_up((size_t)m->k, CU_TILE_K);
    int blas = parts == 1 && t > CU_EXACT_ROWS && cu_blas_ready(o), block = blas ? (int)CU_LINEAR_ROWS : 1024;
    for (int r = 0; r < t; r += block) {
        int n = t - r < block ? t - r : block, rows = (int)cu_up((size_t)n, 8);
        struct lin a = {
            (const __nv_bfloat16 *)m->data.p, NULL, m->n, kp, n, (int64_t)rows * kp, y + r * ldy, ldy, NULL};
        size_t bytes = cu_up((size_t)parts * rows * kp * 2, 256),
               sums = n > FEW && !blas ? (size_t)CU_SPLITS * n * m->n * 4 : 0;
        char *mem = (char *)cu_scratch(o, bytes + sums);
        a.x = (__nv_bfloat16 *)mem;
        a.part = (float *)(mem + bytes);
        cu_rows_bf16(o, x + r * ldx, ldx, n, m->k, kp, parts, (__nv_bfloat16 *)mem);
        if (blas) {
            if (cu_blas_linear(o, m, a.x, kp, n, a.y, ldy)) continue;
            log_error(
                "linear: cuBLASLt has no product of %d x %d x %d; move libcublasLt out of the way to do without it", n,
                m->n, kp);
            abort();
        }
        if (parts == 1 && cu_linear_wide(o, m, a.x, kp, n, a.y, ldy)) continue;
        if (parts == 1) own<1>(im->stream, a);
        else own<3>(im->stream, a);
    }
}
