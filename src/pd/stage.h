/* stage - the hand-off between pipeline stages: prefix, bank rows and the partial accumulator of one chunk.
 *
 * Each chunk crosses as one header and a payload of (1 + bank rows + accumulator) x rows x hidden FP32 values. The
 * receiver checks sequence number, request, position and token count against the order it is executing before it
 * touches the payload. Sends are asynchronous from one of `depth` flows, so a stage computes the next chunk while the
 * last one is on its way; a flow is reused only after its send completed.
 * Flows in device memory cross over NCCL, from GPU to GPU, where both have one for themselves: each hop has a
 * communicator and a queue of its own, the header goes by MPI ahead of its chunk, and a flow is used again behind its
 * send by order of the queues, not by waiting. Else they cross through host copies, one per flow, made at stage_open.
 * Point to point on the pp communicator (rank = stage). Source: pd-systems 3.5. */
#ifndef PDFLASH_PD_STAGE_H
#define PDFLASH_PD_STAGE_H

#include <mpi.h>

#include "model/target.h"
#include "pd/nccl.h"
#include "pd/order.h"

struct stage_link; /* opaque */

struct stage_header {
    int64_t seq;         /* number of the CHUNK order */
    int32_t request, pos0, rows, n_bank, hidden;
    uint32_t taps;       /* what the accumulator holds, as in struct flow; 0: it does not cross */
    double first_chunk_s; /* run time at which stage 0 began the request */
    double work_s;       /* seconds this stage and those before it were at work so far */
};

struct stage_counts { uint64_t messages, bytes; double wait_s; };

/* stage_open - depth flows of cap_rows rows each. pp MPI_COMM_NULL or size 1: no neighbours (flows only). n: hand over
 * by NCCL, NULL: MPI; a hop whose communicator cannot be made takes MPI, which is said, or with must is ST_E_DEVICE.
 * Collective on pp with n, else Local; stage_close likewise. */
enum status stage_open(MPI_Comm pp, struct ops *o, const struct config *c, int cap_rows, int depth, struct nccl *n,
                       int must, struct stage_link **l_p);
void stage_close(struct stage_link *l);
/* stage_flow - the next flow to fill, free of pending sends (waits for the oldest send). idle is called while waiting. */
enum status stage_flow(struct stage_link *l, struct flow **f_p, enum status (*idle)(void *), void *ctx);
/* stage_receive - fill f with the chunk `o` from the stage before. ST_E_FAULT on a header that does not fit the order. */
enum status stage_receive(struct stage_link *l, const struct order *o, struct flow *f, struct stage_header *h_p,
                          enum status (*idle)(void *), void *ctx);
/* stage_send - start sending f (from stage_flow) to the next stage; returns at once. Call it on the last stage too,
 * where it says that f is done with. */
enum status stage_send(struct stage_link *l, const struct order *o, struct flow *f, int rows, double first_chunk_s,
                       double work_s, enum status (*idle)(void *), void *ctx);
/* stage_drain - wait for all sends. */
enum status stage_drain(struct stage_link *l);
struct stage_counts stage_counts(const struct stage_link *l);
const char *stage_name(const struct stage_link *l); /* "nccl", "mpi", "none" (no neighbours) */

#endif
