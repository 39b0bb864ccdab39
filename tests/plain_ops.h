/* plain_ops - the few operations that pd needs, as plain loops: tests of communication need no kernels.
 *
 * PLACE_DEVICE makes a backend whose pointers cannot be dereferenced (a high bit is flipped), so code that touches
 * backend memory except through put, get, zero, copy, tree_add and moves crashes.
 *
 * Moves end late: only after plain_late.polls questions whether they have, and then all their bytes are copied at once, so
 * what was changed, read or given away too early shows in the values. Other operations see what was joined, as on a device. */
#ifndef PDFLASH_TESTS_PLAIN_OPS_H
#define PDFLASH_TESTS_PLAIN_OPS_H

#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "ops/ops.h"

static const uintptr_t plain_flip = (uintptr_t)1 << 61;

enum { PLAIN_MOVES = 3 }; /* on their way at once: further ones find no room */

static struct {
    int polls;       /* 0: a move ends before its call does; < 0: it does not end */
    int refuses_pin; /* host memory cannot be pinned */
    int pinned;      /* now */
    uint64_t begun, ended, joined, fences;
    struct plain_move {
        int unpack, n, left;
        struct ops_run run[OPS_MOVE_RUNS];
    } move[PLAIN_MOVES];
} plain_late;

static inline void *plain_host(const struct ops *o, const void *p)
{
    return (void *)((uintptr_t)p ^ (o->impl ? plain_flip : 0));
}

static void plain_end(const struct ops *o, uint64_t ticket)
{
    while (plain_late.ended < ticket) {
        struct plain_move *m = &plain_late.move[plain_late.ended++ % PLAIN_MOVES];
        for (int i = 0; i < m->n; i++) {
            void *bmem = plain_host(o, m->run[i].bmem);
            memcpy(m->unpack ? bmem : m->run[i].host, m->unpack ? m->run[i].host : bmem, (size_t)m->run[i].bytes);
        }
    }
}

static uint64_t plain_move(struct ops *o, const struct ops_run *run, int n, int unpack)
{
    if (plain_late.begun - plain_late.ended == PLAIN_MOVES) return 0;
    struct plain_move *m = &plain_late.move[plain_late.begun++ % PLAIN_MOVES];
    *m = (struct plain_move){.unpack = unpack, .n = n, .left = plain_late.polls};
    memcpy(m->run, run, (size_t)n * sizeof *run);
    for (int i = 0; i < n && !unpack; i++) memset(run[i].host, 0xee, (size_t)run[i].bytes); /* not yet what it will be */
    if (plain_late.polls == 0) plain_end(o, plain_late.begun);
    return plain_late.begun;
}

static uint64_t plain_pack(struct ops *o, const struct ops_run *run, int n, uint64_t after)
{
    (void)after;
    return plain_move(o, run, n, 0);
}

static uint64_t plain_unpack(struct ops *o, const struct ops_run *run, int n, uint64_t after)
{
    (void)after;
    return plain_move(o, run, n, 1);
}

static int plain_moved(struct ops *o, uint64_t ticket)
{
    if (ticket <= plain_late.ended) return 1;
    struct plain_move *m = &plain_late.move[plain_late.ended % PLAIN_MOVES]; /* they end in order */
    if (plain_late.polls >= 0 && --m->left <= 0) plain_end(o, plain_late.ended + 1);
    return ticket <= plain_late.ended;
}

static void plain_join(struct ops *o, uint64_t ticket)
{
    (void)o;
    if (ticket > plain_late.joined) plain_late.joined = ticket;
}

static uint64_t plain_fence(struct ops *o)
{
    (void)o;
    return ++plain_late.fences;
}

static enum status plain_pin(struct ops *o, void *p, size_t bytes, const char **why_p)
{
    (void)o, (void)p, (void)bytes;
    plain_late.pinned += !plain_late.refuses_pin;
    if (!plain_late.refuses_pin) return ST_OK;
    *why_p = "refused by the test";
    return ST_E_DEVICE;
}

static void plain_unpin(struct ops *o, void *p)
{
    (void)p;
    plain_late.pinned--;
    plain_end(o, plain_late.begun);
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
    plain_end(o, plain_late.joined);
    memcpy(plain_host(o, dst), src, n);
}

static void plain_get(struct ops *o, void *dst, const void *src, size_t n)
{
    plain_end(o, plain_late.joined);
    memcpy(dst, plain_host(o, src), n);
}

static void plain_zero(struct ops *o, void *dst, size_t n)
{
    plain_end(o, plain_late.joined);
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
                        .zero = plain_zero, .copy = plain_copy, .tree_add = plain_tree_add, .pin = plain_pin,
                        .unpin = plain_unpin, .fence = plain_fence, .pack = plain_pack, .unpack = plain_unpack,
                        .moved = plain_moved, .join = plain_join};
}

#endif
