#include "ops_kit.h"

#include "ops/cpu/cpu_math.h"

const char *const suite_name = "kda";

/* ---- convolution ------------------------------------------------------------------------------ */

START_TEST(shortconv_meets_the_golden)
{
    enum { T = 11, C = 96 };
    struct h5 *f = kit_golden();
    float *x = kit_f32(f, "shortconv", "in", T * C), *w = kit_f32(f, "shortconv", "weight", C * 4);
    float *tail = kit_f32(f, "shortconv", "tail_in", 3 * C), *want = kit_f32(f, "shortconv", "out", T * C);
    float *tail2 = kit_f32(f, "shortconv", "tail_out", 3 * C), *x2 = kit_f32(f, "shortconv", "in_next", C);
    float *want2 = kit_f32(f, "shortconv", "out_next", C), *tail3 = kit_f32(f, "shortconv", "tail_next", 3 * C);
    float *y = kit_nan(T * C);
    struct seq_rows seq = {.n_rows = T, .state = tail};
    cpu_conv(kit_ops(), x, C, w, 4, C, OPS_KV_FP32, &seq, 1, y);
    KIT_WITHIN("shortconv", kit_err(y, want, T * C), 1e-5);
    cpu_conv_commit(kit_ops(), tail, x, C, 4, C, OPS_KV_FP32, T);
    KIT_SAME(tail, tail2, 3 * C);
    seq.n_rows = 1;
    cpu_conv(kit_ops(), x2, C, w, 4, C, OPS_KV_FP32, &seq, 1, y);
    KIT_WITHIN("shortconv, next token", kit_err(y, want2, C), 1e-5);
    cpu_conv_commit(kit_ops(), tail, x2, C, 4, C, OPS_KV_FP32, 1);
    KIT_SAME(tail, tail3, 3 * C);
    mem_free(x), mem_free(w), mem_free(tail), mem_free(want), mem_free(tail2), mem_free(x2), mem_free(want2);
    mem_free(tail3), mem_free(y);
    h5_close(f);
}
END_TEST

/* several sequences in one call, any split of a sequence, and rows alone: the same bits */
START_TEST(conv_does_not_depend_on_the_cut)
{
    static const struct {
        int kernel, ch, gap;
        enum ops_kv kv;
    } set[] = {{4, 96, 5, OPS_KV_BF16}, {4, 33, 0, OPS_KV_FP32}, {2, 16, 1, OPS_KV_BF16}, {7, 5, 0, OPS_KV_BF16},
               {1, 40, 0, OPS_KV_FP32}, {12, 19, 3, OPS_KV_FP32}};
    static const int len[3] = {9, 1, 4};
    for (size_t s = 0; s < sizeof set / sizeof set[0]; s++) {
        int K = set[s].kernel, ch = set[s].ch, ldx = ch + set[s].gap, T = 14, el = set[s].kv == OPS_KV_BF16 ? 2 : 4;
        size_t n_tail = (size_t)(K - 1) * (size_t)ch;
        float *x = kit_rand(s, (size_t)(T * ldx), -2, 2), *w = kit_rand(s + 20, (size_t)(ch * K), -1, 1);
        float *init = kit_rand(s + 40, 3 * n_tail, -2, 2), *y = kit_nan((size_t)(T * ch)), *one = kit_nan((size_t)ch);
        cpu_round_kv(kit_ops(), x, T * ldx, set[s].kv);
        char *tail[3], *step[3];
        struct seq_rows seq[3];
        for (int i = 0, row = 0; i < 3; row += len[i], i++) {
            tail[i] = mem_alloc(n_tail + 1, 4, "tail"), step[i] = mem_alloc(n_tail + 1, 4, "tail");
            cpu_conv_commit(kit_ops(), tail[i], init + (size_t)i * n_tail, ch, K, ch, set[s].kv, K - 1);
            memcpy(step[i], tail[i], n_tail * (size_t)el);
            seq[i] = (struct seq_rows){.row0 = row, .n_rows = len[i], .state = tail[i]};
        }
        cpu_conv(kit_ops(), x, ldx, w, K, ch, set[s].kv, seq, 3, y);
        for (int i = 0; i < 3; i++) {
            for (int r = 0; r < len[i]; r++) {
                const float *row = x + (seq[i].row0 + r) * ldx;
                struct seq_rows q = {.n_rows = 1, .state = step[i]};
                cpu_conv(kit_ops(), row, ldx, w, K, ch, set[s].kv, &q, 1, one);
                KIT_SAME(one, y + (seq[i].row0 + r) * ch, ch);
                cpu_conv_commit(kit_ops(), step[i], row, ldx, K, ch, set[s].kv, 1);
                for (int c = 0; c < ch; c++) { /* double precision, from the rounded history */
                    double a = 0;
                    for (int j = 0; j < K; j++) {
                        int at = r + j - (K - 1);
                        float v = at < 0 ? kit_kv(init[(size_t)i * n_tail + (size_t)((at + K - 1) * ch + c)], set[s].kv)
                                         : x[(seq[i].row0 + at) * ldx + c];
                        a += (double)w[c * K + j] * v;
                    }
                    ck_assert_double_le(fabs(one[c] - a / (1 + exp(-a))), 2e-6 * (1 + fabs(a)));
                }
            }
            cpu_conv_commit(kit_ops(), tail[i], x + seq[i].row0 * ldx, ldx, K, ch, set[s].kv, len[i]);
            ck_assert(n_tail == 0 || !memcmp(tail[i], step[i], n_tail * (size_t)el));
            mem_free(tail[i]), mem_free(step[i]);
        }
        mem_free(x), mem_free(w), mem_free(init), mem_free(y), mem_free(one);
    }
}
END_TEST

