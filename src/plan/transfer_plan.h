/* transfer_plan - from which byte of which prefill rank to which byte of which decode rank.
 *
 * Pure: works on two layouts and cannot compute one side from the other. The plan of one (source,
 * destination) pair is a list of strided copies per entry; running it for a page list or a state item
 * yields contiguous runs. Invariant (checked by transfer_plan_check): every destination byte of every item
 * is written exactly once by exactly one source. Local.
 *
 * Sources: KDA and CONV by overlap of head ranges (conv: rows x q/k/v segments, each sharded on its own);
 * DRAFT by overlap, with replicated source heads shared out (candidate = destination mod count); MLA and
 * AUX rows are replicated: destination d reads from source d * P / D when P <= D, and when P > D the pages
 * are striped over the sources of its group (page mod k) or, with stripe 0, all come from the first.
 * A slot that receives for its node (share.h) takes the place of all the ranks it serves: its MLA pages are striped over the
 * sources of all of them, its draft pages over all the sources that hold its heads, so no source sends what others could.
 * Source: pd-systems 2.2-2.7. */
#ifndef PDFLASH_PLAN_TRANSFER_PLAN_H
#define PDFLASH_PLAN_TRANSFER_PLAN_H

#include "plan/layout.h"

struct plan_copy {
    enum comp comp;
    int src_entry, dst_entry;       /* indices into the two layouts */
    int64_t src_off, dst_off;       /* bytes within the item */
    int64_t run;                    /* bytes of one contiguous run */
    int n_runs[2];                  /* inner, outer repetitions */
    int64_t src_step[2], dst_step[2]; /* bytes between runs, inner and outer */
    int page_mod, page_rem;         /* paged: only logical pages with page % mod == rem; else 1, 0 */
};

struct pair_plan { /* one source, one destination */
    int src_stage, src_tp_rank, dst_tp_rank;
    int n;
    struct plan_copy *copy;
    int has[COMP_N];                /* component expected from this source */
    uint64_t hash;                  /* over everything that must be equal on both sides */
};

/* transfer_plan_pair - copies from src (pool of a prefill rank) to dst (slot of a decode rank).
 * is_last_stage: aux and draft come from here. stripe: share replicated MLA pages when P > D.
 * Refuses (ST_E_HANDSHAKE, field and both values): page, order, kv types, head totals, draft layer count. */
enum status transfer_plan_pair(const struct config *c, const struct draft_config *draft, const struct layout *src,
                               int src_stage, int is_last_stage, const struct layout *dst, int stripe,
                               struct pair_plan *p_p);
void transfer_plan_free(struct pair_plan *p);

/* transfer_plan_bytes - bytes this pair moves for component comp and a prompt of n_pages pages; and the
 * number of contiguous runs (puts when nothing merges). */
int64_t transfer_plan_bytes(const struct pair_plan *p, enum comp comp, int n_pages, int64_t *runs_p);

struct plan_run { int64_t src, dst, bytes; }; /* arena offset, slot offset, length */
/* transfer_plan_runs - the runs of one copy for one item pair, merged where both sides are contiguous;
 * calls fn for each. src_item: physical page or state slot; dst_item: logical page or 0. Every run is
 * checked against both entries' bounds before fn sees it: ST_E_RANGE (the per-copy guard). */
enum status transfer_plan_runs(const struct pair_plan *p, const struct plan_copy *copy, const struct layout *src,
                               const struct layout *dst, int64_t src_item, int64_t dst_item,
                               enum status (*fn)(void *ctx, const struct plan_run *run), void *ctx);

/* transfer_plan_check - every byte of every item of dst (n_pages logical pages) is written exactly once by
 * the n plans (all of one destination, src layouts alongside), and it is the byte that belongs there: same layer, K or V,
 * head, conv row and q|k|v segment, token, position (page ids and state slots are the caller's). Returns ST_OK or
 * ST_E_INTERNAL naming entry, byte and count. Used by tests, by `pdflash plan` and by every decode rank at start. */
enum status transfer_plan_check(const struct config *c, const struct draft_config *draft, const struct pair_plan *const *p,
                                const struct layout *const *src, int n, const struct layout *dst, int n_pages);

#endif
