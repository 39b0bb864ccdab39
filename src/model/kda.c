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

static void set_states(const struct kda *k, const struct state *s, enum comp comp, const struct batch_seq *part,
                       struct seq_rows *seq, int n_seq)
{
    for (int i = 0; i < n_seq; i++) seq[i].state = state_item(s, comp, k->layer, 0, part[i].slot);
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
    set_states(k, r->state, COMP_CONV, r->part, r->seq, r->n_seq);
    o->conv(o, w->x, 3 * n, k->conv.p, c->conv_kernel, 3 * n, r->kv, r->seq, r->n_seq, w->qkv);
    o->kda_prepare(o, w->qkv, w->g, n, w->aux + n + k->d, na, k->a_exp.p, k->dt_bias.p, c->gate_lower_bound, t,
                   k->heads, k->d);
    run_probe(r, "kda_q", k->layer, w->qkv, 3 * n, n);
    run_probe(r, "kda_k", k->layer, w->qkv + n, 3 * n, n);
    run_probe(r, "kda_v", k->layer, w->qkv + 2 * n, 3 * n, n);
    run_probe(r, "kda_g", k->layer, w->g, n, n);
    run_probe(r, "kda_beta", k->layer, w->aux + n + k->d, na, k->heads);
}

/* the recurrence over the rows of each sequence, from the state in seq[i].state; out NULL: the state only */
static void recur(struct kda *k, struct ops *o, const struct kda_rows *w, int write, int chunked,
                  const struct seq_rows *seq, int n_seq, float *out)
{
    int n = width(k), na = aux_width(k);
    const float *beta = w->aux + n + k->d;
    if (o->kda_recur_seqs && !chunked) {
        o->kda_recur_seqs(o, w->qkv, w->g, n, beta, na, write, seq, n_seq, k->heads, k->d, out, n);
        return;
    }
    for (int i = 0; i < n_seq; i++) {
        int64_t row = seq[i].row0;
        const float *qkv = w->qkv + row * 3 * n, *g = w->g + row * n, *b = beta + row * na;
        float *to = out ? out + row * n : NULL;
        if (chunked)
            o->kda_chunk(o, qkv, g, n, b, na, seq[i].state, seq[i].n_rows, k->heads, k->d, o->kda_chunk_rows, to, n);
        else
            o->kda_recur(o, qkv, g, n, b, na, seq[i].state, write, seq[i].n_rows, k->heads, k->d, to, n);
    }
}

/* the tails of the sequences absorb their rows */
static void push_tails(struct kda *k, struct ops *o, const struct config *c, enum ops_kv kv, const float *x,
                       const struct seq_rows *seq, int n_seq)
{
    int64_t ch = 3 * width(k);
    if (o->conv_commit_seqs) {
        o->conv_commit_seqs(o, x, ch, c->conv_kernel, (int)ch, kv, seq, n_seq);
        return;
    }
    for (int i = 0; i < n_seq; i++)
        o->conv_commit(o, seq[i].state, x + seq[i].row0 * ch, ch, c->conv_kernel, (int)ch, kv, seq[i].n_rows);
}

enum status kda_forward(struct kda *k, const struct run *r, const float *u, float *y)
{
    struct ops *o = r->o;
    struct kda_rows w;
    int n = width(k), t = r->t, write = r->kind != BATCH_VERIFY; /* rows that are only being verified leave no trace */
    int chunked = o->kda_chunk_rows && (r->kind == BATCH_PREFILL || r->kind == BATCH_WARMUP);
    int64_t at = 0;
    if (r->kind == BATCH_VERIFY)
        w = k->record;
    else
        at = carve_rows(k, r->scratch, t, &w);
    float *out = run_take(r->scratch, &at, (int64_t)t * n);
    inputs(k, r, u, &w);
    if (write) push_tails(k, o, r->c, r->kv, w.x, r->seq, r->n_seq);
    set_states(k, r->state, COMP_KDA, r->part, r->seq, r->n_seq);
    recur(k, o, &w, write, chunked, r->seq, r->n_seq, out);
    o->kda_out(o, out, w.aux, aux_width(k), k->norm.p, r->c->norm_eps, t, k->heads, k->d);
    run_probe(r, "kda_gated", k->layer, out, n, n);
    o->linear(o, &k->out, out, n, t, y, r->c->hidden);
    return run_sum(r, y, r->c->hidden);
}

void kda_commit(struct kda *k, struct ops *o, const struct config *c, const struct state *s, const struct batch_seq *q,
                int n_seq, struct seq_rows *seq)
{
    const struct kda_rows *w = &k->record;
    set_states(k, s, COMP_KDA, q, seq, n_seq);
    recur(k, o, w, 1, 0, seq, n_seq, NULL);
    set_states(k, s, COMP_CONV, q, seq, n_seq);
    push_tails(k, o, c, (enum ops_kv)s->layout.spec.kv, w->x, seq, n_seq);
}