/* ---- gates ------------------------------------------------------------------------------------ */

START_TEST(gate_meets_the_golden)
{
    enum { T = 5, H = 8, D = 32 };
    struct h5 *f = kit_golden();
    float *z = kit_f32(f, "kda_gate", "z", T * H * D), *dt = kit_f32(f, "kda_gate", "dt_bias", H * D);
    float *A = kit_f32(f, "kda_gate", "A_log", 32), *want = kit_f32(f, "kda_gate", "g_lower_bound_-5", T * H * D);
    float a[H], *qkv = kit_rand(1, T * 3 * H * D, -1, 1), *b = kit_rand(2, T * H, -9, 9);
    for (int h = 0; h < H; h++) a[h] = expf(A[h]);
    cpu_kda_prepare(kit_ops(), qkv, z, H * D, b, H, a, dt, -5, T, H, D);
    KIT_WITHIN("kda_gate lower bound", kit_err(z, want, T * H * D), 1e-5);
    mem_free(z), mem_free(dt), mem_free(A), mem_free(want), mem_free(qkv), mem_free(b);
    h5_close(f);
}
END_TEST

START_TEST(prepare_and_out_match_double_precision)
{
    static const struct {
        int t, heads, d, gap;
    } set[] = {{3, 8, 32, 4}, {2, 3, 5, 1}, {1, 1, 128, 0}, {2, 2, 33, 7}};
    for (size_t s = 0; s < sizeof set / sizeof set[0]; s++) {
        int t = set[s].t, H = set[s].heads, d = set[s].d, w = H * d, ldz = w + set[s].gap, ldb = H + set[s].gap;
        float *x = kit_rand(s, (size_t)(t * 3 * w), -3, 3), *z = kit_rand(s + 9, (size_t)(t * ldz), -30, 30);
        float *b = kit_rand(s + 19, (size_t)(t * ldb), -20, 20), *a = kit_rand(s + 29, (size_t)H, 0.01, 16);
        float *dt = kit_rand(s + 39, (size_t)w, -2, 2), *ow = kit_rand(s + 49, (size_t)d, -2, 2);
        for (int i = 0; i < d; i++) x[i] = 0; /* a zero query stays zero */
        float *y = kit_copy(x, (size_t)(t * 3 * w)), *g = kit_copy(z, (size_t)(t * ldz)),
              *bb = kit_copy(b, (size_t)(t * ldb));
        cpu_kda_prepare(kit_ops(), y, g, ldz, bb, ldb, a, dt, -5, t, H, d);
        for (int i = 0; i < t * 3 * w; i++) {
            int part = i / w % 3;
            const float *head = x + i / d * d;
            double ss = 0;
            for (int c = 0; c < d; c++) ss += (double)head[c] * head[c];
            double want = part == 2 ? x[i] : x[i] / sqrt(ss + 1e-6) * (part == 0 ? pow(d, -0.5) : 1);
            ck_assert_double_le(fabs(y[i] - want), 1e-6 * fabs(want));
        }
        for (int i = 0; i < t * w; i++) {
            int at = i / w * ldz + i % w, h = i % w / d;
            double want = -5 / (1 + exp(-(double)a[h] * ((double)z[at] + dt[i % w])));
            ck_assert_double_le(fabs(g[at] - want), 1e-4 * fabs(want) + 1e-37); /* arguments up to 500 */
            ck_assert(g[at] <= 0 && g[at] >= -5);
        }
        for (int i = 0; i < t * H; i++) {
            int at = i / H * ldb + i % H;
            ck_assert_double_le(fabs(bb[at] - 1 / (1 + exp(-(double)b[at]))), 4e-7);
        }
        KIT_SAME(g + w, z + w, set[s].gap);
        KIT_SAME(bb + H, b + H, set[s].gap); /* gaps stay */
        float *o = kit_copy(x, (size_t)(t * w));
        cpu_kda_out(kit_ops(), o, z, ldz, ow, 1e-5f, t, H, d);
        for (int i = 0; i < t * w; i++) {
            double ss = 0;
            for (int c = 0; c < d; c++) ss += (double)x[i / d * d + c] * x[i / d * d + c];
            double want = x[i] / sqrt(ss / d + 1e-5) * ow[i % d] / (1 + exp(-(double)z[i / w * ldz + i % w]));
            ck_assert_double_le(fabs(o[i] - want), 2e-6 * fabs(want) + 1e-30);
        }
        mem_free(x), mem_free(z), mem_free(b), mem_free(a), mem_free(dt), mem_free(ow), mem_free(y), mem_free(g);
        mem_free(bb), mem_free(o);
    }
}
END_TEST

