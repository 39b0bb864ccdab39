/* What decode ranks of one node receive once for all of them: memory the node shares, and the words its ranks leave there.
 *
 * With sharing every decode rank's slots lie in a window that its node can load from (MPI_Win_allocate_shared); for the
 * sources they are exposed with MPI_Win_create as the same data window as ever. Behind its slots each rank has a line a
 * slot, written by that rank only:
 *   done[c]   generation and state (DONE, FAIL) of a component that this rank received for others too
 *   released  the last generation whose slots of other ranks this rank will not read any more
 * A rank is ready when its own words are DONE and the owners' lines say DONE for what lies there. An owner tells its
 * sources of the next generation only when all who read its slot have released the one before. */
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "pd/transfer_impl.h"

struct share_line {
    uint64_t done[COMP_N], released, pad[2];
};
_Static_assert(sizeof(struct share_line) == LINE, "a line is a cache line");

struct lender { /* a rank whose slots this rank reads */
    int tp_rank;
    struct layout layout; /* of its slot */
    const char *data;
    const struct share_line *line; /* [n_slots] */
};

struct sharing {
    MPI_Win win;
    struct share_line *line;     /* own, [n_slots] */
    struct lender lender[COMP_N]; /* MLA, DRAFT: tp_rank -1 where this rank owns them, or has none */
    int n_readers;
    const struct share_line **reader; /* [n_readers][n_slots] lines of ranks that read this rank's slots */
    unsigned lends;              /* bit comp: others read it here */
};

static int64_t lines_at(const struct layout *l, int n_slots)
{
    return n_slots * l->bytes; /* a multiple of 4096 */
}

/* the slots and lines of the rank with this tp rank, as seen from here */
static enum status look_at(struct transfer *t, int tp_rank, const struct layout *l, const char **data_p,
                           const struct share_line **line_p)
{
    const struct share *s = &t->opt.plan.share;
    MPI_Aint bytes;
    int unit, at = 0;
    char *base;
    for (int r = 0; r < tp_rank; r++) at += s->node[r] == s->node[t->w->role.tp_rank];
    TRY(mpi_check(MPI_Win_shared_query(t->sharing->win, at, &bytes, &unit, (void *)&base), "MPI_Win_shared_query"));
    if ((int64_t)bytes < lines_at(l, t->n_slots) + t->n_slots * LINE)
        return ERR(ST_E_INTERNAL, "decode rank %d shares %lld bytes, its slots have %" PRId64, tp_rank, (long long)bytes,
                   lines_at(l, t->n_slots));
    *data_p = base;
    *line_p = (const void *)(base + lines_at(l, t->n_slots));
    return ST_OK;
}

static enum status find_lenders(struct transfer *t)
{
    struct sharing *x = t->sharing;
    for (int c = 0; c < COMP_N; c++) {
        struct lender *l = &x->lender[c];
        if (!(t->slot.spec.absent >> c & 1)) continue;
        int owner = share_owner(&t->opt.plan.share, t->d, (enum comp)c, t->w->role.tp_rank);
        TRY(memory_slot_layout(t->c, t->d, &t->w->topo, &t->opt.plan, owner, &l->layout));
        TRY(look_at(t, owner, &l->layout, &l->data, &l->line));
        l->tp_rank = owner;
    }
    return ST_OK;
}

static enum status find_readers(struct transfer *t)
{
    struct sharing *x = t->sharing;
    int me = t->w->role.tp_rank;
    x->reader = mem_alloc((size_t)t->n_decode, sizeof *x->reader, "readers of a slot");
    if (!x->reader) return ST_E_NOMEM;
    for (int r = 0; r < t->n_decode; r++) {
        unsigned reads = 0;
        for (int c = 0; c < COMP_N; c++)
            if (r != me && share_owner(&t->opt.plan.share, t->d, (enum comp)c, r) == me) reads |= 1u << c;
        if (!reads) continue;
        struct layout l;
        const char *data;
        TRY(memory_slot_layout(t->c, t->d, &t->w->topo, &t->opt.plan, r, &l));
        enum status st = look_at(t, r, &l, &data, &x->reader[x->n_readers]);
        layout_free(&l);
        if (st != ST_OK) return st;
        x->n_readers++;
        x->lends |= reads;
    }
    return ST_OK;
}

