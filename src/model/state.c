#include "model/state.h"

#include <string.h>

#include "base/rng.h"

/* Fixed: every rank, run and test sees the same scattered order, and no page is ever its logical index by habit. */
static const uint64_t order_seed = 0x70646673746174u;

/* Fill a stack with 0..n-1 so that what is popped first, second, ... from a full pool is one cycle (Sattolo's
 * shuffle): no item is its own index. */
static void scatter(int32_t *stack, int n, uint64_t stream)
{
    for (int i = 0; i < n; i++) stack[i] = n - 1 - i; /* popped in index order */
    for (int i = 0; i + 1 < n; i++) {
        int k = i + 1 + (int)(rng_u64(order_seed, stream, (uint64_t)i) % (uint64_t)(n - 1 - i));
        int32_t held = stack[i];
        stack[i] = stack[k];
        stack[k] = held;
    }
}

static enum status new_lists(struct state *s)
{
    size_t pages = (size_t)s->n_free_pages, slots = (size_t)s->n_free_slots;
    s->free_page = mem_alloc(pages + 1, sizeof *s->free_page, "free pages");
    s->free_slot = mem_alloc(slots + 1, sizeof *s->free_slot, "free slots");
    s->page_table = mem_alloc(slots * (size_t)s->max_pages + 1, sizeof *s->page_table, "page tables");
    s->n_pages = mem_alloc(slots + 1, sizeof *s->n_pages, "page counts");
    s->slot_used = mem_alloc(slots + 1, sizeof *s->slot_used, "slot flags");
    if (!s->free_page || !s->free_slot || !s->page_table || !s->n_pages || !s->slot_used) return ST_E_NOMEM;
    scatter(s->free_page, s->n_free_pages, 0);
    scatter(s->free_slot, s->n_free_slots, 1);
    for (size_t i = 0; i < slots * (size_t)s->max_pages; i++) s->page_table[i] = -1;
    return ST_OK;
}

enum status state_open(struct ops *o, struct layout *l, int max_pages, struct state *s_p)
{
    if (max_pages < 1) return ERR(ST_E_RANGE, "state: page table of %d entries: at least 1 is needed", max_pages);
    struct state s = {.o = o, .layout = *l, .max_pages = max_pages};
    s.n_free_pages = l->spec.n_pages;
    s.n_free_slots = l->spec.n_slots;
    memset(l, 0, sizeof *l);
    enum status st;
    TRY_GO(st, new_lists(&s), fail);
    TRY_GO(st, o->mem_new(o, &s.arena, (size_t)s.layout.bytes, "state arena"), fail);
    *s_p = s;
    return ST_OK;
fail:
    *l = s.layout; /* not taken over */
    memset(&s.layout, 0, sizeof s.layout);
    state_close(&s);
    return st;
}

void state_close(struct state *s)
{
    if (!s || !s->o) return;
    s->o->mem_free(s->o, &s->arena);
    mem_free(s->free_page);
    mem_free(s->free_slot);
    mem_free(s->page_table);
    mem_free(s->n_pages);
    mem_free(s->slot_used);
    layout_free(&s->layout);
    memset(s, 0, sizeof *s);
}

/* KDA matrices and conv tails start from zero. So does the last page: it travels whole, and behind the prompt's end it must
 * hold nothing of the request that had it before. Of the other pages nobody reads a row that was not written. */
static void clear_items(struct state *s, int slot)
{
    int64_t last = s->page_table[(size_t)slot * (size_t)s->max_pages + (size_t)(s->n_pages[slot] - 1)];
    for (int i = 0; i < s->layout.n; i++) {
        const struct layout_entry *e = &s->layout.entry[i];
        int paged = e->comp == COMP_MLA || e->comp == COMP_DRAFT;
        if (!paged && e->comp != COMP_KDA && e->comp != COMP_CONV) continue;
        s->o->zero(s->o, (char *)s->arena.p + layout_offset(&s->layout, i, paged ? last : slot), (size_t)e->item_bytes);
    }
}

enum status state_admit(struct state *s, int n_tokens, int *slot_p)
{
    const struct layout_spec *l = &s->layout.spec;
    if (n_tokens < 1) return ERR(ST_E_RANGE, "state: a request of %d tokens: at least 1 is needed", n_tokens);
    int n = split_pages(n_tokens, l->page);
    if (n > s->max_pages || n > l->n_pages)
        return ERR(ST_E_RANGE,
                   "state: %d tokens need %d pages of %d; a request may hold %d and the pool has %d; ask for a shorter "
                   "output or more pages",
                   n_tokens, n, l->page, s->max_pages, l->n_pages);
    if (l->n_slots < 1) return ERR(ST_E_RANGE, "state: the pool has no state slots; ask for more concurrency");
    if (n > s->n_free_pages || s->n_free_slots < 1) {
        *slot_p = -1;
        return ST_OK;
    }
    int slot = s->free_slot[--s->n_free_slots];
    int32_t *page = s->page_table + (size_t)slot * (size_t)s->max_pages;
    for (int i = 0; i < n; i++) page[i] = s->free_page[--s->n_free_pages];
    s->n_pages[slot] = n;
    s->slot_used[slot] = 1;
    clear_items(s, slot);
    *slot_p = slot;
    return ST_OK;
}

enum status state_release(struct state *s, int slot)
{
    if (slot < 0 || slot >= s->layout.spec.n_slots)
        return ERR(ST_E_INTERNAL, "state: release of slot %d; the pool has %d", slot, s->layout.spec.n_slots);
    if (!s->slot_used[slot]) return ERR(ST_E_INTERNAL, "state: release of slot %d, which is free", slot);
    int32_t *page = s->page_table + (size_t)slot * (size_t)s->max_pages;
    for (int i = 0; i < s->n_pages[slot]; i++) {
        s->free_page[s->n_free_pages++] = page[i];
        page[i] = -1;
    }
    s->n_pages[slot] = 0;
    s->slot_used[slot] = 0;
    s->free_slot[s->n_free_slots++] = slot;
    return ST_OK;
}

const int32_t *state_pages(const struct state *s, int slot)
{
    return s->page_table + (size_t)slot * (size_t)s->max_pages;
}

void *state_item(const struct state *s, enum comp comp, int layer, int kv, int64_t item)
{
    int64_t at = layout_offset(&s->layout, layout_find(&s->layout, comp, layer, kv), item);
    return at < 0 ? NULL : (char *)s->arena.p + at;
}

struct paged state_paged(const struct state *s, enum comp comp, int layer, int kv)
{
    int i = layout_find(&s->layout, comp, layer, kv);
    if (i < 0) return (struct paged){0};
    const struct layout_entry *e = &s->layout.entry[i];
    enum kv_dtype type = comp == COMP_DRAFT ? s->layout.spec.draft_kv : s->layout.spec.kv;
    return (struct paged){.base = (char *)s->arena.p + e->base,
                          .stride = e->stride,
                          .page = s->layout.spec.page,
                          .kv = type == KV_BF16 ? OPS_KV_BF16 : OPS_KV_FP32};
}
