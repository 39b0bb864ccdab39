#include "model/width.h"

#include <math.h>
#include <string.h>

/* weight of what is one step older: acceptance changes with the text (about 50 rounds), the machine's speed more slowly */
static const double accept_fade = 0.98, cost_fade = 0.995;
static const double prior = 2; /* a position nobody tried counts as two trials, one of them accepted */

void width_init(struct width *a, int block)
{
    memset(a, 0, sizeof *a);
    a->block = block < 2 ? 2 : block > WIDTH_MAX ? WIDTH_MAX : block;
}

double width_rate(const struct width *a, int j)
{
    return (a->kept[j] + prior / 2) / (a->tried[j] + prior);
}

/* intercept and slope; the widths seen must differ enough for a slope, and neither can be negative */
static int line(const struct width *a, double *base_p, double *row_p)
{
    double spread = a->w * a->xx - a->x * a->x;
    if (!(a->w > 1) || !(spread > 1e-9 * a->w * a->xx)) return 0;
    double row = (a->w * a->xy - a->x * a->y) / spread;
    if (row < 0) row = 0;
    double base = (a->y - row * a->x) / a->w;
    if (base < 0) { /* through the origin */
        base = 0;
        row = a->xy / a->xx;
    }
    *base_p = base;
    *row_p = row;
    return base > 0 || row > 0;
}

double width_cost(const struct width *a, int n, int w)
{
    double base, row;
    if (!a->drafted || !line(a, &base, &row)) return 0;
    return base + row * n * w + (w > 1 ? a->draft_s * n : 0);
}

static int best(const struct width *a, int n)
{
    double reach = 1, tokens = 1, top = -1;
    int pick = a->block;
    for (int w = 1; w <= a->block; w++) {
        double cost = width_cost(a, n, w);
        if (!(cost > 0)) return a->block;
        if (tokens / cost > top) {
            top = tokens / cost;
            pick = w;
        }
        if (w == a->block) break;
        reach *= width_rate(a, w - 1);
        tokens += reach;
    }
    return pick;
}

int width_pick(struct width *a, int n)
{
    int64_t step = a->steps++;
    int w = a->block;
    if (step < WIDTH_WARM) {
        w = step % 2 ? (a->block + 1) / 2 : a->block;
    } else if (step % WIDTH_PERIOD) {
        w = best(a, n);
    }
    a->picked[w]++;
    return w;
}

void width_step(struct width *a, int n, int rows, double draft_s, double rest_s)
{
    if (n < 1 || rows < 1 || !(rest_s >= 0) || !(draft_s >= 0) || isinf(rest_s) || isinf(draft_s)) return;
    a->w = a->w * cost_fade + 1;
    a->x = a->x * cost_fade + rows;
    a->xx = a->xx * cost_fade + (double)rows * rows;
    a->y = a->y * cost_fade + rest_s;
    a->xy = a->xy * cost_fade + rows * rest_s;
    if (draft_s == 0) return;
    a->draft_s = a->drafted ? 0.9 * a->draft_s + 0.1 * draft_s / n : draft_s / n;
    a->drafted = 1;
}

void width_accept(struct width *a, int proposed, int accepted)
{
    for (int j = 0; j < proposed && j <= accepted && j < a->block - 1; j++) {
        a->tried[j] = a->tried[j] * accept_fade + 1;
        a->kept[j] = a->kept[j] * accept_fade + (j < accepted);
    }
}

double width_mean(const struct width *a)
{
    double n = 0, sum = 0;
    for (int w = 1; w <= a->block; w++) {
        n += (double)a->picked[w];
        sum += (double)a->picked[w] * w;
    }
    return n > 0 ? sum / n : 0;
}
