#include "ckpt/config.h"

#include <string.h>

#include "ckpt/fields.h"
#include "ckpt/mxfp4.h"

#define MAX_WIDTH 16777216.0 /* larger than any width; small enough for int products with a head count */
#define N_OF(a)   (sizeof(a) / sizeof(a)[0])

/* what only the check of the file needs beside struct config */
struct target {
    struct config c;
    int kv_heads, n_shared;
    int top_bos, top_eos, top_pad;
};

#define INT(name, member, lo, hi) {name, FIELD_INT, 0, offsetof(struct target, member), lo, hi, NULL}
#define NUM(name, member, lo, hi) {name, FIELD_FLOAT, 0, offsetof(struct target, member), lo, hi, NULL}
#define FIX(name, text)           {name, FIELD_FIXED, 0, 0, 0, 0, text}
#define OWN(name)                 {name, FIELD_OWN, 0, 0, 0, 0, NULL}

/* Everything about the packing is one value; kernels know no other. */
#define QUANT                                                                                                       \
    "{\"config_groups\":{\"group_0\":{\"format\":\"mxfp4-pack-quantized\",\"input_activations\":null,"              \
    "\"output_activations\":null,\"targets\":[\"Linear\"],\"weights\":{\"actorder\":null,\"block_structure\":null," \
    "\"dynamic\":false,\"group_size\":32,\"num_bits\":4,\"observer\":\"minmax\",\"observer_kwargs\":{},"            \
    "\"scale_dtype\":\"torch.uint8\",\"strategy\":\"group\",\"symmetric\":true,\"type\":\"float\","                 \
    "\"zp_dtype\":null}}},\"format\":\"mxfp4-pack-quantized\",\"global_compression_ratio\":null,"                   \
    "\"ignore\":[\"re:.*self_attn.*\",\"re:.*shared_experts.*\","                                                   \
    "\"re:.*mlp\\\\.(gate|up|gate_up|down)_proj.*\",\"re:.*lm_head.*\",\"re:.*vision_tower.*\","                    \
    "\"re:.*mm_projector.*\"],\"kv_cache_scheme\":null,\"quant_method\":\"compressed-tensors\","                    \
    "\"quantization_status\":\"compressed\"}"

static const struct field top_row[] = {
    FIX("architectures", "[\"KimiK3ForConditionalGeneration\"]"),
    FIX("model_type", "\"kimi_k3\""),
    FIX("dtype", "\"bfloat16\""),
    FIX("tie_word_embeddings", "false"),
    INT("bos_token_id", top_bos, 0, MAX_WIDTH),
    INT("eos_token_id", top_eos, 0, MAX_WIDTH),
    INT("pad_token_id", top_pad, 0, MAX_WIDTH),
    OWN("text_config"),
};
/* vision and training; the text path reads none of them */
static const char *const top_no_effect[] = {"auto_map",          "ignore_index",  "image_placeholder",
                                            "media_placeholder_token_id", "transformers_version", "vision_config"};

