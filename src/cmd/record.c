#include "cmd/record.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/log.h"

struct record {
    const struct prompts *prompts;
    struct tokenizer *tok;
    struct results_writer *w;
    enum chat_thinking level;
    struct result_round *round; /* [max_new] scratch */
    int n, max_new, skipped; /* rows of this run (of its shard), output limit, rows done before */
    int first, end;          /* the shard: rows first .. end-1 of the prompts */
    int committed, unfinished;
    int64_t tokens, rounds, accepted; /* of this attempt; rounds of rows that ended by themselves */
    struct progress progress;
};

static const char *spec_name(const struct setup *s)
{
    return draft_kind_name(s->spec);
}

/* how drafts were made, --draft-sampling auto resolved */
static const char *drafts_name(const struct setup *s)
{
    return !s->spec ? "none" : sampling_draws(&s->sampling) ? "sample" : "argmax";
}

static int spec_attrs(const struct setup *s, const struct options *o, struct result_attr *a)
{
    int n = 0;
    a[n++] = (struct result_attr){"spec", H5_KIND_STR, spec_name(s), 0, 0};
    a[n++] = (struct result_attr){"temperature", H5_KIND_F64, NULL, 0, s->sampling.temperature};
    a[n++] = (struct result_attr){"drafts", H5_KIND_STR, drafts_name(s), 0, 0};
    a[n++] = (struct result_attr){"prompt_limit", H5_KIND_I64, NULL, o->limit, 0};
    a[n++] = (struct result_attr){"mode", H5_KIND_STR, s->topo.single ? "single" : "pd", 0, 0};
    return n;
}

/* every option as the user could have typed it, from the one table */
static enum status echo_options(struct results_writer *w, const struct options *o)
{
    for (const struct opt_row *r = options_table; r->name; r++) {
        char key[64], value[1024];
        if (!(r->commands & CMD_RUN)) continue;
        snprintf(key, sizeof key, "option_%s", r->name);
        opt_text(r, o, value, sizeof value);
        TRY(results_attrs(w, &(struct result_attr){key, H5_KIND_STR, value, 0, 0}, 1));
    }
    return ST_OK;
}

/* what a resumed file must keep of every attempt: rows of different topologies may lie side by side */
static enum status write_attempt(struct results_writer *w, const struct record_facts *f)
{
    const char *const fact[][2] = {{"run_id", f->run_id}, {"command_line", f->command_line}, {"build", f->build},
                                   {"topology", f->topology}, {"hosts", f->host_list}, {"isa", f->isa ? f->isa : ""},
                                   {"start_utc", f->start_utc}};
    for (size_t i = 0; i < sizeof fact / sizeof fact[0]; i++) {
        char key[64];
        results_attempt_key(results_attempt(w), fact[i][0], key, sizeof key);
        struct result_attr a[] = {{fact[i][0], H5_KIND_STR, fact[i][1], 0, 0}, {key, H5_KIND_STR, fact[i][1], 0, 0}};
        TRY(results_attrs(w, a, 2));
    }
    return ST_OK;
}

static enum status write_facts(struct results_writer *w, const struct record_facts *f)
{
    const char *slurm = getenv("SLURM_JOB_ID");
    struct result_attr a[] = {
        {"binary_hash", H5_KIND_STR, f->binary_hash, 0, 0},       {"mpi_library", H5_KIND_STR, f->mpi_library, 0, 0},
        {"model_hash", H5_KIND_STR, f->model_hash, 0, 0},         {"draft_hash", H5_KIND_STR, f->draft_hash, 0, 0},
        {"tokenizer_hash", H5_KIND_STR, f->tokenizer_hash, 0, 0}, {"prompts_hash", H5_KIND_STR, f->prompts_hash, 0, 0},
        {"slurm_job_id", H5_KIND_STR, slurm ? slurm : "", 0, 0},  {"devices", H5_KIND_STR, "cpu", 0, 0},
    };
    TRY(results_attrs(w, a, sizeof a / sizeof a[0]));
    return write_attempt(w, f);
}

static enum status prompt_attrs(struct results_writer *w, const struct prompts *p)
{
    const struct prompts_meta *m = prompts_meta(p);
    struct result_attr a[] = {
        {"template", H5_KIND_STR, m->template_name, 0, 0}, {"thinking", H5_KIND_STR, m->thinking, 0, 0},
        {"shots", H5_KIND_I64, NULL, m->shots, 0},         {"shots_source", H5_KIND_STR, m->shots_source, 0, 0},
        {"format", H5_KIND_STR, m->format, 0, 0},          {"shots_leaked", H5_KIND_I64, NULL, m->shots_leaked, 0},
        {"source", H5_KIND_STR, m->source, 0, 0},          {"source_sha256", H5_KIND_STR, m->source_sha256, 0, 0}};
    return results_attrs(w, a, sizeof a / sizeof a[0]);
}

