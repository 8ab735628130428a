#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one command, on a machine with a card and perhaps no network: builds for the cards that are
# there, runs the GPU tests, the micro-benchmarks, a bench of large captures, Nsight Compute over some kernels and compute-sanitizer over
# some tests. Writes one folder: README.md, microbench-*.json, bench-*.json, torch.json and logs.tar.xz. Ends with a summary, non-zero when a
# check failed. A report is written all the same: it says which failed, and what there was no time for. A build that fails ends it before.
#
# Usage: scripts/gpu-check.sh [OPTION...]
#   --stages LIST    some of probe,configure,build,tests,bench,ncu,sanitize, in this order; all by default. From tests on there is a report,
#                    which counts what earlier runs with the same --build and --out left of other stages
#   --binaries FILE  instead of building: an archive that scripts/gpu-bundle.sh made on a machine with nvcc and the libraries
#   --prefix PATH    where HDF5, CLI11, fmt, nlohmann-json, FFTW, LAPACK, GoogleTest and Google Benchmark are, when not in /usr: the
#                    archive that scripts/gpu-prefix.sh makes, the root of an extracted package tree, or an install prefix
#   --out DIR        reports/gpu/<card> by default; everything that is worth keeping goes there
#   --build DIR      build/gpu by default; what is there is used again
#   --commit NAME    for the report, where there is no git
#   --minutes N      8 by default, building included: what does not fit is cut short or left out, and named
#   --quick          100 MB tensors only
#   --emulated       on a machine without a card: the same steps on the emulated GPU and on few elements. Times mean nothing
# Needs nvcc, CMake, Ninja and g++, or --binaries; for the tables of analyze and the large captures also Python with numpy and h5py, for
# the copy rate and torch.topk beside ours one with a PyTorch for CUDA.
set -euo pipefail
from=$PWD
cd "$(dirname "$0")/.."

