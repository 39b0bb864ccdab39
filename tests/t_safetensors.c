#include "suite.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/safetensors.h"

const char *const suite_name = "safetensors";

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

/* ---- writing checkpoints, good and broken ------------------------------------------------------------ */

/* a fresh empty directory of this test */
static const char *fresh(void)
{
    static char dir[512];
    char cmd[1100];
    snprintf(dir, sizeof dir, "%s", suite_tmp("dir"));
    snprintf(cmd, sizeof cmd, "rm -rf '%s' && mkdir '%s'", dir, dir);
    ck_assert_int_eq(system(cmd), 0);
    return dir;
}

static FILE *create(const char *dir, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    return f;
}

/* header length field (-1: the true one), header, then `data` bytes 0, 1, 2, ... */
static void write_shard(const char *dir, const char *name, int64_t length, const char *header, size_t data)
{
    FILE *f = create(dir, name);
    uint64_t n = length < 0 ? strlen(header) : (uint64_t)length;
    for (int i = 0; i < 8; i++) fputc((int)(n >> (8 * i) & 255), f);
    fputs(header, f);
    for (size_t i = 0; i < data; i++) fputc((int)(i & 255), f);
    fclose(f);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    FILE *f = create(dir, name);
    fputs(text, f);
    fclose(f);
}

static void expect_refusal(const char *dir, enum status want, const char *needle, const char *why)
{
    struct safetensors *s = NULL;
    enum status st = safetensors_open(dir, &s);
    ck_assert_msg(st == want, "%s: %s", why, err_name(st));
    ck_assert_ptr_null(s);
    ck_assert_msg(strstr(err_last(), needle) != NULL, "%s: message lacks \"%s\": %s", why, needle, err_last());
}

/* ---- one file ---------------------------------------------------------------------------------------- */

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"
#define T(dtype, shape, offsets) "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

START_TEST(a_single_file_is_read)
{
    const char *dir = fresh();
    struct safetensors *s;
    struct tensor t;
    write_shard(
        dir, "model.safetensors", -1,
        "{\"__metadata__\":{\"format\":\"pt\"}," B "," A ",\"e\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":"
        "[24,24]},\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[32,33]},\"w\":{\"dtype\":\"I64\",\"shape\":"
        "[1,1,1,1,1],\"data_offsets\":[33,41]}}  ",
        41);
    ck_assert_int_eq(safetensors_open(dir, &s), ST_OK);
    ck_assert_uint_eq(safetensors_count(s), 5);
    ck_assert_uint_eq(safetensors_bytes_total(s), 41);
    static const char *const name[] = {"b", "a", "e", "s", "w"};
    for (size_t i = 0; i < 5; i++) ck_assert_str_eq(safetensors_name(s, i), name[i]);
    ck_assert(safetensors_has(s, "a") && !safetensors_has(s, "c") && !safetensors_has(s, "__metadata__"));
    ck_assert_int_eq(safetensors_get(s, "a", ST_DT_F32, 2, (const int64_t[]){2, -1}, &t), ST_OK);
    ck_assert(t.dtype == ST_DT_F32 && t.n_dims == 2 && t.dim[0] == 2 && t.dim[1] == 3);
    for (int i = 0; i < 24; i++) ck_assert_int_eq(((const uint8_t *)t.data)[i], i);
    ck_assert_int_eq(safetensors_get(s, "b", ST_DT_BF16, 1, (const int64_t[]){4}, &t), ST_OK);
    for (int i = 0; i < 8; i++) ck_assert_int_eq(((const uint8_t *)t.data)[i], 24 + i);
    ck_assert_int_eq(safetensors_get(s, "e", ST_DT_U8, 2, (const int64_t[]){0, 7}, &t), ST_OK);
    ck_assert_int_eq(safetensors_get(s, "s", ST_DT_U8, 0, NULL, &t), ST_OK);
    ck_assert_int_eq(*(const uint8_t *)t.data, 32);
    safetensors_close(s);
    safetensors_close(NULL);
}
END_TEST

