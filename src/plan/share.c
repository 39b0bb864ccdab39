#include "plan/share.h"

static int alike(const struct share *s, const struct draft_config *d, enum comp comp, int a, int b)
{
    if (s->node[a] != s->node[b]) return 0;
    if (comp == COMP_MLA) return 1;
    return split_kv_heads(d->kv_heads, s->n, a).begin == split_kv_heads(d->kv_heads, s->n, b).begin;
}

static int shared(const struct share *s, const struct draft_config *d, enum comp comp)
{
    return s->n > 0 && (comp == COMP_MLA || (comp == COMP_DRAFT && d));
}

int share_owner(const struct share *s, const struct draft_config *d, enum comp comp, int tp_rank)
{
    if (!shared(s, d, comp)) return tp_rank;
    int r = 0;
    while (!alike(s, d, comp, r, tp_rank)) r++;
    return r;
}

void share_spec(const struct share *s, const struct draft_config *d, struct layout_spec *spec)
{
    static const enum comp comp[2] = {COMP_MLA, COMP_DRAFT};
    int q = spec->tp_rank;
    spec->absent = 0;
    spec->rows_for = (struct range){q, q + 1};
    spec->draft_for = 1;
    for (int i = 0; i < 2; i++) {
        if (!shared(s, d, comp[i])) continue;
        int owner = share_owner(s, d, comp[i], q), n = 0, last = q;
        for (int r = 0; r < s->n; r++)
            if (alike(s, d, comp[i], r, q)) n++, last = r;
        if (owner != q)
            spec->absent |= 1u << comp[i];
        else if (comp[i] == COMP_MLA)
            spec->rows_for.end = last + 1;
        else
            spec->draft_for = n;
    }
}

void share_nodes(int tp, int node_size, int *node)
{
    for (int r = 0; r < tp; r++) node[r] = r / node_size;
}
