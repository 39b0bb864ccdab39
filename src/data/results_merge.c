/* results_merge - one result file from the files of several jobs.
 *
 * The parts become one journal beside the new file, and the file is made from that as a rebuild makes it: so both say
 * the same, and nothing but the journal knows how rows are stored. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/outfile.h"
#include "data/results_priv.h"
#include "data/utf8.h"

struct part {
    const char *path;
    char *file; /* path as clean text */
    struct results *r;
    char sha256[65];
    int32_t base; /* attempts of the parts before it */
};
struct merge {
    struct part *part;
    size_t n;
    int32_t attempts;
    struct result_attr *attr; /* [n_attr] of the new file; keys are owned, text is the parts' or the caller's */
    size_t n_attr, room;
    size_t *owner; /* [questions] part of a question's row + 1, 0: none */
    size_t *row;   /* [questions] which row of that part */
    int64_t done, rows;
};

/* ---- what must agree ------------------------------------------------------------------------------ */

enum { DIFFERENCES = 700 };

static void differs(char text[DIFFERENCES], const char *name, const struct part *a, const char *x, const struct part *b,
                    const char *y)
{
    size_t n = strlen(text);
    if (strcmp(x, y) != 0)
        snprintf(text + n, DIFFERENCES - n, "; %s is %s in %s and %s in %s", name, x, a->path, y, b->path);
}

static void number_differs(char text[DIFFERENCES], const char *name, const struct part *a, int64_t x,
                           const struct part *b, int64_t y)
{
    char s[24], t[24];
    snprintf(s, sizeof s, "%lld", (long long)x);
    snprintf(t, sizeof t, "%lld", (long long)y);
    differs(text, name, a, s, b, t);
}

static enum status same_configuration(const struct part *a, const struct part *b, const struct results_identity *d,
                                      size_t n)
{
    char text[DIFFERENCES] = "";
    if (strcmp(a->r->config_hash, b->r->config_hash) == 0 && a->r->questions == b->r->questions &&
        a->r->block == b->r->block)
        return ST_OK;
    for (size_t i = 0; i < n; i++) {
        const char *x = results_attr_str(a->r, d[i].key), *y = results_attr_str(b->r, d[i].key);
        if (x && y) differs(text, d[i].name, a, x, b, y);
    }
    number_differs(text, "the number of questions", a, a->r->questions, b, b->r->questions);
    number_differs(text, "--block", a, a->r->block, b, b->r->block);
    return ERR(ST_E_CONFIG,
               "%s: config_hash is %s, that of %s is %s%s; merge parts of one run only: the same model, draft, prompts "
               "and options, rows chosen with --shard",
               b->path, b->r->config_hash, a->path, a->r->config_hash, text);
}

static enum status take_rows(struct merge *m, size_t p)
{
    const struct results *r = m->part[p].r;
    for (size_t i = 0; i < r->n; i++) {
        int64_t index = r->row[i].index;
        size_t other = m->owner[index];
        if (other)
            return ERR(
                ST_E_CONFIG,
                "%s: requests/index %lld (attempt %d, %s) is in %s too (attempt %d, %s); name each part once, and "
                "make shards that do not overlap",
                m->part[p].path, (long long)index, r->row[i].attempt, result_stop_name(r->row[i].stop),
                m->part[other - 1].path, m->part[other - 1].r->row[m->row[index]].attempt,
                result_stop_name(m->part[other - 1].r->row[m->row[index]].stop));
        m->owner[index] = p + 1;
        m->row[index] = i;
        m->rows++;
        m->done += results_is_done(r->row[i].stop);
    }
    return ST_OK;
}

struct ahead {
    const struct merge *m;
    size_t p;
    int64_t rows; /* finished, and not in the file */
};

static enum status on_row(void *ctx, const struct result_row *row)
{
    struct ahead *a = ctx;
    const struct results *r = a->m->part[a->p].r;
    if (!results_is_done(row->stop) || row->index >= r->questions) return ST_OK;
    const struct result_row *have = a->m->owner[row->index] == a->p + 1 ? &r->row[a->m->row[row->index]] : NULL;
    a->rows += !have || !results_is_done(have->stop);
    return ST_OK;
}

