#include "pd/stage.h"

#include <stdint.h>
#include <string.h>

#include "base/log.h"
#include "pd/wait.h"
#include "pd/world.h"
#include "plan/split.h"

enum { TAG_HEADER = 1, TAG_PREFIX = 2, TAG_BANK = 3, TAG_ACC = 4, MAX_BANK = 64 };

struct lane { /* one flow and the messages that still read it */
    struct flow flow;
    int pinned;          /* mirror is page-locked */
    float *mirror;       /* device flows: what MPI reads and writes, host, laid out as flow.mem; else NULL */
    struct stage_header head;
    MPI_Request req[3 + MAX_BANK];
    int n_req;
    void *computed, *came, *sent; /* events of backends with queues, else NULL: this stage is done with the flow; it
                                   * came from the stage before; the stage after has it */
};

struct hop { /* to a neighbour over NCCL */
    struct nccl_comm *comm; /* NULL: MPI */
    int peer;               /* its rank there */
    void *queue;            /* of its own where the backend has queues */
};

struct stage_link {
    MPI_Comm pp;
    int stage, n_stages;
    struct ops *o;
    int hidden, max_bank, depth, next;
    struct lane *lane;
    struct hop before, after;
    struct stage_counts count;
};

/* ---- queues ------------------------------------------------------------------------------------------------
 * Each hop has a queue beside the main one, so that a chunk is on its way while the next one is computed; events say
 * what waits for what, and the host waits for nothing. Hand-offs of a hop are begun in the order of the log at both of
 * its ends, and one waits for earlier chunks and earlier stages only, so no circle can close. */

static void mark(const struct stage_link *l, const struct hop *h, void *event)
{
    const struct ops_queues *q = l->o->queues;
    if (q && event) q->mark(l->o, h ? h->queue : q->main(l->o), event);
}

static void wait_for(const struct stage_link *l, const struct hop *h, void *event)
{
    const struct ops_queues *q = l->o->queues;
    if (q && event) q->after(l->o, h ? h->queue : q->main(l->o), event);
}

static enum status events_open(const struct stage_link *l, struct lane *a)
{
    const struct ops_queues *q = l->o->queues;
    if (!q || (!l->before.comm && !l->after.comm)) return ST_OK;
    TRY(q->event_new(l->o, &a->computed));
    TRY(q->event_new(l->o, &a->came));
    return q->event_new(l->o, &a->sent);
}

static void events_close(const struct stage_link *l, struct lane *a)
{
    void *event[] = {a->computed, a->came, a->sent};
    for (int i = 0; i < 3; i++)
        if (event[i]) l->o->queues->event_free(l->o, event[i]);
}

/* ---- hops -------------------------------------------------------------------------------------------------- */

/* the hop between this stage and its neighbour of the pair (stage + odd) / 2 */
static enum status hop_open(struct stage_link *l, struct nccl *n, int odd, int must)
{
    struct hop h = {0};
    MPI_Comm pair;
    char why[NCCL_WHY];
    int rank, size;
    TRY(mpi_check(MPI_Comm_split(l->pp, (l->stage + odd) / 2, l->stage, &pair), "MPI_Comm_split"));
    MPI_Comm_rank(pair, &rank);
    MPI_Comm_size(pair, &size);
    h.peer = 1 - rank;
    enum status st = size == 2 ? nccl_join(n, pair, &h.comm, why) : ST_OK;
    MPI_Comm_free(&pair);
    if (size == 1) return ST_OK;
    if (st == ST_E_DEVICE && must) return ERR(st, "hand-off to a neighbour of stage %d: %s", l->stage, why);
    if (st == ST_E_DEVICE) {
        if (rank == 0) log_warn("hand-off after stage %d goes through MPI and host memory: %s", l->stage, why);
        return ST_OK;
    }
    TRY(st);
    if (l->o->queues) TRY(l->o->queues->queue_new(l->o, &h.queue));
    *(rank == 0 ? &l->after : &l->before) = h;
    return ST_OK;
}

