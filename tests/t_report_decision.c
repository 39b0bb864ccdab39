/* The decision rule: every verdict, and each reason for it. */
#include "report_kit.h"

#include "base/hash.h"

const char *const suite_name = "report_decision";

static const char TRAIN[] = "33677560147f2b684ead8a7199d0c6041b21e59ae8c61b97bc294962a03cbab0";

/* a run of three questions as --spec says, made up of what the rule looks at */
struct run {
    const char *model, *source_sha, *prompts, *kv, *concurrency;
    int right;      /* rows answered right */
    int first_token; /* of question 1's output */
    int n;          /* rows; 3 is a whole run */
    int failed;     /* the last row failed */
    double wall;    /* seconds of decoding; NaN: not measured */
    const char *temperature, *seed, *drafts; /* NULL: a file from before there were draws */
    int cut;             /* the last rows, cut off */
    const char *run_id, *start; /* NULL: a file from before there were */
};

static struct opened *make(const char *name, const struct run *x)
{
    const char *path = suite_fresh(name);
    const struct results_setup setup = {"h", 3, 4, NULL, 0, 0, 0};
    const char *const attr[] = {
        "option_model",       x->model,   "source_sha256",      x->source_sha,  "prompts_hash", x->prompts,
        "option_kv-dtype",    x->kv,      "option_concurrency", x->concurrency, "model_hash",   "m",
        "tokenizer_hash",     "t",        "option_max-new",     "256",          "option_act",   "fp32",
        "option_mla-prefill", "absorbed", "option_device",      "cpu",          "option_temperature", x->temperature,
        "option_seed",        x->seed,    "drafts",             x->drafts,      "attempt_1_run_id", x->run_id,
        "attempt_1_start_utc", x->start,  "attempt_1_command_line", x->run_id};
    struct results_writer *w;
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &setup, &w), ST_OK);
    for (size_t i = 0; i < sizeof attr / sizeof attr[0]; i += 2)
        if (attr[i + 1]) kit_attrs(w, &attr[i], 1);
    for (int i = 0; i < x->n; i++) {
        struct kit_row row = {.index = i,
                              .stop = x->failed && i == x->n - 1 ? RESULT_FAILED
                                      : i >= x->n - x->cut       ? RESULT_LENGTH
                                                                 : RESULT_EOS,
                              .reply = i < x->right ? "#### 18" : "#### 19",
                              .tokens = 10,
                              .token0 = i == 1 ? x->first_token : 5,
                              .n_rounds = 2,
                              .t = {0, 0, 0, 0, 0, 1, 0, 1 + x->wall}};
        kit_append(w, &row);
    }
    results_close(w);
    return kit_load(path);
}

static const struct run GOOD = {"inputs/k3-nano/", TRAIN, "p", "bf16", "8", 3, 70, 3, 0, 2, NULL, NULL, NULL, 0, NULL, NULL};
static const struct run PLAIN = {"inputs/k3-nano/", TRAIN, "p", "bf16", "8", 3, 70, 3, 0, 4, NULL, NULL, NULL, 0, NULL, NULL};

