#include <string.h>

#include "base/buf.h"
#include "data/h5_priv.h"
#include "data/utf8.h"

/* ---- datasets: opening, making, moving rows ------------------------------------------------------- */

struct set { /* an open dataset */
    hid_t id, type, space;
    int rank;
    hsize_t dim[H5_MAX_RANK];
};

static void set_close(struct set *s)
{
    h5_drop(s->space);
    h5_drop(s->type);
    h5_drop(s->id);
}

static enum status set_open(const struct h5 *f, const char *name, struct set *s)
{
    *s = (struct set){-1, -1, -1, 0, {0}};
    if (!h5_exists(f, name)) return ERR(ST_E_FORMAT, "%s: no dataset %s", f->path, name);
    s->id = H5Dopen2(f->id, name, H5P_DEFAULT);
    if (s->id >= 0) s->type = H5Dget_type(s->id);
    if (s->id >= 0) s->space = H5Dget_space(s->id);
    enum status st = ST_OK;
    if (s->id < 0 || s->type < 0 || s->space < 0) {
        st = ERR(ST_E_FORMAT, "%s: %s is not a dataset: %s", f->path, name, H5_WHY);
    } else {
        s->rank = H5Sget_simple_extent_ndims(s->space);
        if (s->rank < 0 || s->rank > H5_MAX_RANK)
            st = ERR(ST_E_FORMAT, "%s: %s has rank %d, at most %d is read", f->path, name, s->rank, H5_MAX_RANK);
        else if (H5Sget_simple_extent_dims(s->space, s->dim, NULL) < 0)
            st = FAIL(f, name, "cannot read the shape");
    }
    if (st != ST_OK) set_close(s);
    return st;
}

enum status h5_dims(const struct h5 *f, const char *name, int64_t dim[H5_MAX_RANK], int *rank_p)
{
    struct set s;
    TRY(set_open(f, name, &s));
    for (int i = 0; i < s.rank; i++) dim[i] = (int64_t)s.dim[i];
    *rank_p = s.rank;
    set_close(&s);
    return ST_OK;
}

