/* Routed experts. A pair is a row and one of its local experts. One block groups the pairs by expert and cuts each
 * group into tiles of rows while others convert the rows; then up with SiTU for all tiles, down for all tiles, and each
 * row adds its experts' shares in the order of idx. Weights stay at 4 bit until they are in registers. A block's four
 * warps each take a quarter of the inputs and the quarters are added in order, or, where sums are short, each its own
 * outputs. Nothing depends on which rows share a tile, so neither do the bits. Each kernel starts early: down has its
 * weights on their way while up ends. On Hopper, experts with many rows go to moe_wg.cu. */
#include "moe.h"
#include "mma.h"
#include "fp4.h"
#include "wgmma.h"

#include <stdlib.h>
#include <string.h>

enum { WARPS = 4, GROUP_BLOCK = 1024, WIDE_FROM = 24 /* rows an expert */ };

/* ---- device tables of a layer's experts -------------------------------------------------------------- */

struct cuda_table {
    const struct mat *up, *down; /* key */
    int n;
    const void **host;           /* [4][n] data and scales of up, of down */
    const void **dev;
};

/* the table of these experts, made at the first call; a layer whose matrices changed is read again */
static const void **table_of(struct ops *o, const struct mat *up, const struct mat *down, int n)
{
    struct cuda_impl *im = cu_impl(o);
    struct cuda_table *t = NULL;
    for (int i = 0; i < im->n_tables && !t; i++)
        if (im->tables[i].up == up && im->tables[i].down == down && im->tables[i].n == n) t = &im->tables[i];
    if (!t) {
        im->tables = (struct cuda_table *)realloc(im->tables, (size_t)(im->n_tables + 1) * sizeof *t);
        if (!im->tables) abort();
        t = &im->tables[im->n_tables++];
        *t = cuda_table{up, down, n, (const void **)calloc(4 * (size_t)n, sizeof(void *)), NULL};
        if (!t->host) abort();
        CU(cudaMalloc((void **)&t->dev, 4 * (size_t)n * sizeof(void *)));
    }
    int changed = 0;
    for (int i = 0; i < n; i++) {
        const void *now[4] = {up[i].data.p, up[i].scale.p, down[i].data.p, down[i].scale.p};
        for (int j = 0; j < 4; j++) {
            changed |= t->host[j * n + i] != now[j];
            t->host[j * n + i] = now[j];
        }
    }
    if (changed) {
        CU(cudaStreamSynchronize(im->stream));
        CU(cudaMemcpy(t->dev, t->host, 4 * (size_t)n * sizeof(void *), cudaMemcpyHostToDevice));
    }
    return t->dev;
}

void cuda_moe_close(struct cuda_impl *im)
{
    for (int i = 0; i < im->n_tables; i++) {
        (void)cudaFree(im->tables[i].dev);
        free(im->tables[i].host);
    }
    free(im->tables);
    im->tables = NULL;
    im->n_tables = 0;
}

/* ---- grouping ----------------------------------------------------------------------------------------- */

struct head {
    struct groups g;
    const int32_t *idx;
    int t, k, e0, n_local, per_tile, pad;
    struct cu_rows rows; /* none with pad */
};

/* Groups the pairs. pad 0: slots are pairs, tiles of per_tile rows and a rest. pad 1: the fewest tiles of at most
 * per_tile rows, all about as long, with per_tile slots each. */
