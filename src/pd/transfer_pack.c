/* Packing: MPI gets host addresses only, so state on a device goes through page-locked memory of this rank, a ring.
 *
 * A pack is one move of the backend: runs of one or more requests and destinations, up to pack_bytes, behind one fence of
 * the computation. What goes to one place together is a piece, however scattered it was, and is put at once. A piece's bytes
 * are free again when it was put and flushed, or when nobody wants it any more; the ring gives them back in its own order.
 * Nothing here waits for the device. Last words wait for all pieces of their destination (out.staged). */
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "pd/transfer_impl.h"
#include "plan/scratch.h"

enum { PIECES = 4096, PIECE_MOST = 1 << 20, ALIGN = 16 };
enum { TURN_BYTES = 8 << 20 }; /* put in one turn: the computation waits for the processor meanwhile */

enum stage { IN_PACK, PUT, FREE };

struct piece {
    int slot, d;
    enum comp comp;
    enum stage stage;
    uint64_t ticket;       /* of its pack; 0: not begun */
    int64_t at, dst, bytes; /* in the ring's memory, in the slot; what is not yet put */
    int64_t end;           /* of all its bytes, as the ring counts */
};

struct packing {
    struct buf mem, look;  /* host: the ring; one item (verification) */
    int pinned;            /* the ring is */
    int64_t taken, freed;  /* bytes of the ring so far; taken - freed <= mem.bytes */
    struct piece *piece;   /* [PIECES], a ring */
    unsigned first, n;
    struct ops_run *run;   /* [OPS_MOVE_RUNS] of the pack being made */
    int n_run, n_open;     /* n_open: pieces of it, the last ones */
    int64_t run_bytes;
    uint64_t after, ended; /* ended: the last ticket known to have */
    uint64_t recorded;     /* the last ticket whose times are */
};

static int64_t item_bytes(const struct layout *l)
{
    int64_t n = 0;
    for (int i = 0; i < l->n; i++) n = l->entry[i].item_bytes > n ? l->entry[i].item_bytes : n;
    return n;
}

enum status transfer_pack_open(struct transfer *t)
{
    if (t->source->arena.place != PLACE_DEVICE) return ST_OK;
    struct packing *p = t->packing = mem_alloc(1, sizeof *p, "packing");
    const struct rank_role *r = &t->w->role;
    const char *why = NULL;
    int64_t bytes;
    if (!p) return ST_E_NOMEM;
    TRY(scratch_pack_bytes(t->c, t->d, &t->w->topo, &t->opt.plan, r->stage, r->tp_rank, &bytes));
    TRY(buf_alloc(&p->mem, (size_t)bytes, "packed state"));
    if (t->opt.verify) TRY(buf_alloc(&p->look, (size_t)item_bytes(&t->source->layout), "copy of a run"));
    p->piece = mem_alloc(PIECES, sizeof *p->piece, "packed pieces");
    p->run = mem_alloc(OPS_MOVE_RUNS, sizeof *p->run, "runs of a pack");
    if (!p->piece || !p->run) return ST_E_NOMEM;
    enum status st = t->o->pin(t->o, p->mem.p, p->mem.bytes, &why);
    p->pinned = st == ST_OK;
    if (st == ST_E_DEVICE) log_warn("packed state is not page-locked (%s): every pack waits for its bytes", why);
    return st == ST_E_DEVICE ? ST_OK : st;
}

void transfer_pack_close(struct transfer *t)
{
    struct packing *p = t->packing;
    if (!p) return;
    if (p->pinned) t->o->unpin(t->o, p->mem.p);
    buf_free(&p->mem);
    buf_free(&p->look);
    mem_free(p->piece);
    mem_free(p->run);
    mem_free(p);
    t->packing = NULL;
}

int64_t transfer_pack_bytes(const struct transfer *t)
{
    return t->packing ? (int64_t)t->packing->mem.bytes : 0;
}

/* ---- into the ring ------------------------------------------------------------------------------------------- */

static struct piece *piece_at(struct packing *p, unsigned i)
{
    return &p->piece[(p->first + i) % PIECES];
}

/* the backend may have no room just now: the pack then stays as it is */
static int begin_pack(struct transfer *t)
{
    struct packing *p = t->packing;
    if (p->n_run == 0) return 1;
    uint64_t ticket = t->o->pack(t->o, p->run, p->n_run, p->after);
    if (!ticket) return 0;
    for (int i = 0; i < p->n_open; i++) piece_at(p, p->n - 1 - (unsigned)i)->ticket = ticket;
    p->n_run = p->n_open = 0;
    p->run_bytes = 0;
    return 1;
}

/* room for up to bytes that lie together, *at_p their place; 0: none just now */
static int64_t take(struct packing *p, int64_t bytes, int64_t most, int64_t *at_p)
{
    int64_t size = (int64_t)p->mem.bytes, begin = (p->taken + ALIGN - 1) / ALIGN * ALIGN, at = begin % size;
    int64_t room = p->freed + size - begin, n = bytes < most ? bytes : most;
    if (n > size - at) n = size - at;
    if (n > room) n = room;
    if (n < bytes) n = n / ALIGN * ALIGN; /* what follows is aligned as the run is */
    if (n <= 0) return 0;
    p->taken = begin + n;
    *at_p = at;
    return n;
}

