/* control - carries the order log from the scheduler to the prefill ranks, and reports back to it.
 *
 * Point to point on the ctrl communicator. The leader (decode rank 0) sends each batch of orders to every prefill
 * rank; decode ranks get theirs through the decode group's broadcast. A batch without orders is a sign of life: idle
 * ranks do not mistake a long decode phase for a hang. */
#ifndef PDFLASH_PD_CONTROL_H
#define PDFLASH_PD_CONTROL_H

#include "pd/order.h"
#include "pd/world.h"

enum { CONTROL_BATCH = 32 }; /* orders per message */
enum { CONTROL_NONE = -1, CONTROL_FAREWELL = -2 };

struct control; /* opaque */

enum report_kind { REPORT_READY, REPORT_FAILED, REPORT_QUIET };
struct control_report { /* what a decode rank says about one life of a slot */
    int32_t kind, slot;
    uint32_t generation;
    int32_t tp_rank;
    int32_t source;  /* FAILED: world rank that gave the request up */
    int32_t reserved;
    int64_t tick;    /* turn of the decode group in which it was seen */
};

enum status control_open(struct world *w, struct control **c_p);
void control_close(struct control *c);
/* control_post - leader: send n (0 .. CONTROL_BATCH) orders to every prefill rank; returns at once unless many batches
 * are still on their way. */
enum status control_post(struct control *c, const struct order *o, int n);
/* control_alive - leader: a sign of life if nothing was posted for `seconds`. */
enum status control_alive(struct control *c, double seconds);
/* control_farewell - leader: the run ends by the watchdog; every prefill rank shall say what it waits for. */
enum status control_farewell(struct control *c);
/* control_poll - prefill: next batch if one has arrived. *n_p = CONTROL_NONE, CONTROL_FAREWELL, or orders received (0:
 * sign of life). */
enum status control_poll(struct control *c, struct order o[CONTROL_BATCH], int *n_p);
/* control_report - decode rank to leader; tp_rank is filled in. control_next_report - leader: *got_p 1 and a report, or
 * 0. */
enum status control_report(struct control *c, const struct control_report *r);
enum status control_next_report(struct control *c, struct control_report *r_p, int *got_p);
/* control_drain - complete all sends. */
enum status control_drain(struct control *c);

#endif
