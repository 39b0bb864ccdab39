/* decode_role - the loop of a decode rank. Each turn (tick) the leader runs the scheduler and its orders reach the
 * decode ranks by broadcast and the prefill ranks by message; then one round of speculation runs for all requests that
 * have started. In single mode START also prefills the prompt here. */
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/log.h"
#include "pd/decode_impl.h"
#include "pd/guard.h"
#include "pd/wait.h"

/* ---- one turn -------------------------------------------------------------------------------------- */

static enum status take_report(struct decoder *p, const struct control_report *r)
{
    switch (r->kind) {
    case REPORT_READY: return scheduler_ready(p->sched, r->slot, r->generation, r->tp_rank, r->tick);
    case REPORT_FAILED: return decode_lost(p, r);
    case REPORT_QUIET: return scheduler_quiet(p->sched, r->slot, r->generation, r->tp_rank);
    default: return ERR(ST_E_PROTOCOL, "report kind %d from decode rank %d is unknown", r->kind, r->tp_rank);
    }
}

static enum status collect_reports(struct decoder *p)
{
    struct control_report r;
    for (int got = 1; got;) {
        TRY(control_next_report(p->control, &r, &got));
        if (got) TRY(take_report(p, &r));
    }
    return ST_OK;
}

static enum status tell(struct decoder *p, int slot, enum report_kind kind)
{
    struct control_report r = {.kind = (int32_t)kind, .slot = slot, .generation = p->grant[slot].generation,
                               .tp_rank = p->w->role.tp_rank, .source = -1, .tick = p->turns};
    p->grant[slot].waiting = WAIT_NOTHING;
    return p->leader ? take_report(p, &r) : control_report(p->control, &r);
}

/* What became of the slots this rank waits for. A source that failed, or words that do not fit the plan, are the end of
 * one request; the slot then waits for the scheduler's ABORT. */
static enum status look_at_slots(struct decoder *p)
{
    TRY(transfer_progress(p->transfer));
    for (int i = 0; i < p->r->transfer.plan.staging_slots; i++) {
        struct grant *g = &p->grant[i];
        int over = 0;
        if (g->request < 0 || g->waiting == WAIT_NOTHING) continue;
        if (g->waiting == WAIT_QUIET) {
            TRY(transfer_quiet(p->transfer, i, &over));
            if (over) TRY(tell(p, i, REPORT_QUIET));
            continue;
        }
        enum status st = transfer_ready(p->transfer, i, &over);
        if (st == ST_OK && over > 0) TRY(tell(p, i, REPORT_READY));
        if (st == ST_E_FAULT || (st == ST_OK && over < 0))
            TRY(decode_fail_slot(p, i, st == ST_OK ? transfer_blame(p->transfer, i) : p->w->rank));
        else
            TRY(st);
    }
    return ST_OK;
}

static void report(void *ctx)
{
    struct decoder *p = ctx;
    log_status("");
    if (p->sched) scheduler_table(p->sched);
    if (p->transfer) transfer_table(p->transfer);
}

/* What the leader misses may be known to others only: they print their tables too. Whoever is dead cannot; the wait for
 * the others is short. */
static void farewell(struct decoder *p)
{
    static const double patience = 2; /* seconds */
    const struct timespec time_to_print = {0, 300000000};
    int32_t n = CONTROL_FAREWELL;
    wait_limit(patience, NULL, NULL);
    if (p->w->topo.single || control_farewell(p->control) != ST_OK) return;
    if (p->e.comm.bcast(p->e.comm.ctx, &n, sizeof n) == ST_OK) nanosleep(&time_to_print, NULL);
}

/* the leader decides; everybody learns the same orders in the same turn */
static enum status share_orders(struct decoder *p, struct order o[CONTROL_BATCH], int *n_p)
{
    int32_t n = 0;
    if (p->leader) {
        if (p->r->interrupted && *p->r->interrupted) scheduler_drain(p->sched);
        p->ordered_s = world_now(p->w);
        TRY(scheduler_tick(p->sched, o, CONTROL_BATCH, n_p));
        n = *n_p;
        if (n && !p->w->topo.single) TRY(control_post(p->control, o, n));
        if (!p->w->topo.single) TRY(control_alive(p->control, p->r->watchdog_s / 8));
    }
    TRY(p->e.comm.bcast(p->e.comm.ctx, &n, sizeof n));
    if (n == CONTROL_FAREWELL) {
        report(p);
        return ERR(ST_E_WATCHDOG, "the decode leader saw no progress");
    }
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
        if (a->q.stop == STOP_FAILED && !a->f.error)
            a->f.error = "logits or drafts are not numbers: the state is damaged";
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
    for (int i = 0; i < n; i++) p->st->batch_hash = hash64(&p->batch[i]->request, sizeof(int), p->st->batch_hash);
    p->st->batch_hash = hash64(&n, sizeof n, p->st->batch_hash);
    double t = world_now(p->w);
    enum status st = spec_round(p->spec, p->batch, n, &p->st->draft_s, &p->st->verify_s, &p->st->commit_s);
    spans_add(p->r->spans, SPAN_DECODE, n == 1 ? p->batch[0]->request : -1, t, world_now(p->w));
    return st;
}

