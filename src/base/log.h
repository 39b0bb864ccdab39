/* log - lines for a person who reads one file from many ranks: "[role.rank] level message" on stderr.
 *
 * Rank 0 of a role prints information and progress, the others only warnings and errors. Each line goes
 * out in one write, so lines of different ranks do not mix. Local. */
#ifndef PDFLASH_BASE_LOG_H
#define PDFLASH_BASE_LOG_H

#include <stddef.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* log_init - set the name printed in brackets and the most talkative level that is printed.
 * role is copied (at most 23 characters); rank < 0 leaves the number out. */
void log_init(const char *role, int rank, enum log_level level);
/* log_to - also copy every line to the file descriptor fd (-1: stop); used for --evidence. */
void log_to(int fd);
/* log_mute - nothing below level error reaches stderr while on is not 0 (tests of refusals). */
void log_mute(int on);

void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* On a terminal a status may stand below the lines. The cursor stays at its beginning, so the next line, of whichever
 * process, takes its place; log_terminal(1) makes lines of this one wipe what is left of it. log_status - draw text (at
 * most one row of the terminal) in place of the last, "": wipe it; nothing without log_terminal(1). It is no part of
 * the log: log_to does not copy it. */
void log_terminal(int on);
void log_status(const char *text);

/* A line made in advance, for signal handlers, which may write but not format. log_compose - make it, as log_line would
 * print it. log_put - print it, to the copy as well; async-signal-safe. */
struct log_text { size_t n; char text[2048]; };
void log_compose(struct log_text *t, enum log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void log_put(const struct log_text *t);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
