#!/usr/bin/env bash
# Runs every fuzz target on its corpus under ASan and UBSan. Usage: scripts/fuzz.sh [SECONDS_EACH]      (default: 60)
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
scripts/build.sh fuzz -- fuzz_targets | tail -n 1
for target in build/fuzz/tests/fuzz/fuzz_*; do
  [ -x "$target" ] && [ -f "$target" ] || continue
  name=$(basename "$target")
  corpus=tests/fuzz/corpus/${name#fuzz_}
  work=build/fuzz/found/$name
  mkdir -p "$work" "$corpus"
  echo "$name: $seconds s"
  # libhdf5 asks for whatever size a file states; a null pointer, as outside the sanitizer, is the answer it expects.
  ASAN_OPTIONS=allocator_may_return_null=1 "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -artifact_prefix="$work/" -print_final_stats=1 \
    "$work" "$corpus" 2>&1 | grep -E '^(stat::number_of_executed_units|==|SUMMARY|.*ERROR)' || { echo "$name failed" >&2; exit 1; }
done
