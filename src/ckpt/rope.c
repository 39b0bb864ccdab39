#include "ckpt/rope.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "ckpt/fields.h"

#define N_OF(a) (sizeof(a) / sizeof(a)[0])

struct raw { /* an object as it stands, NaN: absent */
    struct rope r;
    double attention_factor, mscale, mscale_all_dim;
};

#define REAL(name, member, optional, lo, hi) {name, FIELD_DOUBLE, optional, offsetof(struct raw, member), lo, hi, NULL}
#define OWN(name)                            {name, FIELD_OWN, 1, 0, 0, 0, NULL}

static const struct field theta_row = REAL("rope_theta", r.theta, 0, 1.0, 1e12);
static const struct field plain_row[] = {OWN("rope_type"), OWN("type"), OWN("rope_theta")};
static const struct field yarn_row[] = {
    OWN("rope_type"),
    OWN("type"),
    OWN("rope_theta"),
    OWN("truncate"),
    REAL("factor", r.factor, 0, 1.0, 1e6),
    {"original_max_position_embeddings", FIELD_INT, 0, offsetof(struct raw, r.original), 1, 1 << 30, NULL},
    REAL("beta_fast", r.beta_fast, 1, 1e-3, 1e6),
    REAL("beta_slow", r.beta_slow, 1, 1e-3, 1e6),
    REAL("attention_factor", attention_factor, 1, 1e-3, 1e3),
    REAL("mscale", mscale, 1, 0, 1e3),
    REAL("mscale_all_dim", mscale_all_dim, 1, 0, 1e3),
};
static const struct field_table plain_table = {plain_row, N_OF(plain_row), NULL, 0};
static const struct field_table yarn_table = {yarn_row, N_OF(yarn_row), NULL, 0};

/* rope_type, or its older name type; both only if they agree */
static enum status read_type(struct field_place at, const json_t *obj, int *yarn_p)
{
    const json_t *now = json_object_get(obj, "rope_type"), *old = json_object_get(obj, "type"), *v = now ? now : old;
    char a[64], b[64];
    if (!v) return fields_missing(at, "rope_type");
    if (now && old && !json_equal(now, old))
        return ERR(ST_E_CONFIG, "%s: %srope_type: found %s, but %stype is %s; remove the wrong one", at.file, at.prefix,
                   fields_text(now, a, sizeof a), at.prefix, fields_text(old, b, sizeof b));
    const char *name = json_string_value(v);
    *yarn_p = name && strcmp(name, "yarn") == 0;
    if (*yarn_p || (name && strcmp(name, "default") == 0)) return ST_OK;
    return ERR(ST_E_CONFIG, "%s: %s%s: found %s, but only \"default\" and \"yarn\" are implemented", at.file, at.prefix,
               now ? "rope_type" : "type", fields_text(v, a, sizeof a));
}

