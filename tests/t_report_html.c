/* The HTML page: well-formed, self-contained, safe whatever the file says, and with the numbers of the JSON summary. */
#include <ctype.h>

#include "report_kit.h"
#include "xml_check.h"

const char *const suite_name = "report_html";

static char *page_of(struct opened *const *o, size_t n)
{
    struct report_file f[4];
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (size_t i = 0; i < n; i++) f[i] = (struct report_file){o[i]->path, &o[i]->p};
    ck_assert_int_eq(report_html(f, n, out), ST_OK);
    fclose(out);
    ck_assert_uint_eq(strlen(text), size); /* no zero byte */
    return text;
}

/* ---- the checker itself -------------------------------------------------------------------------------- */

static void ignore(void *ctx, const struct xml_element *e, int depth)
{
    (void)ctx;
    (void)e;
    (void)depth;
}

START_TEST(the_checker_finds_what_is_not_well_formed)
{
    static const struct {
        const char *text;
        int ok;
    } table[] = {
        {"<a b=\"c\"><d/>x &lt;&#39; y</a>", 1}, {"<a></b>", 0}, {"<a>", 0}, {"<a/><b/>", 0}, {"<a b='c'/>", 0},
        {"<a b=\"1\" b=\"2\"/>", 0}, {"<a b=\"<\"/>", 0}, {"<a>&nbsp;</a>", 0}, {"<a>\x01</a>", 0}, {"<a>\xff</a>", 0},
        {"<a>]]></a>", 0}, {"<a>&</a>", 0}, {"<a b/>", 0}, {"x", 0}, {"", 0}, {"<a><!-- c --></a>", 0}, {"</a>", 0}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char text[128];
        size_t at;
        snprintf(text, sizeof text, "<!DOCTYPE html>\n%s", table[i].text);
        const char *e = xml_check(text, ignore, NULL, &at);
        ck_assert_msg((e == NULL) == table[i].ok, "%s: %s", table[i].text, e ? e : "taken for well-formed");
    }
}
END_TEST

/* ---- every element of a page --------------------------------------------------------------------------- */

struct seen {
    json_t *json[4];
    int numbers, measured, elements, svgs, titles;
    json_t *keys; /* of file 0 */
};

static const json_t *lookup(const json_t *o, const char *path)
{
    char part[64];
    while (o && *path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        o = json_is_array(o) ? json_array_get(o, strtoul(part, NULL, 10)) : json_object_get(o, part);
        path += n + (path[n] == '.');
    }
    return o;
}

/* what a person reads against the value: four digits or better */
static void check_shown(const char *key, const char *shown, double v)
{
    static const struct {
        const char *unit;
        double scale;
    } unit[] = {{" %", 0.01}, {" KiB", 1024}, {" MiB", 1048576}, {" GiB", 1073741824},
                {" B", 1},    {" s", 1},      {" tokens/s", 1}};
    char plain[64], *end;
    size_t n = 0;
    for (const char *c = shown; *c && n < sizeof plain - 1; c++)
        if (*c != ',') plain[n++] = *c;
    plain[n] = 0;
    double got = strtod(plain, &end), scale = 1;
    ck_assert_msg(end != plain, "%s: '%s' is no number", key, shown);
    for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++)
        if (strcmp(end, unit[i].unit) == 0) scale = unit[i].scale;
    double off = fabs(got * scale - v);
    ck_assert_msg(off <= 0.0051 * scale || off <= 5e-4 * fabs(v), "%s: '%s' is shown for %.15g", key, shown, v);
}

static void check_number(struct seen *s, const char *key, const char *value, const char *shown)
{
    char *rest;
    unsigned long file = strtoul(key, &rest, 10);
    ck_assert_msg(*rest == ':' && file < 4 && s->json[file], "key '%s'", key);
    const json_t *want = lookup(s->json[file], rest + 1);
    ck_assert_msg(want != NULL, "'%s' is not in the JSON summary", key);
    s->numbers++;
    if (file == 0) json_object_set_new(s->keys, rest + 1, json_true());
    if (json_is_null(want)) {
        ck_assert_msg(!*value && strcmp(shown, "not measured") == 0, "%s: null is shown as '%s'", key, shown);
        return;
    }
    ck_assert_msg(json_is_number(want), "%s is no number", key);
    double v = strtod(value, NULL), w = json_number_value(want);
    ck_assert_msg(*value && fabs(v - w) <= 1e-13 * fabs(w), "%s: %s in the page, %.15g in the summary", key, value, w);
    check_shown(key, shown, v);
    s->measured++;
}

