#include "ckpt/bpe.h"

#include <string.h>

#include "base/buf.h"
#include "base/hash.h"

struct token {
    size_t at; /* first byte in blob */
    size_t n;  /* bytes; 0: rank not seen yet (while loading) */
};

/* A candidate merge: the parts that cover [start, end) of the piece, two when it was noted. Boundaries only
 * ever vanish, so it is still the same pair if a part starts at start and its right neighbour ends at end. */
struct merge {
    int32_t rank;
    uint32_t start, end;
};

struct bpe {
    int n;               /* ranks */
    uint8_t *blob;       /* bytes of all ranks, in file order */
    struct token *token; /* [n] */
    int32_t *slot;       /* [mask + 1] open addressing by hash of the bytes: rank or -1 */
    size_t mask;
    size_t longest; /* bytes of the longest rank */
    int32_t byte[256];
    /* scratch of bpe_encode, grown to the longest piece seen */
    size_t cap;         /* bytes of piece the scratch can hold */
    uint32_t *end;      /* [cap] end of the part that starts here; 0: no part starts here */
    uint32_t *prev;     /* [cap] start of the part to the left */
    struct merge *heap; /* [3 * cap] binary heap, lowest (rank, start) first */
    size_t n_heap;
};

static int base64_digit(unsigned char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* n characters of padded base64 to out; number of bytes, 0 when malformed (an empty token is malformed too) */
static size_t base64_decode(const char *s, size_t n, uint8_t *out)
{
    size_t pad = 0, made = 0;
    if (n == 0 || n % 4) return 0;
    while (pad < 2 && s[n - 1 - pad] == '=') pad++;
    uint32_t acc = 0;
    for (size_t i = 0; i < n; i++) {
        int d = i < n - pad ? base64_digit((unsigned char)s[i]) : 0;
        if (d < 0) return 0;
        acc = acc << 6 | (uint32_t)d;
        if (i % 4 == 3) {
            out[made] = (uint8_t)(acc >> 16);
            out[made + 1] = (uint8_t)(acc >> 8);
            out[made + 2] = (uint8_t)acc;
            made += 3;
            acc = 0;
        }
    }
    for (size_t i = 0; i < pad; i++)
        if (out[made - 1 - i] != 0) return 0; /* bits past the end: not what an encoder writes */
    return made - pad;
}

static int32_t find(const struct bpe *b, const uint8_t *p, size_t n)
{
    if (n > b->longest) return -1;
    for (size_t i = (size_t)hash64(p, n, 0) & b->mask;; i = (i + 1) & b->mask) {
        int32_t r = b->slot[i];
        if (r < 0) return -1;
        if (b->token[r].n == n && memcmp(b->blob + b->token[r].at, p, n) == 0) return r;
    }
}

static void insert(struct bpe *b, int32_t rank)
{
    const struct token *t = &b->token[rank];
    size_t i = (size_t)hash64(b->blob + t->at, t->n, 0) & b->mask;
    while (b->slot[i] >= 0) i = (i + 1) & b->mask;
    b->slot[i] = rank;
}

static enum status alloc_table(struct bpe *b, size_t lines, size_t bytes)
{
    size_t size = 16;
    while (size < 2 * lines) size *= 2;
    b->mask = size - 1;
    b->blob = mem_alloc(bytes, 1, "tokenizer bytes");
    b->token = mem_alloc(lines, sizeof b->token[0], "tokenizer ranks");
    b->slot = mem_alloc(size, sizeof b->slot[0], "tokenizer lookup table");
    if (!b->blob || !b->token || !b->slot) return ST_E_NOMEM;
    memset(b->slot, 0xff, size * sizeof b->slot[0]);
    b->n = (int)lines;
    return ST_OK;
}

/* One line [s, s + n) without its newline; *fill is the number of bytes in blob. */
static enum status load_line(struct bpe *b, const char *file, size_t line, const char *s, size_t n, size_t *fill)
{
    const char *space = memchr(s, ' ', n);
    if (!space || space == s || space == s + n - 1)
        return ERR(ST_E_FORMAT, "%s:%zu: not \"base64 rank\"", file, line);
    int64_t rank = 0;
    for (const char *c = space + 1; c < s + n; c++) {
        if (*c < '0' || *c > '9' || rank >= b->n)
            return ERR(ST_E_FORMAT, "%s:%zu: rank \"%.*s\" is not a number below %d, the number of lines", file, line,
                       (int)(s + n - space - 1 > 20 ? 20 : s + n - space - 1), space + 1, b->n);
        rank = rank * 10 + (*c - '0');
    }
    if (rank >= b->n)
        return ERR(ST_E_FORMAT, "%s:%zu: rank %lld, but the file has %d lines (ranks must be 0..%d)", file, line,
                   (long long)rank, b->n, b->n - 1);
    struct token *t = &b->token[rank];
    if (t->n) return ERR(ST_E_FORMAT, "%s:%zu: rank %d occurs twice", file, line, (int)rank);
    size_t got = base64_decode(s, (size_t)(space - s), b->blob + *fill);
    if (got == 0) return ERR(ST_E_FORMAT, "%s:%zu: rank %d: malformed base64", file, line, (int)rank);
    int32_t twin = got <= b->longest ? find(b, b->blob + *fill, got) : -1;
    if (twin >= 0)
        return ERR(ST_E_FORMAT, "%s:%zu: ranks %d and %d have the same bytes", file, line, (int)twin, (int)rank);
    *t = (struct token){*fill, got};
    *fill += got;
    if (got > b->longest) b->longest = got;
    insert(b, (int32_t)rank);
    return ST_OK;
}

static enum status load(struct bpe *b, const char *file, const char *text, size_t n)
{
    size_t lines = 0, line = 0, fill = 0;
    for (size_t i = 0; i < n; i++) lines += text[i] != '\n' && (i + 1 == n || text[i + 1] == '\n');
    if (lines == 0 || lines > INT32_MAX / 4)
        return ERR(ST_E_FORMAT, "%s: %zu ranks; a tokenizer has at least 256", file, lines);
    TRY(alloc_table(b, lines, n));
    for (size_t i = 0; i < n;) {
        const char *nl = memchr(text + i, '\n', n - i);
        size_t len = nl ? (size_t)(nl - (text + i)) : n - i;
        line++;
        if (len > 0) TRY(load_line(b, file, line, text + i, len, &fill));
        i += len + 1;
    }
    for (int v = 0; v < 256; v++) {
        uint8_t c = (uint8_t)v;
        b->byte[v] = find(b, &c, 1);
        if (b->byte[v] < 0)
            return ERR(ST_E_FORMAT, "%s: no rank for the single byte 0x%02x; some text could not be encoded", file, v);
    }
    return ST_OK;
}

enum status bpe_open(const char *file, const char *text, size_t n, struct bpe **b_p)
{
    struct bpe *b = mem_alloc(1, sizeof *b, "tokenizer");
    if (!b) return ST_E_NOMEM;
    enum status st = load(b, file, text, n);
    if (st == ST_OK)
        *b_p = b;
    else
        bpe_close(b);
    return st;
}

void bpe_close(struct bpe *b)
{
    if (!b) return;
    mem_free(b->blob);
    mem_free(b->token);
    mem_free(b->slot);
    mem_free(b->end);
    mem_free(b->prev);
    mem_free(b->heap);
    mem_free(b);
}

int bpe_ranks(const struct bpe *b)
{
    return b->n;
}

const uint8_t *bpe_bytes(const struct bpe *b, int32_t rank, size_t *n_p)
{
    *n_p = b->token[rank].n;
    return b->blob + b->token[rank].at;
}

int32_t bpe_byte_rank(const struct bpe *b, uint8_t byte)
{
    return b->byte[byte];
}

static int before(const struct merge *x, const struct merge *y)
{
    return x->rank != y->rank ? x->rank < y->rank : x->start < y->start;
}

static void heap_push(struct bpe *b, struct merge m)
{
    size_t i = b->n_heap++;
    while (i > 0 && before(&m, &b->heap[(i - 1) / 2])) {
        b->heap[i] = b->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    b->heap[i] = m;
}

static struct merge heap_pop(struct bpe *b)
{
    struct merge top = b->heap[0], last = b->heap[--b->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= b->n_heap) break;
        if (c + 1 < b->n_heap && before(&b->heap[c + 1], &b->heap[c])) c++;
        if (!before(&b->heap[c], &last)) break;
        b->heap[i] = b->heap[c];
        i = c;
    }
    b->heap[i] = last;
    return top;
}

static enum status scratch(struct bpe *b, size_t n)
{
    if (n <= b->cap) return ST_OK;
    size_t cap = n < 256 ? 256 : n + n / 2;
    uint32_t *end = mem_alloc(cap, sizeof *end, "tokenizer scratch");
    uint32_t *prev = mem_alloc(cap, sizeof *prev, "tokenizer scratch");
    /* every byte boundary is noted once at the start and each merge notes two more */
    struct merge *heap = mem_alloc(3 * cap, sizeof *heap, "tokenizer scratch");
    if (!end || !prev || !heap) {
        mem_free(end);
        mem_free(prev);
        mem_free(heap);
        return ST_E_NOMEM;
    }
    mem_free(b->end);
    mem_free(b->prev);
    mem_free(b->heap);
    b->end = end;
    b->prev = prev;
    b->heap = heap;
    b->cap = cap;
    return ST_OK;
}

static void consider(struct bpe *b, const uint8_t *p, uint32_t start, uint32_t end)
{
    int32_t rank = find(b, p + start, end - start);
    if (rank >= 0) heap_push(b, (struct merge){rank, start, end});
}

static void merge_all(struct bpe *b, const uint8_t *p, uint32_t n)
{
    b->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        b->end[i] = i + 1;
        b->prev[i] = i - 1; /* unused for the first part */
    }
    for (uint32_t i = 0; i + 1 < n; i++) consider(b, p, i, i + 2);
    while (b->n_heap > 0) {
        struct merge m = heap_pop(b);
        uint32_t mid = b->end[m.start];
        if (mid == 0 || mid >= m.end || b->end[mid] != m.end) continue; /* one of the two is gone */
        b->end[m.start] = m.end;
        b->end[mid] = 0;
        if (m.end < n) {
            b->prev[m.end] = m.start;
            consider(b, p, m.start, b->end[m.end]);
        }
        if (m.start > 0) consider(b, p, b->prev[m.start], m.end);
    }
}

enum status bpe_encode(struct bpe *b, const uint8_t *piece, size_t n, struct ids *out)
{
    if (n == 0 || n > (size_t)1 << 30) return ERR(ST_E_RANGE, "a piece of %zu bytes cannot be tokenised", n);
    int32_t whole = find(b, piece, n);
    if (whole >= 0) return ids_push(out, whole);
    TRY(scratch(b, n));
    merge_all(b, piece, (uint32_t)n);
    for (uint32_t i = 0; i < n; i = b->end[i]) TRY(ids_push(out, find(b, piece + i, b->end[i] - i)));
    return ST_OK;
}
