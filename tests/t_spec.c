#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "tp_threads.h"

const char *const suite_name = "spec";

enum { BLOCK = 16, EOS = 3842, MOST = 96, SLOTS = 16, SEQS = 8, PAST = MOST + BLOCK };

/* ---- requests ------------------------------------------------------------------------------------- */

static const char *const names[SEQS] = {"train00", "test00", "train03", "test05", "train07", "test02", "test09", "train11"};

struct request { /* a prompt and what plain decoding says after it, EOS ignored */
    int32_t *prompt;
    int n;
    int32_t truth[PAST];
};

static struct request requests[SEQS];

static const struct rig_spec base_rig = {.act = ACT_FP32, .kv = KV_FP32, .page = 16, .n_slots = SLOTS, .max_tokens = 400,
                                         .max_rows = SEQS * BLOCK, .absorbed = 1};

static struct rig rig;

static struct spec_seq *new_seq(int request, int max_new)
{
    struct spec_seq *q = calloc(1, sizeof *q);
    q->request = request;
    q->prompt_tokens = requests[request].n;
    q->max_new = max_new;
    q->out = calloc((size_t)max_new, sizeof *q->out);
    q->round = calloc((size_t)max_new, sizeof *q->round);
    return q;
}

static void drop_seq(struct spec_seq *q)
{
    if (!q) return;
    if (q->slot >= 0) OK(state_release(&rig.s, q->slot));
    free(q->out);
    free(q->round);
    free(q);
}

static void start_seq(struct spec_seq *q, int eos)
{
    const struct request *r = &requests[q->request];
    q->slot = rig_admit(&rig, r->n + q->max_new + BLOCK);
    spec_start(q, rig_prefill(&rig, q->slot, r->prompt, r->n, 64), eos);
}

/* rounds until every sequence has stopped; sequence i joins in round i * stagger */
static void run_rounds(struct spec *s, struct spec_seq **q, int n, int stagger)
{
    for (int round = 0;; round++) {
        struct spec_seq *now[SEQS];
        int m = 0, waiting = 0;
        for (int i = 0; i < n; i++) {
            if (q[i]->stop != STOP_NONE) continue;
            if (round < i * stagger) waiting++;
            else now[m++] = q[i];
        }
        if (m == 0 && waiting == 0) return;
        OK(spec_round(s, now, m, NULL, NULL, NULL));
    }
}

static int32_t truth_of(void *ctx, int request, int i)
{
    (void)ctx;
    return i < PAST ? requests[request].truth[i] : -1;
}

static struct spec_options options(int block, enum spec_source source)
{
    return (struct spec_options){.block = block, .max_seqs = SEQS, .eos = EOS, .source = source, .oracle = truth_of, .seed = 5};
}

static struct spec *open_spec(const struct spec_options *p)
{
    struct spec *s = NULL;
    OK(spec_open(&rig.o, &rig.c, rig.t, rig.d, &rig.s, &rig.comm, p, &s));
    return s;
}

/* one request alone, to its end */
static struct spec_seq *decode(const struct spec_options *p, int request, int max_new)
{
    struct spec *s = open_spec(p);
    struct spec_seq *q = new_seq(request, max_new);
    start_seq(q, p->eos);
    run_rounds(s, &q, 1, 0);
    spec_close(s);
    return q;
}

static void set_rig(const struct rig_spec *p)
{
    rig_open(&rig, p);
    struct h5 *f;
    OK(h5_open(suite_path("tests/vectors/decode_traces.h5"), 0, &f));
    struct spec_options plain = options(1, SPEC_DRAFT);
    plain.eos = -1;
    struct spec *s = open_spec(&plain);
    struct spec_seq *q[SEQS];
    for (int i = 0; i < SEQS; i++) {
        char path[64];
        snprintf(path, sizeof path, "/%s/prompt", names[i]);
        requests[i].prompt = rig_ids(f, path, &requests[i].n);
        q[i] = new_seq(i, PAST);
        start_seq(q[i], -1);
    }
    run_rounds(s, q, SEQS, 0);
    for (int i = 0; i < SEQS; i++) {
        ck_assert_int_eq(q[i]->n_out, PAST);
        ck_assert_int_eq(q[i]->n_rounds, 0);
        memcpy(requests[i].truth, q[i]->out, sizeof requests[i].truth);
        drop_seq(q[i]);
    }
    spec_close(s);
    h5_close(f);
}

