/* prefill_role - the loop of a prefill rank: orders in, chunks through this stage's layers, state out. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "pd/control.h"
#include "pd/engine.h"
#include "pd/stage.h"
#include "pd/wait.h"

struct job { /* what one staging slot's request is doing on this rank */
    int request, state_slot;
    uint32_t generation;
    int n_pages, sent_pages;
    double first_chunk_s;
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
    int stop;
};

static enum status push_idle(void *ctx)
{
    struct prefiller *p = ctx;
    int idle;
    return transfer_push(p->transfer, 1, &idle);
}

static enum status admit(struct prefiller *p, const struct order *o)
{
    struct job *j = &p->job[o->slot];
    int tokens = p->r->prompts.tokens[o->request], slot;
    TRY(state_admit(&p->e.state, tokens, &slot));
    if (slot < 0)
        return ERR(ST_E_INTERNAL, "request %d: admitted to staging slot %d but this stage has no free state slot or pages (%d slots, %d pages free)",
                   o->request, o->slot, p->e.state.n_free_slots, p->e.state.n_free_pages);
    *j = (struct job){o->request, slot, o->generation, split_pages(tokens, p->r->transfer.plan.page), 0, 0};
    return transfer_begin(p->transfer, o->slot, o->generation, o->request, slot, j->n_pages);
}

static void send_logits(void *ctx, int pos, const float *row, int vocab)
{
    struct prefiller *p = ctx;
    p->r->logits(p->r->logits_ctx, p->logits_request, pos, row, vocab);
}

static enum status send_state(struct prefiller *p, const struct order *o, struct job *j, int32_t first_token)
{
    int page = p->r->transfer.plan.page, idle;
    int full = o->final ? j->n_pages : (o->pos0 + o->n) / page;
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
                                 .prefill_done_s = world_now(p->w)};
        TRY(transfer_final(p->transfer, o->slot, p->e.stage.last ? &aux : NULL));
    }
    /* issue now, settle while the next chunk computes or when there is nothing else to do */
    double t = MPI_Wtime();
    enum status st = transfer_push(p->transfer, 0, &idle);
    p->st->transfer_s += MPI_Wtime() - t;
    return st;
}

static enum status chunk(struct prefiller *p, const struct order *o)
{
    struct job *j = &p->job[o->slot];
    struct stage_header h;
    struct flow *f;
    int32_t first_token = -1;
    if (j->request != o->request || j->generation != o->generation)
        return ERR(ST_E_INTERNAL, "chunk of request %d generation %u, but slot %d holds request %d generation %u", o->request,
                   o->generation, o->slot, j->request, j->generation);
    TRY(stage_flow(p->link, &f, push_idle, p));
    if (p->e.stage.first) {
        if (o->pos0 == 0) j->first_chunk_s = world_now(p->w);
    } else {
        TRY(stage_receive(p->link, o, f, &h, push_idle, p));
        j->first_chunk_s = h.first_chunk_s;
    }
    double t = MPI_Wtime();
    p->logits_request = o->request;
    const int32_t *ids = p->r->prompts.token + p->r->prompts.offset[o->request] + o->pos0;
    TRY(prefill_chunk(&p->e.stage, j->state_slot, o->pos0, o->n, ids, o->final, f, &first_token, NULL,
                      p->r->logits ? send_logits : NULL, p));
    p->st->prefill_s += MPI_Wtime() - t;
    p->st->chunks++;
    TRY(stage_send(p->link, o, f, o->n, j->first_chunk_s));
    return send_state(p, o, j, first_token);
}

static enum status started(struct prefiller *p, const struct order *o)
{
    struct job *j = &p->job[o->slot];
    int idle;
    if (j->request != o->request) return ERR(ST_E_INTERNAL, "START of request %d, but slot %d holds %d", o->request, o->slot, j->request);
    TRY(transfer_push(p->transfer, 1, &idle));
    TRY(state_release(&p->e.state, j->state_slot));
    j->request = -1;
    return ST_OK;
}

