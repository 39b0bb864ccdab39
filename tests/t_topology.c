#include "suite.h"

#include <string.h>

#include "base/log.h"
#include "plan/split.h"
#include "plan/topology.h"

const char *const suite_name = "topology";

static struct config nano(void)
{
    struct config c = {.n_layers = 17, .hidden = 256, .vocab = 4096, .n_kda = 12, .n_mla = 5, .kda_heads = 8,
                       .kda_dim = 32, .conv_kernel = 4, .mla_heads = 8, .n_dense = 1, .dense_inter = 512,
                       .n_experts = 32, .top_k = 4, .expert_inter = 64, .shared_inter = 128, .latent = 128};
    for (int i = 0; i < 17; i++) c.is_kda[i] = i % 4 != 3 && i != 16;
    return c;
}

static struct draft_config nano_draft(void)
{
    return (struct draft_config){.n_layers = 3, .hidden = 256, .vocab = 4096, .q_heads = 16, .kv_heads = 8,
                                 .head_dim = 32, .inter = 512, .block = 16};
}

static struct config k3(void)
{
    struct config c = nano();
    c.n_layers = 93, c.hidden = 7168, c.vocab = 163840, c.n_kda = 69, c.n_mla = 24, c.kda_heads = c.mla_heads = 96;
    c.dense_inter = 33792, c.n_experts = 896, c.expert_inter = 3072, c.shared_inter = 6144;
    for (int i = 0; i < 93; i++) c.is_kda[i] = i % 4 != 3 && i != 92;
    return c;
}

static const struct parse_case {
    const char *text;
    struct group want; /* pp 0: refused */
    const char *says;
} parse_cases[] = {
    {"pp=8,tp=4,ep=4", {8, 4, 4}, NULL},
    {"ep=2,pp=3,tp=16", {3, 16, 2}, NULL},
    {"tp=32", {1, 32, 0}, NULL},
    {"pp=8", {8, 1, 0}, NULL},
    {"ep=1", {1, 1, 1}, NULL},
    {"pp=08", {8, 1, 0}, NULL},
    {"pp=65536", {65536, 1, 0}, NULL},
    {"", {0}, "pp=N"},
    {",", {0}, "pp=N"},
    {"pp=8,", {0}, "pp=N"},
    {",pp=8", {0}, "pp=N"},
    {"pp", {0}, "'pp' is not"},
    {"pp=", {0}, "missing"},
    {"pp=,tp=2", {0}, "missing"},
    {"dp=2", {0}, "'dp=2' is not"},
    {"ppp=2", {0}, "'ppp=2' is not"},
    {"PP=2", {0}, "'PP=2' is not"},
    {"p=2", {0}, "'p=2' is not"},
    {"pp=2,pp=2", {0}, "pp is given twice"},
    {"tp=0", {0}, "less than 1"},
    {"ep=0", {0}, "less than 1"},
    {"tp=-4", {0}, "'-4' is not a number"},
    {"tp=+4", {0}, "not a number"},
    {"tp=4x", {0}, "'4x' is not a number"},
    {"tp= 4", {0}, "not a number"},
    {"tp=4 ", {0}, "not a number"},
    {"tp=1.5", {0}, "not a number"},
    {"tp==4", {0}, "not a number"},
    {"tp=65537", {0}, "more than"},
    {"tp=99999999999999999999", {0}, "more than"},
    {"tp=4;pp=2", {0}, "not a number"},
};

START_TEST(group_text)
{
    const struct parse_case *x = &parse_cases[_i];
    struct group g = {-7, -7, -7};
    enum status st = group_parse(x->text, "prefill", &g);
    if (x->want.pp) {
        ck_assert_int_eq(st, ST_OK);
        ck_assert(g.pp == x->want.pp && g.tp == x->want.tp && g.ep == x->want.ep);
        return;
    }
    ck_assert_msg(st == ST_E_USAGE, "'%s' accepted", x->text);
    ck_assert_int_eq(g.pp, -7); /* set only on success */
    ck_assert_msg(strstr(err_last(), x->says) && strstr(err_last(), "--prefill"), "'%s': %s", x->text, err_last());
}
END_TEST

