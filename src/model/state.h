/* state - one rank's pools of request state: MLA pages, KDA matrices, conv tails, draft K/V pages.
 *
 * The arena is one block of backend memory laid out by plan/layout (pool form). A request holds one state
 * slot and a page table; the same physical page ids serve all MLA layers and all draft layers. Pages and
 * slots are handed out in an order that scatters them (lowest free id last freed first is NOT promised), and
 * both counters return to their initial values when every request is freed. Local. */
#ifndef PDFLASH_MODEL_STATE_H
#define PDFLASH_MODEL_STATE_H

#include "ops/ops.h"
#include "plan/layout.h"

struct state {
    struct ops *o;
    struct layout layout;       /* owned */
    struct buf arena;           /* layout.bytes, bmem */
    int max_pages;              /* page table length of a request */
    int n_free_pages, n_free_slots;
    int32_t *free_page;         /* stack */
    int32_t *free_slot;         /* stack */
    int32_t *page_table;        /* [n_slots][max_pages], -1 where unused */
    int32_t *n_pages;           /* [n_slots] pages held */
    uint8_t *slot_used;         /* [n_slots] */
};

/* state_open - take over *l (moved) and allocate the arena. max_pages: page table length. */
enum status state_open(struct ops *o, struct layout *l, int max_pages, struct state *s_p);
void state_close(struct state *s);

/* state_admit - a slot and pages for n_tokens tokens; KDA and conv items and the last page are zeroed. *slot_p = -1 and ST_OK when
 * pages or slots are short (backpressure, nothing allocated); ST_E_RANGE when the request can never fit. */
enum status state_admit(struct state *s, int n_tokens, int *slot_p);
/* state_release - give everything back. Releasing a free slot is ST_E_INTERNAL. */
enum status state_release(struct state *s, int slot);

const int32_t *state_pages(const struct state *s, int slot);
/* state_item - address of item (slot or physical page) of entry (comp, global layer, kv). NULL if absent. */
void *state_item(const struct state *s, enum comp comp, int layer, int kv, int64_t item);
/* state_paged - the paged view of an MLA or DRAFT entry, for ops. */
struct paged state_paged(const struct state *s, enum comp comp, int layer, int kv);

#endif
