#include "suite.h"

#include "config_kit.h"

const char *const suite_name = "config";

/* ---- every field in turn ----------------------------------------------------------------------------- */

START_TEST(every_target_field_is_guarded)
{
    json_t *root = base(TARGET);
    int keep = hush();
    walk(TARGET, root, "");
    unhush(keep);
    ck_assert_int_gt(n_checked, 400);
    json_decref(root);
}
END_TEST

/* ---- single edits with a verdict each ---------------------------------------------------------------- */

#define LA "text_config.linear_attn_config."
#define QC "text_config.quantization_config."

static const struct edit target_edit[] = {
    /* sizes that other checkpoints may have */
    {"text_config.hidden_size", "2048", NULL},
    {"text_config.first_k_dense_replace", "0", NULL},
    {"text_config.attn_res_block_size", "1", NULL},
    {"text_config.rms_norm_eps", "1e-6", NULL},
    {"text_config.activation_situ_beta", "4", NULL},
    {"text_config.head_dim", "74", NULL},
    {"vision_config", "{\"any\": 1}", NULL},
    /* ranges and types */
    {"text_config.hidden_size", "0", "text_config.hidden_size"},
    {"text_config.hidden_size", "256.0", "text_config.hidden_size"},
    {"text_config.hidden_size", "99999999999999", "text_config.hidden_size"},
    {"text_config.hidden_size", "4294967552", "text_config.hidden_size"}, /* 256 modulo 2^32 */
    {"text_config.num_hidden_layers", "257", "text_config.num_hidden_layers"},
    {"text_config.rms_norm_eps", "0", "text_config.rms_norm_eps"},
    {"text_config.routed_scaling_factor", "0.0", "text_config.routed_scaling_factor"},
    {"text_config.num_shared_experts", "0", "text_config.num_shared_experts"},
    {"text_config.q_lora_rank", "null", "text_config.q_lora_rank"},
    {LA "short_conv_kernel_size", "1", LA "short_conv_kernel_size"},
    {LA "head_dim", "0", LA "head_dim"},
    {LA "gate_lower_bound", "0.0", LA "gate_lower_bound"},
    /* the one value that is implemented */
    {"text_config.hidden_act", "\"silu\"", "\"situ\""},
    {"text_config.moe_layer_freq", "2", "text_config.moe_layer_freq"},
    {"text_config.num_nextn_predict_layers", "1", "text_config.num_nextn_predict_layers"},
    {"text_config.num_expert_group", "8", "text_config.num_expert_group"},
    {"text_config.tie_word_embeddings", "true", "text_config.tie_word_embeddings"},
    {"text_config.rope_theta", "10000.0", "text_config.rope_theta"},
    {"architectures", "[\"KimiK3ForConditionalGeneration\", \"Other\"]", "architectures"},
    {LA "use_full_rank_gate", "false", LA "use_full_rank_gate"},
    /* rules between fields */
    {"text_config.num_experts_per_token", "33", "num_experts_per_token: 33"},
    {"text_config.num_experts_per_token", "32", NULL},
    {"text_config.moe_intermediate_size", "48", "moe_intermediate_size: 48"},
    {"text_config.routed_expert_hidden_size", "130", "routed_expert_hidden_size: 130"},
    {"text_config.num_key_value_heads", "4", "num_key_value_heads: 4"},
    {"text_config.first_k_dense_replace", "18", "first_k_dense_replace: 18"},
    {"text_config.vocab_size", "3842", "text_config.eos_token_id: 3842"},
    {"text_config.eos_token_id", "3841", "contradicts text_config.eos_token_id (3841)"},
    {"pad_token_id", "3841", "pad_token_id: 3841"},
    {LA "num_heads", "33", LA "num_heads: 33"},
    {LA "num_heads", "32", NULL},
    /* layer lists: 1..17 between them, each once */
    {"text_config.num_hidden_layers", "16", "full_attn_layers: entry 4 is 17"},
    {"text_config.num_hidden_layers", "18", "layer 18 (1-based) of 18 is in neither list"},
    {LA "full_attn_layers", "[4, 8, 12, 17]", "layer 16 (1-based) of 17 is in neither list"},
    {LA "full_attn_layers", "[4, 8, 12, 16, 17, 4]", "layer 4 (1-based) is listed twice"},
    {LA "full_attn_layers", "[4, 8, 12, 15, 16, 17]", "layer 15 (1-based) is listed in full_attn_layers too"},
    {LA "full_attn_layers", "[0, 4, 8, 12, 16, 17]", "entry 0 is 0"},
    {LA "full_attn_layers", "[4, 8, 12, 16, 17.0]", "entry 4 is 17.0"},
    {LA "full_attn_layers", "[17, 16, 12, 8, 4]", NULL},
    {LA "kda_layers", "[1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 16]", "layer 16 (1-based) is listed in full"},
    {LA "kda_layers", "{}", LA "kda_layers"},
    /* packing */
    {QC "config_groups.group_0.weights.num_bits", "8", QC "config_groups.group_0.weights.num_bits"},
    {QC "config_groups.group_0.weights.group_size", "16", QC "config_groups.group_0.weights.group_size"},
    {QC "config_groups.group_0.input_activations", "{\"num_bits\": 8}", QC "config_groups.group_0.input_activations"},
    {QC "config_groups.group_1", "{}", QC "config_groups.group_1"},
    {QC "ignore",
     "[\"re:.*mm_projector.*\", \"re:.*vision_tower.*\", \"re:.*lm_head.*\", "
     "\"re:.*mlp\\\\.(gate|up|gate_up|down)_proj.*\", \"re:.*shared_experts.*\", \"re:.*self_attn.*\"]",
     NULL},
    {QC "ignore", "[\"re:.*self_attn.*\"]", "re:.*shared_experts.*"},
    {QC "config_groups.group_0.targets", "[\"Linear\", \"Embedding\"]", "Embedding"},
};

