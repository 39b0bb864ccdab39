/* Settings of draft against those of target, tokenizer and prompts: all of them, not only up to the first that is
 * wrong. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/hash.h"
#include "cmd/diagnose_report.h"

struct match {
    const struct options *o;
    const struct diagnose_files *f;
    FILE *out;
    int n, wrong;
};

static void line(struct match *m, int good, const char *field, const char *draft, const char *other)
{
    m->n++;
    m->wrong += !good;
    fprintf(m->out, "  %-8s %-22s %-36s %s\n", good ? "same" : "DIFFERS", field, draft, other);
}

/* a note: shown, never wrong */
static void note(struct match *m, const char *field, const char *draft, const char *other)
{
    fprintf(m->out, "  %-8s %-22s %-36s %s\n", "-", field, draft, other);
}

static void refuse(const struct match *m, const char *field, const char *mine, const char *other_field,
                   const char *other)
{
    (void)ERR(ST_E_CONFIG, "%s/config.json: %s: %s, but %s/config.json: %s: %s", m->o->draft, field, mine, m->o->model,
              other_field, other);
}

static void number(struct match *m, const char *field, int mine, const char *other_field, int other)
{
    char a[32], b[64], c[32];
    snprintf(a, sizeof a, "%d", mine);
    snprintf(b, sizeof b, "%s %d", other_field, other);
    snprintf(c, sizeof c, "%d", other);
    line(m, mine == other, field, a, b);
    if (mine != other) refuse(m, field, a, other_field, c);
}

/* the text of a token, special ones by name */
static void token_text(const struct match *m, int32_t id, char *text, size_t n)
{
    char *s = NULL;
    size_t len;
    snprintf(text, n, "?");
    if (tokenizer_decode(m->f->tok, &id, 1, 1, &s, &len) != ST_OK) return;
    snprintf(text, n, "%s", s);
    mem_free(s);
}

static void mask(struct match *m)
{
    const struct draft_config *d = &m->f->d;
    char a[32], b[128], name[64];
    int good = d->mask_id >= 0 && d->mask_id < m->f->c.vocab, ranks = tokenizer_ranks(m->f->tok);
    snprintf(a, sizeof a, "%d", d->mask_id);
    if (good) token_text(m, d->mask_id, name, sizeof name);
    if (!good) snprintf(b, sizeof b, "vocab_size %d", m->f->c.vocab);
    else if (d->mask_id < ranks) snprintf(b, sizeof b, "text token \"%s\" of the tokenizer: unusual", name);
    else snprintf(b, sizeof b, "special token %s", name);
    line(m, good, "mask_token_id", a, b);
    snprintf(b, sizeof b, "%d", m->f->c.vocab);
    if (!good) refuse(m, "mask_token_id", a, "vocab_size", b);
}

static void captures(struct match *m)
{
    const struct draft_config *d = &m->f->d;
    const struct config *c = &m->f->c;
    char list[256] = "", b[96], most[32];
    size_t n = 0;
    int wrong = -1, last = 0;
    for (int i = 0; i < d->n_taps; i++) {
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%d", i ? "," : "", d->tap[i]);
        if (n >= sizeof list) n = sizeof list - 1;
        if (d->tap[i] >= c->n_layers) wrong = d->tap[i];
        last |= d->tap[i] == c->n_layers - 1;
    }
    snprintf(b, sizeof b, "layers 0 to %d%s", c->n_layers - 1,
             last ? "; the last is captured, behind which there is only the output" : "");
    line(m, wrong < 0, "target_layer_ids", list, b);
    snprintf(most, sizeof most, "%d", c->n_layers);
    if (wrong >= 0) refuse(m, "target_layer_ids", list, "num_hidden_layers", most);
}

/* the projection must have a column block for every capture */
static void projection(struct match *m)
{
    const struct draft_config *d = &m->f->d;
    const char *name = safetensors_has(m->f->draft_ckpt, "model.fc.weight") ? "model.fc.weight" : "fc.weight";
    struct tensor t;
    char a[64], b[96];
    if (safetensors_get(m->f->draft_ckpt, name, ST_DT_BF16, 2, (int64_t[]){-1, -1}, &t) != ST_OK) {
        m->n++, m->wrong++; /* it said why */
        return;
    }
    int good = t.dim[0] == d->hidden && t.dim[1] == (int64_t)d->n_taps * m->f->c.hidden;
    snprintf(a, sizeof a, "%" PRId64 " x %" PRId64, t.dim[0], t.dim[1]);
    snprintf(b, sizeof b, "%d captures of %d", d->n_taps, m->f->c.hidden);
    line(m, good, name, a, b);
    if (!good)
        (void)ERR(ST_E_CONFIG, "%s/model.safetensors: %s: %s, but %s/config.json: hidden_size: %s", m->o->draft, name,
                  a, m->o->model, b);
}

