#include "model/kda.h"

#include <math.h>
#include <string.h>

static int width(const struct kda *k)
{
    return k->heads * k->d;
}

static int aux_width(const struct kda *k)
{
    return width(k) + k->d + k->heads;
}

static int64_t carve_rows(const struct kda *k, float *base, int t, struct kda_rows *w)
{
    int64_t at = 0, n = t;
    w->x = run_take(base, &at, n * 3 * width(k));
    w->qkv = run_take(base, &at, n * 3 * width(k));
    w->g = run_take(base, &at, n * width(k));
    w->aux = run_take(base, &at, n * aux_width(k));
    return at;
}

int64_t kda_scratch(const struct kda *k, int t)
{
    struct kda_rows w;
    int64_t at = carve_rows(k, NULL, t, &w);
    run_take(NULL, &at, (int64_t)t * width(k));
    return at;
}

/* the short convolutions of q, k and v, this rank's channels one after the other */
static enum status bind_conv(struct binder *b, struct kda *k, int p, struct range ch)
{
    static const char *const which = "qkv";
    char name[WEIGHT_NAME];
    int kernel = b->c->conv_kernel;
    size_t part = (size_t)(width(k) * kernel);
    float *w = mem_alloc(3 * part, sizeof *w, "convolution weights");
    if (!w) return ST_E_NOMEM;
    enum status st = ST_OK;
    for (int i = 0; i < 3 && st == ST_OK; i++) {
        const void *data;
        bind_name(b, name, "self_attn.%c_conv1d.weight", which[i]);
        st = bind_f32(b, name, 3, (int64_t[]){p, 1, kernel}, &data);
        if (st == ST_OK)
            memcpy(w + (size_t)i * part, (const char *)data + 4 * (int64_t)ch.begin * kernel, part * sizeof *w);
    }
    if (st == ST_OK) st = bind_floats(b, &k->conv, w, 3 * (int64_t)part, "convolution weights");
    mem_free(w);
    return st;
}

/* A_log is stored zero-padded to head_dim values; only the first kda_heads mean anything */
static enum status bind_decay(struct binder *b, struct kda *k, struct range heads)
{
    char name[WEIGHT_NAME];
    const void *data;
    float *a = mem_alloc((size_t)k->heads, sizeof *a, "A_log");
    if (!a) return ST_E_NOMEM;
    enum status st = bind_f32(b, bind_name(b, name, "self_attn.A_log"), 1, (int64_t[]){b->c->kda_dim}, &data);
    if (st == ST_OK && b->c->kda_heads > b->c->kda_dim)
        st = ERR(ST_E_CONFIG, "%s holds %d values, linear_attn_config.num_heads %d need one each", name, b->c->kda_dim,
                 b->c->kda_heads);
    if (st == ST_OK) {
        memcpy(a, (const char *)data + 4 * heads.begin, (size_t)k->heads * sizeof *a);
        for (int h = 0; h < k->heads; h++) a[h] = expf(a[h]);
        st = bind_floats(b, &k->a_exp, a, k->heads, "A_log");
    }
    mem_free(a);
    return st;
}

static enum status bind_mats(struct binder *b, struct kda *k, int p, struct range ch)
{
    const struct config *c = b->c;
    char name[WEIGHT_NAME];
    int w = width(k);
    struct range all_h = {0, c->hidden}, all_d = {0, k->d};
    TRY(bind_mat(b, &k->qkv, MAT_BF16, 3 * w, c->hidden, 0, 0));
    for (int i = 0; i < 3; i++) {
        bind_name(b, name, "self_attn.%c_proj.weight", "qkv"[i]);
        TRY(bind_rows(b, &k->qkv, i * w, &(struct block){name, p, c->hidden, ch, all_h}));
    }
    TRY(bind_mat(b, &k->aux, MAT_BF16, aux_width(k), c->hidden, 0, 0));
    bind_name(b, name, "self_attn.g_proj.weight");
    TRY(bind_rows(b, &k->aux, 0, &(struct block){name, p, c->hidden, ch, all_h}));
    bind_name(b, name, "self_attn.f_a_proj.weight");
    TRY(bind_rows(b, &k->aux, w, &(struct block){name, k->d, c->hidden, all_d, all_h}));
    bind_name(b, name, "self_attn.b_proj.weight");
    TRY(bind_rows(b, &k->aux, w + k->d, &(struct block){name, c->kda_heads, c->hidden, b->shard.kda_heads, all_h}));
    TRY(bind_mat(b, &k->f_b, MAT_BF16, w, k->d, 0, 0));
    bind_name(b, name, "self_attn.f_b_proj.weight");
    TRY(bind_rows(b, &k->f_b, 0, &(struct block){name, p, k->d, ch, all_d}));
    TRY(bind_mat(b, &k->out, MAT_BF16, c->hidden, w, k->d, 0));
    bind_name(b, name, "self_attn.o_proj.weight");
    return bind_rows(b, &k->out, 0, &(struct block){name, c->hidden, p, all_h, ch});
}

