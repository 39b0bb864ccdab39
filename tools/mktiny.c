/* mktiny - write a random target and draft pair in the released layout, small enough to run anywhere.
 *
 *   mktiny --spec FILE --like DIR --draft-like DIR --out DIR [--seed N]
 *
 * The config.json files are those of an existing pair (--like, --draft-like) with the members of FILE laid over them:
 * {"target": {...}, "draft": {...}}, objects merged member by member, everything else replaced. So the schema is always
 * the released one, and any member can be changed: heads, layers and their kinds, captures, experts, widths. The
 * tokenizer files are copied from --like. OUT/target and OUT/draft are what --model and --draft take.
 *
 * Weights are a pure function of (seed, tensor name, index), made with integer arithmetic and exact float operations only:
 * the same bytes on every machine. They are scaled so that the model behaves like one:
 *   - matrices have variance 1/inputs, so every projection keeps a unit-sized input unit-sized;
 *   - KDA channels come in three kinds, an eighth of them with the gate near its lower bound (strong decay), half with a
 *     moderate one, the rest nearly without decay; A_log differs from head to head;
 *   - the router's correction bias is large enough to change which experts are chosen;
 *   - rows of the head differ in length, those of special tokens are short, so that answers do not end at once;
 *   - one channel leans to one side in all embeddings, is loud in both final norms, and one token in 128 listens to it:
 *     these few are likely, so that a random draft is right now and then and rounds of several lengths are committed;
 *   - MXFP4 scales differ from block to block.
 * Exit codes are those of pdflash. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/rng.h"
#include "ckpt/config.h"
#include "ckpt/mxfp4.h"
#include "ckpt/safetensors.h"

#define LOUD 2.0f /* weight of the loud channel, over sqrt(hidden) */

struct options {
    const char *spec, *like, *draft_like, *out;
    int seed;
};

#define AT(member) offsetof(struct options, member)
static const struct opt_row row[] = {
    {.name = "spec", .kind = OPT_STR, .offset = AT(spec), .arg = "FILE", .commands = 1, .required = 1,
     .help = "JSON with the members to change: {\"target\": {...}, \"draft\": {...}}"},
    {.name = "like", .kind = OPT_STR, .offset = AT(like), .def = "inputs/k3-nano", .arg = "DIR", .commands = 1,
     .help = "target whose config.json and tokenizer are the pattern"},
    {.name = "draft-like", .kind = OPT_STR, .offset = AT(draft_like), .def = "inputs/k3-nano-dflash", .arg = "DIR",
     .commands = 1, .help = "draft whose config.json is the pattern"},
    {.name = "out", .kind = OPT_STR, .offset = AT(out), .arg = "DIR", .commands = 1, .required = 1,
     .help = "target and draft go to DIR/target and DIR/draft"},
    {.name = "seed", .kind = OPT_INT, .offset = AT(seed), .def = "1", .arg = "N", .min = 0, .max = 2147483647, .commands = 1,
     .help = "another seed, another model"},
    {.name = NULL},
};

/* ---- config.json ------------------------------------------------------------------------------------------- */

static enum status read_json(const char *path, json_t **v_p)
{
    json_error_t e;
    json_t *v = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!v) return ERR(ST_E_FILE, "%s: line %d: %s", path, e.line, e.text);
    *v_p = v;
    if (json_is_object(v)) return ST_OK;
    json_decref(v);
    return ERR(ST_E_FORMAT, "%s: not a JSON object", path);
}

static void lay_over(json_t *base, json_t *over)
{
    const char *key;
    json_t *value;
    json_object_foreach(over, key, value)
    {
        json_t *old = json_object_get(base, key);
        if (json_is_object(old) && json_is_object(value))
            lay_over(old, value);
        else
            json_object_set(base, key, value);
    }
}

