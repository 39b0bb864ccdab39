/* Steps as CUDA graphs: the launches of a region are held back, compared with those of the last region of its key,
 * and started together by one call.
 *
 * The program is linked so that every launch of its own comes by here first (cuda.mk: --wrap), so kernels are
 * launched the usual way everywhere else. Between graph_begin and graph_end a launch is compared with the one at its
 * place when this key came last: function, grid, shared memory and every argument. The launches of a key that came
 * once are only remembered and launched; when as many come again a graph is made of them; from then on, where all
 * are equal, nothing is called but one start for all. A launch that differs has its node changed; another number of
 * launches, and the key begins anew. So a graph always does what the launches would have done, and the key only says
 * where to look for it. (On an H200's host, a decode step of 785 launches, microseconds of the host per launch: 3.6
 * launched, 0.9 captured again and the graph updated, 0.18 held back, compared and found equal, that of the caller
 * included; about 1.4 to change a node and start it; 3 to 5 to make it.)
 *
 * A region is cut into parts of 32, 128 and 512 launches, a graph each: the device starts on the first while the
 * others are being compared. A call that must see the device's work or comes between in its order (a wait, a copy,
 * an event, freeing memory, a library that gets the stream) ends the part, starts it and goes on: it is wrapped,
 * too, or calls cu_graph_flush. Arrays staged in a part go to the part's own piece of device memory, all by one copy
 * before the graph; its pinned source is used again when that copy is done. The pieces keep their addresses, so
 * equal steps have equal arguments.
 *
 * Nothing is allocated after the first region but what the driver needs for a new graph. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

enum {
    PARTS = 256,         /* graphs kept; the one not used for longest makes room */
    LAUNCHES = 512,      /* most of a part ... */
    FIRST = 32,          /* ... and of the first part of a region; the next ones have four times as many */
    ARGS = 64 << 10,     /* bytes of arguments of a part, ... */
    ROOM = 64,           /* ... a launch has a multiple of this, so that another function may take its place */
    STAGE = 32 << 10,    /* bytes staged in a part */
    STAGED = 64,         /* staged arrays that are looked through for an equal one */
    SLOTS = 32,          /* pinned pieces */
    FUNCS = 1024, PARAMS = 24, ATTRS = 2
};

struct func { /* a kernel: where its arguments lie when packed */
    const void *key;
    int n, bytes;        /* n -1: cannot be held back */
    int dynamic;         /* shared memory it was allowed, -1: not asked yet */
    uint16_t at[PARAMS], size[PARAMS];
};

struct launch {
    const struct func *f;
    int room;            /* bytes its arguments have, f->bytes at least */
    dim3 grid, block;
    size_t bytes;        /* dynamic shared memory */
    unsigned n_attrs;
    cudaLaunchAttribute attr[ATTRS];
};

struct part {
    uint64_t used;       /* when; 0: never */
    int n;               /* its launches, the last time */
    int seen;            /* times in a row that they were these */
    cudaGraph_t graph;
    cudaGraphExec_t exec; /* NULL: none yet */
    cudaGraphNode_t node[LAUNCHES];
    struct launch launch[LAUNCHES];
    char args[ARGS];
};

struct cuda_graphs {
    cudaStream_t stream;
    int off;                     /* it was found that launches do not come by here */
    struct part *part;           /* [PARTS] */
    uint64_t key[PARTS], turn;
    struct func func[FUNCS];
    char *dev;                   /* [PARTS][STAGE] */
    char *pinned;                /* [SLOTS][STAGE] */
    cudaEvent_t done[SLOTS];
    int slot, busy[SLOTS];
    struct ops_graphs counts;
    /* the region */
    uint64_t region;
    int index;                   /* of the part in it */
    struct part *cur;            /* NULL: nothing held back */
    int at, args_at;             /* launches so far, bytes of their arguments */
    int stale;                   /* they are not those of the last time */
    int changed[LAUNCHES], n_changed;
    struct { uint32_t at, bytes; } staged[STAGED];
    int n_staged, staged_at;
};

static thread_local struct cuda_graphs *rec; /* holding launches back, in this thread */

/* ---- functions ------------------------------------------------------------------------------------------- */

