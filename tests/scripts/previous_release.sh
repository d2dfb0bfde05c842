#!/usr/bin/env bash
# Builds tpuscope of the release before this one, for the tests of fleets with two versions: PEERS/previous-release/tpuscope.
# It needs the history of this repository, and 75 s on two quiet cores. It does nothing where the program is there.
#
#   tests/scripts/previous_release.sh [PEERS]           PEERS: target/peers
#   tests/scripts/previous_release.sh --check [PEERS]   exit code 0: the program is there; 3: the history is not
set -euo pipefail
cd "$(dirname "$0")/../.."
tag=v0.1.0
# The commit of that release, for clones without tags.
commit=3a55f6a9d44729804c2ea27755beb7434e1942fe

check=''
if [ "${1:-}" = --check ]; then check=1; shift; fi
peer=${1:-target/peers}/previous-release
if tagged=$(git rev-parse -q --verify "$tag^{commit}" 2>/dev/null); then commit=$tagged; fi

[ -x "$peer/tpuscope" ] && [ "$(cat "$peer/commit" 2>/dev/null)" = "$commit" ] && exit 0
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
  [ -z "$check" ] || exit 3
  echo "previous_release: this clone has neither the tag $tag nor the commit ${commit:0:12}: run \`git fetch --unshallow --tags\`" \
    "in a clone of the repository" >&2
  exit 3
fi
[ -z "$check" ] || exit 1

work=$PWD/target/previous-release
rm -rf "$work/source" && mkdir -p "$work/source" "$peer"
git archive "$commit" | tar -x -C "$work/source"
# Not in the target folder of this workspace: the crates have the same names there.
CARGO_TARGET_DIR=$work/target CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 \
  "${CARGO:-cargo}" build --quiet --locked -p tpuscope --manifest-path "$work/source/Cargo.toml"
cp "$work/target/debug/tpuscope" "$peer/tpuscope.new"
mv "$peer/tpuscope.new" "$peer/tpuscope"
echo "$commit" >"$peer/commit"
rm -rf "$work"
