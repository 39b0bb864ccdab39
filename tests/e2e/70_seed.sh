#!/bin/bash
# The seed topology for real: prefill PP8 x TP4 x EP4, decode TP32 x EP4, 64 ranks on this machine, on a random pair made
# for it: 32 KDA and MLA heads, 8 draft KV heads (prefill holds 2 a rank, decode each head on 4 ranks), 6 draft layers,
# captures that leave four stages empty, one of them at a stage boundary.
# Tokens and rounds are those of --single, at concurrency 1 and 8, with every rank receiving all it holds and with four
# pretended nodes of eight decode ranks receiving one copy each; everything that moves is checked; wall times are printed.
# FULL=1: both concurrencies with both, and the transport without windows.
. "$(dirname "$0")/lib.sh"
pair=$W/pair
"$B/mktiny" --spec tests/data/seed-pair.json --out "$pair" || { fail "mktiny"; finish; }
MODEL="--model $pair/target --draft $pair/draft"
seed="--prefill pp=8,tp=4,ep=4 --decode tp=32,ep=4"
"$PDFLASH" prompts --jsonl inputs/gsm8k-test64.jsonl --limit 8 --model "$pair/target" --thinking off --force --out "$W/p.h5" 2>/dev/null ||
    { fail "prompts"; finish; }
common="--prompts $W/p.h5 --max-new 12 --watchdog 200"
"$PDFLASH" plan $MODEL $seed >"$W/plan" || fail "plan"
empty=$(grep -c 'captures none' "$W/plan")
[ "$empty" -ge 2 ] && grep -q 'stage 2: layers 4-5 .* captures 3 ' "$W/plan" &&
    pass "$empty stages capture nothing, layer 3 ends stage 1 and is captured by stage 2" || fail "captures"
job 1 single --single $common || finish
run() { # NAME CONCURRENCY NODE_SIZE OPTIONS...
    local name=$1 c=$2 nodes=$3 t0=$SECONDS
    shift 3
    [ "$nodes" = 0 ] || set -- --dedupe --node-size "$nodes" "$@"
    job 64 "$name" $common $seed --concurrency "$c" --verify "$@" || return
    check "$name ($((SECONDS - t0)) s wall): tokens and rounds of --single" $X equal "$W/single.h5" "$W/$name.h5"
    check "$name: what moved is what the plan says" $B/tests/x_moved "$W/$name.h5" "$pair/target" "$pair/draft" pp=8,tp=4,ep=4 tp=32,ep=4 $nodes
    [ "$nodes" = 0 ] || check "$name: $(grep -o 'mla: .*' "$W/$name.log")" grep -q 'draft: .* bytes over the wire' "$W/$name.log"
    # both groups end with what they began with
    local free='free at the end, [a-z]+ ranks: ([0-9]+) of \1 pages, ([0-9]+) of \2 state slots, ([0-9]+) of \3 staging slots'
    [ "$(grep -cE "$free" "$W/$name.log")" = 2 ] && pass "$name: nothing leaks" || fail "$name: leaks"
}
run c8 8 0
run c1-nodes 1 8
if [ "${FULL:-0}" = 1 ]; then
    run c1 1 0
    run c8-nodes 8 8
    run c8-nodes-sendrecv 8 16 --transport sendrecv
fi
finish
