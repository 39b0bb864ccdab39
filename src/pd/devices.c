#include "pd/devices.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

int devices_choose(int node_rank, int n)
{
    return n > 1 ? node_rank % n : 0;
}

static enum status own_seat(struct ops *o, const struct nccl *n, struct device_seat *s)
{
    gethostname(s->host, sizeof s->host - 1);
    if (o->queues) TRY(o->queues->device(o, &s->d));
    if (n) (void)nccl_stand_in(n, s->d.uuid);
    return ST_OK;
}

enum status devices_gather(struct world *w, struct ops *o, const struct nccl *n, struct devices *d_p)
{
    struct device_seat mine;
    memset(&mine, 0, sizeof mine);
    struct devices d = {w->size, mem_alloc((size_t)w->size, sizeof *d.seat, "devices of all ranks")};
    enum status st = world_agree(w, d.seat ? own_seat(o, n, &mine) : ST_E_NOMEM);
    if (st == ST_OK)
        st = mpi_check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, d.seat, sizeof mine, MPI_BYTE, w->all),
                       "MPI_Allgather");
    if (st != ST_OK) devices_free(&d);
    else *d_p = d;
    return st;
}

void devices_free(struct devices *d)
{
    mem_free(d->seat);
    memset(d, 0, sizeof *d);
}

static int same(const struct devices *d, int a, int b)
{
    return memcmp(d->seat[a].d.uuid, d->seat[b].d.uuid, sizeof d->seat[a].d.uuid) == 0;
}

const char *devices_uuid(const struct device_seat *s, char text[48])
{
    const unsigned char *u = s->d.uuid;
    int n = snprintf(text, 48, "GPU-");
    for (int i = 0; i < 16; i++)
        n += snprintf(text + n, 48 - (size_t)n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
    return text;
}

int devices_conflict(const struct devices *d, int first, int step, int count, int *i_p, int *a_p, int *b_p)
{
    for (int i = *i_p + 1; i < count; i++)
        for (int k = 0; k < i; k++)
            if (same(d, first + k * step, first + i * step)) {
                *i_p = i;
                *a_p = first + k * step;
                *b_p = first + i * step;
                return 1;
            }
    return 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

static enum status fit_one(const struct world *w, const struct devices *d, int first, const struct config *c,
                           const struct draft_config *draft, const struct plan_options *o)
{
    int64_t need = 0, most = 0;
    size_t free = d->seat[first].d.free;
    int ranks = 0, most_rank = first;
    for (int r = first; r < d->n; r++) {
        struct rank_memory m;
        if (!same(d, first, r)) continue;
        TRY(memory_rank(c, draft, &w->topo, o, r, &m));
        need += m.device_bytes;
        ranks++;
        if (m.device_bytes > most) most = m.device_bytes, most_rank = r;
        if (d->seat[r].d.free < free) free = d->seat[r].d.free; /* the last to look saw the contexts of all */
    }
    char uuid[48];
    if (need <= (int64_t)free) return ST_OK;
    return ERR(
        ST_E_CONFIG,
        "%s on host %s: its %d ranks need %.2f GiB of its memory (rank %d most: %.2f), %.2f GiB are free: %.2f a rank; "
        "use more GPUs, fewer ranks on each, or less --concurrency, --max-prompt or --chunk",
        devices_uuid(&d->seat[first], uuid), d->seat[first].host, ranks, (double)need / 1073741824, most_rank,
        (double)most / 1073741824, (double)free / 1073741824, (double)free / ranks / 1073741824);
}

enum status devices_fit(const struct world *w, const struct devices *d, const struct config *c,
                        const struct draft_config *draft, const struct plan_options *o)
{
    for (int r = 0; r < d->n; r++) {
        int seen = d->seat[r].d.total == 0;
        for (int k = 0; k < r && !seen; k++) seen = same(d, k, r);
        if (!seen) TRY(fit_one(w, d, r, c, draft, o));
    }
    return ST_OK;
}
