/* what must not change a bit: chunk size, verify or decode, stage cuts; and what is refused */
#include "nano.h"

#include <math.h>
#include <stdio.h>


const char *const suite_name = "target";

enum { PROMPT = 40, ROWS = 16, MAX_ROWS = 160 };

static struct nano model;
static int32_t *ids; /* 150 tokens */
static int n_ids;

static void setup(void)
{
    nano_open(&model);
    ids = nano_ids("p150", &n_ids);
}

static void teardown(void)
{
    mem_free(ids);
    nano_close(&model);
}

/* logits of the last call, copied; malloc'd */
static float *logits_of(const struct nano_rank *r, int want_rows)
{
    int n;
    const float *x = target_logits(r->t, &n);
    size_t bytes = (size_t)n * (size_t)model.c.vocab * sizeof *x;
    ck_assert_int_eq(n, want_rows);
    float *y = malloc(bytes);
    memcpy(y, x, bytes);
    for (size_t i = 0; i < bytes / sizeof *y; i++) ck_assert(!isnan(y[i]));
    return y;
}

static int same_row(const float *a, const float *b)
{
    return memcmp(a, b, (size_t)model.c.vocab * sizeof *a) == 0;
}

static int same_state(const struct nano_rank *a, int slot_a, const struct nano_rank *b, int slot_b, int n, int with_rows)
{
    size_t na, nb;
    char *x = nano_state(&model, a, slot_a, n, with_rows, &na), *y = nano_state(&model, b, slot_b, n, with_rows, &nb);
    int same = na == nb && na > 0 && memcmp(x, y, na) == 0;
    free(x);
    free(y);
    return same;
}

static const struct mode { enum ops_act act; enum ops_kv kv; int absorbed; const char *isa; } mode[] = {
    {ACT_FP32, OPS_KV_BF16, 0, NULL},    {ACT_FP32, OPS_KV_FP32, 0, NULL}, {ACT_FP32, OPS_KV_BF16, 1, NULL},
    {ACT_FP32, OPS_KV_FP32, 1, NULL},    {ACT_BF16, OPS_KV_BF16, 0, NULL}, {ACT_BF16, OPS_KV_BF16, 1, NULL},
    {ACT_FP32, OPS_KV_BF16, 0, "scalar"},
};
enum { N_MODES = sizeof mode / sizeof *mode };

static const int few[] = {0, 1, 4}; /* modes of the longer tests */
enum { N_FEW = sizeof few / sizeof *few };

static struct nano_spec spec_of(const struct mode *m)
{
    return (struct nano_spec){.act = m->act, .kv = m->kv, .absorbed = m->absorbed, .isa = m->isa, .max_rows = MAX_ROWS,
                              .max_verify_rows = MAX_ROWS};
}

START_TEST(chunk_size_changes_nothing)
{
    static const int chunk[] = {1, 7, 64};
    struct nano_spec spec = spec_of(&mode[_i]);
    struct nano_rank a, b;
    nano_rank_open(&model, &spec, &a);
    nano_rank_open(&model, &spec, &b);
    int whole = nano_admit(&a), n = mode[_i].isa ? PROMPT : n_ids; /* the scalar kernels are slow */
    nano_prefill(&a, whole, n, ids, n);
    float *want = logits_of(&a, 1);
    for (int i = 0; i < 3; i++) {
        int slot = nano_admit(&b);
        nano_prefill(&b, slot, n, ids, chunk[i]);
        float *got = logits_of(&b, 1);
        ck_assert_msg(same_row(got, want), "mode %d: chunk %d changes the logits", _i, chunk[i]);
        ck_assert_msg(same_state(&a, whole, &b, slot, n, 1), "mode %d: chunk %d changes the state", _i, chunk[i]);
        free(got);
    }
    free(want);
    nano_rank_close(&b);
    nano_rank_close(&a);
}
END_TEST

/* arena copies: a saved state can be set again */
static void *save(const struct nano_rank *r)
{
    void *p = malloc(r->s.arena.bytes);
    memcpy(p, r->s.arena.p, r->s.arena.bytes);
    return p;
}

static void restore(struct nano_rank *r, const void *p)
{
    memcpy(r->s.arena.p, p, r->s.arena.bytes);
}

