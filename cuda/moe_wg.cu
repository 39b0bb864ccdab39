/* Routed experts with many rows each, on Hopper. A tile of up to N rows of an expert meets the expert's matrix once: a
 * warp expands MXFP4 words of its 16 outputs to BF16 in registers, operand A of its warpgroup's products; the rows are
 * operand B, in shared memory. The copy engine brings them in plain pieces, so they lie in device memory exactly as
 * they will in shared memory, an image per tile: [k / 64][N][128 bytes, swizzled], and of each 32 inputs in the order
 * in which the lanes hold the words: pair p of the word of lane q at 4 p + q. Blocks stay on their multiprocessor and
 * take tile after tile; copies run ahead across tiles. */
#include "moe.h"
#include "fp4.h"
#include "wgmma_n.h"

/* ---- rows of tiles ---------------------------------------------------------------------------------------- */

/* one block per row: its BF16 image to each of its slots */
static __global__ void __launch_bounds__(256) image_kernel(struct moe_wide a, bool vec)
{
    const int row = blockIdx.x, *slot = a.g.slot + (int64_t)row * a.k;
    const float *z = a.z + (int64_t)row * a.latent;
    for (int i = threadIdx.x; i < a.zp / 8; i += 256) { /* 16-byte chunk p of a block of 32 */
        int c0 = i / 4 * 32 + i % 4 * 2, kb = i / 8;
        uint32_t v[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int c = c0 + 8 * q;
            float2 f = make_float2(0, 0);
            if (c < a.latent) f = vec ? *(const float2 *)(z + c) : make_float2(z[c], z[c + 1]);
            __nv_bfloat162 b = __floats2bfloat162_rn(f.x, f.y);
            v[q] = *(uint32_t *)&b;
        }
        for (int j = 0; j < a.k; j++) {
            if (slot[j] < 0) continue;
            const struct tile t = a.g.tile[a.g.of[slot[j]]];
            char *to = a.zi + ((int64_t)t.first * a.zp + (int64_t)kb * a.rows * 64) * 2;
            *(uint4 *)(to + wg_at(slot[j] - t.first, i % 8)) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
    if (threadIdx.x == 0) {
        int n = 0;
        for (int j = 0; j < a.k; j++) n += slot[j] >= 0;
        for (int j = 0; j < a.k; j++)
            if (slot[j] >= 0) {
                a.only[slot[j]] = n == 1 ? row : -1;
                a.share[slot[j]] = a.w[(int64_t)row * a.k + j];
            }
    }
}

/* ---- one product ------------------------------------------------------------------------------------------ */

struct wprod {
    const struct tile *tile;
    const int *n_tiles;
    const void *const *data, *const *scale;
    const char *x;       /* images of the rows */
    int kp, n, blocks;   /* inputs, outputs (up: of each half), blocks of outputs */
    float b1, b2;        /* up: SiTU; the result goes to images h of hp inputs */
    char *h;
    int hp;
    const int *only;     /* down: result times share to y, or to leaf */
    const float *share;
    float *leaf, *y;
};

/* shared memory: a ring of stages of rows (128 inputs), which the copy engine fills, then every warp's own ring of the
 * same inputs of its 16 outputs, which its lanes fill, each for itself; then what store_up exchanges */
struct wslot {
    uint4 w[2][32];
    uint32_t scale[2][32];
};

enum { XST = 5, WST = 4 };

template <int WGS> struct wring {
    static constexpr int STAGE = 2 * MOE_WIDE_ROWS * 128, W = XST * STAGE;
    static constexpr int EX = W + 4 * WGS * WST * (int)sizeof(struct wslot), BYTES = EX + WGS * 4096 + 1024;
};

/* the 16 outputs of warp i of block m: number of their tile in the matrix */
template <bool UP, int WGS> static __device__ __forceinline__ int tile_at(const struct wprod &a, int m, int i)
{
    int most = (a.n + 15) / 16 - 1, at = UP ? m * 2 * WGS + i / 4 * 2 + i % 2 : m * 4 * WGS + i;
    return (UP && i % 4 > 1 ? a.n / 16 : 0) + (at < most ? at : most); /* up: two of gates, two of ups */
}

/* place in the ring of rows, carried from tile to tile */
struct wplace {
    int st, phase;
    __device__ __forceinline__ void next()
    {
        if (++st == XST) {
            st = 0;
            phase ^= 1;
        }
    }
};

/* the thread that has the rows copied */
template <int WGS, int N>
static __device__ void copy_rows(const struct wprod &a, char *ring, uint64_t *full, uint64_t *empty)
{
    const int kt = a.kp / 64, all = *a.n_tiles * a.blocks;
    struct wplace p = {0, 0};
    for (int i = blockIdx.x; i < all; i += gridDim.x) {
        const char *x = a.x + (int64_t)a.tile[i / a.blocks].first * a.kp * 2;
        for (int b = 0; b < kt; b += 2, x += 2 * N * 128, p.next()) {
            int bytes = (kt - b < 2 ? kt - b : 2) * N * 128;
            bar_wait(&empty[p.st], p.phase ^ 1);
            bar_expect(&full[p.st], bytes);
            bulk_load(ring + p.st * wring<WGS>::STAGE, x, bytes, &full[p.st]);
        }
    }
}

/* a lane's weights on their way: tile after tile, WST - 1 slots ahead of the products */
template <bool UP, int WGS> struct wstream {
    const struct wprod &a;
    struct wslot *ring;
    const char *data, *scale; /* of the next block of 64; NULL: no more */
    int i, left, to, from;    /* tile, its blocks to come; slots to fill and to use */

    __device__ __forceinline__ void seek()
    {
        data = NULL;
        if (i >= *a.n_tiles * a.blocks) return;
        const int lane = threadIdx.x & 31, e = a.tile[i / a.blocks].expert;
        int64_t at = (int64_t)tile_at<UP, WGS>(a, i % a.blocks, threadIdx.x >> 5) * (a.kp / 64);
        data = (const char *)a.data[e] + at * 512 + lane * 16;
        scale = (const char *)a.scale[e] + at * 32 + lane / 4 * 4;
        left = a.kp / 64;
    }
    __device__ __forceinline__ void fetch()
    {
        const int lane = threadIdx.x & 31;
        if (data) {
            cu_copy16(&ring[to].w[0][lane], data);
            cu_copy4(&ring[to].scale[0][lane], scale);
            if (left > 1) {
                cu_copy16(&ring[to].w[1][lane], data + 512);
                cu_copy4(&ring[to].scale[1][lane], scale + 32);
            }
            data += 1024;
            scale += 64;
            if ((left -= 2) <= 0) {
                i += gridDim.x;
                seek();
            }
        }
        cu_copy_end();
        to = (to + 1) % WST;
    }
    __device__ __forceinline__ const struct wslot *next()
    {
        const struct wslot *s = ring + from;
        fetch();
        cu_copy_wait<WST - 1>();
        from = (from + 1) % WST;
        return s;
    }
};

/* the BF16 operands of 64 inputs: four products of 16 */
static __device__ __forceinline__ void expand(const uint4 w, uint32_t sc, uint32_t (&a)[16])
{
    uint32_t u[4], v[4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        fp4_expand(h ? w.z : w.x, fp4_scale_of(sc, 2 * h), u);
        fp4_expand(h ? w.w : w.y, fp4_scale_of(sc, 2 * h + 1), v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[8 * h + 2 * i] = u[i];
            a[8 * h + 2 * i + 1] = v[i];
        }
    }
}

/* acc += 64 outputs x N rows over 64 inputs; one such step stays at work */
template <int N> static __device__ __forceinline__ void step(float (&acc)[N / 2], const uint32_t (&a)[16], uint64_t x)
{
    wg_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) wg_rs<1>(acc, a + 4 * k, x + 2 * k, 1);
    wg_end();
    wg_wait<1>();
}

/* acc = 64 outputs x N rows of a tile over kt blocks of 64 inputs */
template <int N, int WGS, class S>
static __device__ __forceinline__ void sum(float (&acc)[N / 2], const char *ring, S &s, uint64_t *full, uint64_t *empty,
                                           struct wplace &p, int kt)
{
    const int lane = threadIdx.x & 31;
    uint64_t *last = NULL; /* of the stage whose products may still be at work */
    uint32_t a0[16], a1[16];
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = 0;
    for (int b = 0; b < kt; b += 2) {
        const uint64_t x = wg_operand(ring + p.st * wring<WGS>::STAGE, N);
        const struct wslot *w = s.next();
        const uint4 w0 = w->w[0][lane], w1 = w->w[1][lane];
        const uint32_t s0 = w->scale[0][lane], s1 = w->scale[1][lane];
        expand(w0, s0, a0);
        bar_wait(&full[p.st], p.phase);
        step<N>(acc, a0, x);
        if (last && lane == 0) bar_arrive(last);
        last = &empty[p.st];
        p.next();
        if (b + 1 == kt) break;
        expand(w1, s1, a1);
        step<N>(acc, a1, x + N * 8);
    }
    wg_wait<0>();
    wg_hold(acc);
    if (lane == 0) bar_arrive(last);
}

static __device__ __forceinline__ float fast_situ(float g, float u, float b1, float b2)
{
    /* tanh and sigmoid from exponentials, all under one division; beyond 40 they are constant */
    float e1 = __expf(fminf(fmaxf(2 * g / b1, -40.0f), 40.0f)), e2 = __expf(fminf(-g, 40.0f));
    float e3 = __expf(fminf(fmaxf(2 * u / b2, -40.0f), 40.0f));
    float n1 = __fdividef(e1 - 1, (e1 + 1) * (1 + e2)), n2 = __fdividef(e3 - 1, e3 + 1);
    return g != g || u != u ? g + u : b1 * n1 * (b2 * n2); /* the limits above drop a NaN */
}

/* Gates are with warps 0, 1 of a warpgroup and ups with 2, 3: of every 16 rows, gate warps take the ups of 8 and up
 * warps the gates of the others; then 2 outputs x 2 rows a thread, of which neighbours make 4 outputs of one row. */
template <int N> static __device__ __forceinline__ void store_up(const struct wprod &a, const struct tile &t,
                                                                 int column0, const float (&acc)[N / 2], float4 *ex)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, wg = threadIdx.x >> 7, g = lane >> 2, q = lane & 3;
    const bool up = warp > 1;
    char *h = a.h + (int64_t)t.first * a.hp * 2;
    const int c = column0 + g, kb = c / 64, chunk = c / 32 % 2 * 4 + g / 2; /* column0: a multiple of 16 */
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        float4 *buf = ex + (i & 1) * 128;
        float keep[4], give[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            keep[j] = up ? acc[8 * i + 4 + j] : acc[8 * i + j];
            give[j] = up ? acc[8 * i + j] : acc[8 * i + 4 + j];
        }
        buf[warp * 32 + lane] = make_float4(give[0], give[1], give[2], give[3]);
        wg_sync(2 + wg, 128);
        const float4 other = buf[(warp ^ 2) * 32 + lane];
        const float v[4] = {other.x, other.y, other.z, other.w};
        float s[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[j] = up ? fast_situ(v[j], keep[j], a.b1, a.b2) : fast_situ(keep[j], v[j], a.b1, a.b2);
        /* s: outputs g, g, g + 8, g + 8 of rows 0, 1, 0, 1; even g takes row 0 of both outputs, odd g row 1 */
        const bool odd = g & 1;
        float x = __shfl_xor_sync(0xffffffffu, odd ? s[0] : s[1], 4),
              y = __shfl_xor_sync(0xffffffffu, odd ? s[2] : s[3], 4);
        __nv_bfloat162 lo = odd ? __floats2bfloat162_rn(x, s[1]) : __floats2bfloat162_rn(s[0], x);
        __nv_bfloat162 hi = odd ? __floats2bfloat162_rn(y, s[3]) : __floats2bfloat162_rn(s[2], y);
        const int r = 16 * i + (up ? 8 : 0) + 2 * q + odd;
        if (r >= t.n || column0 >= a.hp) continue;
        const bool in = column0 < a.n;
        *(uint2 *)(h + (int64_t)kb * N * 128 + wg_at(r, chunk) + column0 / 16 % 2 * 8) =
            make_uint2(in ? *(uint32_t *)&lo : 0, in ? *(uint32_t *)&hi : 0);
    }
    wg_sync(2 + wg, 128); /* read before the next tile's are written */
}

