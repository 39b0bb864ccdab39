/* every golden decode trace, token for token, without and with DFlash and DSpark */
#include "suite.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

const char *const suite_name = "traces";

enum { BLOCK = 16 /* the wider of both drafts */, EOS = 3842, TRACES = 36, AT_ONCE = 12, MAX_NEW = 256, CHUNK = 192 };

/* A run with BF16 KV may leave the golden path only where the golden itself nearly chose otherwise. Measured on these
 * traces, on the 2267 tokens before any difference: rounding MLA rows and conv tails to 8 bits shifts the gap between
 * the two best logits (logits are 5.5 wide) by 0.22 rms; single shifts reach 3 where a router choice flips. A first
 * difference at a golden gap beyond 4 rms is no near-tie of the logits; the widest of those measured is 0.49. */
static const double shift_rms_bound = 0.3, near_tie = 0.85;

/* The near-tie may be the router's: at test05, output token 59, BF16 KV tips an expert choice and the logits row moves by
 * 12 % (0.3 to 3 % on the rows around it). The PyTorch reference with its MLA rows and convolution inputs rounded to BF16,
 * fed the golden tokens, moves the gap of this token from 1.616 to -0.157 as well. Which router ties tip depends on the
 * last bit of the sums, hence on the instruction set: a few traces may leave that way, none further than a shift reaches. */
static const double router_shift = 3.5;
enum { ROUTER_TIES = 3 };

/* Golden ties. test11's prompt holds one position where the router's 4th and 5th scores differ by 5.5e-8 in FP64, less
 * than FP32 can tell at 0.5: layer 1, position 35, experts 5 and 17. The golden's FP32 run took 5, an FP64 run of the
 * same reference takes 17, and so does the FP32 reference when told to take 17 there: it then gives the same tokens,
 * accepts and emits the same, and these drafts instead, 18 of DFlash and 9 of DSpark (all behind the accepted ones). One
 * branch or the other, whole. */
static const struct other {
    int step, slot;
    int32_t id;
} other_dflash[] = {{0, 2, 72},    {4, 1, 220},    {5, 4, 1983},  {5, 10, 297}, {7, 9, 297},   {9, 13, 291},
                    {10, 8, 281},  {10, 12, 291},  {10, 13, 1672}, {11, 5, 281}, {11, 10, 455}, {14, 13, 17},
                    {17, 5, 17},   {17, 8, 17},    {20, 3, 545},  {25, 13, 291}, {28, 7, 626},  {35, 11, 416}},
  other_dspark[] = {{25, 3, 437}, {25, 4, 220}, {25, 5, 445}, {25, 6, 437}, {37, 1, 22}, {37, 2, 297}, {37, 3, 330},
                    {37, 4, 220}, {37, 5, 667}};
static const char *const tied = "test11";

struct golden {
    char name[32];
    int32_t *prompt, *plain, *out, *accept, *emitted, *drafts; /* drafts [steps][per] */
    float *plain_gap, *min_gap;
    int n_prompt, n_plain, n_out, n_steps, max_new;
};

static struct golden traces[TRACES];

/* which draft's rounds are compared, and how many drafts one of its steps holds */
static const struct draft_way {
    const char *name, *dir;
    int per;
    const struct other *other;
    size_t n_other;
} ways[] = {{"dflash", "inputs/k3-nano-dflash", 15, other_dflash, sizeof other_dflash / sizeof other_dflash[0]},
            {"dspark", "inputs/k3-nano-dspark", 7, other_dspark, sizeof other_dspark / sizeof other_dspark[0]}};
static const struct draft_way *way;

static int n_traces(void) { return suite_some(TRACES, 2); }

static struct rig rig;

/* ---- goldens -------------------------------------------------------------------------------------- */

static int32_t *read_ids(const struct h5 *f, const char *group, const char *name, int *n_p)
{
    char path[64];
    int64_t dim[H5_MAX_RANK];
    int rank;
    int32_t *v;
    snprintf(path, sizeof path, "/%s/%s", group, name);
    OK(h5_read_i32(f, path, dim, &rank, &v));
    ck_assert_int_ge(rank, 1);
    *n_p = (int)dim[0];
    return v;
}

static float *read_reals(const struct h5 *f, const char *group, const char *name, int want)
{
    char path[64];
    int64_t dim[H5_MAX_RANK];
    int rank;
    float *v;
    snprintf(path, sizeof path, "/%s/%s", group, name);
    OK(h5_read_f32(f, path, dim, &rank, &v));
    ck_assert_int_eq(dim[0], want);
    return v;
}

