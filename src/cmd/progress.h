/* progress - what a person sees of a run: a line now and then while it goes, one table at its end. The leader's only.
 *
 * On a terminal the line is redrawn in place, every second; elsewhere (a pipe, a Slurm log) it is an ordinary log line
 * every 30 seconds, so a short run prints none. Under mpirun standard error of a rank is a pipe: mpirun's own standard
 * error decides then. The figures are those the leader has anyway; nothing is communicated for them.
 * Text and arithmetic are pure functions. Seconds may be of a clock that steps: time never runs backwards here.
 * Local. */
#ifndef PDFLASH_CMD_PROGRESS_H
#define PDFLASH_CMD_PROGRESS_H

#include <stdio.h>

#include "pd/run.h"

struct progress_state {
    int rows, before;                    /* rows of the run; of them done by earlier attempts */
    int ended, failed, decoding;         /* of this attempt: at their end; of those failed or aborted; at work now */
    int64_t tokens;                      /* output tokens, of this attempt */
    int64_t rounds, accepted;            /* verify rounds of rows that ended by themselves, and the drafts accepted */
    double seconds;                      /* since the first request was taken */
    double prefill_work_s, decode_work_s; /* of these a rank of the group was at work, on average; NaN: not known */
};

/* progress_left - seconds until the last row at the rate so far; 0 when none is left, NaN while nothing is known. */
double progress_left(const struct progress_state *s);
/* progress_accept - acceptance length so far, NaN without a round. */
double progress_accept(const struct progress_state *s);
/* progress_duration - "95 s", "12 min", "3 h 05 min"; returns buf. NaN and below 0: "unknown". */
const char *progress_duration(double seconds, char *buf, size_t n);
/* progress_text - the line, without an end of line; cut at n - 1 bytes. Unknown figures are left out. Returns buf. */
const char *progress_text(const struct progress_state *s, char *buf, size_t n);

/* progress_terminal - columns of the terminal that standard error ends in, 0: none (or one that cannot redraw). */
int progress_terminal(void);

struct progress {
    double interval_s; /* 0: print nothing */
    int columns;       /* of the terminal; 0: plain lines */
    int begun;
    double last_now_s, elapsed_s, shown_s;
};

/* progress_begin - interval_s below 0: 1 on a terminal, 30 elsewhere. */
void progress_begin(struct progress *p, double interval_s, int columns);
/* progress_due - 1 when a line is to be shown at now_s; cheap. p->elapsed_s is the time since the first call. */
int progress_due(struct progress *p, double now_s);
/* progress_show - print the line; on a terminal as log_status, which needs log_terminal(1) and is wiped by "". */
void progress_show(const struct progress *p, const struct progress_state *s);

/* progress_table - the end of a run: counts, then seconds of each group of ranks, work split from waiting. s: state at
 * the end; r: [n] figures of all ranks. work: computing, without waiting for others in sums; waiting: the rest. */
void progress_table(FILE *f, const struct progress_state *s, const struct rank_stats *r, int n);
/* progress_memory - the line about peak memory; returns buf. Peak resident sizes do not shrink: what grew after a
 * quarter of the requests is a leak or a late first use. A rank that ended before has no figure of the quarter. */
const char *progress_memory(const struct rank_stats *r, int n, char *buf, size_t room);

#endif
