/* run - one pass of a batch through this rank's layers: what every block needs, handed down as one read-only struct. */
#ifndef PDFLASH_MODEL_RUN_H
#define PDFLASH_MODEL_RUN_H

#include "model/batch.h"
#include "model/comm.h"
#include "model/state.h"
#include "model/target.h"
#include "model/weights.h"

struct run {
    struct ops *o;
    const struct config *c;
    const struct shard *shard;
    const struct tp_comm *comm;
    const struct probe *probe;     /* NULL: off */
    const struct state *state;
    enum batch_kind kind;
    int t;                         /* rows */
    int n_seq;
    const struct batch_seq *part;  /* [n_seq] as the caller gave them */
    struct seq_rows *seq;          /* [n_seq] for ops; .state is set by the block that needs it */
    enum ops_kv kv;
    int expanded;                  /* MLA form of this batch */
    int max_rows;                  /* rows the backend's scratch is prepared for */
    const int *moe_order;          /* [tp * groups] leaves of the routed sum, see moe_order */
    float *scratch;                /* bmem, large enough for any block */
};

/* run_take - the next n floats of scratch, 16-float aligned; *at_p advances. base NULL: only count. */
static inline float *run_take(float *base, int64_t *at_p, int64_t n)
{
    float *p = base ? base + *at_p : NULL;
    *at_p += (n + 15) / 16 * 16;
    return p;
}

/* run_sum - x[t][cols] := sum over the group, one leaf a rank. Collective. */
static inline enum status run_sum(const struct run *r, float *x, int cols)
{
    return r->comm->sum(r->comm->ctx, r->o, x, (int64_t)r->t * cols, 1, NULL, r->t, cols);
}

/* run_probe - offer a value to the probe, if there is one. */
static inline void run_probe(const struct run *r, const char *name, int layer, const float *x, int64_t ld, int cols)
{
    if (r->probe) r->probe->value(r->probe->ctx, name, layer, x, r->t, ld, cols);
}

#endif
