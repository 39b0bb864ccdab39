#!/bin/bash
# What must be refused, with exit code and message: command line, files, launch, layouts that do not match.
. "$(dirname "$0")/lib.sh"
rm -f "$W"/alone.h5* "$W"/ev.h5* # of an earlier run, which leaves them cut short or whole
$X make "$W/p.h5" train00
bare="run --model inputs/k3-nano --prompts $W/p.h5 --out $W/out.h5 --force-new"
base="$bare --draft inputs/k3-nano-dflash"
pd="--prefill pp=2,tp=1 --decode tp=2"

expect 1 "no command" "usage" "$PDFLASH"
expect 1 "unknown command" "not a command" "$PDFLASH" rum
expect 0 "help" "--concurrency" "$PDFLASH" run --help
expect 0 "help by -h" "--concurrency" "$PDFLASH" run -h
expect 0 "-h" "usage: pdflash COMMAND" "$PDFLASH" -h
expect 0 "help of a command" "--concurrency" "$PDFLASH" help run
expect 0 "help of a measurement" "--only TEXT" "$PDFLASH" help bench kernels
expect 0 "help of all measurements" "transfer  *prefill" "$PDFLASH" help bench
expect 1 "help of no command" "help: 'rum': name a command" "$PDFLASH" help rum
expect 1 "help of two words" "help: 'now': name a command" "$PDFLASH" help run --help now
expect 1 "unknown option" "did you mean --concurrency" "$PDFLASH" $base --concurency 3
expect 1 "number out of range" "out of range" "$PDFLASH" $base --concurrency 0
expect 1 "an option given twice" "concurrency is given twice, as '3' and as '4'" "$PDFLASH" $base --concurrency 3 --concurrency=4
expect 1 "an option given twice with one value" "out is given twice" "$PDFLASH" $base --out "$W/out.h5"
expect 1 "a flag given twice" "force-new is given twice" "$PDFLASH" $base --force-new
expect 1 "a prefill group in one group" "prefill has no meaning with --single" "$PDFLASH" $base --single --prefill pp=2
expect 1 "a prefill group in one group: plan" "prefill has no meaning with --single" "$PDFLASH" plan $MODEL --single --prefill pp=1,tp=1
expect 1 "missing option" "--prompts FILE is required" "$PDFLASH" run $MODEL --out x
expect 1 "bad prefill text" " --prefill pp=x: 'x' is not a number" "$PDFLASH" $base --prefill pp=x
expect 1 "bad decode text" " --decode up=2: 'up=2' is not" "$PDFLASH" $base --decode up=2
expect 1 "unknown speculation" "'medusa' is unknown" "$PDFLASH" $base --single --spec medusa
expect 1 "unknown kv type" "'fp8' is unknown" "$PDFLASH" $base --single --kv-dtype fp8
expect 1 "block without speculation" "block 4" "$PDFLASH" $base --single --spec none --block 4
expect 2 "eagle3" "paused" "$PDFLASH" $base --single --spec eagle3
spark="--draft inputs/k3-nano-dspark --spec dspark"
expect 2 "dspark with a dflash draft" "k3-nano-dflash/config.json: architectures: this is a dflash draft and --spec says dspark" \
    "$PDFLASH" $base --single --spec dspark
expect 2 "dflash with a dspark draft" "k3-nano-dspark/config.json: architectures: this is a dspark draft and --spec says dflash" \
    "$PDFLASH" $bare --single --draft inputs/k3-nano-dspark
