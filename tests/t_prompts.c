#include "suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "data/h5.h"
#include "data/prompts.h"

const char *const suite_name = "prompts";

static const char *write_text(const char *name, const char *text, size_t n)
{
    const char *path = suite_tmp(name);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, n, f), n);
    fclose(f);
    return path;
}

/* ---- prompts.h5 ---- */

static const struct prompts_meta meta = {"k3-xtml/1", "off", 2, "train.jsonl", "00aabb", "test.jsonl",
                                         "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
                                         "lm-eval", 1};
static const int32_t ids[] = {5, 1, 2, 3, 4095, 0, 7, 7};
static const struct prompts_row rows[] = {
    {"Janet\xe2\x80\x99s ducks?", "16 - 3\n#### 18", 0, ids, 3, ""},
    {"A robe\ttakes?", "#### 3", 7, ids + 3, 4, ""},
    {"x", "#### -1", 1318, ids + 7, 1, ""},
};
enum { N_ROWS = 3 };

START_TEST(a_file_comes_back)
{
    const char *path = suite_tmp("p.h5");
    struct prompts *p;
    unlink(path);
    ck_assert_int_eq(prompts_write(path, 0, &meta, rows, N_ROWS), ST_OK);
    ck_assert_int_eq(prompts_write(path, 0, &meta, rows, N_ROWS), ST_E_FILE); /* never over an existing file */
    ck_assert_ptr_nonnull(strstr(err_last(), "exists; replace it with --force"));
    ck_assert_int_eq(prompts_write(path, 1, &meta, rows, N_ROWS), ST_OK);
    ck_assert_int_eq(prompts_read(path, &p), ST_OK);
    ck_assert_uint_eq(prompts_count(p), N_ROWS);
    ck_assert_int_eq(prompts_tokens_max(p), 4);
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct prompts_row *r = prompts_row(p, i);
        ck_assert_str_eq(r->question, rows[i].question);
        ck_assert_str_eq(r->gold, rows[i].gold);
        ck_assert_int_eq(r->source_row, rows[i].source_row);
        ck_assert_int_eq(r->n_ids, rows[i].n_ids);
        ck_assert_mem_eq(r->id, rows[i].id, (size_t)r->n_ids * sizeof *r->id);
    }
    /* sha256sum of the bytes: question, zero byte, gold */
    ck_assert_str_eq(prompts_row(p, 2)->sha256, "c27ba6d9b90354fcafe5ea7ac3fe564cdca0d30a8159e9bfec5eee9102160488");
    const struct prompts_meta *m = prompts_meta(p);
    ck_assert_str_eq(m->template_name, meta.template_name);
    ck_assert_str_eq(m->thinking, meta.thinking);
    ck_assert_int_eq(m->shots, 2);
    ck_assert_str_eq(m->shots_source, meta.shots_source);
    ck_assert_str_eq(m->tokenizer_hash, meta.tokenizer_hash);
    ck_assert_str_eq(m->source, meta.source);
    ck_assert_str_eq(m->source_sha256, meta.source_sha256);
    ck_assert_str_eq(m->format, "lm-eval");
    ck_assert_int_eq(m->shots_leaked, 1);
    ck_assert_int_eq(prompts_is(path), 1);
    ck_assert_int_eq(prompts_is(suite_path("tests/vectors/layers_p5.h5")), 0);
    ck_assert_int_eq(prompts_is(suite_path("README.md")), 0);
    prompts_close(p);
    prompts_close(NULL);
}
END_TEST

/* a file as it was written before format and shots_leaked were recorded: it reads on, and is the same work */
static enum status write_older(const char *path, const char *hex)
{
    struct h5 *f;
    int64_t offset[2] = {0, 3};
    TRY(h5_create(path, 1, &f));
    enum status st = h5_set_str(f, "/", "schema", "pdflash-prompts");
    static const char *const number[] = {"schema_version", "rows", "shots"};
    static const char *const name[] = {"template",       "thinking", "shots_source",
                                       "tokenizer_hash", "source",   "source_sha256"};
    static const char *const text[] = {"/text/question", "/text/gold", "/row/sha256"};
    const char *const value[] = {"x", "#### -1", hex};
    for (int i = 0; i < 3 && st == ST_OK; i++) st = h5_set_int(f, "/", number[i], 1);
    for (int i = 0; i < 6 && st == ST_OK; i++) st = h5_set_str(f, "/", name[i], name[i]);
    for (int i = 0; i < 3 && st == ST_OK; i++) {
        st = h5_make_str(f, text[i], 8);
        if (st == ST_OK) st = h5_append_str(f, text[i], 1, &value[i]);
    }
    if (st == ST_OK) st = h5_write(f, "/row/source_row", H5_KIND_I64, 1, (int64_t[]){1}, offset);
    if (st == ST_OK) st = h5_write(f, "/tokens/flat", H5_KIND_I32, 1, (int64_t[]){3}, ids);
    if (st == ST_OK) st = h5_write(f, "/tokens/offsets", H5_KIND_I64, 1, (int64_t[]){2}, offset);
    if (st == ST_OK) st = h5_flush(f);
    h5_close(f);
    return st;
}

