/* bpe - the rank table of a tiktoken vocabulary and the merge of one piece of text.
 *
 * File: one "base64(bytes) SPACE rank" a line, ranks 0..n-1 each exactly once, no two ranks with the same
 * bytes, every single byte present. Merging: a piece that is itself a rank is one id; otherwise it starts as
 * single bytes and the adjacent pair whose concatenation has the lowest rank (leftmost among equals) is
 * joined until no pair is a rank. A piece of n bytes takes O(n log n) time. One object a thread (scratch
 * space is inside). Local. */
#ifndef PDFLASH_CKPT_BPE_H
#define PDFLASH_CKPT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ckpt/tokenizer.h"

struct bpe; /* opaque */

/* bpe_open - ranks from the n bytes of file text (file names it in messages). ST_E_FORMAT, ST_E_NOMEM. */
enum status bpe_open(const char *file, const char *text, size_t n, struct bpe **b_p);
void bpe_close(struct bpe *b); /* NULL is legal */

int bpe_ranks(const struct bpe *b);
/* bpe_bytes - bytes of a rank, 0 <= rank < bpe_ranks; *n_p is their number (at least 1). */
const uint8_t *bpe_bytes(const struct bpe *b, int32_t rank, size_t *n_p);
/* bpe_byte_rank - rank of a single byte (not equal to its value). */
int32_t bpe_byte_rank(const struct bpe *b, uint8_t byte);
/* bpe_encode - append the ids of one piece of n >= 1 bytes. ST_E_NOMEM; ST_E_RANGE when n exceeds 2^30. */
enum status bpe_encode(struct bpe *b, const uint8_t *piece, size_t n, struct ids *out);

#endif
