#!/bin/bash
# diagnose on both drafts: nothing on the fixture as it is, and each planted fault by its name, with the acceptance before and
# after. The table it prints is the one of docs/DIAGNOSE.md.
. "$(dirname "$0")/lib.sh"
rm -f "$W"/* # of an earlier run
$X make "$W/p.h5" train00 train03
common="--model inputs/k3-nano --prompts $W/p.h5 --max-new 24"

# diagnose SPEC NAME OPTIONS... : the report, and its exit code in $rc
diagnose() {
    local spec=$1 name=$2 anchors=24
    [ $spec = dflash ] && anchors=12 # of fifteen drafts each
    shift 2
    timeout 300 "$PDFLASH" diagnose $common --anchors $anchors --draft inputs/k3-nano-$spec --spec $spec "$@" >"$W/$name.txt" 2>"$W/$name.log"
    rc=$?
}

# found SPEC PLANT FAULT TEXT : the only finding is FAULT, explained by TEXT, and taking it out is worth at least 0.3 tokens a step
found() {
    local spec=$1 plant=$2 fault=$3 text=$4 name=$1-$2 line before after
    diagnose "$spec" "$name" --plant "$plant"
    line=$(grep '^FOUND' "$W/$name.txt")
    before=$(sed -n 's/.*; accept length \([0-9.]*\), without it \([0-9.]*\)$/\1/p' <<<"$line")
    after=$(sed -n 's/.*; accept length \([0-9.]*\), without it \([0-9.]*\)$/\2/p' <<<"$line")
    echo "| $spec | $plant | $fault | ${before:-?} | ${after:-?} |" >>"$W/table-$spec"
    if [ $rc = 3 ] && [ "$(wc -l <<<"$line")" = 1 ] && [ "${line%%;*}" = "FOUND $fault" ] && grep -q "$text" "$W/$name.txt" &&
        awk -v a="${after:-0}" -v b="${before:-0}" 'BEGIN { exit !(a > b + 0.3) }'; then
        pass "$spec: $plant"
    else
        fail "$spec: $plant: exit $rc, found: ${line:-nothing}"
        tail -5 "$W/$name.log"
    fi
}

# healthy SPEC : nothing is found where nothing is wrong
healthy() {
    local spec=$1 report=$W/$1-none.txt
    rm -f "$W/$spec.h5"
    diagnose $spec $spec-none --out "$W/$spec.h5"
    if [ $rc = 0 ] && grep -q '^no fault found; accept length' "$report"; then pass "$spec: nothing is found on the fixture"
    else fail "$spec: on the fixture: exit $rc"; fi
    if grep -q 'trained for the attention-residual mixture' "$report"; then pass "$spec: trained for the mixture"
    else fail "$spec: which stream it was trained for"; fi
    if [ "$(grep -cE '^  (KDA state|conv tail|MLA rows|draft [KV]) .* none$' "$report")" = 5 ]; then pass "$spec: state is that of recomputation"
    else fail "$spec: state"; fi
}

# everything SPEC MASK : MASK is the mask token that the draft was trained with
everything() {
    local spec=$1
    healthy $spec
    found $spec tap-early "taps one layer early" "restored by: captures as the engine captures, one layer later"
    found $spec prefix "prefix instead of mixture" "restored by: captures from the attention-residual mixture"
    found $spec slots "shifted slots" "restored by: drafts read one slot"
    found $spec mask "wrong mask id" "restored by: mask token $2 (mask_token_id is 4095)"
    found $spec rope "wrong RoPE base" "restored by: RoPE base 10000 (rope_theta is 1e+06)"
    found $spec conv "conv tail not rolled back" "rejected rows were not rolled back"
    found $spec kda "KDA state not rolled back" "rejected rows were not rolled back"
    found $spec draft-kv "draft KV zeroed" "63 of 63 positions hold zeros"
    found $spec fc "fc columns swapped" "restored by: fc column blocks 0 and 1 exchanged"
    [ $spec = dspark ] || found $spec window "window off by one" "attend 65 positions, sliding_window is 64"
}

everything dspark 4080 >"$W/dspark.out" & # side by side
everything dflash 3848 >"$W/dflash.out"
wait
cat "$W/dflash.out" "$W/dspark.out"
ok=$(cat "$W"/d*.out | grep -c '^ok ')
bad=$(cat "$W"/d*.out | grep -c '^FAIL ')
diagnose dflash fp32 --kv-dtype fp32 --limit 1
check "fp32 caches: nothing is found" test $rc = 0

# few anchors, and questions that the draft only guesses at: nothing is found where nothing is wrong
$X make "$W/guess.h5" test00 test01
for few in "dflash guess 24" "dspark guess 2" "dspark p 1"; do
    read -r spec questions anchors <<<"$few"
    expect 0 "$few anchors: nothing is found" "no fault found" "$PDFLASH" diagnose --model inputs/k3-nano --prompts "$W/$questions.h5" \
        --max-new 24 --draft inputs/k3-nano-$spec --spec $spec --anchors $anchors
done

# what does not match is refused, all of it, before anything runs
mkdir -p "$W/odd"
cp inputs/k3-nano-dflash/model.safetensors "$W/odd/"
sed 's/"vocab_size": 4096/"vocab_size": 4097/; s/"hidden_size": 256/"hidden_size": 128/; s/"num_target_layers": 17/"num_target_layers": 18/
     s/"mask_token_id": 3848/"mask_token_id": 4096/; s/^      15$/      17/' inputs/k3-nano-dflash/config.json >"$W/odd/config.json"
odd="$PDFLASH diagnose $common --draft $W/odd"
expect 2 "mismatch: how many" "6 of 9 settings of draft and target do not match" $odd
for text in "hidden_size: 128, but inputs/k3-nano/config.json: hidden_size: 256" "vocab_size: 4097, but inputs/k3-nano/config.json: vocab_size: 4096" \
    "num_target_layers: 18, but inputs/k3-nano/config.json: num_hidden_layers: 17" "mask_token_id: 4096, but inputs/k3-nano/config.json: vocab_size: 4096" \
    "target_layer_ids: 3,6,9,12,14,17, but" "fc.weight: 256 x 1536, but"; do
    expect 2 "mismatch: ${text%%:*}" "$text" $odd
done
expect 2 "the other kind of draft" "this is a dspark draft, but --spec: dflash" "$PDFLASH" diagnose $common --draft inputs/k3-nano-dspark
expect 1 "no draft" "nothing to diagnose" "$PDFLASH" diagnose $common --spec none
expect 1 "an unknown plant" "is unknown; --help lists the faults" "$PDFLASH" diagnose $common --draft inputs/k3-nano-dflash --plant nonsense
expect 2 "a plant without a place" "no layer of the draft slides" "$PDFLASH" diagnose $common --draft inputs/k3-nano-dspark --spec dspark --plant window
expect 2 "an output that is there" "exists; replace it with --force" "$PDFLASH" diagnose $common --draft inputs/k3-nano-dflash --out "$W/dflash.h5"
cp "$W/p.h5" "$W/p.copy.h5"
expect 2 "an output that is something else" "holds no diagnosis" \
    "$PDFLASH" diagnose $common --draft inputs/k3-nano-dflash --out "$W/p.copy.h5" --force
echo "| draft | planted | found | accept length | without it |"
cat "$W/table-dflash" "$W/table-dspark"
finish
