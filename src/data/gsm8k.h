/* gsm8k - the four public ways to grade a GSM8K reply, and the interval of an accuracy.
 *
 * All four are always computed and stored; a report names the one it quotes.
 *   openai            first `#### (-?[0-9.,]+)`, commas dropped; compared as text with the same of the gold answer
 *   lm_eval_strict    the same pattern; then "," and "$", everything to the last "#### " and one final "."
 *                     dropped on both sides; compared as text without case (the gold side is not matched)
 *   lm_eval_flexible  last `(-?[$0-9.,]{2,})|(-?[0-9]+)`; normalised and compared as lm_eval_strict
 *   sglang            commas dropped, last run of digits read as an integer literal; no sign, no decimals
 * A rule that finds nothing extracts GSM8K_INVALID and counts as wrong. The quirks are kept: "18." fails
 * openai, "$29.00" fails flexible, "18.00" is 0 and "-5" is 5 under sglang. Scanners are hand-written: the
 * patterns are ASCII, so bytes of UTF-8 text can be scanned; only sglang's digits include the other Unicode
 * decimal digits, which then make the literal invalid. Local, no I/O.
 * Source: openai/grade-school-math dataset.py; lm-evaluation-harness tasks/gsm8k/gsm8k.yaml (version 3), filters
 * and exact_match; SGLang benchmark/gsm8k/bench_sglang.py. */
#ifndef PDFLASH_DATA_GSM8K_H
#define PDFLASH_DATA_GSM8K_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum gsm8k_rule { GSM8K_OPENAI, GSM8K_LM_EVAL_STRICT, GSM8K_LM_EVAL_FLEXIBLE, GSM8K_SGLANG, GSM8K_N };
#define GSM8K_INVALID "[invalid]"

/* gsm8k_rule_name - "openai", "lm_eval_strict", "lm_eval_flexible", "sglang". */
const char *gsm8k_rule_name(enum gsm8k_rule rule);

struct gsm8k_grade {
    char *extracted[GSM8K_N]; /* what the rule read from the reply, normalised; GSM8K_INVALID if nothing */
    int8_t correct[GSM8K_N];  /* 1: equals the truth under the rule */
};

/* gsm8k_extract - what a rule reads from a reply of n bytes; *out_p is allocated (mem_free).
 * Returns ST_OK (also for GSM8K_INVALID), ST_E_NOMEM. */
enum status gsm8k_extract(enum gsm8k_rule rule, const char *text, size_t n, char **out_p);
/* gsm8k_reference - what a rule compares with, from the gold answer; as gsm8k_extract except that the
 * lm_eval rules only normalise. */
enum status gsm8k_reference(enum gsm8k_rule rule, const char *gold, size_t n, char **out_p);
/* gsm8k_truth - the final answer of a gold solution ("1234" for "... #### 1,234"). ST_E_FORMAT without one. */
enum status gsm8k_truth(const char *gold, char **out_p);
/* gsm8k_grade - all rules; release with gsm8k_grade_free. gold without "#### N" makes every rule wrong. */
enum status gsm8k_grade(const char *reply, size_t n, const char *gold, struct gsm8k_grade *g_p);
void gsm8k_grade_free(struct gsm8k_grade *g); /* NULL and a cleared struct are legal */

/* gsm8k_wilson - 95 % Wilson score interval of k correct out of n; both NaN when n is 0. */
void gsm8k_wilson(int64_t k, int64_t n, double *low_p, double *high_p);

#endif
