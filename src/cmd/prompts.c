/* prompts - questions (JSONL, gzip, HDF5) to prompts.h5: wording, K3 chat rendering and tokens, one row a question.
 *
 * --format openai puts each worked example in front as a user and an assistant turn, question and gold solution
 * verbatim. lm-eval and sglang put examples and question as one text into one user message, as those programs do with
 * a chat model. --raw makes the same text without chat template, to be continued. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/outfile.h"
#include "ckpt/chat.h"
#include "ckpt/config.h"
#include "cmd/options.h"
#include "data/fewshot.h"
#include "data/h5.h"
#include "data/prompts.h"
#include "data/questions.h"

enum { NAME_AT_MOST = 10 };

struct maker {
    struct options o;
    const char *from;       /* the questions */
    char *beside;           /* examples found beside them; NULL */
    const char *shots_from; /* "" without examples */
    struct questions q, shots;
    struct config c;
    struct tokenizer *t;
    struct ids flat;
    struct prompts_row *row; /* [q.n] */
    size_t leaked;
};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- the command line ------------------------------------------------------------------------------ */

static int given(int argc, char **argv, const char *option)
{
    size_t n = strlen(option);
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], option, n) == 0 && (argv[i][n] == 0 || argv[i][n] == '=')) return 1;
    return 0;
}

static enum status check_options(struct maker *m, int argc, char **argv)
{
    struct options *o = &m->o;
    if (!o->jsonl && !o->h5) return ERR(ST_E_USAGE, "--jsonl FILE is required: the questions; or --h5 FILE");
    if (o->jsonl && o->h5) return ERR(ST_E_USAGE, "--jsonl and --h5 exclude each other: name one file of questions");
    if (o->raw && given(argc, argv, "--thinking") && o->thinking != CHAT_OFF)
        return ERR(ST_E_USAGE, "--thinking %s has no meaning with --raw: there is no chat template to carry it",
                   chat_thinking_name((enum chat_thinking)o->thinking));
    if (!o->shots && o->shots_from)
        return ERR(ST_E_USAGE, "--shots-from %s has no meaning with --shots 0: say how many", o->shots_from);
    if (o->raw) o->thinking = CHAT_OFF;
    m->from = o->h5 ? o->h5 : o->jsonl;
    if (o->jsonl && h5_is_hdf5(o->jsonl)) return ERR(ST_E_FILE, "%s: is HDF5; name it with --h5", o->jsonl);
    if (o->h5 && !h5_is_hdf5(o->h5)) {
        struct stat sb;
        if (stat(o->h5, &sb) == 0) return ERR(ST_E_FILE, "%s: is no HDF5; name JSON lines with --jsonl", o->h5);
    }
    return ST_OK;
}

static int is_file(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISREG(sb.st_mode);
}

/* The train split of a data set lies beside its test split under the same name but for that word; either may be
 * compressed. */
static enum status find_train(struct maker *m)
{
    const char *test = NULL;
    for (const char *p = base_name(m->from); (p = strstr(p, "test")); p++) test = p;
    if (test) {
        size_t n = strlen(m->from) + sizeof "rain.gz", len;
        m->beside = mem_alloc(n, 1, "a file name");
        if (!m->beside) return ST_E_NOMEM;
        len = (size_t)snprintf(m->beside, n, "%.*strain%s", (int)(test - m->from), m->from, test + 4);
        m->shots_from = m->beside;
        if (is_file(m->beside)) return ST_OK;
        int packed = len > 3 && strcmp(m->beside + len - 3, ".gz") == 0;
        strcpy(m->beside + len - (packed ? 3 : 0), packed ? "" : ".gz");
        if (is_file(m->beside)) return ST_OK;
    }
    return ERR(ST_E_USAGE, "--shots %d needs --shots-from FILE: no train split lies beside %s%s%s", m->o.shots, m->from,
               test ? "; the last name tried is " : "", test ? m->beside : "");
}

