/* the draft sharded over 2 to 16 ranks in one process: the drafts and logits of one rank, bit for bit */
#include "suite.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "tp_threads.h"

const char *const suite_name = "draft_ranks";

enum { BLOCK = 16, VOCAB = 4096 };

enum { PAIR = 2 };
static const int pair_pos[PAIR] = {150, 37};

struct member { /* one rank: a shard of the draft, and the whole target for embedding and head */
    struct rig r;
    const float *sum;
    enum status st;
    int32_t id[PAIR * (BLOCK - 1)];
    float *logits;
};

static void *run_member(void *arg)
{
    struct member *m = arg;
    struct draft_seq seq[PAIR];
    for (int i = 0; i < PAIR && m->st == ST_OK; i++) {
        m->st = state_admit(&m->r.s, pair_pos[i] + BLOCK, &seq[i].slot);
        seq[i].pos = pair_pos[i];
        seq[i].anchor = 220 + i;
        struct batch_seq rows = {.slot = seq[i].slot, .n_rows = seq[i].pos};
        if (m->st == ST_OK) m->st = draft_context(m->r.d, &m->r.s, m->sum, &rows, 1);
    }
    if (m->st == ST_OK) m->st = draft_block(m->r.d, m->r.t, &m->r.s, seq, PAIR, BLOCK, m->id, NULL);
    if (m->st == ST_OK) m->st = target_gather_logits(m->r.t, m->logits);
    return NULL;
}

/* the drafts of a group, and the logits of its rank 0 */
static void run_group(int tp, const float *sum, int32_t *id, float *logits)
{
    struct team team;
    struct member *m = calloc((size_t)tp, sizeof *m);
    void *arg[TEAM_MAX];
    size_t rows = PAIR * (BLOCK - 1);
    int64_t bytes = 0;
    team_open(&team, tp);
    for (int r = 0; r < tp; r++) {
        struct tp_comm comm = team_comm(&team, r);
        struct rig_spec p = {.act = ACT_FP32, .kv = KV_FP32, .page = 16, .n_slots = PAIR, .max_tokens = 200};
        p.max_rows = 160;
        p.draft_tp = tp;
        p.draft_rank = r;
        p.comm = &comm;
        rig_open(&m[r].r, &p);
        m[r].sum = sum;
        m[r].logits = malloc(rows * VOCAB * 4);
        arg[r] = &m[r];
        bytes += draft_weight_bytes(m[r].r.d);
    }
    team_run(&team, run_member, arg);
    for (int r = 0; r < tp; r++) {
        ck_assert_int_eq(m[r].st, ST_OK);
        ck_assert_mem_eq(m[r].id, m[0].id, sizeof m[0].id);
        ck_assert_mem_eq(m[r].logits, m[0].logits, rows * VOCAB * 4);
    }
    memcpy(id, m[0].id, sizeof m[0].id);
    memcpy(logits, m[0].logits, rows * VOCAB * 4);
    printf("draft tp %d: %lld weight bytes in the group\n", tp, (long long)bytes);
    for (int r = 0; r < tp; r++) {
        rig_close(&m[r].r);
        free(m[r].logits);
    }
    free(m);
    team_close(&team);
}

START_TEST(every_group_size_gives_the_same_bits)
{
    static const int tp[] = {2, 4, 8, 16};
    size_t rows = PAIR * (BLOCK - 1);
    int32_t one_id[PAIR * (BLOCK - 1)], id[PAIR * (BLOCK - 1)];
    float *one = malloc(rows * VOCAB * 4), *many = malloc(rows * VOCAB * 4);
    struct h5 *f;
    float *sum; /* a real context: the projected taps of the 150-token prompt */
    int64_t dim[H5_MAX_RANK];
    int rank;
    OK(h5_open(suite_path("tests/vectors/dflash_context.h5"), 0, &f));
    OK(h5_read_f32(f, "/p150/sum", dim, &rank, &sum));
    h5_close(f);
    ck_assert(rank == 2 && dim[0] == pair_pos[0]);
    run_group(1, sum, one_id, one);
    run_group(tp[_i], sum, id, many);
    ck_assert_mem_eq(id, one_id, sizeof id);
    ck_assert_mem_eq(many, one, rows * VOCAB * 4);
    mem_free(sum);
    free(one);
    free(many);
}
END_TEST

static const struct {
    int tp, rank, comm_rank, comm_size;
    enum status want;
} groups[] = {
    {1, 0, 0, 1, ST_OK},       {2, 1, 1, 2, ST_OK},       {8, 7, 7, 8, ST_OK},        {16, 15, 15, 16, ST_OK},
    {3, 0, 0, 3, ST_E_CONFIG}, {32, 0, 0, 32, ST_E_CONFIG}, {0, 0, 0, 0, ST_E_CONFIG}, {2, 2, 0, 2, ST_E_CONFIG},
    {2, 0, 0, 1, ST_E_INTERNAL}, {2, 0, 1, 2, ST_E_INTERNAL},
};

START_TEST(groups_are_checked)
{
    struct ops o;
    struct config c;
    struct draft_config dc;
    struct safetensors *ckpt;
    struct draft *d = NULL;
    OK(ops_cpu_open(ACT_FP32, NULL, &o));
    OK(config_load(suite_path("inputs/k3-nano"), &c));
    OK(draft_config_load(suite_path("inputs/k3-nano-dflash"), &c, &dc));
    OK(safetensors_open(suite_path("inputs/k3-nano-dflash"), &ckpt));
    struct tp_comm comm = comm_self();
    comm.rank = groups[_i].comm_rank;
    comm.size = groups[_i].comm_size;
    struct draft_spec p = {.parts = DRAFT_BLOCK, .tp = groups[_i].tp, .tp_rank = groups[_i].rank, .max_rows = 16};
    ck_assert_int_eq(draft_open(&o, &dc, ckpt, &p, &comm, &d), groups[_i].want);
    draft_close(d);
    safetensors_close(ckpt);
    o.close(&o);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "draft ranks", 600);
    tcase_add_loop_test(tc, every_group_size_gives_the_same_bits, 0, 4);
    tcase_add_loop_test(tc, groups_are_checked, 0, sizeof groups / sizeof groups[0]);
}

int main(void)
{
    return suite_main_serial();
}
