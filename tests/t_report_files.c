/* Trace, table and output files: what programs read, and what is left behind when writing fails. */
#include "report_kit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/outfile.h"

const char *const suite_name = "report_files";

/* ---- trace --------------------------------------------------------------------------------------------- */

static json_t *trace_of(const struct opened *o)
{
    struct report_file f = {o->path, &o->p};
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    ck_assert_int_eq(report_trace(&f, out), ST_OK);
    fclose(out);
    json_error_t e;
    json_t *t = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    ck_assert_msg(t != NULL, "line %d: %s", e.line, e.text);
    free(text);
    return t;
}

/* the trace event format's required fields; returns 1 for a complete event */
static int check_event(const json_t *e)
{
    const char *ph = json_string_value(json_object_get(e, "ph")), *name = json_string_value(json_object_get(e, "name"));
    ck_assert(ph && name && json_is_number(json_object_get(e, "ts")));
    ck_assert(json_is_integer(json_object_get(e, "pid")) && json_is_integer(json_object_get(e, "tid")));
    ck_assert(json_is_object(json_object_get(e, "args")));
    if (strcmp(ph, "M") == 0) {
        ck_assert(strcmp(name, "process_name") == 0 || strcmp(name, "thread_name") == 0);
        ck_assert(json_is_string(json_object_get(json_object_get(e, "args"), "name")));
        return 0;
    }
    ck_assert_str_eq(ph, "X");
    ck_assert(json_is_string(json_object_get(e, "cat")));
    ck_assert(json_number_value(json_object_get(e, "dur")) >= 0);
    return 1;
}

/* returns the complete events; in order of time, and on one thread none begins before the one before it has ended */
static int check_trace(const json_t *t)
{
    const json_t *all = json_object_get(t, "traceEvents"), *e, *f;
    double last = -INFINITY;
    size_t i, k;
    int n = 0;
    ck_assert(json_is_array(all) && json_is_object(json_object_get(t, "otherData")));
    json_array_foreach(all, i, e)
    {
        if (!check_event(e)) continue;
        double ts = json_number_value(json_object_get(e, "ts")),
               end = ts + json_number_value(json_object_get(e, "dur"));
        ck_assert(ts >= last);
        last = ts;
        n++;
        for (k = i + 1; k < json_array_size(all); k++) {
            f = json_array_get(all, k);
            if (json_equal(json_object_get(e, "pid"), json_object_get(f, "pid")) &&
                json_equal(json_object_get(e, "tid"), json_object_get(f, "tid")))
                ck_assert_msg(json_number_value(json_object_get(f, "ts")) >= end - 0.002, "event %zu crosses event %zu",
                              k, i);
        }
    }
    return n;
}

/* sum of durations of a name in the processes of a category, microseconds */
static double sum_of(const json_t *t, const char *category, const char *name)
{
    const json_t *e;
    size_t i;
    double sum = 0;
    json_array_foreach(json_object_get(t, "traceEvents"), i, e)
    {
        const char *c = json_string_value(json_object_get(e, "cat"));
        if (c && strcmp(c, category) == 0 && strcmp(json_string_value(json_object_get(e, "name")), name) == 0)
            sum += json_number_value(json_object_get(e, "dur"));
    }
    return sum;
}

START_TEST(a_trace_holds_what_was_measured)
{
    static const struct {
        const char *category, *name;
        double seconds;
    } table[] = {{"request", "prefill", 1 + 2 + 1 + 0.5},
                 {"request", "decode", 6 + 2 + 7 + 4},
                 {"transfer", "transfer", 2},
                 {"rank", "prefill", 2 * (0.5 + 2 + 0.5)},
                 {"rank", "decode", 2 * 5.75},
                 {"rank", "receive", 1},
                 {"rank", "send", 0.25},
                 {"rank", "start", 0.5}};
    log_mute(1);
    struct opened *o = kit_load(kit_run("trace.h5", NULL));
    json_t *t = trace_of(o);
    ck_assert_int_eq(check_trace(t), 5 + 4 + 4 + 4 + 2 * 7);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        ck_assert_msg(fabs(sum_of(t, table[i].category, table[i].name) - table[i].seconds * 1e6) < 0.01,
                      "%s %s: %.3f us", table[i].category, table[i].name, sum_of(t, table[i].category, table[i].name));
    json_decref(t);
    kit_close(o);
}
END_TEST