/* nano with one field changed, or none; both groups are asked for as given */
enum field { NONE, KDA, MLA, VOCAB, DENSE, SHARED, INTER, EXPERTS, Q_HEADS, KV_HEADS, D_INTER, NO_DRAFT, NO_KDA,
    NO_MOE };

static const struct make_case {
    enum field field;
    int value;
    struct group p, d;
    const char *says[4]; /* words of the refusal; none: accepted */
    int p_ep, d_ep;      /* when accepted */
} make_cases[] = {
    {NONE, 0, {8, 1, 0}, {1, 8, 0}, {0}, 1, 4},
    {NONE, 0, {2, 2, 0}, {1, 4, 0}, {0}, 1, 2},
    {NONE, 0, {2, 2, 2}, {1, 4, 4}, {0}, 2, 4},
    {NONE, 0, {17, 8, 8}, {1, 1, 1}, {0}, 8, 1},
    {KV_HEADS, 2, {1, 8, 0}, {1, 4, 0}, {0}, 4, 2},
    {NO_DRAFT, 0, {1, 4, 0}, {1, 2, 0}, {0}, 2, 1},
    {NO_KDA, 5, {1, 4, 0}, {1, 2, 0}, {0}, 2, 1},
    {NO_MOE, 0, {1, 4, 0}, {1, 2, 2}, {0}, 1, 2},
    {NONE, 0, {8, 1, 0}, {2, 4, 0}, {"decode", "pp 2", "one stage", "tp"}, 0, 0},
    {NONE, 0, {18, 1, 0}, {1, 1, 0}, {"prefill", "pp 18", "num_hidden_layers 17", "stage"}, 0, 0},
    {NONE, 0, {0, 1, 0}, {1, 1, 0}, {"prefill", "pp 0", "start at 1"}, 0, 0},
    {NONE, 0, {1, 1, 0}, {1, 0, 0}, {"decode", "tp 0", "start at 1"}, 0, 0},
    {NONE, 0, {1, 1, -1}, {1, 1, 0}, {"prefill", "ep -1", "left out"}, 0, 0},
    {NONE, 0, {17, 65536, 0}, {1, 1, 0}, {"prefill", "tp 65536", "ranks"}, 0, 0},
    {NONE, 0, {1, 16, 0}, {1, 1, 0}, {"prefill", "tp 16", "linear_attn_config.num_heads 8", "choose"}, 0, 0},
    {NONE, 0, {1, 3, 0}, {1, 1, 0}, {"prefill", "tp 3", "linear_attn_config.num_heads 8"}, 0, 0},
    {KDA, 12, {1, 1, 0}, {1, 8, 0}, {"decode", "tp 8", "linear_attn_config.num_heads 12"}, 0, 0},
    {MLA, 4, {1, 8, 0}, {1, 1, 0}, {"prefill", "tp 8", "num_attention_heads 4", "choose"}, 0, 0},
    {VOCAB, 4098, {1, 1, 0}, {1, 4, 0}, {"decode", "tp 4", "vocab_size 4098", "choose"}, 0, 0},
    {DENSE, 32, {1, 4, 0}, {1, 1, 0}, {"prefill", "tp 4", "2 leaves of intermediate_size 32", "choose"}, 0, 0},
    {DENSE, 520, {1, 1, 0}, {1, 1, 0}, {"decode", "intermediate_size 520", "multiple of 16"}, 0, 0},
    {DENSE, 0, {1, 1, 0}, {1, 1, 0}, {"decode", "intermediate_size 0", "multiple of 16"}, 0, 0},
    {SHARED, 64, {1, 1, 0}, {1, 8, 0}, {"decode", "tp 8", "4 leaves of num_shared_experts"}, 0, 0},
    {SHARED, 72, {1, 1, 0}, {1, 1, 0}, {"decode", "num_shared_experts", "72", "multiple of 16"}, 0, 0},
    {INTER, 48, {1, 1, 0}, {1, 1, 0}, {"decode", "moe_intermediate_size 48", "blocks of 32"}, 0, 0},
    {INTER, 0, {1, 1, 0}, {1, 1, 0}, {"decode", "moe_intermediate_size 0", "blocks of 32"}, 0, 0},
    {EXPERTS, 3, {1, 1, 0}, {1, 8, 0}, {"decode", "no ep fits tp 8", "num_experts 3", "choose"}, 0, 0},
    {EXPERTS, 3, {1, 1, 0}, {1, 2, 2}, {"decode", "ep 2", "num_experts 3", "leave ep out"}, 0, 0},
    {NONE, 0, {1, 4, 3}, {1, 1, 0}, {"prefill", "ep 3", "tp 4", "leave ep out"}, 0, 0},
    {NONE, 0, {1, 1, 0}, {1, 2, 4}, {"decode", "ep 4", "tp 2", "leave ep out"}, 0, 0},
    {NONE, 0, {1, 1, 0}, {1, 8, 2}, {"decode", "tp/ep = 4", "2 block groups", "moe_intermediate_size 64"}, 0, 0},
    {NONE, 0, {1, 4, 1}, {1, 1, 0}, {"prefill", "tp/ep = 4", "2 block groups", "raise ep"}, 0, 0},
    {NO_MOE, 0, {1, 4, 3}, {1, 1, 0}, {"prefill", "ep 3", "tp 4"}, 0, 0},
    {Q_HEADS, 4, {1, 1, 0}, {1, 8, 0}, {"decode", "tp 8", "draft's num_attention_heads 4", "choose"}, 0, 0},
    {KV_HEADS, 12, {1, 1, 0}, {1, 8, 0}, {"decode", "tp 8", "num_key_value_heads 12", "divide one another"}, 0, 0},
    {KV_HEADS, 3, {1, 4, 0}, {1, 1, 0}, {"prefill", "tp 4", "num_key_value_heads 3", "choose"}, 0, 0},
    {D_INTER, 64, {1, 8, 0}, {1, 1, 0}, {"prefill", "tp 8", "4 leaves of the draft's intermediate_size 64"}, 0, 0},
    {D_INTER, 100, {1, 1, 0}, {1, 1, 0}, {"decode", "draft's intermediate_size 100", "multiple of 16"}, 0, 0},
};

