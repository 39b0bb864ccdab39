/* The diagnosis against engines whose state we know: a healthy one, and ones that this test changes at a moment, in a
 * part and by an amount of its own choosing (the faults with names are planted and found in tests/e2e/13_diagnose.sh).
 */
#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "cmd/diagnose_report.h"
#include "data/h5.h"
#include "draft_dir.h"
#include "model/diagnose.h"
#include "model/diagnose_plant.h"

const char *const suite_name = "diagnose";

#define OK(expr) ck_assert_int_eq((expr), ST_OK)
enum { CASES = 2, MAX_NEW = 24 };

struct setup { /* everything that a diagnosis borrows */
    struct ops o;
    struct config c;
    struct draft_config d;
    struct safetensors *ckpt, *draft_ckpt;
    struct diagnose_prompt prompt[CASES];
    void *id[CASES];
    struct diagnose_spec p;
};

static void set_up(struct setup *s, const char *draft)
{
    static const char *const name[CASES] = {"/train00/prompt", "/test00/prompt"};
    struct h5 *f;
    memset(s, 0, sizeof *s);
    OK(ops_cpu_open(ACT_FP32, NULL, &s->o));
    OK(config_load(suite_path("inputs/k3-nano"), &s->c));
    OK(draft_config_load(draft, &s->c, &s->d));
    OK(safetensors_open(suite_path("inputs/k3-nano"), &s->ckpt));
    OK(safetensors_open(draft, &s->draft_ckpt));
    OK(h5_open(suite_path("tests/vectors/decode_traces.h5"), 0, &f));
    for (int i = 0; i < CASES; i++) {
        size_t n;
        OK(h5_read_vec(f, name[i], H5_KIND_I32, &s->id[i], &n));
        s->prompt[i] = (struct diagnose_prompt){s->id[i], (int)n, i};
    }
    h5_close(f);
    s->p = (struct diagnose_spec){.o = &s->o,
                                  .c = &s->c,
                                  .d = &s->d,
                                  .ckpt = s->ckpt,
                                  .draft_ckpt = s->draft_ckpt,
                                  .kv = KV_FP32,
                                  .page = 16,
                                  .chunk = 50,
                                  .max_new = suite_some(MAX_NEW, 30), /* the parts are changed after round 0 or 1 */
                                  .anchors = suite_some(12, 2),
                                  .n_prompts = 1,
                                  .prompt = s->prompt};
}

static void tear_down(struct setup *s)
{
    for (int i = 0; i < CASES; i++) mem_free(s->id[i]);
    safetensors_close(s->ckpt);
    safetensors_close(s->draft_ckpt);
    s->o.close(&s->o);
}

static const struct diagnose_finding *finding(const struct diagnose_result *r, const char *fault)
{
    for (int i = 0; i < r->n_findings; i++)
        if (strcmp(r->finding[i].fault, fault) == 0) return &r->finding[i];
    return NULL;
}

static void show(const struct diagnose_result *r)
{
    for (int i = 0; i < r->n_findings; i++) printf("found %s: %s\n", r->finding[i].fault, r->finding[i].text);
}

/* ---- a healthy engine ------------------------------------------------------------------------------ */

static void check_slots(const struct diagnose_result *r)
{
    for (int i = 0; i < r->n_rounds; i++) {
        const struct diagnose_round *x = &r->round[i];
        const struct diagnose_slot *s = &r->slot[i * r->n_draft];
        ck_assert_int_eq(x->on_path, 1);
        ck_assert_int_eq(x->first, x->accepted); /* the target of verify and of plain decoding are one */
        for (int j = 0; j < r->n_draft; j++) {
            ck_assert_int_eq(s[j].rank == 0, s[j].draft == s[j].target);
            ck_assert(s[j].gap >= 0 && (s[j].gap > 0 || s[j].rank == 0));
            ck_assert(j >= x->accepted || s[j].rank == 0);
        }
    }
}

