#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/outfile.h"
#include "data/h5_priv.h"
#include "data/utf8.h"

/* ---- errors and handles --------------------------------------------------------------------------- */

static herr_t first_cause(unsigned n, const H5E_error2_t *e, void *to)
{
    if (n == 0) snprintf(to, 200, "%s (%s)", e->desc ? e->desc : "?", e->func_name ? e->func_name : "?");
    return 0;
}

const char *h5_why(char text[200])
{
    snprintf(text, 200, "no reason given");
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_cause, text);
    return text;
}

void h5_drop(hid_t id)
{
    if (id >= 0) H5Idec_ref(id);
}

static const struct {
    const char *name;
    size_t bytes;
} kinds[H5_KIND_N] = {{"int8", 1},    {"int32", 4},   {"int64", 8}, {"uint64", 8},
                      {"float32", 4}, {"float64", 8}, {"string", 0}};

const char *h5_kind_name(enum h5_kind k)
{
    return kinds[k].name;
}

size_t h5_kind_bytes(enum h5_kind k)
{
    return kinds[k].bytes;
}

hid_t h5_mem_type(enum h5_kind k)
{
    switch (k) {
    case H5_KIND_I8: return H5T_NATIVE_INT8;
    case H5_KIND_I32: return H5T_NATIVE_INT32;
    case H5_KIND_I64: return H5T_NATIVE_INT64;
    case H5_KIND_U64: return H5T_NATIVE_UINT64;
    case H5_KIND_F32: return H5T_NATIVE_FLOAT;
    case H5_KIND_F64: return H5T_NATIVE_DOUBLE;
    default: return -1;
    }
}

hid_t h5_file_type(enum h5_kind k)
{
    switch (k) {
    case H5_KIND_I8: return H5T_STD_I8LE;
    case H5_KIND_I32: return H5T_STD_I32LE;
    case H5_KIND_I64: return H5T_STD_I64LE;
    case H5_KIND_U64: return H5T_STD_U64LE;
    case H5_KIND_F32: return H5T_IEEE_F32LE;
    case H5_KIND_F64: return H5T_IEEE_F64LE;
    default: return -1;
    }
}

hid_t h5_string_type(size_t size, H5T_cset_t cset)
{
    hid_t t = H5Tcopy(H5T_C_S1);
    if (t < 0) return t;
    if (H5Tset_size(t, size) < 0 || H5Tset_cset(t, cset) < 0 || H5Tset_strpad(t, H5T_STR_NULLTERM) < 0) {
        h5_drop(t);
        return -1;
    }
    return t;
}

/* ---- files ---------------------------------------------------------------------------------------- */

static void quiet(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

/* a file image in memory; it never touches the disk by itself */
static hid_t memory_fapl(void *image, size_t n)
{
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    if (fapl < 0) return fapl;
    if (H5Pset_fapl_core(fapl, (size_t)1 << 20, 0) < 0 || H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG) < 0 ||
        (image && H5Pset_file_image(fapl, image, n) < 0)) {
        h5_drop(fapl);
        return -1;
    }
    return fapl;
}

/* The name HDF5 knows an image by. It must not name a file, or HDF5 looks into that: nothing can exist below
 * what is no folder. */
static hid_t image_open(const char *path, int create, hid_t fapl)
{
    size_t n = strlen(path) + 7;
    char *name = mem_alloc(n, 1, "a path");
    if (!name) return -1;
    snprintf(name, n, "%s/image", path);
    hid_t id = create ? H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, fapl) : H5Fopen(name, H5F_ACC_RDWR, fapl);
    mem_free(name);
    return id;
}

static enum status file_new(const char *path, int writable, struct h5 **f_p)
{
    struct h5 *f = mem_alloc(1, sizeof *f, "an HDF5 file");
    if (!f) return ST_E_NOMEM;
    f->id = -1;
    f->writable = writable;
    f->path = mem_strdup(path);
    if (!f->path) {
        mem_free(f);
        return ST_E_NOMEM;
    }
    quiet();
    *f_p = f;
    return ST_OK;
}

static char *temporary(const char *path)
{
    size_t n = strlen(path) + 13;
    char *p = mem_alloc(n, 1, "a path");
    if (p) snprintf(p, n, "%s.pdflash-tmp", path);
    return p;
}

