#include "plan/print.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"

struct survey { /* everything both printers show, computed once */
    const struct config *c;
    const struct draft_config *d;
    const struct topology *t;
    const struct plan_options *o;
    int n_tokens, n_pages;
    int P, D, pp;            /* all 0 but D with single */
    struct layout *src;      /* [pp][P] pools */
    struct layout *dst;      /* [D] staging slots; with single: pools */
    struct pair_plan *pair;  /* [D][pp][P] */
    uint64_t hash;
};

static int n_sources(const struct survey *s)
{
    return s->pp * s->P;
}

static const struct pair_plan *pair_of(const struct survey *s, int stage, int p, int q)
{
    return &s->pair[(q * s->pp + stage) * s->P + p];
}

static void survey_free(struct survey *s)
{
    for (int i = 0; s->pair && i < n_sources(s) * s->D; i++) transfer_plan_free(&s->pair[i]);
    for (int i = 0; s->src && i < n_sources(s); i++) layout_free(&s->src[i]);
    for (int i = 0; s->dst && i < s->D; i++) layout_free(&s->dst[i]);
    mem_free(s->pair);
    mem_free(s->src);
    mem_free(s->dst);
}

static enum status survey_layouts(struct survey *s)
{
    s->dst = mem_alloc((size_t)s->D, sizeof *s->dst, "destination layouts");
    s->src = mem_alloc((size_t)n_sources(s), sizeof *s->src, "source layouts");
    s->pair = mem_alloc((size_t)n_sources(s) * (size_t)s->D, sizeof *s->pair, "pair plans");
    if (!s->dst || !s->src || !s->pair) return ST_E_NOMEM;
    for (int q = 0; q < s->D; q++)
        TRY(s->t->single ? memory_decode_layout(s->c, s->d, s->t, s->o, q, &s->dst[q])
                         : memory_slot_layout(s->c, s->d, s->t, s->o, q, &s->dst[q]));
    for (int i = 0; i < n_sources(s); i++)
        TRY(memory_source_layout(s->c, s->d, s->t, s->o, i / s->P, i % s->P, &s->src[i]));
    return ST_OK;
}

static enum status survey_pairs(struct survey *s)
{
    int n = n_sources(s);
    if (n == 0) return ST_OK;
    const struct pair_plan **p = mem_alloc((size_t)n, sizeof *p, "plans of a destination");
    const struct layout **l = mem_alloc((size_t)n, sizeof *l, "sources of a destination");
    enum status st = p && l ? ST_OK : ST_E_NOMEM;
    for (int q = 0; q < s->D && st == ST_OK; q++) {
        for (int i = 0; i < n && st == ST_OK; i++) {
            struct pair_plan *at = &s->pair[q * n + i];
            st = transfer_plan_pair(s->c, s->d, &s->src[i], i / s->P, i / s->P == s->pp - 1, &s->dst[q], s->o->stripe, at);
            p[i] = at;
            l[i] = &s->src[i];
        }
        if (st == ST_OK) st = transfer_plan_check(s->c, s->d, p, l, n, &s->dst[q], s->n_pages);
    }
    mem_free(l);
    mem_free(p);
    return st;
}

static uint64_t survey_hash(const struct survey *s)
{
    const struct topology *t = s->t;
    const struct plan_options *o = s->o;
    const int64_t head[] = {(int64_t)s->c->hash, s->d ? (int64_t)s->d->hash : 0, t->single, t->prefill.pp, t->prefill.tp,
                            t->prefill.ep, t->decode.pp, t->decode.tp, t->decode.ep, o->page, o->max_tokens,
                            o->max_prompt, o->concurrency, o->prefill_slots, o->staging_slots, o->chunk, o->order,
                            o->kv, o->draft_kv, o->stripe != 0, o->share.n};
    uint64_t h = hash64(head, sizeof head, 0);
    if (o->share.n) h = hash64(o->share.node, (size_t)o->share.n * sizeof *o->share.node, h);
    for (int i = 0; i < s->D; i++) {
        uint64_t v = layout_hash(&s->dst[i]);
        h = hash64(&v, sizeof v, h);
    }
    for (int i = 0; i < n_sources(s) * s->D; i++) h = hash64(&s->pair[i].hash, sizeof s->pair[i].hash, h);
    return h;
}

