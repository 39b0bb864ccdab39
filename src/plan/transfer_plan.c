#include "plan/transfer_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"

enum { PLAN_VERSION = 2 }; /* raise when the meaning of a plan or of a layout changes */

struct pairing { /* what building one pair needs to see */
    const struct config *c;
    const struct draft_config *d;
    const struct layout *src, *dst;
    int p, P, q, D; /* source rank of P, destination rank of D */
};

static int paged(enum comp comp)
{
    return comp == COMP_MLA || comp == COMP_DRAFT;
}

/* bytes of one head of an item; of the whole item where heads do not exist */
static int64_t head_bytes(const struct config *c, const struct draft_config *d, const struct layout_spec *s,
                          enum comp comp)
{
    switch (comp) {
    case COMP_MLA: return (int64_t)s->page * (c->kv_rank + c->qk_rope) * kv_bytes(s->kv);
    case COMP_KDA: return (int64_t)c->kda_dim * c->kda_dim * 4;
    case COMP_CONV: return (int64_t)(c->conv_kernel - 1) * 3 * c->kda_dim * kv_bytes(s->kv);
    case COMP_DRAFT: return (int64_t)s->page * d->head_dim * kv_bytes(s->draft_kv);
    default: return (int64_t)sizeof(struct layout_aux);
    }
}

/* smallest contiguous piece of one head: an item is rows of them, head by head (conv rows of q, k and v; tokens of a
 * token-major page), or one row */
static int64_t unit_bytes(const struct config *c, const struct draft_config *d, const struct layout_spec *s, enum comp comp)
{
    if (comp == COMP_CONV) return (int64_t)c->kda_dim * kv_bytes(s->kv);
    if (comp == COMP_DRAFT && s->order == PAGE_TOKEN_MAJOR) return (int64_t)d->head_dim * kv_bytes(s->draft_kv);
    return head_bytes(c, d, s, comp);
}

/* ---- refusals: each side alone, then the two against each other ------------------------------------- */

static enum status check_entry(const struct pairing *x, const struct layout *l, const char *side, int i)
{
    const struct layout_entry *e = &l->entry[i];
    const struct layout_spec *s = &l->spec;
    if (e->comp == COMP_DRAFT && !x->d)
        return ERR(ST_E_HANDSHAKE, "%s: draft layer %d has an entry but no draft model is given; give --draft on both sides",
                   side, e->layer);
    struct range want = {0, 1};
    int total = 1, sharded = e->comp != COMP_MLA && e->comp != COMP_AUX;
    if (sharded) {
        total = e->comp == COMP_DRAFT ? x->d->kv_heads : x->c->kda_heads;
        if (total % s->tp && (e->comp != COMP_DRAFT || s->tp % total))
            return ERR(ST_E_HANDSHAKE, "%s: tp %d does not fit the %d heads of %s layer %d; choose another tp", side, s->tp,
                       total, comp_name[e->comp], e->layer);
        want = split_kv_heads(total, s->tp, s->tp_rank);
    }
    if (e->head0 != want.begin || e->n_heads != want.end - want.begin)
        return ERR(ST_E_HANDSHAKE, "%s: %s layer %d holds heads [%d, %d); %d heads in all over tp %d give [%d, %d)", side,
                   comp_name[e->comp], e->layer, e->head0, e->head0 + e->n_heads, total, s->tp, want.begin, want.end);
    int64_t item = e->n_heads * head_bytes(x->c, x->d, s, e->comp);
    if (e->item_bytes != item || e->stride < item || e->base < 0)
        return ERR(ST_E_HANDSHAKE,
                   "%s: %s layer %d: item %" PRId64 " bytes, stride %" PRId64 ", base %" PRId64 "; the item must have %" PRId64
                   " bytes",
                   side, comp_name[e->comp], e->layer, e->item_bytes, e->stride, e->base, item);
    for (int j = 0; j < i; j++) {
        const struct layout_entry *f = &l->entry[j];
        if (f->comp == e->comp && f->layer == e->layer && f->kv == e->kv)
            return ERR(ST_E_HANDSHAKE, "%s: entries %d and %d are both %s layer %d %d; keys must differ", side, j, i,
                       comp_name[e->comp], e->layer, e->kv);
        if (e->base < f->base + f->stride * f->n_items && f->base < e->base + e->stride * e->n_items)
            return ERR(ST_E_HANDSHAKE, "%s: %s layer %d at %" PRId64 " overlaps %s layer %d at %" PRId64, side,
                       comp_name[e->comp], e->layer, e->base, comp_name[f->comp], f->layer, f->base);
    }
    return ST_OK;
}

