/* text_file - a whole file of a checkpoint in memory (JSON, tokenizer ranks). Local. */
#ifndef PDFLASH_CKPT_TEXT_FILE_H
#define PDFLASH_CKPT_TEXT_FILE_H

#include <stddef.h>

#include "base/err.h"

/* text_file_path - DIR/NAME into out (n bytes). ST_E_FILE when it does not fit. */
enum status text_file_path(const char *dir, const char *name, char *out, size_t n);
/* text_file_read - all bytes of path; *p_p is allocated (mem_free) and followed by a zero byte that *n_p does
 * not count. ST_E_FILE (names the path and the cause), ST_E_NOMEM. */
enum status text_file_read(const char *path, char **p_p, size_t *n_p);

#endif
