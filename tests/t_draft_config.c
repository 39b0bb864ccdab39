/* config.json of drafts: DFlash and DSpark, both placements, both RoPE spellings, everything else refused by name */
#include "suite.h"

#include <math.h>

#include "config_kit.h"

const char *const suite_name = "draft_config";

/* ---- every field in turn ----------------------------------------------------------------------------- */

START_TEST(every_draft_field_is_guarded)
{
    enum which w = _i ? DSPARK : DRAFT;
    json_t *root = base(w);
    int keep = hush();
    walk(w, root, "");
    unhush(keep);
    ck_assert_int_gt(n_checked, 120);
    json_decref(root);
}
END_TEST

/* ---- single edits with a verdict each ---------------------------------------------------------------- */

static const struct edit draft_edit[] = {
    /* both placements */
    {"dflash_config.block_size", "16", NULL},
    {"dflash_config.block_size", "8", "block_size: the top level says 16, dflash_config.block_size says 8"},
    {"mask_token_id", "3848", NULL},
    {"mask_token_id", "3849", "mask_token_id: the top level says 3849"},
    {"target_layer_ids", "[3, 6, 9, 12, 14, 15]", NULL},
    {"target_layer_ids", "[3, 6, 9, 12, 15, 14]", "target_layer_ids"},
    {"dflash_config.num_target_layers", "17", NULL},
    {"dflash_config.num_target_layers", "18", "num_target_layers"},
    {"dflash_config", "{\"mask_token_id\": 3848}", "target_layer_ids: missing"},
    /* RoPE */
    {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000}", NULL},
    {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 50000.0}", "rope_theta"},
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0}", "rope_parameters.factor: missing"},
    {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"factor\": 4}",
     "rope_parameters.factor"},
    {"rope_parameters", "{\"rope_type\": \"default\"}", NULL}, /* the base at the top counts */
    {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 16.0}", "rope_scaling.original_max_position_embeddings: missing"},
    {"rope_theta", "0.5", "rope_theta"},
    /* what would change the block silently */
    {"is_causal", "false", "is_causal"},
    {"is_causal", "true", "is_causal"},
    {"dflash_config.causal", "false", "dflash_config.causal"},
    {"dflash_config.attention_sink_bias", "true", "dflash_config.attention_sink_bias"},
    {"is_neox_style", "true", NULL},
    {"is_neox_style", "false", "is_neox_style"},
    {"attention_bias", "true", "attention_bias"},
    {"hidden_act", "\"gelu\"", "hidden_act"},
    {"architectures", "[\"DSparkDraftModel\"]", "markov_head_type: missing"},
    {"architectures", "[\"DFlashDraftModel\", \"DSparkDraftModel\"]", "\"DSparkDraftModel\" is not implemented as a draft beside another"},
    {"architectures", "[]", "architectures: found []"},
    {"sample_from_anchor", "false", NULL},
    {"sample_from_anchor", "true", "sample_from_anchor: found true, but only false"},
    {"dflash_config.sample_from_anchor", "true", "dflash_config.sample_from_anchor: found true"},
    {"markov_head_type", "\"vanilla\"", "markov_head_type: unknown field"},
    {"dflash_config.conv_kernel_size", "2", "dflash_config.conv_kernel_size"},
    {"architectures", "[\"DFlash2DraftModel\"]", "DFlash2DraftModel"},
    {"architectures", "[\"DFlashDraftModel\", \"Qwen3ForCausalLM\"]", "Qwen3ForCausalLM"},
    {"markov_rank", "32", "markov_rank"},
    {"dtype", "\"float16\"", "dtype"},
    {"torch_dtype", "\"bfloat16\"", NULL},
    {"torch_dtype", "\"float32\"", "torch_dtype"},
    /* layers and windows */
    {"layer_types", "[\"full_attention\", \"full_attention\", \"full_attention\"]", NULL},
    {"layer_types", "[\"full_attention\", \"full_attention\"]", "layer_types"},
    {"layer_types", "[\"full_attention\", \"full_attention\", \"chunked_attention\"]", "chunked_attention"},
    {"sliding_window", "null", "sliding_window"},
    {"sliding_window", "0", "sliding_window"},
    {"use_sliding_window", "false", "use_sliding_window"},
    {"head_dim", "33", "head_dim: 33"},
    {"num_attention_heads", "12", "num_attention_heads: 12"},
    {"num_hidden_layers", "33", "num_hidden_layers"},
    {"block_size", "1", "block_size"},
    /* against the target */
    {"hidden_size", "512", "hidden_size: 512"},
    {"vocab_size", "4097", "vocab_size: 4097"},
    {"num_target_layers", "16", "num_target_layers: 16"},
    {"dflash_config.mask_token_id", "4096", "mask_token_id: 4096"},
    {"dflash_config.mask_token_id", "4095", NULL},
    {"dflash_config.target_layer_ids", "[3, 6, 9, 12, 14, 17]", "entry 5 is 17"},
    {"dflash_config.target_layer_ids", "[16, 0]", NULL},
    {"dflash_config.target_layer_ids", "[3, 6, 9, 6]", "layer 6 is listed twice"},
    {"dflash_config.target_layer_ids", "[-1]", "entry 0 is -1"},
};

