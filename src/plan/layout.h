/* layout - where every piece of a request's state lies in one rank's arena or staging slot.
 *
 * One function describes both: a pool (many pages, many state slots) inside a rank's arena, and a staging
 * slot of the data window (the pages of one request by logical index, one state slot, one aux record).
 * An entry is keyed by (component, GLOBAL layer, K/V, head range); position means nothing.
 *
 *   address of an item = arena + entry.base + item * entry.stride
 *   item = physical page id (pool) or logical page index (slot) for MLA and DRAFT;
 *          state slot for KDA, CONV and AUX (0 in a staging slot)
 *
 *   MLA    page   [page][kv_rank + qk_rope]                     kv type   (replicated over TP)
 *   KDA    item   [heads][d_k][d_v]                             f32
 *   CONV   item   [conv_kernel - 1][q|k|v][heads * d]           kv type, oldest row first
 *   DRAFT  page   [heads][page][head_dim]  (head-major)         kv type   one entry for K, one for V
 *          or     [page][heads][head_dim]  (token-major)
 *   AUX    item   struct layout_aux                             bytes
 * Source: pd-systems 2.1-2.7. Local. */
#ifndef PDFLASH_PLAN_LAYOUT_H
#define PDFLASH_PLAN_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ckpt/config.h"
#include "plan/split.h"

enum comp { COMP_MLA, COMP_KDA, COMP_CONV, COMP_DRAFT, COMP_AUX, COMP_N };
extern const char *const comp_name[COMP_N]; /* "mla", "kda", "conv", "draft", "aux" */

enum kv_dtype { KV_BF16, KV_FP32 };
static inline int kv_bytes(enum kv_dtype t) { return t == KV_BF16 ? 2 : 4; }

enum page_order { PAGE_HEAD_MAJOR, PAGE_TOKEN_MAJOR };

struct layout_aux { /* 64 bytes, written by the last prefill stage */
    uint64_t request;        /* question index */
    uint32_t generation;     /* of the staging slot */
    int32_t first_token;     /* sampled by prefill */
    int32_t prompt_tokens;
    int32_t state_position;  /* tokens absorbed by KDA state: equals prompt_tokens */
    int32_t draft_rows;      /* draft KV rows valid [0, draft_rows); 0 without draft */
    int32_t reserved;
    double first_chunk_s;    /* seconds since run start: stage 0 began the first chunk */
    double prefill_done_s;   /* last stage sampled the first token */
    double prefill_work_s;   /* seconds all stages together were at work so far, as known with this request */
    int64_t pad;
};

struct layout_spec {
    int page;                /* tokens per page */
    enum page_order order;   /* of draft pages */
    enum kv_dtype kv;        /* MLA rows, conv tails */
    enum kv_dtype draft_kv;  /* draft K/V */
    struct range layers;     /* target layers held */
    int has_draft;           /* draft entries exist (last prefill stage, decode) */
    int has_aux;             /* aux entry exists (staging slots) */
    int tp, tp_rank;
    unsigned absent;         /* bit comp: entries that another rank of the node receives for this one (slots, see share.h) */
    struct range rows_for;   /* slots: tp ranks whose MLA rows this slot receives, first and last of them; 0, 0: only its own */
    int draft_for;           /* slots: ranks whose draft K/V this slot receives; 0 or 1: only its own */
    int n_pages;             /* pages of the pool, or pages per request in a slot */
    int n_slots;             /* state slots */
};

struct layout_entry {
    enum comp comp;
    int layer;               /* global target layer, or draft layer for DRAFT */
    int kv;                  /* DRAFT: 0 K, 1 V; else 0 */
    int head0, n_heads;      /* KDA, CONV, DRAFT; MLA, AUX: 0, 1 */
    int64_t base;            /* bytes from the start; 64-byte aligned */
    int64_t stride;          /* bytes from item to item */
    int64_t item_bytes;      /* <= stride */
    int n_items;
};

struct layout {
    struct layout_spec spec;
    int n;
    struct layout_entry *entry; /* order: MLA, KDA, CONV by layer, DRAFT by layer K then V, AUX */
    int64_t bytes;           /* whole arena; multiple of 4096 */
};

/* layout_make - entries for a rank. draft may be NULL when has_draft is 0.
 * Returns ST_OK, ST_E_CONFIG (tp does not divide heads, page < 1, counts < 0, a
 * component is absent that cannot be), ST_E_NOMEM. */
enum status layout_make(const struct config *c, const struct draft_config *draft, const struct layout_spec *spec,
                        struct layout *l_p);
void layout_free(struct layout *l);
/* layout_find - index of the entry with this key, or -1. */
int layout_find(const struct layout *l, enum comp comp, int layer, int kv);
/* layout_offset - byte offset of an item, or -1 when entry or item is out of bounds. */
int64_t layout_offset(const struct layout *l, int entry, int64_t item);
/* layout_hash - hash64 over spec and entries. */
uint64_t layout_hash(const struct layout *l);

#endif