static int count_draft(const struct layout *l)
{
    int n = 0;
    for (int i = 0; i < l->n; i++) n += l->entry[i].comp == COMP_DRAFT;
    return n;
}

static enum status check_draft_count(const struct pairing *x)
{
    int a = count_draft(x->src), b = count_draft(x->dst), want = x->d ? 2 * x->d->n_layers : 0;
    if (x->dst->spec.absent >> COMP_DRAFT & 1) b = b ? -1 : a; /* another rank of the node has them */
    if (a == b && (a == want || a == 0)) return ST_OK;
    return ERR(ST_E_HANDSHAKE,
               "draft K/V entries: source has %d, destination has %d, the draft model has %d; use one --spec on both sides",
               a, b, want);
}

static enum status check_specs(const struct pairing *x, int last)
{
    const struct layout_spec *s = &x->src->spec, *t = &x->dst->spec;
    if (s->tp < 1 || t->tp < 1) return ERR(ST_E_HANDSHAKE, "tp: source %d, destination %d; both start at 1", s->tp, t->tp);
    if (s->page != t->page)
        return ERR(ST_E_HANDSHAKE, "page: source %d tokens, destination %d tokens; use one page size", s->page, t->page);
    if (s->order != t->order)
        return ERR(ST_E_HANDSHAKE, "page order: source %d, destination %d (0 head-major, 1 token-major); use one order",
                   s->order, t->order);
    if (s->kv != t->kv)
        return ERR(ST_E_HANDSHAKE, "kv type: source %d bytes, destination %d bytes; use one --kv-dtype", kv_bytes(s->kv),
                   kv_bytes(t->kv));
    if (s->draft_kv != t->draft_kv)
        return ERR(ST_E_HANDSHAKE, "draft kv type: source %d bytes, destination %d bytes; use one --kv-dtype",
                   kv_bytes(s->draft_kv), kv_bytes(t->draft_kv));
    if (s->layers.begin < t->layers.begin || s->layers.end > t->layers.end)
        return ERR(ST_E_HANDSHAKE, "layers: source has [%d, %d), destination [%d, %d)", s->layers.begin, s->layers.end,
                   t->layers.begin, t->layers.end);
    for (int i = 0; i < x->src->n; i++) TRY(check_entry(x, x->src, "source", i));
    for (int i = 0; i < x->dst->n; i++) TRY(check_entry(x, x->dst, "destination", i));
    if (last) return check_draft_count(x);
    for (int i = 0; i < x->src->n; i++)
        if (x->src->entry[i].comp >= COMP_DRAFT)
            return ERR(ST_E_HANDSHAKE, "source: %s entry on a stage that is not the last", comp_name[x->src->entry[i].comp]);
    return ST_OK;
}

/* every entry of a has its partner in b, as far as the source's stage is concerned */
static enum status check_partners(const struct layout *a, const struct layout *b, const char *a_side, const char *b_side,
                                  struct range stage, int last)
{
    for (int i = 0; i < a->n; i++) {
        const struct layout_entry *e = &a->entry[i];
        int target = e->comp < COMP_DRAFT;
        if (target ? e->layer < stage.begin || e->layer >= stage.end : !last) continue;
        if (b->spec.absent >> e->comp & 1) continue;
        if (layout_find(b, e->comp, e->layer, e->kv) < 0)
            return ERR(ST_E_HANDSHAKE, "%s layer %d %d: the %s has an entry, the %s has none", comp_name[e->comp], e->layer,
                       e->kv, a_side, b_side);
    }
    return ST_OK;
}

/* ---- who sends ------------------------------------------------------------------------------------------ */

/* sources a destination may read replicated rows from, see transfer_plan.h */
static struct range row_sources(const struct pairing *x)
{
    struct range to = x->dst->spec.rows_for;
    if (to.end <= to.begin) to = (struct range){x->q, x->q + 1};
    int first = (int)((int64_t)to.begin * x->P / x->D);
    int end = x->P > x->D ? (int)((int64_t)to.end * x->P / x->D) : (int)((int64_t)(to.end - 1) * x->P / x->D) + 1;
    return (struct range){first, end};
}

/* With more ranks than draft heads several sources hold a head: one of them serves a destination; a destination that
 * receives for several gets its pages from all of them. */
