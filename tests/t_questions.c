/* Questions in every form that people have them in; see questions.h, jsonl.h, gzip.h, questions_h5.h, fewshot.h. */
#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/fewshot.h"
#include "data/gzip.h"
#include "data/h5.h"
#include "data/prompts.h"
#include "data/questions.h"

const char *const suite_name = "questions";

static const char *write_bytes(const char *name, const void *p, size_t n)
{
    const char *path = suite_tmp(name);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(p, 1, n, f), n);
    fclose(f);
    return path;
}

/* text as one gzip member at out; returns its bytes */
static size_t compress_to(const char *text, size_t n, char *out, size_t room)
{
    z_stream z;
    memset(&z, 0, sizeof z);
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)text;
    z.avail_in = (uInt)n;
    z.next_out = (Bytef *)out;
    z.avail_out = (uInt)room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t made = room - z.avail_out;
    deflateEnd(&z);
    return made;
}

/* ---- JSON lines ---- */

#define Q(q, a) "{\"question\": \"" q "\", \"answer\": \"" a "\"}"
#define I(id, q) "{\"id\": " id ", \"question\": \"" q "\", \"answer\": \"#### 1\"}\n"
#define BOM "\xef\xbb\xbf"

START_TEST(shipped_questions_are_read)
{
    struct questions j;
    ck_assert_int_eq(questions_read(suite_path("inputs/gsm8k-train64.jsonl"), 0, &j), ST_OK);
    ck_assert_uint_eq(j.n, 64);
    ck_assert_int_eq(j.duplicates, 0);
    ck_assert_str_eq(j.sha256, "33677560147f2b684ead8a7199d0c6041b21e59ae8c61b97bc294962a03cbab0");
    for (size_t i = 0; i < j.n; i++) {
        ck_assert_int_eq(j.row[i].row, (int64_t)i);
        ck_assert_int_eq(j.row[i].line, (int64_t)i + 1);
        ck_assert_ptr_null(j.row[i].id);
        ck_assert_ptr_nonnull(strstr(j.row[i].answer, "#### "));
    }
    questions_free(&j);
    questions_free(&j);
    questions_free(NULL);
    ck_assert_int_eq(questions_read(suite_path("inputs/gsm8k-test64.jsonl"), 5, &j), ST_OK);
    ck_assert_uint_eq(j.n, 5);
    ck_assert_ptr_nonnull(strstr(j.row[0].question, "Janet\xe2\x80\x99s ducks"));
    ck_assert_str_eq(j.sha256,
                     "136119d82ee01bfc771615e7b057ddab785aa51bf733fdb407d08068a3c1244c"); /* of the whole file */
    questions_free(&j);
}
END_TEST

