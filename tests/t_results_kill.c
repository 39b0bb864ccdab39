/* kill -9 at any moment: the results file opens and holds every row that was committed */
#include "suite.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rng.h"
#include "data/results.h"
#include "results_rows.h"

const char *const suite_name = "results-kill";

enum { UNTOUCHED, BEGUN, DONE }; /* what a question's row may be: absent; absent or there; there */
#define NOBODY_KILLS 1000000000L

static void tell(int fd, int64_t index, int what)
{
    const int64_t word = index * 4 + what;
    if (write(fd, &word, sizeof word) != sizeof word) _exit(7);
}

/* writes every missing row in an order of its own; tells when an append begins and when it has returned */
static void writer_process(const char *path, uint64_t order, int fd)
{
    struct results_writer *w;
    if (results_open(path, RESULTS_RESUME, &setup, &w) != ST_OK) _exit(9);
    for (uint64_t i = 0; i < QUESTIONS; i++) {
        int64_t index = (int64_t)((i * 7 + order) % QUESTIONS);
        if (results_done(w, index)) continue;
        tell(fd, index, BEGUN);
        if (append(w, index, 0, stop_of(index)) != ST_OK) _exit(8);
        tell(fd, index, DONE);
    }
    if (results_finish(w, 1, NULL) != ST_OK) _exit(6);
    _exit(0);
}

static int hear(int fd, uint8_t *told)
{
    int64_t word;
    if (read(fd, &word, sizeof word) != sizeof word) return 0;
    told[word / 4] = (uint8_t)(word % 4);
    return 1;
}

/* runs a writer, hears n words of it and kills it us microseconds later; notes what it told; 1: it was killed */
static int run_and_kill(const char *path, uint64_t order, int n, long us, uint8_t *told)
{
    int fd[2], state;
    ck_assert_int_eq(pipe(fd), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(fd[0]);
        writer_process(path, order, fd[1]);
    }
    close(fd[1]);
    for (int i = 0; i < n; i++)
        if (!hear(fd[0], told)) break;
    if (us < NOBODY_KILLS) {
        nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
        kill(pid, SIGKILL);
    }
    while (hear(fd[0], told)) continue;
    close(fd[0]);
    ck_assert_int_eq(waitpid(pid, &state, 0), pid);
    if (WIFEXITED(state)) ck_assert_int_eq(WEXITSTATUS(state), 0);
    return WIFSIGNALED(state);
}

/* how long a whole run takes here, microseconds: the disk decides */
static long time_of_a_run(const char *path)
{
    struct timespec a, b;
    uint8_t told[QUESTIONS] = {0};
    clock_gettime(CLOCK_MONOTONIC, &a);
    ck_assert_int_eq(run_and_kill(path, 0, 0, NOBODY_KILLS, told), 0);
    clock_gettime(CLOCK_MONOTONIC, &b);
    for (int i = 0; i < QUESTIONS; i++) ck_assert_int_eq(told[i], DONE);
    return (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000;
}

/* all that was promised is there, nothing that was not begun, nothing twice; what is there may not vanish */
static size_t check_survivors(const char *path, uint8_t *told, int *complete)
{
    struct results *r = load_ok(path);
    size_t promised = 0, n = r->n;
    for (int i = 0; i < QUESTIONS; i++) promised += told[i] == DONE;
    ck_assert_int_eq(r->rows_stored, (int64_t)r->n);
    for (size_t i = 0; i < n; i++) {
        uint8_t *t = &told[r->row[i].index];
        check_row(&r->row[i]);
        ck_assert_int_ne(*t, UNTOUCHED);
        promised -= *t == DONE;
        *t = DONE;
    }
    ck_assert_msg(promised == 0, "%zu committed rows are lost", promised);
    *complete = r->complete;
    results_free(r);
    return n;
}

START_TEST(kill_at_any_moment_keeps_every_committed_row)
{
    const char *path = suite_fresh("kill.h5");
    uint8_t told[QUESTIONS] = {0};
    int kills = 0, rounds = 0, completed = 0;
    size_t rows_seen = 0;
    log_mute(1);
    long whole = time_of_a_run(path);
    suite_fresh("kill.h5");
    for (; kills < 40 && rounds < 400; rounds++) {
        int complete = 0;
        /* a third while it starts or resumes, the rest within the next rows */
        uint64_t seed = (uint64_t)getpid(), at = 3 * (uint64_t)rounds;
        int words = (int)(rng_u64(77, seed, at) % 15) - 5;
        long us = (long)(rng_unit(77, seed, at + 1) * (double)whole / (words <= 0 ? 8 : 12));
        kills += run_and_kill(path, rng_u64(5, seed, at + 2), words, us, told);
        if (access(path, F_OK) != 0) { /* killed before the file was there: nothing may have been promised */
            for (int i = 0; i < QUESTIONS; i++) ck_assert_int_eq(told[i], UNTOUCHED);
            continue;
        }
        rows_seen += check_survivors(path, told, &complete);
        if (!complete) continue;
        int64_t rows = 0;
        completed++;
        ck_assert_int_eq(results_rebuild(path, &rows), ST_OK);
        ck_assert_int_eq(rows, QUESTIONS);
        suite_fresh("kill.h5");
        memset(told, 0, sizeof told);
    }
    printf("results: a run takes %.3f s; %d kills in %d starts, %d runs completed, %zu rows checked\n",
           (double)whole / 1e6, kills, rounds, completed, rows_seen);
    ck_assert_int_ge(kills, 20);
    ck_assert_uint_gt(rows_seen, 20);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "kill", 300);
    SUITE_TEST(tc, kill_at_any_moment_keeps_every_committed_row);
}

int main(void)
{
    return suite_main_serial();
}
