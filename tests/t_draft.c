#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "draft_goldens.h"
#include "model/draft_weights.h"
#include "rig.h"

const char *const suite_name = "draft";

enum { HIDDEN = 256, HEADS = 8, DIM = 32, TAPS = 6, BLOCK = 16, VOCAB = 4096, LAYERS = 3, WINDOW = 64 };

static const char *const prompts[] = {"p5", "p37", "p150"};

/* ---- goldens -------------------------------------------------------------------------------------- */

static float *golden_layer(const char *group, int layer, const char *name, int64_t want)
{
    char path[64];
    snprintf(path, sizeof path, "layer%d/%s", layer, name);
    return golden(group, path, want);
}

static void open_vectors(void)
{
    OK(h5_open(suite_path("tests/vectors/dflash_context.h5"), 0, &vectors));
}

static void close_vectors(void)
{
    h5_close(vectors);
}

/* worst relative error of one kind of value, printed once per prompt */
static void judge(const char *group, const char *what, const float *a, const float *b, int64_t n, double *worst)
{
    double e = rig_error(a, b, n);
    ck_assert_msg(e <= bound, "%s %s: relative error %.3g", group, what, e);
    if (e > *worst) *worst = e;
}

static const struct rig_spec plain_rig = {.act = ACT_FP32, .kv = KV_FP32, .page = 16, .n_slots = 4, .max_tokens = 200,
                                          .max_rows = 160};

/* ---- context path --------------------------------------------------------------------------------- */

struct taps { /* what the target hands out, and its projections */
    struct rig *r;
    float *h;    /* [TAPS][n][HIDDEN] */
    float *part; /* the same, projected */
    int n, seen;
};

static enum status take(void *ctx, int index, const float *h, int rows)
{
    struct taps *t = ctx;
    int64_t at = (int64_t)index * t->n * HIDDEN;
    ck_assert_int_eq(rows, t->n);
    ck_assert_int_eq(index, t->seen++); /* k3-nano-dflash lists its taps in ascending order */
    memcpy(t->h + at, h, (size_t)rows * HIDDEN * 4);
    OK(draft_project(t->r->d, index, h, rows, t->part + at, 0));
    return draft_project(t->r->d, index, h, rows, t->r->f.acc, index > 0);
}

static void compare_taps(const struct taps *t, const char *group, double *worst)
{
    float *want = golden(group, "taps", (int64_t)t->n * TAPS * HIDDEN), *mine = malloc((size_t)t->n * TAPS * HIDDEN * 4);
    for (int p = 0; p < t->n; p++)
        for (int k = 0; k < TAPS; k++)
            memcpy(mine + (p * TAPS + k) * HIDDEN, t->h + ((int64_t)k * t->n + p) * HIDDEN, HIDDEN * 4);
    judge(group, "taps", mine, want, (int64_t)t->n * TAPS * HIDDEN, worst);
    free(mine);
    mem_free(want);
    for (int k = 0; k < TAPS; k++) {
        char name[32];
        snprintf(name, sizeof name, "partial%d", k);
        want = golden(group, name, (int64_t)t->n * HIDDEN);
        judge(group, name, t->part + (int64_t)k * t->n * HIDDEN, want, (int64_t)t->n * HIDDEN, worst);
        mem_free(want);
    }
}

static void compare_pages(const struct rig *r, int slot, const char *group, int n, double *worst)
{
    float *mine = malloc((size_t)n * HEADS * DIM * 4);
    for (int l = 0; l < LAYERS; l++)
        for (int kv = 0; kv < 2; kv++) {
            float *want = golden_layer(group, l, kv ? "V" : "K", (int64_t)n * HEADS * DIM);
            for (int p = 0; p < n; p++)
                for (int h = 0; h < HEADS; h++)
                    rig_row(r, COMP_DRAFT, l, kv, slot, p, h, DIM, mine + (p * HEADS + h) * DIM);
            judge(group, kv ? "V" : "K", mine, want, (int64_t)n * HEADS * DIM, worst);
            mem_free(want);
        }
    free(mine);
}

