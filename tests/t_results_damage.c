#include "suite.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "data/results.h"
#include "results_rows.h"

/* Files and journals that somebody or something damaged, moved or left half. */
const char *const suite_name = "results_damage";

static void cut(const char *path, long drop)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    fclose(f);
    ck_assert_int_eq(truncate(path, n - drop), 0);
}

static void append_raw(const char *path, const char *text)
{
    FILE *f = fopen(path, "ab");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

START_TEST(a_damaged_file_or_journal_loses_nothing_committed)
{
    const char *path = suite_fresh("damage.h5");
    int64_t rows = 0;
    struct results *r;
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    write_extras(w);
    for (int64_t i = 0; i < 6; i++) ck_assert_int_eq(append(w, i, 0, stop_of(i)), ST_OK);
    results_close(w);
    /* the file is cut short: it cannot be opened, resume rebuilds it */
    cut(path, 1000);
    ck_assert_int_eq(results_load(path, &r), ST_E_FORMAT);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_done_count(w), 6);
    ck_assert_int_eq(append(w, 6, 0, RESULT_EOS), ST_OK);
    results_close(w);
    /* the last line of the journal is torn: dropped by rebuild and cut off by resume */
    append_raw(journal_of(path), "{\"kind\":\"row\",\"index\":7,\"att");
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    ck_assert_int_eq(rows, 7);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(append(w, 7, 0, RESULT_EOS), ST_OK);
    results_close(w);
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    ck_assert_int_eq(rows, 8);
    /* the journal is gone: written anew from the file */
    struct results *before = load_ok(path);
    ck_assert_int_eq(unlink(journal_of(path)), 0);
    w = open_ok(path, RESULTS_RESUME);
    results_close(w);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
    ck_assert_int_eq(rows, 8);
    r = load_ok(path);
    before->attempt = r->attempt; /* the resume in between */
    before->attr[0].i = r->attr[0].i;
    ck_assert_str_eq(before->attr[0].name, "attempt");
    check_same(before, r);
    results_free(before);
    results_free(r);
}
END_TEST

static void copy(const char *from, const char *to)
{
    char command[1400];
    snprintf(command, sizeof command, "cp -- '%s' '%s'", from, to);
    ck_assert_int_eq(system(command), 0);
}

static int differ(const char *a, const char *b)
{
    char command[1400];
    snprintf(command, sizeof command, "cmp -s -- '%s' '%s'", a, b);
    return system(command) != 0;
}

/* a file that opens, with a part of it gone or wrong; 0: a part that no reader needs */
static int harm(const char *path, const char *object)
{
    struct h5 *f;
    ck_assert_int_eq(h5_open(path, 1, &f), ST_OK);
    if (strcmp(object, "count") == 0) { /* a row too many in one list */
        ck_assert_int_eq(h5_append_str(f, "/text/gold", 1, &(const char *){"x"}), ST_OK);
    } else if (strcmp(object, "attempt") == 0) {
        ck_assert_int_eq(h5_set_int(f, "/", "attempt", 0), ST_OK);
    } else if (strcmp(object, "questions") == 0) {
        ck_assert_int_eq(h5_set_int(f, "/", "questions", 3), ST_OK);
    } else if (strcmp(object, "value") == 0) {
        ck_assert_int_eq(h5_put(f, "/accept/accepted", H5_KIND_I32, 0, 1, &(int32_t){BLOCK + 7}), ST_OK);
    } else {
        ck_assert_int_eq(h5_delete(f, object), ST_OK);
    }
    ck_assert_int_eq(h5_flush(f), ST_OK);
    h5_close(f);
    return strcmp(object, "/occupancy") != 0;
}

