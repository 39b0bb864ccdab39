#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "data/gsm8k.h"

const char *const suite_name = "gsm8k";

#define NONE GSM8K_INVALID

/* what the four rules read, and whether each is right against the gold answer "#### GOLD" */
struct golden {
    const char *reply;
    const char *read[GSM8K_N]; /* openai, lm_eval_strict, lm_eval_flexible, sglang */
    const char *gold;
    int8_t right[GSM8K_N];
};

static void check_golden(const struct golden *g)
{
    char gold[128];
    struct gsm8k_grade got;
    snprintf(gold, sizeof gold, "He has 3 + 4 = <<3+4=7>>7, so\n#### %s", g->gold);
    ck_assert_int_eq(gsm8k_grade(g->reply, strlen(g->reply), gold, &got), ST_OK);
    for (int r = 0; r < GSM8K_N; r++) {
        ck_assert_msg(strcmp(got.extracted[r], g->read[r]) == 0, "'%s' under %s: read '%s', wanted '%s'", g->reply,
                      gsm8k_rule_name((enum gsm8k_rule)r), got.extracted[r], g->read[r]);
        ck_assert_msg(got.correct[r] == g->right[r], "'%s' against '%s' under %s: verdict %d", g->reply, g->gold,
                      gsm8k_rule_name((enum gsm8k_rule)r), got.correct[r]);
    }
    gsm8k_grade_free(&got);
}