static const char *of_way(const char *what)
{
    static char path[64];
    snprintf(path, sizeof path, "%s/%s", way->name, what);
    return path;
}

static void read_trace(const struct h5 *f, struct golden *g)
{
    char path[64];
    int64_t max_new = MAX_NEW;
    int n;
    snprintf(path, sizeof path, "/%s", g->name);
    if (h5_has_attr(f, path, "max_new")) OK(h5_get_int(f, path, "max_new", &max_new));
    g->max_new = (int)max_new;
    g->prompt = read_ids(f, g->name, "prompt", &g->n_prompt);
    g->plain = read_ids(f, g->name, "plain", &g->n_plain);
    g->plain_gap = read_reals(f, g->name, "plain_gap", g->n_plain);
    g->out = read_ids(f, g->name, of_way("out"), &g->n_out);
    g->accept = read_ids(f, g->name, of_way("accept"), &g->n_steps);
    g->emitted = read_ids(f, g->name, of_way("emitted"), &n);
    ck_assert_int_eq(n, g->n_steps);
    g->drafts = read_ids(f, g->name, of_way("drafts"), &n);
    ck_assert_int_eq(n, g->n_steps);
    g->min_gap = read_reals(f, g->name, of_way("min_gap"), g->n_steps);
}

static void read_traces(void)
{
    static const int budget[] = {5, 2, 1, 17}; /* the short ones first */
    struct h5 *f;
    int n = 0;
    OK(h5_open(suite_path("tests/vectors/decode_traces.h5"), 0, &f));
    for (int i = 0; i < 4; i++) snprintf(traces[n++].name, sizeof traces[0].name, "budget%02d", budget[i]);
    for (int i = 0; i < 16; i++) snprintf(traces[n++].name, sizeof traces[0].name, "train%02d", i);
    for (int i = 0; i < 16; i++) snprintf(traces[n++].name, sizeof traces[0].name, "test%02d", i);
    for (int i = 0; i < n_traces(); i++) read_trace(f, &traces[i]);
    h5_close(f);
}

static void free_traces(void)
{
    for (int i = 0; i < n_traces(); i++) {
        struct golden *g = &traces[i];
        void *all[] = {g->prompt, g->plain, g->out, g->accept, g->emitted, g->drafts, g->plain_gap, g->min_gap};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) mem_free(all[k]);
    }
}

/* ---- runs ----------------------------------------------------------------------------------------- */

struct run { /* one trace as decoded here */
    struct spec_seq q;
    int32_t out[MAX_NEW];
    struct spec_round round[MAX_NEW];
    int32_t drafts[MAX_NEW][BLOCK - 1];
    float gap[MAX_NEW]; /* between the two best logits where output token i was chosen; token 0 comes from prefill */
};

static void note_gap(void *ctx, int request, int pos, const float *row, int vocab)
{
    struct run *r = (struct run *)ctx + request;
    int i = pos - r->q.prompt_tokens + 1;
    float best = -INFINITY, second = -INFINITY;
    for (int k = 0; k < vocab; k++) {
        if (row[k] > best) {
            second = best;
            best = row[k];
        } else if (row[k] > second) {
            second = row[k];
        }
    }
    if (i < MAX_NEW) r->gap[i] = best - second; /* rows behind the budget have no token */
}

/* what the draft proposes for the running sequences: asked once more beside the round, which must leave no trace */
static void note_drafts(struct spec_seq *const *q, int n, struct run *run)
{
    struct draft_seq seq[AT_ONCE];
    int32_t id[AT_ONCE * (BLOCK - 1)];
    int per = way->per;
    for (int i = 0; i < n; i++) seq[i] = (struct draft_seq){q[i]->slot, q[i]->pos, q[i]->out[q[i]->n_out - 1]};
    OK(draft_block(rig.d, rig.t, &rig.s, seq, n, per + 1, id, NULL));
    for (int i = 0; i < n; i++)
        memcpy(run[q[i]->request].drafts[q[i]->n_rounds], id + i * per, (size_t)per * sizeof *id);
}

static void start(struct run *r, int i)
{
    const struct golden *g = &traces[i];
    r->q = (struct spec_seq){.request = i, .prompt_tokens = g->n_prompt, .max_new = g->max_new};
    r->q.out = r->out;
    r->q.round = r->round;
    r->q.slot = rig_admit(&rig, g->n_prompt + g->max_new + BLOCK);
    spec_start(&r->q, rig_prefill(&rig, r->q.slot, g->prompt, g->n_prompt, CHUNK), EOS);
}

