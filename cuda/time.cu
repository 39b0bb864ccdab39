/* Device time of operations for the kernel bench: graph replays between events. */
#include "cuda.h"

#include <stdlib.h>

enum { CALLS = 8 }; /* in one graph: the cost of starting it is shared */

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

extern "C" enum status ops_cuda_time(struct ops *o, void (*run)(void *arg), void *arg, int reps, double *us_p)
{
    cudaStream_t st = cu_impl(o)->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    float *ms = (float *)mem_alloc((size_t)reps, sizeof *ms, "times");
    if (!ms) return ST_E_NOMEM;
    run(arg); /* grows scratch, finds plans */
    CU(cudaStreamSynchronize(st));
    cu_impl(o)->ring.n_recent = 0; /* arrays staged outside the graph are not staged by it */
    CU(cudaStreamBeginCapture(st, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < CALLS; i++) run(arg);
    CU(cudaStreamEndCapture(st, &graph));
    cu_impl(o)->ring.n_recent = 0;
    CU(cudaGraphInstantiate(&exec, graph, 0));
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    for (int i = -3; i < reps; i++) {
        CU(cudaEventRecord(a, st));
        CU(cudaGraphLaunch(exec, st));
        CU(cudaEventRecord(b, st));
        CU(cudaEventSynchronize(b));
        if (i >= 0) CU(cudaEventElapsedTime(&ms[i], a, b));
    }
    qsort(ms, (size_t)reps, sizeof *ms, by_size);
    *us_p = (double)ms[reps / 2] * 1e3 / (int)CALLS;
    CU(cudaEventDestroy(a));
    CU(cudaEventDestroy(b));
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));
    mem_free(ms);
    return ST_OK;
}
