#!/bin/bash
# Logits of every committed position are the same bytes at any TP, EP, PP and chunk size.
. "$(dirname "$0")/lib.sh"
$X make "$W/p.h5" train03 test05
common="--prompts $W/p.h5 --max-new 24"
dump() { # NAME NP OPTIONS...
    local name=$1 np=$2
    shift 2
    job "$np" "$name" $common --dump-logits "$W/$name.f32" "$@"
}
dump single 1 --single
dump single-tp2 2 --single --decode tp=2
dump tp1 2 --prefill pp=1 --decode tp=1
dump tp2 4 --prefill pp=2,tp=1 --decode tp=2 --chunk 7
dump tp2ep2 4 --prefill pp=1,tp=2 --decode tp=2,ep=2
dump tp4 8 --prefill pp=2,tp=2 --decode tp=4 --chunk 64
dump tp4ep4 8 --prefill pp=1,tp=4,ep=4 --decode tp=4,ep=4
dump tp8 16 --prefill pp=8,tp=1 --decode tp=8
dump tp8ep8 12 --prefill pp=2,tp=2,ep=2 --decode tp=8,ep=8 --chunk 16
for name in single-tp2 tp1 tp2 tp2ep2 tp4 tp4ep4 tp8 tp8ep8; do
    check "logits of $name are those of single" cmp "$W/single.f32" "$W/$name.f32"
    check "prefill logits of $name are those of single" cmp "$W/single.f32.prefill" "$W/$name.f32.prefill"
done
[ -s "$W/single.f32" ] && [ -s "$W/single.f32.prefill" ] &&
    pass "dumps hold $(stat -c %s "$W/single.f32") bytes" || fail "dumps are empty"
finish
