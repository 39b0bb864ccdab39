/* ops_conformance_cases - the cases of ops_conformance.h, included by it. Parameters are named where a case reads them. */
#ifndef PDFLASH_TESTS_OPS_CONFORMANCE_CASES_H
#define PDFLASH_TESTS_OPS_CONFORMANCE_CASES_H

struct conf_case {
    const char *name;
    void (*run)(struct conf *c);
    int p[CONF_P];
    int split;   /* row by row is the same function */
    int product; /* inputs are rounded in act bf16 */
    int exact;   /* not a bit may differ from the CPU */
};

/* ---- dense ------------------------------------------------------------------------------------------------- */

static void conf_linear(struct conf *c)
{
    int n = c->p[0], k = c->p[1], t = c->p[2], leaf = c->p[3], exact = c->p[4], kind = c->p[5], pad = c->p[6], how = c->p[7];
    struct weights w = weights_new(kind ? MAT_MXFP4 : MAT_BF16, n, k, 9);
    struct mat m = {0};
    if (how == 2) /* scales over the whole range a weight can have, also above 1 */
        for (int64_t i = 0; i < (int64_t)n * k / 32; i++) w.scale[i] = (uint8_t)(110 + i % 25);
    if (how == 1) { /* the transpose, and rows in pieces */
        uint16_t *tr = malloc((size_t)n * (size_t)k * 2);
        for (int r = 0; r < n; r++)
            for (int i = 0; i < k; i++) tr[(int64_t)i * n + r] = w.bf16[(int64_t)r * k + i];
        conf_ok(c->o->mat_new(c->o, &m, MAT_BF16, n, k, leaf, exact));
        c->o->mat_put_bf16_t(c->o, &m, 0, n / 2, tr, n);
        c->o->mat_put_bf16(c->o, &m, n / 2, n - n / 2, w.bf16 + (int64_t)(n / 2) * k, k);
        free(tr);
    } else conf_ok(weights_mat(c->o, &m, &w, 0, n, 0, k, leaf, exact));
    float *x = conf_rand(c, (int64_t)t * (k + pad), -1, 1), *y = conf_nan(c, (int64_t)t * (n + pad));
    conf_ok(c->o->prepare(c->o, t));
    for (int r = 0, d = conf_step(c, t); r < t; r += d)
        c->o->linear(c->o, &m, x + (int64_t)r * (k + pad), k + pad, d, y + (int64_t)r * (n + pad), n + pad);
    conf_out(c, "y", y, (int64_t)t * (n + pad));
    c->o->mat_free(c->o, &m);
    weights_free(&w);
}

static void conf_embed(struct conf *c)
{
    int first = c->p[0], n = c->p[1], h = c->p[2], t = c->p[3];
    float *table = conf_rand(c, (int64_t)n * h, -1, 1), *y = conf_nan(c, (int64_t)t * h); /* any halves are BF16 numbers */
    int32_t *id = malloc((size_t)t * sizeof *id);
    for (int i = 0; i < t; i++) id[i] = first - 2 + i * 3 % (n + 4);
    for (int r = 0, d = conf_step(c, t); r < t; r += d) c->o->embed(c->o, table, first, n, h, id + r, d, y + (int64_t)r * h);
    conf_out(c, "y", y, (int64_t)t * h);
    free(id);
}

static void conf_elementwise(struct conf *c)
{
    int n = c->p[0], t = c->p[1], pad = c->p[2];
    int64_t all = (int64_t)t * (n + pad), two = (int64_t)t * (2 * n + pad);
    float *a = conf_rand(c, all, -3, 3), *g = conf_rand(c, all, -9, 9), *x = conf_rand(c, two, -1000, 1000);
    float *s = conf_nan(c, all), *u = conf_nan(c, all), *r16 = conf_rand(c, all, -3, 3), *gated = conf_rand(c, all, -3, 3);
    for (int r = 0, d = conf_step(c, t); r < t; r += d) {
        int64_t at = (int64_t)r * (n + pad), at2 = (int64_t)r * (2 * n + pad);
        c->o->add(c->o, a + at, g + at, (int64_t)d * (n + pad));
        c->o->gate(c->o, gated + at, n + pad, g + at, n + pad, d, n);
        c->o->situ(c->o, x + at2, 2 * n + pad, 4, 25, d, n, s + at, n + pad);
        c->o->swiglu(c->o, x + at2, 2 * n + pad, d, n, u + at, n + pad);
        c->o->round_kv(c->o, r16 + at, (int64_t)d * (n + pad), OPS_KV_BF16);
    }
    conf_out(c, "add", a, all);
    conf_out(c, "gate", gated, all);
    conf_out(c, "situ", s, all);
    conf_out(c, "swiglu", u, all);
    conf_out(c, "round_kv", r16, all);
}

