/* draft_weights - the DFlash drafter's weights on one rank and the scratch of its calls; private to draft*.c.
 *
 * TP: q heads are split, kv heads are max(1, H/tp) per rank (replicated when tp > H), o_proj and down_proj are
 * column slices whose partial sums go through tp_comm; fc, hidden_norm and all norms are whole on every rank.
 * Leaves of the trees: one head for o_proj, split_leaf_cols(inter) columns for down_proj. */
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

static inline float *draft_f32(const struct buf *b)
{
    return b->p;
}

#endif
