/* every tensor of the golden forward passes, FP32 throughout, in both MLA forms */
#include "nano.h"

#include <math.h>
#include <stdio.h>

const char *const suite_name = "layers";

enum { MAX_ROWS = 160, MAX_RESULTS = 4096, WORST = 10 };
static const double limit = 1e-4;

struct result { char name[64]; double l2, top; }; /* relative errors: L2 norms, largest magnitudes */

struct check {
    const struct nano *m;
    struct h5 *golden;
    int t;              /* tokens */
    int n_rows;         /* positions kept in wide datasets */
    int32_t *row;
    int n;
    struct result *result;
    float margin;       /* expert sets may differ where the k-th and the next biased score are closer than this */
    int flips;          /* sets that do */
    uint8_t flipped[MAX_ROWS]; /* by token */
};

static struct nano model;

static void setup(void)
{
    nano_open(&model);
}

static void teardown(void)
{
    nano_close(&model);
}

/* errors of x (row of want row j: map[j], or j) against want [rows][cols] */
static void measure(struct check *k, const char *name, const float *x, int64_t ld, const float *want, int rows,
                    int cols, const int32_t *map)
{
    double d2 = 0, w2 = 0, dm = 0, wm = 0;
    for (int j = 0; j < rows; j++)
        for (int i = 0; i < cols; i++) {
            double w = want[(int64_t)j * cols + i], d = x[(map ? map[j] : j) * ld + i] - w;
            if (isnan(d)) d = INFINITY;
            d2 += d * d;
            w2 += w * w;
            dm = fmax(dm, fabs(d));
            wm = fmax(wm, fabs(w));
        }
    ck_assert_int_lt(k->n, MAX_RESULTS);
    ck_assert_msg(wm > 0, "%s is all zero", name);
    struct result *r = &k->result[k->n++];
    snprintf(r->name, sizeof r->name, "%s", name);
    r->l2 = sqrt(d2 / w2);
    r->top = dm / wm;
}

/* the same against a dataset that holds every token, the chosen positions, or one row of everything */
static void compare(struct check *k, const char *name, const float *x, int64_t ld, int cols)
{
    int64_t dim[H5_MAX_RANK], n = 1;
    int rank;
    float *want;
    ck_assert_int_eq(h5_read_f32(k->golden, name, dim, &rank, &want), ST_OK);
    for (int i = 0; i < rank; i++) n *= dim[i];
    int rows = (int)(n / cols);
    ck_assert_msg(n % cols == 0 && (rows == k->t || rows == k->n_rows || rows == 1), "%s holds %lld values for %d x %d",
                  name, (long long)n, k->t, cols);
    measure(k, name, x, ld, want, rows, cols, rows == k->n_rows ? k->row : NULL);
    mem_free(want);
}

static int32_t *ints(struct check *k, const char *name)
{
    int64_t dim[H5_MAX_RANK];
    int rank;
    int32_t *v;
    ck_assert_int_eq(h5_read_i32(k->golden, name, dim, &rank, &v), ST_OK);
    return v;
}

static void compare_idx(struct check *k, int layer, const int32_t *idx)
{
    char name[64];
    int64_t dim[H5_MAX_RANK];
    int rank, top = model.c.top_k;
    float *margin;
    snprintf(name, sizeof name, "/x/layer%02d/router_idx", layer);
    int32_t *want = ints(k, name);
    snprintf(name, sizeof name, "/x/layer%02d/router_margin", layer);
    ck_assert_int_eq(h5_read_f32(k->golden, name, dim, &rank, &margin), ST_OK);
    for (int j = 0; j < k->t; j++) {
        if (memcmp(want + j * top, idx + j * top, (size_t)top * sizeof *idx) == 0) continue;
        ck_assert_msg(margin[j] < k->margin, "layer %d token %d: experts differ at margin %g", layer, j,
                      (double)margin[j]);
        k->flips++;
        k->flipped[j] = 1;
    }
    mem_free(want);
    mem_free(margin);
}

