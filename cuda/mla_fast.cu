/* MLA, absorbed, on tensor cores: BF16 cache, act bf16, latent rank and rope of the models.
 *
 * A block has 16 MT lanes (row, head) of a sequence and one split of its positions. Tiles of 32 latent rows arrive in
 * shared memory (asynchronous copies, several on their way) and serve as keys and as values. Per tile: scores, in two
 * halves of the row so that more warps take part; softmax, four threads a lane; weighted values. MT only says how warps
 * share the work: every sum is formed the same way, so a lane's bits do not depend on it, nor on the other lanes. */
#include "cuda.h"
#include "mla.h"
#include "mma.h"

enum { KEYS = 32 };

template <int RANK, int ROPE, int MT, int STAGES> struct fast {
    static constexpr int W = RANK + ROPE, LD = W + 8, LANES = 16 * MT, SLD = KEYS + 4, PLD = KEYS + 8;
    __nv_bfloat16 q[LANES][LD], kv[STAGES][KEYS][LD], p[LANES][PLD];
    float s[2][LANES][SLD], corr[LANES], max[LANES], sum[LANES];
};

/* rows [pos, pos + KEYS) of the sequence to a stage, a few per warp; rows from end on are zeros */
template <int W, int LD, int WARPS>
static __device__ __forceinline__ void fetch(__nv_bfloat16 (*to)[LD], const struct mla_absorbed &a,
                                             const struct cu_seq &s, int pos, int end)
{
    constexpr int CHUNKS = W / 8, ROWS = KEYS / WARPS;
    const int r0 = threadIdx.x / 32 * ROWS, lane = threadIdx.x & 31;
    const char *from[ROWS];
    if (a.page % KEYS == 0) { /* the tile lies in one page */
        from[0] = cu_row(a.base, a.stride, a.page, &s, pos, 0, W, 2);
#pragma unroll
        for (int r = ROWS - 1; r >= 0; r--) from[r] = from[0] + (r0 + r) * W * 2;
    } else
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            from[r] = cu_row(a.base, a.stride, a.page, &s, pos + r0 + r < end ? pos + r0 + r : end - 1, 0, W, 2);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < CHUNKS; c += 32)
            if (c + lane < CHUNKS)
                cu_copy16_if(&to[r0 + r][(c + lane) * 8], from[r] + (c + lane) * 16, pos + r0 + r < end);
    cu_copy_end();
}

template <int RANK, int ROPE, int MT, int STAGES, int WARPS>
static __global__ void __launch_bounds__(WARPS * 32) fast_kernel(struct mla_absorbed a)
{
    using F = fast<RANK, ROPE, MT, STAGES>;
    constexpr int KS = F::W / 16, HALF = (KS + 1) / 2, NT = KEYS * 2 * MT / WARPS / 8;
    constexpr int COLS = RANK * MT / WARPS, CT = COLS / 8, THREADS = WARPS * 32;
    extern __shared__ __align__(16) char mem[];
    F &f = *(F *)mem;
    const struct cu_seq s = cu_seq_at(a.seqs, blockIdx.z);
    const int lanes = s.n_rows * a.heads, i0 = blockIdx.x * F::LANES, from = blockIdx.y * a.split;
    if (i0 >= lanes) return;
    int last = (i0 + F::LANES < lanes ? i0 + F::LANES : lanes) - 1, end = s.pos0 + last / a.heads + 1;
    if (from >= end) return;
    if (end > from + a.split) end = from + a.split;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q4 = lane & 3;
    const int tiles = (end - from + KEYS - 1) / KEYS;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < tiles) fetch<F::W, F::LD, WARPS>(f.kv[i], a, s, from + i * KEYS, end);
        else cu_copy_end();
    }
    for (int e = tid; e < F::LANES * F::W / 2; e += THREADS) {
        int l = e / (F::W / 2), c = e % (F::W / 2) * 2, i = i0 + l;
        float2 v = make_float2(0, 0);
        if (i < lanes) {
            const float *p = a.q + (s.row0 + i / a.heads) * a.ldq + (int64_t)(i % a.heads) * F::W + c;
            v = make_float2(p[0], p[1]);
        }
        *(__nv_bfloat162 *)&f.q[l][c] = __floats2bfloat162_rn(v.x, v.y);
    }
    /* scores: warp = (m-tile, half of the row, group of 8 NT keys); values: (m-tile, group of columns) */
    const int sm = warp % MT, sh = warp / MT % 2, sn = warp / (2 * MT), vm = warp % MT, vc = warp / MT * COLS;
    float acc[CT][4] = {}, top = -INFINITY, sum = 0;
    const int my = tid / 4, hi = my < F::LANES && i0 + my < lanes ? s.pos0 + (i0 + my) / a.heads + 1 : 0;
    for (int t = 0; t < tiles; t++) {
        const int pos = from + t * KEYS;
        cu_copy_wait<STAGES - 2>();
        __syncthreads();
        if (t + STAGES - 1 < tiles)
            fetch<F::W, F::LD, WARPS>(f.kv[(t + STAGES - 1) % STAGES], a, s, pos + (STAGES - 1) * KEYS, end);
        else
            cu_copy_end();
        __nv_bfloat16 (*kv)[F::LD] = f.kv[t % STAGES];
        float sc[NT][4] = {};
        const int k_end = sh ? KS : HALF;
#pragma unroll 3
        for (int k = sh ? HALF : 0; k < k_end; k++) {
            uint32_t qa[4], kb[4];
            ldmatrix4(qa, &f.q[sm * 16 + (lane & 15)][k * 16 + (lane >> 4) * 8]);
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                int key = sn * 8 * NT + n * 8;
                if (NT - n > 1) ldmatrix4(kb, &kv[key + (lane & 7) + (lane >> 4) * 8][k * 16 + (lane >> 3 & 1) * 8]);
                else ldmatrix2(kb, &kv[key + (lane & 7)][k * 16 + (lane >> 3 & 1) * 8]);
                cu_mma(sc[n], qa[0], qa[1], qa[2], qa[3], kb[0], kb[1]);
                if (NT - n > 1) cu_mma(sc[n + 1 < NT ? n + 1 : n], qa[0], qa[1], qa[2], qa[3], kb[2], kb[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            int key = sn * 8 * NT + n * 8 + q4 * 2;
            *(float2 *)&f.s[sh][sm * 16 + g][key] = make_float2(sc[n][0], sc[n][1]);
            *(float2 *)&f.s[sh][sm * 16 + g + 8][key] = make_float2(sc[n][2], sc[n][3]);
        }
        __syncthreads();
        if (tid < F::LANES * 4) {
            float v[8], m = top;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int key = q4 * 8 + j;
                v[j] = pos + key < hi ? (f.s[0][my][key] + f.s[1][my][key]) * a.scale : -INFINITY;
                m = fmaxf(m, v[j]);
            }
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            float base = m == -INFINITY ? 0.0f : m, corr = __expf(top - base), part = 0;
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                __nv_bfloat162 e = __floats2bfloat162_rn(__expf(v[j] - base), __expf(v[j + 1] - base));
                part += __low2float(e) + __high2float(e);
                *(__nv_bfloat162 *)&f.p[my][q4 * 8 + j] = e;
            }
            part += __shfl_xor_sync(0xffffffffu, part, 1);
            part += __shfl_xor_sync(0xffffffffu, part, 2);
            sum = sum * corr + part;
            top = m;
            if (q4 == 0) f.corr[my] = corr;
        }
        __syncthreads();
        float c0 = f.corr[vm * 16 + g], c1 = f.corr[vm * 16 + g + 8];
#pragma unroll
        for (int n = 0; n < CT; n++) {
            acc[n][0] *= c0;
            acc[n][1] *= c0;
            acc[n][2] *= c1;
            acc[n][3] *= c1;
        }
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t pa[4], vb[4];
            ldmatrix4(pa, &f.p[vm * 16 + (lane & 15)][k * 16 + (lane >> 4) * 8]);
#pragma unroll
            for (int n = 0; n < CT; n += 2) {
                if (CT - n > 1) ldmatrix4_trans(vb, &kv[k * 16 + (lane & 15)][vc + n * 8 + (lane >> 4) * 8]);
                else ldmatrix2_trans(vb, &kv[k * 16 + (lane & 15)][vc + n * 8]);
                cu_mma(acc[n], pa[0], pa[1], pa[2], pa[3], vb[0], vb[1]);
                if (CT - n > 1) cu_mma(acc[n + 1 < CT ? n + 1 : n], pa[0], pa[1], pa[2], pa[3], vb[2], vb[3]);
            }
        }
    }
    int l = i0 + vm * 16 + g;
