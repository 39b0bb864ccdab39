/* mla - what the two forms of absorbed attention share: the call, and parts of lanes that a last kernel merges. */
#ifndef PDFLASH_CUDA_MLA_H
#define PDFLASH_CUDA_MLA_H

#include "cuda.h"

/* positions per part, and on Hopper: parts depend on the position alone */
enum { MLA_SPLIT = 512, MLA_SEGMENT = 8192 };

struct mla_absorbed {
    const float *q;
    int64_t ldq, ldz;
    const char *base;          /* pages */
    int64_t stride;
    int page;
    enum ops_kv kv;
    int rank, width, heads, splits, rows;
    int split;                 /* positions per part */
    float scale;
    const struct cu_seq *seqs;
    float *part;               /* [seq][rows][heads][splits][rank + 2]: weighted sum, maximum, sum */
    float *z;
};

/* mla_fast - parts of n sequences on tensor cores; 0: not for these sizes and types */
int mla_fast(struct ops *o, const struct mla_absorbed &a, int n);
/* the same on Hopper; where there is one part it goes to z as it is */
int mla_decode_wg_fits(const struct ops *o, const struct paged *cache, int rank, int rope);
void mla_decode_wg(struct ops *o, const struct mla_absorbed &a, int n);

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
/* the same on Hopper; latent: rows of all end positions as mla_expand leaves them */
int mla_prefill_wg_fits(const struct ops *o, const struct paged *cache, int rank, int rope, int nope, int v_dim);
void mla_prefill_wg(struct ops *o, const struct mla_expanded &a, const __nv_bfloat16 *latent, int end);
/* mla_expand - latent [end][rank + rope]: rows of the positions [0, end) of sequence s; kv [end][wkv->n]: their keys
 * and values. Hopper, BF16 cache, rank a multiple of 64. */
void mla_expand(struct ops *o, const struct paged *cache, const struct cu_seq *s, int end, int rank, int rope,
                const struct mat *wkv, __nv_bfloat16 *latent, __nv_bfloat16 *kv);

#ifdef __CUDACC__
static __device__ __forceinline__ float *mla_part(const struct mla_absorbed &a, int seq, int64_t lane, int split)
{
    return a.part + (((int64_t)seq * a.rows * a.heads + lane) * a.splits + split) * (a.rank + 2);
}
#endif
#endif