/* everything that config_hash covers (facts_hashes); names of options follow "option_" in their keys */
const struct results_identity record_identity[RECORD_IDENTITY] = {
    {"model_hash", "--model (hash of its files)", NULL},
    {"draft_hash", "--draft (hash of its files)", NULL},
    {"tokenizer_hash", "tokenizer of --model", NULL},
    {"prompts_hash", "--prompts (hash of its rows, template and source)", NULL},
    {"spec", "--spec", NULL},
    {"option_max-new", "--max-new", NULL},
    {"option_act", "--act", NULL},
    {"option_kv-dtype", "--kv-dtype", NULL},
    {"option_mla-prefill", "--mla-prefill", NULL},
    {"option_device", "--device", NULL},
    {"option_confidence", "--confidence", NULL},
    {"option_adaptive", "--adaptive", NULL},
    {"option_spec-min-context", "--spec-min-context", NULL},
    {"option_temperature", "--temperature", NULL},
    {"option_top-p", "--top-p", NULL},
    {"option_top-k", "--top-k", NULL},
    {"option_seed", "--seed", NULL},
    {"option_draft-sampling", "--draft-sampling", NULL},
    {"option_draft-temperature", "--draft-temperature", NULL}};

/* results_open, so that a refused resume can say what differs */
static enum status open_results(const struct options *o, const struct setup *s, const struct record_facts *f, int n,
                                struct record *r)
{
    const char *const fact[] = {f->model_hash, f->draft_hash, f->tokenizer_hash, f->prompts_hash, spec_name(s)};
    enum { N_FACTS = sizeof fact / sizeof fact[0] };
    char value[RECORD_IDENTITY][40];
    struct results_identity d[RECORD_IDENTITY];
    for (int i = 0; i < RECORD_IDENTITY; i++) {
        const struct opt_row *opt = options_table;
        d[i] = record_identity[i];
        if (i < N_FACTS) {
            d[i].value = fact[i];
            continue;
        }
        while (!(opt->commands & CMD_RUN) || strcmp(opt->name, d[i].name + 2) != 0) opt++;
        d[i].value = opt_text(opt, o, value[i], sizeof value[i]);
    }
    struct results_setup setup = {f->config_hash, n, s->block, d, RECORD_IDENTITY, r->first, r->end};
    return results_open(o->out, o->resume ? RESULTS_RESUME : o->force_new ? RESULTS_FORCE : RESULTS_NEW, &setup, &r->w);
}

/* what this attempt is; at once on the disk: who dies before the first row has said what it was */
static enum status describe(struct record *r, const struct options *o, const struct setup *s, const struct record_facts *f)
{
    struct result_attr a[8];
    TRY(results_attrs(r->w, a, (size_t)spec_attrs(s, o, a)));
    TRY(echo_options(r->w, o));
    TRY(write_facts(r->w, f));
    TRY(prompt_attrs(r->w, r->prompts));
    return results_sync(r->w);
}

enum status record_open(const struct options *o, const struct setup *s, const struct record_facts *f,
                        const struct prompts *p, int n, struct tokenizer *t, uint8_t *skip, struct record **r_p)
{
    struct record *r = mem_alloc(1, sizeof *r, "result recorder");
    if (!r) return ST_E_NOMEM;
    enum status st = ST_OK;
    r->prompts = p;
    r->tok = t;
    r->max_new = o->max_new;
    r->level = (enum chat_thinking)chat_thinking_parse(prompts_meta(p)->thinking);
    progress_begin(&r->progress, o->progress, progress_terminal());
    r->round = mem_alloc((size_t)o->max_new, sizeof *r->round, "rounds of a row");
    if (!r->round) st = ST_E_NOMEM;
    if (st == ST_OK) st = options_shard(o, n, &r->first, &r->end);
    r->n = r->end - r->first;
    if (st == ST_OK && (int)r->level < 0)
        st = ERR(ST_E_FORMAT, "%s: thinking level '%s' is unknown", o->prompts, prompts_meta(p)->thinking);
    if (st == ST_OK) st = open_results(o, s, f, n, r);
    if (st == ST_OK && !results_idle(r->w)) st = describe(r, o, s, f);
    if (st != ST_OK) {
        record_close(r);
        return st;
    }
    for (int i = 0; i < n; i++) {
        int mine = i >= r->first && i < r->end, done = results_done(r->w, i);
        skip[i] = (uint8_t)(done || !mine);
        r->skipped += done && mine;
    }
    if (o->shard) log_info("--shard %s: rows %d to %d of %d", o->shard, r->first, r->end - 1, n);
    if (results_idle(r->w))
        log_info("%s: %d of %d rows are done: nothing is left to do, no attempt begins", o->out, r->skipped, r->n);
    else if (r->skipped)
        log_info("%s: %d of %d rows are done, attempt %d continues", o->out, r->skipped, r->n, results_attempt(r->w));
    *r_p = r;
    return ST_OK;
}

