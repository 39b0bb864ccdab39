#include "cmd/diagnose_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/outfile.h"
#include "data/h5.h"

/* ---- text: rounds ---------------------------------------------------------------------------------- */

static void print_round(const struct diagnose_result *r, int i, FILE *f)
{
    enum { SHOWN = 5 };
    const struct diagnose_round *x = &r->round[i];
    const struct diagnose_slot *s = &r->slot[i * r->n_draft];
    fprintf(f, "  %6d %5d %8d %6d  %3d of %-3d ", x->prompt, x->round, x->pos, (int)x->anchor, x->accepted,
            x->proposed);
    if (!x->on_path) {
        fprintf(f, " output left the path of plain decoding before\n");
        return;
    }
    if (x->first == r->n_draft) fprintf(f, " none ");
    else fprintf(f, " %4d ", x->first + 1);
    for (int j = 0; j < SHOWN && j < r->n_draft; j++)
        fprintf(f, " %d/%d(%d, %.1f)", (int)s[j].draft, (int)s[j].target, (int)s[j].rank, s[j].gap);
    fprintf(f, "%s\n", r->n_draft > SHOWN ? " ..." : "");
}

static void print_rounds(const struct diagnose_result *r, FILE *f)
{
    enum { SHOWN = 6 };
    fprintf(f,
            "\nrounds: %d, accept length %.2f (accepted drafts and the bonus). First wrong: of the drafts, after the "
            "same tokens.\nDrafts as draft/target(rank of the draft among the target's logits, gap to the largest).\n  "
            "prompt round position anchor  accepted   first wrong, drafts\n",
            r->n_rounds, r->tau);
    for (int i = 0; i < r->n_rounds && i < SHOWN; i++) print_round(r, i, f);
    if (r->n_rounds > SHOWN) fprintf(f, "  ... all of them with --out\n");
}

static void print_curve(const char *name, const double *v, int n, FILE *f)
{
    fprintf(f, "  %-24s", name);
    for (int k = 0; k < n; k++) isnan(v[k]) ? fprintf(f, "    -") : fprintf(f, " %4.0f", 100 * v[k]);
    fputc('\n', f);
}

/* wrong from the first draft on, or right at first and worse with distance */
static void print_divergence(const struct diagnose_result *r, FILE *f)
{
    int n = 0, at_once = 0, whole = 0, median = 0, seen = 0, count[257] = {0};
    for (int i = 0; i < r->n_rounds; i++) {
        if (r->round[i].first < 0) continue;
        n++;
        at_once += r->round[i].first == 0;
        whole += r->round[i].first == r->n_draft;
        count[r->round[i].first]++;
    }
    if (n == 0) return;
    for (; median < r->n_draft && 2 * (seen + count[median]) <= n; median++) seen += count[median];
    double rest = 0;
    int m = 0;
    for (int k = 1; k < r->n_draft; k++)
        if (!isnan(r->conditional[k])) rest += r->conditional[k], m++;
    fprintf(f, "\nacceptance by position, percent\n  %-24s", "draft");
    for (int k = 0; k < r->n_draft; k++) fprintf(f, " %4d", k + 1);
    fputc('\n', f);
    print_curve("accepted up to here", r->survival, r->n_draft, f);
    print_curve("if those before are", r->conditional, r->n_draft, f);
    print_curve("right in itself", r->slots, r->n_draft, f);
    fprintf(f,
            "first divergent position: the first draft already in %d of %d rounds (offset); later in %d, half of the "
            "rounds up to draft %d (drift); never in %d\n",
            at_once, n, n - at_once - whole, median + 1, whole);
    if (m)
        fprintf(f, "first draft %.0f %%, each further one %.0f %% on average if those before it are right\n",
                100 * r->conditional[0], 100 * rest / m);
}

/* ---- text: state, captures, hypotheses -------------------------------------------------------------- */

