/* prefill_role - the loop of a prefill rank: orders in, chunks through this stage's layers, state out. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "pd/control.h"
#include "pd/engine.h"
#include "pd/guard.h"
#include "pd/stage.h"
#include "pd/wait.h"

struct job { /* what one staging slot's request is doing on this rank */
    int request, state_slot;
    uint32_t generation;
    int n_pages, sent_pages;
    int failed;  /* this rank gave it up: it computes on, so that its neighbours stay in step, but sends nothing */
    int aborted; /* by order */
    double first_chunk_s;
    double before_work_s; /* seconds the stages before this one were at work so far */
};

struct prefiller {
    struct world *w;
    const struct run_config *r;
    struct engine e;
    struct control *control;
    struct stage_link *link;
    struct transfer *transfer;
    struct job *job; /* [staging_slots] */
    struct order_log log;
    struct rank_stats *st;
    int logits_request;
    int n_todo;
    int stop;
    enum status pushed;  /* what push_meanwhile met */
    struct moves moves;  /* the device's work and what goes out meanwhile */
};

static enum status push_idle(void *ctx)
{
    struct prefiller *p = ctx;
    int idle;
    return transfer_push(p->transfer, 1, &idle);
}

/* while the backend waits for the device: state of chunks before this one goes out */
static void push_meanwhile(void *ctx)
{
    struct prefiller *p = ctx;
    int idle;
    if (p->pushed == ST_OK) p->pushed = transfer_push(p->transfer, 1, &idle);
}

static void meanwhile(struct prefiller *p, int on)
{
    p->r->o->idle_ctx = p;
    p->r->o->idle = on ? push_meanwhile : NULL;
}

static enum status admit(struct prefiller *p, const struct order *o)
{
    struct job *j = &p->job[o->slot];
    int tokens = p->r->prompts.tokens[o->request], slot;
    TRY(state_admit(&p->e.state, tokens, &slot));
    if (slot < 0)
        return ERR(ST_E_INTERNAL,
                   "request %d: admitted to staging slot %d but this stage has no free state slot or pages (%d slots, "
                   "%d pages free)",
                   o->request, o->slot, p->e.state.n_free_slots, p->e.state.n_free_pages);
    *j = (struct job){.request = o->request, .state_slot = slot, .generation = o->generation,
                      .n_pages = split_pages(tokens, p->r->transfer.plan.page)};
    return transfer_begin(p->transfer, o->slot, o->generation, o->request, slot, j->n_pages);
}

/* FAIL instead of what is still to send. The scheduler hears of it from the decode ranks and aborts the request. */
static enum status give_up(struct prefiller *p, const struct order *o, struct job *j)
{
    if (j->failed) return ST_OK;
    j->failed = 1;
    log_warn("request %d: given up by this rank: %s", o->request, err_last());
    return transfer_fail(p->transfer, o->slot);
}

static void send_logits(void *ctx, int pos, const float *row, int vocab)
{
    struct prefiller *p = ctx;
    p->r->logits(p->r->logits_ctx, p->logits_request, pos, row, vocab);
}

/* computing, without waiting for others in sums */
static double work_so_far(const struct prefiller *p)
{
    return p->st->prefill_s - coll_seconds(p->e.coll);
}