static const struct form {
    const char *name, *text;
    int64_t limit;
    size_t n;
    int64_t duplicates, last_line;
    const char *last; /* question of the last row; NULL: not looked at */
} form[] = {
    {"plain", Q("a", "#### 1") "\n" Q("b", "#### 2") "\n", 0, 2, 0, 2, "b"},
    {"no final newline", Q("a", "#### 1") "\n" Q("b", "#### 2"), 0, 2, 0, 2, "b"},
    {"CRLF", Q("a", "#### 1") "\r\n" Q("b", "#### 2") "\r\n", 0, 2, 0, 2, "b"},
    {"CRLF, no end", Q("a", "#### 1") "\r\n" Q("b", "#### 2") "\r", 0, 2, 0, 2, "b"},
    {"BOM", BOM Q("a", "#### 1") "\n", 0, 1, 0, 1, "a"},
    {"BOM and CRLF, no end", BOM Q("a", "#### 1") "\r\n" Q("b", "#### 2"), 0, 2, 0, 2, "b"},
    {"two files joined, each with a BOM", BOM Q("a", "#### 1") "\n" BOM Q("b", "#### 2") "\n", 0, 2, 0, 2, "b"},
    {"a BOM inside of a text stays", Q(BOM "a", "#### 1"), 0, 1, 0, 1, BOM "a"},
    {"blank lines", "\n" Q("a", "#### 1") "\n \t\r\n" Q("b", "#### 2") "\n\n\n", 0, 2, 0, 4, "b"},
    {"blanks around", "  " Q("a", "#### 1") "  \n", 0, 1, 0, 1, "a"},
    {"blanks within", " {\t\"question\" : \"a\" ,\t\"answer\":\"#### 1\"\t}\t\n", 0, 1, 0, 1, "a"},
    {"further keys", "{\"n\": 7, \"question\": \"a\", \"answer\": \"#### 1\", \"x\": null, \"y\": \"\\u0000\"}\n",
     0, 1, 0, 1, "a"},
    {"duplicates", Q("a", "#### 1") "\n" Q("b", "#### 2") "\n" Q("a", "#### 3") "\n" Q("a", "#### 3"), 0, 4, 2, 4, "a"},
    {"limit hides what follows", Q("a", "#### 1") "\n{bad", 1, 1, 0, 1, "a"},
    {"escapes", Q("\\u2212 tab\\t \\ud835\\udfcf", "#### 1"), 0, 1, 0, 1, "\xe2\x88\x92 tab\t \xf0\x9d\x9f\x8f"},
    {"not ASCII", Q("Janet\xe2\x80\x99s \xe4\xb8\xad\xf0\x9f\xa6\x86", "7 \xe2\x82\xac #### 7"), 0, 1,
     0, 1, "Janet\xe2\x80\x99s \xe4\xb8\xad\xf0\x9f\xa6\x86"},
    {"line separators of Unicode are text", Q("a\xe2\x80\xa8" "b\xc2\x85" "c", "#### 1"), 0, 1, 0, 1,
     "a\xe2\x80\xa8" "b\xc2\x85" "c"},
    {"markup of the template is text", Q("<|open|>message", "#### 1"), 0, 1, 0, 1, "<|open|>message"},
    {"ids", I("\"x\"", "a") I("\"y\"", "b") I("7", "c") I("\"\"", "d") I("\"\"", "e") I("null", "f") I("null", "g")
     I("[1]", "h") I("[1]", "i") I("1.5", "k") I("1.5", "l"), 0, 11, 0, 11, "l"},
};
enum { N_FORMS = sizeof form / sizeof form[0] };

static void check_form(const struct form *f, const char *path)
{
    struct questions j;
    enum status st = questions_read(path, f->limit, &j);
    ck_assert_msg(st == ST_OK, "%s: %s: %s", f->name, err_name(st), err_last());
    ck_assert_msg(j.n == f->n && j.duplicates == f->duplicates, "%s: %zu rows, %lld duplicates", f->name, j.n,
                  (long long)j.duplicates);
    ck_assert_int_eq(j.row[j.n - 1].line, f->last_line);
    ck_assert_int_eq(j.row[j.n - 1].row, (int64_t)j.n - 1);
    ck_assert_str_eq(j.row[j.n - 1].question, f->last);
    questions_free(&j);
}

START_TEST(forms_of_files)
{
    log_mute(1);
    for (size_t i = 0; i < N_FORMS; i++)
        check_form(&form[i], write_bytes("form.jsonl", form[i].text, strlen(form[i].text)));
}
END_TEST

