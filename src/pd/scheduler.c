#include "pd/scheduler.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "plan/split.h"

enum phase { QUEUED, ADMITTED, ABORTING, STARTED, FINISHED, FREED }; /* ABORTING: in its slot until all are quiet */
static const char *const phase_name[] = {"queued", "admitted", "aborting", "started", "finished", "freed"};

struct slot {
    int request;         /* -1 free */
    uint32_t generation;
    int n_ready;         /* decode ranks that saw everything */
    int n_quiet;         /* decode ranks all of whose sources are quiet */
    uint8_t *seen;       /* [decode_ranks] */
    uint8_t *quiet;      /* [decode_ranks] */
    int64_t ready_tick;  /* tick in which the last decode rank saw its last word; -1 not yet */
};

struct scheduler {
    struct scheduler_options o;
    uint8_t *phase;      /* [n_requests] */
    uint8_t *abort;      /* [n_requests] enum abort_reason: to be aborted by the next tick */
    int32_t *next_pos;   /* [n_requests] first position not yet ordered as a chunk; -1 all ordered */
    struct slot *slot;   /* [n_staging] */
    int32_t *finish;     /* requests that ended since the last tick */
    int n_finish, n_abort;
    int next;            /* next request to admit */
    int decoding;        /* STARTED requests */
    int left;            /* requests not yet FREED (and not skipped) */
    int draining, stopped;
    int64_t seq;
    struct scheduler_stats st;
};

static enum status alloc(struct scheduler *s)
{
    int n = s->o.n_requests;
    s->phase = mem_alloc((size_t)n, 1, "scheduler phases");
    s->abort = mem_alloc((size_t)n, 1, "scheduler aborts");
    s->next_pos = mem_alloc((size_t)n, sizeof *s->next_pos, "scheduler chunks");
    s->finish = mem_alloc((size_t)n, sizeof *s->finish, "scheduler events");
    s->slot = mem_alloc((size_t)s->o.n_staging, sizeof *s->slot, "scheduler slots");
    if (!s->phase || !s->abort || !s->next_pos || !s->finish || !s->slot) return ST_E_NOMEM;
    for (int i = 0; i < s->o.n_staging; i++) {
        s->slot[i].request = -1;
        s->slot[i].ready_tick = -1;
        s->slot[i].seen = mem_alloc((size_t)s->o.decode_ranks, 1, "scheduler reports");
        s->slot[i].quiet = mem_alloc((size_t)s->o.decode_ranks, 1, "scheduler reports");
        if (!s->slot[i].seen || !s->slot[i].quiet) return ST_E_NOMEM;
    }
    return ST_OK;
}

enum status scheduler_open(const struct scheduler_options *o, struct scheduler **s_p)
{
    if (o->n_requests < 0 || o->n_staging < 1 || o->concurrency < 1 || o->chunk < 1 || o->page < 1 ||
        o->decode_ranks < 1)
        return ERR(ST_E_RANGE, "scheduler: requests %d, slots %d, concurrency %d, chunk %d, page %d, decode ranks %d",
                   o->n_requests, o->n_staging, o->concurrency, o->chunk, o->page, o->decode_ranks);
    struct scheduler *s = mem_alloc(1, sizeof *s, "scheduler");
    if (!s) return ST_E_NOMEM;
    s->o = *o;
    enum status st = alloc(s);
    if (st != ST_OK) {
        scheduler_close(s);
        return st;
    }
    for (int i = 0; i < o->n_requests; i++) {
        if (o->skip && o->skip[i])
            s->phase[i] = FREED;
        else
            s->left++;
    }
    *s_p = s;
    return ST_OK;
}

void scheduler_close(struct scheduler *s)
{
    if (!s) return;
    for (int i = 0; s->slot && i < s->o.n_staging; i++) {
        mem_free(s->slot[i].seen);
        mem_free(s->slot[i].quiet);
    }
    mem_free(s->slot);
    mem_free(s->finish);
    mem_free(s->next_pos);
    mem_free(s->abort);
    mem_free(s->phase);
    mem_free(s);
}