/* ---- recurrence and chunks --------------------------------------------------------------------- */

struct kda_case {
    int t, heads, d;
    float *qkv, *g, *beta, *state;
};

static void case_free(struct kda_case *c)
{
    mem_free(c->qkv), mem_free(c->g), mem_free(c->beta), mem_free(c->state);
}

static struct kda_case case_golden(struct h5 *f, const char *group, int d)
{
    struct kda_case c = {.t = 53, .heads = 3, .d = d};
    int w = 3 * d;
    c.qkv = kit_nan((size_t)(c.t * 3 * w));
    c.g = kit_f32(f, group, "g", c.t * w);
    c.beta = kit_f32(f, group, "beta", c.t * 3);
    c.state = kit_f32(f, group, "state_in", 3 * d * d);
    static const char *const name[] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++) {
        float *x = kit_f32(f, group, name[i], c.t * w);
        for (int t = 0; t < c.t; t++) memcpy(c.qkv + (t * 3 + i) * w, x + t * w, (size_t)w * sizeof *x);
        mem_free(x);
    }
    return c;
}

/* g_lo, g_hi: range of the log decay */
static struct kda_case case_random(uint64_t seed, int t, int heads, int d, double g_lo, double g_hi)
{
    struct kda_case c = {.t = t, .heads = heads, .d = d};
    size_t w = (size_t)(heads * d), n = (size_t)t * w;
    c.qkv = kit_rand(seed, 3 * n, -1, 1);
    c.g = kit_rand(seed + 1, n, g_lo, g_hi);
    c.beta = kit_rand(seed + 2, (size_t)(t * heads), 0, 1);
    c.state = kit_rand(seed + 3, w * (size_t)d, -0.5, 0.5);
    for (size_t i = 0; i < 3 * (size_t)t * (size_t)heads; i++) { /* unit keys and queries, as the model makes them */
        double ss = 1e-6;
        if (i / (size_t)heads % 3 == 2) continue;
        for (int j = 0; j < d; j++) ss += (double)c.qkv[i * (size_t)d + (size_t)j] * c.qkv[i * (size_t)d + (size_t)j];
        for (int j = 0; j < d; j++) c.qkv[i * (size_t)d + (size_t)j] /= (float)sqrt(ss);
    }
    return c;
}

