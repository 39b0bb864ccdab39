#include "suite.h"

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "mpi_world.h"
#include "nccl_double.h"
#include "pd/coll.h"
#include "pd/wait.h"
#include "pd/world.h"
#include "plain_ops.h"

/* np: 1 2 3 4 8 */
const char *const suite_name = "mpi_coll";

/* NCCL: the stand-in, see nccl_double.c */
enum { VIA_MPI, VIA_SHM, VIA_NCCL, N_VIA };
static struct nccl *nccl;

/* small: longer sums go in pieces, all gathered; large: sums of many bytes are added in slices */
enum { MAX_VALUES = 4096, MAX_LARGE = 40000, LEAVES_MAX = 64 };

/* Shared memory needs an osc component that offers it; forced to another one, only messages can be tested. */
static int have_shm(void)
{
    const char *osc = getenv("OMPI_MCA_osc");
    return !osc || strstr(osc, "sm");
}

static enum status open_coll(MPI_Comm comm, size_t via, int64_t max, struct ops *o, struct coll **c, struct tp_comm *t)
{
    char why[NCCL_WHY];
    if (via == VIA_NCCL) return coll_open_nccl(comm, nccl, o, max, c, t, why);
    return coll_open(comm, via == VIA_MPI ? COLL_MPI : have_shm() ? COLL_SHM : COLL_AUTO, max, c, t);
}

/* a leaf's value: magnitudes over six decades, so that another order of adding gives other bits */
static float leaf(int i, int64_t e)
{
    double u = rng_unit(11, (uint64_t)i, (uint64_t)e), v = rng_unit(12, (uint64_t)i, (uint64_t)e);
    return (float)((u - 0.5) * pow(10, 6 * v - 3));
}

static float want_tree(const int *order, int first, int n, int64_t e)
{
    float *all = malloc((size_t)(first + n) * sizeof *all);
    for (int i = 0; i < first + n; i++) all[i] = leaf(order ? order[i] : i, e);
    float s;
    plain_tree(all, 1, NULL, first, n, 0, 1, &s);
    free(all);
    return s;
}

static void permute(int *order, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = (int)(rng_u64(seed, 5, (uint64_t)i) % (uint64_t)(i + 1)), held = order[i];
        order[i] = order[k];
        order[k] = held;
    }
}

static int same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* one sum against the tree worked out locally; returns whether all bits agree */
static int sum_agrees(struct tp_comm *t, struct ops *o, int n_parts, const int *order, int64_t rows, int64_t cols,
                      int64_t gap)
{
    int64_t n = rows * cols, stride = n + gap;
    struct buf x;
    int ok = o->mem_new(o, &x, (size_t)(n_parts * stride) * sizeof(float), "x") == ST_OK;
    float *h = calloc((size_t)(n_parts * stride), sizeof *h);
    for (int p = 0; p < n_parts; p++)
        for (int64_t e = 0; e < n; e++) h[p * stride + e] = leaf(t->rank * n_parts + p, e);
    o->put(o, x.p, h, (size_t)(n_parts * stride) * sizeof *h);
    ok = ok && t->sum(t->ctx, o, x.p, stride, n_parts, order, rows, cols) == ST_OK;
    o->get(o, h, x.p, (size_t)n * sizeof *h);
    for (int64_t e = 0; e < n && ok; e += n > 2000 ? 37 : 1)
        ok = same_bits(h[e], want_tree(order, 0, t->size * n_parts, e));
    o->mem_free(o, &x);
    free(h);
    return ok;
}