expect 1 "confidence without dspark" "confidence 0.5 has no meaning with --spec dflash" "$PDFLASH" $base --single --confidence 0.5
expect 1 "confidence above 1" "out of range" "$PDFLASH" $bare $spark --single --confidence 1.5
expect 2 "block larger than gamma + 1" "block_size 7; choose 2 to 8" "$PDFLASH" $bare $spark --single --block 9
# edited NAME FROM TO : a copy of the DSpark draft with one line of its config changed
edited() {
    mkdir -p "$W/$1"
    cp inputs/k3-nano-dspark/model.safetensors "$W/$1"
    sed "s/$2/$3/" inputs/k3-nano-dspark/config.json >"$W/$1/config.json"
}
edited gated '"markov_head_type": "vanilla"' '"markov_head_type": "gated"'
edited rnn '"markov_head_type": "vanilla"' '"markov_head_type": "rnn"'
edited slots '"sample_from_anchor": true' '"sample_from_anchor": false'
edited eagle 'DSparkDraftModel' 'Eagle3DraftModel'
edited bald '"enable_confidence_head": true' '"enable_confidence_head": false'
for f in "gated markov_head_type: found \"gated\", but only \"vanilla\"" "rnn markov_head_type: found \"rnn\", but only \"vanilla\"" \
    "slots sample_from_anchor: found false, but only true" "eagle \"Eagle3DraftModel\" is not implemented as a draft"; do
    expect 2 "dspark config: ${f%% *}" "${f%% *}/config.json: .*${f#* }" "$PDFLASH" $bare --single --draft "$W/${f%% *}" --spec dspark
    expect 2 "dspark config, plan: ${f%% *}" "${f#* }" "$PDFLASH" plan --model inputs/k3-nano --draft "$W/${f%% *}" --spec dspark
done
expect 2 "confidence without the head" "bald/config.json: enable_confidence_head: found false" \
    "$PDFLASH" $bare --single --draft "$W/bald" --spec dspark --confidence 0.5
expect 1 "dflash without a draft" "--draft" \
    "$PDFLASH" run --model inputs/k3-nano --prompts "$W/p.h5" --out "$W/o.h5" --single
expect 2 "block larger than trained" "block_size 16" "$PDFLASH" $base --single --block 32
expect 2 "tp does not divide" "tp" "$PDFLASH" $base --single --decode tp=3
expect 2 "illegal ep" "ep" $MPIRUN -n 9 "$PDFLASH" $base --prefill pp=1 --decode tp=8,ep=2
expect 2 "decode pp > 1" "pp" $MPIRUN -n 4 "$PDFLASH" $base --prefill pp=2 --decode pp=2,tp=1
expect 2 "more stages than layers" "18" $MPIRUN -n 19 "$PDFLASH" $base --prefill pp=18 --decode tp=1
expect 1 "wrong number of ranks" "mpirun -n 4" $MPIRUN -n 3 "$PDFLASH" $base $pd
expect 1 "too many ranks" "mpirun -n 4 .*pdflash run .*--prefill pp=2,tp=1" $MPIRUN -n 5 "$PDFLASH" $base $pd
expect 1 "PD on one rank" "mpirun -n 4" "$PDFLASH" $base $pd
for v in SLURM_NTASKS SLURM_STEP_NUM_TASKS PMI_SIZE OMPI_COMM_WORLD_SIZE; do
    expect 1 "started alone with $v=4" "mpirun -n 4 .*pdflash run .*--prefill pp=2,tp=1" env $v=4 "$PDFLASH" $base $pd
done
# the script of an allocation knows its tasks; one rank beside mpirun is what --single asks for there, but not within a step
expect 0 "--single in an allocation of 4 tasks" "complete" env SLURM_NTASKS=4 "$PDFLASH" ${base/out.h5/alone.h5} --single --max-new 2 --limit 1
expect 1 "--single in a step of 4 tasks" "SLURM_STEP_NUM_TASKS is 4" env SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 "$PDFLASH" $base --single
expect 2 "no model" "config.json" "$PDFLASH" run --model "$W" --single --spec none --prompts "$W/p.h5" --out "$W/o.h5"
expect 2 "no prompts" "nothere" "$PDFLASH" run $MODEL --single --prompts nothere.h5 --out "$W/o.h5"
expect 2 "prompts that are no HDF5" "README" "$PDFLASH" run $MODEL --single --prompts README.md --out "$W/o.h5"
expect 2 "prompt longer than the positions" "row 0" "$PDFLASH" $base --single --max-new 1048550
for new in 1048560 99999999 2147483647; do # more than there are positions, also where sums leave 32 bits
    expect 2 "no room for a prompt: run --max-new $new" "max-new $new: .* 1048576 positions" \
        "$PDFLASH" $base --single --max-new $new
    expect 2 "no room for a prompt: plan --max-new $new" "max-new $new: .* 1048576 positions" \
        "$PDFLASH" plan $MODEL --max-new $new
