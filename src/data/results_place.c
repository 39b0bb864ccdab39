/* results_place - what is at a path: results, their journal, or what this program never replaces. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/outfile.h"
#include "data/results_priv.h"

/* file, journal and lock are those of what a link leads to, or two names of one file were two runs */
enum status results_place(const char *path, char **place_p)
{
    TRY(outfile_target(path, place_p));
    if (strcmp(path, *place_p) != 0) log_info("%s: a symbolic link; the results are in %s", path, *place_p);
    return ST_OK;
}

/* the journal begins as journals do; a kill may have left any part of its first line */
static int is_journal(const char *path)
{
    static const char first[] = "{\"kind\":\"run\",\"schema\":\"" RESULTS_SCHEMA_NAME "\"";
    char text[sizeof first];
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    size_t n = fread(text, 1, sizeof first - 1, f);
    fclose(f);
    return memcmp(text, first, n) == 0;
}

static enum results_holding journal_holds(const char *path)
{
    struct stat sb;
    if (stat(path, &sb) != 0) return RESULTS_AT_NONE;
    if (!S_ISREG(sb.st_mode) || !is_journal(path)) return RESULTS_AT_OTHER;
    return sb.st_size > 0 ? RESULTS_AT_OURS : RESULTS_AT_NONE;
}

enum results_holding results_file_holds(const char *path, const char *journal)
{
    struct stat sb;
    struct h5 *f;
    char *schema = NULL;
    if (stat(path, &sb) != 0) return RESULTS_AT_NONE;
    if (!S_ISREG(sb.st_mode)) return RESULTS_AT_OTHER;
    hold_begin(); /* a file that does not open is no error here: its journal says whose it is */
    int opens = h5_is_hdf5(path) && h5_open(path, 0, &f) == ST_OK;
    hold_end();
    if (!opens) return journal_holds(journal) == RESULTS_AT_OURS ? RESULTS_AT_OURS : RESULTS_AT_OTHER;
    int ours = h5_has_attr(f, "/", "schema") && h5_get_str(f, "/", "schema", &schema) == ST_OK &&
               strcmp(schema, RESULTS_SCHEMA_NAME) == 0;
    mem_free(schema);
    h5_close(f);
    return ours ? RESULTS_AT_OURS : RESULTS_AT_OTHER;
}

int results_is_journal(const char *path)
{
    return journal_holds(path) == RESULTS_AT_OURS;
}

enum status results_look(const char *path, const char **why_p)
{
    struct results *r;
    hold_begin();
    enum status st = results_load(path, &r);
    *why_p = hold_end();
    if (st == ST_OK) results_free(r);
    return st;
}

/* a resume cuts a torn last line: of a journal, not of a file of another kind that has its name */
enum status results_check_journal(const char *path)
{
    char *journal = results_journal_path(path);
    if (!journal) return ST_E_NOMEM;
    enum status st = ST_OK;
    const char *why;
    if (journal_holds(journal) == RESULTS_AT_OTHER)
        st = results_look(path, &why) == ST_OK
                 ? ERR(ST_E_FORMAT,
                       "%s: the journal's name, but it is none of results; %s is whole: move %s away, and --resume "
                       "writes the journal anew",
                       journal, path, journal)
                 : ERR(ST_E_FORMAT, "%s: the journal's name, but it is none of results; name another file than %s",
                       journal, path);
    mem_free(journal);
    return st;
}

/* a new run takes nothing's place but that of results, and theirs only with --force-new */
enum status results_check_place(const char *path, int force, const char *remedy)
{
    static const char other[] = "holds no results; name another file";
    char *journal = results_journal_path(path);
    if (!journal) return ST_E_NOMEM;
    enum results_holding file = results_file_holds(path, journal), lines = journal_holds(journal);
    enum status st = ST_OK;
    if (file == RESULTS_AT_OTHER)
        st = ERR(ST_E_FILE, "%s: exists and %s", path, other);
    else if (lines == RESULTS_AT_OTHER)
        st = ERR(ST_E_FILE, "%s: the journal's name, but it %s than %s", journal, other, path);
    else if (!force && file != RESULTS_AT_NONE)
        st = ERR(ST_E_FILE, "%s: exists; %s", path, remedy);
    else if (!force && access(journal, F_OK) == 0)
        st = ERR(ST_E_FILE, "%s: journal of an earlier run, or of one that is starting; %s", journal, remedy);
    mem_free(journal);
    return st;
}
