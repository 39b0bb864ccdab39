/* Chunked KDA, first kernel: a block per (chunk, head), all in parallel. With pre_t the sum of g from a tile's start to
 * row t (tiles of 16), tot its sum over a tile, mid its value at the tile's middle:
 *   A[t,s] = <q_t, k_s>, N[t,s] = beta_t <k_t, k_s>
 *   with decay exp(G_t - G_s) = exp(pre_t - mid_I) f exp(mid_J - pre_s),
 *   f = exp(mid_I + tiles between + tot_J - mid_J) for an earlier tile J, 1 within a tile: no factor but the outer two
 *   (|.| <= 40 for g >= -5) exceeds 1. Products of BF16 pairs (value and rest), FP32 sums.
 *   (I + N) [W U] = beta [k exp(G), v]: tiles on the diagonal by substitution in FP32, the others by substitution of
 *   tiles in BF16 pairs, W and U transposed so that a solved tile is the next operand as it lies in registers. */
#include "kda_chunk.h"
#include "mma.h"

enum { C = KC_C, D = KC_D, TILE = 16, TILES = C / TILE, MID = 7, PAIRS = 10, LD = D + 8, THREADS = 256 };

struct within {
    __nv_bfloat16 q[C][LD], k[2][C][LD];   /* x exp(pre - mid); k: value and rest */
    float kr[C][LD];                       /* k exp(mid - pre) */
    /* tiles of -N, on the diagonal of (I + N)^-1: value and rest, in blocks of 8 x 8 */
    __nv_bfloat16 n[2][PAIRS][2][2][8][8];
    float diag[TILES][TILE][TILE + 4];     /* tiles of N on the diagonal */
    float f[PAIRS - TILES][D], tot[TILES][D], mid[TILES][D], start[TILES][D]; /* start: exp(mid + tiles before) */
    float beta[C];
};

/* tiles (I, J) of pair p: first those below the diagonal, then the diagonal */
static __device__ __forceinline__ int2 tiles_of(int p)
{
    if (p >= 6) return make_int2(p - 6, p - 6);
    return p == 0 ? make_int2(1, 0) : p < 3 ? make_int2(2, p - 1) : make_int2(3, p - 3);
}

static __device__ __forceinline__ int pair_of(int i, int j)
{
    return i == j ? 6 + i : i * (i - 1) / 2 + j;
}

static __device__ __forceinline__ void two_parts(uint32_t &hi, uint32_t &lo, float x, float y)
{
    hi = cu_pack(x, y);
    lo = cu_pack(x - __uint_as_float(hi << 16), y - __uint_as_float(hi & 0xffff0000u));
}

/* 2^x: the sums of g are kept in units of log 2 */
static __device__ __forceinline__ float exp_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <bool VEC> static __device__ __forceinline__ float2 pair_at(const float *p)
{
    return VEC ? *(const float2 *)p : make_float2(p[0], p[1]);
}

