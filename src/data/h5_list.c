/* h5_list - the names and types of all that a file holds. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "data/h5_priv.h"

struct list {
    const struct h5 *f;
    struct h5_object *o;
    size_t n, room;
};

static void type_text(hid_t t, char *text, size_t n)
{
    size_t bytes = H5Tget_size(t);
    switch (H5Tget_class(t)) {
    case H5T_INTEGER: snprintf(text, n, "%sint%zu", H5Tget_sign(t) == H5T_SGN_NONE ? "u" : "", 8 * bytes); break;
    case H5T_FLOAT: snprintf(text, n, "float%zu", 8 * bytes); break;
    case H5T_COMPOUND: snprintf(text, n, "table"); break;
    case H5T_STRING:
        if (H5Tget_cset(t) != H5T_CSET_UTF8)
            snprintf(text, n, "?");
        else if (H5Tis_variable_str(t) > 0)
            snprintf(text, n, "text");
        else
            snprintf(text, n, "char[%zu]", bytes);
        break;
    default: snprintf(text, n, "?");
    }
}

static enum status add(struct list *l, const char *parent, const char *between, const char *name,
                       struct h5_object **o_p)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        struct h5_object *o = mem_grow(l->o, l->room, room, sizeof *o, "names of objects");
        if (!o) return ST_E_NOMEM;
        l->o = o;
        l->room = room;
    }
    struct h5_object *o = &l->o[l->n];
    memset(o, 0, sizeof *o);
    o->rank = -1;
    if (strlen(parent) + strlen(between) + strlen(name) >= sizeof o->name)
        return ERR(ST_E_FORMAT, "%s: %s%s%.40s...: name is longer than %d bytes", h5_path(l->f), parent, between, name,
                   H5_MAX_NAME - 1);
    snprintf(o->name, sizeof o->name, "%s%s%s", parent, between, name);
    l->n++;
    *o_p = o;
    return ST_OK;
}

static enum status add_fields(struct list *l, const char *table, hid_t type)
{
    enum status st = ST_OK;
    int n = H5Tget_nmembers(type);
    for (int i = 0; i < n && st == ST_OK; i++) {
        struct h5_object *o;
        char *name = H5Tget_member_name(type, (unsigned)i);
        hid_t member = H5Tget_member_type(type, (unsigned)i);
        if (!name || member < 0)
            st = FAIL(l->f, table, "cannot read its fields");
        else if ((st = add(l, table, ".", name, &o)) == ST_OK)
            type_text(member, o->type, sizeof o->type);
        h5_drop(member);
        H5free_memory(name);
    }
    return st;
}

static enum status add_dataset(struct list *l, const char *parent, const char *name, hid_t id)
{
    struct h5_object *o;
    hid_t type = H5Dget_type(id), space = H5Dget_space(id);
    hsize_t dim[H5S_MAX_RANK] = {0}, most[H5S_MAX_RANK] = {0};
    enum status st = type >= 0 && space >= 0 ? add(l, parent, "/", name, &o) : FAIL(l->f, name, "cannot read its type");
    if (st == ST_OK) {
        char full[H5_MAX_NAME];
        o->rank = H5Sget_simple_extent_dims(space, dim, most);
        o->grows = o->rank > 0 && most[0] == H5S_UNLIMITED;
        type_text(type, o->type, sizeof o->type);
        memcpy(full, o->name, sizeof full);
        if (H5Tget_class(type) == H5T_COMPOUND) st = add_fields(l, full, type);
    }
    h5_drop(type);
    h5_drop(space);
    return st;
}

static enum status add_group(struct list *l, const char *path, hid_t group);

static enum status add_object(struct list *l, const char *parent, const char *name, hid_t id)
{
    struct h5_object *o;
    char full[H5_MAX_NAME];
    if (H5Iget_type(id) == H5I_DATASET) return add_dataset(l, parent, name, id);
    TRY(add(l, parent, "/", name, &o));
    int is_group = H5Iget_type(id) == H5I_GROUP;
    snprintf(o->type, sizeof o->type, "%s", is_group ? "group" : "?");
    memcpy(full, o->name, sizeof full);
    return is_group ? add_group(l, full, id) : ST_OK;
}

static enum status add_group(struct list *l, const char *path, hid_t group)
{
    H5G_info_t info;
    enum status st = H5Gget_info(group, &info) < 0 ? FAIL(l->f, path, "cannot be read") : ST_OK;
    for (hsize_t i = 0; st == ST_OK && i < info.nlinks; i++) {
        char name[H5_MAX_NAME];
        ssize_t n = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT);
        if (n < 0 || n >= (ssize_t)sizeof name)
            return ERR(ST_E_FORMAT, "%s: %s: a name cannot be read, or is longer than %d bytes", h5_path(l->f), path,
                       H5_MAX_NAME - 1);
        hid_t id = H5Oopen(group, name, H5P_DEFAULT);
        st = id < 0 ? FAIL(l->f, name, "cannot be opened") : add_object(l, path, name, id);
        h5_drop(id);
    }
    return st;
}

enum status h5_list(const struct h5 *f, struct h5_object **o_p, size_t *n_p)
{
    struct list l = {f, NULL, 0, 0};
    hid_t root = H5Gopen2(f->id, "/", H5P_DEFAULT);
    enum status st = root < 0 ? FAIL(f, "/", "cannot be opened") : add_group(&l, "", root);
    h5_drop(root);
    if (st == ST_OK) {
        *o_p = l.o;
        *n_p = l.n;
    } else {
        mem_free(l.o);
    }
    return st;
}