static void conf_tree(struct conf *c)
{
    int leaves = c->p[0], n = c->p[1];
    float *src = conf_rand(c, (int64_t)leaves * (n + 3), -3, 3), *y = conf_nan(c, n);
    int order[64];
    for (int i = 0; i < leaves; i++) order[i] = (i * 5 + 2) % leaves;
    c->o->tree_add(c->o, y, src, n + 3, leaves % 5 ? order : NULL, leaves, n);
    c->o->tree_add(c->o, src, src, n + 3, NULL, leaves, n); /* into the first leaf */
    conf_out(c, "y", y, n);
    conf_out(c, "in place", src, n);
}

static void conf_copy(struct conf *c)
{
    int64_t n = c->p[0];
    float *a = conf_rand(c, n, -1, 1), *b = conf_nan(c, n), *z = conf_nan(c, n);
    c->o->copy(c->o, b + 1, a + 1, (size_t)(n - 2) * 4);
    c->o->zero(c->o, z + 1, (size_t)(n - 2) * 4);
    conf_out(c, "copy", b, n);
    conf_out(c, "zero", z, n);
}

/* ---- norms --------------------------------------------------------------------------------------------------- */

static void conf_norm(struct conf *c)
{
    int n = c->p[0], t = c->p[1], pad = c->p[2], heads = c->p[3], big = c->p[4];
    int64_t ld = (int64_t)heads * n + pad;
    double top = big ? 3e38 : 3;
    float *x = conf_rand(c, t * ld, -top, top), *w = conf_rand(c, n, 0.5, 1.5), *y = conf_nan(c, t * ld);
    for (int r = 0, d = conf_step(c, t); r < t; r += d) {
        c->o->rmsnorm(c->o, x + r * ld, ld, w, 1e-5f, d, n, y + r * ld, ld);
        c->o->head_norm(c->o, x + r * ld, ld, w, 1e-6f, d, heads, n);
    }
    conf_out(c, "rmsnorm", y, t * ld);
    conf_out(c, "head_norm", x, t * ld);
}

static void conf_attnres(struct conf *c)
{
    int h = c->p[0], t = c->p[1], n_bank = c->p[2], big = c->p[3], what = c->p[4]; /* what: 1 mix, 2 normed, 3 both */
    int64_t plane = (int64_t)(t + 1) * h;
    double top = big ? 1e30 : 2;
    float *bank = conf_rand(c, plane * (n_bank ? n_bank : 1), -top, top), *prefix = conf_rand(c, (int64_t)t * h, -top, top);
    float *q = conf_rand(c, h, -1, 1), *w = conf_rand(c, h, 0.5, 1.5), *mix = conf_nan(c, (int64_t)t * h), *normed = conf_nan(c, (int64_t)t * h);
    for (int r = 0, d = conf_step(c, t); r < t; r += d) {
        int64_t at = (int64_t)r * h;
        c->o->attnres(c->o, bank + at, plane, n_bank, prefix + at, q, 1e-5f, d, h, what & 1 ? mix + at : NULL, w, 1e-5f,
                      what & 2 ? normed + at : NULL);
    }
    conf_out(c, "mix", mix, (int64_t)t * h);
    conf_out(c, "normed", normed, (int64_t)t * h);
}

/* ---- KDA ------------------------------------------------------------------------------------------------------- */

static void conf_conv(struct conf *c)
{
    int ch = c->p[0], rows = c->p[1], kernel = c->p[2], kv = c->p[3], n_seq = c->p[4], pad = c->p[5];
    struct conf_seqs q = conf_seqs(n_seq, rows, 0, 16);
    int64_t ld = ch + pad, n_tail = (int64_t)(kernel - 1) * ch + 1;
    float *x = conf_rand(c, q.rows * ld, -2, 2), *w = conf_rand(c, (int64_t)ch * kernel, -1, 1), *y = conf_nan(c, (int64_t)q.rows * ch);
    float *host = conf_host(c, n_tail * n_seq, -2, 2);
    uint16_t *half = (uint16_t *)host; /* a BF16 tail: the high halves of the first numbers */
    for (int64_t i = 0; !kv && i < n_tail * n_seq; i++) memcpy(&half[i], (char *)&host[i] + 2, 2);
    float *tail = conf_put(c, host, n_tail * n_seq);
    free(host);
    if (!kv) c->o->round_kv(c->o, x, q.rows * ld, OPS_KV_BF16);
    for (int i = 0; i < n_seq; i++) q.s[i].state = tail + n_tail * i;
    if (!c->split) c->o->conv(c->o, x, ld, w, kernel, ch, kv ? OPS_KV_FP32 : OPS_KV_BF16, q.s, n_seq, y);
    for (int i = 0; i < n_seq; i++)
        for (int r = 0, d = conf_step(c, q.s[i].n_rows); r < q.s[i].n_rows; r += d) {
            struct seq_rows one = q.s[i];
            one.row0 += r;
            one.n_rows = d;
            if (c->split) c->o->conv(c->o, x, ld, w, kernel, ch, kv ? OPS_KV_FP32 : OPS_KV_BF16, &one, 1, y);
            c->o->conv_commit(c->o, one.state, x + one.row0 * ld, ld, kernel, ch, kv ? OPS_KV_FP32 : OPS_KV_BF16, d);
        }
    conf_out(c, "y", y, (int64_t)q.rows * ch);
    for (int i = 0; i < n_seq && kernel > 1; i++)
        conf_out(c, "tail", q.s[i].state, (int64_t)(kernel - 1) * ch / (kv ? 1 : 2));
    free(q.page_id);
}

