/* The rows of `pdflash bench kernels`. Shapes: TP4 prefill of 8192 tokens, TP8 and TP32 decode with 1, 8 and 32 sequences
 * of 16 rows (one DFlash block each). Bytes: every input and output once; weights of touched experts. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cmd/bench_kernels.h"

enum { H = 7168, LATENT = 3584, D = 128, RANK = 512, ROPE = 64, PAGE = 64 };

static int next(struct kernel_bench *b)
{
    return b->turn++ % b->sets;
}

/* ---- copy, elementwise, norms -------------------------------------------------------------------- */

static void setup_copy(struct kernel_bench *b)
{
    int64_t n = (int64_t)b->p[0] << 20;
    b->in[0] = bench_fill(b, n / 4, 1);
    b->out = bench_mem(b, (size_t)n);
    b->bytes = 2.0 * (double)n;
}
static void run_copy(void *arg)
{
    struct kernel_bench *b = arg;
    b->o->copy(b->o, b->out, b->in[0], (size_t)b->p[0] << 20);
}

static void setup_res(struct kernel_bench *b)
{
    int64_t t = b->p[0], n = b->p[1], plane = t * H;
    b->sets = t > 1000 ? 1 : BENCH_SETS;
    for (int i = 0; i < b->sets; i++) b->in[i] = bench_fill(b, plane * (n + 1), 1);
    b->small = bench_fill(b, H, 1);
    b->out = bench_mem(b, (size_t)plane * 4);
    b->out2 = bench_mem(b, (size_t)plane * 4);
    b->bytes = 4.0 * (double)plane * (double)(n + 3);
}
static void run_res(void *arg)
{
    struct kernel_bench *b = arg;
    int64_t t = b->p[0], n = b->p[1], plane = t * H;
    float *x = b->in[next(b)];
    b->o->attnres(b->o, x, plane, (int)n, x + n * plane, b->small, 1e-5f, (int)t, H, b->out, b->small, 1e-5f, b->out2);
}

static void setup_row(struct kernel_bench *b) /* t rows of n in, n out (p[2]: parts in) */
{
    int64_t t = b->p[0], n = b->p[1], parts = b->p[2];
    b->sets = t > 1000 ? 1 : BENCH_SETS;
    for (int i = 0; i < b->sets; i++) b->in[i] = bench_fill(b, t * n * parts, 1);
    b->small = bench_fill(b, 4 * n, 1);
    b->out = bench_fill(b, t * n, 1);
    b->bytes = 4.0 * (double)(t * n * (parts + 1));
}
static void run_norm(void *arg)
{
    struct kernel_bench *b = arg;
    b->o->rmsnorm(b->o, b->in[next(b)], b->p[1], b->small, 1e-5f, b->p[0], b->p[1], b->out, b->p[1]);
}
static void run_situ(void *arg)
{
    struct kernel_bench *b = arg;
    b->o->situ(b->o, b->in[next(b)], 2 * b->p[1], 4, 25, b->p[0], b->p[1], b->out, b->p[1]);
}
static void run_kda_out(void *arg)
{
    struct kernel_bench *b = arg;
    b->o->kda_out(b->o, b->out, b->in[next(b)], b->p[1], b->small, 1e-5f, b->p[0], b->p[1] / D, D);
}
static void setup_kda_out(struct kernel_bench *b)
{
    setup_row(b);
    b->bytes *= 1.5; /* out is read and written */
}

static void setup_conv(struct kernel_bench *b)
{
    setup_row(b);
    void *tail = bench_mem(b, (size_t)(3 * b->p[1]) * 4);
    int each = b->p[0] / b->p[3];
    for (int i = 0; i < b->p[3]; i++) b->seq[0][i] = (struct seq_rows){i * each, each, 0, NULL, tail};
}
static void run_conv(void *arg)
{
    struct kernel_bench *b = arg;
    b->o->conv(b->o, b->in[next(b)], b->p[1], b->small, 4, b->p[1], OPS_KV_BF16, b->seq[0], b->p[3], b->out);
}

