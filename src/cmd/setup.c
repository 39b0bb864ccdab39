#include "cmd/setup.h"

#include <string.h>

/* the draft's config, which must be of the kind that --spec names: slots of one read as the other's accept next to
 * nothing */
static enum status load_draft(const struct options *o, struct setup *s)
{
    TRY(draft_config_load(o->draft, &s->c, &s->d));
    if (s->d.kind != s->spec)
        return ERR(ST_E_CONFIG, "%s/config.json: architectures: this is a %s draft and --spec says %s; say --spec %s or "
                   "give another --draft", o->draft, draft_kind_name(s->d.kind), o->spec, draft_kind_name(s->d.kind));
    if (o->confidence > 0 && !s->d.confidence)
        return ERR(ST_E_CONFIG, "%s/config.json: enable_confidence_head: found false, --confidence %g needs true",
                   o->draft, o->confidence);
    s->block = draft_verify_rows(&s->d);
    return ST_OK;
}

enum status setup_configs(const struct options *o, struct setup *s_p)
{
    struct setup s;
    struct group prefill, decode;
    memset(&s, 0, sizeof s);
    TRY(options_single(o));
    TRY(options_spec(o, &s.spec));
    TRY(options_sampling(o, s.spec, &s.sampling));
    TRY(group_parse(o->prefill, "prefill", &prefill));
    TRY(group_parse(o->decode, "decode", &decode));
    TRY(config_load(o->model, &s.c));
    s.block = 1;
    if (s.spec) TRY(load_draft(o, &s));
    if (o->block) {
        if (o->block < 2 || o->block > s.block)
            return ERR(ST_E_CONFIG, "--block %d: the draft was trained with block_size %d; choose 2 to %d", o->block,
                       s.d.block, s.block);
        s.block = o->block;
    }
    int64_t most = (int64_t)s.c.max_position - o->max_new - s.block;
    if (most < 1)
        return ERR(ST_E_CONFIG,
                   "--max-new %d: with a block of %d the model's %d positions leave no room for a prompt; ask for less",
                   o->max_new, s.block, s.c.max_position);
    s.most_prompt = (int)most;
    TRY(topology_make(&s.c, s.spec ? &s.d : NULL, &prefill, &decode, o->single, &s.topo));
    *s_p = s;
    return ST_OK;
}

void setup_plan_options(const struct options *o, const struct setup *s, int max_prompt, int requests,
                        struct plan_options *p_p)
{
    int concurrency = o->concurrency < requests ? o->concurrency : requests > 0 ? requests : 1;
    int slots = o->slots ? o->slots : o->concurrency < 8 ? o->concurrency : 8;
    *p_p = (struct plan_options){.page = o->page,
                                 .max_tokens = max_prompt + o->max_new + s->block,
                                 .max_prompt = max_prompt,
                                 .concurrency = concurrency,
                                 .prefill_slots = slots,
                                 .staging_slots = slots,
                                 .chunk = o->chunk,
                                 .order = PAGE_HEAD_MAJOR,
                                 .kv = o->kv == OPT_KV_BF16 ? KV_BF16 : KV_FP32,
                                 .draft_kv = o->kv == OPT_KV_BF16 ? KV_BF16 : KV_FP32,
                                 .stripe = 1,
                                 .block = s->block,
                                 .expanded = o->mla_prefill == OPT_MLA_EXPANDED};
}
