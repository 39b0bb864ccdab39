/* Packing of weights (the form is described in cpu.h). */
#include <string.h>

#include "ops/cpu/cpu.h"

static int tiles(const struct ops *o, enum mat_kind kind, int exact)
{
    return cpu_impl_of(o)->isa == CPU_AMX && o->act == ACT_BF16 && (kind == MAT_MXFP4 || !exact);
}

/* inputs of one leaf */
static int leaf_of(const struct mat *m)
{
    return m->leaf ? m->leaf : m->k;
}

int cpu_mat_step(const struct ops *o, const struct mat *m)
{
    int rest = leaf_of(m) % 32;
    if (!tiles(o, m->kind, m->exact)) return 2;
    return rest > 0 && rest <= 16 ? 16 : 32; /* a leaf of 16 or 48 inputs would waste half a tile of 32 */
}

int cpu_mat_leaf_kp(const struct ops *o, const struct mat *m)
{
    int step = cpu_mat_step(o, m);
    return (leaf_of(m) + step - 1) / step * step;
}

enum status cpu_mat_new(struct ops *o, struct mat *m, enum mat_kind kind, int n, int k, int leaf, int exact)
{
    struct cpu_impl *im = cpu_impl_of(o);
    struct mat v = {.kind = kind, .n = n, .k = k, .leaf = leaf, .exact = exact};
    if (n < 1 || k < 1 || leaf < 0 || (leaf && k % leaf))
        return ERR(ST_E_RANGE, "matrix %d x %d, leaf %d: sizes must be positive and the leaf divide the inputs", n, k,
                   leaf);
    if (kind == MAT_MXFP4 && (k % 32 || leaf % 32))
        return ERR(ST_E_RANGE, "matrix %d x %d, leaf %d: MXFP4 needs inputs and leaf in whole blocks of 32", n, k,
                   leaf);
    size_t panels = ((size_t)n + CPU_PANEL - 1) / CPU_PANEL;
    int64_t kp = kind == MAT_MXFP4 ? k : (int64_t)(k / leaf_of(&v)) * cpu_mat_leaf_kp(o, &v);
    if (kind == MAT_MXFP4) {
        TRY(buf_alloc(&v.scale, panels * (size_t)(k / 32) * CPU_PANEL, "MXFP4 scales"));
        enum status st = buf_alloc(&v.data, panels * (size_t)k * CPU_PANEL / 2, "MXFP4 weights");
        if (st != ST_OK) {
            buf_free(&v.scale);
            return st;
        }
        im->fp4_n = n > im->fp4_n ? n : im->fp4_n;
        im->fp4_k = k > im->fp4_k ? k : im->fp4_k;
    } else {
        TRY(buf_alloc(&v.data, panels * (size_t)kp * CPU_PANEL * sizeof(uint16_t), "BF16 weights"));
    }
    im->max_kp = kp > im->max_kp ? kp : im->max_kp;
    *m = v;
    return ST_OK;
}

void cpu_mat_free(struct ops *o, struct mat *m)
{
    (void)o;
    if (!m) return;
    buf_free(&m->data);
    buf_free(&m->scale);
    memset(m, 0, sizeof *m);
}

/* where weight (row, input 0 of leaf) lives; the next pair of inputs is 2 * CPU_PANEL further */
static uint16_t *place(const struct mat *m, int row, int leaf, int64_t leaf_kp)
{
    int64_t kp = m->k / leaf_of(m) * leaf_kp;
    return (uint16_t *)m->data.p + (row / CPU_PANEL * kp + leaf * leaf_kp) * CPU_PANEL + row % CPU_PANEL * 2;
}

void cpu_mat_put_bf16(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld)
{
    int leaf_k = leaf_of(m), leaf_kp = cpu_mat_leaf_kp(o, m);
    for (int r = 0; r < n; r++)
        for (int l = 0; l < m->k / leaf_k; l++) {
            const char *s = (const char *)src + 2 * (r * ld + (int64_t)l * leaf_k);
            uint16_t *d = place(m, row0 + r, l, leaf_kp);
            int i = 0;
            for (; i + 2 <= leaf_k; i += 2) memcpy(d + (int64_t)i * CPU_PANEL, s + 2 * (int64_t)i, 4);
            if (i < leaf_k) memcpy(d + (int64_t)i * CPU_PANEL, s + 2 * (int64_t)i, 2);
        }
}

void cpu_mat_put_bf16_t(struct ops *o, struct mat *m, int row0, int n, const void *src, int64_t ld)
{
    int leaf_k = leaf_of(m), leaf_kp = cpu_mat_leaf_kp(o, m);
    for (int c = 0; c < m->k; c++) {
        const char *s = (const char *)src + 2 * (c * ld);
        int i = c % leaf_k;
        for (int r = 0; r < n; r++)
            memcpy(place(m, row0 + r, c / leaf_k, leaf_kp) + i / 2 * 2 * CPU_PANEL + (i & 1), s + 2 * (int64_t)r, 2);
    }
}

static void put_fp4_row(struct mat *m, int row, const uint8_t *packed, const uint8_t *scale)
{
    int64_t block0 = (int64_t)(row / CPU_PANEL) * (m->k / 32);
    int c = row % CPU_PANEL;
    for (int b = 0; b < m->k / 32; b++) {
        uint8_t *d = (uint8_t *)m->data.p + (block0 + b) * 256;
        ((uint8_t *)m->scale.p)[(block0 + b) * CPU_PANEL + c] = scale[b];
        for (int i = 0; i < 32; i++) {
            int shift, at = cpu_fp4_at(c, i, &shift);
            int code = packed[b * 16 + i / 2] >> (i & 1) * 4 & 15;
            d[at] = (uint8_t)((d[at] & ~(15 << shift)) | code << shift);
        }
    }
}

void cpu_mat_put_mxfp4(struct ops *o, struct mat *m, int row0, int n, const uint8_t *packed, int64_t ld_packed,
                       const uint8_t *scale, int64_t ld_scale)
{
    (void)o;
    for (int r = 0; r < n; r++) put_fp4_row(m, row0 + r, packed + r * ld_packed, scale + r * ld_scale);
}
