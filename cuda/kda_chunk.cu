/* KDA prefill in chunks of 64 rows, act bf16, heads of 128: two kernels.
 *
 * intra_kernel, a block per (chunk, head), all in parallel: what a chunk needs that does not depend on the state. With pre_t
 * the sum of g from a tile's start to row t (tiles of 16), tot its sum over a tile and mid its value at the tile's middle:
 *   A[t,s] = <q_t, k_s>, N[t,s] = beta_t <k_t, k_s> with decay exp(G_t - G_s): for an earlier tile as exp(pre_t + tiles
 *   between) exp(tot - pre_s), all <= 1, within a tile as exp(pre_t - mid) exp(mid - pre_s); products of BF16 pairs
 *   (value and rest), FP32 sums.
 *   (I + N) [W U] = beta [k exp(G), v] by substitution, a column per thread, FP32.
 * inter_kernel, a block per (head, 32 value columns), chunk after chunk: D = U - W S, O = (q exp G) S + A D,
 * S = exp(G_64) S + (k exp(G_64 - G))^T D; S stays in registers in FP32, as an operand it is two BF16 parts.
 * Rows past the end count as zeros. Everything else is left to the recurrence (kda_recur.cu). */
#include "cuda.h"
#include "mma.h"

enum { C = 64, D = 128, TILE = 16, TILES = C / TILE, MID = 7, PAIRS = 10, COLS = 32, OP = D + 8, WIDE = 4 };

/* what intra hands to inter per (chunk, head) */
struct chunk {
    __nv_bfloat16 w[C][D], u[C][D], q[C][D], k[C][D], a[C][C];
    float gamma[D];
};

struct kda {
    const float *qkv, *g, *beta;
    int64_t ldg, ldb, ldo;
    float *state, *out;
    int t, heads;
    struct chunk *chunks; /* [chunk][head] */
};

/* ---- within a chunk ------------------------------------------------------------------------------------------ */

struct intra {
    float q[C][D + WIDE], k[C][D + WIDE];            /* x exp(pre) */
    __nv_bfloat16 ks[2][C][OP], kd[2][C][OP];        /* k exp(tot - pre), k exp(mid - pre): value and rest */
    float n[C][C + WIDE], beta[C];
    float tot[TILES][D], mid[TILES][D], f[PAIRS][D]; /* f: factor of the left side of a pair of tiles */
};

static __device__ __forceinline__ void two_parts(__nv_bfloat16 &hi, __nv_bfloat16 &lo, float x)
{
    hi = __float2bfloat16_rn(x);
    lo = __float2bfloat16_rn(x - __bfloat162float(hi));
}

/* column c of tiles 2 half and 2 half + 1: products with the decays of the tile */
static __device__ __forceinline__ void scale_tiles(struct intra &m, const struct kda &a, int64_t row0, int rows, int h, int half, int c)
{
    const int64_t w = (int64_t)a.heads * D;
    for (int tile = 2 * half; tile < 2 * half + 2; tile++) {
        float g[TILE], k[TILE], q[TILE], pre = 0;
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            int r = tile * TILE + i;
            const float *x = a.qkv + (row0 + r) * 3 * w + (int64_t)h * D + c;
            bool in = r < rows;
            q[i] = in ? x[0] : 0.0f;
            k[i] = in ? x[w] : 0.0f;
            pre += in ? a.g[(row0 + r) * a.ldg + (int64_t)h * D + c] : 0.0f;
            g[i] = pre;
        }
        m.tot[tile][c] = pre;
        m.mid[tile][c] = g[MID];
#pragma unroll
        for (int i = 0; i < TILE; i++) {
            int r = tile * TILE + i;
            float e = __expf(g[i]);
            m.q[r][c] = q[i] * e;
            m.k[r][c] = k[i] * e;
            two_parts(m.ks[0][r][c], m.ks[1][r][c], k[i] * __expf(pre - g[i]));
            two_parts(m.kd[0][r][c], m.kd[1][r][c], k[i] * __expf(g[MID] - g[i]));
        }
    }
}

/* tiles (I, J) of pair p, J <= I */
static __device__ __forceinline__ int2 tiles_of(int p)
{
    int i = p < 1 ? 0 : p < 3 ? 1 : p < 6 ? 2 : 3;
    return make_int2(i, p - i * (i + 1) / 2);
}

