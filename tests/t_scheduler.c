/* The scheduler against a small model of the ranks: random word delays and decode lengths, and invariants on the log. */
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
    ck_assert_int_eq(order_next(&m->log, o), ST_OK);
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
                ck_assert_int_eq(scheduler_ready(s, i, m->gen[i], d), ST_OK);
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
    scheduler_close(s);
}

START_TEST(random_runs_keep_the_log_sound)
{
    for (uint64_t seed = 0; seed < (uint64_t)suite_some(10000, 200); seed++) play(seed, 0, -1);
}
END_TEST

START_TEST(single_mode_runs_too)
{
    for (uint64_t seed = 0; seed < (uint64_t)suite_some(2000, 50); seed++) play(seed, 1, -1);
}
END_TEST

START_TEST(draining_ends_what_is_in_flight_and_admits_no_more)
{
    for (uint64_t seed = 0; seed < (uint64_t)suite_some(2000, 50); seed++) play(seed, (int)(seed % 2), (int)(seed % 23));
}
END_TEST

START_TEST(stray_reports_are_refused)
{
    int32_t tokens[2] = {5, 5};
    struct scheduler_options so = {.n_requests = 2, .prompt_tokens = tokens, .n_staging = 1, .concurrency = 1, .chunk = 64,
                                   .page = 64, .decode_ranks = 2};
    struct scheduler *s;
    struct order o[8];
    int n;
    ck_assert_int_eq(scheduler_open(&so, &s), ST_OK);
    ck_assert_int_eq(scheduler_ready(s, 0, 1, 0), ST_E_INTERNAL); /* nothing granted */
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(scheduler_ready(s, 0, o[0].generation + 1, 0), ST_E_INTERNAL); /* a late word of another life */
    ck_assert_int_eq(scheduler_ready(s, 0, o[0].generation, 0), ST_OK);
    ck_assert_int_eq(scheduler_ready(s, 0, o[0].generation, 0), ST_E_INTERNAL); /* twice */
    ck_assert_int_eq(scheduler_ready(s, 1, o[0].generation, 0), ST_E_INTERNAL);
    ck_assert_int_eq(scheduler_finished(s, 0), ST_E_INTERNAL); /* not started */
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert_int_eq(n, 0); /* one of two ranks is not enough */
    ck_assert_int_eq(scheduler_ready(s, 0, 1, 1), ST_OK);
    ck_assert_int_eq(scheduler_tick(s, o, 8, &n), ST_OK);
    ck_assert_int_eq(o[0].kind, ORDER_START);
    scheduler_close(s);
}
END_TEST

START_TEST(orders_out_of_sequence_are_refused)
{
    struct order_log l = {0, 0};
    struct order o = {.seq = 1, .kind = ORDER_FREE};
    ck_assert_int_eq(order_next(&l, &o), ST_OK);
    ck_assert_int_eq(order_next(&l, &o), ST_E_INTERNAL);
    o.seq = 3;
    ck_assert_int_eq(order_next(&l, &o), ST_E_INTERNAL);
    ck_assert_int_eq(l.applied, 1);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "scheduler", 120);
    SUITE_TEST(tc, random_runs_keep_the_log_sound);
    SUITE_TEST(tc, single_mode_runs_too);
    SUITE_TEST(tc, draining_ends_what_is_in_flight_and_admits_no_more);
    SUITE_TEST(tc, stray_reports_are_refused);
    SUITE_TEST(tc, orders_out_of_sequence_are_refused);
}

int main(void)
{
    return suite_main_serial();
}