static __device__ __forceinline__ void group(const struct head &h)
{
    const struct groups &s = h.g;
    const int32_t *idx = h.idx;
    const int k = h.k, e0 = h.e0, n_local = h.n_local, per_tile = h.per_tile, pad = h.pad, n = h.t * k;
    extern __shared__ int count[]; /* [n_local], then those placed, first slots, first tiles */
    __shared__ int2 sums[32];
    int *placed = count + n_local, *start = placed + n_local, *tile0 = start + n_local;
    auto per_of = [&](int c) { return pad && c ? (c - 1) / ((c + per_tile - 1) / per_tile) + 1 : per_tile; };
    for (int i = threadIdx.x; i < n_local; i += blockDim.x) count[i] = placed[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int e = idx[i] - e0;
        if (e >= 0 && e < n_local) atomicAdd(&count[e], 1);
    }
    __syncthreads();
    int slots = 0, tiles = 0, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int i0 = 0; i0 < n_local; i0 += GROUP_BLOCK) { /* running sums of slots and of tiles */
        int i = i0 + threadIdx.x, c = i < n_local ? count[i] : 0, m = (c + per_tile - 1) / per_tile;
        int per = per_of(c), rows = pad ? per_tile : per, room = pad ? m * rows : c, a = room, b = m;
        for (int d = 1; d < 32; d <<= 1) {
            int u = __shfl_up_sync(0xffffffffu, a, d), v = __shfl_up_sync(0xffffffffu, b, d);
            if (lane >= d) {
                a += u;
                b += v;
            }
        }
        if (lane == 31) sums[warp] = make_int2(a, b);
        __syncthreads();
        int2 all = sums[lane], before = make_int2(0, 0);
        for (int d = 1; d < 32; d <<= 1) {
            int u = __shfl_up_sync(0xffffffffu, all.x, d), v = __shfl_up_sync(0xffffffffu, all.y, d);
            if (lane >= d) {
                all.x += u;
                all.y += v;
            }
        }
        before.x = __shfl_sync(0xffffffffu, all.x, (warp + 31) & 31);
        before.y = __shfl_sync(0xffffffffu, all.y, (warp + 31) & 31);
        if (warp == 0) before = make_int2(0, 0);
        int first = slots + before.x + a - room, to = tiles + before.y + b - m;
        if (i < n_local) {
            start[i] = first;
            tile0[i] = to;
        }
        for (int j = 0; j < m; j++)
            s.tile[to + j] = tile{i, first + j * rows, c - j * per < per ? c - j * per : per};
        slots += __shfl_sync(0xffffffffu, all.x, 31);
        tiles += __shfl_sync(0xffffffffu, all.y, 31);
        __syncthreads();
    }
    if (threadIdx.x == 0) *s.n_tiles = tiles;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int e = idx[i] - e0, at = -1;
        if (e >= 0 && e < n_local) {
            int per = per_of(count[e]), rows = pad ? per_tile : per, p = atomicAdd(&placed[e], 1);
            at = start[e] + p / per * rows + p % per;
            if (pad) s.of[at] = tile0[e] + p / per;
            else s.row[at] = i / k;
        }
        s.slot[i] = at;
    }
}

/* block 0 groups while the others convert a row each */
template <bool VEC> static __global__ void __launch_bounds__(GROUP_BLOCK) head_kernel(struct head h)
{
    cu_launch_next();
    cu_wait_last();
    if (blockIdx.x == 0) group(h);
    else
        for (int i = threadIdx.x * 4; i < h.rows.kp; i += GROUP_BLOCK * 4)
            cu_rows_store<VEC>(h.rows, blockIdx.x - 1, i);
}

/* ---- products ------------------------------------------------------------------------------------------ */

struct prod {
    const struct tile *tile;   /* NULL: one expert, tiles of consecutive rows */
    const int *n_tiles, *row;  /* row NULL: pairs are rows */
    const void *const *data, *const *scale; /* per expert */
    const __nv_bfloat16 *x;    /* [parts][..][kp] */
    int64_t plane;
    int kp, k, n;              /* inputs, outputs (up: of each half) */
    int rows;                  /* dense: rows */
    int groups;                /* down: sums of k / groups inputs each */
    float b1, b2;              /* up: SiTU */
    __nv_bfloat16 *h;          /* up: result [parts][pairs][hp] */
    int64_t h_plane;
    int hp;
    float *y;                  /* down: result [pairs][groups][n] or, dense, [rows] with stride ldy */
    int64_t ldy;
};

