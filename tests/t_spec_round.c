/* the round as a call: what it touches, shows, refuses, and how ranks of a group agree */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spec_kit.h"
#include "tp_threads.h"

const char *const suite_name = "spec_round";

START_TEST(rounds_allocate_nothing)
{
    struct spec_options p = options(_i ? BLOCK : 1, SPEC_DRAFT);
    struct spec *s = open_spec(&p);
    struct spec_seq *q[3];
    for (int i = 0; i < 3; i++) {
        q[i] = new_seq(i, suite_some(20, 6));
        start_seq(q[i], -1);
    }
    uint64_t before = buf_allocs();
    run_rounds(s, q, 3, 1);
    ck_assert_uint_eq(buf_allocs(), before);
    for (int i = 0; i < 3; i++) drop_seq(q[i]);
    spec_close(s);
}
END_TEST

START_TEST(idle_touches_nothing)
{
    struct spec_options p = options(_i ? BLOCK : 1, SPEC_DRAFT);
    struct spec *s = open_spec(&p);
    struct spec_seq *q = new_seq(0, suite_some(20, 6));
    start_seq(q, EOS);
    char *before = malloc(rig.s.arena.bytes);
    memcpy(before, rig.s.arena.p, rig.s.arena.bytes);
    double d = 1, v = 2, c = 3;
    OK(spec_round(s, NULL, 0, &d, &v, &c));
    ck_assert_mem_eq(before, rig.s.arena.p, rig.s.arena.bytes);
    ck_assert(d == 1 && v == 2 && c == 3);
    OK(spec_round(s, &q, 1, &d, &v, &c));
    ck_assert(_i ? d > 1 : d >= 1);
    ck_assert(v > 2 && c >= 3);
    free(before);
    drop_seq(q);
    spec_close(s);
}
END_TEST

struct seen_rows {
    int n;
    int32_t top[2 * MOST];
    int pos[2 * MOST];
};

static void see_row(void *ctx, int request, int pos, const float *row, int vocab)
{
    struct seen_rows *s = ctx;
    int best = 0;
    for (int i = 1; i < vocab; i++)
        if (row[i] > row[best]) best = i;
    ck_assert_int_eq(request, 2);
    s->pos[s->n] = pos;
    s->top[s->n++] = best;
}

START_TEST(the_logits_hook_shows_every_committed_row_once)
{
    static const int block[] = {1, 16, 6};
    struct seen_rows seen = {0};
    struct spec_options p = options(block[_i], SPEC_DRAFT);
    p.logits = see_row;
    p.logits_ctx = &seen;
    struct spec_seq *q = decode(&p, 2, suite_some(30, 6));
    check_output(q, p.block, "with the hook");
    ck_assert_int_eq(seen.n, q->pos - q->prompt_tokens);
    for (int i = 0; i < seen.n; i++) {
        ck_assert_int_eq(seen.pos[i], q->prompt_tokens + i);
        ck_assert_int_eq(seen.top[i], requests[2].truth[i + 1]);
    }
    drop_seq(q);
}
END_TEST

struct order { /* a decision that rank 0 sends */
    int32_t word[2];
    size_t bytes;
};

static enum status obey(void *ctx, void *host, size_t bytes)
{
    struct order *w = ctx;
    w->bytes = bytes;
    memcpy(host, w->word, sizeof w->word);
    return ST_OK;
}

START_TEST(ranks_take_the_word_of_rank_0)
{
    struct order w = {{3, requests[0].truth[4]}, 0};
    struct spec_options p = options(BLOCK, SPEC_ORACLE);
    struct tp_comm comm = comm_self();
    comm.rank = 1; /* not the one that decides: by its own arrays it would accept 15 */
    comm.ctx = &w;
    comm.bcast = obey;
    struct spec *s;
    OK(spec_open(&rig.o, &rig.c, rig.t, rig.d, &rig.s, &comm, &p, &s));
    struct spec_seq *q = new_seq(0, 40);
    start_seq(q, EOS);
    OK(spec_round(s, &q, 1, NULL, NULL, NULL));
    ck_assert_uint_eq(w.bytes, sizeof w.word);
    ck_assert_int_eq(q->n_rounds, 1);
    ck_assert_int_eq(q->round[0].accepted, 3);
    ck_assert_int_eq(q->n_out, 5);
    ck_assert_mem_eq(q->out, requests[0].truth, 5 * sizeof *q->out);
    ck_assert_int_eq(q->pos, q->prompt_tokens + 4);
    check_state(q, "a decision of another rank");
    w.word[0] = BLOCK; /* a word that cannot be */
    ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    drop_seq(q);
    spec_close(s);
}
END_TEST

