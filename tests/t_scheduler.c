/* The scheduler alone (t_protocol plays it with ranks, 10,000 worlds) against a small model of the ranks: random word
 * delays and decode lengths, and invariants on the log. */
#include "suite.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "pd/scheduler.h"

const char *const suite_name = "scheduler";

enum { MAX_REQ = 40, MAX_SLOT = 8, MAX_RANK = 5, BATCH = 5 };

struct world_model { /* what the ranks know, fed only by orders */
    struct scheduler_options o;
    int32_t tokens[MAX_REQ];
    uint8_t skip[MAX_REQ];
    int admitted[MAX_REQ], started[MAX_REQ], freed[MAX_REQ], covered[MAX_REQ], ended[MAX_REQ];
    int slot_request[MAX_SLOT], delay[MAX_SLOT][MAX_RANK], complete[MAX_SLOT];
    uint32_t gen[MAX_SLOT];
    int left[MAX_REQ]; /* rounds to decode */
    int decoding, stops;
    struct order_log log;
};

static uint64_t turn;
static int pick(uint64_t seed, int n)
{
    return (int)(rng_u64(seed, 77, turn++) % (uint64_t)n);
}

static void apply(struct world_model *m, const struct order *o, uint64_t seed)
{
    ck_assert_int_eq(order_apply(&m->log, o), ST_OK);
    ck_assert_int_eq(m->stops, 0);
    int r = o->request;
    switch (o->kind) {
    case ORDER_ADMIT:
        ck_assert_int_eq(m->slot_request[o->slot], -1);
        ck_assert_int_eq(m->admitted[r]++, 0);
        ck_assert_uint_ne(o->generation, m->gen[o->slot]);
        m->slot_request[o->slot] = r;
        m->gen[o->slot] = o->generation;
        m->complete[o->slot] = 0;
        break;
    case ORDER_CHUNK:
        ck_assert_int_eq(m->slot_request[o->slot], r);
        ck_assert_uint_eq(o->generation, m->gen[o->slot]);
        ck_assert_int_eq(o->pos0, m->covered[r]);
        ck_assert_int_ge(o->n, 1);
        ck_assert_int_le(o->n, m->o.chunk);
        m->covered[r] += o->n;
        ck_assert_int_eq(o->final, m->covered[r] == m->tokens[r]);
        if (!o->final && m->o.chunk >= m->o.page) ck_assert_int_eq(m->covered[r] % m->o.page, 0);
        if (o->final) {
            m->complete[o->slot] = 1;
            for (int d = 0; d < m->o.decode_ranks; d++) m->delay[o->slot][d] = 1 + pick(seed, 6);
        }
        break;
    case ORDER_START:
        if (!m->o.single) {
            ck_assert_int_eq(m->slot_request[o->slot], r);
            ck_assert_int_eq(m->covered[r], m->tokens[r]);
            for (int d = 0; d < m->o.decode_ranks; d++) ck_assert_int_eq(m->delay[o->slot][d], -1);
            m->slot_request[o->slot] = -1;
        }
        ck_assert_int_eq(m->started[r]++, 0);
        ck_assert_int_le(++m->decoding, m->o.concurrency);
        m->left[r] = pick(seed, 5);
        break;
    case ORDER_FREE:
        ck_assert_int_eq(m->ended[r], 1);
        ck_assert_int_eq(m->freed[r]++, 0);
        break;
    case ORDER_STOP: m->stops++; break;
    default: ck_abort();
    }
}

static void time_passes(struct world_model *m, struct scheduler *s)
{
    for (int i = 0; i < m->o.n_staging && !m->o.single; i++) {
        if (m->slot_request[i] < 0 || !m->complete[i]) continue;
        for (int d = 0; d < m->o.decode_ranks; d++)
            if (m->delay[i][d] > 0 && --m->delay[i][d] == 0) {
                m->delay[i][d] = -1;
                ck_assert_int_eq(scheduler_ready(s, i, m->gen[i], d, scheduler_stats(s).ticks), ST_OK);
            }
    }
    for (int r = 0; r < m->o.n_requests; r++)
        if (m->started[r] && !m->ended[r] && m->left[r]-- == 0) {
            m->ended[r] = 1;
            m->decoding--;
            ck_assert_int_eq(scheduler_finished(s, r), ST_OK);
        }
}

