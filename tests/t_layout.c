#include "suite.h"

#include <stdint.h>
#include <string.h>

#include "plan/layout.h"

const char *const suite_name = "layout";

static struct config k3(void)
{
    struct config c = {.n_layers = 93, .n_kda = 69, .n_mla = 24, .kda_heads = 96, .kda_dim = 128, .conv_kernel = 4,
                       .mla_heads = 96, .kv_rank = 512, .qk_rope = 64};
    for (int i = 0; i < 93; i++) c.is_kda[i] = i % 4 != 3 && i != 92;
    return c;
}

static const struct draft_config k3_draft = {.n_layers = 6, .q_heads = 64, .kv_heads = 8, .head_dim = 128};

static struct layout_spec spec(int tp, int rank)
{
    return (struct layout_spec){.page = 64, .layers = {0, 93}, .has_draft = 1, .has_aux = 1, .tp = tp, .tp_rank = rank,
                                .n_pages = 5, .n_slots = 2};
}

START_TEST(k3_items_have_the_published_sizes)
{
    static const struct {
        int tp;
        int64_t draft_page, kda, conv;
    } want[] = {{1, 131072, 6291456, 221184}, {2, 65536, 3145728, 110592}, {4, 32768, 1572864, 55296},
                {8, 16384, 786432, 27648},    {16, 16384, 393216, 13824},  {32, 16384, 196608, 6912}};
    struct config c = k3();
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        for (int order = 0; order < 2; order++) {
            struct layout l;
            struct layout_spec s = spec(want[i].tp, want[i].tp - 1);
            s.order = (enum page_order)order;
            ck_assert_int_eq(layout_make(&c, &k3_draft, &s, &l), ST_OK);
            ck_assert_int_eq(l.n, 24 + 2 * 69 + 12 + 1);
            int64_t state = 0;
            for (int e = 0; e < l.n; e++) {
                const struct layout_entry *x = &l.entry[e];
                int paged = x->comp == COMP_MLA || x->comp == COMP_DRAFT;
                int64_t bytes = x->comp == COMP_MLA    ? 73728
                                : x->comp == COMP_KDA  ? want[i].kda
                                : x->comp == COMP_CONV ? want[i].conv
                                : x->comp == COMP_AUX  ? 64
                                                       : want[i].draft_page;
                ck_assert_int_eq(x->item_bytes, bytes);
                ck_assert_int_eq(x->stride, bytes); /* all are whole lines already */
                ck_assert_int_eq(x->n_items, paged ? 5 : 2);
                if (x->comp == COMP_KDA) ck_assert(x->n_heads == 96 / s.tp && x->head0 == 96 - x->n_heads);
                if (x->comp == COMP_KDA || x->comp == COMP_CONV) state += bytes;
            }
            if (s.tp == 32) ck_assert_int_eq(state, 14042880);
            if (s.tp == 1) ck_assert_int_eq(state, 449372160);
            ck_assert_int_eq(l.bytes % 4096, 0);
            layout_free(&l);
        }
}
END_TEST

