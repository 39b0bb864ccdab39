/* nccl - NCCL moves what lies in device memory from GPU to GPU: sums of a TP group and the hand-off between stages.
 *
 * The library is loaded when it is wanted (libnccl.so.2, 2.14 or newer), so no build needs its headers, and a machine
 * without it runs over MPI. Environment PDFLASH_NCCL names another file; a stand-in of the tests that moves host memory
 * too says so by a symbol (NCCL_STAND_IN), and names a device of its own for this process.
 * NCCL_NVLS_ENABLE is 0 unless the user sets it: multicast memory has hung drivers.
 *
 * Waiting: communicators do not block. What NCCL calls begin is over when the queue is; the host waits only where NCCL
 * says that a call is still in progress (at start-up), politely and under the watchdog. A failure of one communicator
 * aborts all of this process, so that its queues end and the host that waits for them goes on to the next check.
 * Order: on every communicator all ranks begin the same calls in the same order; calls of one group, nccl_begin to
 * nccl_end, go at once.
 * Counts are FP32 values in backend memory. Source: NCCL user guide, "Fault Tolerance", "Group Calls". */
#ifndef PDFLASH_PD_NCCL_H
#define PDFLASH_PD_NCCL_H

#include <mpi.h>

#include "ops/ops.h"

struct nccl;      /* the library; opaque */
struct nccl_comm; /* a communicator; opaque */

enum { NCCL_WHY = 512 };
#define NCCL_STAND_IN "pdflash_nccl_device" /* int (unsigned char uuid[16]) */

/* nccl_load - ST_OK; or ST_E_CONFIG, and why not in words, when there is no usable library (not logged: a caller may do
 * without). Local. nccl_unload - abort what is left. */
enum status nccl_load(struct nccl **n_p, char why[NCCL_WHY]);
void nccl_unload(struct nccl *n);
int nccl_version(const struct nccl *n);      /* e.g. 22705 for 2.27.5 */
const char *nccl_file(const struct nccl *n); /* as loaded */
/* nccl_stand_in - the library moves host memory; uuid: the device it gives this process. 0: a real one. */
int nccl_stand_in(const struct nccl *n, unsigned char uuid[16]);

/* nccl_join - a communicator of all ranks of comm, each with a device of its own. ST_E_DEVICE on all of them when one
 * cannot, and why (not logged); ST_E_MPI, ST_E_WATCHDOG. comm stays the caller's. Collective on comm. */
enum status nccl_join(struct nccl *n, MPI_Comm comm, struct nccl_comm **c_p, char why[NCCL_WHY]);
/* nccl_leave - after all queues with its calls are over; c NULL is legal. Collective on the communicator. */
void nccl_leave(struct nccl_comm *c);
/* nccl_abort_all - give up every communicator: their device work ends at once, with wrong values. Local. */
void nccl_abort_all(struct nccl *n);

/* nccl_begin, nccl_end - a group of calls, which stand nowhere else. Their errors come with nccl_end, which also waits
 * until NCCL has taken them (idle as in wait_all); ST_E_DEVICE, ST_E_WATCHDOG. Each is Collective on the communicator,
 * or with the peer. queue: NULL or what ops_queues gave. */
void nccl_begin(struct nccl_comm *c);
enum status nccl_end(struct nccl_comm *c, enum status (*idle)(void *), void *ctx);
void nccl_send(struct nccl_comm *c, const float *p, int64_t n, int peer, void *queue);
void nccl_recv(struct nccl_comm *c, float *p, int64_t n, int peer, void *queue);
/* nccl_all_gather - out[rank * n ..): n values of each rank; p may be its place in out. */
void nccl_all_gather(struct nccl_comm *c, const float *p, float *out, int64_t n, void *queue);
/* nccl_bcast - n values of root to all, in place. */
void nccl_bcast(struct nccl_comm *c, float *p, int64_t n, int root, void *queue);
/* nccl_all_reduce - NCCL's own sum, for measurements only: its order of adding is not ours. bf16: of BF16 values. */
void nccl_all_reduce(struct nccl_comm *c, void *p, int64_t n, int bf16, void *queue);

/* nccl_watch - let the backend look after the communicators and the watchdog while the host waits for its queue.
 * Calls ops.guard (see ops.h). n must live as long as o is used. */
void nccl_watch(struct nccl *n, struct ops *o);

#endif
