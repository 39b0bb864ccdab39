/* report - what `show` and `grade` print: a summary computed from a loaded results file.
 *
 * Counts first, then seconds. Nothing is printed that was not measured: NaN is "not measured" in text and
 * null in JSON. Local, pure except for the printing.
 * Definitions (printed too). Verify steps are those of requests that ended by EOS or length.
 *   accept_length (tau)  sum(accepted + 1) / steps, before EOS or budget clipping; the prefill's first token
 *                        is in no step. accept_length_request_mean: mean over requests of their own tau
 *   emitted_per_step     sum(emitted) / steps, after clipping
 *   accept_by_position   [i] = share of steps with accepted >= i + 1 (survival)
 *   decode_s             wall time from the first decode start to the last decode end, summed over attempts
 *   total_s              wall time from the start of the attempt to the last decode end, summed over attempts
 *   output_tps_*         output tokens (the prefill's first token included) of the requests whose times were
 *                        measured / decode_s or total_s
 *   correct              rows right under a rule; its rate is over all questions of the run, truncated, failed
 *                        and missing ones included; beside it the same over completed (EOS) rows only
 *   overlap              in steady state (from the first decode start of an attempt to its last prefill end, so both
 *                        groups have work; the rest is cut off): transfer_s = sum over requests of transfer_start ..
 *                        transfer_done; any_s the part of it in which any request is in prefill (first_chunk ..
 *                        prefill_done) or decode (start .. end); others_s the same without the request itself
 *   missing              questions without a committed row */
#ifndef PDFLASH_DATA_REPORT_H
#define PDFLASH_DATA_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "data/results.h"

/* spans of one request: queue admit..first_chunk, prefill ..prefill_done, transfer transfer_start..transfer_done,
 * start_wait ..start, decode start..end, first_token admit..first_token, request admit..end */
enum { REPORT_PHASES = 7 };
struct report_phase {
    const char *name;
    int64_t n;              /* rows in which both ends were measured */
    double mean, p50, max;  /* seconds; NaN when n is 0 */
};
struct report_overlap {
    int64_t transfers;      /* with a part inside the window */
    double window_s, transfer_s, any_s, others_s;
};
/* One rank in one attempt, from its spans: when it was at work, in what. */
struct report_rank {
    int32_t attempt, rank, stage, tp_rank;
    const char *role;
    int64_t spans;               /* of the file */
    double busy[RESULT_SPAN_N];  /* seconds, summed over its spans of a kind */
    double begin, end;           /* of its first and last span */
};

/* The seed's decision rule. The run is CORRECT when it is whole (every question has a row that ended by EOS or limit),
 * no check of its tokens fails, and at least one could be made:
 *   identity  output ids equal those of the reference, row by row; made when both files record the same model,
 *             tokenizer, prompts and options that change greedy tokens, and draw alike, without drawn drafts, if at all
 *   train-64  all rows right under the openai rule; made when the run is of the shipped fixture (k3-nano) on the
 *             shipped train questions, which it knows by heart, and takes the likeliest tokens (temperature 0)
 * gain = decode output tokens/s of the run / that of the reference. The rule: correct and gain > 1: CONTINUE with PD
 * tuning. Incorrect, or no gain: DIAGNOSE. When correctness or gain could not be measured: UNDECIDED, saying what is
 * missing. A reference is an earlier result (a none-run, say) or a JSON file with external figures. */
enum report_verdict { REPORT_CONTINUE, REPORT_DIAGNOSE, REPORT_UNDECIDED, REPORT_VERDICT_N };
enum report_check { REPORT_FAILS = 0, REPORT_HOLDS = 1, REPORT_NOT_MADE = -1 };
struct report_reference {
    const char *name;           /* path, for messages */
    const struct report *report; /* NULL: external figures */
    double output_tps_decode, accept_length; /* NaN: not given */
};
struct report_decision {
    enum report_verdict verdict;
    const char *reference;
    enum report_check whole, identity, train64, correct;
    int64_t compared, identical, first_different; /* rows; question index, -1: none */
    int64_t train_right, train_rows, train_cut;   /* train_cut: wrong and cut off at --max-new */
    int is_itself;                                /* the reference is the same run */
    double tps, reference_tps, gain;              /* NaN: not measured */
    double accept_length, reference_accept_length;
    char why[160];    /* of the verdict, one clause */
    char note[512];   /* why identity was not made; "" */
    const char *train_note; /* why train-64 does not apply; "" */
    char caveat[512]; /* what else differs between the two runs; "" */
};
struct report {
    int64_t questions, committed, completed, truncated, failed, missing;
    int64_t correct[GSM8K_N], correct_completed[GSM8K_N];
    int64_t prompt_tokens, output_tokens, steps, proposed, accepted, emitted;
    int32_t n_bins;                     /* accepted drafts 0 .. n_bins-1 */
    const int64_t *histogram;           /* [n_bins] */
    double accept_length, accept_length_request_mean, emitted_per_step; /* NaN when there is no step */
    double decode_s, total_s, output_tps_decode, output_tps_total;      /* NaN when not measured */
    int64_t bytes[RESULT_COMP_N], puts[RESULT_COMP_N];
    double transfer_s[RESULT_COMP_N];   /* sum over requests; NaN when never measured */
    struct report_phase phase[REPORT_PHASES];
    struct report_overlap overlap;
    const char *spec, *topology, *config_hash; /* of the latest attempt; "" when the file does not say */
    int is_failed_run;                  /* no row ended by EOS or length */
    const struct report_decision *decision; /* set by the caller; NULL: no reference was given */
    const struct results *results;      /* must outlive the report */
};