START_TEST(context_matches_goldens)
{
    const char *group = prompts[_i];
    struct rig r;
    int n;
    double tap = 0, sum = 0, ctx = 0, kv = 0;
    rig_open(&r, &plain_rig);
    int32_t *ids = golden_ids(group, "ids", &n);
    struct taps t = {.r = &r, .n = n};
    t.h = malloc((size_t)n * TAPS * HIDDEN * 4);
    t.part = malloc((size_t)n * TAPS * HIDDEN * 4);
    int slot = rig_admit(&r, n + BLOCK);
    struct batch_seq seq = {.slot = slot, .n_rows = n, .want_logits = 1};
    struct batch b = {.kind = BATCH_PREFILL, .n_rows = n, .n_seq = 1, .seq = &seq, .id = ids};
    struct tap_sink sink = {.ctx = &t, .tap = take, .n = r.stage.n_taps};
    memcpy(sink.layer, r.stage.tap_layer, sizeof sink.layer);
    memcpy(sink.index, r.stage.tap_index, sizeof sink.index);
    OK(target_forward(r.t, &r.s, &b, &r.f, &sink, NULL));
    ck_assert_int_eq(t.seen, TAPS);
    compare_taps(&t, group, &tap);
    float *want = golden(group, "sum", (int64_t)n * HIDDEN);
    judge(group, "sum", r.f.acc, want, (int64_t)n * HIDDEN, &sum);
    mem_free(want);
    OK(draft_context(r.d, &r.s, r.f.acc, &seq, 1));
    want = golden(group, "ctx", (int64_t)n * HIDDEN);
    judge(group, "ctx", draft_f32(&r.d->part), want, (int64_t)n * HIDDEN, &ctx);
    mem_free(want);
    compare_pages(&r, slot, group, n, &kv);
    int32_t token;
    OK(target_argmax(r.t, &token));
    ck_assert_int_eq(token, anchor_of(group));
    printf("%s: worst relative error: taps and partials %.2g, sum %.2g, ctx %.2g, K/V %.2g\n", group, tap, sum, ctx, kv);
    free(t.h);
    free(t.part);
    mem_free(ids);
    rig_close(&r);
}
END_TEST

START_TEST(prefill_chunks_give_the_same_bits)
{
    static const int chunk[] = {150, 1, 7, 16, 64, 149};
    struct rig r;
    int n, whole = -1;
    int32_t first = -1;
    struct rig_spec p = plain_rig;
    p.n_slots = 6;
    rig_open(&r, &p);
    int32_t *ids = golden_ids("p150", "ids", &n);
    for (size_t i = 0; i < sizeof chunk / sizeof chunk[0]; i++) {
        int slot = rig_admit(&r, n + BLOCK);
        int32_t token = rig_prefill(&r, slot, ids, n, chunk[i]);
        if (i == 0) {
            double worst = 0;
            whole = slot;
            first = token;
            compare_pages(&r, slot, "p150", n, &worst);
        }
        ck_assert_int_eq(token, first);
        ck_assert_msg(rig_same_state(&r, whole, &r, slot, n, 1), "chunk %d", chunk[i]);
    }
    mem_free(ids);
    rig_close(&r);
}
END_TEST

/* ---- block path ----------------------------------------------------------------------------------- */

/* golden (or any) K and V [n][HEADS][DIM] into the pages of a slot, without the target */
static void inject(const struct rig *r, int slot, int layer, int kv, const float *v, int n)
{
    struct paged p = state_paged(&r->s, COMP_DRAFT, layer, kv);
    for (int t = 0; t < n; t++)
        for (int h = 0; h < HEADS; h++) {
            char *page = (char *)p.base + state_pages(&r->s, slot)[t / p.page] * p.stride;
            memcpy(page + (h * p.page + t % p.page) * DIM * 4, v + (t * HEADS + h) * DIM, DIM * 4);
        }
}

static void inject_golden(const struct rig *r, int slot, const char *group, int n)
{
    for (int l = 0; l < LAYERS; l++)
        for (int kv = 0; kv < 2; kv++) {
            float *v = golden_layer(group, l, kv ? "V" : "K", (int64_t)n * HEADS * DIM);
            inject(r, slot, l, kv, v, n);
            mem_free(v);
        }
}

