#include "cmd/facts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/hash.h"
#include "build_id.h"
#include "plan/print.h"

static const char *keep(struct facts *x, const char *text)
{
    char *s = mem_strdup(text);
    if (!s) return "";
    x->text[x->n_text++] = s;
    return s;
}

static void command_line(struct facts *x)
{
    char line[8192] = "pdflash run";
    size_t n = strlen(line);
    for (int i = 0; i < x->argc && n < sizeof line - 2; i++) {
        int quote = strpbrk(x->argv[i], " \t'\"$") != NULL;
        int w = snprintf(line + n, sizeof line - n, quote ? " '%s'" : " %s", x->argv[i]);
        if (w < 0) break;
        n += (size_t)w;
    }
    x->f.command_line = keep(x, line);
}

/* "nodeA x 8, nodeB x 8" in rank order */
static enum status hosts(struct facts *x, struct world *w)
{
    char *all = mem_alloc((size_t)w->size, sizeof x->host, "host names"), list[2048] = "";
    TRY(world_agree(w, all ? ST_OK : ST_E_NOMEM));
    TRY(mpi_check(MPI_Allgather(x->host, sizeof x->host, MPI_BYTE, all, sizeof x->host, MPI_BYTE, w->all),
                  "MPI_Allgather"));
    for (int i = 0, n; i < w->size; i += n) {
        const char *name = all + (size_t)i * sizeof x->host;
        for (n = 1; i + n < w->size && strcmp(name, all + (size_t)(i + n) * sizeof x->host) == 0;) n++;
        size_t len = strlen(list);
        snprintf(list + len, sizeof list - len, "%s%s x %d", i ? ", " : "", name, n);
    }
    mem_free(all);
    x->f.host_list = keep(x, list);
    return ST_OK;
}

enum status facts_start(struct facts *x, struct world *w, const struct setup *s, const struct options *o)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING], sha[65], when[32];
    time_t now = time(NULL);
    struct tm tm;
    int n;
    gmtime_r(&now, &tm);
    gethostname(x->host, sizeof x->host - 1);
    TRY(world_agree(w, hash_file_sha256("/proc/self/exe", sha)));
    snprintf(x->f.binary_hash, sizeof x->f.binary_hash, "%.16s", sha);
    x->f.build = PDFLASH_GIT;
    command_line(x);
    MPI_Get_library_version(text, &n);
    text[strcspn(text, "\n")] = 0;
    x->f.mpi_library = keep(x, text);
    strftime(when, sizeof when, "%Y%m%d-%H%M", &tm);
    snprintf(text, sizeof text, "%s-%s-%s-%s", s->topo.single ? "single" : "pd", draft_kind_name(s->spec), o->tag,
             when);
    x->f.run_id = keep(x, text);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    x->f.start_utc = keep(x, when);
    topology_text(&s->topo, text, (int)sizeof text);
    x->f.topology = keep(x, text);
    return hosts(x, w);
}

void facts_end(struct facts *x)
{
    for (int i = 0; i < x->n_text; i++) mem_free(x->text[i]);
}

uint64_t facts_build_hash(const struct facts *x)
{
    return hash64(x->f.binary_hash, strlen(x->f.binary_hash), hash64(PDFLASH_GIT, strlen(PDFLASH_GIT), 0));
}

static void hex(char out[17], uint64_t v)
{
    snprintf(out, 17, "%016" PRIx64, v);
}

void facts_hashes(struct facts *x, const struct options *o, const struct setup *s, const struct safetensors *ckpt,
                  const struct safetensors *draft, const struct tokenizer *t, const struct prompts *p, int n)
{
    uint64_t h[] = {s->c.hash ^ safetensors_hash(ckpt), s->spec ? s->d.hash ^ safetensors_hash(draft) : 0,
                    tokenizer_hash(t), prompts_hash(p)};
    int32_t number[] = {n, s->spec, s->block, o->max_new, o->act, o->kv, o->mla_prefill, o->device};
    uint64_t seed = hash64(h, sizeof h, RESULTS_SCHEMA);
    if (o->confidence > 0) seed = hash64(&o->confidence, sizeof o->confidence, seed); /* changes the rounds */
    int32_t steps[] = {o->adaptive, o->min_context};
    if (steps[0] || steps[1]) seed = hash64(steps, sizeof steps, seed);
    if (sampling_on(&s->sampling)) { /* greedy runs keep the hash they have had */
        const struct sampling *w = &s->sampling;
        double real[] = {w->temperature, w->top_p, w->draft_temperature};
        uint64_t whole[] = {(uint64_t)w->top_k, (uint64_t)w->draws_drafts, w->seed};
        seed = hash64(real, sizeof real, hash64(whole, sizeof whole, seed));
    }
    hex(x->f.model_hash, h[0]);
    hex(x->f.draft_hash, h[1]);
    hex(x->f.tokenizer_hash, h[2]);
    hex(x->f.prompts_hash, h[3]);
    hex(x->f.config_hash, hash64(number, sizeof number, seed));
}

enum status facts_plan_json(const struct setup *s, const struct plan_options *p, char **text_p)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return ERR(ST_E_NOMEM, "plan text: %s", strerror(errno));
    enum status st = plan_print_json(f, &s->c, s->spec ? &s->d : NULL, &s->topo, p, p->max_prompt);
    if (fclose(f) != 0 && st == ST_OK) st = ERR(ST_E_NOMEM, "plan text: %s", strerror(errno));
    if (st == ST_OK)
        *text_p = text;
    else
        free(text);
    return st;
}
