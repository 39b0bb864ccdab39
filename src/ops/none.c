/* What stands in for cuda/ in a build without it. */
#include "ops/ops.h"

enum status ops_cuda_open(enum ops_act act, int device, struct ops *o_p)
{
    (void)act;
    (void)device;
    (void)o_p;
    return ERR(ST_E_CONFIG, "--device cuda: this program was built without CUDA; leave --device out to run on the CPU, "
                            "or build it with make CUDA=1");
}

int ops_cuda_devices(void)
{
    return 0;
}

enum status ops_cuda_time(struct ops *o, void (*run)(void *arg), void *arg, int reps, double *us_p)
{
    (void)run;
    (void)arg;
    (void)reps;
    *us_p = 0;
    return ERR(ST_E_CONFIG, "device time of backend %s asked for, but this build has no CUDA; build with make CUDA=1", o->name);
}
