/* results_rebuild - a result file from a journal alone, and how a whole file takes its place. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/outfile.h"
#include "data/results_priv.h"

enum status results_claim(const char *path, struct results_claim *c_p)
{
    struct results_claim c = {{-1, NULL, 0}};
    TRY(results_journal_open(path, &c.journal));
    *c_p = c;
    return ST_OK;
}

void results_release(struct results_claim *c)
{
    if (!c->journal.path) return;
    results_journal_forget(&c->journal);
    results_journal_close(&c->journal);
}

/* empty, then the file, then its journal: an older journal must never stand beside the new file */
enum status results_publish(struct results_store *s, struct results_claim *c, const char *fresh)
{
    TRY(results_journal_empty(&c->journal));
    TRY(h5_flush(s->f));
    if (!fresh) return ST_OK;
    if (rename(fresh, c->journal.path) != 0)
        return ERR(ST_E_IO, "%s: cannot take the place of %s", fresh, c->journal.path);
    return ST_OK;
}

/* the file's own journal stays where it is; only the file may be in the way */
static enum status check_beside(const char *journal, const char *out, int force)
{
    enum results_holding at = results_file_holds(out, journal);
    if (at == RESULTS_AT_OTHER) return ERR(ST_E_FILE, "%s: exists and holds no results; name another file", out);
    if (at == RESULTS_AT_OURS && !force)
        return ERR(ST_E_FILE, "%s: exists; replace it with --force, or name another file", out);
    return ST_OK;
}

static struct results_made made(const struct results_store *s)
{
    struct results_made m = {.questions = s->questions, .done = s->done, .attempts = s->attempt};
    int64_t complete = 0;
    for (int64_t i = 0; i < s->questions; i++) m.rows += s->slot[i] >= 0;
    m.complete = h5_get_int(s->f, "/", "complete", &complete) == ST_OK && complete == 1;
    return m;
}

static enum status rebuild(const char *journal, const char *out, int beside, struct results_made *m_p)
{
    struct results_claim c = {{-1, NULL, 0}};
    struct results_store s = {.f = NULL};
    enum status st = beside ? ST_OK : results_claim(out, &c);
    if (st == ST_OK) st = results_store_from_journal(out, journal, 0, &s);
    if (st == ST_OK) {
        struct results_made m = made(&s);
        st = beside ? h5_flush(s.f) : results_publish(&s, &c, NULL);
        results_store_close(&s);
        if (st == ST_OK) *m_p = m;
    }
    results_release(&c);
    return st;
}

static enum status rebuild_at(const char *journal, const char *out, int force, struct results_made *m_p)
{
    static const char remedy[] = "replace it with --force, or name another file";
    int fd;
    char *own = results_journal_path(out);
    if (!own) return ST_E_NOMEM;
    int beside = outfile_is(journal, own);
    mem_free(own);
    if (h5_is_hdf5(journal))
        return ERR(ST_E_FORMAT, "%s: an HDF5 file; --journal takes the journal beside it, JSON lines: %s.jsonl",
                   journal, journal);
    TRY(results_journal_lock(journal, &fd)); /* no writer is alive */
    enum status st = beside ? check_beside(journal, out, force) : results_check_place(out, force, remedy);
    if (st == ST_OK) st = h5_check_folder(out);
    if (st == ST_OK) st = rebuild(journal, out, beside, m_p);
    close(fd);
    return st;
}

enum status results_rebuild_as(const char *journal, const char *out, int force, struct results_made *m_p)
{
    char *at;
    TRY(results_place(out, &at));
    enum status st = rebuild_at(journal, at, force, m_p);
    mem_free(at);
    return st;
}

enum status results_rebuild(const char *path, int64_t *rows_p)
{
    struct results_made m;
    char *at, *journal;
    TRY(results_place(path, &at));
    journal = results_journal_path(at);
    enum status st = journal ? rebuild_at(journal, at, 1, &m) : ST_E_NOMEM;
    mem_free(at);
    mem_free(journal);
    if (st == ST_OK) *rows_p = m.rows;
    return st;
}
