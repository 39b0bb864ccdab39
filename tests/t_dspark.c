/* the DSpark draft: context, block, Markov head and confidence against the goldens and against plain arithmetic */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "draft_dir.h"
#include "draft_goldens.h"
#include "model/draft_weights.h"
#include "rig.h"
#include "tp_threads.h"

const char *const suite_name = "dspark";

enum { HIDDEN = 256, HEADS = 8, DIM = 32, GAMMA = 7, VOCAB = 4096, LAYERS = 2, RANK = 32 };
static const char *const prompts[] = {"p5", "p37", "p150"};

static void open_vectors(void) { OK(h5_open(suite_path("tests/vectors/dspark_context.h5"), 0, &vectors)); }
static void close_vectors(void) { h5_close(vectors); }

static void judge(const char *group, const char *what, const float *a, const float *b, int64_t n)
{
    double e = rig_error(a, b, n);
    printf("%s %s: relative error %.2g\n", group, what, e);
    ck_assert_msg(e <= bound, "%s %s: relative error %.3g", group, what, e);
}

static struct rig_spec spark_rig(void)
{
    return (struct rig_spec){.act = ACT_FP32, .kv = KV_FP32, .page = 16, .n_slots = 8, .max_tokens = 200, .max_rows = 160,
                             .draft = suite_path("inputs/k3-nano-dspark"), .confidence = 1};
}

/* ---- context and block ------------------------------------------------------------------------------ */

struct shown { float layer[LAYERS][GAMMA * HIDDEN], y[GAMMA * HIDDEN]; };

static void keep(void *ctx, const char *name, int layer, const float *x, int rows, int64_t ld, int cols)
{
    struct shown *s = ctx;
    float *to = strcmp(name, "draft_layer_out") == 0 ? s->layer[layer] : strcmp(name, "draft_y") == 0 ? s->y : NULL;
    if (!to) return;
    ck_assert(rows == GAMMA && cols == HIDDEN); /* gamma rows go in, not gamma + 1 */
    for (int r = 0; r < rows; r++) memcpy(to + r * HIDDEN, x + r * ld, HIDDEN * 4);
}

static void compare_pages(const struct rig *r, int slot, const char *group, int n)
{
    float *mine = malloc((size_t)n * HEADS * DIM * 4);
    for (int l = 0; l < LAYERS; l++)
        for (int kv = 0; kv < 2; kv++) {
            char path[32];
            snprintf(path, sizeof path, "layer%d/%s", l, kv ? "V" : "K");
            float *want = golden(group, path, (int64_t)n * HEADS * DIM);
            for (int p = 0; p < n; p++)
                for (int h = 0; h < HEADS; h++)
                    rig_row(r, COMP_DRAFT, l, kv, slot, p, h, DIM, mine + (p * HEADS + h) * DIM);
            judge(group, path, mine, want, (int64_t)n * HEADS * DIM);
            mem_free(want);
        }
    free(mine);
}

static void compare_block(struct rig *r, const struct draft_seq *seq, const char *group)
{
    int32_t id[GAMMA];
    int m;
    struct shown s;
    struct probe probe = {&s, keep};
    float *logits = malloc(GAMMA * VOCAB * 4);
    OK(draft_block(r->d, r->t, &r->s, seq, 1, GAMMA + 1, id, &probe));
    OK(target_gather_logits(r->t, logits));
    const struct { const char *name; const float *mine; int64_t n; } row[] = {
        {"block/layer_out0", s.layer[0], GAMMA * HIDDEN}, {"block/layer_out1", s.layer[1], GAMMA * HIDDEN},
        {"block/y", s.y, GAMMA * HIDDEN}, {"block/logits_corrected", logits, GAMMA * VOCAB},
        {"block/confidence", draft_confidence(r->d), GAMMA}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        float *want = golden(group, row[i].name, row[i].n);
        judge(group, row[i].name, row[i].mine, want, row[i].n);
        mem_free(want);
    }
    int32_t *drafts = golden_ids(group, "block/drafts", &m);
    ck_assert_int_eq(m, GAMMA);
    ck_assert_mem_eq(drafts, id, sizeof id);
    mem_free(drafts);
    free(logits);
}

START_TEST(context_and_block_match_the_goldens)
{
    const char *group = prompts[_i];
    struct rig r;
    struct rig_spec p = spark_rig();
    int n;
    rig_open(&r, &p);
    int32_t *ids = golden_ids(group, "ids", &n);
    struct draft_seq seq = {rig_admit(&r, n + GAMMA + 1), n, anchor_of(group)};
    ck_assert_int_eq(rig_prefill(&r, seq.slot, ids, n, 37), seq.anchor);
    compare_pages(&r, seq.slot, group, n);
    compare_block(&r, &seq, group);
    mem_free(ids);
    rig_close(&r);
}
END_TEST

