#include "model/spec.h"

#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/rng.h"

struct spec {
    struct ops *o;
    struct target *t;
    struct draft *d;             /* NULL: plain decoding */
    struct state *s;
    struct tp_comm comm;
    struct spec_options opt;
    int hidden, vocab, cap_rows; /* cap_rows = max_seqs * block */
    struct flow f;               /* f.acc: projected taps of the committed rows */
    struct batch b;
    struct buf taps;             /* bmem [n_taps][cap_rows][hidden], in the order of sink */
    struct buf kept;             /* bmem [cap_rows][hidden], committed rows of one tap */
    struct tap_sink sink;
    int n_stored;                /* taps stored by the running forward */
    struct batch_seq *context;   /* [max_seqs] committed rows, packed */
    int32_t *from;               /* [cap_rows] and the rows of the batch that they are */
    struct draft_seq *block;     /* [max_seqs] */
    int32_t *drafts;             /* [max_seqs][block - 1] */
    int32_t *argmax;             /* [cap_rows] */
    int32_t *decision;           /* [max_seqs][2] accepted, bonus: the message of rank 0 */
    int *n_commit;               /* [max_seqs] */
    int32_t *width;              /* [max_seqs] rows to verify: the anchor and the drafts that are worth it */
    uint8_t *damaged;            /* [max_seqs] its draft is not made of numbers */
    struct width adaptive;       /* rank 0, with opt.adaptive */
    float *logits;               /* host [cap_rows][vocab], rank 0, only with the logits hook or samples */
    struct draft_draw *draw;     /* [max_seqs] */
    struct sampler *sampler;     /* rank 0, only with samples */
};

int accept_greedy(const int32_t *draft, const int32_t *argmax, int n_draft)
{
    int a = 0;
    while (a < n_draft && draft[a] == argmax[a]) a++;
    return a;
}

/* ---- opening -------------------------------------------------------------------------------------- */

static enum status check_options(const struct draft *d, const struct spec_options *p)
{
    if (p->max_seqs < 1) return ERR(ST_E_RANGE, "spec: max_seqs is %d, at least 1 is needed", p->max_seqs);
    if (p->block < 1) return ERR(ST_E_RANGE, "spec: block is %d, at least 1 is needed", p->block);
    if (p->adaptive && (p->block < 2 || p->block > WIDTH_MAX))
        return ERR(ST_E_RANGE, "spec: adaptive with a block of %d; 2 to %d can be", p->block, WIDTH_MAX);
    if (p->block == 1) return ST_OK;
    if (!d) return ERR(ST_E_INTERNAL, "spec: block %d without a draft model; plain decoding has block 1", p->block);
    if (p->block > draft_verify_rows(draft_config_of(d)))
        return ERR(ST_E_RANGE, "spec: block is %d, the draft is verified with %d rows; ask for at most that", p->block,
                   draft_verify_rows(draft_config_of(d)));
    if (p->confidence > 0 && !draft_confidence(d))
        return ERR(ST_E_INTERNAL, "spec: a confidence of %g without the draft's confidence head", p->confidence);
    if ((p->source == SPEC_ORACLE || p->source == SPEC_WRONG) && !p->oracle)
        return ERR(ST_E_INTERNAL, "spec: oracle and wrong proposals need the oracle");
    return ST_OK;
}

/* taps are stored whole during the forward; which rows survive is known only after it */
static enum status store_tap(void *ctx, int index, const float *h, int rows)
{
    struct spec *s = ctx;
    int k = s->n_stored;
    if (k >= s->sink.n || s->sink.index[k] != index)
        return ERR(ST_E_INTERNAL, "spec: tap %d arrived at place %d of %d; ascending layer order is needed", index, k,
                   s->sink.n);
    s->o->copy(s->o, (float *)s->taps.p + (int64_t)k * s->cap_rows * s->hidden, h,
               (size_t)rows * (size_t)s->hidden * 4);
    s->n_stored++;
    return ST_OK;
}

static enum status new_context(struct spec *s, int n_layers)
{
    const struct draft_config *c = draft_config_of(s->d);
    size_t rows = (size_t)s->cap_rows * (size_t)s->hidden * 4;
    s->sink = (struct tap_sink){.ctx = s, .tap = store_tap};
    s->sink.n = split_taps(c, n_layers, 1, 0, s->sink.index);
    for (int i = 0; i < s->sink.n; i++) s->sink.layer[i] = c->tap[s->sink.index[i]];
    TRY(s->o->mem_new(s->o, &s->taps, rows * (size_t)s->sink.n, "taps of a round"));
    return s->o->mem_new(s->o, &s->kept, rows, "committed rows of a tap");
}

