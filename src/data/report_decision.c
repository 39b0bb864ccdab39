/* report_decision - the seed's rule: continue or diagnose. See report.h for what each check means. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/report.h"

/* the questions that the fixture knows by heart: inputs/gsm8k-train64.jsonl */
static const char train64_sha256[] = "33677560147f2b684ead8a7199d0c6041b21e59ae8c61b97bc294962a03cbab0";
static const char fixture[] = "k3-nano";

const char *report_verdict_name(enum report_verdict v)
{
    static const char *const name[REPORT_VERDICT_N] = {"continue", "diagnose", "undecided"};
    return (unsigned)v < REPORT_VERDICT_N ? name[v] : "?";
}

const char *report_check_name(enum report_check c)
{
    return c == REPORT_HOLDS ? "holds" : c == REPORT_FAILS ? "fails" : "not made";
}

static int is_done(const struct result_row *row)
{
    return row->stop == RESULT_EOS || row->stop == RESULT_LENGTH;
}

/* rows of both files are sorted by index */
void report_same_tokens(const struct report *a, const struct report *b, int64_t *compared_p, int64_t *identical_p,
                        int64_t *first_p)
{
    const struct results *x = a->results, *y = b->results;
    *compared_p = *identical_p = 0;
    *first_p = -1;
    for (size_t i = 0, k = 0; i < x->n && k < y->n;) {
        const struct result_row *r = &x->row[i], *s = &y->row[k];
        if (r->index != s->index) {
            if (r->index < s->index)
                i++;
            else
                k++;
            continue;
        }
        i++;
        k++;
        if (!is_done(r) || !is_done(s)) continue;
        int same = r->output_tokens == s->output_tokens &&
                   (r->output_tokens == 0 ||
                    memcmp(r->token, s->token, (size_t)r->output_tokens * sizeof *r->token) == 0);
        *compared_p += 1;
        *identical_p += same;
        if (!same && *first_p < 0) *first_p = r->index;
    }
}

/* "key is A here and B there" for each of the keys that differ; returns how many do */
static int differences(const struct report *a, const struct report *b, const char *const *key, int n_keys, int must_say,
                       char *text, size_t n)
{
    int found = 0;
    for (int i = 0; i < n_keys; i++) {
        char x[32], y[32];
        const char *here = report_attr(a, key[i], x, sizeof x), *there = report_attr(b, key[i], y, sizeof y);
        if (strcmp(here, there) == 0 && (here[0] || !must_say)) continue;
        size_t len = strlen(text);
        snprintf(text + len, n - len, "%s%s is %.60s here and %.60s in the reference", found++ ? "; " : "", key[i],
                 here[0] ? here : "not recorded", there[0] ? there : "not recorded");
    }
    return found;
}

/* the tokens of the run were drawn; older files say nothing of it: they are greedy */
static int draws(const struct report *p)
{
    char x[32];
    return strtod(report_attr(p, "option_temperature", x, sizeof x), NULL) > 0;
}

/* Tokens that are drawn are those of another run only under the same draws; and drafts that were sampled lead to other
 * tokens of the same law. Says why in note, and 1, when they cannot be compared. */
static int draws_differ(const struct report *p, const struct report *ref, char *note, size_t n)
{
    static const char *const key[] = {"option_temperature", "option_top-p", "option_top-k", "option_seed"};
    const struct report *both[] = {p, ref};
    char x[32];
    int sampled = 0;
    if (!draws(p) && !draws(ref)) return 0;
    for (int i = 0; i < 2; i++)
        sampled += draws(both[i]) && strcmp(report_attr(both[i], "drafts", x, sizeof x), "sample") == 0;
    if (differences(p, ref, key, (int)(sizeof key / sizeof key[0]), 0, note, n)) return 1;
    if (sampled) snprintf(note, n, "tokens are drawn with sampled drafts: the same law, not the same tokens");
    return sampled > 0;
}

/* --spec, block, concurrency and topology do not change tokens; these do */
static void check_identity(const struct report *p, const struct report *ref, struct report_decision *d)
{
    static const char *const key[] = {"model_hash",      "tokenizer_hash",     "prompts_hash", "option_max-new",
                                      "option_act",      "option_kv-dtype",    "option_mla-prefill",
                                      "option_device"};
    if (differences(p, ref, key, (int)(sizeof key / sizeof key[0]), 1, d->note, sizeof d->note)) return;
    if (draws_differ(p, ref, d->note, sizeof d->note)) return;
    report_same_tokens(p, ref, &d->compared, &d->identical, &d->first_different);
    if (d->compared == 0)
        snprintf(d->note, sizeof d->note, "no question has a row that ended in both files");
    else
        d->identity = d->identical == d->compared ? REPORT_HOLDS : REPORT_FAILS;
}

