/* plan - what a run would do, from config files alone: no MPI, no weights. */
#include <stdio.h>

#include "base/buf.h"
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
    if (o.max_prompt > s.most_prompt)
        return ERR(ST_E_CONFIG,
                   "--max-prompt %d: with --max-new %d and a block of %d at most %d fit into the model's %d positions",
                   o.max_prompt, o.max_new, s.block, s.most_prompt, s.c.max_position);
    setup_plan_options(&o, &s, o.max_prompt, o.concurrency, &p);
    if (o.dedupe && !o.node_size) return ERR(ST_E_USAGE, "plan --dedupe needs --node-size N: no hosts are known here");
    if (o.node_size && !o.dedupe) return ERR(ST_E_USAGE, "--node-size %d has no meaning without --dedupe", o.node_size);
    enum status st;
    int *node = mem_alloc((size_t)s.topo.decode.tp, sizeof *node, "node numbers");
    if (!node) return ST_E_NOMEM;
    if (o.dedupe && !s.topo.single) {
        share_nodes(s.topo.decode.tp, o.node_size, node);
        p.share = (struct share){s.topo.decode.tp, node};
    }
    p.device_bytes = (int64_t)(o.gpu_memory * 1073741824.0);
    st = memory_fits(&s.c, s.spec ? &s.d : NULL, &s.topo, &p);
    if (st == ST_OK)
        st =
            (o.json ? plan_print_json : plan_print_text)(stdout, &s.c, s.spec ? &s.d : NULL, &s.topo, &p, o.max_prompt);
    mem_free(node);
    return st;
}
