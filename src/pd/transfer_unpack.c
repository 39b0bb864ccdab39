/* Slots into pools: what arrived is checked and unpacked, asynchronously where the pools lie on a device. */
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "pd/transfer_impl.h"
#include "pd/wait.h"

/* ---- checks ----------------------------------------------------------------------------------------------------- */

static enum status check_sums(const struct transfer *t, int slot)
{
    for (int i = 0; i < t->n_expected; i++) {
        const struct expected *e = &t->expected[i];
        uint64_t have, want = transfer_line(t, slot, e)->checksum;
        TRY(transfer_hash(t, &t->peer[e->peer], e->comp, SIDE_DEST, t->data + slot * t->slot_bytes, NULL,
                          t->to[slot].n_pages, 0, &have));
        if (have != want)
            return ERR(ST_E_FAULT,
                       "request %d slot %d: checksum of %s from rank %d is %016" PRIx64 ", the source sent %016" PRIx64,
                       t->to[slot].request, slot, comp_name[e->comp], t->peer[e->peer].rank, have, want);
    }
    return ST_OK;
}

/* index of the first NaN among n values, or -1 */
static int64_t find_nan(const void *p, int64_t n, int bytes)
{
    if (bytes == 2) {
        const uint16_t *v = p;
        for (int64_t i = 0; i < n; i++)
            if ((v[i] & 0x7fff) > 0x7f80) return i;
        return -1;
    }
    const uint32_t *v = p;
    for (int64_t i = 0; i < n; i++)
        if ((v[i] & 0x7fffffff) > 0x7f800000) return i;
    return -1;
}

static enum status check_nan(const struct transfer *t, int slot, const struct layout_entry *e, int item, const void *p)
{
    const struct layout_spec *l = &t->slot.spec;
    if (e->comp == COMP_AUX) return ST_OK;
    int bytes = e->comp == COMP_KDA ? 4 : kv_bytes(e->comp == COMP_DRAFT ? l->draft_kv : l->kv);
    int64_t at = find_nan(p, e->item_bytes / bytes, bytes);
    if (at < 0) return ST_OK;
    return ERR(ST_E_FAULT,
               "request %d slot %d: %s layer %d%s, page %d: value %" PRId64 " of %" PRId64 " is a NaN: never written, or "
               "computed so",
               t->to[slot].request, slot, comp_name[e->comp], e->layer,
               e->comp != COMP_DRAFT ? ""
               : e->kv               ? " V"
                                     : " K",
               item, at, e->item_bytes / bytes);
}

static enum status check_aux(const struct transfer *t, int slot, const struct layout_aux *a)
{
    const struct dest_slot *s = &t->to[slot];
    if (a->request != (uint64_t)s->request || a->generation != s->generation)
        return ERR(ST_E_FAULT,
                   "slot %d: aux says request %" PRIu64 " generation %u, the slot is granted to request %d generation %u",
                   slot, a->request, a->generation, s->request, s->generation);
    if (a->state_position != a->prompt_tokens || a->prompt_tokens < 1 ||
        (a->prompt_tokens - 1) / t->slot.spec.page + 1 != s->n_pages || a->draft_rows < 0 ||
        a->draft_rows > a->prompt_tokens)
        return ERR(
            ST_E_FAULT,
            "request %d slot %d: aux says %d prompt tokens, state after %d, %d draft rows, for %d pages of %d tokens",
            s->request, slot, a->prompt_tokens, a->state_position, a->draft_rows, s->n_pages, t->slot.spec.page);
    return ST_OK;
}

/* --inject flip: as if a byte had been damaged on its way, in the first request that comes here */
static void flip_once(struct transfer *t, int slot)
{
    if (t->opt.flip_rank != t->w->rank || t->flipped) return;
    for (int i = 0; i < t->slot.n; i++) {
        const struct layout_entry *e = &t->slot.entry[i];
        if ((int)e->comp != t->opt.flip_component) continue;
        t->data[slot * t->slot_bytes + e->base + e->item_bytes / 2] ^= 1;
        t->flipped = 1;
        return;
    }
}

/* ---- unpacking ---------------------------------------------------------------------------------------------------- */

/* A move that could not begin for want of room begins when others have ended. */
static enum status begin(struct transfer *t, int slot)
{
    struct waiter w = {0, 0};
    uint64_t ticket = 0;
    while (t->n_unpacking && !ticket) {
        ticket = t->o->unpack(t->o, t->unpacking.p, t->n_unpacking, t->unpack_after);
        if (!ticket) TRY(wait_pause(&w));
    }
    if (ticket) {
        t->to[slot].unpack = ticket;
        t->o->join(t->o, ticket);
    }
    t->n_unpacking = 0;
    return ST_OK;
}

