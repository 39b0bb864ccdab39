/* From measurements to findings. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/diagnose_impl.h"

static __attribute__((format(printf, 5, 6))) void find(struct diagnose *g, const char *fault, double before,
                                                       double after, const char *fmt, ...)
{
    struct diagnose_result *r = &g->r;
    if (r->n_findings == (int)(sizeof r->finding / sizeof r->finding[0])) return;
    struct diagnose_finding *x = &r->finding[r->n_findings++];
    va_list va;
    snprintf(x->fault, sizeof x->fault, "%s", fault);
    va_start(va, fmt);
    vsnprintf(x->text, sizeof x->text, fmt, va);
    va_end(va);
    x->before = before;
    x->after = after;
}

/* ---- state ----------------------------------------------------------------------------------------- */

/* first check that finds a part different from recomputation, or n_checks */
static int first_check(const struct diagnose_result *r, enum diagnose_part c)
{
    int i = 0;
    while (i < r->n_checks && r->check[i].state[c].error <= r->tolerance) i++;
    return i;
}

/* first check at which the commit of KDA (0) or conv (1) differs from the snapshot run forward, or n_checks */
static int first_replay(const struct diagnose_result *r, int k)
{
    int i = 0;
    while (i < r->n_checks && r->check[i].replay[k].error <= r->tolerance) i++;
    return i;
}

static const char *state_fault(const struct diagnose *g, enum diagnose_part c)
{
    int back = strstr(g->note[c], "not rolled back") != NULL, zero = strstr(g->note[c], "zeros") != NULL;
    if (c == PART_KDA) return back ? "KDA state not rolled back" : "KDA state differs";
    if (c == PART_CONV) return back ? "conv tail not rolled back" : "conv tail differs";
    if (c == PART_MLA) return "MLA rows differ";
    return zero ? "draft KV zeroed" : "draft KV differs";
}

static void find_part(struct diagnose *g, enum diagnose_part c, int at)
{
    const struct diagnose_result *r = &g->r;
    const struct diagnose_check *x = &r->check[at];
    const struct diagnose_diff *d = &x->state[c];
    char when[64], where[64] = "", commit[120] = "";
    if (x->round < 0) snprintf(when, sizeof when, "after the prefill");
    else snprintf(when, sizeof when, "after the commit of round %d", x->round);
    if (d->pos >= 0) snprintf(where, sizeof where, ", first at position %d", d->pos);
    if (x->round >= 0 && c <= PART_CONV)
        snprintf(commit, sizeof commit, " Replay against the snapshot run forward: %.2g.",
                 x->replay[c == PART_CONV].error);
    find(g, state_fault(g, c), r->tau, r->trial[0].tau,
         "%s of prompt %d (position %d): %s%s off from recomputation by %.2g (layer %d%s)%s%s.%s", when, x->prompt,
         x->pos, diagnose_part_name[c], c >= PART_DRAFT_K ? " cache" : "", d->error, d->layer, where,
         g->note[c][0] ? ": " : "", g->note[c],
         commit);
}

/* What differs first is the fault; what differs later follows from it, unless a commit is seen to be wrong itself. */
static int find_state(struct diagnose *g)
{
    const struct diagnose_result *r = &g->r;
    int first[PART_N], earliest = r->n_checks, before = r->n_findings;
    for (int c = 0; c < PART_N; c++) {
        first[c] = first_check(r, (enum diagnose_part)c);
        earliest = first[c] < earliest ? first[c] : earliest;
    }
    for (int c = 0; c < PART_N && earliest < r->n_checks; c++) {
        int commit = c <= PART_CONV ? first_replay(r, c == PART_CONV) : r->n_checks;
        if (c == PART_DRAFT_V && first[PART_DRAFT_K] == first[c]) continue; /* said with K */
        if (first[c] == earliest) find_part(g, (enum diagnose_part)c, earliest);
        else if (commit < r->n_checks) find_part(g, (enum diagnose_part)c, commit);
    }
    return r->n_findings - before;
}

/* ---- windows --------------------------------------------------------------------------------------- */

