/* Hypotheses: the engine changed in one thing each, drafting from the same anchors of the true paths. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "model/diagnose_impl.h"

/* ---- the engine, changed --------------------------------------------------------------------------- */

struct held {
    struct draft_config c;
    double inv[OPS_ROPE_DIM / 2];
}; /* what the engine was */

static void change(struct diagnose *g, const struct diagnose_trial *x, struct held *held)
{
    struct draft_config *c = &g->d->c;
    held->c = *c;
    memcpy(held->inv, g->d->inv, sizeof held->inv);
    if (x->mask >= 0) c->mask_id = x->mask;
    if (x->theta > 0) c->rope_theta = c->rope.theta = x->theta;
    if (x->amplitude > 0) c->rope.amplitude = x->amplitude;
    c->window += x->window_shift;
    if (c->rope.yarn) rope_frequencies(&c->rope, c->head_dim, g->d->inv);
}

static void change_back(struct diagnose *g, const struct held *held)
{
    g->d->c = held->c;
    memcpy(g->d->inv, held->inv, sizeof held->inv);
}

/* The drafts read some slots later: the head once more over other rows of the block stream that draft_block left. The
 * rows move down by one first, so that one in front of the first exists; a row of no slot is one of a neighbour. */
static enum status read_slots(struct diagnose *g, const struct draft_seq *seq, int n_seq, int shift)
{
    struct draft *d = g->d;
    int n = g->n_draft, first = draft_first_slot(&d->c), width = n + first, turn = !first;
    int64_t h = d->c.hidden;
    float *x = draft_f32(&d->x), *y = draft_f32(&d->part);
    for (int64_t r = (int64_t)n_seq * width - 1; r >= 0; r--)
        d->o->copy(d->o, x + (r + 1) * h, x + r * h, (size_t)h * 4);
    for (int i = 0; i < n_seq; i++)
        for (int j = 0; j < n; j++)
            d->o->rmsnorm(d->o, x + (1 + (int64_t)i * width + first + j + shift) * h, h, draft_f32(&d->final_norm),
                          d->c.norm_eps, 1, (int)h, y + (int64_t)(turn ? j * n_seq + i : i * n + j) * h, h);
    TRY(target_head(g->t, y, n_seq * n));
    return turn ? draft_markov(d, g->t, seq, NULL, n_seq, n, y, g->ids) : target_argmax_rows(g->t, g->ids);
}

/* ---- scores ---------------------------------------------------------------------------------------- */

/* -ln p of a token under a row of logits */
static double surprise(const float *row, int n, int32_t token)
{
    float most = row[0];
    double sum = 0;
    for (int i = 1; i < n; i++) most = row[i] > most ? row[i] : most;
    for (int i = 0; i < n; i++)
        if (row[i] - most > -25) sum += expf(row[i] - most); /* the rest is below the rounding of the sum */
    return most + log(sum) - row[token];
}

/* anchors a .. a + n_seq - 1, whose drafts are in ids and whose logits the target holds */
static void score(struct diagnose *g, int a, int n_seq, int with_nll, double *slots_p)
{
    int n = g->n_draft, vocab = g->p.c->vocab, rows, turn = !draft_first_slot(&g->d->c);
    const float *logits = target_logits(g->t, &rows);
    for (int i = 0; i < n_seq; i++) {
        const struct known *k = &g->known[g->anchor[a + i].prompt];
        const int32_t *truth = k->id + k->n_prompt + g->anchor[a + i].at + 1, *id = g->ids + i * n;
        int accepted = 0;
        double nll = 0;
        while (accepted < n && id[accepted] == truth[accepted]) accepted++;
        for (int j = 0; j < n; j++) {
            *slots_p += id[j] == truth[j];
            if (!with_nll) continue;
            g->o->get(g->o, g->line, logits + (int64_t)(turn ? j * n_seq + i : i * n + j) * vocab, (size_t)vocab * 4);
            nll += surprise(g->line, vocab, truth[j]);
        }
        g->accepted[a + i] = (float)accepted;
        g->nll[a + i] = (float)(nll / n);
    }
}

