#!/usr/bin/env bash
# A private Slurm on one machine: munge, slurmdbd with MariaDB, slurmctld and a slurmd for each node.
usage='usage: tools/slurm-local.sh up DIR | down DIR

up    starts a Slurm of four nodes of one core each, all on this machine, from the packages of Debian, which it installs.
      Everything lies in DIR and listens on 127.0.0.1. Use it with:  source DIR/environment
      MUSTER_SLURM_NODES=N and MUSTER_SLURM_CPUS=N choose other numbers of nodes, and of cores that each is said to have.
      MUSTER_SLURM_HALF_LIFE=TIME: how fast past use is forgotten (PriorityDecayHalfLife).
down  ends it, with its jobs, and removes DIR. Also what an "up" that was killed has left.
Slurm asks for root: each job runs as its own user.'
case ${1:-} in
  --help) printf '%s\n' "$usage" && exit 0 ;;
  up | down) [ $# = 2 ] || { printf '%s\n' "$usage" >&2 && exit 2; } ;;
  *) printf '%s\n' "$usage" >&2 && exit 2 ;;
esac
what=$1
mkdir -p -- "$2" && folder=$(cd -- "$2" && pwd)
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
source tools/daemons.sh  # setup.sh has gone to the root of the repository
[ "$(id -u)" = 0 ] || die "Slurm cannot be started by $(id -un) (its daemons run jobs as their users); start it as root"
[ ${#folder} -le 60 ] || die "the name $folder is too long for sockets in it (${#folder} characters); use one of at most 60"

# In this order they end: each needs those behind it.
daemons() { printf '%s\n' "$folder"/node*.pid "$folder"/{slurmctld,slurmdbd,mariadbd,munged}.pid; }

down() {
  local file pid step
  [ -e "$folder/of-slurm-local" ] || { [ -z "$(ls -A "$folder")" ] && rmdir "$folder" && return; } ||
    die "$folder was not made by this script (of-slurm-local is not in it); name the folder that \"up\" was given"
  [ ! -f "$folder/environment" ] || (source "$folder/environment" && timeout 10 scancel --full -s KILL -u root >/dev/null 2>&1) || true
  for file in $(daemons); do
    pid=$(living "$file") || continue
    kill "$pid"
    for ((step = 0; step < 100; ++step)); do kill -0 "$pid" 2>/dev/null && sleep 0.1 || break; done
    ! kill -KILL "$pid" 2>/dev/null || say "$(basename "$file" .pid) had to be killed"
  done
  pkill -KILL -f "slurmstepd.*$folder" || true  # of jobs whose node had died
  rm -rf -- "$folder"
}

if [ "$what" = down ]; then
  down
  exit 0
fi
[ -z "$(ls -A "$folder")" ] || die "$folder is not empty (it may have a Slurm that runs); tools/slurm-local.sh down $folder"
install_missing munge slurmctld slurmd slurmdbd slurm-client mariadb-server-core mariadb-client-core python3
chmod 755 "$folder"
touch "$folder/of-slurm-local"  # what "down" removes has this in it
failed() {
  tail -n 5 "$folder"/*.log >&2
  down
  die "Slurm does not start (the end of its logs is above); mend that, and run this again"
}
set -E
trap failed ERR
nodes=${MUSTER_SLURM_NODES:-4} cpus=${MUSTER_SLURM_CPUS:-1} host=$(hostname -s)
read -r sql dbd ctld first <<<"$(python3 - "$nodes" <<'END'
import socket, sys
def free(count):
    """Neighbouring ports that nobody listens at."""
    for first in range(21000, 31000, 97):
        try:
            held = [socket.create_server(("127.0.0.1", first + k)) for k in range(count)]
        except OSError:
            continue
        return first, held
    sys.exit("no ports are free")
first, held = free(3 + int(sys.argv[1]))
print(first, first + 1, first + 2, first + 3)
END
)"
password=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
memory=$(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) / 1024 / nodes))

install -d -m 700 "$folder"/{key,state,spool} && (umask 077 && head -c 1024 /dev/urandom >"$folder/key/munge")
start munged munged --foreground --force --socket="$folder/munge.socket" --key-file="$folder/key/munge" \
  --pid-file="$folder/key/pid" --log-file="$folder/munge.log" --seed-file="$folder/key/seed"
await munged munge --no-input --socket="$folder/munge.socket"

mariadb-install-db --no-defaults --user=root --datadir="$folder/sql" --skip-test-db --auth-root-authentication-method=normal \
  >"$folder/mariadbd.log" 2>&1
start mariadbd mariadbd --no-defaults --user=root --datadir="$folder/sql" --socket="$folder/sql.socket" --port="$sql" \
  --bind-address=127.0.0.1 --pid-file="$folder/sql/pid" --innodb-buffer-pool-size=64M
await mariadbd mariadb --no-defaults --socket="$folder/sql.socket" -e "SELECT 1"
mariadb --no-defaults --socket="$folder/sql.socket" -e "CREATE DATABASE slurm; CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '$password'; GRANT ALL ON slurm.* TO slurm@'127.0.0.1'"

(umask 077 && cat >"$folder/slurmdbd.conf") <<END
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=$dbd
SlurmUser=root
PidFile=$folder/key/slurmdbd
LogFile=$folder/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$sql
StorageUser=slurm
StoragePass=$password
StorageLoc=slurm
END
cat >"$folder/slurm.conf" <<END
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$ctld
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/key/slurmctld
SlurmdPidFile=$folder/key/%n
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=60
KillWait=5
MinJobAge=300
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=1,bf_continue,batch_sched_delay=0,preempt_youngest_first
PriorityType=priority/multifactor
PriorityDecayHalfLife=${MUSTER_SLURM_HALF_LIFE:-5}
PriorityCalcPeriod=1
PriorityWeightFairshare=100000
PriorityWeightQOS=1000000
PriorityWeightAge=0
PreemptType=preempt/qos
PreemptMode=REQUEUE
JobRequeue=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$dbd
AccountingStoragePass=$folder/munge.socket
AccountingStorageEnforce=associations,limits,qos
JobAcctGatherType=jobacct_gather/linux
NodeName=node[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=$first-$((first + nodes - 1)) CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
echo "export SLURM_CONF=$folder/slurm.conf" >"$folder/environment"
source "$folder/environment"
start slurmdbd env SLURM_CONF="$folder/slurmdbd.conf" slurmdbd -D
await slurmdbd sacctmgr -n show cluster
sacctmgr -i add cluster local >/dev/null 2>&1 || true
sacctmgr -i add account all description=all organization=all >/dev/null
sacctmgr -i add user root account=all >/dev/null
sacctmgr -i modify user root set defaultaccount=all >/dev/null
start slurmctld slurmctld -D -f "$folder/slurm.conf"
# On one machine the nodes' PMIx servers would meet in one folder: each node sees its own there.
echo "PMIxCliTmpDirBase=$folder/pmix" >"$folder/mpi.conf"
for ((node = 1; node <= nodes; ++node)); do
  mkdir -p "$folder/pmix" "$folder/spool/pmix$node"
  start "node$node" unshare --mount sh -c "mount --bind '$folder/spool/pmix$node' '$folder/pmix' && exec slurmd -D -N node$node -f '$folder/slurm.conf'"
done
await slurmctld bash -c "[ \"\$(sinfo -h -t idle -o %D)\" = $nodes ]"
say "a Slurm of $nodes nodes: source $folder/environment; tools/slurm-local.sh down $folder ends it"