static void setup_route(struct kernel_bench *b)
{
    int64_t t = b->p[0];
    b->in[0] = bench_fill(b, t * 896, 4);
    b->small = bench_fill(b, 896, 0.1f);
    b->idx = bench_mem(b, (size_t)t * 64);
    b->out = bench_mem(b, (size_t)t * 64);
    b->bytes = 4.0 * (double)(t * 928);
}
static void run_route(void *arg)
{
    struct kernel_bench *b = arg;
    b->o->route(b->o, b->in[0], b->small, 896, 16, 1, b->p[0], b->idx, b->out);
}

/* ---- matrix products ---------------------------------------------------------------------------------- */

static void put_bf16(struct kernel_bench *b, struct mat *m, int n, int k, int exact)
{
    uint16_t *w = mem_alloc((size_t)n * (size_t)k, 2, "random weights");
    if (!w) b->st = ST_E_NOMEM;
    for (int64_t i = 0; w && i < (int64_t)n * k; i++) w[i] = (uint16_t)((i * 2654435761u >> 7 & 0x80ff) | 0x3c00);
    if (b->st == ST_OK) b->st = b->o->mat_new(b->o, m, MAT_BF16, n, k, 0, exact);
    if (b->st == ST_OK) b->o->mat_put_bf16(b->o, m, 0, n, w, k);
    mem_free(w);
}

static void setup_linear(struct kernel_bench *b) /* t, n, k, exact */
{
    int64_t t = b->p[0], n = b->p[1], k = b->p[2];
    b->sets = (int)(600e6 / (double)(n * k * 2)) + 1;
    if (b->sets > BENCH_SETS) b->sets = BENCH_SETS;
    b->n_mat = 1;
    for (int i = 0; i < b->sets && b->st == ST_OK; i++) {
        b->mat[i] = mem_alloc(1, sizeof(struct mat), "matrix");
        put_bf16(b, b->mat[i], (int)n, (int)k, b->p[3]);
    }
    b->in[0] = bench_fill(b, t * k, 1);
    b->out = bench_mem(b, (size_t)(t * n) * 4);
    if (b->st == ST_OK) b->st = b->o->prepare(b->o, (int)t);
    b->bytes = t > 512 ? 0 : 2.0 * (double)(n * k) + 4.0 * (double)(t * (n + k));
    b->flops = 2.0 * (double)t * (double)n * (double)k;
}
static void run_linear(void *arg)
{
    struct kernel_bench *b = arg;
    b->o->linear(b->o, b->mat[next(b)], b->in[0], b->p[2], b->p[0], b->out, b->p[1]);
}

static void put_experts(struct kernel_bench *b, int n, int cols)
{
    size_t most = (size_t)LATENT * (size_t)cols;
    uint8_t *w = mem_alloc(most, 2, "random weights");
    b->n_mat = 2 * n;
    b->mat[0] = mem_alloc((size_t)(2 * n), sizeof(struct mat), "experts");
    if (!w || !b->mat[0]) b->st = ST_E_NOMEM;
    for (size_t i = 0; w && i < 2 * most; i++) w[i] = (uint8_t)(i * 2654435761u >> 11);
    for (size_t i = most; w && i < 2 * most; i++) w[i] = (uint8_t)(118 + w[i] % 4);
    for (int e = 0; e < n && b->st == ST_OK; e++) {
        b->st = b->o->mat_new(b->o, &b->mat[0][e], MAT_MXFP4, 2 * cols, LATENT, 0, 0);
        if (b->st == ST_OK) b->st = b->o->mat_new(b->o, &b->mat[0][n + e], MAT_MXFP4, LATENT, cols, 0, 0);
        if (b->st != ST_OK) break;
        b->o->mat_put_mxfp4(b->o, &b->mat[0][e], 0, 2 * cols, w, LATENT / 2, w + most, LATENT / 32);
        b->o->mat_put_mxfp4(b->o, &b->mat[0][n + e], 0, LATENT, w, cols / 2, w + most, cols / 32);
    }
    mem_free(w);
}

/* t rows, n local experts, cols, k per row, 1: rows spread evenly (row i to expert i mod n). Random choices else:
 * different sets of experts for every set of inputs. */
