/* sparse_ckpt - a checkpoint in the released layout and at any size whose files are holes: names, types and shapes are
 * real, every value reads as zero, and no disk is taken. What opens it meets the real sizes and offsets.
 *
 * A shard per layer, one for the ends; of the routed experts only those in `experts`, which is what a rank binds. */
#ifndef PDFLASH_TESTS_SPARSE_CKPT_H
#define PDFLASH_TESTS_SPARSE_CKPT_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/config.h"
#include "plan/split.h"
#include "suite.h"

struct sparse { /* a directory being written */
    char dir[512], shard[64], text[256];
    FILE *index, *head, *out;
    int64_t at; /* bytes of data in the shard so far */
    int names, in_shard;
};

static inline void sparse_shard_end(struct sparse *s)
{
    char path[640], buf[65536];
    if (!s->head) return;
    fputs("}", s->head);
    while (ftell(s->head) % 8) fputc(' ', s->head);
    uint64_t n = (uint64_t)ftell(s->head);
    rewind(s->head);
    snprintf(path, sizeof path, "%s/%s", s->dir, s->shard);
    FILE *f = fopen(path, "wb");
    ck_assert(f && fwrite(&n, 8, 1, f) == 1); /* little-endian, as all hosts of this program */
    for (size_t got; (got = fread(buf, 1, sizeof buf, s->head)) > 0;) ck_assert(fwrite(buf, 1, got, f) == got);
    ck_assert(fflush(f) == 0 && ftruncate(fileno(f), (off_t)(8 + n) + s->at) == 0);
    fclose(f);
    fclose(s->head);
    s->head = NULL;
}

static inline void sparse_shard(struct sparse *s, const char *name)
{
    sparse_shard_end(s);
    snprintf(s->shard, sizeof s->shard, "%s", name);
    s->head = tmpfile();
    ck_assert_ptr_nonnull(s->head);
    fputs("{", s->head);
    s->at = s->in_shard = 0;
}

/* "" or another prefix, the name, "BF16" "F32" "U8", the shape: sizes up to the first 0 */
static inline void sparse_put(struct sparse *s, const char *name, const char *type, int a, int b, int c)
{
    int64_t bytes = (int64_t)a * (b ? b : 1) * (c ? c : 1) * (type[0] == 'B' ? 2 : type[0] == 'F' ? 4 : 1);
    char dims[64];
    snprintf(dims, sizeof dims, b == 0 ? "%d" : c == 0 ? "%d,%d" : "%d,%d,%d", a, b, c);
    fprintf(s->head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%lld,%lld]}",
            s->in_shard++ ? "," : "", name, type, dims, (long long)s->at, (long long)(s->at + bytes));
    fprintf(s->index, "%s\"%s\":\"%s\"", s->names++ ? "," : "", name, s->shard);
    s->at += bytes;
}

static inline const char *sparse_name(struct sparse *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline const char *sparse_name(struct sparse *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->text, sizeof s->text, fmt, ap);
    va_end(ap);
    return s->text;
}

static inline void sparse_open(struct sparse *s, const char *dir)
{
    char path[640];
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    (void)mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    s->index = fopen(path, "w");
    ck_assert_ptr_nonnull(s->index);
    fputs("{\"metadata\":{},\"weight_map\":{", s->index);
}

static inline void sparse_close(struct sparse *s)
{
    sparse_shard_end(s);
    fputs("}}", s->index);
    ck_assert_int_eq(fclose(s->index), 0);
}

/* ---- the target ------------------------------------------------------------------------------------------------- */

