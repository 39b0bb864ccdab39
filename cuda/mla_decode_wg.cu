/* MLA, absorbed, on Hopper's tensor cores: latent rows of 512 + 64, BF16 cache, act bf16.
 *
 * A block has 64 lanes (row, head) of a sequence; a cluster of RANKS blocks shares a part of the positions: tile t of
 * 64 of them goes to block t mod RANKS. Tiles arrive by the copy engine in two buffers and serve as keys and as values.
 * Two warpgroups: number w works out the scores and weights of its block's tiles w, w + 2, .. from buffer w, and the
 * weighted values of all tiles for its half of the 512 columns; the other one's weights come through shared memory,
 * over the rope part of the tile, which is done by then. In the end every block of the cluster adds up an eighth of the
 * lanes. A tile that a lane does not see changes nothing of it, and which tiles meet where depends on the position
 * alone: a lane's bits do not depend on the other lanes, rows or sequences. */
#include "mla.h"
#include "attend_wg.h"

enum { RANK = 512, ROPE = 64, WIDTH = RANK + ROPE, LANES = 64, KEYS = 64, RANKS = 8, THREADS = 384 };
enum { BLOCK = 64 * 128, BLOCKS = WIDTH / 64 };      /* bytes and number of blocks of 64 columns */
enum { HALF = RANK / 2 / 64, LD = RANK + 8 };        /* blocks of a half; row of the sums that blocks exchange */
enum { BOTH = 1, WEIGHTS = 2, KEYS_READ = 4 };       /* barriers; WEIGHTS + w: those of a tile of w are there */

struct decode_tiles {
    union {
        struct {
            char q[BLOCKS][BLOCK], kv[2][BLOCKS][BLOCK];
        };
        float acc[LANES][LD];
    };
    uint64_t full[2][2], empty[2][2]; /* [buffer][half of the columns]; the rope part, later the weights, goes with
                                         the half of the warpgroup that takes them from there: not the buffer's own */
    float top[2][LANES], sum[2][LANES];
};

struct decode_job {
    struct cu_map map, one; /* [page][width / 64][row of a page][64]: copies of a half, of 64 columns */
    struct mla_absorbed a;
    int vec, box; /* box: rows of one copy */
};

/* what a block does: lanes i0 .. of n, tiles at from + (i RANKS + rank) KEYS for i < tiles, positions below end */
struct decode_work {
    int i0, n, rank, from, end, tiles;
};

static __device__ __forceinline__ int tile_at(const struct decode_work &w, int i)
{
    return w.from + (i * RANKS + w.rank) * KEYS;
}

/* one warp */
static __device__ __forceinline__ void produce(struct decode_tiles &f, const struct decode_job &j,
                                               const struct cu_seq &s, const struct decode_work &w)
{
    const int lane = threadIdx.x & 31, each = KEYS / j.box;
    int ids = 0; /* pages of the next 32 copies, one a lane */
    for (int i = 0; i < w.tiles; i++) {
        const int b = i & 1, phase = i / 2 & 1 ^ 1, turn = i * each & 31;
        if (turn == 0) {
            int at = tile_at(w, i + lane / each) + lane % each * j.box;
            ids = s.page[(at < w.end ? at : w.end - 1) / j.a.page];
        }
        for (int half = 0; half < 2; half++) {
            if (lane == 0) {
                bar_wait(&f.empty[b][half], phase);
                bar_expect(&f.full[b][half], (HALF + (half != b)) * BLOCK);
            }
            __syncwarp();
            for (int e = 0; e < each; e++) {
                const int at = tile_at(w, i) + e * j.box, row = at % j.a.page,
                          id = __shfl_sync(0xffffffffu, ids, turn + e);
                if (lane) continue;
                if (each == 1)
                    tma_load(f.kv[b][half * HALF], &j.map, &f.full[b][half], 0, row, half * HALF, id);
                else
                    for (int c = half * HALF; c < (half + 1) * HALF; c++)
                        tma_load(f.kv[b][c] + e * j.box * 128, &j.one, &f.full[b][half], 0, row, c, id);
                if (half != b)
                    tma_load(f.kv[b][BLOCKS - 1] + e * j.box * 128, &j.one, &f.full[b][half], 0, row, BLOCKS - 1, id);
            }
        }
    }
    __syncwarp();
}

