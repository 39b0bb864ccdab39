/* What the drafter sees, PD against one group: the projected context, the first block's logits and the acceptance, for
 * the sum of the stages' partials against the one product of the concatenated taps, with an FP32 and with a BF16 wire.
 */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "stages.h"

const char *const suite_name = "draft_wire";

enum {
    HIDDEN = 256,
    TAPS = 6,
    BLOCK = 16,
    DRAFTS = BLOCK - 1,
    VOCAB = 4096,
    PP = 8,
    ROWS = 192,
    PAGE = 16,
    PAGES = 15,
    MAX_NEW = 16,
    EOS = 3842
};
static const char *const names[] = {"train00", "train03", "test00"};
enum { PROMPTS = sizeof names / sizeof names[0] };

/* How the context of a prompt is made. CAT is the reference: fc as the checkpoint stores it, one sum over all inputs.
 * ONCE is what engines without a pipeline do in BF16: the same product, rounded once. SINGLE is `--single`, PD the
 * eight stages with the FP32 wire, WIRE the same with the accumulator rounded to BF16 at each hop. */
enum variant { CAT, ONCE, SINGLE, PD, WIRE, N_VARIANTS };
static const char *const variant_name[N_VARIANTS] = {"one product", "one product, rounded once", "single",
                                                     "8 stages, FP32 wire", "8 stages, BF16 wire"};

struct prompt {
    int32_t *ids, first;
    int n;
    float *acc[N_VARIANTS];    /* [n][HIDDEN] */
    float *logits[N_VARIANTS]; /* [DRAFTS][VOCAB] of the first block */
    int32_t draft[N_VARIANTS][DRAFTS];
    int slot[N_VARIANTS]; /* in the whole rig: everything decode needs */
    float *size;          /* [n][HIDDEN] sum over inputs of |h w| */
    float *drift;         /* [n][HIDDEN] bound on what the hops' roundings do */
};

static struct rig whole;
static struct rig *stage;
static struct mat fc; /* [HIDDEN][TAPS * HIDDEN] */
static struct prompt prompt[PROMPTS];

static float *floats(int64_t n)
{
    float *p = calloc((size_t)n, sizeof *p);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* ---- contexts ----------------------------------------------------------------------------------------- */

struct taking {
    float *h;
    int rows;
}; /* [rows][TAPS * HIDDEN], columns in the order of fc */

static enum status take(void *ctx, int index, const float *h, int rows)
{
    struct taking *t = ctx;
    ck_assert_int_eq(rows, t->rows);
    for (int i = 0; i < rows; i++)
        memcpy(t->h + ((int64_t)i * TAPS + index) * HIDDEN, h + (int64_t)i * HIDDEN, HIDDEN * 4);
    return ST_OK;
}

static const uint16_t *fc_weights(void)
{
    struct tensor t;
    const int64_t dim[2] = {HIDDEN, TAPS * HIDDEN};
    OK(safetensors_get(whole.draft_ckpt, "fc.weight", ST_DT_BF16, 2, dim, &t));
    return t.data;
}

static float bf16(uint16_t bits)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)bits << 16};
    return v.f;
}

/* sum |h w| of every element, for the bounds */
static void add_sizes(struct prompt *p, const float *h)
{
    const uint16_t *w = fc_weights();
    enum { K = TAPS * HIDDEN };
    float *row = floats(K);
    p->size = floats((int64_t)p->n * HIDDEN);
    for (int o = 0; o < HIDDEN; o++) {
        for (int k = 0; k < K; k++) {
            uint16_t bits;
            memcpy(&bits, (const char *)w + ((int64_t)o * K + k) * 2, 2);
            row[k] = fabsf(bf16(bits));
        }
        for (int i = 0; i < p->n; i++) {
            float s[8] = {0}; /* eight sums at once; their own rounding is 1e-4 of the result */
            for (int k = 0; k < K; k += 8)
                for (int j = 0; j < 8; j++) s[j] += row[k + j] * fabsf(h[(int64_t)i * K + k + j]);
            p->size[(int64_t)i * HIDDEN + o] = (s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]) * 1.001f;
        }
    }
    free(row);
}

