/* prefill - one chunk of one request through one pipeline stage's layers, taps projected on the way.
 *
 * The same call serves --single (one stage that is first and last), every stage of the pipeline and every
 * chunk size; results are the same bits. Stages without a tap forward the accumulator unchanged; the last
 * stage norms once and writes the draft K/V of the chunk. */
#ifndef PDFLASH_MODEL_PREFILL_H
#define PDFLASH_MODEL_PREFILL_H

#include "model/draft.h"

struct prefill_stage { /* one stage on one rank; pointers are the caller's */
    struct target *t;
    struct draft *d;      /* NULL without speculation */
    struct state *s;
    int first, last;
    int n_taps;           /* taps this stage computes, ascending by layer */
    int tap_layer[CONFIG_MAX_TAPS], tap_index[CONFIG_MAX_TAPS];
    int vocab, tp_rank;   /* needed for the logits hook and draws: columns of a full row, this rank in its group */
    struct sampler *sampler; /* last stage, TP rank 0, where first tokens are drawn; else NULL */
    float *row;              /* the same: host [vocab] */
    const struct tp_comm *comm; /* last stage, where first tokens are drawn */
};

/* prefill_stage_taps - fill n_taps, tap_* from the plan; d NULL: no taps. */
void prefill_stage_taps(struct prefill_stage *p, const struct config *c, const struct draft_config *d, int pp,
                        int stage);

/* prefill_chunk - positions [pos0, pos0 + n) of the request in `slot`. ids [n] host, needed on the first stage.
 * f: in (hand-off from the stage before, except first), out (to the next). final: this chunk ends the prompt; on the
 * last stage *first_token_p is then set (untouched otherwise: other stages have no next token). logits: NULL or called
 * with the full row on TP rank 0 of the last stage (all ranks give it or none; costs a gather and its memory).
 * ST_E_RANGE: n does not fit f; ST_E_INTERNAL: ids or projections are missing. Collective on the stage's TP group. */
enum status prefill_chunk(struct prefill_stage *p, int slot, int pos0, int n, const int32_t *ids, int final,
                          struct flow *f, int32_t *first_token_p, const struct probe *probe,
                          void (*logits)(void *ctx, int pos, const float *row, int vocab), void *logits_ctx);

/* prefill_draw - after a prefill_chunk that ended a prompt of n tokens, on the last stage: *token_p, the greedy token so
 * far, becomes a draw as `how` says (greedy: untouched). ST_E_FAULT on all ranks where the row is not made of numbers.
 * Collective on the stage's TP group. */
enum status prefill_draw(struct prefill_stage *p, const struct sampling *how, int question, int n, int32_t *token_p);

#endif
