/* decode_role - the loop of a decode rank. Each turn (tick) the leader runs the scheduler and its orders reach the
 * decode ranks by broadcast and the prefill ranks by message; then one round of speculation runs for all requests that
 * have started. In single mode START also prefills the prompt here. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "pd/control.h"
#include "pd/engine.h"
#include "pd/scheduler.h"
#include "pd/wait.h"

struct active { /* a request that decodes */
    struct spec_seq q;
    int used;             /* from START to FREE */
    int running;          /* in the batch */
    struct run_finished f;
};

struct grant { int request, waiting; uint32_t generation; }; /* a staging slot as this rank sees it */

struct decoder {
    struct world *w;
    const struct run_config *r;
    const struct run_sink *sink;
    struct engine e;
    struct control *control;
    struct transfer *transfer; /* NULL in single mode */
    struct scheduler *sched;   /* leader only */
    struct spec *spec;
    struct flow flow;          /* single mode's prefill */
    struct active *active;     /* [n_active] */
    struct spec_seq **batch;   /* [n_active] scratch */
    struct active **ended;     /* [n_active] scratch */
    int n_active;
    struct grant *grant;       /* [staging_slots] */
    double *admit_s;           /* [prompts.n] leader */
    struct order_log log;
    struct rank_stats *st;
    int leader, stop, logits_request;
    int64_t tokens;
    int finished;
};

/* ---- orders ---------------------------------------------------------------------------------------- */

static struct active *find_active(struct decoder *p, int request)
{
    for (int i = 0; i < p->n_active; i++)
        if (p->active[i].used && p->active[i].q.request == request) return &p->active[i];
    return NULL;
}

static struct active *free_active(struct decoder *p)
{
    for (int i = 0; i < p->n_active; i++)
        if (!p->active[i].used) return &p->active[i];
    return NULL;
}

static enum status admit(struct decoder *p, const struct order *o)
{
    int pages = split_pages(p->r->prompts.tokens[o->request], p->r->transfer.plan.page);
    struct grant *g = &p->grant[o->slot];
    if (p->leader) p->admit_s[o->request] = world_now(p->w);
    *g = (struct grant){o->request, 1, o->generation};
    return transfer_grant(p->transfer, o->slot, o->generation, o->request, pages);
}

static void prompt_logits(void *ctx, int pos, const float *row, int vocab)
{
    struct decoder *p = ctx;
    p->r->logits(p->r->logits_ctx, p->logits_request, pos, row, vocab);
}

/* single mode: the whole prompt through this group, chunk by chunk */
static enum status prefill_here(struct decoder *p, struct active *a, int32_t *first_p)
{
    const int32_t *ids = p->r->prompts.token + p->r->prompts.offset[a->q.request];
    int n = a->q.prompt_tokens, chunk = p->r->transfer.plan.chunk, page = p->r->transfer.plan.page;
    double t = MPI_Wtime();
    p->logits_request = a->q.request;
    a->f.first_chunk_s = world_now(p->w);
    for (int pos = 0; pos < n;) {
        int end = split_chunk_end(pos, n, chunk, page);
        TRY(prefill_chunk(&p->e.stage, a->q.slot, pos, end - pos, ids + pos, end == n, &p->flow, first_p, NULL,
                          p->r->logits ? prompt_logits : NULL, p));
        p->st->chunks++;
        pos = end;
    }
    a->f.prefill_done_s = world_now(p->w);
    p->st->prefill_s += MPI_Wtime() - t;
    return ST_OK;
}

/* what all decode ranks received for the request, on the leader */
static enum status sum_transfer(struct decoder *p, int slot, struct run_finished *f)
{
    struct transfer_request mine, *all = &f->transfer;
    MPI_Request req[4];
    transfer_request_stats(p->transfer, slot, &mine);
    *all = mine;
    TRY(mpi_check(MPI_Ireduce(mine.bytes, all->bytes, COMP_N, MPI_UINT64_T, MPI_SUM, 0, p->w->tp, &req[0]), "MPI_Ireduce"));
    TRY(mpi_check(MPI_Ireduce(mine.puts, all->puts, COMP_N, MPI_UINT64_T, MPI_SUM, 0, p->w->tp, &req[1]), "MPI_Ireduce"));
    TRY(mpi_check(MPI_Ireduce(mine.checksum, all->checksum, COMP_N, MPI_UINT64_T, MPI_BXOR, 0, p->w->tp, &req[2]), "MPI_Ireduce"));
    TRY(mpi_check(MPI_Ireduce(mine.seconds, all->seconds, COMP_N, MPI_DOUBLE, MPI_MAX, 0, p->w->tp, &req[3]), "MPI_Ireduce"));
    return wait_all(req, 4, NULL, NULL);
}

