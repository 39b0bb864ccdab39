/* scratch: the planned room for sums and packing. That it is what is allocated: mpi_nccl.c, mpi_transfer_late.c */
#include "suite.h"

#include <string.h>

#include "plan/scratch.h"
#include "plan/sum.h"
#include "plan/work.h"

const char *const suite_name = "scratch";

#define OK(expr) ck_assert_int_eq((expr), ST_OK)

struct setup {
    struct config c;
    struct draft_config d;
    struct topology t;
    struct plan_options o;
};

static void make(const char *model, const char *draft, struct group p, struct group q, int single, struct setup *s)
{
    memset(s, 0, sizeof *s);
    OK(config_load(suite_path(model), &s->c));
    OK(draft_config_load(suite_path(draft), &s->c, &s->d));
    OK(topology_make(&s->c, &s->d, &p, &q, single, &s->t));
    s->o = (struct plan_options){.page = 64, .max_tokens = 9000, .max_prompt = 8192, .concurrency = 4,
                                 .prefill_slots = 3, .staging_slots = 2, .chunk = 8192, .stripe = 1};
}

static struct rank_memory memory(const struct setup *s, int rank)
{
    struct rank_memory m;
    OK(memory_rank(&s->c, &s->d, &s->t, &s->o, rank, &m));
    ck_assert_int_eq(m.device_bytes, m.weight_bytes + m.pool_bytes + m.work_bytes + m.coll_bytes + m.ops_bytes);
    ck_assert_int_eq(m.bytes, m.device_bytes + m.window_bytes + m.pack_bytes);
    return m;
}

/* Kimi-K3, pp=8,tp=4 to tp=32: sums of a prefill and of a decode rank, packed state of a prefill rank */
START_TEST(by_way_of_the_sums)
{
    const int64_t row = 3584 + 7168; /* routed latent and shared expert travel together */
    static const enum sums_via way[3] = {SUMS_NCCL, SUMS_STAGED, SUMS_HOST};
    const int64_t prefill[3] = {4 * ((64 << 20) + 4 * 32 * 16), 4 * (16 << 20), 0};
    const int64_t decode[3] = {4 << 20, 32 * 4 * 4 * row, 0}, ring[3] = {32 << 20, 32 << 20, 0};
    enum sums_via via[64];
    static struct setup s;
    const struct group eight = {8, 4, 1}, wide = {1, 32, 1};
    make("tests/data/k3-config", "tests/data/k3-dflash-config", eight, wide, 0, &s);
    for (int i = 0; i < 4; i++) { /* a plan that knows no ranks supposes a device for each of them */
        int k = i % 3;
        for (int r = 0; r < 64; r++) via[r] = way[k];
        s.o.sums = i < 3 ? via : NULL;
        struct rank_memory p = memory(&s, 0), q = memory(&s, 63);
        ck_assert(p.coll_bytes == prefill[k] && q.coll_bytes == decode[k]);
        ck_assert(p.pack_bytes == ring[k] && q.pack_bytes == 0);
    }
    s.o.sums = via; /* each rank by itself */
    for (int r = 0; r < 64; r++) via[r] = way[r % 3];
    for (int r = 0; r < 3; r++) ck_assert_int_eq(memory(&s, r).coll_bytes, prefill[r]);
    s.c.latent = 0; /* the hidden state of a row is then the most */
    ck_assert_int_eq(scratch_sum_values(&s.c, &s.t.prefill, 10), 71680);
}
END_TEST

START_TEST(of_few_ranks)
{
    static struct setup s;
    make("inputs/k3-nano", "inputs/k3-nano-dflash", (struct group){1, 1, 0}, (struct group){1, 8, 0}, 1, &s);
    struct rank_memory m = memory(&s, 7);
    ck_assert(m.coll_bytes > 0 && m.pack_bytes == 0); /* single: sums, but nothing is sent */
    make("inputs/k3-nano", "inputs/k3-nano-dflash", (struct group){2, 1, 0}, (struct group){1, 1, 0}, 0, &s);
    s.o.max_prompt = s.o.max_tokens = 64;
    m = memory(&s, 0);
    ck_assert(m.coll_bytes == 0 && m.pack_bytes % 4096 == 0); /* a rank alone adds to nobody */
    ck_assert(m.pack_bytes > 64 << 10 && m.pack_bytes < 32 << 20);
    int64_t two = m.pack_bytes, one = 0;
    s.o.staging_slots = 1; /* half, but for the rounding to pages */
    OK(scratch_pack_bytes(&s.c, &s.d, &s.t, &s.o, 0, 0, &one));
    ck_assert(2 * one >= two && 2 * one < two + 2 * 4096);
    ck_assert_int_eq(scratch_pack_bytes(&s.c, &s.d, &s.t, &s.o, 2, 0, &one), ST_E_CONFIG);
}
END_TEST