/* a kill may have left the last row of a part in its journal only */
static enum status look_ahead(const struct merge *m, size_t p)
{
    struct stat sb;
    struct ahead a = {m, p, 0};
    const char *path = m->part[p].path;
    char *journal = results_journal_path(path);
    if (!journal) return ST_E_NOMEM;
    if (stat(journal, &sb) == 0) {
        const struct results_replay r = {.ctx = &a, .row = on_row};
        if (results_journal_replay(journal, &r) != ST_OK)
            log_warn("%s: cannot be read; the rows of %s are merged as they are", journal, path);
        else if (a.rows > 0)
            log_warn("%s: %lld finished rows are in its journal only and are not merged; first continue it with "
                     "--resume, or make it anew: pdflash rebuild --journal %s --out %s --force",
                     path, (long long)a.rows, journal, path);
    }
    mem_free(journal);
    return ST_OK;
}

/* ---- attributes ----------------------------------------------------------------------------------- */

static int same_value(const struct h5_attr *a, const struct h5_attr *b)
{
    if (a->kind != b->kind) return 0;
    if (a->kind == H5_KIND_STR) return strcmp(a->s, b->s) == 0;
    return a->kind == H5_KIND_I64 ? a->i == b->i : a->d == b->d || (isnan(a->d) && isnan(b->d));
}

static enum status add(struct merge *m, const char *key, const struct result_attr *value)
{
    if (m->n_attr == m->room) {
        size_t room = m->room ? 2 * m->room : 256;
        struct result_attr *a = mem_grow(m->attr, m->room, room, sizeof *a, "attributes");
        if (!a) return ST_E_NOMEM;
        m->attr = a;
        m->room = room;
    }
    TRY(results_key_ok(key));
    struct result_attr *a = &m->attr[m->n_attr];
    *a = *value;
    if (!(a->key = mem_strdup(key))) return ST_E_NOMEM;
    m->n_attr++;
    return ST_OK;
}

static enum status add_of_part(struct merge *m, size_t p, const char *name, const struct result_attr *value)
{
    char key[2 * H5_MAX_NAME];
    snprintf(key, sizeof key, "part_%zu_%s", p + 1, name);
    return add(m, key, value);
}

static const struct h5_attr *find(const struct results *r, const char *key)
{
    for (size_t i = 0; i < r->n_attrs; i++)
        if (strcmp(r->attr[i].name, key) == 0) return &r->attr[i];
    return NULL;
}

/* 1: every part has the key with one value; *last_p: no later part has it */
static int is_common(const struct merge *m, size_t p, const struct h5_attr *a, int *last_p)
{
    int common = 1;
    *last_p = 1;
    for (size_t q = 0; q < m->n; q++) {
        const struct h5_attr *b = find(m->part[q].r, a->name);
        if (!b || !same_value(a, b)) common = 0;
        if (b && q > p) *last_p = 0;
    }
    return common;
}

/* names that the merge itself gives; a merged file may be a part again */
static int is_of_merge(const char *key)
{
    return strncmp(key, "part_", 5) == 0 || strncmp(key, "merge_", 6) == 0 || strcmp(key, "parts") == 0;
}

static enum status add_attr(struct merge *m, size_t p, const struct h5_attr *a)
{
    const struct result_attr v = {NULL, a->kind, a->s, a->i, a->d};
    int32_t attempt;
    int end = 0, last;
    if (results_key_is_own(a->name)) return ST_OK;
    if (is_of_merge(a->name)) return add_of_part(m, p, a->name, &v);
    if (sscanf(a->name, "attempt_%d_%n", &attempt, &end) == 1 && end > 0 && a->name[end] && attempt >= 1 &&
        attempt <= m->part[p].r->attempt) {
        char key[2 * H5_MAX_NAME];
        return add(m, results_attempt_key(attempt + m->part[p].base, a->name + end, key, sizeof key), &v);
    }
    int common = is_common(m, p, a, &last);
    if (last) TRY(add(m, a->name, &v));
    return common ? ST_OK : add_of_part(m, p, a->name, &v);
}