static double magnitude(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

static enum status read_yarn(struct field_place at, const json_t *obj, struct raw *w)
{
    const json_t *truncate = json_object_get(obj, "truncate");
    char found[64];
    *w = (struct raw){.r = {.yarn = 1, .beta_fast = 32, .beta_slow = 1, .truncate = 1}, .attention_factor = NAN};
    TRY(fields_read(at, obj, &yarn_table, w));
    if (truncate && !json_is_boolean(truncate))
        return ERR(ST_E_CONFIG, "%s: %struncate: found %s, expected true or false", at.file, at.prefix,
                   fields_text(truncate, found, sizeof found));
    if (truncate) w->r.truncate = json_is_true(truncate);
    if (w->r.beta_fast < w->r.beta_slow)
        return ERR(ST_E_CONFIG, "%s: %sbeta_fast: %g is below beta_slow (%g)", at.file, at.prefix, w->r.beta_fast,
                   w->r.beta_slow);
    int ratio = w->mscale != 0 && w->mscale_all_dim != 0;
    w->r.explicit_factor = !isnan(w->attention_factor);
    w->r.amplitude = !isnan(w->attention_factor) ? w->attention_factor
                     : ratio ? magnitude(w->r.factor, w->mscale) / magnitude(w->r.factor, w->mscale_all_dim)
                             : magnitude(w->r.factor, 1);
    return ST_OK;
}

/* one object of either spelling, theta aside */
static enum status read_object(struct field_place at, const char *name, const json_t *obj, struct rope *r)
{
    char prefix[64], found[96];
    struct raw w = {.r = {.amplitude = 1}};
    int yarn = 0;
    if (!json_is_object(obj))
        return ERR(ST_E_CONFIG, "%s: %s: found %s, expected an object", at.file, name,
                   fields_text(obj, found, sizeof found));
    snprintf(prefix, sizeof prefix, "%s.", name);
    struct field_place in = {at.file, prefix};
    TRY(read_type(in, obj, &yarn));
    if (yarn) TRY(read_yarn(in, obj, &w));
    else TRY(fields_read(in, obj, &plain_table, &w));
    w.r.theta = 0;
    *r = w.r;
    return ST_OK;
}

/* the base stands at the top or in one of the objects; where it stands more than once it must be the same */
static enum status read_theta(const char *file, const json_t *root, struct rope *r)
{
    static const char *const place[] = {"", "rope_parameters.", "rope_scaling."};
    const json_t *from[] = {root, json_object_get(root, "rope_parameters"), json_object_get(root, "rope_scaling")};
    int seen = -1;
    for (int i = 0; i < 3; i++) {
        const json_t *v = json_object_get(from[i], "rope_theta");
        struct raw w = {.attention_factor = NAN};
        if (!v) continue;
        TRY(fields_value((struct field_place){file, place[i]}, v, &theta_row, &w));
        if (seen >= 0 && r->theta != w.r.theta)
            return ERR(ST_E_CONFIG, "%s: rope_theta: %srope_theta says %g, %srope_theta says %g; remove the wrong one",
                       file, place[seen], r->theta, place[i], w.r.theta);
        r->theta = w.r.theta;
        seen = i;
    }
    if (seen >= 0) return ST_OK;
    return fields_missing((struct field_place){file, from[1] ? place[1] : ""}, "rope_theta");
}

static int same_scaling(const struct rope *a, const struct rope *b)
{
    return a->yarn == b->yarn && a->factor == b->factor && a->original == b->original && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->truncate == b->truncate && a->amplitude == b->amplitude;
}

enum status rope_read(const char *file, const json_t *root, struct rope *r_p)
{
    const json_t *old = json_object_get(root, "rope_scaling"), *now = json_object_get(root, "rope_parameters");
    struct field_place at = {file, ""};
    struct rope a = {.amplitude = 1}, b = a;
    int has_old = old && !json_is_null(old);
    if (has_old) TRY(read_object(at, "rope_scaling", old, &a));
    if (now) TRY(read_object(at, "rope_parameters", now, &b));
    /* an exporter that mirrors one spelling into the other writes both; a null beside an object says "plain" */
    if (now && old && !same_scaling(&a, &b))
        return ERR(ST_E_CONFIG, "%s: rope_scaling: differs from rope_parameters (%s factor %g and %s factor %g); remove "
                   "the wrong one", file, a.yarn ? "yarn" : "default", a.factor, b.yarn ? "yarn" : "default", b.factor);
    struct rope r = now ? b : a;
    TRY(read_theta(file, root, &r));
    *r_p = r;
    return ST_OK;
}

/* pair number whose wave turns `rotations` times over n positions */
static double border(double rotations, int dim, const struct rope *r)
{
    static const double tau = 6.283185307179586;
    return dim * log(r->original / (rotations * tau)) / (2 * log(r->theta));
}

void rope_frequencies(const struct rope *r, int dim, double *inv)
{
    for (int j = 0; j < dim / 2; j++) inv[j] = pow(r->theta, -2.0 * j / dim);
    if (!r->yarn) return;
    double low = border(r->beta_fast, dim, r), high = border(r->beta_slow, dim, r);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    for (int j = 0; j < dim / 2; j++) { /* fast pairs stay, slow ones are stretched, a ramp between */
        double ramp = fmin(fmax((j - low) / (high - low), 0), 1);
        inv[j] = inv[j] / r->factor * ramp + inv[j] * (1 - ramp);
    }
}
