#include "data/results.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "data/results_priv.h"
#include "data/utf8.h"

struct results_writer {
    struct results_store store;
    struct results_journal journal;
    char *path;
    int broken; /* a write failed: memory and disk may differ, nothing more is written */
    int idle;   /* results_idle */
    int32_t *seen; /* [questions] while a resume begins: the last attempt whose row the journal has, 0: none */
};

static int exists(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0;
}

/* ---- from the journal to a store ------------------------------------------------------------------ */

struct rebuild {
    const char *path;
    struct results_store *s;
    int open;
    int32_t *seen; /* or NULL: results_writer */
};

static enum status same_setup(const char *path, const char *hash, int64_t questions, int32_t block,
                              const struct results_setup *want)
{
    if (strcmp(hash, want->config_hash) != 0)
        return ERR(ST_E_CONFIG,
                   "%s: made under config hash %s, this run has %s; use the same options and files, or --force-new to "
                   "start over",
                   path, hash, want->config_hash);
    if (questions != want->questions)
        return ERR(ST_E_CONFIG, "%s: made for %lld questions, this run has %lld", path, (long long)questions,
                   (long long)want->questions);
    if (block != want->block)
        return ERR(ST_E_CONFIG, "%s: made with block %d, this run has %d", path, block, want->block);
    return ST_OK;
}

enum { DIFFERENCES = 768 };

static void differs(char text[DIFFERENCES], const char *name, const char *there, const char *here)
{
    size_t n = strlen(text);
    if (strcmp(there, here) != 0)
        snprintf(text + n, DIFFERENCES - n, "%s%s is %s in the file and %s now", n ? "; " : "", name, there, here);
}

static void number_differs(char text[DIFFERENCES], const char *name, int64_t there, int64_t here)
{
    char a[24], b[24];
    snprintf(a, sizeof a, "%lld", (long long)there);
    snprintf(b, sizeof b, "%lld", (long long)here);
    differs(text, name, a, b);
}

/* under another hash: what differs, as far as the file says */
static enum status differences(const struct results_store *s, const struct results_setup *want, char text[DIFFERENCES])
{
    text[0] = 0;
    for (size_t i = 0; i < want->n_identity; i++) {
        const struct results_identity *d = &want->identity[i];
        char *there;
        if (!h5_has_attr(s->f, "/", d->key)) continue;
        TRY(h5_get_str(s->f, "/", d->key, &there));
        differs(text, d->name, there, d->value);
        mem_free(there);
    }
    number_differs(text, "the number of questions (--limit)", s->questions, want->questions);
    number_differs(text, "--block", s->block, want->block);
    return ST_OK;
}

static enum status same_as_file(const char *path, const struct results_store *s, const struct results_setup *want)
{
    char text[DIFFERENCES] = "";
    if (strcmp(s->config_hash, want->config_hash) != 0) TRY(differences(s, want, text));
    if (!text[0]) return same_setup(path, s->config_hash, s->questions, s->block, want);
    return ERR(ST_E_CONFIG,
               "%s: made under another configuration: %s; use the same options and files, name another file, or "
               "--force-new to start over",
               path, text);
}

static enum status on_run(void *ctx, const struct results_setup *u, int32_t attempt)
{
    struct rebuild *b = ctx;
    if (!b->open) {
        TRY(results_store_new(b->path, u, attempt, b->s));
        b->open = 1;
        return ST_OK;
    }
    TRY(same_setup(b->path, b->s->config_hash, b->s->questions, b->s->block, u));
    return results_store_attempt(b->s, attempt);
}

/* a row the store has already, or one behind a row that is done, is left out */
static enum status on_row(void *ctx, const struct result_row *row)
{
    struct rebuild *b = ctx;
    struct results_store *s = b->s;
    if (b->seen) b->seen[row->index] = row->attempt;
    int done = s->slot[row->index] >= 0 && results_is_done((enum result_stop)s->stop[row->index]);
    if (done || s->tried[row->index] >= row->attempt) return ST_OK;
    return results_store_append(s, row);
}

/* HDF5 takes the longer to replace an attribute the more there are, and a merged file has a hundred of every part: what
 * the file has already stays */
