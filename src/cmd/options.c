#include "cmd/options.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct options, field)
#define BIG 2147483647.0
/* not OPT_CHOICE, for eagle3 is refused with a reason and a code of its own; completion offers these */
#define SPECS "dflash,dspark,none"

/* clang-format off */
const struct opt_row options_table[] = {
    /* name         kind        where            default    value     choices   min max  commands  required help */
    {"model",       OPT_STR,    AT(model),       NULL,      "DIR",    NULL, 0, 0, CMD_PROMPTS | CMD_PLAN | CMD_RUN | CMD_DIAGNOSE, 1, "Kimi-K3 checkpoint: config.json, safetensors, tiktoken.model"},
    {"draft",       OPT_STR,    AT(draft),       NULL,      "DIR",    NULL, 0, 0, CMD_PLAN | CMD_RUN | CMD_DIAGNOSE, 0, "DFlash or DSpark draft checkpoint; needed unless --spec none"},
    {"prompts",     OPT_STR,    AT(prompts),     NULL,      "FILE",   NULL, 0, 0, CMD_RUN | CMD_DIAGNOSE, 1, "prompts.h5 made by `pdflash prompts`"},
    {"out",         OPT_STR,    AT(out),         NULL,      "FILE",   NULL, 0, 0, CMD_PROMPTS | CMD_RUN | CMD_MERGE | CMD_REBUILD, 1, "file to write (HDF5)"},
    {"out",         OPT_STR,    AT(out),         NULL,      "FILE",   NULL, 0, 0, CMD_DIAGNOSE, 0, "write everything that was measured there (HDF5, group /diagnose)"},
    {"journal",     OPT_STR,    AT(journal),     NULL,      "FILE",   NULL, 0, 0, CMD_REBUILD, 1, "journal of a run, RESULTS.h5.jsonl; only read"},
    {"jsonl",       OPT_STR,    AT(jsonl),       NULL,      "FILE",   NULL, 0, 0, CMD_PROMPTS, 0, "GSM8K questions, one {\"question\", \"answer\"} a line, plain or gzip; this or --h5"},
    {"h5",          OPT_STR,    AT(h5),          NULL,      "FILE",   NULL, 0, 0, CMD_PROMPTS, 0, "questions from HDF5: a prompts file (made anew), or text datasets /question and /answer"},
    {"limit",       OPT_INT,    AT(limit),       "0",       "N",      NULL, 0, BIG, CMD_PROMPTS | CMD_RUN, 0, "use the first N rows only; 0: all"},
    {"limit",       OPT_INT,    AT(limit),       "4",       "N",      NULL, 0, BIG, CMD_DIAGNOSE, 0, "use the first N rows only; 0: all"},
    {"shard",       OPT_STR,    AT(shard),       NULL,      "K/N",    NULL, 0, 0, CMD_RUN, 0, "run the K-th of N pieces of the rows; `pdflash merge` joins the results"},
    {"shots",       OPT_INT,    AT(shots),       "0",       "N",      NULL, 0, 64, CMD_PROMPTS, 0, "worked examples before each question"},
    {"shots-from",  OPT_STR,    AT(shots_from),  NULL,      "FILE",   NULL, 0, 0, CMD_PROMPTS, 0, "where the examples come from (first rows), JSONL or HDF5; without it: the train file beside the questions (test.jsonl: train.jsonl), for --format sglang the questions themselves"},
    {"format",      OPT_CHOICE, AT(format),      "openai",  NULL,     "openai,lm-eval,sglang", 0, 0, CMD_PROMPTS, 0, "wording of examples and question; openai: as they are, each example as two turns; lm-eval, sglang: \"Question: ...\", \"Answer:\" in one message"},
    {"raw",         OPT_FLAG,   AT(raw),         NULL,      NULL,     NULL, 0, 0, CMD_PROMPTS, 0, "plain text to be continued, no chat template"},
    {"thinking",    OPT_CHOICE, AT(thinking),    "max",     NULL,     "off,low,high,max", 0, 0, CMD_PROMPTS, 0, "K3 chat level"},
    {"prefill",     OPT_STR,    AT(prefill),     "pp=1,tp=1", "pp=,tp=,ep=", NULL, 0, 0, CMD_PLAN | CMD_RUN | CMD_BENCH_TRANSFER, 0, "prefill group: stages, tensor and expert parallel"},
    {"decode",      OPT_STR,    AT(decode),      "tp=1",    "tp=,ep=", NULL, 0, 0, CMD_PLAN | CMD_RUN | CMD_BENCH_TRANSFER, 0, "decode group"},
    {"single",      OPT_FLAG,   AT(single),      NULL,      NULL,     NULL, 0, 0, CMD_PLAN | CMD_RUN, 0, "one group (--decode) does both, without windows: the reference"},
    {"spec",        OPT_STR,    AT(spec),        "dflash",  SPECS, SPECS, 0, 0, CMD_PLAN | CMD_RUN | CMD_DIAGNOSE, 0, "speculation; must be what --draft is"},
    {"block",       OPT_INT,    AT(block),       "0",       "N",      NULL, 0, 4096, CMD_RUN, 0, "verify N rows a step; 0: as trained"},
    {"confidence",  OPT_DOUBLE, AT(confidence),  "0",       "P",      NULL, 0, 1, CMD_RUN, 0, "dspark: verify the drafts before the first whose confidence is below P; 0: all"},
    {"adaptive",    OPT_FLAG,   AT(adaptive),    NULL,      NULL,     NULL, 0, 0, CMD_RUN, 0, "verify as many rows a step as measured acceptance and step times make worth it"},
    {"spec-min-context", OPT_INT, AT(min_context), "0",     "N",      NULL, 0, BIG, CMD_RUN, 0, "no drafts for a request of fewer than N positions (prompt and answer so far)"},
    {"temperature", OPT_DOUBLE, AT(temperature), "0",       "T",      NULL, 0, 1000, CMD_RUN, 0, "draw tokens from the target's distribution at T; 0: greedy"},
    {"top-k",       OPT_INT,    AT(top_k),       "0",       "K",      NULL, 0, BIG, CMD_RUN, 0, "draw among the K likeliest tokens (of equal ones the lower id is first); 0: all"},
    {"top-p",       OPT_DOUBLE, AT(top_p),       "1",       "P",      NULL, 1e-6, 1, CMD_RUN, 0, "then among the likeliest that hold P of what is left, the one that crosses P included"},
    {"seed",        OPT_INT,    AT(seed),        "0",       "S",      NULL, 0, BIG, CMD_RUN, 0, "of the draws; with question and position it fixes each of them, whatever the topology, concurrency or resume"},
    {"draft-sampling", OPT_CHOICE, AT(draft_sampling), "auto", NULL,  "auto,argmax,sample", 0, 0, CMD_RUN, 0, "drafts when --temperature is above 0; auto: as trained, dflash argmax, dspark sample; both are lossless"},
    {"draft-temperature", OPT_DOUBLE, AT(draft_temperature), "0", "T", NULL, 0, 1000, CMD_RUN, 0, "temperature of sampled drafts; 0: that of --temperature"},
    {"concurrency", OPT_INT,    AT(concurrency), "8",       "N",      NULL, 1, 4096, CMD_PLAN | CMD_RUN, 0, "requests decoding at once"},
    {"slots",       OPT_INT,    AT(slots),       "0",       "N",      NULL, 0, 256, CMD_PLAN | CMD_RUN, 0, "staging slots = requests in the pipeline; 0: concurrency, at most 8"},
    {"max-new",     OPT_INT,    AT(max_new),     "512",     "N",      NULL, 1, BIG, CMD_PLAN | CMD_RUN, 0, "output limit in tokens; truncation is reported"},
    {"max-new",     OPT_INT,    AT(max_new),     "64",      "N",      NULL, 2, 4096, CMD_DIAGNOSE, 0, "tokens that are decoded of a prompt, at most"},
    {"max-prompt",  OPT_INT,    AT(max_prompt),  "0",       "N",      NULL, 0, BIG, CMD_PROMPTS | CMD_PLAN | CMD_RUN, 0, "longest prompt in tokens (run: that the pools hold); longer ones are refused by row, never cut; 0: 8192 (plan), longest of the file (run), what the model's positions allow (prompts)"},
    {"chunk",       OPT_INT,    AT(chunk),       "8192",    "TOKENS", NULL, 1, BIG, CMD_PLAN | CMD_RUN | CMD_DIAGNOSE, 0, "prefill chunk"},
    {"page",        OPT_INT,    AT(page),        "64",      "TOKENS", NULL, 1, 65536, CMD_PLAN | CMD_RUN | CMD_DIAGNOSE, 0, "tokens per page"},
    {"device",      OPT_CHOICE, AT(device),      "cpu",     NULL,     "cpu,cuda", 0, 0, CMD_RUN | CMD_BENCH_TRANSFER | CMD_BENCH_COLL, 0, "backend"},
    {"device",      OPT_CHOICE, AT(device),      "auto",    NULL,     "cpu,cuda,auto", 0, 0, CMD_BENCH_KERNELS, 0, "backend; auto: a GPU if there is one"},
    {"graphs",      OPT_CHOICE, AT(graphs),      "auto",    NULL,     "auto,on,off", 0, 0, CMD_RUN, 0, "with --device cuda: start the launches of a decode step together, as CUDA graphs; auto: when the decode group is one rank, where no sum waits for the host"},
    {"act",         OPT_CHOICE, AT(act),         "fp32",    NULL,     "fp32,bf16", 0, 0, CMD_RUN, 0, "activations of the matrix products"},
    {"act",         OPT_CHOICE, AT(act),         "bf16",    NULL,     "fp32,bf16", 0, 0, CMD_BENCH_KERNELS, 0, "activations of the matrix products"},
    {"kv-dtype",    OPT_CHOICE, AT(kv),          "bf16",    NULL,     "bf16,fp32", 0, 0, CMD_PLAN | CMD_RUN | CMD_DIAGNOSE, 0, "latent rows, conv tails, draft K/V"},
    {"mla-prefill", OPT_CHOICE, AT(mla_prefill), "absorbed", NULL,    "absorbed,expanded", 0, 0, CMD_RUN, 0, "form of MLA in prefill"},
    {"isa",         OPT_CHOICE, AT(isa),         "auto",    NULL,     "auto,scalar,avx2,avx512,avx512bf16,amx", 0, 0, CMD_RUN | CMD_DIAGNOSE, 0, "CPU kernels; auto: the best that every rank has"},
    {"comm",        OPT_CHOICE, AT(comm),        "auto",    NULL,     "auto,mpi,shm,nccl", 0, 0, CMD_RUN | CMD_BENCH_COLL, 0, "sums of TP groups and hand-off between stages; auto: NCCL where the ranks of a group have a GPU each, else through host memory (shared memory, MPI); nccl: refused where ranks share a GPU; mpi, shm: host memory"},
    {"transport",   OPT_CHOICE, AT(transport),   "rma",     NULL,     "rma,sendrecv", 0, 0, CMD_RUN | CMD_BENCH_TRANSFER, 0, "prefill to decode"},
    {"window",      OPT_CHOICE, AT(window),      "allocate", NULL,    "allocate,create", 0, 0, CMD_RUN | CMD_BENCH_TRANSFER, 0, "how RMA windows are made"},
    {"dedupe",      OPT_FLAG,   AT(dedupe),      NULL,      NULL,     NULL, 0, 0, CMD_PLAN | CMD_RUN, 0, "one copy a node of MLA rows and draft K/V that its decode ranks hold alike; the others read it there"},
    {"node-size",   OPT_INT,    AT(node_size),   "0",       "N",      NULL, 0, 65536, CMD_PLAN | CMD_RUN, 0, "for --dedupe: take every N decode ranks for a node; 0: the hosts (plan: needs a number)"},
    {"gpu-memory",  OPT_DOUBLE, AT(gpu_memory),  "0",       "GIB",    NULL, 0, 1e6, CMD_PLAN, 0, "memory of a device in GiB, one a rank: refuse what does not fit (weights, state, activations, collectives and operations); 0: not checked"},
    {"verify",      OPT_FLAG,   AT(verify),      NULL,      NULL,     NULL, 0, 0, CMD_RUN, 0, "checksums, NaN pre-fill and scan of everything that moves"},
    {"watchdog",    OPT_DOUBLE, AT(watchdog),    "300",     "SECONDS", NULL, 1, 1e6, CMD_RUN, 0, "end a run that makes no progress"},
    {"progress",    OPT_DOUBLE, AT(progress),    "-1",      "SECONDS", NULL, -1, 1e6, CMD_RUN, 0, "a line of progress so often; 0: none; -1: every second on a terminal, in place, and every 30 elsewhere"},
    {"resume",      OPT_FLAG,   AT(resume),      NULL,      NULL,     NULL, 0, 0, CMD_RUN, 0, "continue --out: skip its finished rows"},
    {"force-new",   OPT_FLAG,   AT(force_new),   NULL,      NULL,     NULL, 0, 0, CMD_RUN, 0, "replace --out if it holds results, and the files of --dump-logits"},
    {"force",       OPT_FLAG,   AT(force),       NULL,      NULL,     NULL, 0, 0, CMD_PROMPTS | CMD_MERGE | CMD_REBUILD | CMD_DIAGNOSE, 0, "replace --out if it holds what this command writes"},
    {"evidence",    OPT_STR,    AT(evidence),    NULL,      "DIR",    NULL, 0, 0, CMD_RUN, 0, "write command, environment, versions, plan, descriptors and logs there; must be empty or new"},
    {"dump-logits", OPT_STR,    AT(dump_logits), NULL,      "FILE",   NULL, 0, 0, CMD_RUN, 0, "write the logits of every committed position (slow; FILE and FILE.prefill)"},
    {"tag",         OPT_STR,    AT(tag),         "run",     "TEXT",   NULL, 0, 0, CMD_RUN, 0, "part of the run id"},
    {"inject",      OPT_LIST,   AT(inject),      NULL,      "KIND:ARGS", NULL, 0, 0, CMD_RUN, 0, "faults for tests: prefill.page=32, kill:RANK@ORDER, drop:COMP@RANK, delay:STAGE@MS, flip:COMP@RANK, fail:STAGE@REQUEST, abort:REQUEST@TICKS, hold:REQUEST, build:RANK"},
    {"anchors",     OPT_INT,    AT(anchors),     "48",      "N",      NULL, 1, 1e6, CMD_DIAGNOSE, 0, "positions that every hypothesis drafts from, over all prompts"},
    {"plant",       OPT_STR,    AT(plant),       NULL,      "FAULT",  NULL, 0, 0, CMD_DIAGNOSE, 0, "a fault for tests, to be found: tap-early, prefix, slots, mask, rope, conv, kda, draft-kv, fc, window"},
    {"json",        OPT_FLAG,   AT(json),        NULL,      NULL,     NULL, 0, 0, CMD_SHOW | CMD_PLAN | CMD_BENCH_TRANSFER | CMD_BENCH_COLL, 0, "print one JSON object"},
    {"html",        OPT_STR,    AT(html),        NULL,      "FILE",   NULL, 0, 0, CMD_SHOW, 0, "write one self-contained page: all charts, and several results compared"},
    {"trace",       OPT_STR,    AT(trace),       NULL,      "FILE",   NULL, 0, 0, CMD_SHOW, 0, "write requests and ranks over time as Chrome trace events (Perfetto)"},
    {"csv",         OPT_STR,    AT(csv),         NULL,      "FILE",   NULL, 0, 0, CMD_SHOW, 0, "write one line a row of the results"},
    {"reference",   OPT_STR,    AT(reference),   NULL,      "FILE",   NULL, 0, 0, CMD_SHOW, 0, "earlier results (a --spec none run), or JSON with output_tps_decode: print the decision, continue or diagnose"},
    {"sizes",       OPT_STR,    AT(sizes),       "4,16,64,256", "KIB,...", NULL, 0, 0, CMD_BENCH_TRANSFER, 0, "bytes of one head's page, in KiB"},
    {"mib",         OPT_INT,    AT(mib),         "32",      "N",      NULL, 1, 65536, CMD_BENCH_TRANSFER, 0, "MiB to each decode rank in a repetition"},
    {"reps",        OPT_INT,    AT(reps),        "15",      "N",      NULL, 1, BENCH_REPS_MAX, CMD_BENCH_TRANSFER | CMD_BENCH_COLL, 0, "repetitions (collectives: at most, in a batch); medians are printed"},
    {"rows",        OPT_STR,    AT(rows),        "1,16,128,512,8192", "N,...", NULL, 0, 0, CMD_BENCH_COLL, 0, "rows of 7168 values of a sum and of a chunk"},
    {"only",        OPT_STR,    AT(only),        NULL,      "TEXT",   NULL, 0, 0, CMD_BENCH_KERNELS, 0, "only rows whose name or shape contains TEXT, after the first one, the copy that shares refer to"},
    {"debug",       OPT_FLAG,   AT(debug),       NULL,      NULL,     NULL, 0, 0, CMD_RUN, 0, "more log lines"},
    {NULL, OPT_FLAG, 0, NULL, NULL, NULL, 0, 0, 0, 0, NULL},
};
/* clang-format on */

