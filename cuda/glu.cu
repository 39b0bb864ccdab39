/* Elementwise operations. */
#include "cuda.h"

enum { BLOCK = 256 };

static __global__ void embed_kernel(const __nv_bfloat16 *table, int first, int n_ids, int h, const int32_t *id,
                                    float *y)
{
    int64_t r = (int64_t)id[blockIdx.x] - first;
    float *row = y + (int64_t)blockIdx.x * h;
    bool here = r >= 0 && r < n_ids;
    for (int i = threadIdx.x; i < h; i += blockDim.x) row[i] = here ? __bfloat162float(table[r * h + i]) : 0.0f;
}

void cuda_embed(struct ops *o, const void *table, int first, int n_ids, int h, const int32_t *id, int t, float *y)
{
    if (t < 1) return;
    const int32_t *dev = (const int32_t *)cu_stage(o, id, (size_t)t * sizeof *id);
    embed_kernel<<<t, BLOCK, 0, cu_impl(o)->stream>>>((const __nv_bfloat16 *)table, first, n_ids, h, dev, y);
    CU_LAUNCHED("embed");
}

template <bool VEC> static __global__ void gather_kernel(float *y, const float *x, const int32_t *from, int n)
{
    int i = (blockIdx.y * BLOCK + threadIdx.x) * 4;
    const float *row = x + (int64_t)from[blockIdx.x] * n;
    if (i < n) cu_store4<VEC>(y + (int64_t)blockIdx.x * n, i, n, cu_load4<VEC>(row, i, n));
}

void cuda_gather_rows(struct ops *o, float *y, const float *x, const int32_t *from, int t, int n)
{
    if (t < 1 || n < 1) return;
    const int32_t *dev = (const int32_t *)cu_stage(o, from, (size_t)t * sizeof *from);
    dim3 grid((unsigned)t, (unsigned)cu_parts(n, BLOCK * 4));
    if (n % 4 == 0 && cu_aligned16(y, n) && cu_aligned16(x, n))
        gather_kernel<true><<<grid, BLOCK, 0, cu_impl(o)->stream>>>(y, x, dev, n);
    else
        gather_kernel<false><<<grid, BLOCK, 0, cu_impl(o)->stream>>>(y, x, dev, n);
    CU_LAUNCHED("gather_rows");
}

/* ---- y[i] := f(y[i], x[i]) over n elements --------------------------------------------------------- */

struct add_fn {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct gate_fn {
    __device__ float operator()(float a, float b) const { return a * cu_sigmoid(b); }
};

template <bool VEC, class F>
static __global__ void two_kernel(float *y, int64_t ldy, const float *x, int64_t ldx, int n)
{
    F f;
    int i = (blockIdx.x * BLOCK + threadIdx.x) * 4;
    float *yr = y + blockIdx.y * ldy;
    if (i >= n) return;
    float4 a = cu_load4<VEC>(yr, i, n), b = cu_load4<VEC>(x + blockIdx.y * ldx, i, n);
    cu_store4<VEC>(yr, i, n, make_float4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)));
}

template <class F> static void two(struct ops *o, float *y, int64_t ldy, const float *x, int64_t ldx, int t, int n)
{
    cudaStream_t st = cu_impl(o)->stream;
    if (t < 1 || n < 1) return;
    bool vec = n % 4 == 0 && cu_aligned16(y, ldy) && cu_aligned16(x, ldx);
    for (int r = 0; r < t; r += 65535) {
        dim3 grid((unsigned)cu_parts(n, BLOCK * 4), (unsigned)(t - r < 65535 ? t - r : 65535));
        if (vec) two_kernel<true, F><<<grid, BLOCK, 0, st>>>(y + r * ldy, ldy, x + r * ldx, ldx, n);
        else two_kernel<false, F><<<grid, BLOCK, 0, st>>>(y + r * ldy, ldy, x + r * ldx, ldx, n);
        CU_LAUNCHED("elementwise");
    }
}

/* n elements as rows of ROW, and a rest */
enum { ROW = 1 << 20 };

void cuda_add(struct ops *o, float *y, const float *x, int64_t n)
{
    int64_t rows = n / ROW;
    two<add_fn>(o, y, ROW, x, ROW, (int)rows, ROW);
    two<add_fn>(o, y + rows * ROW, 4, x + rows * ROW, 4, 1, (int)(n % ROW));
}

