#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "data/h5.h"
#include "data/utf8.h"

const char *const suite_name = "h5";

static struct h5 *fresh(const char *path)
{
    struct h5 *f;
    ck_assert_int_eq(h5_create(path, 1, &f), ST_OK);
    return f;
}

static struct h5 *reopen(struct h5 *f, const char *path)
{
    struct h5 *g;
    ck_assert_int_eq(h5_flush(f), ST_OK);
    h5_close(f);
    ck_assert_int_eq(h5_open(path, 0, &g), ST_OK);
    return g;
}

START_TEST(golden_files_are_read_exactly)
{
    struct h5 *f;
    int64_t dim[H5_MAX_RANK];
    int rank;
    float *x;
    int32_t *id;
    char *axes;
    ck_assert_int_eq(h5_open(suite_path("tests/vectors/layers_p5.h5"), 0, &f), ST_OK);
    ck_assert_int_eq(h5_read_f32(f, "/x/layer00/state", dim, &rank, &x), ST_OK);
    ck_assert_int_eq(rank, 3);
    ck_assert(dim[0] == 8 && dim[1] == 32 && dim[2] == 32);
    ck_assert(x[0] == 0.07519667f && x[(3 * 32 + 10) * 32 + 20] == 0.074144036f && x[8191] == -0.022160023f);
    mem_free(x);
    ck_assert_int_eq(h5_read_i32(f, "/x/ids", dim, &rank, &id), ST_OK);
    ck_assert_int_eq(rank, 1);
    ck_assert_int_eq(dim[0], 5);
    static const int32_t want[5] = {45, 298, 3826, 714, 599};
    ck_assert_mem_eq(id, want, sizeof want);
    mem_free(id);
    ck_assert_int_eq(h5_get_str(f, "/x/layer00/state", "axes", &axes), ST_OK);
    ck_assert_str_eq(axes, "head,k,v (KDA state after the last token)");
    mem_free(axes);
    h5_close(f);
    /* an empty 2-D dataset and integer attributes */
    int64_t eos;
    ck_assert_int_eq(h5_open(suite_path("tests/vectors/decode_traces.h5"), 0, &f), ST_OK);
    ck_assert_int_eq(h5_get_int(f, "/", "eos", &eos), ST_OK);
    ck_assert_int_eq(eos, 3842);
    ck_assert_int_eq(h5_read_i32(f, "/budget01/dflash/drafts", dim, &rank, &id), ST_OK);
    ck_assert_int_eq(rank, 2);
    ck_assert_int_eq(dim[0], 0);
    mem_free(id);
    h5_close(f);
}
END_TEST

