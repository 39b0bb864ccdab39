/* The sending side of transfer: queues of runs, credits, puts, settling, last words. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "pd/transfer_impl.h"

enum status transfer_source_open(struct transfer *t)
{
    t->from = mem_alloc((size_t)t->n_slots, sizeof *t->from, "source slots");
    if (!t->from) return ST_E_NOMEM;
    for (int s = 0; s < t->n_slots; s++) {
        struct out *out = t->from[s].out = mem_alloc((size_t)t->n_peers, sizeof *out, "source queues");
        if (!out) return ST_E_NOMEM;
        for (int d = 0; d < t->n_peers; d++) {
            out[d].done = 1;
            out[d].run = mem_alloc((size_t)t->peer[d].max_runs, sizeof *out[d].run, "queued runs");
            if (!out[d].run) return ST_E_NOMEM;
        }
    }
    return ST_OK;
}

void transfer_source_close(struct transfer *t)
{
    for (int s = 0; t->from && s < t->n_slots; s++) {
        for (int d = 0; t->from[s].out && d < t->n_peers; d++) mem_free(t->from[s].out[d].run);
        mem_free(t->from[s].out);
    }
    mem_free(t->from);
}

static uint64_t puts_issued; /* by this process, whatever the transport */

uint64_t transfer_puts_issued(void)
{
    return puts_issued;
}

static enum status find_slot(struct transfer *t, int slot, const char *what, struct source_slot **s_p)
{
    if (!t->source) return ERR(ST_E_INTERNAL, "%s on a decode rank", what);
    if (slot < 0 || slot >= t->n_slots) return ERR(ST_E_RANGE, "%s: slot %d of %d slots", what, slot, t->n_slots);
    *s_p = &t->from[slot];
    return ST_OK;
}

static enum status find_active(struct transfer *t, int slot, const char *what, struct source_slot **s_p)
{
    TRY(find_slot(t, slot, what, s_p));
    if (!(*s_p)->active || (*s_p)->final || (*s_p)->failed || (*s_p)->aborted)
        return ERR(ST_E_INTERNAL, "%s: slot %d generation %u has not begun or is over", what, slot, (*s_p)->generation);
    return ST_OK;
}

/* ---- queueing ------------------------------------------------------------------------------------------------ */

static int pending(const struct source_slot *s, const struct out *o)
{
    return o->issued < o->n || o->staged || o->unsettled || ((s->final || s->failed || s->aborted || o->stopped) && !o->done);
}

enum status transfer_begin(struct transfer *t, int slot, uint32_t generation, int request, int state_slot, int n_pages)
{
    struct source_slot *s;
    TRY(find_slot(t, slot, "begin", &s));
    for (int d = 0; d < t->n_peers; d++)
        if (s->active && !s->out[d].done)
            return ERR(ST_E_INTERNAL, "begin: slot %d generation %u: request %d is not yet sent to decode rank %d", slot,
                       s->generation, s->request, d);
    if (generation <= s->generation || generation > WORD_GENERATION_MAX)
        return ERR(ST_E_RANGE, "begin: slot %d: generation %u after %u; it must grow and stay below %d", slot, generation,
                   s->generation, WORD_GENERATION_MAX + 1);
    if (state_slot < 0 || state_slot >= t->source->layout.spec.n_slots || n_pages < 1 || n_pages > t->max_pages ||
        n_pages > t->source->max_pages)
        return ERR(ST_E_RANGE,
                   "begin: request %d in state slot %d with %d pages; there are %d state slots and up to %d pages", request,
                   state_slot, n_pages, t->source->layout.spec.n_slots, t->max_pages);
    s->active = 1;
    s->final = s->failed = s->aborted = s->pages_queued = 0;
    s->generation = generation;
    s->request = request;
    s->state_slot = state_slot;
    s->n_pages = n_pages;
    for (int d = 0; d < t->n_peers; d++) {
        struct queued *run = s->out[d].run;
        s->out[d] = (struct out){.run = run, .done = t->peer[d].expected == 0};
    }
    return ST_OK;
}

struct adding {
    struct out *o;
    int room;
    enum comp comp;
    uint64_t after;
};

static enum status add_run(void *ctx, const struct plan_run *r)
{
    struct adding *x = ctx;
    struct out *o = x->o;
    struct queued *last = o->n > o->issued ? &o->run[o->n - 1] : NULL; /* one already begun is left alone */
    if (last && last->comp == x->comp && last->after == x->after && last->src + last->bytes == r->src &&
        last->dst + last->bytes == r->dst) {
        last->bytes += r->bytes;
        return ST_OK;
    }
    if (o->n == x->room) return ERR(ST_E_INTERNAL, "%s: more than the planned %d runs", comp_name[x->comp], x->room);
    o->run[o->n++] = (struct queued){r->src, r->dst, r->bytes, x->after, x->comp};
    return ST_OK;
}

