/* cost - parameters, bytes and floating-point operations of a model, from its config alone. Pure arithmetic. Local.
 *
 * Counted per token and layer, 2 operations a multiply-add, no rank split. Attention over the context comes on top
 * (cost_context_flops): MLA's absorbed form, in which every cached row meets every head with kv_rank + qk_rope numbers
 * for the score and kv_rank for the value; the expanded form with qk_nope + qk_rope and v_dim. The KDA recurrence
 * (cost_context_flops): MLA's absorbed form, where every cached row meets every head with kv_rank + qk_rope numbers
 * Experts: k of E a token mean that b tokens of independent routing touch E (1 - (1 - k/E)^b) experts of a layer. */
#ifndef PDFLASH_PLAN_COST_H
#define PDFLASH_PLAN_COST_H

#include <stdint.h>

#include "plan/topology.h"

enum cost_part {
    COST_KDA,       /* projections: q, k, v, g, o, f_a, f_b, b */
    COST_CONV,      /* short convolutions of q, k, v: FP32 */
    COST_RECURRENCE, /* no weights but A_log, dt_bias and o_norm, which COST_VECTORS counts */
    COST_MLA,       /* projections, gate included */
    COST_DENSE, COST_SHARED, COST_ROUTER,
    COST_LATENT,    /* down and up projection */
    COST_EXPERT,    /* one routed expert: 4-bit codes and scales */
    COST_VECTORS,   /* all norms, biases and other vectors of the model, once */
    COST_EMBED, COST_HEAD,
    COST_N
};
extern const char *const cost_name[COST_N];

struct cost_row {
    int layers;       /* that have it; 1 for VECTORS, EMBED and HEAD */
    int64_t params, bytes; /* of one layer; EXPERT: of one expert */
    int64_t flops;    /* of one layer a token; EXPERT: of the top_k experts of a token */
};
void cost_rows(const struct config *c, struct cost_row row[COST_N]);

struct cost_total {
    int64_t params, bytes;  /* all; bytes with A_log at its used length */
    int64_t active;         /* parameters of matrices that a token uses, embedding table included; no vectors */
    int64_t active_no_embed;
    int64_t residual_rows;  /* rows of `hidden` numbers that the attention residuals read for a token, once a site */
    int64_t non_expert_bytes; /* without embedding table and experts: what a decode step reads in any case */
    int64_t layer_flops;    /* a token through all layers, no context, no head */
    int64_t context_flops[2]; /* per token and token of context, all MLA layers: absorbed, expanded */
};
void cost_total(const struct config *c, struct cost_total *t_p);
/* cost_context_flops - the same for one MLA layer. */
int64_t cost_context_flops(const struct config *c, int expanded);

/* cost_experts_touched - experts of a layer that `rows` tokens of independent routing touch. */
double cost_experts_touched(const struct config *c, double rows);
/* cost_step_bytes - bytes of weights that a step over `rows` tokens reads, all layers, each weight once. */
double cost_step_bytes(const struct config *c, double rows);

/* cost_chunk_flops - work of a stage for positions [pos0, pos0 + n) of a prompt: its layers with the context before
 * each position (absorbed form), its taps, on the last stage the draft's context K/V and, if final, the head of a row.
 * cost_chunk_bytes - what one rank of the stage reads and writes for it: its weights, of the experts those that n
 * tokens touch, the latent rows of the context, KDA state once in and out. d may be NULL. */
double cost_chunk_flops(const struct config *c, const struct draft_config *d, const struct group *g, int stage,
                        int pos0, int n, int final);
double cost_chunk_bytes(const struct config *c, const struct draft_config *d, const struct group *g, int stage,
                        int pos0, int n);

#endif
