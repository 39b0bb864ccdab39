/* stop - the signals that end a run early: SIGINT (Ctrl-C), SIGTERM, SIGUSR1. All three mean the same: nothing new is
 * admitted, what runs is finished and written, the exit code is 75. A second SIGINT ends the process at once.
 *
 * Every rank may get the signal; the leader acts on it, and it alone says so, once and at once. Among several ranks it
 * speaks of SIGTERM after 3 s, or when the run ends in order: launchers send it when another rank has failed, and kill
 * soon after. The state is the process's, because signal handlers are. Local. */
#ifndef PDFLASH_CMD_STOP_H
#define PDFLASH_CMD_STOP_H

/* stop_watch - take the signals from now on; call it before MPI starts, so that start-up is not killed. */
void stop_watch(void);
/* stop_speak - this rank acts: it says so when a signal comes, or now if one has come. out: the file of results;
 * ranks: of the job. */
void stop_speak(const char *out, int ranks);
/* stop_speak_now - the run has ended in order: say what is not said yet. */
void stop_speak_now(void);
/* stop_quiet - the run has failed or was refused: a signal, with which the launcher ends the job, is not spoken of. */
void stop_quiet(void);
/* stop_signal - 0, or the number of the first signal that came; it changes under the reader. */
const volatile int *stop_signal(void);

#endif
