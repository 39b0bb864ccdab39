/* The draft half of config.h. Members that published drafts put either at the top or into dflash_config are
 * looked up in both places. */
#include <string.h>

#include "ckpt/config.h"
#include "ckpt/fields.h"

#define MAX_WIDTH 16777216.0
#define N_OF(a)   (sizeof(a) / sizeof(a)[0])
#define NESTED    "dflash_config"

#define INT(name, member, lo, hi) {name, FIELD_INT, 0, offsetof(struct draft_config, member), lo, hi, NULL}
#define FIX(name, text)           {name, FIELD_FIXED, 0, 0, 0, 0, text}
#define OPT_FIX(name, text)       {name, FIELD_FIXED, 1, 0, 0, 0, text}
#define OWN(name)                 {name, FIELD_OWN, 0, 0, 0, 0, NULL}
#define OPT_OWN(name)             {name, FIELD_OWN, 1, 0, 0, 0, NULL}

static const struct field top_row[] = {
    OWN("architectures"),
    FIX("model_type", "\"qwen3\""),
    OPT_FIX("dtype", "\"bfloat16\""),
    OPT_FIX("torch_dtype", "\"bfloat16\""),
    FIX("attention_bias", "false"),
    FIX("hidden_act", "\"silu\""),
    OPT_FIX("is_neox_style", "true"),
    OPT_FIX("rope_is_neox_style", "true"),
    INT("num_hidden_layers", n_layers, 1, CONFIG_MAX_DRAFT_LAYERS),
    INT("hidden_size", hidden, 1, MAX_WIDTH),
    INT("vocab_size", vocab, 1, MAX_WIDTH),
    INT("num_attention_heads", q_heads, 1, 4096),
    INT("num_key_value_heads", kv_heads, 1, 4096),
    INT("head_dim", head_dim, 2, 4096),
    INT("intermediate_size", inter, 1, MAX_WIDTH),
    INT("max_position_embeddings", max_position, 1, 1 << 30),
    {"rms_norm_eps", FIELD_FLOAT, 0, offsetof(struct draft_config, norm_eps), 1e-12, 1e-2, NULL},
    OWN("layer_types"),
    OPT_OWN("sliding_window"),
    OPT_OWN("use_sliding_window"),
    OPT_OWN("rope_scaling"),
    OPT_OWN("rope_theta"),
    OPT_OWN("rope_parameters"),
    OPT_OWN("block_size"),
    OPT_OWN("mask_token_id"),
    OPT_OWN("target_layer_ids"),
    OPT_OWN("num_target_layers"),
    OPT_OWN(NESTED),
};
/* the draft owns neither embedding nor head, ends no text and never trains here; layer_types decides the windows */
static const char *const top_no_effect[] = {"_name_or_path",     "attention_dropout",   "auto_map",     "bos_token_id",
                                            "eos_token_id",      "initializer_range",   "max_window_layers",
                                            "pad_token_id",      "tie_word_embeddings", "transformers_version",
                                            "use_cache"};
static const struct field nested_row[] = {OPT_OWN("block_size"), OPT_OWN("mask_token_id"), OPT_OWN("target_layer_ids"),
                                          OPT_OWN("num_target_layers")};
static const struct field placed_row[] = {INT("block_size", block, 2, 256), INT("mask_token_id", mask_id, 0, MAX_WIDTH),
                                          INT("num_target_layers", n_target_layers, 1, CONFIG_MAX_LAYERS)};
static const struct field theta_row = {"rope_theta", FIELD_DOUBLE, 0, offsetof(struct draft_config, rope_theta),
                                       1.0, 1e12, NULL};
static const struct field rope_row[] = {FIX("rope_type", "\"default\""), OWN("rope_theta")};

static const struct field_table top_table = {top_row, N_OF(top_row), top_no_effect, N_OF(top_no_effect)};
static const struct field_table nested_table = {nested_row, N_OF(nested_row), NULL, 0};
static const struct field_table rope_table = {rope_row, N_OF(rope_row), NULL, 0};