void cuda_gate(struct ops *o, float *x, int64_t ldx, const float *g, int64_t ldg, int t, int n)
{
    two<gate_fn>(o, x, ldx, g, ldg, t, n);
}

/* ---- y := f(gate, up) ------------------------------------------------------------------------------ */

struct situ_fn {
    float b1, b2;
    __device__ float operator()(float g, float u) const { return cu_situ1(g, u, b1, b2); }
};
struct swiglu_fn {
    float unused1, unused2;
    __device__ float operator()(float g, float u) const { return cu_silu(g) * u; }
};

template <bool VEC, class F>
static __global__ void pair_kernel(const float *x, int64_t ldx, F f, int n, float *y, int64_t ldy)
{
    int i = (blockIdx.x * BLOCK + threadIdx.x) * 4;
    const float *xr = x + blockIdx.y * ldx;
    if (i >= n) return;
    float4 g = cu_load4<VEC>(xr, i, n), u = cu_load4<VEC>(xr + n, i, n);
    cu_store4<VEC>(y + blockIdx.y * ldy, i, n, make_float4(f(g.x, u.x), f(g.y, u.y), f(g.z, u.z), f(g.w, u.w)));
}

template <class F>
static void pairs(struct ops *o, const float *x, int64_t ldx, F f, int t, int n, float *y, int64_t ldy)
{
    cudaStream_t st = cu_impl(o)->stream;
    bool vec = n % 4 == 0 && cu_aligned16(y, ldy) && cu_aligned16(x, ldx);
    for (int r = 0; r < t; r += 65535) {
        dim3 grid((unsigned)cu_parts(n, BLOCK * 4), (unsigned)(t - r < 65535 ? t - r : 65535));
        if (vec) pair_kernel<true><<<grid, BLOCK, 0, st>>>(x + r * ldx, ldx, f, n, y + r * ldy, ldy);
        else pair_kernel<false><<<grid, BLOCK, 0, st>>>(x + r * ldx, ldx, f, n, y + r * ldy, ldy);
        CU_LAUNCHED("gate and up");
    }
}

void cuda_situ(struct ops *o, const float *x, int64_t ldx, float b1, float b2, int t, int n, float *y, int64_t ldy)
{
    pairs(o, x, ldx, situ_fn{b1, b2}, t, n, y, ldy);
}

void cuda_swiglu(struct ops *o, const float *x, int64_t ldx, int t, int n, float *y, int64_t ldy)
{
    pairs(o, x, ldx, swiglu_fn{0, 0}, t, n, y, ldy);
}

/* ---- tree sums ------------------------------------------------------------------------------------- */

enum { DEPTH = 20 };

/* runs of `odd` leaves in order, runs joined pairwise: a counter of finished runs says what to join */
static __global__ void tree_kernel(float *dst, const float *src, int64_t stride, const int *order, int n_leaves,
                                   int odd, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float part[DEPTH];
    int top = 0;
    for (int l = 0, run = 0; l < n_leaves; run++) {
        float s = 0;
        for (int j = 0; j < odd; j++, l++) s += src[(order ? order[l] : l) * stride + i];
        for (int d = run; d & 1; d >>= 1) s = part[--top] + s;
        part[top++] = s;
    }
    dst[i] = part[0];
}

void cuda_tree_add(struct ops *o, float *dst, const float *src, int64_t stride, const int *order, int n_leaves,
                   int64_t n)
{
    if (n < 1 || n_leaves < 1) return;
    int odd = n_leaves;
    while (odd % 2 == 0) odd /= 2;
    const int *dev = order ? (const int *)cu_stage(o, order, (size_t)n_leaves * sizeof *order) : NULL;
    tree_kernel<<<cu_parts(n, BLOCK), BLOCK, 0, cu_impl(o)->stream>>>(dst, src, stride, dev, n_leaves, odd, n);
    CU_LAUNCHED("tree_add");
}

static __global__ void round_kernel(float *x, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        x[i] = cu_round_bf16(x[i]);
}

void cuda_round_kv(struct ops *o, float *x, int64_t n, enum ops_kv kv)
{
    if (n < 1 || kv != OPS_KV_BF16) return;
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    round_kernel<<<(unsigned)(blocks < 4096 ? blocks : 4096), BLOCK, 0, cu_impl(o)->stream>>>(x, n);
    CU_LAUNCHED("round_kv");
}
