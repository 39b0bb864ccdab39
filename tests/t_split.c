#include "suite.h"

#include <string.h>

#include "plan/split.h"
#include "plan/topology.h"

const char *const suite_name = "split";

START_TEST(stages_of_93_layers_over_8)
{
    static const struct {
        int begin, end, mla, bank_exit;
    } want[8] = {{0, 11, 2, 1},  {11, 22, 3, 2}, {22, 33, 3, 3}, {33, 45, 3, 4},
                 {45, 57, 3, 5}, {57, 69, 3, 6}, {69, 81, 3, 7}, {81, 93, 4, 8}};
    for (int s = 0; s < 8; s++) {
        struct range r = split_stage(93, 8, s);
        int mla = 0;
        for (int i = r.begin; i < r.end; i++) mla += i % 4 == 3 || i == 92;
        ck_assert_int_eq(r.begin, want[s].begin);
        ck_assert_int_eq(r.end, want[s].end);
        ck_assert_int_eq(mla, want[s].mla);
        ck_assert_int_eq(split_bank_rows(12, r.end), want[s].bank_exit);
    }
    ck_assert_int_eq(split_bank_rows(12, 0), 0);
    ck_assert_int_eq(split_bank_rows(12, 1), 1);
    ck_assert_int_eq(split_bank_rows(12, 12), 1);
    ck_assert_int_eq(split_bank_rows(12, 13), 2);
    ck_assert_int_eq(split_bank_rows(3, 17), 6);
}
END_TEST

START_TEST(every_layer_has_one_stage_and_late_stages_are_larger)
{
    for (int n = 1; n < 40; n++)
        for (int pp = 1; pp <= n; pp++) {
            int at = 0, last = 0;
            for (int s = 0; s < pp; s++) {
                struct range r = split_stage(n, pp, s);
                ck_assert_int_eq(r.begin, at);
                ck_assert_int_gt(r.end, r.begin);
                ck_assert_int_ge(r.end - r.begin, last);
                ck_assert_int_le(r.end - r.begin, n / pp + 1);
                for (int i = r.begin; i < r.end; i++) ck_assert_int_eq(split_stage_of(n, pp, i), s);
                last = r.end - r.begin;
                at = r.end;
            }
            ck_assert_int_eq(at, n);
        }
}
END_TEST

static const struct tap_case {
    const char *what;
    int n_layers, pp, n_taps, tap[6];
    int owner[6]; /* stage of each tap, in the order of tap */
} tap_cases[] = {
    {"K3 DFlash", 93, 8, 6, {19, 37, 54, 66, 78, 90}, {1, 3, 4, 5, 6, 7}},
    {"K3 DSpark", 93, 8, 5, {7, 23, 51, 67, 83}, {0, 2, 4, 5, 7}},
    {"nano", 17, 8, 6, {3, 6, 9, 12, 14, 15}, {2, 3, 5, 6, 7, 7}},
    {"one stage", 17, 1, 6, {3, 6, 9, 12, 14, 15}, {0, 0, 0, 0, 0, 0}},
    {"last layer of a stage belongs to the next", 8, 4, 4, {1, 3, 5, 6}, {1, 2, 3, 3}},
    {"last layer of the model stays", 8, 4, 2, {7, 0}, {3, 0}},
    {"all on the first stage, out of order", 12, 2, 3, {4, 0, 2}, {0, 0, 0}},
    {"a layer a stage", 5, 5, 3, {0, 4, 2}, {1, 4, 3}},
};

START_TEST(taps_belong_to_the_owner_of_the_next_layer)
{
    const struct tap_case *x = &tap_cases[_i];
    struct draft_config d = {.n_taps = x->n_taps};
    memcpy(d.tap, x->tap, sizeof x->tap);
    int seen = 0;
    for (int i = 0; i < x->n_taps; i++)
        ck_assert_msg(split_tap_stage(x->n_layers, x->pp, x->tap[i]) == x->owner[i], "%s tap %d", x->what, x->tap[i]);
    for (int s = 0; s < x->pp; s++) {
        int index[CONFIG_MAX_TAPS], n = split_taps(&d, x->n_layers, x->pp, s, index);
        for (int k = 0; k < n; k++) {
            ck_assert_msg(x->owner[index[k]] == s, "%s stage %d", x->what, s);
            if (k) ck_assert_int_gt(x->tap[index[k]], x->tap[index[k - 1]]);
        }
        seen += n;
    }
    ck_assert_int_eq(seen, x->n_taps);
}
END_TEST