static void conf_kda_io(struct conf *c)
{
    int d = c->p[0], heads = c->p[1], t = c->p[2], pad = c->p[3];
    int64_t w = (int64_t)heads * d, ldz = w + pad, ldb = heads + pad;
    float *qkv = conf_rand(c, t * 3 * w, -2, 2), *z = conf_rand(c, t * ldz, -6, 6), *b = conf_rand(c, t * ldb, -4, 4);
    float *a = conf_rand(c, heads, 0.1, 8), *dt = conf_rand(c, w, -1, 1), *x = conf_rand(c, t * w, -3, 3), *gate = conf_rand(c, t * ldz, -4, 4);
    float *wn = conf_rand(c, d, 0.5, 1.5);
    for (int r = 0, n = conf_step(c, t); r < t; r += n) {
        c->o->kda_prepare(c->o, qkv + r * 3 * w, z + r * ldz, ldz, b + r * ldb, ldb, a, dt, -5, n, heads, d);
        c->o->kda_out(c->o, x + r * w, gate + r * ldz, ldz, wn, 1e-5f, n, heads, d);
    }
    conf_out(c, "qkv", qkv, t * 3 * w);
    conf_out(c, "g", z, t * ldz);
    conf_out(c, "beta", b, t * ldb);
    conf_out(c, "out", x, t * w);
}

/* three sequences of n rows (form 4: n, n - 1, ...) in one call, or one after the other; form 4 leaves the states */
static void conf_recur_seqs(struct conf *c, const float *qkv, const float *g, int64_t ldg, const float *b, int64_t ldb, float *out, int64_t ldo)
{
    int d = c->p[0], heads = c->p[1], n = c->p[2] / CONF_SEQS, write = c->p[5] == 3;
    int64_t w = (int64_t)heads * d;
    float *all = conf_rand(c, CONF_SEQS * w * d, -1, 1);
    struct seq_rows q[CONF_SEQS];
    for (int i = 0; i < CONF_SEQS; i++) q[i] = (struct seq_rows){i * n, write || n < i ? n : n - i, 0, NULL, all + i * w * d};
    if (c->o->kda_recur_seqs && !c->split) c->o->kda_recur_seqs(c->o, qkv, g, ldg, b, ldb, write, q, CONF_SEQS, heads, d, out, ldo);
    for (int i = 0; (!c->o->kda_recur_seqs || c->split) && i < CONF_SEQS; i++) {
        int64_t r = q[i].row0;
        c->o->kda_recur(c->o, qkv + r * 3 * w, g + r * ldg, ldg, b + r * ldb, ldb, q[i].state, write, q[i].n_rows, heads, d, out + r * ldo, ldo);
    }
    conf_out(c, "states", all, CONF_SEQS * w * d);
}

/* inputs as kda_prepare leaves them: unit keys, scaled queries, decay in (-5, 0); decay: 0 weak, 1 strong, 2 all;
 * form: 0 write, 1 verify, 2 chunk, 3 seqs, 4 verify of seqs, 5 chunk, the state only, 6 verify, the first half of the rows
 * (split: no others are there) */
static void conf_recur(struct conf *c)
{
    int d = c->p[0], heads = c->p[1], t = c->p[2], decay = c->p[3], pad = c->p[4], form = c->p[5];
    int64_t w = (int64_t)heads * d, ldg = w + pad, ldb = heads + pad, ldo = w + pad;
    float *qkv = conf_rand(c, t * 3 * w, -1.7, 1.7), *g = conf_rand(c, t * ldg, decay ? -5 : -0.5, decay == 1 ? -4.5 : -1e-4);
    float *b = conf_rand(c, t * ldb, 0.02, 0.98), *s = conf_rand(c, w * d, -1, 1), *out = conf_nan(c, t * ldo);
    float *zero = conf_new(c, (size_t)(t * w) * 4), *ab = conf_rand(c, w, 1, 2), *b2 = conf_rand(c, t * heads, 0, 1);
    c->o->zero(c->o, zero, (size_t)(t * w) * 4);
    c->o->kda_prepare(c->o, qkv, zero, w, b2, heads, ab, ab, -5, t, heads, d); /* for its norms */
    if (form == 6) {
        int half = t - t / 2;
        c->o->kda_recur(c->o, qkv, g, ldg, b, ldb, s, 0, c->split ? half : t, heads, d, out, ldo);
        t = half;
    } else if (form == 3 || form == 4) conf_recur_seqs(c, qkv, g, ldg, b, ldb, out, ldo);
    else if (form == 2 || form == 5) c->o->kda_chunk(c->o, qkv, g, ldg, b, ldb, s, t, heads, d, 64, form == 2 ? out : NULL, ldo);
    else
        for (int r = 0, n = form == 1 ? t : conf_step(c, t); r < t; r += n)
            c->o->kda_recur(c->o, qkv + r * 3 * w, g + r * ldg, ldg, b + r * ldb, ldb, s, form != 1, n, heads, d, out + r * ldo, ldo);
    conf_out(c, "out", out, t * ldo);
    conf_out(c, "state", s, w * d);
    if (form == 0) { /* state only */
        c->o->kda_recur(c->o, qkv, g, ldg, b, ldb, s, 1, t > 2 ? 2 : t, heads, d, NULL, 0);
        conf_out(c, "state 2", s, w * d);
    }
}

