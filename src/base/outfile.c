#include "base/outfile.h"

#include <errno.h>
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

/* where the bytes belong: behind symbolic links; and whether something stands there that is no regular file */
static enum status find_place(const char *path, struct outfile *o, int *direct_p)
{
    struct stat sb;
    char *real = realpath(path, NULL); /* memory from malloc; NULL: not there yet */
    o->path = mem_strdup(path);
    o->place = mem_strdup(real ? real : path);
    free(real);
    if (!o->path || !o->place) return ST_E_NOMEM;
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
        st = ERR(ST_E_IO, "%s: cannot write%s%s%s", o->path, why ? ": " : "", why ? strerror(why) : "",
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