/* seconds of computing, without waiting for others in collectives */
static double work_so_far(const struct decoder *p)
{
    const struct rank_stats *st = p->st;
    return st->prefill_s + st->draft_s + st->verify_s + st->commit_s - (coll_seconds(p->e.coll) - p->order_wait_s);
}

static void tell_progress(const struct decoder *p, int running)
{
    struct run_progress now = {.decoding = running, .tokens = p->tokens, .now_s = world_now(p->w)};
    if (!p->leader || !p->sink->progress) return;
    for (int i = 0; i < p->n_active; i++)
        if (p->active[i].running) now.tokens += p->active[i].q.n_out;
    now.prefill_work_s = p->w->topo.single ? p->st->prefill_s : p->prefill_work_s / p->w->topo.prefill.pp;
    now.decode_work_s = work_so_far(p) - p->st->prefill_s; /* its own prefill is that of single mode */
    p->sink->progress(p->sink->ctx, &now);
}

/* A slow transfer that still moves is no hang: words progress piece by piece long before the last. */
static int words_moved(struct decoder *p)
{
    uint64_t now = p->transfer ? transfer_seen(p->transfer) : 0;
    int moved = now != p->seen;
    p->seen = now;
    return moved;
}

/* while the backend waits for the device: messages are taken, windows served */
static void progress_meanwhile(void *ctx)
{
    struct decoder *p = ctx;
    if (p->progressed == ST_OK) p->progressed = transfer_progress(p->transfer);
}

static enum status turn(struct decoder *p, struct waiter *wait)
{
    struct order o[CONTROL_BATCH];
    int n = 0, running = 0;
    p->turns++;
    if (!p->w->topo.single) {
        if (p->leader) TRY(collect_reports(p));
        TRY(look_at_slots(p));
    }
    TRY(decode_inject_turn(p));
    double waited = coll_seconds(p->e.coll);
    TRY(share_orders(p, o, &n));
    p->order_wait_s += coll_seconds(p->e.coll) - waited;
    for (int i = 0; i < n; i++) TRY(decode_apply(p, &o[i]));
    TRY(finish_ended(p)); /* a first token may already end a request */
    TRY(round_of_all(p, &running));
    TRY(finish_ended(p));
    TRY(p->progressed);
    tell_progress(p, running);
    int moved = p->leader && words_moved(p);
    if (n || running || moved) {
        wait_reset(wait);
        return ST_OK;
    }
    if (!p->leader || p->stop) return ST_OK;
    double t = MPI_Wtime();
    enum status st = wait_pause(wait);
    p->st->wait_s += MPI_Wtime() - t;
    if (st == ST_E_WATCHDOG) farewell(p);
    return st;
}

/* ---- set-up ---------------------------------------------------------------------------------------- */

static enum status open_lists(struct decoder *p)
{
    const struct run_config *r = p->r;
    size_t n = (size_t)p->n_active, slots = (size_t)r->transfer.plan.staging_slots;
    p->active = mem_alloc(n, sizeof *p->active, "decode slots");
    p->batch = mem_alloc(n, sizeof *p->batch, "decode batch");
    p->grant = mem_alloc(slots, sizeof *p->grant, "granted slots");
    p->admit_s = mem_alloc((size_t)r->prompts.n + 1, sizeof *p->admit_s, "admit times");
    if (!p->active || !p->batch || !p->grant || !p->admit_s) return ST_E_NOMEM;
    p->n_todo = engine_todo(r);
    TRY(order_log_open(&p->log, p->w->rank, r->prompts.tokens, r->prompts.n, (int)slots, p->w->topo.single));
    TRY(decode_inject_open(p));
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
                                  .max_prompt = plan->max_prompt,
                                  .hold = p->r->inject.hold_request,
                                  .single = p->w->topo.single};
    return scheduler_open(&o, &p->sched);
}

static enum status open_loop(struct decoder *p)
{
    const struct run_config *r = p->r;
    struct spec_options so = {.block = r->block,
                              .confidence = r->confidence,
                              .adaptive = r->adaptive,
                              .min_context = r->min_context,
                              .max_seqs = p->n_active,
                              .graphs = r->graphs,
                              .eos = r->c->eos,
                              .samples = sampling_on(&r->sampling),
                              .source = SPEC_DRAFT,
                              .logits = r->logits,
                              .logits_ctx = r->logits_ctx};
    TRY(spec_open(r->o, r->c, p->e.t, p->e.d, &p->e.state, &p->e.comm, &so, &p->spec));
    TRY(open_lists(p));
    TRY(control_open(p->w, &p->control));
    if (p->leader) TRY(open_scheduler(p));
    return p->w->topo.single ? flow_open(r->o, r->c, p->e.chunk_rows, &p->flow) : ST_OK;
}