template <bool WIDE> static __device__ __forceinline__ void expand(uint32_t w, uint32_t scales, int byte, uint32_t *p)
{
    if (WIDE) fp4_expand_any(w, scales >> (8 * byte) & 255u, p);
    else fp4_expand(w, fp4_scale_of(scales, byte), p);
}

/* inputs h (0: first 32, 1: last 32) of a tile for all outputs and rows */
template <int MT, int NT, int PARTS, bool WIDE> static __device__ __forceinline__ void
half_tile(float (*acc)[NT][4], const uint4 *w, const uint32_t *sc, const uint4 (*x)[PARTS], int h)
{
#pragma unroll
    for (int m = 0; m < MT; m++) {
        uint32_t lo[4], hi[4];
        expand<WIDE>(h ? w[m].z : w[m].x, sc[m], 2 * h, lo);
        expand<WIDE>(h ? w[m].w : w[m].y, sc[m], 2 * h + 1, hi);
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                cu_mma(acc[m][j], lo[0], hi[0], lo[1], hi[1], x[j][p].x, x[j][p].y);
                cu_mma(acc[m][j], lo[2], hi[2], lo[3], hi[3], x[j][p].z, x[j][p].w);
            }
    }
}

/* Every lane keeps ST blocks of 64 inputs of its own operands on their way to its own slots of shared memory. */
template <int MT, int NT, int PARTS> struct slots {
    uint4 w[MT][32], x[NT * PARTS * 2][32];
    uint32_t sc[MT][32];
};