START_TEST(sum_has_the_bits_of_the_tree)
{
    static const struct {
        int n_parts, permuted;
        int64_t rows, cols, gap;
    } row[] = {
        {1, 0, 1, 1, 0},    {1, 0, 1, 256, 0}, {1, 0, 16, 256, 0}, {1, 1, 16, 256, 0}, {2, 0, 3, 7, 5},
        {2, 1, 5, 64, 64},  {4, 1, 1, 100, 1}, {4, 0, 16, 256, 0}, /* in pieces */     {4, 1, 33, 129, 3},
        {1, 0, 128, 256, 0}, {1, 1, 128, 256, 0}, {4, 1, 77, 129, 7},
    };
    for (size_t k = 0; k < 2 * N_VIA; k++)
        for (int device = 0; device < 2; device++) {
            struct coll *c;
            struct tp_comm t;
            struct ops o = plain_ops(device ? PLACE_DEVICE : PLACE_HOST);
            ck_assert(
                suite_all(open_coll(world.all, k % N_VIA, k < N_VIA ? MAX_VALUES : MAX_LARGE, &o, &c, &t) == ST_OK));
            ck_assert(t.size == 1 || k % N_VIA != VIA_NCCL || strcmp(coll_name(c), "nccl") == 0);
            for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
                int order[LEAVES_MAX];
                permute(order, t.size * row[i].n_parts, i);
                if (t.size == 1) order[0] = 0;
                int permuted = row[i].permuted && t.size > 1; /* alone the tree starts with part 0 */
                int ok = sum_agrees(&t, &o, row[i].n_parts, permuted ? order : NULL, row[i].rows, row[i].cols, row[i].gap);
                ck_assert_msg(suite_all(ok), "row %zu, path %s, device %d, k %zu", i, coll_name(c), device, k);
            }
            coll_close(c);
        }
}
END_TEST

/* room for partials of any size, such as Kimi-K3's of 8192 rows, is that of a piece; a longer sum takes several */
START_TEST(any_largest_sum_can_be_asked_for)
{
    for (size_t k = 0; k < VIA_NCCL && world.size == 2; k++) { /* NCCL's pieces: mpi_nccl.c */
        struct coll *c;
        struct tp_comm t;
        struct ops o = plain_ops(PLACE_DEVICE);
        ck_assert(suite_all(open_coll(world.all, k, (int64_t)8192 * 32 * 3584, &o, &c, &t) == ST_OK));
        ck_assert(suite_all(sum_agrees(&t, &o, 2, NULL, 1, 2200000, 0))); /* 17.6 MB, of which 16.8 go at once */
        coll_close(c);
    }
}
END_TEST

START_TEST(order_of_adding_matters_for_these_values)
{
    int flat_differs = 0, order_differs = 0, order[16];
    permute(order, 16, 3);
    for (int64_t e = 0; e < 100; e++) {
        float flat = 0, tree = want_tree(NULL, 0, 16, e);
        for (int i = 0; i < 16; i++) flat += leaf(i, e);
        flat_differs += !same_bits(flat, tree);
        order_differs += !same_bits(want_tree(order, 0, 16, e), tree);
    }
    ck_assert(suite_all(flat_differs > 30 && order_differs > 30));
}
END_TEST

/* 32 leaves of the model over groups of 1, 2, 4, 8 ranks: each rank adds its own subtree first */
START_TEST(sum_does_not_depend_on_the_number_of_ranks)
{
    enum { LEAVES = 32, N = 700 };
    for (size_t k = 0; k < N_VIA; k++)
        for (int g = 1; g <= world.size; g *= 2) {
            MPI_Comm sub;
            struct coll *c = NULL;
            struct tp_comm t;
            struct ops o = plain_ops(PLACE_HOST);
            MPI_Comm_split(world.all, world.rank < g ? 0 : 1 + world.rank, world.rank, &sub);
            int ok = open_coll(sub, k, MAX_VALUES, &o, &c, &t) == ST_OK;
            static float x[N];
            if (world.rank < g && ok) {
                int mine = LEAVES / g;
                for (int64_t e = 0; e < N; e++) x[e] = want_tree(NULL, world.rank * mine, mine, e);
                ok = t.sum(t.ctx, &o, x, N, 1, NULL, 7, 100) == ST_OK;
                for (int64_t e = 0; e < N; e++) ok = ok && same_bits(x[e], want_tree(NULL, 0, LEAVES, e));
            }
            coll_close(c);
            MPI_Comm_free(&sub);
            ck_assert_msg(suite_all(ok), "group of %d", g);
        }
}
END_TEST