/* 16 x 16 of A (which 0) or N (1) */
static __device__ __forceinline__ void pair_product(struct intra &m, struct chunk *out, int p, int which)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3;
    const int2 ij = tiles_of(p);
    const float (*left)[D + WIDE] = which ? m.k : m.q;
    const __nv_bfloat16 (*right)[C][OP] = ij.x == ij.y ? m.kd : m.ks;
    float acc[2][4] = {};
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        uint32_t hi[4], lo[4], bh[4], bl[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = ij.x * TILE + g + (i & 1) * 8, c = ks * 16 + (i >> 1) * 8 + q4 * 2;
            float2 x = *(const float2 *)&left[r][c], f = *(const float2 *)&m.f[p][c];
            x.x *= f.x;
            x.y *= f.y;
            hi[i] = cu_pack(x.x, x.y);
            lo[i] = cu_pack(x.x - __uint_as_float(hi[i] << 16), x.y - __uint_as_float(hi[i] & 0xffff0000u));
        }
        int r = ij.y * TILE + (lane & 7) + (lane >> 4) * 8, c = ks * 16 + (lane >> 3 & 1) * 8;
        ldmatrix4(bh, &right[0][r][c]);
        ldmatrix4(bl, &right[1][r][c]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            cu_mma(acc[n], hi[0], hi[1], hi[2], hi[3], bh[2 * n], bh[2 * n + 1]);
            cu_mma(acc[n], hi[0], hi[1], hi[2], hi[3], bl[2 * n], bl[2 * n + 1]);
            cu_mma(acc[n], lo[0], lo[1], lo[2], lo[3], bh[2 * n], bh[2 * n + 1]);
        }
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int t = ij.x * TILE + g + (i >> 1) * 8, s = ij.y * TILE + n * 8 + q4 * 2 + (i & 1);
            if (which) m.n[t][s] = s < t ? m.beta[t] * acc[n][i] : 0.0f;
            else out->a[t][s] = __float2bfloat16_rn(s <= t ? acc[n][i] : 0.0f);
        }
}

/* x := solution of (I + N) x = x, in place, one column */
static __device__ __forceinline__ void substitute(const struct intra &m, float *x)
{
#pragma unroll
    for (int t = 1; t < C; t++) {
        float part[4] = {};
#pragma unroll
        for (int s = 0; s < t; s += 4) {
            float4 n = *(const float4 *)&m.n[t][s]; /* zeros from t on, up to the tile's end */
            part[0] += n.x * x[s];
            if (s + 1 < t) part[1] += n.y * x[s + 1];
            if (s + 2 < t) part[2] += n.z * x[s + 2];
            if (s + 3 < t) part[3] += n.w * x[s + 3];
        }
        x[t] -= (part[0] + part[1]) + (part[2] + part[3]);
    }
}

static __global__ void __launch_bounds__(256) intra_kernel(struct kda a)
{
    extern __shared__ __align__(16) char mem[];
    struct intra &m = *(struct intra *)mem;
    const int h = blockIdx.y, c = threadIdx.x & (D - 1), half = threadIdx.x / D, warp = threadIdx.x >> 5;
    const int64_t row0 = (int64_t)blockIdx.x * C, w = (int64_t)a.heads * D;
    const int rows = a.t - row0 < C ? (int)(a.t - row0) : (int)C;
    struct chunk *out = a.chunks + (int64_t)blockIdx.x * a.heads + h;
    if (threadIdx.x < C) m.beta[threadIdx.x] = (int)threadIdx.x < rows ? a.beta[(row0 + threadIdx.x) * a.ldb + h] : 0.0f;
    scale_tiles(m, a, row0, rows, h, half, c);
    __syncthreads();
    for (int p = half; p < PAIRS; p += 2) {
        int2 ij = tiles_of(p);
        float sum = ij.x == ij.y ? -m.mid[ij.x][c] : 0.0f;
        for (int l = ij.y + 1; l < ij.x; l++) sum += m.tot[l][c];
        m.f[p][c] = __expf(sum);
    }
    float before[TILES + 1] = {}, x[C];
#pragma unroll
    for (int i = 0; i < TILES; i++) before[i + 1] = before[i] + m.tot[i][c];
    if (half == 0) out->gamma[c] = __expf(before[TILES]);
#pragma unroll
    for (int i = 0; i < TILES; i++) { /* half 0: queries and W's right side, half 1: keys and U's */
        const float e = __expf(half ? before[TILES] - before[i + 1] : before[i]);
#pragma unroll
        for (int r = i * TILE; r < (i + 1) * TILE; r++) {
            if (half) {
                float k = (__bfloat162float(m.ks[0][r][c]) + __bfloat162float(m.ks[1][r][c])) * e;
                out->k[r][c] = __float2bfloat16_rn(k);
                x[r] = r < rows ? m.beta[r] * a.qkv[(row0 + r) * 3 * w + 2 * w + (int64_t)h * D + c] : 0.0f;
            } else {
                out->q[r][c] = __float2bfloat16_rn(m.q[r][c] * e);
                x[r] = m.beta[r] * m.k[r][c] * e;
            }
        }
    }
    __syncthreads();
    for (int i = warp; i < 2 * PAIRS; i += 8) pair_product(m, out, i / 2, i & 1);
    __syncthreads();
    substitute(m, x);
    __nv_bfloat16 (*to)[D] = half ? out->u : out->w;
#pragma unroll
    for (int r = 0; r < C; r++) to[r][c] = __float2bfloat16_rn(x[r]);
}