static int has_attr(const struct h5 *f, const struct result_attr *a)
{
    char *s = NULL;
    int64_t i;
    double d;
    if (!h5_has_attr(f, "/", a->key)) return 0;
    if (a->kind == H5_KIND_STR) {
        int same = h5_get_str(f, "/", a->key, &s) == ST_OK && strcmp(s, a->s) == 0;
        mem_free(s);
        return same;
    }
    if (a->kind == H5_KIND_I64) return h5_get_int(f, "/", a->key, &i) == ST_OK && i == a->i;
    return h5_get_real(f, "/", a->key, &d) == ST_OK && memcmp(&d, &a->d, sizeof d) == 0;
}

static enum status on_attrs(void *ctx, const struct result_attr *a, size_t n)
{
    struct rebuild *b = ctx;
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++)
        if (!has_attr(b->s->f, &a[i])) st = results_store_attrs(b->s, "/", &a[i], 1);
    return st;
}

static enum status on_plan(void *ctx, const char *json, const struct result_attr *a, size_t n)
{
    struct rebuild *b = ctx;
    return results_store_plan(b->s, json, a, n);
}

static enum status on_memory(void *ctx, const struct result_memory *m, size_t n)
{
    struct rebuild *b = ctx;
    return results_store_memory(b->s, m, n);
}

static enum status on_spans(void *ctx, const struct result_span *v, size_t n)
{
    struct rebuild *b = ctx;
    return results_store_spans(b->s, v, n);
}

enum status results_store_from_journal(const char *path, const char *journal, int trims,
                                       struct results_store *s_p)
{
    struct results_store s = {.f = NULL};
    struct rebuild b = {path, &s, 0, NULL};
    const struct results_replay r = {&b, on_run, on_row, on_attrs, on_plan, on_memory, on_spans, trims};
    enum status st = results_journal_replay(journal, &r);
    if (st == ST_OK && !b.open) st = ERR(ST_E_FORMAT, "%s: no whole line, nothing to rebuild from", journal);
    if (st == ST_OK) st = results_store_complete(&s, s.done == s.questions);
    if (st == ST_OK)
        *s_p = s;
    else if (b.open)
        results_store_close(&s);
    return st;
}

/* ---- resume --------------------------------------------------------------------------------------- */

static enum status on_same_run(void *ctx, const struct results_setup *u, int32_t attempt)
{
    struct rebuild *b = ctx;
    (void)attempt;
    return same_setup(b->path, u->config_hash, u->questions, u->block,
                      &(struct results_setup){b->s->config_hash, b->s->questions, b->s->block, NULL, 0, 0, 0});
}

static enum status journal_attrs(struct results_writer *w, const struct results *r)
{
    struct result_attr *a = mem_alloc(r->n_attrs, sizeof *a, "attributes");
    if (!a) return ST_E_NOMEM;
    size_t n = 0;
    for (size_t i = 0; i < r->n_attrs; i++)
        if (!results_key_is_own(r->attr[i].name))
            a[n++] = (struct result_attr){r->attr[i].name, r->attr[i].kind, r->attr[i].s, r->attr[i].i, r->attr[i].d};
    enum status st = results_journal_add(&w->journal, results_json_attrs(a, n));
    mem_free(a);
    return st;
}

/* the journal is gone, the file is not: write what the file holds to a new journal */
static enum status journal_from_file(struct results_writer *w)
{
    struct results *r;
    log_warn("%s: missing or empty; written anew from %s", w->journal.path, w->path);
    TRY(results_load(w->path, &r));
    enum status st = results_journal_add(&w->journal, results_json_run(&w->store));
    if (st == ST_OK) st = journal_attrs(w, r);
    if (st == ST_OK && r->plan) st = results_journal_add(&w->journal, results_json_plan(r->plan, NULL, 0));
    for (size_t i = 0; i < r->n && st == ST_OK; i++)
        st = results_journal_add(&w->journal, results_json_row(&r->row[i]));
    if (st == ST_OK && r->n_memory) st = results_journal_add(&w->journal, results_json_memory(r->memory, r->n_memory));
    if (st == ST_OK && r->n_spans) st = results_journal_add(&w->journal, results_json_spans(r->span, r->n_spans));
    results_free(r);
    return st;
}

