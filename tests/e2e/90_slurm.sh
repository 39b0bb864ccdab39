#!/bin/bash
# The batch scripts of jobs/ under a real Slurm: a private one of two nodes on this host (slurmctld, two slurmd, munged; own ports,
# key and files), set up and torn down here. A node is a slurmd with a host name and a /dev/shm of its own, so that ranks of
# two nodes share nothing. What Slurm is not needed for comes first. SLURM_KEEP=1 keeps Slurm's files.
. "$(dirname "$0")/lib.sh"
unset ${!SLURM_*} ${!SBATCH_*} ${!SRUN_*} MODEL DRAFT OUT PROMPTS ARGS BIND # this may itself run in a job

# ---- without Slurm -------------------------------------------------------------------------------------------------
for f in jobs/*.sbatch jobs/common.sh jobs/bind; do check "$f is bash" bash -n "$f"; done
# what is set at the top is what jobs/README.md tells of
for v in $(sed -n '/^# ----/,/^# -----------/s/^: "\${\([A-Z_]*\).*/\1/p' jobs/*.sbatch | sort -u); do
    check "jobs/README.md has $v" grep -q "^| .*\`$v\`" jobs/README.md
done
# refuses TEXT VARIABLE=VALUE... SCRIPT: exit code 2 and a message, before any rank starts
refuses() {
    local text=$1
    shift
    expect 2 "refused: $text" "$text" env SLURM_JOB_ID=1 SLURM_NTASKS=16 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=here OUT="$W/no.h5" \
        PROMPTS="$W/p.h5" "${@:1:$#-1}" bash "jobs/${*: -1}"
}
rm -rf "${W:?}"/* # logs are appended to
$X make "$W/p.h5" train00 train01 train02 train03 train04 train05 test00 test01
refuses "PDFLASH_DIR=/nowhere has no jobs/common.sh" PDFLASH_DIR=/nowhere pdflash.sbatch
refuses "PDFLASH=/nowhere is no program" PDFLASH=/nowhere pdflash.sbatch
refuses "PDFLASH=/bin/false does not start" PDFLASH=/bin/false pdflash.sbatch
refuses "MODEL=/nowhere has no readable config.json" MODEL=/nowhere pdflash.sbatch
refuses "DRAFT=/nowhere has no readable config.json" DRAFT=/nowhere two-nodes.sbatch
refuses "PROMPTS=/nowhere cannot be read; make it: pdflash prompts" PROMPTS=/nowhere pdflash.sbatch
refuses "OUT=/proc/no/x.h5: /proc/no is no directory" OUT=/proc/no/x.h5 pdflash.sbatch
refuses "there is no nompirun on .*SETUP='module load openmpi'" MPIRUN="nompirun --bind-to none" pdflash.sbatch
refuses "SETUP='false' failed" SETUP=false pdflash.sbatch
refuses "BIND=/nowhere is no program" BIND=/nowhere pdflash.sbatch
refuses "PREFILL=pp=8,tp=2 and DECODE=tp=8 are 16 + 8 = 24 ranks, the job has 16 tasks; submit with --ntasks=24" PREFILL=pp=8,tp=2 pdflash.sbatch
refuses "DECODE=tp=x: tp is no number" DECODE=tp=x pdflash.sbatch
refuses "not a task of an array; submit with --array=1-8" array.sbatch
refuses "task 9 of SHARDS=8 pieces" SLURM_ARRAY_JOB_ID=1 SLURM_ARRAY_TASK_ID=9 SLURM_ARRAY_TASK_COUNT=9 array.sbatch
refuses "no piece .*no.K-of-8.h5; OUT and SHARDS must be those of array.sbatch" merge.sbatch
refuses "PREFILL_NODES=1 of 1 nodes: both groups need at least one" two-nodes.sbatch
refuses "PREFILL_NODES=2 of 4 nodes: 3 prefill ranks on 2, 8 decode ranks on 2: not the same" SLURM_JOB_NUM_NODES=4 PREFILL_NODES=2 PREFILL=pp=3 two-nodes.sbatch
refuses "a stage of 4 ranks would lie on two nodes" SLURM_JOB_NUM_NODES=4 PREFILL_NODES=2 PREFILL=pp=1,tp=4 two-nodes.sbatch
expect 2 "refused: no job" "this is no Slurm job; submit it: sbatch jobs/pdflash.sbatch" bash jobs/pdflash.sbatch
check "refusals leave nothing" sh -c "! ls $W/no.* 2>/dev/null | grep ."

# USR1: handed on, or TERM after GRACE; the timer leaves no process. What stands for mpirun answers USR1 with 75 at once, or only TERM
cat >"$W/mpirun" <<'S'
#!/bin/bash
[ "$ANSWERS" != USR1 ] || trap 'exit 75' USR1
[ "$ANSWERS" = USR1 ] || trap '' USR1
trap 'exit 1' TERM
touch "$STARTED"
for _ in $(seq 100); do sleep 0.1; done
S
chmod +x "$W/mpirun"
cat >"$W/grace" <<'S'
PDFLASH_DIR=. n_ranks=2 OUT=none.h5 DRAFT='' BIND='' ARGS=''
. jobs/common.sh
run_ranks
echo "rc $rc, interrupted ${interrupted:-0}"
S
grace() { # ANSWERS GRACE WANT
    rm -f "$W/started"
    env SLURM_JOB_ID=1 SLURM_JOB_NODELIST=here MODEL=m PROMPTS=p PREFILL=pp=1 DECODE=tp=1 DEVICE=cpu PDFLASH=pdflash ANSWERS="$1" GRACE="$2" \
        STARTED="$W/started" MPIRUN="$W/mpirun" bash "$W/grace" >"$W/grace.log" 2>&1 &
    local job=$! left
    for _ in $(seq 100); do [ -e "$W/started" ] && break; sleep 0.05; done
    kill -USR1 $job
    wait $job
    sleep 0.2
    left=
    [ "$1" != USR1 ] || left=$(grep -lsxaz "[${2:0:1}]${2:1}" /proc/[0-9]*/cmdline) # else it has ended by itself
    if grep -q "^rc $3, interrupted 1" "$W/grace.log" && [ -z "$left" ]; then
        pass "USR1, mpirun answers $1: rc $3, no timer left"
    else
        fail "USR1, mpirun answers $1: expected rc $3; left: $left"
        cat "$W/grace.log"
    fi
}
grace USR1 86371 75
grace TERM 1 1