START_TEST(verify_equals_decode_and_commit_equals_steps)
{
    struct nano_spec spec = spec_of(&mode[_i]);
    struct nano_rank d, v; /* one decodes, the other verifies */
    nano_rank_open(&model, &spec, &d);
    nano_rank_open(&model, &spec, &v);
    int sd = nano_admit(&d), sv = nano_admit(&v), n = ROWS;
    nano_prefill(&d, sd, PROMPT, ids, PROMPT);
    nano_prefill(&v, sv, PROMPT, ids, PROMPT);
    ck_assert(same_state(&d, sd, &v, sv, PROMPT, 1));
    void *before = save(&v);

    struct batch_seq q;
    struct batch b = nano_batch(BATCH_VERIFY, &q, sv, PROMPT, n, ids + PROMPT);
    ck_assert_int_eq(target_forward(v.t, &v.s, &b, &v.f, NULL, NULL), ST_OK);
    float *rows = logits_of(&v, n);
    int every = mode[_i].absorbed || mode[_i].isa ? 5 : 1; /* the form of PREFILL has no part in this */
    for (int a = 0; a < n; a++) { /* accepting a drafts keeps a + 1 rows */
        nano_run(&d, BATCH_DECODE, sd, PROMPT + a, 1, ids + PROMPT + a);
        float *step = logits_of(&d, 1);
        ck_assert_msg(same_row(step, rows + a * model.c.vocab), "mode %d: row %d of a verify differs from a step", _i, a);
        free(step);
        if (a % every) continue;
        restore(&v, before);
        ck_assert_int_eq(target_forward(v.t, &v.s, &b, &v.f, NULL, NULL), ST_OK);
        size_t bytes, bytes0;
        char *now = nano_state(&model, &v, sv, 0, 0, &bytes);
        ck_assert_int_eq(target_commit(v.t, &v.s, &b, &(int){a + 1}), ST_OK);
        char *after = nano_state(&model, &v, sv, 0, 0, &bytes0);
        ck_assert_msg(bytes == bytes0 && memcmp(now, after, bytes) != 0, "commit did nothing");
        ck_assert_msg(same_state(&d, sd, &v, sv, PROMPT + a + 1, 1), "mode %d: commit of %d rows differs from steps", _i, a + 1);
        free(now);
        free(after);
    }
    free(rows);
    free(before);
    nano_rank_close(&v);
    nano_rank_close(&d);
}
END_TEST

/* VERIFY itself must leave KDA state and conv tails alone, and a rejected tail must leave no trace later on */
START_TEST(rejected_rows_leave_no_trace)
{
    struct nano_spec spec = spec_of(&mode[few[_i]]);
    struct nano_rank d, v;
    int32_t draft[ROWS];
    nano_rank_open(&model, &spec, &d);
    nano_rank_open(&model, &spec, &v);
    int sd = nano_admit(&d), sv = nano_admit(&v), pos = PROMPT, round = 0;
    nano_prefill(&d, sd, PROMPT, ids, PROMPT);
    nano_prefill(&v, sv, PROMPT, ids, PROMPT);
    for (; pos + ROWS < n_ids; round++) {
        int keep = 1 + round * 5 % ROWS; /* 1, 6, 11, 16, ... rows are right, the rest is wrong */
        for (int i = 0; i < ROWS; i++) draft[i] = i < keep ? ids[pos + i] : (ids[pos + i] + 17 * i) % 3840;
        struct batch_seq q;
        struct batch b = nano_batch(BATCH_VERIFY, &q, sv, pos, ROWS, draft);
        size_t n0, n1;
        char *before = nano_state(&model, &v, sv, pos, 1, &n0);
        ck_assert_int_eq(target_forward(v.t, &v.s, &b, &v.f, NULL, NULL), ST_OK);
        char *after = nano_state(&model, &v, sv, pos, 1, &n1);
        ck_assert_msg(n0 == n1 && memcmp(before, after, n0) == 0, "mode %d: verify changed committed state", few[_i]);
        free(before);
        free(after);
        float *rows = logits_of(&v, ROWS);
        ck_assert_int_eq(target_commit(v.t, &v.s, &b, &keep), ST_OK);
        for (int i = 0; i < keep; i++) {
            nano_run(&d, BATCH_DECODE, sd, pos + i, 1, ids + pos + i);
            float *step = logits_of(&d, 1);
            ck_assert_msg(same_row(step, rows + i * model.c.vocab), "mode %d: round %d row %d differs", few[_i], round, i);
            free(step);
        }
        free(rows);
        pos += keep;
        ck_assert_msg(same_state(&d, sd, &v, sv, pos, 1), "mode %d: state differs after round %d", few[_i], round);
    }
    ck_assert_int_ge(round, 5);
    nano_rank_close(&v);
    nano_rank_close(&d);
}
END_TEST