/* a journal behind its file, an older copy for one: what --resume and rebuild rely on is to have every row */
static enum status rows_to_journal(struct results_writer *w)
{
    int64_t lacks = 0;
    for (int64_t i = 0; w->seen && i < w->store.questions; i++)
        lacks += w->store.slot[i] >= 0 && w->store.tried[i] > w->seen[i];
    if (!lacks) return ST_OK;
    struct results *r;
    log_warn("%s: lacks %lld rows that %s has; they are added", w->journal.path, (long long)lacks, w->path);
    TRY(results_load(w->path, &r));
    enum status st = ST_OK;
    for (size_t i = 0; i < r->n && st == ST_OK; i++)
        if (r->row[i].attempt > w->seen[r->row[i].index])
            st = results_journal_add(&w->journal, results_json_row(&r->row[i]));
    results_free(r);
    return st;
}

/* the file as it is, or, when it cannot be read, as its journal has it (*rebuilt_p); on the disk nothing changes yet */
static enum status open_store(struct results_writer *w, int64_t lines, int *rebuilt_p)
{
    const char *why = "missing";
    int there = exists(w->path), ours = results_file_holds(w->path, w->journal.path) == RESULTS_AT_OURS;
    enum status st = there ? results_look(w->path, &why) : ST_E_FILE;
    if (st == ST_OK) return results_store_open(w->path, &w->store);
    if (there && (lines == 0 || !ours || st == ST_E_NOMEM)) return hold_tell(st);
    st = results_store_from_journal(w->path, w->journal.path, 1, &w->store);
    if (st != ST_OK) return there ? hold_tell(st) : st; /* both are bad, and both are told of */
    if (there)
        log_warn("%s; rebuilt from %s", why, w->journal.path);
    else
        log_warn("%s: missing; rebuilt from %s", w->path, w->journal.path);
    *rebuilt_p = 1;
    return ST_OK;
}

/* a kill leaves what only the journal has: a row, the attributes of an attempt without rows */
static enum status take_from_journal(struct results_writer *w)
{
    w->seen = mem_alloc((size_t)w->store.questions, sizeof *w->seen, "rows of the journal");
    if (!w->seen) return ST_E_NOMEM;
    struct rebuild b = {w->path, &w->store, 1, w->seen};
    const struct results_replay r = {.ctx = &b, .run = on_same_run, .row = on_row, .attrs = on_attrs, .trims = 1};
    int64_t before = w->store.rows;
    enum status st = results_journal_replay(w->journal.path, &r);
    if (st == ST_E_FORMAT)
        log_warn("%s is whole: move %s away, and --resume writes the journal anew; a row that only the journal has is "
                 "done again",
                 w->path, w->journal.path);
    if (st == ST_OK && w->store.rows > before)
        log_info("%s: %lld rows taken from the journal", w->path, (long long)(w->store.rows - before));
    return st;
}

static int nothing_left(const struct results_writer *w, const struct results_setup *setup)
{
    int64_t i = setup->first;
    while (i < setup->end && results_done(w, i)) i++;
    return setup->first < setup->end && i == setup->end;
}

static enum status set_complete(struct results_writer *w, int complete)
{
    TRY(results_journal_add(&w->journal, results_json_finish(complete)));
    return results_store_complete(&w->store, complete);
}

/* whether every question is done; a kill may have come between the last row and this */
static enum status settle(struct results_writer *w)
{
    int64_t there = 0;
    int all = w->store.done == w->store.questions;
    if (h5_get_int(w->store.f, "/", "complete", &there) == ST_OK && there == all) return ST_OK;
    return set_complete(w, all);
}

static enum status resume(struct results_writer *w, const struct results_setup *setup)
{
    int64_t lines = 0;
    int rebuilt = 0;
    TRY(results_journal_lines(&w->journal, &lines));
    if (!exists(w->path) && lines == 0) {
        log_info("%s: nothing to resume, a new run starts", w->path);
        TRY(results_journal_trim(&w->journal));
        return results_store_new(w->path, setup, 1, &w->store);
    }
    TRY(open_store(w, lines, &rebuilt));
    if (lines > 0 && !rebuilt) TRY(take_from_journal(w));
    TRY(same_as_file(w->path, &w->store, setup));
    TRY(results_journal_trim(&w->journal)); /* not before: a refused resume leaves everything as it was */
    TRY(lines == 0 ? journal_from_file(w) : rows_to_journal(w));
    w->idle = nothing_left(w, setup);
    if (w->idle) return settle(w);
    TRY(results_store_attempt(&w->store, w->store.attempt + 1));
    log_info("%s: attempt %d, %lld of %lld questions are done", w->path, w->store.attempt, (long long)w->store.done,
             (long long)w->store.questions);
    return results_store_complete(&w->store, 0);
}