/* *now_p: the slot, when the report speaks of its present life; NULL for a late one of an earlier life */
static enum status take_report(struct scheduler *s, const char *what, int slot, uint32_t generation, int rank,
                               struct slot **now_p)
{
    if (slot < 0 || slot >= s->o.n_staging || rank < 0 || rank >= s->o.decode_ranks)
        return ERR(ST_E_PROTOCOL, "%s for slot %d from decode rank %d: there are %d slots and %d ranks", what, slot,
                   rank, s->o.n_staging, s->o.decode_ranks);
    struct slot *l = &s->slot[slot];
    if (generation > l->generation)
        return ERR(ST_E_PROTOCOL, "%s for slot %d generation %u from decode rank %d: the slot is at generation %u",
                   what, slot, generation, rank, l->generation);
    *now_p = generation == l->generation && l->request >= 0 ? l : NULL;
    if (!*now_p) s->st.stale++;
    return ST_OK;
}

enum status scheduler_ready(struct scheduler *s, int slot, uint32_t generation, int rank, int64_t tick)
{
    struct slot *l;
    TRY(take_report(s, "READY", slot, generation, rank, &l));
    if (!l) return ST_OK;
    if (l->seen[rank]) {
        s->st.stale++;
        return ST_OK;
    }
    l->seen[rank] = 1;
    l->n_ready++;
    if (tick > l->ready_tick) l->ready_tick = tick;
    return ST_OK;
}

enum status scheduler_failed(struct scheduler *s, int slot, uint32_t generation, int rank)
{
    struct slot *l;
    TRY(take_report(s, "FAILED", slot, generation, rank, &l));
    return l ? scheduler_abort(s, l->request, ABORT_FAILED) : ST_OK;
}

enum status scheduler_quiet(struct scheduler *s, int slot, uint32_t generation, int rank)
{
    struct slot *l;
    TRY(take_report(s, "QUIET", slot, generation, rank, &l));
    if (!l) return ST_OK;
    if (s->phase[l->request] != ABORTING)
        return ERR(ST_E_PROTOCOL, "QUIET for slot %d generation %u from decode rank %d, but request %d is %s", slot,
                   generation, rank, l->request, phase_name[s->phase[l->request]]);
    if (l->quiet[rank]) {
        s->st.stale++;
        return ST_OK;
    }
    l->quiet[rank] = 1;
    l->n_quiet++;
    return ST_OK;
}

enum status scheduler_abort(struct scheduler *s, int request, enum abort_reason reason)
{
    if (request < 0 || request >= s->o.n_requests)
        return ERR(ST_E_INTERNAL, "abort of request %d of %d", request, s->o.n_requests);
    if (s->abort[request] || s->phase[request] == ABORTING || s->phase[request] >= FINISHED) return ST_OK;
    s->abort[request] = (uint8_t)reason;
    s->n_abort++;
    return ST_OK;
}

enum status scheduler_finished(struct scheduler *s, int request)
{
    if (request < 0 || request >= s->o.n_requests || s->phase[request] != STARTED)
        return ERR(ST_E_INTERNAL, "request %d finished while %s", request,
                   request >= 0 && request < s->o.n_requests ? phase_name[s->phase[request]] : "unknown");
    s->phase[request] = FINISHED;
    s->finish[s->n_finish++] = request;
    s->decoding--;
    return ST_OK;
}

void scheduler_drain(struct scheduler *s)
{
    s->draining = 1;
}

static struct order *emit(struct scheduler *s, struct order *o, int *n, enum order_kind kind, int request)
{
    struct order *e = &o[(*n)++];
    memset(e, 0, sizeof *e);
    e->seq = ++s->seq;
    e->kind = (int32_t)kind;
    e->request = request;
    e->slot = -1;
    s->st.orders++;
    return e;
}

static struct slot *slot_of(const struct scheduler *s, int request, int *i_p)
{
    for (int i = 0; i < s->o.n_staging; i++)
        if (s->slot[i].request == request) {
            *i_p = i;
            return &s->slot[i];
        }
    *i_p = -1;
    return NULL;
}

static void leave(struct scheduler *s, int request)
{
    s->phase[request] = FREED;
    s->left--;
}

