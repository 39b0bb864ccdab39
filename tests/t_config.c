#include "suite.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/config.h"

const char *const suite_name = "config";

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

/* ---- helpers: write a config.json of our own, load it, look at the refusal --------------------------- */

enum which { TARGET, DRAFT };

static const char *const base_dir[] = {"inputs/k3-nano", "inputs/k3-nano-dflash"};

static json_t *base(enum which w)
{
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", suite_path(base_dir[w]));
    json_t *root = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(root);
    return root;
}

static const char *own_dir(void)
{
    static char dir[512];
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s", suite_tmp("dir"));
        mkdir(dir, 0777);
    }
    return dir;
}

static void write_text(const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", own_dir());
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static enum status load_own(enum which w, struct config *c, struct draft_config *d)
{
    struct config target;
    if (w == TARGET) return config_load(own_dir(), c);
    ck_assert_int_eq(config_load(suite_path(base_dir[TARGET]), &target), ST_OK);
    return draft_config_load(own_dir(), &target, d);
}

/* load text; needle NULL: it must be accepted, otherwise refused with a message that contains needle */
static void expect_text(enum which w, const char *text, const char *needle, const char *why)
{
    struct config c = {.n_layers = -7};
    struct draft_config d = {.n_layers = -7};
    write_text(text);
    enum status st = load_own(w, &c, &d);
    if (!needle) {
        ck_assert_msg(st == ST_OK, "%s: refused: %s", why, err_last());
        return;
    }
    ck_assert_msg(st == ST_E_CONFIG, "%s: %s instead of a refusal", why, err_name(st));
    ck_assert_msg(strstr(err_last(), needle) != NULL, "%s: message lacks \"%s\": %s", why, needle, err_last());
    ck_assert_msg(strstr(err_last(), "config.json") != NULL, "%s: message lacks the file: %s", why, err_last());
    ck_assert_int_eq(w == TARGET ? c.n_layers : d.n_layers, -7); /* set only on success */
}

static void write_json(const json_t *root)
{
    char *text = json_dumps(root, JSON_INDENT(1));
    write_text(text);
    free(text);
}

static void expect(enum which w, const json_t *root, const char *needle, const char *why)
{
    char *text = json_dumps(root, JSON_INDENT(1));
    expect_text(w, text, needle, why);
    free(text);
}

/* the refusals of a walk would fill pages; they are checked, not read */
static int hush(void)
{
    int keep = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    close(null);
    return keep;
}

static void unhush(int keep)
{
    dup2(keep, 2);
    close(keep);
}

static json_t *at(json_t *root, const char *path)
{
    char part[256];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        root = json_object_get(root, part);
        path += n + (path[n] == '.');
    }
    return root;
}

/* path = value (JSON text; NULL deletes) in a fresh copy of the base file */
static json_t *edited(enum which w, const char *path, const char *value)
{
    char parent[256] = "";
    const char *dot = strrchr(path, '.');
    if (dot) snprintf(parent, sizeof parent, "%.*s", (int)(dot - path), path);
    json_t *root = base(w), *obj = at(root, parent);
    ck_assert_msg(json_is_object(obj), "%s: no such object", path);
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        ck_assert_msg(v != NULL, "%s: bad JSON in the test: %s", path, value);
        json_object_set_new(obj, dot ? dot + 1 : path, v);
    } else {
        json_object_del(obj, dot ? dot + 1 : path);
    }
    return root;
}

/* ---- every field in turn ----------------------------------------------------------------------------- */

struct rule { /* fields whose change or absence is legal */
    const char *path;
    int may_change; /* 1: any value is accepted */
    int may_vanish;
};

static const struct rule target_rule[] = {
    {"ignore_index", 1, 1},        {"image_placeholder", 1, 1},
    {"media_placeholder_token_id", 1, 1}, {"text_config.initializer_range", 1, 1},
    {"text_config.use_cache", 1, 1},
};
static const struct rule draft_rule[] = {
    {"attention_dropout", 1, 1}, {"bos_token_id", 1, 1},  {"eos_token_id", 1, 1},
    {"initializer_range", 1, 1}, {"use_cache", 1, 1},     {"tie_word_embeddings", 1, 1},
    {"rope_scaling", 0, 1},      {"use_sliding_window", 0, 1},
};

static const struct rule *rule_of(enum which w, const char *path)
{
    static const struct rule strict = {"", 0, 0};
    const struct rule *r = w == TARGET ? target_rule : draft_rule;
    size_t n = w == TARGET ? N_OF(target_rule) : N_OF(draft_rule);
    for (size_t i = 0; i < n; i++)
        if (strcmp(r[i].path, path) == 0) return &r[i];
    return &strict;
}

