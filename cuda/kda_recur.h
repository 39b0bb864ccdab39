/* kda_recur - what the kernels of the KDA recurrence share. */
#ifndef PDFLASH_CUDA_KDA_RECUR_H
#define PDFLASH_CUDA_KDA_RECUR_H

#include "cuda.h"

struct recur {
    const float *qkv, *g, *beta;
    int64_t ldg, ldb, ldo;
    float *state;              /* of the one sequence; with seqs: theirs */
    float *out;
    int write, t, heads, d;
    const struct cu_seq *seqs; /* NULL: rows [0, t) */
    int n_seq, units, vec;     /* units: of work; vec: all inputs lie at multiples of 16 bytes (1), out of 8 (2) */
};

enum { KDA_TILE = 16, KDA_TILE_MIN = 2 };

/* kda_tile.cu: n_seq such sequences, heads of 128; states stay */
void kda_tile(cudaStream_t st, const struct recur &a);

#ifdef __CUDACC__
/* the sequence z: moves the pointers to its rows */
static __device__ __forceinline__ void kda_pick(struct recur &a, int z)
{
    if (!a.seqs) return;
    struct cu_seq s = cu_seq_at(a.seqs, z);
    a.qkv += (int64_t)s.row0 * 3 * a.heads * a.d;
    a.g += s.row0 * a.ldg;
    a.beta += s.row0 * a.ldb;
    if (a.out) a.out += s.row0 * a.ldo;
    a.state = (float *)s.state;
    a.t = s.n_rows;
}

/* 4 floats to shared memory, asynchronously */
static __device__ __forceinline__ void kda_copy4(float *to, const float *from, int vec)
{
    if (vec) cu_copy16(to, from);
    else
        for (int i = 0; i < 4; i++) cu_copy4(to + i, from + i);
}
#endif
#endif
