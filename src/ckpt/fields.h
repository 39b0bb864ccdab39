/* fields - check every member of a JSON object against a table of what this program understands.
 *
 * A member is read into a struct, must equal the one value that is implemented, is left to the caller, or is
 * listed as having no effect. Anything else is refused with ST_E_CONFIG and its full name. Local. */
#ifndef PDFLASH_CKPT_FIELDS_H
#define PDFLASH_CKPT_FIELDS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum field_kind {
    FIELD_INT,    /* integer within min..max -> int at offset */
    FIELD_FLOAT,  /* number within min..max -> float at offset */
    FIELD_DOUBLE, /* number within min..max -> double at offset */
    FIELD_FIXED,  /* must equal the JSON text fixed: objects member by member, arrays as sets */
    FIELD_OWN     /* the caller reads it */
};

struct field {
    const char *name;
    enum field_kind kind;
    int optional; /* 1: may be absent (then nothing is stored) */
    size_t offset;
    double min, max;
    const char *fixed;
};

struct field_table {
    const struct field *row;
    size_t n_rows;
    const char *const *no_effect; /* names that are accepted with any value, or absent */
    size_t n_no_effect;
};

/* Where a member was found, for messages: "FILE: PREFIXname: ..."; prefix is "" or ends in a dot. */
struct field_place {
    const char *file, *prefix;
};

/* fields_load - parse DIR/config.json; duplicate keys and anything but an object are refused. *root_p is released
 * with json_decref; file (n bytes) receives the path, *hash_p hash64 of the key-sorted compact text.
 * ST_E_FILE, ST_E_CONFIG, ST_E_NOMEM. */
enum status fields_load(const char *dir, char *file, size_t n, json_t **root_p, uint64_t *hash_p);
/* fields_read - check all members of obj against the table; values go to out. */
enum status fields_read(struct field_place at, const json_t *obj, const struct field_table *table, void *out);
/* fields_value - one value against one row (not FIELD_OWN). */
enum status fields_value(struct field_place at, const json_t *value, const struct field *row, void *out);
/* fields_missing - the refusal of an absent member. */
enum status fields_missing(struct field_place at, const char *name);
/* fields_ints - a non-empty array of at most max integers within lo..hi. */
enum status fields_ints(struct field_place at, const char *name, const json_t *value, int lo, int hi, int max,
                        int *out, int *n_p);
/* fields_text - value as JSON text, cut to n bytes with "..." at the end; returns out. */
const char *fields_text(const json_t *value, char *out, size_t n);

#endif
