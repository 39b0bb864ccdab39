/* sampling - tokens drawn from a row of logits, and the decision which drafts hold, without loss: what comes out has
 * the law of plain sampling from the target, whatever the draft is.
 *
 * The distribution of a row of logits l[vocab]: w_i = exp((l_i - max l) / temperature), FP64. Then top-k, then top-p on
 * what top-k left, both in ONE order: larger logit first, of equal logits the lower id. top-k keeps the first k.
 * top-p keeps a token while the mass of the tokens before it is < top_p x the mass of all left; so at least one stays,
 * and the one that crosses the threshold stays. Masses before a token are added in that order; the total over ascending
 * ids. A draw with u in [0, 1) is the first token in ascending id whose running sum of w exceeds u x total.
 *
 * Random numbers are Philox4x32-10: key = seed, counter = (question, position, purpose, 0). question is the request's
 * index in the prompts file, position the absolute position of the token that is decided (the first after a prompt of n
 * tokens has position n). So neither batch, topology, concurrency nor a resumed run changes a draw. The same number
 * serves a position again when a later round decides it: what was committed before never depended on it.
 *
 * Acceptance. Argmax drafts (q a point mass): x is drawn from p with the position's own number; x == d accepts d, which
 * happens with probability p(d); else x is a draw from p without d, renormalised, and ends the round. So speculation
 * with argmax drafts gives the very tokens of plain sampling. Drafts drawn from q: d holds iff u q(d) < p(d); else the
 * token comes from max(p - q, 0), normalised. If all hold, the bonus is drawn from the row behind the last.
 * Everything is computed on one rank from whole rows of logits and told to the others, so the result does not depend on
 * how the vocabulary is split. Local.
 * Source: Leviathan et al. 2023; Chen et al. 2023; project notes dflash 4.3. */
#ifndef PDFLASH_MODEL_SAMPLING_H
#define PDFLASH_MODEL_SAMPLING_H

#include <stdint.h>

#include "base/err.h"

struct sampling { /* how the tokens of one request are chosen; all zero: greedy */
    double temperature;       /* 0: the argmax, and nothing below is used */
    double top_p;             /* in (0, 1]; 1 (or 0): all */
    int top_k;                /* 0: all */
    int draws_drafts;         /* 1: drafts are drawn from q, 0: they are its argmax */
    double draft_temperature; /* of q; 0: as temperature. top_k and top_p are applied to q as to p */
    uint64_t seed;
};

enum sampling_purpose { SAMPLING_TOKEN, SAMPLING_ACCEPT, SAMPLING_DRAFT };

/* sampling_on - the request's tokens are drawn. sampling_draws - its drafts are. */
static inline int sampling_on(const struct sampling *how)
{
    return how->temperature > 0;
}
static inline int sampling_draws(const struct sampling *how)
{
    return sampling_on(how) && how->draws_drafts;
}

/* sampling_unit - the random number of a question, position and purpose: [0, 1). Pure. */
double sampling_unit(const struct sampling *how, int question, int position, enum sampling_purpose purpose);

struct sampler; /* scratch for one vocabulary: 2 x [vocab] FP64 and the order of ids; not for two threads */
enum status sampler_open(int vocab, struct sampler **s_p); /* ST_E_RANGE, ST_E_NOMEM */
void sampler_close(struct sampler *s);

/* sampling_weights - w[vocab] (unnormalised, 0: not in the distribution) of a row; *total_p: their sum over ascending
 * ids. 1, or 0 where the row is not made of numbers: a NaN, an infinity, or nothing but -inf. -inf has weight 0. */
int sampling_weights(struct sampler *s, const struct sampling *how, double temperature, const float *logits, double *w,
                     double *total_p);

/* sampling_token - the token at a position, drawn from the row that predicts it. sampling_draft - a draft for it, from
 * the draft's row. -1: the row is not made of numbers. */
int32_t sampling_token(struct sampler *s, const struct sampling *how, const float *logits, int question, int position);
int32_t sampling_draft(struct sampler *s, const struct sampling *how, const float *logits, int question, int position);

struct sampling_verdict { int accepted; int32_t bonus; }; /* bonus -1: a row that was needed is not made of numbers */
/* sampling_accept - which of n >= 0 drafts hold, and the token behind them.
 *   p      [n + 1][vocab]  host  target's logits, row i predicts position + i
 *   q      [n][vocab]      host  the draft's logits that draft i was drawn from; NULL: drafts not drawn
 *   draft  [n]             drafts of positions position .. position + n - 1
 * n = 0 is plain sampling. */
struct sampling_verdict sampling_accept(struct sampler *s, const struct sampling *how, const float *p, const float *q,
                                        const int32_t *draft, int n, int question, int position);

#endif
