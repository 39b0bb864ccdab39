#!/bin/bash
# Results as page, trace and table, and the decision against a reference: from runs made here.
. "$(dirname "$0")/lib.sh"
"$PDFLASH" prompts --jsonl inputs/gsm8k-train64.jsonl --model inputs/k3-nano --thinking off --limit 4 --force --out "$W/p.h5" >/dev/null 2>&1
P="--prompts $W/p.h5 --max-new 160 --prefill pp=2,tp=1 --decode tp=1"
job 3 c2 $P --concurrency 2 || finish
job 3 c1 $P --concurrency 1 || finish
timeout 300 $MPIRUN -n 3 "$PDFLASH" run --model inputs/k3-nano --spec none --out "$W/none.h5" --force-new $P --concurrency 2 \
    >"$W/none.log" 2>&1 || fail "the none-run"
has() { # NAME FILE TEXT
    if grep -qe "$3" "$2"; then pass "$1"; else fail "$1: $2 lacks '$3'"; fi
}
sizes() { stat -c %s "$W"/r.html "$W"/t.json "$W"/r.csv 2>/dev/null | tr '\n' ' '; }

check "page, trace and table in one call" "$PDFLASH" show --html "$W/r.html" --trace "$W/t.json" --csv "$W/r.csv" \
    --reference "$W/none.h5" "$W/c2.h5"
check "page of three files" "$PDFLASH" show --html "$W/three.html" --reference "$W/none.h5" "$W/c2.h5" "$W/c1.h5" "$W/none.h5"
has "the page says what the ranks did" "$W/r.html" 'data-k="0:occupancy.2.busy_s.decode" data-v="[0-9.e-]*[1-9]'
has "C1 and C2 are one configuration, none is not" "$W/three.html" "Config hashes differ"
"$PDFLASH" show --html "$W/two.html" "$W/c2.h5" "$W/c1.h5" 2>/dev/null
has "C1 and C2 have equal hashes" "$W/two.html" "All files have the same config hash"
has "and the same tokens" "$W/two.html" "<td>4 of 4</td>"
if command -v xmllint >/dev/null; then
    check "xmllint takes the page" xmllint --noout "$W/r.html" "$W/three.html"
else
    echo "skip xmllint takes the page: no xmllint (package libxml2-utils)"
fi
if command -v python3 >/dev/null; then
    check "trace and table as python reads them" python3 -c '
import csv, json, sys
t = json.load(open(sys.argv[1]))["traceEvents"]
x = [e for e in t if e["ph"] == "X"]
assert x and all(a["ts"] <= b["ts"] for a, b in zip(x, x[1:])) and all(e["dur"] >= 0 for e in x)
assert {e["name"] for e in x} >= {"prefill", "transfer", "decode", "receive", "send", "start"}
r = list(csv.DictReader(open(sys.argv[2], encoding="utf-8", newline="")))
assert len(r) == 4 and [int(q["index"]) for q in r] == list(range(4)) and all(q["openai_correct"] == "1" for q in r)
' "$W/t.json" "$W/r.csv"
else
    echo "skip trace and table as python reads them: no python3"
fi
# the rule: correct by token identity and by train-64; which way the gain goes is the machine's affair
"$PDFLASH" show --reference "$W/none.h5" "$W/c2.h5" >"$W/text" 2>&1
has "the decision is printed" "$W/text" "^decision: \(continue\|diagnose\) - correct"
has "token identity" "$W/text" "token identity  *holds: 4 of 4 rows"
has "train-64" "$W/text" "train-64  *holds: 4 of 4 right"
echo '{"output_tps_decode": 0.001}' >"$W/slow.json"
echo '{"output_tps_decode": 1e9}' >"$W/fast.json"
expect 0 "faster than external figures: continue" "decision: continue" "$PDFLASH" show --reference "$W/slow.json" "$W/c2.h5"
expect 0 "slower: diagnose" "decision: diagnose - correct, but decoding is not faster" "$PDFLASH" show --reference "$W/fast.json" "$W/c2.h5"

expect 0 "against itself: undecided" "decision: undecided - the reference is this very run" "$PDFLASH" show --reference "$W/c2.h5" "$W/c2.h5"

