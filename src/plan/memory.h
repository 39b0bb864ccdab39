/* memory - bytes per rank: weights, state pools, activations, scratch, windows, packing; and whether they fit.
 * Pure arithmetic. Local.
 *
 * With a GPU, weights, state, activations and the scratch of collectives and operations lie on the device of the rank,
 * the windows and the ring of packed state in host memory. On the CPU all of it is host memory, without such scratch
 * and ring.
 * Sums stay right up to 2^63-1 bytes over all ranks; more is refused. */
#ifndef PDFLASH_PLAN_MEMORY_H
#define PDFLASH_PLAN_MEMORY_H

#include "plan/share.h"
#include "plan/topology.h"
#include "plan/transfer_plan.h"

/* where a rank's group adds up: on a device each, over NCCL; on a device, brought there through MPI and host memory;
 * in host memory, without a device */
enum sums_via { SUMS_NCCL, SUMS_STAGED, SUMS_HOST };

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
    int block;              /* verify rows of a request; 0 counts as 1 */
    int expanded;           /* prefill expands the keys and values of all positions: scratch of a device */
    int64_t device_bytes;   /* memory of a rank's device, bytes; 0: not given. No size depends on it */
    struct share share;     /* decode ranks that receive for their node; n 0: none */
    const enum sums_via *sums; /* [ranks], the caller's, outlives the plan; NULL: every rank has a device for itself */
};

/* kinds of weights: routed experts; router, its bias and the latent projections (whole on every rank); KDA or MLA with
 * their convolutions and norms; dense and shared MLPs; embedding and head; layer and residual norms; all the draft's */
enum weight_part {
    WEIGHT_EXPERTS, WEIGHT_ROUTER_LATENT, WEIGHT_ATTENTION, WEIGHT_MLP,
    WEIGHT_EMBED_HEAD, WEIGHT_NORMS, WEIGHT_DRAFT, WEIGHT_N
};
extern const char *const weight_name[WEIGHT_N];

struct rank_memory { /* bytes */
    int64_t weight_bytes;     /* as held: BF16 and packed MXFP4, FP32 vectors */
    int64_t weight[WEIGHT_N]; /* the same by part */
    int64_t pool_bytes;       /* state arena: a whole number of 4 KiB */
    int64_t state[COMP_N];    /* the same by component, without the arena's last padding */
    int64_t work_bytes;       /* activations, see work.h */
    int64_t coll_bytes;       /* collectives: scratch of sums on the device, see scratch.h */
    int64_t ops_bytes;        /* operations: what they work in on the device, at most, see scratch.h */
    int64_t window_bytes;     /* data + word + credit windows */
    int64_t data_bytes, word_bytes; /* the same: staging slots; words and credits */
    int64_t pack_bytes;       /* ring of packed state in host memory, see scratch.h */
    int64_t device_bytes;     /* weights + state + activations + collectives + operations */
    int64_t bytes;            /* all */
};

/* memory_rank - bytes of a world rank. ST_E_RANGE, ST_E_NOMEM, ST_E_CONFIG (a layout's, or too large to add up). */
enum status memory_rank(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o, int world_rank, struct rank_memory *m_p);
/* memory_fits - every rank's device_bytes against o->device_bytes (0: nothing is checked). ST_E_CONFIG names the rank
 * that needs most, the bytes of each part, what there is, how many ranks do not fit, and the remedy; else as
 * memory_rank. */
enum status memory_fits(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o);

/* what of the draft a rank holds: nothing; fc of its taps and the context path; fc and the whole draft; fc alone */
enum draft_held { DRAFT_NOTHING, DRAFT_CONTEXT_PATH, DRAFT_WHOLE, DRAFT_FC_ONLY };
/* memory_weight_parts - weights of layers [layers) for a TP/EP shard by part, with or without embedding, head and
 * draft. memory_weight_bytes - their sum. SUM_MAX where the size cannot be said. */
void memory_weight_parts(const struct config *c, const struct draft_config *d, struct range layers,
                         const struct group *g, int with_embed, int with_head, int draft_part, int64_t part[WEIGHT_N]);
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
