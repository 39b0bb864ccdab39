#!/bin/bash
# Cases of the bug log that have no home elsewhere (docs/L-TABLE.md): one kind of report each, in small.
. "$(dirname "$0")/lib.sh"
pd="--prefill pp=2,tp=1 --decode tp=2"

# L1: every draft kind, split and single; an unknown kind is refused before anything moves
$X make "$W/p.h5" train00 train01 train02
common="--prompts $W/p.h5 --max-new 24"
for spec in dflash none; do
    job 4 "l1-$spec-pd" $common $pd --spec $spec && job 1 "l1-$spec-single" $common --single --spec $spec &&
        check "L1 $spec split equals single" $X equal "$W/l1-$spec-single.h5" "$W/l1-$spec-pd.h5"
done
expect 1 "L1 unknown draft kind" "medusa" $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --spec medusa --out "$W/x.h5" --force-new

# L17: prompts of one and two tokens through deep pipelines (no next token on earlier stages)
$X make "$W/one.h5" train00:1 train01:2 train02:1
job 1 l17-single --prompts "$W/one.h5" --max-new 8 --single
for pp in 2 3 8; do
    job $((pp + 1)) "l17-pp$pp" --prompts "$W/one.h5" --max-new 8 --prefill pp=$pp,tp=1 --decode tp=1 &&
        check "L17 one-token prompt, pp=$pp" $X equal "$W/l17-single.h5" "$W/l17-pp$pp.h5"
done

# L18, L35: idle ticks between requests, one after the other through the same slots
job 4 l18 $common $pd --concurrency 1 --slots 1 && check "L18 one at a time" $X equal "$W/l1-dflash-single.h5" "$W/l18.h5"

# L20: a transfer slower than the watchdog's time is no hang as long as pieces arrive
job 4 l20 $common $pd --page 16 --chunk 16 --watchdog 2 --slots 1 --limit 1 --inject delay:1@50 &&
    check "L20 slow but moving" $X within "$W/l1-dflash-single.h5" "$W/l20.h5"

# L22: eight at once through two slots queue; L26c: their tokens are those of one at a time
$X make "$W/many.h5" train
job 1 l22-single --prompts "$W/many.h5" --max-new 24 --single
job 4 l22 --prompts "$W/many.h5" --max-new 24 $pd --concurrency 8 --slots 2 &&
    check "L22 C8 through 2 slots" $X equal "$W/l22-single.h5" "$W/l22.h5"

# L25: one failed request, then the same sources and destinations serve the next ones
timeout 100 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/l25.h5" --force-new --slots 1 --inject fail:0@0 >"$W/l25.log" 2>&1
[ "$($X rows "$W/l25.h5" | grep -cE ' (eos|length) ')" = 2 ] && pass "L25 the next requests pass" || fail "L25 the next requests pass"

# L30, L43: more prefill than decode ranks, eight sources into one destination, sums checked
job 6 l30 $common --prefill pp=1,tp=4 --decode tp=2 --verify && check "L30 P4 to D2" $X equal "$W/l1-dflash-single.h5" "$W/l30.h5"
job 9 l43 $common --prefill pp=2,tp=4 --decode tp=1 --verify && check "L43 eight sources to one" $X equal "$W/l1-dflash-single.h5" "$W/l43.h5"

# L41: one rank makes no window, whatever the one-sided component
OMPI_MCA_osc=ucx UCX_TLS=self,sm,posix job 1 l41 $common --single && pass "L41 single under osc ucx"

# L42, L48: the protocol over TCP with locks through osc rdma, and over osc ucx
OMPI_MCA_osc=rdma OMPI_MCA_btl=tcp,self job 4 l42 $common $pd --verify && check "L42 osc rdma over tcp" $X equal "$W/l1-dflash-single.h5" "$W/l42.h5"
if [ -x "$B/tests/mpi_transfer_abort" ] && [ -x "$B/tests/mpi_transfer_order" ]; then
    for osc in ucx rdma sm; do
        check "L54 words behind their data under osc $osc" env OMPI_MCA_osc=$osc UCX_TLS=self,sm,posix timeout 100 $MPIRUN -n 3 "$B/tests/mpi_transfer_order"
        check "L48 aborts and old words under osc $osc" env OMPI_MCA_osc=$osc UCX_TLS=self,sm,posix timeout 100 $MPIRUN -n 3 "$B/tests/mpi_transfer_abort"
    done
else
    fail "L48, L54: $B/tests/mpi_transfer_abort or mpi_transfer_order is not built"
fi

# L50: NCCL needs a device a rank
expect 2 "L50 --comm nccl without a device a rank" "nccl" $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --comm nccl --out "$W/x.h5" --force-new
finish
