/* what else a draft checkpoint may be: YaRN, a mask row of its own, other block sizes and layer types, by what they change */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "draft_dir.h"
#include "rig.h"

const char *const suite_name = "draft_variants";

enum { HIDDEN = 256, DIM = 32, HEADS = 8, BLOCK = 16, LAYERS = 3, PROMPT = 150 };

static int32_t *ids; /* the golden prompt of 150 tokens */
static struct rig base; /* k3-nano-dflash as it is */
static int base_slot;

static struct rig_spec spec_of(const char *draft)
{
    return (struct rig_spec){.act = ACT_FP32, .kv = KV_FP32, .page = 16, .n_slots = 4, .max_tokens = 200, .max_rows = 160,
                             .draft = draft};
}

/* a rig with the prompt in a slot */
static int open_with(struct rig *r, const char *draft)
{
    struct rig_spec p = spec_of(draft);
    rig_open(r, &p);
    int slot = rig_admit(r, PROMPT + BLOCK);
    rig_prefill(r, slot, ids, PROMPT, 64);
    return slot;
}

static void setup(void)
{
    struct h5 *f;
    int n;
    OK(h5_open(suite_path("tests/vectors/dflash_context.h5"), 0, &f));
    ids = rig_ids(f, "/p150/ids", &n);
    ck_assert_int_eq(n, PROMPT);
    h5_close(f);
    base_slot = open_with(&base, NULL);
}

static void teardown(void)
{
    rig_close(&base);
    mem_free(ids);
}

static void drafts_of(struct rig *r, int slot, int block, int32_t *id)
{
    struct draft_seq q = {slot, PROMPT, 220};
    OK(draft_block(r->d, r->t, &r->s, &q, 1, block, id, NULL));
}

/* ---- YaRN ------------------------------------------------------------------------------------------------- */

#define YARN "\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 64, \"beta_fast\": 4, \"beta_slow\": 1"

static const struct {
    const char *edits;
    double amplitude;
} yarns[] = {
    {"{\"rope_scaling\": {" YARN ", \"factor\": 16.0}}", 1.2772588722239782},
    {"{\"rope_scaling\": {" YARN ", \"factor\": 16.0, \"attention_factor\": 1.0}}", 1},
    {"{\"rope_scaling\": {" YARN ", \"factor\": 4, \"attention_factor\": 0.5, \"mscale\": 1, \"mscale_all_dim\": 2}}", 0.5},
    {"{\"rope_scaling\": {" YARN ", \"factor\": 1}}", 1},
};

/* K of the context: the plain one, turned on by the difference of the angles and stretched; V untouched */
START_TEST(yarn_turns_and_stretches_keys)
{
    struct rig r;
    double plain[DIM / 2], inv[DIM / 2], worst = 0, moved = 0;
    int slot = open_with(&r, draft_dir_make("yarn", "inputs/k3-nano-dflash", yarns[_i].edits, NULL));
    ck_assert(r.dc.rope.yarn && fabs(r.dc.rope.amplitude - yarns[_i].amplitude) < 1e-12);
    rope_frequencies(&base.dc.rope, DIM, plain);
    rope_frequencies(&r.dc.rope, DIM, inv);
    for (int l = 0; l < LAYERS; l++)
        for (int p = 0; p < PROMPT; p++)
            for (int h = 0; h < HEADS; h++) {
                float a[DIM], b[DIM];
                rig_row(&base, COMP_DRAFT, l, 1, base_slot, p, h, DIM, a);
                rig_row(&r, COMP_DRAFT, l, 1, slot, p, h, DIM, b);
                ck_assert_mem_eq(a, b, sizeof a);
                rig_row(&base, COMP_DRAFT, l, 0, base_slot, p, h, DIM, a);
                rig_row(&r, COMP_DRAFT, l, 0, slot, p, h, DIM, b);
                for (int j = 0; j < DIM / 2; j++) {
                    double t = p * (inv[j] - plain[j]), c = yarns[_i].amplitude * cos(t), s = yarns[_i].amplitude * sin(t);
                    double u = a[j], v = a[j + DIM / 2], size = fabs(u) + fabs(v) + 1e-3;
                    worst = fmax(worst, fabs(b[j] - (u * c - v * s)) / size);
                    worst = fmax(worst, fabs(b[j + DIM / 2] - (v * c + u * s)) / size);
                    moved = fmax(moved, fabs(b[j] - u) / size);
                }
            }
    printf("%s: keys move by %.2g, off by %.2g\n", yarns[_i].edits, moved, worst);
    ck_assert_msg(worst < 2e-6, "off by %g", worst);
    ck_assert(r.dc.rope.factor == 1 ? moved < 1e-6 : moved > 0.3);
    rig_close(&r);
}
END_TEST

