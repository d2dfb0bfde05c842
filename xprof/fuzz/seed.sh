#!/usr/bin/env bash
# Fills the corpus with the smallest vectors and with cut and damaged ones.
set -euo pipefail
cd "$(dirname "$0")"
# bytes NUMBER …: each number as one byte.
bytes() { local byte; for byte; do printf "\\x$(printf %02x "$byte")"; done; }
vectors=../../tests/data/golden/xplane
mkdir -p corpus/reader corpus/check corpus/merge_export corpus/envelope
for case in host_cpu_jax steady_devclock sparse_core async_overlap multi_module_no_steps_devclock two_hosts_late; do
  for file in "$vectors/$case"/*.xplane.pb; do
    cp "$file" "corpus/reader/$case-$(basename "$file")"
    head -c 700 "$file" >"corpus/reader/$case-cut"
    # Behind the length of its pieces.
    { printf '\x20'; cat "$file"; } >"corpus/check/$case-$(basename "$file")"
    # Two segments behind the length of the first.
    size=$(stat -c %s "$file")
    { bytes $((size % 256)) $((size / 256)); cat "$file" "$file"; } \
      >"corpus/merge_export/$case-$(basename "$file")"
    # A ProfileResponse in a gRPC frame, behind the length of its pieces: field 8 is the trace.
    if [ "$size" -lt 65000 ]; then
      frame=$((size + 4))
      { bytes 32 0 0 0 $((frame / 256)) $((frame % 256)) 66 $((size % 128 + 128)) $((size / 128 % 128 + 128)) $((size / 16384))
        cat "$file"; } >"corpus/envelope/$case-$(basename "$file")"
    fi
  done
done