/* clang-format off */
const struct command_row command_table[] = {
    {"prompts", CMD_PROMPTS, cmd_prompts, "questions (JSONL) to prompts.h5: chat template, tokens",
     "pdflash prompts --jsonl FILE --model DIR --out prompts.h5 [options]"},
    {"plan", CMD_PLAN, cmd_plan, "what a run would do: ranks, layers, copies, bytes, memory; needs no MPI",
     "pdflash plan --model DIR --draft DIR --prefill pp=8,tp=4,ep=4 --decode tp=32,ep=4 [options]"},
    {"run", CMD_RUN, cmd_run, "prefill, transfer, decode, grade: prompts.h5 to results.h5 (under mpirun)",
     "mpirun -n N pdflash run --model DIR --draft DIR --prompts prompts.h5 --out results.h5 \\\n"
     "           --prefill pp=8,tp=1 --decode tp=8 [options]       N = pp*tp of prefill + tp of decode"},
    {"show", CMD_SHOW, cmd_show, "summary of a results.h5", "pdflash show results.h5 [more.h5 ...] [--json] [--html FILE] [--trace FILE] [--csv FILE] [--reference FILE]"},
    {"grade", CMD_GRADE, cmd_grade, "GSM8K accuracy of a results.h5 under four rules", "pdflash grade results.h5"},
    {"diagnose", CMD_DIAGNOSE, cmd_diagnose, "why a draft is rejected: settings, rounds, state and hypotheses, measured; needs no MPI",
     "pdflash diagnose --model DIR --draft DIR --prompts prompts.h5 [--spec dspark] [--limit N] [--out FILE.h5] [options]"},
    {"merge", CMD_MERGE, cmd_merge, "results of shards (run --shard) to one results.h5",
     "pdflash merge --out all.h5 [--force] PART.h5..."},
    {"rebuild", CMD_REBUILD, cmd_rebuild, "a results.h5 from its journal alone",
     "pdflash rebuild --journal results.h5.jsonl --out results.h5 [--force]"},
    {"bench", 0, cmd_bench, "measurements: `pdflash bench --help` lists them", "pdflash bench NAME [options]"},
    {"bench transfer", CMD_BENCH_TRANSFER, NULL, "how fast state moves from prefill to decode (under mpirun)",
     "mpirun -n N pdflash bench transfer --prefill tp=S --decode tp=D [options]\n"
     "           N = S + D; S sources work at once, so no more of them than processors; D a multiple of S"},
    {"bench collectives", CMD_BENCH_COLL, NULL, "sums of a TP group and the hand-off between stages, by every path, beside NCCL's own (under mpirun)",
     "mpirun -n N pdflash bench collectives [--device cuda] [--comm nccl] [--rows 16,8192] [options]\n"
     "           one group of N ranks, one pipeline of N stages"},
    {"bench kernels", CMD_BENCH_KERNELS, NULL, "every operation at the real Kimi-K3's per-rank shapes, on the CPU or a GPU",
     "pdflash bench kernels [--device cpu|cuda] [--act bf16|fp32] [--only TEXT]\n"
     "           random weights, no checkpoint; medians, with CUDA of graph replays"},
    {NULL, 0, NULL, NULL, NULL},
};
/* clang-format on */