START_TEST(traces_of_hostile_and_empty_files_are_json)
{
    log_mute(1);
    struct opened *o = kit_load(kit_run("hostile.h5", HOSTILE));
    snprintf(o->path, sizeof o->path, "a\"b\\c\n\xff\xf0\x9f\x98\x80");
    json_t *t = trace_of(o);
    ck_assert_int_gt(check_trace(t), 0);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(t, "otherData"), "file")),
                     "a\"b\\c\n\xef\xbf\xbd\xf0\x9f\x98\x80");
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(t, "otherData"), "run_id")), HOSTILE);
    json_decref(t);
    kit_close(o);
    for (int kind = 0; kind < 5; kind++) {
        o = kit_load(kit_odd("odd.h5", kind));
        t = trace_of(o);
        if (kind < 3) ck_assert_int_eq(check_trace(t), 0);
        json_decref(t);
        kit_close(o);
    }
}
END_TEST

/* ---- table --------------------------------------------------------------------------------------------- */

static char *csv_of(struct opened *const *o, size_t n)
{
    struct report_file f[4];
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (size_t i = 0; i < n; i++) f[i] = (struct report_file){o[i]->path, &o[i]->p};
    report_csv(f, n, out);
    fclose(out);
    return text;
}

/* the next cell, unquoted, in buf; *end_p: 1 after the last of a line. NULL at the end of the text. */
static const char *cell(const char *s, char *buf, size_t room, int *end_p)
{
    size_t n = 0;
    if (!*s) return NULL;
    if (*s == '"') {
        for (s++; *s != '"' || s[1] == '"'; s++) {
            ck_assert_msg(*s, "a cell without end");
            if (n + 1 < room) buf[n++] = *s;
            if (*s == '"') s++;
        }
        s++;
    } else {
        for (; *s && *s != ',' && *s != '\n'; s++) {
            ck_assert_msg(*s != '"' && *s != '\r', "a bare quote");
            if (n + 1 < room) buf[n++] = *s;
        }
    }
    buf[n] = 0;
    ck_assert_msg(*s == ',' || *s == '\n', "'%c' after a cell", *s);
    *end_p = *s == '\n';
    return s + 1;
}

enum { COLUMNS = 19 + 3 * RESULT_COMP_N + 2 * GSM8K_N + 4 };

START_TEST(a_table_reads_back)
{
    static const char text[] = "comma, \"quote\"\nnew line, \xe2\x80\x99";
    char name[COLUMNS][64], buf[2048];
    int end = 0, line = 0, column = 0;
    log_mute(1);
    struct opened *o[2] = {kit_load(kit_run("one.h5", text)), kit_load(kit_run("two.h5", NULL))};
    char *csv = csv_of(o, 2);
    for (const char *s = csv; (s = cell(s, buf, sizeof buf, &end)) != NULL;) {
        ck_assert_int_lt(column, COLUMNS);
        if (line == 0) snprintf(name[column], sizeof name[column], "%.63s", buf);
        if (line == 1 && strcmp(name[column], "question") == 0) ck_assert_str_eq(buf, text);
        if (line == 1 && strcmp(name[column], "kda_seconds") == 0) ck_assert_str_eq(buf, "0.5");
        if (line == 1 && strcmp(name[column], "mla_seconds") == 0) ck_assert_str_eq(buf, ""); /* not measured */
        if (line == 1 && strcmp(name[column], "accept_length") == 0)
            ck_assert(fabs(strtod(buf, NULL) - 7.0 / 3) < 1e-14);
        if (line == 4 && strcmp(name[column], "error") == 0) ck_assert_str_eq(buf, text);
        if (line == 5 && strcmp(name[column], "end_s") == 0) ck_assert_str_eq(buf, "");
        if (line == 2 && strcmp(name[column], "openai_extracted") == 0) ck_assert_str_eq(buf, GSM8K_INVALID);
        if (line > 6 && column == 0) ck_assert_str_eq(buf, o[1]->path);
        column++;
        if (!end) continue;
        ck_assert_int_eq(column, COLUMNS);
        column = 0;
        line++;
    }
    ck_assert_int_eq(line, 1 + 6 + 6);
    free(csv);
    kit_close(o[0]);
    kit_close(o[1]);
}
END_TEST

