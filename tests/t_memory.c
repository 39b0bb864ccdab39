/* memory and print, and the published byte counts of the released model (pd-systems 2.3 - 2.10) */
#include "suite.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "plan/memory.h"
#include "plan/print.h"

const char *const suite_name = "memory";

struct setup {
    struct config c;
    struct draft_config d;
    struct topology t;
    struct plan_options o;
};

static struct config k3_config(void)
{
    struct config c = {.n_layers = 93, .hidden = 7168, .vocab = 163840, .n_kda = 69, .n_mla = 24, .kda_heads = 96,
                       .kda_dim = 128, .conv_kernel = 4, .mla_heads = 96, .q_rank = 1536, .kv_rank = 512, .qk_nope = 128,
                       .qk_rope = 64, .v_dim = 128, .res_block = 12, .n_dense = 1, .dense_inter = 33792,
                       .n_experts = 896, .top_k = 16, .expert_inter = 3072, .shared_inter = 6144, .latent = 3584};
    for (int i = 0; i < 93; i++) c.is_kda[i] = i % 4 != 3 && i != 92;
    return c;
}

static struct config nano_config(void)
{
    struct config c = {.n_layers = 17, .hidden = 256, .vocab = 4096, .n_kda = 12, .n_mla = 5, .kda_heads = 8,
                       .kda_dim = 32, .conv_kernel = 4, .mla_heads = 8, .q_rank = 96, .kv_rank = 64, .qk_nope = 32,
                       .qk_rope = 16, .v_dim = 32, .res_block = 3, .n_dense = 1, .dense_inter = 512, .n_experts = 32,
                       .top_k = 4, .expert_inter = 64, .shared_inter = 128, .latent = 128};
    for (int i = 0; i < 17; i++) c.is_kda[i] = i % 4 != 3 && i != 16;
    return c;
}

static struct setup make(int nano, int pp, int P, int D, int single)
{
    struct setup s = {.c = nano ? nano_config() : k3_config()};
    const struct group p = {pp, P, 0}, d = {1, D, 0};
    if (nano)
        s.d = (struct draft_config){.n_layers = 3, .hidden = 256, .vocab = 4096, .q_heads = 16, .kv_heads = 8, .head_dim = 32,
                                    .inter = 512, .block = 16, .n_taps = 6, .tap = {3, 6, 9, 12, 14, 15}};
    else
        s.d = (struct draft_config){.n_layers = 6, .hidden = 7168, .vocab = 163840, .q_heads = 32, .kv_heads = 8,
                                    .head_dim = 128, .inter = 14336, .block = 16, .n_taps = 6,
                                    .tap = {19, 37, 54, 66, 78, 90}};
    s.o = (struct plan_options){.page = 64, .max_tokens = 9000, .max_prompt = 8192, .concurrency = 4, .prefill_slots = 3,
                                .staging_slots = 2, .chunk = 8192, .stripe = 1};
    ck_assert_int_eq(topology_make(&s.c, &s.d, &p, &d, single, &s.t), ST_OK);
    return s;
}

/* one source, one destination */
struct flow {
    struct layout src, dst;
    struct pair_plan p;
};

static struct flow flow(const struct setup *s, int stage, int p, int q)
{
    struct flow f;
    ck_assert_int_eq(memory_source_layout(&s->c, &s->d, &s->t, &s->o, stage, p, &f.src), ST_OK);
    ck_assert_int_eq(memory_slot_layout(&s->c, &s->d, &s->t, &s->o, q, &f.dst), ST_OK);
    ck_assert_int_eq(transfer_plan_pair(&s->c, &s->d, &f.src, stage, stage == s->t.prefill.pp - 1, &f.dst, s->o.stripe, &f.p),
                     ST_OK);
    return f;
}

static void flow_free(struct flow *f)
{
    transfer_plan_free(&f->p);
    layout_free(&f->src);
    layout_free(&f->dst);
}

/* ---- the literal numbers of the seed ------------------------------------------------------------------------- */

struct list {
    int n;
    struct plan_run run[64];
};

static enum status keep(void *ctx, const struct plan_run *r)
{
    struct list *x = ctx;
    ck_assert_int_lt(x->n, 64);
    x->run[x->n++] = *r;
    return ST_OK;
}

/* the correct place of destination page 2 in a window whose entry starts at 2000000 */
static int seed_ok(int64_t start, int64_t bytes)
{
    return start == 2032768 && bytes == 16384;
}

