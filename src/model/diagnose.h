/* diagnose - why a draft is rejected: what the engine does, measured from outside, against what it should do.
 *
 * One rank, one process. For every prompt: plain decoding gives the true continuation and the target's logits on it;
 * the engine under test (prefill_chunk and spec_round, as a run uses them) decodes the same prompt; after every commit
 * its state is compared with that of pools which only ever run forward over the accepted tokens (one that rounds its
 * caches as the engine does, so any difference counts, and one in FP32), and with the snapshot of the state before the
 * round run forward. Then each hypothesis (captures one layer off, the other stream, slots off by one, another mask
 * row, RoPE base, order of the fc columns, window, YaRN amplitude) drafts from the same anchors on the true path, and
 * acceptance says which of them this draft was trained for. A finding is what a measurement says; nothing here knows of
 * the faults that tests plant (diagnose_plant.h).
 * Positions are absolute. Local. Source: pd-systems 1.6, dflash notes 4-7, 10. */
#ifndef PDFLASH_MODEL_DIAGNOSE_H
#define PDFLASH_MODEL_DIAGNOSE_H

#include "model/spec.h"

/* What surrounds the engine under test; NULL: nothing. Tests put their faults here. */
enum diagnose_phase { DIAGNOSE_OUTSIDE, DIAGNOSE_PREFILL, DIAGNOSE_ROUND };
struct diagnose_hooks {
    void *ctx;
    void (*opened)(void *ctx, struct draft *d);                     /* weights are loaded */
    void (*phase)(void *ctx, enum diagnose_phase phase);            /* the engine under test begins or ends */
    void (*prefilled)(void *ctx, struct state *s, int slot);        /* the prompt's state is complete */
};

struct diagnose_prompt { const int32_t *id; int n; int request; };

struct diagnose_spec { /* pointers stay the caller's */
    struct ops *o;
    const struct config *c;
    const struct draft_config *d;
    const struct safetensors *ckpt, *draft_ckpt;
    enum kv_dtype kv;         /* of the engine under test */
    int page, chunk;          /* tokens */
    int max_new;              /* most tokens decoded of a prompt */
    int anchors;              /* positions that hypotheses are tried at, over all prompts */
    int n_prompts;
    const struct diagnose_prompt *prompt;
    const int32_t *mask;      /* [n_mask] other mask rows to try: the special tokens */
    int n_mask;
    struct diagnose_hooks hooks;
};

/* ---- what comes out; all host memory of the object, valid until diagnose_close ---------------------- */

struct diagnose_round { /* a round of the engine */
    int prompt, round, pos;   /* index of diagnose_spec.prompt; P: position of the anchor */
    int32_t anchor;
    int proposed, accepted;   /* as the engine counts */
    int on_path;              /* 1: everything before the anchor is as plain decoding says */
    int first;                /* on the true path, the first wrong draft; proposed: none; -1: not on_path */
};
struct diagnose_slot {        /* a draft, compared on the true path; -1 (gap NaN): not on_path */
    int32_t draft, target;    /* token of the draft, argmax of the target at the same position after the true tokens */
    int32_t rank;             /* tokens whose logit is larger than the draft's; 0: accepted if all before are */
    float gap;                /* largest logit - the draft's */
};

enum diagnose_part { PART_KDA, PART_CONV, PART_MLA, PART_DRAFT_K, PART_DRAFT_V, PART_N };
extern const char *const diagnose_part_name[PART_N];
struct diagnose_diff {
    double error;             /* largest difference over the largest value, of the worst layer */
    int layer;                /* that layer; target layer, or draft layer */
    int pos;                  /* MLA, draft: first position with a difference above the tolerance, else -1 */
};
struct diagnose_check {       /* the state after prefill (round -1) or after a round's commit */
    int prompt, round, pos;   /* pos: committed positions */
    struct diagnose_diff state[PART_N]; /* engine against recomputation with caches of its type */
    struct diagnose_diff fp32[PART_N];  /* against recomputation in FP32: what the rounding of the caches amounts to */
    struct diagnose_diff replay[2];     /* KDA, CONV: commit by replay against the snapshot run forward; round -1: 0 */
};

enum diagnose_stream { STREAM_ENGINE, STREAM_MIXTURE, STREAM_PREFIX, STREAM_N };
enum trial_kind {
    TRIAL_AS_IS, TRIAL_STREAM, TRIAL_TAP, TRIAL_SLOT, TRIAL_MASK, TRIAL_ROPE, TRIAL_FC, TRIAL_WINDOW, TRIAL_YARN
};
struct diagnose_trial {       /* one hypothesis: the engine, changed in one thing */
    enum trial_kind kind;
    char name[72];
    enum diagnose_stream stream; /* where captures come from */
    int layer_shift;          /* captures this many layers later */
    int swap_a, swap_b;       /* fc column blocks exchanged; equal: none */
    int slot_shift;           /* drafts are read this many slots later */
    int32_t mask;             /* -1: as it is */
    double theta, amplitude;  /* 0: as it is */
    int window_shift;
    /* measured at the anchors */
    int n;                    /* anchors it was tried at (the first n of every trial are the same) */
    double accepted;          /* mean drafts accepted */
    double slots;             /* share of all drafts that equal the true token, those behind a wrong one too */
    double nll;               /* mean -ln p(true token) of the draft, nats */
    double gain, gain_error;  /* accepted minus that of "as is", anchor by anchor: mean and standard error */
    double nll_gain, nll_gain_error; /* the same of nll, positive: better */
    double tau;               /* as a run would count over the same tokens; NaN: not walked */
};

struct diagnose_finding {
    char fault[64];           /* its name: "conv tail not rolled back" */
    char text[640];
    double before, after;     /* accept length (tau) of the engine, and with the fault taken out; NaN: not measured */
};

struct diagnose_result {
    int n_draft;              /* drafts of a round */
    struct diagnose_round *round;
    struct diagnose_slot *slot; /* [n_rounds][n_draft] */
    int n_rounds;
    struct diagnose_check *check;
    int n_checks;
    struct diagnose_trial *trial;
    int n_trials;
    struct diagnose_finding finding[12];
    int n_findings;
    double tau;               /* of the engine's rounds */
    double tolerance;         /* differences of state above it count */
    double scratch_error;     /* reference run forward piece by piece against one prefill of everything; 0: same bits */
    int first_wrong_prompt, first_wrong_token; /* output that differs from plain decoding; -1: none */
    /* captures: which stream and how many layers off the engine's own are; errors relative */
    enum diagnose_stream captured;
    int captured_shift;
    double captured_error, other_error;
    int trained_for;          /* enum diagnose_stream by acceptance; -1: cannot be told */
    int reach[CONFIG_MAX_DRAFT_LAYERS]; /* positions a sliding layer attends, measured; 0: more than were looked at;
                                         * -1: a full layer, or prompts too short */
    int not_numbers;          /* a round ended in NaN */
    double survival[256], conditional[256], slots[256]; /* [n_draft] over the engine's rounds, slots on the true path */
};

struct diagnose; /* opaque */

/* diagnose_open - weights, pools. ST_E_RANGE, ST_E_FORMAT, ST_E_NOMEM. */
enum status diagnose_open(const struct diagnose_spec *p, struct diagnose **g_p);
void diagnose_close(struct diagnose *g); /* NULL is legal */
/* diagnose_run - everything: rounds, state, captures, hypotheses, findings. The result stays the object's. */
enum status diagnose_run(struct diagnose *g, const struct diagnose_result **r_p);

#endif
