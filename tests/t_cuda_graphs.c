/* Steps as CUDA graphs: what is made, started again, changed and made anew, and that no token depends on any of it. */
#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spec_kit.h"

const char *const suite_name = "cuda_graphs";

/* each test is a process of its own, so the device is looked for in it */
static int no_device(const char *what)
{
    if (ops_cuda_devices() > 0) return 0;
    printf("SKIPPED: no CUDA device in this build or on this machine; %s\n", what);
    return 1;
}

/* ---- regions ---------------------------------------------------------------------------------------- */

enum { N = 1000, ROWS = 4 };

struct bench { /* y starts at zero; every step of a region adds to it */
    struct ops o;
    struct buf x, y, z;
};

static void bench_open(struct bench *b)
{
    float x[ROWS * N];
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)(i % 7) + 1;
    OK(ops_cuda_open(ACT_FP32, 0, &b->o));
    OK(b->o.mem_new(&b->o, &b->x, sizeof x, "x"));
    OK(b->o.mem_new(&b->o, &b->y, sizeof x, "y"));
    OK(b->o.mem_new(&b->o, &b->z, sizeof x, "z"));
    b->o.put(&b->o, b->x.p, x, sizeof x);
}

static void bench_close(struct bench *b)
{
    b->o.mem_free(&b->o, &b->x);
    b->o.mem_free(&b->o, &b->y);
    b->o.mem_free(&b->o, &b->z);
    b->o.close(&b->o);
}

static float first_of(struct bench *b, const struct buf *m)
{
    float v;
    b->o.get(&b->o, &v, m->p, sizeof v);
    return v;
}

static void expect(struct bench *b, int64_t made, int64_t started, int64_t launches, int64_t changed, int64_t cut)
{
    struct ops_graphs g = b->o.graph_counts(&b->o);
    ck_assert_int_eq(g.made, made);
    ck_assert_int_eq(g.started, started);
    ck_assert_int_eq(g.launches, launches);
    ck_assert_int_eq(g.changed, changed);
    ck_assert_int_eq(g.cut, cut);
}

/* y += x, y += x, z := rows of y: three launches */
static void step(struct bench *b, uint64_t key, int64_t n, const int32_t *from, int rows)
{
    struct ops *o = &b->o;
    o->graph_begin(o, key);
    o->add(o, b->y.p, b->x.p, n);
    o->add(o, b->y.p, b->x.p, n);
    o->gather_rows(o, b->z.p, b->y.p, from, rows, N);
    o->graph_end(o);
}

START_TEST(equal_steps_start_one_graph)
{
    struct bench b = {0};
    int32_t from[ROWS] = {0, 1, 2, 3};
    if (no_device("no graph was made")) return;
    bench_open(&b);
    for (int i = 0; i < 5; i++) {
        from[0] = i % ROWS; /* what is staged changes, its place does not */
        step(&b, 1, N, from, ROWS);
        float row[N];
        b.o.get(&b.o, row, b.z.p, sizeof row);
        ck_assert(row[0] == (from[0] == 0 ? 2.0f * (float)(i + 1) : 0)); /* only the first row was added to */
    }
    expect(&b, 1, 4, 12, 0, 0); /* what came once is launched */
    ck_assert(first_of(&b, &b.y) == 10);
    step(&b, 1, N - 8, from, ROWS); /* fewer elements: two launches differ, and again when it is as before */
    expect(&b, 1, 5, 15, 2, 0);
    step(&b, 1, N, from, ROWS);
    expect(&b, 1, 6, 18, 4, 0);
    step(&b, 1, N, from, ROWS - 1); /* another grid */
    expect(&b, 1, 7, 21, 5, 0);
    ck_assert(first_of(&b, &b.y) == 16);
    step(&b, 2, N, from, ROWS); /* another key: its own graph */
    expect(&b, 1, 7, 21, 5, 0);
    step(&b, 1, N, from, ROWS - 1);
    expect(&b, 1, 8, 24, 5, 0);
    step(&b, 2, N, from, ROWS);
    expect(&b, 2, 9, 27, 5, 0);
    ck_assert(first_of(&b, &b.y) == 22);
    bench_close(&b);
}
END_TEST

START_TEST(other_functions_change_other_numbers_begin_anew)
{
    struct bench b = {0};
    struct ops *o = &b.o;
    if (no_device("no graph was made")) return;
    bench_open(&b);
    static const char kind[] = "rcrcxcxxrr"; /* x: one more launch */
    for (int i = 0; kind[i]; i++) {
        o->graph_begin(o, 1);
        o->add(o, b.y.p, b.x.p, N);
        for (int k = (kind[i] == 'c') + 2 * (kind[i] == 'x'); k; k--) o->copy(o, b.z.p, b.y.p, 1024);
        if (kind[i] == 'r') o->round_kv(o, b.y.p, N, OPS_KV_BF16);
        o->graph_end(o);
        ck_assert(first_of(&b, &b.y) == (float)(i + 1));
    }
    ck_assert(first_of(&b, &b.z) == 8);
    expect(&b, 3, 5, 11, 2, 0); /* made of the first two, and each time that as many launches came again */
    bench_close(&b);
}
END_TEST

