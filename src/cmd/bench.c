/* bench - pdflash bench NAME: finds the measurement by name and runs it; the frame of those that run under mpirun. */
#include "cmd/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/bench_kernels.h"
#include "pd/devices.h"
#include "pd/wait.h"

static const double give_up = 120; /* seconds without progress */

static const struct {
    const char *name;
    enum status (*run)(int argc, char **argv);
    const char *what;
} table[] = {
    {"transfer", bench_transfer, "prefill to decode: puts against a memcpy loop in the same run (under mpirun)"},
    {"collectives", bench_collectives, "sums of a TP group and hand-off between stages, beside NCCL's own sums (under mpirun)"},
    {"kernels", bench_kernels, "every operation at the real Kimi-K3's per-rank shapes, on the CPU or a GPU"},
};

enum { N_TABLE = sizeof table / sizeof table[0] };

static void help(FILE *f)
{
    fprintf(f, "usage: pdflash bench NAME [options]; `pdflash bench NAME --help` lists the options\n\n");
    for (int i = 0; i < N_TABLE; i++) fprintf(f, "  %-11s %s\n", table[i].name, table[i].what);
}

enum status cmd_bench(int argc, char **argv)
{
    if (argc > 0 && options_is_help(argv[0])) {
        help(stdout);
        return ST_OK;
    }
    for (int i = 0; argc > 0 && i < N_TABLE; i++)
        if (strcmp(argv[0], table[i].name) == 0) return table[i].run(argc - 1, argv + 1);
    help(stderr);
    return argc > 0 ? ERR(ST_E_USAGE, "bench: '%s' is not a measurement", argv[0])
                    : ERR(ST_E_USAGE, "bench: name a measurement");
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

void bench_sort(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
}

/* ---- under mpirun ------------------------------------------------------------------------------------------------ */

enum status bench_under_mpi(enum command cmd, int argc, char **argv, struct options *o, struct world *w,
                            enum status (*body)(void *), void *ctx)
{
    int n, help;
    enum status st = options_parse(cmd, argc, argv, o, NULL, 0, &n, &help);
    if (st != ST_OK || help) return st;
    TRY(world_start(NULL, NULL, w));
    st = body(ctx);
    int code = err_exit_code(st);
    if (code == 3 || st == ST_E_WATCHDOG) world_abort(w, code); /* others may wait for this rank */
    wait_limit(0, NULL, NULL);
    return st;
}

enum status bench_backend(const struct options *o, struct world *w, struct ops *ops_p)
{
    TRY(world_agree(w, o->device == DEVICE_CUDA
                           ? ops_cuda_open(ACT_BF16, devices_choose(w->node_rank, ops_cuda_devices()), ops_p)
                           : ops_cpu_open(ACT_FP32, NULL, ops_p)));
    wait_limit(give_up, NULL, NULL);
    return ST_OK;
}

enum status bench_meet(const struct world *w)
{
    MPI_Request r;
    TRY(mpi_check(MPI_Ibarrier(w->all, &r), "MPI_Ibarrier"));
    return wait_all(&r, 1, NULL, NULL);
}

void bench_end(struct world *w, struct ops *ops)
{
    if (ops->close) ops->close(ops);
    world_stop(w);
}
