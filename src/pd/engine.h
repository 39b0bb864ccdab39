/* engine - this rank's share of the model, its state pools and its TP collectives, built from the plan. */
#ifndef PDFLASH_PD_ENGINE_H
#define PDFLASH_PD_ENGINE_H

#include "pd/order.h"
#include "pd/run.h"

struct engine {
    struct coll *coll;
    struct tp_comm comm;
    struct state state;
    struct target *t;
    struct draft *d;            /* NULL without speculation */
    struct prefill_stage stage; /* used by prefill ranks and by single mode */
    int chunk_rows;             /* rows of the largest prefill chunk; 0 when this rank never prefills */
};

/* engine_open - collectives, weights, pools, draft for this rank's role. Collective on w->tp, and so is engine_close:
 * after a failure the ranks first agree that there was one, then all close. */
enum status engine_open(struct world *w, const struct run_config *r, struct engine *e_p);
void engine_close(struct engine *e); /* Collective on w->tp */
/* engine_stats - weights, pools, collective waiting of this rank, and its host name and peak memory. */
void engine_stats(const struct engine *e, const struct world *w, struct rank_stats *st);

/* engine_graphs - a line in the log about the regions that the backend held back, if there were any. */
void engine_graphs(const struct ops *o);

/* engine_memory - called after every order: notes the peak resident size when a quarter of the run's requests have
 * ended. */
void engine_memory(const struct order_log *l, int n_todo, struct rank_stats *st);
/* engine_todo - requests of the run that are not committed yet. */
int engine_todo(const struct run_config *r);

#endif
