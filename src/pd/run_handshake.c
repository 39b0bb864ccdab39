/* run_handshake - this rank's descriptor from the run's configuration, then the exchange. */
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "pd/run.h"
#include "plan/memory.h"

static void draft_fields(const struct run_config *r, const struct rank_role *role, int tp, struct descriptor *x)
{
    const struct draft_config *d = r->d;
    if (!d) return;
    struct range heads = split_kv_heads(d->kv_heads, tp, role->tp_rank);
    x->draft_kind = (uint32_t)d->kind;
    x->draft_config = d->hash;
    x->mask_id = (uint32_t)d->mask_id;
    x->window = (uint32_t)d->window;
    x->n_taps = (uint32_t)d->n_taps;
    for (int i = 0; i < d->n_taps; i++) x->tap[i] = d->tap[i];
    x->rope_theta = d->rope_theta;
    x->draft_heads = (uint32_t)d->kv_heads;
    x->draft_head_dim = (uint32_t)d->head_dim;
    x->draft_layers = (uint32_t)d->n_layers;
    x->draft_heads_per_rank = (uint32_t)(heads.end - heads.begin);
    x->draft_first_head = (uint32_t)heads.begin;
}

static void target_fields(const struct run_config *r, struct range layers, int tp, struct descriptor *x)
{
    const struct config *c = r->c;
    x->target_config = c->hash;
    x->layer_begin = (uint32_t)layers.begin;
    x->layer_end = (uint32_t)layers.end;
    for (int i = layers.begin; i < layers.end; i++) {
        x->kda_layers += c->is_kda[i];
        x->mla_layers += !c->is_kda[i];
    }
    x->mla_width = (uint32_t)(c->kv_rank + c->qk_rope);
    x->mla_row_bytes = x->mla_width * (uint32_t)kv_bytes(r->transfer.plan.kv);
    x->kda_heads = (uint32_t)c->kda_heads;
    x->kda_dim = (uint32_t)c->kda_dim;
    x->conv_kernel = (uint32_t)c->conv_kernel;
    x->kda_heads_per_rank = (uint32_t)(c->kda_heads / tp);
}

/* the rank's own layout: its pool on a prefill rank, a staging slot on a decode rank */
static enum status layout_fields(struct world *w, const struct run_config *r, struct descriptor *x)
{
    const struct plan_options *p = &r->transfer.plan;
    struct layout l;
    if (w->role.role == ROLE_PREFILL)
        TRY(memory_source_layout(r->c, r->d, &w->topo, p, w->role.stage, w->role.tp_rank, &l));
    else
        TRY(memory_slot_layout(r->c, r->d, &w->topo, p, w->role.tp_rank, &l));
    x->entries_hash = layout_hash(&l);
    if (w->role.role == ROLE_DECODE) { /* of a slot that holds all the rank needs, wherever in the node it lies */
        struct plan_options whole = *p;
        whole.share.n = 0;
        layout_free(&l);
        TRY(memory_slot_layout(r->c, r->d, &w->topo, &whole, w->role.tp_rank, &l));
        x->slot_bytes = (uint64_t)l.bytes;
        x->window_bytes = (uint64_t)l.bytes * (uint64_t)p->staging_slots;
        x->pages_per_slot = (uint32_t)l.spec.n_pages;
    }
    layout_free(&l);
    return transfer_plan_all_hash(r->c, r->d, &w->topo, p, &x->plan_hash);
}

enum status run_handshake(struct world *w, const struct run_config *r, uint64_t build, uint64_t tokenizer, uint64_t weights,
                          struct descriptor **all_p)
{
    struct descriptor x;
    const struct plan_options *p = &r->transfer.plan;
    int prefill = w->role.role == ROLE_PREFILL;
    const struct group *g = prefill ? &w->topo.prefill : &w->topo.decode;
    memset(&x, 0, sizeof x);
    x.version = HANDSHAKE_VERSION;
    x.struct_bytes = sizeof x;
    x.endian = 0x01020304;
    x.role = (uint32_t)w->role.role;
    x.stage = (uint32_t)w->role.stage;
    x.tp = (uint32_t)g->tp;
    x.tp_rank = (uint32_t)w->role.tp_rank;
    x.pp = (uint32_t)g->pp;
    x.build = build;
    x.tokenizer = tokenizer;
    x.weights = weights;
    x.block = (uint32_t)r->block;
    x.confidence = r->confidence;
    x.adaptive = (uint32_t)r->adaptive;
    x.min_context = (uint32_t)r->min_context;
    x.temperature = r->sampling.temperature;
    x.top_p = r->sampling.top_p;
    x.top_k = (uint32_t)r->sampling.top_k;
    x.seed = r->sampling.seed;
    x.draws_drafts = (uint32_t)r->sampling.draws_drafts;
    x.draft_temperature = r->sampling.draft_temperature;
    x.page = (uint32_t)p->page;
    x.order = (uint32_t)p->order;
    x.kv = (uint32_t)p->kv;
    x.draft_kv = (uint32_t)p->draft_kv;
    x.temporal_bytes = sizeof(float);
    x.n_slots = (uint32_t)p->staging_slots;
    x.state_convention = 1;
    x.act = (uint32_t)r->o->act;
    draft_fields(r, &w->role, g->tp, &x);
    target_fields(r, split_stage(r->c->n_layers, g->pp, w->role.stage), g->tp, &x);
    TRY(world_agree(w, layout_fields(w, r, &x)));
    return handshake_run(w, &x, all_p);
}