/* ---- from chunk to chunk -------------------------------------------------------------------------------------- */

struct stage {
    __nv_bfloat16 w[C][OP], q[C][OP], k[C][OP], a[C][C + 8], u[C][COLS + 8];
    float gamma[D];
};

struct inter {
    struct stage st[2];
    __nv_bfloat16 s[2][D][COLS + 8], d[C][COLS + 8]; /* state in two parts, D */
};

static __device__ __forceinline__ void fetch(struct stage &to, const struct chunk *from, int col0)
{
    for (int e = threadIdx.x; e < C * D / 8; e += 128) {
        int r = e / (D / 8), c = e % (D / 8) * 8;
        cu_copy16(&to.w[r][c], &from->w[r][c]);
        cu_copy16(&to.q[r][c], &from->q[r][c]);
        cu_copy16(&to.k[r][c], &from->k[r][c]);
    }
    for (int e = threadIdx.x; e < C * C / 8; e += 128) cu_copy16(&to.a[e / 8][e % 8 * 8], &from->a[e / 8][e % 8 * 8]);
    for (int e = threadIdx.x; e < C * COLS / 8; e += 128) cu_copy16(&to.u[e / 4][e % 4 * 8], &from->u[e / 4][col0 + e % 4 * 8]);
    if (threadIdx.x < D / 4) cu_copy16(&to.gamma[threadIdx.x * 4], &from->gamma[threadIdx.x * 4]);
    cu_copy_end();
}

/* acc[4][4] += x (16 rows from row r of a stage) . state */
static __device__ __forceinline__ void times_state(float (*acc)[4], const __nv_bfloat16 (*x)[OP], int r, const struct inter &m)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t xa[4], sb[4];
        ldmatrix4(xa, &x[r + (lane & 15)][k * 16 + (lane >> 4) * 8]);
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
            for (int n = 0; n < COLS / 8; n += 2) {
                ldmatrix4_trans(sb, &m.s[part][k * 16 + (lane & 15)][n * 8 + (lane >> 4) * 8]);
                cu_mma(acc[n], xa[0], xa[1], xa[2], xa[3], sb[0], sb[1]);
                cu_mma(acc[n + 1], xa[0], xa[1], xa[2], xa[3], sb[2], sb[3]);
            }
    }
}

/* rows of the state that this warp holds, in two parts, to shared memory */
static __device__ __forceinline__ void share_state(struct inter &m, float (*s)[COLS / 8][4])
{
    const int lane = threadIdx.x & 31, k0 = (threadIdx.x >> 5) * 32, g = lane >> 2, q4 = lane & 3;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int k = k0 + i * 16 + g + r * 8, c = n * 8 + q4 * 2;
                float x = s[i][n][2 * r], y = s[i][n][2 * r + 1];
                uint32_t hi = cu_pack(x, y), lo = cu_pack(x - __uint_as_float(hi << 16), y - __uint_as_float(hi & 0xffff0000u));
                *(uint32_t *)&m.s[0][k][c] = hi;
                *(uint32_t *)&m.s[1][k][c] = lo;
            }
}