static enum status take_state(struct decoder *p, const struct order *o, struct active *a, int32_t *first_p)
{
    struct layout_aux aux;
    struct grant *g = &p->grant[o->slot];
    if (g->request != o->request || g->generation != o->generation)
        return ERR(ST_E_INTERNAL, "START of request %d generation %u, but slot %d was granted to request %d generation %u",
                   o->request, o->generation, o->slot, g->request, g->generation);
    double t = MPI_Wtime();
    TRY(sum_transfer(p, o->slot, &a->f));
    TRY(transfer_unpack(p->transfer, o->slot, &p->e.state, a->q.slot, &aux));
    p->st->transfer_s += MPI_Wtime() - t;
    g->request = -1;
    a->f.has_transfer = 1;
    a->f.first_chunk_s = aux.first_chunk_s;
    a->f.prefill_done_s = aux.prefill_done_s;
    a->f.transfer_start_s = a->f.transfer.first_s;
    a->f.transfer_done_s = a->f.transfer.done_s;
    if (aux.first_token < 0 || aux.first_token >= p->r->c->vocab)
        return ERR(ST_E_FAULT, "request %d: first token %d is outside the vocabulary", o->request, aux.first_token);
    *first_p = aux.first_token;
    return ST_OK;
}

static enum status start(struct decoder *p, const struct order *o)
{
    struct active *a = free_active(p);
    int32_t first = -1;
    if (!a) return ERR(ST_E_INTERNAL, "START of request %d: all %d decode slots are in use", o->request, p->n_active);
    int tokens = p->r->prompts.tokens[o->request], slot;
    TRY(state_admit(&p->e.state, tokens + p->r->max_new + p->r->block, &slot));
    if (slot < 0) return ERR(ST_E_INTERNAL, "START of request %d: no free pages or state slot", o->request);
    a->used = 1;
    struct spec_seq *q = &a->q;
    q->request = o->request;
    q->slot = slot;
    q->prompt_tokens = tokens;
    q->max_new = p->r->max_new;
    memset(&a->f, 0, sizeof a->f);
    a->f.q = q;
    a->f.admit_s = a->f.first_chunk_s = a->f.prefill_done_s = a->f.transfer_start_s = a->f.transfer_done_s = NAN;
    if (p->leader && !p->w->topo.single) a->f.admit_s = p->admit_s[o->request];
    if (p->w->topo.single) {
        a->f.admit_s = world_now(p->w);
        TRY(prefill_here(p, a, &first));
    } else {
        TRY(take_state(p, o, a, &first));
    }
    spec_start(q, first, p->r->c->eos);
    a->f.first_token_s = a->f.prefill_done_s;
    a->f.start_s = world_now(p->w);
    a->running = 1;
    return ST_OK;
}

static enum status release(struct decoder *p, const struct order *o)
{
    struct active *a = find_active(p, o->request);
    if (!a || a->running) return ERR(ST_E_INTERNAL, "FREE of request %d, which %s", o->request, a ? "still runs" : "holds nothing");
    TRY(state_release(&p->e.state, a->q.slot));
    a->used = 0;
    return ST_OK;
}

static enum status apply(struct decoder *p, const struct order *o)
{
    TRY(order_next(&p->log, o));
    p->st->orders++;
    if (p->r->kill_rank == p->w->rank && p->log.applied == p->r->kill_event) raise(SIGKILL);
    switch (o->kind) {
    case ORDER_ADMIT: return admit(p, o);
    case ORDER_CHUNK: return ST_OK;
    case ORDER_START: return start(p, o);
    case ORDER_FREE: return release(p, o);
    case ORDER_STOP: p->stop = 1; return ST_OK;
    default: return ERR(ST_E_INTERNAL, "order kind %d is unknown", o->kind);
    }
}

/* ---- one turn -------------------------------------------------------------------------------------- */

static enum status collect_reports(struct decoder *p)
{
    struct control_report r;
    for (int got = 1; got;) {
        TRY(control_next_report(p->control, &r, &got));
        if (got) TRY(scheduler_ready(p->sched, r.slot, r.generation, r.tp_rank));
    }
    return ST_OK;
}