/* both drafts, both types of caches: state to the bit, the walk over the true path is what the engine did */
START_TEST(a_healthy_engine_has_no_fault)
{
    struct setup s;
    struct diagnose *g;
    const struct diagnose_result *r;
    set_up(&s, suite_path(_i % 2 ? "inputs/k3-nano-dspark" : "inputs/k3-nano-dflash"));
    s.p.kv = _i / 2 ? KV_BF16 : KV_FP32;
    s.p.n_prompts = CASES;
    OK(diagnose_open(&s.p, &g));
    OK(diagnose_run(g, &r));
    show(r);
    ck_assert_int_eq(r->n_findings, 0);
    ck_assert_int_eq(r->first_wrong_prompt, -1);
    ck_assert_int_gt(r->n_rounds, 2);
    ck_assert_int_eq(r->n_checks, r->n_rounds + CASES); /* one after each prefill too */
    for (int i = 0; i < r->n_checks; i++)
        for (int c = 0; c < PART_N; c++) {
            ck_assert_msg(r->check[i].state[c].error == 0, "check %d, %s: %g", i, diagnose_part_name[c],
                          r->check[i].state[c].error);
            ck_assert(s.p.kv == KV_FP32 ? r->check[i].fp32[c].error == 0 : r->check[i].fp32[c].error < 0.1);
            ck_assert(c > PART_CONV || r->check[i].replay[c].error == 0);
        }
    ck_assert(r->scratch_error == 0);
    check_slots(r);
    ck_assert_msg(fabs(r->tau - r->trial[0].tau) < 1e-12, "engine %g, walk %g", r->tau, r->trial[0].tau);
    ck_assert_int_eq(r->captured, STREAM_MIXTURE);
    ck_assert_int_eq(r->captured_shift, 0);
    ck_assert(r->captured_error == 0);
    for (int l = 0; l < s.d.n_layers; l++) /* these prompts are longer than the window */
        ck_assert_int_eq(r->reach[l], s.d.type[l] == DRAFT_SLIDING ? s.d.window : -1);
    diagnose_close(g);
    tear_down(&s);
}
END_TEST

/* ---- a part changed at a moment -------------------------------------------------------------------- */

struct meddle { /* after round `round`, in the state of the slot that was prefilled */
    enum comp comp;
    int layer, kv, round;
    float by; /* added to the first value */
    const char *fault;
    enum diagnose_part part;
    /* running */
    struct state *s;
    int slot, seen;
    enum diagnose_phase last;
};

static void prefilled(void *ctx, struct state *s, int slot)
{
    struct meddle *m = ctx;
    m->s = s;
    m->slot = slot;
    m->seen = 0;
}

static void phase(void *ctx, enum diagnose_phase now)
{
    struct meddle *m = ctx;
    int ended = m->last == DIAGNOSE_ROUND && now == DIAGNOSE_OUTSIDE && m->s;
    m->last = now;
    if (!ended || m->seen++ != m->round) return;
    int64_t item = m->comp == COMP_KDA || m->comp == COMP_CONV ? m->slot : state_pages(m->s, m->slot)[0];
    float *v = state_item(m->s, m->comp, m->layer, m->kv, item);
    ck_assert_ptr_nonnull(v);
    *v += m->by;
    m->s = NULL; /* once */
}

static struct meddle meddles[] = {
    {COMP_KDA, 5, 0, 1, 0.5f, "KDA state differs", PART_KDA, NULL, 0, 0, DIAGNOSE_OUTSIDE},
    {COMP_CONV, 13, 0, 0, 1, "conv tail differs", PART_CONV, NULL, 0, 0, DIAGNOSE_OUTSIDE},
    {COMP_MLA, 7, 0, 1, 1, "MLA rows differ", PART_MLA, NULL, 0, 0, DIAGNOSE_OUTSIDE},
    {COMP_DRAFT, 2, 0, 1, 1, "draft KV differs", PART_DRAFT_K, NULL, 0, 0, DIAGNOSE_OUTSIDE},
    {COMP_DRAFT, 0, 1, 0, 1, "draft KV differs", PART_DRAFT_V, NULL, 0, 0, DIAGNOSE_OUTSIDE},
    {COMP_KDA, 0, 0, 0, NAN, "KDA state differs", PART_KDA, NULL, 0, 0, DIAGNOSE_OUTSIDE},
};

