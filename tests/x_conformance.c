/* x_conformance - every operation on CUDA against the CPU, without a test library: x_conformance [part of a name].
 * Prints a line per case; exit code 1 when one fails, 77 when this build or machine has no CUDA. */
#include "ops_conformance.h"

int main(int argc, char **argv)
{
    int failed = 0;
    if (ops_cuda_devices() == 0) {
        puts("no CUDA device in this build or on this machine: nothing was compared");
        return 77;
    }
    for (int act = ACT_FP32; act <= ACT_BF16; act++) {
        struct ops cpu, gpu;
        conf_ok(ops_cpu_open((enum ops_act)act, NULL, &cpu));
        conf_ok(ops_cuda_open((enum ops_act)act, 0, &gpu));
        printf("%s against cpu %s\n", gpu.isa, cpu.isa);
        failed += conf_all(&cpu, &gpu, argc > 1 ? argv[1] : NULL);
        if (argc < 2) failed += conf_regions(&gpu);
        gpu.close(&gpu);
        cpu.close(&cpu);
    }
    printf("%d failed\n", failed);
    return failed ? 1 : 0;
}