/* ---- MLA ------------------------------------------------------------------------------------------------------- */

/* attention of every sequence, whole or one row at a time */
static void conf_mla(struct conf *c)
{
    int rank = c->p[0], rope = c->p[1], heads = c->p[2], rows = c->p[3], pos = c->p[4], kv = c->p[5], form = c->p[6], page = c->p[7];
    int nope = 2 * rope, v_dim = 2 * rope, width = rank + rope, wq = form ? nope + rope : width, wz = form ? v_dim : rank;
    struct conf_seqs q = conf_seqs(rows > 1 ? 2 : 1, rows, pos, page);
    struct paged g = conf_pool(c, &q, page, 1, width, kv ? OPS_KV_FP32 : OPS_KV_BF16, 0);
    int64_t ldq = (int64_t)heads * wq + 4, ldz = (int64_t)heads * wz + 3;
    float *x = conf_rand(c, q.rows * ldq, -1, 1), *z = conf_nan(c, q.rows * ldz);
    struct weights w = weights_new(MAT_BF16, heads * (nope + v_dim), rank, 5);
    struct mat m = {0};
    conf_ok(weights_mat(c->o, &m, &w, 0, w.n, 0, rank, 0, 0));
    conf_ok(c->o->prepare(c->o, q.rows));
    for (int i = 0; i < q.n; i += c->split ? 1 : q.n)
        for (int r = 0, d = conf_step(c, 1 << 20); r < q.s[i].n_rows; r += d) {
            struct seq_rows one = {q.s[i].row0 + r, 1, q.s[i].pos0 + r, q.s[i].page_id, NULL}, *s = c->split ? &one : q.s;
            if (form) c->o->mla_attend_expanded(c->o, x, ldq, &g, rank, rope, nope, v_dim, &m, 0.3f, heads, s, c->split ? 1 : q.n, z, ldz);
            else c->o->mla_attend(c->o, x, ldq, &g, rank, rope, 0.3f, heads, s, c->split ? 1 : q.n, z, ldz);
        }
    conf_out(c, "z", z, q.rows * ldz);
    c->o->mat_free(c->o, &m);
    weights_free(&w);
    free(q.page_id);
}

static void conf_write(struct conf *c)
{
    int width = c->p[0], heads = c->p[1], rows = c->p[2], pos = c->p[3], kv = c->p[4], page = c->p[5];
    struct conf_seqs q = conf_seqs(CONF_SEQS, rows, pos, page);
    enum ops_kv t = kv ? OPS_KV_FP32 : OPS_KV_BF16;
    int64_t ld = (int64_t)heads * width + 5;
    struct paged a = conf_pool(c, &q, page, 1, heads * width, t, 1), b = conf_pool(c, &q, page, heads, width, t, 1);
    float *x = conf_rand(c, q.rows * ld, -2, 2);
    for (int i = 0; i < q.n; i += c->split ? 1 : q.n)
        for (int r = 0, d = conf_step(c, 1 << 20); r < q.s[i].n_rows; r += d) {
            struct seq_rows one = {q.s[i].row0 + r, 1, q.s[i].pos0 + r, q.s[i].page_id, NULL}, *s = c->split ? &one : q.s;
            c->o->mla_write(c->o, x, ld, heads * width, &a, s, c->split ? 1 : q.n);
            c->o->kv_write(c->o, x, ld, heads, width, &b, s, c->split ? 1 : q.n);
        }
    conf_out(c, "mla pages", a.base, a.stride * q.n * q.n_pages / 4);
    conf_out(c, "kv pages", b.base, b.stride * q.n * q.n_pages / 4);
    free(q.page_id);
}

/* ---- feed-forward ------------------------------------------------------------------------------------------------ */