static void on_value(void *ctx, const char *what, int layer, const float *x, int rows, int64_t ld, int cols)
{
    struct check *k = ctx;
    char name[64];
    ck_assert_int_eq(rows, k->t);
    if (strcmp(what, "router_idx") == 0) {
        compare_idx(k, layer, (const int32_t *)(const void *)x);
        return;
    }
    if (strcmp(what, "router_logits") == 0) { /* the golden holds the scores */
        snprintf(name, sizeof name, "/x/layer%02d/router_scores", layer);
        if (!h5_exists(k->golden, name)) return;
        float *s = calloc((size_t)rows * (size_t)cols, sizeof *s);
        for (int64_t i = 0; i < (int64_t)rows * cols; i++) s[i] = 1 / (1 + expf(-x[i]));
        compare(k, name, s, cols, cols);
        free(s);
        return;
    }
    int whole = strcmp(what, "embed") == 0 || layer == model.c.n_layers;
    if (whole)
        snprintf(name, sizeof name, "/x/%s", what);
    else
        snprintf(name, sizeof name, "/x/layer%02d/%s", layer, what);
    if (h5_exists(k->golden, name)) compare(k, name, x, ld, cols);
}

/* state, conv tails [kernel-1][q|k|v][channel] (golden: [q/k/v][kernel-1][channel]); rows were probed and are
 * read back */
static void compare_state(struct check *k, const struct nano_rank *r, int slot)
{
    const struct config *c = &model.c;
    int p = c->kda_heads * c->kda_dim, taps = c->conv_kernel - 1, t = k->t;
    int w = c->kv_rank + c->qk_rope;
    float *x = calloc((size_t)(3 * taps * p + t * w), sizeof *x);
    char name[64];
    for (int i = 0; i < c->n_layers; i++) {
        if (c->is_kda[i]) {
            snprintf(name, sizeof name, "/x/layer%02d/state", i);
            compare(k, name, state_item(&r->s, COMP_KDA, i, 0, slot), 0, p * c->kda_dim);
            const float *tail = state_item(&r->s, COMP_CONV, i, 0, slot);
            for (int a = 0; a < 3; a++)
                for (int j = 0; j < taps; j++)
                    memcpy(x + (a * taps + j) * p, tail + (j * 3 + a) * p, (size_t)p * sizeof *x);
            snprintf(name, sizeof name, "/x/layer%02d/conv_tail", i);
            compare(k, name, x, 0, 3 * taps * p);
        } else {
            for (int j = 0; j < t; j++) {
                const float *page = state_item(&r->s, COMP_MLA, i, 0, state_pages(&r->s, slot)[j / NANO_PAGE]);
                memcpy(x + j * w, page + (j % NANO_PAGE) * w, (size_t)w * sizeof *x);
            }
            snprintf(name, sizeof name, "/x/layer%02d/latent_rows", i);
            compare(k, name, x, w, w);
        }
    }
    free(x);
}

static void compare_bank(struct check *k, const struct nano_rank *r)
{
    int h = model.c.hidden, n = r->f.n_bank;
    float *x = calloc((size_t)(k->t * n * h), sizeof *x);
    for (int j = 0; j < k->t; j++)
        for (int b = 0; b < n; b++)
            memcpy(x + (j * n + b) * h, r->f.bank + ((int64_t)b * r->f.cap_rows + j) * h, (size_t)h * sizeof *x);
    compare(k, "/x/bank", x, n * h, n * h);
    free(x);
}

/* taps[t][9][hidden] in the golden; plus the last layer's, which is the output mixture */
struct taps { struct check *k; float *x; int n, seen; };

static enum status on_tap(void *ctx, int index, const float *h, int rows)
{
    struct taps *t = ctx;
    int n = model.c.hidden;
    ck_assert_int_eq(index, t->seen);
    t->seen++;
    if (index == t->n) {
        compare(t->k, "/x/out_site", h, n, n);
        return ST_OK;
    }
    for (int j = 0; j < rows; j++) memcpy(t->x + (j * t->n + index) * n, h + j * n, (size_t)n * sizeof *h);
    return ST_OK;
}

static int by_error(const void *a, const void *b)
{
    const struct result *x = a, *y = b;
    double ex = fmax(x->l2, x->top), ey = fmax(y->l2, y->top);
    return ex < ey ? 1 : ex > ey ? -1 : 0;
}