/* DIR/config.json of the pattern with the part of the spec over it, to OUT/config.json */
static enum status write_config(const char *like, json_t *part, const char *out)
{
    char from[4096], to[4096];
    json_t *c;
    if (mkdir(out, 0777) != 0) {
        struct stat s;
        if (stat(out, &s) != 0 || !S_ISDIR(s.st_mode)) return ERR(ST_E_FILE, "%s: cannot be made: %m", out);
    }
    snprintf(from, sizeof from, "%s/config.json", like);
    snprintf(to, sizeof to, "%s/config.json", out);
    TRY(read_json(from, &c));
    if (part) lay_over(c, part);
    int bad = json_dump_file(c, to, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(c);
    return bad ? ERR(ST_E_IO, "%s: cannot be written: %m", to) : ST_OK;
}

static enum status copy_file(const char *from_dir, const char *to_dir, const char *name)
{
    char from[4096], to[4096], block[65536];
    size_t n;
    snprintf(from, sizeof from, "%s/%s", from_dir, name);
    snprintf(to, sizeof to, "%s/%s", to_dir, name);
    FILE *a = fopen(from, "rb");
    if (!a) return ERR(ST_E_FILE, "%s: cannot be opened: %m", from);
    FILE *b = fopen(to, "wb");
    int bad = !b;
    while (!bad && (n = fread(block, 1, sizeof block, a)) > 0) bad = fwrite(block, 1, n, b) != n;
    bad |= ferror(a) != 0;
    fclose(a);
    if (b && fclose(b) != 0) bad = 1;
    return bad ? ERR(ST_E_IO, "%s: cannot be written: %m", to) : ST_OK;
}

/* ---- safetensors files ---------------------------------------------------------------------------------------- */

struct writer {
    uint64_t seed;
    const char *dir;
    char file[128], prefix[128]; /* of the shard being written; of tensor names */
    FILE *head, *data;           /* of the shard, in memory */
    char *head_p, *data_p;
    size_t head_n, data_n;
    int64_t at, total;           /* bytes in the shard; in all shards */
    json_t *map;                 /* tensor -> file */
    uint64_t stream, index;      /* random numbers of the tensor being written */
};

static enum status shard_begin(struct writer *w, const char *file)
{
    snprintf(w->file, sizeof w->file, "%s", file);
    w->at = 0;
    w->head = open_memstream(&w->head_p, &w->head_n);
    w->data = open_memstream(&w->data_p, &w->data_n);
    if (!w->head || !w->data) return ERR(ST_E_NOMEM, "%s: no memory for it", file);
    fprintf(w->head, "{\"__metadata__\":{\"format\":\"pt\"}");
    return ST_OK;
}

static enum status shard_end(struct writer *w)
{
    char path[4096];
    fputc('}', w->head);
    while (ftell(w->head) % 8) fputc(' ', w->head); /* the data begins aligned */
    int bad = fclose(w->head) != 0;
    if (fclose(w->data) != 0) bad = 1;
    w->head = w->data = NULL;
    snprintf(path, sizeof path, "%s/%s", w->dir, w->file);
    FILE *f = bad ? NULL : fopen(path, "wb");
    uint64_t n = w->head_n;
    bad |= !f || fwrite(&n, sizeof n, 1, f) != 1 || fwrite(w->head_p, 1, w->head_n, f) != w->head_n ||
          fwrite(w->data_p, 1, w->data_n, f) != w->data_n;
    if (f && fclose(f) != 0) bad = 1;
    free(w->head_p);
    free(w->data_p);
    w->head_p = w->data_p = NULL;
    w->total += w->at;
    return bad ? ERR(ST_E_IO, "%s: cannot be written: %m", path) : ST_OK;
}

static enum status write_index(const struct writer *w)
{
    char path[4096];
    json_t *root = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)w->total, "weight_map", w->map);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", w->dir);
    int bad = !root || json_dump_file(root, path, JSON_INDENT(0) | JSON_SORT_KEYS) != 0;
    json_decref(root);
    return bad ? ERR(ST_E_IO, "%s: cannot be written: %m", path) : ST_OK;
}

