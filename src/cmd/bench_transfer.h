/* bench_transfer - what the measuring and the printing of `pdflash bench transfer` share; private to them. */
#ifndef PDFLASH_CMD_BENCH_TRANSFER_H
#define PDFLASH_CMD_BENCH_TRANSFER_H

#include "cmd/bench.h"
#include "cmd/options.h"
#include "pd/transfer.h"

enum { LAYERS = 2, DIM = 128, ELEMENT = 2, MAX_SIZES = 16, PACK_MOST = 8 << 20 };

/* seconds of a repetition; of the plain copies seconds a byte: device to host of a source, host to device of a destination */
enum leg { LEG_QUEUE, LEG_PUT, LEG_PACK, LEG_COPY, LEG_UNPACK, LEG_PUT_CPU, LEG_COPY_CPU, LEG_PLAIN_OUT, LEG_PLAIN_IN, N_LEGS };

struct shape {
    const char *name;
    int sliced, in_order;
    enum page_order order;
};

struct marked_ops { /* the backend under another mem_new */
    struct ops ops; /* first: the transfer sees only this */
    struct ops *inner;
};

struct transfer_bench {
    struct options o;
    struct world w;
    struct ops backend;
    struct marked_ops marked;
    int n_sizes, kib[MAX_SIZES];
    int source; /* this rank is one */
    /* the case */
    const struct shape *shape;
    int64_t page_bytes; /* of one head */
    int packed, n_pages;
    struct config c;
    struct draft_config d;
    struct transfer_options opt;
    struct state s;
    int slot;
    struct transfer *t;
    struct plan_run *run; /* every run of this source, dst counted over all destinations */
    int64_t n_runs, bytes, draft_bytes, draft_runs;
    struct buf host, copy; /* what memcpy reads when the arena is on a device; where it writes */
    struct ops_run move[OPS_MOVE_RUNS];
    double leg[N_LEGS][BENCH_REPS_MAX];
};

/* bench_transfer_head - what is measured. bench_transfer_case - one line of the table, or one object of the JSON list. */
void bench_transfer_head(const struct transfer_bench *b);
void bench_transfer_case(const struct transfer_bench *b, int first);

#endif
