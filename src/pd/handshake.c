#include "pd/handshake.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "pd/wait.h"

/* ---- the rules as tables --------------------------------------------------------------------------------- */

enum type { U32, U64, I32, F64 };
enum scope { EVERY_RANK, DECODE_RANKS }; /* whose values must agree */

static const struct rule { /* fields that must be equal */
    const char *name;
    size_t at;
    enum type type;
    int n; /* array length */
    enum scope scope;
    const char *remedy;
} first_rules[] = {
    /* without these nothing else can be read */
    {"protocol version", offsetof(struct descriptor, version), U32, 1, EVERY_RANK, "start the same program on all ranks"},
    {"descriptor size (bytes)", offsetof(struct descriptor, struct_bytes), U32, 1, EVERY_RANK,
     "start the same program on all ranks"},
    {"byte order", offsetof(struct descriptor, endian), U32, 1, EVERY_RANK, "use hosts of one kind"},
};

#define SAME(f, type, remedy) {#f, offsetof(struct descriptor, f), type, 1, EVERY_RANK, remedy}
static const char one_model[] = "give both groups the same --model";
static const char one_draft[] = "give both groups the same --draft and --spec";
static const char one_option[] = "give both groups the same options";
static const struct rule rules[] = { /* what a person can act on first, hashes last */
    SAME(draft_kind, U32, one_draft),
    SAME(page, U32, one_option),
    SAME(order, U32, one_option),
    SAME(kv, U32, "give both groups the same --kv-dtype"),
    SAME(draft_kv, U32, "give both groups the same --kv-dtype"),
    SAME(temporal_bytes, U32, one_option),
    SAME(act, U32, "give both groups the same --act"),
    SAME(n_slots, U32, one_option),
    {"pages_per_slot", offsetof(struct descriptor, pages_per_slot), U32, 1, DECODE_RANKS, one_option},
    {"slot_bytes", offsetof(struct descriptor, slot_bytes), U64, 1, DECODE_RANKS, one_option},
    SAME(block, U32, one_draft),
    SAME(confidence, F64, one_option),
    SAME(adaptive, U32, one_option),
    SAME(min_context, U32, one_option),
    SAME(temperature, F64, one_option),
    SAME(top_p, F64, one_option),
    SAME(top_k, U32, one_option),
    SAME(seed, U64, one_option),
    SAME(draws_drafts, U32, "give both groups the same --draft-sampling"),
    SAME(draft_temperature, F64, one_option),
    SAME(mask_id, U32, one_draft),
    SAME(n_taps, U32, one_draft),
    {"tap", offsetof(struct descriptor, tap), I32, CONFIG_MAX_TAPS, EVERY_RANK, one_draft},
    SAME(window, U32, one_draft),
    SAME(rope_theta, F64, one_draft),
    SAME(draft_heads, U32, one_draft),
    SAME(draft_head_dim, U32, one_draft),
    SAME(draft_layers, U32, one_draft),
    SAME(mla_width, U32, one_model),
    SAME(mla_row_bytes, U32, one_model),
    SAME(kda_heads, U32, one_model),
    SAME(kda_dim, U32, one_model),
    SAME(conv_kernel, U32, one_model),
    SAME(state_convention, U32, "start the same program on all ranks"),
    SAME(target_config, U64, one_model),
    SAME(draft_config, U64, one_draft),
    SAME(tokenizer, U64, one_model),
    SAME(weights, U64, one_model),
    SAME(build, U64, "start the same program on all ranks"),
};
static const struct rule last_rules[] = {
    SAME(plan_hash, U64, "the groups disagree on the plan of some pair; give both the same options and models"),
};
#undef SAME

/* ---- formulas: what a rank's field must be, from its place and the totals all ranks share ---------------------- */

static uint64_t want_role(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)d;
    (void)g;
    return (uint64_t)r->role;
}

static uint64_t want_stage(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)d;
    (void)g;
    return (uint64_t)r->stage;
}

static uint64_t want_tp(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)d;
    (void)r;
    return (uint64_t)g->tp;
}

