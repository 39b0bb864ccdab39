#!/bin/bash
# Many requests through 3 slots at concurrency 8, some of them aborted at random moments of their lives: every request ends
# once, nothing leaks, nothing hangs, memory is flat, and what came to its own end has the tokens of an undisturbed run.
# REQUESTS=60; REQUESTS=1000 is the full show. Then the start delay in scheduler ticks at PP 1, 2, 4, 8.
. "$(dirname "$0")/lib.sh"
requests=${REQUESTS:-60} seed=${SEED:-11}
pd="--prefill pp=2,tp=1 --decode tp=2"
for _ in $(seq $((requests / 64 + 1))); do cat inputs/gsm8k-train64.jsonl; done | head -n "$requests" >"$W/q.jsonl"
"$PDFLASH" prompts --jsonl "$W/q.jsonl" --model inputs/k3-nano --thinking off --force --out "$W/p.h5" >"$W/prompts.log" 2>&1 ||
    fail "prompts: $(tail -1 "$W/prompts.log")"
common="--prompts $W/p.h5 --max-new 24"
job 1 whole --single $common || finish

soak() { # NAME OPTIONS...
    local name=$1 rc t0=$SECONDS
    shift
    timeout $((60 + requests * 3)) $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/$name.h5" --force-new --slots 3 \
        --concurrency 8 --watchdog 30 --inject "abort:40%@$seed" "$@" >"$W/$name.log" 2>&1
    rc=$?
    if [ $rc = 4 ] && grep -q "rows failed or were aborted" "$W/$name.log"; then
        pass "$name: $requests requests, exit 4 in $((SECONDS - t0)) s"
    else
        fail "$name: exit $rc"
        tail -20 "$W/$name.log"
        return
    fi
    $X rows "$W/$name.h5" >"$W/$name.rows"
    local ended aborted journal
    aborted=$(grep -c ' aborted ' "$W/$name.rows")
    ended=$(grep -cE ' (eos|length) ' "$W/$name.rows")
    journal=$(grep -c '"kind":"row"' "$W/$name.h5.jsonl")
    if [ $((aborted + ended)) = "$requests" ] && [ "$journal" = "$requests" ] && [ "$aborted" -gt $((requests / 8)) ]; then
        pass "$name: every request ended once: $ended by themselves, $aborted aborted ($(grep -o 'words QUIET [0-9]*' "$W/$name.log"))"
    else
        fail "$name: $ended ended, $aborted aborted, $journal rows in the journal, of $requests"
    fi
    # the program itself exits 3 when a counter is off; read its figures again
    if grep "free at the end" "$W/$name.log" | grep -oE '[0-9]+ of [0-9]+' | awk '$1 != $3 {exit 1}' &&
        [ "$(grep -c 'free at the end' "$W/$name.log")" = 2 ]; then
        pass "$name: pages, state slots and staging slots are all free"
    else
        fail "$name: not everything is free"
    fi
    check "$name: the others have their tokens" $X within "$W/whole.h5" "$W/$name.h5"
    local line grew
    line=$(grep -o 'peak memory.*' "$W/$name.log")
    grew=$(sed -n 's/.*most growth rank [0-9]*: \([0-9.]*\) to \([0-9.]*\) MiB.*/\1 \2/p' <<<"$line" | awk '{print ($2 - $1 <= 2 + 0.05 * $1)}')
    if [ "${SANITIZE:-0}" = 1 ]; then
        echo "skip $name: growth of memory: the address sanitizer keeps what was freed"
    elif [ "$grew" = 1 ]; then pass "$name: $line"; else fail "$name: memory grows: $line"; fi
}
soak rma
soak sendrecv --transport sendrecv --verify --chunk 32 --page 16
soak dedupe --dedupe --verify # both decode ranks read rows that one of them received
requests=$((requests < 24 ? requests : 24))
soak slow --inject delay:1@3 --limit $requests
check "slow: some were aborted on their way" grep -qE "words QUIET [1-9]" "$W/slow.log"

# from the last DONE to START: ticks, as recorded, and not more with more stages
ticks() {
    h5dump -a start_delay_ticks_max "$1" | sed -n 's/.*(0): *\([0-9]*\).*/\1/p'
}
most=
for pp in 1 2 4 8; do
    job $((pp + 2)) "pp$pp" $common --limit 12 --prefill pp=$pp,tp=1 --decode tp=2 --slots 3 || continue
    t=$(ticks "$W/pp$pp.h5")
    most="$most $t"
    if [ -n "$t" ] && [ "$t" -le 2 ]; then pass "pp=$pp: START at most $t ticks after the last DONE"; else fail "pp=$pp: start delay '$t' ticks"; fi
done
set -- $most
if [ $# = 4 ] && [ "$4" -le $(($1 + 1)) ]; then pass "start delay does not grow with PP:$most"; else fail "start delay grows with PP:$most"; fi
finish