START_TEST(a_changed_part_is_named_with_round_and_layer)
{
    struct meddle *m = &meddles[_i];
    struct setup s;
    struct diagnose *g;
    const struct diagnose_result *r;
    char where[64];
    set_up(&s, suite_path("inputs/k3-nano-dflash"));
    s.p.hooks = (struct diagnose_hooks){m, NULL, phase, prefilled};
    OK(diagnose_open(&s.p, &g));
    log_mute(1);
    OK(diagnose_run(g, &r));
    log_mute(0);
    show(r);
    const struct diagnose_finding *x = finding(r, m->fault);
    ck_assert_msg(x != NULL, "'%s' was not found", m->fault);
    ck_assert_ptr_eq(x, &r->finding[0]);
    snprintf(where, sizeof where, "round %d of prompt 0", m->round);
    ck_assert_msg(strstr(x->text, where) != NULL, "'%s' does not say '%s'", x->text, where);
    snprintf(where, sizeof where, "(layer %d", m->layer);
    ck_assert_msg(strstr(x->text, where) != NULL, "'%s' does not say '%s'", x->text, where);
    for (int c = 0; c < PART_N; c++) /* the parts that are right at that moment are not accused */
        ck_assert_int_eq(r->check[m->round + 1].state[c].error > r->tolerance, c == (int)m->part);
    if (isnan(m->by)) ck_assert_int_eq(r->not_numbers, 1);
    diagnose_close(g);
    tear_down(&s);
}
END_TEST

/* ---- settings that are not what the draft was trained with ------------------------------------------ */

static void taps_late(struct draft_config *d)
{
    for (int i = 0; i < d->n_taps; i++) d->tap[i]++;
}
static void narrow(struct draft_config *d)
{
    d->window--;
}
static void last_two(struct draft_config *d)
{
    int held = d->tap[4]; /* the order of target_layer_ids is that of the column blocks */
    d->tap[4] = d->tap[5];
    d->tap[5] = held;
}
static void slow(struct draft_config *d)
{
    d->rope_theta = d->rope.theta /= 10;
}

static const struct wrong {
    void (*set)(struct draft_config *d);
    const char *fault, *says;
    int max_new, anchors;
} wrongs[] = {
    {taps_late, "taps one layer late", "one layer earlier", MAX_NEW, 12},
    {last_two, "fc columns swapped", "fc column blocks 4 and 5 exchanged (layers 15 and 14)", 40, 40},
    {slow, "wrong RoPE base", "RoPE base 10000 (rope_theta is 1000)", MAX_NEW, 12},
    {narrow, "window off by one", "sliding_window 64 (sliding_window is 63)", 60, 60},
};

START_TEST(a_wrong_setting_is_found_by_acceptance)
{
    const struct wrong *w = &wrongs[_i];
    struct setup s;
    struct diagnose *g;
    const struct diagnose_result *r;
    set_up(&s, suite_path("inputs/k3-nano-dflash"));
    w->set(&s.d);
    s.p.max_new = w->max_new;
    s.p.anchors = w->anchors;
    OK(diagnose_open(&s.p, &g));
    OK(diagnose_run(g, &r));
    show(r);
    ck_assert_int_eq(r->n_findings, 1);
    ck_assert_str_eq(r->finding[0].fault, w->fault);
    ck_assert_msg(strstr(r->finding[0].text, w->says) != NULL, "'%s' does not say '%s'", r->finding[0].text, w->says);
    ck_assert(r->finding[0].after >= r->finding[0].before);
    diagnose_close(g);
    tear_down(&s);
}
END_TEST

/* The nano draft was trained with plain RoPE. YaRN whose ramp lies behind its pairs has the same angles, and only the
 * amplitude is another: 1.416 unless the file says otherwise. What a file says itself is not doubted. */