static enum status hops_open(struct stage_link *l, struct nccl *n, int must)
{
    if (!n || l->n_stages == 1) return ST_OK;
    TRY(hop_open(l, n, 0, must));
    return hop_open(l, n, 1, must);
}

static void hop_close(struct stage_link *l, struct hop *h)
{
    nccl_leave(h->comm);
    if (h->queue) l->o->queues->queue_free(l->o, h->queue);
}

/* ---- open -------------------------------------------------------------------------------------------------- */

static enum status lane_open(const struct stage_link *l, const struct config *c, int cap_rows, struct lane *a)
{
    const char *why = NULL;
    TRY(flow_open(l->o, c, cap_rows, &a->flow));
    TRY(events_open(l, a));
    int over_mpi = (l->stage > 0 && !l->before.comm) || (l->stage + 1 < l->n_stages && !l->after.comm);
    if (a->flow.mem.place != PLACE_DEVICE || !over_mpi) return ST_OK;
    a->mirror = mem_alloc(a->flow.mem.bytes, 1, "host copy of a hand-off");
    if (!a->mirror) return ST_E_NOMEM;
    enum status st = l->o->pin(l->o, a->mirror, a->flow.mem.bytes, &why);
    a->pinned = st == ST_OK;
    if (st == ST_E_DEVICE) log_warn("host copies of hand-offs are not page-locked (%s): they are slower", why);
    return st == ST_E_DEVICE ? ST_OK : st;
}

enum status stage_open(MPI_Comm pp, struct ops *o, const struct config *c, int cap_rows, int depth, struct nccl *n,
                       int must, struct stage_link **l_p)
{
    struct stage_link *l = mem_alloc(1, sizeof *l, "pipeline link");
    if (!l) return ST_E_NOMEM;
    enum status st = ST_OK;
    l->pp = pp;
    l->o = o;
    l->n_stages = 1;
    l->hidden = c->hidden;
    l->max_bank = split_bank_rows(c->res_block, c->n_layers);
    l->depth = depth;
    if (pp != MPI_COMM_NULL) {
        MPI_Comm_rank(pp, &l->stage);
        MPI_Comm_size(pp, &l->n_stages);
    }
    if (l->max_bank > MAX_BANK) {
        st = ERR(ST_E_RANGE, "%d bank rows; the pipeline hand-off carries at most %d", l->max_bank, MAX_BANK);
        goto fail;
    }
    TRY_GO(st, hops_open(l, n, must), fail);
    l->lane = mem_alloc((size_t)depth, sizeof *l->lane, "pipeline flows");
    if (!l->lane) {
        st = ST_E_NOMEM;
        goto fail;
    }
    for (int i = 0; i < depth; i++) TRY_GO(st, lane_open(l, c, cap_rows, &l->lane[i]), fail);
    *l_p = l;
    return ST_OK;
fail:
    stage_close(l);
    return st;
}

void stage_close(struct stage_link *l)
{
    if (!l) return;
    for (int i = 0; l->lane && i < l->depth; i++) {
        events_close(l, &l->lane[i]);
        if (l->lane[i].pinned) l->o->unpin(l->o, l->lane[i].mirror);
        flow_close(l->o, &l->lane[i].flow);
        mem_free(l->lane[i].mirror);
    }
    hop_close(l, &l->after);
    hop_close(l, &l->before);
    mem_free(l->lane);
    mem_free(l);
}

static enum status finish_lane(struct stage_link *l, struct lane *a, enum status (*idle)(void *), void *ctx)
{
    if (a->n_req == 0) return ST_OK;
    double t = MPI_Wtime();
    TRY(wait_all(a->req, a->n_req, idle, ctx));
    l->count.wait_s += MPI_Wtime() - t;
    a->n_req = 0;
    return ST_OK;
}

enum status stage_flow(struct stage_link *l, struct flow **f_p, enum status (*idle)(void *), void *ctx)
{
    struct lane *a = &l->lane[l->next];
    TRY(finish_lane(l, a, idle, ctx));
    wait_for(l, NULL, a->sent);
    l->next = (l->next + 1) % l->depth;
    *f_p = &a->flow;
    return ST_OK;
}

