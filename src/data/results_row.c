/* results_row - names, checks and copies of one request's record. */
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "data/results_priv.h"
#include "data/utf8.h"

static const char *const stop_name[RESULT_STOP_N] = {"eos", "length", "failed", "aborted"};
static const char *const component_name[RESULT_COMP_N] = {"mla", "kda", "conv", "draft", "aux"};

const char *result_stop_name(enum result_stop s)
{
    return (unsigned)s < RESULT_STOP_N ? stop_name[s] : "?";
}

const char *result_component_name(enum result_component c)
{
    return (unsigned)c < RESULT_COMP_N ? component_name[c] : "?";
}

int results_stop_parse(const char *name, size_t n)
{
    for (int i = 0; i < RESULT_STOP_N; i++)
        if (strncmp(name, stop_name[i], n) == 0) return i;
    return -1;
}

int results_is_done(enum result_stop s)
{
    return s == RESULT_EOS || s == RESULT_LENGTH;
}

void result_timing_clear(struct result_timing *t)
{
    double *v;
    for (int i = 0; results_timing_at(t, i, &v); i++) *v = NAN;
}

const char *results_timing_at(struct result_timing *t, int i, double **value_p)
{
    static const struct {
        const char *name;
        size_t offset;
    } stamp[] = {{"admit_s", offsetof(struct result_timing, admit)},
                 {"first_chunk_s", offsetof(struct result_timing, first_chunk)},
                 {"prefill_done_s", offsetof(struct result_timing, prefill_done)},
                 {"transfer_start_s", offsetof(struct result_timing, transfer_start)},
                 {"transfer_done_s", offsetof(struct result_timing, transfer_done)},
                 {"decode_start_s", offsetof(struct result_timing, start)},
                 {"first_token_s", offsetof(struct result_timing, first_token)},
                 {"end_s", offsetof(struct result_timing, end)}};
    if (i < 0 || (size_t)i >= sizeof stamp / sizeof stamp[0]) return NULL;
    *value_p = (double *)(void *)((char *)t + stamp[i].offset);
    return stamp[i].name;
}

enum status results_check_setup(enum status kind, const char *where, const struct results_setup *u)
{
    if (!u->config_hash || !u->config_hash[0]) return ERR(kind, "%s: config hash is empty", where);
    if (u->questions < 1 || u->questions > RESULTS_MAX_QUESTIONS)
        return ERR(kind, "%s: %lld questions, 1 to %d", where, (long long)u->questions, (int)RESULTS_MAX_QUESTIONS);
    if (u->block < 1 || u->block > RESULTS_MAX_BLOCK)
        return ERR(kind, "%s: block is %d, 1 to %d", where, u->block, (int)RESULTS_MAX_BLOCK);
    return ST_OK;
}

static enum status check_round(enum status kind, const char *where, int64_t index, const struct result_round *r,
                               int32_t i, int32_t block)
{
    if (r->proposed < 0 || r->proposed >= block)
        return ERR(kind, "%s: index %lld round %d: proposed is %d, block is %d", where, (long long)index, i,
                   r->proposed, block);
    if (r->accepted < 0 || r->accepted > r->proposed)
        return ERR(kind, "%s: index %lld round %d: accepted is %d of %d proposed", where, (long long)index, i,
                   r->accepted, r->proposed);
    if (r->emitted < 0 || r->emitted > r->accepted + 1)
        return ERR(kind, "%s: index %lld round %d: emitted is %d with %d accepted", where, (long long)index, i,
                   r->emitted, r->accepted);
    if (r->bonus < -1)
        return ERR(kind, "%s: index %lld round %d: bonus is %d", where, (long long)index, i, r->bonus);
    return ST_OK;
}

enum status results_check_row(enum status kind, const char *where, const struct result_row *row, int64_t questions,
                              int32_t block)
{
    if (row->index < 0 || row->index >= questions)
        return ERR(kind, "%s: index is %lld, the run has %lld questions", where, (long long)row->index,
                   (long long)questions);
    if (row->prompt_tokens < 0 || row->output_tokens < 0 || row->n_rounds < 0 || row->attempt < 0)
        return ERR(kind, "%s: index %lld: prompt_tokens %d, output_tokens %d, rounds %d, attempt %d: negative",
                   where, (long long)row->index, row->prompt_tokens, row->output_tokens, row->n_rounds, row->attempt);
    if ((unsigned)row->stop >= RESULT_STOP_N)
        return ERR(kind, "%s: index %lld: stop reason %d", where, (long long)row->index, (int)row->stop);
    if (!row->question || !row->gold || (!row->response && row->response_n) || (!row->token && row->output_tokens) ||
        (!row->round && row->n_rounds))
        return ERR(kind, "%s: index %lld: question, gold, response, tokens or rounds missing", where,
                   (long long)row->index);
    for (int32_t i = 0; i < row->output_tokens; i++)
        if (row->token[i] < 0)
            return ERR(kind, "%s: index %lld: output token %d is %d", where, (long long)row->index, i,
                       row->token[i]);
    for (int32_t i = 0; i < row->n_rounds; i++) TRY(check_round(kind, where, row->index, &row->round[i], i, block));
    return ST_OK;
}

static void *copy(const void *p, size_t n, size_t size, const char *what)
{
    void *q = mem_alloc(n, size, what);
    if (q && n) memcpy(q, p, n * size);
    return q;
}

enum status results_own_row(const struct result_row *row, struct result_row *copy_p)
{
    struct result_row r = *row;
    memset(&r.grade, 0, sizeof r.grade);
    r.error = utf8_clean(row->error ? row->error : "", row->error ? strlen(row->error) : 0);
    r.question = utf8_clean(row->question, strlen(row->question));
    r.gold = utf8_clean(row->gold, strlen(row->gold));
    r.response = utf8_clean(row->response ? row->response : "", row->response_n);
    r.token = copy(row->token, (size_t)row->output_tokens, sizeof *r.token, "output ids");
    r.round = copy(row->round, (size_t)row->n_rounds, sizeof *r.round, "rounds");
    enum status st = r.error && r.question && r.gold && r.response && r.token && r.round ? ST_OK : ST_E_NOMEM;
    if (st == ST_OK) {
        r.response_n = strlen(r.response);
        st = gsm8k_grade(r.response, r.response_n, r.gold, &r.grade);
    }
    if (st == ST_OK)
        *copy_p = r;
    else
        results_drop_row(&r);
    return st;
}

void results_drop_row(struct result_row *row)
{
    const void *owned[] = {row->error, row->question, row->gold, row->response, row->token, row->round};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) mem_free((void *)(uintptr_t)owned[i]);
    gsm8k_grade_free(&row->grade);
    memset(row, 0, sizeof *row);
}

int results_key_is_own(const char *key)
{
    static const char *const own[] = {"schema", "schema_version", "config_hash", "questions",
                                      "block",  "attempt",        "complete"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(key, own[i]) == 0) return 1;
    return 0;
}

enum status results_key_ok(const char *key)
{
    size_t n = key ? strlen(key) : 0;
    if (n == 0 || n >= H5_MAX_NAME || utf8_bad_at(key, n) != n)
        return ERR(ST_E_RANGE, "attribute name of %zu bytes: 1 to %d bytes of UTF-8 wanted", n, H5_MAX_NAME - 1);
    if (results_key_is_own(key)) return ERR(ST_E_RANGE, "attribute %s is written by the results module itself", key);
    return ST_OK;
}