static void open_rig(void)
{
    set_rig(&base_rig);
}

static void close_rig(void)
{
    ck_assert_int_eq(rig.s.n_free_slots, SLOTS); /* every slot and page came back */
    ck_assert_int_eq(rig.s.n_free_pages, rig.s.layout.spec.n_pages);
    for (int i = 0; i < SEQS; i++) mem_free(requests[i].prompt);
    rig_close(&rig);
}

/* output = truth up to EOS or the budget, records add up */
static void check_output(const struct spec_seq *q, int block, const char *what)
{
    const int32_t *truth = requests[q->request].truth;
    int n = 0, emitted = 0, accepted = 0;
    while (n < q->max_new && (n == 0 || truth[n - 1] != EOS)) n++;
    ck_assert_msg(q->n_out == n, "%s, %s: %d tokens, must be %d", what, names[q->request], q->n_out, n);
    ck_assert_mem_eq(q->out, truth, (size_t)n * sizeof *truth);
    ck_assert_int_eq(q->stop, truth[n - 1] == EOS ? STOP_EOS : STOP_LENGTH);
    for (int i = 0; i < q->n_rounds; i++) {
        const struct spec_round *r = &q->round[i];
        ck_assert_int_eq(r->proposed, block - 1);
        ck_assert(r->accepted >= 0 && r->accepted < block);
        ck_assert(r->emitted >= 1 && r->emitted <= r->accepted + 1);
        if (i < q->n_rounds - 1) ck_assert_int_eq(r->emitted, r->accepted + 1); /* only the last round is clipped */
        emitted += r->emitted;
        accepted += r->accepted + 1;
        ck_assert_int_eq(r->bonus, truth[accepted]);
    }
    if (block > 1) ck_assert_int_eq(emitted, n - 1);
    else ck_assert_int_eq(q->n_rounds, 0);
    ck_assert_int_eq(q->pos, q->prompt_tokens + (block > 1 ? accepted : n - 1));
}

/* State of a finished request: what plain decoding leaves at the same position, and draft rows as computed afresh. */
static void check_state(const struct spec_seq *q, const char *what)
{
    struct spec_options plain = options(1, SPEC_DRAFT);
    plain.eos = -1;
    int more = q->pos - q->prompt_tokens;
    struct spec_seq *p = decode(&plain, q->request, more + 1);
    ck_assert_int_eq(p->pos, q->pos);
    ck_assert_msg(rig_same_state(&rig, q->slot, &rig, p->slot, q->pos, 0), "%s, %s: not the state of plain decoding", what,
                  names[q->request]);
    drop_seq(p);
    const struct request *r = &requests[q->request];
    int32_t *ids = malloc((size_t)q->pos * sizeof *ids);
    memcpy(ids, r->prompt, (size_t)r->n * sizeof *ids);
    memcpy(ids + r->n, r->truth, (size_t)more * sizeof *ids);
    int slot = rig_admit(&rig, q->pos);
    rig_prefill(&rig, slot, ids, q->pos, 50);
    ck_assert_msg(rig_same_state(&rig, q->slot, &rig, slot, q->pos, 1), "%s, %s: not the state of recomputation", what,
                  names[q->request]);
    OK(state_release(&rig.s, slot));
    free(ids);
}

/* ---- accept --------------------------------------------------------------------------------------- */

