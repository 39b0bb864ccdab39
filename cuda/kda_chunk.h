/* kda_chunk - what the two kernels of the chunked KDA share. */
#ifndef PDFLASH_CUDA_KDA_CHUNK_H
#define PDFLASH_CUDA_KDA_CHUNK_H

#include "cuda.h"

/* rows of a chunk, head size, value columns of a block of the second kernel */
enum { KC_C = 64, KC_D = 128, KC_COLS = 32 };

/* What a chunk of a head needs that does not depend on the state. Matrices are cut into blocks of 8 x 8, each 128
 * bytes, or have rows whose pieces of 8 elements are exchanged (kc_at), so that eight rows of a block lie in different
 * banks. */
struct kda_chunk {
    __nv_bfloat16 w[KC_D / 8][KC_C / 8][8][8]; /* W transposed: key, row */
    __nv_bfloat16 q[KC_C * KC_D];              /* q exp(G) at kc_at */
    __nv_bfloat16 k[KC_C * KC_D];              /* k exp(G_64 - G) at kc_at */
    __nv_bfloat16 a[KC_C / 8][KC_C / 8][8][8]; /* A: row, earlier row; tiles above the diagonal are not written */
    float gamma[KC_D];                         /* exp(G_64) */
    __nv_bfloat16 u[KC_D / 8][KC_C / 8][8][8]; /* U transposed: column, row */
};

/* element (row, c) of q and k */
static inline __host__ __device__ int kc_at(int row, int c)
{
    return row * KC_D + ((c >> 3 ^ (row & 7)) << 3 | (c & 7));
}

struct kda_args {
    const float *qkv, *g, *beta;
    int64_t ldg, ldb, ldo;
    float *state, *out;       /* out: NULL or t rows */
    int t, heads, vec;        /* vec: pairs of elements of g (1), of out (2) lie at multiples of 8 bytes */
    struct kda_chunk *chunks; /* [chunk][head] */
};

/* kda_within.cu: fills chunks. kda_between.cu: state and out; 2 or 3 stages */
void kda_within(cudaStream_t st, const struct kda_args &a);
void kda_between(cudaStream_t st, const struct kda_args &a, int stages);
#endif
