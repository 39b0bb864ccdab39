#include "suite.h"

#include <stdlib.h>
#include <string.h>

#include "base/opt.h"
#include "cmd/options.h"

const char *const suite_name = "opt";

struct values { int flag, number, choice; double real; const char *text; struct opt_list list; };
#define AT(f) offsetof(struct values, f)
static const struct opt_row table[] = {
    {"flag", OPT_FLAG, AT(flag), NULL, NULL, NULL, 0, 0, 1, 0, "a flag"},
    {"number", OPT_INT, AT(number), "7", "N", NULL, 1, 100, 3, 0, "a number"},
    {"real", OPT_DOUBLE, AT(real), "0.5", "X", NULL, 0, 1, 1, 0, "a real"},
    {"choice", OPT_CHOICE, AT(choice), "two", NULL, "one,two,three", 0, 0, 1, 0, "a choice"},
    {"text", OPT_STR, AT(text), NULL, "T", NULL, 0, 0, 1, 1, "a text"},
    {"list", OPT_LIST, AT(list), NULL, "L", NULL, 0, 0, 1, 0, "a list"},
    {NULL, OPT_FLAG, 0, NULL, NULL, NULL, 0, 0, 0, 0, NULL},
};

static enum status parse(const char *line, struct values *v, int max_pos, int *n_pos)
{
    static char copy[512];
    char *argv[32];
    const char *pos[4];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " ")) argv[argc++] = w;
    memset(v, 0, sizeof *v);
    return opt_parse(table, 1, argc, argv, v, pos, max_pos, n_pos);
}

START_TEST(values_and_defaults_are_stored)
{
    struct values v;
    int n;
    ck_assert_int_eq(parse("--text abc word --number=42 --flag --list a --list b=c", &v, 1, &n), ST_OK);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(v.number, 42);
    ck_assert_int_eq(v.flag, 1);
    ck_assert_int_eq(v.choice, 1);
    ck_assert(v.real == 0.5);
    ck_assert_str_eq(v.text, "abc");
    ck_assert_int_eq(v.list.n, 2);
    ck_assert_str_eq(v.list.text[1], "b=c");
}
END_TEST