template <int N> static __device__ __forceinline__ void store_down(const struct wprod &a, const struct tile &t,
                                                                   int out0, const float (&acc)[N / 2])
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        int r = i / 2 * 8 + q * 2 + i % 2, slot = t.first + r;
        if (r >= t.n) continue;
        int row = a.only[slot];
        float by = row < 0 ? 1 : a.share[slot], *y = row < 0 ? a.leaf + (int64_t)slot * a.n : a.y + (int64_t)row * a.n;
        if (out0 + g < a.n) y[out0 + g] = by * acc[i / 2 * 4 + i % 2];
        if (out0 + g + 8 < a.n) y[out0 + g + 8] = by * acc[i / 2 * 4 + i % 2 + 2];
    }
}

template <bool UP, int WGS, int N>
static __global__ void __launch_bounds__(WGS * 128 + 32, 1) wprod_kernel(const __grid_constant__ struct wprod a)
{
    using R = wring<WGS>;
    extern __shared__ char raw[];
    __shared__ uint64_t full[XST], empty[XST];
    char *ring = raw + (-cu_shared(raw) & 1023);
    const int warp = threadIdx.x >> 5, all = *a.n_tiles * a.blocks;
    bar_start<XST>({{full, 1}, {empty, 4 * WGS}});
    if (warp == 4 * WGS) {
        if (threadIdx.x % 32 == 0) copy_rows<WGS, N>(a, ring, full, empty);
        return;
    }
    wstream<UP, WGS> s = {a, (struct wslot *)(ring + R::W) + warp * WST, NULL, NULL, (int)blockIdx.x, 0, 0, 0};
    struct wplace p = {0, 0};
    s.seek();
#pragma unroll 1
    for (int i = 0; i < WST - 1; i++) s.fetch();
    for (int i = blockIdx.x; i < all; i += gridDim.x) {
        const struct tile t = a.tile[i / a.blocks];
        const int m = i % a.blocks;
        float acc[N / 2];
        sum<N, WGS>(acc, ring, s, full, empty, p, a.kp / 64);
        if (UP) store_up<N>(a, t, (m * 2 * WGS + warp / 4 * 2 + warp % 2) * 16, acc,
                            (float4 *)(ring + R::EX) + warp / 4 * 256);
        else store_down<N>(a, t, (m * 4 * WGS + warp) * 16, acc);
    }
    cu_copy_wait<0>();
}

