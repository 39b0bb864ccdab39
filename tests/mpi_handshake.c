#include "suite.h"

#include <inttypes.h>
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "mpi_world.h"
#include "pd/handshake.h"

/* np: 1 2 5 8 */
const char *const suite_name = "mpi_handshake";

enum { LAYERS = 6, KDA_HEADS = 12, DRAFT_HEADS = 8, DRAFT_LAYERS = 3, SLOTS = 3 };

static int is_mla(int layer)
{
    return layer % 3 == 2;
}

/* A topology for every number of ranks the suite runs with: pp, tp of prefill, tp of decode. */
static struct topology topology_of(int size)
{
    static const struct {
        int size, pp, tp, decode;
    } row[] = {{2, 1, 1, 1}, {3, 2, 1, 1}, {5, 3, 1, 2}, {6, 2, 2, 2}, {8, 2, 2, 4}, {12, 2, 4, 4}};
    struct topology t = {.single = 1, .decode = {1, size, 1}, .n_decode = size, .n_ranks = size};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (row[i].size == size)
            t = (struct topology){.prefill = {row[i].pp, row[i].tp, 1}, .decode = {1, row[i].decode, 1},
                                  .n_prefill = row[i].pp * row[i].tp, .n_decode = row[i].decode, .n_ranks = size};
    return t;
}

static struct descriptor good(const struct topology *t, int r)
{
    struct rank_role role = topology_role(t, r);
    const struct group *g = role.role == ROLE_PREFILL ? &t->prefill : &t->decode;
    struct range l = split_stage(LAYERS, g->pp, role.stage), h = split_kv_heads(DRAFT_HEADS, g->tp, role.tp_rank);
    struct descriptor d;
    memset(&d, 0, sizeof d);
    d.version = HANDSHAKE_VERSION;
    d.struct_bytes = sizeof d;
    d.endian = 0x01020304;
    d.role = (uint32_t)role.role, d.stage = (uint32_t)role.stage, d.tp_rank = (uint32_t)role.tp_rank;
    d.tp = (uint32_t)g->tp, d.pp = (uint32_t)g->pp;
    d.build = 11, d.target_config = 12, d.draft_config = 13, d.tokenizer = 14, d.weights = 15, d.plan_hash = 16;
    d.draft_kind = 1, d.block = 8, d.mask_id = 500, d.n_taps = 2, d.window = 64;
    d.tap[0] = 1, d.tap[1] = 4;
    d.rope_theta = 1e6;
    d.page = 8, d.kv = KV_BF16, d.draft_kv = KV_BF16, d.temporal_bytes = 4, d.order = PAGE_HEAD_MAJOR;
    d.n_slots = SLOTS;
    d.draft_heads = DRAFT_HEADS, d.draft_head_dim = 16, d.draft_layers = DRAFT_LAYERS;
    d.draft_heads_per_rank = (uint32_t)(h.end - h.begin), d.draft_first_head = (uint32_t)h.begin;
    d.mla_width = 40, d.mla_row_bytes = 80;
    d.kda_heads = KDA_HEADS, d.kda_dim = 16, d.conv_kernel = 4, d.kda_heads_per_rank = (uint32_t)(KDA_HEADS / g->tp);
    d.layer_begin = (uint32_t)l.begin, d.layer_end = (uint32_t)l.end;
    for (int i = l.begin; i < l.end; i++) *(is_mla(i) ? &d.mla_layers : &d.kda_layers) += 1;
    d.state_convention = 1;
    d.entries_hash = 1000 + (uint64_t)r;
    if (role.role == ROLE_DECODE) d.slot_bytes = 8192, d.window_bytes = SLOTS * 8192, d.pages_per_slot = 5;
    return d;
}

/* ---- one changed field each -------------------------------------------------------------------------------- */

