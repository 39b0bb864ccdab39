/* The CPU backend: what the machine can run, memory, and the table. */
#include <cpuid.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ops/cpu/cpu.h"
#include "ops/cpu/cpu_ops.h"

/* best first; each entry runs wherever an earlier one does */
static const char *const isa_names[] = {"amx", "avx512bf16", "avx512", "avx2", "scalar", NULL};
enum { N_ISA = 5 };

static const struct cpu_kernels *const isa_kernels[N_ISA] = { /* by enum cpu_isa */
    &cpu_kernels_scalar, &cpu_kernels_avx2, &cpu_kernels_avx512, &cpu_kernels_avx512bf16, &cpu_kernels_amx,
};

/* XCR0: register files that the operating system saves */
enum { XCR_YMM = 0x6, XCR_ZMM = 0xe6, XCR_TILES = 0x60000 };
/* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): Linux grants tiles only on request */
enum { REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static int has(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}

static enum cpu_isa best_isa(void)
{
    uint32_t a, b, c, d, a1 = 0, b1, c1, d1;
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA)) return CPU_SCALAR;
    uint64_t os = xcr0();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, bit_AVX2) || (os & XCR_YMM) != XCR_YMM) return CPU_SCALAR;
    if (!has(b, avx512) || (os & XCR_ZMM) != XCR_ZMM) return CPU_AVX2;
    if (a < 1 || !__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) || !has(a1, 1u << 5)) return CPU_AVX512;
    if (!has(d, 1u << 22 | 1u << 24) || (os & XCR_TILES) != XCR_TILES) return CPU_AVX512BF16; /* AMX-BF16, AMX-TILE */
    return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) == 0 ? CPU_AMX : CPU_AVX512BF16;
}

const char *const *ops_cpu_isa_list(void)
{
    return isa_names + (N_ISA - 1 - best_isa());
}

/* ---- memory ---------------------------------------------------------------------------------- */

static enum status grow(struct buf *b, size_t bytes, const char *what)
{
    if (bytes <= b->bytes) return ST_OK;
    buf_free(b);
    return buf_alloc(b, bytes, what);
}

void *cpu_reserve(struct cpu_impl *im, struct buf *b, size_t bytes, const char *what)
{
    enum status st = grow(b, bytes, what);
    if (st != ST_OK) im->failed = st;
    return st == ST_OK ? b->p : NULL;
}

void *cpu_scratch(struct ops *o, size_t bytes)
{
    struct cpu_impl *im = cpu_impl_of(o);
    return cpu_reserve(im, &im->scratch, bytes, "scratch of an operation");
}

static enum status check(const struct ops *o)
{
    return cpu_impl_of(o)->failed;
}

static enum status mem_new(struct ops *o, struct buf *b, size_t bytes, const char *what)
{
    (void)o;
    return buf_alloc(b, bytes, what);
}

static void mem_release(struct ops *o, struct buf *b)
{
    (void)o;
    buf_free(b);
}

static void put(struct ops *o, void *dst, const void *src, size_t bytes)
{
    (void)o;
    if (bytes) memcpy(dst, src, bytes);
}

static void zero(struct ops *o, void *dst, size_t bytes)
{
    (void)o;
    if (bytes) memset(dst, 0, bytes);
}

/* Moves: memory is memory, and a move ends before its call does. */

static enum status pin(struct ops *o, void *p, size_t bytes, const char **why_p)
{
    (void)o, (void)p, (void)bytes, (void)why_p;
    return ST_OK;
}

static void unpin(struct ops *o, void *p)
{
    (void)o, (void)p;
}

static uint64_t fence(struct ops *o)
{
    (void)o;
    return 0;
}

static uint64_t pack(struct ops *o, const struct ops_run *run, int n, uint64_t after)
{
    (void)after;
    for (int i = 0; i < n; i++) memcpy(run[i].host, run[i].bmem, (size_t)run[i].bytes);
    return ++cpu_impl_of(o)->moves;
}

static uint64_t unpack(struct ops *o, const struct ops_run *run, int n, uint64_t after)
{
    (void)after;
    for (int i = 0; i < n; i++) memcpy(run[i].bmem, run[i].host, (size_t)run[i].bytes);
    return ++cpu_impl_of(o)->moves;
}

static int moved(struct ops *o, uint64_t ticket)
{
    return ticket <= cpu_impl_of(o)->moves;
}

static void join(struct ops *o, uint64_t ticket)
{
    (void)o, (void)ticket;
}

static double fence_s(struct ops *o, uint64_t f)
{
    (void)o, (void)f;
    return NAN;
}

static void move_s(struct ops *o, uint64_t ticket, double s[2])
{
    (void)o, (void)ticket;
    s[0] = s[1] = NAN;
}