template <int MT, int NT, int PARTS, bool UP, bool WIDE, int ST, int KS>
static __global__ void __launch_bounds__(WARPS * 32) prod_kernel(struct prod a)
{
    extern __shared__ uint4 mem[]; /* struct slots [WARPS][ST]; then float [WARPS][8 NT][16 MT + 1] */
    constexpr int PLD = 16 * MT + 1;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q = lane & 3, kt = a.kp / CU_TILE_K;
    const int s = KS == 1 ? 0 : warp, block = KS == 1 ? blockIdx.x * WARPS + warp : blockIdx.x;
    const int group = UP ? 0 : blockIdx.z, k0 = UP ? 0 : a.k / a.groups * group, k1 = UP ? a.k : k0 + a.k / a.groups;
    if (UP) {
        cu_wait_last(); /* for the groups; what comes next may read them at once, as they have been there since */
        cu_launch_next();
    }
    struct tile t = {0, (int)blockIdx.y * 8 * NT, 8 * NT};
    if (a.tile) {
        if ((int)blockIdx.y >= *a.n_tiles) return;
        t = a.tile[blockIdx.y];
    } else if (a.rows - t.first < t.n) t.n = a.rows - t.first;
    const int tb0 = k0 / CU_TILE_K, tbn = (k1 + CU_TILE_K - 1) / CU_TILE_K - tb0;
    const int b0 = tb0 + s * tbn / KS, b1 = tb0 + (s + 1) * tbn / KS;
    const char *data = (const char *)a.data[t.expert] + lane * 16, *scale = (const char *)a.scale[t.expert] + g * 4;
    struct slots<MT, NT, PARTS> *ring = (struct slots<MT, NT, PARTS> *)mem + warp * ST;
    int at[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) { /* up: first half of the tiles gates, second half ups of the same columns */
        int half = UP ? m / (MT / 2) : 0, i = block * (UP ? MT / 2 : MT) + (UP ? m % (MT / 2) : m),
            most = (a.n + 15) / 16;
        at[m] = (half * (a.n / 16) + (i < most ? i : most - 1)) * kt;
    }
    const __nv_bfloat16 *x[NT];
#pragma unroll
    for (int j = 0; j < NT; j++) {
        int i = j * 8 + g;
        x[j] = i < t.n ? a.x + (int64_t)(a.row ? a.row[t.first + i] : t.first + i) * a.kp + q * 8 : NULL;
    }
    auto fetch_w = [&](int b, int st) {
        if (b < b1)
#pragma unroll
            for (int m = 0; m < MT; m++) {
                cu_copy16(&ring[st].w[m][lane], data + (int64_t)(at[m] + b) * 512);
                cu_copy4(&ring[st].sc[m][lane], scale + (int64_t)(at[m] + b) * 32);
            }
    };
    auto fetch_x = [&](int b, int st) {
        if (b < b1)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int p = 0; p < PARTS; p++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        cu_copy16_if(&ring[st].x[(j * PARTS + p) * 2 + h][lane],
                                     x[j] ? x[j] + p * a.plane + b * CU_TILE_K + h * 32 : a.x, x[j]);
        cu_copy_end();
    };
    float acc[MT][NT][4] = {}, sum[PARTS > 1 ? MT : 1][PARTS > 1 ? NT : 1][4] = {};
#pragma unroll
    for (int i = 0; i < ST - 1; i++) fetch_w(b0 + i, i);
    if (!UP) {
        cu_wait_last();
        cu_launch_next();
    }
#pragma unroll
    for (int i = 0; i < ST - 1; i++) fetch_x(b0 + i, i);
    for (int b = b0, st = 0; b < b1; b++, st = st + 1 == ST ? 0 : st + 1) {
        fetch_w(b + ST - 1, st == 0 ? ST - 1 : st - 1);
        fetch_x(b + ST - 1, st == 0 ? ST - 1 : st - 1);
        cu_copy_wait<ST - 1>();
        uint4 w[MT];
        uint32_t sc[MT];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            w[m] = ring[st].w[m][lane];
            sc[m] = ring[st].sc[m][lane];
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int k = b * CU_TILE_K + h * 32;
            if (k < k0 || k >= k1) continue;
            uint4 v[NT][PARTS];
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int p = 0; p < PARTS; p++) v[j][p] = ring[st].x[(j * PARTS + p) * 2 + h][lane];
            half_tile<MT, NT, PARTS, WIDE>(acc, w, sc, v, h);
        }
        if (PARTS > 1) /* short runs in the tensor cores, FP32 sums between them */
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
    cu_copy_wait<0>();
    if (KS == 1 && !UP) { /* whole sums: no need to meet */
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = j * 8 + q * 2 + i % 2, out = (block * MT + m) * 16 + g + i / 2 * 8;
                    int64_t pair = t.first + row;
                    if (row >= t.n || out >= a.n) continue;
                    a.y[a.tile ? (pair * a.groups + group) * a.n + out : pair * a.ldy + out] =
                        PARTS > 1 ? sum[m][j][i] : acc[m][j][i];
                }
        return;
    }
    __syncthreads();
    float *part = (float *)mem;
    if constexpr (PARTS > 1) cu_parts_put(part + s * 8 * NT * PLD, PLD, sum);
    else cu_parts_put(part + s * 8 * NT * PLD, PLD, acc);
    __syncthreads();
    constexpr int OUTS = UP ? 8 * MT : 16 * MT;
    for (int i = threadIdx.x; i < OUTS * 8 * NT; i += WARPS * 32) {
        int row = i / OUTS, c = i % OUTS, out = blockIdx.x * OUTS + c;
        if (row >= t.n || out >= a.n) continue;
        float v = cu_parts_sum<WARPS>(part + row * PLD + c, 8 * NT * PLD);
        int64_t pair = t.first + row;
        if (UP) {
            v = cu_situ1(v, cu_parts_sum<WARPS>(part + row * PLD + c + OUTS, 8 * NT * PLD), a.b1, a.b2);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                a.h[p * a.h_plane + pair * a.hp + out] = __float2bfloat16_rn(cu_part_bf16(v, p));
        } else a.y[a.tile ? (pair * a.groups + group) * a.n + out : pair * a.ldy + out] = v;
    }
}

