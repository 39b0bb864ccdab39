/* Moving state between host memory and the device beside the computation (ops.h, "moving state").
 *
 * A move is one launch on a stream of its own: blocks, or warps where runs are short, take tiles of all runs in turn
 * and copy between device memory and page-locked host memory directly, so scattered pages and head slices move like one
 * block, and a few multiprocessors keep the bus busy. In turn: what is read at one time lies together, which the bus's
 * page tables like. Runs of host memory that is not page-locked go one by one through the driver, which waits for them.
 * The stream has the highest priority: its blocks take the first multiprocessors that the computation leaves. */
#include "cuda.h"

#include <math.h>
#include <time.h>

enum { FENCES = 256, MOVES = 16, PINNED = 8, THREADS = 512 };
/* of a block; blocks that keep the bus busy: reads of host memory wait */
enum { TILE = 16384, BLOCKS = 32, BLOCKS_IN = 128 };
enum { SHORT_TILE = 1024, SHORT_BLOCKS = 96 }; /* of a warp, where runs are shorter than SHORT_RUN on average */
enum { SHORT_RUN = 2048 };

struct cu_run { /* a run as the kernel sees it; tile: of its first tile among those of the move */
    char *dst;
    const char *src;
    int64_t bytes;
    int tile;
};

struct cu_mover {
    cudaStream_t stream;
    cudaEvent_t fence[FENCES], begin[MOVES], end[MOVES];
    uint64_t n_fences, n_moves, ended;
    struct cu_run *host, *dev; /* [MOVES][OPS_MOVE_RUNS] */
    struct { char *p; size_t bytes; int64_t to_device; } pinned[PINNED];
    cudaEvent_t ref[2];        /* clock: ref[now] was passed at ref_s; the other is to follow */
    int now, next;             /* next: the other one was recorded */
    double ref_s, asked_s;
};

static double clock_s()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- open, close, page-locked memory ---------------------------------------------------------------- */

static enum status mover_open(struct cuda_impl *im)
{
    if (im->mover) return ST_OK;
    struct cu_mover *m = im->mover = (struct cu_mover *)mem_alloc(1, sizeof *m, "moves");
    size_t bytes = (size_t)MOVES * OPS_MOVE_RUNS * sizeof *m->host;
    int low, high;
    if (!m) return ST_E_NOMEM;
    CU(cudaDeviceGetStreamPriorityRange(&low, &high));
    CU(cudaStreamCreateWithPriority(&m->stream, cudaStreamNonBlocking, high));
    for (int i = 0; i < FENCES; i++) CU(cudaEventCreate(&m->fence[i]));
    for (int i = 0; i < MOVES; i++) {
        CU(cudaEventCreate(&m->begin[i]));
        CU(cudaEventCreate(&m->end[i]));
    }
    for (int i = 0; i < 2; i++) CU(cudaEventCreate(&m->ref[i]));
    if (cudaMallocHost((void **)&m->host, bytes) != cudaSuccess || cudaMalloc((void **)&m->dev, bytes) != cudaSuccess)
        return ERR(ST_E_NOMEM, "moves: no %zu bytes of pinned and device memory", bytes);
    CU(cudaEventRecord(m->ref[0], m->stream));
    CU(cudaStreamSynchronize(m->stream));
    m->ref_s = m->asked_s = clock_s();
    return ST_OK;
}

void cu_mover_close(struct cuda_impl *im)
{
    struct cu_mover *m = im->mover;
    if (!m) return;
    if (m->stream) (void)cudaStreamSynchronize(m->stream);
    for (int i = 0; i < PINNED; i++)
        if (m->pinned[i].p) (void)cudaHostUnregister(m->pinned[i].p);
    for (int i = 0; i < FENCES; i++)
        if (m->fence[i]) (void)cudaEventDestroy(m->fence[i]);
    for (int i = 0; i < MOVES; i++) {
        if (m->begin[i]) (void)cudaEventDestroy(m->begin[i]);
        if (m->end[i]) (void)cudaEventDestroy(m->end[i]);
    }
    for (int i = 0; i < 2; i++)
        if (m->ref[i]) (void)cudaEventDestroy(m->ref[i]);
    if (m->host) (void)cudaFreeHost(m->host);
    if (m->dev) (void)cudaFree(m->dev);
    if (m->stream) (void)cudaStreamDestroy(m->stream);
    mem_free(m);
    im->mover = NULL;
}