/* all traces, AT_ONCE at a time: the next one joins when one has ended, as in a service */
static struct run *decode_all(int block, int with_drafts, int with_gaps)
{
    struct run *run = calloc(TRACES, sizeof *run);
    struct spec_options p = {.block = block, .max_seqs = AT_ONCE, .eos = EOS};
    if (with_gaps) p.logits = note_gap;
    p.logits_ctx = run;
    struct spec *s;
    struct run *live[AT_ONCE];
    int n = 0, next = 0;
    OK(spec_open(&rig.o, &rig.c, rig.t, rig.d, &rig.s, &rig.comm, &p, &s));
    while (next < n_traces() || n > 0) {
        while (n < AT_ONCE && next < n_traces()) {
            start(&run[next], next);
            live[n++] = &run[next++];
        }
        struct spec_seq *q[AT_ONCE];
        int m = 0;
        for (int i = 0; i < n; i++) {
            if (live[i]->q.stop == STOP_NONE) {
                q[m++] = &live[i]->q;
                continue;
            }
            OK(state_release(&rig.s, live[i]->q.slot));
            live[i--] = live[--n];
        }
        if (with_drafts) note_drafts(q, m, run);
        OK(spec_round(s, q, m, NULL, NULL, NULL));
    }
    spec_close(s);
    return run;
}

static void open_rig(enum ops_act act, enum kv_dtype kv, const struct draft_way *draft)
{
    struct rig_spec p = {.act = act, .kv = kv, .page = 16, .n_slots = AT_ONCE, .max_rows = CHUNK, .draft = suite_path(draft->dir)};
    int longest = 0;
    way = draft;
    read_traces();
    for (int i = 0; i < n_traces(); i++) {
        int n = traces[i].n_prompt + traces[i].max_new + BLOCK;
        longest = n > longest ? n : longest;
    }
    p.max_tokens = longest;
    rig_open(&rig, &p);
}

static void close_rig(void)
{
    ck_assert_int_eq(rig.s.n_free_slots, AT_ONCE);
    ck_assert_int_eq(rig.s.n_free_pages, rig.s.layout.spec.n_pages);
    rig_close(&rig);
    free_traces();
}

/* ---- FP32: identical ------------------------------------------------------------------------------- */

static int first_difference(const int32_t *a, int n_a, const int32_t *b, int n_b)
{
    int n = n_a < n_b ? n_a : n_b;
    for (int i = 0; i < n; i++)
        if (a[i] != b[i]) return i;
    return n_a == n_b ? -1 : n;
}

static void check_plain(const struct run *r, const struct golden *g)
{
    int at = first_difference(r->out, r->q.n_out, g->plain, g->n_plain);
    ck_assert_msg(at < 0, "%s: token %d differs; golden gap %g", g->name, at, at < g->n_plain ? g->plain_gap[at] : NAN);
    ck_assert_int_eq(r->q.n_rounds, 0); /* plain steps are no verify steps */
}

/* the drafts a step must propose: the golden's, or those of the other branch of its tie */
static void wanted_drafts(const struct golden *g, int step, int other, int32_t want[BLOCK - 1])
{
    memcpy(want, g->drafts + step * way->per, (size_t)way->per * sizeof *want);
    for (size_t k = 0; other && k < way->n_other; k++)
        if (way->other[k].step == step) want[way->other[k].slot] = way->other[k].id;
}

static void check_steps(const struct run *r, const struct golden *g)
{
    int at = first_difference(r->out, r->q.n_out, g->out, g->n_out);
    ck_assert_msg(at < 0, "%s: token %d differs", g->name, at);
    ck_assert_msg(r->q.n_rounds == g->n_steps, "%s: %d steps, golden %d", g->name, r->q.n_rounds, g->n_steps);
    const struct other *tell = way->other;
    int other = strcmp(g->name, tied) == 0 && r->drafts[tell->step][tell->slot] == tell->id;
    for (int i = 0; i < g->n_steps; i++) {
        int32_t want[BLOCK - 1];
        wanted_drafts(g, i, other, want);
        at = first_difference(r->drafts[i], way->per, want, way->per);
        ck_assert_msg(at < 0, "%s, step %d: draft %d differs; golden gap %g", g->name, i, at, g->min_gap[i]);
        ck_assert_msg(r->round[i].accepted == g->accept[i] && r->round[i].emitted == g->emitted[i],
                      "%s, step %d: accepted %d emitted %d, golden %d %d", g->name, i, r->round[i].accepted,
                      r->round[i].emitted, g->accept[i], g->emitted[i]);
        ck_assert_int_eq(r->round[i].proposed, way->per);
    }
    if (other) printf("%s: the other branch of the golden's router tie\n", g->name);
}

