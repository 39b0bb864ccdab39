/* cuda - private header of the CUDA backend: what its files share. Included only inside cuda/.
 *
 * open.cu opens the backend, memory and the staging ring; mat.cu packs weights; linear.cu, moe.cu are the matrix
 * products; copy.cu moves state; the other files hold the operations of the CPU file of the same name. ops.h is the
 * manual page.
 *
 * Order of work: everything but moves goes to one stream. Only get, argmax and large puts wait for it. Inside a region
 * (ops.h, graph_begin) launches are held back and started as graphs; every call of the runtime that depends on their
 * order comes by graph.cu (cuda.mk, --wrap) and starts them first. Who gives the stream to a library calls
 * cu_graph_flush before.
 * Exactness: as on the CPU, an output element is computed by steps that do not depend on the number of rows or
 * sequences in the call, as long as the call has at most CU_EXACT_ROWS rows; larger calls of linear and moe in act bf16
 * may take another path (within tolerance). One exception: kda_recur in act bf16 that leaves the state (verification)
 * takes 2 to 16 rows of heads of 128 as a tile on the tensor cores, 1e-6 from row after row: a row then depends on
 * where the call begins, still not on how many rows of it follow or on other sequences. Sums have an order of their
 * own, fixed by the sizes of the operation: the tree of a matrix's leaves is not followed, so a TP group's bits are not
 * those of one rank.
 * The chunked form of KDA (prefill, act bf16) has BF16 operands: pieces of a prompt that start and end at its chunks
 * of 64 rows, at least two of them, give the bits of one piece; other cuts, and the recurrence, agree within BF16's
 * error.
 * Errors: operations cannot fail; a CUDA error ends the process with a message (cu_die).
 * Scratch: cu_scratch grows on demand (after waiting), so after the first calls of each shape nothing allocates. */
#ifndef PDFLASH_CUDA_CUDA_H
#define PDFLASH_CUDA_CUDA_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "base/log.h"
#include "ops/ops.h"
}

enum {
    CU_EXACT_ROWS = 512,   /* calls up to here are independent of the number of rows, bit for bit */
    CU_TILE_K = 64,        /* packed matrices are padded to a multiple of it in k ... */
    CU_TILE_N = 16,        /* ... and of this in n */
    CU_SPLITS = 8,         /* partial sums of a row of a matrix product */
    CU_LINEAR_ROWS = 8192, /* most rows of one product, and ... */
    CU_MOE_BYTES = 1 << 30 /* ... most scratch of routed experts: plan/scratch.h counts with both */
};

/* The staging ring: control arrays go to pinned memory and from there to the device, asynchronously. It has
 * segments; before one is used again the kernels that read it must be done (one event each). */
enum { CU_SEGMENTS = 4, CU_SEGMENT_BYTES = 4 << 20, CU_RECENT = 4 };

struct cuda_recent {
    const char *host;      /* pinned copy, to find repeated arrays */
    void *dev;
    size_t bytes;
};

struct cuda_ring {
    char *host, *dev;      /* CU_SEGMENTS * CU_SEGMENT_BYTES each */
    cudaEvent_t done[CU_SEGMENTS];
    int used[CU_SEGMENTS]; /* done was recorded */
    int seg;
    size_t at;             /* offset in the segment */
    struct cuda_recent recent[CU_RECENT];
    int n_recent;
};

struct cu_mover;           /* copy.cu: moves of state beside the computation */
struct cuda_table;         /* moe.cu: device pointers of a layer's experts */
struct cuda_graphs;        /* graph.cu: launches held back, and the graphs they became */

struct cuda_impl {
    int device, sm_count, cc; /* cc: 90 for sm_90 */
    enum ops_act act;
    cudaStream_t stream;
    char isa[16];
    struct buf scratch, more;
    struct cuda_ring ring;
    char *result;          /* pinned, for argmax */
    size_t result_bytes;
    int64_t max_k, max_n;  /* largest matrices so far, padded */
    int64_t fp4_n, fp4_k;
    int fp4_wide;          /* some MXFP4 scale is above 1 */
    struct cuda_table *tables;
    int n_tables;
    struct cu_mover *mover; /* NULL before the first pin */
    void *blas;            /* blas.cu: handle and plans, NULL without the library */
    enum status failed;    /* queue.cu: what ops.guard said while the host waited */
    struct cuda_graphs *graphs; /* NULL until the first region */
};