/* free, or what a kill left of a file of ours: the beginning of an HDF5 file, or nothing */
static enum status check_temporary(const char *tmp)
{
    static const char magic[] = "\211HDF\r\n\032\n";
    char head[8];
    struct stat sb;
    if (lstat(tmp, &sb) != 0) return ST_OK;
    FILE *f = S_ISREG(sb.st_mode) ? fopen(tmp, "rb") : NULL;
    size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    int ours = f && !ferror(f) && memcmp(head, magic, n) == 0;
    if (f) fclose(f);
    return ours ? ST_OK : ERR(ST_E_FILE, "%s: is in the way and not of this program; move it elsewhere", tmp);
}

enum status h5_check_folder(const char *path)
{
    char *tmp = temporary(path);
    if (!tmp) return ST_E_NOMEM;
    enum status st = check_temporary(tmp);
    mem_free(tmp);
    return st == ST_OK ? outfile_check_folder(path, "--out") : st;
}

enum status h5_create(const char *path, int overwrite, struct h5 **f_p)
{
    struct stat sb;
    if (stat(path, &sb) == 0) {
        if (!S_ISREG(sb.st_mode)) return ERR(ST_E_FILE, "%s: not a regular file; name another output", path);
        if (!overwrite) return ERR(ST_E_FILE, "%s: exists and is not overwritten; name another file", path);
    }
    struct h5 *f;
    TRY(file_new(path, 1, &f));
    hid_t fapl = memory_fapl(NULL, 0);
    if (fapl >= 0) f->id = image_open(path, 1, fapl);
    enum status st = f->id < 0 ? FAIL(f, "/", "cannot create") : ST_OK;
    h5_drop(fapl);
    if (st != ST_OK) {
        h5_close(f);
        return st;
    }
    *f_p = f;
    return ST_OK;
}

static enum status slurp(const char *path, void **p_p, size_t *n_p)
{
    FILE *in = fopen(path, "rb");
    if (!in) return ERR(ST_E_FILE, "%s: cannot open: %s", path, strerror(errno));
    struct stat sb;
    enum status st = ST_OK;
    void *p = NULL;
    if (fstat(fileno(in), &sb) != 0 || !S_ISREG(sb.st_mode)) {
        st = ERR(ST_E_FILE, "%s: not a regular file", path);
    } else if (!(p = mem_alloc((size_t)sb.st_size + 1, 1, path))) {
        st = ST_E_NOMEM;
    } else if (fread(p, 1, (size_t)sb.st_size, in) != (size_t)sb.st_size) {
        st = ERR(ST_E_FILE, "%s: cannot read %lld bytes", path, (long long)sb.st_size);
    }
    fclose(in);
    if (st != ST_OK) {
        mem_free(p);
        return st;
    }
    *p_p = p;
    *n_p = (size_t)sb.st_size;
    return ST_OK;
}

enum status h5_open(const char *path, int writable, struct h5 **f_p)
{
    struct stat sb;
    if (stat(path, &sb) != 0) return ERR(ST_E_FILE, "%s: cannot open: %s", path, strerror(errno));
    if (!S_ISREG(sb.st_mode)) return ERR(ST_E_FILE, "%s: not a regular file", path);
    if (access(path, R_OK) != 0) return ERR(ST_E_FILE, "%s: cannot read: %s", path, strerror(errno));
    struct h5 *f;
    TRY(file_new(path, writable, &f));
    enum status st = ST_OK;
    if (writable) {
        void *p = NULL;
        size_t n = 0;
        hid_t fapl = -1;
        TRY_GO(st, slurp(path, &p, &n), fail);
        if (n > 0) fapl = memory_fapl(p, n); /* copies p */
        if (fapl >= 0) f->id = image_open(path, 0, fapl);
        if (f->id < 0) st = ERR(ST_E_FORMAT, "%s: not a whole HDF5 file: %s", path, H5_WHY);
        h5_drop(fapl);
        mem_free(p);
    } else {
        f->id = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
        if (f->id < 0) st = ERR(ST_E_FORMAT, "%s: not a whole HDF5 file, or locked: %s", path, H5_WHY);
    }
    if (st != ST_OK) goto fail;
    *f_p = f;
    return ST_OK;
fail:
    h5_close(f);
    return st;
}