START_TEST(columns_are_gathered_side_by_side)
{
    static const struct {
        int64_t rows, cols;
        int root;
    } row[] = {{1, 1, 0}, {3, 17, 0}, {3, 17, 1}, {16, 300, 0}, /* pieces that end inside rows */ {2, 5000, 1}, {5, 999, 0}};
    for (size_t k = 0; k < N_VIA; k++)
        for (int device = 0; device < 2; device++) {
            struct coll *c;
            struct tp_comm t;
            struct ops o = plain_ops(device ? PLACE_DEVICE : PLACE_HOST);
            ck_assert(suite_all(open_coll(world.all, k, 1000, &o, &c, &t) == ST_OK));
            for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
                int64_t n = row[i].rows * row[i].cols;
                struct buf x;
                float *h = malloc((size_t)n * sizeof *h), *y = calloc((size_t)(n * t.size), sizeof *y);
                int ok = o.mem_new(&o, &x, (size_t)n * sizeof *h, "x") == ST_OK;
                for (int64_t e = 0; e < n; e++) h[e] = (float)(t.rank * 100000 + e);
                o.put(&o, x.p, h, (size_t)n * sizeof *h);
                ok = ok && t.gather_cols(t.ctx, &o, x.p, row[i].rows, row[i].cols, y, row[i].root) == ST_OK;
                for (int64_t e = 0; e < n * t.size && ok && (t.rank == 0 || !row[i].root); e++) {
                    int64_t at = e / (t.size * row[i].cols), col = e % (t.size * row[i].cols);
                    ok = y[e] == (float)(col / row[i].cols * 100000 + at * row[i].cols + col % row[i].cols);
                }
                o.mem_free(&o, &x);
                free(h);
                free(y);
                ck_assert_msg(suite_all(ok), "row %zu, path %s, device %d", i, coll_name(c), device);
            }
            coll_close(c);
        }
}
END_TEST

/* row r: what rank 0, the last rank and the others hold, and what must come out */
static const struct {
    float first, last, others, want;
    int want_last; /* 1: id of the last rank, 0: of rank 0, -1: -1 */
} pick[] = {
    {3, 1, -1, 3, 0},        {1, 3, -1, 3, 1},
    {2, 2, 2, 2, 0},         {NAN, 5, 1, NAN, -1},
    {5, NAN, 1, NAN, -1},    {-INFINITY, -7, -8, -7, 1},
    {0.0f, -0.0f, -1, 0, 0}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY, 0},
};

START_TEST(argmax_is_the_global_first_maximum)
{
    enum { KINDS = sizeof pick / sizeof pick[0], ROWS = 5 * KINDS };
    for (size_t k = 0; k < N_VIA; k++) {
        struct coll *c;
        struct tp_comm t;
        struct ops o = plain_ops(PLACE_HOST);
        ck_assert(suite_all(open_coll(world.all, k, 8, &o, &c, &t) == ST_OK));
        if (t.size > 1) {
            float val[ROWS];
            int32_t id[ROWS];
            int last = t.size - 1, ok;
            for (int i = 0; i < ROWS; i++) {
                val[i] = t.rank == 0      ? pick[i % KINDS].first
                         : t.rank == last ? pick[i % KINDS].last
                                          : pick[i % KINDS].others;
                id[i] = isnan(val[i]) ? -1 : 1000 * t.rank + i;
            }
            ok = t.argmax(t.ctx, val, id, ROWS) == ST_OK;
            for (int i = 0; i < ROWS && ok; i++) {
                int32_t want = pick[i % KINDS].want_last < 0 ? -1 : 1000 * pick[i % KINDS].want_last * last + i;
                ok = id[i] == want && (isnan(pick[i % KINDS].want) ? isnan(val[i]) : val[i] == pick[i % KINDS].want);
            }
            ck_assert(suite_all(ok));
        }
        coll_close(c);
    }
}
END_TEST

START_TEST(bcast_carries_any_length)
{
    static const size_t bytes[] = {0, 1, 63, 4096, 4097, 100000};
    for (size_t k = 0; k < N_VIA; k++) {
        struct coll *c;
        struct tp_comm t;
        struct ops o = plain_ops(PLACE_HOST);
        ck_assert(suite_all(open_coll(world.all, k, 16, &o, &c, &t) == ST_OK));
        for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
            unsigned char *p = malloc(bytes[i] + 1);
            int ok = 1;
            for (size_t e = 0; e <= bytes[i]; e++) p[e] = t.rank == 0 && e < bytes[i] ? (unsigned char)(e * 7 + i) : 0xEE;
            ok = t.bcast(t.ctx, p, bytes[i]) == ST_OK;
            for (size_t e = 0; e < bytes[i]; e++) ok = ok && p[e] == (unsigned char)(e * 7 + i);
            ok = ok && p[bytes[i]] == 0xEE;
            free(p);
            ck_assert(suite_all(ok));
        }
        coll_close(c);
    }
}
END_TEST

