/* moe - what the files of the routed experts share: pairs grouped by expert and cut into tiles of rows. A pair is a row
 * and one of its local experts; a slot is a pair's place among all pairs. */
#ifndef PDFLASH_CUDA_MOE_H
#define PDFLASH_CUDA_MOE_H

#include "cuda.h"

struct tile {
    int expert, first, n; /* local expert, first slot, pairs */
};

struct groups {
    struct tile *tile;
    int *n_tiles;
    int *row;             /* [slots] row of a pair */
    int *of;              /* [slots] tile of a pair */
    int *slot;            /* [t][k] slot of a row's j-th expert, -1: elsewhere */
};

/* moe_wg.cu: many rows an expert on Hopper */
enum { MOE_WIDE_ROWS = 96 }; /* slots of a tile at most */

/* cu_moe_rows - slots of a tile (48, 64, 80 or 96) when experts have mean rows */
static inline int cu_moe_rows(int64_t mean)
{
    int most = MOE_WIDE_ROWS, tiles = (int)((mean + most - 1) / most), each = (int)((mean + tiles - 1) / tiles);
    return each <= 48 ? 48 : (each + 15) / 16 * 16;
}

/* everything of one call; device pointers */
struct moe_wide {
    struct groups g;
    const void *const *up, *const *up_scale, *const *down, *const *down_scale; /* [experts] */
    const float *z;        /* [t][latent] */
    const float *w;        /* [t][k] */
    int t, k, latent, cols, zp, hp; /* zp, hp: latent and cols padded to 64 */
    int rows;              /* slots of every tile, cu_moe_rows */
    float b1, b2;
    char *zi, *hi;         /* rows of tiles as the tensor cores take them: [slots][zp], [slots][hp] */
    int *only;             /* [slots] the row of a pair that is its row's only one, else -1 */
    float *share;          /* [slots] weight of a pair */
    float *leaf;           /* [slots][latent] results of the other pairs */
    float *y;              /* [t][latent]: results of rows with one pair */
};

void cu_moe_wide(struct ops *o, const struct moe_wide *a);

#endif
