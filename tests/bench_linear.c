/* bench_linear - speed of the CPU backend's linears and experts, beside the machine's own limits.
 *
 * Prints GFLOP/s (2 n k t per call) against a measured multiply-add peak of the FP32 vector units, and GB/s of
 * packed weights against a measured read; both limits in the same run. Times are CPU seconds, the best of
 * several, because the machine may be shared. Small matrices stay in cache, the large ones do not.
 * PDFLASH_ISA picks the instruction set (default: the best). */
#include <immintrin.h>
#include <stdio.h>
#include <time.h>

#include "weights.h"

static void need(enum status st)
{
    if (st != ST_OK) exit(err_exit_code(st)); /* the message is out */
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define BEST_OF(times, seconds_p, ...)                                              \
    do {                                                                            \
        *(seconds_p) = 1e30;                                                        \
        for (int rep_ = 0; rep_ < (times); rep_++) {                                \
            double t0_ = now();                                                     \
            __VA_ARGS__;                                                            \
            double s_ = now() - t0_;                                                \
            *(seconds_p) = s_ < *(seconds_p) ? s_ : *(seconds_p);                   \
        }                                                                           \
    } while (0)

enum { CHAIN = 12, LOOPS = 300000 };

__attribute__((target("avx2,fma"))) static void chains256(void)
{
    __m256 a = _mm256_set1_ps(1e-3f), s[CHAIN];
    for (int i = 0; i < CHAIN; i++) s[i] = _mm256_set1_ps((float)i);
    for (int n = 0; n < LOOPS; n++)
        __asm__ volatile("vfmadd231ps %12, %12, %0\n\tvfmadd231ps %12, %12, %1\n\tvfmadd231ps %12, %12, %2\n\t"
                         "vfmadd231ps %12, %12, %3\n\tvfmadd231ps %12, %12, %4\n\tvfmadd231ps %12, %12, %5\n\t"
                         "vfmadd231ps %12, %12, %6\n\tvfmadd231ps %12, %12, %7\n\tvfmadd231ps %12, %12, %8\n\t"
                         "vfmadd231ps %12, %12, %9\n\tvfmadd231ps %12, %12, %10\n\tvfmadd231ps %12, %12, %11"
                         : "+x"(s[0]), "+x"(s[1]), "+x"(s[2]), "+x"(s[3]), "+x"(s[4]), "+x"(s[5]), "+x"(s[6]),
                           "+x"(s[7]), "+x"(s[8]), "+x"(s[9]), "+x"(s[10]), "+x"(s[11])
                         : "x"(a));
}

__attribute__((target("avx512f"))) static void chains512(void)
{
    __m512 a = _mm512_set1_ps(1e-3f), s[CHAIN];
    for (int i = 0; i < CHAIN; i++) s[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < LOOPS; n++)
        __asm__ volatile("vfmadd231ps %12, %12, %0\n\tvfmadd231ps %12, %12, %1\n\tvfmadd231ps %12, %12, %2\n\t"
                         "vfmadd231ps %12, %12, %3\n\tvfmadd231ps %12, %12, %4\n\tvfmadd231ps %12, %12, %5\n\t"
                         "vfmadd231ps %12, %12, %6\n\tvfmadd231ps %12, %12, %7\n\tvfmadd231ps %12, %12, %8\n\t"
                         "vfmadd231ps %12, %12, %9\n\tvfmadd231ps %12, %12, %10\n\tvfmadd231ps %12, %12, %11"
                         : "+v"(s[0]), "+v"(s[1]), "+v"(s[2]), "+v"(s[3]), "+v"(s[4]), "+v"(s[5]), "+v"(s[6]),
                           "+v"(s[7]), "+v"(s[8]), "+v"(s[9]), "+v"(s[10]), "+v"(s[11])
                         : "v"(a));
}

/* GFLOP/s of independent FP32 multiply-adds, at the width the backend uses */
static double fma_peak(const char *isa)
{
    double s;
    int wide = strncmp(isa, "a", 1) == 0 && strcmp(isa, "avx2") != 0;
    if (wide) BEST_OF(20, &s, chains512());
    else BEST_OF(20, &s, chains256());
    return 2.0 * (wide ? 16 : 8) * CHAIN * LOOPS / s * 1e-9;
}

/* GB/s of copying, bytes read plus bytes written */
static double copy_speed(void)
{
    const size_t bytes = (size_t)96 << 20;
    char *a = malloc(bytes), *b = malloc(bytes);
    double s;
    memset(a, 1, bytes);
    memset(b, 2, bytes);
    BEST_OF(6, &s, memcpy(b, a, bytes); __asm__ volatile("" : : "r"(b) : "memory"));
    free(a), free(b);
    return 2.0 * (double)bytes / s * 1e-9;
}

static double peak, copy;

static void one(struct ops *o, enum mat_kind kind, int n, int k, int leaf, int t)
{
    struct weights w = weights_new(kind, n < 4096 ? n : 4096, k, 1);
    struct mat m = {0};
    float *x = weights_inputs(2, (int64_t)t * k), *y = malloc((size_t)t * (size_t)n * sizeof *y);
    need(o->mat_new(o, &m, kind, n, k, leaf, 0));
    for (int r = 0; r < n; r += w.n)
        if (kind == MAT_BF16) o->mat_put_bf16(o, &m, r, n - r < w.n ? n - r : w.n, w.bf16, k);
        else o->mat_put_mxfp4(o, &m, r, n - r < w.n ? n - r : w.n, w.packed, k / 2, w.scale, k / 32);
    double flop = 2.0 * n * k * t, s, gb = (double)(m.data.bytes + m.scale.bytes) * 1e-9;
    int calls = flop < 2e7 ? (int)(2e7 / flop) : 1;
    o->linear(o, &m, x, k, t, y, n);
    BEST_OF(12, &s, for (int c = 0; c < calls; c++) o->linear(o, &m, x, k, t, y, n));
    s /= calls;
    printf("%-6s n %6d k %5d leaf %4d t %4d: %8.1f us %7.1f GFLOP/s %5.1f %% of peak  weights %6.2f GB/s %5.1f %% of "
           "copy\n",
           kind == MAT_BF16 ? "bf16" : "mxfp4", n, k, leaf, t, s * 1e6, flop / s * 1e-9, 100 * flop / s * 1e-9 / peak,
           gb / s, 100 * gb / s / copy);
    fflush(stdout);
    o->mat_free(o, &m);
    weights_free(&w);
    free(x), free(y);
}

/* a routed layer of the fixture's size and one of a rank of the full model */
static void experts(struct ops *o, int n_experts, int latent, int cols, int groups, int k, int t)
{
    struct mat *up = calloc((size_t)n_experts, sizeof *up), *down = calloc((size_t)n_experts, sizeof *down);
    struct weights u = weights_new(MAT_MXFP4, 2 * cols, latent, 3), d = weights_new(MAT_MXFP4, latent, cols, 4);
    float *z = weights_inputs(5, (int64_t)t * latent), *w = weights_inputs(6, (int64_t)t * k);
    float *y = malloc((size_t)t * (size_t)latent * sizeof *y);
    int32_t *idx = malloc((size_t)t * (size_t)k * sizeof *idx);
    for (int e = 0; e < n_experts; e++) {
        need(weights_mat(o, &up[e], &u, 0, 2 * cols, 0, latent, 0, 0));
        need(weights_mat(o, &down[e], &d, 0, latent, 0, cols, 0, 0));
    }
    for (int r = 0; r < t; r++)
        for (int j = 0, left = k, e = 0; left > 0; e++)
            if (rng_u64(1, (uint64_t)r, (uint64_t)e) % (uint64_t)(n_experts - e) < (uint64_t)left)
                idx[r * k + j++] = e, left--;
    need(o->prepare(o, t));
    double flop = 2.0 * 3 * latent * cols * k * t, s;
    BEST_OF(12, &s,
            o->moe(o, up, down, 0, n_experts, n_experts, z, latent, cols, groups, 1, idx, w, k, 4, 25, t, y, 0));
    printf("experts %3d latent %4d cols %4d groups %2d k %2d t %4d: %9.1f us %7.1f GFLOP/s %5.1f %% of peak\n",
           n_experts, latent, cols, groups, k, t, s * 1e6, flop / s * 1e-9, 100 * flop / s * 1e-9 / peak);
    fflush(stdout);
    for (int e = 0; e < n_experts; e++) {
        o->mat_free(o, &up[e]);
        o->mat_free(o, &down[e]);
    }
    free(up), free(down), free(z), free(w), free(y), free(idx);
    weights_free(&u), weights_free(&d);
}

static void all(enum ops_act act)
{
    static const int rows[] = {1, 2, 4, 8, 16, 40, 128, 512};
    struct ops o;
    need(ops_cpu_open(act, NULL, &o));
    peak = strcmp(o.isa, "scalar") ? fma_peak(o.isa) : fma_peak("avx2");
    copy = copy_speed();
    printf("isa %s act %s: multiply-add peak %.1f GFLOP/s, copy %.1f GB/s\n", o.isa, act == ACT_FP32 ? "fp32" : "bf16",
           peak, copy);
    for (int kind = MAT_BF16; kind <= MAT_MXFP4; kind++)
        for (int i = 0; i < 8; i++) {
            one(&o, (enum mat_kind)kind, 256, 256, 0, rows[i]);
            one(&o, (enum mat_kind)kind, 1024, 512, 0, rows[i]);
            one(&o, (enum mat_kind)kind, 256, 512, 32, rows[i]);
            if (kind == MAT_BF16) one(&o, (enum mat_kind)kind, 256, 512, 16, rows[i]);
        }
    for (int kind = MAT_BF16; kind <= MAT_MXFP4; kind++)
        for (int i = 0; i < 5; i++) one(&o, (enum mat_kind)kind, 16384, 3584, 0, rows[i]);
    for (int i = 0; i < 8; i++) experts(&o, 32, 128, 64, 2, 4, rows[i]);
    experts(&o, 28, 3584, 96, 1, 16, 8);
    experts(&o, 28, 3584, 96, 1, 16, 128);
    o.close(&o);
}

int main(void)
{
    all(ACT_FP32);
    all(ACT_BF16);
    return 0;
}