static void rope(struct match *m)
{
    const struct rope *r = &m->f->d.rope;
    char a[96], b[96];
    snprintf(a, sizeof a, "%s, base %g", r->yarn ? "yarn" : "default", r->theta);
    note(m, "RoPE", a, "the target rotates nothing: no base to compare");
    if (!r->yarn) return;
    snprintf(a, sizeof a, "%g", r->amplitude);
    snprintf(b, sizeof b, "%s",
             r->explicit_factor ? "attention_factor says so" : "no attention_factor: both are tried below");
    note(m, "YaRN amplitude", a, b);
}

/* ranks and special tokens against the vocabulary; prompts against the tokenizer; a tokenizer of the draft's own */
static void tokenizer(struct match *m)
{
    char a[64], b[64], mine[65], other[65], path[2][4096];
    int ranks = tokenizer_ranks(m->f->tok);
    snprintf(a, sizeof a, "%016" PRIx64, tokenizer_hash(m->f->tok));
    const char *made = prompts_meta(m->f->prompts)->tokenizer_hash;
    line(m, strcmp(a, made) == 0, "prompts' tokenizer", made, a);
    if (strcmp(a, made) != 0)
        (void)ERR(ST_E_CONFIG, "%s: tokenizer_hash: %s, but %s/tiktoken.model has %s; make the prompts again",
                  m->o->prompts, made, m->o->model, a);
    snprintf(a, sizeof a, "%d ranks + 256 special", ranks);
    snprintf(b, sizeof b, "vocab_size %d", m->f->c.vocab);
    line(m, m->f->c.vocab == ranks + 256, "tokenizer size", a, b);
    if (m->f->c.vocab != ranks + 256)
        (void)ERR(ST_E_CONFIG, "%s/tiktoken.model: %s, but %s/config.json: vocab_size: %d", m->o->model, a, m->o->model,
                  m->f->c.vocab);
    snprintf(path[0], sizeof path[0], "%s/tiktoken.model", m->o->draft);
    snprintf(path[1], sizeof path[1], "%s/tiktoken.model", m->o->model);
    if (access(path[0], R_OK) != 0) {
        note(m, "draft's tokenizer", "none of its own", "the target's is used");
        return;
    }
    int got = hash_file_sha256(path[0], mine) == ST_OK && hash_file_sha256(path[1], other) == ST_OK;
    line(m, got && strcmp(mine, other) == 0, "draft's tokenizer", mine, other);
    if (got && strcmp(mine, other) != 0)
        (void)ERR(ST_E_CONFIG, "%s: sha256: %s, but %s: %s; the draft was made for another tokenizer", path[0], mine,
                  path[1], other);
}

static void sizes(struct match *m)
{
    const struct draft_config *d = &m->f->d;
    const struct config *c = &m->f->c;
    char a[96], b[96];
    number(m, "hidden_size", d->hidden, "hidden_size", c->hidden);
    number(m, "vocab_size", d->vocab, "vocab_size", c->vocab);
    number(m, "num_target_layers", d->n_target_layers, "num_hidden_layers", c->n_layers);
    captures(m);
    projection(m);
    mask(m);
    tokenizer(m);
    rope(m);
    snprintf(a, sizeof a, "%d", d->block);
    snprintf(b, sizeof b, "%d drafts, %d rows to verify", draft_verify_rows(d) - 1, draft_verify_rows(d));
    note(m, "block_size", a, b);
    snprintf(a, sizeof a, "%d", d->max_position);
    snprintf(b, sizeof b, "%d%s", c->max_position,
             d->max_position < c->max_position ? ": longer requests leave what the draft was trained on" : "");
    note(m, "max_position_embeddings", a, b);
}

enum status diagnose_match(const struct options *o, const struct diagnose_files *f, FILE *out)
{
    struct match m = {o, f, out, 0, 0};
    fprintf(out, "settings                        draft                                target\n");
    line(&m, strcmp(o->spec, draft_kind_name(f->d.kind)) == 0, "kind", draft_kind_name(f->d.kind), o->spec);
    if (strcmp(o->spec, draft_kind_name(f->d.kind)) != 0)
        (void)ERR(ST_E_CONFIG, "%s/config.json: architectures: this is a %s draft, but --spec: %s", o->draft,
                  draft_kind_name(f->d.kind), o->spec);
    sizes(&m);
    if (!m.wrong) return ST_OK;
    return ERR(ST_E_CONFIG, "diagnose: %d of %d settings of draft and target do not match; they are listed above",
               m.wrong, m.n);
}