static const struct field text_row[] = {
    FIX("architectures", "[\"KimiLinearForCausalLM\"]"),
    FIX("model_type", "\"kimi_linear\""),
    FIX("dtype", "\"bfloat16\""),
    FIX("tie_word_embeddings", "false"),
    FIX("hidden_act", "\"situ\""),
    FIX("latent_moe_use_norm", "true"),
    FIX("mla_use_nope", "true"),
    FIX("mla_use_output_gate", "true"),
    FIX("moe_layer_freq", "1"),
    FIX("moe_renormalize", "true"),
    FIX("moe_router_activation_func", "\"sigmoid\""),
    FIX("num_expert_group", "1"),
    FIX("topk_group", "1"),
    FIX("topk_method", "\"noaux_tc\""),
    FIX("use_grouped_topk", "true"),
    FIX("num_nextn_predict_layers", "0"),
    FIX("quantization_config", QUANT),
    OWN("linear_attn_config"),
    INT("num_hidden_layers", c.n_layers, 1, CONFIG_MAX_LAYERS),
    INT("hidden_size", c.hidden, 1, MAX_WIDTH),
    INT("vocab_size", c.vocab, 1, MAX_WIDTH),
    INT("max_position_embeddings", c.max_position, 1, 1 << 30),
    INT("bos_token_id", c.bos, 0, MAX_WIDTH),
    INT("eos_token_id", c.eos, 0, MAX_WIDTH),
    INT("pad_token_id", c.pad, 0, MAX_WIDTH),
    INT("num_attention_heads", c.mla_heads, 1, 4096),
    INT("num_key_value_heads", kv_heads, 1, 4096),
    INT("q_lora_rank", c.q_rank, 1, 65536),
    INT("kv_lora_rank", c.kv_rank, 1, 65536),
    INT("qk_nope_head_dim", c.qk_nope, 1, 4096),
    INT("qk_rope_head_dim", c.qk_rope, 1, 4096),
    INT("v_head_dim", c.v_dim, 1, 4096),
    INT("attn_res_block_size", c.res_block, 1, CONFIG_MAX_LAYERS),
    INT("first_k_dense_replace", c.n_dense, 0, CONFIG_MAX_LAYERS),
    INT("intermediate_size", c.dense_inter, 1, MAX_WIDTH),
    INT("num_experts", c.n_experts, 1, 65536),
    INT("num_experts_per_token", c.top_k, 1, 65536),
    INT("num_shared_experts", n_shared, 1, 64),
    INT("moe_intermediate_size", c.expert_inter, 1, MAX_WIDTH),
    INT("routed_expert_hidden_size", c.latent, 1, MAX_WIDTH),
    NUM("rms_norm_eps", c.norm_eps, 1e-12, 1e-2),
    NUM("routed_scaling_factor", c.routed_scale, 1e-6, 1e6),
    NUM("activation_situ_beta", c.situ_beta, 1e-3, 1e6),
    NUM("activation_situ_linear_beta", c.situ_linear_beta, 1e-3, 1e6),
};
/* generation, training and housekeeping members that the released file carries; head_dim is never used, as MLA and
 * KDA have dimensions of their own */
static const char *const text_no_effect[] = {
    "_name_or_path", "add_cross_attention", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "head_dim", "id2label", "initializer_range",
    "is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length", "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_scores", "prefix", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params",
    "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript",
    "transformers_version", "typical_p", "use_bfloat16", "use_cache"};

static const struct field linear_row[] = {
    FIX("use_full_rank_gate", "true"),
    OWN("full_attn_layers"),
    OWN("kda_layers"),
    INT("num_heads", c.kda_heads, 1, 4096),
    INT("head_dim", c.kda_dim, 1, 4096),
    INT("short_conv_kernel_size", c.conv_kernel, 2, 64),
    NUM("gate_lower_bound", c.gate_lower_bound, -1e3, -1e-3),
};

static const struct field_table top_table = {top_row, N_OF(top_row), top_no_effect, N_OF(top_no_effect)};
static const struct field_table text_table = {text_row, N_OF(text_row), text_no_effect, N_OF(text_no_effect)};
static const struct field_table linear_table = {linear_row, N_OF(linear_row), NULL, 0};

/* full_attn_layers and kda_layers (1-based) must split 1..n_layers between them. */
static enum status read_layers(struct field_place at, const json_t *linear, struct config *c)
{
    static const char *const name[2] = {"full_attn_layers", "kda_layers"};
    int list[CONFIG_MAX_LAYERS], n, seen[CONFIG_MAX_LAYERS] = {0};
    int *count[2] = {&c->n_mla, &c->n_kda};
    for (int kda = 0; kda < 2; kda++) {
        TRY(fields_ints(at, name[kda], json_object_get(linear, name[kda]), 1, c->n_layers, CONFIG_MAX_LAYERS, list,
                        &n));
        for (int i = 0; i < n; i++) {
            int l = list[i] - 1;
            if (seen[l])
                return ERR(ST_E_CONFIG, "%s: %s%s: layer %d (1-based) is listed %s", at.file, at.prefix, name[kda],
                           l + 1, seen[l] == kda + 1 ? "twice" : "in full_attn_layers too");
            seen[l] = kda + 1;
            c->is_kda[l] = (uint8_t)kda;
        }
        *count[kda] = n;
    }
    for (int l = 0; l < c->n_layers; l++)
        if (!seen[l])
            return ERR(ST_E_CONFIG,
                       "%s: %sfull_attn_layers and %skda_layers: layer %d (1-based) of %d is in neither list", at.file,
                       at.prefix, at.prefix, l + 1, c->n_layers);
    return ST_OK;
}

