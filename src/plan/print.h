/* print - the plan of a run for a person (text) and for a program (JSON).
 *
 * Both say: ranks and roles; memory of every rank, its sum and the most of one rank, and by part: weights, state by
 * component, activations, collectives, windows, packing; per prefill stage its layers, MLA and KDA counts and the
 * captures it computes (a stage without one is shown as such); parameters, bytes and operations of the model, what a
 * decode step reads; state of one request; the pipeline's bubble at concurrency 1, 8 and 64 (bubble.h); per side the
 * entries with offset and stride; per source and destination the copies of one entry of each kind; bytes per page and
 * per request by component, unique and on the wire, and what one destination receives; bytes each source sends (to see
 * the balance); and one hash over all pair plans. Every destination's coverage is checked with transfer_plan_check
 * before anything is written.
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
/* plan_print_json - the same facts as one JSON object:
 *   topology, plan_hash (16 hex digits), ranks[], memory[] (by rank: weight_bytes, pool_bytes, work_bytes, coll_bytes,
 *   ops_bytes, window_bytes, pack_bytes, device_bytes, bytes, weights{}, state{}, windows{}), memory_sum{},
 *   memory_most{} (largest of each kind, and in all on one rank), fullest_rank, gpu_memory{} (when given), stages[], model{}
 *   (parts[], totals, replicated_bytes{}, steps[]), request_state{whole, prefill, decode}, destination_entries[]; not
 *   with single: bubble{waves[], stages[]}, source_entries[], copies[], bytes{}, sources[]. */
enum status plan_print_json(FILE *f, const struct config *c, const struct draft_config *d, const struct topology *t,
                            const struct plan_options *o, int n_tokens);
/* plan_print_hash - the hash both print: over topology, options and the hash of every pair plan. */
enum status plan_print_hash(const struct config *c, const struct draft_config *d, const struct topology *t,
                            const struct plan_options *o, uint64_t *hash_p);

#endif