/* staging slots of this rank that became complete since the last look */
static enum status look_for_ready(struct decoder *p)
{
    TRY(transfer_progress(p->transfer));
    for (int i = 0; i < p->r->transfer.plan.staging_slots; i++) {
        struct grant *g = &p->grant[i];
        int ready;
        if (g->request < 0 || !g->waiting) continue;
        TRY(transfer_ready(p->transfer, i, &ready));
        if (ready < 0) return ERR(ST_E_FAULT, "request %d: a prefill rank reported that it failed", g->request);
        if (!ready) continue;
        g->waiting = 0;
        if (p->leader)
            TRY(scheduler_ready(p->sched, i, g->generation, p->w->role.tp_rank));
        else
            TRY(control_report_ready(p->control, i, g->generation));
    }
    return ST_OK;
}

/* the leader decides; everybody learns the same orders in the same turn */
static enum status share_orders(struct decoder *p, struct order o[CONTROL_BATCH], int *n_p)
{
    int32_t n = 0;
    if (p->leader) {
        if (p->r->interrupted && *p->r->interrupted) scheduler_drain(p->sched);
        TRY(scheduler_tick(p->sched, o, CONTROL_BATCH, n_p));
        n = *n_p;
        if (n && !p->w->topo.single) TRY(control_post(p->control, o, n));
        if (!p->w->topo.single) TRY(control_alive(p->control, p->r->watchdog_s / 8));
    }
    TRY(p->e.comm.bcast(p->e.comm.ctx, &n, sizeof n));
    if (n) TRY(p->e.comm.bcast(p->e.comm.ctx, o, (size_t)n * sizeof *o));
    *n_p = n;
    return ST_OK;
}

static enum status finish_ended(struct decoder *p)
{
    for (int i = 0; i < p->n_active; i++) {
        struct active *a = &p->active[i];
        if (!a->running || a->q.stop == STOP_NONE) continue;
        a->running = 0;
        p->finished++;
        p->tokens += a->q.n_out;
        if (!p->leader) continue;
        a->f.end_s = world_now(p->w);
        TRY(p->sink->finished(p->sink->ctx, &a->f));
        TRY(scheduler_finished(p->sched, a->q.request));
    }
    return ST_OK;
}

static enum status round_of_all(struct decoder *p, int *n_p)
{
    int n = 0;
    for (int i = 0; i < p->n_active; i++)
        if (p->active[i].running) p->batch[n++] = &p->active[i].q;
    *n_p = n;
    if (!n) return ST_OK;
    p->st->rounds++;
    return spec_round(p->spec, p->batch, n, &p->st->draft_s, &p->st->verify_s, &p->st->commit_s);
}

static enum status turn(struct decoder *p, struct waiter *wait)
{
    struct order o[CONTROL_BATCH];
    int n = 0, running = 0;
    if (!p->w->topo.single) {
        if (p->leader) TRY(collect_reports(p));
        TRY(look_for_ready(p));
    }
    TRY(share_orders(p, o, &n));
    for (int i = 0; i < n; i++) TRY(apply(p, &o[i]));
    TRY(finish_ended(p)); /* a first token may already end a request */
    TRY(round_of_all(p, &running));
    TRY(finish_ended(p));
    if (p->leader && p->sink->progress) p->sink->progress(p->sink->ctx, p->finished, running, p->tokens, world_now(p->w));
    if (n || running) {
        wait_reset(wait);
        return ST_OK;
    }
    if (!p->leader || p->stop) return ST_OK;
    double t = MPI_Wtime();
    enum status st = wait_pause(wait);
    p->st->wait_s += MPI_Wtime() - t;
    return st;
}

/* ---- set-up ---------------------------------------------------------------------------------------- */

static void report(void *ctx)
{
    struct decoder *p = ctx;
    if (p->sched) scheduler_table(p->sched);
    if (p->transfer) transfer_table(p->transfer);
}

static enum status open_lists(struct decoder *p)
{
    const struct run_config *r = p->r;
    size_t n = (size_t)p->n_active, slots = (size_t)r->transfer.plan.staging_slots;
    p->active = mem_alloc(n, sizeof *p->active, "decode slots");
    p->batch = mem_alloc(n, sizeof *p->batch, "decode batch");
    p->grant = mem_alloc(slots, sizeof *p->grant, "granted slots");
    p->admit_s = mem_alloc((size_t)r->prompts.n + 1, sizeof *p->admit_s, "admit times");
    if (!p->active || !p->batch || !p->grant || !p->admit_s) return ST_E_NOMEM;
    for (size_t i = 0; i < slots; i++) p->grant[i].request = -1;
    for (size_t i = 0; i < n; i++) {
        p->active[i].q.out = mem_alloc((size_t)r->max_new, sizeof(int32_t), "output tokens");
        p->active[i].q.round = mem_alloc((size_t)r->max_new, sizeof(struct spec_round), "rounds");
        if (!p->active[i].q.out || !p->active[i].q.round) return ST_E_NOMEM;
    }
    return ST_OK;
}