# jobs/bind on invented hosts: two nodes, of which the processes may use processors 0 and 1
mkdir -p "$W/sys/devices/system/node/node0" "$W/sys/devices/system/node/node1" "$W/sys/bus/pci/devices/0000:1b:00.0" "$W/bin"
echo 0-1 >"$W/sys/devices/system/node/online"
echo 0,64-70 >"$W/sys/devices/system/node/node0/cpulist"
echo 1,71-99 >"$W/sys/devices/system/node/node1/cpulist"
echo 1 >"$W/sys/bus/pci/devices/0000:1b:00.0/numa_node"
cat >"$W/bin/nvidia-smi" <<'S'
#!/bin/bash
case "$*" in *--query-gpu=index*) printf '0\n1\n' ;; *--id=1 | *--id=GPU-b) echo 00000000:1B:00.0 ;; *) exit 6 ;; esac
S
chmod +x "$W/bin/nvidia-smi"
binds() { # WANT LOCAL-RANK LOCAL-SIZE VARIABLE=VALUE... -- ARGUMENT...
    local want=$1 rank=$2 size=$3 vars=() got
    shift 3
    while [ "$1" != -- ]; do vars+=("$1"); shift; done
    shift
    got=$(env BIND_SYS="$W/sys" PATH="$W/bin:$PATH" OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_LOCAL_RANK="$rank" OMPI_COMM_WORLD_LOCAL_SIZE="$size" \
        "${vars[@]}" jobs/bind sh -c 'sed -n "s/^Cpus_allowed_list:.//p" /proc/self/status' sh "$@" 2>"$W/bind.log")
    if [ "$got" = "$want" ] && grep -q "^\[bind\] rank 7 on " "$W/bind.log"; then
        pass "local rank $rank of $size ${vars[*]} $*: processors $got"
    else
        fail "local rank $rank of $size ${vars[*]} $*: processors '$got', expected $want: $(cat "$W/bind.log")"
    fi
}
mine=$(sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status)
case $mine in
0-*)
    binds 0 0 2 --
    binds 1 1 2 --
    binds 0 3 8 --
    binds 1 4 8 --
    binds 1 1 8 -- --device cuda                                          # its GPU's node, not its share
    binds 1 3 8 -- --device cuda                                          # local rank modulo 2 GPUs
    binds 0 1 8 -- --device cpu
    binds 1 0 8 CUDA_VISIBLE_DEVICES=GPU-b -- --device cuda
    binds 0 0 8 CUDA_VISIBLE_DEVICES=5 -- --device cuda                   # nvidia-smi does not know it: its share
    echo 5 >"$W/sys/bus/pci/devices/0000:1b:00.0/numa_node"
    binds 0 1 8 -- --device cuda                                          # a node without processors of this job: its share
    echo -1 >"$W/sys/bus/pci/devices/0000:1b:00.0/numa_node"
    binds 1 7 8 -- --device cuda                                          # a host that tells no node
    echo 71-99 >"$W/sys/devices/system/node/node1/cpulist"
    binds "$mine" 1 2 --                                                  # one node left: nothing to choose
    ;;