static struct func *func_of(struct cuda_graphs *g, const void *key)
{
    uint32_t i = (uint32_t)(((uintptr_t)key >> 4) * 0x9e3779b97f4a7c15u >> 40) % FUNCS;
    int tried = 0;
    while (g->func[i].key && g->func[i].key != key && tried++ < FUNCS) i = (i + 1) % FUNCS;
    struct func *f = &g->func[i];
    if (f->key == key) return f;
    if (f->key) return NULL;
    size_t at, size;
    *f = func{key, 0, 0, -1, {}, {}};
    while (cudaFuncGetParamInfo(key, (size_t)f->n, &at, &size) == cudaSuccess) {
        if (f->n == PARAMS || at + size > ARGS / 4) {
            f->n = -1;
            return f;
        }
        f->at[f->n] = (uint16_t)at;
        f->size[f->n++] = (uint16_t)size;
        f->bytes = (int)cu_up(at + size, 16);
    }
    (void)cudaGetLastError(); /* that there is no further parameter, which nothing else tells */
    return f;
}

/* ---- graphs ---------------------------------------------------------------------------------------------- */

static void params_of(const struct launch *l, char *args, void **param)
{
    for (int i = 0; i < l->f->n; i++) param[i] = args + l->f->at[i];
}

static cudaGraphNode_t last_node(cudaStream_t st)
{
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *node;
    size_t n = 0;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edge; /* a caller that does not take it is refused where kernels overlap */
    CU(cudaStreamGetCaptureInfo(st, &status, NULL, NULL, &node, &edge, &n));
#else
    const cudaGraphEdgeData *edge;
    CU(cudaStreamGetCaptureInfo_v3(st, &status, NULL, NULL, &node, &edge, &n));
#endif
    return n == 1 ? node[0] : NULL;
}

static void unmake(struct cuda_graphs *g, struct part *p)
{
    if (!p->exec) return;
    CU(cudaStreamSynchronize(g->stream)); /* it may be at work */
    CU(cudaGraphExecDestroy(p->exec));
    CU(cudaGraphDestroy(p->graph));
    p->exec = NULL;
}

static void launch_all(struct cuda_graphs *g, struct part *p, int capturing)
{
    void *param[PARAMS];
    char *args = p->args;
    for (int i = 0; i < p->n; args += p->launch[i++].room) {
        struct launch *l = &p->launch[i];
        cudaLaunchConfig_t c = {};
        c.gridDim = l->grid;
        c.blockDim = l->block;
        c.dynamicSmemBytes = l->bytes;
        c.stream = g->stream;
        c.attrs = l->attr;
        c.numAttrs = l->n_attrs;
        params_of(l, args, param);
        CU(cudaLaunchKernelExC(&c, l->f->key, param));
        if (capturing) p->node[i] = last_node(g->stream);
    }
}

/* the graph of the launches of p, by capture: that keeps what their attributes say */
static void make(struct cuda_graphs *g, struct part *p)
{
    unmake(g, p);
    CU(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeRelaxed));
    launch_all(g, p, 1);
    CU(cudaStreamEndCapture(g->stream, &p->graph));
    CU(cudaGraphInstantiate(&p->exec, p->graph, 0));
    g->counts.made++;
}

/* nodes whose launches differ; 0 when the driver wants another graph */
static int change(struct cuda_graphs *g, struct part *p)
{
    void *param[PARAMS];
    char *args = p->args;
    for (int i = 0, next = 0; next < g->n_changed; args += p->launch[i++].room) {
        if (i != g->changed[next]) continue;
        struct launch *l = &p->launch[i];
        cudaKernelNodeParams k = {};
        k.func = (void *)l->f->key;
        k.gridDim = l->grid;
        k.blockDim = l->block;
        k.sharedMemBytes = (unsigned)l->bytes;
        k.kernelParams = param;
        params_of(l, args, param);
        if (!p->node[i] || cudaGraphExecKernelNodeSetParams(p->exec, p->node[i], &k) != cudaSuccess) {
            (void)cudaGetLastError();
            return 0;
        }
        next++;
    }
    g->counts.changed += g->n_changed;
    return 1;
}

/* ---- parts ----------------------------------------------------------------------------------------------- */

static char *stage_dev(const struct cuda_graphs *g)
{
    return g->dev + (size_t)(g->cur - g->part) * STAGE;
}

static char *stage_host(const struct cuda_graphs *g)
{
    return g->pinned + (size_t)g->slot * STAGE;
}

