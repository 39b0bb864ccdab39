/* mktiny writes pairs of any shape in the released layout, the same bytes for the same seed, and the seed-test pair
 * behaves like a model: logits neither flat nor saturated, all kinds of KDA decay, experts all in use. */
#include "nano.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/hash.h"

const char *const suite_name = "mktiny";

enum { ROWS = 48, FIRST = 8 };

/* exit code of mktiny with these arguments */
static int mktiny(const char *spec, const char *out, int seed)
{
    char cmd[2048];
    const char *b = getenv("B");
    snprintf(cmd, sizeof cmd, "%s/mktiny --spec %s --out %s --seed %d >%s 2>&1", b ? b : "build/release", spec, out, seed,
             suite_tmp("log"));
    int rc = system(cmd);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

static const char *spec_file(const char *name, const char *text)
{
    const char *path = suite_tmp(name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

static void sha(const char *dir, const char *file, char out[65])
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    ck_assert_int_eq(hash_file_sha256(path, out), ST_OK);
}

/* ---- figures of the seed-test pair --------------------------------------------------------------------------- */

struct figures {
    int64_t g, g_strong, g_weak;  /* KDA gates; near the bound; nearly none */
    int used[64];                 /* times an expert was chosen */
    int64_t chosen;
    int n_experts;
};

static void look(void *ctx, const char *name, int layer, const float *x, int rows, int64_t ld, int cols)
{
    struct figures *f = ctx;
    (void)layer;
    for (int i = 0; i < rows && strcmp(name, "kda_g") == 0; i++)
        for (int j = 0; j < cols; j++) {
            float g = x[i * ld + j];
            ck_assert(g <= 0 && g >= -5.0f);
            f->g++;
            f->g_strong += g < -4.5f;
            f->g_weak += g > -0.05f;
        }
    for (int i = 0; i < rows && strcmp(name, "router_idx") == 0; i++)
        for (int j = 0; j < cols; j++) {
            int e = ((const int32_t *)(const void *)x)[i * ld + j];
            ck_assert(e >= 0 && e < f->n_experts);
            f->used[e]++;
            f->chosen++;
        }
}

/* mean deviation of a row's logits and its largest probability */
static void row_figures(const float *x, int n, double *std_p, double *top_p)
{
    double sum = 0, sq = 0, e = 0, max = x[0];
    for (int i = 0; i < n; i++) {
        ck_assert(isfinite(x[i]));
        sum += x[i];
        sq += (double)x[i] * x[i];
        if (x[i] > max) max = x[i];
    }
    for (int i = 0; i < n; i++) e += exp(x[i] - max);
    *std_p = sqrt(sq / n - sum / n * (sum / n));
    *top_p = 1 / e;
}

START_TEST(test_scale)
{
    static struct figures f;
    struct nano m;
    struct nano_rank r;
    struct probe probe = {&f, look};
    struct batch_seq q;
    int32_t id[ROWS];
    int n, differ = 0, used = 0, prev = -1;
    double std = 0, top = 0, sharp = 0;
    const char *out = suite_tmp("seed");
    char dir[1024];
    ck_assert_int_eq(mktiny(suite_path("tests/data/seed-pair.json"), out, 1), 0);
    snprintf(dir, sizeof dir, "%s/target", out);
    ck_assert_int_eq(config_load(dir, &m.c), ST_OK);
    ck_assert_int_eq(safetensors_open(dir, &m.ckpt), ST_OK);
    ck_assert_int_eq(m.c.kda_heads, 32);
    ck_assert_int_eq(m.c.mla_heads, 32);
    ck_assert_int_ge(m.c.n_layers, 17);
    f.n_experts = m.c.n_experts;
    nano_rank_open(&m, &(struct nano_spec){.max_rows = ROWS, .max_verify_rows = ROWS}, &r);
    int slot = nano_admit(&r);
    for (int i = 0; i < ROWS; i++) id[i] = (i * 911 + 17) % 3800;
    nano_run(&r, BATCH_PREFILL, slot, 0, FIRST, id);
    struct batch b = nano_batch(BATCH_VERIFY, &q, slot, FIRST, ROWS - FIRST, id + FIRST);
    ck_assert_int_eq(target_forward(r.t, &r.s, &b, &r.f, NULL, &probe), ST_OK);
    const float *x = target_logits(r.t, &n);
    ck_assert_int_eq(n, ROWS - FIRST);
    for (int i = 0; i < n; i++) {
        double s, t;
        int best = 0;
        const float *y = x + (int64_t)i * m.c.vocab;
        row_figures(y, m.c.vocab, &s, &t);
        for (int j = 1; j < m.c.vocab; j++)
            if (y[j] > y[best]) best = j;
        differ += best != prev;
        prev = best;
        std += s / n;
        top += t / n;
        sharp += t > 0.95;
    }
    for (int e = 0; e < m.c.n_experts; e++) used += f.used[e] > 0;
    printf("logits: deviation %.2f, largest probability %.3f on average, above 0.95 in %.0f of %d rows; argmax changes %d "
           "times; gates: %.1f %% below -4.5, %.1f %% above -0.05; %d of %d experts in use\n",
           std, top, sharp, n, differ, 100.0 * (double)f.g_strong / (double)f.g, 100.0 * (double)f.g_weak / (double)f.g,
           used, m.c.n_experts);
    ck_assert_msg(std > 0.5 && std < 8, "deviation %g", std);
    ck_assert_msg(top > 8.0 / m.c.vocab && top < 0.8, "largest probability %g", top);
    ck_assert_msg(sharp < n / 4, "%g of %d rows are saturated", sharp, n);
    ck_assert_msg(differ > n / 3, "the argmax changes %d times in %d rows", differ, n);
    ck_assert_msg((double)f.g_strong > 0.05 * (double)f.g, "strong decay in %g", (double)f.g_strong / (double)f.g);
    ck_assert_msg((double)f.g_weak > 0.05 * (double)f.g, "weak decay in %g", (double)f.g_weak / (double)f.g);
    ck_assert_int_eq(used, m.c.n_experts);
    ck_assert_int_eq(f.chosen % m.c.top_k, 0);
    nano_rank_close(&r);
    nano_close(&m);
}
END_TEST

/* ---- any shape, the same bytes ------------------------------------------------------------------------------------ */

#define TWELVE                                                                                                      \
    "{\"target\":{\"text_config\":{\"num_hidden_layers\":5,\"num_attention_heads\":4,\"num_key_value_heads\":4,"     \
    "\"hidden_size\":96,\"num_experts\":6,\"num_experts_per_token\":2,\"attn_res_block_size\":2,"                    \
    "\"linear_attn_config\":{\"num_heads\":12,\"head_dim\":16,\"kda_layers\":[1,3,5],\"full_attn_layers\":[2,4]}}}," \
    "\"draft\":{\"hidden_size\":96,\"num_target_layers\":5,\"num_hidden_layers\":2,\"num_attention_heads\":6,"       \
    "\"num_key_value_heads\":3,\"head_dim\":8,\"layer_types\":[\"full_attention\",\"sliding_attention\"],"            \
    "\"dflash_config\":{\"target_layer_ids\":[4,0]}}}"

START_TEST(test_shape_and_seed)
{
    static const char *const file[] = {"target/model-00003-of-00006.safetensors", "target/model-00006-of-00006.safetensors",
                                       "target/model.safetensors.index.json", "target/config.json",
                                       "draft/model.safetensors", "target/tiktoken.model"};
    static const int by_seed[] = {1, 1, 0, 0, 1, 0};
    const char *spec = spec_file("twelve.json", TWELVE), *out[3] = {suite_tmp("a"), suite_tmp("b"), suite_tmp("c")};
    struct config c;
    struct draft_config d;
    char dir[1024], hash[3][65];
    for (int i = 0; i < 3; i++) ck_assert_int_eq(mktiny(spec, out[i], i == 2 ? 8 : 7), 0);
    snprintf(dir, sizeof dir, "%s/target", out[0]);
    ck_assert_int_eq(config_load(dir, &c), ST_OK);
    snprintf(dir, sizeof dir, "%s/draft", out[0]);
    ck_assert_int_eq(draft_config_load(dir, &c, &d), ST_OK);
    ck_assert_int_eq(c.kda_heads, 12);
    ck_assert_int_eq(c.n_layers, 5);
    ck_assert_int_eq(c.is_kda[4], 1);
    ck_assert_int_eq(c.is_kda[3], 0);
    ck_assert_int_eq(d.n_taps, 2);
    ck_assert_int_eq(d.tap[0], 4);
    ck_assert_int_eq(d.kv_heads, 3);
    for (size_t k = 0; k < sizeof file / sizeof *file; k++) {
        for (int i = 0; i < 3; i++) sha(out[i], file[k], hash[i]);
        ck_assert_msg(strcmp(hash[0], hash[1]) == 0, "%s differs for one seed", file[k]);
        ck_assert_msg((strcmp(hash[0], hash[2]) != 0) == by_seed[k], "%s and another seed", file[k]);
    }
}
END_TEST

static const struct refusal { const char *what, *text; int code; } refusal[] = {
    {"no such member", "{\"target\":{\"text_config\":{\"num_heads\":8}}}", 2},
    {"heads that disagree", "{\"target\":{\"text_config\":{\"num_attention_heads\":4}}}", 2},
    {"a width MXFP4 cannot pack", "{\"target\":{\"text_config\":{\"moe_intermediate_size\":48}}}", 2},
    {"a capture outside", "{\"draft\":{\"dflash_config\":{\"target_layer_ids\":[3,17]}}}", 2},
    {"another vocabulary in the draft", "{\"draft\":{\"vocab_size\":4000}}", 2},
    {"not JSON", "{\"target\":", 2},
    {"not an object", "[1]", 2},
};

START_TEST(test_refused)
{
    const struct refusal *x = &refusal[_i];
    char name[32];
    snprintf(name, sizeof name, "refused%d.json", _i);
    int rc = mktiny(spec_file(name, x->text), suite_tmp("refused"), 1);
    ck_assert_msg(rc == x->code, "%s: exit %d", x->what, rc);
    ck_assert_int_eq(mktiny("no-such-file.json", suite_tmp("refused"), 1), 2);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "mktiny", 240);
    SUITE_TEST(tc, test_scale);
    SUITE_TEST(tc, test_shape_and_seed);
    tcase_add_loop_test(tc, test_refused, 0, (int)(sizeof refusal / sizeof *refusal));
}

int main(void)
{
    return suite_main_serial();
}
