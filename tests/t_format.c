/* docs/FORMAT.md against files: every object and field is described with its type, and nothing else is; every root
 * attribute that the data modules write, too. (Those of a run: tests/e2e/61_merge.sh.) */
#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "data/prompts.h"
#include "results_rows.h"

const char *const suite_name = "format";

enum { LINES_MAX = 400 };
struct page {
    char *text;
    char *line[LINES_MAX]; /* of tables: "| `" ... */
    int n;
    char used[LINES_MAX];
};

/* the tables between two headings */
static void read_page(struct page *p, const char *from, const char *to)
{
    FILE *f = fopen("docs/FORMAT.md", "rb");
    ck_assert_ptr_nonnull(f);
    memset(p, 0, sizeof *p);
    p->text = mem_alloc(1 << 17, 1, "a page");
    size_t n = fread(p->text, 1, (1 << 17) - 1, f);
    ck_assert_uint_lt(n, (1 << 17) - 1);
    fclose(f);
    char *at = strstr(p->text, from), *end = strstr(p->text, to);
    ck_assert_msg(at && end && at < end, "headings %s and %s", from, to);
    *end = 0;
    for (char *s = strtok(at, "\n"); s; s = strtok(NULL, "\n"))
        if (strncmp(s, "| `", 3) == 0) {
            ck_assert_int_lt(p->n, LINES_MAX);
            p->line[p->n++] = s;
        }
    ck_assert_int_gt(p->n, 10);
}

/* the line whose first cell is or lists `name`; its second cell must be type, its third hold shape */
static void check_described(struct page *p, const char *file, const char *name, const char *type, const char *shape)
{
    char quoted[160];
    snprintf(quoted, sizeof quoted, "`%s`", name);
    for (int i = 0; i < p->n; i++) {
        const char *bar = strchr(p->line[i] + 1, '|'), *at = strstr(p->line[i], quoted);
        if (!at || at > bar) continue;
        const char *next = strchr(bar + 1, '|');
        ck_assert_msg(next && (size_t)(next - bar) == strlen(type) + 3 && strncmp(bar + 2, type, strlen(type)) == 0,
                      "%s: %s is of type %s, the page says:%.*s", file, name, type, (int)(next - bar - 1), bar + 1);
        const char *last = next + 1 + strcspn(next + 1, "|");
        if (shape) {
            char cell[64];
            snprintf(cell, sizeof cell, "%.*s", (int)(last - next - 1), next + 1);
            int fixed = strstr(cell, "fixed") != NULL, growing = strchr(cell, '[') && !fixed;
            ck_assert_msg(strcmp(shape, "") == 0        ? !fixed && !growing
                          : strcmp(shape, "fixed") == 0 ? fixed
                                                        : growing,
                          "%s: %s: shape is '%s', the page says%s", file, name, shape, cell);
        }
        p->used[i] = 1;
        return;
    }
    ck_abort_msg("%s: docs/FORMAT.md does not describe %s (%s)", file, name, type);
}

static void check_objects(struct page *p, const char *path)
{
    struct h5 *f;
    struct h5_object *o;
    size_t n;
    ck_assert_int_eq(h5_open(path, 0, &f), ST_OK);
    ck_assert_int_eq(h5_list(f, &o, &n), ST_OK);
    ck_assert_uint_ge(n, 9);
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_le(o[i].rank, 1);
        check_described(p, path, o[i].name, o[i].type, o[i].rank < 0 ? "" : o[i].grows ? "[" : "fixed");
    }
    mem_free(o);
    h5_close(f);
    for (int i = 0; i < p->n; i++)
        ck_assert_msg(p->used[i] || strncmp(p->line[i], "| `/", 4) != 0, "%s has no such thing: %.60s", path,
                      p->line[i]);
}

