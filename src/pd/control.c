#include "pd/control.h"

#include <string.h>

#include "base/buf.h"
#include "pd/wait.h"

enum { TAG_ORDERS = 11, TAG_REPORT = 12, RING = 8, REPORT_RING = 64 };

struct batch_message { int32_t n, pad; struct order order[CONTROL_BATCH]; };

struct control {
    struct world *w;
    int leader;                  /* world rank of decode rank 0 */
    struct batch_message *ring;  /* [RING] */
    MPI_Request *req;            /* [RING][n_prefill] */
    int next;
    double last_post;
    struct control_report report[REPORT_RING];
    MPI_Request report_req[REPORT_RING];
    int next_report;
};

enum status control_open(struct world *w, struct control **c_p)
{
    struct control *c = mem_alloc(1, sizeof *c, "control");
    if (!c) return ST_E_NOMEM;
    size_t n = (size_t)RING * (size_t)(w->topo.n_prefill ? w->topo.n_prefill : 1);
    c->w = w;
    c->leader = topology_decode_rank(&w->topo, 0);
    c->ring = mem_alloc(RING, sizeof *c->ring, "order messages");
    c->req = mem_alloc(n, sizeof *c->req, "order requests");
    if (!c->ring || !c->req) {
        control_close(c);
        return ST_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) c->req[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < REPORT_RING; i++) c->report_req[i] = MPI_REQUEST_NULL;
    c->last_post = MPI_Wtime();
    *c_p = c;
    return ST_OK;
}

void control_close(struct control *c)
{
    if (!c) return;
    mem_free(c->ring);
    mem_free(c->req);
    mem_free(c);
}

static enum status post(struct control *c, const struct order *o, int n)
{
    int np = c->w->topo.n_prefill, i = c->next, orders = n > 0 ? n : 0;
    MPI_Request *req = c->req + (size_t)i * (size_t)np;
    TRY(wait_all(req, np, NULL, NULL));
    c->next = (i + 1) % RING;
    c->ring[i].n = n;
    if (orders) memcpy(c->ring[i].order, o, (size_t)orders * sizeof *o);
    int bytes = (int)(offsetof(struct batch_message, order) + (size_t)orders * sizeof *o);
    for (int r = 0; r < np; r++)
        TRY(mpi_check(MPI_Isend(&c->ring[i], bytes, MPI_BYTE, r, TAG_ORDERS, c->w->ctrl, &req[r]), "MPI_Isend"));
    c->last_post = MPI_Wtime();
    return ST_OK;
}

enum status control_post(struct control *c, const struct order *o, int n)
{
    if (n < 0 || n > CONTROL_BATCH) return ERR(ST_E_INTERNAL, "%d orders in a batch of %d", n, CONTROL_BATCH);
    return post(c, o, n);
}

enum status control_farewell(struct control *c)
{
    return post(c, NULL, CONTROL_FAREWELL);
}

enum status control_alive(struct control *c, double seconds)
{
    return MPI_Wtime() - c->last_post < seconds ? ST_OK : control_post(c, NULL, 0);
}

enum status control_poll(struct control *c, struct order o[CONTROL_BATCH], int *n_p)
{
    int got = 0;
    struct batch_message m;
    MPI_Message handle;
    *n_p = CONTROL_NONE;
    TRY(mpi_check(MPI_Improbe(c->leader, TAG_ORDERS, c->w->ctrl, &got, &handle, MPI_STATUS_IGNORE), "MPI_Improbe"));
    if (!got) return ST_OK;
    TRY(mpi_check(MPI_Mrecv(&m, sizeof m, MPI_BYTE, &handle, MPI_STATUS_IGNORE), "MPI_Mrecv"));
    if (m.n != CONTROL_FAREWELL && (m.n < 0 || m.n > CONTROL_BATCH))
        return ERR(ST_E_INTERNAL, "%d orders in a batch of %d", m.n, CONTROL_BATCH);
    if (m.n > 0) memcpy(o, m.order, (size_t)m.n * sizeof *o);
    *n_p = m.n;
    return ST_OK;
}

enum status control_report(struct control *c, const struct control_report *r)
{
    int i = c->next_report;
    TRY(wait_all(&c->report_req[i], 1, NULL, NULL));
    c->next_report = (i + 1) % REPORT_RING;
    c->report[i] = *r;
    c->report[i].tp_rank = c->w->role.tp_rank;
    return mpi_check(MPI_Isend(&c->report[i], sizeof c->report[i], MPI_BYTE, c->leader, TAG_REPORT, c->w->ctrl,
                               &c->report_req[i]),
                     "MPI_Isend");
}

enum status control_next_report(struct control *c, struct control_report *r_p, int *got_p)
{
    MPI_Message handle;
    *got_p = 0;
    int got = 0;
    TRY(mpi_check(MPI_Improbe(MPI_ANY_SOURCE, TAG_REPORT, c->w->ctrl, &got, &handle, MPI_STATUS_IGNORE), "MPI_Improbe"));
    if (!got) return ST_OK;
    TRY(mpi_check(MPI_Mrecv(r_p, sizeof *r_p, MPI_BYTE, &handle, MPI_STATUS_IGNORE), "MPI_Mrecv"));
    *got_p = 1;
    return ST_OK;
}

enum status control_drain(struct control *c)
{
    TRY(wait_all(c->req, RING * c->w->topo.n_prefill, NULL, NULL));
    return wait_all(c->report_req, REPORT_RING, NULL, NULL);
}
