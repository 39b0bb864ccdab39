/* options - what the user asked for: the struct, and the one table that parses, explains and echoes it. */
#ifndef PDFLASH_CMD_OPTIONS_H
#define PDFLASH_CMD_OPTIONS_H

#include "base/opt.h"

enum command { CMD_PROMPTS = 1, CMD_PLAN = 2, CMD_RUN = 4, CMD_SHOW = 8, CMD_GRADE = 16, CMD_BENCH_TRANSFER = 32 };
enum { BENCH_REPS_MAX = 200 };

/* indices of OPT_CHOICE values, in the order of the table's lists */
enum opt_device { DEVICE_CPU, DEVICE_CUDA };
enum opt_act { OPT_ACT_FP32, OPT_ACT_BF16 };
enum opt_kv { OPT_KV_BF16, OPT_KV_FP32 };
enum opt_comm { OPT_COMM_AUTO, OPT_COMM_MPI, OPT_COMM_SHM, OPT_COMM_NCCL };
enum opt_mla { OPT_MLA_ABSORBED, OPT_MLA_EXPANDED };

struct options {
    /* files */
    const char *model, *draft, *prompts, *out, *evidence, *dump_logits, *tag;
    const char *jsonl, *shots_from; /* prompts */
    int json;                       /* show, plan, bench */
    const char *html, *trace, *csv, *reference; /* show */
    const char *sizes;              /* bench transfer */
    int mib, reps;
    /* topology */
    const char *prefill, *decode;
    int single;
    int dedupe, node_size;
    /* work */
    const char *spec;
    int block, concurrency, max_new, chunk, page, slots, limit, shots, thinking, max_prompt;
    /* numerics and transport */
    int device, act, kv, comm, transport, window, mla_prefill, verify, isa;
    /* running */
    double watchdog;
    int resume, force_new, force, debug;
    struct opt_list inject;
};

extern const struct opt_row options_table[];

/* options_parse - words of a subcommand; prints help and sets *help_p when --help is among them. */
enum status options_parse(enum command cmd, int argc, char **argv, struct options *o_p, const char **pos, int max_pos,
                          int *n_pos_p, int *help_p);
/* options_spec - 1 dflash, 0 none. Methods that this version lacks are refused by name (ST_E_CONFIG); an unknown word,
 * no --draft, or a --block without speculation is a wrong command line (ST_E_USAGE). */
enum status options_spec(const struct options *o, int *dflash_p);

/* the subcommands */
enum status cmd_prompts(int argc, char **argv);
enum status cmd_plan(int argc, char **argv);
enum status cmd_run(int argc, char **argv);
enum status cmd_show(int argc, char **argv);
enum status cmd_grade(int argc, char **argv);
enum status cmd_bench(int argc, char **argv);

#endif
