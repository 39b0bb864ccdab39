/* plan - what a run would do, from config files alone: no MPI, no weights. */
#include <stdio.h>

#include "ckpt/config.h"
#include "cmd/options.h"
#include "cmd/setup.h"
#include "plan/print.h"

enum status cmd_plan(int argc, char **argv)
{
    struct options o;
    struct setup s;
    struct plan_options p;
    int n, help;
    TRY(options_parse(CMD_PLAN, argc, argv, &o, NULL, 0, &n, &help));
    if (help) return ST_OK;
    TRY(setup_configs(&o, &s));
    if (o.max_prompt == 0) o.max_prompt = 8192;
    setup_plan_options(&o, &s, o.max_prompt, o.concurrency, &p);
    TRY(plan_print_text(stdout, &s.c, s.dflash ? &s.d : NULL, &s.topo, &p, o.max_prompt));
    if (o.json_file) TRY(plan_print_json(o.json_file, &s.c, s.dflash ? &s.d : NULL, &s.topo, &p, o.max_prompt));
    return ST_OK;
}