START_TEST(lines_may_be_long)
{
    enum { N = 3000000 };
    char *text = mem_alloc(2 * N + 200, 1, "a long line"), *at = text;
    struct questions j;
    at += sprintf(at, "%s\n{\"question\": \"", Q("short", "#### 1"));
    for (int i = 0; i < N; i++) *at++ = i % 80 ? 'x' : ' ';
    at += sprintf(at, "\", \"answer\": \"");
    for (int i = 0; i < N; i++) *at++ = 'y';
    at += sprintf(at, " #### 3\"}");
    ck_assert_int_eq(questions_read(write_bytes("long.jsonl", text, (size_t)(at - text)), 0, &j), ST_OK);
    ck_assert_uint_eq(j.n, 2);
    ck_assert_uint_eq(strlen(j.row[1].question), N);
    ck_assert_uint_eq(strlen(j.row[1].answer), N + 7);
    questions_free(&j);
    mem_free(text);
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
        {"[" Q("a", "#### 1") "]\n", ":1:", "jq -c '.[]'"},
        {"{\"question\": \"a\"}\n", ":1:", "no key \"answer\"; the line has \"question\"; questions need"},
        {"{\"answer\": \"#### 1\"}\n", ":1:", "\"question\""},
        {"{\"prompt\": \"a\", \"messages\": []}\n", ":1:",
         "no key \"question\"; the line has \"prompt\", \"messages\";"},
        {"{}\n", ":1:", "the line has nothing"},
        {"{\"question\": 5, \"answer\": \"#### 1\"}\n", ":1:", "not text"},
        {Q(" \\n", "#### 1") "\n", ":1:", "empty"},
        {Q("a", "") "\n", ":1:", "empty"},
        {Q("a", "the answer is 7") "\n", ":1:", "####"},
        {Q("a", "#### $7") "\n", ":1:", "####"},
        {"{\"question\": \"a\", \"question\": \"b\", \"answer\": \"#### 1\"}", ":1:", "duplicate"},
        {Q("a", "#### 1") Q("b", "#### 1") "\n", ":1:", "not a JSON object"}, /* two on a line */
        {Q("a", "#### 1") "\r" Q("b", "#### 1") "\r", ":1:", "not a JSON object"}, /* a carriage return ends no line */
        {Q("a", "#### 1") "\n" Q("tab\there", "#### 1") "\n", ":2:", "not a JSON object: control character"},
        {Q("a", "#### 1") "\r\n" Q("half \\ud835", "#### 1"), ":2:", "not a JSON object"},
        {"{\"question\": \"\xff\", \"answer\": \"#### 1\"}\n", ":1:15:", "not UTF-8: byte 0xff"},
        {"{\"question\": \"\xc3\xa9\xe4\xb8\xad\xf0\x9f\xa6\x86\xc3(\", \"answer\": \"#### 1\"}\n",
         ":1:18:", "byte 0xc3"},
        {BOM "{\"question\": \"\xc0\xaf\", \"answer\": \"#### 1\"}\n", ":1:15:", "byte 0xc0"},
        {Q("a", "#### 1") "\r\n" Q("Janet\x92s", "#### 1"), ":2:20:", "byte 0x92; convert the file, e.g. iconv"},
        {Q("a", "#### 1") "\n" Q("b", "#### 1\xe2\x82"), ":2:36:", "byte 0xe2"}, /* a character that is cut */
        {Q("a\xed\xa0\x80", "#### 1"), ":1:16:", "byte 0xed"},                   /* a surrogate */
        {"{\"question\": \"a\\u0000b\", \"answer\": \"#### 1\"}\n", ":1:",
         "\"question\" contains a zero character (\\u0000), which text cannot; remove it"},
        {Q("a", "#### 1") "\n" Q("b", "\\u0000#### 1") "\n", ":2:", "\"answer\" contains a zero character"},
        {Q("\\u0000", "#### 1") "\n", ":1:", "\"question\" contains a zero character"},
        {I("\"x\"", "a") I("\"y\"", "b") "\n" I("\"x\"", "c"), "form.jsonl: id \"x\" names both",
         "row 0 (line 1) and row 2 (line 4); give"},
        {I("7", "a") I("\"7\"", "a"), "row 0 (line 1) and row 1 (line 2)", "which are the same question"},
        {I("1", "a") I("2", "b") I("2", "c") I("1", "d") I("2", "e"), "id \"2\"", "row 1 (line 2) and row 2 (line 3);"},
        {"PAR1\x15\x04", "form.jsonl", "Parquet"},
        {"\xff\xfe{", "form.jsonl", "UTF-16"},
        {"\xfe\xff", "form.jsonl", "UTF-16"},
        {"\x28\xb5\x2f\xfd\x04", "form.jsonl", "zstd"},
        {"\xfd" "7zXZ", "form.jsonl", "xz"},
        {"BZh91AY", "form.jsonl", "bzip2"},
        {"PK\x03\x04\x14", "form.jsonl", "zip archive"},
        {"\x1f\x8b\x08 compressed", "form.jsonl", "gzip"},
        {"", "form.jsonl", "no rows"},
        {BOM "\r\n \n", "form.jsonl", "no rows"},
        {BOM, "form.jsonl", "no rows"},
    };
    log_mute(1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct questions j;
        const char *path = write_bytes("form.jsonl", bad[i].text, strlen(bad[i].text));
        ck_assert_msg(questions_read(path, 0, &j) == ST_E_FORMAT, "case %zu", i);
        ck_assert_msg(strstr(err_last(), bad[i].line) && strstr(err_last(), bad[i].what), "case %zu: %s", i,
                      err_last());
    }
    struct questions j;
    ck_assert_int_eq(questions_read(write_bytes("form.jsonl", "a\0b\n", 4), 0, &j), ST_E_FORMAT);
    ck_assert_int_eq(questions_read(suite_tmp("absent.jsonl"), 0, &j), ST_E_FILE);
    ck_assert_int_eq(questions_read(suite_path("tests"), 0, &j), ST_E_FILE);
}
END_TEST