/* the open piece that these bytes continue in both places, or a new one */
static void add_piece(struct packing *p, int slot, int d, enum comp comp, int64_t at, int64_t dst, int64_t bytes)
{
    struct piece *last = p->n_open ? piece_at(p, p->n - 1) : NULL;
    if (last && last->slot == slot && last->d == d && last->comp == comp && last->at + last->bytes == at &&
        last->dst + last->bytes == dst && last->bytes + bytes <= PIECE_MOST) {
        last->bytes += bytes;
        last->end = p->taken;
        return;
    }
    *piece_at(p, p->n++) = (struct piece){slot, d, comp, IN_PACK, 0, at, dst, bytes, p->taken};
    p->n_open++;
}

int64_t transfer_pack_add(struct transfer *t, int slot, int d, const struct queued *q)
{
    struct packing *p = t->packing;
    int64_t at;
    int full = p->n_run == OPS_MOVE_RUNS || p->run_bytes + ALIGN > t->pack_bytes || q->after != p->after;
    if (p->n_run && full && !begin_pack(t)) return 0;
    if (p->n == PIECES) return 0;
    int open = p->n_open;
    int64_t most = t->pack_bytes - p->run_bytes, n = take(p, q->bytes, most < PIECE_MOST ? most : PIECE_MOST, &at);
    if (!n) return 0;
    p->after = q->after;
    p->run[p->n_run++] = (struct ops_run){(char *)p->mem.p + at, (void *)((uintptr_t)t->source->arena.p + (uintptr_t)q->src), n};
    p->run_bytes += n;
    add_piece(p, slot, d, q->comp, at, q->dst, n);
    t->from[slot].out[d].staged += p->n_open > open;
    return n;
}

/* ---- out of the ring ----------------------------------------------------------------------------------------- */

static void give_back(struct packing *p)
{
    while (p->n && piece_at(p, 0)->stage == FREE) {
        p->freed = piece_at(p, 0)->end;
        p->first = (p->first + 1) % PIECES;
        p->n--;
    }
}

static int ended(struct transfer *t, uint64_t ticket)
{
    struct packing *p = t->packing;
    if (ticket > p->ended && t->o->moved(t->o, ticket)) p->ended = ticket;
    return ticket && ticket <= p->ended;
}

/* pieces of a pack lie together; the first one looked at after it ended records it */
static void record_pack(struct transfer *t, unsigned at)
{
    struct packing *p = t->packing;
    const struct piece *x = piece_at(p, at);
    int64_t bytes = 0;
    double s[2];
    if (!t->moves || x->ticket <= p->recorded) return;
    p->recorded = x->ticket;
    for (unsigned i = at; i < p->n && piece_at(p, i)->ticket == x->ticket; i++) bytes += piece_at(p, i)->bytes;
    t->o->move_s(t->o, x->ticket, s);
    moves_add(t->moves, MOVE_PACK, t->from[x->slot].request, bytes, s);
}

static enum status put_piece(struct transfer *t, struct piece *x, int64_t *turn)
{
    const struct source_slot *s = &t->from[x->slot];
    struct out *o = &s->out[x->d];
    int64_t took = 0;
    if (s->failed || o->stopped) { /* the pack that might still have read the request has ended */
        x->stage = FREE;
        o->staged--;
        return ST_OK;
    }
    if (transfer_held_back(t, x->slot, x->d)) return ST_OK;
    double begin = world_now(t->w), span[2] = {moves_now(), 0};
    TRY(transfer_put(t, x->slot, x->d, x->comp, x->dst, (char *)t->packing->mem.p + x->at, x->bytes, begin, &took));
    o->line[x->comp].seconds += world_now(t->w) - begin;
    span[1] = moves_now();
    if (took) moves_add(t->moves, MOVE_PUT, s->request, took, span);
    x->at += took;
    x->dst += took;
    x->bytes -= took;
    *turn += took;
    if (x->bytes > 0) { /* the transport has no room just now, for nobody */
        *turn = TURN_BYTES;
        return ST_OK;
    }
    x->stage = PUT;
    o->staged--;
    return ST_OK;
}

enum status transfer_pack_run(struct transfer *t)
{
    struct packing *p = t->packing;
    if (!p) return ST_OK;
    int64_t turn = 0;
    begin_pack(t);
    for (unsigned i = 0; i < p->n && turn < TURN_BYTES; i++) {
        struct piece *x = piece_at(p, i);
        if (x->stage != IN_PACK) continue;
        if (!ended(t, x->ticket)) break; /* packs end in order */
        record_pack(t, i);
        TRY(put_piece(t, x, &turn));
    }
    give_back(p);
    return ST_OK;
}

void transfer_pack_settled(struct transfer *t, int slot, int d)
{
    struct packing *p = t->packing;
    for (unsigned i = 0; p && i < p->n; i++) {
        struct piece *x = piece_at(p, i);
        if (x->stage == PUT && x->slot == slot && x->d == d) x->stage = FREE;
    }
    if (p) give_back(p);
}

const void *transfer_pack_look(const struct transfer *t, int64_t at, int64_t bytes)
{
    const struct state *s = t->source;
    const void *from = (const void *)((uintptr_t)s->arena.p + (uintptr_t)at);
    if (!t->packing) return from;
    s->o->get(s->o, t->packing->look.p, from, (size_t)bytes);
    return t->packing->look.p;
}