/* contexts of several lengths in one rig */
static void fill_seqs(struct rig *r, struct draft_seq *seq, int n_seq)
{
    static const int pos[] = {5, 37, 150, 64, 1, 16, 99};
    int n;
    int32_t *ids = golden_ids("p150", "ids", &n);
    for (int i = 0; i < n_seq; i++) {
        seq[i] = (struct draft_seq){rig_admit(r, 200), pos[i], 100 + 13 * i};
        rig_prefill(r, seq[i].slot, ids, pos[i], 150);
    }
    mem_free(ids);
}

START_TEST(many_sequences_equal_one_at_a_time)
{
    enum { N = 7 };
    static const int blocks[] = {8, 5, 2};
    struct rig r;
    struct rig_spec p = spark_rig();
    struct draft_seq seq[N];
    rig_open(&r, &p);
    fill_seqs(&r, seq, N);
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        int m = blocks[b] - 1;
        int32_t id[N * GAMMA], alone[GAMMA];
        float conf[N * GAMMA];
        OK(draft_block(r.d, r.t, &r.s, seq, N, blocks[b], id, NULL));
        memcpy(conf, draft_confidence(r.d), (size_t)(N * m) * sizeof *conf);
        for (int i = 0; i < N; i++) {
            OK(draft_block(r.d, r.t, &r.s, &seq[i], 1, blocks[b], alone, NULL));
            ck_assert_mem_eq(alone, id + i * m, (size_t)m * 4);
            ck_assert_mem_eq(draft_confidence(r.d), conf + i * m, (size_t)m * 4);
            for (int k = 0; k < m; k++) ck_assert(alone[k] >= 0 && alone[k] < VOCAB);
        }
    }
    int32_t id[GAMMA + 1];
    ck_assert_int_eq(draft_block(r.d, r.t, &r.s, seq, 1, 1, id, NULL), ST_E_RANGE);
    ck_assert_int_eq(draft_block(r.d, r.t, &r.s, seq, 1, GAMMA + 2, id, NULL), ST_E_RANGE);
    OK(draft_block(r.d, r.t, &r.s, NULL, 0, GAMMA + 1, id, NULL)); /* idle */
    seq[0].anchor = VOCAB;
    ck_assert_int_eq(draft_block(r.d, r.t, &r.s, seq, 1, GAMMA + 1, id, NULL), ST_E_RANGE);
    rig_close(&r);
}
END_TEST

/* ---- the head by itself ------------------------------------------------------------------------------ */

