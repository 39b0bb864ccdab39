#include "cmd/progress.h"

#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum { LINE_BYTES = 400, COLUMNS_DEFAULT = 80 };

/* ---- arithmetic and text --------------------------------------------------------------------------- */

static int left(const struct progress_state *s)
{
    int n = s->rows - s->before - s->ended;
    return n > 0 ? n : 0;
}

/* what is done in a second; NaN while nothing is */
static double rate(double done, double seconds)
{
    return done > 0 && seconds > 0 ? done / seconds : NAN;
}

double progress_left(const struct progress_state *s)
{
    int n = left(s);
    return n ? n / rate(s->ended, s->seconds) : 0;
}

double progress_accept(const struct progress_state *s)
{
    return s->rounds > 0 ? 1 + (double)s->accepted / (double)s->rounds : NAN;
}

const char *progress_duration(double seconds, char *buf, size_t n)
{
    long long v = seconds >= 0 && seconds < 1e15 ? (long long)(seconds + 0.5) : -1;
    if (v < 0)
        snprintf(buf, n, "unknown");
    else if (v < 120)
        snprintf(buf, n, "%lld s", v);
    else if (v < 7200)
        snprintf(buf, n, "%lld min", (v + 30) / 60);
    else
        snprintf(buf, n, "%lld h %02lld min", (v + 30) / 3600, (v + 30) / 60 % 60);
    return buf;
}

static void add(char *buf, size_t n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(char *buf, size_t n, const char *fmt, ...)
{
    size_t at = strlen(buf);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf + at, n - at, fmt, ap);
    va_end(ap);
}

static int percent(double work_s, double seconds)
{
    double share = 100 * work_s / seconds;
    return share < 0 ? 0 : share > 100 ? 100 : (int)(share + 0.5);
}

static void add_work(char *buf, size_t n, const struct progress_state *s)
{
    const char *before = "; at work: ";
    if (!(s->seconds > 0)) return;
    if (!isnan(s->prefill_work_s)) {
        add(buf, n, "%sprefill %d %%", before, percent(s->prefill_work_s, s->seconds));
        before = ", ";
    }
    if (!isnan(s->decode_work_s)) add(buf, n, "%sdecode %d %%", before, percent(s->decode_work_s, s->seconds));
}

const char *progress_text(const struct progress_state *s, char *buf, size_t n)
{
    char t[32];
    double rows = 60 * rate(s->ended, s->seconds), tokens = rate((double)s->tokens, s->seconds);
    double accept = progress_accept(s), more = progress_left(s);
    buf[0] = 0;
    add(buf, n, "%d of %d rows", s->before + s->ended, s->rows);
    if (s->before) add(buf, n, " (%d before)", s->before);
    if (s->failed) add(buf, n, ", %d failed", s->failed);
    add(buf, n, ", %d decoding", s->decoding);
    if (!isnan(rows)) add(buf, n, rows < 999.5 ? ", %.3g rows/min" : ", %.0f rows/min", rows);
    if (!isnan(tokens)) add(buf, n, ", %.*f tokens/s", tokens < 10 ? 1 : 0, tokens);
    if (!isnan(accept)) add(buf, n, ", accept length %.2f", accept);
    add(buf, n, ", %s", progress_duration(s->seconds, t, sizeof t));
    if (left(s) && !isnan(more)) add(buf, n, ", %s left", progress_duration(more, t, sizeof t));
    add_work(buf, n, s);
    return buf;
}

/* ---- terminals ------------------------------------------------------------------------------------- */

static int columns_of(int fd)
{
    struct winsize w;
    const char *term = getenv("TERM");
    if (!isatty(fd) || !term || !term[0] || strcmp(term, "dumb") == 0) return 0;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : COLUMNS_DEFAULT;
}

/* the process that started this one is a launcher which copies our standard error to its own */
static int launched(long parent)
{
    static const char *const name[] = {"mpirun", "mpiexec", "orterun", "prterun"};
    char path[64], comm[32] = "";
    snprintf(path, sizeof path, "/proc/%ld/comm", parent);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (!fgets(comm, sizeof comm, f)) comm[0] = 0;
    fclose(f);
    comm[strcspn(comm, "\n")] = 0;
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++)
        if (strcmp(comm, name[i]) == 0) return 1;
    return 0;
}