START_TEST(fp32_traces_are_the_goldens)
{
    int spec = _i > 0, tokens = 0, steps = 0;
    open_rig(ACT_FP32, KV_FP32, &ways[_i == 2]);
    struct run *run = decode_all(spec ? way->per + 1 : 1, spec, 0);
    for (int i = 0; i < n_traces(); i++) {
        if (spec) check_steps(&run[i], &traces[i]);
        else check_plain(&run[i], &traces[i]);
        tokens += run[i].q.n_out;
        steps += run[i].q.n_rounds;
    }
    printf("fp32, %s: %d traces, %d tokens, %d verify steps: all as the goldens\n", spec ? way->name : "none", n_traces(),
           tokens, steps);
    free(run);
    close_rig();
}
END_TEST

/* ---- BF16 KV: different only at near-ties ----------------------------------------------------------- */

struct tally { /* over all traces */
    int same, n_gaps, router;
    double shift2, most, widest; /* sum of squares and largest shift of a gap; widest near-tie at a first difference */
};

static void compare_bf16(const struct run *p, const struct golden *g, struct tally *t)
{
    int at = first_difference(p->out, p->q.n_out, g->plain, g->n_plain), n = at < 0 ? g->n_plain : at;
    for (int i = 1; i < n; i++) {
        double d = fabs((double)p->gap[i] - g->plain_gap[i]);
        t->shift2 += d * d;
        t->most = fmax(t->most, d);
        t->n_gaps++;
    }
    if (at < 0) {
        t->same++;
        return;
    }
    ck_assert_int_lt(at, g->n_plain);
    ck_assert_int_lt(at, p->q.n_out);
    printf("bf16 kv, %s: first difference at token %d of %d, golden gap %.3f\n", g->name, at, g->n_plain, g->plain_gap[at]);
    ck_assert_msg(g->plain_gap[at] < router_shift, "%s: token %d differs where the golden is sure: gap %g", g->name, at,
                  g->plain_gap[at]);
    if (g->plain_gap[at] < near_tie) t->widest = fmax(t->widest, g->plain_gap[at]);
    else t->router++;
}

START_TEST(bf16_kv_leaves_the_goldens_only_at_near_ties)
{
    open_rig(ACT_FP32, KV_BF16, &ways[0]);
    struct run *plain = decode_all(1, 0, 1), *spec = decode_all(BLOCK, 0, 0);
    struct tally t = {0};
    int accepted = 0, golden_accepted = 0, steps = 0, golden_steps = 0;
    for (int i = 0; i < n_traces(); i++) {
        const struct golden *g = &traces[i];
        const struct run *p = &plain[i], *s = &spec[i];
        ck_assert_msg(first_difference(s->out, s->q.n_out, p->out, p->q.n_out) < 0, "%s: speculation changes the output",
                      g->name); /* lossless in every mode */
        for (int k = 0; k < s->q.n_rounds; k++) accepted += s->round[k].accepted + 1;
        for (int k = 0; k < g->n_steps; k++) golden_accepted += g->accept[k] + 1;
        steps += s->q.n_rounds;
        golden_steps += g->n_steps;
        compare_bf16(p, g, &t);
    }
    double rms = sqrt(t.shift2 / t.n_gaps), tau = (double)accepted / steps, golden_tau = (double)golden_accepted / golden_steps;
    printf("bf16 kv: %d of %d traces identical, widest near-tie of a first difference %.3f, %d beyond\n", t.same, n_traces(),
           t.widest, t.router);
    printf("bf16 kv: gaps of %d tokens shift by %.3f rms, %.3f at most; tau %.3f (golden %.3f)\n", t.n_gaps, rms, t.most,
           tau, golden_tau);
    ck_assert_msg(rms < shift_rms_bound, "gaps shift by %g rms", rms);
    ck_assert_int_le(t.router, ROUTER_TIES);
    ck_assert_int_ge(t.same, n_traces() * 2 / 3);
    ck_assert(fabs(tau / golden_tau - 1) < 0.1);
    free(plain);
    free(spec);
    close_rig();
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "traces", 1800);
    tcase_add_loop_test(tc, fp32_traces_are_the_goldens, 0, 3);
    tcase_add_test(tc, bf16_kv_leaves_the_goldens_only_at_near_ties);
}

int main(void)
{
    return suite_main_serial();
}