START_TEST(seed_numbers)
{
    struct setup s = make(0, 8, 4, 32, 0);
    s.o.order = (enum page_order)_i;
    struct flow x = flow(&s, 7, 0, 5); /* destination 5 holds head 1: local head 1 of source 0 */
    struct layout src = x.src, dst = x.dst;
    struct pair_plan p = x.p;
    int a = layout_find(&src, COMP_DRAFT, 0, 0), b = layout_find(&dst, COMP_DRAFT, 0, 0);
    ck_assert_int_eq(src.entry[a].item_bytes, 32768);
    ck_assert_int_eq(dst.entry[b].item_bytes, 16384);
    src.entry[a].base = 1000000; /* as a guard only sees its own entry, the others may stay */
    dst.entry[b].base = 2000000;
    const struct plan_copy *k = NULL;
    for (int i = 0; i < p.n; i++)
        if (p.copy[i].src_entry == a) k = &p.copy[i];
    ck_assert_ptr_nonnull(k);
    struct list got = {0};
    ck_assert_int_eq(transfer_plan_runs(&p, k, &src, &dst, 5, 2, keep, &got), ST_OK);
    if (s.o.order == PAGE_HEAD_MAJOR) {
        ck_assert_int_eq(got.n, 1); /* one run per page and entry */
        ck_assert_int_eq(got.run[0].src, 1180224);
        ck_assert(seed_ok(got.run[0].dst, got.run[0].bytes));
    } else {
        ck_assert_int_eq(got.n, 64);
        ck_assert(got.run[0].src == 1164096 && got.run[0].dst == 2032768 && got.run[0].bytes == 256);
        ck_assert(got.run[1].src == 1164608 && got.run[1].dst == 2033024);
        ck_assert(got.run[63].src == 1196352 && got.run[63].dst == 2048896 && got.run[63].bytes == 256);
        ck_assert(seed_ok(got.run[0].dst, got.run[63].dst + got.run[63].bytes - got.run[0].dst));
    }
    /* the flat planner: the source's page bytes for everything */
    int64_t flat = 2000000 + 2 * src.entry[a].item_bytes, length = src.entry[a].item_bytes;
    ck_assert(flat == 2065536 && length == 32768);
    ck_assert(!seed_ok(flat, length));
    struct plan_copy *f = &p.copy[k - p.copy];
    f->src_off = f->dst_off = 0, f->run = length, f->n_runs[0] = f->n_runs[1] = 1;
    got.n = 0;
    ck_assert_int_eq(transfer_plan_runs(&p, f, &src, &dst, 5, 2, keep, &got), ST_E_RANGE);
    ck_assert_int_eq(got.n, 0);
    flow_free(&x);
}
END_TEST

static const struct flow_case { /* K3 draft, 8 heads, page 64: pd-systems 2.3 */
    int P, D, flows, n, run, runs, fan_out, fan_in, total;
} flow_cases[] = {
    {1, 1, 1, 8, 2048, 1, 1, 1, 262144},    {1, 2, 2, 4, 1024, 64, 2, 1, 262144},   {1, 4, 4, 2, 512, 64, 4, 1, 262144},
    {1, 8, 8, 1, 256, 64, 8, 1, 262144},    {1, 16, 16, 1, 256, 64, 16, 1, 524288}, {1, 32, 32, 1, 256, 64, 32, 1, 1048576},
    {2, 1, 2, 4, 1024, 64, 1, 2, 262144},   {2, 2, 2, 4, 1024, 1, 1, 1, 262144},    {2, 4, 4, 2, 512, 64, 2, 1, 262144},
    {2, 8, 8, 1, 256, 64, 4, 1, 262144},    {2, 16, 16, 1, 256, 64, 8, 1, 524288},  {2, 32, 32, 1, 256, 64, 16, 1, 1048576},
    {4, 1, 4, 2, 512, 64, 1, 4, 262144},    {4, 2, 4, 2, 512, 64, 1, 2, 262144},    {4, 4, 4, 2, 512, 1, 1, 1, 262144},
    {4, 8, 8, 1, 256, 64, 2, 1, 262144},    {4, 16, 16, 1, 256, 64, 4, 1, 524288},  {4, 32, 32, 1, 256, 64, 8, 1, 1048576},
    {8, 1, 8, 1, 256, 64, 1, 8, 262144},    {8, 2, 8, 1, 256, 64, 1, 4, 262144},    {8, 4, 8, 1, 256, 64, 1, 2, 262144},
    {8, 8, 8, 1, 256, 1, 1, 1, 262144},     {8, 16, 16, 1, 256, 1, 2, 1, 524288},   {8, 32, 32, 1, 256, 1, 4, 1, 1048576},
};