/* three requests of different length in one batch equal three batches, with different commits and mixed prefill rows */
START_TEST(sequences_do_not_see_each_other)
{
    static const int len[3] = {5, 31, 64}, rows[3] = {16, 1, 7}, keep[3] = {3, 1, 7};
    struct nano_spec spec = spec_of(&mode[few[_i]]);
    struct nano_rank one, all;
    nano_rank_open(&model, &spec, &one);
    nano_rank_open(&model, &spec, &all);
    int a[3], b[3], at = 0, total = 0;
    int32_t id[MAX_ROWS];
    struct batch_seq q[3];
    float *want[3];
    for (int i = 0; i < 3; i++) { /* prefill together: prompts start at different places of the text */
        a[i] = nano_admit(&one);
        b[i] = nano_admit(&all);
        nano_prefill(&one, a[i], len[i], ids + 10 * i, len[i]);
        want[i] = logits_of(&one, 1);
        memcpy(id + total, ids + 10 * i, (size_t)len[i] * sizeof *id);
        q[i] = (struct batch_seq){.slot = b[i], .row0 = total, .n_rows = len[i], .want_logits = i != 1};
        total += len[i];
    }
    struct batch batch = {BATCH_PREFILL, total, 3, q, id};
    ck_assert_int_eq(target_forward(all.t, &all.s, &batch, &all.f, NULL, NULL), ST_OK);
    float *got = logits_of(&all, 2);
    ck_assert_msg(same_row(got, want[0]) && same_row(got + model.c.vocab, want[2]), "mode %d: prefill together differs", few[_i]);
    free(got);
    for (int i = 0; i < 3; i++) free(want[i]);
    total = 0;
    for (int i = 0; i < 3; i++) {
        memcpy(id + total, ids + 10 * i + len[i], (size_t)rows[i] * sizeof *id);
        q[i] = (struct batch_seq){b[i], total, rows[i], len[i], rows[i] - 1, rows[i]};
        total += rows[i];
    }
    batch = (struct batch){BATCH_VERIFY, total, 3, q, id};
    ck_assert_int_eq(target_forward(all.t, &all.s, &batch, &all.f, NULL, NULL), ST_OK);
    got = logits_of(&all, total);
    ck_assert_int_eq(target_commit(all.t, &all.s, &batch, keep), ST_OK);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < rows[i]; j++, at++) {
            nano_run(&one, BATCH_DECODE, a[i], len[i] + j, 1, ids + 10 * i + len[i] + j);
            float *step = logits_of(&one, 1);
            ck_assert_msg(same_row(step, got + at * model.c.vocab), "mode %d: sequence %d row %d differs", few[_i], i, j);
            free(step);
            if (j + 1 == keep[i]) ck_assert(same_state(&one, a[i], &all, b[i], len[i] + keep[i], 1));
        }
    free(got);
    nano_rank_close(&all);
    nano_rank_close(&one);
}
END_TEST

/* ---- stage cuts ----------------------------------------------------------------------------------- */

/* taps of every layer, a chunk at a time: [17][PROMPT][hidden] */
struct tap_log { float *x; int row0; };

static enum status log_tap(void *ctx, int index, const float *h, int rows)
{
    struct tap_log *t = ctx;
    size_t n = (size_t)model.c.hidden;
    memcpy(t->x + ((size_t)index * PROMPT + (size_t)t->row0) * n, h, (size_t)rows * n * sizeof *h);
    return ST_OK;
}

/* a sink for the taps that layers [begin, end) compute: those of layers begin-1 .. end-2, the last layer's at the end */
static struct tap_sink sink_of(struct tap_log *t, struct range layers)
{
    struct tap_sink s = {.ctx = t, .tap = log_tap};
    for (int k = 0; k < model.c.n_layers; k++) {
        int owner = k + 1 < model.c.n_layers ? k + 1 : k;
        if (owner < layers.begin || owner >= layers.end) continue;
        s.layer[s.n] = k;
        s.index[s.n++] = k;
    }
    return s;
}

