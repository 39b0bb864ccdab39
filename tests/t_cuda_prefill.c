/* Prefill in chunks with heads of 128, where CUDA takes the chunked form of KDA in act bf16: pieces that start and
 * end at a chunk of 64 rows and have at least two of them give the bits of one piece; others, and the recurrence,
 * agree as BF16 does. In act fp32, and on the CPU (which is tested where there is no device), every way of cutting
 * gives the same bits. */
#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "rig.h"

const char *const suite_name = "cuda_prefill";

enum { N = 512, PIECES = 9, HEADS = 2, D = 128 };

static const struct cut {
    int piece[PIECES]; /* 0: no more */
    int same;          /* bits, on CUDA in act bf16 */
} cuts[] = {
    {{512}, 1},
    {{256, 256}, 1},
    {{128, 128, 128, 128}, 1},
    {{384, 128}, 1},
    {{192, 320}, 1},
    {{448, 64}, 0},
    {{200, 200, 112}, 0},
    {{64, 64, 64, 64, 64, 64, 64, 64}, 0},
};
enum { N_CUTS = sizeof cuts / sizeof cuts[0] };

struct outcome {
    float *logits; /* [vocab] of the last position */
    float *kda;    /* the KDA states, layer after layer */
    int64_t n_kda;
};

static const char *make_model(void)
{
    static char dir[1024];
    char cmd[4096];
    const char *b = getenv("B"), *spec = suite_tmp("spec.json"), *out = suite_tmp("pair");
    FILE *f = fopen(spec, "w");
    fprintf(f, "{\"target\": {\"text_config\": {\"linear_attn_config\": {\"num_heads\": %d, \"head_dim\": %d}}}, "
               "\"draft\": {}}", HEADS, D);
    ck_assert_int_eq(fclose(f), 0);
    snprintf(cmd, sizeof cmd, "%s/mktiny --spec %s --out %s --like %s --draft-like %s >%s 2>&1",
             b ? b : "build/release", spec, out, suite_path("inputs/k3-nano"), suite_path("inputs/k3-nano-dflash"), suite_tmp("log"));
    int rc = system(cmd);
    ck_assert_msg(WIFEXITED(rc) && WEXITSTATUS(rc) == 0, "%s: %d", cmd, rc);
    snprintf(dir, sizeof dir, "%s/target", out);
    return dir;
}

static struct outcome prefill(struct rig *r, const int32_t *id, const int *piece)
{
    struct outcome y = {.logits = malloc((size_t)r->c.vocab * sizeof(float))};
    int slot = rig_admit(r, N), at = 0;
    int32_t first;
    for (int i = 0; i < PIECES && piece[i]; at += piece[i++])
        OK(prefill_chunk(&r->stage, slot, at, piece[i], id + at, at + piece[i] == N, &r->f, &first, NULL, NULL, NULL));
    ck_assert_int_eq(at, N);
    OK(target_gather_logits(r->t, y.logits));
    y.kda = malloc((size_t)r->c.n_layers * HEADS * D * D * sizeof(float));
    for (int l = 0; l < r->c.n_layers; l++) {
        if (!r->c.is_kda[l]) continue;
        r->o.get(&r->o, y.kda + y.n_kda, state_item(&r->s, COMP_KDA, l, 0, slot), HEADS * D * D * sizeof(float));
        y.n_kda += HEADS * D * D;
    }
    OK(state_release(&r->s, slot));
    return y;
}

static void outcome_free(struct outcome *y)
{
    free(y->logits);
    free(y->kda);
}

/* ||a - b|| / ||b|| */
static double apart(const float *a, const float *b, int64_t n)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        ck_assert(isfinite(a[i]) && isfinite(b[i]));
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    return sqrt(d / s);
}

/* The first layer's state shows the chunked form alone. What is behind routers and sixteen layers of random weights is
 * printed: an expert chosen otherwise is another output. */
static void expect(struct rig *r, const struct outcome *a, const struct outcome *b, int same, const char *what, int i)
{
    double first = apart(a->kda, b->kda, HEADS * D * D), kda = apart(a->kda, b->kda, b->n_kda);
    double logits = apart(a->logits, b->logits, r->c.vocab);
    printf("%s act %d, %s %d: first state %.1e, all states %.1e, logits %.1e apart\n", r->o.name, (int)r->o.act, what, i,
           first, kda, logits);
    if (same) ck_assert_msg(logits == 0 && kda == 0, "%s %d should be the same bits", what, i);
    ck_assert_msg(first <= 1e-2, "%s %d: %g apart", what, i, first);
}

START_TEST(cuts_agree)
{
    struct rig r;
    struct rig_spec p = {.act = (enum ops_act)_i, .kv = KV_BF16, .page = 64, .n_slots = 1, .max_tokens = N, .max_rows = N};
    int32_t id[N];
    p.cuda = ops_cuda_devices() > 0;
    p.absorbed = p.no_draft = 1;
    p.model = make_model();
    if (!p.cuda) printf("SKIPPED: no CUDA device in this build or on this machine; the CPU is tested\n");
    rig_open(&r, &p);
    for (int i = 0; i < N; i++) id[i] = (i * 911 + 17) % 3800;
    int chunked = r.o.kda_chunk_rows > 0;
    ck_assert_int_eq(chunked, p.cuda && _i == ACT_BF16);
    struct outcome whole = prefill(&r, id, cuts[0].piece);
    for (int i = 0; i < (p.cuda ? N_CUTS : 4); i++) {
        struct outcome y = prefill(&r, id, cuts[i].piece);
        expect(&r, &y, &whole, cuts[i].same || !chunked, "cut", i);
        outcome_free(&y);
    }
    r.o.kda_chunk_rows = 0;
    struct outcome y = prefill(&r, id, cuts[0].piece);
    expect(&r, &y, &whole, !chunked, "recurrence", 0);
    if (chunked) ck_assert(apart(y.kda, whole.kda, whole.n_kda) > 0); /* so the chunked form was at work */
    outcome_free(&y);
    outcome_free(&whole);
    rig_close(&r);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "chunks", 600);
    tcase_add_loop_test(tc, cuts_agree, ACT_FP32, ACT_BF16 + 1);
}

int main(void)
{
    return suite_main_serial();
}