static void setup_moe(struct kernel_bench *b)
{
    int t = b->p[0], n = b->p[1], cols = b->p[2], k = b->p[3];
    double touched = 0;
    int32_t *id = mem_alloc((size_t)(t * k), sizeof *id, "choices");
    char *hit = mem_alloc((size_t)n, 1, "touched");
    put_experts(b, n, cols);
    b->sets = b->p[4] ? 1 : BENCH_SETS;
    b->in[0] = bench_fill(b, (int64_t)t * LATENT, 1);
    b->small = bench_fill(b, (int64_t)t * k, 0.1f);
    b->idx = bench_mem(b, (size_t)(b->sets * t * k) * 4);
    b->out = bench_mem(b, (size_t)t * LATENT * 4);
    for (int s = 0; s < b->sets && b->st == ST_OK && id && hit; s++) {
        memset(hit, 0, (size_t)n);
        for (int i = 0; i < t; i++)
            for (int j = 0; j < k; j++) { /* one of every n / k neighbours: ascending, all different */
                int e = b->p[4] ? i % n : (int)((int64_t)j * n / k + (int64_t)(rng_u64((uint64_t)s, (uint64_t)i, (uint64_t)j) % (uint64_t)(n / k)));
                id[i * k + j] = e;
                touched += !hit[e];
                hit[e] = 1;
            }
        b->o->put(b->o, b->idx + s * t * k, id, (size_t)(t * k) * 4);
    }
    if (b->st == ST_OK) b->st = b->o->prepare(b->o, t);
    b->bytes = touched / b->sets * 3.0 * LATENT * cols * (0.5 + 1.0 / 32);
    b->flops = 6.0 * t * k * (double)LATENT * cols;
    mem_free(id);
    mem_free(hit);
}
static void run_moe(void *arg)
{
    struct kernel_bench *b = arg;
    int t = b->p[0], n = b->p[1], k = b->p[3];
    b->o->moe(b->o, b->mat[0], b->mat[0] + n, 0, n, n, b->in[0], LATENT, b->p[2], 1, 1, b->idx + next(b) * t * k, b->small, k, 4, 25, t,
              b->out, (int64_t)t * LATENT);
}

/* ---- KDA ------------------------------------------------------------------------------------------------- */

static void setup_recur(struct kernel_bench *b) /* sequences, rows each, heads, 1: the state is written, not out; a state for each set */
{
    int64_t n = b->p[0], rows = b->p[1], heads = b->p[2], w = heads * D, t = n * rows;
    b->sets = n * w * D * 4 > (200 << 20) ? 2 : BENCH_SETS;
    b->in[0] = bench_fill(b, t * 3 * w, 0.1f);
    b->in2[0] = bench_fill(b, t * w, 0.1f);
    b->small = bench_fill(b, t * heads, 0.5f);
    b->out = bench_mem(b, (size_t)(t * w) * 4);
    for (int s = 0; s < b->sets; s++) {
        float *state = bench_fill(b, n * w * D, 1);
        for (int i = 0; i < n; i++) b->seq[s][i] = (struct seq_rows){(int)(i * rows), (int)rows, 0, NULL, state + i * w * D};
    }
    b->bytes = 4.0 * (double)(b->p[3] ? 2 * n * w * D + t * w * 4 : n * w * D + t * w * 5);
}
static void run_recur(void *arg)
{
    struct kernel_bench *b = arg;
    int n = b->p[0], rows = b->p[1], heads = b->p[2], write = b->p[3], w = heads * D, s = next(b);
    if (b->o->kda_recur_seqs)
        b->o->kda_recur_seqs(b->o, b->in[0], b->in2[0], w, b->small, heads, write, b->seq[s], n, heads, D, write ? NULL : b->out, w);
    for (int i = 0; !b->o->kda_recur_seqs && i < n; i++) {
        int64_t r = (int64_t)i * rows;
        b->o->kda_recur(b->o, b->in[0] + r * 3 * w, b->in2[0] + r * w, w, b->small + r * heads, heads, b->seq[s][i].state, write, rows, heads, D,
                        write ? NULL : b->out + r * w, w);
    }
}

static void setup_chunk(struct kernel_bench *b) /* rows, heads */
{
    int64_t t = b->p[0], heads = b->p[1], w = heads * D;
    b->in[0] = bench_fill(b, t * 3 * w, 0.1f);
    b->in2[0] = bench_fill(b, t * w, 0.1f);
    b->small = bench_fill(b, t * heads, 0.5f);
    b->w = bench_fill(b, w * D, 1);
    b->out = bench_mem(b, (size_t)(t * w) * 4);
    b->bytes = 4.0 * (double)(t * w * 5);
}
static void run_chunk(void *arg)
{
    struct kernel_bench *b = arg;
    int heads = b->p[1], w = heads * D;
    b->o->kda_chunk(b->o, b->in[0], b->in2[0], w, b->small, heads, b->w, b->p[0], heads, D, 64, b->out, w);
}

