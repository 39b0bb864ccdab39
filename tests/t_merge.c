/* Parts to one file, and a journal to a file: rows, order, provenance, what is refused, and what a kill leaves. */
#include "suite.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/results.h"
#include "results_rows.h"

const char *const suite_name = "merge";

static const struct results_identity identity[] = {{"model_hash", "--model", NULL},
                                                   {"option_max-new", "--max-new", NULL}};
static const struct result_attr extra[] = {{"merge_build", H5_KIND_STR, "abc", 0, 0}};

static enum status merge(const char *out, int force, size_t n, const char *const *part, struct results_made *m_p)
{
    return results_merge(out, force, part, n, identity, 2, extra, 1, m_p);
}

static void set_text(struct results_writer *w, const char *key, const char *value)
{
    ck_assert_int_eq(results_attrs(w, &(struct result_attr){key, H5_KIND_STR, value, 0, 0}, 1), ST_OK);
}

/* rows first, first + step, ... below QUESTIONS, in falling order; what a run of this topology records */
static const char *make_part(const char *name, const struct results_setup *u, int64_t first, int64_t step,
                             const char *topology)
{
    struct results_writer *w;
    char *path = mem_strdup(suite_fresh(name));
    ck_assert_int_eq(results_open(path, RESULTS_NEW, u, &w), ST_OK);
    set_text(w, "model_hash", "aa11");
    set_text(w, "option_max-new", u->config_hash[0] == 'c' ? "40" : "41");
    set_text(w, "topology", topology);
    set_text(w, "attempt_1_topology", topology);
    struct result_memory m = {(int32_t)first, "decode", "", 1, 2, 3, 4, 5};
    snprintf(m.host, sizeof m.host, "%s", topology);
    ck_assert_int_eq(results_memory(w, &m, 1), ST_OK);
    ck_assert_int_eq(results_plan(w, topology, NULL, 0), ST_OK);
    for (int64_t i = QUESTIONS - 1; i >= 0; i--)
        if (i >= first && (i - first) % step == 0) ck_assert_int_eq(append(w, i, 0, stop_of(i)), ST_OK);
    ck_assert_int_eq(results_finish(w, 1, NULL), ST_OK);
    results_close(w);
    return path;
}

static int64_t int_attr(const struct results *r, const char *key)
{
    for (size_t i = 0; i < r->n_attrs; i++)
        if (strcmp(r->attr[i].name, key) == 0) return r->attr[i].i;
    ck_abort_msg("no attribute %s", key);
    return 0;
}

static void free_parts(const char **part, size_t n)
{
    for (size_t i = 0; i < n; i++) mem_free((void *)(uintptr_t)part[i]);
}

/* the index column as it is stored */
static void check_stored_order(const char *path)
{
    static const struct h5_field index[] = {{"index", H5_KIND_I64, 0, 0}};
    struct h5 *f;
    void *p;
    size_t n;
    ck_assert_int_eq(h5_open(path, 0, &f), ST_OK);
    ck_assert_int_eq(h5_read_rows(f, "/requests", &(struct h5_table){index, 1, 8}, &p, &n), ST_OK);
    for (size_t i = 1; i < n; i++) ck_assert_int_lt(((int64_t *)p)[i - 1], ((int64_t *)p)[i]);
    mem_free(p);
    h5_close(f);
}

/* whole: all rows, by whichever parts */
static void check_whole(const char *path, const char *one)
{
    struct results *r = load_ok(path), *q = load_ok(one);
    ck_assert(r->n == QUESTIONS && r->rows_stored == QUESTIONS && r->complete == 1);
    ck_assert_mem_eq(r->histogram, q->histogram, BLOCK * sizeof *r->histogram);
    for (size_t i = 0; i < r->n; i++) {
        ck_assert_int_eq(r->row[i].stop, q->row[i].stop);
        check_row(&r->row[i]);
        for (int g = 0; g < GSM8K_N; g++) {
            ck_assert_int_eq(r->row[i].grade.correct[g], q->row[i].grade.correct[g]);
            ck_assert_str_eq(r->row[i].grade.extracted[g], q->row[i].grade.extracted[g]);
        }
    }
    results_free(r);
    results_free(q);
}

