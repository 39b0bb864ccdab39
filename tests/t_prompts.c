#include "suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "data/h5.h"
#include "data/jsonl.h"
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

/* ---- jsonl ---- */

#define Q(q, a) "{\"question\": \"" q "\", \"answer\": \"" a "\"}"

START_TEST(shipped_questions_are_read)
{
    struct jsonl j;
    ck_assert_int_eq(jsonl_read(suite_path("inputs/gsm8k-train64.jsonl"), 0, &j), ST_OK);
    ck_assert_uint_eq(j.n, 64);
    ck_assert_int_eq(j.duplicates, 0);
    ck_assert_str_eq(j.sha256, "33677560147f2b684ead8a7199d0c6041b21e59ae8c61b97bc294962a03cbab0");
    for (size_t i = 0; i < j.n; i++) {
        ck_assert_int_eq(j.row[i].row, (int64_t)i);
        ck_assert_int_eq(j.row[i].line, (int64_t)i + 1);
        ck_assert_ptr_nonnull(strstr(j.row[i].answer, "#### "));
    }
    jsonl_free(&j);
    jsonl_free(&j);
    jsonl_free(NULL);
    ck_assert_int_eq(jsonl_read(suite_path("inputs/gsm8k-test64.jsonl"), 5, &j), ST_OK);
    ck_assert_uint_eq(j.n, 5);
    ck_assert_ptr_nonnull(strstr(j.row[0].question, "Janet\xe2\x80\x99s ducks"));
    ck_assert_str_eq(j.sha256,
                     "136119d82ee01bfc771615e7b057ddab785aa51bf733fdb407d08068a3c1244c"); /* of the whole file */
    jsonl_free(&j);
}
END_TEST

START_TEST(forms_of_files)
{
    static const struct {
        const char *name, *text;
        int64_t limit;
        size_t n;
        int64_t duplicates, last_line;
    } good[] = {
        {"plain", Q("a", "#### 1") "\n" Q("b", "#### 2") "\n", 0, 2, 0, 2},
        {"no final newline", Q("a", "#### 1") "\n" Q("b", "#### 2"), 0, 2, 0, 2},
        {"CRLF", Q("a", "#### 1") "\r\n" Q("b", "#### 2") "\r\n", 0, 2, 0, 2},
        {"BOM", "\xef\xbb\xbf" Q("a", "#### 1") "\n", 0, 1, 0, 1},
        {"BOM and CRLF, no end", "\xef\xbb\xbf" Q("a", "#### 1") "\r\n" Q("b", "#### 2"), 0, 2, 0, 2},
        {"blank lines", "\n" Q("a", "#### 1") "\n \t\r\n" Q("b", "#### 2") "\n\n\n", 0, 2, 0, 4},
        {"blanks around", "  " Q("a", "#### 1") "  \n", 0, 1, 0, 1},
        {"further keys", "{\"id\": 7, \"question\": \"a\", \"answer\": \"#### 1\", \"x\": null, \"y\": \"\\u0000\"}\n",
         0, 1, 0, 1},
        {"duplicates", Q("a", "#### 1") "\n" Q("b", "#### 2") "\n" Q("a", "#### 3") "\n" Q("a", "#### 3"), 0, 4, 2, 4},
        {"limit hides what follows", Q("a", "#### 1") "\n{bad", 1, 1, 0, 1},
        {"escapes", Q("\\u2212 tab\\t \\ud835\\udfcf", "#### 1"), 0, 1, 0, 1},
    };
    log_mute(1);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct jsonl j;
        const char *path = write_text("form.jsonl", good[i].text, strlen(good[i].text));
        enum status st = jsonl_read(path, good[i].limit, &j);
        ck_assert_msg(st == ST_OK, "%s: %s", good[i].name, err_name(st));
        ck_assert_msg(j.n == good[i].n && j.duplicates == good[i].duplicates, "%s: %zu rows, %lld duplicates",
                      good[i].name, j.n, (long long)j.duplicates);
        ck_assert_int_eq(j.row[j.n - 1].line, good[i].last_line);
        ck_assert_int_eq(j.row[j.n - 1].row, (int64_t)j.n - 1);
        if (strcmp(good[i].name, "escapes") == 0)
            ck_assert_str_eq(j.row[0].question, "\xe2\x88\x92 tab\t \xf0\x9d\x9f\x8f");
        jsonl_free(&j);
    }
}
END_TEST

