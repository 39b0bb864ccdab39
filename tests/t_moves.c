/* Intervals of work: what of packing and putting lies inside of computing, by times that a made-up device tells. */
#include "suite.h"

#include <math.h>

#include "pd/moves.h"

const char *const suite_name = "moves";

static double passed[64]; /* when the device came to a fence; NaN: not yet */

static double fence_s(struct ops *o, uint64_t fence)
{
    (void)o;
    return passed[fence];
}

static void add(struct moves *m, enum move_kind kind, double begin, double end)
{
    moves_add(m, kind, 7, 100, (double[]){begin, end});
}

START_TEST(what_lies_inside_is_counted)
{
    struct ops o = {.fence_s = fence_s};
    struct moves m;
    for (int i = 0; i < 64; i++) passed[i] = NAN;
    ck_assert_int_eq(moves_open(&o, &m), ST_OK);
    moves_chunk(&m, 1, 0, (uint64_t[]){1, 2}); /* its times come late */
    add(&m, MOVE_PACK, 10.5, 12.5);            /* half of it behind the chunk, and across the next */
    moves_chunk(&m, 1, 64, (uint64_t[]){3, 4});
    passed[1] = 10, passed[2] = 11, passed[3] = 12, passed[4] = 14;
    moves_chunk(&m, 1, 128, (uint64_t[]){5, 6}); /* never ends */
    add(&m, MOVE_PUT, 12.5, 13);
    add(&m, MOVE_PUT, 14, 15);
    add(&m, MOVE_PUT, 9, 14.25); /* around all */
    add(&m, MOVE_PACK, NAN, 13);
    struct moves_sum s = moves_sum(&m);
    ck_assert_int_eq(s.n[MOVE_COMPUTE], 2);
    ck_assert_int_eq(s.n[MOVE_PACK], 1);
    ck_assert_int_eq(s.n[MOVE_PUT], 3);
    ck_assert_int_eq(s.bytes[MOVE_PUT], 300);
    ck_assert_double_eq_tol(s.s[MOVE_COMPUTE], 3, 1e-9);
    ck_assert_double_eq_tol(s.s[MOVE_PACK], 2, 1e-9);
    ck_assert_double_eq_tol(s.inside_s[MOVE_PACK], 1, 1e-9);
    ck_assert_double_eq_tol(s.s[MOVE_PUT], 6.75, 1e-9);
    ck_assert_double_eq_tol(s.inside_s[MOVE_PUT], 0.5 + 0 + 3, 1e-9);
    moves_close(&m);
}
END_TEST

/* backends without fences record nothing, and the record ends where its room does */
START_TEST(the_record_is_bounded)
{
    struct ops o = {.fence_s = fence_s};
    struct moves m;
    ck_assert_int_eq(moves_open(&o, &m), ST_OK);
    moves_chunk(&m, 0, 0, (uint64_t[]){0, 0});
    ck_assert_int_eq(m.n, 0);
    for (int i = 0; i < MOVES_MAX + 5; i++) add(&m, MOVE_PUT, i, i + 1);
    ck_assert_int_eq(m.n, MOVES_MAX);
    moves_add(NULL, MOVE_PUT, 0, 0, (double[]){0, 1});
    moves_close(&m);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "moves", 30);
    SUITE_TEST(tc, what_lies_inside_is_counted);
    SUITE_TEST(tc, the_record_is_bounded);
}

int main(void)
{
    return suite_main_serial();
}
