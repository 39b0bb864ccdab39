#!/bin/bash
# tools/launch: the exit code and signals are mpirun's; an mpirun that has no living process left does not hold the allocation.
. "$(dirname "$0")/lib.sh"
expect 0 "the exit code 0 is passed on" "4 ranks" tools/launch $MPIRUN -n 4 sh -c '[ "$OMPI_COMM_WORLD_RANK" = 0 ] && echo "$OMPI_COMM_WORLD_SIZE ranks"; exit 0'
expect 75 "any other exit code is passed on" "" tools/launch $MPIRUN -n 2 sh -c 'exit 75'
expect 1 "no command" "usage: tools/launch" tools/launch
# what a blocked mpirun looks like: a child that nobody waits for, then none
expect 4 "blocked with a zombie" "does not end: ended by force" tools/launch bash -c 'sleep 0.1 & exec sleep 60'
expect 4 "blocked without any child" "does not end: ended by force" tools/launch bash -c 'sleep 2; exec sleep 60'
expect 0 "slow but alive" "at the end" tools/launch bash -c 'sleep 12; echo at the end'
# a signal to launch reaches the ranks, and the run ends as the program says
$X make "$W/p.h5" train00 train01 train02 train03
rm -f "$W/s.h5" "$W/s.h5.jsonl"
tools/launch $MPIRUN -n 4 "$PDFLASH" run $MODEL --prompts "$W/p.h5" --max-new 40 --prefill pp=2,tp=1 --decode tp=2 --inject hold:2 --out "$W/s.h5" --force-new >"$W/s.log" 2>&1 &
job=$!
for _ in $(seq 600); do
    [ "$(grep -c '"kind":"row"' "$W/s.h5.jsonl" 2>/dev/null)" = 2 ] && break
    sleep 0.1
done
kill -USR1 $job
wait $job
rc=$?
if [ $rc = 75 ]; then pass "USR1 is passed on: exit 75"; else fail "USR1 is passed on: exit $rc"; tail -5 "$W/s.log"; fi
finish
