#include "pd/scheduler.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "plan/split.h"

enum phase { QUEUED, ADMITTED, STARTED, FINISHED, FREED };
static const char *const phase_name[] = {"queued", "admitted", "started", "finished", "freed"};

struct slot {
    int request;         /* -1 free */
    uint32_t generation;
    int n_ready;         /* decode ranks that saw everything */
    uint8_t *seen;       /* [decode_ranks] */
    int64_t ready_tick;  /* tick in which the last READY was counted; -1 not yet */
};

struct scheduler {
    struct scheduler_options o;
    uint8_t *phase;      /* [n_requests] */
    int32_t *next_pos;   /* [n_requests] first position not yet ordered as a chunk; -1 all ordered */
    struct slot *slot;   /* [n_staging] */
    int32_t *finish;     /* requests that ended since the last tick */
    int n_finish;
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
    s->next_pos = mem_alloc((size_t)n, sizeof *s->next_pos, "scheduler chunks");
    s->finish = mem_alloc((size_t)n, sizeof *s->finish, "scheduler events");
    s->slot = mem_alloc((size_t)s->o.n_staging, sizeof *s->slot, "scheduler slots");
    if (!s->phase || !s->next_pos || !s->finish || !s->slot) return ST_E_NOMEM;
    for (int i = 0; i < s->o.n_staging; i++) {
        s->slot[i].request = -1;
        s->slot[i].ready_tick = -1;
        s->slot[i].seen = mem_alloc((size_t)s->o.decode_ranks, 1, "scheduler reports");
        if (!s->slot[i].seen) return ST_E_NOMEM;
    }
    return ST_OK;
}

enum status scheduler_open(const struct scheduler_options *o, struct scheduler **s_p)
{
    if (o->n_requests < 0 || o->n_staging < 1 || o->concurrency < 1 || o->chunk < 1 || o->page < 1 || o->decode_ranks < 1)
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
    for (int i = 0; s->slot && i < s->o.n_staging; i++) mem_free(s->slot[i].seen);
    mem_free(s->slot);
    mem_free(s->finish);
    mem_free(s->next_pos);
    mem_free(s->phase);
    mem_free(s);
}

enum status scheduler_ready(struct scheduler *s, int slot, uint32_t generation, int rank)
{
    if (slot < 0 || slot >= s->o.n_staging || rank < 0 || rank >= s->o.decode_ranks)
        return ERR(ST_E_INTERNAL, "READY for slot %d from decode rank %d: no such slot or rank", slot, rank);
    struct slot *l = &s->slot[slot];
    if (l->request < 0 || l->generation != generation || l->seen[rank])
        return ERR(ST_E_INTERNAL, "READY for slot %d generation %u from decode rank %d: the slot holds request %d generation %u%s",
                   slot, generation, rank, l->request, l->generation, l->seen[rank] ? ", already reported" : "");
    l->seen[rank] = 1;
    if (++l->n_ready == s->o.decode_ranks) l->ready_tick = s->st.ticks;
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

static void free_finished(struct scheduler *s, struct order *o, int max, int *n)
{
    while (s->n_finish > 0 && *n < max) {
        int request = s->finish[--s->n_finish];
        emit(s, o, n, ORDER_FREE, request);
        s->phase[request] = FREED;
        s->left--;
    }
}

/* Slots whose words are complete on every decode rank start in the order they were admitted (generation-free:
 * the oldest request number first), so a result never depends on which word came first. */
static int oldest_ready(const struct scheduler *s)
{
    int best = -1;
    for (int i = 0; i < s->o.n_staging; i++) {
        const struct slot *l = &s->slot[i];
        if (l->request >= 0 && l->n_ready == s->o.decode_ranks && (best < 0 || l->request < s->slot[best].request))
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
        if (s->slot[i].request >= 0 && s->slot[i].n_ready == s->o.decode_ranks) s->slot[i].ready_tick = s->st.ticks;
}

static int next_queued(struct scheduler *s)
{
    while (s->next < s->o.n_requests && s->phase[s->next] != QUEUED) s->next++;
    return s->draining || s->next == s->o.n_requests ? -1 : s->next;
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
    while (*n < max && (request = next_queued(s)) >= 0 && (slot = free_slot(s)) >= 0) {
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
        int slot = 0;
        while (s->slot[slot].request != r) slot++;
        while (s->next_pos[r] >= 0 && *n < max) {
            int pos = s->next_pos[r], end = split_chunk_end(pos, s->o.prompt_tokens[r], s->o.chunk, s->o.page);
            struct order *e = emit(s, o, n, ORDER_CHUNK, r);
            e->slot = slot;
            e->generation = s->slot[slot].generation;
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
    while (*n < max && s->decoding < s->o.concurrency && (request = next_queued(s)) >= 0) {
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
    st.queued = st.finished = 0;
    for (int i = 0; i < s->o.n_requests; i++) {
        st.queued += s->phase[i] == QUEUED;
        st.finished += s->phase[i] >= FINISHED;
    }
    return st;
}

void scheduler_table(const struct scheduler *s)
{
    fprintf(stderr, "scheduler: tick %lld, order %lld\n  request  phase     slot  generation  ready on\n",
            (long long)s->st.ticks, (long long)s->seq);
    for (int i = 0; i < s->o.n_requests; i++) {
        if (s->phase[i] == QUEUED || s->phase[i] == FREED) continue;
        int slot = 0;
        while (slot < s->o.n_staging && s->slot[slot].request != i) slot++;
        if (slot < s->o.n_staging)
            fprintf(stderr, "  %7d  %-8s  %4d  %10u  %d of %d decode ranks\n", i, phase_name[s->phase[i]], slot,
                    s->slot[slot].generation, s->slot[slot].n_ready, s->o.decode_ranks);
        else
            fprintf(stderr, "  %7d  %s\n", i, phase_name[s->phase[i]]);
    }
}