static enum status send_state(struct prefiller *p, const struct order *o, struct job *j, int32_t first_token)
{
    int page = p->r->transfer.plan.page, idle;
    int full = o->final ? j->n_pages : (o->pos0 + o->n) / page;
    if (j->failed) return transfer_push(p->transfer, 0, &idle);
    if (full > j->sent_pages) TRY(transfer_pages(p->transfer, o->slot, j->sent_pages, full));
    j->sent_pages = full;
    if (o->final) {
        struct layout_aux aux = {.request = (uint64_t)o->request,
                                 .generation = o->generation,
                                 .first_token = first_token,
                                 .prompt_tokens = o->pos0 + o->n,
                                 .state_position = o->pos0 + o->n,
                                 .draft_rows = p->r->d ? o->pos0 + o->n : 0,
                                 .first_chunk_s = j->first_chunk_s,
                                 .prefill_done_s = world_now(p->w),
                                 .prefill_work_s = j->before_work_s + work_so_far(p)};
        TRY(transfer_final(p->transfer, o->slot, p->e.stage.last ? &aux : NULL));
    }
    /* issue now, settle while the next chunk computes or when there is nothing else to do */
    double t = world_now(p->w);
    enum status st = transfer_push(p->transfer, 0, &idle);
    double end = world_now(p->w);
    p->st->transfer_s += end - t;
    spans_add(p->r->spans, SPAN_SEND, o->request, t, end);
    return st;
}

static enum status check_job(const struct prefiller *p, const struct order *o)
{
    const struct job *j = &p->job[o->slot];
    if (j->request == o->request && j->generation == o->generation) return ST_OK;
    return ERR(ST_E_PROTOCOL,
               "rank %d: order %lld %s of request %d generation %u, but slot %d holds request %d generation %u",
               p->w->rank, (long long)o->seq, order_name[o->kind], o->request, o->generation, o->slot, j->request,
               j->generation);
}

static enum status chunk(struct prefiller *p, const struct order *o)
{
    struct job *j = &p->job[o->slot];
    struct ops *ops = p->r->o;
    struct stage_header h;
    struct flow *f;
    int32_t first_token = -1;
    TRY(check_job(p, o));
    TRY(stage_flow(p->link, &f, push_idle, p));
    if (p->e.stage.first) {
        if (o->pos0 == 0) j->first_chunk_s = world_now(p->w);
    } else {
        double since = world_now(p->w);
        ops->range_begin(ops, "hand-off in");
        TRY(ops_range_end(ops, stage_receive(p->link, o, f, &h, push_idle, p)));
        spans_add(p->r->spans, SPAN_RECEIVE, o->request, since, world_now(p->w));
        j->first_chunk_s = h.first_chunk_s;
        j->before_work_s = h.work_s;
    }
    if (p->r->inject.fail_stage == p->w->role.stage && p->r->inject.fail_request == o->request && !j->failed) {
        (void)ERR(ST_E_FAULT, "request %d: injected failure of stage %d", o->request, p->w->role.stage);
        TRY(give_up(p, o, j));
    }
    double t = world_now(p->w);
    meanwhile(p, 1);
    p->logits_request = o->request;
    uint64_t fence[2] = {ops->fence(ops), 0};
    ops->range_begin(ops, "prefill chunk");
    const int32_t *ids = p->r->prompts.token + p->r->prompts.offset[o->request] + o->pos0;
    enum status st = prefill_chunk(&p->e.stage, j->state_slot, o->pos0, o->n, ids, o->final, f, &first_token, NULL,
                                   p->r->logits ? send_logits : NULL, p);
    if (st == ST_OK && o->final && p->e.stage.last)
        st = prefill_draw(&p->e.stage, &p->r->sampling, o->request, o->pos0 + o->n, &first_token);
    ops->range_end(ops);
    fence[1] = ops->fence(ops);
    moves_chunk(&p->moves, o->request, o->pos0, fence);
    if (st == ST_E_FAULT) st = give_up(p, o, j); /* a fault of the request: all ranks of the stage see the same */
    TRY(st);
    double end = world_now(p->w);
    p->st->prefill_s += end - t;
    p->st->chunks++;
    spans_add(p->r->spans, SPAN_PREFILL, o->request, t, end);
    ops->range_begin(ops, "hand-off out");
    TRY(ops_range_end(ops, stage_send(p->link, o, f, o->n, j->first_chunk_s, j->before_work_s + work_so_far(p), push_idle, p)));
    meanwhile(p, 0);
    TRY(p->pushed);
    ops->range_begin(ops, "send state");
    return ops_range_end(ops, send_state(p, o, j, first_token));
}

