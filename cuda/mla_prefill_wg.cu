/* MLA, expanded, on Hopper's tensor cores: heads of 128 + 64 and 128, act bf16.
 *
 * A block has 128 rows of one head. One thread keeps tiles of 128 keys and values on their way through the copy engine;
 * two warpgroups of 64 rows multiply. A warpgroup starts the scores of tile t and the weighted values of tile t - 1
 * together and works out the weights of tile t while the latter are at work. Softmax online over tiles aligned to 128
 * positions: a tile that a row does not see changes nothing of it, so its bits do not depend on the other rows. */
#include "mla.h"
#include "attend_wg.h"

enum { NOPE = 128, ROPE = 64, DK = NOPE + ROPE, DV = 128, ROWS = 128, KEYS = 128, STAGES = 2, THREADS = 384 };
enum { QBLOCK = 64 * 128, BLOCK = KEYS * 128 }; /* bytes of 64 columns of a warpgroup's rows, of a tile's keys */

struct prefill_tiles {
    char q[2][DK / 64][QBLOCK], k[STAGES][DK / 64][BLOCK], v[STAGES][DV / 64][BLOCK];
    uint64_t k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

struct prefill_job {
    struct cu_map kv, rope; /* [n / 64][pos][64] of [pos][n]; [pos][64] */
    struct mla_expanded a;
    int vec; /* rows of q may be read 16 bytes at a time */
};

static __device__ __forceinline__ void produce(struct prefill_tiles &f, const struct prefill_job &j, int head,
                                               int n_tiles)
{
    for (int t = 0; t < n_tiles; t++) {
        int st = t % STAGES, phase = t / STAGES % 2 ^ 1, block = head * (NOPE + DV) / 64;
        bar_wait(&f.k_empty[st], phase);
        bar_expect(&f.k_full[st], DK / 64 * BLOCK);
        tma_load(f.k[st][0], &j.kv, &f.k_full[st], 0, t * KEYS, block);
        tma_load(f.k[st][NOPE / 64], &j.rope, &f.k_full[st], 0, t * KEYS);
        bar_wait(&f.v_empty[st], phase);
        bar_expect(&f.v_full[st], DV / 64 * BLOCK);
        tma_load(f.v[st][0], &j.kv, &f.v_full[st], 0, t * KEYS, block + NOPE / 64);
    }
}

/* weights of a tile in place of its scores; rows g and g + 8 of the warp see keys [0, seen[r]) of the tile */
static __device__ __forceinline__ void softmax(float (&s)[KEYS / 2], bool masked, const int *seen, float scale,
                                               float *top, float *sum, float *corr)
{
    const int q = (threadIdx.x & 3) * 2;
    if (masked)
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
            if (i / 4 * 8 + q + i % 2 >= seen[i / 2 % 2]) s[i] = -INFINITY;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = top[r], part = 0;
#pragma unroll
        for (int i = r * 2; i < KEYS / 2; i += 4) m = fmaxf(m, fmaxf(s[i], s[i + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float base = m * scale;
        corr[r] = exp2_fast((top[r] - m) * scale); /* 1 where nothing is new */
        top[r] = m;
#pragma unroll
        for (int i = r * 2; i < KEYS / 2; i += 4) {
            s[i] = exp2_fast(fmaf(s[i], scale, -base));
            s[i + 1] = exp2_fast(fmaf(s[i + 1], scale, -base));
            part += s[i] + s[i + 1];
        }
        sum[r] = sum[r] * corr[r] + part; /* of this thread's columns */
    }
}

static __device__ __forceinline__ void consume(struct prefill_tiles &f, const struct prefill_job &j,
                                               const struct cu_seq &s, int wg, int head, int r0, int last, int n_tiles)
{
    const struct mla_expanded &a = j.a;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, g = lane >> 2, q4 = lane & 3;
    const int row0 = r0 + wg * 64, row[2] = {row0 + warp * 16 + g, row0 + warp * 16 + g + 8};
    const float scale = a.scale * AT_LOG2E;
    float sc[KEYS / 2], acc[DV / 2] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, corr[2];
    uint32_t p[KEYS / 4];
    auto q_row = [&](int r) {
        return row0 + r < last ? a.q + (int64_t)(s.row0 + row0 + r) * a.ldq + (int64_t)head * DK : NULL;
    };
    if (j.vec)
        at_put_rows<true, DK, 128, 12>(f.q[wg], threadIdx.x & 127, q_row);
    else
        at_put_rows<false, DK, 128, 6>(f.q[wg], threadIdx.x & 127, q_row);
    wg_publish();
    wg_sync(1 + wg, 128);
    const uint64_t oq = wg_operand(f.q[wg], 64);
    auto scores = [&](int t) {
        uint64_t ok = wg_operand(f.k[t % STAGES], KEYS);
        bar_wait(&f.k_full[t % STAGES], t / STAGES % 2);
        wg_hold(sc);
        wg_begin();
#pragma unroll
        for (int k = 0; k < DK / 16; k++)
            wg_ss<1>(sc, oq + (k / 4 * QBLOCK + k % 4 * 32) / 16, ok + (k / 4 * BLOCK + k % 4 * 32) / 16, k > 0);
        wg_end();
    };
    auto values = [&](int t) {
        uint64_t ov = wg_operand(f.v[t % STAGES], KEYS);
        bar_wait(&f.v_full[t % STAGES], t / STAGES % 2);
        wg_hold(acc);
        wg_hold(p);
        wg_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) wg_rs<0>(acc, p + 4 * k, ov + k * 2048 / 16, 1);
        wg_end();
    };
    auto weigh = [&](int t) {
        int seen[2] = {s.pos0 + row[0] + 1 - t * KEYS, s.pos0 + row[1] + 1 - t * KEYS};
        softmax(sc, t * KEYS + KEYS > s.pos0 + row0 + 1, seen, scale, top, sum, corr);
    };
    auto pack = [&]() {
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++) p[i] = cu_pack(sc[i * 2], sc[i * 2 + 1]);
    };
    scores(0);
    wg_wait<0>();
    wg_hold(sc);
    if (lane == 0) bar_arrive(&f.k_empty[0]);
    weigh(0);
    pack();
    for (int t = 1; t < n_tiles; t++) {
        scores(t);
        values(t - 1);
        wg_wait<1>();
        wg_hold(sc);
        if (lane == 0) bar_arrive(&f.k_empty[t % STAGES]);
        weigh(t);
        wg_wait<0>();
        wg_hold(acc);
        if (lane == 0) bar_arrive(&f.v_empty[(t - 1) % STAGES]);
#pragma unroll
        for (int i = 0; i < DV / 2; i++) acc[i] *= corr[i / 2 % 2];
        pack();
    }
    values(n_tiles - 1);
    wg_wait<0>();
    wg_hold(acc);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (row[r] >= last) continue;
        float *out = a.out + (int64_t)(s.row0 + row[r]) * a.ldo + (int64_t)head * DV + q4 * 2, inv = 1.0f / sum[r];
#pragma unroll
        for (int n = 0; n < DV / 8; n++) {
            out[n * 8] = acc[n * 4 + r * 2] * inv;
            out[n * 8 + 1] = acc[n * 4 + r * 2 + 1] * inv;
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 1) prefill_wg_kernel(const __grid_constant__ struct prefill_job j)
{
    extern __shared__ __align__(1024) char mem[];
    struct prefill_tiles &f = *(struct prefill_tiles *)mem;
    const struct cu_seq s = cu_seq_at(j.a.seqs, 0);
    const int r0 = (gridDim.x - 1 - blockIdx.x) * ROWS,
              last = r0 + ROWS < s.n_rows ? r0 + ROWS : s.n_rows; /* long rows first */
    const int n_tiles = (s.pos0 + last + KEYS - 1) / KEYS;
    bar_start<STAGES>({{f.k_full, 1}, {f.v_full, 1}, {f.k_empty, 8}, {f.v_empty, 8}});
    if (threadIdx.x < 128) {
        wg_less_registers<40>();
        if (threadIdx.x == 0) produce(f, j, blockIdx.y, n_tiles);
    } else {
        wg_more_registers<232>();
        consume(f, j, s, threadIdx.x / 128 - 1, blockIdx.y, r0, last, n_tiles);
    }
}

int mla_prefill_wg_fits(const struct ops *o, const struct paged *cache, int rank, int rope, int nope, int v_dim)
{
    return cu_hopper(cu_impl(o)) && o->act == ACT_BF16 && cache->kv == OPS_KV_BF16 && nope == NOPE && rope == ROPE &&
           v_dim == DV && rank % 64 == 0 && (uintptr_t)cache->base % 16 == 0 && cache->stride % 16 == 0;
}

void mla_prefill_wg(struct ops *o, const struct mla_expanded &a, const __nv_bfloat16 *latent, int end)
{
    const int64_t dim_kv[] = {64, end, a.n / 64}, ld_kv[] = {a.n * 2, 128}, dim_rope[] = {ROPE, end},
                  ld_rope = a.width * 2;
    const int box[] = {64, KEYS, 2};
    struct prefill_job j;
    j.kv = cu_map_new(a.kv, 3, dim_kv, ld_kv, box);
    j.rope = cu_map_new(latent + a.rank, 2, dim_rope, &ld_rope, box);
    j.a = a;
    j.vec = cu_aligned16(a.q, a.ldq);
    dim3 grid((unsigned)cu_parts(a.rows, ROWS), (unsigned)a.heads);
    CU(cudaFuncSetAttribute(prefill_wg_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            (int)sizeof(struct prefill_tiles)));
    prefill_wg_kernel<<<grid, THREADS, sizeof(struct prefill_tiles), cu_impl(o)->stream>>>(j);
    CU_LAUNCHED("mla_attend_expanded on a warpgroup's tensor cores");
}