static uint64_t want_tp_rank(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)d;
    (void)g;
    return (uint64_t)r->tp_rank;
}

static uint64_t want_pp(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)d;
    return r->role == ROLE_DECODE ? 1 : (uint64_t)g->pp;
}

static uint64_t want_draft_heads(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)r;
    return d->draft_kind == 0 ? 0 : d->draft_heads > (uint32_t)g->tp ? d->draft_heads / (uint32_t)g->tp : 1;
}

static uint64_t want_draft_first(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    return d->draft_kind == 0 ? 0 : (uint64_t)split_kv_heads((int)d->draft_heads, g->tp, r->tp_rank).begin;
}

static uint64_t want_kda_heads(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)r;
    return d->kda_heads / (uint32_t)g->tp;
}

static uint64_t want_row_bytes(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)r;
    (void)g;
    return (uint64_t)d->mla_width * (uint64_t)kv_bytes((enum kv_dtype)d->kv);
}

static uint64_t want_temporal(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)d;
    (void)r;
    (void)g;
    return sizeof(float);
}

static uint64_t want_convention(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)d;
    (void)r;
    (void)g;
    return 1;
}

static uint64_t want_layers(const struct descriptor *d, const struct rank_role *r, const struct group *g)
{
    (void)r;
    (void)g;
    return (uint64_t)d->mla_layers + d->kda_layers;
}

static uint64_t layers_held(const struct descriptor *d)
{
    return d->layer_end > d->layer_begin ? d->layer_end - d->layer_begin : 0;
}

struct formula {
    const char *name;
    size_t at; /* of a U32 field */
    uint64_t (*want)(const struct descriptor *d, const struct rank_role *r, const struct group *g);
    const char *why;
};

static const struct formula places[] = {
    {"role", offsetof(struct descriptor, role), want_role, "prefill ranks come first"},
    {"pp", offsetof(struct descriptor, pp), want_pp, "the decode group has one stage, prefill that of --prefill"},
    {"tp", offsetof(struct descriptor, tp), want_tp, "the topology says so"},
    {"stage", offsetof(struct descriptor, stage), want_stage, "ranks are numbered stage by stage"},
    {"tp_rank", offsetof(struct descriptor, tp_rank), want_tp_rank, "ranks are numbered stage by stage"},
};

static const struct formula formulas[] = {
    {"draft_heads_per_rank", offsetof(struct descriptor, draft_heads_per_rank), want_draft_heads, "max(1, heads / tp)"},
    {"draft_first_head", offsetof(struct descriptor, draft_first_head), want_draft_first,
     "heads / tp, replicated when tp is larger"},
    {"kda_heads_per_rank", offsetof(struct descriptor, kda_heads_per_rank), want_kda_heads, "heads / tp"},
    {"mla_row_bytes", offsetof(struct descriptor, mla_row_bytes), want_row_bytes, "width x bytes of the kv type"},
    {"temporal_bytes", offsetof(struct descriptor, temporal_bytes), want_temporal, "KDA state is FP32"},
    {"state_convention", offsetof(struct descriptor, state_convention), want_convention, "the only one there is"},
};

/* ---- checking ----------------------------------------------------------------------------------------------- */

/* the rank as a person knows it */
static const char *who(const struct descriptor *d, char buf[64])
{
    if (d->role == ROLE_PREFILL)
        snprintf(buf, 64, "prefill stage %u tp %u", d->stage, d->tp_rank);
    else
        snprintf(buf, 64, "decode tp %u", d->tp_rank);
    return buf;
}

static size_t type_bytes(enum type t)
{
    return t == U32 || t == I32 ? 4 : 8;
}

static void value_text(const void *p, enum type t, char buf[40])
{
    uint32_t u;
    uint64_t l;
    double f;
    if (type_bytes(t) == 4) {
        memcpy(&u, p, 4);
        snprintf(buf, 40, t == I32 ? "%" PRId32 : "%" PRIu32, u);
    } else if (t == U64) {
        memcpy(&l, p, 8);
        snprintf(buf, 40, l < 1u << 30 ? "%" PRIu64 : "%016" PRIx64, l); /* hashes in hex, sizes in decimal */
    } else {
        memcpy(&f, p, 8);
        snprintf(buf, 40, "%.17g", f);
    }
}

