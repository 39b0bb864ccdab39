/* sum - sums and products of sizes that stay at SUM_MAX instead of wrapping round.
 *
 * All operands are sizes or counts, >= 0. A result of SUM_MAX means "more than can be said" and is refused where sizes
 * are handed out; until then it only grows by nothing. Local. */
#ifndef PDFLASH_PLAN_SUM_H
#define PDFLASH_PLAN_SUM_H

#include <stdint.h>

#define SUM_MAX INT64_MAX

static inline int64_t sum_plus(int64_t a, int64_t b)
{
    int64_t s;
    return __builtin_add_overflow(a, b, &s) ? SUM_MAX : s;
}
static inline int64_t sum_times(int64_t a, int64_t b)
{
    int64_t p;
    if (a == 0 || b == 0) return 0;
    return a == SUM_MAX || b == SUM_MAX || __builtin_mul_overflow(a, b, &p) ? SUM_MAX : p;
}

#endif