static enum status started(struct prefiller *p, const struct order *o)
{
    struct job *j = &p->job[o->slot];
    int idle;
    TRY(check_job(p, o));
    TRY(transfer_push(p->transfer, 1, &idle));
    if (transfer_sending(p->transfer, o->slot))
        return ERR(ST_E_PROTOCOL, "rank %d: START of request %d in slot %d generation %u, but this rank still sends it",
                   p->w->rank, o->request, o->slot, o->generation);
    TRY(state_release(&p->e.state, j->state_slot));
    j->request = -1;
    return ST_OK;
}

/* No chunk of it follows. Its pages stay until FREE: neighbours and destinations may still be at work on them. */
static enum status aborted(struct prefiller *p, const struct order *o)
{
    int idle;
    if (o->slot < 0) return ST_OK;
    TRY(check_job(p, o));
    p->job[o->slot].aborted = 1;
    TRY(transfer_abort(p->transfer, o->slot));
    return transfer_push(p->transfer, 1, &idle);
}

static enum status freed(struct prefiller *p, const struct order *o)
{
    struct job *j = &p->job[o->slot < 0 ? 0 : o->slot];
    int idle;
    if (o->slot < 0) return ST_OK;
    TRY(check_job(p, o));
    TRY(transfer_push(p->transfer, 1, &idle));
    if (!j->aborted || transfer_sending(p->transfer, o->slot))
        return ERR(ST_E_PROTOCOL, "rank %d: FREE of request %d in slot %d generation %u, but its puts are not over",
                   p->w->rank, o->request, o->slot, o->generation);
    TRY(state_release(&p->e.state, j->state_slot));
    j->request = -1;
    return ST_OK;
}

static enum status apply(struct prefiller *p, const struct order *o)
{
    TRY(order_apply(&p->log, o));
    p->st->orders++;
    engine_memory(&p->log, p->n_todo, p->st);
    if (p->r->inject.kill_rank == p->w->rank && p->log.applied == p->r->inject.kill_event) raise(SIGKILL);
    switch (o->kind) {
    case ORDER_ADMIT: return admit(p, o);
    case ORDER_CHUNK: return chunk(p, o);
    case ORDER_START: return started(p, o);
    case ORDER_ABORT: return aborted(p, o);
    case ORDER_FREE: return freed(p, o);
    case ORDER_STOP: p->stop = 1; return ST_OK;
    default: return ERR(ST_E_INTERNAL, "order kind %d is unknown", o->kind);
    }
}

static void report(void *ctx)
{
    struct prefiller *p = ctx;
    log_error("order %lld applied last", (long long)p->log.applied);
    if (p->transfer) transfer_table(p->transfer);
}

static enum status loop(struct prefiller *p)
{
    struct order o[CONTROL_BATCH];
    struct waiter wait = {0};
    while (!p->stop) {
        int n, idle;
        TRY(control_poll(p->control, o, &n));
        if (n == CONTROL_FAREWELL) {
            report(p);
            return ERR(ST_E_WATCHDOG, "the decode leader saw no progress");
        }
        for (int i = 0; i < n; i++) TRY(apply(p, &o[i]));
        if (n >= 0) {
            wait_reset(&wait);
            continue;
        }
        TRY(transfer_push(p->transfer, 1, &idle));
        double t = MPI_Wtime();
        TRY(wait_pause(&wait));
        p->st->wait_s += MPI_Wtime() - t;
    }
    return stage_drain(p->link);
}