static enum status differ(const struct rule *k, int element, const struct descriptor *d, int a, int b)
{
    char va[40], vb[40], wa[64], wb[64], name[64];
    size_t at = k->at + (size_t)element * type_bytes(k->type);
    value_text((const char *)&d[a] + at, k->type, va);
    value_text((const char *)&d[b] + at, k->type, vb);
    snprintf(name, sizeof name, k->n > 1 ? "%s[%d]" : "%s", k->name, element);
    return ERR(ST_E_HANDSHAKE, "%s: rank %d (%s) has %s, rank %d (%s) has %s; %s", name, a, who(&d[a], wa), va, b,
               who(&d[b], wb), vb, k->remedy);
}

static enum status check_equal(const struct rule *k, int n_rules, const struct descriptor *d, int n, int n_prefill)
{
    for (; n_rules > 0; n_rules--, k++)
        for (int i = 0; i < k->n; i++) {
            int first = k->scope == DECODE_RANKS ? n_prefill : 0;
            size_t at = k->at + (size_t)i * type_bytes(k->type);
            for (int r = first + 1; r < n; r++)
                if (memcmp((const char *)&d[first] + at, (const char *)&d[r] + at, type_bytes(k->type)) != 0)
                    return differ(k, i, d, first, r);
        }
    return ST_OK;
}
#define EQUAL(table, d, n, n_prefill) check_equal(table, (int)(sizeof(table) / sizeof(table)[0]), d, n, n_prefill)

/* The other rank of a pair is the first one of the other group: the totals are what both share. */
static int partner(const struct topology *t, int r)
{
    return r < t->n_prefill ? t->n_prefill : 0;
}

static enum status check_formulas(const struct formula *f, int n_formulas, const struct descriptor *d, int n,
                                  const struct topology *t)
{
    for (; n_formulas > 0; n_formulas--, f++)
        for (int r = 0; r < n; r++) {
            struct rank_role role = topology_role(t, r);
            uint32_t have;
            uint64_t want = f->want(&d[r], &role, r < t->n_prefill ? &t->prefill : &t->decode);
            char wa[64], wb[64];
            memcpy(&have, (const char *)&d[r] + f->at, sizeof have);
            if (have == want) continue;
            int o = partner(t, r);
            return ERR(ST_E_HANDSHAKE,
                       "%s: rank %d (%s) has %u, what it shares with rank %d (%s) asks for %" PRIu64 " (%s)", f->name, r,
                       who(&d[r], wa), have, o, who(&d[o], wb), want, f->why);
        }
    return ST_OK;
}

#define FORMULAS(table, d, n, t) check_formulas(table, (int)(sizeof(table) / sizeof(table)[0]), d, n, t)

/* heads in all = heads per rank x tp on both sides; a remainder would be a head that nobody holds */
static enum status check_heads(const struct descriptor *d, int n, const struct topology *t)
{
    char wa[64], wb[64];
    for (int r = 0; r < n; r++) {
        const struct descriptor *x = &d[r];
        int o = partner(t, r);
        uint32_t held = x->kda_heads_per_rank * x->tp;
        if (held != x->kda_heads)
            return ERR(ST_E_HANDSHAKE,
                       "kda_heads_per_rank x tp: rank %d (%s) has %u x %u = %u, rank %d (%s) has %u heads in all; tp must "
                       "divide the heads",
                       r, who(x, wa), x->kda_heads_per_rank, x->tp, held, o, who(&d[o], wb), d[o].kda_heads);
        if (x->draft_kind && (x->draft_heads == 0 || (x->draft_heads % x->tp && x->tp % x->draft_heads)))
            return ERR(ST_E_HANDSHAKE,
                       "draft_heads over tp: rank %d (%s) has tp %u, rank %d (%s) has %u heads in all; one must divide "
                       "the other",
                       r, who(x, wa), x->tp, o, who(&d[o], wb), d[o].draft_heads);
    }
    return ST_OK;
}

