#!/usr/bin/env bash
# install.sh [--network] BINARY [DESTDIR]: puts a built tpuscope, its unit, man pages, completions, documents, alert rules and Slurm hooks where
# Debian and systemd expect them. With no DESTDIR it also makes the user and the directories; it never starts the service.
# --network also writes a drop-in that lets the service talk to other hosts, which the unit forbids: api.remote, api.metrics and uploads and the
# exporters to other hosts need it.
# install.sh --remove [DESTDIR]: stops the service and removes all of it. Settings, an edited drop-in, sessions and the user stay.
#
# It needs the files of its repository beside it, and runs BINARY for the man pages, completions and settings. What an
# administrator changed stays: /etc/tpuscope/tpuscope.toml and the drop-in are written only where they do not exist or are
# as an installer wrote them.
set -euo pipefail

usage() { sed -n '2,6s/^# //p' "$0"; }

# The drop-in, and a copy of what the installer wrote.
drop_in=/etc/systemd/system/tpuscope.service.d/network.conf
written=/usr/share/tpuscope/network.conf

network_text() {
  cat <<'TEXT'
# Written by install.sh --network. tpuscope may be reached from, and may reach, every address: what it serves there is
# decided by api.remote, and by api.metrics with its web configuration, and where it connects to by [[destination]] (uploads),
# [export.otlp] and [export.cloud_monitoring]. Only where it does none of these three can the addresses of your callers and your Prometheus
# stand here alone: cloud services and the name servers that they need have no few fixed addresses.
[Service]
IPAddressAllow=any
TEXT
}

# Whether the drop-in is there and not as an installer wrote it.
is_edited() {
  [ -e "$root$drop_in" ] && ! cmp -s "$root$drop_in" "$root$written" && ! cmp -s "$root$drop_in" <(network_text)
}

remove() {
  [ -n "$root" ] || systemctl disable --now tpuscope 2>/dev/null || true
  kept=
  if is_edited; then kept=", and $drop_in, which was edited"; else rm -f "$root$drop_in"; fi
  rm -f "$root"/usr/bin/tpuscope "$root"/usr/lib/systemd/system/tpuscope.service "$root"/usr/lib/sysusers.d/tpuscope.conf \
    "$root"/usr/lib/tmpfiles.d/tpuscope.conf "$root"/usr/share/man/man1/tpuscope{,-*}.1 \
    "$root"/usr/share/bash-completion/completions/tpuscope "$root"/usr/share/zsh/vendor-completions/_tpuscope \
    "$root"/usr/share/fish/vendor_completions.d/tpuscope.fish
  rm -rf "$root"/usr/share/doc/tpuscope "$root"/usr/share/tpuscope
  [ -n "$root" ] || systemctl daemon-reload 2>/dev/null || true
  rmdir "$root$(dirname "$drop_in")" 2>/dev/null || true
  stays="the settings in $root/etc/tpuscope"
  [ -n "$root" ] || stays="$stays, /var/lib/tpuscope and the user tpuscope"
  echo "removed; what stays: $stays$kept" >&2
}

network=
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  --remove) root=${2:-}; remove; exit 0 ;;
  --network) network=1; shift ;;
  -*) echo "install.sh: there is no option $1" >&2; usage >&2; exit 2 ;;
esac
[ $# -ge 1 ] || { usage >&2; exit 2; }
binary=$(realpath -e -- "$1") root=${2:-}
top=$(cd "$(dirname "$0")/.." && pwd)
put() { install -D -m "$1" "$2" "$root$3"; }
next="installed; start it with: systemctl enable --now tpuscope"
[ ! -e "$root/usr/bin/tpuscope" ] || next="installed; a running agent is the old one until: systemctl restart tpuscope"

put 0755 "$binary" /usr/bin/tpuscope
put 0644 "$top/systemd/tpuscope.service" /usr/lib/systemd/system/tpuscope.service
put 0644 "$top/systemd/tpuscope.sysusers" /usr/lib/sysusers.d/tpuscope.conf
put 0644 "$top/systemd/tpuscope.tmpfiles" /usr/lib/tmpfiles.d/tpuscope.conf
# The documents, with the files that they link to.
(cd "$top" && find docs ./*.md packaging/Containerfile packaging/prometheus/alerts.yml packaging/grafana packaging/slurm systemd/tpuscope.service \
  proto/proto/tpuscope/v1/agent.proto -type f) | while read -r page; do put 0644 "$top/$page" "/usr/share/doc/tpuscope/$page"; done
put 0644 "$top/LICENSE" /usr/share/doc/tpuscope/copyright
put 0644 "$top/packaging/prometheus/alerts.yml" /usr/share/tpuscope/prometheus/alerts.yml
for board in fleet host job; do put 0644 "$top/packaging/grafana/$board.json" "/usr/share/tpuscope/grafana/$board.json"; done
for hook in prolog epilog task-prolog task-epilog; do put 0755 "$top/packaging/slurm/$hook" "/usr/share/tpuscope/slurm/$hook"; done
for file in pyproject.toml tpuscope/__init__.py tpuscope/marks.py tpuscope/py.typed; do
  put 0644 "$top/python/$file" "/usr/share/tpuscope/python/$file"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$binary" man "$work/man"
for page in "$work"/man/*.1; do put 0644 "$page" "/usr/share/man/man1/$(basename "$page")"; done
"$binary" completions bash >"$work/bash" && put 0644 "$work/bash" /usr/share/bash-completion/completions/tpuscope
"$binary" completions zsh >"$work/zsh" && put 0644 "$work/zsh" /usr/share/zsh/vendor-completions/_tpuscope
"$binary" completions fish >"$work/fish" && put 0644 "$work/fish" /usr/share/fish/vendor_completions.d/tpuscope.fish
# Each value is commented out, so that the defaults of later versions apply.
[ -e "$root/etc/tpuscope/tpuscope.toml" ] || { "$binary" config default --commented-out >"$work/toml" && put 0644 "$work/toml" /etc/tpuscope/tpuscope.toml; }

if [ -n "$network" ]; then
  if is_edited; then
    echo "$drop_in was edited and stays as it is" >&2
  else
    network_text >"$work/network.conf"
    put 0644 "$work/network.conf" "$drop_in"
    put 0644 "$work/network.conf" "$written"
  fi
fi

[ -z "$root" ] || exit 0
systemd-sysusers /usr/lib/sysusers.d/tpuscope.conf
systemd-tmpfiles --create /usr/lib/tmpfiles.d/tpuscope.conf
systemctl daemon-reload 2>/dev/null || true
echo "$next" >&2
