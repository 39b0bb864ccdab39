/* devices - which rank has which GPU: the choice on a host, who shares one, and whether what they need fits.
 *
 * A rank takes the device of its number on the host modulo the devices it sees; one that sees a single device takes it.
 * Devices are compared by UUID over all hosts. */
#ifndef PDFLASH_PD_DEVICES_H
#define PDFLASH_PD_DEVICES_H

#include "pd/nccl.h"
#include "pd/world.h"
#include "plan/memory.h"

struct device_seat { /* of one world rank */
    char host[64];
    struct ops_device d; /* total 0: the memory is the host's */
};
struct devices {
    int n;                     /* world ranks */
    struct device_seat *seat;  /* [n] */
};

/* devices_choose - ordinal of the device for a rank that sees n. Local. */
int devices_choose(int node_rank, int n);
/* devices_gather - what every rank has; n NULL or a real library: o says so, else the stand-in. ST_E_DEVICE.
 * Collective on all. */
enum status devices_gather(struct world *w, struct ops *o, const struct nccl *n, struct devices *d_p);
void devices_free(struct devices *d);

/* devices_conflict - of the ranks first, first + step ... (count of them) the next after number *i_p (begin with 0) that
 * has the device of an earlier one: 1, and both. Local. */
int devices_conflict(const struct devices *d, int first, int step, int count, int *i_p, int *a_p, int *b_p);

/* devices_uuid - "GPU-..." as the vendor's tools write it. Returns text. */
const char *devices_uuid(const struct device_seat *s, char text[48]);
/* devices_fit - the device memory that all ranks of each GPU need together against what is free there: ST_E_CONFIG on
 * every rank, naming GPU, ranks and bytes. Nothing to check without device memory. Local. */
enum status devices_fit(const struct world *w, const struct devices *d, const struct config *c,
                        const struct draft_config *draft, const struct plan_options *o);

#endif
