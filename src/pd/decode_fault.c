/* Requests that do not come to their own end. See decode_impl.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/rng.h"
#include "pd/decode_impl.h"
#include "pd/wait.h"

/* ---- failures --------------------------------------------------------------------------------------- */

enum status decode_agree(struct decoder *p, enum status mine, int *failed_p, char why[REASON_BYTES])
{
    MPI_Request r;
    p->vote = mine == ST_OK ? 0 : p->w->role.tp_rank + 1;
    TRY(mpi_check(MPI_Iallreduce(&p->vote, &p->worst, 1, MPI_INT32_T, MPI_MAX, p->w->tp, &r), "MPI_Iallreduce"));
    TRY(wait_all(&r, 1, NULL, NULL));
    *failed_p = p->worst != 0;
    if (!p->worst) return ST_OK;
    snprintf(p->text, sizeof p->text, "decode rank %d: %.200s", p->worst - 1, err_last());
    TRY(mpi_check(MPI_Ibcast(p->text, sizeof p->text, MPI_CHAR, p->worst - 1, p->w->tp, &r), "MPI_Ibcast"));
    TRY(wait_all(&r, 1, NULL, NULL));
    memcpy(why, p->text, REASON_BYTES);
    return ST_OK;
}

enum status decode_lost(struct decoder *p, const struct control_report *r)
{
    struct grant *g = &p->grant[r->slot < 0 || r->slot >= p->r->transfer.plan.staging_slots ? 0 : r->slot];
    if (g->generation == r->generation && !g->why[0]) {
        int prefill = r->source >= 0 && r->source < p->w->topo.n_prefill;
        snprintf(g->why, sizeof g->why,
                 prefill ? "prefill rank %d gave it up; its line `request %d: given up by this rank` in the log says why"
                         : "rank %d received words that do not fit the plan of request %d", r->source, g->request);
    }
    return scheduler_failed(p->sched, r->slot, r->generation, r->tp_rank);
}

enum status decode_fail_slot(struct decoder *p, int slot, int source)
{
    struct control_report r = {.kind = REPORT_FAILED, .slot = slot, .generation = p->grant[slot].generation,
                               .tp_rank = p->w->role.tp_rank, .source = source, .tick = p->turns};
    p->grant[slot].waiting = WAIT_NOTHING;
    return p->leader ? decode_lost(p, &r) : control_report(p->control, &r);
}

/* ---- aborts ----------------------------------------------------------------------------------------- */

/* the row of a request that never started */
static enum status record_unstarted(struct decoder *p, const struct order *o, const char *why)
{
    struct spec_seq q = {.request = o->request, .slot = -1, .prompt_tokens = p->r->prompts.tokens[o->request],
                         .max_new = p->r->max_new, .stop = o->reason == ABORT_ASKED ? STOP_ABORTED : STOP_FAILED};
    struct run_finished f = {.q = &q, .error = why};
    f.admit_s = o->final ? NAN : p->admit_s[o->request];
    f.first_chunk_s = f.prefill_done_s = f.transfer_start_s = f.transfer_done_s = f.start_s = f.first_token_s = NAN;
    f.end_s = world_now(p->w);
    return p->sink->finished(p->sink->ctx, &f);
}

static enum status abort_active(struct decoder *p, const struct order *o, const char *why)
{
    struct active *a = decode_find(p, o->request);
    if (!a || !a->running)
        return ERR(ST_E_PROTOCOL, "rank %d: ABORT of request %d, which does not decode", p->w->rank, o->request);
    a->running = 0;
    a->q.stop = o->reason == ABORT_ASKED ? STOP_ABORTED : STOP_FAILED;
    p->tokens += a->q.n_out;
    a->f.error = why;
    a->f.end_s = world_now(p->w);
    return p->leader ? p->sink->finished(p->sink->ctx, &a->f) : ST_OK;
}

enum status decode_abort(struct decoder *p, const struct order *o)
{
    struct grant *g = o->slot >= 0 ? &p->grant[o->slot] : NULL;
    char why[REASON_BYTES];
    snprintf(why, sizeof why, "aborted: %s", abort_reason_name[o->reason]);
    if (o->reason == ABORT_REFUSED)
        snprintf(why, sizeof why, "refused: the prompt has %d tokens, the pools hold prompts of up to %d (--max-prompt, and positions less --max-new)",
                 p->r->prompts.tokens[o->request], p->r->transfer.plan.max_prompt);
    else if (o->reason == ABORT_FAILED && g && g->why[0])
        memcpy(why, g->why, sizeof why);
    p->finished++;
    if (p->leader) log_warn("request %d: %s", o->request, why);
    if (!g && !o->final) return abort_active(p, o, why);
    if (g) {
        if (g->request != o->request || g->generation != o->generation)
            return ERR(ST_E_PROTOCOL,
                       "rank %d: ABORT of request %d generation %u, but slot %d holds request %d generation %u",
                       p->w->rank, o->request, o->generation, o->slot, g->request, g->generation);
        g->waiting = WAIT_QUIET;
        TRY(transfer_stop(p->transfer, o->slot));
    }
    return p->leader ? record_unstarted(p, o, why) : ST_OK;
}

