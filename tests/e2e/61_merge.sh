#!/bin/bash
# Shards as an array job runs them, in several topologies, joined to the file of one run; journals cut at random bytes; what
# the pieces say of themselves, and that docs/FORMAT.md knows every name in them.
. "$(dirname "$0")/lib.sh"
P=$W/prompts.h5
rm -f "$W"/*.h5 "$W"/*.jsonl
$X make "$P" train00 train01 train02 train03 train04 test00 test01 test02 test03 >/dev/null 2>&1 || fail "prompts"
RUN="--prompts $P --max-new 64"
job 1 one --single $RUN
job 2 a --shard 1/3 $RUN
job 1 b --shard 2/3 --single $RUN
job 3 c --shard 3/3 --prefill pp=2,tp=1 --decode tp=1 --verify $RUN
check "a shard runs its rows only" sh -c "$X rows $W/b.h5 | awk '{print \$1}' | tr '\n' ' ' | grep -qx '3 4 5 '"
expect 0 "merge" "9 of 9 rows, 3 attempts, complete" "$PDFLASH" merge --out "$W/all.h5" "$W/c.h5" "$W/a.h5" "$W/b.h5"
check "same tokens and rounds as one run" $X equal "$W/one.h5" "$W/all.h5"
h5dump -d /requests "$W/all.h5" | awk '/^ *\([0-9]+\): \{/{getline; v = $1 + 0; if (n++ && v <= last) bad = 1; last = v}
    END{exit bad || n != 9}' && pass "rows in the order of the prompts" || fail "rows in the order of the prompts"
# grades and counts are those of one run; times are not
for f in one all; do "$PDFLASH" grade "$W/$f.h5" 2>&1 | sed 's/(run.*//; s/, attempt [0-9]*//' >"$W/$f.grade"; done
check "same grades" cmp "$W/one.grade" "$W/all.grade"
for f in one all; do "$PDFLASH" show --json "$W/$f.h5" | tr ',' '\n' | grep -E 'accept_|output_tokens|correct' | sort >"$W/$f.json"; done
check "the summary has figures" test "$(wc -l <"$W/one.json")" -ge 5
check "same acceptance and tokens" cmp "$W/one.json" "$W/all.json"
for n in 1 2 3; do
    check "attempt $n has its part's topology" sh -c "'$PDFLASH' show '$W/all.h5' | grep -q 'attempt $n: 3 rows, topology [a-z]'"
done

# what does not fit, and what is in the way
job 1 other --single --shard 1/3 --prompts "$P" --max-new 63
expect 2 "another --max-new" "max-new is 64 in .*a.h5 and 63 in .*other.h5" "$PDFLASH" merge --out "$W/no.h5" "$W/a.h5" "$W/other.h5"
expect 2 "a part twice" "requests/index 0 .* is in .*a.h5 too" "$PDFLASH" merge --out "$W/no.h5" "$W/a.h5" "$W/b.h5" "$W/a.h5"
expect 2 "no results" "schema is 'pdflash-prompts'" "$PDFLASH" merge --out "$W/no.h5" "$W/a.h5" "$P"
expect 2 "out is there" "replace it with --force" "$PDFLASH" merge --out "$W/all.h5" "$W/a.h5"
expect 2 "out is no result" "holds no results" "$PDFLASH" merge --force --out "$P" "$W/a.h5"
expect 2 "out is a part" "is a part too" "$PDFLASH" merge --force --out "$W/a.h5" "$W/a.h5" "$W/b.h5"
expect 1 "no part" "name the result files" "$PDFLASH" merge --out "$W/no.h5"
expect 1 "no journal" "journal FILE is required" "$PDFLASH" rebuild --out "$W/no.h5"
expect 1 "no such shard" "is no K/N" "$PDFLASH" run $MODEL --single $RUN --out "$W/no.h5" --shard 4/3
expect 2 "more shards than rows" "9 rows, fewer than 10" "$PDFLASH" run $MODEL --single $RUN --out "$W/no.h5" --shard 1/10
check "refusals leave nothing" sh -c "! ls $W/no.h5* 2>/dev/null | grep ."

