/* pdflash - dispatch a subcommand and turn its status into the exit code. Nothing else exits. */
#include <stdio.h>
#include <string.h>

#include "build_id.h"
#include "cmd/bench.h"
#include "cmd/options.h"

static const struct {
    const char *name;
    enum status (*run)(int argc, char **argv);
    const char *what;
} command[] = {
    {"prompts", cmd_prompts, "questions (JSONL) to prompts.h5: chat template, tokens"},
    {"plan", cmd_plan, "what a run would do: ranks, layers, copies, bytes, memory; needs no MPI"},
    {"run", cmd_run, "prefill, transfer, decode, grade: prompts.h5 to results.h5 (under mpirun)"},
    {"show", cmd_show, "summary of a results.h5"},
    {"grade", cmd_grade, "GSM8K accuracy of a results.h5 under four rules"},
    {"bench", cmd_bench, "time of every kernel at real K3 shapes: pdflash bench kernels"},
};

static void help(FILE *f)
{
    fprintf(f, "pdflash - Kimi-K3 batch inference: pipeline prefill, RMA state transfer, DFlash decode\n\nusage: pdflash COMMAND [options]\n\n");
    for (size_t i = 0; i < sizeof command / sizeof command[0]; i++)
        fprintf(f, "  %-9s %s\n", command[i].name, command[i].what);
    fprintf(f, "\n`pdflash COMMAND --help` lists a command's options. Exit codes: 0 complete, 1 usage, 2 refused,\n"
               "3 fault, 4 watchdog or incomplete, 75 interrupted (resumable).\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 1;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("pdflash %s\n", PDFLASH_GIT);
        return 0;
    }
    for (size_t i = 0; i < sizeof command / sizeof command[0]; i++)
        if (strcmp(argv[1], command[i].name) == 0) return err_exit_code(command[i].run(argc - 2, argv + 2));
    fprintf(stderr, "pdflash: '%s' is not a command\n\n", argv[1]);
    help(stderr);
    return 1;
}