enum where { PREFILL, DECODE, BOTH }; /* whose last rank is changed; BOTH: either, one after the other */
static const struct {
    const char *field; /* must be in the message */
    size_t at;
    int bytes;
    enum where where;
    uint64_t value;
    const char *text; /* the changed value as the message shows it; NULL: as a decimal number */
    const char *other; /* the value it is held against, NULL: the good one as a decimal number */
} row[] = {
#define F(f) offsetof(struct descriptor, f), (int)sizeof(((struct descriptor *)0)->f)
    {"protocol version", F(version), BOTH, 99, NULL, NULL},
    {"descriptor size", F(struct_bytes), BOTH, 400, NULL, NULL},
    {"byte order", F(endian), BOTH, 0x04030201, NULL, NULL},
    {"role", F(role), PREFILL, ROLE_DECODE, "has 1", "for 0"},
    {"role", F(role), DECODE, ROLE_PREFILL, "has 0", "for 1"},
    {"stage", F(stage), PREFILL, 9, NULL, NULL},
    {"tp", F(tp), BOTH, 7, NULL, NULL},
    {"tp_rank", F(tp_rank), BOTH, 9, NULL, NULL},
    {"pp", F(pp), PREFILL, 9, NULL, NULL},
    {"pp", F(pp), DECODE, 2, "has 2", "for 1"},
    {"build", F(build), BOTH, 99, NULL, NULL},
    {"target_config", F(target_config), BOTH, 0xfeedfacecafe, "0000feedfacecafe", "12"},
    {"draft_config", F(draft_config), BOTH, 99, NULL, NULL},
    {"tokenizer", F(tokenizer), BOTH, 99, NULL, NULL},
    {"weights", F(weights), BOTH, 99, NULL, NULL},
    {"draft_kind", F(draft_kind), PREFILL, 0, "has 0", "has 1"}, /* prefill without, decode with a draft */
    {"draft_kind", F(draft_kind), DECODE, 0, "has 0", "has 1"},
    {"draft_kind", F(draft_kind), BOTH, 2, "has 2", "has 1"}, /* dflash here, dspark there */
    {"confidence", F(confidence), BOTH, 0x3fe0000000000000u, "has 0.5", "has 0"},
    {"temperature", F(temperature), BOTH, 0x3fe0000000000000u, "has 0.5", "has 0"},
    {"top_p", F(top_p), BOTH, 0x3fe0000000000000u, "has 0.5", "has 0"},
    {"draft_temperature", F(draft_temperature), BOTH, 0x3fe0000000000000u, "has 0.5", "has 0"},
    {"top_k", F(top_k), BOTH, 40, NULL, "has 0"},
    {"draws_drafts", F(draws_drafts), BOTH, 1, NULL, "has 0"},
    {"seed", F(seed), BOTH, 12345, NULL, "has 0"},
    {"block", F(block), BOTH, 16, NULL, NULL},
    {"mask_id", F(mask_id), BOTH, 501, NULL, NULL},
    {"n_taps", F(n_taps), BOTH, 3, NULL, NULL},
    {"tap[1]", offsetof(struct descriptor, tap) + 4, 4, BOTH, 5, NULL, NULL},
    {"tap[31]", offsetof(struct descriptor, tap) + 124, 4, BOTH, (uint32_t)-3, "has -3", "has 0"},
    {"window", F(window), BOTH, 65, NULL, NULL},
    {"rope_theta", F(rope_theta), BOTH, 0x40c81c8000000000u, "has 12345", "has 1000000"}, /* 12345.0 */
    {"page", F(page), BOTH, 16, NULL, NULL},
    {"order", F(order), BOTH, PAGE_TOKEN_MAJOR, "has 1", "has 0"}, /* equal sizes cannot give it away */
    {"kv", F(kv), BOTH, KV_FP32, "has 1", "has 0"},
    {"draft_kv", F(draft_kv), BOTH, KV_FP32, "has 1", "has 0"},
    {"temporal_bytes", F(temporal_bytes), BOTH, 2, NULL, NULL},
    {"pages_per_slot", F(pages_per_slot), DECODE, 0, "has 0", NULL},
    {"n_slots", F(n_slots), BOTH, 4, NULL, NULL},
    {"draft_heads", F(draft_heads), BOTH, 32, NULL, NULL}, /* e.g. heads per rank x tp */
    {"draft_head_dim", F(draft_head_dim), BOTH, 32, NULL, NULL},
    {"draft_layers", F(draft_layers), BOTH, 4, NULL, NULL},
    {"draft_heads_per_rank", F(draft_heads_per_rank), BOTH, 9, NULL, NULL},
    {"draft_heads_per_rank", F(draft_heads_per_rank), BOTH, 0, "has 0", NULL}, /* 2 heads over tp 4 rounded down */
    {"draft_first_head", F(draft_first_head), BOTH, 7, NULL, NULL},
    {"mla_width", F(mla_width), BOTH, 41, NULL, NULL},
    {"mla_row_bytes", F(mla_row_bytes), BOTH, 82, NULL, NULL},
    {"mla_layers", F(mla_layers), BOTH, 9, NULL, "expects"},
    {"kda_heads", F(kda_heads), BOTH, 24, NULL, NULL},
    {"kda_dim", F(kda_dim), BOTH, 32, NULL, NULL},
    {"conv_kernel", F(conv_kernel), BOTH, 3, NULL, NULL},
    {"kda_layers", F(kda_layers), BOTH, 9, NULL, "expects"},
    {"kda_heads_per_rank", F(kda_heads_per_rank), BOTH, 7, NULL, "12"},
    {"layers", F(layer_begin), BOTH, 7, "[7,", " has ["}, /* held against the range of the stage before */
    {"layers", F(layer_end), BOTH, 7, ", 7)", " has ["},
    {"state_convention", F(state_convention), BOTH, 2, NULL, NULL},
    {"act", F(act), BOTH, 1, NULL, NULL},
    {"slot", F(slot_bytes), DECODE, 16384, NULL, " has "}, /* against another decode rank or the window's 24576 */
    {"window", F(window_bytes), DECODE, SLOTS * 8192 - 1, NULL, "8192"},
    {"entries_hash", F(entries_hash), BOTH, 0, "has 0", NULL},
    {"plan_hash", F(plan_hash), BOTH, 99, NULL, NULL},
#undef F
};

