/* draft_weights - the drafter's weights on one rank and the scratch of its calls; private to draft*.c and to
 * diagnose*.c, which changes one thing at a time in an open draft.
 *
 * TP: q heads are split, kv heads are max(1, H/tp) per rank (replicated when tp > H), o_proj and down_proj are
 * column slices whose partial sums go through tp_comm; fc, hidden_norm and all norms are whole on every rank.
 * Leaves of the trees: one head for o_proj, split_leaf_cols(inter) columns for down_proj.
 * Markov head: W2 is split by vocabulary rows like the target's head, W1 is whole on every rank: a row of it is needed
 * per drafted token, and a sum over the group for each would cost more than its bytes. */
#ifndef PDFLASH_MODEL_DRAFT_WEIGHTS_H
#define PDFLASH_MODEL_DRAFT_WEIGHTS_H

#include "model/draft.h"

struct draft_layer {
    struct mat kv;        /* [2 * kv_heads * d][hidden] rows of k_proj, then of v_proj */
    struct buf k_norm;    /* [d] f32 */
    /* block path */
    struct mat q;         /* [q_heads * d][hidden] */
    struct mat o;         /* [hidden][q_heads * d], leaf d */
    struct mat gate_up;   /* [2 * cols][hidden] rows of gate_proj, then of up_proj */
    struct mat down;      /* [hidden][cols], leaf split_leaf_cols(inter) */
    struct buf q_norm;    /* [d] f32 */
    struct buf norm_in;   /* [hidden] f32, input_layernorm */
    struct buf norm_post; /* [hidden] f32, post_attention_layernorm */
};

struct draft {
    struct ops *o;
    struct draft_config c;
    struct draft_spec spec;
    struct tp_comm comm;
    int q_heads, kv_heads;          /* of this rank */
    int cols;                       /* MLP columns of this rank */
    int64_t weight_bytes;

    struct mat fc[CONFIG_MAX_TAPS]; /* [hidden][hidden], by tap index; empty when not loaded */
    struct buf hidden_norm;         /* [hidden] f32 */
    struct buf final_norm;          /* [hidden] f32 */
    struct draft_layer layer[CONFIG_MAX_DRAFT_LAYERS];
    struct buf mask_row;            /* [hidden] f32; empty: the target's embedding of mask_id */
    double inv[OPS_ROPE_DIM / 2];   /* YaRN only: angles per position */

    struct markov { /* DSpark */
        struct buf w1;              /* bf16 [vocab][rank] */
        struct mat w2;              /* [vocab / tp][rank] */
        struct mat conf_y, conf_w;  /* [1][hidden], [1][rank]; empty when not loaded */
        float conf_bias;
        int vocab;                  /* columns of this rank */
        struct buf e;               /* scratch f32 [max_seqs][rank]: W1 of the tokens before */
        struct buf bias;            /* scratch f32 [max_seqs][vocab / tp] */
        struct buf part;            /* scratch f32 [max_rows]: one side of the confidence */
        float *by_y, *conf;         /* host [max_rows]: the y side by row; the answer */
        int32_t *before, *now;      /* host [max_seqs] */
    } markov;

    struct drawn { /* drafts that are drawn; TP rank 0 only but for n and ids */
        struct sampler *sampler;
        float *row;                 /* host [sequence][draft][vocab] logits of the latest block */
        float *slot;                /* host [max_seqs][vocab] logits of one slot */
        int n;                      /* drafts of a sequence in the latest block */
        int32_t *id;                /* host [sequence][draft] the message of rank 0 */
    } drawn;

    /* scratch, bmem f32, [max_rows] rows */
    struct buf part;                /* [rows][hidden] partial of a tap, normed context, normed block input */
    struct buf x;                   /* [rows][hidden] block stream */
    struct buf sum;                 /* [rows][hidden] partial sums over TP */
    struct buf kvb;                 /* [rows][2 * kv_heads * d] */
    struct buf qb;                  /* [rows][q_heads * d] */
    struct buf att;                 /* [rows][q_heads * d] */
    struct buf up;                  /* [rows][2 * cols] */
    struct buf act;                 /* [rows][cols] */
    /* control arrays, host, [max_rows] */
    int32_t *pos, *id;
    struct seq_rows *seq;
};

/* draft_load - read the parts spec asks for. ST_E_FORMAT names the tensor. Local. */
enum status draft_load(struct draft *d, const struct safetensors *ckpt);
void draft_unload(struct draft *d);

/* draft_rope - the rotation of the draft: x[rows][heads][head_dim] (ldx) by the positions in d->pos. */
void draft_rope(struct draft *d, float *x, int64_t ldx, int rows, int heads);

/* draft_markov_open - scratch of the head, after draft_load. draft_markov_close frees it. */
enum status draft_markov_open(struct draft *d);
void draft_markov_close(struct draft *d);
/* draft_markov - drafts id[n_seq][n] from y[n][n_seq][hidden] (bmem), whose logits the target holds in that order.
 * Collective on the TP group. */
enum status draft_markov(struct draft *d, struct target *t, const struct draft_seq *seq, const struct draft_draw *draw,
                         int n_seq, int n, const float *y, int32_t *id);

/* draft_drawn_open - room for drafts that are drawn, where the spec asks for it. draft_drawn_close frees it. */
enum status draft_drawn_open(struct draft *d);
void draft_drawn_close(struct draft *d);
/* draft_drawn - drafts of slots [slot0, slot0 + n) of the sequences that draw theirs, instead of those in
 * id[sequence * n + slot - slot0], from the target's logits rows: row0 + sequence * n + slot - slot0. A draft of -1 stays:
 * its row is not made of numbers. Collective on the TP group. */
enum status draft_drawn(struct draft *d, struct target *t, const struct draft_seq *seq, const struct draft_draw *draw,
                        int n_seq, int slot0, int n, int row0, int32_t *id);

static inline float *draft_f32(const struct buf *b)
{
    return b->p;
}

#endif
