/* Copying and comparing the state of requests, whatever type a pool keeps its caches in. */
#include <math.h>
#include <string.h>

#include "model/diagnose_impl.h"

static int is_paged(enum comp comp)
{
    return comp == COMP_MLA || comp == COMP_DRAFT;
}

static char *item_of(const struct state *s, int entry, int slot, int page)
{
    int paged = is_paged(s->layout.entry[entry].comp);
    int64_t item = paged ? state_pages(s, slot)[page] : slot;
    return (char *)s->arena.p + layout_offset(&s->layout, entry, item);
}

void diagnose_copy(struct diagnose *g, int from, int to, int pos)
{
    struct state *s = &g->work;
    int pages = split_pages(pos, s->layout.spec.page);
    for (int i = 0; i < s->layout.n; i++) {
        const struct layout_entry *e = &s->layout.entry[i];
        int n = is_paged(e->comp) ? pages : 1;
        if (e->comp == COMP_AUX) continue;
        for (int k = 0; k < n; k++)
            g->o->copy(g->o, item_of(s, i, to, k), item_of(s, i, from, k), (size_t)e->item_bytes);
    }
}

/* an item as floats; returns how many */
static int64_t fetch(struct diagnose *g, const struct state *s, int entry, int slot, int page, float *out)
{
    const struct layout_entry *e = &s->layout.entry[entry];
    enum kv_dtype type = e->comp == COMP_DRAFT ? s->layout.spec.draft_kv : s->layout.spec.kv;
    if (e->comp == COMP_KDA || type == KV_FP32) {
        g->o->get(g->o, out, item_of(s, entry, slot, page), (size_t)e->item_bytes);
        return e->item_bytes / 4;
    }
    g->o->get(g->o, g->raw, item_of(s, entry, slot, page), (size_t)e->item_bytes);
    int64_t n = e->item_bytes / 2;
    const uint16_t *half = g->raw;
    for (int64_t i = 0; i < n; i++) {
        uint32_t wide = (uint32_t)half[i] << 16;
        memcpy(out + i, &wide, 4);
    }
    return n;
}

struct extent {
    double most, size;
    int pos;
}; /* largest difference and value; first position that differs, -1: none */

/* NaN on either side is the largest difference there is */
static void measure(const float *a, const float *b, int64_t n, struct extent *x)
{
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]), v = fabs((double)b[i]);
        if (!(d <= x->most)) x->most = isnan(d) ? INFINITY : d;
        if (v > x->size) x->size = v;
    }
}

/* one position of a page: head-major, `heads` groups of `width` values */
static struct extent measure_row(const float *a, const float *b, int page, int heads, int width)
{
    struct extent x = {0, 0, -1};
    for (int h = 0; h < heads; h++) measure(a + (int64_t)h * page * width, b + (int64_t)h * page * width, width, &x);
    return x;
}

static struct extent compare_paged(struct diagnose *g, const struct state *x, int a, const struct state *y, int b,
                                   int i, int pos)
{
    const struct layout_entry *e = &y->layout.entry[i];
    int page = y->layout.spec.page, pages = split_pages(pos, page), heads = e->comp == COMP_DRAFT ? e->n_heads : 1;
    struct extent all = {0, 0, -1};
    for (int pass = 0; pass < 2; pass++) /* the first pass finds the scale, the second the first position over it */
        for (int k = 0; k < pages; k++) {
            int64_t n = fetch(g, x, i, a, k, g->a);
            int width = (int)(n / ((int64_t)page * heads)), rows = pos - k * page < page ? pos - k * page : page;
            fetch(g, y, i, b, k, g->b);
            for (int r = 0; r < rows; r++) {
                int64_t at = (int64_t)r * width;
                struct extent row = measure_row(g->a + at, g->b + at, page, heads, width);
                if (pass == 0) {
                    all.most = row.most > all.most ? row.most : all.most;
                    all.size = row.size > all.size ? row.size : all.size;
                } else if (all.pos < 0 && row.most > g->r.tolerance * all.size) {
                    all.pos = k * page + r;
                }
            }
        }
    return all;
}

static enum diagnose_part part_of(const struct layout_entry *e)
{
    switch (e->comp) {
    case COMP_KDA: return PART_KDA;
    case COMP_CONV: return PART_CONV;
    case COMP_MLA: return PART_MLA;
    case COMP_DRAFT: return e->kv ? PART_DRAFT_V : PART_DRAFT_K;
    default: return PART_N;
    }
}

void diagnose_compare(struct diagnose *g, const struct state *x, int a, const struct state *y, int b, int pos,
                      struct diagnose_diff *diff)
{
    for (int c = 0; c < PART_N; c++) diff[c] = (struct diagnose_diff){0, -1, -1};
    for (int i = 0; i < y->layout.n; i++) {
        const struct layout_entry *e = &y->layout.entry[i];
        struct extent all = {0, 0, -1};
        enum diagnose_part c = part_of(e);
        if (c == PART_N) continue;
        if (is_paged(e->comp)) {
            all = compare_paged(g, x, a, y, b, i, pos);
        } else {
            fetch(g, x, i, a, 0, g->a);
            measure(g->a, g->b, fetch(g, y, i, b, 0, g->b), &all);
        }
        double error = all.most / (all.size > 0 ? all.size : 1);
        if (diff[c].layer < 0 || error > diff[c].error) diff[c] = (struct diagnose_diff){error, e->layer, all.pos};
    }
}

int diagnose_zero_rows(struct diagnose *g, const struct state *s, int slot, int pos)
{
    int page = s->layout.spec.page, zero = 0;
    for (int p = 0; p < pos; p++) {
        int empty = 1, any = 0;
        for (int i = 0; i < s->layout.n && empty; i++) {
            const struct layout_entry *e = &s->layout.entry[i];
            if (e->comp != COMP_DRAFT) continue;
            int64_t n = fetch(g, s, i, slot, p / page, g->a);
            int width = (int)(n / ((int64_t)page * e->n_heads));
            for (int h = 0; h < e->n_heads && empty; h++)
                for (int v = 0; v < width && empty; v++) empty = g->a[((int64_t)h * page + p % page) * width + v] == 0;
            any = 1;
        }
        zero += any && empty;
    }
    return zero;
}
