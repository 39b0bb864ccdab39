/* bench_kernels - `pdflash bench kernels` as a program of its own, for machines without MPI and HDF5. */
#include "cmd/bench.h"

int main(int argc, char **argv)
{
    static char kernels[] = "kernels";
    char *arg[64] = {kernels};
    for (int i = 1; i < argc && i < 64; i++) arg[i] = argv[i];
    return err_exit_code(cmd_bench(argc < 64 ? argc : 64, arg));
}