/* the golden table, row by row and cell by cell */
START_TEST(golden_table)
{
    static const struct golden table[] = {
        {"#### 1,234", {"1234", "1234", "1234", "1234"}, "1,234", {1, 1, 1, 1}},
        {"#### 18.", {"18.", "18", "18", "18"}, "18", {0, 1, 1, 1}},
        {"#### $18", {NONE, NONE, "18", "18"}, "18", {0, 0, 1, 1}},
        {"#### 18.00", {"18.00", "18.00", "18.00", "0"}, "18", {0, 0, 0, 0}},
        {"#### -5", {"-5", "-5", "-5", "5"}, "-5", {1, 1, 1, 1}},
        {"#### 5", {"5", "5", "5", "5"}, "-5", {0, 0, 0, 1}}, /* sglang reads the truth -5 as 5 too */
        {"#### \xe2\x88\x92" "5", {NONE, NONE, "5", "5"}, "-5", {0, 0, 0, 1}},
        {"#### 05", {"05", "05", "05", NONE}, "5", {0, 0, 0, 0}},
        {"pays $29.00 total", {NONE, NONE, "29.00", "0"}, "29", {0, 0, 0, 0}},
        {"total is 5.", {NONE, NONE, "5", "5"}, "5", {0, 0, 1, 1}},
        {"**18**", {NONE, NONE, "18", "18"}, "18", {0, 0, 1, 1}},
        {"####18", {NONE, NONE, "18", "18"}, "18", {0, 0, 1, 1}},
        {"#### 18\n\nQuestion: 7", {"18", "18", "7", "7"}, "18", {1, 1, 0, 0}},
        {"#### 2,880,000", {"2880000", "2880000", "2880000", "2880000"}, "2,880,000", {1, 1, 1, 1}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) check_golden(&table[i]);
}
END_TEST

START_TEST(other_cases)
{
    static const struct golden table[] = {
        {"", {NONE, NONE, NONE, NONE}, "5", {0, 0, 0, 0}},
        {"no number at all", {NONE, NONE, NONE, NONE}, "5", {0, 0, 0, 0}},
        {"3 apples and 4 pears", {NONE, NONE, "4", "4"}, "4", {0, 0, 1, 1}},
        {"1/2", {NONE, NONE, "2", "2"}, "2", {0, 0, 1, 1}},
        {"50%", {NONE, NONE, "50", "50"}, "50", {0, 0, 1, 1}},
        {"1e3", {NONE, NONE, "3", "3"}, "3", {0, 0, 1, 1}},
        {"\\boxed{18}", {NONE, NONE, "18", "18"}, "18", {0, 0, 1, 1}},
        {"#### **18**", {NONE, NONE, "18", "18"}, "18", {0, 0, 1, 1}},
        {"\xef\xbc\x91\xef\xbc\x98", {NONE, NONE, NONE, NONE}, "18", {0, 0, 0, 0}}, /* full-width digits */
        {"18 \xef\xbc\x91", {NONE, NONE, "18", NONE}, "18", {0, 0, 1, 0}},          /* the last run is no literal */
        {"7 1\xd9\xa3", {NONE, NONE, "1", NONE}, "7", {0, 0, 0, 0}},                 /* one run, partly Arabic */
        {"x\xc2\xb2 = 9\xc2\xb2", {NONE, NONE, "9", "9"}, "9", {0, 0, 1, 1}}, /* superscripts: no decimal digits */
        {"#### x #### 12", {"12", "12", "12", "12"}, "12", {1, 1, 1, 1}},            /* first match, not first mark */
        {"##### 12", {"12", "12", "12", "12"}, "12", {1, 1, 1, 1}},
        {"#### 1 #### 2", {"1", "1", "2", "2"}, "2", {0, 0, 1, 1}},
        {"#### -", {NONE, NONE, NONE, NONE}, "5", {0, 0, 0, 0}},
        {"#### ", {NONE, NONE, NONE, NONE}, "5", {0, 0, 0, 0}},
        {"####  5", {NONE, NONE, "5", "5"}, "5", {0, 0, 1, 1}}, /* two spaces */
        {"#### --5", {NONE, NONE, "-5", "5"}, "-5", {0, 0, 1, 1}},
        {"#### .", {".", "", NONE, NONE}, "5", {0, 0, 0, 0}},
        {"5...", {NONE, NONE, "5..", "5"}, "5", {0, 0, 0, 1}},
        {"5 ...", {NONE, NONE, "..", "5"}, "5", {0, 0, 0, 1}}, /* a run of dots is flexible's last match */
        {"5 $,", {NONE, NONE, "", "5"}, "5", {0, 0, 0, 1}},
        {"-$5", {NONE, NONE, "-5", "5"}, "-5", {0, 0, 1, 1}},
        {"5-3", {NONE, NONE, "-3", "3"}, "-3", {0, 0, 1, 1}},
        {"00", {NONE, NONE, "00", "0"}, "0", {0, 0, 0, 1}},
        {"#### 18\n", {"18", "18", "18", "18"}, "18", {1, 1, 1, 1}},
        {"#### 18,", {"18", "18", "18", "18"}, "18", {1, 1, 1, 1}},
        {"#### 18.,", {"18.", "18", "18", "18"}, "18", {0, 1, 1, 1}}, /* the comma goes first, then the final dot */
        {"#### 1,2,3", {"123", "123", "123", "123"}, "123", {1, 1, 1, 1}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) check_golden(&table[i]);
}
END_TEST

START_TEST(long_integers_stay_integers)
{
    enum { N = 4301 };
    char *s = mem_alloc(N + 1, 1, "digits"), *out;
    memset(s, '7', N);
    static const struct {
        size_t n;
        char first;
        size_t want; /* length of the answer, 0: invalid */
    } cases[] = {{25, '7', 25}, {4300, '7', 4300}, {4301, '7', 0}, {25, '0', 0}};
    for (size_t i = 0; i < 4; i++) {
        s[0] = cases[i].first;
        ck_assert_int_eq(gsm8k_extract(GSM8K_SGLANG, s, cases[i].n, &out), ST_OK);
        if (cases[i].want)
            ck_assert_uint_eq(strlen(out), cases[i].want);
        else
            ck_assert_str_eq(out, NONE);
        mem_free(out);
    }
    memset(s, '0', N);
    ck_assert_int_eq(gsm8k_extract(GSM8K_SGLANG, s, N, &out), ST_OK);
    ck_assert_str_eq(out, "0");
    mem_free(out);
    mem_free(s);
    ck_assert_int_eq(gsm8k_extract(GSM8K_N, "5", 1, &out), ST_E_RANGE);
}
END_TEST

START_TEST(gold_answers)
{
    static const struct {
        const char *gold, *truth;
        const char *reference[GSM8K_N];
    } table[] = {
        {"2+2=<<2+2=4>>4\n#### 4", "4", {"4", "4", "4", "4"}},
        {"big\n#### 2,880,000", "2880000", {"2880000", "2880000", "2880000", "2880000"}},
        {"loss\n#### -12", "-12", {"-12", "-12", "-12", "12"}},
        {"dot\n#### 7.", "7.", {"7.", "7", "7", "7"}},
        {"#### 1 then\n#### 2", "1", {"1", "2", "2", "2"}}, /* search takes the first, normalising the last */
        {"Price $#### 5", "5", {"5", "5", "5", "5"}},
        {"A,B: ##,## 5\n#### 6\n", "6", {"6", "6\n", "6\n", "6"}},
        {"no mark, Total 9", NULL, {NONE, "no mark total 9", "no mark total 9", "9"}},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char *s;
        enum status st = gsm8k_truth(table[i].gold, &s);
        ck_assert_int_eq(st, table[i].truth ? ST_OK : ST_E_FORMAT);
        if (st == ST_OK) {
            ck_assert_str_eq(s, table[i].truth);
            mem_free(s);
        }
        for (int r = 0; r < GSM8K_N; r++) {
            ck_assert_int_eq(gsm8k_reference((enum gsm8k_rule)r, table[i].gold, strlen(table[i].gold), &s), ST_OK);
            ck_assert_str_eq(s, table[i].reference[r]);
            mem_free(s);
        }
    }
    /* without a final answer nothing is right, not even the same text */
    struct gsm8k_grade g;
    ck_assert_int_eq(gsm8k_grade("9", 1, "9", &g), ST_OK);
    for (int r = 0; r < GSM8K_N; r++) ck_assert_int_eq(g.correct[r], 0);
    gsm8k_grade_free(&g);
    gsm8k_grade_free(&g);
    gsm8k_grade_free(NULL);
}
END_TEST

START_TEST(bytes_that_are_no_text_do_no_harm)
{
    char *s;
    static const char raw[] = "12\0#### 3\xff" "4\0";
    ck_assert_int_eq(gsm8k_extract(GSM8K_OPENAI, raw, sizeof raw - 1, &s), ST_OK);
    ck_assert_str_eq(s, "3");
    mem_free(s);
    ck_assert_int_eq(gsm8k_extract(GSM8K_SGLANG, raw, sizeof raw - 1, &s), ST_OK);
    ck_assert_str_eq(s, "4");
    mem_free(s);
    ck_assert_int_eq(gsm8k_extract(GSM8K_LM_EVAL_FLEXIBLE, raw, 3, &s), ST_OK);
    ck_assert_str_eq(s, "12");
    mem_free(s);
}
END_TEST

START_TEST(wilson_interval)
{
    /* closed form evaluated with 50 digits */
    static const struct {
        int64_t k, n;
        double low, high;
    } table[] = {{0, 64, 0.0000000000000000, 0.0566240597928053},
                {61, 64, 0.8710034625990631, 0.9839309832137070},
                {64, 64, 0.9433759402071946, 1.0000000000000000},
                {1, 1, 0.2065493143772374, 1.0000000000000000},
                {5, 10, 0.2365930905125640, 0.7634069094874361},
                {1250, 1319, 0.9343188006500622, 0.9584563630894043}};
    double low, high;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        gsm8k_wilson(table[i].k, table[i].n, &low, &high);
        ck_assert_msg(fabs(low - table[i].low) < 1e-12 && fabs(high - table[i].high) < 1e-12,
                      "%lld of %lld: %.15f %.15f", (long long)table[i].k, (long long)table[i].n, low, high);
    }
    gsm8k_wilson(0, 0, &low, &high);
    ck_assert(isnan(low) && isnan(high));
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "gsm8k", 20);
    SUITE_TEST(tc, golden_table);
    SUITE_TEST(tc, other_cases);
    SUITE_TEST(tc, long_integers_stay_integers);
    SUITE_TEST(tc, gold_answers);
    SUITE_TEST(tc, bytes_that_are_no_text_do_no_harm);
    SUITE_TEST(tc, wilson_interval);
}

int main(void)
{
    return suite_main_serial();
}
