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
#include "pd/links.h"
#include "pd/wait.h"
#include "plain_ops.h"
#include "plan/scratch.h"
#include "plan/split.h"
#include "plan/work.h"

/* What pdflash does with NCCL, over the stand-in (nccl_double.c): large sums with the bits of the other paths, ranks
 * that cannot join, break or stay away, and which groups may use it. The collectives themselves: mpi_coll.c; the
 * hand-off: mpi_stage.c. */
/* np: 2 3 4 8 */
const char *const suite_name = "mpi_nccl";

static char why[NCCL_WHY];

static struct nccl *load(void)
{
    struct nccl *n = NULL;
    nccl_double();
    ck_assert(nccl_load(&n, why) == ST_OK);
    return n;
}

/* ---- bits ---------------------------------------------------------------------------------------------------------
 */

static float leaf(int i, int64_t e)
{
    double u = rng_unit(11, (uint64_t)i, (uint64_t)e), v = rng_unit(12, (uint64_t)i, (uint64_t)e);
    return (float)((u - 0.5) * exp(14 * v - 7));
}

/* the sum by one path; x [n_parts][stride] is filled anew */
static int sum_by(struct tp_comm *t, struct ops *o, int n_parts, int64_t stride, int64_t n, const int *order,
                  float *out)
{
    struct buf x;
    int ok = o->mem_new(o, &x, (size_t)(n_parts * stride) * sizeof(float), "x") == ST_OK;
    for (int p = 0; p < n_parts; p++)
        for (int64_t e = 0; e < n; e++) ((float *)plain_host(o, x.p))[p * stride + e] = leaf(t->rank * n_parts + p, e);
    ok = ok && t->sum(t->ctx, o, x.p, stride, n_parts, order, 1, n) == ST_OK;
    o->get(o, out, x.p, (size_t)n * sizeof *out);
    o->mem_free(o, &x);
    return ok;
}

/* more values than one exchange takes: slices, of equal length and not, several pieces, orders, strides */
static const struct {
    int n_parts, permuted;
    int64_t n, gap, max;
} big[] = {
    {1, 0, 1 << 20, 0, 1 << 20},                            /* equal slices */
    {1, 1, 1048591, 0, 1048591},                            /* unequal ones */
    {2, 1, 600007, 33, 1200014}, {3, 1, 400000, 0, 300000}, /* in pieces */
    {2, 0, 17, 4, 64},                                      /* fewer values than ranks have slices */
};

START_TEST(large_sums_have_the_bits_of_messages)
{
    struct nccl *n = load();
    for (size_t k = 0; k < sizeof big / sizeof big[0]; k++) {
        struct ops o = plain_ops(k % 2 ? PLACE_DEVICE : PLACE_HOST);
        struct coll *c, *m;
        struct tp_comm t, u;
        int order[64], ok = 1, parts = big[k].n_parts * world.size;
        float *a = malloc((size_t)big[k].n * sizeof *a), *b = malloc((size_t)big[k].n * sizeof *b);
        for (int i = 0; i < parts; i++) order[i] = (i * 5 + 3) % parts; /* 5 divides no number of parts here */
        const int *by = big[k].permuted ? order : NULL;
        ck_assert(suite_all(coll_open_nccl(world.all, n, &o, big[k].max, &c, &t, why) == ST_OK));
        ck_assert(suite_all(coll_open(world.all, COLL_MPI, big[k].max, &m, &u) == ST_OK));
        ok &= sum_by(&t, &o, big[k].n_parts, big[k].n + big[k].gap, big[k].n, by, a);
        ok &= sum_by(&u, &o, big[k].n_parts, big[k].n + big[k].gap, big[k].n, by, b);
        ck_assert_msg(suite_all(ok && memcmp(a, b, (size_t)big[k].n * sizeof *a) == 0), "case %zu", k);
        coll_close(c);
        coll_close(m);
        free(a);
        free(b);
    }
    nccl_unload(n);
}
END_TEST

