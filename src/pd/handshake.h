/* handshake - both groups compare everything that must match before a byte moves.
 *
 * Each rank publishes a fixed-size descriptor (MPI_Allgather); every rank checks all of them against the rules
 * of pd-systems 2.8, so a mismatch is refused by all ranks together, naming rank pair, field and both values,
 * with zero puts issued. */
#ifndef PDFLASH_PD_HANDSHAKE_H
#define PDFLASH_PD_HANDSHAKE_H

#include "pd/world.h"
#include "plan/layout.h"

enum { HANDSHAKE_VERSION = 3 };

struct descriptor { /* plain numbers only; same layout on every rank of a build */
    uint32_t version, struct_bytes;
    uint32_t endian;              /* 0x01020304 as written by the sender */
    uint32_t role, stage, tp, tp_rank, pp;
    uint64_t build, target_config, draft_config, tokenizer, weights;
    uint32_t draft_kind;          /* enum draft_kind */
    uint32_t adaptive, min_context; /* see spec_options */
    uint32_t block, mask_id, n_taps, window;
    int32_t tap[CONFIG_MAX_TAPS];
    double rope_theta, confidence;
    double temperature, top_p, draft_temperature; /* the first token is drawn on one side, the others on the other */
    uint32_t top_k, draws_drafts;
    uint64_t seed;
    uint32_t page, order, kv, draft_kv, temporal_bytes;
    uint32_t pages_per_slot, n_slots;
    uint32_t draft_heads, draft_head_dim, draft_layers, draft_heads_per_rank, draft_first_head;
    uint32_t mla_width, mla_row_bytes, mla_layers;        /* layers: held by this rank */
    uint32_t kda_heads, kda_dim, conv_kernel, kda_layers, kda_heads_per_rank;
    uint32_t layer_begin, layer_end;
    uint32_t state_convention;    /* 1: state after all prompt tokens, last prefill stage samples the first token */
    uint32_t act;
    uint64_t slot_bytes, window_bytes;
    uint64_t entries_hash;        /* layout_hash of the rank's own layout */
    uint64_t plan_hash;           /* over all pair plans of the run, computed by every rank */
};

/* handshake_run - exchange and check. ST_E_HANDSHAKE on all ranks alike. all_p (may be NULL): the descriptors
 * [size], mem_free. Collective on w->all. */
enum status handshake_run(struct world *w, const struct descriptor *mine, struct descriptor **all_p);
/* handshake_check - the rules on a set of descriptors, pure (tests). */
enum status handshake_check(const struct descriptor *d, int n, const struct topology *t);

#endif
