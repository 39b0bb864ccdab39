#include "base/rng.h"

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t a = mix(seed + golden);
    uint64_t b = mix(a ^ (stream + 2 * golden));
    return mix(b ^ (index + 3 * golden));
}

double rng_unit(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(rng_u64(seed, stream, index) >> 11) * 0x1p-53;
}