template <int MT, int NT, int PARTS, bool UP, bool WIDE, int ST, int KS>
static void launch_ks(struct ops *o, const struct prod &a, int tiles)
{
    constexpr int rings = (int)sizeof(struct slots<MT, NT, PARTS>) * WARPS * ST,
                  sums = WARPS * 8 * NT * (16 * MT + 1) * 4;
    constexpr int bytes = rings > sums ? rings : sums;
    dim3 grid((unsigned)cu_parts(a.n, UP        ? 8 * MT
                                      : KS == 1 ? 16 * MT * WARPS
                                                : 16 * MT),
              (unsigned)tiles, UP ? 1 : (unsigned)a.groups);
    if (tiles < 1) return;
    CU(cudaFuncSetAttribute(prod_kernel<MT, NT, PARTS, UP, WIDE, ST, KS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            bytes));
    cu_launch_early(prod_kernel<MT, NT, PARTS, UP, WIDE, ST, KS>, grid, WARPS * 32, bytes, cu_impl(o)->stream, a);
}

enum { SHORT_SUM = 12 }; /* blocks of inputs up to which a warp sums alone: depends on the matrix, not on the rows */

template <int MT, int NT, int PARTS, bool UP, bool WIDE, int ST>
static void launch(struct ops *o, const struct prod &a, int tiles)
{
    if constexpr (!UP) {
        const int blocks = cu_parts(a.k / a.groups, CU_TILE_K);
        if (blocks <= 2) return launch_ks<MT, NT, PARTS, UP, WIDE, 2, 1>(o, a, tiles); /* small rings: more blocks */
        if (blocks <= SHORT_SUM) return launch_ks<MT, NT, PARTS, UP, WIDE, ST, 1>(o, a, tiles);
    }
    launch_ks<MT, NT, PARTS, UP, WIDE, ST, WARPS>(o, a, tiles);
}

/* rows per tile: 8, 16 or 32 */
static int rows_per_tile(int64_t pairs, int experts)
{
    int64_t mean = pairs / (experts ? experts : 1);
    return mean <= 6 ? 8 : mean <= 12 ? 16 : 32;
}

template <bool UP, bool WIDE>
static void product_of(struct ops *o, const struct prod &a, int per_tile, int tiles, int parts)
{
    if (parts == 1) {
        if (per_tile == 8) launch<4, 1, 1, UP, WIDE, UP ? 2 : 4>(o, a, tiles);
        else if (per_tile == 16) launch<4, 2, 1, UP, WIDE, 3>(o, a, tiles);
        else launch<4, 4, 1, UP, WIDE, 3>(o, a, tiles);
    } else {
        if (per_tile == 8) launch<4, 1, 3, UP, WIDE, 3>(o, a, tiles);
        else if (per_tile == 16) launch<2, 2, 3, UP, WIDE, 2>(o, a, tiles);
        else launch<2, 4, 3, UP, WIDE, 2>(o, a, tiles);
    }
}

template <bool UP> static void product(struct ops *o, const struct prod &a, int per_tile, int tiles, int parts)
{
    if (cu_impl(o)->fp4_wide) product_of<UP, true>(o, a, per_tile, tiles, parts);
    else product_of<UP, false>(o, a, per_tile, tiles, parts);
}

/* ---- shares of a row ------------------------------------------------------------------------------------- */

struct shares {
    const float *leaf, *w;
    const int *slot;
    int k, latent, groups, skip_one; /* skip_one: rows with one pair are done */
    float *y;
    int64_t y_stride;
};

