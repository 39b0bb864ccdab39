/* prompts - question file to prompts.h5: K3 chat rendering and tokens, one row a question.
 *
 * With --shots N the first N rows of --shots-from go in front as worked user/assistant turns in the OpenAI wording
 * (question and gold solution verbatim). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/outfile.h"
#include "ckpt/chat.h"
#include "ckpt/config.h"
#include "cmd/options.h"
#include "data/jsonl.h"
#include "data/prompts.h"

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* one prompt: worked examples, the question, the open assistant turn */
static enum status render(struct tokenizer *t, const struct jsonl *shots, const struct jsonl_row *q,
                          enum chat_thinking level, struct ids *out)
{
    size_t n = 0, total = 2 * shots->n + 1;
    struct chat_message *m = mem_alloc(total, sizeof *m, "chat messages");
    if (!m) return ST_E_NOMEM;
    for (size_t i = 0; i < shots->n; i++) {
        m[n++] =
            (struct chat_message){.role = "user", .text = shots->row[i].question, .n = strlen(shots->row[i].question)};
        m[n++] =
            (struct chat_message){.role = "assistant", .text = shots->row[i].answer, .n = strlen(shots->row[i].answer)};
    }
    m[n++] = (struct chat_message){.role = "user", .text = q->question, .n = strlen(q->question)};
    enum status st = chat_render(t, m, n, level, out);
    mem_free(m);
    return st;
}

static enum status render_all(struct tokenizer *t, const struct jsonl *j, const struct jsonl *shots,
                              enum chat_thinking level, struct ids *flat, struct prompts_row *row)
{
    size_t *end = mem_alloc(j->n + 1, sizeof *end, "prompt ends");
    enum status st = end ? ST_OK : ST_E_NOMEM;
    for (size_t i = 0; st == ST_OK && i < j->n; i++) {
        st = render(t, shots, &j->row[i], level, flat);
        end[i + 1] = flat->n;
    }
    for (size_t i = 0; st == ST_OK && i < j->n; i++) /* flat moves while it grows: point into it at the end */
        row[i] = (struct prompts_row){.question = j->row[i].question,
                                      .gold = j->row[i].answer,
                                      .source_row = j->row[i].row,
                                      .id = flat->id + end[i],
                                      .n_ids = (int64_t)(end[i + 1] - end[i])};
    mem_free(end);
    return st;
}

static enum status make(const struct options *o, const struct jsonl *j, const struct jsonl *shots)
{
    struct config c;
    struct tokenizer *t = NULL;
    struct ids flat = {NULL, 0, 0};
    char hash[17];
    enum status st;
    struct prompts_row *row = mem_alloc(j->n, sizeof *row, "prompt rows");
    if (!row) return ST_E_NOMEM;
    TRY_GO(st, config_load(o->model, &c), out);
    TRY_GO(st, tokenizer_open(o->model, c.vocab, &t), out);
    TRY_GO(st, render_all(t, j, shots, (enum chat_thinking)o->thinking, &flat, row), out);
    snprintf(hash, sizeof hash, "%016" PRIx64, tokenizer_hash(t));
    struct prompts_meta meta = {.template_name = chat_template_name(),
                                .thinking = chat_thinking_name((enum chat_thinking)o->thinking),
                                .shots = o->shots,
                                .shots_source = o->shots ? base_name(o->shots_from) : "",
                                .tokenizer_hash = hash,
                                .source = base_name(o->jsonl),
                                .source_sha256 = j->sha256};
    TRY_GO(st, prompts_write(o->out, o->force, &meta, row, j->n), out);
    log_info("%s: %zu prompts, %zu tokens, template %s, thinking %s, %d shots", o->out, j->n, flat.n,
             meta.template_name, meta.thinking, o->shots);
out:
    ids_free(&flat);
    tokenizer_close(t);
    mem_free(row);
    return st;
}

/* before the work, so that nobody waits for a refusal */
static enum status check_out(const struct options *o)
{
    const char *const in[][2] = {{"jsonl", o->jsonl}, {"shots-from", o->shots_from}};
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        if (in[i][1] && outfile_is(o->out, in[i][1]))
            return ERR(ST_E_FILE, "--out %s: is the file of --%s; name another file to write", o->out, in[i][0]);
    return prompts_claim(o->out, o->force);
}

enum status cmd_prompts(int argc, char **argv)
{
    struct options o;
    struct jsonl j, shots;
    int n, help;
    TRY(options_parse(CMD_PROMPTS, argc, argv, &o, NULL, 0, &n, &help));
    if (help) return ST_OK;
    if (o.shots && !o.shots_from) return ERR(ST_E_USAGE, "--shots %d needs --shots-from FILE", o.shots);
    TRY(check_out(&o));
    memset(&shots, 0, sizeof shots);
    if (o.shots) TRY(jsonl_read(o.shots_from, o.shots, &shots));
    if ((int)shots.n < o.shots) {
        enum status st = ERR(ST_E_FILE, "%s: %zu rows, --shots asks for %d", o.shots_from, shots.n, o.shots);
        jsonl_free(&shots);
        return st;
    }
    enum status st = jsonl_read(o.jsonl, o.limit, &j);
    if (st == ST_OK) {
        st = make(&o, &j, &shots);
        jsonl_free(&j);
    }
    jsonl_free(&shots);
    return st;
}
