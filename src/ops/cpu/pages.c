#include "ops/cpu/pages.h"

#include "ops/cpu/cpu_math.h"

size_t pages_elem(enum ops_kv kv)
{
    return kv == OPS_KV_BF16 ? sizeof(uint16_t) : sizeof(float);
}

CPU_CLONES static void pages_to_bf16(uint16_t *restrict dst, const float *restrict src, int64_t n)
{
    int64_t i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) dst[i + l] = cpu_bf16(src[i + l]);
    for (; i < n; i++) dst[i] = cpu_bf16(src[i]);
}

CPU_CLONES static void pages_from_bf16(float *restrict dst, const uint16_t *restrict src, int64_t n)
{
    int64_t i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) dst[i + l] = cpu_from_bf16(src[i + l]);
    for (; i < n; i++) dst[i] = cpu_from_bf16(src[i]);
}

CPU_CLONES static void pages_round_bf16(float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        for (int l = 0; l < CPU_LANES; l++) x[i + l] = cpu_from_bf16(cpu_bf16(x[i + l]));
    for (; i < n; i++) x[i] = cpu_from_bf16(cpu_bf16(x[i]));
}

void pages_store(void *dst, const float *src, int64_t n, enum ops_kv kv)
{
    if (kv == OPS_KV_BF16) pages_to_bf16(dst, src, n);
    else memcpy(dst, src, (size_t)n * sizeof *src);
}

void pages_load(float *dst, const void *src, int64_t n, enum ops_kv kv)
{
    if (kv == OPS_KV_BF16) pages_from_bf16(dst, src, n);
    else memcpy(dst, src, (size_t)n * sizeof *dst);
}

void pages_round(float *dst, const float *src, int64_t n, enum ops_kv kv)
{
    if (dst != src) memcpy(dst, src, (size_t)n * sizeof *dst);
    if (kv == OPS_KV_BF16) pages_round_bf16(dst, n);
}

/* first byte of a position's row, and how many rows from there on are contiguous */
static unsigned char *row_at(const struct paged *c, const int32_t *page_id, int64_t off, int width, int pos,
                             int *run_p)
{
    int slot = pos % c->page;
    *run_p = c->page - slot;
    return (unsigned char *)c->base + page_id[pos / c->page] * c->stride +
           (off + (int64_t)slot * width) * (int64_t)pages_elem(c->kv);
}

void pages_write(const struct paged *c, const int32_t *page_id, int64_t off, int width, int pos, int n,
                 const float *src, int64_t ld)
{
    for (int i = 0, run; i < n; i += run) {
        unsigned char *p = row_at(c, page_id, off, width, pos + i, &run);
        if (run > n - i) run = n - i;
        if (ld == width) {
            pages_store(p, src + i * ld, (int64_t)run * width, c->kv);
            continue;
        }
        for (int r = 0; r < run; r++)
            pages_store(p + (size_t)r * (size_t)width * pages_elem(c->kv), src + (i + r) * ld, width, c->kv);
    }
}

void pages_read(const struct paged *c, const int32_t *page_id, int64_t off, int width, int pos, int n, float *dst)
{
    for (int i = 0, run; i < n; i += run) {
        const unsigned char *p = row_at(c, page_id, off, width, pos + i, &run);
        if (run > n - i) run = n - i;
        pages_load(dst + (int64_t)i * width, p, (int64_t)run * width, c->kv);
    }
}
