/* print - the plan of a run for a person (text) and for a program (JSON).
 *
 * Both say: ranks and roles; per prefill stage its layers, MLA and KDA counts and the captures it computes
 * (a stage without one is shown as such); per side the entries with offset and stride; per source and
 * destination the copies of one entry of each kind; bytes per page and per request by component, unique and
 * on the wire; bytes each source sends (to see the balance); memory of every rank; and one hash over all pair
 * plans. Every destination's coverage is checked with transfer_plan_check before anything is written.
 * With single there is no transfer: those parts are absent. Needs neither MPI nor weights. Local. */
#ifndef PDFLASH_PLAN_PRINT_H
#define PDFLASH_PLAN_PRINT_H

#include <stdint.h>
#include <stdio.h>

#include "plan/memory.h"

/* plan_print_text - to an open stream.
 *   d        draft model or NULL
 *   n_tokens prompt length of the request whose bytes are counted, tokens, 1 .. o->max_prompt
 * Returns ST_OK, ST_E_CONFIG, ST_E_HANDSHAKE, ST_E_INTERNAL (coverage), ST_E_NOMEM, ST_E_IO. */
enum status plan_print_text(FILE *f, const struct config *c, const struct draft_config *d, const struct topology *t,
                            const struct plan_options *o, int n_tokens);
/* plan_print_json - the same into the file at path, replaced if it exists. One object:
 *   topology, ranks[], stages[], source_entries[], destination_entries[], copies[], bytes{}, sources[], memory[],
 *   plan_hash (16 hex digits). Returns also ST_E_FILE when path cannot be opened. */
enum status plan_print_json(const char *path, const struct config *c, const struct draft_config *d,
                            const struct topology *t, const struct plan_options *o, int n_tokens);
/* plan_print_hash - the hash both print: over topology, options and the hash of every pair plan. */
enum status plan_print_hash(const struct config *c, const struct draft_config *d, const struct topology *t,
                            const struct plan_options *o, uint64_t *hash_p);

#endif