done
expect 2 "prompt longer than the positions: plan" "at most 1048048 fit" "$PDFLASH" plan $MODEL --max-prompt 2147483647
expect 1 "dedupe in one group" "nothing moves" "$PDFLASH" $base --single --dedupe
expect 1 "node size alone" "without --dedupe" $MPIRUN -n 4 "$PDFLASH" $base $pd --node-size 2
K3="--model tests/data/k3-config --draft tests/data/k3-dflash-config --prefill pp=8,tp=4,ep=4 --decode tp=32,ep=4"
expect 0 "plan: K3 on devices of 80 GiB" "every rank fits: 85899345920 bytes a device; .* leaves [0-9]* ([0-9.]* GiB)" "$PDFLASH" plan $K3 --gpu-memory 80
expect 2 "plan: K3 on devices of 48 GiB" "weights 52424110336 + state .* --gpu-memory gives 51539607552; 64 of 64 ranks do not fit; the weights alone" \
    "$PDFLASH" plan $K3 --gpu-memory 48
expect 2 "plan: K3, too long a prompt" "rank 32 (decode, .* take a shorter --max-prompt, less --concurrency or --slots" \
    "$PDFLASH" plan $K3 --gpu-memory 80 --max-prompt 262144
expect 2 "plan: more stages than layers" "pp 94 is more than num_hidden_layers 93" "$PDFLASH" plan ${K3/pp=8/pp=94}
expect 0 "plan: a stage a layer" "stage 92: layers 92-92 (1), 1 mla, 0 kda" "$PDFLASH" plan ${K3/pp=8/pp=93}
expect 1 "plan: memory of no device" "out of range" "$PDFLASH" plan $K3 --gpu-memory -1
expect 1 "plan cannot know the hosts" "node-size" "$PDFLASH" plan $MODEL $pd --dedupe
expect 2 "nccl on the CPU" "nccl" "$PDFLASH" $base --single --comm nccl
expect 2 "cuda in a CPU build" "built without CUDA; leave --device out to run on the CPU" \
    "$PDFLASH" $base --single --device cuda
expect 1 "unknown isa" "sse9" "$PDFLASH" $base --single --isa sse9
echo "not a result" >"$W/exists.h5"
expect 2 "output exists" "exists" "$PDFLASH" run $MODEL --prompts "$W/p.h5" --out "$W/exists.h5" --single
echo '{"question": "a\u0000b", "answer": "#### 1"}' >"$W/zero.jsonl"
expect 2 "prompts exist" "exists; replace it with --force" \
    "$PDFLASH" prompts --model inputs/k3-nano --jsonl inputs/gsm8k-test64.jsonl --out "$W/p.h5"
for f in README.md "$W/exists.h5" inputs/gsm8k-test64.jsonl tools; do # --force takes prompts only
    rm -rf "$W/foreign" && cp -r "$f" "$W/foreign"
    expect 2 "prompts --force over ${f##*/}" "foreign: exists and holds no prompts; .* name another file" \
        "$PDFLASH" prompts --model inputs/k3-nano --jsonl inputs/gsm8k-test64.jsonl --out "$W/foreign" --force
    check "prompts --force over ${f##*/}: it is as it was" diff -r "$f" "$W/foreign"