static enum status prepare(struct ops *o, int max_rows)
{
    struct cpu_impl *im = cpu_impl_of(o);
    if (max_rows < 1) return ERR(ST_E_RANGE, "prepare: %d rows; at least 1 is needed", max_rows);
    TRY(grow(&im->scratch, CPU_SCRATCH_BYTES(max_rows), "scratch of operations"));
    TRY(grow(&im->lin, cpu_linear_scratch(im), "scratch of linear"));
    return grow(&im->moe, cpu_moe_scratch(im, max_rows), "scratch of experts");
}

static void cpu_close(struct ops *o)
{
    struct cpu_impl *im = o ? cpu_impl_of(o) : NULL;
    if (!im) return;
    buf_free(&im->scratch);
    buf_free(&im->lin);
    buf_free(&im->moe);
    mem_free(im);
    o->impl = NULL;
}

/* work is done when it is asked for: there is nothing to hold back, and nobody to tell */
static void graph_begin(struct ops *o, uint64_t key)
{
    (void)o;
    (void)key;
}

static void graph_end(struct ops *o)
{
    (void)o;
}

static struct ops_graphs graph_counts(const struct ops *o)
{
    (void)o;
    return (struct ops_graphs){0};
}

static void range_begin(const struct ops *o, const char *name)
{
    (void)o;
    (void)name;
}

static void range_end(const struct ops *o)
{
    (void)o;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct ops cpu_table = {
    .name = "cpu",
    .mem_new = mem_new,
    .mem_free = mem_release,
    .put = put,
    .get = put,
    .zero = zero,
    .copy = put,
    .pin = pin,
    .unpin = unpin,
    .fence = fence,
    .pack = pack,
    .unpack = unpack,
    .moved = moved,
    .join = join,
    .fence_s = fence_s,
    .move_s = move_s,
    .prepare = prepare,
    .check = check,
    .close = cpu_close,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_counts = graph_counts,
    .range_begin = range_begin,
    .range_end = range_end,
    .mat_new = cpu_mat_new,
    .mat_put_bf16 = cpu_mat_put_bf16,
    .mat_put_bf16_t = cpu_mat_put_bf16_t,
    .mat_put_mxfp4 = cpu_mat_put_mxfp4,
    .mat_free = cpu_mat_free,
    .linear = cpu_linear,
    .embed = cpu_embed,
    .gather_rows = cpu_gather_rows,
    .add = cpu_add,
    .tree_add = cpu_tree_add,
    .round_kv = cpu_round_kv,
    .rmsnorm = cpu_rmsnorm,
    .head_norm = cpu_head_norm,
    .attnres = cpu_attnres,
    .conv = cpu_conv,
    .conv_commit = cpu_conv_commit,
    .kda_prepare = cpu_kda_prepare,
    .kda_recur = cpu_kda_recur,
    .kda_chunk = cpu_kda_chunk,
    .kda_out = cpu_kda_out,
    .mla_write = cpu_mla_write,
    .mla_attend = cpu_mla_attend,
    .mla_attend_expanded = cpu_mla_attend_expanded,
    .gate = cpu_gate,
    .situ = cpu_situ,
    .swiglu = cpu_swiglu,
    .route = cpu_route,
    .moe = cpu_moe,
    .argmax = cpu_argmax,
    .rope = cpu_rope,
    .rope_scaled = cpu_rope_scaled,
    .kv_write = cpu_kv_write,
    .draft_attend = cpu_draft_attend,
};

enum status ops_cpu_open(enum ops_act act, const char *isa, struct ops *o_p)
{
    enum cpu_isa best = best_isa(), use = best;
    if (!isa) isa = getenv("PDFLASH_ISA"); /* for debugging */
    if (act != ACT_FP32 && act != ACT_BF16)
        return ERR(ST_E_CONFIG, "activation mode %d is not known; use fp32 or bf16", (int)act);
    if (isa && *isa) {
        int i = 0;
        while (i < N_ISA && strcmp(isa, isa_names[i])) i++;
        if (i == N_ISA)
            return ERR(ST_E_CONFIG, "instruction set \"%s\" is not known; use scalar, avx2, avx512, avx512bf16 or amx",
                       isa);
        use = (enum cpu_isa)(N_ISA - 1 - i);
        if (use > best)
            return ERR(ST_E_CONFIG, "instruction set \"%s\" is not on this machine, whose best is \"%s\"", isa,
                       isa_names[N_ISA - 1 - best]);
    }
    struct cpu_impl *im = mem_alloc(1, sizeof *im, "CPU backend");
    if (!im) return ST_E_NOMEM;
    im->isa = use;
    im->act = act;
    im->kr = isa_kernels[use];
    *o_p = cpu_table;
    o_p->isa = isa_names[N_ISA - 1 - use];
    o_p->act = act;
    o_p->impl = im;
    return ST_OK;
}
