/* cpu - private header of the CPU backend: what its files share. Included only inside src/ops/cpu/.
 *
 * cpu.c opens the backend, finds the instruction sets and wires the table; mat.c packs weights; linear.c
 * walks panels, leaves and row tiles and calls one of the kernel tables (linear_<isa>.c); moe.c is the
 * routed experts; all other operations are declared in cpu_ops.h. One backend object serves one thread.
 *
 * Packing. A matrix [n][k] is stored in panels of 16 outputs, n padded with zero rows. BF16: a panel is
 * [k/2][16][2], i.e. 64 bytes hold inputs 2i, 2i+1 of 16 outputs: the order that FP32, BF16 dot product
 * and tile instructions all read directly. Each tree leaf is padded with zero inputs to a multiple of
 * the kernel's step. MXFP4 stays at 4 bit: a panel is [k/32] blocks of 256 bytes (order: see
 * cpu_fp4_at), scales [k/32][16]; kernels expand a piece to the BF16 form (exact) in L1. */
#ifndef PDFLASH_OPS_CPU_CPU_H
#define PDFLASH_OPS_CPU_CPU_H

#include "ops/ops.h"

enum cpu_isa { CPU_SCALAR, CPU_AVX2, CPU_AVX512, CPU_AVX512BF16, CPU_AMX };

enum {
    CPU_PANEL = 16,      /* outputs per panel */
    CPU_KC = 256,        /* inputs per pass over a panel; a multiple of every kernel step */
    CPU_ROWS = 48,       /* rows per block of a linear; a multiple of 16 */
    CPU_NP = 4           /* most panels in one kernel call */
};

enum cpu_mac_mode {
    CPU_MAC_SET,         /* acc := sum from +0 */
    CPU_MAC_GO_ON,       /* acc := sum continued from acc, as if there had been no break */
    CPU_MAC_ADD          /* acc := acc + (sum from +0); tiles (unit16 > 1) do not have it */
};

/* One pass of a kernel over sums of products of x[r][0..k) and panel p, for p < np and r < mr.
 * An element adds its products in order of k, whatever mr, np and r are. */
struct cpu_mac {
    float *acc;          /* [np][>= mr][16], 64-byte aligned; rows up to a multiple of 16 are writable */
    int64_t acc_ps;      /* floats from panel to panel of acc */
    const void *x;       /* FP32 or BF16 rows */
    int64_t ldx;         /* elements */
    const uint16_t *w;   /* BF16 panel form, 64-byte aligned */
    int64_t w_ps;        /* elements from panel to panel of w */
    int mr, np, k;
    int step;            /* BF16 kernels: k is a multiple of it (2, 16 or 32); x and w are zero-padded */
    enum cpu_mac_mode mode;
};

/* Kernels of one instruction set. */
struct cpu_kernels {
    int mr, mr16;                            /* most rows of one FP32 or BF16 pass */
    int unit16;                              /* BF16 passes start at multiples of so many rows */
    int (*np)(int mr);                       /* panels that suit passes of mr and fewer rows; np and 1 both work */
    int (*np16)(int mr);
    void (*mac)(const struct cpu_mac *c);    /* FP32 rows */
    void (*mac16)(const struct cpu_mac *c);  /* BF16 rows; NULL: rows are rounded and multiplied as FP32 */
    void (*begin16)(int step);               /* around the mac16 calls of one linear; both may be NULL */
    void (*end16)(void);
    void (*fp4)(const uint8_t *packed, const uint8_t *scale, int n_blocks, uint16_t *w); /* -> BF16 panel form */
    void (*fold)(float *to, const float *from, int64_t n); /* to[i] += from[i], n a multiple of 16, 64-byte aligned */
    void (*round)(const float *x, float *y, int64_t n);   /* to the nearest BF16 value (ties to even), kept FP32 */
    void (*pack)(const float *x, uint16_t *y, int64_t n); /* the same, stored as BF16 */
};

struct cpu_impl {
    enum cpu_isa isa;
    enum ops_act act;
    const struct cpu_kernels *kr;
    int64_t max_kp;      /* longest packed row of a matrix so far */
    int fp4_n, fp4_k;    /* largest MXFP4 matrix so far, each way */
    struct buf scratch;  /* cpu_scratch */
    struct buf lin;      /* linear.c: sums, expanded weights, converted rows */
    struct buf moe;      /* moe.c */
    enum status failed;  /* what check() says */
    uint64_t moves;      /* so far: the last ticket */
};

/* cpu_reserve - make b, one of im's three buffers, at least bytes large (content lost). NULL when memory is out: the
 * operation returns at once and check() reports it. After prepare none grows at the sizes of the models known. */
void *cpu_reserve(struct cpu_impl *im, struct buf *b, size_t bytes, const char *what);