/* Queries and block keys follow too: with attention logits far too large or small the block differs; with factor 1 it does
 * not. A score grows with the square of the amplitude, so 1.6^2 is not 1.6. */
START_TEST(yarn_reaches_the_block)
{
    struct rig r;
    int32_t plain[BLOCK - 1], same[BLOCK - 1], other[BLOCK - 1];
    drafts_of(&base, base_slot, BLOCK, plain);
    int slot = open_with(&r, draft_dir_make("yarn1", "inputs/k3-nano-dflash", "{\"rope_scaling\": {" YARN ", \"factor\": 1}}", NULL));
    drafts_of(&r, slot, BLOCK, same);
    ck_assert_mem_eq(plain, same, sizeof plain);
    rig_close(&r);
    slot = open_with(&r, draft_dir_make("yarn0", "inputs/k3-nano-dflash", /* amplitude as good as 0: attention looks at nothing */
                                        "{\"rope_scaling\": {" YARN ", \"factor\": 1, \"attention_factor\": 0.001}}", NULL));
    drafts_of(&r, slot, BLOCK, other);
    ck_assert(memcmp(plain, other, sizeof plain) != 0);
    rig_close(&r);
}
END_TEST

/* ---- a mask row of its own ---------------------------------------------------------------------------------- */

/* mask_embedding := the target's row of another token is what mask_token_id := that token is, bit for bit */
START_TEST(a_mask_row_stands_in_for_the_mask_token)
{
    static const char *const name[] = {"mask_embedding", "mask_embedding.weight"};
    enum { TOKEN = 1234 };
    struct rig r;
    struct tensor t;
    const int64_t dim[2] = {4096, HIDDEN};
    int32_t plain[BLOCK - 1], row[BLOCK - 1], token[BLOCK - 1];
    uint16_t data[HIDDEN];
    OK(safetensors_get(base.ckpt, "language_model.model.embed_tokens.weight", ST_DT_BF16, 2, dim, &t));
    memcpy(data, (const char *)t.data + (size_t)TOKEN * HIDDEN * 2, sizeof data);
    struct draft_tensor more = {name[_i], _i ? 1 : HIDDEN, _i ? HIDDEN : 0, data};
    drafts_of(&base, base_slot, BLOCK, plain);
    int slot = open_with(&r, draft_dir_make("mask", "inputs/k3-nano-dflash", NULL, &more));
    drafts_of(&r, slot, BLOCK, row);
    rig_close(&r);
    slot = open_with(&r, draft_dir_make("token", "inputs/k3-nano-dflash",
                                        "{\"dflash_config\": {\"mask_token_id\": 1234, \"target_layer_ids\": [3, 6, 9, 12, 14, 15]}}", NULL));
    drafts_of(&r, slot, BLOCK, token);
    rig_close(&r);
    ck_assert_mem_eq(row, token, sizeof row);
    ck_assert(memcmp(row, plain, sizeof row) != 0);
}
END_TEST