START_TEST(flows_of_all_tp_pairs)
{
    const struct flow_case *x = &flow_cases[_i];
    for (int order = 0; order < 2; order++) {
        struct setup k = make(0, 8, x->P, x->D, 0);
        k.o.order = (enum page_order)order;
        int flows = 0, out[8] = {0}, in[32] = {0};
        int64_t total = 0;
        for (int s = 0; s < x->P; s++)
            for (int q = 0; q < x->D; q++) {
                struct flow f = flow(&k, 7, s, q);
                int64_t runs, bytes = transfer_plan_bytes(&f.p, COMP_DRAFT, 1, &runs) / 6; /* of one layer, K and V */
                total += bytes;
                ck_assert_int_eq(f.p.has[COMP_DRAFT], bytes > 0);
                if (bytes) {
                    flows++, out[s]++, in[q]++;
                    ck_assert_int_eq(bytes, 2 * 16384 * x->n);
                    ck_assert_int_eq(runs / 12, order == PAGE_HEAD_MAJOR ? 1 : x->runs);
                    if (order == PAGE_TOKEN_MAJOR) ck_assert_int_eq(bytes / 2, (int64_t)x->run * 64);
                }
                flow_free(&f);
            }
        ck_assert_int_eq(flows, x->flows);
        ck_assert_int_eq(total, x->total);
        for (int s = 0; s < x->P; s++) ck_assert_int_eq(out[s], x->fan_out); /* none is idle */
        for (int q = 0; q < x->D; q++) ck_assert_int_eq(in[q], x->fan_in);
    }
}
END_TEST

static const struct state_case { /* pd-systems 2.7 */
    int P, D, fan_in, kda_src, kda_dst, kda_block, conv_src, conv_dst, conv_block;
} state_cases[] = {
    {1, 16, 1, 6291456, 393216, 393216, 221184, 13824, 1536},  {1, 32, 1, 6291456, 196608, 196608, 221184, 6912, 768},
    {2, 32, 1, 3145728, 196608, 196608, 110592, 6912, 768},    {4, 8, 1, 1572864, 786432, 786432, 55296, 27648, 3072},
    {4, 32, 1, 1572864, 196608, 196608, 55296, 6912, 768},     {8, 32, 1, 786432, 196608, 196608, 27648, 6912, 768},
    {8, 4, 2, 786432, 1572864, 786432, 27648, 55296, 3072},    {32, 4, 8, 196608, 1572864, 196608, 6912, 55296, 768},
    {16, 2, 8, 393216, 3145728, 393216, 13824, 110592, 1536},
};

START_TEST(state_blocks)
{
    const struct state_case *x = &state_cases[_i];
    struct setup s = make(0, 8, x->P, x->D, 0);
    int fan_in = 0, q = x->D - 1;
    for (int p = 0; p < x->P; p++) {
        struct flow f = flow(&s, 0, p, q);
        fan_in += f.p.has[COMP_KDA];
        for (int i = 0; i < f.p.n; i++) {
            const struct plan_copy *k = &f.p.copy[i];
            const struct layout_entry *a = &f.src.entry[k->src_entry], *b = &f.dst.entry[k->dst_entry];
            if (k->comp == COMP_KDA) {
                ck_assert(a->item_bytes == x->kda_src && b->item_bytes == x->kda_dst && k->run == x->kda_block);
                ck_assert(k->n_runs[0] == 1 && k->n_runs[1] == 1);
            }
            if (k->comp == COMP_CONV) {
                ck_assert(a->item_bytes == x->conv_src && b->item_bytes == x->conv_dst && k->run == x->conv_block);
                ck_assert(k->n_runs[0] == 3 && k->n_runs[1] == 3); /* rows x q, k, v */
            }
        }
        flow_free(&f);
    }
    ck_assert_int_eq(fan_in, x->fan_in);
}
END_TEST

