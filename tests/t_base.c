#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/rng.h"

const char *const suite_name = "base";

START_TEST(exit_codes_are_the_documented_ones)
{
    static const struct {
        enum status st;
        int code;
    } want[] = {{ST_OK, 0},        {ST_E_USAGE, 1},    {ST_E_LAUNCH, 1},     {ST_E_CONFIG, 2},
                {ST_E_FORMAT, 2},  {ST_E_HANDSHAKE, 2}, {ST_E_FAULT, 3},     {ST_E_MPI, 3},
                {ST_E_WATCHDOG, 4}, {ST_E_INCOMPLETE, 4}, {ST_E_INTERRUPTED, 75}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        ck_assert_int_eq(err_exit_code(want[i].st), want[i].code);
    for (int i = 0; i < ST_N; i++) ck_assert_int_gt(strlen(err_text((enum status)i)), 1);
    ck_assert_int_eq(err_exit_code((enum status)999), 3);
}
END_TEST

START_TEST(sha256_matches_fips_vectors)
{
    static const struct {
        const char *text, *hex;
    } want[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        for (size_t step = 1; step < 70; step += 17) { /* pieces must not matter */
            struct sha256 s;
            char hex[65];
            sha256_init(&s);
            size_t n = strlen(want[i].text);
            for (size_t at = 0; at < n; at += step)
                sha256_add(&s, want[i].text + at, n - at < step ? n - at : step);
            sha256_hex(&s, hex);
            ck_assert_str_eq(hex, want[i].hex);
        }
}
END_TEST

/* the known answers that come with the generator's paper */
START_TEST(philox_gives_the_published_words)
{
    static const struct { uint32_t key[2], counter[4], out[4]; } row[] = {
        {{0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    uint32_t out[4];
    rng_philox(row[_i].key, row[_i].counter, out);
    ck_assert_mem_eq(out, row[_i].out, sizeof out);
    double u = rng_philox_unit((uint64_t)row[_i].key[1] << 32 | row[_i].key[0], row[_i].counter);
    ck_assert(u >= 0 && u < 1 && floor(u * 0x1p32) == row[_i].out[0]);
}
END_TEST

START_TEST(rng_is_a_pure_function_and_uniform)
{
    double sum = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        double u = rng_unit(7, 3, i);
        ck_assert(u >= 0 && u < 1);
        ck_assert(u == rng_unit(7, 3, i));
        sum += u;
    }
    ck_assert(sum / 10000 > 0.49 && sum / 10000 < 0.51);
    ck_assert_uint_ne(rng_u64(1, 2, 3), rng_u64(1, 3, 2));
    ck_assert_uint_ne(rng_u64(1, 2, 3), rng_u64(2, 1, 3));
}
END_TEST

START_TEST(buffers_are_zeroed_aligned_and_counted)
{
    struct buf b;
    uint64_t before = buf_allocs();
    ck_assert_int_eq(buf_alloc(&b, 1000, "test"), ST_OK);
    ck_assert_uint_eq(buf_allocs(), before + 1);
    ck_assert_uint_eq((uintptr_t)b.p % 64, 0);
    for (int i = 0; i < 1000; i++) ck_assert_int_eq(((char *)b.p)[i], 0);
    struct buf v = buf_view(b.p, 10, PLACE_HOST);
    buf_free(&v);
    buf_free(&b);
    buf_free(&b);
    buf_free(NULL);
    ck_assert_ptr_null(mem_alloc(SIZE_MAX / 2, 4, "too much"));
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "base", 20);
    SUITE_TEST(tc, exit_codes_are_the_documented_ones);
    SUITE_TEST(tc, sha256_matches_fips_vectors);
    SUITE_TEST(tc, rng_is_a_pure_function_and_uniform);
    tcase_add_loop_test(tc, philox_gives_the_published_words, 0, 3);
    SUITE_TEST(tc, buffers_are_zeroed_aligned_and_counted);
}

int main(void)
{
    return suite_main_serial();
}