#pragma unroll
    for (int n = 0; n < CT; n++) {
        int c = vc + n * 8 + q4 * 2;
        if (l < lanes)
            *(float2 *)(mla_part(a, blockIdx.z, l, blockIdx.y) + c) = make_float2(acc[n][0], acc[n][1]);
        if (l + 8 < lanes)
            *(float2 *)(mla_part(a, blockIdx.z, l + 8, blockIdx.y) + c) = make_float2(acc[n][2], acc[n][3]);
    }
    if (tid < F::LANES * 4 && q4 == 0 && i0 + my < lanes) {
        float *p = mla_part(a, blockIdx.z, i0 + my, blockIdx.y);
        p[RANK] = top;
        p[RANK + 1] = sum;
    }
}

template <int RANK, int ROPE, int MT, int STAGES, int WARPS>
static void launch(cudaStream_t st, const struct mla_absorbed &a, int n)
{
    using F = fast<RANK, ROPE, MT, STAGES>;
    CU(cudaFuncSetAttribute(fast_kernel<RANK, ROPE, MT, STAGES, WARPS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            (int)sizeof(F)));
    dim3 grid((unsigned)cu_parts((int64_t)a.rows * a.heads, F::LANES), (unsigned)a.splits, (unsigned)n);
    fast_kernel<RANK, ROPE, MT, STAGES, WARPS><<<grid, WARPS * 32, sizeof(F), st>>>(a);
    CU_LAUNCHED("mla_attend on tensor cores");
}

template <int RANK, int ROPE> static void sizes(cudaStream_t st, const struct mla_absorbed &a, int n, int small)
{
    int lanes = a.rows * a.heads;
    if (lanes <= 16) launch<RANK, ROPE, 1, 2, 8>(st, a, n);
    else if (lanes <= 32 || small) launch<RANK, ROPE, 2, 2, 8>(st, a, n);
    else launch<RANK, ROPE, 4, 3, 16>(st, a, n);
}

int mla_fast(struct ops *o, const struct mla_absorbed &a, int n)
{
    struct cuda_impl *im = cu_impl(o);
    int width = a.width, small = im->cc == 80 || im->cc >= 120; /* less shared memory than the largest block takes */
    if (im->act != ACT_BF16 || a.kv != OPS_KV_BF16 || (uintptr_t)a.base % 16 || a.stride % 16) return 0;
    if (a.rank == 512 && width == 576) sizes<512, 64>(im->stream, a, n, small);
    else if (a.rank == 64 && width == 80) sizes<64, 16>(im->stream, a, n, small);
    else return 0;
    return 1;
}
