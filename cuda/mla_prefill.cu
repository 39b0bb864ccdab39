/* MLA, expanded, on tensor cores: BF16 cache, act bf16, head sizes of the models.
 *
 * A block has 128 rows of one head, 16 a warp; queries stay in registers, tiles of 64 keys and values arrive in shared
 * memory while the tile before is at work. A row's softmax runs online over tiles aligned to 64 positions, its weights
 * go from accumulators to operands in registers. A tile that a row does not see changes nothing of it, so its bits do
 * not depend on the other rows. */
#include "cuda.h"
#include "mla.h"
#include "mma.h"

enum { WARPS = 8, THREADS = WARPS * 32, ROWS = 16 * WARPS, KEYS = 64 };

template <int NOPE, int ROPE, int VD> struct tiles {
    __nv_bfloat16 k[2][KEYS][NOPE + ROPE + 8], v[2][KEYS][VD + 8];
};

/* positions [pos, pos + KEYS) to stage st; zeros from end on. 8 rows per warp. */
template <int NOPE, int ROPE, int VD>
static __device__ __forceinline__ void fetch(struct tiles<NOPE, ROPE, VD> &f, int st, const struct mla_expanded &a,
                                             const struct cu_seq &s, const __nv_bfloat16 *kv, int pos, int end)
{
    constexpr int KC = NOPE / 8, VC = VD / 8, RC = ROPE / 8, EACH = KEYS / WARPS;
    const int r0 = threadIdx.x / 32 * EACH, lane = threadIdx.x & 31;
    for (int e = lane; e < EACH * (KC + VC); e += 32) {
        int r = r0 + e / (KC + VC), c = e % (KC + VC);
        bool in = pos + r < end;
        const __nv_bfloat16 *from = kv + (int64_t)(in ? pos + r : 0) * a.n + c * 8;
        cu_copy16_if(c < KC ? &f.k[st][r][c * 8] : &f.v[st][r][(c - KC) * 8], from, in);
    }
    for (int e = lane; e < EACH * RC; e += 32) {
        int r = r0 + e / RC, c = e % RC;
        bool in = pos + r < end;
        const char *from = cu_row(a.base, a.stride, a.page, &s, in ? pos + r : end - 1, 0, a.width, 2);
        cu_copy16_if(&f.k[st][r][NOPE + c * 8], from + (a.rank + c * 8) * 2, in);
    }
    cu_copy_end();
}

/* weights of a tile in place of its scores; rows g and g + 8 of the warp are at positions p[0], p[1] */
static __device__ __forceinline__ void softmax(float (*s)[4], int pos, const int *p, float scale, float *top,
                                               float *sum, float *corr)
{
    const int q = threadIdx.x & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = top[r], part = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[n][r * 2 + i];
                x = pos + n * 8 + q * 2 + i <= p[r] ? x * scale : -INFINITY;
                m = fmaxf(m, x);
            }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float base = m == -INFINITY ? 0.0f : m;
        corr[r] = exp2f(top[r] - base);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[n][r * 2 + i];
                x = exp2f(x - base);
                part += x;
            }
        part += __shfl_xor_sync(0xffffffffu, part, 1);
        part += __shfl_xor_sync(0xffffffffu, part, 2);
        sum[r] = sum[r] * corr[r] + part;
        top[r] = m;
    }
}

