#include "suite.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/rng.h"
#include "ckpt/bpe.h"
#include "ckpt/text_file.h"
#include "ckpt/tokenizer.h"

const char *const suite_name = "tokenizer";

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

static struct tokenizer *tok;

static void setup(void)
{
    ck_assert_int_eq(tokenizer_open(suite_path("inputs/k3-nano"), 4096, &tok), ST_OK);
}

static void teardown(void)
{
    tokenizer_close(tok);
}

static struct ids encode(const char *text, size_t n)
{
    struct ids out = {0};
    ck_assert_int_eq(tokenizer_encode(tok, text, n, &out), ST_OK);
    return out;
}

static void append(struct ids *out, const char *text, size_t n)
{
    ck_assert_int_eq(tokenizer_encode(tok, text, n, out), ST_OK);
}

static int same(const struct ids *a, const struct ids *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->id, b->id, a->n * sizeof a->id[0]) == 0);
}

/* ids of the bytes are those of the list, and decoding gives the bytes back */
static void expect(const char *text, size_t n, const json_t *want, const char *name)
{
    struct ids got = encode(text, n);
    ck_assert_msg(got.n == json_array_size(want), "%s: %zu ids, not %zu", name, got.n, json_array_size(want));
    for (size_t i = 0; i < got.n; i++) {
        int id = (int)json_integer_value(json_array_get(want, i));
        ck_assert_msg(got.id[i] == id, "%s: id %zu is %d, not %d", name, i, got.id[i], id);
    }
    for (int with_special = 0; with_special < 2; with_special++) {
        char *back;
        size_t len;
        ck_assert_int_eq(tokenizer_decode(tok, got.id, got.n, with_special, &back, &len), ST_OK);
        ck_assert_uint_eq(len, n);
        ck_assert_msg(n == 0 || memcmp(back, text, n) == 0, "%s: round trip", name);
        ck_assert_int_eq(back[len], 0);
        mem_free(back);
    }
    ids_free(&got);
}

static size_t unhex(const char *hex, char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        ck_assert_int_eq(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (char)v;
    }
    return n;
}

static json_t *load(const char *path)
{
    json_t *root = json_load_file(suite_path(path), 0, NULL);
    ck_assert_ptr_nonnull(root);
    return root;
}

START_TEST(golden_cases)
{
    json_t *root = load("tests/vectors/tokenizer_cases.json"), *c;
    size_t i, texts = 0, bytes = 0;
    char buf[4096];
    json_array_foreach(root, i, c)
    {
        const char *text = json_string_value(json_object_get(c, "text"));
        const char *hex = json_string_value(json_object_get(c, "bytes_hex"));
        if (text) expect(text, json_string_length(json_object_get(c, "text")), json_object_get(c, "ids"), text);
        if (hex) expect(buf, unhex(hex, buf), json_object_get(c, "ids"), hex);
        texts += text != NULL;
        bytes += hex != NULL;
    }
    ck_assert_uint_eq(texts, 37);
    ck_assert_uint_eq(bytes, 3);
    json_decref(root);
}
END_TEST

/* random mixtures of every general category, Han edge cases, both kinds of white space, contractions and broken
 * UTF-8; ids from the reference implementation, [hex, ids] each */
START_TEST(fuzz_vectors)
{
    json_t *root = load("tests/vectors/tokenizer_fuzz.json"), *c;
    size_t i;
    char buf[4096];
    json_array_foreach(root, i, c)
    {
        const char *hex = json_string_value(json_array_get(c, 0));
        ck_assert_uint_lt(strlen(hex), 2 * sizeof buf);
        expect(buf, unhex(hex, buf), json_array_get(c, 1), hex);
    }
    ck_assert_uint_ge(i, 400);
    json_decref(root);
}
END_TEST

/* ---- long texts -------------------------------------------------------------------------------------- */

static char *repeat(const char *unit, size_t times, size_t *n_p)
{
    size_t n = strlen(unit);
    char *s = malloc(n * times + 1);
    ck_assert_ptr_nonnull(s);
    for (size_t i = 0; i < times; i++) memcpy(s + i * n, unit, n);
    *n_p = n * times;
    return s;
}

/* the text is encoded as its first `at` bytes and the rest, each alone */
static void expect_cut(const char *s, size_t n, size_t at, int cut, const char *name)
{
    struct ids whole = encode(s, n), parts = encode(s, at);
    append(&parts, s + at, n - at);
    ck_assert_msg(same(&whole, &parts) == cut, "%s: cut at %zu", name, at);
    ids_free(&whole);
    ids_free(&parts);
}

