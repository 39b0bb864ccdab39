#include "plan/bubble.h"

#include "base/buf.h"
#include "plan/cost.h"

const char *const balance_name[BALANCE_N] = {"equal", "flops", "bytes"};

enum { DEFAULT_SLOTS = 8 }; /* as many requests as `run` keeps in the pipeline when not told otherwise */

static double later(double a, double b)
{
    return a > b ? a : b;
}

enum status bubble_times(int n_stages, int n_chunks, const double *t, int n_requests, int slots, double *bubble_p)
{
    double *end = mem_alloc((size_t)n_stages, sizeof *end, "stage times");      /* of the latest chunk on each stage */
    double *left =
        mem_alloc((size_t)slots, sizeof *left, "times of the slots"); /* when the request of a slot was through */
    enum status st = end && left ? ST_OK : ST_E_NOMEM;
    double busy = 0;
    for (int r = 0; r < n_requests && st == ST_OK; r++) {
        double enter = left[r % slots];
        for (int j = 0; j < n_chunks; j++)
            for (int s = 0; s < n_stages; s++) {
                double a_chunk = t[s * n_chunks + j];
                end[s] = later(end[s], s ? end[s - 1] : enter) + a_chunk;
                busy += a_chunk;
            }
        left[r % slots] = end[n_stages - 1];
    }
    if (st == ST_OK) *bubble_p = 1 - busy / (n_stages * end[n_stages - 1]);
    mem_free(left);
    mem_free(end);
    return st;
}

int bubble_chunks(const struct plan_options *o, int n_tokens)
{
    int n = 0;
    for (int pos = 0; pos < n_tokens; n++) pos = split_chunk_end(pos, n_tokens, o->chunk, o->page);
    return n;
}

enum status bubble_wave(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o, int n_tokens, int n_requests, int slots, enum balance balance,
                        double *bubble_p)
{
    const struct group *g = &t->prefill;
    int n_chunks = bubble_chunks(o, n_tokens), j = 0;
    double *time = mem_alloc((size_t)g->pp * (size_t)n_chunks, sizeof *time, "chunk times");
    if (!time) return ST_E_NOMEM;
    for (int pos = 0, end; pos < n_tokens; pos = end, j++) {
        end = split_chunk_end(pos, n_tokens, o->chunk, o->page);
        for (int s = 0; s < g->pp; s++)
            time[s * n_chunks + j] = balance == BALANCE_FLOPS
                                         ? cost_chunk_flops(c, d, g, s, pos, end - pos, end == n_tokens)
                                     : balance == BALANCE_BYTES ? cost_chunk_bytes(c, d, g, s, pos, end - pos)
                                                                : 1;
    }
    if (slots == 0) slots = n_requests < DEFAULT_SLOTS ? n_requests : DEFAULT_SLOTS;
    enum status st = bubble_times(g->pp, n_chunks, time, n_requests, slots, bubble_p);
    mem_free(time);
    return st;
}
