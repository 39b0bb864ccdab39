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
    touch "$W/mark"
    timeout 60 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/kill.h5" --concurrency 2 --watchdog 5 \
        --inject kill:$rank@14 >"$W/kill.log" 2>&1
    rc=$?
    check "kill rank $rank: the end of the job is no signal from the user" sh -c "! grep -q 'SIG.* received' '$W/kill.log'"
    if [ $rc != 0 ] && [ $rc != 124 ]; then pass "kill rank $rank: exit $rc"; else fail "kill rank $rank: exit $rc"; fi
    sweep_shm "$W/mark"
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
check "a lost word: the end of the job is no signal from the user" sh -c "! grep -q 'SIG.* received' '$W/expect.log'"
# lost before the first row: the file says what the run was
rm -f "$W/none.h5" "$W/none.h5.jsonl"
timeout 60 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/none.h5" --watchdog 5 --inject kill:3@2 >"$W/none.log" 2>&1
"$PDFLASH" show "$W/none.h5" >"$W/show.log" 2>&1
check "lost before the first row: show" grep -q "topology pp2tp1ep1/tp2ep1" "$W/show.log"
expect 2 "lost before the first row: resume refused" "max-new is 40 in the file and 41 now; use" \
    "$PDFLASH" run $MODEL --prompts "$W/p.h5" --max-new 41 --single --out "$W/none.h5" --resume
# no room: the rows written stay, the message says how to go on, and that works
rm -f "$W/room.h5" "$W/room.h5.jsonl"
full() { # the first row may be written, the others not: a limit on file sizes, which needs no file system of its own
    sh -c "trap '' XFSZ; exec '$PDFLASH' run $MODEL $common --single --spec none --concurrency 1 --out '$W/room.h5'" &
    pid=$!
    for _ in $(seq 400); do grep -q '"kind":"row"' "$W/room.h5.jsonl" 2>/dev/null && break; sleep 0.02; done
    prlimit --pid $pid --fsize=2000
    wait $pid
}
expect_here() { # as expect, of a function
    "$4" >"$W/full.log" 2>&1
    local rc=$?
    expect "$1" "$2" "$3" sh -c "cat '$W/full.log'; exit $rc"
}
expect_here 3 "no room for a row" "room.h5: rows written before are kept; make room, then continue with --resume" full
check "no room: rows are kept, in the file or in its journal" grep -q '"kind":"row"' "$W/room.h5.jsonl"
expect 0 "no room: resume" "6 of 6" "$PDFLASH" run $MODEL $common --single --spec none --out "$W/room.h5" --resume
check "no room and resume: same tokens" $X tokens "$W/whole.h5" "$W/room.h5"
expect 2 "resume under another configuration" "max-new is 40 in the file and 41 now; use" \
    $MPIRUN -n 4 "$PDFLASH" run $MODEL --prompts "$W/p.h5" --max-new 41 $pd \
    --out "$W/whole.h5" --resume
$X make "$W/p5.h5" train00 train01 train02 train03 train04
differs() { # TEXT OPTIONS...
    expect 2 "resume refused: $1" "$1" \
        "$PDFLASH" run --model inputs/k3-nano --single --out "$W/whole.h5" --resume --max-new 40 "${@:2}"
}
draft="--draft inputs/k3-nano-dflash"
differs "spec is dflash in the file and none now" --prompts "$W/p.h5" --spec none
differs "kv-dtype is bf16 in the file and fp32 now; use" --prompts "$W/p.h5" $draft --kv-dtype fp32
differs "block is 16 in the file and 8 now; use" --prompts "$W/p.h5" $draft --block 8
differs "questions (--limit) is 6 in the file and 3 now; use" --prompts "$W/p.h5" $draft --limit 3
differs "prompts (hash of its rows, template and source) is .* in the file and .* now; .*questions .* is 6 in the file and 5 now" \
    --prompts "$W/p5.h5" $draft