static int serves_draft(const struct pairing *x, int stripe, struct plan_copy *k)
{
    int copies = x->P > x->d->kv_heads ? x->P / x->d->kv_heads : 1;
    if (!stripe || x->dst->spec.draft_for <= 1) return x->p % copies == x->q % copies;
    k->page_mod = copies;
    k->page_rem = x->p % copies;
    return 1;
}

/* ---- copies --------------------------------------------------------------------------------------------- */

/* runs that touch on both sides are one run */
static void collapse(struct plan_copy *k)
{
    for (int i = 0; i < 2; i++) {
        if (k->n_runs[i] > 1 && (k->src_step[i] != k->run || k->dst_step[i] != k->run)) return;
        k->run *= k->n_runs[i];
        k->n_runs[i] = 1;
        k->src_step[i] = k->dst_step[i] = 0;
    }
}

static void copy_heads(const struct pairing *x, struct plan_copy *k, int lo, int n)
{
    const struct layout_entry *a = &x->src->entry[k->src_entry], *b = &x->dst->entry[k->dst_entry];
    const struct layout_spec *s = &x->src->spec;
    int64_t unit = unit_bytes(x->c, x->d, s, k->comp), inner = 0, rows = 1, outer = 0;
    if (k->comp == COMP_CONV) { /* rows of [q|k|v]: each of the three is cut by heads on its own */
        inner = 3, rows = x->c->conv_kernel - 1;
        outer = inner;
    } else if (k->comp == COMP_DRAFT && s->order == PAGE_TOKEN_MAJOR) {
        inner = s->page;
    }
    k->src_off = (lo - a->head0) * unit;
    k->dst_off = (lo - b->head0) * unit;
    k->run = n * unit;
    k->n_runs[0] = inner ? (int)inner : 1;
    k->n_runs[1] = (int)rows;
    k->src_step[0] = inner ? a->n_heads * unit : 0;
    k->dst_step[0] = inner ? b->n_heads * unit : 0;
    k->src_step[1] = outer * a->n_heads * unit;
    k->dst_step[1] = outer * b->n_heads * unit;
    collapse(k);
}

/* the copy of one entry pair; returns 0 when this source has nothing for this destination */
static int make_copy(const struct pairing *x, int stripe, struct plan_copy *k)
{
    const struct layout_entry *a = &x->src->entry[k->src_entry], *b = &x->dst->entry[k->dst_entry];
    k->page_mod = 1;
    k->page_rem = 0;
    if (k->comp == COMP_MLA || k->comp == COMP_AUX) {
        struct range from = row_sources(x);
        int share = k->comp == COMP_MLA && stripe ? from.end - from.begin : 1;
        if (x->p < from.begin || x->p >= from.begin + share) return 0;
        k->page_mod = share;
        k->page_rem = x->p - from.begin;
        k->run = a->item_bytes;
        k->n_runs[0] = k->n_runs[1] = 1;
        return 1;
    }
    int lo = a->head0 > b->head0 ? a->head0 : b->head0;
    int a_end = a->head0 + a->n_heads, b_end = b->head0 + b->n_heads, hi = a_end < b_end ? a_end : b_end;
    if (lo >= hi || (k->comp == COMP_DRAFT && !serves_draft(x, stripe, k))) return 0;
    copy_heads(x, k, lo, hi - lo);
    return 1;
}

/* by key and never by position, so the order of entries on either side means nothing */
static void make_copies(const struct pairing *x, int stripe, struct pair_plan *p)
{
    for (int comp = 0; comp < COMP_N; comp++) {
        int target = comp < COMP_DRAFT, draft_layers = x->d ? x->d->n_layers : 0;
        int begin = target ? x->src->spec.layers.begin : 0;
        int end = target ? x->src->spec.layers.end : comp == COMP_DRAFT ? draft_layers : 1;
        for (int layer = begin; layer < end; layer++)
            for (int kv = 0; kv < 1 + (comp == COMP_DRAFT); kv++) {
                struct plan_copy k = {.comp = (enum comp)comp};
                k.src_entry = layout_find(x->src, k.comp, layer, kv);
                k.dst_entry = layout_find(x->dst, k.comp, layer, kv);
                if (k.src_entry < 0 || k.dst_entry < 0 || !make_copy(x, stripe, &k)) continue;
                p->copy[p->n++] = k;
                p->has[comp] = 1;
            }
    }
}

/* ---- hash ------------------------------------------------------------------------------------------------ */

