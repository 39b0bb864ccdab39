/* config_kit - write a config.json of our own, load it, look at the refusal; and walk through every field of a file.
 * Shared by the tests of target and draft configs. */
#ifndef PDFLASH_TESTS_CONFIG_KIT_H
#define PDFLASH_TESTS_CONFIG_KIT_H

#include "suite.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/config.h"

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

enum which { TARGET, DRAFT, DSPARK };

static const char *const base_dir[] = {"inputs/k3-nano", "inputs/k3-nano-dflash", "inputs/k3-nano-dspark"};

static inline json_t *base(enum which w)
{
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", suite_path(base_dir[w]));
    json_t *root = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(root);
    return root;
}

static inline const char *own_dir(void)
{
    static char dir[512];
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s", suite_tmp("dir"));
        mkdir(dir, 0777);
    }
    return dir;
}

static inline void write_text(const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", own_dir());
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static inline enum status load_own(enum which w, struct config *c, struct draft_config *d)
{
    struct config target;
    if (w == TARGET) return config_load(own_dir(), c);
    ck_assert_int_eq(config_load(suite_path(base_dir[TARGET]), &target), ST_OK);
    return draft_config_load(own_dir(), &target, d);
}

/* load text; needle NULL: it must be accepted, otherwise refused with a message that contains needle */
static inline void expect_text(enum which w, const char *text, const char *needle, const char *why)
{
    struct config c = {.n_layers = -7};
    struct draft_config d = {.n_layers = -7};
    write_text(text);
    enum status st = load_own(w, &c, &d);
    if (!needle) {
        ck_assert_msg(st == ST_OK, "%s: refused: %s", why, err_last());
        return;
    }
    ck_assert_msg(st == ST_E_CONFIG, "%s: %s instead of a refusal", why, err_name(st));
    ck_assert_msg(strstr(err_last(), needle) != NULL, "%s: message lacks \"%s\": %s", why, needle, err_last());
    ck_assert_msg(strstr(err_last(), "config.json") != NULL, "%s: message lacks the file: %s", why, err_last());
    ck_assert_int_eq(w == TARGET ? c.n_layers : d.n_layers, -7); /* set only on success */
}

static inline void write_json(const json_t *root)
{
    char *text = json_dumps(root, JSON_INDENT(1));
    write_text(text);
    free(text);
}

static inline void expect(enum which w, const json_t *root, const char *needle, const char *why)
{
    char *text = json_dumps(root, JSON_INDENT(1));
    expect_text(w, text, needle, why);
    free(text);
}

/* the refusals of a walk would fill pages; they are checked, not read */
static inline int hush(void)
{
    int keep = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    close(null);
    return keep;
}

static inline void unhush(int keep)
{
    dup2(keep, 2);
    close(keep);
}

static inline json_t *at(json_t *root, const char *path)
{
    char part[256];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        root = json_object_get(root, part);
        path += n + (path[n] == '.');
    }
    return root;
}

/* path = value (JSON text; NULL deletes) in a fresh copy of the base file */
static inline json_t *edited(enum which w, const char *path, const char *value)
{
    char parent[256] = "";
    const char *dot = strrchr(path, '.');
    if (dot) snprintf(parent, sizeof parent, "%.*s", (int)(dot - path), path);
    json_t *root = base(w), *obj = at(root, parent);
    ck_assert_msg(json_is_object(obj), "%s: no such object", path);
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        ck_assert_msg(v != NULL, "%s: bad JSON in the test: %s", path, value);
        json_object_set_new(obj, dot ? dot + 1 : path, v);
    } else {
        json_object_del(obj, dot ? dot + 1 : path);
    }
    return root;
}

/* ---- every field in turn ----------------------------------------------------------------------------- */

struct rule { /* fields whose change or absence is legal */
    const char *path;
    int may_change; /* 1: any value is accepted */
    int may_vanish;
    int may_flip; /* 1: the other value of its type that the walk tries (false for true, 1 for null) is accepted */
};

