/* Tokenizers written by the test: where the pattern cuts, what the vocabulary may join, which files are refused. */
#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/tokenizer.h"

const char *const suite_name = "tokenizer_files";

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

/* ---- where the text is cut --------------------------------------------------------------------------- */

static const char *own_dir(void)
{
    static char dir[512];
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s", suite_tmp("dir"));
        mkdir(dir, 0777);
    }
    return dir;
}

static void write_file(const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", own_dir(), name);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* the 256 single bytes in order, then the lines of tail; without the byte `skip` */
static void write_model(const char *tail, int skip)
{
    char text[8192];
    size_t n = 0;
    int rank = 0;
    for (int v = 0; v < 256; v++)
        if (v != skip)
            n += (size_t)snprintf(text + n, sizeof text - n, "%c%c== %d\n", digit[v >> 2], digit[(v & 3) << 4], rank++);
    snprintf(text + n, sizeof text - n, "%s", tail);
    write_file("tiktoken.model", text);
}

#define NO_NAMES "{\"added_tokens_decoder\": {}}"

/* is the text joined across byte `at` by a vocabulary whose only merge is the pair of bytes around it? */
static int joined(const char *text, size_t n, size_t at)
{
    struct tokenizer *t;
    struct ids v = {0};
    char line[32];
    unsigned a = (unsigned char)text[at - 1], b = (unsigned char)text[at];
    size_t pos = 0;
    int found = 0;
    snprintf(line, sizeof line, "%c%c%c= 256\n", digit[a >> 2], digit[(a & 3) << 4 | b >> 4], digit[(b & 15) << 2]);
    write_model(line, -1);
    write_file("tokenizer_config.json", NO_NAMES);
    ck_assert_int_eq(tokenizer_open(own_dir(), -1, &t), ST_OK);
    ck_assert_int_eq(tokenizer_encode(t, text, n, &v), ST_OK);
    for (size_t i = 0; i < v.n; i++) {
        found |= v.id[i] == 256 && pos + 1 == at;
        pos += v.id[i] == 256 ? 2 : 1;
    }
    ck_assert_uint_eq(pos, n);
    ids_free(&v);
    tokenizer_close(t);
    return found;
}

/* pieces as the reference pattern makes them, with bars between; every other character boundary must join */
static const char *const cut_text[] = {
    "\xe4\xb8\xad\xe6\x96\x87|abc|\xe4\xb8\xad",
    "\xe8\xa6\x8b|\xe3\x80\x82\xe3\x80\x8c|\xe4\xb8\xad|\xe3\x80\x8d\xe3\x80\x81|\xe5\xad\x97",
    "\xe3\x80\x85\xe3\x80\xbb|a|\xe3\x80\x87", "don't| stop", "DON'T| s", "it'\xc5\xbf| x", "it'S|x| I'LL|s",
    "'re|'x", "a|\xe1\xa0\x8e" "b", "x|\x1c\x1d|y", "x|\xc2\x85\t|\xc2\x85y", "x| \xe1\xa0\x8e|y", "a| \t| b",
    "a|\n\r|b", "a| \n\t\r| | b", "123|456|7", "x|!?\n\r|y", " ?!|x| ", "e\xcc\x81t\xcc\x81", "\xcc\x81" "a",
    " |\xe2\x85\xa7\xc2\xb2\xc2\xbd|a", "ABcd|Ef", "\xc7\x85" "ab\xca\xb0|C", "\xea\xb0\x80\xeb\x82\x98" "ab",
    "\xe3\x81\x82\xe3\x82\xa2|\xe6\xbc\xa2|\xe3\x83\xbc" "a", "\xe3\x80\xaa|\xe4\xb8\xad|\xe3\x80\xaa" "a",
    "a|\xe2\x80\x8d" "b", "\xe3\x80\x87\xe3\x80\xa1|x", "\xe2\xbd\x8a\xe2\xba\x80|a", "\xe3\x80\x80|\xc2\xa0x",
    "x|\t\xe2\x80\xa8\xe2\x80\xa9", "_a|-B", "\t\xc2\xa0\xe3\x80\x80", "\xf0\xb1\x8d\x90|a",
    "\xf0\xb1\x8d\x90\xf0\xae\xaf\xb0|'s",
};

START_TEST(pieces)
{
    char text[128];
    int bar[128] = {0};
    size_t n = 0;
    for (const char *c = cut_text[_i]; *c; c++) {
        if (*c == '|')
            bar[n] = 1;
        else
            text[n++] = *c;
    }
    for (size_t at = 1; at < n; at++)
        if (((unsigned char)text[at] & 0xc0) != 0x80)
            ck_assert_msg(joined(text, n, at) == !bar[at], "\"%s\": byte %zu is %s", cut_text[_i], at,
                          bar[at] ? "no boundary" : "a boundary");
}
END_TEST

/* Bytes that are no UTF-8 stay single whatever the vocabulary offers; valid neighbours do not. */
START_TEST(invalid_bytes_never_merge)
{
    static const char *const bad[] = {"\xed\xa0\x80", "\xed\xbf\xbf", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf",
                                      "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff\xfe",
                                      "\xe4\xbd", "\xf0\x9f\x99", "\x80\xbf", "a\xff", "\xc3z"};
    static const char *const good[] = {"\xed\x9f\xbf", "\xee\x80\x80", "\xc2\x80", "\xe0\xa0\x80",
                                       "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    for (size_t i = 0; i < N_OF(bad); i++)
        for (size_t at = 1; at < strlen(bad[i]); at++)
            ck_assert_msg(!joined(bad[i], strlen(bad[i]), at), "bad %zu joins at %zu", i, at);
    for (size_t i = 0; i < N_OF(good); i++)
        for (size_t at = 1; at < strlen(good[i]); at++)
            ck_assert_msg(joined(good[i], strlen(good[i]), at), "good %zu does not join at %zu", i, at);
}
END_TEST

/* a piece that is a rank is one id even if no chain of merges leads there; inside a longer piece it is not found */
START_TEST(whole_pieces_come_first)
{
    struct tokenizer *t;
    struct ids v = {0};
    write_model("YWJjZA== 256\nYmM= 257\n", -1); /* abcd, bc */
    write_file("tokenizer_config.json", NO_NAMES);
    ck_assert_int_eq(tokenizer_open(own_dir(), -1, &t), ST_OK);
    ck_assert_int_eq(tokenizer_encode(t, "abcd", 4, &v), ST_OK);
    ck_assert(v.n == 1 && v.id[0] == 256);
    ck_assert_int_eq(tokenizer_encode(t, "abcde", 5, &v), ST_OK);
    ck_assert(v.n == 5 && v.id[1] == 'a' && v.id[2] == 257 && v.id[3] == 'd' && v.id[4] == 'e');
    ids_free(&v);
    tokenizer_close(t);
}
END_TEST

/* ---- files that are refused -------------------------------------------------------------------------- */

START_TEST(bad_models)
{
    static const struct {
        const char *tail;
        int skip;
        const char *needle; /* NULL: accepted */
    } want[] = {
        {"", -1, NULL},
        {"YWI= 256\n", -1, NULL},
        {"\n\nYWI= 256", -1, NULL},
        {"YWI= 257\nYWJj 256\n", -1, NULL}, /* any order */
        {"", 0, "single byte 0x00"},
        {"YWI= 255\n", 200, "single byte 0xc8"},
        {"YWI= 257\n", -1, ":257: rank 257, but the file has 257 lines"},
        {"YWI= 257\n", 200, ":256: rank 257, but the file has 256 lines"},
        {"YWI= 99999999999999999999\n", -1, "rank \"99999999999999999999\""},
        {"YWI= -1\n", -1, "rank \"-1\""},
        {"YWI= 255\n", -1, "rank 255 occurs twice"},
        {"QQ== 256\n", -1, "ranks 65 and 256 have the same bytes"},
        {"YW?= 256\n", -1, "rank 256: malformed base64"},
        {"YWI 256\n", -1, "malformed base64"},
        {"YQ=a 256\n", -1, "malformed base64"},
        {"==== 256\n", -1, "malformed base64"},
        {"YWJ= 256\n", -1, "malformed base64"}, /* bits behind the last byte */
        {" 256\n", -1, ":257: not \"base64 rank\""},
        {"YWI=\n", -1, ":257: not \"base64 rank\""},
        {"YWI= \n", -1, ":257: not \"base64 rank\""},
        {"YWI= 256 7\n", -1, "rank \"256 7\""},
        {"YWI= 256\r\n", -1, "rank \"256\r\""},
    };
    write_file("tokenizer_config.json", NO_NAMES);
    for (size_t i = 0; i < N_OF(want); i++) {
        struct tokenizer *t = NULL;
        write_model(want[i].tail, want[i].skip);
        enum status st = tokenizer_open(own_dir(), -1, &t);
        ck_assert_msg(st == (want[i].needle ? ST_E_FORMAT : ST_OK), "model %zu: %s", i, err_name(st));
        if (want[i].needle) {
            ck_assert_msg(strstr(err_last(), want[i].needle) != NULL, "model %zu: %s", i, err_last());
            ck_assert_ptr_nonnull(strstr(err_last(), "tiktoken.model"));
            ck_assert_ptr_null(t);
        }
        tokenizer_close(t);
    }
    write_file("tiktoken.model", "");
    struct tokenizer *t = NULL;
    ck_assert_int_eq(tokenizer_open(own_dir(), -1, &t), ST_E_FORMAT);
}
END_TEST

START_TEST(bad_names)
{
    static const struct {
        const char *text, *needle; /* needle NULL: accepted */
    } want[] = {
        {NO_NAMES, NULL},
        {"{\"added_tokens_decoder\": {\"511\": {\"content\": \"x\"}}, \"other\": 1}", NULL},
        {"{\"added_tokens_decoder\": {\"512\": {\"content\": \"x\"}}}", "id 512 is outside the special slots 256..511"},
        {"{\"added_tokens_decoder\": {\"255\": {\"content\": \"x\"}}}", "id 255 is outside"},
        {"{\"added_tokens_decoder\": {\"0x100\": {\"content\": \"x\"}}}", "\"0x100\" is not a token id"},
        {"{\"added_tokens_decoder\": {\"99999999999999999999\": {\"content\": \"x\"}}}", "is not a token id"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": 7}}}", "300: no string"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"\"}}}", "300: no string"},
        {"{\"added_tokens_decoder\": {\"300\": \"x\"}}", "300: no string"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"x\"}, \"0300\": {\"content\": \"y\"}}}",
         "id 300 occurs twice"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"x\"}, \"301\": {\"content\": \"x\"}}}", "both named x"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"<|reserved_token_301|>\"}}}", "belongs to another slot"},
        {"{\"added_tokens_decoder\": {\"300\": {\"content\": \"x\"}, \"300\": {\"content\": \"y\"}}}",
         "duplicate object key"},
        {"{\"added_tokens_decoder\": []}", "added_tokens_decoder"},
        {"{}", "added_tokens_decoder"},
        {"[]", "added_tokens_decoder"},
        {"{\"added_tokens_decoder\": ", "JSON"},
    };
    write_model("", -1);
    for (size_t i = 0; i < N_OF(want); i++) {
        struct tokenizer *t = NULL;
        write_file("tokenizer_config.json", want[i].text);
        enum status st = tokenizer_open(own_dir(), 512, &t);
        ck_assert_msg(st == (want[i].needle ? ST_E_FORMAT : ST_OK), "names %zu: %s", i, err_name(st));
        if (want[i].needle) {
            ck_assert_msg(strstr(err_last(), want[i].needle) != NULL, "names %zu: %s", i, err_last());
            ck_assert_ptr_nonnull(strstr(err_last(), "tokenizer_config.json"));
        }
        tokenizer_close(t);
    }
}
END_TEST

START_TEST(wrong_pairs_and_missing_files)
{
    struct tokenizer *t = NULL;
    ck_assert_int_eq(tokenizer_open(suite_path("inputs/k3-nano"), 4097, &t), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "vocab_size is 4097"));
    ck_assert_int_eq(tokenizer_open(suite_path("inputs/k3-nano"), 0, &t), ST_E_FORMAT);
    ck_assert_int_eq(tokenizer_open(suite_path("inputs/k3-nano-dflash"), -1, &t), ST_E_FILE);
    ck_assert_ptr_nonnull(strstr(err_last(), "tiktoken.model"));
    write_model("", -1);
    char path[600];
    snprintf(path, sizeof path, "%s/tokenizer_config.json", own_dir());
    remove(path);
    ck_assert_int_eq(tokenizer_open(own_dir(), -1, &t), ST_E_FILE);
    ck_assert_ptr_nonnull(strstr(err_last(), "tokenizer_config.json"));
    ck_assert_ptr_null(t);
}
END_TEST

START_TEST(hash_follows_both_files)
{
    static const struct {
        const char *tail, *names;
    } file[] = {{"", NO_NAMES}, {"", NO_NAMES}, {"YWI= 256\n", NO_NAMES}, {"", NO_NAMES " "}};
    uint64_t h[N_OF(file)];
    for (size_t i = 0; i < N_OF(file); i++) {
        struct tokenizer *t;
        write_model(file[i].tail, -1);
        write_file("tokenizer_config.json", file[i].names);
        ck_assert_int_eq(tokenizer_open(own_dir(), -1, &t), ST_OK);
        h[i] = tokenizer_hash(t);
        tokenizer_close(t);
    }
    ck_assert(h[0] == h[1] && h[0] != h[2] && h[0] != h[3] && h[2] != h[3]);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "tokenizer files", 300);
    tcase_add_loop_test(tc, pieces, 0, N_OF(cut_text));
    SUITE_TEST(tc, invalid_bytes_never_merge);
    SUITE_TEST(tc, whole_pieces_come_first);
    SUITE_TEST(tc, bad_models);
    SUITE_TEST(tc, bad_names);
    SUITE_TEST(tc, wrong_pairs_and_missing_files);
    SUITE_TEST(tc, hash_follows_both_files);
}

int main(void)
{
    return suite_main_serial();
}
