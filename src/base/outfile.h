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

/* ---- names of outputs, before there is one ---------------------------------------------------------- */
/* outfile_target - the file that path stands for: what its symbolic link, or a row of them, leads to, which need not
 * exist yet; path itself when it is no link. *target_p: mem_free. ST_E_FILE (a circle of links), ST_E_NOMEM. */
enum status outfile_target(const char *path, char **target_p);
/* outfile_is - 1: both names exist and are one file. */
int outfile_is(const char *a, const char *b);
/* outfile_same - 1: one file under two names, also one that neither has made yet. */
int outfile_same(const char *a, const char *b);
/* outfile_in - 1: path lies, or would lie, in the directory dir itself. */
int outfile_in(const char *path, const char *dir);
/* outfile_check_folder - ST_E_FILE, naming the directory and the option that says otherwise, unless a file can be made
 * at path. Leaves nothing behind. */
enum status outfile_check_folder(const char *path, const char *option);

#endif
