#include "data/jsonl.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/gsm8k.h"
#include "data/utf8.h"

enum { WARN_AT_MOST = 10 };

static enum status read_file(const char *path, char **p_p, size_t *n_p)
{
    FILE *f = fopen(path, "rb");
    if (!f) return ERR(ST_E_FILE, "%s: cannot open: %s", path, strerror(errno));
    struct stat sb;
    enum status st = ST_OK;
    char *p = NULL;
    size_t n = 0;
    if (fstat(fileno(f), &sb) != 0 || !S_ISREG(sb.st_mode)) {
        st = ERR(ST_E_FILE, "%s: not a regular file", path);
    } else {
        n = (size_t)sb.st_size;
        p = mem_alloc(n + 1, 1, path);
        if (!p)
            st = ST_E_NOMEM;
        else if (fread(p, 1, n, f) != n)
            st = ERR(ST_E_FILE, "%s: cannot read %zu bytes", path, n);
    }
    fclose(f);
    if (st != ST_OK) {
        mem_free(p);
        return st;
    }
    *p_p = p;
    *n_p = n;
    return ST_OK;
}

/* a non-empty text member of the line's object; *s_p points into o */
static enum status member(const char *path, int64_t line, const json_t *o, const char *key, const char **s_p)
{
    const json_t *v = json_object_get(o, key);
    if (!v) return ERR(ST_E_FORMAT, "%s:%lld: no key \"%s\"", path, (long long)line, key);
    if (!json_is_string(v)) return ERR(ST_E_FORMAT, "%s:%lld: \"%s\" is not text", path, (long long)line, key);
    const char *s = json_string_value(v);
    if (strlen(s) != json_string_length(v))
        return ERR(ST_E_FORMAT, "%s:%lld: \"%s\" contains a zero character (\\u0000), which text cannot; remove it",
                   path, (long long)line, key);
    if (s[strspn(s, " \t\r\n")] == 0) return ERR(ST_E_FORMAT, "%s:%lld: \"%s\" is empty", path, (long long)line, key);
    *s_p = s;
    return ST_OK;
}

static enum status parse_line(const char *path, int64_t line, const char *s, size_t n, struct jsonl_row *row)
{
    size_t bad = utf8_bad_at(s, n);
    if (bad != n) return ERR(ST_E_FORMAT, "%s:%lld: not UTF-8 at byte %zu", path, (long long)line, bad);
    json_error_t e;
    json_t *o = json_loadb(s, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!o)
        return ERR(ST_E_FORMAT, "%s:%lld: not a JSON object: %s (byte %d)", path, (long long)line, e.text, e.position);
    enum status st = ST_OK;
    const char *q = NULL, *a = NULL;
    char *truth = NULL;
    if (!json_is_object(o)) st = ERR(ST_E_FORMAT, "%s:%lld: JSON, but not an object", path, (long long)line);
    if (st == ST_OK) st = member(path, line, o, "question", &q);
    if (st == ST_OK) st = member(path, line, o, "answer", &a);
    if (st == ST_OK) st = gsm8k_extract(GSM8K_OPENAI, a, strlen(a), &truth);
    if (st == ST_OK && strcmp(truth, GSM8K_INVALID) == 0)
        st = ERR(ST_E_FORMAT, "%s:%lld: \"answer\" has no final '#### N', so it cannot be graded", path,
                 (long long)line);
    if (st == ST_OK) {
        row->question = mem_strdup(q);
        row->answer = mem_strdup(a);
        if (!row->question || !row->answer) st = ST_E_NOMEM;
    }
    mem_free(truth);
    json_decref(o);
    return st;
}

struct seen {
    uint64_t hash;
    size_t row;
};

static int by_hash(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

static enum status warn_duplicates(const char *path, struct jsonl *j)
{
    struct seen *v = mem_alloc(j->n, sizeof *v, "question hashes");
    if (!v) return ST_E_NOMEM;
    for (size_t i = 0; i < j->n; i++)
        v[i] = (struct seen){hash64(j->row[i].question, strlen(j->row[i].question), 0), i};
    qsort(v, j->n, sizeof *v, by_hash);
    for (size_t i = 1; i < j->n; i++)
        for (size_t k = i; k-- > 0 && v[k].hash == v[i].hash;) { /* the nearest earlier row with this text */
            const struct jsonl_row *a = &j->row[v[k].row], *b = &j->row[v[i].row];
            if (strcmp(a->question, b->question) != 0) continue;
            if (j->duplicates++ < WARN_AT_MOST)
                log_warn("%s: rows %lld and %lld (lines %lld and %lld) are the same question", path,
                         (long long)a->row, (long long)b->row, (long long)a->line, (long long)b->line);
            break;
        }
    if (j->duplicates > WARN_AT_MOST)
        log_warn("%s: %lld repeated questions in all, the first %d are named", path, (long long)j->duplicates,
                 WARN_AT_MOST);
    mem_free(v);
    return ST_OK;
}

static enum status push(struct jsonl *j, size_t *room, const struct jsonl_row *row)
{
    if (j->n == *room) {
        size_t more = *room ? *room * 2 : 256;
        struct jsonl_row *p = mem_grow(j->row, j->n, more, sizeof *p, "question rows");
        if (!p) return ST_E_NOMEM;
        j->row = p;
        *room = more;
    }
    j->row[j->n++] = *row;
    return ST_OK;
}

static enum status parse_all(const char *path, const char *p, size_t n, int64_t limit, struct jsonl *j)
{
    size_t at = n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0 ? 3 : 0, room = 0;
    if (n >= 2 && memcmp(p, "\x1f\x8b", 2) == 0)
        return ERR(ST_E_FORMAT, "%s: compressed (gzip); decompress it first", path);
    for (int64_t line = 1; at < n && (limit <= 0 || (int64_t)j->n < limit); line++) {
        const char *eol = memchr(p + at, '\n', n - at);
        size_t end = eol ? (size_t)(eol - p) : n, len = end - at;
        while (len > 0 && strchr("\r \t", p[at + len - 1]) && p[at + len - 1]) len--;
        if (len > 0) {
            struct jsonl_row row = {NULL, NULL, (int64_t)j->n, line};
            enum status st = parse_line(path, line, p + at, len, &row);
            if (st == ST_OK) st = push(j, &room, &row);
            if (st != ST_OK) {
                mem_free(row.question);
                mem_free(row.answer);
                return st;
            }
        }
        at = end + 1;
    }
    return j->n ? ST_OK : ERR(ST_E_FORMAT, "%s: no rows", path);
}

enum status jsonl_read(const char *path, int64_t limit, struct jsonl *j_p)
{
    struct jsonl j = {NULL, 0, 0, {0}};
    char *p = NULL;
    size_t n = 0;
    TRY(read_file(path, &p, &n));
    struct sha256 sha;
    sha256_init(&sha);
    sha256_add(&sha, p, n);
    sha256_hex(&sha, j.sha256);
    enum status st = parse_all(path, p, n, limit, &j);
    mem_free(p);
    if (st == ST_OK) st = warn_duplicates(path, &j);
    if (st == ST_OK)
        *j_p = j;
    else
        jsonl_free(&j);
    return st;
}

void jsonl_free(struct jsonl *j)
{
    if (!j) return;
    for (size_t i = 0; i < j->n; i++) {
        mem_free(j->row[i].question);
        mem_free(j->row[i].answer);
    }
    mem_free(j->row);
    memset(j, 0, sizeof *j);
}