static uint64_t hash_ints(const int64_t *v, size_t n, uint64_t h)
{
    return hash64(v, n * sizeof *v, h);
}
#define HASH(v, h) hash_ints((v), sizeof(v) / sizeof(v)[0], (h))

static uint64_t hash_models(const struct config *c, const struct draft_config *d)
{
    const int64_t target[] = {PLAN_VERSION,  sizeof(struct layout_aux), (int64_t)c->hash, c->n_layers, c->kda_heads,
                              c->kda_dim,    c->conv_kernel,            c->kv_rank,       c->qk_rope,  c->vocab};
    uint64_t h = HASH(target, 0);
    for (int i = 0; i < c->n_layers; i++) h = hash64(&c->is_kda[i], 1, h);
    if (!d) return h;
    int64_t theta = 0;
    memcpy(&theta, &d->rope_theta, sizeof theta);
    const int64_t draft[] = {(int64_t)d->hash, d->n_layers, d->kv_heads, d->head_dim, d->block,
                             d->mask_id,       d->window,   d->n_taps,   theta};
    h = HASH(draft, h);
    for (int i = 0; i < d->n_taps; i++) {
        const int64_t tap[] = {d->tap[i]};
        h = HASH(tap, h);
    }
    for (int i = 0; i < d->n_layers; i++) {
        const int64_t type[] = {d->type[i]};
        h = HASH(type, h);
    }
    return h;
}

static uint64_t hash_side(const struct layout *l, uint64_t h)
{
    const struct layout_spec *s = &l->spec;
    const int64_t v[] = {s->page,     s->order, s->kv,      s->draft_kv, s->layers.begin, s->layers.end, s->has_draft,
                         s->has_aux,  s->tp,    s->tp_rank, s->n_pages,  s->n_slots,      l->n,          l->bytes,
                         s->absent,   s->rows_for.begin, s->rows_for.end, s->draft_for};
    return HASH(v, h);
}

static uint64_t hash_pair(const struct pairing *x, const struct pair_plan *p, int last, int stripe)
{
    uint64_t h = hash_side(x->dst, hash_side(x->src, hash_models(x->c, x->d)));
    const int64_t pair[] = {p->src_stage, p->src_tp_rank, p->dst_tp_rank, last, stripe != 0, p->n};
    h = HASH(pair, h);
    for (int i = 0; i < p->n; i++) { /* entries by content: their indices differ when one side is shuffled */
        const struct plan_copy *k = &p->copy[i];
        const struct layout_entry *a = &x->src->entry[k->src_entry], *b = &x->dst->entry[k->dst_entry];
        const int64_t v[] = {k->comp,        a->layer,       a->kv,          k->src_off,     k->dst_off,     k->run,
                             k->n_runs[0],   k->n_runs[1],   k->src_step[0], k->src_step[1], k->dst_step[0], k->dst_step[1],
                             k->page_mod,    k->page_rem,    a->head0,       a->n_heads,     a->base,        a->stride,
                             a->item_bytes,  a->n_items,     b->head0,       b->n_heads,     b->base,        b->stride,
                             b->item_bytes,  b->n_items};
        h = HASH(v, h);
    }
    return h;
}

/* ---- public ----------------------------------------------------------------------------------------------- */

enum status transfer_plan_pair(const struct config *c, const struct draft_config *draft, const struct layout *src,
                               int src_stage, int is_last_stage, const struct layout *dst, int stripe,
                               struct pair_plan *p_p)
{
    const struct pairing x = {c, draft, src, dst, src->spec.tp_rank, src->spec.tp, dst->spec.tp_rank, dst->spec.tp};
    TRY(check_specs(&x, is_last_stage));
    TRY(check_partners(src, dst, "source", "destination", src->spec.layers, is_last_stage));
    TRY(check_partners(dst, src, "destination", "source", src->spec.layers, is_last_stage));
    struct pair_plan p = {.src_stage = src_stage, .src_tp_rank = x.p, .dst_tp_rank = x.q};
    p.copy = mem_alloc((size_t)src->n, sizeof *p.copy, "copies of a transfer plan");
    if (!p.copy) return ST_E_NOMEM;
    make_copies(&x, stripe, &p);
    p.hash = hash_pair(&x, &p, is_last_stage, stripe);
    *p_p = p;
    return ST_OK;
}

void transfer_plan_free(struct pair_plan *p)
{
    if (!p) return;
    mem_free(p->copy);
    memset(p, 0, sizeof *p);
}

