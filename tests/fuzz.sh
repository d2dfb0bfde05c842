#!/usr/bin/env bash
# Runs one fuzz target for some seconds: tests/fuzz.sh TARGET [SECONDS]. Without a target it lists them.
# `cargo fuzz` wants a nightly compiler; RUSTC_BOOTSTRAP=1 makes it work with the stable one.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-} seconds=${2:-60}
files=(*/fuzz/fuzz_targets/*.rs)
for file in "${files[@]}"; do
  [ "$(basename "$file" .rs)" = "$target" ] && folder=${file%/fuzz_targets/*}
done
if [ -z "${folder:-}" ]; then
  [ -z "$target" ] || echo "there is no target $target; the targets:" >&2
  for file in "${files[@]}"; do basename "$file" .rs; done
  [ -z "$target" ] && exit 0 || exit 2
fi
export PATH=$PWD/target/tools/bin:$PATH RUSTC_BOOTSTRAP=1
cd "$folder"
[ ! -e seed.sh ] || ./seed.sh
[ ! -e seeds.py ] || python3 seeds.py
# `-timeout` counts wall time: it leaves room for a busy machine.
exec cargo fuzz run "$target" --fuzz-dir . -- -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=120
