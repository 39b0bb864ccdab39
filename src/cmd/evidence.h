/* evidence - the directory that lets a run be understood later: command line, environment, versions, hashes, plan, the
 * descriptors of every rank, and one log a rank. Local. */
#ifndef PDFLASH_CMD_EVIDENCE_H
#define PDFLASH_CMD_EVIDENCE_H

#include "cmd/record.h"
#include "pd/handshake.h"

enum evidence_use {
    EVIDENCE_NEW,     /* into an empty or new directory */
    EVIDENCE_ADD,     /* --resume: behind what is there; plan.json is replaced */
    EVIDENCE_REPLACE, /* --force-new: over what is there; other files stay */
};

/* evidence_claim - create DIR and its parents, and refuse one that holds something unless use allows it (ST_E_FILE).
 * One rank, before evidence_log of any. */
enum status evidence_claim(const char *dir, enum evidence_use use);
/* evidence_log - copy this rank's log lines to DIR/log.RANK.txt. */
enum status evidence_log(const char *dir, int rank, enum evidence_use use);
/* evidence_write - command.txt, environment.txt, versions.txt, plan.txt, plan.json; descriptors.txt if d is not NULL.
 * ST_E_FILE, ST_E_IO. */
enum status evidence_write(const char *dir, enum evidence_use use, const struct setup *s, const struct plan_options *p,
                           const struct record_facts *f, const struct descriptor *d, int n_ranks);

#endif
