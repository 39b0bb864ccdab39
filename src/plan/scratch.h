/* scratch - what a rank with a device takes beside weights, state and activations: room for the sums of its group and
 * for the operations, on the device, and for packing what it sends, in host memory. Pure arithmetic. Local.
 *
 * The plan counts with these functions and pd/coll*.c and pd/transfer_pack.c allocate with them; the CUDA backend has
 * its own numbers, which OPS_* repeat. */
#ifndef PDFLASH_PLAN_SCRATCH_H
#define PDFLASH_PLAN_SCRATCH_H

#include "plan/memory.h"

enum {
    SUM_SLICE = 16,       /* elements: what the slices of a sum are multiples of */
    SUM_FEW = 1 << 20,    /* gathered values up to which NCCL makes one exchange: 4 MiB, about 10 us over NVLink */
    SUM_MOST = 64 << 20,  /* values of a rank in one piece of a sum over NCCL: 256 MiB, about 0.6 ms over NVLink */
    SLOT_MOST = 16 << 20, /* bytes of a rank in one piece through the host: copying takes a hundred times a meeting */
    PACK_BYTES = 8 << 20, /* most bytes of a pack */
    PACK_MOVES = 4,       /* packs that the ring holds */
    OPS_LINEAR_ROWS = 8192,  /* most rows of one product, */
    OPS_MOE_BYTES = 1 << 30, /* most bytes of routed experts, */
    OPS_FIXED = 64 << 20     /* and bytes that do not depend on sizes: cuBLASLt's, rings of arrays, graphs */
};

/* scratch_sum_values - floats of the largest set of partials that a rank contributes to one sum of that many rows. */
int64_t scratch_sum_values(const struct config *c, const struct group *g, int64_t rows);
/* scratch_slot_bytes - a rank's piece of an exchange through the host. scratch_sum_bytes - device memory of the sums of
 * a group of `size` ranks; 0 for a rank alone or without a device. What is larger than SLOT_MOST or SUM_MOST goes in
 * pieces: the partials of 8192 rows of Kimi-K3 would take 3.5 GiB. */
int64_t scratch_slot_bytes(int64_t max_values);
int64_t scratch_sum_bytes(enum sums_via via, int64_t max_values, int size);

/* scratch_ops_bytes - device memory that operations of this rank work in, at most: one of them at a time, so the
 * largest of products, routed experts and chunked KDA; with o->expanded also keys and values of the longest prompt. Not
 * in it: what the driver and NCCL take for themselves. */
int64_t scratch_ops_bytes(const struct config *c, const struct draft_config *d, const struct topology *t,
                          const struct plan_options *o, struct rank_role r);

/* scratch_pack_bytes - the ring of a prefill rank whose state is on a device: every byte that all slots could send, up
 * to a few packs. As transfer_plan_pair and the layouts of memory.h. */
enum status scratch_pack_bytes(const struct config *c, const struct draft_config *d, const struct topology *t,
                               const struct plan_options *o, int stage, int tp_rank, int64_t *bytes_p);

#endif
