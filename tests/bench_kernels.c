/* bench_kernels - `pdflash bench kernels` as a program of its own, for machines without MPI and HDF5. */
#include "cmd/bench_kernels.h"

int main(int argc, char **argv)
{
    return err_exit_code(bench_kernels(argc - 1, argv + 1));
}
