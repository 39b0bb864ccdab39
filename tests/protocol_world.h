/* protocol_world - a world of prefill and decode ranks in one process, for the property test of the protocol.
 *
 * The scheduler, the log's receiving end (order_apply) and the words are the program's own. What the ranks do between
 * orders, and the network, is a model: messages and puts take random times, sources fail, requests are aborted, reports
 * arrive twice or much later, old words are written again. Each step checks what must never happen; a mutant is one
 * rank or the scheduler's surroundings doing it wrong, and has to be found. */
#ifndef PDFLASH_TESTS_PROTOCOL_WORLD_H
#define PDFLASH_TESTS_PROTOCOL_WORLD_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "pd/scheduler.h"
#include "pd/words.h"
#include "plan/split.h"

enum { REQS = 14, SLOTS = 4, STAGES = 8, DECODES = 5, BATCH = 6, MOST_TICKS = 6000 };
enum { QUEUE = 1024, FLIGHT = 40, REPORTS = 512 };

enum mutant {
    SOUND,
    QUIET_EARLY,   /* a source says QUIET while a put is on its way */
    QUIET_LOST,    /* a source never says it */
    REUSE_EARLY,   /* the scheduler is made to believe that a slot is quiet as soon as it aborts it */
    PAGE_EARLY,    /* a prefill rank releases its pages at ABORT */
    APPLY_TWICE,   /* a rank is handed an order a second time */
    ORDER_LOST,    /* a rank misses one order */
    ORDER_SWAPPED, /* a rank gets two orders in the wrong sequence */
    FREE_TWICE,    /* the scheduler frees a request again, under a new number */
    START_EARLY,   /* a decode rank takes a part for the whole */
    OLD_WORDS,     /* a decode rank does not look at generations */
    MUTANTS
};

struct out { /* one source slot towards one decode rank */
    int queued, in_flight, put, stopped, done;
    int lands[FLIGHT];
};
struct source_slot {
    int request, holds, final, failed, aborted;
    uint32_t generation;
    struct out out[DECODES];
};
struct source {
    struct order_log log;
    struct order queue[QUEUE];
    int arrives[QUEUE], head, tail, busy_until;
    int64_t handed[QUEUE]; /* numbers of the chunks that came from the stage before */
    int n_handed, n_taken;
    uint64_t chain;        /* over (order, request) of every batch run */
    struct source_slot slot[SLOTS];
    int free_states;
};
struct dest_slot {
    int request, waiting, got[STAGES]; /* waiting: 0 nothing, 1 words, 2 quiet */
    uint32_t generation;
};
struct dest {
    struct order_log log;
    struct dest_slot slot[SLOTS];
    int free_states, holds[REQS];
};
struct late { int kind, slot, rank, at; uint32_t generation; int64_t tick; };

struct world_model {
    uint64_t seed, turn;
    enum mutant mutant;
    int now, n_stages, n_decode, played; /* played: the mutant had its chance */
    struct scheduler_options o;
    int32_t tokens[REQS];
    uint8_t skip[REQS];
    int rows[REQS], started[REQS], left[REQS], decoding, chance; /* chance: of trouble, in 1000 */
    struct source src[STAGES];
    struct dest dst[DECODES];
    uint64_t word[DECODES][SLOTS][STAGES], credit[STAGES][SLOTS][DECODES];
    struct late late[REPORTS];
    int n_late, last_report[DECODES];
    struct scheduler *s;
    int n_aborts, n_failures, n_duplicates;
    char bad[600]; /* the first violation */
};

static inline int pick(struct world_model *m, int n)
{
    return (int)(rng_u64(m->seed, 5, m->turn++) % (uint64_t)n);
}

static inline int luck(struct world_model *m, int per_mille)
{
    return pick(m, 1000) < per_mille;
}

static inline __attribute__((format(printf, 2, 3))) void violation(struct world_model *m, const char *fmt, ...)
{
    va_list ap;
    if (m->bad[0]) return;
    va_start(ap, fmt);
    vsnprintf(m->bad, sizeof m->bad, fmt, ap);
    va_end(ap);
}
#define MUST(x, ...) do { if (!(x)) violation(m, __VA_ARGS__); } while (0)

