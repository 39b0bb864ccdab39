#include "model/moe.h"

struct work { /* scratch of one call */
    float *logits;  /* [t][n_experts] */
    float *weight;  /* [t][top_k] */
    int32_t *idx;   /* [t][top_k] */
    float *z;       /* [t][latent] */
    float *sum;     /* [parts][t][latent], directly followed by */
    float *shared;  /* [t][hidden] */
    float *mlp;     /* scratch of the shared MLP */
};

/* ---- dense and shared ----------------------------------------------------------------------------- */

enum status mlp_open(struct binder *b, const char *stem, int inter, struct range cols, struct mlp *m)
{
    char name[WEIGHT_NAME];
    int h = b->c->hidden, n = range_len(cols);
    struct range all = {0, h};
    m->cols = n;
    TRY(bind_mat(b, &m->in, MAT_BF16, 2 * n, h, 0, 0));
    bind_name(b, name, "%s.gate_proj.weight", stem);
    TRY(bind_rows(b, &m->in, 0, &(struct block){name, inter, h, cols, all}));
    bind_name(b, name, "%s.up_proj.weight", stem);
    TRY(bind_rows(b, &m->in, n, &(struct block){name, inter, h, cols, all}));
    TRY(bind_mat(b, &m->down, MAT_BF16, h, n, split_leaf_cols(inter), 0));
    bind_name(b, name, "%s.down_proj.weight", stem);
    return bind_rows(b, &m->down, 0, &(struct block){name, h, inter, all, cols});
}

void mlp_close(struct ops *o, struct mlp *m)
{
    o->mat_free(o, &m->in);
    o->mat_free(o, &m->down);
}

int64_t mlp_scratch(const struct mlp *m, int t)
{
    int64_t at = 0;
    run_take(NULL, &at, (int64_t)t * 2 * m->cols);
    run_take(NULL, &at, (int64_t)t * m->cols);
    return at;
}

/* this rank's part of the sum */
static void mlp_partial(struct mlp *m, const struct run *r, const float *x, float *scratch, float *y)
{
    struct ops *o = r->o;
    int64_t at = 0;
    float *in = run_take(scratch, &at, (int64_t)r->t * 2 * m->cols);
    float *act = run_take(scratch, &at, (int64_t)r->t * m->cols);
    o->linear(o, &m->in, x, r->c->hidden, r->t, in, 2 * m->cols);
    o->situ(o, in, 2 * m->cols, r->c->situ_beta, r->c->situ_linear_beta, r->t, m->cols, act, m->cols);
    o->linear(o, &m->down, act, m->cols, r->t, y, r->c->hidden);
}

enum status mlp_forward(struct mlp *m, const struct run *r, const float *x, float *y)
{
    mlp_partial(m, r, x, r->scratch, y);
    return run_sum(r, y, r->c->hidden);
}

/* ---- routed --------------------------------------------------------------------------------------- */

int moe_order_len(const struct shard *s)
{
    return s->tp * s->groups;
}

void moe_order(const struct shard *s, int *order)
{
    int n = 0;
    for (int moe_rank = 0; moe_rank < s->moe_tp; moe_rank++)
        for (int group = 0; group < s->groups; group++)
            for (int ep_rank = 0; ep_rank < s->ep; ep_rank++)
                order[n++] = (ep_rank * s->moe_tp + moe_rank) * s->groups + group;
}

static enum status bind_expert(struct binder *b, struct moe *m, int i)
{
    const struct config *c = b->c;
    char name[WEIGHT_NAME];
    int e = b->shard.experts.begin + i;
    struct range cols = b->shard.expert_cols, all = {0, c->latent};
    TRY(bind_mat(b, &m->up[i], MAT_MXFP4, 2 * m->cols, c->latent, 0, 0));
    bind_name(b, name, "block_sparse_moe.experts.%d.w1", e);
    TRY(bind_rows_mxfp4(b, &m->up[i], 0, &(struct block){name, c->expert_inter, c->latent, cols, all}));
    bind_name(b, name, "block_sparse_moe.experts.%d.w3", e);
    TRY(bind_rows_mxfp4(b, &m->up[i], m->cols, &(struct block){name, c->expert_inter, c->latent, cols, all}));
    TRY(bind_mat(b, &m->down[i], MAT_MXFP4, c->latent, m->cols, 0, 0));
    bind_name(b, name, "block_sparse_moe.experts.%d.w2", e);
    return bind_rows_mxfp4(b, &m->down[i], 0, &(struct block){name, c->latent, c->expert_inter, all, cols});
}

/* one whole BF16 tensor "block_sparse_moe.<what>.weight" as a replicated matrix */
static enum status bind_whole(struct binder *b, struct mat *m, const char *what, int n, int k, int exact)
{
    char name[WEIGHT_NAME];
    TRY(bind_mat(b, m, MAT_BF16, n, k, 0, exact));
    bind_name(b, name, "block_sparse_moe.%s.weight", what);
    return bind_rows(b, m, 0, &(struct block){name, n, k, {0, n}, {0, k}});
}