static enum status bad_range(const struct descriptor *d, int a, int b, const char *must)
{
    char wa[64], wb[64];
    return ERR(ST_E_HANDSHAKE, "layers: rank %d (%s) has [%u, %u), rank %d (%s) has [%u, %u); %s", a, who(&d[a], wa),
               d[a].layer_begin, d[a].layer_end, b, who(&d[b], wb), d[b].layer_begin, d[b].layer_end, must);
}

/* Stages follow one another and cover what the decode ranks hold, each with a layer at least; the ranks of a stage
 * hold the same layers. */
static enum status check_stages(const struct descriptor *d, int n, const struct topology *t)
{
    int dec = t->n_prefill, tp = t->prefill.tp;
    char wa[64], wb[64];
    for (int r = 0; r < n; r++) {
        int before = r >= dec ? dec : r < tp ? dec : r - tp; /* whose range says where this one starts */
        uint32_t begin = r >= dec ? 0 : r < tp ? d[dec].layer_begin : d[before].layer_end;
        if (r >= dec && d[r].layer_end != d[dec].layer_end) return bad_range(d, dec, r, "decode ranks hold the same layers");
        if (d[r].layer_begin != begin) return bad_range(d, before, r, "stages are contiguous and start at layer 0");
        if (d[r].layer_end <= d[r].layer_begin) return bad_range(d, before, r, "every stage needs a layer");
        if (r >= dec - tp && r < dec && d[r].layer_end != d[dec].layer_end)
            return bad_range(d, r, dec, "the stages together hold what a decode rank holds");
        if (layers_held(&d[r]) != want_layers(&d[r], NULL, NULL))
            return ERR(
                ST_E_HANDSHAKE,
                "mla_layers + kda_layers: rank %d (%s) has %u MLA and %u KDA layers, rank %d (%s) expects the %" PRIu64
                " of [%u, %u)",
                r, who(&d[r], wa), d[r].mla_layers, d[r].kda_layers, before, who(&d[before], wb), layers_held(&d[r]),
                d[r].layer_begin, d[r].layer_end);
    }
    return ST_OK;
}

/* MLA and KDA layers over the stages of a column = those of a decode rank */
static enum status check_kinds(const struct descriptor *d, const struct topology *t)
{
    int dec = t->n_prefill, tp = t->prefill.tp;
    char wa[64], wb[64];
    for (int c = 0; c < tp; c++) {
        uint32_t mla = 0, kda = 0;
        for (int s = 0; s < t->prefill.pp; s++) {
            mla += d[s * tp + c].mla_layers;
            kda += d[s * tp + c].kda_layers;
        }
        for (int r = dec; r < t->n_ranks; r++)
            if (mla != d[r].mla_layers || kda != d[r].kda_layers)
                return ERR(ST_E_HANDSHAKE,
                           "mla_layers, kda_layers: the stages from rank %d (%s) on have %u and %u in all, rank %d (%s) "
                           "has %u and %u; give both groups the same --model",
                           c, who(&d[c], wa), mla, kda, r, who(&d[r], wb), d[r].mla_layers, d[r].kda_layers);
    }
    return ST_OK;
}