static const char *usage(enum command cmd)
{
    const struct command_row *c = command_table;
    while (c->name && c->command != (unsigned)cmd) c++;
    return c->name ? c->usage : "";
}

int options_is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

enum status options_parse(enum command cmd, int argc, char **argv, struct options *o_p, const char **pos, int max_pos,
                          int *n_pos_p, int *help_p)
{
    *help_p = 0;
    for (int i = 0; i < argc; i++)
        if (options_is_help(argv[i])) {
            printf("usage: %s\n\noptions:\n", usage(cmd));
            opt_help(options_table, (unsigned)cmd, stdout);
            *help_p = 1;
            return ST_OK;
        }
    memset(o_p, 0, sizeof *o_p);
    return opt_parse(options_table, (unsigned)cmd, argc, argv, o_p, pos, max_pos, n_pos_p);
}

int options_given(const struct options *o, const char *name)
{
    const struct opt_row *r = options_table;
    while (r->name && strcmp(r->name, name) != 0) r++;
    if (!r->name || r->kind != OPT_STR) return 0;
    return *(const char *const *)((const char *)o + r->offset) != r->def; /* a default is the table's own text */
}

enum status options_single(const struct options *o)
{
    if (!o->single || !options_given(o, "prefill")) return ST_OK;
    return ERR(ST_E_USAGE, "--prefill has no meaning with --single: one group, that of --decode, does both; leave one out");
}

