/* hash - XXH3 (checksums, config hashes) and SHA-256 (identity of files and rows). Local. */
#ifndef PDFLASH_BASE_HASH_H
#define PDFLASH_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* hash64 - XXH3-64 of n bytes; seed chains several pieces. */
uint64_t hash64(const void *p, size_t n, uint64_t seed);

struct sha256 {
    uint32_t h[8];
    uint64_t n;       /* bytes so far */
    uint8_t tail[64]; /* unfinished block */
};
void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *p, size_t n);
/* sha256_hex - finish and write 64 hex digits and a zero byte. */
void sha256_hex(struct sha256 *s, char out[65]);
/* hash_file_sha256 - digest of a whole file. ST_E_FILE when it cannot be read. */
enum status hash_file_sha256(const char *path, char out[65]);

#endif