/* ---- merge ---------------------------------------------------------------------------------------- */

START_TEST(parts_in_any_order_give_the_rows_of_one_run)
{
    const char *one = make_part("one.h5", &setup, 0, 1, "pp8");
    const char *part[3] = {make_part("p0.h5", &setup, 0, 3, "pp1"), make_part("p1.h5", &setup, 1, 3, "pp2"),
                           make_part("p2.h5", &setup, 2, 3, "pp4")};
    const char *const orders[][3] = {{part[0], part[1], part[2]}, {part[2], part[0], part[1]}};
    for (int o = 0; o < 2; o++) {
        struct results_made m;
        char out[600], key[64];
        snprintf(out, sizeof out, "%s", suite_fresh("all.h5"));
        ck_assert_int_eq(merge(out, 0, 3, orders[o], &m), ST_OK);
        ck_assert(m.rows == QUESTIONS && m.done == QUESTIONS && m.questions == QUESTIONS && m.attempts == 3 &&
                  m.complete);
        check_whole(out, one);
        check_stored_order(out);
        struct results *r = load_ok(out);
        ck_assert(r->attempt == 3 && r->n_memory == 3 && int_attr(r, "parts") == 3);
        ck_assert_str_eq(results_attr_str(r, "merge_build"), "abc");
        ck_assert_str_eq(results_attr_str(r, "model_hash"), "aa11"); /* common: once */
        ck_assert_ptr_null(results_attr_str(r, "part_1_model_hash"));
        for (int p = 0; p < 3; p++) {
            const char *want = orders[o][p] == part[0] ? "pp1" : orders[o][p] == part[1] ? "pp2" : "pp4";
            static const char *const text[] = {"part_%d_topology", "part_%d_plan", "attempt_%d_topology"};
            for (int t = 0; t < 3; t++) {
                snprintf(key, sizeof key, text[t], p + 1);
                ck_assert_str_eq(results_attr_str(r, key), want);
            }
            ck_assert_str_eq(r->memory[p].host, want);
            snprintf(key, sizeof key, "part_%d_file", p + 1);
            ck_assert_str_eq(results_attr_str(r, key), orders[o][p]);
            snprintf(key, sizeof key, "part_%d_rows", p + 1);
            ck_assert_int_eq(int_attr(r, key), QUESTIONS / 3);
            snprintf(key, sizeof key, "part_%d_sha256", p + 1);
            ck_assert_uint_eq(strlen(results_attr_str(r, key)), 64);
        }
        for (size_t i = 0; i < r->n; i++) /* a row's attempt leads to its part */
            ck_assert_str_eq(orders[o][r->row[i].attempt - 1], part[i % 3]);
        results_free(r);
        /* its own journal says the same */
        int64_t rows = 0;
        ck_assert_int_eq(unlink(out), 0);
        ck_assert_int_eq(results_rebuild(out, &rows), ST_OK);
        ck_assert_int_eq(rows, QUESTIONS);
        check_whole(out, one);
        snprintf(key, sizeof key, "all.h5.merge.jsonl");
        ck_assert_int_ne(access(suite_tmp(key), F_OK), 0);
    }
    free_parts(part, 3);
    free_parts(&one, 1);
}
END_TEST