START_TEST(k3_pp8_tp4_to_tp32)
{
    struct setup s = make(0, 8, 4, 32, 0);
    int64_t draft = 0, mla = 0, sent[4] = {0};
    for (int q = 0; q < 32; q++) {
        int words = 0, peers = 0;
        int64_t state = 0, my_draft = 0, my_mla = 0, conv_runs = 0;
        for (int stage = 0; stage < 8; stage++)
            for (int p = 0; p < 4; p++) {
                struct flow f = flow(&s, stage, p, q);
                int64_t runs, page = transfer_plan_bytes(&f.p, COMP_DRAFT, 1, NULL);
                peers += f.p.n > 0;
                if (f.p.n) ck_assert_int_eq(p, q / 8);
                for (int k = 0; k < COMP_N; k++) words += f.p.has[k];
                state += transfer_plan_bytes(&f.p, COMP_KDA, 1, NULL) + transfer_plan_bytes(&f.p, COMP_CONV, 1, &runs);
                conv_runs += runs;
                my_draft += page, sent[p] += page;
                my_mla += transfer_plan_bytes(&f.p, COMP_MLA, 1, NULL);
                ck_assert_int_eq(transfer_plan_bytes(&f.p, COMP_DRAFT, 128, NULL), 128 * page);
                flow_free(&f);
            }
        ck_assert_int_eq(words, 26);
        ck_assert_int_eq(peers, 8);
        ck_assert_int_eq(state, 14042880);
        ck_assert_int_eq(conv_runs, 69 * 9);
        ck_assert_int_eq(my_draft, 196608);
        ck_assert_int_eq(my_mla, 24 * 73728);
        draft += my_draft, mla += my_mla;
    }
    ck_assert_int_eq(draft, 6291456);
    ck_assert_int_eq(mla, 56623104);
    for (int p = 0; p < 4; p++) ck_assert_int_eq(sent[p], 1572864);
}
END_TEST

START_TEST(striped_pages_are_counted_exactly)
{
    struct setup s = make(1, 1, 8, 1, 0);
    for (int n = 0; n < 21; n++)
        for (int p = 0; p < 8; p++) {
            struct flow f = flow(&s, 0, p, 0);
            int64_t mine = 0, runs;
            for (int page = 0; page < n; page++) mine += page % 8 == p;
            ck_assert_int_eq(transfer_plan_bytes(&f.p, COMP_MLA, n, &runs), mine * 5 * 10240);
            ck_assert_int_eq(runs, mine * 5);
            ck_assert_int_eq(transfer_plan_bytes(&f.p, COMP_DRAFT, n, NULL), (int64_t)n * 6 * 64 * 32 * 2);
            ck_assert_int_eq(transfer_plan_bytes(&f.p, COMP_KDA, n, NULL), 12 * 4096);
            flow_free(&f);
        }
}
END_TEST

START_TEST(padding_between_items_is_out_of_bounds)
{
    struct setup s = make(1, 1, 1, 1, 0);
    s.o.page = 1; /* an MLA row of 160 bytes in a stride of 192 */
    struct flow f = flow(&s, 0, 0, 0);
    struct list got = {0};
    ck_assert_int_eq(f.p.copy[0].comp, COMP_MLA);
    ck_assert(f.src.entry[0].item_bytes == 160 && f.src.entry[0].stride == 192);
    ck_assert_int_eq(transfer_plan_runs(&f.p, &f.p.copy[0], &f.src, &f.dst, 1, 1, keep, &got), ST_OK);
    ck_assert(got.n == 1 && got.run[0].src == 192 && got.run[0].dst == 192 && got.run[0].bytes == 160);
    f.p.copy[0].run = 161;
    ck_assert_int_eq(transfer_plan_runs(&f.p, &f.p.copy[0], &f.src, &f.dst, 1, 1, keep, &got), ST_E_RANGE);
    f.p.copy[0].run = 160, f.p.copy[0].dst_off = 32;
    ck_assert_int_eq(transfer_plan_runs(&f.p, &f.p.copy[0], &f.src, &f.dst, 1, 1, keep, &got), ST_E_RANGE);
    ck_assert_int_eq(got.n, 1);
    flow_free(&f);
}
END_TEST

/* ---- bytes of weights ------------------------------------------------------------------------------------------- */

static int64_t whole(const struct setup *s, int tp, int ep, int draft_part)
{
    const struct group g = {1, tp, ep};
    return memory_weight_bytes(&s->c, &s->d, (struct range){0, s->c.n_layers}, &g, 1, 1, draft_part);
}

