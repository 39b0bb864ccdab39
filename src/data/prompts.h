/* prompts - prompts.h5, schema version 1: the questions of a run, already rendered and tokenised.
 *
 *   /text/question, /text/gold     variable-length UTF-8, one a row
 *   /tokens/flat                   int32, ids of all rows one after the other
 *   /tokens/offsets                int64 [n + 1]: row i is flat[offsets[i] .. offsets[i+1])
 *   /row/source_row                int64, record number in the source file, from 0
 *   /row/sha256                    UTF-8, 64 hex digits: SHA-256 of question, one zero byte, gold
 * Root attributes: schema "pdflash-prompts", schema_version, rows, template, thinking, shots, shots_source,
 * shots_leaked, format, tokenizer_hash, source, source_sha256 (files without format and shots_leaked are older than
 * these; they read as "openai" and 0). The reader recomputes every row's SHA-256 and checks shapes,
 * offsets and ids; whatever does not fit is refused by name. Written as one atomic file. Local. */
#ifndef PDFLASH_DATA_PROMPTS_H
#define PDFLASH_DATA_PROMPTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { PROMPTS_SCHEMA = 1 };
#define PROMPTS_RAW "raw" /* template of prompts that are plain text, without any chat markup */

struct prompts_meta {
    const char *template_name;  /* chat_template_name(), e.g. "k3-xtml/1", or PROMPTS_RAW */
    const char *thinking;       /* "off", "low", "high", "max" */
    int64_t shots;              /* worked examples before each question */
    const char *shots_source;   /* file name of the shots, "" when shots is 0 */
    const char *tokenizer_hash; /* hex text, as the caller forms it */
    const char *source;         /* file name of the questions (last path component) */
    const char *source_sha256;  /* of the whole file, 64 hex digits */
    const char *format;         /* wording of the examples: "openai", "lm-eval", "sglang"; NULL counts as "openai" */
    int64_t shots_leaked;       /* rows whose question is one of the worked examples: graded with the answer in sight */
};
struct prompts_row {
    const char *question, *gold; /* UTF-8 */
    int64_t source_row;
    const int32_t *id;           /* [n_ids] the complete prompt, generation prefix included */
    int64_t n_ids;               /* >= 1 */
    char sha256[65];             /* set by the reader; the writer computes it and ignores this field */
};
struct prompts; /* opaque: a file read into memory */

/* prompts_is - 1: path is an HDF5 file that says it holds prompts. */
int prompts_is(const char *path);
/* prompts_claim - whether prompts_write may write path: it is absent, or overwrite is set and it holds prompts (no
 * other file is ever replaced), and its directory can be written. ST_E_FILE. */
enum status prompts_claim(const char *path, int overwrite);
/* prompts_write - write a whole file; overwrite: replace one that holds prompts. Row content is copied.
 * Returns ST_OK, ST_E_FILE (prompts_claim), ST_E_RANGE (empty row, negative id, no rows), ST_E_FORMAT (UTF-8),
 * ST_E_IO. */
enum status prompts_write(const char *path, int overwrite, const struct prompts_meta *meta,
                          const struct prompts_row *row, size_t n);

/* prompts_read - load and check a file. Returns ST_OK, ST_E_FILE, ST_E_FORMAT. */
enum status prompts_read(const char *path, struct prompts **p_p);
void prompts_close(struct prompts *p); /* NULL is legal */
const struct prompts_meta *prompts_meta(const struct prompts *p);
size_t prompts_count(const struct prompts *p);
/* prompts_row - the i-th row, i < count; views that live until prompts_close. */
const struct prompts_row *prompts_row(const struct prompts *p, size_t i);
int64_t prompts_tokens_max(const struct prompts *p); /* longest row, tokens */
/* prompts_hash - hash64 over ids, lengths, source rows and meta (but not format and shots_leaked, which the ids imply):
 * identity of the work for config hashes. */
uint64_t prompts_hash(const struct prompts *p);
/* prompts_match - refuse (ST_E_CONFIG, naming field, found and wanted value) a file made for something else:
 * every non-NULL field of want is compared (shots only if want->shots >= 0), and every id must be < vocab
 * (vocab <= 0: not checked; names the row). */
enum status prompts_match(const struct prompts *p, const struct prompts_meta *want, int64_t vocab);

#endif
