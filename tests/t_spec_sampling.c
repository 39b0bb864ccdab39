/* rounds that draw tokens, with the fixture's weights: speculation changes no token where drafts are not drawn, batches
 * never matter, greedy and drawing sequences mix, and with drawn drafts the law is that of the target's own rows */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "chi2.h"
#include "spec_kit.h"
#include "tp_threads.h"

const char *const suite_name = "spec_sampling";

static void open_drawing(int dspark)
{
    struct rig_spec p = base_rig;
    p.draws = 1;
    if (dspark) p.draft = suite_path("inputs/k3-nano-dspark");
    set_rig(&p);
}

static void open_flash(void) { open_drawing(0); }
static void open_spark(void) { open_drawing(1); }

static struct spec_options drawing(int block, enum spec_source source)
{
    struct spec_options p = options(block, source);
    p.samples = 1;
    return p;
}

static const struct sampling ways[] = {
    {.temperature = 0.7, .seed = 1},
    {.temperature = 1, .seed = 2},
    {.temperature = 1, .top_p = 0.9, .seed = 3},
    {.temperature = 1.5, .top_k = 20, .top_p = 0.95, .seed = 4},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

enum { ASKED = 1 }; /* a question that the fixture does not know by heart: its rows are flat enough to draw from */
static int budget(void) { return suite_some(20, 5); }

/* requests [0, n) in one batch, the i-th joining in round i * stagger; how[i] may differ */
static void decode_all(const struct spec_options *p, const struct sampling *how, int n, int stagger, struct spec_seq **q)
{
    struct spec *s = open_spec(p);
    for (int i = 0; i < n; i++) {
        q[i] = new_seq(i, budget());
        start_seq(q[i], p->eos);
        q[i]->how = how[i];
    }
    run_rounds(s, q, n, stagger);
    spec_close(s);
}

static void drop_all(struct spec_seq **q, int n)
{
    for (int i = 0; i < n; i++) drop_seq(q[i]);
}

static void check_same(const struct spec_seq *a, const struct spec_seq *b, const char *what)
{
    ck_assert_msg(a->n_out == b->n_out && a->stop == b->stop, "%s: request %d: %d and %d tokens", what, a->request, a->n_out,
                  b->n_out);
    for (int i = 0; i < a->n_out; i++)
        ck_assert_msg(a->out[i] == b->out[i], "%s: request %d: token %d is %d and %d", what, a->request, i, a->out[i], b->out[i]);
}

static void spread_how(struct sampling how, int draws, struct sampling all[SEQS])
{
    for (int i = 0; i < SEQS; i++) {
        all[i] = how;
        all[i].draws_drafts = draws;
    }
}

/* Argmax drafts, and drafts from nowhere: the tokens of plain sampling, at every width. */
START_TEST(speculation_changes_no_drawn_token)
{
    static const struct { int block; enum spec_source source; } by[] = {
        {16, SPEC_DRAFT}, {2, SPEC_DRAFT}, {8, SPEC_ORACLE}, {5, SPEC_WRONG}};
    struct spec_options plain = drawing(1, SPEC_DRAFT);
    struct spec_seq *want[SEQS], *got[SEQS];
    struct sampling how[SEQS];
    int n = n_seqs(), greedy = 0, accepted = 0;
    spread_how(ways[_i], 0, how);
    decode_all(&plain, how, n, 0, want);
    for (int i = 0; i < n; i++) greedy += memcmp(want[i]->out, requests[i].truth, (size_t)want[i]->n_out * 4) == 0;
    ck_assert_int_lt(greedy, n); /* something was drawn */
    for (size_t b = 0; b < sizeof by / sizeof by[0]; b++) {
        struct spec_options p = drawing(by[b].block, by[b].source);
        decode_all(&p, how, n, (int)b % 3, got);
        for (int i = 0; i < n; i++) {
            check_same(want[i], got[i], "a round of another width");
            for (int k = 0; k < got[i]->n_rounds && by[b].source == SPEC_DRAFT; k++) accepted += got[i]->round[k].accepted;
        }
        drop_all(got, n);
    }
    if (suite_some(1, 0)) ck_assert_int_gt(accepted, 20);
    drop_all(want, n);
}
END_TEST

/* Drawn drafts: alone, together or one after the other, the same tokens and rounds; the state is that of its tokens. */
START_TEST(a_batch_changes_nothing_of_a_request)
{
    int block = draft_verify_rows(&rig.dc) - _i, n = n_seqs(), accepted = 0, rejected = 0;
    struct spec_options p = drawing(block, SPEC_DRAFT);
    struct spec_seq *all[SEQS], *apart[SEQS], *one = NULL;
    struct sampling how[SEQS];
    spread_how(ways[1 + _i], 1, how);
    decode_all(&p, how, n, 0, all);
    decode_all(&p, how, n, 2, apart);
    for (int i = 0; i < n; i++) check_same(all[i], apart[i], "staggered");
    drop_all(apart, n);
    for (int i = 0; i < n; i += 3) {
        struct spec *s = open_spec(&p);
        one = new_seq(i, budget());
        start_seq(one, EOS);
        one->how = how[i];
        run_rounds(s, &one, 1, 0);
        spec_close(s);
        check_same(all[i], one, "alone");
        ck_assert_int_eq(all[i]->n_rounds, one->n_rounds);
        ck_assert_mem_eq(all[i]->round, one->round, (size_t)one->n_rounds * sizeof *one->round);
        for (int k = 0; k < one->n_rounds; k++) {
            accepted += one->round[k].accepted;
            rejected += one->round[k].accepted < one->round[k].proposed;
        }
        int more = one->pos - one->prompt_tokens;
        if (more <= one->n_out) { /* not clipped inside the last round */
            const struct request *r = &requests[i];
            int32_t *ids = malloc((size_t)one->pos * sizeof *ids);
            memcpy(ids, r->prompt, (size_t)r->n * sizeof *ids);
            memcpy(ids + r->n, one->out, (size_t)more * sizeof *ids);
            int slot = rig_admit(&rig, one->pos);
            rig_prefill(&rig, slot, ids, one->pos, 50);
            ck_assert_msg(rig_same_state(&rig, one->slot, &rig, slot, one->pos, 1), "request %d: not the state of its tokens", i);
            OK(state_release(&rig.s, slot));
            free(ids);
        }
        drop_seq(one);
    }
    ck_assert_int_gt(rejected, 0);
    if (suite_some(1, 0)) ck_assert_int_gt(accepted, 10);
    drop_all(all, n);
}
END_TEST

/* One batch of greedy, argmax-draft and drawn-draft requests, each with parameters of its own. */
START_TEST(greedy_and_drawing_requests_share_a_batch)
{
    struct spec_options p = drawing(draft_verify_rows(&rig.dc), SPEC_DRAFT);
    struct spec_seq *mixed[SEQS], *apart[SEQS];
    struct sampling how[SEQS], none[SEQS] = {{0}};
    int n = n_seqs(), block = draft_verify_rows(&rig.dc);
    for (int i = 0; i < SEQS; i++) {
        how[i] = i % 3 == 0 ? (struct sampling){0} : ways[i % N_WAYS];
        how[i].draws_drafts = i % 3 == 2; /* of a greedy one it says nothing */
    }
    how[0].draws_drafts = 1;
    decode_all(&p, how, n, 1, mixed);
    for (int i = 0; i < n; i++)
        if (i % 3 == 0) check_output(mixed[i], block, "greedy beside drawing ones");
    for (int i = 0; i < n; i++) {
        struct spec *s = open_spec(&p);
        apart[i] = new_seq(i, budget());
        start_seq(apart[i], EOS);
        apart[i]->how = how[i];
        run_rounds(s, &apart[i], 1, 0);
        spec_close(s);
        check_same(mixed[i], apart[i], "in a mixed batch");
    }
    drop_all(mixed, n);
    drop_all(apart, n);
    decode_all(&p, none, n, 0, mixed); /* temperature 0 where drawing would be possible */
    for (int i = 0; i < n; i++) check_output(mixed[i], block, "temperature 0");
    drop_all(mixed, n);
}
END_TEST

START_TEST(seeds_and_questions_draw_apart)
{
    struct spec_options p = drawing(1, SPEC_DRAFT);
    struct spec *s = open_spec(&p);
    struct spec_seq *q[SEQS];
    int n = suite_some(8, 3), same = 0, pairs = 0;
    for (int i = 0; i < n; i++) { /* the same prompt under other seeds, then as other questions */
        q[i] = new_seq(ASKED, 20);
        start_seq(q[i], -1);
        q[i]->how = (struct sampling){.temperature = 1.5, .seed = i < n / 2 ? (uint64_t)i : 0};
        q[i]->request = i < n / 2 ? 0 : 100 + i;
    }
    run_rounds(s, q, n, 0);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++, pairs++) same += memcmp(q[i]->out, q[j]->out, 20 * sizeof *q[i]->out) == 0;
    ck_assert_int_eq(same, 0);
    ck_assert_int_gt(pairs, 2);
    drop_all(q, n);
    spec_close(s);
}
END_TEST