static inline struct cuda_impl *cu_impl(const struct ops *o)
{
    return (struct cuda_impl *)o->impl;
}

/* cu_die - report a CUDA error and end the process; what names the call. */
[[noreturn]] void cu_die(cudaError_t e, const char *what, const char *file, int line);

#define CU(call)                                                      \
    do {                                                              \
        cudaError_t cu_e_ = (call);                                   \
        if (cu_e_ != cudaSuccess) cu_die(cu_e_, #call, __FILE__, __LINE__); \
    } while (0)
/* after a launch: what was wrong with its arguments, or an earlier fault */
#define CU_LAUNCHED(name)                                             \
    do {                                                              \
        cudaError_t cu_e_ = cudaGetLastError();                       \
        if (cu_e_ != cudaSuccess) cu_die(cu_e_, name, __FILE__, __LINE__); \
    } while (0)

/* cu_wait - the host waits for an event of the stream, NULL: until it is empty; ops.idle and ops.guard are called
 * meanwhile. */
void cu_wait(struct ops *o, cudaEvent_t event);
/* queue.cu: the table of queues, and ops.check */
extern const struct ops_queues cuda_queues;
enum status cuda_check(const struct ops *o);

/* cu_scratch - device work space of one operation, content undefined; a second call in the same operation
 * invalidates the first, so operations carve one piece. */
void *cu_scratch(struct ops *o, size_t bytes);
/* cu_scratch_more - a second one, for operations that call cuda_linear while they hold it */
void *cu_scratch_more(struct ops *o, size_t bytes);
/* cu_stage - a host array on the device, readable by kernels launched next. bytes <= CU_SEGMENT_BYTES. */
void *cu_stage(struct ops *o, const void *src, size_t bytes);

static inline size_t cu_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static inline int cu_parts(int64_t n, int64_t most)
{
    return (int)((n + most - 1) / most);
}

static inline int cu_aligned16(const void *p, int64_t ld)
{
    return ((uintptr_t)p & 15) == 0 && ld % 4 == 0;
}

/* Rows as BF16 parts out[parts][rows8][kp], rows padded to 8 and inputs to kp with zeros; parts 1 (rounded) or 3
 * (exact) */
struct cu_rows {
    const float *x;
    int64_t ldx, plane;    /* plane: elements from part to part */
    int t, k, kp, parts, rows8;
    int vec;               /* 16-byte loads do */
    __nv_bfloat16 *out;
};

static inline struct cu_rows cu_rows_of(const float *x, int64_t ldx, int t, int k, int kp, int parts,
                                        __nv_bfloat16 *out)
{
    int rows8 = (int)cu_up((size_t)t, 8);
    return cu_rows{x, ldx, (int64_t)rows8 * kp, t, k, kp, parts, rows8, k % 4 == 0 && cu_aligned16(x, ldx), out};
}

/* ---- sequences on the device -------------------------------------------------------------------- */
/* One sequence as kernels see it; page ids follow the array of sequences. */
struct cu_seq {
    int row0, n_rows, pos0;
    int page0;             /* page[0] is the logical page page0 */
    const int32_t *page;   /* in a staged array: bytes from its start (see cu_seq_at) */
    void *state;
};

/* cu_seqs - stage sequences; page > 0 also stages the page ids of positions [from(seq), pos0 + n_rows), from(seq)
 * = 0 or, with writes 1, pos0. Returns the device array; *max_rows_p the most rows of one sequence. */
const struct cu_seq *cu_seqs(struct ops *o, const struct seq_rows *seq, int n_seq, int page, int writes,
                             int *max_rows_p);

/* ---- device helpers ----------------------------------------------------------------------------- */
#ifdef __CUDACC__

static __device__ __forceinline__ float cu_sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

static __device__ __forceinline__ float cu_silu(float x)
{
    return x * cu_sigmoid(x);
}

static __device__ __forceinline__ float cu_situ1(float g, float u, float b1, float b2)
{
    return b1 * tanhf(g / b1) * cu_sigmoid(g) * (b2 * tanhf(u / b2));
}

static __device__ __forceinline__ float cu_warp_sum(float v)
{
    for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

static __device__ __forceinline__ float cu_warp_max(float v)
{
    for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}

/* value of x after storage as BF16 */
static __device__ __forceinline__ float cu_round_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* n-th part of x as BF16: x = part 0 + part 1 + part 2 up to 2^-24 */
static __device__ __forceinline__ float cu_part_bf16(float x, int n)
{
    float a = cu_round_bf16(x);
    if (n == 0 || !(fabsf(a) <= 3.0e38f)) return n == 0 ? a : 0.0f;
    float b = cu_round_bf16(x - a);
    return n == 1 ? b : cu_round_bf16(x - a - b);
}

/* element i of an array of the kv type */
static __device__ __forceinline__ float cu_load_kv(const void *p, int64_t i, enum ops_kv kv)
{
    return kv == OPS_KV_BF16 ? __bfloat162float(((const __nv_bfloat16 *)p)[i]) : ((const float *)p)[i];
}

static __device__ __forceinline__ void cu_store_kv(void *p, int64_t i, float v, enum ops_kv kv)
{
    if (kv == OPS_KV_BF16) ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(v);
    else ((float *)p)[i] = v;
}

/* 4 elements from i of a row of n; VEC: i + 3 < n and 16-byte aligned */
template <bool VEC> static __device__ __forceinline__ float4 cu_load4(const float *p, int i, int n)
{
    if (VEC) return i < n ? *(const float4 *)(p + i) : make_float4(0, 0, 0, 0);
    return make_float4(i < n ? p[i] : 0, i + 1 < n ? p[i + 1] : 0, i + 2 < n ? p[i + 2] : 0, i + 3 < n ? p[i + 3] : 0);
}

template <bool VEC> static __device__ __forceinline__ void cu_store4(float *p, int i, int n, float4 v)
{
    if (VEC) {
        if (i < n) *(float4 *)(p + i) = v;
        return;
    }
    if (i < n) p[i] = v.x;
    if (i + 1 < n) p[i + 1] = v.y;
    if (i + 2 < n) p[i + 2] = v.z;
    if (i + 3 < n) p[i + 3] = v.w;
}

/* 4 inputs from i of a row */
template <bool VEC> static __device__ __forceinline__ void cu_rows_store(const struct cu_rows &a, int row, int i)
{
    float4 v = row < a.t ? cu_load4<VEC>(a.x + row * a.ldx, i, a.k) : make_float4(0, 0, 0, 0);
    for (int p = 0; p < a.parts; p++) {
        __nv_bfloat162 lo = __floats2bfloat162_rn(cu_part_bf16(v.x, p), cu_part_bf16(v.y, p));
        __nv_bfloat162 hi = __floats2bfloat162_rn(cu_part_bf16(v.z, p), cu_part_bf16(v.w, p));
        *(uint2 *)(a.out + p * a.plane + (int64_t)row * a.kp + i) = make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
    }
}

static __device__ __forceinline__ void cu_mma(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                              uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* sequence i of a staged array, its pages addressable */
static __device__ __forceinline__ struct cu_seq cu_seq_at(const struct cu_seq *all, int i)
{
    struct cu_seq s = all[i];
    s.page = (const int32_t *)((const char *)all + (size_t)s.page);
    return s;
}

/* Overlap of a kernel with the end of the one before it: the earlier calls cu_launch_next as soon as the later may
 * start on what does not depend on it; the later, started by cu_launch_early, calls cu_wait_last before it reads its
 * results. */
static __device__ __forceinline__ void cu_launch_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cu_wait_last()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* a launch with an attribute; graph.cu must know its kind, or it is never held back */
template <class A>
static void cu_launch_with(cudaLaunchAttribute *attr, void (*kernel)(A), dim3 grid, unsigned block, size_t bytes,
                           cudaStream_t st, const A &a)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(block);
    c.dynamicSmemBytes = bytes;
    c.stream = st;
    c.attrs = attr;
    c.numAttrs = 1;
    CU(cudaLaunchKernelEx(&c, kernel, A(a)));
}

template <class A>
static void cu_launch_early(void (*kernel)(A), dim3 grid, unsigned block, size_t bytes, cudaStream_t st, const A &a)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cu_launch_with(&early, kernel, grid, block, bytes, st, a);
}

static __device__ __forceinline__ uint32_t cu_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* asynchronous copies to shared memory; a thread may read what it copied itself once its group has been waited for */
static __device__ __forceinline__ void cu_copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(cu_shared(to)), "l"(from) : "memory");
}

