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

# what an earlier result means: an unfinished one is gone on with, a complete one is kept, and nothing is lost by a wrong word
D=$W/again R=$W/again/results.h5
rm -rf "$D"
layout="--prefill pp=2,tp=1 --decode=tp=2"
go() { ARGS="$layout $*" OUT=$D timeout 300 tools/run-gsm8k >"$W/again.log" 2>&1; } # OPTION...
after() { # NAME CODE TEXT...: what the last one ended with and said
    local rc=$? name=$1 code=$2 text
    shift 2
    [ $rc = "$code" ] || { fail "$name: exit $rc, expected $code"; tail -5 "$W/again.log"; return; }
    for text in "$@"; do
        grep -qe "$text" "$W/again.log" || { fail "$name: does not say '$text'"; tail -5 "$W/again.log"; return; }
    done
    pass "$name"
}
rows_are() { check "$1 has $2 rows" test "$($X rows "$D/$1" | wc -l)" = "$2"; } # FILE N
export PDFLASH
ARGS="$layout --limit 4 --inject hold:2" OUT=$D tools/run-gsm8k >"$W/again.log" 2>&1 &
job=$!
for _ in $(seq 600); do [ "$(grep -c '"kind":"row"' "$R.jsonl" 2>/dev/null)" = 2 ] && break; sleep 0.1; done
kill -TERM $job
wait $job
after "ended by TERM" 1 "ended by SIGTERM: rows so far are in $R (2 finished)" "run-gsm8k: exit code 1: the same command again goes on with $R"
# the line with + is what ran
check "as many ranks as the layouts want" grep -q "^+ $MPIRUN -n 4 $PDFLASH run --model .* --prefill pp=2,tp=1 --decode=tp=2 --limit 4 --inject hold:2$" "$W/again.log"
go --limit 3
after "other options: refused" 2 "made under another configuration" "nothing was written: $R is unchanged; ARGS=--force-new replaces it"
rows_are results.h5 2
go --limit 4
after "the same again goes on" 0 "$R is not complete: going on with it" "4 completed.*run complete, attempt 2"
go --limit 2
after "a complete one is kept" 0 "$R was complete: kept as $D/results.1.h5"
rows_are results.1.h5 4
rows_are results.h5 2
go --limit 2 --concurency 1
after "a wrong word" 1 "kept as $D/results.2.h5" "before anything was written: $R is the earlier one again"
rows_are results.h5 2
go --limit 2 --resume
after "--resume: nothing left to do" 0 "2 of 2 rows"
go --limit 1 --force-new
after "--force-new replaces" 0 "1 of 1 rows"
check "and keeps none" sh -c "! ls $D/results.2.h5* 2>/dev/null"
layout='--single --decode tp=1'
go --limit 1
after "--single: the ranks of decode" 0 "^+ $MPIRUN -n 1 .*--single"
finish