/* report_make - compute. Returns ST_OK, ST_E_NOMEM. */
enum status report_make(const struct results *r, struct report *p_p);
/* report_overlap - the sweep behind report.overlap; part of report_make. ST_E_NOMEM. */
enum status report_overlap(const struct results *r, struct report_overlap *o_p);
/* report_accept_at - share of steps with accepted >= i + 1; NaN without steps. i < n_bins - 1. */
double report_accept_at(const struct report *p, int i);
/* report_attempt - committed rows of attempt i (1 ..), its topology and run id ("not recorded" when the file does not
 * say); 0 past the last attempt that is listed (the first REPORT_ATTEMPTS are). */
enum { REPORT_ATTEMPTS = 1000 };
struct report_attempt { int64_t rows; const char *topology, *run_id; };
int report_attempt(const struct report *p, int32_t i, struct report_attempt *a_p);
/* report_ranks - every rank that recorded spans, by attempt and rank; *r_p is allocated (mem_free), *n_p 0 when the
 * file has none. ST_E_NOMEM. */
enum status report_ranks(const struct report *p, struct report_rank **r_p, size_t *n_p);
/* report_attr - a root attribute as text (buf when it is a number); "" when the file does not say. */
const char *report_attr(const struct report *p, const char *key, char *buf, size_t n);

/* report_decide - apply the rule; the reference must outlive the decision. */
void report_decide(const struct report *p, const struct report_reference *ref, struct report_decision *d_p);
/* report_same_tokens - rows done in both files, and how many of them have the same output ids; *first_p: index of the
 * first that differs, -1. Whether the files may be compared is the caller's concern. */
void report_same_tokens(const struct report *a, const struct report *b, int64_t *compared_p, int64_t *identical_p,
                        int64_t *first_p);
/* report_external - figures of a JSON object: output_tps_decode (wanted), accept_length; what `show --json` prints will
 * do. ST_E_FORMAT names path and key. */
enum status report_external(const char *path, struct report_reference *ref_p);
const char *report_verdict_name(enum report_verdict v); /* "continue", "diagnose", "undecided" */
const char *report_check_name(enum report_check c);     /* "fails", "holds", "not made" */
void report_decision_text(const struct report_decision *d, FILE *out);

/* report_text - the summary for a person. */
void report_text(const struct report *p, FILE *out);
/* report_json - the summary as one JSON object; *text_p is allocated (mem_free). ST_E_NOMEM. */
enum status report_json(const struct report *p, char **text_p);
/* report_grade - all four rules with Wilson intervals, over all questions and over completed rows; then
 * the truncated, failed and missing rows, and the rows on which the rules disagree. */
void report_grade(const struct report *p, FILE *out);

/* ---- files; write errors stay in ferror(out) ----------------------------------------------------------- */
struct report_file {
    const char *path; /* of the results, as the user named it */
    const struct report *report;
};
/* report_html - one self-contained page (inline CSS and SVG, no script, no network; well-formed XML as well as HTML) on
 * all files: comparison when there are several, then each in full. Each number carries its key in `show --json`
 * (data-k, after the number of the file and a colon) and its value (data-v). ST_E_NOMEM. */
enum status report_html(const struct report_file *f, size_t n, FILE *out);
/* report_trace - Chrome trace event format (JSON object with traceEvents), for Perfetto: a process for the requests,
 * one for their transfers and one for the ranks of every attempt; complete events in order of time. ST_E_NOMEM. */
enum status report_trace(const struct report_file *f, FILE *out);
/* report_csv - a heading and one line a committed row; RFC 4180 with \n; empty: not measured. Text that a spreadsheet
 * would run as a formula gets a leading apostrophe. */
void report_csv(const struct report_file *f, size_t n, FILE *out);

#endif
