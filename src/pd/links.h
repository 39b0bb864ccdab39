/* links - over what the groups of a run communicate, decided once on all ranks, before weights are read.
 *
 * NCCL serves the groups whose ranks have a device each: TP groups and the decode group (sums), and columns of the
 * pipeline (hand-off). Each group is looked at by itself: prefill and decode may share every GPU of a host. What NCCL
 * cannot serve goes through MPI and host memory, which is said once, with the reason. */
#ifndef PDFLASH_PD_LINKS_H
#define PDFLASH_PD_LINKS_H

#include "pd/devices.h"

enum links_want { LINKS_AUTO, LINKS_HOST, LINKS_NCCL };

struct links {
    struct devices devices;
    struct nccl *nccl; /* NULL: not used */
    int tp, pp;        /* this rank's TP group, its column of the pipeline: 1 over NCCL; the same on all their ranks */
    enum sums_via *sums; /* [ranks] how the TP group of each rank adds up, for the plan */
    int must;          /* asked for by name: no other path instead */
};

/* links_open - after world_split; o is open on every rank. LINKS_NCCL: ST_E_CONFIG on all ranks when a group has ranks
 * that share a device (after the list of all such pairs), when there is no library, or no device memory. Collective on
 * all.
 * links_close - after the communicators of coll and stage are closed. Local. */
enum status links_open(struct world *w, struct ops *o, enum links_want want, struct links *l_p);
void links_close(struct links *l);

#endif