static enum status open_link(struct prefiller *p)
{
    const struct run_config *r = p->r;
    int slots = r->transfer.plan.staging_slots;
    p->job = mem_alloc((size_t)slots, sizeof *p->job, "prefill jobs");
    if (!p->job) return ST_E_NOMEM;
    for (int i = 0; i < slots; i++) p->job[i].request = -1;
    p->n_todo = engine_todo(r);
    TRY(order_log_open(&p->log, p->w->rank, r->prompts.tokens, r->prompts.n, slots, 0));
    TRY(control_open(p->w, &p->control));
    struct nccl *nccl = r->links->pp ? r->links->nccl : NULL;
    TRY(moves_open(r->o, &p->moves));
    return stage_open(p->w->pp, r->o, r->c, p->e.chunk_rows, 2, nccl, r->links->must, &p->link);
}

/* Each step is agreed on before the next, which may be collective; so all ranks close the same after a refusal. */
static enum status open_role(struct prefiller *p)
{
    struct world *w = p->w;
    const struct run_config *r = p->r;
    TRY(world_agree(w, engine_open(w, r, &p->e)));
    TRY(world_agree(w, open_link(p)));
    TRY(world_agree(w, transfer_open(w, r->c, r->d, &r->transfer, &p->e.state, &p->transfer)));
    transfer_record(p->transfer, &p->moves);
    return ST_OK;
}

static void close_role(struct prefiller *p)
{
    transfer_close(p->transfer);
    moves_close(&p->moves);
    stage_close(p->link);
    control_close(p->control);
    mem_free(p->job);
    order_log_close(&p->log);
    engine_close(&p->e);
}

static void fill_stats(struct prefiller *p)
{
    struct rank_stats *st = p->st;
    struct stage_counts sc = stage_counts(p->link);
    engine_stats(&p->e, p->w, st);
    st->window_bytes = transfer_window_bytes(p->transfer);
    st->free_staging_start = p->r->transfer.plan.staging_slots;
    st->free_staging_end = transfer_free_slots(p->transfer);
    for (int c = 0; c < COMP_N; c++) {
        struct transfer_count n = transfer_counts(p->transfer, (enum comp)c);
        st->put_bytes[c] = n.bytes;
        st->puts[c] = n.puts;
        st->words += n.words;
        st->quiets += n.quiets;
        st->flushes += n.flushes;
    }
    st->stage_bytes = sc.bytes;
    st->stage_messages = sc.messages;
    st->wait_s += sc.wait_s;
    st->compute_s = work_so_far(p);
    st->order_hash = p->log.hash;
}

enum status prefill_role(struct world *w, const struct run_config *r, struct rank_stats *st_p)
{
    struct prefiller p = {.w = w, .r = r, .st = st_p};
    memset(st_p, 0, sizeof *st_p);
    wait_limit(GUARD_FACTOR * r->watchdog_s, report, &p); /* ranks that have read their weights wait for slower ones */
    enum status st = open_role(&p);
    if (st != ST_OK) {
        close_role(&p);
        return st;
    }
    guard_end();
    wait_limit(r->watchdog_s, report, &p);
    log_info("stage %d of %d ready: layers %d-%d, %.1f MiB weights, %.1f MiB state, sums over %s, hand-off over %s",
             w->role.stage, w->topo.prefill.pp, split_stage(r->c->n_layers, w->topo.prefill.pp, w->role.stage).begin,
             split_stage(r->c->n_layers, w->topo.prefill.pp, w->role.stage).end - 1,
             (double)target_weight_bytes(p.e.t) / 1048576, (double)p.e.state.layout.bytes / 1048576,
             coll_name(p.e.coll), stage_name(p.link));
    double t = MPI_Wtime();
    uint64_t allocs = buf_allocs();
    st = loop(&p);
    r->o->idle = NULL;
    TRY(st);
    st_p->loop_allocs = buf_allocs() - allocs;
    st_p->total_s = MPI_Wtime() - t;
    fill_stats(&p);
    moves_report(&p.moves);
    guard_start("the end of the run", GUARD_FACTOR * r->watchdog_s);
    wait_limit(0, NULL, NULL);
    close_role(&p);
    return ST_OK;
}