die() { echo "gpu-check.sh: $2" >&2; exit "$1"; }
all_stages=probe,configure,build,tests,bench,ncu,sanitize
prefix="" binaries="" out="" build=build/gpu quick="" minutes=8 stages=$all_stages commit="" emulated=""
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix | --out | --build | --minutes | --stages | --binaries | --commit)
      [ $# -ge 2 ] || die 2 "$1 needs a value"
      case "$1" in
        --prefix | --binaries | --out | --build) case "$2" in /*) path=$2 ;; *) path=$from/$2 ;; esac; printf -v "${1#--}" %s "$path" ;;
        *) printf -v "${1#--}" %s "$2" ;;
      esac
      shift 2 ;;
    --quick | --emulated) printf -v "${1#--}" 1; shift ;;
    *) die 2 "unknown option '$1'; valid are --stages, --binaries, --prefix, --out, --build, --commit, --minutes, --quick, --emulated" ;;
  esac
done
case "$minutes" in '' | *[!0-9]* | 0) die 2 "--minutes '$minutes' is not a whole number above 0" ;; esac
for name in ${stages//,/ }; do
  case ",$all_stages," in *",$name,"*) ;; *) die 2 "--stages: '$name' is none of $all_stages" ;; esac
done
for archive in "$prefix" "$binaries"; do [ -z "$archive" ] || [ -e "$archive" ] || die 2 "there is no '$archive'"; done

started=$SECONDS
deadline=$((started + 60 * minutes))
failed=() unfinished=()
# Begins a stage where it is wanted: what an earlier run left of it must not stand in this one's report.
leftovers() {
  case $1 in
    probe) rm -f "$build"/torch.log "$out"/torch.json ;;
    tests) rm -f "$build"/{gpu_codecs,gpu_methods,gpu_reducers}*.log "$build"/{comm_gpu,comm_cuda_runtime,analyze}.log ;;
    bench) rm -f "$build"/{microbench,bench,write}-*.log "$out"/{microbench,bench}-*.json ;;
    ncu) rm -f "$build"/ncu* ;;
    sanitize) rm -f "$build"/{memcheck,racecheck,initcheck}*.log ;;
  esac
}
wanted() { case ",$stages," in *",$1,"*) leftovers "$1"; printf '\n######## %s (after %d s)\n' "${2:-$1}" $((SECONDS - started)) ;; *) return 1 ;; esac; }
# Begins a check of at most so many seconds, and no longer than there is time, beside others; `finish` waits for all of them and says
# what came of each. What is cut short has not failed, and has not passed either.
pending=() jobs=()
begin() { # name seconds command...
  local name=$1 limit=$2 left=$((deadline - SECONDS))
  shift 2
  [ -z "$emulated" ] || limit=$left  # a rehearsal is a test, and must not depend on how fast the machine is
  [ "$left" -ge "$limit" ] || limit=$left
  rm -f "$build/$name.log" "$build/$name.status"
  if [ "$limit" -lt 5 ]; then
    echo "no time $name"
    unfinished+=("$name")
    return
  fi
  (status=0; timeout -k 60 "$limit" "$@" >"$build/$name.log" 2>&1 || status=$?; echo "$status $limit" >"$build/$name.status") &
  pending+=("$name") jobs+=($!)
}
finish() {
  [ ${#jobs[@]} -eq 0 ] || wait "${jobs[@]}"
  local name status limit
  for name in "${pending[@]}"; do
    read -r status limit <"$build/$name.status"
    rm "$build/$name.status"
    case $status in
      0) echo "ok      $name" ;;
      77) echo "skipped $name: $(tail -n 1 "$build/$name.log")" ;;
      124 | 137) echo "cut     $name after $limit s"; unfinished+=("$name") ;;
      *) echo "FAILED  $name (exit $status)"; tail -n 12 "$build/$name.log" | cut -c1-300; failed+=("$name") ;;
    esac
  done
  pending=() jobs=()
}
check() { begin "$@"; finish; }
# Shards of a test program side by side: the work beside the GPU's is the host's.
shards() { # label program shards seconds filter command...
  local label=$1 program=$2 count=$3 seconds=$4 filter=$5 shard
  shift 5
  for ((shard = 0; shard < count; ++shard)); do
    begin "$label.$shard" "$seconds" env GTEST_TOTAL_SHARDS="$count" GTEST_SHARD_INDEX="$shard" "$@" "$program" --gtest_brief=1 --gtest_filter="$filter"
  done
}

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ -n "$emulated" ]; then
  card="the emulated GPU"
else
  command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || die 77 "no NVIDIA GPU here (nvidia-smi finds none); --emulated does without"
  # CUDA's GPU 0 is the first that it is allowed, in the order of nvidia-smi.
  export CUDA_DEVICE_ORDER=PCI_BUS_ID
  gpu=${CUDA_VISIBLE_DEVICES:-0}
  gpu=${gpu%%,*}
  card=$(nvidia-smi --query-gpu=name --format=csv,noheader -i "$gpu")
fi
[ -n "$out" ] || out=$PWD/reports/gpu/$(printf '%s' "$card" | tr '[:upper:] ' '[:lower:]-' | sed 's/^nvidia-//')
mkdir -p "$build" "$out"
build=$(readlink -f "$build")
commit_given=$commit
[ -n "$commit" ] || commit=$(git rev-parse --short=12 HEAD 2>/dev/null || true)
watcher=""
if [ -z "$emulated" ]; then  # once a second, for what the card's clocks were in the meantime
  nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active,utilization.gpu --format=csv,nounits \
    -i "$gpu" -l 1 >"$build/clocks.csv" 2>/dev/null &
  watcher=$!
  trap 'kill "$watcher" 2>/dev/null || true' EXIT
fi

# Wheels of CUDA's libraries have headers and libX.so.N in folders of their own, and none of the links that a linker looks for: links for
# what the toolkit lacks.
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
mkdir -p "$build/wheels/lib"
for folder in $(python3 -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null || true); do
  while read -r library; do
    name=$(basename "$library")
    ! ls "$toolkit/lib64/${name%%.so*}.so"* >/dev/null 2>&1 || continue
    ln -sf "$library" "$build/wheels/lib/$name"
    ln -sf "$library" "$build/wheels/lib/${name%%.so*}.so"
  done < <(find "$folder" -path '*/lib/*' -name 'lib*.so.*')
  for header in cufft.h cublas_v2.h cusolverDn.h nccl.h; do
    [ -e "$toolkit/include/$header" ] || CPATH=${CPATH:+$CPATH:}$(find "$folder" -name $header -printf '%h:')
    # CMake looks for NCCL's header itself, and not where CPATH says.
    [ $header != nccl.h ] || [ -n "${NCCL_HOME-}" ] || NCCL_HOME=$(find "$folder" -path "*/include/$header" -printf '%h\n' | sed -n '1s,/include$,,p')
  done
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$toolkit/lib64:$build/wheels/lib
[ -z "${NCCL_HOME-}" ] || export NCCL_HOME
CPATH=${CPATH-}
if [ -n "$CPATH" ]; then export CPATH=${CPATH%:}; else unset CPATH; fi
python="" torch=""
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import numpy, h5py' 2>/dev/null; then python=${python:-$candidate}; fi
  if [ -z "$emulated" ] && "$candidate" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then torch=${torch:-$candidate}; fi
