/* suite - the frame of every test program: Check, serial or under mpirun.
 *
 * Serial programs (t_*.c) let Check fork, so a crash is contained. Programs that communicate (mpi_*.c)
 * start MPI once and run without fork; a verdict is combined over ranks before it is asserted, because a
 * rank that fails alone leaves the others in a collective for ever. */
#ifndef PDFLASH_TESTS_SUITE_H
#define PDFLASH_TESTS_SUITE_H

#include <check.h>

/* Each test program defines this: add cases to the suite. */
void suite_fill(Suite *s);
extern const char *const suite_name;

/* suite_main_serial / suite_main_mpi - run the program's suite; the return value is the exit code. */
int suite_main_serial(void);
int suite_main_mpi(int *argc, char ***argv);

/* suite_all - logical AND of ok over all ranks (serial: ok). Collective in MPI programs. */
int suite_all(int ok);
int suite_rank(void);
int suite_size(void);

/* suite_path - path of a file shipped with the project, e.g. "inputs/k3-nano"; tests run from the
 * project's root. The result lives until the next call but seven. */
const char *suite_path(const char *relative);
/* suite_tmp - path of a scratch file private to this program, removed by the runner. */
const char *suite_tmp(const char *name);
/* suite_fresh - the same, of a result file: neither it nor its journal is there. */
const char *suite_fresh(const char *name);

/* suite_some - how many of a test's repetitions to run: all of them, or only the first few under valgrind (VALGRIND=1),
 * where every instruction costs thirty. Each test still runs; tables put the telling rows first. */
int suite_some(int all, int few);

#define SUITE_TEST(tc, fn) tcase_add_test(tc, fn)
#define SUITE_CASE(s, name_, seconds)                 \
    ({                                                \
        TCase *tc_ = tcase_create(name_);             \
        tcase_set_timeout(tc_, seconds);              \
        suite_add_tcase(s, tc_);                      \
        tc_;                                          \
    })

#endif