START_TEST(getting_checks_dtype_and_shape)
{
    static const struct {
        const char *name;
        enum st_dtype dtype;
        int n_dims;
        int64_t dim[4];
        const char *needle;
    } bad[] = {
        {"a", ST_DT_BF16, 2, {2, 3}, "a is F32 [2, 3], expected BF16 [2, 3]"},
        {"a", ST_DT_U8, 2, {2, 3}, "expected U8 [2, 3]"},
        {"a", ST_DT_F32, 2, {3, 2}, "expected F32 [3, 2]"},
        {"a", ST_DT_F32, 2, {-1, 2}, "expected F32 [any, 2]"},
        {"a", ST_DT_F32, 1, {6}, "expected F32 [6]"},
        {"a", ST_DT_F32, 3, {2, 3, 1}, "expected F32 [2, 3, 1]"},
        {"a", ST_DT_F32, 0, {0}, "expected F32 []"},
        {"w", ST_DT_U8, 1, {8}, "w is I64 [1], expected U8 [8]"},
        {"A", ST_DT_F32, 2, {2, 3}, "no tensor A, expected F32 [2, 3]"},
        {"", ST_DT_F32, 2, {2, 3}, "no tensor "},
    };
    const char *dir = fresh();
    struct safetensors *s;
    write_shard(dir, "model.safetensors", -1,
                "{" A "," B ",\"w\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[32,40]}}", 40);
    ck_assert_int_eq(safetensors_open(dir, &s), ST_OK);
    for (size_t i = 0; i < N_OF(bad); i++) {
        struct tensor t = {.n_dims = -7};
        ck_assert_int_eq(safetensors_get(s, bad[i].name, bad[i].dtype, bad[i].n_dims, bad[i].dim, &t), ST_E_FORMAT);
        ck_assert_msg(strstr(err_last(), bad[i].needle) != NULL, "case %zu: %s", i, err_last());
        ck_assert_ptr_nonnull(strstr(err_last(), "model.safetensors"));
        ck_assert_int_eq(t.n_dims, -7);
    }
    safetensors_close(s);
}
END_TEST

