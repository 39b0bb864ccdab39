/* diagnose_impl - the object behind diagnose.h; private to diagnose*.c, the plants excepted: they do not see it. */
#ifndef PDFLASH_MODEL_DIAGNOSE_IMPL_H
#define PDFLASH_MODEL_DIAGNOSE_IMPL_H

#include "model/diagnose.h"
#include "model/draft_weights.h"
#include "model/prefill.h"

enum { WANTED_MAX = CONFIG_MAX_TAPS, SEQS = 24 };

struct known { /* one prompt and its true continuation, host */
    int n_prompt, n_all;      /* tokens of the prompt; of prompt and truth, block more than are decoded */
    int n_out;                /* true tokens up to EOS or max_new */
    int32_t *id;              /* [n_all] */
    float *logits;            /* [n_all - n_prompt - 1][vocab] target's, row i: position n_prompt + i */
    float *feature[STREAM_N][WANTED_MAX]; /* [n_all][hidden] captures after layer wanted[i] */
};

struct diagnose {
    struct diagnose_spec p;
    struct ops *o;
    struct target *t;
    struct draft *d;
    struct state work;        /* the engine's pool and copies of it */
    struct state ref, ref32;  /* recomputation: caches of the engine's type; FP32, unless the engine's are */
    struct flow f;
    struct prefill_stage stage, ref_stage, ref32_stage;
    int rows;                 /* of the largest batch */
    int block, n_draft;       /* verify rows, drafts */
    int max_tokens;           /* a request holds */
    int n_wanted, wanted[WANTED_MAX]; /* layers whose captures are kept, ascending */
    struct known *known;      /* [n_prompts] */
    struct buf kept;          /* bmem [rows][hidden] */
    /* host scratch */
    float *a, *b;             /* [item] values of two state items */
    void *raw;
    float *line;              /* [vocab] */
    int32_t *ids;             /* [SEQS][n_draft] */
    int n_anchors;
    struct anchor { int prompt, at; } *anchor; /* at: output index; position n_prompt + at */
    float *base_accepted, *base_nll; /* [n_anchors] of "as is" */
    float *accepted, *nll;    /* [n_anchors] of the trial at hand */
    struct diagnose_result r;
    int cap_rounds, cap_checks, cap_trials;
    char note[PART_N][200];   /* what the first difference of a part looks like */
};

static inline void diagnose_phase(const struct diagnose *g, enum diagnose_phase phase)
{
    if (g->p.hooks.phase) g->p.hooks.phase(g->p.hooks.ctx, phase);
}

/* diagnose_feed - ids[n] through prefill of the engine (stage: whose pool) into slot from position pos on. */
enum status diagnose_feed(struct diagnose *g, struct prefill_stage *stage, int slot, int pos, const int32_t *id, int n,
                          int final, int32_t *first_p);

/* diagnose_truth - plain decoding of all prompts. diagnose_live - the engine's rounds and their state. */
enum status diagnose_truth(struct diagnose *g);
enum status diagnose_live(struct diagnose *g);

/* diagnose_copy - slot from := what slot to holds, [0, pos) of the paged parts. */
void diagnose_copy(struct diagnose *g, int from, int to, int pos);
/* diagnose_compare - slot a of pool x against slot b of pool y, positions [0, pos). diff[PART_N]. */
void diagnose_compare(struct diagnose *g, const struct state *x, int a, const struct state *y, int b, int pos,
                      struct diagnose_diff *diff);
/* diagnose_zero_rows - positions of [0, pos) whose draft K and V rows are all zero in every layer. */
int diagnose_zero_rows(struct diagnose *g, const struct state *s, int slot, int pos);

/* diagnose_features - captures of all prompts, and which of the streams the engine's are. */
enum status diagnose_features(struct diagnose *g);
/* diagnose_reach - how far back each sliding layer looks. After diagnose_features. */
enum status diagnose_reach(struct diagnose *g);
/* diagnose_context - draft K/V of a prompt's tokens [0, n) under a trial, into slot of the work pool. */
enum status diagnose_context(struct diagnose *g, const struct diagnose_trial *x, int prompt, int n, int slot);

/* diagnose_trials - all hypotheses. diagnose_walk - tau of a trial over every anchor of the true paths. */
enum status diagnose_trials(struct diagnose *g);
enum status diagnose_walk(struct diagnose *g, struct diagnose_trial *x);
/* diagnose_measure - a trial at the first n anchors, against the base: "as is", or what diagnose_base set last, which
 * is the trial measured before it. */
enum status diagnose_measure(struct diagnose *g, struct diagnose_trial *x, int n);
void diagnose_base(struct diagnose *g, int n);
/* diagnose_find - findings from everything measured. */
enum status diagnose_find(struct diagnose *g);

#endif
