#include "plan_kit.h"

const char *const suite_name = "transfer_plan";

START_TEST(every_tp_pair_delivers_every_value_once)
{
    int P = 1 << _i / 6, D = 1 << _i % 6;
    for (int heads = 8; heads >= 2; heads /= 2) /* 2 and 4: replicated sources too */
        for (int v = 0; v < 8; v++) {
            struct world w = small(32, heads, P, D);
            w.order = v & 1 ? PAGE_TOKEN_MAJOR : PAGE_HEAD_MAJOR;
            w.kv = v & 2 ? KV_FP32 : KV_BF16;
            w.draft_kv = heads == 4 ? KV_BF16 : w.kv;
            w.stripe = v >> 2;
            if (w.stripe && P <= D) continue;
            must_arrive(&w);
        }
}
END_TEST

START_TEST(mixed_radix_and_odd_sizes)
{
    static const int tp[7] = {1, 2, 3, 4, 6, 12, 24};
    for (int j = 0; j < 7; j++)
        for (int order = 0; order < 2; order++) {
            struct world w = small(24, 12, tp[_i], tp[j]);
            w.order = (enum page_order)order;
            w.stripe = order;
            must_arrive(&w);
        }
    struct world w = small(12, 12, 3, 2); /* 4 heads against 6: source 1 serves both, 2 heads each */
    for (int s = 0; s < 3; s++)
        for (int q = 0; q < 2; q++) {
            struct layout src = source(&w, 1, s), dst = slot(&w, q);
            struct pair_plan p;
            ck_assert_int_eq(pair(&w, &src, 1, &dst, &p), ST_OK);
            int64_t head = 2 * 3 * PAGES * w.page * w.d.head_dim * 2, want = s == 1 ? 2 : s == 2 * q ? 4 : 0;
            ck_assert_int_eq(transfer_plan_bytes(&p, COMP_DRAFT, PAGES, NULL), want * head);
            ck_assert_int_eq(p.has[COMP_KDA], want > 0);
            transfer_plan_free(&p);
            layout_free(&src), layout_free(&dst);
        }
}
END_TEST

START_TEST(stages_without_kda_or_mla_or_draft)
{
    struct world w = small(32, 8, 2, 4);
    w.pp = 6; /* one layer a stage: each lacks a component */
    must_arrive(&w);
    w.cold = 1;
    must_arrive(&w);
    for (int stage = 0; stage < 6; stage++) {
        struct layout src = source(&w, stage, 0), dst = slot(&w, 0);
        struct pair_plan p;
        ck_assert_int_eq(pair(&w, &src, stage, &dst, &p), ST_OK);
        ck_assert(p.has[COMP_MLA] == !w.c.is_kda[stage] && p.has[COMP_KDA] == w.c.is_kda[stage]);
        ck_assert(p.has[COMP_CONV] == w.c.is_kda[stage] && !p.has[COMP_DRAFT] && p.has[COMP_AUX] == (stage == 5));
        transfer_plan_free(&p);
        layout_free(&src), layout_free(&dst);
    }
}
END_TEST

