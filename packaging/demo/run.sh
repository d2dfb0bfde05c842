#!/usr/bin/env bash
# A TPU host in miniature, everything set up by itself: four fake chips (their PCI functions, device nodes and metric
# endpoints, and a stand-in libtpu), a real JAX job on the CPU that holds them and serves jax.profiler, and a real agent.
# Prints live status, captures two seconds, uploads the session to a folder, opens it there with XProf. Records, and makes a session of the past. Then captures this host
# and a second one together, whose agent is killed in a further capture. Ends by itself and leaves nothing behind; KEEP=1 leaves it running until Enter or Ctrl-C, and prints the addresses.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
started=$(date +%s)
# The settings of another agent must not reach this one.
for name in $(compgen -e TPUSCOPE_ || true); do [ "$name" = TPUSCOPE_PEERS ] || unset "$name"; done
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

say "set up: JAX and XProf in a venv (about 900 MB the first time), a release build (4 to 15 minutes the first time)"
tests/setup.sh demo
cargo build --release --locked -p tpuscope -p tpuscope-tests -p fake-libtpu --bin tpuscope --bin fake-tpu-host --lib
peers=${TPUSCOPE_PEERS:-target/peers}
python=$peers/xprof/bin/python
target=$(cargo metadata --no-deps --format-version 1 | "$python" -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
bin=$target/release

work=$(mktemp -d "${TMPDIR:-/tmp}/tpuscope-demo.XXXXXX")
pids=()
finish() {
  local code=$?
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  wait 2>/dev/null || true
  # What was interrupted has not failed.
  if [ "$code" != 0 ] && [ "$code" != 130 ] && [ "$code" != 143 ]; then
    for log in "$work"/*.log; do [ -s "$log" ] && { echo "-- $(basename "$log")"; tail -20 "$log"; }; done >&2
  fi
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_for WHAT COMMAND…: polls for at most 60 s.
wait_for() {
  local what=$1; shift
  for _ in $(seq 600); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
  echo "demo: $what did not come up within 60 s" >&2
  exit 1
}

free_ports() {
  "$python" - "$1" <<'PY'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in held])
PY
}

say "four fake v6e chips: PCI functions, device nodes, metric endpoints"
mkdir -p "$work"/{sys/bus/pci/devices,sys/kernel/iommu_groups,dev/vfio,state,run,shared}
nodes=()
for chip in 0 1 2 3; do
  function=$work/sys/bus/pci/devices/0000:00:0$((chip + 4)).0
  mkdir -p "$function" "$work/sys/kernel/iommu_groups/$chip"
  echo 0x1ae0 >"$function/vendor"; echo 0x006f >"$function/device"
  echo 0x120000 >"$function/class"; echo 0 >"$function/numa_node"
  ln -s "../../../../kernel/iommu_groups/$chip" "$function/iommu_group"
  : >"$work/dev/vfio/$chip"
  nodes+=("$work/dev/vfio/$chip")
done
read -r runtime host_service profiler profiler_b http grpc <<<"$(free_ports 6)"

say "a real JAX job that holds them, with jax.profiler.start_server"
TPU_RUNTIME_METRICS_PORTS=$runtime TPUSCOPE_PROFILER_PORT=$profiler VBAR_CONTROL_SERVICE_URL=127.0.0.1:$host_service \
  JAX_PLATFORMS=cpu "$python" packaging/demo/job.py "$profiler" "${nodes[@]}" \
  -- "$bin/fake-tpu-host" --chips 4 --runtime "127.0.0.1:$runtime" --host-service "127.0.0.1:$host_service" >"$work/job.log" 2>&1 &
pids+=($!)
wait_for "the JAX job" grep -q ready "$work/job.log"

say "the agent"
cat >"$work/tpuscope.toml" <<TOML
[agent]
state_dir = "$work/state"
[store]
min_free = "0B"
[api]
socket = "$work/run/agent.sock"
http = "127.0.0.1:$http"
grpc = "127.0.0.1:$grpc"
[paths]
sysfs = "$work/sys"
dev = "$work/dev"
[libtpu]
path = "$bin/libfake_libtpu.so"
[[destination]]
name = "shared"
url = "file://$work/shared"
[recorder]
window = "500ms"
max_window = "500ms"
every = "5s"
TOML
"$bin/tpuscope" agent --config "$work/tpuscope.toml" >"$work/agent.log" 2>&1 &
pids+=($!)
export TPUSCOPE_SOCKET=$work/run/agent.sock
wait_for "the agent" "$bin/tpuscope" status

say "tpuscope status"
sleep 2 # Two ticks, so that windows exist.
"$bin/tpuscope" status

say "the same for Prometheus (http://127.0.0.1:$http/metrics)"
"$python" -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).read().decode())' "http://127.0.0.1:$http/metrics" | grep -E '^tpu_(hbm_used_bytes|duty_cycle_ratio|tensorcore)' | head -8

say "tpuscope capture --duration 2s --session demo --to shared --wait-upload=30s"
echo "(a warning is expected: the chips are fake, so the trace has no device plane)"
"$bin/tpuscope" capture --duration 2s --session demo --to shared --wait-upload=30s

say "tpuscope sessions show demo"
"$bin/tpuscope" sessions show demo --top 5

say "what was uploaded to file://$work/shared, opened with XProf"
"$bin/tpuscope" uploads list
"$python" packaging/demo/tools.py "$work/shared/plugins/profile/demo" 2>"$work/xprof.log"

say "tpuscope recorder on, and the past 20 s as a session"
"$bin/tpuscope" recorder on
wait_for "a window of the recorder" sh -c "'$bin/tpuscope' recorder timeline | grep -q events"
"$bin/tpuscope" snapshot --last 20s --session past
"$bin/tpuscope" sessions show past --top 3
"$bin/tpuscope" recorder off

say "a second host: another JAX job, and another agent"
unset TPUSCOPE_SOCKET # The agents are named from here on.
JAX_PLATFORMS=cpu "$python" packaging/demo/job.py "$profiler_b" >"$work/job-b.log" 2>&1 &
pids+=($!)
cat >"$work/host-2.toml" <<TOML
[agent]
host = "host-2"
state_dir = "$work/state-b"
[store]
min_free = "0B"
[api]
socket = "$work/run/host-2"
http = "off"
grpc = "off"
[paths]
procfs = "$work/no-processes"
sysfs = "$work/no-chips"
dev = "$work/no-chips"
[[workload.endpoints]]
kind = "profiler"
address = "127.0.0.1:$profiler_b"
TOML
mkdir -p "$work"/{no-processes,no-chips,sessions}
"$bin/tpuscope" agent --config "$work/host-2.toml" >"$work/agent-b.log" 2>&1 &
agent_b=$!
pids+=("$agent_b")
ln -s agent.sock "$work/run/host-1"
wait_for "the second agent" "$bin/tpuscope" status --socket "$work/run/host-2"
wait_for "the second JAX job" grep -q ready "$work/job-b.log"
# Real hosts are reached by --via ssh, srun or kubectl; these two by their sockets.
hosts=(--hosts 'host-[1-2]' --via-command "$bin/tpuscope dial-stdio --socket $work/run/{host}" --output "$work/sessions")

say "tpuscope capture --hosts 'host-[1-2]' --duration 1s: one window on both"
"$bin/tpuscope" capture "${hosts[@]}" --duration 1s --session both

say "the same, and host-2 is killed in the window: its name and the reason, and the trace of the other host"
"$bin/tpuscope" capture "${hosts[@]}" --duration 4s --session half & capture=$!
sleep 2
{ kill -KILL "$agent_b"; wait "$agent_b"; } 2>/dev/null || true
code=0; wait "$capture" || code=$?
echo "(exit code $code)"
[ "$code" = 18 ]
export TPUSCOPE_SOCKET=$work/run/agent.sock

say "where the job's time went so far, live: tpuscope goodput --explain"
"$bin/tpuscope" goodput --explain

if [ "${KEEP:-}" = 1 ]; then
  say "running: Ctrl-C or Enter ends it"
  echo "  metrics  http://127.0.0.1:$http/metrics"
  echo "  status   TPUSCOPE_SOCKET=$TPUSCOPE_SOCKET $bin/tpuscope status"
  echo "  capture  TPUSCOPE_SOCKET=$TPUSCOPE_SOCKET $bin/tpuscope capture --duration 2s"
  echo "  profiler 127.0.0.1:$profiler (the JAX job)"
  read -r _ || sleep infinity
fi
say "done in $(($(date +%s) - started)) s"
