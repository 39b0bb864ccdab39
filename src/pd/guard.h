/* guard - a time limit for what blocks inside MPI or the file system and cannot poll: start-up and the end of a run.
 *
 * When the time is over one line says what took so long, and the process ends with the watchdog's exit code, which makes
 * mpirun end the job; what is on disk stays. The loops between have the watchdog of wait.h, which knows more. */
#ifndef PDFLASH_PD_GUARD_H
#define PDFLASH_PD_GUARD_H

enum { GUARD_FACTOR = 4 }; /* start-up and the end may take so many times --watchdog: files are read there */

/* guard_start - from now on; takes the place of the one before. what: e.g. "start-up". guard_end - in time. Per process. */
void guard_start(const char *what, double seconds);
void guard_end(void);

#endif
