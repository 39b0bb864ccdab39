/* draft_goldens - values of a draft's vector file; vectors is opened by the test that includes this. */
#ifndef PDFLASH_TESTS_DRAFT_GOLDENS_H
#define PDFLASH_TESTS_DRAFT_GOLDENS_H

#include "rig.h"

static const double bound = 1e-4; /* relative to the largest value of the array */
static struct h5 *vectors;

static inline float *golden(const char *group, const char *name, int64_t want)
{
    char path[128];
    int64_t dim[H5_MAX_RANK], n = 1;
    int rank;
    float *v;
    snprintf(path, sizeof path, "/%s/%s", group, name);
    OK(h5_read_f32(vectors, path, dim, &rank, &v));
    for (int i = 0; i < rank; i++) n *= dim[i];
    ck_assert_int_eq(n, want);
    return v;
}

static inline int32_t *golden_ids(const char *group, const char *name, int *n_p)
{
    char path[128];
    snprintf(path, sizeof path, "/%s/%s", group, name);
    return rig_ids(vectors, path, n_p);
}

static inline int32_t anchor_of(const char *group)
{
    char path[64];
    int64_t v;
    snprintf(path, sizeof path, "/%s/block", group);
    OK(h5_get_int(vectors, path, "anchor", &v));
    return (int32_t)v;
}

#endif