START_TEST(an_older_file_is_read)
{
    const char *path = suite_tmp("p-older.h5");
    struct prompts *p;
    ck_assert_int_eq(write_older(path, "c27ba6d9b90354fcafe5ea7ac3fe564cdca0d30a8159e9bfec5eee9102160488"), ST_OK);
    ck_assert_int_eq(prompts_read(path, &p), ST_OK);
    uint64_t hash = prompts_hash(p);
    ck_assert_str_eq(prompts_meta(p)->format, "openai");
    ck_assert_int_eq(prompts_meta(p)->shots_leaked, 0);
    struct prompts_meta m = *prompts_meta(p);
    m.format = "sglang";
    m.shots_leaked = 1;
    ck_assert_int_eq(prompts_write(suite_tmp("p-newer.h5"), 1, &m, prompts_row(p, 0), 1), ST_OK);
    prompts_close(p);
    ck_assert_int_eq(prompts_read(suite_tmp("p-newer.h5"), &p), ST_OK);
    ck_assert_str_eq(prompts_meta(p)->format, "sglang");
    ck_assert_msg(prompts_hash(p) == hash, "a resumed run must find the same work");
    prompts_close(p);
}
END_TEST

START_TEST(rows_that_cannot_be_are_not_written)
{
    const char *path = suite_tmp("p-bad.h5");
    static const int32_t negative[] = {1, -1};
    static const struct prompts_row bad[] = {{"q", "#### 1", 0, ids, 0, ""}, {"q", "#### 1", 0, negative, 2, ""},
                                             {"\xff", "#### 1", 0, ids, 1, ""}};
    static const enum status want[] = {ST_E_RANGE, ST_E_RANGE, ST_E_FORMAT};
    unlink(path);
    for (size_t i = 0; i < 3; i++) ck_assert_int_eq(prompts_write(path, 0, &meta, &bad[i], 1), want[i]);
    ck_assert_int_eq(prompts_write(path, 0, &meta, rows, 0), ST_E_RANGE);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

/* one thing changed in a good file */
static enum status spoil(struct h5 *f, int which)
{
    char **s;
    size_t n;
    switch (which) {
    case 0: return h5_set_int(f, "/", "schema_version", 2);
    case 1: return h5_set_str(f, "/", "schema", "other");
    case 2: return h5_set_int(f, "/", "rows", 2);
    case 3: return h5_set_int(f, "/", "rows", 0);
    case 4: return h5_put(f, "/tokens/offsets", H5_KIND_I64, 3, 1, &(int64_t){9});
    case 5: return h5_put(f, "/tokens/offsets", H5_KIND_I64, 1, 1, &(int64_t){0});
    case 6: return h5_put(f, "/tokens/offsets", H5_KIND_I64, 1, 1, &(int64_t){INT64_MAX});
    case 7: return h5_put(f, "/tokens/offsets", H5_KIND_I64, 0, 1, &(int64_t){1});
    case 8: return h5_put(f, "/tokens/flat", H5_KIND_I32, 2, 1, &(int32_t){-4});
    case 9: return h5_append(f, "/tokens/flat", H5_KIND_I32, 1, &(int32_t){4});
    case 10: return h5_delete(f, "/row/source_row");
    case 11: return h5_append_str(f, "/text/gold", 1, (const char *const[]){"#### 9"});
    case 12: /* another gold answer in the first row */
        TRY(h5_read_str(f, "/text/gold", &s, &n));
        TRY(h5_delete(f, "/text/gold"));
        TRY(h5_make_str(f, "/text/gold", 8));
        s[0][0] = '9';
        TRY(h5_append_str(f, "/text/gold", n, (const char *const *)s));
        h5_free_str(s, n);
        return ST_OK;
    default: TRY(h5_delete(f, "/tokens/flat")); return h5_make(f, "/tokens/flat", H5_KIND_F32, 0, 8);
    }
}

START_TEST(a_spoiled_file_is_refused_by_name)
{
    static const char *const name[] = {"schema_version", "schema",   "elements", "rows",  "/tokens/offsets",
                                       "/tokens/offsets",
                                       "/tokens/offsets", "/tokens/offsets", "/tokens/flat", "/tokens/offsets",
                                       "/row/source_row", "/text/gold", "/row/sha256", "/tokens/flat"};
    const char *path = suite_tmp("p-spoiled.h5");
    unlink(path); /* of an earlier test run */
    for (int i = 0; i < 14; i++) {
        struct h5 *f;
        struct prompts *p;
        enum status st = prompts_write(path, 1, &meta, rows, N_ROWS);
        if (i == 2) { /* the case before made it another schema's file: not replaced */
            ck_assert_int_eq(st, ST_E_FILE);
            ck_assert_ptr_nonnull(strstr(err_last(), "holds no prompts"));
            ck_assert_int_eq(unlink(path), 0);
            st = prompts_write(path, 1, &meta, rows, N_ROWS);
        }
        ck_assert_int_eq(st, ST_OK);
        ck_assert_int_eq(h5_open(path, 1, &f), ST_OK);
        ck_assert_int_eq(spoil(f, i), ST_OK);
        ck_assert_int_eq(h5_flush(f), ST_OK);
        h5_close(f);
        ck_assert_msg(prompts_read(path, &p) == ST_E_FORMAT, "case %d", i);
        ck_assert_msg(strstr(err_last(), name[i]) && strstr(err_last(), path), "case %d: %s", i, err_last());
    }
    struct prompts *p;
    ck_assert_int_eq(prompts_read(suite_path("tests/vectors/layers_p5.h5"), &p), ST_E_FORMAT);
    ck_assert_int_eq(prompts_read(write_text("text.h5", "hello", 5), &p), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "not a whole HDF5 file"));
    /* questions in place of prompts: how they become some */
    static const struct {
        const char *text, *what;
    } questions[] = {{"{\"question\": 1}\n", "q.jsonl: JSON lines, not a prompts file"},
                     {"\xef\xbb\xbf \r\n\t{}", "q.jsonl: JSON lines, not a prompts file"},
                     {"\x1f\x8b\b", "q.jsonl: a gzip file, not a prompts file"}};
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
        const char *q = write_text("q.jsonl", questions[i].text, strlen(questions[i].text));
        ck_assert_int_eq(prompts_read(q, &p), ST_E_FORMAT);
        ck_assert_msg(strstr(err_last(), questions[i].what) && strstr(err_last(), "pdflash prompts --jsonl "), "%s",
                      err_last());
    }
    ck_assert_int_eq(prompts_read(suite_tmp("absent.h5"), &p), ST_E_FILE);
}
END_TEST

