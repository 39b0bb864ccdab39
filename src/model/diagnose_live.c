/* The true continuation, and the engine's own rounds beside it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "model/diagnose_impl.h"

/* ---- truth ---------------------------------------------------------------------------------------- */

struct truth { /* of the prompt being decoded */
    struct known *k;
    int vocab;
};

static void keep_logits(void *ctx, int request, int pos, const float *row, int vocab)
{
    const struct truth *x = ctx;
    (void)request;
    int i = pos - x->k->n_prompt;
    if (i >= 0 && i < x->k->n_all - x->k->n_prompt - 1)
        memcpy(x->k->logits + (int64_t)i * vocab, row, (size_t)vocab * sizeof *row);
}

/* past EOS too: the drafts behind it have to be judged like any other */
static enum status decode_plain(struct diagnose *g, struct known *k, struct spec_seq *q)
{
    struct truth x = {k, g->p.c->vocab};
    struct spec_options opt = {.block = 1, .max_seqs = 1, .eos = -1, .logits = keep_logits, .logits_ctx = &x};
    struct tp_comm self = comm_self();
    struct spec *s = NULL;
    enum status st;
    TRY_GO(st, spec_open(g->o, g->p.c, g->t, NULL, &g->work, &self, &opt, &s), out);
    int32_t first;
    TRY_GO(st, diagnose_feed(g, &g->stage, q->slot, 0, k->id, k->n_prompt, 1, &first), out);
    spec_start(q, first, -1);
    while (st == ST_OK && q->stop == STOP_NONE) st = spec_round(s, &q, 1, NULL, NULL, NULL);
    if (st == ST_OK && q->stop != STOP_LENGTH)
        st = ERR(ST_E_FAULT,
                 "diagnose: plain decoding of prompt %d ends in logits that are not numbers: the target itself, not "
                 "the draft, is at fault",
                 q->request);
out:
    spec_close(s);
    return st;
}

static enum status truth_of(struct diagnose *g, int i)
{
    struct known *k = &g->known[i];
    const struct diagnose_prompt *p = &g->p.prompt[i];
    int n = g->p.max_new + g->block;
    struct spec_seq q = {.request = i, .prompt_tokens = p->n, .max_new = n};
    k->n_prompt = p->n;
    k->n_all = p->n + n;
    k->id = mem_alloc((size_t)k->n_all, sizeof *k->id, "tokens");
    k->logits = mem_alloc((size_t)(n - 1) * (size_t)g->p.c->vocab, sizeof *k->logits, "target logits");
    if (!k->id || !k->logits) return ST_E_NOMEM;
    memcpy(k->id, p->id, (size_t)p->n * sizeof *k->id);
    q.out = k->id + p->n;
    TRY(state_admit(&g->work, g->max_tokens, &q.slot));
    TRY(decode_plain(g, k, &q));
    while (k->n_out < g->p.max_new && (k->n_out == 0 || q.out[k->n_out - 1] != g->p.c->eos)) k->n_out++;
    return state_release(&g->work, q.slot);
}

enum status diagnose_truth(struct diagnose *g)
{
    for (int i = 0; i < g->p.n_prompts; i++) TRY(truth_of(g, i));
    return ST_OK;
}

/* ---- the record ------------------------------------------------------------------------------------ */

static enum status new_round(struct diagnose *g, struct diagnose_round **x_p, struct diagnose_slot **slot_p)
{
    struct diagnose_result *r = &g->r;
    if (r->n_rounds == g->cap_rounds) {
        size_t old = (size_t)g->cap_rounds, now = old ? 2 * old : 64, per = (size_t)g->n_draft;
        struct diagnose_round *x = mem_grow(r->round, old, now, sizeof *x, "rounds");
        if (!x) return ST_E_NOMEM;
        r->round = x;
        struct diagnose_slot *s = mem_grow(r->slot, old * per, now * per, sizeof *s, "drafts of rounds");
        if (!s) return ST_E_NOMEM;
        r->slot = s;
        g->cap_rounds = (int)now;
    }
    *x_p = &r->round[r->n_rounds];
    *slot_p = &r->slot[r->n_rounds * g->n_draft];
    r->n_rounds++;
    return ST_OK;
}

static enum status new_check(struct diagnose *g, struct diagnose_check **x_p)
{
    struct diagnose_result *r = &g->r;
    if (r->n_checks == g->cap_checks) {
        size_t old = (size_t)g->cap_checks, now = old ? 2 * old : 64;
        struct diagnose_check *x = mem_grow(r->check, old, now, sizeof *x, "state checks");
        if (!x) return ST_E_NOMEM;
        r->check = x;
        g->cap_checks = (int)now;
    }
    *x_p = &r->check[r->n_checks++];
    memset(*x_p, 0, sizeof **x_p);
    return ST_OK;
}