enum { ROWS = sizeof row / sizeof row[0] };

static uint64_t field(const struct descriptor *d, int i)
{
    uint32_t u;
    uint64_t l;
    memcpy(&u, (const char *)d + row[i].at, 4);
    memcpy(&l, (const char *)d + row[i].at, row[i].bytes == 8 ? 8 : 4);
    return row[i].bytes == 8 ? l : u;
}

static void change(struct descriptor *d, int i)
{
    uint32_t u = (uint32_t)row[i].value;
    if (row[i].bytes == 8)
        memcpy((char *)d + row[i].at, &row[i].value, 8);
    else
        memcpy((char *)d + row[i].at, &u, 4);
}

/* the message names field, the changed rank, another rank, and both values */
static int message_is_right(const struct topology *t, int i, int changed)
{
    const char *m = err_last(), *at = m;
    char want[64];
    struct descriptor was = good(t, changed);
    int ranks = 0;
    while ((at = strstr(at, "rank "))) ranks += at[5] >= '0' && at[5] <= '9', at++;
    snprintf(want, sizeof want, "rank %d (", changed);
    int ok = strstr(m, row[i].field) && strstr(m, want) && ranks >= 2;
    snprintf(want, sizeof want, "%" PRIu64, row[i].value);
    ok = ok && strstr(m, row[i].text ? row[i].text : want);
    snprintf(want, sizeof want, "%" PRIu64, field(&was, i));
    ok = ok && (row[i].other ? strstr(m, row[i].other) != NULL : row[i].value == 0 || strstr(m, want) != NULL);
    if (!ok) fprintf(stderr, "rank %d changed, row %s: message was: %s\n", changed, row[i].field, m);
    return ok;
}