enum status options_spec(const struct options *o, enum draft_kind *kind_p)
{
    enum draft_kind kind = DRAFT_NONE;
    while (kind <= DRAFT_DSPARK && strcmp(o->spec, draft_kind_name(kind)) != 0) kind++;
    if (strcmp(o->spec, "eagle3") == 0)
        return ERR(ST_E_CONFIG, "--spec eagle3 is refused: that baseline is paused; use dflash, dspark or none");
    if (kind > DRAFT_DSPARK)
        return ERR(ST_E_USAGE, "--spec: '%s' is unknown; choose one of dflash,dspark,none", o->spec);
    if (kind && !o->draft) return ERR(ST_E_USAGE, "--draft DIR is required with --spec %s; or say --spec none", o->spec);
    if (!kind && o->block) return ERR(ST_E_USAGE, "--block %d has no meaning with --spec none", o->block);
    if (kind != DRAFT_DSPARK && o->confidence > 0)
        return ERR(ST_E_USAGE, "--confidence %g has no meaning with --spec %s", o->confidence, o->spec);
    if (!kind && o->adaptive) return ERR(ST_E_USAGE, "--adaptive has no meaning with --spec none");
    if (!kind && o->min_context) return ERR(ST_E_USAGE, "--spec-min-context %d has no meaning with --spec none", o->min_context);
    *kind_p = kind;
    return ST_OK;
}