template <int NOPE, int ROPE, int VD>
static __global__ void __launch_bounds__(THREADS) prefill_kernel(struct mla_expanded a)
{
    constexpr int DK = NOPE + ROPE, KS = DK / 16, NT = KEYS / 8, VT = VD / 8;
    extern __shared__ __align__(16) char mem[];
    struct tiles<NOPE, ROPE, VD> &f = *(struct tiles<NOPE, ROPE, VD> *)mem;
    const struct cu_seq s = cu_seq_at(a.seqs, 0);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q4 = lane & 3, h = blockIdx.y;
    const int r0 = (gridDim.x - 1 - blockIdx.x) * ROWS; /* long rows first */
    const int last = r0 + ROWS < s.n_rows ? r0 + ROWS : s.n_rows;
    const int end = s.pos0 + last, n_tiles = (end + KEYS - 1) / KEYS;
    const __nv_bfloat16 *kv = a.kv + (int64_t)h * (NOPE + VD);
    const int row[2] = {r0 + warp * 16 + g, r0 + warp * 16 + g + 8}, p[2] = {s.pos0 + row[0], s.pos0 + row[1]};
    uint32_t qa[KS][4];
    float acc[VT][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    const float scale = a.scale * 1.44269504f; /* powers of 2 */
    fetch(f, 0, a, s, kv, 0, end);
#pragma unroll
    for (int k = 0; k < KS; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x =
                a.q + (int64_t)(s.row0 + row[i & 1]) * a.ldq + (int64_t)h * DK + k * 16 + (i >> 1) * 8 + q4 * 2;
            qa[k][i] = row[i & 1] < last ? cu_pack(x[0], x[1]) : 0;
        }
    for (int t = 0; t < n_tiles; t++) {
        const int st = t & 1, pos = t * KEYS;
        cu_copy_wait<0>();
        __syncthreads();
        if (t + 1 < n_tiles) fetch(f, st ^ 1, a, s, kv, pos + KEYS, end);
        if (pos > s.pos0 + r0 + warp * 16 + 15) continue; /* no row of this warp sees the tile */
        float sc[NT][4] = {}, corr[2];
#pragma unroll
        for (int k = 0; k < KS; k++)
#pragma unroll
            for (int n = 0; n < NT; n += 2) {
                uint32_t kb[4];
                ldmatrix4(kb, &f.k[st][n * 8 + (lane & 7) + (lane >> 4) * 8][k * 16 + (lane >> 3 & 1) * 8]);
                cu_mma(sc[n], qa[k][0], qa[k][1], qa[k][2], qa[k][3], kb[0], kb[1]);
                cu_mma(sc[n + 1], qa[k][0], qa[k][1], qa[k][2], qa[k][3], kb[2], kb[3]);
            }
        softmax(sc, pos, p, scale, top, sum, corr);
#pragma unroll
        for (int n = 0; n < VT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[n][i] *= corr[i >> 1];
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t pa[4] = {cu_pack(sc[2 * k][0], sc[2 * k][1]), cu_pack(sc[2 * k][2], sc[2 * k][3]),
                              cu_pack(sc[2 * k + 1][0], sc[2 * k + 1][1]), cu_pack(sc[2 * k + 1][2], sc[2 * k + 1][3])};
#pragma unroll
            for (int n = 0; n < VT; n += 2) {
                uint32_t vb[4];
                ldmatrix4_trans(vb, &f.v[st][k * 16 + (lane & 15)][n * 8 + (lane >> 4) * 8]);
                cu_mma(acc[n], pa[0], pa[1], pa[2], pa[3], vb[0], vb[1]);
                cu_mma(acc[n + 1], pa[0], pa[1], pa[2], pa[3], vb[2], vb[3]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] >= last) continue;
        float *out = a.out + (int64_t)(s.row0 + row[r]) * a.ldo + (int64_t)h * VD + q4 * 2, inv = 1.0f / sum[r];
#pragma unroll
        for (int n = 0; n < VT; n++) {
            out[n * 8] = acc[n][r * 2] * inv;
            out[n * 8 + 1] = acc[n][r * 2 + 1] * inv;
        }
    }
}

template <int NOPE, int ROPE, int VD> static void launch(struct ops *o, const struct mla_expanded &a)
{
    constexpr int bytes = (int)sizeof(struct tiles<NOPE, ROPE, VD>);
    dim3 grid((unsigned)cu_parts(a.rows, ROWS), (unsigned)a.heads);
    CU(cudaFuncSetAttribute(prefill_kernel<NOPE, ROPE, VD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    prefill_kernel<NOPE, ROPE, VD><<<grid, THREADS, bytes, cu_impl(o)->stream>>>(a);
    CU_LAUNCHED("mla_attend_expanded on tensor cores");
}

int mla_prefill_fits(const struct ops *o, const struct paged *cache, int rope, int nope, int v_dim)
{
    int known = (nope == 128 && rope == 64 && v_dim == 128) || (nope == 32 && rope == 16 && v_dim == 32);
    return known && o->act == ACT_BF16 && cache->kv == OPS_KV_BF16 && (uintptr_t)cache->base % 16 == 0 &&
           cache->stride % 16 == 0;
}

void mla_prefill(struct ops *o, const struct mla_expanded &a)
{
    if (a.nope == 128) launch<128, 64, 128>(o, a);
    else launch<32, 16, 32>(o, a);
}
