#include "ckpt/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "ckpt/text_file.h"

enum { TEXT = 96 };

const char *fields_text(const json_t *value, char *out, size_t n)
{
    char *s =
        value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(9)) : NULL;
    if (!s)
        snprintf(out, n, "nothing");
    else if ((size_t)snprintf(out, n, "%s", s) >= n)
        memcpy(out + n - 4, "...", 4);
    free(s);
    return out;
}

static enum status parse(const char *file, const char *text, size_t n, json_t **root_p, uint64_t *hash_p)
{
    json_error_t why;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root) return ERR(ST_E_CONFIG, "%s:%d: not usable as JSON: %s", file, why.line, why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return ERR(ST_E_CONFIG, "%s: the file is not a JSON object", file);
    }
    char *canonical = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    if (!canonical) {
        json_decref(root);
        return ERR(ST_E_NOMEM, "%s: not enough memory", file);
    }
    *hash_p = hash64(canonical, strlen(canonical), 0);
    free(canonical);
    *root_p = root;
    return ST_OK;
}

enum status fields_load(const char *dir, char *file, size_t n, json_t **root_p, uint64_t *hash_p)
{
    char *text;
    size_t bytes;
    TRY(text_file_path(dir, "config.json", file, n));
    TRY(text_file_read(file, &text, &bytes));
    enum status st = parse(file, text, bytes, root_p, hash_p);
    mem_free(text);
    return st;
}

enum status fields_missing(struct field_place at, const char *name)
{
    return ERR(ST_E_CONFIG,
               "%s: %s%s: missing; no value is assumed, so take the config.json that belongs to the weights", at.file,
               at.prefix, name);
}

static enum status unknown(struct field_place at, const char *name, const json_t *value)
{
    char found[TEXT];
    return ERR(ST_E_CONFIG, "%s: %s%s: unknown field (found %s); it could change the result, so it is refused", at.file,
               at.prefix, name, fields_text(value, found, sizeof found));
}

static enum status differs(struct field_place at, const char *name, const json_t *found, const json_t *want)
{
    char a[TEXT], b[TEXT];
    return ERR(ST_E_CONFIG, "%s: %s%s: found %s, but only %s is implemented", at.file, at.prefix, name,
               fields_text(found, a, sizeof a), fields_text(want, b, sizeof b));
}

static int holds(const json_t *array, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        if (json_equal(json_array_get(array, i), value)) return 1;
    return 0;
}

static enum status same_set(struct field_place at, const char *name, const json_t *found, const json_t *want)
{
    char text[TEXT];
    if (!json_is_array(found)) return differs(at, name, found, want);
    for (size_t i = 0; i < json_array_size(want); i++)
        if (!holds(found, json_array_get(want, i)))
            return ERR(ST_E_CONFIG, "%s: %s%s: entry %s is missing", at.file, at.prefix, name,
                       fields_text(json_array_get(want, i), text, sizeof text));
    for (size_t i = 0; i < json_array_size(found); i++)
        if (!holds(want, json_array_get(found, i)))
            return ERR(ST_E_CONFIG, "%s: %s%s: entry %s is not implemented", at.file, at.prefix, name,
                       fields_text(json_array_get(found, i), text, sizeof text));
    return ST_OK;
}

static enum status same(struct field_place at, const char *name, const json_t *found, const json_t *want)
{
    char prefix[512];
    const char *key;
    json_t *w, *f;
    if (json_is_array(want)) return same_set(at, name, found, want);
    if (!json_is_object(want)) return json_equal(found, want) ? ST_OK : differs(at, name, found, want);
    if (!json_is_object(found)) return differs(at, name, found, want);
    snprintf(prefix, sizeof prefix, "%s%s.", at.prefix, name);
    struct field_place in = {at.file, prefix};
    json_object_foreach((json_t *)want, key, w)
    {
        f = json_object_get(found, key);
        if (!f) return fields_missing(in, key);
        TRY(same(in, key, f, w));
    }
    json_object_foreach((json_t *)found, key, f) if (!json_object_get(want, key)) return unknown(in, key, f);
    return ST_OK;
}

static enum status fixed(struct field_place at, const json_t *value, const struct field *row)
{
    json_error_t why;
    json_t *want = json_loads(row->fixed, JSON_DECODE_ANY, &why);
    if (!want) return ERR(ST_E_INTERNAL, "%s: table entry of %s: %s", at.file, row->name, why.text);
    enum status st = same(at, row->name, value, want);
    json_decref(want);
    return st;
}

enum status fields_value(struct field_place at, const json_t *value, const struct field *row, void *out)
{
    char text[TEXT], *to = (char *)out + row->offset;
    if (row->kind == FIELD_FIXED) return fixed(at, value, row);
    if (row->kind == FIELD_INT) {
        json_int_t v = json_integer_value(value);
        if (!json_is_integer(value) || v < (json_int_t)row->min || v > (json_int_t)row->max)
            return ERR(ST_E_CONFIG, "%s: %s%s: found %s, expected an integer from %.0f to %.0f", at.file, at.prefix,
                       row->name, fields_text(value, text, sizeof text), row->min, row->max);
        *(int *)(void *)to = (int)v;
        return ST_OK;
    }
    double v = json_number_value(value);
    if (!json_is_number(value) || !(v >= row->min && v <= row->max))
        return ERR(ST_E_CONFIG, "%s: %s%s: found %s, expected a number from %g to %g", at.file, at.prefix, row->name,
                   fields_text(value, text, sizeof text), row->min, row->max);
    if (row->kind == FIELD_FLOAT)
        *(float *)(void *)to = (float)v;
    else
        *(double *)(void *)to = v;
    return ST_OK;
}

static int known(const struct field_table *table, const char *name)
{
    for (size_t i = 0; i < table->n_rows; i++)
        if (strcmp(table->row[i].name, name) == 0) return 1;
    for (size_t i = 0; i < table->n_no_effect; i++)
        if (strcmp(table->no_effect[i], name) == 0) return 1;
    return 0;
}

enum status fields_read(struct field_place at, const json_t *obj, const struct field_table *table, void *out)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)obj, key, value) if (!known(table, key)) return unknown(at, key, value);
    for (size_t i = 0; i < table->n_rows; i++) {
        const struct field *row = &table->row[i];
        value = json_object_get(obj, row->name);
        if (!value && !row->optional) return fields_missing(at, row->name);
        if (value && row->kind != FIELD_OWN) TRY(fields_value(at, value, row, out));
    }
    return ST_OK;
}

enum status fields_ints(struct field_place at, const char *name, const json_t *value, int lo, int hi, int max,
                        int *out, int *n_p)
{
    char text[TEXT];
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n == 0 || n > (size_t)max)
        return ERR(ST_E_CONFIG, "%s: %s%s: found %s, expected a list of 1 to %d integers", at.file, at.prefix, name,
                   fields_text(value, text, sizeof text), max);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(value, i);
        if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
            return ERR(ST_E_CONFIG, "%s: %s%s: entry %zu is %s, expected an integer from %d to %d", at.file, at.prefix,
                       name, i, fields_text(v, text, sizeof text), lo, hi);
        out[i] = (int)json_integer_value(v);
    }
    *n_p = (int)n;
    return ST_OK;
}