/* rows that were cut off at the output limit and are wrong, as far as they came */
static int64_t cut_off(const struct report *p)
{
    int64_t n = 0;
    for (size_t i = 0; i < p->results->n; i++) {
        const struct result_row *row = &p->results->row[i];
        n += row->stop == RESULT_LENGTH && row->grade.correct[GSM8K_OPENAI] != 1;
    }
    return n;
}

static const char *train_does_not_apply(const struct report *p)
{
    char buf[32];
    const char *model = report_attr(p, "option_model", buf, sizeof buf);
    size_t n = strlen(model), f = strlen(fixture);
    while (n > 0 && model[n - 1] == '/') n--;
    if (n < f || memcmp(model + n - f, fixture, f) != 0 || (n > f && model[n - f - 1] != '/'))
        return "the model is not k3-nano";
    if (strcmp(report_attr(p, "source_sha256", buf, sizeof buf), train64_sha256) != 0)
        return "the prompts are not the 64 train questions";
    if (draws(p)) return "tokens were drawn (--temperature), and by heart is the likeliest token";
    return NULL;
}

static void check_train(const struct report *p, struct report_decision *d)
{
    const char *why = train_does_not_apply(p);
    d->train_note = why ? why : "";
    if (why) return;
    d->train_rows = p->questions;
    d->train_right = p->correct[GSM8K_OPENAI];
    d->train_cut = cut_off(p);
    d->train64 = d->train_right == d->train_rows ? REPORT_HOLDS : REPORT_FAILS;
}

static enum report_verdict say(struct report_decision *d, enum report_verdict v, const char *why)
{
    snprintf(d->why, sizeof d->why, "%s", why);
    return v;
}

static enum report_verdict rule(struct report_decision *d)
{
    if (d->whole == REPORT_FAILS) return say(d, REPORT_DIAGNOSE, "the run is not whole: rows failed or are missing");
    if (d->identity == REPORT_FAILS) return say(d, REPORT_DIAGNOSE, "output tokens differ from those of the reference");
    if (d->train64 == REPORT_FAILS && d->train_cut > 0 && d->train_right + d->train_cut == d->train_rows)
        return say(d, REPORT_UNDECIDED, "the train questions not answered were all cut off: run again with more --max-new");
    if (d->train64 == REPORT_FAILS)
        return say(d, REPORT_DIAGNOSE, "the fixture does not answer all train questions it knows by heart");
    if (d->is_itself) return say(d, REPORT_UNDECIDED, "the reference is this very run: name another");
    if (d->correct == REPORT_NOT_MADE)
        return say(d, REPORT_UNDECIDED, "no check of the tokens could be made: correctness is unknown");
    if (isnan(d->gain)) return say(d, REPORT_UNDECIDED, "correct, but the decode gain could not be measured");
    if (d->gain > 1 && d->identity != REPORT_HOLDS)
        return say(d, REPORT_CONTINUE, "correct by its train answers (tokens not compared), and decoding is faster than the "
                                       "reference");
    if (d->gain > 1) return say(d, REPORT_CONTINUE, "correct, and decoding is faster than the reference");
    return say(d, REPORT_DIAGNOSE, "correct, but decoding is not faster than the reference");
}

/* What an attempt began with: a run_id is shared by all runs of a minute, a second and a command line (with --out) are
 * not. */
static int is_itself(const struct report *p, const struct report *ref)
{
    static const char *const name[] = {"run_id", "start_utc", "command_line"};
    int32_t n = p->results->attempt;
    int same = n == ref->results->attempt && p->results->n == ref->results->n;
    for (size_t i = 0; i < sizeof name / sizeof name[0] && same; i++) {
        char key[64];
        const char *a = results_attr_str(p->results, results_attempt_key(n, name[i], key, sizeof key));
        const char *b = results_attr_str(ref->results, key);
        same = a && b && a[0] && strcmp(a, b) == 0;
    }
    return same;
}