static void conf_route(struct conf *c)
{
    int n = c->p[0], k = c->p[1], t = c->p[2], bias = c->p[3], ties = c->p[4];
    float *x = conf_host(c, (int64_t)t * n, -4, 4);
    for (int64_t i = 0; ties && i < (int64_t)t * n; i++) x[i] = floorf(x[i] / 2); /* a handful of values */
    float *logits = conf_put(c, x, (int64_t)t * n), *b = conf_rand(c, n, -0.5, 0.5), *w = conf_nan(c, (int64_t)t * k);
    int32_t *idx = conf_new(c, (size_t)(t * k) * 4), *host = malloc((size_t)(t * k) * 4);
    for (int r = 0, d = conf_step(c, t); r < t; r += d)
        c->o->route(c->o, logits + (int64_t)r * n, bias ? b : NULL, n, k, 2.5f, d, idx + (int64_t)r * k, w + (int64_t)r * k);
    c->o->get(c->o, host, idx, (size_t)(t * k) * 4);
    for (int i = 0; i < t * k; i++) x[i] = (float)host[i];
    conf_out_host(c, "experts", x, (int64_t)t * k);
    conf_out(c, "weights", w, (int64_t)t * k);
    free(host);
    free(x);
}

static void conf_moe(struct conf *c)
{
    int n = c->p[0], local = c->p[1], latent = c->p[2], cols = c->p[3], groups = c->p[4], merge = c->p[5], t = c->p[6], k = c->p[7];
    int e0 = n > local ? (n - local) / 2 : 0, parts = merge ? 1 : groups;
    struct mat *up = calloc((size_t)local, sizeof *up), *down = calloc((size_t)local, sizeof *down);
    for (int e = 0; e < local; e++) {
        struct weights a = weights_new(MAT_MXFP4, 2 * cols, latent, 100 + (uint64_t)e), b = weights_new(MAT_MXFP4, latent, cols, 500 + (uint64_t)e);
        conf_ok(weights_mat(c->o, &up[e], &a, 0, 2 * cols, 0, latent, 0, 0));
        conf_ok(weights_mat(c->o, &down[e], &b, 0, latent, 0, cols, 0, 0));
        weights_free(&a);
        weights_free(&b);
    }
    conf_ok(c->o->prepare(c->o, t));
    float *z = conf_rand(c, (int64_t)t * latent, -1, 1), *w = conf_rand(c, (int64_t)t * k, 0.01, 0.2);
    int64_t stride = (int64_t)t * latent + 16;
    float *y = conf_nan(c, parts * stride);
    int32_t *idx = conf_new(c, (size_t)(t * k) * 4), *host = malloc((size_t)(t * k) * 4);
    for (int i = 0; i < t; i++)
        for (int j = 0; j < k; j++) host[i * k + j] = (int32_t)((j * (n / k) + (int)(rng_u64(1, 2, (uint64_t)(i * k + j)) % (uint64_t)(n / k))));
    c->o->put(c->o, idx, host, (size_t)(t * k) * 4);
    for (int r = 0, d = conf_step(c, t); r < t; r += d)
        c->o->moe(c->o, up, down, e0, local, n, z + (int64_t)r * latent, latent, cols, groups, merge, idx + (int64_t)r * k, w + (int64_t)r * k,
                  k, 4, 25, d, y + (int64_t)r * latent, stride);
    conf_out(c, "y", y, parts * stride - 16);
    for (int e = 0; e < local; e++) {
        c->o->mat_free(c->o, &up[e]);
        c->o->mat_free(c->o, &down[e]);
    }
    free(up);
    free(down);
    free(host);
}

static void conf_argmax(struct conf *c)
{
    int n = c->p[0], t = c->p[1];
    float *x = conf_host(c, (int64_t)t * n, -9, 9), *val = malloc((size_t)t * 4), *id = malloc((size_t)t * 4);
    int32_t *idx = malloc((size_t)t * 4);
    for (int i = 0; i < t; i++) {
        if (i % 4 == 1) x[(int64_t)i * n + n / 2] = NAN;
        if (i % 4 == 2) x[(int64_t)i * n + n / 3] = x[(int64_t)i * n + n - 1] = 50; /* the first counts */
        for (int j = 0; i % 4 == 3 && j < n; j++) x[(int64_t)i * n + j] = -INFINITY;
    }
    float *dev = conf_put(c, x, (int64_t)t * n);
    for (int r = 0, d = conf_step(c, t); r < t; r += d) c->o->argmax(c->o, dev + (int64_t)r * n, n, d, n, val + r, idx + r);
    for (int i = 0; i < t; i++) {
        id[i] = (float)idx[i];
        if (isnan(val[i])) val[i] = 12345; /* NaNs have many forms */
    }
    conf_out_host(c, "val", val, t);
    conf_out_host(c, "idx", id, t);
    free(x);
    free(val);
    free(id);
    free(idx);
}

/* ---- draft --------------------------------------------------------------------------------------------------------- */

static void conf_rope(struct conf *c)
{
    int heads = c->p[0], d = c->p[1], t = c->p[2], pos = c->p[3];
    int64_t ld = (int64_t)heads * d + 3;
    float *x = conf_rand(c, t * ld, -2, 2);
    int32_t *at = malloc((size_t)t * 4);
    for (int i = 0; i < t; i++) at[i] = pos + i * 17;
    for (int r = 0, n = conf_step(c, t); r < t; r += n) c->o->rope(c->o, x + r * ld, ld, at + r, n, heads, d, 1e6);
    conf_out(c, "x", x, t * ld);
    free(at);
}