static inline int chunks_of(const struct world_model *m, int r)
{
    int n = 0;
    for (int pos = 0; pos < m->tokens[r]; n++) pos = split_chunk_end(pos, m->tokens[r], m->o.chunk, m->o.page);
    return n;
}

/* ---- sources ------------------------------------------------------------------------------------------ */

static inline void source_apply(struct world_model *m, int s, const struct order *o)
{
    struct source *x = &m->src[s];
    struct source_slot *l = o->slot >= 0 ? &x->slot[o->slot] : NULL;
    if (order_apply(&x->log, o) != ST_OK) {
        violation(m, "stage %d: %s", s, err_last());
        return;
    }
    if (o->kind == ORDER_ADMIT) {
        MUST(x->free_states > 0, "stage %d: no state for request %d", s, o->request);
        x->free_states--;
        memset(l, 0, sizeof *l);
        l->request = o->request, l->generation = o->generation, l->holds = 1;
    } else if (o->kind == ORDER_CHUNK) {
        x->chain = hash64(&o->request, sizeof o->request, hash64(&o->seq, sizeof o->seq, x->chain));
        if (s > 0)
            MUST(x->handed[x->n_taken++ % QUEUE] == o->seq, "stage %d: hand-off of another batch than order %lld", s,
                 (long long)o->seq);
        if (s + 1 < m->n_stages) m->src[s + 1].handed[m->src[s + 1].n_handed++ % QUEUE] = o->seq;
        if (luck(m, m->chance)) m->n_failures += !l->failed, l->failed = 1;
        for (int d = 0; d < m->n_decode; d++)
            if (!l->failed && !l->out[d].stopped) l->out[d].queued += 1 + (o->final != 0);
        for (int d = 0; d < m->n_decode && l->failed; d++) l->out[d].queued = 0;
        l->final = o->final != 0;
        x->busy_until = m->now + pick(m, 4);
    } else if (o->kind == ORDER_ABORT && l) {
        l->aborted = 1;
        for (int d = 0; d < m->n_decode; d++)
            if (!l->out[d].done) l->out[d].stopped = 1, l->out[d].queued = 0;
        if (m->mutant == PAGE_EARLY && s == m->n_stages - 1) l->holds = 0;
    } else if ((o->kind == ORDER_START || o->kind == ORDER_FREE) && l) {
        for (int d = 0; d < m->n_decode; d++)
            MUST(l->out[d].done && !l->out[d].in_flight,
                 "stage %d: %s of request %d, which still moves to decode rank %d", s, order_name[o->kind], o->request,
                 d);
        l->request = -1, l->holds = 0;
        x->free_states++;
    }
}

static inline void source_orders(struct world_model *m, int s)
{
    struct source *x = &m->src[s];
    for (int i = pick(m, 4); i > 0 && x->head < x->tail && !m->bad[0]; i--) {
        const struct order *o = &x->queue[x->head % QUEUE];
        int chunk = o->kind == ORDER_CHUNK;
        if (x->arrives[x->head % QUEUE] > m->now || x->busy_until > m->now) return;
        if (chunk && s > 0 && x->n_taken == x->n_handed) return; /* the stage before is not there yet */
        struct order copy = *o;
        x->head++;
        source_apply(m, s, &copy);
    }
}