/* the reference and its rounded form, from the taps of one forward through all layers */
static void concatenated(struct prompt *p)
{
    struct taking t = {floats((int64_t)p->n * TAPS * HIDDEN), p->n};
    int slot = rig_admit(&whole, p->n);
    struct batch_seq seq = {.slot = slot, .n_rows = p->n};
    struct batch b = {.kind = BATCH_PREFILL, .n_rows = p->n, .n_seq = 1, .seq = &seq, .id = p->ids};
    struct tap_sink sink = {.ctx = &t, .tap = take, .n = whole.stage.n_taps};
    memcpy(sink.layer, whole.stage.tap_layer, sizeof sink.layer);
    memcpy(sink.index, whole.stage.tap_index, sizeof sink.index);
    OK(target_forward(whole.t, &whole.s, &b, &whole.f, &sink, NULL));
    OK(state_release(&whole.s, slot));
    whole.o.linear(&whole.o, &fc, t.h, TAPS * HIDDEN, p->n, p->acc[CAT], HIDDEN);
    memcpy(p->acc[ONCE], p->acc[CAT], (size_t)p->n * HIDDEN * 4);
    whole.o.round_kv(&whole.o, p->acc[ONCE], (int64_t)p->n * HIDDEN, OPS_KV_BF16);
    add_sizes(p, t.h);
    free(t.h);
}

/* The roundings' part of the bound. A hop turns the value a + e (a: without roundings, e: error so far) into
 * (a + e)(1 + d), |d| <= 2^-8: half a unit of 8 significant bits. So |e| grows by at most 2^-8 (|a| + |e|) a hop. */
static void add_drift(struct prompt *p, const float *acc)
{
    for (int64_t i = 0; i < (int64_t)p->n * HIDDEN; i++) p->drift[i] += (fabsf(acc[i]) + p->drift[i]) * 0x1p-8f;
}

/* the prompt through the eight stages; what the last one holds becomes the decode side's draft pages */
static void pipeline(struct prompt *p, enum variant v)
{
    struct flow f;
    int slot[PP], hops = 0;
    int32_t first = -1;
    OK(flow_open(&stage[0].o, &whole.c, ROWS, &f));
    if (v == PD) p->drift = floats((int64_t)p->n * HIDDEN);
    for (int i = 0; i < PP; i++) {
        slot[i] = rig_admit(&stage[i], p->n);
        OK(prefill_chunk(&stage[i].stage, slot[i], 0, p->n, i == 0 ? p->ids : NULL, 1, &f, &first, NULL, NULL, NULL));
        if (i == PP - 1 || !f.taps) continue;
        hops++;
        if (v == PD) add_drift(p, f.acc);
        else stage[i].o.round_kv(&stage[i].o, f.acc, (int64_t)p->n * HIDDEN, OPS_KV_BF16);
    }
    ck_assert_int_eq(hops, 5); /* stages 0 and 1 have no tap yet, stage 4 passes the sum on */
    ck_assert_int_eq(first, p->first);
    memcpy(p->acc[v], f.acc, (size_t)p->n * HIDDEN * 4);
    const struct rig *last = &stage[PP - 1];
    for (int e = 0; e < whole.s.layout.n; e++) {
        const struct layout_entry *x = &whole.s.layout.entry[e];
        for (int k = 0; x->comp == COMP_DRAFT && k * PAGE < p->n; k++)
            memcpy(state_item(&whole.s, COMP_DRAFT, x->layer, x->kv, state_pages(&whole.s, p->slot[v])[k]),
                   state_item(&last->s, COMP_DRAFT, x->layer, x->kv, state_pages(&last->s, slot[PP - 1])[k]),
                   (size_t)x->item_bytes);
    }
    for (int i = 0; i < PP; i++) OK(state_release(&stage[i].s, slot[i]));
    flow_close(&stage[0].o, &f);
}

static void context(struct prompt *p, const float *acc, int slot)
{
    struct batch_seq seq = {.slot = slot, .n_rows = p->n};
    OK(draft_context(whole.d, &whole.s, acc, &seq, 1));
}

/* target state of the request, which no variant changes */
static void copy_target(const struct prompt *p, int to)
{
    for (int e = 0; e < whole.s.layout.n; e++) {
        const struct layout_entry *x = &whole.s.layout.entry[e];
        int paged = x->comp == COMP_MLA, from = p->slot[SINGLE];
        for (int k = 0; x->comp != COMP_DRAFT && k * PAGE < (paged ? p->n : 1); k++)
            memcpy(state_item(&whole.s, x->comp, x->layer, 0, paged ? state_pages(&whole.s, to)[k] : to),
                   state_item(&whole.s, x->comp, x->layer, 0, paged ? state_pages(&whole.s, from)[k] : from),
                   (size_t)x->item_bytes);
    }
}