int h5_is_hdf5(const char *path)
{
    quiet();
    return H5Fis_hdf5(path) > 0;
}

/* a rename is durable once its folder is */
static enum status sync_folder(const char *path)
{
    char *dir = mem_strdup(path);
    if (!dir) return ST_E_NOMEM;
    char *slash = strrchr(dir, '/');
    if (slash) slash[slash == dir] = 0;
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    mem_free(dir);
    /* some file systems refuse fsync of a folder; the rename itself has happened */
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    return ST_OK;
}

static enum status write_durably(const char *path, const char *p, size_t n)
{
    TRY(check_temporary(path));
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return ERR(ST_E_IO, "%s: cannot create: %s", path, strerror(errno));
    enum status st = ST_OK;
    while (n > 0 && st == ST_OK) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            st = ERR(ST_E_IO, "%s: cannot write: %s", path, strerror(errno));
        } else {
            p += k;
            n -= (size_t)k;
        }
    }
    if (st == ST_OK && fsync(fd) != 0) st = ERR(ST_E_IO, "%s: fsync: %s", path, strerror(errno));
    if (close(fd) != 0 && st == ST_OK) st = ERR(ST_E_IO, "%s: close: %s", path, strerror(errno));
    if (st != ST_OK) unlink(path);
    return st;
}

enum status h5_flush(struct h5 *f)
{
    if (!f->writable) return ERR(ST_E_RANGE, "%s: opened for reading only", f->path);
    if (H5Fflush(f->id, H5F_SCOPE_GLOBAL) < 0) return FAIL(f, "/", "flush");
    ssize_t n = H5Fget_file_image(f->id, NULL, 0);
    if (n <= 0) return FAIL(f, "/", "size of the file image");
    if ((size_t)n > f->image_bytes) {
        size_t room = (size_t)n + (size_t)n / 2;
        void *p = mem_alloc(room, 1, "an HDF5 file image");
        if (!p) return ST_E_NOMEM;
        mem_free(f->image);
        f->image = p;
        f->image_bytes = room;
    }
    if (H5Fget_file_image(f->id, f->image, (size_t)n) != n) return FAIL(f, "/", "file image");
    char *tmp = temporary(f->path);
    if (!tmp) return ST_E_NOMEM;
    enum status st = write_durably(tmp, f->image, (size_t)n);
    if (st == ST_OK && rename(tmp, f->path) != 0)
        st = ERR(ST_E_IO, "%s: cannot rename to %s: %s", tmp, f->path, strerror(errno));
    mem_free(tmp);
    if (st == ST_OK) st = sync_folder(f->path);
    return st;
}

void h5_close(struct h5 *f)
{
    if (!f) return;
    int saved = errno;
    if (f->id >= 0) H5Fclose(f->id);
    mem_free(f->path);
    mem_free(f->image);
    mem_free(f);
    errno = saved;
}

const char *h5_path(const struct h5 *f)
{
    return f->path;
}

/* H5Lexists needs every parent to exist */
int h5_exists(const struct h5 *f, const char *name)
{
    char part[512];
    size_t n = strlen(name);
    if (n >= sizeof part || name[0] != '/') return 0;
    if (n == 1) return 1;
    for (size_t i = 1; i <= n; i++) {
        if (name[i] != '/' && name[i] != 0) continue;
        memcpy(part, name, i);
        part[i] = 0;
        if (H5Lexists(f->id, part, H5P_DEFAULT) <= 0) return 0;
    }
    return H5Oexists_by_name(f->id, name, H5P_DEFAULT) > 0;
}

hid_t h5_parents_lcpl(void)
{
    hid_t p = H5Pcreate(H5P_LINK_CREATE);
    if (p >= 0 && (H5Pset_create_intermediate_group(p, 1) < 0 || H5Pset_char_encoding(p, H5T_CSET_UTF8) < 0)) {
        h5_drop(p);
        return -1;
    }
    return p;
}