# ... keeps what the file says of the attempts that did it, whatever runs in vain, and a shard of it is done as well
cp "$W/whole.h5.jsonl" "$W/before.jsonl"
"$PDFLASH" show --json "$W/whole.h5" >"$W/before.json"
expect 0 "resume of a complete run does nothing" "6 of 6 rows are done: nothing is left to do" \
    $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/whole.h5" --resume
expect 0 "resume of a complete run in another place" "6 of 6 rows, complete" \
    "$PDFLASH" run $MODEL $common --single --out "$W/whole.h5" --resume
expect 0 "resume of a shard that is done" "3 of 3 rows, complete" \
    "$PDFLASH" run $MODEL $common --single --out "$W/whole.h5" --resume --shard 1/2
check "resume in vain: journal" cmp "$W/before.jsonl" "$W/whole.h5.jsonl"
check "resume in vain: file" sh -c "'$PDFLASH' show --json '$W/whole.h5' | cmp - '$W/before.json'"

# a rank that never comes out of MPI's own start, or of its end, after work and after none; mpirun may block then (tools/launch)
cat >"$W/stays.c" <<'C'
#include <unistd.h>
int STAYS();
int STAYS() { for (;;) pause(); }
C
cat >"$W/one-stays" <<S
#!/bin/bash
[ "\$OMPI_COMM_WORLD_RANK" != 1 ] || export LD_PRELOAD=$W/\${STAYS:-MPI_Finalize}.so
exec "\$@"
S
chmod +x "$W/one-stays"
stays() { # WHERE TEXT OPTION...: the job ends and says so. With 4, if mpirun does not crash as it ends ranks there (PMIx 4.2)
    timeout 120 tools/launch $MPIRUN -n 4 "$W/one-stays" "$PDFLASH" run $MODEL $common $pd --watchdog 2 "${@:3}" >"$W/stays.log" 2>&1
    local rc=$?
    if [[ $rc =~ ^(4|134|139)$ ]] && grep -q "$2" "$W/stays.log"; then
        pass "a rank stays $1"
    else
        fail "a rank stays $1: exit $rc"
        tail -12 "$W/stays.log"
    fi
}
if [ "${SANITIZE:-0}" = 1 ]; then
    echo "skip a rank that stays at its end: the sanitizer wants to be loaded first"
elif ${CC:-cc} -shared -fPIC -DSTAYS=MPI_Finalize -o "$W/MPI_Finalize.so" "$W/stays.c" &&
    ${CC:-cc} -shared -fPIC -DSTAYS=MPI_Init -o "$W/MPI_Init.so" "$W/stays.c"; then
    export STAYS=MPI_Init
    stays "at its start" "start-up takes longer than 8 s" --out "$W/starts.h5"
    unset STAYS
    for how in --force-new --resume; do
        stays "at its end, $how" "the end of the run takes longer than 8 s" --out "$W/stays.h5" $how
    done
else
    fail "a rank that stays at its end: no compiler"
fi

said_once() { # RC NAME SIGNAL FILE: a stopped run ended with 75 and said so in one line
    local n
    n=$(grep -c "$3 received: .* results in $W/$4.h5" "$W/$4.log")
    if [ "$1" = 75 ] && [ "$n" = 1 ]; then
        pass "$2: exit 75, said once"
    else
        fail "$2: exit $1, said $n times"
        cat "$W/$4.log"
    fi
}
rows_are() { # NAME N: wait until so many are committed; --inject hold keeps the run from going on
    for _ in $(seq 1200); do [ "$(grep -c '"kind":"row"' "$W/$1.h5.jsonl" 2>/dev/null)" = "$2" ] && return; sleep 0.05; done
    fail "$1 never has $2 rows"
}
# each stop signal, straight to the program: what runs is finished, one line says so at once, exit 75, resume to the end
for sig in INT TERM USR1; do
    rm -f "$W/$sig.h5" "$W/$sig.h5.jsonl"
    "$PDFLASH" run $MODEL $common --single --spec none --inject hold:2 --out "$W/$sig.h5" >"$W/$sig.log" 2>&1 &
    pid=$!
    rows_are "$sig" 2
    kill -$sig $pid
    wait $pid
    said_once $? "$sig" SIG$sig "$sig"
    check "$sig: resume under another topology" \
        $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --spec none --out "$W/$sig.h5" --resume
    check "$sig and resume: same tokens" $X tokens "$W/whole.h5" "$W/$sig.h5"
    "$PDFLASH" show "$W/$sig.h5" >"$W/show.log"
    for try in "attempt 1: 2 rows, topology single tp1ep1" "attempt 2: 4 rows, topology pp2tp1ep1/tp2ep1"; do
        check "$sig: show says $try" grep -q "$try" "$W/show.log"
    done
