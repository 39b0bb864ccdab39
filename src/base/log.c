#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char who[40] = "pdflash";
static enum log_level shown = LOG_INFO;
static int copy_fd = -1;
static int muted;
static int terminal; /* lines wipe the rest of their row */
#define WIPE "\033[K"

static const char *const level_name[] = {"error", "warning", "info", "debug"};

void log_init(const char *role, int rank, enum log_level level)
{
    if (rank < 0)
        snprintf(who, sizeof who, "%.23s", role);
    else
        snprintf(who, sizeof who, "%.23s.%d", role, rank);
    shown = level;
}

void log_to(int fd)
{
    copy_fd = fd;
}

void log_mute(int on)
{
    muted = on;
}

static void put(int fd, const char *s, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, s, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return;
        s += w;
        n -= (size_t)w;
    }
}

/* a line to standard error, in one write; async-signal-safe */
static void put_line(const struct log_text *t)
{
    char line[sizeof t->text + sizeof WIPE];
    if (!terminal || t->n == 0) {
        put(STDERR_FILENO, t->text, t->n);
        return;
    }
    memcpy(line, t->text, t->n - 1);
    memcpy(line + t->n - 1, WIPE "\n", sizeof WIPE);
    put(STDERR_FILENO, line, t->n + sizeof WIPE - 1);
}

void log_terminal(int on)
{
    terminal = on;
}

void log_status(const char *text)
{
    char line[1024];
    int n = snprintf(line, sizeof line, "%.1000s" WIPE "\r", text);
    if (terminal && !muted) put(STDERR_FILENO, line, (size_t)n);
}

static void compose(struct log_text *t, enum log_level level, const char *fmt, va_list ap)
{
    int n = snprintf(t->text, sizeof t->text, "[%s] %s: ", who, level_name[level]);
    int m = vsnprintf(t->text + n, sizeof t->text - (size_t)n - 1, fmt, ap);
    size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (len > sizeof t->text - 2) len = sizeof t->text - 2;
    t->text[len++] = '\n';
    t->n = len;
}

void log_compose(struct log_text *t, enum log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    compose(t, level, fmt, ap);
    va_end(ap);
}

void log_put(const struct log_text *t)
{
    int saved = errno;
    put_line(t);
    if (copy_fd >= 0) put(copy_fd, t->text, t->n);
    errno = saved;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    if (level > shown) return;
    int saved = errno;
    struct log_text t;
    va_list ap;
    va_start(ap, fmt);
    compose(&t, level, fmt, ap);
    va_end(ap);
    if (!muted || level == LOG_ERROR) put_line(&t);
    if (copy_fd >= 0) put(copy_fd, t.text, t.n);
    errno = saved;
}
