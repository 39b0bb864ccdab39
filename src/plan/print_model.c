/* The parts of a shown plan that are about the model: memory by part, cost, state of a request, pipeline bubble. */
#include <inttypes.h>
#include <string.h>

#include "plan/print_priv.h"

/* ---- memory by part -------------------------------------------------------------------------------------------- */

static void text_parts(FILE *f, const char *title, const char *const *name, const int64_t *v, int n)
{
    int first = 1;
    fprintf(f, "    %-11s", title);
    for (int i = 0; i < n; i++) {
        if (v[i] == 0) continue;
        fprintf(f, "%s%s %" PRId64, first ? " " : ", ", name[i], v[i]);
        first = 0;
    }
    fprintf(f, "%s\n", first ? " none" : "");
}

static int same(const struct rank_memory *a, const struct rank_memory *b)
{
    return memcmp(a->weight, b->weight, sizeof a->weight) == 0 && memcmp(a->state, b->state, sizeof a->state) == 0 &&
           a->work_bytes == b->work_bytes && a->coll_bytes == b->coll_bytes && a->ops_bytes == b->ops_bytes &&
           a->data_bytes == b->data_bytes && a->word_bytes == b->word_bytes && a->pack_bytes == b->pack_bytes;
}

void print_memory_text(FILE *f, const struct survey *s)
{
    static const char *const window_name[2] = {"data", "words"};
    fprintf(f, "\nmemory by part (bytes of each rank; windows and packing lie in host memory, the rest on the rank's "
               "GPU; without GPUs there are neither collectives nor operations nor packing)\n");
    for (int r = 0, end; r < s->t->n_ranks; r = end) {
        struct rank_role x = topology_role(s->t, r);
        const struct rank_memory *m = &s->mem[r];
        const int64_t window[2] = {m->data_bytes, m->word_bytes};
        for (end = r + 1; end < s->t->n_ranks; end++) {
            struct rank_role y = topology_role(s->t, end);
            if (y.role != x.role || y.stage != x.stage || !same(m, &s->mem[end])) break;
        }
        fprintf(f, "  ranks %d-%d, %s", r, end - 1, print_role(s, x));
        if (x.role == ROLE_PREFILL) fprintf(f, " stage %d", x.stage);
        fprintf(f, ": %" PRId64 " on the device\n", m->device_bytes);
        text_parts(f, "weights", weight_name, m->weight, WEIGHT_N);
        text_parts(f, "state", comp_name, m->state, COMP_N);
        fprintf(f, "    activations %" PRId64 "\n    collectives %" PRId64 "\n    operations  %" PRId64 "\n",
                m->work_bytes, m->coll_bytes, m->ops_bytes);
        text_parts(f, "windows", window_name, window, 2);
        fprintf(f, "    packing     %" PRId64 "\n", m->pack_bytes);
    }
    if (s->o->device_bytes)
        fprintf(f, "  every rank fits: %" PRId64 " bytes a device; rank %d, the fullest, leaves %" PRId64 " (%.2f GiB)\n",
                s->o->device_bytes, s->totals.fullest, s->o->device_bytes - s->totals.most.device_bytes,
                (double)(s->o->device_bytes - s->totals.most.device_bytes) / 1073741824.0);
}

/* ---- state of one request -------------------------------------------------------------------------------------- */

enum {
    STATE_HEADS, STATE_KDA, STATE_CONV, STATE_FIXED, STATE_MLA_ROW, STATE_MLA, STATE_MLA_MOST, STATE_DRAFT, STATE_ROWS
};
static const struct {
    const char *name, *key;
} state_row[STATE_ROWS] = {
    {"KDA heads", "kda_heads"},
    {"KDA matrices, a layer", "kda_layer"},
    {"convolution tails, a layer", "conv_layer"},
    {"KDA and convolution, all layers", "kda_conv"},
    {"MLA row, a token and layer", "mla_token_layer"},
    {"MLA rows, a token, all layers", "mla_token"},
    {"MLA rows, all positions", "mla_all_positions"},
    {"draft K/V, a token", "draft_token"},
};

