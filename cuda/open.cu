/* The CUDA backend: device, memory, the staging ring and the table. */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cu_die(cudaError_t e, const char *what, const char *file, int line)
{
    log_error("%s:%d: %s: %s (%s)", file, line, what, cudaGetErrorName(e), cudaGetErrorString(e));
    abort();
}

/* ---- memory ------------------------------------------------------------------------------------ */

static enum status device_alloc(struct cuda_impl *im, struct buf *b, size_t bytes, const char *what)
{
    memset(b, 0, sizeof *b);
    if (bytes == 0) return ST_OK;
    cudaError_t e = cudaMalloc(&b->p, bytes);
    if (e != cudaSuccess) {
        size_t room = 0, all = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&room, &all);
        b->p = NULL;
        return ERR(ST_E_NOMEM,
                   "%s: no %zu bytes on CUDA device %d (%zu of %zu free): %s; use more GPUs or smaller sizes", what,
                   bytes, im->device, room, all, cudaGetErrorString(e));
    }
    b->bytes = bytes;
    b->place = PLACE_DEVICE;
    b->own = 1;
    return ST_OK;
}

enum status cuda_mem_new(struct ops *o, struct buf *b, size_t bytes, const char *what)
{
    struct cuda_impl *im = cu_impl(o);
    TRY(device_alloc(im, b, bytes, what));
    if (b->p) CU(cudaMemsetAsync(b->p, 0, bytes, im->stream));
    return ST_OK;
}

void cuda_mem_free(struct ops *o, struct buf *b)
{
    if (!b) return;
    if (b->p && b->own) {
        CU(cudaStreamSynchronize(cu_impl(o)->stream));
        CU(cudaFree(b->p));
    }
    memset(b, 0, sizeof *b);
}

static void *reserve(struct ops *o, struct buf *b, size_t bytes)
{
    if (bytes > b->bytes) {
        cuda_mem_free(o, b);
        if (device_alloc(cu_impl(o), b, bytes + bytes / 4, "scratch of an operation") != ST_OK) abort();
    }
    return b->p;
}

void *cu_scratch(struct ops *o, size_t bytes)
{
    return reserve(o, &cu_impl(o)->scratch, bytes);
}

void *cu_scratch_more(struct ops *o, size_t bytes)
{
    return reserve(o, &cu_impl(o)->more, bytes);
}

/* ---- staging ----------------------------------------------------------------------------------- */

static enum status ring_open(struct cuda_ring *r)
{
    size_t bytes = (size_t)CU_SEGMENTS * CU_SEGMENT_BYTES;
    if (cudaMallocHost((void **)&r->host, bytes) != cudaSuccess || cudaMalloc((void **)&r->dev, bytes) != cudaSuccess)
        return ERR(ST_E_NOMEM, "staging ring: no %zu bytes of pinned and device memory", bytes);
    for (int i = 0; i < CU_SEGMENTS; i++) CU(cudaEventCreateWithFlags(&r->done[i], cudaEventDisableTiming));
    return ST_OK;
}

static void ring_close(struct cuda_ring *r)
{
    for (int i = 0; i < CU_SEGMENTS; i++)
        if (r->done[i]) (void)cudaEventDestroy(r->done[i]);
    if (r->host) (void)cudaFreeHost(r->host);
    if (r->dev) (void)cudaFree(r->dev);
    memset(r, 0, sizeof *r);
}

/* offset of room for bytes; waits when the ring comes round to kernels still running */
static size_t ring_take(struct ops *o, size_t bytes)
{
    struct cuda_impl *im = cu_impl(o);
    struct cuda_ring *r = &im->ring;
    bytes = cu_up(bytes, 256);
    if (bytes > CU_SEGMENT_BYTES) {
        log_error(
            "a control array of %zu bytes is above the %d that can be staged; use shorter contexts or fewer sequences",
            bytes, (int)CU_SEGMENT_BYTES);
        abort();
    }
    if (r->at + bytes > CU_SEGMENT_BYTES) {
        CU(cudaEventRecord(r->done[r->seg], im->stream));
        r->used[r->seg] = 1;
        r->seg = (r->seg + 1) % CU_SEGMENTS;
        r->at = 0;
        r->n_recent = 0;
        if (r->used[r->seg]) cu_wait(o, r->done[r->seg]);
    }
    size_t at = (size_t)r->seg * CU_SEGMENT_BYTES + r->at;
    r->at += bytes;
    return at;
}

