/* Chunked KDA, second kernel: a block per (head, 32 value columns), chunk after chunk:
 *   D = U - W S,  O = (q exp G) S + A D,  S = exp(G_64) S + (k exp(G_64 - G))^T D.
 * Warps by role, two of each for 16 columns each: a state warp holds S and D transposed in FP32, so that as operands
 * they lie in its registers already, and hands them (BF16, two slots) to its output warp; a fifth warp fetches chunks
 * ahead. */
#include "kda_chunk.h"
#include "mma.h"
#include "pipe.h"

enum { C = KC_C, D = KC_D, TILES = C / 16, KEYS = D / 16, HALVES = KC_COLS / 16, SLOTS = 2, WARPS = 2 * HALVES + 1 };

constexpr int COMMON = (int)offsetof(struct kda_chunk, u), OWN = (int)sizeof(kda_chunk::u) / (D / (int)KC_COLS);

struct shared_state { /* of 16 columns: operand registers of S and D */
    uint4 s[KEYS][32], d[TILES][32];
};

template <int STAGES> struct between {
    struct {
        __align__(128) char common[COMMON];
        __nv_bfloat16 u[KC_COLS / 8][C / 8][8][8];
    } st[STAGES];
    struct shared_state share[HALVES][SLOTS];
    uint64_t full[STAGES], empty[STAGES], ready[HALVES][SLOTS], taken[HALVES][SLOTS];
};

/* position in a ring */
struct turn {
    int at, parity;
};

static __device__ __forceinline__ void turn_next(struct turn &t, int n)
{
    if (++t.at == n) {
        t.at = 0;
        t.parity ^= 1;
    }
}

static __device__ __forceinline__ void arrive_warp(uint64_t *bar)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0) pipe_arrive(bar);
}

/* acc = S^T W^T over the 64 rows */
static __device__ __forceinline__ void project(float (*acc)[4], const float (*s)[4], const struct kda_chunk &ck)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < KEYS; k++) {
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = cu_pack(s[2 * k + (i >> 1)][(i & 1) * 2], s[2 * k + (i >> 1)][(i & 1) * 2 + 1]);
#pragma unroll
        for (int n = 0; n < C / 8; n += 2) {
            uint32_t b[4];
            ldmatrix4_trans(b, &ck.w[2 * k + (lane >> 3 & 1)][n + (lane >> 4)][lane & 7][0]);
            cu_mma(acc[n], x[0], x[1], x[2], x[3], b[0], b[1]);
            cu_mma(acc[n + 1], x[0], x[1], x[2], x[3], b[2], b[3]);
        }
    }
}

/* s = exp(G_64) s + D^T k */
static __device__ __forceinline__ void advance(float (*s)[4], const uint32_t (*d)[4], const struct kda_chunk &ck)
{
    const int lane = threadIdx.x & 31, q4 = lane & 3;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        const float2 g = *(const float2 *)&ck.gamma[n * 8 + q4 * 2];
        s[n][0] *= g.x;
        s[n][1] *= g.y;
        s[n][2] *= g.x;
        s[n][3] *= g.y;
    }
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4];
            ldmatrix4_trans(b, &ck.k[kc_at(j * 16 + (lane & 15), (n + (lane >> 4)) * 8)]);
            cu_mma(s[n], d[j][0], d[j][1], d[j][2], d[j][3], b[0], b[1]);
            cu_mma(s[n + 1], d[j][0], d[j][1], d[j][2], d[j][3], b[2], b[3]);
        }
}

template <int STAGES>
static __device__ __forceinline__ void state_warp(struct between<STAGES> &m, const struct kda_args &a, int half)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3, chunks = (a.t + C - 1) / C;
    float *state = a.state + (int64_t)blockIdx.x * D * D + blockIdx.y * KC_COLS + half * 16 + g, s[D / 8][4];
    struct turn stage = {0, 0}, slot = {0, 0};
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = state[(n * 8 + q4 * 2 + (e & 1)) * D + (e >> 1) * 8];
    for (int c = 0; c < chunks; c++) {
        const struct kda_chunk &ck = *(const struct kda_chunk *)m.st[stage.at].common;
        struct shared_state &share = m.share[half][slot.at];
        float acc[C / 8][4] = {};
        uint32_t d[TILES][4];
        if (a.out) pipe_wait(&m.taken[half][slot.at], slot.parity ^ 1);
        if (a.out)
#pragma unroll
            for (int k = 0; k < KEYS; k++)
                share.s[k][lane] = make_uint4(cu_pack(s[2 * k][0], s[2 * k][1]), cu_pack(s[2 * k][2], s[2 * k][3]),
                                              cu_pack(s[2 * k + 1][0], s[2 * k + 1][1]),
                                              cu_pack(s[2 * k + 1][2], s[2 * k + 1][3]));
        pipe_wait(&m.full[stage.at], stage.parity);
        project(acc, s, ck);
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int n = 2 * j + (i >> 1), e = (i & 1) * 2;
                const uint32_t u = *(const uint32_t *)(&m.st[stage.at].u[half * 2 + (i & 1)][n][0][0] + lane * 2);
                d[j][i] = cu_pack(__uint_as_float(u << 16) - acc[n][e],
                                  __uint_as_float(u & 0xffff0000u) - acc[n][e + 1]);
            }
        if (a.out)