/* a warpgroup's state: rows r = 0, 1 of a thread are lanes row[r] */
struct decode_state {
    float acc[RANK / 4], top[2], sum[2]; /* sum: of this thread's columns of its own tiles */
};

/* maxima of the next tile are m[]: bring what there is to them */
static __device__ __forceinline__ void rescale(struct decode_state &d, const float *m, float scale)
{
    float corr[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        corr[r] = exp2_fast((d.top[r] - at_base(m[r])) * scale);
        d.top[r] = m[r];
        d.sum[r] *= corr[r];
    }
    if (__any_sync(0xffffffffu, corr[0] != 1.0f || corr[1] != 1.0f))
#pragma unroll
        for (int i = 0; i < RANK / 4; i++) d.acc[i] *= corr[i / 2 % 2];
}

static __device__ __forceinline__ void consume(struct decode_tiles &f, const struct decode_job &j,
                                               const struct cu_seq &s, const struct decode_work &w,
                                               struct decode_state &d, int wg)
{
    const struct mla_absorbed &a = j.a;
    const int tid = threadIdx.x & 127, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q4 = lane & 3;
    const int row[2] = {warp * 16 + g, warp * 16 + g + 8};
    const float scale = a.scale * AT_LOG2E;
    float sc[KEYS / 2];
    uint32_t p[KEYS / 4];
    int hi[2];
#pragma unroll
    for (int r = 0; r < 2; r++) hi[r] = w.i0 + row[r] < w.n ? s.pos0 + (w.i0 + row[r]) / a.heads + 1 : 0;
    const uint64_t oq = wg_operand(f.q, LANES), ok = wg_operand(f.kv[wg], KEYS);
    auto scores = [&](int i) {
        wg_hold(sc);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bar_wait(&f.full[wg][half], i / 2 & 1);
            wg_begin();
#pragma unroll
            for (int k = half * HALF * 4; k < (half ? WIDTH / 16 : HALF * 4); k++)
                wg_ss<1>(sc, oq + (k / 4 * BLOCK + k % 4 * 32) / 16, ok + (k / 4 * BLOCK + k % 4 * 32) / 16, k > 0);
        }
        wg_end();
    };
    auto weigh = [&](int i) {
        const int pos = tile_at(w, i);
        float m[2] = {d.top[0], d.top[1]};
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int e = r * 2; e < KEYS / 2; e += 4)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    if (pos + e / 4 * 8 + q4 * 2 + c >= hi[r]) sc[e + c] = -INFINITY;
                    m[r] = fmaxf(m[r], sc[e + c]);
                }
            m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffffu, m[r], 1));
            m[r] = fmaxf(m[r], __shfl_xor_sync(0xffffffffu, m[r], 2));
            if (q4 == 0) f.top[wg][row[r]] = m[r];
        }
        float part[2] = {};