/* ---- gzip ---- */

START_TEST(compressed_files_are_the_same_questions)
{
    static char packed[1 << 16], joined[1 << 16];
    log_mute(1);
    for (size_t i = 0; i < N_FORMS; i++) {
        size_t n = strlen(form[i].text), half = n / 2;
        size_t m = compress_to(form[i].text, n, packed, sizeof packed);
        check_form(&form[i], write_bytes("form.jsonl", packed, m)); /* the name says nothing */
        m = compress_to(form[i].text, half, joined, sizeof joined); /* cat a.gz b.gz, an empty member, and padding */
        m += compress_to("", 0, joined + m, sizeof joined - m);
        m += compress_to(form[i].text + half, n - half, joined + m, sizeof joined - m);
        memset(joined + m, 0, 512);
        check_form(&form[i], write_bytes("form.jsonl.gz", joined, m + 512));
    }
}
END_TEST

/* Cut at any byte, or with any bit changed, a file is refused, or was not hurt where it counts: time and system in the
 * header, unused bits of the last byte before the sums. */
START_TEST(damaged_compressed_files_are_refused)
{
    static char packed[4096], broken[4096];
    const char text[] = Q("a", "#### 1") "\n" Q("b", "#### 2") "\n";
    size_t m = compress_to(text, sizeof text - 1, packed, sizeof packed), n, unhurt = 0;
    char *out;
    log_mute(1);
    for (size_t cut = 2; cut < m; cut++) {
        ck_assert_msg(gzip_expand("x.gz", packed, cut, 1 << 20, &out, &n) == ST_E_FORMAT, "cut at %zu", cut);
        ck_assert_msg(strstr(err_last(), "x.gz: gzip: "), "%s", err_last());
    }
    ck_assert_ptr_nonnull(strstr(err_last(), "cut short after 76 bytes of text; get it again"));
    for (size_t bit = 16; bit < 8 * m; bit++) {
        memcpy(broken, packed, m);
        broken[bit / 8] = (char)(broken[bit / 8] ^ 1 << bit % 8);
        if (gzip_expand("x.gz", broken, m, 1 << 20, &out, &n) != ST_OK) continue;
        ck_assert_msg(n == sizeof text - 1 && memcmp(out, text, n) == 0, "bit %zu of byte %zu", bit % 8, bit / 8);
        ck_assert_msg(bit / 8 < 10 || bit / 8 == m - 9, "bit %zu of byte %zu", bit % 8, bit / 8);
        mem_free(out);
        unhurt++;
    }
    ck_assert_uint_lt(unhurt, 9 * 8);
    memcpy(broken, packed, m);
    memcpy(broken + m, "\0\0x", 3);
    ck_assert_int_eq(gzip_expand("x.gz", broken, m + 3, 1 << 20, &out, &n), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "3 bytes follow"));
    size_t twice = compress_to(packed, m, broken, sizeof broken);
    struct questions j;
    ck_assert_int_eq(questions_read(write_bytes("twice.gz", broken, twice), 0, &j), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "gzip twice"));
}
END_TEST

