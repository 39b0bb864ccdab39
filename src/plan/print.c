#include "plan/print_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void text_stages(FILE *f, const struct survey *s)
{
    int pp = s->t->single ? 1 : s->pp, empty = 0;
    fprintf(f, "\nstages (layers are global and zero-based)\n");
    for (int i = 0; i < pp; i++) {
        struct stage_view v = print_stage(s, i);
        fprintf(f, "  stage %d: layers %d-%d (%d), %d mla, %d kda, captures", i, v.layers.begin, v.layers.end - 1,
                v.layers.end - v.layers.begin, v.mla, v.kda);
        for (int k = 0; k < v.n_taps; k++) fprintf(f, " %d", v.tap[k]);
        fprintf(f, "%s\n", v.n_taps ? "" : " none");
        empty += v.n_taps == 0;
    }
    if (s->d) fprintf(f, "  %d of %d stages capture nothing\n", empty, pp);
}

static void text_total(FILE *f, const char *name, const struct rank_memory *m)
{
    const int64_t v[] = {m->weight_bytes, m->pool_bytes,   m->work_bytes, m->coll_bytes,
                         m->ops_bytes,    m->window_bytes, m->pack_bytes, m->bytes};
    fprintf(f, "  %-31s", name);
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) fprintf(f, " %15" PRId64, v[i]);
    fputc('\n', f);
}

static void text_ranks(FILE *f, const struct survey *s)
{
    fprintf(f, "ranks (bytes)\n  rank role    stage  tp  ep moe %15s %15s %15s %15s %15s %15s %15s %15s\n", "weights",
            "state", "activations", "collectives", "operations", "windows", "packing", "in all");
    for (int r = 0; r < s->t->n_ranks; r++) {
        struct rank_role x = topology_role(s->t, r);
        char name[64];
        snprintf(name, sizeof name, "%4d %-7s %5d %3d %3d %3d", r, print_role(s, x), x.stage, x.tp_rank, x.ep_rank,
                 x.moe_rank);
        text_total(f, name, &s->mem[r]);
    }
    text_total(f, "sum over ranks", &s->totals.sum);
    text_total(f, "most of a rank", &s->totals.most);
}

static void text_entries(FILE *f, const struct layout *l)
{
    for (int i = 0; i < l->n; i++) {
        const struct layout_entry *e = &l->entry[i];
        const char *half = e->comp != COMP_DRAFT ? " " : e->kv ? "V" : "K";
        fprintf(
            f, "  %-5s layer %3d %s heads %d+%d: base %" PRId64 ", stride %" PRId64 ", item %" PRId64 ", %d items\n",
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
                const struct plan_copy *k = print_copy(s, (enum comp)comp, p, q, &n);
                if (!k) continue;
                fprintf(f, "  %d -> %d %-5s x%-3d from %" PRId64 " to %" PRId64 ": %d x %d runs of %" PRId64, p, q,
                        comp_name[comp], n, k->src_off, k->dst_off, k->n_runs[1], k->n_runs[0], k->run);
                if (k->page_mod > 1) fprintf(f, ", pages %d mod %d", k->page_rem, k->page_mod);
                fputc('\n', f);
            }
}

static void text_bytes(FILE *f, const struct survey *s)
{
    fprintf(
        f,
        "\nbytes (a request of %d tokens = %d pages of %d; wire: to all %d destinations; unshared: the wire's without "
        "node sharing)\n",
        s->n_tokens, s->n_pages, s->o->page, s->D);
    fprintf(f, "  %-5s %15s %15s %15s %15s %16s %12s\n", "", "unique/page", "wire/page", "unique/request",
            "wire/request", "unshared/request", "runs/request");
    for (int k = 0; k < COMP_N; k++) {
        struct volume all = print_volume(s, (enum comp)k, s->n_pages), one = {.unique = 0};
        if (k == COMP_MLA || k == COMP_DRAFT) one = print_volume(s, (enum comp)k, 1);
        fprintf(f, "  %-5s %15" PRId64 " %15" PRId64 " %15" PRId64 " %15" PRId64 " %16" PRId64 " %12" PRId64 "\n",
                comp_name[k], one.unique, one.wire, all.unique, all.wire, all.held, all.runs);
    }
    int window = print_window_pages(s);
    if (window)
        fprintf(f,
                "  the draft reads back %d tokens: %d pages, %" PRId64
                " bytes of one copy, when it begins on a page, else %d and %" PRId64 "; all pages are sent\n",
                s->d->window, window, print_window_bytes(s, window), window + 1, print_window_bytes(s, window + 1));
    int sources, words = print_words(s, 0, &sources);
    fprintf(f, "\nreceived by decode tp rank 0 from %d sources, %d completion words\n  %-5s %8s %15s %15s\n", sources,
            words, "", "copies", "bytes/page", "bytes/request");
    for (int k = 0; k < COMP_N; k++) {
        struct volume all = print_volume(s, (enum comp)k, s->n_pages), one = {.received = 0};
        if (k == COMP_MLA || k == COMP_DRAFT) one = print_volume(s, (enum comp)k, 1);
        fprintf(f, "  %-5s %8d %15" PRId64 " %15" PRId64 "\n", comp_name[k], all.copies, one.received, all.received);
    }
    fprintf(f, "\nsources (bytes sent per request)\n");
    for (int stage = 0; stage < s->pp; stage++) {
        fprintf(f, "  stage %d:", stage);
        for (int p = 0; p < s->P; p++) {
            int peers;
            int64_t sent = print_sent(s, stage, p, &peers);
            fprintf(f, "%s tp %d %" PRId64 " to %d", p ? "," : "", p, sent, peers);
        }
        fputc('\n', f);
    }
}

enum status print_text(FILE *f, const struct survey *s)
{
    char name[96];
    topology_text(s->t, name, sizeof name);
    fprintf(f, "plan %s: %d ranks, hash %016" PRIx64 "\n\n", name, s->t->n_ranks, s->hash);
    text_ranks(f, s);
    print_memory_text(f, s);
    text_stages(f, s);
    print_model_text(f, s);
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

static enum status print(FILE *f, enum status (*all)(FILE *, const struct survey *), const struct config *c,
                         const struct draft_config *d, const struct topology *t, const struct plan_options *o,
                         int n_tokens)
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
    return print(f, print_text, c, d, t, o, n_tokens);
}

enum status plan_print_json(FILE *f, const struct config *c, const struct draft_config *d, const struct topology *t,
                            const struct plan_options *o, int n_tokens)
{
    return print(f, print_json, c, d, t, o, n_tokens);
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
