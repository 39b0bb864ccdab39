/* Captures: what the engine takes, and the two streams that it might take them from; and how far its windows reach. */
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "model/diagnose_impl.h"

/* ---- collecting ------------------------------------------------------------------------------------ */

struct collect { /* of one prompt, the chunk that begins at row0 */
    struct diagnose *g;
    struct known *k;
    int row0;
};

static int wanted_at(const struct diagnose *g, int layer)
{
    for (int i = 0; i < g->n_wanted; i++)
        if (g->wanted[i] == layer) return i;
    return -1;
}

static void keep(const struct collect *x, enum diagnose_stream stream, int at, const float *v, int rows, int64_t ld)
{
    int64_t h = x->g->p.c->hidden;
    float *to = x->k->feature[stream][at] + x->row0 * h;
    for (int r = 0; r < rows; r++) x->g->o->get(x->g->o, to + r * h, v + r * ld, (size_t)h * 4);
}

/* the engine's own capture */
static enum status keep_tap(void *ctx, int index, const float *h, int rows)
{
    const struct collect *x = ctx;
    keep(x, STREAM_ENGINE, index, h, rows, x->g->p.c->hidden);
    return ST_OK;
}

/* The streams themselves, as the forward pass uses them: the mixture after layer l is what the attention of layer l + 1
 * reads, the prefix is the running sum. */
static void keep_value(void *ctx, const char *name, int layer, const float *v, int rows, int64_t ld, int cols)
{
    const struct collect *x = ctx;
    int mix = strcmp(name, "attn_site") == 0 || strcmp(name, "out_site") == 0, at;
    if (cols != x->g->p.c->hidden || (!mix && strcmp(name, "prefix_out") != 0)) return;
    at = wanted_at(x->g, mix ? layer - 1 : layer);
    if (at >= 0) keep(x, mix ? STREAM_MIXTURE : STREAM_PREFIX, at, v, rows, ld);
}

static enum status pass(struct diagnose *g, struct known *k, int slot, const struct tap_sink *sink,
                        const struct probe *probe, struct collect *x)
{
    for (int at = 0; at < k->n_all; at += g->rows) {
        int m = k->n_all - at < g->rows ? k->n_all - at : g->rows;
        struct batch_seq seq = {.slot = slot, .n_rows = m, .pos0 = at};
        struct batch b = {.kind = BATCH_PREFILL, .n_rows = m, .n_seq = 1, .seq = &seq, .id = k->id + at};
        x->row0 = at;
        TRY(target_forward(g->t, &g->work, &b, &g->f, sink, probe));
    }
    return ST_OK;
}

static enum status collect(struct diagnose *g, struct known *k)
{
    struct collect x = {g, k, 0};
    struct tap_sink sink = {.ctx = &x, .tap = keep_tap, .n = g->n_wanted};
    struct probe probe = {&x, keep_value};
    int slot;
    for (int i = 0; i < g->n_wanted; i++) {
        sink.layer[i] = g->wanted[i];
        sink.index[i] = i;
        for (int s = 0; s < STREAM_N; s++) {
            k->feature[s][i] = mem_alloc((size_t)k->n_all * (size_t)g->p.c->hidden, sizeof(float), "captures");
            if (!k->feature[s][i]) return ST_E_NOMEM;
        }
    }
    TRY(state_admit(&g->work, g->max_tokens, &slot));
    diagnose_phase(g, DIAGNOSE_PREFILL);
    enum status st = pass(g, k, slot, &sink, NULL, &x);
    diagnose_phase(g, DIAGNOSE_OUTSIDE);
    TRY(st);
    TRY(state_release(&g->work, slot));
    TRY(state_admit(&g->work, g->max_tokens, &slot));
    TRY(pass(g, k, slot, NULL, &probe, &x));
    return state_release(&g->work, slot);
}

/* ---- which stream ---------------------------------------------------------------------------------- */

/* largest difference over largest value, over all taps and prompts, of the engine's captures and a stream some layers
 * off */