/* a new dataset; chunk > 0: extendible along dim 0, which starts at 0 */
static enum status set_make(struct h5 *f, const char *name, hid_t type, int rank, const int64_t *dim,
                            int64_t chunk, const void *data, hid_t mtype)
{
    if (h5_exists(f, name)) return ERR(ST_E_RANGE, "%s: dataset %s exists already", f->path, name);
    if (rank < 0 || rank > H5_MAX_RANK)
        return ERR(ST_E_RANGE, "%s: %s: rank %d, at most %d", f->path, name, rank, H5_MAX_RANK);
    hsize_t now[H5_MAX_RANK] = {0}, most[H5_MAX_RANK] = {0}, piece[H5_MAX_RANK] = {0};
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 0) return ERR(ST_E_RANGE, "%s: %s: dimension %d is %lld", f->path, name, i, (long long)dim[i]);
        now[i] = most[i] = piece[i] = (hsize_t)dim[i];
    }
    hid_t dcpl = -1, space = -1, id = -1, lcpl = h5_parents_lcpl();
    dcpl = H5Pcreate(H5P_DATASET_CREATE);
    int ok = lcpl >= 0 && dcpl >= 0;
    if (chunk > 0) {
        now[0] = 0;
        most[0] = H5S_UNLIMITED;
        piece[0] = (hsize_t)chunk;
        ok = ok && H5Pset_chunk(dcpl, rank, piece) >= 0;
    }
    space = rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, now, most);
    if (ok && type >= 0 && space >= 0) id = H5Dcreate2(f->id, name, type, space, lcpl, dcpl, H5P_DEFAULT);
    enum status st = id < 0 ? FAIL(f, name, "cannot create dataset") : ST_OK;
    if (st == ST_OK && data && H5Sget_simple_extent_npoints(space) > 0 &&
        H5Dwrite(id, mtype, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        st = FAIL(f, name, "cannot write dataset");
    h5_drop(id);
    h5_drop(space);
    h5_drop(dcpl);
    h5_drop(lcpl);
    return st;
}

/* HDF5 clears its conversion buffer, 1 MiB unless told otherwise, at every write; a row needs far less */
static hid_t small_buffer(const struct set *s, hid_t mtype, const hsize_t *count)
{
    size_t have = H5Tget_size(mtype), want = H5Tget_size(s->type), bytes = have > want ? have : want;
    for (int i = 0; i < s->rank && bytes < (size_t)1 << 20; i++) bytes *= (size_t)count[i];
    hid_t dxpl = H5Pcreate(H5P_DATASET_XFER);
    if (bytes < (size_t)1 << 20) (void)H5Pset_buffer(dxpl, bytes < 4096 ? 4096 : bytes, NULL, NULL);
    return dxpl;
}

/* rows first..first+n-1 of an existing dataset; first < 0: behind the last row */
static enum status set_rows(struct h5 *f, const char *name, hid_t mtype, int64_t first, int64_t n, const void *data)
{
    if (n < 0) return ERR(ST_E_RANGE, "%s: %s: %lld rows", f->path, name, (long long)n);
    struct set s;
    TRY(set_open(f, name, &s));
    enum status st = ST_OK;
    hid_t mem = -1, sel = -1, dxpl = -1;
    hsize_t start[H5_MAX_RANK] = {0}, count[H5_MAX_RANK] = {0};
    if (s.rank < 1) {
        st = ERR(ST_E_RANGE, "%s: %s is a scalar, it has no rows", f->path, name);
        goto out;
    }
    if (n == 0) goto out;
    memcpy(count, s.dim, sizeof count);
    count[0] = (hsize_t)n;
    start[0] = first < 0 ? s.dim[0] : (hsize_t)first;
    if (first < 0) {
        s.dim[0] += (hsize_t)n;
        if (H5Dset_extent(s.id, s.dim) < 0) {
            st = FAIL(f, name, "cannot extend");
            goto out;
        }
    } else if ((hsize_t)first > s.dim[0] || (hsize_t)n > s.dim[0] - (hsize_t)first) {
        st = ERR(ST_E_RANGE, "%s: %s: rows %lld..%lld, it has %llu", f->path, name, (long long)first,
                 (long long)(first + n - 1), (unsigned long long)s.dim[0]);
        goto out;
    }
    sel = H5Dget_space(s.id);
    mem = H5Screate_simple(s.rank, count, NULL);
    dxpl = small_buffer(&s, mtype, count);
    if (sel < 0 || mem < 0 || dxpl < 0 || H5Sselect_hyperslab(sel, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dwrite(s.id, mtype, mem, sel, dxpl, data) < 0)
        st = FAIL(f, name, "cannot write rows");
out:
    h5_drop(dxpl);
    h5_drop(mem);
    h5_drop(sel);
    set_close(&s);
    return st;
}

/* ---- arrays of numbers ---------------------------------------------------------------------------- */

enum status h5_write(struct h5 *f, const char *name, enum h5_kind kind, int rank, const int64_t *dim,
                     const void *data)
{
    return set_make(f, name, h5_file_type(kind), rank, dim, 0, data, h5_mem_type(kind));
}

enum status h5_make(struct h5 *f, const char *name, enum h5_kind kind, int64_t width, int64_t chunk)
{
    if (chunk < 1) return ERR(ST_E_RANGE, "%s: %s: chunk %lld", f->path, name, (long long)chunk);
    return set_make(f, name, h5_file_type(kind), width > 0 ? 2 : 1, (int64_t[2]){0, width}, chunk, NULL, -1);
}

enum status h5_append(struct h5 *f, const char *name, enum h5_kind kind, int64_t n, const void *data)
{
    return set_rows(f, name, h5_mem_type(kind), -1, n, data);
}

enum status h5_put(struct h5 *f, const char *name, enum h5_kind kind, int64_t first, int64_t n, const void *data)
{
    if (first < 0) return ERR(ST_E_RANGE, "%s: %s: row %lld", f->path, name, (long long)first);
    return set_rows(f, name, h5_mem_type(kind), first, n, data);
}

/* nothing may be clipped: same class, not wider, sign kept */
static int fits(hid_t stored, enum h5_kind kind)
{
    size_t n = H5Tget_size(stored), room = h5_kind_bytes(kind);
    if (kind == H5_KIND_F32 || kind == H5_KIND_F64) return H5Tget_class(stored) == H5T_FLOAT && n <= room;
    if (H5Tget_class(stored) != H5T_INTEGER) return 0;
    int is_signed = H5Tget_sign(stored) == H5T_SGN_2, want_signed = kind != H5_KIND_U64;
    return is_signed == want_signed ? n <= room : !is_signed && n < room;
}

enum status h5_read(const struct h5 *f, const char *name, enum h5_kind kind, int64_t dim[H5_MAX_RANK], int *rank_p,
                    void **data_p)
{
    struct set s;
    TRY(set_open(f, name, &s));
    enum status st = ST_OK;
    void *p = NULL;
    hssize_t n = H5Sget_simple_extent_npoints(s.space);
    if (!fits(s.type, kind))
        st = ERR(ST_E_FORMAT, "%s: %s is not %s: class %d of %zu bytes", f->path, name, h5_kind_name(kind),
                 (int)H5Tget_class(s.type), H5Tget_size(s.type));
    else if (n < 0)
        st = FAIL(f, name, "cannot count elements");
    else if (!(p = mem_alloc((size_t)n, h5_kind_bytes(kind), name)))
        st = ST_E_NOMEM;
    else if (n > 0 && H5Dread(s.id, h5_mem_type(kind), H5S_ALL, H5S_ALL, H5P_DEFAULT, p) < 0)
        st = FAIL(f, name, "cannot read");
    if (st == ST_OK) {
        for (int i = 0; i < s.rank; i++) dim[i] = (int64_t)s.dim[i];
        *rank_p = s.rank;
        *data_p = p;
    } else {
        mem_free(p);
    }
    set_close(&s);
    return st;
}

enum status h5_read_f32(const struct h5 *f, const char *name, int64_t dim[H5_MAX_RANK], int *rank_p, float **data_p)
{
    void *p;
    TRY(h5_read(f, name, H5_KIND_F32, dim, rank_p, &p));
    *data_p = p;
    return ST_OK;
}

enum status h5_read_i32(const struct h5 *f, const char *name, int64_t dim[H5_MAX_RANK], int *rank_p,
                        int32_t **data_p)
{
    void *p;
    TRY(h5_read(f, name, H5_KIND_I32, dim, rank_p, &p));
    *data_p = p;
    return ST_OK;
}

enum status h5_read_vec(const struct h5 *f, const char *name, enum h5_kind kind, void **data_p, size_t *n_p)
{
    int64_t dim[H5_MAX_RANK];
    int rank;
    void *p;
    TRY(h5_read(f, name, kind, dim, &rank, &p));
    if (rank != 1) {
        mem_free(p);
        return ERR(ST_E_FORMAT, "%s: %s has rank %d, wanted 1", f->path, name, rank);
    }
    *data_p = p;
    *n_p = (size_t)dim[0];
    return ST_OK;
}

/* ---- strings -------------------------------------------------------------------------------------- */

enum status h5_make_str(struct h5 *f, const char *name, int64_t chunk)
{
    if (chunk < 1) return ERR(ST_E_RANGE, "%s: %s: chunk %lld", f->path, name, (long long)chunk);
    hid_t t = h5_string_type(H5T_VARIABLE, H5T_CSET_UTF8);
    enum status st = set_make(f, name, t, 1, (int64_t[1]){0}, chunk, NULL, -1);
    h5_drop(t);
    return st;
}

enum status h5_append_str(struct h5 *f, const char *name, size_t n, const char *const *s)
{
    const char **v = mem_alloc(n, sizeof *v, name);
    if (!v) return ST_E_NOMEM;
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        v[i] = s[i] ? s[i] : "";
        size_t len = strlen(v[i]), bad = utf8_bad_at(v[i], len);
        if (bad != len) st = ERR(ST_E_FORMAT, "%s: %s: string %zu is not UTF-8 at byte %zu", f->path, name, i, bad);
    }
    hid_t t = h5_string_type(H5T_VARIABLE, H5T_CSET_UTF8);
    if (st == ST_OK) st = set_rows(f, name, t, -1, (int64_t)n, v);
    h5_drop(t);
    mem_free(v);
    return st;
}

static enum status read_variable(const struct h5 *f, const char *name, const struct set *s, size_t n, char **out)
{
    hid_t t = h5_string_type(H5T_VARIABLE, H5Tget_cset(s->type));
    char **raw = mem_alloc(n, sizeof *raw, name);
    enum status st = ST_OK;
    if (!raw) {
        st = ST_E_NOMEM;
    } else if (t < 0 || H5Dread(s->id, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw) < 0) {
        st = FAIL(f, name, "cannot read strings");
    } else {
        for (size_t i = 0; i < n && st == ST_OK; i++)
            if (!(out[i] = mem_strdup(raw[i] ? raw[i] : ""))) st = ST_E_NOMEM;
        H5Dvlen_reclaim(t, s->space, H5P_DEFAULT, raw);
    }
    h5_drop(t);
    mem_free(raw);
    return st;
}

/* one string of a fixed-length type without its padding; a zero inside it would cut it */
static enum status copy_fixed(const struct h5 *f, const char *name, size_t i, const char *s, size_t n, H5T_str_t pad,
                              char **out_p)
{
    if (pad == H5T_STR_NULLTERM) n = strnlen(s, n);
    while (n > 0 && s[n - 1] == (pad == H5T_STR_SPACEPAD ? ' ' : 0)) n--;
    if (memchr(s, 0, n)) return ERR(ST_E_FORMAT, "%s: %s: string %zu contains a zero character", f->path, name, i);
    char *copy = mem_alloc(n + 1, 1, name);
    if (!copy) return ST_E_NOMEM;
    memcpy(copy, s, n);
    *out_p = copy;
    return ST_OK;
}

static enum status read_fixed(const struct h5 *f, const char *name, const struct set *s, size_t n, char **out)
{
    size_t width = H5Tget_size(s->type);
    char *raw = mem_alloc(n, width, name);
    enum status st = raw ? ST_OK : ST_E_NOMEM;
    if (raw && H5Dread(s->id, s->type, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw) < 0)
        st = FAIL(f, name, "cannot read strings");
    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = copy_fixed(f, name, i, raw + i * width, width, H5Tget_strpad(s->type), &out[i]);
    mem_free(raw);
    return st;
}

int h5_is_text(const struct h5 *f, const char *name)
{
    struct set s;
    if (!h5_exists(f, name) || set_open(f, name, &s) != ST_OK) return 0;
    int text = H5Tget_class(s.type) == H5T_STRING;
    set_close(&s);
    return text;
}

enum status h5_read_str(const struct h5 *f, const char *name, char ***s_p, size_t *n_p)
{
    struct set s;
    TRY(set_open(f, name, &s));
    enum status st = ST_OK;
    size_t n = s.rank == 1 ? (size_t)s.dim[0] : 0;
    char **out = NULL;
    if (s.rank != 1 || H5Tget_class(s.type) != H5T_STRING)
        st = ERR(ST_E_FORMAT, "%s: %s is not a list of strings", f->path, name);
    else if (!(out = mem_alloc(n, sizeof *out, name)))
        st = ST_E_NOMEM;
    else if (n > 0)
        st = H5Tis_variable_str(s.type) > 0 ? read_variable(f, name, &s, n, out) : read_fixed(f, name, &s, n, out);
    set_close(&s);
    if (st == ST_OK) {
        *s_p = out;
        *n_p = n;
    } else {
        h5_free_str(out, out ? n : 0);
    }
    return st;
}

void h5_free_str(char **s, size_t n)
{
    for (size_t i = 0; i < n; i++) mem_free(s[i]);
    mem_free(s);
}

/* ---- tables --------------------------------------------------------------------------------------- */

/* packed: the type in the file; otherwise the C struct */
static hid_t table_type(const struct h5_table *t, int packed)
{
    size_t bytes = 0;
    for (int i = 0; i < t->n_fields; i++)
        bytes += t->field[i].kind == H5_KIND_STR ? t->field[i].size : h5_kind_bytes(t->field[i].kind);
    hid_t id = H5Tcreate(H5T_COMPOUND, packed ? bytes : t->row_bytes);
    size_t at = 0;
    for (int i = 0; i < t->n_fields && id >= 0; i++) {
        const struct h5_field *x = &t->field[i];
        int is_str = x->kind == H5_KIND_STR;
        hid_t m = is_str   ? h5_string_type(x->size, H5T_CSET_UTF8)
                  : packed ? h5_file_type(x->kind)
                           : h5_mem_type(x->kind);
        herr_t rc = m < 0 ? -1 : H5Tinsert(id, x->name, packed ? at : x->offset, m);
        if (is_str) h5_drop(m);
        at += is_str ? x->size : h5_kind_bytes(x->kind);
        if (rc < 0) {
            h5_drop(id);
            id = -1;
        }
    }
    return id;
}

enum status h5_make_rows(struct h5 *f, const char *name, const struct h5_table *t, int64_t chunk)
{
    if (chunk < 1) return ERR(ST_E_RANGE, "%s: %s: chunk %lld", f->path, name, (long long)chunk);
    hid_t type = table_type(t, 1);
    enum status st = set_make(f, name, type, 1, (int64_t[1]){0}, chunk, NULL, -1);
    h5_drop(type);
    return st;
}

static enum status put_table(struct h5 *f, const char *name, const struct h5_table *t, int64_t first, int64_t n,
                             const void *row)
{
    hid_t type = table_type(t, 0);
    enum status st = type < 0 ? FAIL(f, name, "table type") : set_rows(f, name, type, first, n, row);
    h5_drop(type);
    return st;
}

enum status h5_append_rows(struct h5 *f, const char *name, const struct h5_table *t, int64_t n, const void *row)
{
    return put_table(f, name, t, -1, n, row);
}

enum status h5_put_rows(struct h5 *f, const char *name, const struct h5_table *t, int64_t first, int64_t n,
                        const void *row)
{
    if (first < 0) return ERR(ST_E_RANGE, "%s: %s: row %lld", f->path, name, (long long)first);
    return put_table(f, name, t, first, n, row);
}

/* every field must be stored with a type that fits its C member */
static enum status check_fields(const struct h5 *f, const char *name, const struct h5_table *t, hid_t stored)
{
    if (H5Tget_class(stored) != H5T_COMPOUND) return ERR(ST_E_FORMAT, "%s: %s is not a table", f->path, name);
    for (int i = 0; i < t->n_fields; i++) {
        const struct h5_field *x = &t->field[i];
        int at = H5Tget_member_index(stored, x->name);
        if (at < 0) return ERR(ST_E_FORMAT, "%s: table %s has no field %s", f->path, name, x->name);
        hid_t m = H5Tget_member_type(stored, (unsigned)at);
        int ok = x->kind == H5_KIND_STR
                     ? H5Tget_class(m) == H5T_STRING && H5Tis_variable_str(m) == 0 && H5Tget_size(m) <= x->size
                     : fits(m, x->kind);
        h5_drop(m);
        if (!ok)
            return ERR(ST_E_FORMAT, "%s: table %s: field %s is not %s", f->path, name, x->name, h5_kind_name(x->kind));
    }
    return ST_OK;
}

enum status h5_read_rows(const struct h5 *f, const char *name, const struct h5_table *t, void **row_p, size_t *n_p)
{
    struct set s;
    TRY(set_open(f, name, &s));
    void *p = NULL;
    hid_t type = -1;
    enum status st = s.rank == 1 ? check_fields(f, name, t, s.type)
                                 : ERR(ST_E_FORMAT, "%s: table %s has rank %d, wanted 1", f->path, name, s.rank);
    if (st != ST_OK) goto out;
    type = table_type(t, 0);
    p = mem_alloc((size_t)s.dim[0], t->row_bytes, name);
    if (!p)
        st = ST_E_NOMEM;
    else if (type < 0 || (s.dim[0] > 0 && H5Dread(s.id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, p) < 0))
        st = FAIL(f, name, "cannot read table");
out:
    h5_drop(type);
    set_close(&s);
    if (st == ST_OK) {
        *row_p = p;
        *n_p = (size_t)s.dim[0];
    } else {
        mem_free(p);
    }
    return st;
}
