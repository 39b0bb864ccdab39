/* The protocol as a whole: random worlds must stay sound and come to an end, and every planted fault must be found. */
#include "suite.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "protocol_world.h"

const char *const suite_name = "protocol";

enum { SEEDS = 10000, MUTANT_SEEDS = 3000 };

static const char *const mutant_name[MUTANTS] = {"sound",
                                                 "QUIET while a put is on its way",
                                                 "QUIET lost",
                                                 "slot reused early",
                                                 "pages released at ABORT",
                                                 "order applied twice",
                                                 "order lost",
                                                 "orders swapped",
                                                 "freed twice",
                                                 "started on a part",
                                                 "old words believed"};

/* ---- one world -------------------------------------------------------------------------------------------- */

static int open_world(struct world_model *m, uint64_t seed, enum mutant mutant)
{
    memset(m, 0, sizeof *m);
    m->seed = seed;
    m->mutant = mutant;
    m->n_stages = 1 + pick(m, STAGES);
    m->n_decode = 1 + pick(m, DECODES);
    m->chance = pick(m, 3) ? pick(m, 120) : 0;
    m->o = (struct scheduler_options){.n_requests = pick(m, REQS + 1),
                                      .prompt_tokens = m->tokens,
                                      .skip = m->skip,
                                      .n_staging = 1 + pick(m, SLOTS),
                                      .concurrency = 1 + pick(m, 6),
                                      .chunk = 1 + pick(m, 40),
                                      .page = 8,
                                      .decode_ranks = m->n_decode,
                                      .max_prompt = 60};
    if (m->o.chunk < 8) m->o.chunk += 4; /* pieces of one request stay below FLIGHT */
    for (int i = 0; i < REQS; i++) {
        m->tokens[i] = 1 + pick(m, 66); /* some are too long */
        m->skip[i] = pick(m, 8) == 0;
    }
    int ok = scheduler_open(&m->o, &m->s) == ST_OK;
    for (int s = 0; s < m->n_stages && ok; s++) {
        ok = order_log_open(&m->src[s].log, s, m->tokens, m->o.n_requests, m->o.n_staging, 0) == ST_OK;
        m->src[s].free_states = m->o.n_staging;
        for (int i = 0; i < SLOTS; i++) m->src[s].slot[i].request = -1;
    }
    for (int d = 0; d < m->n_decode && ok; d++) {
        ok = order_log_open(&m->dst[d].log, m->n_stages + d, m->tokens, m->o.n_requests, m->o.n_staging, 0) == ST_OK;
        m->dst[d].free_states = m->o.concurrency;
        for (int i = 0; i < SLOTS; i++) m->dst[d].slot[i].request = -1;
    }
    return ok;
}

static void close_world(struct world_model *m)
{
    scheduler_close(m->s);
    for (int s = 0; s < m->n_stages; s++) order_log_close(&m->src[s].log);
    for (int d = 0; d < m->n_decode; d++) order_log_close(&m->dst[d].log);
}

static void send(struct world_model *m, int s, const struct order *o, int at)
{
    struct source *x = &m->src[s];
    int last = x->tail > x->head ? x->arrives[(x->tail - 1) % QUEUE] : 0;
    MUST(x->tail - x->head < QUEUE, "stage %d: its order queue is full", s);
    x->queue[x->tail % QUEUE] = *o;
    x->arrives[x->tail++ % QUEUE] = at > last ? at : last;
}

static void to_sources(struct world_model *m, const struct order *o)
{
    for (int s = 0; s < m->n_stages; s++) {
        int victim = s == m->n_stages - 1 && !m->played && o->seq > 2 && luck(m, 300), at = m->now + pick(m, 6);
        if (victim && m->mutant == ORDER_LOST) {
            m->played++;
            continue;
        }
        send(m, s, o, at);
        if (!victim) continue;
        if (m->mutant == APPLY_TWICE) {
            send(m, s, o, at);
            m->played++;
        } else if (m->mutant == ORDER_SWAPPED && m->src[s].tail - m->src[s].head > 1) {
            struct order *q = m->src[s].queue, held = q[(m->src[s].tail - 1) % QUEUE];
            q[(m->src[s].tail - 1) % QUEUE] = q[(m->src[s].tail - 2) % QUEUE];
            q[(m->src[s].tail - 2) % QUEUE] = held;
            m->played++;
        }
    }
}

