#include "pd/transfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "pd/transfer_impl.h"
#include "pd/wait.h"
#include "plan/scratch.h"

static const struct transport *const transports[] = {
    [TRANSPORT_RMA] = &transfer_rma, [TRANSPORT_SENDRECV] = &transfer_sendrecv};

/* ---- plans ------------------------------------------------------------------------------------------------- */

static enum status make_pair(const struct transfer *t, const struct layout *src, int stage, const struct layout *dst,
                             struct peer *p)
{
    TRY(transfer_plan_pair(t->c, t->d, src, stage, stage == t->w->topo.prefill.pp - 1, dst, t->opt.plan.stripe, &p->plan));
    p->expected = 0;
    p->max_runs = 0;
    for (int c = 0; c < COMP_N; c++) {
        int64_t runs = 0;
        transfer_plan_bytes(&p->plan, (enum comp)c, t->max_pages, &runs);
        if (runs > INT32_MAX / 2 - p->max_runs)
            return ERR(ST_E_CONFIG, "%s: %lld runs to one decode rank are too many; use head-major pages", comp_name[c],
                       (long long)runs);
        p->max_runs += (int)runs;
        p->expected += p->plan.has[c];
    }
    return ST_OK;
}

static enum status source_peers(struct transfer *t)
{
    const struct rank_role *r = &t->w->role;
    struct layout want;
    TRY(memory_source_layout(t->c, t->d, &t->w->topo, &t->opt.plan, r->stage, r->tp_rank, &want));
    uint64_t planned = layout_hash(&want), has = t->source ? layout_hash(&t->source->layout) : 0;
    layout_free(&want);
    if (planned != has)
        return ERR(ST_E_INTERNAL, "layout of the state (hash %016" PRIx64 ") is not the planned one (%016" PRIx64 ")", has,
                   planned);
    for (int d = 0; d < t->n_peers; d++) {
        struct peer *p = &t->peer[d];
        p->rank = topology_decode_rank(&t->w->topo, d);
        TRY(memory_slot_layout(t->c, t->d, &t->w->topo, &t->opt.plan, d, &p->layout));
        t->max_pages = p->layout.spec.n_pages;
        TRY(make_pair(t, &t->source->layout, r->stage, &p->layout, p));
    }
    return ST_OK;
}

/* A destination checks that its sources cover every byte of a slot exactly once. */
static enum status check_cover(const struct transfer *t)
{
    size_t n = (size_t)t->n_peers;
    const struct pair_plan **p = mem_alloc(n, sizeof *p, "plans");
    const struct layout **l = mem_alloc(n, sizeof *l, "layouts");
    enum status st = p && l ? ST_OK : ST_E_NOMEM;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        p[i] = &t->peer[i].plan;
        l[i] = &t->peer[i].layout;
    }
    if (st == ST_OK) st = transfer_plan_check(t->c, t->d, p, l, t->n_peers, &t->slot, t->max_pages);
    mem_free(p);
    mem_free(l);
    return st;
}

static enum status dest_peers(struct transfer *t)
{
    const struct topology *topo = &t->w->topo;
    TRY(memory_slot_layout(t->c, t->d, topo, &t->opt.plan, t->w->role.tp_rank, &t->slot));
    t->slot_bytes = t->slot.bytes;
    t->max_pages = t->slot.spec.n_pages;
    for (int s = 0; s < t->n_peers; s++) {
        struct peer *p = &t->peer[s];
        int stage = s / topo->prefill.tp;
        p->rank = s;
        TRY(memory_source_layout(t->c, t->d, topo, &t->opt.plan, stage, s % topo->prefill.tp, &p->layout));
        TRY(make_pair(t, &p->layout, stage, &t->slot, p));
    }
    return check_cover(t);
}