static enum status new_arrays(struct spec *s)
{
    size_t seqs = (size_t)s->opt.max_seqs, rows = (size_t)s->cap_rows;
    s->b.seq = mem_alloc(seqs, sizeof *s->b.seq, "batch sequences");
    s->b.id = mem_alloc(rows, sizeof *s->b.id, "batch ids");
    s->context = mem_alloc(seqs, sizeof *s->context, "context rows");
    s->from = mem_alloc(rows, sizeof *s->from, "committed rows");
    s->block = mem_alloc(seqs, sizeof *s->block, "draft blocks");
    s->drafts = mem_alloc(rows, sizeof *s->drafts, "drafts");
    s->argmax = mem_alloc(rows, sizeof *s->argmax, "target tokens");
    s->decision = mem_alloc(2 * seqs, sizeof *s->decision, "decisions");
    s->n_commit = mem_alloc(seqs, sizeof *s->n_commit, "commits");
    s->width = mem_alloc(seqs, sizeof *s->width, "verify widths");
    s->damaged = mem_alloc(seqs, 1, "damaged sequences");
    s->draw = mem_alloc(seqs, sizeof *s->draw, "how drafts are made");
    int gathers = s->comm.rank == 0 && (s->opt.logits || s->opt.samples);
    if (gathers) s->logits = mem_alloc(rows * (size_t)s->vocab, sizeof *s->logits, "logits rows");
    if (gathers && s->opt.samples) TRY(sampler_open(s->vocab, &s->sampler));
    int whole = s->b.seq && s->b.id && s->context && s->from && s->block && s->drafts && s->argmax && s->decision &&
                s->n_commit && s->width && s->damaged && s->draw && (s->logits || !gathers);
    return whole ? ST_OK : ST_E_NOMEM;
}

enum status spec_open(struct ops *o, const struct config *c, struct target *t, struct draft *d, struct state *s,
                      const struct tp_comm *comm, const struct spec_options *opt, struct spec **s_p)
{
    TRY(check_options(d, opt));
    struct spec *x = mem_alloc(1, sizeof *x, "decode rounds");
    if (!x) return ST_E_NOMEM;
    x->o = o;
    x->t = t;
    x->d = opt->block > 1 ? d : NULL;
    x->s = s;
    x->comm = *comm;
    x->opt = *opt;
    x->hidden = c->hidden;
    x->vocab = c->vocab;
    x->cap_rows = opt->max_seqs * opt->block;
    if (opt->adaptive) width_init(&x->adaptive, opt->block);
    enum status st = flow_open(o, c, x->cap_rows, &x->f);
    if (st == ST_OK) st = new_arrays(x);
    if (st == ST_OK && x->d) st = new_context(x, c->n_layers);
    if (st != ST_OK) {
        spec_close(x);
        return st;
    }
    *s_p = x;
    return ST_OK;
}

void spec_close(struct spec *s)
{
    if (!s) return;
    flow_close(s->o, &s->f);
    s->o->mem_free(s->o, &s->taps);
    s->o->mem_free(s->o, &s->kept);
    mem_free(s->b.seq);
    mem_free(s->b.id);
    mem_free(s->context);
    mem_free(s->from);
    mem_free(s->block);
    mem_free(s->drafts);
    mem_free(s->argmax);
    mem_free(s->decision);
    mem_free(s->n_commit);
    mem_free(s->width);
    mem_free(s->damaged);
    mem_free(s->logits);
    mem_free(s->draw);
    sampler_close(s->sampler);
    mem_free(s);
}

/* ---- regions -------------------------------------------------------------------------------------- */

enum region { REGION_DRAFT, REGION_VERIFY, REGION_COMMIT };

/* A part of a round that the backend may do at one go. Rounds of as many sequences and rows are of one shape; products
 * take other kernels for 8, 16, 32, .. rows, and the rows of a commit are many numbers: those up to a power of two are
 * one shape. */
static void region_begin(struct spec *s, enum region what, int n_seq, int rows)
{
    static const char *const name[] = {"draft", "verify", "commit"};
    int shape = rows;
    if (what == REGION_COMMIT)
        for (shape = 8; shape < rows; shape *= 2) continue;
    s->o->range_begin(s->o, name[what]);
    if (s->opt.graphs) s->o->graph_begin(s->o, (uint64_t)what << 60 | (uint64_t)n_seq << 32 | (uint64_t)shape);
}

static enum status region_end(struct spec *s, enum status st)
{
    if (s->opt.graphs) s->o->graph_end(s->o);
    return ops_range_end(s->o, st);
}

