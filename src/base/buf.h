/* buf - a piece of memory that knows its size, where it lives and who frees it.
 *
 * Views (own == 0) never free. All host memory of the program that outlives a function comes from here,
 * so one counter (buf_allocs) can show that the token loop allocates nothing. Local. */
#ifndef PDFLASH_BASE_BUF_H
#define PDFLASH_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum place { PLACE_HOST, PLACE_PINNED, PLACE_DEVICE };

struct buf {
    void *p;          /* first byte; 64-byte aligned when owned */
    size_t bytes;     /* usable bytes */
    enum place place; /* where p points */
    int own;          /* 1: buf_free releases it */
};

/* buf_alloc - zeroed host memory, aligned to 64 bytes. bytes == 0 gives p == NULL.
 * what names the object in the message. Returns ST_E_NOMEM. */
enum status buf_alloc(struct buf *b, size_t bytes, const char *what);
/* buf_view - a window on memory owned by somebody else. */
struct buf buf_view(void *p, size_t bytes, enum place place);
/* buf_free - release what is owned and clear; legal on a cleared buf and on NULL; keeps errno. */
void buf_free(struct buf *b);

/* mem_alloc / mem_free - the same allocation without the struct, for arrays of structs; zeroed.
 * mem_alloc logs and returns NULL when memory is out; n * size is checked for overflow. */
void *mem_alloc(size_t n, size_t size, const char *what);
void *mem_grow(void *p, size_t old_n, size_t new_n, size_t size, const char *what);
void mem_free(void *p);
char *mem_strdup(const char *s);

/* buf_allocs - allocations made by this process through this module so far. */
uint64_t buf_allocs(void);

#endif
