/* The receiving side of transfer: grants, words, readiness. */
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
    TRY(buf_alloc(&t->unpacking, OPS_MOVE_RUNS * sizeof(struct ops_run), "runs of unpacking"));
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
    buf_free(&t->unpacking);
}

enum status transfer_find_slot(const struct transfer *t, int slot, const char *what)
{
    if (t->source || !t->to) return ERR(ST_E_INTERNAL, "%s on a prefill rank", what);
    if (slot < 0 || slot >= t->n_slots) return ERR(ST_E_RANGE, "%s: slot %d of %d slots", what, slot, t->n_slots);
    return ST_OK;
}

/* ---- words ---------------------------------------------------------------------------------------------------- */

struct word_line *transfer_line(const struct transfer *t, int slot, const struct expected *e)
{
    return (void *)(t->words + words_at(t, slot, t->peer[e->peer].rank, e->comp));
}

/* the word as far as it belongs to the slot's generation; an older one says nothing */
static struct word_value seen(const struct transfer *t, int slot, const struct expected *e)
{
    struct word_value v = word_unpack(word_load(&transfer_line(t, slot, e)->word));
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

/* slots of other ranks up to this generation are not read any more, or will not be when unpacking has ended */
static void release(struct transfer *t, int slot, uint32_t generation)
{
    struct dest_slot *s = &t->to[slot];
    if (!s->unpack) transfer_share_release(t, slot, generation);
    else if (generation > s->release) s->release = generation;
}

/* Whatever is said after a grant ends what was owed; FREED also says that the slots of other ranks were read. */
enum status transfer_tell(struct transfer *t, int slot, enum word_state state, uint32_t count)
{
    t->to[slot].owed = 0;
    if (state == WORD_FREED) release(t, slot, t->to[slot].generation);
    uint64_t w = word_pack((struct word_value){t->to[slot].generation, state, COMP_MLA, count});
    for (int s = 0; s < t->n_peers; s++)
        if (t->peer[s].expected) TRY(t->via->credit(t, s, slot, w));
    return ST_OK;
}

char *transfer_aux_of(const struct transfer *t, int slot)
{
    return t->data + slot * t->slot_bytes + t->slot.entry[layout_find(&t->slot, COMP_AUX, 0, 0)].base;
}

static void fill_nan(void *p, int64_t bytes)
{
    uint16_t *v = p;
    for (int64_t i = 0; i < bytes / 2; i++) v[i] = NAN_FILL;
}

/* The sources learn of a grant when nobody reads the slot's last generation any more: this rank's unpacking, and those of
 * this node. */
static enum status open_slot(struct transfer *t, int slot)
{
    struct dest_slot *s = &t->to[slot];
    TRY(transfer_unpack_look(t, slot));
    if (!s->owed || s->unpack || !transfer_share_free(t, slot, s->before)) return ST_OK;
    if (t->opt.verify) fill_nan(t->data + slot * t->slot_bytes, t->slot_bytes);
    memset(transfer_aux_of(t, slot), 0, sizeof(struct layout_aux));
    TRY(t->via->sync(t));
    return transfer_tell(t, slot, WORD_GRANT, (uint32_t)s->n_pages);
}

enum status transfer_quiet(struct transfer *t, int slot, int *quiet_p)
{
    TRY(transfer_find_slot(t, slot, "quiet"));
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
    TRY(transfer_find_slot(t, slot, "grant"));
    struct dest_slot *s = &t->to[slot];
    TRY(t->via->sync(t));
    TRY(check_quiet(t, slot));
    if (generation <= s->generation || generation > WORD_GENERATION_MAX)
        return ERR(ST_E_RANGE, "grant: slot %d: generation %u after %u; it must grow and stay below %d", slot, generation,
                   s->generation, WORD_GENERATION_MAX + 1);
    if (n_pages < 1 || n_pages > t->max_pages)
        return ERR(ST_E_RANGE, "grant: request %d: %d pages; a slot holds 1 to %d; the prompt is too long", request,
                   n_pages, t->max_pages);
    release(t, slot, generation - 1);
    *s = (struct dest_slot){.granted = 1, .owed = 1, .before = s->generation, .generation = generation, .request = request,
                            .n_pages = n_pages, .want = s->want, .unpack = s->unpack, .release = s->release};
    for (int i = 0; i < t->n_expected; i++)
        s->want[i] = transfer_plan_bytes(&t->peer[t->expected[i].peer].plan, t->expected[i].comp, n_pages, NULL);
    memset(t->words + words_at(t, slot, 0, COMP_MLA), 0, (size_t)(words_at(t, 1, 0, COMP_MLA)));
    return open_slot(t, slot);
}

enum status transfer_ready(struct transfer *t, int slot, int *ready_p)
{
    TRY(transfer_find_slot(t, slot, "ready"));
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
        uint64_t bytes = transfer_line(t, slot, e)->bytes;
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
            uint64_t w = word_load(&transfer_line(t, slot, &t->expected[i])->word);
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
    TRY(transfer_find_slot(t, slot, "stop"));
    if (!t->to[slot].granted) return ERR(ST_E_PROTOCOL, "stop: slot %d is not granted", slot);
    return transfer_tell(t, slot, WORD_ABORT, 0);
}

enum status transfer_drop(struct transfer *t, int slot)
{
    int quiet = 0;
    TRY(transfer_quiet(t, slot, &quiet));
    if (!t->to[slot].granted || !quiet)
        return ERR(ST_E_PROTOCOL, "drop: slot %d generation %u of request %d is %s", slot, t->to[slot].generation,
                   t->to[slot].request, quiet ? "not granted" : "still being written to");
    t->to[slot].granted = 0;
    return transfer_tell(t, slot, WORD_FREED, 0);
}

/* ---- figures ---------------------------------------------------------------------------------------------------------- */

void transfer_request_stats(const struct transfer *t, int slot, struct transfer_request *r)
{
    memset(r, 0, sizeof *r);
    r->done_s = t->to[slot].done_s;
    for (int i = 0; i < t->n_expected; i++) {
        const struct expected *e = &t->expected[i];
        const struct word_line *l = transfer_line(t, slot, e);
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
            struct word_value v = word_unpack(word_load(&transfer_line(t, slot, e)->word));
            if (v.generation == s->generation && v.state == WORD_DONE) continue;
            if (lines++ == 0)
                log_error("request slot generation  stage rank component  expected word and bytes  seen word, its generation, parts and bytes");
            log_error("%7d %4d %10u  %5d %4d %-9s  DONE %18" PRId64 "  %s %u %u %" PRIu64, s->request, slot, s->generation,
                      p->plan.src_stage, p->rank, comp_name[e->comp], s->want[i],
                      v.state <= WORD_FREED ? word_state_name[v.state] : "?", v.generation, v.count, transfer_line(t, slot, e)->bytes);
        }
        if (s->granted) transfer_share_table(t, slot);
    }
}