/* what a resumed part tells, failed rows, a merged file that is merged again, and resumed */
START_TEST(attempts_go_on_and_the_merged_file_can_be_continued)
{
    struct results_writer *w;
    struct results_made m;
    const char *part[2];
    char all[600], again[600], key[64];
    part[0] = make_part("a.h5", &setup, 0, 2, "pp1");
    ck_assert_int_eq(results_open(part[0], RESULTS_RESUME, &setup, &w), ST_OK);
    set_text(w, "attempt_2_topology", "pp9");
    ck_assert_int_eq(append(w, 1, 0, RESULT_FAILED), ST_OK);
    ck_assert_int_eq(append(w, 3, 0, RESULT_EOS), ST_OK);
    results_close(w);
    part[1] = mem_strdup(suite_fresh("b.h5"));
    ck_assert_int_eq(results_open(part[1], RESULTS_NEW, &setup, &w), ST_OK);
    ck_assert_int_eq(append(w, 5, 0, RESULT_ABORTED), ST_OK);
    ck_assert_int_eq(append(w, 7, 0, RESULT_EOS), ST_OK);
    ck_assert_int_eq(append(w, 9, 0, RESULT_EOS), ST_OK);
    results_close(w);
    snprintf(all, sizeof all, "%s", suite_fresh("grown.h5"));
    ck_assert_int_eq(merge(all, 0, 2, part, &m), ST_OK);
    ck_assert(m.rows == QUESTIONS / 2 + 5 && m.done == m.rows - 2 && m.attempts == 3 && !m.complete);
    struct results *r = load_ok(all);
    ck_assert(r->complete == 0 && r->attempt == 3);
    ck_assert_str_eq(results_attr_str(r, "attempt_2_topology"), "pp9");
    ck_assert_int_eq(int_attr(r, "part_2_first_attempt"), 3);
    for (size_t i = 0; i < r->n; i++) {
        const struct result_row *row = &r->row[i];
        int odd = row->index % 2 == 1;
        ck_assert_int_eq(row->attempt, !odd ? 1 : row->index <= 3 ? 2 : 3);
        check_row(row);
    }
    results_free(r);
    /* merged again with another part: what the first merge kept is kept under the part's number */
    const char *third[2] = {make_part("c.h5", &setup, 11, 12, "pp3"), all};
    snprintf(again, sizeof again, "%s", suite_fresh("again.h5"));
    ck_assert_int_eq(merge(again, 0, 2, third, &m), ST_OK);
    r = load_ok(again);
    ck_assert(r->attempt == 4 && int_attr(r, "parts") == 2 && int_attr(r, "part_2_parts") == 2);
    ck_assert_str_eq(results_attr_str(r, "part_2_part_1_file"), part[0]);
    ck_assert_str_eq(results_attr_str(r, "attempt_3_topology"), "pp9");
    results_free(r);
    /* the rest is done by a run that goes on with it */
    ck_assert_int_eq(results_open(again, RESULTS_RESUME, &setup, &w), ST_OK);
    ck_assert_int_eq(results_attempt(w), 5);
    for (int64_t i = 0; i < QUESTIONS; i++)
        if (!results_done(w, i)) ck_assert_int_eq(append(w, i, 0, stop_of(i)), ST_OK);
    ck_assert_int_eq(results_finish(w, 1, NULL), ST_OK);
    results_close(w);
    r = load_ok(again);
    ck_assert(r->complete == 1 && r->n == QUESTIONS);
    for (size_t i = 0; i < r->n; i++) check_row(&r->row[i]);
    snprintf(key, sizeof key, "part_1_rows");
    ck_assert_int_eq(int_attr(r, key), 2);
    results_free(r);
    free_parts(part, 2);
    free_parts(third, 1);
}
END_TEST

static void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

