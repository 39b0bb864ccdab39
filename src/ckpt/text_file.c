#include "ckpt/text_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"

enum status text_file_path(const char *dir, const char *name, char *out, size_t n)
{
    int len = snprintf(out, n, "%s/%s", dir, name);
    if (len < 0 || (size_t)len >= n) return ERR(ST_E_FILE, "%s/%s: path longer than %zu bytes", dir, name, n - 1);
    return ST_OK;
}

enum status text_file_read(const char *path, char **p_p, size_t *n_p)
{
    enum status st = ST_OK;
    struct stat sb;
    char *p = NULL;
    FILE *f = fopen(path, "rb");
    if (!f) return ERR(ST_E_FILE, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fileno(f), &sb) != 0 || !S_ISREG(sb.st_mode)) {
        st = ERR(ST_E_FILE, "%s: not a regular file", path);
        goto close_file;
    }
    size_t n = (size_t)sb.st_size;
    p = mem_alloc(n + 1, 1, path);
    if (!p) {
        st = ST_E_NOMEM;
        goto close_file;
    }
    if (fread(p, 1, n, f) != n) {
        st = ERR(ST_E_FILE, "%s: cannot read all of its %zu bytes", path, n);
        mem_free(p);
        goto close_file;
    }
    *p_p = p;
    *n_p = n;
close_file:
    fclose(f);
    return st;
}
