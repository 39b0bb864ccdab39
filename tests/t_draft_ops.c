#include "ops_kit.h"

const char *const suite_name = "draft_ops";

START_TEST(rope_meets_the_golden)
{
    enum { T = 6, H = 16, D = 32 };
    struct h5 *f = kit_golden();
    float *x = kit_f32(f, "rope", "in", T * H * D), *want = kit_f32(f, "rope", "out", T * H * D);
    int32_t *pos = kit_i32(f, "rope", "pos", T);
    double theta;
    ck_assert_int_eq(h5_get_real(f, "/rope/out", "theta", &theta), ST_OK);
    cpu_rope(kit_ops(), x, H * D, pos, T, H, D, theta);
    KIT_WITHIN("rope", kit_err(x, want, T * H * D), 1e-6);
    mem_free(x), mem_free(want), mem_free(pos);
    h5_close(f);
}
END_TEST

START_TEST(rope_rotates_pairs_at_far_positions)
{
    static const int32_t pos[] = {0, 1, 1048575, 77};
    static const int dims[] = {2, 6, 32, 40, 128};
    for (int k = 0; k < 5; k++) {
        int d = dims[k], heads = 3, ld = heads * d + 2, half = d / 2;
        float *x = kit_rand((uint64_t)k, (size_t)(4 * ld), -2, 2), *y = kit_copy(x, (size_t)(4 * ld));
        cpu_rope(kit_ops(), y, ld, pos, 4, heads, d, 50000);
        for (int t = 0; t < 4; t++) {
            for (int i = 0; i < heads * half; i++) {
                const float *v = x + t * ld + i / half * d + i % half, *r = y + (v - x);
                double a = pos[t] * pow(50000, -2.0 * (i % half) / d);
                ck_assert_double_le(fabs(r[0] - (v[0] * cos(a) - v[half] * sin(a))), 1e-6);
                ck_assert_double_le(fabs(r[half] - (v[half] * cos(a) + v[0] * sin(a))), 1e-6);
            }
            ck_assert(y[t * ld + heads * d] == x[t * ld + heads * d]);
        }
        ck_assert_mem_eq(y, x, (size_t)(heads * d) * sizeof *x); /* position 0 is the identity */
        mem_free(x), mem_free(y);
    }
}
END_TEST

START_TEST(scaled_rope_takes_any_angles)
{
    static const int32_t pos[] = {0, 1, 1048575, 77};
    static const int dims[] = {2, 6, 32, 40, 256};
    for (int k = 0; k < 5; k++) {
        int d = dims[k], heads = 3, ld = heads * d + 2, half = d / 2;
        double inv[OPS_ROPE_DIM / 2], plain[OPS_ROPE_DIM / 2], amp = 1.25;
        float *x = kit_rand((uint64_t)k, (size_t)(4 * ld), -2, 2), *y = kit_copy(x, (size_t)(4 * ld)), *z = kit_copy(x, (size_t)(4 * ld));
        for (int j = 0; j < half; j++) {
            plain[j] = pow(50000, -2.0 * j / d);
            inv[j] = plain[j] / (1 + j % 5);
        }
        cpu_rope_scaled(kit_ops(), y, ld, pos, 4, heads, d, inv, amp);
        for (int t = 0; t < 4; t++) {
            for (int i = 0; i < heads * half; i++) {
                const float *v = x + t * ld + i / half * d + i % half, *r = y + (v - x);
                double a = pos[t] * inv[i % half], c = amp * cos(a), s = amp * sin(a);
                ck_assert_double_le(fabs(r[0] - (v[0] * c - v[half] * s)), 2e-6);
                ck_assert_double_le(fabs(r[half] - (v[half] * c + v[0] * s)), 2e-6);
            }
            ck_assert(y[t * ld + heads * d] == x[t * ld + heads * d]);
        }
        memcpy(y, x, (size_t)(4 * ld) * sizeof *y); /* with the plain angles it is rope, bit for bit */
        cpu_rope_scaled(kit_ops(), y, ld, pos, 4, heads, d, plain, 1);
        cpu_rope(kit_ops(), z, ld, pos, 4, heads, d, 50000);
        ck_assert_mem_eq(y, z, (size_t)(4 * ld) * sizeof *y);
        mem_free(x), mem_free(y), mem_free(z);
    }
}
END_TEST

