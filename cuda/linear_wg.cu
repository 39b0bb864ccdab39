/* y = x . W^T on Hopper, for rows that do not fill the tensor cores: the matrix streams past them once.
 *
 * A cluster of CU_SPLITS blocks computes 64 WGS outputs x N rows, a block one range of inputs: a producer thread lets
 * the copy engine fill a ring of blocks of 64 inputs (weights before the rows are there), each warpgroup multiplies 64
 * outputs. Then the blocks add the ranges in order, each for its share of the rows. A sum is the same steps for every N
 * and WGS. */
#include "wgmma_n.h"

struct alignas(64) wide {
    struct cu_map w, x;
    int n, kp, t;
    float *y;
    int64_t ldy;
    int vec;      /* y takes 16-byte stores */
};

template <int WGS, int N, int ST> struct wide_memory {
    static constexpr int OUTS = 64 * WGS, W = OUTS * 128, STAGE = W + N * 128, LD = OUTS + 4;
    static constexpr int RING = ST * STAGE, SUMS = N * LD * 4, BYTES = (RING > SUMS ? RING : SUMS) + 1024;
};

/* the producer: blocks [b0, b1) of inputs */
template <int WGS, int N, int ST> static __device__ __forceinline__ void
stream(const struct wide &a, char *ring, uint64_t *full, uint64_t *empty, int b0, int b1)
{
    using M = wide_memory<WGS, N, ST>;
    const int out0 = blockIdx.x * M::OUTS, row0 = blockIdx.y * N, first = b1 - b0 < ST ? b1 - b0 : ST;
    for (int i = 0; i < first; i++) {
        bar_expect(&full[i], M::STAGE);
        tma_load(ring + i * M::STAGE, &a.w, &full[i], (b0 + i) * 64, out0);
    }
    cu_wait_last(); /* the rows are there */
    for (int i = 0; i < first; i++) tma_load(ring + i * M::STAGE + M::W, &a.x, &full[i], (b0 + i) * 64, row0);
    for (int i = ST; i < b1 - b0; i++) {
        int st = i % ST;
        bar_wait(&empty[st], (i / ST - 1) & 1);
        bar_expect(&full[st], M::STAGE);
        tma_load(ring + st * M::STAGE, &a.w, &full[st], (b0 + i) * 64, out0);
        tma_load(ring + st * M::STAGE + M::W, &a.x, &full[st], (b0 + i) * 64, row0);
    }
}

template <int WGS, int N, int ST>
static __global__ void __launch_bounds__(WGS * 128 + 32) wide_kernel(const __grid_constant__ struct wide a)
{
    using M = wide_memory<WGS, N, ST>;
    extern __shared__ char raw[];
    __shared__ uint64_t full[ST], empty[ST];
    char *ring = raw + (-cu_shared(raw) & 1023);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3, nb = a.kp / CU_TILE_K;
    const int b0 = blockIdx.z * nb / CU_SPLITS, b1 = (blockIdx.z + 1) * nb / CU_SPLITS;
    bar_start<ST>({{full, 1}, {empty, 4 * WGS}});
    float acc[N / 2] = {};
    cu_launch_next(); /* it waits for the end of this one, and so does what it has launched early in turn */
    if (warp == 4 * WGS) {
        if (lane == 0) stream<WGS, N, ST>(a, ring, full, empty, b0, b1);
        __syncwarp();
    } else {
        for (int i = 0, st = 0; i < b1 - b0; i++, st = st + 1 == ST ? 0 : st + 1) {
            const char *w = ring + st * M::STAGE + (warp >> 2) * 8192, *x = ring + st * M::STAGE + M::W;
            bar_wait(&full[st], i / ST & 1);
            wg_begin();
#pragma unroll
            for (int k = 0; k < 4; k++) wg_ss<1>(acc, wg_operand(w + k * 32, 64), wg_operand(x + k * 32, N), 1);
            wg_end();
            wg_wait<1>(); /* the stage before has been read */
            if (i && lane == 0) bar_arrive(&empty[st == 0 ? ST - 1 : st - 1]);
        }
        wg_wait<0>();
        wg_hold(acc);
        wg_sync(1, WGS * 128); /* nobody reads the ring any more */
        float *part = (float *)ring + 16 * warp + g;
#pragma unroll
        for (int i = 0; i < N / 2; i++) part[(i / 4 * 8 + q * 2 + i % 2) * M::LD + i / 2 % 2 * 8] = acc[i];
    }
    cluster_sync();
    for (int i = threadIdx.x; i < N / CU_SPLITS * M::OUTS / 4; i += WGS * 128 + 32) {
        int row = blockIdx.z * (N / CU_SPLITS) + i / (M::OUTS / 4), c = i % (M::OUTS / 4) * 4;
        int out = blockIdx.x * M::OUTS + c;
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int p = 0; p < CU_SPLITS; p++) {
            float4 u = cluster_load4(cluster_at((float *)ring + row * M::LD + c, p));
            v = make_float4(v.x + u.x, v.y + u.y, v.z + u.z, v.w + u.w);
        }
        row += blockIdx.y * N;
        if (row >= a.t) continue;
        if (a.vec) cu_store4<true>(a.y + row * a.ldy, out, a.n, v);
        else cu_store4<false>(a.y + row * a.ldy, out, a.n, v);
    }
    cluster_sync(); /* the others have read this block's sums */
}