/* each object of the file deleted in turn, and values that cannot be: as good as a file cut short */
START_TEST(a_file_that_opens_but_is_damaged_is_rebuilt_or_refused)
{
    static const char *const more[] = {"count", "attempt", "value", "questions"};
    char path[512], whole[520], lines[540], harmed[520];
    struct results_writer *w;
    struct results *r;
    struct h5 *f;
    struct h5_object *o;
    size_t n;
    snprintf(path, sizeof path, "%s", suite_fresh("inside.h5"));
    snprintf(whole, sizeof whole, "%s.whole", path);
    snprintf(lines, sizeof lines, "%s.lines", path);
    snprintf(harmed, sizeof harmed, "%s.harmed", path);
    w = open_ok(path, RESULTS_NEW);
    write_extras(w);
    for (int64_t i = 0; i < 6; i++) ck_assert_int_eq(append(w, i, 0, stop_of(i)), ST_OK);
    results_close(w);
    copy(path, whole);
    copy(journal_of(path), lines);
    ck_assert_int_eq(h5_open(path, 0, &f), ST_OK);
    ck_assert_int_eq(h5_list(f, &o, &n), ST_OK);
    h5_close(f);
    size_t tried = 0;
    for (size_t i = 0; i < n + sizeof more / sizeof more[0]; i++) {
        const char *name = i < n ? o[i].name : more[i - n];
        if (i < n && (name[0] != '/' || strchr(name, '.'))) continue; /* a field of a table */
        tried++;
        copy(whole, path);
        int bad = harm(path, name);
        copy(path, harmed);
        ck_assert_msg(results_load(path, &r) == (bad ? ST_E_FORMAT : ST_OK), "%s", name);
        /* without a journal: refused, nothing is touched or made */
        unlink(journal_of(path));
        ck_assert_msg(results_open(path, RESULTS_RESUME, &setup, &w) == ST_E_FORMAT, "%s", name);
        ck_assert_msg(!differ(path, harmed) && access(journal_of(path), F_OK) != 0, "%s", name);
        /* beside a journal that is damaged too, and torn at its end: the same */
        copy(lines, journal_of(path));
        append_raw(journal_of(path), "{\"kind\":\"song\"}\n{\"ki");
        char torn[540];
        snprintf(torn, sizeof torn, "%s.torn", path);
        copy(journal_of(path), torn);
        ck_assert_msg(results_open(path, RESULTS_RESUME, &setup, &w) == ST_E_FORMAT, "%s", name);
        ck_assert_msg(!differ(path, harmed) && !differ(journal_of(path), torn), "%s", name);
        /* beside its journal: rebuilt, and goes on */
        copy(lines, journal_of(path));
        w = open_ok(path, RESULTS_RESUME);
        ck_assert_int_eq(append(w, 6, 0, RESULT_EOS), ST_OK);
        results_close(w);
        r = load_ok(path);
        ck_assert_msg(r->n == 7 && r->attempt == 2 && r->n_memory == 3 && r->plan, "%s", name);
        for (size_t k = 0; k < r->n; k++) check_row(&r->row[k]);
        results_free(r);
    }
    ck_assert_uint_ge(tried, 25);
    mem_free(o);
}
END_TEST

/* what is logged from here on */
static int listen(void)
{
    static char name[512];
    snprintf(name, sizeof name, "%s", suite_tmp("log"));
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    log_to(fd);
    return fd;
}

static int times(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++) n++;
    return n;
}

/* resumes path and closes it; text: what that logged */
static enum status resume_logged_as(const struct results_setup *u, const char *path, char *text, size_t room)
{
    struct results_writer *w;
    int fd = listen();
    enum status st = results_open(path, RESULTS_RESUME, u, &w);
    log_to(-1);
    if (st == ST_OK) results_close(w);
    ssize_t n = pread(fd, text, room - 1, 0);
    ck_assert_int_ge(n, 0);
    text[n] = 0;
    close(fd);
    return st;
}

static enum status resume_logged(const char *path, char *text, size_t room)
{
    return resume_logged_as(&setup, path, text, room);
}