/* one source slot towards one decode rank: put, flush, word */
static inline void source_push(struct world_model *m, int s, int slot, int d)
{
    struct source_slot *l = &m->src[s].slot[slot];
    struct out *o = &l->out[d];
    struct word_value c = word_unpack(m->credit[s][slot][d]);
    int granted = c.generation == l->generation && (c.state == WORD_GRANT || c.state == WORD_ABORT);
    if (l->request < 0 || o->done || !granted || luck(m, 300)) return; /* a slow source */
    if (c.state == WORD_ABORT && !l->failed) o->stopped = 1, o->queued = 0;
    while (o->queued > 0 && o->in_flight < FLIGHT && !luck(m, 300)) {
        o->lands[o->in_flight++] = m->now + pick(m, luck(m, 50) ? 60 : 5);
        o->queued--, o->put++;
    }
    int all = o->queued == 0 && l->final, ends = l->failed || o->stopped || all;
    int early = m->mutant == QUIET_EARLY && s == 0 && o->stopped && o->in_flight;
    m->played += early;
    if (!ends || (o->in_flight && !early)) return; /* flush: what was put is there before the word is */
    enum word_state st = l->failed ? WORD_FAIL : o->stopped ? WORD_QUIET : WORD_DONE;
    o->done = 1;
    if (m->mutant == QUIET_LOST && s == 0 && st == WORD_QUIET) {
        m->played++;
        return;
    }
    m->word[d][slot][s] = word_pack((struct word_value){l->generation, st, COMP_KDA, (uint32_t)o->put});
}

static inline void puts_land(struct world_model *m, int s, int slot, int d)
{
    struct source_slot *l = &m->src[s].slot[slot];
    struct out *o = &l->out[d];
    struct dest_slot *to = &m->dst[d].slot[slot];
    for (int i = 0; i < o->in_flight; i++) {
        if (o->lands[i] > m->now) continue;
        o->lands[i--] = o->lands[--o->in_flight];
        MUST(l->holds, "stage %d: a put of request %d reads pages that were released", s, l->request);
        MUST(to->request == l->request && to->generation == l->generation,
             "a put of request %d generation %u lands in slot %d of decode rank %d, which holds request %d generation "
             "%u",
             l->request, l->generation, slot, d, to->request, to->generation);
        to->got[s]++;
    }
}

/* ---- decode ranks --------------------------------------------------------------------------------------- */

static inline void hand_in(struct world_model *m, const struct late *r)
{
    enum status st = r->kind == 0   ? scheduler_ready(m->s, r->slot, r->generation, r->rank, r->tick)
                     : r->kind == 1 ? scheduler_failed(m->s, r->slot, r->generation, r->rank)
                                    : scheduler_quiet(m->s, r->slot, r->generation, r->rank);
    MUST(st == ST_OK, "the scheduler refuses a report: %s", err_last());
}

/* reports of one rank arrive in the order sent; a second copy may come at any time */
static inline void report(struct world_model *m, int kind, int d, int slot)
{
    struct late r = {kind, slot, d, 0, m->dst[d].slot[slot].generation, scheduler_stats(m->s).ticks};
    int at = m->now + (d == 0 ? 0 : 1 + pick(m, 5));
    if (at < m->last_report[d]) at = m->last_report[d];
    r.at = m->last_report[d] = at;
    if (m->n_late < REPORTS) m->late[m->n_late++] = r;
    if (!luck(m, 50) || m->n_late == REPORTS) return;
    r.at = at + pick(m, 80);
    m->late[m->n_late++] = r;
    m->n_duplicates++;
}

static inline void reports_arrive(struct world_model *m)
{
    int n = 0, kept = m->n_late;
    for (int i = 0; i < kept; i++) {
        struct late r = m->late[i];
        if (r.at > m->now) m->late[n++] = r;
        else hand_in(m, &r);
    }
    m->n_late = n;
}

static inline void look_at_slot(struct world_model *m, int d, int slot)
{
    struct dest_slot *l = &m->dst[d].slot[slot];
    int done = 0, failed = 0, quiet = 0, part = 0, blind = m->mutant == OLD_WORDS && d == m->n_decode - 1;
    if (!l->waiting || luck(m, 200)) return;
    for (int s = 0; s < m->n_stages; s++) {
        struct word_value v = word_unpack(m->word[d][slot][s]);
        if (v.generation != l->generation && !blind) v.state = WORD_NONE;
        if (v.generation != l->generation && v.state == WORD_DONE) m->played++;
        done += v.state == WORD_DONE;
        failed += v.state == WORD_FAIL;
        quiet += v.state == WORD_DONE || v.state == WORD_FAIL || v.state == WORD_QUIET;
        part += l->got[s] > 0;
    }
    int early = m->mutant == START_EARLY && d == m->n_decode - 1 && part == m->n_stages;
    m->played += early && done < m->n_stages;
    if (l->waiting == 2) {
        if (quiet < m->n_stages) return;
        report(m, 2, d, slot);
    } else if (failed) {
        report(m, 1, d, slot);
    } else if (done == m->n_stages || early) {
        report(m, 0, d, slot);
    } else {
        return;
    }
    l->waiting = 0;
}

