/* kda - one Kimi Delta Attention layer on one rank: projections, short convolution, recurrence, gated output.
 *
 * Per rank: H = heads of this rank, d = head dimension. Input u [t][hidden] is the normed layer input.
 *   [q|k|v] rounded to the kv type (so a carried BF16 tail repeats them exactly), conv + SiLU, l2 norms, recurrence
 *   in FP32, RMSNorm per head * sigmoid(g), output projection summed over heads and ranks in one tree.
 * PREFILL, WARMUP and DECODE advance state and tail. VERIFY leaves both and keeps the rows' inputs; kda_commit
 * replays the accepted ones. One set of records: the last VERIFY batch.
 * Source: kimi-k3 notes 3.5. */
#ifndef PDFLASH_MODEL_KDA_H
#define PDFLASH_MODEL_KDA_H

#include "model/run.h"

struct kda_rows { /* everything a row brings to the recurrence, bmem */
    float *x;     /* [t][3][H * d] before the convolution */
    float *qkv;   /* [t][3][H][d] prepared */
    float *g;     /* [t][H][d] log decay */
    float *aux;   /* [t][H * d + d + H] output gate | f_a | beta */
};

struct kda {
    int layer;           /* global */
    int heads, d;        /* heads of this rank, head dimension */
    struct mat qkv;      /* [3 * H * d][hidden] */
    struct mat aux;      /* [H * d + d + H][hidden]: g_proj, f_a_proj, b_proj */
    struct mat f_b;      /* [H * d][d] */
    struct mat out;      /* [hidden][H * d], a leaf per head */
    struct buf conv;     /* f32 [3 * H * d][kernel] */
    struct buf a_exp;    /* f32 [H], exp(A_log) */
    struct buf dt_bias;  /* f32 [H * d] */
    struct buf norm;     /* f32 [d] */
    struct kda_rows record; /* of max_verify_rows rows */
    struct buf record_mem;
};

/* kda_open - bind layer b->layer; max_verify_rows sizes the records (0: none). kda_close takes a cleared struct too. */
enum status kda_open(struct binder *b, int max_verify_rows, struct kda *k);
void kda_close(struct ops *o, struct kda *k);
/* kda_scratch - floats of scratch for t rows. */
int64_t kda_scratch(const struct kda *k, int t);
/* kda_forward - y[t][hidden] := the layer's attention output. y may not alias u. Collective on the TP group. */
enum status kda_forward(struct kda *k, const struct run *r, const float *u, float *y);
/* kda_commit - advance the states and tails of the sequences of the last VERIFY batch by recorded rows: those of q[i]
 * from seq[i].row0 on, seq[i].n_rows of them. seq[i].state is overwritten. Local. */
void kda_commit(struct kda *k, struct ops *o, const struct config *c, const struct state *s, const struct batch_seq *q,
                int n_seq, struct seq_rows *seq);

#endif