START_TEST(weights_are_those_of_the_files)
{
    struct setup n = make(1, 1, 1, 1, 0), k = make(0, 1, 1, 1, 0);
    char text[4096];
    FILE *f = fopen(suite_path("inputs/k3-nano/model.safetensors.index.json"), "r");
    ck_assert_ptr_nonnull(f);
    size_t got = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[got] = 0;
    long total = 0;
    const char *at = strstr(text, "\"total_size\":");
    ck_assert(at && sscanf(at, "\"total_size\": %ld", &total) == 1);
    /* A_log is stored padded to 32 entries, of which 8 are held */
    ck_assert_int_eq(whole(&n, 1, 1, 0), total - 12 * (32 - 8) * 4);
    /* bytes of the draft's tensors: 3 layers, fc of 6 taps */
    int64_t layer = 256 * 256 * 2 + 512 * 256 * 2 + 3 * 512 * 256 + 2 * 32 + 2 * 256;
    ck_assert_int_eq(whole(&n, 1, 1, 2) - whole(&n, 1, 1, 0), 2 * (3 * layer + 256 * 1536 + 2 * 256));
    ck_assert_int_eq(whole(&n, 1, 1, 1) - whole(&n, 1, 1, 0), 2 * (3 * (2 * 256 * 256 + 32) + 256 * 1536 + 256));
    /* DSpark: the file's tensors but the confidence head; of a shard W2 halves and W1 stays whole */
    struct draft_config spark;
    ck_assert_int_eq(config_load(suite_path("inputs/k3-nano"), &n.c), ST_OK);
    ck_assert_int_eq(draft_config_load(suite_path("inputs/k3-nano-dspark"), &n.c, &spark), ST_OK);
    n.d = spark;
    int64_t w = 4096 * 32 * 2, all = whole(&n, 1, 1, 2) - whole(&n, 1, 1, 0);
    ck_assert_int_eq(all, 4198210 - 2 * (256 + 32 + 1));
    n.d.kind = DRAFT_DFLASH;
    ck_assert_int_eq(all - (whole(&n, 1, 1, 2) - whole(&n, 1, 1, 0)), 2 * w);
    int64_t bare = whole(&n, 2, 1, 2);
    n.d.kind = DRAFT_DSPARK;
    ck_assert_int_eq(whole(&n, 2, 1, 2) - bare, w + w / 2);
    int64_t experts = (int64_t)92 * 896 * 17547264, rest = whole(&k, 1, 1, 0) - experts;
    ck_assert(rest > 113450000000 && rest < 113550000000);
    int64_t half = k.c.n_experts / 2, before = whole(&k, 1, 1, 0);
    k.c.n_experts = (int)half; /* experts, router rows and correction bias leave together */
    ck_assert_int_eq(before - whole(&k, 1, 1, 0), 92 * half * (17547264 + 7168 * 2 + 4));
}
END_TEST

START_TEST(shards_add_up_to_the_whole)
{
    struct setup n = make(1, 8, 1, 8, 0), k = make(0, 8, 4, 32, 0);
    /* tp * shard = whole + (tp - 1) * replicated, the same replicated part for every tp and split of experts */
    int64_t w = whole(&n, 1, 1, 2), copies = 2 * whole(&n, 2, 1, 2) - w;
    ck_assert_int_gt(copies, 0);
    ck_assert_int_eq(2 * whole(&n, 2, 2, 2) - w, copies);
    ck_assert_int_eq(4 * whole(&n, 4, 2, 2) - w, 3 * copies);
    ck_assert_int_eq(8 * whole(&n, 8, 4, 2) - w, 7 * copies);
    ck_assert_int_eq(8 * whole(&n, 8, 8, 2) - w, 7 * copies);
    w = whole(&k, 1, 1, 0);
    copies = 2 * whole(&k, 2, 1, 0) - w;
    ck_assert_int_eq(32 * whole(&k, 32, 4, 0) - w, 31 * copies);
    ck_assert_int_eq(32 * whole(&k, 32, 32, 0) - w, 31 * copies);
    for (int none = 0; none < 2; none++) { /* stages hold everything once; with a draft its context path and fc */
        const struct draft_config *d = none ? NULL : &n.d;
        int64_t sum = 0;
        for (int r = 0; r < 8; r++) {
            struct rank_memory m;
            ck_assert_int_eq(memory_rank(&n.c, d, &n.t, &n.o, r, &m), ST_OK);
            sum += m.weight_bytes;
        }
        ck_assert_int_eq(sum, whole(&n, 1, 1, !none));
    }
}
END_TEST