enum { MAX_SEQ = 3 };

struct draft_case {
    int q_heads, kv_heads, d, page, window;
    enum ops_kv kv;
    int n_seq, ctx[MAX_SEQ], n_rows[MAX_SEQ]; /* committed tokens P, block rows B */
};

static const struct draft_case cases[] = {
    {16, 8, 32, 32, 0, OPS_KV_BF16, 3, {0, 37, 256}, {16, 16, 16}},
    {16, 8, 32, 32, 64, OPS_KV_BF16, 3, {150, 64, 1}, {16, 16, 16}},
    {2, 1, 32, 16, 64, OPS_KV_BF16, 3, {0, 63, 333}, {8, 16, 1}},
    {12, 3, 20, 5, 7, OPS_KV_FP32, 3, {4, 33, 128}, {16, 11, 16}},
    {4, 4, 5, 100, 1, OPS_KV_FP32, 2, {10, 99}, {3, 4}},
    {6, 2, 16, 64, 0, OPS_KV_FP32, 2, {65, 129}, {70, 130}},
    {8, 1, 128, 33, 100, OPS_KV_BF16, 2, {500, 40}, {16, 130}},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

struct draft_data {
    struct kit_pool k, v;
    struct seq_rows seq[MAX_SEQ];
    float *ck[MAX_SEQ], *cv[MAX_SEQ]; /* context [P][kv_heads][d], values after storage */
    float *q, *kb, *vb;               /* rows with strides */
    int t, ldq, ldk, ldv;
};

static struct draft_data fill(const struct draft_case *c, uint64_t seed)
{
    struct draft_data d = {.ldq = c->q_heads * c->d + 3, .ldk = c->kv_heads * c->d + 1, .ldv = c->kv_heads * c->d + 5};
    int w = c->kv_heads * c->d, per = 0;
    for (int s = 0; s < c->n_seq; s++)
        if (c->ctx[s] / c->page + 1 > per) per = c->ctx[s] / c->page + 1;
    d.k = kit_pool(seed, per * c->n_seq, c->page, w, c->kv);
    d.v = kit_pool(seed, per * c->n_seq, c->page, w, c->kv);
    for (int s = 0; s < c->n_seq; s++) {
        int n = c->ctx[s];
        d.seq[s] = (struct seq_rows){d.t, c->n_rows[s], n, d.k.id + s * per, NULL};
        d.t += c->n_rows[s];
        d.ck[s] = kit_rand(seed + 10 + (uint64_t)s, (size_t)(n * w), -1.5, 1.5);
        d.cv[s] = kit_rand(seed + 20 + (uint64_t)s, (size_t)(n * w), -1.5, 1.5);
        for (int p = 0, m; p < n; p += m) {
            m = 1 + (p * 5 + s) % 19;
            if (m > n - p) m = n - p;
            struct seq_rows part = {0, m, p, d.seq[s].page_id, NULL};
            cpu_kv_write(kit_ops(), d.ck[s] + p * w, w, c->kv_heads, c->d, &d.k.c, &part, 1);
            cpu_kv_write(kit_ops(), d.cv[s] + p * w, w, c->kv_heads, c->d, &d.v.c, &part, 1);
        }
        cpu_round_kv(kit_ops(), d.ck[s], n * w, c->kv);
        cpu_round_kv(kit_ops(), d.cv[s], n * w, c->kv);
    }
    d.q = kit_rand(seed + 1, (size_t)(d.t * d.ldq), -2, 2);
    d.kb = kit_rand(seed + 2, (size_t)(d.t * d.ldk), -1.5, 1.5);
    d.vb = kit_rand(seed + 3, (size_t)(d.t * d.ldv), -1.5, 1.5);
    return d;
}

static void release(const struct draft_case *c, struct draft_data *d)
{
    kit_pool_free(&d->k), kit_pool_free(&d->v);
    for (int s = 0; s < c->n_seq; s++) mem_free(d->ck[s]), mem_free(d->cv[s]);
    mem_free(d->q), mem_free(d->kb), mem_free(d->vb);
}

/* one query head of block row j, in double precision, with the masks as the notes state them */
static void naive(const struct draft_case *c, const struct draft_data *d, int s, int j, int h, double *out)
{
    int P = c->ctx[s], B = c->n_rows[s], D = c->d, row = d->seq[s].row0, kh = h / (c->q_heads / c->kv_heads);
    const float *q = d->q + (row + j) * d->ldq + h * D;
    double *e = mem_alloc((size_t)(P + B), sizeof *e, "scores"), top = -INFINITY, sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int p = 0; p < P + B; p++) {
            const float *k = p < P ? d->ck[s] + (p * c->kv_heads + kh) * D : d->kb + (row + p - P) * d->ldk + kh * D;
            int seen = c->window == 0 || (p < P ? p >= P + j - (c->window - 1)
                                                : p - P <= j && p - P >= j - (c->window - 1));
            double x = 0;
            for (int i = 0; i < D; i++) x += (double)q[i] * k[i];
            x /= sqrt(D);
            if (pass == 0 && seen) top = fmax(top, x);
            if (pass == 1) sum += e[p] = seen ? exp(x - top) : 0;
        }
    for (int i = 0; i < D; i++) {
        out[i] = 0;
        for (int p = 0; p < P + B; p++) {
            const float *v = p < P ? d->cv[s] + (p * c->kv_heads + kh) * D : d->vb + (row + p - P) * d->ldv + kh * D;
            out[i] += e[p] / sum * v[i];
        }
    }
    mem_free(e);
}