static enum status apply(struct prefiller *p, const struct order *o)
{
    TRY(order_next(&p->log, o));
    p->st->orders++;
    if (p->r->kill_rank == p->w->rank && p->log.applied == p->r->kill_event) raise(SIGKILL);
    switch (o->kind) {
    case ORDER_ADMIT: return admit(p, o);
    case ORDER_CHUNK: return chunk(p, o);
    case ORDER_START: return started(p, o);
    case ORDER_FREE: return ST_OK;
    case ORDER_STOP: p->stop = 1; return ST_OK;
    default: return ERR(ST_E_INTERNAL, "order kind %d is unknown", o->kind);
    }
}

static enum status loop(struct prefiller *p)
{
    struct order o[CONTROL_BATCH];
    struct waiter wait = {0};
    while (!p->stop) {
        int n, idle;
        TRY(control_poll(p->control, o, &n));
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

static void report(void *ctx)
{
    struct prefiller *p = ctx;
    if (p->transfer) transfer_table(p->transfer);
}

static enum status open_role(struct prefiller *p)
{
    struct world *w = p->w;
    const struct run_config *r = p->r;
    int slots = r->transfer.plan.staging_slots;
    enum status st = engine_open(w, r, &p->e);
    TRY(world_agree(w, st));
    p->job = mem_alloc((size_t)slots, sizeof *p->job, "prefill jobs");
    if (!p->job) return ST_E_NOMEM;
    for (int i = 0; i < slots; i++) p->job[i].request = -1;
    TRY(control_open(w, &p->control));
    TRY(stage_open(w->pp, r->o, r->c, p->e.chunk_rows, 2, &p->link));
    return transfer_open(w, r->c, r->d, &r->transfer, &p->e.state, &p->transfer);
}

static void fill_stats(struct prefiller *p)
{
    struct rank_stats *st = p->st;
    struct stage_counts sc = stage_counts(p->link);
    engine_stats(&p->e, p->w, st);
    st->window_bytes = transfer_window_bytes(p->transfer);
    for (int c = 0; c < COMP_N; c++) {
        struct transfer_count n = transfer_counts(p->transfer, (enum comp)c);
        st->put_bytes[c] = n.bytes;
        st->puts[c] = n.puts;
        st->words += n.words;
        st->flushes += n.flushes;
    }
    st->stage_bytes = sc.bytes;
    st->stage_messages = sc.messages;
    st->wait_s += sc.wait_s;
    st->compute_s = st->prefill_s - coll_seconds(p->e.coll);
    st->order_hash = p->log.hash;
}

enum status prefill_role(struct world *w, const struct run_config *r, struct rank_stats *st_p)
{
    struct prefiller p = {.w = w, .r = r, .st = st_p};
    memset(st_p, 0, sizeof *st_p);
    wait_limit(r->watchdog_s, report, &p);
    TRY(world_agree(w, open_role(&p)));
    log_info("stage %d of %d ready: layers %d-%d, %.1f MiB weights, %.1f MiB state", w->role.stage, w->topo.prefill.pp,
             split_stage(r->c->n_layers, w->topo.prefill.pp, w->role.stage).begin,
             split_stage(r->c->n_layers, w->topo.prefill.pp, w->role.stage).end - 1,
             (double)target_weight_bytes(p.e.t) / 1048576, (double)p.e.state.layout.bytes / 1048576);
    double t = MPI_Wtime();
    uint64_t allocs = buf_allocs();
    TRY(loop(&p));
    st_p->loop_allocs = buf_allocs() - allocs;
    st_p->total_s = MPI_Wtime() - t;
    fill_stats(&p);
    wait_limit(0, NULL, NULL);
    transfer_close(p.transfer);
    stage_close(p.link);
    control_close(p.control);
    mem_free(p.job);
    engine_close(&p.e);
    return ST_OK;
}
