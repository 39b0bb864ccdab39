/* topology - which rank does what: the two groups, their pipeline stages, TP and EP ranks.
 *
 * World ranks 0 .. pp*tp-1 are prefill, stage-major (rank = stage * tp + tp_rank); the decode ranks follow.
 * With single there is one group: the decode group does the prefill too and no window exists. Pure
 * arithmetic, equal on all ranks, immutable after topology_make. Local.
 *
 * EP lies inside TP: ep groups of moe_tp = tp/ep ranks, rank r = ep_rank * moe_tp + moe_rank. The ranks of a group hold the
 * same n_experts/ep experts and split their intermediate width into contiguous ranges of whole 32-blocks (w1, w3 rows and
 * w2 columns); they do not deal out whole experts among themselves. Why:
 *   - routing decides how much an expert has to do. Columns give all ranks of a group equal work whatever is chosen, so a
 *     layer waits for the fullest of ep groups; whole experts would make it wait for the fullest of tp ranks (seed, TP32 EP4:
 *     the fullest of 4 groups of 224 experts instead of the fullest of 32 sets of 28);
 *   - the bytes are the same: weights per rank, and the latent partial each rank contributes to the sum;
 *   - the leaves of the sum (block group x expert, see split.h) exist for every ep, so the bits do not depend on it;
 *   - a 32-block is what an MXFP4 scale covers along w2's inputs, so no scale is split; K3's width 3072 over moe_tp 8 is 384
 *     columns or 12 blocks, still several kernel tiles wide.
 * Whole experts per rank are the case ep = tp, for widths that cannot be split further. */
#ifndef PDFLASH_PLAN_TOPOLOGY_H
#define PDFLASH_PLAN_TOPOLOGY_H

#include "base/err.h"
#include "ckpt/config.h"

struct group { /* one group as the user asked for it, then completed */
    int pp, tp, ep; /* ep 0 in a parsed group: choose the default */
};

enum role { ROLE_PREFILL, ROLE_DECODE };

struct topology {
    struct group prefill, decode; /* single: prefill is all zero */
    int single;
    int n_prefill, n_decode, n_ranks;
};

struct rank_role {
    enum role role;
    int stage;        /* prefill: 0..pp-1; decode: 0 */
    int tp_rank;      /* within the stage or the decode group */
    int ep_rank, moe_rank;
    int first_stage, last_stage; /* booleans */
};

/* group_parse - "pp=8,tp=4,ep=4" in any order; pp and tp default to 1, ep to 0 (choose).
 * Unknown keys, repeats, non-numbers and values < 1 are refused: ST_E_USAGE naming option and text. */
enum status group_parse(const char *text, const char *option, struct group *g_p);

/* topology_make - complete and check: default ep (smallest divisor of tp with expert_inter a multiple of
 * 32 * tp/ep), decode pp > 1 refused, tp divides kda_heads, mla_heads, vocab, dense_inter/16-leaves,
 * shared_inter, draft q_heads; tp and draft kv_heads divide one another; ep divides tp and n_experts;
 * expert width in whole 32-blocks; stages not more than layers. draft may be NULL (--spec none). Every
 * refusal names group, field, both values and the remedy. Returns ST_OK, ST_E_CONFIG. */
enum status topology_make(const struct config *c, const struct draft_config *draft, const struct group *prefill,
                          const struct group *decode, int single, struct topology *t_p);
/* topology_role - the role of world rank r. */
struct rank_role topology_role(const struct topology *t, int r);
/* topology_prefill_rank / topology_decode_rank - world rank of a role. */
int topology_prefill_rank(const struct topology *t, int stage, int tp_rank);
int topology_decode_rank(const struct topology *t, int tp_rank);
/* topology_text - "pp8tp1ep1/tp8ep4" or "single tp1ep1" into buf. */
void topology_text(const struct topology *t, char *buf, int n);

#endif