START_TEST(entries_are_keyed_aligned_and_apart)
{
    /* sizes that are no multiple of a cache line, so that padding shows */
    struct config c = {.n_layers = 7, .n_kda = 4, .n_mla = 3, .kda_heads = 6, .kda_dim = 3, .conv_kernel = 4,
                       .kv_rank = 5, .qk_rope = 2};
    const uint8_t kinds[7] = {1, 1, 0, 1, 0, 1, 0};
    const struct draft_config d = {.n_layers = 2, .kv_heads = 4, .head_dim = 5};
    memcpy(c.is_kda, kinds, sizeof kinds);
    for (int tp = 1; tp <= 2; tp++)
        for (int kv = 0; kv < 2; kv++) {
            struct layout l;
            struct layout_spec s = {.page = 3, .layers = {1, 6}, .has_draft = 1, .tp = tp, .tp_rank = tp - 1,
                                    .n_pages = 4,
                                    .n_slots = 3, .kv = (enum kv_dtype)kv, .draft_kv = (enum kv_dtype)!kv};
            ck_assert_int_eq(layout_make(&c, &d, &s, &l), ST_OK);
            ck_assert_int_eq(l.n, 2 + 3 + 3 + 4);
            int64_t at = 0;
            for (int i = 0; i < l.n; i++) {
                const struct layout_entry *e = &l.entry[i];
                ck_assert_int_eq(e->base % 64, 0);
                ck_assert_int_eq(e->stride % 64, 0);
                ck_assert(e->base >= at && e->item_bytes <= e->stride && e->item_bytes > e->stride - 64);
                at = e->base + e->stride * e->n_items;
                ck_assert_int_eq(layout_find(&l, e->comp, e->layer, e->kv), i);
                ck_assert_int_eq(layout_offset(&l, i, 0), e->base);
                ck_assert_int_eq(layout_offset(&l, i, e->n_items - 1), e->base + (e->n_items - 1) * e->stride);
                ck_assert_int_eq(layout_offset(&l, i, e->n_items), -1);
                ck_assert_int_eq(layout_offset(&l, i, -1), -1);
            }
            ck_assert(l.bytes >= at && l.bytes < at + 4096);
            ck_assert_int_eq(l.entry[layout_find(&l, COMP_MLA, 2, 0)].item_bytes, 3 * 7 * kv_bytes(s.kv));
            ck_assert_int_eq(l.entry[layout_find(&l, COMP_CONV, 5, 0)].item_bytes,
                             3 * 3 * (6 / tp) * 3 * kv_bytes(s.kv));
            ck_assert_int_eq(l.entry[layout_find(&l, COMP_DRAFT, 1, 1)].item_bytes,
                             4 / tp * 3 * 5 * kv_bytes(s.draft_kv));
            ck_assert_int_eq(layout_find(&l, COMP_MLA, 1, 0), -1);  /* a KDA layer */
            ck_assert_int_eq(layout_find(&l, COMP_KDA, 0, 0), -1);  /* of another stage */
            ck_assert_int_eq(layout_find(&l, COMP_MLA, 6, 0), -1);
            ck_assert_int_eq(layout_find(&l, COMP_DRAFT, 2, 0), -1);
            ck_assert_int_eq(layout_find(&l, COMP_AUX, 0, 0), -1);
            ck_assert_int_eq(layout_offset(&l, l.n, 0), -1);
            ck_assert_int_eq(layout_offset(&l, -1, 0), -1);
            layout_free(&l);
            layout_free(&l);
        }
    layout_free(NULL);
}
END_TEST

START_TEST(seed_page_of_a_window)
{
    struct config c = k3();
    struct layout l;
    struct layout_spec s = spec(32, 5);
    ck_assert_int_eq(layout_make(&c, &k3_draft, &s, &l), ST_OK);
    int k = layout_find(&l, COMP_DRAFT, 0, 0);
    l.entry[k].base = 2000000;
    ck_assert_int_eq(layout_offset(&l, k, 2), 2032768);
    ck_assert_int_eq(l.entry[k].head0, 1); /* rank 5 of 32 holds head 1 */
    layout_free(&l);
}
END_TEST