static void check_attributes(struct page *p, const char *path)
{
    struct h5 *f;
    struct h5_attr *a;
    size_t n;
    ck_assert_int_eq(h5_open(path, 0, &f), ST_OK);
    ck_assert_int_eq(h5_list_attrs(f, "/", &a, &n), ST_OK);
    for (size_t i = 0; i < n; i++) {
        char name[3 * H5_MAX_NAME];
        int number, end = 0;
        snprintf(name, sizeof name, "@%s", a[i].name);
        if (sscanf(name, "@part_%d_%n", &number, &end) == 1 && end) {
            char part[2 * H5_MAX_NAME];
            snprintf(part, sizeof part, "@part_N_%s", name + end);
            snprintf(name, sizeof name, "%s", part);
        }
        if (sscanf(name, "@attempt_%d_%n", &number, &end) == 1 && end > 9)
            snprintf(name, sizeof name, "@attempt_N_NAME");
        check_described(p, path, name,
                        a[i].kind == H5_KIND_STR   ? "text"
                        : a[i].kind == H5_KIND_I64 ? "int64"
                                                   : "float64",
                        NULL);
    }
    h5_free_attrs(a, n);
    h5_close(f);
}

START_TEST(prompts_are_as_described)
{
    static const int32_t id[] = {5, 6, 7};
    const struct prompts_meta meta = {"k3-xtml/1",
                                      "off",
                                      1,
                                      "shots.jsonl",
                                      "77",
                                      "q.jsonl",
                                      "0123456789012345678901234567890123456789012345678901234567890123",
                                      "openai",
                                      0};
    const struct prompts_row row = {.question = "q", .gold = "#### 1", .source_row = 3, .id = id, .n_ids = 3};
    const char *path = suite_tmp("described-prompts.h5");
    struct page p;
    ck_assert_int_eq(prompts_write(path, 1, &meta, &row, 1), ST_OK);
    read_page(&p, "## prompts.h5", "## results.h5\n");
    check_objects(&p, path);
    check_attributes(&p, path);
    for (int i = 0; i < p.n; i++) ck_assert_msg(p.used[i], "%s has no %.60s", path, p.line[i]);
    mem_free(p.text);
}
END_TEST

static void make_part(const char *path, int64_t index)
{
    struct results_writer *w;
    const struct result_memory m = {(int32_t)index, "decode", "h", 1, 2, 3, 4, 5};
    ck_assert_int_eq(results_open(path, RESULTS_NEW, &setup, &w), ST_OK);
    ck_assert_int_eq(append(w, index, 0, stop_of(index)), ST_OK);
    ck_assert_int_eq(results_attrs(w, &(struct result_attr){"attempt_1_topology", H5_KIND_STR, "pp1", 0, 0}, 1), ST_OK);
    ck_assert_int_eq(results_memory(w, &m, 1), ST_OK);
    const struct result_span span = {.rank = (int32_t)index, .role = "decode", .kind = "decode", .request = -1, .count = 2,
                                     .begin = 1, .end = 2, .busy = 0.5};
    ck_assert_int_eq(results_spans(w, &span, 1), ST_OK);
    ck_assert_int_eq(results_plan(w, index ? "{}" : "[]", NULL, 0), ST_OK);
    ck_assert_int_eq(results_finish(w, 1, NULL), ST_OK);
    results_close(w);
}

START_TEST(results_are_as_described)
{
    char one[600], two[600], all[600];
    const char *const part[] = {one, two};
    struct results_made m;
    struct page p;
    snprintf(one, sizeof one, "%s", suite_fresh("described-1.h5"));
    snprintf(two, sizeof two, "%s", suite_fresh("described-2.h5"));
    snprintf(all, sizeof all, "%s", suite_fresh("described.h5"));
    make_part(one, 0);
    make_part(two, 1);
    ck_assert_int_eq(results_merge(all, 0, part, 2, NULL, 0, NULL, 0, &m), ST_OK);
    struct results *r = load_ok(all);
    ck_assert_uint_eq(r->n, 2);
    for (size_t i = 0; i < r->n; i++) check_row(&r->row[i]);
    ck_assert_uint_eq(r->n_spans, 2); /* of both parts, numbered on */
    for (int32_t i = 0; i < 2; i++) ck_assert(r->span[i].attempt == i + 1 && r->span[i].rank == i && r->span[i].count == 2);
    results_free(r);
    read_page(&p, "## results.h5\n", "## results.h5.jsonl");
    check_objects(&p, one);
    check_attributes(&p, one);
    check_objects(&p, all);
    check_attributes(&p, all);
    mem_free(p.text);
}
END_TEST

