/* bench_target - rows a second of the fixture model on one rank, and where the time goes.
 *
 * Prefill of 150 tokens (chunks of 64 too), verify of 16 (one request) and 128 rows (8 requests), decode of 1 and 8.
 * The operations are wrapped by timers; linears are split by shape. Run from the project's root. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data/h5.h"
#include "model/target.h"

enum { MAX_LINES = 64, MAX_ROWS = 160, VERIFY = 128, SEQS = 8, PAGE = 16, PAGES = 12 };

static struct ops real;
static struct line { char name[32]; double s; long n; } line[MAX_LINES];
static int n_lines;

static double clock_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) /* CPU seconds of this thread: what a busy machine takes away is not counted */
{
    return clock_of(CLOCK_THREAD_CPUTIME_ID);
}

static void spent(const char *name, double t0)
{
    double s = now() - t0;
    int i = 0;
    while (i < n_lines && strcmp(line[i].name, name) != 0) i++;
    if (i == MAX_LINES) return;
    if (i == n_lines) snprintf(line[n_lines++].name, sizeof line->name, "%s", name);
    line[i].s += s;
    line[i].n++;
}

#define TIMED(op, params, ...)         \
    static void timed_##op params      \
    {                                  \
        double t0 = now();             \
        real.op(__VA_ARGS__);          \
        spent(#op, t0);                \
    }

static void timed_linear(struct ops *o, const struct mat *m, const float *x, int64_t ldx, int t, float *y, int64_t ldy)
{
    char name[32];
    double t0 = now();
    real.linear(o, m, x, ldx, t, y, ldy);
    snprintf(name, sizeof name, "linear %d x %d%s", m->n, m->k, m->exact ? " exact" : "");
    spent(name, t0);
}
TIMED(rmsnorm,
      (struct ops * o, const float *x, int64_t ldx, const float *w, float eps, int t, int n, float *y, int64_t ldy), o,
      x, ldx, w, eps, t, n, y, ldy)
TIMED(attnres, (struct ops *o, const float *bank, int64_t bs, int nb, const float *p, const float *q, float eps, int t,
                int h, float *mix, const float *w, float ne, float *normed),
      o, bank, bs, nb, p, q, eps, t, h, mix, w, ne, normed)
TIMED(conv, (struct ops *o, const float *x, int64_t ldx, const float *w, int kernel, int ch, enum ops_kv kv,
             const struct seq_rows *seq, int n, float *y), o, x, ldx, w, kernel, ch, kv, seq, n, y)
TIMED(conv_commit, (struct ops *o, void *tail, const float *x, int64_t ldx, int kernel, int ch, enum ops_kv kv, int n),
      o, tail, x, ldx, kernel, ch, kv, n)
TIMED(kda_prepare, (struct ops *o, float *qkv, float *z, int64_t ldz, float *b, int64_t ldb, const float *a,
                    const float *dt, float lb, int t, int heads, int d), o, qkv, z, ldz, b, ldb, a, dt, lb, t, heads, d)
TIMED(kda_recur, (struct ops *o, const float *qkv, const float *g, int64_t ldg, const float *beta, int64_t ldb,
                  float *state, int write, int t, int heads, int d, float *out, int64_t ldo),
      o, qkv, g, ldg, beta, ldb, state, write, t, heads, d, out, ldo)
TIMED(kda_out,
      (struct ops * o, float *x, const float *gate, int64_t ldg, const float *w, float eps, int t, int heads, int d), o,
      x, gate, ldg, w, eps, t, heads, d)
TIMED(mla_write,
      (struct ops * o, const float *x, int64_t ldx, int w, const struct paged *c, const struct seq_rows *seq, int n), o,
      x, ldx, w, c, seq, n)
TIMED(mla_attend, (struct ops *o, const float *q, int64_t ldq, const struct paged *c, int rank, int rope, float scale,
                   int heads, const struct seq_rows *seq, int n, float *z, int64_t ldz),
      o, q, ldq, c, rank, rope, scale, heads, seq, n, z, ldz)
TIMED(mla_attend_expanded, (struct ops *o, const float *q, int64_t ldq, const struct paged *c, int rank, int rope,
                            int nope, int v, const struct mat *wkv, float scale, int heads, const struct seq_rows *seq,
                            int n, float *out, int64_t ldo),
      o, q, ldq, c, rank, rope, nope, v, wkv, scale, heads, seq, n, out, ldo)
TIMED(gate, (struct ops *o, float *x, int64_t ldx, const float *g, int64_t ldg, int t, int n), o, x, ldx, g, ldg, t, n)
TIMED(situ, (struct ops *o, const float *x, int64_t ldx, float b1, float b2, int t, int n, float *y, int64_t ldy),
      o, x, ldx, b1, b2, t, n, y, ldy)
TIMED(route, (struct ops *o, const float *l, const float *b, int n, int k, float s, int t, int32_t *idx, float *w),
      o, l, b, n, k, s, t, idx, w)
TIMED(moe, (struct ops *o, const struct mat *up, const struct mat *down, int e0, int nl, int ne, const float *z,
            int latent, int cols, int groups, int merge, const int32_t *idx, const float *w, int k, float b1, float b2,
            int t, float *y, int64_t ys),
      o, up, down, e0, nl, ne, z, latent, cols, groups, merge, idx, w, k, b1, b2, t, y, ys)
TIMED(add, (struct ops *o, float *y, const float *x, int64_t n), o, y, x, n)
TIMED(copy, (struct ops *o, void *d, const void *s, size_t n), o, d, s, n)
TIMED(round_kv, (struct ops *o, float *x, int64_t n, enum ops_kv kv), o, x, n, kv)
TIMED(embed, (struct ops *o, const void *tab, int first, int n_ids, int h, const int32_t *id, int t, float *y),
      o, tab, first, n_ids, h, id, t, y)
TIMED(argmax, (struct ops *o, const float *l, int64_t ldx, int t, int n, float *v, int32_t *i), o, l, ldx, t, n, v, i)

static void wrap(struct ops *o)
{
    real = *o;
#define WRAP(op) o->op = timed_##op
    WRAP(linear), WRAP(rmsnorm), WRAP(attnres), WRAP(conv), WRAP(conv_commit), WRAP(kda_prepare), WRAP(kda_recur);
    WRAP(kda_out), WRAP(mla_write), WRAP(mla_attend), WRAP(mla_attend_expanded), WRAP(gate), WRAP(situ), WRAP(route);
    WRAP(moe), WRAP(add), WRAP(copy), WRAP(round_kv), WRAP(embed), WRAP(argmax);
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct line *)a)->s, y = ((const struct line *)b)->s;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void need(enum status st) /* the message is in the log */
{
    if (st != ST_OK) exit(1);
}

