/* draft - what the forms of the draft's attention share: the call. */
#ifndef PDFLASH_CUDA_DRAFT_H
#define PDFLASH_CUDA_DRAFT_H

#include "cuda.h"

struct draft_call {
    const float *q, *kb, *vb;
    int64_t ldq, ldk, ldv, ldo;
    const struct paged *kc, *vc; /* host */
    int q_heads, kv_heads, d, window;
    float scale;
    int rows, n_seq; /* rows: most of one sequence */
    const struct cu_seq *seqs;
    float *out;
};

/* draft_wg - on Hopper's tensor cores; 0: not for these sizes and types */
int draft_wg(struct ops *o, const struct draft_call &c);

#endif
