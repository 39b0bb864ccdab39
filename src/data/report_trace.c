/* report_trace - the time stamps of a file as Chrome trace events. A process for each kind of thing in each attempt,
 * since attempts have clocks of their own; in the first a thread a request, in the last one a rank and kind of work,
 * so that slices of a thread never cross. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "data/report.h"
#include "data/utf8.h"

enum process { P_REQUESTS = 1, P_TRANSFERS, P_RANKS, P_PER_ATTEMPT = 4 };

struct slice {
    int64_t pid, tid;
    const char *name, *category;
    double begin, end, busy; /* seconds; busy NaN: not a rank's */
    int64_t request, tokens, count; /* -1: not said */
};
struct trace {
    const struct report *p;
    FILE *out;
    struct slice *slice;
    size_t n, room;
    int first; /* no event printed yet */
};

/* a JSON string, with everything that is not printable ASCII escaped */
static void text(FILE *out, const char *s)
{
    size_t n = strlen(s), used;
    fputc('"', out);
    for (size_t i = 0; i < n; i += used) {
        uint32_t c;
        used = utf8_next(s + i, n - i, &c);
        if (used == 0) {
            used = 1;
            c = 0xfffd;
        }
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", (int)c);
        else if (c >= 0x20 && c < 0x7f)
            fputc((int)c, out);
        else if (c < 0x10000)
            fprintf(out, "\\u%04x", c);
        else
            fprintf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
    }
    fputc('"', out);
}

static void next(struct trace *t)
{
    fputs(t->first ? "\n" : ",\n", t->out);
    t->first = 0;
}

static void name_it(struct trace *t, const char *what, int64_t pid, int64_t tid, const char *name)
{
    next(t);
    fprintf(t->out, "{\"name\":\"%s\",\"ph\":\"M\",\"ts\":0,\"pid\":%lld,\"tid\":%lld,\"args\":{\"name\":", what,
            (long long)pid, (long long)tid);
    text(t->out, name);
    fputs("}}", t->out);
}

static enum status add(struct trace *t, const struct slice *s)
{
    if (!isfinite(s->begin * 1e6) || !isfinite((s->end - s->begin) * 1e6) || s->end < s->begin) return ST_OK; /* none */
    if (t->n == t->room) {
        struct slice *more = mem_grow(t->slice, t->n, 2 * t->room + 64, sizeof *more, "trace events");
        if (!more) return ST_E_NOMEM;
        t->slice = more;
        t->room = 2 * t->room + 64;
    }
    t->slice[t->n++] = *s;
    return ST_OK;
}

static enum status add_requests(struct trace *t)
{
    const struct results *r = t->p->results;
    for (size_t i = 0; i < r->n; i++) {
        const struct result_row *row = &r->row[i];
        const struct result_timing *m = &row->timing;
        int64_t base = (int64_t)P_PER_ATTEMPT * row->attempt;
        const struct slice s[] = {
            {base + P_REQUESTS, row->index, "queue", "request", m->admit, m->first_chunk, NAN, row->index, -1, -1},
            {base + P_REQUESTS, row->index, "prefill", "request", m->first_chunk, m->prefill_done, NAN, row->index,
             row->prompt_tokens, -1},
            {base + P_REQUESTS, row->index, "decode", "request", m->start, m->end, NAN, row->index, row->output_tokens,
             -1},
            {base + P_TRANSFERS, row->index, "transfer", "transfer", m->transfer_start, m->transfer_done, NAN,
             row->index, -1, -1}};
        for (size_t k = 0; k < sizeof s / sizeof s[0]; k++) TRY(add(t, &s[k]));
    }
    return ST_OK;
}

static enum status add_ranks(struct trace *t)
{
    const struct results *r = t->p->results;
    for (size_t i = 0; i < r->n_spans; i++) {
        const struct result_span *s = &r->span[i];
        int kind = result_span_kind(s);
        TRY(add(t, &(struct slice){(int64_t)P_PER_ATTEMPT * s->attempt + P_RANKS,
                                   (int64_t)s->rank * RESULT_SPAN_N + kind,
                                   result_span_name((enum result_span_kind)kind), "rank", s->begin, s->end, s->busy,
                                   s->request, -1, s->count}));
    }
    return ST_OK;
}

