#include "cmd/evidence.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "plan/print.h"

extern char **environ;

/* evidence is shown around: what looks like a password stays out */
static int is_secret(const char *name, int n)
{
    static const char *const word[] = {"SECRET", "TOKEN", "PASSW", "CREDENTIAL", "API_KEY", "PRIVATE_KEY", "ACCESS_KEY", "COOKIE"};
    for (int at = 0; at < n; at++)
        for (size_t k = 0; k < sizeof word / sizeof word[0]; k++) {
            size_t len = strlen(word[k]);
            if (len <= (size_t)(n - at) && strncasecmp(name + at, word[k], len) == 0) return 1;
        }
    return 0;
}

/* mkdir -p */
static enum status make_folders(const char *dir)
{
    char path[4096];
    size_t n = strlen(dir);
    if (n >= sizeof path)
        return ERR(ST_E_USAGE, "--evidence: a path of %zu bytes; 1 to %zu can be used", n, sizeof path - 1);
    for (size_t i = 1; i <= n; i++) {
        if (dir[i] != '/' && dir[i] != 0) continue;
        memcpy(path, dir, i);
        path[i] = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return ERR(ST_E_FILE, "%s: cannot create: %s", path, strerror(errno));
    }
    return ST_OK;
}

enum status evidence_claim(const char *dir, enum evidence_use use)
{
    TRY(make_folders(dir));
    DIR *d = opendir(dir);
    if (!d) return ERR(ST_E_FILE, "%s: cannot open: %s", dir, strerror(errno));
    const struct dirent *e = readdir(d);
    while (e && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)) e = readdir(d);
    enum status st = ST_OK;
    if (e && use == EVIDENCE_NEW)
        st = ERR(ST_E_FILE,
                 "%s: holds %s already, evidence of another run, it seems; name an empty or new directory, add to it "
                 "with --resume, or overwrite it with --force-new",
                 dir, e->d_name);
    closedir(d);
    return st;
}

enum status evidence_log(const char *dir, int rank, enum evidence_use use)
{
    char path[4096];
    TRY(make_folders(dir)); /* this host may not share the leader's disk */
    snprintf(path, sizeof path, "%s/log.%d.txt", dir, rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (use == EVIDENCE_ADD ? O_APPEND : O_TRUNC), 0666);
    if (fd < 0) return ERR(ST_E_FILE, "%s: cannot write: %s", path, strerror(errno));
    log_to(fd);
    return ST_OK;
}

/* one file of the directory under construction */
struct sheet {
    FILE *f;
    char path[4096];
};

static enum status sheet_open(const char *dir, const char *name, enum evidence_use use, struct sheet *s)
{
    snprintf(s->path, sizeof s->path, "%s/%s", dir, name);
    s->f = fopen(s->path, use == EVIDENCE_ADD ? "a" : "w");
    return s->f ? ST_OK : ERR(ST_E_FILE, "%s: cannot write: %s", s->path, strerror(errno));
}

static enum status sheet_close(struct sheet *s)
{
    int bad = ferror(s->f);
    if (fclose(s->f) != 0) bad = 1;
    return bad ? ERR(ST_E_IO, "%s: cannot write: %s", s->path, strerror(errno)) : ST_OK;
}

static void print_descriptor(FILE *f, int rank, const struct descriptor *d)
{
    fprintf(f, "rank %d: %s stage %u tp %u/%u layers [%u, %u) mla %u kda %u x %u heads", rank,
            d->role == ROLE_PREFILL ? "prefill" : "decode", d->stage, d->tp_rank, d->tp, d->layer_begin, d->layer_end,
            d->mla_layers, d->kda_layers, d->kda_heads_per_rank);
    fprintf(f, " draft heads [%u, %u) of %u page %u order %u kv %u/%u", d->draft_first_head,
            d->draft_first_head + d->draft_heads_per_rank, d->draft_heads, d->page, d->order, d->kv, d->draft_kv);
    fprintf(f, " slot %" PRIu64 " B window %" PRIu64 " B entries %016" PRIx64 " plan %016" PRIx64, d->slot_bytes,
            d->window_bytes, d->entries_hash, d->plan_hash);
    fprintf(f, " build %016" PRIx64 "\n", d->build);
}

static enum status write_plan(const char *dir, const struct setup *s, const struct plan_options *p,
                              enum evidence_use use)
{
    struct sheet out;
    const struct draft_config *d = s->spec ? &s->d : NULL;
    TRY(sheet_open(dir, "plan.txt", use, &out));
    enum status st = plan_print_text(out.f, &s->c, d, &s->topo, p, p->max_prompt), closed = sheet_close(&out);
    TRY(st);
    TRY(closed);
    TRY(sheet_open(dir, "plan.json", EVIDENCE_NEW, &out)); /* one object: the latest plan */
    st = plan_print_json(out.f, &s->c, d, &s->topo, p, p->max_prompt);
    closed = sheet_close(&out);
    TRY(st);
    return closed;
}

enum status evidence_write(const char *dir, enum evidence_use use, const struct setup *s, const struct plan_options *p,
                           const struct record_facts *f, const struct descriptor *d, int n_ranks)
{
    struct sheet out;
    TRY(sheet_open(dir, "command.txt", use, &out));
    fprintf(out.f, "%s\n", f->command_line);
    TRY(sheet_close(&out));
    TRY(sheet_open(dir, "environment.txt", use, &out));
    for (char **e = environ; *e; e++) {
        int name = (int)strcspn(*e, "=");
        if (is_secret(*e, name)) fprintf(out.f, "%.*s=(withheld)\n", name, *e);
        else fprintf(out.f, "%s\n", *e);
    }
    TRY(sheet_close(&out));
    TRY(sheet_open(dir, "versions.txt", use, &out));
    fprintf(out.f,
            "run %s\nbuild %s\nbinary %s\nmpi %s\nisa %s\nmodel %s\ndraft %s\ntokenizer %s\nprompts %s\nconfig %s\n"
            "hosts %s\nstart %s\n",
            f->run_id, f->build, f->binary_hash, f->mpi_library, f->isa ? f->isa : "", f->model_hash, f->draft_hash,
            f->tokenizer_hash, f->prompts_hash, f->config_hash, f->host_list, f->start_utc);
    TRY(sheet_close(&out));
    TRY(write_plan(dir, s, p, use));
    if (!d) return ST_OK;
    TRY(sheet_open(dir, "descriptors.txt", use, &out));
    for (int i = 0; i < n_ranks; i++) print_descriptor(out.f, i, &d[i]);
    return sheet_close(&out);
}