START_TEST(stage_cuts_change_nothing)
{
    static const int cut[][5] = {{1},  {2},  {3},  {4},  {5},  {6},  {7},  {8},  {9},
                                 {10}, {11}, {12}, {13}, {14}, {15}, {16}, {2, 4, 9, 13}, {5, 6, 7, 16}};
    struct nano_spec spec = spec_of(&mode[0]);
    struct nano_rank whole, part[5];
    nano_rank_open(&model, &spec, &whole);
    int slot = nano_admit(&whole);
    size_t tap_bytes = (size_t)(model.c.n_layers * PROMPT * model.c.hidden) * sizeof(float);
    struct tap_log all = {calloc(1, tap_bytes), 0}, got_taps = {calloc(1, tap_bytes), 0};
    struct tap_sink sink = sink_of(&all, whole.layers);
    struct batch_seq q0;
    struct batch b0 = nano_batch(BATCH_PREFILL, &q0, slot, 0, PROMPT, ids);
    ck_assert_int_eq(sink.n, model.c.n_layers);
    ck_assert_int_eq(target_forward(whole.t, &whole.s, &b0, &whole.f, &sink, NULL), ST_OK);
    float *want = logits_of(&whole, 1);
    size_t n_whole, at;
    char *state = nano_state(&model, &whole, slot, PROMPT, 1, &n_whole);
    const int n_cuts = (int)(sizeof cut / sizeof *cut);
    for (int i = n_cuts - suite_some(n_cuts, 2); i < n_cuts; i++) {
        int n = 0, begin = 0, s[5];
        memset(got_taps.x, 0, tap_bytes);
        while (n < 5 && begin < model.c.n_layers) {
            int end = n < 4 && cut[i][n] ? cut[i][n] : model.c.n_layers;
            spec.layers = (struct range){begin, end};
            nano_rank_open(&model, &spec, &part[n]);
            s[n] = nano_admit(&part[n]);
            begin = end;
            n++;
        }
        for (int chunk = 0; chunk < PROMPT; chunk += PROMPT / 2)
            for (int k = 0; k < n; k++) { /* the flow of the first part is handed from part to part */
                struct batch_seq q;
                struct batch b = nano_batch(BATCH_PREFILL, &q, s[k], chunk, PROMPT / 2, k == 0 ? ids + chunk : NULL);
                got_taps.row0 = chunk;
                sink = sink_of(&got_taps, part[k].layers);
                int taps = i % 2 == 0; /* with and without: the output rows take different paths */
                ck_assert_int_eq(target_forward(part[k].t, &part[k].s, &b, &part[0].f, taps ? &sink : NULL, NULL), ST_OK);
            }
        float *got = logits_of(&part[n - 1], 1);
        ck_assert_msg(same_row(got, want), "cut %d changes the logits", i);
        ck_assert_msg(i % 2 || memcmp(got_taps.x, all.x, tap_bytes) == 0, "cut %d changes a tap", i);
        free(got);
        at = 0;
        for (int k = 0; k < n; k++) {
            size_t bytes;
            char *x = nano_state(&model, &part[k], s[k], PROMPT, 1, &bytes);
            ck_assert_msg(at + bytes <= n_whole && memcmp(x, state + at, bytes) == 0, "cut %d changes the state", i);
            at += bytes;
            free(x);
            nano_rank_close(&part[k]);
        }
        ck_assert_uint_eq(at, n_whole);
    }
    free(all.x);
    free(got_taps.x);
    free(state);
    free(want);
    nano_rank_close(&whole);
}
END_TEST

/* ---- rules ---------------------------------------------------------------------------------------- */

