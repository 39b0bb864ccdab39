/* backends - the loop of a test over the CPU's instruction sets and act modes, and comparisons bit for bit.
 * PDFLASH_ISA limits the tests to one instruction set (valgrind knows not all). */
#ifndef PDFLASH_TESTS_BACKENDS_H
#define PDFLASH_TESTS_BACKENDS_H

#include "suite.h"

#include "weights.h"

static inline const char *const *backends_isas(void)
{
    static const char *one[2];
    one[0] = getenv("PDFLASH_ISA");
    return one[0] ? one : ops_cpu_isa_list();
}

/* for every instruction set and act mode: o is open in the body and closed after it */
#define EACH_BACKEND(o)                                                                                   \
    for (const char *const *isa_ = backends_isas(); *isa_; isa_++)                                         \
        for (int act_ = ACT_FP32; act_ <= ACT_BF16; act_++)                                               \
            for (int open_ = ops_cpu_open((enum ops_act)act_, *isa_, o) == ST_OK                          \
                                 ? 1                                                                      \
                                 : (ck_abort_msg("%s does not open", *isa_), 0);                          \
                 open_; (o)->close(o), open_ = 0)

/* n floats that must be equal bit for bit */
static inline void expect_same(const float *a, const float *b, int64_t n, const struct ops *o, const char *what, int i)
{
    for (int64_t j = 0; j < n; j++)
        if (memcmp(a + j, b + j, sizeof *a))
            ck_abort_msg("%s act %d: %s, case %d: element %lld is %.9g, should be %.9g", o->isa, (int)o->act, what, i,
                         (long long)j, (double)a[j], (double)b[j]);
}

/* sum of n leaves, stride apart, in the tree as ops.h words it */
static inline float tree_of(const float *leaf, int64_t stride, int n)
{
    if (n % 2 == 0) return tree_of(leaf, stride, n / 2) + tree_of(leaf + n / 2 * stride, stride, n / 2);
    float s = 0;
    for (int i = 0; i < n; i++) s += leaf[i * stride];
    return s;
}

#endif