static void open_part(struct cuda_graphs *g)
{
    uint64_t key = g->region * 0x9e3779b97f4a7c15u + (uint64_t)g->index;
    int oldest = 0, i = 0;
    while (i < PARTS && !(g->key[i] == key && g->part[i].used)) i++;
    if (i == PARTS) {
        for (int j = 1; j < PARTS; j++)
            if (g->part[j].used < g->part[oldest].used) oldest = j;
        i = oldest;
        struct cuda_graphs *on = rec;
        rec = NULL;
        unmake(g, &g->part[i]);
        rec = on;
        g->part[i].n = 0;
        g->key[i] = key;
    }
    g->cur = &g->part[i];
    g->cur->used = ++g->turn;
    g->at = g->args_at = g->n_changed = g->n_staged = g->staged_at = 0;
    g->stale = 0;
    g->slot = (g->slot + 1) % SLOTS;
    if (g->busy[g->slot]) CU(cudaEventSynchronize(g->done[g->slot]));
    g->busy[g->slot] = 0;
}

/* start what was held back */
static void close_part(struct cuda_graphs *g)
{
    struct part *p = g->cur;
    if (!p) return;
    struct cuda_graphs *on = rec;
    rec = NULL; /* from here on calls are what they say */
    if (g->staged_at) {
        CU(cudaMemcpyAsync(stage_dev(g), stage_host(g), (size_t)g->staged_at, cudaMemcpyHostToDevice, g->stream));
        CU(cudaEventRecord(g->done[g->slot], g->stream));
        g->busy[g->slot] = 1;
    }
    if (g->at) {
        if (g->at != p->n || g->stale) {
            unmake(g, p);
            p->n = g->at;
            p->seen = 0;
        }
        if (++p->seen > 1 && (!p->exec || !change(g, p))) make(g, p);
        if (p->exec) {
            CU(cudaGraphLaunch(p->exec, g->stream));
            g->counts.started++;
            g->counts.launches += g->at;
        } else launch_all(g, p, 0);
    }
    if (g->at || g->staged_at) g->index++; /* what is staged here may be for a launch of the next part */
    g->cur = NULL;
    rec = on;
}

static int most_launches(const struct cuda_graphs *g)
{
    return g->index < 2 ? (int)FIRST << 2 * g->index : (int)LAUNCHES;
}

/* what an attribute says is compared, where it is known; others are not held back */
static int attrs_known(const cudaLaunchAttribute *a, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (a[i].id != cudaLaunchAttributeProgrammaticStreamSerialization &&
            a[i].id != cudaLaunchAttributeClusterDimension)
            return 0;
    return n <= ATTRS;
}

static int attrs_equal(const struct launch *l, const cudaLaunchAttribute *a, unsigned n)
{
    if (l->n_attrs != n) return 0;
    for (unsigned i = 0; i < n; i++) {
        const cudaLaunchAttribute *b = &l->attr[i];
        if (a[i].id != b->id) return 0;
        if (a[i].id == cudaLaunchAttributeProgrammaticStreamSerialization
                ? a[i].val.programmaticStreamSerializationAllowed != b->val.programmaticStreamSerializationAllowed
                : a[i].val.clusterDim.x != b->val.clusterDim.x || a[i].val.clusterDim.y != b->val.clusterDim.y ||
                      a[i].val.clusterDim.z != b->val.clusterDim.z)
            return 0;
    }
    return 1;
}

static int dims_equal(dim3 a, dim3 b)
{
    return a.x == b.x && a.y == b.y && a.z == b.z;
}

