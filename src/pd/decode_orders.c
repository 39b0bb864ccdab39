/* Orders as a decode rank applies them: grants, starts with the state's arrival, releases. See decode_impl.h. */
#include <math.h>
#include <signal.h>
#include <string.h>

#include "base/log.h"
#include "pd/decode_impl.h"
#include "pd/wait.h"

struct active *decode_find(struct decoder *p, int request)
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
    if (p->leader) p->admit_s[o->request] = p->ordered_s; /* prefill may have begun since */
    *g = (struct grant){.request = o->request, .waiting = WAIT_WORDS, .generation = o->generation};
    decode_inject_admitted(p, o->request);
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
    const struct ops *ops = p->r->o;
    int n = a->q.prompt_tokens, chunk = p->r->transfer.plan.chunk, page = p->r->transfer.plan.page;
    p->logits_request = a->q.request;
    a->f.first_chunk_s = world_now(p->w);
    for (int pos = 0; pos < n;) {
        int end = split_chunk_end(pos, n, chunk, page);
        ops->range_begin(ops, "prefill chunk");
        TRY(ops_range_end(ops, prefill_chunk(&p->e.stage, a->q.slot, pos, end - pos, ids + pos, end == n, &p->flow, first_p,
                                             NULL, p->r->logits ? prompt_logits : NULL, p)));
        p->st->chunks++;
        pos = end;
    }
    TRY(prefill_draw(&p->e.stage, &a->q.how, a->q.request, n, first_p));
    a->f.prefill_done_s = world_now(p->w);
    p->st->prefill_s += a->f.prefill_done_s - a->f.first_chunk_s;
    spans_add(p->r->spans, SPAN_PREFILL, a->q.request, a->f.first_chunk_s, a->f.prefill_done_s);
    return ST_OK;
}

/* what all decode ranks received for the request, on the leader */
static enum status sum_transfer(struct decoder *p, int slot, struct run_finished *f)
{
    struct transfer_request mine, *all = &f->transfer;
    MPI_Request req[4];
    transfer_request_stats(p->transfer, slot, &mine);
    *all = mine;
    TRY(mpi_check(MPI_Ireduce(mine.bytes, all->bytes, COMP_N, MPI_UINT64_T, MPI_SUM, 0, p->w->tp, &req[0]),
                  "MPI_Ireduce"));
    TRY(mpi_check(MPI_Ireduce(mine.puts, all->puts, COMP_N, MPI_UINT64_T, MPI_SUM, 0, p->w->tp, &req[1]),
                  "MPI_Ireduce"));
    TRY(mpi_check(MPI_Ireduce(mine.checksum, all->checksum, COMP_N, MPI_UINT64_T, MPI_BXOR, 0, p->w->tp, &req[2]),
                  "MPI_Ireduce"));
    TRY(mpi_check(MPI_Ireduce(mine.seconds, all->seconds, COMP_N, MPI_DOUBLE, MPI_MAX, 0, p->w->tp, &req[3]),
                  "MPI_Ireduce"));
    return wait_all(req, 4, NULL, NULL);
}