static void setup_prepare(struct kernel_bench *b)
{
    int64_t t = b->p[0], w = b->p[1];
    b->in[0] = bench_fill(b, t * 3 * w, 1);
    b->in2[0] = bench_fill(b, t * w, 1);
    b->small = bench_fill(b, t * w / D, 1);
    b->w = bench_fill(b, w, 1);
    b->bytes = 4.0 * (double)(t * w * 6);
}
static void run_prepare(void *arg)
{
    struct kernel_bench *b = arg;
    int w = b->p[1], heads = w / D;
    b->o->kda_prepare(b->o, b->in[0], b->in2[0], w, b->small, heads, b->w, b->w, -5, b->p[0], heads, D);
}

/* ---- MLA --------------------------------------------------------------------------------------------------- */

static void setup_mla(struct kernel_bench *b) /* sequences, rows each, heads, context, expanded */
{
    int n = b->p[0], rows = b->p[1], heads = b->p[2], ctx = b->p[3], pages = ctx / PAGE, width = RANK + ROPE;
    int64_t q = b->p[4] ? 192 : width, stride = (int64_t)PAGE * width * 2;
    b->sets = (double)n * pages * (double)stride > 200e6 || b->p[4] ? 1 : BENCH_SETS;
    b->page_id = mem_alloc((size_t)(n * pages), sizeof *b->page_id, "pages");
    for (int i = 0; b->page_id && i < n * pages; i++) b->page_id[i] = (int32_t)((int64_t)i * 7919 % (n * pages));
    for (int s = 0; s < b->sets; s++) {
        b->cache[s] = (struct paged){bench_fill(b, n * pages * stride / 4, 1e-3f), stride, PAGE, OPS_KV_BF16};
        for (int i = 0; i < n; i++) b->seq[s][i] = (struct seq_rows){i * rows, rows, ctx - rows, b->page_id + i * pages, NULL};
    }
    b->in[0] = bench_fill(b, (int64_t)n * rows * heads * q, 1);
    b->out = bench_mem(b, (size_t)(n * rows) * (size_t)heads * (size_t)(b->p[4] ? 128 : RANK) * 4);
    b->n_mat = b->p[4];
    if (b->p[4]) {
        b->mat[0] = mem_alloc(1, sizeof(struct mat), "matrix");
        put_bf16(b, b->mat[0], heads * 256, RANK, 0);
    }
    if (b->st == ST_OK) b->st = b->o->prepare(b->o, n * rows);
    if (b->p[4]) b->flops = 2.0 * n * heads * (192 + 128) * (double)ctx * ctx / 2;
    else {
        b->bytes = (double)n * ctx * width * 2 + 4.0 * n * rows * heads * (width + RANK);
        b->flops = 2.0 * n * rows * heads * (width + RANK) * (double)ctx;
    }
}
static void run_mla(void *arg)
{
    struct kernel_bench *b = arg;
    int n = b->p[0], heads = b->p[2], s = next(b), width = RANK + ROPE;
    if (b->p[4])
        b->o->mla_attend_expanded(b->o, b->in[0], (int64_t)heads * 192, &b->cache[s], RANK, ROPE, 128, 128, b->mat[0], 0.07f, heads, b->seq[s], n,
                                  b->out, (int64_t)heads * 128);
    else b->o->mla_attend(b->o, b->in[0], (int64_t)heads * width, &b->cache[s], RANK, ROPE, 0.07f, heads, b->seq[s], n, b->out, (int64_t)heads * RANK);
}

