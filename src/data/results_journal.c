#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "data/results_priv.h"

/* ---- the file ------------------------------------------------------------------------------------- */

char *results_journal_path(const char *path)
{
    size_t n = strlen(path) + 7;
    char *p = mem_alloc(n, 1, "a path");
    if (p) snprintf(p, n, "%s.jsonl", path);
    return p;
}

/* some network file systems have no locks */
static enum status lock(const char *path, int fd)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return ST_OK;
    if (errno == EWOULDBLOCK)
        return ERR(ST_E_FILE, "%s: another process is writing these results; wait for it or name another file", path);
    log_warn("%s: cannot lock (%s); take care that no other process writes it", path, strerror(errno));
    return ST_OK;
}

enum status results_journal_lock(const char *journal, int *fd_p)
{
    int fd = open(journal, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ERR(ST_E_FILE, "%s: cannot open: %s", journal, strerror(errno));
    enum status st = lock(journal, fd);
    if (st == ST_OK)
        *fd_p = fd;
    else
        close(fd);
    return st;
}

enum status results_journal_open(const char *path, struct results_journal *j_p)
{
    struct stat sb;
    struct results_journal j = {-1, results_journal_path(path), 0};
    if (!j.path) return ST_E_NOMEM;
    enum status st = ST_OK;
    j.made = stat(j.path, &sb) != 0;
    j.fd = open(j.path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (j.fd < 0)
        st = ERR(ST_E_FILE, "%s: cannot open: %s", j.path, strerror(errno));
    else
        st = lock(j.path, j.fd);
    if (st == ST_OK)
        *j_p = j;
    else
        results_journal_close(&j);
    return st;
}

void results_journal_close(struct results_journal *j)
{
    if (j->path && j->fd >= 0) close(j->fd);
    mem_free(j->path);
    *j = (struct results_journal){-1, NULL, 0};
}

void results_journal_forget(struct results_journal *j)
{
    struct stat sb;
    if (j->path && j->fd >= 0 && j->made && fstat(j->fd, &sb) == 0 && sb.st_size == 0 && sb.st_nlink > 0)
        unlink(j->path);
}

enum status results_journal_empty(struct results_journal *j)
{
    return ftruncate(j->fd, 0) == 0 ? ST_OK : ERR(ST_E_IO, "%s: cannot empty: %s", j->path, strerror(errno));
}

static enum status count(const struct results_journal *j, int64_t *lines_p, int64_t *whole_p, int64_t *bytes_p)
{
    FILE *f = fopen(j->path, "rb");
    if (!f) return ERR(ST_E_IO, "%s: cannot read: %s", j->path, strerror(errno));
    int64_t lines = 0, whole = 0, at = 0;
    for (int c; (c = getc(f)) != EOF;) {
        at++;
        if (c != '\n') continue;
        lines++;
        whole = at;
    }
    fclose(f);
    *lines_p = lines;
    *whole_p = whole;
    *bytes_p = at;
    return ST_OK;
}

enum status results_journal_lines(const struct results_journal *j, int64_t *lines_p)
{
    int64_t whole, bytes;
    return count(j, lines_p, &whole, &bytes);
}

enum status results_journal_trim(struct results_journal *j)
{
    int64_t lines, whole, bytes;
    TRY(count(j, &lines, &whole, &bytes));
    if (whole == bytes) return ST_OK;
    log_warn("%s: the last line is cut short; its %lld bytes are dropped", j->path, (long long)(bytes - whole));
    if (ftruncate(j->fd, whole) != 0) return ERR(ST_E_IO, "%s: cannot cut: %s", j->path, strerror(errno));
    return ST_OK;
}

enum status results_journal_add(struct results_journal *j, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL; /* its memory comes from malloc */
    json_decref(o);
    if (!text) return ERR(ST_E_NOMEM, "%s: no memory for a line", j->path);
    size_t n = strlen(text);
    const char *p = text;
    enum status st = ST_OK;
    text[n++] = '\n'; /* in place of the final zero */
    while (n > 0 && st == ST_OK) {
        ssize_t k = write(j->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            st = ERR(ST_E_IO, "%s: cannot write: %s", j->path, strerror(errno));
        } else {
            p += k;
            n -= (size_t)k;
        }
    }
    if (st == ST_OK && fsync(j->fd) != 0) st = ERR(ST_E_IO, "%s: fsync: %s", j->path, strerror(errno));
    mem_free(text);
    return st;
}

/* ---- rows to lines -------------------------------------------------------------------------------- */

static json_t *number(double d)
{
    return isfinite(d) ? json_real(d) : json_null();
}

/* o[key] = v unless *bad; a NULL v or o makes *bad */
static void put(json_t *o, const char *key, json_t *v, int *bad)
{
    if (json_object_set_new(o, key, v) != 0) *bad = 1;
}

static void push(json_t *a, json_t *v, int *bad)
{
    if (json_array_append_new(a, v) != 0) *bad = 1;
}

static json_t *unless(int bad, json_t *o)
{
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

static json_t *line(const char *kind, int *bad)
{
    json_t *o = json_object();
    put(o, "kind", json_string(kind), bad);
    return o;
}

json_t *results_json_run(const struct results_store *s)
{
    int bad = 0;
    json_t *o = line("run", &bad);
    put(o, "schema", json_string(RESULTS_SCHEMA_NAME), &bad);
    put(o, "schema_version", json_integer(RESULTS_SCHEMA), &bad);
    put(o, "attempt", json_integer(s->attempt), &bad);
    put(o, "config_hash", json_string(s->config_hash), &bad);
    put(o, "questions", json_integer(s->questions), &bad);
    put(o, "block", json_integer(s->block), &bad);
    return unless(bad, o);
}

static json_t *json_rounds(const struct result_row *row, int *bad)
{
    json_t *a = json_array();
    for (int32_t i = 0; i < row->n_rounds; i++) {
        json_t *r = json_array();
        for (int c = 0; c < RESULTS_ROUND_COLUMNS; c++) {
            int32_t v;
            memcpy(&v, (const char *)&row->round[i] + results_round_column[c].offset, sizeof v);
            push(r, json_integer(v), bad);
        }
        push(a, r, bad);
    }
    return a;
}

static json_t *json_transfer(const struct result_row *row, int *bad)
{
    json_t *o = json_object();
    for (int c = 0; c < RESULT_COMP_N; c++) {
        const struct result_transfer *x = &row->transfer[c];
        char sum[24];
        json_t *t = json_object();
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)x->checksum);
        put(t, "bytes", json_integer(x->bytes), bad);
        put(t, "puts", json_integer(x->puts), bad);
        put(t, "seconds", number(x->seconds), bad);
        put(t, "checksum", json_string(sum), bad);
        put(o, result_component_name((enum result_component)c), t, bad);
    }
    return o;
}

static json_t *json_grades(const struct result_row *row, int *bad)
{
    json_t *o = json_object();
    for (int r = 0; r < GSM8K_N; r++) {
        json_t *g = json_object();
        put(g, "extracted", json_string(row->grade.extracted[r]), bad);
        put(g, "correct", json_integer(row->grade.correct[r]), bad);
        put(o, gsm8k_rule_name((enum gsm8k_rule)r), g, bad);
    }
    return o;
}

json_t *results_json_row(const struct result_row *row)
{
    int bad = 0;
    json_t *o = line("row", &bad), *ids = json_array(), *times = json_object();
    put(o, "index", json_integer(row->index), &bad);
    put(o, "attempt", json_integer(row->attempt), &bad);
    put(o, "stop_reason", json_string(result_stop_name(row->stop)), &bad);
    put(o, "prompt_tokens", json_integer(row->prompt_tokens), &bad);
    put(o, "output_tokens", json_integer(row->output_tokens), &bad);
    put(o, "question", json_string(row->question), &bad);
    put(o, "response", json_string(row->response), &bad);
    put(o, "gold", json_string(row->gold), &bad);
    put(o, "error", json_string(row->error), &bad);
    for (int32_t i = 0; i < row->output_tokens; i++) push(ids, json_integer(row->token[i]), &bad);
    put(o, "tokens", ids, &bad);
    put(o, "rounds", json_rounds(row, &bad), &bad);
    struct result_timing t = row->timing;
    const char *name;
    double *v;
    for (int i = 0; (name = results_timing_at(&t, i, &v)) != NULL; i++) put(times, name, number(*v), &bad);
    put(o, "timing", times, &bad);
    put(o, "transfer", json_transfer(row, &bad), &bad);
    put(o, "grading", json_grades(row, &bad), &bad);
    return unless(bad, o);
}

/* a list of pairs, so that order and kind survive: integers, reals (null: NaN), text */
static json_t *json_attrs(const struct result_attr *a, size_t n, int *bad)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *pair = json_array();
        push(pair, json_string(a[i].key), bad);
        push(pair, a[i].kind == H5_KIND_STR ? json_string(a[i].s ? a[i].s : "")
                   : a[i].kind == H5_KIND_I64 ? json_integer(a[i].i) : number(a[i].d), bad);
        push(all, pair, bad);
    }
    return all;
}