/* an operation that waits ends the graph before it; what follows is a second one */
START_TEST(waits_cut_a_region)
{
    struct bench b = {0};
    struct ops *o = &b.o;
    if (no_device("no graph was made")) return;
    bench_open(&b);
    for (int i = 0; i < 3; i++) {
        float big = 7, val;
        int32_t id;
        o->graph_begin(o, 1);
        o->add(o, b.y.p, b.x.p, N);
        ck_assert(first_of(&b, &b.y) == (float)(2 * i + 1));
        o->add(o, b.y.p, b.x.p, N);
        o->put(o, b.z.p, &big, sizeof big); /* so does a copy from the host */
        o->add(o, b.z.p, b.x.p, N);
        o->argmax(o, b.z.p, N, 1, 1, &val, &id);
        ck_assert(val == 8 && id == 0);
        o->graph_end(o);
    }
    expect(&b, 3, 6, 8, 0, 9);
    /* memory that goes while launches that read it are held back */
    struct buf gone;
    OK(o->mem_new(o, &gone, N * 4, "to be freed"));
    o->copy(o, gone.p, b.x.p, N * 4);
    o->graph_begin(o, 2);
    o->add(o, b.y.p, gone.p, N);
    o->mem_free(o, &gone);
    o->graph_end(o);
    ck_assert(first_of(&b, &b.y) == 7);
    bench_close(&b);
}
END_TEST

/* more launches than a graph takes, more staged than its piece holds, more shapes than are kept */
START_TEST(large_regions_and_many)
{
    struct bench b = {0};
    struct ops *o = &b.o;
    enum { MANY = 2000, SHAPES = 300 };
    int32_t from[4096] = {0};
    if (no_device("no graph was made")) return;
    bench_open(&b);
    for (int again = 0; again < 3; again++) {
        o->graph_begin(o, 1);
        for (int i = 0; i < MANY; i++) o->add(o, b.y.p, b.x.p, N);
        o->graph_end(o);
    }
    ck_assert(first_of(&b, &b.y) == 3 * MANY);
    struct ops_graphs g = o->graph_counts(o);
    ck_assert_int_eq(g.started, 2 * g.made);
    ck_assert_int_eq(g.launches, 2 * MANY);
    ck_assert_int_gt(g.made, 4);
    struct buf wide;
    OK(o->mem_new(o, &wide, sizeof from * 4, "gathered rows of four"));
    for (int again = 0; again < 3; again++) {
        o->graph_begin(o, 2);
        for (int i = 0; i < 12; i++) { /* 16 KiB each, all different */
            from[0] = i;
            from[1] = again;
            o->gather_rows(o, wide.p, b.x.p, from, 4096 - 64 * (i % 2), 4);
        }
        o->graph_end(o);
        float row[8];
        o->get(o, row, wide.p, sizeof row);
        ck_assert(row[0] == 11 * 4 % 7 + 1 && row[4] == (float)(again * 4 % 7 + 1));
    }
    o->mem_free(o, &wide);
    from[0] = 0;
    g = o->graph_counts(o);
    for (uint64_t i = 0; i < 4 * SHAPES; i++) step(&b, 100 + i / 2 % SHAPES, N, from, 1);
    ck_assert(first_of(&b, &b.y) == 3 * MANY + 8 * SHAPES);
    ck_assert_int_eq(o->graph_counts(o).made, g.made + 2 * SHAPES); /* those that had made room were made again */
    bench_close(&b);
}
END_TEST

/* ---- rounds ----------------------------------------------------------------------------------------- */

