/* The receiving side of transfer: grants, readiness, checks, unpacking. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "pd/transfer_impl.h"

enum status transfer_dest_open(struct transfer *t)
{
    for (int s = 0; s < t->n_peers; s++) t->n_expected += t->peer[s].expected;
    t->expected = mem_alloc((size_t)t->n_expected, sizeof *t->expected, "expected words");
    t->to = mem_alloc((size_t)t->n_slots, sizeof *t->to, "destination slots");
    if (!t->expected || !t->to) return ST_E_NOMEM;
    int n = 0;
    for (int s = 0; s < t->n_peers; s++)
        for (int c = 0; c < COMP_N; c++)
            if (t->peer[s].plan.has[c]) t->expected[n++] = (struct expected){s, (enum comp)c};
    for (int i = 0; i < t->n_slots; i++) {
        t->to[i].want = mem_alloc((size_t)t->n_expected, sizeof *t->to[i].want, "expected bytes");
        if (!t->to[i].want) return ST_E_NOMEM;
    }
    return ST_OK;
}

void transfer_dest_close(struct transfer *t)
{
    for (int i = 0; t->to && i < t->n_slots; i++) mem_free(t->to[i].want);
    mem_free(t->to);
    mem_free(t->expected);
}

static enum status find_slot(const struct transfer *t, int slot, const char *what)
{
    if (t->source || !t->to) return ERR(ST_E_INTERNAL, "%s on a prefill rank", what);
    if (slot < 0 || slot >= t->n_slots) return ERR(ST_E_RANGE, "%s: slot %d of %d slots", what, slot, t->n_slots);
    return ST_OK;
}

/* ---- words ---------------------------------------------------------------------------------------------------- */

static const struct word_line *line_of(const struct transfer *t, int slot, const struct expected *e)
{
    return (const void *)(t->words + words_at(t, slot, t->peer[e->peer].rank, e->comp));
}

/* the word as far as it belongs to the slot's generation; an older one says nothing */
static struct word_value seen(const struct transfer *t, int slot, const struct expected *e)
{
    struct word_value v = word_unpack(word_load(&line_of(t, slot, e)->word));
    if (v.generation != t->to[slot].generation) v = (struct word_value){t->to[slot].generation, WORD_NONE, e->comp, 0};
    return v;
}

static int is_last(enum word_state s)
{
    return s == WORD_DONE || s == WORD_FAIL || s == WORD_QUIET;
}

static enum status check_quiet(const struct transfer *t, int slot)
{
    const struct dest_slot *s = &t->to[slot];
    for (int i = 0; s->granted && i < t->n_expected; i++) {
        struct word_value v = seen(t, slot, &t->expected[i]);
        if (!is_last(v.state))
            return ERR(
                ST_E_INTERNAL,
                "grant: slot %d generation %u of request %d: %s of rank %d is %s; a slot is only given away when every "
                "source is DONE or has failed",
                slot, s->generation, s->request, comp_name[t->expected[i].comp], t->peer[t->expected[i].peer].rank,
                v.state <= WORD_FREED ? word_state_name[v.state] : "unknown");
    }
    return ST_OK;
}

/* Whatever is said after a grant ends what was owed; FREED also says that the slots of other ranks were read. */
static enum status tell_sources(struct transfer *t, int slot, enum word_state state, uint32_t count)
{
    t->to[slot].owed = 0;
    if (state == WORD_FREED) transfer_share_release(t, slot, t->to[slot].generation);
    uint64_t w = word_pack((struct word_value){t->to[slot].generation, state, COMP_MLA, count});
    for (int s = 0; s < t->n_peers; s++)
        if (t->peer[s].expected) TRY(t->via->credit(t, s, slot, w));
    return ST_OK;
}

static char *aux_of(const struct transfer *t, int slot)
{
    return t->data + slot * t->slot_bytes + t->slot.entry[layout_find(&t->slot, COMP_AUX, 0, 0)].base;
}

static void fill_nan(void *p, int64_t bytes)
{
    uint16_t *v = p;
    for (int64_t i = 0; i < bytes / 2; i++) v[i] = NAN_FILL;
}

/* The sources learn of a grant when nobody of this node reads the slot's last generation any more. */
static enum status open_slot(struct transfer *t, int slot)
{
    struct dest_slot *s = &t->to[slot];
    if (!s->owed || !transfer_share_free(t, slot, s->before)) return ST_OK;
    if (t->opt.verify) fill_nan(t->data + slot * t->slot_bytes, t->slot_bytes);
    memset(aux_of(t, slot), 0, sizeof(struct layout_aux));
    TRY(t->via->sync(t));
    return tell_sources(t, slot, WORD_GRANT, (uint32_t)s->n_pages);
}