static __device__ __forceinline__ void cu_copy4(void *to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(cu_shared(to)), "l"(from) : "memory");
}

/* the same, zeros when not in */
static __device__ __forceinline__ void cu_copy16_if(void *to, const void *from, bool in)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(cu_shared(to)), "l"(from), "r"(in ? 16 : 0) : "memory");
}

static __device__ __forceinline__ void cu_copy_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void cu_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* address of element 0 of a position's row of width elements in a paged pool, off elements into the page */
static __device__ __forceinline__ const char *cu_row(const char *base, int64_t stride, int page, const struct cu_seq *s,
                                                     int pos, int64_t off, int width, int elem)
{
    int id = s->page[pos / page - s->page0];
    return base + id * stride + (off + (int64_t)(pos % page) * width) * elem;
}
#endif

/* ---- graph.cu --------------------------------------------------------------------------------------- */
/* nvtx.cu */
void cuda_range_begin(const struct ops *o, const char *name);
void cuda_range_end(const struct ops *o);

void cuda_graph_begin(struct ops *o, uint64_t key);
void cuda_graph_end(struct ops *o);
struct ops_graphs cuda_graph_counts(const struct ops *o);
void cu_graphs_close(struct cuda_impl *im);
/* cu_graph_flush - start what is held back: before the stream is given to a library, whose calls do not come by */
void cu_graph_flush(struct ops *o);
/* cu_graph_stage - cu_stage inside a region; NULL: outside, or too large for it (then cu_stage's own ring serves) */
void *cu_graph_stage(struct ops *o, const void *src, size_t bytes);