/* survey_make - on failure nothing is left to free */
static enum status survey_make(const struct config *c, const struct draft_config *d, const struct topology *t,
                               const struct plan_options *o, int n_tokens, struct survey *s_p)
{
    struct survey s = {.c = c, .d = d, .t = t, .o = o, .n_tokens = n_tokens, .D = t->decode.tp};
    if (n_tokens < 1 || n_tokens > o->max_prompt)
        return ERR(ST_E_CONFIG, "plan: a prompt of %d tokens; 1 to max_prompt %d can be shown", n_tokens, o->max_prompt);
    if (o->page < 1) return ERR(ST_E_CONFIG, "plan: page %d: at least 1 is needed", o->page);
    s.n_pages = (n_tokens - 1) / o->page + 1;
    if (!t->single) {
        s.P = t->prefill.tp;
        s.pp = t->prefill.pp;
    }
    enum status st = survey_layouts(&s);
    if (st == ST_OK) st = survey_pairs(&s);
    if (st != ST_OK) {
        survey_free(&s);
        return st;
    }
    s.hash = survey_hash(&s);
    *s_p = s;
    return ST_OK;
}

/* ---- figures ------------------------------------------------------------------------------------------------- */

struct volume {
    int64_t unique, wire, runs; /* bytes of one copy of the state; bytes and runs to all destinations */
    int64_t held;               /* bytes in all destinations together: the wire's without node sharing */
};

static struct volume volume_of(const struct survey *s, enum comp comp, int n_pages)
{
    const struct config *c = s->c;
    int64_t e = kv_bytes(s->o->kv), ch = (int64_t)c->kda_heads * c->kda_dim;
    struct volume v = {0, 0, 0, 0};
    if (comp == COMP_MLA) v.unique = e * c->n_mla * n_pages * s->o->page * (c->kv_rank + c->qk_rope);
    if (comp == COMP_KDA) v.unique = ch * c->kda_dim * 4 * c->n_kda;
    if (comp == COMP_CONV) v.unique = e * ch * 3 * (c->conv_kernel - 1) * c->n_kda;
    if (comp == COMP_AUX) v.unique = sizeof(struct layout_aux);
    if (comp == COMP_DRAFT && s->d)
        v.unique = (int64_t)2 * s->d->n_layers * s->d->kv_heads * s->d->head_dim * kv_bytes(s->o->draft_kv) * n_pages *
                   s->o->page;
    v.held = comp == COMP_MLA || comp == COMP_AUX ? s->D * v.unique : v.unique;
    if (comp == COMP_DRAFT && s->d && s->D > s->d->kv_heads) v.held = s->D / s->d->kv_heads * v.unique;
    for (int i = 0; i < n_sources(s) * s->D; i++) {
        int64_t runs;
        v.wire += transfer_plan_bytes(&s->pair[i], comp, n_pages, &runs);
        v.runs += runs;
    }
    return v;
}

/* bytes a source sends for one request, and to how many destinations */
static int64_t sent_by(const struct survey *s, int stage, int p, int *peers_p)
{
    int64_t sum = 0;
    *peers_p = 0;
    for (int q = 0; q < s->D; q++) {
        const struct pair_plan *x = pair_of(s, stage, p, q);
        int64_t before = sum;
        for (int k = 0; k < COMP_N; k++) sum += transfer_plan_bytes(x, (enum comp)k, s->n_pages, NULL);
        *peers_p += sum > before;
    }
    return sum;
}

struct stage_view {
    struct range layers;
    int mla, kda, n_taps, tap[CONFIG_MAX_TAPS]; /* target layers captured, ascending */
};

static struct stage_view stage_view(const struct survey *s, int stage)
{
    int pp = s->t->single ? 1 : s->pp, index[CONFIG_MAX_TAPS];
    struct stage_view v = {.layers = split_stage(s->c->n_layers, pp, stage)};
    for (int i = v.layers.begin; i < v.layers.end; i++) {
        v.kda += s->c->is_kda[i] != 0;
        v.mla += !s->c->is_kda[i];
    }
    if (s->d) v.n_taps = split_taps(s->d, s->c->n_layers, pp, stage, index);
    for (int i = 0; i < v.n_taps; i++) v.tap[i] = s->d->tap[index[i]];
    return v;
}

