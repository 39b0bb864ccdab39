/* dump - logits of committed positions to a file, sorted by (request, position), for byte comparison between runs.
 * Rows are kept in memory until the end. FILE gets decode rows, FILE.prefill the rows that gave first tokens. Local. */
#ifndef PDFLASH_CMD_DUMP_H
#define PDFLASH_CMD_DUMP_H

#include <stdint.h>

#include "cmd/options.h"

/* dump_check - before the run: whether FILE and FILE.prefill can be written when it ends. Nothing is made. ST_E_FILE: one
 * of them is a file of this run (--out, its journal, --prompts, in --model or --draft), exists without --force-new, is a
 * directory, or its directory cannot be written. */
enum status dump_check(const struct options *o);

struct dump; /* opaque */
/* prompt_tokens [n]: tells prompt rows from decode rows; the caller's. */
enum status dump_open(const char *path, const int32_t *prompt_tokens, struct dump **d_p);
void dump_close(struct dump *d);
/* dump_row - callback: ctx is the dump. */
void dump_row(void *ctx, int request, int pos, const float *row, int vocab);
/* dump_write - write the files for which there are rows. ST_E_NOMEM (rows were lost), ST_E_IO. */
enum status dump_write(struct dump *d);

#endif
