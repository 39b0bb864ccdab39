#include "ckpt/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"

struct controls {
    int32_t open, close, sep, end; /* <|open|> <|close|> <|sep|> <|end_of_msg|> */
};

static const char *const level_name[] = {"off", "low", "high", "max"};
enum { N_LEVELS = sizeof level_name / sizeof level_name[0] };

int chat_thinking_parse(const char *name)
{
    for (int i = 0; i < N_LEVELS; i++)
        if (strcmp(name, level_name[i]) == 0) return i;
    return -1;
}

const char *chat_thinking_name(enum chat_thinking level)
{
    return (unsigned)level < N_LEVELS ? level_name[level] : "unknown";
}

const char *chat_template_name(void)
{
    return "k3-xtml/1";
}

static enum status find_controls(const struct tokenizer *t, struct controls *c_p)
{
    static const char *const name[4] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
    int32_t id[4];
    for (int i = 0; i < 4; i++) {
        id[i] = tokenizer_special(t, name[i]);
        if (id[i] < 0)
            return ERR(ST_E_FORMAT, "the tokenizer has no %s token; its tokenizer_config.json is not Kimi-K3's",
                       name[i]);
    }
    *c_p = (struct controls){id[0], id[1], id[2], id[3]};
    return ST_OK;
}

static enum status put(struct tokenizer *t, const char *text, struct ids *out)
{
    return tokenizer_encode(t, text, strlen(text), out);
}

/* One ` key="value"` segment; & and " of the value are escaped. */
static enum status put_attribute(struct tokenizer *t, const char *key, const char *value, struct ids *out)
{
    size_t cap = strlen(key) + 6 * strlen(value) + 5;
    char *seg = mem_alloc(cap, 1, "a chat attribute");
    if (!seg) return ST_E_NOMEM;
    size_t n = (size_t)snprintf(seg, cap, " %s=\"", key);
    for (const char *v = value; *v; v++) {
        const char *esc = *v == '&' ? "&amp;" : *v == '"' ? "&quot;" : NULL;
        size_t len = esc ? strlen(esc) : 1;
        memcpy(seg + n, esc ? esc : v, len);
        n += len;
    }
    seg[n++] = '"';
    enum status st = tokenizer_encode(t, seg, n, out);
    mem_free(seg);
    return st;
}

/* <|open|>TAG key="value"...<|sep|>; attr is key, value, ..., NULL, or NULL for none. */
static enum status open_tag(struct tokenizer *t, const struct controls *c, const char *tag, const char *const *attr,
                            struct ids *out)
{
    TRY(ids_push(out, c->open));
    TRY(put(t, tag, out));
    for (; attr && attr[0]; attr += 2) TRY(put_attribute(t, attr[0], attr[1], out));
    return ids_push(out, c->sep);
}

static enum status close_tag(struct tokenizer *t, const struct controls *c, const char *tag, struct ids *out)
{
    TRY(ids_push(out, c->close));
    TRY(put(t, tag, out));
    return ids_push(out, c->sep);
}

static enum status close_message(struct tokenizer *t, const struct controls *c, struct ids *out)
{
    TRY(close_tag(t, c, "message", out));
    return ids_push(out, c->end);
}

static enum status element(struct tokenizer *t, const struct controls *c, const char *tag, const char *text, size_t n,
                           struct ids *out)
{
    TRY(open_tag(t, c, tag, NULL, out));
    TRY(tokenizer_encode(t, text, n, out));
    return close_tag(t, c, tag, out);
}

static enum status effort_message(struct tokenizer *t, const struct controls *c, enum chat_thinking level,
                                  struct ids *out)
{
    static const char *const attr[] = {"role", "system", "type", "thinking-effort", NULL};
    char text[512];
    snprintf(text, sizeof text,
             "`thinking_effort` guides on how much to think in your thinking channel (not including the response "
             "channel), supported values include `low`, `medium`, `high`, and `max`.\n"
             "Now the system is invoked with `thinking_effort=%s`.",
             level_name[level]);
    TRY(open_tag(t, c, "message", attr, out));
    TRY(put(t, text, out));
    return close_message(t, c, out);
}

