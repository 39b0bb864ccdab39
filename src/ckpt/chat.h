/* chat - Kimi-K3's XTML chat rendering, straight to token ids.
 *
 * Element: <|open|>TAG key="value"<|sep|> ... <|close|>TAG<|sep|>. Every segment (tag name, each
 * ` key="value"`, each text body) is tokenised on its own and only the control strings are special ids, so
 * user text can never produce a control token. & and " are escaped in attribute values. Local.
 * Source: kimi-k3 encoding_k3.py as described in the project's notes; golden cases in tests/vectors. */
#ifndef PDFLASH_CKPT_CHAT_H
#define PDFLASH_CKPT_CHAT_H

#include "ckpt/tokenizer.h"

/* Thinking levels of a prompt. CHAT_OFF: response (instruct) mode, no effort message. */
enum chat_thinking { CHAT_OFF, CHAT_LOW, CHAT_HIGH, CHAT_MAX };

/* chat_thinking_parse - "off", "low", "high", "max"; -1 if unknown. */
int chat_thinking_parse(const char *name);
const char *chat_thinking_name(enum chat_thinking level);

struct chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *text; /* body; for assistant: the response */
    size_t n;
    const char *think; /* assistant only: reasoning body or NULL; not rendered at level CHAT_OFF */
    size_t n_think;
    const char *name; /* system, user: name attribute or NULL */
};

/* chat_render - append the prompt for n messages and the open generation prefix
 * (<message role="assistant"> then <think> or <response>). Any level but CHAT_OFF puts the thinking-effort
 * system message first and gives every assistant message a (possibly empty) think block. On failure out keeps
 * what it held before the call. Returns ST_OK, ST_E_USAGE (unknown role),
 * ST_E_FORMAT (the tokenizer lacks a control token). */
enum status chat_render(struct tokenizer *t, const struct chat_message *m, size_t n,
                        enum chat_thinking level, struct ids *out);
/* chat_response_text - the user-visible part of a generated reply: bytes of the ids up to the closing
 * control tokens, without them; in thinking mode only what follows the think block. *truncated_p is 1 when
 * the reply ended before the response was closed. *text_p is allocated (mem_free). */
enum status chat_response_text(const struct tokenizer *t, const int32_t *id, size_t n, enum chat_thinking level,
                               char **text_p, size_t *n_p, int *truncated_p);
/* chat_template_name - name stored as provenance, e.g. "k3-xtml/1". */
const char *chat_template_name(void);

#endif
