/* facts - where a result comes from: run id, hosts, versions and hashes. */
#ifndef PDFLASH_CMD_FACTS_H
#define PDFLASH_CMD_FACTS_H

#include "cmd/record.h"
#include "pd/world.h"

struct facts {
    struct record_facts f;
    int argc;
    char **argv;
    char host[64];
    char *text[8]; /* owned strings behind f */
    int n_text;
};

/* facts_start - run id, command line, host list, MPI library, binary hash. Collective on w->all. */
enum status facts_start(struct facts *x, struct world *w, const struct setup *s, const struct options *o);
void facts_end(struct facts *x);
/* facts_build_hash - source revision and binary in one number. */
uint64_t facts_build_hash(const struct facts *x);
/* facts_hashes - model, draft, tokenizer, prompts, and the config hash: identity of model, draft, prompts and every
 * option that can change a token; topology, concurrency and transport are not in it. */
void facts_hashes(struct facts *x, const struct options *o, const struct setup *s, const struct safetensors *ckpt,
                  const struct safetensors *draft, const struct tokenizer *t, const struct prompts *p, int n);
/* facts_plan_json - the plan as JSON text, mem_free. */
enum status facts_plan_json(const struct setup *s, const struct plan_options *p, char **text_p);

#endif
