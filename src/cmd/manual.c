/* manual - pdflash.1 and the completion of bash, from the tables of commands, options and exit codes.
 *
 * Running text is broken at 78 bytes and after each sentence, as the man(7) lint tools ask for. */
#include <string.h>

#include "build_id.h"
#include "cmd/options.h"

#define MANUAL_DATE "2026-12-01" /* of the text below */

/* one character as roff wants it: hyphens that can be copied, nothing that is a request or a quote */
static void put(FILE *f, char c)
{
    static const struct {
        char c;
        const char *text;
    } special[] = {{'-', "\\-"},   {'\\', "\\e"},  {'`', "\\(ga"}, {'\'', "\\(aq"},
                   {'^', "\\(ha"}, {'~', "\\(ti"}, {'"', "\\(dq"}};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        if (special[i].c == c) {
            fputs(special[i].text, f);
            return;
        }
    fputc(c, f);
}

static void put_word(FILE *f, const char *s, size_t n)
{
    if (n && s[0] == '.') fputs("\\&", f);
    for (size_t i = 0; i < n; i++) put(f, s[i]);
}

/* text filled into lines; one space between words */
static void text(FILE *f, const char *s)
{
    size_t column = 0;
    while (*s) {
        s += strspn(s, " ");
        size_t n = strcspn(s, " ");
        if (n == 0) break;
        if (column && column + 1 + 2 * n > 76) column = 0, fputc('\n', f);
        if (column) fputc(' ', f), column++;
        put_word(f, s, n);
        column += 2 * n; /* as if every character were escaped: never too long */
        char end = s[n - 1];
        s += n;
        if (end == '.' || end == '?' || end == '!') column = 0, fputs(*s ? "\n" : "", f);
    }
    fputc('\n', f);
}

/* lines as they stand */
static void verbatim(FILE *f, const char *s)
{
    fputs(".EX\n", f);
    for (const char *p = s; *p;) {
        size_t n = strcspn(p, "\n");
        if (p[0] == '.' || p[0] == '\'') fputs("\\&", f);
        put_word(f, p, n);
        fputc('\n', f);
        p += n + (p[n] == '\n');
    }
    fputs(".EE\n", f);
}

static void section(FILE *f, const char *name)
{
    fprintf(f, ".SH %s\n", name);
}

static void item(FILE *f, const char *name, const char *what)
{
    fputs(".TP\n.B ", f);
    put_word(f, name, strlen(name));
    fputc('\n', f);
    text(f, what);
}

/* ---- the page ------------------------------------------------------------------------------------- */

static void commands(FILE *f)
{
    section(f, "COMMANDS");
    for (const struct command_row *c = command_table; c->name; c++) {
        item(f, c->name, c->what);
        fputs(".IP\n", f);
        verbatim(f, c->usage);
    }
}

/* what the table says of a row beyond its help */
static void facts(FILE *f, const struct opt_row *r)
{
    char line[512], list[256] = "";
    size_t n = 0;
    for (const struct command_row *c = command_table; c->name; c++)
        if (c->command & r->commands) n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", c->name);
    snprintf(line, sizeof line, "For %s.", list);
    text(f, line);
    if (r->required) text(f, "Required.");
    if (r->kind == OPT_LIST) text(f, "May be given more than once.");
    if (r->def && r->kind != OPT_FLAG && !r->required) {
        snprintf(line, sizeof line, "Default: %s.", r->def);
        text(f, line);
    }
    if (r->kind == OPT_INT || r->kind == OPT_DOUBLE) {
        snprintf(line, sizeof line, r->max >= 2147483647.0 ? "At least %.10g." : "From %.10g to %.10g.", r->min,
                 r->max);
        text(f, line);
    }
}

static void options(FILE *f)
{
    section(f, "OPTIONS");
    text(f, "A value follows its option as the next word or after an equals sign. Every command takes --help, or -h.");
    for (const struct opt_row *r = options_table; r->name; r++) {
        const char *value = r->kind == OPT_FLAG ? "" : r->kind == OPT_CHOICE ? r->choices : r->arg ? r->arg : "VALUE";
        fputs(".TP\n.BI \\-\\-", f);
        put_word(f, r->name, strlen(r->name));
        if (value[0]) {
            fputs(" \" \" ", f);
            put_word(f, value, strlen(value));
        }
        fputc('\n', f);
        char help[512];
        snprintf(help, sizeof help, "%s.", r->help);
        text(f, help);
        facts(f, r);
    }
}