/* name at the top level, in the object called nest, or the same value in both */
static enum status placed(const char *file, const json_t *root, const char *nest, const char *name,
                          const json_t **value_p, struct field_place *at_p)
{
    static const struct field_place nowhere = {NULL, NULL};
    char a[64], b[64];
    const json_t *top = json_object_get(root, name), *in = json_object_get(json_object_get(root, nest), name);
    *at_p = nowhere;
    at_p->file = file;
    at_p->prefix = top ? "" : strcmp(nest, NESTED) == 0 ? NESTED "." : "rope_parameters.";
    if (top && in && !json_equal(top, in) && !(json_is_number(top) && json_is_number(in) &&
                                               json_number_value(top) == json_number_value(in)))
        return ERR(ST_E_CONFIG, "%s: %s: the top level says %s, %s.%s says %s; remove the wrong one", file, name,
                   fields_text(top, a, sizeof a), nest, name, fields_text(in, b, sizeof b));
    if (!top && !in) return fields_missing((struct field_place){file, ""}, name);
    *value_p = top ? top : in;
    return ST_OK;
}

static enum status read_architecture(const char *file, const json_t *root)
{
    const json_t *list = json_object_get(root, "architectures");
    char found[64];
    if (!list) return fields_missing((struct field_place){file, ""}, "architectures");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (!name || strcmp(name, "DFlashDraftModel") != 0)
            return ERR(ST_E_CONFIG, "%s: architectures: %s is not implemented as a draft; expected DFlashDraftModel",
                       file, fields_text(json_array_get(list, i), found, sizeof found));
    }
    if (json_array_size(list) == 0)
        return ERR(ST_E_CONFIG, "%s: architectures: found %s, expected [\"DFlashDraftModel\"]", file,
                   fields_text(list, found, sizeof found));
    return ST_OK;
}

static enum status read_rope(const char *file, const json_t *root, struct draft_config *d)
{
    struct field_place at;
    const json_t *theta, *scaling = json_object_get(root, "rope_scaling"),
                         *par = json_object_get(root, "rope_parameters");
    char found[96];
    if (scaling && !json_is_null(scaling))
        return ERR(ST_E_CONFIG, "%s: rope_scaling: found %s, but only unscaled RoPE (null) is implemented", file,
                   fields_text(scaling, found, sizeof found));
    if (par && !json_is_object(par))
        return ERR(ST_E_CONFIG, "%s: rope_parameters: found %s, expected an object", file,
                   fields_text(par, found, sizeof found));
    if (par) TRY(fields_read((struct field_place){file, "rope_parameters."}, par, &rope_table, d));
    TRY(placed(file, root, "rope_parameters", "rope_theta", &theta, &at));
    return fields_value(at, theta, &theta_row, d);
}

static enum status read_layer_types(const char *file, const json_t *root, struct draft_config *d)
{
    const json_t *list = json_object_get(root, "layer_types"), *w = json_object_get(root, "sliding_window"),
                 *use = json_object_get(root, "use_sliding_window");
    struct field window = INT("sliding_window", window, 1, 1 << 30);
    char found[96];
    int sliding = 0;
    if (!json_is_array(list) || json_array_size(list) != (size_t)d->n_layers)
        return ERR(ST_E_CONFIG, "%s: layer_types: found %s, expected a list of num_hidden_layers (%d) names", file,
                   fields_text(list, found, sizeof found), d->n_layers);
    for (int i = 0; i < d->n_layers; i++) {
        const char *name = json_string_value(json_array_get(list, (size_t)i));
        if (name && strcmp(name, "sliding_attention") == 0)
            d->type[i] = DRAFT_SLIDING;
        else if (name && strcmp(name, "full_attention") == 0)
            d->type[i] = DRAFT_FULL;
        else
            return ERR(ST_E_CONFIG, "%s: layer_types: layer %d is %s, expected full_attention or sliding_attention",
                       file, i, fields_text(json_array_get(list, (size_t)i), found, sizeof found));
        sliding += d->type[i] == DRAFT_SLIDING;
    }
    if (use && !json_is_boolean(use))
        return ERR(ST_E_CONFIG, "%s: use_sliding_window: found %s, expected true or false", file,
                   fields_text(use, found, sizeof found));
    if (sliding && json_is_false(use))
        return ERR(ST_E_CONFIG, "%s: use_sliding_window: false contradicts layer_types, where %d of %d layers slide",
                   file, sliding, d->n_layers);
    if (sliding && !w) return fields_missing((struct field_place){file, ""}, "sliding_window");
    if (w && (sliding || !json_is_null(w))) TRY(fields_value((struct field_place){file, ""}, w, &window, d));
    if (!sliding) d->window = 0;
    return ST_OK;
}

