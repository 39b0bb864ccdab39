/* resid - the residual stream: running prefix, bank of snapshots, and the reads that mix them.
 *
 * Block attention residuals. Before layer i the bank holds ceil(i / res_block) rows. Layer i, in order: read
 * (attention site), snapshot if i % res_block == 0, attention added to the prefix (which restarts from it after a
 * snapshot), read (MLP site), MLP added. The bank lives for one forward only; it travels with struct flow.
 * Source: kimi-k3 notes 3.3. */
#ifndef PDFLASH_MODEL_RESID_H
#define PDFLASH_MODEL_RESID_H

#include "model/run.h"

struct resid_site { /* one read: its query and the norm of what follows */
    struct buf q;    /* f32 [hidden] norm weight * projection */
    struct buf norm; /* f32 [hidden] */
};

/* resid_bind - site with query "<stem>_norm/_proj" and norm tensor "<norm>.weight". */
enum status resid_bind(struct binder *b, const char *stem, const char *norm, struct resid_site *s);
void resid_unbind(struct ops *o, struct resid_site *s);

/* resid_read - rows [row0, row0 + t) of the stream mixed (mix[t][hidden], NULL: not wanted) and normed (u[t][hidden]).
 * An empty bank mixes to the prefix itself. Local. */
void resid_read(const struct run *r, const struct flow *f, const struct resid_site *s, int row0, int t, float *mix,
                float *u);
/* resid_snapshots - 1 if layer i appends to the bank before its attention. */
int resid_snapshots(const struct config *c, int layer);
/* resid_push - the prefix becomes the next bank row; it then has to be overwritten. Local. */
void resid_push(const struct run *r, struct flow *f);

#endif