/* angles of no theta, an amplitude that is not 1 */
static void conf_rope_scaled(struct conf *c)
{
    int heads = c->p[0], d = c->p[1], t = c->p[2], pos = c->p[3];
    int64_t ld = (int64_t)heads * d + 3;
    double inv[OPS_ROPE_DIM / 2];
    float *x = conf_rand(c, t * ld, -2, 2);
    int32_t *at = malloc((size_t)t * 4);
    for (int j = 0; j < d / 2; j++) inv[j] = pow(1e4, -2.0 * j / d) * (j % 3 ? 0.0625 : 1);
    for (int i = 0; i < t; i++) at[i] = pos + i * 17;
    for (int r = 0, n = conf_step(c, t); r < t; r += n)
        c->o->rope_scaled(c->o, x + r * ld, ld, at + r, n, heads, d, inv, 1.277);
    conf_out(c, "x", x, t * ld);
    free(at);
}

static void conf_draft(struct conf *c)
{
    int q_heads = c->p[0], kv_heads = c->p[1], d = c->p[2], block = c->p[3], pos = c->p[4], window = c->p[5], kv = c->p[6], page = c->p[7];
    struct conf_seqs q = conf_seqs(2, block, pos, page);
    enum ops_kv t = kv ? OPS_KV_FP32 : OPS_KV_BF16;
    struct paged kc = conf_pool(c, &q, page, kv_heads, d, t, 1), vc = conf_pool(c, &q, page, kv_heads, d, t, 1);
    int64_t ldq = (int64_t)q_heads * d + 1, ldk = 2 * (int64_t)kv_heads * d, ldo = (int64_t)q_heads * d + 3;
    float *x = conf_rand(c, q.rows * ldq, -1, 1), *b = conf_rand(c, q.rows * ldk, -1, 1), *out = conf_nan(c, q.rows * ldo);
    for (int i = 0; i < q.n; i += c->split ? 1 : q.n) /* a block is one function: split by sequence */
        c->o->draft_attend(c->o, x, ldq, b, ldk, b + (int64_t)kv_heads * d, ldk, &kc, &vc, q_heads, kv_heads, d, window, q.s + i,
                           c->split ? 1 : q.n, out, ldo);
    conf_out(c, "out", out, q.rows * ldo);
    free(q.page_id);
}