static void sampling(FILE *f)
{
    section(f, "SAMPLING");
    text(f, "With a temperature T above 0 a token is drawn with probability proportional to exp(logit / T). Tokens are "
            "ordered by falling logit, equal ones by rising id: top-k keeps the first K, then top-p keeps those before "
            "which less than P of the remaining mass lies.");
    fputs(".PP\n", f);
    text(f, "The random numbers are those of Philox4x32-10 with the seed as key and (question, position, purpose) as "
            "counter. Topology, concurrency, batches and resume do not change a draw.");
    fputs(".PP\n", f);
    text(f, "An argmax draft d holds with probability p(d); else the token is drawn from p without d. Both come from one "
            "number, a draw x from p that is d or is not, so the tokens are those of plain sampling with the same seed. A "
            "draft drawn from q holds when u q(d) < p(d); else the token is drawn from max(p - q, 0), normalised. The law "
            "of the output is that of plain sampling in both cases, whatever q is.");
}

static void figures(FILE *f)
{
    section(f, "ACCEPTANCE FIGURES");
    text(f,
         "A verify step s of a block of B rows proposes p(s) draft tokens (at most B-1), of which the target accepts "
         "a(s) in sequence, and one token of the target itself follows them (the bonus). The steps are those of "
         "requests "
         "that ended by EOS or the output limit; S is their number, and the token that prefill samples is in no step. "
         "a(s) is counted before an answer is clipped at its end or budget, e(s) is what reached the output after it.");
    item(f, "tau", "acceptance length, weighted by steps: sum over s of (a(s) + 1) / S. The bonus is included.");
    item(f, "tau, mean over requests", "the same for each request by itself, then the mean over requests.");
    item(f, "emitted per step", "sum over s of e(s) / S.");
    item(f, "histogram[k]", "the number of steps with a(s) = k, for k from 0 to B-1.");
    item(f, "accept_by_position[i]",
         "survival: the number of steps with a(s) >= i+1, over S, for i from 0 to B-2. The "
         "conditional rate at position i is accept_by_position[i] / accept_by_position[i-1].");
    item(f, "acceptance rate", "sum over s of a(s) / sum over s of p(s); the bonus is not included.");
    fputs(".PP\n", f);
    text(f, "Other programs count otherwise: the acceptance length of vLLM is 1 + accepted / drafts, which is tau; "
            "SGLang divides "
            "all output tokens of a request by its steps, so the token of prefill raises it by 1 / S.");
    item(f, "output_tps_decode, output_tps_total",
         "output tokens over the seconds from the first decode start, or from the "
         "start of the attempt, to the last decode end, each summed over attempts.");
    item(f, "correct",
         "answers that are right under one of four rules (openai, lm_eval_strict, lm_eval_flexible, sglang), over all "
         "questions: truncated, failed and missing ones count as wrong. The interval is Wilson's with z = 1.95996: for "
         "k of n "
         "right, p = k/n, (p + z*z/2n +- z sqrt(p(1-p)/n + z*z/4nn)) / (1 + z*z/n).");
}

static void plan(FILE *f)
{
    section(f, "PLAN FIGURES");
    text(f,
         "plan reads config.json of --model and --draft only. Per rank it counts weights as they are held, the state of "
         "--concurrency requests (decode) or --slots requests (prefill), activations for the largest batch in FP32, "
         "the scratch of collectives and the most that operations work in at a time, windows, and the ring in which a "
         "prefill rank packs what it sends. "
         "--gpu-memory compares the first five with what a device has; windows and ring lie in host memory, and what a "
         "GPU's driver and NCCL take "
         "is not counted. Collectives are those over NCCL, of ranks with a GPU each; on the CPU there are neither such "
         "scratch nor a ring. Operations of a token are two a multiply-add; "
         "bytes of a step assume independent routing: b rows touch "
         "E (1 - (1 - k/E)^b) of the E experts of a layer, of which a token uses k.");
    item(f, "pipeline bubble",
         "the idle share of the prefill stages while a wave of C prompts of equal length passes them: 1 - (sum of all "
         "t(s,j)) / (S T). S is the "
         "number of stages; each prompt is cut into K chunks of --chunk tokens; stage s needs t(s,j) for chunk j; end(s,j) = "
         "max(end(s,j-1), end(s-1,j)) + t(s,j); T is end of the last chunk on the last stage. Request r enters when "
         "request r - slots has left "
         "the last stage, with the slots of --slots, else C but at most 8. With equal times and slots enough this is "
         "(S-1) / (S-1 + C K).");
    text(f, "The times are all equal, or the operations of the chunk on the stage (compute bound), or the bytes that a rank of "
            "it reads and writes (memory bound). Hand-offs, transfers and decode are not in it, so a run idles at least "
            "that much. Show gives the measured busy time of each rank.");
}

