/* The draft half of config.h. Members that published drafts put either at the top or into dflash_config are
 * looked up in both places. */
#include <string.h>
#include <unistd.h>

#include "ckpt/config.h"
#include "ckpt/fields.h"
#include "ckpt/text_file.h"

#define MAX_WIDTH 16777216.0
#define N_OF(a)   (sizeof(a) / sizeof(a)[0])
#define NESTED    "dflash_config"

#define INT(name, member, lo, hi) {name, FIELD_INT, 0, offsetof(struct draft_config, member), lo, hi, NULL}
#define FIX(name, text)           {name, FIELD_FIXED, 0, 0, 0, 0, text}
#define OPT_FIX(name, text)       {name, FIELD_FIXED, 1, 0, 0, 0, text}
#define OWN(name)                 {name, FIELD_OWN, 0, 0, 0, 0, NULL}
#define OPT_OWN(name)             {name, FIELD_OWN, 1, 0, 0, 0, NULL}

/* members of both kinds of draft */
#define COMMON_ROWS                                                                                                 \
    OWN("architectures"),                                                                                           \
    FIX("model_type", "\"qwen3\""),                                                                                 \
    OPT_FIX("dtype", "\"bfloat16\""),                                                                               \
    OPT_FIX("torch_dtype", "\"bfloat16\""),                                                                         \
    FIX("attention_bias", "false"),                                                                                 \
    FIX("hidden_act", "\"silu\""),                                                                                  \
    OPT_FIX("is_neox_style", "true"),                                                                               \
    OPT_FIX("rope_is_neox_style", "true"),                                                                          \
    INT("num_hidden_layers", n_layers, 1, CONFIG_MAX_DRAFT_LAYERS),                                                 \
    INT("hidden_size", hidden, 1, MAX_WIDTH),                                                                       \
    INT("vocab_size", vocab, 1, MAX_WIDTH),                                                                         \
    INT("num_attention_heads", q_heads, 1, 4096),                                                                   \
    INT("num_key_value_heads", kv_heads, 1, 4096),                                                                  \
    INT("head_dim", head_dim, 2, 4096),                                                                             \
    INT("intermediate_size", inter, 1, MAX_WIDTH),                                                                  \
    INT("max_position_embeddings", max_position, 1, 1 << 30),                                                       \
    {"rms_norm_eps", FIELD_FLOAT, 0, offsetof(struct draft_config, norm_eps), 1e-12, 1e-2, NULL},                   \
    OWN("layer_types"),                                                                                             \
    OPT_OWN("sliding_window"),                                                                                      \
    OPT_OWN("use_sliding_window"),                                                                                  \
    OPT_OWN("rope_scaling"),                                                                                        \
    OPT_OWN("rope_theta"),                                                                                          \
    OPT_OWN("rope_parameters"),                                                                                     \
    OPT_OWN("block_size"),                                                                                          \
    OPT_OWN("mask_token_id"),                                                                                       \
    OPT_OWN("target_layer_ids"),                                                                                    \
    OPT_OWN("num_target_layers"),                                                                                   \
    OPT_OWN(NESTED)
static const struct field dflash_row[] = {COMMON_ROWS, OPT_FIX("sample_from_anchor", "false")};
static const struct field dspark_row[] = {COMMON_ROWS, OPT_OWN("sample_from_anchor"), OPT_OWN("markov_rank"),
                                          OPT_OWN("markov_head_type"), OPT_OWN("enable_confidence_head"),
                                          OPT_OWN("confidence_head_with_markov")};
/* the draft owns neither embedding nor head, ends no text and never trains here; layer_types decides the windows */
static const char *const top_no_effect[] = {"_name_or_path",     "attention_dropout",   "auto_map",     "bos_token_id",
                                            "eos_token_id",      "initializer_range",   "max_window_layers",
                                            "pad_token_id",      "tie_word_embeddings", "transformers_version",
                                            "use_cache",         "num_anchors"};
#define NESTED_ROWS                                                                                                    \
    OPT_OWN("block_size"), OPT_OWN("mask_token_id"), OPT_OWN("target_layer_ids"), OPT_OWN("num_target_layers")
