/* print_priv - what the files of print.h share: a plan as it is shown, computed once. */
#ifndef PDFLASH_PLAN_PRINT_PRIV_H
#define PDFLASH_PLAN_PRINT_PRIV_H

#include "plan/bubble.h"
#include "plan/cost.h"
#include "plan/print.h"

enum { BUBBLE_WAVES = 3 };
extern const int print_wave[BUBBLE_WAVES]; /* concurrencies whose bubble is shown: 1, 8, 64 */

struct totals { /* all ranks together, and the most that one rank holds of each kind and in all */
    struct rank_memory sum, most;
    int fullest; /* rank with the most on its device */
};

struct survey { /* everything both printers show */
    const struct config *c;
    const struct draft_config *d;
    const struct topology *t;
    const struct plan_options *o;
    int n_tokens, n_pages;
    int P, D, pp;             /* all 0 but D with single */
    struct layout *src;       /* [pp][P] pools */
    struct layout *dst;       /* [D] staging slots; with single: pools */
    struct pair_plan *pair;   /* [D][pp][P] */
    struct rank_memory *mem;  /* [ranks] */
    struct totals totals;
    double bubble[BUBBLE_WAVES][BALANCE_N];
    uint64_t hash;
};

struct volume {
    int64_t unique, wire, runs; /* bytes of one copy of the state; bytes and runs to all destinations */
    int64_t held;               /* bytes in all destinations together: the wire's without node sharing */
    int64_t received;           /* bytes to decode tp rank 0 */
    int copies;                 /* entries of decode tp rank 0, each a copy of its own */
};

struct stage_view {
    struct range layers;
    int mla, kda, n_taps, tap[CONFIG_MAX_TAPS]; /* target layers captured, ascending */
};

/* survey_make - ST_E_CONFIG, ST_E_HANDSHAKE, ST_E_INTERNAL (coverage), ST_E_NOMEM; failed: nothing is allocated. */
enum status survey_make(const struct config *c, const struct draft_config *d, const struct topology *t,
                        const struct plan_options *o, int n_tokens, struct survey *s_p);
void survey_free(struct survey *s);

/* print_sources - prefill ranks. print_role - word for a rank's group. print_stage - what a stage owns. */
int print_sources(const struct survey *s);
const char *print_role(const struct survey *s, struct rank_role r);
struct stage_view print_stage(const struct survey *s, int stage);
/* print_pair - the plan of one source and one destination. print_volume - bytes of a component for n_pages pages. */
const struct pair_plan *print_pair(const struct survey *s, int stage, int p, int q);
struct volume print_volume(const struct survey *s, enum comp comp, int n_pages);
/* print_sent - bytes a source sends for one request, and to how many destinations. */
int64_t print_sent(const struct survey *s, int stage, int p, int *peers_p);
/* print_words - completion words that decode rank q waits for, and from how many sources. */
int print_words(const struct survey *s, int q, int *sources_p);
/* print_copy - first copy of a component from tp rank p to destination q, any stage, NULL if none; their number. */
const struct plan_copy *print_copy(const struct survey *s, enum comp comp, int p, int q, int *n_p);
/* print_window_pages - pages of a draft's window, when all its layers slide and the prompt is longer, else 0;
 * print_window_bytes - draft K/V of that many pages, one copy. */
int print_window_pages(const struct survey *s);
int64_t print_window_bytes(const struct survey *s, int pages);

/* print_text, print_json - the whole plan. print_model_* - the parts about the model: memory by part, cost, state of a
 * request, pipeline bubble. */
enum status print_text(FILE *f, const struct survey *s);
enum status print_json(FILE *f, const struct survey *s);
void print_memory_text(FILE *f, const struct survey *s);
void print_model_text(FILE *f, const struct survey *s);
void print_model_json(FILE *f, const struct survey *s);

#endif
