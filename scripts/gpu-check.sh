#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one command, on a machine with a card and no network: builds for the cards that
# are there, runs the GPU tests, the micro-benchmarks, a small bench, and compute-sanitizer over some of the tests, and writes
# reports/gpu/<card>/ (README.md, microbench-*.json, bench.csv). Ends with a summary, non-zero when a check failed. A report is
# written all the same: it says which, and what there was no time for.
#
# Usage: scripts/gpu-check.sh [--prefix DIR] [--out DIR] [--build DIR] [--minutes N] [--quick]
#   --prefix DIR  where HDF5, CLI11, fmt, nlohmann-json, FFTW, LAPACK, GoogleTest and Google Benchmark are, when not in /usr:
#                 the root of an extracted package tree (DIR/usr/include ...), as scripts/gpu-prefix.sh makes one, or an
#                 install prefix (DIR/include ...)
#   --out DIR     reports/gpu/<card> by default
#   --build DIR   build/gpu by default; what is there is used again
#   --minutes N   8 by default, building included: what does not fit is cut short or left out, and named
#   --quick       100 MB tensors only, and no compute-sanitizer
# Needs nvcc, CMake, Ninja and g++; for the tables of analyze also Python with numpy and h5py,
# for torch.topk beside topk one with a PyTorch for CUDA. Of the 8 minutes, building
# takes about half on 16 cores; a build that is there is used again.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix="" out="" build=build/gpu quick="" minutes=8
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix | --out | --build | --minutes)
      [ $# -ge 2 ] || { echo "gpu-check.sh: $1 needs a value" >&2; exit 2; }
      case "$1" in --prefix) prefix=$(readlink -f "$2") ;; --out) out=$2 ;; --build) build=$2 ;; --minutes) minutes=$2 ;; esac
      shift 2 ;;
    --quick) quick=1; shift ;;
    *) echo "gpu-check.sh: unknown option '$1'; valid are --prefix, --out, --build, --minutes, --quick" >&2; exit 2 ;;
  esac
done

case "$minutes" in '' | *[!0-9]* | 0) echo "gpu-check.sh: --minutes '$minutes' is not a whole number above 0" >&2; exit 2 ;; esac
started=$SECONDS
deadline=$((started + 60 * minutes))
failed=() unfinished=()
stage() { printf '\n######## %s (after %d s)\n' "$*" $((SECONDS - started)); }
# Runs a check for at most so many seconds, and no longer than there is time. Keeps its output and goes on: later ones say
# as much. What is cut short has not failed, and has not passed either.
check() { # name seconds command...
  local name=$1 limit=$2 left=$((deadline - SECONDS)) status=0
  shift 2
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 5 ]; then
    echo "no time $name"
    unfinished+=("$name")
    return
  fi
  timeout "$limit" "$@" >"$build/$name.log" 2>&1 || status=$?
  case $status in
    0) echo "ok      $name" ;;
    77) echo "skipped $name: $(tail -n 1 "$build/$name.log")" ;;
    124) echo "cut     $name after $limit s" && unfinished+=("$name") ;;
    *)
      echo "FAILED  $name (exit $status)"
      tail -n 25 "$build/$name.log"
      failed+=("$name") ;;
  esac
}

command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "gpu-check.sh: no NVIDIA GPU here (nvidia-smi finds none)" >&2; exit 77; }
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "gpu-check.sh: no nvcc, in PATH or in /usr/local/cuda/bin" >&2; exit 77; }
# The code of each card, where this nvcc knows it; else the newest that it does know, which the driver translates.
known=$("$nvcc" --list-gpu-arch | sed 's/compute_//' | sort -n)
architectures=""
for capability in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -un); do
  if printf '%s\n' "$known" | grep -qx "$capability"; then
    architectures+="${architectures:+;}$capability-real"
  else
    older=$(printf '%s\n' "$known" | awk -v c="$capability" '$1 < c' | tail -n 1)
    [ -n "$older" ] || { echo "gpu-check.sh: this nvcc has no code for compute capability $capability" >&2; exit 77; }
    architectures+="${architectures:+;}$older-virtual"
  fi
