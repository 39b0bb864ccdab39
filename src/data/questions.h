/* questions - GSM8K questions with their worked answers, from whatever file people have them in.
 *
 * Found by content, not by name:
 *   JSONL   one {"question": text, "answer": text} object a line (jsonl.h), plain or gzip (gzip.h)
 *   HDF5    a prompts file (its questions, whose digests are checked), or text datasets /question and /answer
 * An "id" of a row (text or whole number) must be its own: one that occurs twice is refused with both places, because
 * results could not be told apart by it. A question that occurs twice is kept and warned about with both places.
 * Every answer must end in "#### N". Local. */
#ifndef PDFLASH_DATA_QUESTIONS_H
#define PDFLASH_DATA_QUESTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct question {
    char *question;
    char *answer; /* the gold solution, whole */
    char *id;     /* NULL: none */
    int64_t row;  /* record number in the file, from 0 (blank lines do not count) */
    int64_t line; /* line number in the file, from 1; HDF5: 0 */
};
struct questions {
    struct question *row;
    size_t n, room;
    int64_t duplicates; /* rows whose question occurred before */
    char sha256[65];    /* digest of the whole file as it lies on the disk */
};

/* questions_read - the first limit rows of a file (limit <= 0: all; what follows them is not looked at). Release
 * with questions_free.
 * Returns ST_OK, ST_E_FILE, ST_E_FORMAT (places are FILE:LINE, FILE:LINE:COLUMN or FILE: row N), ST_E_NOMEM. */
enum status questions_read(const char *path, int64_t limit, struct questions *q_p);
void questions_free(struct questions *q); /* NULL and a cleared struct are legal */
/* questions_place - where a row stands, for messages: "row 3 (line 4)"; returns buf. */
const char *questions_place(const struct question *q, char *buf, size_t n);
/* questions_shared - shared[i] = 1 when the text of q's row i is also a question of `of`, else 0; *n_p of them.
 * shared: [q->n]. ST_E_NOMEM. */
enum status questions_shared(const struct questions *q, const struct questions *of, uint8_t *shared, size_t *n_p);

/* questions_add - for readers: check one row and copy it. where: its place for messages. ST_E_FORMAT (a text that is
 * empty, an answer without "#### N"), ST_E_NOMEM. */
enum status questions_add(struct questions *q, const char *where, const struct question *row);

#endif
