/* nvtx_log - what a profiler is to NVTX: a library that NVTX_INJECTION64_PATH names, loaded by the first range of a
 * program. At the end of the program it writes a line a name (ranges, deepest nesting) to the file NVTX_LOG.RANK,
 * RANK being that of the process in an Open MPI job. */
#include <nvtx3/nvToolsExt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 64, WIDEST = 64 };

static struct { char name[WIDEST]; long n; int depth; } seen[NAMES];
static int n_seen, depth, below;

static int push(const char *name)
{
    int i = 0;
    while (i < n_seen && strcmp(seen[i].name, name) != 0) i++;
    if (i == NAMES) return depth++;
    if (i == n_seen) snprintf(seen[n_seen++].name, WIDEST, "%s", name);
    seen[i].n++;
    if (depth > seen[i].depth) seen[i].depth = depth;
    return depth++;
}

static int pop(void)
{
    if (depth == 0) below = 1;
    else depth--;
    return depth;
}

static void report(void)
{
    const char *stem = getenv("NVTX_LOG"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char path[4096];
    snprintf(path, sizeof path, "%s.%s", stem ? stem : "", rank ? rank : "0");
    FILE *f = stem ? fopen(path, "w") : NULL;
    if (!f) return;
    for (int i = 0; i < n_seen; i++) fprintf(f, "%s: %ld ranges, depth %d\n", seen[i].name, seen[i].n, seen[i].depth);
    fprintf(f, "open at the end: %d%s\n", depth, below ? ", and more were closed than opened" : "");
    fclose(f);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
    if (size <= NVTX_CBID_CORE_RangePop) return 0;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    atexit(report);
    return 1;
}