enum status transfer_quiet(struct transfer *t, int slot, int *quiet_p)
{
    TRY(find_slot(t, slot, "quiet"));
    TRY(t->via->progress(t));
    TRY(transfer_sums_take(t, slot));
    TRY(t->via->sync(t));
    int last = 1;
    for (int i = 0; t->to[slot].granted && i < t->n_expected; i++) last &= is_last(seen(t, slot, &t->expected[i]).state);
    *quiet_p = last;
    return ST_OK;
}

enum status transfer_grant(struct transfer *t, int slot, uint32_t generation, int request, int n_pages)
{
    TRY(find_slot(t, slot, "grant"));
    struct dest_slot *s = &t->to[slot];
    TRY(t->via->sync(t));
    TRY(check_quiet(t, slot));
    if (generation <= s->generation || generation > WORD_GENERATION_MAX)
        return ERR(ST_E_RANGE, "grant: slot %d: generation %u after %u; it must grow and stay below %d", slot, generation,
                   s->generation, WORD_GENERATION_MAX + 1);
    if (n_pages < 1 || n_pages > t->max_pages)
        return ERR(ST_E_RANGE, "grant: request %d: %d pages; a slot holds 1 to %d; the prompt is too long", request,
                   n_pages, t->max_pages);
    transfer_share_release(t, slot, generation - 1);
    *s = (struct dest_slot){.granted = 1, .owed = 1, .before = s->generation, .generation = generation, .request = request,
                            .n_pages = n_pages, .want = s->want};
    for (int i = 0; i < t->n_expected; i++)
        s->want[i] = transfer_plan_bytes(&t->peer[t->expected[i].peer].plan, t->expected[i].comp, n_pages, NULL);
    memset(t->words + words_at(t, slot, 0, COMP_MLA), 0, (size_t)(words_at(t, 1, 0, COMP_MLA)));
    return open_slot(t, slot);
}

enum status transfer_ready(struct transfer *t, int slot, int *ready_p)
{
    TRY(find_slot(t, slot, "ready"));
    struct dest_slot *s = &t->to[slot];
    if (!s->granted) return ERR(ST_E_INTERNAL, "ready: slot %d is not granted", slot);
    TRY(t->via->progress(t));
    TRY(transfer_sums_take(t, slot));
    TRY(t->via->sync(t));
    TRY(open_slot(t, slot));
    int waiting = s->owed, failed = 0;
    enum word_state all[COMP_N];
    for (int c = 0; c < COMP_N; c++) all[c] = s->owed ? WORD_NONE : WORD_DONE;
    for (int i = 0; i < t->n_expected; i++) {
        const struct expected *e = &t->expected[i];
        struct word_value v = seen(t, slot, e);
        failed |= v.state == WORD_FAIL;
        waiting |= v.state != WORD_DONE;
        if (v.state == WORD_FAIL || (v.state != WORD_DONE && all[e->comp] == WORD_DONE))
            all[e->comp] = v.state == WORD_FAIL ? WORD_FAIL : WORD_NONE;
        if (v.state != WORD_DONE) continue;
        uint64_t bytes = line_of(t, slot, e)->bytes;
        if (bytes != (uint64_t)s->want[i] || v.comp != e->comp)
            return ERR(ST_E_FAULT,
                       "request %d slot %d: rank %d says %s is done with %" PRIu64 " bytes of %s, the plan has %" PRId64
                       " bytes of %s",
                       s->request, slot, t->peer[e->peer].rank, comp_name[e->comp], bytes,
                       v.comp < COMP_N ? comp_name[v.comp] : "?", s->want[i], comp_name[e->comp]);
    }
    TRY(t->via->sync(t)); /* words seen: now the data */
    transfer_share_publish(t, slot, all);
    transfer_share_seen(t, slot, &waiting, &failed);
    TRY(transfer_share_sync(t));
    if (!waiting && !failed && !s->ready) {
        s->ready = 1;
        s->done_s = world_now(t->w);
    }
    *ready_p = failed ? -1 : !waiting;
    return ST_OK;
}

uint64_t transfer_seen(const struct transfer *t)
{
    uint64_t h = 0;
    for (int slot = 0; slot < t->n_slots; slot++)
        for (int i = 0; t->to[slot].granted && i < t->n_expected; i++) {
            uint64_t w = word_load(&line_of(t, slot, &t->expected[i])->word);
            h = (h ^ w) * 0x9e3779b97f4a7c15u; /* a fingerprint, compared with the one before only */
            h ^= h >> 29;
        }
    return h;
}

int transfer_blame(const struct transfer *t, int slot)
{
    for (int i = 0; i < t->n_expected; i++)
        if (seen(t, slot, &t->expected[i]).state == WORD_FAIL) return t->peer[t->expected[i].peer].rank;
    return -1;
}