static enum status check_header(const struct stage_link *l, const struct order *o, const struct stage_header *h)
{
    if (h->seq != o->seq || h->request != o->request || h->pos0 != o->pos0 || h->rows != o->n || h->hidden != l->hidden ||
        h->n_bank < 0 || h->n_bank > l->max_bank)
        return ERR(ST_E_FAULT,
                   "stage %d: hand-off of order %lld (request %d, position %d, %d rows, hidden %d, %d bank rows) does not "
                   "fit order %lld (request %d, position %d, %d rows, hidden %d, at most %d bank rows)",
                   l->stage, (long long)h->seq, h->request, h->pos0, h->rows, h->hidden, h->n_bank, (long long)o->seq,
                   o->request, o->pos0, o->n, l->hidden, l->max_bank);
    return ST_OK;
}

/* parts of a flow in the order they cross: prefix, bank rows, accumulator */
static int parts(const struct stage_link *l, const struct flow *f, int n_bank, int with_acc, float *part[3 + MAX_BANK],
                 int tag[3 + MAX_BANK])
{
    int n = 0;
    part[n] = f->prefix;
    tag[n++] = TAG_PREFIX;
    for (int r = 0; r < n_bank; r++) {
        part[n] = f->bank + (int64_t)r * f->cap_rows * l->hidden;
        tag[n++] = TAG_BANK;
    }
    if (with_acc) {
        part[n] = f->acc;
        tag[n++] = TAG_ACC;
    }
    return n;
}

static struct lane *lane_of(const struct stage_link *l, const struct flow *f)
{
    for (int i = 0; i < l->depth; i++)
        if (&l->lane[i].flow == f) return &l->lane[i];
    return NULL;
}

/* where MPI finds a part: the part itself, or its place in the host copy */
static float *wire(const struct lane *a, float *part)
{
    if (!a->mirror) return part;
    return (float *)((char *)a->mirror + ((uintptr_t)part - (uintptr_t)a->flow.mem.p));
}

static enum status receive_mpi(struct stage_link *l, struct lane *a, float **part, const int *tag, int n,
                               int64_t values, enum status (*idle)(void *), void *ctx)
{
    MPI_Request req[3 + MAX_BANK];
    for (int i = 0; i < n; i++)
        TRY(mpi_check(MPI_Irecv(wire(a, part[i]), (int)values, MPI_FLOAT, l->stage - 1, tag[i], l->pp, &req[i]),
                      "MPI_Irecv"));
    TRY(wait_all(req, n, idle, ctx));
    for (int i = 0; a->mirror && i < n; i++) l->o->put(l->o, part[i], wire(a, part[i]), (size_t)values * sizeof(float));
    return ST_OK;
}

static enum status receive_nccl(struct stage_link *l, struct lane *a, float **part, int n, int64_t values,
                                enum status (*idle)(void *), void *ctx)
{
    struct hop *h = &l->before;
    wait_for(l, h, a->computed);
    wait_for(l, h, a->sent);
    nccl_begin(h->comm);
    for (int i = 0; i < n; i++) nccl_recv(h->comm, part[i], values, h->peer, h->queue);
    TRY(nccl_end(h->comm, idle, ctx));
    mark(l, h, a->came);
    wait_for(l, NULL, a->came);
    return ST_OK;
}

enum status stage_receive(struct stage_link *l, const struct order *o, struct flow *f, struct stage_header *h_p,
                          enum status (*idle)(void *), void *ctx)
{
    struct stage_header h;
    struct lane *a = lane_of(l, f);
    MPI_Request req;
    float *part[3 + MAX_BANK];
    int tag[3 + MAX_BANK];
    double t = MPI_Wtime();
    if (!a) return ERR(ST_E_INTERNAL, "stage %d: hand-off into a flow of somebody else", l->stage);
    TRY(mpi_check(MPI_Irecv(&h, sizeof h, MPI_BYTE, l->stage - 1, TAG_HEADER, l->pp, &req), "MPI_Irecv"));
    TRY(wait_all(&req, 1, idle, ctx));
    TRY(check_header(l, o, &h));
    int n = parts(l, f, h.n_bank, h.taps != 0, part, tag);
    int64_t values = (int64_t)h.rows * l->hidden;
    if (h.rows > f->cap_rows || values > INT32_MAX)
        return ERR(ST_E_FAULT, "stage %d: %d rows in the hand-off, room for %d", l->stage, h.rows, f->cap_rows);
    TRY(l->before.comm ? receive_nccl(l, a, part, n, values, idle, ctx)
                       : receive_mpi(l, a, part, tag, n, values, idle, ctx));
    l->count.wait_s += MPI_Wtime() - t;
    f->n_bank = h.n_bank;
    f->taps = h.taps;
    *h_p = h;
    return ST_OK;
}