enum status cuda_pin(struct ops *o, void *p, size_t bytes, const char **why_p)
{
    TRY(mover_open(cu_impl(o)));
    struct cu_mover *m = cu_impl(o)->mover;
    void *dev = NULL;
    int i = 0;
    if (bytes == 0) return ST_OK;
    while (i < PINNED && m->pinned[i].p) i++;
    if (i == PINNED) {
        *why_p = "too many pieces of pinned memory";
        return ST_E_DEVICE;
    }
    cudaError_t e = cudaHostRegister(p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (e == cudaSuccess && (e = cudaHostGetDevicePointer(&dev, p, 0)) != cudaSuccess) (void)cudaHostUnregister(p);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        *why_p = cudaGetErrorString(e);
        return ST_E_DEVICE;
    }
    m->pinned[i].p = (char *)p;
    m->pinned[i].bytes = bytes;
    m->pinned[i].to_device = (char *)dev - (char *)p;
    return ST_OK;
}

void cuda_unpin(struct ops *o, void *p)
{
    struct cu_mover *m = cu_impl(o)->mover;
    for (int i = 0; m && i < PINNED; i++) {
        if (!p || m->pinned[i].p != p) continue;
        CU(cudaStreamSynchronize(m->stream));
        CU(cudaHostUnregister(p));
        m->pinned[i].p = NULL;
    }
}

/* what kernels call this host memory; NULL: it is not page-locked */
static char *on_device(const struct cu_mover *m, void *p, int64_t bytes)
{
    char *at = (char *)p;
    for (int i = 0; i < PINNED; i++)
        if (m->pinned[i].p && at >= m->pinned[i].p && at + bytes <= m->pinned[i].p + m->pinned[i].bytes)
            return at + m->pinned[i].to_device;
    return NULL;
}

/* ---- the kernel --------------------------------------------------------------------------------------- */

/* one tile of n <= SIZE bytes by N threads, 16 bytes at a time where both sides allow it */
template <int N, int SIZE> static __device__ __forceinline__ void copy_tile(char *dst, const char *src, int n, int me)
{
    int at = 0;
    if ((((uintptr_t)dst | (uintptr_t)src) & 15) == 0) {
        uint4 v[SIZE / 16 / N];
        const int wide = n / 16;
#pragma unroll
        for (int j = 0; j < SIZE / 16 / N; j++)
            if (me + j * N < wide) v[j] = __ldcs((const uint4 *)src + me + j * N);
#pragma unroll
        for (int j = 0; j < SIZE / 16 / N; j++)
            if (me + j * N < wide) __stcs((uint4 *)dst + me + j * N, v[j]);
        at = wide * 16;
    } else if ((((uintptr_t)dst | (uintptr_t)src) & 3) == 0) {
        for (int i = me; i < n / 4; i += N) ((uint32_t *)dst)[i] = ((const uint32_t *)src)[i];
        at = n / 4 * 4;
    }
    for (int i = at + me; i < n; i += N) dst[i] = src[i];
}

/* N threads to a tile; group g of all does tiles g, g + groups, ... A run has a tile at least, so one that is so many
 * tiles further lies in a run no more runs further. */
template <int N, int SIZE>
static __global__ void __launch_bounds__(THREADS) move_kernel(const struct cu_run *run, int n, int n_tiles)
{
    const int groups = (int)gridDim.x * (THREADS / N), me = (int)threadIdx.x % N;
    int lo = 0, step = n;
    for (int tile = (int)blockIdx.x * (THREADS / N) + (int)threadIdx.x / N; tile < n_tiles; tile += groups) {
        int hi = lo + step < n - 1 ? lo + step : n - 1;
        while (lo < hi) { /* the last run that begins at or before the tile */
            int mid = (lo + hi + 1) / 2;
            if (run[mid].tile <= tile) lo = mid;
            else hi = mid - 1;
        }
        step = groups;
        struct cu_run r = run[lo];
        int64_t at = (int64_t)(tile - r.tile) * SIZE;
        copy_tile<N, SIZE>(r.dst + at, r.src + at, (int)(r.bytes - at < SIZE ? r.bytes - at : SIZE), me);
    }
}

/* ---- moves -------------------------------------------------------------------------------------------- */

/* time has a new reference twice a second: differences stay small, and floats exact */
static void keep_time(struct cuda_impl *im)
{
    struct cu_mover *m = im->mover;
    double t = clock_s();
    if (m->next || t - m->asked_s < 0.5) return;
    CU(cudaEventRecord(m->ref[1 - m->now], im->stream));
    m->next = 1;
    m->asked_s = t;
}

/* the event's time; NaN when the device has not come to it */
static double event_s(struct cu_mover *m, cudaEvent_t e)
{
    float ms;
    if (m->next && cudaEventQuery(m->ref[1 - m->now]) == cudaSuccess) {
        CU(cudaEventElapsedTime(&ms, m->ref[m->now], m->ref[1 - m->now]));
        m->ref_s += 1e-3 * (double)ms;
        m->now = 1 - m->now;
        m->next = 0;
    }
    cudaError_t q = cudaEventQuery(e);
    if (q == cudaErrorNotReady) return NAN;
    CU(q);
    CU(cudaEventElapsedTime(&ms, m->ref[m->now], e));
    return m->ref_s + 1e-3 * (double)ms;
}

