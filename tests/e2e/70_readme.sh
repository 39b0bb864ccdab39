#!/bin/bash
# Every shell line of the README runs as it stands there, in its order, and the run in it gives what the text says.
. "$(dirname "$0")/lib.sh"
# building is not repeated, and the program under test is taken; everything is written below $W
awk '/^```sh/{on=1; next} /^```/{on=0} on' README.md | grep -v '^make' |
    sed -e "s#\$PWD/build/release#$(dirname "$PDFLASH")#" -e "s#build/demo#$W/demo#g" >"$W/readme.sh"
check "README names nine commands or more" sh -c "grep -c pdflash '$W/readme.sh' | awk '{exit !(\$1 >= 9)}'"
timeout 600 bash -euo pipefail "$W/readme.sh" >"$W/readme.log" 2>&1
rc=$?
if [ $rc = 0 ]; then pass "README runs as it stands"; else fail "README: exit $rc"; tail -20 "$W/readme.log"; fi
check "README: all eight answers are right" grep -q "openai *8 of 8 all questions" "$W/readme.log"
check "README: Kimi-K3 is planned" grep -q "plan pp8tp4ep4/tp32ep4: 64 ranks" "$W/readme.log"
check "README: the merged shards are the same" $X equal "$W/demo/single.h5" "$W/demo/merged.h5"
check "README: so is the file rebuilt from their journal" $X equal "$W/demo/single.h5" "$W/demo/rebuilt.h5"
check "README: the single run is the same" $X tokens "$W/demo/single.h5" "$W/demo/results.h5"
# so do its lines of python, where a python reads HDF5, and each expression in the text around them
py=
for p in python3 /usr/bin/python3; do "$p" -c 'import h5py' 2>/dev/null && py=$p && break; done
if [ -n "$py" ]; then
    awk '/^```python/{on=1; next} /^```/{on=0} on' README.md | sed "s#build/demo#$W/demo#g" >"$W/readme.py"
    grep -o '`order = [^`]*`' README.md | tr -d '`' >>"$W/readme.py"
    echo 'assert sorted(order) == list(range(8)), order' >>"$W/readme.py"
    check "README's python" "$py" "$W/readme.py"
else
    echo "skip the README's python: no python3-h5py"
fi
# what the README names must be there
for f in $(grep -oE '(inputs|tools|tests|docs)/[A-Za-z0-9_./-]*[A-Za-z0-9]' README.md | sort -u); do
    check "README names $f, which is there" test -e "$f"
done
finish