static void attend(const struct draft_case *c, const struct draft_data *d, const struct seq_rows *seq, int n_seq,
                   float *out, int64_t ldo)
{
    cpu_draft_attend(kit_ops(), d->q, d->ldq, d->kb, d->ldk, d->vb, d->ldv, &d->k.c, &d->v.c, c->q_heads, c->kv_heads,
                     c->d, c->window, seq, n_seq, out, ldo);
}

START_TEST(draft_attend_matches_double_precision)
{
    for (int i = 0; i < N_CASES; i++) {
        const struct draft_case *c = &cases[i];
        struct draft_data d = fill(c, (uint64_t)i * 50);
        int w = c->q_heads * c->d, ldo = w + 4;
        float *out = kit_nan((size_t)(d.t * ldo)), *alone = kit_nan((size_t)(d.t * ldo));
        double worst = 0, *want = mem_alloc((size_t)c->d, sizeof *want, "ref");
        attend(c, &d, d.seq, c->n_seq, out, ldo);
        for (int s = 0; s < c->n_seq; s++) {
            attend(c, &d, &d.seq[s], 1, alone, ldo); /* one sequence per call: the same bits */
            for (int j = 0; j < c->n_rows[s]; j++)
                for (int h = 0; h < c->q_heads; h++) {
                    naive(c, &d, s, j, h, want);
                    worst = fmax(worst, kit_errd(out + (d.seq[s].row0 + j) * ldo + h * c->d, want, (size_t)c->d));
                }
        }
        KIT_SAME(alone, out, d.t * ldo);
        for (int r = 0; r < d.t; r++)
            for (int k = w; k < ldo; k++) ck_assert(out[r * ldo + k] != out[r * ldo + k]);
        char what[80];
        snprintf(what, sizeof what, "heads %d/%d d %d page %d window %d", c->q_heads, c->kv_heads, c->d, c->page, c->window);
        KIT_WITHIN(what, worst, 1e-5);
        mem_free(out), mem_free(alone), mem_free(want);
        release(c, &d);
    }
}
END_TEST

/* context before every window may be gone: poisoned pages change nothing */
START_TEST(rows_before_the_window_are_not_read)
{
    const struct draft_case c = {4, 2, 16, 8, 20, OPS_KV_FP32, 1, {150}, {6}};
    struct draft_data d = fill(&c, 3);
    float *a = kit_nan(6 * 64), *b = kit_nan(6 * 64);
    attend(&c, &d, d.seq, 1, a, 64);
    for (int p = 0; p < 131 / 8; p++) { /* first visible position: 150 - 19 */
        memset((char *)d.k.c.base + d.seq[0].page_id[p] * d.k.c.stride, 0xff, (size_t)d.k.c.stride);
        memset((char *)d.v.c.base + d.seq[0].page_id[p] * d.v.c.stride, 0xff, (size_t)d.v.c.stride);
    }
    attend(&c, &d, d.seq, 1, b, 64);
    KIT_SAME(b, a, 6 * 64);
    for (int i = 0; i < 6 * 64; i++) ck_assert(a[i] == a[i]);
    mem_free(a), mem_free(b);
    release(&c, &d);
}
END_TEST

