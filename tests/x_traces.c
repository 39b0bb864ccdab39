/* x_traces - helper of the end-to-end tests.
 *   x_traces make OUT.h5 CASE...            prompts.h5 of golden cases (train, test: all sixteen; or train03, budget05);
 *                                           train03:5 is the first five tokens of a case
 *   x_traces check RESULTS MODE GAP CASE... output tokens (and accept, emitted unless MODE is none) equal the golden's; with
 *                                           GAP > 0 a row may differ from its first near-tie (golden gap < GAP) on
 *   x_traces equal A.h5 B.h5                same requests, tokens and rounds in two result files
 *   x_traces tokens A.h5 B.h5               same requests and tokens (rounds may differ)
 *   x_traces within A.h5 B.h5               every row of B that came to its own end has the tokens that A has
 *   x_traces rows RESULTS                   one line a committed row: index, stop reason, output tokens, prompt tokens, error
 * Exit 0 when it holds; prints the first difference of every row otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "ckpt/chat.h"
#include "ckpt/tokenizer.h"
#include "data/h5.h"
#include "data/prompts.h"
#include "data/results.h"

#define GOLDEN "tests/vectors/decode_traces.h5"
#define MODEL "inputs/k3-nano"
enum { MAX_CASES = 64 };

struct cases { char name[MAX_CASES][16]; int n; };

static void expand(struct cases *c, int n, char **word)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(word[i], "train") != 0 && strcmp(word[i], "test") != 0) {
            snprintf(c->name[c->n++], sizeof c->name[0], "%s", word[i]);
            continue;
        }
        for (int k = 0; k < 16; k++) snprintf(c->name[c->n++], sizeof c->name[0], "%s%02d", word[i], k);
    }
}

static int32_t *vec(struct h5 *f, const char *group, const char *name, size_t *n_p)
{
    char path[64];
    void *p = NULL;
    snprintf(path, sizeof path, "/%s/%s", group, name);
    if (h5_read_vec(f, path, H5_KIND_I32, &p, n_p) != ST_OK) exit(2);
    return p;
}

static float *gaps(struct h5 *f, const char *group, const char *name, size_t *n_p)
{
    char path[64];
    void *p = NULL;
    snprintf(path, sizeof path, "/%s/%s", group, name);
    if (h5_read_vec(f, path, H5_KIND_F32, &p, n_p) != ST_OK) exit(2);
    return p;
}

static int make(const char *out, const struct cases *c)
{
    struct h5 *f;
    struct tokenizer *t;
    struct prompts_row row[MAX_CASES];
    char hash[17], sha[65];
    if (h5_open(GOLDEN, 0, &f) != ST_OK || tokenizer_open(MODEL, -1, &t) != ST_OK) return 2;
    memset(row, 0, sizeof row);
    memset(sha, '0', 64);
    sha[64] = 0;
    for (int i = 0; i < c->n; i++) {
        size_t n;
        char group[16];
        const char *cut = strchr(c->name[i], ':');
        snprintf(group, sizeof group, "%.*s", cut ? (int)(cut - c->name[i]) : 15, c->name[i]);
        row[i].id = vec(f, group, "prompt", &n);
        row[i].n_ids = cut && (size_t)atoi(cut + 1) < n ? atoi(cut + 1) : (int64_t)n;
        row[i].question = c->name[i];
        row[i].gold = "#### 0";
        row[i].source_row = i;
    }
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tokenizer_hash(t));
    struct prompts_meta m = {.template_name = chat_template_name(), .thinking = "off", .shots_source = "", .tokenizer_hash = hash,
                             .source = "decode_traces.h5", .source_sha256 = sha};
    enum status st = prompts_write(out, 1, &m, row, (size_t)c->n);
    for (int i = 0; i < c->n; i++) mem_free((void *)(uintptr_t)row[i].id);
    h5_close(f);
    tokenizer_close(t);
    return st == ST_OK ? 0 : 2;
}

static int first_difference(const int32_t *a, size_t n, const int32_t *b, size_t m)
{
    size_t i = 0;
    while (i < n && i < m && a[i] == b[i]) i++;
    return i == n && i == m ? -1 : (int)i;
}

/* smallest golden gap in the verify step that emitted output index at (0: the prefill token) */
static float gap_at(struct h5 *f, const char *name, int at)
{
    size_t n;
    float *g = gaps(f, name, "plain_gap", &n);
    float v = at < (int)n ? g[at] : 0;
    mem_free(g);
    return v;
}

static int check_rounds(struct h5 *f, const char *name, const char *mode, const struct result_row *r)
{
    size_t n, m;
    char group[48];
    snprintf(group, sizeof group, "%s/%s", name, mode);
    int32_t *a = vec(f, group, "accept", &n), *e = vec(f, group, "emitted", &m);
    int bad = (int)n != r->n_rounds;
    for (int i = 0; !bad && i < r->n_rounds; i++) bad = r->round[i].accepted != a[i] || r->round[i].emitted != e[i];
    if (bad) printf("%s: rounds differ: golden %zu, found %d\n", name, n, r->n_rounds);
    mem_free(a);
    mem_free(e);
    return bad;
}