/* ---- proposals ------------------------------------------------------------------------------------ */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* one proposal of a test source for output index i of a request */
static int32_t invent(const struct spec *s, const struct spec_seq *q, int i)
{
    uint64_t r = rng_u64(s->opt.seed, (uint64_t)q->request, (uint64_t)i), vocab = (uint64_t)s->vocab;
    int32_t truth = s->opt.source == SPEC_RANDOM ? -1 : s->opt.oracle(s->opt.oracle_ctx, q->request, i);
    if (truth < 0) return (int32_t)(r % vocab);
    if (s->opt.source == SPEC_ORACLE) return truth;
    return (int32_t)(((uint64_t)truth + 1 + r % (vocab - 1)) % vocab); /* anything but the truth */
}

static enum status propose(struct spec *s, struct spec_seq *const *q, int n)
{
    int per = s->opt.block - 1;
    if (s->opt.source == SPEC_DRAFT) {
        for (int i = 0; i < n; i++) {
            s->block[i] = (struct draft_seq){q[i]->slot, q[i]->pos, q[i]->out[q[i]->n_out - 1]};
            s->draw[i] = (struct draft_draw){&q[i]->how, q[i]->request};
        }
        region_begin(s, REGION_DRAFT, n, n * s->opt.block);
        TRY(region_end(s, draft_block_drawn(s->d, s->t, s->s, s->block, s->draw, n, s->opt.block, s->drafts, NULL)));
        for (int i = 0; i < n * per; i++) { /* the row still takes part in the batch: any token will do */
            if (s->drafts[i] >= 0) continue;
            s->damaged[i / per] = 1;
            s->drafts[i] = 0;
        }
        return ST_OK;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < per; j++) s->drafts[i * per + j] = invent(s, q[i], q[i]->n_out + j);
    return ST_OK;
}

/* How many rows of each sequence may be verified, before anything is drafted. *drafts_p: some want drafts. Rank 0 knows the
 * clock; what follows from positions every rank knows. */
static enum status limit_widths(struct spec *s, struct spec_seq *const *q, int n, int *drafts_p)
{
    int32_t w = s->opt.block;
    if (s->opt.adaptive) {
        if (s->comm.rank == 0) w = width_pick(&s->adaptive, n);
        TRY(s->comm.bcast(s->comm.ctx, &w, sizeof w));
        if (w < 1 || w > s->opt.block) return ERR(ST_E_INTERNAL, "spec: %d rows a sequence, at most %d", w, s->opt.block);
    }
    *drafts_p = 0;
    for (int i = 0; i < n; i++) {
        s->width[i] = q[i]->pos < s->opt.min_context ? 1 : w;
        *drafts_p |= s->width[i] > 1;
    }
    return ST_OK;
}

/* The drafts before the first that the draft itself does not trust. Rank 0 says it: it depends on values. */
static enum status trust_widths(struct spec *s, int n)
{
    int per = s->opt.block - 1;
    if (s->opt.source != SPEC_DRAFT || !(s->opt.confidence > 0)) return ST_OK;
    const float *c = draft_confidence(s->d);
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < s->width[i] - 1 && c[i * per + k] >= s->opt.confidence) k++;
        s->width[i] = k + 1;
    }
    TRY(s->comm.bcast(s->comm.ctx, s->width, (size_t)n * sizeof *s->width));
    for (int i = 0; i < n; i++)
        if (s->width[i] < 1 || s->width[i] > s->opt.block)
            return ERR(ST_E_INTERNAL, "spec: %d rows to verify, at most %d", s->width[i], s->opt.block);
    return ST_OK;
}

/* ---- verification --------------------------------------------------------------------------------- */

static void set_batch(struct spec *s, struct spec_seq *const *q, int n)
{
    int per = s->opt.block - 1, row0 = 0;
    s->b.kind = per > 0 ? BATCH_VERIFY : BATCH_DECODE;
    s->b.n_seq = n;
    for (int i = 0; i < n; i++) {
        int rows = s->width[i];
        s->b.seq[i] = (struct batch_seq){.slot = q[i]->slot, .row0 = row0, .n_rows = rows, .pos0 = q[i]->pos,
                                         .n_draft = rows - 1, .want_logits = rows};
        s->b.id[row0] = q[i]->out[q[i]->n_out - 1];
        for (int j = 1; j < rows; j++) s->b.id[row0 + j] = s->drafts[i * per + j - 1];
        row0 += rows;
    }
    s->b.n_rows = row0;
}