START_TEST(verdicts)
{
    static const struct {
        const char *name, *key;   /* what is changed in the run, or in the reference with a leading '!' */
        enum report_verdict verdict;
        enum report_check whole, identity, train64;
        const char *says;
    } table[] = {
        {"good", "", REPORT_CONTINUE, 1, 1, 1, "correct, and decoding is faster"},
        {"slower", "wall", REPORT_DIAGNOSE, 1, 1, 1, "not faster"},
        {"no faster", "equal", REPORT_DIAGNOSE, 1, 1, 1, "not faster"},
        {"tokens differ", "token", REPORT_DIAGNOSE, 1, 0, 1, "output tokens differ"},
        {"one wrong of train", "right", REPORT_DIAGNOSE, 1, 1, 0, "does not answer"},
        {"one cut off of train", "cut", REPORT_UNDECIDED, 1, 1, 0, "run again with more --max-new"},
        {"one cut off, one wrong", "cut 1", REPORT_DIAGNOSE, 1, 1, 0, "does not answer"},
        {"itself", "itself", REPORT_UNDECIDED, 1, 1, 1, "the reference is this very run"},
        {"a run of the same minute", "!itself minute", REPORT_CONTINUE, 1, 1, 1, "correct, and"},
        {"another run of the same", "!itself", REPORT_CONTINUE, 1, 1, 1, "correct, and"},
        {"row missing", "n", REPORT_DIAGNOSE, 0, 1, 0, "not whole"},
        {"row failed", "failed", REPORT_DIAGNOSE, 0, 1, 1, "not whole"},
        {"no time", "nan", REPORT_UNDECIDED, 1, 1, 1, "gain could not be measured"},
        {"reference without time", "!nan", REPORT_UNDECIDED, 1, 1, 1, "gain could not be measured"},
        {"other prompts, other source", "foreign", REPORT_UNDECIDED, 1, -1, -1, "correctness is unknown"},
        {"other prompts on train-64", "prompts", REPORT_CONTINUE, 1, -1, 1, "correct by its train answers (tokens not compared), and"},
        {"other model on train", "model", REPORT_CONTINUE, 1, 1, -1, "correct, and"},
        {"a name that only ends alike", "alike", REPORT_CONTINUE, 1, 1, -1, "correct, and"},
        {"other cache type", "kv", REPORT_CONTINUE, 1, -1, 1, "correct by its train answers (tokens not compared), and"},
        {"prompts not recorded", "unsaid", REPORT_CONTINUE, 1, -1, 1, "correct by its train answers (tokens not compared), and"},
        {"other concurrency", "c1", REPORT_CONTINUE, 1, 1, 1, "correct, and"},
        {"greedy beside a file that says nothing", "cold", REPORT_CONTINUE, 1, 1, 1, "correct, and"},
        {"another seed of greedy tokens", "cold seed", REPORT_CONTINUE, 1, 1, 1, "correct, and"},
        {"the same draws", "warm", REPORT_CONTINUE, 1, 1, -1, "correct, and"},
        {"the same draws, another token", "warm token", REPORT_DIAGNOSE, 1, 0, -1, "output tokens differ"},
        {"draws that need not know train", "warm right", REPORT_CONTINUE, 1, 1, -1, "correct, and"},
        {"draws against greedy tokens", "!warm", REPORT_UNDECIDED, 1, -1, -1, "correctness is unknown"},
        {"greedy tokens against draws", "warm!", REPORT_CONTINUE, 1, -1, 1, "correct by its train answers (tokens not compared), and"},
        {"draws of another seed", "warm seed", REPORT_UNDECIDED, 1, -1, -1, "correctness is unknown"},
        {"drawn drafts", "warm drafts", REPORT_UNDECIDED, 1, -1, -1, "correctness is unknown"},
    };
    log_mute(1);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct run x = GOOD, y = PLAIN;
        const char *k = table[i].key;
        if (!strcmp(k, "wall")) x.wall = 8;
        if (!strcmp(k, "equal")) x.wall = 4;
        if (!strcmp(k, "token")) x.first_token = 71;
        if (!strcmp(k, "right")) x.right = 2;
        if (!strcmp(k, "cut")) x.cut = 1, x.right = 2;
        if (!strcmp(k, "cut 1")) x.cut = 1, x.right = 1;
        if (strstr(k, "itself")) {
            x.run_id = x.start = y.run_id = y.start = "r";
            if (k[0] == '!') *(strstr(k, "minute") ? &y.start : &y.run_id) = "s";
        }
        if (!strcmp(k, "n")) x.n = 2;
        if (!strcmp(k, "failed")) x.failed = 1;
        if (!strcmp(k, "nan")) x.wall = NAN;
        if (!strcmp(k, "!nan")) y.wall = NAN;
        if (!strcmp(k, "foreign")) x.prompts = "q", x.source_sha = "0";
        if (!strcmp(k, "prompts")) x.prompts = "q";
        if (!strcmp(k, "model")) x.model = y.model = "/models/K3";
        if (!strcmp(k, "alike")) x.model = y.model = "/models/not-k3-nano";
        if (!strcmp(k, "kv")) x.kv = "fp32";
        if (!strcmp(k, "unsaid")) x.prompts = y.prompts = NULL;
        if (!strcmp(k, "c1")) x.concurrency = "1";
        if (!strncmp(k, "cold", 4)) x.temperature = "0", x.seed = strstr(k, "seed") ? "4" : "0", x.drafts = "argmax";
        if (!strncmp(k, "warm", 4)) {
            y.temperature = "0.8", y.seed = "3", y.drafts = "none";
            if (k[4] != '!') x.temperature = "0.8", x.seed = strstr(k, "seed") ? "4" : "3", x.drafts = "argmax";
            if (strstr(k, "drafts")) x.drafts = "sample";
            if (strstr(k, "token")) x.first_token = 71;
            if (strstr(k, "right")) x.right = 2;
        }
        if (!strcmp(k, "!warm")) x.temperature = "0.8", x.seed = "3", x.drafts = "argmax";
        struct opened *a = make("run.h5", &x), *b = make("reference.h5", &y);
        struct report_reference ref = {b->path, &b->p, b->p.output_tps_decode, b->p.accept_length};
        struct report_decision d;
        report_decide(&a->p, &ref, &d);
        ck_assert_msg(d.verdict == table[i].verdict && strstr(d.why, table[i].says), "%s: %s, %s", table[i].name,
                      report_verdict_name(d.verdict), d.why);
        ck_assert_msg(d.whole == table[i].whole && d.identity == table[i].identity && d.train64 == table[i].train64,
                      "%s: whole %d identity %d train %d", table[i].name, d.whole, d.identity, d.train64);
        ck_assert_msg((d.note[0] != 0) == (d.identity == REPORT_NOT_MADE), "%s: '%s'", table[i].name, d.note);
        ck_assert_msg((d.train_note[0] != 0) == (d.train64 == REPORT_NOT_MADE), "%s: '%s'", table[i].name, d.train_note);
        if (!strcmp(k, "foreign")) ck_assert_ptr_nonnull(strstr(d.train_note, "not the 64 train questions"));
        if (!strcmp(k, "model")) ck_assert_ptr_nonnull(strstr(d.train_note, "not k3-nano"));
        if (!strcmp(k, "warm")) ck_assert_ptr_nonnull(strstr(d.train_note, "tokens were drawn"));
        if (!strcmp(k, "")) ck_assert(d.gain == 2 && d.compared == 3 && d.identical == 3 && d.first_different == -1);
        if (!strcmp(k, "token")) ck_assert(d.identical == 2 && d.first_different == 1);
        if (!strcmp(k, "failed")) ck_assert(d.compared == 2); /* a failed row has no tokens to compare */
        if (!strcmp(k, "kv"))
            ck_assert_ptr_nonnull(strstr(d.note, "option_kv-dtype is fp32 here and bf16 in the reference"));
        if (!strcmp(k, "unsaid")) ck_assert_ptr_nonnull(strstr(d.note, "prompts_hash is not recorded here"));
        if (!strcmp(k, "c1")) ck_assert_ptr_nonnull(strstr(d.caveat, "option_concurrency is 1 here and 8"));
        kit_close(a);
        kit_close(b);
    }
}
END_TEST