static int check(const char *path, const char *mode, float tie, const struct cases *c)
{
    struct h5 *f;
    struct results *r;
    int bad = 0, ties = 0, spec = strcmp(mode, "none") != 0;
    if (h5_open(GOLDEN, 0, &f) != ST_OK || results_load(path, &r) != ST_OK) return 2;
    if ((int)r->n != c->n) {
        printf("%s: %zu rows, %d cases\n", path, r->n, c->n);
        return 1;
    }
    for (int i = 0; i < c->n; i++) {
        size_t n;
        char group[48];
        snprintf(group, sizeof group, "%s%s%s", c->name[i], spec ? "/" : "", spec ? mode : "");
        int32_t *want = vec(f, group, spec ? "out" : "plain", &n);
        int at = first_difference(want, n, r->row[i].token, (size_t)r->row[i].output_tokens);
        mem_free(want);
        if (at < 0) {
            if (spec && tie == 0) bad += check_rounds(f, c->name[i], mode, &r->row[i]);
            continue;
        }
        float gap = gap_at(f, c->name[i], at);
        int is_tie = gap < tie;
        printf("%s: first difference at output token %d, golden gap %.4f%s\n", c->name[i], at, (double)gap,
               is_tie ? " (near-tie)" : "");
        ties += is_tie;
        bad += !is_tie;
    }
    printf("%s %s: %d cases, %d identical, %d differ at a near-tie, %d wrong\n", path, mode, c->n, c->n - ties - bad,
           ties, bad);
    results_free(r);
    h5_close(f);
    return bad != 0;
}

static int equal(const char *pa, const char *pb, int rounds)
{
    struct results *a, *b;
    int bad = 0;
    if (results_load(pa, &a) != ST_OK || results_load(pb, &b) != ST_OK) return 2;
    if (a->n != b->n) bad = 1;
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        const struct result_row *x = &a->row[i], *y = &b->row[i];
        int at = first_difference(x->token, (size_t)x->output_tokens, y->token, (size_t)y->output_tokens);
        int same_rounds = !rounds || (x->n_rounds == y->n_rounds &&
                                      memcmp(x->round, y->round, (size_t)x->n_rounds * sizeof *x->round) == 0);
        if (x->index == y->index && at < 0 && same_rounds) continue;
        printf("row %zu (%lld, %lld): %s at %d\n", i, (long long)x->index, (long long)y->index,
               at < 0 ? "rounds differ" : "tokens differ", at);
        bad++;
    }
    printf("%s %s: %zu and %zu rows, %d differ\n", pa, pb, a->n, b->n, bad);
    results_free(a);
    results_free(b);
    return bad != 0;
}

static int rows(const char *path)
{
    struct results *r;
    if (results_load(path, &r) != ST_OK) return 2;
    for (size_t i = 0; i < r->n; i++)
        printf("%lld %s %d %d %s\n", (long long)r->row[i].index, result_stop_name(r->row[i].stop), r->row[i].output_tokens,
               r->row[i].prompt_tokens, r->row[i].error ? r->row[i].error : "");
    results_free(r);
    return 0;
}

static const struct result_row *row_of(const struct results *r, int64_t index)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->row[i].index == index) return &r->row[i];
    return NULL;
}

static int within(const char *pa, const char *pb)
{
    struct results *a, *b;
    int bad = 0, ended = 0;
    if (results_load(pa, &a) != ST_OK || results_load(pb, &b) != ST_OK) return 2;
    for (size_t i = 0; i < b->n; i++) {
        const struct result_row *y = &b->row[i], *x = row_of(a, y->index);
        if (y->stop != RESULT_EOS && y->stop != RESULT_LENGTH) continue;
        ended++;
        if (x && first_difference(x->token, (size_t)x->output_tokens, y->token, (size_t)y->output_tokens) < 0) continue;
        printf("row %lld: %s\n", (long long)y->index, x ? "tokens differ" : "not in the first file");
        bad++;
    }
    printf("%s %s: %d ended rows compared, %d differ\n", pa, pb, ended, bad);
    results_free(a);
    results_free(b);
    return bad != 0 || ended == 0;
}

int main(int argc, char **argv)
{
    struct cases c = {.n = 0};
    if (argc >= 4 && strcmp(argv[1], "make") == 0) {
        expand(&c, argc - 3, argv + 3);
        return make(argv[2], &c);
    }
    if (argc >= 6 && strcmp(argv[1], "check") == 0) {
        expand(&c, argc - 5, argv + 5);
        return check(argv[2], argv[3], strtof(argv[4], NULL), &c);
    }
    if (argc == 4 && strcmp(argv[1], "equal") == 0) return equal(argv[2], argv[3], 1);
    if (argc == 4 && strcmp(argv[1], "tokens") == 0) return equal(argv[2], argv[3], 0);
    if (argc == 4 && strcmp(argv[1], "within") == 0) return within(argv[2], argv[3]);
    if (argc == 3 && strcmp(argv[1], "rows") == 0) return rows(argv[2]);
    fprintf(stderr, "usage: see the comment at the top of tests/x_traces.c\n");
    return 2;
}
