/* The conformance cases of every operation: CUDA against the CPU where a device is, and the CPU's scalar kernels
 * against its best ones everywhere, so that the cases themselves are always exercised. */
#include "suite.h"

#include "ops_conformance.h"

const char *const suite_name = "cuda_ops";

static void compare(struct ops *judge, struct ops *o)
{
    int failed = conf_all(judge, o, getenv("PDFLASH_CONFORMANCE"));
    judge->close(judge);
    o->close(o);
    ck_assert_msg(failed == 0, "%d cases failed", failed);
}

START_TEST(test_cpu)
{
    struct ops a, b;
    const char *isa = getenv("PDFLASH_ISA");
    conf_ok(ops_cpu_open((enum ops_act)_i, "scalar", &a));
    conf_ok(ops_cpu_open((enum ops_act)_i, isa ? isa : NULL, &b));
    compare(&a, &b);
}
END_TEST

START_TEST(test_cuda)
{
    struct ops cpu, gpu;
    if (ops_cuda_devices() == 0) {
        printf("SKIPPED: no CUDA device in this build or on this machine; the CUDA backend was not compared\n");
        return;
    }
    conf_ok(ops_cpu_open((enum ops_act)_i, NULL, &cpu));
    conf_ok(ops_cuda_open((enum ops_act)_i, 0, &gpu));
    compare(&cpu, &gpu);
}
END_TEST

/* the same cases with their launches held back: as graphs, which the second time are started again */
START_TEST(test_regions)
{
    struct ops o;
    int cuda = ops_cuda_devices() > 0;
    if (!cuda) printf("SKIPPED: no CUDA device in this build or on this machine; no graph was made\n");
    conf_ok(cuda ? ops_cuda_open((enum ops_act)_i, 0, &o) : ops_cpu_open((enum ops_act)_i, NULL, &o));
    int failed = conf_regions(&o);
    struct ops_graphs g = o.graph_counts(&o);
    o.close(&o);
    ck_assert_msg(failed == 0, "%d cases differ", failed);
    ck_assert(cuda ? g.started > 0 && g.launches >= g.started : g.started == 0);
}
END_TEST

/* a device that is not there is refused with a message, in every build */
START_TEST(test_refusals)
{
    struct ops o;
    ck_assert_int_eq(ops_cuda_open(ACT_FP32, 99, &o), ST_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(err_last(), "CUDA"));
    ck_assert_int_eq(ops_cuda_open(ACT_FP32, -1, &o), ST_E_CONFIG);
    if (ops_cuda_devices() == 0) ck_assert_int_eq(ops_cuda_open(ACT_BF16, 0, &o), ST_E_CONFIG);
}
END_TEST

void suite_fill(Suite *s)
{
    TCase *tc = SUITE_CASE(s, "conformance", 600);
    tcase_add_loop_test(tc, test_cpu, ACT_FP32, ACT_BF16 + 1);
    tcase_add_loop_test(tc, test_cuda, ACT_FP32, ACT_BF16 + 1);
    tcase_add_loop_test(tc, test_regions, ACT_FP32, ACT_BF16 + 1);
    SUITE_TEST(tc, test_refusals);
}

int main(void)
{
    return suite_main_serial();
}
