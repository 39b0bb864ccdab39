#!/bin/bash
# Every topology, chunk size, concurrency, transport and window gives the tokens and rounds of --single.
# FULL=1: the whole table (all prompts of the first eight train and test cases); default: enough for every branch.
. "$(dirname "$0")/lib.sh"
cases="train00 train05 test00 test09"
new=40
[ "${FULL:-0}" = 1 ] && cases="train00 train01 train02 train03 test00 test01 test02 test03" && new=96
$X make "$W/p.h5" $cases
common="--prompts $W/p.h5 --max-new $new"
job 1 single --single $common || finish
same() { # NAME NP OPTIONS...
    local name=$1 np=$2
    shift 2
    job "$np" "$name" $common "$@" && check "$name" $X equal "$W/single.h5" "$W/$name.h5"
}
topo() { # NAME -> NP OPTIONS
    case $1 in
    pp1tp1_tp1) echo 2 --prefill pp=1,tp=1 --decode tp=1 ;;
    pp8tp1_tp8) echo 16 --prefill pp=8,tp=1 --decode tp=8 ;;
    pp4tp2_tp8) echo 16 --prefill pp=4,tp=2 --decode tp=8 ;;
    pp2tp4_tp4) echo 12 --prefill pp=2,tp=4 --decode tp=4 ;;
    pp2tp2ep2_tp8) echo 12 --prefill pp=2,tp=2,ep=2 --decode tp=8 ;;
    pp3tp1_tp2) echo 5 --prefill pp=3,tp=1 --decode tp=2 ;;
    pp1tp4_tp2) echo 6 --prefill pp=1,tp=4 --decode tp=2 ;;
    esac
}
topologies="pp1tp1_tp1 pp8tp1_tp8 pp4tp2_tp8 pp2tp4_tp4 pp2tp2ep2_tp8 pp3tp1_tp2"
for t in $topologies pp1tp4_tp2; do
    set -- $(topo $t)
    np=$1
    shift
    if [ "${FULL:-0}" = 1 ]; then
        for chunk in 7 64 8192; do
            for c in 1 8; do
                for tr in rma sendrecv; do
                    same "$t-chunk$chunk-c$c-$tr" $np "$@" --chunk $chunk --concurrency $c --transport $tr
                done
            done
        done
    else
        same "$t" $np "$@"
    fi
done
small="--prefill pp=3,tp=1 --decode tp=2"
same chunk7 5 $small --chunk 7 --verify
same chunk64-c1 5 $small --chunk 64 --concurrency 1 --slots 1
same sendrecv 5 $small --transport sendrecv --chunk 7
for x in single:none "chunk7:${OMPI_MCA_osc:-default}" sendrecv:none; do # what is recorded of the windows
    check "osc of ${x%:*} is ${x#*:}" grep -q "\"osc_component\",\"${x#*:}\"" "$W/${x%:*}.h5.jsonl"
done
same page16 5 $small --page 16 --chunk 32 --verify
same comm-mpi 5 $small --comm mpi
same dedupe 5 $small --dedupe --verify
same dedupe-nodes 12 --prefill pp=2,tp=4 --decode tp=4 --dedupe --node-size 2 --verify
same dedupe-sendrecv 12 --prefill pp=1,tp=4 --decode tp=8 --dedupe --node-size 4 --transport sendrecv --slots 1
for w in allocate/sm allocate/rdma allocate/ucx create/rdma create/ucx; do
    window=${w%/*} osc=${w#*/}
    # UCX needs no network here; without a usable component Open MPI refuses and the case is reported, not hidden
    OMPI_MCA_osc=$osc UCX_TLS=self,sm,posix same "window-$window-$osc" 5 $small --window $window
done
OMPI_MCA_osc=sm expect 2 "window create with osc sm is refused" "allocate" \
    $MPIRUN -n 5 "$PDFLASH" run $MODEL $common --out "$W/no.h5" --force-new $small --window create
for osc in sm,rdma sm,ucx; do
    OMPI_MCA_osc=$osc UCX_TLS=self,sm,posix same "dedupe-$osc" 5 $small --dedupe
done
OMPI_MCA_osc=rdma expect 2 "dedupe without osc sm is refused" "sm beside" \
    $MPIRUN -n 5 "$PDFLASH" run $MODEL $common --out "$W/no.h5" --force-new $small --dedupe
OMPI_MCA_osc=sm expect 2 "dedupe with osc sm is refused" "dedupe" \
    $MPIRUN -n 5 "$PDFLASH" run $MODEL $common --out "$W/no.h5" --force-new $small --dedupe
# decoding is greedy, so speculation must not change a token
job 1 single-none --single $common --spec none &&
    check "dflash and none give the same tokens" $X tokens "$W/single.h5" "$W/single-none.h5"
job 1 single-b8 --single $common --block 8 &&
    check "block 8 gives the same tokens" $X tokens "$W/single.h5" "$W/single-b8.h5"
finish
