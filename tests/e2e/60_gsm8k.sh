#!/bin/bash
# The main job as `make run` does it: 64 train questions all correct; 64 test questions as the model can.
. "$(dirname "$0")/lib.sh"
value() {
    "$PDFLASH" show --json "$W/$1/results.h5" | tr ',{' '\n\n' | sed -n "s/.*\"$2\": *\([0-9.]*\).*/\1/p" | head -1
}
range() { # NAME VALUE LOW HIGH
    if awk -v v="$2" -v a="$3" -v b="$4" 'BEGIN{exit !(v>=a && v<=b)}'; then
        pass "$1 is $2"
    else
        fail "$1 is $2, expected $3 to $4"
    fi
}
PDFLASH=$PDFLASH OUT=$W/train tools/run-gsm8k >"$W/train.log" 2>&1 || { fail "train-64"; tail -30 "$W/train.log"; }
range "train-64 correct" "$(value train openai)" 64 64
range "train-64 accept length" "$(value train accept_length)" 11.4 12.2
range "train-64 completed" "$(value train completed)" 64 64
PDFLASH=$PDFLASH OUT=$W/test QUESTIONS=test ARGS="--limit 24 --concurrency=8" tools/run-gsm8k >"$W/test.log" 2>&1 ||
    { fail "test-24"; tail -30 "$W/test.log"; }
range "test-24 accept length" "$(value test accept_length)" 1.3 1.8
range "test-24 questions" "$(value test questions)" 24 24

# the line with + is what runs, with as many ranks as the layouts want
ARGS="--limit 1 --prefill pp=2,tp=1 --decode=tp=2" OUT=$W/few tools/run-gsm8k >"$W/few.log" 2>&1 || { fail "4 ranks"; tail -5 "$W/few.log"; }
check "the line of 4 ranks" grep -q "^+ $MPIRUN -n 4 $PDFLASH run --model .* --prefill pp=2,tp=1 --decode=tp=2$" "$W/few.log"
finish