static void files(FILE *f)
{
    section(f, "FILES");
    item(f, "prompts.h5", "questions, gold answers, token ids and their digests; HDF5, written by prompts.");
    item(f, "results.h5",
         "HDF5, written by run, merge and rebuild: /requests, /text, /tokens, /accept, /timing, /transfer, /memory, "
         "/grading, /plan, and attributes that say what made it.");
    item(f, "results.h5.jsonl",
         "the journal of a result file: one JSON object a line, on disk before the row is in the file. Keep "
         "it; rebuild makes the file from it.");
    fputs(".PP\n", f);
    text(f,
         "docs/FORMAT.md of the source describes every dataset and attribute; docs/TROUBLESHOOTING.md every refusal.");
}

static void exit_status(FILE *f)
{
    static const struct {
        int code;
        const char *what;
    } more[] = {{0, "complete"},
                {1, "usage: the command line itself"},
                {2, "refused: what files, machine or the other group say against it"},
                {3, "fault, input and output included"},
                {4, "watchdog, or incomplete: rows are missing or failed"},
                {75, "interrupted; --resume goes on"}};
    section(f, "EXIT STATUS");
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        char code[8], line[512];
        size_t n = (size_t)snprintf(line, sizeof line, "%s", more[i].what);
        const char *between = " (";
        snprintf(code, sizeof code, "%d", more[i].code);
        for (int st = ST_OK + 1; st < ST_N; st++)
            if (err_exit_code((enum status)st) == more[i].code) {
                n += (size_t)snprintf(line + n, sizeof line - n, "%s%s", between, err_text((enum status)st));
                between = "; ";
            }
        snprintf(line + n, sizeof line - n, "%s.", between[0] == ';' ? ")" : "");
        item(f, code, line);
    }
}

static void rest(FILE *f)
{
    section(f, "SIGNALS");
    text(f, "USR1, TERM and INT stop a run early: nothing new is admitted, what runs is finished and written, the exit "
            "status is 75. "
            "Under mpirun send USR1 to mpirun, which passes it on.");
    section(f, "ENVIRONMENT");
    item(f, "PDFLASH_ISA", "CPU kernels when --isa is auto, for debugging.");
    item(f, "PDFLASH_NCCL", "file of the NCCL library; libnccl.so.2 without it.");
    item(f, "NCCL_NVLS_ENABLE", "0 unless it is set: NCCL does not use multicast memory.");
    item(f, "SLURM_JOB_ID", "is recorded in the result file.");
    section(f, "EXAMPLES");
    verbatim(f, "pdflash prompts --jsonl test.jsonl --model DIR --out prompts.h5\n"
                "mpirun -n 16 pdflash run --model DIR --draft DIR --prompts prompts.h5 \\\n"
                "    --out results.h5 --prefill pp=8,tp=1 --decode tp=8\n"
                "pdflash show results.h5\n"
                "pdflash grade results.h5");
    text(f, "An array of four jobs, and one result of them:");
    verbatim(f, "mpirun -n 16 pdflash run ... --shard $SLURM_ARRAY_TASK_ID/4 \\\n"
                "    --out part$SLURM_ARRAY_TASK_ID.h5\n"
                "pdflash merge --out results.h5 part1.h5 part2.h5 part3.h5 part4.h5");
    section(f, "SEE ALSO");
    fputs(".BR mpirun (1),\n.BR h5dump (1)\n", f);
}

