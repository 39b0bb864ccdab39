#!/bin/bash
# jobs/gpu-node: the commands that it would run, and a rehearsal on the CPU over the stand-in for NCCL.
. "$(dirname "$0")/lib.sh"
export MPIRUN PDFLASH OUT=$W/node BIND=
said() { # GPUS COUNT TEXT: that many commands have it
    local n
    n=$(BENCH_GPUS=$1 jobs/gpu-node --dry-run | grep -c -- "$3")
    [ "$n" = "$2" ] && pass "$1 GPUs: $2 times '$3'" || fail "$1 GPUs: $n times '$3', expected $2"
}
check "it is bash" bash -n jobs/gpu-node
said 8 9 "--comm [a-z]* --concurrency"
said 8 3 "-n 8 .*--prefill pp=2,tp=2 --decode tp=4 --comm"
said 8 3 "-n 8 .*--prefill pp=4,tp=1 --decode tp=4 --comm"
said 8 6 "-n 16 .*--prefill pp=8,tp=1 --decode tp=8 --comm"
said 4 3 "-n 4 .*--prefill pp=1,tp=2 --decode tp=2 --comm"
said 4 6 "-n 8 .*--prefill pp=4,tp=1 --decode tp=4 --comm"
said 2 6 "--comm [a-z]* --concurrency"
said 8 2 "--inject kill:"
said 8 1 "-n 8 .*bench transfer --device cuda --prefill tp=4 --decode tp=4"
said 8 1 "-n 8 .*bench collectives --device cuda --comm nccl"
said 2 1 "bench collectives"
check "a dry run makes nothing" test ! -e "$OUT"
expect 2 "a number of GPUs without layouts" "layouts are made for 2, 4 and 8" env BENCH_GPUS=3 jobs/gpu-node
expect 2 "no program" "PDFLASH=/nowhere is no program" env PDFLASH=/nowhere jobs/gpu-node
expect 1 "an unknown word" "usage: jobs/gpu-node" jobs/gpu-node --help
# what is set at the top is what jobs/README.md tells of
for v in $(sed -n 's/^: "\${\([A-Z_]*\).*/\1/p' jobs/gpu-node | sort -u); do
    check "jobs/README.md has $v" grep -q "\`$v\`" jobs/README.md
done

lib=$B/tests/libnccl-double.so
[ "${lib#/}" != "$lib" ] || lib=$PWD/$lib
slow=$((${SANITIZE:-0} * 3 + 1))
rehearse() { env DEVICE=cpu BENCH_GPUS=2 LIMIT=2 ROWS=1,21 PATIENCE=$slow SECONDS_MOST=$((1400 * slow)) PDFLASH_NCCL="$lib" XTRACES="$B/tests/x_traces" "$@" jobs/gpu-node; }
touch "$W/mark"
rehearse >"$W/rehearsal.log" 2>&1
rc=$?
[ $rc = 0 ] && pass "a rehearsal" || { fail "a rehearsal: exit $rc"; tail -40 "$W/rehearsal.log"; }
sweep_shm "$W/mark"
t=$OUT/table.txt
check "every row has the tokens of one rank" sh -c "grep -cE '^(split|shared)-.* 2/2 .* 2/2 ' '$t' | grep -qx 6"
check "NCCL where it was asked for" grep -q "^shared-nccl-c8 .* self nccl nccl" "$t"
check "the host where it was asked for" sh -c "grep '^shared-mpi-c8 ' '$t' | grep -v nccl"
check "golden traces" grep -q "golden traces: all 32 identical" "$t"
check "killed ranks end the job" sh -c "grep -c 'killed: exit code' '$t' | grep -qx 2"
check "sums over NCCL have our bits" grep -q "tree fp32, nccl \*" "$t"
check "transfers" grep -q "^contiguous  *packed" "$t"
# wrong tokens are found: the reference has others
rm -rf "$OUT"
rehearse LIMIT=1 PATIENCE=1 SECONDS_MOST=100 >"$W/short.log" 2>&1
rc=$?
[ $rc != 0 ] && grep -q "not run, the time is up: " "$OUT/table.txt" && pass "what finds no time is listed, exit $rc" || fail "no time: exit $rc"
finish