/* a resume that succeeds logs no error, and each warning once; one that fails says what is wrong with either file */
START_TEST(a_recovery_logs_no_error_and_each_warning_once)
{
    static const struct {
        int gone, cut, torn;    /* the file is gone or cut short; the last line of the journal is torn */
        const char *object;     /* of the file, deleted */
        const char *warning;
    } cases[] = {
        {1, 0, 0, NULL, "said.h5: missing; rebuilt from"},
        {0, 1, 0, NULL, "said.h5: not a whole HDF5 file"},
        {0, 0, 0, "/accept", "accept"},
        {1, 0, 1, NULL, "said.h5: missing; rebuilt from"},
        {0, 1, 1, NULL, "said.h5: not a whole HDF5 file"},
        {0, 0, 1, NULL, "said.h5.jsonl: the last line is cut short"},
    };
    char path[512], text[8192];
    snprintf(path, sizeof path, "%s", suite_fresh("said.h5"));
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    for (int64_t i = 0; i < 3; i++) ck_assert_int_eq(append(w, i, 0, stop_of(i)), ST_OK);
    results_close(w);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].gone) ck_assert_int_eq(unlink(path), 0);
        if (cases[i].cut) cut(path, 1000);
        if (cases[i].object) harm(path, cases[i].object);
        if (cases[i].torn) append_raw(journal_of(path), "{\"kind\":\"row\",\"ind");
        int rebuilt = cases[i].gone || cases[i].cut || cases[i].object;
        ck_assert_int_eq(resume_logged(path, text, sizeof text), ST_OK);
        ck_assert_msg(times(text, "error:") == 0, "case %zu: %s", i, text);
        ck_assert_msg(times(text, cases[i].warning) == 1, "case %zu: %s", i, text);
        ck_assert_msg(times(text, "rebuilt from") == rebuilt, "case %zu: %s", i, text);
        ck_assert_msg(times(text, "cut short") == cases[i].torn, "case %zu: %s", i, text);
        ck_assert_msg(times(text, "warning:") == rebuilt + cases[i].torn, "case %zu: %s", i, text);
    }
    cut(path, 1000);
    append_raw(journal_of(path), "{\"kind\":\"song\"}\n");
    ck_assert_int_eq(resume_logged(path, text, sizeof text), ST_E_FORMAT);
    ck_assert_msg(times(text, "error:") == 2 && times(text, "not a whole HDF5 file") == 1 &&
                      times(text, "\"kind\" is unknown") == 1 && times(text, "rebuilt") == 0, "%s", text);
    unlink(journal_of(path));
    ck_assert_int_eq(resume_logged(path, text, sizeof text), ST_E_FORMAT);
    ck_assert_msg(times(text, "error:") == 1 && times(text, "not a whole HDF5 file") == 1, "%s", text);
}
END_TEST

/* moving the journal away is enough, and the refusal says so: of a foreign file, and of a line that is none */
START_TEST(a_bad_journal_beside_a_whole_file_is_moved_away)
{
    char path[512], text[8192], away[540];
    for (int foreign = 0; foreign < 2; foreign++) {
        snprintf(path, sizeof path, "%s", suite_fresh("bad.h5"));
        snprintf(away, sizeof away, "%s.away", path);
        struct results_writer *w = open_ok(path, RESULTS_NEW);
        for (int64_t i = 0; i < 3; i++) ck_assert_int_eq(append(w, i, 0, RESULT_EOS), ST_OK);
        results_close(w);
        if (foreign) unlink(journal_of(path));
        append_raw(journal_of(path), "shopping list\n");
        copy(journal_of(path), away);
        ck_assert_int_eq(resume_logged(path, text, sizeof text), ST_E_FORMAT);
        ck_assert_msg(times(text, foreign ? "is none of results" : "not JSON") == 1, "%s", text);
        ck_assert_msg(times(text, "bad.h5 is whole: move") == 1 && times(text, "error:") == 1 &&
                          times(text, "--resume writes the journal anew") == 1, "%s", text);
        ck_assert(!differ(journal_of(path), away));
        ck_assert_int_eq(rename(journal_of(path), away), 0);
        ck_assert_int_eq(resume_logged(path, text, sizeof text), ST_OK);
        w = open_ok(path, RESULTS_RESUME);
        ck_assert_int_eq(results_done_count(w), 3);
        results_close(w);
    }
    /* nothing is whole there: another name is all there is to say */
    ck_assert_int_eq(unlink(path), 0);
    copy(away, journal_of(path));
    ck_assert_int_eq(resume_logged(path, text, sizeof text), ST_E_FORMAT);
    ck_assert_msg(times(text, "name another file than") == 1 && times(text, "is whole") == 0, "%s", text);
}
END_TEST