static __global__ void share_kernel(struct shares a)
{
    int row = blockIdx.y, g = blockIdx.z, i = blockIdx.x * blockDim.x + threadIdx.x, pairs = 0;
    const int *slot = a.slot + row * a.k;
    const float *w = a.w + row * a.k;
    cu_wait_last();
    if (i >= a.latent) return;
    for (int j = 0; a.skip_one && j < a.k; j++) pairs += slot[j] >= 0;
    if (a.skip_one && pairs == 1) return;
    float v = 0;
    for (int j = 0; j < a.k; j++)
        if (slot[j] >= 0) v += w[j] * a.leaf[((int64_t)slot[j] * a.groups + g) * a.latent + i];
    a.y[g * a.y_stride + (int64_t)row * a.latent + i] = v;
}

/* what a block of rows needs, in bytes; pointers are set when base is not NULL. wide: rows of a tile of cu_moe_wide */
struct work {
    __nv_bfloat16 *z, *h;
    float *leaf, *share;
    int *only;
    struct groups g;
    size_t bytes;
};

static struct work carve(char *base, int rows, int k, int n_local, int parts, int zp, int hp, int latent, int groups,
                         int wide)
{
    size_t pairs = (size_t)rows * (size_t)(k < n_local ? k : n_local), at = 0, rows8 = cu_up((size_t)rows, 8);
    size_t most = pairs < (size_t)n_local ? pairs : (size_t)n_local, tiles = wide ? pairs / wide + most : pairs + 1;
    size_t slots = wide ? tiles * wide : pairs;
    const size_t size[10] = {parts * (wide ? slots : rows8) * zp * 2,
                             parts * slots * hp * 2,
                             slots * groups * latent * 4,
                             tiles * sizeof(struct tile),
                             4,
                             wide ? 0 : pairs * 4,
                             (size_t)rows * k * 4,
                             wide ? slots * 4 : 0,
                             wide ? slots * 4 : 0,
                             wide ? slots * 4 : 0};
    char *p[10];
    for (int i = 0; i < 10; i++) {
        p[i] = base + at;
        at += cu_up(size[i], 256);
    }
    return work{(__nv_bfloat16 *)p[0], (__nv_bfloat16 *)p[1], (float *)p[2], (float *)p[9], (int *)p[8],
                {(struct tile *)p[3], (int *)p[4], (int *)p[5], (int *)p[7], (int *)p[6]}, at};
}