/* Draft and target after the same tokens: position pos + 1 + j, from the target's row of the position before. */
static void compare_slots(const struct diagnose *g, const struct known *k, const struct diagnose_round *x,
                          const int32_t *id, struct diagnose_slot *slot)
{
    int vocab = g->p.c->vocab;
    for (int j = 0; j < g->n_draft; j++) {
        slot[j] = (struct diagnose_slot){id[j], -1, -1, NAN};
        if (!x->on_path || id[j] < 0) continue;
        const float *row = k->logits + (int64_t)(x->pos - k->n_prompt + j) * vocab;
        float mine = row[id[j]], best = mine;
        slot[j].rank = 0;
        for (int v = 0; v < vocab; v++) {
            slot[j].rank += row[v] > mine;
            best = row[v] > best ? row[v] : best;
        }
        slot[j].target = k->id[x->pos + 1 + j];
        slot[j].gap = best - mine;
    }
}

static enum status record_round(struct diagnose *g, int prompt, const struct spec_seq *q, int pos, int on_path)
{
    const struct known *k = &g->known[prompt];
    const struct spec_round *r = &q->round[q->n_rounds - 1];
    struct diagnose_round *x;
    struct diagnose_slot *slot;
    TRY(new_round(g, &x, &slot));
    *x = (struct diagnose_round){.prompt = prompt,
                                 .round = q->n_rounds - 1,
                                 .pos = pos,
                                 .proposed = r->proposed,
                                 .accepted = r->accepted,
                                 .on_path = on_path,
                                 .first = -1};
    x->anchor = q->out[pos - k->n_prompt];
    compare_slots(g, k, x, g->ids, slot);
    if (!on_path) return ST_OK;
    x->first = 0;
    while (x->first < g->n_draft && slot[x->first].draft == slot[x->first].target) x->first++;
    return ST_OK;
}

/* ---- one round ------------------------------------------------------------------------------------- */

struct live { /* one prompt in the engine */
    int prompt;
    struct spec *s;
    struct spec_seq q;
    int snap, copy;     /* slots of the work pool: the state before the round, and that run forward */
    int ref, ref32;     /* slots of the references */
    int32_t rows[260];  /* anchor and drafts of the round */
    int32_t *committed; /* [max_tokens] prompt and every row that was committed, up to q.pos */
    int on_path;
};

static int agrees(const struct diagnose *g, const struct live *l, int n)
{
    const struct known *k = &g->known[l->prompt];
    return memcmp(l->q.out, k->id + k->n_prompt, (size_t)(n < k->n_out ? n : k->n_out) * sizeof *k->id) == 0;
}

/* The part's first difference, looked at closely: the state is that of all rows, or still that of before. */
static enum status look(struct diagnose *g, struct live *l, const struct diagnose_check *x, int pos, int n_rows)
{
    struct diagnose_diff all[PART_N], none[PART_N];
    int zero = diagnose_zero_rows(g, &g->work, l->q.slot, x->pos);
    diagnose_copy(g, l->snap, l->copy, pos);
    diagnose_compare(g, &g->work, l->q.slot, &g->work, l->copy, pos, none);
    TRY(diagnose_feed(g, &g->stage, l->copy, pos, l->rows, n_rows, 0, NULL));
    diagnose_compare(g, &g->work, l->q.slot, &g->work, l->copy, pos, all);
    for (int c = 0; c < PART_N; c++) {
        char *note = g->note[c];
        if (x->state[c].error <= g->r.tolerance || note[0]) continue;
        if ((c == PART_KDA || c == PART_CONV) && all[c].error <= g->r.tolerance)
            snprintf(note, sizeof g->note[c],
                     "it is the one after all %d verified rows, of which %d count: the rejected rows were not rolled "
                     "back",
                     n_rows, x->pos - pos);
        else if ((c == PART_KDA || c == PART_CONV) && none[c].error <= g->r.tolerance)
            snprintf(note, sizeof g->note[c], "it is the one before the round: the commit left it as it was");
        else if (c >= PART_DRAFT_K && zero > 0)
            snprintf(note, sizeof g->note[c], "%d of %d positions hold zeros", zero, x->pos);
        else if (c <= PART_CONV)
            snprintf(note, sizeof g->note[c], "it is neither that of before the round nor that of all rows");
    }
    return ST_OK;
}

static int differs(const struct diagnose *g, const struct diagnose_check *x)
{
    int n = 0;
    for (int c = 0; c < PART_N; c++) n += !(x->state[c].error <= g->r.tolerance);
    return n;
}

/* tokens [pos, pos + n) run forward in the references, and the state of the engine compared with theirs, up to pos + n
 */
