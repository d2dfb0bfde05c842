#!/usr/bin/env bash
# Builds the benches and the program with optimisation, and runs each bench in turn. BENCH=name runs one.
# Needs the real peers of tests/setup.sh. Fails if a promise is broken.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo build --release --locked --workspace || exit 1
# The program is measured as it is shipped.
cargo build --profile dist --locked -p tpuscope || exit 1
install target/dist/tpuscope target/release/tpuscope
# On a host the program is read from disk. The page cache holds a file that was just written in larger pieces, and the
# kernel maps whole pieces: up to 2 MB more memory for the same program.
dd of=target/release/tpuscope oflag=nocache conv=notrunc,fdatasync count=0 status=none
failed=()
for source in benches/src/bin/*.rs; do
  name=$(basename "$source" .rs)
  [ "${BENCH:-$name}" = "$name" ] || continue
  printf '\n== %s\n' "$name"
  "target/release/$name" || failed+=("$name")
done
[ ${#failed[@]} = 0 ] || { printf '\nbroken promises or failed benches: %s\n' "${failed[*]}"; exit 1; }