/* a thread: two columns of a tile. Operands with their decays; q and k as the second kernel takes them */
template <bool VEC>
static __device__ __forceinline__ void scale_tile(struct within &m, const struct kda_args &a, struct kda_chunk *to,
                                                  int64_t row0, int rows, int h)
{
    const int c = (threadIdx.x & 63) * 2, tile = threadIdx.x >> 6, r0 = tile * TILE;
    const int64_t w = (int64_t)a.heads * D;
    const float *g = a.g + (row0 + r0) * a.ldg + (int64_t)h * D + c;
    const float *x = a.qkv + (row0 + r0) * 3 * w + (int64_t)h * D + c;
    float2 pre[TILE], k[TILE], q[TILE];
#pragma unroll
    for (int i = 0; i < TILE; i++, g += a.ldg, x += 3 * w) {
        const bool in = r0 + i < rows;
        pre[i] = in ? pair_at<VEC>(g) : make_float2(0, 0);
        k[i] = in ? *(const float2 *)(x + w) : make_float2(0, 0);
        q[i] = in ? *(const float2 *)x : make_float2(0, 0);
    }
    const float unit = 1.4426950408889634f;
#pragma unroll
    for (int i = 0; i < TILE; i++)
        pre[i] = make_float2(fmaf(pre[i].x, unit, i ? pre[i - 1].x : 0), fmaf(pre[i].y, unit, i ? pre[i - 1].y : 0));
    const float2 mid = pre[MID], tot = pre[TILE - 1];
    *(float2 *)&m.tot[tile][c] = tot;
    *(float2 *)&m.mid[tile][c] = mid;
    __syncthreads();
    float2 before = make_float2(0, 0), after = before;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const float2 s = *(const float2 *)&m.tot[i][c];
        before.x += i < tile ? s.x : 0.0f;
        before.y += i < tile ? s.y : 0.0f;
        after.x += i > tile ? s.x : 0.0f;
        after.y += i > tile ? s.y : 0.0f;
    }
    const float2 e1 = make_float2(exp_2(mid.x + before.x), exp_2(mid.y + before.y));
    const float2 e2 = make_float2(exp_2(after.x + (tot.x - mid.x)), exp_2(after.y + (tot.y - mid.y)));
    *(float2 *)&m.start[tile][c] = e1;
    if (tile == TILES - 1) *(float2 *)&to->gamma[c] = make_float2(exp_2(before.x + tot.x), exp_2(before.y + tot.y));
#pragma unroll
    for (int i = 0; i < TILE; i++) {
        const int r = r0 + i;
        const float px = exp_2(pre[i].x - mid.x), py = exp_2(pre[i].y - mid.y);
        const float nx = exp_2(mid.x - pre[i].x), ny = exp_2(mid.y - pre[i].y);
        const float2 right = make_float2(k[i].x * nx, k[i].y * ny), left = make_float2(q[i].x * px, q[i].y * py);
        uint32_t hi, lo;
        two_parts(hi, lo, k[i].x * px, k[i].y * py);
        *(uint32_t *)&m.k[0][r][c] = hi;
        *(uint32_t *)&m.k[1][r][c] = lo;
        *(uint32_t *)&m.q[r][c] = cu_pack(left.x, left.y);
        *(float2 *)&m.kr[r][c] = right;
        *(uint32_t *)&to->q[r0 * D + kc_at(i, c)] = cu_pack(left.x * e1.x, left.y * e1.y);
        *(uint32_t *)&to->k[r0 * D + kc_at(i, c)] = cu_pack(right.x * e2.x, right.y * e2.y);
    }
}

/* 8 columns of a tile of A and N */
static __device__ __forceinline__ void pair_product(struct within &m, struct kda_chunk *to, int p, int half)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3;
    const int2 ij = tiles_of(p);
    const int i0 = ij.x * TILE, j0 = ij.y * TILE + half * 8;
    float qk[4] = {}, kk[4] = {};
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        uint32_t qa[4], ka[4], kl[4], bh[2], bl[2];
        const int r = i0 + (lane & 15), c = ks * 16 + (lane >> 4) * 8;
        ldmatrix4(qa, &m.q[r][c]);
        ldmatrix4(ka, &m.k[0][r][c]);
        ldmatrix4(kl, &m.k[1][r][c]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 x = *(const float2 *)&m.kr[j0 + g][ks * 16 + i * 8 + q4 * 2];
            if (p < PAIRS - TILES) {
                const float2 f = *(const float2 *)&m.f[p][ks * 16 + i * 8 + q4 * 2];
                x.x *= f.x;
                x.y *= f.y;
            }
            two_parts(bh[i], bl[i], x.x, x.y);
        }
        cu_mma(qk, qa[0], qa[1], qa[2], qa[3], bh[0], bh[1]);
        cu_mma(kk, ka[0], ka[1], ka[2], ka[3], bh[0], bh[1]);
        cu_mma(qk, qa[0], qa[1], qa[2], qa[3], bl[0], bl[1]);
        cu_mma(kk, ka[0], ka[1], ka[2], ka[3], bl[0], bl[1]);
        cu_mma(kk, kl[0], kl[1], kl[2], kl[3], bh[0], bh[1]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = g + i * 8, t = i0 + r, s = j0 + q4 * 2;
        const float beta = m.beta[t];
        *(uint32_t *)&to->a[t >> 3][s >> 3][g][q4 * 2] =
            cu_pack(s <= t ? qk[2 * i] : 0.0f, s + 1 <= t ? qk[2 * i + 1] : 0.0f);
        if (ij.x == ij.y)
            *(float2 *)&m.diag[ij.x][r][half * 8 + q4 * 2] =
                make_float2(s < t ? beta * kk[2 * i] : 0.0f, s + 1 < t ? beta * kk[2 * i + 1] : 0.0f);
        else {
            uint32_t hi, lo;
            two_parts(hi, lo, -beta * kk[2 * i], -beta * kk[2 * i + 1]);
            *(uint32_t *)&m.n[0][p][i][half][g][q4 * 2] = hi;
            *(uint32_t *)&m.n[1][p][i][half][g][q4 * 2] = lo;
        }
    }
}

