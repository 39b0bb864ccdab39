#include "suite.h"

#include <stdint.h>
#include <string.h>

#include "base/rng.h"
#include "model/state.h"

const char *const suite_name = "state";

/* small shapes: 4 KDA layers, 2 MLA layers, 2 draft layers */
static struct config small_config(void)
{
    struct config c = {.n_layers = 6, .n_kda = 4, .n_mla = 2, .kda_heads = 4, .kda_dim = 8, .conv_kernel = 4};
    c.kv_rank = 16;
    c.qk_rope = 8;
    for (int i = 0; i < c.n_layers; i++) c.is_kda[i] = i % 3 != 2;
    return c;
}

static const struct draft_config small_draft = {.n_layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 8};

struct pool {
    struct ops o;
    struct state s;
};

static void open_pool(struct pool *p, int page, int n_pages, int n_slots, int max_pages, enum kv_dtype kv)
{
    struct config c = small_config();
    struct layout_spec spec = {.page = page, .kv = kv, .draft_kv = kv, .layers = {0, 6}, .has_draft = 1, .tp = 1};
    spec.n_pages = n_pages;
    spec.n_slots = n_slots;
    struct layout l;
    ck_assert_int_eq(layout_make(&c, &small_draft, &spec, &l), ST_OK);
    ck_assert_int_eq(ops_cpu_open(ACT_FP32, "scalar", &p->o), ST_OK);
    ck_assert_int_eq(state_open(&p->o, &l, max_pages, &p->s), ST_OK);
    ck_assert_ptr_null(l.entry); /* moved */
}

static void close_pool(struct pool *p)
{
    state_close(&p->s);
    state_close(&p->s);
    p->o.close(&p->o);
}

START_TEST(pages_and_slots_are_scattered_and_distinct)
{
    struct pool p;
    open_pool(&p, 16, 64, 8, 64, KV_BF16);
    int slot;
    ck_assert_int_eq(state_admit(&p.s, 64 * 16, &slot), ST_OK);
    ck_assert_int_ne(slot, 0);
    ck_assert_int_eq(p.s.n_free_pages, 0);
    const int32_t *id = state_pages(&p.s, slot);
    uint8_t seen[64] = {0};
    int runs = 0;
    for (int i = 0; i < 64; i++) {
        ck_assert_int_ne(id[i], i); /* page id is never the logical index */
        ck_assert(id[i] >= 0 && id[i] < 64 && !seen[id[i]]);
        seen[id[i]] = 1;
        runs += i > 0 && id[i] == id[i - 1] + 1;
    }
    ck_assert_int_lt(runs, 8); /* neighbours do not stay neighbours */
    ck_assert_int_eq(state_release(&p.s, slot), ST_OK);
    ck_assert_int_eq(p.s.n_free_pages, 64);
    ck_assert_int_eq(p.s.n_free_slots, 8);
    for (int i = 0; i < 64; i++) ck_assert_int_eq(state_pages(&p.s, slot)[i], -1);
    close_pool(&p);
}
END_TEST

START_TEST(the_order_is_the_same_in_every_pool)
{
    struct pool p, q; /* all ranks of a group hand out the same ids */
    open_pool(&p, 16, 40, 5, 20, KV_BF16);
    open_pool(&q, 16, 40, 5, 20, KV_FP32);
    for (int i = 0; i < 4; i++) {
        int a, b;
        ck_assert_int_eq(state_admit(&p.s, 150, &a), ST_OK);
        ck_assert_int_eq(state_admit(&q.s, 150, &b), ST_OK);
        ck_assert_int_eq(a, b);
        if (a >= 0) ck_assert_mem_eq(state_pages(&p.s, a), state_pages(&q.s, b), 20 * sizeof(int32_t));
    }
    close_pool(&p);
    close_pool(&q);
}
END_TEST

static const struct {
    int page, n_pages, n_slots, max_pages, n_tokens;
    enum status want;
    int fits; /* a slot is handed out */
} asks[] = {
    {16, 8, 2, 8, 1, ST_OK, 1},         {16, 8, 2, 8, 16, ST_OK, 1},         {16, 8, 2, 8, 128, ST_OK, 1},
    {16, 8, 2, 8, 129, ST_E_RANGE, 0},  {16, 8, 2, 4, 65, ST_E_RANGE, 0},    {16, 4, 2, 8, 65, ST_E_RANGE, 0},
    {16, 8, 2, 8, 0, ST_E_RANGE, 0},    {16, 8, 2, 8, -5, ST_E_RANGE, 0},    {16, 8, 0, 8, 1, ST_E_RANGE, 0},
    {1, 3, 1, 3, 3, ST_OK, 1},          {1, 3, 1, 3, 4, ST_E_RANGE, 0},      {16, 8, 2, 8, INT32_MAX, ST_E_RANGE, 0},
    {1, 8, 2, 8, INT32_MAX, ST_E_RANGE, 0},
};