struct shown { /* copies of the probe's values */
    float *layer[LAYERS], *y;
    int rows;
};

static void keep(void *ctx, const char *name, int layer, const float *x, int rows, int64_t ld, int cols)
{
    struct shown *s = ctx;
    float **to = strcmp(name, "draft_layer_out") == 0 ? &s->layer[layer] : strcmp(name, "draft_y") == 0 ? &s->y : NULL;
    if (!to) return;
    ck_assert_int_eq(cols, HIDDEN);
    *to = realloc(*to, (size_t)rows * HIDDEN * 4);
    for (int r = 0; r < rows; r++) memcpy(*to + r * HIDDEN, x + r * ld, HIDDEN * 4);
    s->rows = rows;
}

static void drop(struct shown *s)
{
    for (int l = 0; l < LAYERS; l++) free(s->layer[l]);
    free(s->y);
    memset(s, 0, sizeof *s);
}

/* one block of n_seq sequences; id and logits of the rows of all of them */
static void run_block(struct rig *r, const struct draft_seq *seq, int n_seq, int block, int32_t *id, float *logits,
                      struct shown *s)
{
    struct probe probe = {s, keep};
    OK(draft_block(r->d, r->t, &r->s, seq, n_seq, block, id, s ? &probe : NULL));
    if (logits) OK(target_gather_logits(r->t, logits));
}

static void compare_block(struct rig *r, int slot, const char *group, int n, const char *source)
{
    int32_t id[BLOCK - 1];
    float *logits = malloc((BLOCK - 1) * VOCAB * 4);
    struct shown s = {0};
    struct draft_seq seq = {slot, n, anchor_of(group)};
    double layers = 0, y = 0, log = 0;
    run_block(r, &seq, 1, BLOCK, id, logits, &s);
    for (int l = 0; l < LAYERS; l++) {
        char name[32];
        snprintf(name, sizeof name, "block/layer_out%d", l);
        float *want = golden(group, name, BLOCK * HIDDEN);
        judge(group, name, s.layer[l], want, BLOCK * HIDDEN, &layers);
        mem_free(want);
    }
    float *want = golden(group, "block/y", BLOCK * HIDDEN);
    judge(group, "block/y", s.y, want + HIDDEN, (BLOCK - 1) * HIDDEN, &y); /* slot 0 predicts nothing */
    mem_free(want);
    want = golden(group, "block/logits", BLOCK * VOCAB);
    judge(group, "block/logits", logits, want + VOCAB, (BLOCK - 1) * VOCAB, &log);
    mem_free(want);
    int m;
    int32_t *drafts = golden_ids(group, "block/drafts", &m);
    ck_assert_int_eq(m, BLOCK - 1);
    ck_assert_mem_eq(drafts, id, sizeof id);
    mem_free(drafts);
    printf("%s, %s: worst relative error: layers %.2g, y %.2g, logits %.2g\n", group, source, layers, y, log);
    drop(&s);
    free(logits);
}

START_TEST(block_matches_goldens)
{
    const char *group = prompts[_i / 2];
    struct rig r;
    int n;
    struct rig_spec p = plain_rig;
    p.page = _i % 2 ? 7 : 16; /* a page size that divides nothing, too */
    rig_open(&r, &p);
    int32_t *ids = golden_ids(group, "ids", &n);
    int slot = rig_admit(&r, n + BLOCK);
    inject_golden(&r, slot, group, n);
    compare_block(&r, slot, group, n, "golden K/V");
    int other = rig_admit(&r, n + BLOCK);
    rig_prefill(&r, other, ids, n, 37);
    compare_block(&r, other, group, n, "own K/V");
    mem_free(ids);
    rig_close(&r);
}
END_TEST

START_TEST(noise_never_enters_the_caches)
{
    struct rig r;
    int n;
    rig_open(&r, &plain_rig);
    int32_t *ids = golden_ids("p37", "ids", &n), id[BLOCK - 1];
    int slot = rig_admit(&r, n + BLOCK);
    rig_prefill(&r, slot, ids, n, 37);
    char *before = malloc(r.s.arena.bytes);
    memcpy(before, r.s.arena.p, r.s.arena.bytes);
    struct draft_seq seq = {slot, n, anchor_of("p37")};
    run_block(&r, &seq, 1, BLOCK, id, NULL, NULL);
    ck_assert_mem_eq(before, r.s.arena.p, r.s.arena.bytes);
    free(before);
    mem_free(ids);
    rig_close(&r);
}
END_TEST

