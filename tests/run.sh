#!/bin/bash
# run.sh KIND - run the test programs in build directory $B: unit, mpi, e2e, all, valgrind.
# Prints Check's closing line of every program, then one line with the totals. Exit 1 if anything failed.
set -u
cd "$(dirname "$0")/.."
. tools/mpi-env
B=${B:-build/release}
kind=${1:-all}
export TEST_TMP=${TEST_TMP:-$PWD/build/tmp.$$}
export PDFLASH=$PWD/$B/pdflash MPIRUN B
mkdir -p "$TEST_TMP"
trap 'rm -rf "$TEST_TMP"' EXIT
if [ "${SANITIZE:-0}" = 1 ]; then
    # Leaks of MPI's plug-ins are told by their callers, which only the slow unwinder finds once a plug-in is unloaded;
    # the serial programs have none and need not pay for it.
    # Not looked at: thread-local blocks of plug-ins, which gcc 12's leak scan reads after they are gone (it dies of that).
    asan=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1:intercept_tls_get_addr=0
    export ASAN_OPTIONS=$asan
    export CK_TIMEOUT_MULTIPLIER=4
    export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
fi
patience=1 # what runs slowly gets more time
if [ "${SANITIZE:-0}" = 1 ]; then patience=4; fi
passed=0 failed=0 bad=
: >"$TEST_TMP/failures"

one() { # name, command...
    local name=$1 t0=$SECONDS
    shift
    "$@" >"$TEST_TMP/log" 2>&1
    local rc=$?
    local line
    line=$(grep -E '^[0-9]+%: Checks' "$TEST_TMP/log" | tail -1)
    if [ $rc = 0 ]; then
        passed=$((passed + 1))
        echo "$name: ${line:-ok} ($((SECONDS - t0)) s)"
        grep -E '^skip' "$TEST_TMP/log" | sed 's/^/    /'
    else
        failed=$((failed + 1))
        bad="$bad $name"
        echo "$name: FAILED, exit $rc"
        tail -n ${LOG_LINES:-60} "$TEST_TMP/log"
        { # once more at the end, where a log that was cut still has it
            echo "$name: exit $rc after $((SECONDS - t0)) s"
            grep -E ':[FE]:|not ok|FAIL' "$TEST_TMP/log" | tail -3 | cut -c1-300
            tail -n 3 "$TEST_TMP/log" | cut -c1-200
        } >>"$TEST_TMP/failures"
    fi
}

slow_unwinder() {
    if [ "${SANITIZE:-0}" = 1 ]; then export ASAN_OPTIONS=$asan:fast_unwind_on_malloc=0; fi
}

run_unit() {
    for t in "$B"/tests/t_*; do
        case $t in *.o | *.d) continue ;; esac
        one "$(basename "$t")" timeout $((900 * patience)) "$t"
    done
}

# each MPI program names the sizes it wants in a comment "np: 1 2 4" of its source
run_mpi() {
    slow_unwinder
    for src in tests/mpi_*.c; do
        local name sizes
        name=$(basename "$src" .c)
        sizes=$(sed -n 's/.*\bnp: \([0-9 ]*\).*/\1/p' "$src" | head -1)
        for n in ${sizes:-1 2 4}; do
            one "$name np=$n" timeout $((300 * patience)) $MPIRUN -n "$n" "$B/tests/$name"
        done
    done
}

run_e2e() {
    slow_unwinder
    for s in tests/e2e/*.sh; do
        one "$(basename "$s" .sh)" timeout $((1500 * patience)) bash "$s"
    done
}

run_valgrind() {
    # scalar kernels: valgrind does not know every vector instruction; no fork so that it sees the tests themselves
    export PDFLASH_ISA=scalar CK_FORK=no CK_TIMEOUT_MULTIPLIER=50 VALGRIND=1
    for t in "$B"/tests/t_*; do
        case $t in *.o | *.d) continue ;; esac
        one "valgrind $(basename "$t")" timeout 3000 valgrind -q --error-exitcode=99 --leak-check=full \
            --errors-for-leak-kinds=definite --suppressions=tests/valgrind.supp "$t"
    done
}

case $kind in
unit) run_unit ;;
mpi) run_mpi ;;
e2e) run_e2e ;;
valgrind) run_valgrind ;;
all) run_unit; run_mpi; run_e2e ;;
*) echo "run.sh: '$kind' is unknown" >&2; exit 1 ;;
esac
cat "$TEST_TMP/failures"
[ -z "$bad" ] || echo "failed:$bad"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