START_TEST(requests_that_can_never_fit_are_refused)
{
    struct pool p;
    open_pool(&p, asks[_i].page, asks[_i].n_pages, asks[_i].n_slots, asks[_i].max_pages, KV_BF16);
    int slot = 77;
    ck_assert_int_eq(state_admit(&p.s, asks[_i].n_tokens, &slot), asks[_i].want);
    if (asks[_i].want == ST_OK) ck_assert_int_eq(slot >= 0, asks[_i].fits);
    else ck_assert_int_eq(slot, 77); /* set on success only */
    if (asks[_i].want != ST_OK) {
        ck_assert_int_eq(p.s.n_free_pages, asks[_i].n_pages);
        ck_assert_int_eq(p.s.n_free_slots, asks[_i].n_slots);
    }
    close_pool(&p);
}
END_TEST

START_TEST(short_pools_push_back_without_taking_anything)
{
    struct pool p;
    int a, b, c;
    open_pool(&p, 16, 10, 2, 10, KV_BF16);
    ck_assert_int_eq(state_admit(&p.s, 7 * 16, &a), ST_OK);
    ck_assert_int_eq(state_admit(&p.s, 3 * 16 + 1, &b), ST_OK); /* pages short */
    ck_assert_int_eq(b, -1);
    ck_assert_int_eq(p.s.n_free_pages, 3);
    ck_assert_int_eq(p.s.n_free_slots, 1);
    ck_assert_int_eq(state_admit(&p.s, 16, &b), ST_OK);
    ck_assert_int_ge(b, 0);
    ck_assert_int_eq(state_admit(&p.s, 16, &c), ST_OK); /* slots short */
    ck_assert_int_eq(c, -1);
    ck_assert_int_eq(p.s.n_free_pages, 2);
    ck_assert_int_eq(state_release(&p.s, a), ST_OK);
    ck_assert_int_eq(state_admit(&p.s, 9 * 16, &c), ST_OK);
    ck_assert_int_eq(c, a);
    close_pool(&p);
}
END_TEST

START_TEST(double_release_is_refused)
{
    struct pool p;
    int a, b;
    open_pool(&p, 16, 10, 3, 10, KV_BF16);
    ck_assert_int_eq(state_admit(&p.s, 40, &a), ST_OK);
    ck_assert_int_eq(state_admit(&p.s, 40, &b), ST_OK);
    ck_assert_int_eq(state_release(&p.s, a), ST_OK);
    ck_assert_int_eq(state_release(&p.s, a), ST_E_INTERNAL);
    ck_assert_int_eq(state_release(&p.s, -1), ST_E_INTERNAL);
    ck_assert_int_eq(state_release(&p.s, 3), ST_E_INTERNAL);
    ck_assert_int_eq(p.s.n_free_pages, 7);
    ck_assert_int_eq(p.s.n_free_slots, 2);
    ck_assert_int_eq(state_release(&p.s, b), ST_OK);
    ck_assert_int_eq(state_release(&p.s, b), ST_E_INTERNAL);
    ck_assert_int_eq(p.s.n_free_pages, 10);
    close_pool(&p);
}
END_TEST

/* Every item that a request may write is painted with the request's number; nobody else's paint may change. */
static void paint(struct state *s, int slot, int value)
{
    for (int i = 0; i < s->layout.n; i++) {
        const struct layout_entry *e = &s->layout.entry[i];
        int paged = e->comp == COMP_MLA || e->comp == COMP_DRAFT;
        for (int k = 0; k < (paged ? s->n_pages[slot] : 1); k++)
            memset(state_item(s, e->comp, e->layer, e->kv, paged ? state_pages(s, slot)[k] : slot), value,
                   (size_t)e->item_bytes);
    }
}

static int painted(const struct state *s, int slot, int value)
{
    for (int i = 0; i < s->layout.n; i++) {
        const struct layout_entry *e = &s->layout.entry[i];
        int paged = e->comp == COMP_MLA || e->comp == COMP_DRAFT;
        for (int k = 0; k < (paged ? s->n_pages[slot] : 1); k++) {
            const uint8_t *p = state_item(s, e->comp, e->layer, e->kv, paged ? state_pages(s, slot)[k] : slot);
            for (int64_t b = 0; b < e->item_bytes; b++)
                if (p[b] != value) return 0;
        }
    }
    return 1;
}

static int last_page_is_clear(const struct state *s, int slot)
{
    int seen = 0;
    for (int i = 0; i < s->layout.n; i++) {
        const struct layout_entry *e = &s->layout.entry[i];
        if (e->comp != COMP_MLA && e->comp != COMP_DRAFT) continue;
        const uint8_t *p = state_item(s, e->comp, e->layer, e->kv, state_pages(s, slot)[s->n_pages[slot] - 1]);
        for (int64_t b = 0; b < e->item_bytes; b++)
            if (p[b]) return 0;
        seen++;
    }
    return seen > 2;
}