/* nothing that runs, loads or leads away */
static void check_harmless(const struct xml_element *e)
{
    static const char *const allowed[] = {
        "html",       "head",  "meta",  "title", "style",  "body", "main",     "h1",      "h2",      "h3",
        "h4",         "p",     "b",     "i",     "a",      "nav",  "section",  "div",     "span",    "small",
        "code",       "table", "thead", "tbody", "tr",     "th",   "td",       "details", "summary", "figure",
        "figcaption", "svg",   "g",     "rect",  "circle", "line", "polyline", "text"};
    int known = 0;
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) known |= strcmp(e->name, allowed[i]) == 0;
    ck_assert_msg(known, "element <%s>", e->name);
    for (int i = 0; i < e->n_attrs; i++) {
        const struct xml_attr *a = &e->attr[i];
        ck_assert_msg(strncmp(a->name, "on", 2) != 0 && strcmp(a->name, "src") != 0 && strcmp(a->name, "style") != 0,
                      "<%s %s>", e->name, a->name);
        if (strcmp(a->name, "href") == 0) ck_assert_msg(a->value[0] == '#', "href %s", a->value);
    }
    if (strcmp(e->name, "style") == 0)
        ck_assert_msg(!strstr(e->text, "url(") && !strstr(e->text, "@import"), "style loads something");
}

/* what printf makes of NaN and infinity, as a word of its own */
static int says_no_number(const char *s)
{
    static const char *const word[] = {"nan", "inf"};
    for (size_t i = 0; i < 2; i++)
        for (const char *p = s; (p = strstr(p, word[i])) != NULL; p++)
            if ((p == s || !isalpha((unsigned char)p[-1])) && !isalpha((unsigned char)p[3])) return 1;
    return 0;
}

static void look(void *ctx, const struct xml_element *e, int depth)
{
    struct seen *s = ctx;
    const char *key = NULL, *value = NULL;
    (void)depth;
    s->elements++;
    s->svgs += strcmp(e->name, "svg") == 0;
    check_harmless(e);
    ck_assert_msg(!says_no_number(e->text), "<%s>: %s", e->name, e->text);
    for (int i = 0; i < e->n_attrs; i++) {
        const char *v = e->attr[i].value;
        if (strcmp(e->attr[i].name, "data-k") == 0) key = v;
        if (strcmp(e->attr[i].name, "data-v") == 0) value = v;
        ck_assert_msg(!says_no_number(v), "<%s %s=%s>", e->name, e->attr[i].name, v);
    }
    ck_assert((key != NULL) == (value != NULL));
    if (key) check_number(s, key, value, e->text);
}

static void check_page(struct opened *const *o, size_t n, struct seen *s)
{
    size_t at;
    char *text = page_of(o, n);
    s->keys = json_object();
    for (size_t i = 0; i < n; i++) s->json[i] = kit_json(&o[i]->p);
    const char *bad = xml_check(text, look, s, &at);
    ck_assert_msg(!bad, "%s at byte %zu: %.80s", bad, at, text + (at > 40 ? at - 40 : 0));
    for (const char *p = text; (p = strstr(p, "http")) != NULL; p++)
        ck_assert_msg(strncmp(p, "http://www.w3.org/", 18) == 0, "%.60s", p);
    for (size_t i = 0; i < n; i++) json_decref(s->json[i]);
    free(text);
}

START_TEST(numbers_are_those_of_the_summary)
{
    static const char *const key[] = {
        "questions", "completed", "truncated", "failed", "missing", "correct.openai", "accept_length", "decode_s",
        "total_s", "output_tps_decode", "output_tps_total", "output_tokens", "steps", "proposed", "accepted",
        "emitted_per_step", "accept_length_request_mean", "accuracy.openai.all.rate",
        "accuracy.sglang.completed.wilson95_high", "accuracy.lm_eval_strict.all.wilson95_low", "accept_histogram.0",
        "accept_histogram.3", "accept_by_position.2", "transfer.mla.bytes", "transfer.aux.puts",
        "transfer.kda.seconds", "memory.0.host_peak_bytes", "memory.1.window_bytes", "phases.prefill.mean_s",
        "phases.request.max_s", "occupancy.0.busy_s.prefill", "occupancy.5.busy_s.decode", "occupancy.2.end_s"};
    struct seen s = {.numbers = 0};
    log_mute(1);
    struct opened *o = kit_load(kit_run("plain.h5", NULL));
    check_page(&o, 1, &s);
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
        ck_assert_msg(json_object_get(s.keys, key[i]) != NULL, "%s is not in the page", key[i]);
    ck_assert_int_ge(s.measured, 120);
    ck_assert_int_ge(s.svgs, 10); /* two attempts: throughput, requests and ranks twice */
    json_decref(s.keys);
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    report_text(&o->p, out); /* the same of the ranks in plain text */
    fclose(out);
    ck_assert_ptr_nonnull(
        strstr(text, "        2     2 decode       0    0.000000    0.000000    0.000000    0.250000    5.000000\n"));
    free(text);
    kit_close(o);
}
END_TEST

