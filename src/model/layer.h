/* layer - one decoder layer on one rank: read, attention (KDA or MLA), read, feed-forward (dense or MoE).
 * Source: kimi-k3 notes 3.3, 3.8. */
#ifndef PDFLASH_MODEL_LAYER_H
#define PDFLASH_MODEL_LAYER_H

#include "model/kda.h"
#include "model/mla.h"
#include "model/moe.h"
#include "model/resid.h"

struct layer {
    int index;      /* global */
    int is_kda, is_dense;
    struct resid_site attn, ffn;
    struct kda kda; /* is_kda */
    struct mla mla; /* otherwise */
    struct mlp mlp; /* is_dense */
    struct moe moe; /* otherwise */
};

struct layer_bufs { /* [max_rows][hidden] each, bmem */
    float *u;   /* normed site value: input of the block */
    float *y;   /* output of the block */
    float *mix; /* mixture, where a tap or probe asks */
};

/* layer_open - bind layer b->layer. layer_close takes a cleared struct too. */
enum status layer_open(struct binder *b, int max_verify_rows, int expanded, struct layer *l);
void layer_close(struct ops *o, struct layer *l);
int64_t layer_scratch(const struct layer *l, const struct config *c, const struct shard *s, int t);
/* layer_forward - run the layer over f. tap_index >= 0: the mixture at the entry goes to taps->tap under this index.
 * Collective on the TP group. */
enum status layer_forward(struct layer *l, const struct run *r, struct flow *f, const struct layer_bufs *m,
                          const struct tap_sink *taps, int tap_index);

#endif
