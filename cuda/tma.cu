/* Tensor maps of the copy engine, and where its kernels run. */
#include "wgmma.h"

#include <cuda.h>

static_assert(sizeof(struct cu_map) == sizeof(CUtensorMap), "cu_map stands for a tensor map");

int cu_hopper(const struct cuda_impl *im)
{
#ifdef CU_SM90A
    return im->cc == 90;
#else
    (void)im;
    return 0;
#endif
}

static decltype(&cuTensorMapEncodeTiled) encoder()
{
    static decltype(&cuTensorMapEncodeTiled) encode;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (encode) return encode;
    CU(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) {
        log_error("the CUDA driver has no cuTensorMapEncodeTiled; it is older than CUDA 12");
        abort();
    }
    return encode;
}

struct cu_map cu_map_new(const void *base, int n_dims, const int64_t *dim, const int64_t *stride, const int *box)
{
    struct cu_map m = {};
    cuuint64_t d[4], s[4];
    cuuint32_t b[4], step[4] = {1, 1, 1, 1};
    for (int i = 0; i < n_dims; i++) {
        d[i] = (cuuint64_t)dim[i];
        b[i] = (cuuint32_t)box[i];
        if (i + 1 < n_dims) s[i] = (cuuint64_t)stride[i];
    }
    CUresult r = encoder()((CUtensorMap *)&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)n_dims, (void *)base, d, s,
                           b, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) {
        log_error("tensor map of %d dimensions at %p refused: driver error %d", n_dims, base, (int)r);
        abort();
    }
    return m;
}
