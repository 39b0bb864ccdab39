/* KDA prefill in chunks of 64 rows, act bf16, heads of 128: what a chunk needs that does not depend on the state for
 * all chunks at once (kda_within.cu), then the state from chunk to chunk (kda_between.cu). Rows past the end count as
 * zeros. Everything else is left to the recurrence (kda_recur.cu). */
#include "kda_chunk.h"

void cuda_kda_chunk(struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                    float *state, int t, int heads, int d, int chunk, float *out, int64_t ldo)
{
    enum { BLOCK = 256 * KC_C }; /* rows at a time: scratch of 19 MB per head */
    const int cc = cu_impl(o)->cc;
    (void)chunk;
    if (cu_impl(o)->act != ACT_BF16 || d != KC_D || t < 2 * KC_C || cc == 86 || cc >= 120 || !cu_aligned16(qkv, 0)) {
        cuda_kda_recur(o, qkv, g, ldg, beta, ldb, state, 1, t, heads, d, out, ldo);
        return;
    }
    for (int r = 0; r < t; r += BLOCK) {
        const int n = t - r < BLOCK ? t - r : (int)BLOCK, chunks = cu_parts(n, KC_C);
        const int vec = (ldg % 2 == 0 && (uintptr_t)g % 8 == 0 ? 1 : 0) |
                        (ldo % 2 == 0 && (uintptr_t)out % 8 == 0 ? 2 : 0);
        struct kda_args a = {qkv + (int64_t)r * 3 * heads * d, g + r * ldg, beta + r * ldb, ldg, ldb, ldo, state,
                             out ? out + r * ldo : NULL, n, heads, vec,
                             (struct kda_chunk *)cu_scratch(o, (size_t)chunks * heads * sizeof(struct kda_chunk))};
        kda_within(cu_impl(o)->stream, a);
        kda_between(cu_impl(o)->stream, a, cc >= 90 ? 3 : 2);
    }
}