/* MPI's memory is not written to: the move only reads it */
static enum status add(struct transfer *t, int slot, const void *from, void *to, int64_t bytes)
{
    struct ops_run *run = t->unpacking.p;
    if (t->n_unpacking == OPS_MOVE_RUNS) TRY(begin(t, slot));
    run[t->n_unpacking++] = (struct ops_run){(void *)(uintptr_t)from, to, bytes};
    return ST_OK;
}

enum status transfer_unpack_entry(struct transfer *t, int slot, const struct layout_entry *e, const char *from,
                                  struct state *s, int state_slot)
{
    int to = layout_find(&s->layout, e->comp, e->layer, e->kv);
    if (to < 0 || s->layout.entry[to].item_bytes != e->item_bytes || s->layout.entry[to].head0 != e->head0)
        return ERR(ST_E_INTERNAL, "unpack: %s layer %d %d has %" PRId64 " bytes in the slot, %" PRId64 " in the pool",
                   comp_name[e->comp], e->layer, e->kv, e->item_bytes, to < 0 ? 0 : s->layout.entry[to].item_bytes);
    int n = comp_paged(e->comp) ? t->to[slot].n_pages : 1;
    const int32_t *page = state_pages(s, state_slot);
    for (int i = 0; i < n; i++) {
        int64_t item = comp_paged(e->comp) ? page[i] : state_slot, at = layout_offset(&s->layout, to, item);
        const char *p = from + e->base + i * e->stride;
        if (at < 0)
            return ERR(ST_E_RANGE, "unpack: request %d: %s layer %d page %d goes to item %" PRId64 "; the pool has %d",
                       t->to[slot].request, comp_name[e->comp], e->layer, i, item, s->layout.entry[to].n_items);
        if (t->opt.verify) TRY(check_nan(t, slot, e, i, p));
        TRY(add(t, slot, p, (void *)((uintptr_t)s->arena.p + (uintptr_t)at), e->item_bytes));
    }
    return ST_OK;
}

enum status transfer_unpack_look(struct transfer *t, int slot)
{
    struct dest_slot *x = &t->to[slot];
    if (x->unpack ? !t->o->moved(t->o, x->unpack) : !x->release) return ST_OK;
    x->unpack = 0;
    transfer_share_release(t, slot, x->release);
    x->release = 0;
    return x->granted ? ST_OK : transfer_tell(t, slot, WORD_FREED, (uint32_t)x->n_pages);
}

static enum status unpack_all(struct transfer *t, int slot, struct state *s, int state_slot)
{
    t->o = s->o;
    t->n_unpacking = 0;
    t->unpack_after = t->o->fence(t->o);
    for (int i = 0; i < t->slot.n; i++)
        if (t->slot.entry[i].comp != COMP_AUX)
            TRY(transfer_unpack_entry(t, slot, &t->slot.entry[i], t->data + slot * t->slot_bytes, s, state_slot));
    TRY(transfer_share_unpack(t, slot, s, state_slot));
    return begin(t, slot);
}

enum status transfer_unpack(struct transfer *t, int slot, struct state *s, int state_slot, struct layout_aux *aux_p)
{
    TRY(transfer_find_slot(t, slot, "unpack"));
    struct dest_slot *x = &t->to[slot];
    struct layout_aux aux;
    if (!x->granted || !x->ready) return ERR(ST_E_INTERNAL, "unpack: slot %d is not ready", slot);
    if (state_slot < 0 || state_slot >= s->layout.spec.n_slots || x->n_pages > s->n_pages[state_slot])
        return ERR(ST_E_RANGE, "unpack: request %d of %d pages into state slot %d of %d slots holding %d pages", x->request,
                   x->n_pages, state_slot, s->layout.spec.n_slots,
                   state_slot < 0 || state_slot >= s->layout.spec.n_slots ? 0 : s->n_pages[state_slot]);
    flip_once(t, slot);
    memcpy(&aux, transfer_aux_of(t, slot), sizeof aux);
    TRY(check_aux(t, slot, &aux));
    TRY(transfer_sums_check(t, slot));
    if (t->opt.verify) TRY(check_sums(t, slot));
    TRY(unpack_all(t, slot, s, state_slot));
    x->granted = 0;
    x->release = x->generation;
    TRY(transfer_unpack_look(t, slot));
    if (aux_p) *aux_p = aux;
    return ST_OK;
}