struct bench { /* the fixture model on one rank */
    struct config c;
    struct safetensors *ckpt;
    struct ops o;
    struct target *t;
    struct state s;
    struct flow f;
    int32_t *ids; /* 150 tokens */
};

static void bench_open(struct bench *b, enum ops_act act)
{
    struct tp_comm self = comm_self();
    struct target_spec ts = {.tp = 1, .ep = 1, .max_rows = MAX_ROWS, .max_verify_rows = VERIFY};
    struct layout_spec ls = {.page = PAGE, .kv = KV_BF16, .tp = 1, .n_pages = PAGES * SEQS, .n_slots = SEQS};
    struct layout l;
    struct h5 *f;
    int64_t dim[H5_MAX_RANK];
    int rank;
    need(config_load("inputs/k3-nano", &b->c));
    need(safetensors_open("inputs/k3-nano", &b->ckpt));
    need(ops_cpu_open(act, NULL, &b->o));
    ts.layers = ls.layers = (struct range){0, b->c.n_layers};
    need(target_open(&b->o, &b->c, b->ckpt, &ts, &self, &b->t));
    need(b->o.prepare(&b->o, MAX_ROWS));
    need(layout_make(&b->c, NULL, &ls, &l));
    need(state_open(&b->o, &l, PAGES, &b->s));
    need(flow_open(&b->o, &b->c, MAX_ROWS, &b->f));
    need(h5_open("tests/vectors/layers_p150.h5", 0, &f));
    need(h5_read_i32(f, "/x/ids", dim, &rank, &b->ids));
    h5_close(f);
}

