/* What stands in for cuda/ in a build without it. */
#include "ops/ops.h"

enum status ops_cuda_open(enum ops_act act, int device, struct ops *o_p)
{
    (void)act;
    (void)o_p;
    return ERR(ST_E_CONFIG, "CUDA device %d asked for, but this build has no CUDA; build with make CUDA=1", device);
}
