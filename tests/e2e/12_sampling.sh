#!/bin/bash
# Sampling through the whole program: one seed gives one answer, whatever the topology, the concurrency and the interruptions;
# drafts that are not drawn change no token; temperature 0 is greedy; a run goes on only with the draws it began with.
. "$(dirname "$0")/lib.sh"
CASES="train00 train07 test00 test05 test02 test09"
$X make "$W/p.h5" $CASES
common="--prompts $W/p.h5 --max-new 24"
spark="--model inputs/k3-nano --draft inputs/k3-nano-dspark"
flash=$MODEL
pd="--prefill pp=2,tp=1 --decode tp=2"
# on one group; split with one request at a time; both groups tensor-parallel, small chunks and pages
three() { # NAME OPTIONS... : --single is left in NAME.h5
    local name=$1
    shift
    job 1 "$name" $common --single --concurrency 8 "$@" || return
    job 4 "$name-pd" $common $pd --concurrency 1 --verify "$@" && check "$name: pp2tp1 to tp2, one at a time" $X equal "$W/$name.h5" "$W/$name-pd.h5"
    job 4 "$name-tp" $common --prefill pp=1,tp=2 --decode tp=2 --concurrency 8 --chunk 32 --page 16 --comm mpi "$@" &&
        check "$name: pp1tp2 to tp2, eight at once" $X equal "$W/$name.h5" "$W/$name-tp.h5"
}
# a rank is killed while rows are written; the rest is done in another topology
broken() { # NAME OPTIONS... : against NAME.h5
    local name=$1 done_before rc
    shift
    rm -f "$W/cut.h5" "$W/cut.h5.jsonl"
    timeout 300 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --concurrency 2 --out "$W/cut.h5" --inject kill:2@13 "$@" >"$W/cut.log" 2>&1
    rc=$?
    done_before=$(grep -c '"kind":"row"' "$W/cut.h5.jsonl")
    check "$name: interrupted with $done_before of 6 rows" [ $rc != 0 -a "$done_before" -gt 0 -a "$done_before" -lt 6 ]
    timeout 300 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common --prefill pp=1,tp=2 --decode tp=2 --out "$W/cut.h5" --resume "$@" >"$W/cut.log" 2>&1
    rc=$?
    [ $rc = 0 ] || { fail "$name: resume: exit $rc"; tail -20 "$W/cut.log"; return; }
    check "$name: resumed" $X equal "$W/$name.h5" "$W/cut.h5"
}
other() { check "$1" sh -c '! "$1" tokens "$2" "$3"' - $X "$W/$2.h5" "$W/$3.h5"; }

how="--temperature 0.8 --top-p 0.95 --seed 7"
three argmax $how
three drawn $how --draft-sampling sample
broken argmax $how
broken drawn $how --draft-sampling sample
job 1 none $common --single --spec none $how && check "argmax drafts: the tokens of none" $X tokens "$W/none.h5" "$W/argmax.h5"
job 1 short $common --single --block 5 $how && check "a block of 5: the tokens of none" $X tokens "$W/none.h5" "$W/short.h5"
MODEL=$spark
three spark --spec dspark --temperature 1 --top-k 40 --draft-temperature 1.3 --seed 7
job 1 spark-argmax $common --single --spec dspark --draft-sampling argmax $how && check "dspark, argmax drafts: the tokens of none" $X tokens "$W/none.h5" "$W/spark-argmax.h5"
check "dspark draws its drafts by itself" grep -q '"drafts","sample"' "$W/spark.h5.jsonl"
check "dflash does not" grep -q '"drafts","argmax"' "$W/argmax.h5.jsonl"
MODEL=$flash

# other draws, other answers; no draws, the greedy ones
job 1 seed8 $common --single --spec none --temperature 0.8 --top-p 0.95 --seed 8 && other "another seed: other tokens" none seed8
job 1 greedy $common --single && job 1 cold $common --single --temperature 0 --top-p 0.5 --top-k 3 --seed 9 &&
    check "temperature 0 is greedy" $X equal "$W/greedy.h5" "$W/cold.h5"