static void print_state(const struct diagnose_result *r, FILE *f)
{
    fprintf(f,
            "\nstate after each commit against recomputation of prompt and accepted tokens (%d checks; differences "
            "over the largest value; above %g they count; one whole prefill against pieces: %.2g)\n  part        same "
            "caches  FP32 caches  first difference\n",
            r->n_checks, r->tolerance, r->scratch_error);
    for (int c = 0; c < PART_N; c++) {
        double worst = 0, worst32 = 0;
        int first = -1;
        for (int i = 0; i < r->n_checks; i++) {
            worst = fmax(worst, r->check[i].state[c].error);
            worst32 = fmax(worst32, r->check[i].fp32[c].error);
            if (first < 0 && !(r->check[i].state[c].error <= r->tolerance)) first = i;
        }
        fprintf(f, "  %-10s  %11.2g  %11.2g  ", diagnose_part_name[c], worst, worst32);
        if (first < 0) fprintf(f, "none\n");
        else if (r->check[first].round < 0)
            fprintf(f, "prompt %d, after prefill, layer %d\n", r->check[first].prompt, r->check[first].state[c].layer);
        else
            fprintf(f, "prompt %d, round %d, layer %d\n", r->check[first].prompt, r->check[first].round,
                    r->check[first].state[c].layer);
    }
    double replay[2] = {0, 0};
    for (int i = 0; i < r->n_checks; i++)
        for (int k = 0; k < 2; k++)
            if (r->check[i].replay[k].error > replay[k]) replay[k] = r->check[i].replay[k].error;
    fprintf(f, "commit by replay against the snapshot of before the round run forward: KDA %.2g, conv %.2g\n",
            replay[0], replay[1]);
}

static void print_captures(const struct diagnose_files *x, const struct diagnose_result *r, FILE *f)
{
    static const char *const name[] = {"?", "attention-residual mixture", "plain prefix"};
    fprintf(f, "\ncaptures: the engine's are the %s, %d layers off (difference %.2g; the next candidate %.2g)\n",
            name[r->captured], r->captured_shift, r->captured_error, r->other_error);
    for (int i = 0; i < r->n_trials; i++)
        if (r->trial[i].kind == TRIAL_STREAM && r->trial[i].layer_shift == 0)
            if (r->trial[i].stream != r->captured)
                fprintf(f, "this draft accepts %.2f drafts with the %s, %.2f with the %s: %s%s\n", r->trial[0].accepted,
                        name[r->captured], r->trial[i].accepted, name[r->trial[i].stream],
                        r->trained_for < 0 ? "these prompts do not tell which one it was trained for"
                                           : "trained for the ",
                        r->trained_for < 0 ? "" : name[r->trained_for]);
    for (int l = 0; l < x->d.n_layers; l++) {
        if (x->d.type[l] != DRAFT_SLIDING) continue;
        fprintf(f, "draft layer %d attends ", l);
        if (r->reach[l] < 0) fprintf(f, "(not measured: the prompts are shorter than its window of %d)\n", x->d.window);
        else if (r->reach[l] == 0) fprintf(f, "more than its sliding_window of %d\n", x->d.window);
        else fprintf(f, "%d positions, sliding_window is %d\n", r->reach[l], x->d.window);
    }
}

static void print_trials(const struct diagnose_result *r, FILE *f)
{
    fprintf(f,
            "\nhypotheses: the engine as it is, and with one thing changed, from the same %d positions\n  accepted  "
            "gain         -ln p   gain        right  what is changed\n",
            r->trial[0].n);
    for (int i = 0; i < r->n_trials; i++) {
        const struct diagnose_trial *x = &r->trial[i];
        fprintf(f, "  %8.2f  %+5.2f+-%4.2f %6.2f %+6.2f+-%4.2f %5.0f%%  %s", x->accepted, x->gain, x->gain_error,
                x->nll, x->nll_gain, x->nll_gain_error, 100 * x->slots, x->name);
        if (!isnan(x->tau)) fprintf(f, " (accept length %.2f)", x->tau);
        fputc('\n', f);
    }
}

static void print_findings(const struct diagnose_result *r, FILE *f)
{
    fputc('\n', f);
    if (r->n_findings == 0) fprintf(f, "no fault found; accept length %.2f\n", r->tau);
    for (int i = 0; i < r->n_findings; i++) {
        const struct diagnose_finding *x = &r->finding[i];
        fprintf(f, "FOUND %s", x->fault);
        if (!isnan(x->before) && !isnan(x->after))
            fprintf(f, "; accept length %.2f, without it %.2f", x->before, x->after);
        fprintf(f, "\n      %s\n", x->text);
    }
    if (r->n_findings == 0 && r->trial[0].slots < 0.3)
        fprintf(f, "acceptance is low and nothing that was tried raises it: the draft itself, or its prompts; this "
                   "says nothing of why\n");
}

void diagnose_print(const struct options *o, const struct diagnose_files *x, const struct diagnose_result *r, FILE *f)
{
    print_rounds(r, f);
    print_divergence(r, f);
    print_state(r, f);
    print_captures(x, r, f);
    print_trials(r, f);
    print_findings(r, f);
    if (o->out) fprintf(f, "everything measured: %s, group /diagnose\n", o->out);
}

/* ---- file ------------------------------------------------------------------------------------------ */

#define FIELD(type, member, kind)                                                                                      \
    {                                                                                                                  \
#member, kind, offsetof(struct type, member), 0                                                                \
    }
