#include "data/questions_h5.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "data/h5.h"
#include "data/prompts.h"
#include "data/utf8.h"

enum { WHERE_BYTES = 4200 };

struct lists { /* of a plain file */
    char **question, **answer, **id;
    size_t n_question, n_answer, n_id;
    int64_t *number; /* ids that are numbers */
};

static enum status check_text(const char *path, const char *name, size_t row, const char *s)
{
    size_t n = strlen(s), bad = utf8_bad_at(s, n), column = 1;
    if (bad == n) return ST_OK;
    for (size_t i = 0; i < bad; i++) column += ((unsigned char)s[i] & 0xc0) != 0x80;
    return ERR(ST_E_FORMAT, "%s: %s: row %zu, character %zu: not UTF-8: byte 0x%02x", path, name, row, column,
               (unsigned char)s[bad]);
}

static enum status read_ids(const struct h5 *f, struct lists *l)
{
    void *v;
    if (!h5_exists(f, "/id")) return ST_OK;
    if (h5_is_text(f, "/id")) return h5_read_str(f, "/id", &l->id, &l->n_id);
    TRY(h5_read_vec(f, "/id", H5_KIND_I64, &v, &l->n_id));
    l->number = v;
    return ST_OK;
}

static enum status read_lists(const struct h5 *f, struct lists *l)
{
    const char *path = h5_path(f);
    if (!h5_exists(f, "/question") || !h5_exists(f, "/answer"))
        return ERR(ST_E_FORMAT, "%s: no prompts file, and no datasets /question and /answer; questions need both",
                   path);
    TRY(h5_read_str(f, "/question", &l->question, &l->n_question));
    TRY(h5_read_str(f, "/answer", &l->answer, &l->n_answer));
    TRY(read_ids(f, l));
    char ids[32] = ""; /* a file without /id is not said to have one */
    if (l->id || l->number) snprintf(ids, sizeof ids, ", /id %zu", l->n_id);
    if (l->n_question != l->n_answer || (ids[0] && l->n_id != l->n_question))
        return ERR(ST_E_FORMAT, "%s: /question has %zu rows, /answer %zu%s; they must be as many", path,
                   l->n_question, l->n_answer, ids);
    return l->n_question ? ST_OK : ERR(ST_E_FORMAT, "%s: no rows", path);
}

static enum status add_lists(const char *path, const struct lists *l, int64_t limit, struct questions *q)
{
    char where[WHERE_BYTES], number[24];
    for (size_t i = 0; i < l->n_question && (limit <= 0 || (int64_t)i < limit); i++) {
        struct question row = {.question = l->question[i], .answer = l->answer[i], .row = (int64_t)i};
        TRY(check_text(path, "/question", i, row.question));
        TRY(check_text(path, "/answer", i, row.answer));
        if (l->id) {
            TRY(check_text(path, "/id", i, l->id[i]));
            row.id = l->id[i][0] ? l->id[i] : NULL;
        }
        if (l->number) {
            snprintf(number, sizeof number, "%lld", (long long)l->number[i]);
            row.id = number;
        }
        snprintf(where, sizeof where, "%s: row %zu", path, i);
        TRY(questions_add(q, where, &row));
    }
    return ST_OK;
}

static enum status plain_file(const char *path, int64_t limit, struct questions *q)
{
    struct h5 *f;
    struct lists l;
    memset(&l, 0, sizeof l);
    TRY(h5_open(path, 0, &f));
    enum status st = read_lists(f, &l);
    if (st == ST_OK) st = add_lists(path, &l, limit, q);
    h5_close(f);
    h5_free_str(l.question, l.n_question);
    h5_free_str(l.answer, l.n_answer);
    h5_free_str(l.id, l.id ? l.n_id : 0);
    mem_free(l.number);
    return st;
}

static enum status prompts_file(const char *path, int64_t limit, struct questions *q)
{
    struct prompts *p;
    char where[WHERE_BYTES];
    TRY(prompts_read(path, &p));
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < prompts_count(p) && (limit <= 0 || (int64_t)i < limit); i++) {
        const struct prompts_row *r = prompts_row(p, i);
        struct question row = {.question = (char *)(uintptr_t)r->question, .answer = (char *)(uintptr_t)r->gold,
                               .row = (int64_t)i};
        snprintf(where, sizeof where, "%s: row %zu", path, i);
        st = questions_add(q, where, &row);
    }
    prompts_close(p);
    return st;
}

enum status questions_h5(const char *path, int64_t limit, struct questions *q)
{
    return prompts_is(path) ? prompts_file(path, limit, q) : plain_file(path, limit, q);
}