enum status transfer_plan_all_hash(const struct config *c, const struct draft_config *d, const struct topology *topo,
                                   const struct plan_options *o, uint64_t *hash_p)
{
    uint64_t h = 0;
    enum status st = ST_OK;
    int n_dst = topo->n_decode;
    struct layout src, *dst = mem_alloc((size_t)n_dst, sizeof *dst, "slot layouts");
    if (!dst) return ST_E_NOMEM;
    for (int i = 0; i < n_dst && st == ST_OK; i++) st = memory_slot_layout(c, d, topo, o, i, &dst[i]);
    for (int s = 0; s < topo->n_prefill && st == ST_OK; s++) {
        int stage = s / topo->prefill.tp;
        st = memory_source_layout(c, d, topo, o, stage, s % topo->prefill.tp, &src);
        if (st != ST_OK) break;
        for (int i = 0; i < n_dst && st == ST_OK; i++) {
            struct pair_plan p;
            st = transfer_plan_pair(c, d, &src, stage, stage == topo->prefill.pp - 1, &dst[i], o->stripe, &p);
            if (st != ST_OK) break;
            h = hash64(&p.hash, sizeof p.hash, h);
            transfer_plan_free(&p);
        }
        layout_free(&src);
    }
    for (int i = 0; i < n_dst; i++) layout_free(&dst[i]);
    mem_free(dst);
    if (st == ST_OK) *hash_p = h;
    return st;
}

struct hashing {
    const struct transfer *t;
    enum side side;
    const char *base;
    uint64_t h;
};

static enum status hash_run(void *ctx, const struct plan_run *run)
{
    struct hashing *x = ctx;
    const void *p = x->side == SIDE_SOURCE ? transfer_pack_look(x->t, run->src, run->bytes) : x->base + run->dst;
    x->h = hash64(p, (size_t)run->bytes, x->h);
    return ST_OK;
}

enum status transfer_hash_copy(const struct transfer *t, const struct peer *p, const struct plan_copy *copy,
                               enum side side, const char *base, int64_t src_item, int logical, uint64_t *h_p)
{
    struct hashing x = {t, side, base, *h_p};
    const struct layout *src = side == SIDE_SOURCE ? &t->source->layout : &p->layout;
    const struct layout *dst = side == SIDE_SOURCE ? &p->layout : &t->slot;
    TRY(transfer_plan_runs(&p->plan, copy, src, dst, src_item, logical, hash_run, &x));
    *h_p = x.h;
    return ST_OK;
}

enum status transfer_hash(const struct transfer *t, const struct peer *p, enum comp comp, enum side side, const char *base,
                          const int32_t *pages, int n_pages, int item, uint64_t *hash_p)
{
    *hash_p = 0;
    for (int k = 0; k < p->plan.n; k++) {
        const struct plan_copy *copy = &p->plan.copy[k];
        if (copy->comp != comp) continue;
        int n = comp_paged(comp) ? n_pages : 1;
        for (int i = 0; i < n; i++)
            TRY(transfer_hash_copy(t, p, copy, side, base, side == SIDE_DEST ? 0 : comp_paged(comp) ? pages[i] : item, i, hash_p));
    }
    return ST_OK;
}

/* ---- open ------------------------------------------------------------------------------------------------------ */

/* Windows of MPI_Win_allocate are files in /dev/shm; containers often give it 64 MB, and a file that does not fit ends in
 * SIGBUS or in a message about something else. */
static enum status check_shm(const struct transfer *t, int64_t node_bytes)
{
    static const char dir[] = "/dev/shm";
    struct statvfs v;
    if (t->opt.transport != TRANSPORT_RMA || t->opt.window != WINDOW_ALLOCATE || statvfs(dir, &v) != 0) return ST_OK;
    uint64_t have = (uint64_t)v.f_bavail * v.f_frsize;
    if ((uint64_t)node_bytes <= have) return ST_OK;
    return ERR(ST_E_CONFIG,
               "windows of the %d ranks of this host need %" PRId64 " bytes in %s, %" PRIu64
               " bytes are available; enlarge it, ask for "
               "fewer staging slots or shorter prompts, or use --window create",
               t->w->node_size, node_bytes, dir, have);
}