/* Rules that tie several members together; each names the members and both values. */
static enum status check(const char *file, const struct target *t)
{
    const struct config *c = &t->c;
    const struct {
        int bad;
        const char *what, *rule;
        int a, b;
    } rule[] = {
        {t->kv_heads != c->mla_heads, "text_config.num_key_value_heads", "must equal num_attention_heads", t->kv_heads,
         c->mla_heads},
        {c->kda_heads > c->kda_dim, "text_config.linear_attn_config.num_heads",
         "must not exceed head_dim, the stored length of A_log", c->kda_heads, c->kda_dim},
        {c->n_dense > c->n_layers, "text_config.first_k_dense_replace", "must not exceed num_hidden_layers", c->n_dense,
         c->n_layers},
        {c->top_k > c->n_experts, "text_config.num_experts_per_token", "must not exceed num_experts", c->top_k,
         c->n_experts},
        {c->latent % MXFP4_BLOCK != 0, "text_config.routed_expert_hidden_size", "must be a multiple of the MXFP4 block",
         c->latent, MXFP4_BLOCK},
        {c->expert_inter % MXFP4_BLOCK != 0, "text_config.moe_intermediate_size",
         "must be a multiple of the MXFP4 block", c->expert_inter, MXFP4_BLOCK},
        {c->bos >= c->vocab, "text_config.bos_token_id", "must be below vocab_size", c->bos, c->vocab},
        {c->eos >= c->vocab, "text_config.eos_token_id", "must be below vocab_size", c->eos, c->vocab},
        {c->pad >= c->vocab, "text_config.pad_token_id", "must be below vocab_size", c->pad, c->vocab},
        {t->top_bos != c->bos, "bos_token_id", "contradicts text_config.bos_token_id", t->top_bos, c->bos},
        {t->top_eos != c->eos, "eos_token_id", "contradicts text_config.eos_token_id", t->top_eos, c->eos},
        {t->top_pad != c->pad, "pad_token_id", "contradicts text_config.pad_token_id", t->top_pad, c->pad},
    };
    for (size_t i = 0; i < N_OF(rule); i++)
        if (rule[i].bad)
            return ERR(ST_E_CONFIG, "%s: %s: %d %s (%d)", file, rule[i].what, rule[i].a, rule[i].rule, rule[i].b);
    return ST_OK;
}

static enum status read_target(const char *file, const json_t *root, struct target *t)
{
    struct field_place top = {file, ""}, text = {file, "text_config."},
                       linear = {file, "text_config.linear_attn_config."};
    const json_t *tc = json_object_get(root, "text_config");
    char found[64];
    if (!json_is_object(tc))
        return ERR(ST_E_CONFIG,
                   "%s: text_config: no such object, so this is not a Kimi-K3 checkpoint (model_type is %s); "
                   "Kimi-Linear and other layouts are not implemented as a target",
                   file, fields_text(json_object_get(root, "model_type"), found, sizeof found));
    TRY(fields_read(top, root, &top_table, t));
    TRY(fields_read(text, tc, &text_table, t));
    const json_t *la = json_object_get(tc, "linear_attn_config");
    if (!json_is_object(la))
        return ERR(ST_E_CONFIG, "%s: text_config.linear_attn_config: found %s, expected an object", file,
                   fields_text(la, found, sizeof found));
    TRY(fields_read(linear, la, &linear_table, t));
    TRY(read_layers(linear, la, &t->c));
    TRY(check(file, t));
    t->c.shared_inter = t->n_shared * t->c.expert_inter;
    t->c.latent_norm_eps = 1e-6f;
    return ST_OK;
}

enum status config_load(const char *dir, struct config *c_p)
{
    char file[4096];
    json_t *root;
    struct target t;
    memset(&t, 0, sizeof t);
    TRY(fields_load(dir, file, sizeof file, &root, &t.c.hash));
    enum status st = read_target(file, root, &t);
    json_decref(root);
    if (st == ST_OK) *c_p = t.c;
    return st;
}