static const struct way {
    const char *name, *draft; /* draft NULL: plain decoding */
    int block, n, stagger;    /* sequences, rounds between their arrivals: the batch grows and shrinks */
    enum ops_act act;
    double temperature, confidence;
    int adaptive;
} ways[] = {
    {"none", NULL, 1, 8, 3, ACT_BF16, 0, 0, 0},
    {"none, drawn", NULL, 1, 5, 2, ACT_FP32, 0.8, 0, 0},
    {"dflash", "inputs/k3-nano-dflash", 16, 8, 2, ACT_BF16, 0, 0, 0},
    {"dflash, fp32", "inputs/k3-nano-dflash", 16, 6, 0, ACT_FP32, 0, 0, 0},
    {"dflash, drawn", "inputs/k3-nano-dflash", 16, 5, 1, ACT_BF16, 1, 0, 0},
    {"dflash, narrow", "inputs/k3-nano-dflash", 5, 8, 1, ACT_BF16, 0, 0, 0},
    {"dspark", "inputs/k3-nano-dspark", 8, 8, 2, ACT_BF16, 0, 0, 0},
    {"dspark, drawn", "inputs/k3-nano-dspark", 8, 4, 1, ACT_BF16, 1, 0, 0},
    {"dspark, confident", "inputs/k3-nano-dspark", 8, 8, 1, ACT_BF16, 0, 0.6, 0},
};
enum { N_WAYS = sizeof ways / sizeof ways[0], NEW = 90 }; /* pages of 16: five or six more of them while decoding */

static void load_requests(void)
{
    struct h5 *f;
    OK(h5_open(suite_path("tests/vectors/decode_traces.h5"), 0, &f));
    for (int i = 0; i < SEQS; i++) {
        char path[64];
        snprintf(path, sizeof path, "/%s/prompt", names[i]);
        requests[i].prompt = rig_ids(f, path, &requests[i].n);
    }
    h5_close(f);
}

static void decode_way(const struct way *w, int graphs, struct spec_seq **q)
{
    struct spec_options p = options(w->block, SPEC_DRAFT);
    p.graphs = graphs;
    p.samples = w->temperature > 0;
    p.confidence = w->confidence;
    struct spec *s = open_spec(&p);
    for (int i = 0; i < w->n; i++) {
        q[i] = new_seq(i, NEW - 7 * i);
        start_seq(q[i], EOS);
        q[i]->how = (struct sampling){.temperature = w->temperature, .top_p = w->temperature > 0 ? 0.95 : 0, .seed = 3,
                                      .draws_drafts = w->temperature > 0 && w->draft && strstr(w->draft, "dspark")};
    }
    run_rounds(s, q, w->n, w->stagger);
    spec_close(s);
}

START_TEST(tokens_do_not_depend_on_graphs)
{
    const struct way *w = &ways[_i];
    struct rig_spec r = base_rig;
    struct spec_seq *plain[SEQS], *held[SEQS];
    if (no_device("no token was compared")) return;
    r.cuda = 1;
    r.act = w->act;
    r.kv = KV_BF16;
    r.no_draft = !w->draft;
    r.draws = w->temperature > 0;
    r.confidence = w->confidence > 0;
    if (w->draft) r.draft = suite_path(w->draft);
    rig_open(&rig, &r);
    load_requests();
    decode_way(w, 0, plain);
    ck_assert_int_eq(rig.o.graph_counts(&rig.o).started, 0);
    decode_way(w, 1, held);
    struct ops_graphs g = rig.o.graph_counts(&rig.o);
    int rounds = 0, tokens = 0;
    for (int i = 0; i < w->n; i++) {
        ck_assert_int_eq(held[i]->n_out, plain[i]->n_out);
        ck_assert_mem_eq(held[i]->out, plain[i]->out, (size_t)plain[i]->n_out * sizeof(int32_t));
        ck_assert_int_eq(held[i]->n_rounds, plain[i]->n_rounds);
        ck_assert_mem_eq(held[i]->round, plain[i]->round, (size_t)plain[i]->n_rounds * sizeof plain[i]->round[0]);
        ck_assert_int_eq(held[i]->stop, plain[i]->stop);
        rounds += plain[i]->n_rounds;
        tokens += plain[i]->n_out;
    }
    printf("%s: %d tokens, %d rounds; %lld made, %lld started, %lld launches, %lld changed, %lld cut\n", w->name, tokens,
           rounds, (long long)g.made, (long long)g.started, (long long)g.launches, (long long)g.changed,
           (long long)g.cut);
    ck_assert_int_gt(g.started, 0);
    ck_assert_int_lt(g.made, g.started); /* some were started again */
    for (int i = 0; i < w->n; i++) {
        drop_seq(plain[i]);
        drop_seq(held[i]);
    }
    for (int i = 0; i < SEQS; i++) mem_free(requests[i].prompt);
    rig_close(&rig);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "regions", 120);
    SUITE_TEST(tc, equal_steps_start_one_graph);
    SUITE_TEST(tc, other_functions_change_other_numbers_begin_anew);
    SUITE_TEST(tc, waits_cut_a_region);
    SUITE_TEST(tc, large_regions_and_many);
    tc = SUITE_CASE(s, "rounds", 300);
    tcase_add_loop_test(tc, tokens_do_not_depend_on_graphs, 0, N_WAYS);
}

int main(void)
{
    return suite_main_serial();
}