static inline void grant(struct world_model *m, int d, const struct order *o)
{
    struct dest_slot *l = &m->dst[d].slot[o->slot];
    MUST(l->request < 0, "decode rank %d: slot %d is granted to request %d while it holds %d", d, o->slot, o->request,
         l->request);
    *l = (struct dest_slot){.request = o->request, .generation = o->generation, .waiting = 1};
    for (int s = 0; s < m->n_stages; s++) {
        uint64_t old = m->word[d][o->slot][s];
        m->word[d][o->slot][s] = luck(m, 100) ? old : 0; /* now and then a word of an earlier life is written again */
        m->credit[s][o->slot][d] = word_pack((struct word_value){o->generation, WORD_GRANT, COMP_MLA, 1});
    }
}

static inline void row(struct world_model *m, int r)
{
    MUST(!m->rows[r]++, "request %d ended twice", r);
}

static inline void start(struct world_model *m, int d, const struct order *o)
{
    struct dest *x = &m->dst[d];
    if (o->slot >= 0) {
        struct dest_slot *l = &x->slot[o->slot];
        MUST(!l->waiting, "decode rank %d: START of request %d, which waits for words", d, o->request);
        for (int s = 0; s < m->n_stages; s++)
            MUST(l->got[s] == chunks_of(m, o->request) + 1,
                 "decode rank %d: request %d starts with %d of %d pieces of stage %d", d, o->request, l->got[s],
                 chunks_of(m, o->request) + 1, s);
        l->request = -1;
    }
    MUST(x->free_states > 0, "decode rank %d: no state for request %d", d, o->request);
    x->free_states--;
    x->holds[o->request] = 1;
    if (d > 0) return;
    m->started[o->request] = 1;
    m->left[o->request] = pick(m, 6); /* 0: its first token ends it, or all ranks found the state damaged */
    m->decoding++;
}

static inline void aborted(struct world_model *m, int d, const struct order *o)
{
    if (o->slot >= 0) {
        m->dst[d].slot[o->slot].waiting = 2;
        for (int s = 0; s < m->n_stages; s++)
            m->credit[s][o->slot][d] = word_pack((struct word_value){o->generation, WORD_ABORT, COMP_MLA, 0});
        if (m->mutant == REUSE_EARLY) {
            struct late r = {2, o->slot, d, 0, o->generation, 0};
            hand_in(m, &r);
            m->played++;
        }
    }
    if (d > 0) return;
    if (!o->final && o->slot < 0) {
        MUST(m->started[o->request] == 1, "ABORT of request %d, which does not decode", o->request);
        m->started[o->request] = 2;
        m->decoding--;
    }
    row(m, o->request);
}

static inline void freed(struct world_model *m, int d, const struct order *o)
{
    struct dest *x = &m->dst[d];
    if (o->slot >= 0) {
        x->slot[o->slot].request = -1;
        x->slot[o->slot].waiting = 0;
        return;
    }
    MUST(x->holds[o->request] && m->started[o->request] == 2, "decode rank %d: FREE of request %d, which %s", d,
         o->request, x->holds[o->request] ? "still runs" : "holds nothing");
    x->holds[o->request] = 0;
    x->free_states++;
}

static inline void dest_apply(struct world_model *m, int d, const struct order *o)
{
    if (order_apply(&m->dst[d].log, o) != ST_OK) {
        violation(m, "decode rank %d: %s", d, err_last());
        return;
    }
    if (o->kind == ORDER_ADMIT) grant(m, d, o);
    if (o->kind == ORDER_START) start(m, d, o);
    if (o->kind == ORDER_ABORT) aborted(m, d, o);
    if (o->kind == ORDER_FREE) freed(m, d, o);
}

#endif
