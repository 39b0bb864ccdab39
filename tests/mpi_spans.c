/* The spans of all ranks come together on one of them, in order, whatever each has. */
/* np: 1 2 5 */
#include "suite.h"

#include <mpi.h>
#include <string.h>

#include "base/buf.h"
#include "pd/spans.h"

const char *const suite_name = "mpi_spans";

/* rank r has r * 3 % 4 spans: one that has none, and none on some roots, too */
static int count_of(int rank)
{
    return rank * 3 % 4;
}

static int right(const struct span *all, size_t n, int size)
{
    size_t at = 0;
    for (int r = 0; r < size; r++)
        for (int i = 0; i < count_of(r); i++, at++)
            if (at >= n || all[at].rank != r || all[at].request != 100 * r + i || all[at].begin_s != i ||
                all[at].busy_s != 0.5 || all[at].kind != SPAN_SEND)
                return 0;
    return at == n;
}

START_TEST(spans_of_all_ranks_arrive_in_order)
{
    struct world w = {.rank = suite_rank(), .size = suite_size()};
    struct spans s;
    MPI_Comm_dup(MPI_COMM_WORLD, &w.all);
    for (int root = 0; root < w.size; root++) {
        struct span *all = NULL;
        size_t n = 0;
        int ok = spans_open(&s) == ST_OK;
        for (int i = 0; i < count_of(w.rank); i++) spans_add(&s, SPAN_SEND, 100 * w.rank + i, i, i + 0.5);
        ok = ok && spans_gather(&w, &s, root, &all, &n) == ST_OK;
        ok = ok && (w.rank == root ? right(all, n, w.size) : !all && n == 0);
        ck_assert_msg(suite_all(ok), "root %d", root);
        mem_free(all);
        spans_close(&s);
    }
    struct span *all = NULL;
    size_t n = 1;
    int ok = spans_gather(&w, NULL, 0, &all, &n) == ST_OK && n == 0; /* nobody records */
    ck_assert(suite_all(ok));
    mem_free(all);
    MPI_Comm_free(&w.all);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "spans", 60);
    SUITE_TEST(tc, spans_of_all_ranks_arrive_in_order);
}

int main(int argc, char **argv)
{
    return suite_main_mpi(&argc, &argv);
}
