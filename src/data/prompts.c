#include "data/prompts.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/hash.h"
#include "data/gzip.h"
#include "data/h5.h"

#define SCHEMA "pdflash-prompts"

struct prompts {
    struct prompts_meta meta; /* its strings are allocated */
    struct prompts_row *row;
    size_t n;
    char *path;
    char **question, **gold, **sha;
    int32_t *flat;
    int64_t *offset, *source_row;
    size_t n_question, n_gold, n_sha, n_flat, n_offset, n_source_row;
};

/* the text attributes of the root, in one place for writing, reading and comparing */
static const struct text_field {
    const char *name;
    size_t offset;
} text_field[] = {
    {"template", offsetof(struct prompts_meta, template_name)},
    {"thinking", offsetof(struct prompts_meta, thinking)},
    {"shots_source", offsetof(struct prompts_meta, shots_source)},
    {"tokenizer_hash", offsetof(struct prompts_meta, tokenizer_hash)},
    {"source", offsetof(struct prompts_meta, source)},
    {"source_sha256", offsetof(struct prompts_meta, source_sha256)},
};
enum { N_TEXT = sizeof text_field / sizeof text_field[0] };

static const char **text_of(const struct prompts_meta *m, int i)
{
    return (const char **)((char *)(uintptr_t)m + text_field[i].offset);
}

static void row_sha256(const char *question, const char *gold, char hex[65])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, question, strlen(question) + 1);
    sha256_add(&s, gold, strlen(gold));
    sha256_hex(&s, hex);
}

/* ---- writing -------------------------------------------------------------------------------------- */

static enum status check_row(const char *path, const struct prompts_row *r, size_t i)
{
    if (r->n_ids < 1) return ERR(ST_E_RANGE, "%s: row %zu has %lld tokens", path, i, (long long)r->n_ids);
    for (int64_t k = 0; k < r->n_ids; k++)
        if (r->id[k] < 0) return ERR(ST_E_RANGE, "%s: row %zu: token %lld is %d", path, i, (long long)k, r->id[k]);
    return ST_OK;
}

static enum status write_meta(struct h5 *f, const struct prompts_meta *m, size_t n)
{
    TRY(h5_set_str(f, "/", "schema", SCHEMA));
    TRY(h5_set_int(f, "/", "schema_version", PROMPTS_SCHEMA));
    TRY(h5_set_int(f, "/", "rows", (int64_t)n));
    TRY(h5_set_int(f, "/", "shots", m->shots));
    TRY(h5_set_int(f, "/", "shots_leaked", m->shots_leaked));
    TRY(h5_set_str(f, "/", "format", m->format ? m->format : "openai"));
    for (int i = 0; i < N_TEXT; i++) {
        const char *s = *text_of(m, i);
        TRY(h5_set_str(f, "/", text_field[i].name, s ? s : ""));
    }
    return ST_OK;
}

static enum status make_sets(struct h5 *f)
{
    TRY(h5_make_str(f, "/text/question", 64));
    TRY(h5_make_str(f, "/text/gold", 64));
    TRY(h5_make(f, "/tokens/flat", H5_KIND_I32, 0, 4096));
    TRY(h5_make(f, "/tokens/offsets", H5_KIND_I64, 0, 256));
    TRY(h5_make(f, "/row/source_row", H5_KIND_I64, 0, 256));
    TRY(h5_make_str(f, "/row/sha256", 64));
    return h5_append(f, "/tokens/offsets", H5_KIND_I64, 1, &(int64_t){0});
}

static enum status write_rows(struct h5 *f, const struct prompts_row *row, size_t n)
{
    int64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        char hex[65];
        const char *sha = hex;
        TRY(check_row(h5_path(f), &row[i], i));
        row_sha256(row[i].question, row[i].gold, hex);
        end += row[i].n_ids;
        TRY(h5_append_str(f, "/text/question", 1, &row[i].question));
        TRY(h5_append_str(f, "/text/gold", 1, &row[i].gold));
        TRY(h5_append_str(f, "/row/sha256", 1, &sha));
        TRY(h5_append(f, "/row/source_row", H5_KIND_I64, 1, &row[i].source_row));
        TRY(h5_append(f, "/tokens/flat", H5_KIND_I32, row[i].n_ids, row[i].id));
        TRY(h5_append(f, "/tokens/offsets", H5_KIND_I64, 1, &end));
    }
    return ST_OK;
}

int prompts_is(const char *path)
{
    struct h5 *f;
    char *schema = NULL;
    if (!h5_is_hdf5(path) || h5_open(path, 0, &f) != ST_OK) return 0;
    int ours = h5_has_attr(f, "/", "schema") && h5_get_str(f, "/", "schema", &schema) == ST_OK &&
               strcmp(schema, SCHEMA) == 0;
    mem_free(schema);
    h5_close(f);
    return ours;
}

enum status prompts_claim(const char *path, int overwrite)
{
    struct stat sb;
    if (stat(path, &sb) != 0) return h5_check_folder(path);
    if (!S_ISREG(sb.st_mode) || !prompts_is(path))
        return ERR(ST_E_FILE, "%s: exists and holds no prompts; --force replaces nothing else: name another file",
                   path);
    if (!overwrite) return ERR(ST_E_FILE, "%s: exists; replace it with --force, or name another file", path);
    return h5_check_folder(path);
}

