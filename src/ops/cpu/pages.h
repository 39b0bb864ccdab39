/* pages - rows of floats to and from memory of the kv type, plain and paged.
 *
 * A paged row of width w at position p lies in page p / c->page at element off + (p % c->page) * w, where off
 * selects a head in head-major pages (0 for MLA rows). Offsets are 64 bit. BF16 is rounded to nearest even.
 * Local; no scratch. */
#ifndef PDFLASH_OPS_CPU_PAGES_H
#define PDFLASH_OPS_CPU_PAGES_H

#include "ops/ops.h"

/* bytes of one element */
size_t pages_elem(enum ops_kv kv);
/* pages_store / pages_load - n contiguous elements between float and kv type */
void pages_store(void *dst, const float *src, int64_t n, enum ops_kv kv);
void pages_load(float *dst, const void *src, int64_t n, enum ops_kv kv);
/* pages_round - dst[i] = value of src[i] after storing as kv; dst may be src */
void pages_round(float *dst, const float *src, int64_t n, enum ops_kv kv);
/* pages_write - rows src[n][width] (row stride ld) to positions pos .. pos + n - 1 */
void pages_write(const struct paged *c, const int32_t *page_id, int64_t off, int width, int pos, int n,
                 const float *src, int64_t ld);
/* pages_read - positions pos .. pos + n - 1 to dst[n][width], contiguous */
void pages_read(const struct paged *c, const int32_t *page_id, int64_t off, int width, int pos, int n, float *dst);

#endif