/* rows of the first layer's output that differ */
static unsigned changed(const struct shown *a, const struct shown *b, int layer)
{
    unsigned mask = 0;
    for (int j = 0; j < BLOCK; j++)
        if (memcmp(a->layer[layer] + j * HIDDEN, b->layer[layer] + j * HIDDEN, HIDDEN * 4) != 0) mask |= 1u << j;
    return mask;
}

/* disturb one context row of one layer, see which rows of that layer's output notice */
static unsigned noticed_by(struct rig *r, const struct draft_seq *seq, const struct shown *calm, int layer, int kv, int pos)
{
    struct paged p = state_paged(&r->s, COMP_DRAFT, layer, kv);
    char *page = (char *)p.base + state_pages(&r->s, seq->slot)[pos / p.page] * p.stride;
    float held[HEADS], big = 3.5f;
    int32_t id[BLOCK - 1];
    struct shown s = {0};
    for (int h = 0; h < HEADS; h++) {
        memcpy(&held[h], page + (h * p.page + pos % p.page) * DIM * 4, 4);
        memcpy(page + (h * p.page + pos % p.page) * DIM * 4, &big, 4);
    }
    run_block(r, seq, 1, BLOCK, id, NULL, &s);
    for (int h = 0; h < HEADS; h++) memcpy(page + (h * p.page + pos % p.page) * DIM * 4, &held[h], 4);
    unsigned mask = changed(calm, &s, layer);
    drop(&s);
    return mask;
}

/* Which block rows see context position p: j with p >= P + j - (WINDOW - 1), that is j <= p + WINDOW - 1 - P. */
static unsigned window_mask(int layer, int pos, int p)
{
    int last = layer < 2 ? pos + WINDOW - 1 - p : BLOCK - 1; /* layers 0 and 1 slide, 2 is full */
    if (last < 0) return 0;
    return last >= BLOCK - 1 ? (1u << BLOCK) - 1 : (1u << (last + 1)) - 1;
}

START_TEST(windows_are_exact_and_nothing_past_the_context_is_read)
{
    struct rig r;
    int n;
    rig_open(&r, &plain_rig);
    int32_t *ids = golden_ids("p150", "ids", &n), id[BLOCK - 1];
    int slot = rig_admit(&r, n + BLOCK);
    rig_prefill(&r, slot, ids, n, 150);
    static const int context[] = {150, 64, 63, 65, 80, 16, 17, 1};
    for (size_t c = 0; c < sizeof context / sizeof context[0]; c++) {
        int p = context[c];
        struct draft_seq seq = {slot, p, 123};
        struct shown calm = {0};
        run_block(&r, &seq, 1, BLOCK, id, NULL, &calm);
        for (int l = 0; l < LAYERS; l++)
            for (int kv = 0; kv < 2; kv++) {
                const int at[] = {0, p - 1, p - WINDOW - 1, p - WINDOW, p - WINDOW + 1, p - WINDOW + 9, p - 48, p, p + 3};
                for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
                    if (at[i] < 0 || at[i] >= n) continue;
                    unsigned want = at[i] < p ? window_mask(l, at[i], p) : 0; /* rows past the context are dead */
                    unsigned got = noticed_by(&r, &seq, &calm, l, kv, at[i]);
                    ck_assert_msg(got == want, "context %d, layer %d, %s row %d: seen by %x, must be %x", p, l,
                                  kv ? "V" : "K", at[i], got, want);
                }
            }
        drop(&calm);
    }
    mem_free(ids);
    rig_close(&r);
}
END_TEST

