/* run - what the two roles need to do a batch run, and what they give back. Filled by src/cmd/run.
 *
 * All fields are the same on every rank unless said otherwise. The pointers stay the caller's. */
#ifndef PDFLASH_PD_RUN_H
#define PDFLASH_PD_RUN_H

#include "model/prefill.h"
#include "model/spec.h"
#include "pd/coll.h"
#include "pd/links.h"
#include "pd/spans.h"
#include "pd/transfer.h"
#include "pd/world.h"

struct run_prompts { /* host */
    int n;
    const int64_t *offset; /* [n + 1] */
    const int32_t *token;  /* flat */
    const int32_t *tokens; /* [n] lengths */
};

enum { RUN_FAIL_DECODE = -2 };
struct run_inject { /* --inject: faults for tests; -1: off */
    int kill_rank, kill_event;      /* SIGKILL of that world rank when it applies that order */
    int fail_stage, fail_request;   /* that stage gives the request up at its first chunk; RUN_FAIL_DECODE: decode */
    int abort_request, abort_ticks; /* give it up so many ticks after its admission */
    int abort_tokens;               /* 0: off; instead, when it has so many output tokens */
    int hold_request;               /* from that one on none is admitted, and the run waits for a stop signal; 0: off */
    int abort_percent, abort_seed;  /* give up so many of a hundred requests, at random moments of their lives */
};

struct run_config {
    const struct config *c;
    const struct draft_config *d;       /* NULL: --spec none */
    const struct safetensors *ckpt, *draft_ckpt;
    struct ops *o;
    struct run_prompts prompts;
    const uint8_t *skip;                /* [prompts.n] rows already committed; NULL: none */
    struct transfer_options transfer;   /* with the plan options: page, chunk, slots, kv types */
    enum coll_kind coll;                /* of what goes through host memory */
    const struct links *links;          /* this rank's */
    int block;                          /* verify rows; 1: plain */
    double confidence;                  /* DSpark: see spec_options; 0: verify all drafts */
    int adaptive, min_context, graphs;  /* see spec_options */
    struct sampling sampling;           /* of every request; all zero: greedy */
    int max_new;
    int absorbed_prefill;
    double watchdog_s;
    const volatile int *interrupted;    /* set by a signal handler on the leader */
    /* full logits rows of committed positions (decode leader) and of prompt ends (last stage, tp rank 0); NULL: off */
    void (*logits)(void *ctx, int request, int pos, const float *row, int vocab);
    void *logits_ctx;
    struct run_inject inject;
    struct spans *spans;                /* this rank's own record of its work; NULL: none */
};

struct run_finished { /* one request, on the leader */
    const struct spec_seq *q;
    const char *error; /* why it failed or was given up; NULL */
    double admit_s, first_chunk_s, prefill_done_s, transfer_start_s, transfer_done_s, start_s, first_token_s, end_s; /* NaN: none */
    int has_transfer;
    struct transfer_request transfer;   /* summed over the decode ranks (seconds: largest) */
};
struct run_progress { /* so far, on the leader: its own figures, and what came with finished prompts */
    int decoding;       /* requests in the batch */
    int64_t tokens;     /* output tokens, those of unfinished requests included */
    double now_s;       /* world_now */
    double prefill_work_s, decode_work_s; /* seconds of computing, mean of the stages and own; prefill lags a little */
};
struct run_sink {
    void *ctx;
    enum status (*finished)(void *ctx, const struct run_finished *f);
    /* called in every turn: must be cheap. NULL: not wanted */
    void (*progress)(void *ctx, const struct run_progress *p);
};

struct rank_stats { /* one per rank, gathered at the end; plain numbers */
    int32_t role, stage, tp_rank, reserved;
    char host[64];
    int64_t weight_bytes, state_bytes, window_bytes, peak_host_bytes, device_bytes; /* device -1: none */
    double compute_s, wait_s, transfer_s, total_s;
    double draft_s, verify_s, commit_s, prefill_s;
    uint64_t shared_bytes[COMP_N];      /* decode, --dedupe: read from slots of other ranks of the node */
    uint64_t put_bytes[COMP_N], puts[COMP_N], words, quiets, flushes, stage_bytes, stage_messages;
    int64_t rounds, chunks, orders;
    uint64_t order_hash;
    int32_t free_pages_start, free_pages_end, free_slots_start, free_slots_end;
    int32_t free_staging_start, free_staging_end; /* staging slots: granted (decode), being sent (prefill) */
    uint64_t batch_hash;                /* decode: chained over the requests of every round, equal on all decode ranks */
    int64_t rss_quarter, rss_end;       /* peak resident bytes when a quarter of the requests, and all, had ended */
    int64_t aborts, stale;              /* leader */
    int64_t ticks, start_delay_max, start_delay_sum, starts; /* leader */
    uint64_t loop_allocs;               /* allocations inside the token loop: 0 */
};

/* prefill_role - run until STOP. decode_role - the same; with topology.single also the prefill. Both return the first
 * fault; the caller aborts the job. Collective on all. */
enum status prefill_role(struct world *w, const struct run_config *r, struct rank_stats *st_p);
enum status decode_role(struct world *w, const struct run_config *r, const struct run_sink *sink, struct rank_stats *st_p);

/* run_handshake - descriptors and plan agreement, before any window exists. inject: what --inject changes in this rank's
 * descriptor has already been applied to r by the caller. build, tokenizer, weights: hashes. Collective on all. */
enum status run_handshake(struct world *w, const struct run_config *r, uint64_t build, uint64_t tokenizer, uint64_t weights,
                          struct descriptor **all_p);

#endif