const char *transfer_osc(enum transport_kind transport)
{
    if (transport != TRANSPORT_RMA) return "none";
    const char *v = getenv("OMPI_MCA_osc"); /* what mpirun --mca osc says; otherwise the library decides for itself */
    return v && *v ? v : "default";
}

static enum status check_options(const struct transfer *t)
{
    if (t->w->topo.single) return ERR(ST_E_INTERNAL, "transfer: a single group moves nothing");
    if (t->n_slots < 1) return ERR(ST_E_CONFIG, "staging slots: %d; at least 1 is needed", t->n_slots);
    if (t->opt.plan.share.n && (t->opt.plan.share.n != t->n_decode || (!t->source && t->w->share == MPI_COMM_NULL)))
        return ERR(ST_E_INTERNAL, "transfer: sharing of %d decode ranks without world_nodes", t->opt.plan.share.n);
    if (t->opt.transport == TRANSPORT_RMA && t->opt.plan.share.n && strcmp(transfer_osc(TRANSPORT_RMA), "sm") == 0)
        return ERR(ST_E_CONFIG,
                   "--dedupe with the osc component forced to sm: it cannot expose memory that a node shares; leave the "
                   "component open or name another beside it (mpirun --mca osc sm,rdma), or use --transport sendrecv");
    if (t->opt.transport == TRANSPORT_RMA && t->opt.window == WINDOW_CREATE && strcmp(transfer_osc(TRANSPORT_RMA), "sm") == 0)
        return ERR(ST_E_CONFIG,
                   "--window create with the osc component forced to %s: it can only allocate; use --window allocate, or "
                   "another component (mpirun --mca osc rdma)",
                   transfer_osc(TRANSPORT_RMA));
    return ST_OK;
}

static enum status make_side(struct transfer *t)
{
    int prefill = t->w->role.role == ROLE_PREFILL;
    TRY(check_options(t));
    t->n_peers = prefill ? t->n_decode : t->n_prefill;
    t->peer = mem_alloc((size_t)t->n_peers, sizeof *t->peer, "peers");
    if (!t->peer) return ST_E_NOMEM;
    TRY(prefill ? source_peers(t) : dest_peers(t));
    if (prefill) {
        t->credit_bytes = credit_at(t, t->n_decode, 0);
        return ST_OK;
    }
    t->data_bytes = t->n_slots * t->slot_bytes;
    t->words_bytes = words_at(t, t->n_slots, 0, COMP_MLA);
    return ST_OK;
}

/* Slots are read by moves: page-locked where the backend and the memory allow it. What cannot be is said once. */
static enum status pin_slots(struct transfer *t)
{
    static int mine[2], all[2]; /* ranks whose slots are not pinned, ranks with slots */
    const char *why = NULL;
    char *begin = t->data, *end = t->data + t->data_bytes;
    MPI_Request r;
    enum status st = ST_OK;
    if (t->o && !t->source) {
        transfer_share_range(t, &begin, &end);
        st = t->o->pin(t->o, begin, (size_t)(end - begin), &why);
        if (st == ST_OK) t->pinned = begin;
    }
    mine[0] = st == ST_E_DEVICE;
    mine[1] = t->o && !t->source;
    TRY(world_agree(t->w, st == ST_E_DEVICE ? ST_OK : st));
    TRY(mpi_check(MPI_Iallreduce(mine, all, 2, MPI_INT, MPI_SUM, t->w->xfer, &r), "MPI_Iallreduce"));
    TRY(wait_all(&r, 1, NULL, NULL));
    if (mine[0] && (t->w->role.tp_rank == 0 || all[0] < all[1]))
        log_warn("slots of %d of %d decode ranks are not page-locked (%s): unpacking waits for its bytes", all[0], all[1], why);
    return ST_OK;
}