enum status prompts_write(const char *path, int overwrite, const struct prompts_meta *meta,
                          const struct prompts_row *row, size_t n)
{
    if (n == 0) return ERR(ST_E_RANGE, "%s: no rows to write", path);
    struct h5 *f;
    TRY(prompts_claim(path, overwrite));
    TRY(h5_create(path, overwrite, &f));
    enum status st = write_meta(f, meta, n);
    if (st == ST_OK) st = make_sets(f);
    if (st == ST_OK) st = write_rows(f, row, n);
    if (st == ST_OK) st = h5_flush(f);
    h5_close(f);
    return st;
}

/* ---- reading -------------------------------------------------------------------------------------- */

/* attributes that older files lack */
static enum status read_later_meta(const struct h5 *f, struct prompts_meta *m)
{
    char *format = NULL;
    if (h5_has_attr(f, "/", "shots_leaked")) TRY(h5_get_int(f, "/", "shots_leaked", &m->shots_leaked));
    if (h5_has_attr(f, "/", "format"))
        TRY(h5_get_str(f, "/", "format", &format));
    else if (!(format = mem_strdup("openai")))
        return ST_E_NOMEM;
    m->format = format;
    return ST_OK;
}

static enum status read_meta(const struct h5 *f, struct prompts *p)
{
    char *schema = NULL;
    int64_t version = 0, rows = 0;
    TRY(h5_get_str(f, "/", "schema", &schema));
    int ours = strcmp(schema, SCHEMA) == 0;
    enum status st = ours ? ST_OK : ERR(ST_E_FORMAT, "%s: schema is '%s', wanted '%s'", p->path, schema, SCHEMA);
    mem_free(schema);
    TRY(st);
    TRY(h5_get_int(f, "/", "schema_version", &version));
    if (version != PROMPTS_SCHEMA)
        return ERR(ST_E_FORMAT, "%s: schema_version is %lld, this program reads %d; make the file again", p->path,
                   (long long)version, PROMPTS_SCHEMA);
    TRY(h5_get_int(f, "/", "rows", &rows));
    TRY(h5_get_int(f, "/", "shots", &p->meta.shots));
    for (int i = 0; i < N_TEXT; i++) {
        char *s;
        TRY(h5_get_str(f, "/", text_field[i].name, &s));
        *text_of(&p->meta, i) = s;
    }
    TRY(read_later_meta(f, &p->meta));
    if (rows < 1) return ERR(ST_E_FORMAT, "%s: rows is %lld", p->path, (long long)rows);
    p->n = (size_t)rows;
    return ST_OK;
}

static enum status read_sets(const struct h5 *f, struct prompts *p)
{
    void *v;
    TRY(h5_read_str(f, "/text/question", &p->question, &p->n_question));
    TRY(h5_read_str(f, "/text/gold", &p->gold, &p->n_gold));
    TRY(h5_read_str(f, "/row/sha256", &p->sha, &p->n_sha));
    TRY(h5_read_vec(f, "/row/source_row", H5_KIND_I64, &v, &p->n_source_row));
    p->source_row = v;
    TRY(h5_read_vec(f, "/tokens/flat", H5_KIND_I32, &v, &p->n_flat));
    p->flat = v;
    TRY(h5_read_vec(f, "/tokens/offsets", H5_KIND_I64, &v, &p->n_offset));
    p->offset = v;
    const struct {
        const char *name;
        size_t n, want;
    } size[] = {{"/text/question", p->n_question, p->n}, {"/text/gold", p->n_gold, p->n},
                {"/row/sha256", p->n_sha, p->n},         {"/row/source_row", p->n_source_row, p->n},
                {"/tokens/offsets", p->n_offset, p->n + 1}};
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++)
        if (size[i].n != size[i].want)
            return ERR(ST_E_FORMAT, "%s: %s has %zu elements, wanted %zu (rows is %zu)", p->path, size[i].name,
                       size[i].n, size[i].want, p->n);
    return ST_OK;
}

static enum status bind_row(struct prompts *p, size_t i)
{
    struct prompts_row *r = &p->row[i];
    int64_t from = p->offset[i], to = p->offset[i + 1];
    if (from < 0 || to <= from || to > (int64_t)p->n_flat)
        return ERR(ST_E_FORMAT, "%s: /tokens/offsets: row %zu is %lld..%lld of %zu tokens", p->path, i, (long long)from,
                   (long long)to, p->n_flat);
    r->question = p->question[i];
    r->gold = p->gold[i];
    r->source_row = p->source_row[i];
    r->id = p->flat + from;
    r->n_ids = to - from;
    for (int64_t k = 0; k < r->n_ids; k++)
        if (r->id[k] < 0)
            return ERR(ST_E_FORMAT, "%s: /tokens/flat: row %zu: token %lld is %d", p->path, i, (long long)k, r->id[k]);
    row_sha256(r->question, r->gold, r->sha256);
    if (strcmp(r->sha256, p->sha[i]) != 0)
        return ERR(ST_E_FORMAT, "%s: /row/sha256: row %zu is %.16s..., its text gives %.16s...; the file was changed",
                   p->path, i, p->sha[i], r->sha256);
    return ST_OK;
}

