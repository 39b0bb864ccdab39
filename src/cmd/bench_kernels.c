/* bench_kernels - measure the rows of the table one after the other: set up, time, print, free. */
#include "cmd/bench_kernels.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "cmd/bench.h"

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
    bench_sort(us, reps);
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

static int wanted(const struct bench_row *r, const char *only)
{
    return !only || strstr(r->name, only) || strstr(r->shape, only);
}

/* the copy row alone would look like a measurement of what was asked for */
static enum status refuse_unknown(const char *only)
{
    char names[512] = "";
    size_t n = 0;
    for (const struct bench_row *r = bench_rows; r->name; r++) {
        if (wanted(r, only)) return ST_OK;
        const struct bench_row *first = bench_rows;
        while (strcmp(first->name, r->name) != 0) first++;
        if (first == r && n < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", r->name);
    }
    return ERR(ST_E_USAGE, "--only '%s': in no row's name or shape; names are %s", only, names);
}

enum status bench_kernels(int argc, char **argv)
{
    struct options o;
    struct ops ops;
    int n, help;
    double copy_rate = 0;
    TRY(options_parse(CMD_BENCH_KERNELS, argc, argv, &o, NULL, 0, &n, &help));
    if (help) return ST_OK;
    TRY(refuse_unknown(o.only));
    enum ops_act act = o.act == OPT_ACT_BF16 ? ACT_BF16 : ACT_FP32;
    int cuda = o.device == DEVICE_CUDA || (o.device == DEVICE_AUTO && ops_cuda_devices() > 0);
    TRY(cuda ? ops_cuda_open(act, 0, &ops) : ops_cpu_open(act, NULL, &ops));
    printf("# %s %s, act %s\n", ops.name, ops.isa, act == ACT_BF16 ? "bf16" : "fp32");
    enum status st = ST_OK;
    for (const struct bench_row *r = bench_rows; st == ST_OK && r->name; r++)
        if (r == bench_rows || wanted(r, o.only)) st = measure(&ops, r, &copy_rate);
    ops.close(&ops);
    return st;
}
