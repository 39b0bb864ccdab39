/* The KDA recurrence, row after row. */
#include "cuda.h"

struct recur {
    const float *qkv, *g, *beta;
    int64_t ldg, ldb, ldo;
    float *state;              /* of the one sequence; with seqs: theirs */
    float *out;
    int write, t, heads, d;
    const struct cu_seq *seqs; /* NULL: rows [0, t) */
};

/* the sequence of this block: moves the pointers to its rows */
static __device__ __forceinline__ void pick_seq(struct recur &a)
{
    if (!a.seqs) return;
    struct cu_seq s = cu_seq_at(a.seqs, blockIdx.z);
    a.qkv += (int64_t)s.row0 * 3 * a.heads * a.d;
    a.g += s.row0 * a.ldg;
    a.beta += s.row0 * a.ldb;
    if (a.out) a.out += s.row0 * a.ldo;
    a.state = (float *)s.state;
    a.t = s.n_rows;
}

enum { STEPS = 8, KG = 8 }; /* rows staged at a time, twice; lanes that share a column */

/* Sums over the KG lanes of a column group, C columns: on return lane kg holds the sum for e[kg % C] (kg < 4) or
 * o[kg % C] (kg >= 4). Each level adds the partner's part: the same tree for every C. */
template <int C> static __device__ __forceinline__ float fold_sums(const float *e, const float *o, int kg)
{
    float v[C];
#pragma unroll
    for (int c = 0; c < C; c++) {
        float keep = kg & 4 ? o[c] : e[c], send = kg & 4 ? e[c] : o[c];
        v[c] = keep + __shfl_xor_sync(0xffffffffu, send, 4);
    }
#pragma unroll
    for (int m = 2, n = C; m; m >>= 1) {
        if (n > 1) {
            n /= 2;
#pragma unroll
            for (int c = 0; c < n; c++) {
                float keep = kg & m ? v[c + n] : v[c], send = kg & m ? v[c] : v[c + n];
                v[c] = keep + __shfl_xor_sync(0xffffffffu, send, m);
            }
        } else v[0] += __shfl_xor_sync(0xffffffffu, v[0], m);
    }
    return v[0];
}

/* column that fold_sums leaves in lane kg */
template <int C> static __device__ __forceinline__ int fold_col(int kg)
{
    return C == 4 ? kg & 3 : C == 2 ? kg >> 1 & 1 : 0;
}

/* A block has COLS value columns of one head's state in registers for all its rows: a thread C neighbouring columns of
 * D / KG keys (every KG-th group of four). More columns per thread need fewer loads of exp(g), k, q from shared memory,
 * fewer columns make more blocks; the bits are the same. The vectors of STEPS rows wait in shared memory while the next
 * ones are on their way. e = S^T k and o = S^T q are taken together before the update: o + (k . q) u follows. */