json_t *results_json_attrs(const struct result_attr *a, size_t n)
{
    int bad = 0;
    json_t *o = line("attributes", &bad);
    put(o, "values", json_attrs(a, n, &bad), &bad);
    return unless(bad, o);
}

json_t *results_json_plan(const char *json, const struct result_attr *a, size_t n)
{
    int bad = 0;
    json_t *o = line("plan", &bad);
    put(o, "plan", json_string(json), &bad);
    put(o, "values", json_attrs(a, n, &bad), &bad);
    return unless(bad, o);
}

json_t *results_json_memory(const struct result_memory *m, size_t n)
{
    int bad = 0;
    json_t *o = line("memory", &bad), *all = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *r = json_object();
        put(r, "rank", json_integer(m[i].rank), &bad);
        put(r, "role", json_string(m[i].role), &bad);
        put(r, "host", json_string(m[i].host), &bad);
        put(r, "host_peak_bytes", json_integer(m[i].host_peak_bytes), &bad);
        put(r, "weights_bytes", json_integer(m[i].weights_bytes), &bad);
        put(r, "state_bytes", json_integer(m[i].state_bytes), &bad);
        put(r, "window_bytes", json_integer(m[i].window_bytes), &bad);
        put(r, "device_bytes", json_integer(m[i].device_bytes), &bad);
        push(all, r, &bad);
    }
    put(o, "ranks", all, &bad);
    return unless(bad, o);
}

json_t *results_json_finish(int complete)
{
    int bad = 0;
    json_t *o = line("finish", &bad);
    put(o, "complete", json_integer(complete), &bad);
    return unless(bad, o);
}