static float wide(const void *p, int64_t i)
{
    uint16_t h;
    memcpy(&h, (const char *)p + 2 * i, 2);
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static const void *tensor(const struct rig *r, const char *name, int64_t a, int64_t b)
{
    struct tensor t;
    const int64_t dim[2] = {a, b};
    OK(safetensors_get(r->draft_ckpt, name, ST_DT_BF16, b ? 2 : 1, dim, &t));
    return t.data;
}

/* one slot by the formula, in double: logits (U changed in place) and confidence */
static double plain_slot(const struct rig *r, double *u, const float *y, int32_t before)
{
    const void *w1 = tensor(r, "markov_head.markov_w1.weight", VOCAB, RANK), *w2 = tensor(r, "markov_head.markov_w2.weight", VOCAB, RANK);
    const void *w = tensor(r, "confidence_head.proj.weight", 1, HIDDEN + RANK);
    double c = wide(tensor(r, "confidence_head.proj.bias", 1, 0), 0);
    for (int v = 0; v < VOCAB; v++)
        for (int k = 0; k < RANK; k++) u[v] += (double)wide(w2, v * RANK + k) * wide(w1, (int64_t)before * RANK + k);
    for (int k = 0; k < HIDDEN; k++) c += (double)wide(w, k) * y[k];
    for (int k = 0; k < RANK; k++) c += (double)wide(w, HIDDEN + k) * wide(w1, (int64_t)before * RANK + k);
    return 1 / (1 + exp(-c));
}

/* Three sequences with features and anchors of their own. Each slot's expectation starts from the token that the head itself
 * chose before, so that a near-tie in one slot cannot excuse the next. */
START_TEST(the_head_is_its_formula)
{
    enum { N = 3 };
    struct rig r;
    struct rig_spec p = spark_rig();
    struct draft_seq seq[N] = {{0, 1, 17}, {1, 1, 4095}, {2, 1, 0}};
    int32_t id[N * GAMMA];
    rig_open(&r, &p);
    float *y = malloc(N * GAMMA * HIDDEN * 4), *u0 = malloc(N * GAMMA * VOCAB * 4), *u1 = malloc(N * GAMMA * VOCAB * 4);
    double *u = malloc(VOCAB * sizeof *u), worst = 0;
    for (int g = 0; g < N; g++) { /* real features: blocks of the goldens, rows [slot][sequence] */
        float *b = golden(prompts[g], "block/y", GAMMA * HIDDEN);
        for (int k = 0; k < GAMMA; k++) memcpy(y + (k * N + g) * HIDDEN, b + k * HIDDEN, HIDDEN * 4);
        mem_free(b);
    }
    OK(target_head(r.t, y, N * GAMMA));
    OK(target_gather_logits(r.t, u0));
    OK(draft_markov(r.d, r.t, seq, NULL, N, GAMMA, y, id));
    OK(target_gather_logits(r.t, u1));
    for (int g = 0; g < N; g++)
        for (int k = 0; k < GAMMA; k++) {
            const float *got = u1 + (k * N + g) * VOCAB;
            int best = 0;
            for (int v = 0; v < VOCAB; v++) u[v] = u0[(k * N + g) * VOCAB + v];
            double c = plain_slot(&r, u, y + (k * N + g) * HIDDEN, k ? id[g * GAMMA + k - 1] : seq[g].anchor);
            for (int v = 0; v < VOCAB; v++) {
                worst = fmax(worst, fabs(got[v] - u[v]));
                if (got[v] > got[best]) best = v;
            }
            ck_assert_int_eq(id[g * GAMMA + k], best);
            ck_assert(fabs(draft_confidence(r.d)[g * GAMMA + k] - c) < 1e-5);
        }
    ck_assert_msg(worst < 1e-4, "logits differ by %g", worst);
    free(y), free(u0), free(u1), free(u);
    rig_close(&r);
}
END_TEST

START_TEST(a_damaged_row_spoils_its_own_sequence_only)
{
    enum { N = 2 };
    struct rig r;
    struct rig_spec p = spark_rig();
    struct draft_seq seq[N] = {{0, 1, 17}, {1, 1, 99}};
    int32_t id[N * GAMMA], sound[N * GAMMA];
    rig_open(&r, &p);
    float *b = golden("p37", "block/y", GAMMA * HIDDEN), y[GAMMA * N * HIDDEN];
    for (int k = 0; k < GAMMA * N; k++) memcpy(y + k * HIDDEN, b + k / N * HIDDEN, HIDDEN * 4);
    OK(target_head(r.t, y, N * GAMMA));
    OK(draft_markov(r.d, r.t, seq, NULL, N, GAMMA, y, sound));
    y[(2 * N + 1) * HIDDEN + 3] = NAN; /* slot 2 of sequence 1 */
    OK(target_head(r.t, y, N * GAMMA));
    OK(draft_markov(r.d, r.t, seq, NULL, N, GAMMA, y, id));
    ck_assert_mem_eq(id, sound, GAMMA * sizeof *id);
    ck_assert_mem_eq(id + GAMMA, sound + GAMMA, 2 * sizeof *id);
    ck_assert_int_eq(id[GAMMA + 2], -1);
    ck_assert_int_eq(target_argmax_biased(r.t, N * GAMMA - 1, 2, y, VOCAB, id), ST_E_INTERNAL); /* rows that are not there */
    ck_assert_int_eq(target_argmax_biased(r.t, 0, 1, y, VOCAB / 2, id), ST_E_INTERNAL); /* a bias of other columns */
    mem_free(b);
    rig_close(&r);
}
END_TEST

/* ---- ranks ---------------------------------------------------------------------------------------------- */

struct member {
    struct rig r;
    struct draft_seq seq[2];
    const float *sum;
    enum status st;
    int32_t id[2 * GAMMA];
    float conf[2 * GAMMA], *logits;
};

static void *run_member(void *arg)
{
    struct member *m = arg;
    for (int i = 0; i < 2 && m->st == ST_OK; i++) {
        struct batch_seq rows = {.slot = m->seq[i].slot, .n_rows = m->seq[i].pos};
        m->st = draft_context(m->r.d, &m->r.s, m->sum, &rows, 1);
    }
    if (m->st == ST_OK) m->st = draft_block(m->r.d, m->r.t, &m->r.s, m->seq, 2, GAMMA + 1, m->id, NULL);
    memcpy(m->conf, draft_confidence(m->r.d), sizeof m->conf);
    if (m->st == ST_OK) m->st = target_gather_logits(m->r.t, m->logits);
    return NULL;
}

/* the target is sharded like the draft: the head's bias belongs to the rank's columns of the vocabulary */
static struct member *run_group(int tp, const float *sum)
{
    struct team team;
    struct member *m = calloc((size_t)tp, sizeof *m);
    void *arg[TEAM_MAX];
    team_open(&team, tp);
    for (int r = 0; r < tp; r++) {
        struct tp_comm comm = team_comm(&team, r);
        struct rig_spec p = spark_rig();
        p.tp = tp > 1 ? tp : 0;
        p.rank = r;
        p.comm = tp > 1 ? &comm : NULL;
        rig_open(&m[r].r, &p);
        m[r].sum = sum;
        m[r].logits = malloc(2 * GAMMA * VOCAB * 4);
        for (int i = 0; i < 2; i++) m[r].seq[i] = (struct draft_seq){rig_admit(&m[r].r, 200), i ? 37 : 150, 220 + i};
        arg[r] = &m[r];
    }
    team_run(&team, run_member, arg);
    for (int r = 0; r < tp; r++) {
        ck_assert_int_eq(m[r].st, ST_OK);
        ck_assert_mem_eq(m[r].id, m[0].id, sizeof m[0].id);
        ck_assert_mem_eq(m[r].conf, m[0].conf, sizeof m[0].conf);
        rig_close(&m[r].r);
        if (r) free(m[r].logits);
    }
    team_close(&team);
    return m;
}

START_TEST(every_group_size_gives_the_same_bits)
{
    static const int tp[] = {2, 4, 8};
    float *sum = golden("p150", "sum", 150 * HIDDEN);
    struct member *one = run_group(1, sum), *many = run_group(tp[_i], sum);
    ck_assert_mem_eq(one->id, many->id, sizeof one->id);
    ck_assert_mem_eq(one->conf, many->conf, sizeof one->conf);
    ck_assert_mem_eq(one->logits, many->logits, 2 * GAMMA * VOCAB * 4);
    free(one->logits), free(many->logits);
    free(one), free(many);
    mem_free(sum);
}
END_TEST

/* ---- what a checkpoint may be -------------------------------------------------------------------------- */

START_TEST(the_confidence_head_is_loaded_on_demand)
{
    struct rig r;
    struct rig_spec p = spark_rig();
    p.confidence = 0;
    rig_open(&r, &p);
    ck_assert_ptr_null(draft_confidence(r.d));
    int64_t bare = draft_weight_bytes(r.d);
    rig_close(&r);
    p = spark_rig();
    p.draft = draft_dir_make("alone", "inputs/k3-nano-dspark", "{\"confidence_head_with_markov\": false}", NULL);
    struct draft *d;
    struct tp_comm self = comm_self();
    struct draft_spec s = {.parts = DRAFT_CONTEXT | DRAFT_BLOCK, .tp = 1, .max_rows = 16, .confidence = 1};
    p.no_draft = 1;
    rig_open(&r, &p);
    OK(safetensors_open(p.draft, &r.draft_ckpt));
    /* its head must be [1, hidden] then */
    ck_assert_int_eq(draft_open(&r.o, &r.dc, r.draft_ckpt, &s, &self, &d), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "confidence_head.proj.weight"));
    r.dc.confidence = 0;
    ck_assert_int_eq(draft_open(&r.o, &r.dc, r.draft_ckpt, &s, &self, &d), ST_E_CONFIG);
    s.confidence = 0;
    s.parts = DRAFT_CONTEXT; /* a prefill stage holds no head */
    OK(draft_open(&r.o, &r.dc, r.draft_ckpt, &s, &self, &d));
    ck_assert_int_lt(draft_weight_bytes(d), bare - 2 * 2 * VOCAB * RANK);
    draft_close(d);
    rig_close(&r);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "dspark", 600);
    tcase_add_checked_fixture(tc, open_vectors, close_vectors);
    tcase_add_loop_test(tc, context_and_block_match_the_goldens, 0, suite_some(3, 1));
    tcase_add_test(tc, many_sequences_equal_one_at_a_time);
    tcase_add_test(tc, the_head_is_its_formula);
    tcase_add_test(tc, a_damaged_row_spoils_its_own_sequence_only);
    tcase_add_loop_test(tc, every_group_size_gives_the_same_bits, 0, 3);
    tcase_add_test(tc, the_confidence_head_is_loaded_on_demand);
}

int main(void)
{
    return suite_main_serial();
}