static const char *role_name(const struct survey *s, struct rank_role r)
{
    return s->t->single ? "single" : r.role == ROLE_PREFILL ? "prefill" : "decode";
}

/* first copy of a component from tp rank p to destination q over all stages, NULL if none; counts them all */
static const struct plan_copy *copy_shape(const struct survey *s, enum comp comp, int p, int q, int *n_p)
{
    const struct plan_copy *first = NULL;
    *n_p = 0;
    for (int stage = 0; stage < s->pp; stage++) {
        const struct pair_plan *x = pair_of(s, stage, p, q);
        for (int i = 0; i < x->n; i++)
            if (x->copy[i].comp == comp) {
                if (!first) first = &x->copy[i];
                ++*n_p;
            }
    }
    return first;
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

static void text_stages(FILE *f, const struct survey *s)
{
    int pp = s->t->single ? 1 : s->pp;
    fprintf(f, "\nstages (layers are global and zero-based)\n");
    for (int i = 0; i < pp; i++) {
        struct stage_view v = stage_view(s, i);
        fprintf(f, "  stage %d: layers %d-%d (%d), %d mla, %d kda, captures", i, v.layers.begin, v.layers.end - 1,
                v.layers.end - v.layers.begin, v.mla, v.kda);
        for (int k = 0; k < v.n_taps; k++) fprintf(f, " %d", v.tap[k]);
        fprintf(f, "%s\n", v.n_taps ? "" : " none");
    }
}

/* all ranks together, and the most that one rank holds of each kind and in all */
struct totals {
    struct rank_memory sum, most;
    int64_t most_in_all;
};

static void add_rank(struct totals *t, const struct rank_memory *m)
{
    const int64_t v[3] = {m->weight_bytes, m->pool_bytes, m->window_bytes};
    int64_t *sum[3] = {&t->sum.weight_bytes, &t->sum.pool_bytes, &t->sum.window_bytes};
    int64_t *most[3] = {&t->most.weight_bytes, &t->most.pool_bytes, &t->most.window_bytes};
    for (int i = 0; i < 3; i++) {
        *sum[i] += v[i];
        if (v[i] > *most[i]) *most[i] = v[i];
    }
    if (v[0] + v[1] + v[2] > t->most_in_all) t->most_in_all = v[0] + v[1] + v[2];
}

static void text_total(FILE *f, const char *name, const struct rank_memory *m, int64_t in_all)
{
    fprintf(f, "  %-31s %15" PRId64 " %15" PRId64 " %15" PRId64 " %15" PRId64 "\n", name, m->weight_bytes, m->pool_bytes, m->window_bytes,
            in_all);
}

static enum status text_ranks(FILE *f, const struct survey *s)
{
    struct totals t = {.most_in_all = 0};
    fprintf(f, "ranks (bytes)\n  rank role    stage  tp  ep moe %15s %15s %15s %15s\n", "weights", "state", "windows", "in all");
    for (int r = 0; r < s->t->n_ranks; r++) {
        struct rank_role x = topology_role(s->t, r);
        struct rank_memory m;
        TRY(memory_rank(s->c, s->d, s->t, s->o, r, &m));
        add_rank(&t, &m);
        fprintf(f, "  %4d %-7s %5d %3d %3d %3d %15" PRId64 " %15" PRId64 " %15" PRId64 " %15" PRId64 "\n", r, role_name(s, x), x.stage,
                x.tp_rank, x.ep_rank, x.moe_rank, m.weight_bytes, m.pool_bytes, m.window_bytes,
                m.weight_bytes + m.pool_bytes + m.window_bytes);
    }
    text_total(f, "sum over ranks", &t.sum, t.sum.weight_bytes + t.sum.pool_bytes + t.sum.window_bytes);
    text_total(f, "most of a rank", &t.most, t.most_in_all);
    return ST_OK;
}

static void text_entries(FILE *f, const struct layout *l)
{
    for (int i = 0; i < l->n; i++) {
        const struct layout_entry *e = &l->entry[i];
        const char *half = e->comp != COMP_DRAFT ? " " : e->kv ? "V" : "K";
        fprintf(f, "  %-5s layer %3d %s heads %d+%d: base %" PRId64 ", stride %" PRId64 ", item %" PRId64 ", %d items\n",
                comp_name[e->comp], e->layer, half, e->head0, e->n_heads, e->base, e->stride, e->item_bytes, e->n_items);
    }
    fprintf(f, "  %" PRId64 " bytes in all\n", l->bytes);
}

static void text_copies(FILE *f, const struct survey *s)
{
    fprintf(f, "\ncopies by tp rank, bytes within an item (equal for all layers of a component)\n");
    for (int q = 0; q < s->D; q++)
        for (int p = 0; p < s->P; p++)
            for (int comp = 0; comp < COMP_N; comp++) {
                int n;
                const struct plan_copy *k = copy_shape(s, (enum comp)comp, p, q, &n);
                if (!k) continue;
                fprintf(f, "  %d -> %d %-5s x%-3d from %" PRId64 " to %" PRId64 ": %d x %d runs of %" PRId64, p, q,
                        comp_name[comp], n, k->src_off, k->dst_off, k->n_runs[1], k->n_runs[0], k->run);
                if (k->page_mod > 1) fprintf(f, ", pages %d mod %d", k->page_rem, k->page_mod);
                fputc('\n', f);
            }
}

static void text_bytes(FILE *f, const struct survey *s)
{
    fprintf(f,
            "\nbytes (a request of %d tokens = %d pages of %d; wire: to all %d destinations; unshared: the wire's without "
            "node sharing)\n",
            s->n_tokens, s->n_pages, s->o->page, s->D);
    fprintf(f, "  %-5s %15s %15s %15s %15s %16s %12s\n", "", "unique/page", "wire/page", "unique/request", "wire/request",
            "unshared/request", "runs/request");
    for (int k = 0; k < COMP_N; k++) {
        struct volume all = volume_of(s, (enum comp)k, s->n_pages), one = {0, 0, 0, 0};
        if (k == COMP_MLA || k == COMP_DRAFT) one = volume_of(s, (enum comp)k, 1);
        fprintf(f, "  %-5s %15" PRId64 " %15" PRId64 " %15" PRId64 " %15" PRId64 " %16" PRId64 " %12" PRId64 "\n",
                comp_name[k], one.unique, one.wire, all.unique, all.wire, all.held, all.runs);
    }
    fprintf(f, "\nsources (bytes sent per request)\n");
    for (int stage = 0; stage < s->pp; stage++) {
        fprintf(f, "  stage %d:", stage);
        for (int p = 0; p < s->P; p++) {
            int peers;
            int64_t sent = sent_by(s, stage, p, &peers);
            fprintf(f, "%s tp %d %" PRId64 " to %d", p ? "," : "", p, sent, peers);
        }
        fputc('\n', f);
    }
}

static enum status text_all(FILE *f, const struct survey *s)
{
    char name[96];
    topology_text(s->t, name, sizeof name);
    fprintf(f, "plan %s: %d ranks, hash %016" PRIx64 "\n\n", name, s->t->n_ranks, s->hash);
    TRY(text_ranks(f, s));
    text_stages(f, s);
    for (int i = 0; i < s->pp; i++) {
        fprintf(f, "\nentries of prefill stage %d, tp rank 0\n", i);
        text_entries(f, &s->src[i * s->P]);
    }
    fprintf(f, "\nentries of decode tp rank 0, %s\n", s->t->single ? "pool" : "staging slot");
    text_entries(f, &s->dst[0]);
    if (s->t->single) return ST_OK;
    text_copies(f, s);
    text_bytes(f, s);
    return ST_OK;
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

static const char *comma(int *first)
{
    const char *c = *first ? "\n  " : ",\n  ";
    *first = 0;
    return c;
}

static void json_total(FILE *f, const char *name, const struct rank_memory *m, int64_t in_all)
{
    fprintf(f, ",\n\"%s\": {\"weight_bytes\": %" PRId64 ", \"pool_bytes\": %" PRId64 ", \"window_bytes\": %" PRId64 ", \"bytes\": %" PRId64 "}",
            name, m->weight_bytes, m->pool_bytes, m->window_bytes, in_all);
}

static enum status json_ranks(FILE *f, const struct survey *s)
{
    int first = 1;
    struct totals t = {.most_in_all = 0};
    fprintf(f, ",\n\"ranks\": [");
    for (int r = 0; r < s->t->n_ranks; r++) {
        struct rank_role x = topology_role(s->t, r);
        fprintf(f, "%s{\"rank\": %d, \"role\": \"%s\", \"stage\": %d, \"tp_rank\": %d, \"ep_rank\": %d, \"moe_rank\": %d}",
                comma(&first), r, role_name(s, x), x.stage, x.tp_rank, x.ep_rank, x.moe_rank);
    }
    first = 1;
    fprintf(f, "],\n\"memory\": [");
    for (int r = 0; r < s->t->n_ranks; r++) {
        struct rank_memory m;
        TRY(memory_rank(s->c, s->d, s->t, s->o, r, &m));
        fprintf(f, "%s{\"rank\": %d, \"weight_bytes\": %" PRId64 ", \"pool_bytes\": %" PRId64 ", \"window_bytes\": %" PRId64 "}",
                comma(&first), r, m.weight_bytes, m.pool_bytes, m.window_bytes);
        add_rank(&t, &m);
    }
    fprintf(f, "]");
    json_total(f, "memory_sum", &t.sum, t.sum.weight_bytes + t.sum.pool_bytes + t.sum.window_bytes);
    json_total(f, "memory_most", &t.most, t.most_in_all);
    return ST_OK;
}

static void json_stages(FILE *f, const struct survey *s)
{
    int first = 1, pp = s->t->single ? 1 : s->pp;
    fprintf(f, ",\n\"stages\": [");
    for (int i = 0; i < pp; i++) {
        struct stage_view v = stage_view(s, i);
        fprintf(f, "%s{\"stage\": %d, \"begin\": %d, \"end\": %d, \"mla\": %d, \"kda\": %d, \"captures\": [", comma(&first), i,
                v.layers.begin, v.layers.end, v.mla, v.kda);
        for (int k = 0; k < v.n_taps; k++) fprintf(f, "%s%d", k ? ", " : "", v.tap[k]);
        fprintf(f, "]}");
    }
    fprintf(f, "]");
}

static void json_entries(FILE *f, const char *name, const struct layout *l, int n, int first_rank)
{
    int first = 1;
    fprintf(f, ",\n\"%s\": [", name);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < l[r].n; i++) {
            const struct layout_entry *e = &l[r].entry[i];
            fprintf(f,
                    "%s{\"rank\": %d, \"entry\": %d, \"component\": \"%s\", \"layer\": %d, \"kv\": %d, \"head0\": %d, "
                    "\"n_heads\": %d, \"base\": %" PRId64 ", \"stride\": %" PRId64 ", \"item_bytes\": %" PRId64
                    ", \"n_items\": %d}",
                    comma(&first), first_rank + r, i, comp_name[e->comp], e->layer, e->kv, e->head0, e->n_heads, e->base,
                    e->stride, e->item_bytes, e->n_items);
        }
    fprintf(f, "]");
}

static void json_copies(FILE *f, const struct survey *s)
{
    int first = 1;
    fprintf(f, ",\n\"copies\": [");
    for (int i = 0; i < n_sources(s) * s->D; i++) {
        const struct pair_plan *x = &s->pair[i];
        for (int j = 0; j < x->n; j++) {
            const struct plan_copy *k = &x->copy[j];
            fprintf(f,
                    "%s{\"source\": %d, \"destination\": %d, \"component\": \"%s\", \"source_entry\": %d, "
                    "\"destination_entry\": %d, \"source_offset\": %" PRId64 ", \"destination_offset\": %" PRId64
                    ", \"run\": %" PRId64 ", \"runs\": [%d, %d], \"source_step\": [%" PRId64 ", %" PRId64
                    "], \"destination_step\": [%" PRId64 ", %" PRId64 "], \"page_mod\": %d, \"page_rem\": %d}",
                    comma(&first), topology_prefill_rank(s->t, x->src_stage, x->src_tp_rank),
                    topology_decode_rank(s->t, x->dst_tp_rank), comp_name[k->comp], k->src_entry, k->dst_entry, k->src_off,
                    k->dst_off, k->run, k->n_runs[0], k->n_runs[1], k->src_step[0], k->src_step[1], k->dst_step[0],
                    k->dst_step[1], k->page_mod, k->page_rem);
        }
    }
    fprintf(f, "]");
}

static void json_bytes(FILE *f, const struct survey *s)
{
    int first = 1;
    fprintf(f, ",\n\"bytes\": {\"tokens\": %d, \"pages\": %d", s->n_tokens, s->n_pages);
    for (int k = 0; k < COMP_N; k++) {
        struct volume all = volume_of(s, (enum comp)k, s->n_pages), one = {0, 0, 0, 0};
        if (k == COMP_MLA || k == COMP_DRAFT) one = volume_of(s, (enum comp)k, 1);
        fprintf(f,
                ",\n  \"%s\": {\"unique_per_page\": %" PRId64 ", \"wire_per_page\": %" PRId64 ", \"unique_per_request\": %" PRId64
                ", \"wire_per_request\": %" PRId64 ", \"unshared_per_request\": %" PRId64 ", \"runs_per_request\": %" PRId64 "}",
                comp_name[k], one.unique, one.wire, all.unique, all.wire, all.held, all.runs);
    }
    fprintf(f, "},\n\"sources\": [");
    for (int i = 0; i < n_sources(s); i++) {
        int peers;
        int64_t sent = sent_by(s, i / s->P, i % s->P, &peers);
        fprintf(f, "%s{\"rank\": %d, \"bytes_per_request\": %" PRId64 ", \"destinations\": %d}", comma(&first),
                topology_prefill_rank(s->t, i / s->P, i % s->P), sent, peers);
    }
    fprintf(f, "]");
}

static enum status json_all(FILE *f, const struct survey *s)
{
    char name[96];
    topology_text(s->t, name, sizeof name);
    fprintf(f, "{\"topology\": \"%s\",\n\"plan_hash\": \"%016" PRIx64 "\"", name, s->hash);
    TRY(json_ranks(f, s));
    json_stages(f, s);
    json_entries(f, "destination_entries", s->dst, s->D, s->t->n_prefill);
    if (!s->t->single) {
        json_entries(f, "source_entries", s->src, n_sources(s), 0);
        json_copies(f, s);
        json_bytes(f, s);
    }
    fprintf(f, "}\n");
    return ST_OK;
}

/* ---- public -------------------------------------------------------------------------------------------------- */

static enum status print(FILE *f, enum status (*all)(FILE *, const struct survey *), const struct config *c,
                         const struct draft_config *d, const struct topology *t, const struct plan_options *o, int n_tokens)
{
    struct survey s;
    TRY(survey_make(c, d, t, o, n_tokens, &s));
    enum status st = all(f, &s);
    survey_free(&s);
    if (st == ST_OK && (fflush(f) || ferror(f))) return ERR(ST_E_IO, "plan: cannot write: %s", strerror(errno));
    return st;
}

enum status plan_print_text(FILE *f, const struct config *c, const struct draft_config *d, const struct topology *t,
                            const struct plan_options *o, int n_tokens)
{
    return print(f, text_all, c, d, t, o, n_tokens);
}

enum status plan_print_json(FILE *f, const struct config *c, const struct draft_config *d, const struct topology *t,
                            const struct plan_options *o, int n_tokens)
{
    return print(f, json_all, c, d, t, o, n_tokens);
}

enum status plan_print_hash(const struct config *c, const struct draft_config *d, const struct topology *t,
                            const struct plan_options *o, uint64_t *hash_p)
{
    struct survey s;
    TRY(survey_make(c, d, t, o, 1, &s));
    *hash_p = s.hash;
    survey_free(&s);
    return ST_OK;
}
