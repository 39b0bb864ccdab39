#include "model/sampling.h"

#include <math.h>

#include "base/buf.h"
#include "base/rng.h"

struct sampler {
    int vocab;
    double *p, *q;  /* [vocab] */
    int32_t *order; /* [vocab] */
};

double sampling_unit(const struct sampling *how, int question, int position, enum sampling_purpose purpose)
{
    const uint32_t counter[4] = {(uint32_t)question, (uint32_t)position, (uint32_t)purpose, 0};
    return rng_philox_unit(how->seed, counter);
}

enum status sampler_open(int vocab, struct sampler **s_p)
{
    if (vocab < 1) return ERR(ST_E_RANGE, "sampling: a vocabulary of %d", vocab);
    struct sampler *s = mem_alloc(1, sizeof *s, "sampler");
    if (!s) return ST_E_NOMEM;
    s->vocab = vocab;
    s->p = mem_alloc((size_t)vocab, sizeof *s->p, "target distribution");
    s->q = mem_alloc((size_t)vocab, sizeof *s->q, "draft distribution");
    s->order = mem_alloc((size_t)vocab, sizeof *s->order, "order of tokens");
    if (!s->p || !s->q || !s->order) {
        sampler_close(s);
        return ST_E_NOMEM;
    }
    *s_p = s;
    return ST_OK;
}

void sampler_close(struct sampler *s)
{
    if (!s) return;
    mem_free(s->p);
    mem_free(s->q);
    mem_free(s->order);
    mem_free(s);
}

/* ---- the distribution of a row -------------------------------------------------------------------- */

/* the order of the filters; total, so a selection is the same whatever finds it */
static int before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift(const float *logits, int32_t *heap, int n, int at)
{
    int32_t x = heap[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && before(logits, heap[child + 1], heap[child])) child++;
        if (!before(logits, heap[child], x)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = x;
}

/* the first of the heap's n goes behind the others: what is taken lies at the end, last first */
static int32_t take(const float *logits, int32_t *heap, int n)
{
    int32_t first = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = first;
    if (n > 1) sift(logits, heap, n - 1, 0);
    return first;
}

static double sum_of(const double *w, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += w[i];
    return sum;
}

/* A heap gives up its first tokens in order; only as many are taken as stay. */
static void filter(struct sampler *s, const struct sampling *how, const float *logits, double *w)
{
    int n = s->vocab, left = n, k = how->top_k > 0 && how->top_k < n ? how->top_k : n;
    int32_t *heap = s->order;
    for (int i = 0; i < n; i++) heap[i] = i;
    for (int i = n / 2 - 1; i >= 0; i--) sift(logits, heap, n, i);
    if (k < n) {
        while (n - left < k) take(logits, heap, left--);
        for (int i = 0; i < left; i++) w[heap[i]] = 0;
    }
    if (!(how->top_p > 0 && how->top_p < 1)) return;
    double most = how->top_p * sum_of(w, n), mass = 0;
    int kept = 0;
    while (kept < k && (kept == 0 || mass < most)) {
        if (kept == n - left) take(logits, heap, left--);
        mass += w[heap[n - 1 - kept++]];
    }
    for (int i = 0; i < n - kept; i++) w[heap[i]] = 0;
}

int sampling_weights(struct sampler *s, const struct sampling *how, double temperature, const float *logits, double *w,
                     double *total_p)
{
    float max = -INFINITY;
    for (int i = 0; i < s->vocab; i++) {
        if (isnan(logits[i])) return 0;
        if (logits[i] > max) max = logits[i];
    }
    if (isinf(max)) return 0;
    for (int i = 0; i < s->vocab; i++) w[i] = exp(((double)logits[i] - max) / temperature);
    if ((how->top_k > 0 && how->top_k < s->vocab) || (how->top_p > 0 && how->top_p < 1)) filter(s, how, logits, w);
    *total_p = sum_of(w, s->vocab); /* at least 1: that of the largest logit */
    return 1;
}

/* ---- draws ---------------------------------------------------------------------------------------- */

/* the first token whose running sum exceeds u * total; one of weight 0 never does */
static int32_t pick(const double *w, int n, double total, double u)
{
    double sum = 0, want = u * total;
    int32_t last = -1;
    for (int i = 0; i < n; i++) {
        if (!(w[i] > 0)) continue;
        sum += w[i];
        last = i;
        if (sum > want) break;
    }
    return last;
}

static int32_t draw(struct sampler *s, const struct sampling *how, double temperature, const float *logits, double u)
{
    double total;
    return sampling_weights(s, how, temperature, logits, s->p, &total) ? pick(s->p, s->vocab, total, u) : -1;
}

int32_t sampling_token(struct sampler *s, const struct sampling *how, const float *logits, int question, int position)
{
    return draw(s, how, how->temperature, logits, sampling_unit(how, question, position, SAMPLING_TOKEN));
}

static double heat_of_draft(const struct sampling *how)
{
    return how->draft_temperature > 0 ? how->draft_temperature : how->temperature;
}

int32_t sampling_draft(struct sampler *s, const struct sampling *how, const float *logits, int question, int position)
{
    return draw(s, how, heat_of_draft(how), logits, sampling_unit(how, question, position, SAMPLING_DRAFT));
}

/* ---- acceptance ----------------------------------------------------------------------------------- */

/* d, drawn from q, or else a token of max(p - q, 0); -1: not numbers */
static int32_t hold_or_replace(struct sampler *s, const struct sampling *how, const float *p, const float *q, int32_t d,
                               int question, int position)
{
    double sum_p, sum_q, u = sampling_unit(how, question, position, SAMPLING_ACCEPT), rest = 0;
    if (!sampling_weights(s, how, how->temperature, p, s->p, &sum_p)) return -1;
    if (!sampling_weights(s, how, heat_of_draft(how), q, s->q, &sum_q)) return -1;
    if (u * (s->q[d] / sum_q) < s->p[d] / sum_p) return d;
    for (int i = 0; i < s->vocab; i++) {
        double more = s->p[i] / sum_p - s->q[i] / sum_q;
        s->q[i] = more > 0 ? more : 0;
        rest += s->q[i];
    }
    u = sampling_unit(how, question, position, SAMPLING_TOKEN);
    /* p and q equal but for rounding leave nothing: then p itself is what is left */
    return rest > 0 ? pick(s->q, s->vocab, rest, u) : pick(s->p, s->vocab, sum_p, u);
}

struct sampling_verdict sampling_accept(struct sampler *s, const struct sampling *how, const float *p, const float *q,
                                        const int32_t *draft, int n, int question, int position)
{
    for (int i = 0;; i++) {
        const float *row = p + (int64_t)i * s->vocab;
        int32_t x = i < n && q ? hold_or_replace(s, how, row, q + (int64_t)i * s->vocab, draft[i], question, position + i)
                               : sampling_token(s, how, row, question, position + i);
        if (x < 0) return (struct sampling_verdict){0, -1};
        if (i == n || x != draft[i]) return (struct sampling_verdict){i, x};
    }
}
