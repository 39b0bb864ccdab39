/* moe - the feed-forward side of a layer on one rank: dense MLP, shared experts, routed experts in the latent.
 *
 *   MLP(x)  = situ(x gate^T, x up^T) down^T            columns split over the group, tree of leaf_cols columns
 *   MoE(x)  = up(norm(sum of the chosen experts on down(x))) + MLP_shared(x)
 * The router runs in FP32 in every act mode. Latent projections, norm and router are replicated. The routed sum is
 * formed whole (over experts, block groups and ranks, one tree, block groups at its top) before the norm.
 * Source: kimi-k3 notes 3.6, 3.7, 4.1. */
#ifndef PDFLASH_MODEL_MOE_H
#define PDFLASH_MODEL_MOE_H

#include "model/run.h"

struct mlp { /* dense layer or shared experts */
    int cols;          /* of this rank */
    struct mat in;     /* [2 * cols][hidden]: gate rows, up rows */
    struct mat down;   /* [hidden][cols] */
};

struct moe {
    int layer;           /* global */
    int cols;            /* columns of a routed expert on this rank */
    struct mat router;   /* [n_experts][hidden], exact */
    struct mat lat_down; /* [latent][hidden] */
    struct mat lat_up;   /* [hidden][latent] */
    struct mat *up;      /* [local experts] of [2 * cols][latent] MXFP4: w1 rows, w3 rows */
    struct mat *down;    /* [local experts] of [latent][cols] MXFP4: w2 */
    int n_local;
    struct buf bias;     /* f32 [n_experts] */
    struct buf norm;     /* f32 [latent] */
    struct mlp shared;
};

/* mlp_open - bind "<stem>.gate_proj", "up_proj", "down_proj" of layer b->layer, columns cols of inter. */
enum status mlp_open(struct binder *b, const char *stem, int inter, struct range cols, struct mlp *m);
void mlp_close(struct ops *o, struct mlp *m);
int64_t mlp_scratch(const struct mlp *m, int t);
/* mlp_forward - y[t][hidden] := MLP(x). y may not alias x. Collective on the TP group. */
enum status mlp_forward(struct mlp *m, const struct run *r, const float *x, float *y);

enum status moe_open(struct binder *b, struct moe *m);
void moe_close(struct ops *o, struct moe *m); /* a cleared struct is legal, as for mlp_close */
int64_t moe_scratch(const struct moe *m, const struct config *c, const struct shard *s, int t);
/* moe_forward - y[t][hidden] := MoE(x). y may not alias x. Collective on the TP group. */
enum status moe_forward(struct moe *m, const struct run *r, const float *x, float *y);

/* moe_order_len / moe_order - leaf order of the routed partials for comm.sum when ep > 1: block group major, then EP
 * rank; order[i] = rank * parts + part. Pure. */
int moe_order_len(const struct shard *s);
void moe_order(const struct shard *s, int *order);

#endif
