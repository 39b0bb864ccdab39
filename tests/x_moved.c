/* x_moved - helper of the end-to-end tests: the bytes that a run's result file says were moved are those of the plan.
 *   x_moved RESULTS TARGET DRAFT PREFILL DECODE [NODE_SIZE]     topologies as for --prefill and --decode; NODE_SIZE: --dedupe
 * Exit 0 when every component of every request agrees; prints what differs, and the sums. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "data/results.h"
#include "plan/memory.h"

struct setup {
    struct config c;
    struct draft_config d;
    struct topology t;
    struct plan_options o;
};

/* bytes of a prompt of n_pages pages, all sources and destinations, by component */
static enum status planned(const struct setup *s, int n_pages, int64_t bytes[COMP_N])
{
    memset(bytes, 0, COMP_N * sizeof *bytes);
    for (int i = 0; i < s->t.n_prefill; i++)
        for (int q = 0; q < s->t.n_decode; q++) {
            int stage = i / s->t.prefill.tp;
            struct layout src, dst;
            struct pair_plan p;
            TRY(memory_source_layout(&s->c, &s->d, &s->t, &s->o, stage, i % s->t.prefill.tp, &src));
            TRY(memory_slot_layout(&s->c, &s->d, &s->t, &s->o, q, &dst));
            TRY(transfer_plan_pair(&s->c, &s->d, &src, stage, stage == s->t.prefill.pp - 1, &dst, s->o.stripe, &p));
            for (int k = 0; k < COMP_N; k++) bytes[k] += transfer_plan_bytes(&p, (enum comp)k, n_pages, NULL);
            transfer_plan_free(&p);
            layout_free(&src);
            layout_free(&dst);
        }
    return ST_OK;
}

static enum status load(char **argv, int node_size, struct setup *s)
{
    struct group prefill, decode;
    TRY(config_load(argv[2], &s->c));
    TRY(draft_config_load(argv[3], &s->c, &s->d));
    TRY(group_parse(argv[4], "--prefill", &prefill));
    TRY(group_parse(argv[5], "--decode", &decode));
    TRY(topology_make(&s->c, &s->d, &prefill, &decode, 0, &s->t));
    s->o = (struct plan_options){.page = 64, .max_tokens = 1 << 14, .max_prompt = 1 << 13, .concurrency = 1, .prefill_slots = 1,
                                 .staging_slots = 1, .chunk = 8192, .stripe = 1};
    if (!node_size) return ST_OK;
    int *node = mem_alloc((size_t)s->t.decode.tp, sizeof *node, "node numbers"); /* until the end */
    if (!node) return ST_E_NOMEM;
    share_nodes(s->t.decode.tp, node_size, node);
    s->o.share = (struct share){s->t.decode.tp, node};
    return ST_OK;
}

int main(int argc, char **argv)
{
    static struct setup s;
    struct results *r;
    int64_t want[COMP_N], all[COMP_N] = {0};
    int bad = 0;
    if (argc < 6 || load(argv, argc > 6 ? atoi(argv[6]) : 0, &s) != ST_OK || results_load(argv[1], &r) != ST_OK) return 2;
    for (size_t i = 0; i < r->n; i++) {
        if (planned(&s, split_pages((int)r->row[i].prompt_tokens, s.o.page), want) != ST_OK) return 2;
        for (int k = 0; k < COMP_N; k++) {
            all[k] += r->row[i].transfer[k].bytes;
            if (r->row[i].transfer[k].bytes == want[k] && want[k] > 0) continue;
            printf("row %zu %s: %" PRId64 " bytes moved, %" PRId64 " planned\n", i, comp_name[k],
                   (int64_t)r->row[i].transfer[k].bytes, want[k]);
            bad++;
        }
    }
    for (int k = 0; k < COMP_N; k++) printf("%s %" PRId64 "%s", comp_name[k], all[k], k + 1 < COMP_N ? ", " : " bytes moved\n");
    printf("%zu rows, %d differ\n", r->n, bad);
    bad |= r->n == 0;
    results_free(r);
    return bad != 0;
}