uint64_t cuda_fence(struct ops *o)
{
    struct cu_mover *m = cu_impl(o)->mover;
    keep_time(cu_impl(o));
    CU(cudaEventRecord(m->fence[++m->n_fences % FENCES], cu_impl(o)->stream));
    return m->n_fences;
}

int cuda_moved(struct ops *o, uint64_t ticket)
{
    struct cu_mover *m = cu_impl(o)->mover;
    while (m->ended < ticket) {
        cudaError_t e = cudaEventQuery(m->end[(m->ended + 1) % MOVES]);
        if (e == cudaErrorNotReady) return 0;
        CU(e);
        m->ended++;
    }
    return 1;
}

/* runs that one launch copies, in the move's place of the ring, cut in tiles; the others at once. *tiles_p: of all */
static int list_runs(struct cu_mover *m, const struct ops_run *run, int n, int pack, int tile, struct cu_run *list,
                     int64_t *tiles_p)
{
    int64_t tiles = 0;
    int k = 0;
    for (int i = 0; i < n; i++) {
        char *host = on_device(m, run[i].host, run[i].bytes), *dev = (char *)run[i].bmem;
        if (!host) {
            CU(cudaMemcpyAsync(pack ? run[i].host : dev, pack ? dev : run[i].host, (size_t)run[i].bytes,
                               pack ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, m->stream));
            continue;
        }
        list[k++] = (struct cu_run){pack ? host : dev, pack ? dev : host, run[i].bytes, (int)tiles};
        tiles += (run[i].bytes + tile - 1) / tile;
    }
    *tiles_p = tiles;
    return k;
}

static uint64_t move(struct ops *o, const struct ops_run *run, int n, uint64_t after, int pack)
{
    struct cu_mover *m = cu_impl(o)->mover;
    uint64_t ticket = m->n_moves + 1;
    int64_t tiles, bytes = 0;
    if (ticket > MOVES && !cuda_moved(o, ticket - MOVES)) return 0;
    m->n_moves = ticket;
    size_t slot = (size_t)(ticket % MOVES) * OPS_MOVE_RUNS;
    if (after) CU(cudaStreamWaitEvent(m->stream, m->fence[after % FENCES], 0));
    CU(cudaEventRecord(m->begin[ticket % MOVES], m->stream));
    for (int i = 0; i < n; i++) bytes += run[i].bytes;
    int brief = bytes / n < SHORT_RUN, most = pack ? (int)BLOCKS : (int)BLOCKS_IN;
    int k = list_runs(m, run, n, pack, brief ? (int)SHORT_TILE : (int)TILE, m->host + slot, &tiles);
    if (k) {
        CU(cudaMemcpyAsync(m->dev + slot, m->host + slot, (size_t)k * sizeof *m->host, cudaMemcpyHostToDevice,
                           m->stream));
        const struct cu_run *list = m->dev + slot;
        const int few = cu_parts(tiles, THREADS / 32); /* blocks, a warp to a tile */
        if (brief)
            move_kernel<32, SHORT_TILE><<<few < SHORT_BLOCKS ? few : SHORT_BLOCKS, THREADS, 0, m->stream>>>(
                list, k, (int)tiles);
        else
            move_kernel<THREADS, TILE><<<tiles < most ? (int)tiles : most, THREADS, 0, m->stream>>>(
                list, k, (int)tiles);
        CU_LAUNCHED("move");
    }
    CU(cudaEventRecord(m->end[ticket % MOVES], m->stream));
    return ticket;
}

uint64_t cuda_pack(struct ops *o, const struct ops_run *run, int n, uint64_t after)
{
    return move(o, run, n, after, 1);
}

uint64_t cuda_unpack(struct ops *o, const struct ops_run *run, int n, uint64_t after)
{
    return move(o, run, n, after, 0);
}

void cuda_join(struct ops *o, uint64_t ticket)
{
    struct cu_mover *m = cu_impl(o)->mover;
    if (ticket > m->ended) CU(cudaStreamWaitEvent(cu_impl(o)->stream, m->end[ticket % MOVES], 0));
}

double cuda_fence_s(struct ops *o, uint64_t fence)
{
    struct cu_mover *m = cu_impl(o)->mover;
    return fence && fence + FENCES > m->n_fences ? event_s(m, m->fence[fence % FENCES]) : NAN;
}

void cuda_move_s(struct ops *o, uint64_t ticket, double s[2])
{
    struct cu_mover *m = cu_impl(o)->mover;
    s[0] = s[1] = NAN;
    if (!ticket || ticket + MOVES <= m->n_moves || !cuda_moved(o, ticket)) return;
    s[0] = event_s(m, m->begin[ticket % MOVES]);
    s[1] = event_s(m, m->end[ticket % MOVES]);
}
