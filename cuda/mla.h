/* mla - what the two forms of absorbed attention share: the call, and parts of lanes that a last kernel merges. */
#ifndef PDFLASH_CUDA_MLA_H
#define PDFLASH_CUDA_MLA_H

#include "cuda.h"

enum { MLA_SPLIT = 512 };      /* positions per part: parts depend on the position alone */

struct mla_absorbed {
    const float *q;
    int64_t ldq, ldz;
    const char *base;          /* pages */
    int64_t stride;
    int page;
    enum ops_kv kv;
    int rank, width, heads, splits, rows;
    float scale;
    const struct cu_seq *seqs;
    float *part;               /* [seq][rows][heads][splits][rank + 2]: weighted sum, maximum, sum */
    float *z;
};

/* mla_fast - parts of n sequences on tensor cores; 0: not for these sizes and types */
int mla_fast(struct ops *o, const struct mla_absorbed &a, int n);

#ifdef __CUDACC__
static __device__ __forceinline__ float *mla_part(const struct mla_absorbed &a, int seq, int64_t lane, int split)
{
    return a.part + (((int64_t)seq * a.rows * a.heads + lane) * a.splits + split) * (a.rank + 2);
}
#endif
#endif