static enum status find_reach(struct diagnose *g)
{
    const struct draft_config *c = g->p.d;
    int wrong = 0, first = -1;
    for (int l = 0; l < c->n_layers; l++) {
        if (c->type[l] != DRAFT_SLIDING || g->r.reach[l] < 0 || g->r.reach[l] == c->window) continue;
        if (first < 0) first = l;
        wrong++;
    }
    if (first < 0) return ST_OK;
    int reach = g->r.reach[first], off = c->window - reach;
    struct diagnose_trial fix = {.kind = TRIAL_WINDOW, .mask = -1, .window_shift = off, .tau = NAN};
    if (reach > 0 && c->window + off > 0) TRY(diagnose_walk(g, &fix));
    char seen[48];
    if (reach > 0) snprintf(seen, sizeof seen, "%d positions", reach);
    else snprintf(seen, sizeof seen, "more than %d positions", c->window + 2);
    find(g, reach > 0 && (off == 1 || off == -1) ? "window off by one" : "wrong window", g->r.tau, fix.tau,
         "%d sliding layer%s (the first is layer %d) attend%s %s, sliding_window is %d: measured by changing the "
         "values of one position after the other; acceptance need not show it",
         wrong, wrong > 1 ? "s" : "", first, wrong > 1 ? "" : "s", seen, c->window);
    return ST_OK;
}

/* ---- hypotheses ------------------------------------------------------------------------------------ */

static int is_better(const struct diagnose_trial *x)
{
    int by_tokens = x->gain > 0.25 && x->gain > 3 * x->gain_error;
    int by_nll = x->nll_gain > 0.1 && x->nll_gain > 4 * x->nll_gain_error;
    return (by_tokens && x->nll_gain > 0) || (by_nll && x->gain > x->gain_error);
}

static int is_worse(const struct diagnose_trial *x)
{
    return (x->gain < -0.25 && -x->gain > 3 * x->gain_error) ||
           (x->nll_gain < -0.1 && -x->nll_gain > 4 * x->nll_gain_error);
}

static const char *trial_fault(const struct diagnose_trial *x)
{
    switch (x->kind) {
    case TRIAL_TAP: return x->layer_shift > 0 ? "taps one layer early" : "taps one layer late";
    case TRIAL_STREAM:
        if (x->stream == STREAM_MIXTURE)
            return x->layer_shift ? "prefix instead of mixture, and another layer" : "prefix instead of mixture";
        return x->layer_shift ? "mixture instead of prefix, and another layer" : "mixture instead of prefix";
    case TRIAL_SLOT: return "shifted slots";
    case TRIAL_MASK: return "wrong mask id";
    case TRIAL_ROPE: return "wrong RoPE base";
    case TRIAL_FC: return "fc columns swapped";
    case TRIAL_WINDOW: return "window off by one";
    case TRIAL_YARN: return "wrong YaRN amplitude";
    case TRIAL_AS_IS: break;
    }
    return "none";
}

/* names of trials that are better than "as it is" and not to be told from the best, after a colon */
static enum status equals_of(struct diagnose *g, const struct diagnose_trial *best, char *text, size_t n)
{
    const struct diagnose_result *r = &g->r;
    struct diagnose_trial again = *best;
    size_t len = 0;
    text[0] = 0;
    TRY(diagnose_measure(g, &again, best->n));
    diagnose_base(g, best->n);
    for (int i = 1; i < r->n_trials; i++) {
        struct diagnose_trial x = r->trial[i];
        if (&r->trial[i] == best || !is_better(&x)) continue;
        TRY(diagnose_measure(g, &x, best->n));
        if (x.gain < -2 * x.gain_error || x.nll_gain < -2 * x.nll_gain_error || x.nll_gain < -0.1) continue;
        len += (size_t)snprintf(text + len, n - len, "%s%s", len ? "; " : "", x.name);
        if (len >= n) len = n - 1;
    }
    return ST_OK;
}

static void name_setting(const struct diagnose *g, const struct diagnose_trial *x, char *text, size_t n)
{
    const struct draft_config *c = g->p.d;
    text[0] = 0;
    if (x->kind == TRIAL_MASK) snprintf(text, n, " (mask_token_id is %d)", c->mask_id);
    if (x->kind == TRIAL_ROPE) snprintf(text, n, " (rope_theta is %g)", c->rope.theta);
    if (x->kind == TRIAL_WINDOW) snprintf(text, n, " (sliding_window is %d)", c->window);
    if (x->kind == TRIAL_YARN) snprintf(text, n, " (it is %g)", c->rope.amplitude);
    if (x->kind == TRIAL_FC) snprintf(text, n, " (layers %d and %d)", c->tap[x->swap_a], c->tap[x->swap_b]);
    if (x->kind == TRIAL_TAP || x->kind == TRIAL_STREAM)
        snprintf(text, n, " (the first is layer %d, from the %s%s)", c->tap[0],
                 g->r.captured == STREAM_MIXTURE ? "mixture" : "prefix",
                 g->r.captured_error > 0.01 ? " or something else" : "");
}