START_TEST(the_device_is_in_use_after_start_up_only)
{
    struct nccl *n = load();
    struct ops o = plain_ops(PLACE_DEVICE);
    struct coll *c;
    struct tp_comm t;
    struct buf x;
    ck_assert(suite_all(coll_open_nccl(world.all, n, &o, 5000, &c, &t, why) == ST_OK));
    ck_assert(o.mem_new(&o, &x, 5000 * sizeof(float), "x") == ST_OK);
    uint64_t before = buf_allocs();
    for (int i = 1; i <= 5000; i += 499) ck_assert(suite_all(t.sum(t.ctx, &o, x.p, i, 1, NULL, 1, i) == ST_OK));
    ck_assert(suite_all(buf_allocs() == before));
    o.mem_free(&o, &x);
    coll_close(c);
    nccl_unload(n);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static int64_t held; /* bytes of the backend's memory */

static enum status counting_new(struct ops *o, struct buf *b, size_t bytes, const char *what)
{
    TRY(plain_mem_new(o, b, bytes, what));
    held += (int64_t)bytes;
    return ST_OK;
}

static void counting_free(struct ops *o, struct buf *b)
{
    held -= (int64_t)b->bytes;
    plain_mem_free(o, b);
}

/* sums of so many values by one way: what is held after start-up and the first sum is what the plan counts */
static int takes(enum sums_via via, struct nccl *n, int64_t values, int64_t planned)
{
    struct ops o = plain_ops(via == SUMS_HOST ? PLACE_HOST : PLACE_DEVICE);
    struct coll *c;
    struct tp_comm t;
    struct buf x;
    o.mem_new = counting_new;
    o.mem_free = counting_free;
    held = 0;
    enum status st = via == SUMS_NCCL ? coll_open_nccl(world.all, n, &o, values, &c, &t, why)
                                      : coll_open(world.all, COLL_AUTO, values, &c, &t);
    if (!suite_all(st == ST_OK)) return 0;
    int ok = plain_mem_new(&o, &x, (size_t)values * sizeof(float), "x") == ST_OK;
    ok = ok && t.sum(t.ctx, &o, x.p, values, 1, NULL, 1, values) == ST_OK && held == planned;
    plain_mem_free(&o, &x);
    coll_close(c);
    return suite_all(ok && held == 0);
}

/* ranks of a group of k3-nano by every way, few rows and many; three ranks share it in no way, so only values do */
START_TEST(sums_take_what_is_planned)
{
    static struct config c;
    struct nccl *n = load();
    enum sums_via via[8];
    ck_assert(config_load("inputs/k3-nano", &c) == ST_OK);
    for (int i = 0; i < 12; i++) {
        int64_t values = i < 6 ? 5000 : 1 << 21, planned;
        const struct group g = {1, world.size, i / 3 % 2 ? world.size : 0};
        struct topology t;
        struct rank_memory m;
        for (int r = 0; r < 8; r++) via[r] = (enum sums_via)(i % 3);
        struct plan_options o = {.page = 64, .max_tokens = 9000, .max_prompt = i < 6 ? 10 : 3000, .concurrency = 8,
                                 .prefill_slots = 1, .staging_slots = 1, .chunk = 8192, .stripe = 1, .sums = via};
        planned = scratch_sum_bytes(via[0], values, world.size);
        if (world.size != 3) {
            ck_assert(topology_make(&c, NULL, &g, &g, 1, &t) == ST_OK);
            ck_assert(memory_rank(&c, NULL, &t, &o, world.rank, &m) == ST_OK);
            values = scratch_sum_values(&c, &t.decode, work_rows(&t, &o, topology_role(&t, world.rank)).most);
            planned = m.coll_bytes;
        }
        ck_assert_msg(takes(via[0], n, values, planned), "case %d: %lld bytes", i, (long long)planned);
    }
    nccl_unload(n);
}
END_TEST

/* ---- failure
 * --------------------------------------------------------------------------------------------------------- */

START_TEST(a_rank_that_cannot_join_is_known_to_all)
{
    for (int bad = 0; bad < 2; bad++) {
        char text[32];
        struct coll *c;
        struct tp_comm t;
        struct ops o = plain_ops(PLACE_HOST);
        snprintf(text, sizeof text, "init:%d", bad * (world.size - 1));
        setenv("NCCL_DOUBLE_FAIL", text, 1);
        struct nccl *n = load();
        int ok = coll_open_nccl(world.all, n, &o, 100, &c, &t, why) == ST_E_DEVICE;
        ck_assert(suite_all(ok && strstr(why, "unhandled system error: told to fail")));
        unsetenv("NCCL_DOUBLE_FAIL"); /* and again, with the same library */
        ck_assert(suite_all(coll_open_nccl(world.all, n, &o, 100, &c, &t, why) == ST_OK));
        coll_close(c);
        nccl_unload(n);
    }
}
END_TEST

/* rank 0 breaks in its first group after start-up: the others must not wait for it */
START_TEST(a_rank_that_breaks_ends_the_others)
{
    struct nccl *n = load();
    struct coll *c;
    struct tp_comm t;
    struct ops o = plain_ops(PLACE_HOST);
    static float x[64];
    ck_assert(suite_all(coll_open_nccl(world.all, n, &o, 64, &c, &t, why) == ST_OK));
    wait_limit(100, NULL, NULL);
    double t0 = MPI_Wtime();
    if (world.rank == 0) nccl_abort_all(n);
    enum status st = t.sum(t.ctx, &o, x, 64, 1, NULL, 1, 64);
    int ok = st == ST_E_DEVICE && MPI_Wtime() - t0 < 60;
    if (world.rank > 0) ok = ok && strstr(err_last(), "remote process exited");
    ok = ok && t.sum(t.ctx, &o, x, 64, 1, NULL, 1, 64) == ST_E_DEVICE; /* and stays so */
    wait_limit(0, NULL, NULL);
    ck_assert(suite_all(ok));
    coll_close(c);
    nccl_unload(n);
}
END_TEST

static int reports;

static void count_report(void *ctx)
{
    (void)ctx;
    reports++;
}

/* rank 0 stays away: nobody says anything, and the watchdog must end it */
START_TEST(the_watchdog_ends_a_sum)
{
    struct nccl *n = load();
    struct coll *c;
    struct tp_comm t;
    struct ops o = plain_ops(PLACE_HOST);
    static float x[64];
    ck_assert(suite_all(coll_open_nccl(world.all, n, &o, 64, &c, &t, why) == ST_OK));
    int ok = 1;
    reports = 0;
    wait_limit(0.3, count_report, NULL);
    if (world.rank > 0) {
        enum status st = t.sum(t.ctx, &o, x, 64, 1, NULL, 1, 64); /* or one that saw the watchdog first is gone */
        ok = (st == ST_E_WATCHDOG && reports == 1) || (world.size > 2 && st == ST_E_DEVICE && reports == 0);
        ok = ok && t.sum(t.ctx, &o, x, 64, 1, NULL, 1, 64) == st && reports <= 1; /* and stays so, said once */
    }
    wait_limit(0, NULL, NULL);
    ck_assert(suite_all(ok));
    coll_close(c);
    nccl_unload(n);
}
END_TEST

/* a backend with queues waits by itself; its guard sees the watchdog and a broken communicator */
START_TEST(the_guard_of_a_waiting_backend)
{
    struct nccl *n = load();
    struct coll *c;
    struct tp_comm t;
    struct ops o = plain_ops(PLACE_HOST);
    ck_assert(suite_all(coll_open_nccl(world.all, n, &o, 64, &c, &t, why) == ST_OK));
    nccl_watch(n, &o);
    /* agreed before rank 0 gives up, which the others would see */
    ck_assert(suite_all(o.guard(o.guard_ctx, 0) == ST_OK && o.guard(o.guard_ctx, 1) == ST_OK));
    if (world.rank == 0) nccl_abort_all(n);
    enum status st = ST_OK;
    double t0 = MPI_Wtime();
    for (unsigned i = 0; st == ST_OK && world.rank > 0 && MPI_Wtime() - t0 < 60; i++) st = o.guard(o.guard_ctx, i);
    ck_assert(suite_all(world.rank == 0 || st == ST_E_DEVICE));
    reports = 0;
    wait_limit(0.2, count_report, NULL);
    st = ST_OK;
    for (unsigned i = 0; st == ST_OK && MPI_Wtime() - t0 < 90; i++) st = o.guard(o.guard_ctx, i);
    wait_limit(0, NULL, NULL);
    ck_assert(suite_all(st == ST_E_WATCHDOG && reports == 1));
    coll_close(c);
    nccl_unload(n);
}
END_TEST

START_TEST(libraries_that_cannot_be_used_are_named)
{
    struct nccl *n = NULL;
    setenv("PDFLASH_NCCL", "/nowhere/libnccl.so.2", 1);
    ck_assert(nccl_load(&n, why) == ST_E_CONFIG && strstr(why, "/nowhere/libnccl.so.2") && !n);
    setenv("PDFLASH_NCCL", "libm.so.6", 1);
    ck_assert(nccl_load(&n, why) == ST_E_CONFIG && strstr(why, "no ncclGetVersion") && !n);
    unsetenv("NCCL_NVLS_ENABLE");
    n = load();
    ck_assert_str_eq(getenv("NCCL_NVLS_ENABLE"), "0");
    nccl_unload(n);
    setenv("NCCL_NVLS_ENABLE", "1", 1); /* the user's word */
    n = load();
    ck_assert_str_eq(getenv("NCCL_NVLS_ENABLE"), "1");
    unsigned char uuid[16];
    ck_assert(nccl_version(n) == 29900 && nccl_stand_in(n, uuid) == 1);
    nccl_unload(n);
    unsetenv("NCCL_NVLS_ENABLE");
}
END_TEST

/* ---- who shares a device
 * ------------------------------------------------------------------------------------------------ */

START_TEST(a_rank_takes_the_device_of_its_number_on_the_host)
{
    static const struct {
        int node_rank, n, want;
    } row[] = {{0, 8, 0}, {7, 8, 7}, {8, 8, 0}, {13, 8, 5}, {3, 1, 0}, {0, 0, 0}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        ck_assert_int_eq(devices_choose(row[i].node_rank, row[i].n), row[i].want);
}
END_TEST

/* a world as mpirun would make it, for a topology of its own; the stand-in deals out `gpus` devices */
static int split(struct world *w, int pp, int tp, int decode)
{
    struct topology t = {.prefill = {pp, tp, 1}, .decode = {1, decode, 1}, .n_prefill = pp * tp, .n_decode = decode};
    t.n_ranks = t.n_prefill + t.n_decode;
    return t.n_ranks == world.size && world_start(NULL, NULL, w) == ST_OK && world_split(w, &t) == ST_OK;
}

static const struct {
    int pp, tp, decode, gpus; /* np = pp * tp + decode */
    int tp_ok, pp_ok;         /* bit per world rank */
} seats[] = {
    {1, 1, 1, 2, 0, 0},      {2, 1, 1, 3, 0, 0x3}, /* a column of two; decode is alone */
    {1, 1, 2, 2, 0x6, 0},                          /* ranks 1, 2 on devices 1, 0 */
    {1, 1, 2, 1, 0, 0},                            /* all share one */
    {1, 2, 2, 4, 0xf, 0},    {1, 2, 2, 2, 0xf, 0}, /* each device has one of either group */
    {2, 1, 2, 3, 0xc, 0x3},                        /* ranks 0 and 3 share: different groups */
    {2, 2, 4, 8, 0xff, 0xf}, {2, 2, 4, 4, 0xff, 0xf},
    {2, 2, 4, 2, 0xf, 0},                        /* a stage has both devices, a column one twice, decode each twice */
    {4, 1, 4, 4, 0xf0, 0xf}, {4, 1, 4, 3, 0, 0}, /* ranks 0 and 3, 4 and 7 share */
};

/* a device backend, as far as links and sums look; the stand-in says which device it is */
static void *no_queue(struct ops *o)
{
    (void)o;
    return NULL;
}

static enum status some_device(struct ops *o, struct ops_device *d_p)
{
    (void)o;
    *d_p = (struct ops_device){.name = "some", .total = 2, .free = 1};
    return ST_OK;
}

static const struct ops_queues queues = {.main = no_queue, .device = some_device};

static int all_of(int n, int first)
{
    return n > 1 ? ((1 << n) - 1) << first : 0;
}

START_TEST(groups_whose_ranks_have_a_device_each_use_nccl)
{
    int tried = 0;
    struct ops o = plain_ops(PLACE_DEVICE);
    o.queues = &queues;
    nccl_double();
    for (size_t i = 0; i < sizeof seats / sizeof seats[0]; i++) {
        char text[16];
        struct world w;
        struct links l;
        int stages = seats[i].pp * seats[i].tp, ok;
        if (stages + seats[i].decode != world.size) continue;
        tried++;
        snprintf(text, sizeof text, "%d", seats[i].gpus);
        setenv("NCCL_DOUBLE_GPUS", text, 1);
        ck_assert(suite_all(split(&w, seats[i].pp, seats[i].tp, seats[i].decode)));
        int groups = (seats[i].tp > 1 ? all_of(stages, 0) : 0) | all_of(seats[i].decode, stages);
        int columns = seats[i].pp > 1 ? all_of(stages, 0) : 0;
        enum status st = links_open(&w, &o, LINKS_NCCL, &l);
        if (seats[i].tp_ok == groups && seats[i].pp_ok == columns) ok = st == ST_OK && l.must;
        else ok = st == ST_E_CONFIG && strstr(err_last(), "that share one");
        ck_assert_msg(suite_all(ok), "case %zu, nccl", i);
        if (st == ST_OK) links_close(&l);
        ok = links_open(&w, &o, LINKS_AUTO, &l) == ST_OK && !l.must && l.tp == (seats[i].tp_ok >> w.rank & 1) &&
             l.pp == (seats[i].pp_ok >> w.rank & 1);
        ck_assert_msg(suite_all(ok), "case %zu, auto", i);
        for (int r = 0; r < w.size; r++) /* known of every rank, and a rank alone takes neither way */
            ok = ok && (groups >> r & 1 ? l.sums[r] == (seats[i].tp_ok >> r & 1 ? SUMS_NCCL : SUMS_STAGED) : 1);
        ck_assert_msg(suite_all(ok), "case %zu, ways", i);
        links_close(&l);
        ck_assert(suite_all(links_open(&w, &o, LINKS_HOST, &l) == ST_OK && !l.nccl && !l.tp && !l.pp));
        ck_assert(l.sums[0] == SUMS_STAGED && l.sums[w.size - 1] == SUMS_STAGED);
        links_close(&l);
        world_stop(&w);
    }
    unsetenv("NCCL_DOUBLE_GPUS");
    ck_assert(suite_all(tried > 0));
}
END_TEST

START_TEST(without_a_library_or_a_device_it_is_the_host)
{
    struct ops o = plain_ops(PLACE_DEVICE), host = plain_ops(PLACE_HOST);
    struct world w;
    struct links l;
    o.queues = &queues;
    ck_assert(suite_all(split(&w, 1, 1, world.size - 1)));
    setenv("PDFLASH_NCCL", w.rank == 0 ? "/nowhere/libnccl.so.2" : getenv("PDFLASH_NCCL"), 1); /* one rank lacks it */
    ck_assert(suite_all(links_open(&w, &o, LINKS_AUTO, &l) == ST_OK && !l.nccl && !l.tp && !l.pp));
    links_close(&l);
    enum status st = links_open(&w, &o, LINKS_NCCL, &l);
    ck_assert(suite_all(st == ST_E_CONFIG && strstr(err_last(), "/nowhere/libnccl.so.2")));
    ck_assert(suite_all(links_open(&w, &host, LINKS_AUTO, &l) == ST_OK && !l.nccl && l.sums[w.rank] == SUMS_HOST));
    links_close(&l);
    st = links_open(&w, &host, LINKS_NCCL, &l);
    ck_assert(suite_all(st == ST_E_CONFIG && strstr(err_last(), "--device cpu")));
    world_stop(&w);
    nccl_double();
}
END_TEST

/* what the ranks of a device need together; the budget is what the last to look saw free */
START_TEST(ranks_of_a_device_must_fit_into_it_together)
{
    static struct config c;
    static struct draft_config draft;
    struct group two = {1, 2, 0};
    struct world w = {.size = 4};
    struct plan_options plan = {.page = 64,
                                .max_tokens = 600,
                                .max_prompt = 200,
                                .concurrency = 8,
                                .prefill_slots = 8,
                                .staging_slots = 8,
                                .chunk = 8192,
                                .stripe = 1,
                                .block = 8};
    struct device_seat seat[4];
    struct devices d = {4, seat};
    struct rank_memory m[4];
    ck_assert(config_load("inputs/k3-nano", &c) == ST_OK);
    ck_assert(draft_config_load("inputs/k3-nano-dflash", &c, &draft) == ST_OK);
    ck_assert(topology_make(&c, &draft, &two, &two, 0, &w.topo) == ST_OK);
    for (int r = 0; r < 4; r++) ck_assert(memory_rank(&c, &draft, &w.topo, &plan, r, &m[r]) == ST_OK);
    for (int r = 0; r < 4; r++) {
        seat[r] = (struct device_seat){.host = "h"};
        seat[r].d.uuid[0] = (unsigned char)(r % 2); /* 0 and 2 share, 1 and 3 */
        seat[r].d.total = seat[r].d.free = (size_t)(m[r % 2].device_bytes + m[2 + r % 2].device_bytes);
    }
    ck_assert(devices_fit(&w, &d, &c, &draft, &plan) == ST_OK);
    seat[3].d.free--; /* one byte less, as seen by the second rank of a device */
    ck_assert(devices_fit(&w, &d, &c, &draft, &plan) == ST_E_CONFIG);
    ck_assert(strstr(err_last(), "its 2 ranks need") && strstr(err_last(), "GPU-01000000-0000-0000-0000-000000000000"));
    seat[3].d.uuid[0] = 7; /* alone: half of it is enough */
    ck_assert(devices_fit(&w, &d, &c, &draft, &plan) == ST_OK);
    seat[1].d.free = (size_t)m[1].device_bytes - 1;
    ck_assert(devices_fit(&w, &d, &c, &draft, &plan) == ST_E_CONFIG && strstr(err_last(), "its 1 ranks need"));
    /* another way of the sums, for these few rows the smaller one */
    enum sums_via staged[4] = {SUMS_STAGED, SUMS_STAGED, SUMS_STAGED, SUMS_STAGED};
    int64_t more = m[1].coll_bytes;
    plan.sums = staged;
    ck_assert(memory_rank(&c, &draft, &w.topo, &plan, 1, &m[1]) == ST_OK && m[1].coll_bytes < more);
    seat[1].d.free = (size_t)m[1].device_bytes;
    ck_assert(devices_fit(&w, &d, &c, &draft, &plan) == ST_OK);
    plan.sums = NULL;
    ck_assert(devices_fit(&w, &d, &c, &draft, &plan) == ST_E_CONFIG);
    for (int r = 0; r < 4; r++) seat[r].d.total = seat[r].d.free = 0; /* host memory: nothing to check */
    ck_assert(devices_fit(&w, &d, &c, &draft, &plan) == ST_OK);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "nccl", 100);
    tcase_add_unchecked_fixture(tc, suite_world, suite_world_end);
    SUITE_TEST(tc, large_sums_have_the_bits_of_messages);
    SUITE_TEST(tc, the_device_is_in_use_after_start_up_only);
    SUITE_TEST(tc, sums_take_what_is_planned);
    SUITE_TEST(tc, a_rank_that_cannot_join_is_known_to_all);
    SUITE_TEST(tc, a_rank_that_breaks_ends_the_others);
    SUITE_TEST(tc, the_watchdog_ends_a_sum);
    SUITE_TEST(tc, the_guard_of_a_waiting_backend);
    SUITE_TEST(tc, libraries_that_cannot_be_used_are_named);
    SUITE_TEST(tc, a_rank_takes_the_device_of_its_number_on_the_host);
    SUITE_TEST(tc, without_a_library_or_a_device_it_is_the_host);
    SUITE_TEST(tc, ranks_of_a_device_must_fit_into_it_together);
    SUITE_TEST(tc, groups_whose_ranks_have_a_device_each_use_nccl);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