/* holds a launch back; 0: it cannot be */
static int hold(struct cuda_graphs *g, const void *key, dim3 grid, dim3 block, void **args, size_t bytes,
                const cudaLaunchAttribute *attr, unsigned n_attrs)
{
    struct func *f = func_of(g, key);
    if (!f || f->n < 0 || !attrs_known(attr, n_attrs)) {
        close_part(g);
        return 0;
    }
    if (g->cur && (g->at == most_launches(g) || g->args_at + ROOM + f->bytes > ARGS)) close_part(g);
    if (!g->cur) open_part(g);
    struct part *p = g->cur;
    struct launch *l = &p->launch[g->at];
    char *to = p->args + g->args_at;
    if (!g->stale && (g->at >= p->n || f->bytes > l->room || !attrs_equal(l, attr, n_attrs))) g->stale = 1;
    int same = !g->stale && l->f == f && dims_equal(l->grid, grid) && dims_equal(l->block, block) && l->bytes == bytes;
    for (int i = 0; i < f->n; i++) {
        if (same && memcmp(to + f->at[i], args[i], f->size[i]) == 0) continue;
        memcpy(to + f->at[i], args[i], f->size[i]);
        same = 0;
    }
    if (!same) {
        if (g->stale) l->room = (int)cu_up((size_t)f->bytes, ROOM);
        l->f = f;
        l->grid = grid;
        l->block = block;
        l->bytes = bytes;
        l->n_attrs = n_attrs;
        for (unsigned i = 0; i < n_attrs; i++) l->attr[i] = attr[i];
        if (!g->stale && p->exec) g->changed[g->n_changed++] = g->at;
    }
    g->at++;
    g->args_at += l->room;
    return 1;
}

void *cu_graph_stage(struct ops *o, const void *src, size_t bytes)
{
    struct cuda_graphs *g = cu_impl(o)->graphs;
    size_t room = cu_up(bytes, 256);
    if (!g || rec != g || room > STAGE) return NULL;
    if (g->cur && g->staged_at + room > STAGE) close_part(g);
    if (!g->cur) open_part(g);
    char *host = stage_host(g), *dev = stage_dev(g);
    for (int i = 0; i < g->n_staged; i++)
        if (g->staged[i].bytes == bytes && memcmp(host + g->staged[i].at, src, bytes) == 0)
            return dev + g->staged[i].at;
    int at = g->staged_at;
    memcpy(host + at, src, bytes);
    if (g->n_staged < STAGED) {
        g->staged[g->n_staged].at = (uint32_t)at;
        g->staged[g->n_staged++].bytes = (uint32_t)bytes;
    }
    g->staged_at += (int)room;
    return dev + at;
}

void cu_graph_flush(struct ops *o)
{
    struct cuda_graphs *g = cu_impl(o)->graphs;
    if (g && rec == g) close_part(g);
}

/* ---- the table --------------------------------------------------------------------------------------------- */

static __global__ void nothing_kernel(int) {}

/* does a launch come by here? Not where the program was linked in another way. */
static int comes_by(struct cuda_graphs *g)
{
    rec = g;
    nothing_kernel<<<1, 1, 0, g->stream>>>(0);
    rec = NULL;
    int yes = g->cur && g->at == 1 && g->cur->launch[0].f->n == 1;
    if (g->cur) g->cur->used = 0;
    g->cur = NULL;
    return yes;
}

static void free_all(struct cuda_graphs *g)
{
    for (int i = 0; g->part && i < PARTS; i++) unmake(g, &g->part[i]);
    for (int i = 0; i < SLOTS; i++)
        if (g->done[i]) (void)cudaEventDestroy(g->done[i]);
    if (g->pinned) (void)cudaFreeHost(g->pinned);
    if (g->dev) (void)cudaFree(g->dev);
    free(g->part);
    free(g);
}

static struct cuda_graphs *graphs_open(struct cuda_impl *im)
{
    struct cuda_graphs *g = (struct cuda_graphs *)calloc(1, sizeof *g);
    if (!g) abort();
    g->stream = im->stream;
    g->part = (struct part *)calloc(PARTS, sizeof *g->part); /* pages come as parts are used */
    if (!g->part) abort();
    CU(cudaMalloc((void **)&g->dev, (size_t)PARTS * STAGE));
    CU(cudaMallocHost((void **)&g->pinned, (size_t)SLOTS * STAGE));
    for (int i = 0; i < SLOTS; i++) CU(cudaEventCreateWithFlags(&g->done[i], cudaEventDisableTiming));
    g->off = !comes_by(g);
    if (g->off) log_warn("CUDA graphs are off: this program was linked without the wrapped launches of cuda/cuda.mk");
    return g;
}

void cuda_graph_begin(struct ops *o, uint64_t key)
{
    struct cuda_impl *im = cu_impl(o);
    if (!im->graphs) im->graphs = graphs_open(im);
    struct cuda_graphs *g = im->graphs;
    if (g->off) return;
    close_part(g); /* of a region that was left without an end */
    g->region = key;
    g->index = 0;
    rec = g;
}

