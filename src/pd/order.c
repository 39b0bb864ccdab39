#include "pd/order.h"

#include <string.h>

#include "base/buf.h"
#include "base/hash.h"

const char *const order_name[ORDER_N] = {"ADMIT", "CHUNK", "START", "ABORT", "FREE", "STOP"};
const char *const abort_reason_name[ABORT_REASON_N] = {"none", "asked for", "failed", "refused"};

enum phase { NEW, ADMITTED, STARTED, GIVEN_UP, LEFT, ENDED }; /* GIVEN_UP: in its slot; LEFT: out of the batch */
static const char *const phase_name[] = {"new", "admitted", "started", "aborted in its slot", "aborted", "ended"};

enum status order_log_open(struct order_log *l, int rank, const int32_t *tokens, int n_requests, int n_slots,
                           int single)
{
    size_t n = (size_t)(n_requests > 0 ? n_requests : 1), slots = (size_t)(n_slots > 0 ? n_slots : 1);
    *l = (struct order_log){
        .rank = rank, .tokens = tokens, .n_requests = n_requests, .n_slots = n_slots, .single = single};
    l->phase = mem_alloc(n, 1, "order log");
    l->covered = mem_alloc(n, sizeof *l->covered, "order log");
    l->slot_request = mem_alloc(slots, sizeof *l->slot_request, "order log");
    l->slot_generation = mem_alloc(slots, sizeof *l->slot_generation, "order log");
    if (!l->phase || !l->covered || !l->slot_request || !l->slot_generation) {
        order_log_close(l);
        return ST_E_NOMEM;
    }
    for (size_t i = 0; i < slots; i++) l->slot_request[i] = -1;
    return ST_OK;
}

void order_log_close(struct order_log *l)
{
    if (!l) return;
    mem_free(l->phase);
    mem_free(l->covered);
    mem_free(l->slot_request);
    mem_free(l->slot_generation);
    memset(l, 0, sizeof *l);
}

static const char *kind_name(const struct order *o)
{
    return o->kind >= 0 && o->kind < ORDER_N ? order_name[o->kind] : "?";
}

static enum status misfit(const struct order_log *l, const struct order *o, const char *why)
{
    int known = o->request >= 0 && o->request < l->n_requests, slot = o->slot >= 0 && o->slot < l->n_slots;
    return ERR(
        ST_E_PROTOCOL,
        "rank %d: order %lld %s of request %d (slot %d generation %u, positions %d+%d): %s; the request is %s with %d "
        "tokens covered, the slot holds request %d generation %u",
        l->rank, (long long)o->seq, kind_name(o), o->request, o->slot, o->generation, o->pos0, o->n, why,
        known ? phase_name[l->phase[o->request]] : "unknown", known ? l->covered[o->request] : 0,
        slot ? l->slot_request[o->slot] : -1, slot ? l->slot_generation[o->slot] : 0);
}

static int holds(const struct order_log *l, const struct order *o)
{
    return o->slot >= 0 && l->slot_request[o->slot] == o->request && l->slot_generation[o->slot] == o->generation;
}

/* why the order cannot come now; NULL: it can */
static const char *objection(const struct order_log *l, const struct order *o)
{
    int phase = l->phase[o->request];
    switch (o->kind) {
    case ORDER_ADMIT:
        if (phase != NEW) return "a request is admitted once";
        if (o->slot < 0 || l->slot_request[o->slot] >= 0) return "the slot is in use";
        return o->generation <= l->slot_generation[o->slot] ? "the generation did not grow" : NULL;
    case ORDER_CHUNK:
        if (phase != ADMITTED || !holds(l, o)) return "only an admitted request has chunks";
        if (o->n < 1 || o->pos0 != l->covered[o->request] || o->n > l->tokens[o->request] - o->pos0)
            return "chunks cover the prompt once and in order";
        return (o->pos0 + o->n == l->tokens[o->request]) != (o->final != 0) ? "only the last chunk is final" : NULL;
    case ORDER_START:
        if (l->single) return phase != NEW ? "a request starts once" : NULL;
        if (phase != ADMITTED || !holds(l, o)) return "only an admitted request starts";
        return l->covered[o->request] != l->tokens[o->request] ? "the prompt is not covered" : NULL;
    case ORDER_ABORT:
        if (o->reason <= ABORT_NONE || o->reason >= ABORT_REASON_N) return "an abort has a reason";
        if (o->final) return phase != NEW ? "it holds something" : NULL;
        if (o->slot >= 0) return phase != ADMITTED || !holds(l, o) ? "the slot is not the request's" : NULL;
        return phase != STARTED ? "it does not decode" : NULL;
    case ORDER_FREE:
        if (o->slot >= 0) return phase != GIVEN_UP || !holds(l, o) ? "the slot was not aborted" : NULL;
        return phase != STARTED && phase != LEFT ? "it holds nothing" : NULL;
    default: return "the kind is unknown";
    }
}

static void change(struct order_log *l, const struct order *o)
{
    uint8_t *phase = &l->phase[o->request];
    switch (o->kind) {
    case ORDER_ADMIT:
        *phase = ADMITTED;
        l->slot_request[o->slot] = o->request;
        l->slot_generation[o->slot] = o->generation;
        break;
    case ORDER_CHUNK: l->covered[o->request] += o->n; break;
    case ORDER_START:
        *phase = STARTED;
        if (o->slot >= 0) l->slot_request[o->slot] = -1;
        break;
    case ORDER_ABORT:
        *phase = o->final ? ENDED : o->slot >= 0 ? GIVEN_UP : LEFT;
        l->ended += o->final != 0;
        break;
    case ORDER_FREE:
        *phase = ENDED;
        l->ended++;
        if (o->slot >= 0) l->slot_request[o->slot] = -1;
        break;
    default: break;
    }
}

enum status order_apply(struct order_log *l, const struct order *o)
{
    if (o->seq != l->applied + 1)
        return ERR(ST_E_PROTOCOL,
                   "rank %d: order %lld (%s) arrived after order %lld: each is applied once and in sequence", l->rank,
                   (long long)o->seq, kind_name(o), (long long)l->applied);
    if (l->stopped) return misfit(l, o, "nothing follows STOP");
    if (o->kind != ORDER_STOP) {
        if (o->request < 0 || o->request >= l->n_requests) return misfit(l, o, "there is no such request");
        if (o->slot < -1 || o->slot >= l->n_slots) return misfit(l, o, "there is no such slot");
        const char *why = objection(l, o);
        if (why) return misfit(l, o, why);
        change(l, o);
    } else {
        l->stopped = 1;
    }
    l->applied = o->seq;
    l->hash = hash64(o, sizeof *o, l->hash);
    return ST_OK;
}
