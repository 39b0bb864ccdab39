/* width - how many rows a verify step is worth: chosen per step from the acceptance and the cost of the steps before.
 *
 * Acceptance: for every draft position the share of verified drafts that were accepted while all before them were, older
 * rounds counting less. Cost: a step without drafts takes a + b rows seconds (least squares over the steps, older ones
 * counting less), the draft block on top of it what it took last. The width that promises most tokens a second is taken;
 * one step in WIDTH_PERIOD is verified whole, so that what is cut away can show that it has become worth it. The answer
 * changes which rows are computed and never a token. Pure arithmetic; the caller gives the seconds. Local.
 * Source: dflash notes section 7 (tokens a round against the cost of a round). */
#ifndef PDFLASH_MODEL_WIDTH_H
#define PDFLASH_MODEL_WIDTH_H

#include <stdint.h>

enum { WIDTH_MAX = 64, WIDTH_PERIOD = 32, WIDTH_WARM = 6 };

struct width {
    int block;                  /* most rows of a sequence */
    int64_t steps;              /* picked so far */
    int64_t picked[WIDTH_MAX + 1]; /* steps by width */
    double tried[WIDTH_MAX], kept[WIDTH_MAX]; /* by draft position, weighted */
    double w, x, xx, y, xy;     /* weighted sums over steps: 1, rows, rows^2, seconds, rows x seconds */
    double draft_s;             /* seconds of a draft block and sequence, running mean */
    int drafted;                /* draft_s is known */
};

/* width_init - block: most verify rows of a sequence, 2 .. WIDTH_MAX. Nothing is known: the first steps vary the width. */
void width_init(struct width *a, int block);
/* width_pick - rows of each of n >= 1 sequences in the next step, 1 .. block; counts the step. 1: no draft is needed. */
int width_pick(struct width *a, int n);
/* width_step - what the step took. n: sequences; rows: verified in all; draft_s, rest_s: seconds of the draft block (0: it
 * was left out) and of verification and commit. Times that are no numbers or negative teach nothing. */
void width_step(struct width *a, int n, int rows, double draft_s, double rest_s);
/* width_accept - one sequence of the step: drafts verified and accepted of them. */
void width_accept(struct width *a, int proposed, int accepted);
/* width_rate - acceptance of draft position j (0-based) given that all before it were accepted, 0 .. 1. */
double width_rate(const struct width *a, int j);
/* width_cost - seconds of a step of n sequences with w rows each. 0: not known yet. */
double width_cost(const struct width *a, int n, int w);
/* width_mean - mean of the widths picked; 0 before the first. */
double width_mean(const struct width *a);

#endif