/* A value of the same JSON type that no implementation could take for the field. */
static json_t *same_type(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_INTEGER: return json_integer(json_integer_value(v) ? -json_integer_value(v) : 1);
    case JSON_REAL: return json_real(-json_real_value(v));
    case JSON_TRUE: return json_false();
    case JSON_FALSE: return json_true();
    case JSON_STRING: return json_string("something else");
    case JSON_ARRAY: return json_array();
    case JSON_OBJECT: return json_pack("{s:i}", "surprise", 1);
    default: return json_integer(1);
    }
}

static int n_checked;

static void set_and_expect(enum which w, const char *path, json_t *value, const char *needle)
{
    char why[400], *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    json_t *root = edited(w, path, text);
    snprintf(why, sizeof why, "%s = %.60s", path, text);
    expect(w, root, needle, why);
    free(text);
    json_decref(value);
    json_decref(root);
    n_checked++;
}

static void walk(enum which w, json_t *obj, const char *prefix)
{
    const char *key;
    json_t *v;
    char path[256];
    json_object_foreach(obj, key, v)
    {
        snprintf(path, sizeof path, "%s%s", prefix, key);
        const struct rule *r = rule_of(w, path);
        /* what a draft keeps in dflash_config may also stand at the top, so only the field's own name is sure */
        const char *named = w == TARGET ? path : key, *changed = r->may_change ? NULL : named;
        json_t *gone = edited(w, path, NULL);
        expect(w, gone, r->may_vanish ? NULL : strcmp(path, "dflash_config") == 0 ? "mask_token_id" : named, path);
        json_decref(gone);
        n_checked++;
        set_and_expect(w, path, same_type(v), changed);
        set_and_expect(w, path, json_is_string(v) ? json_integer(7) : json_string("7"), changed);
        if (!json_is_null(v)) set_and_expect(w, path, json_null(), changed);
        if (!json_is_array(v)) set_and_expect(w, path, json_pack("[i]", 1), changed);
        if (json_is_object(v)) {
            char inner[257];
            snprintf(inner, sizeof inner, "%s.", path);
            walk(w, v, inner);
        }
    }
    snprintf(path, sizeof path, "%sinvented_field", prefix);
    set_and_expect(w, path, json_integer(1), path);
}

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

START_TEST(every_draft_field_is_guarded)
{
    json_t *root = base(DRAFT);
    int keep = hush();
    walk(DRAFT, root, "");
    unhush(keep);
    ck_assert_int_gt(n_checked, 120);
    json_decref(root);
}
END_TEST

/* ---- single edits with a verdict each ---------------------------------------------------------------- */

struct edit {
    const char *path, *value; /* value NULL: delete */
    const char *needle;       /* NULL: accepted */
};

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
    {"rope_parameters", "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0}", "rope_parameters.rope_type"},
    {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"factor\": 4}",
     "rope_parameters.factor"},
    {"rope_parameters", "{\"rope_type\": \"default\"}", "rope_parameters.rope_theta"},
    {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 16.0}", "rope_scaling"},
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
    {"architectures", "[\"DSparkDraftModel\"]", "DSparkDraftModel"},
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

START_TEST(target_edits)
{
    const struct edit *e = &target_edit[_i];
    json_t *root = edited(TARGET, e->path, e->value);
    expect(TARGET, root, e->needle, e->path);
    json_decref(root);
}
END_TEST

START_TEST(draft_edits)
{
    const struct edit *e = &draft_edit[_i];
    json_t *root = edited(DRAFT, e->path, e->value);
    expect(DRAFT, root, e->needle, e->path);
    json_decref(root);
}
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
    tcase_add_loop_test(tc, draft_edits, 0, N_OF(draft_edit));
    SUITE_TEST(tc, every_target_field_is_guarded);
    SUITE_TEST(tc, every_draft_field_is_guarded);
    SUITE_TEST(tc, moved_draft_fields_mean_the_same);
    SUITE_TEST(tc, texts_that_are_no_config);
    SUITE_TEST(tc, missing_files);
    SUITE_TEST(tc, nano_values_arrive);
    SUITE_TEST(tc, nano_draft_values_arrive);
    SUITE_TEST(tc, released_k3_and_its_draft_are_accepted);
    SUITE_TEST(tc, hash_follows_content_not_layout);
}

int main(void)
{
    return suite_main_serial();
}
