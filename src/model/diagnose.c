#include "model/diagnose_impl.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"

const char *const diagnose_part_name[PART_N] = {"KDA state", "conv tail", "MLA rows", "draft K", "draft V"};

/* ---- opening -------------------------------------------------------------------------------------- */

static enum status open_pool(struct diagnose *g, enum kv_dtype kv, int slots, struct state *s)
{
    int pages = split_pages(g->max_tokens, g->p.page);
    struct layout_spec l = {
        .page = g->p.page, .order = PAGE_HEAD_MAJOR, .kv = kv, .draft_kv = kv, .has_draft = 1, .tp = 1};
    struct layout lay;
    l.layers.end = g->p.c->n_layers;
    l.n_pages = pages * slots;
    l.n_slots = slots;
    TRY(layout_make(g->p.c, g->p.d, &l, &lay));
    enum status st = state_open(g->o, &lay, pages, s);
    if (st != ST_OK) layout_free(&lay);
    return st;
}

static enum status open_model(struct diagnose *g)
{
    struct tp_comm self = comm_self();
    struct target_spec t = {.layers = {0, g->p.c->n_layers},
                            .tp = 1,
                            .ep = split_ep_default(g->p.c, 1),
                            .max_rows = g->rows,
                            .max_verify_rows = g->block,
                            .absorbed_prefill = 1};
    struct draft_spec d = {.parts = DRAFT_FC | DRAFT_CONTEXT | DRAFT_BLOCK,
                           .n_taps = g->p.d->n_taps,
                           .tp = 1,
                           .max_rows = g->rows,
                           .max_seqs = SEQS,
                           .kv = (enum ops_kv)g->p.kv};
    for (int i = 0; i < d.n_taps; i++) d.tap[i] = i;
    TRY(target_open(g->o, g->p.c, g->p.ckpt, &t, &self, &g->t));
    TRY(draft_open(g->o, g->p.d, g->p.draft_ckpt, &d, &self, &g->d));
    if (g->p.hooks.opened) g->p.hooks.opened(g->p.hooks.ctx, g->d);
    TRY(g->o->prepare(g->o, g->rows));
    TRY(open_pool(g, g->p.kv, 3, &g->work));
    TRY(open_pool(g, g->p.kv, 2, &g->ref));
    if (g->p.kv != KV_FP32) TRY(open_pool(g, KV_FP32, 1, &g->ref32));
    TRY(flow_open(g->o, g->p.c, g->rows, &g->f));
    g->stage =
        (struct prefill_stage){.t = g->t, .d = g->d, .s = &g->work, .first = 1, .last = 1, .vocab = g->p.c->vocab};
    prefill_stage_taps(&g->stage, g->p.c, g->p.d, 1, 0);
    g->ref_stage = g->stage;
    g->ref_stage.s = &g->ref;
    g->ref32_stage = g->stage;
    g->ref32_stage.s = &g->ref32;
    return g->o->mem_new(g->o, &g->kept, (size_t)g->rows * (size_t)g->p.c->hidden * 4, "captures");
}

/* the taps and their neighbours; without neighbours where a sink could not take them all */
static void want_layers(struct diagnose *g)
{
    int near = 3 * g->p.d->n_taps <= WANTED_MAX;
    for (int l = 0; l < g->p.c->n_layers; l++) {
        int want = 0;
        for (int i = 0; i < g->p.d->n_taps; i++) {
            int far = l - g->p.d->tap[i];
            want |= far == 0 || (near && (far == 1 || far == -1));
        }
        if (want) g->wanted[g->n_wanted++] = l;
    }
}

static enum status new_arrays(struct diagnose *g)
{
    size_t item = 1; /* bytes of the largest item as floats */
    for (int i = 0; i < g->ref.layout.n; i++)
        if (2 * (size_t)g->ref.layout.entry[i].item_bytes > item) item = 2 * (size_t)g->ref.layout.entry[i].item_bytes;
    size_t anchors = (size_t)(g->p.anchors + g->p.n_prompts * g->p.max_new);
    g->raw = mem_alloc(item, 1, "a state item");
    g->a = mem_alloc(item, 1, "state values");
    g->b = mem_alloc(item, 1, "state values");
    g->line = mem_alloc((size_t)g->p.c->vocab, sizeof *g->line, "a row of logits");
    g->ids = mem_alloc((size_t)(SEQS * g->n_draft), sizeof *g->ids, "drafts");
    g->anchor = mem_alloc(anchors, sizeof *g->anchor, "anchors");
    g->accepted = mem_alloc(anchors, sizeof *g->accepted, "accepted drafts");
    g->nll = mem_alloc(anchors, sizeof *g->nll, "log likelihoods");
    g->base_accepted = mem_alloc(anchors, sizeof *g->base_accepted, "accepted drafts");
    g->base_nll = mem_alloc(anchors, sizeof *g->base_nll, "log likelihoods");
    g->known = mem_alloc((size_t)g->p.n_prompts, sizeof *g->known, "prompts");
    int whole = g->raw && g->a && g->b && g->line && g->ids && g->anchor && g->accepted && g->nll && g->base_accepted &&
                g->base_nll && g->known;
    return whole ? ST_OK : ST_E_NOMEM;
}

