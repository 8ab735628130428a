#!/usr/bin/env bash
# Configures a preset and builds targets; used by the other scripts.
# Usage: scripts/build.sh PRESET [CMAKE_ARGUMENT...] [-- TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
arguments=()
# A compiler newer than ours may warn of something new: that fails our CI, not a user's build.
[ -z "${CI-}" ] || arguments+=(-DGRADTOOL_WERROR=ON)
while [ $# -gt 0 ] && [ "$1" != "--" ]; do arguments+=("$1"); shift; done
[ $# -gt 0 ] && shift
mkdir -p build
if ! cmake --preset "$preset" "${arguments[@]}" >"build/configure-$preset.log" 2>&1; then
  cat "build/configure-$preset.log" >&2
  exit 1
fi
sed -n '/^-- gradtool /,/^-- $/p' "build/configure-$preset.log"
cmake --build "build/$preset" ${1+--target "$@"}
