/* spec_kit - eight requests on one rank's model, with what plain decoding says after each prompt: what the tests of
 * spec share. The rig and the requests are the program's own; set_rig fills them, close_rig checks that all came back. */
#ifndef PDFLASH_TESTS_SPEC_KIT_H
#define PDFLASH_TESTS_SPEC_KIT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

enum { BLOCK = 16, EOS = 3842, MOST = 96, SLOTS = 16, SEQS = 8, PAST = MOST + BLOCK };

static const char *const names[SEQS] = {"train00", "test00", "train03", "test05", "train07", "test02", "test09", "train11"};

struct request { /* a prompt and what plain decoding says after it, EOS ignored */
    int32_t *prompt;
    int n;
    int32_t truth[PAST];
};

static struct request requests[SEQS];

static inline int n_seqs(void) { return suite_some(SEQS, 3); }    /* requests in use */
static inline int n_truth(void) { return suite_some(PAST, 44); } /* tokens of truth known of each */

static const struct rig_spec base_rig = {.act = ACT_FP32, .kv = KV_FP32, .page = 16, .n_slots = SLOTS, .max_tokens = 400,
                                         .max_rows = SEQS * BLOCK, .absorbed = 1};

static struct rig rig;

static inline struct spec_seq *new_seq(int request, int max_new)
{
    struct spec_seq *q = calloc(1, sizeof *q);
    q->request = request;
    q->prompt_tokens = requests[request].n;
    q->max_new = max_new;
    q->out = calloc((size_t)max_new, sizeof *q->out);
    q->round = calloc((size_t)max_new, sizeof *q->round);
    return q;
}

static inline void drop_seq(struct spec_seq *q)
{
    if (!q) return;
    if (q->slot >= 0) OK(state_release(&rig.s, q->slot));
    free(q->out);
    free(q->round);
    free(q);
}

static inline void start_seq(struct spec_seq *q, int eos)
{
    const struct request *r = &requests[q->request];
    q->slot = rig_admit(&rig, r->n + q->max_new + BLOCK);
    spec_start(q, rig_prefill(&rig, q->slot, r->prompt, r->n, 64), eos);
}

/* rounds until every sequence has stopped; sequence i joins in round i * stagger */
static inline void run_rounds(struct spec *s, struct spec_seq **q, int n, int stagger)
{
    for (int round = 0;; round++) {
        struct spec_seq *now[SEQS];
        int m = 0, waiting = 0;
        for (int i = 0; i < n; i++) {
            if (q[i]->stop != STOP_NONE) continue;
            if (round < i * stagger) waiting++;
            else now[m++] = q[i];
        }
        if (m == 0 && waiting == 0) return;
        OK(spec_round(s, now, m, NULL, NULL, NULL));
    }
}

static inline int32_t truth_of(void *ctx, int request, int i)
{
    (void)ctx;
    return i < n_truth() ? requests[request].truth[i] : -1;
}

static inline struct spec_options options(int block, enum spec_source source)
{
    return (struct spec_options){.block = block, .max_seqs = SEQS, .eos = EOS, .source = source, .oracle = truth_of, .seed = 5};
}

static inline struct spec *open_spec(const struct spec_options *p)
{
    struct spec *s = NULL;
    OK(spec_open(&rig.o, &rig.c, rig.t, rig.d, &rig.s, &rig.comm, p, &s));
    return s;
}

/* one request alone, to its end */
static inline struct spec_seq *decode(const struct spec_options *p, int request, int max_new)
{
    struct spec *s = open_spec(p);
    struct spec_seq *q = new_seq(request, max_new);
    start_seq(q, p->eos);
    run_rounds(s, &q, 1, 0);
    spec_close(s);
    return q;
}