void cuda_graph_end(struct ops *o)
{
    cu_graph_flush(o);
    rec = NULL;
}

struct ops_graphs cuda_graph_counts(const struct ops *o)
{
    struct cuda_graphs *g = cu_impl(o)->graphs;
    return g ? g->counts : ops_graphs{};
}

void cu_graphs_close(struct cuda_impl *im)
{
    if (!im->graphs) return;
    if (rec == im->graphs) rec = NULL;
    free_all(im->graphs);
    im->graphs = NULL;
}

/* ---- calls that come by ------------------------------------------------------------------------------------ */

extern "C" {

cudaError_t __real_cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t bytes, cudaStream_t st);
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args);
cudaError_t __real_cudaFuncSetAttribute(const void *f, cudaFuncAttribute attr, int value);

cudaError_t __wrap_cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t bytes, cudaStream_t st)
{
    if (rec && st == rec->stream && hold(rec, f, grid, block, args, bytes, NULL, 0)) return cudaSuccess;
    return __real_cudaLaunchKernel(f, grid, block, args, bytes, st);
}

#if CUDART_VERSION >= 13000 /* what <<< >>> calls since */
cudaError_t __real___cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void **args, size_t bytes,
                                      cudaStream_t st);

cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void **args, size_t bytes,
                                      cudaStream_t st)
{
    if (rec && st == rec->stream && hold(rec, f, grid, block, args, bytes, NULL, 0)) return cudaSuccess;
    return __real___cudaLaunchKernel(f, grid, block, args, bytes, st);
}
#endif

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args)
{
    if (rec && c->stream == rec->stream &&
        hold(rec, f, c->gridDim, c->blockDim, args, c->dynamicSmemBytes, c->attrs, c->numAttrs))
        return cudaSuccess;
    return __real_cudaLaunchKernelExC(c, f, args);
}

/* in a step only what is new reaches the driver, which takes longer than holding the launch back */
cudaError_t __wrap_cudaFuncSetAttribute(const void *key, cudaFuncAttribute attr, int value)
{
    struct func *f = rec && attr == cudaFuncAttributeMaxDynamicSharedMemorySize ? func_of(rec, key) : NULL;
    if (f && f->dynamic == value) return cudaSuccess;
    cudaError_t e = __real_cudaFuncSetAttribute(key, attr, value);
    if (f && e == cudaSuccess) f->dynamic = value;
    return e;
}

/* calls before which everything held back must have been started */
#define AFTER_LAUNCHES(name, params, args)                                                                            \
    cudaError_t __real_##name params;                                                                                 \
    cudaError_t __wrap_##name params                                                                                  \
    {                                                                                                                 \
        if (rec) {                                                                                                    \
            rec->counts.cut += rec->cur && rec->at;                                                                    \
            close_part(rec);                                                                                          \
        }                                                                                                             \
        return __real_##name args;                                                                                    \
    }
AFTER_LAUNCHES(cudaStreamSynchronize, (cudaStream_t st), (st))
AFTER_LAUNCHES(cudaStreamQuery, (cudaStream_t st), (st))
AFTER_LAUNCHES(cudaStreamBeginCapture, (cudaStream_t st, cudaStreamCaptureMode mode), (st, mode))
AFTER_LAUNCHES(cudaStreamWaitEvent, (cudaStream_t st, cudaEvent_t e, unsigned flags), (st, e, flags))
AFTER_LAUNCHES(cudaEventRecord, (cudaEvent_t e, cudaStream_t st), (e, st))
AFTER_LAUNCHES(cudaMemcpy, (void *to, const void *from, size_t n, cudaMemcpyKind kind), (to, from, n, kind))
AFTER_LAUNCHES(cudaMemcpyAsync, (void *to, const void *from, size_t n, cudaMemcpyKind kind, cudaStream_t st),
               (to, from, n, kind, st))
AFTER_LAUNCHES(cudaMemcpy2DAsync,
               (void *to, size_t lt, const void *from, size_t lf, size_t w, size_t h, cudaMemcpyKind k,
                cudaStream_t st),
               (to, lt, from, lf, w, h, k, st))
AFTER_LAUNCHES(cudaMemsetAsync, (void *to, int v, size_t n, cudaStream_t st), (to, v, n, st))
AFTER_LAUNCHES(cudaFree, (void *p), (p))
}
