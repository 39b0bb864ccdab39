/* spec - one round of speculative (or plain) decoding for a set of sequences on one TP group.
 *
 * Round: draft block -> VERIFY batch -> accept, greedy or by sampling.h as each sequence asks -> commit a+1 rows -> emit, clip at EOS and budget.
 * Plain (no draft): DECODE batch of one row per sequence. No MPI here; decisions are taken on TP rank 0 and
 * broadcast through tp_comm, so ranks never disagree. The round allocates nothing.
 * Source: dflash notes sections 4, 7. */
#ifndef PDFLASH_MODEL_SPEC_H
#define PDFLASH_MODEL_SPEC_H

#include "model/draft.h"
#include "model/width.h"

enum stop_reason { STOP_NONE, STOP_EOS, STOP_LENGTH, STOP_FAILED, STOP_ABORTED };

/* proposed: drafts verified; accepted: before EOS/budget clipping */
struct spec_round { int proposed, accepted, emitted; int32_t bonus; };

struct spec_seq { /* one request while it decodes */
    int request;          /* question index */
    int slot;             /* state slot */
    int prompt_tokens;
    int pos;              /* P: committed positions; out[n_out-1] sits at P, not yet run */
    int max_new;
    int n_out;            /* output tokens so far, including the one from prefill */
    int32_t *out;         /* [max_new] */
    int n_rounds;
    struct spec_round *round; /* [max_new] */
    enum stop_reason stop;    /* STOP_NONE while running */
    struct sampling how;      /* all zero: greedy; the same on all ranks */
};

enum spec_source { SPEC_DRAFT, SPEC_ORACLE, SPEC_WRONG, SPEC_RANDOM }; /* tests replace the draft's proposals */

struct spec; /* opaque: target, draft, state, batch arrays */

struct spec_options {
    int block;            /* most verify rows per sequence, at most draft_verify_rows; 1: plain decoding */
    double confidence;    /* verify the drafts before the first one whose confidence is below; 0: all. Needs a draft
                           * opened with confidence. The cut depends on tokens before it only, so nothing is lost. */
    int adaptive;         /* the rows of each step are what width.h takes for worth it, at most block; needs a draft */
    int min_context;      /* sequences of fewer committed positions are verified without drafts; 0: none */
    int max_seqs;         /* most sequences in one round */
    int eos;
    int graphs;           /* each part of a round is a region of the backend (ops graph_begin); same bits either way */
    int samples;          /* sequences may draw their tokens: room for their rows of logits on rank 0 */
    enum spec_source source;
    /* SPEC_ORACLE: the true continuation of a request: token at output index i, or -1 */
    int32_t (*oracle)(void *ctx, int request, int i);
    void *oracle_ctx;
    uint64_t seed;        /* SPEC_RANDOM, SPEC_WRONG */
    /* called on TP rank 0 for every committed row with its full logits row [vocab], host; NULL: off (costs a gather) */
    void (*logits)(void *ctx, int request, int pos, const float *row, int vocab);
    void *logits_ctx;
};

/* spec_open - draft may be NULL (block must be 1). t, d, s stay the caller's. */
enum status spec_open(struct ops *o, const struct config *c, struct target *t, struct draft *d, struct state *s,
                      const struct tp_comm *comm, const struct spec_options *opt, struct spec **s_p);
void spec_close(struct spec *s);

/* spec_start - a sequence whose prompt state is in its slot: sets pos, first token, and stop if that token already
 * ends it (EOS or max_new == 1). Local. */
void spec_start(struct spec_seq *q, int32_t first_token, int eos);
/* A sequence whose logits or drafts are not numbers stops with STOP_FAILED and gains no token; the others go on.
 * spec_round - one round for n >= 0 running sequences (n = 0: idle, does nothing). draft_s, verify_s, commit_s: seconds
 * added, may be NULL. Collective on the TP group. */
enum status spec_round(struct spec *s, struct spec_seq *const *q, int n, double *draft_s, double *verify_s,
                       double *commit_s);

/* spec_width - what --adaptive has learnt on TP rank 0; NULL without it or on another rank. */
const struct width *spec_width(const struct spec *s);

/* accept_greedy - drafts accepted: largest a with draft[i] == argmax[i] for all i < a. Pure. */
int accept_greedy(const int32_t *draft, const int32_t *argmax, int n_draft);

#endif
