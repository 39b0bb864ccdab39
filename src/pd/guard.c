#include "pd/guard.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"

static timer_t timer;
static int made;
static char text[256]; /* prepared: a signal handler may only write */

static void over(int sig)
{
    (void)sig;
    if (write(STDERR_FILENO, text, strlen(text)) < 0) { /* nobody is left to tell */ }
    _exit(err_exit_code(ST_E_WATCHDOG));
}

static void set(double seconds)
{
    struct itimerspec t = {.it_value = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)}};
    timer_settime(timer, 0, &t, NULL);
}

void guard_start(const char *what, double seconds)
{
    struct sigaction a = {.sa_handler = over};
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 5};
    guard_end();
    if (!made) {
        sigemptyset(&a.sa_mask);
        if (sigaction(SIGRTMIN + 5, &a, NULL) != 0 || timer_create(CLOCK_MONOTONIC, &e, &timer) != 0) return;
        made = 1;
    }
    char host[64] = "?";
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text,
             "[pdflash] error: host %s pid %d: %s takes longer than %.0f s (see --watchdog): a rank or a device does not "
             "answer, or files are slow; rows so far are kept\n",
             host, (int)getpid(), what, seconds);
    set(seconds);
}

void guard_end(void)
{
    if (made) set(0);
}