/* ---- the operations: signatures of struct ops ------------------------------------------------------ */
enum status cuda_mem_new(struct ops *o, struct buf *b, size_t bytes, const char *what);
void cuda_mem_free(struct ops *o, struct buf *b);

enum status cuda_pin(struct ops *o, void *p, size_t bytes, const char **why_p);
void cuda_unpin(struct ops *o, void *p);
uint64_t cuda_fence(struct ops *o);
uint64_t cuda_pack(struct ops *o, const struct ops_run *run, int n, uint64_t after);
uint64_t cuda_unpack(struct ops *o, const struct ops_run *run, int n, uint64_t after);
int cuda_moved(struct ops *o, uint64_t ticket);
void cuda_join(struct ops *o, uint64_t ticket);
double cuda_fence_s(struct ops *o, uint64_t fence);
void cuda_move_s(struct ops *o, uint64_t ticket, double s[2]);
void cu_mover_close(struct cuda_impl *im);

enum status cuda_mat_new(struct ops *o, struct mat *m, enum mat_kind kind, int n, int k, int leaf, int exact);
void cuda_mat_put_bf16(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld);
void cuda_mat_put_bf16_t(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld);
void cuda_mat_put_mxfp4(struct ops *o, struct mat *m, int row0, int n, const uint8_t *packed, int64_t ld_packed,
                        const uint8_t *scale, int64_t ld_scale);
void cuda_mat_free(struct ops *o, struct mat *m);

void cuda_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy);
void cuda_embed(struct ops *o, const void *table, int first, int n_ids, int h, const int32_t *id, int t, float *y);
void cuda_gather_rows(struct ops *o, float *y, const float *x, const int32_t *from, int t, int n);
void cuda_add(struct ops *o, float *y, const float *x, int64_t n);
void cuda_tree_add(struct ops *o, float *dst, const float *src, int64_t stride, const int *order, int n_leaves,
                   int64_t n);
void cuda_round_kv(struct ops *o, float *x, int64_t n, enum ops_kv kv);
void cuda_gate(struct ops *o, float *x, int64_t ldx, const float *g, int64_t ldg, int t, int n);
void cuda_situ(struct ops *o, const float *x, int64_t ldx, float b1, float b2, int t, int n, float *y, int64_t ldy);
void cuda_swiglu(struct ops *o, const float *x, int64_t ldx, int t, int n, float *y, int64_t ldy);

void cuda_rmsnorm(struct ops *o, const float *x, int64_t ldx, const float *w, float eps, int t, int n, float *y,
                  int64_t ldy);