static enum status choose_shots(struct maker *m)
{
    m->shots_from = "";
    if (!m->o.shots) return ST_OK;
    if (m->o.shots_from)
        m->shots_from = m->o.shots_from;
    else if (m->o.format == FEWSHOT_SGLANG)
        m->shots_from = m->from; /* as SGLang's benchmark does */
    else
        return find_train(m);
    return ST_OK;
}

/* before the work, so that nobody waits for a refusal */
static enum status check_out(const struct maker *m)
{
    const struct options *o = &m->o;
    const char *const in[][2] = {{"jsonl", o->jsonl}, {"h5", o->h5}, {"shots-from", m->shots_from}};
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        if (in[i][1] && in[i][1][0] && outfile_is(o->out, in[i][1]))
            return ERR(ST_E_FILE, "--out %s: is the file of --%s; name another file to write", o->out, in[i][0]);
    return prompts_claim(o->out, o->force);
}

/* ---- questions and examples ------------------------------------------------------------------------ */

/* Questions that are also examples are graded with their answers in sight. Kept, because comparisons with SGLang want
 * them, but never in silence. */
static enum status warn_leak(struct maker *m)
{
    char list[NAME_AT_MOST * 48] = "", place[64];
    size_t at = 0, named = 0;
    uint8_t *shared = mem_alloc(m->q.n, 1, "leaked rows");
    if (!shared) return ST_E_NOMEM;
    enum status st = questions_shared(&m->q, &m->shots, shared, &m->leaked);
    for (size_t i = 0; st == ST_OK && i < m->q.n && named < NAME_AT_MOST; i++)
        if (shared[i])
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", named++ ? ", " : "",
                                   questions_place(&m->q.row[i], place, sizeof place));
    mem_free(shared);
    TRY(st);
    if (m->leaked)
        log_warn("%s: %zu questions are worked examples of all prompts (%s%s): their answers are given away; report "
                 "the accuracy without them too, or take examples from elsewhere with --shots-from",
                 m->from, m->leaked, list, m->leaked > named ? ", ..." : "");
    return ST_OK;
}

static enum status read_all(struct maker *m)
{
    if (m->o.shots) {
        TRY(questions_read(m->shots_from, m->o.shots, &m->shots));
        if ((int)m->shots.n < m->o.shots)
            return ERR(ST_E_FILE, "%s: %zu rows, --shots asks for %d", m->shots_from, m->shots.n, m->o.shots);
    }
    TRY(questions_read(m->from, m->o.limit, &m->q));
    return m->o.shots ? warn_leak(m) : ST_OK;
}

/* ---- rendering ------------------------------------------------------------------------------------- */

/* the examples as turns, the question, the open assistant turn */
static enum status render_turns(struct maker *m, const char *question)
{
    const struct questions *shots = &m->shots;
    size_t n = 0;
    struct chat_message *v = mem_alloc(2 * shots->n + 1, sizeof *v, "chat messages");
    if (!v) return ST_E_NOMEM;
    for (size_t i = 0; i < shots->n; i++) {
        const char *q = shots->row[i].question, *a = shots->row[i].answer;
        v[n++] = (struct chat_message){.role = "user", .text = q, .n = strlen(q)};
        v[n++] = (struct chat_message){.role = "assistant", .text = a, .n = strlen(a)};
    }
    v[n++] = (struct chat_message){.role = "user", .text = question, .n = strlen(question)};
    enum status st = chat_render(m->t, v, n, (enum chat_thinking)m->o.thinking, &m->flat);
    mem_free(v);
    return st;
}

static enum status render(struct maker *m, const char *question)
{
    char *text;
    size_t n;
    if (!m->o.raw && m->o.format == FEWSHOT_OPENAI) return render_turns(m, question);
    TRY(fewshot_text((enum fewshot_format)m->o.format, &m->shots, question, &text, &n));
    struct chat_message one = {.role = "user", .text = text, .n = n};
    enum status st = m->o.raw ? tokenizer_encode(m->t, text, n, &m->flat)
                              : chat_render(m->t, &one, 1, (enum chat_thinking)m->o.thinking, &m->flat);
    mem_free(text);
    return st;
}