START_TEST(replicated_rows_come_from_the_named_sources)
{
    static const struct {
        int P, D, stripe, q, s, mla, mod, rem, aux;
    } want[] = {
        {8, 4, 1, 2, 4, 1, 2, 0, 1}, {8, 4, 1, 2, 5, 1, 2, 1, 0}, {8, 4, 0, 2, 4, 1, 1, 0, 1}, {8, 4, 0, 2, 5, 0, 0, 0, 0},
        {4, 8, 1, 7, 3, 1, 1, 0, 1}, {3, 2, 1, 1, 1, 1, 2, 0, 1}, {3, 2, 1, 1, 2, 1, 2, 1, 0}, {3, 2, 1, 0, 1, 0, 0, 0, 0},
        {2, 3, 0, 2, 1, 1, 1, 0, 1}, {2, 3, 0, 1, 0, 1, 1, 0, 1}, {2, 3, 0, 1, 1, 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct world w = small(24, 24, want[i].P, want[i].D);
        w.stripe = want[i].stripe;
        struct layout src = source(&w, 1, want[i].s), dst = slot(&w, want[i].q);
        struct pair_plan p;
        ck_assert_int_eq(pair(&w, &src, 1, &dst, &p), ST_OK);
        ck_assert_msg(p.has[COMP_MLA] == want[i].mla && p.has[COMP_AUX] == want[i].aux, "case %zu", i);
        if (w.P == 8) ck_assert(p.has[COMP_KDA] && p.has[COMP_CONV]); /* a source without MLA still sends its heads */
        for (int j = 0; j < p.n; j++)
            if (p.copy[j].comp == COMP_MLA) ck_assert(p.copy[j].page_mod == want[i].mod && p.copy[j].page_rem == want[i].rem);
        transfer_plan_free(&p);
        layout_free(&src), layout_free(&dst);
    }
}
END_TEST

static const struct mutant_case {
    const char *what;
    enum mutant m;
    int page_shift, P, D;
    enum page_order order;
    int values_ok;        /* the bytes come out right in spite of it */
    const char *coverage; /* words of transfer_plan_check; NULL: only values can tell */
} mutants[] = {
    {"none", NONE, 0, 8, 4, PAGE_HEAD_MAJOR, 1, NULL},
    {"flat copy", FLAT, 0, 4, 32, PAGE_HEAD_MAJOR, 0, "leaves its item"},
    {"flat copy", FLAT, 0, 4, 32, PAGE_TOKEN_MAJOR, 0, "leaves its item"},
    {"flat copy up", FLAT, 0, 8, 4, PAGE_HEAD_MAJOR, 0, "comes from place"},
    {"modulo map", MODULO, 0, 1, 32, PAGE_HEAD_MAJOR, 0, "comes from place"},
    {"modulo map", MODULO, 0, 1, 32, PAGE_TOKEN_MAJOR, 0, "comes from place"},
    {"[q|k|v] as one", QKV, 0, 4, 8, PAGE_HEAD_MAJOR, 0, "comes from place"},
    {"[q|k|v] as one", QKV, 0, 8, 4, PAGE_HEAD_MAJOR, 0, "comes from place"},
    {"[k|k|v]", KKV, 0, 4, 8, PAGE_HEAD_MAJOR, 0, "comes from place"},
    {"[k|k|v]", KKV, 0, 4, 32, PAGE_TOKEN_MAJOR, 0, "comes from place"},
    {"[k|k|v]", KKV, 0, 8, 4, PAGE_HEAD_MAJOR, 0, "comes from place"},
    {"K and V swapped", SWAP_KV, 0, 4, 4, PAGE_HEAD_MAJOR, 0, "another entry"},
    {"page id + 1", NONE, 1, 4, 32, PAGE_HEAD_MAJOR, 0, NULL},
    {"page id - 1", NONE, -1, 4, 4, PAGE_TOKEN_MAJOR, 0, NULL},
    {"layer by position", POSITION, 0, 2, 2, PAGE_HEAD_MAJOR, 0, "another entry"},
    {"a copy dropped", DROP, 0, 4, 4, PAGE_HEAD_MAJOR, 0, "written 0 times"},
    {"KDA skipped with MLA", SKIP_KDA, 0, 8, 4, PAGE_HEAD_MAJOR, 0, "written 0 times"},
    {"a conv row missing", ROW, 0, 4, 8, PAGE_HEAD_MAJOR, 0, "written 0 times"},
    {"pages sent by all", ALL_SEND, 0, 8, 4, PAGE_HEAD_MAJOR, 1, "written 2 times"},
    {"pages of the others", SAME_REM, 0, 8, 2, PAGE_HEAD_MAJOR, 0, "written 4 times"},
    {"one stride for both", STRIDE, 0, 4, 8, PAGE_TOKEN_MAJOR, 0, "leaves its item"},
};

START_TEST(wrong_planners_are_caught)
{
    const struct mutant_case *x = &mutants[_i];
    struct world w = small(32, 8, x->P, x->D);
    enum status covered;
    w.order = x->order;
    w.stripe = x->m != SKIP_KDA; /* without it sub-rank 1 sends no MLA */
    int64_t wrong = play(&w, x->m, x->page_shift, &covered);
    ck_assert_msg((wrong == 0) == x->values_ok, "%s: %ld bytes wrong", x->what, (long)wrong);
    ck_assert_msg(covered == (x->coverage ? ST_E_INTERNAL : ST_OK), "%s: coverage %s", x->what, err_name(covered));
    if (x->coverage) ck_assert_msg(strstr(err_last(), x->coverage), "%s: %s", x->what, err_last());
}
END_TEST

START_TEST(coverage_counts_writers)
{
    struct world w = small(32, 8, 1, 1);
    w.pp = 1;
    struct layout src = source(&w, 0, 0), dst = slot(&w, 0);
    struct pair_plan p;
    ck_assert_int_eq(pair(&w, &src, 0, &dst, &p), ST_OK);
    const struct pair_plan *pp[3] = {&p, &p, &p};
    const struct layout *lp[3] = {&src, &src, &src};
    ck_assert_int_eq(transfer_plan_check(&w.c, &w.d, pp, lp, 1, &dst, PAGES), ST_OK);
    ck_assert_int_eq(transfer_plan_check(&w.c, &w.d, pp, lp, 3, &dst, PAGES), ST_E_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err_last(), "byte 0 is written 3 times"));
    ck_assert_int_eq(transfer_plan_check(&w.c, &w.d, pp, lp, 0, &dst, PAGES), ST_E_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err_last(), "byte 0 is written 0 times"));
    ck_assert_int_eq(transfer_plan_check(&w.c, &w.d, pp, lp, 1, &dst, PAGES + 1), ST_E_INTERNAL); /* the slot has no such page */
    for (int i = 0; i < p.n; i++) { /* one byte short, one byte late, for every copy */
        p.copy[i].run--;
        ck_assert_int_eq(transfer_plan_check(&w.c, &w.d, pp, lp, 1, &dst, PAGES), ST_E_INTERNAL);
        ck_assert_ptr_nonnull(strstr(err_last(), "written 0 times"));
        p.copy[i].dst_off++;
        ck_assert_int_eq(transfer_plan_check(&w.c, &w.d, pp, lp, 1, &dst, PAGES), ST_E_INTERNAL);
        ck_assert_ptr_nonnull(strstr(err_last(), "comes from place"));
        p.copy[i].src_off++;
        ck_assert_int_eq(transfer_plan_check(&w.c, &w.d, pp, lp, 1, &dst, PAGES), ST_E_INTERNAL);
        ck_assert_ptr_nonnull(strstr(err_last(), "byte 0 is written 0 times"));
        p.copy[i].src_off--;
        p.copy[i].dst_off--, p.copy[i].run++;
    }
    ck_assert_int_eq(transfer_plan_check(&w.c, &w.d, pp, lp, 1, &dst, PAGES), ST_OK);
    transfer_plan_free(&p);
    transfer_plan_free(NULL);
    layout_free(&src), layout_free(&dst);
}
END_TEST