int progress_terminal(void)
{
    struct stat sb;
    char path[64];
    long parent = (long)getppid();
    if (isatty(STDERR_FILENO)) return columns_of(STDERR_FILENO);
    if (fstat(STDERR_FILENO, &sb) != 0 || !S_ISFIFO(sb.st_mode) || !launched(parent)) return 0;
    snprintf(path, sizeof path, "/proc/%ld/fd/2", parent);
    if (stat(path, &sb) != 0 || !S_ISCHR(sb.st_mode)) return 0; /* a pipe must not be opened */
    int fd = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) return 0;
    int columns = columns_of(fd);
    close(fd);
    return columns;
}

/* ---- while it goes --------------------------------------------------------------------------------- */

void progress_begin(struct progress *p, double interval_s, int columns)
{
    *p = (struct progress){.interval_s = interval_s >= 0 ? interval_s : columns ? 1 : 30, .columns = columns};
}

int progress_due(struct progress *p, double now_s)
{
    if (p->begun && now_s > p->last_now_s) p->elapsed_s += now_s - p->last_now_s;
    p->last_now_s = now_s;
    p->begun = 1;
    if (p->interval_s <= 0 || p->elapsed_s - p->shown_s < p->interval_s) return 0;
    p->shown_s = p->elapsed_s;
    return 1;
}

void progress_show(const struct progress *p, const struct progress_state *s)
{
    char line[LINE_BYTES];
    size_t room = sizeof line;
    if (p->columns > 0 && (size_t)p->columns < room) room = (size_t)p->columns; /* a full line would wrap */
    progress_text(s, line, p->columns ? room : sizeof line);
    if (p->columns)
        log_status(line);
    else
        log_info("%s", line);
}

/* ---- the end --------------------------------------------------------------------------------------- */

struct share_of_time {
    int ranks;
    double total_s, work_s, transfer_s;
};

static void print_group(FILE *f, const char *name, const struct share_of_time *g)
{
    if (!g->ranks) return;
    double n = g->ranks, wait = g->total_s - g->work_s - g->transfer_s;
    fprintf(f, " %-7s  %5d  %8.2f  %8.2f  %10.2f  %9.2f  %5d %%\n", name, g->ranks, g->total_s / n, g->work_s / n,
            g->transfer_s / n, (wait > 0 ? wait : 0) / n, g->total_s > 0 ? percent(g->work_s, g->total_s) : 0);
}

void progress_table(FILE *f, const struct progress_state *s, const struct rank_stats *r, int n)
{
    struct share_of_time prefill = {0}, decode = {0};
    char accept[16] = "-";
    double length = progress_accept(s);
    for (int i = 0; i < n; i++) {
        struct share_of_time *g = r[i].role == ROLE_PREFILL ? &prefill : &decode;
        g->ranks++;
        g->total_s += r[i].total_s;
        g->work_s += r[i].compute_s;
        g->transfer_s += r[i].transfer_s;
    }
    if (!isnan(length)) snprintf(accept, sizeof accept, "%.2f", length);
    fprintf(f, "\n    rows    before  committed    failed   not reached      tokens      rounds  accept length\n");
    fprintf(f, "%8d  %8d  %9d  %8d  %12d  %10lld  %10lld  %13s\n", s->rows, s->before, s->ended - s->failed, s->failed,
            left(s), (long long)s->tokens, (long long)s->rounds, accept);
    fprintf(f, "\n seconds of a rank, mean\n group    ranks   total s    work s  transfer s  waiting s   work\n");
    print_group(f, "prefill", &prefill);
    print_group(f, prefill.ranks ? "decode" : "single", &decode);
}

/* MiB, or that the run ended before */
static const char *mib(int64_t bytes, char *buf, size_t n)
{
    if (bytes > 0)
        snprintf(buf, n, "%.1f", (double)bytes / 1048576);
    else
        snprintf(buf, n, "not measured");
    return buf;
}

const char *progress_memory(const struct rank_stats *r, int n, char *buf, size_t room)
{
    int most = 0, grew = -1;
    char quarter[24], growth[80] = ": not measured";
    for (int i = 0; i < n; i++) {
        if (r[i].rss_end > r[most].rss_end) most = i;
        if (r[i].rss_quarter == 0) continue;
        if (grew < 0 || r[i].rss_end - r[i].rss_quarter > r[grew].rss_end - r[grew].rss_quarter) grew = i;
    }
    if (grew >= 0)
        snprintf(growth, sizeof growth, " rank %d: %.1f to %.1f MiB", grew, (double)r[grew].rss_quarter / 1048576,
                 (double)r[grew].rss_end / 1048576);
    snprintf(buf, room,
             "peak memory after a quarter of the requests and at the end: largest rank %d: %s and %.1f MiB; "
             "most growth%s",
             most, mib(r[most].rss_quarter, quarter, sizeof quarter), (double)r[most].rss_end / 1048576, growth);
    return buf;
}
