/* one chunk through one stage, and pipelines of stages in one process: every split gives the bits of one stage */
#include "suite.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "stages.h"

const char *const suite_name = "prefill";

enum { BLOCK = 16, MAX_STAGES = 17, ROWS = 160, SLOTS = 2 };

static const struct rig_spec whole_rig = {.act = ACT_FP32, .kv = KV_FP32, .page = 16, .n_slots = SLOTS, .max_tokens = 200,
                                          .max_rows = ROWS};

static struct rig whole; /* first and last stage in one: the reference */
static int32_t *ids;
static int n_ids;

static void setup(void)
{
    struct h5 *f;
    rig_open(&whole, &whole_rig);
    OK(h5_open(suite_path("tests/vectors/dflash_context.h5"), 0, &f));
    ids = rig_ids(f, "/p150/ids", &n_ids);
    h5_close(f);
}

static void teardown(void)
{
    mem_free(ids);
    rig_close(&whole);
}

/* ---- pipelines --------------------------------------------------------------------------------------- */

/* the prompt through all stages; the flow object is the hand-off. Returns the first token. */
static int32_t run_pipeline(struct rig *r, int pp, struct flow *f, const int *slot, int chunk)
{
    int32_t first = -1;
    for (int at = 0; at < n_ids; at += chunk) {
        int n = n_ids - at < chunk ? n_ids - at : chunk;
        f->taps = 1; /* left over from somebody's last chunk: the first stage starts afresh */
        for (int i = 0; i < pp; i++) {
            int final = at + n == n_ids;
            int32_t token = -7;
            OK(prefill_chunk(&r[i].stage, slot[i], at, n, i == 0 ? ids + at : NULL, final, f, &token, NULL, NULL, NULL));
            if (final && i == pp - 1) first = token;
            else ck_assert_int_eq(token, -7); /* no other stage, no other chunk has a next token */
        }
    }
    return first;
}

START_TEST(every_pipeline_gives_the_bits_of_one_stage)
{
    static const struct {
        int pp, chunk, draft;
    } runs[] = {{1, 64, 1}, {2, 150, 1}, {3, 37, 1}, {5, 16, 1}, {8, 64, 1}, {17, 50, 1}, {4, 64, 0}};
    int pp = runs[_i].pp, slot[MAX_STAGES], n_taps = 0, bare = 0;
    int ref = rig_admit(&whole, n_ids + BLOCK);
    int32_t want = rig_prefill(&whole, ref, ids, n_ids, 150);
    struct stages_spec spec = {.pp = pp, .with_draft = runs[_i].draft, .kv = KV_FP32, .rows = ROWS, .page = 16, .n_pages = 13};
    spec.n_slots = SLOTS;
    struct rig *r = stages_open(&whole, &spec);
    for (int i = 0; i < pp; i++) {
        OK(state_admit(&r[i].s, 7, &slot[i])); /* another request first, so slots and pages differ from the reference */
        slot[i] = rig_admit(&r[i], n_ids + BLOCK);
        n_taps += r[i].stage.n_taps;
        bare += r[i].stage.n_taps == 0;
    }
    ck_assert_int_eq(n_taps, runs[_i].draft ? whole.dc.n_taps : 0);
    if (pp == 17) ck_assert_int_eq(bare, 17 - whole.dc.n_taps); /* stages without a tap pass the sum on */
    struct flow f;
    OK(flow_open(&r[0].o, &whole.c, ROWS, &f));
    ck_assert_int_eq(run_pipeline(r, pp, &f, slot, runs[_i].chunk), want);
    for (int i = 0; i < pp; i++) /* the stage's own layers, and the draft rows on the last */
        ck_assert_msg(rig_same_state(&r[i], slot[i], &whole, ref, n_ids, 1), "pp %d, stage %d", pp, i);
    flow_close(&r[0].o, &f);
    stages_close(r, pp);
}
END_TEST

/* One stage's part of the projection is lost on its way to the next: the hand-off brings what came in. told: its mask says so
 * too. Returns how the last stage ends. */
static enum status lose_partial(struct rig *r, int pp, const int *slot, int lost, int told)
{
    struct flow f;
    enum status st = ST_OK;
    OK(flow_open(&r[0].o, &whole.c, ROWS, &f));
    int64_t bytes = (int64_t)n_ids * whole.c.hidden * (int64_t)sizeof *f.acc;
    float *before = mem_alloc(1, (size_t)bytes, "accumulator");
    ck_assert_ptr_nonnull(before);
    for (int i = 0; i < pp && st == ST_OK; i++) {
        int32_t token;
        uint32_t taps = i ? f.taps : 0;
        if (taps) memcpy(before, f.acc, (size_t)bytes);
        st = prefill_chunk(&r[i].stage, slot[i], 0, n_ids, i == 0 ? ids : NULL, 1, &f, &token, NULL, NULL, NULL);
        if (i != lost) continue;
        memcpy(f.acc, before, (size_t)bytes); /* zeros when it was the first to add */
        if (told) f.taps = taps;
    }
    mem_free(before);
    flow_close(&r[0].o, &f);
    return st;
}