static int by_time(const void *x, const void *y)
{
    const struct slice *a = x, *b = y;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->pid != b->pid) return a->pid < b->pid ? -1 : 1;
    return (a->tid > b->tid) - (a->tid < b->tid);
}

static void print_slice(struct trace *t, const struct slice *s)
{
    const char *comma = "";
    next(t);
    fprintf(
        t->out,
        "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%lld,\"tid\":%lld,\"args\":{",
        s->name, s->category, s->begin * 1e6, (s->end - s->begin) * 1e6, (long long)s->pid, (long long)s->tid);
    const struct {
        const char *key;
        int64_t v;
    } arg[] = {{"request", s->request}, {"tokens", s->tokens}, {"count", s->count}};
    for (size_t i = 0; i < sizeof arg / sizeof arg[0]; i++)
        if (arg[i].v >= 0) {
            fprintf(t->out, "%s\"%s\":%lld", comma, arg[i].key, (long long)arg[i].v);
            comma = ",";
        }
    if (isfinite(s->busy)) fprintf(t->out, "%s\"busy_us\":%.3f", comma, s->busy * 1e6);
    fputs("}}", t->out);
}

static void name_attempt(struct trace *t, int32_t attempt)
{
    static const char *const what[] = {"", "requests", "transfers", "ranks"};
    const struct results *r = t->p->results;
    int64_t base = (int64_t)P_PER_ATTEMPT * attempt;
    char name[96];
    for (int k = P_REQUESTS; k <= P_RANKS; k++) {
        snprintf(name, sizeof name, "attempt %d: %s", attempt, what[k]);
        name_it(t, "process_name", base + k, 0, name);
    }
    for (size_t i = 0; i < r->n; i++) {
        if (r->row[i].attempt != attempt) continue;
        snprintf(name, sizeof name, "question %lld (%s)", (long long)r->row[i].index, result_stop_name(r->row[i].stop));
        name_it(t, "thread_name", base + P_REQUESTS, r->row[i].index, name);
        name_it(t, "thread_name", base + P_TRANSFERS, r->row[i].index, name);
    }
}

static enum status name_ranks(struct trace *t)
{
    struct report_rank *r = NULL;
    size_t n = 0;
    TRY(report_ranks(t->p, &r, &n));
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < RESULT_SPAN_N; k++) {
            char name[96];
            if (r[i].busy[k] <= 0) continue;
            snprintf(name, sizeof name, "rank %d %s stage %d tp %d: %s", r[i].rank, r[i].role, r[i].stage, r[i].tp_rank,
                     result_span_name((enum result_span_kind)k));
            name_it(t, "thread_name", (int64_t)P_PER_ATTEMPT * r[i].attempt + P_RANKS,
                    (int64_t)r[i].rank * RESULT_SPAN_N + k, name);
        }
    mem_free(r);
    return ST_OK;
}

static void print_head(struct trace *t, const char *path)
{
    static const char *const key[] = {"run_id", "topology", "spec", "hosts", "build", "config_hash"};
    char buf[32];
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"file\":", t->out);
    text(t->out, path);
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) {
        fprintf(t->out, ",\"%s\":", key[i]);
        text(t->out, report_attr(t->p, key[i], buf, sizeof buf));
    }
    fputs("},\"traceEvents\":[", t->out);
}

enum status report_trace(const struct report_file *f, FILE *out)
{
    struct trace t = {.p = f->report, .out = out, .first = 1};
    enum status st = add_requests(&t);
    if (st == ST_OK) st = add_ranks(&t);
    if (st == ST_OK) {
        if (t.n > 1) qsort(t.slice, t.n, sizeof *t.slice, by_time);
        print_head(&t, f->path);
        for (int32_t i = 1; i <= t.p->results->attempt && i <= REPORT_ATTEMPTS; i++) name_attempt(&t, i);
        st = name_ranks(&t);
        for (size_t i = 0; i < t.n; i++) print_slice(&t, &t.slice[i]);
        fputs("\n]}\n", out);
    }
    mem_free(t.slice);
    return st;
}