/* the recurrence in double precision */
static void naive(const struct kda_case *c, double *out, double *s)
{
    int d = c->d, w = c->heads * d;
    for (int i = 0; i < w * d; i++) s[i] = c->state[i];
    for (int t = 0; t < c->t; t++)
        for (int h = 0; h < c->heads; h++) {
            const float *q = c->qkv + t * 3 * w + h * d, *k = q + w, *v = k + w, *g = c->g + t * w + h * d;
            double *S = s + h * d * d;
            for (int i = 0; i < d; i++)
                for (int j = 0; j < d; j++) S[i * d + j] *= exp(g[i]);
            for (int j = 0; j < d; j++) {
                double e = 0, o = 0;
                for (int i = 0; i < d; i++) e += S[i * d + j] * k[i];
                for (int i = 0; i < d; i++) S[i * d + j] += k[i] * (c->beta[t * c->heads + h] * (v[j] - e));
                for (int i = 0; i < d; i++) o += S[i * d + j] * q[i];
                out[t * w + h * d + j] = o;
            }
        }
}

START_TEST(recurrence_meets_the_goldens)
{
    static const char *const group[] = {"kda_mixed", "kda_hard", "kda_slow", "kda_64"};
    struct h5 *f = kit_golden();
    for (int i = 0; i < 4; i++) {
        struct kda_case c = case_golden(f, group[i], i == 3 ? 64 : 32);
        int w = 3 * c.d, n = c.t * w, ns = w * c.d;
        float *want = kit_f32(f, group[i], "out_recurrent", n), *s53 = kit_f32(f, group[i], "state_recurrent", ns);
        float *s17 = kit_f32(f, group[i], "state_after_token16", ns), *out = kit_nan((size_t)n);
        float *chunk = kit_f32(f, group[i], "out_chunk16", n), *sc = kit_f32(f, group[i], "state_chunk16", ns);
        float *s = kit_copy(c.state, (size_t)ns);
        printf("  %s\n", group[i]);
        cpu_kda_recur(kit_ops(), c.qkv, c.g, w, c.beta, 3, s, 1, 17, 3, c.d, out, w);
        KIT_WITHIN("state after 17 tokens", kit_err(s, s17, (size_t)ns), 1e-5);
        cpu_kda_recur(kit_ops(), c.qkv + 17 * 3 * w, c.g + 17 * w, w, c.beta + 17 * 3, 3, s, 1, 36, 3, c.d,
                      out + 17 * w, w);
        KIT_WITHIN("recurrent output", kit_err(out, want, (size_t)n), 1e-5);
        KIT_WITHIN("recurrent state", kit_err(s, s53, (size_t)ns), 1e-5);
        for (int size = 16; size <= 64; size += 16) { /* 53: a tail of 5 rows in the last tile */
            memcpy(s, c.state, (size_t)ns * sizeof *s), memset(out, 0xff, (size_t)n * sizeof *out);
            cpu_kda_chunk(kit_ops(), c.qkv, c.g, w, c.beta, 3, s, c.t, 3, c.d, size, out, w);
            KIT_WITHIN("chunked output", kit_err(out, chunk, (size_t)n), 1e-5);
            KIT_WITHIN("chunked state", kit_err(s, sc, (size_t)ns), 1e-5);
            KIT_WITHIN("chunked against recurrent", kit_err(out, want, (size_t)n), 1e-5);
        }
        mem_free(want), mem_free(s53), mem_free(s17), mem_free(out), mem_free(chunk), mem_free(sc), mem_free(s);
        case_free(&c);
    }
    h5_close(f);
}
END_TEST

