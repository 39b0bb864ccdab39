/* What a node's decode ranks share, and the byte totals of the seed topology, on the released configuration. */
#include "plan_kit.h"

#include "plan/memory.h"

const char *const suite_name = "share";

/* The slots of a node's ranks, taken together, hold every entry that each of them needs, once. */
START_TEST(shared_slots_get_every_value_once)
{
    static const int node_size[] = {2, 3, 8, 32};
    int P = 1 << _i / 6, D = 1 << _i % 6;
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < 4; v++) {
            struct world w = small(32, v & 1 ? 2 : 8, P, D);
            w.node_size = node_size[k];
            w.stripe = v >> 1;
            w.order = v & 1 ? PAGE_TOKEN_MAJOR : PAGE_HEAD_MAJOR;
            must_arrive(&w);
            int node[32];
            share_nodes(D, w.node_size, node);
            struct share share = {D, node};
            for (int q = 0; q < D; q++) {
                struct layout mine = slot(&w, q);
                struct world alone = w;
                alone.node_size = 0;
                struct layout all = slot(&alone, q);
                for (int i = 0; i < all.n; i++) {
                    const struct layout_entry *e = &all.entry[i];
                    int owner = share_owner(&share, &w.d, e->comp, q), here = layout_find(&mine, e->comp, e->layer, e->kv);
                    struct layout his = slot(&w, owner);
                    int there = layout_find(&his, e->comp, e->layer, e->kv);
                    ck_assert(node[owner] == node[q] && owner <= q && (here >= 0) == (owner == q) && there >= 0);
                    ck_assert(his.entry[there].head0 == e->head0 && his.entry[there].item_bytes == e->item_bytes);
                    ck_assert(owner == q || e->comp == COMP_MLA || e->comp == COMP_DRAFT);
                    layout_free(&his);
                }
                layout_free(&mine), layout_free(&all);
            }
        }
}
END_TEST


/* ---- the released model, prefill PP8 x TP4, decode TP32 --------------------------------------------------------- */

struct totals {
    int64_t wire[COMP_N];              /* to all destinations */
    int64_t sent[8][4][COMP_N];        /* by a source */
    int64_t to_rank[32][COMP_N];
};

/* everything the plan moves for n_pages pages; node_size 0: nothing shared */
static void total(int P, int n_pages, int node_size, struct totals *x)
{
    static struct config c;
    static struct draft_config d;
    const struct group p = {8, P, P}, q = {1, 32, 4};
    struct topology t;
    int node[32];
    ck_assert_int_eq(config_load(suite_path("tests/data/k3-config"), &c), ST_OK);
    ck_assert_int_eq(draft_config_load(suite_path("tests/data/k3-dflash-config"), &c, &d), ST_OK);
    ck_assert_int_eq(topology_make(&c, &d, &p, &q, 0, &t), ST_OK);
    share_nodes(32, node_size ? node_size : 1, node);
    struct plan_options o = {.page = 64, .max_tokens = 9000, .max_prompt = 8192, .concurrency = 1, .prefill_slots = 1,
                             .staging_slots = 1, .chunk = 8192, .stripe = 1, .share = {node_size ? 32 : 0, node}};
    memset(x, 0, sizeof *x);
    for (int i = 0; i < 8 * P; i++)
        for (int r = 0; r < 32; r++) {
            struct layout src, dst;
            struct pair_plan pair;
            ck_assert_int_eq(memory_source_layout(&c, &d, &t, &o, i / P, i % P, &src), ST_OK);
            ck_assert_int_eq(memory_slot_layout(&c, &d, &t, &o, r, &dst), ST_OK);
            ck_assert_int_eq(transfer_plan_pair(&c, &d, &src, i / P, i / P == 7, &dst, o.stripe, &pair), ST_OK);
            for (int k = 0; k < COMP_N; k++) {
                int64_t b = transfer_plan_bytes(&pair, (enum comp)k, n_pages, NULL);
                x->wire[k] += b;
                x->to_rank[r][k] += b;
                if (P == 4) x->sent[i / P][i % P][k] += b;
            }
            transfer_plan_free(&pair);
            layout_free(&src), layout_free(&dst);
        }
}

/* pd-systems 2.5 to 2.7 */
START_TEST(a_page_of_the_seed_has_the_published_bytes)
{
    static struct totals x;
    total(4, 1, 0, &x);
    ck_assert_int_eq(x.wire[COMP_DRAFT], 6291456);
    ck_assert_int_eq(x.wire[COMP_MLA], 56623104);
    ck_assert_int_eq(x.wire[COMP_KDA], 434110464);
    ck_assert_int_eq(x.wire[COMP_CONV], 15261696);
    ck_assert_int_eq(x.wire[COMP_AUX], 32 * 64);
    for (int r = 0; r < 32; r++) {
        ck_assert_int_eq(x.to_rank[r][COMP_DRAFT], 196608);
        ck_assert_int_eq(x.to_rank[r][COMP_MLA], 1769472);
        ck_assert_int_eq(x.to_rank[r][COMP_KDA] + x.to_rank[r][COMP_CONV], 14042880);
    }
    for (int p = 0; p < 4; p++) {
        ck_assert_int_eq(x.sent[7][p][COMP_DRAFT], 1572864);
        for (int stage = 0; stage < 7; stage++) ck_assert_int_eq(x.sent[stage][p][COMP_DRAFT] + x.sent[stage][p][COMP_AUX], 0);
    }
    total(4, 128, 0, &x);
    ck_assert_int_eq(x.wire[COMP_DRAFT], 805306368);
    ck_assert_int_eq(x.wire[COMP_MLA], 7247757312); /* 32 times 226,492,416 */
    for (int p = 0; p < 4; p++) ck_assert_int_eq(x.sent[7][p][COMP_DRAFT], 201326592);
}
END_TEST