/* what a rank of tp ranks holds of one request, were it to hold all layers; tp 1: the whole state */
static void state_of(const struct survey *s, int tp, int64_t v[STATE_ROWS])
{
    const struct config *c = s->c;
    int64_t e = kv_bytes(s->o->kv), heads = c->n_kda ? c->kda_heads / tp : 0;
    v[STATE_HEADS] = heads;
    v[STATE_KDA] = heads * c->kda_dim * c->kda_dim * 4;
    v[STATE_CONV] = heads * c->kda_dim * 3 * (c->conv_kernel - 1) * e;
    v[STATE_FIXED] = c->n_kda * (v[STATE_KDA] + v[STATE_CONV]);
    v[STATE_MLA_ROW] = (c->kv_rank + c->qk_rope) * e;
    v[STATE_MLA] = c->n_mla * v[STATE_MLA_ROW];
    v[STATE_MLA_MOST] = v[STATE_MLA] * c->max_position;
    v[STATE_DRAFT] = 0;
    if (!s->d) return;
    struct range kv = split_kv_heads(s->d->kv_heads, tp, 0);
    v[STATE_DRAFT] = (int64_t)2 * s->d->n_layers * (kv.end - kv.begin) * s->d->head_dim * kv_bytes(s->o->draft_kv);
}

static void text_state(FILE *f, const struct survey *s)
{
    int64_t whole[STATE_ROWS], prefill[STATE_ROWS], decode[STATE_ROWS];
    state_of(s, 1, whole);
    state_of(s, s->P ? s->P : 1, prefill);
    state_of(s, s->D, decode);
    fprintf(f, "\nstate of a request (bytes; a prefill rank holds the layers of its stage of it)\n  %-33s %15s", "",
            "whole model");
    if (s->P) fprintf(f, "    prefill tp %-3d", s->P);
    fprintf(f, "    %s tp %-3d\n", s->P ? " decode" : " single", s->D);
    for (int i = 0; i < STATE_ROWS; i++) {
        fprintf(f, "  %-33s %15" PRId64, state_row[i].name, whole[i]);
        if (s->P) fprintf(f, " %17" PRId64, prefill[i]);
        fprintf(f, " %17" PRId64 "\n", decode[i]);
    }
    if (whole[STATE_MLA])
        fprintf(f,
                "  KDA and convolution state weighs as much as the MLA rows of %" PRId64
                " tokens; a decode step reads and writes it: %" PRId64 " bytes\n",
                whole[STATE_FIXED] / whole[STATE_MLA], 2 * whole[STATE_FIXED]);
}

static void json_state(FILE *f, const struct survey *s)
{
    static const char *const side[3] = {"whole", "prefill", "decode"};
    const int tp[3] = {1, s->P, s->D};
    const char *between = "";
    fprintf(f, ",\n\"request_state\": {");
    for (int k = 0; k < 3; k++) {
        int64_t v[STATE_ROWS];
        if (tp[k] == 0) continue;
        state_of(s, tp[k], v);
        fprintf(f, "%s\n  \"%s\": {", between, side[k]);
        for (int i = 0; i < STATE_ROWS; i++) fprintf(f, "%s\"%s\": %" PRId64, i ? ", " : "", state_row[i].key, v[i]);
        fputc('}', f);
        between = ",";
    }
    fputc('}', f);
}

/* ---- cost ------------------------------------------------------------------------------------------------------ */

enum { STEPS = 7 };

/* rows of a step: a lone token, a block to verify, batches */
static void steps(const struct survey *s, int row[STEPS])
{
    const int fixed[STEPS] = {1, s->o->block > 1 ? s->o->block : 16, 8, 32, 64, 128, 256};
    memcpy(row, fixed, sizeof fixed);
}

/* weights that a token reads whole on every decode rank: router and latent pair, MLA's q_a and kv_a, KDA's f_a */
static void replicated(const struct config *c, int64_t v[3])
{
    int64_t moe = c->n_layers - c->n_dense, h = c->hidden;
    v[0] = 2 * moe * (c->n_experts + 2 * (int64_t)c->latent) * h;
    v[1] = (int64_t)2 * c->n_mla * (c->q_rank + c->kv_rank + c->qk_rope) * h;
    v[2] = (int64_t)2 * c->n_kda * c->kda_dim * h;
}

