/* merge, rebuild - whole result files: from those of several jobs, and from a journal. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/log.h"
#include "build_id.h"
#include "cmd/record.h"
#include "data/utf8.h"

enum { PARTS_MAX = 4096 };

static void command_line(int argc, char **argv, char *line, size_t room)
{
    size_t n = (size_t)snprintf(line, room, "pdflash merge");
    for (int i = 0; i < argc && n < room; i++) {
        int quote = argv[i][0] == 0 || strpbrk(argv[i], " \t'\"$") != NULL;
        n += (size_t)snprintf(line + n, room - n, quote ? " '%s'" : " %s", argv[i]);
    }
}

static void say(const char *out, const struct results_made *m)
{
    log_info("%s: %lld of %lld rows, %d attempts, %s", out, (long long)m->done, (long long)m->questions, m->attempts,
             m->complete ? "complete" : "not complete");
    if (m->rows > m->done)
        log_warn("%s: %lld rows failed or were aborted; --resume tries them again", out,
                 (long long)(m->rows - m->done));
    if (m->questions > m->rows)
        log_warn("%s: %lld questions have no row; `pdflash grade %s` lists them", out,
                 (long long)(m->questions - m->rows), out);
}

enum status cmd_merge(int argc, char **argv)
{
    struct options o;
    struct results_made made;
    int n = 0, help;
    char line[8192], utc[32];
    struct tm tm;
    time_t now = time(NULL);
    const char **part = mem_alloc(PARTS_MAX, sizeof *part, "names of parts");
    if (!part) return ST_E_NOMEM;
    enum status st = options_parse(CMD_MERGE, argc, argv, &o, part, PARTS_MAX, &n, &help);
    if (st == ST_OK && !help && n == 0)
        st = ERR(ST_E_USAGE, "name the result files to join: pdflash merge --out all.h5 PART.h5...");
    if (st != ST_OK || help) {
        mem_free(part);
        return st;
    }
    command_line(argc, argv, line, sizeof line);
    gmtime_r(&now, &tm);
    strftime(utc, sizeof utc, "%Y-%m-%dT%H:%M:%SZ", &tm);
    char *clean = utf8_clean(line, strlen(line));
    const struct result_attr extra[] = {{"merge_command_line", H5_KIND_STR, clean, 0, 0},
                                        {"merge_build", H5_KIND_STR, PDFLASH_GIT, 0, 0},
                                        {"merge_utc", H5_KIND_STR, utc, 0, 0}};
    st = clean ? results_merge(o.out, o.force, part, (size_t)n, record_identity, RECORD_IDENTITY, extra,
                               sizeof extra / sizeof extra[0], &made)
               : ST_E_NOMEM;
    mem_free(clean);
    mem_free(part);
    TRY(st);
    say(o.out, &made);
    return made.complete ? ST_OK : ERR(ST_E_INCOMPLETE, "%s: written, but the run is not complete", o.out);
}

enum status cmd_rebuild(int argc, char **argv)
{
    struct options o;
    struct results_made made;
    int n, help;
    TRY(options_parse(CMD_REBUILD, argc, argv, &o, NULL, 0, &n, &help));
    if (help) return ST_OK;
    TRY(results_rebuild_as(o.journal, o.out, o.force, &made));
    say(o.out, &made);
    return ST_OK;
}