/* cpu_scratch - 64-byte aligned work space of one operation, content undefined, valid until the operation
 * returns. Not used by linear and moe, so an operation may hold it while it calls cpu_linear.
 * prepare() sizes it to CPU_SCRATCH_BYTES(max_rows); an operation that would need more works in tiles. A
 * larger request is served by growing (counted by buf_allocs, so a test of allocations sees it). NULL: see
 * cpu_reserve. */
#define CPU_SCRATCH_BYTES(max_rows) (((size_t)4 << 20) + (size_t)(max_rows) * 1024)
void *cpu_scratch(struct ops *o, size_t bytes);

static inline struct cpu_impl *cpu_impl_of(const struct ops *o)
{
    return o->impl;
}

static inline float cpu_bf16_to_f32(uint16_t h)
{
    union { uint32_t u; float f; } v = {.u = (uint32_t)h << 16};
    return v.f;
}

/* cpu_f32_to_bf16 - round to nearest even; NaN stays NaN. */
static inline uint16_t cpu_f32_to_bf16(float f)
{
    union { float f; uint32_t u; } v = {.f = f};
    if ((v.u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((v.u >> 16) | 0x40);
    return (uint16_t)((v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16);
}

/* ---- mat.c: signatures of struct ops --------------------------------------------------------- */
enum status cpu_mat_new(struct ops *o, struct mat *m, enum mat_kind kind, int n, int k, int leaf, int exact);
void cpu_mat_put_bf16(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld);
void cpu_mat_put_bf16_t(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld);
void cpu_mat_put_mxfp4(struct ops *o, struct mat *m, int row0, int n, const uint8_t *packed, int64_t ld_packed,
                       const uint8_t *scale, int64_t ld_scale);
void cpu_mat_free(struct ops *o, struct mat *m);
/* cpu_mat_step - inputs per kernel step for this matrix: 2, or 16 or 32 on tiles. */
int cpu_mat_step(const struct ops *o, const struct mat *m);
/* cpu_mat_leaf_kp - inputs of one leaf with its padding. */
int cpu_mat_leaf_kp(const struct ops *o, const struct mat *m);
/* cpu_fp4_at - position of element (output c < 16, input i < 32) of a block: byte, and shift of the nibble. */
static inline int cpu_fp4_at(int c, int i, int *shift_p)
{
    *shift_p = i & 2 ? 4 : 0;
    return i / 4 * 32 + c % 8 / 4 * 16 + c / 8 * 8 + c % 4 * 2 + (i & 1);
}

/* ---- linear.c -------------------------------------------------------------------------------- */
void cpu_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy);
/* cpu_linear_part - outputs [n0, n1) (n0 a multiple of 16) over inputs [k0, k1) of a matrix with leaf 0 (k0
 * and k1 multiples of 32, or the whole) as one sum: y[t][n1 - n0]; x points at input k0 of row 0. */
void cpu_linear_part(struct ops *o, const struct mat *m, int n0, int n1, int k0, int k1, const float *x, int64_t ldx,
                     int t, float *y, int64_t ldy);
/* cpu_linear_scratch - bytes of impl->lin for the matrices that exist. */
size_t cpu_linear_scratch(const struct cpu_impl *im);

/* ---- moe.c ----------------------------------------------------------------------------------- */
void cpu_moe(struct ops *o, const struct mat *up, const struct mat *down, int e0, int n_local, int n_experts,
             const float *z, int latent, int cols, int groups, int merge, const int32_t *idx, const float *w, int k,
             float b1, float b2, int t, float *y, int64_t y_stride);
/* cpu_moe_scratch - bytes of impl->moe for calls with at most rows rows; larger calls work in row blocks. */
size_t cpu_moe_scratch(const struct cpu_impl *im, int rows);

/* ---- linear_<isa>.c -------------------------------------------------------------------------- */
extern const struct cpu_kernels cpu_kernels_scalar, cpu_kernels_avx2, cpu_kernels_avx512, cpu_kernels_avx512bf16,
    cpu_kernels_amx;
/* cpu_fp4_block - one block, any scale: the plain form of fp4, which kernels call for scales above 1 (never
 * seen in weights) or at the end of the range. -0 becomes +0 (no sum can tell). */
void cpu_fp4_block(const uint8_t *packed, const uint8_t *scale, uint16_t *w);
/* kernels of avx512 that its successors share */
int cpu_avx512_np(int mr);
void cpu_avx512_mac(const struct cpu_mac *c);
void cpu_avx512_fp4(const uint8_t *packed, const uint8_t *scale, int n_blocks, uint16_t *w);
void cpu_avx512_fold(float *to, const float *from, int64_t n);
void cpu_avx512_round(const float *x, float *y, int64_t n);
void cpu_avx512_pack(const float *x, uint16_t *y, int64_t n);

#endif
