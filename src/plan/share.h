/* share - decode ranks of one node let one of them receive what several of them hold alike.
 *
 * MLA rows are the same on every decode rank, draft K/V on every rank with the same heads. With sharing a node receives one
 * copy: the lowest tp rank of the node (MLA), of the node's ranks with the same heads (DRAFT), owns it; its slot has the
 * entries, the slots of the others lack them (layout_spec.absent) and they read the owner's slot through memory that the
 * node shares. KDA, CONV and AUX differ from rank to rank and are never shared. Pure arithmetic. Local.
 * Source: pd-systems 2.6. */
#ifndef PDFLASH_PLAN_SHARE_H
#define PDFLASH_PLAN_SHARE_H

#include "plan/layout.h"

struct share {
    int n;           /* decode ranks; 0: every rank receives all it holds */
    const int *node; /* [n] node number of each decode rank; the caller's, outlives the plan */
};

/* share_owner - tp rank of the decode rank in whose slot the entries of comp lie for rank tp_rank of tp = share.n
 * (tp_rank itself when comp is not shared). d: needed for DRAFT. */
int share_owner(const struct share *s, const struct draft_config *d, enum comp comp, int tp_rank);
/* share_spec - set absent, rows_for and draft_for of the slot of rank spec->tp_rank. d NULL: no draft. */
void share_spec(const struct share *s, const struct draft_config *d, struct layout_spec *spec);
/* share_nodes - node numbers of tp ranks that fill nodes of node_size ranks in order, into node[tp]. */
void share_nodes(int tp, int node_size, int *node);

#endif