START_TEST(expansion_has_a_limit)
{
    enum { N = 1 << 20 };
    char *zeros = mem_alloc(N, 1, "zeros"), *packed = mem_alloc(1 << 14, 1, "packed"), *out;
    size_t n, m = compress_to(zeros, N, packed, 1 << 14);
    log_mute(1);
    ck_assert_uint_lt(m, 2000);
    ck_assert_int_eq(gzip_expand("x.gz", packed, m, N - 1, &out, &n), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "expands to more than 1048575 bytes"));
    ck_assert_int_eq(gzip_expand("x.gz", packed, m, N + 1, &out, &n), ST_OK);
    ck_assert_uint_eq(n, N);
    ck_assert_int_eq(out[n], 0);
    mem_free(out);
    mem_free(packed);
    mem_free(zeros);
}
END_TEST

/* ---- HDF5 ---- */

struct lists {
    const char *question[4], *answer[4], *id[4];
    int n_question, n_answer, n_id;
};

static const char *write_lists(const struct lists *l, const int64_t *number, int64_t n_numbers)
{
    const char *path = suite_tmp("lists.h5");
    static const char *const name[] = {"/question", "/answer", "/id"};
    const char *const *const text[] = {l->question, l->answer, l->id};
    const int n[] = {l->n_question, l->n_answer, l->n_id};
    struct h5 *f;
    ck_assert_int_eq(h5_create(path, 1, &f), ST_OK);
    ck_assert_int_eq(h5_write(f, "/other", H5_KIND_I64, 1, (int64_t[]){1}, (int64_t[]){4}), ST_OK);
    for (int i = 0; i < 3; i++) {
        if (n[i] < 0) continue; /* no such list */
        ck_assert_int_eq(h5_make_str(f, name[i], 4), ST_OK);
        ck_assert_int_eq(h5_append_str(f, name[i], (size_t)n[i], text[i]), ST_OK);
    }
    if (number) ck_assert_int_eq(h5_write(f, "/id", H5_KIND_I64, 1, &n_numbers, number), ST_OK);
    ck_assert_int_eq(h5_flush(f), ST_OK);
    h5_close(f);
    return path;
}