void cuda_moe(struct ops *o, const struct mat *up, const struct mat *down, int e0, int n_local, int n_experts,
              const float *z, int latent, int cols, int groups, int merge, const int32_t *idx, const float *w, int k,
              float b1, float b2, int t, float *y, int64_t y_stride)
{
    struct cuda_impl *im = cu_impl(o);
    const int parts = im->act == ACT_FP32 ? 3 : 1, sums = merge ? 1 : groups, most = k < n_local ? k : n_local;
    const int zp = (int)cu_up((size_t)latent, CU_TILE_K), hp = (int)cu_up((size_t)cols, CU_TILE_K);
    if (t < 1) return;
    const void **table = table_of(o, up, down, n_local);
    /* whole sums of many rows, more of an expert than the other kernels take at once */
    const int64_t mean = (int64_t)t * k / n_experts;
    const int wide = parts == 1 && sums == 1 && t > CU_EXACT_ROWS && mean >= WIDE_FROM && cu_hopper(im) && !im->fp4_wide
                         ? cu_moe_rows(mean) : 0;
    int block = t < 65535 ? t : 65535;
    while (block > 1 && carve(NULL, block, k, n_local, parts, zp, hp, latent, sums, wide).bytes > CU_MOE_BYTES)
        block = (block + 1) / 2;
    for (int r = 0; r < t; r += block) {
        int n = t - r < block ? t - r : block, per_tile = rows_per_tile((int64_t)n * most, n_local);
        int64_t pairs = (int64_t)n * most;
        int tiles = (int)(pairs / per_tile + (pairs < n_local ? pairs : n_local));
        struct work s = carve(NULL, n, k, n_local, parts, zp, hp, latent, sums, wide);
        s = carve((char *)cu_scratch(o, s.bytes), n, k, n_local, parts, zp, hp, latent, sums, wide);
        const float *zr = z + (int64_t)r * latent, *wr = w + (int64_t)r * k;
        float *yr = y + (int64_t)r * latent;
        const struct cu_rows rows = cu_rows_of(zr, latent, n, latent, zp, parts, s.z);
        const struct head h = {s.g, idx + (int64_t)r * k, n, k, e0, n_local, wide ? wide : per_tile, wide > 0, rows};
        const struct shares share = {s.leaf, wr, s.g.slot, k, latent, sums, wide > 0, yr, y_stride};
        const dim3 grid((unsigned)cu_parts(latent, 256), (unsigned)n, (unsigned)sums);
        cu_launch_early(rows.vec ? head_kernel<true> : head_kernel<false>, dim3(wide ? 1 : 1 + (unsigned)rows.rows8),
                        GROUP_BLOCK, 4 * (size_t)n_local * sizeof(int), im->stream, h);
        if (wide) {
            const struct moe_wide v = {s.g,
                                       table,
                                       table + n_local,
                                       table + 2 * n_local,
                                       table + 3 * n_local,
                                       zr,
                                       wr,
                                       n,
                                       k,
                                       latent,
                                       cols,
                                       zp,
                                       hp,
                                       wide,
                                       b1,
                                       b2,
                                       (char *)s.z,
                                       (char *)s.h,
                                       s.only,
                                       s.share,
                                       s.leaf,
                                       yr};
            cu_moe_wide(o, &v);
            cu_launch_early(share_kernel, grid, 256, 0, im->stream, share);
            continue;
        }
        struct prod a = {};
        a.tile = s.g.tile;
        a.n_tiles = s.g.n_tiles;
        a.row = s.g.row;
        a.data = table;
        a.scale = table + n_local;
        a.x = s.z;
        a.plane = (int64_t)cu_up((size_t)n, 8) * zp;
        a.kp = zp;
        a.k = latent;
        a.n = cols;
        a.groups = 1;
        a.b1 = b1;
        a.b2 = b2;
        a.h = s.h;
        a.hp = hp;
        a.h_plane = pairs * hp;
        product<true>(o, a, per_tile, tiles, parts);
        a.row = NULL;
        a.data = table + 2 * n_local;
        a.scale = table + 3 * n_local;
        a.x = s.h;
        a.plane = a.h_plane;
        a.kp = hp;
        a.k = cols;
        a.n = latent;
        a.groups = sums;
        a.y = s.leaf;
        product<false>(o, a, per_tile, tiles, parts);
        cu_launch_early(share_kernel, grid, 256, 0, im->stream, share);
    }
}

/* linear on one MXFP4 matrix: rows as pairs of a single expert */
void cu_fp4_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy)
{
    const int parts = cu_impl(o)->act == ACT_FP32 || m->exact ? 3 : 1, kp = (int)cu_up((size_t)m->k, CU_TILE_K),
              block = CU_LINEAR_ROWS;
    const void *const host[2] = {m->data.p, m->scale.p};
    for (int r = 0; r < t; r += block) {
        int n = t - r < block ? t - r : block, per_tile = rows_per_tile(n, 1);
        const void **dev = (const void **)cu_stage(o, host, sizeof host);
        struct prod a = {};
        a.plane = (int64_t)cu_up((size_t)n, 8) * kp;
        __nv_bfloat16 *xb = (__nv_bfloat16 *)cu_scratch(o, (size_t)(parts * a.plane) * 2);
        cu_rows_bf16(o, x + r * ldx, ldx, n, m->k, kp, parts, xb);
        a.data = dev;
        a.scale = dev + 1;
        a.x = xb;
        a.kp = kp;
        a.k = m->k;
        a.n = m->n;
        a.rows = n;
        a.groups = 1;
        a.y = y + r * ldy;
        a.ldy = ldy;
        product<false>(o, a, per_tile, cu_parts(n, per_tile), parts);
    }
}