static double value_of(const char *page, const char *key)
{
    char mark[96];
    snprintf(mark, sizeof mark, "data-k=\"0:%s\" data-v=\"", key);
    const char *p = strstr(page, mark);
    ck_assert_msg(p != NULL, "%s", key);
    return strtod(p + strlen(mark), NULL);
}

/* values of a Wilson interval worked out elsewhere (score method, z = 1.959964) */
START_TEST(wilson_intervals_have_known_values)
{
    static const struct {
        const char *key;
        double want;
    } table[] = {{"accuracy.sglang.all.wilson95_low", 0.13684428582359742},  /* 3 of 8 */
                 {"accuracy.sglang.all.wilson95_high", 0.6942576053973727},
                 {"accuracy.openai.all.wilson95_low", 0.071479212752109},    /* 2 of 8 */
                 {"accuracy.openai.all.wilson95_high", 0.5907245696898311}};
    log_mute(1);
    struct opened *o = kit_load(kit_run("wilson.h5", NULL));
    char *text = page_of(&o, 1);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        ck_assert_msg(fabs(value_of(text, table[i].key) - table[i].want) < 1e-5, "%s is %.9g, wanted %.9g",
                      table[i].key, value_of(text, table[i].key), table[i].want);
    free(text);
    kit_close(o);
}
END_TEST

/* ---- what files may say -------------------------------------------------------------------------------- */

START_TEST(hostile_texts_stay_texts)
{
    struct seen s = {.numbers = 0};
    log_mute(1);
    struct opened *o[2] = {kit_load(kit_run("hostile.h5", HOSTILE)), kit_load(kit_run("again.h5", HOSTILE))};
    snprintf(o[1]->path, sizeof o[1]->path, "/x/<script>\"'&\xff.h5");
    struct report_reference ref = {"<b onclick=\"x\">&\xfe", &o[1]->p, 1, NAN};
    struct report_decision d;
    report_decide(&o[0]->p, &ref, &d);
    o[0]->p.decision = &d;
    check_page(o, 2, &s);
    ck_assert_int_ge(s.numbers, 250);
    json_decref(s.keys);
    char *text = page_of(o, 2);
    ck_assert_ptr_null(strstr(text, "<script"));
    ck_assert_ptr_null(strstr(text, "<img"));
    ck_assert_ptr_nonnull(strstr(text, "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;"));
    ck_assert_ptr_nonnull(strstr(text, "&amp;amp;&amp;#x3c;&amp;bogus;")); /* entities of the file are text, too */
    free(text);
    kit_close(o[0]);
    kit_close(o[1]);
}
END_TEST

START_TEST(empty_partial_and_failed_files_make_pages)
{
    static const char *const says[] = {"Failed run: no request was completed",
                                       "Not measured: the run did not come to its end", "No verify step was recorded", "No verify step was recorded",
                                       "No verify step was recorded"};
    log_mute(1);
    for (int kind = 0; kind < 5; kind++) {
        struct seen s = {.numbers = 0};
        struct opened *o = kit_load(kit_odd("odd.h5", kind));
        check_page(&o, 1, &s);
        ck_assert_int_ge(s.numbers, 60);
        json_decref(s.keys);
        char *text = page_of(&o, 1);
        ck_assert_msg(strstr(text, says[kind]) != NULL, "kind %d: %s", kind, says[kind]);
        ck_assert_ptr_nonnull(strstr(text, "Not recorded: the file has no spans of ranks"));
        if (kind == 1) ck_assert_ptr_nonnull(strstr(text, "<td class=\"t\">gone</td>"));
        free(text);
        kit_close(o);
    }
}
END_TEST

START_TEST(several_files_are_compared)
{
    struct seen s = {.numbers = 0};
    log_mute(1);
    struct opened *o[3] = {kit_load(kit_run("one.h5", NULL)), kit_load(kit_odd("two.h5", 1)),
                           kit_load(kit_run("three.h5", NULL))};
    check_page(o, 3, &s);
    json_decref(s.keys);
    char *text = page_of(o, 3);
    ck_assert_ptr_nonnull(strstr(text, "Config hashes differ"));
    ck_assert_ptr_nonnull(strstr(text, "data-k=\"2:output_tps_decode\""));
    free(text);
    struct opened *same[2] = {o[0], o[2]};
    text = page_of(same, 2);
    ck_assert_ptr_nonnull(strstr(text, "All files have the same config hash"));
    free(text);
    for (int i = 0; i < 3; i++) kit_close(o[i]);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "report_html", 60);
    SUITE_TEST(tc, the_checker_finds_what_is_not_well_formed);
    SUITE_TEST(tc, numbers_are_those_of_the_summary);
    SUITE_TEST(tc, wilson_intervals_have_known_values);
    SUITE_TEST(tc, hostile_texts_stay_texts);
    SUITE_TEST(tc, empty_partial_and_failed_files_make_pages);
    SUITE_TEST(tc, several_files_are_compared);
}

int main(void)
{
    return suite_main_serial();
}