START_TEST(arrays_of_every_kind_and_rank_come_back)
{
    const char *path = suite_tmp("arrays.h5");
    struct h5 *f = fresh(path);
    static const int8_t i8[2] = {-128, 127};
    static const int64_t i64[2] = {INT64_MIN, INT64_MAX};
    static const uint64_t u64[2] = {0, UINT64_MAX};
    const double f64[3] = {NAN, INFINITY, -0.0};
    float cube[24];
    for (int i = 0; i < 24; i++) cube[i] = (float)i / 7;
    ck_assert_int_eq(h5_write(f, "/a/i8", H5_KIND_I8, 1, (int64_t[]){2}, i8), ST_OK);
    ck_assert_int_eq(h5_write(f, "/a/i64", H5_KIND_I64, 1, (int64_t[]){2}, i64), ST_OK);
    ck_assert_int_eq(h5_write(f, "/a/u64", H5_KIND_U64, 1, (int64_t[]){2}, u64), ST_OK);
    ck_assert_int_eq(h5_write(f, "/a/f64", H5_KIND_F64, 1, (int64_t[]){3}, f64), ST_OK);
    ck_assert_int_eq(h5_write(f, "/b/c/cube", H5_KIND_F32, 3, (int64_t[]){2, 3, 4}, cube), ST_OK);
    ck_assert_int_eq(h5_write(f, "/one", H5_KIND_I32, 0, NULL, &(int32_t){42}), ST_OK);
    ck_assert_int_eq(h5_write(f, "/none", H5_KIND_F32, 2, (int64_t[]){0, 5}, NULL), ST_OK);
    ck_assert_int_eq(h5_write(f, "/one", H5_KIND_I32, 0, NULL, &(int32_t){1}), ST_E_RANGE); /* exists */
    f = reopen(f, path);
    int64_t dim[H5_MAX_RANK];
    int rank;
    void *p;
    size_t n;
    static const struct {
        const char *name;
        enum h5_kind kind;
        size_t n, bytes;
    } one[] = {{"/a/i8", H5_KIND_I8, 2, 2}, {"/a/i64", H5_KIND_I64, 2, 16}, {"/a/u64", H5_KIND_U64, 2, 16},
               {"/a/f64", H5_KIND_F64, 3, 24}};
    const void *want[] = {i8, i64, u64, f64};
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(h5_read_vec(f, one[i].name, one[i].kind, &p, &n), ST_OK);
        ck_assert_uint_eq(n, one[i].n);
        ck_assert_mem_eq(p, want[i], one[i].bytes);
        mem_free(p);
    }
    ck_assert_int_eq(h5_read(f, "/b/c/cube", H5_KIND_F32, dim, &rank, &p), ST_OK);
    ck_assert(rank == 3 && dim[0] == 2 && dim[1] == 3 && dim[2] == 4);
    ck_assert_mem_eq(p, cube, sizeof cube);
    mem_free(p);
    ck_assert_int_eq(h5_read(f, "/one", H5_KIND_I32, dim, &rank, &p), ST_OK);
    ck_assert_int_eq(rank, 0);
    ck_assert_int_eq(*(int32_t *)p, 42);
    mem_free(p);
    ck_assert_int_eq(h5_dims(f, "/none", dim, &rank), ST_OK);
    ck_assert(rank == 2 && dim[0] == 0 && dim[1] == 5);
    ck_assert_int_eq(h5_exists(f, "/b/c"), 1);
    ck_assert_int_eq(h5_exists(f, "/b/x/cube"), 0);
    ck_assert_int_eq(h5_exists(f, "b"), 0);
    h5_close(f);
}
END_TEST

