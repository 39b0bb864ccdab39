#include "plan/layout.h"

#include <string.h>

#include "base/buf.h"
#include "base/hash.h"

const char *const comp_name[COMP_N] = {"mla", "kda", "conv", "draft", "aux"};

_Static_assert(sizeof(struct layout_aux) == 64, "the aux record is one 64-byte line");

enum { ITEM_ALIGN = 64, ARENA_ALIGN = 4096 };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int kda_layers(const struct config *c, struct range r)
{
    int n = 0;
    for (int i = r.begin; i < r.end; i++) n += c->is_kda[i] != 0;
    return n;
}

static enum status check_spec(const struct config *c, const struct draft_config *d, const struct layout_spec *s)
{
    if (s->page < 1) return ERR(ST_E_CONFIG, "layout: page %d tokens: at least 1 is needed", s->page);
    if (s->n_pages < 0 || s->n_slots < 0)
        return ERR(ST_E_CONFIG, "layout: %d pages, %d state slots: neither may be negative", s->n_pages, s->n_slots);
    if (s->layers.begin < 0 || s->layers.end < s->layers.begin || s->layers.end > c->n_layers)
        return ERR(ST_E_CONFIG, "layout: layers [%d, %d) are not part of num_hidden_layers %d", s->layers.begin,
                   s->layers.end, c->n_layers);
    if (s->tp < 1 || s->tp_rank < 0 || s->tp_rank >= s->tp)
        return ERR(ST_E_CONFIG, "layout: tp rank %d of tp %d does not exist", s->tp_rank, s->tp);
    if (kda_layers(c, s->layers) > 0 && c->kda_heads % s->tp)
        return ERR(ST_E_CONFIG, "layout: tp %d does not divide linear_attn_config.num_heads %d; choose another tp",
                   s->tp, c->kda_heads);
    if (s->absent & ~(1u << COMP_MLA | 1u << COMP_DRAFT))
        return ERR(ST_E_CONFIG, "layout: components %#x are left to another rank; only mla and draft can be", s->absent);
    if (!s->has_draft) return ST_OK;
    if (!d) return ERR(ST_E_CONFIG, "layout: draft entries asked for without a draft model; give --draft");
    if (d->kv_heads % s->tp && s->tp % d->kv_heads)
        return ERR(ST_E_CONFIG,
                   "layout: tp %d and the draft's num_key_value_heads %d do not divide one another; choose another tp",
                   s->tp, d->kv_heads);
    return ST_OK;
}

/* append an entry behind what is there; an arena too large for int64 leaves bytes at -1 */
static void add(struct layout *l, enum comp comp, int layer, int kv, struct range heads, int64_t item_bytes)
{
    struct layout_entry *e = &l->entry[l->n++];
    int paged = comp == COMP_MLA || comp == COMP_DRAFT;
    e->comp = comp;
    e->layer = layer;
    e->kv = kv;
    e->head0 = heads.begin;
    e->n_heads = heads.end - heads.begin;
    e->base = l->bytes;
    e->item_bytes = item_bytes;
    e->stride = round_up(item_bytes, ITEM_ALIGN);
    e->n_items = paged ? l->spec.n_pages : l->spec.n_slots;
    int64_t all, end;
    if (l->bytes < 0 || __builtin_mul_overflow(e->stride, (int64_t)e->n_items, &all) ||
        __builtin_add_overflow(l->bytes, all, &end) || end > INT64_MAX - ARENA_ALIGN)
        end = -1;
    l->bytes = end;
}

