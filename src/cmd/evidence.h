/* evidence - the directory that lets a run be understood later: command line, environment, versions, hashes, plan, the
 * descriptors of every rank, and one log a rank. Local. */
#ifndef PDFLASH_CMD_EVIDENCE_H
#define PDFLASH_CMD_EVIDENCE_H

#include "cmd/record.h"
#include "pd/handshake.h"

/* evidence_log - create DIR and copy this rank's log lines to DIR/log.RANK.txt. */
enum status evidence_log(const char *dir, int rank);
/* evidence_write - command.txt, environment.txt, versions.txt, plan.txt, plan.json; descriptors.txt if d is not NULL. */
enum status evidence_write(const char *dir, const struct setup *s, const struct plan_options *p, const struct record_facts *f,
                           const struct descriptor *d, int n_ranks);

#endif
