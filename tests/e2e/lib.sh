# lib.sh - sourced by the end-to-end scripts. Each script runs the program as a user would and counts what failed.
set -u
: "${PDFLASH:=$PWD/build/release/pdflash}" "${TEST_TMP:=$PWD/build/tmp}" "${B:=build/release}"
. tools/mpi-env
X=$B/tests/x_traces
MODEL="--model inputs/k3-nano --draft inputs/k3-nano-dflash"
W=$TEST_TMP/$(basename "$0" .sh)
mkdir -p "$W"
ok=0 bad=0

pass() { ok=$((ok + 1)); echo "ok   $*"; }
fail() { bad=$((bad + 1)); echo "FAIL $*"; }
# check NAME COMMAND... : the command must succeed
check() {
    local name=$1
    shift
    if "$@" >"$W/check.log" 2>&1; then pass "$name"; else fail "$name"; tail -20 "$W/check.log"; fi
}
# job NP NAME OPTIONS... : a run that must end with exit code 0
job() {
    local np=$1 name=$2
    shift 2
    timeout 600 $MPIRUN -n "$np" "$PDFLASH" run $MODEL --out "$W/$name.h5" --force-new "$@" >"$W/$name.log" 2>&1
    local rc=$?
    [ $rc = 0 ] && return 0
    fail "$name: exit $rc"
    tail -20 "$W/$name.log"
    return 1
}
# expect CODE NAME TEXT COMMAND... : exit code and a piece of the message
expect() {
    local code=$1 name=$2 text=$3
    shift 3
    timeout $((240 * (1 + 3 * ${SANITIZE:-0}))) "$@" >"$W/expect.log" 2>&1
    local rc=$?
    if [ $rc != "$code" ]; then
        fail "$name: exit $rc, expected $code"
        tail -12 "$W/expect.log"
    elif ! grep -qe "$text" "$W/expect.log"; then
        fail "$name: message does not say '$text'"
        tail -12 "$W/expect.log"
    else
        pass "$name"
    fi
}
# sweep_shm MARK : remove segments of dead jobs that are newer than the file MARK and that no process maps any more
sweep_shm() {
    find /dev/shm -maxdepth 2 -newer "$1" -type f -user "$(id -u)" 2>/dev/null | while read -r f; do
        cat /proc/[0-9]*/maps 2>/dev/null | grep -qF "$f" || rm -f "$f"
    done
}
finish() {
    echo "$ok passed, $bad failed"
    [ "$bad" = 0 ]
    exit
}