static void text_cost(FILE *f, const struct survey *s)
{
    struct cost_row row[COST_N];
    struct cost_total t;
    int rows[STEPS];
    int64_t whole[3];
    cost_rows(s->c, row);
    cost_total(s->c, &t);
    steps(s, rows);
    replicated(s->c, whole);
    fprintf(f,
            "\nmodel (a layer; operations of a token, two a multiply-add, without its context)\n  %-17s %6s %15s %15s "
            "%15s\n",
            "", "layers", "parameters", "bytes", "operations");
    for (int k = 0; k < COST_N; k++)
        fprintf(f, "  %-17s %6d %15" PRId64 " %15" PRId64 " %15" PRId64 "\n", cost_name[k], row[k].layers,
                row[k].params, row[k].bytes, row[k].flops);
    fprintf(f,
            "  a routed expert's parameters and bytes are those of one of %d, its operations those of a token's %d\n",
            s->c->n_experts, s->c->top_k);
    fprintf(f, "  all: %" PRId64 " parameters, %" PRId64 " bytes; a token uses %" PRId64 " of its matrices, %" PRId64
               " without the embedding table\n", t.params, t.bytes, t.active, t.active_no_embed);
    fprintf(f,
            "  operations of a token: %" PRId64 " in all layers, %" PRId64
            " in the head; for each token of context %" PRId64 " more absorbed, %" PRId64 " expanded\n",
            t.layer_flops, row[COST_HEAD].flops, t.context_flops[0], t.context_flops[1]);
    fprintf(f, "  attention residuals read %" PRId64 " rows of %d numbers for a token, %" PRId64 " bytes in BF16\n",
            t.residual_rows, s->c->hidden, 2 * t.residual_rows * s->c->hidden);
    fprintf(f,
            "  bytes of a decode step: %" PRId64
            " beside experts and embedding; whole on every rank of them: router and latent pair %" PRId64
            ", MLA's q_a and kv_a %" PRId64 ", KDA's f_a %" PRId64 "\n",
            t.non_expert_bytes, whole[0], whole[1], whole[2]);
    fprintf(f,
            "  rows of a step, experts of a layer they touch, bytes of weights read (routing taken as independent)\n");
    for (int i = 0; i < STEPS; i++)
        fprintf(f, "  %5d %7.1f %19.0f%s\n", rows[i], cost_experts_touched(s->c, rows[i]),
                cost_step_bytes(s->c, rows[i]), i == 1 ? "   a block to verify" : "");
}

static void json_cost(FILE *f, const struct survey *s)
{
    struct cost_row row[COST_N];
    struct cost_total t;
    int rows[STEPS];
    int64_t whole[3];
    cost_rows(s->c, row);
    cost_total(s->c, &t);
    steps(s, rows);
    replicated(s->c, whole);
    fprintf(f, ",\n\"model\": {\"parts\": [");
    for (int k = 0; k < COST_N; k++)
        fprintf(f,
                "%s\n    {\"part\": \"%s\", \"layers\": %d, \"parameters\": %" PRId64 ", \"bytes\": %" PRId64
                ", \"flops_per_token\": %" PRId64 "}",
                k ? "," : "", cost_name[k], row[k].layers, row[k].params, row[k].bytes, row[k].flops);
    fprintf(f,
            "],\n  \"parameters\": %" PRId64 ", \"bytes\": %" PRId64 ", \"active_parameters\": %" PRId64
            ", \"active_parameters_without_embedding\": %" PRId64 ",\n  \"layer_flops_per_token\": %" PRId64
            ", \"context_flops_absorbed\": %" PRId64 ", \"context_flops_expanded\": %" PRId64
            ", \"step_bytes_without_experts\": %" PRId64,
            t.params, t.bytes, t.active, t.active_no_embed, t.layer_flops, t.context_flops[0], t.context_flops[1],
            t.non_expert_bytes);
    fprintf(f, ", \"residual_bytes_per_token\": %" PRId64, 2 * t.residual_rows * s->c->hidden);
    fprintf(f,
            ",\n  \"replicated_bytes\": {\"router_latent\": %" PRId64 ", \"mla_a\": %" PRId64 ", \"kda_f_a\": %" PRId64
            "},\n  \"steps\": [",
            whole[0], whole[1], whole[2]);
    for (int i = 0; i < STEPS; i++)
        fprintf(f, "%s{\"rows\": %d, \"experts_touched\": %.3f, \"weight_bytes\": %.0f}", i ? ", " : "", rows[i],
                cost_experts_touched(s->c, rows[i]), cost_step_bytes(s->c, rows[i]));
    fprintf(f, "]}");
}

