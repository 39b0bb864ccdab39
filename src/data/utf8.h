/* utf8 - check and repair UTF-8 text, so that what is declared UTF-8 in a file is UTF-8. Local, no I/O.
 * Source: Unicode 15 table 3-7 (no overlong forms, no surrogates, at most U+10FFFF). */
#ifndef PDFLASH_DATA_UTF8_H
#define PDFLASH_DATA_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* utf8_next - bytes of the well-formed sequence at s (n bytes left), 0 when there is none; *cp_p: its code point. */
size_t utf8_next(const char *s, size_t n, uint32_t *cp_p);
/* utf8_bad_at - offset of the first byte that is not part of well-formed UTF-8; n when all is well. */
size_t utf8_bad_at(const char *s, size_t n);
/* utf8_clean - a zero-terminated copy (mem_free) in which each byte that is not part of a well-formed sequence,
 * and each zero byte, is U+FFFD. NULL when out of memory (logged). */
char *utf8_clean(const char *s, size_t n);

#endif
