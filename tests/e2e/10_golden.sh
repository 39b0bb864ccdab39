#!/bin/bash
# Golden decode traces through the whole program: prefill on 8 stages, windows, decode on 8 ranks; and --single.
. "$(dirname "$0")/lib.sh"
PD="--prefill pp=8,tp=1 --decode tp=8"
$X make "$W/all.h5" train test
for spec in dflash none; do
    job 16 "pd-$spec" $PD --prompts "$W/all.h5" --spec $spec --kv-dtype fp32 --max-new 256 --verify &&
        check "pd $spec fp32: 32 traces identical" $X check "$W/pd-$spec.h5" $spec 0 train test
    job 1 "single-$spec" --single --prompts "$W/all.h5" --spec $spec --kv-dtype fp32 --max-new 256 &&
        check "single $spec fp32: 32 traces identical" $X check "$W/single-$spec.h5" $spec 0 train test
done
for n in 01 02 05 17; do
    $X make "$W/b$n.h5" budget$n
    for spec in dflash none; do
        job 4 "budget$n-$spec" --prefill pp=2,tp=1 --decode tp=2 \
            --prompts "$W/b$n.h5" --spec $spec --kv-dtype fp32 --max-new $((10#$n)) &&
            check "budget $n $spec" $X check "$W/budget$n-$spec.h5" $spec 0 budget$n
    done
done
finish
