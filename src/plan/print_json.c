/* The plan as one JSON object. */
#include <inttypes.h>

#include "plan/print_priv.h"

static const char *comma(int *first)
{
    const char *c = *first ? "\n  " : ",\n  ";
    *first = 0;
    return c;
}

static void json_sizes(FILE *f, const struct rank_memory *m)
{
    fprintf(f,
            "\"weight_bytes\": %" PRId64 ", \"pool_bytes\": %" PRId64 ", \"work_bytes\": %" PRId64
            ", \"coll_bytes\": %" PRId64 ", \"ops_bytes\": %" PRId64 ", \"window_bytes\": %" PRId64
            ", \"pack_bytes\": %" PRId64 ", \"device_bytes\": %" PRId64 ", \"bytes\": %" PRId64,
            m->weight_bytes, m->pool_bytes, m->work_bytes, m->coll_bytes, m->ops_bytes, m->window_bytes, m->pack_bytes,
            m->device_bytes, m->bytes);
}

static void json_total(FILE *f, const char *name, const struct rank_memory *m)
{
    fprintf(f, ",\n\"%s\": {", name);
    json_sizes(f, m);
    fputc('}', f);
}

static void json_parts(FILE *f, const char *name, const char *const *part, const int64_t *v, int n)
{
    fprintf(f, ", \"%s\": {", name);
    for (int i = 0; i < n; i++) fprintf(f, "%s\"%s\": %" PRId64, i ? ", " : "", part[i], v[i]);
    fputc('}', f);
}

static void json_ranks(FILE *f, const struct survey *s)
{
    int first = 1;
    fprintf(f, ",\n\"ranks\": [");
    for (int r = 0; r < s->t->n_ranks; r++) {
        struct rank_role x = topology_role(s->t, r);
        fprintf(f,
                "%s{\"rank\": %d, \"role\": \"%s\", \"stage\": %d, \"tp_rank\": %d, \"ep_rank\": %d, \"moe_rank\": %d}",
                comma(&first), r, print_role(s, x), x.stage, x.tp_rank, x.ep_rank, x.moe_rank);
    }
    first = 1;
    fprintf(f, "],\n\"memory\": [");
    for (int r = 0; r < s->t->n_ranks; r++) {
        const struct rank_memory *m = &s->mem[r];
        fprintf(f, "%s{\"rank\": %d, ", comma(&first), r);
        json_sizes(f, m);
        json_parts(f, "weights", weight_name, m->weight, WEIGHT_N);
        json_parts(f, "state", comp_name, m->state, COMP_DRAFT + 1);
        fprintf(f, ", \"windows\": {\"data\": %" PRId64 ", \"words\": %" PRId64 "}}", m->data_bytes, m->word_bytes);
    }
    fprintf(f, "]");
    json_total(f, "memory_sum", &s->totals.sum);
    json_total(f, "memory_most", &s->totals.most);
    fprintf(f, ",\n\"fullest_rank\": %d", s->totals.fullest);
    if (s->o->device_bytes)
        fprintf(f, ",\n\"gpu_memory\": {\"bytes\": %" PRId64 ", \"left_bytes\": %" PRId64 "}", s->o->device_bytes,
                s->o->device_bytes - s->totals.most.device_bytes);
}

static void json_stages(FILE *f, const struct survey *s)
{
    int first = 1, pp = s->t->single ? 1 : s->pp;
    fprintf(f, ",\n\"stages\": [");
    for (int i = 0; i < pp; i++) {
        struct stage_view v = print_stage(s, i);
        fprintf(f, "%s{\"stage\": %d, \"begin\": %d, \"end\": %d, \"mla\": %d, \"kda\": %d, \"captures\": [",
                comma(&first), i, v.layers.begin, v.layers.end, v.mla, v.kda);
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
                    comma(&first), first_rank + r, i, comp_name[e->comp], e->layer, e->kv, e->head0, e->n_heads,
                    e->base, e->stride, e->item_bytes, e->n_items);
        }
    fprintf(f, "]");
}