START_TEST(target_edits)
{
    const struct edit *e = &target_edit[_i];
    json_t *root = edited(TARGET, e->path, e->value);
    expect(TARGET, root, e->needle, e->path);
    json_decref(root);
}
END_TEST

/* ---- whole files ------------------------------------------------------------------------------------- */

START_TEST(texts_that_are_no_config)
{
    static const struct {
        const char *text, *needle;
    } bad[] = {
        {"", "JSON"},
        {"{\"architectures\": ", "JSON"},
        {"[1]", "not a JSON object"},
        {"{\"a\": 1} {}", "JSON"},
        {"{\"vocab_size\": 1, \"vocab_size\": 2}", "duplicate object key"},
        {"{\"text_config\": {\"hidden_size\": 256, \"hidden_size\": 256}}", "duplicate object key"},
        {"{\"model_type\": \"kimi_linear\", \"num_hidden_layers\": 27}", "text_config: no such object"},
        {"{\"model_type\": \"kimi_linear\", \"num_hidden_layers\": 27}", "Kimi-Linear"},
        {"{\"text_config\": 3}", "text_config"},
        {"{\"text_config\": {}}", "missing"},
    };
    for (size_t i = 0; i < N_OF(bad); i++) {
        expect_text(TARGET, bad[i].text, bad[i].needle, bad[i].text);
        if (i < 5) expect_text(DRAFT, bad[i].text, bad[i].needle, bad[i].text);
    }
    expect_text(DRAFT, "{}", "architectures: missing", "an empty draft");
}
END_TEST

START_TEST(missing_files)
{
    struct config c;
    struct draft_config d;
    char dir[600];
    ck_assert_int_eq(config_load(suite_path("inputs/nowhere"), &c), ST_E_FILE);
    ck_assert_ptr_nonnull(strstr(err_last(), "inputs/nowhere/config.json"));
    ck_assert_int_eq(config_load(suite_path(base_dir[TARGET]), &c), ST_OK);
    ck_assert_int_eq(draft_config_load(suite_path("inputs/nowhere"), &c, &d), ST_E_FILE);
    snprintf(dir, sizeof dir, "%s/config.json", suite_tmp("folder"));
    mkdir(suite_tmp("folder"), 0777);
    mkdir(dir, 0777);
    ck_assert_int_eq(config_load(suite_tmp("folder"), &c), ST_E_FILE);
    ck_assert_ptr_nonnull(strstr(err_last(), "not a regular file"));
}
END_TEST