/* Each step is agreed on before the next, which may be collective; so all ranks close the same after a refusal. */
static enum status open_role(struct decoder *p)
{
    struct world *w = p->w;
    TRY(world_agree(w, engine_open(w, p->r, &p->e)));
    TRY(world_agree(w, open_loop(p)));
    if (w->topo.single) return ST_OK;
    return world_agree(w, transfer_open(w, p->r->c, p->r->d, &p->r->transfer, &p->e.state, &p->transfer));
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
    mem_free(p->abort_at);
    order_log_close(&p->log);
    spec_close(p->spec);
    engine_close(&p->e);
}

/* what --adaptive learnt, for the person who reads the log; the widths of all steps are in /accept/proposed */
static void tell_width(const struct width *a, int n)
{
    if (!a) return;
    int common = 1;
    for (int w = 1; w <= a->block; w++)
        if (a->picked[w] > a->picked[common]) common = w;
    log_info("adaptive: %lld steps, %.2f rows a sequence on average, mostly %d; first draft accepted in %.0f %% of cases, the one at %d in %.0f %%; "
             "%d sequences take %.2f ms with 1 row, %.2f ms with %d",
             (long long)a->steps, width_mean(a), common, 100 * width_rate(a, 0), a->block - 1, 100 * width_rate(a, a->block - 2), n,
             1e3 * width_cost(a, n, 1), 1e3 * width_cost(a, n, a->block), a->block);
}

static void fill_stats(struct decoder *p)
{
    struct rank_stats *st = p->st;
    engine_stats(&p->e, p->w, st);
    st->compute_s = work_so_far(p);
    st->order_hash = p->log.hash;
    if (p->transfer) {
        st->window_bytes = transfer_window_bytes(p->transfer);
        st->free_staging_start = p->r->transfer.plan.staging_slots;
        st->free_staging_end = transfer_free_slots(p->transfer);
    }
    for (int c = 0; c < COMP_N && p->transfer; c++) st->shared_bytes[c] = transfer_shared(p->transfer, (enum comp)c);
    if (p->sched) {
        struct scheduler_stats s = scheduler_stats(p->sched);
        st->ticks = s.ticks;
        st->starts = s.starts;
        st->start_delay_max = s.start_delay_max;
        st->start_delay_sum = s.start_delay_sum;
        st->aborts = s.aborts;
        st->stale = s.stale;
    }
}

enum status decode_role(struct world *w, const struct run_config *r, const struct run_sink *sink,
                        struct rank_stats *st_p)
{
    struct decoder p = {.w = w, .r = r, .sink = sink, .st = st_p};
    struct waiter wait = {0};
    memset(st_p, 0, sizeof *st_p);
    p.leader = w->role.tp_rank == 0;
    p.n_active =
        r->transfer.plan.concurrency < r->prompts.n ? r->transfer.plan.concurrency : (r->prompts.n ? r->prompts.n : 1);
    wait_limit(GUARD_FACTOR * r->watchdog_s, report, &p); /* ranks that have read their weights wait for slower ones */
    enum status st = open_role(&p);
    if (st != ST_OK) {
        close_role(&p);
        return st;
    }
    guard_end();
    wait_limit(r->watchdog_s, report, &p);
    log_info("decode tp=%d ep=%d ready: %.1f MiB weights, %.1f MiB state a rank, sums over %s", w->topo.decode.tp,
             w->topo.decode.ep, (double)target_weight_bytes(p.e.t) / 1048576, (double)p.e.state.layout.bytes / 1048576,
             coll_name(p.e.coll));
    double t = MPI_Wtime();
    uint64_t allocs = buf_allocs();
    r->o->idle_ctx = &p;
    r->o->idle = p.transfer ? progress_meanwhile : NULL;
    while (!p.stop && st == ST_OK) st = turn(&p, &wait);
    r->o->idle = NULL;
    TRY(st);
    TRY(control_drain(p.control));
    st_p->loop_allocs = buf_allocs() - allocs;
    st_p->total_s = MPI_Wtime() - t;
    fill_stats(&p);
    tell_width(spec_width(p.spec), p.n_active);
    engine_graphs(r->o);
    guard_start("the end of the run", GUARD_FACTOR * r->watchdog_s);
    wait_limit(0, NULL, NULL);
    close_role(&p);
    return ST_OK;
}