enum status h5_group(struct h5 *f, const char *name)
{
    if (h5_exists(f, name)) return ST_OK;
    hid_t lcpl = h5_parents_lcpl();
    hid_t g = lcpl < 0 ? -1 : H5Gcreate2(f->id, name, lcpl, H5P_DEFAULT, H5P_DEFAULT);
    enum status st = g < 0 ? FAIL(f, name, "cannot create group") : ST_OK;
    h5_drop(g);
    h5_drop(lcpl);
    return st;
}

enum status h5_delete(struct h5 *f, const char *name)
{
    if (!h5_exists(f, name)) return ERR(ST_E_FORMAT, "%s: no object %s to delete", f->path, name);
    return H5Ldelete(f->id, name, H5P_DEFAULT) < 0 ? FAIL(f, name, "cannot delete") : ST_OK;
}

/* ---- attributes ----------------------------------------------------------------------------------- */

int h5_has_attr(const struct h5 *f, const char *object, const char *attr)
{
    return h5_exists(f, object) && H5Aexists_by_name(f->id, object, attr, H5P_DEFAULT) > 0;
}

static enum status attr_set(struct h5 *f, const char *object, const char *attr, hid_t ftype, hid_t mtype,
                            const void *value)
{
    if (!h5_exists(f, object)) return ERR(ST_E_FORMAT, "%s: no object %s for attribute %s", f->path, object, attr);
    hid_t space = -1, a = -1;
    enum status st = ST_OK;
    if (h5_has_attr(f, object, attr) && H5Adelete_by_name(f->id, object, attr, H5P_DEFAULT) < 0) {
        return FAIL(f, attr, "cannot replace attribute");
    }
    if (ftype >= 0) space = H5Screate(H5S_SCALAR);
    if (space >= 0)
        a = H5Acreate_by_name(f->id, object, attr, ftype, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (a < 0 || H5Awrite(a, mtype, value) < 0) st = FAIL(f, attr, "cannot write attribute");
    h5_drop(a);
    h5_drop(space);
    return st;
}

enum status h5_set_str(struct h5 *f, const char *object, const char *attr, const char *value)
{
    if (utf8_bad_at(value, strlen(value)) != strlen(value))
        return ERR(ST_E_FORMAT, "%s: attribute %s of %s: not UTF-8", f->path, attr, object);
    hid_t t = h5_string_type(H5T_VARIABLE, H5T_CSET_UTF8);
    enum status st = attr_set(f, object, attr, t, t, &value);
    h5_drop(t);
    return st;
}

enum status h5_set_int(struct h5 *f, const char *object, const char *attr, int64_t value)
{
    return attr_set(f, object, attr, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

enum status h5_set_real(struct h5 *f, const char *object, const char *attr, double value)
{
    return attr_set(f, object, attr, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

/* variable-length or fixed string of an open attribute */
static enum status attr_string(const struct h5 *f, hid_t a, hid_t ftype, const char *attr, char **s_p)
{
    int variable = H5Tis_variable_str(ftype) > 0;
    size_t size = variable ? H5T_VARIABLE : H5Tget_size(ftype) + 1;
    hid_t m = h5_string_type(size, H5Tget_cset(ftype));
    char *s = NULL, *out = NULL;
    enum status st = ST_OK;
    if (!variable && !(s = mem_alloc(size, 1, attr))) st = ST_E_NOMEM;
    if (st == ST_OK && (m < 0 || H5Aread(a, m, variable ? (void *)&s : (void *)s) < 0))
        st = FAIL(f, attr, "cannot read attribute");
    if (st == ST_OK && !(out = mem_strdup(s ? s : ""))) st = ST_E_NOMEM;
    if (variable && s) H5free_memory(s);
    if (!variable) mem_free(s);
    h5_drop(m);
    if (st == ST_OK) *s_p = out;
    return st;
}

/* kind of an open scalar attribute or -1 when it is none we read */
static int attr_kind(hid_t a, hid_t ftype)
{
    hid_t space = H5Aget_space(a);
    int scalar = space >= 0 && H5Sget_simple_extent_npoints(space) == 1;
    h5_drop(space);
    if (!scalar) return -1;
    switch (H5Tget_class(ftype)) {
    case H5T_STRING: return H5_KIND_STR;
    case H5T_INTEGER: return H5_KIND_I64;
    case H5T_FLOAT: return H5_KIND_F64;
    default: return -1;
    }
}

static enum status attr_load(const struct h5 *f, hid_t a, hid_t ftype, struct h5_attr *out)
{
    if (out->kind == H5_KIND_STR) return attr_string(f, a, ftype, out->name, &out->s);
    void *to = out->kind == H5_KIND_I64 ? (void *)&out->i : (void *)&out->d;
    if (H5Aread(a, h5_mem_type(out->kind), to) < 0) return FAIL(f, out->name, "cannot read attribute");
    return ST_OK;
}

static enum status attr_get(const struct h5 *f, const char *object, const char *attr, enum h5_kind want,
                            struct h5_attr *out)
{
    if (!h5_has_attr(f, object, attr)) return ERR(ST_E_FORMAT, "%s: %s has no attribute %s", f->path, object, attr);
    hid_t a = H5Aopen_by_name(f->id, object, attr, H5P_DEFAULT, H5P_DEFAULT);
    hid_t ftype = a < 0 ? -1 : H5Aget_type(a);
    enum status st = ST_OK;
    if (ftype < 0) {
        st = FAIL(f, attr, "cannot open attribute");
    } else if (attr_kind(a, ftype) != (int)want) {
        st = ERR(ST_E_FORMAT, "%s: attribute %s of %s is not one %s", f->path, attr, object, h5_kind_name(want));
    } else {
        snprintf(out->name, sizeof out->name, "%s", attr);
        out->kind = want;
        st = attr_load(f, a, ftype, out);
    }
    h5_drop(ftype);
    h5_drop(a);
    return st;
}

enum status h5_get_str(const struct h5 *f, const char *object, const char *attr, char **value_p)
{
    struct h5_attr a = {.s = NULL};
    TRY(attr_get(f, object, attr, H5_KIND_STR, &a));
    *value_p = a.s;
    return ST_OK;
}

enum status h5_get_int(const struct h5 *f, const char *object, const char *attr, int64_t *value_p)
{
    struct h5_attr a = {.i = 0};
    TRY(attr_get(f, object, attr, H5_KIND_I64, &a));
    *value_p = a.i;
    return ST_OK;
}

enum status h5_get_real(const struct h5 *f, const char *object, const char *attr, double *value_p)
{
    struct h5_attr a = {.d = 0};
    TRY(attr_get(f, object, attr, H5_KIND_F64, &a));
    *value_p = a.d;
    return ST_OK;
}

enum status h5_list_attrs(const struct h5 *f, const char *object, struct h5_attr **a_p, size_t *n_p)
{
    H5O_info_t info;
    if (!h5_exists(f, object)) return ERR(ST_E_FORMAT, "%s: no object %s", f->path, object);
    if (H5Oget_info_by_name2(f->id, object, &info, H5O_INFO_NUM_ATTRS, H5P_DEFAULT) < 0)
        return FAIL(f, object, "cannot count attributes");
    struct h5_attr *out = mem_alloc((size_t)info.num_attrs, sizeof *out, "attributes");
    if (!out) return ST_E_NOMEM;
    size_t n = 0;
    enum status st = ST_OK;
    for (hsize_t i = 0; i < info.num_attrs && st == ST_OK; i++) {
        hid_t a = H5Aopen_by_idx(f->id, object, H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT);
        hid_t ftype = a < 0 ? -1 : H5Aget_type(a);
        int kind = ftype < 0 ? -1 : attr_kind(a, ftype);
        if (ftype < 0 || H5Aget_name(a, sizeof out[n].name, out[n].name) < 0) {
            st = FAIL(f, object, "cannot open attribute");
        } else if (kind >= 0) {
            out[n].kind = (enum h5_kind)kind;
            st = attr_load(f, a, ftype, &out[n]);
            n += st == ST_OK;
        }
        h5_drop(ftype);
        h5_drop(a);
    }
    if (st != ST_OK) {
        h5_free_attrs(out, n);
        return st;
    }
    *a_p = out;
    *n_p = n;
    return ST_OK;
}

void h5_free_attrs(struct h5_attr *a, size_t n)
{
    for (size_t i = 0; i < n; i++) mem_free(a[i].s);
    mem_free(a);
}