START_TEST(bad_lines_are_refused_with_their_place)
{
    static const struct {
        const char *text;
        const char *line, *what; /* both must be in the message */
    } bad[] = {
        {Q("a", "#### 1") "\n{\"question\": \"a\"\n", ":2:", "not a JSON object"},
        {Q("a", "#### 1") "\n\n[1]\n", ":3:", "not an object"},
        {"{\"question\": \"a\"}\n", ":1:", "\"answer\""},
        {"{\"answer\": \"#### 1\"}\n", ":1:", "\"question\""},
        {"{\"question\": 5, \"answer\": \"#### 1\"}\n", ":1:", "not text"},
        {Q(" \\n", "#### 1") "\n", ":1:", "empty"},
        {Q("a", "") "\n", ":1:", "empty"},
        {Q("a", "the answer is 7") "\n", ":1:", "####"},
        {Q("a", "#### $7") "\n", ":1:", "####"},
        {"{\"question\": \"a\", \"question\": \"b\", \"answer\": \"#### 1\"}", ":1:", "duplicate"},
        {Q("a", "#### 1") Q("b", "#### 1") "\n", ":1:", "not a JSON object"}, /* two on a line */
        {"{\"question\": \"\xff\", \"answer\": \"#### 1\"}\n", ":1:", "UTF-8"},
        {"{\"question\": \"a\\u0000b\", \"answer\": \"#### 1\"}\n", ":1:",
         "\"question\" contains a zero character (\\u0000), which text cannot; remove it"},
        {Q("a", "#### 1") "\n" Q("b", "\\u0000#### 1") "\n", ":2:", "\"answer\" contains a zero character"},
        {Q("\\u0000", "#### 1") "\n", ":1:", "\"question\" contains a zero character"},
        {"\x1f\x8b\x08 compressed", "form.jsonl", "gzip"},
        {"", "form.jsonl", "no rows"},
        {"\xef\xbb\xbf\r\n \n", "form.jsonl", "no rows"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct jsonl j;
        const char *path = write_text("form.jsonl", bad[i].text, strlen(bad[i].text));
        ck_assert_msg(jsonl_read(path, 0, &j) == ST_E_FORMAT, "case %zu", i);
        ck_assert_msg(strstr(err_last(), bad[i].line) && strstr(err_last(), bad[i].what), "case %zu: %s", i,
                      err_last());
    }
    struct jsonl j;
    ck_assert_int_eq(jsonl_read(write_text("form.jsonl", "a\0b\n", 4), 0, &j), ST_E_FORMAT);
    ck_assert_int_eq(jsonl_read(suite_tmp("absent.jsonl"), 0, &j), ST_E_FILE);
    ck_assert_int_eq(jsonl_read(suite_path("tests"), 0, &j), ST_E_FILE);
}
END_TEST

/* ---- prompts.h5 ---- */

static const struct prompts_meta meta = {"k3-xtml/1", "off", 2, "train.jsonl", "00aabb", "test.jsonl",
                                         "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"};
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
    prompts_close(p);
    prompts_close(NULL);
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
    TCase *tc = SUITE_CASE(s, "jsonl", 20);
    SUITE_TEST(tc, shipped_questions_are_read);
    SUITE_TEST(tc, forms_of_files);
    SUITE_TEST(tc, bad_lines_are_refused_with_their_place);
    tc = SUITE_CASE(s, "prompts", 20);
    SUITE_TEST(tc, a_file_comes_back);
    SUITE_TEST(tc, rows_that_cannot_be_are_not_written);
    SUITE_TEST(tc, a_spoiled_file_is_refused_by_name);
    SUITE_TEST(tc, another_purpose_is_refused_by_name);
    SUITE_TEST(tc, the_hash_sees_every_part);
}

int main(void)
{
    return suite_main_serial();
}
