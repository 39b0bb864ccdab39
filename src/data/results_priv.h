/* results_priv - what the files of the results module share: the tables, the store (HDF5 side) and the journal.
 *
 * results.c        the writer: order of journal, payload, commit, publication; resume
 * results_place.c  what is at a path, and what may take its place
 * results_row.c    names, checks and copies of one record
 * results_store.c  results.h5 under construction
 * results_journal.c, results_replay.c  PATH.jsonl: rows to lines and back
 * results_load.c   the reader
 * results_spans.c  the table of spans, all of it
 * results_merge.c, results_rebuild.c  whole files from parts, and from a journal */
#ifndef PDFLASH_DATA_RESULTS_PRIV_H
#define PDFLASH_DATA_RESULTS_PRIV_H

#include <jansson.h>

#include "data/hold.h"
#include "data/results.h"

#define RESULTS_SCHEMA_NAME "pdflash-results"
enum { RESULTS_MAX_BLOCK = 4096, RESULTS_MAX_QUESTIONS = 1 << 26 };

/* ---- tables: rows as they are in the file ---------------------------------------------------------- */
struct results_request {
    int64_t index;
    int32_t prompt_tokens, output_tokens;
    char stop_reason[8];
    int32_t attempt;
    int8_t committed;
};
struct results_times {
    int64_t index;
    struct result_timing t;
};
struct results_moved {
    int64_t index;
    char component[8];
    struct result_transfer x;
};
struct results_verdict {
    int64_t index;
    int8_t correct[GSM8K_N];
};
extern const struct h5_table results_requests_table, results_times_table, results_moved_table, results_verdict_table,
    results_memory_table;

/* the flat per-round arrays below /accept, all int32; /accept/request (int64) goes with them */
enum { RESULTS_ROUND_COLUMNS = 5 };
extern const struct results_round_column {
    const char *name; /* dataset */
    size_t offset;    /* in struct result_round */
} results_round_column[RESULTS_ROUND_COLUMNS];

/* ---- names and rows -------------------------------------------------------------------------------- */
int results_stop_parse(const char *name, size_t n); /* enum result_stop or -1; n: most bytes of name */
int results_is_done(enum result_stop s);            /* ended by EOS or length */
/* results_timing_at - the i-th of the 8 time stamps and its name ("admit_s"); NULL past the end. */
const char *results_timing_at(struct result_timing *t, int i, double **value_p);
/* results_check_setup - ranges of a setup; results_check_row - ranges and counts of a row. Both report what cannot be as
 * `kind`: ST_E_RANGE of a caller, ST_E_FORMAT of a file; where names the file, and the line of a journal. */
enum status results_check_setup(enum status kind, const char *where, const struct results_setup *u);
enum status results_check_row(enum status kind, const char *where, const struct result_row *row, int64_t questions,
                              int32_t block);
/* results_own_row - a deep copy with cleaned UTF-8, graded; release with results_drop_row. */
enum status results_own_row(const struct result_row *row, struct result_row *copy_p);
void results_drop_row(struct result_row *row);
/* results_check_span - ranges of span i, likewise; attempt: the largest. */
enum status results_check_span(enum status kind, const char *where, size_t i, const struct result_span *s, int32_t attempt,
                               int64_t questions);
enum status results_load_spans(const struct h5 *f, struct results *r); /* none is legal */
/* results_key_is_own - 1 for the root attributes that the module writes itself. */
int results_key_is_own(const char *key);
/* results_key_ok - ST_E_RANGE when the module writes this root attribute itself, or the key is unusable. */
enum status results_key_ok(const char *key);

/* ---- store ----------------------------------------------------------------------------------------- */
struct results_store {
    struct h5 *f;
    char *config_hash;
    int64_t questions;
    int32_t block, attempt;
    int64_t rows, n_tokens, n_rounds; /* stored so far, superseded rows included */
    int64_t done;                     /* questions with a row that ended by EOS or length */
    int64_t *histogram;               /* [block] */
    int64_t *slot;                    /* [questions] stored row of the committed row of a question, -1: none */
    int8_t *stop;                     /* [questions] how that row ended */
    int32_t *tried;                   /* [questions] attempt of the last stored row, 0: none */
};
enum status results_store_new(const char *path, const struct results_setup *setup, int32_t attempt,
                              struct results_store *s_p);
enum status results_store_open(const char *path, struct results_store *s_p);
void results_store_close(struct results_store *s); /* a cleared struct is legal */
/* results_store_append - payload, then the commit mark; row is owned and graded (results_own_row). */
enum status results_store_append(struct results_store *s, const struct result_row *row);
/* results_store_attrs - set attributes of an object ("/" or "/plan"). */
enum status results_store_attrs(struct results_store *s, const char *object, const struct result_attr *a, size_t n);
enum status results_store_plan(struct results_store *s, const char *json, const struct result_attr *a, size_t n);
enum status results_store_memory(struct results_store *s, const struct result_memory *m, size_t n);
enum status results_store_spans(struct results_store *s, const struct result_span *v, size_t n);
enum status results_store_attempt(struct results_store *s, int32_t attempt);
enum status results_store_complete(struct results_store *s, int complete);

