/* config - what a checkpoint is: config.json of a Kimi-K3 target or of a DFlash or DSpark draft as a struct.
 *
 * Every field of the file is either read into the struct, checked against the only value this program
 * implements, or named in a list of fields known to be without effect. A missing field, an unknown field
 * and an unsupported value are refused by name (ST_E_CONFIG: file, field, found value, what is accepted);
 * nothing is ever defaulted. Layer numbers are global and zero-based in memory; the file's
 * full_attn_layers / kda_layers are 1-based. Local.
 * Source: config.json of the released Kimi-K3 (text_config), Kimi-K3-DFlash and Kimi-K3-DSpark. */
#ifndef PDFLASH_CKPT_CONFIG_H
#define PDFLASH_CKPT_CONFIG_H

#include <stdint.h>

#include "base/err.h"
#include "ckpt/rope.h"

enum { CONFIG_MAX_LAYERS = 256, CONFIG_MAX_TAPS = 32, CONFIG_MAX_DRAFT_LAYERS = 32 };

struct config { /* target */
    int n_layers;             /* num_hidden_layers */
    int hidden;               /* hidden_size */
    int vocab;                /* vocab_size */
    int max_position;         /* max_position_embeddings, tokens */
    float norm_eps;           /* rms_norm_eps */
    float latent_norm_eps;    /* eps of q_a_layernorm and kv_a_layernorm: 1e-6, not a config field */
    int bos, eos, pad;        /* token ids */
    uint8_t is_kda[CONFIG_MAX_LAYERS]; /* 1: KDA layer, 0: MLA layer */
    int n_kda, n_mla;         /* layers of each kind */
    /* KDA (linear_attn_config) */
    int kda_heads, kda_dim;   /* num_heads, head_dim (d_k = d_v) */
    int conv_kernel;          /* short_conv_kernel_size */
    float gate_lower_bound;   /* g = bound * sigmoid(exp(A_log) (z + dt_bias)) */
    /* MLA */
    int mla_heads;            /* num_attention_heads == num_key_value_heads */
    int q_rank, kv_rank;      /* q_lora_rank, kv_lora_rank */
    int qk_nope, qk_rope, v_dim; /* qk_nope_head_dim, qk_rope_head_dim (never rotated), v_head_dim */
    /* attention residuals */
    int res_block;            /* attn_res_block_size */
    /* feed-forward */
    int n_dense;              /* first_k_dense_replace: layers 0..n_dense-1 have a dense MLP */
    int dense_inter;          /* intermediate_size */
    int n_experts, top_k;     /* num_experts, num_experts_per_token */
    int expert_inter;         /* moe_intermediate_size */
    int shared_inter;         /* num_shared_experts * moe_intermediate_size */
    int latent;               /* routed_expert_hidden_size */
    float routed_scale;       /* routed_scaling_factor */
    float situ_beta, situ_linear_beta; /* activation_situ_beta, activation_situ_linear_beta */
    uint64_t hash;            /* hash64 of the canonical (key-sorted, compact) JSON text */
};

enum draft_layer_type { DRAFT_FULL, DRAFT_SLIDING };
enum draft_kind { DRAFT_NONE, DRAFT_DFLASH, DRAFT_DSPARK };
/* draft_kind_name - "none", "dflash", "dspark": the words of --spec. */
const char *draft_kind_name(enum draft_kind kind);

struct draft_config {
    enum draft_kind kind;     /* architectures: DFlashDraftModel; DSparkDraftModel or Qwen3DSparkModel */
    int n_layers, hidden, vocab;
    int q_heads, kv_heads, head_dim;
    int inter;                /* intermediate_size, SwiGLU */
    float norm_eps;
    int block;                /* block_size: anchor + block-1 masks; DSpark calls it gamma */
    int mask_id;              /* mask_token_id, a row of the target's embedding */
    int n_taps;               /* captured target layers */
    int tap[CONFIG_MAX_TAPS]; /* target_layer_ids, zero-based, in concatenation (fc column) order */
    int n_target_layers;      /* num_target_layers */
    enum draft_layer_type type[CONFIG_MAX_DRAFT_LAYERS];
    int window;               /* sliding_window, counts the current token; 0 when no layer slides */
    double rope_theta;        /* rope.theta: the one that the handshake compares */
    struct rope rope;
    int max_position;
    /* DSpark: 0 in a DFlash draft */
    int markov_rank;          /* markov_rank of the vanilla head */
    int confidence;           /* enable_confidence_head: the checkpoint has one */
    int confidence_markov;    /* confidence_head_with_markov: it reads [y ; W1[previous]], else y alone */
    uint64_t hash;
};

/* draft_first_slot - the first row of the block that predicts: slot j of DFlash predicts its own position (the anchor's
 * row nothing), slot k of DSpark the position after it. */
static inline int draft_first_slot(const struct draft_config *d)
{
    return d->kind == DRAFT_DSPARK ? 0 : 1;
}
/* draft_verify_rows - rows of a whole verify step, the anchor and all drafts: block of DFlash, gamma + 1 of DSpark. */
static inline int draft_verify_rows(const struct draft_config *d)
{
    return d->block + 1 - draft_first_slot(d);
}

/* config_load - read DIR/config.json of a target. Returns ST_OK, ST_E_FILE, ST_E_CONFIG. Local. */
enum status config_load(const char *dir, struct config *c_p);
/* draft_config_load - read DIR/config.json of a draft and check it against the target (hidden, vocab,
 * n_layers, taps within range and distinct, mask id inside the vocabulary and not a BPE rank the
 * tokenizer can produce is NOT checked here). Members that published drafts keep at the top or in dflash_config are
 * taken from either. target NULL: nothing is compared with a target. A DIR with mask_embedding.pt is refused: its row must be a tensor of the safetensors.
 * Returns ST_OK, ST_E_FILE, ST_E_CONFIG. Local. */
enum status draft_config_load(const char *dir, const struct config *target, struct draft_config *d_p);

#endif
