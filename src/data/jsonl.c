#include "data/jsonl.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "data/utf8.h"

enum { WHERE_BYTES = 4200 };
#define BOM "\xef\xbb\xbf"

/* files that are something else, by their first bytes */
static const struct {
    const char *magic;
    size_t n;
    const char *what;
} other[] = {
    {"PAR1", 4, "Parquet; write JSON lines from it, e.g. pandas: df.to_json(FILE, orient=\"records\", lines=True)"},
    {"\xff\xfe", 2, "UTF-16; convert it: iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", 2, "UTF-16; convert it: iconv -f UTF-16 -t UTF-8"},
    {"\x28\xb5\x2f\xfd", 4, "compressed with zstd; decompress it first"},
    {"\xfd" "7zXZ", 5, "compressed with xz; decompress it first"},
    {"BZh", 3, "compressed with bzip2; decompress it first"},
    {"PK\x03\x04", 4, "a zip archive; extract the question file first"},
    {"\x1f\x8b", 2, "compressed with gzip twice; decompress it first"},
    {"\x89HDF\r\n\x1a\n", 8, "HDF5; name it with --h5, uncompressed"},
};

static enum status check_kind(const char *path, const char *p, size_t n)
{
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (n >= other[i].n && memcmp(p, other[i].magic, other[i].n) == 0)
            return ERR(ST_E_FORMAT, "%s: no JSON lines but %s", path, other[i].what);
    return ST_OK;
}

/* "question", "answer", ...: the first keys of an object, to show what was found instead */
static const char *keys_of(const json_t *o, char *buf, size_t n)
{
    const char *key;
    const json_t *v;
    size_t at = 0;
    buf[0] = 0;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        size_t len = strlen(key);
        if (at + len + 6 > n) break;
        at += (size_t)snprintf(buf + at, n - at, "%s\"%s\"", at ? ", " : "", key);
    }
    return buf[0] ? buf : "nothing";
}

/* a text member of the line's object; *s_p points into o */
static enum status member(const char *where, const json_t *o, const char *key, const char **s_p)
{
    const json_t *v = json_object_get(o, key);
    if (!v)
        return ERR(ST_E_FORMAT, "%s: no key \"%s\"; the line has %s; questions need \"question\" and \"answer\"", where,
                   key, keys_of(o, (char[200]){0}, 200));
    if (!json_is_string(v)) return ERR(ST_E_FORMAT, "%s: \"%s\" is not text", where, key);
    const char *s = json_string_value(v);
    if (strlen(s) != json_string_length(v))
        return ERR(ST_E_FORMAT, "%s: \"%s\" contains a zero character (\\u0000), which text cannot; remove it", where,
                   key);
    *s_p = s;
    return ST_OK;
}

/* the id of a row as text, NULL when there is none that could name it; number: [24] room for one */
static const char *id_of(const json_t *o, char *number)
{
    const json_t *v = json_object_get(o, "id");
    if (json_is_string(v)) return json_string_length(v) && json_string_value(v)[0] ? json_string_value(v) : NULL;
    if (!json_is_integer(v)) return NULL;
    snprintf(number, 24, "%lld", (long long)json_integer_value(v));
    return number;
}

static enum status check_text(const char *where, const char *s, size_t n)
{
    size_t bad = utf8_bad_at(s, n), column = 1;
    if (bad == n) return ST_OK;
    for (size_t i = 0; i < bad; i++) column += ((unsigned char)s[i] & 0xc0) != 0x80;
    return ERR(ST_E_FORMAT, "%s:%zu: not UTF-8: byte 0x%02x; convert the file, e.g. iconv -f WINDOWS-1252 -t UTF-8",
               where, column, (unsigned char)s[bad]);
}

static enum status parse_line(const char *path, int64_t line, const char *s, size_t n, struct questions *q)
{
    char where[WHERE_BYTES], number[24];
    json_error_t e;
    snprintf(where, sizeof where, "%s:%lld", path, (long long)line);
    TRY(check_text(where, s, n));
    if (line == 1 && s[0] == '[')
        return ERR(ST_E_FORMAT, "%s: a JSON array; one object a line is read, e.g. from jq -c '.[]' FILE", where);
    json_t *o = json_loadb(s, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!o)
        return ERR(ST_E_FORMAT, "%s:%d: not a JSON object: %s", where, e.column > 0 ? e.column : 1, e.text);
    struct question row = {.row = (int64_t)q->n, .line = line};
    const char *text = NULL, *answer = NULL;
    enum status st = ST_OK;
    if (!json_is_object(o)) st = ERR(ST_E_FORMAT, "%s: JSON, but not an object", where);
    if (st == ST_OK) st = member(where, o, "question", &text);
    if (st == ST_OK) st = member(where, o, "answer", &answer);
    if (st == ST_OK) {
        row.question = (char *)(uintptr_t)text; /* copied by questions_add */
        row.answer = (char *)(uintptr_t)answer;
        row.id = (char *)(uintptr_t)id_of(o, number);
        st = questions_add(q, where, &row);
    }
    json_decref(o);
    return st;
}

enum status jsonl_parse(const char *path, const char *text, size_t n, int64_t limit, struct questions *q)
{
    TRY(check_kind(path, text, n));
    for (size_t at = 0, line = 1; at < n && (limit <= 0 || (int64_t)q->n < limit); line++) {
        const char *eol = memchr(text + at, '\n', n - at);
        size_t end = eol ? (size_t)(eol - text) : n, len = end - at;
        if (len >= 3 && memcmp(text + at, BOM, 3) == 0) at += 3, len -= 3;
        while (len > 0 && strchr("\r \t", text[at + len - 1]) && text[at + len - 1]) len--;
        if (len > 0) TRY(parse_line(path, (int64_t)line, text + at, len, q));
        at = end + 1;
    }
    return q->n ? ST_OK : ERR(ST_E_FORMAT, "%s: no rows", path);
}