static inline void sparse_attention(struct sparse *s, const struct config *c, int layer)
{
    int kda = c->is_kda[layer], h = c->hidden, nq = c->qk_nope + c->qk_rope;
    int p = kda ? c->kda_heads * c->kda_dim : c->mla_heads * c->v_dim;
#define AT(name) sparse_name(s, "language_model.model.layers.%d.self_attn." name, layer)
    sparse_put(s, AT("g_proj.weight"), "BF16", p, h, 0);
    sparse_put(s, AT("o_proj.weight"), "BF16", h, p, 0);
    for (int i = 0; kda && i < 3; i++) {
        sparse_put(s, sparse_name(s, "language_model.model.layers.%d.self_attn.%c_proj.weight", layer, "qkv"[i]),
                   "BF16", p, h, 0);
        sparse_put(s, sparse_name(s, "language_model.model.layers.%d.self_attn.%c_conv1d.weight", layer, "qkv"[i]),
                   "F32", p, 1, c->conv_kernel);
    }
    if (kda) {
        sparse_put(s, AT("f_a_proj.weight"), "BF16", c->kda_dim, h, 0);
        sparse_put(s, AT("f_b_proj.weight"), "BF16", p, c->kda_dim, 0);
        sparse_put(s, AT("b_proj.weight"), "BF16", c->kda_heads, h, 0);
        sparse_put(s, AT("A_log"), "F32", c->kda_dim, 0, 0);
        sparse_put(s, AT("dt_bias"), "F32", p, 0, 0);
        sparse_put(s, AT("o_norm.weight"), "F32", c->kda_dim, 0, 0);
        return;
    }
    sparse_put(s, AT("q_a_proj.weight"), "BF16", c->q_rank, h, 0);
    sparse_put(s, AT("q_a_layernorm.weight"), "BF16", c->q_rank, 0, 0);
    sparse_put(s, AT("q_b_proj.weight"), "BF16", c->mla_heads * nq, c->q_rank, 0);
    sparse_put(s, AT("kv_a_proj_with_mqa.weight"), "BF16", c->kv_rank + c->qk_rope, h, 0);
    sparse_put(s, AT("kv_a_layernorm.weight"), "BF16", c->kv_rank, 0, 0);
    sparse_put(s, AT("kv_b_proj.weight"), "BF16", c->mla_heads * (c->qk_nope + c->v_dim), c->kv_rank, 0);
#undef AT
}

static inline void sparse_mlp(struct sparse *s, const char *stem, int layer, int inter, int h)
{
    static const char *const part[2] = {"gate", "up"};
    for (int i = 0; i < 2; i++)
        sparse_put(s, sparse_name(s, "language_model.model.layers.%d.%s.%s_proj.weight", layer, stem, part[i]), "BF16",
                   inter, h, 0);
    sparse_put(s, sparse_name(s, "language_model.model.layers.%d.%s.down_proj.weight", layer, stem), "BF16", h, inter,
               0);
}

static inline void sparse_experts(struct sparse *s, const struct config *c, int layer, struct range experts)
{
    for (int e = experts.begin; e < experts.end; e++)
        for (int w = 1; w <= 3; w++) {
            int n = w == 2 ? c->latent : c->expert_inter, k = w == 2 ? c->expert_inter : c->latent;
#define AT(name) sparse_name(s, "language_model.model.layers.%d.block_sparse_moe.experts.%d.w%d." name, layer, e, w)
            sparse_put(s, AT("weight_packed"), "U8", n, k / 2, 0);
            sparse_put(s, AT("weight_scale"), "U8", n, k / 32, 0);
#undef AT
        }
}

static inline void sparse_layer(struct sparse *s, const struct config *c, int layer, struct range experts)
{
    static const char *const norm[4] = {"input_layernorm", "post_attention_layernorm", "self_attention_res_norm",
                                        "mlp_res_norm"};
    int h = c->hidden;
    char shard[64];
    snprintf(shard, sizeof shard, "model-%05d-of-%05d.safetensors", layer + 1, c->n_layers + 1);
    sparse_shard(s, shard);
#define AT(name) sparse_name(s, "language_model.model.layers.%d." name, layer)
    for (int i = 0; i < 4; i++)
        sparse_put(s, sparse_name(s, "language_model.model.layers.%d.%s.weight", layer, norm[i]), "BF16", h, 0, 0);
    sparse_put(s, AT("self_attention_res_proj.weight"), "BF16", 1, h, 0);
    sparse_put(s, AT("mlp_res_proj.weight"), "BF16", 1, h, 0);
    sparse_attention(s, c, layer);
    if (layer < c->n_dense) {
        sparse_mlp(s, "mlp", layer, c->dense_inter, h);
        return;
    }
    sparse_put(s, AT("block_sparse_moe.gate.weight"), "BF16", c->n_experts, h, 0);
    sparse_put(s, AT("block_sparse_moe.gate.e_score_correction_bias"), "F32", c->n_experts, 0, 0);
    sparse_put(s, AT("block_sparse_moe.routed_expert_down_proj.weight"), "BF16", c->latent, h, 0);
    sparse_put(s, AT("block_sparse_moe.routed_expert_norm.weight"), "BF16", c->latent, 0, 0);
    sparse_put(s, AT("block_sparse_moe.routed_expert_up_proj.weight"), "BF16", h, c->latent, 0);
#undef AT
    sparse_mlp(s, "block_sparse_moe.shared_experts", layer, c->shared_inter, h);
    sparse_experts(s, c, layer, experts);
}

