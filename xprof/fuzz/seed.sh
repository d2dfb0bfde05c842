#!/usr/bin/env bash
# Fills the corpus with the smallest vectors and with cut and damaged ones.
set -euo pipefail
cd "$(dirname "$0")"
vectors=../../tests/data/golden/xplane
mkdir -p corpus/reader corpus/check corpus/merge_export
for case in host_cpu_jax steady_devclock sparse_core async_overlap multi_module_no_steps_devclock two_hosts_late; do
  for file in "$vectors/$case"/*.xplane.pb; do
    cp "$file" "corpus/reader/$case-$(basename "$file")"
    head -c 700 "$file" >"corpus/reader/$case-cut"
    # Behind the length of its pieces.
    { printf '\x20'; cat "$file"; } >"corpus/check/$case-$(basename "$file")"
    # Two segments behind the length of the first.
    size=$(stat -c %s "$file")
    { printf "\\x$(printf %02x $((size % 256)))\\x$(printf %02x $((size / 256)))"; cat "$file" "$file"; } \
      >"corpus/merge_export/$case-$(basename "$file")"
  done
done