static void change(enum field f, int v, struct config *c, struct draft_config *d)
{
    switch (f) {
    case KDA: c->kda_heads = v; break;
    case MLA: c->mla_heads = v; break;
    case VOCAB: c->vocab = v; break;
    case DENSE: c->dense_inter = v; break;
    case SHARED: c->shared_inter = v; break;
    case INTER: c->expert_inter = v; break;
    case EXPERTS: c->n_experts = v; break;
    case Q_HEADS: d->q_heads = v; break;
    case KV_HEADS: d->kv_heads = v; break;
    case D_INTER: d->inter = v; break;
    case NO_KDA: c->n_kda = 0, c->kda_heads = v; break;
    case NO_MOE: c->n_dense = c->n_layers; break;
    default: break;
    }
}

START_TEST(groups_checked)
{
    const struct make_case *x = &make_cases[_i];
    struct config c = nano();
    struct draft_config d = nano_draft();
    struct topology t = {.n_ranks = -7};
    change(x->field, x->value, &c, &d);
    enum status st = topology_make(&c, x->field == NO_DRAFT ? NULL : &d, &x->p, &x->d, 0, &t);
    if (!x->says[0]) {
        ck_assert_msg(st == ST_OK, "case %d: %s", _i, err_last());
        ck_assert_int_eq(t.prefill.ep, x->p_ep);
        ck_assert_int_eq(t.decode.ep, x->d_ep);
        ck_assert_int_eq(t.n_ranks, x->p.pp * x->p.tp + x->d.tp);
        return;
    }
    ck_assert_msg(st == ST_E_CONFIG, "case %d accepted", _i);
    ck_assert_int_eq(t.n_ranks, -7);
    for (int i = 0; i < 4 && x->says[i]; i++)
        ck_assert_msg(strstr(err_last(), x->says[i]), "case %d: '%s' not in: %s", _i, x->says[i], err_last());
}
END_TEST

