/* stages - one rank's pipeline stage of the shipped model in this process: what the tests of pipelines share. The flow
 * object is the hand-off. Functions assert through Check. */
#ifndef PDFLASH_TESTS_STAGES_H
#define PDFLASH_TESTS_STAGES_H

#include <stdlib.h>
#include <string.h>

#include "rig.h"

struct stages_spec {
    int pp, with_draft;
    enum kv_dtype kv;
    int rows;                   /* of the largest chunk */
    int page, n_pages, n_slots; /* n_pages: of a request */
};

static inline void stages_draft(struct rig *r, const struct stages_spec *p)
{
    struct draft_spec d = {.parts = DRAFT_FC, .n_taps = r->stage.n_taps, .tp = 1, .max_rows = p->rows};
    d.kv = p->kv == KV_BF16 ? OPS_KV_BF16 : OPS_KV_FP32;
    memcpy(d.tap, r->stage.tap_index, sizeof d.tap); /* this stage's columns of fc only */
    if (r->stage.last) d.parts |= DRAFT_CONTEXT;
    OK(safetensors_open(suite_path("inputs/k3-nano-dflash"), &r->draft_ckpt));
    OK(draft_open(&r->o, &r->dc, r->draft_ckpt, &d, &r->comm, &r->d));
    r->stage.d = r->d;
}

/* whole: the same model as one stage, for its configs */
static inline void stages_open_one(struct rig *r, const struct rig *whole, const struct stages_spec *p, int stage)
{
    struct range layers = split_stage(whole->c.n_layers, p->pp, stage);
    memset(r, 0, sizeof *r);
    r->c = whole->c;
    r->dc = whole->dc;
    r->comm = comm_self();
    OK(ops_cpu_open(ACT_FP32, NULL, &r->o));
    OK(safetensors_open(suite_path("inputs/k3-nano"), &r->ckpt));
    struct target_spec ts = {.layers = layers, .tp = 1, .ep = 1, .max_rows = p->rows};
    OK(target_open(&r->o, &r->c, r->ckpt, &ts, &r->comm, &r->t));
    r->stage = (struct prefill_stage){.t = r->t, .s = &r->s, .first = stage == 0, .last = stage == p->pp - 1};
    r->stage.vocab = r->c.vocab;
    prefill_stage_taps(&r->stage, &r->c, p->with_draft ? &r->dc : NULL, p->pp, stage);
    if (p->with_draft) stages_draft(r, p);
    OK(r->o.prepare(&r->o, p->rows));
    struct layout_spec l = {.page = p->page, .kv = p->kv, .draft_kv = p->kv, .layers = layers, .tp = 1};
    l.has_draft = p->with_draft && r->stage.last;
    l.n_pages = p->n_slots * p->n_pages;
    l.n_slots = p->n_slots;
    struct layout lay;
    OK(layout_make(&r->c, &r->dc, &l, &lay));
    OK(state_open(&r->o, &lay, p->n_pages, &r->s));
}

static inline struct rig *stages_open(const struct rig *whole, const struct stages_spec *p)
{
    struct rig *r = calloc((size_t)p->pp, sizeof *r);
    for (int i = 0; i < p->pp; i++) stages_open_one(&r[i], whole, p, i);
    return r;
}

static inline void stages_close(struct rig *r, int pp)
{
    for (int i = 0; i < pp; i++) rig_close(&r[i]);
    free(r);
}

#endif