START_TEST(each_changed_field_is_refused_on_every_rank)
{
    const struct topology *t = &world.topo;
    if (t->single) return;
    for (int i = 0; i < ROWS; i++)
        for (int side = 0; side < 2; side++) {
            if (row[i].where != BOTH && row[i].where != (side ? DECODE : PREFILL)) continue;
            int changed = side ? t->n_ranks - 1 : t->n_prefill - 1;
            struct descriptor mine = good(t, world.rank), was = good(t, changed), *all = NULL;
            if (field(&was, i) == row[i].value) continue;
            if (world.rank == changed) change(&mine, i);
            enum status st = handshake_run(&world, &mine, &all);
            int ok = st == ST_E_HANDSHAKE && !all && message_is_right(t, i, changed);
            ck_assert_msg(suite_all(ok), "row %d (%s), rank %d changed: %s", i, row[i].field, changed, err_name(st));
        }
}
END_TEST

/* the same without messages, on a large topology, for every rank */
START_TEST(each_changed_field_is_refused_wherever_it_is)
{
    const struct topology t = {.prefill = {3, 4, 1}, .decode = {1, 4, 1}, .n_prefill = 12, .n_decode = 4, .n_ranks = 16};
    struct descriptor d[16];
    int ok = 1;
    if (world.rank == 0) { /* pure: once is enough */
        for (int r = 0; r < 16; r++) d[r] = good(&t, r);
        ok = handshake_check(d, 16, &t) == ST_OK && handshake_check(d, 15, &t) == ST_E_HANDSHAKE;
        for (int i = 0; i < ROWS && ok; i++)
            for (int r = 0; r < 16 && ok; r++) {
                if (row[i].where != BOTH && row[i].where != (r < 12 ? PREFILL : DECODE)) continue;
                struct descriptor kept = d[r];
                if (field(&kept, i) == row[i].value) continue;
                change(&d[r], i);
                ok = handshake_check(d, 16, &t) == ST_E_HANDSHAKE;
                if (!ok) fprintf(stderr, "row %d (%s) at rank %d passed\n", i, row[i].field, r);
                d[r] = kept;
            }
    }
    ck_assert(suite_all(ok));
}
END_TEST

/* ---- geometry: several ranks changed in a way that every single field could be right ---------------------------- */

static void same_dtype_everywhere(struct descriptor *d) { for (int r = 0; r < 16; r++) d[r].kv = KV_FP32; }
static void five_heads(struct descriptor *d)
{
    for (int r = 0; r < 16; r++) d[r].kda_heads = 13, d[r].kda_heads_per_rank = 3;
}
static void three_draft_heads(struct descriptor *d) { for (int r = 0; r < 16; r++) d[r].draft_heads = 3; }
static void gap(struct descriptor *d) { for (int r = 4; r < 8; r++) d[r].layer_begin = 3, d[r].kda_layers = 0; }
static void stages_swapped(struct descriptor *d)
{
    for (int r = 0; r < 4; r++) {
        struct descriptor a = d[r];
        d[r].layer_begin = d[r + 4].layer_begin, d[r].layer_end = d[r + 4].layer_end;
        d[r + 4].layer_begin = a.layer_begin, d[r + 4].layer_end = a.layer_end;
    }
}
static void empty_stage(struct descriptor *d)
{
    for (int r = 4; r < 8; r++) d[r].layer_end = d[r].layer_begin, d[r].kda_layers = d[r].mla_layers = 0;
    for (int r = 8; r < 12; r++) d[r].layer_begin = d[4].layer_begin;
}
static void last_layer_missing(struct descriptor *d) { for (int r = 8; r < 12; r++) d[r].layer_end--, d[r].mla_layers--; }
static void kinds_swapped(struct descriptor *d) { for (int r = 0; r < 4; r++) d[r].kda_layers--, d[r].mla_layers++; }
static void all_decode_small_window(struct descriptor *d) { for (int r = 12; r < 16; r++) d[r].window_bytes = 8192; }
static void slots_overflow(struct descriptor *d) { for (int r = 12; r < 16; r++) d[r].slot_bytes = UINT64_MAX / 2; }
static void old_convention(struct descriptor *d) { for (int r = 0; r < 16; r++) d[r].state_convention = 0; }
static void half_state(struct descriptor *d) { for (int r = 0; r < 16; r++) d[r].temporal_bytes = 2; }
static void decode_pipeline(struct descriptor *d) { for (int r = 12; r < 16; r++) d[r].pp = 2; }
static void prefill_without_draft(struct descriptor *d) { for (int r = 0; r < 12; r++) d[r].draft_kind = 0; }