static const struct rule target_rule[] = {
    {"ignore_index", 1, 1, 0},        {"image_placeholder", 1, 1, 0},
    {"media_placeholder_token_id", 1, 1, 0}, {"text_config.initializer_range", 1, 1, 0},
    {"text_config.use_cache", 1, 1, 0},
};
static const struct rule draft_rule[] = {
    {"attention_dropout", 1, 1, 0}, {"bos_token_id", 1, 1, 0},  {"eos_token_id", 1, 1, 0},
    {"initializer_range", 1, 1, 0}, {"use_cache", 1, 1, 0},     {"tie_word_embeddings", 1, 1, 0},
    {"rope_scaling", 0, 1, 0},      {"use_sliding_window", 0, 1, 0},
};
static const struct rule dspark_rule[] = {
    {"attention_dropout", 1, 1, 0}, {"bos_token_id", 1, 1, 0},  {"eos_token_id", 1, 1, 0},
    {"initializer_range", 1, 1, 0}, {"use_cache", 1, 1, 0},     {"tie_word_embeddings", 1, 1, 0},
    {"rope_scaling", 0, 1, 0},      {"sample_from_anchor", 0, 1, 0}, {"sliding_window", 0, 1, 1},
    {"enable_confidence_head", 0, 0, 1}, {"confidence_head_with_markov", 0, 0, 1},
};

static inline const struct rule *rule_of(enum which w, const char *path)
{
    static const struct rule strict = {"", 0, 0, 0};
    const struct rule *r = w == TARGET ? target_rule : w == DRAFT ? draft_rule : dspark_rule;
    size_t n = w == TARGET ? N_OF(target_rule) : w == DRAFT ? N_OF(draft_rule) : N_OF(dspark_rule);
    for (size_t i = 0; i < n; i++)
        if (strcmp(r[i].path, path) == 0) return &r[i];
    return &strict;
}

/* A value of the same JSON type that no implementation could take for the field. */
static inline json_t *same_type(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_INTEGER: return json_integer(json_integer_value(v) ? -json_integer_value(v) : 1);
    case JSON_REAL: return json_real(-json_real_value(v));
    case JSON_TRUE: return json_false();
    case JSON_FALSE: return json_true();
    case JSON_STRING: return json_string("something else");
    case JSON_ARRAY: return json_array();
    case JSON_OBJECT: return json_pack("{s:i}", "surprise", 1);
    default: return json_integer(1);
    }
}

static int n_checked;

static inline void set_and_expect(enum which w, const char *path, json_t *value, const char *needle)
{
    char why[400], *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    json_t *root = edited(w, path, text);
    snprintf(why, sizeof why, "%s = %.60s", path, text);
    expect(w, root, needle, why);
    free(text);
    json_decref(value);
    json_decref(root);
    n_checked++;
}

static inline void walk(enum which w, json_t *obj, const char *prefix)
{
    const char *key;
    json_t *v;
    char path[256];
    json_object_foreach(obj, key, v)
    {
        snprintf(path, sizeof path, "%s%s", prefix, key);
        const struct rule *r = rule_of(w, path);
        /* what a draft keeps in dflash_config may also stand at the top, so only the field's own name is sure */
        const char *named = w == TARGET ? path : key, *changed = r->may_change ? NULL : named;
        json_t *gone = edited(w, path, NULL);
        expect(w, gone, r->may_vanish ? NULL : strcmp(path, "dflash_config") == 0 ? "mask_token_id" : named, path);
        json_decref(gone);
        n_checked++;
        set_and_expect(w, path, same_type(v), r->may_flip ? NULL : changed);
        set_and_expect(w, path, json_is_string(v) ? json_integer(7) : json_string("7"), changed);
        if (!json_is_null(v)) set_and_expect(w, path, json_null(), changed);
        if (!json_is_array(v)) set_and_expect(w, path, json_pack("[i]", 1), changed);
        if (json_is_object(v)) {
            char inner[257];
            snprintf(inner, sizeof inner, "%s.", path);
            walk(w, v, inner);
        }
    }
    snprintf(path, sizeof path, "%sinvented_field", prefix);
    set_and_expect(w, path, json_integer(1), path);
}

/* a single edit and its verdict */
struct edit {
    const char *path, *value; /* value NULL: delete */
    const char *needle;       /* NULL: accepted */
};

#endif