static enum status refuse_sampling(const struct options *o, enum draft_kind kind, int samples)
{
    static const char none[] = "--spec none";
    char text[48];
    snprintf(text, sizeof text, kind ? "--temperature 0" : none);
    int idle = !kind || o->temperature == 0;
    if (o->draft_sampling == OPT_DRAFT_SAMPLE && idle)
        return ERR(ST_E_USAGE, "--draft-sampling sample has no meaning with %s", text);
    if (o->draft_sampling == OPT_DRAFT_ARGMAX && !kind)
        return ERR(ST_E_USAGE, "--draft-sampling argmax has no meaning with %s", text);
    if (o->draft_temperature > 0 && !samples)
        return ERR(ST_E_USAGE, "--draft-temperature %g has no meaning with %s", o->draft_temperature,
                   idle ? text : "drafts that are not sampled");
    if (samples && o->adaptive) /* which rows are verified decides which of the numbers a token takes */
        return ERR(ST_E_USAGE, "--adaptive with sampled drafts: the tokens would depend on the clock; use --draft-sampling argmax");
    return ST_OK;
}

enum status options_sampling(const struct options *o, enum draft_kind kind, struct sampling *how_p)
{
    int samples = o->draft_sampling == OPT_DRAFT_SAMPLE || (o->draft_sampling == OPT_DRAFT_AUTO && kind == DRAFT_DSPARK);
    samples = samples && kind && o->temperature > 0;
    TRY(refuse_sampling(o, kind, samples));
    memset(how_p, 0, sizeof *how_p);
    if (o->temperature == 0) return ST_OK;
    how_p->temperature = o->temperature;
    how_p->top_p = o->top_p;
    how_p->top_k = o->top_k;
    how_p->seed = (uint64_t)o->seed;
    how_p->draws_drafts = samples;
    how_p->draft_temperature = samples ? o->draft_temperature : 0;
    return ST_OK;
}

/* digits up to end, which is stepped over; at most INT32_MAX */
static int whole(const char **s_p, char end, int64_t *v_p)
{
    const char *s = *s_p;
    int64_t v = 0;
    while (*s >= '0' && *s <= '9' && v <= INT32_MAX) v = 10 * v + (*s++ - '0');
    if (s == *s_p || *s != end || v > INT32_MAX) return 0;
    *v_p = v;
    *s_p = s + 1;
    return 1;
}

enum status options_shard(const struct options *o, int rows, int *first_p, int *end_p)
{
    int64_t k = 1, n = 1;
    if (o->shard) {
        const char *s = o->shard;
        if (!whole(&s, '/', &k) || !whole(&s, 0, &n) || k < 1 || k > n)
            return ERR(ST_E_USAGE, "--shard: '%s' is no K/N with 1 <= K <= N, e.g. 2/4", o->shard);
        if (n > rows)
            return ERR(ST_E_CONFIG, "--shard %s: the run has %d rows, fewer than %lld pieces; make fewer", o->shard,
                       rows, (long long)n);
    }
    *first_p = (int)(rows * (k - 1) / n);
    *end_p = (int)(rows * k / n);
    return ST_OK;
}