static void emit_abort(struct scheduler *s, struct order *o, int *n, int request, enum abort_reason reason)
{
    int i;
    struct order *e = emit(s, o, n, ORDER_ABORT, request);
    struct slot *l = slot_of(s, request, &i);
    e->reason = (int32_t)reason;
    s->st.aborts++;
    if (s->phase[request] == QUEUED) {
        e->final = 1;
        leave(s, request);
    } else if (s->phase[request] == ADMITTED) {
        e->slot = i;
        e->generation = l->generation;
        l->n_quiet = 0;
        memset(l->quiet, 0, (size_t)s->o.decode_ranks);
        s->phase[request] = ABORTING;
        s->next_pos[request] = -1;
    } else {
        s->phase[request] = FINISHED;
        s->finish[s->n_finish++] = request;
        s->decoding--;
    }
}

static void abort_asked(struct scheduler *s, struct order *o, int max, int *n)
{
    for (int r = 0; s->n_abort > 0 && r < s->o.n_requests && *n < max; r++) {
        if (!s->abort[r]) continue;
        if (s->phase[r] != ABORTING && s->phase[r] < FINISHED) emit_abort(s, o, n, r, (enum abort_reason)s->abort[r]);
        s->abort[r] = ABORT_NONE;
        s->n_abort--;
    }
}

static void free_finished(struct scheduler *s, struct order *o, int max, int *n)
{
    while (s->n_finish > 0 && *n < max) {
        int request = s->finish[--s->n_finish];
        emit(s, o, n, ORDER_FREE, request);
        leave(s, request);
    }
    for (int i = 0; i < s->o.n_staging && *n < max; i++) {
        struct slot *l = &s->slot[i];
        if (l->request < 0 || s->phase[l->request] != ABORTING || l->n_quiet < s->o.decode_ranks) continue;
        struct order *e = emit(s, o, n, ORDER_FREE, l->request);
        e->slot = i;
        e->generation = l->generation;
        leave(s, l->request);
        l->request = -1;
    }
}

static int is_ready(const struct scheduler *s, const struct slot *l)
{
    return l->request >= 0 && s->phase[l->request] == ADMITTED && l->n_ready == s->o.decode_ranks;
}

/* Slots whose words are complete on every decode rank start in the order they were admitted (generation-free:
 * the oldest request number first), so a result never depends on which word came first. */
static int oldest_ready(const struct scheduler *s)
{
    int best = -1;
    for (int i = 0; i < s->o.n_staging; i++) {
        const struct slot *l = &s->slot[i];
        if (is_ready(s, l) && (best < 0 || l->request < s->slot[best].request))
            best = i;
    }
    return best;
}

static void start_ready(struct scheduler *s, struct order *o, int max, int *n)
{
    while (s->decoding < s->o.concurrency && *n < max) {
        int i = oldest_ready(s);
        if (i < 0) return;
        struct slot *l = &s->slot[i];
        struct order *e = emit(s, o, n, ORDER_START, l->request);
        e->slot = i;
        e->generation = l->generation;
        int64_t delay = s->st.ticks - l->ready_tick;
        s->st.starts++;
        s->st.start_delay_sum += delay;
        if (delay > s->st.start_delay_max) s->st.start_delay_max = delay;
        s->phase[l->request] = STARTED;
        s->decoding++;
        l->request = -1;
    }
    /* waiting for a decode slot is not the protocol's delay: restart the clock of those still waiting */
    for (int i = 0; i < s->o.n_staging; i++)
        if (is_ready(s, &s->slot[i])) s->slot[i].ready_tick = s->st.ticks;
}

/* the next request to take; those that can never fit are refused on the way */
static int next_queued(struct scheduler *s, struct order *o, int max, int *n)
{
    for (; s->next < s->o.n_requests; s->next++) {
        int r = s->next;
        if (s->phase[r] != QUEUED) continue;
        if (s->draining || *n == max || (s->o.hold && r >= s->o.hold)) return -1;
        if (s->o.max_prompt == 0 || s->o.prompt_tokens[r] <= s->o.max_prompt) return r;
        emit_abort(s, o, n, r, ABORT_REFUSED);
    }
    return -1;
}

static int free_slot(const struct scheduler *s)
{
    for (int i = 0; i < s->o.n_staging; i++)
        if (s->slot[i].request < 0) return i;
    return -1;
}

