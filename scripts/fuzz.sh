#!/usr/bin/env bash
# Runs fuzz targets on their corpus under ASan and UBSan. Usage: scripts/fuzz.sh [SECONDS_EACH] [TARGET...]
# Default: 60 seconds, and every target but fuzz_gradient_bytes: arbitrary bytes as a file find libhdf5's own faults (1.10 reads
# past damaged attribute messages) faster than ours. fuzz_gradient_file builds almost-conforming files instead.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- fuzz_gradient_file fuzz_chunk fuzz_import fuzz_packet fuzz_payload fuzz_reducer fuzz_codec_spec fuzz_command
scripts/build.sh asan -- "$@" | tail -n 1
for name in "$@"; do
  target=build/asan/tests/fuzz/$name
  corpus=tests/fuzz/corpus/${name#fuzz_}
  work=build/asan/found/$name
  mkdir -p "$work" "$corpus"
  echo "$name: $seconds s"
  # libhdf5 asks for whatever size a file states; a null pointer, as outside the sanitizer, is the answer it expects.
  ASAN_OPTIONS=allocator_may_return_null=1 "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -artifact_prefix="$work/" -print_final_stats=1 \
    "$work" "$corpus" 2>&1 | grep -E '^(stat::number_of_executed_units|==|SUMMARY|.*ERROR)' || { echo "$name failed" >&2; exit 1; }
done