done

if wanted probe; then
  {
    "$nvcc" --version || true
    g++ --version || true
    cmake --version || true
    ninja --version || true
    for header in cufft.h cublas_v2.h cusolverDn.h nccl.h; do
      echo "$header: $(ls "$toolkit"/include/$header $(printf '%s' "${CPATH-}" | tr : '\n' | sed "s,\$,/$header,") 2>/dev/null | head -n 1)"
    done
    for library in cufft cublas cusolver nccl; do
      echo "lib$library.so: $(ls "$toolkit"/lib64/lib$library.so "$build"/wheels/lib/lib$library.so 2>/dev/null | paste -sd ' ')"
    done
    [ -n "$emulated" ] || nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,TEMPERATURE || true
  } >"$build/probe.log" 2>&1
  grep -E '^(lib|[a-z_0-9A-Z]*\.h:|cmake|g\+\+|Cuda comp)' "$build/probe.log" || true
  if [ -n "$torch" ]; then
    check torch 60 "$torch" scripts/torch_anchors.py --elements 26214400 --elements 268435456 --out "$out/torch.json"
    tail -n 12 "$build/torch.log" 2>/dev/null || true
  elif [ -z "$emulated" ]; then
    echo "skipped torch: no Python with a PyTorch for CUDA"
  fi
fi

from_prefix=()
if [ -n "$prefix" ]; then
  if [ -f "$prefix" ]; then
    mkdir -p "$build/prefix"
    [ -d "$build/prefix/usr" ] && [ "$build/prefix/usr" -nt "$prefix" ] || tar -xf "$prefix" -C "$build/prefix" --touch
    prefix=$build/prefix
  fi
  roots="$prefix;$prefix/usr"
  multiarch=$(g++ -print-multiarch 2>/dev/null || true)
  libraries=$build/wheels/lib
  for folder in lib "lib/$multiarch" usr/lib "usr/lib/$multiarch" "usr/lib/$multiarch/hdf5/serial" \
    "usr/lib/$multiarch/openblas-pthread" "usr/lib/$multiarch/lapack" "usr/lib/$multiarch/blas"; do
    [ -d "$prefix/$folder" ] || continue
    LD_LIBRARY_PATH=$prefix/$folder:$LD_LIBRARY_PATH
    libraries="$libraries;$prefix/$folder"
  done
  from_prefix=("-DCMAKE_PREFIX_PATH=$roots" "-DCMAKE_FIND_ROOT_PATH=$roots" "-DCMAKE_LIBRARY_PATH=$libraries")
  export PATH="$prefix/usr/bin:$prefix/bin:$PATH" CMAKE_PREFIX_PATH="$prefix:$prefix/usr"
  # Debian's own place for HDF5, which CMake asks h5cc for: not part of an extracted tree.
  [ ! -d "$prefix/usr/cccl" ] || from_prefix+=("-DGRADTOOL_CCCL=$prefix/usr/cccl")
  [ ! -d "$prefix/usr/include/hdf5/serial" ] || from_prefix+=("-DHDF5_C_INCLUDE_DIR=$prefix/usr/include/hdf5/serial")
fi
programs=$build
if [ -n "$binaries" ]; then
  programs=$build/bundle
  rm -rf "$programs"
  mkdir "$programs"
  tar -xf "$binaries" -C "$programs"
  commit=${commit_given:-$(cat "$programs/commit")}
