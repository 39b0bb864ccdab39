#include "pd/links.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

/* ---- groups ------------------------------------------------------------------------------------------------- */

struct part { /* a group of ranks that communicate */
    char name[40];
    int first, step, count;
    int column; /* of the pipeline: ranks hand over; else they add */
};

static int is_mine(const struct world *w, const struct part *p)
{
    int i = w->rank - p->first;
    return i >= 0 && i % p->step == 0 && i / p->step < p->count;
}

/* group k of all: the decode group, the stages, the columns of the pipeline; 0: no more */
static int part_of(const struct topology *t, int k, struct part *p)
{
    int pp = t->single ? 0 : t->prefill.pp, tp = t->single ? 0 : t->prefill.tp;
    if (k > pp + tp) return 0;
    if (k == 0) {
        *p = (struct part){"decode group", topology_decode_rank(t, 0), 1, t->n_decode, 0};
    } else if (k <= pp) {
        *p = (struct part){"", topology_prefill_rank(t, k - 1, 0), 1, tp, 0};
        snprintf(p->name, sizeof p->name, "prefill stage %d", k - 1);
    } else {
        *p = (struct part){"", topology_prefill_rank(t, 0, k - 1 - pp), tp, pp, 1};
        snprintf(p->name, sizeof p->name, "pipeline of TP rank %d", k - 1 - pp);
    }
    return 1;
}

static int list(const struct devices *d, const struct part *p, int say)
{
    int i = 0, a, b, n = 0;
    char uuid[48];
    while (devices_conflict(d, p->first, p->step, p->count, &i, &a, &b)) {
        n++;
        if (say)
            log_error("%s: ranks %d and %d on host %s share %s", p->name, a, b, d->seat[b].host,
                      devices_uuid(&d->seat[b], uuid));
    }
    return n;
}

static void say_shared(const struct world *w, const struct devices *d, const struct part *p)
{
    int i = 0, a, b, decode = p->first == topology_decode_rank(&w->topo, 0);
    int more = !decode && (p->column ? w->topo.prefill.tp : w->topo.prefill.pp) > 1;
    char uuid[48];
    if (w->rank == p->first && devices_conflict(d, p->first, p->step, p->count, &i, &a, &b))
        log_warn("%s%s: through MPI and host memory, because NCCL needs a GPU for every rank, and ranks %d and %d on "
                 "host %s "
                 "share %s",
                 p->name, more ? " and perhaps others like it" : "", a, b, d->seat[b].host,
                 devices_uuid(&d->seat[b], uuid));
}

static void announce(const struct world *w, const char *what, const char *text)
{
    if (w->rank == topology_decode_rank(&w->topo, 0)) log_info("%s%s", what, text);
}

/* ---- choice -------------------------------------------------------------------------------------------------- */

/* a group of more than one rank is somewhere */
static int any_group(const struct topology *t)
{
    struct part p;
    for (int k = 0; part_of(t, k, &p); k++)
        if (p.count > 1) return 1;
    return 0;
}

/* the library on all ranks or on none; *why: of one of those that lack it */
static enum status load(struct world *w, struct nccl **n_p, char why[NCCL_WHY])
{
    struct nccl *n = NULL;
    enum status st = nccl_load(&n, why);
    int mine = st == ST_OK ? w->size : w->rank, lowest;
    TRY(mpi_check(MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, w->all), "MPI_Allreduce"));
    if (lowest == w->size) {
        *n_p = n;
        return world_check_equal(w, (uint64_t)nccl_version(n), "NCCL's version", ST_E_CONFIG);
    }
    nccl_unload(n);
    return mpi_check(MPI_Bcast(why, NCCL_WHY, MPI_CHAR, lowest, w->all), "MPI_Bcast");
}

static void note_nccl(struct links *l, const struct part *p)
{
    for (int r = p->first; r < p->first + p->step * p->count; r += p->step)
        if (l->sums[r] == SUMS_STAGED) l->sums[r] = SUMS_NCCL; /* without a device it stays the host's memory */
}

static enum status apart(const struct world *w, const struct devices *d, struct links *l)
{
    struct part p;
    int shared = 0, said = 0; /* of the stages and of the columns, the first that cannot stands for all */
    for (int k = 0; part_of(&w->topo, k, &p); k++) {
        int bad = list(d, &p, l->must), kind = k == 0 ? 1 : p.column ? 2 : 4;
        shared += bad;
        if (bad && !l->must && !(said & kind)) say_shared(w, d, &p);
        said |= bad ? kind : 0;
        if (!p.column && !bad) note_nccl(l, &p);
        if (!is_mine(w, &p) || bad || p.count == 1) continue;
        if (p.column) l->pp = 1;
        else l->tp = 1;
    }
    if (l->must && shared)
        return ERR(ST_E_CONFIG,
                   "--comm nccl needs a GPU for every rank of a group; pairs of ranks above that share one: %d; use "
                   "--comm auto or mpi, fewer ranks or more GPUs",
                   shared);
    return ST_OK;
}

/* every group through the host, until it is known that it can do better */
static enum status sums_open(const struct world *w, int device, struct links *l)
{
    l->sums = mem_alloc((size_t)w->size, sizeof *l->sums, "ways of the sums");
    if (!l->sums) return ST_E_NOMEM;
    for (int r = 0; r < w->size; r++) l->sums[r] = device ? SUMS_STAGED : SUMS_HOST;
    return ST_OK;
}

enum status links_open(struct world *w, struct ops *o, enum links_want want, struct links *l_p)
{
    struct links l = {.must = want == LINKS_NCCL};
    unsigned char uuid[16];
    char why[NCCL_WHY] = "";
    int device = o->queues != NULL;
    if (l.must || (want == LINKS_AUTO && device && any_group(&w->topo))) TRY(load(w, &l.nccl, why));
    enum status st = ST_OK;
    if (l.must && !device && !(l.nccl && nccl_stand_in(l.nccl, uuid)))
        st = ERR(ST_E_CONFIG,
                 "--comm nccl needs a GPU for every rank of a group; with --device cpu use auto, mpi or shm");
    else if (l.must && !l.nccl) st = ERR(ST_E_CONFIG, "--comm nccl: %s", why);
    else if (*why && !l.nccl)
        announce(w, "sums and hand-off go through MPI and host memory, because NCCL cannot be used: ", why);
    if (st == ST_OK) st = world_agree(w, sums_open(w, device, &l));
    if (st == ST_OK) st = devices_gather(w, o, l.nccl, &l.devices);
    if (st == ST_OK && l.nccl) st = apart(w, &l.devices, &l);
    if (st != ST_OK) {
        links_close(&l);
        return st;
    }
    if (l.nccl && (l.tp || l.pp)) {
        char text[NCCL_WHY];
        snprintf(text, sizeof text, "%d.%d.%d, %s", nccl_version(l.nccl) / 10000, nccl_version(l.nccl) / 100 % 100,
                 nccl_version(l.nccl) % 100, nccl_file(l.nccl));
        announce(w, "groups whose ranks have a GPU each use NCCL ", text);
        nccl_watch(l.nccl, o);
    }
    *l_p = l;
    return ST_OK;
}

void links_close(struct links *l)
{
    nccl_unload(l->nccl);
    devices_free(&l->devices);
    mem_free(l->sums);
    memset(l, 0, sizeof *l);
}
