/* work: the planned activations are, byte for byte, what a rank of each kind allocates; counted where it allocates them
 */
#include "suite.h"

#include <stdlib.h>
#include <string.h>

#include "model/prefill.h"
#include "model/spec.h"
#include "plan/work.h"

const char *const suite_name = "work";

#define OK(expr) ck_assert_int_eq((expr), ST_OK)

/* what memory_rank calls activations; all else that comes from mem_new is weights or state */
static const char *const activation[] = {
    "target scratch",  "replay records", "activations between layers", "draft rows",        "draft keys and values",
    "draft stream",    "draft partial sums", "draft queries",          "draft attention",   "draft gate and up",
    "draft activations", "taps of a round",  "committed rows of a tap", "Markov rows",      "Markov bias",
};
static int64_t counted;
static enum status (*real_new)(struct ops *o, struct buf *b, size_t bytes, const char *what);

static enum status counting_new(struct ops *o, struct buf *b, size_t bytes, const char *what)
{
    for (size_t i = 0; i < sizeof activation / sizeof activation[0]; i++)
        if (strcmp(what, activation[i]) == 0) counted += (int64_t)bytes;
    return real_new(o, b, bytes, what);
}

struct world { /* a model pair and its checkpoints */
    struct config c;
    struct draft_config d;
    struct safetensors *ckpt, *draft_ckpt;
    int with_draft;
    struct topology t;
    struct plan_options o;
};

/* rank r opens what its role opens, see engine.c and the roles */
static void open_rank(struct world *w, int r)
{
    struct rank_role role = topology_role(&w->t, r);
    int decodes = role.role == ROLE_DECODE, prefills = w->t.single || !decodes, block = w->o.block > 1 ? w->o.block : 1;
    const struct group *g = decodes ? &w->t.decode : &w->t.prefill;
    int pp = decodes ? 1 : g->pp, last = decodes || role.last_stage;
    int chunk = prefills ? (w->o.chunk < w->o.max_prompt ? w->o.chunk : w->o.max_prompt) : 0;
    int verify = decodes ? w->o.concurrency * block : 0, rows = chunk > verify ? chunk : verify;
    struct ops o;
    struct target *t;
    struct draft *d = NULL;
    struct spec *spec = NULL;
    struct flow f[2];
    struct state s;
    struct tp_comm comm = comm_self();
    struct layout l;
    comm.rank = role.tp_rank;
    comm.size = g->tp;
    OK(ops_cpu_open(ACT_FP32, "scalar", &o));
    real_new = o.mem_new;
    o.mem_new = counting_new;
    struct target_spec ts = {.layers = split_stage(w->c.n_layers, pp, role.stage),
                             .tp = g->tp,
                             .tp_rank = role.tp_rank,
                             .ep = g->ep,
                             .max_rows = rows,
                             .max_verify_rows = w->with_draft ? verify : 0,
                             .max_logits = verify ? verify : 1,
                             .absorbed_prefill = 1};
    OK(target_open(&o, &w->c, w->ckpt, &ts, &comm, &t));
    if (w->with_draft) {
        struct draft_spec ds = {
            .tp = g->tp, .tp_rank = role.tp_rank, .max_rows = rows, .max_seqs = decodes ? verify / block : 0};
        ds.n_taps = split_taps(&w->d, w->c.n_layers, pp, role.stage, ds.tap);
        ds.parts = DRAFT_FC | (last ? DRAFT_CONTEXT : 0) | (decodes ? DRAFT_BLOCK : 0);
        OK(draft_open(&o, &w->d, w->draft_ckpt, &ds, &comm, &d));
    }
    OK(decodes ? memory_decode_layout(&w->c, w->with_draft ? &w->d : NULL, &w->t, &w->o, role.tp_rank, &l)
               : memory_source_layout(&w->c, w->with_draft ? &w->d : NULL, &w->t, &w->o, role.stage, role.tp_rank, &l));
    OK(state_open(&o, &l, split_pages(w->o.max_tokens, w->o.page), &s));
    int flows = prefills ? (w->t.single ? 1 : 2) : 0;
    for (int i = 0; i < flows; i++) OK(flow_open(&o, &w->c, chunk, &f[i]));
    struct spec_options so = {.block = block, .max_seqs = w->o.concurrency, .eos = w->c.eos};
    if (decodes) OK(spec_open(&o, &w->c, t, d, &s, &comm, &so, &spec));
    spec_close(spec);
    for (int i = 0; i < flows; i++) flow_close(&o, &f[i]);
    state_close(&s);
    draft_close(d);
    target_close(t);
    o.close(&o);
}

static const struct work_case {
    int pp, P, pep, D, dep, single, draft; /* draft: 0 none, 1 DFlash, 2 DSpark */
    int chunk, max_prompt, concurrency;
} cases[] = {
    {1, 1, 0, 1, 0, 0, 1, 8192, 100, 1},   {1, 1, 0, 1, 0, 1, 1, 64, 100, 3},    {3, 2, 0, 4, 0, 0, 1, 32, 200, 2},
    {17, 1, 0, 8, 0, 0, 1, 17, 60, 1},     {2, 4, 4, 2, 2, 0, 2, 50, 77, 5},     {2, 2, 2, 8, 8, 0, 0, 64, 64, 4},
    {1, 1, 0, 2, 0, 1, 0, 1000, 33, 7},    {1, 1, 0, 4, 0, 1, 2, 5, 90, 2},      {5, 2, 1, 4, 2, 0, 1, 1, 1, 1},
    {2, 1, 1, 8, 4, 0, 2, 128, 500, 6},
};

START_TEST(planned_is_allocated)
{
    const struct work_case *x = &cases[_i];
    const char *dir = suite_path("inputs/k3-nano");
    struct world w = {.with_draft = x->draft != 0};
    OK(config_load(dir, &w.c));
    OK(safetensors_open(dir, &w.ckpt));
    if (x->draft) {
        dir = suite_path(x->draft == 1 ? "inputs/k3-nano-dflash" : "inputs/k3-nano-dspark");
        OK(draft_config_load(dir, &w.c, &w.d));
        OK(safetensors_open(dir, &w.draft_ckpt));
    }
    const struct group p = {x->pp, x->P, x->pep}, q = {1, x->D, x->dep};
    const struct draft_config *d = x->draft ? &w.d : NULL;
    OK(topology_make(&w.c, d, &p, &q, x->single, &w.t));
    w.o = (struct plan_options){.page = 16,
                                .max_tokens = x->max_prompt + 60,
                                .max_prompt = x->max_prompt,
                                .concurrency = x->concurrency,
                                .prefill_slots = 2,
                                .staging_slots = 2,
                                .chunk = x->chunk,
                                .stripe = 1,
                                .block = d ? draft_verify_rows(d) : 1};
    for (int r = 0; r < w.t.n_ranks; r++) {
        struct rank_role role = topology_role(&w.t, r);
        if (role.tp_rank > 1) continue; /* ranks of a group hold alike */
        struct rank_memory m;
        OK(memory_rank(&w.c, d, &w.t, &w.o, r, &m));
        counted = 0;
        open_rank(&w, r);
        ck_assert_msg(counted == m.work_bytes, "rank %d: %lld bytes are allocated, %lld were planned", r,
                      (long long)counted, (long long)m.work_bytes);
    }
    safetensors_close(w.draft_ckpt);
    safetensors_close(w.ckpt);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "work", 120);
    tcase_add_loop_test(tc, planned_is_allocated, 0, sizeof cases / sizeof cases[0]);
}

int main(void)
{
    return suite_main_serial();
}
