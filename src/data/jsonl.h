/* jsonl - read the question files of GSM8K: one {"question": text, "answer": text} object a line.
 *
 * Tolerated: a UTF-8 byte order mark, CRLF, no final newline, blank lines, further keys. Refused with
 * FILE:LINE and the reason: what is not one JSON object, a missing, empty or non-text key, a duplicate key,
 * invalid UTF-8, a zero character, an answer without "#### N", a compressed file, a file without rows. A question that
 * occurs twice is kept and warned about with both row numbers. Local. */
#ifndef PDFLASH_DATA_JSONL_H
#define PDFLASH_DATA_JSONL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct jsonl_row {
    char *question;
    char *answer;  /* the gold solution, whole */
    int64_t row;   /* record number in the file, from 0 (blank lines do not count) */
    int64_t line;  /* line number in the file, from 1 */
};
struct jsonl {
    struct jsonl_row *row;
    size_t n;
    int64_t duplicates; /* rows whose question occurred before */
    char sha256[65];    /* digest of the whole file */
};

/* jsonl_read - the first limit rows of a file (limit <= 0: all; what follows them is not looked at). Release
 * with jsonl_free.
 * Returns ST_OK, ST_E_FILE, ST_E_FORMAT, ST_E_NOMEM. */
enum status jsonl_read(const char *path, int64_t limit, struct jsonl *j_p);
void jsonl_free(struct jsonl *j); /* NULL and a cleared struct are legal */

#endif