static enum status find_trial(struct diagnose *g)
{
    struct diagnose_result *r = &g->r;
    struct diagnose_trial *best = NULL;
    char same[300], now[120];
    for (int i = 1; i < r->n_trials; i++)
        if (is_better(&r->trial[i]) && (!best || r->trial[i].nll < best->nll)) best = &r->trial[i];
    if (!best) return ST_OK;
    for (int i = 0; i < r->n_findings && best->kind == TRIAL_WINDOW; i++)
        if (strcmp(r->finding[i].fault, trial_fault(best)) == 0) return ST_OK; /* its reach was measured */
    TRY(diagnose_walk(g, best));
    if (best->tau < r->trial[0].tau) return ST_OK; /* better at the anchors, and yet worse as a whole */
    TRY(equals_of(g, best, same, sizeof same));
    name_setting(g, best, now, sizeof now);
    find(g, trial_fault(best), r->trial[0].tau, best->tau,
         "acceptance is restored by: %s%s. At %d anchors %.2f drafts are accepted instead of %.2f (gain %.2f +- %.2f), "
         "-ln p of the true token is %.2f instead of %.2f.%s%s%s",
         best->name, now, best->n, best->accepted, r->trial[0].accepted, best->gain, best->gain_error, best->nll,
         r->trial[0].nll, same[0] ? " Not to be told from it here: " : "", same, same[0] ? "." : "");
    return ST_OK;
}

/* ---- captures -------------------------------------------------------------------------------------- */

static void find_captures(struct diagnose *g)
{
    struct diagnose_result *r = &g->r;
    int other = r->captured == STREAM_MIXTURE ? STREAM_PREFIX : STREAM_MIXTURE;
    for (int i = 1; i < r->n_trials; i++) {
        const struct diagnose_trial *x = &r->trial[i];
        if (x->kind != TRIAL_STREAM || (int)x->stream != other || x->layer_shift) continue;
        r->trained_for = is_better(x) ? other : is_worse(x) ? (int)r->captured : -1;
    }
    if (r->captured_error > 0.05)
        find(g, "captures of neither stream", r->tau, NAN,
             "the engine's captures differ from the mixture and from the prefix stream, at the layer and its "
             "neighbours, by %.2g at least",
             r->captured_error);
    else if (r->captured_shift)
        find(g, r->captured_shift < 0 ? "taps one layer early" : "taps one layer late", r->tau, NAN,
             "the engine's capture for layer %d is the stream after layer %d",
             g->p.d->tap[0], g->p.d->tap[0] + r->captured_shift);
}

/* ---- the rest -------------------------------------------------------------------------------------- */

static void find_rounds(struct diagnose *g, int state)
{
    const struct diagnose_result *r = &g->r;
    if (r->not_numbers)
        find(g, "not numbers", r->tau, r->trial[0].tau, "a round ended because logits or drafts are NaN");
    if (state > 0 || r->not_numbers) return; /* what follows is then no news */
    if (r->first_wrong_prompt >= 0)
        find(g, "output differs from plain decoding", r->tau, r->trial[0].tau,
             "prompt %d, token %d; the state agrees with recomputation, so look at the verify step and the accept rule",
             r->first_wrong_prompt, r->first_wrong_token);
    else if (fabs(r->tau - r->trial[0].tau) > 0.02)
        find(g, "rounds accept other drafts", r->tau, r->trial[0].tau,
             "the engine's rounds have an accept length of %.3f, the same draft from recomputed context %.3f",
             r->tau, r->trial[0].tau);
}

enum status diagnose_find(struct diagnose *g)
{
    int state = find_state(g);
    if (g->r.scratch_error > g->r.tolerance)
        find(g, "prefill depends on its pieces", NAN, NAN,
             "one prefill of prompt and output gives another state than pieces of it do: %.2g",
             g->r.scratch_error);
    TRY(find_reach(g));
    TRY(find_trial(g));
    find_captures(g);
    find_rounds(g, state);
    return ST_OK;
}