void manual_page(FILE *f)
{
    fprintf(f, ".\\\" made by `pdflash help --man`\n.TH PDFLASH 1 %s \"pdflash %s\" \"User Commands\"\n", MANUAL_DATE,
            PDFLASH_GIT);
    section(f, "NAME");
    fputs("pdflash \\- Kimi-K3 batch inference with split prefill and decode\n", f);
    section(f, "SYNOPSIS");
    fputs(".B pdflash\n.I command\n.RI [ options ]\n.br\n.B pdflash help\n"
          ".RB [ \\-\\-man \" | \" \\-\\-completion \" | \" \\fIcommand\\fP ]\n.br\n"
          ".B pdflash \\-\\-version\n",
          f);
    section(f, "DESCRIPTION");
    text(f, "pdflash runs Kimi-K3 as one MPI program in two groups of ranks. A prefill group, a pipeline of stages, "
            "reads the prompts; "
            "their state moves through MPI one-sided windows to a tensor-parallel decode group, which decodes with "
            "DFlash block "
            "speculation. Questions come from HDF5, graded answers go to HDF5. A finished row is on disk at once; a "
            "run that was cut "
            "short goes on with --resume.");
    commands(f);
    options(f);
    sampling(f);
    figures(f);
    plan(f);
    files(f);
    exit_status(f);
    rest(f);
}

/* ---- completion ----------------------------------------------------------------------------------- */

static void words(FILE *f, const struct command_row *c)
{
    fprintf(f, "    \"%s\") opts=\"--help", c->name);
    for (const struct opt_row *r = options_table; r->name; r++)
        if (r->commands & c->command) fprintf(f, " --%s", r->name);
    fputs("\" ;;\n", f);
}

static int is_file(const struct opt_row *r)
{
    return r->arg && (strcmp(r->arg, "FILE") == 0 || strcmp(r->arg, "DIR") == 0);
}

/* the words of a choice, after its option behind a command that has this row: another may have others */
static void choice(FILE *f, const struct opt_row *r)
{
    const char *between = "    ";
    for (const struct command_row *c = command_table; c->name; c++)
        if (c->command & r->commands) {
            fprintf(f, "%s\"%s --%s\"", between, c->name, r->name);
            between = " | ";
        }
    fputs(") COMPREPLY=($(compgen -W \"", f);
    for (const char *s = r->choices; *s; s++) fputc(*s == ',' ? ' ' : *s, f);
    fputs("\" -- \"$cur\")); return ;;\n", f);
}

void manual_completion(FILE *f)
{
    const char *between = "";
    fputs("# bash completion of pdflash, made by `pdflash help --completion`\n_pdflash()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd= opts= i\n"
          "    COMPREPLY=()\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        case ${COMP_WORDS[i]} in\n        -*) break ;;\n        *) cmd=\"${cmd:+$cmd }${COMP_WORDS[i]}\" "
          ";;\n        esac\n"
          "        [ \"$cmd\" = bench ] || break\n    done\n    case \"$cmd $prev\" in\n",
          f);
    for (const struct opt_row *r = options_table; r->name; r++)
        if (r->choices) choice(f, r);
    fputs("    ", f);
    for (const struct opt_row *r = options_table; r->name; r++)
        if (is_file(r)) {
            fprintf(f, "%s*\" --%s\"", between, r->name);
            between = " | ";
        }
    fputs(") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", f);
    between = "    ";
    for (const struct opt_row *r = options_table; r->name; r++)
        if (!is_file(r) && r->kind != OPT_FLAG && !r->choices) {
            fprintf(f, "%s*\" --%s\"", between, r->name);
            between = " | ";
        }
    fputs(") return ;;\n    esac\n    case $cmd in\n    \"\") opts=\"help --help --version", f);
    for (const struct command_row *c = command_table; c->name; c++)
        if (c->run) fprintf(f, " %s", c->name);
    fputs("\" ;;\n    help) opts=\"--man --completion", f);
    for (const struct command_row *c = command_table; c->name; c++)
        if (c->run) fprintf(f, " %s", c->name);
    fputs("\" ;;\n    bench) opts=\"--help", f);
    for (const struct command_row *c = command_table; c->name; c++)
        if (!c->run) fprintf(f, " %s", c->name + strcspn(c->name, " ") + 1);
    fputs("\" ;;\n", f);
    for (const struct command_row *c = command_table; c->name; c++)
        if (c->command) words(f, c);
    fputs("    esac\n    case $cur in\n    -*) COMPREPLY=($(compgen -W \"$opts\" -- \"$cur\")) ;;\n"
          "    *) case $cmd in \"\" | bench | help) COMPREPLY=($(compgen -W \"$opts\" -- \"$cur\")) ;;\n"
          "       *) COMPREPLY=($(compgen -f -- \"$cur\")) ;; esac ;;\n    esac\n}\n"
          "complete -o filenames -F _pdflash pdflash\n",
          f);
}