START_TEST(bad_words_are_refused_with_their_name)
{
    static const struct { const char *line, *says; } bad[] = {
        {"--text a --numbr 3", "--numbr: unknown option; did you mean --number?"},
        {"--text a --zzzzzzz 3", "--zzzzzzz: unknown option"},
        {"--text a --number", "--number needs a value"},
        {"--text a --number 3x", "'3x' is not a number"},
        {"--text a --number 1.5", "'1.5' is not a whole number"},
        {"--text a --number 0", "0 is out of range; allowed 1 to 100"},
        {"--text a --number nan", "'nan' is not a number"},
        {"--text a --number 101", "101 is out of range"},
        {"--text a --real -0.1", "-0.1 is out of range"},
        {"--text a --choice four", "'four' is unknown; choose one of one,two,three"},
        {"--text a --choice on", "'on' is unknown"},
        {"--text a --flag=1", "--flag takes no value"},
        {"--text=", "--text is empty; it takes T; an unset shell variable?"},
        {"--text a --text=", "--text is empty"},
        {"--number 3", "--text T is required"},
        {"--text a word", "'word': unexpected word"},
        {"--text a --number 3 --number=4", "--number is given twice, as '3' and as '4'; give it once"},
        {"--text a --number 3 --flag --number 3", "--number is given twice, as '3' and as '3'"},
        {"--text a --text b", "--text is given twice, as 'a' and as 'b'"},
        {"--text a --real 0.1 --real 0.2", "--real is given twice, as '0.1' and as '0.2'"},
        {"--text a --choice one --choice two", "--choice is given twice, as 'one' and as 'two'"},
        {"--text a --flag --flag", "--flag is given twice"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct values v;
        int n;
        ck_assert_int_eq(parse(bad[i].line, &v, 0, &n), ST_E_USAGE);
        ck_assert_msg(strstr(err_last(), bad[i].says) != NULL, "'%s' does not say '%s'", err_last(), bad[i].says);
    }
}
END_TEST

START_TEST(options_of_other_commands_are_unknown)
{
    struct values v;
    char a[] = "--flag";
    char *argv[] = {a};
    int n;
    ck_assert_int_eq(opt_parse(table, 2, 1, argv, &v, NULL, 0, &n), ST_E_USAGE);
}
END_TEST

START_TEST(text_is_what_could_be_typed)
{
    struct values v;
    char buf[64];
    int n;
    ck_assert_int_eq(parse("--text t --choice three --number 9 --list x --list y", &v, 0, &n), ST_OK);
    ck_assert_str_eq(opt_text(&table[1], &v, buf, sizeof buf), "9");
    ck_assert_str_eq(opt_text(&table[3], &v, buf, sizeof buf), "three");
    ck_assert_str_eq(opt_text(&table[5], &v, buf, sizeof buf), "x;y");
}
END_TEST

/* the product's own table: for each command a name once, a default that parses, help for everything */
START_TEST(the_table_of_the_program_is_sound)
{
    struct options o;
    for (const struct opt_row *r = options_table; r->name; r++) {
        ck_assert_int_gt(strlen(r->help), 5);
        ck_assert_uint_ne(r->commands, 0);
        for (const struct opt_row *q = r + 1; q->name; q++)
            ck_assert_msg(strcmp(r->name, q->name) != 0 || !(r->commands & q->commands), "--%s twice for one command", r->name);
    }
    static char w[][16] = {"--model", "m", "--prompts", "p", "--out", "o", "--draft", "d"};
    char *argv[8];
    int n, help;
    enum draft_kind kind;
    for (int i = 0; i < 8; i++) argv[i] = w[i];
    ck_assert_int_eq(options_parse(CMD_RUN, 8, argv, &o, NULL, 0, &n, &help), ST_OK);
    ck_assert_int_eq(o.concurrency, 8);
    ck_assert_int_eq(o.limit, 0); /* not what other commands take */
    ck_assert_int_eq(o.max_new, 512);
    ck_assert_int_eq(o.chunk, 8192);
    ck_assert_int_eq(o.page, 64);
    ck_assert_int_eq(o.kv, OPT_KV_BF16);
    ck_assert_int_eq(options_spec(&o, &kind), ST_OK);
    ck_assert_int_eq(kind, DRAFT_DFLASH);
    ck_assert(o.confidence == 0);
    static const struct { const char *spec; enum status st; const char *says; } spec[] = {
        {"eagle3", ST_E_CONFIG, "paused"}, {"dspark", ST_OK, ""}, {"none", ST_OK, ""},
        {"", ST_E_USAGE, "--spec"}, {"dflsh", ST_E_USAGE, "'dflsh' is unknown"}};
    for (size_t i = 0; i < sizeof spec / sizeof spec[0]; i++) {
        o.spec = spec[i].spec;
        ck_assert_int_eq(options_spec(&o, &kind), spec[i].st);
        if (spec[i].st == ST_OK) ck_assert_str_eq(draft_kind_name(kind), spec[i].spec);
        if (spec[i].st != ST_OK) ck_assert_ptr_nonnull(strstr(err_last(), spec[i].says));
    }
    o.spec = "dflash";
    o.draft = NULL;
    ck_assert_int_eq(options_spec(&o, &kind), ST_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err_last(), "--draft DIR is required"));
    o.spec = "none";
    o.block = 4;
    ck_assert_int_eq(options_spec(&o, &kind), ST_E_USAGE);
    o.block = 0;
    o.confidence = 0.5; /* a head that only dspark has */
    ck_assert_int_eq(options_spec(&o, &kind), ST_E_USAGE);
    o.draft = "d";
    o.spec = "dflash";
    ck_assert_int_eq(options_spec(&o, &kind), ST_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err_last(), "--confidence 0.5 has no meaning with --spec dflash"));
    o.spec = "dspark";
    ck_assert_int_eq(options_spec(&o, &kind), ST_OK);
    o.draft = NULL;
    ck_assert_int_eq(options_spec(&o, &kind), ST_E_USAGE);
}
END_TEST

