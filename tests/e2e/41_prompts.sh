#!/bin/bash
# `pdflash prompts` with question files as found in the wild: every form of the same questions gives the same rows and
# tokens; examples in three wordings, from three places; what cannot be taken is refused with its place and writes nothing.
. "$(dirname "$0")/lib.sh"
rm -rf "$W" && mkdir -p "$W"
P="$PDFLASH prompts --model inputs/k3-nano" level="--thinking off"
test=inputs/gsm8k-test64.jsonl train=inputs/gsm8k-train64.jsonl

# rows NAME OPTIONS... : makes NAME.h5; its rows and tokens, without what names the source, go to NAME.rows
rows() {
    local name=$1
    shift
    $P $level --out "$W/$name.h5" --force "$@" >"$W/$name.log" 2>&1 || { fail "$name"; tail -5 "$W/$name.log"; return 1; }
    h5dump -d /text/question -d /text/gold -d /row/sha256 -d /row/source_row -d /tokens/flat -d /tokens/offsets "$W/$name.h5" |
        tail -n +2 >"$W/$name.rows"
}
same() { # NAME OTHER WHAT
    if cmp -s "$W/$1.rows" "$W/$2.rows"; then pass "$3"; else fail "$3"; fi
}
other() {
    if cmp -s "$W/$1.rows" "$W/$2.rows"; then fail "$3"; else pass "$3"; fi
}
attribute() { # NAME KEY VALUE
    local got
    got=$(h5dump -a "/$2" "$W/$1.h5" | sed -n 's/^ *(0): "*\([^"]*\)"*$/\1/p')
    if [ "$got" = "$3" ]; then pass "$1: $2 is '$3'"; else fail "$1: $2 is '$got', expected '$3'"; fi
}

rows plain --jsonl $test
attribute plain source_sha256 "$(sha256sum <$test | cut -d' ' -f1)"
attribute plain rows 64

# ---- the same questions, written otherwise
sed 's/$/\r/' $test >"$W/crlf.jsonl"
{ printf '\xef\xbb\xbf'; cat $test; } >"$W/bom.jsonl"
head -c -1 $test >"$W/noend.jsonl"
{ printf '\xef\xbb\xbf'; head -30 $test | sed 's/$/\r/'; printf '\r\n \t\r\n\xef\xbb\xbf'; tail -34 $test | head -c -1; } >"$W/all.jsonl"
gzip -9c "$W/all.jsonl" >"$W/all.jsonl.gz"
{ head -40 $test | gzip -1; tail -24 $test | gzip; } >"$W/joined"
for form in crlf.jsonl bom.jsonl noend.jsonl all.jsonl all.jsonl.gz joined; do
    rows "f-$form" --jsonl "$W/$form" && same plain "f-$form" "form: $form"
