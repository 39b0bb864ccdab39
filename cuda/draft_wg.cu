/* Attention of the draft's block on Hopper's tensor cores: heads of 128, BF16 pages, act bf16.
 *
 * A block has 128 lanes (row, query head of the group) of one kv head, 64 a warpgroup; a cluster of RANKS blocks shares
 * the positions: tile i of 64 context positions, from the first that a row sees, goes to block i mod RANKS, and the
 * tiles of the drafted block itself, which come from FP32 rows, follow them. In the end every block of the cluster adds
 * up its share of the lanes. Nothing depends on the other sequences. */
#include "draft.h"
#include "attend_wg.h"

enum { D = 128, LANES = 128, KEYS = 64, STAGES = 4, THREADS = 384, BOTH = 1, LD = D + 8 };
enum { BLOCK = 64 * 128 };  /* bytes of 64 rows of 64 columns */
enum { MANY_HEADS = 8 };    /* this many kv heads fill the device without many blocks a head */

struct draft_tiles {
    char q[2][2][BLOCK];
    union {
        struct {
            char k[2][BLOCK], v[2][BLOCK];
        } st[STAGES];
        float acc[LANES][LD];
    };
    char bk[2][BLOCK], bv[2][BLOCK]; /* the drafted block's own */
    uint64_t full[STAGES], empty[STAGES];
    float top[LANES], sum[LANES];
};

struct draft_job {
    struct cu_map k, v; /* [page][2][head, row of a page][64] */
    const float *q, *kb, *vb;
    int64_t ldq, ldk, ldv, ldo;
    int group, window, page, box, vec_q, vec_kv;
    float scale;
    const struct cu_seq *seqs;
    float *out;
};

/* what a block does: lanes i0 .. of n, which see nothing before lo; the cluster's context tiles start at first + i
 * KEYS, i < tiles */
struct draft_work {
    int i0, n, rank, head, lo, first, tiles, block0; /* block0: first row of its first tile of the drafted block */
};

/* keys and values of the drafted block from its row r0 on */
static __device__ __forceinline__ void load_block(struct draft_tiles &f, const struct draft_job &j,
                                                  const struct cu_seq &s, const struct draft_work &w, int r0)
{
    const int t = threadIdx.x - 128;
    auto k_row = [&](int r) {
        return r0 + r < s.n_rows ? j.kb + (s.row0 + r0 + r) * j.ldk + (int64_t)w.head * D : NULL;
    };
    auto v_row = [&](int r) {
        return r0 + r < s.n_rows ? j.vb + (s.row0 + r0 + r) * j.ldv + (int64_t)w.head * D : NULL;
    };
    if (j.vec_kv) {
        at_put_rows<true, D, 256, 4>(f.bk, t, k_row);
        at_put_rows<true, D, 256, 4>(f.bv, t, v_row);
    } else {
        at_put_rows<false, D, 256, 4>(f.bk, t, k_row);
        at_put_rows<false, D, 256, 4>(f.bv, t, v_row);
    }
}

template <int RANKS> static __device__ __forceinline__ void produce(struct draft_tiles &f, const struct draft_job &j,
                                                                    const struct cu_seq &s, const struct draft_work &w)
{
    const int lane = threadIdx.x & 31, each = KEYS / j.box;
    int ids = 0; /* of the next 32 copies, one a lane */
    for (int i = w.rank, n = 0; i < w.tiles; i += RANKS, n++) {
        const int st = n % STAGES, turn = n * each & 31;
        if (turn == 0) {
            int at = w.first + (i + lane / each * RANKS) * KEYS + lane % each * j.box;
            ids = s.page[(at < s.pos0 ? at : s.pos0 - 1) / j.page];
        }
        if (lane == 0) {
            bar_wait(&f.empty[st], n / STAGES & 1 ^ 1);
            bar_expect(&f.full[st], 4 * BLOCK);
        }
        __syncwarp();
        for (int e = 0; e < each; e++) {
            const int at = w.first + i * KEYS + e * j.box, id = __shfl_sync(0xffffffffu, ids, turn + e);
            if (lane) continue;
            if (each == 1) {
                tma_load(f.st[st].k[0], &j.k, &f.full[st], 0, w.head * j.page + at % j.page, 0, id);
                tma_load(f.st[st].v[0], &j.v, &f.full[st], 0, w.head * j.page + at % j.page, 0, id);
            } else
                for (int c = 0; c < 2; c++) {
                    tma_load(f.st[st].k[c] + e * j.box * 128, &j.k, &f.full[st], 0, w.head * j.page + at % j.page, c,
                             id);
                    tma_load(f.st[st].v[c] + e * j.box * 128, &j.v, &f.full[st], 0, w.head * j.page + at % j.page, c,
                             id);
                }
        }
    }
    __syncwarp();
}

