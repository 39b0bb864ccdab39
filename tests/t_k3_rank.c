/* Ranks of Kimi-K3's layout in the README take their steps at real sizes: weights bound from a checkpoint of holes,
 * pools for long prompts, a chunk of prefill, rounds of decoding. The backend computes nothing but checks every
 * shape (shape_ops.h); what the rank asks of it is held against the plan. */
#include "model/prefill.h"
#include "model/spec.h"
#include "plan/scratch.h"
#include "plan/work.h"
#include "shape_ops.h"
#include "sparse_ckpt.h"

const char *const suite_name = "k3 rank";

#define OK(expr) ck_assert_int_eq((expr), ST_OK)

enum { PROMPT = 131072, MAX_NEW = 512, CHUNK = 8192 };

static struct setup {
    struct config c;
    struct draft_config d;
    struct topology t;
    struct plan_options o;
} k3;

static void setup(int concurrency)
{
    struct group p = {8, 4, 4}, q = {1, 32, 4};
    OK(config_load(suite_path("tests/data/k3-config"), &k3.c));
    OK(draft_config_load(suite_path("tests/data/k3-dflash-config"), &k3.c, &k3.d));
    OK(topology_make(&k3.c, &k3.d, &p, &q, 0, &k3.t));
    k3.o = (struct plan_options){.page = 64,
                                 .max_prompt = PROMPT,
                                 .concurrency = concurrency,
                                 .prefill_slots = 8,
                                 .staging_slots = 8,
                                 .chunk = CHUNK,
                                 .stripe = 1,
                                 .block = draft_verify_rows(&k3.d)};
    k3.o.max_tokens = PROMPT + MAX_NEW + k3.o.block;
}

/* ---- a group that only checks what it is given ------------------------------------------------------------------ */

static int64_t most_values; /* of a sum, as the plan has it */

static enum status sum(void *ctx, struct ops *o, float *x, int64_t part_stride, int n_parts, const int *order,
                       int64_t rows, int64_t cols)
{
    const struct tp_comm *me = ctx;
    (void)o;
    ck_assert_int_le(n_parts * rows * cols, most_values);
    for (int p = 0; p < n_parts; p++) shape_within(x + p * part_stride, rows * cols * 4, "partials of a sum");
    for (int i = 0; order && i < me->size * n_parts; i++) ck_assert(order[i] >= 0 && order[i] < me->size * n_parts);
    return ST_OK;
}

static enum status gather_cols(void *ctx, struct ops *o, const float *x, int64_t rows, int64_t cols, float *y,
                               int root_only)
{
    const struct tp_comm *me = ctx;
    (void)o, (void)root_only;
    shape_within(x, rows * cols * 4, "columns");
    if (me->rank == 0) memset(y, 0, (size_t)(rows * me->size * cols) * sizeof *y);
    return ST_OK;
}

static enum status argmax(void *ctx, float *val, int32_t *id, int rows)
{
    (void)ctx;
    for (int i = 0; i < rows; i++) val[i] = 0, id[i] = 7;
    return ST_OK;
}

static enum status bcast(void *ctx, void *host, size_t bytes)
{
    (void)ctx, (void)host, (void)bytes;
    return ST_OK;
}

/* ---- a rank ----------------------------------------------------------------------------------------------------- */

struct rank {
    struct rank_role role;
    struct group g;
    struct rank_memory plan;
    struct work_rows rows;
    struct ops o;
    struct tp_comm comm;
    struct safetensors *ckpt, *draft_ckpt;
    struct target *t;
    struct draft *d;
    struct state s;
    struct range layers;
};

static void open_files(struct rank *r)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s", suite_tmp("k3"));
    sparse_target(dir, &k3.c, r->layers, split_experts(k3.c.n_experts, r->g.ep, r->role.ep_rank));
    OK(safetensors_open(dir, &r->ckpt));
    snprintf(dir, sizeof dir, "%s", suite_tmp("k3-draft"));
    sparse_draft(dir, &k3.d);
    OK(safetensors_open(dir, &r->draft_ckpt));
}