done
card=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0)
[ -n "$out" ] || out=reports/gpu/$(printf '%s' "$card" | tr '[:upper:] ' '[:lower:]-' | sed 's/^nvidia-//')
mkdir -p "$build" "$out"
rm -f "$build"/*.log "$build"/bench.csv "$out"/bench.csv "$out"/microbench-*.json "$out"/torch-topk-*.json  # of an earlier run

stage "build for $architectures"
arguments=(-S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGRADTOOL_WERROR=OFF -DGRADTOOL_TORCH=OFF
  -DGRADTOOL_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=$architectures")
if [ -n "$prefix" ]; then
  roots="$prefix;$prefix/usr"
  arguments+=("-DCMAKE_PREFIX_PATH=$roots" "-DCMAKE_FIND_ROOT_PATH=$roots")
  multiarch=$(g++ -print-multiarch 2>/dev/null || true)
  for folder in lib "lib/$multiarch" usr/lib "usr/lib/$multiarch" "usr/lib/$multiarch/hdf5/serial" \
    "usr/lib/$multiarch/openblas-pthread" "usr/lib/$multiarch/lapack" "usr/lib/$multiarch/blas"; do
    [ -d "$prefix/$folder" ] || continue
    LD_LIBRARY_PATH=$prefix/$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    libraries="${libraries:+$libraries;}$prefix/$folder"
  done
  arguments+=("-DCMAKE_LIBRARY_PATH=${libraries:-}")
  export LD_LIBRARY_PATH PATH="$prefix/usr/bin:$prefix/bin:$PATH"
  export CMAKE_PREFIX_PATH="$prefix:$prefix/usr"
  # Debian's own place for HDF5, which CMake asks h5cc for: not part of an extracted tree.
  [ ! -d "$prefix/usr/include/hdf5/serial" ] || arguments+=("-DHDF5_C_INCLUDE_DIR=$prefix/usr/include/hdf5/serial")
fi
if ! cmake "${arguments[@]}" >"$build/configure.log" 2>&1; then tail -n 40 "$build/configure.log"; exit 1; fi
grep -E '^-- gradtool' "$build/configure.log" || true
targets=(gradtool gradtool_microbench gpu_codecs gpu_methods gpu_reducers comm_gpu comm_cuda_runtime)
if ! cmake --build "$build" --target "${targets[@]}" >"$build/build.log" 2>&1; then tail -n 40 "$build/build.log"; exit 1; fi
gradtool=$build/bin/gradtool microbench=$build/bin/gradtool_microbench
find_test() { find "$build/tests" -type f -name "$1" -perm -u+x | head -n 1; }

stage "tests"
for name in gpu_codecs gpu_methods gpu_reducers comm_gpu comm_cuda_runtime; do check "$name" 120 "$(find_test $name)"; done
python=""
for candidate in /usr/bin/python3 python3; do
  if "$candidate" -c 'import numpy, h5py' 2>/dev/null; then python=$candidate; break; fi
done
if [ -n "$python" ]; then
  check analyze 60 "$python" tests/analysis/check_gpu.py "$(readlink -f "$gradtool")"
else
  echo "skipped analyze: no Python with numpy and h5py"
fi

stage "micro-benchmarks"
torch=""
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then torch=$candidate; break; fi
done
[ -n "$torch" ] || echo "skipped torch.topk: no Python with a PyTorch for CUDA"
sizes=(26214400)
[ -n "$quick" ] || sizes+=(268435456)
for elements in "${sizes[@]}"; do
  check "microbench-$elements" 100 "$microbench" --device=cuda --elements="$elements" --benchmark_min_time=0.05 \
    --benchmark_out="$out/microbench-$elements.json" --benchmark_out_format=json
  if [ -n "$torch" ]; then
    check "torch-topk-$elements" 60 "$torch" scripts/torch_topk.py --elements "$elements" --out "$out/torch-topk-$elements.json"
  fi
done

# A ResNet-50's tensors one by one, in batches, and as one.
check "microbench-resnet50" 60 "$microbench" --device=cuda --tensors=resnet50 --benchmark_min_time=0.05 \
  --benchmark_out="$out/microbench-resnet50.json" --benchmark_out_format=json

stage "bench on the committed capture, two ranks on the card"
check bench 60 "$gradtool" bench datasets/lenet5-fashion-mnist.h5 --device cuda --csv "$build/bench.csv"
[ -s "$build/bench.csv" ] && cp "$build/bench.csv" "$out/bench.csv"

sanitizer=$(command -v compute-sanitizer || ls "$(dirname "$(readlink -f "$nvcc")")"/compute-sanitizer /usr/local/cuda/bin/compute-sanitizer 2>/dev/null | head -n 1 || true)
if [ -n "$quick" ]; then
  :
elif [ -n "$sanitizer" ]; then
  # A sanitizer makes a kernel tens of times slower: the tests with a few thousand elements, and what time is left for them.
  for tool in memcheck racecheck initcheck; do
    stage "compute-sanitizer $tool"
    case $tool in
      memcheck) tests='*Degenerate*:*TakesUnitsOfSeveralTensors*:*ReadsThePayloadsOwnSize*' seconds=60 ;;
      *) tests='*Degenerate*' seconds=45 ;;
    esac
    check "$tool" $seconds "$sanitizer" --tool $tool --error-exitcode 9 "$(find_test gpu_codecs)" --gtest_filter="$tests"
    check "$tool-reducers" 30 "$sanitizer" --tool $tool --error-exitcode 9 "$(find_test gpu_reducers)"
  done
else
  echo "skipped compute-sanitizer: there is none here"
fi

stage "report"
report=(--out "$out" --nvcc "$nvcc" --log "$build" --seconds $((SECONDS - started)) --failed "${failed[*]-}" --unfinished "${unfinished[*]-}")
[ -n "$quick" ] && report+=(--quick)
if command -v python3 >/dev/null; then
  python3 scripts/gpu_report.py "${report[@]}" -- "${sizes[@]}"
else
  echo "no python3: no README.md; the logs are in $build"
fi
echo "wrote $out"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "no check failed in $((SECONDS - started)) s${unfinished[*]:+; no time for all of: ${unfinished[*]}}"
