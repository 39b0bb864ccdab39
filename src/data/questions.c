#include "data/questions.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/gsm8k.h"
#include "data/gzip.h"
#include "data/h5.h"
#include "data/jsonl.h"
#include "data/questions_h5.h"

enum { WARN_AT_MOST = 10 };
static const size_t expanded_most = (size_t)1 << 31; /* bytes: a thousand times GSM8K */

const char *questions_place(const struct question *q, char *buf, size_t n)
{
    if (q->line)
        snprintf(buf, n, "row %lld (line %lld)", (long long)q->row, (long long)q->line);
    else
        snprintf(buf, n, "row %lld", (long long)q->row);
    return buf;
}
#define PLACE(q) questions_place(q, (char[64]){0}, 64)

/* ---- rows ------------------------------------------------------------------------------------------ */

static enum status check_row(const char *where, const struct question *r)
{
    const char *const text[] = {r->question, r->answer};
    static const char *const name[] = {"question", "answer"};
    char *truth;
    for (int i = 0; i < 2; i++)
        if (text[i][strspn(text[i], " \t\r\n")] == 0) return ERR(ST_E_FORMAT, "%s: \"%s\" is empty", where, name[i]);
    TRY(gsm8k_extract(GSM8K_OPENAI, r->answer, strlen(r->answer), &truth));
    int graded = strcmp(truth, GSM8K_INVALID) != 0;
    mem_free(truth);
    return graded ? ST_OK
                  : ERR(ST_E_FORMAT, "%s: \"answer\" has no final '#### N', so it cannot be graded", where);
}

enum status questions_add(struct questions *q, const char *where, const struct question *row)
{
    TRY(check_row(where, row));
    if (q->n == q->room) {
        size_t more = q->room ? q->room * 2 : 256;
        struct question *p = mem_grow(q->row, q->n, more, sizeof *p, "question rows");
        if (!p) return ST_E_NOMEM;
        q->row = p;
        q->room = more;
    }
    struct question *r = &q->row[q->n++]; /* from here on questions_free releases it */
    *r = (struct question){.question = mem_strdup(row->question), .answer = mem_strdup(row->answer),
                           .id = row->id ? mem_strdup(row->id) : NULL, .row = row->row, .line = row->line};
    return r->question && r->answer && (!row->id || r->id) ? ST_OK : ST_E_NOMEM;
}

void questions_free(struct questions *q)
{
    if (!q) return;
    for (size_t i = 0; i < q->n; i++) {
        mem_free(q->row[i].question);
        mem_free(q->row[i].answer);
        mem_free(q->row[i].id);
    }
    mem_free(q->row);
    memset(q, 0, sizeof *q);
}

/* ---- what occurs twice ----------------------------------------------------------------------------- */

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

static const char *text_of(const struct question *q, int id)
{
    return id ? q->id : q->question;
}

/* the rows' questions, or ids, sorted by hash and then by row; rows without an id are left out */
static enum status sort_rows(const struct questions *q, int id, struct seen **v_p, size_t *n_p)
{
    struct seen *v = mem_alloc(q->n, sizeof *v, "question hashes");
    size_t n = 0;
    if (!v) return ST_E_NOMEM;
    for (size_t i = 0; i < q->n; i++) {
        const char *s = text_of(&q->row[i], id);
        if (s) v[n++] = (struct seen){hash64(s, strlen(s), 0), i};
    }
    qsort(v, n, sizeof *v, by_hash);
    *v_p = v;
    *n_p = n;
    return ST_OK;
}

/* the nearest earlier row with the text of v[i]; -1: none */
static int64_t earlier(const struct questions *q, int id, const struct seen *v, size_t i)
{
    for (size_t k = i; k-- > 0 && v[k].hash == v[i].hash;)
        if (strcmp(text_of(&q->row[v[k].row], id), text_of(&q->row[v[i].row], id)) == 0) return (int64_t)v[k].row;
    return -1;
}