/* column c of the inverse of a tile on the diagonal */
static __device__ __forceinline__ void invert(struct within &m, int tile, int c)
{
    float x[TILE];
#pragma unroll
    for (int t = 0; t < TILE; t++) {
        float part[2] = {t == c ? 1.0f : 0.0f, 0.0f};
#pragma unroll
        for (int s = 0; s < t; s += 4) {
            const float4 n = *(const float4 *)&m.diag[tile][t][s];
            part[0] -= n.x * x[s];
            if (s + 1 < t) part[1] -= n.y * x[s + 1];
            if (s + 2 < t) part[0] -= n.z * x[s + 2];
            if (s + 3 < t) part[1] -= n.w * x[s + 3];
        }
        x[t] = part[0] + part[1];
        const __nv_bfloat16 hi = __float2bfloat16_rn(x[t]);
        m.n[0][6 + tile][t >> 3][c >> 3][t & 7][c & 7] = hi;
        m.n[1][6 + tile][t >> 3][c >> 3][t & 7][c & 7] = __float2bfloat16_rn(x[t] - __bfloat162float(hi));
    }
}

/* a tile of W or U in registers: [rows 8 i ..][column g: rows 2 q4, 2 q4 + 1; column g + 8: the same] */
typedef float tile_regs[2][4];

/* acc += x . tile p transposed, x as value and rest */
static __device__ __forceinline__ void times_tile(tile_regs &acc, const uint32_t *hi, const uint32_t *lo,
                                                  const uint32_t *nh, const uint32_t *nl)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        cu_mma(acc[i], hi[0], hi[1], hi[2], hi[3], nh[2 * i], nh[2 * i + 1]);
        cu_mma(acc[i], hi[0], hi[1], hi[2], hi[3], nl[2 * i], nl[2 * i + 1]);
        cu_mma(acc[i], lo[0], lo[1], lo[2], lo[3], nh[2 * i], nh[2 * i + 1]);
    }
}

static __device__ __forceinline__ void as_operand(uint32_t *hi, uint32_t *lo, const tile_regs &x)
{
#pragma unroll
    for (int i = 0; i < 4; i++) two_parts(hi[i], lo[i], x[i >> 1][(i & 1) * 2], x[i >> 1][(i & 1) * 2 + 1]);
}

static __device__ __forceinline__ void fetch_tile(uint32_t *hi, uint32_t *lo, const struct within &m, int p)
{
    const int lane = threadIdx.x & 31;
    ldmatrix4(hi, &m.n[0][p][lane >> 4][lane >> 3 & 1][lane & 7][0]);
    ldmatrix4(lo, &m.n[1][p][lane >> 4][lane >> 3 & 1][lane & 7][0]);
}

/* the 16 columns of a warp: x[tile] on the right side of the equation becomes the solution, which goes to `to` */
static __device__ __forceinline__ void substitute(const struct within &m, tile_regs *x,
                                                  __nv_bfloat16 (*to)[C / 8][8][8])
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        uint32_t hi[4], lo[4], nh[4], nl[4];
        tile_regs y = {};
        as_operand(hi, lo, x[j]);
        fetch_tile(nh, nl, m, pair_of(j, j));
        times_tile(y, hi, lo, nh, nl);
        as_operand(hi, lo, y);
