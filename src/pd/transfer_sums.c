/* Verification in detail: a checksum of every entry and page that a source sends a destination, computed on both sides.
 *
 * The words carry one sum per component, which says that something is wrong. These sums, one for each copy of the
 * pair's plan and each page of it, say where. They go as one message per request, source and destination, sent when all
 * of the request is queued; the destination keeps taking them in while it waits for words, so those of an aborted
 * request never pile up. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "pd/transfer_impl.h"
#include "pd/wait.h"

enum { TAG_SUMS = 1000, HEAD = 2 }; /* tag: + slot. Head: generation, number of sums */

struct sums {
    int most;               /* sums of the longest request of any pair */
    uint64_t *value;        /* [n_slots][n_peers][HEAD + most] as sent, or as taken in last */
    MPI_Request *req;       /* [n_slots][n_peers] source: still reading value */
};

static int place(const struct transfer *t, int slot, int peer)
{
    return slot * t->n_peers + peer;
}

static uint64_t *values(const struct transfer *t, int slot, int peer)
{
    return t->sums->value + (size_t)place(t, slot, peer) * (size_t)(HEAD + t->sums->most);
}

static int sums_of(const struct peer *p, int n_pages)
{
    int n = 0;
    for (int k = 0; k < p->plan.n; k++) n += comp_paged(p->plan.copy[k].comp) ? n_pages : 1;
    return n;
}

enum status transfer_sums_open(struct transfer *t)
{
    if (!t->opt.verify) return ST_OK;
    struct sums *s = t->sums = mem_alloc(1, sizeof *s, "checksums");
    if (!s) return ST_E_NOMEM;
    for (int i = 0; i < t->n_peers; i++) {
        int n = sums_of(&t->peer[i], t->max_pages);
        if (n > s->most) s->most = n;
    }
    size_t n = (size_t)t->n_slots * (size_t)t->n_peers;
    s->value = mem_alloc(n * (size_t)(HEAD + s->most), sizeof *s->value, "checksums");
    s->req = mem_alloc(n, sizeof *s->req, "requests of checksums");
    if (!s->value || !s->req) return ST_E_NOMEM;
    for (size_t i = 0; i < n; i++) s->req[i] = MPI_REQUEST_NULL;
    return ST_OK;
}

/* What is still on its way belongs to an aborted request of a run that ends; a destination has left already. */
void transfer_sums_close(struct transfer *t)
{
    struct sums *s = t->sums;
    if (!s) return;
    for (int i = 0; s->req && i < t->n_slots * t->n_peers; i++) {
        int done = 0;
        MPI_Test(&s->req[i], &done, MPI_STATUS_IGNORE);
        if (done) continue;
        MPI_Cancel(&s->req[i]);
        MPI_Request_free(&s->req[i]);
    }
    mem_free(s->value);
    mem_free(s->req);
    mem_free(s);
    t->sums = NULL;
}

/* hash of copy k and logical page i as one side has it */
static enum status hash_one(const struct transfer *t, const struct peer *p, int k, int i, enum side side,
                            const char *base, int64_t src_item, uint64_t *h_p)
{
    *h_p = 0;
    return transfer_hash_copy(t, p, &p->plan.copy[k], side, base, src_item, i, h_p);
}

static enum status idle(void *ctx)
{
    struct transfer *t = ctx;
    return t->via->progress(t);
}

enum status transfer_sums_send(struct transfer *t, int slot)
{
    const struct source_slot *s = &t->from[slot];
    const int32_t *page = t->opt.verify ? state_pages(t->source, s->state_slot) : NULL;
    for (int d = 0; t->opt.verify && d < t->n_peers; d++) {
        const struct peer *p = &t->peer[d];
        uint64_t *v = values(t, slot, d);
        int n = HEAD;
        if (!p->expected || s->out[d].stopped) continue;
        TRY(wait_all(&t->sums->req[place(t, slot, d)], 1, idle, t));
        for (int k = 0; k < p->plan.n; k++) {
            int paged = comp_paged(p->plan.copy[k].comp);
            for (int i = 0; i < (paged ? s->n_pages : 1); i++)
                TRY(hash_one(t, p, k, i, SIDE_SOURCE, t->source->arena.p, paged ? page[i] : s->state_slot, &v[n++]));
        }
        v[0] = s->generation;
        v[1] = (uint64_t)(n - HEAD);
        TRY(mpi_check(
            MPI_Isend(v, n, MPI_UINT64_T, p->rank, TAG_SUMS + slot, t->w->xfer, &t->sums->req[place(t, slot, d)]),
            "MPI_Isend"));
    }
    return ST_OK;
}

/* Messages of one source come in the order of generations, and the next one may be here before this one is used. */
enum status transfer_sums_take(struct transfer *t, int slot)
{
    for (int s = 0; t->opt.verify && s < t->n_peers; s++)
        for (int got = 1; got && values(t, slot, s)[0] != t->to[slot].generation;) {
            MPI_Message m;
            int n = HEAD + t->sums->most;
            got = 0;
            if (t->peer[s].expected)
                TRY(mpi_check(MPI_Improbe(t->peer[s].rank, TAG_SUMS + slot, t->w->xfer, &got, &m, MPI_STATUS_IGNORE),
                              "MPI_Improbe"));
            if (got) TRY(mpi_check(MPI_Mrecv(values(t, slot, s), n, MPI_UINT64_T, &m, MPI_STATUS_IGNORE), "MPI_Mrecv"));
        }
    return ST_OK;
}

static enum status differs(const struct transfer *t, int slot, const struct peer *p, int k, int i, uint64_t have,
                           uint64_t want)
{
    const struct plan_copy *c = &p->plan.copy[k];
    const struct layout_entry *e = &t->slot.entry[c->dst_entry];
    return ERR(ST_E_FAULT,
               "request %d slot %d: checksum of %s layer %d%s, page %d, from rank %d is %016" PRIx64
               ", the source sent %016" PRIx64,
               t->to[slot].request, slot, comp_name[c->comp], e->layer,
               c->comp != COMP_DRAFT ? ""
               : e->kv               ? " V"
                                     : " K",
               i, p->rank, have, want);
}

enum status transfer_sums_check(struct transfer *t, int slot)
{
    const struct dest_slot *x = &t->to[slot];
    struct waiter w = {0, 0};
    for (int s = 0; t->opt.verify && s < t->n_peers; s++) {
        const struct peer *p = &t->peer[s];
        const uint64_t *v = values(t, slot, s);
        if (!p->expected) continue;
        while (v[0] != x->generation) { /* sent before the last word: it is there or almost */
            TRY(transfer_sums_take(t, slot));
            if (v[0] != x->generation) TRY(wait_pause(&w));
        }
        if (v[1] != (uint64_t)sums_of(p, x->n_pages))
            return ERR(ST_E_FAULT, "request %d slot %d: rank %d sent %" PRIu64 " checksums, the plan has %d",
                       x->request, slot, p->rank, v[1], sums_of(p, x->n_pages));
        int n = HEAD;
        for (int k = 0; k < p->plan.n; k++)
            for (int i = 0; i < (comp_paged(p->plan.copy[k].comp) ? x->n_pages : 1); i++, n++) {
                uint64_t have;
                TRY(hash_one(t, p, k, i, SIDE_DEST, t->data + slot * t->slot_bytes, 0, &have));
                if (have != v[n]) return differs(t, slot, p, k, i, have, v[n]);
            }
    }
    return ST_OK;
}