void *cu_stage(struct ops *o, const void *src, size_t bytes)
{
    struct cuda_impl *im = cu_impl(o);
    struct cuda_ring *r = &im->ring;
    if (bytes == 0) return r->dev;
    if (void *held = cu_graph_stage(o, src, bytes)) return held;
    for (int i = 0; i < r->n_recent; i++)
        if (r->recent[i].bytes == bytes && memcmp(r->recent[i].host, src, bytes) == 0) return r->recent[i].dev;
    size_t at = ring_take(o, bytes);
    memcpy(r->host + at, src, bytes);
    CU(cudaMemcpyAsync(r->dev + at, r->host + at, bytes, cudaMemcpyHostToDevice, im->stream));
    if (r->n_recent == CU_RECENT) memmove(r->recent, r->recent + 1, (size_t)(--r->n_recent) * sizeof r->recent[0]);
    r->recent[r->n_recent++] = (struct cuda_recent){r->host + at, r->dev + at, bytes};
    return r->dev + at;
}

const struct cu_seq *cu_seqs(struct ops *o, const struct seq_rows *seq, int n_seq, int page, int writes,
                             int *max_rows_p)
{
    static thread_local struct cu_seq *host; /* grows, then stays */
    static thread_local size_t room;
    size_t head = cu_up((size_t)n_seq * sizeof(struct cu_seq), 16), bytes = head;
    int most = 0;
    for (int i = 0; i < n_seq; i++) {
        int from = writes ? seq[i].pos0 : 0;
        int n = page && seq[i].n_rows ? (seq[i].pos0 + seq[i].n_rows - 1) / page - from / page + 1 : 0;
        bytes += (size_t)n * sizeof(int32_t);
        if (seq[i].n_rows > most) most = seq[i].n_rows;
    }
    if (bytes > room) {
        free(host);
        host = (struct cu_seq *)malloc(room = 2 * bytes);
        if (!host) abort();
    }
    int32_t *id = (int32_t *)((char *)host + head);
    memset(host, 0, head);
    for (int i = 0; i < n_seq; i++) {
        int from = writes ? seq[i].pos0 : 0, page0 = page ? from / page : 0;
        int n = page && seq[i].n_rows ? (seq[i].pos0 + seq[i].n_rows - 1) / page - page0 + 1 : 0;
        host[i].row0 = seq[i].row0;
        host[i].n_rows = seq[i].n_rows;
        host[i].pos0 = seq[i].pos0;
        host[i].page0 = page0;
        host[i].page = (const int32_t *)((char *)id - (char *)host);
        host[i].state = seq[i].state;
        if (n) memcpy(id, seq[i].page_id + page0, (size_t)n * sizeof *id);
        id += n;
    }
    *max_rows_p = most;
    return (const struct cu_seq *)cu_stage(o, host, bytes);
}

static void put(struct ops *o, void *dst, const void *src, size_t bytes)
{
    struct cuda_impl *im = cu_impl(o);
    if (!bytes) return;
    if (bytes <= 65536) {
        size_t at = ring_take(o, bytes);
        memcpy(im->ring.host + at, src, bytes);
        CU(cudaMemcpyAsync(dst, im->ring.host + at, bytes, cudaMemcpyHostToDevice, im->stream));
        return;
    }
    CU(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, im->stream));
    cu_wait(o, NULL); /* the caller may change src at once */
}

