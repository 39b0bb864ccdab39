#!/bin/bash
# DSpark through the whole program: the golden rounds, and the same greedy tokens as DFlash and no speculation, in one group and
# in two; confidence shortens rounds and changes no token.
. "$(dirname "$0")/lib.sh"
CASES="train00 train07 test00 test05"
$X make "$W/p.h5" $CASES
common="--prompts $W/p.h5 --kv-dtype fp32 --max-new 256"
pd="--prefill pp=2,tp=1 --decode tp=2"
for spec in none dflash dspark; do
    [ $spec = dspark ] && MODEL="--model inputs/k3-nano --draft inputs/k3-nano-dspark"
    job 1 "$spec-single" $common --single --spec $spec && check "$spec single: golden" $X check "$W/$spec-single.h5" $spec 0 $CASES
    job 4 "$spec-pd" $common $pd --spec $spec --verify && check "$spec pd: golden" $X check "$W/$spec-pd.h5" $spec 0 $CASES
done
for spec in dflash dspark; do
    for way in single pd; do
        check "$spec $way: the tokens of none" $X tokens "$W/none-single.h5" "$W/$spec-$way.h5"
    done
done
# draft K/V of two layers and eight heads: two ranks hold four heads each, eight ranks one each
job 10 wide $common --prefill pp=1,tp=2 --decode tp=8 --spec dspark --verify && check "dspark tp2 to tp8" $X equal "$W/dspark-single.h5" "$W/wide.h5"
job 1 sure $common --single --spec dspark --confidence 0.6 && check "confidence: the tokens of none" $X tokens "$W/none-single.h5" "$W/sure.h5"
job 4 sure-pd $common $pd --spec dspark --confidence 0.6 && check "confidence pd: rounds of single" $X equal "$W/sure.h5" "$W/sure-pd.h5"
check "confidence shortens rounds" sh -c '! "$1" equal "$2" "$3"' - $X "$W/dspark-single.h5" "$W/sure.h5"
job 1 short $common --single --spec dspark --block 3 && check "block 3: the tokens of none" $X tokens "$W/none-single.h5" "$W/short.h5"
# how many rows a step verifies is chosen by the clock, and where there are drafts by the context: never which tokens come out
job 1 wise $common --single --spec dspark --adaptive && check "adaptive: the tokens of none" $X tokens "$W/none-single.h5" "$W/wise.h5"
check "adaptive says what it learnt" grep -qE "adaptive: [0-9]+ steps, [0-9.]+ rows a sequence" "$W/wise.log"
job 4 wise-pd $common $pd --spec dspark --adaptive && check "adaptive pd: the tokens of none" $X tokens "$W/none-single.h5" "$W/wise-pd.h5"
job 4 late $common $pd --spec dspark --spec-min-context 160 && check "short contexts: the tokens of none" $X tokens "$W/none-single.h5" "$W/late.h5"
check "short contexts have more rounds" sh -c '! "$1" equal "$2" "$3"' - $X "$W/dspark-single.h5" "$W/late.h5"
for o in --adaptive "--spec-min-context 9"; do
    expect 1 "${o%% *} without speculation" "has no meaning with --spec none" "$PDFLASH" run --model inputs/k3-nano $common --single --spec none --out "$W/x.h5" $o
done
# a run goes on only with the threshold it began with
expect 2 "resume with another confidence" "confidence is 0.6 in the file and 0 now" \
    "$PDFLASH" run $MODEL $common --single --spec dspark --out "$W/sure.h5" --resume
finish
