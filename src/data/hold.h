/* hold - errors that are held back while somebody looks at a file that may be damaged.
 *
 * Whether what a look finds is an error is known only afterwards: a result file that its journal makes good again is
 * none. Between hold_begin and hold_end the files of this directory that include this header report to here; other
 * modules (out of memory, for one) report as ever. Only the first message is kept. Local; one thread. */
#ifndef PDFLASH_DATA_HOLD_H
#define PDFLASH_DATA_HOLD_H

#include "base/err.h"

void hold_begin(void);
/* hold_end - report again from now on; the message that was held, "" if there is none, until the next hold_begin. */
const char *hold_end(void);
/* hold_tell - after hold_end: report what was held, if anything, as an error of kind st; returns st. */
enum status hold_tell(enum status st);

/* hold_report - what ERR does here: hold, or report. */
enum status hold_report(enum status st, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#undef ERR
#define ERR(st, ...) hold_report((st), __FILE__, __LINE__, __VA_ARGS__)

#endif