static void get(struct ops *o, void *dst, const void *src, size_t bytes)
{
    struct cuda_impl *im = cu_impl(o);
    /* a copy to memory that is not pinned waits by itself, and calls nobody */
    if (o->guard || o->idle) cu_wait(o, NULL);
    if (im->failed != ST_OK) return;
    if (bytes) CU(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, im->stream));
    cu_wait(o, NULL);
}

static void zero(struct ops *o, void *dst, size_t bytes)
{
    if (bytes) CU(cudaMemsetAsync(dst, 0, bytes, cu_impl(o)->stream));
}

/* copies by the multiprocessors: faster than the copy engine, and launches like all others inside graphs */
static __global__ void __launch_bounds__(512)
    copy_kernel(uint4 *__restrict__ dst, const uint4 *__restrict__ src, size_t n)
{
    size_t i = (size_t)blockIdx.x * 2048 + threadIdx.x;
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j * 512 < n) v[j] = __ldcs(src + i + j * 512);
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (i + j * 512 < n) __stcs(dst + i + j * 512, v[j]);
}

static void copy(struct ops *o, void *dst, const void *src, size_t bytes)
{
    if (bytes && ((uintptr_t)dst | (uintptr_t)src | bytes) % 16 == 0) {
        copy_kernel<<<cu_parts((int64_t)(bytes / 16), 2048), 512, 0, cu_impl(o)->stream>>>(
            (uint4 *)dst, (const uint4 *)src, bytes / 16);
        CU_LAUNCHED("copy");
        return;
    }
    if (bytes) CU(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cu_impl(o)->stream));
}

static enum status prepare(struct ops *o, int max_rows)
{
    struct cuda_impl *im = cu_impl(o);
    if (max_rows < 1) return ERR(ST_E_RANGE, "prepare: %d rows; at least 1 is needed", max_rows);
    int parts = im->act == ACT_FP32 ? 3 : 1;
    size_t rows = cu_up((size_t)max_rows, 8), at_once = rows < CU_LINEAR_ROWS ? rows : (size_t)CU_LINEAR_ROWS;
    size_t pairs = rows * 16, linear = at_once * (size_t)im->max_k * 2 * 3;
    size_t moe = pairs * (size_t)(im->fp4_n + im->fp4_k) * 4 + rows * (size_t)im->fp4_k * 2 * parts;
    if (moe > CU_MOE_BYTES) moe = CU_MOE_BYTES; /* of many rows, not all at once: see cuda_moe */
    size_t most = linear > moe || !im->fp4_n ? linear : moe;
    CU(cudaStreamSynchronize(im->stream));
    if (most <= im->scratch.bytes) return ST_OK;
    cuda_mem_free(o, &im->scratch);
    return device_alloc(im, &im->scratch, most, "scratch of operations");
}

static void cuda_close(struct ops *o)
{
    struct cuda_impl *im = o ? cu_impl(o) : NULL;
    if (!im) return;
    (void)cudaSetDevice(im->device);
    if (im->stream) (void)cudaStreamSynchronize(im->stream);
    cuda_mem_free(o, &im->scratch);
    cuda_mem_free(o, &im->more);
    cu_graphs_close(im);
    cuda_moe_close(im);
    cu_blas_close(im);
    cu_mover_close(im);
    ring_close(&im->ring);
    if (im->result) (void)cudaFreeHost(im->result);
    if (im->stream) (void)cudaStreamDestroy(im->stream);
    mem_free(im);
    o->impl = NULL;
}

/* ---- the table --------------------------------------------------------------------------------- */