/* nothing is written, and the message names file, field, values and remedy */
START_TEST(what_does_not_belong_together_is_refused)
{
    static const struct results_setup other = {"beef4567", QUESTIONS, BLOCK, NULL, 0, 0, 0},
                                      longer = {"deef4567", QUESTIONS + 1, BLOCK, NULL, 0, 0, 0},
                                      wider = {"eeef4567", QUESTIONS, BLOCK + 1, NULL, 0, 0, 0};
    const char *a = make_part("ra.h5", &setup, 0, 2, "pp1"), *b = make_part("rb.h5", &setup, 1, 2, "pp1"),
               *twice = make_part("rc.h5", &setup, 3, 20, "pp1"), *hash = make_part("rd.h5", &other, 1, 2, "pp1"),
               *more = make_part("re.h5", &longer, 1, 2, "pp1"), *wide = make_part("rf.h5", &wider, 1, 2, "pp1");
    const char *text = mem_strdup(suite_tmp("rg.h5")), *out = mem_strdup(suite_fresh("rout.h5"));
    put_file(text, "not HDF5");
    const struct {
        const char *part[3];
        enum status st;
        const char *says[4];
    } cases[] = {
        {{a, b, twice},
         ST_E_CONFIG,
         {"rc.h5: requests/index 3 (attempt 1, eos) is in", "rb.h5", "name each part once", ""}},
        {{a, a, b}, ST_E_CONFIG, {"ra.h5", "requests/index 0", "name each part once", ""}},
        {{a, hash, b},
         ST_E_CONFIG,
         {"rd.h5: config_hash is beef4567, that of", "is cafe0123", "--max-new is 40 in",
          "; merge parts of one run only"}},
        {{a, more, b}, ST_E_CONFIG, {"re.h5", "the number of questions is 24 in", "and 25 in", "--shard"}},
        {{a, wide, b}, ST_E_CONFIG, {"rf.h5", "--block is 8 in", "and 9 in", "merge parts"}},
        {{a, b, "/nonexistent/x.h5"}, ST_E_FILE, {"/nonexistent/x.h5: cannot open", "", "", ""}},
        {{text, a, b}, ST_E_FORMAT, {"rg.h5: not a whole HDF5 file", "", "", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct results_made m = {-1, -1, -1, -1, -1};
        ck_assert_msg(merge(out, 0, 3, cases[i].part, &m) == cases[i].st, "case %zu: %s", i, err_last());
        for (int k = 0; k < 4; k++)
            ck_assert_msg(strstr(err_last(), cases[i].says[k]) != NULL, "case %zu: %s lacks '%s'", i, err_last(),
                          cases[i].says[k]);
        ck_assert_int_eq(m.rows, -1);
        ck_assert_msg(access(out, F_OK) != 0 && access(journal_of(out), F_OK) != 0, "case %zu left a file", i);
    }
    /* file and journal, the one named for the other */
    struct results_made m;
    ck_assert_int_eq(merge(out, 0, 2, (const char *const[]){a, journal_of(b)}, &m), ST_E_FORMAT);
    ck_assert_msg(strstr(err_last(), "rb.h5.jsonl: the journal of results") && strstr(err_last(), "take the .h5 file"),
                  "%s", err_last());
    ck_assert_int_eq(results_rebuild_as(a, out, 0, &m), ST_E_FORMAT);
    ck_assert_msg(strstr(err_last(), "ra.h5: an HDF5 file") && strstr(err_last(), "ra.h5.jsonl"), "%s", err_last());
    ck_assert_int_ne(access(out, F_OK), 0);
    const char *const all[] = {a, b, twice, hash, more, wide, text, out};
    free_parts((const char **)(uintptr_t)all, 8);
}
END_TEST

/* the same rules for merge and rebuild: never over what is not ours, over results with force only */
START_TEST(outputs_that_are_there_are_kept)
{
    const char *part[2] = {make_part("ka.h5", &setup, 0, 2, "pp1"), make_part("kb.h5", &setup, 1, 2, "pp1")};
    char journal[700], out[600];
    snprintf(journal, sizeof journal, "%s", journal_of(part[0]));
    enum { TEXT, FOREIGN_H5, RESULTS, OTHER_JOURNAL, FOLDER, KINDS };
    for (int kind = 0; kind < KINDS; kind++)
        for (int force = 0; force < 2; force++)
            for (int rebuild = 0; rebuild < 2; rebuild++) {
                struct results_made m;
                struct results_writer *w;
                struct h5 *f;
                snprintf(out, sizeof out, "%s", suite_fresh("kout.h5"));
                rmdir(out);
                if (kind == TEXT) put_file(out, "a letter");
                if (kind == FOLDER) ck_assert_int_eq(mkdir(out, 0777), 0);
                if (kind == OTHER_JOURNAL) put_file(journal_of(out), "a diary\n");
                if (kind == FOREIGN_H5) {
                    ck_assert_int_eq(h5_create(out, 1, &f), ST_OK);
                    ck_assert_int_eq(h5_set_str(f, "/", "schema", "pdflash-prompts"), ST_OK);
                    ck_assert_int_eq(h5_flush(f), ST_OK);
                    h5_close(f);
                }
                if (kind == RESULTS) {
                    ck_assert_int_eq(results_open(out, RESULTS_NEW, &setup, &w), ST_OK);
                    ck_assert_int_eq(append(w, 5, 0, RESULT_LENGTH), ST_OK);
                    results_close(w);
                }
                enum status st = rebuild ? results_rebuild_as(journal, out, force, &m) : merge(out, force, 2, part, &m);
                int ok = kind == RESULTS && force;
                ck_assert_msg(st == (ok ? ST_OK : ST_E_FILE), "kind %d force %d rebuild %d: %s", kind, force, rebuild,
                              err_last());
                if (!ok) {
                    ck_assert_msg(strstr(err_last(), "another") != NULL, "%s", err_last());
                    continue;
                }
                struct results *r = load_ok(out);
                ck_assert_uint_eq(r->n, rebuild ? QUESTIONS / 2 : QUESTIONS);
                results_free(r);
                /* the old journal is gone: what resumes has the new rows only */
                ck_assert_int_eq(results_open(out, RESULTS_RESUME, &setup, &w), ST_OK);
                ck_assert_int_eq(results_done(w, 5), !rebuild);
                results_close(w);
            }
    struct results_made m;
    ck_assert_int_eq(merge(part[0], 1, 2, part, &m), ST_E_FILE);
    ck_assert_ptr_nonnull(strstr(err_last(), "is a part too"));
    ck_assert_int_eq(results_rebuild_as(journal, journal, 1, &m), ST_E_FILE);
    ck_assert_int_eq(results_rebuild_as("/nonexistent/j", out, 1, &m), ST_E_FILE);
    free_parts(part, 2);
}
END_TEST

START_TEST(a_living_writer_is_left_alone)
{
    const char *part[2] = {make_part("la.h5", &setup, 0, 2, "pp1"), make_part("lb.h5", &setup, 1, 2, "pp1")};
    struct results_made m;
    struct results_writer *w;
    char out[600], other[600];
    snprintf(out, sizeof out, "%s", suite_fresh("lout.h5"));
    ck_assert_int_eq(results_open(out, RESULTS_NEW, &setup, &w), ST_OK);
    ck_assert_int_eq(append(w, 5, 0, RESULT_EOS), ST_OK);
    ck_assert_int_eq(merge(out, 1, 2, part, &m), ST_E_FILE);
    ck_assert_ptr_nonnull(strstr(err_last(), "another process"));
    snprintf(other, sizeof other, "%s", suite_fresh("lout2.h5"));
    ck_assert_int_eq(results_rebuild_as(journal_of(out), other, 0, &m), ST_E_FILE);
    ck_assert_ptr_nonnull(strstr(err_last(), "another process"));
    ck_assert_int_ne(access(other, F_OK), 0);
    ck_assert_int_eq(append(w, 6, 0, RESULT_EOS), ST_OK); /* it goes on */
    /* but its file may be a part at any moment: rows committed so far */
    const char *const one[] = {out};
    ck_assert_int_eq(merge(other, 0, 1, one, &m), ST_OK);
    ck_assert_int_eq(m.rows, 2);
    results_close(w);
    free_parts(part, 2);
}
END_TEST

/* killed at any moment, the place holds the old results or the new ones, and a resume has the rows of just those */
START_TEST(a_kill_leaves_the_old_file_or_the_new_one)
{
    static const struct results_setup other = {"beef4567", QUESTIONS, BLOCK, NULL, 0, 0, 0};
    const char *part[2] = {make_part("xa.h5", &setup, 0, 2, "pp1"), make_part("xb.h5", &setup, 1, 2, "pp1")};
    char out[600];
    int old = 0, new = 0;
    for (int i = 0; i < suite_some(24, 3); i++) {
        snprintf(out, sizeof out, "%s", suite_fresh("xout.h5"));
        struct results_writer *w;
        ck_assert_int_eq(results_open(out, RESULTS_NEW, &other, &w), ST_OK);
        ck_assert_int_eq(append(w, 5, 0, RESULT_LENGTH), ST_OK);
        results_close(w);
        pid_t child = fork();
        if (child == 0) {
            struct results_made m;
            _exit(merge(out, 1, 2, part, &m) == ST_OK ? 0 : 1);
        }
        usleep((useconds_t)(rng_u64(3, (uint64_t)i, 0) % 60000));
        kill(child, SIGKILL);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        struct results *r = load_ok(out);
        int is_new = strcmp(r->config_hash, setup.config_hash) == 0;
        ck_assert_uint_eq(r->n, is_new ? QUESTIONS : 1);
        results_free(r);
        ck_assert_int_eq(results_open(out, RESULTS_RESUME, is_new ? &setup : &other, &w), ST_OK);
        ck_assert_int_eq(results_done_count(w), is_new ? QUESTIONS : 1);
        results_close(w);
        struct results_made m;
        if (i % 4 == 0) ck_assert_int_eq(merge(out, 1, 2, part, &m), ST_OK); /* and it can be done again */
        new += is_new;
        old += !is_new;
    }
    ck_assert_msg(old > 0, "no kill came before the end (%d after it)", new);
    free_parts(part, 2);
}
END_TEST

/* ---- rebuild --------------------------------------------------------------------------------------- */

static char *slurp(const char *path, size_t *n_p)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *p = mem_alloc((size_t)n + 1, 1, "a file");
    ck_assert_uint_eq(fread(p, 1, (size_t)n, f), (size_t)n);
    fclose(f);
    *n_p = (size_t)n;
    return p;
}

/* whatever the byte at which a journal ends, the whole lines before it are there, and it is not touched */
START_TEST(a_journal_cut_anywhere_gives_its_whole_lines)
{
    const char *path = make_part("cut.h5", &setup, 0, 1, "pp1");
    char cut[600], out[600];
    size_t n, whole;
    char *text = slurp(journal_of(path), &n);
    snprintf(cut, sizeof cut, "%s", suite_tmp("some.journal"));
    for (int i = 0; i < suite_some(60, 6); i++) {
        size_t at = i == 0 ? 0 : i == 1 ? 1 : i == 2 ? n - 1 : i == 3 ? n : rng_u64(5, (uint64_t)i, 0) % (n + 1);
        int64_t rows = 0, lines = 0;
        FILE *f = fopen(cut, "wb");
        ck_assert_uint_eq(fwrite(text, 1, at, f), at);
        fclose(f);
        for (const char *p = text, *e; (e = memchr(p, '\n', (size_t)(text + at - p))) != NULL; p = e + 1) {
            lines++;
            rows += strncmp(p, "{\"kind\":\"row\"", 13) == 0;
        }
        snprintf(out, sizeof out, "%s", suite_fresh("cut-out.h5"));
        struct results_made m;
        enum status st = results_rebuild_as(cut, out, 0, &m);
        mem_free(slurp(cut, &whole));
        ck_assert_uint_eq(whole, at);
        if (lines == 0) {
            ck_assert_int_eq(st, ST_E_FORMAT);
            ck_assert(access(out, F_OK) != 0 && access(journal_of(out), F_OK) != 0);
            continue;
        }
        ck_assert_msg(st == ST_OK, "cut at %zu: %s", at, err_last());
        ck_assert_int_eq(m.rows, rows);
        ck_assert_int_eq(m.complete, m.done == m.questions); /* by its rows, with or without the last line */
        struct results *r = load_ok(out);
        ck_assert_int_eq((int64_t)r->n, rows);
        for (size_t k = 0; k < r->n; k++) check_row(&r->row[k]);
        results_free(r);
        ck_assert_int_ne(access(journal_of(out), F_OK), 0); /* none is left behind */
    }
    mem_free(text);
    free_parts(&path, 1);
}
END_TEST

/* the common case: beside its journal, where the damaged file is replaced with force only */
START_TEST(a_damaged_file_is_made_again_beside_its_journal)
{
    const char *path = make_part("broken.h5", &setup, 0, 1, "pp1"), *one = make_part("fine.h5", &setup, 0, 1, "pp1");
    struct results_made m;
    ck_assert_int_eq(truncate(path, 2000), 0);
    char journal[700];
    snprintf(journal, sizeof journal, "%s", journal_of(path));
    ck_assert_int_eq(results_rebuild_as(journal, path, 0, &m), ST_E_FILE);
    ck_assert_ptr_nonnull(strstr(err_last(), "--force"));
    ck_assert_int_eq(results_rebuild_as(journal, path, 1, &m), ST_OK);
    check_whole(path, one);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(results_rebuild_as(journal, path, 0, &m), ST_OK);
    check_whole(path, one);
    /* without a journal of its own beside it a damaged file is nobody's */
    ck_assert_int_eq(truncate(one, 2000), 0);
    ck_assert_int_eq(unlink(journal_of(one)), 0);
    ck_assert_int_eq(results_rebuild_as(journal, one, 1, &m), ST_E_FILE);
    free_parts(&path, 1);
    free_parts(&one, 1);
}
END_TEST

/* the last row of a killed part may be in its journal only: said with what to do, and then it is there */
START_TEST(rows_that_only_a_journal_has_are_told_of)
{
    const char *path = make_part("behind.h5", &setup, 0, 1, "pp1");
    struct results_made m;
    char old[600], out[600], log[600];
    struct results_writer *w;
    snprintf(old, sizeof old, "%s", suite_fresh("behind-old.h5"));
    snprintf(out, sizeof out, "%s", suite_fresh("behind-out.h5"));
    snprintf(log, sizeof log, "%s", suite_tmp("behind.log"));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(unlink(journal_of(path)), 0);
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &setup, &w), ST_OK);
    ck_assert_int_eq(append(w, 0, 0, RESULT_EOS), ST_OK);
    ck_assert_int_eq(link(path, old), 0);
    ck_assert_int_eq(append(w, 1, 0, RESULT_EOS), ST_OK);
    results_close(w);
    ck_assert_int_eq(rename(old, path), 0);
    for (int again = 0; again < 2; again++) {
        FILE *f = fopen(log, "w+");
        size_t n;
        log_to(fileno(f));
        ck_assert_int_eq(merge(out, again, 1, &path, &m), ST_OK);
        log_to(-1);
        fclose(f);
        char *said = slurp(log, &n);
        ck_assert_int_eq(m.rows, 1 + again);
        ck_assert_msg(!again == (strstr(said, "1 finished rows are in its journal only") != NULL), "%s", said);
        mem_free(said);
        if (!again) ck_assert_int_eq(results_rebuild_as(journal_of(path), path, 1, &m), ST_OK);
    }
    free_parts(&path, 1);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "merge", 60);
    SUITE_TEST(tc, parts_in_any_order_give_the_rows_of_one_run);
    SUITE_TEST(tc, attempts_go_on_and_the_merged_file_can_be_continued);
    SUITE_TEST(tc, what_does_not_belong_together_is_refused);
    SUITE_TEST(tc, outputs_that_are_there_are_kept);
    SUITE_TEST(tc, a_living_writer_is_left_alone);
    SUITE_TEST(tc, a_kill_leaves_the_old_file_or_the_new_one);
    SUITE_TEST(tc, a_journal_cut_anywhere_gives_its_whole_lines);
    SUITE_TEST(tc, a_damaged_file_is_made_again_beside_its_journal);
    SUITE_TEST(tc, rows_that_only_a_journal_has_are_told_of);
}

int main(void)
{
    return suite_main_serial();
}