/* ---- bubble ---------------------------------------------------------------------------------------------------- */

static void text_bubble(FILE *f, const struct survey *s)
{
    int n = bubble_chunks(s->o, s->n_tokens);
    fprintf(
        f,
        "\npipeline bubble (idle share of prefill while a wave of prompts passes: %d tokens, %d chunk%s each, %d "
        "stages;\n"
        "stage times all equal, by operations, by bytes; the model behind it is in the manual)\n  %-11s %8s %12s %8s\n",
        s->n_tokens, n, n == 1 ? "" : "s", s->pp, "concurrency", "equal", "operations", "bytes");
    for (int i = 0; i < BUBBLE_WAVES; i++)
        fprintf(f, "  %11d %7.1f%% %11.1f%% %7.1f%%\n", print_wave[i], 100 * s->bubble[i][BALANCE_EQUAL],
                100 * s->bubble[i][BALANCE_FLOPS], 100 * s->bubble[i][BALANCE_BYTES]);
    fprintf(f, "  first chunk by stage: operations");
    for (int i = 0, end = split_chunk_end(0, s->n_tokens, s->o->chunk, s->o->page); i < s->pp; i++)
        fprintf(f, " %.4g", cost_chunk_flops(s->c, s->d, &s->t->prefill, i, 0, end, end == s->n_tokens));
    fprintf(f, "; bytes of a rank");
    for (int i = 0, end = split_chunk_end(0, s->n_tokens, s->o->chunk, s->o->page); i < s->pp; i++)
        fprintf(f, " %.4g", cost_chunk_bytes(s->c, s->d, &s->t->prefill, i, 0, end));
    fputc('\n', f);
}

static void json_bubble(FILE *f, const struct survey *s)
{
    fprintf(f, ",\n\"bubble\": {\"tokens\": %d, \"chunks\": %d, \"waves\": [", s->n_tokens,
            bubble_chunks(s->o, s->n_tokens));
    for (int i = 0; i < BUBBLE_WAVES; i++) {
        fprintf(f, "%s{\"concurrency\": %d", i ? ", " : "", print_wave[i]);
        for (int b = 0; b < BALANCE_N; b++) fprintf(f, ", \"%s\": %.6f", balance_name[b], s->bubble[i][b]);
        fputc('}', f);
    }
    fprintf(f, "], \"stages\": [");
    for (int i = 0, end = split_chunk_end(0, s->n_tokens, s->o->chunk, s->o->page); i < s->pp; i++)
        fprintf(f, "%s{\"stage\": %d, \"flops\": %.0f, \"bytes\": %.0f}", i ? ", " : "", i,
                cost_chunk_flops(s->c, s->d, &s->t->prefill, i, 0, end, end == s->n_tokens),
                cost_chunk_bytes(s->c, s->d, &s->t->prefill, i, 0, end));
    fprintf(f, "]}");
}

void print_model_text(FILE *f, const struct survey *s)
{
    text_cost(f, s);
    text_state(f, s);
    if (!s->t->single) text_bubble(f, s);
}

void print_model_json(FILE *f, const struct survey *s)
{
    json_cost(f, s);
    json_state(f, s);
    if (!s->t->single) json_bubble(f, s);
}