START_TEST(lists_of_hdf5_are_read)
{
    static const struct lists good = {
        {"a", "b\xe2\x80\x99s\t", "c"}, {"#### 1", "#### 2", "x\n#### 3"}, {"x", "", "z"}, 3, 3, 3};
    static const struct {
        struct lists l;
        const char *what;
    } bad[] = {
        {{{"a"}, {"#### 1"}, {0}, 1, -1, -1}, "no datasets /question and /answer"},
        {{{"a"}, {"#### 1"}, {0}, -1, 1, -1}, "no datasets /question and /answer"},
        {{{"a", "b"}, {"#### 1"}, {0}, 2, 1, -1}, "/question has 2 rows, /answer 1; they must be as many"},
        {{{"a", "b"}, {"#### 1"}, {"x", "y", "z"}, 2, 1, 3}, "/question has 2 rows, /answer 1, /id 3; they must be"},
        {{{"a", "b"}, {"#### 1", "#### 2"}, {"x"}, 2, 2, 1}, "/id 1"},
        {{{"a", "b"}, {"#### 1", "#### 2"}, {"x", "x"}, 2, 2, 2}, "id \"x\" names both row 0 and row 1"},
        {{{"a", " "}, {"#### 1", "#### 2"}, {0}, 2, 2, -1}, "lists.h5: row 1: \"question\" is empty"},
        {{{"a", "b"}, {"#### 1", "2"}, {0}, 2, 2, -1}, "lists.h5: row 1: \"answer\" has no final"},
        {{{0}, {0}, {0}, 0, 0, -1}, "no rows"},
    };
    struct questions q;
    log_mute(1);
    const char *path = write_lists(&good, NULL, 0);
    ck_assert_int_eq(questions_read(path, 0, &q), ST_OK);
    ck_assert_uint_eq(q.n, 3);
    char sha[65];
    ck_assert_int_eq(hash_file_sha256(path, sha), ST_OK);
    ck_assert_str_eq(q.sha256, sha);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_str_eq(q.row[i].question, good.question[i]);
        ck_assert_str_eq(q.row[i].answer, good.answer[i]);
        ck_assert_int_eq(q.row[i].row, (int64_t)i);
        ck_assert_int_eq(q.row[i].line, 0);
    }
    ck_assert_ptr_null(q.row[1].id);
    ck_assert_str_eq(q.row[2].id, "z");
    questions_free(&q);
    ck_assert_int_eq(questions_read(path, 2, &q), ST_OK);
    ck_assert_uint_eq(q.n, 2);
    questions_free(&q);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(questions_read(write_lists(&bad[i].l, NULL, 0), 0, &q), ST_E_FORMAT);
        ck_assert_msg(strstr(err_last(), bad[i].what), "case %zu: %s", i, err_last());
    }
    struct lists numbered = {{"a", "b"}, {"#### 1", "#### 2"}, {0}, 2, 2, -1};
    ck_assert_int_eq(questions_read(write_lists(&numbered, (int64_t[]){-3, 4}, 2), 0, &q), ST_OK);
    ck_assert_str_eq(q.row[0].id, "-3");
    questions_free(&q);
    ck_assert_int_eq(questions_read(write_lists(&numbered, (int64_t[]){5, 5}, 2), 0, &q), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "id \"5\" names both row 0 and row 1"));
    ck_assert_int_eq(questions_read(suite_path("tests/vectors/layers_p5.h5"), 0, &q), ST_E_FORMAT);
}
END_TEST

START_TEST(a_prompts_file_gives_its_questions)
{
    static const int32_t id[] = {5, 6, 7};
    const struct prompts_meta meta = {"k3-xtml/1", "off", 0, "", "77", "q.jsonl", "0123", "openai", 0};
    const struct prompts_row row[] = {{"q one", "#### 1", 40, id, 2, ""}, {"q two", "#### 2", 41, id, 3, ""}};
    const char *path = suite_tmp("old.h5");
    struct questions q;
    struct h5 *f;
    ck_assert_int_eq(prompts_write(path, 1, &meta, row, 2), ST_OK);
    ck_assert_int_eq(questions_read(path, 0, &q), ST_OK);
    ck_assert_uint_eq(q.n, 2);
    ck_assert_str_eq(q.row[1].question, "q two");
    ck_assert_str_eq(q.row[1].answer, "#### 2");
    ck_assert_int_eq(q.row[1].row, 1); /* where it stands in this file */
    questions_free(&q);
    log_mute(1);
    ck_assert_int_eq(h5_open(path, 1, &f), ST_OK); /* text that its digest does not know is not taken over */
    ck_assert_int_eq(h5_delete(f, "/text/gold"), ST_OK);
    ck_assert_int_eq(h5_make_str(f, "/text/gold", 4), ST_OK);
    ck_assert_int_eq(h5_append_str(f, "/text/gold", 2, (const char *const[]){"#### 1", "#### 3"}), ST_OK);
    ck_assert_int_eq(h5_flush(f), ST_OK);
    h5_close(f);
    ck_assert_int_eq(questions_read(path, 0, &q), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "the file was changed"));
}
END_TEST

/* ---- rows of two files ---- */

