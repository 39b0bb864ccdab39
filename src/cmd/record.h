/* record - the leader's side of a run's results: opens results.h5, turns finished requests into rows, feeds
 * the line of progress, and writes what the ranks report at the end. Used by one rank only. Local. */
#ifndef PDFLASH_CMD_RECORD_H
#define PDFLASH_CMD_RECORD_H

#include "ckpt/chat.h"
#include "cmd/progress.h"
#include "cmd/setup.h"
#include "data/prompts.h"
#include "data/results.h"
#include "pd/run.h"

struct record_facts { /* provenance, all text zero-terminated */
    const char *run_id, *command_line, *build, *topology, *mpi_library, *osc, *host_list, *start_utc, *isa;
    char config_hash[17], model_hash[17], draft_hash[17], tokenizer_hash[17], prompts_hash[17], binary_hash[17];
};

/* what tells one configuration from another, by root attribute; the values are a run's own and NULL here */
enum { RECORD_IDENTITY = 19 };
extern const struct results_identity record_identity[RECORD_IDENTITY];

struct record; /* opaque */

/* record_open - start or continue --out. prompts and tokenizer stay the caller's.
 * n: rows of the run; skip: [n] out, 1: done already, or outside --shard. */
enum status record_open(const struct options *o, const struct setup *s, const struct record_facts *f,
                        const struct prompts *p, int n, struct tokenizer *t, uint8_t *skip, struct record **r_p);
/* record_idle - 1: resumed with nothing left to do (results_idle); only record_committed, record_rows and record_close follow. */
int record_idle(const struct record *r);
void record_close(struct record *r);
/* the sink of decode_role */
struct run_sink record_sink(struct record *r);
/* record_spans - when the ranks were at work; before record_finish. st: [ranks], span[i].rank names one of them. */
enum status record_spans(struct record *r, const struct rank_stats *st, const struct span *span, size_t n);
/* record_finish - per-rank figures, plan, end time, completeness. *complete_p: all rows, or those of the shard,
 * are there. */
enum status record_finish(struct record *r, const struct rank_stats *st, int n_ranks, const char *plan_json,
                          const char *osc, int interrupted, int *complete_p);
/* record_committed - rows in the file, those of earlier attempts included; record_unfinished - of them, rows of this attempt
 * that failed or were aborted. */
int record_committed(const struct record *r);
int record_rows(const struct record *r); /* of the run, or of its shard */
int record_unfinished(const struct record *r);
/* record_state - counts of this attempt so far; the seconds are the caller's to fill. */
struct progress_state record_state(const struct record *r);

#endif