check "and the same configuration" sh -c '"$1" show --json "$2" | grep -F "\"config_hash\": \"$("$1" show --json "$3" | sed -n "s/.*\"config_hash\": \"\([0-9a-f]*\)\".*/\1/p")\""' - "$PDFLASH" "$W/greedy.h5" "$W/cold.h5"
job 1 one $common --single --temperature 5 --top-k 1 --seed 3 && check "top-k 1 is greedy at any temperature" $X equal "$W/greedy.h5" "$W/one.h5"
other "draws are not the greedy tokens" greedy none
expect 0 "show tells how tokens were drawn" "^sampling: temperature 0.8, top-k 0, top-p 0.95, seed 7; drafts: sample" "$PDFLASH" show "$W/drawn.h5"
expect 0 "and that they were not" "^sampling: none, the likeliest token is taken" "$PDFLASH" show "$W/greedy.h5"
check "top-k without a temperature: said" grep -q "top-k and --top-p mean nothing without --temperature" "$W/cold.log"
check "nothing is said where it means something, or is not given" sh -c '! grep -q "mean nothing" "$1" "$2"' - "$W/one.log" "$W/greedy.log"

# what a file was begun with it goes on with
go_on() { # TEXT OPTIONS...
    local text=$1
    shift
    expect 2 "resume refused: $text" "$text" "$PDFLASH" run $MODEL $common --single --out "$W/drawn.h5" --resume "$@"
}
go_on "seed is 7 in the file and 8 now" --temperature 0.8 --top-p 0.95 --seed 8 --draft-sampling sample
go_on "temperature is 0.8 in the file and 0.7 now" --temperature 0.7 --top-p 0.95 --seed 7 --draft-sampling sample
go_on "top-p is 0.95 in the file and 1 now" --temperature 0.8 --seed 7 --draft-sampling sample
go_on "top-k is 0 in the file and 9 now" --temperature 0.8 --top-p 0.95 --seed 7 --draft-sampling sample --top-k 9
go_on "draft-sampling is sample in the file and auto now" $how
go_on "draft-temperature is 0 in the file and 2 now" $how --draft-sampling sample --draft-temperature 2
go_on "temperature is 0.8 in the file and 0 now" --seed 7
expect 0 "greedy goes on under any seed" "complete" "$PDFLASH" run $MODEL $common --single --out "$W/greedy.h5" --resume --seed 99
expect 2 "parts of other seeds are not joined" "seed is 7" "$PDFLASH" merge --out "$W/both.h5" --force "$W/none.h5" "$W/seed8.h5"

# both groups draw: the first token here, the others there
expect 2 "handshake: another seed in one group" "seed: rank 0 (prefill stage 0 tp 0) has 5, rank 2 (decode tp 0) has 7" \
    $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd $how --out "$W/no.h5" --force-new --inject prefill.seed=5
run="$PDFLASH run $MODEL $common --single --out $W/no.h5 --force-new"
expect 1 "temperature below 0" "out of range" $run --temperature -1
expect 1 "top-p 0" "out of range" $run --temperature 1 --top-p 0
expect 1 "top-p above 1" "out of range" $run --temperature 1 --top-p 1.01
expect 1 "top-k below 0" "out of range" $run --temperature 1 --top-k -1
expect 1 "drafts of another kind" "choose one of auto,argmax,sample" $run --temperature 1 --draft-sampling greedy
expect 1 "drawn drafts without draws" "draft-sampling sample has no meaning with --temperature 0" $run --draft-sampling sample
expect 1 "drafts without drafts" "draft-sampling sample has no meaning with --spec none" $run --spec none --temperature 1 --draft-sampling sample
expect 1 "drawn drafts and widths by the clock" "would depend on the clock" $run --temperature 1 --draft-sampling sample --adaptive
expect 1 "their temperature without them" "draft-temperature 2 has no meaning with drafts that are not sampled" $run --temperature 1 --draft-temperature 2
finish
