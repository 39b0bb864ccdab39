/* mpi_world - the program's own world, as an unchecked fixture of a case of an MPI test. */
#ifndef PDFLASH_TESTS_MPI_WORLD_H
#define PDFLASH_TESTS_MPI_WORLD_H

#include <stdlib.h>

#include "pd/world.h"

static struct world world;

static void suite_world(void)
{
    if (world_start(NULL, NULL, &world) != ST_OK) exit(EXIT_FAILURE);
}

static void suite_world_end(void)
{
    world_stop(&world);
}

#endif