static enum status check_windows(const struct descriptor *d, int n, const struct topology *t)
{
    char wa[64], wb[64];
    for (int r = 0; r < n; r++) {
        int o = partner(t, r);
        uint64_t need = 0;
        if (d[r].entries_hash == 0)
            return ERR(ST_E_HANDSHAKE,
                       "entries_hash: rank %d (%s) has 0, rank %d (%s) has %016" PRIx64 "; a layout is missing", r,
                       who(&d[r], wa), o, who(&d[o], wb), d[o].entries_hash);
        if (r < t->n_prefill) continue;
        if (d[r].slot_bytes == 0 || __builtin_mul_overflow(d[r].slot_bytes, (uint64_t)d[o].n_slots, &need) ||
            need > d[r].window_bytes)
            return ERR(ST_E_HANDSHAKE, "window bounds: rank %d (%s) has a window of %" PRIu64 " bytes, %u slots of %" PRIu64
                       " bytes as rank %d (%s) counts them do not fit", r, who(&d[r], wa), d[r].window_bytes, d[o].n_slots,
                       d[r].slot_bytes, o, who(&d[o], wb));
        if (d[r].pages_per_slot == 0)
            return ERR(ST_E_HANDSHAKE, "pages_per_slot: rank %d (%s) has 0, rank %d (%s) sends at least 1", r,
                       who(&d[r], wa), o, who(&d[o], wb));
    }
    return ST_OK;
}

enum status handshake_check(const struct descriptor *d, int n, const struct topology *t)
{
    if (n != t->n_ranks) return ERR(ST_E_HANDSHAKE, "%d descriptors for the %d ranks of the topology", n, t->n_ranks);
    if (t->single) return EQUAL(first_rules, d, n, 0) != ST_OK ? ST_E_HANDSHAKE : EQUAL(rules, d, n, 0);
    TRY(EQUAL(first_rules, d, n, t->n_prefill));
    TRY(EQUAL(rules, d, n, t->n_prefill));
    TRY(FORMULAS(places, d, n, t));
    TRY(check_heads(d, n, t));
    TRY(FORMULAS(formulas, d, n, t));
    TRY(check_stages(d, n, t));
    TRY(check_kinds(d, t));
    TRY(check_windows(d, n, t));
    return EQUAL(last_rules, d, n, t->n_prefill);
}

/* ---- exchange -------------------------------------------------------------------------------------------------- */

struct greeting { /* what every version of this protocol sends first, so that sizes are known before descriptors move */
    uint32_t version, struct_bytes, endian, reserved;
};

static enum status gather(struct world *w, const void *mine, size_t bytes, void *all)
{
    MPI_Request r;
    TRY(mpi_check(MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, w->all, &r), "MPI_Iallgather"));
    return wait_all(&r, 1, NULL, NULL);
}

static enum status greet(struct world *w, const struct descriptor *mine, struct descriptor *all, struct greeting *g)
{
    g[w->size] = (struct greeting){mine->version, mine->struct_bytes, mine->endian, 0};
    TRY(gather(w, &g[w->size], sizeof *g, g));
    for (int r = 0; r < w->size; r++) { /* enough of a descriptor to name the rank and compare the three fields */
        struct rank_role role = topology_role(&w->topo, r);
        all[r] = (struct descriptor){.version = g[r].version,
                                     .struct_bytes = g[r].struct_bytes,
                                     .endian = g[r].endian,
                                     .role = (uint32_t)role.role,
                                     .stage = (uint32_t)role.stage,
                                     .tp_rank = (uint32_t)role.tp_rank};
    }
    return EQUAL(first_rules, all, w->size, w->topo.n_prefill);
}

enum status handshake_run(struct world *w, const struct descriptor *mine, struct descriptor **all_p)
{
    size_t n = (size_t)w->size;
    struct descriptor *all = mem_alloc(n + 1, sizeof *all, "descriptors");
    struct greeting *g = mem_alloc(n + 1, sizeof *g, "greetings");
    enum status st = all && g ? ST_OK : ST_E_NOMEM;
    if (st == ST_OK) st = greet(w, mine, all, g);
    if (st == ST_OK) {
        all[n] = *mine; /* not the caller's: MPI may read it after a watchdog's return */
        st = gather(w, &all[n], sizeof *all, all);
    }
    if (st == ST_OK) st = handshake_check(all, w->size, &w->topo);
    if (st == ST_E_MPI || st == ST_E_WATCHDOG) return st; /* the buffers stay with MPI */
    mem_free(g);
    if (st == ST_OK && all_p)
        *all_p = all;
    else
        mem_free(all);
    return st;
}