START_TEST(forward_allocates_nothing)
{
    struct nano_spec spec = spec_of(&mode[0]);
    struct nano_rank r;
    nano_rank_open(&model, &spec, &r);
    int slot = nano_admit(&r);
    uint64_t before = buf_allocs();
    nano_prefill(&r, slot, PROMPT, ids, 7);
    struct batch_seq q;
    int32_t best[ROWS];
    struct batch b = nano_batch(BATCH_VERIFY, &q, slot, PROMPT, ROWS, ids + PROMPT);
    ck_assert_int_eq(target_forward(r.t, &r.s, &b, &r.f, NULL, NULL), ST_OK);
    ck_assert_int_eq(target_argmax(r.t, best), ST_OK);
    ck_assert_int_eq(target_commit(r.t, &r.s, &b, &(int){3}), ST_OK);
    nano_run(&r, BATCH_DECODE, slot, PROMPT + 3, 1, ids + PROMPT + 3);
    ck_assert_uint_eq(buf_allocs(), before);
    nano_rank_close(&r);
}
END_TEST

START_TEST(idle_and_warmup)
{
    struct nano_spec spec = spec_of(&mode[0]);
    struct nano_rank r;
    int n;
    nano_rank_open(&model, &spec, &r);
    int slot = nano_admit(&r);
    nano_prefill(&r, slot, PROMPT, ids, PROMPT);
    float *want = logits_of(&r, 1);
    size_t n0, n1;
    char *before = nano_state(&model, &r, slot, PROMPT, 1, &n0);
    int other = nano_admit(&r);
    nano_run(&r, BATCH_WARMUP, other, 0, PROMPT, ids);
    float *got = logits_of(&r, 1);
    ck_assert(same_row(got, want)); /* the same arithmetic as PREFILL */
    struct batch idle = {.kind = BATCH_IDLE};
    ck_assert_int_eq(target_forward(r.t, &r.s, &idle, &r.f, NULL, NULL), ST_OK);
    target_logits(r.t, &n);
    ck_assert_int_eq(n, 0);
    char *after = nano_state(&model, &r, slot, PROMPT, 1, &n1);
    ck_assert(n0 == n1 && memcmp(before, after, n0) == 0);
    free(want);
    free(got);
    free(before);
    free(after);
    nano_rank_close(&r);
}
END_TEST

START_TEST(nan_is_reported)
{
    struct nano_spec spec = spec_of(&mode[0]);
    struct nano_rank r;
    int32_t best[2];
    nano_rank_open(&model, &spec, &r);
    int good = nano_admit(&r), bad = nano_admit(&r);
    nano_prefill(&r, good, 5, ids, 5);
    nano_prefill(&r, bad, 5, ids, 5);
    ((float *)state_item(&r.s, COMP_KDA, 5, 0, bad))[100] = NAN;
    struct batch_seq q[2] = {{good, 0, 1, 5, 0, 1}, {bad, 1, 1, 5, 0, 1}};
    struct batch b = {BATCH_DECODE, 2, 2, q, (int32_t[]){ids[5], ids[5]}};
    ck_assert_int_eq(target_forward(r.t, &r.s, &b, &r.f, NULL, NULL), ST_OK);
    ck_assert_int_eq(target_argmax(r.t, best), ST_E_FAULT);
    ck_assert_msg(strstr(err_last(), "row 1 of 2"), "message names the row: %s", err_last());
    nano_rank_close(&r);
}
END_TEST

static enum status no_tap(void *ctx, int index, const float *h, int rows)
{
    (void)ctx;
    (void)index;
    (void)h;
    (void)rows;
    return ST_OK;
}