START_TEST(greedy_acceptance_counts_the_common_head)
{
    static const struct {
        int n;
        int32_t draft[4], top[5];
        int want;
    } rows[] = {
        {4, {1, 2, 3, 4}, {1, 2, 3, 4, 5}, 4}, {4, {1, 2, 3, 4}, {1, 2, 3, 9, 4}, 3}, {4, {1, 2, 3, 4}, {9, 2, 3, 4, 5}, 0},
        {4, {1, 2, 3, 4}, {1, 9, 3, 4, 5}, 1}, {0, {0}, {7}, 0},                      {1, {7}, {7, 1}, 1},
        {4, {2, 3, 4, 5}, {1, 2, 3, 4, 5}, 0}, {4, {0, 0, 0, 0}, {0, 0, -1, 0, 0}, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ck_assert_int_eq(accept_greedy(rows[i].draft, rows[i].top, rows[i].n), rows[i].want);
}
END_TEST

/* ---- output does not depend on the proposals ------------------------------------------------------- */

static const struct {
    const char *what;
    int block;
    enum spec_source source;
} ways[] = {
    {"plain", 1, SPEC_DRAFT},          {"oracle, block 16", 16, SPEC_ORACLE}, {"oracle, block 5", 5, SPEC_ORACLE},
    {"wrong, block 16", 16, SPEC_WRONG}, {"wrong, block 2", 2, SPEC_WRONG},   {"random, block 16", 16, SPEC_RANDOM},
    {"draft, block 16", 16, SPEC_DRAFT}, {"draft, block 8", 8, SPEC_DRAFT},   {"draft, block 3", 3, SPEC_DRAFT},
};

START_TEST(every_source_gives_plain_tokens_and_state)
{
    struct spec_options p = options(ways[_i].block, ways[_i].source);
    int rounds = 0, accepted = 0;
    for (int k = 0; k < 4; k++) {
        struct spec_seq *q = decode(&p, k, 48);
        check_output(q, p.block, ways[_i].what);
        for (int i = 0; i < q->n_rounds; i++) {
            if (p.source == SPEC_ORACLE) ck_assert_int_eq(q->round[i].accepted, p.block - 1);
            if (p.source == SPEC_WRONG) ck_assert_int_eq(q->round[i].accepted, 0);
            accepted += q->round[i].accepted;
        }
        rounds += q->n_rounds;
        if (p.block > 1) check_state(q, ways[_i].what);
        drop_seq(q);
    }
    if (p.source == SPEC_DRAFT && p.block > 1) ck_assert_int_gt(accepted, rounds / 2); /* the draft is alive */
    printf("%s: %d rounds, %d accepted\n", ways[_i].what, rounds, accepted);
}
END_TEST

START_TEST(every_mode_is_lossless)
{
    static const struct {
        enum ops_act act;
        enum kv_dtype kv;
    } modes[] = {{ACT_FP32, KV_BF16}, {ACT_BF16, KV_BF16}, {ACT_BF16, KV_FP32}};
    struct rig_spec p = base_rig;
    p.act = modes[_i].act;
    p.kv = modes[_i].kv;
    p.page = 5;
    set_rig(&p);
    for (int k = 0; k < 4; k++)
        for (int w = 0; w < 2; w++) {
            struct spec_options o = options(BLOCK, w ? SPEC_ORACLE : SPEC_DRAFT);
            struct spec_seq *q = decode(&o, k, 40);
            check_output(q, BLOCK, w ? "oracle" : "draft");
            check_state(q, w ? "oracle" : "draft");
            drop_seq(q);
        }
    close_rig();
}
END_TEST

/* ---- company -------------------------------------------------------------------------------------- */

START_TEST(many_sequences_equal_single_ones)
{
    static const int max_new[SEQS] = {48, 17, 33, 2, 40, 29, 5, 48};
    static const struct {
        int block, stagger;
        enum spec_source source;
    } runs[] = {{16, 0, SPEC_DRAFT}, {16, 1, SPEC_DRAFT}, {16, 1, SPEC_ORACLE}, {7, 2, SPEC_RANDOM}, {1, 1, SPEC_DRAFT}};
    struct spec_options p = options(runs[_i].block, runs[_i].source);
    struct spec *s = open_spec(&p);
    struct spec_seq *q[SEQS];
    for (int i = 0; i < SEQS; i++) {
        q[i] = new_seq(i, max_new[i]);
        start_seq(q[i], EOS);
    }
    run_rounds(s, q, SEQS, runs[_i].stagger);
    for (int i = 0; i < SEQS; i++) {
        struct spec_seq *alone = new_seq(i, max_new[i]);
        start_seq(alone, EOS);
        run_rounds(s, &alone, 1, 0);
        check_output(q[i], p.block, "together");
        ck_assert_int_eq(q[i]->n_out, alone->n_out);
        ck_assert_mem_eq(q[i]->out, alone->out, (size_t)alone->n_out * sizeof *alone->out);
        ck_assert_int_eq(q[i]->n_rounds, alone->n_rounds);
        ck_assert_mem_eq(q[i]->round, alone->round, (size_t)alone->n_rounds * sizeof *alone->round);
        ck_assert_int_eq(q[i]->pos, alone->pos);
        ck_assert(rig_same_state(&rig, q[i]->slot, &rig, alone->slot, alone->pos, p.block > 1));
        drop_seq(alone);
    }
    for (int i = 0; i < SEQS; i++) drop_seq(q[i]);
    spec_close(s);
}
END_TEST

/* ---- ends ----------------------------------------------------------------------------------------- */

/* first request whose truth has its token at index k for the first time there, or -1 */
static int first_at(int k)
{
    for (int r = 0; r < SEQS; r++) {
        int seen = 0;
        for (int i = 0; i < k; i++) seen |= requests[r].truth[i] == requests[r].truth[k];
        if (!seen) return r;
    }
    return -1;
}

START_TEST(eos_ends_where_it_stands)
{
    /* output index of EOS; with the oracle round 1 emits indices 1..16 (15 drafts, bonus at 16), round 2 17..32 */
    static const struct {
        int at, rounds, emitted;
    } ends[] = {{0, 0, 0}, {1, 1, 1}, {7, 1, 7}, {15, 1, 15}, {16, 1, 16}, {17, 2, 1}, {22, 2, 6}};
    int k = ends[_i].at, r = first_at(k);
    ck_assert_int_ge(r, 0);
    struct spec_options p = options(BLOCK, SPEC_ORACLE);
    p.eos = requests[r].truth[k];
    struct spec_seq *q = decode(&p, r, 60);
    ck_assert_int_eq(q->stop, STOP_EOS);
    ck_assert_int_eq(q->n_out, k + 1); /* EOS included, nothing behind it */
    ck_assert_mem_eq(q->out, requests[r].truth, (size_t)(k + 1) * sizeof *q->out);
    ck_assert_int_eq(q->n_rounds, ends[_i].rounds);
    if (ends[_i].rounds > 0) {
        const struct spec_round *last = &q->round[q->n_rounds - 1];
        ck_assert_int_eq(last->emitted, ends[_i].emitted);
        ck_assert_int_eq(last->accepted, BLOCK - 1); /* counted before clipping */
        ck_assert_int_eq(last->bonus, requests[r].truth[16 * q->n_rounds]);
    }
    ck_assert_int_eq(q->pos, q->prompt_tokens + 16 * q->n_rounds);
    drop_seq(q);
    p = options(1, SPEC_DRAFT); /* and so in plain decoding */
    p.eos = requests[r].truth[k];
    q = decode(&p, r, 60);
    ck_assert_int_eq(q->stop, STOP_EOS);
    ck_assert_int_eq(q->n_out, k + 1);
    drop_seq(q);
}
END_TEST

START_TEST(budgets_clip_the_output)
{
    static const int budget[] = {1, 2, 5, 16, 17, 18};
    static const struct {
        int block;
        enum spec_source source;
    } how[] = {{1, SPEC_DRAFT}, {16, SPEC_DRAFT}, {16, SPEC_ORACLE}, {16, SPEC_WRONG}, {4, SPEC_ORACLE}};
    int b = budget[_i];
    for (size_t k = 0; k < sizeof how / sizeof how[0]; k++) {
        struct spec_options p = options(how[k].block, how[k].source);
        struct spec_seq *q = decode(&p, 1, b);
        ck_assert_int_eq(q->stop, STOP_LENGTH);
        ck_assert_int_eq(q->n_out, b);
        check_output(q, p.block, "budget");
        if (b == 1) ck_assert_int_eq(q->n_rounds, 0);
        if (p.source == SPEC_ORACLE) ck_assert_int_eq(q->n_rounds, (b - 1 + p.block - 1) / p.block);
        if (p.source == SPEC_WRONG) ck_assert_int_eq(q->n_rounds, b - 1);
        drop_seq(q);
    }
}
END_TEST

START_TEST(eos_beats_the_budget)
{
    int r = first_at(4);
    struct spec_options p = options(BLOCK, SPEC_ORACLE);
    p.eos = requests[r].truth[4];
    struct spec_seq *q = decode(&p, r, 5); /* EOS is the last token that fits */
    ck_assert_int_eq(q->n_out, 5);
    ck_assert_int_eq(q->stop, STOP_EOS);
    drop_seq(q);
    q = decode(&p, r, 4); /* one too short */
    ck_assert_int_eq(q->n_out, 4);
    ck_assert_int_eq(q->stop, STOP_LENGTH);
    drop_seq(q);
}
END_TEST

/* ---- the round itself ------------------------------------------------------------------------------ */

START_TEST(rounds_allocate_nothing)
{
    struct spec_options p = options(_i ? BLOCK : 1, SPEC_DRAFT);
    struct spec *s = open_spec(&p);
    struct spec_seq *q[3];
    for (int i = 0; i < 3; i++) {
        q[i] = new_seq(i, 20);
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
    struct spec_seq *q = new_seq(0, 20);
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
    struct spec_seq *q = decode(&p, 2, 30);
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

START_TEST(damaged_state_is_a_fault_not_a_token)
{
    struct spec_options p = options(_i ? BLOCK : 1, SPEC_DRAFT);
    struct spec *s = open_spec(&p);
    struct spec_seq *q = new_seq(0, 20);
    start_seq(q, EOS);
    float bad = NAN;
    memcpy(state_item(&rig.s, COMP_KDA, 5, 0, q->slot), &bad, sizeof bad);
    int32_t first = q->out[0];
    ck_assert_int_eq(spec_round(s, &q, 1, NULL, NULL, NULL), ST_E_FAULT);
    ck_assert_int_eq(q->n_out, 1);
    ck_assert_int_eq(q->out[0], first);
    ck_assert_int_eq(q->pos, q->prompt_tokens);
    drop_seq(q);
    spec_close(s);
}
END_TEST

START_TEST(rounds_refuse_what_is_not_running)
{
    struct spec_options p = options(BLOCK, SPEC_DRAFT);
    struct spec *s = open_spec(&p);
    struct spec_seq *q = new_seq(0, 20), *many[SEQS + 1];
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
    *q = (struct spec_seq){.request = i, .prompt_tokens = r->n, .max_new = TP_NEW, .out = m->out[i], .round = m->round[i]};
    TRY(state_admit(&m->r.s, r->n + TP_NEW + BLOCK, &q->slot));
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
        struct spec_seq *one = decode(&o, i, TP_NEW);
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
    TCase *tc = SUITE_CASE(s, "accept", 10);
    tcase_add_test(tc, greedy_acceptance_counts_the_common_head);
    tc = SUITE_CASE(s, "modes", 900);
    tcase_add_loop_test(tc, every_mode_is_lossless, 0, 3);
    tc = SUITE_CASE(s, "rounds", 900);
    tcase_add_unchecked_fixture(tc, open_rig, close_rig); /* each test runs in a copy of the process */
    tcase_add_loop_test(tc, every_source_gives_plain_tokens_and_state, 0, sizeof ways / sizeof ways[0]);
    tcase_add_loop_test(tc, many_sequences_equal_single_ones, 0, 5);
    tcase_add_loop_test(tc, eos_ends_where_it_stands, 0, 7);
    tcase_add_loop_test(tc, budgets_clip_the_output, 0, 6);
    tcase_add_test(tc, eos_beats_the_budget);
    tcase_add_loop_test(tc, rounds_allocate_nothing, 0, 2);
    tcase_add_loop_test(tc, idle_touches_nothing, 0, 2);
    tcase_add_loop_test(tc, the_logits_hook_shows_every_committed_row_once, 0, 3);
    tcase_add_test(tc, ranks_take_the_word_of_rank_0);
    tcase_add_loop_test(tc, damaged_state_is_a_fault_not_a_token, 0, 2);
    tcase_add_test(tc, rounds_refuse_what_is_not_running);
    tcase_add_loop_test(tc, every_group_size_decodes_the_same, 0, 3);
    tcase_add_test(tc, options_are_checked);
}

int main(void)
{
    return suite_main_serial();
}