START_TEST(a_lost_partial_is_seen)
{
    enum { PP = 8 };
    int slot[PP], lost_n = 0, ref = rig_admit(&whole, n_ids + BLOCK);
    rig_prefill(&whole, ref, ids, n_ids, 150);
    struct stages_spec spec = {.pp = PP, .with_draft = 1, .kv = KV_FP32, .rows = ROWS, .page = 16, .n_pages = 13, .n_slots = SLOTS};
    struct rig *r = stages_open(&whole, &spec);
    for (int lost = 0; lost < PP - 1; lost++) {
        if (!r[lost].stage.n_taps) continue;
        lost_n++;
        for (int told = 0; told < 2; told++) {
            char name[64];
            for (int i = 0; i < PP; i++) slot[i] = rig_admit(&r[i], n_ids + BLOCK);
            enum status st = lose_partial(r, PP, slot, lost, told);
            snprintf(name, sizeof name, "lacks capture %d, of layer %d", r[lost].stage.tap_index[0], r[lost].stage.tap_layer[0]);
            if (told) ck_assert_msg(st == ST_E_FAULT && strstr(err_last(), name), "stage %d: %d, %s", lost, st, err_last());
            else ck_assert_msg(st == ST_OK && !rig_same_state(&r[PP - 1], slot[PP - 1], &whole, ref, n_ids, 1), "stage %d", lost);
            for (int i = 0; i < PP; i++) OK(state_release(&r[i].s, slot[i]));
        }
    }
    ck_assert_int_ge(lost_n, 3);
    OK(state_release(&whole.s, ref));
    stages_close(r, PP);
}
END_TEST

/* ---- the call itself ------------------------------------------------------------------------------- */

struct shown {
    int calls, pos, best;
};

static void show(void *ctx, int pos, const float *row, int vocab)
{
    struct shown *s = ctx;
    s->calls++;
    s->pos = pos;
    s->best = 0;
    for (int i = 1; i < vocab; i++)
        if (row[i] > row[s->best]) s->best = i;
}

START_TEST(the_logits_hook_sees_the_last_row_once)
{
    struct shown s = {0};
    int32_t first = -1;
    int slot = rig_admit(&whole, n_ids);
    OK(prefill_chunk(&whole.stage, slot, 0, 100, ids, 0, &whole.f, &first, NULL, show, &s));
    ck_assert_int_eq(s.calls, 0);
    ck_assert_int_eq(first, -1);
    OK(prefill_chunk(&whole.stage, slot, 100, 50, ids + 100, 1, &whole.f, &first, NULL, show, &s));
    ck_assert_int_eq(s.calls, 1);
    ck_assert_int_eq(s.pos, 149);
    ck_assert_int_eq(s.best, first);
    whole.stage.tp_rank = 1; /* only rank 0 is shown rows */
    OK(prefill_chunk(&whole.stage, slot, 100, 50, ids + 100, 1, &whole.f, &first, NULL, show, &s));
    ck_assert_int_eq(s.calls, 1);
}
END_TEST

START_TEST(chunks_that_cannot_run_are_refused)
{
    int32_t first = -1;
    int slot = rig_admit(&whole, n_ids);
    ck_assert_int_eq(prefill_chunk(&whole.stage, slot, 0, ROWS + 1, ids, 1, &whole.f, &first, NULL, NULL, NULL), ST_E_RANGE);
    ck_assert_int_eq(prefill_chunk(&whole.stage, slot, 0, 0, ids, 1, &whole.f, &first, NULL, NULL, NULL), ST_E_RANGE);
    ck_assert_int_eq(prefill_chunk(&whole.stage, slot, 0, 5, NULL, 1, &whole.f, &first, NULL, NULL, NULL), ST_E_INTERNAL);
    ck_assert_int_eq(prefill_chunk(&whole.stage, slot, 155, 50, ids, 1, &whole.f, &first, NULL, NULL, NULL), ST_E_INTERNAL);
    struct prefill_stage lost = whole.stage; /* a last stage that no projection ever reached */
    lost.n_taps = 0;
    ck_assert_int_eq(prefill_chunk(&lost, slot, 0, 5, ids, 1, &whole.f, &first, NULL, NULL, NULL), ST_E_FAULT);
    ck_assert_int_eq(first, -1);
    const int32_t outside[] = {whole.c.vocab};
    ck_assert_int_eq(prefill_chunk(&whole.stage, slot, 0, 1, outside, 1, &whole.f, &first, NULL, NULL, NULL), ST_E_RANGE);
}
END_TEST

START_TEST(chunks_allocate_nothing)
{
    int32_t first = -1;
    int slot = rig_admit(&whole, n_ids);
    uint64_t before = buf_allocs();
    for (int at = 0; at < n_ids; at += 50)
        OK(prefill_chunk(&whole.stage, slot, at, 50, ids + at, at + 50 == n_ids, &whole.f, &first, NULL, NULL, NULL));
    ck_assert_uint_eq(buf_allocs(), before);
    ck_assert_int_ge(first, 0);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "prefill", 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, every_pipeline_gives_the_bits_of_one_stage, 0, suite_some(7, 3));
    SUITE_TEST(tc, a_lost_partial_is_seen);
    tcase_add_test(tc, the_logits_hook_sees_the_last_row_once);
    tcase_add_test(tc, chunks_that_cannot_run_are_refused);
    tcase_add_test(tc, chunks_allocate_nothing);
}

int main(void)
{
    return suite_main_serial();
}