void report_decide(const struct report *p, const struct report_reference *ref, struct report_decision *d_p)
{
    static const char *const also[] = {"option_concurrency", "topology", "mode", "hosts", "isa"};
    struct report_decision d = {.reference = ref->name, .identity = REPORT_NOT_MADE, .train64 = REPORT_NOT_MADE,
                                .first_different = -1, .gain = NAN};
    d.whole = p->failed == 0 && p->missing == 0 && !p->is_failed_run ? REPORT_HOLDS : REPORT_FAILS;
    if (ref->report) {
        d.is_itself = is_itself(p, ref->report);
        check_identity(p, ref->report, &d);
        differences(p, ref->report, also, (int)(sizeof also / sizeof also[0]), 0, d.caveat, sizeof d.caveat);
    } else {
        snprintf(d.note, sizeof d.note, "the reference is external figures: it has no tokens");
    }
    check_train(p, &d);
    if (d.whole == REPORT_FAILS || d.identity == REPORT_FAILS || d.train64 == REPORT_FAILS)
        d.correct = REPORT_FAILS;
    else
        d.correct = d.identity == REPORT_HOLDS || d.train64 == REPORT_HOLDS ? REPORT_HOLDS : REPORT_NOT_MADE;
    d.tps = p->output_tps_decode;
    d.reference_tps = ref->output_tps_decode;
    if (d.tps > 0 && d.reference_tps > 0) d.gain = d.tps / d.reference_tps;
    d.accept_length = p->accept_length;
    d.reference_accept_length = ref->accept_length;
    d.verdict = rule(&d);
    *d_p = d;
}

enum status report_external(const char *path, struct report_reference *ref_p)
{
    static const struct {
        const char *key;
        int wanted;
    } figure[] = {{"output_tps_decode", 1}, {"accept_length", 0}};
    double v[2] = {NAN, NAN};
    json_error_t e;
    FILE *f = fopen(path, "rb");
    if (!f) return ERR(ST_E_FILE, "%s: cannot open: %s", path, strerror(errno));
    json_t *o = json_loadf(f, JSON_REJECT_DUPLICATES, &e);
    fclose(f);
    if (!json_is_object(o)) {
        json_decref(o);
        return ERR(ST_E_FORMAT, "%s: neither results of this program nor a JSON object with figures%s%s", path,
                   e.text[0] ? ": " : "", e.text);
    }
    enum status st = ST_OK;
    for (int i = 0; i < 2 && st == ST_OK; i++) {
        const json_t *x = json_object_get(o, figure[i].key);
        if (json_is_number(x) && json_number_value(x) > 0)
            v[i] = json_number_value(x);
        else if (figure[i].wanted || (x && !json_is_null(x)))
            st = ERR(ST_E_FORMAT, "%s: \"%s\" is %s; a number above 0 is wanted", path, figure[i].key,
                     x ? "no number above 0" : "missing");
    }
    json_decref(o);
    if (st == ST_OK) *ref_p = (struct report_reference){path, NULL, v[0], v[1]};
    return st;
}

static void figure(FILE *out, const char *name, double v, const char *unit)
{
    if (isnan(v))
        fprintf(out, "  %-28s not measured\n", name);
    else
        fprintf(out, "  %-28s %.6g%s\n", name, v, unit);
}

void report_decision_text(const struct report_decision *d, FILE *out)
{
    fprintf(out, "decision: %s - %s (reference %s)\n", report_verdict_name(d->verdict), d->why, d->reference);
    fprintf(out, "  %-28s %s\n", "whole run", report_check_name(d->whole));
    if (d->identity == REPORT_NOT_MADE)
        fprintf(out, "  %-28s not made: %s\n", "token identity", d->note);
    else
        fprintf(out, "  %-28s %s: %lld of %lld rows", "token identity", report_check_name(d->identity),
                (long long)d->identical, (long long)d->compared);
    if (d->identity == REPORT_FAILS) fprintf(out, ", first different: question %lld", (long long)d->first_different);
    if (d->identity != REPORT_NOT_MADE) fputc('\n', out);
    if (d->train64 == REPORT_NOT_MADE)
        fprintf(out, "  %-28s does not apply: %s\n", "train-64", d->train_note);
    else
        fprintf(out, "  %-28s %s: %lld of %lld right\n", "train-64", report_check_name(d->train64),
                (long long)d->train_right, (long long)d->train_rows);
    if (d->train_cut > 0)
        fprintf(out, "  %-28s %lld of the wrong ones were cut off at --max-new\n", "", (long long)d->train_cut);
    figure(out, "decode gain", d->gain, " times the reference");
    figure(out, "decode output", d->tps, " tokens/s");
    figure(out, "decode output, reference", d->reference_tps, " tokens/s");
    figure(out, "tau", d->accept_length, "");
    figure(out, "tau, reference", d->reference_accept_length, "");
    if (d->caveat[0]) fprintf(out, "  the two also differ: %s\n", d->caveat);
}