/* anchors [a, end) of one prompt, its context in slot */
static enum status draft_from(struct diagnose *g, const struct diagnose_trial *x, int a, int end, int slot,
                              int with_nll, double *slots_p)
{
    struct draft_seq seq[SEQS];
    for (; a < end; a += SEQS) {
        int n_seq = end - a < SEQS ? end - a : SEQS;
        for (int i = 0; i < n_seq; i++) {
            const struct known *k = &g->known[g->anchor[a + i].prompt];
            int pos = k->n_prompt + g->anchor[a + i].at;
            seq[i] = (struct draft_seq){slot, pos, k->id[pos]};
        }
        diagnose_phase(g, DIAGNOSE_ROUND);
        enum status st = draft_block(g->d, g->t, &g->work, seq, n_seq, g->block, g->ids, NULL);
        if (st == ST_OK && x->slot_shift) st = read_slots(g, seq, n_seq, x->slot_shift);
        diagnose_phase(g, DIAGNOSE_OUTSIDE);
        TRY(st);
        score(g, a, n_seq, with_nll, slots_p);
    }
    return ST_OK;
}

/* the first n anchors, which are in order of prompts */
static enum status draft_all(struct diagnose *g, const struct diagnose_trial *x, int n, int with_nll, double *slots_p)
{
    *slots_p = 0;
    for (int a = 0, end; a < n; a = end) {
        int prompt = g->anchor[a].prompt, slot, last = 0;
        for (end = a; end < n && g->anchor[end].prompt == prompt; end++)
            last = g->anchor[end].at > last ? g->anchor[end].at : last;
        TRY(state_admit(&g->work, g->max_tokens, &slot));
        TRY(diagnose_context(g, x, prompt, g->known[prompt].n_prompt + last, slot));
        TRY(draft_from(g, x, a, end, slot, with_nll, slots_p));
        TRY(state_release(&g->work, slot));
    }
    return ops_check(g->o);
}

/* mean and standard error of sign * (x - base) */
static void paired(const float *x, const float *base, int n, double sign, double *mean_p, double *error_p)
{
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++) {
        double d = sign * ((double)x[i] - base[i]);
        sum += d;
        square += d * d;
    }
    double mean = sum / n, variance = n > 1 ? (square - n * mean * mean) / (n - 1) : 0;
    *mean_p = mean;
    *error_p = n > 1 ? sqrt(variance > 0 ? variance / n : 0) : INFINITY; /* one anchor tells nothing of others */
}

void diagnose_base(struct diagnose *g, int n)
{
    memcpy(g->base_accepted, g->accepted, (size_t)n * sizeof *g->accepted);
    memcpy(g->base_nll, g->nll, (size_t)n * sizeof *g->nll);
}

enum status diagnose_measure(struct diagnose *g, struct diagnose_trial *x, int n)
{
    struct held held;
    double accepted = 0, nll = 0;
    change(g, x, &held);
    enum status st = draft_all(g, x, n, 1, &x->slots);
    change_back(g, &held);
    TRY(st);
    if (x->kind == TRIAL_AS_IS) diagnose_base(g, n);
    for (int i = 0; i < n; i++) accepted += g->accepted[i], nll += g->nll[i];
    x->n = n;
    x->accepted = accepted / n;
    x->slots /= (double)n * g->n_draft;
    x->nll = nll / n;
    x->tau = NAN;
    paired(g->accepted, g->base_accepted, n, 1, &x->gain, &x->gain_error);
    paired(g->nll, g->base_nll, n, -1, &x->nll_gain, &x->nll_gain_error);
    return ST_OK;
}

/* ---- anchors --------------------------------------------------------------------------------------- */

/* evenly spread over the true paths; every = all of them */
static void set_anchors(struct diagnose *g, int every)
{
    int all = 0, seen = 0;
    for (int i = 0; i < g->p.n_prompts; i++) all += g->known[i].n_out > 1 ? g->known[i].n_out - 1 : 0;
    int want = every || g->p.anchors > all ? all : g->p.anchors;
    g->n_anchors = 0;
    for (int i = 0; i < g->p.n_prompts; i++)
        for (int at = 0; at + 1 < g->known[i].n_out; at++, seen++)
            if ((int64_t)(seen + 1) * want / all > (int64_t)seen * want / all)
                g->anchor[g->n_anchors++] = (struct anchor){i, at};
}

enum status diagnose_walk(struct diagnose *g, struct diagnose_trial *x)
{
    struct held held;
    double slots, sum = 0;
    int rounds = 0;
    set_anchors(g, 1);
    change(g, x, &held);
    enum status st = draft_all(g, x, g->n_anchors, 0, &slots);
    change_back(g, &held);
    for (int a = 0; a < g->n_anchors; rounds++) { /* as a run goes: from an anchor past what it accepts */
        int prompt = g->anchor[a].prompt, step = (int)g->accepted[a] + 1;
        sum += step;
        for (; step > 0 && a < g->n_anchors && g->anchor[a].prompt == prompt; step--) a++;
    }
    x->tau = rounds ? sum / rounds : NAN;
    set_anchors(g, 0);
    return st;
}

/* ---- the list -------------------------------------------------------------------------------------- */