/* ---- journal --------------------------------------------------------------------------------------- */
struct results_journal {
    int fd; /* -1: closed; locked while open */
    char *path;
    int made; /* 1: there was none before it was opened */
};
char *results_journal_path(const char *path); /* PATH.jsonl, mem_free; NULL: no memory */
/* results_journal_open - create or open and lock; ST_E_FILE when another writer holds it. */
enum status results_journal_open(const char *path, struct results_journal *j_p);
void results_journal_close(struct results_journal *j);
/* results_journal_forget - before close: remove a journal that opening made and nothing filled. */
void results_journal_forget(struct results_journal *j);
/* results_journal_lines - whole lines; results_journal_trim - drop a torn last line. */
enum status results_journal_lines(const struct results_journal *j, int64_t *lines_p);
enum status results_journal_trim(struct results_journal *j);
enum status results_journal_empty(struct results_journal *j);
/* results_journal_add - append one object as a line and fsync; takes over the reference to o, which may be
 * NULL (out of memory). */
enum status results_journal_add(struct results_journal *j, json_t *o);

/* objects for results_journal_add; NULL when out of memory */
json_t *results_json_run(const struct results_store *s);
json_t *results_json_row(const struct result_row *row);
json_t *results_json_attrs(const struct result_attr *a, size_t n);
json_t *results_json_plan(const char *json, const struct result_attr *a, size_t n);
json_t *results_json_memory(const struct result_memory *m, size_t n);
json_t *results_json_spans(const struct result_span *s, size_t n);
json_t *results_json_finish(int complete);
/* results_parse_spans - the spans of a line; *s_p is allocated (mem_free). ST_E_FORMAT names path and line. */
enum status results_parse_spans(const char *path, int64_t line, const json_t *o, struct result_span **s_p, size_t *n_p);

/* what a scan of a journal calls, one of them a line; NULL members are skipped */
struct results_replay {
    void *ctx;
    enum status (*run)(void *ctx, const struct results_setup *setup, int32_t attempt);
    enum status (*row)(void *ctx, const struct result_row *row); /* owned and graded; dropped after the call */
    enum status (*attrs)(void *ctx, const struct result_attr *a, size_t n);
    enum status (*plan)(void *ctx, const char *json, const struct result_attr *a, size_t n);
    enum status (*memory)(void *ctx, const struct result_memory *m, size_t n);
    enum status (*spans)(void *ctx, const struct result_span *s, size_t n);
    int trims; /* 1: the caller trims the journal afterwards, which is where a torn last line is warned of */
};
/* results_journal_lock - lock a journal by its own name for reading; *fd_p is the caller's to close. ST_E_FILE: absent,
 * or a writer is alive. */
enum status results_journal_lock(const char *journal, int *fd_p);
/* results_journal_replay - all whole lines in order; a torn last line is left out with a warning. */
enum status results_journal_replay(const char *path, const struct results_replay *r);
/* results_store_from_journal - a store, in memory until h5_flush, that will be path and holds what journal says; trims
 * as in struct results_replay. */
enum status results_store_from_journal(const char *path, const char *journal, int trims, struct results_store *s_p);

/* ---- what is at a path ----------------------------------------------------------------------------- */
enum results_holding {
    RESULTS_AT_NONE,
    RESULTS_AT_OURS, /* of this program: the file says so, or the journal beside a file that cannot be read any more */
    RESULTS_AT_OTHER /* never replaced */
};
/* results_place - what a symbolic link leads to (said in the log), path itself otherwise; *place_p: mem_free. */
enum status results_place(const char *path, char **place_p);
enum results_holding results_file_holds(const char *path, const char *journal);
/* results_check_place - ST_E_FILE unless path and its journal are free, or hold results and force is set; remedy ends
 * the message. */
enum status results_check_place(const char *path, int force, const char *remedy);
/* results_check_journal - ST_E_FORMAT when the journal's name beside path is taken by a file of another kind.
 * results_is_journal - 1: a regular file that begins as journals do. */
enum status results_check_journal(const char *path);
int results_is_journal(const char *path);
/* results_look - whether results_load takes path, without an error line: *why_p is what it found, as hold_end. */
enum status results_look(const char *path, const char **why_p);
/* results_claim - hold path for a whole file made from elsewhere: its journal is locked, made if need be.
 * results_publish - the store becomes path; fresh: the file that becomes the journal beside it, NULL: none. What a kill
 * leaves is a whole file, old or new, beside its own journal or an empty one, from which --resume goes on.
 * results_release - unlock; a journal that the claim made and nothing filled is removed. A cleared claim is legal. */
struct results_claim {
    struct results_journal journal;
};
enum status results_claim(const char *path, struct results_claim *c_p);
enum status results_publish(struct results_store *s, struct results_claim *c, const char *fresh);
void results_release(struct results_claim *c);

#endif