/* a warpgroup's 64 lanes: rows r = 0, 1 of a thread see positions [lo[r], hi[r]) */
struct draft_state {
    float acc[D / 2], top[2], sum[2];
    int lo[2], hi[2];
};

/* one tile of keys k and values v at position pos */
static __device__ __forceinline__ void attend(struct draft_tiles &f, struct draft_state &d, int wg,
                                              const char (*k)[BLOCK], const char (*v)[BLOCK], int pos, float scale)
{
    const int q = (threadIdx.x & 3) * 2;
    float sc[KEYS / 2], corr[2];
    uint32_t p[KEYS / 4];
    const uint64_t oq = wg_operand(f.q[wg], 64), ok = wg_operand(k, KEYS), ov = wg_operand(v, KEYS);
    wg_hold(sc);
    wg_begin();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wg_ss<1>(sc, oq + (i / 4 * BLOCK + i % 4 * 32) / 16, ok + (i / 4 * BLOCK + i % 4 * 32) / 16, i > 0);
    wg_end();
    wg_wait<0>();
    wg_hold(sc);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = d.top[r], part = 0;
#pragma unroll
        for (int e = r * 2; e < KEYS / 2; e += 4)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int at = pos + e / 4 * 8 + q + c;
                if (at < d.lo[r] || at >= d.hi[r]) sc[e + c] = -INFINITY;
                m = fmaxf(m, sc[e + c]);
            }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float base = at_base(m) * scale;
        corr[r] = exp2_fast((d.top[r] - at_base(m)) * scale); /* 1 where nothing is new */
        d.top[r] = m;
#pragma unroll
        for (int e = r * 2; e < KEYS / 2; e += 4) {
            float x = exp2_fast(fmaf(sc[e], scale, -base)), y = exp2_fast(fmaf(sc[e + 1], scale, -base));
            part += x + y;
            p[e / 2] = cu_pack(x, y);
        }
        d.sum[r] = d.sum[r] * corr[r] + part;
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++) d.acc[i] *= corr[i / 2 % 2];
    wg_hold(d.acc);
    wg_hold(p);
    wg_begin();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) wg_rs<0>(d.acc, p + 4 * i, ov + i * 2048 / 16, 1);
    wg_end();
    wg_wait<0>();
    wg_hold(d.acc);
}