static void play(uint64_t seed, int single, int drain_at)
{
    struct world_model m;
    struct scheduler *s;
    memset(&m, 0, sizeof m);
    turn = 0;
    m.o = (struct scheduler_options){.n_requests = pick(seed, MAX_REQ + 1), .prompt_tokens = m.tokens, .skip = m.skip,
                                     .n_staging = 1 + pick(seed, MAX_SLOT), .concurrency = 1 + pick(seed, 9),
                                     .chunk = 1 + pick(seed, 40), .page = 8, .decode_ranks = 1 + pick(seed, MAX_RANK),
                                     .single = single};
    for (int i = 0; i < MAX_REQ; i++) {
        m.tokens[i] = 1 + pick(seed, 90);
        m.skip[i] = pick(seed, 4) == 0;
    }
    for (int i = 0; i < MAX_SLOT; i++) m.slot_request[i] = -1;
    ck_assert_int_eq(scheduler_open(&m.o, &s), ST_OK);
    ck_assert_int_eq(order_log_open(&m.log, 0, m.tokens, m.o.n_requests, m.o.n_staging, single), ST_OK);
    int ticks = 0;
    for (; !scheduler_done(s) && ticks < 20000; ticks++) {
        struct order o[BATCH];
        int n = BATCH;
        if (ticks == drain_at) scheduler_drain(s);
        time_passes(&m, s);
        while (n == BATCH) {
            ck_assert_int_eq(scheduler_tick(s, o, BATCH, &n), ST_OK);
            for (int i = 0; i < n; i++) apply(&m, &o[i], seed);
        }
    }
    ck_assert_msg(m.stops == 1, "seed %llu: no STOP after %d ticks", (unsigned long long)seed, ticks);
    struct scheduler_stats st = scheduler_stats(s);
    for (int r = 0; r < m.o.n_requests; r++) {
        int want = drain_at >= 0 ? m.started[r] : !m.skip[r];
        ck_assert_int_eq(m.started[r], want);
        ck_assert_int_eq(m.freed[r], want);
        ck_assert(!(m.skip[r] && m.admitted[r]));
    }
    ck_assert_int_eq(st.in_flight, 0);
    ck_assert_int_le(st.start_delay_max, 2);
    int n;
    struct order o[BATCH];
    ck_assert_int_eq(scheduler_tick(s, o, BATCH, &n), ST_OK); /* STOP comes once */
    ck_assert_int_eq(n, 0);
    order_log_close(&m.log);
    scheduler_close(s);
}

START_TEST(random_runs_keep_the_log_sound)
{
    for (uint64_t seed = 0; seed < (uint64_t)suite_some(1000, 100); seed++) play(seed, 0, -1);
}
END_TEST

START_TEST(single_mode_runs_too)
{
    for (uint64_t seed = 0; seed < (uint64_t)suite_some(500, 50); seed++) play(seed, 1, -1);
}
END_TEST

START_TEST(draining_ends_what_is_in_flight_and_admits_no_more)
{
    for (uint64_t seed = 0; seed < (uint64_t)suite_some(750, 50); seed++) play(seed, (int)(seed % 2), (int)(seed % 23));
}
END_TEST