template <bool UP, int WGS, int N> static void launch(struct ops *o, struct wprod &a)
{
    const int bytes = wring<WGS>::BYTES;
    a.blocks = cu_parts(UP ? a.hp : a.n, UP ? 32 * WGS : 64 * WGS);
    CU(cudaFuncSetAttribute(wprod_kernel<UP, WGS, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    wprod_kernel<UP, WGS, N><<<cu_impl(o)->sm_count, WGS * 128 + 32, bytes, cu_impl(o)->stream>>>(a);
    CU_LAUNCHED("experts of many rows");
}

template <int N> static void both(struct ops *o, const struct moe_wide *a)
{
    struct wprod p = {};
    p.tile = a->g.tile;
    p.n_tiles = a->g.n_tiles;
    p.data = a->up;
    p.scale = a->up_scale;
    p.x = a->zi;
    p.kp = a->zp;
    p.n = a->cols;
    p.b1 = a->b1;
    p.b2 = a->b2;
    p.h = a->hi;
    p.hp = a->hp;
    launch<true, 3, N>(o, p);
    p.data = a->down;
    p.scale = a->down_scale;
    p.x = a->hi;
    p.kp = a->hp;
    p.n = a->latent;
    p.only = a->only;
    p.share = a->share;
    p.leaf = a->leaf;
    p.y = a->y;
    launch<false, 2, N>(o, p);
}

void cu_moe_wide(struct ops *o, const struct moe_wide *a)
{
    image_kernel<<<a->t, 256, 0, cu_impl(o)->stream>>>(*a, a->latent % 2 == 0 && ((uintptr_t)a->z & 7) == 0);
    CU_LAUNCHED("images of rows");
    if (a->rows == 48) both<48>(o, a);
    else if (a->rows == 64) both<64>(o, a);
    else if (a->rows == 80) both<80>(o, a);
    else both<96>(o, a);
}
