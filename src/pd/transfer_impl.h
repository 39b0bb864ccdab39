/* transfer_impl - what the parts of transfer share; private to transfer*.c and their test.
 *
 * transfer.c opens and closes, transfer_source.c queues and settles, transfer_pack.c takes what lies on a device to host
 * memory for it, transfer_dest.c grants and checks words, transfer_unpack.c checks and unpacks slots, transfer_sums.c checks
 * entries and pages, transfer_share.c is what ranks of one node receive for one another; transfer_rma.c and
 * transfer_sendrecv.c carry bytes. Only those two, the sharing and the checksums call MPI. */
#ifndef PDFLASH_PD_TRANSFER_IMPL_H
#define PDFLASH_PD_TRANSFER_IMPL_H

#include "pd/transfer.h"

enum { PIECE_BYTES = 64 << 20, MOST_PUTS = 256 };
enum { LINE = sizeof(struct word_line), NAN_FILL = 0x7FC1 }; /* as BF16, and twice as FP32, a NaN no arithmetic makes */

struct transfer;

struct transport {
    const char *name;
    enum status (*open)(struct transfer *t); /* Collective on xfer */
    void (*close)(struct transfer *t);       /* Collective on xfer */
    enum status (*progress)(struct transfer *t);
    /* put - bytes of host memory to the slot memory of destination d at off; they stay as they are until a flush. *took_p:
     * how many were taken (the rest later: no room just now), *puts_p: transfers made of them. */
    enum status (*put)(struct transfer *t, int d, int64_t off, const void *from, int64_t bytes, int64_t *took_p, int *puts_p);
    /* flush - whatever was put to d is there before any word written later. */
    enum status (*flush)(struct transfer *t, int d);
    /* words - line[c] for every component c in mask (bit c): fields first, the word last. */
    enum status (*words)(struct transfer *t, int d, int slot, unsigned mask, const struct word_line line[COMP_N]);
    /* credit - this decode rank's word for the slot on source s. */
    enum status (*credit)(struct transfer *t, int s, int slot, uint64_t word);
    /* sync - make what others wrote visible to loads, and own stores to others. */
    enum status (*sync)(struct transfer *t);
};
extern const struct transport transfer_rma, transfer_sendrecv;

struct peer { /* a destination of this source, or a source of this destination */
    int rank;              /* in w->xfer */
    struct layout layout;  /* of the peer: slot layout, or source pool */
    struct pair_plan plan;
    int expected;          /* components in the plan */
    int max_runs;          /* of a request with the most pages */
};

struct queued { /* arena offset, offset in the slot; after: the fence behind which it is final (device arenas) */
    int64_t src, dst, bytes;
    uint64_t after;
    enum comp comp;
};

struct out { /* one source slot towards one destination */
    struct queued *run;    /* [peer.max_runs] */
    int n, issued;         /* issued: put, or handed to packing */
    int staged;            /* pieces being packed, or packed and not yet put */
    int unsettled;         /* puts since the last flush */
    int done;              /* last words are written: nothing is outstanding and none will start */
    unsigned touched;      /* components put since the last words, bit set */
    int64_t batch[COMP_N]; /* bytes put since the last words */
    struct word_line line[COMP_N];
    uint32_t parts[COMP_N];
    int stopped;           /* ABORT: what is queued is dropped, QUIET ends it */
    double due;            /* --inject delay: not before this moment of MPI_Wtime */
    int mark_n;            /* to take back what a refused call queued */
    int64_t mark_last;
};

struct source_slot {
    int active, final, failed, aborted;
    uint32_t generation;
    int request, state_slot, n_pages, pages_queued;
    struct out *out; /* [n_peers] */
};

struct expected { int peer; enum comp comp; }; /* one word a destination waits for */

