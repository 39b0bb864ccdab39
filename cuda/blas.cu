/* Dense products of many rows through cuBLASLt, which is loaded at run time: a machine without it falls back to the
 * own kernel. Plans (layouts, and the algorithm that the library proposes first: timing its other proposals found no
 * faster one) are kept for the latest shapes. */
#include "cuda.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { PLANS = 256, WORKSPACE = 32 << 20 };

struct plan {
    int n, kp, t;
    int64_t ldy;
    unsigned align;     /* of y, bytes */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};

struct blas {
    void *lib;
    cublasLtHandle_t handle;
    struct buf work;
    struct plan plan[PLANS];
    int n_plans, oldest;
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatmulPreferenceCreate) pref_create;
    decltype(&cublasLtMatmulPreferenceDestroy) pref_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) pref_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
};

static int load(struct blas *b)
{
    const char *name[] = {getenv("PDFLASH_CUBLASLT"), "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    for (size_t i = 0; i < sizeof name / sizeof *name && !b->lib; i++)
        if (name[i]) b->lib = dlopen(name[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->lib) return 0;
#define SYM(field, fn)                                                   \
    b->field = (decltype(b->field))dlsym(b->lib, #fn);                   \
    if (!b->field) return 0
    SYM(create, cublasLtCreate);
    SYM(destroy, cublasLtDestroy);
    SYM(matmul, cublasLtMatmul);
    SYM(desc_create, cublasLtMatmulDescCreate);
    SYM(desc_destroy, cublasLtMatmulDescDestroy);
    SYM(desc_set, cublasLtMatmulDescSetAttribute);
    SYM(layout_create, cublasLtMatrixLayoutCreate);
    SYM(layout_destroy, cublasLtMatrixLayoutDestroy);
    SYM(pref_create, cublasLtMatmulPreferenceCreate);
    SYM(pref_destroy, cublasLtMatmulPreferenceDestroy);
    SYM(pref_set, cublasLtMatmulPreferenceSetAttribute);
    SYM(heuristic, cublasLtMatmulAlgoGetHeuristic);
#undef SYM
    return b->create(&b->handle) == CUBLAS_STATUS_SUCCESS;
}

/* NULL when the library cannot be used; tried once */
static struct blas *blas_of(struct ops *o)
{
    struct cuda_impl *im = cu_impl(o);
    if (!im->blas) {
        struct blas *b = (struct blas *)mem_alloc(1, sizeof *b, "cuBLASLt plans");
        if (!b) abort();
        im->blas = b;
        if (!load(b) || cuda_mem_new(o, &b->work, WORKSPACE, "work space of cuBLASLt") != ST_OK) {
            log_warn("cuBLASLt does not load (%s): products of many rows use the slower own kernel",
                     b->lib ? "symbols" : dlerror());
            b->handle = NULL;
        }
    }
    struct blas *b = (struct blas *)im->blas;
    return b->handle ? b : NULL;
}

int cu_blas_ready(struct ops *o)
{
    return blas_of(o) != NULL;
}

static void forget(struct blas *b, struct plan *p)
{
    if (p->a) b->layout_destroy(p->a);
    if (p->b) b->layout_destroy(p->b);
    if (p->c) b->layout_destroy(p->c);
    if (p->desc) b->desc_destroy(p->desc);
    memset(p, 0, sizeof *p);
}

void cu_blas_close(struct cuda_impl *im)
{
    struct blas *b = (struct blas *)im->blas;
    if (!b) return;
    for (int i = 0; i < b->n_plans; i++) forget(b, &b->plan[i]);
    if (b->work.p) (void)cudaFree(b->work.p);
    if (b->handle) b->destroy(b->handle);
    if (b->lib) dlclose(b->lib);
    mem_free(b);
    im->blas = NULL;
}

/* column-major views: C[n][t] = W[kp][n]^T . X[kp][t] */
static int make_plan(struct blas *b, struct plan *p)
{
    cublasOperation_t trans = CUBLAS_OP_T;
    cublasLtMatmulPreference_t pref = NULL;
    cublasLtMatmulHeuristicResult_t found = {};
    size_t room = WORKSPACE;
    uint32_t align = p->align;
    int got = 0,
        ok = b->desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
             b->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof trans) == CUBLAS_STATUS_SUCCESS &&
             b->layout_create(&p->a, CUDA_R_16BF, p->kp, p->n, p->kp) == CUBLAS_STATUS_SUCCESS &&
             b->layout_create(&p->b, CUDA_R_16BF, p->kp, p->t, p->kp) == CUBLAS_STATUS_SUCCESS &&
             b->layout_create(&p->c, CUDA_R_32F, p->n, p->t, p->ldy) == CUBLAS_STATUS_SUCCESS &&
             b->pref_create(&pref) == CUBLAS_STATUS_SUCCESS &&
             b->pref_set(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room) == CUBLAS_STATUS_SUCCESS &&
             b->pref_set(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align) ==
                 CUBLAS_STATUS_SUCCESS &&
             b->pref_set(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align) ==
                 CUBLAS_STATUS_SUCCESS &&
             b->heuristic(b->handle, p->desc, p->a, p->b, p->c, p->c, pref, 1, &found, &got) == CUBLAS_STATUS_SUCCESS &&
             got == 1;
    if (pref) b->pref_destroy(pref);
    p->algo = found.algo;
    return ok;
}

static struct plan *find_plan(struct blas *b, const struct plan *key)
{
    for (int i = 0; i < b->n_plans; i++) {
        const struct plan *p = &b->plan[i];
        if (p->n == key->n && p->kp == key->kp && p->t == key->t && p->ldy == key->ldy && p->align == key->align)
            return &b->plan[i];
    }
    struct plan *p = &b->plan[b->n_plans < PLANS ? b->n_plans : b->oldest];
    if (b->n_plans == PLANS) {
        forget(b, p);
        b->oldest = (b->oldest + 1) % PLANS;
    } else b->n_plans++;
    *p = *key;
    if (make_plan(b, p)) return p;
    forget(b, p);
    return NULL;
}

int cu_blas_linear(struct ops *o, const struct mat *m, const __nv_bfloat16 *x, int kp, int t, float *y, int64_t ldy)
{
    struct blas *b = blas_of(o);
    struct plan key = {};
    const float one = 1, zero = 0;
    key.n = m->n;
    key.kp = kp;
    key.t = t;
    key.ldy = ldy;
    key.align = (unsigned)((uintptr_t)y & -(uintptr_t)y & 255);
    if (!key.align) key.align = 256;
    struct plan *p = b ? find_plan(b, &key) : NULL;
    cu_graph_flush(o);
    return p && b->matmul(b->handle, p->desc, &one, m->data.p, p->a, x, p->b, &zero, y, p->c, y, p->c, &p->algo,
                          b->work.p, WORKSPACE, cu_impl(o)->stream) == CUBLAS_STATUS_SUCCESS;
}