#define TABLE(type, field)                                                                                             \
    {                                                                                                                  \
        field, (int)(sizeof field / sizeof field[0]), sizeof(struct type)                                              \
    }

enum status diagnose_claim(const struct options *o)
{
    const char *const in[][2] = {{"prompts", o->prompts}};
    struct h5 *f;
    if (outfile_is(o->out, in[0][1]))
        return ERR(ST_E_FILE, "--out %s: is the file of --%s; name another file to write", o->out, in[0][0]);
    if (access(o->out, F_OK) == 0) {
        if (!o->force) return ERR(ST_E_FILE, "--out %s: exists; replace it with --force, or name another file", o->out);
        TRY(h5_open(o->out, 0, &f));
        int mine = h5_exists(f, "/diagnose");
        h5_close(f);
        if (!mine)
            return ERR(ST_E_FILE, "--out %s: holds no diagnosis, and nothing else is replaced; name another file",
                       o->out);
    }
    return h5_check_folder(o->out);
}

static enum status write_rounds(struct h5 *f, const struct diagnose_result *r)
{
    static const struct h5_field field[] = {FIELD(diagnose_round, prompt, H5_KIND_I32),
                                            FIELD(diagnose_round, round, H5_KIND_I32),
                                            {"position", H5_KIND_I32, offsetof(struct diagnose_round, pos), 0},
                                            FIELD(diagnose_round, anchor, H5_KIND_I32),
                                            FIELD(diagnose_round, proposed, H5_KIND_I32),
                                            FIELD(diagnose_round, accepted, H5_KIND_I32),
                                            FIELD(diagnose_round, on_path, H5_KIND_I32),
                                            {"first_wrong", H5_KIND_I32, offsetof(struct diagnose_round, first), 0}};
    static const struct h5_table table = TABLE(diagnose_round, field);
    size_t n = (size_t)r->n_rounds * (size_t)r->n_draft;
    int64_t dim[2] = {r->n_rounds, r->n_draft};
    TRY(h5_make_rows(f, "/diagnose/rounds", &table, 256));
    TRY(h5_append_rows(f, "/diagnose/rounds", &table, r->n_rounds, r->round));
    int32_t *v = mem_alloc(3 * n + 1, sizeof *v, "drafts of rounds");
    float *gap = mem_alloc(n + 1, sizeof *gap, "gaps of rounds");
    enum status st = v && gap ? ST_OK : ST_E_NOMEM;
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        v[i] = r->slot[i].draft;
        v[n + i] = r->slot[i].target;
        v[2 * n + i] = r->slot[i].rank;
        gap[i] = r->slot[i].gap;
    }
    if (st == ST_OK) st = h5_write(f, "/diagnose/draft", H5_KIND_I32, 2, dim, v);
    if (st == ST_OK) st = h5_write(f, "/diagnose/target", H5_KIND_I32, 2, dim, v + n);
    if (st == ST_OK) st = h5_write(f, "/diagnose/rank", H5_KIND_I32, 2, dim, v + 2 * n);
    if (st == ST_OK) st = h5_write(f, "/diagnose/gap", H5_KIND_F32, 2, dim, gap);
    mem_free(v);
    mem_free(gap);
    return st;
}

struct state_row {
    int32_t prompt, round, position;
    char part[16];
    int32_t layer, first_position;
    double error, fp32_error, replay_error;
};

static enum status write_state(struct h5 *f, const struct diagnose_result *r)
{
    static const struct h5_field field[] = {
        FIELD(state_row, prompt, H5_KIND_I32),
        FIELD(state_row, round, H5_KIND_I32),
        FIELD(state_row, position, H5_KIND_I32),
        {"part", H5_KIND_STR, offsetof(struct state_row, part), sizeof((struct state_row *)0)->part},
        FIELD(state_row, layer, H5_KIND_I32),
        FIELD(state_row, first_position, H5_KIND_I32),
        FIELD(state_row, error, H5_KIND_F64),
        FIELD(state_row, fp32_error, H5_KIND_F64),
        FIELD(state_row, replay_error, H5_KIND_F64)};
    static const struct h5_table table = TABLE(state_row, field);
    TRY(h5_make_rows(f, "/diagnose/state", &table, 256));
    for (int i = 0; i < r->n_checks; i++) {
        const struct diagnose_check *x = &r->check[i];
        struct state_row row[PART_N];
        memset(row, 0, sizeof row);
        for (int c = 0; c < PART_N; c++) {
            const struct diagnose_diff *d = &x->state[c];
            row[c] = (struct state_row){.prompt = x->prompt,
                                        .round = x->round,
                                        .position = x->pos,
                                        .layer = d->layer,
                                        .first_position = d->pos,
                                        .error = d->error,
                                        .fp32_error = x->fp32[c].error,
                                        .replay_error = c <= PART_CONV && x->round >= 0 ? x->replay[c].error : NAN};
            snprintf(row[c].part, sizeof row[c].part, "%s", diagnose_part_name[c]);
        }
        TRY(h5_append_rows(f, "/diagnose/state", &table, PART_N, row));
    }
    return ST_OK;
}