int64_t transfer_plan_bytes(const struct pair_plan *p, enum comp comp, int n_pages, int64_t *runs_p)
{
    int64_t bytes = 0, runs = 0;
    for (int i = 0; i < p->n; i++) {
        const struct plan_copy *k = &p->copy[i];
        if (k->comp != comp) continue;
        int64_t items = 1, per_item = (int64_t)k->n_runs[0] * k->n_runs[1];
        if (paged(comp)) items = n_pages > k->page_rem ? (n_pages - k->page_rem - 1) / k->page_mod + 1 : 0;
        runs += items * per_item;
        bytes += items * per_item * k->run;
    }
    if (runs_p) *runs_p = runs;
    return bytes;
}

/* the guard: MPI cannot see an overrun inside a window, so each run is held against its item */
static enum status guard(const struct layout_entry *e, const char *side, int64_t start, int64_t off, int64_t bytes)
{
    if (start >= 0 && off >= 0 && bytes > 0 && off <= e->item_bytes && bytes <= e->item_bytes - off) return ST_OK;
    return ERR(ST_E_RANGE, "%s: %s layer %d %d: item at %" PRId64 ", bytes %" PRId64 " + %" PRId64 " leave the item of %" PRId64
               " bytes or the entry's %d items",
               side, comp_name[e->comp], e->layer, e->kv, start, off, bytes, e->item_bytes, e->n_items);
}

enum status transfer_plan_runs(const struct pair_plan *p, const struct plan_copy *copy, const struct layout *src,
                               const struct layout *dst, int64_t src_item, int64_t dst_item,
                               enum status (*fn)(void *ctx, const struct plan_run *run), void *ctx)
{
    const struct plan_copy *k = copy;
    if (k->src_entry < 0 || k->src_entry >= src->n || k->dst_entry < 0 || k->dst_entry >= dst->n ||
        src->spec.tp_rank != p->src_tp_rank || dst->spec.tp_rank != p->dst_tp_rank)
        return ERR(ST_E_RANGE, "plan of tp rank %d to %d: the copy or the layouts (tp rank %d, %d) are not its own",
                   p->src_tp_rank, p->dst_tp_rank, src->spec.tp_rank, dst->spec.tp_rank);
    if (paged(k->comp) && dst_item >= 0 && dst_item % k->page_mod != k->page_rem) return ST_OK; /* another source's page */
    const struct layout_entry *a = &src->entry[k->src_entry], *b = &dst->entry[k->dst_entry];
    int64_t from = layout_offset(src, k->src_entry, src_item), to = layout_offset(dst, k->dst_entry, dst_item);
    struct plan_run run = {0, 0, 0};
    for (int i = 0; i < k->n_runs[1]; i++)
        for (int j = 0; j < k->n_runs[0]; j++) {
            int64_t s = k->src_off + i * k->src_step[1] + j * k->src_step[0];
            int64_t t = k->dst_off + i * k->dst_step[1] + j * k->dst_step[0];
            TRY(guard(a, "source", from, s, k->run));
            TRY(guard(b, "destination", to, t, k->run));
            if (run.bytes && run.src + run.bytes == from + s && run.dst + run.bytes == to + t) {
                run.bytes += k->run;
                continue;
            }
            if (run.bytes) TRY(fn(ctx, &run));
            run = (struct plan_run){from + s, to + t, k->run};
        }
    return run.bytes ? fn(ctx, &run) : ST_OK;
}

/* ---- coverage ---------------------------------------------------------------------------------------------- */

struct cover { /* runs that write one destination item, and what they bring */
    const struct config *c;
    const struct draft_config *d;
    struct plan_run *run;
    size_t n, room;
    const struct layout *src, *dst; /* of the copy being looked at */
    const struct layout_entry *a, *b;
    int64_t from, to;               /* start of its items */
};

/* A byte's place in the item as it would be on one rank that held all heads. */
static int64_t whole_place(const struct cover *v, const struct layout *l, const struct layout_entry *e, int64_t off,
                           int64_t *left_p)
{
    int64_t unit = unit_bytes(v->c, v->d, &l->spec, e->comp), row = e->n_heads * unit;
    int64_t all = e->comp == COMP_DRAFT ? v->d->kv_heads : e->comp == COMP_MLA || e->comp == COMP_AUX ? 1 : v->c->kda_heads;
    *left_p = row - off % row; /* bytes that follow in both */
    return off / row * all * unit + e->head0 * unit + off % row;
}

