/* bubble - how much of the prefill pipeline idles while a wave of requests passes it. Pure arithmetic. Local.
 *
 * The model. C requests of one length arrive together and are cut into k chunks each; the pipeline has S stages.
 * Stage s takes t(s, j) for chunk j and works on one chunk at a time, in order; a chunk enters a stage when it has
 * left the stage before:
 *     end(s, j) = max(end(s, j-1), end(s-1, j)) + t(s, j)
 * Request r enters only when request r - slots has left the last stage (a request holds a slot that long; what it then
 * needs for the transfer and its start in decode is not counted). With T = end of the last chunk on the last stage
 *     bubble = 1 - sum of all t(s, j) / (S T)
 * Equal times and enough slots give the textbook's (S-1) / (S-1 + C k). Times come either all equal, or from the
 * chunk's operations, or from its bytes (cost.h): compute and memory bound; unequal stages then wait for the slowest.
 * Communication and the decode side are not in it. */
#ifndef PDFLASH_PLAN_BUBBLE_H
#define PDFLASH_PLAN_BUBBLE_H

#include "plan/memory.h"

enum balance { BALANCE_EQUAL, BALANCE_FLOPS, BALANCE_BYTES, BALANCE_N };
extern const char *const balance_name[BALANCE_N]; /* "equal", "flops", "bytes" */

/* bubble_times - the bubble of explicit times: n_requests requests of n_chunks chunks each, slots >= 1;
 * t[stage * n_chunks + chunk] > 0. *bubble_p in [0, 1). ST_E_NOMEM. */
enum status bubble_times(int n_stages, int n_chunks, const double *t, int n_requests, int slots, double *bubble_p);
/* bubble_chunks - chunks of a prompt of n_tokens; bubble_wave - the bubble of n_requests prompts of n_tokens tokens.
 * slots 0: as `run` has by default, n_requests but at most 8. t must not be single. d may be NULL. ST_E_NOMEM. */
int bubble_chunks(const struct plan_options *o, int n_tokens);
enum status bubble_wave(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o, int n_tokens, int n_requests, int slots, enum balance balance,
                        double *bubble_p);

#endif