# a lost shard: said, and done by --resume of the merged file
expect 4 "merge without a shard" "3 questions have no row" "$PDFLASH" merge --out "$W/two.h5" "$W/a.h5" "$W/c.h5"
expect 0 "resume of a merged file" "9 of 9 rows, complete" "$PDFLASH" run $MODEL --single $RUN --out "$W/two.h5" --resume
check "same as one run again" $X equal "$W/one.h5" "$W/two.h5"

# any journal, cut anywhere, gives its whole lines; a resume does the rest
RANDOM=7
size=$(stat -c %s "$W/all.h5.jsonl")
head=$(head -1 "$W/all.h5.jsonl" | wc -c) rows=$(sed '/^{"kind":"row"/,$d' "$W/all.h5.jsonl" | wc -c)
cuts=0 good=0 sum=0
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    from=$rows
    [ $i -gt 3 ] || from=$head # before the rows, too: they are long after what the parts tell of themselves
    at=$(((RANDOM * 32768 + RANDOM) % (size - from) + from))
    head -c "$at" "$W/all.h5.jsonl" >"$W/cut.jsonl"
    want=$(head -c "$at" "$W/all.h5.jsonl" | grep -c '^{"kind":"row".*}$')
    rm -f "$W/cut.h5"
    "$PDFLASH" rebuild --journal "$W/cut.jsonl" --out "$W/cut.h5" >"$W/cut.log" 2>&1 || { fail "rebuild of $at bytes"; cat "$W/cut.log"; }
    cuts=$((cuts + 1))
    sum=$((sum + want))
    [ "$($X rows "$W/cut.h5" | wc -l)" = "$want" ] && grep -q "the last line is cut short" "$W/cut.log" && good=$((good + 1))
    $X within "$W/one.h5" "$W/cut.h5" 2>&1 | grep -q " 0 differ" || fail "rows of a journal of $at bytes"
done
check "$cuts journals cut at random bytes: whole lines kept, the cut said ($good good, $sum rows)" test "$good" = "$cuts" -a "$sum" -ge 20
expect 0 "resume of a rebuilt file" "9 of 9 rows, complete" "$PDFLASH" run $MODEL --single $RUN --out "$W/cut.h5" --resume
check "and it is one run's" $X equal "$W/one.h5" "$W/cut.h5"
expect 2 "cut in the first line" "nothing to rebuild from" sh -c "head -c 20 $W/all.h5.jsonl >$W/cut.jsonl; '$PDFLASH' rebuild --force --journal $W/cut.jsonl --out $W/cut.h5"
truncate -s 3000 "$W/all.h5"
expect 2 "a damaged file" "not a whole HDF5 file" "$PDFLASH" show "$W/all.h5"
expect 0 "rebuild in its place" "9 of 9 rows" "$PDFLASH" rebuild --force --journal "$W/all.h5.jsonl" --out "$W/all.h5"
check "as before" $X equal "$W/one.h5" "$W/all.h5"

# every name in the files that runs make is in docs/FORMAT.md
names() { # FILE: objects as /a/b, attributes of the root as @a
    h5ls -r "$1" | awk '$1 != "/" {print $1}'
    h5dump -A "$1" | sed -n 's/^   ATTRIBUTE "\(.*\)" {/@\1/p' |
        sed -E 's/^@option_.*/@option_NAME/; s/^@attempt_[0-9]+_(run_id|command_line|build|topology|hosts|isa|start_utc)$/@attempt_N_NAME/;
                s/^@part_[0-9]+_(file|sha256|rows|first_attempt|attempts|complete|plan)$/@part_N_\1/; s/^@part_[0-9]+_(.*)/@\1/; s/^@option_.*/@option_NAME/'
}
for f in "$P" "$W/one.h5" "$W/c.h5" "$W/two.h5"; do
    names "$f" | sort -u >"$W/names"
    missing=$(while read -r n; do grep -qF "\`$n\`" docs/FORMAT.md || echo "$n"; done <"$W/names")
    if [ -z "$missing" ] && [ "$(wc -l <"$W/names")" -ge 15 ]; then
        pass "docs/FORMAT.md knows all $(wc -l <"$W/names") names of $(basename "$f")"
    else
        fail "docs/FORMAT.md lacks of $f:" $missing
    fi
done
finish