/* A NaN in one sequence's KDA state, latent rows or draft keys ends that sequence; the other ends with its own tokens. */
START_TEST(damaged_state_ends_one_sequence_and_gives_no_token)
{
    static const struct { enum comp comp; int layer; } where[] = {{COMP_KDA, 5}, {COMP_MLA, 3}, {COMP_DRAFT, 0}};
    int speculates = _i >= 3;
    enum comp comp = where[_i % 3].comp;
    struct spec_options p = options(speculates ? BLOCK : 1, SPEC_DRAFT);
    if (comp == COMP_DRAFT && !speculates) return;
    struct spec *s = open_spec(&p);
    struct spec_seq *q[2] = {new_seq(0, suite_some(20, 6)), new_seq(1, suite_some(20, 6))};
    for (int i = 0; i < 2; i++) start_seq(q[i], EOS);
    int32_t item = comp == COMP_KDA ? q[0]->slot : state_pages(&rig.s, q[0]->slot)[0], first = q[0]->out[0];
    void *at = state_item(&rig.s, comp, where[_i % 3].layer, 0, item);
    ck_assert_ptr_nonnull(at);
    memset(at, 0xff, 64); /* a NaN as BF16 and as FP32 */
    run_rounds(s, q, 2, 0);
    ck_assert_int_eq(q[0]->stop, STOP_FAILED);
    ck_assert_int_eq(q[0]->n_out, 1);
    ck_assert_int_eq(q[0]->out[0], first);
    ck_assert_int_eq(q[0]->pos, q[0]->prompt_tokens);
    check_output(q[1], p.block, "beside a damaged one");
    for (int i = 0; i < 2; i++) drop_seq(q[i]);
    spec_close(s);
}
END_TEST

START_TEST(rounds_refuse_what_is_not_running)
{
    struct spec_options p = options(BLOCK, SPEC_DRAFT);
    struct spec *s = open_spec(&p);
    struct spec_seq *q = new_seq(0, suite_some(20, 6)), *many[SEQS + 1];
    start_seq(q, EOS);
    for (int i = 0; i <= SEQS; i++) many[i] = q;
    ck_assert_int_eq(spec_round(s, many, SEQS + 1, NULL, NULL, NULL), ST_E_RANGE);
    ck_assert_int_eq(spec_round(s, many, -1, NULL, NULL, NULL), ST_E_RANGE);
    ck_assert_int_eq(spec_round(s, many, 2, NULL, NULL, NULL), ST_E_INTERNAL); /* one slot twice */
    q->stop = STOP_EOS;
    ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    q->stop = STOP_NONE;
    q->pos++;
    ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    q->pos--;
    int slot = q->slot;
    q->slot = SLOTS;
    ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    q->slot = slot;
    int held = rig.s.n_pages[slot]; /* pages for the prompt only: the block does not fit */
    rig.s.n_pages[slot] = (q->pos + 15) / 16;
    ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    rig.s.n_pages[slot] = held;
    OK(spec_round(s, &q, 1, NULL, NULL, NULL));
    drop_seq(q);
    spec_close(s);
}
END_TEST

/* ---- tensor parallel ------------------------------------------------------------------------------- */

enum { TRIO = 3, TP_NEW = 40 };

static int tp_new(void) { return suite_some(TP_NEW, 5); }

struct member { /* one rank of a group with everything sharded */
    struct rig r;
    enum status st;
    struct spec_seq q[TRIO], *list[TRIO];
    int32_t out[TRIO][TP_NEW];
    struct spec_round round[TRIO][TP_NEW];
};

static enum status member_prefill(struct member *m, int i)
{
    struct spec_seq *q = &m->q[i];
    const struct request *r = &requests[i];
    int32_t first = -1;
    *q = (struct spec_seq){.request = i, .prompt_tokens = r->n, .max_new = tp_new(), .out = m->out[i], .round = m->round[i]};
    TRY(state_admit(&m->r.s, r->n + tp_new() + BLOCK, &q->slot));
    for (int at = 0; at < r->n; at += 64) {
        int n = r->n - at < 64 ? r->n - at : 64;
        TRY(prefill_chunk(&m->r.stage, q->slot, at, n, r->prompt + at, at + n == r->n, &m->r.f, &first, NULL, NULL, NULL));
    }
    spec_start(q, first, EOS);
    m->list[i] = q;
    return ST_OK;
}

static enum status member_rounds(struct member *m, struct spec *s)
{
    for (;;) {
        struct spec_seq *now[TRIO];
        int n = 0;
        for (int i = 0; i < TRIO; i++)
            if (m->q[i].stop == STOP_NONE) now[n++] = &m->q[i];
        if (n == 0) return ST_OK;
        TRY(spec_round(s, now, n, NULL, NULL, NULL));
    }
}