static void first_block(struct prompt *p, int slot, int32_t *draft, float *logits)
{
    struct draft_seq seq = {slot, p->n, p->first};
    OK(draft_block(whole.d, whole.t, &whole.s, &seq, 1, BLOCK, draft, NULL));
    OK(target_gather_logits(whole.t, logits));
}

static void make_prompt(struct prompt *p, const struct h5 *f, const char *name)
{
    char path[64];
    memset(p, 0, sizeof *p);
    snprintf(path, sizeof path, "/%s/prompt", name);
    p->ids = rig_ids(f, path, &p->n);
    ck_assert_int_le(p->n, ROWS);
    for (int v = 0; v < N_VARIANTS; v++) {
        p->acc[v] = floats((int64_t)p->n * HIDDEN);
        p->logits[v] = floats(DRAFTS * VOCAB);
        p->slot[v] = rig_admit(&whole, p->n + MAX_NEW + BLOCK);
    }
    p->first = rig_prefill(&whole, p->slot[SINGLE], p->ids, p->n, p->n);
    memcpy(p->acc[SINGLE], whole.f.acc, (size_t)p->n * HIDDEN * 4);
    concatenated(p);
    context(p, p->acc[CAT], p->slot[CAT]);
    context(p, p->acc[ONCE], p->slot[ONCE]);
    pipeline(p, PD);
    pipeline(p, WIRE);
    for (int v = 0; v < N_VARIANTS; v++) {
        if (v != SINGLE) copy_target(p, p->slot[v]);
        first_block(p, p->slot[v], p->draft[v], p->logits[v]);
    }
}

static void open_all(enum kv_dtype kv)
{
    struct rig_spec r = {.act = ACT_FP32,
                         .kv = kv,
                         .page = PAGE,
                         .n_slots = PROMPTS * N_VARIANTS + 1,
                         .max_tokens = PAGES * PAGE,
                         .max_rows = ROWS,
                         .absorbed = 0};
    struct stages_spec s = {
        .pp = PP, .with_draft = 1, .kv = kv, .rows = ROWS, .page = PAGE, .n_pages = PAGES, .n_slots = 1};
    struct h5 *f;
    rig_open(&whole, &r);
    stage = stages_open(&whole, &s);
    OK(whole.o.mat_new(&whole.o, &fc, MAT_BF16, HIDDEN, TAPS * HIDDEN, 0, 0));
    whole.o.mat_put_bf16(&whole.o, &fc, 0, HIDDEN, fc_weights(), TAPS * HIDDEN);
    OK(whole.o.prepare(&whole.o, ROWS));
    OK(h5_open(suite_path("tests/vectors/decode_traces.h5"), 0, &f));
    for (int i = 0; i < PROMPTS; i++) make_prompt(&prompt[i], f, names[i]);
    h5_close(f);
}

static void close_all(void)
{
    for (int i = 0; i < PROMPTS; i++) {
        struct prompt *p = &prompt[i];
        for (int v = 0; v < N_VARIANTS; v++) {
            free(p->acc[v]);
            free(p->logits[v]);
            OK(state_release(&whole.s, p->slot[v]));
        }
        free(p->size);
        free(p->drift);
        mem_free(p->ids);
    }
    whole.o.mat_free(&whole.o, &fc);
    stages_close(stage, PP);
    rig_close(&whole);
}

/* ---- figures ------------------------------------------------------------------------------------------ */

struct error {
    double most, sum, ref_most, ref_sum, square;
    int64_t n;
};

static void measure(struct error *e, const float *a, const float *ref, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - ref[i]), r = fabs((double)ref[i]);
        e->most = d > e->most ? d : e->most;
        e->ref_most = r > e->ref_most ? r : e->ref_most;
        e->sum += d;
        e->ref_sum += r;
        e->square += d * d;
    }
    e->n += n;
    ck_assert(isfinite(e->sum));
}

static double rms(const struct error *e)
{
    return sqrt(e->square / (double)e->n);
}

/* Errors of the FP32 sums. Any order of adding K products in FP32 is off by at most K u / (1 - K u) times the sum of
 * their magnitudes, u = 2^-24 (one rounding a product, one an addition); so two orders differ by twice that. K: all
 * inputs, and an addition a tap. */
static double sum_bound(double size)
{
    const double k = TAPS * HIDDEN + TAPS + 2, u = 0x1p-24;
    return 2 * k * u / (1 - k * u) * size;
}