/* A tensor's place in the file and its random stream. dims ends with a 0. */
static void tensor_begin(struct writer *w, const char *dtype, int bytes, const int *dim, const char *name)
{
    char full[288];
    int64_t n = bytes;
    snprintf(full, sizeof full, "%s%s", w->prefix, name);
    fprintf(w->head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", full, dtype);
    for (int i = 0; dim[i]; i++) {
        fprintf(w->head, "%s%d", i ? "," : "", dim[i]);
        n *= dim[i];
    }
    fprintf(w->head, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", w->at, w->at + n);
    w->at += n;
    json_object_set_new(w->map, full, json_string(w->file));
    w->stream = hash64(full, strlen(full), 0);
    w->index = 0;
}

/* ---- random values ---------------------------------------------------------------------------------------------- */

/* mean 0, variance 1, within +-3.5: four uniform numbers of 16 bits added up */
static float normal(struct writer *w)
{
    uint64_t u = rng_u64(w->seed, w->stream, w->index++);
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += (int)(u >> 16 * i & 0xffff);
    return (float)(sum - 2 * 65535) * (1.7320508f / 65536.0f);
}

static float unit(struct writer *w)
{
    return (float)(rng_u64(w->seed, w->stream, w->index++) >> 40) * 0x1p-24f;
}

static void put_bf16(struct writer *w, float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    u += 0x7fff + (u >> 16 & 1); /* to the nearest, ties to even; no NaN comes here */
    putc_unlocked((int)(u >> 16 & 0xff), w->data);
    putc_unlocked((int)(u >> 24), w->data);
}

/* BF16 [vocab][hidden], deviation 1; channel 0 leans to one side */
static void embedding(struct writer *w, const char *name, int vocab, int hidden)
{
    tensor_begin(w, "BF16", 2, (int[]){vocab, hidden, 0}, name);
    for (int i = 0; i < vocab; i++)
        for (int j = 0; j < hidden; j++) put_bf16(w, normal(w) + (j ? 0.0f : 3.0f));
}

/* BF16 [vocab][hidden], deviation 1.3/sqrt(hidden); ids below n_text are ordinary tokens */
static void head(struct writer *w, const char *name, int vocab, int hidden, int n_text)
{
    float std = 1.3f / sqrtf((float)hidden);
    tensor_begin(w, "BF16", 2, (int[]){vocab, hidden, 0}, name);
    for (int i = 0; i < vocab; i++) {
        struct writer own = {.seed = w->seed, .stream = w->stream + 1, .index = 2 * (uint64_t)i};
        uint64_t kind = rng_u64(own.seed, own.stream + 1, (uint64_t)i) % 128;
        float u = unit(&own), length = i < n_text ? 1.0f + u * u * u * u : 0.5f;
        for (int j = 0; j < hidden; j++) {
            float v = normal(w) * length;
            if (j == 0 && i < n_text && kind == 0) v = v < 0 ? v - 4.0f : v + 4.0f;
            put_bf16(w, v * std);
        }
    }
}

/* BF16 [rows][cols]: outputs are `gain` times the size of the inputs */
static void matrix(struct writer *w, const char *name, int rows, int cols, float gain)
{
    float std = gain / sqrtf((float)cols);
    tensor_begin(w, "BF16", 2, (int[]){rows, cols, 0}, name);
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) put_bf16(w, normal(w) * std);
}

/* weights of an RMSNorm, around 1; channel 0 is first */
static void norm_loud(struct writer *w, const char *name, int n, float first)
{
    tensor_begin(w, "BF16", 2, (int[]){n, 0}, name);
    for (int i = 0; i < n; i++) put_bf16(w, i || first == 1.0f ? 1.0f + 0.1f * normal(w) : first);
}

static void norm(struct writer *w, const char *name, int n)
{
    norm_loud(w, name, n, 1.0f);
}

static void put_f32(struct writer *w, float v)
{
    fwrite(&v, sizeof v, 1, w->data);
}

/* F32 [n] or [n][1][k]: mean + std * normal */
static void floats(struct writer *w, const char *name, int n, int k, float mean, float std)
{
    int64_t all = (int64_t)n * (k ? k : 1);
    tensor_begin(w, "F32", 4, k ? (int[]){n, 1, k, 0} : (int[]){n, 0}, name);
    for (int64_t i = 0; i < all; i++) put_f32(w, mean + std * normal(w));
}

static int e2m1_code(float v)
{
    int best = 0;
    float a = v < 0 ? -v : v;
    for (int c = 1; c < 8; c++)
        if (fabsf(mxfp4_value[c] - a) < fabsf(mxfp4_value[best] - a)) best = c;
    return best | (v < 0 ? 8 : 0);
}

/* stem.weight_packed [rows][cols/2] and stem.weight_scale [rows][cols/32]. Elements are normal numbers of deviation 2 in
 * E2M1, the scale brings them to about 1/sqrt(cols), twice or half that for some blocks. */
static void mxfp4(struct writer *w, const char *stem, int rows, int cols)
{
    char name[128];
    int exponent = 127;
    for (float s = 2.0f; s * s * (float)cols > 2.0f; s *= 0.5f) exponent--;
    snprintf(name, sizeof name, "%s.weight_packed", stem);
    tensor_begin(w, "U8", 1, (int[]){rows, cols / 2, 0}, name);
    for (int64_t i = 0; i < (int64_t)rows * cols / 2; i++) {
        int low = e2m1_code(2.0f * normal(w)), high = e2m1_code(2.0f * normal(w));
        putc_unlocked(low | high << 4, w->data);
    }
    snprintf(name, sizeof name, "%s.weight_scale", stem);
    tensor_begin(w, "U8", 1, (int[]){rows, cols / MXFP4_BLOCK, 0}, name);
    for (int64_t i = 0; i < (int64_t)rows * cols / MXFP4_BLOCK; i++) {
        float u = unit(w);
        putc_unlocked(exponent + (u > 0.9f) - (u < 0.2f), w->data);
    }
}

/* ---- the target -------------------------------------------------------------------------------------------------- */

/* per head, the rest of the stored length is 0, as in the released file */
static void a_log(struct writer *w, int heads, int n)
{
    tensor_begin(w, "F32", 4, (int[]){n, 0}, "self_attn.A_log");
    for (int i = 0; i < n; i++) {
        float v = -0.7f + 1.7f * unit(w);
        put_f32(w, i < heads ? v : 0.0f);
    }
}

/* g = bound * sigmoid(exp(A_log) (z + dt_bias)): which of three kinds of channel this is */
static void dt_bias(struct writer *w, int n)
{
    tensor_begin(w, "F32", 4, (int[]){n, 0}, "self_attn.dt_bias");
    for (int i = 0; i < n; i++) {
        uint64_t kind = rng_u64(w->seed, w->stream, (uint64_t)i + (1u << 30)) % 8;
        put_f32(w, (kind == 0 ? 5.0f : kind < 5 ? -2.5f : -6.0f) + 0.5f * normal(w));
    }
}

static void kda_layer(struct writer *w, const struct config *c)
{
    static const char *const part[3] = {"q", "k", "v"};
    int ch = c->kda_heads * c->kda_dim, h = c->hidden;
    char name[64];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "self_attn.%s_proj.weight", part[i]);
        matrix(w, name, ch, h, 1.0f);
        snprintf(name, sizeof name, "self_attn.%s_conv1d.weight", part[i]);
        floats(w, name, ch, c->conv_kernel, 0.2f, 0.5f);
    }
    matrix(w, "self_attn.f_a_proj.weight", c->kda_dim, h, 1.0f);
    matrix(w, "self_attn.f_b_proj.weight", ch, c->kda_dim, 1.0f);
    matrix(w, "self_attn.b_proj.weight", c->kda_heads, h, 1.5f);
    a_log(w, c->kda_heads, c->kda_dim);
    dt_bias(w, ch);
    matrix(w, "self_attn.g_proj.weight", ch, h, 1.0f);
    floats(w, "self_attn.o_norm.weight", c->kda_dim, 0, 1.0f, 0.1f);
    matrix(w, "self_attn.o_proj.weight", h, ch, 2.0f);
}

