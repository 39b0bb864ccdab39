#!/bin/bash
# What must be refused, with exit code and message: command line, files, launch, layouts that do not match.
. "$(dirname "$0")/lib.sh"
$X make "$W/p.h5" train00
base="run $MODEL --prompts $W/p.h5 --out $W/out.h5 --force-new"
pd="--prefill pp=2,tp=1 --decode tp=2"

expect 1 "no command" "usage" "$PDFLASH"
expect 1 "unknown command" "not a command" "$PDFLASH" rum
expect 0 "help" "--concurrency" "$PDFLASH" run --help
expect 1 "unknown option" "did you mean --concurrency" "$PDFLASH" $base --concurency 3
expect 1 "number out of range" "out of range" "$PDFLASH" $base --concurrency 0
expect 1 "missing option" "--prompts FILE is required" "$PDFLASH" run $MODEL --out x
expect 1 "bad topology text" "prefill" "$PDFLASH" $base --prefill pp=x
expect 2 "eagle3" "paused" "$PDFLASH" $base --single --spec eagle3
expect 2 "dspark" "dspark" "$PDFLASH" $base --single --spec dspark
expect 2 "dflash without a draft" "--draft" "$PDFLASH" run --model inputs/k3-nano --prompts "$W/p.h5" --out "$W/o.h5" --single
expect 2 "block larger than trained" "block_size 16" "$PDFLASH" $base --single --block 32
expect 2 "tp does not divide" "tp" "$PDFLASH" $base --single --decode tp=3
expect 2 "illegal ep" "ep" $MPIRUN -n 9 "$PDFLASH" $base --prefill pp=1 --decode tp=8,ep=2
expect 2 "decode pp > 1" "pp" $MPIRUN -n 4 "$PDFLASH" $base --prefill pp=2 --decode pp=2,tp=1
expect 2 "more stages than layers" "18" $MPIRUN -n 19 "$PDFLASH" $base --prefill pp=18 --decode tp=1
expect 1 "wrong number of ranks" "mpirun -n 4" $MPIRUN -n 3 "$PDFLASH" $base $pd
expect 1 "too many ranks" "mpirun -n 4 .*pdflash run .*--prefill pp=2,tp=1" $MPIRUN -n 5 "$PDFLASH" $base $pd
expect 1 "PD on one rank" "mpirun -n 4" "$PDFLASH" $base $pd
for v in SLURM_NTASKS SLURM_STEP_NUM_TASKS PMI_SIZE OMPI_COMM_WORLD_SIZE; do
    expect 1 "started alone with $v=4" "mpirun -n 4 .*pdflash run .*--prefill pp=2,tp=1" env $v=4 "$PDFLASH" $base $pd
done
expect 2 "no model" "config.json" "$PDFLASH" run --model "$W" --single --spec none --prompts "$W/p.h5" --out "$W/o.h5"
expect 2 "no prompts" "nothere" "$PDFLASH" run $MODEL --single --prompts nothere.h5 --out "$W/o.h5"
expect 2 "prompts that are no HDF5" "README" "$PDFLASH" run $MODEL --single --prompts README.md --out "$W/o.h5"
expect 2 "prompt longer than the positions" "row 0" "$PDFLASH" $base --single --max-new 1048570
expect 2 "nccl on the CPU" "nccl" "$PDFLASH" $base --single --comm nccl
expect 2 "cuda in a CPU build" "CUDA" "$PDFLASH" $base --single --device cuda
expect 2 "unknown isa" "sse9" "$PDFLASH" $base --single --isa sse9
echo "not a result" >"$W/exists.h5"
expect 2 "output exists" "exists" "$PDFLASH" run $MODEL --prompts "$W/p.h5" --out "$W/exists.h5" --single
expect 2 "show of something else" "exists.h5" "$PDFLASH" show "$W/exists.h5"

# layouts that do not match: all ranks refuse, nothing is put
mismatch() { # NAME FIELD TEXT INJECT
    expect 2 "mismatch: $1" "$2" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject "$3"
    if grep -q "puts issued 0" "$W/expect.log"; then pass "mismatch: $1: zero puts"; else fail "mismatch: $1: puts not reported as 0"; fi
}
mismatch "page size" "page" prefill.page=32
mismatch "kv dtype" "kv" prefill.kv=fp32
mismatch "draft kv dtype" "draft" prefill.draft-kv=fp32
mismatch "draft head count" "head" prefill.draft-heads=4
mismatch "capture list" "tap" prefill.taps=3,6,9,12,14,16
mismatch "prefill without draft" "draft" prefill.spec=none
mismatch "decode without draft" "draft" decode.spec=none
mismatch "page order" "order" prefill.order=token
mismatch "draft window" "window" decode.window=128
mismatch "draft rope" "rope" decode.theta=20000
mismatch "mask token" "mask" decode.mask=4080
mismatch "decode page size" "page" decode.page=128
expect 2 "ranks of different builds" "build" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject build:2
expect 1 "unknown injection" "not understood" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject nonsense
finish