static __global__ void __launch_bounds__(128) inter_kernel(struct kda a)
{
    extern __shared__ __align__(16) char mem[];
    struct inter &m = *(struct inter *)mem;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, q4 = lane & 3, h = blockIdx.x, col0 = blockIdx.y * COLS;
    const int chunks = (a.t + C - 1) / C, t0 = warp * 16, k0 = warp * 32;
    float *state = a.state + (int64_t)h * D * D + col0, s[2][COLS / 8][4];
    auto state_at = [&](int i, int n, int e) { return state + (int64_t)(k0 + i * 16 + g + (e >> 1) * 8) * D + n * 8 + q4 * 2 + (e & 1); };
    fetch(m.st[0], a.chunks + h, col0);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][n][e] = *state_at(i, n, e);
    share_state(m, s);
    for (int c = 0; c < chunks; c++) {
        struct stage &st = m.st[c & 1];
        float d[COLS / 8][4] = {}, o[COLS / 8][4] = {};
        cu_copy_wait<0>();
        __syncthreads(); /* stage and state are there, the other stage is free */
        if (c + 1 < chunks) fetch(m.st[(c + 1) & 1], a.chunks + (int64_t)(c + 1) * a.heads + h, col0);
        times_state(d, st.w, t0, m);
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int t = t0 + g + r * 8, v = n * 8 + q4 * 2;
                float2 u = __bfloat1622float2(*(const __nv_bfloat162 *)&st.u[t][v]);
                *(uint32_t *)&m.d[t][v] = cu_pack(u.x - d[n][2 * r], u.y - d[n][2 * r + 1]);
            }
        if (a.out) times_state(o, st.q, t0, m);
        __syncthreads(); /* D is there, the state has been read */
#pragma unroll
        for (int k = 0; a.out && k < TILES; k++) {
            uint32_t xa[4], db[4];
            if (k > warp) break; /* A is zero above the diagonal */
            ldmatrix4(xa, &st.a[t0 + (lane & 15)][k * 16 + (lane >> 4) * 8]);
#pragma unroll
            for (int n = 0; n < COLS / 8; n += 2) {
                ldmatrix4_trans(db, &m.d[k * 16 + (lane & 15)][n * 8 + (lane >> 4) * 8]);
                cu_mma(o[n], xa[0], xa[1], xa[2], xa[3], db[0], db[1]);
                cu_mma(o[n + 1], xa[0], xa[1], xa[2], xa[3], db[2], db[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float g0 = st.gamma[k0 + i * 16 + g], g1 = st.gamma[k0 + i * 16 + g + 8];
#pragma unroll
            for (int n = 0; n < COLS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[i][n][e] *= e < 2 ? g0 : g1;
        }
#pragma unroll
        for (int k = 0; k < C / 16; k++) { /* S += K^T D */
            uint32_t db[2][4];
#pragma unroll
            for (int n = 0; n < 2; n++) ldmatrix4_trans(db[n], &m.d[k * 16 + (lane & 15)][n * 16 + (lane >> 4) * 8]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t ka[4];
                ldmatrix4_trans(ka, &st.k[k * 16 + (lane & 7) + (lane >> 4) * 8][k0 + i * 16 + (lane >> 3 & 1) * 8]);
#pragma unroll
                for (int n = 0; n < COLS / 8; n++) cu_mma(s[i][n], ka[0], ka[1], ka[2], ka[3], db[n / 2][n % 2 * 2], db[n / 2][n % 2 * 2 + 1]);
            }
        }
        share_state(m, s);
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int64_t t = (int64_t)c * C + t0 + g + (e >> 1) * 8;
                if (a.out && t < a.t) a.out[t * a.ldo + (int64_t)h * D + col0 + n * 8 + q4 * 2 + (e & 1)] = o[n][e];
            }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < COLS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) *state_at(i, n, e) = s[i][n][e];
}

void cuda_kda_chunk(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int t, int heads, int d, int chunk, float *out, int64_t ldo)
{
    enum { BLOCK = 256 * C }; /* rows at a time: scratch of 18 MB per head */
    cudaStream_t st = cu_impl(o)->stream;
    (void)chunk;
    if (cu_impl(o)->act != ACT_BF16 || d != D || t < 2 * C || cu_impl(o)->cc == 86 || cu_impl(o)->cc >= 120) {
        cuda_kda_recur(o, qkv, g, ldg, beta, ldb, state, 1, t, heads, d, out, ldo);
        return;
    }
    CU(cudaFuncSetAttribute(intra_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct intra)));
    CU(cudaFuncSetAttribute(inter_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(struct inter)));
    for (int r = 0; r < t; r += BLOCK) {
        int n = t - r < BLOCK ? t - r : (int)BLOCK, chunks = cu_parts(n, C);
        struct kda a = {qkv + (int64_t)r * 3 * heads * D, g + r * ldg, beta + r * ldb, ldg, ldb, ldo, state, out ? out + r * ldo : NULL,
                        n, heads, (struct chunk *)cu_scratch(o, (size_t)chunks * heads * sizeof(struct chunk))};
        intra_kernel<<<dim3((unsigned)chunks, (unsigned)heads), 256, sizeof(struct intra), st>>>(a);
        CU_LAUNCHED("kda_chunk within");
        inter_kernel<<<dim3((unsigned)heads, D / COLS), 128, sizeof(struct inter), st>>>(a);
        CU_LAUNCHED("kda_chunk between");
    }
}
