/* diagnose - one process, no groups: settings, then measurements, then what they say. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "cmd/diagnose_report.h"
#include "model/diagnose_plant.h"

struct job {
    struct options o;
    struct diagnose_files f;
    struct ops ops;
    struct plant *plant;
    struct diagnose_prompt *prompt;
    int n_prompts;
    int32_t *mask;
    struct diagnose *g;
};

static enum status load_files(struct job *j)
{
    TRY(config_load(j->o.model, &j->f.c));
    TRY(draft_config_load(j->o.draft, NULL, &j->f.d));
    TRY(tokenizer_open(j->o.model, -1, &j->f.tok));
    TRY(prompts_read(j->o.prompts, &j->f.prompts));
    TRY(safetensors_open(j->o.model, &j->f.ckpt));
    return safetensors_open(j->o.draft, &j->f.draft_ckpt);
}

static enum status take_prompts(struct job *j)
{
    int n = (int)prompts_count(j->f.prompts),
        room = j->f.c.max_position - j->o.max_new - 2 * draft_verify_rows(&j->f.d);
    if (j->o.limit && j->o.limit < n) n = j->o.limit;
    j->prompt = mem_alloc((size_t)n, sizeof *j->prompt, "prompts");
    if (!j->prompt) return ST_E_NOMEM;
    for (int i = 0; i < n; i++) {
        const struct prompts_row *r = prompts_row(j->f.prompts, (size_t)i);
        for (int64_t k = 0; k < r->n_ids; k++)
            if (r->id[k] >= j->f.c.vocab)
                return ERR(ST_E_CONFIG, "%s: row %d: token id %d is outside the vocabulary of %d", j->o.prompts, i,
                           (int)r->id[k], j->f.c.vocab);
        if (r->n_ids <= room) j->prompt[j->n_prompts++] = (struct diagnose_prompt){r->id, (int)r->n_ids, i};
    }
    if (j->n_prompts == 0)
        return ERR(ST_E_CONFIG, "%s: no row fits into %d positions with --max-new %d", j->o.prompts,
                   j->f.c.max_position, j->o.max_new);
    return ST_OK;
}

/* other mask rows to try: every special token */
static enum status list_masks(struct job *j, int *n_p)
{
    int ranks = tokenizer_ranks(j->f.tok), n = j->f.c.vocab - ranks;
    j->mask = mem_alloc((size_t)(n > 0 ? n : 1), sizeof *j->mask, "special tokens");
    if (!j->mask) return ST_E_NOMEM;
    for (int i = 0; i < n; i++) j->mask[i] = ranks + i;
    *n_p = n > 0 ? n : 0;
    return ST_OK;
}

static enum status run(struct job *j, const struct diagnose_result **r_p)
{
    static const char *const isa[] = {NULL, "scalar", "avx2", "avx512", "avx512bf16", "amx"};
    struct diagnose_spec p = {
        .o = &j->ops, .c = &j->f.c, .d = &j->f.d, .ckpt = j->f.ckpt, .draft_ckpt = j->f.draft_ckpt};
    TRY(ops_cpu_open(ACT_FP32, isa[j->o.isa], &j->ops));
    if (j->o.plant) {
        TRY(plant_open(j->o.plant, &j->ops, &j->f.c, &j->f.d, &j->plant));
        p.o = plant_ops(j->plant);
        p.hooks = plant_hooks(j->plant);
        log_warn("planted fault: %s; what is found below was made for a test", j->o.plant);
    }
    TRY(take_prompts(j));
    TRY(list_masks(j, &p.n_mask));
    p.kv = j->o.kv == OPT_KV_BF16 ? KV_BF16 : KV_FP32;
    p.page = j->o.page;
    p.chunk = j->o.chunk;
    p.max_new = j->o.max_new;
    p.anchors = j->o.anchors;
    p.n_prompts = j->n_prompts;
    p.prompt = j->prompt;
    p.mask = j->mask;
    TRY(diagnose_open(&p, &j->g));
    return diagnose_run(j->g, r_p);
}

static enum status body(struct job *j)
{
    enum draft_kind kind;
    const struct diagnose_result *r;
    TRY(options_spec(&j->o, &kind));
    if (kind == DRAFT_NONE) return ERR(ST_E_USAGE, "--spec none: without a draft there is nothing to diagnose");
    if (j->o.out) TRY(diagnose_claim(&j->o));
    TRY(load_files(j));
    TRY(diagnose_match(&j->o, &j->f, stdout));
    TRY(run(j, &r));
    diagnose_print(&j->o, &j->f, r, stdout);
    if (j->o.out) TRY(diagnose_write(&j->o, &j->f, r));
    if (r->n_findings == 0) return ST_OK;
    return ERR(ST_E_FAULT, "diagnose: %d fault%s found, the first is: %s; the report says how it shows", r->n_findings,
               r->n_findings > 1 ? "s" : "", r->finding[0].fault);
}

enum status cmd_diagnose(int argc, char **argv)
{
    int n, help;
    struct job *j = mem_alloc(1, sizeof *j, "diagnose");
    if (!j) return ST_E_NOMEM;
    enum status st = options_parse(CMD_DIAGNOSE, argc, argv, &j->o, NULL, 0, &n, &help);
    if (st == ST_OK && !help) st = body(j);
    diagnose_close(j->g);
    plant_close(j->plant);
    if (j->ops.close) j->ops.close(&j->ops);
    safetensors_close(j->f.ckpt);
    safetensors_close(j->f.draft_ckpt);
    tokenizer_close(j->f.tok);
    prompts_close(j->f.prompts);
    mem_free(j->prompt);
    mem_free(j->mask);
    mem_free(j);
    return st;
}
