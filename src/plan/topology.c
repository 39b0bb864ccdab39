#include "plan/topology.h"

#include <stdio.h>
#include <string.h>

#include "plan/split.h"

enum { GROUP_MAX = 65536 }; /* keeps pp * tp inside int */

static enum status parse_value(const char *option, const char *text, const char *at, size_t n, int *value_p)
{
    int v = 0;
    if (n == 0) return ERR(ST_E_USAGE, "--%s %s: a value is missing after '='; write e.g. tp=4", option, text);
    for (size_t i = 0; i < n; i++) {
        if (at[i] < '0' || at[i] > '9')
            return ERR(ST_E_USAGE, "--%s %s: '%.*s' is not a number; write e.g. tp=4", option, text, (int)n, at);
        v = v * 10 + (at[i] - '0');
        if (v > GROUP_MAX)
            return ERR(ST_E_USAGE, "--%s %s: %.*s is more than %d", option, text, (int)n, at, GROUP_MAX);
    }
    if (v < 1) return ERR(ST_E_USAGE, "--%s %s: %.*s is less than 1", option, text, (int)n, at);
    *value_p = v;
    return ST_OK;
}

enum status group_parse(const char *text, const char *option, struct group *g_p)
{
    static const char *const key[3] = {"pp", "tp", "ep"};
    int value[3] = {1, 1, 0}, seen[3] = {0};
    const char *at = text;
    for (;;) {
        size_t n = strcspn(at, ","), k = strcspn(at, "=,");
        int i = 0;
        while (i < 3 && !(k == 2 && memcmp(at, key[i], 2) == 0)) i++;
        if (i == 3 || k == n)
            return ERR(ST_E_USAGE, "--%s %s: '%.*s' is not pp=N, tp=N or ep=N", option, text, (int)n, at);
        if (seen[i]++) return ERR(ST_E_USAGE, "--%s %s: %s is given twice", option, text, key[i]);
        TRY(parse_value(option, text, at + k + 1, n - k - 1, &value[i]));
        if (!at[n]) break;
        at += n + 1;
    }
    *g_p = (struct group){value[0], value[1], value[2]};
    return ST_OK;
}

/* tp must divide n; field and remedy go into the message */
static enum status divides(const char *group, int tp, const char *field, int n)
{
    if (n % tp == 0) return ST_OK;
    return ERR(ST_E_CONFIG, "%s: tp %d does not divide %s %d; choose a tp that does", group, tp, field, n);
}

/* the columns of an MLP are dealt out in whole leaves of its summation tree */
static enum status leaves_divide(const char *group, int tp, const char *field, int width)
{
    if (width < 16 || width % 16)
        return ERR(ST_E_CONFIG, "%s: %s %d is not a multiple of 16; this model cannot be split", group, field, width);
    int leaves = width / split_leaf_cols(width);
    if (leaves % tp == 0) return ST_OK;
    return ERR(ST_E_CONFIG, "%s: tp %d does not divide the %d leaves of %s %d; choose a tp that does", group, tp,
               leaves, field, width);
}

static enum status check_experts(const struct config *c, const char *group, struct group *g)
{
    if (c->expert_inter < 32 || c->expert_inter % 32)
        return ERR(ST_E_CONFIG, "%s: moe_intermediate_size %d is not in whole blocks of 32; this model cannot be split",
                   group, c->expert_inter);
    if (g->ep == 0) {
        int ep = split_ep_default(c, g->tp);
        if (ep < 0)
            return ERR(ST_E_CONFIG, "%s: no ep fits tp %d, num_experts %d and moe_intermediate_size %d; choose another tp",
                       group, g->tp, c->n_experts, c->expert_inter);
        g->ep = ep;
        return ST_OK;
    }
    if (g->tp % g->ep)
        return ERR(ST_E_CONFIG, "%s: ep %d does not divide tp %d; leave ep out or choose a divisor", group, g->ep, g->tp);
    if (c->n_experts % g->ep)
        return ERR(ST_E_CONFIG, "%s: ep %d does not divide num_experts %d; leave ep out or choose a divisor", group,
                   g->ep, c->n_experts);
    int moe_tp = g->tp / g->ep, groups = split_block_groups(c);
    if (groups % moe_tp)
        return ERR(ST_E_CONFIG,
                   "%s: tp/ep = %d does not divide the %d block groups of moe_intermediate_size %d; raise ep or leave it out",
                   group, moe_tp, groups, c->expert_inter);
    return ST_OK;
}

