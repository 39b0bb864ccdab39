/* Keys and values of all positions of a sequence from its latent rows, in BF16 on Hopper's tensor cores.
 *
 * A persistent block walks over tiles of 128 positions x 256 outputs; one thread keeps STAGES blocks of 64 inputs on
 * their way, two warpgroups multiply 64 positions each and hand their result to the copy engine, which stores it while
 * the next tile is at work. An output is one sum over the inputs in order: it does not depend on the other positions.
 */
#include "mla.h"
#include "wgmma.h"

enum { ROWS = 128, COLS = 256, STAGES = 3, THREADS = 384, HALF = 64 * 128 /* bytes of a block of 64 rows */ };

struct expand_tiles {
    char a[STAGES][2 * HALF], b[STAGES][4 * HALF], out[2][4][HALF];
    uint64_t full[STAGES], empty[STAGES];
};

struct expand_job {
    struct cu_map a, b, c;
    int tiles_m, tiles, blocks; /* blocks: of 64 inputs */
};

static __device__ __forceinline__ void produce(struct expand_tiles &f, const struct expand_job &j)
{
    int n = 0;
    for (int tile = blockIdx.x; tile < j.tiles; tile += gridDim.x)
        for (int b = 0; b < j.blocks; b++, n++) {
            int st = n % STAGES;
            bar_wait(&f.empty[st], n / STAGES % 2 ^ 1);
            bar_expect(&f.full[st], 6 * HALF);
            tma_load(f.a[st], &j.a, &f.full[st], b * 64, tile % j.tiles_m * ROWS);
            tma_load(f.b[st], &j.b, &f.full[st], b * 64, tile / j.tiles_m * COLS);
        }
}

static __device__ __forceinline__ void consume(struct expand_tiles &f, const struct expand_job &j, int wg)
{
    const int tid = threadIdx.x & 127, lane = tid & 31, warp = tid >> 5, g = lane >> 2, q4 = lane & 3;
    int n = 0;
    for (int tile = blockIdx.x; tile < j.tiles; tile += gridDim.x) {
        float d[COLS / 2];
        for (int b = 0; b < j.blocks; b++, n++) {
            int st = n % STAGES;
            bar_wait(&f.full[st], n / STAGES % 2);
            uint64_t oa = wg_operand(f.a[st] + wg * HALF, ROWS), ob = wg_operand(f.b[st], COLS);
            wg_hold(d);
            wg_begin();
#pragma unroll
            for (int k = 0; k < 4; k++) wg_ss<1>(d, oa + k * 2, ob + k * 2, b + k);
            wg_end();
            wg_wait<1>();
            if (b && lane == 0) bar_arrive(&f.empty[(n - 1) % STAGES]);
        }
        wg_wait<0>();
        wg_hold(d);
        if (lane == 0) bar_arrive(&f.empty[(n - 1) % STAGES]);
        if (tid == 0) tma_store_read(); /* the last tile has left */
        wg_sync(1 + wg, 128);
#pragma unroll
        for (int c = 0; c < COLS / 8; c++) {
            char *to = f.out[wg][c / 8];
            *(__nv_bfloat162 *)(to + wg_at(warp * 16 + g, c % 8) + q4 * 4) =
                __floats2bfloat162_rn(d[c * 4], d[c * 4 + 1]);
            *(__nv_bfloat162 *)(to + wg_at(warp * 16 + g + 8, c % 8) + q4 * 4) =
                __floats2bfloat162_rn(d[c * 4 + 2], d[c * 4 + 3]);
        }
        wg_publish();
        wg_sync(1 + wg, 128);
        if (tid == 0) {
            for (int c = 0; c < 4; c++)
                tma_store(&j.c, f.out[wg][c], tile / j.tiles_m * COLS + c * 64, tile % j.tiles_m * ROWS + wg * 64);
            tma_store_end();
        }
    }
    if (tid == 0) tma_store_read();
}

static __global__ void __launch_bounds__(THREADS, 1) expand_kernel(const __grid_constant__ struct expand_job j)
{
    extern __shared__ __align__(1024) char mem[];
    struct expand_tiles &f = *(struct expand_tiles *)mem;
    bar_start<STAGES>({{f.full, 1}, {f.empty, 8}});
    if (threadIdx.x < 128) {
        wg_less_registers<40>();
        if (threadIdx.x == 0) produce(f, j);
    } else {
        wg_more_registers<232>();
        consume(f, j, threadIdx.x / 128 - 1);
    }
}

/* rows [0, end) of a sequence side by side, 16 bytes a thread */
static __global__ void gather_kernel(const char *base, int64_t stride, int page, const struct cu_seq *seqs, int width,
                                     uint4 *out)
{
    struct cu_seq s = cu_seq_at(seqs, 0);
    const uint4 *r = (const uint4 *)cu_row(base, stride, page, &s, blockIdx.x, 0, width, 2);
    for (int i = threadIdx.x; i < width / 8; i += blockDim.x) out[(int64_t)blockIdx.x * (width / 8) + i] = r[i];
}

void mla_expand(struct ops *o, const struct paged *cache, const struct cu_seq *s, int end, int rank, int rope,
                const struct mat *wkv, __nv_bfloat16 *latent, __nv_bfloat16 *kv)
{
    struct cuda_impl *im = cu_impl(o);
    const int width = rank + rope, kp = (int)cu_up((size_t)rank, CU_TILE_K);
    const int64_t dim_a[] = {rank, end}, dim_b[] = {rank, wkv->n}, dim_c[] = {wkv->n, end};
    const int64_t ld_a = width * 2, ld_b = kp * 2, ld_c = (int64_t)wkv->n * 2;
    const int box_a[] = {64, ROWS}, box_b[] = {64, COLS}, box_c[] = {64, 64};
    struct expand_job j;
    gather_kernel<<<end, 96, 0, im->stream>>>((const char *)cache->base, cache->stride, cache->page, s, width,
                                              (uint4 *)latent);
    CU_LAUNCHED("gather latent rows");
    j.a = cu_map_new(latent, 2, dim_a, &ld_a, box_a);
    j.b = cu_map_new(wkv->data.p, 2, dim_b, &ld_b, box_b);
    j.c = cu_map_new(kv, 2, dim_c, &ld_c, box_c);
    j.tiles_m = cu_parts(end, ROWS);
    j.tiles = j.tiles_m * cu_parts(wkv->n, COLS);
    j.blocks = kp / 64;
    CU(cudaFuncSetAttribute(expand_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            (int)sizeof(struct expand_tiles)));
    const int blocks = im->sm_count < j.tiles ? im->sm_count : j.tiles;
    expand_kernel<<<blocks, THREADS, sizeof(struct expand_tiles), im->stream>>>(j);
    CU_LAUNCHED("expand latent rows");
}