static struct sampling_verdict judge(struct spec *s, const struct spec_seq *q, int i)
{
    const int32_t *top = s->argmax + s->b.seq[i].row0, *draft = s->drafts + i * (s->opt.block - 1);
    int n = s->width[i] - 1;
    if (!sampling_on(&q->how)) {
        int a = accept_greedy(draft, top, n);
        return (struct sampling_verdict){a, top[a]};
    }
    int drawn = n > 0 && s->opt.source == SPEC_DRAFT && sampling_draws(&q->how);
    return sampling_accept(s->sampler, &q->how, s->logits + (int64_t)s->b.seq[i].row0 * s->vocab,
                           drawn ? draft_drawn_from(s->d, i) : NULL, draft, n, q->request, q->pos + 1);
}

/* rank 0 decides for all sequences; the others take its word in one message */
static enum status decide(struct spec *s, struct spec_seq *const *q, int n)
{
    for (int i = 0; i < n && s->comm.rank == 0; i++) {
        struct sampling_verdict v = judge(s, q[i], i);
        int sound = v.bonus >= 0 && !s->damaged[i];
        s->decision[2 * i] = sound ? v.accepted : 0;
        s->decision[2 * i + 1] = sound ? v.bonus : -1;
    }
    return s->comm.bcast(s->comm.ctx, s->decision, 2 * (size_t)n * sizeof *s->decision);
}

static enum status forward(struct spec *s)
{
    s->n_stored = 0;
    TRY(target_forward(s->t, s->s, &s->b, &s->f, s->d ? &s->sink : NULL, NULL));
    if (s->d && s->n_stored != s->sink.n)
        return ERR(ST_E_INTERNAL, "spec: %d taps of %d arrived", s->n_stored, s->sink.n);
    return target_argmax_rows(s->t, s->argmax);
}

static enum status verify(struct spec *s, struct spec_seq *const *q, int n)
{
    set_batch(s, q, n);
    region_begin(s, REGION_VERIFY, n, s->b.n_rows);
    TRY(region_end(s, forward(s)));
    int whole = s->opt.logits != NULL; /* rows of greedy sequences come along: one meeting for all */
    for (int i = 0; i < n; i++) whole |= sampling_on(&q[i]->how);
    if (whole) TRY(target_gather_logits(s->t, s->logits));
    return decide(s, q, n);
}

/* ---- commit --------------------------------------------------------------------------------------- */

/* Draft K/V of the committed rows. Rows are packed first, so nothing is spent on rejected rows; every operation below
 * is per row, so the packing does not change a bit. */
static enum status commit_context(struct spec *s, struct spec_seq *const *q, int n)
{
    struct ops *o = s->o;
    int rows = 0;
    for (int i = 0; i < n; i++) {
        s->context[i] =
            (struct batch_seq){.slot = q[i]->slot, .row0 = rows, .n_rows = s->n_commit[i], .pos0 = q[i]->pos};
        for (int j = 0; j < s->n_commit[i]; j++) s->from[rows++] = s->b.seq[i].row0 + j;
    }
    for (int k = 0; k < s->sink.n; k++) {
        float *kept = s->kept.p;
        const float *tap = (const float *)s->taps.p + (int64_t)k * s->cap_rows * s->hidden;
        o->gather_rows(o, kept, tap, s->from, rows, s->hidden);
        TRY(draft_project(s->d, s->sink.index[k], kept, rows, s->f.acc, k > 0));
    }
    return draft_context(s->d, s->s, s->f.acc, s->context, n);
}

static enum status keep(struct spec *s, struct spec_seq *const *q, int n)
{
    TRY(target_commit(s->t, s->s, &s->b, s->n_commit));
    return commit_context(s, q, n);
}

static enum status commit(struct spec *s, struct spec_seq *const *q, int n)
{
    int rows = 0;
    for (int i = 0; i < n; i++) {
        int a = s->decision[2 * i];
        if (a < 0 || a >= s->width[i])
            return ERR(ST_E_INTERNAL, "spec: %d accepted of %d drafts", a, s->width[i] - 1);
        s->n_commit[i] = a + 1;
        rows += a + 1;
    }
    if (s->b.kind == BATCH_DECODE) return ST_OK; /* one row, absorbed by the forward */
    region_begin(s, REGION_COMMIT, n, rows);
    return region_end(s, keep(s, q, n));
}