/* Reports that an ABORT or a new life of the slot has overtaken change nothing; impossible ones are refused. */
START_TEST(late_reports_say_nothing_and_stray_ones_are_refused)
{
    int32_t tokens[2] = {5, 5};
    struct scheduler_options so = {.n_requests = 2,
                                   .prompt_tokens = tokens,
                                   .n_staging = 1,
                                   .concurrency = 1,
                                   .chunk = 64,
                                   .page = 64,
                                   .decode_ranks = 2};
    struct scheduler *s;
    struct order o[8];
    int n;
    ck_assert_int_eq(scheduler_open(&so, &s), ST_OK);
    ck_assert_int_eq(scheduler_ready(s, 0, 1, 0, 0), ST_E_PROTOCOL); /* nothing granted */
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert_int_eq(n, 2);
    uint32_t g = o[0].generation;
    ck_assert_int_eq(scheduler_ready(s, 0, g + 1, 0, 1), ST_E_PROTOCOL); /* a life to come */
    ck_assert_int_eq(scheduler_ready(s, 1, g, 0, 1), ST_E_PROTOCOL);     /* no such slot */
    ck_assert_int_eq(scheduler_ready(s, 0, g, 2, 1), ST_E_PROTOCOL);     /* no such rank */
    ck_assert_int_eq(scheduler_quiet(s, 0, g, 0), ST_E_PROTOCOL);        /* nobody asked */
    ck_assert_int_eq(scheduler_finished(s, 0), ST_E_INTERNAL);           /* not started */
    ck_assert_int_eq(scheduler_ready(s, 0, g, 0, 1), ST_OK);
    ck_assert_int_eq(scheduler_ready(s, 0, g, 0, 1), ST_OK); /* twice is once */
    ck_assert_int_eq(scheduler_stats(s).stale, 1);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert_int_eq(n, 0); /* one of two ranks is not enough */
    ck_assert_int_eq(scheduler_failed(s, 0, g, 1), ST_OK);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert(n == 1 && o[0].kind == ORDER_ABORT && o[0].reason == ABORT_FAILED && o[0].slot == 0 &&
              o[0].generation == g);
    ck_assert_int_eq(scheduler_ready(s, 0, g, 1, 3), ST_OK); /* overtaken by the ABORT */
    ck_assert_int_eq(scheduler_failed(s, 0, g, 0), ST_OK);
    ck_assert_int_eq(scheduler_quiet(s, 0, g, 0), ST_OK);
    ck_assert_int_eq(scheduler_quiet(s, 0, g, 0), ST_OK);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert_int_eq(n, 0); /* neither started nor freed: one rank is not quiet */
    ck_assert_int_eq(scheduler_quiet(s, 0, g, 1), ST_OK);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert(n == 3 && o[0].kind == ORDER_FREE && o[0].slot == 0 && o[1].kind == ORDER_ADMIT && o[1].request == 1);
    ck_assert_uint_gt(o[1].generation, g);
    ck_assert_int_eq(scheduler_failed(s, 0, g, 0), ST_OK); /* late, of the earlier life */
    ck_assert_int_eq(scheduler_ready(s, 0, o[1].generation, 0, 5), ST_OK);
    ck_assert_int_eq(scheduler_ready(s, 0, o[1].generation, 1, 5), ST_OK);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert(n == 1 && o[0].kind == ORDER_START && o[0].request == 1);
    ck_assert_int_eq(scheduler_quiet(s, 0, g, 0), ST_OK); /* late, when the slot is free */
    scheduler_close(s);
}
END_TEST

