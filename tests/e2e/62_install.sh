#!/bin/bash
# What `make install` puts in place: the program runs from there, the manual page is clean, completion knows the tables.
. "$(dirname "$0")/lib.sh"
D=$W/root
rm -rf "$D"
check "make install" make --no-print-directory BOOTSTRAP=0 VARIANT="$(basename "$(dirname "$PDFLASH")")" DESTDIR="$D" PREFIX=/opt/pd install
check "installed program" sh -c "'$D/opt/pd/bin/pdflash' --version | grep -q '^pdflash '"
PAGE=$D/opt/pd/share/man/man1/pdflash.1
check "manual page has its sections" sh -c "for s in NAME SYNOPSIS COMMANDS OPTIONS FILES 'EXIT STATUS' EXAMPLES; do grep -q \"^.SH \$s\" '$PAGE' || exit 1; done"
if command -v mandoc >/dev/null; then check "mandoc -Tlint" sh -c "! mandoc -Tlint '$PAGE' 2>&1 | grep ."; else echo "skip mandoc -Tlint: not installed"; fi
if command -v groff >/dev/null; then check "groff -man -ww" sh -c "! groff -man -ww -z '$PAGE' 2>&1 | grep ."; else echo "skip groff -man -ww: not installed"; fi
# what completion offers after a line; the last word is the one being typed
offers() {
    bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pdflash; printf "%s\n" "${COMPREPLY[@]}"' - \
        "$D/opt/pd/share/bash-completion/completions/pdflash" "$@" | sort | tr '\n' ' '
}
wants() { # LINE-WORDS... = WANTED-WORDS
    local line=()
    while [ "$1" != = ]; do line+=("$1"); shift; done
    shift
    local got; got=$(offers "${line[@]}")
    if [ "$got" = "$* " ]; then pass "completion of ${line[*]}"; else fail "completion of ${line[*]}: '$got', expected '$*'"; fi
}
wants pdflash m = merge
wants pdflash merge --f = --force
wants pdflash bench "" = --help collectives kernels transfer
wants pdflash run --device c = cpu cuda
wants pdflash plan --ki = ""
wants pdflash run --spec "" = dflash dspark none
wants pdflash diagnose --spec ds = dspark
wants pdflash bench kernels -- = --act --device --help --only
wants pdflash bench kernels --device "" = auto cpu cuda
wants pdflash bench kernels --act b = bf16
wants pdflash run --kv-dtype "" = bf16 fp32
wants pdflash prompts --model inputs/k3-nano --th = --thinking
wants pdflash show inputs/k3-nano-d = inputs/k3-nano-dflash inputs/k3-nano-dspark
wants pdflash run --model inputs/k3-nano-df = inputs/k3-nano-dflash
for c in $("$PDFLASH" help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    [ "$c" = bench ] && continue
    check "completion of $c is its --help" test "$(offers pdflash "$c" --)" = \
        "$({ "$PDFLASH" "$c" --help | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p'; echo --help; } | sort | tr '\n' ' ')"
done
finish