/* all kinds mixed, every rank late at random: a buffer that is reused too early shows as a wrong value */
START_TEST(late_ranks_never_see_the_next_exchange)
{
    enum { ROUNDS = 400, N = 20000 };
    for (size_t k = 0; k < N_VIA; k++) {
        struct coll *c;
        struct tp_comm t;
        struct ops o = plain_ops(PLACE_HOST);
        int ok = 1;
        static float x[N], y[64 * 32];
        ck_assert(suite_all(open_coll(world.all, k, N, &o, &c, &t) == ST_OK));
        for (int i = 0; i < ROUNDS; i++) { /* a rank that saw a wrong value still takes part, or the others would wait */
            if (rng_u64(1, (uint64_t)t.rank, (uint64_t)i) % 16 == 0)
                usleep((useconds_t)(rng_u64(2, (uint64_t)t.rank, (uint64_t)i) % 400));
            uint64_t luck = rng_u64(3, 0, (uint64_t)i), length = rng_u64(4, 0, (uint64_t)i);
            int what = (int)(luck % 4), n = 1 + (int)(length % (luck / 4 % 8 ? 600 : N));
            for (int e = 0; e < N; e++) x[e] = (float)(t.rank + 1) * (float)(i + e);
            if (what == 0) {
                int32_t decision = t.rank == 0 ? i * 3 : -1;
                ok &= t.bcast(t.ctx, &decision, sizeof decision) == ST_OK && decision == i * 3;
            } else if (what == 1) {
                float v = (float)((t.rank * 7 + i) % t.size);
                int32_t id = t.rank;
                ok &= t.argmax(t.ctx, &v, &id, 1) == ST_OK && (t.size % 7 == 0 || t.size == 1 || v == (float)(t.size - 1));
            } else if (what == 2) {
                ok &= t.gather_cols(t.ctx, &o, x, 1, 32, y, 0) == ST_OK;
                for (int e = 0; e < 32 * t.size; e++) ok &= y[e] == (float)(e / 32 + 1) * (float)(i + e % 32);
            } else {
                ok &= t.sum(t.ctx, &o, x, n, 1, NULL, 1, n) == ST_OK;
                for (int e = 0; e < n; e++) ok &= x[e] == (float)(t.size * (t.size + 1) / 2) * (float)(i + e);
            }
        }
        ck_assert_msg(suite_all(ok), "path %s", coll_name(c));
        ck_assert(suite_all(t.size == 1 || (coll_calls(c) == ROUNDS && coll_seconds(c) > 0)));
        coll_close(c);
    }
}
END_TEST

START_TEST(impossible_calls_are_refused)
{
    struct coll *c;
    struct tp_comm t;
    struct ops o = plain_ops(PLACE_HOST);
    float x[8] = {0};
    ck_assert(suite_all(coll_open(world.all, COLL_AUTO, -1, &c, &t) == ST_E_INTERNAL));
    ck_assert(suite_all(coll_open(world.all, COLL_AUTO, 8, &c, &t) == ST_OK));
    ck_assert(suite_all(t.sum(t.ctx, &o, x, 8, 0, NULL, 1, 8) == ST_E_INTERNAL));
    if (t.size > 1) ck_assert(suite_all(t.sum(t.ctx, &o, x, 2, 2, NULL, 1, 4) == ST_E_INTERNAL));
    coll_close(c);
    coll_close(NULL);
}
END_TEST

static int reports;

static void count_report(void *ctx)
{
    (void)ctx;
    reports++;
}

