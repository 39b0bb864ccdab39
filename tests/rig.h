/* rig - the whole model of one rank in one process: checkpoints, target, draft, state and a prefill stage that is
 * first and last. Shared by the tests of draft, spec and the traces. Functions assert through Check. */
#ifndef PDFLASH_TESTS_RIG_H
#define PDFLASH_TESTS_RIG_H

#include "suite.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "data/h5.h"
#include "model/prefill.h"
#include "model/spec.h"

struct rig_spec {
    enum ops_act act;
    const char *isa;         /* NULL: best */
    int cuda;                /* on CUDA device 0 instead */
    const char *model;       /* the target's directory; NULL: inputs/k3-nano */
    enum kv_dtype kv;        /* of everything */
    int page, n_slots;
    int max_tokens;          /* longest prompt + output + block of a request */
    int max_rows;            /* largest batch, rows */
    int no_draft;
    const char *draft;       /* its directory; NULL: inputs/k3-nano-dflash */
    int confidence;          /* load the draft's confidence head */
    int draws;               /* drafts may be drawn */
    int absorbed;            /* prefill uses decode's MLA form, so its rows are the same bits */
    int tp, rank;            /* target and draft; 0: a single rank */
    int draft_tp, draft_rank; /* only the draft is sharded, the target is whole on every rank */
    const struct tp_comm *comm; /* of the sharded part; NULL: comm_self */
};

struct rig {
    struct ops o;
    struct config c;
    struct draft_config dc;
    struct safetensors *ckpt, *draft_ckpt;
    struct tp_comm comm;
    struct target *t;
    struct draft *d;
    struct state s;
    struct flow f;
    struct prefill_stage stage;
};

#define OK(expr) ck_assert_int_eq((expr), ST_OK)

static inline void rig_state(struct rig *r, const struct rig_spec *p)
{
    int pages = (p->max_tokens + p->page - 1) / p->page;
    struct layout_spec l = {.page = p->page, .order = PAGE_HEAD_MAJOR, .kv = p->kv, .draft_kv = p->kv};
    if (!p->draft_tp) l.layers.end = r->c.n_layers; /* with a sharded draft alone the target's state is not used */
    l.has_draft = !p->no_draft;
    l.tp = p->draft_tp ? p->draft_tp : p->tp ? p->tp : 1;
    l.tp_rank = p->draft_tp ? p->draft_rank : p->rank;
    l.n_pages = pages * p->n_slots;
    l.n_slots = p->n_slots;
    struct layout lay;
    OK(layout_make(&r->c, &r->dc, &l, &lay));
    OK(state_open(&r->o, &lay, pages, &r->s));
}

static inline void rig_open(struct rig *r, const struct rig_spec *p)
{
    int tp = p->tp ? p->tp : 1;
    int dtp = p->draft_tp ? p->draft_tp : tp, drank = p->draft_tp ? p->draft_rank : p->rank;
    struct tp_comm self = comm_self();
    memset(r, 0, sizeof *r);
    r->comm = p->comm ? *p->comm : self;
    OK(p->cuda ? ops_cuda_open(p->act, 0, &r->o) : ops_cpu_open(p->act, p->isa, &r->o));
    const char *model = p->model ? p->model : suite_path("inputs/k3-nano");
    OK(config_load(model, &r->c));
    OK(safetensors_open(model, &r->ckpt));
    struct target_spec ts = {.layers = {0, r->c.n_layers}, .tp = tp, .tp_rank = p->rank};
    ts.ep = split_ep_default(&r->c, tp);
    ts.max_rows = p->max_rows;
    ts.max_verify_rows = p->max_rows;
    ts.absorbed_prefill = p->absorbed;
    OK(target_open(&r->o, &r->c, r->ckpt, &ts, p->draft_tp ? &self : &r->comm, &r->t));
    const char *draft = p->draft ? p->draft : suite_path("inputs/k3-nano-dflash");
    OK(draft_config_load(draft, &r->c, &r->dc));
    if (!p->no_draft) {
        OK(safetensors_open(draft, &r->draft_ckpt));
        struct draft_spec ds = {.parts = DRAFT_FC | DRAFT_CONTEXT | DRAFT_BLOCK, .n_taps = r->dc.n_taps, .tp = dtp};
        for (int i = 0; i < ds.n_taps; i++) ds.tap[i] = i;
        ds.tp_rank = drank;
        ds.max_rows = p->max_rows;
        ds.confidence = p->confidence;
        ds.draws = p->draws;
        ds.kv = p->kv == KV_BF16 ? OPS_KV_BF16 : OPS_KV_FP32;
        OK(draft_open(&r->o, &r->dc, r->draft_ckpt, &ds, &r->comm, &r->d));
    }
    OK(r->o.prepare(&r->o, p->max_rows));
    rig_state(r, p);
    OK(flow_open(&r->o, &r->c, p->max_rows, &r->f));
    r->stage = (struct prefill_stage){.t = r->t, .d = r->d, .s = &r->s, .first = 1, .last = 1};
    r->stage.vocab = r->c.vocab;
    r->stage.tp_rank = r->comm.rank;
    prefill_stage_taps(&r->stage, &r->c, r->d ? &r->dc : NULL, 1, 0);
}