static enum status refuse_same_ids(const char *path, const struct questions *q)
{
    struct seen *v;
    size_t n, first = q->n;
    int64_t other = -1;
    TRY(sort_rows(q, 1, &v, &n));
    for (size_t i = 1; i < n; i++) { /* the first in the file, not in the order of hashes */
        int64_t e = earlier(q, 1, v, i);
        if (e < 0 || v[i].row >= first) continue;
        first = v[i].row;
        other = e;
    }
    mem_free(v);
    if (other < 0) return ST_OK;
    const struct question *a = &q->row[other], *b = &q->row[first];
    return ERR(ST_E_FORMAT, "%s: id \"%.60s\" names both %s and %s%s; give each row an id of its own, or none", path,
               a->id, PLACE(a), PLACE(b),
               strcmp(a->question, b->question) == 0 ? ", which are the same question" : "");
}

static enum status warn_same_questions(const char *path, struct questions *q)
{
    struct seen *v;
    size_t n;
    TRY(sort_rows(q, 0, &v, &n));
    for (size_t i = 1; i < n; i++) {
        int64_t e = earlier(q, 0, v, i);
        if (e >= 0 && q->duplicates++ < WARN_AT_MOST)
            log_warn("%s: %s and %s are the same question; both are kept", path, PLACE(&q->row[e]),
                     PLACE(&q->row[v[i].row]));
    }
    if (q->duplicates > WARN_AT_MOST)
        log_warn("%s: %lld repeated questions in all, the first %d are named", path, (long long)q->duplicates,
                 WARN_AT_MOST);
    mem_free(v);
    return ST_OK;
}

enum status questions_shared(const struct questions *q, const struct questions *of, uint8_t *shared, size_t *n_p)
{
    struct seen *v;
    size_t n, found = 0;
    TRY(sort_rows(of, 0, &v, &n));
    for (size_t i = 0; i < q->n; i++) {
        uint64_t h = hash64(q->row[i].question, strlen(q->row[i].question), 0);
        size_t low = 0, high = n;
        while (low < high) { /* the first of this hash */
            size_t mid = low + (high - low) / 2;
            if (v[mid].hash < h)
                low = mid + 1;
            else
                high = mid;
        }
        shared[i] = 0;
        for (; low < n && v[low].hash == h && !shared[i]; low++)
            shared[i] = strcmp(of->row[v[low].row].question, q->row[i].question) == 0;
        found += shared[i];
    }
    mem_free(v);
    *n_p = found;
    return ST_OK;
}

/* ---- files ----------------------------------------------------------------------------------------- */

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

static enum status text_file(const char *path, int64_t limit, struct questions *q)
{
    char *p = NULL, *text = NULL;
    size_t n = 0, text_n = 0;
    TRY(read_file(path, &p, &n));
    struct sha256 sha;
    sha256_init(&sha);
    sha256_add(&sha, p, n);
    sha256_hex(&sha, q->sha256);
    enum status st;
    if (gzip_is(p, n)) {
        st = gzip_expand(path, p, n, expanded_most, &text, &text_n);
        if (st == ST_OK) st = jsonl_parse(path, text, text_n, limit, q);
    } else {
        st = jsonl_parse(path, p, n, limit, q);
    }
    mem_free(text);
    mem_free(p);
    return st;
}

static enum status hdf5_file(const char *path, int64_t limit, struct questions *q)
{
    TRY(hash_file_sha256(path, q->sha256));
    return questions_h5(path, limit, q);
}

enum status questions_read(const char *path, int64_t limit, struct questions *q_p)
{
    struct questions q;
    memset(&q, 0, sizeof q);
    enum status st = h5_is_hdf5(path) ? hdf5_file(path, limit, &q) : text_file(path, limit, &q);
    if (st == ST_OK) st = refuse_same_ids(path, &q);
    if (st == ST_OK) st = warn_same_questions(path, &q);
    if (st == ST_OK)
        *q_p = q;
    else
        questions_free(&q);
    return st;
}
