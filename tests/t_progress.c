/* What a person sees of a run: the line of progress and its arithmetic, when it is due, the table at the end. */
#include "suite.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/progress.h"

const char *const suite_name = "progress";

#define UNKNOWN .prefill_work_s = NAN, .decode_work_s = NAN

START_TEST(lines_say_what_is_known)
{
    static const struct {
        struct progress_state s;
        double left; /* NaN: not known */
        const char *want;
    } cases[] = {
        {{.rows = 0, UNKNOWN}, 0, "0 of 0 rows, 0 decoding, 0 s"},
        {{.rows = 64, UNKNOWN}, NAN, "0 of 64 rows, 0 decoding, 0 s"},
        {{.rows = 64, .decoding = 8, .seconds = 30, UNKNOWN}, NAN, "0 of 64 rows, 8 decoding, 30 s"},
        {{.rows = 64, .decoding = 8, .tokens = 600, .seconds = 30, .prefill_work_s = 15, .decode_work_s = 7.5}, NAN,
         "0 of 64 rows, 8 decoding, 20 tokens/s, 30 s; at work: prefill 50 %, decode 25 %"},
        {{.rows = 64, .ended = 16, .decoding = 8, .tokens = 16000, .rounds = 100, .accepted = 450, .seconds = 80,
          UNKNOWN},
         240, "16 of 64 rows, 8 decoding, 12 rows/min, 200 tokens/s, accept length 5.50, 80 s, 4 min left"},
        /* earlier attempts: no part of the rate, none of what is left */
        {{.rows = 64, .before = 60, .seconds = 5, UNKNOWN}, NAN, "60 of 64 rows (60 before), 0 decoding, 5 s"},
        {{.rows = 64, .before = 60, .ended = 1, .decoding = 3, .tokens = 10, .seconds = 10, UNKNOWN}, 30,
         "61 of 64 rows (60 before), 3 decoding, 6 rows/min, 1.0 tokens/s, 10 s, 30 s left"},
        {{.rows = 64, .before = 64, .seconds = 5, UNKNOWN}, 0, "64 of 64 rows (64 before), 0 decoding, 5 s"},
        /* all failed: rows that end, without a token or a round */
        {{.rows = 4, .ended = 4, .failed = 4, .seconds = 2, UNKNOWN}, 0,
         "4 of 4 rows, 4 failed, 0 decoding, 120 rows/min, 2 s"},
        {{.rows = 4, .ended = 2, .failed = 2, .seconds = 2, UNKNOWN}, 2,
         "2 of 4 rows, 2 failed, 0 decoding, 60 rows/min, 2 s, 2 s left"},
        {{.rows = 9000, .ended = 4444, .failed = 4444, .seconds = 120, UNKNOWN}, 4556 / (4444 / 120.0),
         "4444 of 9000 rows, 4444 failed, 0 decoding, 2222 rows/min, 2 min, 2 min left"},
        {{.rows = 3, .ended = 3, .tokens = 30, .rounds = 20, .accepted = 0, .seconds = 12, UNKNOWN}, 0,
         "3 of 3 rows, 0 decoding, 15 rows/min, 2.5 tokens/s, accept length 1.00, 12 s"},
        /* a clock that has not moved, or backwards; more rows than there are; work of more than the time */
        {{.rows = 4, .ended = 1, .tokens = 5, .seconds = 0, .prefill_work_s = 1, .decode_work_s = 1}, NAN,
         "1 of 4 rows, 0 decoding, 0 s"},
        {{.rows = 4, .ended = 1, .tokens = 5, .seconds = -3, .prefill_work_s = 1, .decode_work_s = 1}, NAN,
         "1 of 4 rows, 0 decoding, unknown"},
        {{.rows = 4, .ended = 5, .seconds = 60, UNKNOWN}, 0, "5 of 4 rows, 0 decoding, 5 rows/min, 60 s"},
        {{.rows = 4, .ended = 1, .seconds = 10, .prefill_work_s = 11, .decode_work_s = -1}, 30,
         "1 of 4 rows, 0 decoding, 6 rows/min, 10 s, 30 s left; at work: prefill 100 %, decode 0 %"},
        {{.rows = 100000, .ended = 1, .seconds = 3600, UNKNOWN}, 3600.0 * 99999,
         "1 of 100000 rows, 0 decoding, 0.0167 rows/min, 60 min, 99999 h 00 min left"},
        {{.rows = 2147483647, .before = 1, .ended = 1, .tokens = INT64_MAX, .seconds = 1e-9, UNKNOWN}, 2.147483645,
         "tokens/s, 0 s, 2 s left"}, /* digits past the 17th are nobody's business */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[400];
        double left = progress_left(&cases[i].s);
        int as_wanted = isnan(cases[i].left) ? isnan(left) : fabs(left - cases[i].left) < 1e-6;
        ck_assert_msg(as_wanted, "case %zu: %g left", i, left);
        progress_text(&cases[i].s, line, sizeof line);
        if (cases[i].s.tokens == INT64_MAX) {
            ck_assert_ptr_nonnull(strstr(line, cases[i].want));
            continue;
        }
        ck_assert_msg(strcmp(line, cases[i].want) == 0, "case %zu: '%s'", i, line);
        for (size_t room = 1; room < sizeof line; room += 7) { /* cut, never past its room */
            char cut[sizeof line];
            memset(cut, '#', sizeof cut);
            progress_text(&cases[i].s, cut, room);
            ck_assert_uint_lt(strlen(cut), room);
            ck_assert(strncmp(cut, line, strlen(cut)) == 0 && (room == sizeof line || cut[room] == '#'));
        }
    }
}
END_TEST