void record_close(struct record *r)
{
    if (!r) return;
    log_status("");
    results_close(r->w);
    mem_free(r->round);
    mem_free(r);
}

static void fill_timing(const struct run_finished *f, struct result_timing *t)
{
    t->admit = f->admit_s;
    t->first_chunk = f->first_chunk_s;
    t->prefill_done = f->prefill_done_s;
    t->transfer_start = f->transfer_start_s;
    t->transfer_done = f->transfer_done_s;
    t->start = f->start_s;
    t->first_token = f->first_token_s;
    t->end = f->end_s;
}

static void fill_transfer(const struct run_finished *f, struct result_transfer t[RESULT_COMP_N])
{
    for (int c = 0; c < RESULT_COMP_N; c++) {
        t[c] = (struct result_transfer){0, 0, NAN, 0};
        if (f->has_transfer)
            t[c] = (struct result_transfer){(int64_t)f->transfer.bytes[c], (int64_t)f->transfer.puts[c],
                                            f->transfer.seconds[c], f->transfer.checksum[c]};
    }
}

static enum result_stop stop_of(enum stop_reason s)
{
    return s == STOP_EOS      ? RESULT_EOS
           : s == STOP_LENGTH ? RESULT_LENGTH
           : s == STOP_FAILED ? RESULT_FAILED
                              : RESULT_ABORTED;
}

/* as `show` counts: rounds of rows that failed are no measure of the draft */
static void count(struct record *r, const struct result_row *row)
{
    int failed = row->stop == RESULT_FAILED || row->stop == RESULT_ABORTED;
    r->committed++;
    r->unfinished += failed;
    r->tokens += row->output_tokens;
    for (int i = 0; i < row->n_rounds && !failed; i++) {
        r->rounds++;
        r->accepted += row->round[i].accepted;
    }
}

static enum status finished(void *ctx, const struct run_finished *f)
{
    struct record *r = ctx;
    const struct spec_seq *q = f->q;
    const struct prompts_row *p = prompts_row(r->prompts, (size_t)q->request);
    struct result_row row;
    char *text = NULL;
    int cut;
    memset(&row, 0, sizeof row);
    TRY(chat_response_text(r->tok, q->out, (size_t)q->n_out, r->level, &text, &row.response_n, &cut));
    for (int i = 0; i < q->n_rounds; i++) {
        r->round[i] = (struct result_round){i, q->round[i].proposed, q->round[i].accepted, q->round[i].emitted,
                                            q->round[i].bonus};
    }
    row.index = q->request;
    row.prompt_tokens = q->prompt_tokens;
    row.output_tokens = q->n_out;
    row.stop = stop_of(q->stop);
    row.question = p->question;
    row.gold = p->gold;
    row.error = f->error;
    row.response = text;
    row.token = q->out;
    row.round = r->round;
    row.n_rounds = q->n_rounds;
    fill_timing(f, &row.timing);
    fill_transfer(f, row.transfer);
    enum status st = results_append(r->w, &row);
    mem_free(text);
    if (st == ST_OK) count(r, &row);
    return st;
}

struct progress_state record_state(const struct record *r)
{
    return (struct progress_state){.rows = r->n, .before = r->skipped, .ended = r->committed, .failed = r->unfinished,
                                   .tokens = r->tokens, .rounds = r->rounds, .accepted = r->accepted,
                                   .prefill_work_s = NAN, .decode_work_s = NAN};
}

static void progress(void *ctx, const struct run_progress *p)
{
    struct record *r = ctx;
    if (!progress_due(&r->progress, p->now_s)) return;
    struct progress_state s = record_state(r);
    s.decoding = p->decoding;
    s.tokens = p->tokens;
    s.seconds = r->progress.elapsed_s;
    s.prefill_work_s = p->prefill_work_s;
    s.decode_work_s = p->decode_work_s;
    progress_show(&r->progress, &s);
}

