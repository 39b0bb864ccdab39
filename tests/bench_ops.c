/* bench_ops - time of the CPU operations other than matrix products, in microseconds per row, at the shapes of
 * k3-nano and its draft; and a hash of every result, equal on all instruction sets and compilers.
 * Build and run: make BOOTSTRAP=0 build/release/tests/bench_ops && build/release/tests/bench_ops */
#include "ops_kit.h"

#include <time.h>

#include "base/hash.h"

const char *const suite_name = "bench_ops";

enum { H = 256, HEADS = 8, D = 32, W = HEADS * D, RANK = 64, ROPE = 16, ROW = RANK + ROPE, LAYERS = 17, KDA = 12,
    MLA = 5 };

/* What one repetition works on; every operation writes to y (or the state), hashed at the end. */
struct bench {
    int rows, ctx;
    float *x, *w, *y, *small, *state;
    int32_t *idx;
    struct kit_pool pool, draft_k, draft_v;
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static struct seq_rows rows_of(const struct bench *b)
{
    return (struct seq_rows){0, b->rows, b->ctx, b->pool.id, b->state};
}

static void run_rmsnorm(struct bench *b)
{
    cpu_rmsnorm(kit_ops(), b->x, H, b->w, 1e-5f, b->rows, H, b->y, H);
}
static void run_attnres(struct bench *b)
{
    cpu_attnres(kit_ops(), b->x, (int64_t)b->rows * H, 3, b->x + 4 * H, b->w, 1e-5f, b->rows, H, b->y, b->w, 1e-5f,
                b->y + (int64_t)b->rows * H);
}
static void run_conv(struct bench *b)
{
    struct seq_rows s = rows_of(b);
    cpu_conv(kit_ops(), b->x, 3 * W, b->w, 4, 3 * W, OPS_KV_FP32, &s, 1, b->y);
}
static void run_prepare(struct bench *b)
{
    memcpy(b->y, b->x, (size_t)(b->rows * 4 * W) * sizeof *b->y);
    memcpy(b->small, b->x, (size_t)(b->rows * HEADS) * sizeof *b->small);
    cpu_kda_prepare(kit_ops(), b->y, b->y + b->rows * 3 * W, W, b->small, HEADS, b->w, b->w, -5, b->rows, HEADS, D);
}
static void run_recur(struct bench *b)
{
    cpu_kda_recur(kit_ops(), b->x, b->small, W, b->w, HEADS, b->state, 0, b->rows, HEADS, D, b->y, W);
}
static void run_chunk(struct bench *b)
{
    memset(b->state, 0, W * D * sizeof *b->state);
    cpu_kda_chunk(kit_ops(), b->x, b->small, W, b->w, HEADS, b->state, b->rows, HEADS, D, 64, b->y, W);
}
static void run_out(struct bench *b)
{
    memcpy(b->y, b->x, (size_t)(b->rows * W) * sizeof *b->y);
    cpu_kda_out(kit_ops(), b->y, b->x, W, b->w, 1e-5f, b->rows, HEADS, D);
}
static void run_mla(struct bench *b)
{
    struct seq_rows s = rows_of(b);
    cpu_mla_attend(kit_ops(), b->x, HEADS * ROW, &b->pool.c, RANK, ROPE, 0.14f, HEADS, &s, 1, b->y, HEADS * RANK);
}
static void run_mla_head(struct bench *b)
{
    struct seq_rows s = rows_of(b);
    cpu_mla_attend(kit_ops(), b->x, ROW, &b->pool.c, RANK, ROPE, 0.14f, 1, &s, 1, b->y, RANK);
}
static void run_gate(struct bench *b)
{
    memcpy(b->y, b->x, (size_t)(b->rows * W) * sizeof *b->y);
    cpu_gate(kit_ops(), b->y, W, b->x, W, b->rows, W);
}
static void run_situ(struct bench *b)
{
    cpu_situ(kit_ops(), b->x, 768, 4, 25, b->rows, 384, b->y, 384);
}
static void run_route(struct bench *b)
{
    cpu_route(kit_ops(), b->x, b->w, 32, 4, 1, b->rows, b->idx, b->y);
}
static void run_argmax(struct bench *b)
{
    cpu_argmax(kit_ops(), b->x, 4096, b->rows, 4096, b->y, b->idx);
}
static void run_rope(struct bench *b)
{
    memcpy(b->y, b->x, (size_t)(b->rows * 512) * sizeof *b->y);
    for (int i = 0; i < b->rows; i++) b->idx[i] = b->ctx + i;
    cpu_rope(kit_ops(), b->y, 512, b->idx, b->rows, 16, D, 10000);
}
static void run_draft(struct bench *b)
{
    struct seq_rows s = rows_of(b);
    cpu_draft_attend(kit_ops(), b->x, 512, b->x, W, b->x + 99, W, &b->draft_k.c, &b->draft_v.c, 16, 8, D, 0, &s, 1,
                     b->y, 512);
}
static void run_tree(struct bench *b)
{
    cpu_tree_add(kit_ops(), b->y, b->x, H, NULL, 8, H);
}

static const struct {
    const char *name;
    void (*run)(struct bench *b);
    double per_row; /* calls per row of one target forward */
} op[] = {
    {"rmsnorm 256", run_rmsnorm, 2 * MLA},
    {"attnres 3 + 1 with norm", run_attnres, 2 * LAYERS + 1},
    {"conv 3 x 256", run_conv, KDA},
    {"kda_prepare", run_prepare, KDA},
    {"kda_recur", run_recur, KDA},
    {"kda_chunk", run_chunk, 0},
    {"kda_out", run_out, KDA},
    {"mla_attend, 8 heads", run_mla, MLA},
    {"mla_attend, 1 head (tp 8)", run_mla_head, 0},
    {"gate 256", run_gate, MLA},
    {"situ 384", run_situ, LAYERS},
    {"route 32 top 4", run_route, LAYERS - 1},
    {"argmax 4096", run_argmax, 1},
    {"rope 16 x 32", run_rope, 0},
    {"draft_attend 16 / 8", run_draft, 0},
    {"tree_add 8 x 256, per call", run_tree, 0},
};
enum { N_OPS = sizeof op / sizeof op[0] };

static struct bench bench_make(int rows, int ctx)
{
    struct bench b = {.rows = rows, .ctx = ctx};
    size_t n = (size_t)(rows + 8) * 4096;
    int pages = (ctx + rows) / 32 + 2;
    b.x = kit_rand(1, n, -1, 1), b.w = kit_rand(2, n, 0.1, 0.9), b.y = kit_nan(n), b.small = kit_rand(3, n, -5, 0);
    b.state = kit_rand(4, W * D, -0.01, 0.01);
    b.idx = mem_alloc(n, sizeof *b.idx, "ids");
    b.pool = kit_pool(1, pages, 32, ROW, OPS_KV_BF16);
    b.draft_k = kit_pool(1, pages, 32, W, OPS_KV_BF16), b.draft_v = kit_pool(1, pages, 32, W, OPS_KV_BF16);
    for (int p = 0; p < ctx + rows; p++) {
        struct seq_rows s = {0, 1, p, b.pool.id, NULL};
        cpu_mla_write(kit_ops(), b.x + p, ROW, ROW, &b.pool.c, &s, 1);
        cpu_kv_write(kit_ops(), b.x + p, W, HEADS, D, &b.draft_k.c, &s, 1);
        cpu_kv_write(kit_ops(), b.x + p + 7, W, HEADS, D, &b.draft_v.c, &s, 1);
    }
    return b;
}

/* best of several repetitions, microseconds per row */
static double best_us(void (*run)(struct bench *), struct bench *b)
{
    double best = INFINITY;
    for (int rep = 0; rep < 30; rep++) {
        double t0 = now_us();
        for (int i = 0; i < 4; i++) run(b);
        best = fmin(best, (now_us() - t0) / 4 / b->rows);
    }
    return best;
}

START_TEST(time_per_row)
{
    static const int shape[][2] = {{1, 64}, {1, 512}, {16, 64}, {16, 256}, {16, 512}};
    for (int s = 0; s < 5; s++) {
        double total = 0;
        printf("rows %d, context %d                  us per row    hash\n", shape[s][0], shape[s][1]);
        for (int i = 0; i < N_OPS; i++) {
            struct bench b = bench_make(shape[s][0], shape[s][1]);
            double us = best_us(op[i].run, &b);
            struct sha256 h;
            char hex[65];
            sha256_init(&h);
            sha256_add(&h, b.y, (size_t)(b.rows + 8) * 4096 * sizeof *b.y);
            sha256_hex(&h, hex);
            printf("  %-32s %10.3f    %.8s\n", op[i].name, us, hex);
            total += us * op[i].per_row;
            mem_free(b.x), mem_free(b.w), mem_free(b.y), mem_free(b.small), mem_free(b.state), mem_free(b.idx);
            kit_pool_free(&b.pool), kit_pool_free(&b.draft_k), kit_pool_free(&b.draft_v);
        }
        printf("  one row through %d layers:       %10.1f\n", LAYERS, total);
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "bench", 300);
    SUITE_TEST(tc, time_per_row);
}

int main(void)
{
    return suite_main_serial();
}
