/* Router and argmax. The scores repeat the CPU's arithmetic operation by operation (this file is compiled without
 * fused multiply-add), so equal logits choose equal experts on both backends. */
#include "cuda.h"

#include <string.h>

/* ---- the CPU's sigmoid (src/ops/cpu/cpu_math.h) ----------------------------------------------------- */

static __device__ __forceinline__ float exp_neg(float x)
{
    const float magic = 12582912.0f, low = -87.33654f;
    float c = x < low ? low : x;
    float t = c * 0x1.715476p+0f + magic, n = t - magic;
    float r = (c - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
    float p = 0x1.6a2434p-10f;
    p = p * r + 0x1.1239e2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = (p * (r * r) + r) + 1.0f;
    float a = __uint_as_float((__float_as_uint(t) - 0x4b400000u + 127u) << 23);
    return x < low ? 0.0f : p * a;
}

static __device__ __forceinline__ float sigmoid(float x)
{
    float e = exp_neg(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* ---- router ------------------------------------------------------------------------------------------ */

/* the better of two candidates: larger value, then lower id */
static __device__ __forceinline__ void better(float &v, int &id, float u, int j)
{
    if (u > v || (u == v && j < id)) {
        v = u;
        id = j;
    }
}

enum { ROUTE_MOST = 32 }; /* scores a lane holds */

/* One warp per row: lane l holds experts l, 32 + l, ..; only the lane that lost its best looks for the next one. The
 * scores stay in shared memory for the weights; mark: a bit per chosen expert of the lane. */
static __global__ void route_kernel(const float *logits, const float *bias, int n, int k, float scale, int t, int32_t *idx,
                                    float *w)
{
    extern __shared__ float mem[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.x * (blockDim.x >> 5) + warp;
    float *s = mem + (size_t)warp * n, c[ROUTE_MOST], v = -INFINITY;
    uint32_t mark = 0;
    int id = n;
    if (row >= t) return;
#pragma unroll
    for (int j = 0; j < ROUTE_MOST; j++) {
        int i = j * 32 + lane;
        c[j] = -INFINITY;
        if (i >= n) continue;
        float x = sigmoid(logits[(int64_t)row * n + i]);
        s[i] = x;
        if (bias) x = x + bias[i];
        c[j] = x != x ? -INFINITY : x;
        better(v, id, c[j], i);
    }
    for (int r = 0; r < k; r++) {
        float best = v;
        int at = id;
        for (int m = 16; m; m >>= 1) {
            float u = __shfl_xor_sync(0xffffffffu, best, m);
            int other = __shfl_xor_sync(0xffffffffu, at, m);
            better(best, at, u, other);
        }
        if (at >= n || at % 32 != lane) continue;
        mark |= 1u << (at / 32);
        v = -INFINITY;
        id = n;
#pragma unroll
        for (int j = 0; j < ROUTE_MOST; j++)
            if (j * 32 + lane < n && !(mark >> j & 1)) better(v, id, c[j], j * 32 + lane);
    }
    int have = 0; /* ids ascending */
    for (int j = 0; j * 32 < n; j++) {
        bool mine = mark >> j & 1;
        unsigned all = __ballot_sync(0xffffffffu, mine);
        if (mine) idx[(int64_t)row * k + have + __popc(all & ((1u << lane) - 1))] = j * 32 + lane;
        have += __popc(all);
    }
    __syncwarp();
    float sum = 0;
    for (int j = 0; j < k; j++) sum += s[idx[(int64_t)row * k + j]];
    for (int j = lane; j < k; j += 32) w[(int64_t)row * k + j] = s[idx[(int64_t)row * k + j]] / (sum + 1e-20f) * scale;
}

void cuda_route(struct ops *o, const float *logits, const float *bias, int n_experts, int k, float scale, int t, int32_t *idx,
                float *w)
{
    if (t < 1) return;
    enum { WARPS = 4 };
    if (n_experts > 32 * ROUTE_MOST) {
        log_error("route: %d experts are more than the %d this backend holds in registers", n_experts, 32 * ROUTE_MOST);
        abort();
    }
    route_kernel<<<cu_parts(t, WARPS), WARPS * 32, WARPS * (size_t)n_experts * sizeof(float), cu_impl(o)->stream>>>(
        logits, bias, n_experts, k, scale, t, idx, w);
    CU_LAUNCHED("route");
}

/* ---- argmax ------------------------------------------------------------------------------------------ */

enum { ARG_BLOCK = 1024 };

/* one block per row; id n: nothing yet, -1: NaN seen */
static __global__ void __launch_bounds__(ARG_BLOCK) argmax_kernel(const float *logits, int64_t ldx, int n, float *val, int32_t *idx)
{
    __shared__ float vs[32];
    __shared__ int is[32];
    const float *x = logits + blockIdx.x * ldx;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, id = n, bad = 0;
    float v = -INFINITY;
    for (int i = threadIdx.x; i < n; i += ARG_BLOCK) {
        float u = x[i];
        bad |= u != u;
        better(v, id, u, i);
    }
    bad = __syncthreads_or(bad);
    for (int m = 16; m; m >>= 1) {
        float u = __shfl_xor_sync(0xffffffffu, v, m);
        int j = __shfl_xor_sync(0xffffffffu, id, m);
        better(v, id, u, j);
    }
    if (lane == 0) {
        vs[warp] = v;
        is[warp] = id;
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < ARG_BLOCK / 32; i++) better(vs[0], is[0], vs[i], is[i]);
    val[blockIdx.x] = bad ? __uint_as_float(0x7fffffff) : vs[0];
    idx[blockIdx.x] = bad ? -1 : is[0];
}

void cuda_argmax(struct ops *o, const float *logits, int64_t ldx, int t, int n, float *val, int32_t *idx)
{
    struct cuda_impl *im = cu_impl(o);
    int most = (int)(im->result_bytes / 8);
    for (int r = 0; r < t; r += most) {
        int m = t - r < most ? t - r : most;
        float *v = (float *)im->result; /* pinned memory is written by the kernel itself */
        int32_t *i = (int32_t *)(v + m);
        argmax_kernel<<<m, ARG_BLOCK, 0, im->stream>>>(logits + r * ldx, ldx, n, v, i);
        CU_LAUNCHED("argmax");
        cu_wait(o);
        memcpy(val + r, v, (size_t)m * sizeof *v);
        memcpy(idx + r, i, (size_t)m * sizeof *i);
    }
}