START_TEST(nano_values_arrive)
{
    static const int mla[] = {3, 7, 11, 15, 16};
    struct config c;
    ck_assert_int_eq(config_load(suite_path(base_dir[TARGET]), &c), ST_OK);
    const int got[] = {c.n_layers, c.hidden,  c.vocab, c.max_position, c.bos,     c.eos,         c.pad,
                       c.n_kda,    c.n_mla,   c.kda_heads, c.kda_dim,  c.conv_kernel, c.mla_heads, c.q_rank,
                       c.kv_rank,  c.qk_nope, c.qk_rope, c.v_dim,      c.res_block, c.n_dense,   c.dense_inter,
                       c.n_experts, c.top_k,  c.expert_inter, c.shared_inter, c.latent};
    const int want[] = {17, 256, 4096, 1048576, 3840, 3842, 4095, 12, 5, 8,  32, 4,   8,
                        96, 64,  32,   16,      32,   3,    1,    512, 32, 4, 64, 128, 128};
    for (size_t i = 0; i < N_OF(want); i++)
        ck_assert_msg(got[i] == want[i], "value %zu: %d, not %d", i, got[i], want[i]);
    for (int l = 0; l < 17; l++) {
        int is_mla = 0;
        for (size_t i = 0; i < N_OF(mla); i++) is_mla |= mla[i] == l;
        ck_assert_int_eq(c.is_kda[l], !is_mla);
    }
    ck_assert(c.norm_eps == 1e-5f && c.latent_norm_eps == 1e-6f && c.gate_lower_bound == -5.0f);
    ck_assert(c.routed_scale == 1.0f && c.situ_beta == 4.0f && c.situ_linear_beta == 25.0f);
}
END_TEST

START_TEST(released_k3_and_its_draft_are_accepted)
{
    static const int tap[] = {19, 37, 54, 66, 78, 90};
    struct config c, nano;
    struct draft_config d;
    ck_assert_int_eq(config_load(suite_path("tests/data/k3-config"), &c), ST_OK);
    ck_assert(c.n_layers == 93 && c.hidden == 7168 && c.vocab == 163840 && c.n_kda == 69 && c.n_mla == 24);
    ck_assert(c.eos == 163586 && c.kda_heads == 96 && c.kda_dim == 128 && c.res_block == 12 && c.top_k == 16);
    ck_assert(c.n_experts == 896 && c.expert_inter == 3072 && c.shared_inter == 6144 && c.latent == 3584);
    ck_assert(c.q_rank == 1536 && c.kv_rank == 512 && c.qk_rope == 64 && c.dense_inter == 33792);
    for (int l = 0; l < 93; l++) ck_assert_int_eq(c.is_kda[l], !(l % 4 == 3 || l == 92));
    ck_assert_int_eq(draft_config_load(suite_path("tests/data/k3-dflash-config"), &c, &d), ST_OK);
    ck_assert(d.n_layers == 6 && d.kv_heads == 8 && d.window == 4096 && d.mask_id == 163592 && d.n_taps == 6);
    ck_assert_mem_eq(d.tap, tap, sizeof tap);
    for (int l = 0; l < 6; l++) ck_assert_int_eq(d.type[l], DRAFT_SLIDING);
    /* a draft of another target */
    ck_assert_int_eq(config_load(suite_path(base_dir[TARGET]), &nano), ST_OK);
    ck_assert_int_eq(draft_config_load(suite_path("tests/data/k3-dflash-config"), &nano, &d), ST_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(err_last(), "hidden_size: 7168"));
}
END_TEST

START_TEST(hash_follows_content_not_layout)
{
    struct config c;
    uint64_t h[4];
    json_t *root = base(TARGET);
    const size_t layout[3] = {JSON_COMPACT, JSON_INDENT(3), JSON_SORT_KEYS};
    for (int i = 0; i < 4; i++) {
        if (i == 3) json_object_set_new(at(root, "text_config"), "initializer_range", json_real(0.03));
        char *text = json_dumps(root, layout[i % 3]);
        write_text(text);
        free(text);
        ck_assert_int_eq(config_load(own_dir(), &c), ST_OK);
        h[i] = c.hash;
    }
    ck_assert(h[0] == h[1] && h[1] == h[2] && h[2] != h[3]);
    json_decref(root);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "config", 60);
    tcase_add_loop_test(tc, target_edits, 0, N_OF(target_edit));
    SUITE_TEST(tc, every_target_field_is_guarded);
    SUITE_TEST(tc, texts_that_are_no_config);
    SUITE_TEST(tc, missing_files);
    SUITE_TEST(tc, nano_values_arrive);
    SUITE_TEST(tc, released_k3_and_its_draft_are_accepted);
    SUITE_TEST(tc, hash_follows_content_not_layout);
}

int main(void)
{
    return suite_main_serial();
}
