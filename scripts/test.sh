#!/usr/bin/env bash
# Builds everything and runs the whole test suite. Installs what it needs (scripts/setup.sh).
# Usage: scripts/test.sh [PRESET] [CTEST_ARGUMENT...]        PRESET: release (default), debug, emulated, asan, asan-gpu, tsan, coverage
set -euo pipefail
cd "$(dirname "$0")/.."

preset=release
case "${1-}" in release | debug | emulated | asan | asan-gpu | tsan | coverage) preset=$1; shift ;; esac
scripts/setup.sh
[ "$preset" != asan ] || scripts/setup.sh --with-checks  # clang
scripts/build.sh "$preset" -- | { if [ -t 1 ]; then cat; else grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Generating|Run)' || true; fi; }

# Open MPI refuses root unless told twice; tests run several ranks on few cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ctest --preset "$preset" -j "$(nproc)" "$@"