static enum status add_part(struct merge *m, size_t p)
{
    const struct part *x = &m->part[p];
    const struct result_attr own[] = {{"file", H5_KIND_STR, x->file, 0, 0},
                                      {"sha256", H5_KIND_STR, x->sha256, 0, 0},
                                      {"rows", H5_KIND_I64, NULL, (int64_t)x->r->n, 0},
                                      {"first_attempt", H5_KIND_I64, NULL, x->base + 1, 0},
                                      {"attempts", H5_KIND_I64, NULL, x->r->attempt, 0},
                                      {"complete", H5_KIND_I64, NULL, x->r->complete, 0}};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) TRY(add_of_part(m, p, own[i].key, &own[i]));
    for (size_t i = 0; i < x->r->n_attrs; i++) TRY(add_attr(m, p, &x->r->attr[i]));
    return ST_OK;
}

/* ---- the new journal ------------------------------------------------------------------------------ */

/* the last plan is the file's; where plans differ each part's is an attribute too */
static enum status add_plans(struct merge *m, const char **plan_p)
{
    const char *plan = NULL;
    int differ = 0;
    for (size_t p = 0; p < m->n; p++) {
        const char *s = m->part[p].r->plan;
        differ |= s && plan && strcmp(s, plan) != 0;
        if (s) plan = s;
    }
    for (size_t p = 0; p < m->n && differ; p++)
        if (m->part[p].r->plan)
            TRY(add_of_part(m, p, "plan", &(struct result_attr){NULL, H5_KIND_STR, m->part[p].r->plan, 0, 0}));
    *plan_p = plan;
    return ST_OK;
}

static enum status write_memory(const struct merge *m, struct results_journal *j)
{
    size_t n = 0;
    for (size_t p = 0; p < m->n; p++) n += m->part[p].r->n_memory;
    if (n == 0) return ST_OK;
    struct result_memory *all = mem_alloc(n, sizeof *all, "memory of ranks");
    if (!all) return ST_E_NOMEM;
    n = 0;
    for (size_t p = 0; p < m->n; p++) {
        const struct results *r = m->part[p].r;
        if (r->n_memory) memcpy(all + n, r->memory, r->n_memory * sizeof *all);
        n += r->n_memory;
    }
    enum status st = results_journal_add(j, results_json_memory(all, n));
    mem_free(all);
    return st;
}

/* when the ranks were at work: the attempts number on through the parts here too */
static enum status write_spans(const struct merge *m, struct results_journal *j)
{
    size_t n = 0;
    for (size_t p = 0; p < m->n; p++) n += m->part[p].r->n_spans;
    if (n == 0) return ST_OK;
    struct result_span *all = mem_alloc(n, sizeof *all, "spans of work");
    if (!all) return ST_E_NOMEM;
    n = 0;
    for (size_t p = 0; p < m->n; p++)
        for (size_t i = 0; i < m->part[p].r->n_spans; i++) {
            all[n] = m->part[p].r->span[i];
            all[n++].attempt += m->part[p].base;
        }
    enum status st = results_journal_add(j, results_json_spans(all, n));
    mem_free(all);
    return st;
}

static enum status write_rows(const struct merge *m, struct results_journal *j)
{
    for (int64_t i = 0; i < m->part[0].r->questions; i++) {
        if (!m->owner[i]) continue;
        const struct part *p = &m->part[m->owner[i] - 1];
        struct result_row row = p->r->row[m->row[i]];
        row.attempt += p->base;
        TRY(results_journal_add(j, results_json_row(&row)));
    }
    return ST_OK;
}

static enum status write_journal(struct merge *m, struct results_journal *j, const struct result_attr *extra,
                                 size_t n_extra)
{
    const struct results *r = m->part[0].r;
    const struct results_store s = {
        .config_hash = r->config_hash, .questions = r->questions, .block = r->block, .attempt = m->attempts};
    const char *plan;
    TRY(add(m, "parts", &(struct result_attr){NULL, H5_KIND_I64, NULL, (int64_t)m->n, 0}));
    for (size_t i = 0; i < n_extra; i++) TRY(add(m, extra[i].key, &extra[i]));
    for (size_t p = 0; p < m->n; p++) TRY(add_part(m, p));
    TRY(add_plans(m, &plan));
    TRY(results_journal_empty(j));
    TRY(results_journal_add(j, results_json_run(&s)));
    TRY(results_journal_add(j, results_json_attrs(m->attr, m->n_attr)));
    if (plan) TRY(results_journal_add(j, results_json_plan(plan, NULL, 0)));
    TRY(write_memory(m, j));
    TRY(write_spans(m, j));
    TRY(write_rows(m, j));
    return results_journal_add(j, results_json_finish(m->done == r->questions));
}