START_TEST(leaves_are_whole_and_at_most_32)
{
    static const struct {
        int width, cols;
    } want[] = {{512, 16}, {128, 16}, {33792, 1056}, {6144, 192}, {14336, 448}, {16, 16}, {48, 48}, {64, 16},
                {1024, 32}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        ck_assert_int_eq(split_leaf_cols(want[i].width), want[i].cols);
    for (int w = 16; w < 5000; w += 16) {
        int leaves = w / split_leaf_cols(w);
        ck_assert_int_eq(w % split_leaf_cols(w), 0);
        ck_assert_int_eq(split_leaf_cols(w) % 16, 0);
        ck_assert(leaves <= 32 && (leaves & (leaves - 1)) == 0);
    }
}
END_TEST

START_TEST(experts_by_ep_and_columns_by_block_groups)
{
    static const struct {
        int inter, n_experts, groups, tp, ep; /* ep: the default for tp */
    } want[] = {{64, 32, 2, 1, 1},     {64, 32, 2, 2, 1},     {64, 32, 2, 4, 2},      {64, 32, 2, 8, 4},
                {64, 32, 2, 16, 8},    {64, 32, 2, 64, 32},   {64, 32, 2, 128, -1}, {64, 33, 2, 3, 3},
                {3072, 896, 32, 32, 1},
                {3072, 896, 32, 4, 1}, {3072, 896, 32, 64, 2}, {3072, 896, 32, 7, 7}, {96, 32, 1, 2, 2},
                {2048, 8, 32, 8, 1},   {4096, 8, 32, 64, 2},  {48, 8, 1, 1, -1}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct config c = {.expert_inter = want[i].inter, .n_experts = want[i].n_experts};
        ck_assert_int_eq(split_block_groups(&c), want[i].groups);
        ck_assert_msg(split_ep_default(&c, want[i].tp) == want[i].ep, "width %d tp %d: %d", want[i].inter, want[i].tp,
                      split_ep_default(&c, want[i].tp));
    }
    struct config k3 = {.expert_inter = 3072, .n_experts = 896};
    for (int moe_tp = 1; moe_tp <= 32; moe_tp *= 2)
        for (int r = 0; r < moe_tp; r++) {
            struct range x = split_expert_cols(&k3, moe_tp, r);
            ck_assert_int_eq(x.begin, r * 3072 / moe_tp);
            ck_assert_int_eq(x.end, (r + 1) * 3072 / moe_tp);
            ck_assert_int_eq(x.begin % 32, 0);
        }
    for (int r = 0; r < 4; r++) {
        struct range x = split_experts(896, 4, r);
        ck_assert(x.begin == r * 224 && x.end == x.begin + 224);
    }
}
END_TEST

/* EP inside TP: every 32-block of every expert lies on exactly one rank, and all ranks hold equally many */
START_TEST(every_expert_block_has_one_rank)
{
    static const struct {
        int inter, n_experts, tp, ep;
    } at[] = {{3072, 896, 32, 4}, {3072, 896, 4, 4}, {3072, 896, 32, 32}, {3072, 896, 32, 1}, {256, 16, 32, 4}, {256, 16, 4, 4}};
    static uint8_t owners[896][96];
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        struct config c = {.expert_inter = at[i].inter, .n_experts = at[i].n_experts};
        struct topology t = {.decode = {1, at[i].tp, at[i].ep}, .n_decode = at[i].tp, .n_ranks = at[i].tp};
        memset(owners, 0, sizeof owners);
        for (int r = 0; r < at[i].tp; r++) {
            struct rank_role role = topology_role(&t, r);
            struct range e = split_experts(c.n_experts, at[i].ep, role.ep_rank);
            struct range cols = split_expert_cols(&c, at[i].tp / at[i].ep, role.moe_rank);
            ck_assert(cols.begin % 32 == 0 && cols.end % 32 == 0 && cols.end > cols.begin);
            ck_assert_int_eq((e.end - e.begin) * (cols.end - cols.begin) * at[i].tp, c.n_experts * c.expert_inter);
            for (int x = e.begin; x < e.end; x++)
                for (int b = cols.begin / 32; b < cols.end / 32; b++) owners[x][b]++;
        }
        for (int x = 0; x < c.n_experts; x++)
            for (int b = 0; b < c.expert_inter / 32; b++) ck_assert_int_eq(owners[x][b], 1);
    }
}
END_TEST