START_TEST(geometry_that_does_not_add_up_is_refused)
{
    static const struct {
        const char *field;
        void (*spoil)(struct descriptor *d);
    } bad[] = {
        {"mla_row_bytes", same_dtype_everywhere},
        {"kda_heads_per_rank x tp", five_heads},
        {"draft_heads over tp", three_draft_heads},
        {"layers", gap},
        {"layers", stages_swapped},
        {"layers", empty_stage},
        {"layers", last_layer_missing},
        {"mla_layers, kda_layers", kinds_swapped},
        {"window bounds", all_decode_small_window},
        {"window bounds", slots_overflow},
        {"state_convention", old_convention},
        {"temporal_bytes", half_state},
        {"pp", decode_pipeline},
        {"draft_kind", prefill_without_draft},
    };
    const struct topology t = {.prefill = {3, 4, 1}, .decode = {1, 4, 1}, .n_prefill = 12, .n_decode = 4, .n_ranks = 16};
    int ok = 1;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0] && world.rank == 0; i++) {
        struct descriptor d[16];
        for (int r = 0; r < 16; r++) d[r] = good(&t, r);
        bad[i].spoil(d);
        if (handshake_check(d, 16, &t) == ST_E_HANDSHAKE && strstr(err_last(), bad[i].field)) continue;
        fprintf(stderr, "row %zu (%s): last message %s\n", i, bad[i].field, err_last());
        ok = 0;
    }
    ck_assert(suite_all(ok));
}
END_TEST

/* 8 draft heads over 16 or 32 decode ranks are still 8 heads, one per rank (pd-systems L4) */
START_TEST(more_ranks_than_heads_pass)
{
    const struct topology t = {.prefill = {2, 2, 1}, .decode = {1, 16, 1}, .n_prefill = 4, .n_decode = 16, .n_ranks = 20};
    struct descriptor d[20];
    for (int r = 0; r < 20; r++) {
        d[r] = good(&t, r);
        d[r].kda_heads = 48;
        d[r].kda_heads_per_rank = 48 / d[r].tp;
    }
    int ok = handshake_check(d, 20, &t) == ST_OK && d[19].draft_heads_per_rank == 1 && d[19].draft_first_head == 7;
    ck_assert(suite_all(ok));
}
END_TEST

START_TEST(matching_ranks_pass_and_see_all_descriptors)
{
    struct descriptor mine = good(&world.topo, world.rank), *all = NULL;
    int ok = handshake_run(&world, &mine, &all) == ST_OK && all;
    for (int r = 0; r < world.size && ok; r++) {
        struct descriptor want = good(&world.topo, r);
        ok = memcmp(&want, &all[r], sizeof want) == 0;
    }
    mem_free(all);
    ck_assert(suite_all(ok));
    ck_assert(suite_all(handshake_run(&world, &mine, NULL) == ST_OK));
}
END_TEST

static void split_world(void)
{
    suite_world();
    struct topology t = topology_of(world.size);
    if (world_split(&world, &t) != ST_OK) exit(EXIT_FAILURE);
}

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "handshake", 100);
    tcase_add_unchecked_fixture(tc, split_world, suite_world_end);
    SUITE_TEST(tc, matching_ranks_pass_and_see_all_descriptors);
    SUITE_TEST(tc, each_changed_field_is_refused_on_every_rank);
    SUITE_TEST(tc, each_changed_field_is_refused_wherever_it_is);
    SUITE_TEST(tc, geometry_that_does_not_add_up_is_refused);
    SUITE_TEST(tc, more_ranks_than_heads_pass);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