/* ---- the merge ------------------------------------------------------------------------------------ */

static enum status load(struct merge *m, const char *out, const struct results_identity *identity, size_t n_identity)
{
    for (size_t p = 0; p < m->n; p++) {
        struct part *x = &m->part[p];
        if (outfile_is(out, x->path))
            return ERR(ST_E_FILE, "--out %s: is a part too (%s); name another file to write", out, x->path);
        TRY(results_load(x->path, &x->r));
        if (!(x->file = utf8_clean(x->path, strlen(x->path)))) return ST_E_NOMEM;
        TRY(hash_file_sha256(x->path, x->sha256));
        x->base = m->attempts;
        if (x->r->attempt > INT32_MAX - m->attempts) return ERR(ST_E_CONFIG, "%s: too many attempts", x->path);
        m->attempts += x->r->attempt;
        TRY(same_configuration(&m->part[0], x, identity, n_identity));
        if (p == 0) {
            m->owner = mem_alloc((size_t)x->r->questions, sizeof *m->owner, "rows of questions");
            m->row = mem_alloc((size_t)x->r->questions, sizeof *m->row, "rows of questions");
            if (!m->owner || !m->row) return ST_E_NOMEM;
        }
        TRY(take_rows(m, p));
        TRY(look_ahead(m, p));
    }
    return ST_OK;
}

/* all of it in temporary files, then both in their places */
static enum status make(struct merge *m, const char *out, const struct result_attr *extra, size_t n_extra)
{
    struct results_claim c = {{-1, NULL, 0}}, fresh = {{-1, NULL, 0}};
    struct results_store s = {.f = NULL};
    size_t n = strlen(out) + 7;
    char *name = mem_alloc(n, 1, "a path");
    if (!name) return ST_E_NOMEM;
    snprintf(name, n, "%s.merge", out);
    enum status st = results_check_journal(name);
    if (st == ST_OK) st = results_claim(out, &c);
    if (st == ST_OK) st = results_claim(name, &fresh);
    if (st == ST_OK) st = write_journal(m, &fresh.journal, extra, n_extra);
    if (st == ST_OK) st = results_store_from_journal(out, fresh.journal.path, 0, &s);
    if (st == ST_OK) {
        st = results_publish(&s, &c, fresh.journal.path);
        results_store_close(&s);
    }
    if (st != ST_OK && fresh.journal.path) unlink(fresh.journal.path);
    results_journal_close(&fresh.journal);
    results_release(&c);
    mem_free(name);
    return st;
}

static void drop(struct merge *m)
{
    for (size_t p = 0; m->part && p < m->n; p++) {
        results_free(m->part[p].r);
        mem_free(m->part[p].file);
    }
    for (size_t i = 0; i < m->n_attr; i++) mem_free((void *)(uintptr_t)m->attr[i].key);
    mem_free(m->attr);
    mem_free(m->owner);
    mem_free(m->row);
    mem_free(m->part);
}

static enum status merge_at(const char *out, int force, const char *const *part, size_t n,
                          const struct results_identity *identity, size_t n_identity, const struct result_attr *extra,
                          size_t n_extra, struct results_made *m_p)
{
    struct merge m = {.n = n};
    if (n < 1) return ERR(ST_E_RANGE, "%s: no part to merge", out);
    TRY(results_check_place(out, force, "replace it with --force, or name another file"));
    TRY(h5_check_folder(out));
    m.part = mem_alloc(n, sizeof *m.part, "parts");
    if (!m.part) return ST_E_NOMEM;
    for (size_t p = 0; p < n; p++) m.part[p].path = part[p];
    enum status st = load(&m, out, identity, n_identity);
    if (st == ST_OK) st = make(&m, out, extra, n_extra);
    if (st == ST_OK)
        *m_p =
            (struct results_made){m.part[0].r->questions, m.rows, m.done, m.attempts, m.done == m.part[0].r->questions};
    drop(&m);
    return st;
}

enum status results_merge(const char *out, int force, const char *const *part, size_t n,
                          const struct results_identity *identity, size_t n_identity, const struct result_attr *extra,
                          size_t n_extra, struct results_made *m_p)
{
    char *at;
    TRY(results_place(out, &at));
    enum status st = merge_at(at, force, part, n, identity, n_identity, extra, n_extra, m_p);
    mem_free(at);
    return st;
}