START_TEST(an_empty_context_is_legal)
{
    struct rig r;
    rig_open(&r, &plain_rig);
    struct draft_seq seq = {rig_admit(&r, BLOCK), 0, 17};
    int32_t id[BLOCK - 1];
    struct shown s = {0};
    run_block(&r, &seq, 1, BLOCK, id, NULL, &s);
    for (int i = 0; i < BLOCK * HIDDEN; i++) ck_assert(isfinite(s.layer[LAYERS - 1][i]));
    for (int i = 0; i < BLOCK - 1; i++) ck_assert(id[i] >= 0 && id[i] < VOCAB);
    drop(&s);
    rig_close(&r);
}
END_TEST

START_TEST(many_sequences_equal_one_at_a_time)
{
    enum { N = 7 };
    static const int pos[N] = {5, 37, 150, 64, 1, 16, 99};
    static const int blocks[] = {16, 8, 2};
    struct rig r;
    int n;
    struct rig_spec p = plain_rig;
    p.n_slots = N;
    rig_open(&r, &p);
    int32_t *ids = golden_ids("p150", "ids", &n);
    struct draft_seq seq[N];
    for (int i = 0; i < N; i++) {
        seq[i] = (struct draft_seq){rig_admit(&r, 200), pos[i], 100 + i};
        rig_prefill(&r, seq[i].slot, ids, pos[i], 150);
    }
    float *all = malloc((size_t)N * (BLOCK - 1) * VOCAB * 4), *one = malloc((BLOCK - 1) * VOCAB * 4);
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        int block = blocks[b], m = block - 1;
        int32_t id[N * (BLOCK - 1)], alone[BLOCK - 1];
        run_block(&r, seq, N, block, id, all, NULL);
        for (int i = 0; i < N; i++) {
            run_block(&r, &seq[i], 1, block, alone, one, NULL);
            ck_assert_mem_eq(alone, id + i * m, (size_t)m * 4);
            ck_assert_mem_eq(one, all + (size_t)(i * m) * VOCAB, (size_t)m * VOCAB * 4);
        }
    }
    free(all);
    free(one);
    mem_free(ids);
    rig_close(&r);
}
END_TEST