static void mla_layer(struct writer *w, const struct config *c)
{
    int h = c->hidden, n = c->mla_heads, v = n * c->v_dim;
    matrix(w, "self_attn.q_a_proj.weight", c->q_rank, h, 1.0f);
    norm(w, "self_attn.q_a_layernorm.weight", c->q_rank);
    matrix(w, "self_attn.q_b_proj.weight", n * (c->qk_nope + c->qk_rope), c->q_rank, 2.0f); /* attention that looks somewhere */
    matrix(w, "self_attn.kv_a_proj_with_mqa.weight", c->kv_rank + c->qk_rope, h, 1.0f);
    norm(w, "self_attn.kv_a_layernorm.weight", c->kv_rank);
    matrix(w, "self_attn.kv_b_proj.weight", n * (c->qk_nope + c->v_dim), c->kv_rank, 1.0f);
    matrix(w, "self_attn.g_proj.weight", v, h, 1.0f);
    matrix(w, "self_attn.o_proj.weight", h, v, 2.0f);
}

static void mlp(struct writer *w, const char *stem, int inter, int hidden)
{
    char name[128];
    snprintf(name, sizeof name, "%s.gate_proj.weight", stem);
    matrix(w, name, inter, hidden, 1.5f);
    snprintf(name, sizeof name, "%s.up_proj.weight", stem);
    matrix(w, name, inter, hidden, 1.0f);
    snprintf(name, sizeof name, "%s.down_proj.weight", stem);
    matrix(w, name, hidden, inter, 1.0f);
}