static void *run_member(void *arg)
{
    struct member *m = arg;
    struct spec_options p = options(BLOCK, SPEC_DRAFT);
    struct spec *s = NULL;
    for (int i = 0; i < TRIO && m->st == ST_OK; i++) m->st = member_prefill(m, i);
    if (m->st == ST_OK) m->st = spec_open(&m->r.o, &m->r.c, m->r.t, m->r.d, &m->r.s, &m->r.comm, &p, &s);
    if (m->st == ST_OK) m->st = member_rounds(m, s);
    spec_close(s);
    return NULL;
}

START_TEST(every_group_size_decodes_the_same)
{
    static const int tp[] = {2, 4, 8};
    struct team team;
    struct member *m = calloc((size_t)tp[_i], sizeof *m);
    void *arg[TEAM_MAX];
    team_open(&team, tp[_i]);
    for (int r = 0; r < tp[_i]; r++) {
        struct tp_comm comm = team_comm(&team, r);
        struct rig_spec p = base_rig;
        p.tp = tp[_i];
        p.rank = r;
        p.comm = &comm;
        p.n_slots = TRIO;
        rig_open(&m[r].r, &p);
        arg[r] = &m[r];
    }
    team_run(&team, run_member, arg);
    struct spec_options o = options(BLOCK, SPEC_DRAFT);
    for (int i = 0; i < TRIO; i++) {
        struct spec_seq *one = decode(&o, i, tp_new());
        for (int r = 0; r < tp[_i]; r++) {
            const struct spec_seq *q = &m[r].q[i];
            ck_assert_int_eq(m[r].st, ST_OK);
            check_output(q, BLOCK, "a rank of a group");
            ck_assert_int_eq(q->n_rounds, one->n_rounds); /* the drafts are the same too */
            ck_assert_mem_eq(q->round, one->round, (size_t)one->n_rounds * sizeof *one->round);
            ck_assert_int_eq(q->pos, one->pos);
        }
        drop_seq(one);
    }
    for (int r = 0; r < tp[_i]; r++) rig_close(&m[r].r);
    free(m);
    team_close(&team);
}
END_TEST

START_TEST(options_are_checked)
{
    static const struct {
        int block, max_seqs, draft, oracle;
        enum spec_source source;
        enum status want;
    } rows[] = {
        {1, 1, 0, 0, SPEC_DRAFT, ST_OK},           {1, 1, 1, 0, SPEC_DRAFT, ST_OK},        {16, 1, 1, 0, SPEC_DRAFT, ST_OK},
        {16, 1, 0, 1, SPEC_ORACLE, ST_E_INTERNAL}, {17, 1, 1, 0, SPEC_DRAFT, ST_E_RANGE},  {0, 1, 1, 0, SPEC_DRAFT, ST_E_RANGE},
        {16, 0, 1, 0, SPEC_DRAFT, ST_E_RANGE},     {16, 1, 1, 0, SPEC_ORACLE, ST_E_INTERNAL},
        {16, 1, 1, 0, SPEC_WRONG, ST_E_INTERNAL},  {16, 1, 1, 0, SPEC_RANDOM, ST_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct spec_options p = {.block = rows[i].block, .max_seqs = rows[i].max_seqs, .eos = EOS, .source = rows[i].source};
        struct spec *s = NULL;
        if (rows[i].oracle) p.oracle = truth_of;
        ck_assert_int_eq(spec_open(&rig.o, &rig.c, rig.t, rows[i].draft ? rig.d : NULL, &rig.s, &rig.comm, &p, &s),
                         rows[i].want);
        spec_close(s);
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "round", 900);
    tcase_add_unchecked_fixture(tc, open_rig, close_rig); /* each test runs in a copy of the process */
    tcase_add_loop_test(tc, rounds_allocate_nothing, 0, 2);
    tcase_add_loop_test(tc, idle_touches_nothing, 0, 2);
    tcase_add_loop_test(tc, the_logits_hook_shows_every_committed_row_once, 0, 3);
    tcase_add_test(tc, ranks_take_the_word_of_rank_0);
    tcase_add_loop_test(tc, damaged_state_ends_one_sequence_and_gives_no_token, 0, 6);
    tcase_add_test(tc, rounds_refuse_what_is_not_running);
    tcase_add_loop_test(tc, every_group_size_decodes_the_same, 0, suite_some(3, 1));
    tcase_add_test(tc, options_are_checked);
}

int main(void)
{
    return suite_main_serial();
}
