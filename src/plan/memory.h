/* memory - bytes per rank: weights, state pools, windows; and what a run moves. Pure arithmetic. Local. */
#ifndef PDFLASH_PLAN_MEMORY_H
#define PDFLASH_PLAN_MEMORY_H

#include "plan/share.h"
#include "plan/topology.h"
#include "plan/transfer_plan.h"

struct plan_options { /* what besides topology determines sizes */
    int page;               /* tokens per page */
    int max_tokens;         /* longest prompt + max_new + block, tokens */
    int max_prompt;         /* longest prompt, tokens */
    int concurrency;        /* decode state slots */
    int prefill_slots;      /* requests in flight in the pipeline */
    int staging_slots;      /* slots of the data window */
    int chunk;              /* prefill chunk, tokens */
    enum page_order order;
    enum kv_dtype kv, draft_kv;
    int stripe;
    struct share share;     /* decode ranks that receive for their node; n 0: none */
};

struct rank_memory {
    int64_t weight_bytes;   /* as held: BF16 and packed MXFP4, FP32 vectors */
    int64_t pool_bytes;     /* state arena */
    int64_t window_bytes;   /* data + word + credit windows */
};

/* memory_rank - bytes of a world rank. */
enum status memory_rank(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o, int world_rank, struct rank_memory *m_p);
/* memory_weight_bytes - weights of layers [layers) for a TP/EP shard, with or without embedding, head and
 * draft (draft_part 0 none, 1 context path only, 2 whole). */
int64_t memory_weight_bytes(const struct config *c, const struct draft_config *d, struct range layers,
                            const struct group *g, int with_embed, int with_head, int draft_part);

/* layout specs of the two sides, the single place that decides them */
enum status memory_source_layout(const struct config *c, const struct draft_config *d, const struct topology *t,
                                 const struct plan_options *o, int stage, int tp_rank, struct layout *l_p);
enum status memory_decode_layout(const struct config *c, const struct draft_config *d, const struct topology *t,
                                 const struct plan_options *o, int tp_rank, struct layout *l_p);
enum status memory_slot_layout(const struct config *c, const struct draft_config *d, const struct topology *t,
                               const struct plan_options *o, int tp_rank, struct layout *l_p);

#endif