/* tokens that reach the output: the accepted drafts and the bonus, up to EOS or the budget */
static void emit(struct spec *s, struct spec_seq *q, int i)
{
    const int32_t *draft = s->drafts + i * (s->opt.block - 1);
    int k = 0, accepted = s->decision[2 * i];
    int32_t bonus = s->decision[2 * i + 1];
    if (bonus < 0) { /* damaged state: nothing of this round counts, and nothing follows */
        q->stop = STOP_FAILED;
        return;
    }
    while (k <= accepted && q->stop == STOP_NONE) {
        int32_t token = k < accepted ? draft[k] : bonus;
        q->out[q->n_out++] = token;
        k++;
        if (token == s->opt.eos) q->stop = STOP_EOS;
        else if (q->n_out >= q->max_new) q->stop = STOP_LENGTH;
    }
    q->pos += accepted + 1;
    if (s->opt.block > 1) q->round[q->n_rounds++] = (struct spec_round){s->width[i] - 1, accepted, k, bonus};
}

static void show_logits(const struct spec *s, struct spec_seq *const *q, int n)
{
    if (!s->opt.logits || s->comm.rank != 0) return;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < s->n_commit[i] && s->decision[2 * i + 1] >= 0; j++)
            s->opt.logits(s->opt.logits_ctx, q[i]->request, q[i]->pos + j,
                          s->logits + (int64_t)(s->b.seq[i].row0 + j) * s->vocab, s->vocab);
}

static void learn(struct spec *s, int n, double draft_s, double rest_s)
{
    width_step(&s->adaptive, n, s->b.n_rows, draft_s, rest_s);
    for (int i = 0; i < n; i++)
        if (s->decision[2 * i + 1] >= 0) width_accept(&s->adaptive, s->width[i] - 1, s->decision[2 * i]);
}

const struct width *spec_width(const struct spec *s)
{
    return s->opt.adaptive && s->comm.rank == 0 ? &s->adaptive : NULL;
}

/* ---- the round ------------------------------------------------------------------------------------ */

void spec_start(struct spec_seq *q, int32_t first_token, int eos)
{
    q->pos = q->prompt_tokens;
    q->out[0] = first_token;
    q->n_out = 1;
    q->n_rounds = 0;
    q->stop = first_token == eos ? STOP_EOS : q->max_new <= 1 ? STOP_LENGTH : STOP_NONE;
}

static enum status check_running(const struct spec *s, const struct spec_seq *q)
{
    const struct state *st = s->s;
    if (q->stop != STOP_NONE || q->n_out < 1 || q->pos != q->prompt_tokens + q->n_out - 1)
        return ERR(ST_E_INTERNAL,
                   "spec: request %d is not running: stop %d, %d tokens, position %d after a prompt of %d", q->request,
                   (int)q->stop, q->n_out, q->pos, q->prompt_tokens);
    if (sampling_on(&q->how) && !s->opt.samples)
        return ERR(ST_E_INTERNAL, "spec: request %d draws its tokens, and there is no room for their logits", q->request);
    if (q->slot < 0 || q->slot >= st->layout.spec.n_slots || !st->slot_used[q->slot])
        return ERR(ST_E_INTERNAL, "spec: request %d holds no state: slot %d", q->request, q->slot);
    if (q->pos + s->opt.block > st->n_pages[q->slot] * st->layout.spec.page)
        return ERR(ST_E_INTERNAL,
                   "spec: request %d writes rows [%d, %d) but holds %d pages of %d; admit prompt + max_new + block",
                   q->request, q->pos, q->pos + s->opt.block, st->n_pages[q->slot], st->layout.spec.page);
    return ST_OK;
}

enum status spec_round(struct spec *s, struct spec_seq *const *q, int n, double *draft_s, double *verify_s,
                       double *commit_s)
{
    if (n < 0 || n > s->opt.max_seqs)
        return ERR(ST_E_RANGE, "spec: %d sequences in a round, opened for at most %d", n, s->opt.max_seqs);
    if (n == 0) return ST_OK;
    for (int i = 0; i < n; i++) TRY(check_running(s, q[i]));
    double t0 = now_s();
    memset(s->damaged, 0, (size_t)n);
    int drafts = 0;
    TRY(limit_widths(s, q, n, &drafts));
    if (s->d && drafts) {
        TRY(propose(s, q, n));
        TRY(trust_widths(s, n));
    }
    double t1 = now_s();
    TRY(verify(s, q, n));
    double t2 = now_s();
    TRY(commit(s, q, n));
    TRY(ops_check(s->o));
    show_logits(s, q, n);
    for (int i = 0; i < n; i++) emit(s, q[i], i);
    double t3 = now_s();
    if (s->opt.adaptive && s->comm.rank == 0) learn(s, n, drafts ? t1 - t0 : 0, t3 - t1);
    if (draft_s) *draft_s += t1 - t0;
    if (verify_s) *verify_s += t2 - t1;
    if (commit_s) *commit_s += t3 - t2;
    return ST_OK;
}