static inline void set_rig(const struct rig_spec *p)
{
    rig_open(&rig, p);
    struct h5 *f;
    OK(h5_open(suite_path("tests/vectors/decode_traces.h5"), 0, &f));
    struct spec_options plain = options(1, SPEC_DRAFT);
    plain.eos = -1;
    struct spec *s = open_spec(&plain);
    struct spec_seq *q[SEQS];
    for (int i = 0; i < n_seqs(); i++) {
        char path[64];
        snprintf(path, sizeof path, "/%s/prompt", names[i]);
        requests[i].prompt = rig_ids(f, path, &requests[i].n);
        requests[i].n = suite_some(requests[i].n, 24 + i);
        q[i] = new_seq(i, n_truth());
        start_seq(q[i], -1);
    }
    run_rounds(s, q, n_seqs(), 0);
    for (int i = 0; i < n_seqs(); i++) {
        ck_assert_int_eq(q[i]->n_out, n_truth());
        ck_assert_int_eq(q[i]->n_rounds, 0);
        memcpy(requests[i].truth, q[i]->out, (size_t)n_truth() * sizeof *q[i]->out);
        drop_seq(q[i]);
    }
    spec_close(s);
    h5_close(f);
}

static inline void open_rig(void)
{
    set_rig(&base_rig);
}

static inline void close_rig(void)
{
    ck_assert_int_eq(rig.s.n_free_slots, SLOTS); /* every slot and page came back */
    ck_assert_int_eq(rig.s.n_free_pages, rig.s.layout.spec.n_pages);
    for (int i = 0; i < n_seqs(); i++) mem_free(requests[i].prompt);
    rig_close(&rig);
}

/* output = truth up to EOS or the budget, records add up; least: fewest drafts a round may verify */
static inline void check_rounds(const struct spec_seq *q, int block, int least, const char *what)
{
    const int32_t *truth = requests[q->request].truth;
    int n = 0, emitted = 0, accepted = 0;
    while (n < q->max_new && (n == 0 || truth[n - 1] != EOS)) n++;
    ck_assert_msg(q->n_out == n, "%s, %s: %d tokens, must be %d", what, names[q->request], q->n_out, n);
    ck_assert_mem_eq(q->out, truth, (size_t)n * sizeof *truth);
    ck_assert_int_eq(q->stop, truth[n - 1] == EOS ? STOP_EOS : STOP_LENGTH);
    for (int i = 0; i < q->n_rounds; i++) {
        const struct spec_round *r = &q->round[i];
        ck_assert(r->proposed >= least && r->proposed < block);
        ck_assert(r->accepted >= 0 && r->accepted <= r->proposed);
        ck_assert(r->emitted >= 1 && r->emitted <= r->accepted + 1);
        if (i < q->n_rounds - 1) ck_assert_int_eq(r->emitted, r->accepted + 1); /* only the last round is clipped */
        emitted += r->emitted;
        accepted += r->accepted + 1;
        ck_assert_int_eq(r->bonus, truth[accepted]);
    }
    if (block > 1) ck_assert_int_eq(emitted, n - 1);
    else ck_assert_int_eq(q->n_rounds, 0);
    ck_assert_int_eq(q->pos, q->prompt_tokens + (block > 1 ? accepted : n - 1));
}

static inline void check_output(const struct spec_seq *q, int block, const char *what)
{
    check_rounds(q, block, block - 1, what);
}

/* State of a finished request: what plain decoding leaves at the same position, and draft rows as computed afresh. */
static inline void check_state(const struct spec_seq *q, const char *what)
{
    struct spec_options plain = options(1, SPEC_DRAFT);
    plain.eos = -1;
    int more = q->pos - q->prompt_tokens;
    struct spec_seq *p = decode(&plain, q->request, more + 1);
    ck_assert_int_eq(p->pos, q->pos);
    ck_assert_msg(rig_same_state(&rig, q->slot, &rig, p->slot, q->pos, 0), "%s, %s: not the state of plain decoding", what,
                  names[q->request]);
    drop_seq(p);
    const struct request *r = &requests[q->request];
    int32_t *ids = malloc((size_t)q->pos * sizeof *ids);
    memcpy(ids, r->prompt, (size_t)r->n * sizeof *ids);
    memcpy(ids + r->n, r->truth, (size_t)more * sizeof *ids);
    int slot = rig_admit(&rig, q->pos);
    rig_prefill(&rig, slot, ids, q->pos, 50);
    ck_assert_msg(rig_same_state(&rig, q->slot, &rig, slot, q->pos, 1), "%s, %s: not the state of recomputation", what,
                  names[q->request]);
    OK(state_release(&rig.s, slot));
    free(ids);
}

#endif