START_TEST(hash_sees_every_field)
{
    struct config c = k3();
    struct layout l, same;
    struct layout_spec s = spec(4, 1);
    ck_assert_int_eq(layout_make(&c, &k3_draft, &s, &l), ST_OK);
    ck_assert_int_eq(layout_make(&c, &k3_draft, &s, &same), ST_OK);
    uint64_t h = layout_hash(&l);
    ck_assert_uint_eq(h, layout_hash(&same));
    int *const spec_field[] = {&l.spec.page,   &l.spec.layers.begin, &l.spec.layers.end, &l.spec.has_draft,
                               &l.spec.has_aux,
                               &l.spec.tp,     &l.spec.tp_rank,      &l.spec.n_pages,    &l.spec.n_slots};
    for (size_t i = 0; i < sizeof spec_field / sizeof spec_field[0]; i++) {
        ++*spec_field[i];
        ck_assert_msg(layout_hash(&l) != h, "spec field %zu", i);
        --*spec_field[i];
    }
    l.spec.order = PAGE_TOKEN_MAJOR;
    ck_assert(layout_hash(&l) != h);
    l.spec.order = PAGE_HEAD_MAJOR;
    l.spec.kv = KV_FP32;
    ck_assert(layout_hash(&l) != h);
    l.spec.kv = KV_BF16;
    l.spec.draft_kv = KV_FP32;
    ck_assert(layout_hash(&l) != h);
    l.spec.draft_kv = KV_BF16;
    for (int e = 0; e < l.n; e += 29) {
        struct layout_entry *x = &l.entry[e];
        int *const f[] = {&x->layer, &x->kv, &x->head0, &x->n_heads, &x->n_items};
        int64_t *const w[] = {&x->base, &x->stride, &x->item_bytes};
        for (int i = 0; i < 5; i++) {
            ++*f[i];
            ck_assert_msg(layout_hash(&l) != h, "entry %d field %d", e, i);
            --*f[i];
        }
        for (int i = 0; i < 3; i++) {
            ++*w[i];
            ck_assert_msg(layout_hash(&l) != h, "entry %d size %d", e, i);
            --*w[i];
        }
    }
    ck_assert_uint_eq(layout_hash(&l), h);
    layout_free(&l);
    layout_free(&same);
}
END_TEST

START_TEST(bad_specs_are_refused)
{
    const struct layout_spec ok = spec(4, 1);
    struct {
        const char *says;
        struct layout_spec s;
    } bad[15];
    int n = 0;
#define BAD(words, field, value)               \
    do {                                       \
        bad[n].says = words;                   \
        bad[n].s = ok;                         \
        bad[n++].s.field = value;              \
    } while (0)
    BAD("page 0", page, 0);
    BAD("page -1", page, -1);
    BAD("-1 pages", n_pages, -1);
    BAD("-3 state slots", n_slots, -3);
    BAD("[0, 94)", layers.end, 94);
    BAD("[-1, 93)", layers.begin, -1);
    BAD("[40, 39)", layers, ((struct range){40, 39}));
    BAD("tp rank 4 of tp 4", tp_rank, 4);
    BAD("tp rank -1", tp_rank, -1);
    BAD("tp 0", tp, 0);
    BAD("num_heads 96", tp, 5);
    BAD("num_heads 96", tp, 64);
    BAD("num_key_value_heads 8", tp, 3); /* 96 = 3 x 32, 8 is not */
    BAD("too large", page, 1 << 30);
    bad[n - 1].s.n_pages = INT32_MAX;
    bad[n - 1].s.n_slots = INT32_MAX;
    struct config c = k3();
    for (int i = 0; i < n; i++) {
        struct layout l = {.n = -7};
        ck_assert_msg(layout_make(&c, &k3_draft, &bad[i].s, &l) == ST_E_CONFIG, "case %d accepted", i);
        ck_assert_msg(strstr(err_last(), bad[i].says), "'%s' not in: %s", bad[i].says, err_last());
        ck_assert_int_eq(l.n, -7);
    }
    struct layout l;
    ck_assert_int_eq(layout_make(&c, NULL, &ok, &l), ST_E_CONFIG); /* draft entries without a draft */
    struct layout_spec s = spec(3, 2);                              /* odd tp is fine where the heads divide */
    s.has_draft = 0;
    ck_assert_int_eq(layout_make(&c, NULL, &s, &l), ST_OK);
    layout_free(&l);
    s = spec(5, 0), s.layers = (struct range){91, 93}, s.has_draft = 0; /* no KDA layer held: heads do not matter */
    ck_assert_int_eq(layout_make(&c, NULL, &s, &l), ST_OK);
    ck_assert_int_eq(l.n, 3);
    layout_free(&l);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "layout", 20);
    SUITE_TEST(tc, k3_items_have_the_published_sizes);
    SUITE_TEST(tc, entries_are_keyed_aligned_and_apart);
    SUITE_TEST(tc, seed_page_of_a_window);
    SUITE_TEST(tc, hash_sees_every_field);
    SUITE_TEST(tc, bad_specs_are_refused);
}

int main(void)
{
    return suite_main_serial();
}