#pragma unroll
        for (int i = 0; i < 4; i++) *(uint32_t *)(&to[i & 1][2 * j + (i >> 1)][0][0] + lane * 2) = hi[i];
#pragma unroll
        for (int i = j + 1; i < TILES; i++) {
            fetch_tile(nh, nl, m, pair_of(i, j));
            times_tile(x[i], hi, lo, nh, nl);
        }
    }
}

template <bool VEC> static __global__ void __launch_bounds__(THREADS, 2) within_kernel(struct kda_args a)
{
    extern __shared__ __align__(16) char mem[];
    struct within &m = *(struct within *)mem;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q4 = lane & 3;
    const int h = blockIdx.x, col = warp * 16;
    const int64_t row0 = (int64_t)blockIdx.y * C, w = (int64_t)a.heads * D;
    const int rows = a.t - row0 < C ? (int)(a.t - row0) : (int)C;
    struct kda_chunk *to = a.chunks + (int64_t)blockIdx.y * a.heads + h;
    if (tid < C) m.beta[tid] = tid < rows ? a.beta[(row0 + tid) * a.ldb + h] : 0.0f;
    scale_tile<VEC>(m, a, to, row0, rows, h);
#pragma unroll
    for (int e = 0; e < (PAIRS - TILES) * D; e += THREADS) {
        const int p = (e + tid) / D, c = tid % D;
        const int2 ij = tiles_of(p);
        float sum = m.mid[ij.x][c] + (m.tot[ij.y][c] - m.mid[ij.y][c]);
#pragma unroll
        for (int l = 1; l < TILES - 1; l++) sum += ij.y < l && l < ij.x ? m.tot[l][c] : 0.0f;
        m.f[p][c] = exp_2(sum);
    }
    tile_regs x[TILES];
    const float *v = a.qkv + (row0 + q4 * 2) * 3 * w + 2 * w + (int64_t)h * D + col + g;
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 2; i++, v += 3 * w * 8)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *at = v + (e & 1 ? 3 * w : 0) + (e >> 1) * 8;
                x[j][i][e] = j * TILE + i * 8 + q4 * 2 + (e & 1) < rows ? *at : 0.0f;
            }
    __syncthreads();
    for (int i = warp; i < 2 * PAIRS; i += THREADS / 32) pair_product(m, to, i >> 1, i & 1);
    __syncthreads();
    if (tid < C) invert(m, tid / TILE, tid % TILE);
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) x[j][i >> 2][i & 3] *= m.beta[j * TILE + (i >> 2) * 8 + q4 * 2 + (i & 1)];
    __syncthreads();
    substitute(m, x, &to->u[2 * warp]);
#pragma unroll
    for (int j = 0; j < TILES; j++) {
        uint32_t hi[4], lo[4];
        const int r = j * TILE + (lane & 7) + (lane >> 4) * 8, c = col + (lane >> 3 & 1) * 8;
        ldmatrix4_trans(hi, &m.k[0][r][c]);
        ldmatrix4_trans(lo, &m.k[1][r][c]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 b = *(const float2 *)&m.beta[j * TILE + (i >> 1) * 8 + q4 * 2];
            const float s = m.start[j][col + g + (i & 1) * 8];
            x[j][i >> 1][(i & 1) * 2] = (__uint_as_float(hi[i] << 16) + __uint_as_float(lo[i] << 16)) * (s * b.x);
            x[j][i >> 1][(i & 1) * 2 + 1] =
                (__uint_as_float(hi[i] & 0xffff0000u) + __uint_as_float(lo[i] & 0xffff0000u)) * (s * b.y);
        }
    }
    substitute(m, x, &to->w[2 * warp]);
}

void kda_within(cudaStream_t st, const struct kda_args &a)
{
    void (*kernel)(struct kda_args) = a.vec & 1 ? within_kernel<true> : within_kernel<false>;
    CU(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct within)));
    kernel<<<dim3((unsigned)a.heads, (unsigned)cu_parts(a.t, C)), THREADS, sizeof(struct within), st>>>(a);
    CU_LAUNCHED("kda_chunk within");
}
