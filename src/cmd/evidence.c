#include "cmd/evidence.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "plan/print.h"

extern char **environ;

enum status evidence_log(const char *dir, int rank)
{
    char path[4096];
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) return ERR(ST_E_FILE, "%s: cannot create: %s", dir, strerror(errno));
    snprintf(path, sizeof path, "%s/log.%d.txt", dir, rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return ERR(ST_E_FILE, "%s: cannot write: %s", path, strerror(errno));
    log_to(fd);
    return ST_OK;
}

static enum status create(const char *dir, const char *name, FILE **f_p)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    if (!f) return ERR(ST_E_FILE, "%s: cannot write: %s", path, strerror(errno));
    *f_p = f;
    return ST_OK;
}

static void print_descriptor(FILE *f, int rank, const struct descriptor *d)
{
    fprintf(f, "rank %d: %s stage %u tp %u/%u layers [%u, %u) mla %u kda %u x %u heads", rank,
            d->role == ROLE_PREFILL ? "prefill" : "decode", d->stage, d->tp_rank, d->tp, d->layer_begin, d->layer_end,
            d->mla_layers, d->kda_layers, d->kda_heads_per_rank);
    fprintf(f, " draft heads [%u, %u) of %u page %u order %u kv %u/%u", d->draft_first_head,
            d->draft_first_head + d->draft_heads_per_rank, d->draft_heads, d->page, d->order, d->kv, d->draft_kv);
    fprintf(f, " slot %" PRIu64 " B window %" PRIu64 " B entries %016" PRIx64 " plan %016" PRIx64 " build %016" PRIx64 "\n",
            d->slot_bytes, d->window_bytes, d->entries_hash, d->plan_hash, d->build);
}

static enum status write_plan(const char *dir, const struct setup *s, const struct plan_options *p)
{
    char path[4096];
    FILE *f;
    TRY(create(dir, "plan.txt", &f));
    enum status st = plan_print_text(f, &s->c, s->dflash ? &s->d : NULL, &s->topo, p, p->max_prompt);
    fclose(f);
    TRY(st);
    snprintf(path, sizeof path, "%s/plan.json", dir);
    return plan_print_json(path, &s->c, s->dflash ? &s->d : NULL, &s->topo, p, p->max_prompt);
}

enum status evidence_write(const char *dir, const struct setup *s, const struct plan_options *p, const struct record_facts *f,
                           const struct descriptor *d, int n_ranks)
{
    FILE *out;
    TRY(create(dir, "command.txt", &out));
    fprintf(out, "%s\n", f->command_line);
    fclose(out);
    TRY(create(dir, "environment.txt", &out));
    for (char **e = environ; *e; e++) fprintf(out, "%s\n", *e);
    fclose(out);
    TRY(create(dir, "versions.txt", &out));
    fprintf(out, "run %s\nbuild %s\nbinary %s\nmpi %s\nisa %s\nmodel %s\ndraft %s\ntokenizer %s\nprompts %s\nconfig %s\nhosts %s\nstart %s\n",
            f->run_id, f->build, f->binary_hash, f->mpi_library, f->isa ? f->isa : "", f->model_hash, f->draft_hash, f->tokenizer_hash,
            f->prompts_hash, f->config_hash, f->host_list, f->start_utc);
    fclose(out);
    TRY(write_plan(dir, s, p));
    if (!d) return ST_OK;
    TRY(create(dir, "descriptors.txt", &out));
    for (int i = 0; i < n_ranks; i++) print_descriptor(out, i, &d[i]);
    fclose(out);
    return ST_OK;
}