/* a decoding request, a queued one and one that is too long are given up; every end is in the log once */
START_TEST(aborts_in_every_phase)
{
    int32_t tokens[4] = {5, 5, 500, 5};
    struct scheduler_options so = {.n_requests = 4,
                                   .prompt_tokens = tokens,
                                   .n_staging = 1,
                                   .concurrency = 1,
                                   .chunk = 64,
                                   .page = 64,
                                   .decode_ranks = 1,
                                   .max_prompt = 100};
    struct scheduler *s;
    struct order o[8];
    int n;
    ck_assert_int_eq(scheduler_open(&so, &s), ST_OK);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert_int_eq(scheduler_ready(s, 0, 1, 0, 1), ST_OK);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert(n == 4 && o[0].kind == ORDER_START && o[1].kind == ORDER_ADMIT && o[1].request == 1);
    ck_assert(o[2].kind == ORDER_ABORT && o[2].request == 2 && o[2].final && o[2].reason == ABORT_REFUSED);
    ck_assert_int_eq(scheduler_abort(s, 0, ABORT_ASKED), ST_OK); /* decodes */
    ck_assert_int_eq(scheduler_abort(s, 0, ABORT_ASKED), ST_OK); /* once */
    ck_assert_int_eq(scheduler_abort(s, 3, ABORT_ASKED), ST_OK); /* in the queue */
    ck_assert_int_eq(scheduler_abort(s, 9, ABORT_ASKED), ST_E_INTERNAL);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert_int_eq(n, 3);
    ck_assert(o[0].kind == ORDER_ABORT && o[0].request == 0 && o[0].slot == -1 && !o[0].final);
    ck_assert(o[1].kind == ORDER_ABORT && o[1].request == 3 && o[1].final);
    ck_assert(o[2].kind == ORDER_FREE && o[2].request == 0);
    ck_assert_int_eq(scheduler_ready(s, 0, 2, 0, 3), ST_OK);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert(n == 1 && o[0].kind == ORDER_START && o[0].request == 1);
    ck_assert_int_eq(scheduler_finished(s, 1), ST_OK);
    ck_assert_int_eq(scheduler_abort(s, 1, ABORT_ASKED), ST_OK); /* it has ended by itself */
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert(n == 2 && o[0].kind == ORDER_FREE && o[1].kind == ORDER_STOP);
    scheduler_close(s);
}
END_TEST

/* What the log of a rank refuses, whatever the scheduler says: one sound life with each order replaced by a wrong one.
 */