static enum status open_all(struct transfer *t)
{
    static int64_t mine, node; /* the reduction may outlive this call */
    enum status st = make_side(t);
    mine = transfer_window_bytes(t);
    MPI_Request r;
    TRY(mpi_check(MPI_Iallreduce(&mine, &node, 1, MPI_INT64_T, MPI_SUM, t->w->node, &r), "MPI_Iallreduce"));
    TRY(wait_all(&r, 1, NULL, NULL));
    if (st == ST_OK) st = check_shm(t, node);
    if (st == ST_OK) st = t->source ? transfer_source_open(t) : transfer_dest_open(t);
    if (st == ST_OK && t->source) st = transfer_pack_open(t);
    if (st == ST_OK) st = transfer_sums_open(t);
    TRY(world_agree(t->w, st));
    TRY(world_agree(t->w, transfer_share_open(t)));
    TRY(world_agree(t->w, t->via->open(t)));
    return pin_slots(t);
}

enum status transfer_open(struct world *w, const struct config *c, const struct draft_config *d,
                          const struct transfer_options *opt, const struct state *pools, struct transfer **t_p)
{
    struct transfer *t = mem_alloc(1, sizeof *t, "transfer");
    if (!t) return ST_E_NOMEM;
    t->w = w;
    t->c = c;
    t->d = d;
    t->opt = *opt;
    t->source = w->role.role == ROLE_PREFILL ? pools : NULL;
    t->o = pools ? pools->o : NULL;
    t->n_slots = opt->plan.staging_slots;
    t->n_prefill = w->topo.n_prefill;
    t->n_decode = w->topo.n_decode;
    t->piece_bytes = PIECE_BYTES;
    t->pack_bytes = PACK_BYTES;
    t->most_puts = MOST_PUTS;
    t->via = transports[opt->transport];
    enum status st = open_all(t);
    if (st != ST_OK) {
        transfer_close(t);
        return st;
    }
    if (w->rank == 0)
        log_info("transfer: %s, osc %s, %s windows, %d slots%s", t->via->name, transfer_osc(opt->transport),
                 opt->transport != TRANSPORT_RMA  ? "no"
                 : opt->window == WINDOW_ALLOCATE ? "allocated"
                                                  : "created",
                 t->n_slots, opt->plan.share.n ? ", rows and draft once a node" : "");
    *t_p = t;
    return ST_OK;
}

void transfer_close(struct transfer *t)
{
    if (!t) return;
    if (t->pinned) t->o->unpin(t->o, t->pinned);
    if (t->impl) t->via->close(t);
    transfer_pack_close(t);
    transfer_share_close(t);
    transfer_sums_close(t);
    transfer_source_close(t);
    transfer_dest_close(t);
    for (int i = 0; t->peer && i < t->n_peers; i++) {
        transfer_plan_free(&t->peer[i].plan);
        layout_free(&t->peer[i].layout);
    }
    mem_free(t->peer);
    layout_free(&t->slot);
    mem_free(t);
}

/* ---- small things ---------------------------------------------------------------------------------------------- */

enum status transfer_progress(struct transfer *t)
{
    for (int i = 0; !t->source && i < t->n_slots; i++) TRY(transfer_unpack_look(t, i));
    return t->via->progress(t);
}

void transfer_record(struct transfer *t, struct moves *m)
{
    t->moves = m;
}

int64_t transfer_window_bytes(const struct transfer *t)
{
    return t->data_bytes + t->words_bytes + t->credit_bytes + t->share_bytes;
}

int transfer_free_slots(const struct transfer *t)
{
    int n = 0;
    for (int i = 0; i < t->n_slots; i++) n += t->source ? !t->from[i].active : !t->to[i].granted && !t->to[i].unpack;
    return n;
}

struct transfer_count transfer_counts(const struct transfer *t, enum comp comp)
{
    return t->count[comp];
}

void transfer_table(const struct transfer *t)
{
    if (!t) return;
    if (t->source)
        transfer_source_table(t);
    else
        transfer_dest_table(t);
}