/* Queue items [i0, i1) of the components of one kind (paged or not) for every destination. A refused item takes back what
 * this call queued: nothing of it is ever put. */
static enum status add_items(struct transfer *t, struct source_slot *s, int paged, int i0, int i1)
{
    const int32_t *page = state_pages(t->source, s->state_slot);
    uint64_t after = t->packing ? t->o->fence(t->o) : 0; /* what is queued is as the operations given so far leave it */
    for (int d = 0; d < t->n_peers; d++) {
        const struct peer *p = &t->peer[d];
        struct adding x = {&s->out[d], p->max_runs, COMP_MLA, after};
        if (s->out[d].stopped) continue; /* that destination wants no more of it */
        for (int k = 0; k < p->plan.n; k++) {
            const struct plan_copy *copy = &p->plan.copy[k];
            x.comp = copy->comp;
            if (comp_paged(copy->comp) != paged) continue;
            for (int i = i0; i < i1; i++)
                TRY(transfer_plan_runs(&p->plan, copy, &t->source->layout, &p->layout, paged ? page[i] : s->state_slot, i,
                                       add_run, &x));
        }
    }
    return ST_OK;
}

static enum status add_or_nothing(struct transfer *t, struct source_slot *s, int paged, int i0, int i1)
{
    for (int d = 0; d < t->n_peers; d++) {
        struct out *o = &s->out[d];
        if (o->issued > 0) { /* runs put so far need no room */
            memmove(o->run, o->run + o->issued, (size_t)(o->n - o->issued) * sizeof *o->run);
            o->n -= o->issued;
            o->issued = 0;
        }
        o->mark_n = o->n; /* the last run may get longer */
        o->mark_last = o->n ? o->run[o->n - 1].bytes : 0;
    }
    enum status st = add_items(t, s, paged, i0, i1);
    for (int d = 0; d < t->n_peers && st != ST_OK; d++) {
        struct out *o = &s->out[d];
        o->n = o->mark_n;
        if (o->n) o->run[o->n - 1].bytes = o->mark_last;
    }
    return st;
}

enum status transfer_pages(struct transfer *t, int slot, int p0, int p1)
{
    struct source_slot *s;
    TRY(find_active(t, slot, "pages", &s));
    if (p0 != s->pages_queued || p1 < p0 || p1 > s->n_pages)
        return ERR(ST_E_RANGE, "pages: [%d, %d) of request %d after [0, %d) of %d; every page once and in order", p0, p1,
                   s->request, s->pages_queued, s->n_pages);
    TRY(add_or_nothing(t, s, 1, p0, p1));
    s->pages_queued = p1;
    return ST_OK;
}

/* The last stage's aux record goes through the arena like everything else. */
static enum status store_aux(struct transfer *t, const struct source_slot *s, const struct layout_aux *aux)
{
    void *at = state_item(t->source, COMP_AUX, 0, 0, s->state_slot);
    if (!at && !aux) return ST_OK;
    if (!at || !aux)
        return ERR(ST_E_INTERNAL, "final: request %d: aux record %s, place for it %s", s->request, aux ? "given" : "missing",
                   at ? "exists" : "missing");
    if (aux->request != (uint64_t)s->request || aux->generation != s->generation)
        return ERR(ST_E_INTERNAL,
                   "final: aux says request %" PRIu64 " generation %u, the slot has request %d generation %u", aux->request,
                   aux->generation, s->request, s->generation);
    t->source->o->put(t->source->o, at, aux, sizeof *aux);
    return ST_OK;
}

enum status transfer_final(struct transfer *t, int slot, const struct layout_aux *aux)
{
    struct source_slot *s;
    TRY(find_active(t, slot, "final", &s));
    if (s->pages_queued != s->n_pages)
        return ERR(ST_E_INTERNAL, "final: request %d: %d of %d pages are queued", s->request, s->pages_queued, s->n_pages);
    TRY(store_aux(t, s, aux));
    TRY(add_or_nothing(t, s, 0, 0, 1));
    for (int d = 0; d < t->n_peers && t->opt.verify; d++)
        for (int c = 0; c < COMP_N; c++)
            TRY(transfer_hash(t, &t->peer[d], (enum comp)c, SIDE_SOURCE, t->source->arena.p,
                              state_pages(t->source, s->state_slot), s->n_pages, s->state_slot,
                              &s->out[d].line[c].checksum));
    TRY(transfer_sums_send(t, slot));
    s->final = 1;
    return ST_OK;
}

/* what is queued is never put; what is complete stays complete */
static void drop_queue(struct out *o)
{
    if (!o->done) o->n = o->issued = 0;
}