done

# a signal during start-up: a pipe among the evidence holds the leader after the handshake and before the first batch
held() { # NAME COMMAND...: sets pid once the leader is held
    rm -rf "$W/ev" "$W/$1.h5" "$W/$1.h5.jsonl"
    mkdir "$W/ev" && mkfifo "$W/ev/command.txt"
    "${@:2}" $common --out "$W/$1.h5" --force-new --evidence "$W/ev" >"$W/$1.log" 2>&1 &
    pid=$!
    said "$1" "build "
}
said() { # NAME TEXT: wait for it
    for _ in $(seq 1200); do grep -q "$2" "$W/$1.log" && return; sleep 0.05; done
    fail "$1 never says '$2'"
}
held early $MPIRUN -n 4 "$PDFLASH" run $MODEL $pd
kill -USR1 $pid
said early "SIGUSR1 received"
cat "$W/ev/command.txt" >/dev/null
wait $pid
rc=$?
rows=$(grep -c '"kind":"row"' "$W/early.h5.jsonl")
if [ $rc = 75 ] && [ "$rows" = 0 ]; then
    pass "USR1 during start-up: exit 75, no row"
else
    fail "USR1 during start-up: exit $rc, $rows rows"
fi
check "USR1 during start-up: memory of the first quarter is not measured" \
    grep -q "peak memory .* largest rank [0-3]: not measured and [1-9].* most growth: not measured" "$W/early.log"
check "USR1 during start-up: resume" $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/early.h5" --resume
check "USR1 during start-up and resume: same tokens" $X equal "$W/whole.h5" "$W/early.h5"
# nobody waits for ever for a rank that does not come through its start
held stuck $MPIRUN -n 4 "$PDFLASH" run $MODEL $pd --watchdog 2
wait $pid
rc=$?
if [ $rc = 4 ] && grep -q "start-up takes longer than 8 s" "$W/stuck.log"; then pass "a rank stuck in its start: exit 4"; else fail "a rank stuck in its start: exit $rc"; fi
held twice "$PDFLASH" run $MODEL --single
kill -INT $pid
said twice "SIGINT received"
kill -INT $pid
wait $pid
rc=$?
if [ $rc = 130 ]; then pass "a second INT ends the process"; else fail "a second INT: exit $rc"; fi

# SIGTERM to the leader among several ranks is no end of the job: it is said all the same, once
rm -f "$W/term4.h5" "$W/term4.h5.jsonl"
$MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --spec none --out "$W/term4.h5" --inject hold:1 >"$W/term4.log" 2>&1 &
mpi=$!
rows_are term4 1
kill -TERM "$(sed -n 's/^.decode.0. info: build .* pid //p' "$W/term4.log")"
wait $mpi
said_once $? "TERM to the leader of 4" SIGTERM term4

# the signal through mpirun
rm -f "$W/usr1.h5" "$W/usr1.h5.jsonl"
$MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/usr1.h5" --watchdog 60 --inject hold:3 >"$W/usr1.log" 2>&1 &
mpi=$!
rows_are usr1 3
kill -USR1 $mpi
wait $mpi
rc=$?
if [ $rc = 75 ]; then pass "USR1: exit $rc"; else fail "USR1: exit $rc"; tail -20 "$W/usr1.log"; fi
timeout 300 $MPIRUN -n 4 \
    "$PDFLASH" run $MODEL $common $pd --out "$W/usr1.h5" --resume >"$W/usr1b.log" 2>&1 || fail "resume after USR1"
check "USR1 and resume: same tokens" $X equal "$W/whole.h5" "$W/usr1.h5"
finish