#pragma unroll
            for (int j = 0; j < TILES; j++) share.d[j][lane] = make_uint4(d[j][0], d[j][1], d[j][2], d[j][3]);
        arrive_warp(&m.ready[half][slot.at]);
        advance(s, d, ck);
        arrive_warp(&m.empty[stage.at]);
        turn_next(stage, STAGES);
        turn_next(slot, SLOTS);
    }
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) state[(n * 8 + q4 * 2 + (e & 1)) * D + (e >> 1) * 8] = s[n][e];
}

template <int STAGES>
static __device__ __forceinline__ void output_warp(struct between<STAGES> &m, const struct kda_args &a, int half)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, q4 = lane & 3, chunks = (a.t + C - 1) / C;
    float *out = a.out + (int64_t)blockIdx.x * D + blockIdx.y * KC_COLS + half * 16 + q4 * 2;
    struct turn stage = {0, 0}, slot = {0, 0};
    for (int c = 0; c < chunks; c++) {
        const struct kda_chunk &ck = *(const struct kda_chunk *)m.st[stage.at].common;
        const struct shared_state &share = m.share[half][slot.at];
        float o[TILES][2][4] = {};
        pipe_wait(&m.full[stage.at], stage.parity);
        pipe_wait(&m.ready[half][slot.at], slot.parity);
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const uint4 s = share.s[k][lane];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t q[4];
                ldmatrix4(q, &ck.q[kc_at(i * 16 + (lane & 15), (2 * k + (lane >> 4)) * 8)]);
                cu_mma(o[i][0], q[0], q[1], q[2], q[3], s.x, s.z);
                cu_mma(o[i][1], q[0], q[1], q[2], q[3], s.y, s.w);
            }
        }
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            const uint4 d = share.d[j][lane];
#pragma unroll
            for (int i = j; i < TILES; i++) {
                uint32_t p[4];
                ldmatrix4(p, &ck.a[2 * i + (lane >> 3 & 1)][2 * j + (lane >> 4)][lane & 7][0]);
                cu_mma(o[i][0], p[0], p[1], p[2], p[3], d.x, d.z);
                cu_mma(o[i][1], p[0], p[1], p[2], p[3], d.y, d.w);
            }
        }
        arrive_warp(&m.taken[half][slot.at]);
        arrive_warp(&m.empty[stage.at]);
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) { /* e: rows g or g + 8, columns 0 or 8 */
                const int64_t t = (int64_t)c * C + i * 16 + g + (e & 1) * 8;
                float *to = out + t * a.ldo + (e >> 1) * 8;
                const float2 y = make_float2(o[i][e >> 1][(e & 1) * 2], o[i][e >> 1][(e & 1) * 2 + 1]);
                if (t >= a.t) continue;
                if (a.vec & 2) *(float2 *)to = y;
                else to[0] = y.x, to[1] = y.y;
            }
        turn_next(stage, STAGES);
        turn_next(slot, SLOTS);
    }
}

template <int STAGES>
static __device__ __forceinline__ void fetch_warp(struct between<STAGES> &m, const struct kda_args &a)
{
    const struct kda_chunk *from = a.chunks + blockIdx.x;
    const int chunks = (a.t + C - 1) / C;
    struct turn stage = {0, 0};
    for (int c = 0; c < chunks; c++, from += a.heads) {
        pipe_wait(&m.empty[stage.at], stage.parity ^ 1);
        pipe_fetch_begin(&m.full[stage.at], COMMON + OWN);
        pipe_fetch(m.st[stage.at].common, from, COMMON, &m.full[stage.at]);
        pipe_fetch(m.st[stage.at].u, from->u[blockIdx.y * (KC_COLS / 8)], OWN, &m.full[stage.at]);
        pipe_fetch_end(&m.full[stage.at]);
        turn_next(stage, STAGES);
    }
}

template <int STAGES> static __global__ void __launch_bounds__(WARPS * 32, 1) between_kernel(struct kda_args a)
{
    extern __shared__ __align__(128) char mem[];
    struct between<STAGES> &m = *(struct between<STAGES> *)mem;
    const int warp = threadIdx.x >> 5, users = a.out ? 2 * HALVES : (int)HALVES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            pipe_init(&m.full[i], PIPE_FETCHERS);
            pipe_init(&m.empty[i], users);
        }
        for (int i = 0; i < HALVES; i++)
            for (int j = 0; j < SLOTS; j++) {
                pipe_init(&m.ready[i][j], 1);
                pipe_init(&m.taken[i][j], 1);
            }
        pipe_init_end();
    }
    __syncthreads();
    if (warp == WARPS - 1) fetch_warp(m, a);
    else if (warp < HALVES) state_warp(m, a, warp);
    else if (a.out) output_warp(m, a, warp - HALVES);
}

template <int STAGES> static void launch(cudaStream_t st, const struct kda_args &a)
{
    const int bytes = (int)sizeof(struct between<STAGES>);
    CU(cudaFuncSetAttribute(between_kernel<STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    between_kernel<STAGES><<<dim3((unsigned)a.heads, KC_D / KC_COLS), WARPS * 32, (size_t)bytes, st>>>(a);
    CU_LAUNCHED("kda_chunk between");
}

void kda_between(cudaStream_t st, const struct kda_args &a, int stages)
{
    if (stages == 3) launch<3>(st, a);
    else launch<2>(st, a);
}
