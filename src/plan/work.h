/* work - bytes of activations that a rank holds all through a run. Pure arithmetic. Local.
 *
 * What the model and the roles allocate once at start, in FP32, for the largest batch of the rank (a chunk of the
 * longest prompt in prefill, concurrency x block verify rows in decode):
 *   the layers' scratch and three planes of rows; logits of the last stage; the flows between layers and stages
 *   (prefix, draft accumulator and the whole bank: two in prefill: one is computed while the other is on its way);
 *   decode: what KDA keeps of a verify batch to replay the accepted rows, and the taps of a round;
 *   the draft's rows.
 * Not in it: scratch of collectives and of a device's operations (scratch.h) and buffers of MPI. */
#ifndef PDFLASH_PLAN_WORK_H
#define PDFLASH_PLAN_WORK_H

#include "plan/memory.h"

/* work_rows - rows of the rank's batches: of a chunk (0: it does not prefill), of a verify batch (0: it does not
 * decode), and of the larger. */
struct work_rows { int64_t chunk, decode, most; };
struct work_rows work_rows(const struct topology *t, const struct plan_options *o, struct rank_role r);

int64_t work_bytes(const struct config *c, const struct draft_config *d, const struct topology *t,
                   const struct plan_options *o, struct rank_role r);

#endif
