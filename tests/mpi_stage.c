#include "suite.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "nccl_double.h"
#include "pd/stage.h"
#include "pd/wait.h"
#include "pd/world.h"
#include "plain_ops.h"
#include "plan/split.h"

/* The hand-off between stages: values arrive whole in every order of delays, and a hand-off of another batch is
 * refused. */
/* np: 2 3 4 */
const char *const suite_name = "mpi_stage";

enum { HIDDEN = 24, ROWS = 10, ORDERS = 30 };

static struct config model_of(void)
{
    struct config c;
    memset(&c, 0, sizeof c);
    c.hidden = HIDDEN, c.n_layers = 8, c.res_block = 2;
    return c;
}

static struct order chunk(int k)
{
    return (struct order){.seq = k + 3,
                          .kind = ORDER_CHUNK,
                          .request = k / 3,
                          .slot = 0,
                          .generation = 1,
                          .pos0 = k % 3 * ROWS,
                          .n = 1 + k % ROWS};
}

static float value(int k, int part, int i)
{
    return (float)(rng_u64(17, (uint64_t)(k * 100 + part), (uint64_t)i) % 4096);
}

/* fill (compare 0) or count what is wrong: prefix, bank rows, accumulator of hand-off k */
static int walk(const struct ops *ops, struct flow *f, int k, int rows, int compare)
{
    int bad = 0;
    for (int part = 0; part < 2 + f->n_bank; part++) {
        if (part == 1 && !f->taps) continue;
        float *p = part == 0 ? f->prefix : part == 1 ? f->acc : f->bank + (int64_t)(part - 2) * f->cap_rows * HIDDEN;
        p = plain_host(ops, p);
        for (int i = 0; i < rows * HIDDEN; i++) {
            if (compare) bad += p[i] != value(k, part, i);
            else p[i] = value(k, part, i);
        }
    }
    return bad;
}

static enum status pass_all(const struct ops *ops, struct stage_link *l, int stage, int last, const struct config *c, int *bad)
{
    for (int k = 0; k < ORDERS; k++) {
        struct order o = chunk(k);
        struct flow *f;
        struct stage_header h = {.first_chunk_s = k * 0.5, .work_s = k * 0.25};
        TRY(stage_flow(l, &f, NULL, NULL));
        if (stage > 0) {
            TRY(stage_receive(l, &o, f, &h, NULL, NULL));
            *bad += walk(ops, f, k, o.n, 1) || h.first_chunk_s != k * 0.5 || h.work_s != k * 0.25;
            *bad += f->n_bank != k % (split_bank_rows(c->res_block, c->n_layers) + 1) || f->taps != (uint32_t)(k % 2) * 5;
        } else {
            f->n_bank = k % (split_bank_rows(c->res_block, c->n_layers) + 1);
            f->taps = (uint32_t)(k % 2) * 5;
            walk(ops, f, k, o.n, 0);
        }
        usleep((useconds_t)(rng_u64(9, (uint64_t)stage, (uint64_t)k) % 2000));
        TRY(stage_send(l, &o, f, o.n, h.first_chunk_s, h.work_s, NULL, NULL));
        *bad += last && stage_counts(l).messages != 0;
    }
    return stage_drain(l);
}

START_TEST(every_value_of_every_batch_arrives)
{
    MPI_Comm pp;
    struct config c = model_of();
    struct ops o = plain_ops(_i % 2 ? PLACE_DEVICE : PLACE_HOST);
    struct stage_link *l;
    struct nccl *n = NULL;
    int bad = 0, last = suite_rank() == suite_size() - 1;
    char why[NCCL_WHY];
    MPI_Comm_dup(MPI_COMM_WORLD, &pp);
    wait_limit(40, NULL, NULL);
    nccl_double();
    int ok = (_i < 2 || nccl_load(&n, why) == ST_OK) && stage_open(pp, &o, &c, ROWS, 2, n, 1, &l) == ST_OK;
    ok = ok && strcmp(stage_name(l), n ? "nccl" : "mpi") == 0;
    ok = ok && pass_all(&o, l, suite_rank(), last, &c, &bad) == ST_OK && bad == 0;
    ck_assert(suite_all(ok));
    stage_close(l);
    nccl_unload(n);
    wait_limit(0, NULL, NULL);
    MPI_Comm_free(&pp);
}
END_TEST