START_TEST(misuse_is_refused)
{
    struct nano_spec spec = spec_of(&mode[0]);
    struct nano_rank r, tail;
    struct batch_seq q;
    nano_rank_open(&model, &spec, &r);
    spec.layers = (struct range){9, 17};
    nano_rank_open(&model, &spec, &tail);
    int slot = nano_admit(&r), ts = nano_admit(&tail);
    struct batch b = nano_batch(BATCH_VERIFY, &q, slot, 0, 4, ids);
    ck_assert_int_eq(target_commit(r.t, &r.s, &b, &(int){1}), ST_E_INTERNAL); /* nothing verified */
    ck_assert_int_eq(target_forward(r.t, &r.s, &b, &r.f, NULL, NULL), ST_OK);
    ck_assert_int_eq(target_commit(r.t, &r.s, &b, &(int){0}), ST_E_INTERNAL);
    ck_assert_int_eq(target_commit(r.t, &r.s, &b, &(int){5}), ST_E_INTERNAL);
    ck_assert_int_eq(target_commit(r.t, &r.s, &b, &(int){4}), ST_OK);
    ck_assert_int_eq(target_commit(r.t, &r.s, &b, &(int){4}), ST_E_INTERNAL); /* twice */
    b = nano_batch(BATCH_PREFILL, &q, slot, NANO_PAGE * NANO_PAGES - 3, 4, ids);
    ck_assert_int_eq(target_forward(r.t, &r.s, &b, &r.f, NULL, NULL), ST_E_INTERNAL); /* past the pages */
    b = nano_batch(BATCH_PREFILL, &q, slot, 4, 2, (int32_t[]){5, 4096});
    ck_assert_int_eq(target_forward(r.t, &r.s, &b, &r.f, NULL, NULL), ST_E_RANGE); /* unknown token */
    b = nano_batch(BATCH_PREFILL, &q, ts, 0, 4, NULL);
    tail.f.n_bank = 2;
    ck_assert_int_eq(target_forward(tail.t, &tail.s, &b, &tail.f, NULL, NULL), ST_E_INTERNAL); /* bank rows */
    tail.f.n_bank = 3;
    ck_assert_int_eq(target_forward(tail.t, &tail.s, &b, &tail.f, NULL, NULL), ST_OK);
    static const struct { int layer; enum status st; } tap[] = {{7, ST_E_INTERNAL}, {8, ST_OK}, {16, ST_OK}};
    for (int i = 0; i < 3; i++) { /* the tap of layer k belongs to whoever owns layer k + 1 */
        struct tap_sink sink = {NULL, no_tap, 1, {tap[i].layer}, {0}};
        tail.f.n_bank = 3;
        ck_assert_int_eq(target_forward(tail.t, &tail.s, &b, &tail.f, &sink, NULL), tap[i].st);
    }
    ck_assert_int_eq(target_embed(tail.t, ids, 1, tail.f.prefix), ST_E_INTERNAL);
    nano_rank_close(&tail);
    nano_rank_close(&r);
}
END_TEST

START_TEST(wrong_config_is_caught_at_binding)
{
    struct ops o;
    struct tp_comm self = comm_self();
    struct target_spec ts = {.layers = {0, 17}, .tp = 1, .ep = 1, .max_rows = 4};
    struct target *t = NULL;
    struct config c = model.c;
    ck_assert_int_eq(ops_cpu_open(ACT_FP32, NULL, &o), ST_OK);
    c.q_rank = 64; /* q_a_proj has 96 rows */
    ck_assert_int_eq(target_open(&o, &c, model.ckpt, &ts, &self, &t), ST_E_FORMAT);
    ck_assert_ptr_null(t);
    c = model.c;
    c.is_kda[3] = 1; /* layer 3 is MLA: no q_proj */
    ck_assert_int_eq(target_open(&o, &c, model.ckpt, &ts, &self, &t), ST_E_FORMAT);
    ts.tp = 2;
    ck_assert_int_eq(target_open(&o, &model.c, model.ckpt, &ts, &self, &t), ST_E_INTERNAL); /* not this group */
    o.close(&o);
}
END_TEST

/* a case with the checkpoint open */
static TCase *model_case(Suite *s, const char *name)
{
    TCase *tc = SUITE_CASE(s, name, 600);
    tcase_add_checked_fixture(tc, setup, teardown);
    return tc;
}

void suite_fill(Suite *s)
{
    TCase *tc = model_case(s, "chunks");
    tcase_add_loop_test(tc, chunk_size_changes_nothing, 0, suite_some(N_MODES, 1));
    tc = model_case(s, "verify");
    tcase_add_loop_test(tc, verify_equals_decode_and_commit_equals_steps, 0, suite_some(N_MODES, 1));
    tcase_add_loop_test(tc, rejected_rows_leave_no_trace, 0, suite_some(N_FEW, 1));
    tcase_add_loop_test(tc, sequences_do_not_see_each_other, 0, suite_some(N_FEW, 1));
    tc = model_case(s, "cuts");
    SUITE_TEST(tc, stage_cuts_change_nothing);
    tc = model_case(s, "rules");
    SUITE_TEST(tc, forward_allocates_nothing);
    SUITE_TEST(tc, idle_and_warmup);
    SUITE_TEST(tc, nan_is_reported);
    SUITE_TEST(tc, misuse_is_refused);
    SUITE_TEST(tc, wrong_config_is_caught_at_binding);
}

int main(void)
{
    return suite_main_serial();
}
