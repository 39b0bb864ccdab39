/* results_spans - the table /occupancy: when each rank was at work, from the run to file and journal and back. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "data/results_priv.h"
#include "data/utf8.h"

#define AT(member_) offsetof(struct result_span, member_)
static const struct h5_field span_fields[] = {
    {"attempt", H5_KIND_I32, AT(attempt), 0},
    {"rank", H5_KIND_I32, AT(rank), 0},
    {"role", H5_KIND_STR, AT(role), sizeof ((struct result_span *)NULL)->role},
    {"stage", H5_KIND_I32, AT(stage), 0},
    {"tp_rank", H5_KIND_I32, AT(tp_rank), 0},
    {"kind", H5_KIND_STR, AT(kind), sizeof ((struct result_span *)NULL)->kind},
    {"request", H5_KIND_I32, AT(request), 0},
    {"count", H5_KIND_I32, AT(count), 0},
    {"begin_s", H5_KIND_F64, AT(begin), 0},
    {"end_s", H5_KIND_F64, AT(end), 0},
    {"busy_s", H5_KIND_F64, AT(busy), 0}};
static const struct h5_table span_table = {span_fields, (int)(sizeof span_fields / sizeof span_fields[0]),
                                           sizeof(struct result_span)};

static const char set[] = "/occupancy";
static const char *const kind_name[RESULT_SPAN_N] = {"prefill", "receive", "send", "start", "decode"};

const char *result_span_name(enum result_span_kind k)
{
    return (unsigned)k < RESULT_SPAN_N ? kind_name[k] : "?";
}

int result_span_kind(const struct result_span *s)
{
    for (int k = 0; k < RESULT_SPAN_N; k++)
        if (strncmp(s->kind, kind_name[k], sizeof s->kind) == 0) return k;
    return -1;
}

enum status results_check_span(enum status kind, const char *where, size_t i, const struct result_span *s,
                               int32_t attempt, int64_t questions)
{
    size_t role = strnlen(s->role, sizeof s->role);
    if (role == sizeof s->role || utf8_bad_at(s->role, role) != role || result_span_kind(s) < 0)
        return ERR(kind, "%s: span %zu: role or kind '%.8s' is unknown", where, i, s->kind);
    if (s->attempt < 1 || s->attempt > attempt || s->rank < 0 || s->stage < 0 || s->tp_rank < 0 || s->count < 1 ||
        s->request < -1 || s->request >= questions)
        return ERR(kind,
                   "%s: span %zu: attempt %d, rank %d, stage %d, tp_rank %d, request %d, count %d: out of range",
                   where, i, s->attempt, s->rank, s->stage, s->tp_rank, s->request, s->count);
    if (!isfinite(s->begin) || !isfinite(s->end) || !isfinite(s->busy) || s->begin > s->end || s->busy < 0 ||
        s->busy > (s->end - s->begin) * (1 + 1e-9) + 1e-9)
        return ERR(kind, "%s: span %zu: %g to %g s, busy %g s", where, i, s->begin, s->end, s->busy);
    return ST_OK;
}

enum status results_store_spans(struct results_store *s, const struct result_span *v, size_t n)
{
    if (n == 0) return ST_OK;
    if (!h5_exists(s->f, set)) { /* only files of runs that came to an end have it */
        TRY(h5_make_rows(s->f, set, &span_table, 1024));
        TRY(h5_set_str(s->f, set, "description",
                       "when ranks were at work, per attempt: prefill = a chunk through the stage's layers, receive = "
                       "waiting for the stage before, send = putting state, start = taking a request's state, decode = "
                       "a round; seconds since the start of the attempt; count stretches of work, busy_s of them, lie "
                       "in a span; request -1 = several"));
    }
    return h5_append_rows(s->f, set, &span_table, (int64_t)n, v);
}

enum status results_load_spans(const struct h5 *f, struct results *r)
{
    void *v;
    size_t n;
    if (!h5_exists(f, set)) return ST_OK;
    TRY(h5_read_rows(f, set, &span_table, &v, &n));
    r->span = v;
    r->n_spans = n;
    for (size_t i = 0; i < n; i++)
        TRY(results_check_span(ST_E_FORMAT, h5_path(f), i, &r->span[i], r->attempt, r->questions));
    return ST_OK;
}

/* ---- journal: one line, a list of lists in the order of the fields ------------------------------------ */

json_t *results_json_spans(const struct result_span *s, size_t n)
{
    json_t *all = json_array();
    int bad = !all;
    for (size_t i = 0; i < n && !bad; i++)
        bad = json_array_append_new(all, json_pack("[iisiisiifff]", s[i].attempt, s[i].rank, s[i].role, s[i].stage,
                                                   s[i].tp_rank, s[i].kind, s[i].request, s[i].count, s[i].begin,
                                                   s[i].end, s[i].busy)) != 0;
    json_t *o = bad ? NULL : json_pack("{sssO}", "kind", "spans", "spans", all);
    json_decref(all);
    return o;
}

static int get_span(const json_t *o, struct result_span *s)
{
    const char *role, *kind;
    json_t *copy = json_incref((json_t *)(uintptr_t)o); /* unpacking changes nothing but wants it writable */
    int ok = json_unpack(copy, "[iisiisiiFFF!]", &s->attempt, &s->rank, &role, &s->stage, &s->tp_rank, &kind,
                         &s->request, &s->count, &s->begin, &s->end, &s->busy) == 0 &&
             strlen(role) < sizeof s->role && strlen(kind) < sizeof s->kind;
    if (ok) {
        snprintf(s->role, sizeof s->role, "%s", role);
        snprintf(s->kind, sizeof s->kind, "%s", kind);
    }
    json_decref(copy);
    return ok;
}

enum status results_parse_spans(const char *path, int64_t line, const json_t *o, struct result_span **s_p, size_t *n_p)
{
    const json_t *all = json_object_get(o, "spans");
    size_t n = json_array_size(all);
    if (!json_is_array(all)) return ERR(ST_E_FORMAT, "%s:%lld: \"spans\" is no list", path, (long long)line);
    struct result_span *s = mem_alloc(n, sizeof *s, "spans of work");
    if (!s) return ST_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (!get_span(json_array_get(all, i), &s[i])) {
            mem_free(s);
            return ERR(ST_E_FORMAT, "%s:%lld: span %zu is not the %d values of a span", path, (long long)line, i,
                       span_table.n_fields);
        }
    *s_p = s;
    *n_p = n;
    return ST_OK;
}