static enum status check_spec(const struct diagnose_spec *p)
{
    if (p->n_prompts < 1) return ERR(ST_E_RANGE, "diagnose: %d prompts, at least 1 is needed", p->n_prompts);
    if (p->max_new < 2) return ERR(ST_E_RANGE, "diagnose: %d tokens a prompt; a round needs 2", p->max_new);
    if (p->anchors < 1) return ERR(ST_E_RANGE, "diagnose: %d anchors, at least 1 is needed", p->anchors);
    return ST_OK;
}

enum status diagnose_open(const struct diagnose_spec *p, struct diagnose **g_p)
{
    TRY(check_spec(p));
    struct diagnose *g = mem_alloc(1, sizeof *g, "diagnosis");
    if (!g) return ST_E_NOMEM;
    int longest = 0;
    for (int i = 0; i < p->n_prompts; i++) longest = p->prompt[i].n > longest ? p->prompt[i].n : longest;
    g->p = *p;
    g->o = p->o;
    g->block = draft_verify_rows(p->d);
    g->n_draft = g->r.n_draft = g->block - 1;
    g->max_tokens = longest + p->max_new + 2 * g->block;
    g->rows = p->chunk < g->max_tokens ? p->chunk : g->max_tokens;
    if (g->rows < (SEQS + 1) * g->block)
        g->rows = (SEQS + 1) * g->block; /* a row block more: shifted slots read past */
    g->r.first_wrong_prompt = g->r.first_wrong_token = g->r.trained_for = -1;
    want_layers(g);
    enum status st = open_model(g);
    if (st == ST_OK) st = new_arrays(g);
    if (st != ST_OK) {
        diagnose_close(g);
        return st;
    }
    *g_p = g;
    return ST_OK;
}

void diagnose_close(struct diagnose *g)
{
    if (!g) return;
    flow_close(g->o, &g->f);
    g->o->mem_free(g->o, &g->kept);
    state_close(&g->work);
    state_close(&g->ref);
    state_close(&g->ref32);
    draft_close(g->d);
    target_close(g->t);
    for (int i = 0; g->known && i < g->p.n_prompts; i++) {
        struct known *k = &g->known[i];
        mem_free(k->id);
        mem_free(k->logits);
        for (int s = 0; s < STREAM_N; s++)
            for (int w = 0; w < WANTED_MAX; w++) mem_free(k->feature[s][w]);
    }
    void *all[] = {g->known, g->raw,           g->a,        g->b,       g->line,   g->ids,     g->anchor, g->accepted,
                   g->nll,   g->base_accepted, g->base_nll, g->r.round, g->r.slot, g->r.check, g->r.trial};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) mem_free(all[i]);
    mem_free(g);
}

enum status diagnose_run(struct diagnose *g, const struct diagnose_result **r_p)
{
    TRY(diagnose_truth(g));
    TRY(diagnose_live(g));
    TRY(diagnose_features(g));
    TRY(diagnose_reach(g));
    TRY(diagnose_trials(g));
    TRY(diagnose_find(g));
    *r_p = &g->r;
    return ST_OK;
}

/* ---- forward -------------------------------------------------------------------------------------- */

enum status diagnose_feed(struct diagnose *g, struct prefill_stage *stage, int slot, int pos, const int32_t *id, int n,
                          int final, int32_t *first_p)
{
    int most = g->p.chunk < g->rows ? g->p.chunk : g->rows;
    int32_t first = -1;
    diagnose_phase(g, DIAGNOSE_PREFILL);
    enum status st = ST_OK;
    for (int at = 0; st == ST_OK && at < n; at += most) {
        int m = n - at < most ? n - at : most;
        st = prefill_chunk(stage, slot, pos + at, m, id + at, final && at + m == n, &g->f, &first, NULL, NULL, NULL);
    }
    diagnose_phase(g, DIAGNOSE_OUTSIDE);
    if (first_p) *first_p = first;
    return st;
}
