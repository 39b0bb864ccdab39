/* nano - the fixture model for tests of src/model: one rank's target, state and activations, ready to run.
 *
 * The checkpoint is opened once per test and shared; a rank takes any layer range, TP rank and options. Host
 * backend, so backend memory can be read directly. Failures end the test. */
#ifndef PDFLASH_TESTS_NANO_H
#define PDFLASH_TESTS_NANO_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/h5.h"
#include "model/target.h"
#include "suite.h"

enum { NANO_PAGE = 16, NANO_PAGES = 12 /* of a request */, NANO_SLOTS = 8 };

struct nano { /* checkpoint */
    struct config c;
    struct safetensors *ckpt;
};

struct nano_spec {
    struct range layers;  /* end 0: all */
    int tp, tp_rank, ep;  /* tp 0: one rank */
    enum ops_act act;
    enum ops_kv kv;
    int absorbed;         /* PREFILL form */
    int max_rows, max_verify_rows;
    const char *isa;
    struct tp_comm comm;  /* used when tp > 1 */
};

struct nano_rank {
    struct ops o;
    struct target *t;
    struct state s;
    struct flow f;
    struct range layers;
};

static inline void nano_open(struct nano *n)
{
    ck_assert_int_eq(config_load(suite_path("inputs/k3-nano"), &n->c), ST_OK);
    ck_assert_int_eq(safetensors_open(suite_path("inputs/k3-nano"), &n->ckpt), ST_OK);
}

static inline void nano_close(struct nano *n)
{
    safetensors_close(n->ckpt);
}

static inline void nano_rank_open(const struct nano *n, const struct nano_spec *spec, struct nano_rank *r)
{
    int tp = spec->tp ? spec->tp : 1;
    struct tp_comm self = comm_self();
    struct layout l;
    r->layers = spec->layers.end ? spec->layers : (struct range){0, n->c.n_layers};
    struct target_spec ts = {.layers = r->layers, .tp = tp, .tp_rank = spec->tp_rank, .ep = spec->ep ? spec->ep : 1};
    ts.max_rows = spec->max_rows;
    ts.max_verify_rows = spec->max_verify_rows;
    ts.absorbed_prefill = spec->absorbed;
    struct layout_spec ls = {.page = NANO_PAGE, .kv = (enum kv_dtype)spec->kv, .layers = r->layers, .tp = tp};
    ls.tp_rank = spec->tp_rank;
    ls.n_pages = NANO_PAGES * NANO_SLOTS;
    ls.n_slots = NANO_SLOTS;
    ck_assert_int_eq(ops_cpu_open(spec->act, spec->isa, &r->o), ST_OK);
    ck_assert_int_eq(target_open(&r->o, &n->c, n->ckpt, &ts, tp > 1 ? &spec->comm : &self, &r->t), ST_OK);
    ck_assert_int_eq(r->o.prepare(&r->o, spec->max_rows), ST_OK);
    ck_assert_int_eq(layout_make(&n->c, NULL, &ls, &l), ST_OK);
    ck_assert_int_eq(state_open(&r->o, &l, NANO_PAGES, &r->s), ST_OK);
    ck_assert_int_eq(flow_open(&r->o, &n->c, spec->max_rows, &r->f), ST_OK);
}

static inline void nano_rank_close(struct nano_rank *r)
{
    flow_close(&r->o, &r->f);
    state_close(&r->s);
    target_close(r->t);
    r->o.close(&r->o);
}

static inline int nano_admit(struct nano_rank *r)
{
    int slot = -1;
    ck_assert_int_eq(state_admit(&r->s, NANO_PAGE * NANO_PAGES, &slot), ST_OK);
    ck_assert_int_ge(slot, 0);
    return slot;
}

/* one sequence as a batch; q is the caller's storage */
static inline struct batch nano_batch(enum batch_kind kind, struct batch_seq *q, int slot, int pos0, int n,
                                      const int32_t *id)
{
    *q = (struct batch_seq){.slot = slot, .n_rows = n, .pos0 = pos0};
    q->n_draft = kind == BATCH_VERIFY ? n - 1 : 0;
    q->want_logits = kind == BATCH_VERIFY || kind == BATCH_DECODE ? n : 1;
    return (struct batch){.kind = kind, .n_rows = n, .n_seq = 1, .seq = q, .id = (int32_t *)(uintptr_t)id};
}

static inline void nano_run(struct nano_rank *r, enum batch_kind kind, int slot, int pos0, int n, const int32_t *id)
{
    struct batch_seq q;
    struct batch b = nano_batch(kind, &q, slot, pos0, n, id);
    ck_assert_int_eq(target_forward(r->t, &r->s, &b, &r->f, NULL, NULL), ST_OK);
}

static inline void nano_prefill(struct nano_rank *r, int slot, int n, const int32_t *id, int chunk)
{
    for (int at = 0; at < n; at += chunk)
        nano_run(r, BATCH_PREFILL, slot, at, n - at < chunk ? n - at : chunk, id + at);
}

/* bytes of one item; MLA rows are gathered by token below */
static inline size_t nano_item_bytes(const struct nano_rank *r, enum comp comp, int layer)
{
    return (size_t)r->s.layout.entry[layout_find(&r->s.layout, comp, layer, 0)].item_bytes;
}

/* nano_state - everything a request of n tokens carries, by layer, pages undone: malloc'd. with_rows 0: no MLA. */
static inline char *nano_state(const struct nano *m, const struct nano_rank *r, int slot, int n, int with_rows,
                               size_t *bytes_p)
{
    size_t kv = (size_t)kv_bytes(r->s.layout.spec.kv), row = (size_t)(m->c.kv_rank + m->c.qk_rope) * kv, at = 0,
           cap = 0;
    for (int i = r->layers.begin; i < r->layers.end; i++)
        cap += m->c.is_kda[i] ? nano_item_bytes(r, COMP_KDA, i) + nano_item_bytes(r, COMP_CONV, i) : row * (size_t)n;
    char *out = calloc(cap + 1, 1);
    for (int i = r->layers.begin; i < r->layers.end; i++) {
        if (m->c.is_kda[i]) {
            for (int k = 0; k < 2; k++) {
                enum comp comp = k ? COMP_CONV : COMP_KDA;
                size_t b = nano_item_bytes(r, comp, i);
                memcpy(out + at, state_item(&r->s, comp, i, 0, slot), b);
                at += b;
            }
            continue;
        }
        for (int p = 0; p < n && with_rows; p++, at += row) {
            const char *page = state_item(&r->s, COMP_MLA, i, 0, state_pages(&r->s, slot)[p / NANO_PAGE]);
            memcpy(out + at, page + (size_t)(p % NANO_PAGE) * row, row);
        }
    }
    *bytes_p = at;
    return out;
}

/* nano_ids - token ids of a golden prompt, "p5", "p37" or "p150"; mem_free */
static inline int32_t *nano_ids(const char *which, int *n_p)
{
    char file[64];
    struct h5 *f;
    int32_t *id;
    int64_t dim[H5_MAX_RANK];
    int rank;
    snprintf(file, sizeof file, "tests/vectors/layers_%s.h5", which);
    ck_assert_int_eq(h5_open(suite_path(file), 0, &f), ST_OK);
    ck_assert_int_eq(h5_read_i32(f, "/x/ids", dim, &rank, &id), ST_OK);
    h5_close(f);
    *n_p = (int)dim[0];
    return id;
}

#endif