START_TEST(least_and_most)
{
    ck_assert(scratch_sum_bytes(SUMS_STAGED, 1, 2) == 2 * 4096 && scratch_sum_bytes(SUMS_NCCL, 0, 2) == 4 << 20);
    ck_assert(scratch_sum_bytes(SUMS_STAGED, 4096, 1) == 0 && scratch_sum_bytes(SUMS_NCCL, 4096, 1) == 0);
    const int64_t most[] = {64 << 20, (64 << 20) + 1, INT64_C(939524096), SUM_MAX}; /* values; all but the first in pieces */
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(scratch_slot_bytes(most[i]), 16 << 20);
        ck_assert_int_eq(scratch_sum_bytes(SUMS_STAGED, most[i], 4), 4 * (16 << 20));
        ck_assert_int_eq(scratch_sum_bytes(SUMS_NCCL, most[i], 4), (256 << 20) + 4 * 4 * 16 * 32);
    }
    static struct setup s;
    make("inputs/k3-nano", "inputs/k3-nano-dflash", (struct group){2, 1, 0}, (struct group){1, 1, 0}, 0, &s);
    s.o.block = 16;
    struct work_rows p = work_rows(&s.t, &s.o, topology_role(&s.t, 0));
    struct work_rows q = work_rows(&s.t, &s.o, topology_role(&s.t, 2));
    ck_assert(p.chunk == 8192 && p.decode == 0 && p.most == 8192 && q.chunk == 0 && q.decode == 64 && q.most == 64);
}
END_TEST

/* operations work on a device: the largest of them, at most in pieces; expanding keys and values takes its own */
START_TEST(of_operations)
{
    static struct setup s;
    enum sums_via host[64];
    const struct group eight = {8, 4, 4}, wide = {1, 32, 4};
    make("tests/data/k3-config", "tests/data/k3-dflash-config", eight, wide, 0, &s);
    int64_t p = memory(&s, 0).ops_bytes, q = memory(&s, 63).ops_bytes;
    ck_assert(p == OPS_MOE_BYTES / 4 * 5 + OPS_FIXED && q > OPS_FIXED && q < p);
    s.o.chunk = 1 << 10; /* a piece is a piece */
    ck_assert_int_eq(memory(&s, 0).ops_bytes, p);
    s.o.chunk = 64; /* 64 rows: sixteen pairs each, by 32 block groups, beside their inputs */
    int64_t few = 64 * (16 * (3072 * 8 + 32 * 3584 * 4 + 64) + 3584 * 6);
    ck_assert_int_eq(memory(&s, 0).ops_bytes, few / 4 * 5 + OPS_FIXED);
    s.o.max_prompt = s.o.max_tokens = 131072;
    ck_assert_int_eq(memory(&s, 0).ops_bytes, few / 4 * 5 + OPS_FIXED);
    s.o.expanded = 1; /* latent rows, keys and values of 24 heads: 1.6 GiB */
    few += (int64_t)131072 * 2 * (576 + 24 * 256);
    ck_assert_int_eq(memory(&s, 0).ops_bytes, few / 4 * 5 + OPS_FIXED);
    ck_assert(memory(&s, 63).ops_bytes <= q); /* decode ranks do not prefill */
    for (int r = 0; r < 64; r++) host[r] = SUMS_HOST;
    s.o.sums = host;
    ck_assert_int_eq(memory(&s, 0).ops_bytes, 0); /* on the CPU it is not worth a word */
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "scratch", 60);
    SUITE_TEST(tc, by_way_of_the_sums);
    SUITE_TEST(tc, of_few_ranks);
    SUITE_TEST(tc, least_and_most);
    SUITE_TEST(tc, of_operations);
}

int main(void)
{
    return suite_main_serial();
}