START_TEST(a_link_is_its_target)
{
    char path[512], link[520], lines[540];
    struct results_writer *w, *v;
    int64_t rows = 0;
    snprintf(path, sizeof path, "%s", suite_fresh("target.h5"));
    snprintf(link, sizeof link, "%s.link", path);
    snprintf(lines, sizeof lines, "%s.jsonl", link);
    unlink(link);
    unlink(lines);
    ck_assert_int_eq(symlink(strrchr(path, '/') ? strrchr(path, '/') + 1 : path, link), 0);
    w = open_ok(link, RESULTS_NEW); /* to nothing, so far */
    ck_assert_int_eq(append(w, 1, 0, RESULT_EOS), ST_OK);
    ck_assert_int_eq(results_open(path, RESULTS_RESUME, &setup, &v), ST_E_FILE); /* one lock */
    results_close(w);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_open(link, RESULTS_RESUME, &setup, &v), ST_E_FILE);
    results_close(w);
    ck_assert_int_eq(results_open(link, RESULTS_NEW, &setup, &v), ST_E_FILE);
    w = open_ok(link, RESULTS_RESUME);
    ck_assert_int_eq(results_done(w, 1), 1);
    results_close(w);
    ck_assert_int_eq(results_rebuild(link, &rows), ST_OK);
    char to[8];
    ck_assert_int_gt(readlink(link, to, sizeof to), 0);
    ck_assert_int_ne(access(lines, F_OK), 0);
    struct results *r = load_ok(path);
    ck_assert(r->n == 1 && r->attempt == 3 && rows == 1);
    results_free(r);
}
END_TEST

START_TEST(a_row_only_the_journal_has_is_taken_over)
{
    const char *path = suite_fresh("ahead.h5"), *old = suite_tmp("ahead-old.h5");
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    ck_assert_int_eq(append(w, 0, 0, RESULT_EOS), ST_OK);
    unlink(old);
    ck_assert_int_eq(link(path, old), 0); /* the file as of now; the writer replaces, it does not overwrite */
    ck_assert_int_eq(append(w, 1, 0, RESULT_LENGTH), ST_OK);
    results_close(w);
    ck_assert_int_eq(rename(old, path), 0); /* as after a kill between journal and file */
    struct results *r = load_ok(path);
    ck_assert_uint_eq(r->n, 1);
    results_free(r);
    w = open_ok(path, RESULTS_RESUME);
    ck_assert_int_eq(results_done(w, 1), 1);
    results_close(w);
    r = load_ok(path);
    ck_assert(r->n == 2 && r->row[1].attempt == 1);
    check_row(&r->row[1]);
    results_free(r);
}
END_TEST

/* a journal behind its file, as an older copy is: said, and filled up, whether or not anything is left to do */
START_TEST(a_row_only_the_file_has_is_added_to_the_journal)
{
    char path[512], few[540], text[8192];
    snprintf(path, sizeof path, "%s", suite_fresh("behind.h5"));
    snprintf(few, sizeof few, "%s.few", path);
    struct results_writer *w = open_ok(path, RESULTS_NEW);
    for (int64_t i = 0; i < 2; i++) ck_assert_int_eq(append(w, i, 0, i ? RESULT_EOS : RESULT_FAILED), ST_OK);
    results_close(w);
    copy(journal_of(path), few);
    w = open_ok(path, RESULTS_RESUME);
    for (int64_t i = 0; i < 6; i++)
        if (i != 1) ck_assert_int_eq(append(w, i, 0, RESULT_EOS), ST_OK); /* question 0 again: another attempt's */
    results_close(w);
    for (int idle = 0; idle < 2; idle++) {
        struct results_setup part = setup;
        part.end = idle ? 6 : 0;
        copy(few, journal_of(path));
        append_raw(journal_of(path), "{\"kind\":\"row\",\"ind"); /* torn */
        ck_assert_int_eq(resume_logged_as(&part, path, text, sizeof text), ST_OK);
        ck_assert_msg(times(text, "lacks 5 rows that") == 1 && times(text, "error:") == 0, "%s", text);
        ck_assert_int_eq(resume_logged_as(&part, path, text, sizeof text), ST_OK);
        ck_assert_msg(times(text, "lacks") == 0, "%s", text);
        int64_t rows;
        ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
        struct results *r = load_ok(path);
        ck_assert(rows == 6 && r->n == 6 && r->row[0].attempt == 2 && r->row[1].attempt == 1);
        for (size_t k = 0; k < r->n; k++) check_row(&r->row[k]);
        results_free(r);
    }
}
END_TEST

