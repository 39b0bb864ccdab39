/* Queues beside the main one, events between them, waiting of the host, and which device this is. */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

/* A wait spins, because results are wanted at once; one that lasts lets the caller look after the others meanwhile. A
 * query takes about a microsecond. */
enum { CU_SPINS = 256 };

static cudaError_t ask(const struct cuda_impl *im, cudaEvent_t event)
{
    return event ? cudaEventQuery(event) : cudaStreamQuery(im->stream);
}

void cu_wait(struct ops *o, cudaEvent_t event)
{
    struct cuda_impl *im = cu_impl(o);
    cudaError_t e = cudaErrorNotReady;
    if (!o->guard && !o->idle) {
        CU(event ? cudaEventSynchronize(event) : cudaStreamSynchronize(im->stream));
        return;
    }
    for (unsigned n = 0; im->failed == ST_OK && (e = ask(im, event)) == cudaErrorNotReady; n++) {
        if (o->idle) o->idle(o->idle_ctx);
        if (o->guard && n >= CU_SPINS) im->failed = o->guard(o->guard_ctx, n - CU_SPINS);
    }
    if (im->failed == ST_OK) CU(e); /* else values are wrong, and nobody waits for them: see ops.check */
}

enum status cuda_check(const struct ops *o)
{
    return cu_impl(o)->failed;
}

static void *main_queue(struct ops *o)
{
    cu_graph_flush(o); /* who asks gives it to a library, whose launches do not come by graph.cu */
    return cu_impl(o)->stream;
}

static enum status queue_new(struct ops *, void **q_p)
{
    cudaStream_t q;
    cudaError_t e = cudaStreamCreateWithFlags(&q, cudaStreamNonBlocking);
    if (e != cudaSuccess) return ERR(ST_E_DEVICE, "no further CUDA stream: %s", cudaGetErrorString(e));
    *q_p = q;
    return ST_OK;
}

static void queue_free(struct ops *, void *q)
{
    if (q) (void)cudaStreamDestroy((cudaStream_t)q);
}

static enum status event_new(struct ops *, void **e_p)
{
    cudaEvent_t event;
    cudaError_t e = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (e != cudaSuccess) return ERR(ST_E_DEVICE, "no further CUDA event: %s", cudaGetErrorString(e));
    *e_p = event;
    return ST_OK;
}

static void event_free(struct ops *, void *e)
{
    if (e) (void)cudaEventDestroy((cudaEvent_t)e);
}

static void mark(struct ops *, void *q, void *e)
{
    CU(cudaEventRecord((cudaEvent_t)e, (cudaStream_t)q));
}

static void after(struct ops *, void *q, void *e)
{
    CU(cudaStreamWaitEvent((cudaStream_t)q, (cudaEvent_t)e, 0));
}

static enum status device(struct ops *o, struct ops_device *d_p)
{
    cudaDeviceProp prop;
    struct ops_device d;
    memset(&d, 0, sizeof d);
    cudaError_t e = cudaGetDeviceProperties(&prop, cu_impl(o)->device);
    if (e == cudaSuccess) e = cudaMemGetInfo(&d.free, &d.total);
    if (e != cudaSuccess)
        return ERR(ST_E_DEVICE, "CUDA device %d says nothing of itself: %s", cu_impl(o)->device, cudaGetErrorString(e));
    static_assert(sizeof prop.uuid == sizeof d.uuid, "a UUID has 16 bytes");
    memcpy(d.uuid, &prop.uuid, sizeof d.uuid);
    (void)snprintf(d.name, sizeof d.name, "%.63s", prop.name);
    *d_p = d;
    return ST_OK;
}

const struct ops_queues cuda_queues = {
    .main = main_queue,
    .queue_new = queue_new,
    .queue_free = queue_free,
    .event_new = event_new,
    .event_free = event_free,
    .mark = mark,
    .after = after,
    .device = device,
};