#define YARN "\"rope_type\": \"yarn\", \"factor\": 16.0, \"original_max_position_embeddings\": 4096"

static const struct edit rope_edit[] = {
    {"rope_scaling", "{" YARN "}", NULL},
    {"rope_scaling", "{\"type\": \"yarn\", \"factor\": 16, \"original_max_position_embeddings\": 4096}", NULL},
    {"rope_scaling", "{\"type\": \"default\", " YARN "}", "rope_scaling.rope_type: found \"yarn\", but rope_scaling.type"},
    {"rope_scaling", "{\"factor\": 2}", "rope_scaling.rope_type: missing"},
    {"rope_scaling", "{\"rope_type\": \"default\"}", NULL},
    {"rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 2}", "rope_scaling.rope_type: found \"linear\", but only"},
    {"rope_scaling", "{\"type\": \"deepseek_yarn\", \"factor\": 2}", "rope_scaling.type: found \"deepseek_yarn\""},
    {"rope_scaling", "{\"rope_type\": 3}", "rope_scaling.rope_type: found 3"},
    {"rope_scaling", "[" "{" YARN "}]", "rope_scaling: found [{"},
    {"rope_scaling", "{" YARN ", \"rope_theta\": 10000.0}", NULL},
    {"rope_scaling", "{" YARN ", \"rope_theta\": 20000.0}", "rope_scaling.rope_theta says 20000"},
    {"rope_scaling", "{" YARN ", \"beta_fast\": 32, \"beta_slow\": 1, \"truncate\": false}", NULL},
    {"rope_scaling", "{" YARN ", \"beta_fast\": 1, \"beta_slow\": 2}", "rope_scaling.beta_fast: 1 is below beta_slow (2)"},
    {"rope_scaling", "{" YARN ", \"truncate\": 0}", "rope_scaling.truncate: found 0"},
    {"rope_scaling", "{" YARN ", \"attention_factor\": \"1\"}", "rope_scaling.attention_factor: found \"1\""},
    {"rope_scaling", "{" YARN ", \"attention_factor\": 0}", "rope_scaling.attention_factor: found 0"},
    {"rope_scaling", "{" YARN ", \"short_factor\": [1]}", "rope_scaling.short_factor: unknown field"},
    {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 0.5, \"original_max_position_embeddings\": 4096}",
     "rope_scaling.factor: found 0.5"},
    {"rope_parameters", "{" YARN ", \"rope_theta\": 10000}", "rope_scaling: differs from rope_parameters"}, /* null beside it */
    {"rope_parameters", "null", "rope_parameters: found null"},
    {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000, \"partial_rotary_factor\": 0.5}",
     "rope_parameters.partial_rotary_factor: unknown field"},
};