START_TEST(durations_are_for_people)
{
    static const struct {
        double s;
        const char *want;
    } cases[] = {{0, "0 s"},          {0.4, "0 s"},        {0.6, "1 s"},           {119.4, "119 s"},
                 {119.5, "2 min"},    {150, "3 min"},      {7199, "120 min"},      {7199.6, "2 h 00 min"},
                 {7260, "2 h 01 min"}, {10770, "3 h 00 min"}, {86400, "24 h 00 min"}, {NAN, "unknown"},
                 {-1, "unknown"},     {INFINITY, "unknown"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char t[32];
        ck_assert_str_eq(progress_duration(cases[i].s, t, sizeof t), cases[i].want);
    }
}
END_TEST

/* times of calls and, as '1', those at which a line is due */
static void check_due(double interval, int columns, const double *at, const char *due)
{
    struct progress p;
    progress_begin(&p, interval, columns);
    for (size_t i = 0; due[i]; i++)
        ck_assert_msg(progress_due(&p, at[i]) == (due[i] == '1'), "interval %g: call %zu at %g", interval, i, at[i]);
}

START_TEST(lines_are_due_in_time)
{
    static const double second[] = {1000.0, 1000.4, 1000.9, 1001.0, 1001.1, 1001.9, 1002.0, 1002.01};
    static const double half[] = {5, 6, 20, 34.9, 35, 64, 65, 65.5};
    /* the clock is set to a day later: one line; to a while earlier: time stands still, then goes on */
    static const double forward[] = {0, 10, 86410, 86411, 86441};
    static const double backward[] = {1000, 1020, 20, 29.9, 30, 60.1};
    check_due(-1, 80, second, "00010010");
    check_due(-1, 0, half, "00001010");
    check_due(30, 80, half, "00001010");
    check_due(0, 80, second, "00000000");
    check_due(0, 0, half, "00000000");
    check_due(30, 0, forward, "00101");
    check_due(30, 0, backward, "000011");
    struct progress p;
    progress_begin(&p, 30, 0);
    for (size_t i = 0; i < 6; i++) progress_due(&p, backward[i]);
    ck_assert(fabs(p.elapsed_s - 60.1) < 1e-9);
}
END_TEST

/* what fn writes to standard error */
static void capture(void (*fn)(void), char *out, size_t room)
{
    const char *path = suite_tmp("stderr.txt");
    int saved = dup(STDERR_FILENO), fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    dup2(fd, STDERR_FILENO);
    fn();
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t n = pread(fd, out, room - 1, 0);
    ck_assert_int_ge(n, 0);
    out[n] = 0;
    close(fd);
}

static const struct progress_state some = {.rows = 9, .ended = 3, .decoding = 2, .tokens = 60, .seconds = 30, UNKNOWN};

static void show_plain(void)
{
    struct progress p;
    progress_begin(&p, -1, 0);
    progress_show(&p, &some);
    log_status("never without a terminal");
}

static void show_drawn(void)
{
    struct progress p;
    struct log_text early;
    log_compose(&early, LOG_WARN, "from a signal");
    log_terminal(1);
    progress_begin(&p, -1, 21);
    progress_show(&p, &some);
    log_info("a line");
    progress_show(&p, &some);
    log_put(&early);
    log_status("");
    log_terminal(0);
    log_info("as before");
}

START_TEST(a_terminal_keeps_one_line)
{
    char out[2048];
    capture(show_plain, out, sizeof out);
    ck_assert_str_eq(out, "[pdflash] info: 3 of 9 rows, 2 decoding, 6 rows/min, 2.0 tokens/s, 30 s, 60 s left\n");
    capture(show_drawn, out, sizeof out);
    ck_assert_str_eq(out, "3 of 9 rows, 2 decod\033[K\r"   /* one column less than there are: nothing wraps */
                          "[pdflash] info: a line\033[K\n" /* takes its place and wipes the rest */
                          "3 of 9 rows, 2 decod\033[K\r"
                          "[pdflash] warning: from a signal\033[K\n"
                          "\033[K\r"
                          "[pdflash] info: as before\n");
}
END_TEST

/* the answer in a process whose standard error is something else; TERM as given */
static int terminal_of(const char *path, const char *term)
{
    pid_t pid = fork();
    if (pid == 0) {
        int fd = path ? open(path, O_RDWR | O_NOCTTY) : -1, pipes[2] = {-1, -1};
        if (!path && pipe(pipes) == 0) fd = pipes[1];
        if (fd < 0) _exit(250);
        dup2(fd, STDERR_FILENO);
        if (term)
            setenv("TERM", term, 1);
        else
            unsetenv("TERM");
        int n = progress_terminal();
        _exit(n > 200 ? 200 : n);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

START_TEST(terminals_are_known)
{
    char slave[128];
    ck_assert_int_eq(terminal_of("/dev/null", "xterm"), 0);
    ck_assert_int_eq(terminal_of(NULL, "xterm"), 0); /* a pipe whose reader is no launcher */
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0) { /* a container without /dev/pts */
        printf("no pseudo-terminal on this machine: what a terminal looks like is not tested\n");
        return;
    }
    ck_assert(grantpt(master) == 0 && unlockpt(master) == 0 && ptsname_r(master, slave, sizeof slave) == 0);
    ck_assert_int_eq(terminal_of(slave, "xterm"), 80); /* its size is not known */
    ck_assert_int_eq(terminal_of(slave, "dumb"), 0);
    ck_assert_int_eq(terminal_of(slave, ""), 0);
    ck_assert_int_eq(terminal_of(slave, NULL), 0);
    close(master);
}
END_TEST

/* ---- the table ---- */

static void table(const struct progress_state *s, const struct rank_stats *r, int n, char *out, size_t room)
{
    FILE *f = fmemopen(out, room, "w");
    ck_assert_ptr_nonnull(f);
    progress_table(f, s, r, n);
    fclose(f);
}

static const char *line_of(const char *text, const char *begins, char *line, size_t n)
{
    const char *at = strstr(text, begins);
    snprintf(line, n, "%.*s", at ? (int)strcspn(at, "\n") : 0, at ? at : "");
    return line;
}

/* a run that is interrupted early has no figure of its first quarter */
START_TEST(memory_that_was_not_measured_is_not_zero)
{
    static const char head[] = "peak memory after a quarter of the requests and at the end: largest rank ";
    enum { MIB = 1048576 };
    static const struct {
        struct rank_stats r[2];
        const char *want;
    } cases[] = {
        {{{.rss_quarter = 10 * MIB, .rss_end = 20 * MIB}, {.rss_quarter = 25 * MIB, .rss_end = 30 * MIB}},
         "1: 25.0 and 30.0 MiB; most growth rank 0: 10.0 to 20.0 MiB"},
        {{{.rss_quarter = 0, .rss_end = 40 * MIB}, {.rss_quarter = 25 * MIB, .rss_end = 30 * MIB}},
         "0: not measured and 40.0 MiB; most growth rank 1: 25.0 to 30.0 MiB"},
        {{{.rss_quarter = 0, .rss_end = 20 * MIB}, {.rss_quarter = 0, .rss_end = 30 * MIB}},
         "1: not measured and 30.0 MiB; most growth: not measured"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        progress_memory(cases[i].r, 2, text, sizeof text);
        ck_assert_msg(strncmp(text, head, strlen(head)) == 0, "%s", text);
        ck_assert_str_eq(text + strlen(head), cases[i].want);
    }
}
END_TEST

START_TEST(the_table_splits_work_from_waiting)
{
    char out[2048], line[256];
    const struct rank_stats r[4] = {
        {.role = ROLE_PREFILL, .total_s = 10, .compute_s = 4, .transfer_s = 1},
        {.role = ROLE_PREFILL, .total_s = 10, .compute_s = 2, .transfer_s = 0},
        {.role = ROLE_DECODE, .total_s = 12, .compute_s = 9, .transfer_s = 0.5},
        {.role = ROLE_DECODE, .total_s = 12, .compute_s = 12.5, .transfer_s = 0}}; /* clocks disagree: never below 0 */
    const struct progress_state s = {.rows = 64, .before = 10, .ended = 50, .failed = 3, .tokens = 12345,
                                     .rounds = 2000, .accepted = 9000, UNKNOWN};
    table(&s, r, 4, out, sizeof out);
    ck_assert_str_eq(line_of(out, "      64", line, sizeof line),
                     "      64        10         47         3             4       12345        2000           5.50");
    ck_assert_str_eq(line_of(out, " prefill", line, sizeof line),
                     " prefill      2     10.00      3.00        0.50       6.50     30 %");
    ck_assert_str_eq(line_of(out, " decode", line, sizeof line),
                     " decode       2     12.00     10.75        0.25       1.00     90 %");
    ck_assert_ptr_null(strstr(out, " single"));
    ck_assert_msg(strstr(out, "committed") < strstr(out, "seconds"), "counts come first");
    table(&s, r + 2, 1, out, sizeof out);
    ck_assert_str_eq(line_of(out, " single", line, sizeof line),
                     " single       1     12.00      9.00        0.50       2.50     75 %");
    ck_assert_ptr_null(strstr(out, " prefill"));
}
END_TEST

START_TEST(a_table_of_nothing)
{
    char out[2048], line[256];
    const struct rank_stats r = {.role = ROLE_DECODE};
    const struct progress_state s = {.rows = 5, .ended = 5, .failed = 5, UNKNOWN};
    table(&s, &r, 1, out, sizeof out);
    ck_assert_str_eq(line_of(out, "       5", line, sizeof line),
                     "       5         0          0         5             0           0           0              -");
    ck_assert_str_eq(line_of(out, " single", line, sizeof line),
                     " single       1      0.00      0.00        0.00       0.00      0 %");
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "line", 20);
    SUITE_TEST(tc, lines_say_what_is_known);
    SUITE_TEST(tc, durations_are_for_people);
    SUITE_TEST(tc, lines_are_due_in_time);
    SUITE_TEST(tc, a_terminal_keeps_one_line);
    SUITE_TEST(tc, terminals_are_known);
    tc = SUITE_CASE(s, "table", 20);
    SUITE_TEST(tc, memory_that_was_not_measured_is_not_zero);
    SUITE_TEST(tc, the_table_splits_work_from_waiting);
    SUITE_TEST(tc, a_table_of_nothing);
}

int main(void)
{
    return suite_main_serial();
}