START_TEST(both_yarn_amplitudes_are_tried_when_in_doubt)
{
    const char *scaling = _i == 0 ? "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 64, "
                                    "\"original_max_position_embeddings\": 1000000000}}"
                                  : "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 64, "
                                    "\"original_max_position_embeddings\": 1000000000, "
                                    "\"attention_factor\": 1.41589}}";
    struct setup s;
    struct diagnose *g;
    const struct diagnose_result *r;
    int tried = 0;
    set_up(&s, draft_dir_make("yarn", "inputs/k3-nano-dflash", scaling, NULL));
    ck_assert_int_eq(s.d.rope.explicit_factor, _i);
    ck_assert(fabs(s.d.rope.amplitude - 1.41589) < 1e-4);
    OK(diagnose_open(&s.p, &g));
    OK(diagnose_run(g, &r));
    show(r);
    for (int i = 0; i < r->n_trials; i++) tried += r->trial[i].kind == TRIAL_YARN;
    ck_assert_int_eq(tried, _i == 0);
    const struct diagnose_finding *x = finding(r, "wrong YaRN amplitude");
    ck_assert_int_eq(x != NULL, _i == 0);
    if (x) ck_assert_ptr_nonnull(strstr(x->text, "YaRN amplitude 1 (it is 1.41589)"));
    diagnose_close(g);
    tear_down(&s);
}
END_TEST

/* ---- plants ---------------------------------------------------------------------------------------- */

START_TEST(plants_stay_apart)
{
    static const char *const file[] = {"diagnose.c",       "diagnose.h",          "diagnose_impl.h", "diagnose_live.c",
                                       "diagnose_state.c", "diagnose_features.c", "diagnose_try.c",  "diagnose_find.c"};
    struct setup s;
    struct plant *p;
    set_up(&s, suite_path("inputs/k3-nano-dflash"));
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++) { /* what finds knows nothing of what is planted */
        char path[128];
        size_t n;
        snprintf(path, sizeof path, "src/model/%s", file[i]);
        char *text = draft_dir_read(path, &n);
        text[n - 1] = 0;
        ck_assert_msg(!strstr(text, "#include \"model/diagnose_plant.h\"") && !strstr(text, "plant_"), "%s", path);
        free(text);
    }
    int n = 0;
    for (; plant_name(n); n++) {
        struct draft_config d = s.d;
        OK(plant_open(plant_name(n), &s.o, &s.c, &d, &p));
        ck_assert_ptr_ne(plant_ops(p), &s.o); /* the backend itself is left alone */
        plant_close(p);
    }
    ck_assert_int_eq(n, 10);
    log_mute(1);
    ck_assert_int_eq(plant_open("", &s.o, &s.c, &s.d, &p), ST_E_USAGE);
    s.d.tap[0] = 0;
    ck_assert_int_eq(plant_open("tap-early", &s.o, &s.c, &s.d, &p), ST_E_CONFIG);
    s.d.window = 0;
    ck_assert_int_eq(plant_open("window", &s.o, &s.c, &s.d, &p), ST_E_CONFIG);
    s.d.n_taps = 1;
    ck_assert_int_eq(plant_open("fc", &s.o, &s.c, &s.d, &p), ST_E_CONFIG);
    log_mute(0);
    tear_down(&s);
}
END_TEST

/* ---- the file -------------------------------------------------------------------------------------- */

/* docs/FORMAT.md names everything in the file */
static void check_described(const struct h5 *f)
{
    struct h5_object *o;
    size_t n, size;
    char *page = draft_dir_read("docs/FORMAT.md", &size), name[H5_MAX_NAME + 2];
    page[size - 1] = 0;
    OK(h5_list(f, &o, &n));
    ck_assert_uint_gt(n, 40);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "`%s`", o[i].name);
        ck_assert_msg(strstr(page, name) != NULL, "docs/FORMAT.md does not name %s", name);
    }
    mem_free(o);
    free(page);
}