/* ---- the law, from the target's own rows -------------------------------------------------------------- */

enum { TOP = 4 }; /* tokens that top-k leaves: TOP * TOP pairs */

struct row_of { int n; float *row; };

static void keep_row(void *ctx, int request, int pos, const float *row, int vocab)
{
    struct row_of *r = ctx;
    (void)request;
    (void)pos;
    memcpy(r->row, row, (size_t)vocab * sizeof *row);
    r->n++;
}

/* the target's row behind prompt, first token and x (or -1) */
static void row_behind(int32_t x, float *row)
{
    struct row_of keep = {0, row};
    struct spec_options p = options(1, SPEC_DRAFT);
    p.logits = keep_row;
    p.logits_ctx = &keep;
    p.eos = -1;
    struct spec *s = open_spec(&p);
    struct spec_seq *q = new_seq(ASKED, 8);
    start_seq(q, -1);
    OK(spec_round(s, &q, 1, NULL, NULL, NULL));
    if (x >= 0) {
        q->out[1] = x;
        OK(spec_round(s, &q, 1, NULL, NULL, NULL));
    }
    ck_assert_int_eq(keep.n, x >= 0 ? 2 : 1);
    drop_seq(q);
    spec_close(s);
}

/* the TOP likeliest of a row and their probabilities at a temperature */
static void top_of(const float *row, double t, int32_t id[TOP], double p[TOP])
{
    double sum = 0;
    for (int k = 0; k < TOP; k++) {
        id[k] = -1;
        for (int i = 0; i < rig.c.vocab; i++) {
            int taken = 0;
            for (int j = 0; j < k; j++) taken |= id[j] == i;
            if (!taken && (id[k] < 0 || row[i] > row[id[k]])) id[k] = i;
        }
        sum += p[k] = exp((row[id[k]] - row[id[0]]) / t);
    }
    for (int k = 0; k < TOP; k++) p[k] /= sum;
}

