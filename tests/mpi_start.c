/* Start-up of the two roles when ranks do not get ready together: files are read there, by some ranks for longer. */
/* np: 2 */
#include "suite.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi_world.h"
#include "pd/guard.h"
#include "pd/run.h"

const char *const suite_name = "mpi_start";

/* --watchdog, and how long the slower rank reads: longer than that, within what start-up may take */
static const double watchdog = 1, reads = 1.6;

static enum status (*prepare)(struct ops *o, int max_rows);

static enum status slowly(struct ops *o, int max_rows)
{
    const struct timespec t = {(time_t)reads, (long)((reads - (double)(time_t)reads) * 1e9)};
    nanosleep(&t, NULL);
    return prepare(o, max_rows);
}

static enum status finished(void *ctx, const struct run_finished *f)
{
    *(int *)ctx += f->q->n_out;
    return ST_OK;
}

/* one prompt through one prefill and one decode rank, of which rank `slow` gets ready late */
static enum status run(const struct config *c, const struct safetensors *ckpt, int slow, int *tokens_p)
{
    enum { N = 5, NEW = 3 };
    static const int32_t token[N] = {3, 1, 4, 1, 5}, length[1] = {N};
    static const int64_t offset[2] = {0, N};
    struct ops o;
    struct links links;
    struct rank_stats st;
    memset(&links, 0, sizeof links);
    TRY(ops_cpu_open(ACT_FP32, NULL, &o));
    prepare = o.prepare;
    if (world.rank == slow) o.prepare = slowly;
    struct run_config r = {.c = c, .ckpt = ckpt, .o = &o, .prompts = {1, offset, token, length}, .coll = COLL_MPI,
                           .links = &links, .block = 1, .max_new = NEW, .absorbed_prefill = 1, .watchdog_s = watchdog,
                           .inject = {.kill_rank = -1, .fail_stage = -1, .fail_request = -1, .abort_request = -1}};
    r.transfer = (struct transfer_options){.transport = TRANSPORT_SENDRECV, .drop_component = -1, .drop_rank = -1,
                                           .flip_component = -1, .flip_rank = -1};
    r.transfer.plan = (struct plan_options){.page = 16, .max_tokens = N + NEW + 1, .max_prompt = N, .concurrency = 1,
                                            .prefill_slots = 1, .staging_slots = 1, .chunk = 16, .stripe = 1};
    struct run_sink sink = {.ctx = tokens_p, .finished = finished};
    int prefill = world.role.role == ROLE_PREFILL;
    enum status e = prefill ? prefill_role(&world, &r, &st) : decode_role(&world, &r, &sink, &st);
    guard_end(); /* of "the end of the run": this program has more to do */
    o.close(&o);
    return e;
}

START_TEST(a_rank_that_reads_for_long_is_waited_for)
{
    struct config c;
    struct safetensors *ckpt;
    struct topology t;
    struct group one = {1, 1, 1};
    int tokens = 0;
    ck_assert(suite_all(world.size == 2 && config_load(suite_path("inputs/k3-nano"), &c) == ST_OK &&
                        safetensors_open(suite_path("inputs/k3-nano"), &ckpt) == ST_OK &&
                        topology_make(&c, NULL, &one, &one, 0, &t) == ST_OK));
    if (world.tp == MPI_COMM_NULL) ck_assert(suite_all(world_split(&world, &t) == ST_OK));
    enum status st = run(&c, ckpt, _i, &tokens);
    ck_assert_msg(suite_all(st == ST_OK), "rank %d ends with %d: %s", world.rank, (int)st, st ? err_last() : "");
    ck_assert(suite_all(world.rank == 0 ? tokens == 0 : tokens > 0));
    safetensors_close(ckpt);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "start-up", 60);
    tcase_add_unchecked_fixture(tc, suite_world, suite_world_end);
    tcase_add_loop_test(tc, a_rank_that_reads_for_long_is_waited_for, 0, 2);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