START_TEST(legal_sizes_of_both_models)
{
    struct config n = nano(), k = k3();
    struct draft_config dn = nano_draft(), dk = nano_draft();
    dk.q_heads = 64, dk.inter = 14336;
    for (int P = 1; P <= 64; P++)
        for (int D = 1; D <= 64; D++) {
            struct topology t;
            struct group p = {1, P, 0}, d = {1, D, 0};
            int power = (P & (P - 1)) == 0 && (D & (D - 1)) == 0;
            log_mute(1);
            if (P <= 16 && D <= 16)
                ck_assert_int_eq(topology_make(&n, &dn, &p, &d, 0, &t) == ST_OK, power && P <= 8 && D <= 8);
            if (power) ck_assert_int_eq(topology_make(&k, &dk, &p, &d, 0, &t) == ST_OK, P <= 32 && D <= 32);
        }
}
END_TEST

START_TEST(roles_are_stage_major_and_reversible)
{
    struct config c = k3();
    struct topology t;
    struct group p = {8, 4, 4}, d = {1, 32, 4};
    char text[64];
    ck_assert_int_eq(topology_make(&c, NULL, &p, &d, 0, &t), ST_OK);
    ck_assert(t.n_prefill == 32 && t.n_decode == 32 && t.n_ranks == 64 && !t.single);
    for (int r = 0; r < 64; r++) {
        struct rank_role x = topology_role(&t, r);
        if (r < 32) {
            ck_assert(x.role == ROLE_PREFILL && x.stage == r / 4 && x.tp_rank == r % 4);
            ck_assert(x.ep_rank == r % 4 && x.moe_rank == 0);
            ck_assert(x.first_stage == (r < 4) && x.last_stage == (r >= 28));
            ck_assert_int_eq(topology_prefill_rank(&t, x.stage, x.tp_rank), r);
        } else {
            ck_assert(x.role == ROLE_DECODE && x.stage == 0 && x.tp_rank == r - 32);
            ck_assert(x.ep_rank == (r - 32) / 8 && x.moe_rank == (r - 32) % 8);
            ck_assert(x.first_stage == 1 && x.last_stage == 1);
            ck_assert_int_eq(topology_decode_rank(&t, x.tp_rank), r);
        }
    }
    topology_text(&t, text, sizeof text);
    ck_assert_str_eq(text, "pp8tp4ep4/tp32ep4");
    topology_text(&t, text, 6); /* cut, not overrun */
    ck_assert_str_eq(text, "pp8tp");
}
END_TEST

START_TEST(single_has_one_group)
{
    struct config c = nano();
    struct draft_config dr = nano_draft();
    struct topology t;
    struct group p = {3, 5, 7}, d = {1, 8, 0}; /* prefill is not looked at */
    char text[64];
    ck_assert_int_eq(topology_make(&c, &dr, &p, &d, 1, &t), ST_OK);
    ck_assert(t.single == 1 && t.n_prefill == 0 && t.n_ranks == 8);
    ck_assert(t.prefill.pp == 0 && t.prefill.tp == 0 && t.prefill.ep == 0);
    for (int r = 0; r < 8; r++) {
        struct rank_role x = topology_role(&t, r);
        ck_assert(x.role == ROLE_DECODE && x.tp_rank == r && x.ep_rank == r / 2 && x.moe_rank == r % 2);
    }
    topology_text(&t, text, sizeof text);
    ck_assert_str_eq(text, "single tp8ep4");
    ck_assert_int_eq(topology_make(&c, &dr, NULL, &d, 1, &t), ST_OK);
    d.pp = 2;
    ck_assert_int_eq(topology_make(&c, &dr, NULL, &d, 1, &t), ST_E_CONFIG);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "topology", 20);
    tcase_add_loop_test(tc, group_text, 0, sizeof parse_cases / sizeof parse_cases[0]);
    tcase_add_loop_test(tc, groups_checked, 0, sizeof make_cases / sizeof make_cases[0]);
    SUITE_TEST(tc, legal_sizes_of_both_models);
    SUITE_TEST(tc, roles_are_stage_major_and_reversible);
    SUITE_TEST(tc, single_has_one_group);
}

int main(void)
{
    return suite_main_serial();
}
