/* fewshot - worked examples and a question in the wording of well-known GSM8K evaluations, as plain text.
 *
 *   openai    Q "\n" A "\n\n" for each example, then Q "\n": the data set's own training text, without its end token
 *   lm-eval   "Question: " Q "\nAnswer: " A "\n\n" for each example, then "Question: " Q "\nAnswer:"
 *   sglang    the same text; what differs is which examples: lm-eval takes them from train, SGLang's benchmark the
 *             first rows of the file that it grades
 * Q and A as they are in the file, calculator marks <<...>> and "#### N" included. Local, no I/O.
 * Source: grade-school-math dataset.py; lm-evaluation-harness tasks/gsm8k/gsm8k.yaml with its default delimiters;
 * SGLang benchmark/gsm8k/bench_sglang.py. */
#ifndef PDFLASH_DATA_FEWSHOT_H
#define PDFLASH_DATA_FEWSHOT_H

#include "data/questions.h"

enum fewshot_format { FEWSHOT_OPENAI, FEWSHOT_LM_EVAL, FEWSHOT_SGLANG, FEWSHOT_N };

/* fewshot_name - "openai", "lm-eval", "sglang". */
const char *fewshot_name(enum fewshot_format format);
/* fewshot_text - the examples in order and the question; *text_p is allocated (mem_free), *n_p its bytes.
 * ST_E_NOMEM. */
enum status fewshot_text(enum fewshot_format format, const struct questions *examples, const char *question,
                         char **text_p, size_t *n_p);

#endif
