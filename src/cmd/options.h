/* options - what the user asked for: the struct, and the one table that parses, explains and echoes it. */
#ifndef PDFLASH_CMD_OPTIONS_H
#define PDFLASH_CMD_OPTIONS_H

#include "base/opt.h"
#include "ckpt/config.h"
#include "model/sampling.h"

enum command {
    CMD_PROMPTS = 1, CMD_PLAN = 2, CMD_RUN = 4, CMD_SHOW = 8, CMD_GRADE = 16, CMD_BENCH_TRANSFER = 32, CMD_MERGE = 64,
    CMD_REBUILD = 128, CMD_DIAGNOSE = 256, CMD_BENCH_COLL = 512, CMD_BENCH_KERNELS = 1024
};
enum { BENCH_REPS_MAX = 200 };

/* indices of OPT_CHOICE values, in the order of the table's lists */
enum opt_device { DEVICE_CPU, DEVICE_CUDA, DEVICE_AUTO /* bench kernels only */ };
enum opt_act { OPT_ACT_FP32, OPT_ACT_BF16 };
enum opt_kv { OPT_KV_BF16, OPT_KV_FP32 };
enum opt_comm { OPT_COMM_AUTO, OPT_COMM_MPI, OPT_COMM_SHM, OPT_COMM_NCCL };
enum opt_draft { OPT_DRAFT_AUTO, OPT_DRAFT_ARGMAX, OPT_DRAFT_SAMPLE };
enum opt_graphs { OPT_GRAPHS_AUTO, OPT_GRAPHS_ON, OPT_GRAPHS_OFF };
enum opt_mla { OPT_MLA_ABSORBED, OPT_MLA_EXPANDED };

struct options {
    /* files */
    const char *model, *draft, *prompts, *out, *evidence, *dump_logits, *tag;
    const char *jsonl, *h5, *shots_from; /* prompts */
    const char *journal;            /* rebuild */
    int json;                       /* show, plan, bench */
    const char *html, *trace, *csv, *reference; /* show */
    const char *sizes;              /* bench transfer */
    const char *rows;               /* bench collectives */
    const char *only;               /* bench kernels */
    int mib, reps;
    /* topology */
    const char *prefill, *decode;
    int single;
    int dedupe, node_size;
    double gpu_memory;              /* plan: GiB of a device; 0: not given */
    /* work */
    const char *spec, *shard;
    int block, adaptive, min_context, concurrency, max_new, chunk, page, slots, limit, shots, thinking, max_prompt, format, raw;
    /* numerics and transport */
    int device, graphs, act, kv, comm, transport, window, mla_prefill, verify, isa;
    /* running */
    double watchdog, confidence, progress;
    /* sampling */
    double temperature, top_p, draft_temperature;
    int top_k, seed, draft_sampling;
    int resume, force_new, force, debug;
    struct opt_list inject;
    /* diagnose */
    int anchors;
    const char *plant;
};

extern const struct opt_row options_table[];

/* options_parse - words of a subcommand; prints help and sets *help_p when a word asks for it (options_is_help). */
int options_is_help(const char *word); /* --help, -h */
enum status options_parse(enum command cmd, int argc, char **argv, struct options *o_p, const char **pos, int max_pos,
                          int *n_pos_p, int *help_p);
/* options_given - whether an option with a text value stands on the command line (of a struct that options_parse filled).
 * options_single - ST_E_USAGE for options that mean nothing in one group: --prefill. */
int options_given(const struct options *o, const char *name);
enum status options_single(const struct options *o);
/* options_spec - the kind of draft asked for. eagle3 is refused by name (ST_E_CONFIG); an unknown word, no --draft, a --block
 * without speculation or --adaptive or --spec-min-context without speculation, a --confidence without dspark is a wrong command line (ST_E_USAGE). */
enum status options_spec(const struct options *o, enum draft_kind *kind_p);

/* options_sampling - how tokens are drawn; all zero with --temperature 0, whatever else is said of the draws, which
 * greedy tokens do not depend on. ST_E_USAGE: something is said of drafts that are not sampled. */
enum status options_sampling(const struct options *o, enum draft_kind kind, struct sampling *how_p);

/* options_shard - the rows first .. end-1 of a run of `rows` that --shard K/N names: the K-th of N pieces in order,
 * all of them without --shard. ST_E_USAGE (no K/N with 1 <= K <= N), ST_E_CONFIG (more pieces than rows). */
enum status options_shard(const struct options *o, int rows, int *first_p, int *end_p);

/* one subcommand, for dispatch, help, manual page and completion */
struct command_row {
    const char *name;   /* as typed; "bench transfer" is two words */
    unsigned command;   /* bit of enum command; 0: takes no options of the table */
    enum status (*run)(int argc, char **argv); /* NULL: behind the command of its first word */
    const char *what;
    const char *usage;  /* one or two lines */
};
extern const struct command_row command_table[]; /* ended by a row without name */

/* manual_page - pdflash.1 in man(7) from the two tables; manual_completion - for bash, from the same. */
void manual_page(FILE *f);
void manual_completion(FILE *f);

/* the subcommands */
enum status cmd_prompts(int argc, char **argv);
enum status cmd_plan(int argc, char **argv);
enum status cmd_run(int argc, char **argv);
enum status cmd_show(int argc, char **argv);
enum status cmd_grade(int argc, char **argv);
enum status cmd_merge(int argc, char **argv);
enum status cmd_rebuild(int argc, char **argv);
enum status cmd_bench(int argc, char **argv);
enum status cmd_diagnose(int argc, char **argv);

#endif
