/* setup - from options to the three structs every rank agrees on: config, topology, plan options. Local, no MPI. */
#ifndef PDFLASH_CMD_SETUP_H
#define PDFLASH_CMD_SETUP_H

#include "ckpt/config.h"
#include "cmd/options.h"
#include "plan/memory.h"

struct setup {
    struct config c;
    struct draft_config d; /* unless spec is DRAFT_NONE */
    enum draft_kind spec;
    int block;             /* verify rows; 1 without speculation */
    struct sampling sampling; /* of every request */
    int most_prompt;       /* longest prompt that fits into the model's positions with --max-new and a block, tokens */
    struct topology topo;
};

/* setup_configs - read and check config files, parse and complete the topology, fix the block size. */
enum status setup_configs(const struct options *o, struct setup *s_p);
/* setup_plan_options - sizes that follow from the options and the longest prompt; requests: prompts of the run. */
void setup_plan_options(const struct options *o, const struct setup *s, int max_prompt, int requests,
                        struct plan_options *p_p);

#endif
