#!/bin/bash
# One request goes wrong: it gets its row, its slot and pages come back, the others have the tokens they always have, and
# --resume does it again. A prefill fault, a decode fault, a damaged byte, an abort in every phase, a slow source, a long prompt.
. "$(dirname "$0")/lib.sh"
$X make "$W/p.h5" train00 train01 train02 train03 train04 train05
common="--prompts $W/p.h5 --max-new 40 --watchdog 20"
pd="--prefill pp=2,tp=1 --decode tp=2"
job 4 whole $common $pd || finish

# ends NAME INDEX STOP TEXT OPTIONS... : exit 4, that row alone failed, everything freed, the rest as ever
ends() {
    local name=$1 index=$2 stop=$3 text=$4
    shift 4
    rm -f "$W/$name.h5" "$W/$name.h5.jsonl"
    timeout 120 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/$name.h5" "$@" >"$W/$name.log" 2>&1
    local rc=$?
    if [ $rc != 4 ]; then
        fail "$name: exit $rc, expected 4"
        tail -20 "$W/$name.log"
        return
    fi
    $X rows "$W/$name.h5" >"$W/$name.rows"
    if [ "$(grep -cE ' (failed|aborted) ' "$W/$name.rows")" = 1 ] && grep -qE "^$index $stop .*$text" "$W/$name.rows" &&
        [ "$(wc -l <"$W/$name.rows")" = 6 ]; then
        pass "$name: row $index $stop, five others ended"
    else
        fail "$name: rows"
        cat "$W/$name.rows"
    fi
    check "$name: the other rows have their tokens" $X within "$W/whole.h5" "$W/$name.h5"
    check "$name: pages and slots are free on both sides" all_free "$W/$name.log"
}
all_free() { # the program compares; this reads its figures again
    awk '/free at the end, (prefill|decode)/ {
             n++
             if (!match($0, /: ([0-9]+) of ([0-9]+) pages, ([0-9]+) of ([0-9]+) state slots, ([0-9]+) of ([0-9]+) staging/)) bad = 1
             s = substr($0, RSTART); gsub(/[^0-9]+/, " ", s); split(s, v, " ")
             if (v[1] != v[2] || v[3] != v[4] || v[5] != v[6]) bad = 1
         }
         END { exit bad || n != 2 }' "$1"
}
again() { # NAME: resume without the fault completes to the tokens of the whole run
    timeout 120 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/$1.h5" --resume >"$W/$1.again.log" 2>&1
    local rc=$?
    if [ $rc = 0 ]; then check "$1: resumed to the same tokens" $X equal "$W/whole.h5" "$W/$1.h5"; else fail "$1: resume exits $rc"; fi
}

ends prefill-first-stage 2 failed "prefill rank 0" --inject fail:0@2
again prefill-first-stage
ends prefill-last-stage 0 failed "prefill rank 1" --inject fail:1@0 --transport sendrecv --verify
ends prefill-chunked 3 failed "prefill rank 1" --inject fail:1@3 --chunk 7 --page 16 --slots 2
ends decode-fault 1 failed "decode group" --inject fail:decode@1
again decode-fault
for comp in mla kda conv draft; do
    ends flip-$comp 0 failed "checksum of $comp" --verify --inject flip:$comp@3
done
# what a failed request never reached has no time: no mean of it may be shown, least of all a negative one
"$PDFLASH" show "$W/flip-kda.h5" >"$W/show.log"
check "no phase is negative" sh -c "! grep -E '(mean|median) -[0-9]' '$W/show.log'"
ends abort-early 1 aborted "asked for" --inject abort:1@1
ends abort-slow-source 0 aborted "asked for" --verify --slots 1 --inject delay:1@60 --inject abort:0@150
ends abort-slow-sendrecv 0 aborted "asked for" --verify --slots 1 --transport sendrecv --inject delay:1@60 --inject abort:0@150
for name in abort-slow-source abort-slow-sendrecv; do
    check "$name: sources said QUIET" grep -qE "words QUIET [1-9]" "$W/$name.log"
done
again abort-slow-source
ends abort-decoding 0 aborted "asked for" --spec none --concurrency 2 --inject abort:0+5
# the longest prompt of the six is refused by its row on both sides
set -- $($X rows "$W/whole.h5" | sort -n -k4 | tail -1)
ends too-long "$1" failed "refused: the prompt has $4 tokens" --max-prompt $(($4 - 1))
# the same where it is the model's positions that say so; a file of such rows only is refused as a whole
mkdir -p "$W/short"
for f in inputs/k3-nano/*; do ln -sf "$PWD/$f" "$W/short"; done
rm -f "$W/short/config.json"
sed "s/\"max_position_embeddings\": 1048576/\"max_position_embeddings\": $(($4 - 1 + 40 + 16))/" inputs/k3-nano/config.json >"$W/short/config.json"
MODEL="--model $W/short --draft inputs/k3-nano-dflash" ends past-the-positions "$1" failed "refused: the prompt has $4 tokens"
expect 2 "no row fits the positions" "no row fits: row 0 has .* nothing is cut" "$PDFLASH" run --model "$W/short" --draft inputs/k3-nano-dflash \
    --prompts "$W/p.h5" --single --max-new $(($4 + 36)) --out "$W/x.h5"
# a failure of all requests is a run that commits no finished row
expect 4 "every request aborted" "0 of 6 rows" $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/none.h5" --force-new \
    --max-prompt 3
# single mode ends requests by the same orders
expect 4 "single: decode fault and abort" "4 of 6 rows" $MPIRUN -n 2 "$PDFLASH" run $MODEL $common --single --decode tp=2 \
    --out "$W/single.h5" --force-new --inject fail:decode@1 --inject abort:5@2 --concurrency 2
expect 1 "an abort that is not one" "not understood" "$PDFLASH" run $MODEL $common --single --out "$W/x.h5" --inject abort:3
finish