/* kv heads alone, as a tensor-parallel rank sees them, from a pool of its own */
START_TEST(a_head_alone_gives_the_same_bits)
{
    const struct draft_case c = {8, 4, 32, 16, 64, OPS_KV_BF16, 1, {100}, {16}};
    struct draft_data d = fill(&c, 4);
    float *all = kit_nan(16 * 256), *part = kit_nan(16 * 256);
    attend(&c, &d, d.seq, 1, all, 256);
    struct kit_pool k = kit_pool(9, 13, 8, 32, OPS_KV_BF16), v = kit_pool(9, 13, 8, 32, OPS_KV_BF16);
    struct seq_rows ctx = {0, 100, 0, k.id, NULL}, blk = {0, 16, 100, k.id, NULL};
    for (int h = 0; h < 4; h++) {
        cpu_kv_write(kit_ops(), d.ck[0] + h * 32, 128, 1, 32, &k.c, &ctx, 1);
        cpu_kv_write(kit_ops(), d.cv[0] + h * 32, 128, 1, 32, &v.c, &ctx, 1);
        cpu_draft_attend(kit_ops(), d.q + h * 64, d.ldq, d.kb + h * 32, d.ldk, d.vb + h * 32, d.ldv, &k.c, &v.c, 2, 1, 32,
                         64, &blk, 1, part + h * 64, 256);
    }
    KIT_SAME(part, all, 16 * 256);
    kit_pool_free(&k), kit_pool_free(&v);
    mem_free(all), mem_free(part);
    release(&c, &d);
}
END_TEST

START_TEST(pages_are_head_major_and_nothing_else_is_written)
{
    enum { H = 3, D = 5, PAGE = 4, N = 7, POS = 2 };
    for (int kv = 0; kv < 2; kv++) {
        struct kit_pool p = kit_pool(2, 3, PAGE, H * D, (enum ops_kv)kv);
        float *x = kit_rand(1, N * H * D, -1, 1);
        struct seq_rows seq = {0, N, POS, p.id, NULL};
        int el = kv == OPS_KV_BF16 ? 2 : 4, written = 0;
        cpu_kv_write(kit_ops(), x, H * D, H, D, &p.c, &seq, 1);
        const unsigned char *base = p.c.base;
        for (int i = 0; i < N * H * D; i++) {
            int t = POS + i / (H * D), h = i / D % H, j = i % D;
            const unsigned char *at = base + p.id[t / PAGE] * p.c.stride + ((h * PAGE + t % PAGE) * D + j) * el;
            uint16_t half;
            float got, want = kit_kv(x[i], (enum ops_kv)kv);
            memcpy(&got, at, kv ? 4 : 0), memcpy(&half, at, 2);
            if (!kv) {
                uint32_t u = (uint32_t)half << 16;
                memcpy(&got, &u, 4);
            }
            ck_assert_mem_eq(&got, &want, 4);
        }
        for (int64_t i = 0; i < 3 * p.c.stride; i += el) { /* the poison is whole everywhere else */
            int poison = 1;
            for (int b = 0; b < el; b++) poison &= base[i + b] == 0xff;
            written += !poison;
        }
        ck_assert_int_eq(written, N * H * D);
        mem_free(x);
        kit_pool_free(&p);
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "draft_ops", 120);
    SUITE_TEST(tc, rope_meets_the_golden);
    SUITE_TEST(tc, rope_rotates_pairs_at_far_positions);
    SUITE_TEST(tc, scaled_rope_takes_any_angles);
    SUITE_TEST(tc, draft_attend_matches_double_precision);
    SUITE_TEST(tc, rows_before_the_window_are_not_read);
    SUITE_TEST(tc, a_head_alone_gives_the_same_bits);
    SUITE_TEST(tc, pages_are_head_major_and_nothing_else_is_written);
}

int main(void)
{
    return suite_main_serial();
}
