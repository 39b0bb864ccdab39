#include "cmd/inject.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static enum status bad(const char *word)
{
    return ERR(ST_E_USAGE, "--inject %s: not understood; see `pdflash run --help`", word);
}

static int comp_of(const char *name, size_t n)
{
    for (int c = 0; c < COMP_N; c++)
        if (strlen(comp_name[c]) == n && memcmp(comp_name[c], name, n) == 0) return c;
    return -1;
}

/* a number from 0 up to where *end_p then points */
static int digits(const char *text, int *a, char **end_p)
{
    long v = strtol(text, end_p, 10);
    *a = (int)v;
    return *end_p != text && v >= 0 && v <= INT_MAX;
}

static int number(const char *text, int *a)
{
    char *end;
    return digits(text, a, &end) && *end == 0;
}

/* "A@B" with numbers, or another sign between them */
static int split(const char *text, char sign, int *a, int *b)
{
    char *end;
    return digits(text, a, &end) && *end == sign && number(end + 1, b);
}

static int pair(const char *text, int *a, int *b)
{
    return split(text, '@', a, b);
}

/* "NAME@N" with a component's name */
static int comp_pair(const char *text, int *comp, int *b)
{
    const char *at = strchr(text, '@');
    if (!at) return 0;
    *comp = comp_of(text, (size_t)(at - text));
    return *comp >= 0 && number(at + 1, b);
}

/* "PERCENT%@SEED" */
static int percent_pair(const char *text, int *percent, int *seed)
{
    char *end;
    return digits(text, percent, &end) && *percent <= 100 && end[0] == '%' && end[1] == '@' && number(end + 2, seed);
}

static int request_word(const char *word, struct inject *i)
{
    struct run_inject *r = &i->run;
    if (strncmp(word, "fail:decode@", 12) == 0) {
        r->fail_stage = RUN_FAIL_DECODE;
        return number(word + 12, &r->fail_request);
    }
    if (strncmp(word, "fail:", 5) == 0) return pair(word + 5, &r->fail_stage, &r->fail_request);
    if (strchr(word, '%')) return percent_pair(word + 6, &r->abort_percent, &r->abort_seed);
    if (strchr(word, '+')) return split(word + 6, '+', &r->abort_request, &r->abort_tokens) && r->abort_tokens > 0;
    return pair(word + 6, &r->abort_request, &r->abort_ticks);
}

static enum status parse_word(const char *word, struct inject *i)
{
    if (strncmp(word, "prefill.", 8) == 0 || strncmp(word, "decode.", 7) == 0)
        return strchr(word, '=') ? ST_OK : bad(word);
    if (strncmp(word, "kill:", 5) == 0)
        return pair(word + 5, &i->run.kill_rank, &i->run.kill_event) ? ST_OK : bad(word);
    if (strncmp(word, "fail:", 5) == 0 || strncmp(word, "abort:", 6) == 0)
        return request_word(word, i) ? ST_OK : bad(word);
    if (strncmp(word, "delay:", 6) == 0) return pair(word + 6, &i->delay_stage, &i->delay_ms) ? ST_OK : bad(word);
    if (strncmp(word, "flip:", 5) == 0)
        return comp_pair(word + 5, &i->flip_component, &i->flip_rank) ? ST_OK : bad(word);
    if (strncmp(word, "drop:", 5) == 0)
        return comp_pair(word + 5, &i->drop_component, &i->drop_rank) ? ST_OK : bad(word);
    if (strncmp(word, "build:", 6) == 0) return number(word + 6, &i->build_rank) ? ST_OK : bad(word);
    if (strncmp(word, "hold:", 5) == 0) return number(word + 5, &i->run.hold_request) && i->run.hold_request > 0 ? ST_OK : bad(word);
    return bad(word);
}