/* the listing itself: whatever kind of thing is in a file is named with its type */
START_TEST(a_listing_names_everything)
{
    static const struct h5_field field[] = {
        {"a", H5_KIND_I8, 0, 0}, {"b_s", H5_KIND_STR, 8, 12}, {"c", H5_KIND_U64, 24, 0}};
    static const struct h5_table table = {field, 3, 32};
    static const struct {
        const char *name, *type;
        int rank, grows;
    } want[] = {{"/deep", "group", -1, 0},
                {"/deep/er", "group", -1, 0},
                {"/deep/er/table", "table", 1, 1},
                {"/deep/er/table.a", "int8", -1, 0},
                {"/deep/er/table.b_s", "char[12]", -1, 0},
                {"/deep/er/table.c", "uint64", -1, 0},
                {"/deep/matrix", "float32", 2, 0},
                {"/empty", "group", -1, 0},
                {"/flat", "float64", 1, 1},
                {"/scalar", "int32", 0, 0},
                {"/words", "text", 1, 1}};
    const char *path = suite_tmp("listing.h5");
    struct h5 *f;
    struct h5_object *o;
    size_t n;
    ck_assert_int_eq(h5_create(path, 1, &f), ST_OK);
    ck_assert_int_eq(h5_list(f, &o, &n), ST_OK);
    ck_assert_uint_eq(n, 0);
    mem_free(o);
    ck_assert_int_eq(h5_make_rows(f, "/deep/er/table", &table, 4), ST_OK);
    ck_assert_int_eq(h5_write(f, "/deep/matrix", H5_KIND_F32, 2, (int64_t[]){1, 2}, (float[]){1, 2}), ST_OK);
    ck_assert_int_eq(h5_group(f, "/empty"), ST_OK);
    ck_assert_int_eq(h5_make(f, "/flat", H5_KIND_F64, 0, 4), ST_OK);
    ck_assert_int_eq(h5_write(f, "/scalar", H5_KIND_I32, 0, NULL, &(int32_t){3}), ST_OK);
    ck_assert_int_eq(h5_make_str(f, "/words", 4), ST_OK);
    ck_assert_int_eq(h5_list(f, &o, &n), ST_OK);
    ck_assert_uint_eq(n, sizeof want / sizeof want[0]);
    for (size_t i = 0; i < n; i++) {
        ck_assert_str_eq(o[i].name, want[i].name);
        ck_assert_str_eq(o[i].type, want[i].type);
        ck_assert_msg(o[i].rank == want[i].rank && o[i].grows == want[i].grows, "%s", o[i].name);
    }
    mem_free(o);
    char name[H5_MAX_NAME];
    memset(name, 'x', sizeof name);
    name[0] = '/';
    name[sizeof name - 1] = 0;
    ck_assert_int_eq(h5_make_str(f, name, 4), ST_OK); /* 127 bytes: the longest that is listed */
    ck_assert_int_eq(h5_list(f, &o, &n), ST_OK);
    mem_free(o);
    h5_close(f);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "format", 30);
    SUITE_TEST(tc, a_listing_names_everything);
    SUITE_TEST(tc, prompts_are_as_described);
    SUITE_TEST(tc, results_are_as_described);
}

int main(void)
{
    return suite_main_serial();
}
