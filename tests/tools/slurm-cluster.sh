#!/usr/bin/env bash
# slurm-cluster.sh DIR NODES [SOURCE=TARGET]...: a real Slurm on the loopback, the first process of pid, mount, network and UTS
# namespaces of its own: munged, slurmctld and NODES slurmd (n0, n1, ...). Each node has a mount namespace in which /run/tpuscope
# is DIR/node/NAME. Each SOURCE is shown at TARGET, which is below DIR or /opt. DIR/passwd and DIR/group name the users. DIR/more.conf
# has further lines of slurm.conf, if it is there.
# Writes `up` when all nodes are idle. Ends when standard input does, and all that it started ends with it.
# The settings were measured with Slurm 22.05 on Debian 12, without systemd, cgroups and slurmdbd.
set -euo pipefail
D=$1 N=$2
shift 2
ip link set lo up
# Slurm resolves no address, not even a number, on a machine that has the loopback alone.
ip link add network type bridge
ip address add 10.79.0.1/24 dev network
hostname slurm
mkdir -p "$D"/{state,log,munge,socket}
chmod 700 "$D/munge"
# Of these mount namespaces alone.
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /opt
mkdir /run/tpuscope
mount --bind "$D/passwd" /etc/passwd
mount --bind "$D/group" /etc/group
echo '127.0.0.1 localhost slurm' >"$D/hosts"
mount --bind "$D/hosts" /etc/hosts
for shown; do
  source=${shown%%=*} target=${shown#*=}
  if [ -d "$source" ]; then mkdir -p "$target"; else mkdir -p "${target%/*}" && touch "$target"; fi
  mount --bind "$source" "$target"
done

head -c 1024 /dev/urandom >"$D/munge/key"
chmod 400 "$D/munge/key"
munged -F --force --key-file="$D/munge/key" --socket="$D/socket/munge" --pid-file="$D/munge/pid" \
  --seed-file="$D/munge/seed" --log-file="$D/munge/log" &
for _ in $(seq 200); do [ -S "$D/socket/munge" ] && break; sleep 0.05; done

cat >"$D/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=slurm(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/socket/munge
CredType=cred/munge
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/state/slurmctld.pid
SlurmdPidFile=$D/state/slurmd.%n.pid
SlurmctldLogFile=$D/log/slurmctld
SlurmdLogFile=$D/log/slurmd.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ReturnToService=2
SlurmdTimeout=6
KillWait=2
TCPTimeout=2
MessageTimeout=5
CONF
for node in $(seq 0 $((N - 1))); do
  echo "NodeName=n$node NodeHostname=slurm NodeAddr=127.0.0.1 Port=$((7000 + node)) CPUs=4 RealMemory=1000" >>"$D/slurm.conf"
done
echo "PartitionName=main Nodes=n[0-$((N - 1))] Default=YES MaxTime=INFINITE State=UP" >>"$D/slurm.conf"
[ ! -e "$D/more.conf" ] || cat "$D/more.conf" >>"$D/slurm.conf"
export SLURM_CONF=$D/slurm.conf
slurmctld -D -c -f "$SLURM_CONF" &
echo $! >"$D/controller"
for node in $(seq 0 $((N - 1))); do
  mkdir -p "$D/spool/n$node" "$D/node/n$node"
  # shellcheck disable=SC2016
  unshare --mount --propagation private sh -c 'echo $$ >"$3" && mount --bind "$1" /run/tpuscope && exec slurmd -D -N "$2" -f "$SLURM_CONF"' \
    sh "$D/node/n$node" "n$node" "$D/slurmd.n$node" &
done
for _ in $(seq 300); do
  if [ "$(sinfo -h -N -o %t 2>/dev/null | grep -c '^idle$')" = "$N" ]; then
    echo up
    # Not in place of this shell: it takes in the processes that have lost their parents.
    cat >/dev/null
    exit
  fi
  sleep 0.1
done
echo "slurm-cluster: the nodes are not idle" >&2
sinfo -N -l >&2 || true
exit 1