# what is refused, and what a failed write leaves
before=$(sizes)
expect 1 "a trace of two files" "takes one results file" "$PDFLASH" show --trace "$W/t.json" "$W/c2.h5" "$W/c1.h5"
expect 1 "two outputs of one name" "both name" "$PDFLASH" show --html "$W/r.html" --csv "$W/r.html" "$W/c2.h5"
expect 1 "a table for standard output" "name a file; for standard output /dev/stdout" "$PDFLASH" show --csv - "$W/c2.h5"
expect 0 "and that name writes there" "^file,.*index\|index" "$PDFLASH" show --csv /dev/stdout "$W/c2.h5"
cp "$W/c2.h5.jsonl" "$W/journal" && cp inputs/gsm8k-train64.jsonl "$W/questions"
for f in journal questions r.csv t.json; do
    expect 2 "a page over $f" "exists, and was not written by --html" "$PDFLASH" show --html "$W/$f" "$W/c2.h5"
    expect 2 "or another kind over it" "exists, and was not written by --" "$PDFLASH" show --$([ $f = t.json ] && echo csv || echo trace) "$W/$f" "$W/c2.h5"
done
check "they are as they were" cmp "$W/journal" "$W/c2.h5.jsonl"
: >"$W/empty"
for o in html trace csv; do
    expect 0 "an empty file is filled, --$o" "written" "$PDFLASH" show --$o "$W/empty" "$W/c2.h5"
    expect 0 "and written anew, --$o" "written" "$PDFLASH" show --$o "$W/empty" "$W/c2.h5"
    : >"$W/empty"
done
rm "$W/journal" "$W/questions" "$W/empty"
expect 2 "results are not overwritten" "holds HDF5 data" "$PDFLASH" show --html "$W/c1.h5" "$W/c2.h5"
expect 2 "nor is the reference" "is the reference" "$PDFLASH" show --csv "$W/slow.json" --reference "$W/slow.json" "$W/c2.h5"
expect 2 "no results" "no such file\|cannot\|not" "$PDFLASH" show --html "$W/r.html" "$W/nothing.h5"
expect 2 "a folder that is not there" "$W/none/r.html: cannot write" "$PDFLASH" show --html "$W/none/r.html" "$W/c2.h5"
for o in html trace csv; do
    expect 3 "a full disk, --$o" "/dev/full: cannot write: No space left" "$PDFLASH" show --$o /dev/full "$W/c2.h5"
done
expect 3 "a page that does not fit" "$W/r.html: cannot write: File too large; what was there before is unchanged" \
    bash -c 'ulimit -f 4; trap "" XFSZ; exec "$0" "$@"' "$PDFLASH" show --html "$W/r.html" "$W/c2.h5"
[ "$before" = "$(sizes)" ] && pass "files are as before" || fail "files are $(sizes), were $before"
ls "$W"/*.tmp.* >/dev/null 2>&1 && fail "leftovers: $(ls "$W"/*.tmp.*)" || pass "no leftovers"
[ -c /dev/full ] && pass "/dev/full is a device still" || fail "/dev/full was replaced"

# the acceptance run, of two questions: six runs, one decision, in the last line
expect 0 "acceptance" "^decision (train-64 at concurrency 8): \(continue\|diagnose\) - correct.*train64-none-c8.h5)$" \
    env ARGS="--limit 2" OUT="$W/acceptance" PREFILL=pp=2,tp=1 DECODE=tp=1 PDFLASH="$PDFLASH" tools/acceptance
check "one decision, the last line" sh -c "[ \$(grep -c '^decision' '$W/expect.log') = 1 ] && tail -1 '$W/expect.log' | grep -q '^decision'"
check "each against its own concurrency" grep -q "is [0-9.]* times as fast as without drafts at concurrency 1, [0-9.]* times" "$W/expect.log"
check "as many ranks as the layouts want" test "$(grep -c "^+ $MPIRUN -n 3 $PDFLASH run " "$W/expect.log")" = 6
has "the report has the decision" "$W/acceptance/report.html" "decision.identical"
check "the comparison has none" sh -c "! grep -q decision.identical '$W/acceptance/comparison.html'"
finish