done
head -2 inputs/gsm8k-test64.jsonl >"$W/q.jsonl" && ln -f "$W/q.jsonl" "$W/link.jsonl"
force="$PDFLASH prompts --model inputs/k3-nano --force --shots 1"
expect 2 "prompts over their questions" "is the file of --jsonl; name another" \
    $force --jsonl "$W/q.jsonl" --shots-from inputs/gsm8k-test64.jsonl --out "$W/link.jsonl"
expect 2 "prompts over their examples" "is the file of --shots-from; name another" \
    $force --shots-from "$W/q.jsonl" --jsonl inputs/gsm8k-test64.jsonl --out "$W/link.jsonl"
check "the questions are as they were" sh -c "head -2 inputs/gsm8k-test64.jsonl | cmp - '$W/q.jsonl'"
cp "$W/p.h5" "$W/p2.h5"
expect 0 "prompts --force over prompts" "p2.h5: 2 prompts" \
    $force --shots-from "$W/q.jsonl" --jsonl "$W/q.jsonl" --out "$W/p2.h5"
for out in "$W/absent/p.h5" README.md/p.h5 /proc/p.h5; do
    expect 2 "prompts into ${out%/*}" "its directory ${out%/*} cannot be written: .*--out" \
        "$PDFLASH" prompts --model inputs/k3-nano --jsonl "$W/q.jsonl" --out "$out"
    expect 2 "run into ${out%/*}" "its directory ${out%/*} cannot be written: .*--out" \
        "$PDFLASH" run $MODEL --prompts "$W/p.h5" --single --out "$out"
done
expect 2 "a zero character in a row" "zero.jsonl:1: .*remove it" \
    "$PDFLASH" prompts --model inputs/k3-nano --jsonl "$W/zero.jsonl" --out "$W/z.h5"
expect 2 "show of something else" "exists.h5" "$PDFLASH" show "$W/exists.h5"

# no mode of a run replaces what is no result, the file or the journal's name beside it; nor does it say that it would
kept() { # NAME TEXT FILE OUT: FILE is as it was after a refusal of OUT in either mode
    rm -rf "$W/before"
    cp -r "$3" "$W/before"
    for mode in "" --force-new; do
        expect 2 "run $mode over $1" "$2" "$PDFLASH" run $MODEL --prompts "$W/p.h5" --single --max-new 4 --out "$4" $mode
        check "run $mode over $1: no advice to replace it" sh -c "! grep -qe --resume -e --force-new '$W/expect.log'"
        check "run $mode over $1: it is as it was" diff -r "$W/before" "$3"
    done
}
for f in README.md tools "$W/p.h5"; do
    rm -rf "$W/foreign" "$W/foreign.jsonl" && cp -r "$f" "$W/foreign"
    kept "${f##*/}" "foreign: exists and holds no results; name another file" "$W/foreign" "$W/foreign"
done
rm -f "$W/words.h5" && cp inputs/gsm8k-test64.jsonl "$W/words.h5.jsonl"
kept "questions that have the journal's name" "words.h5.jsonl: .* holds no results; name" "$W/words.h5.jsonl" "$W/words.h5"
printf 'no line end' >>"$W/words.h5.jsonl" && cp "$W/words.h5.jsonl" "$W/before"
expect 2 "resume beside questions that have the journal's name" "words.h5.jsonl: .* none of results; name another" \
    "$PDFLASH" run $MODEL --prompts "$W/p.h5" --single --max-new 4 --out "$W/words.h5" --resume
check "resume beside questions: they are as they were" cmp "$W/before" "$W/words.h5.jsonl"

