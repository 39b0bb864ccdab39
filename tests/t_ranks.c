/* tensor and expert parallelism in one process: every group size gives the bits of one rank */
#include "nano.h"

#include <stdio.h>

#include "model/weights.h"
#include "tp_threads.h"

const char *const suite_name = "ranks";

enum { PROMPT = 40, ROWS = 16 };

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

static const struct tp_case { int tp, ep; } tp_case[] = {{2, 1}, {2, 2}, {4, 2}, {4, 4}, {8, 4}, {8, 8}};

struct tp_job { /* one rank's thread */
    struct nano_rank r;
    int slot, n_got;
    enum status st;
    float *got;      /* rank 0: logits of prefill, verify rows, decode: gathered */
    float embed[4 * 256];
    int32_t best[1 + ROWS + 1];
};

/* prefill, verify with a partial commit, one decode step; full logits on rank 0, greedy tokens on all */
static enum status tp_script(struct tp_job *j)
{
    struct nano_rank *r = &j->r;
    int v = model.c.vocab, keep = 5, n = 0;
    struct batch_seq q;
    struct batch b = nano_batch(BATCH_PREFILL, &q, j->slot, 0, PROMPT, ids);
    TRY(target_forward(r->t, &r->s, &b, &r->f, NULL, NULL));
    TRY(target_gather_logits(r->t, j->got));
    TRY(target_argmax(r->t, j->best));
    n += 1;
    b = nano_batch(BATCH_VERIFY, &q, j->slot, PROMPT, ROWS, ids + PROMPT);
    TRY(target_forward(r->t, &r->s, &b, &r->f, NULL, NULL));
    TRY(target_gather_logits(r->t, j->got + (int64_t)n * v));
    TRY(target_argmax(r->t, j->best + n));
    TRY(target_commit(r->t, &r->s, &b, &keep));
    n += ROWS;
    b = nano_batch(BATCH_DECODE, &q, j->slot, PROMPT + keep, 1, ids + PROMPT + keep);
    TRY(target_forward(r->t, &r->s, &b, &r->f, NULL, NULL));
    TRY(target_gather_logits(r->t, j->got + (int64_t)n * v));
    TRY(target_argmax(r->t, j->best + n));
    return target_embed(r->t, ids, 4, j->embed);
}

static void *tp_thread(void *arg)
{
    struct tp_job *j = arg;
    j->st = tp_script(j);
    return NULL;
}

static void tp_open(struct tp_job *j, struct nano_spec spec, int tp, int rank, int ep, struct team *team)
{
    spec.tp = tp;
    spec.tp_rank = rank;
    spec.ep = ep;
    if (team) spec.comm = team_comm(team, rank);
    nano_rank_open(&model, &spec, &j->r);
    j->slot = nano_admit(&j->r);
    j->got = calloc((size_t)((2 + ROWS) * model.c.vocab), sizeof *j->got);
}

static void tp_close(struct tp_job *j)
{
    free(j->got);
    nano_rank_close(&j->r);
}

static void tp_compare(const struct tp_case *k, int act, const struct tp_job *one, struct tp_job *job)
{
    const struct config *c = &model.c;
    size_t bytes = (size_t)((2 + ROWS) * c->vocab) * sizeof *one->got;
    for (int r = 0; r < k->tp; r++) {
        struct tp_job *j = &job[r];
        ck_assert_msg(memcmp(one->best, j->best, sizeof one->best) == 0, "tp%dep%d rank %d: tokens differ", k->tp,
                      k->ep, r);
        ck_assert_msg(memcmp(one->embed, j->embed, sizeof one->embed) == 0, "tp%dep%d: embedding differs", k->tp,
                      k->ep);
        for (int i = 0; i < c->n_layers; i++) { /* the KDA state of a rank is a head slice of the whole */
            if (!c->is_kda[i]) continue;
            size_t part = nano_item_bytes(&j->r, COMP_KDA, i);
            const char *whole = state_item(&one->r.s, COMP_KDA, i, 0, one->slot);
            ck_assert_msg(memcmp(whole + (size_t)r * part, state_item(&j->r.s, COMP_KDA, i, 0, j->slot), part) == 0,
                          "tp%dep%d act %d: KDA state of layer %d on rank %d differs", k->tp, k->ep, act, i, r);
        }
    }
    ck_assert_msg(memcmp(one->got, job->got, bytes) == 0, "tp%dep%d act %d: logits differ from tp1", k->tp, k->ep, act);
}

START_TEST(ranks_change_nothing)
{
    static struct tp_job one, job[8]; /* large; a forked test's own copy */
    const struct tp_case *k = &tp_case[_i];
    for (int m = 0; m < 2; m++) {
        struct nano_spec spec = {.act = m ? ACT_BF16 : ACT_FP32, .max_rows = PROMPT, .max_verify_rows = ROWS};
        struct team team;
        void *arg[8];
        tp_open(&one, spec, 1, 0, 1, NULL);
        ck_assert_int_eq(tp_script(&one), ST_OK);
        team_open(&team, k->tp);
        for (int r = 0; r < k->tp; r++) {
            tp_open(&job[r], spec, k->tp, r, k->ep, &team);
            arg[r] = &job[r];
        }
        team_run(&team, tp_thread, arg);
        int64_t bytes = 0;
        for (int r = 0; r < k->tp; r++) {
            ck_assert_int_eq(job[r].st, ST_OK);
            bytes += target_weight_bytes(job[r].r.t);
        }
        ck_assert_int_lt(target_weight_bytes(job[0].r.t), target_weight_bytes(one.r.t));
        ck_assert_int_ge(bytes, target_weight_bytes(one.r.t)); /* nothing is lost, some is replicated */
        tp_compare(k, (int)spec.act, &one, job);
        for (int r = 0; r < k->tp; r++) tp_close(&job[r]);
        team_close(&team);
        tp_close(&one);
    }
}
END_TEST

START_TEST(impossible_shards_are_refused)
{
    static const struct { int tp, rank, ep; enum status st; } want[] = {
        {8, 7, 4, ST_OK}, {8, 0, 8, ST_OK},     {8, 0, 2, ST_E_CONFIG}, {4, 0, 1, ST_E_CONFIG}, {3, 0, 1, ST_E_CONFIG},
        {2, 2, 1, ST_E_CONFIG}, {4, 0, 3, ST_E_CONFIG}, {16, 0, 8, ST_E_CONFIG}};
    struct shard s;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        ck_assert_int_eq(shard_make(&model.c, want[i].tp, want[i].rank, want[i].ep, &s), want[i].st);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "ranks", 600);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, ranks_change_nothing, 0, (int)(sizeof tp_case / sizeof *tp_case));
    SUITE_TEST(tc, impossible_shards_are_refused);
}

int main(void)
{
    return suite_main_serial();
}
