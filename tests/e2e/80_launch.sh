#!/bin/bash
# tools/launch: the exit code and signals are mpirun's; an mpirun that has no living process left does not hold the allocation.
# One INT, TERM or HUP reaches mpirun, however it comes; nothing stays behind, and where the rows are is said.
. "$(dirname "$0")/lib.sh"
expect 0 "the exit code 0 is passed on" "4 ranks" tools/launch $MPIRUN -n 4 sh -c '[ "$OMPI_COMM_WORLD_RANK" = 0 ] && echo "$OMPI_COMM_WORLD_SIZE ranks"; exit 0'
expect 75 "any other exit code is passed on" "" tools/launch $MPIRUN -n 2 sh -c 'exit 75'
expect 1 "no command" "usage: tools/launch" tools/launch
# what a blocked mpirun looks like: a child that nobody waits for, then none
expect 4 "blocked with a zombie" "does not end: ended by force" tools/launch bash -c 'sleep 0.1 & exec sleep 60'
expect 4 "blocked without any child" "does not end: ended by force" tools/launch bash -c 'sleep 2; exec sleep 60'
expect 0 "slow but alive" "at the end" tools/launch bash -c 'sleep 12; echo at the end'
# one signal for mpirun whoever sends it how often: this stand-in takes note
cat >"$W/notes" <<'S'
#!/bin/bash
for s in USR1 INT TERM; do trap "echo $s >>'$1'" "$s"; done
echo ready >"$1"
for _ in $(seq 20); do sleep 0.1; done
exit 1
S
chmod +x "$W/notes"
ready() { # FILE
    for _ in $(seq 100); do grep -qs ready "$1" && return; sleep 0.05; done
    fail "$1 was never ready"
}
set -m # commands in the background that do not ignore INT, in groups of their own
for to in launch group; do
    rm -f "$W/got"
    tools/launch "$W/notes" "$W/got" --out "$W/none.h5" >"$W/got.log" 2>&1 &
    job=$!
    ready "$W/got"
    target=$job
    [ $to = launch ] || target=-$job
    kill -USR1 -- $target
    sleep 0.3
    for s in INT TERM INT; do kill -$s -- $target; sleep 0.1; done
    wait $job
    rc=$?
    if [ $rc = 1 ] && [ "$(xargs <"$W/got")" = "ready USR1 INT" ]; then
        pass "USR1, INT, TERM, INT to the $to: mpirun gets USR1 and one INT"
    else
        fail "USR1, INT, TERM, INT to the $to: exit $rc, mpirun got: $(xargs <"$W/got")"
    fi
done
# Ctrl-Z and fg: mpirun stops and goes on
state() { sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null; }
stands() { # STATE PID...: wait for it
    local pid want=$1 n=0
    shift
    for pid in "$@"; do
        until [[ $(state "$pid") = $want ]] || [ $((n += 1)) -gt 100 ]; do sleep 0.05; done
    done
    [ $n -le 100 ]
}
tools/launch bash -c 'echo $$ >"$1"; sleep 2; echo at the end' - "$W/pid" >"$W/stop.log" 2>&1 &
job=$!
for _ in $(seq 100); do [ -s "$W/pid" ] && break; sleep 0.05; done
kill -TSTP -- -$job
check "TSTP stops launch and mpirun" stands T $job "$(cat "$W/pid")"
kill -CONT -- -$job
check "CONT lets both go on" stands '[SR]' $job "$(cat "$W/pid")"
wait $job
check "and they come to their end" grep -q "at the end" "$W/stop.log"
# killed by force: mpirun is told to end
rm -f "$W/got"
tools/launch "$W/notes" "$W/got" >/dev/null 2>&1 &
job=$!
ready "$W/got"
kill -9 -- -$job
wait $job 2>/dev/null
for _ in $(seq 60); do grep -q TERM "$W/got" && break; sleep 0.05; done
check "without launch mpirun gets TERM" grep -q TERM "$W/got"
set +m

# a real job: by USR1 the run ends as the program says; INT and TERM are mpirun's, which ends the ranks in order
$X make "$W/p.h5" train00 train01 train02 train03
run="tools/launch $MPIRUN -n 4 $PDFLASH run $MODEL --prompts $W/p.h5 --max-new 40 --prefill pp=2,tp=1 --decode tp=2 --inject hold:2"
rows() { # NAME N: wait until so many are committed
    for _ in $(seq 600); do [ "$(grep -c '"kind":"row"' "$W/$1.h5.jsonl" 2>/dev/null)" = "$2" ] && return; sleep 0.1; done
    fail "$1 never has $2 rows"
}
fresh() { # NAME
    rm -f "$W/$1.h5" "$W/$1.h5.jsonl"
    touch "$W/mark"
}
# clean NAME CODE: the job ended with that code, nothing of it is left, and its rows are
clean() {
    local left segments f
    left=$(grep -lsa "$W/$1[.]h5" /proc/[0-9]*/cmdline | xargs)
    segments=$(find /dev/shm -maxdepth 2 -newer "$W/mark" -type f -user "$(id -u)" 2>/dev/null | while read -r f; do
        cat /proc/[0-9]*/maps 2>/dev/null | grep -qF "$f" || echo "$f"
    done | xargs)
    if [ "$rc" = "$2" ] && [ -z "$left$segments" ]; then
        pass "$1: exit $rc, nothing left"
    else
        fail "$1: exit $rc, expected $2; processes left: $left; segments: $segments"
        tail -5 "$W/$1.log"
    fi
    check "$1: 2 rows can be read" test "$($X rows "$W/$1.h5" | wc -l)" = 2
    sweep_shm "$W/mark"
}
says_once() { # NAME SIGNAL
    local n
    n=$(grep -c "\[launch\] ended by SIG$2: rows so far are in $W/$1.h5 (2 finished); .--resume." "$W/$1.log")
    if [ "$n" = 1 ]; then pass "$1: said where the rows are"; else fail "$1: said $n times"; tail -5 "$W/$1.log"; fi
}
fresh usr1
$run --out "$W/usr1.h5" >"$W/usr1.log" 2>&1 &
job=$!
rows usr1 2
kill -USR1 $job
wait $job
rc=$?
clean usr1 75
set -m
for case in "int INT" "term TERM" "group-int INT"; do
    read -r name s <<<"$case"
    fresh $name
    $run --out "$W/$name.h5" >"$W/$name.log" 2>&1 &
    job=$!
    rows $name 2
    target=$job
    [[ $name != group* ]] || target=-$job
    kill -$s -- $target
    wait $job
    rc=$?
    clean $name 1
    says_once $name $s
done
set +m
# Ctrl-C at a terminal, twice in a row
if command -v script >/dev/null; then
    fresh typed
    # script ends when its input does; without exec a $SHELL of dash stays between the two and ends by the INT itself, with 130
    { rows typed 2; printf '\003'; sleep 0.5; printf '\003'; sleep 15; } | {
        script -qec "exec $run --out $W/typed.h5" /dev/null >"$W/typed.log" 2>&1
        echo $? >"$W/typed.rc"
    }
    rc=$(cat "$W/typed.rc")
    clean typed 1
    says_once typed INT
else
    echo "skip Ctrl-C at a terminal: no script (package bsdutils)"
fi
finish
