/* gzip - expand a file that was compressed with gzip, known by its first bytes; the only user of zlib.
 *
 * Several members one after the other (files joined with cat) are one text; zero bytes after the last are padding.
 * What is cut short, damaged (zlib checks sums and lengths) or followed by other bytes is refused: half of a question
 * file is worse than none. Local, no I/O. */
#ifndef PDFLASH_DATA_GZIP_H
#define PDFLASH_DATA_GZIP_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* gzip_is - 1: n bytes at p begin like a gzip file. */
int gzip_is(const char *p, size_t n);
/* gzip_expand - *out_p: the text (mem_free), a zero byte after its *out_n_p bytes. most: refuse longer texts (and
 * perhaps one of just that length). path is for messages. Returns ST_OK, ST_E_FORMAT, ST_E_NOMEM. */
enum status gzip_expand(const char *path, const char *p, size_t n, size_t most, char **out_p, size_t *out_n_p);

#endif