/* largest difference over its bound, of the partials and of the wire (one assertion: Check keeps a record of each) */
static void check_sums(const struct prompt *p, double *worst_sum, double *worst_wire)
{
    for (int64_t i = 0; i < (int64_t)p->n * HIDDEN; i++) {
        double d = fabs((double)p->acc[PD][i] - p->acc[CAT][i]);
        *worst_sum = fmax(*worst_sum, d / sum_bound(p->size[i]));
        /* the additions of the taps are the same, from other values: their roundings differ by another 2 TAPS u of what
         * passes */
        d = fabs((double)p->acc[WIRE][i] - p->acc[PD][i]);
        *worst_wire = fmax(*worst_wire, d / (p->drift[i] * 1.001 + 4 * TAPS * 0x1p-24 * p->size[i]));
    }
    ck_assert_msg(*worst_sum <= 1, "partials and product differ by %g of what two orders of adding may", *worst_sum);
    ck_assert_msg(*worst_wire <= 1, "the BF16 wire moves an element by %g of what its roundings may", *worst_wire);
}

/* logits of the same prompt when each element of the context is off by as much as in v, but up or down by chance */
static void chance_logits(struct prompt *p, enum variant v, float *logits)
{
    float *acc = floats((int64_t)p->n * HIDDEN);
    int32_t draft[DRAFTS];
    int slot = rig_admit(&whole, p->n + BLOCK);
    for (int64_t i = 0; i < (int64_t)p->n * HIDDEN; i++) {
        float d = p->acc[v][i] - p->acc[CAT][i];
        acc[i] = p->acc[CAT][i] + (rng_u64(11, (uint64_t)v, (uint64_t)i) & 1 ? d : -d);
    }
    context(p, acc, slot);
    first_block(p, slot, draft, logits);
    OK(state_release(&whole.s, slot));
    free(acc);
}

struct figures {
    struct error acc, logits, chance;
    int agree;
};

static void figures_of(enum variant v, struct figures *f)
{
    float *chance = floats(DRAFTS * VOCAB);
    memset(f, 0, sizeof *f);
    for (int i = 0; i < PROMPTS; i++) {
        struct prompt *p = &prompt[i];
        measure(&f->acc, p->acc[v], p->acc[CAT], (int64_t)p->n * HIDDEN);
        measure(&f->logits, p->logits[v], p->logits[CAT], DRAFTS * VOCAB);
        chance_logits(p, v, chance);
        measure(&f->chance, chance, p->logits[CAT], DRAFTS * VOCAB);
        for (int k = 0; k < DRAFTS; k++) f->agree += p->draft[v][k] == p->draft[CAT][k];
    }
    free(chance);
}

static void print_figures(const char *kv, enum variant v, const struct figures *f)
{
    printf("%s caches, %s: context error max %.2g mean %.2g, logits max %.2g mean %.2g (by chance %.2g), drafts %d of "
           "%d\n",
           kv, variant_name[v], f->acc.most / f->acc.ref_most, f->acc.sum / f->acc.ref_sum,
           f->logits.most / f->logits.ref_most, f->logits.sum / f->logits.ref_sum, f->chance.sum / f->chance.ref_sum,
           f->agree, PROMPTS * DRAFTS);
}

/* ---- acceptance ---------------------------------------------------------------------------------------- */

/* decode all prompts from the state of a variant: rounds and accepted drafts; the tokens are those of the first call */
static void accept_of(enum variant v, int *rounds_p, int *accepted_p)
{
    static int32_t want[PROMPTS][MAX_NEW];
    struct spec_options o = {.block = BLOCK, .max_seqs = PROMPTS, .eos = EOS, .source = SPEC_DRAFT};
    struct spec_seq q[PROMPTS], *run[PROMPTS];
    struct spec *s;
    OK(spec_open(&whole.o, &whole.c, whole.t, whole.d, &whole.s, &whole.comm, &o, &s));
    *rounds_p = *accepted_p = 0;
    for (int i = 0; i < PROMPTS; i++) {
        q[i] = (struct spec_seq){
            .request = i, .slot = prompt[i].slot[v], .prompt_tokens = prompt[i].n, .max_new = MAX_NEW};
        q[i].out = calloc(MAX_NEW, sizeof *q[i].out);
        q[i].round = calloc(MAX_NEW, sizeof *q[i].round);
        spec_start(&q[i], prompt[i].first, EOS);
    }
    for (int n = 1; n;) {
        n = 0;
        for (int i = 0; i < PROMPTS; i++)
            if (q[i].stop == STOP_NONE) run[n++] = &q[i];
        OK(spec_round(s, run, n, NULL, NULL, NULL));
    }
    for (int i = 0; i < PROMPTS; i++) {
        for (int k = 0; k < q[i].n_rounds; k++) *accepted_p += q[i].round[k].accepted;
        *rounds_p += q[i].n_rounds;
        if (v == CAT) memcpy(want[i], q[i].out, sizeof want[i]);
        ck_assert_mem_eq(q[i].out, want[i], sizeof want[i]); /* a poorer draft costs rounds, never a token */
        free(q[i].out);
        free(q[i].round);
    }
    spec_close(s);
}