template <int WGS, int N, int ST>
static void wide(struct ops *o, struct wide &a, const struct mat *m, const __nv_bfloat16 *x)
{
    using M = wide_memory<WGS, N, ST>;
    const int64_t dim_w[2] = {a.kp, (int64_t)cu_up((size_t)a.n, CU_TILE_N)},
                  dim_x[2] = {a.kp, (int64_t)cu_up((size_t)a.t, 8)};
    const int64_t stride[1] = {a.kp * 2};
    const int box_w[2] = {64, M::OUTS}, box_x[2] = {64, N};
    a.w = cu_map_new(m->data.p, 2, dim_w, stride, box_w);
    a.x = cu_map_new(x, 2, dim_x, stride, box_x);
    cudaLaunchAttribute at[2] = {};
    at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[0].val.programmaticStreamSerializationAllowed = 1;
    at[1].id = cudaLaunchAttributeClusterDimension;
    at[1].val.clusterDim.x = at[1].val.clusterDim.y = 1;
    at[1].val.clusterDim.z = CU_SPLITS;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)cu_parts(a.n, M::OUTS), (unsigned)cu_parts(a.t, N), CU_SPLITS);
    c.blockDim = dim3(WGS * 128 + 32);
    c.dynamicSmemBytes = M::BYTES;
    c.stream = cu_impl(o)->stream;
    c.attrs = at;
    c.numAttrs = 2;
    CU(cudaFuncSetAttribute(wide_kernel<WGS, N, ST>, cudaFuncAttributeMaxDynamicSharedMemorySize, M::BYTES));
    CU(cudaLaunchKernelEx(&c, wide_kernel<WGS, N, ST>, a));
}

int cu_linear_wide(struct ops *o, const struct mat *m, const __nv_bfloat16 *x, int kp, int t, float *y, int64_t ldy)
{
    if (!cu_hopper(cu_impl(o))) return 0;
    struct wide a = {};
    a.n = m->n;
    a.kp = kp;
    a.t = t;
    a.y = y;
    a.ldy = ldy;
    a.vec = m->n % 4 == 0 && cu_aligned16(y, ldy);
    if (cu_parts(a.n, 128) * CU_SPLITS <
        cu_impl(o)->sm_count) { /* blocks for half of the multiprocessors: smaller ones */
        if (t <= 16) wide<1, 16, 7>(o, a, m, x);
        else if (t <= 64) wide<1, 64, 5>(o, a, m, x);
        else wide<1, 128, 4>(o, a, m, x);
        return 1;
    }
    if (t <= 8) wide<2, 8, 6>(o, a, m, x);
    else if (t <= 16) wide<2, 16, 6>(o, a, m, x);
    else if (t <= 32) wide<2, 32, 5>(o, a, m, x);
    else if (t <= 64) wide<2, 64, 4>(o, a, m, x);
    else wide<2, 128, 3>(o, a, m, x);
    return 1;
}