START_TEST(long_runs_are_cut_at_25000_characters)
{
    /* "natalia" is not cut by the pattern, so a cut inside it shows; 7 * 3571 = 24997 */
    size_t n;
    char *s = repeat("natalia", 3600, &n);
    expect_cut(s, n, 25000, 1, "letters");
    expect_cut(s, n, 24999, 0, "letters");
    expect_cut(s, n, 25001, 0, "letters");
    expect_cut(s, 25000, 24990, 0, "a run of exactly 25000");
    s[100] = ' '; /* the run starts again behind it: 100 + 1 + 25000 */
    expect_cut(s, n, 25000, 0, "letters with a space");
    expect_cut(s, n, 25101, 1, "letters with a space");
    s[100] = 0x1c; /* white space for the run, not for the pattern */
    expect_cut(s, n, 25101, 1, "letters with U+001C");
    free(s);
    s = repeat("\xc3\xa9t", 12600, &n); /* characters, not bytes */
    expect_cut(s, n, 12500 * 3, 1, "two-byte characters");
    free(s);
    s = repeat(" ", 30000, &n);
    s[n - 1] = 'x';
    struct ids got = encode(s, n), want = encode(s, 25000);
    append(&want, s + 25000, n - 25000);
    ck_assert(same(&got, &want));
    ids_free(&got);
    ids_free(&want);
    free(s);
}
END_TEST

START_TEST(texts_are_cut_at_400000_characters)
{
    size_t n;
    char *s = repeat("natalia\xc2\xa0", 60000, &n); /* 8 characters, 9 bytes; the cut falls behind a white space */
    memmove(s + 3, s, n - 3);                        /* now behind "natal" (3 characters were dropped at the end) */
    memcpy(s, "abc", 3);
    expect_cut(s, n, 3 + 49999 * 9 + 5, 1, "400000 characters");
    expect_cut(s, n, 3 + 49999 * 9 + 4, 0, "399999 characters");
    expect_cut(s, n, 3 + 49998 * 9 + 5, 0, "399992 characters");
    free(s);
}
END_TEST

/* CPU seconds of encoding s in slices of `step` bytes, best of three */
static double seconds(const char *s, size_t n, size_t step, size_t *ids_p)
{
    double best = 1e9;
    for (int round = 0; round < 3; round++) {
        struct ids out = {0};
        clock_t start = clock();
        for (size_t at = 0; at < n; at += step) append(&out, s + at, step);
        double t = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (t < best) best = t;
        *ids_p = out.n;
        ids_free(&out);
    }
    return best;
}

/* A 100 KB piece costs about what ten of 10 KB cost, whatever tool slows the program down; quadratic merging would
 * cost ten times as much. */
START_TEST(long_pieces_are_not_quadratic)
{
    static const char *const unit[] = {"\xf0\xa0\x80\x80", "\xf0\x92\x80\x80"}; /* a Han and a cuneiform letter */
    for (size_t i = 0; i < N_OF(unit); i++) {
        size_t n, n_one, n_ten;
        char *s = repeat(unit[i], 25000, &n);
        double ten = seconds(s, n, n / 10, &n_ten), one = seconds(s, n, n, &n_one);
        ck_assert_msg(one < 4 * ten + 0.02, "one piece of %zu bytes takes %.3f s, ten pieces take %.3f s", n, one, ten);
        ck_assert_uint_ge(n_one, 25000);
        free(s);
    }
}
END_TEST

START_TEST(a_megabyte_of_one_class_passes)
{
    static const char *const unit[] = {"a", "A", "aA", " ", "\n", " \n", "!", "7", "'s", "\xcc\x81", "\xe4\xb8\xad",
                                       "\xff"};
    for (size_t i = 0; i < N_OF(unit); i++) {
        size_t n;
        size_t bytes = i == 0 ? 1000000 : 200000; /* all are cut alike, one shows that size alone is no limit */
        char *s = repeat(unit[i], bytes / strlen(unit[i]), &n), *back;
        struct ids got = encode(s, n);
        ck_assert_int_eq(tokenizer_decode(tok, got.id, got.n, 0, &back, &n), ST_OK);
        ck_assert_msg(memcmp(back, s, n) == 0, "round trip of many \"%s\"", unit[i]);
        mem_free(back);
        ids_free(&got);
        free(s);
    }
}
END_TEST

/* ---- merging against the definition ------------------------------------------------------------------ */

/* rank of bytes, -1 if none: a piece comes out as one id exactly if it is a rank */
static int32_t rank_of(struct bpe *b, const uint8_t *p, size_t n)
{
    struct ids v = {0};
    ck_assert_int_eq(bpe_encode(b, p, n, &v), ST_OK);
    int32_t r = v.n == 1 ? v.id[0] : -1;
    ids_free(&v);
    return r;
}

static size_t merge_by_definition(struct bpe *b, const uint8_t *p, size_t n, int32_t *out)
{
    size_t edge[401], parts = n;
    ck_assert_uint_le(n, 400);
    for (size_t i = 0; i <= n; i++) edge[i] = i;
    for (;;) {
        size_t best = parts;
        int32_t lowest = INT32_MAX;
        for (size_t i = 0; i + 1 < parts; i++) {
            size_t len = edge[i + 2] - edge[i];
            int32_t r = len > 40 ? -1 : rank_of(b, p + edge[i], len);
            if (r >= 0 && r < lowest) {
                lowest = r;
                best = i;
            }
        }
        if (best == parts) break;
        memmove(edge + best + 1, edge + best + 2, (parts - best - 1) * sizeof edge[0]);
        parts--;
    }
    for (size_t i = 0; i < parts; i++) out[i] = rank_of(b, p + edge[i], edge[i + 1] - edge[i]);
    return parts;
}

