#!/usr/bin/env bash
# Installs what the tests need and this machine lacks: Debian packages (as root, with apt-get), Python peers and the release
# before this one in target/peers (TPUSCOPE_PEERS names another folder), cargo tools in target/tools. Its first line
# (`setup: …`) says what it will install and as whom. It installs nothing that is already there.
#
#   tests/setup.sh         for `make test` and `make bench`
#   tests/setup.sh demo    for `make demo`
#   tests/setup.sh fuzz    for `make fuzz`
set -euo pipefail
cd "$(dirname "$0")/.."
peers=${TPUSCOPE_PEERS:-target/peers}

# Name=package of each program that a Debian package provides.
programs="make=make git=git nm=binutils python3=python3 promtool=prometheus prometheus=prometheus
  prometheus-node-exporter=prometheus-node-exporter victoria-metrics=victoria-metrics ip=iproute2
  mmdebstrap=mmdebstrap systemd-nspawn=systemd-container
  chromium=chromium dbus-daemon=dbus systemd-analyze=systemd buildah=buildah podman=podman crun=crun
  /usr/sbin/sshd=openssh-server ssh=openssh-client
  /usr/sbin/slurmctld=slurm-wlm /usr/sbin/slurmd=slurm-wlm srun=slurm-wlm /usr/sbin/munged=munge"
venvs="xprof goodput tpu-info rotel tensorboard mcp"
# One libtpu of each SDK table that has metrics: 17, 15 and 12 functions.
libtpus="0.0.52 0.0.30 0.0.21"
# Recorders that take a sink as their fourth argument: before and after it was renamed, the last that writes at once, and
# the first that writes in the background. The newest is in the environment `goodput`.
goodputs="0.0.4 0.0.6 0.0.16 0.2.0"
# jaxlib that hangs when it is profiled, and one whose continuous profiling cannot be stopped.
jaxes="0.7.2 0.9.2"
# Google's command that collects a profile of many hosts.
mldiagnostics=1.0.10
rootfs=rootfs
previous=previous
tools="cargo-deny=0.20.2"
case ${1:-} in
  '') ;;
  demo) programs='' venvs=xprof libtpus='' goodputs='' jaxes='' mldiagnostics='' rootfs='' previous='' tools='' ;;
  fuzz) programs='' venvs='' libtpus='' goodputs='' jaxes='' mldiagnostics='' rootfs='' previous='' tools="cargo-fuzz=0.13.2" ;;
  *) echo "usage: $0 [demo | fuzz]" >&2; exit 2 ;;
esac

say() { printf 'setup: %s\n' "$*"; }

# Each of these prints what is missing.
missing_packages() {
  local pair
  for pair in $programs; do command -v "${pair%%=*}" >/dev/null || echo "${pair#*=}"; done
  # The python3 of Debian comes without venv.
  [ -z "$venvs" ] || python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
}
missing_venvs() {
  local name
  for name in $venvs; do
    cmp -s "tests/requirements-$name.txt" "$peers/$name/requirements.txt" || echo "$name"
  done
}
missing_libtpus() {
  local version
  for version in $libtpus; do [ -f "$peers/libtpu/$version/libtpu/libtpu.so" ] || echo "$version"; done
}
missing_goodputs() {
  local version
  for version in $goodputs; do
    [ -d "$peers/goodput-versions/$version/ml_goodput_measurement" ] || echo "$version"
  done
}
missing_jaxes() {
  local version
  for version in $jaxes; do [ -f "$peers/jax/$version/complete" ] || echo "$version"; done
}
missing_mldiagnostics() {
  [ -z "$mldiagnostics" ] || [ -d "$peers/mldiagnostics/google_cloud_mldiagnostics-$mldiagnostics.dist-info" ] ||
    echo "$mldiagnostics"
}
missing_tools() {
  local pair
  for pair in $tools; do
    [ "$(cat "target/tools/${pair%%=*}.version" 2>/dev/null)" = "${pair#*=}" ] &&
      [ -x "target/tools/bin/${pair%%=*}" ] || echo "$pair"
  done
}

# debian PACKAGE …
debian() {
  # Packages that contain services must not start them here.
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d.tpuscope && chmod +x /usr/sbin/policy-rc.d.tpuscope
  [ -e /usr/sbin/policy-rc.d ] || { mv /usr/sbin/policy-rc.d.tpuscope /usr/sbin/policy-rc.d; made_policy=1; }
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >target/tools/apt.log 2>&1 ||
    { tail -20 target/tools/apt.log >&2; exit 1; }
  [ "${made_policy:-}" = 1 ] && rm -f /usr/sbin/policy-rc.d
  rm -f /usr/sbin/policy-rc.d.tpuscope
}

# venv NAME: a venv with tests/requirements-NAME.txt.
venv() {
  local dir=$peers/$1 want=tests/requirements-$1.txt
  rm -rf "$dir"
  python3 -m venv "$dir"
  "$dir/bin/pip" install -q --disable-pip-version-check -r "$want"
  cp "$want" "$dir/requirements.txt"
}