elif wanted configure; then
  arguments=(-S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGRADTOOL_WERROR=OFF -DGRADTOOL_TORCH=OFF
    -DGRADTOOL_REPORT=OFF -DGRADTOOL_NS3=OFF -DGRADTOOL_PYTHON_MODULE=OFF "-DCMAKE_LIBRARY_PATH=$build/wheels/lib")
  if [ -n "$emulated" ]; then
    arguments+=(-DGRADTOOL_CUDA=EMULATED -DGRADTOOL_MPI=OFF)
  else
    [ -x "$nvcc" ] || die 77 "no nvcc, in PATH or in /usr/local/cuda/bin"
    # The code of each card, where this nvcc knows it; else the newest that it does know, which the driver translates.
    known=$("$nvcc" --list-gpu-arch | sed 's/compute_//' | sort -n)
    architectures=""
    for capability in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d . | sort -un); do
      if printf '%s\n' "$known" | grep -qx "$capability"; then
        architectures+="${architectures:+;}$capability-real"
      else
        older=$(printf '%s\n' "$known" | awk -v c="$capability" '$1 < c' | tail -n 1)
        [ -n "$older" ] || die 77 "this nvcc has no code for compute capability $capability"
        architectures+="${architectures:+;}$older-virtual"
      fi
    done
    arguments+=(-DGRADTOOL_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=$architectures")
  fi
  [ -z "$prefix" ] || arguments+=("${from_prefix[@]}")
  if ! cmake "${arguments[@]}" >"$build/configure.log" 2>&1; then tail -n 40 "$build/configure.log"; exit 1; fi
  grep -E '^-- gradtool' "$build/configure.log" || true
fi
if [ -z "$binaries" ] && wanted build; then
  targets=(gradtool gradtool_microbench gpu_codecs gpu_methods gpu_reducers comm_gpu)
  [ -n "$emulated" ] || targets+=(comm_cuda_runtime)
  if ! cmake --build "$build" --target "${targets[@]}" >"$build/build.log" 2>&1; then tail -n 40 "$build/build.log"; exit 1; fi
fi
case ",$stages," in *,tests,* | *,bench,* | *,ncu,* | *,sanitize,*) ;; *) exit 0 ;; esac
gradtool=$programs/bin/gradtool microbench=$programs/bin/gradtool_microbench
find_test() { find "$programs/tests" -type f -name "$1" -perm -u+x | head -n 1; }
[ -x "$gradtool" ] || die 1 "there is no $gradtool: --stages configure,build, or --binaries"
if [ -z "$emulated" ]; then
  timeout 60 "$(find_test comm_cuda_runtime)" --gtest_brief=1 >"$build/runtime.log" 2>&1 || true
  grep -q 'PASSED' "$build/runtime.log" && ! grep -q 'PASSED  \] 0 tests' "$build/runtime.log" ||
    { tail -n 5 "$build/runtime.log"; die 1 "nvidia-smi sees $card, and these programs do not run on it"; }
fi
export GRADTOOL_METHOD_FOLDER=$PWD/lib/methods  # the binaries may come from another place

# First what no emulation can show: inputs of edge cases, and the card's own NaN. With few tests of an emulated GPU, only to see them run.
edges='*Degenerate*:*WritesTheHosts*' rest='-*Degenerate*:*WritesTheHosts*'
if wanted tests; then
  if [ -n "$emulated" ]; then
    begin gpu_codecs.0 120 "$(find_test gpu_codecs)" --gtest_brief=1 --gtest_filter='*Degenerate*/fp16*:*Degenerate*/topk'
    begin gpu_methods.0 120 "$(find_test gpu_methods)" --gtest_brief=1 --gtest_filter='GpuLowRank*'
    begin gpu_reducers.0 120 "$(find_test gpu_reducers)" --gtest_brief=1 --gtest_filter='Own/*OddUnits*/signsgd*'
  else
    for program in gpu_codecs gpu_reducers gpu_methods; do shards "$program-edges" "$(find_test $program)" 4 60 "$edges"; done
    finish
    shards gpu_codecs "$(find_test gpu_codecs)" 7 110 "$rest"
    shards gpu_reducers "$(find_test gpu_reducers)" 6 110 "$rest"
    shards gpu_methods "$(find_test gpu_methods)" 3 110 "$rest"
    begin comm_cuda_runtime 60 "$(find_test comm_cuda_runtime)" --gtest_brief=1
  fi
  begin comm_gpu 60 "$(find_test comm_gpu)" --gtest_brief=1
  if [ -n "$python" ]; then
    begin analyze 100 "$python" tests/analysis/check_gpu.py "$gradtool"
  else
    echo "skipped analyze: no Python with numpy and h5py"
  fi
  finish
fi

