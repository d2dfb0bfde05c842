#!/usr/bin/env bash
# Installs what the tests need and the machine lacks: Debian packages, Python peers in venvs below target/peers,
# cargo tools below target/tools. Does nothing for what is already there. TPUSCOPE_PEERS moves the venvs.
# `tests/setup.sh demo` installs what `make demo` needs and no more.
set -euo pipefail
cd "$(dirname "$0")/.."
peers=${TPUSCOPE_PEERS:-target/peers}
mkdir -p "$peers" target/tools

say() { printf 'setup: %s\n' "$*" >&2; }

# debian PROGRAM=PACKAGE …: installs the packages whose programs are missing.
debian() {
  local missing=() pair
  for pair in "$@"; do command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}"); done
  [ ${#missing[@]} = 0 ] && return
  [ "$(id -u)" = 0 ] || { say "missing: ${missing[*]}; run as root, or install them"; exit 1; }
  say "installing ${missing[*]}"
  # Packages that are services must not start themselves here.
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d.tpuscope && chmod +x /usr/sbin/policy-rc.d.tpuscope
  [ -e /usr/sbin/policy-rc.d ] || { mv /usr/sbin/policy-rc.d.tpuscope /usr/sbin/policy-rc.d; made_policy=1; }
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >target/tools/apt.log 2>&1 ||
    { tail -20 target/tools/apt.log >&2; exit 1; }
  [ "${made_policy:-}" = 1 ] && rm -f /usr/sbin/policy-rc.d
  rm -f /usr/sbin/policy-rc.d.tpuscope
}

# venv NAME: a venv with tests/requirements-NAME.txt, remade when that file changes.
venv() {
  local dir=$peers/$1 want=tests/requirements-$1.txt
  cmp -s "$want" "$dir/requirements.txt" && return
  say "python peers: $1"
  rm -rf "$dir"
  python3 -m venv "$dir"
  "$dir/bin/pip" install -q --disable-pip-version-check -r "$want"
  cp "$want" "$dir/requirements.txt"
}

# libtpu VERSION: that libtpu wheel alone, without dependencies, unpacked in its own folder. It is Google's, under
# its own licence: tests load it, nothing of it is ever kept in this repository.
libtpu() {
  local dir=$peers/libtpu/$1
  [ -f "$dir/libtpu/libtpu.so" ] && return
  say "libtpu $1"
  rm -rf "$dir" "$dir.wheel" && mkdir -p "$dir.wheel"
  "$peers/goodput/bin/pip" download -q --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
    --python-version 3.12 --platform manylinux_2_31_x86_64 --dest "$dir.wheel" "libtpu==$1"
  python3 -m zipfile -e "$dir.wheel"/libtpu-*.whl "$dir.unpacked"
  rm -r "$dir.wheel" && mv "$dir.unpacked" "$dir"
}

# tool CRATE VERSION: a cargo tool in target/tools.
tool() {
  [ "$(cat "target/tools/$1.version" 2>/dev/null)" = "$2" ] && [ -x "target/tools/bin/$1" ] && return
  say "cargo tool: $1 $2"
  cargo install -q --debug --locked --root target/tools --version "$2" "$1"
  echo "$2" >"target/tools/$1.version"
}

# A Debian python3 comes without venv; another one brings its own.
python3 -c 'import ensurepip' 2>/dev/null || debian no-venv=python3-venv
# The demo needs no more than a job to profile and XProf to open its trace with.
if [ "${1:-}" = demo ]; then venv xprof; exit; fi

debian make=make nm=binutils python3=python3 promtool=prometheus prometheus=prometheus prometheus-node-exporter=prometheus-node-exporter ip=iproute2 \
  mmdebstrap=mmdebstrap systemd-nspawn=systemd-container dbus-daemon=dbus systemd-analyze=systemd \
  buildah=buildah podman=podman crun=crun
venv xprof
venv goodput
venv tpu-info
# One of each SDK table that has metrics: 17, 15 and 12 functions.
for version in 0.0.52 0.0.30 0.0.21; do libtpu $version; done
tool cargo-deny 0.20.2

# A small bootable Debian with systemd, for the service tests. Kept clean: containers write to an overlay.
if [ ! -e "$peers/rootfs.complete" ]; then
  say "container root: Debian with systemd"
  rm -rf "$peers/rootfs"
  tests/tools/mkrootfs.sh "$peers/rootfs" >target/tools/rootfs.log 2>&1 || { tail -20 target/tools/rootfs.log >&2; exit 1; }
  touch "$peers/rootfs.complete"
fi
