#include "ops_kit.h"

#include "ops/cpu/cpu_math.h"

const char *const suite_name = "mla";

enum { MAX_SEQ = 4 };

/* A batch of sequences over one pool: shapes, rows, and a cache filled through cpu_mla_write. */
struct mla_case {
    int rank, rope, heads, page;
    enum ops_kv kv;
    int n_seq, ctx[MAX_SEQ], n_rows[MAX_SEQ]; /* tokens before the rows, rows */
};

struct mla_data {
    struct kit_pool pool[MAX_SEQ]; /* one table per sequence; pools differ only in the order of pages */
    struct seq_rows seq[MAX_SEQ];
    float *rows[MAX_SEQ];          /* [ctx + n_rows][width], values after storage */
    int t;
};

static const struct mla_case cases[] = {
    {64, 16, 8, 16, OPS_KV_BF16, 3, {0, 150, 63}, {16, 5, 2}},
    {64, 16, 1, 32, OPS_KV_BF16, 4, {511, 64, 0, 10}, {1, 16, 1, 3}},
    {64, 16, 3, 7, OPS_KV_FP32, 2, {200, 127}, {9, 2}},
    {64, 16, 4, 100, OPS_KV_FP32, 2, {0, 128}, {1, 1}},
    {40, 3, 5, 1, OPS_KV_FP32, 2, {65, 3}, {3, 70}},
    {17, 0, 2, 64, OPS_KV_BF16, 1, {0}, {130}},
    {512, 64, 6, 64, OPS_KV_BF16, 1, {70}, {4}},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* All sequences share base, stride and pages, so each gets its own slice of the physical pages. */
static struct mla_data fill(const struct mla_case *c, uint64_t seed)
{
    struct mla_data d = {0};
    int width = c->rank + c->rope, per = 0;
    for (int s = 0; s < c->n_seq; s++) {
        int n = (c->ctx[s] + c->n_rows[s] + c->page - 1) / c->page;
        per = n > per ? n : per;
    }
    d.pool[0] = kit_pool(seed, per * c->n_seq, c->page, width, c->kv);
    for (int s = 0; s < c->n_seq; s++) {
        int n = c->ctx[s] + c->n_rows[s];
        d.seq[s] = (struct seq_rows){d.t, c->n_rows[s], c->ctx[s], d.pool[0].id + s * per, NULL};
        d.t += c->n_rows[s];
        d.rows[s] = kit_rand(seed + 10 + (uint64_t)s, (size_t)(n * width), -1.5, 1.5);
        for (int p = 0, k; p < n; p += k) { /* written in uneven pieces */
            k = 1 + (p * 7 + s) % 23;
            if (k > n - p) k = n - p;
            struct seq_rows part = {0, k, p, d.seq[s].page_id, NULL};
            cpu_mla_write(kit_ops(), d.rows[s] + p * width, width, width, &d.pool[0].c, &part, 1);
        }
        cpu_round_kv(kit_ops(), d.rows[s], n * width, c->kv);
    }
    return d;
}

static void release(const struct mla_case *c, struct mla_data *d)
{
    kit_pool_free(&d->pool[0]);
    for (int s = 0; s < c->n_seq; s++) mem_free(d->rows[s]);
}

/* softmax(scale q . row) over rows 0..p in double precision; z[rank] */
static void naive_row(const float *q, const float *rows, int width, int rank, int p, double scale, double *z)
{
    double *s = mem_alloc((size_t)p + 1, sizeof *s, "scores"), top = -INFINITY, sum = 0;
    for (int k = 0; k <= p; k++) {
        for (int i = 0; i < width; i++) s[k] += scale * q[i] * rows[k * width + i];
        top = fmax(top, s[k]);
    }
    for (int k = 0; k <= p; k++) sum += s[k] = exp(s[k] - top);
    for (int i = 0; i < rank; i++) {
        z[i] = 0;
        for (int k = 0; k <= p; k++) z[i] += s[k] / sum * rows[k * width + i];
    }
    mem_free(s);
}

START_TEST(absorbed_matches_double_precision_row_by_row)
{
    for (int i = 0; i < N_CASES; i++) {
        const struct mla_case *c = &cases[i];
        struct mla_data d = fill(c, (uint64_t)i * 100);
        int width = c->rank + c->rope, qw = c->heads * width, zw = c->heads * c->rank, ldq = qw + 3, ldz = zw + 2;
        float *q = kit_rand((uint64_t)i, (size_t)(d.t * ldq), -2, 2), *z = kit_nan((size_t)(d.t * ldz));
        float *one = kit_nan((size_t)zw), scale = (float)pow(width, -0.5);
        double worst = 0, *want = mem_alloc((size_t)c->rank, sizeof *want, "ref");
        cpu_mla_attend(kit_ops(), q, ldq, &d.pool[0].c, c->rank, c->rope, scale, c->heads, d.seq, c->n_seq, z, ldz);
        for (int s = 0; s < c->n_seq; s++)
            for (int r = 0; r < c->n_rows[s]; r++) {
                int row = d.seq[s].row0 + r;
                struct seq_rows alone = {0, 1, c->ctx[s] + r, d.seq[s].page_id, NULL};
                cpu_mla_attend(kit_ops(), q + row * ldq, ldq, &d.pool[0].c, c->rank, c->rope, scale, c->heads, &alone,
                               1, one, zw);
                KIT_SAME(one, z + row * ldz, zw); /* the row alone: the same bits */
                for (int k = 0; k < ldz - zw; k++) ck_assert(z[row * ldz + zw + k] != z[row * ldz + zw + k]);
                for (int h = 0; h < c->heads; h++) {
                    naive_row(q + row * ldq + h * width, d.rows[s], width, c->rank, c->ctx[s] + r, scale, want);
                    worst = fmax(worst, kit_errd(z + row * ldz + h * c->rank, want, (size_t)c->rank));
                }
            }
        char what[64];
        snprintf(what, sizeof what, "absorbed rank %d heads %d page %d", c->rank, c->heads, c->page);
        KIT_WITHIN(what, worst, 1e-5);
        mem_free(q), mem_free(z), mem_free(one), mem_free(want);
        release(c, &d);
    }
}
END_TEST

/* one head alone, as a tensor-parallel rank sees it, and another page size: the same bits */
START_TEST(heads_and_pages_do_not_matter)
{
    const struct mla_case a = {64, 16, 8, 16, OPS_KV_BF16, 2, {90, 3}, {7, 2}};
    struct mla_case b = a;
    b.page = 37;
    struct mla_data d = fill(&a, 5), e = fill(&b, 5);
    int width = 80, ldq = 8 * width, ldz = 8 * 64;
    float *q = kit_rand(6, (size_t)(9 * ldq), -1, 1), *z = kit_nan((size_t)(9 * ldz)), *y = kit_nan((size_t)(9 * ldz));
    cpu_mla_attend(kit_ops(), q, ldq, &d.pool[0].c, 64, 16, 0.1f, 8, d.seq, 2, z, ldz);
    for (int h = 0; h < 8; h++)
        cpu_mla_attend(kit_ops(), q + h * width, ldq, &e.pool[0].c, 64, 16, 0.1f, 1, e.seq, 2, y + h * 64, ldz);
    KIT_SAME(y, z, 9 * ldz);
    mem_free(q), mem_free(z), mem_free(y);
    release(&a, &d), release(&b, &e);
}
END_TEST

/* wkv [heads][nope + v][rank] in BF16, its absorbed queries and values in double precision */
START_TEST(expanded_agrees_with_absorbed)
{
    static const int shape[N_CASES][2] = {{32, 32}, {32, 32}, {16, 32}, {32, 48}, {5, 7}, {20, 9}, {128, 128}};
    for (int i = 0; i < N_CASES; i++) {
        const struct mla_case *c = &cases[i];
        struct mla_data d = fill(c, (uint64_t)i * 100);
        struct ops *o = kit_ops();
        int nope = shape[i][0], vd = shape[i][1], n = nope + vd, rank = c->rank, dk = nope + c->rope;
        int width = rank + c->rope, ldq = c->heads * dk + 1, ldo = c->heads * vd + 2, H = c->heads;
        float *w = kit_rand((uint64_t)i + 60, (size_t)(H * n * rank), -0.3, 0.3), scale = (float)pow(dk, -0.5);
        uint16_t *half = mem_alloc((size_t)(H * n * rank), 2, "wkv");
        for (int k = 0; k < H * n * rank; k++) w[k] = cpu_from_bf16(half[k] = cpu_bf16(w[k]));
        struct mat m = {0};
        ck_assert_int_eq(o->mat_new(o, &m, MAT_BF16, H * n, rank, 0, 0), ST_OK);
        o->mat_put_bf16(o, &m, 0, H * n, half, rank);
        if (o->prepare) ck_assert_int_eq(o->prepare(o, 128), ST_OK);
        float *q = kit_rand((uint64_t)i, (size_t)(d.t * ldq), -1, 1), *out = kit_nan((size_t)(d.t * ldo));
        float *one = kit_nan((size_t)(H * vd)), *qa = kit_nan((size_t)(d.t * H * width)),
              *z = kit_nan((size_t)(d.t * H * rank));
        double worst = 0, *want = mem_alloc((size_t)vd, sizeof *want, "ref");
        cpu_mla_attend_expanded(o, q, ldq, &d.pool[0].c, rank, c->rope, nope, vd, &m, scale, H, d.seq, c->n_seq, out,
                                ldo);
        for (int r = 0; r < d.t * H; r++) { /* absorbed queries */
            const float *qh = q + r / H * ldq + r % H * dk, *wk = w + r % H * n * rank;
            for (int j = 0; j < rank; j++) {
                double a = 0;
                for (int k = 0; k < nope; k++) a += (double)qh[k] * wk[k * rank + j];
                qa[r * width + j] = (float)a;
            }
            memcpy(qa + r * width + rank, qh + nope, (size_t)c->rope * sizeof *qa);
        }
        cpu_mla_attend(o, qa, H * width, &d.pool[0].c, rank, c->rope, scale, H, d.seq, c->n_seq, z, H * rank);
        for (int r = 0; r < d.t * H; r++) {
            const float *wv = w + (r % H * n + nope) * rank;
            for (int k = 0; k < vd; k++) {
                want[k] = 0;
                for (int j = 0; j < rank; j++) want[k] += (double)z[r * rank + j] * wv[k * rank + j];
            }
            worst = fmax(worst, kit_errd(out + r / H * ldo + r % H * vd, want, (size_t)vd));
        }
        char what[64];
        snprintf(what, sizeof what, "expanded and absorbed, rank %d heads %d", rank, H);
        KIT_WITHIN(what, worst, 1e-5);
        for (int s = 0; s < c->n_seq; s++)
            for (int r = 0; r < c->n_rows[s]; r += 3) {
                struct seq_rows alone = {0, 1, c->ctx[s] + r, d.seq[s].page_id, NULL};
                int row = d.seq[s].row0 + r;
                cpu_mla_attend_expanded(o, q + row * ldq, ldq, &d.pool[0].c, rank, c->rope, nope, vd, &m, scale, H,
                                        &alone, 1, one, H * vd);
                KIT_SAME(one, out + row * ldo, H * vd);
            }
        o->mat_free(o, &m);
        mem_free(w), mem_free(half), mem_free(q), mem_free(out), mem_free(one), mem_free(qa), mem_free(z),
            mem_free(want);
        release(c, &d);
    }
}
END_TEST

/* scores far apart and of any sign: the running maximum moves in every tile */
START_TEST(extreme_scores_stay_finite)
{
    enum { N = 300, W = 4 };
    struct kit_pool p = kit_pool(1, 40, 8, W, OPS_KV_FP32);
    float *x = kit_rand(3, N * W, -1, 1), q[W] = {1, 0, 0, 0}, z[3];
    double want[3];
    for (int dir = -1; dir <= 1; dir += 2) {
        for (int i = 0; i < N; i++) x[i * W] = (float)(dir * (i - 150) * 20);
        struct seq_rows all = {0, N, 0, p.id, NULL}, last = {0, 1, N - 1, p.id, NULL};
        cpu_mla_write(kit_ops(), x, W, W, &p.c, &all, 1);
        cpu_mla_attend(kit_ops(), q, W, &p.c, 3, 1, 1, 1, &last, 1, z, 3);
        naive_row(q, x, W, 3, N - 1, 1, want);
        KIT_WITHIN("scores in [-3000, 3000]", kit_errd(z, want, 3), 1e-6);
    }
    for (int i = 0; i < N; i++) x[i * W] = -INFINITY; /* no key visible at all: not a number, not silence */
    struct seq_rows all = {0, N, 0, p.id, NULL}, last = {0, 1, N - 1, p.id, NULL};
    cpu_mla_write(kit_ops(), x, W, W, &p.c, &all, 1);
    cpu_mla_attend(kit_ops(), q, W, &p.c, 3, 1, 1, 1, &last, 1, z, 3);
    ck_assert(z[0] != z[0]);
    mem_free(x);
    kit_pool_free(&p);
}
END_TEST

/* a later row that is not a number does not reach earlier rows of the same tile */
START_TEST(later_rows_are_invisible)
{
    enum { N = 20, W = 6 };
    struct kit_pool p = kit_pool(1, 3, 8, W, OPS_KV_BF16);
    float *x = kit_rand(3, N * W, -1, 1), *q = kit_rand(4, N * 2 * W, -1, 1), *a = kit_nan(N * 2 * 4),
          *b = kit_nan(N * 2 * 4);
    struct seq_rows all = {0, N, 0, p.id, NULL};
    cpu_mla_write(kit_ops(), x, W, W, &p.c, &all, 1);
    cpu_mla_attend(kit_ops(), q, 2 * W, &p.c, 4, 2, 1, 2, &all, 1, a, 8);
    for (int i = 0; i < W; i++) x[13 * W + i] = i % 2 ? NAN : INFINITY;
    cpu_mla_write(kit_ops(), x, W, W, &p.c, &all, 1);
    cpu_mla_attend(kit_ops(), q, 2 * W, &p.c, 4, 2, 1, 2, &all, 1, b, 8);
    KIT_SAME(b, a, 13 * 8);
    for (int i = 13 * 8; i < N * 8; i++) ck_assert(b[i] != b[i]);
    mem_free(x), mem_free(q), mem_free(a), mem_free(b);
    kit_pool_free(&p);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "mla", 120);
    SUITE_TEST(tc, absorbed_matches_double_precision_row_by_row);
    SUITE_TEST(tc, heads_and_pages_do_not_matter);
    SUITE_TEST(tc, expanded_agrees_with_absorbed);
    SUITE_TEST(tc, extreme_scores_stay_finite);
    SUITE_TEST(tc, later_rows_are_invisible);
}

int main(void)
{
    return suite_main_serial();
}