/* ---- order, absence, refusals, hash ------------------------------------------------------------------------------ */

START_TEST(entries_are_paired_by_key)
{
    struct world w = small(32, 8, 4, 8);
    int stage = _i;
    struct layout src = source(&w, stage, 1), dst = slot(&w, 2);
    struct pair_plan p, q;
    ck_assert_int_eq(pair(&w, &src, stage, &dst, &p), ST_OK);
    for (int side = 0; side < 2; side++) {
        struct layout turned = side ? dst : src;
        struct layout_entry entry[64];
        turned.entry = entry;
        for (int i = 0; i < turned.n; i++) entry[i] = (side ? dst : src).entry[(i * 5 + 3) % turned.n];
        if (turned.n % 5) { /* a permutation */
            ck_assert_int_eq(pair(&w, side ? &src : &turned, stage, side ? &turned : &dst, &q), ST_OK);
            ck_assert(q.hash == p.hash && q.n == p.n);
            for (int i = 0; i < p.n; i++) {
                const struct layout *s = side ? &src : &turned, *d = side ? &turned : &dst;
                ck_assert_int_eq(s->entry[q.copy[i].src_entry].base, src.entry[p.copy[i].src_entry].base);
                ck_assert_int_eq(d->entry[q.copy[i].dst_entry].base, dst.entry[p.copy[i].dst_entry].base);
                ck_assert(q.copy[i].src_off == p.copy[i].src_off && q.copy[i].dst_off == p.copy[i].dst_off);
            }
            transfer_plan_free(&q);
        }
        int n = turned.n--;
        for (int gone = 0; gone < n; gone++) { /* one entry missing */
            const struct layout_entry *e = side ? &dst.entry[gone] : &src.entry[gone];
            int mine = e->comp >= COMP_DRAFT ? stage == 1 : e->layer / 3 == stage;
            for (int i = 0, j = 0; i < n; i++)
                if (i != gone) entry[j++] = (side ? dst : src).entry[i];
            enum status st = pair(&w, side ? &src : &turned, stage, side ? &turned : &dst, &q);
            ck_assert_msg(st == (mine ? ST_E_HANDSHAKE : ST_OK), "side %d entry %d", side, gone);
            if (st == ST_OK) transfer_plan_free(&q);
        }
    }
    transfer_plan_free(&p);
    layout_free(&src), layout_free(&dst);
}
END_TEST