START_TEST(orders_that_do_not_fit_are_refused)
{
    static const struct order sound[] = {
        {.seq = 1, .kind = ORDER_ADMIT, .request = 0, .slot = 0, .generation = 1},
        {.seq = 2, .kind = ORDER_CHUNK, .request = 0, .slot = 0, .generation = 1, .n = 6},
        {.seq = 3, .kind = ORDER_CHUNK, .request = 0, .slot = 0, .generation = 1, .pos0 = 6, .n = 4, .final = 1},
        {.seq = 4, .kind = ORDER_START, .request = 0, .slot = 0, .generation = 1},
        {.seq = 5, .kind = ORDER_ADMIT, .request = 1, .slot = 0, .generation = 2},
        {.seq = 6, .kind = ORDER_ABORT, .request = 1, .slot = 0, .generation = 2, .reason = ABORT_FAILED},
        {.seq = 7, .kind = ORDER_FREE, .request = 1, .slot = 0, .generation = 2},
        {.seq = 8, .kind = ORDER_ABORT, .request = 0, .slot = -1, .reason = ABORT_ASKED},
        {.seq = 9, .kind = ORDER_FREE, .request = 0, .slot = -1},
        {.seq = 10, .kind = ORDER_STOP, .request = -1, .slot = -1},
    };
    static const struct { int at; struct order o; const char *why;
    } wrong[] = {
        {0, {.seq = 2, .kind = ORDER_ADMIT, .generation = 1}, "in sequence"},
        {0, {.seq = 1, .kind = ORDER_ADMIT, .request = 2, .generation = 1}, "no such request"},
        {0, {.seq = 1, .kind = ORDER_ADMIT, .slot = 1, .generation = 1}, "no such slot"},
        {0, {.seq = 1, .kind = ORDER_ADMIT}, "did not grow"},
        {0, {.seq = 1, .kind = ORDER_CHUNK, .n = 4}, "only an admitted"},
        {0, {.seq = 1, .kind = ORDER_START}, "only an admitted"},
        {0, {.seq = 1, .kind = ORDER_FREE, .slot = -1}, "holds nothing"},
        {0, {.seq = 1, .kind = ORDER_ABORT, .slot = -1, .reason = ABORT_ASKED}, "does not decode"},
        {0, {.seq = 1, .kind = ORDER_ABORT, .slot = -1, .final = 1}, "has a reason"},
        {0, {.seq = 1, .kind = ORDER_N}, "unknown"},
        {1, {.seq = 1, .kind = ORDER_ADMIT, .generation = 1}, "in sequence"}, /* applied twice */
        {1, {.seq = 2, .kind = ORDER_ADMIT, .generation = 2}, "admitted once"},
        {1, {.seq = 2, .kind = ORDER_ADMIT, .request = 1, .generation = 2}, "in use"},
        {1, {.seq = 2, .kind = ORDER_START, .generation = 1}, "not covered"},
        {1, {.seq = 2, .kind = ORDER_CHUNK, .generation = 2, .n = 6}, "only an admitted"},
        {1, {.seq = 2, .kind = ORDER_CHUNK, .generation = 1, .pos0 = 1, .n = 6}, "once and in order"},
        {1, {.seq = 2, .kind = ORDER_CHUNK, .generation = 1, .n = 11}, "once and in order"},
        {1, {.seq = 2, .kind = ORDER_CHUNK, .generation = 1, .n = 6, .final = 1}, "final"},
        {1, {.seq = 2, .kind = ORDER_FREE, .generation = 1}, "was not aborted"},
        {2, {.seq = 3, .kind = ORDER_CHUNK, .generation = 1, .n = 6}, "once and in order"},
        {4, {.seq = 5, .kind = ORDER_START, .generation = 1}, "only an admitted"}, /* started twice */
        {4, {.seq = 5, .kind = ORDER_ADMIT, .request = 1, .generation = 1}, "did not grow"},
        {4, {.seq = 5, .kind = ORDER_ABORT, .generation = 1, .reason = ABORT_ASKED}, "not the request's"},
        {5, {.seq = 6, .kind = ORDER_ABORT, .request = 1, .generation = 1, .reason = ABORT_ASKED}, "not the request's"},
        {6,
         {.seq = 7, .kind = ORDER_CHUNK, .request = 1, .generation = 2, .n = 6},
         "only an admitted"}, /* after ABORT */
        {6, {.seq = 7, .kind = ORDER_START, .request = 1, .generation = 2}, "only an admitted"},
        {7, {.seq = 8, .kind = ORDER_FREE, .request = 1, .generation = 2}, "was not aborted"}, /* freed twice */
        {9, {.seq = 10, .kind = ORDER_FREE, .slot = -1}, "holds nothing"},
        {9, {.seq = 10, .kind = ORDER_ABORT, .slot = -1, .reason = ABORT_ASKED}, "does not decode"},
        {10, {.seq = 11, .kind = ORDER_STOP, .slot = -1}, "follows STOP"},
    };
    static const int32_t tokens[2] = {10, 10};
    for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        struct order_log l;
        ck_assert_int_eq(order_log_open(&l, 7, tokens, 2, 1, 0), ST_OK);
        for (int i = 0; i < 10; i++) {
            uint64_t hash = l.hash;
            if (i == wrong[k].at) {
                ck_assert_msg(order_apply(&l, &wrong[k].o) == ST_E_PROTOCOL, "case %zu", k);
                ck_assert_msg(strstr(err_last(), wrong[k].why) && strstr(err_last(), "rank 7"), "case %zu: %s", k,
                              err_last());
                ck_assert(l.hash == hash && l.applied == i); /* as if it had not come */
            }
            ck_assert_msg(order_apply(&l, &sound[i]) == ST_OK, "case %zu order %d: %s", k, i, err_last());
        }
        if (wrong[k].at == 10) ck_assert_int_eq(order_apply(&l, &wrong[k].o), ST_E_PROTOCOL);
        ck_assert_int_eq(l.ended, 2);
        order_log_close(&l);
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "scheduler", 120);
    SUITE_TEST(tc, random_runs_keep_the_log_sound);
    SUITE_TEST(tc, single_mode_runs_too);
    SUITE_TEST(tc, draining_ends_what_is_in_flight_and_admits_no_more);
    SUITE_TEST(tc, late_reports_say_nothing_and_stray_ones_are_refused);
    SUITE_TEST(tc, aborts_in_every_phase);
    SUITE_TEST(tc, orders_that_do_not_fit_are_refused);
}

int main(void)
{
    return suite_main_serial();
}