static const struct field dflash_nested[] = {NESTED_ROWS, OPT_FIX("sample_from_anchor", "false")};
static const struct field dspark_nested[] = {NESTED_ROWS, OPT_OWN("sample_from_anchor"), OPT_OWN("markov_rank"),
                                             OPT_OWN("markov_head_type"), OPT_OWN("enable_confidence_head"),
                                             OPT_OWN("confidence_head_with_markov"), OPT_OWN("num_anchors")};
static const struct field placed_row[] = {INT("block_size", block, 2, 256), INT("mask_token_id", mask_id, 0, MAX_WIDTH),
                                          INT("num_target_layers", n_target_layers, 1, CONFIG_MAX_LAYERS)};
static const struct field markov_row[] = {FIX("markov_head_type", "\"vanilla\""),
                                          INT("markov_rank", markov_rank, 1, 4096)};

#define TABLE(rows) {rows, N_OF(rows), top_no_effect, N_OF(top_no_effect)}
static const struct architecture {
    const char *name;
    enum draft_kind kind;
    struct field_table top, nested;
} architectures[] = {
    {"DFlashDraftModel", DRAFT_DFLASH, TABLE(dflash_row), {dflash_nested, N_OF(dflash_nested), NULL, 0}},
    {"DSparkDraftModel", DRAFT_DSPARK, TABLE(dspark_row), {dspark_nested, N_OF(dspark_nested), NULL, 0}},
    {"Qwen3DSparkModel", DRAFT_DSPARK, TABLE(dspark_row), {dspark_nested, N_OF(dspark_nested), NULL, 0}},
};
#undef TABLE
static const char known_names[] = "DFlashDraftModel, DSparkDraftModel or Qwen3DSparkModel";

const char *draft_kind_name(enum draft_kind kind)
{
    static const char *const name[] = {"none", "dflash", "dspark"};
    return name[kind];
}

/* name at the top level, in dflash_config, or the same value in both; absent: *value_p is NULL */
static enum status find_placed(const char *file, const json_t *root, const char *name, const json_t **value_p,
                               struct field_place *at_p)
{
    char a[64], b[64];
    const json_t *top = json_object_get(root, name), *in = json_object_get(json_object_get(root, NESTED), name);
    at_p->file = file;
    at_p->prefix = top ? "" : NESTED ".";
    if (top && in && !json_equal(top, in) && !(json_is_number(top) && json_is_number(in) &&
                                               json_number_value(top) == json_number_value(in)))
        return ERR(ST_E_CONFIG, "%s: %s: the top level says %s, " NESTED ".%s says %s; remove the wrong one", file,
                   name, fields_text(top, a, sizeof a), name, fields_text(in, b, sizeof b));
    *value_p = top ? top : in;
    return ST_OK;
}

static enum status placed(const char *file, const json_t *root, const char *name, const json_t **value_p,
                          struct field_place *at_p)
{
    TRY(find_placed(file, root, name, value_p, at_p));
    return *value_p ? ST_OK : fields_missing((struct field_place){file, ""}, name);
}

static enum status placed_flag(const char *file, const json_t *root, const char *name, int *flag_p)
{
    struct field_place at;
    const json_t *v;
    char found[64];
    TRY(placed(file, root, name, &v, &at));
    if (!json_is_boolean(v))
        return ERR(ST_E_CONFIG, "%s: %s%s: found %s, expected true or false", at.file, at.prefix, name,
                   fields_text(v, found, sizeof found));
    *flag_p = json_is_true(v);
    return ST_OK;
}

static enum status read_architecture(const char *file, const json_t *root, const struct architecture **a_p)
{
    const json_t *list = json_object_get(root, "architectures");
    char found[64];
    if (!list) return fields_missing((struct field_place){file, ""}, "architectures");
    if (json_array_size(list) == 0)
        return ERR(ST_E_CONFIG, "%s: architectures: found %s, expected [\"DFlashDraftModel\"]", file,
                   fields_text(list, found, sizeof found));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        const struct architecture *a = NULL;
        for (size_t k = 0; k < N_OF(architectures); k++)
            if (name && strcmp(name, architectures[k].name) == 0) a = &architectures[k];
        if (!a || (i > 0 && a != *a_p))
            return ERR(ST_E_CONFIG, "%s: architectures: %s is not implemented as a draft%s; expected %s", file,
                       fields_text(json_array_get(list, i), found, sizeof found), i ? " beside another" : "",
                       known_names);
        *a_p = a;
    }
    return ST_OK;
}