struct dest_slot {
    int granted;      /* from grant to unpack */
    int owed;         /* the sources do not know of the grant yet: ranks of this node still read the slot */
    uint32_t before;  /* generation before this one */
    int ready;        /* transfer_ready said 1 */
    uint32_t generation;
    int request, n_pages;
    int64_t *want;    /* [n_expected] bytes */
    uint64_t unpack;  /* ticket of the move that still reads the slot; 0: none */
    uint32_t release; /* generation to release to lenders when it has ended */
    double done_s;
};

struct transfer {
    struct world *w;
    const struct config *c;
    const struct draft_config *d;
    struct transfer_options opt;
    const struct transport *via;
    const struct state *source; /* NULL on decode */
    struct ops *o;              /* of this rank's pools; NULL: not known before the first unpack */
    struct moves *moves;        /* record of packs and puts, or NULL */
    struct packing *packing;    /* sources whose arena is on a device: transfer_pack.c */
    struct buf unpacking;       /* decode: struct ops_run [OPS_MOVE_RUNS], the move being made, */
    int n_unpacking;            /* ... its runs so far, */
    uint64_t unpack_after;      /* ... and the fence it waits for */
    void *pinned;               /* slot memory that moves read without waiting; NULL: none */
    struct layout slot;         /* decode: this rank's slot layout */
    int64_t slot_bytes;         /* decode: of this rank; offsets on another rank come from its layout */
    int n_slots, max_pages, n_prefill, n_decode;
    int n_peers;
    struct peer *peer;
    struct source_slot *from; /* [n_slots] on prefill */
    struct dest_slot *to;     /* [n_slots] on decode */
    int n_expected;
    struct expected *expected;
    struct transfer_count count[COMP_N];
    int flipped;          /* --inject flip is done */
    struct sums *sums;    /* --verify: transfer_sums.c */
    int64_t piece_bytes;  /* most bytes of one put; counts of MPI are int */
    int64_t pack_bytes;   /* most bytes of one pack */
    int most_puts;        /* to one destination between flushes: some components keep a request for each */
    uint64_t shared[COMP_N]; /* bytes read from slots of other ranks of the node */
    struct sharing *sharing; /* decode ranks with --dedupe */
    /* memory others write to; with sharing data is that of sharing */
    char *data, *words, *credit;
    int64_t data_bytes, words_bytes, credit_bytes, share_bytes;
    void *impl; /* of the transport */
};

/* place of the line (slot, source world rank, component) in the words memory, and of a credit, bytes */
static inline int64_t words_at(const struct transfer *t, int slot, int source, enum comp comp)
{
    return (((int64_t)slot * t->n_prefill + source) * COMP_N + (int)comp) * LINE;
}
static inline int64_t credit_at(const struct transfer *t, int decode_tp_rank, int slot)
{
    return ((int64_t)decode_tp_rank * t->n_slots + slot) * LINE;
}
/* a word that another process writes */
static inline uint64_t word_load(const void *p)
{
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
}

/* transfer_hash - chained hash64 over the runs of a pair and component in plan order (copy by copy, pages ascending).
 * base: memory of side; on the source side pages and item name the source's items. */
enum side { SIDE_SOURCE, SIDE_DEST };
enum status transfer_hash(const struct transfer *t, const struct peer *p, enum comp comp, enum side side, const char *base,
                          const int32_t *pages, int n_pages, int item, uint64_t *hash_p);
/* transfer_hash_copy - the same for one copy and one logical page, chained onto *h_p. src_item: page or state slot of
 * the source; a destination, which knows none, gives 0: which one does not change a run's shape. */
enum status transfer_hash_copy(const struct transfer *t, const struct peer *p, const struct plan_copy *copy,
                               enum side side, const char *base, int64_t src_item, int logical, uint64_t *h_p);
