/* The segmented projection at K3's real width: six taps of 7168 over eight stages, random fc, against the one product
 * of the 43008 concatenated inputs. fc has 308 million weights, so they are made when needed, from their place. */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/draft_weights.h"
#include "plan/split.h"

const char *const suite_name = "draft_width";

enum {
    HIDDEN = 7168,
    TAPS = 6,
    WIDE = TAPS * HIDDEN,
    PP = 8,
    ROWS = 2,
    PART = 256 /* fc rows made at once */,
    EXACT = 24
};

#define OK(expr) ck_assert_int_eq((expr), ST_OK)

static struct ops o;
static struct config c;
static struct draft_config d;
static float *h;    /* [ROWS][WIDE] taps side by side */
static uint16_t *w; /* [PART][WIDE] */

/* ---- weights ------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* 16 random bits to a BF16 value of either sign, 2^-10 <= |w| < 2^-2 */
static uint16_t value(uint64_t bits)
{
    return (uint16_t)((bits & 0x8000) | (117 + (bits >> 7 & 7)) << 7 | (bits & 127));
}

/* to[n][cols] := rows [row0, row0 + n), columns [col0, col0 + cols) of fc; both multiples of 4 */
static void make(int row0, int n, int col0, int cols, uint16_t *to)
{
    for (int r = 0; r < n; r++) {
        uint64_t at = ((uint64_t)(row0 + r) * WIDE + (uint64_t)col0) / 4;
        for (int k = 0; k < cols; k += 4) {
            uint64_t bits = mix((at + (uint64_t)k / 4 + 1) * 0x9e3779b97f4a7c15u);
            for (int j = 0; j < 4; j++) to[(int64_t)r * cols + k + j] = value(bits >> 16 * j);
        }
    }
}

static float bf16(uint16_t bits)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)bits << 16};
    return v.f;
}

/* ---- the two ways -------------------------------------------------------------------------------------- */

/* one stage: a draft that holds the fc columns of its taps only */
static void stage_draft_open(struct draft *x, int n_taps, const int *tap)
{
    memset(x, 0, sizeof *x);
    x->o = &o;
    x->c = d;
    x->spec.max_rows = ROWS;
    OK(o.mem_new(&o, &x->part, (size_t)ROWS * HIDDEN * 4, "partial"));
    for (int i = 0; i < n_taps; i++) {
        struct mat *m = &x->fc[tap[i]];
        OK(o.mat_new(&o, m, MAT_BF16, HIDDEN, HIDDEN, 0, 0));
        for (int r = 0; r < HIDDEN; r += PART) {
            make(r, PART, tap[i] * HIDDEN, HIDDEN, w);
            o.mat_put_bf16(&o, m, r, PART, w, HIDDEN);
        }
    }
    OK(o.prepare(&o, ROWS));
}

/* acc [ROWS][HIDDEN] after all stages, and after the first three taps */
static void segmented(float *acc, float *three)
{
    static const int want[PP] = {0, 1, 0, 1, 1, 1, 1, 1}; /* stages 0 and 2 pass on what they have */
    int has = 0, seen = 0;
    for (int s = 0; s < PP; s++) {
        struct draft x;
        float *tap = malloc((size_t)ROWS * HIDDEN * 4);
        int index[CONFIG_MAX_TAPS], n = split_taps(&d, c.n_layers, PP, s, index);
        ck_assert_int_eq(n, want[s]);
        stage_draft_open(&x, n, index);
        for (int i = 0; i < n; i++) {
            ck_assert_int_eq(index[i], seen++); /* the taps ascend along the stages */
            for (int r = 0; r < ROWS; r++) memcpy(tap + r * HIDDEN, h + r * WIDE + index[i] * HIDDEN, HIDDEN * 4);
            OK(draft_project(&x, index[i], tap, ROWS, acc, has));
            has = 1;
            if (seen == 3) memcpy(three, acc, (size_t)ROWS * HIDDEN * 4);
        }
        for (int k = 0; k < TAPS; k++) o.mat_free(&o, &x.fc[k]);
        o.mem_free(&o, &x.part);
        free(tap);
    }
    ck_assert_int_eq(seen, TAPS);
}

/* y [ROWS][PART] := inputs [0, k) of the rows in w, leaves of `leaf` inputs */
static void product(int k, int leaf, float *y)
{
    struct mat m = {0};
    OK(o.mat_new(&o, &m, MAT_BF16, PART, k, leaf, 0));
    o.mat_put_bf16(&o, &m, 0, PART, w, WIDE);
    OK(o.prepare(&o, ROWS));
    o.linear(&o, &m, h, WIDE, ROWS, y, PART);
    o.mat_free(&o, &m);
}