/* The head of a DSpark draft. Slots: k predicts the position after its own, the anchor's row included. A file that says
 * otherwise (sample_from_anchor false: anchor + k, slot 0 masked) would draft at acceptance 1 without any error. */
static enum status read_dspark(const char *file, const json_t *root, struct draft_config *d)
{
    static const struct field from_anchor = OPT_FIX("sample_from_anchor", "true");
    struct field_place at;
    const json_t *v;
    TRY(find_placed(file, root, "sample_from_anchor", &v, &at));
    if (v) TRY(fields_value(at, v, &from_anchor, d));
    for (size_t i = 0; i < N_OF(markov_row); i++) {
        TRY(placed(file, root, markov_row[i].name, &v, &at));
        TRY(fields_value(at, v, &markov_row[i], d));
    }
    TRY(placed_flag(file, root, "enable_confidence_head", &d->confidence));
    if (d->confidence) TRY(placed_flag(file, root, "confidence_head_with_markov", &d->confidence_markov));
    return ST_OK;
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
    TRY(placed(file, root, "target_layer_ids", &list, &at));
    TRY(fields_ints(at, "target_layer_ids", list, 0, d->n_target_layers - 1, CONFIG_MAX_TAPS, d->tap, &d->n_taps));
    for (int i = 0; i < d->n_taps; i++)
        for (int j = 0; j < i; j++)
            if (d->tap[i] == d->tap[j])
                return ERR(ST_E_CONFIG, "%s: %starget_layer_ids: layer %d is listed twice", at.file, at.prefix,
                           d->tap[i]);
    return ST_OK;
}

/* target NULL: what the draft says of itself only */
static enum status check(const char *file, const struct config *target, const struct draft_config *d)
{
    struct config own = {.hidden = d->hidden, .vocab = d->vocab, .n_layers = d->n_target_layers};
    if (!target) own.vocab = d->vocab > d->mask_id ? d->vocab : d->mask_id + 1, target = &own;
    const struct {
        int bad;
        const char *what, *rule;
        int a, b;
    } rule[] = {
        {d->hidden != target->hidden, "hidden_size", "must equal the target's hidden_size", d->hidden, target->hidden},
        {target != &own && d->vocab != target->vocab, "vocab_size", "must equal the target's vocab_size", d->vocab, target->vocab},
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
    const struct architecture *arch = NULL;
    char found[64];
    TRY(read_architecture(file, root, &arch));
    d->kind = arch->kind;
    TRY(fields_read(top, root, &arch->top, d));
    if (!json_object_get(root, "dtype") && !json_object_get(root, "torch_dtype")) return fields_missing(top, "dtype");
    if (nested && !json_is_object(nested))
        return ERR(ST_E_CONFIG, "%s: " NESTED ": found %s, expected an object", file,
                   fields_text(nested, found, sizeof found));
    if (nested) TRY(fields_read((struct field_place){file, NESTED "."}, nested, &arch->nested, d));
    for (size_t i = 0; i < N_OF(placed_row); i++) {
        TRY(placed(file, root, placed_row[i].name, &value, &at));
        TRY(fields_value(at, value, &placed_row[i], d));
    }
    TRY(rope_read(file, root, &d->rope));
    d->rope_theta = d->rope.theta;
    TRY(read_layer_types(file, root, d));
    if (d->kind == DRAFT_DSPARK) TRY(read_dspark(file, root, d));
    TRY(check(file, target, d));
    return read_taps(file, root, d);
}

/* A mask row of its own lies in a pickle in published drafts. This program reads no pickles, and to draft without it
 * would only look like a bad draft. */
static enum status check_mask_file(const char *dir)
{
    char path[4096];
    TRY(text_file_path(dir, "mask_embedding.pt", path, sizeof path));
    if (access(path, F_OK) != 0) return ST_OK;
    return ERR(ST_E_CONFIG, "%s: a pickled mask_embedding is not read; only a BF16 tensor mask_embedding of hidden_size "
               "values in the safetensors is: convert the file and move it away", path);
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
    if (st == ST_OK) st = check_mask_file(dir);
    if (st == ST_OK) *d_p = d;
    return st;
}