static enum status send_mpi(struct stage_link *l, struct lane *a, float **part, const int *tag, int n, int64_t values)
{
    for (int i = 0; i < n; i++) {
        float *from = wire(a, part[i]);
        if (a->mirror) l->o->get(l->o, from, part[i], (size_t)values * sizeof(float));
        TRY(mpi_check(MPI_Isend(from, (int)values, MPI_FLOAT, l->stage + 1, tag[i], l->pp, &a->req[a->n_req++]),
                      "MPI_Isend"));
    }
    return ST_OK;
}

static enum status send_nccl(struct stage_link *l, struct lane *a, float **part, int n, int64_t values,
                             enum status (*idle)(void *), void *ctx)
{
    struct hop *h = &l->after;
    double t = MPI_Wtime();
    wait_for(l, h, a->computed);
    nccl_begin(h->comm);
    for (int i = 0; i < n; i++) nccl_send(h->comm, part[i], values, h->peer, h->queue);
    TRY(nccl_end(h->comm, idle, ctx));
    mark(l, h, a->sent);
    l->count.wait_s += MPI_Wtime() - t;
    return ST_OK;
}

enum status stage_send(struct stage_link *l, const struct order *o, struct flow *f, int rows, double first_chunk_s,
                       double work_s, enum status (*idle)(void *), void *ctx)
{
    struct lane *a = lane_of(l, f);
    if (!a || a->n_req) return ERR(ST_E_INTERNAL, "stage %d: flow is not free to be sent", l->stage);
    mark(l, NULL, a->computed);
    if (l->stage == l->n_stages - 1) return ST_OK;
    float *part[3 + MAX_BANK];
    int tag[3 + MAX_BANK];
    int64_t values = (int64_t)rows * l->hidden;
    a->head = (struct stage_header){o->seq, o->request, o->pos0, rows, f->n_bank, l->hidden, f->taps, first_chunk_s,
                                    work_s};
    TRY(mpi_check(MPI_Isend(&a->head, sizeof a->head, MPI_BYTE, l->stage + 1, TAG_HEADER, l->pp, &a->req[0]),
                  "MPI_Isend"));
    a->n_req = 1;
    int n = parts(l, f, f->n_bank, f->taps != 0, part, tag);
    TRY(l->after.comm ? send_nccl(l, a, part, n, values, idle, ctx) : send_mpi(l, a, part, tag, n, values));
    l->count.messages += (uint64_t)n + 1;
    l->count.bytes += sizeof a->head + (uint64_t)n * (uint64_t)values * sizeof(float);
    return ST_OK;
}

enum status stage_drain(struct stage_link *l)
{
    for (int i = 0; i < l->depth; i++) {
        TRY(finish_lane(l, &l->lane[i], NULL, NULL));
        wait_for(l, NULL, l->lane[i].sent);
    }
    if (!l->after.comm) return ST_OK;
    float value;
    l->o->get(l->o, &value, l->lane[0].flow.mem.p, sizeof value); /* waits for the queue, and that for the sends */
    return ops_check(l->o);
}

struct stage_counts stage_counts(const struct stage_link *l)
{
    return l->count;
}

const char *stage_name(const struct stage_link *l)
{
    int over = (l->before.comm != NULL) + (l->after.comm != NULL), hops = (l->stage > 0) + (l->stage + 1 < l->n_stages);
    return hops == 0 ? "none" : over == hops ? "nccl" : over == 0 ? "mpi" : "nccl and mpi";
}