void cuda_head_norm(struct ops *o, float *x, int64_t ldx, const float *w, float eps, int t, int heads, int d);
void cuda_attnres(struct ops *o, const float *bank, int64_t bank_stride, int n_bank, const float *prefix,
                  const float *q, float eps, int t, int h, float *mix, const float *w, float norm_eps, float *normed);

void cuda_conv(struct ops *o, const float *x, int64_t ldx, const float *w, int kernel, int ch, enum ops_kv kv,
               const struct seq_rows *seq, int n_seq, float *y);
void cuda_conv_commit(struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv,
                      int n);
void cuda_conv_commit_seqs(struct ops *o, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv,
                           const struct seq_rows *seq, int n_seq);
void cuda_kda_prepare(struct ops *o, float *qkv, float *z, int64_t ldz, float *b, int64_t ldb, const float *a_exp,
                      const float *dt_bias, float lower_bound, int t, int heads, int d);
void cuda_kda_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int write, int t, int heads, int d, float *out, int64_t ldo);
void cuda_kda_recur_seqs(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                         int write, const struct seq_rows *seq, int n_seq, int heads, int d, float *out, int64_t ldo);
void cuda_kda_chunk(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int t, int heads, int d, int chunk, float *out, int64_t ldo);
void cuda_kda_out(struct ops *o, float *x, const float *gate, int64_t ldg, const float *w, float eps, int t, int heads,
                  int d);

void cuda_mla_write(struct ops *o, const float *x, int64_t ldx, int width, const struct paged *cache,
                    const struct seq_rows *seq, int n_seq);
void cuda_mla_attend(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank, int rope,
                     float scale, int heads, const struct seq_rows *seq, int n_seq, float *z, int64_t ldz);
void cuda_mla_attend_expanded(struct ops *o, const float *q, int64_t ldq, const struct paged *cache, int rank, int rope,
                              int nope, int v_dim, const struct mat *wkv, float scale, int heads,
                              const struct seq_rows *seq, int n_seq, float *out, int64_t ldo);

void cuda_route(struct ops *o, const float *logits, const float *bias, int n_experts, int k, float scale, int t,
                int32_t *idx, float *w);
void cuda_argmax(struct ops *o, const float *logits, int64_t ldx, int t, int n, float *val, int32_t *idx);
void cuda_moe(struct ops *o, const struct mat *up, const struct mat *down, int e0, int n_local, int n_experts,
              const float *z, int latent, int cols, int groups, int merge, const int32_t *idx, const float *w, int k,
              float b1, float b2, int t, float *y, int64_t y_stride);
void cuda_moe_close(struct cuda_impl *im);
void cu_fp4_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy);

void cuda_rope(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d, double theta);
void cuda_rope_scaled(struct ops *o, float *x, int64_t ldx, const int32_t *pos, int t, int heads, int d,
                      const double *inv, double amplitude);
void cuda_kv_write(struct ops *o, const float *x, int64_t ldx, int heads, int d, const struct paged *cache,
                   const struct seq_rows *seq, int n_seq);
void cuda_draft_attend(struct ops *o, const float *q, int64_t ldq, const float *kb, int64_t ldk, const float *vb,
                       int64_t ldv, const struct paged *kc, const struct paged *vc, int q_heads, int kv_heads, int d,
                       int window, const struct seq_rows *seq, int n_seq, float *out, int64_t ldo);

/* linear.cu: the rows of cu_rows_of, queued */
void cu_rows_bf16(struct ops *o, const float *x, int64_t ldx, int t, int k, int kp, int parts, __nv_bfloat16 *out);
/* blas.cu: whether the library is there */
int cu_blas_ready(struct ops *o);
/* blas.cu: y[t][n] = x . W^T for many rows by the vendor's library; 0 when it is not there. x: [t][kp] BF16 */
int cu_blas_linear(struct ops *o, const struct mat *m, const __nv_bfloat16 *x, int kp, int t, float *y, int64_t ldy);
/* linear_wg.cu: the same for at most CU_EXACT_ROWS rows on Hopper; 0 elsewhere */
int cu_linear_wide(struct ops *o, const struct mat *m, const __nv_bfloat16 *x, int kp, int t, float *y, int64_t ldy);
void cu_blas_close(struct cuda_impl *im);

#endif
