#include "plan/split.h"

static int low_power_of_two(int n) /* largest power of two dividing n > 0 */
{
    return n & -n;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

struct range split_even(int n, int parts, int i)
{
    int base = n / parts, plain = parts - n % parts; /* parts without an extra item come first */
    int extra = i > plain ? i - plain : 0;
    int begin = i * base + extra;
    return (struct range){begin, begin + base + (i >= plain)};
}

struct range split_stage(int n_layers, int pp, int stage)
{
    return split_even(n_layers, pp, stage);
}

int split_stage_of(int n_layers, int pp, int layer)
{
    int base = n_layers / pp, plain = pp - n_layers % pp;
    int head = plain * base; /* layers in the stages without an extra one */
    return layer < head ? layer / base : plain + (layer - head) / (base + 1);
}

int split_bank_rows(int res_block, int layer)
{
    return (layer + res_block - 1) / res_block;
}

int split_pages(int tokens, int page)
{
    return tokens / page + (tokens % page != 0);
}

int split_chunk_end(int pos, int tokens, int chunk, int page)
{
    int end = chunk < tokens - pos ? pos + chunk : tokens;
    if (end < tokens && chunk >= page && end - end % page > pos) end -= end % page;
    return end;
}

int split_tap_stage(int n_layers, int pp, int k)
{
    return k + 1 < n_layers ? split_stage_of(n_layers, pp, k + 1) : pp - 1;
}

int split_taps(const struct draft_config *d, int n_layers, int pp, int stage, int index_p[CONFIG_MAX_TAPS])
{
    int n = 0;
    for (int i = 0; i < d->n_taps; i++) {
        if (split_tap_stage(n_layers, pp, d->tap[i]) != stage) continue;
        int at = n++;
        while (at > 0 && d->tap[index_p[at - 1]] > d->tap[i]) {
            index_p[at] = index_p[at - 1];
            at--;
        }
        index_p[at] = i;
    }
    return n;
}

int split_ep_default(const struct config *c, int tp)
{
    for (int ep = 1; ep <= tp; ep++)
        if (tp % ep == 0 && c->n_experts % ep == 0 && c->expert_inter % 32 == 0 &&
            split_block_groups(c) % (tp / ep) == 0)
            return ep;
    return -1;
}

struct range split_experts(int n_experts, int ep, int ep_rank)
{
    return split_even(n_experts, ep, ep_rank);
}

int split_block_groups(const struct config *c)
{
    return least(32, low_power_of_two(c->expert_inter / 32));
}

struct range split_expert_cols(const struct config *c, int moe_tp, int moe_rank)
{
    int groups = split_block_groups(c), width = c->expert_inter / groups;
    struct range r = split_even(groups, moe_tp, moe_rank);
    return (struct range){r.begin * width, r.end * width};
}

int split_leaf_cols(int width)
{
    return width / least(32, low_power_of_two(width / 16));
}

struct range split_kv_heads(int n_heads, int tp, int rank)
{
    int per_rank = tp <= n_heads ? n_heads / tp : 1;
    int copies = tp <= n_heads ? 1 : tp / n_heads; /* ranks that hold the same head */
    int first = rank / copies * per_rank;
    return (struct range){first, first + per_rank};
}
