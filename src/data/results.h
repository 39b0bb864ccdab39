/* results - results.h5, schema version 1: one row per finished request, durable as soon as it is appended.
 *
 * Layout (row r = r-th request to finish; `index` is the question's index in prompts.h5):
 *   /requests              table: index, prompt_tokens, output_tokens, stop_reason, attempt, committed
 *   /text/question, response, gold, error            variable-length UTF-8 [rows]
 *   /tokens/flat int32, /tokens/offsets int64 [rows+1]            output ids
 *   /accept/request, round, proposed, accepted, emitted, bonus    one element a verify round
 *   /accept/offsets int64 [rows+1], /accept/histogram int64 [block]: rounds with 0, 1, ... accepted drafts,
 *                          over requests that ended by EOS or length (the others may be redone)
 *   /timing                table: index and time stamps in seconds since the start of the attempt; NaN = not measured
 *   /transfer              table: index, component, bytes, puts, seconds, checksum; RESULT_COMP_N rows a request
 *   /memory                table, one row a rank: bytes; -1 = there is none or it was not measured
 *   /grading/verdict       table: index and 0/1 under each rule; /grading/<rule>_extracted UTF-8 [rows]
 *   /occupancy             table: when each rank was at work (struct result_span), all attempts that came to an end;
 *                          absent when none was recorded
 *   /plan                  UTF-8 [0 or 1]: the plan as JSON; attributes from the caller
 * Root attributes: schema "pdflash-results", schema_version, config_hash, questions, block, attempt, complete,
 * and whatever the caller sets (spec, topology, command_line, ...). Attributes set again by a later attempt describe
 * that one, like /plan and /memory; what must be known of every attempt is set under a key of its own
 * (results_attempt_key: attempt_1_topology, ...). A row's `attempt` says which one made it.
 *
 * One writer. A row goes first to the journal PATH.jsonl (one JSON object a line, fsynced), then as payload
 * into the tables, then its `committed` is set to 1, then the file is published atomically (h5_flush). So a
 * kill at any moment leaves a readable results.h5 that lacks at most the row being appended, and resume takes
 * that row from the journal. Readers see committed rows only. A row that ended failed or aborted may be
 * appended again by a later attempt: the old row's `committed` then becomes 0. The journal is locked (flock)
 * while a writer lives, so a second writer is refused. Local; only the writer rank calls the writer. */
#ifndef PDFLASH_DATA_RESULTS_H
#define PDFLASH_DATA_RESULTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "data/gsm8k.h"
#include "data/h5.h"

enum { RESULTS_SCHEMA = 1 };

/* EOS: complete. LENGTH: cut by --max-new. FAILED: this request went wrong. ABORTED: given up (stop, fault
 * elsewhere) */
enum result_stop { RESULT_EOS, RESULT_LENGTH, RESULT_FAILED, RESULT_ABORTED, RESULT_STOP_N };
/* what a transfer moved */
enum result_component { RESULT_MLA, RESULT_KDA, RESULT_CONV, RESULT_DRAFT, RESULT_AUX, RESULT_COMP_N };
const char *result_stop_name(enum result_stop s);           /* "eos", "length", "failed", "aborted" */
const char *result_component_name(enum result_component c); /* "mla", "kda", "conv", "draft", "aux" */

struct result_round {  /* one verify step; the prefill's first token is in no round */
    int32_t round;     /* 0, 1, ... within the request */
    int32_t proposed;  /* draft tokens verified (block - 1; fewer with --adaptive, --confidence, --spec-min-context) */
    int32_t accepted;  /* accepted drafts BEFORE clipping at EOS or budget, 0..proposed */
    int32_t emitted;   /* tokens that reached the output, 0..accepted + 1 */
    int32_t bonus;     /* token id after the accepted drafts; -1 when there is none */
};
/* seconds since the start of this attempt (one clock); NaN when not measured. See result_timing_clear. */
struct result_timing {
    double admit;          /* request accepted by the scheduler */
    double first_chunk;    /* first prefill chunk started */
    double prefill_done;   /* last stage finished the prompt */
    double transfer_start; /* first byte sent */
    double transfer_done;  /* all completion words seen */
    double start;          /* decode: START issued */
    double first_token;    /* first output token known to decode */
    double end;            /* decode: last token */
};
void result_timing_clear(struct result_timing *t); /* all NaN */
struct result_transfer { /* one component of one request, all sources and destinations together */
    int64_t bytes;       /* payload bytes; 0 with --single */
    int64_t puts;        /* messages or puts issued */
    double seconds;      /* first pack to last completion; NaN when not measured */
    uint64_t checksum;   /* hash64 over the received bytes in plan order; 0 when --verify is off */
};
struct result_row {
    int64_t index;          /* question index, 0 .. questions-1 */
    int32_t prompt_tokens;
    int32_t output_tokens;  /* ids in token[], the EOS included if it was produced */
    enum result_stop stop;
    int32_t attempt;        /* writer: 0 = the attempt of this writer */
    const char *error;      /* why it failed; NULL or "" otherwise */
    const char *question, *gold; /* zero-terminated UTF-8 */
    const char *response;   /* response_n bytes; what is not valid UTF-8 is stored as U+FFFD (ids are exact) */
    size_t response_n;
    const int32_t *token;   /* [output_tokens] */
    const struct result_round *round; /* [n_rounds] */
    int32_t n_rounds;
    struct result_timing timing;
    struct result_transfer transfer[RESULT_COMP_N];
    struct gsm8k_grade grade; /* set by the reader; the writer grades response against gold itself */
};
struct result_memory {   /* one rank; bytes, -1 = none or not measured */
    int32_t rank;        /* in the world */
    char role[16];       /* "prefill", "decode" (also of --single) */
    char host[64];
    int64_t host_peak_bytes; /* VmHWM */
    int64_t weights_bytes, state_bytes, window_bytes;
    int64_t device_bytes;    /* peak on the device */
};
/* what a rank does in a span: prefill = a chunk through its layers, receive = waits for the stage before, send = puts
 * state, start = takes the state of a request, decode = a round for all running requests */
