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

void log_line(enum log_level level, const char *fmt, ...)
{
    if (level > shown) return;
    int saved = errno;
    char line[2048];
    int n = snprintf(line, sizeof line, "[%s] %s: ", who, level_name[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) m = 0;
    size_t len = (size_t)n + (size_t)m;
    if (len > sizeof line - 2) len = sizeof line - 2;
    line[len++] = '\n';
    if (!muted || level == LOG_ERROR) put(STDERR_FILENO, line, len);
    if (copy_fd >= 0) put(copy_fd, line, len);
    errno = saved;
}
