/* inject - faults and mismatches for tests, from --inject. Off unless asked for; each one is logged.
 *
 *   prefill.FIELD=VALUE, decode.FIELD=VALUE   change what that group believes: page, kv, draft-kv, order, draft-heads,
 *                                             taps (comma list), window, theta, mask, spec=none
 *   kill:RANK@ORDER                           SIGKILL that world rank when it applies order number ORDER
 *   drop:COMPONENT@RANK                       that prefill rank never writes the component's completion word
 *   delay:STAGE@MS                            that prefill stage takes MS milliseconds over every run it puts
 *   flip:COMPONENT@RANK                       that decode rank (world) finds one bit of the component turned, once
 *   fail:STAGE@REQUEST, fail:decode@REQUEST   it gives the request up: prefill at its first chunk, decode after a round
 *   abort:REQUEST@TICKS                       the request is aborted so many ticks after its admission
 *   abort:REQUEST+TOKENS                      the request is aborted when it has so many output tokens
 *   abort:PERCENT%@SEED                       so many of a hundred requests are aborted, at random moments
 *   build:RANK                                that rank reports another build */
#ifndef PDFLASH_CMD_INJECT_H
#define PDFLASH_CMD_INJECT_H

#include "cmd/setup.h"
#include "pd/run.h"

struct inject {
    struct run_inject run;       /* -1: off */
    int drop_component, drop_rank;
    int flip_component, flip_rank;
    int delay_stage, delay_ms;
    int build_rank;
};

/* inject_parse - check all words; ST_E_USAGE names the bad one. */
enum status inject_parse(const struct opt_list *l, struct inject *i_p);
/* inject_check - ranks and stages that the words name exist in this topology; ST_E_USAGE. */
enum status inject_check(const struct opt_list *l, const struct inject *i, const struct topology *t);
/* inject_apply - change this rank's view if a prefill./decode. word concerns its group: s (configs, spec) and p.
 * ST_E_USAGE on an unknown field or value. */
enum status inject_apply(const struct opt_list *l, enum role role, struct setup *s, struct plan_options *p);

#endif