/* ---- tests --------------------------------------------------------------------------------------------- */

/* Bounds of the logits: first order. A context error of elements e moves the logits by J e. If the signs of e have
 * nothing to do with J, the mean square of J e is the sum of J^2 e^2, which the same magnitudes with random signs give
 * too. Both are sums of tens of thousands of terms, so their roots agree within a few per cent; 2 leaves room for the
 * BF16 caches, where small errors move some values by a whole unit and others not at all. An error that is not rounding
 * noise (a tap lost, swapped or added twice) fails check_sums by orders of magnitude long before. */
static void judge(const char *kv, enum variant v, int least_agree, double *mean_p)
{
    struct figures f;
    figures_of(v, &f);
    print_figures(kv, v, &f);
    ck_assert_msg(rms(&f.logits) <= 2 * rms(&f.chance), "%s: logits are off by %g rms, the same errors by chance by %g",
                  variant_name[v], rms(&f.logits), rms(&f.chance));
    ck_assert_int_ge(f.agree, least_agree);
    *mean_p = f.acc.sum / f.acc.ref_sum;
}

START_TEST(pd_sees_the_context_of_one_group)
{
    enum kv_dtype kv = _i ? KV_BF16 : KV_FP32;
    const char *name = _i ? "BF16" : "FP32";
    double sum = 0, wire = 0, fp32, bf16_wire, once;
    open_all(kv);
    for (int i = 0; i < PROMPTS; i++) {
        const struct prompt *p = &prompt[i];
        check_sums(p, &sum, &wire);
        /* with the FP32 wire the pipeline is `--single`, bit for bit, up to the logits */
        ck_assert_mem_eq(p->acc[PD], p->acc[SINGLE], (size_t)p->n * HIDDEN * 4);
        ck_assert_mem_eq(p->logits[PD], p->logits[SINGLE], DRAFTS * VOCAB * 4);
        ck_assert(rig_same_state(&whole, p->slot[PD], &whole, p->slot[SINGLE], p->n, 1));
        ck_assert(memcmp(p->acc[PD], p->acc[CAT], (size_t)p->n * HIDDEN * 4) !=
                  0); /* another order of adding was compared */
    }
    printf("%s caches: largest difference over its bound: partials to product %.2g, BF16 to FP32 wire %.2g\n", name,
           sum, wire);
    judge(name, PD, PROMPTS * DRAFTS, &fp32);
    judge(name, ONCE, PROMPTS * DRAFTS * 9 / 10, &once);
    judge(name, WIRE, PROMPTS * DRAFTS * 9 / 10, &bf16_wire);
    /* five roundings to 2^-9 of the value on average, not one; FP32 sums are far below both */
    ck_assert(fp32 < 0.01 * once && bf16_wire > once && bf16_wire < 5 * once && once < 0x1p-8);
    int rounds[N_VARIANTS], accepted[N_VARIANTS];
    for (int v = 0; v < N_VARIANTS; v++) {
        if (v == SINGLE) continue; /* PD's bits */
        accept_of((enum variant)v, &rounds[v], &accepted[v]);
        printf("%s caches, %s: accept length %.3f (%d rounds)\n", name, variant_name[v],
               1 + (double)accepted[v] / rounds[v], rounds[v]);
    }
    ck_assert_int_le(abs(rounds[PD] - rounds[CAT]), 1);
    ck_assert_int_le(abs(rounds[WIRE] - rounds[CAT]), rounds[CAT] / 10 + 1);
    close_all();
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "draft wire", 300);
    tcase_add_loop_test(tc, pd_sees_the_context_of_one_group, 0, 2);
}

int main(void)
{
    return suite_main_serial();
}