/* rank 0 stays away: the others must give up with a report instead of waiting for ever */
START_TEST(the_watchdog_ends_a_meeting_and_a_wait)
{
    struct coll *c;
    struct tp_comm t;
    struct ops o = plain_ops(PLACE_HOST);
    ck_assert(suite_all(open_coll(world.all, VIA_SHM, 8, &o, &c, &t) == ST_OK));
    int ok = 1, v = 0, n = 0;
    double t0 = MPI_Wtime();
    reports = 0;
    wait_limit(0.2, count_report, NULL);
    if (t.size > 1 && t.rank > 0 && strcmp(coll_name(c), "shm") == 0) {
        ok = t.bcast(t.ctx, &v, sizeof v) == ST_E_WATCHDOG;
        n++;
    }
    MPI_Request never;
    MPI_Irecv(&v, 1, MPI_INT, 0, 99, MPI_COMM_SELF, &never);
    ok = ok && wait_all(&never, 1, NULL, NULL) == ST_E_WATCHDOG && reports == n + 1;
    struct waiter w = {0, 0};
    enum status st = ST_OK;
    while (st == ST_OK) st = wait_pause(&w);
    ok = ok && st == ST_E_WATCHDOG && reports == n + 2 && MPI_Wtime() - t0 < 30;
    wait_limit(0, NULL, NULL);
    MPI_Cancel(&never);
    MPI_Wait(&never, MPI_STATUS_IGNORE);
    ck_assert(suite_all(ok));
    coll_close(c);
}
END_TEST

/* ---- world -------------------------------------------------------------------------------------------------- */

START_TEST(ranks_agree_on_the_worst_status)
{
    static const enum status give[] = {ST_OK, ST_E_CONFIG, ST_E_FAULT, ST_E_WATCHDOG, ST_E_INTERRUPTED};
    for (size_t i = 0; i < sizeof give / sizeof give[0]; i++) {
        enum status mine = world.rank == world.size - 1 ? give[i] : ST_OK;
        ck_assert(suite_all(world_agree(&world, mine) == give[i]));
    }
    enum status mixed = world.rank == 0 ? ST_E_WATCHDOG : ST_E_HANDSHAKE; /* exit 4 is worse than 2 */
    ck_assert(suite_all(world_agree(&world, mixed) == ST_E_WATCHDOG));
}
END_TEST

START_TEST(a_differing_hash_is_named_on_all_ranks)
{
    ck_assert(suite_all(world_check_equal(&world, 7, "build", ST_E_LAUNCH) == ST_OK));
    if (world.size < 2) return;
    uint64_t mine = world.rank == world.size - 1 ? 0xbeef : 0xcafe;
    char want[64];
    snprintf(want, sizeof want, "rank %d has %016x", world.size - 1, 0xbeef);
    int ok = world_check_equal(&world, mine, "tokenizer", ST_E_HANDSHAKE) == ST_E_HANDSHAKE;
    ck_assert(suite_all(ok && strstr(err_last(), "tokenizer") && strstr(err_last(), want) && strstr(err_last(), "cafe")));
}
END_TEST

START_TEST(a_wrong_rank_count_is_refused_with_the_command)
{
    struct topology t = {.prefill = {2, 3, 1}, .decode = {1, 40, 1}, .n_prefill = 6, .n_decode = 40, .n_ranks = 46};
    ck_assert(suite_all(world_split(&world, &t) == ST_E_LAUNCH && strstr(err_last(), "mpirun -n 46")));
}
END_TEST

START_TEST(split_gives_stage_and_column_groups)
{
    if (world.size < 3) return;
    int d = world.size % 2 ? 1 : 2, p = (world.size - d) / 2; /* two stages of p ranks, d decode ranks */
    struct topology t = {
        .prefill = {2, p, 1}, .decode = {1, d, 1}, .n_prefill = 2 * p, .n_decode = d, .n_ranks = world.size};
    struct world w;
    ck_assert(suite_all(world_start(NULL, NULL, &w) == ST_OK));
    ck_assert(suite_all(world_split(&w, &t) == ST_OK));
    int tp_rank = -1, tp_size = 0, pp_rank = -1, ok;
    MPI_Comm_rank(w.tp, &tp_rank);
    MPI_Comm_size(w.tp, &tp_size);
    if (w.pp != MPI_COMM_NULL) MPI_Comm_rank(w.pp, &pp_rank);
    if (w.rank < 2 * p)
        ok = tp_rank == w.rank % p && tp_size == p && pp_rank == w.rank / p;
    else
        ok = tp_rank == w.rank - 2 * p && tp_size == d && w.pp == MPI_COMM_NULL;
    world_stop(&w);
    ck_assert(suite_all(ok));
}
END_TEST