/* sum of |h w| of one output; its own rounding is far below 1 % */
static double size_of(const float *x, const uint16_t *row)
{
    float s[16] = {0};
    double all = 0;
    for (int k = 0; k < WIDE; k += 16)
        for (int j = 0; j < 16; j++) s[j] += fabsf(x[k + j] * bf16(row[k + j]));
    for (int j = 0; j < 16; j++) all += s[j];
    return all * 1.01;
}

static double exact(const float *x, const uint16_t *row)
{
    double s = 0;
    for (int k = 0; k < WIDE; k++) s += (double)x[k] * bf16(row[k]);
    return s;
}

/* ---- the test ------------------------------------------------------------------------------------------- */

static void setup(void)
{
    OK(ops_cpu_open(ACT_FP32, NULL, &o));
    OK(config_load(suite_path("tests/data/k3-config"), &c));
    OK(draft_config_load(suite_path("tests/data/k3-dflash-config"), &c, &d));
    ck_assert(c.hidden == HIDDEN && d.hidden == HIDDEN && d.n_taps == TAPS && c.n_layers == 93);
    h = malloc((size_t)ROWS * WIDE * sizeof *h);
    w = malloc((size_t)PART * WIDE * sizeof *w);
    for (int i = 0; i < ROWS * WIDE; i++) h[i] = (float)((double)(mix((uint64_t)i + 77) >> 11) * 0x1p-52 - 1);
    for (int r = 0; r < ROWS; r++) h[r * WIDE + 3 * HIDDEN + 100 + r] *= 500; /* large models have such channels */
}

static void teardown(void)
{
    free(h);
    free(w);
    o.close(&o);
}

struct worst {
    double diff, over_bound, sum, ref;
};

/* outputs [row0, row0 + PART): two orders of adding WIDE products differ by at most 2 K u / (1 - K u) times the sum of
 * their magnitudes (u = 2^-24; K roundings on the way of any product: itself, WIDE additions, one a tap). Against the
 * exact sum each is off by half of that. In practice roundings cancel, so differences are of the order of the root of
 * K. */
static void compare(int row0, const float *acc, const float *y, struct worst *v)
{
    const double k = WIDE + TAPS + 1, u = 0x1p-24, bound = 2 * k * u / (1 - k * u);
    double off = 0; /* from the exact sum, over its bound */
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < PART; i++) {
            double a = acc[r * HIDDEN + row0 + i], b = y[r * PART + i],
                   most = bound * size_of(h + r * WIDE, w + (int64_t)i * WIDE);
            double diff = fabs(a - b);
            v->diff = fmax(v->diff, diff);
            v->over_bound = fmax(v->over_bound, diff / most);
            v->sum += diff;
            v->ref += fabs(b);
            if (row0 || i >= EXACT) continue;
            double e = exact(h + r * WIDE, w + (int64_t)i * WIDE);
            off = fmax(off, fmax(fabs(a - e), fabs(b - e)) / (most / 2));
        }
    ck_assert_msg(v->over_bound <= 1,
                  "outputs %d to %d: partials and product differ by %g of what two orders of adding may", row0,
                  row0 + PART - 1, v->over_bound);
    ck_assert_msg(off <= 1, "an output is off the exact sum by %g of what it may", off);
}

START_TEST(partials_of_eight_stages_are_the_product_at_k3_width)
{
    float *acc = malloc((size_t)ROWS * HIDDEN * 4), *three = malloc((size_t)ROWS * HIDDEN * 4),
          *y = malloc((size_t)ROWS * PART * 4);
    struct worst v = {0, 0, 0, 0};
    segmented(acc, three);
    for (int row0 = 0; row0 < HIDDEN; row0 += PART) {
        make(row0, PART, 0, WIDE, w);
        product(WIDE, 0, y); /* one sum over all inputs */
        compare(row0, acc, y, &v);
        if (row0) continue;
        /* three leaves of one tap each are an odd run, added in order: what the stages do, bit for bit */
        product(3 * HIDDEN, HIDDEN, y);
        for (int r = 0; r < ROWS; r++) ck_assert_mem_eq(y + r * PART, three + r * HIDDEN, PART * 4);
        /* six are not: the tree adds (0 1 2) to (3 4 5), the stages one after the other. Same bound, other bits. */
        int same = 1;
        product(WIDE, HIDDEN, y);
        compare(row0, acc, y, &v);
        for (int r = 0; r < ROWS; r++) same &= memcmp(y + r * PART, acc + r * HIDDEN, PART * 4) == 0;
        ck_assert(!same);
    }
    printf("7168 wide, 6 taps, 8 stages: partials and product differ by at most %.2g, mean relative error %.2g; %.2g "
           "of the bound\n",
           v.diff, v.sum / v.ref, v.over_bound);
    ck_assert(v.sum > 0 && v.sum / v.ref < 1e-5);
    free(acc);
    free(three);
    free(y);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "draft width", 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, partials_of_eight_stages_are_the_product_at_k3_width);
}

int main(void)
{
    return suite_main_serial();
}