START_TEST(nothing_is_clipped_and_wrong_types_are_refused)
{
    const char *path = suite_tmp("types.h5");
    struct h5 *f = fresh(path);
    ck_assert_int_eq(h5_write(f, "/i64", H5_KIND_I64, 1, (int64_t[]){1}, &(int64_t){1}), ST_OK);
    ck_assert_int_eq(h5_write(f, "/u64", H5_KIND_U64, 1, (int64_t[]){1}, &(uint64_t){1}), ST_OK);
    ck_assert_int_eq(h5_write(f, "/i8", H5_KIND_I8, 1, (int64_t[]){1}, &(int8_t){-3}), ST_OK);
    ck_assert_int_eq(h5_write(f, "/f64", H5_KIND_F64, 1, (int64_t[]){1}, &(double){1}), ST_OK);
    ck_assert_int_eq(h5_write(f, "/f32", H5_KIND_F32, 2, (int64_t[]){1, 1}, &(float){1}), ST_OK);
    ck_assert_int_eq(h5_make_str(f, "/s", 4), ST_OK);
    ck_assert_int_eq(h5_group(f, "/g"), ST_OK);
    f = reopen(f, path);
    static const struct {
        const char *name;
        enum h5_kind kind;
        enum status want;
    } cases[] = {{"/i64", H5_KIND_I32, ST_E_FORMAT}, {"/i64", H5_KIND_U64, ST_E_FORMAT},
                 {"/u64", H5_KIND_I64, ST_E_FORMAT},
                 {"/i64", H5_KIND_F64, ST_E_FORMAT}, {"/i8", H5_KIND_I32, ST_OK},        {"/i8", H5_KIND_I64, ST_OK},
                 {"/f64", H5_KIND_F32, ST_E_FORMAT}, {"/f64", H5_KIND_F64, ST_OK},
                 {"/f32", H5_KIND_F32, ST_E_FORMAT},
                 {"/s", H5_KIND_I32, ST_E_FORMAT},   {"/g", H5_KIND_I32, ST_E_FORMAT},
                 {"/absent", H5_KIND_I32, ST_E_FORMAT},
                 {"/g/absent", H5_KIND_I32, ST_E_FORMAT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *p = &p;
        size_t n = 99;
        enum status st = h5_read_vec(f, cases[i].name, cases[i].kind, &p, &n);
        ck_assert_msg(st == cases[i].want, "%s as kind %d: %s", cases[i].name, (int)cases[i].kind, err_name(st));
        if (st == ST_OK) {
            ck_assert_uint_eq(n, 1);
            if (strcmp(cases[i].name, "/i8") == 0 && cases[i].kind == H5_KIND_I32) ck_assert_int_eq(*(int32_t *)p, -3);
            mem_free(p);
        } else {
            ck_assert_uint_eq(n, 99); /* set only on success */
            ck_assert_ptr_nonnull(strstr(err_last(), cases[i].name));
        }
    }
    h5_close(f);
}
END_TEST

START_TEST(extendible_arrays_grow_over_chunks_and_files)
{
    const char *path = suite_tmp("grow.h5");
    struct h5 *f = fresh(path);
    ck_assert_int_eq(h5_make(f, "/flat", H5_KIND_I32, 0, 7), ST_OK);
    ck_assert_int_eq(h5_make(f, "/wide", H5_KIND_F32, 3, 2), ST_OK);
    int32_t next = 0;
    for (int step = 0; step < 40; step++) {
        int32_t v[40];
        float w[6] = {(float)step, 0, 0, 0, 0, (float)-step};
        for (int i = 0; i < step; i++) v[i] = next++;
        ck_assert_int_eq(h5_append(f, "/flat", H5_KIND_I32, step, v), ST_OK); /* step 0: nothing */
        ck_assert_int_eq(h5_append(f, "/wide", H5_KIND_F32, 2, w), ST_OK);
        if (step % 13 != 12) continue; /* close and go on in the stored file */
        ck_assert_int_eq(h5_flush(f), ST_OK);
        h5_close(f);
        ck_assert_int_eq(h5_open(path, 1, &f), ST_OK);
    }
    ck_assert_int_eq(h5_put(f, "/flat", H5_KIND_I32, 10, 2, (int32_t[]){-1, -2}), ST_OK);
    ck_assert_int_eq(h5_put(f, "/flat", H5_KIND_I32, next - 1, 2, (int32_t[]){-1, -2}), ST_E_RANGE);
    ck_assert_int_eq(h5_put(f, "/flat", H5_KIND_I32, -1, 1, (int32_t[]){-1}), ST_E_RANGE);
    ck_assert_int_eq(h5_make(f, "/bad", H5_KIND_I32, 0, 0), ST_E_RANGE);
    f = reopen(f, path);
    void *p;
    size_t n;
    int64_t dim[H5_MAX_RANK];
    int rank;
    ck_assert_int_eq(h5_read_vec(f, "/flat", H5_KIND_I32, &p, &n), ST_OK);
    ck_assert_uint_eq(n, 780);
    for (int32_t i = 0; i < 780; i++) ck_assert_int_eq(((int32_t *)p)[i], i == 10 ? -1 : i == 11 ? -2 : i);
    mem_free(p);
    ck_assert_int_eq(h5_read(f, "/wide", H5_KIND_F32, dim, &rank, &p), ST_OK);
    ck_assert(rank == 2 && dim[0] == 80 && dim[1] == 3);
    for (int s = 0; s < 40; s++) ck_assert(((float *)p)[6 * s] == (float)s && ((float *)p)[6 * s + 5] == (float)-s);
    mem_free(p);
    h5_close(f);
}
END_TEST

START_TEST(strings_are_utf8_or_refused)
{
    const char *path = suite_tmp("strings.h5");
    struct h5 *f = fresh(path);
    static const char *const text[] = {"plain", "", "Janet\xe2\x80\x99s \xe2\x88\x92" "5",
                                       "\xe4\xb8\x80\xf0\x9d\x9f\x8f", NULL};
    ck_assert_int_eq(h5_make_str(f, "/t/s", 2), ST_OK);
    ck_assert_int_eq(h5_append_str(f, "/t/s", 5, text), ST_OK);
    static const char *const bad[] = {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80"};
    for (size_t i = 0; i < 5; i++) {
        ck_assert_int_eq(h5_append_str(f, "/t/s", 1, &bad[i]), ST_E_FORMAT);
        ck_assert_int_eq(h5_set_str(f, "/", "bad", bad[i]), ST_E_FORMAT);
    }
    f = reopen(f, path);
    char **s;
    size_t n;
    ck_assert_int_eq(h5_read_str(f, "/t/s", &s, &n), ST_OK);
    ck_assert_uint_eq(n, 5);
    for (size_t i = 0; i < 5; i++) ck_assert_str_eq(s[i], text[i] ? text[i] : "");
    h5_free_str(s, n);
    ck_assert_int_eq(h5_read_str(f, "/t", &s, &n), ST_E_FORMAT);
    h5_close(f);
}
END_TEST

/* strings of fixed length, as h5py stores arrays of bytes; the file's names say how each list is padded */
START_TEST(strings_of_fixed_length_are_read_without_padding)
{
    static const struct {
        const char *name;
        enum status st;
        size_t n;
        const char *want[4];
    } cases[] = {
        {"/nullterm", ST_OK, 3, {"abc", "", "ab"}}, /* what follows a terminating zero is junk */
        {"/nullpad", ST_OK, 4, {"abcdefgh", "", "a b ", "\xc3\xa9\xe4\xb8\xad"}},
        {"/spacepad", ST_OK, 3, {"abcdefgh", "", " a b"}},
        {"/innerzero", ST_E_FORMAT, 0, {"string 1 contains a zero character"}},
        {"/square", ST_E_FORMAT, 0, {"/square is not a list of strings"}},
        {"/scalar", ST_E_FORMAT, 0, {"/scalar is not a list of strings"}},
        {"/numbers", ST_E_FORMAT, 0, {"/numbers is not a list of strings"}},
        {"/absent", ST_E_FORMAT, 0, {"no dataset /absent"}},
    };
    struct h5 *f;
    ck_assert_int_eq(h5_open(suite_path("tests/data/strings.h5"), 0, &f), ST_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char **s;
        size_t n;
        ck_assert_msg(h5_read_str(f, cases[i].name, &s, &n) == cases[i].st, "%s", cases[i].name);
        if (cases[i].st != ST_OK) {
            ck_assert_msg(strstr(err_last(), cases[i].want[0]), "%s", err_last());
            continue;
        }
        ck_assert_uint_eq(n, cases[i].n);
        for (size_t k = 0; k < n; k++) ck_assert_str_eq(s[k], cases[i].want[k]);
        h5_free_str(s, n);
    }
    ck_assert_int_eq(h5_is_text(f, "/nullpad"), 1);
    ck_assert_int_eq(h5_is_text(f, "/scalar"), 1);
    ck_assert_int_eq(h5_is_text(f, "/numbers"), 0);
    ck_assert_int_eq(h5_is_text(f, "/absent"), 0);
    h5_close(f);
}
END_TEST

START_TEST(utf8_is_repaired_byte_by_byte)
{
#define R "\xef\xbf\xbd"
    static const struct {
        const char *in;
        size_t n;
        const char *want;
    } cases[] = {{"abc", 3, "abc"}, {"a\0b", 3, "a" R "b"}, {"\xc3\xa9", 2, "\xc3\xa9"}, {"\xc3", 1, R},
                 {"\xe2\x82x", 3, R R "x"},
                 {"\xed\xa0\x80", 3, R R R}, {"\xc0\x80", 2, R R}, {"\xf0\x9d\x9f\x8f", 4, "\xf0\x9d\x9f\x8f"},
                 {"", 0, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *s = utf8_clean(cases[i].in, cases[i].n);
        ck_assert_str_eq(s, cases[i].want);
        ck_assert_uint_eq(utf8_bad_at(s, strlen(s)), strlen(s));
        mem_free(s);
    }
    /* every code point against its own encoder */
    for (uint32_t cp = 0; cp < 0x111000; cp++) {
        char b[4];
        size_t len = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
        uint32_t v = cp, got = 0;
        for (size_t k = len; k-- > 1; v >>= 6) b[k] = (char)(0x80 | (v & 0x3f));
        b[0] = (char)(lead[len] | v);
        int legal = cp < 0x110000 && !(cp >= 0xd800 && cp < 0xe000);
        size_t r = utf8_next(b, len, &got);
        if (legal ? (r != len || got != cp) : r != 0) ck_abort_msg("U+%X gives %zu bytes, U+%X", cp, r, got);
    }
}
END_TEST

struct row {
    double when;
    char name[8];
    int64_t big;
    int8_t flag;
    uint64_t sum;
    int32_t count;
};
static const struct h5_field row_fields[] = {{"count", H5_KIND_I32, offsetof(struct row, count), 0},
                                             {"name", H5_KIND_STR, offsetof(struct row, name), 8},
                                             {"when_s", H5_KIND_F64, offsetof(struct row, when), 0},
                                             {"flag", H5_KIND_I8, offsetof(struct row, flag), 0},
                                             {"big", H5_KIND_I64, offsetof(struct row, big), 0},
                                             {"sum", H5_KIND_U64, offsetof(struct row, sum), 0}};
static const struct h5_table row_table = {row_fields, 6, sizeof(struct row)};

static void name_of(int i, char name[8])
{
    snprintf(name, 8, "n%u\xc3\xa9", (unsigned)i % 100);
}

START_TEST(tables_come_back_and_fields_are_found_by_name)
{
    const char *path = suite_tmp("table.h5");
    struct h5 *f = fresh(path);
    ck_assert_int_eq(h5_make_rows(f, "/t", &row_table, 4), ST_OK);
    for (int i = 0; i < 30; i++) {
        struct row r = {.when = i / 3.0, .big = -i, .flag = (int8_t)i, .sum = UINT64_MAX - (uint64_t)i, .count = i};
        name_of(i, r.name);
        ck_assert_int_eq(h5_append_rows(f, "/t", &row_table, 1, &r), ST_OK);
    }
    struct row other = {.when = NAN, .name = "other", .count = -7};
    ck_assert_int_eq(h5_put_rows(f, "/t", &row_table, 29, 1, &other), ST_OK);
    ck_assert_int_eq(h5_put_rows(f, "/t", &row_table, 30, 1, &other), ST_E_RANGE);
    f = reopen(f, path);
    void *p;
    size_t n;
    ck_assert_int_eq(h5_read_rows(f, "/t", &row_table, &p, &n), ST_OK);
    ck_assert_uint_eq(n, 30);
    const struct row *r = p;
    for (int i = 0; i < 29; i++) {
        char name[8];
        name_of(i, name);
        ck_assert(r[i].when == i / 3.0 && r[i].big == -i && r[i].flag == i && r[i].count == i);
        ck_assert(r[i].sum == UINT64_MAX - (uint64_t)i);
        ck_assert_str_eq(r[i].name, name);
    }
    ck_assert(isnan(r[29].when) && r[29].count == -7);
    mem_free(p);
    /* a reader that wants fewer fields, a field that is absent, a field of another type */
    static const struct h5_field few[] = {{"count", H5_KIND_I32, 0, 0}}, absent[] = {{"colour", H5_KIND_I32, 0, 0}},
                                 narrow[] = {{"big", H5_KIND_I32, 0, 0}}, tight[] = {{"name", H5_KIND_STR, 0, 4}};
    ck_assert_int_eq(h5_read_rows(f, "/t", &(struct h5_table){few, 1, sizeof(int32_t)}, &p, &n), ST_OK);
    ck_assert_int_eq(((int32_t *)p)[5], 5);
    mem_free(p);
    ck_assert_int_eq(h5_read_rows(f, "/t", &(struct h5_table){absent, 1, sizeof(int32_t)}, &p, &n), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "colour"));
    ck_assert_int_eq(h5_read_rows(f, "/t", &(struct h5_table){narrow, 1, sizeof(int32_t)}, &p, &n), ST_E_FORMAT);
    ck_assert_int_eq(h5_read_rows(f, "/t", &(struct h5_table){tight, 1, 4}, &p, &n), ST_E_FORMAT);
    h5_close(f);
}
END_TEST

START_TEST(attributes_replace_list_and_check_kind)
{
    const char *path = suite_tmp("attrs.h5");
    struct h5 *f = fresh(path);
    char *long_text = mem_alloc(200001, 1, "text"), *s; /* beyond the 64 KiB of a compact attribute */
    memset(long_text, 'x', 200000);
    ck_assert_int_eq(h5_set_str(f, "/", "command_line", "old"), ST_OK);
    ck_assert_int_eq(h5_set_str(f, "/", "command_line", long_text), ST_OK);
    ck_assert_int_eq(h5_set_int(f, "/", "attempt", INT64_MIN), ST_OK);
    ck_assert_int_eq(h5_set_real(f, "/", "temperature", 0.1), ST_OK);
    ck_assert_int_eq(h5_set_str(f, "/", "device", "\xe2\x88\x92"), ST_OK);
    ck_assert_int_eq(h5_set_int(f, "/absent", "x", 1), ST_E_FORMAT);
    f = reopen(f, path);
    int64_t i;
    double d;
    ck_assert_int_eq(h5_get_str(f, "/", "command_line", &s), ST_OK);
    ck_assert_str_eq(s, long_text);
    mem_free(s);
    ck_assert_int_eq(h5_get_int(f, "/", "attempt", &i), ST_OK);
    ck_assert(i == INT64_MIN);
    ck_assert_int_eq(h5_get_real(f, "/", "temperature", &d), ST_OK);
    ck_assert(d == 0.1);
    ck_assert_int_eq(h5_get_int(f, "/", "temperature", &i), ST_E_FORMAT);
    ck_assert_int_eq(h5_get_str(f, "/", "attempt", &s), ST_E_FORMAT);
    ck_assert_int_eq(h5_get_str(f, "/", "absent", &s), ST_E_FORMAT);
    struct h5_attr *a;
    size_t n;
    ck_assert_int_eq(h5_list_attrs(f, "/", &a, &n), ST_OK);
    ck_assert_uint_eq(n, 4);
    static const char *const order[] = {"attempt", "command_line", "device", "temperature"};
    for (size_t k = 0; k < 4; k++) ck_assert_str_eq(a[k].name, order[k]);
    ck_assert_str_eq(a[2].s, "\xe2\x88\x92");
    h5_free_attrs(a, n);
    mem_free(long_text);
    h5_close(f);
}
END_TEST

START_TEST(files_are_whole_or_refused)
{
    const char *path = suite_tmp("whole.h5");
    struct h5 *f, *g;
    struct stat before, after;
    unlink(path);
    ck_assert_int_eq(h5_open(path, 0, &g), ST_E_FILE);
    ck_assert_int_eq(h5_create(path, 0, &f), ST_OK);
    ck_assert_int_ne(stat(path, &before), 0); /* nothing before the flush */
    ck_assert_int_eq(h5_write(f, "/x", H5_KIND_I32, 0, NULL, &(int32_t){1}), ST_OK);
    ck_assert_int_eq(h5_flush(f), ST_OK);
    ck_assert_int_eq(h5_create(path, 0, &g), ST_E_FILE); /* exists */
    /* a reader beside the living writer; what comes later does not touch what it has open */
    ck_assert_int_eq(h5_open(path, 0, &g), ST_OK);
    ck_assert_int_eq(stat(path, &before), 0);
    ck_assert_int_eq(h5_write(f, "/y", H5_KIND_I32, 0, NULL, &(int32_t){2}), ST_OK);
    ck_assert_int_eq(h5_exists(g, "/y"), 0);
    ck_assert_int_eq(h5_flush(f), ST_OK);
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert(before.st_ino != after.st_ino);
    ck_assert_int_eq(h5_exists(g, "/x"), 1);
    ck_assert_int_eq(h5_flush(g), ST_E_RANGE);
    h5_close(g);
    h5_close(f);
    h5_close(NULL);
    char tmp[600];
    snprintf(tmp, sizeof tmp, "%s.pdflash-tmp", path);
    ck_assert_int_ne(access(tmp, F_OK), 0);
    /* what stands under the temporary name: our own leftovers go, anything else stays */
    static const struct {
        const char *text;
        enum status st;
    } there[] = {{"", ST_OK}, {"\211HDF", ST_OK}, {"\211HDF\r\n\032\nhalf", ST_OK}, {"notes", ST_E_FILE},
                 {"\211HDD", ST_E_FILE}};
    for (size_t i = 0; i < sizeof there / sizeof there[0]; i++) {
        FILE *out = fopen(tmp, "wb");
        ck_assert_ptr_nonnull(out);
        fputs(there[i].text, out);
        fclose(out);
        ck_assert_int_eq(h5_check_folder(path), there[i].st);
        ck_assert_int_eq(h5_create(path, 1, &f), ST_OK);
        ck_assert_int_eq(h5_write(f, "/x", H5_KIND_I32, 0, NULL, &(int32_t){1}), ST_OK);
        ck_assert_int_eq(h5_flush(f), there[i].st);
        h5_close(f);
        ck_assert_int_eq(access(tmp, F_OK) == 0, there[i].st != ST_OK);
        unlink(tmp);
    }
    ck_assert_int_eq(stat(path, &after), 0);
    /* cut at every 64th byte: never opens, never crashes */
    for (off_t cut = 0; cut < after.st_size; cut += 64) {
        ck_assert_int_eq(h5_create(path, 1, &f), ST_OK);
        ck_assert_int_eq(h5_write(f, "/x", H5_KIND_I32, 0, NULL, &(int32_t){1}), ST_OK);
        ck_assert_int_eq(h5_flush(f), ST_OK);
        h5_close(f);
        stat(path, &after);
        if (cut >= after.st_size) break;
        ck_assert_int_eq(truncate(path, cut), 0);
        ck_assert_int_eq(h5_open(path, 0, &g), ST_E_FORMAT);
        ck_assert_int_eq(h5_open(path, 1, &g), ST_E_FORMAT);
    }
    ck_assert_int_eq(h5_open(suite_path("tests"), 0, &g), ST_E_FILE);   /* a folder */
    ck_assert_int_eq(h5_create(suite_path("tests"), 1, &g), ST_E_FILE);
    ck_assert_int_eq(h5_create(suite_tmp("no/such/dir.h5"), 1, &f), ST_OK);
    ck_assert_int_eq(h5_flush(f), ST_E_IO);
    h5_close(f);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "h5", 60);
    SUITE_TEST(tc, golden_files_are_read_exactly);
    SUITE_TEST(tc, arrays_of_every_kind_and_rank_come_back);
    SUITE_TEST(tc, nothing_is_clipped_and_wrong_types_are_refused);
    SUITE_TEST(tc, extendible_arrays_grow_over_chunks_and_files);
    SUITE_TEST(tc, strings_are_utf8_or_refused);
    SUITE_TEST(tc, strings_of_fixed_length_are_read_without_padding);
    SUITE_TEST(tc, utf8_is_repaired_byte_by_byte);
    SUITE_TEST(tc, tables_come_back_and_fields_are_found_by_name);
    SUITE_TEST(tc, attributes_replace_list_and_check_kind);
    SUITE_TEST(tc, files_are_whole_or_refused);
}

int main(void)
{
    return suite_main_serial();
}
