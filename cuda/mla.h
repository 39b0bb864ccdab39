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

/* Expanded attention of one sequence: q, keys and values of all positions. */
struct mla_expanded {
    const float *q;
    int64_t ldq, ldo, n;       /* n: row length of kv */
    const char *base;          /* pages: the rope part of the keys */
    int64_t stride;
    int page, rank, width, heads, nope, v_dim, rows;
    float scale;
    const struct cu_seq *seqs; /* one */
    const __nv_bfloat16 *kv;   /* [pos][heads][nope + v_dim] */
    float *out;
};

/* mla_prefill_fits - whether mla_prefill takes these sizes and types */
int mla_prefill_fits(const struct ops *o, const struct paged *cache, int rope, int nope, int v_dim);
void mla_prefill(struct ops *o, const struct mla_expanded &a);

#ifdef __CUDACC__
static __device__ __forceinline__ float *mla_part(const struct mla_absorbed &a, int seq, int64_t lane, int split)
{
    return a.part + (((int64_t)seq * a.rows * a.heads + lane) * a.splits + split) * (a.rank + 2);
}
#endif
#endif
