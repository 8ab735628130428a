#!/usr/bin/env bash
# Builds everything and runs the whole test suite. Installs what it needs (scripts/setup.sh).
# Usage: scripts/test.sh [PRESET] [CTEST_ARGUMENT...]        PRESET: release (default), debug, emulated, asan, asan-gpu, tsan, coverage
#        scripts/test.sh method NAME                         only what tests the method lib/methods/NAME, in seconds after an edit of it
# GRADTOOL_CUDA=OFF leaves out the CUDA sources where nvcc is there; their compilation takes a third of the time. Without a GPU they are
# compiled for one architecture, unless CUDAARCHS says otherwise: a second takes as long again and tests nothing more.
set -euo pipefail
cd "$(dirname "$0")/.."

# Open MPI refuses root unless told twice; tests run several ranks on few cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

test_method() {
  local name=$1 bin=build/release/tests own
  scripts/build.sh release -- conformance codecs methods reduce reduce_conformance payload_dump message_dump
  # Suites over the registry name a case after its codec and parameters; the method's own suites are those of its folder.
  own=$(find "lib/methods/$name" -name '*_test.cpp' -exec sed -nE 's/^TEST(_[FP])?\((\w+),.*/\2.*:*\/\2.*/p' {} + | sort -u | paste -sd :)
  for program in codecs/conformance codecs/codecs reduce/reduce reduce/reduce_conformance; do
    "$bin/$program" --gtest_brief=1 --gtest_filter="*/$name:*/${name}_*"
  done
  [ -z "$own" ] || "$bin/codecs/methods" --gtest_brief=1 --gtest_filter="$own"
  /usr/bin/python3 tests/codecs/check_payloads.py "$bin/codecs/payload_dump" "$name"
  /usr/bin/python3 tests/reduce/check_messages.py "$bin/reduce/message_dump" "$name"
}
if [ "${1-}" = method ]; then
  [ -e "lib/methods/${2-}/${2-}.cpp" ] || { echo "test.sh: '${2-}' is no folder of lib/methods: test.sh method topk" >&2; exit 2; }
  test_method "$2"
  exit
fi

[ -e /dev/nvidiactl ] || export CUDAARCHS=${CUDAARCHS-90}
preset=release
case "${1-}" in release | debug | emulated | asan | asan-gpu | tsan | coverage) preset=$1; shift ;; esac
scripts/setup.sh
[ "$preset" != asan ] || scripts/setup.sh --with-checks  # clang
# The quick start leaves CUDA out where there is no GPU; what is tested must not depend on which of the two ran first.
arguments=()
case "$preset" in release | debug) arguments=("-DGRADTOOL_CUDA=${GRADTOOL_CUDA:-AUTO}") ;; esac
scripts/build.sh "$preset" "${arguments[@]}" -- |
  { if [ -t 1 ]; then cat; else grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Generating|Run)' || true; fi; }

status=0
ctest --preset "$preset" -j "$(nproc)" "$@" || status=$?
# CTest knows of suites; what a suite skipped is said here, by name and with its reason.
awk '/: Skipped$/ { getline; reason = $0 }
  /^\[  SKIPPED \] .* \([0-9]+ ms\)$/ { if (!(reason in names)) order[++n] = reason; names[reason] = names[reason] "\n    " $4 }
  END { if (n) print "\nSkipped in suites of which the rest ran:"; for (i = 1; i <= n; ++i) print "  " order[i] ":" names[order[i]] }' \
  "build/$preset/Testing/Temporary/LastTest.log"
exit "$status"
