#include "pd/engine.h"

#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "plan/scratch.h"
#include "plan/work.h"

static enum status open_draft(struct world *w, const struct run_config *r, int rows, int seqs, struct engine *e)
{
    struct draft_spec s = {.tp = w->role.role == ROLE_DECODE ? w->topo.decode.tp : w->topo.prefill.tp,
                           .tp_rank = w->role.tp_rank,
                           .max_rows = rows,
                           .max_seqs = seqs,
                           .kv = (enum ops_kv)r->transfer.plan.draft_kv};
    if (w->role.role == ROLE_DECODE) {
        s.parts = DRAFT_FC | DRAFT_CONTEXT | DRAFT_BLOCK;
        s.confidence = r->confidence > 0;
        s.draws = sampling_draws(&r->sampling);
        s.n_taps = r->d->n_taps;
        for (int i = 0; i < s.n_taps; i++) s.tap[i] = i;
    } else {
        s.n_taps = e->stage.n_taps;
        for (int i = 0; i < s.n_taps; i++) s.tap[i] = e->stage.tap_index[i];
        s.parts = DRAFT_FC | (w->role.last_stage ? DRAFT_CONTEXT : 0);
    }
    return draft_open(r->o, r->d, r->draft_ckpt, &s, &e->comm, &e->d);
}

static enum status open_state(struct world *w, const struct run_config *r, struct engine *e)
{
    const struct plan_options *p = &r->transfer.plan;
    int decode = w->role.role == ROLE_DECODE;
    int tokens = decode ? p->max_tokens : p->max_prompt;
    struct layout l;
    if (decode)
        TRY(memory_decode_layout(r->c, r->d, &w->topo, p, w->role.tp_rank, &l));
    else
        TRY(memory_source_layout(r->c, r->d, &w->topo, p, w->role.stage, w->role.tp_rank, &l));
    return state_open(r->o, &l, split_pages(tokens, p->page), &e->state);
}

/* where first tokens are drawn: the last stage, one of its ranks for all */
static enum status open_draws(const struct world *w, const struct run_config *r, int last, struct engine *e)
{
    if (!sampling_on(&r->sampling) || !last || !e->chunk_rows) return ST_OK;
    e->stage.comm = &e->comm;
    if (w->role.tp_rank > 0) return ST_OK;
    e->stage.row = mem_alloc((size_t)r->c->vocab, sizeof *e->stage.row, "logits row");
    return e->stage.row ? sampler_open(r->c->vocab, &e->stage.sampler) : ST_E_NOMEM;
}

static enum status open_coll(struct world *w, const struct run_config *r, int64_t values, struct engine *e)
{
    char why[NCCL_WHY];
    if (r->links->tp) {
        enum status st = coll_open_nccl(w->tp, r->links->nccl, r->o, values, &e->coll, &e->comm, why);
        if (st != ST_E_DEVICE) return st;
        if (r->links->must) return ERR(st, "sums over NCCL: %s", why);
        if (w->role.tp_rank == 0) log_warn("sums go through MPI and host memory: %s", why);
    }
    return coll_open(w->tp, r->coll, values, &e->coll, &e->comm);
}

enum status engine_open(struct world *w, const struct run_config *r, struct engine *e_p)
{
    struct engine *e = e_p;
    memset(e, 0, sizeof *e);
    int decode = w->role.role == ROLE_DECODE;
    const struct group *g = decode ? &w->topo.decode : &w->topo.prefill;
    struct work_rows x = work_rows(&w->topo, &r->transfer.plan, w->role);
    int rows = (int)x.most, decode_rows = (int)x.decode, pp = decode ? 1 : g->pp;
    e->chunk_rows = (int)x.chunk;
    TRY(open_coll(w, r, scratch_sum_values(r->c, g, rows), e));
    struct target_spec s = {.layers = split_stage(r->c->n_layers, pp, w->role.stage),
                            .tp = g->tp,
                            .tp_rank = w->role.tp_rank,
                            .ep = g->ep,
                            .max_rows = rows,
                            .max_verify_rows = r->d ? decode_rows : 0,
                            .max_logits = decode_rows > 0 ? decode_rows : 1, /* prefill wants one row a prompt */
                            .absorbed_prefill = r->absorbed_prefill};
    TRY(target_open(r->o, r->c, r->ckpt, &s, &e->comm, &e->t));
    if (r->d) prefill_stage_taps(&e->stage, r->c, r->d, pp, w->role.stage);
    if (r->d) TRY(open_draft(w, r, rows, decode ? decode_rows / r->block : 0, e));
    TRY(r->o->prepare(r->o, rows));
    TRY(open_state(w, r, e));
    TRY(open_draws(w, r, w->role.stage == pp - 1, e));
    e->stage.t = e->t;
    e->stage.d = e->d;
    e->stage.s = &e->state;
    e->stage.first = w->role.stage == 0;
    e->stage.last = w->role.stage == pp - 1;
    e->stage.vocab = r->c->vocab;
    e->stage.tp_rank = w->role.tp_rank;
    return ST_OK;
}

void engine_close(struct engine *e)
{
    if (!e) return;
    sampler_close(e->stage.sampler);
    mem_free(e->stage.row);
    if (e->state.o) state_close(&e->state);
    draft_close(e->d);
    target_close(e->t);
    coll_close(e->coll);
    memset(e, 0, sizeof *e);
}

static int64_t peak_bytes(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (int64_t)u.ru_maxrss * 1024 : -1;
}

int engine_todo(const struct run_config *r)
{
    int n = 0;
    for (int i = 0; i < r->prompts.n; i++) n += !r->skip || !r->skip[i];
    return n;
}

void engine_memory(const struct order_log *l, int n_todo, struct rank_stats *st)
{
    if (st->rss_quarter == 0 && (int64_t)4 * l->ended >= n_todo) st->rss_quarter = peak_bytes();
}

void engine_stats(const struct engine *e, const struct world *w, struct rank_stats *st)
{
    st->role = (int32_t)w->role.role;
    st->stage = w->role.stage;
    st->tp_rank = w->role.tp_rank;
    gethostname(st->host, sizeof st->host - 1);
    st->weight_bytes = target_weight_bytes(e->t) + (e->d ? draft_weight_bytes(e->d) : 0);
    st->state_bytes = e->state.layout.bytes;
    st->device_bytes = -1;
    st->peak_host_bytes = st->rss_end = peak_bytes();
    st->wait_s += coll_seconds(e->coll);
    st->free_pages_end = e->state.n_free_pages;
    st->free_slots_end = e->state.n_free_slots;
    st->free_pages_start = e->state.layout.spec.n_pages;
    st->free_slots_start = e->state.layout.spec.n_slots;
}

void engine_graphs(const struct ops *o)
{
    struct ops_graphs g = o->graph_counts(o);
    if (g.started)
        log_info("graphs: %" PRId64 " made, %" PRId64 " started, %" PRId64 " launches in them, %" PRId64 " of those changed; "
                 "%" PRId64 " regions cut by a wait or copy", g.made, g.started, g.launches, g.changed, g.cut);
}