/* one thing of the destination's (or source's) world or layout differs */
static const struct refusal_case {
    const char *what, *says;
    int at; /* which change, see bend_world() */
} refusals[] = {
    {"page", "page: source 4 tokens, destination 8", 0},
    {"page order", "page order: source 0, destination 1", 1},
    {"kv type", "kv type: source 2 bytes, destination 4", 2},
    {"draft kv type", "draft kv type: source 2 bytes, destination 4", 3},
    {"draft heads", "destination: draft layer 0 holds heads [2, 4); 8 heads in all over tp 2 give [4, 8)", 4},
    {"kda heads", "destination: kda layer 0 holds heads [8, 16); 32 heads in all over tp 2 give [16, 32)", 5},
    {"draft layers", "source has 6, destination has 4, the draft model has 6", 6},
    {"draft on one side", "source has 6, destination has 0", 7},
    {"draft on the other", "source has 0, destination has 6", 8},
    {"mla width", "destination: mla layer 2: item 64 bytes", 9},
    {"kda width", "destination: kda layer 0: item 1024 bytes", 10},
    {"head_dim", "destination: draft layer 0: item 96 bytes", 11},
    {"same key twice", "are both mla layer 2", 12},
    {"same base, other stride", "overlaps", 13},
    {"stride too small", "stride 55", 14},
    {"layers", "layers: source has [3, 6), destination [0, 5)", 15},
    {"draft before the last stage", "entry on a stage that is not the last", 16},
    {"tp that no head count fits", "destination: tp 3 does not fit the 32 heads", 17},
    {"no draft model", "no draft model is given", 18},
};

static void bend_world(int at, struct world *w)
{
    int *const field[12] = {[0] = &w->page, [4] = &w->d.kv_heads, [5] = &w->c.kda_heads, [6] = &w->d.n_layers,
                            [7] = &w->cold, [9] = &w->c.kv_rank,  [10] = &w->c.kda_dim,  [11] = &w->d.head_dim};
    static const int value[12] = {[0] = 8, [4] = 4, [5] = 16, [6] = 2, [7] = 1, [9] = 6, [10] = 4, [11] = 3};
    if (at < 12 && field[at]) *field[at] = value[at];
    if (at == 1) w->order = PAGE_TOKEN_MAJOR;
    if (at == 2) w->kv = KV_FP32;
    if (at == 3) w->draft_kv = KV_FP32;
}

START_TEST(mismatches_are_refused_by_name)
{
    const struct refusal_case *x = &refusals[_i];
    struct world w = small(32, 8, 2, 2), v = w; /* 4 tokens x 4 heads a page: no size tells the page order */
    int last = x->at != 16;
    bend_world(x->at, &v);
    if (x->at == 8) w.cold = 1;
    struct layout src = source(&w, 1, 1), dst = slot(&v, 1);
    w.cold = 0;
    if (x->at == 12) dst.entry[1] = dst.entry[0];
    if (x->at == 13) dst.entry[1].base = dst.entry[0].base, dst.entry[1].stride += 64;
    if (x->at == 14) dst.entry[0].stride = 55;
    if (x->at == 15) dst.spec.layers.end = 5;
    if (x->at == 17) dst.spec.tp = 3;
    struct pair_plan p = {.n = -7};
    enum status st = transfer_plan_pair(&w.c, x->at == 18 ? NULL : &w.d, &src, 1, last, &dst, 0, &p);
    ck_assert_msg(st == ST_E_HANDSHAKE, "%s: %s", x->what, err_name(st));
    ck_assert_msg(strstr(err_last(), x->says), "%s: '%s' not in: %s", x->what, x->says, err_last());
    ck_assert_int_eq(p.n, -7);
    layout_free(&src), layout_free(&dst);
}
END_TEST