/* what is said of draws: greedy unless a temperature is given; auto drafts are those a draft was trained for */
START_TEST(sampling_options_make_one_struct)
{
    static const struct {
        double temperature, top_p, draft_temperature;
        int top_k, seed, drafts;
        enum draft_kind kind;
        enum status st;
        int draws;
        const char *says;
    } row[] = {
        {0, 1, 0, 0, 0, OPT_DRAFT_AUTO, DRAFT_DFLASH, ST_OK, 0, ""},
        {0, 0.5, 0, 7, 9, OPT_DRAFT_AUTO, DRAFT_DSPARK, ST_OK, 0, ""},
        {0, 1, 0, 0, 0, OPT_DRAFT_ARGMAX, DRAFT_DFLASH, ST_OK, 0, ""},
        {1, 0.5, 0, 7, 9, OPT_DRAFT_AUTO, DRAFT_DFLASH, ST_OK, 0, ""},
        {1, 0.5, 0, 7, 9, OPT_DRAFT_AUTO, DRAFT_DSPARK, ST_OK, 1, ""},
        {1, 1, 2, 0, 0, OPT_DRAFT_AUTO, DRAFT_DSPARK, ST_OK, 1, ""},
        {1, 1, 2, 0, 0, OPT_DRAFT_SAMPLE, DRAFT_DFLASH, ST_OK, 1, ""},
        {1, 1, 0, 0, 0, OPT_DRAFT_ARGMAX, DRAFT_DSPARK, ST_OK, 0, ""},
        {0.3, 1, 0, 0, 0, OPT_DRAFT_AUTO, DRAFT_NONE, ST_OK, 0, ""},
        {0, 1, 0, 0, 0, OPT_DRAFT_SAMPLE, DRAFT_DSPARK, ST_E_USAGE, 0, "--draft-sampling sample has no meaning with --temperature 0"},
        {1, 1, 0, 0, 0, OPT_DRAFT_SAMPLE, DRAFT_NONE, ST_E_USAGE, 0, "--draft-sampling sample has no meaning with --spec none"},
        {0, 1, 0, 0, 0, OPT_DRAFT_ARGMAX, DRAFT_NONE, ST_E_USAGE, 0, "--draft-sampling argmax has no meaning with --spec none"},
        {0, 1, 2, 0, 0, OPT_DRAFT_AUTO, DRAFT_DSPARK, ST_E_USAGE, 0, "--draft-temperature 2 has no meaning with --temperature 0"},
        {1, 1, 2, 0, 0, OPT_DRAFT_AUTO, DRAFT_NONE, ST_E_USAGE, 0, "--draft-temperature 2 has no meaning with --spec none"},
        {1, 1, 2, 0, 0, OPT_DRAFT_AUTO, DRAFT_DFLASH, ST_E_USAGE, 0, "has no meaning with drafts that are not sampled"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct options o = {.temperature = row[i].temperature, .top_p = row[i].top_p, .top_k = row[i].top_k, .seed = row[i].seed,
                            .draft_sampling = row[i].drafts, .draft_temperature = row[i].draft_temperature};
        struct sampling how, none = {0};
        ck_assert_int_eq(options_sampling(&o, row[i].kind, &how), row[i].st);
        if (row[i].st != ST_OK) {
            ck_assert_ptr_nonnull(strstr(err_last(), row[i].says));
            continue;
        }
        if (o.temperature == 0) { /* nothing that greedy tokens do not depend on is left in it */
            ck_assert_mem_eq(&how, &none, sizeof how);
            continue;
        }
        ck_assert(how.temperature == o.temperature && how.top_p == o.top_p && how.draft_temperature == o.draft_temperature);
        ck_assert(how.top_k == o.top_k && how.seed == (uint64_t)o.seed && how.draws_drafts == row[i].draws);
    }
}
END_TEST

/* whichever option lists its words, another word is a wrong command line, and so is leaving out what is required */
START_TEST(unknown_words_and_missing_options_are_usage)
{
    static const char *const path[] = {"model", "prompts", "out", "jsonl", "draft", "journal"};
    struct options o;
    int n, help, choices = 0;
    for (unsigned cmd = CMD_PROMPTS; cmd <= CMD_DIAGNOSE; cmd <<= 1)
        for (const struct opt_row *r = options_table; r->name; r++) {
            char word[64], value[] = "no-such-word", *argv[16] = {word, value};
            int argc = 0;
            if (!(r->commands & cmd) || !(r->kind == OPT_CHOICE || r->required)) continue;
            snprintf(word, sizeof word, "--%s", r->name);
            if (r->kind == OPT_CHOICE) argc = 2;
            choices += argc > 0;
            for (size_t i = 0; i < sizeof path / sizeof path[0]; i++) { /* everything else that is required */
                static char given[6][16], file[] = "f";
                const struct opt_row *q = options_table;
                snprintf(given[i], sizeof given[i], "--%s", path[i]);
                while (strcmp(q->name, path[i]) != 0) q++;
                if (q == r || !(q->commands & cmd)) continue;
                argv[argc++] = given[i];
                argv[argc++] = file;
            }
            ck_assert_int_eq(options_parse((enum command)cmd, argc, argv, &o, NULL, 0, &n, &help), ST_E_USAGE);
            ck_assert_msg(strstr(err_last(), word) != NULL, "'%s' does not say '%s'", err_last(), word);
        }
    ck_assert_int_ge(choices, 9);
}
END_TEST

/* of the product's options only those that may be repeated are taken twice */
START_TEST(an_option_counts_once)
{
    struct options o;
    int n, help, once = 0;
    for (unsigned cmd = CMD_PROMPTS; cmd <= CMD_REBUILD; cmd <<= 1)
        for (const struct opt_row *r = options_table; r->name; r++) {
            char word[64], value[64], *argv[4] = {word, value, word, value};
            if (!(r->commands & cmd)) continue;
            snprintf(word, sizeof word, "--%s", r->name);
            snprintf(value, sizeof value, "%s", r->def ? r->def : "7");
            if (r->kind == OPT_CHOICE) snprintf(value, sizeof value, "%.*s", (int)strcspn(r->choices, ","), r->choices);
            int flag = r->kind == OPT_FLAG;
            if (flag) argv[1] = word;
            enum status st = options_parse((enum command)cmd, flag ? 2 : 4, argv, &o, NULL, 0, &n, &help);
            int twice = strstr(err_last(), "given twice") != NULL && strstr(err_last(), word) != NULL;
            ck_assert_msg(r->kind == OPT_LIST ? !twice : st == ST_E_USAGE && twice, "%s: %s", word, err_last());
            once += r->kind != OPT_LIST;
        }
    ck_assert_int_ge(once, 60);
}
END_TEST

START_TEST(one_group_takes_no_prefill_group)
{
    static const struct { const char *line[4]; int given; enum status st; } run[] = {
        {{"--single"}, 0, ST_OK},
        {{"--single", "--decode", "tp=2"}, 0, ST_OK},
        {{"--prefill", "pp=2"}, 1, ST_OK},
        {{"--single", "--prefill", "pp=2"}, 1, ST_E_USAGE},
        {{"--single", "--prefill", "pp=1,tp=1"}, 1, ST_E_USAGE}, /* the default, but said */
        {{"--prefill=pp=1", "--single"}, 1, ST_E_USAGE},
    };
    for (size_t i = 0; i < sizeof run / sizeof run[0]; i++) {
        char word[8][32] = {"--model", "m"}, *argv[8];
        struct options o;
        int argc = 2, n, help;
        for (int k = 0; k < 4 && run[i].line[k]; k++) snprintf(word[argc++], sizeof word[0], "%s", run[i].line[k]);
        for (int k = 0; k < 8; k++) argv[k] = word[k];
        ck_assert_int_eq(options_parse(CMD_PLAN, argc, argv, &o, NULL, 0, &n, &help), ST_OK);
        ck_assert_int_eq(options_given(&o, "prefill"), run[i].given);
        ck_assert(options_given(&o, "model") && !options_given(&o, "draft") && !options_given(&o, "spec"));
        ck_assert_int_eq(options_single(&o), run[i].st);
        if (run[i].st != ST_OK) ck_assert_ptr_nonnull(strstr(err_last(), "--prefill has no meaning with --single"));
    }
}
END_TEST

/* pieces in order, none empty, together all rows once; whatever is no K/N is refused by its text */
START_TEST(shards_cover_all_rows_once)
{
    struct options o = {.shard = NULL};
    int first, end;
    ck_assert_int_eq(options_shard(&o, 7, &first, &end), ST_OK);
    ck_assert(first == 0 && end == 7);
    for (int rows = 1; rows <= 40; rows++)
        for (int n = 1; n <= rows; n++) {
            int next = 0;
            for (int k = 1; k <= n; k++) {
                char text[32];
                snprintf(text, sizeof text, "%d/%d", k, n);
                o.shard = text;
                ck_assert_int_eq(options_shard(&o, rows, &first, &end), ST_OK);
                ck_assert_msg(first == next && end > first, "%s of %d: %d to %d", text, rows, first, end);
                next = end;
            }
            ck_assert_int_eq(next, rows);
        }
    o.shard = "2147483647/2147483647";
    ck_assert_int_eq(options_shard(&o, 2147483647, &first, &end), ST_OK);
    ck_assert(first == 2147483646 && end == 2147483647);
    static const char *const bad[] = {"", "2", "0/4", "5/4", "-1/4", "1/0", "1/4x", "a/b", "1/", "/4", "1/4/", "1.5/4",
                                      "99999999999/99999999999", "1 /4"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        o.shard = bad[i];
        ck_assert_msg(options_shard(&o, 8, &first, &end) == ST_E_USAGE, "'%s'", bad[i]);
        ck_assert_ptr_nonnull(strstr(err_last(), "--shard"));
    }
    o.shard = "1/9";
    ck_assert_int_eq(options_shard(&o, 8, &first, &end), ST_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(err_last(), "8 rows"));
}
END_TEST

/* the manual page and the completion know every command and option, and what they say is the table's */
START_TEST(the_manual_says_all_of_the_tables)
{
    char *page = NULL, *completion = NULL, want[256];
    size_t n, m;
    FILE *f = open_memstream(&page, &n), *g = open_memstream(&completion, &m);
    manual_page(f);
    manual_completion(g);
    fclose(f);
    fclose(g);
    for (const struct opt_row *r = options_table; r->name; r++) {
        size_t k = 0;
        for (const char *c = r->name; *c; c++)
            k += (size_t)snprintf(want + k, sizeof want - k, *c == '-' ? "\\-" : "%c", *c);
        char item[300];
        snprintf(item, sizeof item, ".BI \\-\\-%s%c", want, r->kind == OPT_FLAG ? '\n' : ' ');
        ck_assert_msg(strstr(page, item) != NULL, "no %s", item);
        snprintf(want, sizeof want, " --%s", r->name);
        ck_assert_msg(strstr(completion, want) != NULL, "completion lacks%s", want);
        ck_assert_msg(!r->choices || !strchr(r->choices, '|'), "--%s: choices are parted by commas", r->name);
        ck_assert_msg(!r->arg || !strchr(r->arg, '|'), "--%s: choices belong to its row", r->name);
    }
    for (const struct command_row *c = command_table; c->name; c++) {
        snprintf(want, sizeof want, "\n.B %s\n", c->name);
        ck_assert_msg(strstr(page, want) != NULL, "no command %s", c->name);
    }
    for (int st = ST_OK + 1; st < ST_N; st++) { /* broken over lines there */
        char *p = strstr(page, ".SH EXIT STATUS");
        for (const char *w = err_text((enum status)st); p && *w; w += strspn(w, " ")) {
            size_t k = strcspn(w, " ");
            snprintf(want, sizeof want, "%.*s", (int)k, w);
            p = strchr(want, '-') || strchr(want, '\'') ? p : strstr(p, want);
            w += k;
        }
        ck_assert_msg(p != NULL, "exit status lacks '%s'", err_text((enum status)st));
    }
    free(page);
    free(completion);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "opt", 20);
    SUITE_TEST(tc, values_and_defaults_are_stored);
    SUITE_TEST(tc, bad_words_are_refused_with_their_name);
    SUITE_TEST(tc, options_of_other_commands_are_unknown);
    SUITE_TEST(tc, text_is_what_could_be_typed);
    SUITE_TEST(tc, the_table_of_the_program_is_sound);
    SUITE_TEST(tc, sampling_options_make_one_struct);
    SUITE_TEST(tc, unknown_words_and_missing_options_are_usage);
    SUITE_TEST(tc, an_option_counts_once);
    SUITE_TEST(tc, one_group_takes_no_prefill_group);
    SUITE_TEST(tc, shards_cover_all_rows_once);
    SUITE_TEST(tc, the_manual_says_all_of_the_tables);
}

int main(void)
{
    return suite_main_serial();
}
