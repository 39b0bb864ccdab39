#!/bin/bash
# kill -9 of any rank at any moment, start-up included: the job ends within watchdog + 5 s with an exit code that is not 0, the
# result file opens, and it holds every row of the journal (the row being written at that moment may be in the journal only).
# KILLS=5 kills; KILLS=50 is the full show. SEED chooses ranks and moments.
. "$(dirname "$0")/lib.sh"
kills=${KILLS:-5} RANDOM=${SEED:-7} watchdog=10
$X make "$W/p.h5" train00 train01 train02 train03 train04 train05 train06 train07 train08 train09
common="--prompts $W/p.h5 --max-new 60 --concurrency 3 --slots 2 --watchdog $watchdog"
pd="--prefill pp=2,tp=1 --decode tp=2"
now() { date +%s%N; }
t=$(now)
job 4 whole $common $pd || finish
wall=$((($(now) - t) / 1000000)) # ms
done_at() { grep -o '"kind":"row","index":[0-9]*' "$1" 2>/dev/null | sed 's/.*://' | sort -n | uniq; }

# read from /proc, because a small machine has no pgrep
children_of() {
    local d
    for d in $(grep -lsx "PPid:[[:space:]]*$1" /proc/[0-9]*/status); do
        d=${d%/status}
        echo "${d#/proc/}"
    done | sort -n
}
# the ranks that an mpirun started
ranks_of() {
    local p
    for p in $(children_of "$1"); do
        [ "$(cat "/proc/$p/comm" 2>/dev/null)" = pdflash ] && echo "$p"
    done
}
# a zombie runs no more, whoever has yet to take note of it
runs() { grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }
# one NAME RANK MS: start, kill that rank after MS ms. 2: the job was over before
one() {
    local out=$W/$1.h5 mpi pids victim rc t0 waited
    rm -f "$out" "$out.jsonl"
    tools/launch $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$out" >"$W/$1.log" 2>&1 &
    local job=$!
    sleep "$(printf '%d.%03d' $(($3 / 1000)) $(($3 % 1000)))"
    for _ in $(seq 100); do
        mpi=$(children_of $job | head -1) # launch starts mpirun first
        pids=($(ranks_of "$mpi" | sort -n)) # in the order of ranks
        [ ${#pids[@]} = 4 ] && break
        kill -0 $job 2>/dev/null || break
        sleep 0.02
    done
    victim=${pids[$2]:-}
    if [ -z "$victim" ] || ! kill -9 "$victim" 2>/dev/null; then
        wait $job
        return 2
    fi
    t0=$(now)
    (sleep $((watchdog + 30)); kill -9 "$mpi" $job) 2>/dev/null &
    local guard=$!
    wait $job
    rc=$?
    waited=$((($(now) - t0) / 1000000))
    kill $guard 2>/dev/null
    wait $guard 2>/dev/null
    phase=$(grep -q ' ready:' "$W/$1.log" && echo running || echo starting)
    rows=$(done_at "$out.jsonl" | wc -l)
    what="kill rank $2 at $3 ms ($phase, $rows rows): exit $rc after $waited ms"
    [ $rc = 0 ] && grep -q '10 of 10 rows' "$W/$1.log" && return 2 # it had nothing left to do
    if [ $rc = 0 ] || [ $waited -gt $(((watchdog + 5) * 1000)) ]; then fail "$what"; else pass "$what"; fi
    for p in "${pids[@]}"; do # mpirun may leave a moment before the last of them
        while runs "$p"; do
            if [ $((($(now) - t0) / 1000000)) -gt $(((watchdog + 5) * 1000)) ]; then
                fail "$what: process $p is still there"
                break
            fi
            sleep 0.1
        done
    done
    sweep_shm "$W/p.h5"
}

# holds NAME: the file against its journal
holds() {
    local out=$W/$1.h5 have
    if [ ! -e "$out" ]; then
        if [ "$(done_at "$out.jsonl" | wc -l)" = 0 ]; then pass "$1: killed before there was a file"; else fail "$1: rows but no file"; fi
        return
    fi
    if ! $X rows "$out" >"$W/$1.rows" 2>"$W/$1.err"; then
        fail "$1: the file does not open"
        cat "$W/$1.err"
        return
    fi
    cut -d' ' -f1 "$W/$1.rows" | sort -n >"$W/$1.have"
    done_at "$out.jsonl" >"$W/$1.want"
    have=$(comm -13 <(sort "$W/$1.want") <(sort "$W/$1.have") | wc -l)
    local miss
    miss=$(comm -23 <(sort "$W/$1.want") <(sort "$W/$1.have") | wc -l)
    if [ "$have" = 0 ] && [ "$miss" -le 1 ]; then
        pass "$1: the file holds $(wc -l <"$W/$1.have") of $(wc -l <"$W/$1.want") journaled rows"
    else
        fail "$1: $have rows are not in the journal, $miss journaled rows are not in the file"
    fi
}

n=0 tries=0
while [ $n -lt "$kills" ] && [ $tries -lt $((kills * 4)) ]; do
    tries=$((tries + 1))
    one "k$n" $((RANDOM % 4)) $(((RANDOM * 32768 + RANDOM) % wall))
    [ $? = 2 ] && continue
    holds "k$n"
    if [ $((n % 5)) = 4 ] && [ -e "$W/k$n.h5" ]; then
        timeout 300 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/k$n.h5" --resume >"$W/k$n.again.log" 2>&1 ||
            fail "k$n: resume exits $?"
        check "k$n: resumed to the same tokens" $X equal "$W/whole.h5" "$W/k$n.h5"
    fi
    n=$((n + 1))
done
[ $n = "$kills" ] || fail "only $n of $kills kills hit a running job"
finish