sizes=(26214400)
[ -n "$quick" ] || sizes+=(268435456)
[ -z "$emulated" ] || sizes=(20000)
if wanted bench "micro-benchmarks"; then
  for elements in "${sizes[@]}"; do
    check "microbench-$elements" 100 "$microbench" --device=cuda --elements="$elements" \
      --benchmark_out="$out/microbench-$elements.json" --benchmark_out_format=json
  done
  # A ResNet-50's tensors one by one, in batches, and as one.
  only=()
  [ -z "$emulated" ] || only=(--codec=fp16)
  check microbench-resnet50 60 "$microbench" --device=cuda --tensors=resnet50 "${only[@]}" \
    --benchmark_out="$out/microbench-resnet50.json" --benchmark_out_format=json

  printf '\n######## bench of captures of the shape of a ResNet-50 and a GPT-2, two ranks on the card (after %d s)\n' $((SECONDS - started))
  # The records say what codecs take on this card, also to users without one: gradtool bench --codec-speed RECORD.
  for model in resnet50 gpt2; do
    capture=$build/$model.h5 codecs=all
    [ $model = resnet50 ] || codecs=none,bf16,fp8,int8,mx,qsgd,signsgd,natural,topk:ratio=0.01,powersgd:rank=4,dgc,exponent
    if [ -n "$emulated" ]; then
      capture=datasets/lenet5-fashion-mnist.h5 codecs=none,fp16
    elif [ -z "$python" ]; then
      echo "skipped bench of a $model: no Python with numpy and h5py"
      continue
    elif [ ! -e "$capture" ]; then
      check "write-$model" 60 env PYTHONPATH=python/src "$python" scripts/large_capture.py --model "$model" --workers 2 --write "$capture.part"
      case " ${failed[*]-} ${unfinished[*]-} " in *" write-$model "*) rm -f "$capture.part"; continue ;; esac
      mv "$capture.part" "$capture"
    fi
    # With a network each codec is replayed by every way that an answer may take.
    check "bench-$model" 90 "$gradtool" bench "$capture" --device cuda --codec "$codecs" --timing isolated --iters 20 --network 100gbe --nodes 16 \
      --json "$out/bench-$model.json"
  done
fi

if wanted ncu; then
  ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | tail -n 1 || true)
  if [ -n "$ncu" ] && [ -z "$emulated" ]; then
    metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
    metrics+=,sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active,smsp__issue_active.avg.pct_of_peak_sustained_active
    metrics+=,sm__warps_active.avg.pct_of_peak_sustained_active
    # By codec, because names of kernels do not say whose they are. Everything runs once, and the clocks stay as they are.
    rm -f "$build/ncu.csv"
    for codec in fp16 int8 fp8 mx qsgd natural signsgd topk:ratio=0.01 uint8 exponent vgc thc dgc fft demo; do
      check "ncu-$codec" 20 "$ncu" --clock-control none --metrics $metrics --csv --print-units base --log-file "$build/ncu-one.csv" \
        --launch-count 60 "$microbench" --device=cuda --elements=26214400 --once --codec=$codec
      { echo "# $codec"; cat "$build/ncu-one.csv" 2>/dev/null || true; } >>"$build/ncu.csv"
      rm -f "$build/ncu-one.csv"
    done
  else
    echo "skipped ncu: there is none here"
  fi
fi

if wanted sanitize "compute-sanitizer"; then
  sanitizer=$(command -v compute-sanitizer || ls "$toolkit"/bin/compute-sanitizer "$toolkit"/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1 || true)
  if [ -n "$sanitizer" ] && [ -z "$emulated" ]; then
    # A sanitizer makes a kernel tens of times slower: the tests with a few thousand elements, and the libraries' kernels only as they are used.
    for tool in memcheck racecheck initcheck; do
      under=(env CUDA_MODULE_LOADING=LAZY "$sanitizer" --tool $tool --error-exitcode 9 --print-limit 20)
      case $tool in
        memcheck) tests='*Degenerate*:*TakesUnitsOfSeveralTensors*:*ReadsThePayloadsOwnSize*' ;;
        *) tests='*Degenerate*' ;;
      esac
      shards $tool "$(find_test gpu_codecs)" 4 90 "$tests" "${under[@]}"
      shards $tool-reducers "$(find_test gpu_reducers)" 1 90 "$tests" "${under[@]}"
    done
    finish
  else
    echo "skipped compute-sanitizer: there is none here"
  fi
fi

printf '\n######## report (after %d s)\n' $((SECONDS - started))
[ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
(cd "$build" && find . -maxdepth 1 \( -name '*.log' -o -name clocks.csv -o -name ncu.csv \) -print0 | tar -cJf "$out/logs.tar.xz" --null -T -) || echo "no logs.tar.xz"
report=(--out "$out" --log "$build" --card "$card" --commit "$commit" --nvcc "$nvcc" --command "gpu-check.sh --stages $stages${quick:+ --quick}${emulated:+ --emulated}"
  --seconds $((SECONDS - started)) --failed "${failed[*]-}" --unfinished "${unfinished[*]-}")
if command -v python3 >/dev/null; then
  python3 scripts/gpu_report.py "${report[@]}" -- "${sizes[@]}"
else
  echo "no python3: no README.md; the logs are in $build"
fi
echo "wrote $out"
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
echo "no check failed in $((SECONDS - started)) s${unfinished[*]:+; no time for all of: ${unfinished[*]}}"