/* draft: 64 query heads, 8 kv heads of 128 (a Qwen3-like draft), window 4096 */
static void setup_draft(struct kernel_bench *b) /* sequences, query heads, kv heads, context, window */
{
    int n = b->p[0], qh = b->p[1], kh = b->p[2], ctx = b->p[3], pages = ctx / PAGE;
    int64_t stride = (int64_t)PAGE * kh * D * 2;
    b->page_id = mem_alloc((size_t)(n * (pages + 1)), sizeof *b->page_id, "pages");
    for (int i = 0; b->page_id && i < n * (pages + 1); i++) b->page_id[i] = i;
    for (int s = 0; s < 2; s++) b->cache[s] = (struct paged){bench_fill(b, n * (pages + 1) * stride / 4, 1e-3f), stride, PAGE, OPS_KV_BF16};
    for (int i = 0; i < n; i++) b->seq[0][i] = (struct seq_rows){i * 16, 16, ctx, b->page_id + i * (pages + 1), NULL};
    b->in[0] = bench_fill(b, (int64_t)n * 16 * qh * D, 1);
    b->in2[0] = bench_fill(b, (int64_t)n * 16 * kh * D, 1);
    b->out = bench_mem(b, (size_t)(n * 16 * qh * D) * 4);
    b->bytes = 4.0 * n * kh * D * (b->p[4] && b->p[4] < ctx ? b->p[4] : ctx);
}
static void run_draft(void *arg)
{
    struct kernel_bench *b = arg;
    int qh = b->p[1], kh = b->p[2];
    b->o->draft_attend(b->o, b->in[0], qh * D, b->in2[0], kh * D, b->in2[0], kh * D, &b->cache[0], &b->cache[1], qh, kh, D, b->p[4], b->seq[0],
                       b->p[0], b->out, qh * D);
}