/* A process of its own, because MPI_Init looks at the environment: started as a task of four, but alone. */
START_TEST(a_lone_task_of_many_is_refused)
{
    int ok = 1;
    if (world.size == 1 && !getenv("OMPI_COMM_WORLD_SIZE")) {
        struct world w;
        setenv("SLURM_NTASKS", "4", 1);
        ok = world_start(NULL, NULL, &w) == ST_E_LAUNCH && strstr(err_last(), "mpirun -n 4") != NULL;
        unsetenv("SLURM_NTASKS");
    }
    ck_assert(suite_all(ok));
}
END_TEST

static void world_and_nccl(void)
{
    char why[NCCL_WHY];
    suite_world();
    nccl_double();
    if (nccl_load(&nccl, why) != ST_OK) exit(EXIT_FAILURE);
}

static void world_and_nccl_end(void)
{
    nccl_unload(nccl);
    suite_world_end();
}

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "coll", 100);
    tcase_add_unchecked_fixture(tc, world_and_nccl, world_and_nccl_end);
    SUITE_TEST(tc, sum_has_the_bits_of_the_tree);
    SUITE_TEST(tc, any_largest_sum_can_be_asked_for);
    SUITE_TEST(tc, order_of_adding_matters_for_these_values);
    SUITE_TEST(tc, sum_does_not_depend_on_the_number_of_ranks);
    SUITE_TEST(tc, columns_are_gathered_side_by_side);
    SUITE_TEST(tc, argmax_is_the_global_first_maximum);
    SUITE_TEST(tc, bcast_carries_any_length);
    SUITE_TEST(tc, late_ranks_never_see_the_next_exchange);
    SUITE_TEST(tc, impossible_calls_are_refused);
    SUITE_TEST(tc, ranks_agree_on_the_worst_status);
    SUITE_TEST(tc, a_differing_hash_is_named_on_all_ranks);
    SUITE_TEST(tc, a_wrong_rank_count_is_refused_with_the_command);
    SUITE_TEST(tc, split_gives_stage_and_column_groups);
    SUITE_TEST(tc, a_lone_task_of_many_is_refused);
    SUITE_TEST(tc, the_watchdog_ends_a_meeting_and_a_wait);
}

/* `mpi_coll bench`: microseconds per sum on both paths */
static int bench(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    suite_world();
    struct ops o = plain_ops(PLACE_HOST);
    static float x[128 * 256];
    for (size_t k = 0; k < N_VIA; k++) {
        struct coll *c;
        struct tp_comm t;
        if (open_coll(world.all, k, 128 * 256, &o, &c, &t) != ST_OK) return EXIT_FAILURE;
        for (int rows = 1; rows <= 128; rows = rows == 1 ? 8 : rows * (rows == 8 ? 2 : 8)) {
            enum { BATCHES = 8, SUMS = 200 };
            double best = 1e9, all = 0; /* the best batch: other programs use the machine too */
            for (int j = 0; j < BATCHES; j++) {
                MPI_Barrier(world.all);
                double t0 = MPI_Wtime();
                for (int i = 0; i < SUMS; i++)
                    if (t.sum(t.ctx, &o, x, 0, 1, NULL, rows, 256) != ST_OK) return EXIT_FAILURE;
                double each = (MPI_Wtime() - t0) / SUMS * 1e6;
                best = each < best ? each : best;
                all += each / BATCHES;
            }
            if (world.rank == 0)
                printf("%d ranks, %s, %3d rows x 256: %.1f us per sum (mean %.1f)\n", world.size, coll_name(c), rows, best,
                       all);
        }
        coll_close(c);
    }
    world_stop(&world);
    MPI_Finalize();
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "bench") == 0) return bench(&argc, &argv);
    return suite_main_mpi(&argc, &argv);
}