static enum status recompute(struct diagnose *g, struct live *l, int pos, const int32_t *id, int n,
                             struct diagnose_check *x)
{
    TRY(diagnose_feed(g, &g->ref_stage, l->ref, pos, id, n, 0, NULL));
    diagnose_compare(g, &g->work, l->q.slot, &g->ref, l->ref, pos + n, x->state);
    memcpy(x->fp32, x->state, sizeof x->fp32);
    if (g->p.kv == KV_FP32) return ST_OK;
    TRY(diagnose_feed(g, &g->ref32_stage, l->ref32, pos, id, n, 0, NULL));
    diagnose_compare(g, &g->work, l->q.slot, &g->ref32, l->ref32, pos + n, x->fp32);
    return ST_OK;
}

static enum status check_prefill(struct diagnose *g, struct live *l)
{
    struct diagnose_check *x;
    int n = g->known[l->prompt].n_prompt;
    TRY(new_check(g, &x));
    x->prompt = l->prompt;
    x->round = -1;
    x->pos = n;
    TRY(recompute(g, l, 0, g->known[l->prompt].id, n, x));
    if (!differs(g, x)) return ST_OK;
    int zero = diagnose_zero_rows(g, &g->work, l->q.slot, n);
    for (int c = PART_DRAFT_K; c < PART_N && zero > 0; c++)
        if (!g->note[c][0]) snprintf(g->note[c], sizeof g->note[c], "%d of %d positions hold zeros", zero, n);
    return ST_OK;
}

/* what the commit of this round left, against the accepted rows run forward from scratch, and from the snapshot */
static enum status check_commit(struct diagnose *g, struct live *l, int pos)
{
    struct diagnose_check *x;
    struct diagnose_diff from_snap[PART_N];
    int n = l->q.pos - pos;
    diagnose_copy(g, l->snap, l->copy, pos);
    TRY(diagnose_feed(g, &g->stage, l->copy, pos, l->rows, n, 0, NULL));
    TRY(new_check(g, &x));
    x->prompt = l->prompt;
    x->round = l->q.n_rounds - 1;
    x->pos = l->q.pos;
    TRY(recompute(g, l, pos, l->rows, n, x));
    diagnose_compare(g, &g->work, l->q.slot, &g->work, l->copy, l->q.pos, from_snap);
    x->replay[0] = from_snap[PART_KDA];
    x->replay[1] = from_snap[PART_CONV];
    return differs(g, x) ? look(g, l, x, pos, l->q.round[l->q.n_rounds - 1].proposed + 1) : ST_OK;
}

/* The drafts are asked for once more beside the round; that leaves no trace. */
static enum status engine_round(struct diagnose *g, struct live *l)
{
    struct spec_seq *q = &l->q;
    struct draft_seq seq = {q->slot, q->pos, q->out[q->n_out - 1]};
    l->rows[0] = seq.anchor;
    diagnose_phase(g, DIAGNOSE_ROUND);
    enum status st = draft_block(g->d, g->t, &g->work, &seq, 1, g->block, g->ids, NULL);
    if (st == ST_OK) st = spec_round(l->s, &q, 1, NULL, NULL, NULL);
    diagnose_phase(g, DIAGNOSE_OUTSIDE);
    memcpy(l->rows + 1, g->ids, (size_t)g->n_draft * sizeof *g->ids);
    return st;
}

static enum status one_round(struct diagnose *g, struct live *l)
{
    int pos = l->q.pos;
    diagnose_copy(g, l->q.slot, l->snap, pos);
    TRY(engine_round(g, l));
    if (l->q.stop == STOP_FAILED) {
        g->r.not_numbers = 1;
        return ST_OK;
    }
    memcpy(l->committed + pos, l->rows, (size_t)(l->q.pos - pos) * sizeof *l->rows);
    TRY(record_round(g, l->prompt, &l->q, pos, l->on_path));
    TRY(check_commit(g, l, pos));
    l->on_path = agrees(g, l, l->q.n_out);
    return ST_OK;
}

/* ---- one prompt ------------------------------------------------------------------------------------ */

static void note_output(struct diagnose *g, const struct live *l)
{
    const struct known *k = &g->known[l->prompt];
    int n = 0;
    while (n < l->q.n_out && n < k->n_out && l->q.out[n] == k->id[k->n_prompt + n]) n++;
    if (n == k->n_out && l->q.n_out == k->n_out) return;
    if (g->r.first_wrong_prompt >= 0) return;
    g->r.first_wrong_prompt = l->prompt;
    g->r.first_wrong_token = n;
}