enum status transfer_fail(struct transfer *t, int slot)
{
    struct source_slot *s;
    TRY(find_slot(t, slot, "fail", &s));
    if (!s->active) return ERR(ST_E_INTERNAL, "fail: slot %d has not begun", slot);
    s->failed = 1;
    for (int d = 0; d < t->n_peers; d++) drop_queue(&s->out[d]);
    return ST_OK;
}

enum status transfer_abort(struct transfer *t, int slot)
{
    struct source_slot *s;
    TRY(find_slot(t, slot, "abort", &s));
    s->aborted = s->active;
    for (int d = 0; d < t->n_peers && s->active; d++) {
        s->out[d].stopped = !s->out[d].done;
        drop_queue(&s->out[d]);
    }
    return ST_OK;
}

int transfer_sending(const struct transfer *t, int slot)
{
    return t->from[slot].active;
}

/* ---- sending ------------------------------------------------------------------------------------------------- */

/* What destination d says about the slot's present life: GRANT, ABORT, or NONE: its memory may not be touched. */
static enum word_state credit_of(const struct transfer *t, int slot, int d)
{
    struct word_value v = word_unpack(word_load(t->credit + credit_at(t, d, slot)));
    if (v.generation != t->from[slot].generation || (v.state != WORD_GRANT && v.state != WORD_ABORT)) return WORD_NONE;
    return v.state;
}

int transfer_held_back(const struct transfer *t, int slot, int d)
{
    return t->opt.delay_s > 0 && MPI_Wtime() < t->from[slot].out[d].due;
}

/* share a time span among the components by their bytes */
static void share_time(struct out *o, const int64_t *bytes, double seconds)
{
    int64_t all = 0;
    for (int c = 0; c < COMP_N; c++) all += bytes[c];
    for (int c = 0; c < COMP_N && all > 0; c++) o->line[c].seconds += seconds * (double)bytes[c] / (double)all;
}

enum status transfer_put(struct transfer *t, int slot, int d, enum comp comp, int64_t dst, const void *from, int64_t bytes,
                         double begin, int64_t *took_p)
{
    struct out *o = &t->from[slot].out[d];
    struct word_line *line = &o->line[comp];
    int64_t took = 0;
    int puts = 0;
    TRY(t->via->put(t, d, slot * t->peer[d].layout.bytes + dst, from, bytes, &took, &puts));
    *took_p = took;
    if (took == 0) return ST_OK;
    if (line->bytes == 0) line->first_s = begin;
    line->bytes += (uint64_t)took;
    line->runs += (uint64_t)puts;
    t->count[comp].bytes += (uint64_t)took;
    t->count[comp].puts += (uint64_t)puts;
    puts_issued += (uint64_t)puts;
    o->batch[comp] += took;
    o->touched |= 1u << comp;
    o->unsettled += puts;
    if (t->opt.delay_s > 0) o->due = MPI_Wtime() + t->opt.delay_s;
    return ST_OK;
}

/* put what is queued; what lies on a device is packed first, and put by transfer_pack_run */
static enum status issue(struct transfer *t, int slot, int d)
{
    struct out *o = &t->from[slot].out[d];
    int64_t put[COMP_N] = {0};
    double begin = world_now(t->w);
    while (o->issued < o->n && (t->packing || !transfer_held_back(t, slot, d))) {
        struct queued *q = &o->run[o->issued];
        int64_t took = 0;
        if (q->src < 0 || q->src > t->source->layout.bytes - q->bytes)
            return ERR(ST_E_RANGE, "run of %lld bytes from %lld: outside of the arena of %lld", (long long)q->bytes,
                       (long long)q->src, (long long)t->source->layout.bytes);
        const char *from = (const char *)t->source->arena.p;
        if (t->packing) took = transfer_pack_add(t, slot, d, q);
        else TRY(transfer_put(t, slot, d, q->comp, q->dst, from + q->src, q->bytes, begin, &took));
        put[q->comp] += took;
        q->src += took;
        q->dst += took;
        q->bytes -= took;
        if (q->bytes > 0 && !(t->packing && took)) break; /* no room just now */
        o->issued += q->bytes == 0;
    }
    if (!t->packing) share_time(o, put, world_now(t->w) - begin);
    return ST_OK;
}

/* nothing is on its way that a last word would have to wait for, but puts */
static int all_through(const struct source_slot *s, const struct out *o)
{
    return !o->staged && (s->failed || o->stopped || (s->final && o->issued == o->n));
}