START_TEST(journals_that_are_wrong_are_refused_by_line)
{
#define OF(questions, block)                                                                                           \
    "{\"kind\":\"run\",\"schema\":\"pdflash-results\",\"schema_version\":1,\"attempt\":1,\"config_hash\":\"a\","       \
    "\"questions\":" questions ",\"block\":" block "}\n"
#define RUN OF("3", "2")
#define ROW(index, proposed)                                                                                           \
    "{\"kind\":\"row\",\"index\":" index ",\"attempt\":1,\"prompt_tokens\":1,\"output_tokens\":1,"                        \
    "\"stop_reason\":\"eos\",\"question\":\"\",\"gold\":\"\",\"response\":\"\",\"error\":\"\",\"tokens\":[1],"            \
    "\"rounds\":[[0," proposed ",0,1,1]],\"timing\":{" T("admit") T("first_chunk") T("prefill_done")                     \
    T("transfer_start") T("transfer_done") T("decode_start") T("first_token") "\"end_s\":1},\"transfer\":{" MOVED("mla") \
    "," MOVED("kda") "," MOVED("conv") "," MOVED("draft") "," MOVED("aux") "}}\n"
#define T(name) "\"" name "_s\":null,"
#define MOVED(name) "\"" name "\":{\"bytes\":0,\"puts\":0,\"seconds\":null,\"checksum\":\"0000000000000000\"}"
    static const struct {
        const char *text, *where, *what;
    } cases[] = {
        {"", "jsonl", "nothing to rebuild"},
        {"{\"kind\":\"run\"", "jsonl", "nothing to rebuild"},
        {"{\"kind\":\"finish\",\"complete\":1}\n", ":1:", "first line"},
        {RUN "not json\n", ":2:", "not JSON"},
        {RUN "{\"kind\":\"song\"}\n", ":2:", "unknown"},
        {RUN "{}\n", ":2:", "kind"},
        {RUN "{\"kind\":\"row\",\"index\":\"0\"}\n", ":2:", "index"},
        {RUN "{\"kind\":\"finish\",\"complete\":2}\n", ":2:", "complete"},
        {RUN "{\"kind\":\"attributes\",\"values\":[[\"a\"]]}\n", ":2:", "values"},
        {RUN "{\"kind\":\"memory\",\"ranks\":[{\"rank\":0}]}\n", ":2:", "role"},
        {RUN "{\"kind\":\"run\",\"schema\":\"pdflash-results\",\"schema_version\":1,\"attempt\":2,\"config_hash\":"
             "\"b\",\"questions\":3,\"block\":2}\n",
         "hash a", "b"},
        {"{\"kind\":\"run\",\"schema\":\"pdflash-results\",\"schema_version\":9,\"attempt\":1,\"config_hash\":\"a\","
         "\"questions\":3,\"block\":2}\n",
         ":1:", "version 9"},
        {OF("1", "2000000000"), ":1:", "block is 2000000000"},
        {OF("3", "0"), ":1:", "block is 0"},
        {OF("2000000000", "2"), ":1:", "2000000000 questions"},
        {RUN ROW("3", "1"), ":2:", "index is 3, the run has 3 questions"},
        {RUN ROW("-1", "1"), ":2:", "index"},
        {RUN ROW("0", "2"), ":2:", "index 0 round 0: proposed is 2, block is 2"},
    };
    const char *path = suite_fresh("wrong.h5");
    int64_t rows = -1;
    ck_assert_int_eq(results_rebuild(path, &rows), ST_E_FILE); /* no journal, and none is made */
    ck_assert_int_ne(access(journal_of(path), F_OK), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        unlink(journal_of(path));
        append_raw(journal_of(path), cases[i].text);
        enum status st = results_rebuild(path, &rows);
        ck_assert_msg(st == ST_E_FORMAT || st == ST_E_CONFIG, "case %zu: %s", i, err_name(st));
        ck_assert_msg(strstr(err_last(), cases[i].where) && strstr(err_last(), cases[i].what), "case %zu: %s", i,
                      err_last());
    }
    ck_assert_int_eq(rows, -1);
    ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "results damage", 60);
    SUITE_TEST(tc, a_damaged_file_or_journal_loses_nothing_committed);
    SUITE_TEST(tc, a_file_that_opens_but_is_damaged_is_rebuilt_or_refused);
    SUITE_TEST(tc, a_recovery_logs_no_error_and_each_warning_once);
    SUITE_TEST(tc, a_bad_journal_beside_a_whole_file_is_moved_away);
    SUITE_TEST(tc, a_link_is_its_target);
    SUITE_TEST(tc, a_row_only_the_journal_has_is_taken_over);
    SUITE_TEST(tc, a_row_only_the_file_has_is_added_to_the_journal);
    SUITE_TEST(tc, journals_that_are_wrong_are_refused_by_line);
}

int main(void)
{
    return suite_main_serial();
}