/* clang-format off */
const struct bench_row bench_rows[] = {
    {"copy", "1 GiB", setup_copy, run_copy, {1024}, 20},
    {"attnres + norm", "8192 rows, 8 + 1 sources of 7168", setup_res, run_res, {8192, 8}, 10},
    {"attnres + norm", "8192 rows, 3 + 1 sources", setup_res, run_res, {8192, 3}, 10},
    {"attnres + norm", "512 rows, 8 + 1 sources", setup_res, run_res, {512, 8}, 20},
    {"attnres + norm", "16 rows, 8 + 1 sources", setup_res, run_res, {16, 8}, 50},
    {"rmsnorm", "8192 rows of 7168", setup_row, run_norm, {8192, H, 1}, 10},
    {"rmsnorm", "16 rows of 7168", setup_row, run_norm, {16, H, 1}, 50},
    {"situ", "8192 rows of 1536 (shared experts TP4)", setup_row, run_situ, {8192, 1536, 2}, 10},
    {"conv", "8192 rows, 3 x 24 heads x 128 (TP4)", setup_conv, run_conv, {8192, 9216, 1, 1}, 10},
    {"conv", "32 x 16 rows, 3 x 12 heads x 128 (TP8)", setup_conv, run_conv, {512, 4608, 1, 32}, 20},
    {"kda_prepare", "8192 rows, 24 heads x 128", setup_prepare, run_prepare, {8192, 3072}, 10},
    {"kda_out", "8192 rows, 24 heads x 128", setup_kda_out, run_kda_out, {8192, 3072, 1}, 10},
    {"route", "8192 rows, 16 of 896", setup_route, run_route, {8192}, 10},
    {"route", "16 rows, 16 of 896", setup_route, run_route, {16}, 50},
    {"linear", "8 x 3072 x 7168", setup_linear, run_linear, {8, 3072, H, 0}, 50},
    {"linear", "16 x 3072 x 7168", setup_linear, run_linear, {16, 3072, H, 0}, 50},
    {"linear", "32 x 3072 x 7168", setup_linear, run_linear, {32, 3072, H, 0}, 50},
    {"linear", "64 x 3072 x 7168", setup_linear, run_linear, {64, 3072, H, 0}, 50},
    {"linear", "128 x 3072 x 7168", setup_linear, run_linear, {128, 3072, H, 0}, 50},
    {"linear", "512 x 3072 x 7168", setup_linear, run_linear, {512, 3072, H, 0}, 20},
    {"linear", "8 x 7168 x 7168", setup_linear, run_linear, {8, H, H, 0}, 50},
    {"linear", "128 x 7168 x 7168", setup_linear, run_linear, {128, H, H, 0}, 50},
    {"linear", "16 x 20480 x 7168 (head TP8)", setup_linear, run_linear, {16, 20480, H, 0}, 20},
    {"linear", "128 x 20480 x 7168 (head TP8)", setup_linear, run_linear, {128, 20480, H, 0}, 20},
    {"linear", "16 x 7168 x 1536 (o_proj TP8)", setup_linear, run_linear, {16, H, 1536, 0}, 50},
    {"linear exact", "16 x 896 x 7168 (router)", setup_linear, run_linear, {16, 896, H, 1}, 50},
    {"linear exact", "128 x 896 x 7168 (router)", setup_linear, run_linear, {128, 896, H, 1}, 50},
    {"linear exact", "8192 x 896 x 7168 (router)", setup_linear, run_linear, {8192, 896, H, 1}, 5},
    {"linear", "8192 x 9216 x 7168 (qkv TP4)", setup_linear, run_linear, {8192, 9216, H, 0}, 5},
    {"linear", "8192 x 7168 x 3072 (o_proj TP4)", setup_linear, run_linear, {8192, H, 3072, 0}, 5},
    {"linear", "8192 x 3584 x 7168 (latent)", setup_linear, run_linear, {8192, LATENT, H, 0}, 5},
    {"moe", "16 rows, 896 experts x 384 (TP8)", setup_moe, run_moe, {16, 896, 384, 16, 0}, 20},
    {"moe", "128 rows, 896 experts x 384 (TP8)", setup_moe, run_moe, {128, 896, 384, 16, 0}, 20},
    {"moe", "512 rows, 896 experts x 384 (TP8)", setup_moe, run_moe, {512, 896, 384, 16, 0}, 10},
    {"moe", "16 rows, 896 experts x 96 (TP32)", setup_moe, run_moe, {16, 896, 96, 16, 0}, 20},
    {"moe", "128 rows, 896 experts x 96 (TP32)", setup_moe, run_moe, {128, 896, 96, 16, 0}, 20},
    {"moe", "28 experts x 73 rows x 3072 (EP32)", setup_moe, run_moe, {2044, 28, 3072, 1, 1}, 5},
    {"kda verify", "1 x 16 rows, 12 heads (TP8)", setup_recur, run_recur, {1, 16, 12}, 50},
    {"kda verify", "8 x 16 rows, 12 heads (TP8)", setup_recur, run_recur, {8, 16, 12}, 50},
    {"kda verify", "32 x 16 rows, 12 heads (TP8)", setup_recur, run_recur, {32, 16, 12}, 50},
    {"kda verify", "64 x 16 rows, 96 heads (TP1)", setup_recur, run_recur, {64, 16, 96}, 20},
    {"kda verify", "64 x 1 row, 96 heads (TP1)", setup_recur, run_recur, {64, 1, 96}, 20},
    {"kda commit", "32 x 8 rows, 12 heads (TP8)", setup_recur, run_recur, {32, 8, 12, 1}, 50},
    {"kda commit", "64 x 8 rows, 96 heads (TP1)", setup_recur, run_recur, {64, 8, 96, 1}, 20},
    {"kda prefill", "8192 rows, 24 heads (TP4)", setup_chunk, run_chunk, {8192, 24}, 5},
    {"kda recur", "8192 rows, 24 heads (TP4), one sequence", setup_recur, run_recur, {1, 8192, 24}, 3},
    {"mla decode", "1 x 1 row, 12 heads, 8192 (TP8)", setup_mla, run_mla, {1, 1, 12, 8192, 0}, 20},
    {"mla decode", "1 x 16 rows, 12 heads, 8192 (TP8)", setup_mla, run_mla, {1, 16, 12, 8192, 0}, 20},
    {"mla decode", "32 x 1 row, 12 heads, 8192 (TP8)", setup_mla, run_mla, {32, 1, 12, 8192, 0}, 10},
    {"mla decode", "32 x 16 rows, 3 heads, 8192 (TP32)", setup_mla, run_mla, {32, 16, 3, 8192, 0}, 10},
    {"mla decode", "32 x 16 rows, 12 heads, 8192 (TP8)", setup_mla, run_mla, {32, 16, 12, 8192, 0}, 5},
    {"mla prefill", "8192 rows, 24 heads (TP4), expanded", setup_mla, run_mla, {1, 8192, 24, 8192, 1}, 3},
    {"draft attend", "8 x 16 rows, 64/8 heads, 4096", setup_draft, run_draft, {8, 64, 8, 4096, 4096}, 10},
    {NULL, NULL, NULL, NULL, {0}, 0},
};
/* clang-format on */
