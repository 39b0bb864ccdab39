#include "model/diagnose_plant.h"

#include <string.h>

#include "base/buf.h"
#include "model/draft_weights.h"

enum kind { TAP_EARLY, PREFIX, SLOTS, MASK, ROPE, CONV, KDA, DRAFT_KV, FC, WINDOW, N_PLANTS };
static const char *const name_of[N_PLANTS] = {"tap-early", "prefix", "slots",    "mask", "rope",
                                              "conv",      "kda",    "draft-kv", "fc",   "window"};

struct plant {
    struct ops ops; /* first: operations get its address and find the rest of the struct */
    struct ops real;
    enum kind kind;
    enum diagnose_phase phase;
    int rows; /* of the running verify */
    struct draft *d;
};

static struct plant *of(struct ops *o)
{
    return (struct plant *)(void *)o;
}

/* ---- operations with a fault ----------------------------------------------------------------------- */

/* Captures from the prefix: outside of diagnosis the mixture is only asked for where a tap wants it. */
static void prefix_attnres(struct ops *o, const float *bank, int64_t stride, int n_bank, const float *prefix,
                           const float *q, float eps, int t, int h, float *mix, const float *w, float norm_eps,
                           float *normed)
{
    of(o)->real.attnres(o, bank, stride, n_bank, prefix, q, eps, t, h, mix, w, norm_eps, normed);
    if (mix && of(o)->phase != DIAGNOSE_OUTSIDE) o->copy(o, mix, prefix, (size_t)((int64_t)t * h) * 4);
}

/* Drafts from the neighbouring slots: DFlash's as DSpark's are read, and the other way round. */
static void shifted_rmsnorm(struct ops *o, const float *x, int64_t ldx, const float *w, float eps, int t, int n,
                            float *y, int64_t ldy)
{
    struct plant *p = of(o);
    if (!p->d || w != draft_f32(&p->d->final_norm)) {
        p->real.rmsnorm(o, x, ldx, w, eps, t, n, y, ldy);
        return;
    }
    const float *first = draft_f32(&p->d->x), *last = first + ((int64_t)p->d->spec.max_rows - 1) * n;
    int64_t shift = draft_first_slot(&p->d->c) ? -ldx : ldx;
    for (int r = 0; r < t; r++) {
        const float *from = x + r * ldx + shift;
        from = from < first ? first : from > last ? last : from;
        p->real.rmsnorm(o, from, ldx, w, eps, 1, n, y + r * ldy, ldy);
    }
}

static void counting_conv(struct ops *o, const float *x, int64_t ldx, const float *w, int kernel, int ch,
                          enum ops_kv kv, const struct seq_rows *seq, int n_seq, float *y)
{
    of(o)->rows = seq[0].n_rows;
    of(o)->real.conv(o, x, ldx, w, kernel, ch, kv, seq, n_seq, y);
}

/* the tail after all rows of the round, not after the accepted ones */
static void whole_conv_commit(struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch,
                              enum ops_kv kv, int n)
{
    of(o)->real.conv_commit(o, tail, x, ldx, kernel, ch, kv, of(o)->phase == DIAGNOSE_ROUND ? of(o)->rows : n);
}

static void whole_kda_recur(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta,
                            int64_t ldb, float *state, int write, int t, int heads, int d, float *out, int64_t ldo)
{
    if (of(o)->phase == DIAGNOSE_ROUND && write) t = of(o)->rows;
    of(o)->real.kda_recur(o, qkv, g, ldg, beta, ldb, state, write, t, heads, d, out, ldo);
}

static void wide_draft_attend(struct ops *o, const float *q, int64_t ldq, const float *kb, int64_t ldk, const float *vb,
                              int64_t ldv, const struct paged *kc, const struct paged *vc, int q_heads, int kv_heads,
                              int d, int window, const struct seq_rows *seq, int n_seq, float *out, int64_t ldo)
{
    of(o)->real.draft_attend(o, q, ldq, kb, ldk, vb, ldv, kc, vc, q_heads, kv_heads, d, window ? window + 1 : 0, seq,
                             n_seq, out, ldo);
}

/* ---- hooks ----------------------------------------------------------------------------------------- */

static void opened(void *ctx, struct draft *d)
{
    struct plant *p = ctx;
    p->d = d;
    if (p->kind != FC) return;
    struct mat held = d->fc[0];
    d->fc[0] = d->fc[1];
    d->fc[1] = held;
}

static void phase(void *ctx, enum diagnose_phase now)
{
    ((struct plant *)ctx)->phase = now;
}

static void prefilled(void *ctx, struct state *s, int slot)
{
    struct plant *p = ctx;
    if (p->kind != DRAFT_KV) return;
    for (int i = 0; i < s->layout.n; i++) {
        const struct layout_entry *e = &s->layout.entry[i];
        for (int k = 0; e->comp == COMP_DRAFT && k < s->n_pages[slot]; k++)
            s->o->zero(s->o, (char *)s->arena.p + layout_offset(&s->layout, i, state_pages(s, slot)[k]),
                       (size_t)e->item_bytes);
    }
}

/* ---- opening --------------------------------------------------------------------------------------- */

static enum status set(struct plant *p, const struct config *target, struct draft_config *c)
{
    switch (p->kind) {
    case TAP_EARLY:
        for (int i = 0; i < c->n_taps; i++)
            if (--c->tap[i] < 0)
                return ERR(ST_E_CONFIG, "--plant tap-early: the draft taps layer 0, nothing is before it");
        break;
    case PREFIX: p->ops.attnres = prefix_attnres; break;
    case SLOTS: p->ops.rmsnorm = shifted_rmsnorm; break;
    case MASK: c->mask_id = c->mask_id == target->pad ? target->eos : target->pad; break;
    case ROPE: c->rope_theta = c->rope.theta *= 100; break;
    case CONV: p->ops.conv = counting_conv, p->ops.conv_commit = whole_conv_commit; break;
    case KDA: p->ops.conv = counting_conv, p->ops.kda_recur = whole_kda_recur; break;
    case FC:
        if (c->n_taps < 2)
            return ERR(ST_E_CONFIG, "--plant fc: the draft has one capture, there is nothing to exchange");
        break;
    case WINDOW:
        if (c->window == 0) return ERR(ST_E_CONFIG, "--plant window: no layer of the draft slides");
        p->ops.draft_attend = wide_draft_attend;
        break;
    case DRAFT_KV:
    case N_PLANTS: break;
    }
    return ST_OK;
}

enum status plant_open(const char *name, const struct ops *base, const struct config *target, struct draft_config *c,
                       struct plant **p_p)
{
    int kind = 0;
    while (kind < N_PLANTS && strcmp(name, name_of[kind]) != 0) kind++;
    if (kind == N_PLANTS) return ERR(ST_E_USAGE, "--plant: '%s' is unknown; --help lists the faults", name);
    struct plant *p = mem_alloc(1, sizeof *p, "a planted fault");
    if (!p) return ST_E_NOMEM;
    p->ops = p->real = *base;
    p->kind = (enum kind)kind;
    enum status st = set(p, target, c);
    if (st != ST_OK) {
        mem_free(p);
        return st;
    }
    *p_p = p;
    return ST_OK;
}

void plant_close(struct plant *p)
{
    mem_free(p);
}

struct ops *plant_ops(struct plant *p)
{
    return &p->ops;
}

struct diagnose_hooks plant_hooks(struct plant *p)
{
    return (struct diagnose_hooks){p, opened, phase, prefilled};
}

const char *plant_name(int i)
{
    return i >= 0 && i < N_PLANTS ? name_of[i] : NULL;
}