static enum status check_draft(const struct draft_config *d, const char *group, int tp)
{
    TRY(divides(group, tp, "the draft's num_attention_heads", d->q_heads));
    if (d->kv_heads % tp && tp % d->kv_heads)
        return ERR(ST_E_CONFIG,
                   "%s: tp %d and the draft's num_key_value_heads %d do not divide one another; choose another tp",
                   group, tp, d->kv_heads);
    return leaves_divide(group, tp, "the draft's intermediate_size", d->inter);
}

static enum status check_group(const struct config *c, const struct draft_config *draft, const char *name,
                               struct group *g)
{
    if (g->pp < 1 || g->tp < 1 || g->ep < 0)
        return ERR(ST_E_CONFIG, "%s: pp %d, tp %d, ep %d: pp and tp start at 1, ep at 1 or left out", name, g->pp,
                   g->tp, g->ep);
    if ((int64_t)g->pp * g->tp > GROUP_MAX)
        return ERR(ST_E_CONFIG, "%s: pp %d x tp %d is more than %d ranks; ask for fewer", name, g->pp, g->tp, GROUP_MAX);
    if (g->pp > c->n_layers)
        return ERR(ST_E_CONFIG, "%s: pp %d is more than num_hidden_layers %d; every stage needs a layer", name, g->pp,
                   c->n_layers);
    if (c->n_kda) TRY(divides(name, g->tp, "linear_attn_config.num_heads", c->kda_heads));
    if (c->n_mla) TRY(divides(name, g->tp, "num_attention_heads", c->mla_heads));
    TRY(divides(name, g->tp, "vocab_size", c->vocab));
    if (c->n_dense) TRY(leaves_divide(name, g->tp, "intermediate_size", c->dense_inter));
    if (c->n_dense < c->n_layers) {
        TRY(leaves_divide(name, g->tp, "num_shared_experts x moe_intermediate_size", c->shared_inter));
        TRY(check_experts(c, name, g));
    } else if (g->ep == 0) {
        g->ep = 1;
    } else if (g->tp % g->ep) {
        return ERR(ST_E_CONFIG, "%s: ep %d does not divide tp %d; leave ep out", name, g->ep, g->tp);
    }
    return draft ? check_draft(draft, name, g->tp) : ST_OK;
}

enum status topology_make(const struct config *c, const struct draft_config *draft, const struct group *prefill,
                          const struct group *decode, int single, struct topology *t_p)
{
    struct topology t = {.decode = *decode, .single = single != 0};
    if (decode->pp > 1)
        return ERR(ST_E_CONFIG, "decode: pp %d: the decode group has one stage, pp 1; use tp instead", decode->pp);
    TRY(check_group(c, draft, "decode", &t.decode));
    if (!single) {
        t.prefill = *prefill;
        TRY(check_group(c, draft, "prefill", &t.prefill));
        t.n_prefill = t.prefill.pp * t.prefill.tp;
    }
    t.n_decode = t.decode.tp;
    t.n_ranks = t.n_prefill + t.n_decode;
    *t_p = t;
    return ST_OK;
}

struct rank_role topology_role(const struct topology *t, int r)
{
    int prefill = r < t->n_prefill;
    const struct group *g = prefill ? &t->prefill : &t->decode;
    int local = prefill ? r : r - t->n_prefill, moe_tp = g->tp / g->ep;
    struct rank_role role = {.role = prefill ? ROLE_PREFILL : ROLE_DECODE, .stage = local / g->tp};
    role.tp_rank = local % g->tp;
    role.ep_rank = role.tp_rank / moe_tp;
    role.moe_rank = role.tp_rank % moe_tp;
    role.first_stage = role.stage == 0;
    role.last_stage = role.stage == g->pp - 1;
    return role;
}

int topology_prefill_rank(const struct topology *t, int stage, int tp_rank)
{
    return stage * t->prefill.tp + tp_rank;
}

int topology_decode_rank(const struct topology *t, int tp_rank)
{
    return t->n_prefill + tp_rank;
}

void topology_text(const struct topology *t, char *buf, int n)
{
    const struct group *p = &t->prefill, *d = &t->decode;
    if (t->single)
        snprintf(buf, (size_t)n, "single tp%dep%d", d->tp, d->ep);
    else
        snprintf(buf, (size_t)n, "pp%dtp%dep%d/tp%dep%d", p->pp, p->tp, p->ep, d->tp, d->ep);
}