/* as engine_open */
static void open_rank(int world_rank, int absorbed, struct rank *r)
{
    memset(r, 0, sizeof *r);
    OK(memory_rank(&k3.c, &k3.d, &k3.t, &k3.o, world_rank, &r->plan));
    r->role = topology_role(&k3.t, world_rank);
    int decode = r->role.role == ROLE_DECODE;
    r->g = decode ? k3.t.decode : k3.t.prefill;
    r->rows = work_rows(&k3.t, &k3.o, r->role);
    r->layers = split_stage(k3.c.n_layers, decode ? 1 : r->g.pp, r->role.stage);
    r->o = shape_table;
    r->comm = (struct tp_comm){r->role.tp_rank, r->g.tp, &r->comm, sum, gather_cols, argmax, bcast};
    most_values = scratch_sum_values(&k3.c, &r->g, r->rows.most);
    shape_reset((size_t)(r->plan.device_bytes + (1 << 30)));
    open_files(r);
    struct target_spec s = {.layers = r->layers,
                            .tp = r->g.tp,
                            .tp_rank = r->role.tp_rank,
                            .ep = r->g.ep,
                            .max_rows = (int)r->rows.most,
                            .max_verify_rows = (int)r->rows.decode,
                            .max_logits = decode ? (int)r->rows.decode : 1,
                            .absorbed_prefill = absorbed};
    OK(target_open(&r->o, &k3.c, r->ckpt, &s, &r->comm, &r->t));
    struct draft_spec ds = {.tp = r->g.tp,
                            .tp_rank = r->role.tp_rank,
                            .max_rows = (int)r->rows.most,
                            .max_seqs = decode ? k3.o.concurrency : 0};
    ds.n_taps = split_taps(&k3.d, k3.c.n_layers, decode ? 1 : r->g.pp, r->role.stage, ds.tap);
    ds.parts = decode ? DRAFT_FC | DRAFT_CONTEXT | DRAFT_BLOCK : DRAFT_FC | (r->role.last_stage ? DRAFT_CONTEXT : 0);
    OK(draft_open(&r->o, &k3.d, r->draft_ckpt, &ds, &r->comm, &r->d));
    OK(r->o.prepare(&r->o, (int)r->rows.most));
}

static void open_pools(struct rank *r)
{
    struct layout l;
    int decode = r->role.role == ROLE_DECODE;
    if (decode) OK(memory_decode_layout(&k3.c, &k3.d, &k3.t, &k3.o, r->role.tp_rank, &l));
    else OK(memory_source_layout(&k3.c, &k3.d, &k3.t, &k3.o, r->role.stage, r->role.tp_rank, &l));
    ck_assert_int_eq(l.bytes, r->plan.pool_bytes);
    OK(state_open(&r->o, &l, split_pages(decode ? k3.o.max_tokens : PROMPT, k3.o.page), &r->s));
}

static void close_rank(struct rank *r)
{
    state_close(&r->s);
    draft_close(r->d);
    target_close(r->t);
    safetensors_close(r->ckpt);
    safetensors_close(r->draft_ckpt);
}

/* weights and everything else that was asked for, against the plan. Vectors are held in FP32, small copies of the
 * absorbed heads beside the matrix they come from: within a thousandth. */
static void check_memory(const struct rank *r)
{
    int64_t weights = target_weight_bytes(r->t) + draft_weight_bytes(r->d), all = shape.weights + shape.held;
    int64_t plan = r->plan.weight_bytes + r->plan.pool_bytes + r->plan.work_bytes;
    ck_assert_msg(weights - r->plan.weight_bytes < r->plan.weight_bytes / 1000 && weights >= r->plan.weight_bytes,
                  "weights: %lld, planned %lld", (long long)weights, (long long)r->plan.weight_bytes);
    int64_t rest = all - weights - r->plan.pool_bytes - r->plan.work_bytes;
    ck_assert_msg(rest >= -4096 && rest <= 4096, "weights %lld, in all %lld, planned %lld: %lld apart",
                  (long long)weights, (long long)all, (long long)plan, (long long)rest);
}

/* ---- prefill ---------------------------------------------------------------------------------------------------- */

