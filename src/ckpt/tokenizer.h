/* tokenizer - Kimi-K3's tiktoken BPE: text to ids and ids to bytes.
 *
 * DIR/tiktoken.model: one "base64(bytes) rank" a line. Text is cut by K3's pre-tokenisation regex (PCRE2,
 * UTF + UCP); a piece that is itself a rank is one token, otherwise adjacent parts with the lowest-ranked
 * concatenation merge until none is left. Special ids (n_ranks .. n_ranks+255; names from
 * tokenizer_config.json, unnamed: <|reserved_token_ID|>) are never produced from text. Invalid UTF-8:
 * valid stretches go through the regex, each byte of an invalid stretch is its own token. Input is first
 * cut at 400,000 characters and at runs of 25,000 (non-)whitespace characters, as the original does.
 * Thread-compatible (one object a thread). Local. */
#ifndef PDFLASH_CKPT_TOKENIZER_H
#define PDFLASH_CKPT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct tokenizer; /* opaque */

struct ids { /* growable list of token ids, host */
    int32_t *id;
    size_t n, cap;
};
enum status ids_push(struct ids *v, int32_t id);
void ids_free(struct ids *v);

/* tokenizer_open - load DIR/tiktoken.model and DIR/tokenizer_config.json. vocab: the target's vocab_size,
 * which must equal ranks + 256 (-1: do not check). Returns ST_OK, ST_E_FILE, ST_E_FORMAT. */
enum status tokenizer_open(const char *dir, int vocab, struct tokenizer **t_p);
void tokenizer_close(struct tokenizer *t);

/* tokenizer_encode - append the ids of n bytes of user text. Never yields a special id. */
enum status tokenizer_encode(struct tokenizer *t, const char *text, size_t n, struct ids *out);
/* tokenizer_decode - bytes of ids; special ids as their names when with_special, else skipped.
 * *text_p is allocated (mem_free) and zero-terminated; *n_p its length. ST_E_RANGE: id outside the vocabulary. */
enum status tokenizer_decode(const struct tokenizer *t, const int32_t *id, size_t n, int with_special,
                             char **text_p, size_t *n_p);
/* tokenizer_special - id of a special token by name, e.g. "<|open|>", or -1. */
int32_t tokenizer_special(const struct tokenizer *t, const char *name);
int tokenizer_ranks(const struct tokenizer *t);
/* tokenizer_hash - hash64 of the two files' bytes. */
uint64_t tokenizer_hash(const struct tokenizer *t);

#endif
