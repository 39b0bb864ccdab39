#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

static void release(struct outfile *o)
{
    mem_free(o->path);
    mem_free(o->place);
    mem_free(o->tmp);
    memset(o, 0, sizeof *o);
}

/* ---- names ----------------------------------------------------------------------------------------- */

enum { LINKS_MAX = 40 };

/* the bytes of path up to its last component, the slash included */
static size_t folder_bytes(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* what a symbolic link says, as a name from here; memory of mem_alloc, NULL: no link */
static char *link_says(const char *path)
{
    char to[4096];
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n <= 0) return NULL;
    to[n] = 0;
    size_t dir = to[0] == '/' ? 0 : folder_bytes(path);
    char *p = mem_alloc(dir + (size_t)n + 1, 1, "a path");
    if (!p) return NULL;
    memcpy(p, path, dir);
    memcpy(p + dir, to, (size_t)n + 1);
    return p;
}

enum status outfile_target(const char *path, char **target_p)
{
    struct stat sb;
    char *at = NULL, *next;
    if (lstat(path, &sb) == 0 && S_ISLNK(sb.st_mode) && stat(path, &sb) == 0) {
        char *real = realpath(path, NULL); /* memory from malloc; NULL: a link of /proc to what has no name */
        at = mem_strdup(real ? real : path);
        free(real);
    } else {
        at = mem_strdup(path);
        int links = 0;
        while (at && (next = link_says(at)) != NULL) { /* to nothing, so far */
            mem_free(at);
            at = next;
            if (++links <= LINKS_MAX) continue;
            mem_free(at);
            return ERR(ST_E_FILE, "%s: a symbolic link that leads to itself; name another file", path);
        }
    }
    if (!at) return ST_E_NOMEM;
    *target_p = at;
    return ST_OK;
}

static int stat_folder(const char *path, struct stat *sb)
{
    size_t n = folder_bytes(path);
    char *dir = mem_alloc(n + 2, 1, "a path");
    if (!dir) return -1;
    memcpy(dir, n ? path : ".", n ? n : 1);
    int rc = stat(dir, sb);
    mem_free(dir);
    return rc;
}

static int one(const struct stat *x, const struct stat *y)
{
    return x->st_dev == y->st_dev && x->st_ino == y->st_ino;
}

int outfile_is(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && one(&x, &y);
}

static int same_place(const char *a, const char *b)
{
    struct stat x, y;
    if (stat(a, &x) == 0 && stat(b, &y) == 0) return one(&x, &y);
    return strcmp(a + folder_bytes(a), b + folder_bytes(b)) == 0 && stat_folder(a, &x) == 0 &&
           stat_folder(b, &y) == 0 && one(&x, &y);
}

int outfile_same(const char *a, const char *b)
{
    char *x = NULL, *y = NULL;
    int same = outfile_target(a, &x) == ST_OK && outfile_target(b, &y) == ST_OK && same_place(x, y);
    mem_free(x);
    mem_free(y);
    return same;
}

int outfile_in(const char *path, const char *dir)
{
    struct stat x, y;
    char *at = NULL;
    int in = outfile_target(path, &at) == ST_OK && stat_folder(at, &x) == 0 && stat(dir, &y) == 0 && one(&x, &y);
    mem_free(at);
    return in;
}

/* no access(): it knows neither read-only file systems nor what the superuser cannot do */
enum status outfile_check_folder(const char *path, const char *option)
{
    char *at, *probe = NULL;
    TRY(outfile_target(path, &at));
    int n = (int)folder_bytes(at), fd = -1, e = 0;
    size_t len = strlen(at) + 48;
    if ((probe = mem_alloc(len, 1, "a path")) != NULL) {
        snprintf(probe, len, "%s.pdflash-try.%ld", at, (long)getpid());
        fd = open(probe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        e = errno;
    }
    if (fd >= 0) {
        close(fd);
        unlink(probe);
    }
    enum status st = probe ? ST_OK : ST_E_NOMEM;
    if (probe && fd < 0 && e != EEXIST)
        st = ERR(ST_E_FILE, "%s: its directory %.*s cannot be written: %s; make it, or name a file elsewhere with %s",
                 at, n > 1 ? n - 1 : 1, n ? at : ".", strerror(e), option);
    mem_free(probe);
    mem_free(at);
    return st;
}

/* ---- the file -------------------------------------------------------------------------------------- */

/* where the bytes belong: behind symbolic links; and whether something stands there that is no regular file */
static enum status find_place(const char *path, struct outfile *o, int *direct_p)
{
    struct stat sb;
    o->path = mem_strdup(path);
    if (!o->path) return ST_E_NOMEM;
    TRY(outfile_target(path, &o->place));
    int there = stat(o->place, &sb) == 0;
    if (there && S_ISDIR(sb.st_mode)) return ERR(ST_E_FILE, "%s: is a directory; name a file", path);
    *direct_p = there && !S_ISREG(sb.st_mode);
    return ST_OK;
}

enum status outfile_open(const char *path, struct outfile *o_p)
{
    struct outfile o = {0};
    int direct = 0;
    enum status st = find_place(path, &o, &direct);
    if (st == ST_OK && !direct) {
        size_t n = strlen(o.place) + 32;
        o.tmp = mem_alloc(n, 1, "a path");
        if (o.tmp)
            snprintf(o.tmp, n, "%s.tmp.%ld", o.place, (long)getpid());
        else
            st = ST_E_NOMEM;
    }
    if (st == ST_OK) {
        o.f = fopen(direct ? o.place : o.tmp, "wb");
        if (!o.f) st = ERR(ST_E_FILE, "%s: cannot write: %s", path, strerror(errno));
    }
    if (st == ST_OK)
        *o_p = o;
    else
        release(&o);
    return st;
}

enum status outfile_commit(struct outfile *o)
{
    int bad = ferror(o->f), direct = !o->tmp;
    errno = 0;
    if (fflush(o->f) != 0) bad = 1;
    int why = errno;
    if (!bad && !direct && fsync(fileno(o->f)) != 0) {
        bad = 1;
        why = errno;
    }
    if (fclose(o->f) != 0 && !bad) {
        bad = 1;
        why = errno;
    }
    if (!bad && !direct && rename(o->tmp, o->place) != 0) {
        bad = 1;
        why = errno;
    }
    if (bad && !direct) unlink(o->tmp);
    enum status st = ST_OK;
    if (bad)
        st = ERR(ST_E_IO, "%s: cannot write: %s%s", o->path, why ? strerror(why) : "a write failed; is the disk full?",
                 direct ? "" : "; what was there before is unchanged");
    release(o);
    return st;
}

void outfile_cancel(struct outfile *o)
{
    if (!o || !o->f) return;
    int saved = errno;
    fclose(o->f);
    if (o->tmp) unlink(o->tmp);
    release(o);
    errno = saved;
}