/* the last whole chunk of the longest prompt, in the last of eight requests that hold all pages */
static void last_chunk(struct rank *r)
{
    struct prefill_stage p = {.t = r->t,
                              .d = r->d,
                              .s = &r->s,
                              .first = r->role.first_stage,
                              .last = r->role.last_stage,
                              .vocab = k3.c.vocab,
                              .tp_rank = r->role.tp_rank,
                              .comm = &r->comm};
    static int32_t id[CHUNK];
    struct flow f, other;
    int slot = -1;
    int32_t token = -1;
    OK(flow_open(&r->o, &k3.c, CHUNK, &f));
    OK(flow_open(&r->o, &k3.c, CHUNK, &other)); /* on its way meanwhile */
    check_memory(r);
    prefill_stage_taps(&p, &k3.c, &k3.d, k3.t.prefill.pp, r->role.stage);
    for (int i = 0; i < k3.o.prefill_slots; i++) OK(state_admit(&r->s, PROMPT, &slot));
    ck_assert(slot >= 0 && r->s.n_free_pages == 0);
    f.n_bank = split_bank_rows(k3.c.res_block, r->layers.begin);
    for (int i = 0; i < k3.d.n_taps; i++)
        if (split_tap_stage(k3.c.n_layers, k3.t.prefill.pp, k3.d.tap[i]) < r->role.stage) f.taps |= 1u << i;
    OK(prefill_chunk(&p, slot, PROMPT - CHUNK, CHUNK, id, 1, &f, &token, NULL, NULL, NULL));
    ck_assert_int_eq(token, p.last ? 7 : -1);
    ck_assert_int_eq(f.n_bank, split_bank_rows(k3.c.res_block, r->layers.end));
}

START_TEST(prefill_ranks_take_a_chunk)
{
    static const int rank[] = {0, 5, 31}; /* dense layer and embedding; a stage in between; head and draft */
    struct rank r;
    setup(8);
    open_rank(rank[_i], _i != 1, &r);
    open_pools(&r);
    last_chunk(&r);
    ck_assert_int_gt(shape.calls, 1000);
    close_rank(&r);
}
END_TEST

/* ---- decode ----------------------------------------------------------------------------------------------------- */

static void rounds(struct rank *r)
{
    enum { MOST = 64, ROUNDS = 3 };
    static struct spec_seq seq[MOST];
    static int32_t out[MOST][MAX_NEW];
    static struct spec_round round[MOST][MAX_NEW];
    struct spec_seq *q[MOST];
    struct spec *spec;
    struct spec_options so = {.block = k3.o.block, .max_seqs = k3.o.concurrency, .eos = k3.c.eos};
    OK(spec_open(&r->o, &k3.c, r->t, r->d, &r->s, &r->comm, &so, &spec));
    check_memory(r);
    for (int i = 0; i < k3.o.concurrency; i++) {
        seq[i] = (struct spec_seq){
            .request = i, .prompt_tokens = PROMPT, .max_new = MAX_NEW, .out = out[i], .round = round[i]};
        OK(state_admit(&r->s, k3.o.max_tokens, &seq[i].slot));
        ck_assert_int_ge(seq[i].slot, 0);
        spec_start(&seq[i], 7, k3.c.eos);
        q[i] = &seq[i];
    }
    ck_assert_int_eq(r->s.n_free_pages, 0);
    for (int i = 0; i < ROUNDS; i++) OK(spec_round(spec, q, k3.o.concurrency, NULL, NULL, NULL));
    /* rank 0 sees what it drafted, so all of it is accepted; another one would be told, and is told nothing */
    ck_assert_int_eq(seq[0].n_out, 1 + ROUNDS * (r->role.tp_rank == 0 ? k3.o.block : 1));
    spec_close(spec);
}

START_TEST(decode_ranks_take_rounds)
{
    static const int concurrency[] = {8, 64};
    struct rank r;
    setup(concurrency[_i]);
    open_rank(32, 1, &r);
    open_pools(&r);
    rounds(&r);
    close_rank(&r);
}
END_TEST

/* not under valgrind, which has no addresses for files and pools of this size */
void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "prefill", 300);
    tcase_add_loop_test(tc, prefill_ranks_take_a_chunk, 0, suite_some(3, 0));
    tc = SUITE_CASE(s, "decode", 300);
    tcase_add_loop_test(tc, decode_ranks_take_rounds, 0, suite_some(2, 0));
}

int main(void)
{
    return suite_main_serial();
}