START_TEST(rows_are_matched_by_question)
{
    int64_t compared, identical, first;
    struct run x = GOOD, y = GOOD;
    log_mute(1);
    y.n = 1;
    struct opened *a = make("run.h5", &x), *b = make("reference.h5", &y), *c = kit_load(kit_odd("none.h5", 0));
    report_same_tokens(&a->p, &b->p, &compared, &identical, &first);
    ck_assert(compared == 1 && identical == 1 && first == -1);
    report_same_tokens(&a->p, &c->p, &compared, &identical, &first);
    ck_assert(compared == 0 && identical == 0 && first == -1);
    struct report_reference ref = {"none", &c->p, NAN, NAN};
    struct report_decision d;
    report_decide(&c->p, &ref, &d); /* a failed run against itself */
    ck_assert(d.verdict == REPORT_DIAGNOSE && d.whole == REPORT_FAILS);
    kit_close(a);
    kit_close(b);
    kit_close(c);
}
END_TEST

START_TEST(external_figures_are_read_or_refused)
{
    static const struct {
        const char *text;
        enum status st;
        const char *says;
    } table[] = {
        {"{\"output_tps_decode\": 121, \"accept_length\": 6.42}", ST_OK, ""},
        {"{\"output_tps_decode\": 0.5, \"accept_length\": null, \"more\": []}", ST_OK, ""},
        {"{\"accept_length\": 6.42}", ST_E_FORMAT, "\"output_tps_decode\" is missing"},
        {"{\"output_tps_decode\": -1}", ST_E_FORMAT, "no number above 0"},
        {"{\"output_tps_decode\": \"9\"}", ST_E_FORMAT, "no number above 0"},
        {"{\"output_tps_decode\": 1, \"accept_length\": \"x\"}", ST_E_FORMAT, "\"accept_length\" is no number"},
        {"[1]", ST_E_FORMAT, "nor a JSON object"},
        {"{", ST_E_FORMAT, "nor a JSON object"},
        {"", ST_E_FORMAT, "nor"},
        {NULL, ST_E_FILE, "cannot open"}};
    log_mute(1);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const char *path = suite_tmp("figures.json");
        struct report_reference ref;
        unlink(path);
        if (table[i].text) {
            FILE *f = fopen(path, "wb");
            fputs(table[i].text, f);
            fclose(f);
        }
        ck_assert_msg(report_external(path, &ref) == table[i].st, "%s", table[i].text ? table[i].text : "no file");
        if (table[i].st != ST_OK) {
            ck_assert_msg(strstr(err_last(), table[i].says) && strstr(err_last(), path), "%s", err_last());
            continue;
        }
        struct opened *a = make("run.h5", &GOOD);
        struct report_decision d;
        report_decide(&a->p, &ref, &d);
        ck_assert(d.identity == REPORT_NOT_MADE && d.train64 == REPORT_HOLDS);
        ck_assert_int_eq(d.verdict, i == 0 ? REPORT_DIAGNOSE : REPORT_CONTINUE); /* 30 tokens in 2 s */
        kit_close(a);
    }
}
END_TEST