# libtpu VERSION: the wheel of that version, without its dependencies, unpacked in its own folder. It belongs to Google
# and has its own licence: tests load it, and nothing of it is kept in this repository.
libtpu() {
  local dir=$peers/libtpu/$1
  rm -rf "$dir" "$dir.wheel" && mkdir -p "$dir.wheel"
  "$peers/goodput/bin/pip" download -q --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
    --python-version 3.12 --platform manylinux_2_31_x86_64 --dest "$dir.wheel" "libtpu==$1"
  python3 -m zipfile -e "$dir.wheel"/libtpu-*.whl "$dir.unpacked"
  rm -r "$dir.wheel" && mv "$dir.unpacked" "$dir"
}

# goodput VERSION: the wheel of that version in its own folder, for the Python of the environment `goodput`, which has what it
# depends on.
goodput() {
  local dir=$peers/goodput-versions/$1
  rm -rf "$dir" "$dir.new"
  "$peers/goodput/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-deps --target "$dir.new" \
    "ml-goodput-measurement==$1"
  mv "$dir.new" "$dir"
}

# jax VERSION: JAX and jaxlib of that version in their own folder, for the Python of xprof, which has their dependencies.
jax() {
  local dir=$peers/jax/$1
  rm -rf "$dir"
  "$peers/xprof/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
    --target "$dir" "jax==$1" "jaxlib==$1"
  touch "$dir/complete"
}

# mldiagnostics VERSION: the wheel of that version in a folder of its own, for the Python of xprof.
mldiagnostics() {
  local dir=$peers/mldiagnostics
  rm -rf "$dir" "$dir.new"
  "$peers/xprof/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-deps --target "$dir.new" \
    "google-cloud-mldiagnostics==$1"
  mv "$dir.new" "$dir"
}

# tool CRATE=VERSION
tool() {
  cargo install -q --debug --locked --root target/tools --version "${1#*=}" "${1%%=*}"
  echo "${1#*=}" >"target/tools/${1%%=*}.version"
}

# The newest JAX needs it; a Python that Debian installs here is newer.
if [ -n "$venvs" ] && command -v python3 >/dev/null && ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  say "$(python3 -V) is too old: put a Python 3.11 or later first on PATH as python3" >&2
  exit 1
fi
packages=$(missing_packages | sort -u | xargs)
new_venvs=$(missing_venvs | xargs)
new_libtpus=$(missing_libtpus | xargs)
new_goodputs=$(missing_goodputs | xargs)
new_jaxes=$(missing_jaxes | xargs)
new_mldiagnostics=$(missing_mldiagnostics)
new_tools=$(missing_tools | xargs)
# A small bootable Debian with systemd, for the service tests. Kept clean: containers write to an overlay.
[ -z "$rootfs" ] || [ ! -e "$peers/rootfs.complete" ] || rootfs=''
if [ -n "$previous" ]; then
  status=0
  tests/scripts/previous_release.sh --check "$peers" || status=$?
  case $status in
    0) previous='' ;;
    # Sources without their history, such as an archive: the tests of two releases say so and do nothing.
    3) previous=''; say "no history here: the tests with the release before are left out (git fetch --unshallow --tags)" ;;
  esac
fi

plan=''
[ -z "$packages" ] || plan+="; Debian packages: $packages"
[ -z "$new_venvs" ] || plan+="; Python environments in $peers: $new_venvs"
[ -z "$new_libtpus" ] || plan+="; libtpu in $peers/libtpu: $new_libtpus"
[ -z "$new_goodputs" ] || plan+="; ml-goodput-measurement in $peers/goodput-versions: $new_goodputs"
[ -z "$new_jaxes" ] || plan+="; JAX in $peers/jax: $new_jaxes"
[ -z "$new_mldiagnostics" ] || plan+="; google-cloud-mldiagnostics in $peers/mldiagnostics"
[ -z "$rootfs" ] || plan+="; a Debian root file system in $peers/rootfs"
[ -z "$previous" ] || plan+="; the release before this one, built from its source, in $peers/previous-release"
[ -z "$new_tools" ] || plan+="; cargo tools in target/tools: $new_tools"
if [ -z "$plan" ]; then say "as $(id -un): nothing to install"; exit; fi
say "as $(id -un): installs ${plan#; }"

if [ -n "$packages" ] && [ "$(id -u)" != 0 ]; then
  say "run as root, or install these first: apt-get install $packages" >&2
  exit 1
fi
mkdir -p "$peers" target/tools
# Names without spaces: the words are separate arguments.
[ -z "$packages" ] || { say "Debian packages"; debian $packages; }
for name in $new_venvs; do say "Python environment $name"; venv "$name"; done
for version in $new_libtpus; do say "libtpu $version"; libtpu "$version"; done
for version in $new_goodputs; do say "ml-goodput-measurement $version"; goodput "$version"; done
for version in $new_jaxes; do say "JAX $version"; jax "$version"; done
[ -z "$new_mldiagnostics" ] || { say "google-cloud-mldiagnostics $new_mldiagnostics"; mldiagnostics "$new_mldiagnostics"; }
for pair in $new_tools; do say "cargo tool ${pair/=/ }"; tool "$pair"; done
[ -z "$previous" ] || { say "the release before this one (about 75 s on two cores)"; tests/scripts/previous_release.sh "$peers"; }
if [ -n "$rootfs" ]; then
  say "Debian root file system"
  rm -rf "$peers/rootfs"
  tests/tools/mkrootfs.sh "$peers/rootfs" >target/tools/rootfs.log 2>&1 || { tail -20 target/tools/rootfs.log >&2; exit 1; }
  touch "$peers/rootfs.complete"
fi
