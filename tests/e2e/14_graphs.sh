#!/bin/bash
# Decode steps as CUDA graphs and launch by launch: the same tokens and rounds over the golden prompts, greedy and drawn,
# with batches that grow and shrink, pages that fill while decoding, and a group whose sums wait for the host.
. "$(dirname "$0")/lib.sh"
$X make "$W/all.h5" train test
base="--model inputs/k3-nano --prompts $W/all.h5 --out $W/no.h5 --force-new --max-new 64"
expect 1 "graphs on the CPU" "graphs on has no meaning with --device cpu" "$PDFLASH" run $base --single --spec none --graphs on
timeout 120 "$PDFLASH" run $base --single --spec none --device cuda --limit 1 --max-prompt 8192 >"$W/try.log" 2>&1
if grep -qE "built without CUDA|no CUDA device" "$W/try.log"; then
    echo "skip graphs: no CUDA in this build or no device on this machine; no step was captured"
    finish
fi

# both NAME NP OPTIONS... : the same run without and with graphs
both() {
    local name=$1 np=$2
    shift 2
    job $np "$name-off" --device cuda --prompts "$W/all.h5" --graphs off "$@" || return
    job $np "$name-on" --device cuda --prompts "$W/all.h5" --graphs on "$@" || return
    check "$name: the same tokens and rounds" $X equal "$W/$name-off.h5" "$W/$name-on.h5"
    check "$name: graphs were started" grep -E "graphs: [0-9]+ made, [1-9][0-9]* started" "$W/$name-on.log"
    check "$name: and none without" sh -c "! grep -E 'graphs: [0-9]+ made' '$W/$name-off.log'"
}
for spec in none dflash dspark; do
    MODEL="--model inputs/k3-nano"
    [ $spec = none ] || MODEL="$MODEL --draft inputs/k3-nano-$spec"
    both "$spec" 1 --single --spec $spec --act bf16 --concurrency 5 --page 16 --max-new 128
    both "$spec-fp32" 1 --single --spec $spec --kv-dtype fp32 --concurrency 32 --max-new 256
    both "$spec-drawn" 1 --single --spec $spec --act bf16 --temperature 0.8 --top-p 0.95 --seed 4 --concurrency 7 --max-new 96
done
MODEL="--model inputs/k3-nano --draft inputs/k3-nano-dflash"
both tp2 2 --single --decode tp=2 --act bf16 --limit 8 --max-new 48
both pd 2 --prefill pp=1,tp=1 --decode tp=1 --act bf16 --limit 16 --max-new 64

# phases as a profiler sees them: prefill rank 0 and decode rank 1 of one job
ranges() { # FILE NAME... : each of them was there, and all that were opened were closed
    local file=$1 name
    shift
    for name; do grep -qE "^$name: [1-9][0-9]* ranges" "$file" || { echo "no range '$name'"; cat "$file"; return 1; }; done
    grep -qx "open at the end: 0" "$file" || { cat "$file"; return 1; }
}
if [ -e "$B/tests/nvtx_log.so" ]; then
    NVTX_LOG=$W/nvtx NVTX_INJECTION64_PATH=$PWD/$B/tests/nvtx_log.so job 3 nvtx --prefill pp=2,tp=1 --decode tp=1 --device cuda --act bf16 \
        --prompts "$W/all.h5" --limit 4 --max-new 32
    check "ranges of the first stage" ranges "$W/nvtx.0" "prefill chunk" "hand-off out" "send state"
    check "ranges of the last stage" ranges "$W/nvtx.1" "hand-off in" "prefill chunk" "send state"
    check "ranges of decode" ranges "$W/nvtx.2" "take state" draft verify commit
fi
job 1 auto --single --device cuda --prompts "$W/all.h5" --act bf16 --limit 4 --max-new 32 &&
    check "auto: graphs with one decode rank" grep -E "graphs: [0-9]+ made, [1-9][0-9]* started" "$W/auto.log"
finish