static void orders(struct world_model *m)
{
    static int64_t shift; /* FREE_TWICE renumbers what follows */
    struct order o[BATCH];
    int n;
    if (m->now == 0) shift = 0;
    do { /* all decode ranks get the orders of a tick in the tick */
        MUST(scheduler_tick(m->s, o, BATCH, &n) == ST_OK, "tick: %s", err_last());
        for (int i = 0; i < n && !m->bad[0]; i++) {
            int again = m->mutant == FREE_TWICE && o[i].kind == ORDER_FREE && !m->played;
            o[i].seq += shift;
            for (int k = 0; k <= again; k++) {
                for (int d = 0; d < m->n_decode && !m->bad[0]; d++) dest_apply(m, d, &o[i]);
                to_sources(m, &o[i]);
                if (again && k == 0) o[i].seq++, shift++, m->played++;
            }
        }
    } while (n == BATCH && !m->bad[0]);
}

static void decode(struct world_model *m)
{
    for (int r = 0; r < m->o.n_requests; r++) {
        if (m->started[r] != 1 || m->left[r]-- > 0) continue;
        m->started[r] = 2;
        m->decoding--;
        row(m, r);
        MUST(scheduler_finished(m->s, r) == ST_OK, "finished: %s", err_last());
    }
    MUST(m->decoding <= m->o.concurrency, "%d requests decode at once, %d are allowed", m->decoding, m->o.concurrency);
    if (m->o.n_requests > 0 && luck(m, m->chance)) {
        m->n_aborts++;
        MUST(scheduler_abort(m->s, pick(m, m->o.n_requests), ABORT_ASKED) == ST_OK, "abort: %s", err_last());
    }
}

static void tick(struct world_model *m)
{
    for (int s = 0; s < m->n_stages; s++)
        for (int i = 0; i < m->o.n_staging; i++)
            for (int d = 0; d < m->n_decode; d++) puts_land(m, s, i, d);
    for (int s = 0; s < m->n_stages; s++) {
        source_orders(m, s);
        for (int i = 0; i < m->o.n_staging; i++)
            for (int d = 0; d < m->n_decode; d++) source_push(m, s, i, d);
    }
    for (int d = 0; d < m->n_decode; d++)
        for (int i = 0; i < m->o.n_staging; i++) look_at_slot(m, d, i);
    reports_arrive(m);
    decode(m);
    orders(m);
    m->now++;
}

static int all_stopped(const struct world_model *m)
{
    for (int s = 0; s < m->n_stages; s++)
        if (!m->src[s].log.stopped) return 0;
    return scheduler_done(m->s);
}

static void check_end(struct world_model *m)
{
    const struct order_log *lead = &m->dst[0].log;
    for (int r = 0; r < m->o.n_requests; r++)
        MUST(m->rows[r] == !m->skip[r], "request %d has %d rows at the end", r, m->rows[r]);
    for (int s = 0; s < m->n_stages; s++) {
        MUST(m->src[s].log.hash == lead->hash, "stage %d applied another log", s);
        MUST(m->src[s].chain == m->src[0].chain, "stage %d ran other batches than stage 0", s);
        MUST(m->src[s].free_states == m->o.n_staging, "stage %d: %d of %d states are free at the end", s,
             m->src[s].free_states, m->o.n_staging);
    }
    for (int d = 0; d < m->n_decode; d++) {
        MUST(m->dst[d].log.hash == lead->hash, "decode rank %d applied another log", d);
        MUST(m->dst[d].free_states == m->o.concurrency, "decode rank %d: %d of %d states are free at the end", d,
             m->dst[d].free_states, m->o.concurrency);
    }
    struct scheduler_stats st = scheduler_stats(m->s);
    MUST(st.in_flight == 0 && st.free_slots == m->o.n_staging,
         "%d requests in flight and %d of %d slots free at the end", st.in_flight, st.free_slots, m->o.n_staging);
}