static void admit(struct scheduler *s, struct order *o, int max, int *n)
{
    int request, slot;
    while ((request = next_queued(s, o, max, n)) >= 0 && (slot = free_slot(s)) >= 0) {
        struct slot *l = &s->slot[slot];
        l->request = request;
        l->generation = (l->generation + 1) & 0xffffff;
        if (l->generation == 0) l->generation = 1; /* 0 is the empty word */
        l->n_ready = 0;
        l->ready_tick = -1;
        memset(l->seen, 0, (size_t)s->o.decode_ranks);
        s->phase[request] = ADMITTED;
        s->next_pos[request] = 0;
        struct order *e = emit(s, o, n, ORDER_ADMIT, request);
        e->slot = slot;
        e->generation = l->generation;
    }
}

/* Chunks go out request by request in admission order: a short pipeline bubble per request, and the oldest
 * request is always the first to be complete. */
static void chunks(struct scheduler *s, struct order *o, int max, int *n)
{
    for (int r = 0; r < s->o.n_requests && *n < max; r++) {
        if (s->phase[r] != ADMITTED || s->next_pos[r] < 0) continue;
        int slot;
        const struct slot *l = slot_of(s, r, &slot);
        while (s->next_pos[r] >= 0 && *n < max) {
            int pos = s->next_pos[r], end = split_chunk_end(pos, s->o.prompt_tokens[r], s->o.chunk, s->o.page);
            struct order *e = emit(s, o, n, ORDER_CHUNK, r);
            e->slot = slot;
            e->generation = l->generation;
            e->pos0 = pos;
            e->n = end - pos;
            e->final = end == s->o.prompt_tokens[r];
            s->next_pos[r] = e->final ? -1 : end;
        }
    }
}

static void start_single(struct scheduler *s, struct order *o, int max, int *n)
{
    int request;
    while (s->decoding < s->o.concurrency && (request = next_queued(s, o, max, n)) >= 0) {
        emit(s, o, n, ORDER_START, request);
        s->phase[request] = STARTED;
        s->decoding++;
        s->st.starts++;
    }
}

static int in_flight(const struct scheduler *s)
{
    int n = s->decoding + s->n_finish;
    for (int i = 0; i < s->o.n_staging; i++) n += s->slot[i].request >= 0;
    return n;
}

enum status scheduler_tick(struct scheduler *s, struct order *o, int max, int *n_p)
{
    int n = 0;
    s->st.ticks++;
    if (!s->stopped) {
        abort_asked(s, o, max, &n);
        free_finished(s, o, max, &n);
        if (s->o.single) {
            start_single(s, o, max, &n);
        } else {
            start_ready(s, o, max, &n);
            admit(s, o, max, &n);
            chunks(s, o, max, &n);
        }
        if (n < max && in_flight(s) == 0 && (s->left == 0 || s->draining)) {
            emit(s, o, &n, ORDER_STOP, -1);
            s->stopped = 1;
        }
    }
    *n_p = n;
    return ST_OK;
}

int scheduler_done(const struct scheduler *s)
{
    return s->stopped;
}

struct scheduler_stats scheduler_stats(const struct scheduler *s)
{
    struct scheduler_stats st = s->st;
    st.in_flight = in_flight(s);
    st.queued = st.finished = st.free_slots = 0;
    for (int i = 0; i < s->o.n_staging; i++) st.free_slots += s->slot[i].request < 0;
    for (int i = 0; i < s->o.n_requests; i++) {
        st.queued += s->phase[i] == QUEUED;
        st.finished += s->phase[i] >= FINISHED;
    }
    return st;
}

void scheduler_table(const struct scheduler *s)
{
    fprintf(
        stderr,
        "scheduler: tick %lld, order %lld\n  request  phase     slot  generation  ready  quiet  (of %d decode ranks)\n",
        (long long)s->st.ticks, (long long)s->seq, s->o.decode_ranks);
    for (int i = 0; i < s->o.n_requests; i++) {
        if (s->phase[i] == QUEUED || s->phase[i] == FREED) continue;
        int slot;
        const struct slot *l = slot_of(s, i, &slot);
        if (l)
            fprintf(stderr, "  %7d  %-8s  %4d  %10u  %5d  %5d\n", i, phase_name[s->phase[i]], slot, l->generation,
                    l->n_ready, l->n_quiet);
        else
            fprintf(stderr, "  %7d  %s\n", i, phase_name[s->phase[i]]);
    }
}
