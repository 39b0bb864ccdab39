/* The sequential head of DSpark: logits_k = U_k + W2 . W1[x_{k-1}], x_k = argmax, x_0 the anchor. All sequences take a
 * step together; rows are [slot][sequence], so a step's rows lie side by side. */
#include <math.h>

#include "model/draft_weights.h"

enum status draft_markov_open(struct draft *d)
{
    struct ops *o = d->o;
    struct markov *m = &d->markov;
    size_t rows = (size_t)d->spec.max_rows, seqs = (size_t)d->spec.max_seqs, rank = (size_t)d->c.markov_rank;
    TRY(o->mem_new(o, &m->e, seqs * rank * 4, "Markov rows"));
    TRY(o->mem_new(o, &m->bias, seqs * (size_t)m->vocab * 4, "Markov bias"));
    m->before = mem_alloc(seqs, sizeof *m->before, "tokens before");
    m->now = mem_alloc(seqs, sizeof *m->now, "tokens of a slot");
    if (!m->before || !m->now) return ST_E_NOMEM;
    if (!d->spec.confidence) return ST_OK;
    TRY(o->mem_new(o, &m->part, rows * 4, "confidence rows"));
    m->by_y = mem_alloc(rows, sizeof *m->by_y, "confidence by y");
    m->conf = mem_alloc(rows, sizeof *m->conf, "confidence");
    return m->by_y && m->conf ? ST_OK : ST_E_NOMEM;
}

void draft_markov_close(struct draft *d)
{
    struct markov *m = &d->markov;
    struct buf *scratch[] = {&m->e, &m->bias, &m->part};
    for (size_t i = 0; i < sizeof scratch / sizeof scratch[0]; i++) d->o->mem_free(d->o, scratch[i]);
    mem_free(m->by_y);
    mem_free(m->conf);
    mem_free(m->before);
    mem_free(m->now);
}

const float *draft_confidence(const struct draft *d)
{
    return d->spec.confidence ? d->markov.conf : NULL;
}

/* the y side of every slot in one product */
static void confidence_of_y(struct draft *d, const float *y, int rows)
{
    struct markov *m = &d->markov;
    d->o->linear(d->o, &m->conf_y, y, d->c.hidden, rows, draft_f32(&m->part), 1);
    d->o->get(d->o, m->by_y, m->part.p, (size_t)rows * sizeof *m->by_y);
}

static void confidence_of_slot(struct draft *d, int k, int n_seq, int n)
{
    struct markov *m = &d->markov;
    float side[1] = {0};
    int with_token = m->conf_w.n > 0;
    if (with_token) d->o->linear(d->o, &m->conf_w, draft_f32(&m->e), d->c.markov_rank, n_seq, draft_f32(&m->part), 1);
    for (int i = 0; i < n_seq; i++) {
        if (with_token) d->o->get(d->o, side, draft_f32(&m->part) + i, sizeof side);
        m->conf[i * n + k] = (float)(1 / (1 + exp(-((double)m->by_y[k * n_seq + i] + side[0] + m->conf_bias))));
    }
}

enum status draft_markov(struct draft *d, struct target *t, const struct draft_seq *seq, const struct draft_draw *draw,
                         int n_seq, int n, const float *y, int32_t *id)
{
    struct ops *o = d->o;
    struct markov *m = &d->markov;
    int rank = d->c.markov_rank;
    float *e = draft_f32(&m->e), *bias = draft_f32(&m->bias);
    for (int i = 0; i < n_seq; i++) m->before[i] = seq[i].anchor;
    if (d->spec.confidence) confidence_of_y(d, y, n * n_seq);
    for (int k = 0; k < n; k++) {
        o->embed(o, m->w1.p, 0, d->c.vocab, rank, m->before, n_seq, e);
        if (d->spec.confidence) confidence_of_slot(d, k, n_seq, n);
        o->linear(o, &m->w2, e, rank, n_seq, bias, m->vocab);
        TRY(target_argmax_biased(t, k * n_seq, n_seq, bias, m->vocab, m->now)); /* the rows keep the bias */
        TRY(draft_drawn(d, t, seq, draw, n_seq, k, 1, k * n_seq, m->now));
        for (int i = 0; i < n_seq; i++) {
            id[i * n + k] = m->now[i];
            m->before[i] = m->now[i] < 0 ? 0 : m->now[i]; /* damaged: its drafts are thrown away, any token will do */
        }
    }
    return ST_OK;
}