struct run_sink record_sink(struct record *r)
{
    return (struct run_sink){r, finished, progress};
}

int record_idle(const struct record *r)
{
    return results_idle(r->w);
}

int record_committed(const struct record *r)
{
    return r->committed + r->skipped;
}

int record_rows(const struct record *r)
{
    return r->n;
}

int record_unfinished(const struct record *r)
{
    return r->unfinished;
}

static enum status write_memory(struct record *r, const struct rank_stats *st, int n)
{
    struct result_memory *m = mem_alloc((size_t)n, sizeof *m, "memory table");
    if (!m) return ST_E_NOMEM;
    for (int i = 0; i < n; i++) {
        m[i].rank = i;
        snprintf(m[i].role, sizeof m[i].role, "%s", st[i].role == ROLE_PREFILL ? "prefill" : "decode");
        snprintf(m[i].host, sizeof m[i].host, "%s", st[i].host);
        m[i].host_peak_bytes = st[i].peak_host_bytes;
        m[i].weights_bytes = st[i].weight_bytes;
        m[i].state_bytes = st[i].state_bytes;
        m[i].window_bytes = st[i].window_bytes;
        m[i].device_bytes = st[i].device_bytes;
    }
    enum status s = results_memory(r->w, m, (size_t)n);
    mem_free(m);
    return s;
}

enum status record_spans(struct record *r, const struct rank_stats *st, const struct span *span, size_t n)
{
    static const enum result_span_kind kind[SPAN_KIND_N] = {RESULT_SPAN_PREFILL, RESULT_SPAN_RECEIVE, RESULT_SPAN_SEND,
                                                            RESULT_SPAN_START, RESULT_SPAN_DECODE};
    struct result_span *v = mem_alloc(n, sizeof *v, "spans of work");
    if (!v) return ST_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct rank_stats *s = &st[span[i].rank];
        v[i] = (struct result_span){.rank = span[i].rank, .stage = s->stage, .tp_rank = s->tp_rank,
                                    .request = span[i].request, .count = span[i].count, .begin = span[i].begin_s,
                                    .end = span[i].end_s, .busy = span[i].busy_s};
        snprintf(v[i].role, sizeof v[i].role, "%s", s->role == ROLE_PREFILL ? "prefill" : "decode");
        snprintf(v[i].kind, sizeof v[i].kind, "%s", result_span_name(kind[span[i].kind]));
    }
    enum status e = results_spans(r->w, v, n);
    mem_free(v);
    return e;
}

enum status record_finish(struct record *r, const struct rank_stats *st, int n_ranks, const char *plan_json,
                          const char *osc, int interrupted, int *complete_p)
{
    char utc[32];
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(utc, sizeof utc, "%Y-%m-%dT%H:%M:%SZ", &tm);
    const struct rank_stats *lead = &st[0];
    int64_t shared = 0;
    for (int i = 0; i < n_ranks; i++)
        for (int c = 0; c < COMP_N; c++) shared += (int64_t)st[i].shared_bytes[c];
    for (int i = 0; i < n_ranks; i++)
        if (st[i].role == ROLE_DECODE && st[i].tp_rank == 0) lead = &st[i];
    int done = 0;
    for (int i = r->first; i < r->end; i++) done += results_done(r->w, i);
    struct result_attr a[] = {{"end_utc", H5_KIND_STR, utc, 0, 0},
                              {"osc_component", H5_KIND_STR, osc, 0, 0},
                              {"interrupted", H5_KIND_I64, NULL, interrupted && done < r->n, 0},
                              {"scheduler_ticks", H5_KIND_I64, NULL, lead->ticks, 0},
                              {"start_delay_ticks_max", H5_KIND_I64, NULL, lead->start_delay_max, 0},
                              {"node_shared_bytes", H5_KIND_I64, NULL, shared, 0},
                              {"decode_rounds", H5_KIND_I64, NULL, lead->rounds, 0},
                              {"draft_s", H5_KIND_F64, NULL, 0, lead->draft_s},
                              {"verify_s", H5_KIND_F64, NULL, 0, lead->verify_s},
                              {"commit_s", H5_KIND_F64, NULL, 0, lead->commit_s}};
    TRY(results_attrs(r->w, a, sizeof a / sizeof a[0]));
    TRY(write_memory(r, st, n_ranks));
    if (plan_json) TRY(results_plan(r->w, plan_json, NULL, 0));
    int file_complete;
    TRY(results_finish(r->w, 1, &file_complete));
    *complete_p = done == r->n; /* a shard is complete when its rows are, its file never is */
    return ST_OK;
}
