# common.sh - sourced by the batch scripts of this folder: checks before the start, ranks and hosts, the run, requeue.
# A batch script sets its variables first; jobs/README.md has them all.

say() { echo "[$(date -u +%H:%M:%SZ) job $job, start $((${SLURM_RESTART_COUNT:-0} + 1))] $*"; }
refuse() {
    say "refused: $*"
    exit 2
}
job=${SLURM_JOB_ID:-none}
# a task of an array: its plain number may mean the whole array to scontrol
[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
[ -n "${SLURM_JOB_ID:-}" ] || refuse "this is no Slurm job; submit it: sbatch $0"
early=
trap 'early=1' USR1 # the default would end this shell only
# after sbatch --export=NONE mpirun's daemons on other nodes would start without PATH
export SLURM_EXPORT_ENV=ALL
[ -z "${SETUP:-}" ] || eval "$SETUP" || refuse "SETUP='$SETUP' failed on $(hostname)"

# need_*: what must be there before any rank starts, told by the names of the variables, which is what can be changed
need_program() {
    [ -f "$PDFLASH" ] && [ -x "$PDFLASH" ] ||
        refuse "PDFLASH=$PDFLASH is no program on $(hostname); build it (make) where all nodes see it, or set PDFLASH"
    "$PDFLASH" --version >/dev/null ||
        refuse "PDFLASH=$PDFLASH does not start on $(hostname); is a library missing? SETUP='module load ...' finds some"
}
need_mpirun() {
    local words=($MPIRUN)
    command -v "${words[0]}" >/dev/null ||
        refuse "MPIRUN: there is no ${words[0]} on $(hostname); set SETUP='module load openmpi', or MPIRUN"
    [ -x "$PDFLASH_DIR/tools/launch" ] ||
        refuse "PDFLASH_DIR=$PDFLASH_DIR has no tools/launch; set it to the top of pdflash"
    [ -z "$BIND" ] || [ -x "$BIND" ] || refuse "BIND=$BIND is no program; BIND= (empty) does without"
}
need_inputs() {
    [ -r "$MODEL/config.json" ] ||
        refuse "MODEL=$MODEL has no readable config.json; set it to a checkpoint that all nodes see"
    [ -z "$DRAFT" ] || [ -r "$DRAFT/config.json" ] ||
        refuse "DRAFT=$DRAFT has no readable config.json; set it to a draft, or DRAFT= (empty) for plain decoding"
    [ -r "$PROMPTS" ] ||
        refuse "PROMPTS=$PROMPTS cannot be read; make it: pdflash prompts --jsonl FILE --model $MODEL --out $PROMPTS"
}
need_out() {
    local dir
    dir=$(dirname "$OUT")
    mkdir -p "$dir" 2>/dev/null
    [ -d "$dir" ] && [ -w "$dir" ] || refuse "OUT=$OUT: $dir is no directory that can be written"
}

# field VARIABLE NAME: sets `value` to the number of NAME in a layout such as pp=8,tp=4; 1 if left out, as for pdflash
field() {
    value=$(tr ',' '\n' <<<"${!1}" | sed -n "s/^$2=//p")
    : "${value:=1}"
    [[ $value =~ ^[1-9][0-9]{0,4}$ ]] || refuse "$1=${!1}: $2 is no number"
}
# count_ranks: n_prefill, n_decode, n_ranks and prefill_tp from the layout; the job must have as many tasks
count_ranks() {
    field PREFILL tp
    prefill_tp=$value
    field PREFILL pp
    n_prefill=$((value * prefill_tp))
    field DECODE tp
    n_decode=$value
    n_ranks=$((n_prefill + n_decode))
    [ "${SLURM_NTASKS:-1}" -ge "$n_ranks" ] ||
        refuse "PREFILL=$PREFILL and DECODE=$DECODE are $n_prefill + $n_decode = $n_ranks ranks, the job has" \
            "${SLURM_NTASKS:-1} tasks; submit with --ntasks=$n_ranks, or set another layout"
}
# split_hosts N: the first N nodes for prefill, the others for decode, no TP group of prefill on two nodes. Ranks are
# numbered prefill first, and mpirun fills the hosts in order, so how many each gets is all it takes. Sets `hosts`.
split_hosts() {
    local n=$1 all=${SLURM_JOB_NUM_NODES:-1} names slots i per who
    [[ $n =~ ^[1-9][0-9]*$ ]] && [ "$n" -lt "$all" ] ||
        refuse "PREFILL_NODES=$n of $all nodes: both groups need at least one; submit with more --nodes, or set it"
    [ $((n_prefill % n)) = 0 ] && [ $((n_decode % (all - n))) = 0 ] ||
        refuse "PREFILL_NODES=$n of $all nodes: $n_prefill prefill ranks on $n, $n_decode decode ranks on $((all - n)):" \
            "not the same number on each"
    [ $((n_prefill / n % prefill_tp)) = 0 ] ||
        refuse "PREFILL=$PREFILL on $n nodes: a stage of $prefill_tp ranks would lie on two nodes"
    mapfile -t names < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    [ ${#names[@]} = "$all" ] || refuse "scontrol gives ${#names[@]} names for the $all nodes $SLURM_JOB_NODELIST"
    # 4(x2),3 is 4 4 3
    slots=($(tr ',' '\n' <<<"$SLURM_TASKS_PER_NODE" | sed -E 's/\(x([0-9]+)\)/ \1/' |
        awk '{for (i = 0; i < ($2 ? $2 : 1); i++) print $1}'))
    hosts=
    for ((i = 0; i < all; i++)); do
        if [ $i -lt "$n" ]; then
            per=$((n_prefill / n)) who=PREFILL=$PREFILL
        else
            per=$((n_decode / (all - n))) who=DECODE=$DECODE
        fi
        [ "${slots[i]}" -ge $per ] ||
            refuse "$who is $per ranks on ${names[i]}, which has ${slots[i]} tasks; submit with --ntasks-per-node=$per"
        hosts+=,${names[i]}:$per
    done
    hosts=${hosts#,}
}

rows() { # FILE...: finished rows of result files, from their journals
    local f n=0
    for f in "$@"; do
        [ ! -r "$f.jsonl" ] || n=$((n + $(grep -c '^{"kind":"row".*}$' "$f.jsonl")))
    done
    echo $n
}
# run_ranks MPIRUN-OPTION...: the run, which goes on with OUT if it is there. Slurm signals this shell and nobody else
# (--signal=B:), so USR1 is handed on: nothing new is admitted, what runs is finished. After GRACE seconds it is dropped:
# on TERM mpirun ends its ranks. Sets rc, new_rows, and interrupted=1 if that is all that happened.
run_ranks() {
    local told='' timer='' launch before
    local run=(run --model "$MODEL" --prompts "$PROMPTS" --out "$OUT" --resume --prefill "$PREFILL" --decode "$DECODE"
        --device "$DEVICE")
    if [ -n "$DRAFT" ]; then run+=(--draft "$DRAFT"); else run+=(--spec none); fi
    before=$(rows "$OUT")
    say "$n_ranks ranks on $SLURM_JOB_NODELIST, $before rows are there: $PDFLASH ${run[*]} $ARGS"
    on_usr1() {
        [ -z "$told" ] || return
        told=$SECONDS
        say "USR1: finishing what runs, for at most $GRACE s"
        kill -USR1 "$launch"
        ( # who kills the timer means its sleep too
            sleep "$GRACE" &
            trap "kill $! 2>/dev/null" TERM
            wait $! && kill -TERM "$launch"
        ) >/dev/null 2>&1 &
        timer=$!
    }
    rc=75 new_rows=0 interrupted=1
    [ -z "$early" ] || return
    "$PDFLASH_DIR/tools/launch" $MPIRUN -n "$n_ranks" "$@" $BIND "$PDFLASH" "${run[@]}" $ARGS &
    launch=$!
    trap on_usr1 USR1
    while wait $launch; kill -0 $launch 2>/dev/null; do :; done # a trapped signal ends the wait only
    wait $launch
    rc=$?
    trap '' USR1
    [ -z "$timer" ] || kill $timer 2>/dev/null
    new_rows=$(($(rows "$OUT") - before)) interrupted=
    [ $rc != 75 ] || interrupted=1
    # 138: USR1 came before the program listened to it
    if [ -n "$told" ] && [ $rc != 0 ]; then
        [ $rc != 138 ] && [ $((SECONDS - told)) -lt "$GRACE" ] || interrupted=1
    fi
}
# finish_or_requeue: the end of a job after run_ranks. A start that finished no row would be followed by others like it for
# ever, so it is the last one.
finish_or_requeue() {
    local now
    now="$(rows "$OUT") rows in $OUT"
    if [ -z "$interrupted" ]; then
        [ $rc = 0 ] || now="$now; docs/TROUBLESHOOTING.md explains the code, the same sbatch again goes on"
        say "exit code $rc: $now"
        exit $rc
    fi
    if [ "$new_rows" -le 0 ]; then
        say "interrupted before a row was finished, $now: not requeued. --time too short? The same sbatch again goes on"
    else
        say "interrupted, $new_rows new rows, $now: to be requeued" # before: what is requeued is ended at once
        scontrol requeue "$job" || say "not requeued, scontrol refuses; the same sbatch again goes on"
    fi
    exit 75
}