static void moe_layer(struct writer *w, const struct config *c)
{
    char stem[64];
    matrix(w, "block_sparse_moe.gate.weight", c->n_experts, c->hidden, 1.0f);
    floats(w, "block_sparse_moe.gate.e_score_correction_bias", c->n_experts, 0, 0.0f, 0.1f);
    matrix(w, "block_sparse_moe.routed_expert_down_proj.weight", c->latent, c->hidden, 1.0f);
    norm(w, "block_sparse_moe.routed_expert_norm.weight", c->latent);
    matrix(w, "block_sparse_moe.routed_expert_up_proj.weight", c->hidden, c->latent, 1.0f);
    mlp(w, "block_sparse_moe.shared_experts", c->shared_inter, c->hidden);
    for (int e = 0; e < c->n_experts; e++)
        for (int i = 1; i <= 3; i++) {
            snprintf(stem, sizeof stem, "block_sparse_moe.experts.%d.w%d", e, i);
            mxfp4(w, stem, i == 2 ? c->latent : c->expert_inter, i == 2 ? c->expert_inter : c->latent);
        }
}

/* norm and query of an attention residual read */
static void residual(struct writer *w, const char *stem, int hidden)
{
    char name[64];
    snprintf(name, sizeof name, "%s_norm.weight", stem);
    norm(w, name, hidden);
    snprintf(name, sizeof name, "%s_proj.weight", stem);
    matrix(w, name, 1, hidden, 1.0f);
}

static enum status target_layer(struct writer *w, const struct config *c, int layer)
{
    char file[64];
    snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", layer + 1, c->n_layers + 1);
    TRY(shard_begin(w, file));
    snprintf(w->prefix, sizeof w->prefix, "language_model.model.layers.%d.", layer);
    norm(w, "input_layernorm.weight", c->hidden);
    norm(w, "post_attention_layernorm.weight", c->hidden);
    residual(w, "self_attention_res", c->hidden);
    residual(w, "mlp_res", c->hidden);
    if (c->is_kda[layer])
        kda_layer(w, c);
    else
        mla_layer(w, c);
    if (layer < c->n_dense)
        mlp(w, "mlp", c->dense_inter, c->hidden);
    else
        moe_layer(w, c);
    return shard_end(w);
}

/* the last shard of a released checkpoint: embedding, head, final norm, output residual */
static enum status target_ends(struct writer *w, const struct config *c)
{
    char file[64];
    snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", c->n_layers + 1, c->n_layers + 1);
    TRY(shard_begin(w, file));
    snprintf(w->prefix, sizeof w->prefix, "language_model.");
    embedding(w, "model.embed_tokens.weight", c->vocab, c->hidden);
    norm_loud(w, "model.norm.weight", c->hidden, LOUD * sqrtf((float)c->hidden));
    residual(w, "model.output_attn_res", c->hidden);
    head(w, "lm_head.weight", c->vocab, c->hidden, c->bos);
    return shard_end(w);
}

