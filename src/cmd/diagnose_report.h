/* diagnose_report - what `pdflash diagnose` says: the comparison of settings, the text, the HDF5 group. Local. */
#ifndef PDFLASH_CMD_DIAGNOSE_REPORT_H
#define PDFLASH_CMD_DIAGNOSE_REPORT_H

#include "ckpt/safetensors.h"
#include "ckpt/tokenizer.h"
#include "cmd/options.h"
#include "data/prompts.h"
#include "model/diagnose.h"

struct diagnose_files { /* everything that is compared before anything runs; pointers NULL until opened */
    struct config c;
    struct draft_config d;
    struct safetensors *ckpt, *draft_ckpt;
    struct tokenizer *tok;
    struct prompts *prompts;
};

/* diagnose_match - print every setting of draft, target, tokenizer and prompts that can be compared. ST_E_CONFIG if
 * some do not match; each is logged with file, field and both values. */
enum status diagnose_match(const struct options *o, const struct diagnose_files *f, FILE *out);
/* diagnose_print - the measurements as text. */
void diagnose_print(const struct options *o, const struct diagnose_files *f, const struct diagnose_result *r,
                    FILE *out);
/* diagnose_claim - before the work: ST_E_FILE unless --out may be written. diagnose_write - write it. */
enum status diagnose_claim(const struct options *o);
enum status diagnose_write(const struct options *o, const struct diagnose_files *f, const struct diagnose_result *r);

#endif