#pragma unroll
        for (int e = 0; e < KEYS / 2; e += 2) {
            const int r = e / 2 % 2;
            float base = at_base(m[r]) * scale, x = exp2_fast(fmaf(sc[e], scale, -base)),
                  y = exp2_fast(fmaf(sc[e + 1], scale, -base));
            part[r] += x + y;
            p[e / 2] = cu_pack(x, y);
            *(uint32_t *)(f.kv[wg][BLOCKS - 1] + wg_at(row[r], e / 4) + q4 * 4) = p[e / 2];
        }
        if (pos + KEYS > w.end) /* rows behind the end are whatever they are */
            for (int e = tid; e < (pos + KEYS - w.end) * (RANK / 8); e += 128) {
                int r = KEYS - 1 - e / (RANK / 8), c = e % (RANK / 8);
                *(uint4 *)(f.kv[wg][c / 8] + wg_at(r, c % 8)) = make_uint4(0, 0, 0, 0);
            }
        wg_publish();
        wg_arrive(WEIGHTS + wg, 256);
        rescale(d, m, scale);
        d.sum[0] += part[0];
        d.sum[1] += part[1];
    };
    auto ov = [&](int b) { return wg_operand(f.kv[b][wg * HALF], KEYS); };
    /* tile i of the other warpgroup */
    auto values_other = [&](int i) {
        const int b = wg ^ 1;
        wg_sync(WEIGHTS + b, 256);
        float m[2] = {f.top[b][row[0]], f.top[b][row[1]]};
        rescale(d, m, scale);
        uint64_t op = wg_operand(f.kv[b][BLOCKS - 1], LANES), o = ov(b);
        wg_hold(d.acc);
        wg_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) wg_ss<0>(d.acc, op + k * 2, o + k * 2048 / 16, 1);
        wg_end();
    };
    auto values_own = [&]() {
        wg_hold(d.acc);
        wg_hold(p);
        wg_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) wg_rs<0>(d.acc, p + 4 * k, ov(wg) + k * 2048 / 16, 1);
        wg_end();
    };
    for (int i = wg; i < w.tiles; i += 2) {
        if (i > 1) {
            values_other(i - 1);
            wg_wait<0>();
            wg_hold(d.acc);
            if (lane == 0) bar_arrive(&f.empty[wg ^ 1][wg]);
        }
        scores(i);
        if (i == 1) values_other(0);
        wg_wait<0>();
        wg_hold(sc);
        wg_hold(d.acc);
        if (i == 1 && lane == 0) bar_arrive(&f.empty[wg ^ 1][wg]);
        wg_sync(KEYS_READ + wg, 128); /* by all warps: their place is for weights */
        weigh(i);
        values_own();
        wg_wait<0>();
        wg_hold(d.acc);
        if (lane == 0) bar_arrive(&f.empty[wg][wg]);
    }
    if (w.tiles && ((w.tiles - 1) & 1) != wg) {
        values_other(w.tiles - 1);
        wg_wait<0>();
        wg_hold(d.acc);
    }
}

/* sums of a block to where the cluster reads them */
static __device__ __forceinline__ void hand_over(struct decode_tiles &f, struct decode_state &d, int wg)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, g = lane >> 2, q4 = lane & 3;
    wg_sync(BOTH, 256); /* tiles are done with */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int l = warp * 16 + g + r * 8;
        d.sum[r] += __shfl_xor_sync(0xffffffffu, d.sum[r], 1);
        d.sum[r] += __shfl_xor_sync(0xffffffffu, d.sum[r], 2);
        if (q4 == 0) {
            f.sum[wg][l] = d.sum[r];
            f.top[wg][l] = d.top[r];
        }
#pragma unroll
        for (int n = 0; n < RANK / 16; n++)
            *(float2 *)&f.acc[l][wg * (RANK / 2) + n * 8 + q4 * 2] =
                make_float2(d.acc[n * 4 + r * 2], d.acc[n * 4 + r * 2 + 1]);
    }
}