static double distance(const struct diagnose *g, enum diagnose_stream stream, int shift)
{
    double most = 0;
    for (int t = 0; t < g->p.d->n_taps; t++) {
        int a = wanted_at(g, g->p.d->tap[t]), b = wanted_at(g, g->p.d->tap[t] + shift);
        if (a < 0 || b < 0) return INFINITY;
        for (int i = 0; i < g->p.n_prompts; i++) {
            const float *x = g->known[i].feature[STREAM_ENGINE][a], *y = g->known[i].feature[stream][b];
            double d = 0, v = 1e-30;
            for (int64_t k = 0; k < (int64_t)g->known[i].n_all * g->p.c->hidden; k++) {
                d = fmax(d, fabs((double)x[k] - y[k]));
                v = fmax(v, fabs((double)y[k]));
            }
            most = fmax(most, d / v);
        }
    }
    return most;
}

enum status diagnose_features(struct diagnose *g)
{
    struct diagnose_result *r = &g->r;
    for (int i = 0; i < g->p.n_prompts; i++) TRY(collect(g, &g->known[i]));
    r->captured_error = r->other_error = INFINITY;
    for (int s = STREAM_MIXTURE; s <= STREAM_PREFIX; s++)
        for (int shift = -1; shift <= 1; shift++) {
            double d = distance(g, (enum diagnose_stream)s, shift);
            if (d < r->captured_error) {
                r->other_error = r->captured_error;
                r->captured_error = d;
                r->captured = (enum diagnose_stream)s;
                r->captured_shift = shift;
            } else if (d < r->other_error) {
                r->other_error = d;
            }
        }
    return ST_OK;
}

/* ---- context under a trial ------------------------------------------------------------------------- */

/* the capture of which tap goes through fc column block t */
static int swapped(const struct diagnose_trial *x, int t)
{
    return t == x->swap_a ? x->swap_b : t == x->swap_b ? x->swap_a : t;
}

static enum status project(struct diagnose *g, const struct diagnose_trial *x, int prompt, int n, int slot)
{
    const struct known *k = &g->known[prompt];
    int64_t h = g->p.c->hidden;
    int order[CONFIG_MAX_TAPS], taps = split_taps(g->p.d, g->p.c->n_layers, 1, 0, order);
    for (int row0 = 0; row0 < n; row0 += g->rows) {
        int m = n - row0 < g->rows ? n - row0 : g->rows;
        struct batch_seq seq = {.slot = slot, .n_rows = m, .pos0 = row0};
        for (int i = 0; i < taps; i++) {
            int at = wanted_at(g, g->p.d->tap[swapped(x, order[i])] + x->layer_shift);
            if (at < 0) return ERR(ST_E_INTERNAL, "diagnose: no captures for trial '%s'", x->name);
            g->o->put(g->o, g->kept.p, k->feature[x->stream][at] + row0 * h, (size_t)(m * h) * 4);
            TRY(draft_project(g->d, order[i], g->kept.p, m, g->f.acc, i > 0));
        }
        TRY(draft_context(g->d, &g->work, g->f.acc, &seq, 1));
    }
    return ST_OK;
}

enum status diagnose_context(struct diagnose *g, const struct diagnose_trial *x, int prompt, int n, int slot)
{
    diagnose_phase(g, DIAGNOSE_PREFILL);
    enum status st = project(g, x, prompt, n, slot);
    diagnose_phase(g, DIAGNOSE_OUTSIDE);
    return st;
}

/* ---- reach ----------------------------------------------------------------------------------------- */

struct slot0 {
    struct diagnose *g;
    int layer;
    float *row;
}; /* the anchor's row behind a layer */

static void keep_slot0(void *ctx, const char *name, int layer, const float *v, int rows, int64_t ld, int cols)
{
    const struct slot0 *x = ctx;
    (void)rows;
    (void)ld;
    if (layer == x->layer && strcmp(name, "draft_layer_out") == 0) x->g->o->get(x->g->o, x->row, v, (size_t)cols * 4);
}

