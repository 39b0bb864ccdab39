/* attend - softmax attention of up to 16 query lanes over keys that arrive in tiles.
 *
 * A lane is one (row, head) pair. Lanes never mix: a score is summed over the head's elements in order, the
 * softmax runs online over tiles, a tile's weights and weighted values are summed in order of the keys. Tiles
 * are aligned to ATTEND_TILE positions by the caller, so a lane's bits depend only on its own query and
 * the keys it sees, never on the other lanes or on how keys are stored. Keys outside a lane's range are not
 * read for it (their values may be anything).
 * Use: attend_open, attend_query for each lane, attend_tile for tiles in ascending order, attend_close.
 * A group holds pointers into the caller's memory; nothing is allocated. Local. */
#ifndef PDFLASH_OPS_CPU_ATTEND_H
#define PDFLASH_OPS_CPU_ATTEND_H

#include <stddef.h>
#include <stdint.h>

enum { ATTEND_LANES = 16, ATTEND_TILE = 64 };

struct attend {
    float *q;                    /* [dk][16], scratch of the caller */
    int dk, dv, n;               /* key size, value size, lanes in use */
    float scale;
    int lo[ATTEND_LANES];        /* lane sees positions [lo, hi) */
    int hi[ATTEND_LANES];
    float max[ATTEND_LANES];     /* running maximum and sum of the softmax */
    float sum[ATTEND_LANES];
    float *out[ATTEND_LANES];    /* [dv]: running weighted values, then the result */
};

/* attend_open - empty group; q: room for ATTEND_LANES * dk floats */
void attend_open(struct attend *a, float *q, int dk, int dv, float scale);
/* attend_query - add a lane: query[dk], visible positions [lo, hi), result out[dv] */
void attend_query(struct attend *a, const float *query, int lo, int hi, float *out);
/* attend_tile - keys k[nk][dk] (row stride ldk) and values v[nk][dv] of positions pos .. pos + nk - 1;
 * nk <= ATTEND_TILE */
void attend_tile(struct attend *a, const float *k, int64_t ldk, const float *v, int64_t ldv, int pos, int nk);
/* attend_close - divide by the softmax sums */
void attend_close(struct attend *a);

/* attend_first - aligned start of the tile that holds pos */
static inline int attend_first(int pos)
{
    return pos / ATTEND_TILE * ATTEND_TILE;
}

#endif