START_TEST(merges_follow_the_definition)
{
    static const char *const alphabet[] = {"ae", "natlis", "thequickbrownfoxjumps", "\n =0123456789$"};
    char *text;
    size_t bytes;
    struct bpe *b;
    ck_assert_int_eq(text_file_read(suite_path("inputs/k3-nano/tiktoken.model"), &text, &bytes), ST_OK);
    ck_assert_int_eq(bpe_open("model", text, bytes, &b), ST_OK);
    for (uint64_t round = 0; round < 40; round++) {
        const char *letters = alphabet[round % N_OF(alphabet)];
        uint8_t piece[160];
        int32_t want[160];
        size_t n = 2 + (size_t)(rng_unit(1, round, 0) * 158), n_want;
        struct ids got = {0};
        for (size_t i = 0; i < n; i++)
            piece[i] = (uint8_t)letters[(size_t)(rng_unit(2, round, i) * (double)strlen(letters))];
        if (rank_of(b, piece, n) >= 0) continue;
        n_want = merge_by_definition(b, piece, n, want);
        ck_assert_int_eq(bpe_encode(b, piece, n, &got), ST_OK);
        ck_assert_uint_eq(got.n, n_want);
        ck_assert_mem_eq(got.id, want, n_want * sizeof want[0]);
        ids_free(&got);
    }
    ck_assert_int_eq(bpe_encode(b, (const uint8_t *)"", 0, &(struct ids){0}), ST_E_RANGE);
    bpe_close(b);
    bpe_close(NULL);
    mem_free(text);
}
END_TEST

/* ---- special ids ------------------------------------------------------------------------------------- */

START_TEST(special_ids)
{
    static const struct {
        const char *name;
        int32_t id;
    } want[] = {{"[BOS]", 3840}, {"<|end_of_msg|>", 3842}, {"<|open|>", 3843}, {"<|close|>", 3844}, {"<|sep|>", 3845},
                {"<|reserved_token_3848|>", 3848}, {"<|reserved_token_4080|>", 4080}, {"[PAD]", 4095},
                {"<|reserved_token_3842|>", -1}, {"<|im_end|>", -1}, {"", -1}};
    for (size_t i = 0; i < N_OF(want); i++) ck_assert_int_eq(tokenizer_special(tok, want[i].name), want[i].id);
    ck_assert_int_eq(tokenizer_ranks(tok), 3840);
    for (int32_t id = 3840; id < 4096; id++) { /* every slot has a name of its own, and its text never gives it */
        char *name;
        size_t n;
        ck_assert_int_eq(tokenizer_decode(tok, &id, 1, 1, &name, &n), ST_OK);
        ck_assert_int_eq(tokenizer_special(tok, name), id);
        struct ids v = encode(name, n);
        for (size_t i = 0; i < v.n; i++) ck_assert_int_lt(v.id[i], 3840);
        ids_free(&v);
        mem_free(name);
        ck_assert_int_eq(tokenizer_decode(tok, &id, 1, 0, &name, &n), ST_OK);
        ck_assert_uint_eq(n, 0);
        mem_free(name);
    }
}
END_TEST

START_TEST(decoding)
{
    static const int32_t bad[][3] = {{1, 2, 4096}, {-1, 2, 3}, {1, INT32_MAX, 3}};
    int32_t mixed[] = {3843, 416, 3845, 39, 72, 3842};
    char *text = NULL;
    size_t n = 99;
    for (size_t i = 0; i < N_OF(bad); i++) {
        ck_assert_int_eq(tokenizer_decode(tok, bad[i], 3, 1, &text, &n), ST_E_RANGE);
        ck_assert(text == NULL && n == 99);
    }
    ck_assert_int_eq(tokenizer_decode(tok, mixed, 6, 1, &text, &n), ST_OK);
    ck_assert_str_eq(text, "<|open|>message<|sep|>Hi<|end_of_msg|>");
    mem_free(text);
    ck_assert_int_eq(tokenizer_decode(tok, mixed, 6, 0, &text, &n), ST_OK);
    ck_assert_str_eq(text, "messageHi");
    mem_free(text);
    ck_assert_int_eq(tokenizer_decode(tok, NULL, 0, 0, &text, &n), ST_OK);
    ck_assert(n == 0 && text[0] == 0);
    mem_free(text);
    ids_free(NULL);
    tokenizer_close(NULL);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "tokenizer", 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    SUITE_TEST(tc, golden_cases);
    SUITE_TEST(tc, fuzz_vectors);
    SUITE_TEST(tc, long_runs_are_cut_at_25000_characters);
    SUITE_TEST(tc, texts_are_cut_at_400000_characters);
    SUITE_TEST(tc, long_pieces_are_not_quadratic);
    SUITE_TEST(tc, a_megabyte_of_one_class_passes);
    SUITE_TEST(tc, merges_follow_the_definition);
    SUITE_TEST(tc, special_ids);
    SUITE_TEST(tc, decoding);
}

int main(void)
{
    return suite_main_serial();
}