START_TEST(hash_covers_what_both_sides_must_agree_on)
{
    enum { N = 26 };
    uint64_t h[N] = {0};
    for (int i = 0; i < N; i++) {
        struct world w = small(32, 8, 4, 2), v;
        int *const bump[] = {&w.d.mask_id, &w.d.block, &w.d.tap[1], &w.d.window,  &w.stripe, &w.page,
                             &w.cold,      &w.c.vocab, &w.d.n_taps, &w.c.kv_rank};
        if (i >= 1 && i <= 10) ++*bump[i - 1];
        if (i == 11) w.c.hash++;
        if (i == 12) w.d.hash++;
        if (i == 13) w.d.rope_theta += 1;
        if (i == 14) w.d.type[2] = DRAFT_SLIDING;
        if (i == 15) w.order = PAGE_TOKEN_MAJOR;
        if (i == 16) w.kv = KV_FP32;
        if (i == 17) w.draft_kv = KV_FP32;
        v = w;
        if (i == 18) w.P = 8;
        if (i == 19) v.D = 4;
        struct layout src = source(&w, 1, i == 20 ? 1 : 2), dst = slot(&v, 1);
        if (i == 20) src.spec.tp_rank = 1;
        if (i == 21) src.entry[0].n_items--;
        if (i == 22) dst.entry[dst.n - 1].base += 4096;
        if (i == 23) src.entry[src.n - 1].stride += 64;
        if (i == 24) dst.spec.n_pages--;
        if (i == 25) dst.bytes += 4096;
        struct pair_plan p, again;
        ck_assert_int_eq(pair(&w, &src, 1, &dst, &p), ST_OK);
        ck_assert_int_eq(pair(&w, &src, 1, &dst, &again), ST_OK);
        ck_assert_uint_eq(p.hash, again.hash);
        h[i] = p.hash;
        for (int j = 0; j < i; j++) ck_assert_msg(h[i] != h[j], "variants %d and %d hash alike", i, j);
        transfer_plan_free(&p), transfer_plan_free(&again);
        layout_free(&src), layout_free(&dst);
    }
}
END_TEST

struct list {
    int n;
    struct plan_run run[16];
};

static enum status keep(void *ctx, const struct plan_run *r)
{
    struct list *x = ctx;
    ck_assert_int_lt(x->n, 16);
    x->run[x->n++] = *r;
    return ST_OK;
}

START_TEST(runs_outside_an_item_never_reach_the_wire)
{
    struct world w = small(32, 8, 2, 4);
    struct layout src = source(&w, 1, 1), dst = slot(&w, 3), other = slot(&w, 2);
    struct pair_plan p;
    struct list got = {0};
    ck_assert_int_eq(pair(&w, &src, 1, &dst, &p), ST_OK);
    for (int i = 0; i < p.n; i++) {
        struct plan_copy *k = &p.copy[i], good = *k;
        int paged = k->comp == COMP_MLA || k->comp == COMP_DRAFT;
        const int64_t bad[5][2] = {{-1, 0}, {0, -1}, {paged ? POOL : SLOTS, 0}, {0, paged ? PAGES : 1}, {INT64_MAX / 2, 0}};
        for (int j = 0; j < 5; j++)
            ck_assert_int_eq(transfer_plan_runs(&p, k, &src, &dst, bad[j][0], bad[j][1], keep, &got), ST_E_RANGE);
        int64_t *const field[] = {&k->src_off, &k->dst_off, &k->run};
        for (int j = 0; j < 6; j++) {
            *field[j / 2] = j % 2 ? INT64_MAX / 4 : -1;
            got.n = 0;
            ck_assert_int_eq(transfer_plan_runs(&p, k, &src, &dst, 0, 0, keep, &got), ST_E_RANGE);
            ck_assert_int_eq(got.n, 0);
            *k = good;
        }
        k->dst_entry = dst.n;
        ck_assert_int_eq(transfer_plan_runs(&p, k, &src, &dst, 0, 0, keep, &got), ST_E_RANGE);
        *k = good;
        ck_assert_int_eq(transfer_plan_runs(&p, k, &src, &other, 0, 0, keep, &got), ST_E_RANGE); /* not its layout */
    }
    transfer_plan_free(&p);
    layout_free(&src), layout_free(&dst), layout_free(&other);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "transfer_plan", 300);
    tcase_add_loop_test(tc, every_tp_pair_delivers_every_value_once, 0, 24);
    tcase_add_loop_test(tc, mixed_radix_and_odd_sizes, 0, 7);
    SUITE_TEST(tc, stages_without_kda_or_mla_or_draft);
    SUITE_TEST(tc, replicated_rows_come_from_the_named_sources);
    tcase_add_loop_test(tc, wrong_planners_are_caught, 0, sizeof mutants / sizeof mutants[0]);
    SUITE_TEST(tc, coverage_counts_writers);
    tcase_add_loop_test(tc, entries_are_paired_by_key, 0, 2);
    tcase_add_loop_test(tc, mismatches_are_refused_by_name, 0, sizeof refusals / sizeof refusals[0]);
    SUITE_TEST(tc, hash_covers_what_both_sides_must_agree_on);
    SUITE_TEST(tc, runs_outside_an_item_never_reach_the_wire);
}

int main(void)
{
    return suite_main_serial();
}