enum status transfer_stop(struct transfer *t, int slot)
{
    TRY(find_slot(t, slot, "stop"));
    if (!t->to[slot].granted) return ERR(ST_E_PROTOCOL, "stop: slot %d is not granted", slot);
    return tell_sources(t, slot, WORD_ABORT, 0);
}

enum status transfer_drop(struct transfer *t, int slot)
{
    int quiet = 0;
    TRY(transfer_quiet(t, slot, &quiet));
    if (!t->to[slot].granted || !quiet)
        return ERR(ST_E_PROTOCOL, "drop: slot %d generation %u of request %d is %s", slot, t->to[slot].generation,
                   t->to[slot].request, quiet ? "not granted" : "still being written to");
    t->to[slot].granted = 0;
    return tell_sources(t, slot, WORD_FREED, 0);
}

/* ---- checks ----------------------------------------------------------------------------------------------------- */

static enum status check_sums(const struct transfer *t, int slot)
{
    for (int i = 0; i < t->n_expected; i++) {
        const struct expected *e = &t->expected[i];
        uint64_t have, want = line_of(t, slot, e)->checksum;
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
        s->o->put(s->o, (void *)((uintptr_t)s->arena.p + (uintptr_t)at), p, (size_t)e->item_bytes);
    }
    return ST_OK;
}

enum status transfer_unpack(struct transfer *t, int slot, struct state *s, int state_slot, struct layout_aux *aux_p)
{
    TRY(find_slot(t, slot, "unpack"));
    struct dest_slot *x = &t->to[slot];
    struct layout_aux aux;
    if (!x->granted || !x->ready) return ERR(ST_E_INTERNAL, "unpack: slot %d is not ready", slot);
    if (state_slot < 0 || state_slot >= s->layout.spec.n_slots || x->n_pages > s->n_pages[state_slot])
        return ERR(ST_E_RANGE, "unpack: request %d of %d pages into state slot %d of %d slots holding %d pages", x->request,
                   x->n_pages, state_slot, s->layout.spec.n_slots,
                   state_slot < 0 || state_slot >= s->layout.spec.n_slots ? 0 : s->n_pages[state_slot]);
    flip_once(t, slot);
    memcpy(&aux, aux_of(t, slot), sizeof aux);
    TRY(check_aux(t, slot, &aux));
    TRY(transfer_sums_check(t, slot));
    if (t->opt.verify) TRY(check_sums(t, slot));
    for (int i = 0; i < t->slot.n; i++)
        if (t->slot.entry[i].comp != COMP_AUX)
            TRY(transfer_unpack_entry(t, slot, &t->slot.entry[i], t->data + slot * t->slot_bytes, s, state_slot));
    TRY(transfer_share_unpack(t, slot, s, state_slot));
    x->granted = 0;
    TRY(tell_sources(t, slot, WORD_FREED, (uint32_t)x->n_pages));
    if (aux_p) *aux_p = aux;
    return ST_OK;
}

/* ---- figures ---------------------------------------------------------------------------------------------------------- */

void transfer_request_stats(const struct transfer *t, int slot, struct transfer_request *r)
{
    memset(r, 0, sizeof *r);
    r->done_s = t->to[slot].done_s;
    for (int i = 0; i < t->n_expected; i++) {
        const struct expected *e = &t->expected[i];
        const struct word_line *l = line_of(t, slot, e);
        r->bytes[e->comp] += l->bytes;
        r->puts[e->comp] += l->runs;
        r->seconds[e->comp] += l->seconds;
        r->checksum[e->comp] = hash64(&l->checksum, sizeof l->checksum, r->checksum[e->comp]);
        if (l->bytes && (r->first_s == 0 || l->first_s < r->first_s)) r->first_s = l->first_s;
    }
}

void transfer_dest_table(const struct transfer *t)
{
    int lines = 0;
    for (int slot = 0; slot < t->n_slots; slot++) {
        const struct dest_slot *s = &t->to[slot];
        for (int i = 0; s->granted && i < t->n_expected; i++) {
            const struct expected *e = &t->expected[i];
            const struct peer *p = &t->peer[e->peer];
            struct word_value v = word_unpack(word_load(&line_of(t, slot, e)->word));
            if (v.generation == s->generation && v.state == WORD_DONE) continue;
            if (lines++ == 0)
                log_error("request slot generation  stage rank component  expected word and bytes  seen word, its generation, parts and bytes");
            log_error("%7d %4d %10u  %5d %4d %-9s  DONE %18" PRId64 "  %s %u %u %" PRIu64, s->request, slot, s->generation,
                      p->plan.src_stage, p->rank, comp_name[e->comp], s->want[i],
                      v.state <= WORD_FREED ? word_state_name[v.state] : "?", v.generation, v.count, line_of(t, slot, e)->bytes);
        }
        if (s->granted) transfer_share_table(t, slot);
    }
}
