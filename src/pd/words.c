#include "pd/words.h"

const char *const word_state_name[] = {"none", "GRANT", "PART", "DONE", "FAIL", "ABORT", "QUIET", "FREED"};

_Static_assert(sizeof(struct word_line) == 64, "a word has a cache line for itself");

uint64_t word_pack(struct word_value v)
{
    return (uint64_t)(v.generation & WORD_GENERATION_MAX) << 40 | (uint64_t)((unsigned)v.state & 15u) << 36 |
           (uint64_t)((unsigned)v.comp & 15u) << 32 | v.count;
}

struct word_value word_unpack(uint64_t w)
{
    return (struct word_value){.generation = (uint32_t)(w >> 40), .state = (enum word_state)(w >> 36 & 15),
                               .comp = (enum comp)(w >> 32 & 15), .count = (uint32_t)w};
}
