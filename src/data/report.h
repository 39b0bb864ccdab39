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
    int is_failed_run;                  /* no row committed */
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
/* report_text - the summary for a person. */
void report_text(const struct report *p, FILE *out);
/* report_json - the summary as one JSON object; *text_p is allocated (mem_free). ST_E_NOMEM. */
enum status report_json(const struct report *p, char **text_p);
/* report_grade - all four rules with Wilson intervals, over all questions and over completed rows; then
 * the truncated, failed and missing rows, and the rows on which the rules disagree. */
void report_grade(const struct report *p, FILE *out);

#endif
