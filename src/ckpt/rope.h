/* rope - rotary position settings of a draft checkpoint: both spellings of Transformers, plain or YaRN.
 *
 * Transformers 4 writes rope_theta beside rope_scaling (null, or an object with rope_type or type); Transformers 5
 * writes rope_parameters {rope_type, rope_theta, ...}. A file may hold both if they say the same. Types default and yarn
 * are implemented; any other is refused by name. A missing factor or original_max_position_embeddings is refused; what
 * the format itself gives a value when it is absent has that value: beta_fast 32, beta_slow 1, truncate true.
 * Amplitude (cos and sin are multiplied by it): attention_factor where the file has one, else m(mscale) /
 * m(mscale_all_dim) when both are there and not 0, else m(1); m(x) = 0.1 x ln(factor) + 1. Engines disagree on the
 * second rule; who measures that the other amplitude is right writes attention_factor into the file. Local. */
#ifndef PDFLASH_CKPT_ROPE_H
#define PDFLASH_CKPT_ROPE_H

#include <jansson.h>

#include "base/err.h"

struct rope {
    double theta;
    int yarn;                   /* 0: angles are position * theta^(-2j/dim), the rest is 0 */
    double factor;              /* positions were stretched by this */
    int original;               /* original_max_position_embeddings, tokens */
    double beta_fast, beta_slow; /* rotations over `original` between which frequencies are blended */
    int truncate;               /* blend borders are whole pair numbers */
    double amplitude;           /* 1 without YaRN */
    int explicit_factor;        /* 1: attention_factor stands in the file, so the amplitude is beyond doubt */
};

/* rope_read - the members of root, the whole config.json (file: its path, for messages). ST_E_CONFIG. */
enum status rope_read(const char *file, const json_t *root, struct rope *r_p);
/* rope_frequencies - inv[dim / 2]: angle of pair j at position p is p * inv[j]. */
void rope_frequencies(const struct rope *r, int dim, double *inv);

#endif