START_TEST(no_cell_is_a_formula)
{
    static const struct {
        const char *text, *cell;
    } table[] = {{"=1+1", "'=1+1"},
                 {"@SUM(A1)", "'@SUM(A1)"},
                 {"-5", "-5"},
                 {"+5", "+5"},
                 {"-5+cmd|' /C calc'!A0", "'-5+cmd|' /C calc'!A0"},
                 {"-1,234", "-1,234"},
                 {"-", "-"},
                 {"--1", "'--1"},
                 {"\t=1", "'\t=1"},
                 {"a=1", "a=1"}};
    log_mute(1);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        char buf[2048], name[64];
        int end = 0, column = 0, found = 0, at = -1;
        struct opened *o = kit_load(kit_run("formula.h5", table[i].text));
        char *csv = csv_of(&o, 1);
        for (const char *s = csv; (s = cell(s, buf, sizeof buf, &end)) != NULL && !found;) {
            snprintf(name, sizeof name, "%.63s", buf);
            if (at < 0 && strcmp(name, "question") == 0) at = column;
            column++;
            if (end) column = 0;
            if (at >= 0 && column == at + 1 && strcmp(name, "question") != 0) {
                ck_assert_str_eq(buf, table[i].cell);
                found = 1;
            }
        }
        ck_assert(found);
        free(csv);
        kit_close(o);
    }
}
END_TEST

/* ---- files --------------------------------------------------------------------------------------------- */

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    fputs(text, f);
    fclose(f);
}

static void holds(const char *path, const char *text)
{
    char buf[256] = "";
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s", path);
    buf[fread(buf, 1, sizeof buf - 1, f)] = 0;
    fclose(f);
    ck_assert_str_eq(buf, text);
}

static int leftovers(const char *path)
{
    char command[700];
    snprintf(command, sizeof command, "test -z \"$(ls '%s'.tmp.* 2>/dev/null)\"", path);
    return system(command) != 0;
}

START_TEST(an_output_file_is_whole_or_untouched)
{
    struct outfile o;
    struct stat sb;
    char path[512], link[520];
    log_mute(1);
    snprintf(path, sizeof path, "%s", suite_tmp("out.txt"));
    snprintf(link, sizeof link, "%s.link", path);
    unlink(path);
    unlink(link);
    ck_assert_int_eq(outfile_open(path, &o), ST_OK); /* cancelled: nothing appears */
    fputs("half", o.f);
    outfile_cancel(&o);
    ck_assert_int_ne(stat(path, &sb), 0);
    write_text(path, "old");
    ck_assert_int_eq(outfile_open(path, &o), ST_OK);
    fputs("new", o.f);
    holds(path, "old"); /* until it is whole */
    ck_assert_int_eq(outfile_commit(&o), ST_OK);
    holds(path, "new");
    const char *name = strrchr(path, '/');
    ck_assert_int_eq(symlink(name ? name + 1 : path, link), 0);
    ck_assert_int_eq(outfile_open(link, &o), ST_OK);
    fputs("through", o.f);
    ck_assert_int_eq(outfile_commit(&o), ST_OK);
    holds(path, "through");
    ck_assert(lstat(link, &sb) == 0 && S_ISLNK(sb.st_mode));
    ck_assert_int_eq(outfile_open(path, &o), ST_OK); /* a write fails */
    int full = open("/dev/full", O_WRONLY);
    ck_assert_int_ge(full, 0);
    dup2(full, fileno(o.f));
    close(full);
    fputs("lost", o.f);
    ck_assert_int_eq(outfile_commit(&o), ST_E_IO);
    ck_assert_ptr_nonnull(strstr(err_last(), path));
    holds(path, "through");
    ck_assert_int_eq(leftovers(path), 0);
    ck_assert_int_eq(outfile_open("/dev/full", &o), ST_OK); /* a device stays a device */
    fputs("lost", o.f);
    ck_assert_int_eq(outfile_commit(&o), ST_E_IO);
    ck_assert_ptr_nonnull(strstr(err_last(), "/dev/full"));
    ck_assert(stat("/dev/full", &sb) == 0 && S_ISCHR(sb.st_mode));
    ck_assert_int_eq(outfile_open("/nowhere/x.html", &o), ST_E_FILE);
    ck_assert_int_eq(outfile_open("/tmp", &o), ST_E_FILE);
    outfile_cancel(NULL);
    unlink(link);
    unlink(path);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "report_files", 60);
    SUITE_TEST(tc, a_trace_holds_what_was_measured);
    SUITE_TEST(tc, traces_of_hostile_and_empty_files_are_json);
    SUITE_TEST(tc, a_table_reads_back);
    SUITE_TEST(tc, no_cell_is_a_formula);
    SUITE_TEST(tc, an_output_file_is_whole_or_untouched);
}

int main(void)
{
    return suite_main_serial();
}