template <int D, int C, int WARPS> static __global__ void __launch_bounds__(WARPS * 32, 2) recur_kernel(struct recur a)
{
    constexpr int COLS = WARPS * 32 / KG * C, R = D / KG / 4, THREADS = WARPS * 32, LOADS = STEPS * D * 3 / 4 / THREADS;
    static_assert(STEPS * D * 3 / 4 % THREADS == 0, "staging does not divide");
    __shared__ float4 vec[2][STEPS][3][D / 4];  /* exp(g), k, q */
    __shared__ float val[2][STEPS][COLS + 2];   /* v, beta, k . q */
    pick_seq(a);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, kg = lane % KG, h = blockIdx.x;
    const int col = (warp * (32 / KG) + lane / KG) * C, mine = col + fold_col<C>(kg);
    const int64_t w = (int64_t)a.heads * D;
    const float *q = a.qkv + (int64_t)h * D;
    float *state = a.state + (int64_t)h * D * D + blockIdx.y * COLS + col;
    float s[R][4][C];
    float4 fetch[LOADS];
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < C; c++) s[i][j][c] = state[((int64_t)(i * KG + kg) * 4 + j) * D + c];
    auto load = [&](int t0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int e = i * THREADS + threadIdx.x, r = e / (3 * D / 4), which = e / (D / 4) % 3, c = e % (D / 4) * 4;
            if (t0 + r >= a.t) continue;
            const float *p = which == 0 ? a.g + (t0 + r) * a.ldg + (int64_t)h * D : q + (t0 + r) * 3 * w + (which == 1 ? w : 0);
            fetch[i] = make_float4(p[c], p[c + 1], p[c + 2], p[c + 3]);
        }
        for (int e = threadIdx.x; e < STEPS * (COLS + 1); e += THREADS) {
            int r = e / (COLS + 1), c = e % (COLS + 1);
            if (t0 + r < a.t)
                val[t0 / STEPS & 1][r][c] = c < COLS ? q[(t0 + r) * 3 * w + 2 * w + blockIdx.y * COLS + c] : a.beta[(t0 + r) * a.ldb + h];
        }
    };
    auto keep = [&](int t0) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int e = i * THREADS + threadIdx.x, which = e / (D / 4) % 3;
            float4 v = fetch[i];
            if (which == 0) v = make_float4(expf(v.x), expf(v.y), expf(v.z), expf(v.w));
            vec[t0 / STEPS & 1][e / (3 * D / 4)][which][e % (D / 4)] = v;
        }
    };
    load(0);
    keep(0);
    for (int t0 = 0; t0 < a.t; t0 += STEPS) {
        const int b = t0 / STEPS & 1, n = a.t - t0 < STEPS ? a.t - t0 : STEPS;
        __syncthreads();
        for (int r = warp; r < n; r += WARPS) { /* k . q of a row by a warp */
            float4 kv = lane < D / 4 ? vec[b][r][1][lane] : make_float4(0, 0, 0, 0), qv = lane < D / 4 ? vec[b][r][2][lane] : kv;
            float kq = cu_warp_sum(kv.x * qv.x + kv.y * qv.y + (kv.z * qv.z + kv.w * qv.w));
            if (lane == 0) val[b][r][COLS + 1] = kq;
        }
        if (t0 + STEPS < a.t) load(t0 + STEPS);
        __syncthreads();
        for (int r = 0; r < n; r++) {
            float e[C] = {}, o[C] = {};
            float4 k[R];
#pragma unroll
            for (int i = 0; i < R; i++) {
                const float4 eg4 = vec[b][r][0][i * KG + kg], q4 = vec[b][r][2][i * KG + kg];
                k[i] = vec[b][r][1][i * KG + kg];
                const float eg[4] = {eg4.x, eg4.y, eg4.z, eg4.w}, qq[4] = {q4.x, q4.y, q4.z, q4.w}, kk[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++) {
                        s[i][j][c] = __fmul_rn(s[i][j][c], eg[j]);
                        e[c] = __fmaf_rn(s[i][j][c], kk[j], e[c]);
                        o[c] = __fmaf_rn(s[i][j][c], qq[j], o[c]);
                    }
            }
            const float v = fold_sums<C>(e, o, kg), mine_u = val[b][r][COLS] * (val[b][r][mine] - v);
            float u[C];
#pragma unroll
            for (int c = 0; c < C; c++) u[c] = __shfl_sync(0xffffffffu, mine_u, (lane & ~7) + (C == 4 ? c : C == 2 ? 2 * c : 0));
            if (a.out) {
                const float uo = __shfl_sync(0xffffffffu, mine_u, (lane & ~7) + (kg & 3));
                if (kg >= 4 && (C == 4 || (C == 2 ? kg % 2 == 0 : kg == 4)))
                    a.out[(int64_t)(t0 + r) * a.ldo + (int64_t)h * D + blockIdx.y * COLS + mine] = __fmaf_rn(val[b][r][COLS + 1], uo, v);
            }
#pragma unroll
            for (int i = 0; i < R; i++) {
                const float kk[4] = {k[i].x, k[i].y, k[i].z, k[i].w};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < C; c++) s[i][j][c] = __fmaf_rn(kk[j], u[c], s[i][j][c]);
            }
        }
        if (t0 + STEPS < a.t) keep(t0 + STEPS);
    }
    if (!a.write) return;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < C; c++) state[((int64_t)(i * KG + kg) * 4 + j) * D + c] = s[i][j][c];
}