/* flush what was put, then say so: PART, or DONE when nothing is left to come */
static enum status settle(struct transfer *t, int slot, int d)
{
    const struct source_slot *s = &t->from[slot];
    struct out *o = &t->from[slot].out[d];
    if (o->unsettled) {
        double begin = world_now(t->w);
        TRY(t->via->flush(t, d));
        share_time(o, o->batch, world_now(t->w) - begin);
        o->unsettled = 0;
        transfer_pack_settled(t, slot, d);
    }
    int last = all_through(s, o);
    unsigned mask = 0;
    for (int c = 0; c < COMP_N; c++) {
        int touched = o->touched >> c & 1;
        t->count[c].flushes += (uint64_t)touched;
        o->parts[c] += (uint32_t)touched;
        if (!t->peer[d].plan.has[c] || !(last || touched)) continue;
        if (t->opt.drop_rank == t->w->rank && t->opt.drop_component == c) continue;
        enum word_state state = s->failed ? WORD_FAIL : o->stopped ? WORD_QUIET : last ? WORD_DONE : WORD_PART;
        o->line[c].word = word_pack((struct word_value){s->generation, state, (enum comp)c, o->parts[c]});
        mask |= 1u << c;
        t->count[c].words++;
        t->count[c].quiets += state == WORD_QUIET;
    }
    if (mask) TRY(t->via->words(t, d, slot, mask, o->line));
    memset(o->batch, 0, sizeof o->batch);
    o->touched = 0;
    o->done |= last;
    return ST_OK;
}

static int to_settle(const struct source_slot *s, const struct out *o)
{
    return o->unsettled || (!o->done && all_through(s, o));
}

/* one step of one slot towards one destination */
static enum status push_one(struct transfer *t, int slot, int d, int settle_now)
{
    struct source_slot *s = &t->from[slot];
    struct out *o = &s->out[d];
    enum word_state credit = credit_of(t, slot, d);
    if (credit == WORD_NONE) return ST_OK;
    if (credit == WORD_ABORT && !o->done && !o->stopped && !s->failed) {
        o->stopped = 1;
        drop_queue(o);
    }
    if (!pending(s, o)) return ST_OK;
    int first = !settle_now || t->opt.delay_s > 0; /* a slow run that is through is said before the next holds it up */
    if (first && to_settle(s, o) && !transfer_held_back(t, slot, d)) TRY(settle(t, slot, d));
    return o->stopped ? ST_OK : issue(t, slot, d);
}

/* what was put in this turn */
static enum status settle_one(struct transfer *t, int slot, int d)
{
    const struct source_slot *s = &t->from[slot];
    if (credit_of(t, slot, d) == WORD_NONE || !to_settle(s, &s->out[d]) || transfer_held_back(t, slot, d)) return ST_OK;
    return settle(t, slot, d);
}

enum status transfer_push(struct transfer *t, int settle_now, int *idle_p)
{
    if (!t->source) return ERR(ST_E_INTERNAL, "push on a decode rank");
    int idle = 1;
    TRY(t->via->progress(t));
    TRY(t->via->sync(t));
    for (int slot = 0; slot < t->n_slots; slot++)
        for (int d = 0; t->from[slot].active && d < t->n_peers; d++)
            if (!t->from[slot].out[d].done) TRY(push_one(t, slot, d, settle_now));
    TRY(transfer_pack_run(t));
    for (int slot = 0; slot < t->n_slots; slot++) {
        struct source_slot *s = &t->from[slot];
        int all_done = 1;
        for (int d = 0; s->active && d < t->n_peers; d++) {
            struct out *o = &s->out[d];
            if (!o->done && settle_now) TRY(settle_one(t, slot, d));
            if (pending(s, o)) idle = 0;
            all_done &= o->done;
        }
        if (s->active && (s->final || s->failed || s->aborted) && all_done) s->active = 0;
    }
    if (idle_p) *idle_p = idle;
    return ST_OK;
}

void transfer_source_table(const struct transfer *t)
{
    for (int slot = 0; slot < t->n_slots; slot++)
        for (int d = 0; t->from[slot].active && d < t->n_peers; d++) {
            const struct source_slot *s = &t->from[slot];
            const struct out *o = &s->out[d];
            if (o->done) continue;
            struct word_value v = word_unpack(word_load(t->credit + credit_at(t, d, slot)));
            log_error(
                "request %d slot %d generation %u to decode rank %d: %d of %d pages queued, %s, %d runs wait, %d pieces are packed, %d puts "
                "unsettled, credit %s of generation %u",
                s->request, slot, s->generation, t->peer[d].rank, s->pages_queued, s->n_pages,
                s->failed    ? "failed"
                : o->stopped ? "aborted"
                : s->final   ? "final"
                             : "not final",
                o->n - o->issued, o->staged, o->unsettled, v.state <= WORD_FREED ? word_state_name[v.state] : "?", v.generation);
        }
}