/* V of a position := a value no draft has, or back from held */
static void set_value_row(struct diagnose *g, int layer, int slot, int pos, void *held, int back)
{
    struct paged v = state_paged(&g->work, COMP_DRAFT, layer, 1);
    int bytes = v.kv == OPS_KV_FP32 ? 4 : 2, dim = g->p.d->head_dim;
    uint32_t big = 0x49742400u; /* 1e6, also in its upper half as BF16 (within a percent) */
    char *page = (char *)v.base + state_pages(&g->work, slot)[pos / v.page] * v.stride;
    for (int head = 0; head < g->p.d->kv_heads; head++) {
        char *row = page + ((int64_t)head * v.page + pos % v.page) * dim * bytes;
        char *keep_at = (char *)held + (int64_t)head * dim * bytes;
        if (back) {
            g->o->put(g->o, row, keep_at, (size_t)(dim * bytes));
            continue;
        }
        g->o->get(g->o, keep_at, row, (size_t)(dim * bytes));
        for (int i = 0; i < dim; i++) g->o->put(g->o, row + i * bytes, (char *)&big + (4 - bytes), (size_t)bytes);
    }
}

/* whether the anchor at position pos sees position p in that layer: it does if another value there changes its output
 */
static enum status sees(struct diagnose *g, const struct draft_seq *seq, int layer, int p, const float *plain,
                        float *row, void *held, int *sees_p)
{
    struct slot0 x = {g, layer, row};
    struct probe probe = {&x, keep_slot0};
    set_value_row(g, layer, seq->slot, p, held, 0);
    diagnose_phase(g, DIAGNOSE_ROUND);
    enum status st = draft_block(g->d, g->t, &g->work, seq, 1, g->block, g->ids, &probe);
    diagnose_phase(g, DIAGNOSE_OUTSIDE);
    set_value_row(g, layer, seq->slot, p, held, 1);
    *sees_p = memcmp(plain, row, (size_t)g->p.c->hidden * 4) != 0;
    return st;
}

static enum status reach_of(struct diagnose *g, const struct draft_seq *seq, int layer, float *plain, float *row,
                            void *held)
{
    enum { AROUND = 3 };
    int w = g->p.d->window, first = seq->pos - w - AROUND, seen = 0;
    struct slot0 x = {g, layer, plain};
    struct probe probe = {&x, keep_slot0};
    if (first < 0) return ST_OK;
    diagnose_phase(g, DIAGNOSE_ROUND);
    enum status st = draft_block(g->d, g->t, &g->work, seq, 1, g->block, g->ids, &probe);
    diagnose_phase(g, DIAGNOSE_OUTSIDE);
    TRY(st);
    g->r.reach[layer] = 0; /* beyond where we look: like a full layer */
    for (int p = first; p <= first + 2 * AROUND && !seen; p++) {
        TRY(sees(g, seq, layer, p, plain, row, held, &seen));
        if (seen) g->r.reach[layer] = p == first ? 0 : seq->pos - p + 1;
    }
    if (!seen) g->r.reach[layer] = 1; /* shorter than where we look */
    return ST_OK;
}

enum status diagnose_reach(struct diagnose *g)
{
    const struct diagnose_trial as_is = {.name = "as is"};
    int longest = 0, slot;
    for (int l = 0; l < g->p.d->n_layers; l++) g->r.reach[l] = -1;
    for (int i = 1; i < g->p.n_prompts; i++)
        if (g->known[i].n_all > g->known[longest].n_all) longest = i;
    const struct known *k = &g->known[longest];
    int pos = k->n_all - g->block;
    size_t h = (size_t)g->p.c->hidden;
    float *two = mem_alloc(2 * h, sizeof *two, "rows of a layer");
    void *held = mem_alloc((size_t)(g->p.d->kv_heads * g->p.d->head_dim), 4, "values of a position");
    enum status st = two && held ? state_admit(&g->work, g->max_tokens, &slot) : ST_E_NOMEM;
    if (st == ST_OK) {
        struct draft_seq seq = {slot, pos, k->id[pos]};
        st = diagnose_context(g, &as_is, longest, pos, slot);
        for (int l = 0; st == ST_OK && l < g->p.d->n_layers; l++)
            if (g->p.d->type[l] == DRAFT_SLIDING) st = reach_of(g, &seq, l, two, two + h, held);
        if (st == ST_OK) st = state_release(&g->work, slot);
    }
    mem_free(two);
    mem_free(held);
    return st;
}