static const struct ops cuda_table = {
    .name = "cuda",
    .isa = NULL,
    .act = ACT_FP32,
    .kda_chunk_rows = 0,
    .impl = NULL,
    .idle = NULL,
    .idle_ctx = NULL,
    .mem_new = cuda_mem_new,
    .mem_free = cuda_mem_free,
    .put = put,
    .get = get,
    .zero = zero,
    .copy = copy,
    .prepare = prepare,
    .check = cuda_check,
    .close = cuda_close,
    .queues = &cuda_queues,
    .guard = NULL,
    .guard_ctx = NULL,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_counts = cuda_graph_counts,
    .range_begin = cuda_range_begin,
    .range_end = cuda_range_end,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .fence = cuda_fence,
    .pack = cuda_pack,
    .unpack = cuda_unpack,
    .moved = cuda_moved,
    .join = cuda_join,
    .fence_s = cuda_fence_s,
    .move_s = cuda_move_s,
    .mat_new = cuda_mat_new,
    .mat_put_bf16 = cuda_mat_put_bf16,
    .mat_put_bf16_t = cuda_mat_put_bf16_t,
    .mat_put_mxfp4 = cuda_mat_put_mxfp4,
    .mat_free = cuda_mat_free,
    .linear = cuda_linear,
    .embed = cuda_embed,
    .gather_rows = cuda_gather_rows,
    .add = cuda_add,
    .tree_add = cuda_tree_add,
    .round_kv = cuda_round_kv,
    .rmsnorm = cuda_rmsnorm,
    .head_norm = cuda_head_norm,
    .attnres = cuda_attnres,
    .conv = cuda_conv,
    .conv_commit = cuda_conv_commit,
    .conv_commit_seqs = cuda_conv_commit_seqs,
    .kda_prepare = cuda_kda_prepare,
    .kda_recur = cuda_kda_recur,
    .kda_recur_seqs = cuda_kda_recur_seqs,
    .kda_chunk = cuda_kda_chunk,
    .kda_out = cuda_kda_out,
    .mla_write = cuda_mla_write,
    .mla_attend = cuda_mla_attend,
    .mla_attend_expanded = cuda_mla_attend_expanded,
    .gate = cuda_gate,
    .situ = cuda_situ,
    .swiglu = cuda_swiglu,
    .route = cuda_route,
    .moe = cuda_moe,
    .argmax = cuda_argmax,
    .rope = cuda_rope,
    .rope_scaled = cuda_rope_scaled,
    .kv_write = cuda_kv_write,
    .draft_attend = cuda_draft_attend,
};

static enum status open_impl(struct cuda_impl *im, int device)
{
    cudaDeviceProp prop;
    im->device = device;
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* no module is loaded in the middle of a step */
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&prop, device);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&im->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess)
        return ERR(ST_E_DEVICE, "CUDA device %d does not open: %s", device, cudaGetErrorString(e));
    im->sm_count = prop.multiProcessorCount;
    im->cc = prop.major * 10 + prop.minor;
    snprintf(im->isa, sizeof im->isa, "sm_%d", im->cc);
    TRY(ring_open(&im->ring));
    im->result_bytes = 1 << 20;
    if (cudaMallocHost((void **)&im->result, im->result_bytes) != cudaSuccess)
        return ERR(ST_E_NOMEM, "no %zu bytes of pinned memory for results", im->result_bytes);
    return ST_OK;
}

extern "C" int ops_cuda_devices(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
    (void)cudaGetLastError();
    return n;
}

extern "C" enum status ops_cuda_open(enum ops_act act, int device, struct ops *o_p)
{
    int n = ops_cuda_devices();
    if (act != ACT_FP32 && act != ACT_BF16)
        return ERR(ST_E_CONFIG, "activation mode %d is not known; use fp32 or bf16", (int)act);
    if (n == 0)
        return ERR(ST_E_CONFIG,
                   "no CUDA device is visible; use --device cpu, or look at the driver and CUDA_VISIBLE_DEVICES");
    if (device < 0 || device >= n)
        return ERR(ST_E_CONFIG, "CUDA device %d asked for, but %d are visible", device, n);
    struct cuda_impl *im = (struct cuda_impl *)mem_alloc(1, sizeof *im, "CUDA backend");
    if (!im) return ST_E_NOMEM;
    *o_p = cuda_table;
    o_p->impl = im;
    o_p->act = im->act = act;
    o_p->kda_chunk_rows = act == ACT_BF16 ? 64 : 0;
    o_p->isa = im->isa;
    enum status st = open_impl(im, device);
    if (st != ST_OK) cuda_close(o_p);
    return st;
}