static void json_copies(FILE *f, const struct survey *s)
{
    int first = 1;
    fprintf(f, ",\n\"copies\": [");
    for (int i = 0; i < print_sources(s) * s->D; i++) {
        const struct pair_plan *x = &s->pair[i];
        for (int j = 0; j < x->n; j++) {
            const struct plan_copy *k = &x->copy[j];
            fprintf(f,
                    "%s{\"source\": %d, \"destination\": %d, \"component\": \"%s\", \"source_entry\": %d, "
                    "\"destination_entry\": %d, \"source_offset\": %" PRId64 ", \"destination_offset\": %" PRId64
                    ", \"run\": %" PRId64 ", \"runs\": [%d, %d], \"source_step\": [%" PRId64 ", %" PRId64
                    "], \"destination_step\": [%" PRId64 ", %" PRId64 "], \"page_mod\": %d, \"page_rem\": %d}",
                    comma(&first), topology_prefill_rank(s->t, x->src_stage, x->src_tp_rank),
                    topology_decode_rank(s->t, x->dst_tp_rank), comp_name[k->comp], k->src_entry, k->dst_entry,
                    k->src_off, k->dst_off, k->run, k->n_runs[0], k->n_runs[1], k->src_step[0], k->src_step[1],
                    k->dst_step[0], k->dst_step[1], k->page_mod, k->page_rem);
        }
    }
    fprintf(f, "]");
}

static void json_bytes(FILE *f, const struct survey *s)
{
    int first = 1;
    fprintf(f, ",\n\"bytes\": {\"tokens\": %d, \"pages\": %d", s->n_tokens, s->n_pages);
    for (int k = 0; k < COMP_N; k++) {
        struct volume all = print_volume(s, (enum comp)k, s->n_pages), one = {.unique = 0};
        if (k == COMP_MLA || k == COMP_DRAFT) one = print_volume(s, (enum comp)k, 1);
        fprintf(f,
                ",\n  \"%s\": {\"unique_per_page\": %" PRId64 ", \"wire_per_page\": %" PRId64
                ", \"unique_per_request\": %" PRId64 ", \"wire_per_request\": %" PRId64
                ", \"unshared_per_request\": %" PRId64 ", \"runs_per_request\": %" PRId64
                ", \"received_per_page\": %" PRId64 ", \"received_per_request\": %" PRId64 ", \"copies\": %d}",
                comp_name[k], one.unique, one.wire, all.unique, all.wire, all.held, all.runs, one.received,
                all.received, all.copies);
    }
    int window = print_window_pages(s);
    if (window)
        fprintf(f,
                ",\n  \"draft_window\": {\"tokens\": %d, \"pages\": %d, \"bytes\": %" PRId64
                ", \"bytes_unaligned\": %" PRId64 "}",
                s->d->window, window, print_window_bytes(s, window), print_window_bytes(s, window + 1));
    int sources, words = print_words(s, 0, &sources);
    fprintf(f, ",\n  \"words\": {\"words\": %d, \"sources\": %d}},\n\"sources\": [", words, sources);
    for (int i = 0; i < print_sources(s); i++) {
        int peers;
        int64_t sent = print_sent(s, i / s->P, i % s->P, &peers);
        fprintf(f, "%s{\"rank\": %d, \"bytes_per_request\": %" PRId64 ", \"destinations\": %d}", comma(&first),
                topology_prefill_rank(s->t, i / s->P, i % s->P), sent, peers);
    }
    fprintf(f, "]");
}

enum status print_json(FILE *f, const struct survey *s)
{
    char name[96];
    topology_text(s->t, name, sizeof name);
    fprintf(f, "{\"topology\": \"%s\",\n\"plan_hash\": \"%016" PRIx64 "\"", name, s->hash);
    json_ranks(f, s);
    json_stages(f, s);
    print_model_json(f, s);
    json_entries(f, "destination_entries", s->dst, s->D, s->t->n_prefill);
    if (!s->t->single) {
        json_entries(f, "source_entries", s->src, print_sources(s), 0);
        json_copies(f, s);
        json_bytes(f, s);
    }
    fprintf(f, "}\n");
    return ST_OK;
}