/* any head size: 32 columns of the state in shared memory, one thread each */
static __global__ void __launch_bounds__(32) recur_any_kernel(struct recur a)
{
    extern __shared__ float mem[]; /* [d][32] */
    pick_seq(a);
    const int d = a.d, h = blockIdx.x, c = blockIdx.y * 32 + threadIdx.x;
    const int64_t w = (int64_t)a.heads * d;
    float *state = a.state + (int64_t)h * d * d + c, *s = mem + threadIdx.x;
    if (c >= d) return;
    for (int i = 0; i < d; i++) s[i * 32] = state[(int64_t)i * d];
    for (int t = 0; t < a.t; t++) {
        const float *q = a.qkv + t * 3 * w + (int64_t)h * d, *k = q + w, *g = a.g + t * a.ldg + (int64_t)h * d;
        float e = 0, o = 0;
        for (int i = 0; i < d; i++) {
            float x = s[i * 32] * expf(g[i]);
            e += x * k[i];
            s[i * 32] = x;
        }
        float u = a.beta[t * a.ldb + h] * (q[2 * w + c] - e);
        for (int i = 0; i < d; i++) {
            float x = s[i * 32] + k[i] * u;
            o += x * q[i];
            s[i * 32] = x;
        }
        if (a.out) a.out[t * a.ldo + (int64_t)h * d + c] = o;
    }
    for (int i = 0; a.write && i < d; i++) state[(int64_t)i * d] = s[i * 32];
}

static void recur_launch(struct ops *o, const struct recur &a, int n_seq)
{
    cudaStream_t st = cu_impl(o)->stream;
    unsigned h = (unsigned)a.heads, z = (unsigned)n_seq, heads = h * z, sms = (unsigned)cu_impl(o)->sm_count;
    if (a.d == 128 && 2 * heads > 3 * sms) recur_kernel<128, 4, 8><<<dim3(h, 1, z), 256, 0, st>>>(a);
    else if (a.d == 128 && 4 * heads > 3 * sms) recur_kernel<128, 2, 8><<<dim3(h, 2, z), 256, 0, st>>>(a);
    else if (a.d == 128) recur_kernel<128, 1, 8><<<dim3(h, 4, z), 256, 0, st>>>(a);
    else if (a.d == 64) recur_kernel<64, 1, 4><<<dim3(h, 4, z), 128, 0, st>>>(a);
    else if (a.d == 32) recur_kernel<32, 1, 2><<<dim3(h, 4, z), 64, 0, st>>>(a);
    else {
        size_t bytes = (size_t)a.d * 32 * sizeof(float);
        if (bytes > 48 * 1024)
            CU(cudaFuncSetAttribute(recur_any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        recur_any_kernel<<<dim3(h, (unsigned)cu_parts(a.d, 32), z), 32, bytes, st>>>(a);
    }
    CU_LAUNCHED("kda_recur");
}

void cuda_kda_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int write, int t, int heads, int d, float *out, int64_t ldo)
{
    if (t < 1) return;
    recur_launch(o, recur{qkv, g, beta, ldg, ldb, ldo, state, out, write, t, heads, d, NULL}, 1);
}

void cuda_kda_recur_seqs(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb, int write,
                         const struct seq_rows *seq, int n_seq, int heads, int d, float *out, int64_t ldo)
{
    int rows;
    const struct cu_seq *s = cu_seqs(o, seq, n_seq, 0, 0, &rows);
    if (rows < 1) return;
    recur_launch(o, recur{qkv, g, beta, ldg, ldb, ldo, NULL, out, write, 0, heads, d, s}, n_seq);
}
