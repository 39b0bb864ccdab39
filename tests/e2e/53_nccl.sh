#!/bin/bash
# NCCL in the whole program, over its stand-in (tests/nccl_double.c): the same tokens and the same logits, bit for bit;
# groups that cannot use it; ranks that cannot join, break or are killed.
. "$(dirname "$0")/lib.sh"
export PDFLASH_NCCL=$PWD/$B/tests/libnccl-double.so
[ "${B#/}" = "$B" ] || PDFLASH_NCCL=$B/tests/libnccl-double.so
$X make "$W/p.h5" train03 test05
common="--prompts $W/p.h5 --max-new 24"
logits() { # NAME NP OPTIONS...
    local name=$1 np=$2
    shift 2
    job "$np" "$name" $common --dump-logits "$W/$name.f32" "$@"
}
logits single 1 --single
for row in "tp4 8 --prefill pp=2,tp=2 --decode tp=4 --chunk 64" "tp2 5 --prefill pp=3,tp=1 --decode tp=2 --chunk 7" \
    "ep2 4 --prefill pp=1,tp=2,ep=2 --decode tp=2,ep=2" "one 2 --single --decode tp=2"; do
    set -- $row
    logits "$@" --comm nccl
    check "$1: logits over NCCL are those of one rank" cmp "$W/single.f32" "$W/$1.f32"
    check "$1: prefill logits too" cmp "$W/single.f32.prefill" "$W/$1.f32.prefill"
done
check "sums and hand-off took NCCL" grep -q "sums over nccl, hand-off over nccl" "$W/tp4.log"
check "sums of decode too" grep -q "decode tp=4 .* sums over nccl" "$W/tp4.log"
check "it is said which" grep -q "use NCCL 2.99.0, .*double" "$W/tp4.log"
check "nothing is left in /dev/shm" sh -c "! ls /dev/shm/pdflash-nccl-double* 2>/dev/null"

pd="--prefill pp=2,tp=2 --decode tp=4"
x="$MODEL $common --out $W/x.h5 --force-new"
# 8 ranks on 4 devices: each group has one a rank; on 3 the last of decode shares with its first, stages are apart
export NCCL_DOUBLE_GPUS=4
job 8 four $common $pd --comm nccl && check "prefill and decode share every device" $X equal "$W/tp4.h5" "$W/four.h5"
export NCCL_DOUBLE_GPUS=3
expect 2 "a shared device is refused" "needs a GPU for every rank of a group; pairs of ranks above that share one: 1" \
    $MPIRUN -n 8 "$PDFLASH" run $x $pd --comm nccl
for what in "decode group: ranks 4 and 7 on host .* share GPU-01000000-d0d0-"; do
    n=$(grep -c "$what" "$W/expect.log")
    [ "$n" = 8 ] && pass "all 8 ranks say: $what" || fail "$n of 8 ranks say: $what"
done
unset NCCL_DOUBLE_GPUS
expect 3 "a rank that cannot join" "sums over NCCL: NCCL: unhandled system error: told to fail" \
    env NCCL_DOUBLE_FAIL=init:1 $MPIRUN -n 8 "$PDFLASH" run $x $pd --comm nccl
expect 3 "a rank that breaks" "unhandled system error: told to fail" \
    env NCCL_DOUBLE_FAIL=group:1:40 $MPIRUN -n 8 "$PDFLASH" run $x $pd --comm nccl
expect 2 "no device" "with --device cpu use auto, mpi or shm" env PDFLASH_NCCL=libm.so.6 $MPIRUN -n 8 "$PDFLASH" run $x $pd --comm nccl
expect 0 "on the CPU auto is shared memory" "sums over shm" $MPIRUN -n 8 "$PDFLASH" run $x $pd --comm auto

# a rank of each role is killed: the others, which wait for it in NCCL, end with the job
for rank in 1 2 5; do
    rm -f "$W/kill.h5" "$W/kill.h5.jsonl"
    touch "$W/mark"
    t0=$SECONDS
    timeout 60 $MPIRUN -n 8 "$PDFLASH" run $MODEL $common $pd --comm nccl --out "$W/kill.h5" --watchdog 5 \
        --inject kill:$rank@3 >"$W/kill.log" 2>&1
    rc=$?
    if [ $rc != 0 ] && [ $rc != 124 ]; then pass "kill rank $rank: exit $rc after $((SECONDS - t0)) s"; else fail "kill rank $rank: exit $rc"; fi
    sweep_shm "$W/mark"
done

check "bench collectives" sh -c "timeout 120 $MPIRUN -n 3 '$PDFLASH' bench collectives --rows 1,21 --reps 2 --comm nccl --json >'$W/bench.json'"
check "every path is there" sh -c "grep -c '\"what\"' '$W/bench.json' | grep -qx 12"
check "NCCL's sums have our bits" sh -c "grep -c 'tree fp32, nccl \*' '$W/bench.json' | grep -qx 2"
expect 1 "bench collectives: rows" "1 to 16384" $MPIRUN -n 2 "$PDFLASH" bench collectives --rows 0
finish