/* one warp: a lane of the block's share, over the blocks of the cluster in order */
static __device__ __forceinline__ void add_up(struct decode_tiles &f, const struct mla_absorbed &a,
                                              const struct cu_seq &s, const struct decode_work &w)
{
    const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
    const bool part = a.splits > 1;
#pragma unroll
    for (int n = 0; n < LANES / RANKS / 8; n++) {
        const int l = w.rank * (LANES / RANKS) + n * 8 + warp, i = w.i0 + l;
        if (i >= w.n) continue;
        struct at_parts<RANKS> p = at_meet<RANKS>(&f.top[0][l], &f.sum[0][l], &f.sum[1][l], a.scale * AT_LOG2E);
        float *to = part ? mla_part(a, blockIdx.z, i, blockIdx.y)
                         : a.z + (s.row0 + i / a.heads) * a.ldz + (int64_t)(i % a.heads) * RANK;
        const float sum = part ? 1.0f : p.sum;
        float4 v[RANK / 128];
        at_add_up(p, &f.acc[l][lane * 4], v);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float *z = to + c * 128 + lane * 4;
            z[0] = v[c].x / sum;
            z[1] = v[c].y / sum;
            z[2] = v[c].z / sum;
            z[3] = v[c].w / sum;
        }
        if (part && lane == 0) {
            to[RANK] = p.top * a.scale;
            to[RANK + 1] = p.sum;
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 1) decode_wg_kernel(const __grid_constant__ struct decode_job j)
{
    extern __shared__ __align__(1024) char mem[];
    struct decode_tiles &f = *(struct decode_tiles *)mem;
    const struct mla_absorbed &a = j.a;
    const struct cu_seq s = cu_seq_at(a.seqs, blockIdx.z);
    struct decode_work w;
    w.n = s.n_rows * a.heads;
    w.rank = blockIdx.x % RANKS;
    w.i0 = blockIdx.x / RANKS * LANES;
    w.from = blockIdx.y * a.split;
    if (w.i0 >= w.n) return;
    const int last = (w.i0 + LANES < w.n ? w.i0 + LANES : w.n) - 1;
    w.end = s.pos0 + last / a.heads + 1;
    if (w.from >= w.end) return; /* all of the cluster */
    if (w.end > w.from + a.split) w.end = w.from + a.split;
    const int all = (w.end - w.from + KEYS - 1) / KEYS;
    w.tiles = all > w.rank ? (all - w.rank - 1) / RANKS + 1 : 0;
    bar_start<4>({{&f.full[0][0], 1}, {&f.empty[0][0], 4}});
    if (threadIdx.x < 128) {
        wg_less_registers<40>();
        if (threadIdx.x < 32) produce(f, j, s, w);
        cluster_sync();
        cluster_sync();
    } else {
        struct decode_state d = {{}, {-INFINITY, -INFINITY}, {}};
        const int wg = threadIdx.x / 128 - 1;
        wg_more_registers<232>();
        auto q_row = [&](int r) {
            int i = w.i0 + r;
            return i < w.n ? a.q + (s.row0 + i / a.heads) * a.ldq + (int64_t)(i % a.heads) * WIDTH : NULL;
        };
        if (j.vec)
            at_put_rows<true, WIDTH, 256, 9>(f.q, threadIdx.x - 128, q_row);
        else
            at_put_rows<false, WIDTH, 256, 6>(f.q, threadIdx.x - 128, q_row);
        wg_publish();
        wg_sync(BOTH, 256);
        consume(f, j, s, w, d, wg);
        hand_over(f, d, wg);
        cluster_sync();
        add_up(f, a, s, w);
        cluster_sync(); /* nobody leaves while its sums are read */
    }
}

int mla_decode_wg_fits(const struct ops *o, const struct paged *cache, int rank, int rope)
{
    int page = cache->page;
    return cu_hopper(cu_impl(o)) && o->act == ACT_BF16 && cache->kv == OPS_KV_BF16 && rank == RANK && rope == ROPE &&
           (page % KEYS == 0 || (page >= 8 && KEYS % page == 0)) && (uintptr_t)cache->base % 16 == 0 &&
           cache->stride % 16 == 0;
}

void mla_decode_wg(struct ops *o, const struct mla_absorbed &a, int n)
{
    const int64_t dim[] = {64, a.page, BLOCKS, 1 << 30}, ld[] = {WIDTH * 2, 128, a.stride};
    struct decode_job j;
    j.box = a.page < KEYS ? a.page : (int)KEYS;
    const int half[] = {64, j.box, HALF, 1}, one[] = {64, j.box, 1, 1};
    j.map = cu_map_new(a.base, 4, dim, ld, half);
    j.one = cu_map_new(a.base, 4, dim, ld, one);
    j.a = a;
    j.vec = cu_aligned16(a.q, a.ldq);
    dim3 grid((unsigned)cu_parts((int64_t)a.rows * a.heads, LANES) * RANKS, (unsigned)a.splits, (unsigned)n);
    wg_launch(decode_wg_kernel, RANKS, grid, THREADS, sizeof(struct decode_tiles), cu_impl(o)->stream, j);
}
