/* bench_kernels - measure the rows of the table one after the other: set up, time, print, free. */
#include "cmd/bench_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"

enum { FILL = 1 << 20 };

void *bench_mem(struct kernel_bench *b, size_t bytes)
{
    if (b->st == ST_OK && b->n_mem == BENCH_MEMS) b->st = ERR(ST_E_RANGE, "bench: more than %d arrays in a row", BENCH_MEMS);
    if (b->st == ST_OK) b->st = b->o->mem_new(b->o, &b->mem[b->n_mem++], bytes, "bench array");
    return b->st == ST_OK ? b->mem[b->n_mem - 1].p : NULL;
}

float *bench_fill(struct kernel_bench *b, int64_t n, float scale)
{
    float *d = bench_mem(b, (size_t)n * sizeof *d), *host = mem_alloc(FILL, sizeof *host, "random block");
    int64_t have = n < FILL ? n : FILL;
    for (int64_t i = 0; host && i < have; i++) host[i] = scale * (float)(2 * rng_unit(7, (uint64_t)b->n_mem, (uint64_t)i) - 1);
    if (d && host) b->o->put(b->o, d, host, (size_t)have * sizeof *d);
    for (; d && have < n; have *= 2) b->o->copy(b->o, d + have, d, (size_t)(n - have < have ? n - have : have) * sizeof *d);
    mem_free(host);
    return d;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* median wall time of a call on a backend that works in the caller's thread */
static double host_time(void (*run)(void *), void *arg, int reps)
{
    double us[32];
    if (reps > 32) reps = 32;
    run(arg);
    for (int i = 0; i < reps; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        run(arg);
        clock_gettime(CLOCK_MONOTONIC, &b);
        us[i] = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
    }
    qsort(us, (size_t)reps, sizeof *us, by_size);
    return us[reps / 2];
}

static void release(struct kernel_bench *b)
{
    for (int i = 0; i < BENCH_SETS; i++) {
        for (int j = 0; b->mat[i] && j < b->n_mat; j++) b->o->mat_free(b->o, &b->mat[i][j]);
        mem_free(b->mat[i]);
    }
    for (int i = 0; i < b->n_mem; i++) b->o->mem_free(b->o, &b->mem[i]);
    mem_free(b->page_id);
}

/* one row; *copy_rate_p: bytes per microsecond of the copy row, set by it */
static enum status measure(struct ops *o, const struct bench_row *r, double *copy_rate_p)
{
    struct kernel_bench *b = mem_alloc(1, sizeof *b, "bench");
    double us = 0;
    if (!b) return ST_E_NOMEM;
    b->o = o;
    b->p = r->p;
    b->sets = 1;
    r->setup(b);
    enum status st = b->st;
    if (st == ST_OK && strcmp(o->name, "cuda") == 0) st = ops_cuda_time(o, r->run, b, r->reps, &us);
    else if (st == ST_OK) us = host_time(r->run, b, r->reps);
    if (st == ST_OK) {
        if (!*copy_rate_p && b->bytes > 0) *copy_rate_p = b->bytes / us;
        printf("%-22s %-44s %10.1f us", r->name, r->shape, us);
        if (b->bytes > 0) printf(" %9.1f MB %7.1f GB/s %5.1f %% of copy", b->bytes * 1e-6, b->bytes / us * 1e-3, 100 * b->bytes / us / *copy_rate_p);
        if (b->flops > 0) printf(" %8.1f TFLOP/s", b->flops / us * 1e-6);
        printf("\n");
        fflush(stdout);
    }
    release(b);
    mem_free(b);
    return st;
}

static int usage(void)
{
    puts("usage: pdflash bench kernels [--device cpu|cuda] [--act bf16|fp32] [--only TEXT]\n\n"
         "Times every operation at the per-rank shapes of the real Kimi-K3 (random weights; no checkpoint). CUDA: medians of\n"
         "graph replays. The first row measures the copy bandwidth that the shares refer to. --only: rows whose\n"
         "name or shape contains TEXT.");
    return 0;
}

enum status bench_kernels(int argc, char **argv)
{
    const char *device = ops_cuda_devices() ? "cuda" : "cpu", *act = "bf16", *only = "";
    struct ops o;
    double copy_rate = 0;
    for (int i = 0; i < argc; i += 2) {
        const char **to = strcmp(argv[i], "--device") == 0 ? &device
                          : strcmp(argv[i], "--act") == 0  ? &act
                          : strcmp(argv[i], "--only") == 0 ? &only
                                                           : NULL;
        if (strcmp(argv[i], "--help") == 0) return usage(), ST_OK;
        if (!to || i + 1 == argc) return ERR(ST_E_USAGE, "bench kernels: \"%s\" is not an option, or has no value; try --help", argv[i]);
        *to = argv[i + 1];
    }
    if (strcmp(act, "bf16") && strcmp(act, "fp32")) return ERR(ST_E_USAGE, "--act %s: bf16 or fp32", act);
    if (strcmp(device, "cuda") && strcmp(device, "cpu")) return ERR(ST_E_USAGE, "--device %s: cpu or cuda", device);
    enum ops_act mode = strcmp(act, "bf16") == 0 ? ACT_BF16 : ACT_FP32;
    if (strcmp(device, "cuda") == 0) TRY(ops_cuda_open(mode, 0, &o));
    else TRY(ops_cpu_open(mode, NULL, &o));
    printf("# %s %s, act %s\n", o.name, o.isa, act);
    enum status st = ST_OK;
    for (const struct bench_row *r = bench_rows; st == ST_OK && r->name; r++)
        if (r == bench_rows || strstr(r->name, only) || strstr(r->shape, only)) st = measure(&o, r, &copy_rate);
    o.close(&o);
    return st;
}