START_TEST(pools_and_windows_of_a_rank)
{
    struct setup s = make(0, 8, 4, 32, 0);
    struct rank_memory m;
    ck_assert_int_eq(memory_rank(&s.c, &s.d, &s.t, &s.o, 0, &m), ST_OK); /* stage 0: 2 MLA, 9 KDA layers */
    int64_t want = (int64_t)3 * 128 * 2 * 73728 + (int64_t)3 * 9 * (1572864 + 55296);
    ck_assert(m.pool_bytes >= want && m.pool_bytes < want + 4096);
    ck_assert_int_eq(m.window_bytes, 2 * 32 * 64); /* credits: slots x decode ranks */
    ck_assert_int_eq(memory_rank(&s.c, &s.d, &s.t, &s.o, 63, &m), ST_OK);
    want = (int64_t)4 * 141 * (1769472 + 196608) + (int64_t)4 * 14042880; /* 9000 tokens are 141 pages */
    ck_assert(m.pool_bytes >= want && m.pool_bytes < want + 4096);
    want = 2 * (128 * (int64_t)(1769472 + 196608) + 14042880 + 64 + 32 * COMP_N * 64);
    ck_assert(m.window_bytes >= want && m.window_bytes < want + 2 * 4096);
    ck_assert_int_eq(memory_rank(&s.c, &s.d, &s.t, &s.o, 64, &m), ST_E_RANGE);
    ck_assert_int_eq(memory_rank(&s.c, &s.d, &s.t, &s.o, -1, &m), ST_E_RANGE);
    struct setup one = make(1, 1, 1, 8, 1);
    ck_assert_int_eq(memory_rank(&one.c, &one.d, &one.t, &one.o, 7, &m), ST_OK);
    ck_assert_int_eq(m.window_bytes, 0); /* single: no window exists */
    ck_assert_int_eq(m.weight_bytes, whole(&one, 8, 4, 2));
    struct layout l;
    ck_assert_int_eq(memory_source_layout(&one.c, &one.d, &one.t, &one.o, 0, 0, &l), ST_E_CONFIG);
    ck_assert_int_eq(memory_source_layout(&s.c, &s.d, &s.t, &s.o, 8, 0, &l), ST_E_CONFIG);
    int *const field[] = {&s.o.page,          &s.o.max_prompt,    &s.o.concurrency,
                          &s.o.prefill_slots, &s.o.staging_slots, &s.o.max_tokens};
    for (int i = 0; i < 6; i++) {
        int keep_ = *field[i];
        *field[i] = i == 5 ? 8191 : 0; /* max_tokens: less than a prompt */
        ck_assert_int_eq(memory_decode_layout(&s.c, &s.d, &s.t, &s.o, 0, &l), ST_E_CONFIG);
        *field[i] = keep_;
    }
    /* the parts are the whole */
    for (int r = 0; r < 64; r++) {
        int64_t weights = 0, state = 0;
        ck_assert_int_eq(memory_rank(&s.c, &s.d, &s.t, &s.o, r, &m), ST_OK);
        for (int k = 0; k < WEIGHT_N; k++) weights += m.weight[k];
        for (int k = 0; k < COMP_N; k++) state += m.state[k];
        ck_assert(weights == m.weight_bytes && state <= m.pool_bytes && state > m.pool_bytes - 4096);
        ck_assert(m.data_bytes + m.word_bytes == m.window_bytes);
        ck_assert_int_eq(m.device_bytes, m.weight_bytes + m.pool_bytes + m.work_bytes + m.coll_bytes + m.ops_bytes);
        ck_assert_int_eq(m.bytes, m.device_bytes + m.window_bytes + m.pack_bytes);
    }
    s.o.concurrency = 1 << 30; /* pages overflow int */
    ck_assert_int_eq(memory_decode_layout(&s.c, &s.d, &s.t, &s.o, 0, &l), ST_E_CONFIG);
}
END_TEST

/* ---- print -------------------------------------------------------------------------------------------------------- */

static int64_t number(json_t *o, const char *a, const char *b)
{
    json_t *v = json_object_get(o, a);
    if (b) v = json_object_get(v, b);
    ck_assert_msg(json_is_integer(v), "%s.%s is no integer", a, b ? b : "");
    return json_integer_value(v);
}

static json_t *printed(const struct setup *s, int n_tokens)
{
    char *text;
    size_t n;
    json_error_t why;
    FILE *f = open_memstream(&text, &n);
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(plan_print_json(f, &s->c, &s->d, &s->t, &s->o, n_tokens), ST_OK);
    fclose(f);
    json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    ck_assert_msg(o != NULL, "line %d: %s", why.line, why.text);
    free(text);
    return o;
}