START_TEST(another_purpose_is_refused_by_name)
{
    const char *path = suite_tmp("p-match.h5");
    struct prompts *p;
    ck_assert_int_eq(prompts_write(path, 1, &meta, rows, N_ROWS), ST_OK);
    ck_assert_int_eq(prompts_read(path, &p), ST_OK);
    static const struct prompts_meta any = {.shots = -1};
    static const struct {
        struct prompts_meta want;
        int64_t vocab;
        enum status st;
        const char *name, *value;
    } cases[] = {
        {{.shots = -1}, 0, ST_OK, "", ""},
        {{.shots = -1}, 4096, ST_OK, "", ""},
        {{.shots = -1}, 4095, ST_E_CONFIG, "row 1", "4095"},
        {{.template_name = "k3-xtml/2", .shots = -1}, 0, ST_E_CONFIG, "template", "k3-xtml/2"},
        {{.thinking = "max", .shots = -1}, 0, ST_E_CONFIG, "thinking", "max"},
        {{.shots = 5}, 0, ST_E_CONFIG, "shots", "5"},
        {{.shots = 2, .tokenizer_hash = "00aabb", .thinking = "off"}, 0, ST_OK, "", ""},
        {{.tokenizer_hash = "00aabc", .shots = -1}, 0, ST_E_CONFIG, "tokenizer_hash", "00aabc"},
        {{.source_sha256 = "", .shots = -1}, 0, ST_E_CONFIG, "source_sha256", "3730d312"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum status st = prompts_match(p, &cases[i].want, cases[i].vocab);
        ck_assert_msg(st == cases[i].st, "case %zu: %s", i, err_name(st));
        if (st != ST_OK)
            ck_assert_msg(strstr(err_last(), cases[i].name) && strstr(err_last(), cases[i].value), "%s", err_last());
    }
    ck_assert_int_eq(prompts_match(p, &any, 0), ST_OK);
    prompts_close(p);
}
END_TEST

START_TEST(the_hash_sees_every_part)
{
    const char *path = suite_tmp("p-hash.h5");
    uint64_t seen[6];
    for (int v = 0; v < 6; v++) {
        struct prompts *p;
        struct prompts_meta m = meta;
        struct prompts_row r[N_ROWS];
        int32_t other[4] = {3, 4095, 0, 8};
        memcpy(r, rows, sizeof r);
        if (v == 1) m.thinking = "low";
        if (v == 2) m.shots = 3;
        if (v == 3) r[1].id = other;
        if (v == 4) r[2].source_row = 1;
        if (v == 5) { /* the same flat ids, split elsewhere */
            r[0].n_ids = 4;
            r[1].id = ids + 4;
            r[1].n_ids = 3;
        }
        ck_assert_int_eq(prompts_write(path, 1, &m, r, N_ROWS), ST_OK);
        ck_assert_int_eq(prompts_read(path, &p), ST_OK);
        seen[v] = prompts_hash(p);
        prompts_close(p);
        for (int k = 0; k < v; k++) ck_assert_msg(seen[k] != seen[v], "variants %d and %d", k, v);
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "prompts", 20);
    SUITE_TEST(tc, a_file_comes_back);
    SUITE_TEST(tc, an_older_file_is_read);
    SUITE_TEST(tc, rows_that_cannot_be_are_not_written);
    SUITE_TEST(tc, a_spoiled_file_is_refused_by_name);
    SUITE_TEST(tc, another_purpose_is_refused_by_name);
    SUITE_TEST(tc, the_hash_sees_every_part);
}

int main(void)
{
    return suite_main_serial();
}