static void bench_close(struct bench *b)
{
    mem_free(b->ids);
    flow_close(&b->o, &b->f);
    state_close(&b->s);
    target_close(b->t);
    b->o.close(&b->o);
    safetensors_close(b->ckpt);
}

struct job { const char *what; enum batch_kind kind; int n_seq, rows, times; };

/* a slot whose first pos positions are in place */
static int start(struct bench *b, int pos)
{
    int slot = -1;
    need(state_admit(&b->s, PAGE * PAGES, &slot));
    struct batch_seq q = {.slot = slot, .n_rows = pos};
    struct batch p = {BATCH_PREFILL, pos, 1, &q, b->ids};
    if (pos > 0) need(target_forward(b->t, &b->s, &p, &b->f, NULL, NULL));
    return slot;
}

static void show(const struct job *j, int rows, double s, double wall)
{
    double sums = 0;
    qsort(line, (size_t)n_lines, sizeof *line, by_time);
    printf("%-24s %7.1f rows per CPU second (%.1f wall), %.3f ms a call\n", j->what, j->times * rows / s,
           j->times * rows / wall, 1e3 * s / j->times);
    for (int i = 0; i < n_lines; i++) sums += line[i].s;
    for (int i = 0; i < n_lines && i < 16; i++)
        printf("    %5.1f %%  %8.1f us a call  %s\n", 100 * line[i].s / s, 1e6 * line[i].s / (double)line[i].n,
               line[i].name);
    printf("    %5.1f %%  outside the operations\n", 100 * (1 - sums / s));
}

static void measure(struct bench *b, const struct job *j)
{
    int keep[SEQS], pos = j->kind == BATCH_PREFILL ? 0 : 60;
    int32_t id[MAX_ROWS], best[MAX_ROWS];
    struct batch_seq q[SEQS];
    double s = 0, wall = 0;
    for (int i = 0; i < j->n_seq; i++) {
        keep[i] = 1;
        q[i] = (struct batch_seq){start(b, pos), i * j->rows, j->rows, pos, j->kind == BATCH_VERIFY ? j->rows - 1 : 0,
                                  j->kind == BATCH_PREFILL ? 1 : j->rows};
        memcpy(id + i * j->rows, b->ids + pos, (size_t)j->rows * sizeof *id);
    }
    struct batch rows = {j->kind, j->n_seq * j->rows, j->n_seq, q, id};
    memset(line, 0, sizeof line);
    n_lines = 0;
    for (int k = 0; k < j->times; k++) {
        double t0 = now(), w0 = clock_of(CLOCK_MONOTONIC);
        need(target_forward(b->t, &b->s, &rows, &b->f, NULL, NULL));
        need(target_argmax(b->t, best));
        if (j->kind == BATCH_VERIFY) need(target_commit(b->t, &b->s, &rows, keep));
        s += now() - t0;
        wall += clock_of(CLOCK_MONOTONIC) - w0;
    }
    show(j, rows.n_rows, s, wall);
    for (int i = 0; i < j->n_seq; i++) need(state_release(&b->s, q[i].slot));
}

int main(void)
{
    static const struct job job[] = {
        {"prefill 150, one chunk", BATCH_PREFILL, 1, 150, 6}, {"prefill 64", BATCH_PREFILL, 1, 64, 12},
        {"verify 16 (1 x 16)", BATCH_VERIFY, 1, 16, 40},      {"verify 128 (8 x 16)", BATCH_VERIFY, 8, 16, 8},
        {"decode 1", BATCH_DECODE, 1, 1, 100},                {"decode 8 (8 x 1)", BATCH_DECODE, 8, 1, 40},
    };
    for (int act = 0; act < 2; act++) {
        struct bench b;
        bench_open(&b, act ? ACT_BF16 : ACT_FP32);
        printf("== %s, act %s, %.1f MB of weights\n", b.o.isa, act ? "bf16" : "fp32",
               1e-6 * (double)target_weight_bytes(b.t));
        wrap(&b.o);
        for (size_t i = 0; i < sizeof job / sizeof *job; i++) measure(&b, &job[i]);
        bench_close(&b);
    }
    return 0;
}