enum result_span_kind {
    RESULT_SPAN_PREFILL, RESULT_SPAN_RECEIVE, RESULT_SPAN_SEND, RESULT_SPAN_START, RESULT_SPAN_DECODE, RESULT_SPAN_N
};
struct result_span {     /* a stretch of work of one rank, or `count` of them close together */
    int32_t attempt;     /* writer: set by results_spans */
    int32_t rank;        /* in the world */
    char role[8];        /* "prefill", "decode" (also of --single) */
    int32_t stage, tp_rank;
    char kind[8];        /* result_span_name */
    int32_t request;     /* question index; -1: several */
    int32_t count;
    double begin, end;   /* seconds since the start of the attempt */
    double busy;         /* seconds of work, <= end - begin */
};
const char *result_span_name(enum result_span_kind k);  /* "prefill", "receive", "send", "start", "decode" */
int result_span_kind(const struct result_span *s);      /* enum result_span_kind, -1: unknown */
struct result_attr {     /* one root attribute */
    const char *key;     /* not one the module writes itself (ST_E_RANGE) */
    enum h5_kind kind;   /* H5_KIND_STR, H5_KIND_I64, H5_KIND_F64 */
    const char *s;
    int64_t i;
    double d;
};

/* ---- writer ---------------------------------------------------------------------------------------- */
enum results_mode {
    RESULTS_NEW,    /* refuse when PATH or PATH.jsonl exists */
    RESULTS_RESUME, /* continue under the same config hash; start new when there is nothing to continue */
    RESULTS_FORCE   /* replace results, damaged ones beside their journal too; refuse any other file */
};
struct results_identity { /* one thing that config_hash covers and a root attribute records */
    const char *key;         /* the attribute, text */
    const char *name;        /* for the message: the option */
    const char *value;       /* of this run */
};
struct results_setup {
    const char *config_hash; /* identity of model, draft, prompts and every option that changes tokens */
    int64_t questions;       /* rows of a complete run; denominator of accuracy */
    int32_t block;           /* bins of the histogram = largest proposed + 1; 1 with --spec none */
    const struct results_identity *identity; /* [n_identity] what a refused resume compares to say what differs */
    size_t n_identity;
    int64_t first, end; /* rows first .. end-1 are this run's (a shard), 0 and 0: not told, see results_idle */
};
struct results_writer; /* opaque */

/* results_open - start or continue a file; on success PATH exists and is readable.
 * Resume: another config hash, questions or block is refused naming what differs and both values (ST_E_CONFIG);
 * rows that only the journal has are added; if PATH cannot be read whole (results_load) it is rebuilt from the
 * journal (warned), and refused when that cannot be either; a refused resume changes nothing on disk.
 * The attempt number is 1, and one more with each resume; `complete` becomes 0. Not so when the rows that setup tells
 * are all done: no attempt begins (results_idle).
 * Returns ST_OK, ST_E_FILE (exists, holds something else, locked, no such directory),
 * ST_E_CONFIG, ST_E_FORMAT, ST_E_IO, ST_E_HDF5. */
enum status results_open(const char *path, enum results_mode mode, const struct results_setup *setup,
                         struct results_writer **w_p);
int32_t results_attempt(const struct results_writer *w);
/* results_idle - 1: resumed with nothing left to do. The file keeps what its attempts wrote, `complete` says whether all
 * questions are done, and this writer writes nothing (ST_E_RANGE). */
