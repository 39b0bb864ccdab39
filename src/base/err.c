#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

static char last_message[1024];

static const struct {
    const char *name;
    int exit_code;
    const char *text;
} table[ST_N] = {
#define ROW(code, exit_, text_) [code] = {#code, exit_, text_},
    ERR_LIST(ROW)
#undef ROW
};

static int known(enum status st)
{
    return (unsigned)st < ST_N;
}

const char *err_text(enum status st)
{
    return known(st) ? table[st].text : "unknown status";
}

const char *err_name(enum status st)
{
    return known(st) ? table[st].name : "ST_?";
}

int err_exit_code(enum status st)
{
    return known(st) ? table[st].exit_code : 3;
}

const char *err_last(void)
{
    return last_message;
}

enum status err_report(enum status st, const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_message, sizeof last_message, fmt, ap);
    va_end(ap);
    const char *slash = strrchr(file, '/');
    log_error("%s (%s, %s:%d)", last_message, err_text(st), slash ? slash + 1 : file, line);
    return st;
}