/* rows of a context call may come from several sequences, in any packing */
START_TEST(context_rows_do_not_depend_on_their_company)
{
    struct rig r;
    int n;
    struct rig_spec p = plain_rig;
    rig_open(&r, &p);
    int32_t *ids = golden_ids("p150", "ids", &n);
    float *sum = golden("p150", "sum", (int64_t)n * HIDDEN);
    mem_free(ids);
    int whole = rig_admit(&r, n), a = rig_admit(&r, n), b = rig_admit(&r, n);
    struct batch_seq one = {.slot = whole, .n_rows = n};
    OK(draft_context(r.d, &r.s, sum, &one, 1));
    for (int at = 0; at < n;) { /* 11 rows to a, 3 rows to b, in one call, from the same positions */
        int m = n - at < 11 ? n - at : 11, k = m < 3 ? m : 3;
        float acc[14 * HIDDEN];
        memcpy(acc, sum + at * HIDDEN, (size_t)k * HIDDEN * 4);
        memcpy(acc + k * HIDDEN, sum + at * HIDDEN, (size_t)m * HIDDEN * 4);
        struct batch_seq two[2] = {{.slot = b, .n_rows = k, .pos0 = at}, {.slot = a, .row0 = k, .n_rows = m, .pos0 = at}};
        OK(draft_context(r.d, &r.s, acc, two, 2));
        at += m;
    }
    float x[DIM], y[DIM], z[DIM];
    for (int l = 0; l < LAYERS; l++)
        for (int kv = 0; kv < 2; kv++)
            for (int t = 0; t < n; t++)
                for (int h = 0; h < HEADS; h++) {
                    rig_row(&r, COMP_DRAFT, l, kv, whole, t, h, DIM, x);
                    rig_row(&r, COMP_DRAFT, l, kv, a, t, h, DIM, y);
                    ck_assert_mem_eq(x, y, sizeof x);
                    if (t % 11 >= 3) continue;
                    rig_row(&r, COMP_DRAFT, l, kv, b, t, h, DIM, z);
                    ck_assert_mem_eq(x, z, sizeof x);
                }
    mem_free(sum);
    rig_close(&r);
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------------------- */

START_TEST(parts_that_are_not_loaded_refuse_their_calls)
{
    struct rig r;
    rig_open(&r, &plain_rig);
    struct tp_comm self = comm_self();
    struct draft_spec p = {.parts = DRAFT_FC, .n_taps = 2, .tap = {4, 1}, .tp = 1, .max_rows = 8, .kv = OPS_KV_FP32};
    struct draft *d;
    struct batch_seq seq = {.slot = rig_admit(&r, 32), .n_rows = 4};
    struct draft_seq block = {seq.slot, 4, 1};
    int32_t id[BLOCK];
    float h[9 * HIDDEN] = {0}, acc[9 * HIDDEN];
    OK(draft_open(&r.o, &r.dc, r.draft_ckpt, &p, &self, &d)); /* a prefill stage with taps 4 and 1 */
    ck_assert_int_eq(draft_weight_bytes(d), 2 * HIDDEN * HIDDEN * 2);
    OK(draft_project(d, 4, h, 8, acc, 0));
    OK(draft_project(d, 1, h, 8, acc, 1));
    ck_assert_int_eq(draft_project(d, 0, h, 8, acc, 1), ST_E_INTERNAL);
    ck_assert_int_eq(draft_project(d, TAPS, h, 8, acc, 1), ST_E_INTERNAL);
    ck_assert_int_eq(draft_project(d, -1, h, 8, acc, 1), ST_E_INTERNAL);
    ck_assert_int_eq(draft_project(d, 1, h, 9, acc, 1), ST_E_RANGE);
    ck_assert_int_eq(draft_context(d, &r.s, acc, &seq, 1), ST_E_INTERNAL);
    ck_assert_int_eq(draft_block(d, r.t, &r.s, &block, 1, BLOCK, id, NULL), ST_E_INTERNAL);
    draft_close(d);
    p.parts = DRAFT_CONTEXT;
    OK(draft_open(&r.o, &r.dc, r.draft_ckpt, &p, &self, &d));
    ck_assert_int_eq(draft_project(d, 4, h, 8, acc, 0), ST_E_INTERNAL);
    OK(draft_context(d, &r.s, h, &seq, 1));
    ck_assert_int_eq(draft_block(d, r.t, &r.s, &block, 1, BLOCK, id, NULL), ST_E_INTERNAL);
    seq.n_rows = 9;
    ck_assert_int_eq(draft_context(d, &r.s, h, &seq, 1), ST_E_RANGE);
    draft_close(d);
    draft_close(NULL);
    p.parts = DRAFT_FC;
    p.tap[1] = 4; /* twice */
    ck_assert_int_eq(draft_open(&r.o, &r.dc, r.draft_ckpt, &p, &self, &d), ST_E_INTERNAL);
    ck_assert_int_eq(draft_block(r.d, r.t, &r.s, &block, 1, 1, id, NULL), ST_E_RANGE);
    ck_assert_int_eq(draft_block(r.d, r.t, &r.s, &block, 1, BLOCK + 1, id, NULL), ST_E_RANGE);
    ck_assert_int_eq(draft_block(r.d, r.t, &r.s, &block, 11, BLOCK, id, NULL), ST_E_RANGE);
    OK(draft_block(r.d, r.t, &r.s, NULL, 0, BLOCK, id, NULL)); /* idle */
    rig_close(&r);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "draft", 600);
    tcase_add_checked_fixture(tc, open_vectors, close_vectors);
    tcase_add_loop_test(tc, context_matches_goldens, 0, suite_some(3, 1));
    tcase_add_test(tc, prefill_chunks_give_the_same_bits);
    tcase_add_loop_test(tc, block_matches_goldens, 0, suite_some(6, 2));
    tcase_add_test(tc, noise_never_enters_the_caches);
    tcase_add_test(tc, windows_are_exact_and_nothing_past_the_context_is_read);
    tcase_add_test(tc, an_empty_context_is_legal);
    tcase_add_test(tc, many_sequences_equal_one_at_a_time);
    tcase_add_test(tc, context_rows_do_not_depend_on_their_company);
    tcase_add_test(tc, parts_that_are_not_loaded_refuse_their_calls);
}

int main(void)
{
    return suite_main_serial();
}