static inline void rig_close(struct rig *r)
{
    flow_close(&r->o, &r->f);
    state_close(&r->s);
    draft_close(r->d);
    target_close(r->t);
    safetensors_close(r->draft_ckpt);
    safetensors_close(r->ckpt);
    r->o.close(&r->o);
}

static inline int rig_admit(struct rig *r, int n_tokens)
{
    int slot = -1;
    OK(state_admit(&r->s, n_tokens, &slot));
    ck_assert_int_ge(slot, 0);
    return slot;
}

/* prompt through the stage in chunks -> first token */
static inline int32_t rig_prefill(struct rig *r, int slot, const int32_t *ids, int n, int chunk)
{
    int32_t first = -1;
    for (int at = 0; at < n; at += chunk) {
        int m = n - at < chunk ? n - at : chunk;
        OK(prefill_chunk(&r->stage, slot, at, m, ids + at, at + m == n, &r->f, &first, NULL, NULL, NULL));
    }
    ck_assert_int_ge(first, 0);
    return first;
}

/* kv values of one position of a paged entry as f32: MLA row [width], or one head of a DRAFT entry [head_dim] */
static inline void rig_row(const struct rig *r, enum comp comp, int layer, int kv, int slot, int pos, int head,
                           int width, float *out)
{
    struct paged p = state_paged(&r->s, comp, layer, kv);
    ck_assert_ptr_nonnull(p.base);
    int64_t at = comp == COMP_DRAFT ? ((int64_t)head * p.page + pos % p.page) * width : (int64_t)(pos % p.page) * width;
    const char *item = (const char *)p.base + state_pages(&r->s, slot)[pos / p.page] * p.stride;
    for (int i = 0; i < width; i++) {
        if (p.kv == OPS_KV_FP32) {
            memcpy(out + i, item + (at + i) * 4, 4);
            continue;
        }
        uint16_t half;
        memcpy(&half, item + (at + i) * 2, 2);
        uint32_t wide = (uint32_t)half << 16;
        memcpy(out + i, &wide, 4);
    }
}

/* the same state for one request in two rigs (or slots): KDA, conv, MLA rows and draft rows [0, pos), bit for bit */
static inline int rig_same_state(const struct rig *a, int slot_a, const struct rig *b, int slot_b, int pos, int draft)
{
    float x[1024], y[1024];
    for (int i = 0; i < a->s.layout.n; i++) {
        const struct layout_entry *e = &a->s.layout.entry[i];
        if (e->comp == COMP_KDA || e->comp == COMP_CONV) {
            const void *p = state_item(&a->s, e->comp, e->layer, 0, slot_a);
            const void *q = state_item(&b->s, e->comp, e->layer, 0, slot_b);
            if (memcmp(p, q, (size_t)e->item_bytes) == 0) continue;
            fprintf(stderr, "%s of layer %d differs\n", comp_name[e->comp], e->layer);
            return 0;
        }
        if (e->comp == COMP_DRAFT && !draft) continue;
        int width = e->comp == COMP_MLA ? a->c.kv_rank + a->c.qk_rope : a->dc.head_dim;
        for (int t = 0; t < pos; t++)
            for (int h = 0; h < e->n_heads; h++) {
                rig_row(a, e->comp, e->layer, e->kv, slot_a, t, h, width, x);
                rig_row(b, e->comp, e->layer, e->kv, slot_b, t, h, width, y);
                if (memcmp(x, y, (size_t)width * 4) == 0) continue;
                fprintf(stderr, "%s of layer %d differs at position %d\n", comp_name[e->comp], e->layer, t);
                return 0;
            }
    }
    return 1;
}

/* int32 vector of a vector file; *n_p its length; release with mem_free */
static inline int32_t *rig_ids(const struct h5 *f, const char *name, int *n_p)
{
    void *v = NULL;
    size_t n = 0;
    OK(h5_read_vec(f, name, H5_KIND_I32, &v, &n));
    *n_p = (int)n;
    return v;
}

/* largest |a - b| relative to the largest |b| of the whole array */
static inline double rig_error(const float *a, const float *b, int64_t n)
{
    double worst = 0, size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)a[i] - b[i];
        if (!(d == d)) return 1e30;
        if (d < 0) d = -d;
        if (d > worst) worst = d;
        double m = b[i] < 0 ? -(double)b[i] : b[i];
        if (m > size) size = m;
    }
    return worst / size;
}

#endif