START_TEST(shared_questions_are_found)
{
    enum { N = 400 };
    struct questions a, b;
    uint8_t shared[N];
    char text[64], *all = mem_alloc(N * 64, 1, "lines"), *at = all;
    size_t n;
    log_mute(1);
    for (int i = 0; i < N; i++) at += sprintf(at, "{\"question\": \"%d\", \"answer\": \"#### 1\"}\n", i / 2);
    ck_assert_int_eq(questions_read(write_bytes("all.jsonl", all, (size_t)(at - all)), 0, &a), ST_OK);
    ck_assert_int_eq(a.duplicates, N / 2);
    int m = snprintf(text, sizeof text, "%s\n%s", Q("7", "#### 9"), "");
    ck_assert_int_eq(questions_read(write_bytes("one.jsonl", text, (size_t)m), 0, &b), ST_OK);
    ck_assert_int_eq(questions_shared(&a, &b, shared, &n), ST_OK);
    ck_assert_uint_eq(n, 2);
    for (int i = 0; i < N; i++) ck_assert_int_eq(shared[i], i / 2 == 7);
    ck_assert_int_eq(questions_shared(&a, &a, shared, &n), ST_OK);
    ck_assert_uint_eq(n, N);
    ck_assert_int_eq(questions_shared(&b, &a, shared, &n), ST_OK);
    ck_assert_uint_eq(n, 1);
    struct questions none;
    memset(&none, 0, sizeof none);
    ck_assert_int_eq(questions_shared(&a, &none, shared, &n), ST_OK);
    ck_assert_uint_eq(n, 0);
    questions_free(&a);
    questions_free(&b);
    mem_free(all);
}
END_TEST

START_TEST(wordings_are_those_of_the_originals)
{
    struct question row[] = {{"1+1?", "It is <<1+1=2>>2.\n#### 2", NULL, 0, 1}, {"2 + 2 = ?\t", "#### 4", NULL, 1, 2}};
    static const struct {
        enum fewshot_format format;
        size_t shots;
        const char *want;
    } cases[] = {
        {FEWSHOT_OPENAI, 0, "Who?\n"},
        {FEWSHOT_OPENAI, 1, "1+1?\nIt is <<1+1=2>>2.\n#### 2\n\nWho?\n"},
        {FEWSHOT_LM_EVAL, 0, "Question: Who?\nAnswer:"},
        {FEWSHOT_LM_EVAL, 2,
         "Question: 1+1?\nAnswer: It is <<1+1=2>>2.\n#### 2\n\nQuestion: 2 + 2 = ?\t\nAnswer: #### 4\n\n"
         "Question: Who?\nAnswer:"},
        {FEWSHOT_SGLANG, 0, "Question: Who?\nAnswer:"},
        {FEWSHOT_SGLANG, 2,
         "Question: 1+1?\nAnswer: It is <<1+1=2>>2.\n#### 2\n\nQuestion: 2 + 2 = ?\t\nAnswer: #### 4\n\n"
         "Question: Who?\nAnswer:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct questions shots = {.row = row, .n = cases[i].shots};
        char *text;
        size_t n;
        ck_assert_int_eq(fewshot_text(cases[i].format, &shots, "Who?", &text, &n), ST_OK);
        ck_assert_str_eq(text, cases[i].want);
        ck_assert_uint_eq(n, strlen(text));
        mem_free(text);
    }
    ck_assert_str_eq(fewshot_name(FEWSHOT_LM_EVAL), "lm-eval");
    ck_assert_str_eq(fewshot_name((enum fewshot_format)9), "unknown");
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "JSON lines", 20);
    SUITE_TEST(tc, shipped_questions_are_read);
    SUITE_TEST(tc, forms_of_files);
    SUITE_TEST(tc, lines_may_be_long);
    SUITE_TEST(tc, bad_lines_are_refused_with_their_place);
    tc = SUITE_CASE(s, "gzip", 20);
    SUITE_TEST(tc, compressed_files_are_the_same_questions);
    SUITE_TEST(tc, damaged_compressed_files_are_refused);
    SUITE_TEST(tc, expansion_has_a_limit);
    tc = SUITE_CASE(s, "HDF5", 20);
    SUITE_TEST(tc, lists_of_hdf5_are_read);
    SUITE_TEST(tc, a_prompts_file_gives_its_questions);
    tc = SUITE_CASE(s, "questions", 20);
    SUITE_TEST(tc, shared_questions_are_found);
    SUITE_TEST(tc, wordings_are_those_of_the_originals);
}

int main(void)
{
    return suite_main_serial();
}