enum status kda_open(struct binder *b, int max_verify_rows, struct kda *k)
{
    const struct config *c = b->c;
    struct range heads = b->shard.kda_heads;
    struct range ch = {heads.begin * c->kda_dim, heads.end * c->kda_dim};
    int p = c->kda_heads * c->kda_dim;
    char name[WEIGHT_NAME];
    k->layer = b->layer;
    k->heads = range_len(heads);
    k->d = c->kda_dim;
    TRY(bind_mats(b, k, p, ch));
    TRY(bind_conv(b, k, p, ch));
    TRY(bind_decay(b, k, heads));
    TRY(bind_vector(b, &k->dt_bias, bind_name(b, name, "self_attn.dt_bias"), ST_DT_F32, p, ch));
    TRY(bind_vector(b, &k->norm, bind_name(b, name, "self_attn.o_norm.weight"), ST_DT_F32, k->d,
                    (struct range){0, k->d}));
    if (max_verify_rows == 0) return ST_OK;
    size_t bytes = (size_t)carve_rows(k, NULL, max_verify_rows, &k->record) * sizeof(float);
    TRY(b->o->mem_new(b->o, &k->record_mem, bytes, "replay records"));
    carve_rows(k, k->record_mem.p, max_verify_rows, &k->record);
    return ST_OK;
}

void kda_close(struct ops *o, struct kda *k)
{
    struct mat *mat[] = {&k->qkv, &k->aux, &k->f_b, &k->out};
    struct buf *buf[] = {&k->conv, &k->a_exp, &k->dt_bias, &k->norm, &k->record_mem};
    for (size_t i = 0; i < sizeof mat / sizeof *mat; i++) o->mat_free(o, mat[i]);
    for (size_t i = 0; i < sizeof buf / sizeof *buf; i++) o->mem_free(o, buf[i]);
}

/* projections, convolution, norms and gates: fills w for all rows */
static void inputs(struct kda *k, const struct run *r, const float *u, struct kda_rows *w)
{
    struct ops *o = r->o;
    const struct config *c = r->c;
    int n = width(k), na = aux_width(k), t = r->t;
    o->linear(o, &k->qkv, u, c->hidden, t, w->x, 3 * n);
    o->round_kv(o, w->x, (int64_t)t * 3 * n, r->kv);
    o->linear(o, &k->aux, u, c->hidden, t, w->aux, na);
    o->linear(o, &k->f_b, w->aux + n, na, t, w->g, n);
    for (int i = 0; i < r->n_seq; i++) r->seq[i].state = state_item(r->state, COMP_CONV, k->layer, 0, r->part[i].slot);
    o->conv(o, w->x, 3 * n, k->conv.p, c->conv_kernel, 3 * n, r->kv, r->seq, r->n_seq, w->qkv);
    o->kda_prepare(o, w->qkv, w->g, n, w->aux + n + k->d, na, k->a_exp.p, k->dt_bias.p, c->gate_lower_bound, t,
                   k->heads, k->d);
    run_probe(r, "kda_q", k->layer, w->qkv, 3 * n, n);
    run_probe(r, "kda_k", k->layer, w->qkv + n, 3 * n, n);
    run_probe(r, "kda_v", k->layer, w->qkv + 2 * n, 3 * n, n);
    run_probe(r, "kda_g", k->layer, w->g, n, n);
    run_probe(r, "kda_beta", k->layer, w->aux + n + k->d, na, k->heads);
}

/* one sequence: out rows from its state; the state and tail advance unless the rows are only being verified */
static void advance(struct kda *k, const struct run *r, const struct kda_rows *w, int i, float *out)
{
    struct ops *o = r->o;
    int n = width(k), na = aux_width(k), write = r->kind != BATCH_VERIFY;
    int64_t row = r->seq[i].row0;
    float *state = state_item(r->state, COMP_KDA, k->layer, 0, r->part[i].slot);
    o->kda_recur(o, w->qkv + row * 3 * n, w->g + row * n, n, w->aux + row * na + n + k->d, na, state, write,
                 r->seq[i].n_rows, k->heads, k->d, out + row * n, n);
    if (write)
        o->conv_commit(o, r->seq[i].state, w->x + row * 3 * n, 3 * n, r->c->conv_kernel, 3 * n, r->kv,
                       r->seq[i].n_rows);
}

enum status kda_forward(struct kda *k, const struct run *r, const float *u, float *y)
{
    struct ops *o = r->o;
    struct kda_rows w;
    int n = width(k), t = r->t;
    int64_t at = 0;
    if (r->kind == BATCH_VERIFY)
        w = k->record;
    else
        at = carve_rows(k, r->scratch, t, &w);
    float *out = run_take(r->scratch, &at, (int64_t)t * n);
    inputs(k, r, u, &w);
    for (int i = 0; i < r->n_seq; i++) advance(k, r, &w, i, out);
    o->kda_out(o, out, w.aux, aux_width(k), k->norm.p, r->c->norm_eps, t, k->heads, k->d);
    run_probe(r, "kda_gated", k->layer, out, n, n);
    o->linear(o, &k->out, out, n, t, y, r->c->hidden);
    return run_sum(r, y, r->c->hidden);
}

void kda_commit(struct kda *k, struct ops *o, const struct config *c, const struct state *s, const struct batch_seq *q,
                int n)
{
    const struct kda_rows *w = &k->record;
    int p = width(k), na = aux_width(k);
    int64_t row = q->row0;
    o->kda_recur(o, w->qkv + row * 3 * p, w->g + row * p, p, w->aux + row * na + p + k->d, na,
                 state_item(s, COMP_KDA, k->layer, 0, q->slot), 1, n, k->heads, k->d, NULL, 0);
    o->conv_commit(o, state_item(s, COMP_CONV, k->layer, 0, q->slot), w->x + row * 3 * p, 3 * p, c->conv_kernel, 3 * p,
                   (enum ops_kv)s->layout.spec.kv, n);
}
