/* target - a contiguous range of layers of the Kimi-K3 text model on one rank of a TP group.
 *
 * Weights: this rank's heads, columns, experts and vocabulary rows only, read from the mapped checkpoint.
 * The first range owns the embedding, the last the output mixture, final norm and head. Activations flow
 * through struct flow, the same object that crosses pipeline stages.
 * Source: kimi-k3 notes section 3.8 (whole forward). */
#ifndef PDFLASH_MODEL_TARGET_H
#define PDFLASH_MODEL_TARGET_H

#include "ckpt/config.h"
#include "ckpt/safetensors.h"
#include "model/batch.h"
#include "model/comm.h"
#include "model/state.h"
#include "plan/topology.h"

struct flow { /* activations of one batch, bmem, FP32 */
    int cap_rows;        /* rows allocated */
    int n_bank;          /* bank rows present */
    float *prefix;       /* [cap_rows][hidden] running prefix */
    float *bank;         /* [max_bank][cap_rows][hidden], row r at bank + r * cap_rows * hidden */
    float *acc;          /* [cap_rows][hidden] sum of the tap projections so far */
    uint32_t taps;       /* bit i: tap index i is in acc; 0: none yet, acc undefined */
    struct buf mem;
};
enum status flow_open(struct ops *o, const struct config *c, int cap_rows, struct flow *f_p);
void flow_close(struct ops *o, struct flow *f);

/* What happens with a tap: h [rows][hidden] is the pre-norm AttnRes mixture after layer `layer`, valid during
 * the call. index: position in the draft's target_layer_ids. Taps come in ascending layer order. */
struct tap_sink {
    void *ctx;
    enum status (*tap)(void *ctx, int index, const float *h, int rows);
    int n;                       /* taps this range computes */
    int layer[CONFIG_MAX_TAPS];  /* ascending */
    int index[CONFIG_MAX_TAPS];
};

/* Hook for tests and diagnosis: named intermediate values, e.g. ("attn_out", layer, x, rows, cols); bmem. */
struct probe {
    void *ctx;
    void (*value)(void *ctx, const char *name, int layer, const float *x, int rows, int64_t ld, int cols);
};

struct target; /* opaque: weights, scratch, replay records */

struct target_spec {
    struct range layers;         /* global, zero-based */
    int tp, tp_rank, ep;         /* this rank in its group */
    int max_rows;                /* rows of the largest batch */
    int max_verify_rows;         /* rows of the largest VERIFY batch (replay records); 0: none (prefill) */
    int absorbed_prefill;        /* MLA form of PREFILL batches: 1 absorbed, 0 expanded */
    int max_logits;              /* most rows of logits at once (also target_head); 0: max_rows */
};

/* target_open - bind and pack weights. The comm table is copied. Returns ST_OK, ST_E_FORMAT, ST_E_NOMEM. Local. */
enum status target_open(struct ops *o, const struct config *c, const struct safetensors *ckpt,
                        const struct target_spec *spec, const struct tp_comm *comm, struct target **t_p);
void target_close(struct target *t);
int64_t target_weight_bytes(const struct target *t);

/* target_forward - run the range over a batch.
 *   first range: f->prefix is filled from b->id; others: f arrives filled by the hand-off.
 *   PREFILL advances state in place. DECODE too. VERIFY leaves KDA and conv state untouched and keeps replay
 *   records; MLA rows are written (rows past the commit are dead and overwritten later). target_commit settles.
 *   WARMUP and IDLE: WARMUP runs rows through scratch slot state it was given like PREFILL; IDLE does nothing.
 * taps, probe may be NULL. Collective on the TP group. */
enum status target_forward(struct target *t, struct state *s, const struct batch *b, struct flow *f,
                           const struct tap_sink *taps, const struct probe *probe);

/* target_logits - last range only, after target_forward: logits of the wanted rows (in row order),
 * [n][vocab/tp] bmem, valid until the next call; *n_p their count. Local. */
const float *target_logits(const struct target *t, int *n_p);
/* target_argmax - greedy token of every wanted row: host arrays id[n], gap NULL or [n] unused. ST_E_FAULT on NaN
 * logits naming the row. Collective on the TP group. */
enum status target_argmax(struct target *t, int32_t *id);
/* target_argmax_rows - the same, but a row of NaN gives id -1 and no error: other rows of the batch are sound. */
enum status target_argmax_rows(struct target *t, int32_t *id);
/* target_argmax_biased - rows [first, first + n) of the logits gain bias[n][cols] (bmem, this rank's columns of the
 * vocabulary, cols of them), and id[n] are their greedy tokens, -1 for a row of NaN. Collective on the TP group. */
enum status target_argmax_biased(struct target *t, int first, int n, const float *bias, int cols, int32_t *id);
/* target_gather_logits - full rows y[n][vocab] on host; valid on TP rank 0. Collective. */
enum status target_gather_logits(struct target *t, float *y);
/* target_gather_rows - the same of rows [first, first + n); y may be NULL on other ranks. */
enum status target_gather_rows(struct target *t, int first, int n, float *y);

/* target_commit - after VERIFY: sequence i of that batch keeps n_commit[i] >= 1 rows: KDA state and conv tails
 * become those after row n_commit[i]-1 by replaying the recorded inputs. Local. */
enum status target_commit(struct target *t, struct state *s, const struct batch *b, const int *n_commit);

/* The draft uses the target's tables. embed: x[n][hidden] := rows of ids (Collective: vocabulary is sharded).
 * head: logits [n][vocab/tp] of y[n][hidden], same buffer as target_logits (Local); then target_argmax. */
enum status target_embed(struct target *t, const int32_t *id, int n, float *x);
enum status target_head(struct target *t, const float *y, int n);

#endif