static void add_target(const struct config *c, struct layout *l)
{
    const struct layout_spec *s = &l->spec;
    const struct range whole = {0, 1};
    struct range heads = {0, 0};
    int64_t e = kv_bytes(s->kv), mla = (int64_t)s->page * (c->kv_rank + c->qk_rope) * e;
    if (kda_layers(c, s->layers) > 0) heads = split_kv_heads(c->kda_heads, s->tp, s->tp_rank);
    int64_t n = heads.end - heads.begin, d = c->kda_dim;
    for (int i = s->layers.begin; i < s->layers.end; i++)
        if (!c->is_kda[i] && !(s->absent >> COMP_MLA & 1)) add(l, COMP_MLA, i, 0, whole, mla);
    for (int i = s->layers.begin; i < s->layers.end; i++)
        if (c->is_kda[i]) add(l, COMP_KDA, i, 0, heads, n * d * d * 4);
    for (int i = s->layers.begin; i < s->layers.end; i++)
        if (c->is_kda[i]) add(l, COMP_CONV, i, 0, heads, (int64_t)(c->conv_kernel - 1) * 3 * n * d * e);
}

enum status layout_make(const struct config *c, const struct draft_config *draft, const struct layout_spec *spec,
                        struct layout *l_p)
{
    TRY(check_spec(c, draft, spec));
    struct layout l = {.spec = *spec};
    int n_layers = spec->layers.end - spec->layers.begin;
    int n_draft = spec->has_draft && !(spec->absent >> COMP_DRAFT & 1) ? draft->n_layers : 0;
    size_t most = (size_t)(2 * n_layers + 2 * n_draft + 1);
    l.entry = mem_alloc(most, sizeof *l.entry, "layout entries");
    if (!l.entry) return ST_E_NOMEM;
    add_target(c, &l);
    for (int i = 0; i < n_draft; i++)
        for (int kv = 0; kv < 2; kv++) {
            struct range heads = split_kv_heads(draft->kv_heads, spec->tp, spec->tp_rank);
            int64_t n = heads.end - heads.begin;
            add(&l, COMP_DRAFT, i, kv, heads, n * spec->page * draft->head_dim * kv_bytes(spec->draft_kv));
        }
    if (spec->has_aux) add(&l, COMP_AUX, 0, 0, (struct range){0, 1}, (int64_t)sizeof(struct layout_aux));
    if (l.bytes < 0) {
        layout_free(&l);
        return ERR(ST_E_CONFIG, "layout: %d pages of %d tokens and %d state slots are too large to address; ask for fewer",
                   spec->n_pages, spec->page, spec->n_slots);
    }
    l.bytes = round_up(l.bytes, ARENA_ALIGN);
    *l_p = l;
    return ST_OK;
}

void layout_free(struct layout *l)
{
    if (!l) return;
    mem_free(l->entry);
    memset(l, 0, sizeof *l);
}

int layout_find(const struct layout *l, enum comp comp, int layer, int kv)
{
    for (int i = 0; i < l->n; i++)
        if (l->entry[i].comp == comp && l->entry[i].layer == layer && l->entry[i].kv == kv) return i;
    return -1;
}

int64_t layout_offset(const struct layout *l, int entry, int64_t item)
{
    if (entry < 0 || entry >= l->n) return -1;
    const struct layout_entry *e = &l->entry[entry];
    return item < 0 || item >= e->n_items ? -1 : e->base + item * e->stride;
}

uint64_t layout_hash(const struct layout *l)
{
    const struct layout_spec *s = &l->spec;
    const int64_t head[] = {s->page,      s->order,   s->kv, s->draft_kv, s->layers.begin, s->layers.end, s->has_draft,
                            s->has_aux,   s->tp,      s->tp_rank, s->n_pages, s->n_slots,  l->n,          l->bytes,
                            s->absent,    s->rows_for.begin, s->rows_for.end, s->draft_for};
    uint64_t h = hash64(head, sizeof head, 0);
    for (int i = 0; i < l->n; i++) { /* field by field: struct padding has no meaning */
        const struct layout_entry *e = &l->entry[i];
        const int64_t row[] = {e->comp, e->layer,  e->kv,         e->head0,  e->n_heads,
                               e->base, e->stride, e->item_bytes, e->n_items};
        h = hash64(row, sizeof row, h);
    }
    return h;
}