static enum status open_scheduler(struct decoder *p)
{
    const struct plan_options *plan = &p->r->transfer.plan;
    struct scheduler_options o = {.n_requests = p->r->prompts.n,
                                  .prompt_tokens = p->r->prompts.tokens,
                                  .skip = p->r->skip,
                                  .n_staging = plan->staging_slots,
                                  .concurrency = p->n_active,
                                  .chunk = plan->chunk,
                                  .page = plan->page,
                                  .decode_ranks = p->w->topo.decode.tp,
                                  .single = p->w->topo.single};
    return scheduler_open(&o, &p->sched);
}

static enum status open_role(struct decoder *p)
{
    struct world *w = p->w;
    const struct run_config *r = p->r;
    TRY(world_agree(w, engine_open(w, r, &p->e)));
    struct spec_options so = {.block = r->block,
                              .max_seqs = p->n_active,
                              .eos = r->c->eos,
                              .source = SPEC_DRAFT,
                              .logits = r->logits,
                              .logits_ctx = r->logits_ctx};
    TRY(spec_open(r->o, r->c, p->e.t, p->e.d, &p->e.state, &p->e.comm, &so, &p->spec));
    TRY(open_lists(p));
    TRY(control_open(w, &p->control));
    if (p->leader) TRY(open_scheduler(p));
    if (w->topo.single) return flow_open(r->o, r->c, p->e.chunk_rows, &p->flow);
    return transfer_open(w, r->c, r->d, &r->transfer, NULL, &p->transfer);
}

static void close_role(struct decoder *p)
{
    transfer_close(p->transfer);
    if (p->w->topo.single) flow_close(p->r->o, &p->flow);
    scheduler_close(p->sched);
    control_close(p->control);
    for (int i = 0; p->active && i < p->n_active; i++) {
        mem_free(p->active[i].q.out);
        mem_free(p->active[i].q.round);
    }
    mem_free(p->active);
    mem_free(p->batch);
    mem_free(p->grant);
    mem_free(p->admit_s);
    spec_close(p->spec);
    engine_close(&p->e);
}

static void fill_stats(struct decoder *p)
{
    struct rank_stats *st = p->st;
    engine_stats(&p->e, p->w, st);
    st->compute_s = st->prefill_s + st->draft_s + st->verify_s + st->commit_s - coll_seconds(p->e.coll);
    st->order_hash = p->log.hash;
    if (p->transfer) st->window_bytes = transfer_window_bytes(p->transfer);
    for (int c = 0; c < COMP_N && p->transfer; c++) st->shared_bytes[c] = transfer_shared(p->transfer, (enum comp)c);
    if (p->sched) {
        struct scheduler_stats s = scheduler_stats(p->sched);
        st->ticks = s.ticks;
        st->starts = s.starts;
        st->start_delay_max = s.start_delay_max;
        st->start_delay_sum = s.start_delay_sum;
    }
}

enum status decode_role(struct world *w, const struct run_config *r, const struct run_sink *sink, struct rank_stats *st_p)
{
    struct decoder p = {.w = w, .r = r, .sink = sink, .st = st_p};
    struct waiter wait = {0};
    memset(st_p, 0, sizeof *st_p);
    p.leader = w->role.tp_rank == 0;
    p.n_active = r->transfer.plan.concurrency < r->prompts.n ? r->transfer.plan.concurrency : (r->prompts.n ? r->prompts.n : 1);
    wait_limit(r->watchdog_s, report, &p);
    TRY(world_agree(w, open_role(&p)));
    log_info("decode tp=%d ep=%d ready: %.1f MiB weights, %.1f MiB state a rank, sums over %s", w->topo.decode.tp,
             w->topo.decode.ep, (double)target_weight_bytes(p.e.t) / 1048576, (double)p.e.state.layout.bytes / 1048576,
             coll_name(p.e.coll));
    double t = MPI_Wtime();
    uint64_t allocs = buf_allocs();
    while (!p.stop) TRY(turn(&p, &wait));
    TRY(control_drain(p.control));
    st_p->loop_allocs = buf_allocs() - allocs;
    st_p->total_s = MPI_Wtime() - t;
    fill_stats(&p);
    wait_limit(0, NULL, NULL);
    close_role(&p);
    return ST_OK;
}
