/* split - layers to stages, captures to stages, experts and expert blocks to ranks, and the shape of the
 * fixed summation trees. Pure arithmetic. Local.
 *
 * Stages: contiguous, remainder to the last stages. A capture ("tap") of layer k is the pre-norm AttnRes
 * mixture at the entry of layer k+1, so it belongs to the stage that owns layer k+1; k = last layer: the
 * output mixture, on the last stage. Taps are added in ascending layer order.
 *
 * Trees: a sum over n leaves is split in halves while n is even; an odd run is summed in index order.
 * Leaves come from the model: one head (o_proj), leaf_cols(width) columns (dense, shared and draft MLPs),
 * one block group of 32-blocks x one expert (routed experts; block groups at the top of the tree). */
#ifndef PDFLASH_PLAN_SPLIT_H
#define PDFLASH_PLAN_SPLIT_H

#include "ckpt/config.h"

struct range { int begin, end; }; /* half open */

/* split_even - part i of n split in parts with the remainder on the last parts. */
struct range split_even(int n, int parts, int i);
/* split_stage - layers of a stage; split_stage_of - stage that owns a layer. */
struct range split_stage(int n_layers, int pp, int stage);
int split_stage_of(int n_layers, int pp, int layer);

/* split_bank_rows - bank rows that exist before layer i runs: ceil(i / res_block); i may be n_layers. */
int split_bank_rows(int res_block, int layer);

/* split_tap_stage - stage that computes the tap of layer k. */
int split_tap_stage(int n_layers, int pp, int k);
/* split_taps - indices into d->tap of the taps computed by a stage, ascending by layer; returns count. */
int split_taps(const struct draft_config *d, int n_layers, int pp, int stage, int index_p[CONFIG_MAX_TAPS]);

/* split_ep_default - see topology_make; -1 when no divisor fits. */
int split_ep_default(const struct config *c, int tp);
/* split_experts - experts of an EP rank. */
struct range split_experts(int n_experts, int ep, int ep_rank);
/* split_block_groups - number of block groups of the routed experts' intermediate width:
 * min(32, largest power of two dividing expert_inter / 32). */
int split_block_groups(const struct config *c);
/* split_expert_cols - intermediate columns of a moe rank (whole block groups). */
struct range split_expert_cols(const struct config *c, int moe_tp, int moe_rank);
/* split_leaf_cols - columns per leaf of an MLP of this width: width / min(32, largest power of two
 * dividing width / 16). Width must be a multiple of 16. */
int split_leaf_cols(int width);

/* split_pages - pages that hold this many tokens. */
int split_pages(int tokens, int page);
/* split_chunk_end - end of the prefill chunk that begins at pos of a prompt of `tokens`: at most pos + chunk; a chunk of a
 * page or more ends on a page boundary, so that whole pages become sendable with it. One rule for every topology. */
int split_chunk_end(int pos, int tokens, int chunk, int page);

/* split_kv_heads - heads per rank max(1, H/tp) and first head (rank div replication) * heads. */
struct range split_kv_heads(int n_heads, int tp, int rank);

#endif