enum status moe_open(struct binder *b, struct moe *m)
{
    const struct config *c = b->c;
    char name[WEIGHT_NAME];
    m->layer = b->layer;
    m->cols = range_len(b->shard.expert_cols);
    TRY(bind_whole(b, &m->router, "gate", c->n_experts, c->hidden, 1));
    TRY(bind_whole(b, &m->lat_down, "routed_expert_down_proj", c->latent, c->hidden, 0));
    TRY(bind_whole(b, &m->lat_up, "routed_expert_up_proj", c->hidden, c->latent, 0));
    bind_name(b, name, "block_sparse_moe.gate.e_score_correction_bias");
    TRY(bind_vector(b, &m->bias, name, ST_DT_F32, c->n_experts, (struct range){0, c->n_experts}));
    bind_name(b, name, "block_sparse_moe.routed_expert_norm.weight");
    TRY(bind_vector(b, &m->norm, name, ST_DT_BF16, c->latent, (struct range){0, c->latent}));
    TRY(mlp_open(b, "block_sparse_moe.shared_experts", c->shared_inter, b->shard.shared_cols, &m->shared));
    int n = range_len(b->shard.experts);
    m->up = mem_alloc((size_t)n, sizeof *m->up, "expert matrices");
    m->down = mem_alloc((size_t)n, sizeof *m->down, "expert matrices");
    if (!m->up || !m->down) return ST_E_NOMEM;
    m->n_local = n;
    for (int i = 0; i < n; i++) TRY(bind_expert(b, m, i));
    return ST_OK;
}

void moe_close(struct ops *o, struct moe *m)
{
    struct mat *mat[] = {&m->router, &m->lat_down, &m->lat_up};
    for (size_t i = 0; i < sizeof mat / sizeof *mat; i++) o->mat_free(o, mat[i]);
    for (int i = 0; i < m->n_local; i++) {
        o->mat_free(o, &m->up[i]);
        o->mat_free(o, &m->down[i]);
    }
    mem_free(m->up);
    mem_free(m->down);
    o->mem_free(o, &m->bias);
    o->mem_free(o, &m->norm);
    mlp_close(o, &m->shared);
}

static int n_parts(const struct shard *s)
{
    return s->ep == 1 ? 1 : s->groups;
}

static int64_t carve(const struct moe *m, const struct config *c, const struct shard *s, float *base, int64_t t,
                     struct work *w)
{
    int64_t at = 0, sum = n_parts(s) * t * c->latent;
    w->logits = run_take(base, &at, t * c->n_experts);
    w->weight = run_take(base, &at, t * c->top_k);
    w->idx = (int32_t *)run_take(base, &at, t * c->top_k);
    w->z = run_take(base, &at, t * c->latent);
    w->sum = run_take(base, &at, sum + t * c->hidden);
    w->shared = base ? w->sum + sum : NULL;
    w->mlp = run_take(base, &at, mlp_scratch(&m->shared, (int)t));
    return at;
}

int64_t moe_scratch(const struct moe *m, const struct config *c, const struct shard *s, int t)
{
    struct work w;
    return carve(m, c, s, NULL, t, &w);
}

/* Both sums over the group. Without EP the routed partial of a rank is one leaf, in rank order like the shared one,
 * so one call carries both; with EP the routed tree has its own order. */
static enum status sum_ranks(const struct run *r, const struct work *w)
{
    const struct config *c = r->c;
    int64_t t = r->t;
    if (r->shard->ep == 1) return run_sum(r, w->sum, c->latent + c->hidden);
    TRY(r->comm->sum(r->comm->ctx, r->o, w->sum, t * c->latent, r->shard->groups, r->moe_order, t, c->latent));
    return run_sum(r, w->shared, c->hidden);
}

enum status moe_forward(struct moe *m, const struct run *r, const float *x, float *y)
{
    struct ops *o = r->o;
    const struct config *c = r->c;
    const struct shard *s = r->shard;
    struct work w;
    int t = r->t;
    carve(m, c, s, r->scratch, t, &w);
    o->linear(o, &m->router, x, c->hidden, t, w.logits, c->n_experts);
    o->route(o, w.logits, m->bias.p, c->n_experts, c->top_k, c->routed_scale, t, w.idx, w.weight);
    run_probe(r, "router_logits", m->layer, w.logits, c->n_experts, c->n_experts);
    run_probe(r, "router_idx", m->layer, (const float *)w.idx, c->top_k, c->top_k);
    run_probe(r, "router_weight", m->layer, w.weight, c->top_k, c->top_k);
    o->linear(o, &m->lat_down, x, c->hidden, t, w.z, c->latent);
    o->moe(o, m->up, m->down, s->experts.begin, m->n_local, c->n_experts, w.z, c->latent, m->cols, s->groups,
           s->ep == 1, w.idx, w.weight, c->top_k, c->situ_beta, c->situ_linear_beta, t, w.sum, (int64_t)t * c->latent);
    mlp_partial(&m->shared, r, x, w.mlp, w.shared);
    TRY(sum_ranks(r, &w));
    run_probe(r, "moe_latent_sum", m->layer, w.sum, c->latent, c->latent);
    o->rmsnorm(o, w.sum, c->latent, m->norm.p, c->norm_eps, t, c->latent, w.sum, c->latent);
    o->linear(o, &m->lat_up, w.sum, c->latent, t, y, c->hidden);
    o->add(o, y, w.shared, (int64_t)t * c->hidden);
    return ST_OK;
}
