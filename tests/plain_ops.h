/* plain_ops - the few operations that pd needs, as plain loops: tests of communication need no kernels.
 *
 * PLACE_DEVICE makes a backend whose pointers cannot be dereferenced (a high bit is flipped), so code that touches
 * backend memory except through put, get, zero, copy and tree_add crashes. */
#ifndef PDFLASH_TESTS_PLAIN_OPS_H
#define PDFLASH_TESTS_PLAIN_OPS_H

#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "ops/ops.h"

static const uintptr_t plain_flip = (uintptr_t)1 << 61;

static inline void *plain_host(const struct ops *o, const void *p)
{
    return (void *)((uintptr_t)p ^ (o->impl ? plain_flip : 0));
}

static enum status plain_mem_new(struct ops *o, struct buf *b, size_t bytes, const char *what)
{
    TRY(buf_alloc(b, bytes, what));
    if (!o->impl) return ST_OK;
    b->p = plain_host(o, b->p);
    b->place = PLACE_DEVICE;
    return ST_OK;
}

static void plain_mem_free(struct ops *o, struct buf *b)
{
    if (b->p) b->p = plain_host(o, b->p);
    buf_free(b);
}

static void plain_put(struct ops *o, void *dst, const void *src, size_t n)
{
    memcpy(plain_host(o, dst), src, n);
}

static void plain_get(struct ops *o, void *dst, const void *src, size_t n)
{
    memcpy(dst, plain_host(o, src), n);
}

static void plain_zero(struct ops *o, void *dst, size_t n)
{
    memset(plain_host(o, dst), 0, n);
}

static void plain_copy(struct ops *o, void *dst, const void *src, size_t n)
{
    memcpy(plain_host(o, dst), plain_host(o, src), n);
}

enum { PLAIN_BLOCK = 128 }; /* elements added at a time */

/* the tree of plan/split.h over leaves [first, first + n), elements [e, e + m) of each, m <= PLAIN_BLOCK */
static void plain_tree(const float *src, int64_t stride, const int *order, int first, int n, int64_t e, int m,
                       float *sum)
{
    float part[PLAIN_BLOCK];
    if (n == 1) {
        memcpy(sum, src + (order ? order[first] : first) * stride + e, (size_t)m * sizeof *sum);
    } else if (n % 2 == 0) {
        plain_tree(src, stride, order, first, n / 2, e, m, sum);
        plain_tree(src, stride, order, first + n / 2, n / 2, e, m, part);
        for (int i = 0; i < m; i++) sum[i] += part[i];
    } else {
        memset(sum, 0, (size_t)m * sizeof *sum);
        for (int k = 0; k < n; k++) {
            const float *leaf = src + (order ? order[first + k] : first + k) * stride + e;
            for (int i = 0; i < m; i++) sum[i] += leaf[i];
        }
    }
}

static void plain_tree_add(struct ops *o, float *dst, const float *src, int64_t stride, const int *order, int n_leaves,
                           int64_t n)
{
    float *d = plain_host(o, dst), sum[PLAIN_BLOCK];
    const float *s = plain_host(o, src);
    for (int64_t e = 0; e < n; e += PLAIN_BLOCK) {
        int m = n - e < PLAIN_BLOCK ? (int)(n - e) : PLAIN_BLOCK;
        plain_tree(s, stride, order, 0, n_leaves, e, m, sum);
        memcpy(d + e, sum, (size_t)m * sizeof *d); /* dst may be the first leaf */
    }
}

static inline struct ops plain_ops(enum place place)
{
    static int device_mark;
    return (struct ops){.name = "plain", .isa = "scalar", .impl = place == PLACE_DEVICE ? &device_mark : NULL,
                        .mem_new = plain_mem_new, .mem_free = plain_mem_free, .put = plain_put, .get = plain_get,
                        .zero = plain_zero, .copy = plain_copy, .tree_add = plain_tree_add};
}

#endif