static enum status render_all(struct maker *m)
{
    size_t n = m->q.n, *end = mem_alloc(n + 1, sizeof *end, "prompt ends");
    enum status st = end ? ST_OK : ST_E_NOMEM;
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        st = render(m, m->q.row[i].question);
        end[i + 1] = m->flat.n;
    }
    for (size_t i = 0; st == ST_OK && i < n; i++) /* flat moves while it grows: point into it at the end */
        m->row[i] = (struct prompts_row){.question = m->q.row[i].question,
                                         .gold = m->q.row[i].answer,
                                         .source_row = m->q.row[i].row,
                                         .id = m->flat.id + end[i],
                                         .n_ids = (int64_t)(end[i + 1] - end[i])};
    mem_free(end);
    return st;
}

/* a prompt that is too long is refused by its row; none is ever cut */
static enum status check_lengths(const struct maker *m)
{
    char list[NAME_AT_MOST * 64] = "", place[64], limit[64];
    size_t at = 0, n = 0;
    int64_t most = m->c.max_position - 1; /* one token of answer at least */
    snprintf(limit, sizeof limit, "the model's %d positions", m->c.max_position);
    if (m->o.max_prompt && m->o.max_prompt < most) {
        most = m->o.max_prompt;
        snprintf(limit, sizeof limit, "--max-prompt %d", m->o.max_prompt);
    }
    for (size_t i = 0; i < m->q.n; i++)
        if (m->row[i].n_ids > most && n++ < NAME_AT_MOST)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s: %lld tokens", n > 1 ? ", " : "",
                                   questions_place(&m->q.row[i], place, sizeof place), (long long)m->row[i].n_ids);
    if (!n) return ST_OK;
    return ERR(ST_E_CONFIG, "%s: %zu of %zu prompts are longer than %s: %s%s; nothing is cut and nothing was written: "
               "take those rows out, or allow more", m->from, n, m->q.n, limit, list, n > NAME_AT_MOST ? ", ..." : "");
}

static enum status write_file(struct maker *m)
{
    const struct options *o = &m->o;
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, tokenizer_hash(m->t));
    struct prompts_meta meta = {.template_name = o->raw ? PROMPTS_RAW : chat_template_name(),
                                .thinking = chat_thinking_name((enum chat_thinking)o->thinking),
                                .shots = o->shots,
                                .shots_source = base_name(m->shots_from),
                                .tokenizer_hash = hash,
                                .source = base_name(m->from),
                                .source_sha256 = m->q.sha256,
                                .format = fewshot_name((enum fewshot_format)o->format),
                                .shots_leaked = (int64_t)m->leaked};
    TRY(prompts_write(o->out, o->force, &meta, m->row, m->q.n));
    log_info("%s: %zu prompts, %zu tokens, template %s, thinking %s, format %s, %d shots%s%s", o->out, m->q.n,
             m->flat.n, meta.template_name, meta.thinking, meta.format, o->shots, o->shots ? " from " : "",
             m->shots_from);
    return ST_OK;
}

static enum status make(struct maker *m)
{
    TRY(choose_shots(m));
    TRY(check_out(m));
    TRY(read_all(m));
    m->row = mem_alloc(m->q.n, sizeof *m->row, "prompt rows");
    if (!m->row) return ST_E_NOMEM;
    TRY(config_load(m->o.model, &m->c));
    TRY(tokenizer_open(m->o.model, m->c.vocab, &m->t));
    TRY(render_all(m));
    TRY(check_lengths(m));
    return write_file(m);
}

enum status cmd_prompts(int argc, char **argv)
{
    struct maker m;
    int n, help;
    memset(&m, 0, sizeof m);
    TRY(options_parse(CMD_PROMPTS, argc, argv, &m.o, NULL, 0, &n, &help));
    if (help) return ST_OK;
    enum status st = check_options(&m, argc, argv);
    if (st == ST_OK) st = make(&m);
    ids_free(&m.flat);
    tokenizer_close(m.t);
    mem_free(m.row);
    mem_free(m.beside);
    questions_free(&m.q);
    questions_free(&m.shots);
    return st;
}