enum status inject_parse(const struct opt_list *l, struct inject *i_p)
{
    *i_p = (struct inject){
        .run = {.kill_rank = -1, .kill_event = -1, .fail_stage = -1, .fail_request = -1, .abort_request = -1},
        .drop_component = -1,
        .drop_rank = -1,
        .flip_component = -1,
        .flip_rank = -1,
        .delay_stage = -1,
        .build_rank = -1};
    for (int i = 0; i < l->n; i++) {
        TRY(parse_word(l->text[i], i_p));
        size_t kind = strcspn(l->text[i], ":=");
        for (int k = 0; k < i; k++)
            if (strcspn(l->text[k], ":=") == kind && memcmp(l->text[k], l->text[i], kind) == 0)
                return ERR(ST_E_USAGE, "--inject %s: there is --inject %s already; one of a kind", l->text[i], l->text[k]);
        log_warn("fault injection: %s", l->text[i]);
    }
    return ST_OK;
}

/* NAME of a rank or stage that does not exist would be a fault that never happens */
static enum status exists(const char *what, int at, int n)
{
    if (at < n) return ST_OK;
    return ERR(ST_E_USAGE, "--inject: %s %d: there are %d, counted from 0", what, at, n);
}

enum status inject_check(const struct opt_list *l, const struct inject *i, const struct topology *t)
{
    int stages = t->single ? 0 : t->prefill.pp;
    TRY(exists("kill: rank", i->run.kill_rank, t->n_ranks));
    TRY(exists("fail: stage", i->run.fail_stage, stages));
    TRY(exists("delay: stage", i->delay_stage, stages));
    TRY(exists("drop: rank", i->drop_rank, t->single ? 0 : t->n_ranks));
    TRY(exists("flip: rank", i->flip_rank, t->single ? 0 : t->n_ranks));
    TRY(exists("build: rank", i->build_rank, t->n_ranks));
    for (int k = 0; k < l->n; k++)
        if (t->single && strncmp(l->text[k], "prefill.", 8) == 0)
            return ERR(ST_E_USAGE, "--inject %s: --single has no prefill group", l->text[k]);
    return ST_OK;
}

static enum status apply_taps(const char *value, struct draft_config *d)
{
    int n = 0;
    for (const char *p = value; *p && n < CONFIG_MAX_TAPS;) {
        char *end;
        d->tap[n++] = (int)strtol(p, &end, 10);
        if (end == p) return ERR(ST_E_USAGE, "--inject taps=%s: not a list of layers", value);
        p = *end == ',' ? end + 1 : end;
    }
    d->n_taps = n;
    return ST_OK;
}

static enum status apply_field(const char *word, const char *field, const char *value, struct setup *s,
                               struct plan_options *p)
{
    size_t n = (size_t)(value - field) - 1;
    int v = 0, whole = number(value, &v);
    double real = atof(value);
#define IS(name) (n == sizeof name - 1 && memcmp(field, name, n) == 0)
    if (IS("page") && whole && v > 0)
        p->page = v;
    else if ((IS("kv") || IS("draft-kv")) && (strcmp(value, "fp32") == 0 || strcmp(value, "bf16") == 0))
        *(IS("kv") ? &p->kv : &p->draft_kv) = strcmp(value, "fp32") == 0 ? KV_FP32 : KV_BF16;
    else if (IS("order") && (strcmp(value, "token") == 0 || strcmp(value, "head") == 0))
        p->order = strcmp(value, "token") == 0 ? PAGE_TOKEN_MAJOR : PAGE_HEAD_MAJOR;
    else if (IS("draft-heads") && whole && v > 0)
        s->d.kv_heads = v;
    else if (IS("taps"))
        TRY(apply_taps(value, &s->d));
    else if (IS("window") && whole)
        s->d.window = v;
    else if (IS("theta") && isfinite(real) && real > 0)
        s->d.rope_theta = real;
    else if (IS("mask") && whole)
        s->d.mask_id = v;
    else if (IS("seed") && whole)
        s->sampling.seed = (uint64_t)v;
    else if (IS("spec") && strcmp(value, "none") == 0)
        s->spec = DRAFT_NONE;
    else
        return bad(word);
#undef IS
    return ST_OK;
}

enum status inject_apply(const struct opt_list *l, enum role role, struct setup *s, struct plan_options *p)
{
    const char *prefix = role == ROLE_PREFILL ? "prefill." : "decode.";
    size_t n = strlen(prefix);
    for (int i = 0; i < l->n; i++) {
        const char *word = l->text[i];
        if (strncmp(word, prefix, n) != 0) continue;
        TRY(apply_field(word, word + n, strchr(word, '=') + 1, s, p));
    }
    return ST_OK;
}