int results_idle(const struct results_writer *w);
/* results_attempt_key - "attempt_N_NAME", the key of an attribute of one attempt; returns buf. */
const char *results_attempt_key(int32_t attempt, const char *name, char *buf, size_t n);
/* results_done - 1 when a committed row of this index ended by EOS or length, i.e. resume skips it. */
int results_done(const struct results_writer *w, int64_t index);
int64_t results_done_count(const struct results_writer *w);
/* results_attrs - set root attributes; text that is not UTF-8 is repaired as in rows; durable with the next append,
 * sync or finish, and a resume takes them from the journal. */
enum status results_attrs(struct results_writer *w, const struct result_attr *a, size_t n);
/* results_sync - make what was set durable now. ST_E_IO. */
enum status results_sync(struct results_writer *w);
/* results_plan - the plan as JSON text, and attributes of /plan (a may be NULL when n is 0); replaces a former
 * plan; durable with the next append or finish. */
enum status results_plan(struct results_writer *w, const char *json, const struct result_attr *a, size_t n);
/* results_append - grade and commit one finished request; durable on return. Content is copied. Refused
 * (ST_E_RANGE, naming field and value): index outside 0..questions-1 or already done, counts that do not fit
 * (accepted > proposed, proposed >= block, emitted > accepted + 1, negative ids). Allocates. */
enum status results_append(struct results_writer *w, const struct result_row *row);
/* results_memory - replace the table of ranks; durable with the next append or finish. */
enum status results_memory(struct results_writer *w, const struct result_memory *m, size_t n);
/* results_spans - add what the ranks did in this attempt, once an attempt; durable with the next append or finish.
 * ST_E_RANGE: times, ranks or kinds that cannot be. */
enum status results_spans(struct results_writer *w, const struct result_span *s, size_t n);
/* results_finish - publish; complete is stored as 1 only if every question is done as well (*complete_p). */
enum status results_finish(struct results_writer *w, int complete, int *complete_p);
/* results_close - release and unlock without publishing; rows appended are already safe. NULL is legal. */
void results_close(struct results_writer *w);

/* ---- whole files from other sources ----------------------------------------------------------------- */
/* results_rebuild - make PATH anew from its journal PATH.jsonl (a torn last line is dropped, warned).
 * *rows_p: committed rows. An existing PATH is replaced. ST_E_FILE, ST_E_FORMAT (journal:line and reason). */
enum status results_rebuild(const char *path, int64_t *rows_p);
struct results_made { /* what a whole file holds */
    int64_t questions, rows, done; /* committed rows; of them, ended by EOS or length */
    int32_t attempts;
    int complete;
};
/* results_rebuild_as - the same from a journal of any name. out: free, or with force results (damaged ones only beside
 * their own journal); nothing else is replaced (ST_E_FILE). The journal is only read. Local. */
enum status results_rebuild_as(const char *journal, const char *out, int force, struct results_made *m_p);
/* results_merge - join the committed rows of n result files of one configuration (shards, array jobs) to a new file in
 * the order of their index, with a journal of its own beside it. Attempts are numbered on through the parts; /memory
 * lists the ranks of all parts in the order given; a root attribute (and /plan) that differs is the last part's, and
 * every part's own is kept as part_N_KEY (N from 1), beside part_N_file, _sha256, _rows, _first_attempt, _attempts,
 * _complete. `complete` is 1 when every question is done.
 *   identity  what to compare, by name, when two parts have different config hashes; its values are ignored
 *   extra     further root attributes of the merged file, under keys that begin with "merge_"
 * Returns ST_OK, ST_E_FILE (out: results_rebuild_as; a part is absent, or is out), ST_E_FORMAT (a part), ST_E_CONFIG
 * (another configuration; a question that two parts have), ST_E_IO, ST_E_NOMEM. On failure nothing changes. Local. */
enum status results_merge(const char *out, int force, const char *const *part, size_t n,
                          const struct results_identity *identity, size_t n_identity, const struct result_attr *extra,
                          size_t n_extra, struct results_made *m_p);

/* ---- reader ---------------------------------------------------------------------------------------- */
struct results {
    struct result_row *row; /* committed rows, sorted by index; all pointers owned by this struct */
    size_t n;
    int64_t rows_stored;    /* rows in the file, superseded ones included */
    int64_t questions;
    int32_t block;
    int32_t attempt;        /* attempts so far */
    int complete;
    char *config_hash;
    int64_t *histogram;     /* [block] over rows that ended by EOS or length */
    struct result_memory *memory;
    size_t n_memory;
    struct result_span *span; /* in the order of the file */
    size_t n_spans;
    char *plan;             /* NULL when none was stored */
    struct h5_attr *attr;   /* all root attributes */
    size_t n_attrs;
};
/* results_load - read a whole file back; checks schema, shapes and offsets. ST_E_FILE, ST_E_FORMAT. */
enum status results_load(const char *path, struct results **r_p);
void results_free(struct results *r); /* NULL is legal */
/* results_attr_str - a root string attribute, NULL when absent. */
const char *results_attr_str(const struct results *r, const char *key);

#endif