template <int RANKS> static __device__ __forceinline__ void consume(struct draft_tiles &f, const struct draft_job &j,
                                                                    const struct cu_seq &s, const struct draft_work &w,
                                                                    struct draft_state &d, int wg)
{
    const int tid = threadIdx.x - 128, lane = tid & 31, warp = tid >> 5 & 3;
    const float scale = j.scale * AT_LOG2E;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = w.i0 + wg * 64 + warp * 16 + lane / 4 + r * 8, row = i / j.group;
        d.lo[r] = j.window ? s.pos0 + row - (j.window - 1) : 0;
        d.hi[r] = i >= w.n ? 0 : j.window ? s.pos0 + row + 1 : s.pos0 + s.n_rows;
    }
    int n = 0;
    for (int i = w.rank; i < w.tiles; i += RANKS, n++) {
        const int st = n % STAGES, pos = w.first + i * KEYS;
        bar_wait(&f.full[st], n / STAGES & 1);
        if (pos < w.lo || pos + KEYS > s.pos0) { /* what no lane sees may be anything */
            for (int e = tid; e < KEYS * 16; e += 256)
                if (pos + e / 16 < w.lo || pos + e / 16 >= s.pos0)
                    *(uint4 *)(f.st[st].v[e % 16 / 8] + wg_at(e / 16, e % 8)) = make_uint4(0, 0, 0, 0);
            wg_publish();
            wg_sync(BOTH, 256);
        }
        int hi[2] = {d.hi[0], d.hi[1]};
        d.hi[0] = min(hi[0], s.pos0);
        d.hi[1] = min(hi[1], s.pos0);
        attend(f, d, wg, f.st[st].k, f.st[st].v, pos, scale);
        d.hi[0] = hi[0];
        d.hi[1] = hi[1];
        if (lane == 0) bar_arrive(&f.empty[st]);
    }
    for (int r0 = w.block0; r0 < s.n_rows; r0 += RANKS * KEYS) {
        if (r0 != w.block0) {
            wg_sync(BOTH, 256);
            load_block(f, j, s, w, r0);
            wg_publish();
            wg_sync(BOTH, 256);
        }
        attend(f, d, wg, f.bk, f.bv, s.pos0 + r0, scale);
    }
    wg_sync(BOTH, 256);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int l = wg * 64 + warp * 16 + lane / 4 + r * 8;
        d.sum[r] += __shfl_xor_sync(0xffffffffu, d.sum[r], 1);
        d.sum[r] += __shfl_xor_sync(0xffffffffu, d.sum[r], 2);
        if (lane % 4 == 0) {
            f.top[l] = d.top[r];
            f.sum[l] = d.sum[r];
        }
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            *(float2 *)&f.acc[l][c * 8 + lane % 4 * 2] = make_float2(d.acc[c * 4 + r * 2], d.acc[c * 4 + r * 2 + 1]);
    }
}

template <int RANKS> static __device__ __forceinline__ void add_up(struct draft_tiles &f, const struct draft_job &j,
                                                                   const struct cu_seq &s, const struct draft_work &w)
{
    constexpr int EACH = LANES / RANKS / 8;
    const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31, l0 = w.rank * (LANES / RANKS) + warp;
    struct at_parts<RANKS> p[EACH];
    float4 v[EACH][1];
#pragma unroll
    for (int n = 0; n < EACH; n++)
        p[n] = at_meet<RANKS>(&f.top[l0 + n * 8], &f.sum[l0 + n * 8], NULL, j.scale * AT_LOG2E);
#pragma unroll
    for (int n = 0; n < EACH; n++) at_add_up(p[n], &f.acc[l0 + n * 8][lane * 4], v[n]);
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int i = w.i0 + l0 + n * 8;
        if (i >= w.n) continue;
        float *to = j.out + (s.row0 + i / j.group) * j.ldo + ((int64_t)w.head * j.group + i % j.group) * D + lane * 4;
        to[0] = v[n][0].x / p[n].sum;
        to[1] = v[n][0].y / p[n].sum;
        to[2] = v[n][0].z / p[n].sum;
        to[3] = v[n][0].w / p[n].sum;
    }
}

