/* bench - pdflash bench NAME: finds the measurement by name and runs it. */
#include "cmd/bench.h"

#include <stdio.h>
#include <string.h>

#include "cmd/bench_kernels.h"
#include "cmd/options.h"

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
    if (argc > 0 && strcmp(argv[0], "--help") == 0) {
        help(stdout);
        return ST_OK;
    }
    for (int i = 0; argc > 0 && i < N_TABLE; i++)
        if (strcmp(argv[0], table[i].name) == 0) return table[i].run(argc - 1, argv + 1);
    help(stderr);
    return argc > 0 ? ERR(ST_E_USAGE, "bench: '%s' is not a measurement", argv[0])
                    : ERR(ST_E_USAGE, "bench: name a measurement");
}