static inline void sparse_target(const char *dir, const struct config *c, struct range layers, struct range experts)
{
    struct sparse s;
    sparse_open(&s, dir);
    for (int i = layers.begin; i < layers.end; i++) sparse_layer(&s, c, i, experts);
    sparse_shard(&s, "model-ends.safetensors");
    sparse_put(&s, "language_model.model.embed_tokens.weight", "BF16", c->vocab, c->hidden, 0);
    sparse_put(&s, "language_model.lm_head.weight", "BF16", c->vocab, c->hidden, 0);
    sparse_put(&s, "language_model.model.norm.weight", "BF16", c->hidden, 0, 0);
    sparse_put(&s, "language_model.model.output_attn_res_norm.weight", "BF16", c->hidden, 0, 0);
    sparse_put(&s, "language_model.model.output_attn_res_proj.weight", "BF16", 1, c->hidden, 0);
    sparse_close(&s);
}

/* ---- the draft -------------------------------------------------------------------------------------------------- */

static inline void sparse_draft(const char *dir, const struct draft_config *d)
{
    struct sparse s;
    int h = d->hidden, q = d->q_heads * d->head_dim, kv = d->kv_heads * d->head_dim;
    sparse_open(&s, dir);
    sparse_shard(&s, "model-00001.safetensors");
    sparse_put(&s, "fc.weight", "BF16", h, d->n_taps * h, 0);
    sparse_put(&s, "hidden_norm.weight", "BF16", h, 0, 0);
    sparse_put(&s, "norm.weight", "BF16", h, 0, 0);
    if (d->kind == DRAFT_DSPARK) {
        sparse_put(&s, "markov_head.markov_w1.weight", "BF16", d->vocab, d->markov_rank, 0);
        sparse_put(&s, "markov_head.markov_w2.weight", "BF16", d->vocab, d->markov_rank, 0);
    }
    for (int i = 0; i < d->n_layers; i++) {
#define AT(name) sparse_name(&s, "layers.%d." name, i)
        sparse_put(&s, AT("self_attn.q_proj.weight"), "BF16", q, h, 0);
        sparse_put(&s, AT("self_attn.k_proj.weight"), "BF16", kv, h, 0);
        sparse_put(&s, AT("self_attn.v_proj.weight"), "BF16", kv, h, 0);
        sparse_put(&s, AT("self_attn.o_proj.weight"), "BF16", h, q, 0);
        sparse_put(&s, AT("self_attn.q_norm.weight"), "BF16", d->head_dim, 0, 0);
        sparse_put(&s, AT("self_attn.k_norm.weight"), "BF16", d->head_dim, 0, 0);
        sparse_put(&s, AT("input_layernorm.weight"), "BF16", h, 0, 0);
        sparse_put(&s, AT("post_attention_layernorm.weight"), "BF16", h, 0, 0);
        sparse_put(&s, AT("mlp.gate_proj.weight"), "BF16", d->inter, h, 0);
        sparse_put(&s, AT("mlp.up_proj.weight"), "BF16", d->inter, h, 0);
        sparse_put(&s, AT("mlp.down_proj.weight"), "BF16", h, d->inter, 0);
#undef AT
    }
    sparse_close(&s);
}

#endif