*) echo "skipped: jobs/bind on invented hosts: processors 0 and 1 are not both here ($mine)" ;;
esac
expect 75 "bind passes the exit code on" "not pinned" env BIND_SYS=/nowhere jobs/bind sh -c 'exit 75'
expect 1 "bind without a command" "usage: jobs/bind" jobs/bind

# ---- a private Slurm -----------------------------------------------------------------------------------------------
skip() {
    echo "skipped: everything under Slurm: $*"
    finish
}
PATH=$PATH:/usr/sbin:/sbin
packages="slurm-client slurmctld slurmd slurm-wlm-basic-plugins munge"
[ "$(id -u)" = 0 ] || skip "not root, so no private Slurm can be set up"
if [ "$(command -v slurmctld slurmd munged sbatch | wc -l)" != 4 ]; then
    # its packages start services of their own: nobody who only wants to run the tests has asked for those
    [ "${SLURM:-0}" = 1 ] || skip "not installed; SLURM=1 installs it first: tools/bootstrap $packages"
    timeout 300 tools/bootstrap $packages >"$W/install.log" 2>&1 || skip "not installed, and cannot be: $(tail -1 "$W/install.log")"
fi
unshare -um true 2>/dev/null || skip "no name spaces for the nodes here (unshare -um): a container without CAP_SYS_ADMIN?"
S=$(mktemp -d /tmp/pdflash-slurm.XXXXXX) daemons=()
chmod 755 "$S"
tear_down() {
    if [ ${#daemons[@]} -gt 0 ]; then
        scancel --state=RUNNING,PENDING -u root >/dev/null 2>&1
        for _ in $(seq 50); do
            [ -n "$(squeue -h 2>/dev/null)" ] || break
            sleep 0.2
        done
        kill "${daemons[@]}" 2>/dev/null
        wait "${daemons[@]}" 2>/dev/null
        # what is left of a job that would not end: all that was started under this Slurm, and nothing else, has its SLURM_CONF
        local left
        left=$(grep -lsz "^SLURM_CONF=$S/slurm.conf" /proc/[0-9]*/environ | cut -d/ -f3 | grep -vx $$)
        [ -z "$left" ] || kill -9 $left 2>/dev/null
    fi
    [ "${SLURM_KEEP:-0}" = 1 ] || rm -rf "$S"
}
trap tear_down EXIT
base=$((20000 + $$ % 5000 * 4))
mkdir "$S/munge" "$S/state" "$S/n1" "$S/n2"
head -c 128 /dev/urandom >"$S/munge/key"
chmod 400 "$S/munge/key"
# config_overrides: as many processors as the ranks want
cat >"$S/slurm.conf" <<C
ClusterName=pdflash
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$base
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$S/munge/socket
StateSaveLocation=$S/state
SlurmdSpoolDir=$S/%n
SlurmctldPidFile=$S/slurmctld.pid
SlurmdPidFile=$S/slurmd.%n.pid
SlurmctldLogFile=$S/slurmctld.log
SlurmdLogFile=$S/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=bf_interval=1,batch_sched_delay=0
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=[$((base + 1))-$((base + 2))] CPUs=32 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
C
export SLURM_CONF=$S/slurm.conf
daemon() { # NAME COMMAND...
    local name=$1
    shift
    "$@" >"$S/$name.out" 2>&1 </dev/null &
    daemons+=($!)
}
daemon munged munged -F -f --socket="$S/munge/socket" --key-file="$S/munge/key" --pid-file="$S/munge/pid" \
    --log-file="$S/munge/log" --seed-file="$S/munge/seed"
daemon slurmctld slurmctld -D -c
for n in n1 n2; do
    daemon slurmd.$n unshare -um sh -c "hostname $n && mount -t tmpfs -o size=2g tmpfs /dev/shm && exec slurmd -D -N $n"
done
for _ in $(seq 300); do
    [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | wc -l)" = 2 ] && break
    sleep 0.1
done
if [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | wc -l)" != 2 ]; then
    fail "two nodes are up"
    tail -n 5 "$S"/*.out "$S"/*.log
    finish
fi
pass "two nodes are up: $(slurmctld -V)"

# ---- jobs ----------------------------------------------------------------------------------------------------------
# The program, with faults in the first start of a job only: FIRST is what to inject there (into task FIRST_TASK of an array).
cat >"$W/pdflash" <<C
#!/bin/bash
if [ "\$1" = run ] && [ -n "\${FIRST:-}" ] && [ -z "\${SLURM_RESTART_COUNT:-}" ] &&
    [ "\${FIRST_TASK:-}" = "\${SLURM_ARRAY_TASK_ID:-}" ]; then set -- "\$@" --inject "\$FIRST"; fi
exec "$PDFLASH" "\$@"
C
chmod +x "$W/pdflash"
# pt2pt must be allowed between nodes without a fast network; on the ranks and cores of a test see tools/mpi-env
export PDFLASH=$W/pdflash MPIRUN="$MPIRUN --mca osc ^ucx" PROMPTS=$W/p.h5
pp2="PREFILL=pp=2 DECODE=tp=2"
export ARGS="--max-new 48 --concurrency 2 --slots 2"
export PREFILL=pp=1 DECODE=tp=1 # ranks that wait for a signal take time from others
submit() { # NAME [VARIABLE=VALUE...] sbatch-OPTION... SCRIPT: id of the job; its log is NAME.log, its result NAME.h5
    local name=$1 vars=()
    shift
    while [[ $1 = [A-Z]*=* ]]; do vars+=("$1"); shift; done
    env OUT="$W/$name.h5" "${vars[@]}" sbatch --parsable --output="$W/$name.log" "$@"
}
field() { scontrol -o show job "$1" 2>/dev/null | tr ' ' '\n' | sed -n "s/^$2=//p" | head -1; }
rows_of() { grep -c '"kind":"row"' "$1.jsonl" 2>/dev/null; }
# ends ID STATE NAME: wait for the end of a job. Slurm lets a requeued job wait for two minutes, since a node refuses a start
# whose credential is not of a later second than the end of the last start; here it waits for as long as that takes
ends() {
    local state t0=$SECONDS back=
    while [ $((SECONDS - t0)) -lt 240 ]; do
        state=$(field "$1" JobState)
        case $state in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | BOOT_FAIL) break ;; esac
        if [ "$state" = PENDING ] && [ "$(field "$1" Reason)" = BeginTime ]; then
            back=${back:-$SECONDS}
            [ $((SECONDS - back)) -lt 3 ] || scontrol update job="$1" StartTime=now TimeLimit=10
        fi
        sleep 0.3
    done
    if [ "$state" = "$2" ]; then
        pass "$3: $state, exit code $(field "$1" ExitCode), starts $(($(field "$1" Restarts) + 1))"
    else
        fail "$3: $state, expected $2"
        tail -n 15 "$W"/*.log | cut -c1-200 | tail -n 60
        scontrol -o show job "$1" | cut -c1-400
        grep -hE "[^0-9]${1%_*}([^0-9]|$)|revoked" "$S"/slurm*.log | tail -n 20 | cut -c1-200
    fi
}
until_rows() { # NAME N ID: until so many rows are there
    for _ in $(seq 1200); do
        [ "$(rows_of "$W/$1.h5")" -ge "$2" ] 2>/dev/null && return
        case $(field "$3" JobState) in PENDING | RUNNING | CONFIGURING) ;; *) break ;; esac
        sleep 0.1
    done
    fail "$1: no $2 rows"
    tail -n 15 "$W/$1.log"
}
says() { check "$1: the log has '$2'" grep -qe "$2" "$W/$1.log"; }
starts() { check "$1: the log has $2 starts" test "$(grep -c 'rows are there' "$W/$1.log")" = "$2"; }
same() { check "$1: the tokens of a run that nobody stopped" $X tokens "$W/whole.h5" "$W/$1.h5"; }
attempts() { check "$1: $2 attempts in the file" sh -c "'$PDFLASH' show --json '$W/$1.h5' | grep -q '\"attempt\": $2,'"; }

for f in jobs/*.sbatch; do check "sbatch --test-only $f" sbatch --test-only "$f"; done
limit=$(submit limit FIRST=hold:3 --ntasks=2 --time=60 --signal=B:USR1@65 jobs/pdflash.sbatch)
whole=$(submit whole $pp2 --ntasks=4 jobs/pdflash.sbatch)
smoke=$(submit smoke --nodes=2 jobs/smoke.sbatch)
# the limit comes once three rows are there, however slow this machine is. Slurm looks at limits every 30 seconds, and signals
# those early that would be late at its next look: now it signals at its next, which is why this job comes first and ends last
until_rows limit 3 "$limit"
t=$(field "$limit" RunTime)
scontrol update job="$limit" TimeLimit=$((10#${t:3:2} + (10#${t:6:2} + 35) / 60 + 1))
while [ "$(field "$limit" Restarts)" = 0 ]; do # the second start, which Slurm may begin on its own, is not to meet it again
    sleep 0.3
done && scontrol update job="$limit" TimeLimit=10 &
ends "$whole" COMPLETED "one job for both groups"
says whole "exit code 0: 8 rows in "
ends "$smoke" COMPLETED "smoke on two nodes"
says smoke "smoke: ok"

two=$(submit two $pp2 --ntasks-per-node=2 jobs/two-nodes.sbatch)
other=$(submit other $pp2 MPIRUN="mpirun --bind-to none" --ntasks-per-node=2 jobs/two-nodes.sbatch)
few=$(submit few $pp2 DECODE=tp=4 --ntasks-per-node=3 jobs/two-nodes.sbatch)
ends "$two" COMPLETED "two nodes"
check "prefill is on one node, decode on the other" sh -c \
    "test \"\$(sed -n 's/^\[\([a-z]*\)\.[0-9]*\] info: build.* host \(n[12]\) .*/\1 \2/p' '$W/two.log' | sort | uniq -c | xargs)\" = '2 decode n2 2 prefill n1'"
same two
while [ "$(field "$other" JobState)" = RUNNING ]; do sleep 0.3; done
if grep -q 'exit code 0: 8 rows' "$W/other.log"; then
    pass "two nodes with mpirun as it is: this MPI has a one-sided component between them"
else
    ends "$other" FAILED "two nodes with mpirun as it is"
    says other "no one-sided component for the network between the hosts; allow another (mpirun --mca osc ^ucx"
    says other "exit code 2: 0 rows"
fi
ends "$few" FAILED "too few tasks a node"
says few "refused: DECODE=tp=4 is 4 ranks on n2, which has 3 tasks; submit with --ntasks-per-node=4"

# an array: the last task is stopped and requeued, and no other; afterok waits for it
array=$(submit array SHARDS=3 FIRST=hold:6 FIRST_TASK=3 --array=1-3 --ntasks=2 jobs/array.sbatch)
merge=$(submit merged SHARDS=3 OUT="$W/array.h5" --dependency=afterok:"$array" jobs/merge.sbatch)
until_rows array.3-of-3 1 "${array}_3"
for k in 1 2; do ends "${array}_$k" COMPLETED "piece $k"; done
check "the merge waits" test "$(field "$merge" JobState)/$(field "$merge" Reason)" = PENDING/Dependency
# plain JOB of this task means the whole array to scontrol; the others must not start again
check "the last task has the number of the array" test "$(field "${array}_3" JobId)" = "$array"
scancel --batch --signal=USR1 "${array}_3"
ends "${array}_3" COMPLETED "piece 3"
check "it alone was requeued" test "$(for k in 1 2 3; do field "${array}_$k" Restarts; done | xargs)" = "0 0 1"
ends "$merge" COMPLETED "merge after the array"
same array
says merged "exit code 0: 8 rows in "
# without a piece the merge says so; that piece alone, and again
rm "$W"/array.2-of-3.h5*
mv "$W/array.h5" "$W/old.h5" && mv "$W/array.h5.jsonl" "$W/old.h5.jsonl"
merge=$(submit lacks SHARDS=3 OUT="$W/array.h5" --dependency=afterany:"$array" jobs/merge.sbatch)
again=$(submit piece SHARDS=3 OUT="$W/array.h5" --array=2 --ntasks=2 --dependency=afterany:"$merge" jobs/array.sbatch)
last=$(submit last SHARDS=3 OUT="$W/array.h5" --dependency=afterok:"$again" jobs/merge.sbatch)
ends "$merge" FAILED "merge without a piece"
check "its exit code is 4" test "$(field "$merge" ExitCode)" = 4:0
says lacks "pieces that left no file: 2"
ends "${again}_2" COMPLETED "that piece alone"
says piece "note: this array has 1 of the 3 pieces"
ends "$last" COMPLETED "merge again"
same array
rm "$W"/array.3-of-3.h5*
merge=$(submit fewer SHARDS=3 OUT="$W/array.h5" jobs/merge.sbatch)
ends "$merge" FAILED "a merge that would lose rows"
says fewer "refused: .* has 8 rows, the pieces have "
same array

# scancel in the midst: a file that reads, and the same sbatch goes on
cancelled=$(submit cancelled FIRST=hold:3 --ntasks=2 jobs/pdflash.sbatch)
# a requeue by somebody else, as after a failed node: no signal, no word
requeued=$(submit requeued FIRST=hold:3 --ntasks=2 jobs/pdflash.sbatch)
until_rows cancelled 3 "$cancelled"
scancel "$cancelled"
ends "$cancelled" CANCELLED "scancel"
check "cancelled: 3 rows can be read" test "$($X rows "$W/cancelled.h5" | wc -l)" = 3
cancelled=$(submit cancelled --ntasks=2 jobs/pdflash.sbatch)
until_rows requeued 3 "$requeued"
scontrol requeue "$requeued"
# what does not finish within GRACE is dropped: a stage that takes 3 s for each prompt
slow=$(submit slow FIRST=delay:0@3000 GRACE=1 --ntasks=2 jobs/pdflash.sbatch)
# stopped before a row was finished: no second start
none=$(submit none FIRST=delay:0@250000 GRACE=1 --ntasks=2 jobs/pdflash.sbatch)
until_rows slow 1 "$slow"
scancel --batch --signal=USR1 "$slow"
for _ in $(seq 300); do grep -q ' ready: ' "$W/none.log" 2>/dev/null && break; sleep 0.1; done
scancel --batch --signal=USR1 "$none"
ends "$none" FAILED "stopped before the first row"
check "none: exit code 75" test "$(field "$none" ExitCode)" = 75:0
says none "interrupted before a row was finished, 0 rows in .*: not requeued"
ends "$cancelled" COMPLETED "sbatch again after scancel"
same cancelled
starts cancelled 2
ends "$requeued" COMPLETED "scontrol requeue"
same requeued
attempts requeued 2
ends "$slow" COMPLETED "a start that is too slow to finish"
says slow "USR1: finishing what runs, for at most 1 s"
check "slow: dropped, not finished" sh -c "! grep -q ' rows, not complete' '$W/slow.log'"
same slow
starts slow 2

ends "$limit" COMPLETED "the time limit"
says limit "USR1: finishing what runs, for at most 90 s"
says limit "3 of 8 rows, not complete" # finished, not dropped
says limit "interrupted, 3 new rows, 3 rows in .*: to be requeued"
says limit "start 2\] 2 ranks on n[12], 3 rows are there"
starts limit 2
attempts limit 2
same limit
check "limit: complete" sh -c "'$PDFLASH' show --json '$W/limit.h5' | grep -q '\"complete\": true'"
finish