template <int RANKS> static __global__ void __launch_bounds__(THREADS, 1)
    draft_wg_kernel(const __grid_constant__ struct draft_job j)
{
    extern __shared__ __align__(1024) char mem[];
    struct draft_tiles &f = *(struct draft_tiles *)mem;
    const struct cu_seq s = cu_seq_at(j.seqs, blockIdx.z);
    struct draft_work w;
    w.n = s.n_rows * j.group;
    w.rank = blockIdx.x % RANKS;
    w.i0 = blockIdx.x / RANKS * LANES;
    w.head = blockIdx.y;
    if (w.i0 >= w.n) return;
    w.lo = j.window ? max(0, s.pos0 + w.i0 / j.group - (j.window - 1)) : 0;
    w.first = w.lo / KEYS * KEYS;
    w.tiles = s.pos0 > w.first ? (s.pos0 - w.first + KEYS - 1) / KEYS : 0;
    w.block0 = (w.rank - w.tiles % RANKS + RANKS) % RANKS * KEYS;
    bar_start<STAGES>({{f.full, 1}, {f.empty, 8}});
    if (threadIdx.x < 128) {
        wg_less_registers<40>();
        if (threadIdx.x < 32) produce<RANKS>(f, j, s, w);
        cluster_sync();
        cluster_sync();
    } else {
        struct draft_state d = {{}, {-INFINITY, -INFINITY}, {}, {}, {}};
        wg_more_registers<232>();
        const int wg = threadIdx.x / 128 - 1;
        auto q_row = [&](int r) {
            int i = w.i0 + wg * 64 + r;
            return i < w.n ? j.q + (s.row0 + i / j.group) * j.ldq + ((int64_t)w.head * j.group + i % j.group) * D
                           : NULL;
        };
        if (j.vec_q)
            at_put_rows<true, D, 128, 8>(f.q[wg], threadIdx.x & 127, q_row);
        else
            at_put_rows<false, D, 128, 8>(f.q[wg], threadIdx.x & 127, q_row);
        if (w.block0 < s.n_rows) load_block(f, j, s, w, w.block0);
        wg_publish();
        wg_sync(BOTH, 256);
        consume<RANKS>(f, j, s, w, d, wg);
        cluster_sync();
        add_up<RANKS>(f, j, s, w);
        cluster_sync(); /* nobody leaves while its sums are read */
    }
}

static int fits(const struct ops *o, const struct draft_call &c)
{
    const int page = c.kc->page;
    const struct paged *p[] = {c.kc, c.vc};
    for (int i = 0; i < 2; i++)
        if (p[i]->kv != OPS_KV_BF16 || p[i]->page != page || (uintptr_t)p[i]->base % 16 || p[i]->stride % 16) return 0;
    return cu_hopper(cu_impl(o)) && o->act == ACT_BF16 && c.d == D &&
           (page % KEYS == 0 || (page >= 8 && KEYS % page == 0));
}

template <int RANKS> static void launch(struct ops *o, const struct draft_call &c, const struct draft_job &j)
{
    dim3 grid((unsigned)cu_parts((int64_t)c.rows * j.group, LANES) * RANKS, (unsigned)c.kv_heads, (unsigned)c.n_seq);
    wg_launch(draft_wg_kernel<RANKS>, RANKS, grid, THREADS, sizeof(struct draft_tiles), cu_impl(o)->stream, j);
}

int draft_wg(struct ops *o, const struct draft_call &c)
{
    if (!fits(o, c)) return 0;
    const int page = c.kc->page;
    const int64_t dim[] = {64, (int64_t)c.kv_heads * page, 2, 1 << 30};
    const int64_t ld_k[] = {D * 2, 128, c.kc->stride}, ld_v[] = {D * 2, 128, c.vc->stride};
    struct draft_job j;
    j.box = page < KEYS ? page : (int)KEYS;
    const int box[] = {64, j.box, j.box == KEYS ? 2 : 1, 1};
    j.k = cu_map_new(c.kc->base, 4, dim, ld_k, box);
    j.v = cu_map_new(c.vc->base, 4, dim, ld_v, box);
    j.q = c.q;
    j.kb = c.kb;
    j.vb = c.vb;
    j.ldq = c.ldq;
    j.ldk = c.ldk;
    j.ldv = c.ldv;
    j.ldo = c.ldo;
    j.group = c.q_heads / c.kv_heads;
    j.window = c.window;
    j.page = page;
    j.vec_q = cu_aligned16(c.q, c.ldq);
    j.vec_kv = cu_aligned16(c.kb, c.ldk) && cu_aligned16(c.vb, c.ldv);
    j.scale = c.scale;
    j.seqs = c.seqs;
    j.out = c.out;
    if (c.kv_heads >= MANY_HEADS)
        launch<2>(o, c, j);
    else
        launch<8>(o, c, j);
    return 1;
}
