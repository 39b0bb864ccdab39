#!/bin/bash
# A lost rank, a lost word, an interrupted run: the job ends by itself, says why, loses nothing, and resumes.
. "$(dirname "$0")/lib.sh"
$X make "$W/p.h5" train00 train01 train02 train03 train04 train05
common="--prompts $W/p.h5 --max-new 40"
pd="--prefill pp=2,tp=1 --decode tp=2"
job 4 whole $common $pd || finish

# kill one rank of each role in the middle
for rank in 0 1 2 3; do
    rm -f "$W/kill.h5" "$W/kill.h5.jsonl"
    timeout 60 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/kill.h5" --concurrency 2 --watchdog 5 \
        --inject kill:$rank@14 >"$W/kill.log" 2>&1
    rc=$?
    if [ $rc != 0 ] && [ $rc != 124 ]; then pass "kill rank $rank: exit $rc"; else fail "kill rank $rank: exit $rc"; fi
    rm -f /dev/shm/*vader_segment* /dev/shm/*osc_rdma* 2>/dev/null
    timeout 300 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/kill.h5" --resume >"$W/resume.log" 2>&1
    rc=$?
    [ $rc = 0 ] || { fail "resume after kill of rank $rank: exit $rc"; tail -20 "$W/resume.log"; continue; }
    check "resume after kill of rank $rank: same tokens" $X equal "$W/whole.h5" "$W/kill.h5"
done

expect 4 "a lost word ends in the watchdog, which names it" "draft" $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd \
    --out "$W/drop.h5" --force-new --watchdog 4 --inject drop:draft@1
# the table: request, slot, generation, stage, rank, component, expected, seen; printed by all ranks that know something
if grep -qE "decode.0.* 0 +[0-9]+ +1 +1 +1 draft +DONE +[0-9]+  none" "$W/expect.log" && grep -q "decode.1.* draft " "$W/expect.log" &&
    grep -qE "prefill.[01].*order [0-9]+ applied last" "$W/expect.log"; then pass "the table of a lost word"; else
    fail "the table of a lost word"
    cat "$W/expect.log"
fi
check "a lost word: the file opens" $X rows "$W/drop.h5"
expect 2 "resume under another configuration" "config" $MPIRUN -n 4 "$PDFLASH" run $MODEL --prompts "$W/p.h5" --max-new 41 $pd \
    --out "$W/whole.h5" --resume
expect 0 "resume of a complete run does nothing" "6 of 6" $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/whole.h5" --resume

# a signal: finish what runs, exit 75, resume to the end
rm -f "$W/usr1.h5" "$W/usr1.h5.jsonl"
$MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/usr1.h5" --watchdog 60 --concurrency 1 --slots 1 >"$W/usr1.log" 2>&1 &
mpi=$!
for _ in $(seq 200); do grep -q "run pd-" "$W/usr1.log" && break; sleep 0.05; done
sleep 0.3
kill -USR1 $mpi
wait $mpi
rc=$?
if [ $rc = 75 ] || [ $rc = 0 ]; then pass "USR1: exit $rc"; else fail "USR1: exit $rc"; tail -20 "$W/usr1.log"; fi
timeout 300 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/usr1.h5" --resume >"$W/usr1b.log" 2>&1 || fail "resume after USR1"
check "USR1 and resume: same tokens" $X equal "$W/whole.h5" "$W/usr1.h5"
finish
