/* jsonl - questions as JSON lines: one {"question": text, "answer": text} object a line.
 *
 * Tolerated: a UTF-8 byte order mark (also one in the middle, where files were joined), CRLF, no final newline, blank
 * lines, lines of any length, further keys. Refused with FILE:LINE, and the COLUMN in characters from 1 where there is
 * one: what is not one JSON object, a missing, empty or non-text key, a duplicate key, invalid UTF-8, a zero character,
 * an answer without "#### N"; and as a whole: files of other formats by their first bytes, a file without rows.
 * Local, no I/O. */
#ifndef PDFLASH_DATA_JSONL_H
#define PDFLASH_DATA_JSONL_H

#include "data/questions.h"

/* jsonl_parse - rows of n bytes of text, at most limit of them (<= 0: all), added to q. path is for messages.
 * Returns ST_OK, ST_E_FORMAT, ST_E_NOMEM. */
enum status jsonl_parse(const char *path, const char *text, size_t n, int64_t limit, struct questions *q);

#endif
