/* rng - counter-based random numbers: the value is a pure function of (seed, stream, index), so results
 * never depend on batch, topology or resume. Local.
 * Source: the mixing constants are those of SplitMix64 (Steele, Lea, Flood 2014). */
#ifndef PDFLASH_BASE_RNG_H
#define PDFLASH_BASE_RNG_H

#include <stdint.h>

/* rng_u64 - 64 random bits for (seed, stream, index). */
uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
/* rng_unit - uniform in [0, 1), 53 bits. */
double rng_unit(uint64_t seed, uint64_t stream, uint64_t index);

#endif