static const struct edit dspark_edit[] = {
    /* heads and slots by name */
    {"markov_head_type", "\"gated\"", "markov_head_type: found \"gated\", but only \"vanilla\" is implemented"},
    {"markov_head_type", "\"rnn\"", "markov_head_type: found \"rnn\", but only \"vanilla\" is implemented"},
    {"markov_head_type", NULL, "markov_head_type: missing"},
    {"markov_rank", "0", "markov_rank: found 0"},
    {"markov_rank", "256", NULL},
    {"sample_from_anchor", "false", "sample_from_anchor: found false, but only true is implemented"},
    {"sample_from_anchor", NULL, NULL},
    {"enable_confidence_head", "1", "enable_confidence_head: found 1, expected true or false"},
    {"enable_confidence_head", "false", NULL},
    {"confidence_head_with_markov", "null", "confidence_head_with_markov: found null"},
    {"confidence_head_with_markov", NULL, "confidence_head_with_markov: missing"},
    {"confidence_head_with_markov", "false", NULL},
    {"architectures", "[\"Qwen3DSparkModel\"]", NULL},
    {"architectures", "[\"DFlashDraftModel\"]", ": unknown field (found "}, /* of the fields of the other kind, the first */
    {"architectures", "[\"Eagle3DraftModel\"]", "architectures: \"Eagle3DraftModel\" is not implemented as a draft; expected DFlash"},
    {"speculators_model_type", "\"dspark\"", "speculators_model_type: unknown field (found \"dspark\")"},
    {"projector_type", "\"domino\"", "projector_type"},
    {"shift_label", "true", "shift_label"},
    {"is_causal", "true", "is_causal"},
    {"num_anchors", "512", NULL},
    /* placements */
    {"dflash_config", "{\"markov_rank\": 32, \"markov_head_type\": \"vanilla\", \"mask_token_id\": 4080}", NULL},
    {"dflash_config", "{\"markov_rank\": 64}", "markov_rank: the top level says 32, dflash_config.markov_rank says 64"},
    {"dflash_config", "{\"sample_from_anchor\": false}", "sample_from_anchor: the top level says true"},
    {"dflash_config", "{\"markov_gate\": 1}", "dflash_config.markov_gate: unknown field"},
    /* sizes */
    {"block_size", "1", "block_size"},
    {"block_size", "5", NULL},
    {"layer_types", "[\"sliding_attention\", \"full_attention\"]", "sliding_window: found null"},
    {"vocab_size", "4095", "vocab_size: 4095"},
};

static void verdict(enum which w, const struct edit *e)
{
    json_t *root = edited(w, e->path, e->value);
    expect(w, root, e->needle, e->path);
    json_decref(root);
}

START_TEST(draft_edits) { verdict(DRAFT, &draft_edit[_i]); }
END_TEST
START_TEST(rope_edits) { verdict(DRAFT, &rope_edit[_i]); }
END_TEST
START_TEST(dspark_edits) { verdict(DSPARK, &dspark_edit[_i]); }
END_TEST

