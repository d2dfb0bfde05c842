#!/usr/bin/env bash
# install.sh [--network] BINARY [DESTDIR]: puts a built tpuscope, its unit, man pages, completions, documents and alert rules where
# Debian and systemd expect them. With no DESTDIR it also makes the user and the directories; it never starts the service.
# --network also writes a drop-in that lets the service talk to other hosts, which the unit forbids: api.remote, api.metrics and uploads need it.
# install.sh --remove [DESTDIR]: stops the service and removes all of it. Settings, sessions and the user stay.
set -euo pipefail

remove() {
  [ -n "$root" ] || systemctl disable --now tpuscope 2>/dev/null || true
  rm -f "$root"/usr/bin/tpuscope "$root"/usr/lib/systemd/system/tpuscope.service "$root"/usr/lib/sysusers.d/tpuscope.conf \
    "$root"/usr/lib/tmpfiles.d/tpuscope.conf "$root"/usr/share/man/man1/tpuscope{,-*}.1 \
    "$root"/usr/share/bash-completion/completions/tpuscope "$root"/usr/share/zsh/vendor-completions/_tpuscope \
    "$root"/usr/share/fish/vendor_completions.d/tpuscope.fish "$root"/etc/systemd/system/tpuscope.service.d/network.conf
  rm -rf "$root"/usr/share/doc/tpuscope "$root"/usr/share/tpuscope
  [ -z "$root" ] || return 0
  systemctl daemon-reload 2>/dev/null || true
  echo "removed; /etc/tpuscope, /var/lib/tpuscope and the user tpuscope are still there" >&2
}

network=
case ${1:-} in
  --remove) root=${2:-}; remove; exit 0 ;;
  --network) network=1; shift ;;
esac
[ $# -ge 1 ] || { sed -n 2,5p "$0" >&2; exit 2; }
binary=$(realpath -e -- "$1") root=${2:-}
top=$(cd "$(dirname "$0")/.." && pwd)
put() { install -D -m "$1" "$2" "$root$3"; }

put 0755 "$binary" /usr/bin/tpuscope
put 0644 "$top/systemd/tpuscope.service" /usr/lib/systemd/system/tpuscope.service
put 0644 "$top/systemd/tpuscope.sysusers" /usr/lib/sysusers.d/tpuscope.conf
put 0644 "$top/systemd/tpuscope.tmpfiles" /usr/lib/tmpfiles.d/tpuscope.conf
put 0644 "$top/README.md" /usr/share/doc/tpuscope/README.md
(cd "$top" && find docs -type f) | while read -r page; do put 0644 "$top/$page" "/usr/share/doc/tpuscope/$page"; done
put 0644 "$top/LICENSE" /usr/share/doc/tpuscope/copyright
put 0644 "$top/packaging/prometheus/alerts.yml" /usr/share/tpuscope/prometheus/alerts.yml

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$binary" man "$work/man"
for page in "$work"/man/*.1; do put 0644 "$page" "/usr/share/man/man1/$(basename "$page")"; done
"$binary" completions bash >"$work/bash" && put 0644 "$work/bash" /usr/share/bash-completion/completions/tpuscope
"$binary" completions zsh >"$work/zsh" && put 0644 "$work/zsh" /usr/share/zsh/vendor-completions/_tpuscope
"$binary" completions fish >"$work/fish" && put 0644 "$work/fish" /usr/share/fish/vendor_completions.d/tpuscope.fish
# A file that an administrator changed stays.
[ -e "$root/etc/tpuscope/tpuscope.toml" ] || { "$binary" config default >"$work/toml" && put 0644 "$work/toml" /etc/tpuscope/tpuscope.toml; }

if [ -n "$network" ]; then
  cat >"$work/network.conf" <<'TEXT'
# Written by install.sh --network. tpuscope may be reached from, and may reach, every address: what it serves there is
# decided by api.remote, and by api.metrics with its web configuration, and where it uploads to by [[destination]] in the settings.
# Without uploads to a bucket, name the addresses of your callers and your Prometheus here to allow only those.
[Service]
IPAddressAllow=any
TEXT
  put 0644 "$work/network.conf" /etc/systemd/system/tpuscope.service.d/network.conf
fi

[ -z "$root" ] || exit 0
systemd-sysusers /usr/lib/sysusers.d/tpuscope.conf
systemd-tmpfiles --create /usr/lib/tmpfiles.d/tpuscope.conf
systemctl daemon-reload 2>/dev/null || true
echo "installed; start it with: systemctl enable --now tpuscope" >&2