/* ---- the writer ----------------------------------------------------------------------------------- */

static enum status note(struct results_writer *w, enum status st)
{
    if (st == ST_E_IO)
        log_warn("%s: rows written before are kept; make room, then continue with --resume", w->path);
    if (st != ST_OK) w->broken = 1;
    return st;
}

static enum status start(struct results_writer *w, enum results_mode mode, const struct results_setup *setup)
{
    TRY(results_journal_open(w->path, &w->journal));
    if (mode == RESULTS_RESUME) {
        TRY(resume(w, setup));
        if (w->idle) return h5_flush(w->store.f);
    } else {
        TRY(results_store_new(w->path, setup, 1, &w->store));
        TRY(results_journal_empty(&w->journal));
    }
    TRY(results_journal_add(&w->journal, results_json_run(&w->store)));
    return h5_flush(w->store.f);
}

static enum status open_at(const char *path, enum results_mode mode, const struct results_setup *setup,
                           struct results_writer **w_p)
{
    static const char remedy[] = "continue it with --resume, replace it with --force-new, or name another file";
    TRY(results_check_setup(ST_E_RANGE, path, setup));
    TRY(mode == RESULTS_RESUME ? results_check_journal(path)
                               : results_check_place(path, mode == RESULTS_FORCE, remedy));
    TRY(h5_check_folder(path));
    struct results_writer *w = mem_alloc(1, sizeof *w, "the results writer");
    if (!w) return ST_E_NOMEM;
    w->journal.fd = -1;
    w->path = mem_strdup(path);
    enum status st = w->path ? note(w, start(w, mode, setup)) : ST_E_NOMEM;
    if (st != ST_OK) {
        results_journal_forget(&w->journal);
        results_close(w);
        return st;
    }
    *w_p = w;
    return ST_OK;
}

enum status results_open(const char *path, enum results_mode mode, const struct results_setup *setup,
                         struct results_writer **w_p)
{
    char *at;
    TRY(results_place(path, &at));
    enum status st = open_at(at, mode, setup, w_p);
    mem_free(at);
    return st;
}

int32_t results_attempt(const struct results_writer *w)
{
    return w->store.attempt;
}

int results_idle(const struct results_writer *w)
{
    return w->idle;
}

const char *results_attempt_key(int32_t attempt, const char *name, char *buf, size_t n)
{
    snprintf(buf, n, "attempt_%d_%s", attempt, name);
    return buf;
}

int results_done(const struct results_writer *w, int64_t index)
{
    const struct results_store *s = &w->store;
    return index >= 0 && index < s->questions && s->slot[index] >= 0 &&
           results_is_done((enum result_stop)s->stop[index]);
}

int64_t results_done_count(const struct results_writer *w)
{
    return w->store.done;
}

static enum status usable(const struct results_writer *w)
{
    if (w->broken) return ERR(ST_E_IO, "%s: an earlier write failed; resume from the file", w->path);
    return w->idle ? ERR(ST_E_RANGE, "%s: nothing was left to do, nothing is to be written", w->path) : ST_OK;
}

/* copies with clean text; names stay the caller's */
static enum status clean_attrs(const struct result_attr *a, size_t n, struct result_attr **c_p)
{
    for (size_t i = 0; i < n; i++) {
        TRY(results_key_ok(a[i].key));
        if (a[i].kind != H5_KIND_STR && a[i].kind != H5_KIND_I64 && a[i].kind != H5_KIND_F64)
            return ERR(ST_E_RANGE, "attribute %s: kind %d is neither text, int64 nor float64", a[i].key,
                       (int)a[i].kind);
    }
    struct result_attr *c = mem_alloc(n, sizeof *c, "attributes");
    if (!c) return ST_E_NOMEM;
    enum status st = ST_OK;
    for (size_t i = 0; i < n; i++) {
        c[i] = a[i];
        c[i].s = NULL;
        if (a[i].kind != H5_KIND_STR) continue;
        c[i].s = utf8_clean(a[i].s ? a[i].s : "", a[i].s ? strlen(a[i].s) : 0);
        if (!c[i].s) st = ST_E_NOMEM;
    }
    *c_p = c; /* released by the caller in either case */
    return st;
}