# a whole file beside something that has its journal's name: moving that away is enough
job 1 kept --single --prompts "$W/p.h5" --max-new 4
again="$PDFLASH run $MODEL --prompts $W/p.h5 --single --max-new 4 --out $W/kept.h5 --resume"
cp README.md "$W/kept.h5.jsonl"
expect 2 "resume beside a foreign journal" "kept.h5.jsonl: .*kept.h5 is whole: move .* away, and --resume" $again
mv "$W/kept.h5.jsonl" "$W/kept.away"
expect 0 "resume once it is moved away" "1 of 1 rows are done: nothing is left to do" $again
rm "$W/kept.h5"
expect 0 "resume without the file" "kept.h5: missing; rebuilt from" $again
check "resume without the file: no error" sh -c "! grep -q 'error:' '$W/expect.log'"
truncate -s -1000 "$W/kept.h5" && printf '{"kind":"row' >>"$W/kept.h5.jsonl"
expect 0 "resume of a damaged file" "kept.h5: not a whole HDF5 file.*; rebuilt from" $again
check "resume of a damaged file: no error" sh -c "! grep -q 'error:' '$W/expect.log'"
check "resume of a damaged file: each warning once" sh -c "grep -c warning: '$W/expect.log' | grep -qx 2"

# one file named for another: the right one is said
expect 2 "questions as --prompts" "gsm8k-test64.jsonl: JSON lines, .*pdflash prompts --jsonl inputs/gsm8k-test64.jsonl" \
    "$PDFLASH" run $MODEL --single --out "$W/no.h5" --prompts inputs/gsm8k-test64.jsonl
expect 2 "results as --journal" "kept.h5: an HDF5 file; .*kept.h5.jsonl" "$PDFLASH" rebuild --journal "$W/kept.h5" --out "$W/no.h5"
for c in "merge --out $W/no.h5" show grade; do
    expect 2 "a journal: ${c%% *}" "kept.h5.jsonl: the journal of results, .*take the .h5 file" "$PDFLASH" $c "$W/kept.h5.jsonl"
done

# a directory for evidence: its parents are made, what it holds is not mixed with another run's
rm -rf "$W/ev" && mkdir -p "$W/ev/used" && echo keep >"$W/ev/used/notes.txt" && echo keep >"$W/ev/file"
one="$PDFLASH run $MODEL --prompts $W/p.h5 --out $W/ev.h5 --single --max-new 4"
expect 2 "evidence into a used directory" "holds notes.txt already.*--force-new" $one --evidence "$W/ev/used"
expect 2 "evidence into a file" "ev/file: cannot" $one --evidence "$W/ev/file"
expect 1 "evidence in the place of the results" "evidence .*ev.h5: the name of --out; name a directory of its own" \
    $one --evidence "$W/./ev.h5"
check "nothing is made there" sh -c "! test -e '$W/ev.h5'"
expect 2 "evidence below a file" "ev/file.*: cannot create" $one --evidence "$W/ev/file/below"
for o in model draft prompts out evidence dump-logits tag; do
    expect 1 "empty: run --$o" "\-\-$o is empty; .*unset shell variable" $one "--$o" ""
    expect 1 "empty: run --$o=" "\-\-$o is empty; .*unset shell variable" $one "--$o="
done
for o in model jsonl out shots-from; do
    expect 1 "empty: prompts --$o" "\-\-$o is empty; name a" "$PDFLASH" prompts "--$o" ""
done
export PDFLASH_TEST_API_TOKEN=hunter2
expect 0 "evidence with new parents" "complete" $one --evidence "$W/ev/a/b/c/"
expect 2 "evidence of another run is kept" "already" ${one/ev.h5/ev2.h5} --evidence "$W/ev/a/b/c"
expect 0 "evidence of a resumed run is added" "complete" $one --resume --evidence "$W/ev/a/b/c"
check "evidence names a secret of the environment" grep -qx "PDFLASH_TEST_API_TOKEN=(withheld)" "$W/ev/a/b/c/environment.txt"
check "evidence withholds it" sh -c "! grep -rq hunter2 '$W/ev/a/b/c'"
check "evidence has both command lines" sh -c "grep -c 'pdflash run' '$W/ev/a/b/c/command.txt' | grep -qx 2"
check "evidence has both logs" sh -c "grep -c ' pid ' '$W/ev/a/b/c/log.0.txt' | grep -qx 2"
expect 0 "evidence over a used directory with --force-new" "complete" $one --force-new --evidence "$W/ev/a/b/c"
check "evidence has one command line" sh -c "grep -c 'pdflash run' '$W/ev/a/b/c/command.txt' | grep -qx 1"