/* The request starts on all decode ranks or fails on all: what one rank finds wrong, all are told. */
static enum status take_state(struct decoder *p, const struct order *o, struct active *a, int32_t *first_p,
                              int *failed_p)
{
    struct layout_aux aux = {.first_token = -1, .first_chunk_s = NAN, .prefill_done_s = NAN}; /* it may stay unread */
    struct grant *g = &p->grant[o->slot];
    if (g->request != o->request || g->generation != o->generation || g->waiting != WAIT_NOTHING)
        return ERR(ST_E_PROTOCOL,
                   "rank %d: START of request %d generation %u, but slot %d holds request %d generation %u%s",
                   p->w->rank, o->request, o->generation, o->slot, g->request, g->generation,
                   g->waiting ? " and waits for words" : "");
    double t = world_now(p->w);
    TRY(sum_transfer(p, o->slot, &a->f));
    p->r->o->range_begin(p->r->o, "take state");
    enum status st = ops_range_end(p->r->o, transfer_unpack(p->transfer, o->slot, &p->e.state, a->q.slot, &aux));
    if (st != ST_OK && st != ST_E_FAULT) return st;
    if (st == ST_E_FAULT)
        TRY(transfer_drop(p->transfer, o->slot));
    else if (aux.first_token < 0 || aux.first_token >= p->r->c->vocab)
        st = ERR(ST_E_FAULT, "request %d: first token %d is outside the vocabulary", o->request, aux.first_token);
    TRY(decode_agree(p, st, failed_p, a->why));
    double end = world_now(p->w);
    p->st->transfer_s += end - t;
    spans_add(p->r->spans, SPAN_START, o->request, t, end);
    g->request = -1;
    a->f.has_transfer = 1;
    a->f.first_chunk_s = aux.first_chunk_s;
    a->f.prefill_done_s = aux.prefill_done_s;
    if (aux.prefill_work_s > p->prefill_work_s) p->prefill_work_s = aux.prefill_work_s;
    a->f.transfer_start_s = a->f.transfer.first_s;
    a->f.transfer_done_s = a->f.transfer.done_s;
    *first_p = aux.first_token;
    return ST_OK;
}

static enum status start(struct decoder *p, const struct order *o)
{
    struct active *a = free_active(p);
    int32_t first = -1;
    int failed = 0;
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
    q->how = p->r->sampling;
    memset(&a->f, 0, sizeof a->f);
    a->f.q = q;
    a->f.admit_s = a->f.first_chunk_s = a->f.prefill_done_s = a->f.transfer_start_s = a->f.transfer_done_s = NAN;
    if (p->leader && !p->w->topo.single) a->f.admit_s = p->admit_s[o->request];
    if (p->w->topo.single) {
        a->f.admit_s = world_now(p->w);
        decode_inject_admitted(p, o->request);
        enum status st = prefill_here(p, a, &first);
        if (st != ST_OK && st != ST_E_FAULT) return st;
        TRY(decode_agree(p, st, &failed, a->why));
    } else {
        TRY(take_state(p, o, a, &first, &failed));
    }
    spec_start(q, failed ? p->r->c->eos : first, p->r->c->eos);
    if (failed) { /* it ends in this turn, and is freed like any other */
        q->stop = STOP_FAILED;
        q->n_out = 0;
        a->f.error = a->why;
    }
    a->f.first_token_s = a->f.prefill_done_s;
    a->f.start_s = world_now(p->w);
    a->running = 1;
    return ST_OK;
}

static enum status release(struct decoder *p, const struct order *o)
{
    if (o->slot >= 0) return decode_drop(p, o);
    struct active *a = decode_find(p, o->request);
    if (!a || a->running)
        return ERR(ST_E_PROTOCOL, "rank %d: FREE of request %d, which %s", p->w->rank, o->request,
                   a ? "still runs" : "holds nothing");
    TRY(state_release(&p->e.state, a->q.slot));
    a->used = 0;
    return ST_OK;
}

enum status decode_apply(struct decoder *p, const struct order *o)
{
    TRY(order_apply(&p->log, o));
    p->st->orders++;
    engine_memory(&p->log, p->n_todo, p->st);
    if (p->r->inject.kill_rank == p->w->rank && p->log.applied == p->r->inject.kill_event) raise(SIGKILL);
    switch (o->kind) {
    case ORDER_ADMIT: return admit(p, o);
    case ORDER_CHUNK: return ST_OK;
    case ORDER_START: return start(p, o);
    case ORDER_ABORT: return decode_abort(p, o);
    case ORDER_FREE: return release(p, o);
    case ORDER_STOP: p->stop = 1; return ST_OK;
    default: return ERR(ST_E_INTERNAL, "order kind %d is unknown", o->kind);
    }
}