static int place_of(const int32_t id[TOP], int32_t x)
{
    for (int k = 0; k < TOP; k++)
        if (id[k] == x) return k;
    return -1;
}

/* The two tokens behind the first, many times from the same state: the slots are put back after each draw. */
START_TEST(two_drawn_tokens_have_the_law_of_the_rows)
{
    int n = suite_some(SEQS, 2), times = suite_some(120, 2), count[TOP * TOP] = {0}, accepted = 0, proposed = 0, df;
    struct sampling how = {.temperature = 3, .top_k = TOP, .draws_drafts = _i, .draft_temperature = _i ? 6 : 0, .seed = 9};
    struct spec_options p = drawing(3, SPEC_DRAFT);
    float *row = malloc((size_t)rig.c.vocab * sizeof *row);
    int32_t first[TOP], second[TOP][TOP];
    double a[TOP], b[TOP], want[TOP * TOP];
    row_behind(-1, row);
    top_of(row, how.temperature, first, a);
    for (int k = 0; k < TOP; k++) {
        row_behind(first[k], row);
        top_of(row, how.temperature, second[k], b);
        for (int l = 0; l < TOP; l++) want[k * TOP + l] = a[k] * b[l] * n * times;
    }
    p.eos = -1;
    struct spec *s = open_spec(&p);
    struct spec_seq *q[SEQS], was[SEQS];
    for (int i = 0; i < n; i++) {
        q[i] = new_seq(ASKED, 8);
        start_seq(q[i], -1);
        q[i]->how = how;
        was[i] = *q[i];
    }
    char *state = malloc(rig.s.arena.bytes);
    memcpy(state, rig.s.arena.p, rig.s.arena.bytes);
    for (int t = 0; t < times; t++) {
        for (int i = 0; i < n; i++) {
            *q[i] = was[i];
            q[i]->request = t * n + i;
        }
        for (int more = 1; more;) {
            struct spec_seq *now[SEQS];
            more = 0;
            for (int i = 0; i < n; i++)
                if (q[i]->n_out < 3) now[more++] = q[i];
            OK(spec_round(s, now, more, NULL, NULL, NULL));
        }
        memcpy(rig.s.arena.p, state, rig.s.arena.bytes);
        for (int i = 0; i < n; i++) {
            int x = place_of(first, q[i]->out[1]), y = x < 0 ? -1 : place_of(second[x], q[i]->out[2]);
            ck_assert_int_ge(y, 0); /* nothing that top-k ruled out */
            count[x * TOP + y]++;
            accepted += q[i]->round[0].accepted;
            proposed += q[i]->round[0].proposed;
        }
    }
    double chance = chi2_exact(count, want, TOP * TOP, &df);
    printf("%s, %s drafts: p %.3f with %d degrees of freedom, %d of %d drafts held\n", draft_kind_name(rig.dc.kind),
           _i ? "drawn" : "argmax", chance, df, accepted, proposed);
    if (suite_some(1, 0)) {
        ck_assert_int_ge(df, 8);
        ck_assert(accepted > proposed / 20 && accepted < proposed * 19 / 20);
        ck_assert(chance > 0.01);
    }
    for (int i = 0; i < n; i++) *q[i] = was[i];
    drop_all(q, n);
    spec_close(s);
    free(state);
    free(row);
}
END_TEST