static enum status write_trials(struct h5 *f, const struct diagnose_result *r)
{
    static const struct h5_field field[] = {
        {"name", H5_KIND_STR, offsetof(struct diagnose_trial, name), sizeof((struct diagnose_trial *)0)->name},
        {"anchors", H5_KIND_I32, offsetof(struct diagnose_trial, n), 0},
        FIELD(diagnose_trial, accepted, H5_KIND_F64),
        FIELD(diagnose_trial, gain, H5_KIND_F64),
        FIELD(diagnose_trial, gain_error, H5_KIND_F64),
        {"right", H5_KIND_F64, offsetof(struct diagnose_trial, slots), 0},
        FIELD(diagnose_trial, nll, H5_KIND_F64),
        FIELD(diagnose_trial, nll_gain, H5_KIND_F64),
        FIELD(diagnose_trial, nll_gain_error, H5_KIND_F64),
        {"accept_length", H5_KIND_F64, offsetof(struct diagnose_trial, tau), 0}};
    static const struct h5_table table = TABLE(diagnose_trial, field);
    TRY(h5_make_rows(f, "/diagnose/hypotheses", &table, 64));
    return h5_append_rows(f, "/diagnose/hypotheses", &table, r->n_trials, r->trial);
}

static enum status write_findings(struct h5 *f, const struct diagnose_result *r)
{
    static const struct h5_field field[] = {
        {"fault", H5_KIND_STR, offsetof(struct diagnose_finding, fault), sizeof((struct diagnose_finding *)0)->fault},
        {"text", H5_KIND_STR, offsetof(struct diagnose_finding, text), sizeof((struct diagnose_finding *)0)->text},
        {"accept_length_before", H5_KIND_F64, offsetof(struct diagnose_finding, before), 0},
        {"accept_length_after", H5_KIND_F64, offsetof(struct diagnose_finding, after), 0}};
    static const struct h5_table table = TABLE(diagnose_finding, field);
    TRY(h5_make_rows(f, "/diagnose/findings", &table, 16));
    return h5_append_rows(f, "/diagnose/findings", &table, r->n_findings, r->finding);
}

static enum status write_all(struct h5 *f, const struct options *o, const struct diagnose_files *x,
                             const struct diagnose_result *r)
{
    static const char *const stream[] = {"engine", "mixture", "prefix"};
    int64_t n = r->n_draft, layers = x->d.n_layers;
    TRY(h5_group(f, "/diagnose"));
    TRY(h5_set_str(f, "/", "schema", "pdflash-diagnose"));
    TRY(h5_set_int(f, "/", "schema_version", 1));
    TRY(h5_set_str(f, "/diagnose", "model", o->model));
    TRY(h5_set_str(f, "/diagnose", "draft", o->draft));
    TRY(h5_set_str(f, "/diagnose", "prompts", o->prompts));
    TRY(h5_set_str(f, "/diagnose", "spec", draft_kind_name(x->d.kind)));
    TRY(h5_set_real(f, "/diagnose", "accept_length", r->tau));
    TRY(h5_set_real(f, "/diagnose", "tolerance", r->tolerance));
    TRY(h5_set_str(f, "/diagnose", "captures", stream[r->captured]));
    TRY(h5_set_str(f, "/diagnose", "trained_for", r->trained_for < 0 ? "unknown" : stream[r->trained_for]));
    TRY(write_rounds(f, r));
    TRY(write_state(f, r));
    TRY(write_trials(f, r));
    TRY(write_findings(f, r));
    TRY(h5_write(f, "/diagnose/survival", H5_KIND_F64, 1, &n, r->survival));
    TRY(h5_write(f, "/diagnose/conditional", H5_KIND_F64, 1, &n, r->conditional));
    TRY(h5_write(f, "/diagnose/right", H5_KIND_F64, 1, &n, r->slots));
    TRY(h5_write(f, "/diagnose/reach", H5_KIND_I32, 1, &layers, r->reach));
    return h5_flush(f);
}

enum status diagnose_write(const struct options *o, const struct diagnose_files *x, const struct diagnose_result *r)
{
    struct h5 *f;
    TRY(h5_create(o->out, o->force, &f));
    enum status st = write_all(f, o, x, r);
    h5_close(f);
    return st;
}