static enum status read_taps(const char *file, const json_t *root, struct draft_config *d)
{
    struct field_place at;
    const json_t *list;
    TRY(placed(file, root, NESTED, "target_layer_ids", &list, &at));
    TRY(fields_ints(at, "target_layer_ids", list, 0, d->n_target_layers - 1, CONFIG_MAX_TAPS, d->tap, &d->n_taps));
    for (int i = 0; i < d->n_taps; i++)
        for (int j = 0; j < i; j++)
            if (d->tap[i] == d->tap[j])
                return ERR(ST_E_CONFIG, "%s: %starget_layer_ids: layer %d is listed twice", at.file, at.prefix,
                           d->tap[i]);
    return ST_OK;
}

static enum status check(const char *file, const struct config *target, const struct draft_config *d)
{
    const struct {
        int bad;
        const char *what, *rule;
        int a, b;
    } rule[] = {
        {d->hidden != target->hidden, "hidden_size", "must equal the target's hidden_size", d->hidden, target->hidden},
        {d->vocab != target->vocab, "vocab_size", "must equal the target's vocab_size", d->vocab, target->vocab},
        {d->n_target_layers != target->n_layers, "num_target_layers", "must equal the target's num_hidden_layers",
         d->n_target_layers, target->n_layers},
        {d->q_heads % d->kv_heads != 0, "num_attention_heads", "must be a multiple of num_key_value_heads", d->q_heads,
         d->kv_heads},
        {d->head_dim % 2 != 0, "head_dim", "must be a multiple of 2, RoPE rotates halves", d->head_dim, 2},
        {d->mask_id >= target->vocab, "mask_token_id", "must be below the target's vocab_size", d->mask_id,
         target->vocab},
    };
    for (size_t i = 0; i < N_OF(rule); i++)
        if (rule[i].bad)
            return ERR(ST_E_CONFIG, "%s: %s: %d %s (%d)", file, rule[i].what, rule[i].a, rule[i].rule, rule[i].b);
    return ST_OK;
}

static enum status read_draft(const char *file, const json_t *root, const struct config *target,
                              struct draft_config *d)
{
    struct field_place top = {file, ""}, at;
    const json_t *nested = json_object_get(root, NESTED), *value;
    char found[64];
    TRY(read_architecture(file, root));
    TRY(fields_read(top, root, &top_table, d));
    if (!json_object_get(root, "dtype") && !json_object_get(root, "torch_dtype")) return fields_missing(top, "dtype");
    if (nested && !json_is_object(nested))
        return ERR(ST_E_CONFIG, "%s: " NESTED ": found %s, expected an object", file,
                   fields_text(nested, found, sizeof found));
    if (nested) TRY(fields_read((struct field_place){file, NESTED "."}, nested, &nested_table, d));
    for (size_t i = 0; i < N_OF(placed_row); i++) {
        TRY(placed(file, root, NESTED, placed_row[i].name, &value, &at));
        TRY(fields_value(at, value, &placed_row[i], d));
    }
    TRY(read_rope(file, root, d));
    TRY(read_layer_types(file, root, d));
    TRY(check(file, target, d));
    return read_taps(file, root, d);
}

enum status draft_config_load(const char *dir, const struct config *target, struct draft_config *d_p)
{
    char file[4096];
    json_t *root;
    struct draft_config d;
    memset(&d, 0, sizeof d);
    TRY(fields_load(dir, file, sizeof file, &root, &d.hash));
    enum status st = read_draft(file, root, target, &d);
    json_decref(root);
    if (st == ST_OK) *d_p = d;
    return st;
}