/* the rule knows the shipped file by its digest */
START_TEST(the_train_file_is_the_shipped_one)
{
    char sha[65];
    ck_assert_int_eq(hash_file_sha256(suite_path("inputs/gsm8k-train64.jsonl"), sha), ST_OK);
    ck_assert_str_eq(sha, TRAIN);
}
END_TEST

START_TEST(text_and_json_say_the_same)
{
    log_mute(1);
    struct opened *a = make("run.h5", &GOOD), *b = make("reference.h5", &PLAIN);
    struct report_reference ref = {"a\xff.h5", &b->p, b->p.output_tps_decode, b->p.accept_length};
    struct report_decision d;
    report_decide(&a->p, &ref, &d);
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    report_decision_text(&d, out);
    fclose(out);
    ck_assert_ptr_nonnull(
        strstr(text, "decision: continue - correct, and decoding is faster than the reference (reference a"));
    ck_assert_ptr_nonnull(strstr(text, "token identity               holds: 3 of 3 rows\n"));
    ck_assert_ptr_nonnull(strstr(text, "train-64                     holds: 3 of 3 right\n"));
    ck_assert_ptr_nonnull(strstr(text, "decode gain                  2 times the reference\n"));
    free(text);
    json_t *before = kit_json(&a->p);
    ck_assert_ptr_null(json_object_get(before, "decision")); /* without a reference there is none */
    a->p.decision = &d;
    json_t *o = kit_json(&a->p), *j = json_object_get(o, "decision");
    ck_assert_str_eq(json_string_value(json_object_get(j, "verdict")), "continue");
    ck_assert(json_is_true(json_object_get(j, "token_identity")) && json_is_true(json_object_get(j, "train64")));
    ck_assert(json_real_value(json_object_get(j, "gain")) == 2 && json_is_null(json_object_get(j, "first_different")));
    json_decref(o);
    json_decref(before);
    kit_close(a);
    kit_close(b);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "report_decision", 60);
    SUITE_TEST(tc, verdicts);
    SUITE_TEST(tc, rows_are_matched_by_question);
    SUITE_TEST(tc, external_figures_are_read_or_refused);
    SUITE_TEST(tc, the_train_file_is_the_shipped_one);
    SUITE_TEST(tc, text_and_json_say_the_same);
}

int main(void)
{
    return suite_main_serial();
}
