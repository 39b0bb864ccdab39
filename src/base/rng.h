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

/* rng_philox - Philox4x32-10: 128 random bits for a counter of 128 bits and a key of 64; for draws whose quality
 * matters. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). */
void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);
/* rng_philox_unit - uniform in [0, 1), 53 bits, of the first two words. */
double rng_philox_unit(uint64_t key, const uint32_t counter[4]);

#endif