START_TEST(admission_clears_recurrent_state_and_touches_nobody_else)
{
    struct pool p;
    enum { SLOTS = 6 };
    int held[SLOTS], n = 0;
    open_pool(&p, 4, 60, SLOTS, 30, _i ? KV_FP32 : KV_BF16);
    for (uint64_t step = 0; step < (uint64_t)suite_some(600, 60); step++) {
        uint64_t r = rng_u64(11, (uint64_t)_i, step);
        if (n > 0 && r % 3 == 0) {
            int k = (int)(r / 3 % (uint64_t)n);
            ck_assert(painted(&p.s, held[k], held[k] + 1));
            ck_assert_int_eq(state_release(&p.s, held[k]), ST_OK);
            held[k] = held[--n];
            continue;
        }
        int slot;
        ck_assert_int_eq(state_admit(&p.s, 1 + (int)(r / 3 % 90), &slot), ST_OK);
        if (slot < 0) continue;
        for (int l = 0; l < 6; l++) /* zeroed, though the last owner painted them */
            for (enum comp c = COMP_KDA; c <= COMP_CONV; c++) {
                const uint8_t *item = state_item(&p.s, c, l, 0, slot);
                int at = layout_find(&p.s.layout, c, l, 0);
                ck_assert_int_eq(item != NULL, l % 3 != 2);
                for (int64_t b = 0; item && b < p.s.layout.entry[at].item_bytes; b++) ck_assert_int_eq(item[b], 0);
            }
        ck_assert(last_page_is_clear(&p.s, slot)); /* it travels whole: nothing of its last owner may go with it */
        paint(&p.s, slot, slot + 1);
        held[n++] = slot;
        for (int k = 0; k < n; k++) ck_assert(painted(&p.s, held[k], held[k] + 1));
    }
    while (n > 0) ck_assert_int_eq(state_release(&p.s, held[--n]), ST_OK);
    ck_assert_int_eq(p.s.n_free_pages, 60);
    ck_assert_int_eq(p.s.n_free_slots, SLOTS);
    close_pool(&p);
}
END_TEST

START_TEST(views_agree_with_the_layout)
{
    struct pool p;
    open_pool(&p, 16, 10, 3, 10, KV_BF16);
    for (int i = 0; i < p.s.layout.n; i++) {
        const struct layout_entry *e = &p.s.layout.entry[i];
        if (e->comp != COMP_MLA && e->comp != COMP_DRAFT) continue;
        struct paged v = state_paged(&p.s, e->comp, e->layer, e->kv);
        ck_assert_int_eq(v.page, 16);
        ck_assert_int_eq(v.kv, OPS_KV_BF16);
        for (int k = 0; k < 10; k++)
            ck_assert_ptr_eq((char *)v.base + k * v.stride, state_item(&p.s, e->comp, e->layer, e->kv, k));
    }
    ck_assert_ptr_null(state_paged(&p.s, COMP_MLA, 0, 0).base); /* layer 0 is KDA */
    ck_assert_ptr_null(state_paged(&p.s, COMP_DRAFT, 2, 0).base);
    ck_assert_ptr_null(state_item(&p.s, COMP_KDA, 0, 0, 3));
    ck_assert_ptr_null(state_item(&p.s, COMP_KDA, 0, 0, -1));
    ck_assert_ptr_null(state_item(&p.s, COMP_AUX, 0, 0, 0));
    close_pool(&p);
}
END_TEST

START_TEST(opening_without_a_page_table_is_refused_and_leaves_the_layout)
{
    struct config c = small_config();
    struct layout_spec spec = {.page = 16, .layers = {0, 6}, .tp = 1, .n_pages = 4, .n_slots = 1};
    struct layout l;
    struct ops o;
    struct state s;
    ck_assert_int_eq(layout_make(&c, NULL, &spec, &l), ST_OK);
    ck_assert_int_eq(ops_cpu_open(ACT_FP32, "scalar", &o), ST_OK);
    ck_assert_int_eq(state_open(&o, &l, 0, &s), ST_E_RANGE);
    ck_assert_ptr_nonnull(l.entry);
    layout_free(&l);
    state_close(NULL);
    o.close(&o);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "state", 30);
    tcase_add_test(tc, pages_and_slots_are_scattered_and_distinct);
    tcase_add_test(tc, the_order_is_the_same_in_every_pool);
    tcase_add_loop_test(tc, requests_that_can_never_fit_are_refused, 0, sizeof asks / sizeof asks[0]);
    tcase_add_test(tc, short_pools_push_back_without_taking_anything);
    tcase_add_test(tc, double_release_is_refused);
    tcase_add_loop_test(tc, admission_clears_recurrent_state_and_touches_nobody_else, 0, 2);
    tcase_add_test(tc, views_agree_with_the_layout);
    tcase_add_test(tc, opening_without_a_page_table_is_refused_and_leaves_the_layout);
}

int main(void)
{
    return suite_main_serial();
}
