#include "model/resid.h"

#include <string.h>

enum status flow_open(struct ops *o, const struct config *c, int cap_rows, struct flow *f_p)
{
    struct flow f = {.cap_rows = cap_rows};
    int64_t plane = (int64_t)cap_rows * c->hidden;
    int max_bank = split_bank_rows(c->res_block, c->n_layers);
    TRY(o->mem_new(o, &f.mem, (size_t)(plane * (2 + max_bank)) * sizeof(float), "activations between layers"));
    f.prefix = f.mem.p;
    f.acc = f.prefix + plane;
    f.bank = f.acc + plane;
    *f_p = f;
    return ST_OK;
}

void flow_close(struct ops *o, struct flow *f)
{
    if (!f) return;
    o->mem_free(o, &f->mem);
    memset(f, 0, sizeof *f);
}

enum status resid_bind(struct binder *b, const char *stem, const char *norm, struct resid_site *s)
{
    char name[WEIGHT_NAME];
    int h = b->c->hidden;
    TRY(bind_query(b, &s->q, stem));
    return bind_vector(b, &s->norm, bind_name(b, name, "%s.weight", norm), ST_DT_BF16, h, (struct range){0, h});
}

void resid_unbind(struct ops *o, struct resid_site *s)
{
    o->mem_free(o, &s->q);
    o->mem_free(o, &s->norm);
}

void resid_read(const struct run *r, const struct flow *f, const struct resid_site *s, int row0, int t, float *mix,
                float *u)
{
    const struct config *c = r->c;
    int64_t at = (int64_t)row0 * c->hidden;
    r->o->attnres(r->o, f->bank + at, (int64_t)f->cap_rows * c->hidden, f->n_bank, f->prefix + at, s->q.p, c->norm_eps,
                  t, c->hidden, mix, s->norm.p, c->norm_eps, u);
}

int resid_snapshots(const struct config *c, int layer)
{
    return layer % c->res_block == 0;
}

void resid_push(const struct run *r, struct flow *f)
{
    int64_t h = r->c->hidden;
    r->o->copy(r->o, f->bank + (int64_t)f->n_bank * f->cap_rows * h, f->prefix, (size_t)(r->t * h) * sizeof(float));
    f->n_bank++;
}
