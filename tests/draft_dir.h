/* draft_dir - a draft checkpoint of a test's own: the nano one with members of its config replaced and tensors added. */
#ifndef PDFLASH_TESTS_DRAFT_DIR_H
#define PDFLASH_TESTS_DRAFT_DIR_H

#include "suite.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A BF16 tensor more. data NULL: none. */
struct draft_tensor { const char *name; int rows, cols; /* cols 0: a vector */ const uint16_t *data; };

static inline char *draft_dir_read(const char *path, size_t *n_p)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    fseek(f, 0, SEEK_END);
    *n_p = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(*n_p);
    ck_assert_uint_eq(fread(p, 1, *n_p, f), *n_p);
    fclose(f);
    return p;
}

static inline void draft_dir_weights(const char *from, const char *to, const struct draft_tensor *t)
{
    size_t n;
    char *all = draft_dir_read(from, &n);
    uint64_t head;
    memcpy(&head, all, 8);
    json_t *j = json_loadb(all + 8, head, 0, NULL);
    ck_assert_ptr_nonnull(j);
    size_t bytes = n - 8 - head, more = 0;
    if (t && t->data) {
        more = 2 * (size_t)t->rows * (size_t)(t->cols ? t->cols : 1);
        json_t *shape = t->cols ? json_pack("[i,i]", t->rows, t->cols) : json_pack("[i]", t->rows);
        json_object_set_new(j, t->name, json_pack("{s:s,s:o,s:[I,I]}", "dtype", "BF16", "shape", shape, "data_offsets",
                                                  (json_int_t)bytes, (json_int_t)(bytes + more)));
    }
    char *text = json_dumps(j, JSON_COMPACT);
    uint64_t len = strlen(text);
    FILE *f = fopen(to, "wb");
    ck_assert_ptr_nonnull(f);
    fwrite(&len, 8, 1, f);
    fwrite(text, 1, len, f);
    fwrite(all + 8 + head, 1, bytes, f);
    if (more) fwrite(t->data, 1, more, f);
    ck_assert_int_eq(fclose(f), 0);
    json_decref(j);
    free(text);
    free(all);
}

/* draft_dir_make - directory `name` from inputs/`source`; edits: a JSON object of members to set, NULL: none. */
static inline const char *draft_dir_make(const char *name, const char *source, const char *edits,
                                         const struct draft_tensor *t)
{
    static char dir[4][512];
    static int turn;
    char from[600], to[600], *at = dir[turn++ % 4];
    snprintf(at, sizeof dir[0], "%s", suite_tmp(name));
    mkdir(at, 0777);
    snprintf(from, sizeof from, "%s/config.json", suite_path(source));
    snprintf(to, sizeof to, "%s/config.json", at);
    json_t *c = json_load_file(from, 0, NULL), *e = edits ? json_loads(edits, 0, NULL) : json_object();
    ck_assert(c && e);
    json_object_update(c, e);
    ck_assert_int_eq(json_dump_file(c, to, JSON_INDENT(1)), 0);
    json_decref(c);
    json_decref(e);
    snprintf(from, sizeof from, "%s/model.safetensors", suite_path(source));
    snprintf(to, sizeof to, "%s/model.safetensors", at);
    draft_dir_weights(from, to, t);
    return at;
}

#endif
