/* diagnose_plant - faults for the tests of diagnose, planted around the engine: in values of its config, in its
 * weights, its state, or in what one of its operations is given. Nothing outside knows of them, the finder least of
 * all, and a run never opens one. Local. */
#ifndef PDFLASH_MODEL_DIAGNOSE_PLANT_H
#define PDFLASH_MODEL_DIAGNOSE_PLANT_H

#include "model/diagnose.h"

struct plant; /* opaque: a backend like the one it was made of, with one fault */

/* plant_open - name: one of plant_name(0..). base stays the caller's and must outlive it; *c is changed where the fault
 * is a setting. ST_E_USAGE: unknown name; ST_E_CONFIG: the draft has nothing it could be planted in. */
enum status plant_open(const char *name, const struct ops *base, const struct config *target, struct draft_config *c,
                       struct plant **p_p);
void plant_close(struct plant *p); /* NULL is legal */
/* plant_ops - the backend to open the engine with. plant_hooks - what goes with it. */
struct ops *plant_ops(struct plant *p);
struct diagnose_hooks plant_hooks(struct plant *p);
/* plant_name - the i-th fault, NULL behind the last. */
const char *plant_name(int i);

#endif