/* ---- what can go wrong ------------------------------------------------------------------------------- */

/* NaN in one request's latent rows or draft keys ends it without a token; the other draws what it draws alone. */
START_TEST(a_damaged_request_gives_no_drawn_token)
{
    int draft = _i;
    struct spec_options p = drawing(draft_verify_rows(&rig.dc), SPEC_DRAFT);
    struct sampling how = {.temperature = 1, .seed = 6, .draws_drafts = 1};
    struct spec_seq *q[2];
    struct spec_seq *alone = new_seq(1, budget());
    struct spec *s = open_spec(&p);
    start_seq(alone, EOS);
    alone->how = how;
    run_rounds(s, &alone, 1, 0);
    for (int i = 0; i < 2; i++) {
        q[i] = new_seq(i, budget());
        start_seq(q[i], EOS);
        q[i]->how = how;
    }
    void *at = state_item(&rig.s, draft ? COMP_DRAFT : COMP_MLA, draft ? 0 : 3, 0, state_pages(&rig.s, q[0]->slot)[0]);
    ck_assert_ptr_nonnull(at);
    memset(at, 0xff, 64);
    run_rounds(s, q, 2, 0);
    ck_assert_int_eq(q[0]->stop, STOP_FAILED);
    ck_assert_int_eq(q[0]->n_out, 1);
    check_same(alone, q[1], "beside a damaged one");
    drop_all(q, 2);
    drop_seq(alone);
    spec_close(s);
}
END_TEST

START_TEST(rounds_that_draw_allocate_nothing_and_need_room)
{
    struct spec_options p = drawing(draft_verify_rows(&rig.dc), SPEC_DRAFT);
    struct sampling how[SEQS];
    struct spec_seq *q[3];
    struct spec *s = open_spec(&p);
    spread_how(ways[2], 1, how);
    for (int i = 0; i < 3; i++) {
        q[i] = new_seq(i, budget());
        start_seq(q[i], -1);
        q[i]->how = how[i];
    }
    uint64_t before = buf_allocs();
    run_rounds(s, q, 3, 1);
    ck_assert_uint_eq(buf_allocs(), before);
    drop_all(q, 3);
    spec_close(s);
    p.samples = 0; /* no room was asked for */
    s = open_spec(&p);
    q[0] = new_seq(0, 4);
    start_seq(q[0], EOS);
    q[0]->how = how[0];
    ck_assert_int_eq(spec_round(s, q, 1, NULL, NULL, NULL), ST_E_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err_last(), "draws its tokens"));
    drop_seq(q[0]);
    spec_close(s);
}
END_TEST

/* ---- groups ------------------------------------------------------------------------------------------- */

enum { PAIR = 2 };

struct member {
    struct rig r;
    struct spec_seq q[PAIR];
    int32_t out[PAIR][MOST];
    struct spec_round round[PAIR][MOST];
    enum status st;
};

static enum status member_start(struct member *m, int i)
{
    struct spec_seq *q = &m->q[i];
    const struct request *r = &requests[i];
    int32_t first = -1;
    *q = (struct spec_seq){.request = i, .prompt_tokens = r->n, .max_new = budget(), .out = m->out[i], .round = m->round[i]};
    q->how = (struct sampling){.temperature = 1, .top_p = 0.95, .seed = 8, .draws_drafts = i == 0};
    TRY(state_admit(&m->r.s, r->n + budget() + BLOCK, &q->slot));
    for (int at = 0; at < r->n; at += 64) {
        int n = r->n - at < 64 ? r->n - at : 64;
        TRY(prefill_chunk(&m->r.stage, q->slot, at, n, r->prompt + at, at + n == r->n, &m->r.f, &first, NULL, NULL, NULL));
    }
    TRY(prefill_draw(&m->r.stage, &q->how, i, r->n, &first));
    spec_start(q, first, EOS);
    return ST_OK;
}