/* one copy a node: the unique bytes times the nodes (MLA), the unique bytes (draft, whose heads lie in one node each) */
START_TEST(sharing_moves_one_copy_a_node)
{
    static const struct {
        int node_size, nodes, draft;
    } at[] = {{8, 4, 1}, {16, 2, 1}, {32, 1, 1}, {4, 8, 1}, {2, 16, 2}, {1, 32, 4}};
    static struct totals x;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        total(4, 128, at[i].node_size, &x);
        ck_assert_int_eq(x.wire[COMP_MLA], at[i].nodes * (int64_t)226492416);
        ck_assert_int_eq(x.wire[COMP_DRAFT], at[i].draft * (int64_t)201326592);
        ck_assert_int_eq(x.wire[COMP_KDA] + x.wire[COMP_CONV], 449372160); /* never shared */
        ck_assert_int_eq(x.wire[COMP_AUX], 32 * 64);
        /* no source sends what others could: the replicated rows come from all of a stage's ranks in equal parts */
        for (int stage = 0; stage < 8; stage++)
            for (int p = 1; p < 4; p++)
                for (int k = 0; k < COMP_N; k++)
                    ck_assert_msg(x.sent[stage][p][k] == x.sent[stage][0][k],
                                  "nodes of %d, stage %d, %s: rank 0 sends %ld, rank %d %ld", at[i].node_size, stage,
                                  comp_name[k], (long)x.sent[stage][0][k], p, (long)x.sent[stage][p][k]);
    }
}
END_TEST

/* Sources that hold the same draft heads (P 16: two each) share the pages of a node's copy. */
START_TEST(replicated_heads_are_sent_by_all_who_hold_them)
{
    struct world w = small(32, 8, 16, 32);
    w.pp = 1, w.stripe = 1;
    for (int shared = 0; shared < 2; shared++) {
        int64_t sent[16] = {0}, mla[16] = {0};
        w.node_size = shared ? 8 : 0;
        for (int p = 0; p < 16; p++)
            for (int q = 0; q < 32; q++) {
                struct layout src = source(&w, 0, p), dst = slot(&w, q);
                struct pair_plan x;
                ck_assert_int_eq(pair(&w, &src, 0, &dst, &x), ST_OK);
                sent[p] += transfer_plan_bytes(&x, COMP_DRAFT, 12, NULL);
                mla[p] += transfer_plan_bytes(&x, COMP_MLA, 12, NULL);
                transfer_plan_free(&x);
                layout_free(&src), layout_free(&dst);
            }
        for (int p = 0; p < 16; p++)
            ck_assert_msg(sent[p] > 0 && mla[p] > 0 && sent[p] == sent[0] && mla[p] == mla[0],
                          "shared %d: source %d sends %ld and %ld, source 0 %ld and %ld", shared, p, (long)sent[p], (long)mla[p],
                          (long)sent[0], (long)mla[0]);
    }
}
END_TEST

START_TEST(a_slot_may_leave_only_rows_and_draft_to_others)
{
    struct world w = small(8, 4, 2, 2);
    struct layout l;
    struct layout_spec s = spec_of(&w, 2, 1);
    s.layers = (struct range){0, 6};
    s.n_pages = s.n_slots = 1;
    s.absent = 1u << COMP_KDA;
    ck_assert_int_eq(layout_make(&w.c, NULL, &s, &l), ST_E_CONFIG);
    s.absent = 1u << COMP_MLA;
    ck_assert_int_eq(layout_make(&w.c, NULL, &s, &l), ST_OK);
    ck_assert_int_eq(layout_find(&l, COMP_MLA, 2, 0), -1);
    ck_assert_int_ge(layout_find(&l, COMP_KDA, 0, 0), 0);
    layout_free(&l);
    /* a slot that has rows although it says another rank receives them is refused on both sides' behalf */
    struct layout src = source(&w, 0, 0), dst = slot(&w, 1);
    struct pair_plan p;
    dst.spec.absent = 1u << COMP_DRAFT;
    ck_assert_int_eq(transfer_plan_pair(&w.c, &w.d, &src, 0, 0, &dst, 0, &p), ST_OK); /* no draft comes from this stage */
    transfer_plan_free(&p);
    layout_free(&src);
    src = source(&w, 1, 0);
    ck_assert_int_eq(transfer_plan_pair(&w.c, &w.d, &src, 1, 1, &dst, 0, &p), ST_E_HANDSHAKE);
    layout_free(&src), layout_free(&dst);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "share", 300);
    tcase_add_loop_test(tc, shared_slots_get_every_value_once, 0, 24);
    SUITE_TEST(tc, a_page_of_the_seed_has_the_published_bytes);
    SUITE_TEST(tc, sharing_moves_one_copy_a_node);
    SUITE_TEST(tc, replicated_heads_are_sent_by_all_who_hold_them);
    SUITE_TEST(tc, a_slot_may_leave_only_rows_and_draft_to_others);
}

int main(void)
{
    return suite_main_serial();
}