static void verdict(struct check *k, const char *what)
{
    qsort(k->result, (size_t)k->n, sizeof *k->result, by_error);
    printf("%s: %d tensors, %d near-tie expert sets differ; worst relative errors (L2, largest):\n", what, k->n,
           k->flips);
    for (int i = 0; i < WORST && i < k->n; i++)
        printf("  %-32s %.2e %.2e\n", k->result[i].name, k->result[i].l2, k->result[i].top);
    for (int i = 0; i < k->n; i++)
        ck_assert_msg(k->result[i].l2 <= limit && k->result[i].top <= limit, "%s: %s is off by %g, %g", what,
                      k->result[i].name, k->result[i].l2, k->result[i].top);
}

static const int p5_tap[] = {1, 3, 5, 6, 9, 12, 13, 14, 15, 16}; /* the golden's layer_ids, then the last layer */

static void compare_logits(struct check *k, struct nano_rank *r, int all, const char *what)
{
    int n, rank, v = model.c.vocab;
    int32_t id[MAX_ROWS];
    int64_t dim[H5_MAX_RANK];
    float *want;
    const float *logits = target_logits(r->t, &n);
    ck_assert_int_eq(n, all ? k->t : 1);
    ck_assert_int_eq(h5_read_f32(k->golden, "/x/logits", dim, &rank, &want), ST_OK);
    int both = dim[0] < n ? (int)dim[0] : n; /* p5 has all rows, the others the last */
    measure(k, "logits", logits + (n - both) * v, v, want + (dim[0] - both) * v, both, v, NULL);
    mem_free(want);
    ck_assert_int_eq(target_argmax(r->t, id), ST_OK);
    int32_t *best = ints(k, "/x/argmax");
    for (int i = 0; i < n; i++)
        ck_assert_msg(id[i] == best[k->t - n + i], "%s: position %d: token %d, golden %d", what, k->t - n + i, id[i],
                      best[k->t - n + i]);
    mem_free(best);
}

static const struct golden_case { const char *file; enum batch_kind kind; int absorbed; } golden_case[] = {
    {"p5", BATCH_PREFILL, 0},   {"p5", BATCH_PREFILL, 1},   {"p5", BATCH_DECODE, 0},
    {"p37", BATCH_PREFILL, 0},  {"p37", BATCH_PREFILL, 1},  {"p37", BATCH_DECODE, 0},
    {"p150", BATCH_PREFILL, 0}, {"p150", BATCH_PREFILL, 1}, {"p150", BATCH_DECODE, 0},
};

START_TEST(every_golden_tensor)
{
    const struct golden_case *g = &golden_case[_i];
    struct check k = {.m = &model, .margin = 1e-5f};
    struct nano_rank r;
    struct nano_spec spec = {.act = ACT_FP32, .kv = OPS_KV_FP32, .absorbed = g->absorbed, .max_rows = MAX_ROWS};
    char file[64], what[64];
    int n_row, p5 = strcmp(g->file, "p5") == 0;
    int32_t *id = nano_ids(g->file, &k.t);
    snprintf(file, sizeof file, "tests/vectors/layers_%s.h5", g->file);
    snprintf(what, sizeof what, "%s %s %s", g->file, batch_kind_name[g->kind], g->absorbed ? "absorbed" : "");
    ck_assert_int_eq(h5_open(suite_path(file), 0, &k.golden), ST_OK);
    k.row = ints(&k, "/x/rows");
    int64_t dim[H5_MAX_RANK];
    ck_assert_int_eq(h5_dims(k.golden, "/x/rows", dim, &n_row), ST_OK);
    k.n_rows = (int)dim[0];
    k.result = calloc(MAX_RESULTS, sizeof *k.result);
    nano_rank_open(&model, &spec, &r);

    struct taps taps = {&k, calloc((size_t)(k.t * 9 * model.c.hidden), sizeof(float)), 9, 0};
    struct tap_sink sink = {&taps, on_tap, 10, {0}, {0}};
    for (int i = 0; i < 10; i++) sink.layer[i] = p5_tap[i], sink.index[i] = i;
    struct probe probe = {&k, on_value};
    struct batch_seq q;
    int slot = nano_admit(&r);
    struct batch b = nano_batch(g->kind, &q, slot, 0, k.t, id);
    ck_assert_int_eq(target_forward(r.t, &r.s, &b, &r.f, &sink, &probe), ST_OK);
    ck_assert_int_eq(taps.seen, 10);
    if (p5) compare(&k, "/x/taps", taps.x, 9 * model.c.hidden, 9 * model.c.hidden);
    compare_state(&k, &r, slot);
    compare_bank(&k, &r);
    compare_logits(&k, &r, g->kind == BATCH_DECODE, what);
    verdict(&k, what);

    nano_rank_close(&r);
    h5_close(k.golden);
    free(taps.x);
    free(k.result);
    mem_free(k.row);
    mem_free(id);
}
END_TEST