/* 1: sound. m->bad says why not. */
static int play(struct world_model *m, uint64_t seed, enum mutant mutant)
{
    if (!open_world(m, seed, mutant)) violation(m, "cannot open: %s", err_last());
    while (!m->bad[0] && m->now < MOST_TICKS && !all_stopped(m)) tick(m);
    if (!m->bad[0] && !all_stopped(m)) violation(m, "no end after %d ticks", m->now);
    if (!m->bad[0]) check_end(m);
    close_world(m);
    return !m->bad[0];
}

/* ---- tests ------------------------------------------------------------------------------------------------- */

static struct world_model world;

START_TEST(random_worlds_stay_sound_and_end)
{
    int64_t aborts = 0, failures = 0, duplicates = 0, ticks = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        ck_assert_msg(play(&world, seed, SOUND), "seed %llu: %s", (unsigned long long)seed, world.bad);
        aborts += world.n_aborts;
        failures += world.n_failures;
        duplicates += world.n_duplicates;
        ticks += world.now;
    }
    ck_assert_int_gt(aborts, SEEDS); /* trouble is what this is about */
    ck_assert_int_gt(failures, SEEDS / 4);
    ck_assert_int_gt(duplicates, SEEDS / 4);
    fprintf(stderr, "protocol: %d worlds, %lld ticks, %lld aborts, %lld failures, %lld repeated reports\n", (int)SEEDS,
            (long long)ticks, (long long)aborts, (long long)failures, (long long)duplicates);
}
END_TEST

/* Each mutant is found in some world, and mostly where it played; the message is the one it deserves. */
static const struct { enum mutant mutant; const char *says;
} deserved[] = {
    {QUIET_EARLY, "lands in slot|still moves"},
    {QUIET_LOST, "no end"},
    {REUSE_EARLY, "is granted to request|lands in slot|FREE of request|still moves"},
    {PAGE_EARLY, "reads pages"},
    {APPLY_TWICE, "in sequence"},
    {ORDER_LOST, "in sequence|no end"},
    {ORDER_SWAPPED, "in sequence"},
    {FREE_TWICE, "holds nothing|was not aborted"},
    {START_EARLY, "starts with"},
    {OLD_WORDS, "starts with|still moves"},
};

static int says_one_of(const char *text, const char *list)
{
    char copy[128];
    snprintf(copy, sizeof copy, "%s", list);
    for (char *save, *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save))
        if (strstr(text, w)) return 1;
    return 0;
}

START_TEST(every_planted_fault_is_found)
{
    enum mutant mutant = deserved[_i].mutant;
    int played = 0, found = 0, named = 0;
    char first[600] = "", other[600] = "";
    int kept = dup(STDERR_FILENO),
        off = open("/dev/null", O_WRONLY); /* the faults are wanted, hundreds of messages are not */
    dup2(off, STDERR_FILENO);
    close(off);
    for (uint64_t seed = 0; seed < MUTANT_SEEDS && found < 20; seed++) {
        int sound = play(&world, seed, mutant);
        played += world.played > 0;
        if (sound) continue;
        found++;
        int names = says_one_of(world.bad, deserved[_i].says);
        named += names;
        if (!names) memcpy(other, world.bad, sizeof other);
        if (!first[0]) memcpy(first, world.bad, sizeof first);
    }
    dup2(kept, STDERR_FILENO);
    close(kept);
    ck_assert_msg(found == 20, "%s: found in %d worlds of %d in which it played; first: %s", mutant_name[mutant], found,
                  played, first);
    ck_assert_msg(named * 4 >= found * 3, "%s: named in %d of %d; else: %s", mutant_name[mutant], named, found, other);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "protocol", 240);
    SUITE_TEST(tc, random_worlds_stay_sound_and_end);
    tcase_add_loop_test(tc, every_planted_fault_is_found, 0, (int)(sizeof deserved / sizeof deserved[0]));
}

int main(void)
{
    return suite_main_serial();
}