static __attribute__((format(printf, 3, 4))) struct diagnose_trial *add(struct diagnose *g, enum trial_kind kind,
                                                                        const char *fmt, ...)
{
    struct diagnose_result *r = &g->r;
    if (r->n_trials == g->cap_trials) {
        size_t old = (size_t)g->cap_trials, now = old ? 2 * old : 64;
        struct diagnose_trial *x = mem_grow(r->trial, old, now, sizeof *x, "hypotheses");
        if (!x) return NULL;
        r->trial = x;
        g->cap_trials = (int)now;
    }
    struct diagnose_trial *x = &r->trial[r->n_trials++];
    va_list va;
    *x = (struct diagnose_trial){.kind = kind, .mask = -1, .tau = NAN};
    va_start(va, fmt);
    vsnprintf(x->name, sizeof x->name, fmt, va);
    va_end(va);
    return x;
}

static int can_shift(const struct diagnose *g, int shift)
{
    for (int i = 0; i < g->p.d->n_taps; i++) {
        int found = 0;
        for (int k = 0; k < g->n_wanted; k++) found |= g->wanted[k] == g->p.d->tap[i] + shift;
        if (!found) return 0;
    }
    return 1;
}

static enum status add_captures(struct diagnose *g)
{
    static const char *const what[] = {"as the engine captures", "from the attention-residual mixture",
                                       "from the plain prefix stream"};
    for (int s = 0; s < STREAM_N; s++)
        for (int shift = -1; shift <= 1; shift++) {
            struct diagnose_trial *x;
            if ((s == STREAM_ENGINE && shift == 0) || !can_shift(g, shift)) continue;
            if (s != STREAM_ENGINE && shift != 0 && s == (int)g->r.captured)
                continue; /* the engine's own, tried already */
            x = add(g, s == STREAM_ENGINE ? TRIAL_TAP : TRIAL_STREAM, "captures %s%s", what[s],
                    shift < 0   ? ", one layer earlier"
                    : shift > 0 ? ", one layer later"
                                : "");
            if (!x) return ST_E_NOMEM;
            x->stream = (enum diagnose_stream)s;
            x->layer_shift = shift;
        }
    return ST_OK;
}

static enum status add_rope(struct diagnose *g)
{
    static const double known[] = {1e4, 5e4, 1e5, 5e5, 1e6, 5e6, 1e7};
    double mine = g->d->c.rope.theta, base[9] = {mine * 10, mine / 10};
    int n = 2;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) base[n++] = known[i];
    for (int i = 0; i < n; i++) {
        int again = base[i] <= 1 || base[i] == mine;
        for (int k = 0; k < i; k++) again |= base[k] == base[i];
        if (again) continue;
        struct diagnose_trial *x = add(g, TRIAL_ROPE, "RoPE base %g", base[i]);
        if (!x) return ST_E_NOMEM;
        x->theta = base[i];
    }
    return ST_OK;
}

/* both amplitudes where engines disagree: YaRN without an explicit attention_factor */
static enum status add_yarn(struct diagnose *g)
{
    const struct rope *r = &g->d->c.rope;
    double both[2] = {1, r->factor > 1 ? 0.1 * log(r->factor) + 1 : 1};
    for (int i = 0; r->yarn && !r->explicit_factor && i < 2; i++) {
        if (fabs(both[i] - r->amplitude) < 1e-9) continue;
        struct diagnose_trial *x = add(g, TRIAL_YARN, "YaRN amplitude %.6g", both[i]);
        if (!x) return ST_E_NOMEM;
        x->amplitude = both[i];
    }
    return ST_OK;
}

static enum status add_shifts(struct diagnose *g)
{
    int sliding = 0;
    for (int l = 0; l < g->p.d->n_layers; l++) sliding |= g->p.d->type[l] == DRAFT_SLIDING;
    for (int shift = -1; shift <= 1; shift += 2) {
        struct diagnose_trial *x = add(g, TRIAL_SLOT, "drafts read one slot %s", shift < 0 ? "earlier" : "later");
        if (!x) return ST_E_NOMEM;
        x->slot_shift = shift;
        if (!sliding || g->p.d->window + shift < 1) continue;
        if (!(x = add(g, TRIAL_WINDOW, "sliding_window %d", g->p.d->window + shift))) return ST_E_NOMEM;
        x->window_shift = shift;
    }
    return ST_OK;
}

static enum status add_swaps(struct diagnose *g)
{
    for (int a = 0; a < g->p.d->n_taps; a++)
        for (int b = a + 1; b < g->p.d->n_taps; b++) {
            struct diagnose_trial *x = add(g, TRIAL_FC, "fc column blocks %d and %d exchanged", a, b);
            if (!x) return ST_E_NOMEM;
            x->swap_a = a;
            x->swap_b = b;
        }
    return ST_OK;
}

