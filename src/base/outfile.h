/* outfile - a text file that is there whole or not at all: written beside its place and renamed into it.
 *
 * A place that is no regular file (a device, a pipe) is written directly; a symbolic link is followed. Local. */
#ifndef PDFLASH_BASE_OUTFILE_H
#define PDFLASH_BASE_OUTFILE_H

#include <stdio.h>

#include "base/err.h"

struct outfile {
    FILE *f;    /* write here; errors are found by outfile_commit */
    char *path; /* as asked for */
    char *place, *tmp; /* where it goes; NULL tmp: written directly */
};

/* outfile_open - begin. ST_E_FILE (no such directory, no permission), ST_E_NOMEM. */
enum status outfile_open(const char *path, struct outfile *o_p);
/* outfile_commit - flush, fsync, rename; releases o in either case. On failure (ST_E_IO, naming path: a write failed,
 * the disk is full) what was at path stays as it was. */
enum status outfile_commit(struct outfile *o);
/* outfile_cancel - release o and leave path as it was. NULL and a cleared struct are legal. */
void outfile_cancel(struct outfile *o);

#endif
