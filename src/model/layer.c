#include "model/layer.h"

enum status layer_open(struct binder *b, int max_verify_rows, int expanded, struct layer *l)
{
    const struct config *c = b->c;
    l->index = b->layer;
    l->is_kda = c->is_kda[b->layer];
    l->is_dense = b->layer < c->n_dense;
    TRY(resid_bind(b, "self_attention_res", "input_layernorm", &l->attn));
    TRY(resid_bind(b, "mlp_res", "post_attention_layernorm", &l->ffn));
    TRY(l->is_kda ? kda_open(b, max_verify_rows, &l->kda) : mla_open(b, expanded, &l->mla));
    return l->is_dense ? mlp_open(b, "mlp", c->dense_inter, b->shard.dense_cols, &l->mlp) : moe_open(b, &l->moe);
}

void layer_close(struct ops *o, struct layer *l)
{
    resid_unbind(o, &l->attn);
    resid_unbind(o, &l->ffn);
    kda_close(o, &l->kda);
    mla_close(o, &l->mla);
    mlp_close(o, &l->mlp);
    moe_close(o, &l->moe);
}

int64_t layer_scratch(const struct layer *l, const struct config *c, const struct shard *s, int t)
{
    int64_t a = l->is_kda ? kda_scratch(&l->kda, t) : mla_scratch(&l->mla, c, t);
    int64_t f = l->is_dense ? mlp_scratch(&l->mlp, t) : moe_scratch(&l->moe, c, s, t);
    return a > f ? a : f;
}

static enum status attention(struct layer *l, const struct run *r, struct flow *f, const struct layer_bufs *m)
{
    int h = r->c->hidden, restart = resid_snapshots(r->c, l->index);
    float *y = m->y;
    if (restart) { /* the prefix restarts from the attention output, so that is written in its place */
        resid_push(r, f);
        y = f->prefix;
    }
    TRY(l->is_kda ? kda_forward(&l->kda, r, m->u, y) : mla_forward(&l->mla, r, m->u, y));
    run_probe(r, "attn_out", l->index, y, h, h);
    if (!restart) r->o->add(r->o, f->prefix, y, (int64_t)r->t * h);
    return ST_OK;
}

enum status layer_forward(struct layer *l, const struct run *r, struct flow *f, const struct layer_bufs *m,
                          const struct tap_sink *taps, int tap_index)
{
    int h = r->c->hidden, i = l->index;
    float *mix = r->probe ? m->mix : NULL;
    run_probe(r, "prefix_in", i, f->prefix, h, h);
    resid_read(r, f, &l->attn, 0, r->t, tap_index >= 0 ? m->mix : mix, m->u);
    if (tap_index >= 0) TRY(taps->tap(taps->ctx, tap_index, m->mix, r->t));
    if (mix) run_probe(r, "attn_site", i, mix, h, h);
    run_probe(r, "attn_in", i, m->u, h, h);
    TRY(attention(l, r, f, m));
    run_probe(r, "prefix_mid", i, f->prefix, h, h);
    resid_read(r, f, &l->ffn, 0, r->t, mix, m->u);
    if (mix) run_probe(r, "mlp_site", i, mix, h, h);
    run_probe(r, "mlp_in", i, m->u, h, h);
    TRY(l->is_dense ? mlp_forward(&l->mlp, r, m->u, m->y) : moe_forward(&l->moe, r, m->u, m->y));
    run_probe(r, "mlp_out", i, m->y, h, h);
    r->o->add(r->o, f->prefix, m->y, (int64_t)r->t * h);
    run_probe(r, "prefix_out", i, f->prefix, h, h);
    return ST_OK;
}