static enum status cover_place(const struct cover *v, const struct plan_run *run)
{
    for (int64_t i = 0, n; i < run->bytes; i += n) {
        int64_t left[2], s = run->src - v->from + i, t = run->dst - v->to + i;
        int64_t place[2] = {whole_place(v, v->src, v->a, s, &left[0]), whole_place(v, v->dst, v->b, t, &left[1])};
        n = left[0] < left[1] ? left[0] : left[1];
        if (place[0] != place[1])
            return ERR(ST_E_INTERNAL,
                       "%s layer %d %d: byte %" PRId64 " of the item, place %" PRId64 " of the whole, comes from place %" PRId64
                       " (source byte %" PRId64 ")",
                       comp_name[v->b->comp], v->b->layer, v->b->kv, t, place[1], place[0], s);
    }
    return ST_OK;
}

static enum status cover_add(void *ctx, const struct plan_run *run)
{
    struct cover *v = ctx;
    TRY(cover_place(v, run));
    if (v->n == v->room) {
        size_t room = v->room ? 2 * v->room : 64;
        struct plan_run *more = mem_grow(v->run, v->n, room, sizeof *more, "coverage of a transfer plan");
        if (!more) return ST_E_NOMEM;
        v->run = more;
        v->room = room;
    }
    v->run[v->n++] = *run;
    return ST_OK;
}

static int by_dst(const void *a, const void *b)
{
    const struct plan_run *x = a, *y = b;
    return (x->dst > y->dst) - (x->dst < y->dst);
}

static enum status cover_check(struct cover *v, const struct layout_entry *e, int64_t item)
{
    int64_t start = e->base + item * e->stride, at = start, end = start + e->item_bytes;
    int writers = 0;
    if (v->n) qsort(v->run, v->n, sizeof *v->run, by_dst);
    size_t i = 0;
    while (i < v->n && v->run[i].dst == at) at += v->run[i++].bytes;
    if (i == v->n && at == end) return ST_OK;
    if (i < v->n && v->run[i].dst < at) at = v->run[i].dst; /* first byte written twice */
    for (i = 0; i < v->n; i++) writers += v->run[i].dst <= at && at < v->run[i].dst + v->run[i].bytes;
    return ERR(ST_E_INTERNAL, "%s layer %d %d item %" PRId64 ": byte %" PRId64 " is written %d times, not once",
               comp_name[e->comp], e->layer, e->kv, item, at - start, writers);
}

static enum status cover_item(const struct pair_plan *const *p, const struct layout *const *src, int n,
                              const struct layout *dst, int entry, int64_t item, struct cover *v)
{
    const struct layout_entry *e = &dst->entry[entry];
    v->n = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < p[i]->n; j++) {
            const struct plan_copy *k = &p[i]->copy[j];
            if (k->dst_entry != entry) continue;
            const struct layout_entry *a = k->src_entry >= 0 && k->src_entry < src[i]->n ? &src[i]->entry[k->src_entry] : NULL;
            if (!a || a->comp != e->comp || a->layer != e->layer || a->kv != e->kv || k->comp != e->comp)
                return ERR(ST_E_INTERNAL, "%s layer %d %d: byte 0 comes from another entry (source entry %d, count 0)",
                           comp_name[e->comp], e->layer, e->kv, k->src_entry);
            int64_t from = paged(e->comp) && a->n_items ? item % a->n_items : 0;
            v->src = src[i], v->dst = dst, v->a = a, v->b = e;
            v->from = layout_offset(src[i], k->src_entry, from), v->to = layout_offset(dst, entry, item);
            enum status st = transfer_plan_runs(p[i], k, src[i], dst, from, item, cover_add, v);
            if (st == ST_E_RANGE)
                return ERR(ST_E_INTERNAL, "%s layer %d %d item %" PRId64 ": a copy leaves its item", comp_name[e->comp],
                           e->layer, e->kv, item);
            if (st != ST_OK) return st;
        }
    return cover_check(v, e, item);
}

enum status transfer_plan_check(const struct config *c, const struct draft_config *draft, const struct pair_plan *const *p,
                                const struct layout *const *src, int n, const struct layout *dst, int n_pages)
{
    struct cover v = {.c = c, .d = draft};
    enum status st = ST_OK;
    for (int entry = 0; entry < dst->n && st == ST_OK; entry++) {
        int64_t items = paged(dst->entry[entry].comp) ? n_pages : 1;
        for (int64_t item = 0; item < items && st == ST_OK; item++)
            st = cover_item(p, src, n, dst, entry, item, &v);
    }
    mem_free(v.run);
    return st;
}
