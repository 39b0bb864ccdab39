/* draft - the drafter, DFlash or DSpark: context path (taps -> draft K/V) and block path (anchor + masks -> drafts).
 *
 * Context, per committed token at position p: sum over taps of h_k . fc[:, k]^T (each partial formed whole,
 * added in ascending layer order, FP32), one RMSNorm, then for every draft layer K = RoPE(k_norm(Wk c), p),
 * V = Wv c into head-major pages. Block: ids [anchor, MASK ...] at positions P..P+B-1 through Qwen3-style
 * layers; sliding layers are causal inside the block and windowed, full layers see everything. The block's
 * own K/V never survive. DFlash: slot j (1..B-1) predicts position P+j, all slots at once. DSpark: slot k (0..gamma-1)
 * predicts position P+k+1, one after the other, because the Markov head adds W2 . W1[token before] to slot k's logits;
 * its confidence head says sigmoid(w . [y_k ; W1[token before]] + b), the chance that draft k holds if those before do.
 * Where the checkpoint holds a tensor mask_embedding [hidden] or mask_embedding.weight [1][hidden], masked slots start
 * from it, not from the target's row.
 * A prefill stage opens only its fc columns; the last stage also the context path; decode everything.
 * Source: DFlash, arXiv:2602.06036; DSpark paper; project notes dflash sections 3, 4, 6, 7. */
#ifndef PDFLASH_MODEL_DRAFT_H
#define PDFLASH_MODEL_DRAFT_H

#include "model/sampling.h"
#include "model/target.h"

struct draft; /* opaque */

enum draft_part { DRAFT_FC = 1, DRAFT_CONTEXT = 2, DRAFT_BLOCK = 4 };

struct draft_spec {
    int parts;                      /* bits of enum draft_part */
    int n_taps, tap[CONFIG_MAX_TAPS]; /* DRAFT_FC: indices into target_layer_ids to load */
    int tp, tp_rank;                /* head sharding; fc and norms are replicated */
    int max_rows;                   /* rows of the largest call */
    int max_seqs;                   /* sequences of the largest draft_block; 0: max_rows */
    int confidence;                 /* load the confidence head and compute it */
    int draws;                      /* drafts may be drawn: room for their rows of logits on TP rank 0 */
    enum ops_kv kv;
};

enum status draft_open(struct ops *o, const struct draft_config *d, const struct safetensors *ckpt,
                       const struct draft_spec *spec, const struct tp_comm *comm, struct draft **d_p);
void draft_close(struct draft *d);
int64_t draft_weight_bytes(const struct draft *d);
/* draft_config_of - the config the draft was opened with (taps, block). */
const struct draft_config *draft_config_of(const struct draft *d);

/* draft_project - acc[rows][hidden] := (has_acc ? acc : nothing) + h[rows][hidden] . fc[:, tap]^T. Local. */
enum status draft_project(struct draft *d, int tap_index, const float *h, int rows, float *acc, int has_acc);
/* draft_context - norm of acc rows, K/V of every draft layer into the pages of each sequence: rows
 * [row0, row0+n_rows) of acc go to positions pos0... Local. */
enum status draft_context(struct draft *d, struct state *s, const float *acc, const struct batch_seq *seq, int n_seq);

struct draft_seq { int slot; int pos; int32_t anchor; }; /* pos = P: context rows valid [0, P) */
/* draft_block - greedy drafts id[n_seq][block-1] (host) of every sequence, -1 where a row is not made of numbers;
 * block: rows of the verify step they are for (anchor and drafts), 2 to draft_verify_rows: a DFlash block has as many
 * rows, a DSpark block one fewer. Uses the target's embedding and head. probe may be NULL; it sees draft_y as
 * [sequence][slot] rows (DFlash) or [slot][sequence] (DSpark). Collective on the TP group. */
enum status draft_block(struct draft *d, struct target *t, struct state *s, const struct draft_seq *seq, int n_seq,
                        int block, int32_t *id, const struct probe *probe);
/* draft_block_drawn - the same, but the drafts of sequences for which sampling_draws(draw[i].how) are drawn from the
 * draft's distribution; needs a draft opened with draws. draw NULL: none. */
struct draft_draw { const struct sampling *how; int question; };
enum status draft_block_drawn(struct draft *d, struct target *t, struct state *s, const struct draft_seq *seq,
                              const struct draft_draw *draw, int n_seq, int block, int32_t *id,
                              const struct probe *probe);
/* draft_drawn_from - the rows [block - 1][vocab] (host) that the drafts of sequence i of the latest draft_block_drawn
 * were drawn from, for sampling_accept. TP rank 0 only; undefined for a sequence whose drafts were not drawn. */
const float *draft_drawn_from(const struct draft *d, int i);
/* draft_confidence - of the latest draft_block of a draft opened with confidence: host [n_seq][block-1], 0 to 1, the
 * same bits on every rank of a CPU group; else NULL. */
const float *draft_confidence(const struct draft *d);

#endif
