#include "data/hold.h"

#include <stdarg.h>
#include <stdio.h>

static struct {
    int on, line;
    const char *file;
    char text[1024];
} held;

void hold_begin(void)
{
    held.on = 1;
    held.text[0] = 0;
}

const char *hold_end(void)
{
    held.on = 0;
    return held.text;
}

enum status hold_tell(enum status st)
{
    return held.text[0] ? err_report(st, held.file, held.line, "%s", held.text) : st;
}

enum status hold_report(enum status st, const char *file, int line, const char *fmt, ...)
{
    char text[sizeof held.text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!held.on) return err_report(st, file, line, "%s", text);
    if (held.text[0]) return st;
    held.file = file;
    held.line = line;
    snprintf(held.text, sizeof held.text, "%s", text);
    return st;
}