static void drop_attrs(struct result_attr *c, size_t n)
{
    for (size_t i = 0; c && i < n; i++) mem_free((void *)(uintptr_t)c[i].s);
    mem_free(c);
}

enum status results_attrs(struct results_writer *w, const struct result_attr *a, size_t n)
{
    struct result_attr *c = NULL;
    TRY(usable(w));
    enum status st = clean_attrs(a, n, &c);
    if (st == ST_OK) st = note(w, results_journal_add(&w->journal, results_json_attrs(c, n)));
    if (st == ST_OK) st = note(w, results_store_attrs(&w->store, "/", c, n));
    drop_attrs(c, n);
    return st;
}

enum status results_plan(struct results_writer *w, const char *json, const struct result_attr *a, size_t n)
{
    struct result_attr *c = NULL;
    TRY(usable(w));
    char *text = utf8_clean(json, strlen(json));
    enum status st = text ? clean_attrs(a, n, &c) : ST_E_NOMEM;
    if (st == ST_OK) st = note(w, results_journal_add(&w->journal, results_json_plan(text, c, n)));
    if (st == ST_OK) st = note(w, results_store_plan(&w->store, text, c, n));
    drop_attrs(c, n);
    mem_free(text);
    return st;
}

enum status results_sync(struct results_writer *w)
{
    TRY(usable(w));
    return note(w, h5_flush(w->store.f));
}

enum status results_append(struct results_writer *w, const struct result_row *row)
{
    struct result_row own;
    TRY(usable(w));
    TRY(results_check_row(ST_E_RANGE, w->path, row, w->store.questions, w->store.block));
    if (results_done(w, row->index))
        return ERR(ST_E_RANGE, "%s: index %lld is done already", w->path, (long long)row->index);
    struct result_row with = *row;
    if (with.attempt == 0) with.attempt = w->store.attempt;
    if (with.attempt <= w->store.tried[row->index])
        return ERR(ST_E_RANGE, "%s: index %lld was recorded by attempt %d already, this is attempt %d", w->path,
                   (long long)row->index, w->store.tried[row->index], with.attempt);
    TRY(results_own_row(&with, &own));
    enum status st = results_journal_add(&w->journal, results_json_row(&own));
    if (st == ST_OK) st = results_store_append(&w->store, &own);
    if (st == ST_OK) st = h5_flush(w->store.f);
    results_drop_row(&own);
    return note(w, st);
}

enum status results_memory(struct results_writer *w, const struct result_memory *m, size_t n)
{
    TRY(usable(w));
    for (size_t i = 0; i < n; i++) {
        size_t role = strnlen(m[i].role, sizeof m[i].role), host = strnlen(m[i].host, sizeof m[i].host);
        if (role == sizeof m[i].role || host == sizeof m[i].host || utf8_bad_at(m[i].role, role) != role ||
            utf8_bad_at(m[i].host, host) != host)
            return ERR(ST_E_RANGE, "%s: memory row %zu: role or host is no zero-terminated UTF-8", w->path, i);
    }
    TRY(note(w, results_journal_add(&w->journal, results_json_memory(m, n))));
    return note(w, results_store_memory(&w->store, m, n));
}

enum status results_spans(struct results_writer *w, const struct result_span *s, size_t n)
{
    TRY(usable(w));
    struct result_span *own = mem_alloc(n, sizeof *own, "spans of work");
    if (!own) return ST_E_NOMEM;
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        own[i] = s[i];
        own[i].attempt = w->store.attempt;
        st = results_check_span(ST_E_RANGE, w->path, i, &own[i], w->store.attempt, w->store.questions);
    }
    if (st == ST_OK && n) st = note(w, results_journal_add(&w->journal, results_json_spans(own, n)));
    if (st == ST_OK) st = note(w, results_store_spans(&w->store, own, n));
    mem_free(own);
    return st;
}

enum status results_finish(struct results_writer *w, int complete, int *complete_p)
{
    TRY(usable(w));
    int all = complete && w->store.done == w->store.questions;
    TRY(note(w, set_complete(w, all)));
    TRY(note(w, h5_flush(w->store.f)));
    if (complete_p) *complete_p = all;
    return ST_OK;
}

void results_close(struct results_writer *w)
{
    if (!w) return;
    results_store_close(&w->store);
    results_journal_close(&w->journal);
    mem_free(w->seen);
    mem_free(w->path);
    mem_free(w);
}