static enum status write_target(struct writer *w, const struct config *c)
{
    for (int i = 0; i < c->n_layers; i++) TRY(target_layer(w, c, i));
    TRY(target_ends(w, c));
    return write_index(w);
}

/* ---- the draft --------------------------------------------------------------------------------------------------- */

static void draft_layer(struct writer *w, const struct draft_config *d)
{
    int h = d->hidden, q = d->q_heads * d->head_dim, kv = d->kv_heads * d->head_dim;
    norm(w, "input_layernorm.weight", h);
    norm(w, "post_attention_layernorm.weight", h);
    matrix(w, "self_attn.q_proj.weight", q, h, 1.0f);
    matrix(w, "self_attn.k_proj.weight", kv, h, 1.0f);
    matrix(w, "self_attn.v_proj.weight", kv, h, 1.0f);
    matrix(w, "self_attn.o_proj.weight", h, q, 1.0f);
    norm(w, "self_attn.q_norm.weight", d->head_dim);
    norm(w, "self_attn.k_norm.weight", d->head_dim);
    mlp(w, "mlp", d->inter, h);
}

static enum status write_draft(struct writer *w, const struct draft_config *d)
{
    TRY(shard_begin(w, "model.safetensors"));
    w->prefix[0] = 0;
    matrix(w, "fc.weight", d->hidden, d->n_taps * d->hidden, 1.0f);
    norm(w, "hidden_norm.weight", d->hidden);
    norm_loud(w, "norm.weight", d->hidden, LOUD * sqrtf((float)d->hidden));
    for (int i = 0; i < d->n_layers; i++) {
        snprintf(w->prefix, sizeof w->prefix, "layers.%d.", i);
        draft_layer(w, d);
    }
    return shard_end(w);
}

/* ---- main --------------------------------------------------------------------------------------------------------- */

/* what was written must be what this program itself accepts */
static enum status check_written(const char *dir)
{
    struct safetensors *s = NULL;
    TRY(safetensors_open(dir, &s));
    fprintf(stderr, "%s: %zu tensors, %" PRIu64 " bytes\n", dir, safetensors_count(s), safetensors_bytes_total(s));
    safetensors_close(s);
    return ST_OK;
}

static enum status write_pair(const struct options *o, const char *target, const char *draft)
{
    struct config c;
    struct draft_config d;
    struct writer w = {.seed = (uint64_t)o->seed, .dir = target};
    TRY(config_load(target, &c));
    TRY(draft_config_load(draft, &c, &d));
    TRY(copy_file(o->like, target, "tiktoken.model"));
    TRY(copy_file(o->like, target, "tokenizer_config.json"));
    TRY(copy_file(o->like, target, "generation_config.json"));
    w.map = json_object();
    enum status st = write_target(&w, &c);
    w.dir = draft;
    if (st == ST_OK) st = write_draft(&w, &d);
    json_decref(w.map);
    if (st == ST_OK) st = check_written(target);
    return st == ST_OK ? check_written(draft) : st;
}

static enum status run(int argc, char **argv)
{
    struct options o;
    char target[2048], draft[2048];
    int n_pos;
    json_t *spec;
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        printf("mktiny - a random target and draft in the released layout\n\n");
        opt_help(row, 1, stdout);
        return ST_OK;
    }
    TRY(opt_parse(row, 1, argc - 1, argv + 1, &o, NULL, 0, &n_pos));
    snprintf(target, sizeof target, "%s/target", o.out);
    snprintf(draft, sizeof draft, "%s/draft", o.out);
    TRY(read_json(o.spec, &spec));
    mkdir(o.out, 0777); /* whether it was there or cannot be made shows below */
    enum status st = write_config(o.like, json_object_get(spec, "target"), target);
    if (st == ST_OK) st = write_config(o.draft_like, json_object_get(spec, "draft"), draft);
    json_decref(spec);
    return st == ST_OK ? write_pair(&o, target, draft) : st;
}

int main(int argc, char **argv)
{
    log_init("mktiny", -1, LOG_INFO);
    return err_exit_code(run(argc, argv));
}