enum status decode_drop(struct decoder *p, const struct order *o)
{
    struct grant *g = &p->grant[o->slot];
    if (g->request != o->request || g->generation != o->generation || g->waiting != WAIT_NOTHING)
        return ERR(ST_E_PROTOCOL,
                   "rank %d: FREE of request %d generation %u, but slot %d holds request %d generation %u%s",
                   p->w->rank, o->request, o->generation, o->slot, g->request, g->generation,
                   g->waiting ? " and is not quiet" : "");
    g->request = -1;
    return transfer_drop(p->transfer, o->slot);
}

/* ---- injected faults ---------------------------------------------------------------------------------- */

static int chosen(const struct run_inject *in, int request)
{
    return in->abort_percent > 0 &&
           (int)(rng_u64((uint64_t)in->abort_seed, (uint64_t)request, 0) % 100) < in->abort_percent;
}

/* When a chosen request is to go: at that tick; below 0: at so many tokens. */
static int64_t random_moment(const struct decoder *p, int request)
{
    uint64_t seed = (uint64_t)p->r->inject.abort_seed, r = (uint64_t)request;
    if (rng_u64(seed, r, 3) % 4 == 1) return -1 - (int64_t)(rng_u64(seed, r, 2) % 16);
    return p->turns + 1 + (int64_t)(rng_u64(seed, r, 2) % (1u << rng_u64(seed, r, 1) % 7));
}

enum status decode_inject_open(struct decoder *p)
{
    const struct run_inject *in = &p->r->inject;
    if (!p->leader) return ST_OK;
    p->abort_at = mem_alloc((size_t)p->r->prompts.n + 1, sizeof *p->abort_at, "injected aborts");
    if (!p->abort_at) return ST_E_NOMEM;
    for (int i = 0; i < p->r->prompts.n; i++) { /* some never leave the queue */
        if (chosen(in, i) && rng_u64((uint64_t)in->abort_seed, (uint64_t)i, 3) % 4 == 0) p->abort_at[i] = 1;
    }
    return ST_OK;
}

void decode_inject_admitted(struct decoder *p, int request)
{
    const struct run_inject *in = &p->r->inject;
    if (!p->leader) return;
    if (request == in->abort_request && in->abort_tokens == 0) p->abort_at[request] = p->turns + in->abort_ticks;
    if (chosen(in, request)) p->abort_at[request] = random_moment(p, request);
}

enum status decode_inject_turn(struct decoder *p)
{
    const struct run_inject *in = &p->r->inject;
    int aborts = in->abort_percent > 0 || in->abort_request >= 0;
    for (int i = 0; p->leader && aborts && i < p->r->prompts.n; i++) {
        if (p->abort_at[i] == 0 || (p->r->skip && p->r->skip[i])) continue;
        const struct active *a = p->abort_at[i] < 0 ? decode_find(p, i) : NULL;
        if (p->abort_at[i] < 0 ? !a || !a->running || a->q.n_out < -p->abort_at[i] : p->abort_at[i] > p->turns)
            continue;
        p->abort_at[i] = 0;
        TRY(scheduler_abort(p->sched, i, ABORT_ASKED));
    }
    struct active *asked = p->leader && in->abort_tokens > 0 ? decode_find(p, in->abort_request) : NULL;
    if (asked && asked->running && asked->q.n_out >= in->abort_tokens)
        TRY(scheduler_abort(p->sched, in->abort_request, ABORT_ASKED));
    struct active *fails = in->fail_stage == RUN_FAIL_DECODE ? decode_find(p, in->fail_request) : NULL;
    if (!fails || !fails->running || fails->q.n_out < 2) return ST_OK;
    snprintf(fails->why, sizeof fails->why, "injected failure of the decode group");
    fails->f.error = fails->why;
    fails->q.stop = STOP_FAILED; /* as after a fault in its round: it leaves the batch on all ranks */
    return ST_OK;
}