static void open_stage_draws(struct rig *r, struct sampler **s, float **row)
{
    r->stage.comm = &r->comm;
    *s = NULL;
    *row = NULL;
    if (r->comm.rank > 0) return;
    OK(sampler_open(r->c.vocab, s));
    *row = calloc((size_t)r->c.vocab, sizeof **row);
    r->stage.sampler = *s;
    r->stage.row = *row;
}

static void *run_member(void *arg)
{
    struct member *m = arg;
    struct spec_options p = drawing(draft_verify_rows(&m->r.dc), SPEC_DRAFT);
    struct spec *s = NULL;
    for (int i = 0; i < PAIR && m->st == ST_OK; i++) m->st = member_start(m, i);
    if (m->st == ST_OK) m->st = spec_open(&m->r.o, &m->r.c, m->r.t, m->r.d, &m->r.s, &m->r.comm, &p, &s);
    while (m->st == ST_OK) {
        struct spec_seq *now[PAIR];
        int n = 0;
        for (int i = 0; i < PAIR; i++)
            if (m->q[i].stop == STOP_NONE) now[n++] = &m->q[i];
        if (n == 0) break;
        m->st = spec_round(s, now, n, NULL, NULL, NULL);
    }
    spec_close(s);
    return NULL;
}

/* every rank of groups of 1, 2, 4: the first token, drawn after the prompt, and all that follow */
START_TEST(every_group_size_draws_the_same)
{
    static const int size[] = {1, 2, 4};
    struct member *m[3];
    int sizes = suite_some(3, 2);
    for (int g = 0; g < sizes; g++) {
        struct team team;
        struct sampler *s;
        float *row;
        void *arg[TEAM_MAX];
        m[g] = calloc((size_t)size[g], sizeof *m[g]);
        team_open(&team, size[g]);
        for (int r = 0; r < size[g]; r++) {
            struct tp_comm comm = size[g] > 1 ? team_comm(&team, r) : comm_self();
            struct rig_spec p = base_rig;
            p.tp = size[g];
            p.rank = r;
            p.comm = &comm;
            p.n_slots = PAIR;
            p.draws = 1;
            if (rig.dc.kind == DRAFT_DSPARK) p.draft = suite_path("inputs/k3-nano-dspark");
            rig_open(&m[g][r].r, &p);
            arg[r] = &m[g][r];
        }
        struct sampler *keep = NULL;
        float *kept = NULL;
        for (int r = 0; r < size[g]; r++) {
            open_stage_draws(&m[g][r].r, &s, &row);
            if (s) keep = s, kept = row;
        }
        team_run(&team, run_member, arg);
        for (int r = 0; r < size[g]; r++) {
            ck_assert_int_eq(m[g][r].st, ST_OK);
            for (int i = 0; i < PAIR; i++) {
                const struct spec_seq *a = &m[0][0].q[i], *b = &m[g][r].q[i];
                check_same(a, b, "a rank of a group");
                ck_assert_int_eq(a->n_rounds, b->n_rounds);
                ck_assert_mem_eq(a->round, b->round, (size_t)a->n_rounds * sizeof *a->round);
            }
            rig_close(&m[g][r].r);
        }
        sampler_close(keep);
        free(kept);
        team_close(&team);
    }
    for (int g = 0; g < sizes; g++) free(m[g]);
}
END_TEST

static void fill(TCase *tc, int rig_is_spark) /* argmax drafts are the same code for both */
{
    tcase_add_loop_test(tc, a_batch_changes_nothing_of_a_request, 0, suite_some(2, 1));
    tcase_add_test(tc, greedy_and_drawing_requests_share_a_batch);
    tcase_add_loop_test(tc, two_drawn_tokens_have_the_law_of_the_rows, rig_is_spark, 2);
    tcase_add_loop_test(tc, a_damaged_request_gives_no_drawn_token, 0, 2);
    tcase_add_test(tc, rounds_that_draw_allocate_nothing_and_need_room);
    tcase_add_test(tc, every_group_size_draws_the_same);
}

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "dflash", 900);
    tcase_add_unchecked_fixture(tc, open_flash, close_rig);
    tcase_add_loop_test(tc, speculation_changes_no_drawn_token, 0, suite_some(N_WAYS, 1));
    tcase_add_test(tc, seeds_and_questions_draw_apart);
    fill(tc, 0);
    tc = SUITE_CASE(s, "dspark", 900);
    tcase_add_unchecked_fixture(tc, open_spark, close_rig);
    fill(tc, 1);
}

int main(void)
{
    return suite_main_serial();
}