START_TEST(a_mask_row_of_another_width_is_refused)
{
    static const uint16_t data[HIDDEN];
    struct draft_tensor more = {"mask_embedding", HIDDEN / 2, 0, data};
    const char *dir = draft_dir_make("half", "inputs/k3-nano-dflash", NULL, &more);
    struct safetensors *ckpt;
    struct draft *d;
    struct tp_comm self = comm_self();
    struct draft_spec s = {.parts = DRAFT_BLOCK, .tp = 1, .max_rows = 16};
    OK(safetensors_open(dir, &ckpt));
    ck_assert_int_eq(draft_open(&base.o, &base.dc, ckpt, &s, &self, &d), ST_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err_last(), "mask_embedding"));
    s.parts = DRAFT_CONTEXT; /* who never drafts does not read it */
    OK(draft_open(&base.o, &base.dc, ckpt, &s, &self, &d));
    draft_close(d);
    safetensors_close(ckpt);
}
END_TEST

/* ---- blocks and layers ---------------------------------------------------------------------------------------- */

static const struct {
    const char *edits;
    int block;
} blocks[] = {{"{\"block_size\": 8}", 8}, {"{\"block_size\": 10}", 10}, {"{\"block_size\": 16}", 16}};

START_TEST(a_checkpoint_of_a_smaller_block_is_a_shorter_block)
{
    struct rig r;
    int n = blocks[_i].block;
    int32_t want[BLOCK - 1], got[BLOCK - 1];
    int slot = open_with(&r, draft_dir_make("block", "inputs/k3-nano-dflash", blocks[_i].edits, NULL));
    drafts_of(&base, base_slot, n, want);
    drafts_of(&r, slot, n, got);
    ck_assert_mem_eq(want, got, (size_t)(n - 1) * sizeof *got);
    struct draft_seq q = {slot, PROMPT, 220};
    ck_assert_int_eq(draft_block(r.d, r.t, &r.s, &q, 1, n + 1, got, NULL), ST_E_RANGE);
    rig_close(&r);
}
END_TEST

/* The window decides: sliding layers whose window covers everything differ from full ones only by the causal block. The
 * anchor's row sees nothing of the block but itself then, so the first layer's row 0 must change and its last must not. */
struct seen { float row[2][HIDDEN]; };

static void see(void *ctx, const char *name, int layer, const float *x, int rows, int64_t ld, int cols)
{
    struct seen *s = ctx;
    if (strcmp(name, "draft_layer_out") != 0 || layer != 0) return;
    memcpy(s->row[0], x, (size_t)cols * 4);
    memcpy(s->row[1], x + (rows - 1) * ld, (size_t)cols * 4);
}

START_TEST(layer_types_decide_the_block_mask)
{
    static const char *const edits[] = {
        "{\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]}",
        "{\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"sliding_attention\"], \"sliding_window\": 1000}"};
    struct seen s[2];
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct probe probe = {&s[i], see};
        int32_t id[BLOCK - 1];
        int slot = open_with(&r, draft_dir_make("types", "inputs/k3-nano-dflash", edits[i], NULL));
        struct draft_seq q = {slot, PROMPT, 220};
        OK(draft_block(r.d, r.t, &r.s, &q, 1, BLOCK, id, &probe));
        rig_close(&r);
    }
    ck_assert(memcmp(s[0].row[0], s[1].row[0], sizeof s[0].row[0]) != 0);
    ck_assert_mem_eq(s[0].row[1], s[1].row[1], sizeof s[0].row[1]);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "draft variants", 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, yarn_turns_and_stretches_keys, 0, suite_some(4, 1));
    tcase_add_test(tc, yarn_reaches_the_block);
    tcase_add_loop_test(tc, a_mask_row_stands_in_for_the_mask_token, 0, suite_some(2, 1));
    tcase_add_test(tc, a_mask_row_of_another_width_is_refused);
    tcase_add_loop_test(tc, a_checkpoint_of_a_smaller_block_is_a_shorter_block, 0, suite_some(3, 1));
    tcase_add_test(tc, layer_types_decide_the_block_mask);
}

int main(void)
{
    return suite_main_serial();
}
