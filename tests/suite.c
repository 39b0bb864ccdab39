#include "suite.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static MPI_Comm comm = MPI_COMM_NULL;
static int rank, size = 1;

static int run_suite(int nofork)
{
    Suite *s = suite_create(suite_name);
    suite_fill(s);
    SRunner *sr = srunner_create(s);
    if (nofork) { /* each verdict as it falls: a rank that fails alone may never come to Check's summary */
        srunner_set_fork_status(sr, CK_NOFORK);
        setvbuf(stdout, NULL, _IOLBF, 0);
        srunner_set_log(sr, "-");
    }
    srunner_run_all(sr, rank == 0 ? CK_NORMAL : CK_SILENT);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed;
}

int suite_main_serial(void)
{
    return run_suite(0) ? EXIT_FAILURE : EXIT_SUCCESS;
}

int suite_main_mpi(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int failed = run_suite(1), any = 0;
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, comm);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return any ? EXIT_FAILURE : EXIT_SUCCESS;
}

int suite_some(int all, int few)
{
    return getenv("VALGRIND") && few < all ? few : all;
}

int suite_all(int ok)
{
    int all = ok != 0;
    if (comm != MPI_COMM_NULL) {
        int mine = all;
        MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, comm);
    }
    return all;
}

int suite_rank(void)
{
    return rank;
}

int suite_size(void)
{
    return size;
}

const char *suite_path(const char *relative)
{
    static char path[8][512];
    static int turn;
    char *p = path[turn++ % 8];
    const char *root = getenv("PDFLASH_ROOT");
    snprintf(p, sizeof path[0], "%s/%s", root ? root : ".", relative);
    return p;
}

const char *suite_tmp(const char *name)
{
    static char path[8][512];
    static int turn;
    char *p = path[turn++ % 8];
    const char *dir = getenv("TEST_TMP");
    mkdir(dir ? dir : "build/tmp", 0777);
    snprintf(p, sizeof path[0], "%s/%s-%s", dir ? dir : "build/tmp", suite_name, name);
    return p;
}

const char *suite_fresh(const char *name)
{
    static char journal[600];
    const char *path = suite_tmp(name);
    snprintf(journal, sizeof journal, "%s.jsonl", path);
    unlink(path);
    unlink(journal);
    return path;
}
