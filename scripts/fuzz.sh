#!/usr/bin/env bash
# Runs fuzz targets on their corpus under ASan and UBSan. Usage: scripts/fuzz.sh [SECONDS_EACH] [TARGET...]
# Default: 60 seconds, as many targets at once as there are cores, and every target but fuzz_gradient_bytes: arbitrary bytes as a
# file find libhdf5's own faults (1.10 reads past damaged attribute messages) faster than ours. fuzz_gradient_file builds
# almost-conforming files instead.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- fuzz_gradient_file fuzz_chunk fuzz_import fuzz_packet fuzz_payload fuzz_reducer fuzz_codec_spec fuzz_command
scripts/build.sh asan -- "$@" | tail -n 1
fuzz() {  # seconds, target
  local seconds=$1 name=$2 target=build/asan/tests/fuzz/$2 corpus=tests/fuzz/corpus/${2#fuzz_} work=build/asan/found/$2 said
  mkdir -p "$work" "$corpus"
  # libhdf5 asks for whatever size a file states; a null pointer, as outside the sanitizer, is the answer it expects.
  said=$(ASAN_OPTIONS=allocator_may_return_null=1 "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -artifact_prefix="$work/" \
    -print_final_stats=1 "$work" "$corpus" 2>&1) || { printf '%s failed\n%s\n' "$name" "$(tail -n 60 <<<"$said")" >&2; return 1; }
  echo "$name: $seconds s, $(sed -n 's/^stat::number_of_executed_units: *//p' <<<"$said") inputs"
}
export -f fuzz
printf '%s\n' "$@" | xargs -P "$(nproc)" -I NAME bash -c 'fuzz "$@"' fuzz "$seconds" NAME