# logits take no file's place: neither those of the run itself, under any name, nor another one without --force-new
rm -rf "$W/d" && mkdir -p "$W/d/model" && cp "$W/p.h5" "$W/d" && cp inputs/k3-nano/* "$W/d/model"
ln -s p.h5 "$W/d/p.link" && ln "$W/d/p.h5" "$W/d/p.hard" && ln -s p.h5 "$W/d/side.prefill" && ln -s "$W/d" "$W/d/again"
ln -s new.h5 "$W/d/new.link" && echo keep >"$W/d/notes" && echo keep >"$W/d/half.prefill" && ln -s notes "$W/d/notes.link"
find "$W/d" -type f ! -name model.safetensors -exec sha256sum {} + | sort >"$W/d.before"
dumps() { # NAME TEXT FILE [OPTIONS] : refused before anything is made
    local name=$1 text=$2 file=$3
    shift 3
    expect 2 "logits over $name" "--dump-logits: .*$text" "$PDFLASH" run --model "$W/d/model" --draft inputs/k3-nano-dflash \
        --prompts "$W/d/p.h5" --single --max-new 4 --out "${result:-$W/d/new.h5}" --dump-logits "$file" "$@"
}
for mode in "" --force-new; do
    dumps "--out $mode" "new.h5 (--out); name another" "$W/d/again/new.h5" $mode
    dumps "--out by a link $mode" "new.h5 (--out); name another" "$W/d/new.link" $mode
    dumps "the journal $mode" "journal of --out); name another" "$W/d/new.h5.jsonl" $mode
    dumps "--prompts $mode" "(--prompts); name another" "$W/d/p.h5" $mode
    dumps "--prompts by a link $mode" "(--prompts); name another" "$W/d/p.link" $mode
    dumps "--prompts by a hard link $mode" "(--prompts); name another" "$W/d/p.hard" $mode
    dumps "--prompts by the second file $mode" "side.prefill would .*(--prompts); name another" "$W/d/side" $mode
    dumps "a model file $mode" "lies in the directory of --model" "$W/d/model/config.json" $mode
    dumps "no file of --draft $mode" "lies in the directory of --draft" inputs/k3-nano-dflash/logits $mode
    dumps "a directory $mode" "is a directory" "$W/d/model" $mode
done
result=$W/d/x.prefill dumps "--out by the second file" "(--out)" "$W/d/x"
dumps "another file" "notes exists; replace it with --force-new, or name" "$W/d/notes"
dumps "another file by a link" "exists; replace it with --force-new, or name" "$W/d/notes.link"
dumps "another file by the second file" "half.prefill exists; replace it with --force-new" "$W/d/half"
for file in "$W/absent/logits" README.md/logits /proc/logits; do
    expect 2 "logits into ${file%/*}" "its directory ${file%/*} cannot be written: .*--dump-logits" \
        "$PDFLASH" run $MODEL --prompts "$W/p.h5" --single --max-new 4 --out "$W/d/new.h5" --dump-logits "$file"
    expect 2 "logits into ${file%/*}, 4 ranks" "its directory ${file%/*} cannot be written: .*--dump-logits" \
        $MPIRUN -n 4 "$PDFLASH" run $MODEL $pd --prompts "$W/p.h5" --out "$W/d/new.h5" --dump-logits "$file"
done
find "$W/d" -type f ! -name model.safetensors -exec sha256sum {} + | sort >"$W/d.after"
check "logits refused: every file is as it was, none is new" diff "$W/d.before" "$W/d.after"
expect 0 "logits over other files with --force-new" "complete" "$PDFLASH" run $MODEL --prompts "$W/p.h5" --single --max-new 4 \
    --out "$W/d/new.h5" --dump-logits "$W/d/notes.link" --force-new
check "they are behind the link" sh -c "[ -L '$W/d/notes.link' ] && [ \$(wc -c <'$W/d/notes') -gt 1000 ] && [ -s '$W/d/notes.link.prefill' ]"

# what cannot be printed is a failure, whichever command prints
job 1 small --single --prompts "$W/p.h5" --max-new 8
head -c 3000 "$W/small.h5" >"$W/cut.h5" && cp "$W/cut.h5" "$W/alone.h5" && cp "$W/small.h5.jsonl" "$W/cut.h5.jsonl"
rm -f "$W/alone.h5.jsonl"
expect 2 "--force-new over half a file without a journal" "holds no results; name" \
    "$PDFLASH" run $MODEL --prompts "$W/p.h5" --single --max-new 8 --out "$W/alone.h5" --force-new
expect 0 "--force-new over half a file beside its journal" "complete" \
    "$PDFLASH" run $MODEL --prompts "$W/p.h5" --single --max-new 8 --out "$W/cut.h5" --force-new
for c in "show $W/small.h5" "show --json $W/small.h5" "grade $W/small.h5" "plan $MODEL" "plan --json $MODEL" \
    "run --help" "--help" "--version"; do
    expect 3 "${c%% "$W"*} to a full device" "cannot write" sh -c "'$PDFLASH' $c >/dev/full"
done

# layouts that do not match: all ranks refuse, nothing is put
mismatch() { # NAME FIELD TEXT INJECT
    expect 2 "mismatch: $1" "$2" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject "$3"
    if grep -q "puts issued 0" "$W/expect.log"; then
        pass "mismatch: $1: zero puts"
    else
        fail "mismatch: $1: puts not reported as 0"
    fi
    check "mismatch: $1: no word of signals" sh -c "! grep -q 'SIG.* received' '$W/expect.log'"
}
mismatch "page size" "page" prefill.page=32
mismatch "kv dtype" "kv" prefill.kv=fp32
mismatch "draft kv dtype" "draft" prefill.draft-kv=fp32
mismatch "draft head count" "head" prefill.draft-heads=4
mismatch "capture list" "tap" prefill.taps=3,6,9,12,14,16
mismatch "prefill without draft" "draft" prefill.spec=none
mismatch "decode without draft" "draft" decode.spec=none
mismatch "page order" "order" prefill.order=token
mismatch "draft window" "window" decode.window=128
mismatch "draft rope" "rope" decode.theta=20000
mismatch "mask token" "mask" decode.mask=4080
mismatch "decode page size" "page" decode.page=128
expect 2 "ranks of different builds" "build" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject build:2
# a fault that cannot happen is no test of anything
for i in fail:9@1 kill:4@1 delay:2@5 drop:mla@4 flip:kda@7 build:4; do
    expect 1 "injection where nothing is: $i" "there are [24], counted from 0" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject $i
done
for i in kill:0@-1 abort:0@-5 delay:0@-50 fail:decode@-1 hold:0 prefill.draft-heads=0 prefill.page=x decode.kv=foo decode.window=-5 decode.theta=nan; do
    expect 1 "injection $i" "not understood" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject $i
done
expect 1 "two injections of a kind" "there is --inject abort:1@1 already" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject abort:1@1 --inject abort:2@1
expect 1 "injection into the prefill group of --single" "no prefill group" "$PDFLASH" $base --single --inject prefill.page=32
expect 1 "unknown injection" "not understood" $MPIRUN -n 4 "$PDFLASH" $base $pd --inject nonsense
finish