static const struct {
    int64_t length; /* header length field, -1: true */
    const char *header;
    size_t data;
    const char *needle;
} broken[] = {
    /* header */
    {1000, "{" A "}", 24, "header length 1000"},
    {INT64_MAX, "{" A "}", 24, "header length 9223372036854775807"},
    {20, "{" A "}", 24, "JSON"},
    {0, "", 0, "JSON"},
    {-1, "{" A, 24, "JSON"},
    {-1, "[]", 0, "not a JSON object"},
    {-1, "{" A "," A "}", 24, "duplicate object key"},
    {-1, "{" A ",\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[24,32]}}", 32, "duplicate object key"},
    /* dtype and shape */
    {-1, T("\"F4\"", "[1]", "[0,4]"), 4, "tensor t: missing or unknown dtype"},
    {-1, T("7", "[1]", "[0,4]"), 4, "tensor t: missing or unknown dtype"},
    {-1, "{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor t: missing or unknown dtype"},
    {-1, "{\"t\":7}", 4, "tensor t: missing or unknown dtype"},
    {-1, "{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, "tensor t: shape is not a list"},
    {-1, T("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "tensor t: shape is not a list"},
    {-1, T("\"U8\"", "[4.0]", "[0,4]"), 4, "tensor t: size 0 of the shape"},
    {-1, T("\"U8\"", "[2,-2]", "[0,4]"), 4, "tensor t: size 1 of the shape"},
    {-1, T("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "tensor t: size 1 of the shape"}, /* 2^66 bytes */
    {-1, T("\"F32\"", "[2]", "[0,4]"), 4, "F32 [2] takes 8"},
    {-1, T("\"F32\"", "[1]", "[0,8]"), 8, "8 bytes between data_offsets"},
    {-1, T("\"BF16\"", "[0,5]", "[0,2]"), 2, "BF16 [0, 5] takes 0"},
    /* offsets */
    {-1, T("\"U8\"", "[4]", "[0]"), 4, "data_offsets are not"},
    {-1, T("\"U8\"", "[4]", "[0,4,8]"), 4, "data_offsets are not"},
    {-1, T("\"U8\"", "[4]", "\"0,4\""), 4, "data_offsets are not"},
    {-1, T("\"U8\"", "[4]", "[0.0,4.0]"), 4, "data_offsets are not"},
    {-1, T("\"U8\"", "[4]", "[4,0]"), 4, "data_offsets are not"},
    {-1, T("\"U8\"", "[4]", "[-4,0]"), 4, "data_offsets are not"},
    {-1, T("\"U8\"", "[4]", "[0,4]"), 3, "data_offsets [0, 4] leave the data section of 3 bytes"},
    {-1, T("\"U8\"", "[4]", "[9223372036854775803,9223372036854775807]"), 4, "leave the data section"},
    {-1, "{" A ",\"c\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[20,28]}}", 28, "tensors a and c overlap"},
    {-1, "{" A ",\"c\":{\"dtype\":\"U8\",\"shape\":[24],\"data_offsets\":[0,24]}}", 24, "overlap"},
    {-1, "{" A ",\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}}", 24, "tensors a and c overlap"},
    {-1, "{" A "}", 25, "no tensor owns the bytes from 24 on"},
    {-1, "{" B "}", 32, "no tensor owns the bytes from 0 on"},
    {-1, "{}", 8, "no tensor owns the bytes from 0 on"},
};

START_TEST(broken_files_are_refused)
{
    const char *dir = fresh();
    write_shard(dir, "model.safetensors", broken[_i].length, broken[_i].header, broken[_i].data);
    expect_refusal(dir, ST_E_FORMAT, broken[_i].needle, broken[_i].header);
    ck_assert_ptr_nonnull(strstr(err_last(), "model.safetensors"));
}
END_TEST

/* every prefix of a good file is refused, whatever it cuts */
START_TEST(truncation_is_always_seen)
{
    const char *dir = fresh();
    char path[600];
    struct stat sb;
    struct safetensors *s = NULL;
    write_shard(dir, "model.safetensors", -1, "{" A "," B "}", 32);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ck_assert_int_eq(safetensors_open(dir, &s), ST_OK);
    safetensors_close(s);
    ck_assert_int_eq(stat(path, &sb), 0);
    for (off_t n = sb.st_size - 1; n >= 0; n--) {
        s = NULL;
        ck_assert_int_eq(truncate(path, n), 0);
        ck_assert_int_eq(safetensors_open(dir, &s), ST_E_FORMAT);
        ck_assert_ptr_null(s);
    }
}
END_TEST

/* ---- index and shards -------------------------------------------------------------------------------- */

#define INDEX(map) "{\"metadata\":{\"total_size\":32},\"weight_map\":{" map "}}"
#define IN(tensor, shard) "\"" tensor "\":\"" shard ".safetensors\""
#define U(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"

static const struct {
    const char *index, *one, *two; /* one, two: headers of the shards, NULL: no such file */
    enum status want;
    const char *needle;
} sharded[] = {
    {INDEX(IN("a", "one") "," IN("b", "two")), U("a"), U("b"), ST_OK, ""},
    {INDEX(IN("a", "one") "," IN("b", "two")), U("a"), NULL, ST_E_FILE, "two.safetensors: cannot open"},
    {INDEX(IN("a", "one") "," IN("b", "two")), U("a"), U("c"), ST_E_FORMAT,
     "tensor b should be in two.safetensors, but it is in no shard"},
    {INDEX(IN("a", "two") "," IN("b", "one")), U("a"), U("b"), ST_E_FORMAT, "but it is in one.safetensors"},
    {INDEX(IN("a", "one") "," IN("b", "two")), U("a"), U("a"), ST_E_FORMAT, "tensor a is in "},
    {INDEX(IN("a", "one")), "{" A "," B "}", NULL, ST_E_FORMAT, "tensor b is in "},
    {INDEX(IN("a", "one") "," IN("a", "two")), U("a"), U("a"), ST_E_FORMAT, "duplicate object key"},
    {INDEX("\"a\":\"../model.safetensors\""), U("a"), NULL, ST_E_FORMAT, "\"../model.safetensors\" is not the name"},
    {INDEX("\"a\":\"/etc/passwd\""), U("a"), NULL, ST_E_FORMAT, "\"/etc/passwd\" is not the name"},
    {INDEX("\"a\":\"..\""), U("a"), NULL, ST_E_FORMAT, "\"..\" is not the name"},
    {INDEX("\"a\":\"\""), U("a"), NULL, ST_E_FORMAT, "weight_map.a"},
    {INDEX("\"a\":7"), U("a"), NULL, ST_E_FORMAT, "weight_map.a"},
    {INDEX(""), U("a"), NULL, ST_E_FORMAT, "weight_map"},
    {"{\"weight_map\":[]}", U("a"), NULL, ST_E_FORMAT, "weight_map"},
    {"{}", U("a"), NULL, ST_E_FORMAT, "weight_map"},
    {"{\"weight_map\":", U("a"), NULL, ST_E_FORMAT, "JSON"},
};

START_TEST(index_and_shards_must_agree)
{
    const char *dir = fresh();
    struct safetensors *s;
    write_text(dir, "model.safetensors.index.json", sharded[_i].index);
    if (sharded[_i].one)
        write_shard(dir, "one.safetensors", -1, sharded[_i].one, strlen(sharded[_i].one) > 70 ? 32 : 4);
    if (sharded[_i].two) write_shard(dir, "two.safetensors", -1, sharded[_i].two, 4);
    if (sharded[_i].want != ST_OK) {
        expect_refusal(dir, sharded[_i].want, sharded[_i].needle, sharded[_i].index);
        return;
    }
    ck_assert_int_eq(safetensors_open(dir, &s), ST_OK);
    ck_assert_uint_eq(safetensors_count(s), 2);
    safetensors_close(s);
}
END_TEST

START_TEST(files_that_are_not_there)
{
    const char *dir = fresh();
    char path[600];
    expect_refusal(suite_path("inputs/nowhere"), ST_E_FILE, "nowhere/model.safetensors", "no folder");
    expect_refusal(dir, ST_E_FILE, "model.safetensors: cannot open", "empty folder");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    mkdir(path, 0777);
    expect_refusal(dir, ST_E_FILE, "not a regular file", "a folder of that name");
}
END_TEST

/* ---- the shipped checkpoints ------------------------------------------------------------------------- */

START_TEST(nano_is_read)
{
    struct safetensors *s;
    struct tensor t, u;
    ck_assert_int_eq(safetensors_open(suite_path("inputs/k3-nano"), &s), ST_OK);
    ck_assert_uint_eq(safetensors_bytes_total(s), 28159040); /* metadata.total_size of its index */
    for (size_t i = 0; i < safetensors_count(s); i++) ck_assert_int_eq(safetensors_has(s, safetensors_name(s, i)), 1);
    ck_assert_int_eq(safetensors_get(s, "language_model.model.embed_tokens.weight", ST_DT_BF16, 2,
                                     (const int64_t[]){4096, 256}, &t), ST_OK);
    ck_assert_int_eq(safetensors_get(s, "language_model.model.layers.0.self_attn.A_log", ST_DT_F32, 1,
                                     (const int64_t[]){32}, &u), ST_OK);
    for (int h = 8; h < 32; h++) { /* zero padding behind the 8 heads, by its position in the file */
        float v;
        memcpy(&v, (const char *)u.data + h * 4, 4);
        ck_assert(v == 0);
    }
    ck_assert_int_eq(safetensors_get(s, "language_model.model.embed_tokens.weight", ST_DT_BF16, 2,
                                     (const int64_t[]){4096, 7168}, &t), ST_E_FORMAT);
    safetensors_close(s);
    ck_assert_int_eq(safetensors_open(suite_path("inputs/k3-nano-dflash"), &s), ST_OK);
    ck_assert_int_eq(safetensors_get(s, "fc.weight", ST_DT_BF16, 2, (const int64_t[]){256, 6 * 256}, &t), ST_OK);
    safetensors_close(s);
}
END_TEST

START_TEST(hash_follows_content)
{
    static const struct {
        const char *header;
        size_t data;
        long poke; /* data byte that is changed, -1: none */
    } file[] = {{"{\"a\":{\"dtype\":\"U8\",\"shape\":[40000],\"data_offsets\":[0,40000]}}", 40000, -1},
                {"{\"a\":{\"dtype\":\"U8\",\"shape\":[40000],\"data_offsets\":[0,40000]}}", 40000, -1},
                {"{\"b\":{\"dtype\":\"U8\",\"shape\":[40000],\"data_offsets\":[0,40000]}}", 40000, -1},
                {"{\"a\":{\"dtype\":\"U8\",\"shape\":[40,1000],\"data_offsets\":[0,40000]}}", 40000, -1},
                {"{\"a\":{\"dtype\":\"U8\",\"shape\":[40000],\"data_offsets\":[0,40000]}}", 40000, 5},
                {"{\"a\":{\"dtype\":\"U8\",\"shape\":[40000],\"data_offsets\":[0,40000]}}", 40000, 20000},
                {"{\"a\":{\"dtype\":\"U8\",\"shape\":[40000],\"data_offsets\":[0,40000]}}", 40000, 39999}};
    uint64_t h[N_OF(file)];
    for (size_t i = 0; i < N_OF(file); i++) {
        const char *dir = fresh();
        char path[600];
        struct safetensors *s;
        write_shard(dir, "model.safetensors", -1, file[i].header, file[i].data);
        if (file[i].poke >= 0) {
            snprintf(path, sizeof path, "%s/model.safetensors", dir);
            FILE *f = fopen(path, "r+b");
            fseek(f, 8 + (long)strlen(file[i].header) + file[i].poke, SEEK_SET);
            fputc(file[i].poke % 256 ^ 1, f);
            fclose(f);
        }
        ck_assert_int_eq(safetensors_open(dir, &s), ST_OK);
        h[i] = safetensors_hash(s);
        safetensors_close(s);
    }
    ck_assert(h[0] == h[1]);
    for (size_t i = 1; i < N_OF(file); i++)
        for (size_t j = i + 1; j < N_OF(file); j++) ck_assert_msg(h[i] != h[j], "files %zu and %zu", i, j);
}
END_TEST

/* as many names as one shard of the released model, four times over: opening and finding stay quick */
START_TEST(many_tensors)
{
    enum { N = 20000 };
    const char *dir = fresh();
    char *header = malloc(N * 96), name[64];
    size_t n = 1;
    struct safetensors *s;
    struct tensor t;
    header[0] = '{';
    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(header + n, "%s\"layers.%d.w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[%d,%d]}",
                             i ? "," : "", i, 2 * i, 2 * i + 2);
    strcpy(header + n, "}");
    write_shard(dir, "model.safetensors", -1, header, 2 * N);
    free(header);
    ck_assert_int_eq(safetensors_open(dir, &s), ST_OK);
    ck_assert_uint_eq(safetensors_count(s), N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "layers.%d.w", i);
        ck_assert_int_eq(safetensors_get(s, name, ST_DT_U8, 1, (const int64_t[]){2}, &t), ST_OK);
        ck_assert_int_eq(*(const uint8_t *)t.data, 2 * i % 256);
    }
    safetensors_close(s);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "safetensors", 120);
    SUITE_TEST(tc, a_single_file_is_read);
    SUITE_TEST(tc, getting_checks_dtype_and_shape);
    tcase_add_loop_test(tc, broken_files_are_refused, 0, N_OF(broken));
    SUITE_TEST(tc, truncation_is_always_seen);
    tcase_add_loop_test(tc, index_and_shards_must_agree, 0, N_OF(sharded));
    SUITE_TEST(tc, files_that_are_not_there);
    SUITE_TEST(tc, nano_is_read);
    SUITE_TEST(tc, hash_follows_content);
    SUITE_TEST(tc, many_tensors);
}

int main(void)
{
    return suite_main_serial();
}