START_TEST(moved_draft_fields_mean_the_same)
{
    static const char *const moved[] = {"mask_token_id", "target_layer_ids"};
    struct draft_config a, b;
    json_t *root = base(DRAFT), *nested = json_object_get(root, "dflash_config");
    write_json(root);
    ck_assert_int_eq(load_own(DRAFT, NULL, &a), ST_OK);
    for (size_t i = 0; i < N_OF(moved); i++) json_object_set(root, moved[i], json_object_get(nested, moved[i]));
    json_object_del(root, "dflash_config");
    json_object_del(root, "rope_theta");
    json_object_set_new(root, "rope_parameters",
                        json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", 10000.0));
    write_json(root);
    ck_assert_int_eq(load_own(DRAFT, NULL, &b), ST_OK);
    ck_assert_uint_ne(a.hash, b.hash); /* another file, though it says the same */
    b.hash = a.hash;
    ck_assert_mem_eq(&a, &b, sizeof a);
    json_decref(root);
}
END_TEST

START_TEST(moved_dspark_fields_mean_the_same)
{
    static const char *const moved[] = {"block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "markov_rank",
                                        "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
                                        "sample_from_anchor"};
    struct draft_config a, b;
    json_t *root = base(DSPARK), *nested = json_object();
    write_json(root);
    ck_assert_int_eq(load_own(DSPARK, NULL, &a), ST_OK);
    for (size_t i = 0; i < N_OF(moved); i++) {
        json_object_set(nested, moved[i], json_object_get(root, moved[i]));
        json_object_del(root, moved[i]);
    }
    json_object_set_new(root, "dflash_config", nested);
    write_json(root);
    ck_assert_int_eq(load_own(DSPARK, NULL, &b), ST_OK);
    b.hash = a.hash;
    ck_assert_mem_eq(&a, &b, sizeof a);
    json_decref(root);
}
END_TEST

/* ---- checkpoints of other sizes ---------------------------------------------------------------------- */

START_TEST(blocks_and_layers_of_published_drafts)
{
    static const int block[] = {8, 10, 16};
    static const char *const types[] = {"[\"full_attention\", \"full_attention\", \"full_attention\"]",
                                        "[\"sliding_attention\", \"sliding_attention\", \"full_attention\"]",
                                        "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\"]"};
    static const int window[] = {0, 64, 64};
    for (size_t b = 0; b < N_OF(block); b++)
        for (size_t k = 0; k < N_OF(types); k++) {
            struct draft_config d;
            json_t *root = edited(DRAFT, "layer_types", types[k]);
            json_object_set_new(root, "block_size", json_integer(block[b]));
            write_json(root);
            ck_assert_int_eq(load_own(DRAFT, NULL, &d), ST_OK);
            ck_assert_int_eq(d.block, block[b]);
            ck_assert_int_eq(draft_verify_rows(&d), block[b]);
            ck_assert_int_eq(draft_first_slot(&d), 1);
            ck_assert_int_eq(d.window, window[k]);
            for (int l = 0; l < 3; l++) ck_assert_int_eq(d.type[l], k == 0 || (k == 1 && l == 2) ? DRAFT_FULL : DRAFT_SLIDING);
            json_decref(root);
        }
}
END_TEST

START_TEST(a_pickled_mask_row_is_refused)
{
    char path[600];
    struct draft_config d;
    json_t *root = base(DRAFT);
    write_json(root);
    snprintf(path, sizeof path, "%s/mask_embedding.pt", own_dir());
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    ck_assert_int_eq(load_own(DRAFT, NULL, &d), ST_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(err_last(), "mask_embedding.pt: a pickled mask_embedding is not read"));
    unlink(path);
    ck_assert_int_eq(load_own(DRAFT, NULL, &d), ST_OK);
    json_decref(root);
}
END_TEST

/* ---- values ------------------------------------------------------------------------------------------- */

START_TEST(nano_draft_values_arrive)
{
    static const int tap[] = {3, 6, 9, 12, 14, 15};
    struct config c;
    struct draft_config d;
    ck_assert_int_eq(config_load(suite_path(base_dir[TARGET]), &c), ST_OK);
    ck_assert_int_eq(draft_config_load(suite_path(base_dir[DRAFT]), &c, &d), ST_OK);
    const int got[] = {d.n_layers, d.hidden, d.vocab,  d.q_heads,         d.kv_heads, d.head_dim,    d.inter,
                       d.block,    d.mask_id, d.n_taps, d.n_target_layers, d.window,   d.max_position};
    const int want[] = {3, 256, 4096, 16, 8, 32, 512, 16, 3848, 6, 17, 64, 1048576};
    for (size_t i = 0; i < N_OF(want); i++)
        ck_assert_msg(got[i] == want[i], "value %zu: %d, not %d", i, got[i], want[i]);
    ck_assert_mem_eq(d.tap, tap, sizeof tap);
    ck_assert(d.type[0] == DRAFT_SLIDING && d.type[1] == DRAFT_SLIDING && d.type[2] == DRAFT_FULL);
    ck_assert(d.rope_theta == 10000.0 && d.norm_eps == 1e-5f);
    ck_assert(d.kind == DRAFT_DFLASH && draft_verify_rows(&d) == 16 && !d.rope.yarn && d.rope.amplitude == 1);
    ck_assert(d.markov_rank == 0 && !d.confidence);
}
END_TEST

START_TEST(nano_dspark_values_arrive)
{
    static const int tap[] = {1, 5, 9, 13};
    struct config c;
    struct draft_config d;
    ck_assert_int_eq(config_load(suite_path(base_dir[TARGET]), &c), ST_OK);
    ck_assert_int_eq(draft_config_load(suite_path(base_dir[DSPARK]), &c, &d), ST_OK);
    ck_assert(d.kind == DRAFT_DSPARK && draft_first_slot(&d) == 0 && draft_verify_rows(&d) == 8);
    ck_assert(d.n_layers == 2 && d.block == 7 && d.mask_id == 4080 && d.n_taps == 4 && d.window == 0);
    ck_assert(d.markov_rank == 32 && d.confidence == 1 && d.confidence_markov == 1);
    ck_assert_mem_eq(d.tap, tap, sizeof tap);
    ck_assert_str_eq(draft_kind_name(d.kind), "dspark");
}
END_TEST

START_TEST(a_dspark_draft_of_the_size_of_k3_is_accepted)
{
    static const int tap[] = {7, 23, 51, 67, 83};
    struct config c;
    struct draft_config d;
    ck_assert_int_eq(config_load(suite_path("tests/data/k3-config"), &c), ST_OK);
    ck_assert_int_eq(draft_config_load(suite_path("tests/data/k3-dspark-config"), &c, &d), ST_OK);
    ck_assert(d.n_layers == 5 && d.q_heads == 64 && d.kv_heads == 16 && d.head_dim == 64 && d.inter == 14336);
    ck_assert(d.block == 7 && draft_verify_rows(&d) == 8 && d.mask_id == 163824 && d.markov_rank == 256);
    ck_assert_int_eq(d.n_taps, 5);
    ck_assert_mem_eq(d.tap, tap, sizeof tap);
}
END_TEST

/* ---- RoPE: the same in both spellings, and the published formula -------------------------------------- */

static void load_rope(const char *scaling, const char *parameters, struct rope *r)
{
    struct draft_config d;
    json_t *root = edited(DRAFT, "rope_scaling", scaling);
    if (parameters) {
        json_object_set_new(root, "rope_parameters", json_loads(parameters, JSON_DECODE_ANY, NULL));
        json_object_del(root, "rope_theta");
    }
    write_json(root);
    ck_assert_msg(load_own(DRAFT, NULL, &d) == ST_OK, "%s", err_last());
    ck_assert(d.rope_theta == d.rope.theta);
    *r = d.rope;
    json_decref(root);
}

START_TEST(both_spellings_give_the_same_rope)
{
    struct rope a, b, c;
    load_rope("{" YARN ", \"beta_fast\": 16}", NULL, &a);
    load_rope(NULL, "{" YARN ", \"beta_fast\": 16, \"rope_theta\": 10000.0}", &b);
    load_rope("{" YARN ", \"beta_fast\": 16, \"rope_theta\": 10000.0}", /* an exporter that mirrors one into the other */
              "{" YARN ", \"beta_fast\": 16, \"rope_theta\": 10000.0}", &c);
    ck_assert_mem_eq(&a, &b, sizeof a);
    ck_assert_mem_eq(&a, &c, sizeof a);
    ck_assert(a.yarn && a.factor == 16 && a.original == 4096 && a.beta_fast == 16 && a.beta_slow == 1 && a.truncate);
    load_rope("null", NULL, &a);
    load_rope(NULL, "{\"rope_type\": \"default\", \"rope_theta\": 10000.0}", &b);
    ck_assert_mem_eq(&a, &b, sizeof a);
    ck_assert(!a.yarn && a.amplitude == 1);
}
END_TEST

static const struct {
    const char *more;
    double want;
} amplitudes[] = {
    {"", 1.2772588722239782},                                     /* 0.1 ln 16 + 1 */
    {", \"attention_factor\": 1.0", 1},
    {", \"attention_factor\": 1.5, \"mscale\": 1, \"mscale_all_dim\": 1", 1.5}, /* what is explicit wins */
    {", \"mscale\": 1.0, \"mscale_all_dim\": 1.0", 1},
    {", \"mscale\": 0.707, \"mscale_all_dim\": 1.0", 0.9363975061530204},
    {", \"mscale\": 1.0", 1.2772588722239782},
    {", \"mscale\": 1.0, \"mscale_all_dim\": 0", 1.2772588722239782},
};

START_TEST(the_amplitude_follows_the_file)
{
    char text[300];
    struct rope r;
    snprintf(text, sizeof text, "{" YARN "%s}", amplitudes[_i].more);
    load_rope(text, NULL, &r);
    ck_assert_msg(fabs(r.amplitude - amplitudes[_i].want) < 1e-8, "%s: %.9g", text, r.amplitude);
}
END_TEST

/* values of Transformers' formula, computed apart from this program */
static const struct rope k3_rope = {.theta = 1e4, .yarn = 1, .factor = 16, .original = 4096, .beta_fast = 32,
                                    .beta_slow = 1, .truncate = 1},
                         k2_rope = {.theta = 5e4, .yarn = 1, .factor = 64, .original = 4096, .beta_fast = 32,
                                    .beta_slow = 1, .truncate = 1},
                         loose = {.theta = 1e4, .yarn = 1, .factor = 16, .original = 4096, .beta_fast = 32, .beta_slow = 1},
                         small = {.theta = 1e4, .yarn = 1, .factor = 4, .original = 64, .beta_fast = 8,
                                  .beta_slow = 2, .truncate = 1},
                         plain = {.theta = 1e4};
static const struct {
    const struct rope *r;
    int dim, pair;
    double want;
} waves[] = {
    {&k3_rope, 32, 0, 1},
    {&k3_rope, 32, 5, 0.056234132519034905},
    {&k3_rope, 32, 7, 0.013019545680642114},
    {&k3_rope, 32, 11, 0.00034930488411478848},
    {&k3_rope, 32, 15, 1.1114246312743267e-05},
    {&k2_rope, 128, 20, 0.02944238073260879},
    {&k2_rope, 128, 31, 0.0019784245546001582},
    {&k2_rope, 128, 63, 3.7005938948173143e-07},
    {&loose, 32, 7, 0.012898515316182788},
    {&loose, 32, 11, 0.0001822297192242749},
    {&small, 32, 1, 0.42175599389276186},
    {&plain, 32, 3, 0.17782794100389228},
};

START_TEST(frequencies_follow_the_formula)
{
    double inv[64];
    rope_frequencies(waves[_i].r, waves[_i].dim, inv);
    ck_assert_msg(fabs(inv[waves[_i].pair] / waves[_i].want - 1) < 1e-12, "pair %d: %.17g, must be %.17g", waves[_i].pair,
                  inv[waves[_i].pair], waves[_i].want);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "draft config", 60);
    tcase_add_loop_test(tc, draft_edits, 0, N_OF(draft_edit));
    tcase_add_loop_test(tc, rope_edits, 0, N_OF(rope_edit));
    tcase_add_loop_test(tc, dspark_edits, 0, N_OF(dspark_edit));
    tcase_add_loop_test(tc, every_draft_field_is_guarded, 0, 2);
    SUITE_TEST(tc, moved_draft_fields_mean_the_same);
    SUITE_TEST(tc, moved_dspark_fields_mean_the_same);
    SUITE_TEST(tc, blocks_and_layers_of_published_drafts);
    SUITE_TEST(tc, a_pickled_mask_row_is_refused);
    SUITE_TEST(tc, nano_draft_values_arrive);
    SUITE_TEST(tc, nano_dspark_values_arrive);
    SUITE_TEST(tc, a_dspark_draft_of_the_size_of_k3_is_accepted);
    SUITE_TEST(tc, both_spellings_give_the_same_rope);
    tcase_add_loop_test(tc, the_amplitude_follows_the_file, 0, N_OF(amplitudes));
    tcase_add_loop_test(tc, frequencies_follow_the_formula, 0, N_OF(waves));
}

int main(void)
{
    return suite_main_serial();
}