static enum status load(const struct h5 *f, struct prompts *p)
{
    TRY(read_meta(f, p));
    TRY(read_sets(f, p));
    if (p->offset[0] != 0 || p->offset[p->n] != (int64_t)p->n_flat)
        return ERR(ST_E_FORMAT, "%s: /tokens/offsets runs from %lld to %lld, /tokens/flat has %zu", p->path,
                   (long long)p->offset[0], (long long)p->offset[p->n], p->n_flat);
    p->row = mem_alloc(p->n, sizeof *p->row, "prompt rows");
    if (!p->row) return ST_E_NOMEM;
    for (size_t i = 0; i < p->n; i++) TRY(bind_row(p, i));
    return ST_OK;
}

/* Questions as they come, JSON lines (plain or gzip), are what people name first. Other files are h5_open's to refuse. */
static enum status refuse_questions(const char *path)
{
    char head[64];
    FILE *in = h5_is_hdf5(path) ? NULL : fopen(path, "rb");
    if (!in) return ST_OK;
    size_t n = fread(head, 1, sizeof head, in), i = n >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    fclose(in);
    while (i < n && strchr(" \t\r\n", head[i])) i++;
    int gzip = gzip_is(head, n);
    if (!gzip && (i == n || head[i] != '{')) return ST_OK;
    return ERR(ST_E_FORMAT,
               "%s: %s, not a prompts file; make one of it and name that: pdflash prompts --jsonl %s --model DIR "
               "--out prompts.h5",
               path, gzip ? "a gzip file" : "JSON lines", path);
}

enum status prompts_read(const char *path, struct prompts **p_p)
{
    struct h5 *f;
    TRY(refuse_questions(path));
    TRY(h5_open(path, 0, &f));
    struct prompts *p = mem_alloc(1, sizeof *p, "prompts");
    enum status st = p && (p->path = mem_strdup(path)) ? load(f, p) : ST_E_NOMEM;
    h5_close(f);
    if (st == ST_OK)
        *p_p = p;
    else
        prompts_close(p);
    return st;
}

void prompts_close(struct prompts *p)
{
    if (!p) return;
    for (int i = 0; i < N_TEXT; i++) mem_free((void *)(uintptr_t)*text_of(&p->meta, i));
    mem_free((void *)(uintptr_t)p->meta.format);
    h5_free_str(p->question, p->n_question);
    h5_free_str(p->gold, p->n_gold);
    h5_free_str(p->sha, p->n_sha);
    mem_free(p->flat);
    mem_free(p->offset);
    mem_free(p->source_row);
    mem_free(p->row);
    mem_free(p->path);
    mem_free(p);
}

const struct prompts_meta *prompts_meta(const struct prompts *p)
{
    return &p->meta;
}

size_t prompts_count(const struct prompts *p)
{
    return p->n;
}

const struct prompts_row *prompts_row(const struct prompts *p, size_t i)
{
    return &p->row[i];
}

int64_t prompts_tokens_max(const struct prompts *p)
{
    int64_t most = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->row[i].n_ids > most) most = p->row[i].n_ids;
    return most;
}

uint64_t prompts_hash(const struct prompts *p)
{
    uint64_t h = hash64(&p->meta.shots, sizeof p->meta.shots, PROMPTS_SCHEMA);
    for (int i = 0; i < N_TEXT; i++) h = hash64(*text_of(&p->meta, i), strlen(*text_of(&p->meta, i)) + 1, h);
    h = hash64(p->source_row, p->n * sizeof *p->source_row, h);
    h = hash64(p->offset, (p->n + 1) * sizeof *p->offset, h);
    return hash64(p->flat, p->n_flat * sizeof *p->flat, h);
}

enum status prompts_match(const struct prompts *p, const struct prompts_meta *want, int64_t vocab)
{
    for (int i = 0; i < N_TEXT; i++) {
        const char *w = *text_of(want, i), *have = *text_of(&p->meta, i);
        if (w && strcmp(w, have) != 0)
            return ERR(ST_E_CONFIG, "%s: %s is '%s', wanted '%s'; make the prompts again", p->path, text_field[i].name,
                       have, w);
    }
    if (want->shots >= 0 && want->shots != p->meta.shots)
        return ERR(ST_E_CONFIG, "%s: shots is %lld, wanted %lld; make the prompts again", p->path,
                   (long long)p->meta.shots, (long long)want->shots);
    for (size_t i = 0; i < p->n && vocab > 0; i++)
        for (int64_t k = 0; k < p->row[i].n_ids; k++)
            if (p->row[i].id[k] >= vocab)
                return ERR(ST_E_CONFIG, "%s: row %zu: token %lld is %d, the model's vocabulary has %lld", p->path, i,
                           (long long)k, p->row[i].id[k], (long long)vocab);
    return ST_OK;
}