START_TEST(json_has_the_figures)
{
    static const int capture[8] = {0, 19, 0, 37, 54, 66, 78, 90}, mla[8] = {2, 3, 3, 3, 3, 3, 3, 4};
    struct setup s = make(0, 8, 4, 32, 0);
    json_t *o = printed(&s, 8192), *b = json_object_get(o, "bytes"), *stages = json_object_get(o, "stages");
    ck_assert_str_eq(json_string_value(json_object_get(o, "topology")), "pp8tp4ep1/tp32ep1");
    ck_assert(number(b, "draft", "unique_per_page") == 1572864 && number(b, "draft", "wire_per_page") == 6291456);
    ck_assert(number(b, "draft", "unique_per_request") == 201326592 && number(b, "draft", "wire_per_request") == 805306368);
    ck_assert(number(b, "mla", "unique_per_page") == 1769472 && number(b, "mla", "wire_per_page") == 56623104);
    ck_assert_int_eq(number(b, "kda", "unique_per_request") + number(b, "conv", "unique_per_request"), 449372160);
    ck_assert_int_eq(number(b, "kda", "wire_per_request") + number(b, "conv", "wire_per_request"), 32 * 14042880);
    ck_assert(number(b, "conv", "runs_per_request") == 32 * 69 * 9 && number(b, "aux", "wire_per_request") == 32 * 64);
    for (size_t i = 0; i < 8; i++) {
        json_t *v = json_array_get(stages, i), *taps = json_object_get(v, "captures");
        ck_assert_int_eq(number(v, "mla", NULL), mla[i]);
        ck_assert_int_eq((int)json_array_size(taps), capture[i] > 0);
        if (capture[i]) ck_assert_int_eq(json_integer_value(json_array_get(taps, 0)), capture[i]);
    }
    json_t *from = json_object_get(o, "sources");
    ck_assert_int_eq((int)json_array_size(from), 32);
    for (size_t i = 0; i < 32; i++) { /* balanced within a stage (the aux line is sent by all four of the last) */
        ck_assert_int_eq(number(json_array_get(from, i), "destinations", NULL), 8);
        ck_assert_int_eq(number(json_array_get(from, i), "bytes_per_request", NULL),
                         number(json_array_get(from, i / 4 * 4), "bytes_per_request", NULL));
    }
    ck_assert_int_eq((int)json_array_size(json_object_get(o, "ranks")), 64);
    ck_assert_int_eq((int)json_array_size(json_object_get(o, "memory")), 64);
    ck_assert_int_eq((int)json_array_size(json_object_get(o, "copies")), 32 * (24 + 2 * 69 + 12 + 1));
    ck_assert_int_eq((int)json_array_size(json_object_get(o, "destination_entries")), 32 * (24 + 2 * 69 + 12 + 1));
    uint64_t h, h2;
    char hex[20];
    ck_assert_int_eq(plan_print_hash(&s.c, &s.d, &s.t, &s.o, &h), ST_OK);
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
    ck_assert_str_eq(json_string_value(json_object_get(o, "plan_hash")), hex);
    s.o.staging_slots++;
    ck_assert_int_eq(plan_print_hash(&s.c, &s.d, &s.t, &s.o, &h2), ST_OK);
    ck_assert_uint_ne(h, h2);
    json_decref(o);
}
END_TEST

/* the totals are those of the rows, in both forms */
START_TEST(totals_are_those_of_the_ranks)
{
    enum { KINDS = 7 };
    static const char *const kind[KINDS + 1] = {"weight_bytes", "pool_bytes", "work_bytes", "coll_bytes",
                                                "ops_bytes", "window_bytes", "pack_bytes", "bytes"};
    for (int i = 0; i < 4; i++) {
        struct setup s = make(i % 2, 2, 2, 4, i / 2);
        json_t *o = printed(&s, 900), *rank = json_object_get(o, "memory");
        int64_t sum[KINDS + 1] = {0}, most[KINDS + 1] = {0};
        for (size_t r = 0; r < json_array_size(rank); r++) {
            int64_t all = 0;
            for (int k = 0; k <= KINDS; k++) {
                int64_t v = k < KINDS ? number(json_array_get(rank, r), kind[k], NULL) : all;
                all += v;
                sum[k] += v;
                if (v > most[k]) most[k] = v;
            }
        }
        char *text, line[2][200];
        size_t n;
        FILE *f = open_memstream(&text, &n);
        ck_assert_int_eq(plan_print_text(f, &s.c, &s.d, &s.t, &s.o, 900), ST_OK);
        fclose(f);
        for (int k = 0; k <= KINDS; k++) {
            ck_assert_int_eq(number(o, "memory_sum", kind[k]), sum[k]);
            ck_assert_int_eq(number(o, "memory_most", kind[k]), most[k]);
        }
        for (int k = 0; k < 2; k++) {
            const int64_t *v = k ? most : sum;
            int at = snprintf(line[k], sizeof line[k], "  %-31s", k ? "most of a rank" : "sum over ranks");
            for (int c = 0; c <= KINDS; c++)
                at += snprintf(line[k] + at, sizeof line[k] - (size_t)at, " %15lld", (long long)v[c]);
            snprintf(line[k] + at, sizeof line[k] - (size_t)at, "\n");
            ck_assert_msg(strstr(text, line[k]) != NULL, "no line '%s'", line[k]);
        }
        free(text);
        json_decref(o);
    }
}
END_TEST