START_TEST(heads_by_division_never_modulo)
{
    for (int r = 0; r < 32; r++) { /* 8 heads over 32 ranks: four ranks a head */
        struct range x = split_kv_heads(8, 32, r);
        ck_assert(x.begin == r / 4 && x.end == r / 4 + 1);
    }
    ck_assert_int_eq(split_kv_heads(8, 32, 1).begin, 0); /* modulo would say 1 */
    for (int heads = 1; heads <= 16; heads++)
        for (int tp = 1; tp <= 64; tp++) {
            if (heads % tp && tp % heads) continue;
            int holders[16] = {0};
            for (int r = 0; r < tp; r++) {
                struct range x = split_kv_heads(heads, tp, r);
                ck_assert(x.begin >= 0 && x.begin < x.end && x.end <= heads);
                for (int h = x.begin; h < x.end; h++) holders[h]++;
                if (r) ck_assert_int_ge(x.begin, split_kv_heads(heads, tp, r - 1).begin);
            }
            for (int h = 0; h < heads; h++) ck_assert_int_eq(holders[h], tp > heads ? tp / heads : 1);
        }
}
END_TEST

START_TEST(chunks_cover_a_prompt_and_end_on_pages)
{
    static const struct { int pos, tokens, chunk, page, end; } want[] = {
        {0, 5, 8, 8, 5},    {0, 8, 8, 8, 8},     {0, 20, 8, 8, 8},   {8, 20, 8, 8, 16}, {16, 20, 8, 8, 20},
        {0, 100, 20, 8, 16}, {16, 100, 20, 8, 32}, {0, 20, 7, 64, 7},  {14, 20, 7, 64, 20}, {0, 1, 8192, 64, 1},
        {3, 100, 9, 8, 8},   {0, 2147483647, 2147483647, 64, 2147483647}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        ck_assert_int_eq(split_chunk_end(want[i].pos, want[i].tokens, want[i].chunk, want[i].page), want[i].end);
    ck_assert_int_eq(split_pages(0, 64), 0);
    ck_assert_int_eq(split_pages(1, 64), 1);
    ck_assert_int_eq(split_pages(64, 64), 1);
    ck_assert_int_eq(split_pages(65, 64), 2);
    ck_assert_int_eq(split_pages(2147483647, 64), 33554432);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "split", 20);
    SUITE_TEST(tc, chunks_cover_a_prompt_and_end_on_pages);
    SUITE_TEST(tc, stages_of_93_layers_over_8);
    SUITE_TEST(tc, every_layer_has_one_stage_and_late_stages_are_larger);
    tcase_add_loop_test(tc, taps_belong_to_the_owner_of_the_next_layer, 0, sizeof tap_cases / sizeof tap_cases[0]);
    SUITE_TEST(tc, leaves_are_whole_and_at_most_32);
    SUITE_TEST(tc, experts_by_ep_and_columns_by_block_groups);
    SUITE_TEST(tc, every_expert_block_has_one_rank);
    SUITE_TEST(tc, heads_by_division_never_modulo);
}

int main(void)
{
    return suite_main_serial();
}
