#include "model/mla.h"

#include <math.h>

struct work { /* scratch of one call */
    float *in;   /* [t][width of in] */
    float *q;    /* [t][H][nope + rope] */
    float *qx;   /* [t][H][rank + rope] absorbed queries */
    float *z;    /* [t][H][rank] */
    float *out;  /* [t][H][v] */
};

static int in_width(const struct mla *m, const struct config *c)
{
    return c->q_rank + c->kv_rank + c->qk_rope + m->heads * c->v_dim;
}

static int64_t carve(const struct mla *m, const struct config *c, float *base, int64_t t, struct work *w)
{
    int64_t at = 0, h = m->heads;
    w->in = run_take(base, &at, t * in_width(m, c));
    w->q = run_take(base, &at, t * h * (c->qk_nope + c->qk_rope));
    w->qx = run_take(base, &at, t * h * (c->kv_rank + c->qk_rope));
    w->z = run_take(base, &at, t * h * c->kv_rank);
    w->out = run_take(base, &at, t * h * c->v_dim);
    return at;
}

int64_t mla_scratch(const struct mla *m, const struct config *c, int t)
{
    struct work w;
    return carve(m, c, NULL, t, &w);
}

static enum status bind_inputs(struct binder *b, struct mla *m)
{
    const struct config *c = b->c;
    char name[WEIGHT_NAME];
    struct range hd = b->shard.mla_heads, all = {0, c->hidden}, all_q = {0, c->q_rank};
    int kv = c->kv_rank + c->qk_rope, nq = c->qk_nope + c->qk_rope, v = c->v_dim;
    TRY(bind_mat(b, &m->in, MAT_BF16, in_width(m, c), c->hidden, 0, 0));
    bind_name(b, name, "self_attn.q_a_proj.weight");
    TRY(bind_rows(b, &m->in, 0, &(struct block){name, c->q_rank, c->hidden, all_q, all}));
    bind_name(b, name, "self_attn.kv_a_proj_with_mqa.weight");
    TRY(bind_rows(b, &m->in, c->q_rank, &(struct block){name, kv, c->hidden, {0, kv}, all}));
    bind_name(b, name, "self_attn.g_proj.weight");
    struct range gates = {hd.begin * v, hd.end * v};
    TRY(bind_rows(b, &m->in, c->q_rank + kv, &(struct block){name, c->mla_heads * v, c->hidden, gates, all}));
    TRY(bind_mat(b, &m->q_b, MAT_BF16, m->heads * nq, c->q_rank, 0, 0));
    bind_name(b, name, "self_attn.q_b_proj.weight");
    struct range rows = {hd.begin * nq, hd.end * nq};
    TRY(bind_rows(b, &m->q_b, 0, &(struct block){name, c->mla_heads * nq, c->q_rank, rows, all_q}));
    TRY(bind_mat(b, &m->out, MAT_BF16, c->hidden, m->heads * v, v, 0));
    bind_name(b, name, "self_attn.o_proj.weight");
    return bind_rows(b, &m->out, 0, &(struct block){name, c->hidden, c->mla_heads * v, all, gates});
}

/* kv_b_proj holds [W_k (nope); W_v (v)] head after head */
static enum status bind_heads(struct binder *b, struct mla *m, int expanded)
{
    const struct config *c = b->c;
    char name[WEIGHT_NAME];
    int per = c->qk_nope + c->v_dim, first = b->shard.mla_heads.begin;
    struct block kv = {bind_name(b, name, "self_attn.kv_b_proj.weight"), c->mla_heads * per, c->kv_rank, {0, 0},
                       {0, c->kv_rank}};
    for (int i = 0; i < m->heads; i++) {
        int row = (first + i) * per;
        kv.rows = (struct range){row, row + c->qk_nope};
        TRY(bind_mat(b, &m->wk[i], MAT_BF16, c->kv_rank, c->qk_nope, 0, 0));
        TRY(bind_rows_t(b, &m->wk[i], 0, &kv));
        kv.rows = (struct range){row + c->qk_nope, row + per};
        TRY(bind_mat(b, &m->wv[i], MAT_BF16, c->v_dim, c->kv_rank, 0, 0));
        TRY(bind_rows(b, &m->wv[i], 0, &kv));
    }
    if (!expanded) return ST_OK;
    kv.rows = (struct range){first * per, (first + m->heads) * per};
    TRY(bind_mat(b, &m->wkv, MAT_BF16, m->heads * per, c->kv_rank, 0, 0));
    return bind_rows(b, &m->wkv, 0, &kv);
}

static enum status make_pick(struct binder *b, struct mla *m)
{
    int n = b->c->qk_rope;
    uint16_t *one = mem_alloc((size_t)n * (size_t)n, sizeof *one, "identity");
    if (!one) return ST_E_NOMEM;
    for (int i = 0; i < n; i++) one[i * n + i] = 0x3f80; /* 1.0 in BF16 */
    enum status st = bind_mat(b, &m->pick, MAT_BF16, n, n, 0, 1);
    if (st == ST_OK) b->o->mat_put_bf16(b->o, &m->pick, 0, n, one, n);
    mem_free(one);
    return st;
}