done
attribute f-all.jsonl.gz source_sha256 "$(sha256sum <"$W/all.jsonl.gz" | cut -d' ' -f1)"
rows again --h5 "$W/plain.h5" && same plain again "form: a prompts file"
attribute again source plain.h5
level="--thinking max" rows max --h5 "$W/plain.h5" && other plain max "a prompts file is tokenised anew"
if [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import h5py' 2>/dev/null; then
    /usr/bin/python3 - $test "$W" <<'PY'
import h5py, json, sys
rows = [json.loads(l) for l in open(sys.argv[1], encoding="utf-8")]
q, a = [r["question"] for r in rows], [r["answer"] for r in rows]
with h5py.File(sys.argv[2] + "/variable.h5", "w") as f:
    f["question"], f["answer"] = q, a
    f["id"] = [f"test-{i}" for i in range(len(rows))]
with h5py.File(sys.argv[2] + "/fixed.h5", "w") as f:
    f["question"] = [s.encode() for s in q]          # |S...: fixed length
    f["answer"] = [s.encode() for s in a]
    f["id"] = list(range(len(rows)))
    f["embedding"] = [[1.5] * 3] * len(rows)
with h5py.File(sys.argv[2] + "/latin.h5", "w") as f:
    f["question"] = [s.encode("cp1252", "replace") for s in q]
    f["answer"] = [s.encode("cp1252", "replace") for s in a]
PY
    for form in variable fixed; do rows "f-$form" --h5 "$W/$form.h5" && same plain "f-$form" "form: $form strings of h5py"; done
    expect 2 "HDF5 in another encoding" "latin.h5: /question: row 0, character 6: not UTF-8: byte 0x92" \
        $P $level --h5 "$W/latin.h5" --out "$W/no.h5"
else
    echo "skip files written by h5py: python3-h5py is not installed"
fi

# ---- examples
cp $test "$W/test.jsonl"
cp $train "$W/train.jsonl"
rows five --jsonl "$W/test.jsonl" --shots 5
rows named --jsonl "$W/test.jsonl" --shots 5 --shots-from $train && same five named "examples come from the train file beside"
attribute five shots_source train.jsonl
attribute five shots_leaked 0
attribute five format openai
other plain five "examples are in the prompts"
gzip -c $train >"$W/train.gz"
mkdir -p "$W/z" && gzip -c $test >"$W/z/test.jsonl.gz" && cp $train "$W/z/train.jsonl"
rows beside1 --jsonl "$W/z/test.jsonl.gz" --shots 5 && same five beside1 "examples beside a compressed test file"
rm "$W/z/train.jsonl" && gzip -c $train >"$W/z/train.jsonl.gz" && gunzip "$W/z/test.jsonl.gz"
rows beside2 --jsonl "$W/z/test.jsonl" --shots 5 && same five beside2 "examples out of a compressed train file beside"
rows packed --jsonl "$W/test.jsonl" --shots 5 --shots-from "$W/train.gz" && same five packed "examples out of gzip"
rows pairs --jsonl $train
rows stored --jsonl "$W/test.jsonl" --shots 5 --shots-from "$W/pairs.h5" && same five stored "examples out of HDF5"
rows lm --jsonl "$W/test.jsonl" --shots 5 --format lm-eval && other five lm "lm-eval words them otherwise"
rows sg --jsonl "$W/test.jsonl" --shots 5 --format sglang --shots-from $train && same lm sg "SGLang's wording is lm-eval's"
rows leak --jsonl "$W/test.jsonl" --shots 5 --format sglang
attribute leak shots_source test.jsonl
attribute leak shots_leaked 5
attribute leak format sglang
other sg leak "SGLang's own examples are the first rows of the graded file"
check "the leak is named" grep -q "5 questions are worked examples of all prompts (row 0 (line 1), .*row 4 (line 5)): their answers are given away" "$W/leak.log"
check "no leak, no warning" sh -c "! grep -q warning '$W/five.log' '$W/lm.log'"
rows lm0 --jsonl "$W/test.jsonl" --format lm-eval && other plain lm0 "a format words the question without examples too"
rows raw --jsonl "$W/test.jsonl" --shots 2 --format lm-eval --raw
attribute raw template raw
attribute raw thinking off

# ---- a run over raw prompts, and its result names them
rows few --jsonl $train --limit 2 --raw --format sglang --shots 1
job 1 raw-run --single --prompts "$W/few.h5" --max-new 8 && pass "raw prompts run"
attribute raw-run template raw
attribute raw-run format sglang
attribute raw-run shots_leaked 1
check "grade names the leak" sh -c "'$PDFLASH' grade '$W/raw-run.h5' | grep -q '1 of the questions .* worked examples'"

# ---- refusals: place, cause, and nothing written
no() { # CODE NAME TEXT OPTIONS...
    local code=$1 name=$2 text=$3
    shift 3
    rm -f "$W/no.h5"
    expect "$code" "$name" "$text" $P $level --out "$W/no.h5" "$@"
    [ ! -e "$W/no.h5" ] || fail "$name: left a file"
}
no 1 "no questions" "--jsonl FILE is required"
no 1 "two files of questions" "exclude each other" --jsonl $test --h5 "$W/plain.h5"
level="--thinking high" no 1 "raw with a level" "has no meaning with --raw" --jsonl $test --raw
no 1 "examples from, but none" "has no meaning with --shots 0" --jsonl $test --shots-from $train
no 1 "unknown format" "openai,lm-eval,sglang" --jsonl $test --format vllm
no 1 "no train file beside" "needs --shots-from FILE: no train split lies beside .*crlf.jsonl" --jsonl "$W/crlf.jsonl" --shots 1
head -2 $train >"$W/two"
no 2 "more examples than rows" "2 rows, --shots asks for 3" --jsonl $test --shots-from "$W/two" --shots 3
no 2 "HDF5 as JSON lines" "name it with --h5" --jsonl "$W/plain.h5"
no 2 "JSON lines as HDF5" "name JSON lines with --jsonl" --h5 $test
no 2 "HDF5 of something else" "no prompts file, and no datasets /question and /answer" --h5 tests/vectors/layers_p5.h5
no 2 "absent" "cannot open" --h5 "$W/absent.h5"
no 2 "a result is no prompts file" "no prompts file" --h5 "$W/raw-run.h5"
head -c 3000 "$W/all.jsonl.gz" >"$W/cut.gz"
no 2 "half of a gzip file" "cut.gz: gzip: the file is cut short after" --jsonl "$W/cut.gz"
{ head -2 $test; printf '{"question": "caf\xe9", "answer": "#### 1"}\n'; } >"$W/latin.jsonl"
no 2 "another encoding" "latin.jsonl:3:18: not UTF-8: byte 0xe9; convert" --jsonl "$W/latin.jsonl"
printf '{"id": %s, "question": "%s", "answer": "#### 1"}\n' 4 a 5 b 4 c >"$W/ids.jsonl"
no 2 "an id that names two rows" 'ids.jsonl: id "4" names both row 0 (line 1) and row 2 (line 3); give' --jsonl "$W/ids.jsonl"
{ head -3 $test; head -1 $test; } >"$W/twice.jsonl"
expect 0 "a question that occurs twice" "row 0 (line 1) and row 3 (line 4) are the same question; both are kept" \
    $P $level --jsonl "$W/twice.jsonl" --out "$W/twice.h5"

# ---- lengths: the longest row just fits, or is named
most=$(h5dump -d /tokens/offsets "$W/plain.h5" | sed -n 's/^ *([0-9]*): //p' | tr -d ' \n' | tr ',' '\n' |
    awk 'NR > 1 && $1 - last > m {m = $1 - last; at = NR - 2} {last = $1} END {print m, at}')
set -- $most
expect 0 "the longest prompt fits" "64 prompts" $P $level --jsonl $test --max-prompt "$1" --out "$W/fits.h5"
no 2 "too long by one" "1 of 64 prompts are longer than --max-prompt $(($1 - 1)): row $2 (line $(($2 + 1))): $1 tokens; nothing is cut" \
    --jsonl $test --max-prompt $(($1 - 1))
no 2 "all too long" "64 of 64 prompts .* row 9 (line 10): [0-9]* tokens, \.\.\.; nothing is cut" --jsonl $test --max-prompt 3
mkdir "$W/short" && cp inputs/k3-nano/* "$W/short" && sed -i 's/1048576/100/' "$W/short/config.json"
expect 2 "past the positions" "prompts are longer than the model's 100 positions: row" \
    "$PDFLASH" prompts --model "$W/short" --thinking off --jsonl $test --out "$W/no.h5"
finish