static void on_choice(void *ctx, const char *what, int layer, const float *x, int rows, int64_t ld, int cols)
{
    if (strcmp(what, "router_idx") == 0) on_value(ctx, what, layer, x, rows, ld, cols);
}

/* --act bf16, KV rows and conv tails in BF16, as in production: within 5 % rms of the golden logits. Rounding changes
 * a few expert sets (2-3 % were measured on the reference); a row with another set is another sum: 15 %. */
START_TEST(bf16_activations_stay_close)
{
    static const char *const file[] = {"p5", "p37", "p150"};
    struct nano_spec spec = {.act = ACT_BF16, .kv = OPS_KV_BF16, .max_rows = MAX_ROWS};
    struct nano_rank r;
    nano_rank_open(&model, &spec, &r);
    for (int i = 0; i < 3; i++) {
        int rank, m, v = model.c.vocab, plain = 0;
        struct check k = {.m = &model, .margin = INFINITY};
        int32_t *id = nano_ids(file[i], &k.t);
        char path[64];
        float *want;
        int64_t dim[H5_MAX_RANK];
        struct batch_seq q;
        struct probe probe = {&k, on_choice};
        snprintf(path, sizeof path, "tests/vectors/layers_%s.h5", file[i]);
        ck_assert_int_eq(h5_open(suite_path(path), 0, &k.golden), ST_OK);
        ck_assert_int_eq(h5_read_f32(k.golden, "/x/logits", dim, &rank, &want), ST_OK);
        struct batch b = nano_batch(BATCH_DECODE, &q, nano_admit(&r), 0, k.t, id);
        ck_assert_int_eq(target_forward(r.t, &r.s, &b, &r.f, NULL, &probe), ST_OK);
        const float *x = target_logits(r.t, &m);
        for (int row = 0; row < dim[0]; row++) { /* the golden's last rows */
            int at = k.t - (int)dim[0] + row;
            double d2 = 0, w2 = 0;
            for (int j = 0; j < v; j++) {
                double w = want[row * v + j], d = x[(int64_t)at * v + j] - w;
                d2 += d * d;
                w2 += w * w;
            }
            printf("%s position %d, act bf16, kv bf16 (%s): logits off by %.2f %% rms%s\n", file[i], at, r.o.isa,
                   100 * sqrt(d2 / w2), k.flipped[at] ? ", other experts" : "");
            fflush(stdout);
            ck_assert_double_le(sqrt(d2 / w2), k.flipped[at] ? 0.15 : 0.05);
            ck_assert_double_gt(d2, 0); /* the mode does something */
            plain += !k.flipped[at];
        }
        ck_assert_msg(i > 0 || plain >= 3, "too many rows with other experts");
        int sets = k.t * (model.c.n_layers - model.c.n_dense);
        printf("%s: %d of %d expert sets differ\n", file[i], k.flips, sets);
        ck_assert_int_le(k.flips * 12, sets); /* 8 % */
        h5_close(k.golden);
        mem_free(want);
        mem_free(id);
        ck_assert_int_eq(state_release(&r.s, q.slot), ST_OK);
    }
    nano_rank_close(&r);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "goldens", 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, every_golden_tensor, 0, (int)(sizeof golden_case / sizeof *golden_case));
    SUITE_TEST(tc, bf16_activations_stay_close);
}

int main(void)
{
    return suite_main_serial();
}