START_TEST(the_file_holds_what_was_measured)
{
    struct setup s;
    struct diagnose *g;
    const struct diagnose_result *r;
    struct diagnose_files files;
    struct h5 *f;
    int64_t dim[H5_MAX_RANK];
    int rank;
    int32_t *v;
    set_up(&s, suite_path("inputs/k3-nano-dspark"));
    OK(diagnose_open(&s.p, &g));
    OK(diagnose_run(g, &r));
    memset(&files, 0, sizeof files);
    files.d = s.d;
    struct options o = {.model = "m", .draft = "d", .prompts = "p", .out = suite_fresh("diagnose.h5")};
    OK(diagnose_claim(&o));
    OK(diagnose_write(&o, &files, r));
    log_mute(1);
    ck_assert_int_eq(diagnose_claim(&o), ST_E_FILE); /* it is there now */
    log_mute(0);
    o.force = 1;
    OK(diagnose_claim(&o));
    OK(h5_open(o.out, 0, &f));
    static const char *const name[] = {"/diagnose/draft", "/diagnose/target", "/diagnose/rank"};
    for (size_t i = 0; i < 3; i++) {
        OK(h5_read_i32(f, name[i], dim, &rank, &v));
        ck_assert(rank == 2 && dim[0] == r->n_rounds && dim[1] == r->n_draft);
        for (int k = 0; k < r->n_rounds * r->n_draft; k++)
            ck_assert_int_eq(v[k], i == 0 ? r->slot[k].draft : i == 1 ? r->slot[k].target : r->slot[k].rank);
        mem_free(v);
    }
    static const struct {
        const char *name;
        int per, n;
    } table[] = {{"/diagnose/rounds", 1, 0},
                 {"/diagnose/state", PART_N, 1},
                 {"/diagnose/hypotheses", 1, 2},
                 {"/diagnose/findings", 1, 3}};
    const int rows[] = {r->n_rounds, r->n_checks, r->n_trials, r->n_findings};
    for (size_t i = 0; i < 4; i++) {
        OK(h5_dims(f, table[i].name, dim, &rank));
        ck_assert(rank == 1 && dim[0] == (int64_t)table[i].per * rows[table[i].n]);
    }
    check_described(f);
    h5_close(f);
    diagnose_close(g);
    tear_down(&s);
}
END_TEST

START_TEST(impossible_requests_are_refused)
{
    struct setup s;
    struct diagnose *g = NULL;
    set_up(&s, suite_path("inputs/k3-nano-dflash"));
    log_mute(1);
    struct diagnose_spec p = s.p;
    p.n_prompts = 0;
    ck_assert_int_eq(diagnose_open(&p, &g), ST_E_RANGE);
    p = s.p;
    p.max_new = 1;
    ck_assert_int_eq(diagnose_open(&p, &g), ST_E_RANGE);
    p = s.p;
    p.anchors = 0;
    ck_assert_int_eq(diagnose_open(&p, &g), ST_E_RANGE);
    log_mute(0);
    ck_assert_ptr_null(g);
    diagnose_close(NULL);
    plant_close(NULL);
    tear_down(&s);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "healthy", 600);
    tcase_add_loop_test(tc, a_healthy_engine_has_no_fault, 0, suite_some(4, 1));
    tc = SUITE_CASE(s, "state", 600);
    tcase_add_loop_test(tc, a_changed_part_is_named_with_round_and_layer, 0,
                        suite_some((int)(sizeof meddles / sizeof meddles[0]), 1));
    tc = SUITE_CASE(s, "settings", 600);
    tcase_add_loop_test(tc, a_wrong_setting_is_found_by_acceptance, 0,
                        suite_some((int)(sizeof wrongs / sizeof wrongs[0]), 0));
    tcase_add_loop_test(tc, both_yarn_amplitudes_are_tried_when_in_doubt, 0, suite_some(2, 0));
    tc = SUITE_CASE(s, "around", 600);
    SUITE_TEST(tc, plants_stay_apart);
    SUITE_TEST(tc, the_file_holds_what_was_measured);
    SUITE_TEST(tc, impossible_requests_are_refused);
}

int main(void)
{
    return suite_main_serial();
}
