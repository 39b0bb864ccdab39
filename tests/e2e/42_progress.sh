#!/bin/bash
# What a run tells a person: lines of progress where standard error is no terminal, one line redrawn where it is one
# (of its own, or mpirun's), nothing when not wanted or too short; the table at the end agrees with the result file.
. "$(dirname "$0")/lib.sh"
rm -rf "$W" && mkdir -p "$W"
pd="--prefill pp=2,tp=1 --decode tp=2"
"$PDFLASH" prompts --jsonl inputs/gsm8k-train64.jsonl --model inputs/k3-nano --thinking off --limit 12 --out "$W/p.h5" 2>/dev/null
common="--prompts $W/p.h5 --max-new 256 --concurrency 4"
line='^\[decode\.0\] info: [0-9]* of 12 rows, '

# ---- a pipe: whole lines, which only grow
job 4 piped $common $pd --progress 0.05 || finish
n=$(grep -c "$line" "$W/piped.log")
[ "$n" -ge 3 ] && pass "lines in a pipe" || fail "lines in a pipe: $n"
check "rows never go down" sh -c "sed -n 's/^\[decode.0\] info: \([0-9]*\) of 12 rows.*/\1/p' '$W/piped.log' | sort -nc"
check "rate, tokens, acceptance, time left, occupancy of both groups" \
    grep -qE "${line}[0-9]+ decoding, [0-9.]+ rows/min, [0-9.]+ tokens/s, accept length [0-9.]+, [0-9]+ (s|min), [0-9]+ (s|min) left; at work: prefill [1-9][0-9]* %, decode [1-9][0-9]* %$" "$W/piped.log"
grep -q "$(printf '\033')" "$W/piped.log" && fail "redrawn in a pipe" || pass "nothing redrawn in a pipe"
other=$(grep -c 'of 12 rows, .* decoding' "$W/piped.log")
[ "$other" = "$n" ] && pass "one rank speaks" || fail "one rank speaks: $other lines, $n of the leader"

# ---- the table: counts as the result file has them, then seconds; work and waiting make the whole
table() { awk '/rows    before  committed/ {getline; print; exit}' "$1"; }
set -- $(table "$W/piped.log")
tau=$("$PDFLASH" show --json "$W/piped.h5" | sed -n 's/.*"accept_length": *\([0-9.]*\).*/\1/p' | head -1)
tokens=$("$PDFLASH" show --json "$W/piped.h5" | sed -n 's/.*"output_tokens": *\([0-9]*\).*/\1/p' | head -1)
[ "$1 $2 $3 $4 $5 $6" = "12 0 12 0 0 $tokens" ] && pass "counts of the table" || fail "counts of the table: $*, $tokens tokens in the file"
[ "$8" = "$(printf %.2f "$tau")" ] && pass "acceptance of the table is that of show" || fail "acceptance: table $8, show $tau"
for g in "prefill 2" "decode 2"; do
    sed -n "s/^ ${g% *} *${g#* } *//p" "$W/piped.log" | awk -v ok=1 '{d = $1 - $2 - $3 - $4; if (d > 0.03 || d < -0.03 || $2 <= 0 || $4 <= 0) ok = 0; n++} END {exit !(ok && n == 1)}' &&
        pass "seconds of ${g% *}: work, transfer and waiting make the whole" || fail "seconds of ${g% *}"
done

# ---- quiet: a short run by itself, any run when told so
job 4 short $common $pd && [ "$(grep -c "$line" "$W/short.log")" = 0 ] && pass "a short run prints none in a pipe" || fail "a short run prints lines"
job 1 off --single $common --progress 0 && [ "$(grep -c "$line" "$W/off.log")" = 0 ] && pass "--progress 0" || fail "--progress 0 prints lines"
check "the table is there all the same" grep -q '^ single  *1 ' "$W/off.log"
expect 1 "--progress: out of range" "allowed -1 to" "$PDFLASH" run $MODEL --single $common --out "$W/no.h5" --progress -7

# ---- a resumed run: what earlier attempts did is no part of its rates
"$PDFLASH" run $MODEL --single --prompts "$W/p.h5" --max-new 256 --inject hold:5 --out "$W/r.h5" >"$W/hold.log" 2>&1 &
pid=$!
for _ in $(seq 600); do
    [ "$(grep -c '"kind":"row"' "$W/r.h5.jsonl" 2>/dev/null)" = 5 ] && break
    sleep 0.2
done
kill -USR1 $pid && wait $pid
[ $? = 75 ] && pass "an interrupted run" || fail "an interrupted run"
expect 0 "a resumed run" "12 of 12 rows, complete" \
    "$PDFLASH" run $MODEL --single --prompts "$W/p.h5" --max-new 256 --out "$W/r.h5" --resume --progress 0.02
cp "$W/expect.log" "$W/resumed.log"
check "its lines name the rows before" grep -q "of 12 rows (5 before), " "$W/resumed.log"
set -- $(table "$W/resumed.log")
[ "$1 $2 $3 $4 $5" = "12 5 7 0 0" ] && pass "its table too" || fail "its table: $*"

# ---- rows that fail
timeout 300 $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/fail.h5" --force-new --inject fail:0@3 --progress 0.02 >"$W/fail.log" 2>&1
[ $? = 4 ] && pass "a run with a failed row" || fail "a run with a failed row"
check "lines count it" grep -q "of 12 rows, 1 failed, " "$W/fail.log"
check "the end names the command that lists it" grep -q "1 rows failed or were aborted; .pdflash grade. lists them" "$W/fail.log"
check "that command does" sh -c "'$PDFLASH' grade '$W/fail.h5' | grep -q 'prefill rank 0'"
set -- $(table "$W/fail.log")
[ "$1 $2 $3 $4 $5" = "12 0 11 1 0" ] && pass "the table counts it" || fail "the table: $*"

# ---- a terminal: one line, in place, never inside of another
terminal() { # NAME COMMAND...
    local name=$1
    shift
    TERM=xterm timeout 300 script -qec "stty cols 60 2>/dev/null; $*" /dev/null </dev/null >"$W/$name.raw" 2>&1
    local rc=$?
    [ $rc = 0 ] || { fail "$name: exit $rc"; tail -5 "$W/$name.raw"; return; }
    tr '\r' '\n' <"$W/$name.raw" | grep -aE '^[0-9]+ of 12 rows, ' >"$W/$name.drawn"
    [ "$(wc -l <"$W/$name.drawn")" -ge 2 ] && pass "$name: redrawn" || fail "$name: not redrawn"
    awk '{sub(/\033\[K$/, ""); if (length($0) > 59) exit 1}' "$W/$name.drawn" && pass "$name: no line wraps" || fail "$name: a line wraps"
    # what is between line feeds, with what a carriage return takes back dropped, is a whole line of the log or of a table
    local mixed
    mixed=$(sed 's/\r$//; s/.*\r//' "$W/$name.raw" | grep -a 'of 12 rows' | grep -av 'complete')
    [ -z "$mixed" ] && pass "$name: nothing inside of other lines" || fail "$name: mixed: $mixed"
    check "$name: log lines wipe what they replace" grep -aqE "info: free at the end.*$(printf '\033')\[K" "$W/$name.raw"
}
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    terminal alone "$PDFLASH" run $MODEL --single $common --out "$W/t1.h5" --force-new --progress 0.05
    terminal launched $MPIRUN -n 4 "$PDFLASH" run $MODEL $common $pd --out "$W/t2.h5" --force-new --progress 0.05
else
    echo "skipped: terminals: this machine has no script, or no pseudo-terminals"
fi
finish