/* clang-format off */
static const struct conf_case conf_cases[] = {
    /* n, k, t, leaf, exact, MXFP4, padding of rows, 1: transpose 2: wide scales */
    {"linear", conf_linear, {16, 64, 1, 0, 0, 0, 0, 0}, 1, 1, 0},
    {"linear", conf_linear, {33, 7, 9, 0, 0, 0, 3, 0}, 1, 1, 0},
    {"linear", conf_linear, {100, 96, 5, 32, 0, 0, 1, 1}, 1, 1, 0},
    {"linear", conf_linear, {640, 1024, 17, 0, 0, 0, 4, 0}, 1, 1, 0},
    {"linear", conf_linear, {64, 7168, 3, 0, 0, 0, 0, 0}, 1, 1, 0},
    {"linear", conf_linear, {256, 272, 40, 16, 0, 0, 4, 0}, 1, 1, 0},
    {"linear", conf_linear, {896, 512, 33, 0, 1, 0, 0, 0}, 1, 0, 0},
    {"linear", conf_linear, {72, 640, 130, 0, 0, 0, 0, 0}, 1, 1, 0},
    {"linear", conf_linear, {384, 448, 300, 0, 0, 0, 4, 0}, 1, 1, 0},
    {"linear", conf_linear, {200, 320, 700, 0, 0, 0, 8, 0}, 0, 1, 0},
    {"linear", conf_linear, {48, 96, 5, 0, 0, 1, 0, 0}, 1, 1, 0},
    {"linear", conf_linear, {100, 512, 37, 0, 0, 1, 4, 2}, 1, 1, 0},
    /* first, n, h, t */
    {"embed", conf_embed, {40, 19, 66, 30}, 1, 0, 1},
    /* n, t, padding */
    {"elementwise", conf_elementwise, {384, 5, 0}, 1, 0, 0},
    {"elementwise", conf_elementwise, {37, 7, 2}, 1, 0, 0},
    {"elementwise", conf_elementwise, {6144, 3, 4}, 1, 0, 0},
    {"tree_add", conf_tree, {1, 50}, 0, 0, 1},
    {"tree_add", conf_tree, {8, 1000}, 0, 0, 1},
    {"tree_add", conf_tree, {12, 333}, 0, 0, 1},
    {"tree_add", conf_tree, {56, 70}, 0, 0, 1},
    {"tree_add", conf_tree, {15, 70}, 0, 0, 1},
    {"copy", conf_copy, {100003}, 0, 0, 1},
    /* n, t, padding, heads, near the FP32 maximum */
    {"norm", conf_norm, {7168, 5, 0, 1, 0}, 1, 0, 0},
    {"norm", conf_norm, {128, 7, 4, 3, 0}, 1, 0, 0},
    {"norm", conf_norm, {37, 6, 1, 4, 0}, 1, 0, 0},
    {"norm", conf_norm, {1537, 3, 0, 1, 1}, 1, 0, 0},
    {"norm", conf_norm, {64, 3, 0, 2, 1}, 1, 0, 0},
    {"norm", conf_norm, {9001, 2, 0, 1, 1}, 1, 0, 0},
    /* h, t, bank rows, large, outputs */
    {"attnres", conf_attnres, {7168, 4, 8, 0, 3}, 1, 0, 0},
    {"attnres", conf_attnres, {256, 9, 3, 0, 3}, 1, 0, 0},
    {"attnres", conf_attnres, {256, 3, 0, 0, 3}, 1, 0, 0},
    {"attnres", conf_attnres, {101, 5, 2, 1, 3}, 1, 0, 0},
    {"attnres", conf_attnres, {2048, 3, 5, 1, 2}, 1, 0, 0},
    {"attnres", conf_attnres, {4100, 2, 1, 0, 1}, 1, 0, 0},
    /* channels, rows, kernel, FP32 tail, sequences, padding */
    {"conv", conf_conv, {768, 1, 4, 0, 1, 0}, 1, 0, 0},
    {"conv", conf_conv, {768, 75, 4, 0, 3, 0}, 1, 0, 0},
    {"conv", conf_conv, {4608, 16, 4, 1, 2, 4}, 1, 0, 0},
    {"conv", conf_conv, {38, 5, 3, 1, 3, 1}, 1, 0, 0},
    {"conv", conf_conv, {70, 9, 2, 0, 2, 1}, 1, 0, 0},
    /* d, heads, t, padding */
    {"kda in/out", conf_kda_io, {128, 3, 5, 0}, 1, 0, 0},
    {"kda in/out", conf_kda_io, {32, 8, 7, 4}, 1, 0, 0},
    {"kda in/out", conf_kda_io, {24, 2, 4, 1}, 1, 0, 0},
    /* d, heads, t, decay, padding, form */
    {"kda_recur", conf_recur, {128, 3, 1, 0, 0, 0}, 0, 0, 0},
    {"kda_recur", conf_recur, {128, 2, 37, 0, 0, 0}, 1, 0, 0},
    {"kda_recur", conf_recur, {128, 2, 16, 1, 3, 1}, 0, 0, 0},
    {"kda_recur", conf_recur, {128, 3, 2, 2, 0, 1}, 0, 0, 0},
    {"kda_recur", conf_recur, {128, 4, 15, 1, 1, 1}, 0, 0, 0},
    {"kda_recur", conf_recur, {128, 2, 17, 2, 0, 1}, 0, 0, 0},
    {"kda_recur", conf_recur, {128, 2, 16, 2, 4, 6}, 1, 0, 0},
    {"kda_recur", conf_recur, {32, 3, 16, 2, 0, 6}, 1, 0, 0},
    {"kda_recur", conf_recur, {128, 2, 30, 0, 3, 3}, 1, 0, 0},
    {"kda_recur", conf_recur, {128, 37, 6, 0, 0, 3}, 1, 0, 0},
    {"kda_recur", conf_recur, {128, 70, 9, 1, 0, 3}, 1, 0, 0},
    {"kda_recur", conf_recur, {128, 90, 27, 2, 0, 3}, 1, 0, 0},
    {"kda_recur", conf_recur, {128, 90, 48, 2, 0, 4}, 1, 0, 0},
    {"kda_recur", conf_recur, {128, 3, 6, 0, 1, 4}, 1, 0, 0},
    {"kda_recur", conf_recur, {128, 2, 100, 2, 0, 0}, 1, 0, 0},
    {"kda_recur", conf_recur, {32, 8, 15, 0, 0, 3}, 1, 0, 0},
    {"kda_recur", conf_recur, {64, 5, 30, 2, 0, 4}, 1, 0, 0},
    {"kda_recur", conf_recur, {64, 2, 21, 1, 1, 0}, 1, 0, 0},
    {"kda_recur", conf_recur, {32, 8, 33, 0, 0, 0}, 1, 0, 0},
    {"kda_recur", conf_recur, {24, 3, 9, 1, 0, 0}, 1, 0, 0},
    {"kda_recur", conf_recur, {16, 4, 12, 0, 2, 0}, 1, 0, 0},
    {"kda_chunk", conf_recur, {128, 2, 200, 0, 0, 2}, 0, 1, 0},
    {"kda_chunk", conf_recur, {128, 2, 131, 1, 4, 2}, 0, 1, 0},
    {"kda_chunk", conf_recur, {128, 3, 1024, 0, 0, 2}, 0, 1, 0},
    {"kda_chunk", conf_recur, {128, 1, 128, 2, 1, 2}, 0, 1, 0},
    {"kda_chunk", conf_recur, {128, 5, 129, 2, 2, 2}, 0, 1, 0},
    {"kda_chunk", conf_recur, {128, 2, 1000, 1, 0, 2}, 0, 1, 0},
    {"kda_chunk", conf_recur, {128, 3, 450, 2, 3, 5}, 0, 1, 0},
    {"kda_chunk", conf_recur, {128, 2, 127, 0, 0, 5}, 0, 1, 0},
    {"kda_chunk", conf_recur, {32, 3, 70, 1, 0, 2}, 0, 0, 0},
    {"kda_chunk", conf_recur, {48, 1, 65, 0, 0, 2}, 0, 0, 0},
    /* rank, rope, heads, rows, position, FP32 cache, expanded, page */
    {"mla_attend", conf_mla, {512, 64, 3, 1, 0, 0, 0, 64}, 1, 1, 0},
    {"mla_attend", conf_mla, {512, 64, 12, 16, 1100, 0, 0, 64}, 1, 1, 0},
    {"mla_attend", conf_mla, {512, 64, 3, 16, 1020, 0, 0, 64}, 1, 1, 0},
    {"mla_attend", conf_mla, {512, 64, 5, 5, 0, 0, 0, 16}, 1, 1, 0},
    {"mla_attend", conf_mla, {512, 64, 2, 5, 500, 1, 0, 16}, 1, 0, 0},
    {"mla_attend", conf_mla, {64, 16, 8, 7, 90, 0, 0, 16}, 1, 1, 0},
    {"mla_attend", conf_mla, {36, 10, 3, 4, 33, 1, 0, 5}, 1, 0, 0},
    {"mla_attend", conf_mla, {37, 6, 3, 4, 33, 0, 0, 5}, 1, 0, 0},
    {"mla_expand", conf_mla, {512, 64, 2, 9, 600, 0, 1, 64}, 1, 1, 0},
    {"mla_expand", conf_mla, {64, 16, 8, 40, 0, 0, 1, 16}, 1, 1, 0},
    {"mla_expand", conf_mla, {64, 7, 2, 5, 70, 1, 1, 16}, 1, 1, 0},
    /* width, heads, rows, position, FP32, page */
    {"write", conf_write, {576, 1, 5, 60, 0, 64}, 1, 0, 1},
    {"write", conf_write, {32, 2, 40, 13, 1, 16}, 1, 0, 1},
    {"write", conf_write, {7, 3, 9, 0, 0, 6}, 1, 0, 1},
    /* experts, k, t, bias, ties: the same experts; weights by the same arithmetic */
    {"route", conf_route, {896, 16, 19, 1, 0}, 1, 0, 1},
    {"route", conf_route, {896, 16, 9, 0, 1}, 1, 0, 1},
    {"route", conf_route, {16, 4, 33, 1, 1}, 1, 0, 1},
    {"route", conf_route, {50, 8, 5, 0, 0}, 1, 0, 1},
    /* experts, local, latent, columns, groups, merge, t, k */
    {"moe", conf_moe, {16, 16, 64, 32, 1, 1, 1, 4}, 1, 1, 0},
    {"moe", conf_moe, {16, 16, 96, 96, 3, 1, 21, 4}, 1, 1, 0},
    {"moe", conf_moe, {32, 12, 128, 96, 3, 0, 37, 8}, 1, 1, 0},
    {"moe", conf_moe, {8, 8, 448, 192, 2, 0, 9, 2}, 1, 1, 0},
    {"moe", conf_moe, {4, 4, 256, 128, 1, 1, 150, 2}, 1, 1, 0},
    /* n, t */
    {"argmax", conf_argmax, {20480, 9}, 1, 0, 1},
    {"argmax", conf_argmax, {37, 8}, 1, 0, 1},
    /* heads, d, t, position */
    {"rope", conf_rope, {4, 128, 9, 100000}, 1, 0, 0},
    {"rope", conf_rope, {3, 32, 5, 0}, 1, 0, 0},
    {"rope_scaled", conf_rope_scaled, {4, 128, 9, 100000}, 1, 0, 0},
    {"rope_scaled", conf_rope_scaled, {2, 256, 3, 70}, 1, 0, 0},
    /* query heads, kv heads, d, block, position, window, FP32, page */
    {"draft_attend", conf_draft, {8, 2, 128, 16, 300, 0, 0, 64}, 1, 0, 0},
    {"draft_attend", conf_draft, {8, 2, 128, 16, 300, 128, 0, 64}, 1, 0, 0},
    {"draft_attend", conf_draft, {16, 8, 32, 8, 0, 0, 1, 16}, 1, 0, 0},
    {"draft_attend", conf_draft, {6, 3, 20, 7, 45, 9, 0, 7}, 1, 0, 0},
};
/* clang-format on */

#endif
