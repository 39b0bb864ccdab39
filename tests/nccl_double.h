/* nccl_double - let this process load the stand-in for NCCL that lies beside its program. */
#ifndef PDFLASH_TESTS_NCCL_DOUBLE_H
#define PDFLASH_TESTS_NCCL_DOUBLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void nccl_double(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    if (n < 0) exit(EXIT_FAILURE);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/libnccl-double.so");
    setenv("PDFLASH_NCCL", path, 1);
}

#endif