static inline int comp_paged(enum comp c)
{
    return c == COMP_MLA || c == COMP_DRAFT;
}
enum status transfer_source_open(struct transfer *t);
void transfer_source_close(struct transfer *t);
void transfer_source_table(const struct transfer *t);
enum status transfer_dest_open(struct transfer *t);
void transfer_dest_close(struct transfer *t);
void transfer_dest_table(const struct transfer *t);
/* ST_E_INTERNAL on a prefill rank, ST_E_RANGE; what names the call. The line of an expected word. */
enum status transfer_find_slot(const struct transfer *t, int slot, const char *what);
struct word_line *transfer_line(const struct transfer *t, int slot, const struct expected *e);
/* transfer_put - put some of a run and count it; begin: when, on the run's clock. The time it takes is the caller's to add. */
enum status transfer_put(struct transfer *t, int slot, int d, enum comp comp, int64_t dst, const void *from, int64_t bytes,
                         double begin, int64_t *took_p);
/* --inject delay: the last run to d is not through yet */
int transfer_held_back(const struct transfer *t, int slot, int d);

/* transfer_pack.c: a device arena's runs on their way through host memory. Nothing without such an arena.
 * add: *took_p bytes of the run are part of the next pack (0: no room just now). run: begin that pack, put the pieces whose
 * pack has ended, drop those whose destination wants no more of the request. settled: what was put to d may be overwritten. */
enum status transfer_pack_open(struct transfer *t);
void transfer_pack_close(struct transfer *t);
int64_t transfer_pack_add(struct transfer *t, int slot, int d, const struct queued *q);
enum status transfer_pack_run(struct transfer *t);
void transfer_pack_settled(struct transfer *t, int slot, int d);
/* host copy of [at, at + bytes) of the arena, waited for: the arena itself where it is host memory (verification) */
const void *transfer_pack_look(const struct transfer *t, int64_t at, int64_t bytes);

/* transfer_unpack.c. entry: one entry's items from the slot memory at from to the pools, scanned for NaN when verifying;
 * begun with the next transfer_unpack_begin at the latest. look: what is to be said when a slot's unpacking has ended. */
enum status transfer_unpack_entry(struct transfer *t, int slot, const struct layout_entry *e, const char *from,
                                  struct state *s, int state_slot);
enum status transfer_unpack_look(struct transfer *t, int slot);
/* transfer_tell - credit to all sources of the slot: what is said after a grant ends what was owed */
enum status transfer_tell(struct transfer *t, int slot, enum word_state state, uint32_t count);
char *transfer_aux_of(const struct transfer *t, int slot);

/* transfer_share - all of it does nothing without sharing or on prefill ranks.
 * open: t->data. Collective on w->share. publish: tell readers of this rank's slot what state its components have (NONE:
 * nothing yet). seen: *waiting_p, *failed_p |= what this rank's lenders say. release: slots of other ranks are not read any
 * more for this generation. free: nobody reads this rank's slot of this generation any more. unpack: what lies elsewhere. */
enum status transfer_share_open(struct transfer *t);
void transfer_share_close(struct transfer *t); /* Collective on w->share */
enum status transfer_share_sync(struct transfer *t);
void transfer_share_publish(struct transfer *t, int slot, const enum word_state state[COMP_N]);
void transfer_share_seen(const struct transfer *t, int slot, int *waiting_p, int *failed_p);
void transfer_share_release(struct transfer *t, int slot, uint32_t generation);
int transfer_share_free(const struct transfer *t, int slot, uint32_t generation);
enum status transfer_share_unpack(struct transfer *t, int slot, struct state *s, int state_slot);
void transfer_share_table(const struct transfer *t, int slot);
/* the memory that slots of this rank and of its lenders lie in: widens [*begin_p, *end_p) */
void transfer_share_range(const struct transfer *t, char **begin_p, char **end_p);

/* transfer_sums.c: checksums by entry and page. send: source, when all is queued. take: destination, while it waits.
 * check: destination, before unpacking; ST_E_FAULT names component, layer, page and rank. Nothing without --verify. */
enum status transfer_sums_open(struct transfer *t);
void transfer_sums_close(struct transfer *t);
enum status transfer_sums_send(struct transfer *t, int slot);
enum status transfer_sums_take(struct transfer *t, int slot);
enum status transfer_sums_check(struct transfer *t, int slot);

#endif