START_TEST(both_forms_match_double_precision)
{
    static const struct {
        int t, heads, d, chunk;
        double lo, hi;
    } set[] = {{64, 2, 32, 64, -5, -4.99}, {200, 1, 32, 64, -5, -4.9}, {130, 2, 16, 128, -5, 0},
               {64, 1, 128, 64, -0.01, 0},
               {33, 2, 17, 32, -5, 0},     {1, 1, 5, 16, -5, 0},       {15, 3, 8, 16, -3, 0},    {16, 1, 40, 48, -1, 0},
               {17, 2, 33, 16, -5, -1},    {49, 1, 24, 48, 0, 0},      {96, 1, 64, 96, -5, -5}};
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) {
        struct kda_case c = case_random(10 * i, set[i].t, set[i].heads, set[i].d, set[i].lo, set[i].hi);
        int w = c.heads * c.d;
        size_t n = (size_t)(c.t * w), ns = (size_t)(w * c.d);
        double *ref = mem_alloc(n + ns, sizeof *ref, "ref");
        float *out = kit_nan(n), *s = kit_copy(c.state, ns), *only;
        naive(&c, ref, ref + n);
        printf("  t %d d %d chunk %d g in [%g, %g]\n", c.t, c.d, set[i].chunk, set[i].lo, set[i].hi);
        cpu_kda_recur(kit_ops(), c.qkv, c.g, w, c.beta, c.heads, s, 1, c.t, c.heads, c.d, out, w);
        KIT_WITHIN("recurrent output", kit_errd(out, ref, n), 1e-5);
        KIT_WITHIN("recurrent state", kit_errd(s, ref + n, ns), 1e-5);
        memcpy(s, c.state, ns * sizeof *s), memset(out, 0xff, n * sizeof *out);
        cpu_kda_chunk(kit_ops(), c.qkv, c.g, w, c.beta, c.heads, s, c.t, c.heads, c.d, set[i].chunk, out, w);
        KIT_WITHIN("chunked output", kit_errd(out, ref, n), 1e-5);
        KIT_WITHIN("chunked state", kit_errd(s, ref + n, ns), 1e-5);
        only = kit_copy(c.state, ns);
        cpu_kda_chunk(kit_ops(), c.qkv, c.g, w, c.beta, c.heads, only, c.t, c.heads, c.d, set[i].chunk, NULL, 0);
        KIT_SAME(only, s, ns);
        mem_free(ref), mem_free(out), mem_free(s), mem_free(only);
        case_free(&c);
    }
}
END_TEST

/* verification on a scratch state, then a replay of the accepted rows: bits of single steps */
START_TEST(verify_and_replay_equal_single_steps)
{
    static const int dims[] = {32, 33, 64, 7, 16, 48};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        struct kda_case c = case_random(i, 16, 3, dims[i], -5, 0);
        int w = c.heads * c.d, ldo = w + 3;
        size_t ns = (size_t)(w * c.d);
        float *step = kit_copy(c.state, ns), *replay = kit_copy(c.state, ns), *held = kit_copy(c.state, ns);
        float *block = kit_nan((size_t)(16 * ldo)), *one = kit_nan((size_t)w);
        cpu_kda_recur(kit_ops(), c.qkv, c.g, w, c.beta, c.heads, held, 0, 16, c.heads, c.d, block, ldo);
        KIT_SAME(held, c.state, ns);
        for (int t = 0; t < 16; t++) {
            const float *x = c.qkv + t * 3 * w, *g = c.g + t * w, *b = c.beta + t * c.heads;
            cpu_kda_recur(kit_ops(), x, g, w, b, c.heads, step, 1, 1, c.heads, c.d, one, w);
            KIT_SAME(one, block + t * ldo, w);
            ck_assert(block[t * ldo + w] != block[t * ldo + w]);
            memcpy(replay, c.state, ns * sizeof *replay);
            cpu_kda_recur(kit_ops(), c.qkv, c.g, w, c.beta, c.heads, replay, 1, t + 1, c.heads, c.d, NULL, 0);
            KIT_SAME(replay, step, ns);
        }
        mem_free(step), mem_free(replay), mem_free(held), mem_free(block), mem_free(one);
        case_free(&c);
    }
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "kda", 120);
    SUITE_TEST(tc, shortconv_meets_the_golden);
    SUITE_TEST(tc, conv_does_not_depend_on_the_cut);
    SUITE_TEST(tc, gate_meets_the_golden);
    SUITE_TEST(tc, prepare_and_out_match_double_precision);
    SUITE_TEST(tc, recurrence_meets_the_goldens);
    SUITE_TEST(tc, both_forms_match_double_precision);
    SUITE_TEST(tc, verify_and_replay_equal_single_steps);
}

int main(void)
{
    return suite_main_serial();
}