/* what stage 0 sends is not what stage 1 is executing */
static const struct { struct order sent; const char *says; } other[] = {
    {{.seq = 8, .request = 4, .pos0 = 10, .n = 6}, "order 8"},     /* another micro-batch */
    {{.seq = 7, .request = 5, .pos0 = 10, .n = 6}, "request 5"},
    {{.seq = 7, .request = 4, .pos0 = 0, .n = 6}, "position 0"},
    {{.seq = 7, .request = 4, .pos0 = 10, .n = 5}, "5 rows"},      /* token count of header and order differ */
};

START_TEST(a_hand_off_of_another_batch_is_refused)
{
    struct config c = model_of();
    struct ops o = plain_ops(PLACE_HOST);
    const struct order mine = {.seq = 7, .request = 4, .pos0 = 10, .n = 6};
    for (size_t k = 0; k < sizeof other / sizeof other[0]; k++) {
        MPI_Comm pp;
        struct stage_link *l;
        struct stage_header h;
        struct flow *f;
        MPI_Comm_dup(MPI_COMM_WORLD, &pp);
        int ok = stage_open(pp, &o, &c, ROWS, 2, NULL, 0, &l) == ST_OK && stage_flow(l, &f, NULL, NULL) == ST_OK;
        if (suite_rank() == 0) {
            f->n_bank = 1, f->taps = 1;
            ok = ok && stage_send(l, &other[k].sent, f, other[k].sent.n, 0, 0, NULL, NULL) == ST_OK;
        } else if (suite_rank() == 1) {
            ok = ok && stage_receive(l, &mine, f, &h, NULL, NULL) == ST_E_FAULT && strstr(err_last(), other[k].says) &&
                 strstr(err_last(), "order 7");
        }
        ck_assert_msg(suite_all(ok), "case %zu", k);
        /* the payload was never taken: small messages have left all the same */
        if (suite_rank() == 0) ok = stage_drain(l) == ST_OK;
        ck_assert(suite_all(ok));
        stage_close(l);
    }
}
END_TEST

/* the rank after stage 0 cannot join: that hop takes MPI, or is refused on both of its ends */
START_TEST(a_hop_without_nccl_takes_messages)
{
    struct config c = model_of();
    struct ops o = plain_ops(PLACE_DEVICE);
    struct nccl *n = NULL;
    struct stage_link *l = NULL;
    char why[NCCL_WHY];
    int bad = 0, stage = suite_rank(), last = stage == suite_size() - 1;
    MPI_Comm pp;
    MPI_Comm_dup(MPI_COMM_WORLD, &pp);
    nccl_double();
    if (stage == 1) setenv("NCCL_DOUBLE_FAIL", "init:1", 1); /* rank 1 of the pair 0, 1; in that of 1, 2 it is rank 0 */
    ck_assert(suite_all(nccl_load(&n, why) == ST_OK));
    wait_limit(40, NULL, NULL);
    int ok = stage_open(pp, &o, &c, ROWS, 2, n, 0, &l) == ST_OK;
    const char *name = suite_size() == 2 || stage == 0 ? "mpi" : stage == 1 ? "nccl and mpi" : "nccl";
    ok = ok && strcmp(stage_name(l), name) == 0 && pass_all(&o, l, stage, last, &c, &bad) == ST_OK && bad == 0;
    ck_assert(suite_all(ok));
    stage_close(l);
    if (suite_size() == 2) ck_assert(suite_all(stage_open(pp, &o, &c, ROWS, 2, n, 1, &l) == ST_E_DEVICE));
    wait_limit(0, NULL, NULL);
    unsetenv("NCCL_DOUBLE_FAIL");
    nccl_unload(n);
    MPI_Comm_free(&pp);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "stage", 100);
    tcase_add_loop_test(tc, every_value_of_every_batch_arrives, 0,
                        4); /* flows in host and in device memory, by MPI and NCCL */
    SUITE_TEST(tc, a_hop_without_nccl_takes_messages);
    SUITE_TEST(tc, a_hand_off_of_another_batch_is_refused);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