/* The reference went forward in pieces; here it is checked against one prefill of prompt and output. */
static enum status check_scratch(struct diagnose *g, const struct live *l)
{
    struct diagnose_diff diff[PART_N];
    int fresh;
    TRY(state_admit(&g->ref, g->max_tokens, &fresh));
    TRY(diagnose_feed(g, &g->ref_stage, fresh, 0, l->committed, l->q.pos, 0, NULL));
    diagnose_compare(g, &g->ref, l->ref, &g->ref, fresh, l->q.pos, diff);
    for (int c = 0; c < PART_N; c++)
        if (diff[c].error > g->r.scratch_error) g->r.scratch_error = diff[c].error;
    return state_release(&g->ref, fresh);
}

static enum status decode_live(struct diagnose *g, struct live *l)
{
    struct known *k = &g->known[l->prompt];
    int32_t first;
    TRY(diagnose_feed(g, &g->stage, l->q.slot, 0, k->id, k->n_prompt, 1, &first));
    if (g->p.hooks.prefilled) g->p.hooks.prefilled(g->p.hooks.ctx, &g->work, l->q.slot);
    memcpy(l->committed, k->id, (size_t)k->n_prompt * sizeof *k->id);
    spec_start(&l->q, first, g->p.c->eos);
    TRY(check_prefill(g, l));
    l->on_path = agrees(g, l, 1);
    while (l->q.stop == STOP_NONE) TRY(one_round(g, l));
    note_output(g, l);
    return check_scratch(g, l);
}

static enum status live_prompt(struct diagnose *g, struct live *l)
{
    struct spec_options opt = {.block = g->block, .max_seqs = 1, .eos = g->p.c->eos};
    struct tp_comm self = comm_self();
    struct state *s = &g->work;
    l->q =
        (struct spec_seq){.request = l->prompt, .prompt_tokens = g->known[l->prompt].n_prompt, .max_new = g->p.max_new};
    l->q.out = mem_alloc((size_t)g->p.max_new, sizeof *l->q.out, "output");
    l->q.round = mem_alloc((size_t)g->p.max_new, sizeof *l->q.round, "rounds");
    l->committed = mem_alloc((size_t)g->max_tokens, sizeof *l->committed, "committed tokens");
    enum status st = l->q.out && l->q.round && l->committed ? ST_OK : ST_E_NOMEM;
    if (st == ST_OK) st = state_admit(s, g->max_tokens, &l->q.slot);
    if (st == ST_OK) st = state_admit(s, g->max_tokens, &l->snap);
    if (st == ST_OK) st = state_admit(s, g->max_tokens, &l->copy);
    if (st == ST_OK) st = state_admit(&g->ref, g->max_tokens, &l->ref);
    if (st == ST_OK && g->p.kv != KV_FP32) st = state_admit(&g->ref32, g->max_tokens, &l->ref32);
    if (st == ST_OK) st = spec_open(g->o, g->p.c, g->t, g->d, s, &self, &opt, &l->s);
    if (st == ST_OK) st = decode_live(g, l);
    spec_close(l->s);
    mem_free(l->q.out);
    mem_free(l->q.round);
    mem_free(l->committed);
    if (st != ST_OK) return st;
    TRY(state_release(s, l->q.slot));
    TRY(state_release(s, l->snap));
    TRY(state_release(s, l->copy));
    if (g->p.kv != KV_FP32) TRY(state_release(&g->ref32, l->ref32));
    return state_release(&g->ref, l->ref);
}

/* share of rounds whose first k drafts held, of those that held so far, and of drafts right on the true path */
static void curves(struct diagnose_result *r)
{
    double sum = 0;
    for (int i = 0; i < r->n_rounds; i++) sum += r->round[i].accepted + 1;
    r->tau = r->n_rounds ? sum / r->n_rounds : NAN;
    for (int k = 0; k < r->n_draft; k++) {
        int reached = 0, held = 0, seen = 0, right = 0;
        for (int i = 0; i < r->n_rounds; i++) {
            const struct diagnose_slot *s = &r->slot[i * r->n_draft + k];
            reached += r->round[i].accepted >= k;
            held += r->round[i].accepted > k;
            seen += s->rank >= 0;
            right += s->rank >= 0 && s->draft == s->target;
        }
        r->survival[k] = r->n_rounds ? (double)held / r->n_rounds : NAN;
        r->conditional[k] = reached ? (double)held / reached : NAN;
        r->slots[k] = seen ? (double)right / seen : NAN;
    }
}

enum status diagnose_live(struct diagnose *g)
{
    g->r.tolerance = 1e-4; /* backends whose sums depend on the number of rows; the CPU's do not, and give 0 */
    for (int i = 0; i < g->p.n_prompts; i++) {
        struct live *l = mem_alloc(1, sizeof *l, "a prompt in the engine");
        if (!l) return ST_E_NOMEM;
        l->prompt = i;
        enum status st = live_prompt(g, l);
        mem_free(l);
        TRY(st);
    }
    curves(&g->r);
    return ST_OK;
}