enum status transfer_share_open(struct transfer *t)
{
    if (t->source || !t->opt.plan.share.n) return ST_OK;
    struct sharing *x = t->sharing = mem_alloc(1, sizeof *x, "sharing of a node");
    if (!x) return ST_E_NOMEM;
    x->win = MPI_WIN_NULL;
    for (int c = 0; c < COMP_N; c++) x->lender[c].tp_rank = -1;
    t->share_bytes = t->n_slots * LINE;
    int64_t bytes = t->data_bytes + t->share_bytes;
    char *base;
    if (MPI_Win_allocate_shared((MPI_Aint)bytes, 1, MPI_INFO_NULL, t->w->share, (void *)&base, &x->win) != MPI_SUCCESS) {
        x->win = MPI_WIN_NULL;
        return ERR(ST_E_CONFIG,
                   "--dedupe: MPI_Win_allocate_shared of %" PRId64 " bytes is refused (osc component %s, or /dev/shm full); it needs "
                   "sm beside the component of the network (mpirun --mca osc sm,rdma), or leave the component open",
                   bytes, transfer_osc(t->opt.transport));
    }
    TRY(mpi_check(MPI_Win_set_errhandler(x->win, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler"));
    memset(base, 0, (size_t)bytes);
    t->data = base;
    x->line = (void *)(base + t->data_bytes);
    TRY(find_lenders(t));
    TRY(find_readers(t));
    TRY(mpi_check(MPI_Win_lock_all(MPI_MODE_NOCHECK, x->win), "MPI_Win_lock_all"));
    return mpi_check(MPI_Barrier(t->w->share), "MPI_Barrier"); /* nobody reads before all have cleared */
}

void transfer_share_close(struct transfer *t)
{
    struct sharing *x = t->sharing;
    if (!x) return;
    for (int c = 0; c < COMP_N; c++) layout_free(&x->lender[c].layout);
    mem_free(x->reader);
    if (x->win != MPI_WIN_NULL) {
        MPI_Win_unlock_all(x->win);
        MPI_Win_free(&x->win);
    }
    mem_free(x);
    t->sharing = NULL;
}

/* ---- words --------------------------------------------------------------------------------------------------------- */

static void store(uint64_t *at, uint64_t v)
{
    __atomic_store_n(at, v, __ATOMIC_RELEASE);
}

enum status transfer_share_sync(struct transfer *t)
{
    return t->sharing ? mpi_check(MPI_Win_sync(t->sharing->win), "MPI_Win_sync") : ST_OK;
}

void transfer_share_publish(struct transfer *t, int slot, const enum word_state state[COMP_N])
{
    struct sharing *x = t->sharing;
    for (int c = 0; x && c < COMP_N; c++)
        if (x->lends >> c & 1 && state[c] != WORD_NONE)
            store(&x->line[slot].done[c],
                  word_pack((struct word_value){t->to[slot].generation, state[c], (enum comp)c, (uint32_t)t->to[slot].n_pages}));
}

void transfer_share_seen(const struct transfer *t, int slot, int *waiting_p, int *failed_p)
{
    const struct sharing *x = t->sharing;
    for (int c = 0; x && c < COMP_N; c++) {
        if (x->lender[c].tp_rank < 0) continue;
        struct word_value v = word_unpack(word_load(&x->lender[c].line[slot].done[c]));
        int current = v.generation == t->to[slot].generation;
        *waiting_p |= !current || v.state != WORD_DONE;
        *failed_p |= current && v.state == WORD_FAIL;
    }
}

void transfer_share_release(struct transfer *t, int slot, uint32_t generation)
{
    if (t->sharing && generation > word_load(&t->sharing->line[slot].released))
        store(&t->sharing->line[slot].released, generation);
}

int transfer_share_free(const struct transfer *t, int slot, uint32_t generation)
{
    const struct sharing *x = t->sharing;
    for (int i = 0; x && i < x->n_readers; i++)
        if (word_load(&x->reader[i][slot].released) < generation) return 0;
    return 1;
}

/* ---- reading what lies elsewhere ----------------------------------------------------------------------------------- */

enum status transfer_share_unpack(struct transfer *t, int slot, struct state *s, int state_slot)
{
    struct sharing *x = t->sharing;
    for (int c = 0; x && c < COMP_N; c++) {
        const struct lender *l = &x->lender[c];
        for (int i = 0; l->tp_rank >= 0 && i < l->layout.n; i++) {
            const struct layout_entry *e = &l->layout.entry[i];
            if ((int)e->comp != c) continue;
            TRY(transfer_unpack_entry(t, slot, e, l->data + slot * l->layout.bytes, s, state_slot));
            t->shared[c] += (uint64_t)(e->item_bytes * t->to[slot].n_pages);
        }
    }
    return ST_OK;
}

void transfer_share_range(const struct transfer *t, char **begin_p, char **end_p)
{
    const struct sharing *x = t->sharing;
    for (int c = 0; x && c < COMP_N; c++) {
        const struct lender *l = &x->lender[c];
        if (l->tp_rank < 0) continue;
        char *begin = (char *)(uintptr_t)l->data, *end = begin + t->n_slots * l->layout.bytes;
        if (begin < *begin_p) *begin_p = begin;
        if (end > *end_p) *end_p = end;
    }
}

uint64_t transfer_shared(const struct transfer *t, enum comp comp)
{
    return t->shared[comp];
}

void transfer_share_table(const struct transfer *t, int slot)
{
    const struct sharing *x = t->sharing;
    for (int c = 0; x && c < COMP_N; c++) {
        if (x->lender[c].tp_rank < 0) continue;
        struct word_value v = word_unpack(word_load(&x->lender[c].line[slot].done[c]));
        if (v.generation == t->to[slot].generation && v.state == WORD_DONE) continue;
        log_error("request %d slot %d generation %u from decode rank %d of this node: %s: seen %s of generation %u",
                  t->to[slot].request, slot, t->to[slot].generation, x->lender[c].tp_rank, comp_name[c],
                  v.state <= WORD_FREED ? word_state_name[v.state] : "?", v.generation);
    }
}