enum status mla_open(struct binder *b, int expanded, struct mla *m)
{
    const struct config *c = b->c;
    char name[WEIGHT_NAME];
    m->layer = b->layer;
    m->heads = range_len(b->shard.mla_heads);
    m->wk = mem_alloc((size_t)m->heads, sizeof *m->wk, "head matrices");
    m->wv = mem_alloc((size_t)m->heads, sizeof *m->wv, "head matrices");
    if (!m->wk || !m->wv) return ST_E_NOMEM;
    TRY(bind_inputs(b, m));
    TRY(bind_heads(b, m, expanded));
    TRY(make_pick(b, m));
    bind_name(b, name, "self_attn.q_a_layernorm.weight");
    TRY(bind_vector(b, &m->q_norm, name, ST_DT_BF16, c->q_rank, (struct range){0, c->q_rank}));
    bind_name(b, name, "self_attn.kv_a_layernorm.weight");
    return bind_vector(b, &m->kv_norm, name, ST_DT_BF16, c->kv_rank, (struct range){0, c->kv_rank});
}

void mla_close(struct ops *o, struct mla *m)
{
    struct mat *mat[] = {&m->in, &m->q_b, &m->pick, &m->wkv, &m->out};
    for (size_t i = 0; i < sizeof mat / sizeof *mat; i++) o->mat_free(o, mat[i]);
    for (int i = 0; i < m->heads; i++) {
        if (m->wk) o->mat_free(o, &m->wk[i]);
        if (m->wv) o->mat_free(o, &m->wv[i]);
    }
    mem_free(m->wk);
    mem_free(m->wv);
    o->mem_free(o, &m->q_norm);
    o->mem_free(o, &m->kv_norm);
}

/* q_n W_k and q_r of every head side by side: qx[t][H][rank + rope] */
static void absorb(struct mla *m, const struct run *r, const struct work *w)
{
    struct ops *o = r->o;
    const struct config *c = r->c;
    int nq = c->qk_nope + c->qk_rope, nx = c->kv_rank + c->qk_rope;
    for (int h = 0; h < m->heads; h++)
        o->linear(o, &m->wk[h], w->q + h * nq, m->heads * nq, r->t, w->qx + h * nx, m->heads * nx);
    for (int64_t row = 0, n = (int64_t)r->t * m->heads; row < n; row += r->max_rows) {
        int t = (int)(n - row < r->max_rows ? n - row : r->max_rows);
        o->linear(o, &m->pick, w->q + row * nq + c->qk_nope, nq, t, w->qx + row * nx + c->kv_rank, nx);
    }
}

static void attend_absorbed(struct mla *m, const struct run *r, const struct paged *cache, float scale,
                            const struct work *w)
{
    struct ops *o = r->o;
    const struct config *c = r->c;
    int nx = c->kv_rank + c->qk_rope, nz = m->heads * c->kv_rank;
    absorb(m, r, w);
    o->mla_attend(o, w->qx, (int64_t)m->heads * nx, cache, c->kv_rank, c->qk_rope, scale, m->heads, r->seq, r->n_seq,
                  w->z, nz);
    for (int h = 0; h < m->heads; h++)
        o->linear(o, &m->wv[h], w->z + h * c->kv_rank, nz, r->t, w->out + h * c->v_dim, m->heads * c->v_dim);
}

enum status mla_forward(struct mla *m, const struct run *r, const float *u, float *y)
{
    struct ops *o = r->o;
    const struct config *c = r->c;
    struct work w;
    int t = r->t, ni = in_width(m, c), nq = m->heads * (c->qk_nope + c->qk_rope), nv = m->heads * c->v_dim;
    int kv = c->kv_rank + c->qk_rope;
    float scale = 1.0f / sqrtf((float)(c->qk_nope + c->qk_rope));
    struct paged cache = state_paged(r->state, COMP_MLA, m->layer, 0);
    carve(m, c, r->scratch, t, &w);
    float *row = w.in + c->q_rank; /* the cache row, in place */
    o->linear(o, &m->in, u, c->hidden, t, w.in, ni);
    o->rmsnorm(o, w.in, ni, m->q_norm.p, c->latent_norm_eps, t, c->q_rank, w.in, ni);
    o->rmsnorm(o, row, ni, m->kv_norm.p, c->latent_norm_eps, t, c->kv_rank, row, ni);
    run_probe(r, "latent_rows", m->layer, row, ni, kv);
    o->mla_write(o, row, ni, kv, &cache, r->seq, r->n_seq);
    o->linear(o, &m->q_b, w.in, ni, t, w.q, nq);
    if (r->expanded)
        o->mla_attend_expanded(o, w.q, nq, &cache, c->kv_rank, c->qk_rope, c->qk_nope, c->v_dim, &m->wkv, scale,
                               m->heads, r->seq, r->n_seq, w.out, nv);
    else
        attend_absorbed(m, r, &cache, scale, &w);
    o->gate(o, w.out, nv, row + kv, ni, t, nv);
    o->linear(o, &m->out, w.out, nv, t, y, c->hidden);
    return run_sum(r, y, c->hidden);
}
