#!/bin/bash
# Measurements run as a user would run them, small: every case delivers its bytes, and what cannot be measured is refused.
. "$(dirname "$0")/lib.sh"
small="--mib 1 --reps 2 --sizes 4,64"
bench() { # NP NAME OPTIONS...
    local np=$1 name=$2
    shift 2
    timeout 120 $MPIRUN -n "$np" "$PDFLASH" bench transfer $small "$@" >"$W/$name" 2>"$W/$name.log" || { fail "$name"; tail -5 "$W/$name.log"; }
}
# cases FILE COUNT RANKS: one line a case; figures are positive, a put is a page, rarely two in a row (or a token's head), all bytes are there
cases() {
    awk -v want="$2" -v ranks="$3" '
    function text(name) { match($0, "\"" name "\": [^,}]*"); return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4) }
    function number(name) { return text(name) + 0 }
    /"pages":/ {
        n++
        run = /token-major/ ? 256 : number("page_bytes")
        if (number("put_gbps") <= 0 || number("memcpy_gbps") <= 0 || number("unpack_gbps") <= 0 || number("ratio") <= 0) bad = bad " figures"
        if ((text("pack_gbps") == "null") != (/"in place"/ ? 1 : 0)) bad = bad " pack"
        if (number("put_bytes") < run || number("put_bytes") > 2 * run) bad = bad " put_bytes"
        if (number("bytes") < ranks * 1048576) bad = bad " bytes"
    }
    END { if (n != want || bad) { print n " cases," bad; exit 1 } }' "$1"
}
bench 3 one.json --json --decode tp=2
check "1 source, 2 destinations" cases "$W/one.json" 12 2
bench 6 two.json --json --prefill tp=2 --decode tp=4 --window create
check "2 sources, 4 destinations, created windows" cases "$W/two.json" 12 4
bench 2 pair.json --json --transport sendrecv
check "a pair has nothing to slice" cases "$W/pair.json" 4 1
bench 2 table
check "table" grep -q '^contiguous  *packed  *64' "$W/table"
expect 2 "a stage before the last sends no draft" "pp is 1" $MPIRUN -n 3 "$PDFLASH" bench transfer $small --prefill pp=2,tp=1 --decode tp=1
expect 2 "unequal work" "no multiple of" $MPIRUN -n 5 "$PDFLASH" bench transfer $small --prefill tp=2 --decode tp=3
expect 1 "wrong number of ranks" "needs 3 ranks, MPI started 2" $MPIRUN -n 2 "$PDFLASH" bench transfer $small --decode tp=2
expect 1 "sizes" "numbers of KiB" $MPIRUN -n 2 "$PDFLASH" bench transfer --sizes 4,x
expect 1 "a page larger than all" "is more than --mib 1" $MPIRUN -n 2 "$PDFLASH" bench transfer --sizes 1024 --mib 1
expect 1 "no such measurement" "'speed' is not a measurement" "$PDFLASH" bench speed
expect 0 "list" "transfer  *prefill to decode" "$PDFLASH" bench --help
expect 0 "list by -h" "transfer  *prefill to decode" "$PDFLASH" bench -h
for h in --help -h; do expect 0 "kernels $h" "--only TEXT" "$PDFLASH" bench kernels $h; done
expect 1 "kernels of no such name" "only 'nothing': .* names are copy, .*, linear, .*, draft attend (" "$PDFLASH" bench kernels --only nothing
check "nothing is measured then" sh -c "! grep -q GB/s '$W/expect.log'"
expect 1 "kernels, an unknown device" "device: 'tpu' is unknown" "$PDFLASH" bench kernels --device tpu
expect 1 "kernels, an unknown option" "did you mean --only" "$PDFLASH" bench kernels --onl x
finish
