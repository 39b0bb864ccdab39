#include "data/fewshot.h"

#include <string.h>

#include "base/buf.h"

static const struct wording {
    const char *name, *before, *between, *answer, *after; /* before Q between (answer A after) */
} wording[FEWSHOT_N] = {{"openai", "", "\n", "", "\n\n"},
                        {"lm-eval", "Question: ", "\nAnswer:", " ", "\n\n"},
                        {"sglang", "Question: ", "\nAnswer:", " ", "\n\n"}};

const char *fewshot_name(enum fewshot_format format)
{
    return (unsigned)format < FEWSHOT_N ? wording[format].name : "unknown";
}

static void add(char **at, const char *s)
{
    size_t n = strlen(s);
    memcpy(*at, s, n);
    *at += n;
}

enum status fewshot_text(enum fewshot_format format, const struct questions *examples, const char *question,
                         char **text_p, size_t *n_p)
{
    const struct wording *w = &wording[format];
    size_t fixed = strlen(w->before) + strlen(w->between) + strlen(w->answer) + strlen(w->after);
    size_t room = fixed + strlen(question) + 1;
    for (size_t i = 0; i < examples->n; i++)
        room += fixed + strlen(examples->row[i].question) + strlen(examples->row[i].answer);
    char *text = mem_alloc(room, 1, "prompt text"), *at = text;
    if (!text) return ST_E_NOMEM;
    for (size_t i = 0; i < examples->n; i++) {
        const char *const part[] = {w->before, examples->row[i].question, w->between, w->answer,
                                    examples->row[i].answer, w->after};
        for (size_t k = 0; k < sizeof part / sizeof part[0]; k++) add(&at, part[k]);
    }
    add(&at, w->before);
    add(&at, question);
    add(&at, w->between);
    *at = 0;
    *text_p = text;
    *n_p = (size_t)(at - text);
    return ST_OK;
}
