#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one command, on a machine with a card and no network: builds for the cards that
# are there, runs the GPU tests, compute-sanitizer over them, the micro-benchmarks and a small bench, and writes
# reports/gpu/<card>/ (README.md, microbench-*.json, bench.csv). Ends with a summary, non-zero when a check failed. A report is
# written all the same: it says which.
#
# Usage: scripts/gpu-check.sh [--prefix DIR] [--out DIR] [--build DIR] [--quick]
#   --prefix DIR  where HDF5, CLI11, fmt, nlohmann-json, FFTW, GoogleTest and Google Benchmark are, when not in /usr:
#                 the root of an extracted package tree (DIR/usr/include ...) or an install prefix (DIR/include ...)
#   --out DIR     reports/gpu/<card> by default
#   --build DIR   build/gpu by default; what is there is used again
#   --quick       100 MB tensors only, and no compute-sanitizer
# Needs nvcc, CMake, Ninja and g++. On 16 cores about 8 minutes from nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix="" out="" build=build/gpu quick=""
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix | --out | --build)
      [ $# -ge 2 ] || { echo "gpu-check.sh: $1 needs a value" >&2; exit 2; }
      case "$1" in --prefix) prefix=$(readlink -f "$2") ;; --out) out=$2 ;; --build) build=$2 ;; esac
      shift 2 ;;
    --quick) quick=1; shift ;;
    *) echo "gpu-check.sh: unknown option '$1'; valid are --prefix, --out, --build, --quick" >&2; exit 2 ;;
  esac
done

started=$SECONDS
failed=()
stage() { printf '\n######## %s (after %d s)\n' "$*" $((SECONDS - started)); }
# Runs a check, keeps its output and goes on: later ones say as much.
check() { # name command...
  local name=$1
  shift
  if "$@" >"$build/$name.log" 2>&1; then
    echo "ok      $name"
  else
    echo "FAILED  $name (exit $?)"
    tail -n 25 "$build/$name.log"
    failed+=("$name")
  fi
}

command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "gpu-check.sh: no NVIDIA GPU here (nvidia-smi finds none)" >&2; exit 77; }
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "gpu-check.sh: no nvcc, in PATH or in /usr/local/cuda/bin" >&2; exit 77; }
card=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0)
architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -u | paste -sd';')
[ -n "$out" ] || out=reports/gpu/$(printf '%s' "$card" | tr '[:upper:] ' '[:lower:]-' | sed 's/^nvidia-//')
mkdir -p "$build" "$out"

stage "build for compute capability $architectures"
arguments=(-S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGRADTOOL_WERROR=ON -DGRADTOOL_TORCH=OFF
  -DGRADTOOL_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=$(echo "$architectures" | sed 's/;/-real;/g')-real")
if [ -n "$prefix" ]; then
  roots="$prefix;$prefix/usr"
  arguments+=("-DCMAKE_PREFIX_PATH=$roots" "-DCMAKE_FIND_ROOT_PATH=$roots")
  multiarch=$(g++ -print-multiarch 2>/dev/null || true)
  for folder in lib "lib/$multiarch" usr/lib "usr/lib/$multiarch" "usr/lib/$multiarch/hdf5/serial"; do
    [ -d "$prefix/$folder" ] && LD_LIBRARY_PATH=$prefix/$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
  export LD_LIBRARY_PATH PATH="$prefix/usr/bin:$prefix/bin:$PATH"
  export CMAKE_PREFIX_PATH="$prefix:$prefix/usr" HDF5_ROOT="$prefix/usr"
  arguments+=("-DCMAKE_CXX_FLAGS=-isystem $prefix/usr/include -isystem $prefix/usr/include/hdf5/serial")
fi
if ! cmake "${arguments[@]}" >"$build/configure.log" 2>&1; then tail -n 40 "$build/configure.log"; exit 1; fi
grep -E '^-- gradtool' "$build/configure.log" || true
targets=(gradtool gradtool_microbench gpu_codecs comm_gpu comm_cuda_runtime)
cmake --build "$build" --target "${targets[@]}" 2>&1 | tail -n 3
gradtool=$build/bin/gradtool microbench=$build/bin/gradtool_microbench
find_test() { find "$build/tests" -type f -name "$1" -perm -u+x | head -n 1; }

stage "tests"
for name in gpu_codecs comm_gpu comm_cuda_runtime; do check "$name" "$(find_test $name)"; done

if [ -z "$quick" ] && command -v compute-sanitizer >/dev/null; then
  # The slow cases (damaged payloads, concurrent streams) are run without: a sanitizer makes them minutes.
  for tool in memcheck racecheck initcheck; do
    stage "compute-sanitizer $tool"
    check "$tool" timeout 90 compute-sanitizer --tool "$tool" --error-exitcode 9 "$(find_test gpu_codecs)" \
      --gtest_filter='*WritesTheHostsPayload*:*DecodesAsTheHost*:*TakesAnyAlignment*'
  done
fi

stage "micro-benchmarks"
sizes=(26214400)
[ -n "$quick" ] || sizes+=(268435456)
for elements in "${sizes[@]}"; do
  check "microbench-$elements" "$microbench" --device=cuda --elements="$elements" --benchmark_min_time=0.1 \
    --benchmark_out="$out/microbench-$elements.json" --benchmark_out_format=json
done

stage "bench on the committed capture, two ranks on the card"
check bench "$gradtool" bench datasets/lenet5-fashion-mnist.h5 --device cuda --csv "$build/bench.csv"
[ -s "$build/bench.csv" ] && cp "$build/bench.csv" "$out/bench.csv"

stage "report"
python=$(command -v python3 || true)
if [ -n "$python" ]; then
  "$python" scripts/gpu_report.py --out "$out" --log "$build" --seconds $((SECONDS - started)) --failed "${failed[*]-}" \
    $([ -n "$quick" ] && echo --quick) -- "${sizes[@]}"
fi
echo "wrote $out"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all checks passed in $((SECONDS - started)) s"