START_TEST(text_of_every_nano_topology)
{
    static char text[1 << 20];
    for (int i = 0; i < 5 * 16; i++) {
        int P = 1 << i % 4, D = 1 << i / 4 % 4, single = i >= 64;
        struct setup s = make(1, i / 16 ? 8 : 1, P, D, single);
        memset(text, 0, 16);
        FILE *f = fmemopen(text, sizeof text, "w");
        ck_assert_ptr_nonnull(f);
        ck_assert_int_eq(plan_print_text(f, &s.c, i % 2 ? NULL : &s.d, &s.t, &s.o, 900), ST_OK);
        fclose(f);
        ck_assert_ptr_nonnull(strstr(text, single ? "plan single tp" : "plan pp"));
        if (single || i < 16) {
            ck_assert_ptr_nonnull(strstr(text, "stage 0: layers 0-16 (17), 5 mla, 12 kda, captures"));
        } else {
            ck_assert_ptr_nonnull(strstr(text, "stage 0: layers 0-1 (2), 0 mla, 2 kda, captures none\n"));
            ck_assert_ptr_nonnull(strstr(text, "stage 7: layers 14-16 (3), 2 mla, 1 kda, captures"));
            if (i % 2 == 0) ck_assert_ptr_nonnull(strstr(text, "captures 14 15\n"));
        }
        ck_assert((strstr(text, "sources (bytes sent") == NULL) == single);
        json_t *o = printed(&s, 900);
        ck_assert((json_object_get(o, "copies") == NULL) == single);
        json_decref(o);
    }
}
END_TEST

START_TEST(print_refuses)
{
    struct setup s = make(1, 2, 2, 4, 0);
    ck_assert_int_eq(plan_print_text(stderr, &s.c, &s.d, &s.t, &s.o, 0), ST_E_CONFIG);
    ck_assert_int_eq(plan_print_text(stderr, &s.c, &s.d, &s.t, &s.o, 8193), ST_E_CONFIG);
    FILE *full = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(full);
    ck_assert_int_eq(plan_print_text(full, &s.c, &s.d, &s.t, &s.o, 64), ST_E_IO);
    ck_assert_int_eq(plan_print_json(full, &s.c, &s.d, &s.t, &s.o, 64), ST_E_IO);
    fclose(full);
    s.o.page = 0;
    ck_assert_int_eq(plan_print_text(stderr, &s.c, &s.d, &s.t, &s.o, 64), ST_E_CONFIG);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "memory", 300);
    tcase_add_loop_test(tc, seed_numbers, 0, 2);
    tcase_add_loop_test(tc, flows_of_all_tp_pairs, 0, sizeof flow_cases / sizeof flow_cases[0]);
    tcase_add_loop_test(tc, state_blocks, 0, sizeof state_cases / sizeof state_cases[0]);
    SUITE_TEST(tc, k3_pp8_tp4_to_tp32);
    SUITE_TEST(tc, striped_pages_are_counted_exactly);
    SUITE_TEST(tc, padding_between_items_is_out_of_bounds);
    SUITE_TEST(tc, weights_are_those_of_the_files);
    SUITE_TEST(tc, shards_add_up_to_the_whole);
    SUITE_TEST(tc, pools_and_windows_of_a_rank);
    SUITE_TEST(tc, json_has_the_figures);
    SUITE_TEST(tc, totals_are_those_of_the_ranks);
    SUITE_TEST(tc, text_of_every_nano_topology);
    SUITE_TEST(tc, print_refuses);
}

int main(void)
{
    return suite_main_serial();
}