static enum status message(struct tokenizer *t, const struct controls *c, const struct chat_message *m,
                           enum chat_thinking level, struct ids *out)
{
    const char *attr[] = {"role", m->role, m->name ? "name" : NULL, m->name, NULL};
    int assistant = strcmp(m->role, "assistant") == 0;
    if (!assistant && strcmp(m->role, "user") != 0 && strcmp(m->role, "system") != 0)
        return ERR(ST_E_USAGE, "chat role \"%s\": only system, user and assistant are rendered", m->role);
    if (assistant) attr[2] = NULL;
    TRY(open_tag(t, c, "message", attr, out));
    if (assistant) {
        if (level != CHAT_OFF) TRY(element(t, c, "think", m->think ? m->think : "", m->think ? m->n_think : 0, out));
        TRY(element(t, c, "response", m->text, m->n, out));
    } else {
        TRY(tokenizer_encode(t, m->text, m->n, out));
    }
    return close_message(t, c, out);
}

static enum status render(struct tokenizer *t, const struct chat_message *m, size_t n, enum chat_thinking level,
                          struct ids *out)
{
    static const char *const assistant[] = {"role", "assistant", NULL};
    struct controls c;
    if ((unsigned)level >= N_LEVELS) return ERR(ST_E_USAGE, "thinking level %d: 0..%d exist", (int)level, N_LEVELS - 1);
    TRY(find_controls(t, &c));
    if (level != CHAT_OFF) TRY(effort_message(t, &c, level, out));
    for (size_t i = 0; i < n; i++) TRY(message(t, &c, &m[i], level, out));
    TRY(open_tag(t, &c, "message", assistant, out));
    return open_tag(t, &c, level == CHAT_OFF ? "response" : "think", NULL, out);
}

enum status chat_render(struct tokenizer *t, const struct chat_message *m, size_t n, enum chat_thinking level,
                        struct ids *out)
{
    size_t before = out->n;
    enum status st = render(t, m, n, level, out);
    if (st != ST_OK) out->n = before;
    return st;
}

/* Position after the tag MARK name <|sep|> that starts at i; i itself when another thing is there. The name is
 * compared as text, because a model may spell it with other tokens than the renderer. */
static enum status skip_tag(const struct tokenizer *t, const struct controls *c, const int32_t *id, size_t n, size_t i,
                            int32_t mark, const char *name, size_t *next_p)
{
    *next_p = i;
    if (i >= n || id[i] != mark) return ST_OK;
    size_t end = i + 1, len;
    while (end < n && id[end] != c->sep) end++;
    if (end == n) return ST_OK;
    char *text;
    TRY(tokenizer_decode(t, id + i + 1, end - i - 1, 1, &text, &len));
    if (len == strlen(name) && memcmp(text, name, len) == 0) *next_p = end + 1;
    mem_free(text);
    return ST_OK;
}

/* First id of the response body: 0 in instruct mode, otherwise what follows </think><response>; n if the reply
 * never gets there. */
static enum status response_start(const struct tokenizer *t, const struct controls *c, const int32_t *id, size_t n,
                                  enum chat_thinking level, size_t *at_p)
{
    size_t i = 0, next;
    *at_p = 0;
    if (level == CHAT_OFF) return ST_OK;
    *at_p = n;
    for (; i < n && id[i] != c->end; i++) {
        TRY(skip_tag(t, c, id, n, i, c->close, "think", &next));
        if (next == i) continue;
        i = next;
        TRY(skip_tag(t, c, id, n, i, c->open, "response", &next));
        if (next > i) *at_p = next;
        return ST_OK;
    }
    return ST_OK;
}

enum status chat_response_text(const struct tokenizer *t, const int32_t *id, size_t n, enum chat_thinking level,
                               char **text_p, size_t *n_p, int *truncated_p)
{
    struct controls c;
    size_t start, end, next;
    TRY(find_controls(t, &c));
    TRY(response_start(t, &c, id, n, level, &start));
    for (end = start; end < n && id[end] != c.close && id[end] != c.end; end++) continue;
    TRY(skip_tag(t, &c, id, n, end, c.close, "response", &next));
    TRY(tokenizer_decode(t, n ? id + start : NULL, end - start, 0, text_p, n_p));
    *truncated_p = next == end;
    return ST_OK;
}
