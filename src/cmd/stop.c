#include "cmd/stop.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "base/log.h"

enum { N = 3, PATIENCE_S = 3 }; /* launchers that end a job kill it about a second after SIGTERM */
static const int number[N] = {SIGINT, SIGTERM, SIGUSR1};
static const char *const name[N] = {"SIGINT", "SIGTERM", "SIGUSR1"};

static volatile int first;           /* the first signal; 0: none */
static volatile sig_atomic_t speaks; /* 1: line is ready */
static volatile sig_atomic_t spoke;
static volatile sig_atomic_t launched;
static struct log_text line[N];

static void say(int sig)
{
    if (spoke) return;
    spoke = 1;
    for (int i = 0; i < N; i++)
        if (number[i] == sig) log_put(&line[i]);
}

static void tell(void)
{
    if (!speaks || spoke || !first) return;
    if (first == SIGTERM && launched)
        alarm(PATIENCE_S);
    else
        say(first);
}

static void on_signal(int sig)
{
    if (sig == SIGINT) signal(SIGINT, SIG_DFL); /* who asks twice does not want to wait */
    if (!first) first = sig;
    tell();
}

static void on_alarm(int sig)
{
    (void)sig;
    stop_speak_now();
}

void stop_watch(void)
{
    signal(SIGALRM, on_alarm);
    for (int i = 0; i < N; i++) signal(number[i], on_signal);
}

void stop_speak(const char *out, int ranks)
{
    static const char *const more[N] = {" (a second SIGINT ends the process at once)",
                                        " (rows written so far stay if the launcher kills the job first)", ""};
    for (int i = 0; i < N; i++)
        log_compose(&line[i], LOG_WARN, "%s received: nothing new is admitted, what runs is finished; results in %s, "
                    "--resume goes on with it%s", name[i], out, more[i]);
    launched = ranks > 1;
    speaks = 1;
    tell();
}

void stop_speak_now(void)
{
    if (speaks && first) say(first);
}

void stop_quiet(void)
{
    speaks = 0;
    spoke = 1;
}

const volatile int *stop_signal(void)
{
    return &first;
}