enum { MASK_BEST = 3, MASK_FEW = 3 }; /* mask rows that go on; anchors, slots of the work pool, that choose them */

/* mean accepted drafts and mean surprise of the mask row of x at the few anchors of seq */
static enum status try_mask(struct diagnose *g, const struct draft_seq *seq, int few, struct diagnose_trial *x)
{
    struct held held;
    double slots = 0;
    change(g, x, &held);
    diagnose_phase(g, DIAGNOSE_ROUND);
    enum status st = draft_block(g->d, g->t, &g->work, seq, few, g->block, g->ids, NULL);
    diagnose_phase(g, DIAGNOSE_OUTSIDE);
    change_back(g, &held);
    TRY(st);
    score(g, 0, few, 1, &slots);
    x->accepted = x->nll = 0;
    for (int i = 0; i < few; i++) {
        x->accepted += g->accepted[i] / few;
        x->nll += g->nll[i] / few;
    }
    return ST_OK;
}

static int better_mask(const struct diagnose_trial *a, const struct diagnose_trial *b)
{
    return a->accepted != b->accepted ? a->accepted > b->accepted : a->nll < b->nll;
}

/* Special tokens are many: each is tried at a few anchors, and the best go on. The context does not depend on them. */
static enum status choose_masks(struct diagnose *g, struct diagnose_trial *best, int *n_best_p)
{
    struct draft_seq seq[MASK_FEW];
    int few = g->n_anchors < MASK_FEW ? g->n_anchors : MASK_FEW, n_best = 0;
    for (int i = 0; i < few; i++) { /* from the middles of as many parts of the list; they become its first */
        struct anchor a = g->anchor[i] = g->anchor[(2 * i + 1) * g->n_anchors / (2 * few)];
        const struct known *k = &g->known[a.prompt];
        seq[i] = (struct draft_seq){0, k->n_prompt + a.at, k->id[k->n_prompt + a.at]};
        TRY(state_admit(&g->work, g->max_tokens, &seq[i].slot));
        TRY(diagnose_context(g, &g->r.trial[0], a.prompt, seq[i].pos, seq[i].slot));
    }
    for (int i = 0; i < g->p.n_mask; i++) {
        struct diagnose_trial x = {.kind = TRIAL_MASK, .mask = g->p.mask[i]};
        if (x.mask == g->d->c.mask_id || x.mask < 0 || x.mask >= g->p.c->vocab) continue;
        TRY(try_mask(g, seq, few, &x));
        if (n_best == MASK_BEST && !better_mask(&x, &best[MASK_BEST - 1])) continue;
        int at = n_best < MASK_BEST ? n_best++ : MASK_BEST - 1;
        for (; at > 0 && better_mask(&x, &best[at - 1]); at--) best[at] = best[at - 1];
        best[at] = x;
    }
    for (int i = 0; i < few; i++) TRY(state_release(&g->work, seq[i].slot));
    set_anchors(g, 0);
    *n_best_p = n_best;
    return ST_OK;
}

/* a mask row of the draft's own makes mask_token_id meaningless */
static enum status try_masks(struct diagnose *g)
{
    struct diagnose_trial best[MASK_BEST];
    int n_best = 0;
    if (g->d->mask_row.p) return ST_OK;
    TRY(choose_masks(g, best, &n_best));
    for (int i = 0; i < n_best; i++) {
        struct diagnose_trial *x = add(g, TRIAL_MASK, "mask token %d", best[i].mask);
        if (!x) return ST_E_NOMEM;
        x->mask = best[i].mask;
        TRY(diagnose_measure(g, x, g->n_anchors));
    }
    return ST_OK;
}

enum status diagnose_trials(struct diagnose *g)
{
    struct diagnose_result *r = &g->r;
    set_anchors(g, 0);
    if (g->n_anchors == 0)
        return ERR(ST_E_CONFIG,
                   "diagnose: every prompt ends with its first token; nothing is drafted: take other prompts");
    if (!add(g, TRIAL_AS_IS, "as it is")) return ST_E_NOMEM;
    TRY(add_captures(g));
    TRY(add_shifts(g));
    TRY(add_rope(g));
    TRY(add_yarn(g));
    TRY(add_swaps(g));
    for (int i = 0; i < r->n_trials; i++) TRY(diagnose_measure(g, &r->trial[i], g->n_anchors));
    TRY(try_masks(g));
    return diagnose_walk(g, &r->trial[0]);
}
